//! The event trace: the newest publishes and accepted client events, in a ring whose rows are reused.

use super::session::ShownId;
use super::step::{Direction, EventIndex, Instant, TracePage, TraceRow};
use crate::schema::Schema;

/// What a row is about.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// When it happened.
    pub at: Instant,
    /// Unix milliseconds.
    pub ts: u64,
    /// Direction.
    pub direction: Direction,
    /// Event.
    pub event: EventIndex,
    /// Bytes of the whole envelope.
    pub bytes: usize,
    /// Kind of target; none for a client's event.
    pub target: Option<&'static str>,
    /// What it is about more closely.
    pub key: Key<'a>,
    /// Payload, of which the configured number of bytes is kept.
    pub payload: &'a [u8],
}

/// The target or the sender of an event.
#[derive(Debug, Clone, Copy)]
pub enum Key<'a> {
    /// Topic, group or user; "" = none.
    Name(&'a str),
    /// A client.
    Client(ShownId<'a>),
}

#[derive(Debug)]
struct Row {
    at: Instant,
    ts: u64,
    direction: Direction,
    event: EventIndex,
    bytes: u64,
    target: Option<&'static str>,
    name: String,
    /// An id that is written only when somebody looks.
    anonymous: Option<ShownId<'static>>,
    payload: Vec<u8>,
}

/// The ring.
#[derive(Debug)]
pub struct Trace {
    rows: Vec<Row>,
    /// Place of the oldest row once the ring is full.
    oldest: usize,
    capacity: usize,
    capture: usize,
    total: u64,
}

impl Trace {
    /// `capacity` rows (0 = off), `capture` payload bytes each.
    pub fn new(capacity: usize, capture: usize) -> Trace {
        Trace { rows: Vec::new(), oldest: 0, capacity, capture, total: 0 }
    }

    /// Adds a row; the oldest one makes room.
    pub fn record(&mut self, record: &Record<'_>) {
        if self.capacity == 0 {
            return;
        }
        self.total += 1;
        if self.rows.len() < self.capacity {
            let (name, payload) = (String::new(), Vec::new());
            let (at, ts, direction) = (record.at, 0, record.direction);
            let (target, anonymous) = (None, None);
            self.rows.push(Row { at, ts, direction, event: 0, bytes: 0, target, name, anonymous, payload });
        } else {
            self.oldest = (self.oldest + 1) % self.capacity;
        }
        let newest = (self.oldest + self.rows.len() - 1) % self.capacity;
        let row = &mut self.rows[newest];
        row.at = record.at;
        row.ts = record.ts;
        row.direction = record.direction;
        row.event = record.event;
        row.bytes = record.bytes as u64;
        row.target = record.target;
        row.name.clear();
        row.anonymous = None;
        match record.key {
            Key::Name(name) | Key::Client(ShownId::Pinned(name)) => row.name.push_str(name),
            Key::Client(ShownId::Anonymous { core, session, check }) => {
                row.anonymous = Some(ShownId::Anonymous { core, session, check });
            }
        }
        row.payload.clear();
        row.payload.extend_from_slice(&record.payload[..record.payload.len().min(self.capture)]);
    }

    /// Forgets the rows, not their total.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.oldest = 0;
    }

    /// All rows, newest first.
    pub fn page(&self, schema: &Schema) -> TracePage {
        let newest_first = (0..self.rows.len()).rev().map(|i| self.at(i));
        let rows = newest_first.map(|row| self.show(schema, row)).collect();
        TracePage { capacity: self.capacity, total: self.total, rows }
    }

    fn at(&self, i: usize) -> &Row {
        &self.rows[(self.oldest + i) % self.rows.len()]
    }

    fn show(&self, schema: &Schema, row: &Row) -> TraceRow {
        TraceRow {
            at: row.at,
            ts: row.ts,
            direction: row.direction,
            name: schema.name(row.event).into(),
            bytes: row.bytes,
            target: row.target,
            key: (row.target != Some("broadcast")).then(|| match row.anonymous {
                Some(id) => id.to_string().into(),
                None => row.name.as_str().into(),
            }),
            payload: (self.capture > 0).then(|| row.payload.clone()),
        }
    }
}
