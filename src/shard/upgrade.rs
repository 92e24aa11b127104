//! From a request to a session: routing, admission, duplicates of an id, the 101.

use crate::config::DuplicateId;
use crate::limits;
use crate::wire::handshake::{self, Refusal, Request, Upgrade};

use super::Shard;
use super::admit::{Access, Denied};
use super::session::{ClientId, Conn, Known, NONE, Origin, Session, State, pause};
use super::step::{ConnId, CoreId, Output, RoomKind, Transfer};
use super::{NAMED_EXTENSION, outbox::Outbox};

/// What a request turned out to be.
enum Verdict {
    /// Refuse it.
    Refuse(Refusal),
    /// `GET /health`
    Health,
    /// `GET /clients`
    List,
    /// Another core takes it: the id belongs there, or it has less to do.
    Elsewhere(CoreId),
    /// The id has a connected owner.
    Duplicate(u32),
    /// Let it in.
    Admit { access: Access, upgrade: Upgrade, subprotocol: Option<Box<str>> },
}

impl Shard {
    pub(super) fn on_transferred(&mut self, conn: ConnId, transfer: Transfer) {
        let mut fresh = Conn::new(conn, transfer.peer, self.now);
        fresh.since = transfer.opened;
        // It is not passed on again for want of balance.
        fresh.is_settled = true;
        fresh.aside_mut().held = transfer.received;
        self.on_opened(fresh);
        if self.find_conn(conn).is_some() {
            self.on_head(conn.index);
        }
    }

    /// More bytes of a request head.
    pub(super) fn on_head(&mut self, index: u32) {
        let conn = self.conn_mut(index);
        if conn.state != State::Handshake {
            return;
        }
        let (id, received) = (conn.id, conn.take_held());
        let (verdict, head_bytes) = match handshake::parse(&received) {
            Ok(None) => {
                self.conn_mut(index).aside_mut().held = received;
                return self.account_unfinished(index);
            }
            Ok(Some(request)) => (self.judge(index, &request), request.head_bytes),
            Err(refusal) => (Verdict::Refuse(refusal), received.len()),
        };
        match verdict {
            Verdict::Refuse(refusal) => self.refuse(index, &refusal),
            Verdict::Health => {
                let body = self.health();
                self.respond(index, |out| handshake::write_json(out, 200, &body));
            }
            Verdict::List => self.list_clients(index),
            Verdict::Elsewhere(core) => self.transfer(index, core, received),
            Verdict::Duplicate(owner) => self.wait_for_probe(index, owner, received),
            Verdict::Admit { .. } if !self.census.reserve(self.config.server.max_connections) => {
                self.refuse(index, &Refusal::FULL);
            }
            Verdict::Admit { access, upgrade, subprotocol } => {
                let mut rest = received;
                rest.drain(..head_bytes);
                self.register(index, access, &upgrade, subprotocol.as_deref(), rest);
            }
        }
        if self.find_conn(id).is_some() {
            self.account_unfinished(index);
        }
    }

    fn judge(&mut self, index: u32, request: &Request<'_>) -> Verdict {
        match request.path {
            path if path == self.config.server.path => self.judge_upgrade(index, request),
            "/health" => Verdict::Health,
            "/clients" => match self.admission.judge_token(request) {
                Ok(_) => Verdict::List,
                Err(_) => Verdict::Refuse(Refusal::UNAUTHORIZED),
            },
            _ => Verdict::Refuse(Refusal::NOT_FOUND),
        }
    }

