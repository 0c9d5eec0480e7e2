//! Rollouts: all groups of a pool replaced by those of a new revision, as a Kubernetes Deployment's rolling update does.
//!
//! Two bounds hold at every step that the rollout takes: it never drains below `total - max_unavailable` ready groups,
//! and never starts above `total + surge` existing ones. Unlike Kubernetes by default, draining groups exist: a group of
//! accelerators is not free before its last stream has ended.
//!
//! A canary may be judged ([`Analysis`]): one that breaks its limits is rolled back, one that holds them is followed by
//! the rest. A rollback keeps both bounds, too.
//!
//! The state machine knows nothing but counts and, of a canary that is judged, the requests that ended. Its caller tells
//! it how the fleet is, does what it says, and asks again whenever a count changes and at [`Rollout::wake`].
//!
//! *With an autoscaler on the same pool*, the total is what the autoscaler sets ([`Rollout::set_total`]), as an HPA sets
//! a Deployment's `spec.replicas`; surge and draining groups come on top of it.

use crate::units::{SimDuration, SimTime, written};

mod analysis;

pub use analysis::{
    Analysis, AnalysisError, CanaryLimits, Check, Compared, Ended, Evidence, Tally, Undecided,
};
use analysis::{Judge, Verdict};

/// A first few groups of the new revision, watched before the rest follows. They replace as many old ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Canary {
    /// How many groups.
    pub groups: u32,
    /// Share of the traffic that they get while they are watched, 0 to 1.
    pub share: f64,
    /// How long all of them must have been ready, without a break, before the rest follows: its bake time.
    pub hold: SimDuration,
    /// How it is judged meanwhile; without it the rest follows whatever happens.
    pub analysis: Option<Analysis>,
}

/// How a rollout goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RolloutConfig {
    /// When it begins.
    pub at: SimTime,
    /// Groups that may exist above the total (Kubernetes: `maxSurge`, by default 25 % rounded up).
    pub surge: u32,
    /// Groups of the total that may be not ready (`maxUnavailable`, by default 25 % rounded down). Not 0 when `surge`
    /// is, or nothing could move.
    pub max_unavailable: u32,
    /// A canary before the rest.
    pub canary: Option<Canary>,
    /// How long a draining group may finish its streams; the caller cuts off what is left then.
    pub drain_timeout: SimDuration,
}

/// Why a rollout is refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutError {
    /// No group could be started nor drained.
    #[error(
        "surge and max_unavailable are both 0, so no group can be replaced; one of them must be 1 or more"
    )]
    Stuck,
    /// Two would undo each other's steps without end.
    #[error("pool {pool} has more than one rollout; it can have one")]
    Several {
        /// Its number.
        pool: usize,
    },
    /// A pool of none.
    #[error("the pool has no groups, so there is nothing to roll out")]
    NoGroups,
    /// The canary is nobody or more than the pool.
    #[error("the canary has {groups} groups; it must have 1 to {total}, the groups of the pool")]
    CanaryGroups {
        /// Its groups.
        groups: u32,
        /// The pool's.
        total: u32,
    },
    /// The canary's share is no share.
    #[error("the canary's share is {}; it must be between 0 and 1", written(*.0))]
    CanaryShare(f64),
    /// The canary's analysis makes no sense.
    #[error("the canary's analysis: {0}")]
    Analysis(#[from] AnalysisError),
}

/// The groups of a pool by revision. Those that failed and are gone are in no count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FleetState {
    /// Old revision, starting: after a rollback, or ordered by an autoscaler.
    pub old_starting: u32,
    /// Old revision, serving.
    pub old_ready: u32,
    /// Old revision, finishing its streams.
    pub old_draining: u32,
    /// New revision, starting.
    pub new_starting: u32,
    /// New revision, serving.
    pub new_ready: u32,
    /// New revision, finishing its streams (after a rollback).
    pub new_draining: u32,
}

