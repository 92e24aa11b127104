//! `seqcast serve` under a supervisor: inherited sockets, what it says, and that nobody is lost between two runs.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod supervisor;

use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use seqcast::client::{Client, ClientError, ClientOptions, Incoming};
use seqcast::wire::envelope::fnv1a32;
use serde_json::Value;
use supervisor::{PATIENCE, Supervisor, answer, ask};

/// Addresses that nobody must listen on.
const ELSEWHERE: [&str; 6] = ["--cores", "2", "--listen", "127.0.0.1:1", "--admin", "127.0.0.1:2"];
/// Any free port, no admin API.
const ANYWHERE: [&str; 6] = ["--cores", "2", "--listen", "127.0.0.1:0", "--admin", ""];

fn connect(address: std::net::SocketAddr, token: Option<&str>) -> Result<Client, ClientError> {
    let options =
        ClientOptions { token: token.map(Into::into), topics: vec!["x".into()], ..ClientOptions::default() };
    Client::connect(&format!("ws://{address}/ws"), options)
}

/// Its subscriptions are in effect.
fn settled(mut client: Client) -> Client {
    let pong = fnv1a32("pong");
    while !matches!(client.next(Some(PATIENCE)).unwrap(), Some(Incoming::Control { id, .. }) if id == pong) {}
    client
}

#[test]
fn two_tcp_sockets_a_unix_socket_and_one_for_the_admin_api() {
    let mut supervisor = Supervisor::new();
    let blocking = supervisor.tcp("seqcast.socket");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let not_blocking = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    supervisor.pass("seqcast.socket", listener);
    let unix = supervisor.unix("local");
    let admin = supervisor.unix("admin");
    let mut server = supervisor.start(&ELSEWHERE);
    let ready = supervisor.hear(&server, "READY=1");

    let status = ready.value("STATUS").unwrap();
    let places = format!("listening on {blocking}, {not_blocking}, unix:{}; admin API", unix.display());
    assert!(status.starts_with(&places), "{status}");
    assert!(server.log().contains("they come in place of server.listen"), "{}", server.log());

    let mut clients = [blocking, not_blocking].map(|address| settled(connect(address, None).unwrap()));
    for path in [&unix, &unix] {
        let mut stream = UnixStream::connect(path).unwrap();
        ask(&mut stream, "/health");
        assert!(answer(stream).starts_with("HTTP/1.1 200 "));
    }
    let url = format!("unix:{}", admin.display());
    let mut publish = std::process::Command::new(env!("CARGO_BIN_EXE_seqcast"));
    let quote = r#"{"symbol":"S","bid":1,"ask":2,"bidSize":3,"askSize":4,"ts":5}"#;
    publish.args(["pub", "--url", &url, "--topic", "x", "quote", quote]);
    assert!(publish.status().unwrap().success());
    for client in &mut clients {
        let event = loop {
            if let Incoming::Event { seq, .. } = client.next(Some(PATIENCE)).unwrap().expect("an event") {
                break seq;
            }
        };
        assert_eq!(event, Some(1));
    }
    // One accepts, and gives every other connection to the other core.
    let mut stream = UnixStream::connect(&admin).unwrap();
    ask(&mut stream, "/v1/stats");
    let text = answer(stream);
    let stats: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
    let by_core = stats["perCore"].as_array().unwrap().iter().map(|core| core["connectedClients"].as_u64());
    assert_eq!(by_core.collect::<Vec<_>>(), [Some(1), Some(1)], "{text}");
    assert!(!server.log().contains("cannot be accepted"), "{}", server.log());
    server.signal(Signal::TERM);
    let stopping = supervisor.hear(&server, "STOPPING=1");
    assert_eq!(stopping.value("EXTEND_TIMEOUT_USEC"), Some("15000000"), "10 s of draining, and a margin");
    assert!(server.wait().success(), "{}", server.log());
    assert!(unix.exists() && admin.exists(), "the files belong to the supervisor");
}

#[test]
fn who_connects_between_two_runs_is_served_by_the_next() {
    let mut supervisor = Supervisor::new();
    let address = supervisor.tcp("seqcast.socket");
    let unix = supervisor.unix("seqcast.socket");
    let arguments = ["--cores", "2", "--listen", "127.0.0.1:1", "--admin", ""];
    let mut first = supervisor.start(&arguments);
    supervisor.hear(&first, "READY=1");
    drop(settled(connect(address, None).unwrap()));
    first.stop();

    let mut tcp: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut local: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&unix).unwrap()).collect();
    tcp.iter_mut().for_each(|stream| ask(stream, "/health"));
    local.iter_mut().for_each(|stream| ask(stream, "/health"));
    let mut second = supervisor.start(&arguments);
    supervisor.hear(&second, "READY=1");
    let answers = tcp.into_iter().map(answer).chain(local.into_iter().map(answer));
    assert!(answers.map(|text| text.starts_with("HTTP/1.1 200 ")).eq([true; 40]));
    second.stop();
}

