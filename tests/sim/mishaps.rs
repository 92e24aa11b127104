//! What goes wrong, and the end of it.

use seqcast::shard::home_of_client;
use seqcast::shard::step::Ask;

use crate::chaos::{Cut, MS, Mishap};
use crate::net::Server;
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

    /// The server's process dies and comes back with nothing.
    fn kill(&mut self) {
        self.life += 1;
        self.seed_of_process = self.rng.next();
        self.down_until = self.now + self.rng.below(1500 * MS);
        self.channels.clear();
        let waiting: Vec<_> = self.tickets.drain().map(|(_, ticket)| ticket).collect();
        for ticket in waiting {
            if let Ticket::Publish { caller: Some(caller), .. } = ticket {
                let at = self.down_until;
                self.at(at, Event::Caller(caller));
            }
        }
        self.oracle.killed(self.now);
        self.boot();
        for socket in 0..self.sockets.len() {
            let found = &mut self.sockets[socket];
            let was_gone = std::mem::replace(&mut found.server, Server::Gone) == Server::Gone;
            found.broken = true;
            found.flight.clear();
            // What was in the heap of the process that died is gone with it.
            (found.down_scheduled, found.read_scheduled, found.up_scheduled) = (false, false, false);
            if found.client_open && !found.silent && !was_gone {
                let wait = self.rng.below(50 * MS);
                self.after(wait, Event::Noticed(socket));
            }
        }
    }
}
