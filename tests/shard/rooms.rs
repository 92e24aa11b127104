//! Topics, histories, snapshots, duplicates.

use crate::rig::{Rig, Seen, config, events};

#[test]
fn history_comes_first_and_is_numbered_snapshots_are_not() {
    let mut config = config();
    config.replay.history_size = 2;
    let mut rig = Rig::new(config);
    rig.publish("t", 1..=3);
    let c = rig.member("any", "t");
    rig.publish("t", 4..=4);
    assert_eq!(rig.seen(c), events(1..=3, 2..=4));
    rig.control(c, |e| e.snapshot_request("t", 3));
    rig.control(c, |e| e.snapshot_request("t", 0));
    let unnumbered = [4, 3, 4].map(|n| Seen::Event(0, n));
    assert_eq!(rig.seen(c), unnumbered);
}

#[test]
fn a_kept_topic_gives_no_history_again() {
    let mut config = config();
    config.replay.history_size = 8;
    let mut rig = Rig::new(config);
    rig.publish("t", 1..=3);
    let a = rig.member("tok-u1", "t");
    assert_eq!(rig.seen(a), events(1..=3, 1..=3));
    rig.lose(a, 0);
    rig.publish("t", 4..=4);
    let b = rig.connect("tok-u1");
    rig.hello(b, 3);
    rig.subscribe(b, "t");
    assert_eq!(rig.seen(b), [Seen::Event(4, 4), Seen::Resumed(true, 4)]);
    rig.subscribe(b, "t");
    assert_eq!(rig.seen(b), events(5..=8, 1..=4));
}

#[test]
fn a_duplicate_waits_for_the_probe() {
    let mut rig = Rig::new(config());
    let a = rig.connect("tok-u1");
    rig.hello(a, 0);
    let b = rig.connect("tok-u1");
    assert_eq!(rig.seen(a), [Seen::Other("ping")]);
    rig.control(a, |e| e.ping(1));
    assert!(rig.peers[&b].finished, "refused");
    let c = rig.connect("tok-u1");
    rig.pass(2_001);
    assert_eq!(rig.seen(a)[2..], [Seen::Close(1000)]);
    assert_eq!(rig.seen(c), []);
    assert_eq!(rig.shard.counters().takeovers, 1);
}

#[test]
fn an_owner_that_ends_together_with_the_probe_needs_no_takeover() {
    let mut config = config();
    config.server.idle_timeout = std::time::Duration::from_secs(2);
    let mut rig = Rig::new(config);
    let a = rig.connect("tok-u1");
    rig.hello(a, 0);
    let b = rig.connect("tok-u1");
    rig.pass(2_001);
    assert_eq!(rig.seen(a), [Seen::Other("ping"), Seen::Close(1001)]);
    assert!(!rig.peers[&b].finished, "let in");
    assert_eq!((rig.shard.counters().takeovers, rig.shard.counters().closed_idle), (0, 1));
}

#[test]
fn what_peers_leave_unfinished_has_one_bound_whoever_they_are() {
    let mut config = config();
    config.limits.inbound_bytes = 10_000;
    let mut rig = Rig::new(config);
    let open = rig.connect("any");
    rig.hello(open, 0);
    let mut fragment = Vec::new();
    seqcast::wire::frame::push_masked_frame(&mut fragment, 2, [1, 2, 3, 4], &[7; 6500]);
    fragment[0] &= 0x7f;
    rig.bytes(open, &fragment);
    let early = rig.accept();
    rig.bytes(early, &[b'x'; 3000]);
    assert_eq!(rig.seen(open), []);
    rig.bytes(early, &[b'x'; 3000]);
    assert_eq!(rig.seen(open), [Seen::Close(1013)]);
    let later = rig.accept();
    rig.bytes(later, &[b'x'; 5000]);
    assert!(rig.peers[&early].finished && !rig.peers[&later].finished);
    assert_eq!(rig.shard.counters().closed_inbound_bytes, 2);
}
