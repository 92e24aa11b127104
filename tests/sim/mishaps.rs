//! What goes wrong, and the end of it.

use seqcast::control::state::{decode, encode};
use seqcast::shard::home_of_client;
use seqcast::shard::saved::Saved;
use seqcast::shard::split::split;
use seqcast::shard::step::{Ask, CoreId, Instant, RoomKind};

use crate::chaos::{Cut, GROUPS, MS, Mishap, SECOND, TOPICS};
use crate::net::Server;
use crate::oracle::Room;
use crate::world::{Event, Ticket, When, World};

impl World {
    /// Takes back what still keeps clients from reading and cores from turning.
    pub fn heal(&mut self) {
        for actor in 0..self.actors.len() {
            self.actors[actor].stalled_until = 0;
            if let Some(socket) = self.actors[actor].socket {
                self.schedule_read(socket);
            }
        }
    }

    pub fn mishap(&mut self) {
        if !self.is_chaotic {
            return;
        }
        let mishap = self.plan.mishaps.choose(&mut self.rng);
        let actor = self.rng.index(self.actors.len());
        self.say(|| format!("mishap {mishap:?} ({actor})"));
        match mishap {
            Mishap::Cut => {
                let cuts = [Cut::ClientReset, Cut::ClientFin, Cut::NetworkReset, Cut::Silence];
                let cut = self.rng.pick(&cuts);
                self.cut(actor, cut);
            }
            Mishap::Stall => {
                self.actors[actor].stalled_until = self.now + self.rng.range(50, 2500) * MS;
                if let Some(socket) = self.actors[actor].socket {
                    let at = self.actors[actor].stalled_until;
                    self.at(at, Event::Read(socket));
                }
            }
            Mishap::CoreStall => {
                let core = self.rng.index(self.cores.len());
                self.cores[core].stalled_until = self.now + self.rng.range(10, 800) * MS;
            }
            Mishap::Kill => self.kill(),
            Mishap::NewProcess => self.new_process(actor),
            Mishap::Rooms => self.change_rooms(actor),
            Mishap::ClientSend => self.client_sends(actor),
            Mishap::Snapshot => self.ask_snapshot(actor),
            Mishap::Disconnect => self.disconnect(actor),
            Mishap::Burst => {
                let room = self.some_room();
                for _ in 0..self.rng.range(2, 30) {
                    let size = self.some_size();
                    self.publish(None, room, size);
                }
            }
            Mishap::Operator => self.order_member(actor),
            Mishap::Drain => self.drain(),
            Mishap::Request => self.request(actor),
            Mishap::Storm => self.storm(actor),
            Mishap::Stats => self.check_stats(When::Busy),
        }
        let calm = self.rng.below(self.plan.calm);
        self.after(calm, Event::Mishap);
    }

    fn disconnect(&mut self, actor: usize) {
        let id = self.actors[actor].id();
        let core = home_of_client(self.seed_of_process, self.plan.cores, &id);
        let ticket = self.ticket(Ticket::Other);
        let ask = Ask::Disconnect { id: id.into(), code: 1000, reason: "closed by server".into() };
        self.ask(core, ask, ticket);
    }

    fn order_member(&mut self, actor: usize) {
        let (kind, n, letter) = match self.rng.below(3) {
            0 => (RoomKind::Group, self.rng.below(GROUPS), 'g'),
            _ => (RoomKind::Topic, self.rng.below(TOPICS), 't'),
        };
        let (id, log, on) = (self.actors[actor].id(), self.actors[actor].log, self.rng.chance(60));
        let (room, asked) = (Room::In(kind, n), self.now);
        let connection = self.oracle.answered_connection(log);
        let core = home_of_client(self.seed_of_process, self.plan.cores, &id);
        let ticket = self.ticket(Ticket::Member { actor, log, room, on, asked, connection });
        self.oracle.ordering(log, room, on, asked);
        self.ask(core, Ask::Member { id: id.into(), kind, room: format!("{letter}{n}").into(), on }, ticket);
    }

