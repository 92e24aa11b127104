//! Frames made by hand, so that broken ones can be made, and numbers that repeat.

use seqcast::wire::frame::{Bounds, Decoder, Item, Violation};

pub const BOUNDS: Bounds = Bounds { message_bytes: 65_536, message_frames: seqcast::limits::MESSAGE_FRAMES };

/// A frame with every bit chosen; by default a whole masked one.
#[derive(Clone)]
pub struct Frame {
    pub opcode: u8,
    pub fin: bool,
    pub reserved: u8,
    pub key: Option<[u8; 4]>,
    /// Length form: 7, 16 or 64 bits; none = the shortest.
    pub form: Option<u8>,
    /// Length said, if it is not that of the payload.
    pub length: Option<u64>,
    pub payload: Vec<u8>,
}

pub fn frame(opcode: u8, payload: impl Into<Vec<u8>>) -> Frame {
    let key = Some([0xA1, 0x5C, 0x00, 0xFF]);
    Frame { opcode, fin: true, reserved: 0, key, form: None, length: None, payload: payload.into() }
}

impl Frame {
    pub fn more(mut self) -> Self {
        self.fin = false;
        self
    }

    pub fn reserved(mut self, bits: u8) -> Self {
        self.reserved = bits;
        self
    }

    pub fn key(mut self, key: Option<[u8; 4]>) -> Self {
        self.key = key;
        self
    }

    pub fn form(mut self, bits: u8) -> Self {
        self.form = Some(bits);
        self
    }

    pub fn length(mut self, length: u64) -> Self {
        self.length = Some(length);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let length = self.length.unwrap_or(self.payload.len() as u64);
        let form = self.form.unwrap_or(match length {
            0..=125 => 7,
            126..=65_535 => 16,
            _ => 64,
        });
        let mask_bit = if self.key.is_some() { 0x80 } else { 0 };
        let mut out = vec![u8::from(self.fin) << 7 | self.reserved << 4 | self.opcode];
        match form {
            7 => out.push(mask_bit | length as u8),
            16 => {
                out.push(mask_bit | 126);
                out.extend((length as u16).to_be_bytes());
            }
            _ => {
                out.push(mask_bit | 127);
                out.extend(length.to_be_bytes());
            }
        }
        let key = self.key.unwrap_or_default();
        if self.key.is_some() {
            out.extend(key);
        }
        out.extend(self.payload.iter().zip(key.iter().cycle()).map(|(b, k)| b ^ k));
        out
    }
}

pub fn bytes(frames: &[Frame]) -> Vec<u8> {
    frames.iter().flat_map(Frame::bytes).collect()
}

/// An [`Item`] that outlives the decoder's next call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Got {
    Text(Vec<u8>),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
}

impl From<Item<'_>> for Got {
    fn from(item: Item<'_>) -> Got {
        match item {
            Item::Message { text: true, payload } => Got::Text(payload.into()),
            Item::Message { text: false, payload } => Got::Binary(payload.into()),
            Item::Ping(p) => Got::Ping(p.into()),
            Item::Pong(p) => Got::Pong(p.into()),
            Item::Close { code, reason } => Got::Close(code, reason.into()),
        }
    }
}

/// Feeds one piece; appends what comes out, up to and including a close frame.
pub fn feed(
    decoder: &mut Decoder,
    piece: &[u8],
    bounds: &Bounds,
    got: &mut Vec<Got>,
) -> Result<(), Violation> {
    let mut piece = piece.to_vec();
    let mut rest = &mut piece[..];
    while let Some(item) = decoder.next(&mut rest, bounds)? {
        got.push(item.into());
        if matches!(got.last(), Some(Got::Close(..))) {
            return Ok(());
        }
    }
    assert!(rest.is_empty(), "None means that all input is used up");
    Ok(())
}

/// What a fresh decoder makes of these pieces.
pub fn read(mut decoder: Decoder, pieces: &[&[u8]], bounds: &Bounds) -> (Vec<Got>, Option<Violation>) {
    let mut got = Vec::new();
    for piece in pieces {
        if let Err(violation) = feed(&mut decoder, piece, bounds, &mut got) {
            return (got, Some(violation));
        }
        if matches!(got.last(), Some(Got::Close(..))) {
            break;
        }
    }
    (got, None)
}

/// The server's view of a stream in one piece.
pub fn served(stream: &[u8]) -> (Vec<Got>, Option<u16>) {
    let (got, violation) = read(Decoder::default(), &[stream], &BOUNDS);
    (got, violation.map(|v| v.code))
}

/// Numbers that are the same for the same seed (SplitMix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}
