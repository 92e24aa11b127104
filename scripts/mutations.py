#!/usr/bin/env python3
"""Breaks the shard on purpose, one place at a time, and shows that the simulator, or else a story, notices.

    scripts/mutations.py [--seeds 0..400] [NAME...]

Each mutation is a piece of the source and what stands there instead. They are applied to a copy of the tree; the simulator
runs over the seeds until one of them fails. Where the break only makes the server kinder or ruder than it has to be, and no
client is deceived, the stories of tests/shard have to fail. A mutation that nothing finds, or whose piece is no longer there, fails."""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Seeds in which the server restarts with its state.
RESTARTS = "1000000..1000200"
# name, file under src/shard, piece, instead
MUTATIONS = [
    ("unsent bit not cleared by a send", "outbox.rs",
     "        self.ring[place] &= !UNSENT;\n        self.uncount(bytes);", "        self.uncount(bytes);"),
    ("unsent bit not set by adoption", "outbox.rs",
     "            self.mark_unsent(seq);\n        }\n        self.lose_what_left();", "            let _ = seq;\n        }"),
    ("skipped entries stay skipped after adoption", "outbox.rs",
     "(self.ring[place] | UNSENT) & !SKIPPED", "self.ring[place] | UNSENT"),
    ("what left the ring unsent is not remembered", "outbox.rs",
     "            self.rare_mut().lost_to = self.oldest;\n", ""),
    ("what left a full ring unsent is not remembered", "outbox.rs",
     "            self.rare_mut().lost_to = self.oldest - 1;\n", ""),
    ("bytes left behind the short way leave the session on no list", "send.rs",
     "            } else if let Some(session) = self.sessions.get_mut(session as usize) {\n"
     "                // Refused, or something in its queue is not plain.\n                session.flow = Flow::Special;\n            }\n",
     "            }\n"),
    ("a session's timer takes it off the list", "mod.rs",
     "                        session.armed = NEVER;\n                        self.on_session_timer(index);",
     "                        session.armed = NEVER;\n                        session.flow = Flow::Special;\n"
     "                        self.on_session_timer(index);"),
    ("a session with jobs takes events as if it had none", "session.rs",
     "        self.flow = Flow::Special;\n        self.jobs", "        self.jobs"),
    ("answer before its events", "resume.rs",
     "            self.add_job(session, Job::Resumed { after: last_seq, from });",
     "            self.answer_adoption(session, last_seq, from);"),
    ("everything is answered as complete", "resume.rs",
     "        if outbox.has_lost(after) || outbox.has_unsent(after, outbox.cursor()) {",
     "        if outbox.has_lost(u64::MAX) || outbox.has_unsent(u64::MAX - 1, 0) {"),
    ("written events are replayed beside dropped ones", "resume.rs",
     "        let unsent_only =\n            found.outbox.has_lost(after) || found.outbox.has_unsent(after, found.outbox.cursor());",
     "        let unsent_only = false;"),
    ("numbering not shifted by a late hello", "resume.rs",
     "            found.outbox.renumber(last_seq);\n            let known = found.known_mut();\n"
     "            known.first_seq += last_seq;", "            let known = found.known_mut();"),
    ("a new process goes on with the old numbering", "resume.rs",
     "            if !is_open {\n                self.restart_session(session);\n            }", ""),
    ("a partly written frame is dropped", "send.rs",
     "                self.conn_mut(index).partial = Some(Partial { slot: piece.slot, seq: piece.seq, offset });",
     "                let _ = offset;"),
    ("control lane inside a frame", "send.rs",
     "        if let Some(partial) = conn.partial {\n            let piece",
     "        if let Some(partial) = conn.partial.filter(|_| conn.lane.is_none()) {\n            let piece"),
    ("events leave before the hello", "send.rs",
     "            Some(session) if session.open => self.fill_stream",
     "            Some(session) => self.fill_stream"),
    ("policy judged during a replay", "outbox.rs",
     "        if self.cursor < self.next || self.rare.is_some() {\n            self.rare_mut().shield = self.next;\n"
     "        }\n        self.waiting = 0;\n        self.waiting_bytes = 0;\n", ""),
    ("a drop forgets to say so", "outbox.rs",
     "    pub fn pass_unsent(&mut self, bytes: u32) {\n",
     "    pub fn pass_unsent(&mut self, bytes: u32) {\n        let place = self.place(self.cursor);\n"
     "        self.ring[place] &= !UNSENT;\n"),
    ("history twice after adoption", "member.rs",
     "                if std::mem::take(&mut membership.kept) {\n                    return;\n                }",
     "                membership.kept = false;"),
    ("a holder forgotten when a session ends", "close.rs",
     "            if was_parked {\n                self.store.release_parked(slot);", "            if was_parked {\n                let _ = slot;"),
    ("park forgotten", "close.rs",
     "        if is_pinned && self.config.resume.enabled", "        if false && is_pinned && self.config.resume.enabled"),
    ("parked sessions record nothing", "push.rs",
     "            return self.push_parked(index, event.slot);", "            return;"),
    ("another core is not told of a topic's events", "publish.rs",
     "            for core in &self.rooms.topic(room).interested {", "            for core in &[0; 0] {"),
    ("another core is not told of a broadcast", "publish.rs",
     "            for core in self.other_cores() {\n", "            for core in self.other_cores().take(0) {\n"),
    ("a publish is confirmed before other cores have it", "publish.rs",
     "        if cores == 0 {\n            self.reply", "        if cores < usize::MAX {\n            self.reply"),
    ("batches overtake each other", "handoff.rs",
     "        let batch = self.batches.pop_front()?;", "        let batch = self.batches.pop_back()?;"),
    ("a topic's history does not cross", "neighbours.rs",
     "                history.push(*seq, &event);", "                let _ = (seq, event);"),
    ("later messages do not wait for the home of a topic", "member.rs",
     "            self.ask_home(room, Waiter::Subscribe(conn));\n            self.pause(index, pause::HOME);",
     "            self.ask_home(room, Waiter::Subscribe(conn));"),
    ("one core's loss of interest ends that of all", "neighbours.rs",
     "interested.retain(|core| *core != from);", "interested.clear();"),
    ("who paused for another core never goes on", "neighbours.rs",
     "            self.unpause(index, pause::MESH);", "            let _ = index;"),
    ("who was told to hold is never released", "neighbours.rs",
     "                self.hand(core, &Handoff::Release);", "                let _ = core;"),
    ("what a moving connection had sent is lost", "upgrade.rs",
     "Box::new(Transfer { peer, opened, received });",
     "Box::new(Transfer { peer, opened, received: Vec::from(&received[..0]) });"),
    ("a restart forgets which cores follow a topic", "restore.rs",
     "        topic.interested.clone_from(&restored.interested);\n", ""),
    ("a restart takes every client for one that never said hello", "restore.rs",
     "        session.greeted = saved.greeted;", "        session.greeted = false;"),
    ("a restart forgets what a peer has acknowledged", "restore.rs",
     "        session.acknowledged = saved.acknowledged;", "        session.acknowledged = true;"),
    ("a restart numbers topics anew", "restore.rs", "        topic.epoch = saved.epoch;\n", ""),
    ("a state is saved before what lies between cores has come", "save.rs",
     "        self.hand_flush(1);\n", "        self.hand_flush(2);\n"),
]


