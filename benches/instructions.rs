//! The workload whose instructions `scripts/instructions.py` counts: one shard in its steady state, driven as the
//! driver drives it. Everything that may grow has grown before the counted events begin.
//!
//! usage: instructions command|client SUBSCRIBERS EVENTS_A_TURN EVENTS
//!
//! Each `counted_` function is a switch: the counter runs while its name is on the stack and was asked for. None of
//! them calls another.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use seqcast::config::{Config, InboundRule};
use seqcast::limits::SEND_CHUNK;
use seqcast::schema::Schema;
use seqcast::shard::admit::Admission;
use seqcast::shard::census::Census;
use seqcast::shard::step::{Ask, Command, ConnId, Input, Instant, Peer, RoomKind, Target};
use seqcast::shard::{Setup, Shard};
use seqcast::wire::control::Encoder;
use seqcast::wire::envelope;
use seqcast::wire::frame;

/// Events that a session keeps: few, so that all rings are full soon. What an event costs does not depend on it.
const HISTORY: u32 = 32;
/// Events before the counted ones.
const WARM_UP: u64 = 2 * HISTORY as u64;

/// A publish: one step and its outputs.
#[inline(never)]
fn counted_publish(shard: &mut Shard, now: Instant, input: Input<'_>) {
    shard.handle(now, input);
    while shard.poll().is_some() {}
}

/// The next connection with something to send.
#[inline(never)]
fn counted_next(shard: &mut Shard) -> Option<ConnId> {
    shard.next_dirty()
}

/// What the next sends need is read.
#[inline(never)]
fn counted_ahead(shard: &Shard) {
    shard.look_ahead();
}

/// The copy into scratch.
#[inline(never)]
fn counted_fill(shard: &mut Shard, conn: ConnId, scratch: &mut [u8]) -> usize {
    shard.fill(conn, scratch).bytes
}

/// The end of a send.
#[inline(never)]
fn counted_sent(shard: &mut Shard, now: Instant, conn: ConnId, bytes: usize) {
    shard.sent(now, conn, bytes, false);
}

/// What the sends of a chunk left over.
#[inline(never)]
fn counted_settle(shard: &mut Shard) {
    while shard.poll().is_some() {}
}

/// What comes before the counted events goes through `step` and `flush`, which nobody counts. A body equal to that of
/// a counted function would be merged with it.
#[inline(never)]
fn step(shard: &mut Shard, now: Instant, input: Input<'_>) {
    shard.handle(now, input);
    while let Some(output) = shard.poll() {
        drop(black_box(output));
    }
}

fn flush(shard: &mut Shard, now: Instant, scratch: &mut [u8]) {
    while let Some(conn) = shard.next_dirty() {
        let bytes = shard.fill(conn, scratch).bytes;
        shard.sent(now, conn, bytes, false);
        while shard.poll().is_some() {}
    }
}

/// Who publishes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Publisher {
    /// The control thread.
    Command,
    /// A client, by an event of the allow list.
    Client,
}

struct Bench {
    shard: Shard,
    now: Instant,
    scratch: Vec<u8>,
    publisher: Publisher,
    /// The connection that publishes.
    author: ConnId,
    payload: Vec<u8>,
    /// The payload as a client sends it, and where it is laid out for the shard, which unmasks in place.
    message: Vec<u8>,
    buffer: Vec<u8>,
    event: u16,
    /// Whether what is done now is counted.
    counts: bool,
    /// Counted frames that left.
    frames: u64,
    /// Connections that are sent to together, and their bytes.
    chunk: Vec<(ConnId, usize)>,
}

impl Bench {
    fn new(publisher: Publisher, subscribers: u32) -> Bench {
        let mut config = Config::default();
        config.resume.history_size = HISTORY;
        config.inbound.insert("quote".to_owned(), InboundRule::Topic("t".to_owned()));
        let schema = Schema::builtin();
        let event = schema.by_name("quote").expect("built in");
        let (payload, message) = quote(&schema, event);
        let setup = Setup {
            core: 0,
            cores: 1,
            seed: 7,
            admission: Arc::new(Admission::new(&config.auth, config.limits.rate)),
            config: Arc::new(config),
            schema: Arc::new(schema),
            wall_ms: 0,
            census: Arc::new(Census::new(1)),
            staged_bytes: 1 << 20,
        };
        let author = ConnId { index: 0, generation: 1 };
        let buffer = message.clone();
        let (shard, now, scratch) = (Shard::new(setup), Instant(0), vec![0; 64 * 1024]);
        let counts = false;
        let mut bench = Bench {
            shard,
            now,
            scratch,
            publisher,
            author,
            payload,
            message,
            buffer,
            event,
            counts,
            frames: 0,
            chunk: Vec::new(),
        };
        for index in 0..=subscribers {
            bench.client(ConnId { index, generation: 1 });
        }
        for index in 1..=subscribers {
            bench.say(ConnId { index, generation: 1 }, |e| e.subscribe("t"));
        }
        flush(&mut bench.shard, bench.now, &mut bench.scratch);
        bench
    }

