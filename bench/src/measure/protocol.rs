//! What is said to a server, in its own protocol: the smallest adapter that is fair to it.

use std::cell::OnceCell;

use clap::ValueEnum;
use seqcast::schema::Schema;
use seqcast::wire::control::{self, Encoder};
use seqcast::wire::envelope::{self, HEADER_BYTES};
use seqcast::wire::frame;

/// What a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// This repository's protocol.
    Seqcast,
    /// Binary messages passed on as they are: paths /sub, /pub, /echo.
    Plain,
    /// NATS in WebSocket messages.
    Nats,
    /// Engine.IO 4 and Socket.IO 5 as text.
    #[value(name = "socket.io")]
    SocketIo,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Subscriber,
    Publisher,
    Echo,
    Rpc,
}

/// What a message from a server is.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// An event: when it was due, its index, and its number where the connection has numbers of its own.
    Event {
        due: u64,
        index: u64,
        number: Option<u64>,
    },
    /// The connection is ready.
    Ready,
    /// This has to be answered at once.
    Answer(&'static [u8]),
    /// An answer to a request: what was asked.
    Result,
    /// An answer to a request: something else.
    Wrong,
    /// An answer to a request: no.
    Refused,
    Nothing,
}

/// Bytes of an event's fixed part in the plain layout: tag, number, time, index.
const PLAIN: usize = 30;
/// Id of each request: a connection has one at a time.
const CALL: &str = "1";
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// Makes and reads messages.
#[derive(Debug)]
pub struct Adapter {
    pub protocol: Protocol,
    /// Connections say who they are: `client-0` and so on.
    pub tokens: bool,
    /// An event, to be filled in; with its envelope where the protocol has one.
    template: Vec<u8>,
    /// Where index and time stand in it.
    index_at: usize,
    due_at: usize,
    quote: u32,
    /// The first right answer to a request, which was read with care; the same bytes again are as good.
    answer: OnceCell<Vec<u8>>,
}

impl Adapter {
    /// Events of so many bytes, all headers of the protocol included where it has binary ones.
    pub fn new(protocol: Protocol, size: usize, role: Role) -> Adapter {
        let name = if role == Role::Echo { "trade" } else { "quote" };
        let (template, index_at, due_at) = match protocol {
            Protocol::Seqcast => seqcast_event(name, size),
            _ => (vec![b'x'; size.max(PLAIN)], 22, 14),
        };
        Adapter {
            protocol,
            tokens: false,
            template,
            index_at,
            due_at,
            quote: envelope::fnv1a32(name),
            answer: OnceCell::new(),
        }
    }

