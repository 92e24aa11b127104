//! What one core tells another. Between two cores handoffs arrive in the order in which they were sent.
//!
//! Handoffs travel in batches of bytes: writing one copies its event once and allocates nothing, because the memory of
//! a batch that was read comes back to the core that wrote it. An event over
//! [`COPIED_EVENT_BYTES`](crate::limits::COPIED_EVENT_BYTES) is shared instead of copied.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::limits::{BATCH_BYTES, SPARE_BATCHES};

use super::step::{CoreId, EventIndex, RoomKind};

/// An event on its way to another core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossing<'a> {
    /// Which event.
    pub event: EventIndex,
    /// What of it.
    pub body: Body<'a>,
}

/// The bytes of a [`Crossing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// A size-prefixed FlatBuffer, copied.
    Payload(&'a [u8]),
    /// The whole server frame as it is stored, shared.
    Frame(&'a Bytes),
}

/// Whom another core delivers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receivers<'a> {
    /// All its clients.
    All,
    /// Members of a group or user.
    Room(RoomKind, &'a str),
}

/// An accepted publish that waits until every core has the event: its number at the core that counts.
pub type Receipt = u64;

/// Work for another core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handoff<'a> {
    /// To the home of a topic: number this event and spread it.
    Number {
        /// The topic.
        topic: &'a str,
        /// The event.
        event: EventIndex,
        /// Its size-prefixed FlatBuffer; no longer than the message of a client.
        payload: &'a [u8],
    },
    /// From the home of a topic to a core that is interested: the next event.
    Numbered {
        /// The topic.
        topic: &'a str,
        /// Its number.
        topic_seq: u64,
        /// The event.
        event: Crossing<'a>,
        /// To be confirmed.
        receipt: Option<Receipt>,
    },
    /// Deliver on your core.
    Deliver {
        /// To whom.
        to: Receivers<'a>,
        /// The event.
        event: Crossing<'a>,
        /// To be confirmed.
        receipt: Option<Receipt>,
    },
    /// The event is in the outbox of every receiver here.
    Delivered {
        /// Which.
        receipt: Receipt,
    },
    /// To the home of a topic: from now on this core wants its events.
    Interest {
        /// The topic.
        topic: &'a str,
    },
    /// Answer to `Interest`: the recent entries; what is numbered later follows behind this.
    Interested {
        /// The topic.
        topic: &'a str,
        /// Number of the newest event.
        topic_seq: u64,
        /// Recent events with their numbers.
        history: Past<'a>,
    },
    /// To the home of a topic: this core has no member left.
    Disinterest {
        /// The topic.
        topic: &'a str,
    },
    /// Tell the rows of your clients.
    List,
    /// Answer to `List`.
    Listed {
        /// A line for each client; none = too long.
        rows: Option<&'a str>,
    },
    /// The sender has more to hand on than its neighbours take: feed it nothing for now.
    Hold,
    /// The opposite of `Hold`.
    Release,
    /// Whatever was handed on before this has arrived; for a core whose state is saved.
    Flush {
        /// 1, then 2.
        round: u8,
    },
}

/// Recent events of a topic with their numbers, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Past<'a> {
    bytes: &'a [u8],
    large: &'a [Bytes],
    left: u32,
}

impl<'a> Iterator for Past<'a> {
    type Item = (u64, Crossing<'a>);

    fn next(&mut self) -> Option<(u64, Crossing<'a>)> {
        self.left = self.left.checked_sub(1)?;
        let mut read = Reader { bytes: self.bytes, large: self.large };
        let entry = (read.number(), read.crossing());
        (self.bytes, self.large) = (read.bytes, read.large);
        Some(entry)
    }
}

/// What begins each handoff.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Tag {
    Number,
    Numbered,
    Deliver,
    Delivered,
    Interest,
    Interested,
    Disinterest,
    List,
    Listed,
    Hold,
    Release,
    Flush,
}

const TAGS: [Tag; 12] = [
    Tag::Number,
    Tag::Numbered,
    Tag::Deliver,
    Tag::Delivered,
    Tag::Interest,
    Tag::Interested,
    Tag::Disinterest,
    Tag::List,
    Tag::Listed,
    Tag::Hold,
    Tag::Release,
    Tag::Flush,
];

