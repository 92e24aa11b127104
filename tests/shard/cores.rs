//! Stories between two cores: what crosses, what moves, and who pauses.

use std::sync::Arc;

use seqcast::config::{Config, InboundRule};
use seqcast::shard::census::Census;
use seqcast::shard::home_of_topic;
use seqcast::shard::step::{Answer, Ask, ConnId, CoreId, Input, Output, RoomKind, Target};

use super::rig::{Rig, Seen, config, events};

const SEED: u64 = 7;

/// Two cores and what lies between them.
struct Pair {
    cores: [Rig; 2],
    /// A core that takes nothing from the other one.
    stuck: Option<usize>,
}

impl Pair {
    fn new(config: &Config, staged_bytes: usize) -> Pair {
        let census = Arc::new(Census::new(2));
        let core = |core| Rig::sharing(config.clone(), core, 2, SEED, Arc::clone(&census), staged_bytes);
        Pair { cores: [core(0), core(1)], stuck: None }
    }

    /// Hands over until nothing is left that somebody takes.
    fn exchange(&mut self) {
        loop {
            let mut is_over = true;
            for from in [0, 1] {
                let to = 1 - from;
                while self.stuck != Some(to)
                    && let Some(mut batch) = self.cores[from].shard.take_batch(to as CoreId)
                {
                    is_over = false;
                    while let Some(handoff) = batch.take() {
                        self.cores[to].input(Input::Handoff { from: from as CoreId, handoff });
                    }
                    self.cores[from].shard.return_batch(to as CoreId, batch);
                }
                self.cores[from].pump();
            }
            if is_over {
                return;
            }
        }
    }

    fn member(&mut self, core: usize, token: &str, topic: &str) -> ConnId {
        let conn = self.cores[core].member(token, topic);
        self.exchange();
        conn
    }

    fn publish(&mut self, core: usize, topic: &str, numbers: std::ops::RangeInclusive<i64>) {
        for n in numbers {
            let ask = self.cores[core].quote(Target::Room(RoomKind::Topic, topic.into()), n, 0);
            self.cores[core].order(ask);
            self.exchange();
        }
    }
}

/// A topic with this core as its home.
fn topic_at(core: usize) -> String {
    (0..).map(|n| format!("topic-{n}")).find(|name| home_of_topic(SEED, 2, name) == core as CoreId).unwrap()
}

#[test]
fn a_topics_history_reaches_whoever_subscribes_on_another_core() {
    let mut config = config();
    config.replay.history_size = 3;
    let mut pair = Pair::new(&config, 1 << 20);
    let topic = topic_at(0);
    pair.publish(0, &topic, 1..=5);
    let first = pair.member(1, "any", &topic);
    assert_eq!(pair.cores[1].seen(first), events(1..=3, 3..=5));
    pair.publish(0, &topic, 6..=6);
    assert_eq!(pair.cores[1].seen(first), events(4..=4, 6..=6));
    // The core follows the topic: it answers whoever comes next by itself.
    let second = pair.cores[1].member("any", &topic);
    assert!(!pair.cores[1].shard.has_batch(0));
    assert_eq!(pair.cores[1].seen(second), events(1..=3, 4..=6));
}

#[test]
fn a_snapshot_comes_from_the_home_and_later_messages_wait_for_it() {
    let mut config = config();
    config.replay.history_size = 3;
    let mut pair = Pair::new(&config, 1 << 20);
    let topic = topic_at(0);
    pair.publish(0, &topic, 1..=5);
    let asking = pair.cores[1].connect("any");
    pair.cores[1].hello(asking, 0);
    pair.cores[1].control(asking, |e| e.snapshot_request(&topic, 3));
    pair.cores[1].control(asking, |e| e.ping(9));
    assert_eq!(pair.cores[1].seen(asking), [], "the pong comes behind what was asked before it");
    pair.exchange();
    let mut expected = vec![Seen::Event(0, 4), Seen::Event(0, 5)];
    expected.push(Seen::Pong(9));
    let mut seen = pair.cores[1].seen(asking);
    seen.sort_by_key(|seen| matches!(seen, Seen::Pong(_)));
    assert_eq!(seen, expected);
}

