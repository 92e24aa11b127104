//! The pure state machine of one core.

#![forbid(unsafe_code)]

pub mod admit;
pub mod handoff;
pub mod step;
