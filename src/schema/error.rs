//! What can be wrong with a schema file, with JSON data, with a payload; each error says where and what to
//! do.

use std::error::Error;
use std::fmt;

/// A schema that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaError {
    /// As given to [`Schema::from_json`](super::Schema::from_json).
    pub file: Option<String>,
    /// The event, if one is to blame.
    pub event: Option<String>,
    /// Path of the field within the event, such as `positions[].price`.
    pub field: Option<String>,
    /// What is wrong and what to do.
    pub what: String,
}

impl SchemaError {
    pub(super) fn new(what: impl Into<String>) -> SchemaError {
        SchemaError { file: None, event: None, field: None, what: what.into() }
    }

    pub(super) fn in_file(self, file: &str) -> SchemaError {
        SchemaError { file: Some(file.into()), ..self }
    }

    pub(super) fn in_event(self, event: &str) -> SchemaError {
        SchemaError { event: Some(event.into()), ..self }
    }

    /// Puts one step in front of the field's path.
    pub(super) fn in_field(self, step: &str) -> SchemaError {
        SchemaError { field: Some(join(step, &self.field.unwrap_or_default())), ..self }
    }
}

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        match (&self.event, &self.field) {
            (Some(event), Some(field)) => write!(f, "event {event:?}, field {field:?}: ")?,
            (Some(event), None) => write!(f, "event {event:?}: ")?,
            _ => {}
        }
        f.write_str(&self.what)
    }
}

impl Error for SchemaError {}

/// JSON data that does not fit its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataError {
    /// Path of the field, such as `positions[3].avgPrice`; empty for the whole data.
    pub field: String,
    /// What was expected and what was found.
    pub what: String,
}

impl DataError {
    pub(super) fn new(what: impl Into<String>) -> DataError {
        DataError { field: String::new(), what: what.into() }
    }

    pub(super) fn in_field(self, name: &str) -> DataError {
        DataError { field: join(name, &self.field), ..self }
    }

    pub(super) fn in_element(self, index: usize) -> DataError {
        self.in_field(&format!("[{index}]"))
    }
}

/// `a` and `b` are `a.b`, `a` and `[3]` are `a[3]`.
fn join(step: &str, rest: &str) -> String {
    let dot = if rest.is_empty() || rest.starts_with('[') { "" } else { "." };
    format!("{step}{dot}{rest}")
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.field {
            "" => write!(f, "data: {}", self.what),
            field => write!(f, "field {field:?}: {}", self.what),
        }
    }
}

impl Error for DataError {}

/// A payload that cannot be read. Positions count bytes from the payload's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Something that begins here ends behind the payload.
    OutOfRange {
        /// Where.
        at: usize,
    },
    /// A value lies where its size does not allow it.
    Unaligned {
        /// Where.
        at: usize,
    },
    /// A vtable has an impossible size or place.
    Vtable {
        /// Where the table is.
        at: usize,
    },
    /// A text does not end with NUL.
    NoNul {
        /// Where the text is.
        at: usize,
    },
    /// A text is not UTF-8.
    NotUtf8 {
        /// Where the text is.
        at: usize,
    },
    /// Offsets point so often at the same bytes that reading costs more than
    /// [`PAYLOAD_VISITS`](crate::limits::PAYLOAD_VISITS) allows.
    TooCostly,
    /// The event has no model, so its payload cannot be decoded.
    NoModel,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::OutOfRange { at } => write!(f, "payload ends before what begins at byte {at}"),
            Malformed::Unaligned { at } => write!(f, "payload has an unaligned value at byte {at}"),
            Malformed::Vtable { at } => write!(f, "payload has a table with an invalid vtable at byte {at}"),
            Malformed::NoNul { at } => write!(f, "payload has a text without NUL at byte {at}"),
            Malformed::NotUtf8 { at } => write!(f, "payload has a text that is not UTF-8 at byte {at}"),
            Malformed::TooCostly => f.write_str("payload refers to the same bytes too often; repeat them"),
            Malformed::NoModel => {
                f.write_str("the schema has only the name of this event; add it to the schema file")
            }
        }
    }
}

impl Error for Malformed {}
