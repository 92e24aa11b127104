//! The 14 bytes in front of every payload: version, event id, flags, sequence number (docs/PROTOCOL.md).

#![forbid(unsafe_code)]

/// Bytes of the envelope: version (1), id (4), flags (1), seq (8), little-endian.
pub const HEADER_BYTES: usize = 14;
/// The only envelope version there is.
pub const VERSION: u8 = 2;
/// Bit 0 of the flags: the sequence number is valid. The other bits are sent as 0 and ignored on receipt.
pub const FLAG_SEQ: u8 = 1;
/// Where the 9 bytes flags and seq begin; see [`stamp`].
pub const FLAGS_AT: usize = 5;

/// FNV-1a, 32 bits, of the UTF-8 bytes of an event name: the event's id.
pub const fn fnv1a32(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let mut hash = 0x811c_9dc5_u32;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    hash
}

/// A parsed envelope header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Event id: [`fnv1a32`] of its name.
    pub id: u32,
    /// As received, reserved bits included.
    pub flags: u8,
    /// Means something only with [`FLAG_SEQ`].
    pub seq: u64,
}

/// Reads the header of a message; none if it is shorter than [`HEADER_BYTES`] or of another version.
/// The payload is `&message[HEADER_BYTES..]`.
pub fn parse(message: &[u8]) -> Option<Header> {
    let (header, _) = message.split_first_chunk::<HEADER_BYTES>()?;
    let [version, i0, i1, i2, i3, flags, s0, s1, s2, s3, s4, s5, s6, s7] = *header;
    (version == VERSION).then_some(Header {
        id: u32::from_le_bytes([i0, i1, i2, i3]),
        flags,
        seq: u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
    })
}

/// Appends a header.
pub fn encode(out: &mut Vec<u8>, id: u32, flags: u8, seq: u64) {
    let mut header = [0; HEADER_BYTES];
    header[0] = VERSION;
    header[1..5].copy_from_slice(&id.to_le_bytes());
    header[5] = flags;
    header[6..].copy_from_slice(&seq.to_le_bytes());
    out.extend_from_slice(&header);
}

/// Writes an unsequenced header: flags and seq 0.
///
/// # Panics
/// If the slice is not [`HEADER_BYTES`] long.
pub fn write(header: &mut [u8], id: u32) {
    assert!(header.len() == HEADER_BYTES, "a header is 14 bytes");
    header.fill(0);
    header[0] = VERSION;
    header[1..5].copy_from_slice(&id.to_le_bytes());
}

/// Writes a valid sequence number over the 9 bytes of an envelope that begin at [`FLAGS_AT`].
///
/// # Panics
/// If the slice is not 9 bytes long.
pub fn stamp(flags_and_seq: &mut [u8], seq: u64) {
    assert!(flags_and_seq.len() == 9, "flags and seq are 9 bytes");
    flags_and_seq[0] = FLAG_SEQ;
    flags_and_seq[1..].copy_from_slice(&seq.to_le_bytes());
}

macro_rules! ids {
    ($($constant:ident $name:literal;)*) => {
        /// Ids of the control messages. Their names are reserved: no event of a schema may have one.
        pub mod id {
            $(#[doc = concat!("`", $name, "`")] pub const $constant: u32 = super::fnv1a32($name);)*
        }

        /// The name of a control message; none if the id is not one.
        pub const fn control_name(id: u32) -> Option<&'static str> {
            match id {
                $(id::$constant => Some($name),)*
                _ => None,
            }
        }
    };
}

ids! {
    HELLO "hello";
    WELCOME "welcome";
    SUBSCRIBE "subscribe";
    UNSUBSCRIBE "unsubscribe";
    JOIN_GROUP "joinGroup";
    LEAVE_GROUP "leaveGroup";
    SNAPSHOT_REQUEST "snapshotRequest";
    PING "ping";
    PONG "pong";
    RESUME "resume";
    RESUMED "resumed";
    RPC_CALL "rpcCall";
    RPC_RESULT "rpcResult";
}

/// True for the id of a control message.
pub const fn is_control(id: u32) -> bool {
    control_name(id).is_some()
}

const _: () = assert!(FLAGS_AT + 9 == HEADER_BYTES);
const _: () =
    assert!(fnv1a32("") == 0x811c_9dc5 && fnv1a32("a") == 0xe40c_292c && fnv1a32("foobar") == 0xbf9c_f968);
