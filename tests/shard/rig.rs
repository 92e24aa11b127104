//! A shard without a kernel: connections are queues of bytes, time is a number.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use seqcast::config::{Config, Identity};
use seqcast::schema::Schema;
use seqcast::shard::admit::Admission;
use seqcast::shard::census::Census;
use seqcast::shard::step::{
    Answer, Ask, Command, ConnId, CoreId, Input, Instant, Loss, Output, Peer, RoomKind, Target,
};
use seqcast::shard::{Setup, Shard};
use seqcast::wire::control::{self, Encoder};
use seqcast::wire::envelope;
use seqcast::wire::frame::{self, Bounds, Decoder, Item, Role};

/// What a client saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// An event with its number (0 = none) and its `bidSize`.
    Event(u64, i64),
    Resumed(bool, i64),
    Pong(i64),
    Other(&'static str),
    Close(u16),
}

pub struct Rig {
    pub shard: Shard,
    pub now: u64,
    pub outputs: Vec<Output>,
    pub peers: HashMap<ConnId, Wire>,
    pub schema: Arc<Schema>,
    next: u32,
    ticket: u64,
}

/// The client's end of a connection.
pub struct Wire {
    /// Bytes that the kernel takes before it refuses.
    pub room: usize,
    pub blocked: bool,
    pub finished: bool,
    /// Bytes that the peer's TCP has not acknowledged.
    unacked: u32,
    bytes: Vec<u8>,
    head: bool,
    decoder: Decoder,
}

pub fn config() -> Config {
    let mut config = Config::default();
    config.auth.identity = ["u1", "u2"].map(pinned).to_vec();
    config.auth.identity.push(Identity {
        token: "any".into(),
        topics: vec!["*".into()],
        ..Identity::default()
    });
    config
}

fn pinned(id: &str) -> Identity {
    let topics = vec!["*".into()];
    Identity { token: format!("tok-{id}"), id: Some(id.into()), topics, ..Identity::default() }
}

impl Rig {
    pub fn new(config: Config) -> Rig {
        Rig::of(config, 0, 1, 7, 1_000_000)
    }

    /// One core of several.
    pub fn of(config: Config, core: CoreId, cores: CoreId, seed: u64, now: u64) -> Rig {
        let mut rig = Rig::sharing(config, core, cores, seed, Arc::new(Census::new(cores)), 1 << 20);
        rig.now = now;
        rig
    }

    /// One core of several that share a census; so many bytes may wait for another core.
    pub fn sharing(
        config: Config,
        core: CoreId,
        cores: CoreId,
        seed: u64,
        census: Arc<Census>,
        staged_bytes: usize,
    ) -> Rig {
        let now = 1_000_000;
        let schema = Arc::new(Schema::builtin());
        let admission = Arc::new(Admission::new(&config.auth, config.limits.rate));
        let setup = Setup {
            core,
            cores,
            seed,
            config: Arc::new(config),
            schema: schema.clone(),
            admission,
            wall_ms: 1_700_000_000_000,
            census,
            staged_bytes,
        };
        let shard = Shard::new(setup);
        let (outputs, peers) = (Vec::new(), HashMap::new());
        Rig { shard, now, outputs, peers, schema, next: 0, ticket: 0 }
    }

    pub fn input(&mut self, input: Input<'_>) {
        self.shard.handle(Instant(self.now), input);
        self.pump();
    }

    pub fn pass(&mut self, ms: u64) {
        self.now += ms * 1_000_000;
        self.input(Input::Tick);
    }

    /// Outputs, then sends, until nothing moves.
    pub fn pump(&mut self) {
        loop {
            while let Some(output) = self.shard.poll() {
                if let Output::Finish { conn, .. } | Output::Abort { conn, .. } = &output {
                    self.peers.get_mut(conn).expect("known").finished = true;
                }
                if let Output::AskAcknowledged { conn, session, most } = output {
                    if u64::from(self.peers[&conn].unacked) <= most {
                        self.shard.handle(Instant(self.now), Input::Acknowledged { session });
                    }
                    continue;
                }
                self.outputs.push(output);
            }
            let Some(conn) = self.shard.next_dirty() else { break };
            self.send(conn);
        }
        assert_eq!(self.shard.forgotten(), None, "it has something to send, and is on no list");
        self.shard.check_invariants();
    }

