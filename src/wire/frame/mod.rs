//! RFC 6455 frames: what both directions share. [`Decoder`] reads them, the `push_*` functions write them.

#![forbid(unsafe_code)]

mod decode;
mod mask;
mod write;

pub use decode::Decoder;
pub use mask::mask;
pub use write::{frame_len, header_len, push_close, push_frame, push_masked_frame, write_header};

/// Opcode of a frame that continues a message.
pub const CONT: u8 = 0x0;
/// Opcode of a text message.
pub const TEXT: u8 = 0x1;
/// Opcode of a binary message.
pub const BINARY: u8 = 0x2;
/// Opcode of a close frame.
pub const CLOSE: u8 = 0x8;
/// Opcode of a ping.
pub const PING: u8 = 0x9;
/// Opcode of a pong.
pub const PONG: u8 = 0xA;

/// Which end reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Frames must be masked.
    #[default]
    Server,
    /// Frames must not be masked.
    Client,
}

/// What is configured about inbound messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Longest message, bytes after reassembly. More is close code 1009.
    pub message_bytes: u64,
    /// Most frames of one message, at least 1. More is close code 1008.
    pub message_frames: u32,
}

/// What a decoder hands out. The bytes live until the decoder is called again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A whole data message.
    Message {
        /// True: text, and valid UTF-8.
        text: bool,
        /// Unmasked, reassembled.
        payload: &'a [u8],
    },
    /// A ping, to be answered with a pong of the same payload; at most 125 bytes.
    Ping(&'a [u8]),
    /// A pong; at most 125 bytes.
    Pong(&'a [u8]),
    /// A close frame; what follows it is not to be read (RFC 6455 5.5.1).
    Close {
        /// None: the frame was empty.
        code: Option<u16>,
        /// At most 123 bytes.
        reason: &'a str,
    },
}

/// Why the connection must be closed; the decoder is of no use afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// Close code to send: 1002, 1007, 1008 or 1009.
    pub code: u16,
    /// Close reason to send.
    pub reason: &'static str,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.reason, self.code)
    }
}

impl std::error::Error for Violation {}

/// A close code that may be on the wire (RFC 6455 7.4 and the IANA registry: 1012 to 1014 came later).
pub(crate) const fn is_close_code(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}
