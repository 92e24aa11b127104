//! The schema that is used when none is configured; a schema file like any other.

/// The six built-in events.
pub(super) const JSON: &str = include_str!("builtin.json");
