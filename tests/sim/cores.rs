//! The server's cores: each turn takes in what has arrived, then sends, as the driver does.

use std::collections::VecDeque;
use std::net::IpAddr;

use seqcast::shard::handoff::Batch;
use seqcast::shard::step::{ConnId, CoreId, Filled, Input, Instant, Level, Loss, Output, Peer, SessionId};
use seqcast::shard::{Setup, Shard};

use crate::chaos::MS;
use crate::net::{Server, SocketId, take_front};
use crate::world::{Event, Item, Place, World};

pub struct Core {
    pub shard: Shard,
    pub inbox: VecDeque<Item>,
    /// By index of the connection.
    places: Vec<Slot>,
    free: Vec<u32>,
    wake_at: u64,
    pub stalled_until: u64,
    pub is_drained: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    generation: u32,
    socket: Option<SocketId>,
}

const PEER: Peer = Peer::Ip(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

impl Core {
    pub fn new(setup: Setup) -> Core {
        Core {
            shard: Shard::new(setup),
            inbox: VecDeque::new(),
            places: Vec::new(),
            free: Vec::new(),
            wake_at: u64::MAX,
            stalled_until: 0,
            is_drained: false,
        }
    }

    fn take_place(&mut self, socket: SocketId) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Slot::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.generation += 1;
        place.socket = Some(socket);
        ConnId { index, generation: place.generation }
    }

    fn socket(&self, conn: ConnId) -> SocketId {
        let place = self.places[conn.index as usize];
        assert_eq!(place.generation, conn.generation, "the shard speaks of a connection that is gone");
        place.socket.expect("the shard speaks of a connection that it has")
    }

    fn free_place(&mut self, conn: ConnId) {
        self.places[conn.index as usize].socket = None;
        self.free.push(conn.index);
    }
}

impl World {
    /// Something arrives for a socket at whichever core has it.
    pub fn at_server(&mut self, socket: SocketId, item: Item) {
        match self.sockets[socket].server {
            Server::At(core, _) => self.put(core, item),
            Server::Between => self.after(MS / 10, Event::AtServer(socket, item)),
            Server::Finished | Server::Gone => {}
        }
    }

    pub fn put(&mut self, core: CoreId, item: Item) {
        self.cores[usize::from(core)].inbox.push_back(item);
        let lag = if self.rng.chance(70) { 0 } else { self.rng.below(self.plan.hop) };
        self.wake(core, self.now + lag);
    }

    pub fn wake(&mut self, core: CoreId, at: u64) {
        let found = &mut self.cores[usize::from(core)];
        let at = at.max(found.stalled_until);
        if at < found.wake_at {
            found.wake_at = at;
            self.at(at, Event::Turn(core));
        }
    }

    pub fn turn(&mut self, core: CoreId) {
        let at = usize::from(core);
        if self.cores[at].wake_at != self.now {
            return;
        }
        self.cores[at].wake_at = u64::MAX;
        if self.now < self.cores[at].stalled_until {
            return self.wake(core, self.now);
        }
        self.wakes += 1;
        for _ in 0..self.rng.range(1, 40) {
            if self.cores[at].shard.wants_flush() {
                break;
            }
            let Some(item) = self.cores[at].inbox.pop_front() else { break };
            self.take(core, item);
        }
        if self.cores[at].shard.next_deadline().is_some_and(|due| due.0 <= self.now) {
            self.step(core, Input::Tick);
        }
        let is_rest = self.send_dirty(core);
        self.hand_over(core);
        self.cores[at].shard.check_invariants();
        if is_rest || !self.cores[at].inbox.is_empty() {
            let wait = self.rng.range(1000, 100_000);
            self.wake(core, self.now + wait);
        } else if let Some(due) = self.cores[at].shard.next_deadline() {
            self.wake(core, due.0.max(self.now + 1000));
        }
    }

