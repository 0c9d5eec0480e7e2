//! Closed-loop clients as load generators have them: when each sends, on what machine, and what is counted.
//!
//! Four kinds. All send, wait for the whole answer, work on it, and send again; they differ in how they start, what
//! they see, and what they count:
//!
//! * **plain**: `concurrency` clients share one queue of requests;
//! * **llmperf** (`token_benchmark_ray.py`): the clock runs while its actors start up, client i sends its first request
//!   later than client 0, takes rows i, i + C, i + 2C, … of N modulo N, tokenises each answer again before it counts it,
//!   and stops when N answers are counted or the time is up. Up to C - 1 requests are then still under way: they are
//!   waited for and not counted (rules M32, M33);
//! * **thread pool**: a script whose workers take requests from one queue and receive each answer whole;
//! * **`vllm bench serve --max-concurrency`**: requests become due at their arrival times and wait, first come, first
//!   served, for one of C places; their clock starts when they have it (rule M12).
//!
//! The machine under the clients, where it is modelled, is a number of cores that serve all its work first come, first
//! served: sends, received chunks, and what is done with an answer. Whoever waits for a core is late, and so is what
//! the client sees and when it sends next.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::front::FrontEnd;
use super::kernel::{Class, Kernel};
use super::live::{Live, LiveRequests};
use super::world::{EVENTS_AT_ONCE, Event};
use crate::engine::RequestId;
use crate::record::{Recorder, Segments, Status, TokenLog};
use crate::units::{SimDuration, SimTime};
use crate::workload::trace::TraceRequest;

/// Clients of one load generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clients {
    /// How they start, what they see, and what they count.
    pub kind: ClientKind,
    /// How many there are; of `vllm bench serve`, requests at a time.
    pub concurrency: u32,
    /// Work of a client between an answer and its next request.
    pub think: SimDuration,
    /// The same for each output token of the answer.
    pub think_per_token: SimDuration,
    /// What they run on; `None` for a machine that costs no time.
    pub machine: Option<ClientMachine>,
}

/// Which load generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientKind {
    /// Send, wait, think, send the next request of a common queue.
    Plain,
    /// llmperf.
    Llmperf {
        /// From the start of its clock to the first request.
        start_up: SimDuration,
        /// From one client's first request to the next client's.
        stagger: SimDuration,
        /// No request is sent from here on.
        timeout: Option<SimDuration>,
    },
    /// A script with a pool of threads that receive each answer whole.
    ThreadPool,
    /// `vllm bench serve --max-concurrency`.
    VllmBench {
        /// Requests become due at their arrival times; otherwise all at 0.
        arrivals: bool,
    },
}

/// The machine under the clients: cores that take work first come, first served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientMachine {
    /// Cores; with 0 as with 1.
    pub cores: u32,
    /// CPU time of a send.
    pub send_cost: SimDuration,
    /// CPU time of a received chunk.
    pub chunk_cost: SimDuration,
}

impl Clients {
    /// They see their answers as a stream of tokens.
    const fn streams(&self) -> bool {
        !matches!(self.kind, ClientKind::ThreadPool)
    }

    /// The machine, if any of its work takes time.
    fn machine(&self) -> Option<ClientMachine> {
        let takes_time = |m: &ClientMachine| {
            [m.send_cost, m.chunk_cost, self.think, self.think_per_token]
                .iter()
                .any(|cost| *cost > SimDuration::ZERO)
        };
        self.machine.filter(takes_time)
    }

    /// Every token has to be followed to its client: steps are then taken singly.
    pub(super) fn watch_tokens(&self) -> bool {
        self.machine().is_some()
    }

    /// What clients see is not what the engine's steps and the front end say.
    pub(super) fn see_for_themselves(&self) -> bool {
        self.watch_tokens() || !self.streams()
    }

    /// Requests become due at their arrival times.
    pub(super) const fn keep_arrivals(&self) -> bool {
        matches!(self.kind, ClientKind::VllmBench { arrivals: true })
    }
}

