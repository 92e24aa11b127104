//! The session as stories: what it says on a connection, after a cut, over a hole, and when it gives up.

use std::time::Duration;

use seqcast::client::action::{Action, End, RequestError, SendError, Status};
use seqcast::client::backoff::{Backoff, BackoffOptions};
use seqcast::client::gate::{GateOptions, Generation};
use seqcast::client::session::{Session, SessionOptions, envelope_of};
use seqcast::wire::control::{self, Control, Encoder};
use seqcast::wire::envelope::{self, FLAGS_AT, HEADER_BYTES, fnv1a32};

const QUOTE: u32 = fnv1a32("quote");

/// A session and the words it says.
struct Story {
    session: Session,
    now: Duration,
}

impl Story {
    fn new(generation: Generation) -> Self {
        Story::with(SessionOptions {
            gate: GateOptions { generation, ..GateOptions::default() },
            ..SessionOptions::default()
        })
    }

    fn with(options: SessionOptions) -> Self {
        let mut session = Session::new(options);
        assert_eq!(session.poll(), Some(Action::Status(Status::Connecting)));
        Story { session, now: Duration::ZERO }
    }

    /// Opens a connection and lets the server greet.
    fn open(&mut self) -> Vec<String> {
        self.session.opened(self.now);
        let said = self.said();
        self.server(|encoder| encoder.hello(&["seqcast.1"], 0).to_vec());
        self.server(|encoder| encoder.welcome("c1", ["g"]).to_vec());
        said
    }

    fn server(&mut self, message: impl FnOnce(&mut Encoder) -> Vec<u8>) -> Vec<String> {
        let message = message(&mut Encoder::new());
        self.session.received(self.now, &message);
        self.said()
    }

    /// Events with these numbers; number 0 = unstamped.
    fn events(&mut self, seqs: impl IntoIterator<Item = u64>) -> Vec<String> {
        for seq in seqs {
            let mut message = envelope_of(QUOTE, &seq.to_le_bytes());
            if seq > 0 {
                envelope::stamp(&mut message[FLAGS_AT..HEADER_BYTES], seq);
            }
            self.session.received(self.now, &message);
        }
        self.said()
    }

    fn resumed(&mut self, ok: bool, from: i64) -> Vec<String> {
        self.server(|encoder| encoder.resumed(ok, from).to_vec())
    }

    fn lost(&mut self, end: End) -> Vec<String> {
        self.session.lost(self.now, end);
        self.said()
    }

    fn after(&mut self, milliseconds: u64) -> Vec<String> {
        self.now += Duration::from_millis(milliseconds);
        self.session.tick(self.now);
        self.said()
    }

    fn said(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.session.poll()).filter_map(word).collect()
    }
}

fn word(action: Action) -> Option<String> {
    Some(match action {
        Action::Send(message) => {
            let header = envelope::parse(&message).unwrap();
            assert_eq!((header.flags, header.seq), (0, 0), "a client stamps nothing");
            match control::decode(header.id, &message[HEADER_BYTES..]) {
                Ok(Control::Hello { version: 2, caps, last_seq }) if caps.is_empty() => {
                    format!("hello{{{last_seq}}}")
                }
                Ok(Control::Subscribe { topic }) => format!("subscribe {topic}"),
                Ok(Control::Unsubscribe { topic }) => format!("unsubscribe {topic}"),
                Ok(Control::JoinGroup { group }) => format!("join {group}"),
                Ok(Control::LeaveGroup { group }) => format!("leave {group}"),
                Ok(Control::SnapshotRequest { topic, from_seq }) => format!("snapshot {topic} {from_seq}"),
                Ok(Control::Resume { last_seq }) => format!("resume{{{last_seq}}}"),
                Ok(Control::Ping { ts }) => format!("ping{{{ts}}}"),
                Ok(Control::RpcCall { name, .. }) => format!("call {name}"),
                Ok(other) => panic!("{other:?}"),
                Err(_) => format!("send {}", message[HEADER_BYTES]),
            }
        }
        Action::Deliver { event: QUOTE, seq, payload } => {
            assert!(seq.is_none_or(|seq| payload == seq.to_le_bytes()));
            seq.map_or("unstamped".to_owned(), |seq| format!("e{seq}"))
        }
        Action::Deliver { event, .. } => panic!("event {event}"),
        Action::Missed { from, to: Some(to) } => format!("missed {from}-{to}"),
        Action::Missed { from, to: None } => format!("missed {from}-?"),
        Action::Reply { result, .. } => format!("reply {:?}", result.map(|message| message[HEADER_BYTES])),
        Action::Control { .. } => return None,
        Action::Undecodable => "undecodable".to_owned(),
        Action::Close { code } => format!("close {code:?}"),
        Action::Reconnect { .. } => "reconnect".to_owned(),
        Action::Status(status) => format!("{status:?}"),
    })
}

