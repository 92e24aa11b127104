//! The choices of a seed: how the server is configured, what the network is like, who the clients are, what goes wrong.

use std::time::Duration;

use seqcast::client::gate::Generation;
use seqcast::config::{Config, DuplicateId, Identity, InboundRule, Policy, RpcRule};

use crate::rng::Rng;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;

/// Names of topics and groups: `t0`, `g0` and so on.
pub const TOPICS: u64 = 3;
pub const GROUPS: u64 = 2;

/// Seeds from here on are of servers that keep their state in a file.
pub const RESTARTS: u64 = 1_000_000;

/// Events of the control thread, and of clients by what the server does with them.
pub const EVENT: &str = "sim";
pub const UP_TOPIC: &str = "up-topic";
pub const UP_GROUP: &str = "up-group";
pub const UP_ALL: &str = "up-all";
pub const UP_SENDER: &str = "up-sender";

/// Everything that is decided before a simulation begins.
#[derive(Debug)]
pub struct Plan {
    pub cores: u16,
    pub config: Config,
    pub people: Vec<Person>,
    /// Sequential publishers of the control thread.
    pub callers: usize,
    /// How long things go wrong.
    pub length: u64,
    /// Longest delay of one hop.
    pub hop: u64,
    /// Longest time between two publishes of a caller.
    pub think: u64,
    /// Longest time between two mishaps.
    pub calm: u64,
    /// Bytes that the kernels take for one socket, per direction: least and most.
    pub kernel: (u64, u64),
    /// Percentages.
    pub mishaps: Mishaps,
    /// How long clients wait for a hole, in milliseconds.
    pub gate_timeout: u64,
    pub heartbeat: u64,
    /// A server that drains leaves its state to the next one.
    pub keeps_state: bool,
    /// Batches that the ring from one core to another holds.
    pub ring: usize,
    /// Bytes for one core past which whoever feeds it pauses.
    pub staged_bytes: usize,
    /// One core accepts for all.
    pub is_shared: bool,
}

/// A client of the simulation.
#[derive(Debug, Clone)]
pub struct Person {
    /// Pinned id; none = anonymous.
    pub id: Option<String>,
    pub token: String,
    pub user: Option<String>,
    pub groups: Vec<String>,
    pub generation: Generation,
}

/// Which mishaps happen in this seed at all, as weights.
#[derive(Debug, Clone, Copy)]
pub struct Mishaps {
    pub cut: u64,
    pub stall: u64,
    pub core_stall: u64,
    pub kill: u64,
    pub new_process: u64,
    pub rooms: u64,
    pub client_send: u64,
    pub snapshot: u64,
    pub disconnect: u64,
    pub burst: u64,
    pub operator: u64,
    pub drain: u64,
    pub request: u64,
    pub storm: u64,
    pub stats: u64,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    Cut,
    Stall,
    CoreStall,
    Kill,
    NewProcess,
    Rooms,
    ClientSend,
    Snapshot,
    Disconnect,
    Burst,
    /// The operator makes a client join or leave.
    Operator,
    /// The server drains and is started again.
    Drain,
    /// A client asks the server's handler of an event.
    Request,
    /// A client sends more pings than it reads pongs.
    Storm,
    Stats,
}

impl Mishaps {
    pub fn choose(&self, rng: &mut Rng) -> Mishap {
        let weights = [
            (self.cut, Mishap::Cut),
            (self.stall, Mishap::Stall),
            (self.core_stall, Mishap::CoreStall),
            (self.kill, Mishap::Kill),
            (self.new_process, Mishap::NewProcess),
            (self.rooms, Mishap::Rooms),
            (self.client_send, Mishap::ClientSend),
            (self.snapshot, Mishap::Snapshot),
            (self.disconnect, Mishap::Disconnect),
            (self.burst, Mishap::Burst),
            (self.operator, Mishap::Operator),
            (self.drain, Mishap::Drain),
            (self.request, Mishap::Request),
            (self.storm, Mishap::Storm),
            (self.stats, Mishap::Stats),
        ];
        let mut at = rng.below(weights.iter().map(|(weight, _)| weight).sum());
        for (weight, mishap) in weights {
            if at < weight {
                return mishap;
            }
            at -= weight;
        }
        Mishap::Stats
    }
}

/// How a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The client's end is closed hard; the server hears of it.
    ClientReset,
    /// The client's end is closed; what it sent before arrives.
    ClientFin,
    /// Something between them resets both ends.
    NetworkReset,
    /// Nothing passes any more; the client notices by and by, the server is not told.
    Silence,
}

impl Plan {
    pub fn new(seed: u64, cores: u16) -> Plan {
        let mut plan = Plan::of_one_process(seed, cores);
        if seed >= RESTARTS {
            plan.with_restarts(&mut Rng::new(!seed));
        }
        plan
    }

    /// The server ends in order now and then, and the next one goes on with its state.
    fn with_restarts(&mut self, rng: &mut Rng) {
        self.keeps_state = true;
        self.mishaps.drain = rng.pick(&[2, 5]);
        let resume = &mut self.config.resume;
        resume.enabled = true;
        if rng.chance(60) {
            // Nothing is lost of a restart then.
            resume.history_size = 4096;
            resume.ttl = Duration::from_secs(60);
            (resume.history_bytes, resume.parked_bytes, resume.max_parked) = (256 << 20, 64 << 20, 100);
        }
    }

