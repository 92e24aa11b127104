//! Payloads that nobody should send: cut, altered, referring to the same bytes again and again.

use flatbuffers::{
    FlatBufferBuilder, ForwardsUOffset, InvalidFlatbuffer, Verifiable, Verifier, VerifierOptions, WIPOffset,
};
use seqcast::schema::{Event, Field, Kind, Malformed, Schema, Shape, Table};
use serde_json::{Value, json};

use crate::random::Random;
use crate::{input, vectors};

/// The verdict of the flatbuffers crate's own verifier, which knows no budget here.
mod reference {
    use super::*;

    pub fn verdict(event: &Event, payload: &[u8]) -> Result<(), InvalidFlatbuffer> {
        let options = VerifierOptions {
            max_depth: 64,
            max_tables: usize::MAX,
            max_apparent_size: usize::MAX,
            ignore_missing_null_terminator: false,
        };
        let mut verifier = Verifier::new(&options, payload);
        follow(&mut verifier, event.table.as_ref().unwrap(), 4)
    }

    fn follow(verifier: &mut Verifier<'_, '_>, table: &Table, pos: usize) -> Result<(), InvalidFlatbuffer> {
        let target = pos + verifier.get_uoffset(pos)? as usize;
        let mut at = verifier.visit_table(target)?;
        for (slot, field) in table.fields.iter().enumerate() {
            if let Some(pos) = at.deref(u16::try_from(4 + 2 * slot).unwrap())? {
                check(at.verifier(), field, pos)?;
            }
        }
        at.finish();
        Ok(())
    }

    fn check(verifier: &mut Verifier<'_, '_>, field: &Field, pos: usize) -> Result<(), InvalidFlatbuffer> {
        type Offset<T> = ForwardsUOffset<T>;
        type Vector<'a, T> = Offset<flatbuffers::Vector<'a, T>>;
        match (field.shape, &field.kind) {
            (Shape::Single, Kind::Int | Kind::BigInt) => i64::run_verifier(verifier, pos),
            (Shape::Single, Kind::Double) => f64::run_verifier(verifier, pos),
            (Shape::Single, Kind::Bool) => bool::run_verifier(verifier, pos),
            (Shape::Single, Kind::Enum(_)) => i32::run_verifier(verifier, pos),
            (Shape::Single, Kind::Text) => <Offset<&str>>::run_verifier(verifier, pos),
            (Shape::Single, Kind::Table(table)) => follow(verifier, table, pos),
            (Shape::Vector, Kind::Int | Kind::BigInt) => <Vector<'_, i64>>::run_verifier(verifier, pos),
            (Shape::Vector, Kind::Double) => <Vector<'_, f64>>::run_verifier(verifier, pos),
            (Shape::Vector, Kind::Bool) => <Vector<'_, bool>>::run_verifier(verifier, pos),
            (Shape::Vector, Kind::Enum(_)) => <Vector<'_, i32>>::run_verifier(verifier, pos),
            (Shape::Vector, Kind::Text) => <Vector<'_, Offset<&str>>>::run_verifier(verifier, pos),
            (Shape::Vector, Kind::Table(table)) => {
                <Vector<'_, i32>>::run_verifier(verifier, pos)?;
                let vector = pos + verifier.get_uoffset(pos)? as usize;
                let len = verifier.get_uoffset(vector)? as usize;
                (0..len).try_for_each(|i| follow(verifier, table, vector + 4 + 4 * i))
            }
        }
    }
}

/// Holds our verdict against the reference's; ours may be stricter about vtables and cost, and never laxer.
fn compare(schema: &Schema, event: u16, payload: &[u8], what: &dyn Fn() -> String) -> bool {
    let ours = schema.verify(event, payload);
    let theirs = reference::verdict(&schema.events()[usize::from(event)], payload);
    match (&ours, &theirs) {
        (Ok(()), Ok(())) | (Err(_), Err(_)) => {}
        (Err(Malformed::Vtable { .. } | Malformed::TooCostly), Ok(())) => {}
        _ => panic!("{}: {ours:?} against {theirs:?}", what()),
    }
    let decoded = schema.decode_json(event, payload);
    assert_eq!(decoded.err(), ours.err(), "{}", what());
    ours.is_ok()
}

