//! The simulated world: virtual time, one heap of things to come, and who does what when they come.
//!
//! `cores.rs` runs the server's turns, `people.rs` the clients, `net.rs` is what lies between them, `oracle.rs` judges.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use seqcast::schema::Schema;
use seqcast::shard::admit::Admission;
use seqcast::shard::census::Census;
use seqcast::shard::handoff::Batch;
use seqcast::shard::saved::Saved;
use seqcast::shard::step::{Answer, Ask, Command, CoreId, Loss, Reply, RoomKind, Target, Transfer};
use seqcast::shard::{Setup, home_of_client, home_of_topic};

use crate::chaos::{EVENT, GROUPS, MS, Plan, SECOND, TOPICS, UP_ALL, UP_GROUP, UP_SENDER, UP_TOPIC};
use crate::cores::Core;
use crate::net::{Socket, SocketId};
use crate::oracle::{LogId, Oracle, PublishId, Room};
use crate::people::Actor;
use crate::rng::Rng;

/// Something that will happen.
#[derive(Debug)]
pub enum Event {
    /// A turn of a core, if it still wants one at this time.
    Turn(CoreId),
    /// Something arrives at whichever core has the socket.
    AtServer(SocketId, Item),
    /// Something else arrives at a core.
    AtCore(CoreId, Item),
    /// Bytes travel to the client.
    Down(SocketId),
    /// Bytes travel to the server.
    Up(SocketId),
    /// The client reads.
    Read(SocketId),
    /// The client finds its connection cut.
    Noticed(SocketId),
    /// The client waits no longer for an answer to its dial.
    GiveUp(SocketId),
    /// A client dials; only if it has not begun anew since.
    Dial(usize, u64),
    /// A client's deadline.
    Deadline(usize),
    /// The control thread gets an answer.
    Replied(Reply),
    /// A caller publishes its next event.
    Caller(usize),
    /// Every core must have drained.
    DrainOver,
    /// Something goes wrong.
    Mishap,
}

/// What a core finds in its inbox.
#[derive(Debug)]
pub enum Item {
    Opened(SocketId),
    Bytes(SocketId, Vec<u8>),
    Writable(SocketId),
    Lost(SocketId, Loss),
    Transferred(SocketId, Box<Transfer>),
    Batch(CoreId, Batch),
    Command(Command),
}

/// What may be expected of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Busy,
    /// Everything has been delivered.
    Quiet,
    /// All sessions have ended.
    End,
}

/// Why the control thread waits for an answer.
#[derive(Debug, Clone, Copy)]
pub enum Ticket {
    Publish {
        publish: PublishId,
        caller: Option<usize>,
    },
    Stats(When),
    /// The state of a core.
    Save(CoreId),
    /// Membership by the operator.
    Member {
        actor: usize,
        log: LogId,
        room: Room,
        on: bool,
        asked: u64,
        /// The client's connection, if the server had answered on it.
        connection: Option<usize>,
    },
    Other,
}

pub struct World {
    pub plan: Plan,
    pub rng: Rng,
    pub now: u64,
    pub schema: Arc<Schema>,
    pub cores: Vec<Core>,
    pub sockets: Vec<Socket>,
    pub actors: Vec<Actor>,
    pub oracle: Oracle,
    pub seed_of_process: u64,
    /// Counts the lives of the server's process.
    pub life: u64,
    /// The server is not up before this time.
    pub down_until: u64,
    pub trace: bool,
    /// When, in which order, and where in `events`.
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// With the life of the server's process that they belong to.
    events: slab::Slab<(u64, Event)>,
    scheduled: u64,
    /// Batches on their way from one core to another, or half read there.
    pub travelling: HashMap<(CoreId, CoreId), usize>,
    /// When the last thing sent from one place to another arrives there.
    pub channels: HashMap<(Place, Place), u64>,
    pub tickets: HashMap<u64, Ticket>,
    last_ticket: u64,
    steps: u64,
    pub is_chaotic: bool,
    pub is_draining: bool,
    /// Nothing is published any more.
    pub is_sealed: bool,
    /// What the cores of a server that ends have said so far.
    pub saved: Vec<Option<Saved>>,
    pub wakes: u64,
}

