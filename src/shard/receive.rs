//! Messages of clients: frames, the envelope's header, control messages, app events, requests.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::config::InboundRule;
use crate::limits;
use crate::wire::control::{self, Control};
use crate::wire::envelope;
use crate::wire::frame::{self, Decoder, Item, Violation};

use super::Shard;
use super::admit::Bucket;
use super::publish::To;
use super::session::{Origin, State, pause};
use super::step::{Direction, EventIndex, Output, RoomKind};
use super::timer::NEVER;
use super::trace::{Key, Record};

impl Shard {
    /// Reads frames until the bytes are used up, the connection pauses, or it closes.
    pub(super) fn read(&mut self, index: u32, bytes: &mut [u8]) {
        let id = self.conn(index).id;
        let aside = self.conn_mut(index).aside.as_mut();
        let mut decoder = aside.map(|aside| std::mem::take(&mut aside.decoder)).unwrap_or_default();
        let mut input = bytes;
        let mut ended = false;
        loop {
            match decoder.next(&mut input, &self.bounds) {
                Ok(None) => break,
                Ok(Some(item)) => {
                    ended |= matches!(item, Item::Message { .. });
                    self.begin_feeding();
                    self.on_item(index, &item);
                    self.end_feeding(index);
                }
                Err(violation) => self.on_violation(index, &violation),
            }
            if self.find_conn(id).is_none() || !self.conn(index).is_open() {
                return;
            }
            if self.conn(index).paused != 0 {
                self.hold(index, input);
                break;
            }
        }
        self.keep_decoder(index, decoder, ended);
    }

    /// Accounts for the memory of an unfinished message, and for its time. `ended`: a message before it was completed
    /// by the same bytes.
    fn keep_decoder(&mut self, index: u32, decoder: Decoder, ended: bool) {
        let now = self.now;
        let conn = self.conns[index as usize].as_mut().expect("the caller looked");
        if conn.aside.is_none() && decoder.is_idle() {
            return;
        }
        let aside = conn.aside_mut();
        if !decoder.is_unfinished() {
            aside.unfinished_since = NEVER;
        } else if ended || aside.unfinished_since == NEVER {
            aside.unfinished_since = now;
        }
        let has_begun = aside.unfinished_since == now;
        aside.decoder = decoder;
        if has_begun {
            self.arm_conn(index);
        }
        self.account_unfinished(index);
    }

    /// Counts what a connection makes this core hold: a request head, an unfinished message, messages held back. Over
    /// the core's bound the connection with most of it is closed, whoever it is.
    pub(super) fn account_unfinished(&mut self, index: u32) {
        let conn = self.conns[index as usize].as_mut().expect("the caller looked");
        let bytes =
            u32::try_from(conn.unfinished_bytes()).expect("what one connection holds is far below 4 GiB");
        let counted = conn.unfinished();
        self.inbound_bytes = self.inbound_bytes + u64::from(bytes) - u64::from(counted);
        if bytes != counted {
            conn.aside_mut().unfinished = bytes;
        }
        conn.tidy_aside();
        while self.inbound_bytes > self.config.limits.inbound_bytes {
            let largest = self.conns.iter().flatten().max_by_key(|conn| conn.unfinished());
            let largest = largest.expect("somebody holds the bytes").id.index;
            self.counters.closed_inbound_bytes += 1;
            if self.conn(largest).is_open() {
                self.close(largest, Some(1013), "too many unfinished messages");
            } else {
                self.abort(largest);
            }
        }
    }

    /// Goes on with what was held while paused. Rare, and so no part of `settle`, which ends every step.
    #[inline(never)]
    pub(super) fn read_held(&mut self, index: u32) {
        let Some(conn) = self.conns[index as usize].as_mut().filter(|conn| conn.is_open()) else { return };
        if conn.paused != 0 {
            return;
        }
        let id = conn.id;
        let mut held = conn.take_held();
        self.read(index, &mut held);
        if self.find_conn(id).is_none() {
            return;
        }
        if !self.conn(index).is_open() {
            return;
        }
        self.account_unfinished(index);
        let Some(conn) = self.conns[index as usize].as_mut().filter(|conn| conn.id == id) else { return };
        if conn.paused == 0 && std::mem::take(&mut conn.told_pause) {
            self.outputs.push_back(Output::Resume { conn: id });
        }
    }

    /// Stops handling the connection's messages for this reason.
    pub(super) fn pause(&mut self, index: u32, reason: u8) {
        let conn = self.conn_mut(index);
        conn.paused |= reason;
        if reason != pause::HOME && !conn.told_pause {
            conn.told_pause = true;
            let conn = conn.id;
            self.outputs.push_back(Output::Pause { conn });
        }
    }