    fn judge_upgrade(&mut self, index: u32, request: &Request<'_>) -> Verdict {
        if self.draining.is_some() {
            return Verdict::Refuse(Refusal::DRAINING);
        }
        if self.census.is_full(self.config.server.max_connections) {
            return Verdict::Refuse(Refusal::FULL);
        }
        let access = match self.admission.judge(request) {
            Ok(access) => access,
            Err(Denied::Origin) => return Verdict::Refuse(Refusal::ORIGIN),
            Err(Denied::Token) => return Verdict::Refuse(Refusal::UNAUTHORIZED),
        };
        let upgrade = match request.upgrade() {
            Ok(upgrade) => upgrade,
            Err(refusal) => return Verdict::Refuse(refusal),
        };
        if let Some(id) = access.identity().and_then(|identity| identity.id.as_deref()) {
            let home = super::home_of_client(self.seed, self.cores, id);
            if home != self.core {
                return Verdict::Elsewhere(home);
            }
            let owner = self.pinned.get(id).copied();
            if let Some(owner) = owner.filter(|owner| !self.sessions[*owner as usize].is_parked()) {
                match self.admission.duplicate_id() {
                    DuplicateId::Reject if self.is_feeding(owner) => {
                        return Verdict::Refuse(Refusal::DUPLICATE_ID);
                    }
                    DuplicateId::Reject => return Verdict::Duplicate(owner),
                    DuplicateId::Takeover => self.take_over(owner),
                }
            }
        } else if !self.conn(index).is_settled
            && let Some(core) = self.census.relief(self.core)
        {
            return Verdict::Elsewhere(core);
        }
        let subprotocol = self.admission.subprotocol(request).map(Into::into);
        Verdict::Admit { access, upgrade, subprotocol }
    }

    /// Ends the owner's connection, so that its session can be taken up.
    pub(super) fn take_over(&mut self, owner: u32) {
        self.counters.takeovers += 1;
        self.counters.closed_replaced += 1;
        let conn = self.sessions[owner as usize].conn;
        self.close(conn, Some(1000), "replaced by newer session");
    }

    pub(super) fn refuse(&mut self, index: u32, refusal: &Refusal) {
        self.counters.refused += 1;
        self.respond(index, |out| refusal.write(out));
    }

    /// A response that ends the connection.
    pub(super) fn respond(&mut self, index: u32, write: impl FnOnce(&mut Vec<u8>)) {
        let now = self.now;
        write(self.lane_mut(index).tail());
        let conn = self.conn_mut(index);
        conn.state = State::Closing;
        conn.since = now;
        conn.take_held();
        self.mark_control(index);
        self.arm_conn(index);
        self.account_unfinished(index);
    }

    pub(super) fn transfer(&mut self, index: u32, to: CoreId, received: Vec<u8>) {
        let (id, peer, opened) = (self.conn(index).id, self.conn(index).peer.into(), self.conn(index).since);
        self.counters.transferred += 1;
        self.census.enter(to);
        self.forget(index);
        let transfer = Box::new(Transfer { peer, opened, received });
        self.outputs.push_back(Output::Transfer { conn: id, to, transfer });
    }

    fn wait_for_probe(&mut self, index: u32, owner: u32, received: Vec<u8>) {
        let conn = self.conn_mut(index);
        conn.state = State::Waiting;
        conn.aside_mut().held = received;
        let id = conn.id;
        self.probe(owner, id);
    }

    /// A waiting request is looked at again.
    pub(super) fn judge_again(&mut self, id: ConnId) {
        let Some(index) = self.find_conn(id) else { return };
        let conn = self.conn_mut(index);
        if conn.state == State::Waiting {
            conn.state = State::Handshake;
            self.on_head(index);
        }
    }

    /// A waiting request is refused: the owner of its id lives.
    pub(super) fn refuse_duplicate(&mut self, id: ConnId) {
        let Some(index) = self.find_conn(id) else { return };
        if self.conn(index).state == State::Waiting {
            self.refuse(index, &Refusal::DUPLICATE_ID);
        }
    }

    fn register(
        &mut self,
        index: u32,
        access: Access,
        upgrade: &Upgrade,
        subprotocol: Option<&str>,
        mut rest: Vec<u8>,
    ) {
        let pinned = access.identity().and_then(|identity| identity.id.clone());
        let parked = pinned.as_ref().and_then(|id| self.pinned.get(id.as_str()).copied());
        let session = match parked {
            Some(session) => {
                self.adopt_session(session, index, access);
                session
            }
            None => self.make_session(index, pinned, access),
        };
        let now = self.now;
        let conn = self.conn_mut(index);
        conn.session = session;
        conn.state = State::Open;
        conn.since = now;
        conn.last_received = now;
        conn.last_ping = now;
        let id = conn.id;
        self.connected += 1;
        self.counters.upgraded += 1;
        handshake::write_accept(self.lane_mut(index).tail(), upgrade, subprotocol);
        self.greet(index, session);
        self.outputs.push_back(Output::Established { conn: id });
        self.arm_conn(index);
        if !rest.is_empty() {
            self.read(index, &mut rest);
        }
    }

