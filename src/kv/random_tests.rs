//! The pool of chains does what the plain one with a hash map does, block for block, over random lives of requests.

use proptest::prelude::*;

use super::reference::{BlockKey, Reference, ReferenceTable};
use super::{BlockTable, KvCache, TokenStream};
use crate::workload::trace::Prefix;

/// One request's life so far.
#[derive(Debug)]
struct Life {
    stream: TokenStream,
    known: u32,
    /// Tokens in the cache; 0 while it waits.
    computed: u32,
    table: BlockTable,
    reference: ReferenceTable,
}

/// What happens next, to the request `who` of those that it can happen to.
#[derive(Debug, Clone)]
enum Event {
    Arrive {
        prompt: u32,
        prefix: Option<Prefix>,
        /// The number of a request that is gone is used again.
        owner: Option<u32>,
    },
    /// Looks up and is admitted with at most so many tokens, if they fit.
    Admit {
        who: usize,
        chunk: u32,
        drop_last: bool,
    },
    /// Looks up and goes on waiting.
    LookUp {
        who: usize,
    },
    /// Gets tokens; those not known yet are outputs.
    Step {
        who: usize,
        tokens: u32,
        late: bool,
    },
    Preempt {
        who: usize,
    },
    Finish {
        who: usize,
    },
}

fn any_prefix() -> impl Strategy<Value = Option<Prefix>> {
    let shared = prop_oneof![0u32..100, Just(u32::MAX)];
    prop::option::weighted(
        0.8,
        (0u32..3, shared, any::<bool>()).prop_map(|(group, shared_tokens, greedy_outputs)| Prefix {
            group,
            shared_tokens,
            greedy_outputs,
        }),
    )
}

fn any_event() -> impl Strategy<Value = Event> {
    // Few lengths, so that prompts repeat.
    let prompt = prop_oneof![Just(16u32), Just(32), Just(33), 1u32..90];
    let owner = prop::option::weighted(0.4, 0u32..3);
    let who = || 0usize..64;
    prop_oneof![
        3 => (prompt, any_prefix(), owner)
            .prop_map(|(prompt, prefix, owner)| Event::Arrive { prompt, prefix, owner }),
        4 => (who(), prop_oneof![Just(1000u32), 1u32..40], any::<bool>())
            .prop_map(|(who, chunk, drop_last)| Event::Admit { who, chunk, drop_last }),
        1 => who().prop_map(|who| Event::LookUp { who }),
        8 => (who(), prop_oneof![3 => Just(1u32), 2 => 1u32..20], any::<bool>())
            .prop_map(|(who, tokens, late)| Event::Step { who, tokens, late }),
        1 => who().prop_map(|who| Event::Preempt { who }),
        2 => who().prop_map(|who| Event::Finish { who }),
    ]
}

/// Both pools and who uses them.
struct Pair {
    pool: KvCache,
    reference: Reference,
    lives: Vec<Life>,
    next_owner: u32,
    /// Tables of requests that are gone.
    spare: Vec<BlockTable>,
}

impl Pair {
    fn new(blocks: u32, block_size: u32, unhashed_first: bool) -> Self {
        Self {
            pool: KvCache::new(blocks, block_size, true, unhashed_first),
            reference: Reference::new(blocks, block_size, true, unhashed_first),
            lives: Vec::new(),
            next_owner: 3,
            spare: Vec::new(),
        }
    }

    /// Place of one of the requests that wait or run.
    fn pick(&self, who: usize, running: bool) -> Option<usize> {
        let of_kind = |l: &&Life| (l.computed > 0) == running;
        let count = self.lives.iter().filter(of_kind).count();
        let mut places = (0..self.lives.len()).filter(|i| of_kind(&&self.lives[*i]));
        places.nth(who.checked_rem(count)?)
    }

    fn apply(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match *event {
            Event::Arrive {
                prompt,
                prefix,
                owner,
            } => self.arrive(prompt, prefix, owner),
            Event::Admit {
                who,
                chunk,
                drop_last,
            } => {
                if let Some(place) = self.pick(who, false) {
                    self.admit(place, chunk, drop_last)?;
                }
            }
            Event::LookUp { who } => {
                if let Some(place) = self.pick(who, false) {
                    let cached = self.look_up(place, false)?;
                    prop_assert!(cached < self.lives[place].known);
                }
            }
            Event::Step { who, tokens, late } => {
                if let Some(place) = self.pick(who, true) {
                    self.step(place, tokens, late)?;
                }
            }
            Event::Preempt { who } => {
                if let Some(place) = self.pick(who, true) {
                    self.release(place);
                }
            }
            Event::Finish { who } => {
                if let Some(place) = self.pick(who, true) {
                    self.release(place);
                    self.spare.push(self.lives.remove(place).table);
                }
            }
        }
        Ok(())
    }

