//! tungstenite reads the same streams and must come to the same verdict.

use std::io::{self, Read, Write};

use seqcast::wire::frame::*;
use tungstenite::error::{Error, ProtocolError};
use tungstenite::protocol::{self, Message, WebSocket, WebSocketConfig};

use crate::support::*;

const LIMIT: usize = 2000;

/// What tungstenite makes of the stream, in our words.
fn oracle(role: protocol::Role, stream: &[u8]) -> (Vec<Got>, Option<u16>) {
    let config = WebSocketConfig::default().max_message_size(Some(LIMIT)).max_frame_size(None);
    let mut socket = WebSocket::from_raw_socket(Wire(stream), role, Some(config));
    let mut got = Vec::new();
    loop {
        got.push(match socket.read() {
            Ok(Message::Text(text)) => Got::Text(text.as_bytes().into()),
            Ok(Message::Binary(data)) => Got::Binary(data.into()),
            Ok(Message::Ping(data)) => Got::Ping(data.into()),
            Ok(Message::Pong(data)) => Got::Pong(data.into()),
            Ok(Message::Close(frame)) => {
                // It replaces a close frame with a forbidden code by one of its own; for us that is a
                // violation.
                return match frame {
                    Some(f) if f.reason.as_str() == "Protocol violation" => (got, Some(1002)),
                    Some(f) => (push(got, Got::Close(Some(f.code.into()), f.reason.to_string())), None),
                    None => (push(got, Got::Close(None, String::new())), None),
                };
            }
            Ok(Message::Frame(_)) => unreachable!("only written, never read"),
            Err(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => return (got, None),
            Err(Error::Protocol(_)) => return (got, Some(1002)),
            Err(Error::Utf8(_)) => return (got, Some(1007)),
            Err(Error::Capacity(_)) => return (got, Some(1009)),
            Err(other) => panic!("{other}"),
        });
    }
}

fn push(mut got: Vec<Got>, item: Got) -> Vec<Got> {
    got.push(item);
    got
}

/// The read half gives the stream, the write half swallows.
struct Wire<'a>(&'a [u8]);

impl Read for Wire<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whole frames, mostly right; text is cut anywhere, and now and then one rule is broken.
fn stream(numbers: &mut Numbers, masked: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut text = None;
    for _ in 0..1 + numbers.below(12) {
        let mut f = match numbers.below(10) {
            0 => frame(PING, numbers.next().to_string()),
            1 => frame(PONG, vec![b'p'; numbers.below(126) as usize]),
            2 if numbers.below(4) == 0 => close_frame(numbers),
            _ => data_frame(numbers, &mut text),
        };
        f.key = masked.then(|| (numbers.next() as u32).to_be_bytes());
        if numbers.below(25) == 0 {
            break_a_rule(numbers, &mut f, masked);
        }
        out.extend(f.bytes());
    }
    out
}

fn close_frame(numbers: &mut Numbers) -> Frame {
    let code = *numbers
        .pick(&[0_u16, 999, 1000, 1001, 1004, 1005, 1006, 1011, 1013, 1015, 1016, 2999, 3000, 4999, 5000]);
    let reason = *numbers.pick(&["", "gone", "ünder"]);
    match numbers.below(4) {
        0 => frame(CLOSE, ""),
        _ => frame(CLOSE, [&code.to_be_bytes()[..], reason.as_bytes()].concat()),
    }
}

/// Begins or continues a message; `text` is the rest of the present message.
fn data_frame(numbers: &mut Numbers, present: &mut Option<Vec<u8>>) -> Frame {
    let begins = present.is_none();
    let is_text = numbers.below(2) == 0;
    let whole = present.take().unwrap_or_else(|| match is_text {
        true => "aé☕😀\u{10FFFF}".repeat(numbers.below(12) as usize).into_bytes(),
        false => {
            let len = *numbers.pick(&[0, 1, 125, 126, 127, 500, 1999, 2000]);
            // Binary data that is text too: which of both a continuation belongs to is not known here.
            vec![b'b'; len]
        }
    });
    let opcode = match (begins, is_text) {
        (false, _) => CONT,
        (true, true) => TEXT,
        (true, false) => BINARY,
    };
    if numbers.below(2) == 0 {
        return frame(opcode, whole);
    }
    let (now, later) = whole.split_at(numbers.below(whole.len() as u64 + 1) as usize);
    *present = Some(later.to_vec());
    frame(opcode, now).more()
}

fn break_a_rule(numbers: &mut Numbers, f: &mut Frame, masked: bool) {
    match numbers.below(8) {
        0 => f.reserved = 1 + numbers.below(7) as u8,
        1 => f.opcode = *numbers.pick(&[3, 7, 11, 15]),
        2 => f.key = if masked { None } else { Some([1, 2, 3, 4]) },
        3 => f.fin = !f.fin,
        4 => f.opcode = *numbers.pick(&[CONT, TEXT, BINARY]),
        5 => f.payload.push(0xFF),
        6 => f.payload.extend([b'x'; LIMIT + 1]),
        _ => {
            f.payload.truncate(1);
        }
    }
}

#[test]
fn same_verdict_as_tungstenite() {
    let mut verdicts = [0; 4];
    for seed in 0..4000 {
        let mut numbers = Numbers(seed);
        let masked = seed % 4 != 0;
        let stream = stream(&mut numbers, masked);
        let (ours, theirs) = if masked {
            (Role::Server, protocol::Role::Server)
        } else {
            (Role::Client, protocol::Role::Client)
        };
        let bounds = Bounds { message_bytes: LIMIT as u64, message_frames: seqcast::limits::MESSAGE_FRAMES };
        let (got, violation) = read(Decoder::new(ours), &[&stream], &bounds);
        let verdict = violation.map(|v| v.code);
        assert_eq!((got, verdict), oracle(theirs, &stream), "seed {seed}: {stream:x?}");
        verdicts[match verdict {
            None => 0,
            Some(1002) => 1,
            Some(1007) => 2,
            _ => 3,
        }] += 1;
    }
    assert!(verdicts.iter().all(|&n| n > 50), "each verdict must occur often: {verdicts:?}");
}

/// tungstenite writes, we read, and the other way round.
#[test]
fn each_reads_what_the_other_writes() {
    for n in [0, 1, 125, 126, 65_535, 65_536] {
        let payload = Numbers(n).bytes(n as usize);
        let mut written = Vec::new();
        let frame = protocol::frame::Frame::message(
            payload.clone(),
            protocol::frame::coding::OpCode::Data(protocol::frame::coding::Data::Binary),
            true,
        );
        frame.format(&mut written).unwrap();
        let got = read(Decoder::new(Role::Client), &[&written], &BOUNDS);
        assert_eq!(got, (vec![Got::Binary(payload.clone())], None));
        let mut ours = Vec::new();
        push_frame(&mut ours, BINARY, &payload);
        assert_eq!(ours, written);
    }
}