    /// This reason is gone.
    pub(super) fn unpause(&mut self, index: u32, reason: u8) {
        let conn = self.conn_mut(index);
        if conn.paused & reason != 0 {
            conn.paused &= !reason;
            if conn.paused == 0 {
                self.resumable.push(index);
            }
        }
    }

    fn on_item(&mut self, index: u32, item: &Item<'_>) {
        match item {
            Item::Message { text, payload } => self.on_message(index, *text, payload),
            Item::Ping(payload) => self.push_pong(index, payload),
            Item::Pong(_) => {}
            Item::Close { code, .. } => {
                self.counters.closed_by_client += 1;
                self.close(index, *code, "");
            }
        }
    }

    fn on_violation(&mut self, index: u32, violation: &Violation) {
        self.counters.protocol_errors += 1;
        self.counters.closed_protocol += 1;
        self.close(index, Some(violation.code), violation.reason);
    }

    fn on_message(&mut self, index: u32, text: bool, message: &[u8]) {
        if !self.rate_allows(index) {
            return;
        }
        let header = if text { None } else { envelope::parse(message) };
        let Some(header) = header else {
            self.counters.protocol_errors += 1;
            self.open_gate(index);
            return;
        };
        let payload = &message[envelope::HEADER_BYTES..];
        if envelope::is_control(header.id) {
            self.counters.inbound_control += 1;
            if header.id != envelope::id::HELLO {
                self.open_gate(index);
            }
            match control::decode(header.id, payload) {
                Ok(control) => self.on_control(index, &control),
                Err(_) => self.on_malformed_control(index, header.id),
            }
            return;
        }
        self.open_gate(index);
        match self.schema.by_id(header.id) {
            Some(event) => self.on_app_event(index, event, payload),
            None => self.counters.protocol_errors += 1,
        }
    }

    fn rate_allows(&mut self, index: u32) -> bool {
        let now = self.now;
        let Some(rate) = self.admission.rate().copied() else { return true };
        let conn = self.conn_mut(index);
        let bucket = conn.bucket.get_or_insert_with(|| Box::new(Bucket::new(&rate, now)));
        if bucket.allow(&rate, now) {
            return true;
        }
        self.counters.rate_limited += 1;
        if rate.close {
            self.counters.closed_rate += 1;
            self.close(index, Some(1008), "rate limit exceeded");
        }
        false
    }

    fn on_malformed_control(&mut self, index: u32, id: u32) {
        let is_for_clients = matches!(
            id,
            envelope::id::WELCOME | envelope::id::RESUMED | envelope::id::RPC_RESULT | envelope::id::PONG
        );
        if is_for_clients {
            return;
        }
        self.counters.protocol_errors += 1;
        if id == envelope::id::HELLO {
            self.counters.closed_protocol += 1;
            self.close(index, Some(1002), "malformed hello");
        }
    }

    fn on_control(&mut self, index: u32, control: &Control<'_>) {
        match *control {
            Control::Hello { version, last_seq, .. } => self.on_hello(index, version, last_seq),
            Control::Subscribe { topic } => self.on_subscribe(index, topic),
            Control::Unsubscribe { topic } => self.on_leave(index, RoomKind::Topic, topic),
            Control::JoinGroup { group } => self.on_join_group(index, group),
            Control::LeaveGroup { group } => self.on_leave(index, RoomKind::Group, group),
            Control::SnapshotRequest { topic, from_seq } => self.on_snapshot_request(index, topic, from_seq),
            Control::Ping { ts } => self.push_control(index, |encoder| encoder.pong(ts)),
            Control::Resume { last_seq } => self.on_resume(index, last_seq),
            Control::RpcCall { id, name, payload_b64 } => self.on_rpc_call(index, id, name, payload_b64),
            Control::Welcome { .. }
            | Control::Pong { .. }
            | Control::Resumed { .. }
            | Control::RpcResult { .. } => {}
        }
    }

    fn on_join_group(&mut self, index: u32, group: &str) {
        let session = self.session_of(index);
        let found = &self.sessions[session as usize];
        let is_new = !self.is_member(session, RoomKind::Group, group);
        let is_full = self.count_of(session, RoomKind::Group) >= self.config.limits.groups_per_connection;
        let is_long = group.len() > self.config.limits.topic_name_bytes as usize;
        if !found.known().access.may_join(group) || is_long || (is_new && is_full) {
            self.counters.rejected_joins += 1;
            return;
        }
        self.join(session, RoomKind::Group, group, Origin::Connection);
    }

    fn on_leave(&mut self, index: u32, kind: RoomKind, name: &str) {
        let session = self.session_of(index);
        if let Some(room) = self.rooms.find(kind, name) {
            self.leave(session, room);
        }
    }