    fn arrive(&mut self, prompt: u32, prefix: Option<Prefix>, owner: Option<u32>) {
        let free = |o: &u32| self.lives.iter().all(|l| l.stream.owner != *o);
        let owner = owner.filter(free).unwrap_or_else(|| {
            self.next_owner += 1;
            self.next_owner
        });
        self.lives.push(Life {
            stream: TokenStream::new(owner, prompt, prefix),
            known: prompt,
            computed: 0,
            table: self.spare.pop().unwrap_or_default(),
            reference: ReferenceTable::default(),
        });
    }

    fn look_up(&mut self, place: usize, drop_last: bool) -> Result<u32, TestCaseError> {
        let life = &self.lives[place];
        let cached = self.pool.look_up(&life.stream, life.known, drop_last);
        let expected = self.reference.look_up(&life.stream, life.known, drop_last);
        prop_assert_eq!(cached, expected);
        for tokens in [cached, cached + 1, life.known, life.known + 40] {
            prop_assert_eq!(
                self.pool.needed_after_look_up(tokens),
                self.reference.needed_after_look_up(tokens)
            );
        }
        Ok(cached)
    }

    fn admit(&mut self, place: usize, chunk: u32, drop_last: bool) -> Result<(), TestCaseError> {
        let cached = self.look_up(place, drop_last)?;
        let life = &mut self.lives[place];
        let tokens = life.known.min(cached + chunk);
        if self.pool.needed_after_look_up(tokens) > self.pool.free() {
            return Ok(());
        }
        self.pool.admit(&mut life.table, tokens);
        self.reference.admit(&mut life.reference, tokens);
        life.computed = tokens;
        self.register(place, tokens);
        Ok(())
    }

    fn step(&mut self, place: usize, tokens: u32, late: bool) -> Result<(), TestCaseError> {
        let life = &mut self.lives[place];
        let computed = life.computed + tokens;
        let grown = self.pool.grow(&mut life.table, computed);
        prop_assert_eq!(grown, self.reference.grow(&mut life.reference, computed));
        if !grown {
            // As an engine does: somebody goes, here the request itself.
            self.release(place);
            return Ok(());
        }
        life.computed = computed;
        life.known = life.known.max(computed);
        if !late {
            self.register(place, computed);
        }
        Ok(())
    }

    fn register(&mut self, place: usize, tokens: u32) {
        let life = &mut self.lives[place];
        self.pool.register(&mut life.table, &life.stream, tokens);
        self.reference.register(&mut life.reference, &life.stream, tokens);
    }

    fn release(&mut self, place: usize) {
        let life = &mut self.lives[place];
        self.pool.release(&mut life.table);
        self.reference.release(&mut life.reference);
        life.computed = 0;
    }

    fn agree(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.pool.free(), self.reference.free());
        for life in &self.lives {
            prop_assert_eq!(life.table.held(), life.reference.held);
        }
        let queue = self.pool.free_queue();
        let expected = self.reference.free_queue().into_iter();
        let expected: Vec<_> = expected
            .map(|(b, key)| (b, key.map(|BlockKey { stream, block }| (stream, block))))
            .collect();
        prop_assert_eq!(queue, expected);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn chains_are_the_plain_pool(
        blocks in prop_oneof![3u32..12, 12u32..60],
        block_size in prop::sample::select(vec![1u32, 3, 16, 16]),
        unhashed_first: bool,
        events in prop::collection::vec(any_event(), 1..150),
    ) {
        let mut pair = Pair::new(blocks, block_size, unhashed_first);
        for event in &events {
            pair.apply(event)?;
            pair.agree()?;
        }
        // Nothing is left of the chains once everything was evicted.
        while let Some(place) = pair.pick(0, true) {
            pair.release(place);
        }
        let mut table = BlockTable::default();
        prop_assert!(pair.pool.grow(&mut table, blocks * block_size));
        prop_assert_eq!(pair.pool.chain_size().0, 0);
    }
}