const BOTH: [Generation; 2] = [Generation::V015, Generation::V016];

#[test]
fn a_connection_begins_with_hello_topics_groups_queue_ping() {
    let mut s = Story::new(Generation::Seqcast);
    s.session.subscribe("a");
    s.session.subscribe("b");
    s.session.subscribe("a");
    s.session.join_group("vip");
    s.session.send(QUOTE, &[7]).unwrap();
    s.session.send(QUOTE, &[8]).unwrap();
    let first =
        ["Connected", "hello{0}", "subscribe a", "subscribe b", "join vip", "send 7", "send 8", "ping{0}"];
    assert_eq!(s.open(), first);
    assert_eq!(s.session.client_id(), "c1");
    assert_eq!(s.session.welcome_groups(), ["g"]);

    s.session.unsubscribe("a");
    s.session.leave_group("vip");
    s.session.request_snapshot("b", 4);
    assert_eq!(s.said(), ["unsubscribe a", "leave vip", "snapshot b 4"]);
    s.events(1..=3);
    assert_eq!(s.lost(End::Cut), ["Reconnecting", "reconnect"]);
    s.now += Duration::from_millis(20);
    let again = ["Connected", "hello{3}", "unsubscribe a", "leave vip", "subscribe b", "ping{20}"];
    assert_eq!(s.open(), again);
}

#[test]
fn what_was_left_without_a_connection_is_left_with_the_next() {
    let mut s = Story::new(Generation::Seqcast);
    s.open();
    for topic in ["a", "b", "c"] {
        s.session.subscribe(topic);
    }
    s.session.join_group("g");
    s.session.unsubscribe("a");
    s.lost(End::Cut);
    s.session.unsubscribe("b");
    s.session.leave_group("g");
    s.session.subscribe("b");
    s.now += Duration::from_secs(1);
    let again =
        ["Connected", "hello{0}", "unsubscribe a", "leave g", "subscribe c", "subscribe b", "ping{1000}"];
    assert_eq!(s.open(), again);
    s.server(|encoder| encoder.pong(1000).to_vec());
    s.session.unsubscribe("c");
    s.lost(End::Cut);
    let again = ["Connected", "hello{0}", "unsubscribe c", "subscribe b", "ping{1000}"];
    assert_eq!(s.open(), again, "the server has heard of the others");
}

#[test]
fn a_client_without_a_position_learns_of_its_lost_session_by_its_id() {
    for (generation, then) in [(Generation::V016, vec![]), (Generation::Seqcast, vec!["missed 1-?"])] {
        let mut s = Story::new(generation);
        s.open();
        s.lost(End::Cut);
        s.open();
        assert_eq!(s.server(|encoder| encoder.welcome("c1", []).to_vec()), [""; 0]);
        assert_eq!(s.server(|encoder| encoder.welcome("c2", []).to_vec()), then);
    }
}

#[test]
fn the_reference_clients_forget_groups() {
    for generation in BOTH {
        let mut s = Story::new(generation);
        s.open();
        s.session.join_group("vip");
        assert_eq!(s.said(), ["join vip"]);
        s.lost(End::Cut);
        assert_eq!(s.open(), ["Connected", "hello{0}", "ping{0}"]);
    }
}

#[test]
fn cut_and_back() {
    for generation in [Generation::V015, Generation::V016, Generation::Seqcast] {
        let mut s = Story::new(generation);
        s.open();
        assert_eq!(s.events([1, 2, 0]), ["e1", "e2", "unstamped"]);
        s.lost(End::Cut);
        assert!(s.open().contains(&"hello{2}".to_owned()));
        assert_eq!(s.events([3, 4]), ["e3", "e4"]);
        assert_eq!(s.resumed(true, 3), [""; 0]);
        assert_eq!(s.events([5]), ["e5"]);
    }
}

