//! Stories of one core, told to the shard without sockets, and what its clients see.

#![allow(clippy::unwrap_used)]

mod bounds;
mod cores;
mod drain;
mod hello;
mod hostile;
mod policy;
mod restart;
mod rig;
mod rooms;
