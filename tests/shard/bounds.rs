//! Bounds and books: what a stalled or strange client can make a core hold, and that every event is accounted for.

use seqcast::config::{InboundRule, Policy};
use seqcast::shard::step::{Answer, Ask, ConnId, Input, Instant, Output, RoomKind, Stats};
use seqcast::wire::control::Encoder;
use seqcast::wire::{envelope, frame};

use crate::rig::{Rig, Seen, config, events};

fn stats(rig: &mut Rig) -> Stats {
    match rig.ask(Ask::Stats) {
        Answer::Stats(s) => *s,
        other => panic!("{other:?}"),
    }
}

/// Every number that was given out is written, dropped, discarded, or still waits.
fn identity(rig: &mut Rig, unsent: u64) {
    let c = stats(rig).counters;
    let dropped = c.dropped_newest + c.dropped_oldest + c.dropped_parked + c.dropped_evicted;
    let accounted = c.events_sent + dropped + c.send_discarded + unsent;
    assert_eq!(c.stamped_seq + c.events_requeued, accounted, "{c:?}");
}

fn quote(rig: &Rig, n: i64) -> Vec<u8> {
    let event = rig.schema.by_name("quote").unwrap();
    let data = serde_json::json!({"symbol": "", "bid": 1.0, "ask": 2.0, "bidSize": n, "askSize": 4, "ts": 5});
    let mut payload = Vec::new();
    rig.schema.encode_json(event, &data, &mut payload).unwrap();
    let mut message = vec![0; envelope::HEADER_BYTES];
    envelope::write(&mut message, rig.schema.id(event));
    message.extend_from_slice(&payload);
    message
}

fn masked(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::push_masked_frame(&mut bytes, frame::BINARY, [1, 2, 3, 4], message);
    bytes
}

/// Two connections in one chunk: what the first one's `sent` sets free must not touch what the second was filled with.
fn one_chunk(rule: InboundRule, messages: usize, history_bytes: u64) -> Vec<Seen> {
    let mut config = config();
    config.inbound.insert("quote".into(), rule);
    config.resume.history_bytes = history_bytes;
    let mut rig = Rig::new(config);
    let b = rig.member("any", "t");
    rig.publish("t", 1..=3);
    rig.seen(b);
    let a = rig.connect("any");
    rig.hello(a, 0);
    rig.stall(a, 0);
    while !rig.outputs.iter().any(|o| matches!(o, Output::Pause { .. })) {
        rig.control(a, |e| e.ping(1));
    }
    for _ in 0..messages {
        let message = quote(&rig, 9);
        rig.message(a, &message);
    }
    rig.shard.handle(Instant(rig.now), Input::Writable { conn: a });
    let mut encoder = Encoder::new();
    let mut bytes = masked(encoder.resume(0));
    rig.shard.handle(Instant(rig.now), Input::Received { conn: b, bytes: &mut bytes });
    let mut chunk: Vec<(ConnId, usize)> = Vec::new();
    while let Some(conn) = rig.shard.next_dirty() {
        let mut scratch = vec![0; 64 * 1024];
        let filled = rig.shard.fill(conn, &mut scratch);
        chunk.push((conn, filled.bytes));
    }
    assert_eq!(chunk.len(), 2);
    for (conn, bytes) in chunk {
        rig.shard.sent(Instant(rig.now), conn, bytes, false);
    }
    rig.pump();
    rig.seen(b).into_iter().filter(|s| matches!(s, Seen::Event(..))).collect()
}

#[test]
fn what_is_filled_is_not_evicted_before_it_is_sent() {
    let nines = |n: u64| (4..4 + n).map(|seq| Seen::Event(seq, 9)).collect::<Vec<_>>();
    assert_eq!(one_chunk(InboundRule::Broadcast, 3, 400), nines(3));
    assert_eq!(one_chunk(InboundRule::Broadcast, 1, 320), nines(1));
    assert_eq!(one_chunk(InboundRule::Sender, 1, 320), []);
}

fn slots_of_a_stalled_reader(policy: Policy, adopt: bool) -> usize {
    let mut config = config();
    config.backpressure.policy = policy;
    config.backpressure.max_queue = 16;
    config.backpressure.high_water_mark = 1000;
    config.resume.history_size = 16;
    config.resume.history_bytes = 10_000;
    let mut rig = Rig::new(config);
    let mut c = rig.member("tok-u1", "t");
    if adopt {
        rig.lose(c, 0);
        rig.publish("t", 1..=8);
        c = rig.connect("tok-u1");
        rig.stall(c, 0);
        rig.hello(c, 0);
    }
    rig.stall(c, 150);
    rig.publish("t", 1..=5000);
    rig.shard.store_slots()
}

