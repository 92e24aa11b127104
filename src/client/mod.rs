//! The Rust client: each event once and in order over any number of connections, or exactly what was missed.
//!
//! [`Client`] is blocking and does all of it over TCP. [`session::Session`] is the same without sockets and clock, for
//! other transports and for simulations.
//!
//! ```no_run
//! use seqcast::client::{Client, ClientOptions, Incoming};
//! use seqcast::schema::Schema;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let schema = Schema::builtin();
//! let mut client = Client::connect("ws://127.0.0.1:9400/ws", ClientOptions::default())?;
//! client.subscribe("prices")?;
//! loop {
//!     match client.next(None)? {
//!         Some(Incoming::Event { event, seq, payload }) => {
//!             let Some(event) = schema.by_id(event) else { continue };
//!             println!("{seq:?} {} {}", schema.name(event), schema.decode_json(event, &payload)?);
//!         }
//!         Some(Incoming::Missed { from, to }) => println!("missed {from} to {to:?}: fetch the state anew"),
//!         _ => {}
//!     }
//! }
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod action;
pub mod address;
pub mod backoff;
pub mod connection;
pub mod error;
pub mod gate;
pub mod request;
pub mod session;
pub mod sub;
pub mod upgrade;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub use action::{End, RequestError, RequestId, Status};
pub use error::ClientError;

use action::Action;
use address::Address;
use connection::{Connection, Received};
use session::{Session, SessionOptions};

use crate::limits::CLIENT_DIAL_SECONDS;
use crate::wire::envelope::fnv1a32;

/// How a [`Client`] connects.
#[derive(Debug, Clone, Default)]
pub struct ClientOptions {
    /// Bearer token.
    pub token: Option<String>,
    /// Joined before anything else arrives.
    pub topics: Vec<String>,
    /// Likewise.
    pub groups: Vec<String>,
    /// Everything else. The seed is mixed with a random number.
    pub session: SessionOptions,
}

/// What a [`Client`] hands out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// An event.
    Event {
        /// Its id: [`Schema::by_id`](crate::schema::Schema::by_id) knows its name.
        event: u32,
        /// Its sequence number; none for a snapshot, and when the server gives out none.
        seq: Option<u64>,
        /// Size-prefixed FlatBuffer, not verified.
        payload: Vec<u8>,
    },
    /// Events that will not come any more. What the application built from the stream is incomplete now.
    Missed {
        /// First number that is missing.
        from: u64,
        /// Last one; none when the server has lost the session and how much it held is unknown.
        to: Option<u64>,
    },
    /// A control message; what it asks is done.
    Control {
        /// Its id.
        id: u32,
        /// Its payload: [`control::decode`](crate::wire::control::decode) reads it.
        payload: Vec<u8>,
    },
    /// A message that cannot be read was dropped.
    Undecodable,
    /// The connection came or went.
    Status(Status),
}

/// A blocking client over TCP that connects again by itself.
#[derive(Debug)]
pub struct Client {
    address: Address,
    token: Option<String>,
    session: Session,
    connection: Option<Connection>,
    /// When to dial, without a connection.
    dial_at: Option<Instant>,
    origin: Instant,
    incoming: VecDeque<Incoming>,
    replies: Vec<(RequestId, Result<Vec<u8>, RequestError>)>,
    ended: Option<End>,
    /// Of the last close frame.
    reason: String,
}

impl Client {
    /// Connects. The first connection is tried once; later ones as `options.session` says.
    ///
    /// # Errors
    /// The URL, the connection, the server's refusal.
    pub fn connect(url: &str, options: ClientOptions) -> Result<Client, ClientError> {
        use std::hash::BuildHasher;
        let seed = options.session.seed ^ std::hash::RandomState::new().hash_one("seed");
        let address = Address::parse(url)?;
        let mut client = Client {
            connection: Some(Connection::open(&address, options.token.as_deref(), dial_patience())?),
            address,
            token: options.token,
            session: Session::new(SessionOptions { seed, ..options.session }),
            dial_at: None,
            origin: Instant::now(),
            incoming: VecDeque::new(),
            replies: Vec::new(),
            ended: None,
            reason: String::new(),
        };
        options.topics.iter().for_each(|topic| client.session.subscribe(topic));
        options.groups.iter().for_each(|group| client.session.join_group(group));
        client.session.opened(client.now());
        client.act();
        Ok(client)
    }

    /// The id that the server gave; empty until its welcome was read.
    pub fn id(&self) -> &str {
        self.session.client_id()
    }

    /// Joins a topic, now and after every reconnect.
    ///
    /// # Errors
    /// The session is over.
    pub fn subscribe(&mut self, topic: &str) -> Result<(), ClientError> {
        self.session.subscribe(topic);
        self.flush()
    }

    /// Leaves a topic.
    ///
    /// # Errors
    /// The session is over.
    pub fn unsubscribe(&mut self, topic: &str) -> Result<(), ClientError> {
        self.session.unsubscribe(topic);
        self.flush()
    }

