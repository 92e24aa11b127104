//! Bytes into messages, wherever they are cut. A message that arrives whole is handed out where it lies.

#![forbid(unsafe_code)]

use super::{BINARY, Bounds, CLOSE, CONT, Item, PING, PONG, Role, TEXT, Violation, is_close_code, mask};
use crate::limits;

/// Reads the frames of one connection. It owns memory only while a frame or message is unfinished.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The unmasked beginning of a data message; behind it `partial` bytes of an unfinished header or control
    /// frame.
    held: Vec<u8>,
    /// Payload bytes of the present frame that are still to come.
    left: u64,
    /// Mask of the present frame, turned so that it fits the next byte.
    key: [u8; 4],
    /// Frames of the present data message; 0 = none has begun.
    frames: u32,
    partial: u8,
    /// Bytes at the end of a text message so far that may become a character.
    undecided: u8,
    opcode: u8,
    fin: bool,
    text: bool,
    stage: Stage,
    handed_out: HandedOut,
    role: Role,
}

/// What the next byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    Header,
    Data,
    Control,
}

/// What the last item borrowed of `held`; forgotten with the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum HandedOut {
    #[default]
    Nothing,
    Partial,
    Everything,
}

/// A frame header as received.
struct Header {
    opcode: u8,
    fin: bool,
    payload: u64,
    key: [u8; 4],
    bytes: usize,
}

/// How reading on ended.
enum Progress<'b> {
    /// The input is used up.
    Starved,
    /// A frame within a message is complete.
    Continue,
    /// A message or control frame lies in the input.
    InPlace(&'b [u8]),
    /// A message or control frame lies in `held`.
    Held,
}

const fn protocol(reason: &'static str) -> Violation {
    Violation { code: 1002, reason }
}

const BAD_UTF8: Violation = Violation { code: 1007, reason: "text is not valid UTF-8" };
const TOO_BIG: Violation = Violation { code: 1009, reason: "message too big" };
const TOO_MANY_FRAMES: Violation = Violation { code: 1008, reason: "message has too many frames" };

/// First byte of a binary message in one frame.
const FIN_BINARY: u8 = 0x80 | BINARY;
/// Longest header of a masked frame.
const HEADER_MAX: usize = 14;

const _: () = assert!(size_of::<Decoder>() <= 48);
const _: () = assert!(limits::CONTROL_FRAME_BYTES < 126 && limits::CONTROL_FRAME_BYTES >= HEADER_MAX);

impl Decoder {
    /// A decoder for this end of the connection.
    pub fn new(role: Role) -> Self {
        Decoder { role, ..Decoder::default() }
    }

    /// Bytes of memory that an unfinished frame or message takes: at most twice of what has arrived of it.
    pub fn buffered(&self) -> usize {
        self.held.capacity()
    }

    /// True while a data message has begun and not ended.
    pub fn is_unfinished(&self) -> bool {
        self.frames > 0
    }

    /// Between messages, with nothing received or handed out: as good as a new one for the server's end.
    pub fn is_idle(&self) -> bool {
        let is_at_header = self.stage == Stage::Header && self.partial == 0 && self.frames == 0;
        is_at_header && self.undecided == 0 && self.held.capacity() == 0 && self.role == Role::Server
    }