#[test]
fn a_hole_is_resumed() {
    for generation in [Generation::V015, Generation::V016, Generation::Seqcast] {
        let mut s = Story::new(generation);
        s.open();
        assert_eq!(s.events([1, 3]), ["e1", "resume{1}"]);
        assert_eq!(s.events([2]), ["e2", "e3"]);
        assert_eq!(s.resumed(true, 2), [""; 0]);
    }
}

#[test]
fn duplicates_are_delivered_by_the_old_generation_alone() {
    for (generation, again) in
        [(Generation::V015, vec!["e2"]), (Generation::V016, vec![]), (Generation::Seqcast, vec![])]
    {
        let mut s = Story::new(generation);
        s.open();
        s.events([1, 2]);
        assert_eq!(s.events([2]), again, "{generation:?}");
    }
}

#[test]
fn a_cut_in_a_hole() {
    for generation in BOTH {
        let mut s = Story::new(generation);
        s.open();
        s.events([1, 3]);
        assert_eq!(s.lost(End::Cut), ["missed 2-2", "e3", "Reconnecting", "reconnect"]);
        assert!(s.open().contains(&"hello{3}".to_owned()));
    }
    let mut s = Story::new(Generation::Seqcast);
    s.open();
    s.events([1, 3]);
    assert_eq!(s.lost(End::Cut), ["Reconnecting", "reconnect"]);
    assert!(s.open().contains(&"hello{1}".to_owned()));
    assert_eq!(s.events([2, 3]), ["e2", "e3"]);
}

#[test]
fn a_range_that_is_gone_is_reported() {
    let mut s = Story::new(Generation::Seqcast);
    s.open();
    assert_eq!(s.events([1, 5]), ["e1", "resume{1}"]);
    assert_eq!(s.resumed(false, 0), ["missed 2-4", "e5"]);
    s.lost(End::Cut);
    s.open();
    assert_eq!(s.resumed(false, 0), ["missed 6-?"], "the server lost the session");
    assert_eq!(s.events([6]), ["e6"]);
}

#[test]
fn a_hole_that_nobody_answers_for_ends_with_the_timer() {
    let mut s = Story::new(Generation::V016);
    s.open();
    s.events([1, 3]);
    assert_eq!(s.session.next_deadline(), Some(Duration::from_secs(5)));
    assert_eq!(s.after(5000), ["missed 2-2", "e3"]);
}

#[test]
fn a_server_that_does_not_answer_hello_begins_at_one() {
    let mut s = Story::new(Generation::Seqcast);
    s.open();
    s.events(1..=9);
    s.lost(End::Cut);
    s.session.opened(Duration::from_secs(1));
    s.said();
    s.server(|encoder| encoder.hello(&[], 0).to_vec());
    assert_eq!(s.server(|encoder| encoder.pong(1000).to_vec()), ["missed 10-?"]);
    assert_eq!(s.events([1, 2]), ["e1", "e2"]);
}

#[test]
fn a_server_that_answers_every_hello_is_waited_for() {
    let mut s = Story::new(Generation::Seqcast);
    s.open();
    s.events(1..=9);
    s.lost(End::Cut);
    s.open();
    assert_eq!(s.server(|encoder| encoder.pong(0).to_vec()), [""; 0]);
    assert_eq!(s.events([1, 2]), [""; 0], "numbered before the server had our hello");
    assert_eq!(s.resumed(false, 0), ["missed 10-?"]);
    assert_eq!(s.events([10, 11]), ["e10", "e11"]);
}

#[test]
fn what_cannot_be_read_is_dropped() {
    let mut s = Story::new(Generation::Seqcast);
    s.open();
    for message in [&b"junk"[..], &[1; 20], &envelope_of(envelope::id::RESUMED, &[1, 2, 3])] {
        s.session.received(s.now, message);
        assert_eq!(s.said(), ["undecodable"]);
    }
}