    fn of_one_process(seed: u64, cores: u16) -> Plan {
        let rng = &mut Rng::new(seed);
        let mut config = config(rng);
        let people = people(rng, &mut config);
        let resume = config.resume.enabled;
        let mishaps = Mishaps {
            cut: rng.pick(&[0, 4, 10, 20]),
            stall: rng.pick(&[0, 3, 10]),
            core_stall: rng.pick(&[0, 1, 3]),
            kill: if resume && rng.chance(15) { 1 } else { 0 },
            new_process: rng.pick(&[0, 0, 1, 2]),
            rooms: rng.pick(&[0, 2, 6]),
            client_send: rng.pick(&[0, 2, 8]),
            snapshot: if config.replay.history_size > 0 && resume { rng.pick(&[0, 2]) } else { 0 },
            disconnect: rng.pick(&[0, 0, 1]),
            burst: rng.pick(&[1, 3, 8]),
            operator: rng.pick(&[0, 0, 3]),
            drain: u64::from(resume && rng.chance(10)),
            request: rng.pick(&[0, 0, 3]),
            storm: rng.pick(&[0, 0, 1]),
            stats: 1,
        };
        Plan {
            cores,
            config,
            people,
            callers: rng.range(1, 3) as usize,
            length: rng.range(1, 5) * SECOND,
            hop: rng.pick(&[50_000, MS, 5 * MS, 40 * MS]),
            think: rng.pick(&[10 * MS, 40 * MS, 150 * MS]),
            calm: rng.pick(&[60 * MS, 150 * MS, 400 * MS]),
            kernel: rng.pick(&[(300, 2000), (1000, 8000), (4000, 60_000), (60_000, 300_000), (300, 300_000)]),
            mishaps,
            gate_timeout: 5000,
            heartbeat: rng.pick(&[1000, 3000]),
            keeps_state: false,
            ring: rng.pick(&[1, 2, 64]),
            staged_bytes: rng.pick(&[0, 300, 5000, 1 << 20]),
            is_shared: rng.chance(30),
        }
    }
}

fn config(rng: &mut Rng) -> Config {
    let mut config = Config::default();
    let ms = Duration::from_millis;
    config.server.hello_wait = ms(rng.pick(&[20, 300, 1000, 10_000]));
    config.server.idle_timeout = ms(rng.pick(&[3500, 10_000]));
    config.server.ping_interval = ms(rng.pick(&[0, 700, 2000]));
    config.server.coalesce = ms(rng.pick(&[0, 0, 0, 1, 7]));
    config.auth.duplicate_id = rng.pick(&[DuplicateId::Reject, DuplicateId::Takeover]);
    config.backpressure.policy = rng.pick(&[Policy::DropOldest, Policy::DropNewest, Policy::Disconnect]);
    config.backpressure.high_water_mark = rng.pick(&[500, 4000, 64_000, 1 << 20]);
    config.backpressure.max_queue = rng.pick(&[1, 3, 16, 256]);
    config.replay.history_size = rng.pick(&[0, 0, 3, 20]);
    config.replay.history_bytes = rng.pick(&[2000, 64 << 20]);
    config.resume.enabled = rng.chance(90);
    config.resume.history_size = rng.pick(&[1, 4, 32, 256]);
    config.resume.history_bytes = rng.pick(&[8000, 256 << 20, 256 << 20]);
    config.resume.ttl = ms(rng.pick(&[400, 4000, 60_000, 60_000]));
    config.resume.max_parked = rng.pick(&[1, 100, 100]);
    config.resume.parked_bytes = rng.pick(&[3000, 64 << 20, 64 << 20]);
    config.trace.capacity = 4;
    config.rpc.insert(EVENT.into(), RpcRule::Echo);
    if !config.resume.enabled && rng.chance(70) {
        // Without numbers a drop is silent; here none may happen.
        config.backpressure.policy = Policy::DropOldest;
        config.backpressure.high_water_mark = 1 << 30;
        config.backpressure.max_queue = 1 << 20;
        config.resume.history_bytes = 1 << 30;
    }
    for (name, rule) in [
        (UP_TOPIC, InboundRule::Topic("t0".into())),
        (UP_GROUP, InboundRule::Group("g0".into())),
        (UP_ALL, InboundRule::Broadcast),
        (UP_SENDER, InboundRule::Sender),
    ] {
        config.inbound.insert(name.into(), rule);
    }
    config
}

fn people(rng: &mut Rng, config: &mut Config) -> Vec<Person> {
    let generations = match rng.below(5) {
        0 => vec![Generation::V015],
        1 => vec![Generation::V016],
        2 => vec![Generation::Seqcast],
        _ => vec![Generation::V015, Generation::V016, Generation::Seqcast],
    };
    let people: Vec<_> = (0..rng.range(1, 6))
        .map(|n| {
            let groups = (0..GROUPS).filter(|_| rng.chance(25)).map(|g| format!("g{g}")).collect();
            let user = rng.chance(40).then(|| format!("u{}", rng.below(2)));
            let id = rng.chance(70).then(|| format!("p{n}"));
            Person { id, token: format!("token-{n}"), user, groups, generation: rng.pick(&generations) }
        })
        .collect();
    config.auth.identity = people
        .iter()
        .map(|person| Identity {
            token: person.token.clone(),
            id: person.id.clone(),
            user: person.user.clone(),
            groups: person.groups.clone(),
            topics: vec!["*".into()],
            join_groups: vec!["*".into()],
            ..Identity::default()
        })
        .collect();
    people
}
