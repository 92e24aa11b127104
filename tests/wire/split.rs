//! It does not matter where the network cuts a stream.

use seqcast::wire::frame::*;
use seqcast::wire::{control, envelope, handshake};

use crate::support::*;

/// Streams with everything in them; short enough to cut at every pair of places.
fn streams() -> Vec<Vec<u8>> {
    vec![
        bytes(&[
            frame(BINARY, "hello"),
            frame(TEXT, "κόσμε"),
            frame(PING, "p"),
            frame(CLOSE, [3, 0xe8, b'x']),
        ]),
        bytes(&[
            frame(TEXT, "κό".as_bytes()).more(),
            frame(PING, "ping"),
            frame(CONT, "").more(),
            frame(PONG, ""),
            frame(CONT, "σμε"),
            frame(BINARY, ""),
            frame(CLOSE, ""),
        ]),
        bytes(&[frame(BINARY, vec![5; 126]), frame(BINARY, vec![6; 3]).more(), frame(CONT, vec![7; 130])]),
        bytes(&[frame(TEXT, "ok").more(), frame(CONT, b"\xe2\x28".to_vec())]),
        bytes(&[frame(BINARY, "a"), frame(BINARY, "b").more(), frame(PING, vec![1; 125]), frame(TEXT, "c")]),
        bytes(&[frame(PING, "a"), frame(CLOSE, [3, 0xed])]),
        bytes(&[frame(BINARY, "a"), frame(BINARY, "b").form(16).length(100)]),
        looks_like_frames(),
    ]
}

/// Keys and payloads that begin a short binary message, wherever a cut lets them come first.
fn looks_like_frames() -> Vec<u8> {
    let payload = [0x82, 0x80, 0, 0, 0, 0].repeat(2);
    let zero = Some([0; 4]);
    bytes(&[
        frame(PING, payload.clone()).key(zero),
        frame(BINARY, payload.clone()).key(zero),
        frame(TEXT, "x").key(Some([0x82, 0x80, 0, 0])).more(),
        frame(PING, "y").key(Some([0x82, 0x80, 0, 0])),
        frame(CONT, "").key(Some([0x82, 0x81, 1, 1])),
        frame(BINARY, payload.clone()).key(zero).more(),
        frame(PONG, payload.clone()).key(zero),
        frame(CONT, payload).key(zero),
    ])
}

#[test]
fn every_pair_of_cuts() {
    for stream in streams() {
        let want = read(Decoder::default(), &[&stream], &BOUNDS);
        for i in 0..=stream.len() {
            for j in i..=stream.len() {
                let pieces = [&stream[..i], &stream[i..j], &stream[j..]];
                assert_eq!(read(Decoder::default(), &pieces, &BOUNDS), want, "{stream:x?} at {i}, {j}");
            }
        }
    }
}

#[test]
fn byte_by_byte() {
    for stream in streams() {
        let pieces: Vec<&[u8]> = stream.chunks(1).collect();
        let want = read(Decoder::default(), &[&stream], &BOUNDS);
        assert_eq!(read(Decoder::default(), &pieces, &BOUNDS), want);
    }
}

/// A beginning yields a beginning: what came out of a part of the stream is what comes out of the whole.
#[test]
fn every_truncation() {
    for stream in streams() {
        let (whole, _) = read(Decoder::default(), &[&stream], &BOUNDS);
        for cut in 0..stream.len() {
            let (got, _) = read(Decoder::default(), &[&stream[..cut]], &BOUNDS);
            assert!(whole.starts_with(&got), "{stream:x?} up to {cut}");
        }
    }
}

/// Large messages, cut at random.
#[test]
fn random_cuts() {
    let mut numbers = Numbers(0x5EED);
    for _ in 0..60 {
        let mut frames = Vec::new();
        for _ in 0..1 + numbers.below(6) {
            let len = *numbers.pick(&[0, 1, 60, 125, 126, 1000, 30_000, 65_536]);
            let (key, payload) = (numbers.bytes(4), numbers.bytes(len));
            frames.push(frame(BINARY, payload).key(key.try_into().ok()));
        }
        let stream = bytes(&frames);
        let want: Vec<Got> = frames.into_iter().map(|f| Got::Binary(f.payload)).collect();
        let mut decoder = Decoder::default();
        let (mut rest, mut got) = (&stream[..], Vec::new());
        while !rest.is_empty() {
            let most = *numbers.pick(&[1, 10, 1500, 16_384, 100_000]);
            let (piece, behind) = rest.split_at((1 + numbers.below(most)).min(rest.len() as u64) as usize);
            feed(&mut decoder, piece, &BOUNDS, &mut got).unwrap();
            rest = behind;
        }
        assert!(got == want);
        assert_eq!(decoder.buffered(), 0);
    }
}

/// The same for a client, whose input is not masked.
#[test]
fn client_side_cuts() {
    let stream = bytes(
        &[frame(TEXT, "κό").more(), frame(PING, "1"), frame(CONT, "σμε"), frame(BINARY, vec![9; 200])]
            .map(|f| f.key(None)),
    );
    let want = read(Decoder::new(Role::Client), &[&stream], &BOUNDS);
    assert_eq!((want.0.len(), want.1), (3, None));
    for cut in 0..=stream.len() {
        assert_eq!(
            read(Decoder::new(Role::Client), &[&stream[..cut], &stream[cut..]], &BOUNDS),
            want,
            "{cut}"
        );
    }
}

/// A request head, then control messages of every kind: the head is incomplete until its last byte, and the
/// frames behind it are found.
#[test]
fn head_then_control_messages() {
    let head = b"GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let mut encoder = control::Encoder::new();
    let mut stream = head.to_vec();
    push_masked_frame(&mut stream, BINARY, [1, 2, 3, 4], encoder.hello(&["seqcast.1"], 9));
    push_masked_frame(&mut stream, BINARY, [5, 6, 7, 8], encoder.subscribe("news"));
    for cut in 0..head.len() {
        assert!(handshake::parse(&stream[..cut]).unwrap().is_none(), "{cut}");
    }
    for cut in head.len()..=stream.len() {
        assert_eq!(handshake::parse(&stream[..cut]).unwrap().unwrap().head_bytes, head.len());
        let (got, violation) = read(Decoder::default(), &[&stream[head.len()..cut], &stream[cut..]], &BOUNDS);
        assert_eq!(violation, None);
        let ids: Vec<u32> = got
            .iter()
            .map(|item| match item {
                Got::Binary(message) => envelope::parse(message).unwrap().id,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ids, [envelope::id::HELLO, envelope::id::SUBSCRIBE]);
    }
}
