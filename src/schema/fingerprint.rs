//! One number for a whole schema, so that two programs can tell whether they were made from the same one.
//!
//! The recipe: events in order of their names' bytes, each as its name, then its table. A name is its length
//! in bytes, `:` and the name. A table is `{`, its fields in slot order, `}`. A field is its name, `?` if
//! optional, `*` if a vector, then its type: `i` integer, `I` exact integer, `d` double, `b` flag, `t` text,
//! `e(` with the members' names and `)`, or a table. The value is FNV-1a, 32 bits, of the UTF-8 bytes of all
//! that.

use std::fmt::Write;

use crate::wire::envelope::fnv1a32;

use super::model::{Event, Kind, Shape, Table};

/// The fingerprint of the events that have a model.
pub(super) fn of(events: &[Event]) -> u32 {
    let mut sorted: Vec<_> = events.iter().filter_map(|e| Some((&*e.name, e.table.as_ref()?))).collect();
    sorted.sort_unstable_by_key(|(name, _)| *name);
    let mut text = String::new();
    for (event, content) in sorted {
        name(&mut text, event);
        table(&mut text, content);
    }
    fnv1a32(&text)
}

fn name(text: &mut String, name: &str) {
    write!(text, "{}:{name}", name.len()).expect("a String takes everything");
}

fn table(text: &mut String, table: &Table) {
    text.push('{');
    for field in &table.fields {
        name(text, &field.name);
        text.push_str(if field.optional { "?" } else { "" });
        text.push_str(if field.shape == Shape::Vector { "*" } else { "" });
        kind(text, &field.kind);
    }
    text.push('}');
}

fn kind(text: &mut String, kind: &Kind) {
    match kind {
        Kind::Int => text.push('i'),
        Kind::BigInt => text.push('I'),
        Kind::Double => text.push('d'),
        Kind::Bool => text.push('b'),
        Kind::Text => text.push('t'),
        Kind::Enum(members) => {
            text.push_str("e(");
            members.iter().for_each(|member| name(text, member));
            text.push(')');
        }
        Kind::Table(content) => table(text, content),
    }
}
