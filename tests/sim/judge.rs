//! An event that a gate handed out: is it for this client, is it new, is it in order?

use seqcast::client::gate::Generation;
use seqcast::shard::step::RoomKind;

use crate::oracle::{Entry, Log, LogId, Oracle, PublishId, Room, number};

impl Oracle {
    /// An event arrives, before the gate judges it.
    pub fn on_wire(&mut self, log: LogId, seq: Option<u64>, hello_open: bool) {
        let found = &mut self.logs[log];
        found.skip = None;
        if seq.is_some() != self.resume && seq.is_some() {
            self.fail(format!("log {log}: number {seq:?} although numbers are off"));
            return;
        }
        // Numbered before the server had our hello: the oldest clients take it for something they have and deliver it
        // all the same; it comes again behind their position, or is part of what the server says is lost. If they see
        // a hole, they ask for what their hello asked for too, and get it twice.
        let Some(seq) = seq.filter(|_| found.person.generation == Generation::V015) else { return };
        let is_first = !std::mem::replace(&mut found.heard, true);
        found.is_late |= (is_first || hello_open) && seq != found.last_seq + 1;
        if (found.is_late || hello_open) && seq <= found.last_seq {
            found.skip = Some(seq);
        }
    }

    pub fn delivered(&mut self, log: LogId, publish: PublishId, seq: Option<u64>, now: u64) {
        self.now = now;
        if publish >= self.publishes.len() {
            return self.fail(format!("log {log} got publish {publish}, which nobody made"));
        }
        if seq.is_none() && self.resume {
            return self.snapshot_event(log, publish);
        }
        if let Some(seq) = seq {
            if self.logs[log].skip == Some(seq) {
                return;
            }
            self.logs[log].last_seq = seq;
        }
        if self.publishes[publish].refused {
            self.fail(format!("log {log} got publish {publish}, which was refused"));
        }
        let late = self.is_late(log, publish);
        self.judge_address(log, publish);
        if !self.logs[log].is_loose {
            self.judge_once(log, publish);
            self.judge_order(log, publish, late);
            self.judge_topic_order(log, publish);
            self.judge_sender_order(log, publish, late);
        }
        let found = &mut self.logs[log];
        *found.seen.entry(publish).or_default() += 1;
        found.entries.push(Entry { publish, late });
    }

    fn snapshot_event(&mut self, log: LogId, publish: PublishId) {
        if !self.logs[log].snapshots.contains(&self.publishes[publish].room) {
            self.fail(format!("log {log} got publish {publish} without a number and without having asked"));
        }
    }

    /// May this be of the history that came with a subscribe?
    fn is_late(&self, log: LogId, publish: PublishId) -> bool {
        let publish = &self.publishes[publish];
        let subscribed = self.logs[log].subscribed.get(&publish.room);
        let own = subscribed.is_some_and(|times| times.iter().any(|time| publish.issued <= time.latest()));
        // A new process may get what an old one was sent and did not take.
        let others = self.logs[log].before.is_some();
        self.history > 0 && matches!(publish.room, Room::In(RoomKind::Topic, _)) && (own || others)
    }

    fn judge_address(&mut self, log: LogId, publish: PublishId) {
        let (found, event) = (&self.logs[log], &self.publishes[publish]);
        let is_meant = match event.room {
            Room::All => found.before.is_some() || event.accepted.is_none_or(|at| at >= found.born),
            Room::Client(_) => {
                event.to == Some(log)
                    || found.person.id.is_some()
                        && event.to.is_some_and(|to| self.logs[to].first == found.first)
            }
            Room::In(RoomKind::User, n) => found.person.user.as_deref().map(number) == Some(n),
            Room::In(kind, n) => {
                let given =
                    kind == RoomKind::Group && found.person.groups.iter().any(|group| number(group) == n);
                let own = found.stays.get(&event.room);
                let history = kind == RoomKind::Topic && self.history > 0;
                let stayed = own.is_some_and(|stays| {
                    stays.iter().any(|stay| {
                        (history || event.accepted.is_none_or(|at| at >= stay.sent))
                            && stay.left_confirmed.is_none_or(|at| event.issued <= at)
                    })
                });
                let has_left = own.and_then(|stays| stays.last()).is_some_and(|stay| {
                    stay.left_confirmed.is_some_and(|at| event.issued > at && at >= found.dialed_at)
                });
                stayed || (given && !has_left) || self.stayed_before(found, event.room)
            }
        };
        if !is_meant {
            let stays = self.logs[log].stays.get(&event.room);
            let what = format!(
                "log {log} got publish {publish} to {:?}, which is not for it: {stays:?}",
                event.room
            );
            self.fail(what);
        }
    }

