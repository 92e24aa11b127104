//! What it costs that a subscriber is on another core than the home of its topic: CPU time of the cores per event
//! delivered, on a foreign core against on its own, in one run.
//!
//! `cargo bench --bench mesh` starts a server on two cores and subscribes as many clients on each of them, those of one
//! core to one topic and those of the other to another one, both with the same home. It publishes to one and the other
//! by turns and reads the CPU time of the threads of both cores from /proc. The events come from the admin API, whose
//! thread is not counted. What is printed is the median of the pairs' ratios, and the lowest and the highest.
//!
//! `cargo bench --bench mesh -- burst` subscribes thousands of clients to one topic, publishes bursts of events to it,
//! and prints how long the turns of the cores were.

use seqcast::wire::control::{self, Control, Encoder};
use seqcast::wire::{envelope, frame};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Subscribers on each core, and events of one half of a pair.
const WORKS: [(usize, u64); 3] = [(1, 3000), (16, 3000), (500, 1000)];
const PAIRS: usize = 9;
/// Members of the topic that gets bursts, and events of each.
const BURST_MEMBERS: usize = 9_500;
const BURSTS: [u64; 3] = [1, 16, 200];
/// Publishes in flight.
const CALLERS: u64 = 16;

fn main() {
    let server = Server::start();
    if std::env::args().any(|argument| argument == "burst") {
        return burst(&server);
    }
    println!("subscribers  own us/event  foreign us/event  ratio (lowest-highest of {PAIRS} pairs)");
    for (subscribers, events) in WORKS {
        measure(&server, subscribers, events);
    }
}

fn measure(server: &Server, subscribers: usize, events: u64) {
    let received = Arc::new(AtomicU64::new(0));
    let topics = server.topics_of_one_home(subscribers);
    let home = topics.home;
    let mut sinks: [Vec<TcpStream>; 2] = [Vec::new(), Vec::new()];
    while sinks.iter().any(|sinks| sinks.len() < subscribers) {
        let mut client = Client::connect(server.listen);
        if sinks[client.core].len() < subscribers {
            client.subscribe(if client.core == home { &topics.own } else { &topics.foreign });
            sinks[client.core].push(client.stream.into_inner());
        }
    }
    let readers: Vec<_> = sinks.into_iter().flatten().collect();
    let mut handles = Vec::new();
    for stream in readers.iter().map(|stream| stream.try_clone().expect("a descriptor")) {
        let received = Arc::clone(&received);
        handles.push(thread::Builder::new().stack_size(64 << 10).spawn(move || drain(stream, &received)));
    }
    let frame_bytes = server.frame_bytes(&topics.own, &received) / subscribers as u64;
    let half = |topic: &str| {
        let (before, cpu) = (received.load(Ordering::Relaxed), server.cpu());
        server.publish(topic, events);
        let expected = before + events * subscribers as u64 * frame_bytes;
        while received.load(Ordering::Relaxed) < expected {
            thread::sleep(Duration::from_millis(1));
        }
        (server.cpu() - cpu) as f64 / 1000.0 / (events * subscribers as u64) as f64
    };
    half(&topics.own);
    half(&topics.foreign);
    let mut pairs: Vec<(f64, f64)> = (0..PAIRS).map(|_| (half(&topics.own), half(&topics.foreign))).collect();
    pairs.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    let (own, foreign) = pairs[PAIRS / 2];
    let ratio = |(own, foreign): (f64, f64)| foreign / own;
    println!(
        "{subscribers:11}  {own:12.2}  {foreign:16.2}  {:.2} ({:.2}-{:.2})",
        foreign / own,
        ratio(pairs[0]),
        ratio(pairs[PAIRS - 1])
    );
    for stream in readers {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    for handle in handles {
        let _ = handle.map(thread::JoinHandle::join);
    }
    server.until("connectedClients", 0);
}

/// Many members of one topic and a burst of events: how long the turns of the cores were.
fn burst(server: &Server) {
    let received = Arc::new(AtomicU64::new(0));
    let mut streams = Vec::with_capacity(BURST_MEMBERS);
    for _ in 0..BURST_MEMBERS {
        let mut client = Client::connect(server.listen);
        client.subscribe("burst");
        streams.push(client.stream.into_inner());
    }
    for stream in &streams {
        stream.set_nonblocking(true).expect("a socket option");
    }
    let share = BURST_MEMBERS / 2;
    let second = streams.split_off(share);
    for mut streams in [streams, second] {
        let received = Arc::clone(&received);
        thread::spawn(move || {
            let mut buffer = [0; 64 << 10];
            loop {
                for stream in &mut streams {
                    if let Ok(n) = stream.read(&mut buffer) {
                        received.fetch_add(n as u64, Ordering::Relaxed);
                    }
                }
            }
        });
    }
    let frame_bytes = server.frame_bytes("burst", &received);
    println!("turns while {BURST_MEMBERS} clients subscribed:");
    print_turns(&server.stats());
    for events in BURSTS {
        let before = received.load(Ordering::Relaxed);
        server.publish("burst", events);
        while received.load(Ordering::Relaxed) < before + events * frame_bytes {
            thread::sleep(Duration::from_millis(1));
        }
        println!("and after a burst of {events} events, {CALLERS} in flight:");
        print_turns(&server.stats());
    }
}

fn print_turns(stats: &serde_json::Value) {
    for (core, of_core) in stats["perCore"].as_array().into_iter().flatten().enumerate() {
        println!("  core {core}: longest {} us, {}", of_core["maxTurnMicros"], of_core["turnMicros"]);
    }
}

fn drain(mut stream: TcpStream, received: &AtomicU64) {
    let mut buffer = [0; 16 << 10];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        received.fetch_add(n as u64, Ordering::Relaxed);
    }
}

