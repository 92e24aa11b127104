//! The Rust client.

#![forbid(unsafe_code)]

pub mod gate;