    /// Joins a group, now and after every reconnect.
    ///
    /// # Errors
    /// The session is over.
    pub fn join_group(&mut self, group: &str) -> Result<(), ClientError> {
        self.session.join_group(group);
        self.flush()
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// The session is over.
    pub fn leave_group(&mut self, group: &str) -> Result<(), ClientError> {
        self.session.leave_group(group);
        self.flush()
    }

    /// Asks for the recorded events of a topic with numbers above `from_seq`; they come without sequence numbers.
    ///
    /// # Errors
    /// The session is over.
    pub fn request_snapshot(&mut self, topic: &str, from_seq: i64) -> Result<(), ClientError> {
        self.session.request_snapshot(topic, from_seq);
        self.flush()
    }

    /// Sends an event to the server, now or with the next connection.
    ///
    /// # Errors
    /// The session is over, or too many events wait for a connection.
    pub fn publish(&mut self, event: &str, payload: &[u8]) -> Result<(), ClientError> {
        self.session.send(fnv1a32(event), payload)?;
        self.flush()
    }

    /// Asks the server's handler of an event and waits for the answer, a whole envelope. What arrives meanwhile is
    /// handed out later.
    ///
    /// # Errors
    /// The handler's, a time-out, a connection that ends.
    pub fn request(&mut self, event: &str, payload: &[u8]) -> Result<Vec<u8>, ClientError> {
        let now = self.now();
        let id = self.session.request(now, event, fnv1a32(event), payload);
        self.flush()?;
        loop {
            if let Some(at) = self.replies.iter().position(|(of, _)| *of == id) {
                let (_, result) = self.replies.swap_remove(at);
                return result.map_err(|error| ClientError::Request { event: event.to_owned(), error });
            }
            self.check_ended()?;
            self.wait(None);
        }
    }

    /// What comes next; none: nothing within `patience`. Without a patience it waits for as long as it takes.
    ///
    /// # Errors
    /// The session is over: [`ClientError::Ended`].
    pub fn next(&mut self, patience: Option<Duration>) -> Result<Option<Incoming>, ClientError> {
        let until = patience.map(|patience| Instant::now() + patience);
        loop {
            if let Some(incoming) = self.incoming.pop_front() {
                return Ok(Some(incoming));
            }
            self.check_ended()?;
            if until.is_some_and(|until| until <= Instant::now()) && !self.has_input() {
                return Ok(None);
            }
            self.wait(until);
        }
    }

    /// True when [`Client::next`] has something to hand out or to look at without waiting.
    pub fn has_input(&self) -> bool {
        !self.incoming.is_empty() || self.connection.as_ref().is_some_and(Connection::has_input)
    }

    /// Closes the connection and ends the session.
    pub fn close(mut self) {
        self.session.close();
        self.act();
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn flush(&mut self) -> Result<(), ClientError> {
        self.act();
        self.check_ended()
    }

    fn check_ended(&self) -> Result<(), ClientError> {
        match self.ended {
            Some(end) if self.incoming.is_empty() => {
                Err(ClientError::Ended { end, reason: self.reason.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Waits for the next message, deadline or `until`, and handles what happened.
    fn wait(&mut self, until: Option<Instant>) {
        let deadline = self.session.next_deadline().map(|deadline| self.origin + deadline);
        let first = [until, deadline, self.dial_at].into_iter().flatten().min();
        match self.connection.as_mut().map(|connection| connection.receive(first)) {
            Some(Ok(Received::Message(message))) => {
                let now = self.now();
                self.session.received(now, &message);
            }
            Some(Ok(Received::Quiet)) => {}
            Some(Ok(Received::Closed { code, reason })) => {
                self.reason = reason;
                self.lost(End::Closed(code));
            }
            Some(Err(_)) => self.lost(End::Cut),
            None => {
                if let Some(first) = first {
                    std::thread::sleep(first.saturating_duration_since(Instant::now()));
                }
            }
        }
        self.session.tick(self.now());
        self.act();
        if self.dial_at.is_some_and(|at| at <= Instant::now()) {
            self.dial();
        }
    }

    fn dial(&mut self) {
        self.dial_at = None;
        match Connection::open(&self.address, self.token.as_deref(), dial_patience()) {
            Ok(connection) => {
                self.connection = Some(connection);
                self.session.opened(self.now());
            }
            Err(ClientError::Refused { status, .. }) => self.lost(End::Refused(status)),
            Err(_) => self.lost(End::Cut),
        }
        self.act();
    }

    fn lost(&mut self, end: End) {
        self.connection = None;
        self.session.lost(self.now(), end);
    }

    /// Does what the session says.
    fn act(&mut self) {
        while let Some(action) = self.session.poll() {
            match action {
                Action::Send(message) => {
                    let sent = self.connection.as_mut().map(|connection| connection.send(&message));
                    if let Some(Err(_)) = sent {
                        self.lost(End::Cut);
                    }
                }
                Action::Deliver { event, seq, payload } => {
                    self.incoming.push_back(Incoming::Event { event, seq, payload });
                }
                Action::Missed { from, to } => self.incoming.push_back(Incoming::Missed { from, to }),
                Action::Reply { request, result } => self.replies.push((request, result)),
                Action::Control { id, payload } => self.incoming.push_back(Incoming::Control { id, payload }),
                Action::Undecodable => self.incoming.push_back(Incoming::Undecodable),
                Action::Close { code } => {
                    if let (Some(connection), Some(code)) = (self.connection.take(), code) {
                        connection.close(code);
                    }
                    self.lost(code.map_or(End::Cut, End::Closed));
                }
                Action::Reconnect { after } => self.dial_at = Some(Instant::now() + after),
                Action::Status(status) => {
                    if let Status::Closed(end) = status {
                        self.ended = Some(end);
                    }
                    self.incoming.push_back(Incoming::Status(status));
                }
            }
        }
    }
}

fn dial_patience() -> Duration {
    Duration::from_secs(CLIENT_DIAL_SECONDS)
}