    /// The path of the upgrade request.
    pub fn path(&self, role: Role) -> &'static str {
        match (self.protocol, role) {
            (Protocol::Seqcast, _) => "/ws",
            (Protocol::Nats, _) => "/",
            (Protocol::SocketIo, _) => "/socket.io/?EIO=4&transport=websocket",
            (Protocol::Plain, Role::Subscriber) => "/sub",
            (Protocol::Plain, Role::Publisher) => "/pub",
            (Protocol::Plain, Role::Echo | Role::Rpc) => "/echo",
        }
    }

    /// What a connection says first, as frames. Empty: it is ready when it is accepted.
    pub fn opening(&self, role: Role, topics: &[String]) -> Vec<u8> {
        let mut out = Vec::new();
        match self.protocol {
            Protocol::Plain => {}
            Protocol::Seqcast => {
                let mut encoder = Encoder::new();
                push(&mut out, frame::BINARY, encoder.hello(&[], 0));
                if role == Role::Subscriber {
                    topics.iter().for_each(|topic| push(&mut out, frame::BINARY, encoder.subscribe(topic)));
                }
                push(&mut out, frame::BINARY, encoder.ping(7));
            }
            Protocol::Nats => {
                push(&mut out, frame::BINARY, b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\n");
                if role == Role::Subscriber {
                    push(&mut out, frame::BINARY, b"SUB t 1\r\n");
                }
                push(&mut out, frame::BINARY, b"PING\r\n");
            }
            Protocol::SocketIo => push(&mut out, frame::TEXT, b"40"),
        }
        out
    }

    /// A hello that has everything up to a number.
    pub fn hello(&self, last_seq: i64) -> Vec<u8> {
        let mut out = Vec::new();
        push(&mut out, frame::BINARY, Encoder::new().hello(&[], last_seq));
        out
    }

    /// Appends an event as a frame.
    pub fn event(&mut self, out: &mut Vec<u8>, due: u64, index: u64, role: Role) {
        if self.protocol == Protocol::SocketIo {
            let name = if role == Role::Echo { 'e' } else { 'p' };
            let filler = "x".repeat(self.template.len().saturating_sub(32));
            return push(
                out,
                frame::TEXT,
                format!("42[\"{name}\",\"{due:016x}{index:016x}{filler}\"]").as_bytes(),
            );
        }
        self.template[self.index_at..self.index_at + 8].copy_from_slice(&index.to_le_bytes());
        self.template[self.due_at..self.due_at + 8].copy_from_slice(&due.to_le_bytes());
        match self.protocol {
            Protocol::Nats => {
                let mut message = format!("PUB t {}\r\n", self.template.len()).into_bytes();
                message.extend_from_slice(&self.template);
                message.extend_from_slice(b"\r\n");
                push(out, frame::BINARY, &message);
            }
            _ if role == Role::Rpc => {
                use base64::Engine;
                let question = base64::engine::general_purpose::STANDARD.encode(&self.template);
                push(out, frame::BINARY, Encoder::new().rpc_call(CALL, "quote", &question));
            }
            _ => push(out, frame::BINARY, &self.template),
        }
    }

    /// What a whole message says. `rest` holds what of a NATS message is still to come.
    #[inline]
    pub fn read(&self, message: &[u8], mut said: impl FnMut(Said)) {
        match self.protocol {
            Protocol::Seqcast => said(self.seqcast(message)),
            Protocol::Plain if message.len() >= PLAIN => {
                let number = message[6..14].try_into().map_or(0, u64::from_be_bytes);
                said(Said::Event { due: le(message, 14), index: le(message, 22), number: Some(number) });
            }
            Protocol::Plain => said(Said::Nothing),
            Protocol::SocketIo => said(socket_io(message)),
            Protocol::Nats => unreachable!("NATS is read as a stream"),
        }
    }

    #[inline]
    fn seqcast(&self, message: &[u8]) -> Said {
        let Some(header) = envelope::parse(message) else { return Said::Nothing };
        if header.id == self.quote && message.len() >= self.due_at.max(self.index_at) + 8 {
            let number = (header.flags & envelope::FLAG_SEQ != 0).then_some(header.seq);
            return Said::Event { due: le(message, self.due_at), index: le(message, self.index_at), number };
        }
        if self.answer.get().is_some_and(|answer| answer == message) {
            return Said::Result;
        }
        match control::decode(header.id, &message[HEADER_BYTES..]) {
            Ok(control::Control::Pong { .. }) => Said::Ready,
            Ok(control::Control::RpcResult { ok: true, id, payload_b64, .. }) => {
                if id != CALL || !self.is_event(payload_b64) {
                    return Said::Wrong;
                }
                self.answer.get_or_init(|| message.to_vec());
                Said::Result
            }
            Ok(control::Control::RpcResult { ok: false, .. }) => Said::Refused,
            _ => Said::Nothing,
        }
    }

    /// Whether an answer has the event that was asked with: all of it but the envelope, which is the server's.
    fn is_event(&self, answer: &str) -> bool {
        use base64::Engine;
        let Ok(event) = base64::engine::general_purpose::STANDARD.decode(answer) else { return false };
        envelope::parse(&event).is_some_and(|header| header.id == self.quote)
            && event[HEADER_BYTES..] == self.template[HEADER_BYTES..]
    }

    /// Reads as many NATS messages as are whole; how many bytes that were.
    #[inline]
    pub fn read_nats(bytes: &[u8], mut said: impl FnMut(Said)) -> usize {
        let mut done = 0;
        while let Some(end) = bytes[done..].iter().position(|byte| *byte == b'\n') {
            let line = bytes[done..done + end].strip_suffix(b"\r").unwrap_or(&bytes[done..done + end]);
            let body = done + end + 1;
            if line.starts_with(b"MSG ") {
                let digits = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
                let size =
                    digits.iter().fold(0, |sum, digit| sum * 10 + usize::from(digit.wrapping_sub(b'0')));
                if bytes.len() < body + size + 2 {
                    break;
                }
                let event = &bytes[body..body + size];
                if size >= PLAIN {
                    said(Said::Event { due: le(event, 14), index: le(event, 22), number: None });
                }
                done = body + size + 2;
            } else {
                match line {
                    b"PONG" => said(Said::Ready),
                    b"PING" => said(Said::Answer(b"PONG\r\n")),
                    _ => said(Said::Nothing),
                }
                done = body;
            }
        }
        done
    }
}

fn socket_io(message: &[u8]) -> Said {
    if let Some(text) = message.strip_prefix(b"42[\"m\",\"") {
        let number = |at: usize| {
            let digits = text.get(at..at + 16).and_then(|digits| std::str::from_utf8(digits).ok());
            digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
        };
        return Said::Event { due: number(0), index: number(16), number: None };
    }
    match message {
        b"2" => Said::Answer(b"3"),
        [b'4', b'0', ..] => Said::Ready,
        _ => Said::Nothing,
    }
}

