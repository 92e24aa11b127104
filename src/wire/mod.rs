//! What travels: HTTP upgrade, RFC 6455 frames, the envelope, control messages. Bytes in, values out; no I/O.
//!
//! | module | turns | into |
//! | --- | --- | --- |
//! | [`handshake`] | request heads | a [`handshake::Request`], and answers into bytes |
//! | [`frame`] | bytes of an upgraded connection | messages and control frames, and back |
//! | [`envelope`] | a message | event id, flags, sequence number, payload |
//! | [`control`] | the payload of a control message | a [`control::Control`], and back |
//!
//! Every file here forbids `unsafe` but the one that flatc writes, which is read only behind its verifier.

pub mod control;
pub mod envelope;
pub mod frame;
pub mod handshake;

#[rustfmt::skip]
#[allow(
    unsafe_code, missing_docs, missing_debug_implementations, dead_code, clippy::all, clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block,
    reason = "written by flatc; scripts/generate-control.sh"
)]
mod control_generated;