def mutate(tree, file, piece, instead):
    path = os.path.join(tree, "src", "shard", file)
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if text.count(piece) != 1:
        return None, path
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace(piece, instead))
    return text, path


def run(tree, seeds, *what):
    env = dict(os.environ, SEQCAST_SIM_SEEDS=seeds, CARGO_TARGET_DIR=os.path.join(tree, "target"), RUST_BACKTRACE="0")
    p = subprocess.run(["cargo", "test", "--locked", "--quiet", *what], cwd=tree, env=env, text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return p.returncode, p.stdout


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--seeds", default="0..400", help="seeds of each number of cores")
    ap.add_argument("--tree", help="where to keep the copy and its build between runs")
    ap.add_argument("names", nargs="*", help="parts of names; none = all")
    a = ap.parse_args()
    tree = a.tree or tempfile.mkdtemp(prefix="seqcast-mutations-")
    os.makedirs(tree, exist_ok=True)
    for name in ("Cargo.toml", "Cargo.lock", "clippy.toml"):
        shutil.copy2(os.path.join(ROOT, name), tree)
    for name in ("src", "tests", "examples", "benches"):
        shutil.rmtree(os.path.join(tree, name), ignore_errors=True)
        shutil.copytree(os.path.join(ROOT, name), os.path.join(tree, name))
    missed = caught = 0
    for name, file, piece, instead in MUTATIONS:
        if a.names and not any(part in name for part in a.names):
            continue
        text, path = mutate(tree, file, piece, instead)
        if text is None:
            print(f"GONE    {name}: its piece is not once in {file}", flush=True)
            missed += 1
            continue
        code, out = run(tree, a.seeds, "--test", "sim")
        if code == 0:
            code, out = run(tree, RESTARTS, "--test", "sim")
        story = None
        if code == 0:
            code, out = run(tree, a.seeds, "--test", "shard")
            story = re.search(r"^    (\S+::\S+)$", out, re.M)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        found = re.search(r"seed (\d+) with (\d+) cores: (.*)", out)
        if code != 0 and found:
            caught += 1
            print(f"caught  {name}: seed {found[1]}, {found[2]} cores: {found[3][:150]}", flush=True)
        elif code != 0 and story:
            caught += 1
            print(f"caught  {name}: story {story[1]}", flush=True)
        elif code != 0:
            missed += 1
            print(f"BROKEN  {name}: does not build or run:\n{out[-1500:]}", flush=True)
        else:
            missed += 1
            print(f"MISSED  {name}: no seed of {a.seeds} found it, and no story", flush=True)
    if not a.tree:
        shutil.rmtree(tree, ignore_errors=True)
    print(f"{caught} passed, {missed} failed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