    fn take(&mut self, core: CoreId, item: Item) {
        match item {
            Item::Opened(socket) => {
                let conn = self.cores[usize::from(core)].take_place(socket);
                self.sockets[socket].server = Server::At(core, conn);
                let is_shared = self.plan.is_shared;
                self.step(core, Input::Opened { conn, peer: PEER, is_shared });
                self.schedule_up(socket);
            }
            Item::Transferred(socket, transfer) => {
                let conn = self.cores[usize::from(core)].take_place(socket);
                self.sockets[socket].server = Server::At(core, conn);
                self.step(core, Input::Transferred { conn, transfer });
                self.schedule_up(socket);
            }
            Item::Bytes(socket, mut bytes) => match self.sockets[socket].server {
                Server::At(at, conn) if at == core => {
                    self.say(|| format!("core {core} takes {} bytes of socket {socket}", bytes.len()));
                    self.step(core, Input::Received { conn, bytes: &mut bytes });
                }
                Server::Between | Server::At(..) => unreachable!("they go back when a socket is handed on"),
                Server::Finished | Server::Gone => {}
            },
            Item::Writable(socket) => match self.sockets[socket].server {
                Server::At(at, conn) if at == core => self.step(core, Input::Writable { conn }),
                _ => {}
            },
            Item::Lost(socket, loss) => match self.sockets[socket].server {
                Server::At(at, conn) if at == core => self.lose(core, conn, loss),
                Server::Between | Server::At(..) => {
                    self.after(MS / 10, Event::AtServer(socket, Item::Lost(socket, loss)));
                }
                Server::Finished | Server::Gone => {}
            },
            Item::Batch(from, batch) => self.take_batch(core, from, batch),
            Item::Command(command) => {
                // Budgets are kept with every input, so counters are exact only behind one.
                self.step(core, Input::Tick);
                self.step(core, Input::Command(command));
            }
        }
    }

    /// Some handoffs of a batch; the rest stays in front of the inbox.
    fn take_batch(&mut self, core: CoreId, from: CoreId, mut batch: Batch) {
        let at = usize::from(core);
        let mut budget = self.rng.range(1, 30);
        while budget > 0
            && !self.cores[at].shard.wants_flush()
            && let Some(handoff) = batch.take()
        {
            budget -= 1;
            self.cores[at].shard.handle(Instant(self.now), Input::Handoff { from, handoff });
            self.settle(core);
        }
        if !batch.is_read() {
            return self.cores[at].inbox.push_front(Item::Batch(from, batch));
        }
        *self.travelling.get_mut(&(from, core)).expect("it was sent") -= 1;
        self.cores[usize::from(from)].shard.return_batch(core, batch);
        if self.cores[usize::from(from)].shard.has_batch(core) {
            // The sender is rung: there is room again.
            self.wake(from, self.now);
        }
    }

    /// Sends other cores what there is for them, as far as the rings have room.
    fn hand_over(&mut self, core: CoreId) {
        for to in (0..self.plan.cores).filter(|to| *to != core) {
            loop {
                let travelling = self.travelling.entry((core, to)).or_default();
                if *travelling >= self.plan.ring {
                    break;
                }
                let Some(batch) = self.cores[usize::from(core)].shard.take_batch(to) else { break };
                *travelling += 1;
                let item = Item::Batch(core, batch);
                self.send(Place::Core(core), Place::Core(to), Event::AtCore(to, item));
            }
        }
        self.settle(core);
    }

    fn lose(&mut self, core: CoreId, conn: ConnId, loss: Loss) {
        let socket = self.cores[usize::from(core)].socket(conn);
        self.say(|| format!("core {core} loses socket {socket}: {loss:?}"));
        let unacked = self.unacked(socket);
        // Now and then the kernel does not say.
        let unacked = (!self.rng.chance(10)).then_some(unacked);
        let found = &mut self.sockets[socket];
        found.server = Server::Gone;
        found.broken = true;
        self.step(core, Input::Lost { conn, unacked, loss });
        self.cores[usize::from(core)].free_place(conn);
    }

    /// What SIOCOUTQ says: it may lag behind what the client has.
    fn unacked(&mut self, socket: SocketId) -> u32 {
        let lag = if self.rng.chance(20) { self.rng.below(200) } else { 0 };
        (self.sockets[socket].flight.len() as u64 + lag) as u32
    }

    fn step(&mut self, core: CoreId, input: Input<'_>) {
        let now = Instant(self.now);
        self.cores[usize::from(core)].shard.handle(now, input);
        self.settle(core);
    }

    fn settle(&mut self, core: CoreId) {
        while let Some(output) = self.cores[usize::from(core)].shard.poll() {
            self.act(core, output);
        }
    }