/// What happens at the clients.
#[derive(Debug, Clone, Copy)]
pub(super) enum ClientEvent {
    /// A client comes to its first request.
    Start(u32),
    /// A request of `vllm bench serve` becomes due.
    Due,
    /// A chunk of so many tokens reaches the machine.
    Chunk {
        request: RequestId,
        tokens: u32,
        is_last: bool,
    },
    /// A client has the whole answer.
    Answered(RequestId),
    /// A client has done its work on an answer.
    Ready { client: u32, request: RequestId },
}

/// What clients act on.
pub(super) struct Reach<'a, R: Recorder> {
    pub kernel: &'a mut Kernel<Event>,
    pub live: &'a mut LiveRequests<R::Request>,
    /// Requests not sent yet; llmperf's stay here, because it takes them again.
    pub unsent: &'a mut VecDeque<(RequestId, TraceRequest)>,
    pub front_end: FrontEnd,
    pub recorder: &'a R,
}

impl<R: Recorder> Reach<'_, R> {
    fn at(&mut self, at: SimTime, event: ClientEvent) {
        self.kernel.schedule(at, Class::Arrival, Event::Client(event));
    }
}

/// Cores that take work in the order in which it comes.
#[derive(Debug)]
struct Cores {
    number: usize,
    /// When those that are taken are free again.
    taken: BinaryHeap<Reverse<SimTime>>,
}

impl Cores {
    /// When work that comes now is done.
    fn work(&mut self, now: SimTime, cost: SimDuration) -> SimTime {
        while self.taken.peek().is_some_and(|Reverse(free)| *free <= now) {
            self.taken.pop();
        }
        let all_taken = self.taken.len() >= self.number;
        let first_free = if all_taken { self.taken.pop() } else { None };
        let done = first_free.map_or(now, |Reverse(free)| free) + cost;
        self.taken.push(Reverse(done));
        done
    }
}

/// The clients of a run at work.
#[derive(Debug)]
pub(super) struct ClientSide {
    clients: Clients,
    cores: Option<Cores>,
    /// llmperf: the row that each client takes next, and how many answers are counted.
    next_rows: Vec<u32>,
    counted: u32,
    /// Requests sent.
    sent: u32,
    /// `vllm bench serve`: free places, and whether the next arrival is among the events.
    free_places: u32,
    arrival_is_due: bool,
}

impl ClientSide {
    pub fn new(clients: Clients) -> Self {
        Self {
            clients,
            cores: clients.machine().map(|m| Cores {
                number: m.cores.max(1) as usize,
                taken: BinaryHeap::new(),
            }),
            next_rows: Vec::new(),
            counted: 0,
            sent: 0,
            free_places: clients.concurrency,
            arrival_is_due: false,
        }
    }

    /// The run begins.
    pub fn start<R: Recorder>(&mut self, reach: &mut Reach<'_, R>) {
        let (rows, concurrency) = (reach.unsent.len() as u32, self.clients.concurrency);
        match self.clients.kind {
            ClientKind::Plain | ClientKind::ThreadPool => {
                (0..concurrency.min(rows)).for_each(|c| reach.at(SimTime::ZERO, ClientEvent::Start(c)));
            }
            ClientKind::Llmperf {
                start_up, stagger, ..
            } if rows > 0 => {
                reach
                    .kernel
                    .allow(EVENTS_AT_ONCE.saturating_mul(u64::from(concurrency)));
                for client in 0..concurrency {
                    self.next_rows.push(client % rows);
                    let at = SimTime::ZERO + start_up + stagger * u64::from(client);
                    reach.at(at, ClientEvent::Start(client));
                }
            }
            ClientKind::Llmperf { .. } => {}
            ClientKind::VllmBench { .. } => self.fill_places(reach),
        }
    }

