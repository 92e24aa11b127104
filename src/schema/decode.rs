//! A payload as JSON.

use serde_json::{Map, Number, Value};

use super::Malformed;
use super::model::{Field, Kind, Shape, Table};
use super::reader::{Reader, TableAt};

/// The fields of a payload. Reads are checked once more on the way, so a payload that was not verified fails
/// too.
pub(super) fn payload(table: &Table, payload: &[u8]) -> Result<Value, Malformed> {
    let mut reader = Reader::new(payload);
    let root = reader.root()?;
    decode_table(&mut reader, table, root)
}

fn decode_table(reader: &mut Reader<'_>, table: &Table, at: TableAt<'_>) -> Result<Value, Malformed> {
    let mut object = Map::with_capacity(table.fields.len());
    let positions = at.fields().chain(std::iter::repeat(None));
    for (field, pos) in table.fields.iter().zip(positions) {
        let value = match pos {
            Some(pos) => decode_field(reader, field, pos)?,
            None => match absent(field) {
                Some(default) => default,
                None => continue,
            },
        };
        object.insert(field.name.as_ref().into(), value);
    }
    Ok(Value::Object(object))
}

/// What an absent field reads as; none: it is left out.
fn absent(field: &Field) -> Option<Value> {
    match (field.shape, &field.kind) {
        (Shape::Vector, _) => Some(Value::Array(Vec::new())),
        (Shape::Single, Kind::Int | Kind::BigInt) => Some(0.into()),
        (Shape::Single, Kind::Double) => Some(0.0.into()),
        (Shape::Single, Kind::Bool) => Some(false.into()),
        (Shape::Single, Kind::Enum(members)) => Some((*members[0]).into()),
        (Shape::Single, Kind::Text) => (!field.optional).then(|| "".into()),
        (Shape::Single, Kind::Table(_)) => None,
    }
}

fn decode_field(reader: &mut Reader<'_>, field: &Field, pos: usize) -> Result<Value, Malformed> {
    match field.shape {
        Shape::Single => decode_value(reader, &field.kind, pos),
        Shape::Vector => {
            let vector = reader.vector(pos, field.kind.inline_bytes())?;
            vector.positions().map(|pos| decode_value(reader, &field.kind, pos)).collect()
        }
    }
}

fn decode_value(reader: &mut Reader<'_>, kind: &Kind, pos: usize) -> Result<Value, Malformed> {
    Ok(match kind {
        Kind::Int | Kind::BigInt => i64::from_le_bytes(reader.plain(pos)?).into(),
        Kind::Double => {
            Number::from_f64(f64::from_le_bytes(reader.plain(pos)?)).map_or(Value::Null, Value::Number)
        }
        Kind::Bool => (reader.plain(pos)? != [0]).into(),
        Kind::Enum(members) => {
            let number = i32::from_le_bytes(reader.plain(pos)?);
            let member = usize::try_from(number).ok().and_then(|i| members.get(i));
            (**member.unwrap_or(&members[0])).into()
        }
        Kind::Text => reader.text(pos)?.into(),
        Kind::Table(table) => {
            let at = reader.table(pos)?;
            decode_table(reader, table, at)?
        }
    })
}
