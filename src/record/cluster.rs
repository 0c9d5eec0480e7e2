//! What happened in a cluster beside its requests and steps.

use super::full::sort_by_id;
use crate::cluster::lifecycle::Phase;
use crate::engine::RequestId;
use crate::units::SimTime;

/// What a request went through on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobRecord {
    /// Whose it is.
    pub tenant: u32,
    /// Times it was sent to a group to be answered, hedges among them.
    pub attempts: u32,
    /// Times it was tried again.
    pub retries: u32,
    /// Copies of it that were sent to a second group while the first one was still at it.
    pub hedges: u32,
    /// When the gateway first sent it on.
    pub dispatched: Option<SimTime>,
    /// Output tokens of attempts that did not become its answer.
    pub wasted_output_tokens: u32,
    /// Prompt tokens that those attempts were asked to compute.
    pub wasted_input_tokens: u32,
    /// Bytes of KV that were moved for it.
    pub transferred_bytes: u64,
    /// Group that answered it, as numbered in [`ClusterRecord::groups`].
    pub group: Option<u32>,
    /// Group that did its prefill, if another one.
    pub prefill_group: Option<u32>,
    /// When it was handed to the group that decodes it, its prompt computed elsewhere; with push, when the prompt was
    /// computed.
    pub handed: Option<SimTime>,
    /// When its KV began to move; with push, what was left of it when the prompt was computed.
    pub transfer_start: Option<SimTime>,
    /// When its KV had been moved.
    pub transfer: Option<SimTime>,
    /// When it had its terminal state, as the gateway knew it; none if that was not kept.
    pub ended: Option<SimTime>,
    /// Times that a group went on where another one had broken off; none if that was not kept.
    pub resumes: Option<u32>,
}

/// One replica group's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRecord {
    /// Number of its pool.
    pub pool: u32,
    /// Its replicas: numbers of data-parallel ranks.
    pub replicas: Vec<u32>,
    /// Revision that it serves.
    pub revision: u32,
    /// Its phases and when each began, by time.
    pub phases: Vec<(SimTime, Phase)>,
    /// Tokens in full blocks of its prefix caches that went with it when it had drained; a crash is not counted.
    pub cached_tokens_lost: u64,
}

/// One line of the failure timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimelineEvent {
    /// When.
    pub at: SimTime,
    /// What, such as `fault`, `detected`, `routes_removed`, `starting`, `ready`, `drained`.
    pub event: &'static str,
    /// Which group, link, node or zone, and what more there is to say.
    pub what: String,
    /// The group, where it is about one.
    pub group: Option<u32>,
}

/// Steps in a row in which a data-parallel rank computed a dummy batch: it had nothing else to compute in a group whose ranks
/// step together (rules S70, S71).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DummySteps {
    /// Number of the rank among all replicas.
    pub replica: u32,
    /// When the first of them began.
    pub from: SimTime,
    /// When the last of them ended or was broken off.
    pub to: SimTime,
    /// How many ended.
    pub steps: u64,
    /// No rank of the group had anything to compute: idle steps, as at the end of a wave.
    pub is_idle: bool,
}

/// A cluster's run, beside its requests and steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterRecord {
    /// Names of the pools.
    pub pools: Vec<String>,
    /// All groups there ever were.
    pub groups: Vec<GroupRecord>,
    /// What befell them, by time.
    pub timeline: Vec<TimelineEvent>,
    /// Of each request, in the order of their ids.
    pub jobs: Vec<JobRecord>,
    /// When its last event happened, clients' receipt of tokens apart.
    pub end: SimTime,
    /// Queue at the gateway after each change: when, and how many wait.
    pub gateway_queue: Vec<(SimTime, u32)>,
    /// Bytes that crossed each link, and its name.
    pub links: Vec<(String, u64)>,
    /// Output tokens of attempts that were given up.
    pub cancelled_output_tokens: u64,
    /// Prompt tokens that those attempts had begun to compute.
    pub cancelled_input_tokens: u64,
    /// Prompt tokens that engines were asked to compute, of all attempts that they began: retries, hedges, prefills that
    /// nobody read, and what is computed again where a transfer broke off.
    pub attempted_input_tokens: u64,
    /// Output tokens of all attempts, without what prefills sample.
    pub attempted_output_tokens: u64,
    /// Transfers that broke off.
    pub failed_transfers: u64,
    /// Prefills that nobody had read when their leases ended (rule D14).
    pub leases_expired: u64,
    /// Retries that a budget refused.
    pub retries_refused: u64,
    /// Dummy batches of groups whose ranks step together; of each rank by time.
    pub dummy_steps: Vec<DummySteps>,
    /// Requests that nobody could ever serve were left when nothing but control loops was going on.
    pub stranded: u32,
    /// Events after the end, when nothing but control loops went on: they are not in the timeline.
    pub events_beyond_end: u64,
}

impl ClusterRecord {
    /// Takes over what was kept of requests, whose ids are `ids`.
    pub fn set_jobs(&mut self, ids: &[RequestId], mut jobs: Vec<JobRecord>) {
        sort_by_id(ids, &mut jobs);
        self.jobs = jobs;
    }
}
