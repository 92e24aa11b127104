//! The ordering gate: the 31 traces of both reference generations, and what this project's generation does better.

use std::time::Duration;

use seqcast::client::gate::{Gate, GateOptions, Generation, Passed};
use serde_json::Value;

fn gate(generation: Generation) -> Gate<String> {
    Gate::new(GateOptions { generation, ..GateOptions::default() })
}

fn drain(gate: &mut Gate<String>) -> Vec<Passed<String>> {
    std::iter::from_fn(|| gate.poll()).collect()
}

/// One step of a trace: applies it, returns what was delivered and what was sent.
fn play(gate: &mut Gate<String>, now: &mut Duration, step: &Value) -> (Vec<String>, Vec<Value>) {
    let mut sent = Vec::new();
    if let Some(seq) = step.get("app") {
        gate.event(*now, seq.as_u64(), 1, step["id"].as_str().unwrap().to_owned());
    }
    if let Some(ack) = step.get("resumed") {
        gate.resumed(*now, ack["ok"].as_bool().unwrap(), ack["from"].as_u64().unwrap());
    }
    if let Some(ms) = step.get("tick") {
        *now += Duration::from_millis(ms.as_u64().unwrap());
        gate.tick(*now);
    }
    if step.get("close").is_some() {
        gate.lost();
    }
    if step.get("open").is_some() {
        gate.opened();
        sent.push(serde_json::json!({ "hello": gate.last() }));
    }
    let mut delivered = Vec::new();
    for passed in drain(gate) {
        match passed {
            Passed::Deliver { item, .. } => delivered.push(item),
            Passed::Resume { last } => sent.push(serde_json::json!({ "resume": last })),
            Passed::Missed { .. } => {}
        }
    }
    (delivered, sent)
}

#[test]
fn every_recorded_trace_of_both_reference_generations() {
    let traces: Value = serde_json::from_str(include_str!("../vectors/gate.json")).unwrap();
    let traces = traces.as_array().unwrap();
    assert_eq!(traces.len(), 31);
    for trace in traces {
        let name = trace["name"].as_str().unwrap();
        let generation = match trace["client"].as_str().unwrap() {
            "0.1.5" => Generation::V015,
            "0.1.6+" => Generation::V016,
            other => panic!("{other}"),
        };
        let max_pending = if name.starts_with("maxPending=3") { 3 } else { 1024 };
        let mut gate = Gate::new(GateOptions { generation, max_pending, ..GateOptions::default() });
        let mut now = Duration::ZERO;
        for (n, want) in trace["trace"].as_array().unwrap().iter().enumerate() {
            let at = format!("{name} ({generation:?}), step {n}: {}", want["step"]);
            let (delivered, sent) = play(&mut gate, &mut now, &want["step"]);
            assert_eq!(serde_json::json!(delivered), want["delivered"], "delivered, {at}");
            assert_eq!(Value::from(sent), want["sent"], "sent, {at}");
            assert_eq!(gate.last(), want["rxSeq"].as_u64().unwrap(), "position, {at}");
            assert_eq!(
                serde_json::json!(gate.pending().collect::<Vec<_>>()),
                want["pending"],
                "pending, {at}"
            );
        }
    }
}

/// A gate of our generation with a readable way to drive it.
struct Ours {
    gate: Gate<String>,
    now: Duration,
}

impl Ours {
    fn new() -> Self {
        Ours { gate: gate(Generation::Seqcast), now: Duration::ZERO }
    }

    /// A gate that has delivered 1..=last.
    fn at(last: u64) -> Self {
        let mut ours = Ours::new();
        ours.events(1..=last);
        ours
    }

    fn event(&mut self, seq: u64, item: &str) -> String {
        self.gate.event(self.now, Some(seq), 10, item.to_owned());
        self.said()
    }

    fn events(&mut self, seqs: impl IntoIterator<Item = u64>) -> String {
        seqs.into_iter().for_each(|seq| self.gate.event(self.now, Some(seq), 10, format!("e{seq}")));
        self.said()
    }

