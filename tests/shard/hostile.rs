//! Peers that aim at the state machine: ends that coincide, messages without pause, answers that nobody takes.

use seqcast::shard::step::Input;
use seqcast::wire::frame;

use crate::rig::{Rig, Seen, config};

#[test]
fn an_owner_whose_time_is_up_together_with_its_probe_gives_its_id_away() {
    let mut config = config();
    config.server.idle_timeout = std::time::Duration::from_secs(10);
    let mut rig = Rig::new(config);
    let owner = rig.connect("tok-u1");
    rig.seen(owner);
    rig.pass(8_500);
    let (first, second) = (rig.connect("tok-u1"), rig.connect("tok-u1"));
    // One turn finds both: nothing was received for 10 s, and the probe was not answered for 2 s.
    rig.pass(2_500);
    assert_eq!(rig.seen(owner), [Seen::Other("ping"), Seen::Close(1001)]);
    rig.hello(first, 0);
    assert!(rig.peers[&second].finished, "one of two gets the id, the other is refused");
    rig.subscribe(first, "t");
    rig.publish("t", 1..=1);
    assert_eq!(rig.seen(first).last(), Some(&Seen::Event(1, 1)));
}

#[test]
fn the_time_of_a_message_begins_with_the_message() {
    let mut rig = Rig::new(config());
    let c = rig.connect("any");
    rig.hello(c, 0);
    let mut one = Vec::new();
    frame::push_masked_frame(&mut one, frame::BINARY, [1, 2, 3, 4], &[0; 1000]);
    // Each read ends within a message, none of which takes longer than 20 s.
    rig.bytes(c, &one[..500]);
    for _ in 0..4 {
        rig.pass(20_000);
        rig.bytes(c, &[&one[500..], &one[..500]].concat());
    }
    assert!(!rig.seen(c).iter().any(|seen| matches!(seen, Seen::Close(_))));
    rig.pass(29_000);
    assert!(!rig.seen(c).iter().any(|seen| matches!(seen, Seen::Close(_))));
    rig.pass(1_500);
    assert_eq!(rig.seen(c).last(), Some(&Seen::Close(1013)));
    rig.input(Input::Tick);
}

#[test]
fn a_request_that_is_ended_to_make_room_for_another_waits_no_more() {
    let mut config = config();
    config.limits.inbound_bytes = 100 << 10;
    let mut rig = Rig::new(config);
    let owner = rig.connect("tok-u1");
    let (first, second) = (rig.connect("tok-u1"), rig.connect("tok-u1"));
    // Two frames of one message, which take twice their bytes once they are read.
    let mut frames = Vec::new();
    frame::push_masked_frame(&mut frames, frame::BINARY, [1, 2, 3, 4], &[0; 25 << 10]);
    frames[0] &= 0x7f;
    frames.extend_from_slice(&[0, 0x81, 1, 2, 3, 4, 0]);
    rig.bytes(first, &frames);
    rig.bytes(second, &[0; 60 << 10]);
    rig.lose(owner, 0);
    assert!(rig.peers[&second].finished && !rig.peers[&first].finished);
}

#[test]
fn listings_that_nobody_reads_take_bounded_memory() {
    let mut config = config();
    config.auth.identity.clear();
    config.limits.inbound_bytes = 3 << 20;
    let mut rig = Rig::new(config);
    let list = |rig: &mut Rig| {
        let conn = rig.accept();
        rig.stall(conn, 0);
        rig.bytes(conn, b"GET /clients HTTP/1.1\r\nHost: h\r\n\r\n");
        conn
    };
    let client = |rig: &mut Rig| {
        let c = rig.connect("");
        rig.hello(c, 0);
        for n in 0..100 {
            rig.subscribe(c, &format!("{}{n}", "\u{1}".repeat(1000)));
        }
    };
    client(&mut rig);
    client(&mut rig);
    let readers: Vec<_> = (0..10).map(|_| list(&mut rig)).collect();
    let ended = readers.iter().filter(|conn| rig.peers[*conn].finished).count();
    assert!((7..10).contains(&ended), "{ended} of 10 listings of 1.2 MB are more than 3 MiB");
    client(&mut rig);
    client(&mut rig);
    let refused = list(&mut rig);
    rig.allow(refused, usize::MAX);
    assert!(rig.text(refused).starts_with("HTTP/1.1 503 "));
}

#[test]
fn clients_that_come_and_go_leave_no_deadlines_behind() {
    let mut config = config();
    config.resume.ttl = std::time::Duration::from_secs(30 * 24 * 3600);
    let mut rig = Rig::new(config);
    for n in 1..=4000 {
        let c = rig.member("any", "t");
        rig.publish("t", n..=n);
        rig.lose(c, 0);
        rig.peers.remove(&c);
        assert!(rig.shard.deadlines() < 1100, "{} deadlines of nobody", rig.shard.deadlines());
    }
}

#[test]
fn long_names_of_topics_that_nobody_is_in_are_bounded() {
    let mut config = config();
    config.limits.topic_name_bytes = 65_535;
    config.replay.history_size = 1;
    let mut rig = Rig::new(config);
    let c = rig.connect("any");
    rig.hello(c, 0);
    let name = |n: usize| format!("{n:060000}");
    let most = seqcast::limits::IDLE_NAME_BYTES / 60_000;
    for n in 0..most + 2 {
        rig.publish(&name(n), 1..=1);
    }
    // The oldest two were forgotten with their history.
    for (n, want) in [(0, 0), (1, 0), (2, 1), (most + 1, 1)] {
        rig.subscribe(c, &name(n));
        assert_eq!(rig.seen(c).len(), want, "topic {n}");
    }
}
