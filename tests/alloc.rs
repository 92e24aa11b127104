//! What a shard takes of the heap, by a counting allocator around one that is driven as the driver drives it: nothing
//! in its steady state with a thousand subscribers, when everything that may grow has grown; and for each idle
//! connection no more than `limits` says, which is what the sum of `seqcast check` is made of.

#![allow(unsafe_code)]

use seqcast::config::{Config, Identity, InboundRule};
use seqcast::limits::{CONNECTION_BYTES, KNOWN_BYTES, PARKED_BYTES, SOCKET_BYTES, UNFINISHED_BYTES};
use seqcast::schema::Schema;
use seqcast::shard::admit::Admission;
use seqcast::shard::census::Census;
use seqcast::shard::step::{ConnId, CoreId, Input, Instant, Loss, Output, Peer};
use seqcast::shard::{Setup, Shard, home_of_topic};
use seqcast::wire::control::{self, Control, Encoder};
use seqcast::wire::envelope;
use seqcast::wire::frame::{self, Bounds, Decoder};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

const SUBSCRIBERS: u32 = 1000;
const EVENTS: u64 = 10_000;
/// Events before the counting, more than any ring holds.
const WARM_UP: u64 = 2_000;
/// Events that arrive in one turn.
const TURN: u64 = 16;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting what this thread takes.
struct Counting;

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

/// Bytes that a block takes with malloc's own: a word more, in steps of 16, 32 at least.
fn chunk(size: usize) -> u64 {
    (size as u64 + 8).next_multiple_of(16).max(32)
}

fn take(size: usize) {
    TAKEN.set(TAKEN.get().wrapping_add(chunk(size)));
}

/// A block of another thread may end in this one: the difference of two readings counts, and only that.
fn give(size: usize) {
    TAKEN.set(TAKEN.get().wrapping_sub(chunk(size)));
}

// SAFETY: every call is handed to the system's allocator with the arguments it came with; counting does not allocate,
// because the counters are constant-initialised cells of the thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        take(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        take(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        give(layout.size());
        take(size);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`; the block came from this allocator, which is
        // the system's.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`; the block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One shard and the little of a driver that it needs.
struct Core {
    shard: Shard,
    now: Instant,
    scratch: Vec<u8>,
    /// A connection whose socket takes nothing.
    stalled: Option<ConnId>,
    /// Frames that left, less the handshake.
    sent_bytes: u64,
}

impl Core {
    fn alone(config: Config) -> Core {
        Core::new(config, 0, &Arc::new(Census::new(1)), 1)
    }

    fn new(config: Config, core: CoreId, census: &Arc<Census>, cores: CoreId) -> Core {
        let schema = Schema::builtin();
        let admission = Admission::new(&config.auth, config.limits.rate);
        let setup = Setup {
            core,
            cores,
            seed: 7,
            config: Arc::new(config),
            schema: Arc::new(schema),
            admission: Arc::new(admission),
            wall_ms: 0,
            census: Arc::clone(census),
            staged_bytes: 1 << 20,
        };
        Core {
            shard: Shard::new(setup),
            now: Instant(0),
            scratch: vec![0; 64 * 1024],
            stalled: None,
            sent_bytes: 0,
        }
    }

    fn step(&mut self, input: Input<'_>) {
        self.now = self.now + Duration::from_micros(10);
        self.shard.handle(self.now, input);
        self.outputs();
    }

    fn outputs(&mut self) {
        while let Some(output) = self.shard.poll() {
            match output {
                Output::Established { .. } | Output::Pause { .. } | Output::Resume { .. } => {}
                other => panic!("not expected here: {other:?}"),
            }
        }
    }

    /// The end of a turn: one send for each connection that has something.
    fn flush(&mut self) {
        while let Some(conn) = self.shard.next_dirty() {
            let filled = self.shard.fill(conn, &mut self.scratch);
            assert!(filled.body.is_none(), "small events are copied");
            let refuses = self.stalled == Some(conn);
            let written = if refuses { 0 } else { filled.bytes };
            self.sent_bytes += written as u64;
            self.shard.sent(self.now, conn, written, refuses);
            self.outputs();
        }
    }

