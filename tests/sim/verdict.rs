//! The end of a simulation: whether everybody got what was due to him, or was told; whether anything is left behind.

use seqcast::shard::step::Stats;

use crate::chaos::Plan;
use crate::oracle::{Entry, Gap, LogId, Oracle, Publish, PublishId, Room};
use crate::world::When;

impl Oracle {
    pub fn check(&mut self, now: u64) -> Result<(), String> {
        self.now = now;
        self.verdict()?;
        if !self.resume && !self.dropless {
            return Ok(());
        }
        for log in 0..self.logs.len() {
            if !self.logs[log].retired {
                self.check_log(log);
                self.verdict()?;
            }
        }
        Ok(())
    }

    fn check_log(&mut self, log: LogId) {
        let found = &self.logs[log];
        let missing: Vec<PublishId> = (0..self.publishes.len())
            .filter(|publish| !found.seen.contains_key(publish) && self.was_due(log, *publish))
            .collect();
        for &publish in &missing {
            if let Err(why) = self.is_declared(log, publish) {
                return self.fail(why);
            }
        }
        self.check_sizes(log, missing.len() as u64);
    }

    /// This process was a member when the event was issued and when it was accepted.
    fn was_due(&self, log: LogId, publish: PublishId) -> bool {
        let (found, event) = (&self.logs[log], &self.publishes[publish]);
        let Some(accepted) = event.accepted else { return false };
        let room = match event.room {
            Room::Client(_) if event.to != Some(log) => return false,
            Room::Client(_) => Room::Client(0),
            room => room,
        };
        found.stays.get(&room).into_iter().flatten().any(|stay| {
            stay.confirmed.is_some_and(|at| at <= event.issued)
                && stay.left_sent.is_none_or(|at| accepted < at)
        })
    }

    /// Some declared gap is where this event can have been.
    fn is_declared(&self, log: LogId, publish: PublishId) -> Result<(), String> {
        let (found, event) = (&self.logs[log], &self.publishes[publish]);
        let accepted = event.accepted.unwrap_or(u64::MAX);
        let before = |entry: &Entry| {
            let other = &self.publishes[entry.publish];
            !entry.late
                && (other.accepted.is_some_and(|at| at < event.issued) || self.topic_cmp(other, event) < 0)
        };
        let behind = |entry: &Entry| {
            let other = &self.publishes[entry.publish];
            other.issued > accepted || self.topic_cmp(other, event) > 0
        };
        let low = found.entries.iter().rposition(before).map_or(0, |at| at + 1);
        let high = found.entries.iter().position(behind).unwrap_or(found.entries.len());
        let is_declared = found.gaps.iter().any(|gap| match *gap {
            Gap::Exact { place, .. } => low <= place && place <= high,
            Gap::Unknown { opened, until } => opened <= high && event.issued <= until,
        });
        if is_declared {
            return Ok(());
        }
        let gaps = &found.gaps;
        Err(format!(
            "log {log} ({:?}) never got publish {publish} to {:?}, issued {:.6}, which belongs between its entries \
             {low} and {high} of {}; gaps {gaps:?}; stays {:?}",
            found.person,
            event.room,
            event.issued as f64 / 1e9,
            found.entries.len(),
            found.stays.get(&event.room),
        ))
    }

    /// Below 0: `a` comes before `b` in the same topic.
    fn topic_cmp(&self, a: &Publish, b: &Publish) -> i64 {
        match (&a.topic, &b.topic) {
            (Some((epoch, a_number)), Some((of, b_number))) if a.room == b.room && epoch == of => {
                *a_number as i64 - *b_number as i64
            }
            _ => 0,
        }
    }

    fn check_sizes(&mut self, log: LogId, missing: u64) {
        let found = &self.logs[log];
        let is_exact = found.gaps.iter().all(|gap| matches!(gap, Gap::Exact { .. }));
        if !is_exact || found.before.is_some() || found.is_loose || self.history > 0 || !self.resume {
            return;
        }
        let declared: u64 =
            found.gaps.iter().map(|gap| if let Gap::Exact { size, .. } = gap { *size } else { 0 }).sum();
        let perhaps = (0..self.publishes.len()).filter(|publish| {
            !found.seen.contains_key(publish)
                && !self.publishes[*publish].refused
                && !self.was_due(log, *publish)
        });
        let perhaps = perhaps.count() as u64;
        if declared < missing || declared > missing + perhaps {
            self.fail(format!(
                "log {log} was told that {declared} events are missing; {missing} are, and {perhaps} perhaps"
            ));
        }
    }

    pub fn judge_stats(&mut self, stats: &Stats, plan: &Plan, people: u64, when: When) {
        let config = &plan.config;
        let mut limits = vec![
            ("bytes of parked sessions", stats.parked_bytes, config.resume.parked_bytes),
            ("bytes of histories", stats.history_bytes, config.resume.history_bytes),
            ("bytes of topics", stats.topic_bytes, config.replay.history_bytes),
            ("parked sessions", stats.parked_sessions, u64::from(config.resume.max_parked)),
        ];
        if when != When::Busy {
            limits.push(("connected clients", stats.connected_clients, people));
            limits.push(("events waiting", stats.queue_depth, 0));
            limits.push(("bytes waiting", stats.queue_bytes, 0));
        }
        if when == When::End {
            let topics = crate::chaos::TOPICS * u64::from(config.replay.history_size);
            limits.push(("bytes of unfinished messages", stats.inbound_bytes, 0));
            limits.push(("clients at the end", stats.connected_clients, 0));
            limits.push(("parked sessions at the end", stats.parked_sessions, 0));
            limits.push(("bytes of parked sessions at the end", stats.parked_bytes, 0));
            limits.push(("bytes of histories at the end", stats.history_bytes, 0));
            limits.push(("events at the end", stats.stored_events, topics));
        }
        for (what, is, most) in limits {
            if is > most {
                self.fail(format!("core {}: {what}: {is}, which is more than {most}", stats.core));
            }
        }
    }
}