/// An end of a channel that keeps order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    Control,
    Core(CoreId),
}

/// More events than this is a livelock.
const STEPS: u64 = 3_000_000;

impl World {
    pub fn new(seed: u64, cores: u16) -> World {
        let plan = Plan::new(seed, cores);
        let names = [EVENT, UP_TOPIC, UP_GROUP, UP_ALL, UP_SENDER].map(str::to_owned);
        let schema = Arc::new(Schema::builtin().with_unverified(names.into_iter()).unwrap());
        let mut rng = Rng::new(seed ^ 0xc0de);
        let seed_of_process = rng.next();
        let mut world = World {
            oracle: Oracle::new(&plan),
            rng,
            now: SECOND,
            schema,
            cores: Vec::new(),
            sockets: Vec::new(),
            actors: Vec::new(),
            seed_of_process,
            life: 0,
            down_until: 0,
            trace: std::env::var("SEQCAST_SIM_TRACE").is_ok(),
            heap: BinaryHeap::new(),
            events: slab::Slab::new(),
            scheduled: 0,
            travelling: HashMap::new(),
            channels: HashMap::new(),
            tickets: HashMap::new(),
            last_ticket: 0,
            steps: 0,
            is_chaotic: true,
            is_draining: false,
            is_sealed: false,
            saved: Vec::new(),
            wakes: 0,
            plan,
        };
        world.boot();
        world
    }

    /// Makes the server's cores.
    pub fn boot(&mut self) {
        let config = Arc::new(self.plan.config.clone());
        let admission = Arc::new(Admission::new(&config.auth, config.limits.rate));
        let setup = Setup {
            core: 0,
            cores: self.plan.cores,
            seed: self.seed_of_process,
            config,
            schema: self.schema.clone(),
            admission,
            wall_ms: 1_700_000_000_000,
            census: Arc::new(Census::new(self.plan.cores)),
            staged_bytes: self.plan.staged_bytes,
        };
        self.cores = (0..self.plan.cores).map(|core| Core::new(Setup { core, ..setup.clone() })).collect();
    }

    /// The whole story; the error says what went wrong.
    pub fn run(&mut self) -> Result<(), String> {
        for person in 0..self.plan.people.len() {
            self.new_actor(person, None);
        }
        for caller in 0..self.plan.callers {
            let wait = self.rng.below(200 * MS);
            self.after(wait, Event::Caller(caller));
        }
        self.after(100 * MS, Event::Mishap);
        let end = self.now + self.plan.length;
        self.run_until(end)?;
        self.say(|| "--- no more mishaps ---".into());
        self.is_chaotic = false;
        self.heal();
        self.run_for(40 * SECOND)?;
        for _ in 0..3 {
            // Whatever was dropped behind the last event is found out by the next.
            self.publish(None, Room::All, 30);
            self.run_for(10 * SECOND)?;
        }
        self.check_stats(When::Quiet);
        self.run_for(SECOND)?;
        self.oracle.check(self.now)?;
        if let Some(actor) = self.actors.iter().position(|actor| !actor.requests.is_empty()) {
            return Err(format!("client {actor} has requests without an answer"));
        }
        if let Some(ticket) = self.tickets.values().next() {
            return Err(format!("{} commands have no answer, among them {ticket:?}", self.tickets.len()));
        }
        self.farewell()
    }

    /// All sessions end; nothing of them may be left.
    fn farewell(&mut self) -> Result<(), String> {
        for actor in 0..self.actors.len() {
            self.retire(actor);
        }
        let ttl = u64::try_from(self.plan.config.resume.ttl.as_nanos()).unwrap();
        self.run_for(2 * ttl + 20 * SECOND)?;
        self.check_stats(When::End);
        self.run_for(SECOND)?;
        self.oracle.verdict()
    }