#[test]
fn drop_newest_is_bounded() {
    let slots = slots_of_a_stalled_reader(Policy::DropNewest, false);
    assert!(slots < 100, "{slots}");
}

#[test]
fn drop_oldest_is_bounded_behind_a_replay() {
    let slots = slots_of_a_stalled_reader(Policy::DropOldest, true);
    assert!(slots < 100, "{slots}");
}

#[test]
fn drop_oldest_alone_is_bounded() {
    let slots = slots_of_a_stalled_reader(Policy::DropOldest, false);
    assert!(slots < 100, "{slots}");
}

#[test]
fn drop_oldest_is_bounded_behind_a_topic_history() {
    let mut config = config();
    config.replay.history_size = 4;
    config.backpressure.max_queue = 16;
    config.resume.history_size = 16;
    config.resume.history_bytes = 10_000;
    let mut rig = Rig::new(config);
    rig.publish("t", 1..=4);
    let c = rig.connect("any");
    rig.hello(c, 0);
    rig.stall(c, 0);
    rig.subscribe(c, "t");
    rig.publish("t", 5..=5000);
    let slots = rig.shard.store_slots();
    assert!(slots < 100, "{slots}");
}

#[test]
fn a_dropped_tail_that_is_sent_after_all_is_counted_once() {
    let mut config = config();
    config.backpressure.policy = Policy::DropNewest;
    config.backpressure.high_water_mark = 300;
    let mut rig = Rig::new(config);
    let c = rig.member("tok-u1", "t");
    rig.stall(c, 0);
    rig.publish("t", 1..=20);
    rig.lose(c, u32::MAX);
    let d = rig.connect("tok-u1");
    rig.hello(d, 0);
    assert_eq!(rig.seen(d), events(1..=20, 1..=20));
    identity(&mut rig, 0);
}

#[test]
fn a_lost_connection_discards_events_only_once() {
    let mut rig = Rig::new(config());
    let c = rig.member("any", "t");
    rig.stall(c, 150);
    rig.publish("t", 1..=4);
    rig.lose(c, 0);
    identity(&mut rig, 0);
}

#[test]
fn a_pong_is_no_event() {
    let mut rig = Rig::new(config());
    let c = rig.connect("any");
    rig.hello(c, 0);
    rig.stall(c, 0);
    rig.control(c, |e| e.ping(1));
    rig.lose(c, 0);
    identity(&mut rig, 0);
}

#[test]
fn no_number_passes_the_last_one() {
    const LAST: i64 = (1 << 53) - 1;
    let mut rig = Rig::new(config());
    let c = rig.connect("tok-u1");
    rig.ask(Ask::Member { id: "u1".into(), kind: RoomKind::Topic, room: "t".into(), on: true });
    rig.publish("t", 1..=2);
    rig.hello(c, LAST);
    let seen = rig.seen(c);
    assert!(!seen.iter().any(|s| matches!(s, Seen::Event(seq, _) if *seq > LAST as u64)), "{seen:?}");
}

#[test]
fn an_exhausted_session_ends() {
    const LAST: i64 = (1 << 53) - 1;
    let mut rig = Rig::new(config());
    let c = rig.connect("tok-u1");
    rig.hello(c, LAST);
    rig.subscribe(c, "t");
    rig.publish("t", 1..=1);
    assert_eq!(rig.seen(c).last(), Some(&Seen::Close(1008)));
    assert_eq!(stats(&mut rig).parked_sessions, 0, "the session ends");
}

#[test]
fn an_exhausted_parked_session_gives_out_no_number() {
    const LAST: i64 = (1 << 53) - 1;
    let mut rig = Rig::new(config());
    let c = rig.connect("tok-u1");
    rig.hello(c, LAST);
    rig.subscribe(c, "t");
    rig.lose(c, 0);
    rig.publish("t", 1..=1);
    identity(&mut rig, 0);
}

#[test]
fn a_client_that_we_do_not_read_is_not_called_idle() {
    let mut config = config();
    config.replay.history_size = 10;
    let mut rig = Rig::new(config);
    rig.publish("t", 1..=10);
    let c = rig.connect("any");
    rig.hello(c, 0);
    rig.stall(c, 0);
    for _ in 0..40 {
        rig.control(c, |e| e.snapshot_request("t", 0));
    }
    assert!(rig.outputs.iter().any(|o| matches!(o, Output::Pause { .. })));
    // It reads slowly all the time; the driver gives us nothing, because we asked for nothing.
    for _ in 0..130 {
        rig.pass(1000);
        rig.allow(c, 40);
    }
    let closed = rig.shard.counters().closed_idle;
    assert_eq!(closed, 0);
}

