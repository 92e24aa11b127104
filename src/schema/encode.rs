//! JSON data as a payload.
//!
//! A table is first read into slots, children first, and written when nothing can fail any more. The layout
//! is that of the reference browser client: fields in declared order, scalars that equal their default left
//! out, empty vectors present, no identifier. The same data gives the same bytes.

use flatbuffers::{FlatBufferBuilder, UnionWIPOffset, VOffsetT, WIPOffset};
use serde_json::{Map, Value};

use super::model::{Field, Kind, Shape, Table};
use super::{DataError, EventIndex, Schema};
use crate::limits::ENCODED_BYTES;

/// Bytes of the builder's memory that are kept from one payload to the next.
const KEPT_BYTES: usize = 1 << 20;

/// Largest magnitude at which a JSON number with a fraction or exponent is surely the integer that was meant.
const EXACT: f64 = 9_007_199_254_740_991.0;

/// What is said of an integer that is out of range or perhaps not exact any more.
const INTEGER: &str =
    "an integer from -9223372036854775808 to 9223372036854775807 without fraction or exponent";

/// A value of the table or vector under construction.
#[derive(Clone, Copy)]
enum Slot {
    Int(i64),
    Double(f64),
    Bool(bool),
    Enum(i32),
    Offset(WIPOffset<UnionWIPOffset>),
}

/// Makes payloads from JSON; keeps its memory from one to the next.
#[derive(Default)]
pub struct Encoder {
    builder: FlatBufferBuilder<'static>,
    /// A stack: the slots of a table lie above those of the tables around it. None: absent.
    slots: Vec<Option<Slot>>,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

impl Encoder {
    /// No memory yet.
    pub fn new() -> Encoder {
        Encoder::default()
    }

    /// The payload (size-prefixed FlatBuffer) for the data of an event.
    ///
    /// Unknown keys are ignored; null is as good as absent for an optional field. Integers are exact over the
    /// 64-bit range; one written with a fraction of zero or an exponent (`1.0`, `1e3`) is taken up to 2^53-1.
    ///
    /// # Errors
    /// Names the field that is missing or of the wrong type or range. The event has no model. The payload
    /// would pass [`ENCODED_BYTES`].
    pub fn encode(&mut self, schema: &Schema, event: EventIndex, data: &Value) -> Result<&[u8], DataError> {
        let Some(table) = &schema.event(event).table else {
            return Err(DataError::new("the schema has only the name of this event; send payloadB64"));
        };
        self.slots.clear();
        self.slots.shrink_to(KEPT_BYTES / size_of::<Option<Slot>>());
        if self.builder.unfinished_data().len() > KEPT_BYTES {
            self.builder = FlatBufferBuilder::new();
        }
        self.builder.reset();
        let root = self.table(table, data)?;
        self.builder.finish_size_prefixed(root, None);
        Ok(self.builder.finished_data())
    }

    fn table(&mut self, table: &Table, data: &Value) -> Result<WIPOffset<UnionWIPOffset>, DataError> {
        let object = data.as_object().ok_or_else(|| expected("an object", data))?;
        self.room(table.fields.len() * 8 + 64)?;
        let base = self.slots.len();
        for field in &table.fields {
            let slot = self.field(field, object).map_err(|e| e.in_field(&field.name))?;
            self.slots.push(slot);
        }
        let start = self.builder.start_table();
        let mut at: VOffsetT = 4;
        for slot in self.slots.drain(base..) {
            match slot {
                None => {}
                Some(Slot::Int(v)) => self.builder.push_slot(at, v, 0),
                Some(Slot::Double(v)) => self.builder.push_slot(at, v, 0.0),
                Some(Slot::Bool(v)) => self.builder.push_slot(at, v, false),
                Some(Slot::Enum(v)) => self.builder.push_slot(at, v, 0),
                Some(Slot::Offset(v)) => self.builder.push_slot_always(at, v),
            }
            at += 2;
        }
        let end = self.builder.end_table(start);
        Ok(WIPOffset::new(end.value()))
    }

    fn field(&mut self, field: &Field, object: &Map<String, Value>) -> Result<Option<Slot>, DataError> {
        match object.get(&*field.name) {
            None | Some(Value::Null) if field.optional => Ok(None),
            None => Err(DataError::new(format!("missing; expected {}", wanted(field)))),
            Some(value) => match field.shape {
                Shape::Single => self.value(&field.kind, value).map(Some),
                Shape::Vector => self.vector(&field.kind, value).map(Some),
            },
        }
    }

