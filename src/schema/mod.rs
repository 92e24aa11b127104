//! The events of an application: what they are called, what is in them, and JSON to and from their payloads.
//!
//! A [`Schema`] is made from a JSON Schema file (docs/SCHEMA.md) or is the built-in one. An event's id on the
//! wire is a hash of its name; its payload is a size-prefixed FlatBuffer of one table. The server forwards
//! payloads byte for byte and only checks them ([`Schema::verify`]); JSON enters and leaves through
//! [`Encoder`] and [`Schema::decode_json`].
#![forbid(unsafe_code)]

mod builtin;
mod decode;
mod encode;
mod error;
mod fingerprint;
mod json_schema;
mod model;
mod reader;
mod verify;

use std::collections::HashMap;

use serde_json::Value;

pub use encode::Encoder;
pub use error::{DataError, Malformed, SchemaError};
pub use model::{Event, Field, Kind, Shape, Table};

use crate::wire::envelope;

/// Index of an event in a [`Schema`], from 0 without holes.
pub type EventIndex = u16;

/// All events that a server or client knows.
#[derive(Debug, Clone)]
pub struct Schema {
    events: Vec<Event>,
    by_id: HashMap<u32, EventIndex, ahash::RandomState>,
    by_name: HashMap<Box<str>, EventIndex, ahash::RandomState>,
    fingerprint: u32,
}

impl Schema {
    /// The six built-in events: quote, trade, portfolio, complex, order, bigVal.
    pub fn builtin() -> Schema {
        Schema::from_json(builtin::JSON, "built-in")
            .expect("the built-in file is part of the program and tested")
    }

    /// Reads `{"events": {NAME: JSON Schema}}`. `file` is only a name for error texts.
    ///
    /// # Errors
    /// Not JSON; a name that is empty, a control message's, or collides; a field that has no encoding.
    pub fn from_json(text: &str, file: &str) -> Result<Schema, SchemaError> {
        if file.ends_with(".fbs") {
            return Err(SchemaError::new(".fbs is not supported yet; give a JSON Schema file").in_file(file));
        }
        let mut schema = Schema {
            events: Vec::new(),
            by_id: HashMap::default(),
            by_name: HashMap::default(),
            fingerprint: 0,
        };
        for event in json_schema::events(text).map_err(|e| e.in_file(file))? {
            schema.add(event).map_err(|e| e.in_file(file))?;
        }
        schema.fingerprint = fingerprint::of(&schema.events);
        Ok(schema)
    }

    /// Adds events that have a name but no model: their payloads are forwarded unverified. Names that the
    /// schema knows already stay as they are.
    ///
    /// # Errors
    /// As [`Schema::from_json`] for names.
    pub fn with_unverified(mut self, names: impl Iterator<Item = String>) -> Result<Schema, SchemaError> {
        for name in names {
            if self.by_name(&name).is_none() {
                self.add(Event::new(&name, None))?;
            }
        }
        Ok(self)
    }

    fn add(&mut self, event: Event) -> Result<(), SchemaError> {
        if let Some(problem) = self.name_problem(&event) {
            return Err(SchemaError::new(problem).in_event(&event.name));
        }
        let Ok(index) = EventIndex::try_from(self.events.len()) else {
            return Err(SchemaError::new("more than 65536 events; use fewer").in_event(&event.name));
        };
        self.by_id.insert(event.id, index);
        self.by_name.insert(event.name.clone(), index);
        self.events.push(event);
        Ok(())
    }

    fn name_problem(&self, event: &Event) -> Option<String> {
        let id = event.id;
        if event.name.is_empty() {
            return Some("an event needs a name; give it one".into());
        }
        match envelope::control_name(id) {
            Some(control) if *control == *event.name => {
                return Some("this is the name of a control message; choose another name".into());
            }
            Some(control) => {
                return Some(format!("its id {id:08x} is that of control message {control:?}; rename it"));
            }
            None => {}
        }
        let other = self.name(self.by_id(id)?);
        Some(format!("its id {id:08x} is that of event {other:?} too; rename one of the two"))
    }

    /// The event with this id on the wire.
    #[inline]
    pub fn by_id(&self, id: u32) -> Option<EventIndex> {
        self.by_id.get(&id).copied()
    }

    /// The event with this name.
    pub fn by_name(&self, name: &str) -> Option<EventIndex> {
        self.by_name.get(name).copied()
    }

    /// Number of events; indices are below it.
    #[expect(clippy::len_without_is_empty, reason = "no events is no special case")]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// All events in index order, those without a model last.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Name of an event of this schema.
    pub fn name(&self, event: EventIndex) -> &str {
        &self.event(event).name
    }

    /// Id on the wire of an event of this schema.
    #[inline]
    pub fn id(&self, event: EventIndex) -> u32 {
        self.event(event).id
    }

    /// Whether the payload of this event can be verified, encoded and decoded.
    pub fn has_model(&self, event: EventIndex) -> bool {
        self.event(event).table.is_some()
    }

    /// Identifies the tables of this schema: the same events with the same fields have the same value on
    /// every machine, in whatever order the events stand. Events without a model do not count.
    pub fn fingerprint(&self) -> u32 {
        self.fingerprint
    }

    /// Checks a payload (size-prefixed FlatBuffer, without the envelope) so that every reader finds all that
    /// its offsets promise. Costs a bounded multiple of the payload's length, allocates nothing. The payload
    /// of an event without a model passes as it is.
    ///
    /// # Errors
    /// What is wrong and where; the payload must not be forwarded.
    #[inline]
    pub fn verify(&self, event: EventIndex, payload: &[u8]) -> Result<(), Malformed> {
        match &self.event(event).table {
            Some(table) => verify::payload(table, payload),
            None => Ok(()),
        }
    }

    /// Appends the payload for JSON data to `out`; on an error `out` is as before. [`Encoder`] does the same
    /// and keeps its memory.
    ///
    /// # Errors
    /// As [`Encoder::encode`].
    pub fn encode_json(&self, event: EventIndex, data: &Value, out: &mut Vec<u8>) -> Result<(), DataError> {
        let mut encoder = Encoder::new();
        out.extend_from_slice(encoder.encode(self, event, data)?);
        Ok(())
    }

    /// Verifies a payload and gives its fields as a JSON object, in declared order.
    ///
    /// Absent optional texts and objects are left out; absent numbers, flags, enumerations and arrays are 0,
    /// false, the first member and `[]`. A number that is no member of its enumeration is the first one.
    /// Integers are exact. JSON has no NaN and no infinity: they become null. An array of flags grows most, to
    /// some 32 bytes a flag.
    ///
    /// # Errors
    /// As [`Schema::verify`], and [`Malformed::NoModel`].
    pub fn decode_json(&self, event: EventIndex, payload: &[u8]) -> Result<Value, Malformed> {
        let table = self.event(event).table.as_ref().ok_or(Malformed::NoModel)?;
        verify::payload(table, payload)?;
        decode::payload(table, payload)
    }

    #[inline]
    fn event(&self, event: EventIndex) -> &Event {
        &self.events[usize::from(event)]
    }
}