impl FleetState {
    /// Groups that serve.
    pub const fn ready(&self) -> u32 {
        self.old_ready.saturating_add(self.new_ready)
    }

    /// Groups that hold hardware.
    pub const fn existing(&self) -> u32 {
        self.ready()
            .saturating_add(self.old_starting)
            .saturating_add(self.old_draining)
            .saturating_add(self.new_starting)
            .saturating_add(self.new_draining)
    }
}

/// What the caller has to do, in this order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Action {
    /// The canary held its limits for as long as it was watched. Said once, as the other two verdicts are.
    CanaryPassed(Evidence),
    /// The canary broke its limits, or was not ready in time.
    CanaryFailed(Evidence),
    /// The canary was watched long enough, but no check could tell anything.
    CanaryUndecided(Evidence),
    /// The new revision is given up: from now on the old one comes back. Said once.
    RollBack,
    /// Start so many groups of the new revision.
    StartNew(u32),
    /// Start so many groups of the old revision (after a rollback).
    StartOld(u32),
    /// Stop sending to so many old groups; those that still start go first.
    DrainOld(u32),
    /// Stop sending to so many new groups (after a rollback); those that still start go first.
    DrainNew(u32),
    /// All groups are of one revision, and all are ready. Said once.
    Done,
}

/// How far a rollout is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutPhase {
    /// Not begun.
    Waiting,
    /// The canary starts or is watched.
    Canary,
    /// The rest is replaced.
    Rolling,
    /// The old revision comes back.
    RollingBack,
    /// Nothing more to do.
    Done,
}

/// One revision's groups that serve or will.
#[derive(Debug, Clone, Copy)]
struct Side {
    starting: u32,
    ready: u32,
}

impl Side {
    const fn live(self) -> u32 {
        self.starting.saturating_add(self.ready)
    }
}

/// A rollout under way.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    config: RolloutConfig,
    total: u32,
    phase: RolloutPhase,
    /// Since when all of the canary is ready, or is not.
    canary_since: Option<SimTime>,
    canary_missing_since: Option<SimTime>,
    judge: Option<Judge>,
    /// It has been said that the canary is undecided.
    is_undecided: bool,
    rejected: bool,
    rolled_back: bool,
}

impl Rollout {
    /// A rollout over a pool of `total` groups.
    ///
    /// # Errors
    /// [`RolloutError`] when it could not move or its canary makes no sense.
    pub fn new(config: RolloutConfig, total: u32) -> Result<Self, RolloutError> {
        if total == 0 {
            return Err(RolloutError::NoGroups);
        }
        if config.surge == 0 && config.max_unavailable == 0 {
            return Err(RolloutError::Stuck);
        }
        if let Some(canary) = config.canary {
            if !(1..=total).contains(&canary.groups) {
                let groups = canary.groups;
                return Err(RolloutError::CanaryGroups { groups, total });
            }
            if !(0.0..=1.0).contains(&canary.share) {
                return Err(RolloutError::CanaryShare(canary.share));
            }
            if let Some(analysis) = canary.analysis {
                analysis.check(canary.hold)?;
            }
        }
        Ok(Self {
            config,
            total,
            phase: RolloutPhase::Waiting,
            canary_since: None,
            canary_missing_since: None,
            judge: config.canary.and_then(|c| c.analysis).map(Judge::new),
            is_undecided: false,
            rejected: false,
            rolled_back: false,
        })
    }

    /// What it was made with.
    pub const fn config(&self) -> &RolloutConfig {
        &self.config
    }

    /// How far it is, as of the last call of [`Self::next`].
    pub const fn phase(&self) -> RolloutPhase {
        self.phase
    }

    /// Groups that the pool is to have, those of the surge apart.
    pub const fn total(&self) -> u32 {
        self.total
    }

