//! Events by schema: the vectors of the protocol, values, schema files, hostile payloads.
#![allow(clippy::unwrap_used)]

mod files;
mod hostile;
mod input;
mod random;
mod values;
mod vectors;
