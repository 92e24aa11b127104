//! Positions: hello, resume, parking, numbering.

use crate::rig::{Rig, Seen, config, events};
use Seen::Resumed;

#[test]
fn events_are_numbered_from_one_and_replayed_on_demand() {
    let mut rig = Rig::new(config());
    let c = rig.member("any", "t");
    rig.publish("t", 1..=3);
    assert_eq!(rig.seen(c), events(1..=3, 1..=3));
    rig.resume(c, 1);
    let mut want = events(2..=3, 2..=3);
    want.push(Resumed(true, 2));
    assert_eq!(rig.seen(c), want);
    rig.resume(c, 3);
    rig.resume(c, 50);
    assert_eq!(rig.seen(c), [Resumed(true, 0), Resumed(true, 0)]);
    rig.publish("t", 4..=4);
    assert_eq!(rig.seen(c), events(4..=4, 4..=4));
}

#[test]
fn a_parked_session_records_and_answers_behind_the_events() {
    let mut rig = Rig::new(config());
    let a = rig.member("tok-u1", "t");
    rig.publish("t", 1..=3);
    rig.seen(a);
    rig.lose(a, 0);
    rig.publish("t", 4..=5);
    let b = rig.connect("tok-u1");
    rig.publish("t", 6..=6);
    assert_eq!(rig.seen(b), []);
    rig.hello(b, 2);
    let mut want = events(3..=6, 3..=6);
    want.push(Resumed(true, 3));
    assert_eq!(rig.seen(b), want);
    rig.publish("t", 7..=7);
    assert_eq!(rig.seen(b), events(7..=7, 7..=7));
}

#[test]
fn more_than_the_history_missed_is_declared() {
    let mut config = config();
    config.resume.history_size = 4;
    let mut rig = Rig::new(config);
    let a = rig.member("tok-u1", "t");
    rig.publish("t", 1..=3);
    rig.lose(a, 0);
    rig.publish("t", 4..=8);
    let b = rig.connect("tok-u1");
    rig.hello(b, 3);
    let mut want = events(5..=8, 5..=8);
    want.push(Resumed(false, 0));
    assert_eq!(rig.seen(b), want);
    rig.resume(b, 3);
    assert_eq!(rig.seen(b), [Resumed(false, 0)]);
}

#[test]
fn a_new_process_begins_at_one_unless_nothing_ever_reached_the_old_one() {
    let mut rig = Rig::new(config());
    let a = rig.member("tok-u1", "t");
    rig.lose(a, 0);
    rig.publish("t", 1..=2);
    let b = rig.connect("tok-u1");
    rig.hello(b, 0);
    rig.publish("t", 3..=3);
    assert_eq!(rig.seen(b), events(1..=3, 1..=3));
    rig.lose(b, 0);
    rig.publish("t", 4..=4);
    let c = rig.connect("tok-u1");
    rig.hello(c, 0);
    rig.publish("t", 5..=5);
    rig.subscribe(c, "t");
    rig.publish("t", 6..=6);
    assert_eq!(rig.seen(c), events(1..=1, 6..=6));
    assert_eq!(rig.shard.counters().sessions_restarted, 1);
}

#[test]
fn unacknowledged_events_are_sent_again_to_a_client_that_has_nothing() {
    let mut rig = Rig::new(config());
    let a = rig.member("tok-u1", "t");
    rig.publish("t", 1..=2);
    rig.lose(a, u32::MAX);
    let b = rig.connect("tok-u1");
    rig.hello(b, 0);
    assert_eq!(rig.seen(b), events(1..=2, 1..=2));
}

#[test]
fn a_position_without_history_moves_the_numbering() {
    let mut rig = Rig::new(config());
    let c = rig.connect("any");
    rig.subscribe(c, "t");
    rig.hello(c, 41);
    rig.publish("t", 1..=1);
    assert_eq!(rig.seen(c), [Resumed(false, 0), Seen::Event(42, 1)]);
}