#[test]
fn another_protocol_version_ends_it() {
    let mut message = Encoder::new().hello(&[], 0).to_vec();
    let version =
        message.iter().skip(HEADER_BYTES + 12).position(|byte| *byte == 2).unwrap() + HEADER_BYTES + 12;
    message[version] = 3;
    for (generation, then) in [
        (Generation::V016, vec!["Reconnecting", "reconnect"]),
        (Generation::Seqcast, vec!["Closed(Closed(1002))"]),
    ] {
        let mut s = Story::new(generation);
        s.session.opened(s.now);
        s.said();
        s.session.received(s.now, &message);
        assert_eq!(s.said(), ["close Some(1002)"]);
        assert_eq!(s.lost(End::Closed(1002)), then);
    }
}

#[test]
fn refusals_and_rebukes_are_final_for_ours() {
    for (end, is_final) in [
        (End::Refused(401), true),
        (End::Refused(403), true),
        (End::Closed(1002), true),
        (End::Closed(1008), true),
        (End::Refused(409), false),
        (End::Refused(503), false),
        (End::Closed(1000), false),
        (End::Closed(1001), false),
        (End::Closed(1013), false),
        (End::Cut, false),
    ] {
        assert_eq!(Story::new(Generation::Seqcast).lost(end).len() == 1, is_final, "{end:?}");
        assert_eq!(Story::new(Generation::V016).lost(end), ["Reconnecting", "reconnect"], "{end:?}");
    }
    let mut once = Story::with(SessionOptions { reconnect: None, ..SessionOptions::default() });
    assert_eq!(once.lost(End::Cut), ["Closed(Cut)"]);
}

#[test]
fn heartbeat() {
    let mut s = Story::new(Generation::Seqcast);
    assert_eq!(s.open().last().unwrap(), "ping{0}");
    assert_eq!(s.session.next_deadline(), Some(Duration::from_secs(15)));
    assert_eq!(s.after(14_999), [""; 0]);
    assert_eq!(s.after(1), ["ping{15000}"]);
    s.server(|encoder| encoder.pong(15_000).to_vec());
    assert_eq!(s.after(15_000), ["ping{30000}"]);
    assert_eq!(s.after(15_000), ["ping{45000}"], "two heartbeats without a pong are borne");
    assert_eq!(s.after(15_000), ["close None"], "a dead socket is dropped");
    assert_eq!(s.after(15_000), [""; 0]);
    assert_eq!(s.lost(End::Cut), ["Reconnecting", "reconnect"]);

    let mut s = Story::new(Generation::V016);
    s.open();
    s.after(15_000);
    s.after(15_000);
    assert_eq!(s.after(15_000), ["close Some(1000)"]);

    let mut s = Story::with(SessionOptions { heartbeat: Duration::ZERO, ..SessionOptions::default() });
    assert_eq!(s.open(), ["Connected", "hello{0}"]);
    assert_eq!(s.session.next_deadline(), None);
}

#[test]
fn the_queue_is_bounded() {
    let mut s = Story::with(SessionOptions { max_queued: 2, ..SessionOptions::default() });
    assert_eq!(s.session.send(QUOTE, &[1]), Ok(()));
    assert_eq!(s.session.send(QUOTE, &[2]), Ok(()));
    assert_eq!(s.session.send(QUOTE, &[3]), Err(SendError::QueueFull));
    assert_eq!(s.open()[2..4], ["send 1", "send 2"]);
    s.session.send(QUOTE, &[4]).unwrap();
    assert_eq!(s.said(), ["send 4"]);
    s.session.close();
    assert_eq!(s.said(), ["close Some(1000)", "Closed(Ours)"]);
    assert_eq!(s.session.send(QUOTE, &[5]), Err(SendError::Closed));
}

#[test]
fn a_closed_session_stays_closed() {
    let mut s = Story::new(Generation::Seqcast);
    s.open();
    s.events([2]);
    s.session.close();
    assert_eq!(s.said(), ["close Some(1000)", "Closed(Ours)"]);
    assert_eq!(s.events([1]), [""; 0]);
    assert_eq!(s.lost(End::Cut), [""; 0]);
    assert_eq!(s.after(60_000), [""; 0]);
    assert_eq!(s.session.next_deadline(), None);
}