    fn run_for(&mut self, time: u64) -> Result<(), String> {
        self.run_until(self.now + time)
    }

    fn run_until(&mut self, end: u64) -> Result<(), String> {
        while let Some(&Reverse((at, _, event))) = self.heap.peek().filter(|next| next.0.0 <= end) {
            self.heap.pop();
            let (life, event) = self.events.remove(event);
            self.now = at;
            self.steps += 1;
            if self.steps > STEPS {
                return Err(format!("{STEPS} events and no end: {event:?}, {} turns", self.wakes));
            }
            if life == self.life || !event.is_of_server() {
                self.happen(event);
            }
            if let Some(error) = self.oracle.take_error() {
                return Err(error);
            }
        }
        self.now = end;
        Ok(())
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Turn(core) => self.turn(core),
            Event::AtServer(socket, item) => self.at_server(socket, item),
            Event::AtCore(core, item) => self.put(core, item),
            Event::Down(socket) => self.travel_down(socket),
            Event::Up(socket) => self.travel_up(socket),
            Event::Read(socket) => self.read(socket),
            Event::Noticed(socket) => self.client_lost(socket),
            Event::GiveUp(socket) => self.give_up(socket),
            Event::Dial(actor, attempt) => self.dial(actor, attempt),
            Event::Deadline(actor) => self.deadline(actor),
            Event::Replied(reply) => self.replied(reply),
            Event::Caller(caller) => self.call(caller),
            Event::DrainOver => self.drain_over(),
            Event::Mishap => self.mishap(),
        }
    }

    pub fn after(&mut self, wait: u64, event: Event) {
        self.at(self.now + wait, event);
    }

    pub fn at(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        let event = self.events.insert((self.life, event));
        self.heap.push(Reverse((at.max(self.now), self.scheduled, event)));
    }

    /// After one hop, in order with everything else between the two.
    pub fn send(&mut self, from: Place, to: Place, event: Event) {
        let arrives = self.now + self.rng.below(self.plan.hop);
        let last = self.channels.entry((from, to)).or_default();
        *last = arrives.max(*last);
        let at = *last;
        self.at(at, event);
    }

    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>12.6} {}", self.now as f64 / 1e9, what());
        }
    }

    // The control thread.

    pub fn ask(&mut self, core: CoreId, ask: Ask, ticket: u64) {
        let command = Command { ticket, ask };
        self.send(Place::Control, Place::Core(core), Event::AtCore(core, Item::Command(command)));
    }

    pub fn ticket(&mut self, why: Ticket) -> u64 {
        self.last_ticket += 1;
        self.tickets.insert(self.last_ticket, why);
        self.last_ticket
    }

    fn call(&mut self, caller: usize) {
        if !self.is_chaotic {
            return;
        }
        if self.now < self.down_until {
            let at = self.down_until;
            return self.at(at, Event::Caller(caller));
        }
        if self.is_sealed {
            return self.after(50 * MS, Event::Caller(caller));
        }
        let room = self.some_room();
        let size = self.some_size();
        self.publish(Some(caller), room, size);
    }

    pub fn some_room(&mut self) -> Room {
        match self.rng.below(10) {
            0 => Room::All,
            1..=5 => Room::In(RoomKind::Topic, self.rng.below(TOPICS)),
            6 => Room::In(RoomKind::Group, self.rng.below(GROUPS)),
            7 => Room::In(RoomKind::User, self.rng.below(2)),
            _ => Room::Client(self.rng.index(self.actors.len())),
        }
    }

    pub fn some_size(&mut self) -> usize {
        let most = self.rng.pick(&[40, 40, 300, 300, 300, 3000, 3000, 30_000]);
        if most == 30_000 && !self.rng.chance(10) {
            return 100;
        }
        self.rng.range(8, most) as usize
    }

    pub fn publish(&mut self, caller: Option<usize>, room: Room, size: usize) {
        if self.is_sealed {
            return;
        }
        let (seed, cores) = (self.seed_of_process, self.plan.cores);
        let any = self.rng.below(u64::from(cores)) as CoreId;
        let (target, core) = match room {
            Room::All => (Target::All, any),
            Room::In(RoomKind::Topic, n) => {
                let name = format!("t{n}");
                let home = home_of_topic(seed, cores, &name);
                (Target::Room(RoomKind::Topic, name.into()), home)
            }
            Room::In(RoomKind::Group, n) => (Target::Room(RoomKind::Group, format!("g{n}").into()), any),
            Room::In(RoomKind::User, n) => (Target::Room(RoomKind::User, format!("u{n}").into()), any),
            Room::Client(actor) => {
                let id = self.actors[actor].id();
                let home = home_of_client(seed, cores, &id);
                (Target::Client(id.into()), home)
            }
        };
        let session = match room {
            Room::Client(actor) => Some(self.actors[actor].log),
            _ => None,
        };
        let publish = self.oracle.published(room, session, self.now);
        self.say(|| format!("publish {publish} to {room:?}"));
        let event = self.schema.by_name(EVENT).unwrap();
        let payload = Bytes::from(payload(publish, size));
        let ticket = self.ticket(Ticket::Publish { publish, caller });
        self.ask(core, Ask::Publish { event, payload, target }, ticket);
    }

    fn replied(&mut self, reply: Reply) {
        let ticket = self.tickets.remove(&reply.ticket).expect("one answer to one question");
        match (ticket, reply.answer) {
            (Ticket::Publish { publish, caller }, answer) => {
                match answer {
                    Answer::Published { topic, .. } => self.oracle.accepted(publish, topic, self.now),
                    Answer::NotFound => self.oracle.refused(publish),
                    other => panic!("answer to a publish: {other:?}"),
                }
                if let Some(caller) = caller {
                    let think = if self.rng.chance(30) { 0 } else { self.rng.below(self.plan.think) };
                    self.after(think, Event::Caller(caller));
                }
            }
            (Ticket::Stats(when), Answer::Stats(stats)) => {
                let people = self.actors.len() as u64;
                self.oracle.judge_stats(&stats, &self.plan, people, when);
            }
            (Ticket::Member { actor, log, room, on, asked, connection }, Answer::Ok) => {
                if self.actors[actor].log == log {
                    self.oracle.ordered(log, room, on, asked, connection, self.now);
                }
            }
            (Ticket::Member { .. }, Answer::NotFound) => {}
            (Ticket::Member { .. }, other) => panic!("answer to a membership: {other:?}"),
            (Ticket::Save(core), Answer::Saved(saved)) => self.core_saved(core, *saved),
            (Ticket::Save(_), other) => panic!("answer to the order to save: {other:?}"),
            (Ticket::Stats(_), other) => panic!("answer to stats: {other:?}"),
            (Ticket::Other, _) => {}
        }
    }

    pub fn check_stats(&mut self, when: When) {
        for core in 0..self.plan.cores {
            let ticket = self.ticket(Ticket::Stats(when));
            self.ask(core, Ask::Stats, ticket);
        }
    }
}

impl Event {
    /// Dies with the server's process.
    fn is_of_server(&self) -> bool {
        match self {
            Event::Turn(_) | Event::AtServer(..) | Event::AtCore(..) | Event::Replied(_) => true,
            Event::Down(_) | Event::Up(_) | Event::DrainOver => true,
            Event::Read(_) | Event::Noticed(_) | Event::GiveUp(_) | Event::Dial(..) | Event::Deadline(_) => {
                false
            }
            Event::Caller(_) | Event::Mishap => false,
        }
    }
}

/// The number of a publish and padding.
pub fn payload(publish: PublishId, size: usize) -> Vec<u8> {
    let mut payload = (publish as u64).to_le_bytes().to_vec();
    payload.resize(size.max(8), b'.');
    payload
}