    pub fn handle<R: Recorder>(&mut self, event: ClientEvent, reach: &mut Reach<'_, R>) {
        let now = reach.kernel.now();
        match event {
            ClientEvent::Start(client) => {
                if self.may_send(reach) {
                    self.send_next(client, reach);
                }
            }
            ClientEvent::Due => {
                self.arrival_is_due = false;
                self.fill_places(reach);
            }
            ClientEvent::Chunk {
                request,
                tokens,
                is_last,
            } => {
                let cost = self.clients.machine().map_or(SimDuration::ZERO, |m| m.chunk_cost);
                let done = self.work(now, cost);
                let seen = &mut reach.live.get(request).seen;
                seen.extend(std::iter::repeat_n(done, tokens as usize));
                if is_last {
                    reach.at(done, ClientEvent::Answered(request));
                }
            }
            ClientEvent::Answered(request) => self.take_answer(request, reach),
            ClientEvent::Ready { client, request } => self.be_ready(client, request, reach),
        }
    }

    /// After the steps of an instant: sends what they gave on its way to the clients. Requests in `ended` are at
    /// their end for the engine; for the client they are when it has seen that.
    pub fn deliver<R: Recorder>(&mut self, ended: &[RequestId], reach: &mut Reach<'_, R>) {
        let (now, front) = (reach.kernel.now(), reach.front_end);
        let whole_at = now + front.outbound;
        for emitted in reach.live.take_emitted() {
            if self.clients.streams() {
                let event = ClientEvent::Chunk {
                    request: emitted.request,
                    tokens: emitted.tokens,
                    is_last: reach.live.get(emitted.request).has_ended,
                };
                reach.at(front.seen(now, emitted.before), event);
            }
        }
        for &request in ended {
            let live = reach.live.get(request);
            live.has_ended = false;
            let refused = live.record.status == Status::Rejected;
            let (tokens, before) = (live.record.output_tokens, live.tokens_before_last());
            let in_one_piece = refused || !self.clients.streams();
            match (self.cores.is_some(), in_one_piece) {
                (true, true) => reach.at(
                    whole_at,
                    ClientEvent::Chunk {
                        request,
                        tokens,
                        is_last: true,
                    },
                ),
                // Its last chunk is on the way.
                (true, false) => {}
                (false, true) => reach.at(whole_at, ClientEvent::Answered(request)),
                (false, false) => reach.at(front.seen(now, before), ClientEvent::Answered(request)),
            }
        }
    }

    /// The run is cut off: what a client has not seen to its end is not finished, and its tokens are those that it saw
    /// by then.
    pub fn cut_off<K>(&self, live: &mut Live<K>, deadline: Option<SimTime>) {
        if live.has_ended {
            return;
        }
        let record = &mut live.record;
        // llmperf may have the whole answer and still be at work on it: then it saw it all.
        let has_answer = matches!(record.tokens, TokenLog::Times(_));
        if self.clients.see_for_themselves() && !has_answer {
            live.seen
                .retain(|at| deadline.is_none_or(|deadline| *at <= deadline));
            record.output_tokens = live.seen.len() as u32;
            record.first_token = live.seen.first().copied().filter(|_| self.clients.streams());
            record.last_token = live.seen.last().copied();
            record.tokens = match std::mem::take(&mut live.seen) {
                seen if seen.is_empty() => TokenLog::Segments(Segments::new()),
                seen => TokenLog::Times(seen),
            };
        }
        if record.status == Status::Completed {
            record.status = Status::Unfinished;
            record.finish_reason = None;
        }
    }

    /// Rows that are left are not requests that were offered: llmperf draws as many as it counts, and which of them
    /// it sends depends on its clients.
    pub const fn keeps_rows(&self) -> bool {
        matches!(self.clients.kind, ClientKind::Llmperf { .. })
    }

    /// When work that comes now is done: at once without a modelled machine.
    fn work(&mut self, now: SimTime, cost: SimDuration) -> SimTime {
        match &mut self.cores {
            Some(cores) => cores.work(now, cost),
            None => now + cost,
        }
    }

    /// What a client of llmperf looks at before each send, the first one too: whether N answers are counted and whether
    /// the time is up (rule M33). Other clients send as long as there are requests.
    fn may_send<R: Recorder>(&self, reach: &Reach<'_, R>) -> bool {
        match self.clients.kind {
            ClientKind::Llmperf { timeout, .. } => {
                let is_time = timeout.is_none_or(|t| reach.kernel.now() < SimTime::ZERO + t);
                is_time && (self.counted as usize) < reach.unsent.len()
            }
            _ => true,
        }
    }

