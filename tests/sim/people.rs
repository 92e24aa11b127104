//! The clients: a session each, what it does with its socket, and what its user does.

use std::collections::HashMap;
use std::time::Duration;

use seqcast::client::action::{Action, End, RequestError, RequestId};
use seqcast::client::address::Address;
use seqcast::client::backoff::BackoffOptions;
use seqcast::client::gate::{GateOptions, Generation};
use seqcast::client::session::{Session, SessionOptions, envelope_of};
use seqcast::client::upgrade::Upgrade;
use seqcast::shard::step::{CoreId, Loss, RoomKind};
use seqcast::wire::control::{self, Control};
use seqcast::wire::envelope::{self, FLAG_SEQ, HEADER_BYTES, fnv1a32};
use seqcast::wire::frame;

use crate::chaos::{Cut, EVENT, GROUPS, MS, Person, SECOND, TOPICS, UP_ALL, UP_GROUP, UP_SENDER, UP_TOPIC};
use crate::net::{Socket, SocketId, Unread};
use crate::oracle::{LogId, Room};
use crate::world::{Event, Item, World, payload};

/// A join or leave that the server is not known to have handled.
struct Unconfirmed {
    room: Room,
    joins: bool,
    sent: u64,
    /// `ts` of the ping behind it.
    ping: Option<i64>,
}

/// One process of a client.
pub struct Actor {
    pub person: Person,
    pub session: Session,
    pub log: LogId,
    pub socket: Option<SocketId>,
    pub stalled_until: u64,
    /// Counts the dials, so that an old one is not taken for a new one.
    attempt: u64,
    deadline: u64,
    unconfirmed: Vec<Unconfirmed>,
    /// The position in this connection's hello was not answered yet.
    hello_open: bool,
    /// The connection's first pong is still to come.
    is_new: bool,
    is_retired: bool,
    is_ticking: bool,
    /// What was asked and not answered yet.
    pub requests: HashMap<RequestId, Vec<u8>>,
}

impl Actor {
    /// The client's id as far as it knows it.
    pub fn id(&self) -> String {
        match &self.person.id {
            Some(id) => id.clone(),
            None => self.session.client_id().to_owned(),
        }
    }
}

impl World {
    /// A process begins: a first one of a person, or the next one in the place of an actor.
    pub fn new_actor(&mut self, person: usize, instead_of: Option<usize>) {
        let person = self.plan.people[person].clone();
        let gate = GateOptions {
            generation: person.generation,
            max_pending: if person.generation == Generation::Seqcast {
                self.rng.pick(&[8, 1024])
            } else {
                1024
            },
            timeout: Duration::from_millis(self.plan.gate_timeout),
            ..GateOptions::default()
        };
        let reconnect = Some(BackoffOptions {
            initial: Duration::from_millis(self.rng.range(10, 300)),
            max: Duration::from_millis(1500),
            stable: Duration::from_secs(1),
        });
        let options = SessionOptions {
            gate,
            reconnect,
            heartbeat: Duration::from_millis(self.plan.heartbeat),
            heartbeat_misses: 2,
            seed: self.rng.next(),
            ..SessionOptions::default()
        };
        let before = instead_of.map(|actor| self.actors[actor].log);
        let actor = Actor {
            log: self.oracle.new_log(&person, before),
            session: Session::new(options),
            person,
            socket: None,
            stalled_until: 0,
            attempt: 0,
            deadline: u64::MAX,
            unconfirmed: Vec::new(),
            hello_open: false,
            is_new: true,
            is_retired: false,
            is_ticking: false,
            requests: HashMap::new(),
        };
        let at = match instead_of {
            Some(at) => {
                self.actors[at] = actor;
                at
            }
            None => {
                self.actors.push(actor);
                self.actors.len() - 1
            }
        };
        for n in 0..TOPICS {
            if self.rng.chance(60) {
                self.actors[at].session.subscribe(&format!("t{n}"));
            }
        }
        let wait = self.rng.below(100 * MS);
        self.dial_after(at, wait);
    }

