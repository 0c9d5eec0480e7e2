//! From facts to a verdict: the last place that is full, or the slowest one of late requests.

use super::gauges::Role;
use super::{ClusterLimit, Facts, Place, PoolQueues};
use crate::metric::diagnose::{MOSTLY, ONE_CAUSE, SELDOM, presence};
use crate::metric::goodput::Target;

/// Fewer followed requests than this say nothing.
pub(super) const FEWEST: u64 = 40;
/// A link that carries so much of what it could is full.
pub(super) const FULL_LINK: f64 = 0.9;
/// And its transfers take so many times as long as alone: they wait for each other.
pub(super) const SLOWED: f64 = 2.0;
/// Groups that were not ready for this share of their time are part of the cause.
pub(super) const AWAY: f64 = 0.1;
/// What helps where groups are not there when they are wanted.
const SPARE: &str = "keep spare groups, or start them sooner or faster; whether there are enough when all are ready, a run without that tells";
/// Less of their time than this leaves no queue behind.
const SLIGHT: f64 = 0.01;

/// A verdict.
pub(super) struct Found {
    pub limit: ClusterLimit,
    pub whose: Option<String>,
    pub because: String,
    pub advice: Option<String>,
}

impl Found {
    pub fn of(limit: ClusterLimit, whose: &str, because: String, advice: &str) -> Self {
        Self {
            limit,
            whose: Some(whose.to_owned()),
            because,
            advice: Some(advice.to_owned()),
        }
    }

    fn plain(limit: ClusterLimit, because: impl Into<String>) -> Self {
        Self {
            limit,
            whose: None,
            because: because.into(),
            advice: None,
        }
    }

