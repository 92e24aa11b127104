//! The vectors of the protocol: what decodes to what, and what is refused.

use seqcast::schema::{Encoder, EventIndex, Schema};
use seqcast::wire::envelope;
use serde_json::Value;

/// One vector of an app event.
pub struct Vector {
    pub name: String,
    pub event: EventIndex,
    pub payload: Vec<u8>,
    pub fields: Value,
}

/// The vectors of app events of one file.
pub fn app(file: &str) -> Vec<Vector> {
    let schema = Schema::builtin();
    let one = |v: Value| {
        Some(Vector {
            name: format!("{file} {}", v["name"].as_str()?),
            event: schema.by_name(v["event"].as_str()?)?,
            payload: bytes(v["payload_hex"].as_str()?),
            fields: v["fields"].clone(),
        })
    };
    rows(file).into_iter().filter_map(one).collect()
}

fn rows(file: &str) -> Vec<Value> {
    let path = format!("{}/tests/vectors/{file}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// Equal as data: 1 and 1.0 are the same number, texts of digits stand for integers beyond 2^53, null is
/// absent.
fn same(want: &Value, got: &Value) -> bool {
    match (want, got) {
        (Value::Object(a), Value::Object(b)) => {
            a.iter().all(|(k, v)| b.get(k).map_or(v.is_null(), |w| same(v, w)))
                && b.keys().all(|k| a.contains_key(k))
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(v, w)| same(v, w)),
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::String(a), Value::Number(b)) => *a == b.to_string(),
        _ => want == got,
    }
}

#[test]
fn every_vector_decodes_to_its_fields() {
    let schema = Schema::builtin();
    for file in ["app", "server"] {
        let vectors = app(file);
        assert_eq!(vectors.len(), 20);
        for v in vectors {
            schema.verify(v.event, &v.payload).unwrap();
            let data = schema.decode_json(v.event, &v.payload).unwrap();
            assert!(same(&v.fields, &data), "{}: {data}", v.name);
        }
    }
}

#[test]
fn encoding_gives_the_bytes_of_the_reference_client() {
    let schema = Schema::builtin();
    let mut encoder = Encoder::new();
    for file in ["app", "server"] {
        for v in app(file) {
            let data = schema.decode_json(v.event, &v.payload).unwrap();
            let again = encoder.encode(&schema, v.event, &data).unwrap();
            assert_eq!(schema.decode_json(v.event, again).unwrap(), data, "{}", v.name);
            if file == "app" {
                assert_eq!(again, v.payload, "{}", v.name);
            }
        }
    }
}

#[test]
fn ids_are_those_of_the_protocol() {
    let schema = Schema::builtin();
    let path = format!("{}/tests/vectors/ids.json", env!("CARGO_MANIFEST_DIR"));
    let ids: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut events = 0;
    for (name, row) in ids.as_object().unwrap() {
        let id = u32::try_from(row["id"].as_u64().unwrap()).unwrap();
        let event = schema.by_name(name);
        assert_eq!(event, schema.by_id(id), "{name}");
        assert_eq!(event.is_none(), row["control"].as_bool().unwrap(), "{name}");
        if let Some(event) = event {
            assert_eq!((schema.name(event), schema.id(event)), (&**name, id));
            assert!(schema.has_model(event));
            events += 1;
        }
    }
    assert_eq!(events, schema.len());
}

#[test]
fn malformed_messages_have_the_stated_verdict() {
    let schema = Schema::builtin();
    let mut seen = 0;
    for case in rows("malformed") {
        let message = bytes(case["hex"].as_str().unwrap());
        let Some(event) = envelope::parse(&message).and_then(|h| schema.by_id(h.id)) else { continue };
        let accepts = case["rust_verifier"] == "accepts";
        assert_eq!(
            schema.verify(event, &message[envelope::HEADER_BYTES..]).is_ok(),
            accepts,
            "{}",
            case["name"]
        );
        seen += 1;
    }
    assert_eq!(seen, 12);
}
