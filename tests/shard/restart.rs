//! A restart: what a server of some cores leaves behind, a server of some other cores goes on with. The bytes of the
//! state file lie between the two.

use crate::rig::{Rig, Seen, config, events};
use Seen::{Event, Resumed};
use seqcast::config::{Config, Identity};
use seqcast::control::state::{decode, encode};
use seqcast::shard::handoff::Batch;
use seqcast::shard::saved::Saved;
use seqcast::shard::split::split;
use seqcast::shard::step::{Answer, Ask, ConnId, CoreId, Input, Instant, Output, RoomKind, Target};
use seqcast::shard::{home_of_client, home_of_topic};

/// All cores of a server.
struct Server {
    cores: Vec<Rig>,
    seed: u64,
}

/// A client's connection at the core that has it.
type At = (usize, ConnId);

impl Server {
    fn new(config: &Config, cores: CoreId) -> Server {
        Server::begin(config, cores, 11, 5_000_000_000, Vec::new())
    }

    fn begin(config: &Config, cores: CoreId, seed: u64, now: u64, saved: Vec<Saved>) -> Server {
        let mut rigs: Vec<Rig> =
            (0..cores).map(|core| Rig::of(config.clone(), core, cores, seed, now)).collect();
        for (rig, restored) in rigs.iter_mut().zip(split(saved, seed, cores)) {
            rig.shard.restore(Instant(now), &restored);
            rig.pump();
        }
        let mut server = Server { cores: rigs, seed };
        server.exchange();
        server
    }

    /// Handoffs travel until there are none.
    fn exchange(&mut self) {
        let mut is_quiet = false;
        while !std::mem::replace(&mut is_quiet, true) {
            let cores = self.cores.len();
            for (from, to) in (0..cores * cores).map(|pair| (pair / cores, pair % cores)) {
                while let Some(mut batch) = self.cores[from].shard.take_batch(to as CoreId) {
                    is_quiet = false;
                    self.take(from, to, &mut batch);
                }
            }
        }
    }

    fn take(&mut self, from: usize, to: usize, batch: &mut Batch) {
        while let Some(handoff) = batch.take() {
            self.cores[to].input(Input::Handoff { from: from as CoreId, handoff });
        }
    }

    fn count(&self) -> CoreId {
        self.cores.len() as CoreId
    }

    fn connect(&mut self, id: &str) -> At {
        let core = usize::from(home_of_client(self.seed, self.count(), id));
        (core, self.cores[core].connect(&format!("tok-{id}")))
    }

    fn hello(&mut self, at: At, last_seq: i64) {
        self.cores[at.0].hello(at.1, last_seq);
    }

    fn subscribe(&mut self, at: At, topic: &str) {
        self.cores[at.0].subscribe(at.1, topic);
        self.exchange();
    }

    /// A client that is back, with everything it got up to its hello's answer.
    fn back(&mut self, id: &str, last_seq: i64) -> (At, Vec<Seen>) {
        let at = self.connect(id);
        self.hello(at, last_seq);
        (at, self.seen(at))
    }

    fn member(&mut self, id: &str, topic: &str) -> At {
        let at = self.connect(id);
        self.hello(at, 0);
        self.subscribe(at, topic);
        at
    }

    fn seen(&mut self, at: At) -> Vec<Seen> {
        self.cores[at.0].seen(at.1)
    }

    /// The connection ends before anything of it was acknowledged, or behind all of it.
    fn lose(&mut self, at: At, unacked: u32) {
        self.cores[at.0].lose(at.1, unacked);
    }

    fn publish(&mut self, topic: &str, numbers: std::ops::RangeInclusive<i64>) {
        for n in numbers {
            self.publish_padded(topic, n, 0);
        }
    }

    /// Epoch and number within the topic.
    fn publish_padded(&mut self, topic: &str, n: i64, pad: usize) -> (Box<str>, u64) {
        let home = usize::from(home_of_topic(self.seed, self.count(), topic));
        self.publish_at(home, Target::Room(RoomKind::Topic, topic.into()), n, pad)
            .expect("a topic has numbers")
    }