fn all_vectors() -> impl Iterator<Item = vectors::Vector> {
    ["app", "server"].into_iter().flat_map(vectors::app)
}

#[test]
fn every_truncation_is_judged_as_the_reference_does() {
    let schema = Schema::builtin();
    for v in all_vectors() {
        for len in 0..v.payload.len() {
            compare(&schema, v.event, &v.payload[..len], &|| format!("{} cut to {len}", v.name));
        }
        let longer = [&v.payload[..], b"\xff trailing"].concat();
        assert!(compare(&schema, v.event, &longer, &|| v.name.clone()), "{}", v.name);
    }
}

#[test]
fn every_vector_read_as_every_event_is_judged_as_the_reference_does() {
    let schema = Schema::builtin();
    for v in all_vectors() {
        for event in 0..u16::try_from(schema.len()).unwrap() {
            compare(&schema, event, &v.payload, &|| format!("{} as {}", v.name, schema.name(event)));
        }
    }
}

#[test]
fn random_mutations_are_judged_as_the_reference_does() {
    const ROUNDS: u64 = 1500;
    let schema = Schema::builtin();
    let (mut passed, mut failed) = (0, 0);
    for (index, v) in all_vectors().enumerate() {
        for round in 0..ROUNDS {
            let seed = index as u64 * ROUNDS + round;
            let mut payload = v.payload.clone();
            mutate(&mut payload, &mut Random(seed));
            match compare(&schema, v.event, &payload, &|| format!("{} seed {seed}: {payload:02x?}", v.name)) {
                true => passed += 1,
                false => failed += 1,
            }
        }
    }
    assert!(
        passed > 5_000 && failed > 5_000,
        "mutations too tame or too wild: {passed} passed, {failed} failed"
    );
}

/// One to three changes of kinds that hit offsets, sizes and texts.
fn mutate(payload: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let at = random.below(payload.len());
        let word = at & !3;
        match random.below(6) {
            0 => payload[at] ^= 1 << random.below(8),
            1 => payload[at] = [0, 1, 4, 0x7f, 0x80, 0xff][random.below(6)],
            2 if word + 4 <= payload.len() => {
                let value = [0, 1, 4, 8, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff][random.below(7)];
                payload[word..word + 4].copy_from_slice(&u32::to_le_bytes(value));
            }
            3 if word + 4 <= payload.len() => {
                let inside = u32::try_from(random.below(payload.len()) & !3).unwrap();
                payload[word..word + 4].copy_from_slice(&inside.to_le_bytes());
            }
            4 => payload.truncate(at + 1),
            _ => payload.swap(at, word),
        }
    }
}

#[test]
fn arbitrary_bytes_hold_the_fuzz_targets_promises() {
    let mut random = Random(7);
    for _ in 0..20_000 {
        let len = random.below(96);
        let bytes: Vec<u8> = (0..len).map(|_| random.next().to_le_bytes()[0]).collect();
        input::one(&bytes);
    }
    for v in all_vectors() {
        for round in 0..200 {
            let mut bytes = [&[1, u8::try_from(v.event).unwrap()], &v.payload[..]].concat();
            mutate(&mut bytes, &mut Random(round));
            input::one(&bytes);
            let mut text = format!("\0{}", v.fields).into_bytes();
            mutate(&mut text, &mut Random(round));
            input::one(&text);
        }
    }
}

/// A payload whose root has one field, a vector.
fn with_vector<T>(mut builder: FlatBufferBuilder<'_>, slot: u16, vector: WIPOffset<T>) -> Vec<u8> {
    let table = builder.start_table();
    builder.push_slot_always(4 + 2 * slot, vector);
    let root = builder.end_table(table);
    builder.finish_size_prefixed(root, None);
    builder.finished_data().to_vec()
}

fn verdict(event: &str, payload: &[u8]) -> Result<(), Malformed> {
    let schema = Schema::builtin();
    let event = schema.by_name(event).unwrap();
    assert!(reference::verdict(&schema.events()[usize::from(event)], payload).is_ok());
    let verdict = schema.verify(event, payload);
    assert_eq!(schema.decode_json(event, payload).err(), verdict.err());
    verdict
}