    /// The server is asked to end; when it has, or has failed to, it is started again.
    fn drain(&mut self) {
        if self.is_draining || self.now < self.down_until {
            return;
        }
        self.is_draining = true;
        let deadline = self.now + self.rng.range(20, 1500) * MS;
        for core in 0..self.plan.cores {
            let ticket = self.ticket(Ticket::Other);
            self.ask(core, Ask::Drain { deadline: Instant(deadline) }, ticket);
        }
        self.at(deadline + 3 * SECOND, Event::DrainOver);
    }

    pub fn drain_over(&mut self) {
        let late = self.cores.iter().position(|core| !core.is_drained);
        assert!(late.is_none(), "core {late:?} has not drained 3 s after the deadline");
        if !self.plan.keeps_state {
            return self.kill();
        }
        self.say(|| "the state is saved".into());
        self.is_sealed = true;
        self.saved = vec![None; usize::from(self.plan.cores)];
        for core in 0..self.plan.cores {
            let ticket = self.ticket(Ticket::Save(core));
            self.ask(core, Ask::Save, ticket);
        }
    }

    /// The state of one core is there; with the last one the server is started again, perhaps on other cores.
    pub fn core_saved(&mut self, core: CoreId, saved: Saved) {
        self.saved[usize::from(core)] = Some(saved);
        if self.saved.iter().any(Option::is_none) {
            return;
        }
        let unanswered = self.tickets.values().any(|ticket| matches!(ticket, Ticket::Publish { .. }));
        assert!(!unanswered, "whoever publishes has his answer before the state is complete");
        let saved: Vec<Saved> = self.saved.drain(..).flatten().collect();
        let sessions = saved.iter().map(|core| core.sessions.len() as u64).sum::<u64>();
        let bytes = encode(&saved, &self.schema);
        let read = decode(&bytes, &self.schema).expect("what was written is believed");
        assert_eq!(read, saved);
        self.end_process();
        self.oracle.restored(self.now);
        self.plan.cores = self.rng.range(1, 4) as CoreId;
        self.oracle.cores = self.oracle.cores.max(self.plan.cores);
        self.boot();
        self.say(|| format!("taken up: {sessions} sessions, {} bytes", bytes.len()));
        let mut known = 0;
        for (core, restored) in self.cores.iter_mut().zip(split(read, self.seed_of_process, self.plan.cores))
        {
            core.shard.restore(Instant(self.now), &restored);
            core.shard.check_invariants();
            known += core.shard.counters().sessions_restored;
        }
        let expired: u64 = self.cores.iter_mut().map(|core| core.shard.counters().parked_expired).sum();
        assert!(
            known <= sessions && known + expired >= sessions,
            "{known} and {expired} of {sessions} sessions"
        );
        for core in 0..self.plan.cores {
            self.wake(core, self.now);
        }
    }

    /// The server's process dies and comes back with nothing.
    fn kill(&mut self) {
        self.end_process();
        self.oracle.killed(self.now);
        self.boot();
    }

    /// The server's process is gone; the next one will have another seed.
    fn end_process(&mut self) {
        self.life += 1;
        (self.is_draining, self.is_sealed) = (false, false);
        self.saved.clear();
        self.seed_of_process = self.rng.next();
        self.down_until = self.now + self.rng.below(1500 * MS);
        self.channels.clear();
        self.travelling.clear();
        let waiting: Vec<_> = self.tickets.drain().map(|(_, ticket)| ticket).collect();
        for ticket in waiting {
            if let Ticket::Publish { caller: Some(caller), .. } = ticket {
                let at = self.down_until;
                self.at(at, Event::Caller(caller));
            }
        }
        for socket in 0..self.sockets.len() {
            let found = &mut self.sockets[socket];
            let was_gone = std::mem::replace(&mut found.server, Server::Gone) == Server::Gone;
            found.broken = true;
            found.flight.clear();
            // What the process that died had sent on its way is gone with it.
            (found.down_scheduled, found.up_scheduled) = (false, false);
            if found.client_open && !found.silent && !was_gone {
                let wait = self.rng.below(50 * MS);
                self.after(wait, Event::Noticed(socket));
            }
        }
    }
}