    fn publish_at(&mut self, core: usize, target: Target, n: i64, pad: usize) -> Option<(Box<str>, u64)> {
        let ask = self.cores[core].quote(target, n, pad);
        self.cores[core].order(ask);
        self.exchange();
        match self.answers(core).pop() {
            Some(Answer::Published { topic, .. }) => topic,
            other => panic!("answer to a publish: {other:?}"),
        }
    }

    fn answers(&mut self, core: usize) -> Vec<Answer> {
        let outputs = std::mem::take(&mut self.cores[core].outputs).into_iter();
        let answers = outputs.filter_map(|output| match output {
            Output::Reply(reply) => Some(reply.answer),
            _ => None,
        });
        answers.collect()
    }

    fn pass(&mut self, ms: u64) {
        for rig in &mut self.cores {
            rig.pass(ms);
        }
        self.exchange();
    }

    /// Ends as a server does that is told to; what it leaves.
    fn save(&mut self) -> Vec<Saved> {
        for core in 0..self.cores.len() {
            self.cores[core].drain(0);
        }
        self.pass(0);
        for core in 0..self.cores.len() {
            assert!(matches!(self.answers(core)[..], [Answer::Ok]), "core {core} has drained");
            self.cores[core].order(Ask::Save);
        }
        self.exchange();
        let saved = (0..self.cores.len()).map(|core| match self.answers(core).pop() {
            Some(Answer::Saved(saved)) => *saved,
            other => panic!("answer to the order to save: {other:?}"),
        });
        saved.collect()
    }

    /// Ends, and begins again after so long, with other homes for everything.
    fn restart(mut self, config: &Config, cores: CoreId, away_ms: u64) -> Server {
        let saved = self.save();
        let schema = self.cores[0].schema.clone();
        let saved = decode(&encode(&saved, &schema), &schema).unwrap();
        Server::begin(config, cores, self.seed + 1, self.cores[0].now + away_ms * 1_000_000, saved)
    }

    fn sum(&mut self, count: impl Fn(&seqcast::metrics::Counters) -> u64) -> u64 {
        self.cores.iter_mut().map(|rig| count(rig.shard.counters())).sum()
    }
}

/// Numbers of cores before and behind a restart.
const CORES: [(CoreId, CoreId); 6] = [(1, 1), (1, 3), (2, 2), (3, 1), (4, 3), (2, 4)];

fn some_identities(config: &mut Config, n: usize) {
    config.auth.identity = (0..n)
        .map(|n| Identity {
            token: format!("tok-p{n}"),
            id: Some(format!("p{n}")),
            topics: vec!["*".into()],
            groups: vec!["g".into()],
            ..Identity::default()
        })
        .collect();
}

#[test]
fn a_restart_is_a_cut() {
    for (before, behind) in CORES {
        let mut config = config();
        some_identities(&mut config, 9);
        let mut server = Server::new(&config, before);
        let ids: Vec<String> = (0..9).map(|n| format!("p{n}")).collect();
        for id in &ids {
            let at = server.member(id, "t");
            server.publish("t", 1..=1);
            assert!(!server.seen(at).is_empty());
            // Two are away already.
            if ["p3", "p4"].contains(&&**id) {
                server.lose(at, 0);
            }
        }
        server.publish("t", 2..=3);
        let mut server = server.restart(&config, behind, 2_000);
        server.publish("t", 4..=4);
        server.publish_at(0, Target::Room(RoomKind::Group, "g".into()), 5, 0);
        server.publish_at(0, Target::All, 6, 0);
        let mut back = Vec::new();
        for (n, id) in (0..).zip(&ids) {
            // Whoever came n-th got 9 - n times 1, then the rest.
            let had = 9 - n;
            let (at, seen) = server.back(id, had);
            let mut want = events(had as u64 + 1..=had as u64 + 5, 2..=6);
            want.push(Resumed(true, had + 1));
            assert_eq!(seen, want, "{id} of {before} cores, now {behind}");
            back.push((at, had as u64 + 6));
        }
        server.publish("t", 7..=7);
        for (at, next) in back {
            assert_eq!(server.seen(at), [Event(next, 7)]);
        }
        assert_eq!(server.sum(|counters| counters.sessions_restored), 9);
    }
}