#[test]
fn many_offsets_to_one_long_text_cost_too_much() {
    let shared = |copies, len| {
        let mut builder = FlatBufferBuilder::new();
        let text = builder.create_string(&"x".repeat(len));
        let names = builder.create_vector(&vec![text; copies]);
        with_vector(builder, 1, names)
    };
    assert_eq!(verdict("complex", &shared(2_000, 20_000)), Err(Malformed::TooCostly));
    // What writers that share equal texts send is fine.
    assert_eq!(verdict("complex", &shared(60_000, 4)), Ok(()));
    assert_eq!(verdict("complex", &shared(3, 250_000)), Ok(()));
}

#[test]
fn many_offsets_to_one_table_cost_too_much() {
    let row = |builder: &mut FlatBufferBuilder<'static>| {
        let symbol = builder.create_string("AAPL");
        let table = builder.start_table();
        builder.push_slot_always(4, symbol);
        builder.push_slot_always(6, 1_i64);
        builder.push_slot_always(8, 1.0);
        builder.push_slot_always(10, 1.0);
        builder.end_table(table)
    };
    let mut builder = FlatBufferBuilder::new();
    let rows = vec![row(&mut builder); 10_000];
    let positions = builder.create_vector(&rows);
    assert_eq!(verdict("portfolio", &with_vector(builder, 1, positions)), Err(Malformed::TooCostly));

    let mut builder = FlatBufferBuilder::new();
    let rows: Vec<_> = (0..10_000).map(|_| row(&mut builder)).collect();
    let positions = builder.create_vector(&rows);
    assert_eq!(verdict("portfolio", &with_vector(builder, 1, positions)), Ok(()));
}

#[test]
fn many_offsets_to_one_vector_cost_too_much() {
    let shared = |lines: usize, tags: usize| {
        let mut builder = FlatBufferBuilder::new();
        let tags = builder.create_vector(&vec![1_i32; tags]);
        let line = |builder: &mut FlatBufferBuilder<'_>| {
            let table = builder.start_table();
            builder.push_slot_always(4 + 2 * 3, tags);
            builder.end_table(table)
        };
        let lines: Vec<_> = (0..lines).map(|_| line(&mut builder)).collect();
        let lines = builder.create_vector(&lines);
        with_vector(builder, 2, lines)
    };
    assert_eq!(verdict("order", &shared(200, 2_000)), Err(Malformed::TooCostly));
    assert_eq!(verdict("order", &shared(3, 2_000)), Ok(()));
}

#[test]
fn a_table_that_ends_behind_the_payload_is_malformed() {
    let schema = Schema::builtin();
    for v in all_vectors() {
        let root = 4 + u32::from_le_bytes(v.payload[4..8].try_into().unwrap()) as usize;
        let back = i32::from_le_bytes(v.payload[root..root + 4].try_into().unwrap());
        let vtable = root - usize::try_from(back).unwrap();
        for (size, verdict) in [(v.payload.len() - root, Ok(())), (v.payload.len() - root + 1, Err(()))] {
            let mut payload = v.payload.clone();
            payload[vtable + 2..vtable + 4].copy_from_slice(&u16::try_from(size).unwrap().to_le_bytes());
            let got = schema.verify(v.event, &payload);
            assert_eq!(got, verdict.map_err(|()| Malformed::Vtable { at: root }), "{}", v.name);
        }
    }
}

#[test]
fn wide_rows_with_one_field_each_pass() {
    let fields: serde_json::Map<_, _> =
        (0..1024).map(|i| (format!("f{i}"), json!({"type": "boolean"}))).collect();
    let rows = json!({"type": "array", "items": {"type": "object", "properties": fields}});
    let text = json!({"events": {"e": {"type": "object", "required": ["r"], "properties": {"r": rows}}}});
    let schema = Schema::from_json(&text.to_string(), "s.json").unwrap();
    let data: Value = json!({"r": vec![json!({"f1023": true}); 5_000]});
    let mut payload = Vec::new();
    schema.encode_json(0, &data, &mut payload).unwrap();
    assert_eq!(schema.verify(0, &payload), Ok(()));
}