    fn resumed(&mut self, ok: bool, from: u64) -> String {
        self.gate.resumed(self.now, ok, from);
        self.said()
    }

    fn reopen(&mut self) -> String {
        self.gate.lost();
        self.gate.opened();
        self.said()
    }

    fn after(&mut self, seconds: u64) -> String {
        self.now += Duration::from_secs(seconds);
        self.gate.tick(self.now);
        self.said()
    }

    fn said(&mut self) -> String {
        let words = drain(&mut self.gate).into_iter().map(|passed| match passed {
            Passed::Deliver { item, .. } => item,
            Passed::Resume { last } => format!("resume{{{last}}}"),
            Passed::Missed { from, to: Some(to) } => format!("missed{{{from}-{to}}}"),
            Passed::Missed { from, to: None } => format!("missed{{{from}-?}}"),
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn a_hole_is_asked_for_once_and_filled() {
    let mut g = Ours::at(1);
    assert_eq!(g.events([3, 4]), "resume{1}");
    assert_eq!(g.events([2]), "e2 e3 e4");
    assert_eq!(g.resumed(true, 2), "");
    assert_eq!(g.events([3, 4, 5]), "e5");
}

#[test]
fn the_timer_ends_with_its_hole() {
    let mut g = Ours::at(1);
    g.events([3, 2]);
    g.resumed(true, 2);
    assert_eq!(g.gate.next_deadline(), None);
    g.after(4);
    assert_eq!(g.events([5]), "resume{3}");
    assert_eq!(g.after(1), "", "the old timer would have skipped 4 here");
    assert_eq!(g.events([4]), "e4 e5");
}

#[test]
fn the_timer_waits_for_an_answer_that_is_on_its_way() {
    let mut g = Ours::at(1);
    g.events([3]);
    assert_eq!(g.after(60), "");
    assert_eq!(g.resumed(true, 2), "");
    assert_eq!(g.after(4), "");
    assert_eq!(g.after(1), "missed{2-2} e3");
}

#[test]
fn a_number_already_pending_is_ignored() {
    let mut g = Ours::at(1);
    g.event(4, "first");
    g.event(4, "second");
    assert_eq!(g.resumed(false, 0), "missed{2-3} first");
}

#[test]
fn an_answer_that_begins_behind_the_hole_ends_it_at_once() {
    let mut g = Ours::at(1);
    g.events([6, 7]);
    assert_eq!(g.resumed(false, 5), "missed{2-4}");
    assert_eq!(g.events([5]), "e5 e6 e7");
    g.events([12]);
    assert_eq!(g.resumed(false, 12), "missed{8-11} e12");
}

#[test]
fn a_full_gate_gives_the_hole_up_and_says_so() {
    let mut g = Ours::at(1);
    g.gate = Gate::new(GateOptions { max_pending: 3, ..GateOptions::default() });
    assert_eq!(g.events([2, 3, 4, 6]), "resume{0} missed{1-1} e2 e3 e4");
    assert_eq!(g.events([5]), "e5 e6");
    assert_eq!(g.events([9, 11, 12]), "");
    assert_eq!(g.events([8]), "missed{7-7} e8 e9", "what arrives is not given up");
    assert_eq!(g.events([10]), "e10 e11 e12");
    g.gate = Gate::new(GateOptions { max_pending_bytes: 25, ..GateOptions::default() });
    assert_eq!(g.events([3, 5, 6]), "resume{0} missed{1-2} e3");
    assert_eq!(g.events([8]), "missed{4-4} e5 e6", "30 bytes would be too many");
}

#[test]
fn a_hole_survives_the_connection_and_is_filled_by_the_next() {
    let mut g = Ours::at(1);
    g.events([3, 4]);
    assert_eq!(g.reopen(), "");
    assert_eq!(g.gate.last(), 1);
    assert_eq!(g.events([2, 3, 4]), "e2 e3 e4");
    assert_eq!(g.resumed(true, 2), "");
    assert_eq!(g.events([5]), "e5");
}

#[test]
fn a_hole_before_anything_was_delivered_does_not_survive_it() {
    let mut g = Ours::new();
    g.events([2, 3]);
    assert_eq!(g.reopen(), "missed{1-1} e2 e3");
}

#[test]
fn no_resume_while_the_hello_is_unanswered() {
    let mut g = Ours::at(3);
    g.reopen();
    assert_eq!(g.events([8, 9, 10]), "");
    assert_eq!(g.resumed(false, 8), "missed{4-7} e8 e9 e10");
    assert_eq!(g.resumed(false, 0), "");
    assert_eq!(g.events([11]), "e11");
}

#[test]
fn a_lost_session_numbers_on_behind_the_hello() {
    let mut g = Ours::at(3);
    g.reopen();
    assert_eq!(g.resumed(false, 0), "missed{4-?}");
    assert_eq!(g.events([4, 5]), "e4 e5");
}

#[test]
fn a_lost_session_does_not_mix_with_what_was_pending_from_it() {
    let mut g = Ours::at(3);
    g.events([5, 6]);
    g.reopen();
    assert_eq!(g.event(4, "n4"), "n4", "before the server has our hello");
    assert_eq!(g.resumed(false, 0), "missed{5-?}");
    assert_eq!(g.event(5, "n5"), "n5");
}

#[test]
fn numbered_before_the_hello_was_handled_and_again_behind_it() {
    let mut g = Ours::at(5);
    g.reopen();
    assert_eq!(g.event(1, "a"), "");
    assert_eq!(g.event(2, "b"), "");
    assert_eq!(g.resumed(false, 0), "missed{6-?}");
    assert_eq!(g.event(6, "a"), "a");
    assert_eq!(g.event(7, "b"), "b");
}

#[test]
fn numbered_past_the_hello_before_it_was_handled() {
    let mut g = Ours::at(2);
    g.reopen();
    for (seq, item) in [(1, "a"), (2, "b"), (3, "c")] {
        assert_eq!(g.event(seq, item), "");
    }
    assert_eq!(g.resumed(false, 0), "missed{3-?} a b c");
    assert_eq!(g.event(4, "d"), "d");
}

#[test]
fn a_server_that_begins_at_one_without_a_word() {
    let mut g = Ours::at(9);
    g.reopen();
    assert_eq!(g.event(1, "n1"), "");
    g.gate.unanswered(g.now);
    assert_eq!(g.said(), "missed{10-?} n1");
    assert_eq!(g.event(2, "n2"), "n2");

    let mut g = Ours::at(9);
    g.reopen();
    g.gate.unanswered(g.now);
    assert_eq!(g.said(), "missed{10-?}");
    assert_eq!(g.event(1, "n1"), "n1");

    let mut g = Ours::at(9);
    g.reopen();
    g.event(1, "n1");
    assert_eq!(g.resumed(true, 0), "missed{10-?} n1", "it answers for the new numbering");
}

#[test]
fn what_does_not_fit_while_in_doubt_is_asked_for_again() {
    let mut g = Ours::new();
    g.gate = Gate::new(GateOptions { max_pending: 2, ..GateOptions::default() });
    g.events([1, 2]);
    g.reopen();
    assert_eq!(g.events([1, 2, 3, 4]), "");
    assert_eq!(g.resumed(false, 0), "missed{3-?} e1 e2 resume{2}");
    assert_eq!(g.events([5, 3, 4]), "e3 e4 e5");
}

#[test]
fn a_cut_while_in_doubt_changes_nothing() {
    let mut g = Ours::at(5);
    g.reopen();
    g.event(1, "a");
    assert_eq!(g.reopen(), "");
    assert_eq!(g.gate.last(), 5);
    assert_eq!(g.resumed(false, 0), "missed{6-?}");
    assert_eq!(g.event(6, "a"), "a");
}

#[test]
fn impossible_numbers_are_ignored() {
    let mut g = Ours::at(1);
    assert_eq!(g.events([0, 1 << 53, u64::MAX]), "");
    assert_eq!(g.resumed(false, u64::MAX), "");
    assert_eq!(g.events([2]), "e2");
}