    /// A client sends its next request, if there is one.
    fn send_next<R: Recorder>(&mut self, client: u32, reach: &mut Reach<'_, R>) {
        let now = reach.kernel.now();
        let next = match self.next_rows.get(client as usize) {
            Some(&row) => reach
                .unsent
                .get(row as usize)
                .map(|(_, request)| (self.sent, request.clone())),
            None => reach.unsent.pop_front(),
        };
        if let Some((id, request)) = next {
            self.send(client, id, request, now, reach);
        }
    }

    fn send<R: Recorder>(
        &mut self,
        client: u32,
        id: RequestId,
        request: TraceRequest,
        scheduled: SimTime,
        reach: &mut Reach<'_, R>,
    ) {
        let cost = self.clients.machine().map_or(SimDuration::ZERO, |m| m.send_cost);
        let at = self.work(reach.kernel.now(), cost);
        let measured = reach.recorder.measures(scheduled);
        let place = reach.live.send(id, request, scheduled, measured);
        reach.live.get(place).client = client;
        self.sent += 1;
        reach.kernel.schedule(at, Class::Arrival, Event::Send(place));
    }

    /// `vllm bench serve`: requests that are due take free places in the order of their arrival.
    fn fill_places<R: Recorder>(&mut self, reach: &mut Reach<'_, R>) {
        let now = reach.kernel.now();
        while self.free_places > 0 {
            let Some(arrival) = reach.unsent.front().map(|(_, request)| request.arrival) else {
                return;
            };
            if arrival > now {
                if !self.arrival_is_due {
                    self.arrival_is_due = true;
                    reach.at(arrival, ClientEvent::Due);
                }
                return;
            }
            if let Some((id, request)) = reach.unsent.pop_front() {
                self.free_places -= 1;
                self.send(0, id, request, arrival, reach);
            }
        }
    }

    /// The whole answer is there: the client works on it.
    fn take_answer<R: Recorder>(&mut self, request: RequestId, reach: &mut Reach<'_, R>) {
        let now = reach.kernel.now();
        let live = reach.live.get(request);
        if self.clients.see_for_themselves() && live.record.status == Status::Completed {
            let record = &mut live.record;
            if self.cores.is_none() {
                live.seen = vec![now; record.output_tokens as usize];
            }
            record.first_token = live.seen.first().copied().filter(|_| self.clients.streams());
            record.last_token = Some(now);
            record.tokens = TokenLog::Times(std::mem::take(&mut live.seen));
        }
        let (client, tokens) = (live.client, live.record.output_tokens);
        let think = self.clients.think + self.clients.think_per_token * u64::from(tokens);
        // llmperf counts an answer when it has tokenised it.
        live.has_ended = !self.keeps_rows();
        let ready = if think > SimDuration::ZERO {
            self.work(now, think)
        } else {
            now
        };
        reach.at(ready, ClientEvent::Ready { client, request });
    }

    /// A client is done with an answer and may send again.
    fn be_ready<R: Recorder>(&mut self, client: u32, request: RequestId, reach: &mut Reach<'_, R>) {
        match self.clients.kind {
            ClientKind::Plain | ClientKind::ThreadPool => self.send_next(client, reach),
            ClientKind::VllmBench { .. } => {
                self.free_places += 1;
                self.fill_places(reach);
            }
            ClientKind::Llmperf { .. } => {
                let rows = reach.unsent.len() as u32;
                let live = reach.live.get(request);
                live.has_ended = true;
                if self.counted < rows {
                    self.counted += 1;
                    if let Some(row) = self.next_rows.get_mut(client as usize) {
                        *row = ((u64::from(*row) + u64::from(self.clients.concurrency)) % u64::from(rows))
                            as u32;
                    }
                } else if live.record.status == Status::Completed {
                    live.record.status = Status::Surplus;
                }
                if self.may_send(reach) {
                    self.send_next(client, reach);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