#[inline]
fn le(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

fn push(out: &mut Vec<u8>, opcode: u8, message: &[u8]) {
    frame::push_masked_frame(out, opcode, MASK, message);
}

/// An event of the built-in schema with its envelope, as long as asked for if that is possible, and where its two
/// numbers stand: found by writing two that occur nowhere else.
fn seqcast_event(name: &str, size: usize) -> (Vec<u8>, usize, usize) {
    const INDEX: i64 = 0x1122_3344_5566_7788;
    const DUE: i64 = 0x0102_0304_0506_0708;
    let schema = Schema::builtin();
    let event = schema.by_name(name).expect("the built-in schema has it");
    let make = |symbol: usize| {
        let symbol = "x".repeat(symbol);
        let data = match name {
            "trade" => {
                serde_json::json!({"symbol": symbol, "price": 1.5, "volume": INDEX, "side": "sell", "ts": DUE})
            }
            _ => {
                serde_json::json!({"symbol": symbol, "bid": 1.5, "ask": 2.5, "bidSize": INDEX, "askSize": 1, "ts": DUE})
            }
        };
        let mut message = Vec::new();
        envelope::encode(&mut message, schema.id(event), 0, 0);
        schema.encode_json(event, &data, &mut message).expect("the data fits the schema");
        message
    };
    let mut symbol = size.saturating_sub(make(0).len());
    while symbol > 0 && make(symbol).len() > size {
        symbol -= 1;
    }
    let message = make(symbol);
    let find = |number: i64| {
        let bytes = number.to_le_bytes();
        message.windows(8).position(|window| window == bytes).expect("the number was written")
    };
    let (index_at, due_at) = (find(INDEX), find(DUE));
    (message, index_at, due_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message inside a masked frame.
    fn unmasked(framed: &[u8]) -> Vec<u8> {
        let header = match framed[1] & 127 {
            126 => 4,
            _ => 2,
        };
        let mut message = framed[header + 4..].to_vec();
        frame_mask(&mut message);
        message
    }

    fn frame_mask(message: &mut [u8]) {
        message.iter_mut().enumerate().for_each(|(at, byte)| *byte ^= MASK[at & 3]);
    }

    #[test]
    fn events_are_read_as_they_were_written() {
        for protocol in [Protocol::Seqcast, Protocol::Plain] {
            let mut adapter = Adapter::new(protocol, 128, Role::Publisher);
            let mut framed = Vec::new();
            adapter.event(&mut framed, 77, 5, Role::Publisher);
            let message = unmasked(&framed);
            assert!((120..=128).contains(&message.len()), "{protocol:?}: {} bytes", message.len());
            let mut got = Vec::new();
            adapter.read(&message, |said| got.push(said));
            assert!(matches!(got[..], [Said::Event { due: 77, index: 5, .. }]), "{got:?}");
        }
        let mut adapter = Adapter::new(Protocol::SocketIo, 100, Role::Publisher);
        let mut framed = Vec::new();
        adapter.event(&mut framed, 77, 5, Role::Publisher);
        let message = String::from_utf8(unmasked(&framed)).expect("text").replace("42[\"p\"", "42[\"m\"");
        assert_eq!(socket_io(message.as_bytes()), Said::Event { due: 77, index: 5, number: None });
    }

    #[test]
    fn an_answer_to_a_request_is_held_against_the_question() {
        use base64::Engine;
        let mut adapter = Adapter::new(Protocol::Seqcast, 128, Role::Rpc);
        adapter.event(&mut Vec::new(), 77, 5, Role::Rpc);
        let said = |adapter: &Adapter, id: &str, ok: bool, event: &[u8]| {
            let event = base64::engine::general_purpose::STANDARD.encode(event);
            let mut got = Said::Nothing;
            adapter.read(Encoder::new().rpc_result(id, ok, "", &event), |said| got = said);
            got
        };
        let right = adapter.template.clone();
        let mut wrong = right.clone();
        wrong[adapter.index_at] ^= 1;
        for _ in 0..2 {
            assert_eq!(said(&adapter, CALL, true, &right), Said::Result);
            assert_eq!(said(&adapter, CALL, true, &wrong), Said::Wrong);
            assert_eq!(said(&adapter, "2", true, &right), Said::Wrong);
            assert_eq!(said(&adapter, CALL, true, b"short"), Said::Wrong);
            assert_eq!(said(&adapter, CALL, false, b""), Said::Refused);
        }
    }

    #[test]
    fn nats_is_read_over_any_cut() {
        let mut event = vec![b'x'; PLAIN];
        event[14..22].copy_from_slice(&9_u64.to_le_bytes());
        event[22..30].copy_from_slice(&3_u64.to_le_bytes());
        let stream = [b"PING\r\nMSG t 1 30\r\n".as_slice(), &event, b"\r\n"].concat();
        for cut in 0..stream.len() {
            let mut got = Vec::new();
            let done = Adapter::read_nats(&stream[..cut], |said| got.push(said));
            assert_eq!(done, if cut < 6 { 0 } else { 6 }, "cut at {cut}");
        }
        let mut got = Vec::new();
        assert_eq!(Adapter::read_nats(&stream, |said| got.push(said)), stream.len());
        let event = Said::Event { due: 9, index: 3, number: None };
        assert_eq!(got, [Said::Answer(b"PONG\r\n"), event]);
    }
}