    /// It replaces groups now: it has begun and is not done.
    pub const fn is_under_way(&self) -> bool {
        matches!(
            self.phase,
            RolloutPhase::Canary | RolloutPhase::Rolling | RolloutPhase::RollingBack
        )
    }

    /// It went back, or is on its way back, to the old revision.
    pub const fn is_rolled_back(&self) -> bool {
        self.rolled_back
    }

    /// A canary is judged now: requests that end have to be told to [`Self::observe`].
    pub const fn is_judging(&self) -> bool {
        self.judge.is_some() && matches!(self.phase, RolloutPhase::Canary)
    }

    /// A request ended at a group of the pool; in the order of time.
    pub fn observe(&mut self, ended: Ended) {
        if self.is_judging()
            && let Some(judge) = &mut self.judge
        {
            judge.observe(ended);
        }
    }

    /// The pool is to have another number of groups from now on (an autoscaler's wish); 0 is taken as 1.
    pub fn set_total(&mut self, total: u32) {
        self.total = total.max(1);
    }

    /// The new revision is no good: the next call of [`Self::next`] rolls back, unless all is done by then.
    pub const fn reject(&mut self) {
        self.rejected = true;
    }

    /// Share of the traffic for the new revision while its canary is watched; none when groups are to be treated alike.
    /// Nothing goes to a canary that was given up (Argo Rollouts and Flagger set its weight to 0 at once).
    pub fn canary_share(&self) -> Option<f64> {
        if self.phase == RolloutPhase::RollingBack && self.config.canary.is_some() {
            return Some(0.0);
        }
        let canary = self
            .config
            .canary
            .filter(|_| self.phase == RolloutPhase::Canary)?;
        self.canary_since.map(|_| canary.share)
    }

    /// When it has to be asked next though no count changed.
    pub fn wake(&self) -> Option<SimTime> {
        match self.phase {
            RolloutPhase::Waiting => Some(self.config.at),
            RolloutPhase::Canary => self.canary_wake(),
            RolloutPhase::Rolling | RolloutPhase::RollingBack | RolloutPhase::Done => None,
        }
    }

    fn canary_wake(&self) -> Option<SimTime> {
        let hold = self.config.canary?.hold;
        // Once it waits for a check that can tell, only checks matter.
        let held = self
            .canary_since
            .filter(|_| !self.is_undecided)
            .map(|at| at + hold);
        let judge = self.judge.as_ref();
        let check = judge.and_then(Judge::next_check);
        let deadline = self
            .canary_missing_since
            .zip(judge)
            .map(|(at, judge)| at + judge.analysis().progress_deadline);
        [held, check, deadline].into_iter().flatten().min()
    }

    /// What to do now. What it says is taken as done: starting and draining groups must be in the next state.
    pub fn next(&mut self, now: SimTime, state: &FleetState) -> Vec<Action> {
        let mut actions = Vec::new();
        self.turn(now, state, &mut actions);
        let old = Side {
            starting: state.old_starting,
            ready: state.old_ready,
        };
        let new = Side {
            starting: state.new_starting,
            ready: state.new_ready,
        };
        let (goal, leaving, coming) = match self.phase {
            RolloutPhase::Waiting | RolloutPhase::Done => return actions,
            RolloutPhase::Canary => (self.canary_groups(), old, new),
            RolloutPhase::Rolling => (self.total, old, new),
            RolloutPhase::RollingBack => (self.total, new, old),
        };
        let (start, drain) = self.moves(state, goal, leaving, coming);
        let (start_them, drain_them) = match self.phase {
            RolloutPhase::RollingBack => (Action::StartOld(start), Action::DrainNew(drain)),
            _ => (Action::StartNew(start), Action::DrainOld(drain)),
        };
        actions.extend((start > 0).then_some(start_them));
        actions.extend((drain > 0).then_some(drain_them));
        // Groups of the revision that stays may still drain from before a rollback.
        let settled = coming.ready >= self.total && state.existing() == coming.ready;
        if settled && self.phase != RolloutPhase::Canary {
            self.phase = RolloutPhase::Done;
            actions.push(Action::Done);
        }
        actions
    }

