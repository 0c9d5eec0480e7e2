//! Decoding requests as one body: what a step does to them costs nothing a request.
//!
//! A request that has computed its prompt decodes one token a step until it ends, needs a block that is not there, or
//! meets a step whose budget does not reach it. While that lasts its state is a function of the number of plans and
//! commits since it joined the *steady set*, so nothing is written for it. What a step needs of all of them together is
//! kept as sums: how many they are, how many tokens they have computed, how many of them take a new KV block in which
//! step (a request takes one each time its computed tokens are a multiple of the block size, so they fall into
//! `block_size` classes), and which of them ends at which plan.
//!
//! A step that cannot be told by these sums (too few blocks or too small a budget, a paused or draining engine) first
//! writes every request's state back and then goes row by row.
//!
//! Plans are numbered from 1, and committed in order. With asynchronous scheduling plan p + 1 is made before plan p is
//! committed; else after it.

mod leaving;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::VllmConfig;
use super::admission::RunningPass;
use super::budget::Budget;
use super::request::Request;
use super::scheduler::{Pause, VllmEngine};
use crate::engine::{Grant, Left, StepPlan};

/// When a steady request ends. Ordered by plan, then place in the running list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct End {
    /// The plan whose commit ends it.
    pub plan: u64,
    order: u64,
    slot: u32,
    /// The scheduler knows its end beforehand and leaves it out of the plan that is made before that commit.
    is_foreseen: bool,
}

/// Requests that decode one token in every plan.
#[derive(Debug)]
pub(super) struct SteadySet {
    /// Requests are taken in at all.
    pub(super) enabled: bool,
    /// The step-time model wants the contexts one by one.
    lists_contexts: bool,
    pub(super) rows: u32,
    /// Computed tokens of all of them before the next plan.
    pub(super) computed: u64,
    /// Requests by class: those of class c take a block in the plans with number = c modulo block size.
    pub(super) class_rows: Vec<u32>,
    /// Which ones, in the order of the running list; kept with prefix caching only.
    class_slots: Vec<Vec<u32>>,
    /// Number of the next plan modulo the block size.
    pub(super) phase: u32,
    pub(super) ends: BinaryHeap<Reverse<End>>,
    /// Ends of plans made and not committed whose requests have been taken out beforehand.
    pub(super) foreseen: VecDeque<End>,
    /// Running requests that are not steady, in the order of the running list.
    pub(super) listed: Vec<u32>,
    /// Slots of the steady rows of plans under way that were written back since, by plan.
    pub(super) written_back: VecDeque<(u64, Vec<u32>)>,
    /// Members whose next full blocks others could find in the prefix cache.
    pub(super) shared_tails: u32,
    /// Listed rows of the last plan and their tokens, if that plan can repeat itself.
    pub(super) chunks: Vec<(u32, u32)>,
    pub(super) repeatable: bool,
    /// Requests that left since this was last told.
    pub(super) left: Vec<Left>,
    /// Memory used again.
    scratch: Vec<(u64, u32, Take)>,
}

/// What a row does to its blocks in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Take {
    /// Holds this many tokens.
    Grow(u32),
    /// This many tokens are known and computed.
    Register(u32),
}

impl SteadySet {
    pub fn new(config: &VllmConfig) -> Self {
        let classes = config.block_size.max(1) as usize;
        let members = if config.enable_prefix_caching { classes } else { 0 };
        Self {
            enabled: false,
            lists_contexts: false,
            rows: 0,
            computed: 0,
            class_rows: vec![0; classes],
            class_slots: vec![Vec::new(); members],
            phase: 1 % config.block_size.max(1),
            ends: BinaryHeap::new(),
            foreseen: VecDeque::new(),
            listed: Vec::new(),
            written_back: VecDeque::new(),
            shared_tails: 0,
            chunks: Vec::new(),
            repeatable: false,
            left: Vec::new(),
            scratch: Vec::new(),
        }
    }

    fn class(&self, r: &Request) -> usize {
        // Before plan p a member has computed `computed + p - since` tokens.
        let size = self.class_rows.len() as u64;
        ((r.steady_since % size + size - u64::from(r.computed) % size) % size) as usize
    }

    /// Blocks that all steady rows take in the next plans.
    pub(super) fn blocks_of(&self, plans: u32) -> u32 {
        let classes = self.class_rows.len() as u32;
        let rounds = plans / classes * self.rows;
        let rest = (0..plans % classes).map(|plan| self.class_rows[((self.phase + plan) % classes) as usize]);
        rounds + rest.sum::<u32>()
    }

    pub(super) fn next_phase(&mut self) {
        self.phase += 1;
        if self.phase as usize == self.class_rows.len() {
            self.phase = 0;
        }
    }
}

