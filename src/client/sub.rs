//! `seqcast sub`: prints what a client gets, one JSON line an event.

use std::io::{self, ErrorKind, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::action::{End, Status};
use super::{Client, ClientError, ClientOptions, Incoming};
use crate::schema::Schema;
use crate::wire::control::{self, Control};
use crate::wire::envelope;

/// What to subscribe to and what to print.
#[derive(Debug, Clone)]
pub struct SubOptions {
    /// WebSocket address.
    pub url: String,
    /// Bearer token.
    pub token: Option<String>,
    /// Topics to subscribe to.
    pub topics: Vec<String>,
    /// Groups to join.
    pub groups: Vec<String>,
    /// End after so many events; none: never.
    pub count: Option<u64>,
    /// Print control messages and missed ranges too.
    pub control: bool,
    /// How payloads are read.
    pub schema: Schema,
}

/// The address that `sub` and `request` connect to unless told otherwise.
pub const DEFAULT_URL: &str = "ws://127.0.0.1:9400/ws";

/// Runs until `count` events are printed or `out` is closed by its reader. Events go to `out`, one JSON line each,
/// `{"event":…,"seq":…,"data":…}`; what was missed and what happens to the connection goes to `notices`. The first
/// connection is tried once; after it the session is kept over reconnects.
///
/// # Errors
/// The first connection fails, the server ends the session for good, or `out` cannot be written.
pub fn run(options: &SubOptions, out: &mut impl Write, notices: &mut impl Write) -> Result<(), ClientError> {
    let mut client = Client::connect(
        &options.url,
        ClientOptions {
            token: options.token.clone(),
            topics: options.topics.clone(),
            groups: options.groups.clone(),
            ..ClientOptions::default()
        },
    )?;
    match print_all(&mut client, options, out, notices) {
        Err(ClientError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {}
        result => result?,
    }
    client.close();
    Ok(())
}

fn print_all(
    client: &mut Client,
    options: &SubOptions,
    out: &mut impl Write,
    notices: &mut impl Write,
) -> Result<(), ClientError> {
    let mut printed = 0;
    while options.count.is_none_or(|count| printed < count) {
        if !client.has_input() {
            out.flush().map_err(ClientError::Output)?;
        }
        let Some(incoming) = client.next(None)? else { continue };
        printed += u64::from(matches!(incoming, Incoming::Event { .. }));
        notice(&incoming, notices);
        if let Some(line) = line(&incoming, options) {
            writeln!(out, "{line}").map_err(ClientError::Output)?;
        }
    }
    out.flush().map_err(ClientError::Output)
}

/// What somebody who watches wants to know; lost when it cannot be written.
fn notice(incoming: &Incoming, notices: &mut impl Write) {
    let _ = match incoming {
        Incoming::Missed { from, to: Some(to) } => {
            writeln!(notices, "missed: events {from} to {to} are lost")
        }
        Incoming::Missed { from, to: None } => {
            writeln!(
                notices,
                "missed: the server lost the session; unknown how much came from number {from} on"
            )
        }
        Incoming::Undecodable => writeln!(notices, "dropped a message that cannot be read"),
        Incoming::Status(Status::Reconnecting) => writeln!(notices, "connection lost, connecting again"),
        Incoming::Status(Status::Closed(End::Ours)) => Ok(()),
        _ => Ok::<_, io::Error>(()),
    };
}

/// The line to print, if any.
fn line(incoming: &Incoming, options: &SubOptions) -> Option<Value> {
    match incoming {
        Incoming::Event { event, seq, payload } => Some(event_line(&options.schema, *event, *seq, payload)),
        Incoming::Control { id, payload } if options.control => {
            let data = control_data(control::decode(*id, payload).ok()?);
            Some(json!({ "event": envelope::control_name(*id)?, "data": data }))
        }
        Incoming::Missed { from, to } if options.control => {
            Some(json!({ "event": "missed", "data": { "from": from, "to": to } }))
        }
        _ => None,
    }
}

/// An event that the schema cannot read is printed with its payload in base64 instead of data.
fn event_line(schema: &Schema, id: u32, seq: Option<u64>, payload: &[u8]) -> Value {
    let mut line = Map::new();
    let event = schema.by_id(id);
    let name = event.map_or_else(|| format!("{id:08x}"), |event| schema.name(event).to_owned());
    line.insert("event".to_owned(), name.into());
    line.insert("seq".to_owned(), seq.into());
    match event.map(|event| schema.decode_json(event, payload)) {
        Some(Ok(data)) => line.insert("data".to_owned(), data),
        _ => line.insert("payloadB64".to_owned(), STANDARD.encode(payload).into()),
    };
    Value::Object(line)
}

/// The fields of a control message under their names in docs/PROTOCOL.md.
fn control_data(control: Control<'_>) -> Value {
    match control {
        Control::Hello { version, caps, last_seq } => {
            json!({ "version": version, "caps": caps.iter().collect::<Vec<_>>(), "lastSeq": last_seq })
        }
        Control::Welcome { client_id, groups } => {
            json!({ "clientId": client_id, "groups": groups.iter().collect::<Vec<_>>() })
        }
        Control::Subscribe { topic } | Control::Unsubscribe { topic } => json!({ "topic": topic }),
        Control::JoinGroup { group } | Control::LeaveGroup { group } => json!({ "group": group }),
        Control::SnapshotRequest { topic, from_seq } => json!({ "topic": topic, "fromSeq": from_seq }),
        Control::Ping { ts } | Control::Pong { ts } => json!({ "ts": ts }),
        Control::Resume { last_seq } => json!({ "lastSeq": last_seq }),
        Control::Resumed { ok, from } => json!({ "ok": ok, "from": from }),
        Control::RpcCall { id, name, payload_b64 } => {
            json!({ "id": id, "name": name, "payloadB64": payload_b64 })
        }
        Control::RpcResult { id, ok, err, payload_b64 } => {
            json!({ "id": id, "ok": ok, "err": err, "payloadB64": payload_b64 })
        }
    }
}
