//! Checks a payload against the model without making anything of it.

use super::Malformed;
use super::model::{Field, Kind, Shape, Table};
use super::reader::{Reader, TableAt};

/// Passes exactly the payloads that [`decode`](super::decode) can read. Depth is bounded by the model's.
pub(super) fn payload(table: &Table, payload: &[u8]) -> Result<(), Malformed> {
    let mut reader = Reader::new(payload);
    let root = reader.root()?;
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

#[inline]
fn verify_field(reader: &mut Reader<'_>, field: &Field, pos: usize) -> Result<(), Malformed> {
    match field.shape {
        Shape::Single => verify_value(reader, &field.kind, pos),
        Shape::Vector => {
            let vector = reader.vector(pos, field.kind.inline_bytes())?;
            match field.kind {
                Kind::Int | Kind::BigInt | Kind::Double | Kind::Bool | Kind::Enum(_) => reader.skip(vector),
                Kind::Text | Kind::Table(_) => {
                    vector.positions().try_for_each(|pos| verify_value(reader, &field.kind, pos))
                }
            }
        }
    }
}

#[inline]
fn verify_value(reader: &mut Reader<'_>, kind: &Kind, pos: usize) -> Result<(), Malformed> {
    match kind {
        // Any bits are a value.
        Kind::Int | Kind::BigInt | Kind::Double => reader.plain::<8>(pos).map(drop),
        Kind::Enum(_) => reader.plain::<4>(pos).map(drop),
        Kind::Bool => reader.plain::<1>(pos).map(drop),
        Kind::Text => reader.text(pos).map(drop),
        Kind::Table(table) => {
            let at = reader.table(pos)?;
            verify_table(reader, table, at)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::Schema;

    #[test]
    fn an_honest_payload_costs_no_more_than_its_length() {
        let schema = Schema::builtin();
        let event = schema.by_name("portfolio").unwrap();
        let table = schema.events()[usize::from(event)].table.as_ref().unwrap();
        let row = json!({"symbol": "AAPL", "quantity": 1, "avgPrice": 1.5, "pnl": -1.5});
        for rows in [1, 10, 100, 1000, 10_000] {
            let positions = vec![row.clone(); rows];
            let data = json!({"accountId": "a", "positions": positions, "totalValue": 1, "cash": 1, "ts": 1});
            let mut bytes = Vec::new();
            schema.encode_json(event, &data, &mut bytes).unwrap();
            let mut reader = Reader::new(&bytes);
            let root = reader.root().unwrap();
            verify_table(&mut reader, table, root).unwrap();
            assert!(reader.spent() <= bytes.len(), "{rows} rows: {} of {}", reader.spent(), bytes.len());
        }
    }
}