impl VllmEngine {
    /// Lets decoding requests be steady; their rows are then missing in [`StepPlan::grants`]. With `lists_contexts` a
    /// plan's shape still has each one's context. Not for speculative decoding, whose rows differ from step to step, nor
    /// with pipeline stages, whose batches take turns (rule S66).
    #[must_use]
    pub fn with_steady_rows(mut self, lists_contexts: bool) -> Self {
        self.steady.enabled = self.config.decodes_repeat();
        self.steady.lists_contexts = lists_contexts;
        self
    }

    /// Every row of a plan, steady ones too, in batch order. Right after the plan was made only.
    pub fn all_rows(&self, plan: &StepPlan) -> Vec<Grant> {
        let mut listed = plan.grants.iter().copied().peekable();
        let mut rows = Vec::new();
        for &slot in self.running.slots() {
            let r = self.request(slot);
            if let Some(grant) = listed.next_if(|g| g.slot == slot) {
                rows.push(grant);
            } else if r.steady_since > 0 && r.steady_since <= self.planned {
                let computed = r.computed + (self.planned - r.steady_since) as u32;
                rows.push(Grant {
                    computed,
                    ..steady_row(r, slot)
                });
            }
        }
        rows
    }

    /// The running pass of a call (rules S10 to S17), if no request has to be preempted or left out for want of budget;
    /// `None`, with nothing done, if that may be.
    pub(super) fn schedule_steady(
        &mut self,
        plan: &mut StepPlan,
        budget: &mut Budget,
        threshold: u32,
    ) -> Option<RunningPass> {
        if !self.steady.enabled || self.pause == Pause::All {
            return None;
        }
        self.take_out_foreseen();
        let left = self.plan_chunks(*budget, threshold)?;
        self.take_blocks();
        *budget = left;
        let mut pass = RunningPass {
            scheduled: self.steady.rows > 0,
            mid_prompt: false,
        };
        for &(slot, tokens) in &self.steady.chunks {
            let r = &mut self.requests[slot as usize];
            r.drafts = 0;
            pass.mid_prompt |= r.mid_prompt;
            pass.scheduled = true;
            plan.grants.push(Grant {
                tokens,
                computed: r.computed,
                samples: false,
                ..steady_row(r, slot)
            });
        }
        self.shape_steady(plan);
        Some(pass)
    }

    /// Tokens of the listed rows, into `steady.chunks`, and the budget that is left; `None` when a row would go without
    /// for want of budget or blocks.
    fn plan_chunks(&mut self, mut left: Budget, threshold: u32) -> Option<Budget> {
        let mut chunks = std::mem::take(&mut self.steady.chunks);
        chunks.clear();
        let mut need = self.steady.class_rows[self.steady.phase as usize];
        let mut counted = 0;
        let mut enough = true;
        for (index, &slot) in self.steady.listed.iter().enumerate() {
            let r = self.request(slot);
            if self.steady.rows > 0 {
                let before = (self.running.place(r.order) - index) as u32;
                enough &= left.take_rows(before - counted);
                counted = before;
            }
            let tokens = self.running_tokens(r, threshold, &left);
            if tokens > 0 {
                let slots = (r.computed + tokens).min(self.config.max_model_len);
                need += self.kv.blocks_for(slots).saturating_sub(r.table.held());
                left.take(tokens);
                chunks.push((slot, tokens));
            }
        }
        enough &= left.take_rows(self.steady.rows - counted);
        self.steady.chunks = chunks;
        (enough && need <= self.kv.free()).then_some(left)
    }

    /// Blocks of one plan, for the chunks and the steady rows; they are known to be there. With prefix caching blocks
    /// are entered in the index in the order of the rows, since the older of two copies is the one that is found.
    pub(super) fn take_blocks(&mut self) {
        let phase = self.steady.phase as usize;
        if !self.config.enable_prefix_caching {
            self.kv.take(self.steady.class_rows[phase]);
            for &(slot, tokens) in &self.steady.chunks {
                let r = &mut self.requests[slot as usize];
                let slots = (r.computed + tokens).min(self.config.max_model_len);
                self.kv.grow(&mut r.table, slots);
            }
            return;
        }
        let mut takes = std::mem::take(&mut self.steady.scratch);
        takes.clear();
        for &(slot, tokens) in &self.steady.chunks {
            let r = self.request(slot);
            let after = r.computed + tokens;
            takes.push((r.order, slot, Take::Grow(after.min(self.config.max_model_len))));
            takes.push((r.order, slot, Take::Register(after.min(r.known()))));
        }
        for &slot in &self.steady.class_slots[phase] {
            let (order, computed) = self.steady_computed(slot);
            takes.push((order, slot, Take::Grow(computed + 1)));
            if self.config.async_scheduling {
                takes.push((order, slot, Take::Register(computed)));
            }
        }
        if !self.config.async_scheduling {
            // The token of this step fills a block of those that take a new one in the next step.
            let filling = (phase + 1) % self.steady.class_rows.len();
            for &slot in &self.steady.class_slots[filling] {
                let (order, computed) = self.steady_computed(slot);
                takes.push((order, slot, Take::Register(computed + 1)));
            }
        }
        takes.sort_by_key(|t| t.0);
        for &(_, slot, take) in &takes {
            let r = &mut self.requests[slot as usize];
            match take {
                Take::Grow(tokens) => {
                    let grown = self.kv.grow(&mut r.table, tokens);
                    debug_assert!(grown, "the need was checked before");
                }
                Take::Register(tokens) => self.kv.register(&mut r.table, &r.stream, tokens),
            }
        }
        self.steady.scratch = takes;
    }