    /// A client that is through the upgrade, has said hello and taken what it was sent.
    fn client(&mut self, index: u32) -> ConnId {
        self.client_with(ConnId { index, generation: 1 }, "", 0)
    }

    /// Such a client with these header lines, which has everything up to a position.
    fn client_with(&mut self, conn: ConnId, headers: &str, last_seq: i64) -> ConnId {
        self.step(Input::Opened { conn, peer: Peer::Unix, is_shared: false });
        let request = format!(
            "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{headers}\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        self.step(Input::Received { conn, bytes: &mut request.into_bytes() });
        self.say(conn, |e| e.hello(&[], last_seq));
        self.flush();
        conn
    }

    fn say(&mut self, conn: ConnId, write: impl FnOnce(&mut Encoder) -> &[u8]) {
        let mut encoder = Encoder::new();
        let mut bytes = masked(write(&mut encoder));
        self.step(Input::Received { conn, bytes: &mut bytes });
    }
}

fn masked(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::push_masked_frame(&mut bytes, frame::BINARY, [3, 1, 4, 1], message);
    bytes
}

/// A quote as a client sends it.
fn quote() -> Vec<u8> {
    let schema = Schema::builtin();
    let event = schema.by_name("quote").expect("built in");
    let data =
        serde_json::json!({"symbol": "ACME", "bid": 9.5, "ask": 9.6, "bidSize": 7, "askSize": 8, "ts": 9});
    let mut payload = Vec::new();
    schema.encode_json(event, &data, &mut payload).expect("a quote");
    let mut message = Vec::new();
    envelope::encode(&mut message, schema.id(event), 0, 0);
    message.extend_from_slice(&payload);
    masked(&message)
}

/// Publishes by a client of the same core, a few events a turn.
fn publish(core: &mut Core, publisher: ConnId, template: &[u8], buffer: &mut [u8], events: u64) {
    for n in 0..events {
        buffer.copy_from_slice(template);
        core.step(Input::Received { conn: publisher, bytes: buffer });
        if n % TURN == TURN - 1 || core.shard.wants_flush() {
            core.flush();
        }
    }
    core.flush();
}

/// Allocations in the steady state, with these settings and perhaps one reader that takes nothing.
fn steady_state(set: impl FnOnce(&mut Config), stalled_reader: bool) -> u64 {
    let mut config = Config::default();
    config.inbound.insert("quote".to_owned(), InboundRule::Topic("t".to_owned()));
    set(&mut config);
    let mut core = Core::alone(config);
    let publisher = core.client(0);
    for index in 1..=SUBSCRIBERS {
        let conn = core.client(index);
        core.say(conn, |e| e.subscribe("t"));
        if stalled_reader && index == SUBSCRIBERS {
            core.stalled = Some(conn);
        }
    }
    core.flush();
    let template = quote();
    let mut buffer = template.clone();
    publish(&mut core, publisher, &template, &mut buffer, WARM_UP);

    let (allocations, sent) = (ALLOCATIONS.get(), core.sent_bytes);
    publish(&mut core, publisher, &template, &mut buffer, EVENTS);
    let allocations = ALLOCATIONS.get() - allocations;

    let readers = u64::from(SUBSCRIBERS) - u64::from(stalled_reader);
    let frame_bytes = (template.len() - 4) as u64;
    assert_eq!(core.sent_bytes - sent, EVENTS * readers * frame_bytes, "every reader got every event");
    if stalled_reader {
        assert!(core.shard.counters().dropped_oldest > EVENTS / 2, "the stalled reader dropped nothing");
    }
    allocations
}

#[test]
fn with_resume() {
    assert_eq!(steady_state(|_| {}, false), 0);
}

#[test]
fn with_resume_and_topic_history() {
    assert_eq!(steady_state(|config| config.replay.history_size = 64, false), 0);
}

#[test]
fn without_resume() {
    assert_eq!(steady_state(|config| config.resume.enabled = false, false), 0);
}

#[test]
fn with_a_reader_that_takes_nothing() {
    assert_eq!(steady_state(|config| config.replay.history_size = 64, true), 0);
}

/// Hands over what two cores have for each other, until there is nothing.
fn exchange(cores: &mut [Core; 2]) {
    let mut is_over = false;
    while !is_over {
        is_over = true;
        for from in [0, 1] {
            let to = 1 - from;
            while let Some(mut batch) = cores[from].shard.take_batch(to as CoreId) {
                is_over = false;
                while let Some(handoff) = batch.take() {
                    let from = from as CoreId;
                    cores[to].step(Input::Handoff { from, handoff });
                    if cores[to].shard.wants_flush() {
                        cores[to].flush();
                    }
                }
                cores[from].shard.return_batch(to as CoreId, batch);
            }
        }
    }
}

/// A client publishes on a core that is not the home of the topic; half of the subscribers are on each.
#[test]
fn across_cores() {
    let mut config = Config::default();
    config.inbound.insert("quote".to_owned(), InboundRule::Topic("t".to_owned()));
    config.replay.history_size = 64;
    let census = Arc::new(Census::new(2));
    let mut cores = [0, 1].map(|core| Core::new(config.clone(), core, &census, 2));
    let publishers = [0, 1].map(|core| cores[core].client(0));
    for index in 1..=SUBSCRIBERS / 2 {
        for core in [0, 1] {
            let conn = cores[core].client(index);
            cores[core].say(conn, |e| e.subscribe("t"));
            exchange(&mut cores);
        }
    }
    let away = 1 - usize::from(home_of_topic(7, 2, "t"));
    let template = quote();
    let mut buffer = template.clone();
    let mut publish = |cores: &mut [Core; 2], events: u64| {
        for n in 0..events {
            buffer.copy_from_slice(&template);
            cores[away].step(Input::Received { conn: publishers[away], bytes: &mut buffer });
            if n % TURN == TURN - 1 {
                exchange(cores);
                cores.iter_mut().for_each(Core::flush);
            }
        }
    };
    publish(&mut cores, WARM_UP);
    let (before, sent) = (ALLOCATIONS.get(), cores[0].sent_bytes + cores[1].sent_bytes);
    publish(&mut cores, EVENTS);
    let allocations = ALLOCATIONS.get() - before;
    let frame_bytes = (template.len() - 4) as u64;
    let sent = cores[0].sent_bytes + cores[1].sent_bytes - sent;
    assert_eq!(sent, EVENTS * u64::from(SUBSCRIBERS) * frame_bytes, "every reader got every event");
    assert_eq!(allocations, 0);
}

/// Heap bytes of one more: half of so many are there already. Tables that grow by doubling are as full as they get.
fn each(mut add: impl FnMut(u32)) -> u64 {
    const MANY: u32 = 4000;
    (0..MANY / 2).for_each(&mut add);
    let before = TAKEN.get();
    (MANY / 2..MANY).for_each(&mut add);
    TAKEN.get().wrapping_sub(before) / u64::from(MANY / 2)
}

/// A bound is kept, and at most a tenth of it is air.
#[track_caller]
fn assert_close(measured: u64, bound: u64) {
    assert!((bound * 9 / 10..=bound).contains(&measured), "{measured} bytes each, the bound is {bound}");
}

#[test]
fn an_idle_connection_takes_what_its_bound_says() {
    let mut core = Core::alone(Config::default());
    let idle = each(|index| {
        let conn = core.client(index);
        core.say(conn, |e| e.subscribe("t"));
    });
    assert_close(idle + SOCKET_BYTES, CONNECTION_BYTES);
}

/// What was said in it before leaves nothing behind.
#[test]
fn a_connection_that_has_been_busy_takes_no_more() {
    let mut core = Core::alone(Config::default());
    let busy = each(|index| {
        let conn = core.client(index);
        let mut bytes = masked(&quote());
        let (first, second) = bytes.split_at_mut(9);
        core.step(Input::Received { conn, bytes: first });
        core.step(Input::Received { conn, bytes: second });
        for topic in ["t", "u", "v"] {
            core.say(conn, |e| e.subscribe(topic));
        }
        for topic in ["u", "t"] {
            core.say(conn, |e| e.unsubscribe(topic));
        }
        core.flush();
    });
    assert_close(busy + SOCKET_BYTES, CONNECTION_BYTES);
}

#[test]
fn a_position_and_an_unfinished_message_take_what_their_bounds_say() {
    let mut core = Core::alone(Config::default());
    let known = each(|index| {
        let conn = core.client_with(ConnId { index, generation: 1 }, "", 7);
        core.say(conn, |e| e.subscribe("t"));
    });
    assert!(known + SOCKET_BYTES <= CONNECTION_BYTES + KNOWN_BYTES, "{known} bytes each");
    let mut core = Core::alone(Config::default());
    let unfinished = each(|index| {
        let conn = core.client(index);
        core.say(conn, |e| e.subscribe("t"));
        let mut half = masked(&[0; 20]);
        half.truncate(9);
        core.step(Input::Received { conn, bytes: &mut half });
    });
    assert_close(unfinished + SOCKET_BYTES, CONNECTION_BYTES + UNFINISHED_BYTES);
}

/// Identities with the tokens t0, t1, ... and ids of eight bytes.
fn identities(many: u32) -> Config {
    let mut config = Config::default();
    config.auth.identity = (0..many)
        .map(|n| Identity {
            token: format!("t{n}"),
            id: Some(format!("id-{n:05}")),
            topics: vec!["*".to_owned()],
            ..Identity::default()
        })
        .collect();
    config
}

#[test]
fn a_pinned_id_takes_what_its_bound_says() {
    let mut core = Core::alone(identities(4000));
    let pinned = each(|index| {
        let headers = format!("Authorization: Bearer t{index}\r\n");
        let conn = core.client_with(ConnId { index, generation: 1 }, &headers, 0);
        core.say(conn, |e| e.subscribe("t"));
    });
    assert_close(pinned + SOCKET_BYTES, CONNECTION_BYTES + KNOWN_BYTES);
}

#[test]
fn a_parked_session_takes_what_its_bound_says() {
    let mut config = identities(4000);
    config.resume.max_parked = 4000;
    let mut core = Core::alone(config);
    let parked = each(|index| {
        let headers = format!("Authorization: Bearer t{index}\r\n");
        let conn = core.client_with(ConnId { index: 0, generation: index }, &headers, 0);
        core.say(conn, |e| e.subscribe("t"));
        core.step(Input::Lost { conn, unacked: None, loss: Loss::Eof });
    });
    assert_close(parked, PARKED_BYTES);
}

/// Control messages are read where they lie and written into memory that is there already.
#[test]
fn control_messages() {
    let mut encoder = Encoder::new();
    let mut answers = |times: u32| {
        for n in 0..times {
            let message = encoder.rpc_call("call 1", "quote", "QUJD");
            let call = control::decode(envelope::id::RPC_CALL, &message[envelope::HEADER_BYTES..]);
            assert!(matches!(call, Ok(Control::RpcCall { name: "quote", .. })));
            encoder.hello(&["seqcast.1"], 7);
            encoder.welcome("0123456789abcdef", ["a", "b"]);
            encoder.pong(n.into());
            encoder.resumed(true, 1);
        }
    };
    answers(1);
    let before = ALLOCATIONS.get();
    answers(100);
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

/// Whole messages are handed out from the buffer they came in; what a header promises takes no memory.
#[test]
fn frames() {
    let bounds = Bounds { message_bytes: 65_536, message_frames: 16 };
    let mut stream = [masked(&[1; 100]), masked(&[2; 20_000]), masked(&[3; 65_536])].concat();
    let mut too_big = masked(&[4; 65_537]);
    let (mut whole, mut refused) = (Decoder::default(), Decoder::default());
    let before = ALLOCATIONS.get();
    let (mut rest, mut messages) = (&mut stream[..], 0);
    while let Ok(Some(_)) = whole.next(&mut rest, &bounds) {
        messages += 1;
    }
    assert_eq!(refused.next(&mut &mut too_big[..], &bounds).map_err(|v| v.code), Err(1009));
    assert_eq!((messages, ALLOCATIONS.get() - before), (3, 0));
}

#[test]
fn the_counter_counts() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(vec![1_u8; 100]));
    assert_eq!(ALLOCATIONS.get() - before, 1);
}
