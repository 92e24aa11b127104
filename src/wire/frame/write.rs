//! Frames into bytes. A server's frames are not masked and never fragmented.

#![forbid(unsafe_code)]

use super::{CLOSE, is_close_code, mask};

const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;

/// Length of the header of an unmasked frame: 2, 4 or 10.
pub fn header_len(payload: usize) -> usize {
    match payload {
        0..=125 => 2,
        126..=0xFFFF => 4,
        _ => 10,
    }
}

/// Writes the header of an unmasked, unfragmented frame; returns its length, as [`header_len`].
pub fn write_header(out: &mut [u8; 10], opcode: u8, len: usize) -> usize {
    out[0] = FIN | opcode;
    match len {
        0..=125 => {
            out[1] = len as u8;
            2
        }
        126..=0xFFFF => {
            out[1] = 126;
            out[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            4
        }
        _ => {
            out[1] = 127;
            out[2..].copy_from_slice(&(len as u64).to_be_bytes());
            10
        }
    }
}

/// Appends a server's frame.
pub fn push_frame(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    let mut header = [0; 10];
    let n = write_header(&mut header, opcode, payload.len());
    out.extend_from_slice(&header[..n]);
    out.extend_from_slice(payload);
}

/// Appends a server's close frame. Without a code the frame is empty and the reason is left out; a reason
/// longer than 123 bytes is cut at a character.
///
/// # Panics
/// In debug builds, if the code may not be sent (1005, 1006, 1015, ...).
pub fn push_close(out: &mut Vec<u8>, code: Option<u16>, reason: &str) {
    let Some(code) = code else { return push_frame(out, CLOSE, &[]) };
    debug_assert!(is_close_code(code), "close code {code} must not be on the wire");
    let reason = &reason.as_bytes()[..reason.floor_char_boundary(123)];
    let mut payload = [0; 125];
    payload[..2].copy_from_slice(&code.to_be_bytes());
    payload[2..2 + reason.len()].copy_from_slice(reason);
    push_frame(out, CLOSE, &payload[..2 + reason.len()]);
}

/// Appends a client's frame. The key must be unpredictable for anyone who chooses payloads (RFC 6455 5.3).
pub fn push_masked_frame(out: &mut Vec<u8>, opcode: u8, key: [u8; 4], payload: &[u8]) {
    let mut header = [0; 10];
    let n = write_header(&mut header, opcode, payload.len());
    header[1] |= MASKED;
    out.extend_from_slice(&header[..n]);
    out.extend_from_slice(&key);
    let start = out.len();
    out.extend_from_slice(payload);
    mask(&mut out[start..], key);
}

/// Length, header included, of the unmasked frame that begins at `bytes[0]`; none if its header is
/// incomplete.
pub fn frame_len(bytes: &[u8]) -> Option<usize> {
    let len = match bytes.get(1)? & 0x7F {
        126 => usize::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?)),
        127 => usize::try_from(u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?)).ok()?,
        short => usize::from(short),
    };
    len.checked_add(header_len(len))
}