    /// hello and welcome.
    fn greet(&mut self, index: u32, session: u32) {
        self.push_control(index, |encoder| encoder.hello(&[NAMED_EXTENSION], 0));
        let id = self.client_id(session);
        let groups = self.names_of(session, RoomKind::Group);
        self.push_control(index, |encoder| encoder.welcome(&id, groups.iter().map(|name| &**name)));
    }

    fn make_session(&mut self, conn: u32, pinned: Option<String>, access: Access) -> u32 {
        self.next_generation = self.next_generation.wrapping_add(1);
        let id = pinned.as_deref().map_or(ClientId::Anonymous, |id| ClientId::Pinned(id.into()));
        let (stamps, known) = (self.config.resume.enabled, Known::new(id, access));
        let session = Session::new(self.next_generation, conn, Outbox::new(), stamps, known, self.now);
        let index =
            u32::try_from(self.sessions.insert(session)).expect("sessions are bounded by connections");
        self.session_places = self.session_places.max(index + 1);
        if let Some(id) = pinned {
            self.pinned.insert(id.into(), index);
        }
        self.join_given_rooms(index);
        index
    }

    /// The rooms that the identity gives.
    pub(super) fn join_given_rooms(&mut self, session: u32) {
        let Access::Identity(identity) = self.sessions[session as usize].known().access.clone() else {
            return;
        };
        for group in &identity.groups {
            self.join(session, RoomKind::Group, group, Origin::Identity);
        }
        if let Some(user) = &identity.user {
            self.join(session, RoomKind::User, user, Origin::Identity);
        }
    }

    /// Bytes that arrived for a connection.
    pub(super) fn on_received(&mut self, id: ConnId, bytes: &mut [u8]) {
        let Some(index) = self.find_conn(id) else { return };
        let now = self.now;
        let conn = self.conn_mut(index);
        conn.last_received = now;
        if std::mem::take(&mut conn.probed) {
            let owner = conn.session;
            self.on_probe_answered(owner);
        }
        let conn = self.conn_mut(index);
        match conn.state {
            State::Handshake => {
                conn.aside_mut().held.extend_from_slice(bytes);
                self.on_head(index);
            }
            State::Waiting => {
                let held = &mut conn.aside_mut().held;
                if held.len() + bytes.len() > limits::HELD_BYTES {
                    return self.refuse_duplicate(id);
                }
                held.extend_from_slice(bytes);
                self.account_unfinished(index);
            }
            // Its request is complete; what follows is of no interest.
            State::Listing => {}
            State::Open if conn.paused != 0 || conn.is_holding() => {
                self.hold(index, bytes);
                self.account_unfinished(index);
            }
            State::Open => self.read(index, bytes),
            State::Closing => {}
        }
    }

    /// Keeps bytes until the connection goes on.
    pub(super) fn hold(&mut self, index: u32, bytes: &[u8]) {
        let conn = self.conn_mut(index);
        let held = &mut conn.aside_mut().held;
        held.extend_from_slice(bytes);
        let too_much = held.len() > limits::HELD_BYTES || conn.paused & !pause::HOME != 0;
        if conn.paused != 0 && too_much && !conn.told_pause {
            conn.told_pause = true;
            let conn = conn.id;
            self.outputs.push_back(Output::Pause { conn });
        }
    }

    /// Text of a session's id.
    pub(super) fn client_id(&self, session: u32) -> Box<str> {
        self.sessions[session as usize].shown_id(session, self.core, &self.id_key).to_string().into()
    }

    /// The session of an id on this core, connected or parked.
    pub(super) fn find_client(&self, id: &str) -> Option<u32> {
        if let Some(session) = self.pinned.get(id) {
            return Some(*session);
        }
        let (core, named) = super::session::parse_anonymous_id(id)?;
        let session = self.find_generation(named)?;
        let is_it = core == self.core
            && self.sessions[session as usize].known().id == ClientId::Anonymous
            && *self.client_id(session) == *id;
        is_it.then_some(session)
    }

    /// The session of an id on this core that has a connection.
    pub(super) fn find_connected(&self, id: &str) -> Option<u32> {
        self.find_client(id).filter(|session| self.sessions[*session as usize].conn != NONE)
    }
}