    /// A client that is through the upgrade, has said hello and taken what it was sent.
    fn client(&mut self, conn: ConnId) {
        step(&mut self.shard, self.now, Input::Opened { conn, peer: Peer::Unix, is_shared: false });
        let mut request = b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            .to_vec();
        step(&mut self.shard, self.now, Input::Received { conn, bytes: &mut request });
        self.say(conn, |e| e.hello(&[], 0));
        flush(&mut self.shard, self.now, &mut self.scratch);
    }

    fn say(&mut self, conn: ConnId, write: impl FnOnce(&mut Encoder) -> &[u8]) {
        let mut encoder = Encoder::new();
        let mut bytes = masked(write(&mut encoder));
        step(&mut self.shard, self.now, Input::Received { conn, bytes: &mut bytes });
    }

    fn publish(&mut self) {
        self.now = self.now + Duration::from_micros(10);
        let publish = if self.counts { counted_publish } else { step };
        match self.publisher {
            Publisher::Command => {
                let ask = Ask::Publish {
                    event: self.event,
                    payload: self.payload.clone().into(),
                    target: Target::Room(RoomKind::Topic, "t".into()),
                };
                publish(&mut self.shard, self.now, Input::Command(Command { ticket: 1, ask }));
            }
            Publisher::Client => {
                self.buffer.copy_from_slice(&self.message);
                let bytes = &mut self.buffer[..];
                publish(&mut self.shard, self.now, Input::Received { conn: self.author, bytes });
            }
        }
    }

    fn send(&mut self) {
        if !self.counts {
            return flush(&mut self.shard, self.now, &mut self.scratch);
        }
        let frame_bytes = (self.message.len() - 4) as u64;
        loop {
            self.chunk.clear();
            counted_ahead(&self.shard);
            while self.chunk.len() < SEND_CHUNK
                && let Some(conn) = counted_next(&mut self.shard)
            {
                let bytes = counted_fill(&mut self.shard, conn, &mut self.scratch);
                self.chunk.push((conn, bytes));
                self.frames += bytes as u64 / frame_bytes;
            }
            if self.chunk.is_empty() {
                return;
            }
            for &(conn, bytes) in &self.chunk {
                counted_sent(&mut self.shard, self.now, conn, bytes);
            }
            counted_settle(&mut self.shard);
        }
    }

    /// Events, so many in a turn.
    fn run(&mut self, events: u64, a_turn: u64) {
        for n in 1..=events {
            self.publish();
            if n % a_turn == 0 {
                self.send();
            }
        }
    }
}

fn masked(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::push_masked_frame(&mut bytes, frame::BINARY, [3, 1, 4, 1], message);
    bytes
}

/// A quote: its payload, and as a client sends it.
fn quote(schema: &Schema, event: u16) -> (Vec<u8>, Vec<u8>) {
    let data =
        serde_json::json!({"symbol": "ACME", "bid": 9.5, "ask": 9.6, "bidSize": 7, "askSize": 8, "ts": 9});
    let mut payload = Vec::new();
    schema.encode_json(event, &data, &mut payload).expect("a quote");
    let mut message = Vec::new();
    envelope::encode(&mut message, schema.id(event), 0, 0);
    message.extend_from_slice(&payload);
    (payload, masked(&message))
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let [publisher, subscribers, a_turn, events] = &args[..] else {
        eprintln!("usage: instructions command|client SUBSCRIBERS EVENTS_A_TURN EVENTS");
        std::process::exit(2);
    };
    let publisher = if publisher == "client" { Publisher::Client } else { Publisher::Command };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (subscribers, a_turn, events) = (number(subscribers), number(a_turn), number(events));
    assert!(events % a_turn == 0, "whole turns");
    let mut bench = Bench::new(publisher, subscribers as u32);
    bench.run(WARM_UP, a_turn);
    bench.counts = true;
    bench.run(events, a_turn);
    assert_eq!(bench.frames, events * subscribers, "every subscriber got every event");
    println!("{}", bench.frames);
}