    /// Reads on from the front of `input` until an item is complete; none: all of `input` is used up.
    /// Call it until it returns none: what the last item took is given back then.
    ///
    /// # Errors
    /// The peer broke RFC 6455, or a bound. Size is judged by the header, before memory is taken.
    pub fn next<'s, 'b: 's>(
        &'s mut self,
        input: &mut &'b mut [u8],
        bounds: &Bounds,
    ) -> Result<Option<Item<'s>>, Violation> {
        self.forget_handed_out();
        if let Some(payload) = self.read_short(input, bounds) {
            return Ok(Some(Item::Message { text: false, payload }));
        }
        loop {
            let progress = match self.stage {
                Stage::Header => self.read_header(input, bounds)?,
                Stage::Data => self.read_data(input, bounds)?,
                Stage::Control => self.read_control(input),
            };
            match progress {
                Progress::Starved => return Ok(None),
                Progress::Continue => (),
                Progress::InPlace(bytes) => return self.item(bytes).map(Some),
                Progress::Held => {
                    let from = if self.handed_out == HandedOut::Partial { self.message_len() } else { 0 };
                    return self.item(&self.held[from..]).map(Some);
                }
            }
        }
    }

    fn message_len(&self) -> usize {
        self.held.len() - usize::from(self.partial)
    }

    fn forget_handed_out(&mut self) {
        match std::mem::take(&mut self.handed_out) {
            HandedOut::Nothing => (),
            HandedOut::Partial => self.drop_partial(),
            HandedOut::Everything => self.held = Vec::new(),
        }
    }

    fn drop_partial(&mut self) {
        self.held.truncate(self.message_len());
        self.partial = 0;
        if self.held.is_empty() {
            self.held = Vec::new();
        }
    }

    /// Keeps bytes of an unfinished header or control frame.
    fn hold_partial(&mut self, bytes: &[u8]) {
        self.held.reserve_exact(bytes.len());
        self.held.extend_from_slice(bytes);
        self.partial += bytes.len() as u8; // at most CONTROL_FRAME_BYTES together
    }

    /// The usual case, decided by two bytes: a whole binary message of at most 125 bytes, with nothing
    /// unfinished before it. What it leaves alone takes the long way, which comes to the same.
    fn read_short<'b>(&self, input: &mut &'b mut [u8], bounds: &Bounds) -> Option<&'b [u8]> {
        let [FIN_BINARY, second, ..] = **input else { return None };
        let (masked, header_bytes) = match self.role {
            Role::Server => (0x80, 6),
            Role::Client => (0, 2),
        };
        let len = usize::from(second ^ masked);
        let is_short = len <= 125 && len as u64 <= bounds.message_bytes;
        let is_idle = self.stage == Stage::Header && self.partial == 0 && self.frames == 0;
        if !is_short || !is_idle || input.len() < header_bytes + len {
            return None;
        }
        let (header, payload) = take(input, header_bytes + len).split_at_mut(header_bytes);
        if let Some(key) = header[2..].first_chunk() {
            mask(payload, *key);
        }
        Some(payload)
    }

    fn read_header<'b>(
        &mut self,
        input: &mut &'b mut [u8],
        bounds: &Bounds,
    ) -> Result<Progress<'b>, Violation> {
        if input.is_empty() {
            return Ok(Progress::Starved);
        }
        let had = usize::from(self.partial);
        let header = if had == 0 {
            self.parse_header(input, bounds)?
        } else {
            let mut bytes = [0; HEADER_MAX];
            let fresh = input.len().min(HEADER_MAX - had);
            bytes[..had].copy_from_slice(&self.held[self.message_len()..]);
            bytes[had..had + fresh].copy_from_slice(&input[..fresh]);
            self.parse_header(&bytes[..had + fresh], bounds)?
        };
        let Some(header) = header else {
            self.hold_partial(take(input, usize::MAX));
            return Ok(Progress::Starved);
        };
        if had > 0 {
            self.drop_partial();
        }
        take(input, header.bytes - had);
        self.begin(&header);
        Ok(Progress::Continue)
    }

    /// Reads a header and judges as much of it as is there. None: incomplete.
    fn parse_header(&self, bytes: &[u8], bounds: &Bounds) -> Result<Option<Header>, Violation> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        let (fin, opcode) = (first & 0x80 != 0, first & 0x0F);
        if first & 0x70 != 0 {
            return Err(protocol("reserved bits are set"));
        }
        match opcode {
            CONT if self.frames == 0 => return Err(protocol("continuation without a message")),
            TEXT | BINARY if self.frames > 0 => return Err(protocol("new message within a message")),
            CONT | TEXT | BINARY => (),
            CLOSE | PING | PONG if !fin => return Err(protocol("fragmented control frame")),
            CLOSE | PING | PONG => (),
            _ => return Err(protocol("reserved opcode")),
        }
        let Some(&second) = bytes.get(1) else { return Ok(None) };
        match (self.role, second & 0x80 != 0) {
            (Role::Server, false) => return Err(protocol("frame is not masked")),
            (Role::Client, true) => return Err(protocol("frame is masked")),
            _ => (),
        }
        if opcode >= CLOSE && usize::from(second & 0x7F) > limits::CONTROL_FRAME_BYTES {
            return Err(protocol("control frame is longer than 125 bytes"));
        }
        let Some((payload, at)) = payload_len(bytes)? else { return Ok(None) };
        if opcode < CLOSE {
            if self.frames >= bounds.message_frames {
                return Err(TOO_MANY_FRAMES);
            }
            if (self.message_len() as u64).saturating_add(payload) > bounds.message_bytes {
                return Err(TOO_BIG);
            }
        }
        let (key, bytes) = match self.role {
            Role::Client => ([0; 4], at),
            Role::Server => match bytes[at..].first_chunk() {
                Some(key) => (*key, at + 4),
                None => return Ok(None),
            },
        };
        Ok(Some(Header { opcode, fin, payload, key, bytes }))
    }

    fn begin(&mut self, header: &Header) {
        self.left = header.payload;
        self.key = header.key;
        self.opcode = header.opcode;
        if header.opcode >= CLOSE {
            self.stage = Stage::Control;
            return;
        }
        self.stage = Stage::Data;
        self.fin = header.fin;
        self.frames += 1;
        if header.opcode != CONT {
            self.text = header.opcode == TEXT;
        }
    }

    /// Takes what there is of the present frame's payload, unmasked.
    fn take_payload<'b>(&mut self, input: &mut &'b mut [u8]) -> &'b [u8] {
        let chunk = take(input, usize::try_from(self.left).unwrap_or(usize::MAX));
        if self.role == Role::Server {
            mask(chunk, self.key);
            let turned = u32::from_be_bytes(self.key).rotate_left(8 * (chunk.len() % 4) as u32);
            self.key = turned.to_be_bytes();
        }
        self.left -= chunk.len() as u64;
        chunk
    }

    fn read_data<'b>(
        &mut self,
        input: &mut &'b mut [u8],
        bounds: &Bounds,
    ) -> Result<Progress<'b>, Violation> {
        let chunk = self.take_payload(input);
        let ended = self.left == 0 && self.fin;
        if ended && self.held.is_empty() {
            if self.text && std::str::from_utf8(chunk).is_err() {
                return Err(BAD_UTF8);
            }
            self.end_message();
            return Ok(Progress::InPlace(chunk));
        }
        self.hold_data(chunk, bounds);
        if self.text {
            self.check_text(chunk.len())?;
        }
        if ended {
            if self.undecided > 0 {
                return Err(BAD_UTF8);
            }
            self.end_message();
            self.handed_out = HandedOut::Everything;
            return Ok(Progress::Held);
        }
        if self.left > 0 {
            return Ok(Progress::Starved);
        }
        self.stage = Stage::Header;
        Ok(Progress::Continue)
    }

    /// `text` stays: the item is made afterwards.
    fn end_message(&mut self) {
        self.stage = Stage::Header;
        self.frames = 0;
    }

    /// Memory doubles as bytes arrive, up to what the message can still become.
    fn hold_data(&mut self, chunk: &[u8], bounds: &Bounds) {
        let needed = self.held.len() + chunk.len();
        if needed > self.held.capacity() {
            let most = if self.fin { needed as u64 + self.left } else { bounds.message_bytes };
            let doubled = (self.held.capacity() * 2).min(usize::try_from(most).unwrap_or(usize::MAX));
            self.held.reserve_exact(needed.max(doubled) - self.held.len());
        }
        self.held.extend_from_slice(chunk);
    }

    /// Validates the last `fresh` bytes of the message, and what was undecided before them.
    fn check_text(&mut self, fresh: usize) -> Result<(), Violation> {
        let from = self.held.len() - fresh - usize::from(self.undecided);
        let bytes = &self.held[from..];
        self.undecided = match std::str::from_utf8(bytes) {
            Ok(_) => 0,
            Err(e) if e.error_len().is_none() => (bytes.len() - e.valid_up_to()) as u8,
            Err(_) => return Err(BAD_UTF8),
        };
        Ok(())
    }

    fn read_control<'b>(&mut self, input: &mut &'b mut [u8]) -> Progress<'b> {
        let chunk = self.take_payload(input);
        if self.left == 0 {
            self.stage = Stage::Header;
            if self.partial == 0 {
                return Progress::InPlace(chunk);
            }
        }
        self.hold_partial(chunk);
        if self.left > 0 {
            return Progress::Starved;
        }
        self.handed_out = HandedOut::Partial;
        Progress::Held
    }

    fn item<'a>(&self, payload: &'a [u8]) -> Result<Item<'a>, Violation> {
        match self.opcode {
            PING => Ok(Item::Ping(payload)),
            PONG => Ok(Item::Pong(payload)),
            CLOSE => close(payload),
            _ => Ok(Item::Message { text: self.text, payload }),
        }
    }
}

