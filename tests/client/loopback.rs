//! The blocking client against a scripted server on a loopback socket.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use seqcast::client::action::{End, RequestError};
use seqcast::client::backoff::BackoffOptions;
use seqcast::client::request::{self, RequestOptions};
use seqcast::client::session::{SessionOptions, envelope_of};
use seqcast::client::sub::{self, SubOptions};
use seqcast::client::{Client, ClientError, ClientOptions, Incoming};
use seqcast::schema::Schema;
use seqcast::wire::control::{self, Control, Encoder};
use seqcast::wire::envelope::{self, FLAGS_AT, HEADER_BYTES, fnv1a32};
use seqcast::wire::frame::{self, Bounds, Decoder, Item, Role};
use seqcast::wire::handshake;
use serde_json::{Value, json};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(5));

/// One accepted connection of the scripted server.
struct Peer {
    stream: TcpStream,
    decoder: Decoder,
    bytes: Vec<u8>,
    head: String,
}

impl Peer {
    /// Accepts and reads the request head.
    fn accept(listener: &TcpListener) -> Peer {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(PATIENCE).unwrap();
        let mut peer =
            Peer { stream, decoder: Decoder::new(Role::Server), bytes: Vec::new(), head: String::new() };
        while handshake::parse(&peer.bytes).unwrap().is_none() {
            peer.read();
        }
        let head_bytes = handshake::parse(&peer.bytes).unwrap().unwrap().head_bytes;
        peer.head = String::from_utf8(peer.bytes.drain(..head_bytes).collect()).unwrap();
        peer
    }

    /// Accepts, upgrades, and sends `first` in the same segment as the 101.
    fn upgrade(listener: &TcpListener, first: &[u8]) -> Peer {
        let mut peer = Peer::accept(listener);
        let mut answer = Vec::new();
        let upgrade = handshake::parse(peer.head.as_bytes()).unwrap().unwrap().upgrade().unwrap();
        handshake::write_accept(&mut answer, &upgrade, None);
        answer.extend_from_slice(first);
        peer.write(&answer);
        peer
    }

    fn read(&mut self) {
        let mut buffer = [0; 4096];
        let read = self.stream.read(&mut buffer).unwrap();
        assert_ne!(read, 0, "the client is gone");
        self.bytes.extend_from_slice(&buffer[..read]);
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Next thing the client says, in words.
    fn hears(&mut self) -> String {
        loop {
            let mut rest = &mut self.bytes[..];
            let item = self
                .decoder
                .next(
                    &mut rest,
                    &Bounds { message_bytes: 1 << 20, message_frames: seqcast::limits::MESSAGE_FRAMES },
                )
                .unwrap();
            let word = item.map(|item| match item {
                Item::Message { text: false, payload } => word(payload),
                Item::Ping(payload) => format!("PING {payload:?}"),
                Item::Pong(payload) => format!("PONG {payload:?}"),
                Item::Close { code, .. } => format!("CLOSE {code:?}"),
                other @ Item::Message { .. } => format!("{other:?}"),
            });
            let left = rest.len();
            self.bytes.drain(..self.bytes.len() - left);
            match word {
                Some(word) if word.starts_with("ping") => {}
                Some(word) => return word,
                None => self.read(),
            }
        }
    }
}

fn word(message: &[u8]) -> String {
    let header = envelope::parse(message).unwrap();
    match control::decode(header.id, &message[HEADER_BYTES..]) {
        Ok(Control::Hello { last_seq, .. }) => format!("hello {last_seq}"),
        Ok(Control::Subscribe { topic }) => format!("subscribe {topic}"),
        Ok(Control::JoinGroup { group }) => format!("join {group}"),
        Ok(Control::Ping { .. }) => "ping".to_owned(),
        Ok(Control::RpcCall { id, name, payload_b64 }) => format!("{id} {name} {payload_b64}"),
        Ok(other) => format!("{other:?}"),
        Err(_) => format!("event {:?}", &message[HEADER_BYTES..]),
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_frame(&mut out, frame::BINARY, message);
    out
}

fn greeting() -> Vec<u8> {
    let mut encoder = Encoder::new();
    let mut out = framed(encoder.hello(&["seqcast.1"], 0));
    out.extend(framed(encoder.welcome("c7", ["vip"])));
    out
}

fn stamped(event: &str, seq: u64, payload: &[u8]) -> Vec<u8> {
    let mut message = envelope_of(fnv1a32(event), payload);
    envelope::stamp(&mut message[FLAGS_AT..HEADER_BYTES], seq);
    framed(&message)
}

fn quote(symbol: &str) -> Value {
    json!({ "symbol": symbol, "bid": 1.5, "ask": 2.0, "bidSize": 3, "askSize": 4, "ts": 9_007_199_254_740_993_u64 })
}

fn quote_payload(symbol: &str) -> Vec<u8> {
    let schema = Schema::builtin();
    let mut payload = Vec::new();
    schema.encode_json(schema.by_name("quote").unwrap(), &quote(symbol), &mut payload).unwrap();
    payload
}

/// Runs `script` as a server; gives its URL and the thread, to be joined.
fn serve<T: Send + 'static>(
    script: impl FnOnce(TcpListener) -> T + Send + 'static,
) -> (String, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}/ws", listener.local_addr().unwrap());
    (url, std::thread::spawn(move || script(listener)))
}

