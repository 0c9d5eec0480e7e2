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
mod judge;
mod server;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use client::{ClientSpan, ClientView};
pub use judge::{BUSY_CORE, MOSTLY, ONE_CAUSE, SELDOM, STRAINED_CORE};
pub use server::ServerView;

use super::window::Window;
use crate::record::RunRecord;
use crate::units::SimTime;
pub(in crate::metric) use client::presence;
use judge::Facts;
use server::Shares;

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
    /// The clients send on a schedule and only wait for a free one of them: their number limits a run as far as
    /// requests that are due wait in the client, and not by being small.
    pub paced: bool,
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
            growth: client
                .growth(judged)
                .filter(|_| limits.concurrency.is_none() || limits.paced),
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

    /// The verdict in one sentence with the figures behind it.
    pub fn sentence(&self) -> String {
        let l = &self.little;
        let gauge = |x: Option<f64>| x.map_or_else(|| "an unknown number".into(), |x| format!("{x:.2}"));
        format!(
            "{}: {} (in flight at the client {}, on the server {} running and {} waiting)",
            self.verdict.name(),
            self.because,
            gauge(l.in_flight_judged),
            gauge(l.running),
            gauge(l.waiting)
        )
    }
}

fn two_sides(client: &ClientView, shares: Option<&Shares>, judged: (SimTime, SimTime)) -> TwoSides {
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