#[test]
fn topics_keep_their_numbers_and_histories() {
    for (before, behind) in CORES {
        let mut config = config();
        config.replay.history_size = 3;
        let mut server = Server::new(&config, before);
        server.member("u1", "a");
        server.publish("a", 1..=5);
        server.publish("b", 1..=2);
        let numbers = ["a", "b"].map(|topic| server.publish_padded(topic, 9, 0));
        let mut server = server.restart(&config, behind, 0);
        for (topic, (epoch, seq)) in ["a", "b"].iter().zip(numbers) {
            assert_eq!(server.publish_padded(topic, 10, 0), (epoch, seq + 1), "{topic}");
        }
        // Of those it was in, a client gets what it missed; of others, their history.
        let (at, seen) = server.back("u1", 6);
        assert_eq!(seen, [Event(7, 10), Resumed(true, 7)]);
        server.subscribe(at, "a");
        assert_eq!(server.seen(at), [], "it was in it all the time");
        server.subscribe(at, "b");
        assert_eq!(server.seen(at), [Event(8, 2), Event(9, 9), Event(10, 10)]);
        let late = server.member("u2", "a");
        assert_eq!(server.seen(late), [Event(1, 5), Event(2, 9), Event(3, 10)]);
    }
}

#[test]
fn a_topic_that_nobody_is_in_keeps_its_numbers_and_one_without_numbers_gets_new_ones() {
    let config = config();
    let mut server = Server::new(&config, 2);
    let first = server.publish_padded("alone", 1, 0);
    server.member("u1", "silent");
    server.member("u2", "silent");
    let mut server = server.restart(&config, 3, 0);
    assert_eq!(server.publish_padded("alone", 2, 0), (first.0, 2));
    assert_eq!(server.publish_padded("silent", 3, 0).1, 1);
    for id in ["u1", "u2"] {
        assert_eq!(server.back(id, 0).1, [Event(1, 3)]);
    }
}

#[test]
fn what_was_never_written_is_known_to_be_so() {
    let mut config = config();
    config.backpressure.max_queue = 2;
    let mut server = Server::new(&config, 1);
    let at = server.member("u1", "t");
    server.publish("t", 1..=2);
    server.cores[0].stall(at.1, 0);
    server.publish("t", 3..=7);
    assert_eq!(server.seen(at), events(1..=2, 1..=2));
    let mut server = server.restart(&config, 2, 0);
    let (_, seen) = server.back("u1", 2);
    let mut want = events(3..=7, 3..=7);
    want.push(Resumed(true, 3));
    assert_eq!(seen, want, "dropped ones too: they are in line again");
}

#[test]
fn a_loss_is_still_declared() {
    let mut config = config();
    config.resume.history_size = 2;
    let mut server = Server::new(&config, 2);
    let at = server.member("u1", "t");
    server.publish("t", 1..=1);
    server.lose(at, 0);
    server.publish("t", 2..=5);
    let mut server = server.restart(&config, 1, 0);
    let mut want = events(4..=5, 4..=5);
    want.push(Resumed(false, 0));
    assert_eq!(server.back("u1", 1).1, want);
}

#[test]
fn a_lost_session_is_declared_until_the_client_has_heard_of_it() {
    let config = config();
    let mut server = Server::new(&config, 1);
    let at = server.connect("u1");
    server.hello(at, 41);
    server.subscribe(at, "t");
    server.publish("t", 1..=2);
    server.lose(at, u32::MAX);
    let mut server = server.restart(&config, 1, 0);
    let mut want = vec![Resumed(false, 0)];
    want.extend(events(42..=43, 1..=2));
    assert_eq!(server.back("u1", 41).1, want);
}