    fn undecidable(because: impl Into<String>) -> Self {
        Self::plain(ClusterLimit::Undecidable, because)
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

impl Facts<'_> {
    /// What limits.
    pub fn judge(&self) -> Found {
        if self.cluster.stranded > 0 {
            return Found::undecidable(format!(
                "{} requests are stranded: figures of a run that came to nothing say nothing of a limit",
                self.cluster.stranded
            ));
        }
        let sent = self.flow.followed + self.flow.not_followed;
        if sent < FEWEST {
            return Found::undecidable(format!(
                "only {sent} requests were sent in the judged {:.3} s; {FEWEST} or more would tell",
                self.seconds()
            ));
        }
        let full = self
            .answering()
            .and_then(|pool| self.full_pool(pool))
            .or_else(|| self.full_link())
            .or_else(|| self.full_prefill())
            .or_else(|| self.full_gateway());
        full.or_else(|| self.missed_target())
            .unwrap_or_else(|| self.without_limit())
    }

    /// The pool whose groups answer; none where there are several.
    pub fn answering(&self) -> Option<&PoolQueues> {
        self.pools.iter().find(|p| p.role != Role::Prefill)
    }

    fn prefill(&self) -> Option<&PoolQueues> {
        self.pools.iter().find(|p| p.role == Role::Prefill)
    }

    /// Share of the time of decode groups in which requests wait there for room or a seat, beyond what all wait.
    pub fn decode_queued(&self, pool: &PoolQueues) -> f64 {
        let groups: Vec<u32> = (0..)
            .zip(&self.cluster.groups)
            .filter(|(_, g)| self.cluster.pools.get(g.pool as usize) == Some(&pool.pool))
            .map(|(number, _)| number)
            .collect();
        let waits = |group: u32| {
            let of = self.flow.decode_waits.iter().filter(move |w| w.0 == group);
            of.map(|w| (w.1, w.2))
        };
        let any: u128 = groups
            .iter()
            .map(|&g| u128::from(presence(waits(g), self.judged).any_ns))
            .sum();
        let ready_ns = pool.ready * self.seconds() * 1e9;
        if ready_ns > 0.0 {
            any as f64 / ready_ns
        } else {
            0.0
        }
    }

    /// Groups that answer are full: requests wait for them most of the time.
    fn full_pool(&self, pool: &PoolQueues) -> Option<Found> {
        let queued = pool.queued.unwrap_or(0.0);
        if let Some(found) = uneven(pool) {
            return Some(found);
        }
        if pool.role == Role::Decode {
            let waits = self.decode_queued(pool);
            if waits < MOSTLY || queued < MOSTLY {
                return None;
            }
            let (pinned, short) = (pool.pinned.unwrap_or(0.0), pool.short.unwrap_or(0.0));
            let so = format!("requests wait at its groups in {} of the time", percent(waits));
            return Some(self.away(pool).unwrap_or_else(|| {
                if short > pinned && self.flow.room_part >= MOSTLY {
                    let because = format!("{so}: too few KV blocks are free for their prompts");
                    Found::of(
                        ClusterLimit::Kv,
                        &pool.pool,
                        because,
                        "add decode groups, or KV memory",
                    )
                } else if pinned >= MOSTLY {
                    let because = format!("{so}: all {} seats of their replicas are taken", pool.seats);
                    let advice =
                        "add decode groups, or raise their max_num_seqs if KV memory and the targets allow";
                    Found::of(ClusterLimit::Decode, &pool.pool, because, advice)
                } else {
                    Found::undecidable(format!("{so}, sometimes for seats and sometimes for KV blocks"))
                }
            }));
        }
        (queued >= MOSTLY).then(|| self.away(pool).unwrap_or_else(|| queue_of(pool, "add groups")))
    }

    /// Groups that are not there are why the others are full.
    pub fn away(&self, pool: &PoolQueues) -> Option<Found> {
        let away = pool.not_ready.filter(|&a| a >= AWAY)?;
        let because = format!(
            "requests wait for its groups, which started or had failed in {} of their time",
            percent(away)
        );
        Some(Found::of(ClusterLimit::Capacity, &pool.pool, because, SPARE))
    }

    fn full_link(&self) -> Option<Found> {
        let link = self.transfers.as_ref()?.busiest.as_ref()?;
        let slowed = link.slowdown.is_none_or(|times| times >= SLOWED);
        (link.share >= FULL_LINK && slowed).then(|| {
            let mut because = format!("it carries {} of what it can while KV is moved", percent(link.share));
            if let Some(times) = link.slowdown {
                because += &format!(", and transfers take {times:.1} times as long as alone");
            }
            let advice = "links are the limit: more bandwidth, or fewer bytes a token (KV in fp8), or fewer prompts that are prefilled elsewhere";
            Found::of(ClusterLimit::Transfer, &link.link, because, advice)
        })
    }

    fn full_prefill(&self) -> Option<Found> {
        let pool = self.prefill()?;
        if let Some(found) = uneven(pool) {
            return Some(found);
        }
        if pool.queued.unwrap_or(0.0) < MOSTLY {
            return None;
        }
        Some(self.away(pool).unwrap_or_else(|| {
            if pool.short.unwrap_or(0.0) >= ONE_CAUSE {
                let because = format!(
                    "requests wait in {} of the time although seats are free: KV blocks of prompts that are computed are held until \
                     they are read",
                    percent(pool.queued.unwrap_or(0.0))
                );
                let advice = "add prefill groups, or KV memory to them, or read sooner (links, decode groups)";
                return Found::of(ClusterLimit::Kv, &pool.pool, because, advice);
            }
            let because = format!(
                "prompts wait in {} of the time and its groups compute in {} of it",
                percent(pool.queued.unwrap_or(0.0)),
                percent(pool.busy.unwrap_or(0.0))
            );
            Found::of(ClusterLimit::Prefill, &pool.pool, because, "add prefill groups")
        }))
    }

    /// No queue stands, but a target is missed.
    fn missed_target(&self) -> Option<Found> {
        let asked = self.options.slo.attainment?;
        let missed = self.flow.attained.iter().filter(|(_, met)| *met < asked);
        let &(target, met) = missed.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let so = format!(
            "no queue stands for most of the time, but {} holds for {} of the requests only, {} asked",
            target.name(),
            percent(met),
            percent(asked)
        );
        if self.flow.not_followed > self.flow.followed {
            let why = "most requests were tried again or not served, and their ways are not known";
            return Some(Found::undecidable(format!("{so}; {why}")));
        }
        let (place, share) = match target {
            Target::Tpot | Target::Itl => (Place::Decode, 1.0),
            Target::Ttft | Target::E2e => self.flow.slowest(target)?,
        };
        if share < MOSTLY {
            return Some(Found::undecidable(format!(
                "{so}; late requests spend no more than {} of that time at one place ({})",
                percent(share),
                place.name()
            )));
        }
        Some(self.slow_place(place, (target, share), &so))
    }

    /// The place where late requests spend most of their time.
    fn slow_place(&self, place: Place, (target, share): (Target, f64), so: &str) -> Found {
        let at = match target {
            Target::Tpot | Target::Itl => format!("{so}: steps take {}", self.step_text()),
            _ => format!(
                "{so}: late ones spend {} of that time in the {}",
                percent(share),
                place.name()
            ),
        };
        let answering = self.answering();
        let name = |pool: Option<&PoolQueues>| pool.map_or("?", |p| p.pool.as_str()).to_owned();
        let together = answering.is_some_and(|p| p.role == Role::Both);
        let queues_at = match place {
            Place::Queue => self.prefill().or(answering),
            Place::Room | Place::Seat => answering,
            _ => None,
        };
        if let Some((pool, away)) = queues_at.and_then(|p| Some((p, p.not_ready.filter(|&a| a >= AWAY)?))) {
            let because = format!(
                "{at}, and groups of {} started or had failed in {} of their time",
                pool.pool,
                percent(away)
            );
            return Found::of(ClusterLimit::Capacity, &pool.pool, because, SPARE);
        }
        let (limit, whose, advice) = match place {
            Place::Gateway => (
                ClusterLimit::Gateway,
                "gateway".to_owned(),
                "raise its limits, or add groups behind it",
            ),
            Place::Queue if together => (ClusterLimit::Serving, name(answering), "add groups"),
            Place::Prefill if together => (
                ClusterLimit::Serving,
                name(answering),
                "split groups over more devices, or add groups, which makes steps shorter",
            ),
            Place::Queue => (ClusterLimit::Prefill, name(self.prefill()), "add prefill groups"),
            Place::Prefill => (
                ClusterLimit::Prefill,
                name(self.prefill()),
                "split prefill groups over more devices: more groups shorten no single prompt",
            ),
            Place::Room | Place::Seat => (ClusterLimit::Decode, name(answering), "add decode groups"),
            Place::Transfer => (
                ClusterLimit::Transfer,
                self.busiest(),
                "links are the limit: more bandwidth",
            ),
            Place::Decode if together => (
                ClusterLimit::Serving,
                name(answering),
                "add groups, which makes batches smaller, or split each over more devices",
            ),
            Place::Decode => (
                ClusterLimit::Decode,
                name(answering),
                "add decode groups, which makes batches smaller, or split each over more devices",
            ),
        };
        Found::of(limit, &whose, at, advice)
    }

    fn step_text(&self) -> String {
        let figures = self.answering().and_then(|p| p.step_s.zip(p.batch));
        figures.map_or_else(
            || "too long".to_owned(),
            |(step_s, batch)| format!("{:.1} ms on the average with {batch:.1} requests", 1e3 * step_s),
        )
    }

    fn busiest(&self) -> String {
        let link = self.transfers.as_ref().and_then(|t| t.busiest.as_ref());
        link.map_or_else(|| "links".to_owned(), |l| l.link.clone())
    }

    /// Nothing waits for most of the time, and no target is missed.
    fn without_limit(&self) -> Found {
        let queued = |p: &PoolQueues| match p.role {
            Role::Decode => self.decode_queued(p),
            Role::Prefill | Role::Both => p.queued.unwrap_or(0.0),
        };
        let most = self.pools.iter().map(|p| (queued(p), p.pool.as_str()));
        let most = most.chain([(self.gateway_queued, "the gateway")]);
        let (share, at) = most
            .reduce(|a, b| if b.0 > a.0 { b } else { a })
            .unwrap_or((0.0, ""));
        let slo = &self.options.slo;
        let holds = slo.attainment.is_some() && slo.targets().next().is_some();
        if self.flow.not_followed > self.flow.followed {
            return Found::undecidable(
                "most requests were tried again or not served, and no queue says why: see what befell them",
            );
        }
        if let Some((early, late)) = self.growth {
            return Found::undecidable(format!(
                "no queue stands yet, but requests in flight grew (from {early:.1} to {late:.1}) while load was offered: a longer run \
                 would tell"
            ));
        }
        if let Some(clients) = self.options.concurrency.filter(|_| share <= SELDOM) {
            let because = format!(
                "a closed loop of {clients} clients, and nothing waits in {} of the time",
                percent(1.0 - share)
            );
            return Found::of(
                ClusterLimit::Client,
                "clients",
                because,
                "more clients, to see what the cluster carries",
            );
        }
        if share <= SELDOM {
            return Found::plain(
                ClusterLimit::None,
                "nothing waits for long: every place kept up with what was offered",
            );
        }
        if holds {
            return Found::plain(
                ClusterLimit::None,
                format!(
                    "queues come and go (most of all at {at}, in {} of the time), and every target holds",
                    percent(share)
                ),
            );
        }
        Found::undecidable(format!(
            "mixed: requests wait at {at} in {} of the time, neither seldom nor mostly, and no target says whether that is too much",
            percent(share)
        ))
    }
}

/// Requests wait at some groups while others hardly ever have a queue.
fn uneven(pool: &PoolQueues) -> Option<Found> {
    let [most, least] = pool.queued_by_group?;
    // While a group is away the others get what it would have; their queues outlast that.
    if pool.not_ready.is_some_and(|away| away >= SLIGHT) {
        return None;
    }
    (pool.role != Role::Decode && most >= MOSTLY && least <= SELDOM && pool.queued.unwrap_or(0.0) > SELDOM)
        .then(|| {
            let because = format!(
                "requests wait in {} of the time at one of its groups and in {} at another",
                percent(most),
                percent(least)
            );
            Found::of(
                ClusterLimit::Routing,
                &pool.pool,
                because,
                "a router that sees the load of groups, or less weight on prefixes",
            )
        })
}

/// What the queue of a pool that computes prompts and output is for.
fn queue_of(pool: &PoolQueues, advice: &str) -> Found {
    let part = |share: Option<f64>| share.unwrap_or(0.0);
    let (pinned, short, room) = (part(pool.pinned), part(pool.short), part(pool.room));
    let so = format!(
        "requests wait at its groups in {} of the time",
        percent(part(pool.queued))
    );
    if short >= ONE_CAUSE {
        let because = format!("{so} although seats are free: too few KV blocks are");
        return Found::of(
            ClusterLimit::Kv,
            &pool.pool,
            because,
            &format!("{advice}, or KV memory"),
        );
    }
    if pinned >= ONE_CAUSE {
        let because = format!("{so}: all {} seats of their replicas are taken", pool.seats);
        let advice = format!("{advice}, or raise max_num_seqs if KV memory and the targets allow");
        return Found::of(ClusterLimit::Serving, &pool.pool, because, &advice);
    }
    if pinned + room >= ONE_CAUSE {
        let because = format!("{so}: a step has room for so many prompt tokens only");
        return Found::of(ClusterLimit::Serving, &pool.pool, because, advice);
    }
    Found::undecidable(format!("{so}, sometimes for seats and sometimes for KV blocks"))
}
