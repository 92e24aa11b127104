//! Request heads and what they are answered.

use seqcast::limits;
use seqcast::wire::handshake::*;

const GOOD: &str = "GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// The good request with its header of this name left out, and these lines added.
fn request(without: &str, lines: &[&str]) -> String {
    let kept = GOOD
        .trim_end()
        .split("\r\n")
        .filter(|l| without.is_empty() || !l.starts_with(&format!("{without}:")));
    kept.chain(lines.iter().copied()).map(|l| format!("{l}\r\n")).collect::<String>() + "\r\n"
}

/// Status of the answer, as the server gives it on its upgrade path.
fn status(head: &str) -> u16 {
    match parse(head.as_bytes()).map(|r| r.expect("a complete head").upgrade()) {
        Ok(Ok(_)) => 101,
        Ok(Err(refusal)) | Err(refusal) => refusal.status,
    }
}

fn parsed(head: &str) -> Request<'_> {
    parse(head.as_bytes()).unwrap().unwrap()
}

/// An answer as (status line, header lines, body).
fn answer(bytes: &[u8]) -> (String, Vec<String>, String) {
    let text = std::str::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.split("\r\n").map(str::to_owned);
    (lines.next().unwrap(), lines.collect(), body.to_owned())
}

/// RFC 6455 1.3.
#[test]
fn example_of_the_rfc() {
    let upgrade = parsed(GOOD).upgrade().unwrap();
    let mut out = Vec::new();
    write_accept(&mut out, &upgrade, None);
    let (line, headers, body) = answer(&out);
    assert_eq!(line, "HTTP/1.1 101 Switching Protocols");
    let want =
        ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="];
    assert_eq!(headers, want);
    assert_eq!(body, "");
    out.clear();
    write_accept(&mut out, &upgrade, Some("chat"));
    assert_eq!(answer(&out).1[3..], ["Sec-WebSocket-Protocol: chat"]);
}

