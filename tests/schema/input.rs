//! Arbitrary bytes as JSON data, as a payload and as a schema file. The fuzz target `json` and the tests
//! share [`one`]; what it asserts holds for all bytes.

use std::sync::LazyLock;

use seqcast::schema::{Encoder, Schema};
use serde_json::Value;

static SCHEMA: LazyLock<Schema> = LazyLock::new(Schema::builtin);

/// The first byte chooses what the others are.
pub fn one(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 3 {
        0 => data(rest),
        1 => payload(rest),
        _ => file(rest),
    }
}

/// JSON data for every event: what is encoded verifies, decodes, and gives the same bytes again.
fn data(text: &[u8]) {
    let Ok(data) = serde_json::from_slice::<Value>(text) else { return };
    let mut encoder = Encoder::new();
    for event in 0..u16::try_from(SCHEMA.len()).expect("six") {
        let Ok(bytes) = encoder.encode(&SCHEMA, event, &data) else { continue };
        let first = bytes.to_vec();
        let decoded = SCHEMA.decode_json(event, &first).expect("what was encoded decodes");
        let again = encoder.encode(&SCHEMA, event, &decoded).expect("what was decoded encodes");
        assert!(again == first, "{}: other bytes from {decoded}", SCHEMA.name(event));
    }
}

/// A payload of the event that the first byte chooses: decoding agrees with verifying.
fn payload(input: &[u8]) {
    let Some((event, payload)) = input.split_first() else { return };
    let event = u16::from(*event) % u16::try_from(SCHEMA.len()).expect("six");
    let verdict = SCHEMA.verify(event, payload);
    let decoded = SCHEMA.decode_json(event, payload);
    assert_eq!(verdict.err(), decoded.as_ref().err().copied());
    let Ok(decoded) = decoded else { return };
    // A payload may lack a required object or have numbers that JSON lacks; then it does not encode again.
    let mut encoder = Encoder::new();
    if let Ok(again) = encoder.encode(&SCHEMA, event, &decoded) {
        assert_eq!(SCHEMA.decode_json(event, again), Ok(decoded));
    }
}

/// A schema file: it is refused or can be used.
fn file(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(schema) = Schema::from_json(text, "input.json") else { return };
    for event in 0..u16::try_from(schema.len()).unwrap_or(u16::MAX) {
        assert_eq!(schema.by_name(schema.name(event)), Some(event));
        assert_eq!(schema.by_id(schema.id(event)), Some(event));
        let mut payload = Vec::new();
        if schema.encode_json(event, &Value::Object(serde_json::Map::new()), &mut payload).is_ok() {
            schema.decode_json(event, &payload).expect("what was encoded decodes");
        }
    }
}