    fn send(&mut self, conn: ConnId) {
        let mut scratch = vec![0; 64 * 1024];
        let filled = self.shard.fill(conn, &mut scratch);
        let mut bytes = scratch[..filled.bytes].to_vec();
        bytes.extend_from_slice(filled.body.as_deref().unwrap_or(&[]));
        let wire = self.peers.get_mut(&conn).expect("known");
        let taken = bytes.len().min(wire.room);
        wire.room -= taken;
        wire.bytes.extend_from_slice(&bytes[..taken]);
        wire.blocked = taken < bytes.len();
        let refused = wire.blocked;
        self.shard.sent(Instant(self.now), conn, taken, refused);
    }

    /// A socket that has sent nothing.
    pub fn accept(&mut self) -> ConnId {
        let conn = ConnId { index: self.next, generation: self.next };
        self.next += 1;
        let wire = Wire {
            room: usize::MAX,
            blocked: false,
            finished: false,
            unacked: 0,
            bytes: Vec::new(),
            head: false,
            decoder: Decoder::new(Role::Client),
        };
        self.peers.insert(conn, wire);
        self.input(Input::Opened { conn, peer: Peer::Unix, is_shared: false });
        conn
    }

    pub fn connect(&mut self, token: &str) -> ConnId {
        let conn = self.accept();
        let request = format!(
            "GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
             Authorization: Bearer {token}\r\n\r\n"
        );
        self.bytes(conn, request.as_bytes());
        conn
    }

    /// A client that has said hello, without a position, and subscribed.
    pub fn member(&mut self, token: &str, topic: &str) -> ConnId {
        let conn = self.connect(token);
        self.hello(conn, 0);
        self.subscribe(conn, topic);
        conn
    }

    pub fn bytes(&mut self, conn: ConnId, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        self.input(Input::Received { conn, bytes: &mut bytes });
    }

    pub fn message(&mut self, conn: ConnId, message: &[u8]) {
        let mut bytes = Vec::new();
        frame::push_masked_frame(&mut bytes, frame::BINARY, [1, 2, 3, 4], message);
        self.bytes(conn, &bytes);
    }

