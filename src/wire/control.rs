//! Control messages: FlatBuffers behind an envelope (docs/PROTOCOL.md), verified before they are believed.

#![forbid(unsafe_code)]

use flatbuffers::{
    FlatBufferBuilder, Follow, ForwardsUOffset, Vector, Verifiable, VerifierOptions, WIPOffset,
};

use super::control_generated as tables;
use super::envelope::{self, id};

/// Protocol version that a hello announces.
pub const VERSION: i64 = 2;

/// A control message. Absent fields read as 0, false, "" or an empty list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control<'a> {
    /// First message of each side.
    Hello {
        /// [`VERSION`], or the peer cannot be talked to.
        version: i64,
        /// Extensions that the sender understands.
        caps: Names<'a>,
        /// Last sequence number that the client has without a gap; 0 = none.
        last_seq: i64,
    },
    /// Server: who the client is.
    Welcome {
        /// Id of this client.
        client_id: &'a str,
        /// Its groups when it connected.
        groups: Names<'a>,
    },
    /// Join a topic.
    Subscribe {
        /// Name.
        topic: &'a str,
    },
    /// Leave a topic.
    Unsubscribe {
        /// Name.
        topic: &'a str,
    },
    /// Join a group.
    JoinGroup {
        /// Name.
        group: &'a str,
    },
    /// Leave a group.
    LeaveGroup {
        /// Name.
        group: &'a str,
    },
    /// Send the recorded events of a topic.
    SnapshotRequest {
        /// Name.
        topic: &'a str,
        /// Only events whose topic number is greater.
        from_seq: i64,
    },
    /// Heartbeat of a client.
    Ping {
        /// Any number.
        ts: i64,
    },
    /// Its answer.
    Pong {
        /// The number of the ping.
        ts: i64,
    },
    /// Send again what came after a sequence number.
    Resume {
        /// That number.
        last_seq: i64,
    },
    /// Server: a resume or hello was answered.
    Resumed {
        /// False: something is missing.
        ok: bool,
        /// First number that was sent again; 0 = none.
        from: i64,
    },
    /// Request.
    RpcCall {
        /// Chosen by the caller.
        id: &'a str,
        /// Event name.
        name: &'a str,
        /// Standard base64 of an envelope.
        payload_b64: &'a str,
    },
    /// Response.
    RpcResult {
        /// Of the call.
        id: &'a str,
        /// False: `err` says why.
        ok: bool,
        /// Empty when `ok`.
        err: &'a str,
        /// Standard base64 of an envelope when `ok`, else empty.
        payload_b64: &'a str,
    },
}

/// A list of names within a message.
#[derive(Clone, Copy, Default)]
pub struct Names<'a>(Option<Vector<'a, ForwardsUOffset<&'a str>>>);

impl<'a> Names<'a> {
    /// In the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.0.into_iter().flatten()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

impl PartialEq for Names<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Names<'_> {}

impl std::fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The payload is not a FlatBuffer of that message, or the id is not that of a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("malformed control message")
    }
}

impl std::error::Error for Malformed {}

/// Reads the payload of the control message with this id. The size prefix is not believed, a file identifier
/// not required, and bytes behind the end are ignored. Work and memory are bounded by the payload's length.
///
/// # Errors
/// See [`Malformed`].
pub fn decode(id: u32, payload: &[u8]) -> Result<Control<'_>, Malformed> {
    Ok(match id {
        id::HELLO => {
            let t = root::<tables::Hello>(payload)?;
            Control::Hello { version: t.version(), caps: Names(t.caps()), last_seq: t.last_seq() }
        }
        id::WELCOME => {
            let t = root::<tables::Welcome>(payload)?;
            Control::Welcome { client_id: text(t.client_id()), groups: Names(t.groups()) }
        }
        id::SUBSCRIBE => Control::Subscribe { topic: membership(payload)? },
        id::UNSUBSCRIBE => Control::Unsubscribe { topic: membership(payload)? },
        id::JOIN_GROUP => Control::JoinGroup { group: membership(payload)? },
        id::LEAVE_GROUP => Control::LeaveGroup { group: membership(payload)? },
        id::SNAPSHOT_REQUEST => {
            let t = root::<tables::SnapshotRequest>(payload)?;
            Control::SnapshotRequest { topic: text(t.topic()), from_seq: t.from_seq() }
        }
        id::PING => Control::Ping { ts: root::<tables::Beat>(payload)?.ts() },
        id::PONG => Control::Pong { ts: root::<tables::Beat>(payload)?.ts() },
        id::RESUME => Control::Resume { last_seq: root::<tables::Resume>(payload)?.last_seq() },
        id::RESUMED => {
            let t = root::<tables::Resumed>(payload)?;
            Control::Resumed { ok: t.ok(), from: t.from() }
        }
        id::RPC_CALL => {
            let t = root::<tables::RpcCall>(payload)?;
            Control::RpcCall { id: text(t.id()), name: text(t.name()), payload_b64: text(t.payload_b64()) }
        }
        id::RPC_RESULT => {
            let t = root::<tables::RpcResult>(payload)?;
            let payload_b64 = text(t.payload_b64());
            Control::RpcResult { id: text(t.id()), ok: t.ok(), err: text(t.err()), payload_b64 }
        }
        _ => return Err(Malformed),
    })
}

fn text(field: Option<&str>) -> &str {
    field.unwrap_or_default()
}

fn membership(payload: &[u8]) -> Result<&str, Malformed> {
    Ok(text(root::<tables::Membership>(payload)?.name()))
}