struct Topics {
    home: usize,
    own: String,
    foreign: String,
}

struct Server {
    child: Child,
    listen: SocketAddr,
    admin: SocketAddr,
}

impl Server {
    fn start() -> Server {
        let ready = std::env::temp_dir().join(format!("seqcast-bench-{}.json", std::process::id()));
        // Ahead of the clients, where that is allowed: a core that has to wait for a processor has a long turn.
        let child = Command::new("nice")
            .args(["-n", "-19", env!("CARGO_BIN_EXE_seqcast")])
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
                "--cores",
                "2",
                "--ready-file",
            ])
            .arg(&ready)
            .args(["--set", "backpressure.max_queue=100000", "--set", "log.level=error"])
            .args(["--set", "server.ping_interval=0", "--set", "trace.capacity=0"])
            .stdout(Stdio::null())
            .spawn()
            .expect("the server starts");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Server { child, listen: any, admin: any };
        let end = Instant::now() + Duration::from_secs(10);
        while server.listen == any {
            assert!(Instant::now() < end, "the server does not start");
            thread::sleep(Duration::from_millis(10));
            let text = fs::read_to_string(&ready).unwrap_or_default();
            if let Ok(state) = serde_json::from_str::<serde_json::Value>(&text) {
                let address = |value: &serde_json::Value| value.as_str().and_then(|text| text.parse().ok());
                server.listen = address(&state["listen"][0]).expect("an address");
                server.admin = address(&state["admin"]).expect("an address");
            }
        }
        let _ = fs::remove_file(&ready);
        server
    }

    /// Two topics that one core is the home of, found by who counts a publish.
    fn topics_of_one_home(&self, salt: usize) -> Topics {
        let mut found: Option<(String, usize)> = None;
        for n in 0.. {
            let name = format!("topic-{salt}-{n}");
            let before = self.published();
            self.publish(&name, 1);
            let after = self.published();
            let home = (0..2).find(|core| after[*core] > before[*core]).expect("some core counts it");
            match &found {
                Some((own, of)) if *of == home => {
                    return Topics { home, own: own.clone(), foreign: name };
                }
                Some(_) => {}
                None => found = Some((name, home)),
            }
        }
        unreachable!("of three topics two have the same home");
    }

    fn published(&self) -> [u64; 2] {
        let stats = self.stats();
        [0, 1].map(|core| stats["perCore"][core]["published"].as_u64().expect("a counter of each core"))
    }

    fn stats(&self) -> serde_json::Value {
        let mut connection = BufReader::new(TcpStream::connect(self.admin).expect("the admin API"));
        call(&mut connection, "GET", "/v1/stats", "")
    }

    fn until(&self, name: &str, value: u64) {
        while self.stats()[name].as_u64() != Some(value) {
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Bytes that all subscribers of a topic together get for one event.
    fn frame_bytes(&self, topic: &str, received: &AtomicU64) -> u64 {
        let settled = || loop {
            let before = received.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(100));
            if received.load(Ordering::Relaxed) == before {
                return before;
            }
        };
        let before = settled();
        self.publish(topic, 1);
        settled() - before
    }

    /// Publishes so many events, [`CALLERS`] at a time.
    fn publish(&self, topic: &str, events: u64) {
        let data = serde_json::json!({"symbol": "x".repeat(20), "bid": 1.0, "ask": 2.0, "bidSize": 1,
            "askSize": 1, "ts": 0});
        let body = serde_json::json!({"event": "quote", "data": data, "to": {"topic": topic}}).to_string();
        let callers = CALLERS.min(events);
        thread::scope(|scope| {
            for caller in 0..callers {
                let body = &body;
                scope.spawn(move || {
                    let stream = TcpStream::connect(self.admin).expect("the admin API");
                    stream.set_nodelay(true).expect("a TCP option");
                    let mut connection = BufReader::new(stream);
                    let share = events / callers + u64::from(caller < events % callers);
                    for _ in 0..share {
                        call(&mut connection, "POST", "/v1/publish", body);
                    }
                });
            }
        });
    }

    /// CPU time of the threads of both cores, nanoseconds.
    fn cpu(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("the server runs");
        let cores = tasks.flatten().filter(|task| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("core-"))
        });
        cores
            .filter_map(|task| {
                let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
                text.split(' ').next()?.parse::<u64>().ok()
            })
            .sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn call(connection: &mut BufReader<TcpStream>, method: &str, path: &str, body: &str) -> serde_json::Value {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
    connection.get_mut().write_all(request.as_bytes()).expect("the admin API takes a request");
    let (mut length, mut line, mut status) = (0, String::new(), String::new());
    loop {
        line.clear();
        connection.read_line(&mut line).expect("the admin API answers");
        if status.is_empty() {
            status.clone_from(&line);
        }
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut bytes = vec![0; length];
    connection.read_exact(&mut bytes).expect("the admin API answers whole");
    assert!(status.contains(" 200 "), "{status} {}", String::from_utf8_lossy(&bytes));
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// A subscriber until it only reads.
struct Client {
    stream: BufReader<TcpStream>,
    encoder: Encoder,
    /// The core that made its id.
    core: usize,
}

impl Client {
    fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP option");
        let mut stream = BufReader::new(stream);
        let request = "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.get_mut().write_all(request.as_bytes()).expect("the server reads");
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).expect("the server answers");
        }
        let mut client = Client { stream, encoder: Encoder::new(), core: 0 };
        client.say(|e| e.hello(&[], 0));
        // An anonymous id is "a", the number of its core, "-" and digits.
        client.core = loop {
            let message = client.message();
            let header = envelope::parse(&message).expect("an envelope");
            if let Ok(Control::Welcome { client_id, .. }) =
                control::decode(header.id, &message[envelope::HEADER_BYTES..])
            {
                let core = client_id.strip_prefix('a').and_then(|id| id.split('-').next());
                break core.and_then(|core| core.parse().ok()).expect("an anonymous id");
            }
        };
        client
    }

    /// Subscribes; returns when the subscription holds.
    fn subscribe(&mut self, topic: &str) {
        self.say(|e| e.subscribe(topic));
        self.say(|e| e.ping(1));
        loop {
            let message = self.message();
            if envelope::parse(&message).expect("an envelope").id == envelope::id::PONG {
                return;
            }
        }
    }

    fn say(&mut self, write: impl FnOnce(&mut Encoder) -> &[u8]) {
        let mut out = Vec::new();
        frame::push_masked_frame(&mut out, frame::BINARY, [1, 2, 3, 4], write(&mut self.encoder));
        self.stream.get_mut().write_all(&out).expect("the server reads");
    }

    /// The payload of the next frame.
    fn message(&mut self) -> Vec<u8> {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head).expect("the server answers");
        let mut length = u64::from(head[1]);
        if length == 126 {
            let mut long = [0; 2];
            self.stream.read_exact(&mut long).expect("the server answers");
            length = u16::from_be_bytes(long).into();
        }
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload).expect("the server answers");
        payload
    }
}
