//! seqcast: typed WebSocket publish/subscribe on io_uring, one thread per core.
//!
//! Every event a client gets carries that client's own sequence number; after any cut the client gets each
//! event exactly once and in order, or is told exactly what it missed.
//!
//! The modules in layer order; imports go to the left only:
//! `limits, config, metrics <- wire <- schema <- shard <- mesh, echo <- uring <- control <- server`;
//! `client` stands on `limits`, `wire` and `schema` alone. docs/ARCHITECTURE.md is the map.

pub mod config;
pub mod limits;
pub mod metrics;

pub mod wire;

pub mod schema;

pub mod shard;

pub mod mesh;

pub mod echo;

#[allow(unsafe_code)]
pub mod uring;

pub mod control;

pub mod client;

pub mod server;