#[test]
fn what_browsers_and_proxies_send() {
    for (without, line) in [
        ("Connection", "Connection: keep-alive, Upgrade"),
        ("Connection", "Connection: Upgrade,keep-alive"),
        ("Connection", "Connection: keep-alive , upgrade"),
        ("Connection", "Connection: keep-alive\r\nConnection: upgrade"),
        ("Connection", "connection:upgrade"),
        ("Upgrade", "Upgrade: WebSocket"),
        ("Upgrade", "uPGRADE: WEBSOCKET"),
        ("Upgrade", "Upgrade: h2c, websocket"),
        ("", "Content-Length: 0"),
        ("", "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"),
        ("", r#"Sec-WebSocket-Extensions: x; y=",permessage-deflate; client_max_window_bits,""#),
        ("", "Sec-WebSocket-Extensions: ,;constructor"),
        ("", "X-Bytes: \u{e4}\u{f6}"),
    ] {
        assert_eq!(status(&request(without, &[line])), 101, "{line}");
    }
    assert_eq!(status(&GOOD.replace("GET /ws", "GET http://example.org/ws")), 101);
    assert_eq!(status(&format!("\r\n{GOOD}")), 101, "an empty line in front (RFC 9112 2.2)");
}

#[test]
fn keys() {
    let key = |k: &str| status(&request("Sec-WebSocket-Key", &[&format!("Sec-WebSocket-Key: {k}")]));
    assert_eq!(key("AAAAAAAAAAAAAAAAAAAAAA=="), 101);
    assert_eq!(key("abcdefghijklmnopqrstuv=="), 101, "bits that base64 has too many do not matter");
    for bad in [
        "x",
        "eA==",
        "",
        &"A".repeat(32),
        "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=",
        "dGhlIHNhbXBsZSBub25jZQ",
        "dGhlIHNhbXBsZSBub25jZQ=!",
        "dGhlIHNhbXBsZSBub25j!Q==",
        "dGhlIHNhbXBsZSBub25jZQ=A",
        "QUFBQUFBQUFBQUFBQUFB",
        "dGhlIHNhbXBsZSBub25j",
        "QUFBQUFBQUFBQUFBQUFBQUE=QUE=",
        "dGhl IHNhbXBsZSBub25jZQ==",
        &"A".repeat(10_000),
    ] {
        assert_eq!(key(bad), 400, "{bad}");
    }
    assert_eq!(status(&request("Sec-WebSocket-Key", &[])), 400);
    assert_eq!(status(&request("", &["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="])), 400);
}

#[test]
fn versions() {
    for line in ["25", "8", "0", "", "13, 8", "abc", "013"] {
        assert_eq!(
            status(&request("Sec-WebSocket-Version", &[&format!("Sec-WebSocket-Version: {line}")])),
            426,
            "{line}"
        );
    }
    assert_eq!(status(&request("Sec-WebSocket-Version", &[])), 426);
    assert_eq!(status(&request("", &["Sec-WebSocket-Version: 13"])), 400);
    let mut out = Vec::new();
    Refusal::VERSION.write(&mut out);
    assert!(answer(&out).1.contains(&"Sec-WebSocket-Version: 13".into()));
}

#[test]
fn requests_with_a_body() {
    for line in [
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        "Content-Length: 0\r\nContent-Length: 5",
        "Content-Length: x",
    ] {
        assert_eq!(status(&request("", &[line])), 400, "{line}");
    }
}

#[test]
fn no_upgrade() {
    assert_eq!(status("GET /ws HTTP/1.1\r\nHost: h\r\n\r\n"), 426);
    assert_eq!(status(&request("Upgrade", &[])), 426);
    assert_eq!(status(&request("Upgrade", &["Upgrade: h2c"])), 426);
    assert_eq!(status(&request("Connection", &[])), 400);
    assert_eq!(status(&request("Connection", &["Connection: keep-alive"])), 400);
    for method in ["POST", "HEAD", "get"] {
        assert_eq!(status(&GOOD.replace("GET", method)), 400, "{method}");
    }
    assert_eq!(status("POST /ws HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
    assert_eq!(status(&GOOD.replace("HTTP/1.1", "HTTP/1.0")), 400);
    assert_eq!(status("GET /health HTTP/1.0\r\n\r\n"), 426, "HTTP/1.0 needs no Host");
}

#[test]
fn malformed_heads() {
    for line in [
        " Leading: space",
        "X-Folded: a\r\n b",
        "No colon here",
        "Bad Name: x",
        ": empty",
        "X\0: y",
        "X: a\0b",
        "X : a",
        "X: a\rb",
        "Host: second",
        "Origin: a\r\nOrigin: b",
        "Authorization: a\r\nAuthorization: b",
    ] {
        assert_eq!(status(&request("", &[line])), 400, "{line:?}");
    }
    assert_eq!(status(&request("Host", &[])), 400);
    for line in [
        "GET /ws",
        "GET  /ws HTTP/1.1",
        "GET /ws HTTP/9.9",
        "GET /ws HTTP/2.0",
        "G\0T /ws HTTP/1.1",
        "/ws HTTP/1.1",
        "GET ws HTTP/1.1",
        "GET ftp://h/ws HTTP/1.1",
        "CONNECT h:80 HTTP/1.1",
        "GET /w\u{7f}s HTTP/1.1",
        " GET /ws HTTP/1.1",
    ] {
        assert_eq!(status(&GOOD.replace("GET /ws HTTP/1.1", line)), 400, "{line:?}");
    }
    // Known before the head is complete.
    for start in [&b"\x16\x03\x01\x02\x00"[..], b"{\"op\":1}", b"\x82\x85\x01\x02\x03\x04"] {
        assert_eq!(parse(start).unwrap_err().status, 400);
    }
}

#[test]
fn long_heads() {
    assert_eq!(status(&request("", &["a: b"; 2100])), 431);
    assert_eq!(status(&request("", &["a: b"; limits::HEAD_LINES - 5])), 101);
    assert_eq!(status(&request("", &["a: b"; limits::HEAD_LINES - 4])), 431);
    let padded = |n| request("", &[&format!("X: {}", "x".repeat(n))]);
    let room = limits::HEAD_BYTES - padded(0).len();
    assert_eq!(status(&padded(room)), 101);
    assert_eq!(status(&padded(room + 1)), 431);
    let endless = "GET /".to_string() + &"x".repeat(limits::HEAD_BYTES);
    assert!(parse(&endless.as_bytes()[..limits::HEAD_BYTES - 1]).unwrap().is_none());
    assert_eq!(parse(&endless.as_bytes()[..limits::HEAD_BYTES]).unwrap_err().status, 431);
    // Frames behind a head do not count.
    let with_frames = [GOOD.as_bytes(), &[0x82; 2 * limits::HEAD_BYTES]].concat();
    assert_eq!(parse(&with_frames).unwrap().unwrap().head_bytes, GOOD.len());
}

#[test]
fn every_beginning_is_incomplete() {
    for cut in 0..GOOD.len() {
        assert!(parse(&GOOD.as_bytes()[..cut]).unwrap().is_none(), "{cut}");
    }
}

#[test]
fn targets() {
    for (target, path, query) in [
        ("/ws", "/ws", None),
        ("/ws?", "/ws", Some("")),
        ("/ws?a=b?c", "/ws", Some("a=b?c")),
        ("/ws/", "/ws/", None),
        ("/%77s", "/%77s", None),
        ("/x?u=http://h/y", "/x", Some("u=http://h/y")),
        ("http://h/ws?q", "/ws", Some("q")),
        ("HTTPS://h:1/ws", "/ws", None),
        ("http://h", "/", None),
        ("http://h?q", "/", Some("q")),
        ("*", "*", None),
        ("//ws", "//ws", None),
    ] {
        let head = GOOD.replace(" /ws ", &format!(" {target} "));
        let request = parsed(&head);
        assert_eq!((request.path, request.query), (path, query), "{target}");
    }
    assert_eq!(parsed(&GOOD.replace("GET", "BREW")).method, "BREW");
}

#[test]
fn query_values() {
    let value = |query: &str, name: &str| {
        let head = GOOD.replace(" /ws ", &format!(" /ws?{query} "));
        parsed(&head).query_value(name).map(|v| v.into_owned())
    };
    let some = |v: &str| Some(v.to_owned());
    assert_eq!(value("x=1&token=s3cret", "token"), some("s3cret"));
    assert_eq!(value("token=a&token=b", "token"), some("a"));
    assert_eq!(value("xtoken=a", "token"), None);
    assert_eq!(value("token", "token"), some(""));
    assert_eq!(value("token=", "token"), some(""));
    assert_eq!(value("token=a=b", "token"), some("a=b"));
    assert_eq!(value("t%6Fken=%41%2b+%20%C3%A9", "token"), some("A++ é"));
    assert_eq!(value("token=abcd%41", "token"), some("abcdA"));
    assert_eq!(value("token=%", "token"), some("%"));
    assert_eq!(value("token=%4", "token"), some("%4"));
    assert_eq!(value("token=%zz%41", "token"), some("%zzA"));
    assert_eq!(value("token=%+1", "token"), some("%+1"));
    assert_eq!(value("token=%FF", "token"), None);
    assert_eq!(value("%FF=1&token=b", "token"), some("b"));
    assert_eq!(value("", "token"), None);
    assert_eq!(parsed(GOOD).query_value("token"), None);
}

#[test]
fn subprotocols() {
    let offered = |lines: &[&str]| -> Vec<String> {
        let head = request("", lines);
        parsed(&head).subprotocols().map(str::to_owned).collect()
    };
    assert_eq!(offered(&[]), [""; 0]);
    assert_eq!(offered(&["Sec-WebSocket-Protocol: alpha, beta"]), ["alpha", "beta"]);
    assert_eq!(
        offered(&["Sec-WebSocket-Protocol: a ,b,,\tc", "X: y", "sec-websocket-protocol: d"]),
        ["a", "b", "c", "d"]
    );
    assert_eq!(offered(&["Sec-WebSocket-Protocol: bearer.czNjcmV0, chat"]), ["bearer.czNjcmV0", "chat"]);
    assert_eq!(offered(&["Sec-WebSocket-Protocol: a b, \"c\", d;e, f=g, \u{e9}, ok"]), ["ok"]);
    let blanks = format!("Sec-WebSocket-Protocol: b{}x", " ".repeat(12_000));
    assert_eq!(offered(&[&blanks]), [""; 0]);
    assert_eq!(offered(&[&format!("Sec-WebSocket-Protocol: {}x", ",".repeat(12_000))]), ["x"]);
}

#[test]
fn origin_and_authorization() {
    let head = request("", &["Origin:  https://a.example\t", "authorization: Bearer  s3cret"]);
    assert_eq!(parsed(&head).origin, Some(&b"https://a.example"[..]));
    assert_eq!(parsed(&head).authorization, Some(&b"Bearer  s3cret"[..]), "blanks within are kept");
    assert_eq!((parsed(GOOD).origin, parsed(GOOD).authorization), (None, None));
    assert_eq!(parsed(&request("", &["Origin:"])).origin, Some(&b""[..]));
    // The request line is no header, whatever it looks like.
    assert_eq!(parsed(&GOOD.replace("/ws", "/origin:x")).origin, None);
}

#[test]
fn refusals() {
    for (refusal, line, body) in [
        (Refusal::bad_request("upgrade failed"), "HTTP/1.1 400 Bad Request", "upgrade failed\n"),
        (Refusal::UNAUTHORIZED, "HTTP/1.1 401 Unauthorized", "unauthorized\n"),
        (Refusal::ORIGIN, "HTTP/1.1 403 Forbidden", "origin not allowed\n"),
        (Refusal::NOT_FOUND, "HTTP/1.1 404 Not Found", "not found\n"),
        (Refusal::DUPLICATE_ID, "HTTP/1.1 409 Conflict", "client id already in use\n"),
        (Refusal::HEAD_BYTES, "HTTP/1.1 431 Request Header Fields Too Large", "request head is too long\n"),
        (Refusal::FULL, "HTTP/1.1 503 Service Unavailable", "too many connections\n"),
    ] {
        let mut out = b"x".to_vec();
        refusal.write(&mut out);
        let (got, headers, text) = answer(&out[1..]);
        assert_eq!((got.as_str(), text.as_str()), (line, body));
        assert!(headers.contains(&"Connection: close".into()));
        assert!(headers.contains(&format!("Content-Length: {}", body.len())));
    }
    let mut out = Vec::new();
    Refusal::UNAUTHORIZED.write(&mut out);
    assert!(answer(&out).1.contains(&"WWW-Authenticate: Bearer".into()), "RFC 9110 15.5.2");
    let mut out = Vec::new();
    Refusal::UPGRADE_REQUIRED.write(&mut out);
    let (line, headers, body) = answer(&out);
    assert_eq!(line, "HTTP/1.1 426 Upgrade Required");
    assert!(
        headers.contains(&"Upgrade: websocket".into())
            && headers.contains(&"Connection: Upgrade, close".into())
    );
    assert_eq!(body.lines().count(), 1);
}

#[test]
fn json_answers() {
    let mut out = Vec::new();
    write_json(&mut out, 200, br#"{"status":"ok"}"#);
    let (line, headers, body) = answer(&out);
    assert_eq!((line.as_str(), body.as_str()), ("HTTP/1.1 200 OK", r#"{"status":"ok"}"#));
    assert_eq!(headers, ["Connection: close", "Content-Type: application/json", "Content-Length: 15"]);
}

/// tungstenite's client accepts our 101 (and checks the accept value).
#[test]
fn tungstenite_takes_our_answer() {
    use tungstenite::handshake::client::generate_key;
    for _ in 0..20 {
        let key = generate_key();
        let head = request("Sec-WebSocket-Key", &[&format!("Sec-WebSocket-Key: {key}")]);
        let mut out = Vec::new();
        write_accept(&mut out, &parsed(&head).upgrade().unwrap(), None);
        let accept = tungstenite::handshake::derive_accept_key(key.as_bytes());
        assert!(answer(&out).1.contains(&format!("Sec-WebSocket-Accept: {accept}")));
    }
}