    pub fn control(&mut self, conn: ConnId, encode: impl for<'e> FnOnce(&'e mut Encoder) -> &'e [u8]) {
        let mut encoder = Encoder::new();
        let message = encode(&mut encoder).to_vec();
        self.message(conn, &message);
    }

    pub fn hello(&mut self, conn: ConnId, last_seq: i64) {
        self.control(conn, |e| e.hello(&[], last_seq));
    }

    pub fn subscribe(&mut self, conn: ConnId, topic: &str) {
        self.control(conn, |e| e.subscribe(topic));
    }

    pub fn resume(&mut self, conn: ConnId, last_seq: i64) {
        self.control(conn, |e| e.resume(last_seq));
    }

    pub fn ask(&mut self, ask: Ask) -> Answer {
        self.ticket += 1;
        let ticket = self.ticket;
        self.input(Input::Command(Command { ticket, ask }));
        let at =
            self.outputs.iter().position(|o| matches!(o, Output::Reply(reply) if reply.ticket == ticket));
        match self.outputs.remove(at.expect("one core answers at once")) {
            Output::Reply(reply) => reply.answer,
            _ => unreachable!(),
        }
    }

    /// Asks what may be answered later.
    pub fn order(&mut self, ask: Ask) {
        self.ticket += 1;
        self.input(Input::Command(Command { ticket: self.ticket, ask }));
    }

    /// Orders a drain that may take so long; it is answered at its end.
    pub fn drain(&mut self, ms: u64) {
        let deadline = Instant(self.now + ms * 1_000_000);
        self.order(Ask::Drain { deadline });
    }

    pub fn publish_padded(&mut self, topic: &str, n: i64, pad: usize) {
        let ask = self.quote(Target::Room(RoomKind::Topic, topic.into()), n, pad);
        self.ask(ask);
    }

    /// To publish a quote with this number.
    pub fn quote(&self, target: Target, n: i64, pad: usize) -> Ask {
        let event = self.schema.by_name("quote").expect("built in");
        let symbol = "x".repeat(pad);
        let data = serde_json::json!({"symbol": symbol, "bid": 1.0, "ask": 2.0, "bidSize": n, "askSize": 4, "ts": 5});
        let mut payload = Vec::new();
        self.schema.encode_json(event, &data, &mut payload).expect("a quote");
        Ask::Publish { event, payload: Bytes::from(payload), target }
    }

    /// A quote with this number as the message of a client.
    pub fn client_quote(&self, n: i64) -> Vec<u8> {
        let Ask::Publish { event, payload, .. } = self.quote(Target::All, n, 0) else { unreachable!() };
        let mut message = Vec::new();
        envelope::encode(&mut message, self.schema.id(event), 0, 0);
        message.extend_from_slice(&payload);
        message
    }

    pub fn publish(&mut self, topic: &str, range: std::ops::RangeInclusive<i64>) {
        for n in range {
            self.publish_padded(topic, n, 0);
        }
    }

    /// The kernel takes so many bytes more.
    pub fn allow(&mut self, conn: ConnId, bytes: usize) {
        let wire = self.peers.get_mut(&conn).expect("known");
        wire.room = wire.room.saturating_add(bytes);
        if std::mem::take(&mut wire.blocked) {
            self.input(Input::Writable { conn });
        }
    }

    pub fn stall(&mut self, conn: ConnId, room: usize) {
        self.peers.get_mut(&conn).expect("known").room = room;
    }

    pub fn lose(&mut self, conn: ConnId, unacked: u32) {
        self.peers.get_mut(&conn).expect("known").unacked = unacked;
        self.input(Input::Lost { conn, unacked: Some(unacked), loss: Loss::Error });
    }

    /// What arrived, as it is.
    pub fn text(&self, conn: ConnId) -> String {
        String::from_utf8_lossy(&self.peers[&conn].bytes).into_owned()
    }

    /// What arrived since the last look, without the greeting.
    pub fn seen(&mut self, conn: ConnId) -> Vec<Seen> {
        let schema = self.schema.clone();
        let wire = self.peers.get_mut(&conn).expect("known");
        let mut bytes = std::mem::take(&mut wire.bytes);
        if !wire.head {
            let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a response") + 4;
            bytes.drain(..end);
            wire.head = true;
        }
        let mut seen = VecDeque::new();
        let mut input = &mut bytes[..];
        let bounds = Bounds { message_bytes: 1 << 24, message_frames: seqcast::limits::MESSAGE_FRAMES };
        while let Some(item) = wire.decoder.next(&mut input, &bounds).expect("the server keeps the protocol")
        {
            match item {
                Item::Message { payload, .. } => seen.push_back(read(&schema, payload)),
                Item::Close { code, .. } => seen.push_back(Seen::Close(code.unwrap_or(0))),
                Item::Ping(_) => seen.push_back(Seen::Other("ping")),
                Item::Pong(_) => seen.push_back(Seen::Other("pong")),
            }
        }
        seen.into_iter().filter(|s| !matches!(s, Seen::Other("hello" | "welcome"))).collect()
    }
}

fn read(schema: &Schema, message: &[u8]) -> Seen {
    let header = envelope::parse(message).expect("an envelope");
    let payload = &message[envelope::HEADER_BYTES..];
    if let Some(name) = envelope::control_name(header.id) {
        assert_eq!((header.flags, header.seq), (0, 0), "controls are never stamped");
        return match control::decode(header.id, payload).expect("well formed") {
            control::Control::Resumed { ok, from } => Seen::Resumed(ok, from),
            control::Control::Pong { ts } => Seen::Pong(ts),
            _ => Seen::Other(name),
        };
    }
    let event = schema.by_id(header.id).expect("a known event");
    let data = schema.decode_json(event, payload).expect("well formed");
    Seen::Event(header.seq, data["bidSize"].as_i64().expect("a quote"))
}

/// Events with rising numbers, from (seq, n) on.
pub fn events(seqs: std::ops::RangeInclusive<u64>, ns: std::ops::RangeInclusive<i64>) -> Vec<Seen> {
    seqs.zip(ns).map(|(seq, n)| Seen::Event(seq, n)).collect()
}
