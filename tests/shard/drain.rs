//! Draining: who is closed when, and what everybody still gets.

use crate::rig::{Rig, Seen, config, events};
use seqcast::shard::step::{ConnId, Output};

/// So many members of a topic, none of whom has anything waiting.
fn members(rig: &mut Rig, n: usize) -> Vec<ConnId> {
    (0..n).map(|_| rig.member("any", "t")).collect()
}

fn closed(rig: &Rig, conns: &[ConnId]) -> usize {
    conns.iter().filter(|conn| rig.peers[conn].finished).count()
}

fn is_drained(rig: &mut Rig) -> bool {
    let said = rig.outputs.iter().filter(|output| matches!(output, Output::Drained)).count();
    assert!(said < 2, "a drain ends once");
    said == 1
}

#[test]
fn a_small_server_closes_everybody_at_once() {
    let mut rig = Rig::new(config());
    let conns = members(&mut rig, 64);
    assert!(!is_drained(&mut rig));
    rig.drain(10_000);
    assert_eq!(closed(&rig, &conns), 64);
    assert!(is_drained(&mut rig));
    assert_eq!(rig.seen(conns[63]), [Seen::Close(1001)]);
}

#[test]
fn a_large_server_closes_in_slots() {
    let mut rig = Rig::new(config());
    let conns = members(&mut rig, 400);
    rig.drain(10_000);
    for slot in 1..=6 {
        assert_eq!(closed(&rig, &conns), 64 * slot);
        rig.pass(49);
        assert_eq!(closed(&rig, &conns), 64 * slot, "not before its time");
        rig.pass(1);
    }
    assert_eq!(closed(&rig, &conns), 400);
    assert!(is_drained(&mut rig));
}

#[test]
fn the_slots_end_with_half_of_the_time() {
    let mut rig = Rig::new(config());
    let conns = members(&mut rig, 1000);
    rig.drain(400);
    // Four slots in 200 ms: a quarter each.
    assert_eq!(closed(&rig, &conns), 250);
    rig.pass(150);
    assert_eq!(closed(&rig, &conns), 1000);
}

#[test]
fn a_core_that_was_late_catches_up() {
    let mut rig = Rig::new(config());
    let conns = members(&mut rig, 200);
    rig.drain(10_000);
    rig.pass(120);
    assert_eq!(closed(&rig, &conns), 192);
    rig.pass(30);
    assert_eq!(closed(&rig, &conns), 200);
}

#[test]
fn whoever_waits_for_his_slot_goes_on_receiving() {
    let mut rig = Rig::new(config());
    let conns = members(&mut rig, 65);
    rig.drain(10_000);
    rig.publish("t", 1..=2);
    assert_eq!(rig.seen(conns[0]), [Seen::Close(1001)]);
    assert_eq!(rig.seen(conns[64]), events(1..=2, 1..=2));
    rig.stall(conns[64], 0);
    rig.publish("t", 3..=3);
    rig.pass(50);
    assert_eq!((rig.seen(conns[64]), is_drained(&mut rig)), (vec![], false), "it reads nothing");
    rig.allow(conns[64], 10_000);
    let mut want = events(3..=3, 3..=3);
    want.push(Seen::Close(1001));
    assert_eq!(rig.seen(conns[64]), want, "what waited comes first");
    assert!(is_drained(&mut rig));
}

#[test]
fn the_deadline_cuts_whoever_is_left_also_when_it_is_moved() {
    let mut rig = Rig::new(config());
    let conns = members(&mut rig, 100);
    for conn in &conns {
        rig.stall(*conn, 0);
    }
    rig.publish("t", 1..=1);
    rig.drain(10_000);
    rig.pass(5_000);
    assert_eq!(closed(&rig, &conns), 0);
    rig.drain(0);
    rig.pass(0);
    assert_eq!(closed(&rig, &conns), 100);
    assert!(is_drained(&mut rig));
    let answers = rig.outputs.iter().filter(|output| matches!(output, Output::Reply(_))).count();
    assert_eq!(answers, 2, "both orders are answered at the end");
}
