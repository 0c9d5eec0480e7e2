//! The places on a request's way, and the time spent at each.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::options::ClusterOptions;
use crate::metric::goodput::Target;
use crate::metric::tokens::TokenGaps;
use crate::record::{ClusterRecord, JobRecord, RequestRecord, RunRecord, Status};
use crate::units::{SimDuration, SimTime};

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// It waits at the gateway.
    Gateway,
    /// It is on its way to an engine and waits for its first step there.
    Queue,
    /// Its prompt is computed; where prefill and decode are disaggregated, until the proxy has the prefill's answer.
    Prefill,
    /// It waits at a decode group for KV blocks, until its KV begins to move.
    Room,
    /// Its KV moves.
    Transfer,
    /// Its KV is there, and it waits for its first token.
    Seat,
    /// Its output is made.
    Decode,
}

/// All places, in the order of the way.
pub(super) const PLACES: [Place; 7] = [
    Place::Gateway,
    Place::Queue,
    Place::Prefill,
    Place::Room,
    Place::Transfer,
    Place::Seat,
    Place::Decode,
];

impl Place {
    /// What a reader calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "queue at the gateway",
            Self::Queue => "queue for prefill",
            Self::Prefill => "prefill",
            Self::Room => "queue for room at a decode group",
            Self::Transfer => "transfer of KV",
            Self::Seat => "queue for a seat at a decode group",
            Self::Decode => "decode",
        }
    }
}

/// One place, over the requests that were followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlaceFigures {
    /// Which.
    pub place: Place,
    /// Requests sent in the judged time that came there.
    pub n: u64,
    /// How long they were there, on the average, in seconds.
    pub mean_s: Option<f64>,
    /// The longest.
    pub max_s: Option<f64>,
    /// Their time there over all their time.
    pub share: Option<f64>,
    /// The same of requests that missed the TTFT target, over their TTFT.
    pub share_of_late_ttft: Option<f64>,
    /// Requests there, mean over the judged time.
    pub in_it: f64,
}

/// Sums at a place.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Sum {
    /// Requests sent in the judged time that came there.
    pub came: u64,
    /// What they spent there, in seconds.
    pub spent_s: f64,
    pub most_s: f64,
    /// What all followed requests spent there within the judged time.
    pub there_s: f64,
    /// What those spent there that missed the target of this kind: TTFT, E2E.
    pub late_s: [f64; 2],
}

/// What is known of requests' ways.
#[derive(Debug, Clone, Default)]
pub(super) struct Flow {
    sums: [Sum; 7],
    pub followed: u64,
    pub not_followed: u64,
    /// Attainment of each target among the requests sent in the judged time.
    pub attained: Vec<(Target, f64)>,
    /// From the engine's last step to the client, and from the gateway to the engine, on the average.
    pub on_the_way_s: f64,
    /// Spans of waiting at decode groups beyond what every request waits there, by group: for room, then for a seat.
    pub decode_waits: Vec<(u32, SimTime, SimTime)>,
    /// Of their time, the part that was for room.
    pub room_part: f64,
}

/// A request's way: when it came to each place and left it.
fn way(request: &RequestRecord, job: &JobRecord) -> Option<[Option<(SimTime, SimTime)>; 7]> {
    let is_followed = request.status.is_served() && job.retries == 0 && job.attempts == 1;
    if !is_followed || job.resumes.is_some_and(|n| n > 0) {
        return None;
    }
    let (sent, out) = (job.dispatched?, request.first_token?);
    let (started, last) = (request.first_scheduled?, request.last_token?);
    let mut at = [None; 7];
    let mut from = request.sent;
    let mut until = |place: Place, to: SimTime| {
        let to = to.max(from);
        at[place as usize] = Some((from, to));
        from = to;
    };
    until(Place::Gateway, sent);
    until(Place::Queue, started);
    match (job.handed, job.transfer_start, job.transfer) {
        (Some(handed), Some(start), Some(done)) => {
            until(Place::Prefill, handed);
            until(Place::Room, start);
            until(Place::Transfer, done);
            until(Place::Seat, out);
        }
        (Some(handed), ..) => {
            // All of its KV was there already.
            until(Place::Prefill, handed);
            until(Place::Seat, out);
        }
        (None, ..) => until(Place::Prefill, out),
    }
    until(Place::Decode, last);
    Some(at)
}

fn seconds((from, to): (SimTime, SimTime)) -> f64 {
    to.since(from).as_secs_f64()
}

impl Flow {
    pub fn of(
        run: &RunRecord,
        cluster: &ClusterRecord,
        options: &ClusterOptions,
        judged: (SimTime, SimTime),
    ) -> Self {
        let mut flow = Self::default();
        let inside = |t: SimTime| judged.0 <= t && t <= judged.1;
        let slo = &options.slo;
        let late = |request: &RequestRecord, bound: Option<SimDuration>, end: Option<SimTime>| {
            bound
                .zip(end)
                .is_some_and(|(b, end)| end.since(request.scheduled) > b)
        };
        for (request, job) in run.requests.iter().zip(&cluster.jobs) {
            let Some(way) = way(request, job) else {
                let counts = inside(request.sent) && request.status.was_in_system();
                flow.not_followed += u64::from(counts);
                continue;
            };
            let came = inside(request.sent);
            flow.followed += u64::from(came);
            let missed = [
                late(request, slo.ttft, request.first_token),
                late(request, slo.e2e, request.last_token),
            ];
            for (sum, span) in flow.sums.iter_mut().zip(way) {
                let Some(span) = span else { continue };
                sum.there_s += seconds((span.0.max(judged.0), span.1.min(judged.1)));
                if came {
                    sum.came += 1;
                    sum.spent_s += seconds(span);
                    sum.most_s = sum.most_s.max(seconds(span));
                    for (slot, missed) in sum.late_s.iter_mut().zip(missed) {
                        *slot += if missed { seconds(span) } else { 0.0 };
                    }
                }
            }
        }
        flow.on_the_way_s = on_the_way(run, cluster);
        flow.attained = attained(run, options, judged);
        flow
    }

