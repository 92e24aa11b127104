//! The ordering gate: what comes off the wire on one side, each event once and in order on the other.
//!
//! A pure value. Sequence numbers go in with their events; out come deliveries, requests to resume and the
//! ranges that were given up. docs/PROTOCOL.md, "Resume", is the rule book.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::limits::MAX_SEQ;

/// Whose rules the gate follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// The reference client 0.1.5: an event with a number already seen is delivered again.
    V015,
    /// The reference client 0.1.6 and later: such an event is dropped.
    V016,
    /// This project's client: nothing is given up that the server can still send, nothing is delivered twice.
    Seqcast,
}

/// Bounds of a gate.
#[derive(Debug, Clone, Copy)]
pub struct GateOptions {
    /// Whose rules.
    pub generation: Generation,
    /// Most sequence numbers held back behind a hole.
    pub max_pending: usize,
    /// Most bytes held back behind a hole (generation `Seqcast` only).
    pub max_pending_bytes: usize,
    /// How long a hole may stay open.
    pub timeout: Duration,
}

impl Default for GateOptions {
    fn default() -> Self {
        GateOptions {
            generation: Generation::Seqcast,
            max_pending: 1024,
            max_pending_bytes: 64 << 20,
            timeout: Duration::from_secs(5),
        }
    }
}

/// What a gate wants done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Passed<T> {
    /// Hand this to the application.
    Deliver {
        /// Its sequence number, if it carried one.
        seq: Option<u64>,
        /// The event.
        item: T,
    },
    /// Ask the server for everything after `last`.
    Resume {
        /// Last number delivered without a hole.
        last: u64,
    },
    /// Events that will not come any more.
    Missed {
        /// First number that is missing.
        from: u64,
        /// Last one; none when the server has lost the session and how much it held is unknown.
        to: Option<u64>,
    },
}

/// What the server has not said yet about the position in our hello.
#[derive(Debug)]
enum Question<T> {
    /// Nothing is open.
    Settled,
    /// `hello{last}` was sent; `heard` once an event arrived that fits behind it.
    Asked { last: u64, heard: bool },
    /// Numbers arrived that lie behind `last`: either a numbering that began at 1 before the server had handled
    /// our hello, or a server that begins at 1 and does not say so. Everything waits for the answer.
    Doubtful { last: u64, newest: u64, held: Vec<(u64, usize, T)> },
}

/// What is pending under one number: one event, but for the reference clients, which may hold it twice.
#[derive(Debug)]
struct Held<T> {
    bytes: usize,
    items: Vec<T>,
}

/// The gate of one session; it outlives connections.
#[derive(Debug)]
pub struct Gate<T> {
    options: GateOptions,
    last: u64,
    pending: BTreeMap<u64, Held<T>>,
    held_bytes: usize,
    in_flight: bool,
    due: Option<Duration>,
    question: Question<T>,
    out: VecDeque<Passed<T>>,
}

impl<T> Gate<T> {
    /// A gate that has seen nothing.
    pub fn new(options: GateOptions) -> Self {
        Gate {
            options,
            last: 0,
            pending: BTreeMap::new(),
            held_bytes: 0,
            in_flight: false,
            due: None,
            question: Question::Settled,
            out: VecDeque::new(),
        }
    }