    /// Admission number of a steady request, and its computed tokens before the plan that is being made.
    fn steady_computed(&self, slot: u32) -> (u64, u32) {
        let r = self.request(slot);
        (r.order, r.computed + (self.planned - r.steady_since) as u32)
    }

    /// Puts the steady rows into a plan and moves the clock.
    fn shape_steady(&mut self, plan: &mut StepPlan) {
        let rows = self.steady.rows;
        plan.steady = rows;
        if self.steady.lists_contexts {
            for &slot in self.running.slots() {
                if self.request(slot).steady_since > 0 {
                    let (_, computed) = self.steady_computed(slot);
                    plan.shape.add_decode(1, computed);
                }
            }
        } else if rows > 0 {
            plan.shape
                .add_decodes(rows, self.steady.computed + u64::from(rows));
        }
        self.steady.computed += u64::from(rows);
        self.steady.next_phase();
    }

    /// Takes requests into the steady set whose listed rows of this plan yield output, and lists the others.
    pub(super) fn settle(&mut self, plan: &mut StepPlan, row_by_row: bool) {
        if !self.steady.enabled {
            return;
        }
        if row_by_row {
            self.steady.next_phase();
            self.steady.listed.clear();
            self.steady.listed.extend_from_slice(self.running.slots());
        } else {
            let before = self.steady.chunks.len();
            debug_assert_eq!(plan.grants.len() - before, plan.admitted.len());
            self.steady
                .listed
                .extend(plan.grants[before..].iter().map(|g| g.slot));
        }
        for grant in &plan.grants {
            if grant.samples && self.enter(grant.slot) {
                plan.entered.push(grant.id);
            }
        }
        if !plan.entered.is_empty() {
            let requests = &self.requests;
            self.steady
                .listed
                .retain(|&s| requests[s as usize].steady_since == 0);
        }
    }

    /// Makes a request steady from the next plan on, unless its present row is its last.
    fn enter(&mut self, slot: u32) -> bool {
        let c = &self.config;
        let r = &mut self.requests[slot as usize];
        let cap = r.max_tokens.min(c.max_model_len - r.prompt);
        let limit = cap.min(r.eos_at);
        // Without asynchronous scheduling nothing is written down of the output under way.
        let under_way = if c.async_scheduling { r.placeholders } else { 1 };
        let more = limit.saturating_sub(r.outputs + under_way);
        if more == 0 || r.drafts > 0 {
            return false;
        }
        let at_length_limit = r.prompt + limit >= c.max_model_len;
        let known_to_stop = c.behaviour.async_stops_at_max_tokens && limit == r.max_tokens;
        r.steady_since = self.planned + 1;
        let end = End {
            plan: self.planned + u64::from(more),
            order: r.order,
            slot,
            is_foreseen: c.async_scheduling && (at_length_limit || known_to_stop),
        };
        let steady = &mut self.steady;
        steady.rows += 1;
        steady.computed += u64::from(r.computed);
        steady.ends.push(Reverse(end));
        r.shares_tail = !r.stream.tail_is_private(r.known());
        steady.shared_tails += u32::from(r.shares_tail);
        let class = steady.class(r);
        steady.class_rows[class] += 1;
        if c.enable_prefix_caching {
            let order = r.order;
            let requests = &self.requests;
            let members = &mut steady.class_slots[class];
            let at = members.partition_point(|&s| requests[s as usize].order < order);
            members.insert(at, slot);
        }
        true
    }
}

/// A row of one decoded token that yields output.
fn steady_row(r: &Request, slot: u32) -> Grant {
    Grant {
        id: r.id,
        slot,
        tokens: 1,
        computed: r.computed,
        drafts: 0,
        samples: true,
        order: r.order,
    }
}