/// In place of the length of a body: it is the next of the large ones.
const SHARED: u32 = u32::MAX;
/// In place of the kind of a room: all clients.
const ALL: u8 = u8::MAX;

/// Handoffs of one core to another, in order.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    large: Vec<Bytes>,
    /// Bytes of the large ones.
    large_bytes: usize,
    read: usize,
    large_read: usize,
}

impl Batch {
    /// Bytes that it holds, those of shared events included.
    pub fn weight(&self) -> usize {
        self.bytes.len() + self.large_bytes
    }

    /// Everything was read.
    pub fn is_read(&self) -> bool {
        self.read == self.bytes.len()
    }

    /// The next handoff.
    pub fn take(&mut self) -> Option<Handoff<'_>> {
        if self.is_read() {
            return None;
        }
        let mut read = Reader { bytes: &self.bytes[self.read..], large: &self.large[self.large_read..] };
        let handoff = read.handoff();
        self.read = self.bytes.len() - read.bytes.len();
        self.large_read = self.large.len() - read.large.len();
        Some(handoff)
    }

    /// Makes it ready to be written again; its memory stays, within reason.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(2 * BATCH_BYTES);
        self.large.clear();
        (self.large_bytes, self.read, self.large_read) = (0, 0, 0);
    }

    fn number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    fn length(&mut self, length: usize) {
        let length = u32::try_from(length).expect("what crosses is far below 4 GiB");
        self.bytes.extend_from_slice(&length.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.length(text.len());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn receipt(&mut self, receipt: Option<Receipt>) {
        self.number(receipt.unwrap_or(0));
    }

    fn crossing(&mut self, event: &Crossing<'_>) {
        self.bytes.extend_from_slice(&event.event.to_le_bytes());
        match event.body {
            Body::Payload(payload) => {
                self.length(payload.len());
                self.bytes.extend_from_slice(payload);
            }
            Body::Frame(frame) => {
                self.bytes.extend_from_slice(&SHARED.to_le_bytes());
                self.large_bytes += frame.len();
                self.large.push(frame.clone());
            }
        }
    }

    fn history(&mut self, history: &Past<'_>) {
        self.length(history.left as usize);
        self.bytes.extend_from_slice(history.bytes);
        self.large.extend_from_slice(history.large);
        self.large_bytes += history.large.iter().map(Bytes::len).sum::<usize>();
    }

    fn receivers(&mut self, to: &Receivers<'_>) {
        match to {
            Receivers::All => self.bytes.push(ALL),
            Receivers::Room(kind, name) => {
                self.bytes.push(*kind as u8);
                self.text(name);
            }
        }
    }

    /// Writes a handoff behind the others.
    pub fn push(&mut self, handoff: &Handoff<'_>) {
        self.bytes.push(handoff.tag() as u8);
        match handoff {
            Handoff::Number { topic, event, payload } => {
                self.text(topic);
                self.crossing(&Crossing { event: *event, body: Body::Payload(payload) });
            }
            Handoff::Numbered { topic, topic_seq, event, receipt } => {
                self.text(topic);
                self.number(*topic_seq);
                self.crossing(event);
                self.receipt(*receipt);
            }
            Handoff::Deliver { to, event, receipt } => {
                self.receivers(to);
                self.crossing(event);
                self.receipt(*receipt);
            }
            Handoff::Delivered { receipt } => self.number(*receipt),
            Handoff::Interest { topic } | Handoff::Disinterest { topic } => self.text(topic),
            Handoff::Interested { topic, topic_seq, history } => {
                self.text(topic);
                self.number(*topic_seq);
                self.history(history);
            }
            Handoff::Listed { rows } => {
                self.bytes.push(u8::from(rows.is_some()));
                self.text(rows.unwrap_or_default());
            }
            Handoff::List | Handoff::Hold | Handoff::Release => {}
            Handoff::Flush { round } => self.bytes.push(*round),
        }
    }
}

impl Handoff<'_> {
    fn tag(&self) -> Tag {
        match self {
            Handoff::Number { .. } => Tag::Number,
            Handoff::Numbered { .. } => Tag::Numbered,
            Handoff::Deliver { .. } => Tag::Deliver,
            Handoff::Delivered { .. } => Tag::Delivered,
            Handoff::Interest { .. } => Tag::Interest,
            Handoff::Interested { .. } => Tag::Interested,
            Handoff::Disinterest { .. } => Tag::Disinterest,
            Handoff::List => Tag::List,
            Handoff::Listed { .. } => Tag::Listed,
            Handoff::Hold => Tag::Hold,
            Handoff::Release => Tag::Release,
            Handoff::Flush { .. } => Tag::Flush,
        }
    }
}

