//! What a run tells while it goes on: to a recorder that keeps everything, or to one that keeps figures alone.

use super::events::RequestRecord;
use crate::engine::RequestId;
use crate::units::SimTime;

/// Steps of one replica that follow each other and have the same requests in their batches.
///
/// The steps of a replica are told in order and without holes, so that its steps are numbered by counting.
#[derive(Debug, Clone, Copy)]
pub struct StepRun<'a> {
    /// Which replica.
    pub replica: u32,
    /// Start of each step.
    pub starts: &'a [SimTime],
    /// End of each step.
    pub ends: &'a [SimTime],
    /// Free KV blocks after each step's schedule.
    pub free_blocks: &'a [u32],
    /// Running requests after each step's schedule.
    pub running: u32,
    /// Waiting requests after each step's schedule.
    pub waiting: u32,
    /// Measured requests that got tokens in the first of these steps and in the step just before it: each of them
    /// saw the gap between the ends of the two.
    pub gaps_first: u32,
    /// The same for every later step of the run.
    pub gaps_rest: u32,
}

/// Tokens that a request got in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The step, counted from 0 among the replica's steps.
    pub step: u64,
    /// When it ended.
    pub end: SimTime,
    /// How many tokens.
    pub tokens: u32,
    /// The request got tokens in the step just before, too: the gap is among [`StepRun::gaps_first`] of this step.
    pub continues: bool,
}

/// Takes in a run. All calls about a replica come in the order of its steps.
///
/// For each step, [`Recorder::steps`] comes first, then the chunks of that step, then what ended with it. A request
/// that decodes undisturbed through many steps is not told step by step: [`Recorder::further_chunks`] tells all of
/// them when the run of steps ends.
pub trait Recorder: Send {
    /// What the recorder keeps beside a request while it is in the system.
    type Request: Default + std::fmt::Debug + Send;

    /// Whether the gaps of a request that is due at this instant count in [`StepRun::gaps_first`] and
    /// [`StepRun::gaps_rest`].
    fn measures(&self, scheduled: SimTime) -> bool;

    /// Some steps have ended.
    fn steps(&mut self, run: &StepRun<'_>);

    /// A request got tokens. `request` is as it was before them: its `last_token` is the chunk before this one.
    fn chunk(&mut self, request: &mut RequestRecord, kept: &mut Self::Request, chunk: Chunk);

    /// A request got one token in each of the `steps` steps that directly follow its last chunk. The last of them is
    /// the replica's newest step, and ended at `end`. `request` is as it was before these tokens.
    fn further_chunks(
        &mut self,
        request: &mut RequestRecord,
        kept: &mut Self::Request,
        steps: u32,
        end: SimTime,
    );

    /// A request got its tokens so far from a replica that it leaves now. What it gets hereafter may come from another.
    fn broke(&mut self, request: &mut RequestRecord) {
        let _ = request;
    }

    /// Nobody gets the chunks so far that `kept` was told of: their attempt was given up, or is repeated from its start. They
    /// count in no figure. `request` says whose they are and when it was due.
    fn given_up(&mut self, request: &RequestRecord, kept: Self::Request);

    /// A request has ended, or the run has. Each offered request is told once, in the order of the trace.
    fn ended(&mut self, id: RequestId, request: RequestRecord, kept: Self::Request);
}