#[test]
fn a_reload_ends_when_every_core_has_what_was_read() {
    let supervisor = Supervisor::new();
    let file = supervisor.folder().join("seqcast.toml");
    fs::write(&file, "[auth]\ntoken = \"first\"\n").unwrap();
    let mut arguments = ANYWHERE.to_vec();
    arguments.extend(["--config", "seqcast.toml"]);
    let mut server = supervisor.start(&arguments);
    let ready = supervisor.hear(&server, "READY=1");
    let address = ready.value("STATUS").unwrap().split([' ', ';']).nth(2).unwrap().parse().unwrap();
    drop(connect(address, Some("first")).unwrap());

    fs::write(&file, "[auth]\ntoken = \"second\"\n").unwrap();
    let now = clock_gettime(ClockId::Monotonic);
    let before = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000;
    server.signal(Signal::HUP);
    let reloading = supervisor.hear(&server, "RELOADING=1");
    let since = reloading.value("MONOTONIC_USEC").unwrap().parse::<u64>().unwrap();
    assert!((before..before + PATIENCE.as_micros() as u64).contains(&since), "{before} {since}");
    supervisor.hear(&server, "READY=1");
    drop(connect(address, Some("second")).unwrap());
    assert!(matches!(connect(address, Some("first")), Err(ClientError::Refused { status: 401, .. })));

    fs::write(&file, "no_such_key = 1\n").unwrap();
    server.signal(Signal::HUP);
    supervisor.hear(&server, "RELOADING=1");
    supervisor.hear(&server, "READY=1");
    assert!(server.log().contains("everything stays as it was"), "{}", server.log());
    server.stop();
}

#[test]
fn a_server_that_lives_feeds_the_watchdog() {
    let mut supervisor = Supervisor::new();
    supervisor.environment.push(("WATCHDOG_USEC", "200000".into()));
    let mut server = supervisor.start(&ANYWHERE);
    supervisor.hear(&server, "READY=1");
    for _ in 0..5 {
        supervisor.hear(&server, "WATCHDOG=1");
    }
    server.stop();
}

#[test]
fn what_it_does_is_told_every_few_seconds() {
    let supervisor = Supervisor::new();
    let mut server = supervisor.start(&ANYWHERE);
    let ready = supervisor.hear(&server, "READY=1");
    let address = ready.value("STATUS").unwrap().split([' ', ';']).nth(2).unwrap().parse().unwrap();
    let _client = settled(connect(address, None).unwrap());
    let report = supervisor.hear_within(PATIENCE).unwrap();
    let status = report.value("STATUS").unwrap();
    assert!(status.starts_with("1 connections, 0 parked sessions, "), "{status}");
    server.stop();
}

#[test]
fn one_that_cannot_start_is_never_ready() {
    let refused = |supervisor: Supervisor, arguments: &[&str], why: &str| {
        let mut server = supervisor.start(arguments);
        let status = server.wait();
        let log = server.log();
        assert_eq!(status.code(), Some(1), "{why}: {log}");
        assert!(log.lines().any(|l| l.starts_with("seqcast: ") && l.contains(why)), "{why}: {log}");
        assert!(supervisor.hear_within(Duration::from_millis(1)).is_none(), "{why}: it said something");
    };
    let mut supervisor = Supervisor::new();
    supervisor.pass("seqcast.socket", UdpSocket::bind("127.0.0.1:0").unwrap());
    refused(supervisor, &ELSEWHERE, "descriptor 3 (\"seqcast.socket\") is a socket for single packets");

    let mut supervisor = Supervisor::new();
    supervisor.tcp("seqcast.socket");
    supervisor.pass("seqcast.socket", UnixStream::pair().unwrap().0);
    refused(supervisor, &ELSEWHERE, "descriptor 4 (\"seqcast.socket\") does not listen");

    let mut supervisor = Supervisor::new();
    supervisor.pass("admin", TcpListener::bind("0.0.0.0:0").unwrap());
    refused(supervisor, &ELSEWHERE, "there is no admin.token");

    let mut supervisor = Supervisor::new();
    supervisor.tcp("admin");
    supervisor.unix("admin");
    refused(supervisor, &ELSEWHERE, "several are named \"admin\"");

    let mut supervisor = Supervisor::new();
    supervisor.tcp("seqcast.socket");
    supervisor.environment.push(("LISTEN_FDS", "9".into()));
    refused(supervisor, &ELSEWHERE, "cannot use the inherited sockets: LISTEN_FDS");

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut supervisor = Supervisor::new();
    supervisor.tcp("seqcast.socket");
    refused(supervisor, &["--listen", "127.0.0.1:1", "--admin", &address], "another process listens there");
}