    fn act(&mut self, core: CoreId, output: Output) {
        let at = usize::from(core);
        match output {
            Output::Established { conn } => _ = self.cores[at].socket(conn),
            Output::Pause { conn } => {
                let socket = self.cores[at].socket(conn);
                self.sockets[socket].paused = true;
            }
            Output::Resume { conn } => {
                let socket = self.cores[at].socket(conn);
                self.sockets[socket].paused = false;
                self.schedule_up(socket);
            }
            Output::Finish { conn, acknowledged } => {
                let socket = self.end_connection(core, conn, acknowledged, Server::Finished);
                self.schedule_down(socket);
            }
            Output::Abort { conn, acknowledged } => {
                let socket = self.end_connection(core, conn, acknowledged, Server::Gone);
                self.sockets[socket].broken = true;
                self.sockets[socket].flight.clear();
                if self.sockets[socket].client_open && !self.sockets[socket].silent {
                    let wait = self.rng.below(self.plan.hop);
                    self.after(wait, Event::Noticed(socket));
                }
            }
            Output::AskAcknowledged { conn, session, most } => {
                let socket = self.cores[at].socket(conn);
                if u64::from(self.unacked(socket)) <= most {
                    self.cores[at].shard.handle(Instant(self.now), Input::Acknowledged { session });
                }
            }
            Output::Transfer { conn, to, transfer } => {
                let socket = self.cores[at].socket(conn);
                self.cores[at].free_place(conn);
                self.sockets[socket].server = Server::Between;
                self.give_back(core, socket);
                let item = Item::Transferred(socket, transfer);
                self.send(Place::Core(core), Place::Core(to), Event::AtCore(to, item));
            }
            Output::Reply(reply) => self.send(Place::Core(core), Place::Control, Event::Replied(reply)),
            Output::Log(line) => {
                assert!(line.level != Level::Error, "logged as an error: {}", line.text);
                self.say(|| format!("core {core} logs: {}", line.text));
            }
            Output::Drained => {
                assert!(!self.cores[at].is_drained, "a drain ends once");
                self.cores[at].is_drained = true;
            }
        }
    }

    /// What a core has not taken of a socket that it hands on was still in the kernel.
    fn give_back(&mut self, core: CoreId, socket: SocketId) {
        let inbox = &mut self.cores[usize::from(core)].inbox;
        let mut bytes = Vec::new();
        inbox.retain(|item| match item {
            Item::Bytes(of, part) if *of == socket => {
                bytes.extend_from_slice(part);
                false
            }
            _ => true,
        });
        bytes.extend(self.sockets[socket].up.drain(..));
        self.sockets[socket].up = bytes.into();
    }

    fn end_connection(
        &mut self,
        core: CoreId,
        conn: ConnId,
        acknowledged: Option<(SessionId, u64)>,
        server: Server,
    ) -> SocketId {
        let socket = self.cores[usize::from(core)].socket(conn);
        self.say(|| format!("core {core} ends socket {socket}: {server:?}"));
        self.cores[usize::from(core)].free_place(conn);
        self.sockets[socket].server = server;
        if let Some((session, most)) = acknowledged
            && u64::from(self.unacked(socket)) <= most
        {
            let now = Instant(self.now);
            self.cores[usize::from(core)].shard.handle(now, Input::Acknowledged { session });
        }
        socket
    }

    /// One send for each connection that has something, in chunks, up to a budget. True: there is more.
    fn send_dirty(&mut self, core: CoreId) -> bool {
        let at = usize::from(core);
        let mut budget = self.rng.range(1, 30);
        loop {
            let mut chunk = Vec::new();
            for _ in 0..self.rng.range(1, 4) {
                if budget == 0 {
                    break;
                }
                let Some(conn) = self.cores[at].shard.next_dirty() else {
                    let forgotten = if chunk.is_empty() { self.cores[at].shard.forgotten() } else { None };
                    assert_eq!(forgotten, None, "it has something to send, and is on no list");
                    break;
                };
                budget -= 1;
                let room = self.rng.pick(&[17 * 1024, 20_000, 64 * 1024]);
                let mut bytes = vec![0; room];
                let Filled { bytes: n, body } = self.cores[at].shard.fill(conn, &mut bytes);
                if n == 0 && body.is_none() {
                    self.cores[at].shard.sent(Instant(self.now), conn, 0, false);
                    self.settle(core);
                    continue;
                }
                bytes.truncate(n);
                bytes.extend_from_slice(&body.unwrap_or_default());
                chunk.push((conn, bytes));
            }
            if chunk.is_empty() {
                return budget == 0;
            }
            self.send_chunk(core, chunk);
            if budget == 0 {
                return true;
            }
        }
    }