    /// Last number delivered without a hole; 0 = none. This is what a hello says.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Numbers held back, rising.
    pub fn pending(&self) -> impl Iterator<Item = u64> + '_ {
        self.pending.keys().copied()
    }

    /// Next thing to do; call until it is empty after every other call.
    pub fn poll(&mut self) -> Option<Passed<T>> {
        self.out.pop_front()
    }

    /// When [`Gate::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.due
    }

    /// A connection is open and `hello{last()}` goes out.
    pub fn opened(&mut self) {
        self.in_flight = false;
        self.due = None;
        if self.ours() && self.last > 0 {
            self.question = Question::Asked { last: self.last, heard: false };
        }
    }

    /// An event arrived; `bytes` is what holding it costs.
    pub fn event(&mut self, now: Duration, seq: Option<u64>, bytes: usize, item: T) {
        let Some(seq) = seq else {
            return self.out.push_back(Passed::Deliver { seq: None, item });
        };
        if !self.ours() {
            return self.event_as_reference(now, seq, item);
        }
        if seq == 0 || seq > MAX_SEQ {
            return;
        }
        match &mut self.question {
            Question::Doubtful { .. } => return self.hold(seq, bytes, item),
            Question::Asked { last, heard: false } if seq <= self.last => {
                self.question = Question::Doubtful { last: *last, newest: 0, held: Vec::new() };
                return self.hold(seq, bytes, item);
            }
            Question::Asked { heard, .. } => *heard = true,
            Question::Settled => {}
        }
        self.place(now, seq, bytes, item);
    }

    /// The server answered a resume or a hello with a position.
    pub fn resumed(&mut self, now: Duration, ok: bool, from: u64) {
        self.in_flight = false;
        let lost = !ok && from == 0;
        match std::mem::replace(&mut self.question, Question::Settled) {
            Question::Asked { heard: true, .. } if lost && self.pending.is_empty() => {
                self.out.push_back(Passed::Missed { from: self.last + 1, to: None });
            }
            Question::Asked { last, heard: false } if lost => self.continue_after(last),
            Question::Settled | Question::Asked { .. } if lost => self.flush(),
            Question::Settled | Question::Asked { .. } => {
                if self.ours() && !ok && from <= MAX_SEQ {
                    self.skip_to(from - 1);
                }
            }
            // The server numbers those events again, behind our position.
            Question::Doubtful { last, newest, .. } if lost && newest <= last => self.continue_after(last),
            Question::Doubtful { last, newest, held } => self.restart(now, last, newest, held),
        }
        self.settle_timer(now);
    }

    /// The server has handled our hello and is of a kind that leaves a position it does not know unanswered: its
    /// numbering begins at 1.
    pub fn unanswered(&mut self, now: Duration) {
        match std::mem::replace(&mut self.question, Question::Settled) {
            Question::Settled | Question::Asked { heard: true, .. } => {}
            Question::Asked { last, .. } => self.restart(now, last, 0, Vec::new()),
            Question::Doubtful { last, newest, held } => self.restart(now, last, newest, held),
        }
        self.settle_timer(now);
    }

    /// The connection is gone. The reference clients give the hole up. Ours asks for it with the next hello, and
    /// forgets what lies behind it: a server that still has the session sends all of it again, and one that has lost it
    /// numbers other events so.
    pub fn lost(&mut self) {
        self.in_flight = false;
        // hello{0} asks for nothing, and what is pending proves to the server that we had something.
        if !self.ours() || self.last == 0 {
            self.flush();
        }
        if self.ours() {
            self.pending.clear();
            self.held_bytes = 0;
            self.due = None;
            self.question = Question::Settled;
        }
    }

    /// Time passed. The reference clients give up at the deadline whatever happens; ours waits for an answer that is
    /// on its way: it comes, or the connection ends.
    pub fn tick(&mut self, now: Duration) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        self.due = None;
        let waits = self.in_flight || !matches!(self.question, Question::Settled);
        if !(self.ours() && waits) {
            self.flush();
        }
    }

    fn ours(&self) -> bool {
        self.options.generation == Generation::Seqcast
    }

    /// The reference clients, oddities included: the timer outlives its hole, a number may be pending twice, and
    /// one that no longer fits is kept even if the flush that made room has passed it.
    fn event_as_reference(&mut self, now: Duration, seq: u64, item: T) {
        if seq == self.last + 1 {
            return self.advance(seq, item);
        }
        if seq <= self.last {
            if self.options.generation == Generation::V015 {
                self.out.push_back(Passed::Deliver { seq: Some(seq), item });
            }
            return;
        }
        if !self.pending.contains_key(&seq) && self.pending.len() >= self.options.max_pending {
            self.flush();
        }
        self.pending.entry(seq).or_insert_with(|| Held { bytes: 0, items: Vec::new() }).items.push(item);
        self.ask();
        self.due.get_or_insert(now + self.options.timeout);
    }

    fn place(&mut self, now: Duration, seq: u64, bytes: usize, item: T) {
        if seq <= self.last || self.pending.contains_key(&seq) {
            return;
        }
        while seq > self.last + 1 && self.is_full(bytes) {
            // The oldest hole is given up, no more.
            let next = self.pending().next().unwrap_or(seq).min(seq);
            self.miss_up_to(next - 1);
            self.drain();
        }
        if seq == self.last + 1 {
            self.advance(seq, item);
            if self.due.is_some() {
                self.due = (!self.pending.is_empty()).then_some(now + self.options.timeout);
            }
            return;
        }
        self.held_bytes += bytes;
        self.pending.insert(seq, Held { bytes, items: vec![item] });
        self.due.get_or_insert(now + self.options.timeout);
        if matches!(self.question, Question::Settled) {
            self.ask();
        }
    }

    fn is_full(&self, bytes: usize) -> bool {
        self.pending.len() >= self.options.max_pending
            || self.held_bytes + bytes > self.options.max_pending_bytes
    }

    fn ask(&mut self) {
        if !self.in_flight {
            self.in_flight = true;
            self.out.push_back(Passed::Resume { last: self.last });
        }
    }

    /// Delivers the next event and what it sets free.
    fn advance(&mut self, seq: u64, item: T) {
        self.last = seq;
        self.out.push_back(Passed::Deliver { seq: Some(seq), item });
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(held) = self.pending.remove(&(self.last + 1)) {
            self.deliver(self.last + 1, held);
        }
    }

    fn deliver(&mut self, seq: u64, held: Held<T>) {
        self.last = self.last.max(seq);
        self.held_bytes -= held.bytes;
        self.out.extend(held.items.into_iter().map(|item| Passed::Deliver { seq: Some(seq), item }));
    }

    /// Delivers everything pending and says what is missing between.
    fn flush(&mut self) {
        while let Some((seq, held)) = self.pending.pop_first() {
            self.miss_up_to(seq - 1);
            self.deliver(seq, held);
        }
    }

    fn miss_up_to(&mut self, to: u64) {
        if to > self.last {
            self.out.push_back(Passed::Missed { from: self.last + 1, to: Some(to) });
            self.last = to;
        }
    }

    /// The server has nothing up to and including `to` any more.
    fn skip_to(&mut self, to: u64) {
        while let Some(entry) = self.pending.first_entry().filter(|entry| *entry.key() <= to) {
            let (seq, held) = entry.remove_entry();
            self.miss_up_to(seq - 1);
            self.deliver(seq, held);
        }
        self.miss_up_to(to);
        self.drain();
    }

    /// The server lost the session and numbers on behind the position of our hello.
    fn continue_after(&mut self, last: u64) {
        self.out.push_back(Passed::Missed { from: last + 1, to: None });
        self.last = last;
    }

    /// The server numbers from 1; `held` are its first events, `newest` is the last number that it has sent.
    fn restart(&mut self, now: Duration, last: u64, newest: u64, held: Vec<(u64, usize, T)>) {
        self.out.push_back(Passed::Missed { from: last + 1, to: None });
        self.last = 0;
        self.held_bytes = 0;
        for (seq, bytes, item) in held {
            self.place(now, seq, bytes, item);
        }
        if newest > self.last {
            self.ask();
        }
    }

    /// Keeps an event until the question is settled. What there is no room for can be asked for again then.
    fn hold(&mut self, seq: u64, bytes: usize, item: T) {
        let is_full = self.is_full(bytes);
        let Question::Doubtful { newest, held, .. } = &mut self.question else { return };
        *newest = seq.max(*newest);
        if !is_full && held.len() < self.options.max_pending {
            self.held_bytes += bytes;
            held.push((seq, bytes, item));
        }
    }

    fn settle_timer(&mut self, now: Duration) {
        if !self.ours() {
            return;
        }
        if self.pending.is_empty() {
            self.due = None;
        } else {
            self.due.get_or_insert(now + self.options.timeout);
        }
    }
}
