//! The model of a schema: events, tables, fields. Declared order of fields is slot order on the wire.

use crate::wire::envelope::fnv1a32;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Name, unique in a schema, never empty.
    pub name: Box<str>,
    /// Id on the wire, made from the name.
    pub id: u32,
    /// What is in it; none: only the name is known and payloads pass unverified.
    pub table: Option<Table>,
}

impl Event {
    pub(super) fn new(name: &str, table: Option<Table>) -> Event {
        Event { name: name.into(), id: fnv1a32(name), table }
    }
}

/// An object; a FlatBuffers table on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Fields in slot order, at most [`TABLE_FIELDS`](crate::limits::TABLE_FIELDS).
    pub fields: Box<[Field]>,
}

/// One field of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name in JSON; not on the wire.
    pub name: Box<str>,
    /// Of what.
    pub kind: Kind,
    /// One or many.
    pub shape: Shape,
    /// May be missing from JSON data.
    pub optional: bool,
}

/// How many values a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One.
    Single,
    /// A vector of any number.
    Vector,
}

/// Type of one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// 64-bit integer.
    Int,
    /// 64-bit integer that generated code must not turn into a floating-point number.
    BigInt,
    /// 64-bit floating-point number.
    Double,
    /// Flag, 1 byte.
    Bool,
    /// One of these texts, distinct and at least one; its position as a 32-bit integer on the wire.
    Enum(Box<[Box<str>]>),
    /// UTF-8 text.
    Text,
    /// A nested object.
    Table(Table),
}

impl Kind {
    /// Bytes of one value inline in a table or vector; 4 for what is behind an offset.
    pub(super) fn inline_bytes(&self) -> usize {
        match self {
            Kind::Int | Kind::BigInt | Kind::Double => 8,
            Kind::Bool => 1,
            Kind::Enum(_) | Kind::Text | Kind::Table(_) => 4,
        }
    }
}
