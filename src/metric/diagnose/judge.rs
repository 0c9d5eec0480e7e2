//! From facts to a verdict.

use super::client::Presence;
use super::server::Shares;
use super::{Evidence, Limits, TwoSides, Verdict};
use crate::metric::scrape::ENOUGH_SCRAPES;

/// A state that lasts for this share of the judged time holds more often than not.
pub const MOSTLY: f64 = 0.5;
/// A state up to this share is what chance gives a load below capacity: bursts of a Poisson load find a full
/// server now and then.
pub const SELDOM: f64 = 0.1;
/// Of the time in which requests wait, one cause must hold for so much to be named alone: twice as often as all others.
pub const ONE_CAUSE: f64 = 2.0 / 3.0;
/// A client that computes for this share of its core is late with what it sends: queueing delay grows tenfold there.
pub const BUSY_CORE: f64 = 0.9;
/// A client that computes for this share of its cores is held back by them: whoever needs a core waits for it more than
/// twice as long as it works (the mean wait in a single queue with Poisson arrivals is b / (1 - b) times the work).
pub const STRAINED_CORE: f64 = 0.7;
/// What, value, unit, threshold.
type Row = (&'static str, Option<f64>, &'static str, Option<f64>);

/// All that a verdict is made of.
pub(super) struct Facts {
    pub limits: Limits,
    pub shares: Option<Shares>,
    /// Requests that were due but not sent.
    pub held: Presence,
    pub judged_ns: u64,
    /// Requests in flight early and late, when they grew beyond chance.
    pub growth: Option<(f64, f64)>,
    pub preemptions: Option<u64>,
}

impl Facts {
    fn held_share(&self) -> f64 {
        if self.judged_ns == 0 {
            return 0.0;
        }
        self.held.any_ns as f64 / self.judged_ns as f64
    }

    pub fn judge(&self) -> (Verdict, String) {
        let undecidable = |why: String| (Verdict::Undecidable, why);
        let load_s = self.judged_ns as f64 / 1e9;
        let Some(shares) = self.shares.as_ref().filter(|s| s.readings > 0) else {
            return undecidable(format!(
                "the server's gauges are not known; running and waiting requests (vllm:num_requests_running, \
                 vllm:num_requests_waiting), read every {:.3} s or oftener while the load lasts, would tell",
                load_s / ENOUGH_SCRAPES as f64
            ));
        };
        if shares.sampled && shares.readings < ENOUGH_SCRAPES {
            return undecidable(format!(
                "only {} readings of the gauges fall into the {load_s:.3} s of load; one every {:.3} s would be enough",
                shares.readings,
                load_s / ENOUGH_SCRAPES as f64
            ));
        }
        let queued = shares.share(shares.queued);
        if queued >= MOSTLY {
            return self.judge_queue(shares);
        }
        if queued > SELDOM {
            return undecidable(format!(
                "mixed: requests wait in {:.0} % of the time, neither seldom nor mostly",
                queued * 100.0
            ));
        }
        self.judge_without_queue(shares)
    }

    /// Requests wait on the server most of the time: for what?
    fn judge_queue(&self, shares: &Shares) -> (Verdict, String) {
        let part = |n: u128| n as f64 / shares.queued as f64;
        let (seats, blocks) = (part(shares.pinned), part(shares.short));
        let (room, unknown) = (part(shares.room), part(shares.unknown));
        let Some(cap) = self.limits.max_num_seqs else {
            let why = "requests wait most of the time, but max_num_seqs is not known: seats and KV memory cannot be told apart";
            return (Verdict::Undecidable, why.into());
        };
        if seats >= ONE_CAUSE {
            let why = format!("running stands at max_num_seqs ({cap}) while requests wait for a seat");
            return (Verdict::Server, why);
        }
        if blocks >= ONE_CAUSE {
            let why = "requests wait although seats are free: the free KV blocks cannot hold the next one";
            return (Verdict::Kv, why.into());
        }
        if seats + room >= ONE_CAUSE {
            let why = "requests wait although seats and KV blocks are free: each step has room for so many prompt tokens only";
            return (Verdict::Server, why.into());
        }
        if unknown > 1.0 - ONE_CAUSE {
            let why = "requests wait below max_num_seqs, but KV use (vllm:kv_cache_usage_perc) is not known";
            return (Verdict::Undecidable, why.into());
        }
        let why = "mixed: requests wait sometimes for seats and sometimes for KV blocks";
        (Verdict::Undecidable, why.into())
    }

