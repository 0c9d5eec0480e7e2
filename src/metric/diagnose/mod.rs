//! What held a run back: Little's law from both sides, and a verdict with its evidence.
//!
//! Requests in flight at the client are not those that run on the server: some wait for a seat, some are on their
//! way. So the client's number (throughput times latency) is laid beside the time averages of the server's gauges,
//! and the verdict comes from the gauges alone. Simulated runs have every step; live runs have what was scraped, or
//! nothing at all, and then the verdict says what is missing.
//!
//! Only the time in which load was offered is judged, from the first send to the last: ramp-down is no bottleneck.
//! A load that was sent within the first tenth of its run (offline) is judged to its last answer.

mod client;
mod server;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use client::{ClientSpan, ClientView};
pub use server::ServerView;

use super::scrape::ENOUGH_SCRAPES;
use super::window::Window;
use crate::record::RunRecord;
use client::{Presence, presence};
use server::Shares;

/// A state that lasts for this share of the judged time holds more often than not.
pub const MOSTLY: f64 = 0.5;
/// A state up to this share is what chance gives a load below capacity: bursts of a Poisson load find a full
/// server now and then.
pub const SELDOM: f64 = 0.1;
/// Of the time in which requests wait, one cause must hold for so much to be named alone: twice as often as all others.
pub const ONE_CAUSE: f64 = 2.0 / 3.0;
/// A client that computes for this share of its core is late with what it sends: queueing delay grows tenfold there.
pub const BUSY_CORE: f64 = 0.9;
/// Growth of the requests in flight above this share of the arrivals: the load was more than was served.
const GROWTH_SHARE: f64 = 0.05;
/// Growth must also exceed so many standard deviations of a Poisson count.
const GROWTH_SIGMAS: f64 = 3.0;
/// Fewer requests than this say nothing of growth.
const FEWEST_FOR_GROWTH: usize = 40;

/// What held a run back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing: the server kept up with what was offered, and the client with what it had to send.
    None,
    /// The server's queue: requests wait for a seat (`max_num_seqs`) or for room in a step.
    Server,
    /// KV memory: requests wait although seats are free, because no blocks are.
    Kv,
    /// The client: it keeps too few requests in flight, or sends them late.
    Client,
    /// The evidence is missing or mixed.
    Undecidable,
}

impl Verdict {
    /// As in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Server => "server",
            Self::Kv => "kv",
            Self::Client => "client",
            Self::Undecidable => "undecidable",
        }
    }
}

/// One figure that the verdict rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// What was found.
    pub what: String,
    /// How much; null when it is not known.
    pub value: Option<f64>,
    /// In which unit; `1` for a share.
    pub unit: String,
    /// What it is compared with; null when it is told for its own sake.
    pub threshold: Option<f64>,
}

/// What is known of the server and the client beside what was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limits {
    /// Most running requests of one replica (`max_num_seqs`).
    pub max_num_seqs: Option<u32>,
    /// Replicas behind gauges that are given for all of them together; 0 counts as 1.
    pub replicas: u32,
    /// Usable KV blocks of a replica, where the record does not tell.
    pub usable_blocks: Option<u32>,
    /// Tokens of a KV block.
    pub block_size: Option<u32>,
    /// Prompt tokens for which a request needs blocks to be admitted: the first chunk. `None`: the whole prompt.
    pub first_chunk: Option<u32>,
    /// Blocks that admission leaves free.
    pub reserved_blocks: u32,
    /// Clients of a closed loop.
    pub concurrency: Option<u32>,
    /// Share of one core for which the client computed.
    pub client_busy: Option<f64>,
}

/// Little's law, L = lambda * W, from both sides. Requests that never ended have no W; L then comes from the
/// integral alone.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct TwoSides {
    /// The client's own wall clock, in seconds.
    pub wall_clock_s: f64,
    /// lambda: answered requests a second of that wall clock.
    pub rate_rps: Option<f64>,
    /// W: mean time from send to last token, in seconds.
    pub e2e_mean_s: Option<f64>,
    /// lambda * W: mean requests in flight at the client over its wall clock.
    pub in_flight: Option<f64>,
    /// Time in which any request was in flight, in seconds.
    pub active_s: f64,
    /// Mean requests in flight over that time.
    pub in_flight_active: Option<f64>,
    /// Start of the judged time, in seconds.
    pub judged_from_s: f64,
    /// End of the judged time, in seconds.
    pub judged_to_s: f64,
    /// Mean requests in flight at the client in the judged time.
    pub in_flight_judged: Option<f64>,
    /// Mean running requests of all replicas in the judged time.
    pub running: Option<f64>,
    /// Mean waiting requests of all replicas in the judged time.
    pub waiting: Option<f64>,
    /// In flight at the client, but neither running nor waiting on the server: on the way, before the scheduler saw
    /// them, or after their last step.
    pub outside: Option<f64>,
}

/// A verdict and what it rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// What held the run back.
    pub verdict: Verdict,
    /// Why, in a sentence.
    pub because: String,
    /// The figures it rests on.
    pub evidence: Vec<Evidence>,
    /// Little's law from both sides.
    pub little: TwoSides,
}

impl Diagnosis {
    /// Of a whole record: simulated, or a live engine's own steps. Without any step the server is unknown.
    pub fn of_run(run: &RunRecord, window: &Window, limits: &Limits) -> Self {
        let client = ClientView::of_record(run);
        let server = ServerView::of_record(run, limits);
        Self::of(&client, server.as_ref(), window, limits)
    }