#[test]
fn a_core_that_takes_nothing_pauses_its_feeders_and_nobody_else_and_nothing_is_lost() {
    let mut config = config();
    config.inbound.insert("quote".into(), InboundRule::Topic(topic_at(1)));
    config.backpressure.max_queue = 10_000;
    let mut pair = Pair::new(&config, 500);
    let reader = pair.member(1, "any", &topic_at(1));
    let publisher = pair.cores[0].connect("any");
    pair.cores[0].hello(publisher, 0);
    let bystander = pair.cores[0].connect("any");
    pair.cores[0].hello(bystander, 0);
    pair.stuck = Some(1);
    let mut sent = 0;
    let is_paused = |rig: &Rig| rig.outputs.iter().any(|o| matches!(o, Output::Pause { .. }));
    while !is_paused(&pair.cores[0]) {
        sent += 1;
        let quote = pair.cores[0].client_quote(sent);
        pair.cores[0].message(publisher, &quote);
        assert!(sent < 100, "it is read although what it says goes nowhere");
    }
    assert_eq!(pair.cores[0].shard.counters().mesh_pauses, 1);
    // What had arrived already is held, not handled.
    for _ in 0..3 {
        sent += 1;
        let quote = pair.cores[0].client_quote(sent);
        pair.cores[0].message(publisher, &quote);
    }
    pair.cores[0].control(bystander, |e| e.ping(1));
    assert_eq!(pair.cores[0].seen(bystander), [Seen::Pong(1)]);
    assert_eq!(pair.cores[1].seen(reader), []);
    pair.stuck = None;
    pair.exchange();
    assert_eq!(pair.cores[1].seen(reader), events(1..=sent as u64, 1..=sent));
    assert!(pair.cores[0].outputs.iter().any(|o| matches!(o, Output::Resume { .. })));
}

#[test]
fn a_home_that_cannot_spread_tells_its_feeders_to_hold() {
    let mut config = config();
    config.inbound.insert("quote".into(), InboundRule::Topic(topic_at(1)));
    config.backpressure.max_queue = 10_000;
    let mut pair = Pair::new(&config, 500);
    let reader = pair.member(0, "any", &topic_at(1));
    let publisher = pair.cores[0].connect("any");
    pair.cores[0].hello(publisher, 0);
    // Core 0 takes nothing back, so the home has too much for it.
    let mut sent = 0;
    while pair.cores[1].shard.counters().handoffs < 40 {
        pair.stuck = Some(0);
        sent += 1;
        let quote = pair.cores[0].client_quote(sent);
        pair.cores[0].message(publisher, &quote);
        pair.exchange();
    }
    assert_eq!(pair.cores[0].shard.counters().mesh_pauses, 0, "it has not heard of it");
    // The word comes with the first thing that it takes.
    let mut batch = pair.cores[1].shard.take_batch(0).expect("the home has something for it");
    while let Some(handoff) = batch.take() {
        pair.cores[0].input(Input::Handoff { from: 1, handoff });
    }
    sent += 1;
    let quote = pair.cores[0].client_quote(sent);
    pair.cores[0].message(publisher, &quote);
    assert_eq!(pair.cores[0].shard.counters().mesh_pauses, 1);
    pair.stuck = None;
    pair.exchange();
    assert_eq!(pair.cores[0].seen(reader), events(1..=sent as u64, 1..=sent));
    assert!(pair.cores[0].outputs.iter().any(|o| matches!(o, Output::Resume { .. })));
}

#[test]
fn a_publish_is_answered_when_every_core_has_it() {
    let mut pair = Pair::new(&config(), 1 << 20);
    pair.member(1, "any", &topic_at(0));
    pair.stuck = Some(1);
    for target in [Target::All, Target::Room(RoomKind::Topic, topic_at(0).into())] {
        let ask = pair.cores[0].quote(target, 1, 0);
        pair.cores[0].order(ask);
    }
    pair.exchange();
    let is_answer =
        |o: &Output| matches!(o, Output::Reply(r) if matches!(r.answer, Answer::Published { .. }));
    assert_eq!(pair.cores[0].outputs.iter().filter(|o| is_answer(o)).count(), 0);
    pair.stuck = None;
    pair.exchange();
    assert_eq!(pair.cores[0].outputs.iter().filter(|o| is_answer(o)).count(), 2);
}

#[test]
fn large_events_cross_too() {
    let mut config = config();
    config.replay.history_size = 2;
    let mut pair = Pair::new(&config, 1 << 20);
    let topic = topic_at(0);
    let reader = pair.member(1, "any", &topic);
    for n in 1..=3 {
        let ask = pair.cores[0].quote(Target::Room(RoomKind::Topic, topic.clone().into()), n, 100_000);
        pair.cores[0].order(ask);
    }
    pair.exchange();
    assert_eq!(pair.cores[1].seen(reader), events(1..=3, 1..=3));
    let late = pair.member(1, "any", &topic);
    assert_eq!(pair.cores[1].seen(late), events(1..=2, 2..=3));
    let everybody = pair.cores[1].quote(Target::All, 4, 50_000);
    pair.cores[1].order(everybody);
    let other = pair.cores[0].connect("any");
    pair.cores[0].hello(other, 0);
    pair.exchange();
    assert_eq!(pair.cores[0].seen(other), events(1..=1, 4..=4));
}

