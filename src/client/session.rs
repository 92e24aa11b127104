//! The client's session: what to say, what to hand on, when to connect again. No I/O and no clock.
//!
//! The owner dials, then feeds [`Session::opened`], [`Session::received`], [`Session::lost`] and [`Session::tick`], and
//! after each of them does what [`Session::poll`] says until it says nothing. Time is an argument: a [`Duration`] since
//! an origin of the owner's choice.

use std::collections::VecDeque;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::action::{Action, End, RequestError, RequestId, SendError, Status};
use super::backoff::{Backoff, BackoffOptions};
use super::gate::{Gate, GateOptions, Generation, Passed};
use crate::limits::MAX_SEQ;
use crate::wire::control::{self, Control};
use crate::wire::envelope::{self, FLAG_SEQ, HEADER_BYTES};

/// The extension name by which a server says that it always answers a hello with a position.
const ANSWERS_HELLO: &str = "seqcast.1";

/// How a session behaves.
#[derive(Debug, Clone, Copy)]
pub struct SessionOptions {
    /// The gate's bounds, and whose rules the whole session follows.
    pub gate: GateOptions,
    /// How to connect again; none: not at all.
    pub reconnect: Option<BackoffOptions>,
    /// Time between two pings; zero: no pings.
    pub heartbeat: Duration,
    /// A connection is dead when no pong came for so many heartbeats; at least 1.
    pub heartbeat_misses: u32,
    /// Most messages that wait for a connection.
    pub max_queued: usize,
    /// How long a request may take.
    pub request_timeout: Duration,
    /// Seed of everything random: jitter, request ids.
    pub seed: u64,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            gate: GateOptions::default(),
            reconnect: Some(BackoffOptions::default()),
            heartbeat: Duration::from_secs(15),
            heartbeat_misses: 2,
            max_queued: 1024,
            request_timeout: Duration::from_secs(10),
            seed: 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No connection: it is being made, or waited for.
    Down,
    Open {
        last_pong: Duration,
        /// None: no heartbeat.
        next_beat: Option<Duration>,
    },
    /// We closed; nothing is said any more until the socket is gone.
    Closing,
    Closed,
}

#[derive(Debug)]
struct PendingRequest {
    id: RequestId,
    wire_id: String,
    deadline: Duration,
}

#[derive(Debug)]
struct Left {
    message: Vec<u8>,
    /// `ts` of the first ping behind it on the present connection.
    ping: Option<i64>,
}

/// One session; it survives connections.
#[derive(Debug)]
pub struct Session {
    options: SessionOptions,
    state: State,
    gate: Gate<(u32, Vec<u8>)>,
    backoff: Option<Backoff>,
    encoder: control::Encoder,
    client_id: String,
    welcome_groups: Vec<String>,
    topics: Vec<String>,
    groups: Vec<String>,
    /// Rooms left, until the server is known to have heard of it: it keeps them over connections.
    left: Vec<Left>,
    queued: VecDeque<Vec<u8>>,
    requests: Vec<PendingRequest>,
    next_request: u64,
    /// `ts` of the ping that followed our hello, until its pong came.
    hello_ping: Option<i64>,
    server_answers_hello: bool,
    actions: VecDeque<Action>,
}

impl Session {
    /// A session whose first connection is about to be made.
    pub fn new(options: SessionOptions) -> Self {
        let generation = options.gate.generation;
        Session {
            state: State::Down,
            gate: Gate::new(options.gate),
            backoff: options.reconnect.map(|backoff| Backoff::new(backoff, generation, options.seed)),
            options,
            encoder: control::Encoder::new(),
            client_id: String::new(),
            welcome_groups: Vec::new(),
            topics: Vec::new(),
            groups: Vec::new(),
            left: Vec::new(),
            queued: VecDeque::new(),
            requests: Vec::new(),
            next_request: 0,
            hello_ping: None,
            server_answers_hello: false,
            actions: VecDeque::from([Action::Status(Status::Connecting)]),
        }
    }

    /// The id that the server gave; empty before the first welcome.
    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    /// The groups named by the last welcome.
    pub fn welcome_groups(&self) -> &[String] {
        &self.welcome_groups
    }

