//! What each fuzz target does with its input. fuzz/fuzz_targets feed these from libFuzzer,
//! tests/fuzz_corpus.rs from the stored corpora. A target is a function here, a file there, a `[[bin]]` of
//! fuzz/Cargo.toml and a corpus.

#[path = "../wire/again.rs"]
mod again;
#[path = "../schema/input.rs"]
mod input;

pub use input::one as json;

use seqcast::wire::control::{Control, Encoder, VERSION, decode};
use seqcast::wire::envelope;
use seqcast::wire::frame::{Bounds, Decoder, Item, Role, Violation};
use seqcast::wire::handshake::{self, Refusal, Request};

/// Any bytes as a request: what is complete stays what it is whatever follows, what precedes it is
/// incomplete, and every answer is HTTP.
pub fn handshake(data: &[u8]) {
    let request = match handshake::parse(data) {
        Ok(Some(request)) => request,
        Ok(None) => return assert!(data.len() < seqcast::limits::HEAD_BYTES),
        Err(refusal) => return check_refusal(&refusal),
    };
    let head = &data[..request.head_bytes];
    assert!(head.ends_with(b"\n") && head.len() <= seqcast::limits::HEAD_BYTES);
    let alone = handshake::parse(head).ok().flatten().expect("complete without what follows");
    assert_eq!((alone.path, alone.query, alone.head_bytes), (request.path, request.query, head.len()));
    for cut in [head.len() / 2, head.len() - 1] {
        assert!(matches!(handshake::parse(&data[..cut]), Ok(None)), "a beginning is incomplete");
    }
    check_request(&request);
}

fn check_request(request: &Request<'_>) {
    let _ = request.query_value("token");
    let subprotocol = request.subprotocols().next();
    match request.upgrade() {
        Err(refusal) => check_refusal(&refusal),
        Ok(upgrade) => {
            assert_eq!(request.method, "GET");
            let mut out = Vec::new();
            handshake::write_accept(&mut out, &upgrade, subprotocol);
            assert_eq!(check_response(&out), (101, 3 + usize::from(subprotocol.is_some()), out.len()));
        }
    }
}

fn check_refusal(refusal: &Refusal) {
    let mut out = Vec::new();
    refusal.write(&mut out);
    let (status, _, head) = check_response(&out);
    assert_eq!(status, refusal.status);
    assert_eq!(out[head..].iter().filter(|&&b| b == b'\n').count(), 1, "one line");
}

/// Status, number of headers, length of the head.
fn check_response(bytes: &[u8]) -> (u16, usize, usize) {
    let mut headers = [httparse::EMPTY_HEADER; 8];
    let mut response = httparse::Response::new(&mut headers);
    let status = response.parse(bytes).expect("every answer is HTTP");
    (response.code.expect("complete"), response.headers.len(), status.unwrap())
}

/// The first byte chooses the role and the limits, the second where the stream is cut; the rest is the
/// stream. However it is cut, the same comes out.
pub fn frames(data: &[u8]) {
    let [choice, step, stream @ ..] = data else { return };
    let role = if choice & 1 == 0 { Role::Server } else { Role::Client };
    let message_bytes = if choice & 2 == 0 { 64 } else { 70_000 };
    let message_frames = if choice & 4 == 0 { 16_384 } else { 3 };
    let bounds = Bounds { message_bytes, message_frames };
    let whole = read(role, &bounds, &[stream]);
    let pieces: Vec<&[u8]> = stream.chunks(1 + usize::from(*step)).collect();
    assert_eq!(read(role, &bounds, &pieces), whole);
    let (front, back) = stream.split_at(usize::from(*step).min(stream.len()));
    assert_eq!(read(role, &bounds, &[front, back]), whole);
}

/// What comes out, printed, and how it ended.
fn read(role: Role, bounds: &Bounds, pieces: &[&[u8]]) -> (Vec<String>, Option<Violation>) {
    let mut decoder = Decoder::new(role);
    let (mut items, mut received) = (Vec::new(), 0);
    for piece in pieces {
        let mut piece = piece.to_vec();
        received += piece.len();
        let mut rest = &mut piece[..];
        loop {
            match decoder.next(&mut rest, bounds) {
                Err(violation) => return (items, Some(violation)),
                Ok(None) => break,
                Ok(Some(item)) => {
                    check_item(&item, bounds);
                    items.push(format!("{item:?}"));
                    if matches!(item, Item::Close { .. }) {
                        return (items, None);
                    }
                }
            }
        }
        assert!(rest.is_empty());
        assert!(decoder.buffered() <= 2 * received, "memory only for what has arrived");
    }
    (items, None)
}

fn check_item(item: &Item<'_>, bounds: &Bounds) {
    match item {
        Item::Message { text, payload } => {
            assert!(payload.len() as u64 <= bounds.message_bytes);
            assert!(!text || std::str::from_utf8(payload).is_ok());
        }
        Item::Ping(payload) | Item::Pong(payload) => assert!(payload.len() <= 125),
        Item::Close { code, reason } => assert!(reason.len() <= 123 && (code.is_some() || reason.is_empty())),
    }
}

/// Any bytes as a message, and as the payload of each control message: what is decoded can be encoded and
/// reads the same again.
pub fn control(data: &[u8]) {
    if let Some(header) = envelope::parse(data) {
        let mut again = Vec::new();
        envelope::encode(&mut again, header.id, header.flags, header.seq);
        assert_eq!(again, data[..envelope::HEADER_BYTES]);
        check_control(header.id, &data[envelope::HEADER_BYTES..]);
    }
    if let [choice, payload @ ..] = data {
        use envelope::id::*;
        let ids = [HELLO, WELCOME, SUBSCRIBE, SNAPSHOT_REQUEST, PING, RESUME, RESUMED, RPC_CALL, RPC_RESULT];
        check_control(ids[usize::from(*choice) % ids.len()], payload);
    }
}

fn check_control(id: u32, payload: &[u8]) {
    let Ok(control) = decode(id, payload) else { return };
    if matches!(control, Control::Hello { version, .. } if version != VERSION) {
        return;
    }
    let mut encoder = Encoder::new();
    let message = again::encoded(&mut encoder, control);
    assert_eq!(envelope::parse(message).expect("our own header").id, id);
    assert_eq!(decode(id, &message[envelope::HEADER_BYTES..]), Ok(control));
}