    /// Passes from phase to phase as time and the fleet allow.
    fn turn(&mut self, now: SimTime, state: &FleetState, actions: &mut Vec<Action>) {
        if self.phase == RolloutPhase::Waiting && now >= self.config.at {
            self.phase = match self.config.canary {
                Some(_) => RolloutPhase::Canary,
                None => RolloutPhase::Rolling,
            };
        }
        if let (RolloutPhase::Canary, Some(canary)) = (self.phase, self.config.canary) {
            self.watch(now, state, canary, actions);
        }
        if self.rejected && matches!(self.phase, RolloutPhase::Canary | RolloutPhase::Rolling) {
            self.phase = RolloutPhase::RollingBack;
            self.rolled_back = true;
            actions.push(Action::RollBack);
        }
    }

    /// Looks at the canary: whether all of it is ready, what its checks say, and whether it was watched long enough.
    fn watch(&mut self, now: SimTime, state: &FleetState, canary: Canary, actions: &mut Vec<Action>) {
        // A pool that shrank below the canary is all canary.
        let all_ready = state.new_ready >= self.canary_groups();
        self.canary_since = all_ready.then(|| self.canary_since.unwrap_or(now));
        self.canary_missing_since = (!all_ready).then(|| self.canary_missing_since.unwrap_or(now));
        let is_held = self
            .canary_since
            .is_some_and(|since| now.since(since) >= canary.hold);
        let missing_for = self.canary_missing_since.map(|since| now.since(since));
        let Some(judge) = &mut self.judge else {
            if is_held {
                self.phase = RolloutPhase::Rolling;
            }
            return;
        };
        if all_ready {
            judge.begin(now);
        }
        judge.check(now);
        let (verdict, evidence) = (judge.verdict(), judge.evidence());
        if verdict == Verdict::Failed {
            self.rejected = true;
            actions.push(Action::CanaryFailed(evidence));
        } else if let Some(not_ready_for) = missing_for.filter(|&m| m >= judge.analysis().progress_deadline) {
            self.rejected = true;
            let not_ready_for = Some(not_ready_for);
            actions.push(Action::CanaryFailed(Evidence {
                not_ready_for,
                ..evidence
            }));
        } else if is_held && verdict == Verdict::Passed {
            self.phase = RolloutPhase::Rolling;
            actions.push(Action::CanaryPassed(evidence));
        } else if is_held {
            let undecided = judge.analysis().undecided;
            if !std::mem::replace(&mut self.is_undecided, true) {
                actions.push(Action::CanaryUndecided(evidence));
            }
            match undecided {
                Undecided::Wait => {}
                Undecided::Promote => self.phase = RolloutPhase::Rolling,
                Undecided::RollBack => self.rejected = true,
            }
        }
    }

    fn canary_groups(&self) -> u32 {
        self.config
            .canary
            .map_or(0, |canary| canary.groups.min(self.total))
    }

    /// Groups to start of the revision that comes, up to `goal`, and to drain of the one that leaves, down to the rest.
    fn moves(&self, state: &FleetState, goal: u32, leaving: Side, coming: Side) -> (u32, u32) {
        let most = self.total.saturating_add(self.config.surge);
        let room = most.saturating_sub(state.existing());
        let start = goal.saturating_sub(coming.live()).min(room);
        // Groups that still start serve nobody: draining them costs no ready one.
        let least_ready = self.total.saturating_sub(self.config.max_unavailable);
        let dispensable = state.ready().saturating_sub(least_ready).min(leaving.ready);
        let surplus = leaving.live().saturating_sub(self.total - goal);
        let drain = surplus.min(leaving.starting.saturating_add(dispensable));
        (start, drain)
    }
}

#[cfg(test)]
#[path = "rollout_tests.rs"]
mod tests;