fn quick() -> ClientOptions {
    let backoff = BackoffOptions { initial: Duration::from_millis(1), ..BackoffOptions::default() };
    let session = SessionOptions { reconnect: Some(backoff), ..SessionOptions::default() };
    ClientOptions { session, ..ClientOptions::default() }
}

/// Events only, by their payloads.
fn next_event(client: &mut Client) -> (Option<u64>, Vec<u8>) {
    loop {
        match client.next(PATIENCE).unwrap().expect("an event in time") {
            Incoming::Event { event, seq, payload } => {
                assert_eq!(event, fnv1a32("quote"));
                return (seq, payload);
            }
            Incoming::Missed { from, to } => panic!("missed {from} {to:?}"),
            _ => {}
        }
    }
}

#[test]
fn what_comes_in_one_segment_with_the_101_is_kept() {
    let (url, server) = serve(|listener| {
        let mut first = greeting();
        first.extend(stamped("quote", 1, b"one"));
        let mut peer = Peer::upgrade(&listener, &first);
        (peer.head.clone(), [peer.hears(), peer.hears(), peer.hears(), peer.hears()])
    });
    let options = ClientOptions {
        token: Some("t0k".into()),
        topics: vec!["a".into()],
        groups: vec!["g".into()],
        ..quick()
    };
    let mut client = Client::connect(&url, options).unwrap();
    assert_eq!(next_event(&mut client), (Some(1), b"one".to_vec()));
    assert_eq!(client.id(), "c7");
    client.publish("quote", b"up").unwrap();
    let (head, heard) = server.join().unwrap();
    assert!(head.starts_with("GET /ws HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nAuthorization: Bearer t0k\r\n"), "{head}");
    assert_eq!(heard, ["hello 0", "subscribe a", "join g", "event [117, 112]"]);
}

#[test]
fn frames_of_every_kind() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::upgrade(&listener, &greeting());
        let event = stamped("quote", 1, &[b'x'; 70_000]);
        let header = frame::header_len(event.len() - 10);
        let message = &event[header..];
        // A message in three frames, with a ping between them, a text message before it; all in small writes.
        let mut bytes = Vec::new();
        frame::push_frame(&mut bytes, frame::TEXT, b"ignored");
        frame::push_frame(&mut bytes, frame::BINARY, &message[..10]);
        bytes[9] &= 0x7f;
        frame::push_frame(&mut bytes, frame::PING, b"are you there");
        let cont = bytes.len();
        frame::push_frame(&mut bytes, frame::CONT, &message[10..300]);
        bytes[cont] &= 0x7f;
        frame::push_frame(&mut bytes, frame::CONT, &message[300..]);
        frame::push_frame(&mut bytes, frame::PING, b"");
        bytes.extend(stamped("quote", 2, b"end"));
        bytes.chunks(11_111).for_each(|chunk| peer.write(chunk));
        [peer.hears(), peer.hears(), peer.hears()]
    });
    let mut client = Client::connect(&url, quick()).unwrap();
    assert_eq!(next_event(&mut client), (Some(1), vec![b'x'; 70_000]));
    assert_eq!(next_event(&mut client), (Some(2), b"end".to_vec()));
    let heard = server.join().unwrap();
    assert_eq!(heard, ["hello 0".to_owned(), format!("PONG {:?}", b"are you there"), "PONG []".to_owned()]);
}

