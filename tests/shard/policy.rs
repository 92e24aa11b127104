//! Readers that stall: what each policy does, and that nothing is silent.

use seqcast::config::Policy;

use crate::rig::{Rig, Seen, config, events};
use Seen::Resumed;

fn stalled(policy: Policy, max_queue: u32, mark: u64, history: u32) -> (Rig, seqcast::shard::step::ConnId) {
    let mut config = config();
    config.backpressure.policy = policy;
    config.backpressure.max_queue = max_queue;
    config.backpressure.high_water_mark = mark;
    config.resume.history_size = history;
    let mut rig = Rig::new(config);
    let c = rig.member("tok-u1", "t");
    rig.stall(c, 150);
    (rig, c)
}

#[test]
fn drop_oldest_keeps_the_newest_and_a_resume_brings_exactly_the_rest() {
    let (mut rig, c) = stalled(Policy::DropOldest, 4, 1 << 20, 100);
    rig.publish("t", 1..=20);
    rig.allow(c, usize::MAX);
    let mut want = events(1..=2, 1..=2);
    want.extend(events(17..=20, 17..=20));
    assert_eq!(rig.seen(c), want);
    rig.resume(c, 2);
    let mut want = events(3..=16, 3..=16);
    want.push(Resumed(true, 3));
    assert_eq!(rig.seen(c), want);
    assert_eq!(rig.shard.counters().dropped_oldest, 14);
}

#[test]
fn a_hole_older_than_the_history_is_declared_once_and_for_all() {
    let (mut rig, c) = stalled(Policy::DropOldest, 4, 1 << 20, 8);
    rig.publish("t", 1..=20);
    rig.allow(c, usize::MAX);
    rig.seen(c);
    rig.resume(c, 2);
    let mut want = events(13..=16, 13..=16);
    want.push(Resumed(false, 0));
    assert_eq!(rig.seen(c), want);
    rig.resume(c, 2);
    assert_eq!(rig.seen(c), [Resumed(false, 0)]);
}

#[test]
fn drop_newest_keeps_the_oldest_and_the_tail_comes_by_resume() {
    let (mut rig, c) = stalled(Policy::DropNewest, 1000, 300, 100);
    rig.publish("t", 1..=20);
    rig.allow(c, usize::MAX);
    let seen = rig.seen(c);
    let kept = seen.len() as u64;
    assert!(kept > 2 && kept < 10, "{seen:?}");
    assert_eq!(seen, events(1..=kept, 1..=kept as i64));
    rig.publish("t", 21..=21);
    assert_eq!(rig.seen(c), events(21..=21, 21..=21));
    rig.resume(c, kept as i64);
    let mut want = events(kept + 1..=20, kept as i64 + 1..=20);
    want.push(Resumed(true, kept as i64 + 1));
    assert_eq!(rig.seen(c), want);
}

#[test]
fn disconnect_closes_and_the_session_keeps_the_events() {
    let (mut rig, c) = stalled(Policy::Disconnect, 1000, 300, 100);
    rig.publish("t", 1..=20);
    rig.allow(c, usize::MAX);
    let seen = rig.seen(c);
    assert_eq!(seen.last(), Some(&Seen::Close(1013)), "{seen:?}");
    let got = seen.len() as u64 - 1;
    let b = rig.connect("tok-u1");
    rig.hello(b, got as i64);
    let mut want = events(got + 1..=20, got as i64 + 1..=20);
    want.push(Resumed(true, got as i64 + 1));
    assert_eq!(rig.seen(b), want);
}

#[test]
fn a_reader_that_takes_everything_is_judged_by_no_policy() {
    for policy in [Policy::DropOldest, Policy::DropNewest, Policy::Disconnect] {
        let (mut rig, c) = stalled(policy, 1, 1, 10);
        rig.stall(c, usize::MAX);
        rig.publish("t", 1..=50);
        assert_eq!(rig.seen(c), events(1..=50, 1..=50), "{policy:?}");
    }
}

#[test]
fn pongs_pass_a_stalled_stream_between_frames() {
    let (mut rig, c) = stalled(Policy::DropOldest, 100, 1 << 20, 100);
    rig.publish("t", 1..=5);
    rig.control(c, |e| e.ping(77));
    rig.allow(c, usize::MAX);
    let seen = rig.seen(c);
    assert_eq!(seen[..2], events(1..=2, 1..=2));
    assert_eq!(seen[2], Seen::Pong(77));
    assert_eq!(seen[3..], events(3..=5, 3..=5));
}

#[test]
fn writes_may_end_anywhere() {
    for step in 1..40 {
        let (mut rig, c) = stalled(Policy::DropOldest, 100, 1 << 20, 100);
        rig.publish("t", 1..=3);
        rig.publish_padded("t", 4, 20_000);
        rig.control(c, |e| e.ping(9));
        rig.publish("t", 5..=6);
        let mut seen = Vec::new();
        while seen.len() < 7 {
            rig.allow(c, step * 13);
            seen.extend(rig.seen(c));
        }
        seen.retain(|s| *s != Seen::Pong(9));
        assert_eq!(seen, events(1..=6, 1..=6), "steps of {step}");
    }
}

#[test]
fn what_drop_newest_dropped_comes_after_a_return() {
    let (mut rig, c) = stalled(Policy::DropNewest, 1000, 300, 100);
    rig.publish("t", 1..=20);
    rig.lose(c, 0);
    let b = rig.connect("tok-u1");
    rig.hello(b, 1);
    let mut want = events(2..=20, 2..=20);
    want.push(Resumed(true, 2));
    assert_eq!(rig.seen(b), want);
}
