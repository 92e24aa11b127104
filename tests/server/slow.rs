//! A reader that stops reading, under each policy: the others do not notice, what it loses is what the counters say,
//! and it still gets its pongs.

use crate::peer::{Message, Peer};
use crate::process::{Admin, PATIENCE, Server};
use crate::reader;
use std::collections::BTreeSet;
use std::time::Duration;

const EVENTS: u64 = 500;
const EVENT_BYTES: usize = 4000;
const TOKEN: &str = "slow-token";

/// What a stalled reader found when it read again.
struct Found {
    /// Sequence number and published number, in order of arrival.
    events: Vec<(u64, u64)>,
    /// How many events had come before the pong.
    pong_after: Option<usize>,
    /// How the connection ended, if it did.
    close: Option<(u16, String)>,
}

/// A server with a policy, a stalled reader and a healthy one; publishes everything, then lets the stalled one read.
fn stall(policy: &str, history: u64) -> (Server, Peer, Found) {
    let mut server = Server::start(&format!(
        "[server]\nunsent_low_water = \"16KiB\"\n\
         [[auth.identity]]\ntoken = \"{TOKEN}\"\nid = \"slow\"\ntopics = [\"*\"]\n\
         [[auth.identity]]\ntoken = \"healthy\"\ntopics = [\"*\"]\n[resume]\nhistory_size = {history}\n\
         [backpressure]\npolicy = \"{policy}\"\nhigh_water_mark = \"128KiB\"\nmax_queue = 16\n",
    ));
    let mut admin = server.admin();
    let mut stalled = Peer::connect(&server, Some(TOKEN), Some(4096));
    stalled.subscribe(0, "t");
    let healthy = reader(&server, Some("healthy"), "t", EVENTS as usize);
    for n in 1..=EVENTS / 2 {
        admin.publish("t", n, EVENT_BYTES);
    }
    // In the middle of its stall it asks for a sign of life.
    if policy != "disconnect" {
        stalled.control(|e| e.ping(77));
    }
    for n in EVENTS / 2 + 1..=EVENTS {
        admin.publish("t", n, EVENT_BYTES);
    }
    assert_eq!(healthy.join().expect("the healthy reader"), (1..=EVENTS).collect::<Vec<_>>());
    assert!(server.is_alive(), "the server died: {}", server.log());
    let found = if policy == "disconnect" {
        read_to_the_end(&mut stalled)
    } else {
        read_to_the_last(&mut stalled, &mut admin)
    };
    (server, stalled, found)
}

/// Reads until nothing waits any more, then to one event more, which comes behind everything.
fn read_to_the_last(peer: &mut Peer, admin: &mut Admin) -> Found {
    let mut found = Found { events: Vec::new(), pong_after: None, close: None };
    let mut asked = false;
    loop {
        match peer.next_within(Duration::from_millis(20)) {
            Some(Message::Event(_, number)) if number == EVENTS + 1 => return found,
            Some(Message::Event(seq, number)) => found.events.push((seq, number)),
            Some(Message::Pong(77)) => found.pong_after = Some(found.events.len()),
            Some(Message::Close(..) | Message::Gone) => panic!("the stalled reader was cut off"),
            Some(_) => {}
            None if !asked && admin.call("GET", "/v1/clients/slow", None).1["queued"] == 0 => {
                asked = true;
                admin.publish("t", EVENTS + 1, 1);
            }
            None => {}
        }
    }
}

/// Reads to the end of the connection.
fn read_to_the_end(peer: &mut Peer) -> Found {
    let mut found = Found { events: Vec::new(), pong_after: None, close: None };
    loop {
        match peer.next() {
            Message::Event(seq, number) => found.events.push((seq, number)),
            Message::Close(code, reason) => found.close = Some((code, reason)),
            Message::Gone => return found,
            _ => {}
        }
    }
}