    /// Of what a client saw and, if known, what the server's gauges showed.
    pub fn of(client: &ClientView, server: Option<&ServerView>, window: &Window, limits: &Limits) -> Self {
        let judged = client.judged(window);
        let facts = Facts {
            limits: *limits,
            shares: server.map(|s| s.shares(judged)),
            held: presence(client.held(), judged),
            judged_ns: judged.1.since(judged.0).as_nanos(),
            growth: client.growth(judged).filter(|_| limits.concurrency.is_none()),
            preemptions: server.and_then(ServerView::preemptions),
        };
        let little = two_sides(client, facts.shares.as_ref(), judged);
        let (verdict, because) = facts.judge();
        Self {
            verdict,
            because,
            evidence: facts.evidence(&little),
            little,
        }
    }
}

fn two_sides(
    client: &ClientView,
    shares: Option<&Shares>,
    judged: (crate::units::SimTime, crate::units::SimTime),
) -> TwoSides {
    let whole = presence(client.in_flight(), client.span());
    let inside = presence(client.in_flight(), judged);
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mean = |integral: u128, ns: u64| (ns > 0).then(|| integral as f64 / ns as f64);
    let wall_ns = client.wall_clock().as_nanos();
    let (answered, total_ns) = client.answered();
    let judged_ns = judged.1.since(judged.0).as_nanos();
    let in_flight_judged = mean(inside.integral, judged_ns);
    let running = shares.and_then(Shares::running);
    let waiting = shares.and_then(Shares::waiting);
    TwoSides {
        wall_clock_s: seconds(wall_ns),
        rate_rps: (wall_ns > 0).then(|| answered as f64 / seconds(wall_ns)),
        e2e_mean_s: (answered > 0).then(|| total_ns as f64 / answered as f64 / 1e9),
        in_flight: mean(total_ns, wall_ns),
        active_s: seconds(whole.any_ns),
        in_flight_active: mean(whole.integral, whole.any_ns),
        judged_from_s: judged.0.as_secs_f64(),
        judged_to_s: judged.1.as_secs_f64(),
        in_flight_judged,
        running,
        waiting,
        outside: in_flight_judged
            .zip(running.zip(waiting))
            .map(|(l, (r, w))| l - r - w),
    }
}

/// All that a verdict is made of.
struct Facts {
    limits: Limits,
    shares: Option<Shares>,
    /// Requests that were due but not sent.
    held: Presence,
    judged_ns: u64,
    /// Requests in flight early and late, when they grew beyond chance.
    growth: Option<(f64, f64)>,
    preemptions: Option<u64>,
}

impl Facts {
    fn held_share(&self) -> f64 {
        if self.judged_ns == 0 {
            return 0.0;
        }
        self.held.any_ns as f64 / self.judged_ns as f64
    }

    fn judge(&self) -> (Verdict, String) {
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
            let why = "mixed: every seat is taken, but no request waits: the client offers just what there are seats for";
            return (Verdict::Undecidable, why.into());
        }
        if self.limits.client_busy.is_some_and(|b| b >= BUSY_CORE) {
            return (
                Verdict::Client,
                "the client's core is busy while the server has seats free".into(),
            );
        }
        if self.held_share() >= MOSTLY {
            let why = "requests that are due wait in the client while the server has seats free and no queue";
            return (Verdict::Client, why.into());
        }
        if let Some(n) = self.limits.concurrency {
            let seats = cap.map_or_else(
                || "its".into(),
                |c| (u64::from(c) * u64::from(self.limits.replicas.max(1))).to_string(),
            );
            return (
                Verdict::Client,
                format!(
                    "a closed loop of {n} clients leaves some of the server's {seats} seats empty and nothing waits"
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

    fn evidence(&self, little: &TwoSides) -> Vec<Evidence> {
        let mut list = Vec::new();
        let mut put = |what: &str, value: Option<f64>, unit: &str, threshold: Option<f64>| {
            list.push(Evidence {
                what: what.into(),
                value,
                unit: unit.into(),
                threshold,
            });
        };
        let seats = self.limits.max_num_seqs.map(f64::from);
        if let Some(s) = &self.shares {
            let of_queue = |n: u128| (s.queued > 0).then(|| n as f64 / s.queued as f64);
            put(
                "readings of the gauges in the judged time",
                Some(s.readings as f64),
                "readings",
                s.sampled.then_some(ENOUGH_SCRAPES as f64),
            );
            put(
                "time in which requests wait on the server",
                Some(s.share(s.queued)),
                "1",
                Some(MOSTLY),
            );
            put(
                "of it with every seat taken",
                of_queue(s.pinned).filter(|_| seats.is_some()),
                "1",
                Some(ONE_CAUSE),
            );
            put(
                "of it with too few free KV blocks for the next request",
                of_queue(s.short),
                "1",
                Some(ONE_CAUSE),
            );
            put(
                "of it with seats and KV blocks free",
                of_queue(s.room),
                "1",
                Some(ONE_CAUSE),
            );
            put(
                "time in which every seat is taken",
                Some(s.share(s.full)).filter(|_| seats.is_some()),
                "1",
                Some(MOSTLY),
            );
            put(
                "running requests of a replica, largest reading",
                Some(s.running_max as f64),
                "requests",
                seats,
            );
            put("preemptions", self.preemptions.map(|n| n as f64), "times", None);
        }
        put(
            "time in which requests that are due wait in the client",
            Some(self.held_share()),
            "1",
            Some(MOSTLY),
        );
        put(
            "clients of a closed loop",
            self.limits.concurrency.map(f64::from),
            "clients",
            seats.map(|s| s * f64::from(self.limits.replicas.max(1))),
        );
        if self.limits.client_busy.is_some() {
            put("client core busy", self.limits.client_busy, "1", Some(BUSY_CORE));
        }
        put(
            "in flight at the client",
            little.in_flight_judged,
            "requests",
            None,
        );
        list
    }
}
