//! The envelope and the control messages against the recorded vectors, and against forgeries.

use seqcast::wire::control::*;
use seqcast::wire::envelope::{self, Header, id};
use serde_json::{Value, json};

use crate::again::encoded;

struct Vector {
    name: String,
    event: String,
    fields: Value,
    message: Vec<u8>,
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn file(name: &str) -> Value {
    let path = format!("{}/tests/vectors/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The vectors have text only where JavaScript cannot hold the number.
fn numbers_as_text(fields: &Value) -> Value {
    let text = |v: &Value| if v.is_number() { json!(v.to_string()) } else { v.clone() };
    fields
        .as_object()
        .unwrap()
        .iter()
        .map(|(k, v)| (k.clone(), text(v)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Control messages in both layouts: as browsers encode them, and as servers do.
fn vectors() -> Vec<Vector> {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let all = ["control", "server"].into_iter().flat_map(|name| file(name).as_array().unwrap().clone());
    let vectors: Vec<Vector> = all
        .map(|v| Vector {
            name: text(&v["name"]),
            event: text(&v["event"]),
            fields: numbers_as_text(&v["fields"]),
            message: unhex(v["hex"].as_str().unwrap()),
        })
        .filter(|v| envelope::is_control(envelope::fnv1a32(&v.event)))
        .collect();
    assert_eq!(vectors.len(), 2 * 48);
    vectors
}

/// The fields under their names of the protocol page; numbers as text.
fn fields(control: Control<'_>) -> Value {
    let int = |n: i64| json!(n.to_string());
    let list = |names: Names<'_>| json!(names.iter().collect::<Vec<_>>());
    match control {
        Control::Hello { version, caps, last_seq } => {
            json!({"version": int(version), "caps": list(caps), "lastSeq": int(last_seq)})
        }
        Control::Welcome { client_id, groups } => json!({"clientId": client_id, "groups": list(groups)}),
        Control::Subscribe { topic } | Control::Unsubscribe { topic } => json!({"topic": topic}),
        Control::JoinGroup { group } | Control::LeaveGroup { group } => json!({"group": group}),
        Control::SnapshotRequest { topic, from_seq } => json!({"topic": topic, "fromSeq": int(from_seq)}),
        Control::Ping { ts } | Control::Pong { ts } => json!({"ts": int(ts)}),
        Control::Resume { last_seq } => json!({"lastSeq": int(last_seq)}),
        Control::Resumed { ok, from } => json!({"ok": ok, "from": int(from)}),
        Control::RpcCall { id, name, payload_b64 } => {
            json!({"id": id, "name": name, "payloadB64": payload_b64})
        }
        Control::RpcResult { id, ok, err, payload_b64 } => {
            json!({"id": id, "ok": ok, "err": err, "payloadB64": payload_b64})
        }
    }
}

fn name(control: Control<'_>) -> &'static str {
    match control {
        Control::Hello { .. } => "hello",
        Control::Welcome { .. } => "welcome",
        Control::Subscribe { .. } => "subscribe",
        Control::Unsubscribe { .. } => "unsubscribe",
        Control::JoinGroup { .. } => "joinGroup",
        Control::LeaveGroup { .. } => "leaveGroup",
        Control::SnapshotRequest { .. } => "snapshotRequest",
        Control::Ping { .. } => "ping",
        Control::Pong { .. } => "pong",
        Control::Resume { .. } => "resume",
        Control::Resumed { .. } => "resumed",
        Control::RpcCall { .. } => "rpcCall",
        Control::RpcResult { .. } => "rpcResult",
    }
}

/// As the server reads a message: header, then payload.
fn read(message: &[u8]) -> Option<Result<Control<'_>, Malformed>> {
    let header = envelope::parse(message)?;
    envelope::is_control(header.id).then(|| decode(header.id, &message[envelope::HEADER_BYTES..]))
}

#[test]
fn ids() {
    for (name, v) in file("ids").as_object().unwrap() {
        let id = envelope::fnv1a32(name);
        assert_eq!(Some(u64::from(id)), v["id"].as_u64());
        assert_eq!(id.to_le_bytes().to_vec(), unhex(v["le_hex"].as_str().unwrap()));
        let is_control = v["control"].as_bool().unwrap();
        assert_eq!(envelope::is_control(id), is_control);
        assert_eq!(envelope::control_name(id), is_control.then_some(name.as_str()));
    }
    assert_eq!((envelope::fnv1a32(""), envelope::fnv1a32("foobar")), (0x811c_9dc5, 0xbf9c_f968));
}

#[test]
fn every_vector_decodes_to_its_fields() {
    for v in vectors() {
        let header = envelope::parse(&v.message).unwrap();
        assert_eq!(header, Header { id: envelope::fnv1a32(&v.event), flags: 0, seq: 0 });
        let control = read(&v.message).unwrap().unwrap();
        assert_eq!((name(control), fields(control)), (v.event.as_str(), v.fields), "{}", v.name);
    }
}

#[test]
fn every_vector_survives_our_encoder() {
    let mut encoder = Encoder::new();
    for v in vectors() {
        let control = read(&v.message).unwrap().unwrap();
        if matches!(control, Control::Hello { version, .. } if version != VERSION) {
            continue; // we say no other version
        }
        let again = encoded(&mut encoder, control);
        assert_eq!(read(again), Some(Ok(control)), "{}", v.name);
        // The shortest form: no default is written.
        assert!(again.len() <= v.message.len() + 8, "{}: {} bytes", v.name, again.len());
    }
}

/// The example of the protocol page: what is absent is absent.
#[test]
fn smallest_messages() {
    let mut encoder = Encoder::new();
    assert_eq!(encoder.ping(0), unhex("0289f05d160000000000000000000c000000080000000400040004000000"));
    assert_eq!(encoder.resume(0).len(), 30);
    assert_eq!(encoder.resumed(false, 0).len(), 30);
}

#[test]
fn payloads_at_every_memory_address() {
    for v in vectors() {
        let payload = &v.message[envelope::HEADER_BYTES..];
        let id = envelope::fnv1a32(&v.event);
        let want = decode(id, payload).unwrap();
        let mut memory = vec![0xEE; payload.len() + 16];
        for shift in 0..8 {
            memory[shift..shift + payload.len()].copy_from_slice(payload);
            assert_eq!(decode(id, &memory[shift..shift + payload.len()]).unwrap(), want);
        }
    }
}

/// A cut message is refused, or (what was cut off was not used) reads the same.
#[test]
fn every_truncation() {
    for v in vectors() {
        let want = read(&v.message).unwrap().unwrap();
        for cut in 0..v.message.len() {
            match read(&v.message[..cut]) {
                None | Some(Err(Malformed)) => (),
                Some(Ok(got)) => assert_eq!(got, want, "{} up to {cut}", v.name),
            }
        }
    }
}

#[test]
fn bytes_that_are_not_believed() {
    for v in vectors() {
        let want = fields(read(&v.message).unwrap().unwrap());
        let mut message = v.message.clone();
        for size in [0, 1, u32::MAX, 0x7FFF_FFFF] {
            message[14..18].copy_from_slice(&u32::to_le_bytes(size));
            assert_eq!(fields(read(&message).unwrap().unwrap()), want, "size prefix {size}");
        }
        message[5..14].fill(0xFF);
        message.extend_from_slice(&v.message);
        assert_eq!(fields(read(&message).unwrap().unwrap()), want, "flags, seq, bytes behind the end");
    }
}

/// The reactions that the vectors demand, as far as this layer decides them.
#[test]
fn malformed_vectors() {
    let mut refused = 0;
    for v in file("malformed").as_array().unwrap() {
        let (name, expect) = (v["name"].as_str().unwrap(), v["expect"].as_str().unwrap());
        let message = unhex(v["hex"].as_str().unwrap());
        let known = envelope::parse(&message).map(|h| (h.id, envelope::is_control(h.id)));
        let names_app_event = matches!(known, Some((id, false)) if file("ids").as_object().unwrap().values()
            .any(|v| v["id"].as_u64() == Some(u64::from(id))));
        if names_app_event {
            continue; // the payload is the schema's to judge
        }
        let got = read(&message);
        if expect.starts_with("count one protocol error") || expect.starts_with("reject before") {
            assert!(matches!(got, None | Some(Err(_))), "{name}: {got:?}");
            refused += 1;
        } else if expect.starts_with("close 1002") {
            let version = |c| matches!(c, Ok(Control::Hello { version, .. }) if version == VERSION);
            assert!(!got.is_some_and(version), "{name}");
            refused += 1;
        } else if expect.contains("ignore")
            || expect.starts_with("valid hello")
            || expect.starts_with("rpcResult")
        {
            assert!(matches!(got, Some(Ok(_))), "{name}: {got:?}");
        } else {
            assert!(expect.starts_with("either") || expect.starts_with("accept or drop"), "{name}: {expect}");
        }
    }
    assert!(refused > 25, "{refused}");
}

/// A vector of offsets that all name one long string: little to send, much to check.
#[test]
fn shared_strings_do_not_multiply_the_work() {
    let hello = |count: u32, length: u32| {
        let mut p = Vec::new();
        p.extend(0_u32.to_le_bytes()); // size
        p.extend(12_u32.to_le_bytes()); // root at 16
        p.extend([8_u16, 12, 0, 8].map(u16::to_le_bytes).concat()); // vtable at 8: slot 1 at +8
        p.extend(8_i32.to_le_bytes()); // table at 16
        p.extend(0_u32.to_le_bytes());
        p.extend(4_u32.to_le_bytes()); // caps at 28
        p.extend(count.to_le_bytes());
        for i in 0..count {
            p.extend((4 * (count - i)).to_le_bytes()); // all to the string behind the vector
        }
        p.extend(length.to_le_bytes());
        p.extend(vec![b'x'; length as usize]);
        p.extend([0; 4]);
        p
    };
    let shared = hello(2, 3);
    let Ok(Control::Hello { caps, .. }) = decode(id::HELLO, &shared) else { panic!("two may share") };
    assert_eq!(caps.iter().collect::<Vec<_>>(), ["xxx", "xxx"]);
    assert_eq!(decode(id::HELLO, &hello(8000, 32_000)), Err(Malformed));
}

#[test]
fn lists_of_names() {
    let mut encoder = Encoder::new();
    let mut hello = |caps: &[&str]| encoder.hello(caps, 0)[envelope::HEADER_BYTES..].to_vec();
    let all = [hello(&[]), hello(&["a"]), hello(&["a", "b"]), hello(&["b", "a"])];
    for (i, one) in all.iter().enumerate() {
        let Ok(Control::Hello { caps, .. }) = decode(id::HELLO, one) else { panic!("a hello") };
        assert_eq!(caps.is_empty(), i == 0);
        for (j, other) in all.iter().enumerate() {
            assert_eq!(decode(id::HELLO, one) == decode(id::HELLO, other), i == j);
        }
    }
}

#[test]
fn unknown_ids() {
    assert_eq!(decode(envelope::fnv1a32("quote"), &[0; 32]), Err(Malformed));
    assert_eq!(decode(0, &[]), Err(Malformed));
}

#[test]
fn headers() {
    let mut message = Vec::new();
    envelope::encode(&mut message, 0x0403_0201, 0x80, 0x0102_0304_0506_0708);
    assert_eq!(message, [2, 1, 2, 3, 4, 0x80, 8, 7, 6, 5, 4, 3, 2, 1]);
    let header = Header { id: 0x0403_0201, flags: 0x80, seq: 0x0102_0304_0506_0708 };
    assert_eq!(envelope::parse(&message), Some(header));
    assert_eq!(envelope::parse(&message[..13]), None);
    envelope::stamp(&mut message[envelope::FLAGS_AT..14], (1 << 53) - 1);
    assert_eq!(envelope::parse(&message), Some(Header { id: header.id, flags: 1, seq: (1 << 53) - 1 }));
    envelope::write(&mut message, header.id);
    assert_eq!(envelope::parse(&message), Some(Header { flags: 0, seq: 0, ..header }));
    for version in [0, 1, 3, 255] {
        message[0] = version;
        assert_eq!(envelope::parse(&message), None);
    }
}