/// Reads what a [`Batch`] wrote. Both are of one process, so anything else than what was written is a fault of ours.
struct Reader<'a> {
    bytes: &'a [u8],
    large: &'a [Bytes],
}

impl<'a> Reader<'a> {
    fn slice(&mut self, length: usize) -> &'a [u8] {
        let (slice, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        slice
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.slice(N).try_into().expect("as long as asked")
    }

    fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn length(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn text(&mut self) -> &'a str {
        let length = self.length() as usize;
        std::str::from_utf8(self.slice(length)).expect("it was written from a string")
    }

    fn receipt(&mut self) -> Option<Receipt> {
        Some(self.number()).filter(|receipt| *receipt != 0)
    }

    fn crossing(&mut self) -> Crossing<'a> {
        let event = EventIndex::from_le_bytes(self.array());
        let body = match self.length() {
            SHARED => {
                let (frame, rest) = self.large.split_first().expect("each shared event is there");
                self.large = rest;
                Body::Frame(frame)
            }
            length => Body::Payload(self.slice(length as usize)),
        };
        Crossing { event, body }
    }

    fn history(&mut self) -> Past<'a> {
        let left = self.length();
        let past = Past { bytes: self.bytes, large: self.large, left };
        for _ in 0..left {
            self.number();
            self.crossing();
        }
        let (bytes, large) = (past.bytes.len() - self.bytes.len(), past.large.len() - self.large.len());
        Past { bytes: &past.bytes[..bytes], large: &past.large[..large], left }
    }

    fn receivers(&mut self) -> Receivers<'a> {
        const KINDS: [RoomKind; 3] = [RoomKind::Topic, RoomKind::Group, RoomKind::User];
        match self.byte() {
            ALL => Receivers::All,
            kind => Receivers::Room(KINDS[usize::from(kind)], self.text()),
        }
    }

    /// Fields are evaluated in the order in which they stand here, which is the order in which they were written.
    fn handoff(&mut self) -> Handoff<'a> {
        match TAGS[usize::from(self.byte())] {
            Tag::Number => {
                let (topic, crossing) = (self.text(), self.crossing());
                let Body::Payload(payload) = crossing.body else { unreachable!("it is written so") };
                Handoff::Number { topic, event: crossing.event, payload }
            }
            Tag::Numbered => Handoff::Numbered {
                topic: self.text(),
                topic_seq: self.number(),
                event: self.crossing(),
                receipt: self.receipt(),
            },
            Tag::Deliver => {
                Handoff::Deliver { to: self.receivers(), event: self.crossing(), receipt: self.receipt() }
            }
            Tag::Delivered => Handoff::Delivered { receipt: self.number() },
            Tag::Interest => Handoff::Interest { topic: self.text() },
            Tag::Interested => {
                Handoff::Interested { topic: self.text(), topic_seq: self.number(), history: self.history() }
            }
            Tag::Disinterest => Handoff::Disinterest { topic: self.text() },
            Tag::List => Handoff::List,
            Tag::Listed => {
                let is_there = self.byte() != 0;
                Handoff::Listed { rows: Some(self.text()).filter(|_| is_there) }
            }
            Tag::Hold => Handoff::Hold,
            Tag::Release => Handoff::Release,
            Tag::Flush => Handoff::Flush { round: self.byte() },
        }
    }
}

/// A topic's history while it is put together.
#[derive(Debug, Default)]
pub struct History {
    entries: Batch,
    count: u32,
}

impl History {
    /// The next newer event.
    pub fn push(&mut self, number: u64, event: &Crossing<'_>) {
        self.count += 1;
        self.entries.number(number);
        self.entries.crossing(event);
    }