    fn value(&mut self, kind: &Kind, value: &Value) -> Result<Slot, DataError> {
        Ok(match kind {
            Kind::Int | Kind::BigInt => Slot::Int(integer(value)?),
            Kind::Double => Slot::Double(value.as_f64().ok_or_else(|| expected("a number", value))?),
            Kind::Bool => Slot::Bool(value.as_bool().ok_or_else(|| expected("true or false", value))?),
            Kind::Enum(members) => Slot::Enum(member(members, value)?),
            Kind::Text => {
                let text = value.as_str().ok_or_else(|| expected("a text", value))?;
                self.room(text.len())?;
                Slot::Offset(self.builder.create_string(text).as_union_value())
            }
            Kind::Table(table) => Slot::Offset(self.table(table, value)?),
        })
    }

    fn vector(&mut self, kind: &Kind, value: &Value) -> Result<Slot, DataError> {
        let elements = value.as_array().ok_or_else(|| expected("an array", value))?;
        let base = self.slots.len();
        for (index, element) in elements.iter().enumerate() {
            let slot = self.value(kind, element).map_err(|e| e.in_element(index))?;
            self.slots.push(Some(slot));
        }
        self.room(elements.len() * kind.inline_bytes())?;
        // The type only says how wide an element is.
        match kind.inline_bytes() {
            8 => self.builder.start_vector::<u64>(elements.len()),
            4 => self.builder.start_vector::<u32>(elements.len()),
            _ => self.builder.start_vector::<u8>(elements.len()),
        }
        for slot in self.slots.drain(base..).rev().flatten() {
            match slot {
                Slot::Int(v) => drop(self.builder.push(v)),
                Slot::Double(v) => drop(self.builder.push(v)),
                Slot::Bool(v) => drop(self.builder.push(v)),
                Slot::Enum(v) => drop(self.builder.push(v)),
                Slot::Offset(v) => drop(self.builder.push(v)),
            }
        }
        let vector = self.builder.end_vector::<u8>(elements.len());
        Ok(Slot::Offset(vector.as_union_value()))
    }

    /// Whether `bytes` more still fit; the builder itself would panic at 2 GiB.
    fn room(&self, bytes: usize) -> Result<(), DataError> {
        if self.builder.unfinished_data().len() + bytes > ENCODED_BYTES {
            return Err(DataError::new(format!(
                "the payload passes {ENCODED_BYTES} bytes; send less at once"
            )));
        }
        Ok(())
    }
}

fn integer(value: &Value) -> Result<i64, DataError> {
    if let Some(exact) = value.as_i64() {
        return Ok(exact);
    }
    match value.as_f64() {
        Some(float) if float.fract() != 0.0 => Err(expected("an integer", value)),
        // The cast is exact: no fraction, and far inside the range of i64.
        Some(float) if float.abs() <= EXACT => Ok(float as i64),
        Some(_) => Err(expected(INTEGER, value)),
        None => Err(expected("an integer", value)),
    }
}

fn member(members: &[Box<str>], value: &Value) -> Result<i32, DataError> {
    let text = value.as_str().ok_or_else(|| expected(&one_of(members), value))?;
    let position = members.iter().position(|m| **m == *text).and_then(|p| i32::try_from(p).ok());
    position.ok_or_else(|| expected(&one_of(members), value))
}

fn wanted(field: &Field) -> String {
    match (field.shape, &field.kind) {
        (Shape::Vector, _) => "an array".into(),
        (Shape::Single, Kind::Int | Kind::BigInt) => "an integer".into(),
        (Shape::Single, Kind::Double) => "a number".into(),
        (Shape::Single, Kind::Bool) => "true or false".into(),
        (Shape::Single, Kind::Enum(members)) => one_of(members),
        (Shape::Single, Kind::Text) => "a text".into(),
        (Shape::Single, Kind::Table(_)) => "an object".into(),
    }
}

fn one_of(members: &[Box<str>]) -> String {
    let quoted: Vec<String> = members.iter().map(|m| format!("{m:?}")).collect();
    match &quoted[..] {
        [only] => only.clone(),
        _ => format!("one of {}", quoted.join(", ")),
    }
}

/// Says what was found, in at most a few dozen characters.
fn expected(wanted: &str, found: &Value) -> DataError {
    const SHOWN: usize = 40;
    let found = match found {
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) if text.chars().count() > SHOWN => {
            format!("the text {:?}...", text.chars().take(SHOWN).collect::<String>())
        }
        Value::String(text) => format!("the text {text:?}"),
        other => other.to_string(),
    };
    DataError::new(format!("expected {wanted}, found {found}"))
}