#[test]
fn a_late_hello_gets_again_what_its_gate_threw_away() {
    let mut rig = Rig::new(config());
    let c = rig.connect("any");
    rig.subscribe(c, "t");
    rig.publish("t", 1..=2);
    assert_eq!(rig.seen(c), events(1..=2, 1..=2));
    rig.hello(c, 10);
    let mut want = vec![Resumed(false, 0)];
    want.extend(events(11..=12, 1..=2));
    assert_eq!(rig.seen(c), want);
    rig.publish("t", 3..=3);
    assert_eq!(rig.seen(c), events(13..=13, 3..=3));
}

#[test]
fn a_late_hello_with_a_smaller_position_is_told_so() {
    let mut rig = Rig::new(config());
    let c = rig.connect("any");
    rig.subscribe(c, "t");
    rig.publish("t", 1..=5);
    rig.seen(c);
    rig.hello(c, 2);
    rig.publish("t", 6..=6);
    assert_eq!(rig.seen(c), [Resumed(false, 0), Seen::Event(6, 6)]);
}

#[test]
fn a_client_ahead_of_its_session_is_followed() {
    let mut rig = Rig::new(config());
    let a = rig.member("tok-u1", "t");
    rig.publish("t", 1..=3);
    rig.lose(a, 0);
    rig.publish("t", 4..=4);
    let b = rig.connect("tok-u1");
    rig.hello(b, 500);
    rig.publish("t", 5..=5);
    assert_eq!(rig.seen(b), [Resumed(false, 0), Seen::Event(501, 4), Seen::Event(502, 5)]);
}

#[test]
fn events_wait_for_a_hello_only_so_long() {
    let mut rig = Rig::new(config());
    let c = rig.connect("any");
    let id = match rig.ask(seqcast::shard::step::Ask::Clients { after: None, limit: 9 }) {
        seqcast::shard::step::Answer::Clients { rows, .. } => rows[0].id.clone(),
        other => panic!("{other:?}"),
    };
    rig.ask(seqcast::shard::step::Ask::Member {
        id,
        kind: seqcast::shard::step::RoomKind::Topic,
        room: "t".into(),
        on: true,
    });
    rig.publish("t", 1..=1);
    rig.pass(999);
    assert_eq!(rig.seen(c), []);
    rig.pass(2);
    assert_eq!(rig.seen(c), events(1..=1, 1..=1));
}

#[test]
fn a_parked_session_ends_with_its_time() {
    let mut rig = Rig::new(config());
    let a = rig.member("tok-u1", "t");
    rig.publish("t", 1..=3);
    rig.lose(a, 0);
    rig.pass(60_001);
    assert_eq!((rig.shard.counters().parked_expired, rig.shard.store_slots()), (1, 0));
    let b = rig.connect("tok-u1");
    rig.hello(b, 3);
    assert_eq!(rig.seen(b), [Resumed(false, 0)]);
}

#[test]
fn an_idle_history_is_freed_and_its_loss_declared() {
    let mut rig = Rig::new(config());
    let c = rig.member("any", "t");
    rig.publish("t", 1..=3);
    rig.seen(c);
    for _ in 0..3 {
        rig.pass(30_000);
        rig.control(c, |e| e.ping(1));
    }
    rig.seen(c);
    assert_eq!(rig.shard.store_slots(), 0);
    rig.resume(c, 3);
    rig.resume(c, 1);
    assert_eq!(rig.seen(c), [Resumed(true, 0), Resumed(false, 0)]);
    rig.publish("t", 4..=4);
    assert_eq!(rig.seen(c), events(4..=4, 4..=4));
}

#[test]
fn a_position_of_an_older_session_is_not_taken_for_one_of_its_successor() {
    let mut rig = Rig::new(config());
    // The connection ends before its hello arrives; the session that began with it is parked and goes on numbering.
    let a = rig.connect("tok-u1");
    rig.subscribe(a, "t");
    rig.lose(a, 0);
    rig.publish("t", 1..=4);
    let b = rig.connect("tok-u1");
    rig.hello(b, 2);
    let mut want = vec![Resumed(false, 0)];
    want.extend(events(3..=6, 1..=4));
    assert_eq!(rig.seen(b), want);
}