    fn send_chunk(&mut self, core: CoreId, chunk: Vec<(ConnId, Vec<u8>)>) {
        let at = usize::from(core);
        let now = Instant(self.now);
        let mut broken = Vec::new();
        for (conn, bytes) in chunk {
            let socket = self.cores[at].socket(conn);
            match self.sockets[socket].write(&bytes) {
                Some(written) => {
                    let refused = written < bytes.len();
                    self.say(|| {
                        format!("core {core} writes {written} of {} bytes to socket {socket}", bytes.len())
                    });
                    self.sockets[socket].wants_writable |= refused;
                    self.cores[at].shard.sent(now, conn, written, refused);
                    self.schedule_down(socket);
                }
                None => {
                    self.cores[at].shard.sent(now, conn, 0, true);
                    broken.push((socket, conn));
                }
            }
        }
        self.settle(core);
        for (socket, conn) in broken {
            if self.sockets[socket].server == Server::At(core, conn) {
                self.lose(core, conn, Loss::Error);
            }
        }
    }

    // What lies between.

    pub fn schedule_down(&mut self, socket: SocketId) {
        let found = &mut self.sockets[socket];
        let is_needed = !found.flight.is_empty() || found.server == Server::Finished;
        if is_needed && !found.down_scheduled && found.can_arrive() {
            found.down_scheduled = true;
            let wait = self.rng.below(self.plan.hop);
            self.after(wait, Event::Down(socket));
        }
    }

    pub fn travel_down(&mut self, socket: SocketId) {
        let n = self.some_part(self.sockets[socket].flight.len());
        let found = &mut self.sockets[socket];
        found.down_scheduled = false;
        if !found.can_arrive() {
            return;
        }
        found.arrive(n);
        if found.flight.is_empty() && found.server == Server::Finished {
            found.server = Server::Gone;
            found.unread.push_back(crate::net::Unread::Eof);
        }
        let has_room = found.flight.len() <= found.flight_room * 2 / 3;
        if has_room && std::mem::take(&mut found.wants_writable) {
            self.at_server(socket, Item::Writable(socket));
        }
        self.schedule_down(socket);
        self.schedule_read(socket);
    }

    pub fn schedule_read(&mut self, socket: SocketId) {
        let found = &mut self.sockets[socket];
        if !found.unread.is_empty() && !found.read_scheduled && found.client_open {
            found.read_scheduled = true;
            let stalled = self.actors[found.client].stalled_until.saturating_sub(self.now);
            let wait = if self.rng.chance(80) { 0 } else { self.rng.below(self.plan.hop) };
            self.after(stalled + wait, Event::Read(socket));
        }
    }

    pub fn schedule_up(&mut self, socket: SocketId) {
        let found = &mut self.sockets[socket];
        let is_needed = !found.up.is_empty() || found.client_fin;
        if is_needed && !found.up_scheduled && !found.silent && !found.broken {
            found.up_scheduled = true;
            let wait = self.rng.below(self.plan.hop);
            self.after(wait, Event::Up(socket));
        }
    }

    pub fn travel_up(&mut self, socket: SocketId) {
        let n = self.some_part(self.sockets[socket].up.len());
        let found = &mut self.sockets[socket];
        found.up_scheduled = false;
        if found.silent || found.broken || found.paused {
            return;
        }
        let bytes: Vec<u8> = match found.server {
            Server::At(..) => take_front(&mut found.up, n),
            Server::Between => return,
            // Read and discarded.
            Server::Finished | Server::Gone => return found.up.clear(),
        };
        if !bytes.is_empty() {
            self.at_server(socket, Item::Bytes(socket, bytes));
        }
        let found = &mut self.sockets[socket];
        if found.up.is_empty() && found.client_fin {
            found.client_fin = false;
            found.broken = true;
            self.at_server(socket, Item::Lost(socket, Loss::Eof));
        }
        self.schedule_up(socket);
    }

    /// Everything, or a part of it.
    fn some_part(&mut self, all: usize) -> usize {
        if all < 2 || self.rng.chance(60) { all } else { self.rng.range(1, all as u64) as usize }
    }
}