#[test]
fn places_are_counted_over_all_cores() {
    let mut config = config();
    config.server.max_connections = 2;
    let mut pair = Pair::new(&config, 1 << 20);
    let conns = [0, 1].map(|core| pair.cores[core].connect("any"));
    let refused = pair.cores[0].connect("any");
    assert!(pair.cores[0].text(refused).starts_with("HTTP/1.1 503 "));
    pair.cores[1].lose(conns[1], 0);
    let admitted = pair.cores[0].connect("any");
    assert!(pair.cores[0].text(admitted).starts_with("HTTP/1.1 101 "));
    assert!(matches!(pair.cores[0].ask(Ask::Stats), Answer::Stats(stats) if stats.connected_clients == 2));
}

/// Bytes that wait on a core for the other one, which takes none of them.
fn staged(rig: &mut Rig, to: CoreId) -> usize {
    std::iter::from_fn(|| rig.shard.take_batch(to)).map(|batch| batch.weight()).sum()
}

#[test]
fn snapshots_for_another_core_do_not_pile_up() {
    const HISTORY: usize = 100;
    let mut config = config();
    config.replay.history_size = HISTORY as u32;
    let mut pair = Pair::new(&config, 64 * 1024);
    let topic = topic_at(0);
    for n in 1..=HISTORY as i64 {
        pair.cores[0].publish_padded(&topic, n, 4096);
    }
    let asking: Vec<ConnId> = (0..50).map(|_| pair.cores[1].connect("any")).collect();
    pair.exchange();
    pair.stuck = Some(1);
    for conn in asking {
        pair.cores[1].hello(conn, 0);
        pair.cores[1].control(conn, |e| e.snapshot_request(&topic, 0));
    }
    pair.exchange();
    let history = HISTORY * 4200;
    let staged = staged(&mut pair.cores[0], 1);
    assert!(staged <= 2 * history, "{staged} bytes are staged for a history of {history}");
}

#[test]
fn listings_for_another_core_do_not_pile_up() {
    let mut pair = Pair::new(&config(), 64 * 1024);
    for _ in 0..200 {
        pair.cores[1].connect("any");
    }
    pair.stuck = Some(0);
    for _ in 0..100 {
        let conn = pair.cores[0].accept();
        pair.cores[0].bytes(conn, b"GET /clients HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer any\r\n\r\n");
        // Whoever asked does not even wait for it.
        pair.cores[0].lose(conn, 0);
    }
    pair.exchange();
    let staged = staged(&mut pair.cores[1], 0);
    assert!(staged <= 256 * 1024, "{staged} bytes of rows are staged for nobody");
}

#[test]
fn those_who_go_on_do_not_all_go_on_at_once() {
    const FEEDERS: usize = 200;
    let mut config = config();
    config.inbound.insert("quote".into(), InboundRule::Topic(topic_at(1)));
    let mut pair = Pair::new(&config, 10_000);
    let feeders: Vec<ConnId> = (0..FEEDERS).map(|_| pair.cores[0].connect("any")).collect();
    for conn in &feeders {
        pair.cores[0].hello(*conn, 0);
    }
    pair.exchange();
    pair.stuck = Some(1);
    let quote = pair.cores[0].client_quote(1);
    for _ in 0..100 {
        for conn in &feeders {
            pair.cores[0].message(*conn, &quote);
        }
    }
    assert!(pair.cores[0].shard.counters().mesh_pauses > 50);
    // The other core takes everything once, and nothing more.
    while let Some(batch) = pair.cores[0].shard.take_batch(1) {
        pair.cores[0].shard.return_batch(1, batch);
    }
    pair.cores[0].pump();
    let staged = staged(&mut pair.cores[0], 1);
    assert!(staged <= 12_000, "{staged} bytes are staged where 10000 may be");
}

#[test]
fn a_listing_that_says_too_much_is_no_duplicate() {
    let mut pair = Pair::new(&config(), 64 * 1024);
    let conn = pair.cores[0].accept();
    pair.cores[0].bytes(conn, b"GET /clients HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer any\r\n\r\n");
    pair.cores[0].bytes(conn, &[b'x'; 65_537]);
    let text = pair.cores[0].text(conn);
    assert!(!text.starts_with("HTTP/1.1 409"), "{text}");
}