    fn dial_after(&mut self, actor: usize, wait: u64) {
        self.actors[actor].attempt += 1;
        let attempt = self.actors[actor].attempt;
        self.after(wait, Event::Dial(actor, attempt));
    }

    pub fn dial(&mut self, actor: usize, attempt: u64) {
        let found = &self.actors[actor];
        if found.attempt != attempt || found.is_retired || found.socket.is_some() {
            return;
        }
        if self.now < self.down_until {
            let now = self.duration();
            self.actors[actor].session.lost(now, End::Cut);
            return self.act_for(actor);
        }
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.rng.next().to_le_bytes());
        let upgrade = Upgrade::new(nonce);
        let address = Address::parse("ws://sim:9400/ws").unwrap();
        let request = upgrade.request(&address, Some(&self.actors[actor].person.token)).unwrap();
        let (least, most) = self.plan.kernel;
        let rooms = [self.rng.range(least, most), self.rng.range(least, most)].map(|room| room as usize);
        let mut socket = Socket::new(actor, upgrade, rooms[0], rooms[1]);
        socket.up.extend(request);
        let id = self.sockets.len();
        self.sockets.push(socket);
        self.actors[actor].socket = Some(id);
        self.say(|| format!("client {actor} dials: socket {id}, room {rooms:?}"));
        self.oracle.dialed(self.actors[actor].log, self.now);
        let any = self.rng.below(u64::from(self.plan.cores)) as CoreId;
        let core = if self.plan.is_shared { 0 } else { any };
        let wait = self.rng.below(self.plan.hop);
        self.after(wait, Event::AtCore(core, Item::Opened(id)));
        self.after(10 * SECOND, Event::GiveUp(id));
    }

    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    pub fn deadline(&mut self, actor: usize) {
        if self.actors[actor].deadline != self.now {
            return;
        }
        self.actors[actor].deadline = u64::MAX;
        let now = self.duration();
        self.actors[actor].is_ticking = true;
        self.actors[actor].session.tick(now);
        self.act_for(actor);
        self.actors[actor].is_ticking = false;
    }

    /// The client reads what lies in its kernel: one thing, or all of it.
    pub fn read(&mut self, socket: SocketId) {
        self.sockets[socket].read_scheduled = false;
        let actor = self.sockets[socket].client;
        if self.now < self.actors[actor].stalled_until {
            return self.schedule_read(socket);
        }
        let most = if self.rng.chance(50) { usize::MAX } else { self.rng.range(1, 5) as usize };
        self.read_some(socket, most);
        if self.sockets[socket].client_open {
            self.schedule_read(socket);
            self.schedule_down(socket);
        }
    }

    fn read_some(&mut self, socket: SocketId, most: usize) {
        for _ in 0..most {
            if !self.sockets[socket].client_open {
                return;
            }
            let Some(unread) = self.sockets[socket].read() else { return };
            self.heard(socket, unread);
        }
    }

    fn heard(&mut self, socket: SocketId, unread: Unread) {
        let actor = self.sockets[socket].client;
        assert_eq!(self.actors[actor].socket, Some(socket), "a client reads its own socket");
        let now = self.duration();
        match unread {
            Unread::Upgraded => self.upgraded(actor),
            Unread::Refused(status) => self.client_closes(actor, End::Refused(status)),
            Unread::Message(message) => {
                self.see_message(actor, &message);
                self.actors[actor].session.received(now, &message);
                self.act_for(actor);
            }
            Unread::Ping(payload) => self.client_writes(actor, frame::PONG, &payload),
            Unread::Closed(code) => self.client_closes(actor, End::Closed(code)),
            Unread::Eof => self.client_closes(actor, End::Cut),
        }
    }

    fn upgraded(&mut self, actor: usize) {
        let now = self.duration();
        let last = self.actors[actor].session.last_seq();
        self.actors[actor].hello_open = last > 0;
        self.actors[actor].is_new = true;
        self.say(|| format!("client {actor} is connected, has {last}"));
        self.oracle.opened(self.actors[actor].log, last, self.now);
        self.actors[actor].session.opened(now);
        self.act_for(actor);
    }

    /// What the oracle learns from the bytes themselves, before the gate has them.
    fn see_message(&mut self, actor: usize, message: &[u8]) {
        let header = envelope::parse(message).unwrap();
        let found = &mut self.actors[actor];
        self.oracle.heard(found.log, self.now);
        if envelope::is_control(header.id) {
            assert!((header.flags, header.seq) == (0, 0), "a control message is stamped");
            if let Ok(Control::Resumed { ok, from }) = control::decode(header.id, &message[HEADER_BYTES..]) {
                let answers_hello = std::mem::take(&mut found.hello_open);
                self.oracle.resumed(found.log, ok, from, answers_hello, self.now);
                self.say(|| format!("client {actor} hears resumed {{{ok}, {from}}}"));
            }
            return;
        }
        let seq = (header.flags & FLAG_SEQ != 0).then_some(header.seq);
        self.oracle.on_wire(found.log, seq, found.hello_open);
        self.say(|| format!("client {actor} reads {seq:?}"));
    }

    /// Does what a session says.
    pub fn act_for(&mut self, actor: usize) {
        while let Some(action) = self.actors[actor].session.poll() {
            match action {
                Action::Send(message) => {
                    self.note_sent(actor, &message);
                    self.client_writes(actor, frame::BINARY, &message);
                }
                Action::Deliver { event: _, seq, payload } => {
                    let (id, _) = payload.split_first_chunk().expect("the payload is one of ours");
                    let publish = u64::from_le_bytes(*id) as usize;
                    self.say(|| format!("client {actor} gets {seq:?}: publish {publish}"));
                    self.oracle.delivered(self.actors[actor].log, publish, seq, self.now);
                }
                Action::Missed { from, to } => {
                    self.say(|| format!("client {actor} missed {from} to {to:?}"));
                    let is_ticking = self.actors[actor].is_ticking;
                    self.oracle.missed(self.actors[actor].log, from, to, is_ticking, self.now);
                }
                Action::Control { id, payload } => self.note_control(actor, id, &payload),
                Action::Undecodable => panic!("the server sent something that cannot be decoded"),
                Action::Close { code } => {
                    if let Some(code) = code {
                        self.client_writes(actor, frame::CLOSE, &code.to_be_bytes());
                    }
                    self.client_closes(actor, code.map_or(End::Cut, End::Closed));
                }
                Action::Reconnect { after } => {
                    let wait = after.as_nanos() as u64;
                    self.dial_after(actor, wait);
                }
                Action::Reply { request, result } => {
                    let asked =
                        self.actors[actor].requests.remove(&request).expect("one answer to a request");
                    match result {
                        Ok(answer) => assert_eq!(answer, asked, "the handler gives back what it is asked"),
                        Err(error) => assert!(!matches!(error, RequestError::Failed(_)), "{error}"),
                    }
                }
                Action::Status(_) => {}
            }
        }
        self.arm(actor);
    }

    fn arm(&mut self, actor: usize) {
        let found = &mut self.actors[actor];
        let due = found.session.next_deadline().map_or(u64::MAX, |due| due.as_nanos() as u64);
        if due < found.deadline {
            let due = due.max(self.now + 1);
            found.deadline = due;
            self.at(due, Event::Deadline(actor));
        }
    }

    fn client_writes(&mut self, actor: usize, opcode: u8, message: &[u8]) {
        let Some(socket) = self.actors[actor].socket else { return };
        let key = (self.rng.next() as u32).to_le_bytes();
        let mut bytes = Vec::new();
        frame::push_masked_frame(&mut bytes, opcode, key, message);
        if !self.sockets[socket].client_fin {
            self.sockets[socket].up.extend(bytes);
            self.schedule_up(socket);
        }
    }

    /// The client closes its socket in good order and tells its session.
    fn client_closes(&mut self, actor: usize, end: End) {
        if let Some(socket) = self.actors[actor].socket.take() {
            self.sockets[socket].client_open = false;
            self.sockets[socket].client_fin = true;
            self.schedule_up(socket);
            self.lost(actor, socket, end);
        }
    }

    fn lost(&mut self, actor: usize, socket: SocketId, end: End) {
        self.say(|| format!("client {actor} lost socket {socket}: {end:?}"));
        let acknowledged = self.sockets[socket].stamped_acknowledged > 0;
        let now = self.duration();
        let found = &mut self.actors[actor];
        // Nobody knows whether they arrived.
        found.unconfirmed.clear();
        self.oracle.lost(found.log, acknowledged, self.now);
        found.session.lost(now, end);
        self.act_for(actor);
    }

    /// The client finds out that its connection is cut.
    pub fn client_lost(&mut self, socket: SocketId) {
        let actor = self.sockets[socket].client;
        let found = &self.sockets[socket];
        if self.actors[actor].socket != Some(socket) || !(found.broken || found.silent) {
            return;
        }
        if self.rng.chance(50) {
            // What had arrived is read before the error.
            self.read_some(socket, usize::MAX);
        }
        if self.actors[actor].socket == Some(socket) {
            self.actors[actor].socket = None;
            self.sockets[socket].client_open = false;
            self.lost(actor, socket, End::Cut);
        }
    }

    /// A dial that nothing answers is given up.
    pub fn give_up(&mut self, socket: SocketId) {
        let actor = self.sockets[socket].client;
        if self.actors[actor].socket == Some(socket) && self.sockets[socket].is_upgrading() {
            self.client_closes(actor, End::Cut);
        }
    }

    pub fn cut(&mut self, actor: usize, cut: Cut) {
        let Some(socket) = self.actors[actor].socket else { return };
        self.say(|| format!("cut {cut:?} of client {actor}"));
        match cut {
            Cut::ClientFin => self.client_closes(actor, End::Cut),
            Cut::ClientReset => {
                self.actors[actor].socket = None;
                self.sockets[socket].client_open = false;
                self.reset_at_server(socket);
                self.lost(actor, socket, End::Cut);
            }
            Cut::NetworkReset => {
                self.reset_at_server(socket);
                let wait = self.rng.below(300 * MS);
                self.after(wait, Event::Noticed(socket));
            }
            Cut::Silence => {
                self.sockets[socket].silent = true;
                // Else the heartbeat finds out.
                if self.rng.chance(60) {
                    let wait = self.rng.below(SECOND);
                    self.after(wait, Event::Noticed(socket));
                }
            }
        }
    }

    fn reset_at_server(&mut self, socket: SocketId) {
        self.sockets[socket].broken = true;
        self.sockets[socket].up.clear();
        let wait = self.rng.below(self.plan.hop + 1);
        self.after(wait, Event::AtServer(socket, Item::Lost(socket, Loss::Error)));
    }

    /// A process dies, and another one begins with the same person's token.
    pub fn new_process(&mut self, actor: usize) {
        self.retire(actor);
        let token = &self.actors[actor].person.token;
        let person = self.plan.people.iter().position(|person| person.token == *token).unwrap();
        self.new_actor(person, Some(actor));
    }

    /// A process ends.
    pub fn retire(&mut self, actor: usize) {
        self.oracle.retired(self.actors[actor].log, self.now);
        self.actors[actor].is_retired = true;
        if self.rng.chance(50) {
            self.actors[actor].session.close();
            self.act_for(actor);
            self.client_closes(actor, End::Ours);
            return;
        }
        // A process of a machine that is switched off says nothing.
        let Some(socket) = self.actors[actor].socket.take() else { return };
        self.sockets[socket].client_open = false;
        if self.rng.chance(50) { self.reset_at_server(socket) } else { self.sockets[socket].silent = true }
    }

    // What users do.

    pub fn change_rooms(&mut self, actor: usize) {
        let now = self.duration();
        let session = &mut self.actors[actor].session;
        let topic = format!("t{}", self.rng.below(TOPICS));
        let group = format!("g{}", self.rng.below(GROUPS));
        match self.rng.below(4) {
            0 => session.subscribe(&topic),
            1 => session.unsubscribe(&topic),
            2 => session.join_group(&group),
            _ => session.leave_group(&group),
        }
        if self.rng.chance(30) {
            session.tick(now);
        }
        self.act_for(actor);
    }

    pub fn client_sends(&mut self, actor: usize) {
        let log = self.actors[actor].log;
        for _ in 0..self.rng.range(1, 4) {
            let (event, room) = self.rng.pick(&[
                (UP_TOPIC, Room::In(RoomKind::Topic, 0)),
                (UP_GROUP, Room::In(RoomKind::Group, 0)),
                (UP_ALL, Room::All),
                (UP_SENDER, Room::Client(actor)),
            ]);
            let publish = self.oracle.sent_by_client(room, log, self.now);
            let size = self.rng.range(8, 400) as usize;
            // A full queue refuses: then nobody gets it, which the oracle allows.
            let _ = self.actors[actor].session.send(fnv1a32(event), &payload(publish, size));
        }
        self.act_for(actor);
    }

    pub fn request(&mut self, actor: usize) {
        let now = self.duration();
        let size = self.rng.range(8, 3000) as usize;
        let payload = payload(0, size);
        let request = self.actors[actor].session.request(now, EVENT, fnv1a32(EVENT), &payload);
        self.actors[actor].requests.insert(request, envelope_of(fnv1a32(EVENT), &payload));
        self.act_for(actor);
    }

    /// Pings that the session knows nothing of.
    pub fn storm(&mut self, actor: usize) {
        let mut encoder = control::Encoder::new();
        for ts in 1..self.rng.range(2, 1500) {
            let ping = encoder.ping(-(ts as i64)).to_vec();
            self.client_writes(actor, frame::BINARY, &ping);
        }
    }

    pub fn ask_snapshot(&mut self, actor: usize) {
        let topic = self.rng.below(TOPICS);
        self.actors[actor].session.request_snapshot(&format!("t{topic}"), 0);
        self.act_for(actor);
    }

    /// Joins, leaves and pings on their way out.
    fn note_sent(&mut self, actor: usize, message: &[u8]) {
        let header = envelope::parse(message).unwrap();
        self.say(|| {
            format!("client {actor} says {:?}", control::decode(header.id, &message[HEADER_BYTES..]).ok())
        });
        let found = &mut self.actors[actor];
        let (room, joins) = match control::decode(header.id, &message[HEADER_BYTES..]) {
            Ok(Control::Subscribe { topic }) => (room(RoomKind::Topic, topic), true),
            Ok(Control::Unsubscribe { topic }) => (room(RoomKind::Topic, topic), false),
            Ok(Control::JoinGroup { group }) => (room(RoomKind::Group, group), true),
            Ok(Control::LeaveGroup { group }) => (room(RoomKind::Group, group), false),
            Ok(Control::SnapshotRequest { topic, .. }) => {
                return self.oracle.snapshot_asked(found.log, room(RoomKind::Topic, topic));
            }
            Ok(Control::Ping { ts }) => {
                found.unconfirmed.iter_mut().for_each(|sent| _ = sent.ping.get_or_insert(ts));
                return;
            }
            _ => return,
        };
        found.unconfirmed.retain(|other| other.room != room);
        found.unconfirmed.push(Unconfirmed { room, joins, sent: self.now, ping: None });
        self.oracle.membership_sent(found.log, room, joins, self.now);
    }

    fn note_control(&mut self, actor: usize, id: u32, payload: &[u8]) {
        let Ok(Control::Pong { ts }) = control::decode(id, payload) else { return };
        if ts < 0 {
            // Of a storm: it may have been answered ahead of the hello.
            return;
        }
        let found = &mut self.actors[actor];
        let log = found.log;
        if std::mem::take(&mut found.is_new) {
            self.oracle.confirmed_connection(log, self.now);
        }
        let is_confirmed = |sent: &mut Unconfirmed| sent.ping.is_some_and(|ping| ping <= ts);
        let confirmed: Vec<_> = found.unconfirmed.extract_if(.., is_confirmed).collect();
        for Unconfirmed { room, joins, sent, .. } in confirmed {
            self.oracle.membership_confirmed(log, room, joins, sent, self.now);
        }
    }
}

fn room(kind: RoomKind, name: &str) -> Room {
    Room::In(kind, name[1..].parse().unwrap())
}
