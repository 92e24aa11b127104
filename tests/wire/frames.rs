//! Frames one by one: the examples of RFC 6455, every way to break a rule, bounds, writers.

use seqcast::limits;
use seqcast::wire::frame::*;

use crate::support::*;

/// RFC 6455 5.7. The unmasked ones are for a client.
#[test]
fn examples_of_the_rfc() {
    let client = |stream: &[u8]| read(Decoder::new(Role::Client), &[stream], &BOUNDS);
    let hello = vec![Got::Text(b"Hello".to_vec())];
    assert_eq!(client(b"\x81\x05Hello"), (hello.clone(), None));
    assert_eq!(served(b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"), (hello.clone(), None));
    assert_eq!(client(b"\x01\x03Hel\x80\x02lo"), (hello, None));
    assert_eq!(client(b"\x89\x05Hello"), (vec![Got::Ping(b"Hello".to_vec())], None));
    assert_eq!(
        served(b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"),
        (vec![Got::Pong(b"Hello".to_vec())], None)
    );
    for n in [256_usize, 65_536] {
        let mut stream =
            if n == 256 { b"\x82\x7e\x01\x00".to_vec() } else { b"\x82\x7f\0\0\0\0\0\x01\0\0".to_vec() };
        stream.extend(vec![7; n]);
        assert_eq!(client(&stream), (vec![Got::Binary(vec![7; n])], None));
    }
}

#[test]
fn sizes_around_the_length_forms() {
    for n in [0, 1, 125, 126, 127, 128, 200, 255, 256, 65_535, 65_536] {
        let payload: Vec<u8> = (0..n).map(|i| (i * 7) as u8).collect();
        assert_eq!(
            served(&frame(BINARY, payload.clone()).bytes()),
            (vec![Got::Binary(payload)], None),
            "{n}"
        );
    }
    assert_eq!(served(&frame(BINARY, vec![0; 65_537]).bytes()).1, Some(1009));
}

#[test]
fn control_frames() {
    let all: Vec<u8> = (0..125).collect();
    for data in [&b""[..], b"x", &all] {
        assert_eq!(served(&frame(PING, data).bytes()), (vec![Got::Ping(data.to_vec())], None));
        assert_eq!(served(&frame(PONG, data).bytes()), (vec![Got::Pong(data.to_vec())], None));
    }
    for bad in [
        frame(PING, [0; 126]),
        frame(PING, "abc").form(16),
        frame(PING, "abc").form(64),
        frame(PING, "a").more(),
        frame(PONG, "").more(),
        frame(CLOSE, "\x03\u{68}").more(),
    ] {
        assert_eq!(served(&bad.bytes()), (vec![], Some(1002)));
    }
}

#[test]
fn control_frames_within_a_message() {
    let stream = bytes(&[
        frame(TEXT, "ab").more(),
        frame(PING, "1"),
        frame(CONT, "").more(),
        frame(PONG, "2"),
        frame(CONT, "c"),
        frame(BINARY, "d"),
    ]);
    let want = vec![
        Got::Ping(b"1".to_vec()),
        Got::Pong(b"2".to_vec()),
        Got::Text(b"abc".to_vec()),
        Got::Binary(b"d".to_vec()),
    ];
    assert_eq!(served(&stream), (want, None));
    let stream = bytes(&[frame(TEXT, "ab").more(), frame(CLOSE, b"\x03\xe8bye".to_vec()), frame(CONT, "c")]);
    assert_eq!(served(&stream), (vec![Got::Close(Some(1000), "bye".into())], None));
}

#[test]
fn frames_out_of_order() {
    for stream in [
        vec![frame(CONT, "a")],
        vec![frame(CONT, "a").more()],
        vec![frame(TEXT, "a").more(), frame(TEXT, "b").more()],
        vec![frame(BINARY, "a").more(), frame(BINARY, "b")],
        vec![frame(BINARY, "a").more(), frame(CONT, "b"), frame(CONT, "c")],
    ] {
        assert_eq!(served(&bytes(&stream)).1, Some(1002));
    }
}

#[test]
fn reserved_bits_and_opcodes() {
    for bits in 1..8 {
        for opcode in [TEXT, BINARY, PING, CLOSE] {
            assert_eq!(served(&frame(opcode, "").reserved(bits).bytes()), (vec![], Some(1002)));
        }
        let stream = bytes(&[frame(BINARY, "a").more(), frame(CONT, "b").reserved(bits)]);
        assert_eq!(served(&stream), (vec![], Some(1002)));
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        assert_eq!(served(&frame(opcode, "").bytes()), (vec![], Some(1002)));
        // One byte is enough to know.
        assert_eq!(served(&[0x80 | opcode]), (vec![], Some(1002)));
    }
}

#[test]
fn masks_are_demanded_by_the_server_and_refused_by_the_client() {
    for opcode in [TEXT, BINARY, PING, PONG, CLOSE] {
        assert_eq!(served(&frame(opcode, "").key(None).bytes()), (vec![], Some(1002)));
        let (got, violation) = read(Decoder::new(Role::Client), &[&frame(opcode, "").bytes()], &BOUNDS);
        assert_eq!((got, violation.map(|v| v.code)), (vec![], Some(1002)));
    }
    for key in [[0; 4], [0xFF; 4], [1, 2, 3, 4]] {
        assert_eq!(
            served(&frame(TEXT, "abc").key(Some(key)).bytes()),
            (vec![Got::Text(b"abc".to_vec())], None)
        );
    }
}

#[test]
fn lengths_that_no_peer_may_send() {
    for length in [1 << 63, u64::MAX, 0xFFFF_FFFF_FFFF_FFFC] {
        assert_eq!(served(&frame(BINARY, "data").form(64).length(length).bytes()).1, Some(1002));
    }
    assert_eq!(served(&frame(BINARY, "data").form(64).length((1 << 63) - 1).bytes()).1, Some(1009));
    for (form, length) in [(16, 0), (16, 125), (64, 0), (64, 125), (64, 65_535)] {
        assert_eq!(
            served(&frame(BINARY, "data").form(form).length(length).bytes()).1,
            Some(1002),
            "{form} {length}"
        );
    }
    assert_eq!(served(b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff\xffA").1, Some(1002));
}

/// tungstenite does not know 1014, which the IANA registry has ("bad gateway").
#[test]
fn every_close_code() {
    for code in 0..=u16::MAX {
        let allowed =
            tungstenite::protocol::frame::coding::CloseCode::from(code).is_allowed() || code == 1014;
        let want = match allowed {
            true => (vec![Got::Close(Some(code), "é".into())], None),
            false => (vec![], Some(1002)),
        };
        let payload = [&code.to_be_bytes()[..], "é".as_bytes()].concat();
        assert_eq!(served(&frame(CLOSE, payload).bytes()), want, "{code}");
    }
}

#[test]
fn close_payloads() {
    assert_eq!(served(&frame(CLOSE, "").bytes()), (vec![Got::Close(None, String::new())], None));
    assert_eq!(served(&frame(CLOSE, [3]).bytes()), (vec![], Some(1002)));
    assert_eq!(served(&frame(CLOSE, [3, 0xe8]).bytes()), (vec![Got::Close(Some(1000), String::new())], None));
    assert_eq!(served(&frame(CLOSE, [3, 0xe8, 0xff, 0xfe]).bytes()), (vec![], Some(1007)));
    assert_eq!(served(&frame(CLOSE, [3, 0xe8, 0xe2, 0x82]).bytes()), (vec![], Some(1007)));
}

#[test]
fn invalid_text() {
    for bad in [&b"abc\xff"[..], b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80"] {
        assert_eq!(served(&frame(TEXT, bad).bytes()), (vec![], Some(1007)), "{bad:x?}");
        for cut in 0..=bad.len() {
            let stream = bytes(&[frame(TEXT, &bad[..cut]).more(), frame(CONT, &bad[cut..])]);
            assert_eq!(served(&stream), (vec![], Some(1007)), "{bad:x?} at {cut}");
        }
    }
    assert_eq!(served(&frame(BINARY, b"\xff".to_vec()).bytes()).1, None);
}

/// The first byte that can no longer become valid text ends the connection, not the end of its frame.
#[test]
fn invalid_text_fails_at_the_bad_byte() {
    let text = "κόσμε".as_bytes();
    let stream = frame(TEXT, [text, b"\xf4\x90\x80\x80", b"edited"].concat()).bytes();
    let bad_at = 6 + text.len() + 1;
    let mut decoder = Decoder::default();
    for (i, byte) in stream.iter().enumerate() {
        match feed(&mut decoder, &[*byte], &BOUNDS, &mut Vec::new()) {
            Ok(()) => assert!(i < bad_at, "byte {i} went through"),
            Err(v) => {
                assert_eq!((i, v.code), (bad_at, 1007));
                return;
            }
        }
    }
    panic!("invalid text went through");
}

/// Characters cut by frames and by pieces of input.
#[test]
fn valid_text_in_fragments() {
    let text = "a é ☕ 😀 𐍈 \u{10FFFF} \u{FFFF} z".as_bytes();
    for i in 0..=text.len() {
        for j in i..=text.len() {
            let frames = [
                frame(TEXT, &text[..i]).more(),
                frame(CONT, &text[i..j]).more(),
                frame(PING, ""),
                frame(CONT, &text[j..]),
            ];
            let want = vec![Got::Ping(vec![]), Got::Text(text.to_vec())];
            assert_eq!(served(&bytes(&frames)), (want, None), "{i} {j}");
        }
    }
}

#[test]
fn small_limits() {
    let bounds = Bounds { message_bytes: 10, message_frames: 1 };
    for (opcode, n) in [(BINARY, 10), (TEXT, 10), (BINARY, 11), (TEXT, 11), (PING, 11)] {
        let (_, violation) = read(Decoder::default(), &[&frame(opcode, vec![b'x'; n]).bytes()], &bounds);
        assert_eq!(violation.map(|v| v.code), (n == 11 && opcode != PING).then_some(1009), "{opcode} {n}");
    }
    let stream = bytes(&[frame(BINARY, "a").more(), frame(CONT, "b")]);
    assert_eq!(read(Decoder::default(), &[&stream], &bounds).1.map(|v| v.code), Some(1008));
}

#[test]
fn fragments_count_together() {
    let bounds = Bounds { message_bytes: 1000, message_frames: seqcast::limits::MESSAGE_FRAMES };
    let mut stream = frame(BINARY, [0; 100]).more().bytes();
    for _ in 0..9 {
        stream.extend(frame(CONT, [0; 100]).more().bytes());
    }
    let ended = [&stream[..], &frame(CONT, "").bytes()].concat();
    assert_eq!(read(Decoder::default(), &[&ended], &bounds), (vec![Got::Binary(vec![0; 1000])], None));
    let over = [&stream[..], &frame(CONT, "x").bytes()[..6]].concat();
    assert_eq!(read(Decoder::default(), &[&over], &bounds).1.map(|v| v.code), Some(1009));
}

#[test]
fn frames_of_a_message_are_counted() {
    let most = limits::MESSAGE_FRAMES as usize;
    for (frames, want) in [(most, None), (most + 1, Some(1008))] {
        let mut stream = frame(BINARY, "a").more().bytes();
        for _ in 0..frames - 2 {
            stream.extend(frame(CONT, "").more().bytes());
        }
        stream.extend(frame(CONT, "b").bytes());
        // The count begins anew with each message.
        stream.extend(bytes(&[frame(BINARY, "c").more(), frame(CONT, "d")]));
        let (got, code) = served(&stream);
        assert_eq!(code, want);
        assert_eq!(got.len(), if want.is_none() { 2 } else { 0 });
    }
}

/// The header alone decides, and takes no memory.
#[test]
fn size_is_judged_before_memory_grows() {
    let mut decoder = Decoder::default();
    let header = &frame(BINARY, "").length(65_537).bytes()[..10];
    assert_eq!(feed(&mut decoder, header, &BOUNDS, &mut Vec::new()).unwrap_err().code, 1009);
    assert_eq!(decoder.buffered(), 0);

    let mut decoder = Decoder::default();
    let stream = [frame(BINARY, "").length(60_000).bytes(), vec![0; 60_000]].concat();
    let (mut received, mut growths, mut before) = (0, 0, 0);
    for piece in stream.chunks(997) {
        received += piece.len();
        feed(&mut decoder, piece, &BOUNDS, &mut Vec::new()).unwrap();
        let buffered = decoder.buffered();
        assert!(buffered <= (2 * received).min(60_000), "{buffered} of {received}");
        assert!(buffered >= received - 8 || received == stream.len(), "{buffered} of {received}");
        assert_eq!(decoder.is_unfinished(), received < stream.len());
        growths += usize::from(buffered > before);
        before = buffered;
    }
    assert!(growths <= 8, "memory doubles, so that what has arrived is rarely moved: {growths}");
    assert_eq!(decoder.buffered(), 0, "a finished message is given back");
}

#[test]
fn nothing_is_held_between_messages() {
    let mut decoder = Decoder::default();
    let stream = bytes(&[frame(TEXT, "abc").more(), frame(PING, "p"), frame(CONT, "def")]);
    for _ in 0..3 {
        for byte in &stream {
            feed(&mut decoder, &[*byte], &BOUNDS, &mut Vec::new()).unwrap();
        }
        assert_eq!((decoder.buffered(), decoder.is_unfinished()), (0, false));
    }
    assert!(size_of::<Decoder>() <= 48);
}

/// A whole message is handed out from the buffer it arrived in.
#[test]
fn whole_messages_are_not_copied() {
    let mut stream = bytes(&[frame(BINARY, vec![1; 300]), frame(PING, "p"), frame(TEXT, "t")]);
    let range = stream.as_ptr_range();
    let mut decoder = Decoder::default();
    let mut rest = &mut stream[..];
    for _ in 0..3 {
        let payload = match decoder.next(&mut rest, &BOUNDS).unwrap().unwrap() {
            Item::Message { payload, .. } | Item::Ping(payload) => payload,
            other => panic!("{other:?}"),
        };
        assert!(range.contains(&payload.as_ptr()));
    }
    assert_eq!(decoder.buffered(), 0);
}

#[test]
fn masking_at_every_length_and_alignment() {
    let key = [0x12, 0x34, 0x56, 0x78];
    let data = Numbers(1).bytes(300);
    for start in 0..40 {
        for len in (0..140).chain([255, 256]) {
            let want: Vec<u8> =
                data[start..start + len].iter().zip(key.iter().cycle()).map(|(b, k)| b ^ k).collect();
            let mut copy = data.clone();
            mask(&mut copy[start..start + len], key);
            assert_eq!(copy[start..start + len], want);
            assert_eq!((&copy[..start], &copy[start + len..]), (&data[..start], &data[start + len..]));
        }
    }
}

#[test]
fn writers() {
    for n in [0, 1, 125, 126, 127, 65_535, 65_536, 70_000] {
        let payload = Numbers(n as u64).bytes(n);
        let want = frame(BINARY, payload.clone()).key(None).bytes();
        let mut out = b"before".to_vec();
        push_frame(&mut out, BINARY, &payload);
        assert_eq!(out[6..], want);
        let mut header = [0; 10];
        let len = write_header(&mut header, BINARY, n);
        assert_eq!((len, &header[..len]), (header_len(n), &want[..header_len(n)]));
        assert_eq!(frame_len(&want), Some(want.len()));
        assert_eq!(frame_len(&want[..len]), Some(want.len()));
        assert!((0..len).all(|cut| frame_len(&want[..cut]).is_none()));
        let mut out = b"before".to_vec();
        push_masked_frame(&mut out, TEXT, [9, 8, 7, 6], &payload);
        assert_eq!(out[6..], frame(TEXT, payload).key(Some([9, 8, 7, 6])).bytes());
    }
    assert_eq!(frame_len(b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"), None, "no overflow");
}

#[test]
fn close_frames_written() {
    let close = |code, reason: &str| {
        let mut out = Vec::new();
        push_close(&mut out, code, reason);
        out
    };
    assert_eq!(close(None, "left out"), b"\x88\0");
    assert_eq!(close(Some(1000), ""), b"\x88\x02\x03\xe8");
    assert_eq!(close(Some(1013), "slow consumer"), b"\x88\x0f\x03\xf5slow consumer");
    let long = close(Some(1008), &("x".repeat(122) + "é and more"));
    assert_eq!(long, [&[0x88, 124, 3, 0xf0][..], "x".repeat(122).as_bytes()].concat());
    assert_eq!(close(Some(1008), &"x".repeat(200)).len(), 2 + 125);
}
