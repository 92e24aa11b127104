//! The client: its gate against the recorded traces, its session as stories, its sockets against a scripted server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod gate;
mod loopback;
mod session;
