//! The configuration as parsed: plain values with the defaults of docs/OPERATING.md. `load` reads it from its
//! sources (defaults, file, environment, flags; later wins).

#![forbid(unsafe_code)]

mod cores;
mod identity;
mod keys;
mod load;
mod memory;
mod nearest;
mod secret;
mod show;
mod slot;
mod validate;
mod value;

pub use identity::is_anonymous_id;
pub use load::{ConfigError, Flags, Loaded, Source, environment, load};
pub use memory::{MemoryTerm, memory_sum};
pub use show::{Changes, KeyInfo, Line, reference};
pub use validate::{check, clamp_connections};

use std::collections::BTreeMap;
use std::time::Duration;

/// Everything an operator can set. Sections and keys have the names of the TOML file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Config {
    /// `[server]`
    pub server: Server,
    /// `[admin]`
    pub admin: Admin,
    /// `[schema]`
    pub schema: SchemaFile,
    /// `[auth]`
    pub auth: Auth,
    /// `[inbound]`: event name -> what happens with it; anything else is ignored.
    pub inbound: BTreeMap<String, InboundRule>,
    /// `[rpc]`: event name -> handler.
    pub rpc: BTreeMap<String, RpcRule>,
    /// `[limits]`
    pub limits: Limits,
    /// `[backpressure]`
    pub backpressure: Backpressure,
    /// `[replay]`
    pub replay: Replay,
    /// `[resume]`
    pub resume: Resume,
    /// `[state]`
    pub state: State,
    /// `[trace]`
    pub trace: Trace,
    /// `[log]`
    pub log: Log,
}

/// One listening address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// TCP; port 0 picks a free one.
    Tcp(std::net::SocketAddr),
    /// `unix:/path`
    Unix(std::path::PathBuf),
}

/// `[server] cores`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cores {
    /// Every core of the affinity mask.
    Auto,
    /// That many.
    Count(u16),
    /// These processors.
    List(Vec<u16>),
}

/// `[server]`
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// WebSocket addresses.
    pub listen: Vec<Listen>,
    /// Upgrade path, matched exactly.
    pub path: String,
    /// Which cores run.
    pub cores: Cores,
    /// Pin each core's thread.
    pub pin: bool,
    /// Connections over all cores.
    pub max_connections: u32,
    /// Inbound message, bytes after reassembly.
    pub max_message_size: u64,
    /// From accept to the end of the request head.
    pub handshake_timeout: Duration,
    /// How long app events wait for a hello.
    pub hello_wait: Duration,
    /// No byte received for so long closes.
    pub idle_timeout: Duration,
    /// WebSocket ping of the server; zero = off.
    pub ping_interval: Duration,
    /// `TCP_NOTSENT_LOWAT`, bytes.
    pub unsent_low_water: u32,
    /// Least time between two sends of one busy connection; zero = none.
    pub coalesce: Duration,
    /// How long a drain may take.
    pub drain_timeout: Duration,
}

impl Default for Server {
    fn default() -> Self {
        Server {
            listen: vec![Listen::Tcp(std::net::SocketAddr::from(([127, 0, 0, 1], 9400)))],
            path: "/ws".into(),
            cores: Cores::Auto,
            pin: true,
            max_connections: 100_000,
            max_message_size: 64 * 1024,
            handshake_timeout: Duration::from_secs(5),
            hello_wait: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(120),
            ping_interval: Duration::from_secs(25),
            unsent_low_water: 128 * 1024,
            coalesce: Duration::ZERO,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// `[admin]`
#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    /// Address of the admin API; none = off.
    pub listen: Option<Listen>,
    /// Bearer token; empty = none.
    pub token: String,
}

impl Default for Admin {
    fn default() -> Self {
        let listen = Some(Listen::Tcp(std::net::SocketAddr::from(([127, 0, 0, 1], 9401))));
        Admin { listen, token: String::new() }
    }
}

/// `[schema]`
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SchemaFile {
    /// Path; empty = the six built-in events.
    pub file: String,
}

/// `[auth] duplicate_id`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DuplicateId {
    /// A live duplicate of a pinned id is refused (409).
    #[default]
    Reject,
    /// The newer connection takes the session over.
    Takeover,
}

/// `[auth]`
#[derive(Debug, Clone, PartialEq)]
pub struct Auth {
    /// One shared bearer token for clients; empty = none.
    pub token: String,
    /// Exact origins; empty = any.
    pub allowed_origins: Vec<String>,
    /// Accept `?token=`.
    pub token_in_query: bool,
    /// Accept the subprotocol `bearer.<base64url>`.
    pub token_in_subprotocol: bool,
    /// What happens with a live duplicate of a pinned id.
    pub duplicate_id: DuplicateId,
    /// `[[auth.identity]]`
    pub identity: Vec<Identity>,
}

impl Default for Auth {
    fn default() -> Self {
        Auth {
            token: String::new(),
            allowed_origins: Vec::new(),
            token_in_query: false,
            token_in_subprotocol: true,
            duplicate_id: DuplicateId::Reject,
            identity: Vec::new(),
        }
    }
}

impl Auth {
    /// True when clients must authenticate: a shared token or at least one identity.
    pub fn is_gated(&self) -> bool {
        !self.token.is_empty() || !self.identity.is_empty()
    }
}

/// A token that carries an identity.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Identity {
    /// Bearer token.
    pub token: String,
    /// Pinned client id; none = anonymous.
    pub id: Option<String>,
    /// User id.
    pub user: Option<String>,
    /// Groups given at open.
    pub groups: Vec<String>,
    /// JSON object shown in listings.
    pub meta: Option<serde_json::Map<String, serde_json::Value>>,
    /// Patterns of topics it may subscribe to; `*` is any run of characters.
    pub topics: Vec<String>,
    /// Patterns of groups it may join by itself.
    pub join_groups: Vec<String>,
    /// Patterns of topics it may publish to (extension).
    pub publish: Vec<String>,
}