#[test]
fn cut_and_back_with_the_position() {
    let (url, server) = serve(|listener| {
        let mut heard = Vec::new();
        let mut peer = Peer::upgrade(&listener, &greeting());
        peer.write(&stamped("quote", 1, b"one"));
        peer.write(&stamped("quote", 3, b"three"));
        heard.extend([peer.hears(), peer.hears(), peer.hears()]);
        drop(peer);
        let mut peer = Peer::upgrade(&listener, &greeting());
        heard.extend([peer.hears(), peer.hears()]);
        for (seq, payload) in [(2, "two"), (3, "three")] {
            peer.write(&stamped("quote", seq, payload.as_bytes()));
        }
        peer.write(&framed(Encoder::new().resumed(true, 2)));
        let mut close = Vec::new();
        frame::push_close(&mut close, Some(1008), "rate limit exceeded");
        peer.write(&close);
        heard.push(peer.hears());
        heard
    });
    let mut client = Client::connect(&url, ClientOptions { topics: vec!["a".into()], ..quick() }).unwrap();
    for (seq, payload) in [(1, "one"), (2, "two"), (3, "three")] {
        assert_eq!(next_event(&mut client), (Some(seq), payload.as_bytes().to_vec()));
    }
    let end = loop {
        match client.next(PATIENCE) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no end"),
            Err(error) => break error,
        }
    };
    assert_eq!(end.to_string(), "the server closed the connection: rate limit exceeded (1008)");
    assert!(matches!(end, ClientError::Ended { end: End::Closed(1008), .. }));
    let heard = server.join().unwrap();
    assert_eq!(heard[..3], ["hello 0", "subscribe a", "Resume { last_seq: 1 }"]);
    assert_eq!(heard[3..], ["hello 1", "subscribe a", "CLOSE Some(1008)"]);
}

/// A server that answers the first request with these bytes and closes.
fn answered(response: &'static str) -> ClientError {
    let (url, server) = serve(move |listener| Peer::accept(&listener).write(response.as_bytes()));
    let error = Client::connect(&url, quick()).expect_err("no WebSocket server");
    server.join().unwrap();
    error
}

#[test]
fn refusals_are_told_apart() {
    let error = answered("HTTP/1.1 401 Unauthorized\r\nContent-Length: 13\r\n\r\nunauthorized\n");
    assert!(
        matches!(&error, ClientError::Refused { status: 401, text } if text == "unauthorized"),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "refused by the server: 401 unauthorized; give a token that the server knows"
    );
    let error = answered("HTTP/1.1 409 Conflict\r\n\r\nclient id already in use\n");
    assert!(
        matches!(&error, ClientError::Refused { status: 409, text } if text.starts_with("client id")),
        "{error:?}"
    );
    for (response, why) in [
        ("SSH-2.0-OpenSSH_9\r\n\r\n", "not HTTP"),
        ("", "closed without an answer"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            "another request",
        ),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            "another request",
        ),
        ("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n", "Upgrade: websocket"),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: close\r\n\r\n",
            "Connection: Upgrade",
        ),
    ] {
        let error = answered(response);
        assert!(
            matches!(&error, ClientError::Handshake(what) if what.contains(why)),
            "{response:?}: {error:?}"
        );
    }
}

#[test]
fn a_dead_address_is_an_error_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}/ws", listener.local_addr().unwrap());
    drop(listener);
    let error = Client::connect(&url, quick()).expect_err("nobody listens");
    assert!(matches!(error, ClientError::Dial { .. }), "{error:?}");
    for url in
        ["http://h/ws", "wss://h/ws", "ws://", "ws://u@h/", "ws://h:x/", "ws://::1/ws", "ws://h/a b", "h:1"]
    {
        let error = Client::connect(url, quick()).expect_err("no such URL");
        assert!(matches!(error, ClientError::Address(_)), "{url}: {error:?}");
    }
    let options = ClientOptions { token: Some("a\r\nb: c".into()), ..quick() };
    assert!(matches!(Client::connect(&url, options), Err(ClientError::Address(_))));
}

#[test]
fn a_masked_frame_of_the_server_ends_the_connection() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::upgrade(&listener, &greeting());
        let mut bytes = Vec::new();
        frame::push_masked_frame(&mut bytes, frame::BINARY, [1, 2, 3, 4], b"masked");
        peer.write(&bytes);
        Peer::upgrade(&listener, &stamped("quote", 1, b"unmasked")).hears()
    });
    let mut client = Client::connect(&url, quick()).unwrap();
    assert_eq!(next_event(&mut client), (Some(1), b"unmasked".to_vec()));
    assert_eq!(server.join().unwrap(), "hello 0");
}