    /// Hardly any request waits on the server.
    fn judge_without_queue(&self, shares: &Shares) -> (Verdict, String) {
        let cap = self.limits.max_num_seqs;
        if cap.is_some() && shares.share(shares.full) >= MOSTLY {
            return (Verdict::Undecidable, self.just_full(shares));
        }
        if self.limits.client_busy.is_some_and(|b| b >= BUSY_CORE) {
            return (
                Verdict::Client,
                "the client's cores are busy while the server has seats free".into(),
            );
        }
        if self.held_share() >= MOSTLY {
            let why = "requests that are due wait in the client while the server has seats free and no queue";
            return (Verdict::Client, format!("{why}{}", self.cores_text()));
        }
        if let Some(n) = self.limits.concurrency.filter(|_| !self.limits.paced) {
            let seats = cap.map_or_else(
                || "its".into(),
                |c| (u64::from(c) * u64::from(self.limits.replicas.max(1))).to_string(),
            );
            return (
                Verdict::Client,
                format!(
                    "a closed loop of {n} clients leaves some of the server's {seats} seats empty and nothing waits{}",
                    self.cores_text()
                ),
            );
        }
        if let Some((early, late)) = self.growth {
            return (
                Verdict::Undecidable,
                format!(
                    "nothing waits yet, but requests in flight still grew (from {early:.1} to {late:.1}) when the load \
                     ended: a longer run would tell"
                ),
            );
        }
        (
            Verdict::None,
            "nothing waits, on the server or in the client: seats, KV memory and client all had room".into(),
        )
    }

    /// Every seat is taken and nothing waits. A closed loop of as many clients as there are seats looks like that
    /// whichever of the two holds it back, because lifting one of them alone changes nothing.
    fn just_full(&self, shares: &Shares) -> String {
        let replicas = u64::from(self.limits.replicas.max(1));
        let seats = self.limits.max_num_seqs.map(|c| u64::from(c) * replicas);
        let clients = self.limits.concurrency.filter(|_| !self.limits.paced);
        match clients.zip(seats) {
            Some((n, seats)) if u64::from(n) == seats => format!(
                "client and server limit alike: a closed loop of {n} clients takes all of the {seats} seats in {:.0} % of \
                 the time and nothing waits: more clients would only wait for a seat, and more seats would stay empty; \
                 a run with more of both would tell what the server can carry",
                100.0 * shares.share(shares.full)
            ),
            _ => "mixed: every seat is taken, but no request waits: the client offers just what there are seats for"
                .into(),
        }
    }

    /// How busy the client's cores are, and whether they are part of the cause.
    fn cores_text(&self) -> String {
        match self.limits.client_busy {
            Some(busy) if busy >= STRAINED_CORE => format!(
                "; its cores are {:.0} % busy, which makes its sends and what it sees late: a part of the cause",
                100.0 * busy
            ),
            Some(busy) => format!("; its cores are {:.0} % busy", 100.0 * busy),
            None => String::new(),
        }
    }

    /// The figures that the verdict rests on.
    pub fn evidence(&self, little: &TwoSides) -> Vec<Evidence> {
        let mut rows = self
            .shares
            .as_ref()
            .map_or_else(Vec::new, |s| self.server_rows(s));
        let seats = self.limits.max_num_seqs.map(f64::from);
        let clients = self.limits.concurrency.map(f64::from);
        let replicas = f64::from(self.limits.replicas.max(1));
        let held = "time in which requests that are due wait in the client";
        rows.push((held, Some(self.held_share()), "1", Some(MOSTLY)));
        rows.push((
            "in flight at the client",
            little.in_flight_judged,
            "requests",
            None,
        ));
        if clients.is_some() {
            rows.push((
                "clients of a closed loop",
                clients,
                "clients",
                seats.map(|s| s * replicas),
            ));
        }
        if let Some(busy) = self.limits.client_busy {
            rows.push(("client cores busy", Some(busy), "1", Some(BUSY_CORE)));
        }
        let longest = self.judged_ns as f64 / 1e9 / ENOUGH_SCRAPES as f64;
        rows.push((
            "longest scrape interval with enough readings",
            Some(longest),
            "s",
            None,
        ));
        let evidence = |(what, value, unit, threshold): Row| Evidence {
            what: what.into(),
            value,
            unit: unit.into(),
            threshold,
        };
        rows.into_iter().map(evidence).collect()
    }

    fn server_rows(&self, s: &Shares) -> Vec<Row> {
        let seats = self.limits.max_num_seqs.map(f64::from);
        let of_queue = |n: u128| (s.queued > 0).then(|| n as f64 / s.queued as f64);
        let of_time = |n: u128| Some(s.share(n));
        let enough = s.sampled.then_some(ENOUGH_SCRAPES as f64);
        let (pinned, full) = (of_queue(s.pinned), of_time(s.full));
        let (mostly, cause) = (Some(MOSTLY), Some(ONE_CAUSE));
        let count = |n: u64| Some(n as f64);
        let preempted = self.preemptions.map(|n| n as f64);
        vec![
            ("readings of the gauges", count(s.readings), "readings", enough),
            (
                "time in which requests wait on the server",
                of_time(s.queued),
                "1",
                mostly,
            ),
            (
                "of it with every seat taken",
                pinned.filter(|_| seats.is_some()),
                "1",
                cause,
            ),
            (
                "of it with too few free KV blocks for the next",
                of_queue(s.short),
                "1",
                cause,
            ),
            (
                "of it with seats and KV blocks free",
                of_queue(s.room),
                "1",
                cause,
            ),
            (
                "time in which every seat is taken",
                full.filter(|_| seats.is_some()),
                "1",
                mostly,
            ),
            (
                "running, largest reading",
                count(s.running_max),
                "requests",
                seats,
            ),
            ("preemptions", preempted, "times", None),
        ]
    }
}
