//! Threads that talk without locks: single-producer single-consumer rings, and a bell for whoever sleeps.
//!
//! Each ordered pair of threads has one ring, so what one thread tells another arrives in the order in which it
//! was told. Nobody waits for a ring: a full one is the sender's business at once. A thread that finds all its
//! rings empty says so, looks once more, and sleeps on its [`Bell`]; who puts something into a ring rings the bell
//! only if the flag is up, once for a whole batch.

#![forbid(unsafe_code)]

mod bell;
mod control;
mod cores;
mod flag;

use std::sync::atomic;

pub use bell::Bell;
pub use control::{Commands, ControlPort, CoreLink, CorePort, Notice, Notices, connect};
pub use cores::{Moving, Neighbours, Parcel};
