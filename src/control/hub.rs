//! Questions to cores and the way back of their answers.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::log;
use crate::limits::{RESERVED_COMMANDS, UNANSWERED_COMMANDS};
use crate::mesh::{Bell, Commands, Notice, Notices};
use crate::shard;
use crate::shard::step::{Answer, Ask, Command, CoreId, Reply, RoomKind, Target};

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// As many commands as a core may owe answers to are on their way.
    Overloaded,
    /// The core has ended.
    Ended,
    /// The state of the server is being saved: nothing is published any more.
    Draining,
}

/// An answer that will come.
pub type Pending = oneshot::Receiver<Answer>;

/// An order to all cores.
#[derive(Debug)]
pub struct Ordered {
    pending: Vec<Pending>,
    is_missed: bool,
}

impl Ordered {
    /// Waits until every core has carried it out or has ended. False: one of them did not even get it.
    pub async fn done(self) -> bool {
        for pending in self.pending {
            // A core that has ended needs to do nothing any more.
            drop(pending.await);
        }
        !self.is_missed
    }

    /// Waits for what every core says, in their order; none when one of them has nothing to say.
    pub async fn answers(self) -> Option<Vec<Answer>> {
        let mut answers = Vec::with_capacity(self.pending.len());
        for pending in self.pending {
            answers.push(pending.await.ok()?);
        }
        Some(answers).filter(|_| !self.is_missed)
    }
}

/// All cores, as the control thread sees them.
#[derive(Debug)]
pub struct Hub {
    /// Decides with the number of cores which of them is the home of an id or topic.
    seed: u64,
    lines: Vec<Mutex<Line>>,
}

/// One core. The lock is never held while waiting; it only lets handlers be `Send`, all of them run on one thread.
#[derive(Debug)]
struct Line {
    commands: Commands,
    /// One entry for every command without an answer, also when its asker has gone away: the core's ring has room
    /// for so many replies and no more.
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    next_ticket: u64,
    ended: bool,
    /// Nothing is published any more.
    sealed: bool,
}

impl Hub {
    /// One line to each core, in their order.
    pub fn new(seed: u64, commands: Vec<Commands>) -> Hub {
        let line = |commands| Line {
            commands,
            waiting: HashMap::new(),
            next_ticket: 0,
            ended: false,
            sealed: false,
        };
        Hub { seed, lines: commands.into_iter().map(|c| Mutex::new(line(c))).collect() }
    }

    /// Number of cores, at least 1.
    pub fn cores(&self) -> usize {
        self.lines.len()
    }

    /// The core that a client id belongs to.
    pub fn home_of_client(&self, id: &str) -> CoreId {
        shard::home_of_client(self.seed, self.lines.len() as CoreId, id)
    }

    /// The core that numbers a topic.
    fn home_of_topic(&self, topic: &str) -> CoreId {
        shard::home_of_topic(self.seed, self.lines.len() as CoreId, topic)
    }

    /// The core that gives an event its number or holds its receiver; else any will do.
    pub fn home_of_target(&self, target: &Target) -> CoreId {
        match target {
            Target::Room(RoomKind::Topic, topic) => self.home_of_topic(topic),
            Target::Client(id) => self.home_of_client(id),
            Target::All | Target::Room(RoomKind::Group | RoomKind::User, _) => 0,
        }
    }

    /// Asks one core and waits for the answer.
    ///
    /// # Errors
    /// The core is behind or gone. A publish may have been carried out if the core ends before it answers.
    pub async fn ask(&self, core: CoreId, ask: Ask) -> Result<Answer, Unanswered> {
        self.send(core, ask)?.await.map_err(|_| Unanswered::Ended)
    }

    /// Asks several cores at once and waits for all answers.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), for any of them.
    pub async fn ask_each(
        &self,
        asks: impl IntoIterator<Item = (CoreId, Ask)>,
    ) -> Result<Vec<(CoreId, Answer)>, Unanswered> {
        let mut pending = Vec::with_capacity(self.cores());
        for (core, ask) in asks {
            pending.push((core, self.send(core, ask)?));
        }
        let mut answers = Vec::with_capacity(pending.len());
        for (core, answer) in pending {
            answers.push((core, answer.await.map_err(|_| Unanswered::Ended)?));
        }
        Ok(answers)
    }

    /// Asks every core the same.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), for any of them.
    pub async fn ask_all(&self, ask: impl Fn() -> Ask) -> Result<Vec<(CoreId, Answer)>, Unanswered> {
        self.ask_each(self.core_ids().map(|core| (core, ask()))).await
    }

    /// Orders every core to do something, out of the reserve that requests do not use up. Nobody has to wait.
    pub fn order_all(&self, ask: impl Fn() -> Ask) -> Ordered {
        let mut ordered = Ordered { pending: Vec::with_capacity(self.cores()), is_missed: false };
        for core in self.core_ids() {
            let sent = self.line(core).send(ask(), UNANSWERED_COMMANDS + RESERVED_COMMANDS);
            match sent {
                Ok(pending) => ordered.pending.push(pending),
                Err(Unanswered::Ended | Unanswered::Draining) => {}
                Err(Unanswered::Overloaded) => {
                    ordered.is_missed = true;
                    tracing::error!(core, "the core answers nothing any more; it did not get an order");
                }
            }
        }
        ordered
    }

    /// Asks every core, which must have drained, for what outlives the process. Nothing is published from here on; what
    /// was before is answered before this, and is in what they say.
    pub fn save(&self) -> Ordered {
        for core in self.core_ids() {
            self.line(core).sealed = true;
        }
        self.order_all(|| Ask::Save)
    }