#[test]
fn whoever_has_nothing_is_behind_or_new() {
    let config = config();
    let mut server = Server::new(&config, 2);
    let got = server.member("u1", "t");
    let never = server.member("u2", "t");
    server.publish("t", 1..=2);
    server.lose(got, 0);
    server.lose(never, u32::MAX);
    let mut server = server.restart(&config, 2, 0);
    server.publish("t", 3..=3);
    assert_eq!(server.back("u2", 0).1, events(1..=3, 1..=3), "nothing ever reached it");
    assert_eq!(server.back("u1", 0).1, [], "it is another process of the client");
    assert_eq!(server.sum(|counters| counters.sessions_restarted), 1);
}

#[test]
fn memberships_are_judged_by_the_identity_that_comes_back() {
    let mut config = config();
    some_identities(&mut config, 1);
    let mut server = Server::new(&config, 1);
    let at = server.member("p0", "a-topic");
    server.subscribe(at, "b-topic");
    let core = usize::from(home_of_client(server.seed, 1, "p0"));
    let ask = Ask::Member { id: "p0".into(), kind: RoomKind::Group, room: "by-order".into(), on: true };
    assert!(matches!(server.cores[core].ask(ask), Answer::Ok));
    config.auth.identity[0].topics = vec!["a-*".into()];
    config.auth.identity[0].groups = vec!["other".into()];
    let mut server = server.restart(&config, 3, 0);
    server.back("p0", 0);
    let home = usize::from(home_of_client(server.seed, 3, "p0"));
    match server.cores[home].ask(Ask::Client { id: "p0".into() }) {
        Answer::Client(row) => {
            assert_eq!(row.topics, ["a-topic".into()]);
            assert_eq!(row.groups, ["by-order".into(), "other".into()]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn time_goes_on_while_no_process_runs() {
    let config = config();
    let mut server = Server::new(&config, 2);
    let early = server.member("u1", "t");
    server.lose(early, 0);
    server.pass(30_000);
    server.member("u2", "t");
    let mut server = server.restart(&config, 3, 29_000);
    assert_eq!(server.sum(|counters| counters.sessions_restored), 2);
    server.pass(999);
    assert_eq!(server.sum(|counters| counters.parked_expired), 0);
    server.pass(1);
    assert_eq!(server.sum(|counters| counters.parked_expired), 1, "60 s after its connection has ended");
    let mut server = server.restart(&config, 1, 30_000);
    assert_eq!(server.sum(|counters| counters.sessions_restored), 0);
    assert_eq!(server.sum(|counters| counters.parked_expired), 1, "while no process ran");
    server.publish("t", 1..=1);
    assert_eq!(server.back("u2", 5).1, [Resumed(false, 0)]);
}

#[test]
fn limits_of_the_new_configuration_hold() {
    let mut config = config();
    config.replay.history_size = 10;
    let mut server = Server::new(&config, 2);
    server.member("u1", "t");
    server.pass(1);
    server.member("u2", "t");
    for n in 1..=8 {
        server.publish_padded("t", n, 1000);
    }
    config.resume.max_parked = 1;
    config.resume.history_size = 4;
    config.replay.history_size = 3;
    let mut server = server.restart(&config, 1, 0);
    assert_eq!(server.sum(|counters| counters.parked_expired), 1, "the one that was parked first");
    let (at, seen) = server.back("u2", 1);
    let mut want = events(5..=8, 5..=8);
    want.push(Resumed(false, 0));
    assert_eq!(seen.len(), want.len(), "{seen:?}");
    server.lose(at, 0);
    config.replay.history_bytes = 2_500;
    config.resume.parked_bytes = 1_200;
    let mut server = server.restart(&config, 1, 0);
    match server.cores[0].ask(Ask::Stats) {
        Answer::Stats(stats) => {
            assert!(stats.topic_bytes > 2_000 && stats.topic_bytes <= 2_500, "{stats:?}");
            assert!(stats.parked_bytes > 1_000 && stats.parked_bytes <= 1_200, "{stats:?}");
        }
        other => panic!("{other:?}"),
    }
    config.resume.enabled = false;
    let mut server = server.restart(&config, 2, 0);
    assert_eq!(server.sum(|counters| counters.sessions_restored), 0);
}

#[test]
fn what_several_cores_stored_is_stored_once_where_it_comes_together() {
    let mut config = config();
    some_identities(&mut config, 12);
    config.replay.history_size = 10;
    let mut server = Server::new(&config, 4);
    for n in 0..12 {
        server.member(&format!("p{n}"), "t");
    }
    // Equal events are several all the same.
    server.publish("t", 1..=5);
    server.publish("t", 1..=5);
    let server = server.restart(&config, 1, 0);
    assert_eq!(server.cores[0].shard.store_slots(), 10);
    let mut server = server.restart(&config, 3, 0);
    for n in 0..12 {
        let (_, seen) = server.back(&format!("p{n}"), 3);
        let mut want = events(4..=5, 4..=5);
        want.extend(events(6..=10, 1..=5));
        want.push(Resumed(true, 4));
        assert_eq!(seen, want);
    }
    assert!(server.cores.iter().all(|rig| rig.shard.store_slots() <= 10));
}

#[test]
fn equal_events_of_two_topics_stay_two() {
    let mut config = config();
    config.replay.history_size = 4;
    let mut server = Server::new(&config, 3);
    for topic in ["a", "b", "c", "d"] {
        server.publish(topic, 1..=1);
        server.publish(topic, 1..=1);
    }
    let mut server = server.restart(&config, 1, 0);
    assert_eq!(server.cores[0].shard.store_slots(), 8);
    for topic in ["a", "b", "c", "d"] {
        let at = server.member("u1", topic);
        assert_eq!(server.seen(at).len(), 2);
        server.lose(at, 0);
        server.pass(60_001);
    }
}

#[test]
fn what_is_saved_again_at_once_is_the_same() {
    for (before, behind) in CORES {
        let mut config = config();
        some_identities(&mut config, 7);
        config.replay.history_size = 3;
        let mut server = Server::new(&config, before);
        for n in 0..7 {
            let at = server.member(&format!("p{n}"), &format!("t{}", n % 3));
            server.subscribe(at, "all");
            server.publish("all", n..=n + 1);
            server.publish("t1", n..=n);
            server.lose(at, if n % 2 == 0 { 0 } else { u32::MAX });
        }
        let first = server.save();
        let mut again = Server::begin(&config, behind, 99, server.cores[0].now, first.clone());
        assert_eq!(plain(&again.save()), plain(&first), "{before} to {behind}");
    }
}

/// Sessions and topics by name, with the bytes of their events, in whatever core they are.
fn plain(saved: &[Saved]) -> std::collections::BTreeMap<String, String> {
    let mut all = std::collections::BTreeMap::new();
    for core in saved {
        let event = |at: u32| &core.events[at as usize];
        for topic in &core.topics {
            let history: Vec<_> = topic.history.iter().map(|(seq, at)| (seq, event(*at))).collect();
            all.insert(format!("t {}", topic.name), format!("{} {} {history:?}", topic.epoch, topic.seq));
        }
        for session in &core.sessions {
            let mut bare = session.clone();
            bare.entries.clear();
            let entries =
                session.entries.iter().map(|e| (e.event().map(event), e.is_unsent(), e.is_skipped()));
            all.insert(format!("s {}", session.id), format!("{bare:?} {:?}", entries.collect::<Vec<_>>()));
        }
    }
    all
}