/// What happens with an app event that a client sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InboundRule {
    /// Counted and traced, delivered to nobody.
    None,
    /// To every client.
    Broadcast,
    /// Back to the sender.
    Sender,
    /// To the members of a topic.
    Topic(String),
    /// To the members of a group.
    Group(String),
}

/// Who answers a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RpcRule {
    /// The request's payload is the answer.
    Echo,
}

/// `[limits] rate`
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Tokens a second; 0 = off.
    pub messages_per_second: f64,
    /// Capacity of the bucket; 0 = `ceil(messages_per_second)`.
    pub burst: u32,
    /// Close 1008 instead of dropping.
    pub close: bool,
}

impl Rate {
    /// No limit.
    pub const OFF: Rate = Rate { messages_per_second: 0.0, burst: 0, close: false };
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Inbound rate of one connection.
    pub rate: Rate,
    /// Topics of one connection.
    pub topics_per_connection: u32,
    /// Groups of one connection.
    pub groups_per_connection: u32,
    /// Longest topic or group name, bytes.
    pub topic_name_bytes: u32,
    /// Unfinished messages of one core, bytes.
    pub inbound_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            rate: Rate::OFF,
            topics_per_connection: 128,
            groups_per_connection: 128,
            topic_name_bytes: 1024,
            inbound_bytes: 64 << 20,
        }
    }
}

/// `[backpressure] policy`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The oldest waiting event makes room.
    #[default]
    DropOldest,
    /// The new event is dropped.
    DropNewest,
    /// The connection is closed (1013).
    Disconnect,
}

/// `[backpressure]`
#[derive(Debug, Clone, PartialEq)]
pub struct Backpressure {
    /// What gives when a connection cannot take more.
    pub policy: Policy,
    /// Bytes waiting for one connection.
    pub high_water_mark: u64,
    /// Events waiting for one connection (drop-oldest only).
    pub max_queue: u32,
}

impl Default for Backpressure {
    fn default() -> Self {
        Backpressure { policy: Policy::DropOldest, high_water_mark: 1 << 20, max_queue: 256 }
    }
}

/// `[replay]`
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// Events kept per topic; 0 = off.
    pub history_size: u32,
    /// Bytes of all topics of one core together.
    pub history_bytes: u64,
}

impl Default for Replay {
    fn default() -> Self {
        Replay { history_size: 0, history_bytes: 64 << 20 }
    }
}

/// `[resume]`
#[derive(Debug, Clone, PartialEq)]
pub struct Resume {
    /// Sequence numbers, histories and parking at all.
    pub enabled: bool,
    /// Events kept per session besides those not yet sent.
    pub history_size: u32,
    /// Bytes per core of events held only by session histories.
    pub history_bytes: u64,
    /// How long a parked session lives, and an idle history.
    pub ttl: Duration,
    /// Parked sessions per core.
    pub max_parked: u32,
    /// Bytes per core of events that only parked sessions hold.
    pub parked_bytes: u64,
}

impl Default for Resume {
    fn default() -> Self {
        Resume {
            enabled: true,
            history_size: 256,
            history_bytes: 256 << 20,
            ttl: Duration::from_secs(60),
            max_parked: 100_000,
            parked_bytes: 64 << 20,
        }
    }
}

/// `[state]`
#[derive(Debug, Clone, PartialEq, Default)]
pub struct State {
    /// Path; empty = off.
    pub file: String,
}

/// `[trace]`
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Rows kept per core; 0 = off.
    pub capacity: u32,
    /// Payload bytes kept per row.
    pub capture_bytes: u32,
}

impl Default for Trace {
    fn default() -> Self {
        Trace { capacity: 1024, capture_bytes: 0 }
    }
}

/// `[log] format`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// A line of text.
    #[default]
    Text,
    /// A line of JSON.
    Json,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq)]
pub struct Log {
    /// Levels by target: "info", "warn,seqcast::control=debug".
    pub level: String,
    /// How a line is written.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Log { level: "info".into(), format: LogFormat::Text }
    }
}