/// Splits up to `n` bytes off the front.
fn take<'b>(input: &mut &'b mut [u8], n: usize) -> &'b mut [u8] {
    let whole = std::mem::take(input);
    let (front, rest) = whole.split_at_mut(n.min(whole.len()));
    *input = rest;
    front
}

/// Payload length and where it ends (RFC 6455 5.2); none: incomplete.
fn payload_len(bytes: &[u8]) -> Result<Option<(u64, usize)>, Violation> {
    let (len, at, least) = match bytes[1] & 0x7F {
        126 => match bytes[2..].first_chunk() {
            Some(len) => (u64::from(u16::from_be_bytes(*len)), 4, 126),
            None => return Ok(None),
        },
        127 => match bytes[2..].first_chunk() {
            Some(len) => (u64::from_be_bytes(*len), 10, 0x1_0000),
            None => return Ok(None),
        },
        short => (u64::from(short), 2, 0),
    };
    if len >> 63 != 0 {
        return Err(protocol("length has its top bit set"));
    }
    if len < least {
        return Err(protocol("length is not in its shortest form"));
    }
    Ok(Some((len, at)))
}

/// Payload of a close frame (RFC 6455 5.5.1, 7.4).
fn close(payload: &[u8]) -> Result<Item<'_>, Violation> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return match payload {
            [] => Ok(Item::Close { code: None, reason: "" }),
            _ => Err(protocol("close code is one byte")),
        };
    };
    let code = u16::from_be_bytes(*code);
    if !is_close_code(code) {
        return Err(protocol("close code is not allowed"));
    }
    match std::str::from_utf8(reason) {
        Ok(reason) => Ok(Item::Close { code: Some(code), reason }),
        Err(_) => Err(Violation { code: 1007, reason: "close reason is not valid UTF-8" }),
    }
}