    /// Numbers of all cores.
    pub fn core_ids(&self) -> impl Iterator<Item = CoreId> + use<> {
        (0..self.lines.len()).map(|core| core as CoreId)
    }

    fn send(&self, core: CoreId, ask: Ask) -> Result<Pending, Unanswered> {
        self.line(core).send(ask, UNANSWERED_COMMANDS)
    }

    fn line(&self, core: CoreId) -> MutexGuard<'_, Line> {
        // A panic of ours ends the process; a poisoned lock is met in tests only.
        self.lines[usize::from(core)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, core: CoreId, reply: Reply) {
        let asker = self.line(core).waiting.remove(&reply.ticket);
        let asker = asker.expect("a core answers each command once");
        // The asker may have gone away: its client hung up.
        drop(asker.send(reply.answer));
    }

    /// Whoever waits for this core learns that no answer will come.
    fn end(&self, core: CoreId) {
        let mut line = self.line(core);
        line.ended = true;
        line.waiting.clear();
    }
}

impl Line {
    fn send(&mut self, ask: Ask, most: usize) -> Result<Pending, Unanswered> {
        if self.ended {
            return Err(Unanswered::Ended);
        }
        if self.sealed && matches!(ask, Ask::Publish { .. }) {
            return Err(Unanswered::Draining);
        }
        if self.waiting.len() >= most {
            return Err(Unanswered::Overloaded);
        }
        let ticket = self.next_ticket;
        self.commands.send(Command { ticket, ask }).map_err(|_| Unanswered::Overloaded)?;
        self.next_ticket += 1;
        let (asker, pending) = oneshot::channel();
        self.waiting.insert(ticket, asker);
        Ok(pending)
    }
}

/// Takes what the cores say, until all of them have ended.
///
/// # Errors
/// The bell cannot be waited for.
pub async fn collect(bell: Arc<Bell>, mut notices: Vec<Notices>, hub: Arc<Hub>) -> io::Result<()> {
    let rings = tokio_uring::fs::File::from_std(bell.to_file()?);
    let mut over = vec![false; notices.len()];
    while over.iter().any(|over| !over) {
        if take_all(&mut notices, &mut over, &hub) {
            // The askers that have just got their answers go first.
            tokio::task::yield_now().await;
            continue;
        }
        bell.say_asleep();
        let idle = notices.iter().zip(&over).all(|(n, &over)| n.is_empty() && n.is_over() == over);
        if idle {
            rings.read_at(vec![0; 8], 0).await.0?;
        }
        bell.say_awake();
    }
    Ok(())
}

/// Takes at most one batch of every core; true when there was something.
fn take_all(notices: &mut [Notices], over: &mut [bool], hub: &Hub) -> bool {
    const BATCH: usize = 64;
    let mut found = false;
    for (core, notices) in notices.iter_mut().enumerate() {
        let id = core as CoreId;
        for notice in std::iter::from_fn(|| notices.take()).take(BATCH) {
            found = true;
            match notice {
                Notice::Reply(reply) => hub.settle(id, reply),
                Notice::Log(line) => log::write(id, &line),
            }
        }
        if !over[core] && notices.is_over() {
            over[core] = true;
            found = true;
            hub.end(id);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh;

    #[test]
    fn a_core_that_does_not_answer_is_asked_so_much_and_no_more() {
        let (control, mut ports) = mesh::connect(1).unwrap();
        let (commands, mut notices): (Vec<_>, Vec<_>) =
            control.links.into_iter().map(|link| (link.commands, link.notices)).unzip();
        let hub = Hub::new(0, commands);
        let asked: Vec<_> = (0..UNANSWERED_COMMANDS).map(|_| hub.send(0, Ask::Stats).unwrap()).collect();
        assert_eq!(hub.send(0, Ask::Stats).unwrap_err(), Unanswered::Overloaded);
        drop(asked);
        assert_eq!(hub.send(0, Ask::Stats).unwrap_err(), Unanswered::Overloaded, "hanging up frees nothing");
        drop(hub.order_all(|| Ask::ClearTrace));
        let mut last = None;
        while let Some(command) = ports[0].take() {
            ports[0].reply(Reply { ticket: command.ticket, answer: Answer::Ok });
            last = Some(command.ask);
        }
        assert!(matches!(last, Some(Ask::ClearTrace)), "an order finds its place");
        let mut over = [false];
        while take_all(&mut notices, &mut over, &hub) {}
        assert!(hub.send(0, Ask::Stats).is_ok());
    }

    #[test]
    fn the_end_of_a_core_reaches_those_who_wait_for_it() {
        let (control, mut ports) = mesh::connect(2).unwrap();
        let (commands, mut notices): (Vec<_>, Vec<_>) =
            control.links.into_iter().map(|link| (link.commands, link.notices)).unzip();
        let hub = Hub::new(0, commands);
        let [mut answered, mut lost] = [0, 0].map(|core| hub.send(core, Ask::Stats).unwrap());
        let first = ports[0].take().unwrap().ticket;
        ports[0].reply(Reply { ticket: first, answer: Answer::Ok });
        ports.remove(0);
        let mut over = [false; 2];
        while take_all(&mut notices, &mut over, &hub) {}
        assert_eq!(over, [true, false]);
        assert!(matches!(answered.try_recv(), Ok(Answer::Ok)), "what it said last counts");
        assert_eq!(lost.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
        assert_eq!(hub.send(0, Ask::Stats).unwrap_err(), Unanswered::Ended);
        assert!(hub.send(1, Ask::Stats).is_ok());
    }
}
