//! A decoded control message, encoded again.

use seqcast::wire::control::{Control, Encoder};

/// The version of a hello is not kept: there is one that we say.
pub fn encoded<'e>(encoder: &'e mut Encoder, control: Control<'_>) -> &'e [u8] {
    match control {
        Control::Hello { caps, last_seq, .. } => encoder.hello(&caps.iter().collect::<Vec<_>>(), last_seq),
        Control::Welcome { client_id, groups } => encoder.welcome(client_id, groups.iter()),
        Control::Subscribe { topic } => encoder.subscribe(topic),
        Control::Unsubscribe { topic } => encoder.unsubscribe(topic),
        Control::JoinGroup { group } => encoder.join_group(group),
        Control::LeaveGroup { group } => encoder.leave_group(group),
        Control::SnapshotRequest { topic, from_seq } => encoder.snapshot_request(topic, from_seq),
        Control::Ping { ts } => encoder.ping(ts),
        Control::Pong { ts } => encoder.pong(ts),
        Control::Resume { last_seq } => encoder.resume(last_seq),
        Control::Resumed { ok, from } => encoder.resumed(ok, from),
        Control::RpcCall { id, name, payload_b64 } => encoder.rpc_call(id, name, payload_b64),
        Control::RpcResult { id, ok, err, payload_b64 } => encoder.rpc_result(id, ok, err, payload_b64),
    }
}