/// The verified root table. Offsets of a hostile message may share one long string many times; what the
/// verifier visits is therefore limited to twice the payload, and one table is all that a control message
/// has.
fn root<'a, T: Follow<'a> + Verifiable + 'a>(payload: &'a [u8]) -> Result<T::Inner, Malformed> {
    let options = VerifierOptions {
        max_depth: 1,
        max_tables: 1,
        max_apparent_size: 2 * payload.len(),
        ignore_missing_null_terminator: false,
    };
    flatbuffers::size_prefixed_root_with_opts::<T>(&options, payload).map_err(|_| Malformed)
}

/// Writes control messages, envelope and payload. Its memory is reused: after the longest message it
/// allocates nothing.
#[derive(Default)]
pub struct Encoder {
    builder: FlatBufferBuilder<'static>,
    names: Vec<WIPOffset<&'static str>>,
    message: Vec<u8>,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("message", &self.message).finish_non_exhaustive()
    }
}

impl Encoder {
    /// An encoder without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// `hello` of version [`VERSION`]; a server's `last_seq` is 0.
    pub fn hello(&mut self, caps: &[&str], last_seq: i64) -> &[u8] {
        let caps = self.list(caps.iter().copied());
        let args = tables::HelloArgs { version: VERSION, caps: Some(caps), last_seq };
        let root = tables::Hello::create(&mut self.builder, &args);
        self.finish(id::HELLO, root)
    }

    /// `welcome`
    pub fn welcome<'n>(&mut self, client_id: &str, groups: impl IntoIterator<Item = &'n str>) -> &[u8] {
        let groups = self.list(groups.into_iter());
        let client_id = self.builder.create_string(client_id);
        let args = tables::WelcomeArgs { client_id: Some(client_id), groups: Some(groups) };
        let root = tables::Welcome::create(&mut self.builder, &args);
        self.finish(id::WELCOME, root)
    }

    /// `subscribe`
    pub fn subscribe(&mut self, topic: &str) -> &[u8] {
        self.membership(id::SUBSCRIBE, topic)
    }

    /// `unsubscribe`
    pub fn unsubscribe(&mut self, topic: &str) -> &[u8] {
        self.membership(id::UNSUBSCRIBE, topic)
    }

    /// `joinGroup`
    pub fn join_group(&mut self, group: &str) -> &[u8] {
        self.membership(id::JOIN_GROUP, group)
    }

    /// `leaveGroup`
    pub fn leave_group(&mut self, group: &str) -> &[u8] {
        self.membership(id::LEAVE_GROUP, group)
    }

    /// `snapshotRequest`
    pub fn snapshot_request(&mut self, topic: &str, from_seq: i64) -> &[u8] {
        let topic = self.builder.create_string(topic);
        let args = tables::SnapshotRequestArgs { topic: Some(topic), from_seq };
        let root = tables::SnapshotRequest::create(&mut self.builder, &args);
        self.finish(id::SNAPSHOT_REQUEST, root)
    }

    /// `ping`
    pub fn ping(&mut self, ts: i64) -> &[u8] {
        self.beat(id::PING, ts)
    }

    /// `pong`
    pub fn pong(&mut self, ts: i64) -> &[u8] {
        self.beat(id::PONG, ts)
    }

    /// `resume`
    pub fn resume(&mut self, last_seq: i64) -> &[u8] {
        let root = tables::Resume::create(&mut self.builder, &tables::ResumeArgs { last_seq });
        self.finish(id::RESUME, root)
    }

    /// `resumed`
    pub fn resumed(&mut self, ok: bool, from: i64) -> &[u8] {
        let root = tables::Resumed::create(&mut self.builder, &tables::ResumedArgs { ok, from });
        self.finish(id::RESUMED, root)
    }

    /// `rpcCall`
    pub fn rpc_call(&mut self, id: &str, name: &str, payload_b64: &str) -> &[u8] {
        let b = &mut self.builder;
        let (id, name) = (Some(b.create_string(id)), Some(b.create_string(name)));
        let args = tables::RpcCallArgs { id, name, payload_b64: Some(b.create_string(payload_b64)) };
        let root = tables::RpcCall::create(b, &args);
        self.finish(id::RPC_CALL, root)
    }

    /// `rpcResult`
    pub fn rpc_result(&mut self, id: &str, ok: bool, err: &str, payload_b64: &str) -> &[u8] {
        let b = &mut self.builder;
        let (id, err) = (Some(b.create_string(id)), Some(b.create_string(err)));
        let args = tables::RpcResultArgs { id, ok, err, payload_b64: Some(b.create_string(payload_b64)) };
        let root = tables::RpcResult::create(b, &args);
        self.finish(id::RPC_RESULT, root)
    }

    fn membership(&mut self, id: u32, name: &str) -> &[u8] {
        let name = self.builder.create_string(name);
        let root =
            tables::Membership::create(&mut self.builder, &tables::MembershipArgs { name: Some(name) });
        self.finish(id, root)
    }

    fn beat(&mut self, id: u32, ts: i64) -> &[u8] {
        let root = tables::Beat::create(&mut self.builder, &tables::BeatArgs { ts });
        self.finish(id, root)
    }

    fn list<'n>(
        &mut self,
        names: impl Iterator<Item = &'n str>,
    ) -> WIPOffset<Vector<'static, ForwardsUOffset<&'static str>>> {
        self.names.clear();
        for name in names {
            self.names.push(self.builder.create_string(name));
        }
        self.builder.create_vector(&self.names)
    }

    fn finish<T>(&mut self, id: u32, root: WIPOffset<T>) -> &[u8] {
        self.builder.finish_size_prefixed(root, None);
        self.message.clear();
        envelope::encode(&mut self.message, id, 0, 0);
        self.message.extend_from_slice(self.builder.finished_data());
        self.builder.reset();
        &self.message
    }
}