fn numbers(events: &[(u64, u64)]) -> BTreeSet<u64> {
    let set: BTreeSet<u64> = events.iter().map(|(_, number)| *number).collect();
    assert_eq!(set.len(), events.len(), "an event came twice");
    assert!(events.iter().all(|(seq, number)| seq == number), "sequence numbers are not those of the events");
    set
}

fn dropping(policy: &str, counter: &str) {
    let (server, mut stalled, found) = stall(policy, 2 * EVENTS);
    let first = numbers(&found.events);
    assert!(found.events.is_sorted(), "out of order");
    let lost = EVENTS - first.len() as u64;
    assert!(lost > EVENTS / 4, "only {lost} events were dropped: the reader was hardly stalled");
    assert_eq!(server.admin().stat(counter), lost, "dropped by the counter, and missing at the client");
    let pong = found.pong_after.expect("the pong arrived");
    assert!(pong < found.events.len(), "the pong came behind {pong} events, behind all");

    // The session still has them: a resume brings exactly those.
    let reached = (1..).find(|n| !first.contains(n)).expect("something is missing") - 1;
    let (events, answer) = stalled.resume(reached as i64);
    let again = numbers(&events);
    assert_eq!(
        answer,
        (true, again.first().map_or(0, |n| *n as i64)),
        "the answer names the first that was sent again"
    );
    assert!(first.is_disjoint(&again), "an event that was there came again");
    assert_eq!(first.union(&again).copied().collect::<Vec<_>>(), (1..=EVENTS).collect::<Vec<_>>());
}

#[test]
fn drop_oldest_loses_what_it_says_and_brings_it_back() {
    dropping("drop-oldest", "droppedOldest");
}

#[test]
fn drop_newest_loses_what_it_says_and_brings_it_back() {
    dropping("drop-newest", "droppedNewest");
}

#[test]
fn what_the_session_no_longer_has_is_declared() {
    let (server, mut stalled, found) = stall("drop-oldest", 8);
    let first = numbers(&found.events);
    let lost = EVENTS - first.len() as u64;
    assert_eq!(server.admin().stat("droppedOldest"), lost);
    let reached = (1..).find(|n| !first.contains(n)).expect("something is missing") - 1;
    let (events, answer) = stalled.resume(reached as i64);
    let again = numbers(&events);
    assert!(first.is_disjoint(&again), "an event that was there came again");
    assert_eq!(answer, (false, 0), "a gap that cannot be closed is declared at once");
    assert!(again.len() < lost as usize, "nothing was lost for good: the history is larger than it says");
}

#[test]
fn disconnect_closes_and_the_return_brings_everything() {
    let (mut server, stalled, found) = stall("disconnect", 2 * EVENTS);
    let first = numbers(&found.events);
    assert_eq!(found.close, Some((1013, "slow consumer".to_owned())));
    let reached = first.len() as u64;
    assert_eq!(
        first.into_iter().collect::<Vec<_>>(),
        (1..=reached).collect::<Vec<_>>(),
        "a hole before the close"
    );
    assert!(server.admin().stat("disconnectedSlow") >= 1);
    drop(stalled);
    let mut admin = server.admin();
    server.wait_for("the end of the old connection", PATIENCE, |_| {
        (admin.call("GET", "/v1/clients/slow", None).0 == 404).then_some(())
    });
    let mut back = Peer::connect(&server, Some(TOKEN), None);
    back.control(|e| e.hello(&[], reached as i64));
    let mut rest = Vec::new();
    loop {
        match back.next() {
            Message::Event(seq, number) => rest.push((seq, number)),
            Message::Resumed(ok, from) => {
                assert_eq!((ok, from), (true, reached as i64 + 1));
                break;
            }
            Message::Gone => panic!("the connection ended"),
            _ => {}
        }
    }
    assert_eq!(numbers(&rest).into_iter().collect::<Vec<_>>(), (reached + 1..=EVENTS).collect::<Vec<_>>());
}