/// Asks, and gives the id that the call carries.
fn ask(s: &mut Story) -> String {
    s.session.request(s.now, "quote", QUOTE, &[9]);
    let Some(Action::Send(message)) = s.session.poll() else { panic!("no call") };
    match control::decode(envelope::id::RPC_CALL, &message[HEADER_BYTES..]) {
        Ok(Control::RpcCall { id, name: "quote", payload_b64 }) => {
            use base64::Engine as _;
            let inner = base64::engine::general_purpose::STANDARD.decode(payload_b64).unwrap();
            assert_eq!(inner, envelope_of(QUOTE, &[9]));
            id.to_owned()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests() {
    use base64::Engine as _;
    let answer = base64::engine::general_purpose::STANDARD.encode(envelope_of(QUOTE, &[5]));
    let mut s = Story::new(Generation::Seqcast);
    s.session.request(s.now, "quote", QUOTE, &[9]);
    assert_eq!(s.said(), ["reply Err(NotConnected)"]);
    s.open();
    let (first, second) = (ask(&mut s), ask(&mut s));
    assert_ne!(first, second);
    assert_eq!(s.server(|e| e.rpc_result(&second, true, "", &answer).to_vec()), ["reply Ok(5)"]);
    assert_eq!(s.server(|e| e.rpc_result(&second, true, "", &answer).to_vec()), [""; 0], "answered already");
    assert_eq!(s.server(|e| e.rpc_result(&first, false, "no", "").to_vec()), ["reply Err(Failed(\"no\"))"]);
    let third = ask(&mut s);
    assert_eq!(s.server(|e| e.rpc_result(&third, true, "", "AAAA").to_vec()), ["reply Err(Undecodable)"]);
    ask(&mut s);
    assert_eq!(s.session.next_deadline(), Some(Duration::from_secs(10)));
    assert_eq!(s.after(10_000), ["reply Err(TimedOut)"]);
    ask(&mut s);
    assert_eq!(s.lost(End::Cut)[0], format!("reply Err({:?})", RequestError::ConnectionLost));
}

/// The waits after so many failures in a row.
fn waits(backoff: &mut Backoff, count: usize) -> Vec<Duration> {
    (0..count).map(|_| backoff.lost(Duration::ZERO)).collect()
}

#[test]
fn backoff_doubles_to_a_cap() {
    let bounds =
        [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000].map(Duration::from_millis);
    for seed in 0..200 {
        let row =
            |generation| waits(&mut Backoff::new(BackoffOptions::default(), generation, seed), bounds.len());
        let ours = row(Generation::Seqcast);
        assert_eq!(ours, row(Generation::Seqcast), "the same seed gives the same row");
        assert!(ours.iter().zip(bounds).all(|(wait, bound)| *wait < bound), "{ours:?}");
        let theirs = row(Generation::V016);
        assert!(
            theirs.iter().zip(bounds).all(|(wait, bound)| bound / 2 <= *wait && *wait < bound * 3 / 2),
            "{theirs:?}"
        );
    }
    let spread = (0..100)
        .map(|seed| waits(&mut Backoff::new(BackoffOptions::default(), Generation::Seqcast, seed), 1)[0]);
    let (low, high) =
        spread.fold((Duration::MAX, Duration::ZERO), |(low, high), wait| (low.min(wait), high.max(wait)));
    assert!(low < Duration::from_millis(20) && high > Duration::from_millis(230), "{low:?} to {high:?}");
}

#[test]
fn backoff_begins_anew_after_a_stable_connection() {
    let second = Duration::from_secs(1);
    let options = BackoffOptions { initial: second, max: second * 64, ..BackoffOptions::default() };
    let mut ours = Backoff::new(options, Generation::Seqcast, 3);
    let mut theirs = Backoff::new(options, Generation::V016, 3);
    for backoff in [&mut ours, &mut theirs] {
        waits(backoff, 6);
        backoff.opened(second);
    }
    assert!(theirs.lost(second * 2) < second * 3 / 2, "any connection");
    let flapping: Vec<_> = (0..8)
        .map(|_| {
            ours.opened(second);
            ours.lost(second * 2)
        })
        .collect();
    assert!(flapping.iter().any(|wait| *wait > second * 10), "a connection that does not last: {flapping:?}");
    ours.opened(second);
    assert!(ours.lost(second * 11) < second);
}