    /// What was put together.
    pub fn past(&self) -> Past<'_> {
        Past { bytes: &self.entries.bytes, large: &self.entries.large, left: self.count }
    }
}

/// What waits to leave for one core.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    batches: VecDeque<Batch>,
    /// Batches that came back.
    spare: Vec<Batch>,
    bytes: usize,
}

impl Outgoing {
    pub fn push(&mut self, handoff: &Handoff<'_>) {
        if self.batches.back().is_none_or(|batch| batch.weight() >= BATCH_BYTES) {
            self.batches.push_back(self.spare.pop().unwrap_or_default());
        }
        let batch = self.batches.back_mut().expect("made above");
        let before = batch.weight();
        batch.push(handoff);
        self.bytes += batch.weight() - before;
    }

    pub fn take(&mut self) -> Option<Batch> {
        let batch = self.batches.pop_front()?;
        self.bytes -= batch.weight();
        Some(batch)
    }

    /// Takes the memory of a batch that was read.
    pub fn give_back(&mut self, mut batch: Batch) {
        if self.spare.len() < SPARE_BATCHES {
            batch.clear();
            self.spare.push(batch);
        }
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }
}

/// The core of a name: the same on every core of a process.
pub fn home(seed: u64, cores: CoreId, kind: RoomKind, name: &str) -> CoreId {
    let hasher = ahash::RandomState::with_seeds(seed, kind as u64, 0x5eca_5701, 1);
    let spread = hasher.hash_one(name) % u64::from(cores.max(1));
    CoreId::try_from(spread).expect("below the number of cores")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let large = [Bytes::from(vec![1; 20_000]), Bytes::from(vec![2; 30_000])];
        let small = Crossing { event: 3, body: Body::Payload(b"payload") };
        let shared = |n: usize| Crossing { event: 4, body: Body::Frame(&large[n]) };
        let mut history = History::default();
        history.push(7, &small);
        history.push(8, &shared(1));
        let handoffs = [
            Handoff::Number { topic: "t", event: 3, payload: b"payload" },
            Handoff::Numbered { topic: "", topic_seq: 9, event: shared(0), receipt: None },
            Handoff::Deliver { to: Receivers::All, event: small, receipt: Some(4) },
            Handoff::Deliver { to: Receivers::Room(RoomKind::User, "u"), event: small, receipt: None },
            Handoff::Delivered { receipt: 4 },
            Handoff::Interest { topic: "t" },
            Handoff::Interested { topic: "t", topic_seq: 8, history: history.past() },
            Handoff::Disinterest { topic: "t" },
            Handoff::List,
            Handoff::Listed { rows: Some("row") },
            Handoff::Listed { rows: None },
            Handoff::Hold,
            Handoff::Release,
            Handoff::Flush { round: 2 },
            Handoff::Numbered { topic: "last", topic_seq: 1, event: shared(1), receipt: Some(1) },
        ];
        let mut batch = Batch::default();
        // Again in the same memory.
        for _ in 0..2 {
            for handoff in &handoffs {
                batch.push(handoff);
            }
            assert!(batch.weight() > 50_000);
            for handoff in &handoffs {
                assert_eq!(batch.take().as_ref(), Some(handoff));
            }
            assert_eq!(batch.take(), None);
            batch.clear();
        }
        assert_eq!(history.past().collect::<Vec<_>>(), [(7, small), (8, shared(1))]);
    }

    #[test]
    fn batches_are_filled_in_order_and_come_back() {
        let mut outgoing = Outgoing::default();
        let payload = vec![0; BATCH_BYTES / 2];
        for receipt in 1..=5 {
            let event = Crossing { event: 0, body: Body::Payload(&payload) };
            outgoing.push(&Handoff::Deliver { to: Receivers::All, event, receipt: Some(receipt) });
        }
        let (mut expected, mut batches) = (1, 0);
        while let Some(mut batch) = outgoing.take() {
            batches += 1;
            while let Some(handoff) = batch.take() {
                assert!(matches!(handoff, Handoff::Deliver { receipt: Some(n), .. } if n == expected));
                expected += 1;
            }
            outgoing.give_back(batch);
        }
        assert_eq!((expected, batches, outgoing.bytes()), (6, 3, 0));
        assert_eq!(outgoing.spare.len(), 3);
    }
}
