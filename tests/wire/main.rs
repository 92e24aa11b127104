//! The wire layer: handshake, frames, envelope, control messages.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod again;
mod control;
mod frames;
mod handshake;
mod oracle;
mod split;
mod support;