    fn on_app_event(&mut self, index: u32, event: EventIndex, payload: &[u8]) {
        if self.inbound[usize::from(event)].is_none() {
            return;
        }
        if self.schema.verify(event, payload).is_err() {
            self.counters.decode_errors += 1;
            self.counters.protocol_errors += 1;
            return;
        }
        self.counters.inbound += 1;
        let session = self.session_of(index);
        if self.config.trace.capacity > 0 {
            let ts = self.wall(self.now);
            let id = self.sessions[session as usize].shown_id(session, self.core, &self.id_key);
            self.trace.record(&Record {
                at: self.now,
                ts,
                direction: Direction::Client,
                event,
                bytes: envelope::HEADER_BYTES + payload.len(),
                target: None,
                key: Key::Client(id),
                payload,
            });
        }
        let inbound = self.inbound.clone();
        match &inbound[usize::from(event)] {
            None | Some(InboundRule::None) => {}
            Some(InboundRule::Broadcast) => self.publish(event, payload, To::All, None),
            Some(InboundRule::Sender) => self.publish_to_session(event, payload, session),
            Some(InboundRule::Topic(topic)) => {
                self.publish(event, payload, To::Room(RoomKind::Topic, topic), None);
            }
            Some(InboundRule::Group(group)) => {
                self.publish(event, payload, To::Room(RoomKind::Group, group), None);
            }
        }
    }

    fn on_rpc_call(&mut self, index: u32, id: &str, name: &str, payload_b64: &str) {
        let event = self.schema.by_name(name).filter(|event| self.rpc[usize::from(*event)]);
        let Some(event) = event else {
            let text = format!("no handler for \"{name}\"");
            self.push_control(index, |encoder| encoder.rpc_result(id, false, &text, ""));
            return;
        };
        let mut message = std::mem::take(&mut self.request);
        match self.echo_request(event, payload_b64, &mut message) {
            Some(answer) => self.push_control(index, |encoder| encoder.rpc_result(id, true, "", &answer)),
            None => {
                let text = "undecodable request payload";
                self.push_control(index, |encoder| encoder.rpc_result(id, false, text, ""));
            }
        }
        message.clear();
        message.shrink_to(limits::COPIED_EVENT_BYTES);
        self.request = message;
    }

    /// The answer of the handler "echo": the same event. None when the request is no such event.
    fn echo_request<'a>(
        &self,
        event: EventIndex,
        payload_b64: &'a str,
        message: &mut Vec<u8>,
    ) -> Option<Cow<'a, str>> {
        STANDARD.decode_vec(payload_b64, message).ok()?;
        let header = envelope::parse(message)?;
        if header.id != self.schema.id(event) {
            return None;
        }
        self.schema.verify(event, &message[envelope::HEADER_BYTES..]).ok()?;
        if header.flags == 0 && header.seq == 0 {
            // There is one way to write bytes in base64.
            return Some(Cow::Borrowed(payload_b64));
        }
        envelope::write(&mut message[..envelope::HEADER_BYTES], header.id);
        Some(Cow::Owned(STANDARD.encode(message)))
    }

    /// Puts a control message into the lane.
    pub(super) fn push_control(
        &mut self,
        index: u32,
        encode: impl for<'e> FnOnce(&'e mut control::Encoder) -> &'e [u8],
    ) {
        self.lane_mut(index);
        let message = encode(&mut self.encoder);
        self.counters.sent += 1;
        self.counters.bytes_sent += message.len() as u64;
        let conn = self.conns[index as usize].as_mut().expect("a connection in use exists");
        let lane = conn.lane.as_mut().expect("made above");
        frame::push_frame(lane.tail(), frame::BINARY, message);
        self.lane_grew(index);
    }

    /// Puts a WebSocket pong into the lane.
    fn push_pong(&mut self, index: u32, payload: &[u8]) {
        self.lane_mut(index).pong(payload);
        self.lane_grew(index);
    }

    /// Puts a WebSocket ping into the lane.
    pub(super) fn push_ping(&mut self, index: u32) {
        frame::push_frame(self.lane_mut(index).tail(), frame::PING, b"");
        self.lane_grew(index);
    }

    fn lane_grew(&mut self, index: u32) {
        self.mark_control(index);
        let conn = self.conn(index);
        let is_full = conn.lane.as_ref().is_some_and(|lane| lane.len() > limits::CONTROL_LANE_BYTES);
        if is_full && matches!(conn.state, State::Open) && conn.paused & pause::LANE == 0 {
            self.pause(index, pause::LANE);
        }
    }
}