    /// An earlier process of the same id was in this room, and this one has not left it.
    fn stayed_before(&self, log: &Log, room: Room) -> bool {
        let mut before = log.before;
        let has_left =
            log.stays.get(&room).is_some_and(|stays| stays.iter().any(|stay| stay.left_confirmed.is_some()));
        while let Some(at) = before.filter(|_| !has_left) {
            if self.logs[at].stays.contains_key(&room) {
                return true;
            }
            before = self.logs[at].before;
        }
        false
    }

    /// The next connection of an anonymous client is another session, perhaps on another core. What was still on its
    /// way between cores when the client dialed may come to both.
    fn may_meet_again(&self, log: LogId, publish: PublishId) -> bool {
        let (found, event) = (&self.logs[log], &self.publishes[publish]);
        self.cores > 1
            && found.connections.len() > 1
            && found.person.id.is_none()
            && event.accepted.is_none_or(|accepted| accepted >= found.dialed_at)
    }

    fn judge_once(&mut self, log: LogId, publish: PublishId) {
        let found = &self.logs[log];
        let Some(&seen) = found.seen.get(&publish) else { return };
        if self.may_meet_again(log, publish) {
            return;
        }
        let event = &self.publishes[publish];
        let has_left = found.left.contains_key(&event.room);
        let again = found.subscribed.get(&event.room).into_iter().flatten().filter(|time| {
            let unknown = found.connections[time.connection].unknown || found.excuse.is_some();
            event.issued <= time.latest() && (!time.greeting || unknown || has_left)
        });
        // What the process before was sent and did not take may come to this one, with the histories that are in it.
        let others = found.before.is_some() && self.history > 0;
        let again = if self.history > 0 { again.count() } else { 0 };
        if seen > again && !others {
            let what =
                format!("log {log} got publish {publish} to {:?} for the {}. time", event.room, seen + 1);
            let is_answered = found.connections.last().is_none_or(|connection| connection.answered);
            if is_answered || self.history == 0 {
                self.fail(what);
            } else {
                self.logs[log].suspect = Some(what);
            }
        }
    }

    fn judge_order(&mut self, log: LogId, publish: PublishId, late: bool) {
        let event = &self.publishes[publish];
        let found = &mut self.logs[log];
        let before = found.last_issued;
        found.last_issued = before.max((event.issued, publish));
        if !late && event.accepted.is_some_and(|at| at < before.0) {
            let what =
                format!("log {log} got publish {publish}, accepted {:?}, behind {before:?}", event.accepted);
            self.fail(what);
        }
    }

    fn judge_topic_order(&mut self, log: LogId, publish: PublishId) {
        let event = &self.publishes[publish];
        let (Room::In(RoomKind::Topic, n), Some((epoch, number))) = (event.room, &event.topic) else {
            return;
        };
        let is_excused = self.may_meet_again(log, publish);
        let found = &mut self.logs[log];
        let before = found.topic_seqs.insert(n, (epoch.clone(), *number));
        if !is_excused && before.is_some_and(|(of, before)| of == *epoch && before >= *number) {
            let rewinds = found.rewinds.entry(n).or_default();
            *rewinds += 1;
            let rewinds = *rewinds;
            let subscribed = found.subscribed.get(&Room::In(RoomKind::Topic, n)).map_or(0, Vec::len);
            if self.history == 0 || rewinds > subscribed && found.before.is_none() {
                self.fail(format!(
                    "log {log} got publish {publish}, number {number} of topic {n}, out of order"
                ));
            }
        }
    }

    fn judge_sender_order(&mut self, log: LogId, publish: PublishId, late: bool) {
        let event = &self.publishes[publish];
        let (Room::In(RoomKind::Topic, _), Some(sender)) = (event.room, event.sender) else { return };
        let is_excused = late || self.may_meet_again(log, publish);
        let before = self.logs[log].sender_last.insert(sender, publish);
        if before.is_some_and(|before| before > publish) && !is_excused {
            self.fail(format!("log {log} got publish {publish} behind {before:?} of the same client"));
        }
    }
}