#[test]
fn a_lost_session_is_declared_until_the_client_has_heard_of_it() {
    let mut rig = Rig::new(config());
    let a = rig.connect("tok-u1");
    rig.hello(a, 41);
    rig.subscribe(a, "t");
    rig.publish("t", 1..=2);
    // What was written there is lost with the connection, the answer too.
    rig.lose(a, u32::MAX);
    let b = rig.connect("tok-u1");
    rig.hello(b, 41);
    let mut want = vec![Resumed(false, 0)];
    want.extend(events(42..=43, 1..=2));
    assert_eq!(rig.seen(b), want, "said first, for the numbers do not show it");
    rig.lose(b, 0);
    let c = rig.connect("tok-u1");
    rig.hello(c, 42);
    assert_eq!(
        rig.seen(c),
        [Seen::Event(43, 2), Resumed(true, 43)],
        "who has an event behind the answer has the answer"
    );
}

#[test]
fn a_late_hello_gets_only_what_was_not_written_when_something_is_lost() {
    let mut config = config();
    config.resume.history_size = 2;
    let mut rig = Rig::new(config);
    let a = rig.member("tok-u1", "t");
    rig.publish("t", 1..=3);
    rig.lose(a, u32::MAX);
    rig.publish("t", 4..=5);
    let b = rig.connect("tok-u1");
    rig.pass(1000);
    assert_eq!(rig.seen(b), events(4..=5, 4..=5), "the time to say hello is over");
    rig.hello(b, 1);
    assert_eq!(rig.seen(b), [Resumed(false, 0)]);
}

#[test]
fn a_late_hello_without_a_position_gets_what_an_earlier_connection_lost() {
    let mut rig = Rig::new(config());
    let a = rig.member("tok-u1", "t");
    rig.publish("t", 1..=2);
    rig.lose(a, u32::MAX);
    let b = rig.connect("tok-u1");
    rig.pass(1000);
    assert_eq!(rig.seen(b), []);
    rig.hello(b, 0);
    assert_eq!(rig.seen(b), events(1..=2, 1..=2));
}

#[test]
fn a_client_that_took_a_late_hello_for_a_hole_gets_nothing_twice() {
    let mut rig = Rig::new(config());
    let a = rig.member("tok-u1", "t");
    rig.publish("t", 1..=5);
    rig.lose(a, 0);
    rig.publish("t", 6..=7);
    let b = rig.connect("tok-u1");
    rig.pass(1_001);
    assert_eq!(rig.seen(b), events(6..=7, 6..=7));
    rig.hello(b, 3);
    rig.resume(b, 3);
    let mut want = events(4..=5, 4..=5);
    want.extend([Resumed(true, 4), Resumed(true, 4)]);
    assert_eq!(rig.seen(b), want);
}

#[test]
fn a_late_hello_during_a_drain_may_be_the_last_thing_that_happens() {
    let mut config = config();
    config.resume.history_bytes = 500;
    let mut rig = Rig::new(config);
    let a = rig.member("tok-u1", "t");
    rig.publish("t", 1..=1);
    rig.publish_padded("t", 2, 200);
    rig.lose(a, u32::MAX);
    let b = rig.connect("tok-u1");
    rig.pass(1000);
    rig.stall(b, 0);
    rig.publish_padded("t", 3, 200);
    rig.drain(5_000);
    // Everything that waits leaves under the byte budget: nothing keeps the drain's close back any more.
    rig.publish_padded("t", 4, 4000);
    rig.hello(b, 1);
    rig.allow(b, 10_000);
    assert_eq!(rig.seen(b).last(), Some(&Seen::Close(1001)));
}