#[test]
fn a_full_queue_is_sent_although_it_coalesces() {
    let mut config = config();
    config.server.coalesce = std::time::Duration::from_millis(100);
    config.backpressure.max_queue = 8;
    let mut rig = Rig::new(config);
    let _ = rig.member("any", "t");
    rig.publish("t", 1..=1000);
    let s = stats(&mut rig);
    assert!(s.queue_depth <= 8 + 1, "{}", s.queue_depth);
}

#[test]
fn nobody_coalesces_longer_than_asked() {
    let mut config = config();
    config.server.coalesce = std::time::Duration::from_millis(100);
    let mut rig = Rig::new(config);
    let c = rig.member("any", "t");
    let d = rig.member("any", "u");
    rig.pass(1000);
    rig.pass(1000);
    rig.publish("u", 1..=1); // d sent at 0
    rig.pass(90);
    rig.publish("t", 1..=1); // c sent at 90
    assert_eq!((rig.seen(d), rig.seen(c)), (events(1..=1, 1..=1), events(1..=1, 1..=1)));
    rig.publish("t", 2..=2); // c due at 190, first in the queue
    rig.publish("u", 2..=2); // d due at 100, behind it
    rig.seen(c);
    rig.seen(d);
    rig.pass(15); // 105
    assert_eq!(rig.seen(d), events(2..=2, 2..=2));
}

#[test]
fn an_empty_send_is_no_send() {
    let mut config = config();
    config.server.coalesce = std::time::Duration::from_millis(100);
    let mut rig = Rig::new(config);
    let d = rig.member("any", "u");
    rig.pass(1000);
    rig.publish("u", 1..=1);
    assert_eq!(rig.seen(d), events(1..=1, 1..=1));
}

#[test]
fn a_restart_counts_dropped_events_once() {
    let mut config = config();
    config.backpressure.policy = Policy::DropNewest;
    config.backpressure.high_water_mark = 300;
    let mut rig = Rig::new(config);
    let c = rig.member("tok-u1", "t");
    rig.publish("t", 1..=1);
    rig.stall(c, 0);
    rig.publish("t", 2..=20);
    rig.lose(c, 0);
    let d = rig.connect("tok-u1");
    rig.hello(d, 0);
    identity(&mut rig, 0);
}

#[test]
fn who_has_just_been_heard_from_is_not_idle() {
    let mut rig = Rig::new(config());
    let c = rig.connect("any");
    rig.hello(c, 0);
    let d = rig.connect("any");
    rig.hello(d, 0);
    // The process stood still (a debugger, a paused machine): both clients' bytes wait in the kernel.
    rig.now += 121_000_000_000;
    rig.control(c, |e| e.ping(1));
    rig.control(d, |e| e.ping(1));
    assert_eq!(rig.shard.counters().closed_idle, 0);
}

#[test]
fn a_takeover_knows_what_the_old_connection_acknowledged() {
    let mut config = config();
    config.auth.duplicate_id = seqcast::config::DuplicateId::Takeover;
    let mut rig = Rig::new(config);
    let a = rig.member("tok-u1", "t");
    rig.publish("t", 1..=3);
    assert_eq!(rig.seen(a).len(), 3); // the client has them
    rig.stall(a, 10);
    rig.publish("t", 4..=4);
    let b = rig.connect("tok-u1");
    rig.hello(b, 0); // a new process
    assert_eq!(rig.seen(b), []);
}

#[test]
fn waiting_bytes_agree_with_waiting_events() {
    let mut rig = Rig::new(config());
    let a = rig.member("tok-u1", "t");
    rig.lose(a, 0);
    rig.publish("t", 1..=8);
    let b = rig.connect("tok-u1");
    rig.stall(b, 0);
    rig.hello(b, 0);
    let s = stats(&mut rig);
    assert!((s.queue_depth > 0) == (s.queue_bytes > 0), "{} {}", s.queue_depth, s.queue_bytes);
}

#[test]
fn a_transfer_at_the_bound_is_closed_and_nothing_else() {
    use seqcast::shard::step::{Peer, Transfer};
    let mut config = config();
    config.limits.inbound_bytes = 64 * 1024;
    let mut rig = Rig::new(config);
    for _ in 0..4 {
        let c = rig.accept();
        let mut head = b"GET /ws HTTP/1.1\r\nX: ".to_vec();
        head.resize(16_000, b'x');
        rig.bytes(c, &head);
    }
    let conn = ConnId { index: 77, generation: 0 };
    let transfer =
        Box::new(Transfer { peer: Peer::Unix, opened: Instant(rig.now), received: vec![b'x'; 16_300] });
    rig.shard.handle(Instant(rig.now), Input::Transferred { conn, transfer });
}
