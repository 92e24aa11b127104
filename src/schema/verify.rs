//! Checks a payload against the model without making anything of it.

use super::Malformed;
use super::model::{Field, Kind, Shape, Table};
use super::reader::{Reader, TableAt};

/// Passes exactly the payloads that [`decode`](super::decode) can read. Depth is bounded by the model's.
pub(super) fn payload(table: &Table, payload: &[u8]) -> Result<(), Malformed> {
    let mut reader = Reader::new(payload);
    let root = reader.root(table.fields.len())?;
    verify_table(&mut reader, table, root)
}

fn verify_table(reader: &mut Reader<'_>, table: &Table, at: TableAt<'_>) -> Result<(), Malformed> {
    for (field, pos) in table.fields.iter().zip(at.fields()) {
        if let Some(pos) = pos {
            verify_field(reader, field, pos)?;
        }
    }
    Ok(())
}

fn verify_field(reader: &mut Reader<'_>, field: &Field, pos: usize) -> Result<(), Malformed> {
    match field.shape {
        Shape::Single => verify_value(reader, &field.kind, pos),
        Shape::Vector => {
            let vector = reader.vector(pos, field.kind.inline_bytes())?;
            match field.kind {
                // A vector of plain values is good when it is inside the payload: any bits are a value.
                Kind::Int | Kind::BigInt | Kind::Double | Kind::Bool | Kind::Enum(_) => reader.skip(vector),
                Kind::Text | Kind::Table(_) => {
                    vector.positions().try_for_each(|pos| verify_value(reader, &field.kind, pos))
                }
            }
        }
    }
}

fn verify_value(reader: &mut Reader<'_>, kind: &Kind, pos: usize) -> Result<(), Malformed> {
    match kind {
        Kind::Int | Kind::BigInt => reader.i64(pos).map(drop),
        Kind::Double => reader.f64(pos).map(drop),
        Kind::Bool => reader.bool(pos).map(drop),
        Kind::Enum(_) => reader.i32(pos).map(drop),
        Kind::Text => reader.text(pos).map(drop),
        Kind::Table(table) => {
            let at = reader.table(pos, table.fields.len())?;
            verify_table(reader, table, at)
        }
    }
}