    pub fn sum(&self, place: Place) -> Sum {
        self.sums[place as usize]
    }

    /// Finds the waits at decode groups. What the quickest request waits there, posting, and a step under way are no queue.
    pub fn find_decode_waits(&mut self, run: &RunRecord, cluster: &ClusterRecord, step: SimDuration) {
        let ways: Vec<_> = run.requests.iter().zip(&cluster.jobs).collect();
        let spans = |place: Place| {
            let of = |(request, job): &(&RequestRecord, &JobRecord)| {
                Some((job.group?, way(request, job)?[place as usize]?))
            };
            ways.iter().filter_map(of).collect::<Vec<_>>()
        };
        let mut parts = [0.0; 2];
        for (part, place) in parts.iter_mut().zip([Place::Room, Place::Seat]) {
            let all = spans(place);
            let Some(least) = all.iter().map(|(_, s)| s.1.since(s.0)).min() else {
                continue;
            };
            let grace = least + step;
            for (group, (from, to)) in all {
                let from = from + grace;
                if from < to {
                    *part += seconds((from, to));
                    self.decode_waits.push((group, from, to));
                }
            }
        }
        let all = parts[0] + parts[1];
        self.room_part = if all > 0.0 { parts[0] / all } else { 0.0 };
    }

    /// Each place that some request came to.
    pub fn places(&self, judged: (SimTime, SimTime)) -> Vec<PlaceFigures> {
        let all: f64 = self.sums.iter().map(|s| s.spent_s).sum();
        let ttft = |of: fn(&Sum) -> f64| -> f64 {
            let before = PLACES.iter().filter(|&&p| p != Place::Decode);
            before.map(|&p| of(&self.sum(p))).sum()
        };
        let late = ttft(|s| s.late_s[0]);
        let judged_s = seconds(judged);
        let figures = PLACES.iter().filter(|&&p| self.sum(p).came > 0).map(|&place| {
            let sum = self.sum(place);
            PlaceFigures {
                place,
                n: sum.came,
                mean_s: Some(sum.spent_s / sum.came as f64),
                max_s: Some(sum.most_s),
                share: (all > 0.0).then(|| sum.spent_s / all),
                share_of_late_ttft: (late > 0.0 && place != Place::Decode).then(|| sum.late_s[0] / late),
                in_it: if judged_s > 0.0 {
                    sum.there_s / judged_s
                } else {
                    0.0
                },
            }
        });
        figures.collect()
    }

    /// Where requests that missed a target spent most of their time until it, and its share of that time; TTFT is without
    /// decode.
    pub fn slowest(&self, target: Target) -> Option<(Place, f64)> {
        let kind = usize::from(target == Target::E2e);
        let counts = |place: Place| kind == 1 || place != Place::Decode;
        let sums = PLACES
            .iter()
            .filter(|&&p| counts(p))
            .map(|&p| (p, self.sum(p).late_s[kind]));
        let all: f64 = sums.clone().map(|(_, s)| s).sum();
        let most = sums.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (all > 0.0).then(|| (most.0, most.1 / all))
    }
}

/// Of requests served at their first try: to the engine, and from the last step to the client.
fn on_the_way(run: &RunRecord, cluster: &ClusterRecord) -> f64 {
    let ways = run.requests.iter().zip(&cluster.jobs).filter_map(|(r, j)| {
        let inbound = r.enqueued?.since(j.dispatched?);
        let outbound = r.last_token?.since(j.ended?);
        Some(inbound.as_secs_f64() + outbound.as_secs_f64())
    });
    let (sum, n) = ways.fold((0.0, 0_u64), |(sum, n), s| (sum + s, n + 1));
    if n > 0 { sum / n as f64 } else { 0.0 }
}

/// How the requests sent in the judged time met each target.
fn attained(run: &RunRecord, options: &ClusterOptions, judged: (SimTime, SimTime)) -> Vec<(Target, f64)> {
    let slo = &options.slo;
    let limit = slo.gap_limit_ns();
    let gaps = slo.itl.map(|_| TokenGaps::new(run, limit));
    let counts = |r: &&RequestRecord| {
        let is_offered = r.status != Status::Surplus;
        judged.0 <= r.sent && r.sent <= judged.1 && is_offered
    };
    let targets: Vec<_> = slo.targets().collect();
    let (mut n, mut met) = (0_u64, vec![0_u64; targets.len()]);
    for request in run.requests.iter().filter(counts) {
        n += 1;
        let profile = gaps
            .as_ref()
            .map(|g| g.profile(request, limit))
            .unwrap_or_default();
        for (slot, (target, bound)) in met.iter_mut().zip(&targets) {
            *slot += u64::from(slo.meets(*target, *bound, request, &profile));
        }
    }
    let share = |met: u64| met as f64 / n.max(1) as f64;
    let attained = targets
        .iter()
        .zip(met)
        .map(|((target, _), met)| (*target, share(met)));
    attained.collect()
}
