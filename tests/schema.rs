//! Schemas against the vectors of the protocol: what decodes to what, and what is refused.
#![allow(clippy::unwrap_used)]

use seqcast::schema::{Encoder, Schema};
use serde_json::Value;

/// Bytes of the envelope before the payload.
const HEADER: usize = 14;

fn vectors(file: &str) -> Vec<Value> {
    let path = format!("{}/tests/vectors/{file}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

/// Name, event, payload and fields of every vector of an app event.
fn app_vectors(file: &str) -> Vec<(String, u16, Vec<u8>, Value)> {
    let schema = Schema::builtin();
    let one = |v: Value| {
        let event = schema.by_name(v["event"].as_str()?)?;
        let payload = bytes(v["payload_hex"].as_str()?);
        Some((v["name"].as_str()?.to_owned(), event, payload, v["fields"].clone()))
    };
    vectors(file).into_iter().filter_map(one).collect()
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
fn every_vector_decodes_to_its_fields_and_survives_a_round_trip() {
    let schema = Schema::builtin();
    let mut encoder = Encoder::new();
    for (file, count) in [("app", 20), ("server", 20)] {
        let cases = app_vectors(file);
        assert_eq!(cases.len(), count);
        for (name, event, payload, fields) in cases {
            schema.verify(event, &payload).unwrap();
            let data = schema.decode_json(event, &payload).unwrap();
            assert!(same(&fields, &data), "{file} {name}: {data}");
            let again = encoder.encode(&schema, event, &data).unwrap();
            assert_eq!(schema.decode_json(event, again).unwrap(), data, "{file} {name}");
            if file == "app" {
                assert_eq!(again, payload, "{name}: not the layout of the reference client");
            }
        }
    }
}

#[test]
fn malformed_messages_have_the_stated_verdict() {
    let schema = Schema::builtin();
    let mut seen = 0;
    for case in vectors("malformed") {
        let message = bytes(case["hex"].as_str().unwrap());
        if message.len() < HEADER || message[0] != 2 {
            continue;
        }
        let id = u32::from_le_bytes(message[1..5].try_into().unwrap());
        let Some(event) = schema.by_id(id) else { continue };
        let accepts = case["rust_verifier"] == "accepts";
        assert_eq!(schema.verify(event, &message[HEADER..]).is_ok(), accepts, "{}", case["name"]);
        seen += 1;
    }
    assert_eq!(seen, 12);
}