fn sub_options(url: &str, count: u64, control: bool) -> SubOptions {
    SubOptions {
        url: url.to_owned(),
        token: None,
        topics: vec!["a".into(), "b".into()],
        groups: Vec::new(),
        count: Some(count),
        control,
        schema: Schema::builtin(),
    }
}

#[test]
fn sub_prints_a_line_an_event_and_says_what_was_missed() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::upgrade(&listener, &greeting());
        peer.write(&stamped("quote", 1, &quote_payload("ü")));
        peer.write(&stamped("quote", 4, &quote_payload("B")));
        peer.write(&framed(Encoder::new().resumed(false, 0)));
        peer.write(&stamped("unknown", 5, &[1, 2, 3]));
        std::iter::from_fn(|| Some(peer.hears())).find(|word| word.starts_with("CLOSE"))
    });
    let (mut out, mut notices) = (Vec::new(), Vec::new());
    sub::run(&sub_options(&url, 3, true), &mut out, &mut notices).unwrap();
    assert_eq!(server.join().unwrap(), Some("CLOSE Some(1000)".to_owned()));
    let rows: Vec<Value> =
        out.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let want = [
        json!({ "event": "hello", "data": { "version": 2, "caps": ["seqcast.1"], "lastSeq": 0 } }),
        json!({ "event": "welcome", "data": { "clientId": "c7", "groups": ["vip"] } }),
        json!({ "event": "quote", "seq": 1, "data": quote("ü") }),
        json!({ "event": "resumed", "data": { "ok": false, "from": 0 } }),
        json!({ "event": "missed", "data": { "from": 2, "to": 3 } }),
        json!({ "event": "quote", "seq": 4, "data": quote("B") }),
        json!({ "event": format!("{:08x}", fnv1a32("unknown")), "seq": 5, "payloadB64": "AQID" }),
    ];
    assert_eq!(rows, want);
    assert_eq!(String::from_utf8(notices).unwrap(), "missed: events 2 to 3 are lost\n");
}

/// A reader that is gone, as of `seqcast sub | head`.
struct BrokenPipe;

impl Write for BrokenPipe {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn sub_ends_quietly_when_its_reader_is_gone() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::upgrade(&listener, &greeting());
        peer.write(&stamped("quote", 1, &quote_payload("A")));
        std::iter::from_fn(|| Some(peer.hears())).find(|word| word.starts_with("CLOSE"))
    });
    sub::run(&sub_options(&url, 9, false), &mut BrokenPipe, &mut Vec::new()).unwrap();
    server.join().unwrap();
}

/// Runs `request` against a server that answers the call through `answer(encoder, call id, question)`.
fn ask(
    answer: impl FnOnce(&mut Encoder, &str, &str) -> Vec<u8> + Send + 'static,
) -> Result<Value, ClientError> {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::upgrade(&listener, &greeting());
        let call = std::iter::from_fn(|| Some(peer.hears())).find(|word| word.contains(" quote ")).unwrap();
        let parts: Vec<_> = call.split(' ').collect();
        peer.write(&framed(&answer(&mut Encoder::new(), parts[0], parts[2])));
        std::iter::from_fn(|| Some(peer.hears())).find(|word| word.starts_with("CLOSE"));
    });
    let (event, data, schema) = ("quote".to_owned(), quote("Q"), Schema::builtin());
    let result = request::run(&RequestOptions { url, token: None, event, data, schema });
    drop(server);
    result
}

#[test]
fn request_prints_the_answer_or_the_servers_reason() {
    assert_eq!(ask(|e, id, question| e.rpc_result(id, true, "", question).to_vec()).unwrap(), quote("Q"));
    let error = ask(|e, id, _| e.rpc_result(id, false, "no handler for \"quote\"", "").to_vec()).unwrap_err();
    assert_eq!(error.to_string(), "request \"quote\" failed: no handler for \"quote\"");
    let error = ask(|e, id, _| e.rpc_result(id, true, "", "!").to_vec()).unwrap_err();
    assert!(matches!(error, ClientError::Request { error: RequestError::Undecodable, .. }), "{error:?}");
    let schema = Schema::builtin();
    let options = |event: &str, data| RequestOptions {
        url: "ws://127.0.0.1:1/ws".into(),
        token: None,
        event: event.into(),
        data,
        schema: schema.clone(),
    };
    assert!(matches!(request::run(&options("nope", json!({}))), Err(ClientError::UnknownEvent(_))));
    assert!(matches!(request::run(&options("quote", json!({}))), Err(ClientError::Data { .. })));
    assert!(matches!(request::run(&options("quote", quote("A"))), Err(ClientError::Dial { .. })));
}