    /// Last sequence number delivered without a hole; 0 = none.
    pub fn last_seq(&self) -> u64 {
        self.gate.last()
    }

    /// Next thing to do; call until it is empty after every other call.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Session::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Duration> {
        let beat = match self.state {
            State::Open { next_beat, .. } => next_beat,
            _ => None,
        };
        let requests = self.requests.iter().map(|request| request.deadline).min();
        [beat, self.gate.next_deadline(), requests].into_iter().flatten().min()
    }

    // What the owner reports.

    /// The upgrade was answered 101.
    pub fn opened(&mut self, now: Duration) {
        if self.state != State::Down {
            return;
        }
        if let Some(backoff) = &mut self.backoff {
            backoff.opened(now);
        }
        let next_beat = (!self.options.heartbeat.is_zero()).then(|| now + self.options.heartbeat);
        self.state = State::Open { last_pong: now, next_beat };
        self.actions.push_back(Action::Status(Status::Connected));
        self.gate.opened();
        self.server_answers_hello = false;
        self.greet();
        if next_beat.is_some() {
            self.hello_ping = Some(milliseconds(now));
            self.ping(now);
        }
    }

    /// A binary message arrived.
    pub fn received(&mut self, now: Duration, message: &[u8]) {
        if !matches!(self.state, State::Open { .. }) {
            return;
        }
        let Some(header) = envelope::parse(message) else {
            return self.actions.push_back(Action::Undecodable);
        };
        let payload = &message[HEADER_BYTES..];
        if envelope::is_control(header.id) {
            return match control::decode(header.id, payload) {
                Ok(control) => self.controlled(now, header.id, control, payload),
                Err(control::Malformed) => self.actions.push_back(Action::Undecodable),
            };
        }
        let seq = (header.flags & FLAG_SEQ != 0).then_some(header.seq);
        self.gate.event(now, seq, message.len(), (header.id, payload.to_vec()));
        self.pass_on();
    }

    /// The connection is gone, or could not be made.
    pub fn lost(&mut self, now: Duration, end: End) {
        if self.state == State::Closed {
            return;
        }
        self.hello_ping = None;
        self.left.iter_mut().for_each(|left| left.ping = None);
        self.gate.lost();
        self.pass_on();
        let ours = self.is_ours();
        if ours {
            self.fail_requests(RequestError::ConnectionLost);
        }
        match &mut self.backoff {
            Some(backoff) if !(ours && end.is_final()) => {
                let after = backoff.lost(now);
                self.state = State::Down;
                self.actions.push_back(Action::Status(Status::Reconnecting));
                self.actions.push_back(Action::Reconnect { after });
            }
            _ => self.end(end),
        }
    }

    /// Time passed.
    pub fn tick(&mut self, now: Duration) {
        self.gate.tick(now);
        self.pass_on();
        let (late, waiting) = self.requests.drain(..).partition(|request| request.deadline <= now);
        self.requests = waiting;
        self.reply_all(late, RequestError::TimedOut);
        let State::Open { last_pong, next_beat: Some(beat) } = self.state else { return };
        if now < beat {
            return;
        }
        let patience = self.options.heartbeat * self.options.heartbeat_misses.max(1);
        if now.saturating_sub(last_pong) > patience {
            // A dead link answers no close frame; the reference clients wait for one all the same.
            self.state = State::Closing;
            return self.actions.push_back(Action::Close { code: (!self.is_ours()).then_some(1000) });
        }
        self.state = State::Open { last_pong, next_beat: Some(now + self.options.heartbeat) };
        self.ping(now);
    }

    // What the application asks for.

    /// Joins a topic, now and with every connection to come.
    pub fn subscribe(&mut self, topic: &str) {
        remember(&mut self.topics, topic);
        let leave = self.encoder.unsubscribe(topic).to_vec();
        let message = self.encoder.subscribe(topic).to_vec();
        self.join(message, &leave);
    }

    /// Leaves a topic.
    pub fn unsubscribe(&mut self, topic: &str) {
        self.topics.retain(|known| known != topic);
        let message = self.encoder.unsubscribe(topic).to_vec();
        self.leave(message);
    }

    /// Joins a group, now and (generation `Seqcast`) with every connection to come.
    pub fn join_group(&mut self, group: &str) {
        if self.is_ours() {
            remember(&mut self.groups, group);
        }
        let leave = self.encoder.leave_group(group).to_vec();
        let message = self.encoder.join_group(group).to_vec();
        self.join(message, &leave);
    }

    /// Leaves a group.
    pub fn leave_group(&mut self, group: &str) {
        self.groups.retain(|known| known != group);
        let message = self.encoder.leave_group(group).to_vec();
        self.leave(message);
    }

    /// Asks for the recorded events of a topic whose topic number is above `from_seq`. They come without sequence
    /// numbers. Nothing happens without a connection.
    pub fn request_snapshot(&mut self, topic: &str, from_seq: i64) {
        if self.is_open() {
            let message = self.encoder.snapshot_request(topic, from_seq).to_vec();
            self.actions.push_back(Action::Send(message));
        }
    }

    /// Sends an event, now or with the next connection.
    ///
    /// # Errors
    /// The session is closed, or too many messages wait.
    pub fn send(&mut self, event: u32, payload: &[u8]) -> Result<(), SendError> {
        let message = envelope_of(event, payload);
        match self.state {
            State::Closed => return Err(SendError::Closed),
            State::Open { .. } => self.actions.push_back(Action::Send(message)),
            State::Down | State::Closing if self.queued.len() >= self.options.max_queued => {
                return Err(SendError::QueueFull);
            }
            State::Down | State::Closing => self.queued.push_back(message),
        }
        Ok(())
    }

    /// Asks the handler of an event; the answer is an [`Action::Reply`]. `name` is the event's name and `event` its id.
    pub fn request(&mut self, now: Duration, name: &str, event: u32, payload: &[u8]) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        if !self.is_open() {
            let result = Err(RequestError::NotConnected);
            self.actions.push_back(Action::Reply { request: id, result });
            return id;
        }
        let wire_id = format!("{:016x}-{}", self.options.seed, id.0);
        let call = STANDARD.encode(envelope_of(event, payload));
        let message = self.encoder.rpc_call(&wire_id, name, &call).to_vec();
        self.requests.push(PendingRequest { id, wire_id, deadline: now + self.options.request_timeout });
        self.actions.push_back(Action::Send(message));
        id
    }

    /// Ends the session: nothing is delivered any more.
    pub fn close(&mut self) {
        if self.is_open() {
            self.actions.push_back(Action::Close { code: Some(1000) });
        }
        self.gate = Gate::new(self.options.gate);
        self.queued.clear();
        self.fail_requests(RequestError::NotConnected);
        self.end(End::Ours);
    }

    // Inside.

    fn is_ours(&self) -> bool {
        self.options.gate.generation == Generation::Seqcast
    }

    fn join(&mut self, message: Vec<u8>, leave: &[u8]) {
        self.left.retain(|left| left.message != leave);
        if self.is_open() {
            self.actions.push_back(Action::Send(message));
        }
    }

    fn leave(&mut self, message: Vec<u8>) {
        if self.is_ours() {
            self.left.retain(|left| left.message != message);
            self.left.push(Left { message: message.clone(), ping: None });
        }
        if self.is_open() {
            self.actions.push_back(Action::Send(message));
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    fn end(&mut self, end: End) {
        if self.state != State::Closed {
            self.state = State::Closed;
            self.actions.push_back(Action::Status(Status::Closed(end)));
        }
    }

    /// Everything that is said first on a connection, in this order.
    fn greet(&mut self) {
        let last = i64::try_from(self.gate.last()).unwrap_or(0);
        let hello = self.encoder.hello(&[], last).to_vec();
        self.actions.push_back(Action::Send(hello));
        self.actions.extend(self.left.iter().map(|left| Action::Send(left.message.clone())));
        for topic in &self.topics {
            self.actions.push_back(Action::Send(self.encoder.subscribe(topic).to_vec()));
        }
        for group in &self.groups {
            self.actions.push_back(Action::Send(self.encoder.join_group(group).to_vec()));
        }
        self.actions.extend(self.queued.drain(..).map(Action::Send));
    }

    fn ping(&mut self, now: Duration) {
        let ts = milliseconds(now);
        self.left.iter_mut().for_each(|left| _ = left.ping.get_or_insert(ts));
        let message = self.encoder.ping(ts).to_vec();
        self.actions.push_back(Action::Send(message));
    }

    fn controlled(&mut self, now: Duration, id: u32, control: Control<'_>, payload: &[u8]) {
        self.actions.push_back(Action::Control { id, payload: payload.to_vec() });
        match control {
            Control::Hello { version, caps, .. } => {
                if version != control::VERSION {
                    self.state = State::Closing;
                    self.actions.push_back(Action::Close { code: Some(1002) });
                }
                self.server_answers_hello = caps.iter().any(|cap| cap == ANSWERS_HELLO);
            }
            Control::Welcome { client_id, groups } => {
                if self.is_ours() && self.gate.last() == 0 && ![client_id, ""].contains(&&*self.client_id) {
                    // Without a position nobody asks the server whether it still has the session: it has not.
                    self.actions.push_back(Action::Missed { from: 1, to: None });
                }
                self.client_id = client_id.to_owned();
                self.welcome_groups = groups.iter().map(str::to_owned).collect();
            }
            Control::Resumed { ok, from } => {
                self.gate.resumed(now, ok, u64::try_from(from).unwrap_or(MAX_SEQ + 1));
                self.pass_on();
            }
            Control::Pong { ts } => self.ponged(now, ts),
            Control::RpcResult { id, ok, err, payload_b64 } => self.replied(id, ok, err, payload_b64),
            _ => {}
        }
    }

    fn ponged(&mut self, now: Duration, ts: i64) {
        if let State::Open { last_pong, .. } = &mut self.state {
            *last_pong = now;
        }
        self.left.retain(|left| left.ping.is_none_or(|ping| ping > ts));
        if self.hello_ping == Some(ts) {
            self.hello_ping = None;
            if !self.server_answers_hello {
                // It handles messages in order and answers in order: no answer to our hello will come.
                self.gate.unanswered(now);
                self.pass_on();
            }
        }
    }

    fn replied(&mut self, wire_id: &str, ok: bool, err: &str, payload_b64: &str) {
        let Some(at) = self.requests.iter().position(|request| request.wire_id == wire_id) else { return };
        let request = self.requests.swap_remove(at).id;
        let result = match STANDARD.decode(payload_b64) {
            _ if !ok => Err(RequestError::Failed(err.to_owned())),
            Ok(message) if envelope::parse(&message).is_some() => Ok(message),
            _ => Err(RequestError::Undecodable),
        };
        self.actions.push_back(Action::Reply { request, result });
    }

    fn fail_requests(&mut self, error: RequestError) {
        let requests = std::mem::take(&mut self.requests);
        self.reply_all(requests, error);
    }

    fn reply_all(&mut self, requests: Vec<PendingRequest>, error: RequestError) {
        let replies = requests.into_iter().map(|request| request.id);
        let replies = replies.map(|request| Action::Reply { request, result: Err(error.clone()) });
        self.actions.extend(replies);
    }

    fn pass_on(&mut self) {
        while let Some(passed) = self.gate.poll() {
            let action = match passed {
                Passed::Deliver { seq, item: (event, payload) } => Action::Deliver { event, seq, payload },
                Passed::Missed { from, to } => Action::Missed { from, to },
                Passed::Resume { last } => {
                    Action::Send(self.encoder.resume(i64::try_from(last).unwrap_or(0)).to_vec())
                }
            };
            self.actions.push_back(action);
        }
    }
}

fn remember(names: &mut Vec<String>, name: &str) {
    if !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
}

fn milliseconds(now: Duration) -> i64 {
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// A whole message of an unstamped event.
pub fn envelope_of(event: u32, payload: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_BYTES + payload.len());
    envelope::encode(&mut message, event, 0, 0);
    message.extend_from_slice(payload);
    message
}
