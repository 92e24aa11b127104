//! The driver from outside: `seqcast echo` is the io_uring layer with a core so simple that whatever goes wrong is the
//! driver's. One process a test, on a free port.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use seqcast::limits::{MESSAGE_FRAMES, SEND_BYTES};
use seqcast::wire::frame::{self, Bounds, Decoder, Item, Role};
use socket2::SockRef;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running echo server; it is killed when this is dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Server {
        Server::start_with(&["--listen", "127.0.0.1:0"], "exec \"$0\" \"$@\"")
    }

    /// Starts it through a line of shell that ends by executing its arguments.
    fn start_with(arguments: &[&str], line: &str) -> Server {
        let mut child = Command::new("sh")
            .args(["-c", line, env!("CARGO_BIN_EXE_seqcast"), "echo"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary can be started");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let address = ready.strip_prefix("listening ").expect("it says where it listens").trim().to_owned();
        Server { child, address }
    }

    fn tcp(&self) -> TcpStream {
        let address: SocketAddr = self.address.parse().unwrap();
        let stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn connect(&self) -> Peer<TcpStream> {
        Peer::upgrade(self.tcp()).expect("the upgrade is answered")
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Processor time so far, ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits until so many descriptors are open.
    fn settles_at(&self, descriptors: usize) {
        let end = Instant::now() + PATIENCE;
        while self.descriptors() != descriptors {
            assert!(Instant::now() < end, "{} descriptors, not {descriptors}", self.descriptors());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A WebSocket client that reads whole messages.
struct Peer<S> {
    stream: S,
    decoder: Decoder,
    unread: Vec<u8>,
}

impl<S: Read + Write> Peer<S> {
    /// The stream comes back if there is no answer within its read timeout.
    fn upgrade(mut stream: S) -> Result<Peer<S>, S> {
        let request = b"GET /any HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.write_all(request).unwrap();
        Peer::answered(stream)
    }

    fn answered(mut stream: S) -> Result<Peer<S>, S> {
        let mut unread = Vec::new();
        let end = loop {
            if let Some(at) = unread.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            let mut chunk = [0; 1024];
            match stream.read(&mut chunk) {
                Ok(count) => {
                    assert!(count > 0, "the server closed");
                    unread.extend_from_slice(&chunk[..count]);
                }
                Err(error) => {
                    let late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                    assert!(late && unread.is_empty(), "{error}");
                    return Err(stream);
                }
            }
        };
        assert!(unread.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&unread));
        let unread = unread.split_off(end);
        Ok(Peer { stream, decoder: Decoder::new(Role::Client), unread })
    }

    fn send(&mut self, opcode: u8, payload: &[u8]) {
        self.stream.write_all(&masked(opcode, payload)).unwrap();
    }

    /// The next message, binary.
    fn message(&mut self) -> Vec<u8> {
        let bounds = Bounds { message_bytes: 16 << 20, message_frames: MESSAGE_FRAMES };
        loop {
            let mut input = &mut self.unread[..];
            let found = match self.decoder.next(&mut input, &bounds).unwrap() {
                Some(Item::Message { text: false, payload }) => Some(payload.to_vec()),
                Some(other) => panic!("not a message: {other:?}"),
                None => None,
            };
            let left = input.len();
            self.unread.drain(..self.unread.len() - left);
            if let Some(message) = found {
                return message;
            }
            let mut chunk = vec![0; 1 << 16];
            let count = self.stream.read(&mut chunk).unwrap();
            assert!(count > 0, "the server closed");
            self.unread.extend_from_slice(&chunk[..count]);
        }
    }

    fn echoes(&mut self, payload: &[u8]) {
        self.send(frame::BINARY, payload);
        assert!(self.message() == payload, "{} bytes came back changed", payload.len());
    }
}

fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_masked_frame(&mut out, opcode, [0xA5, 1, 0x7F, 0xFF], payload);
    out
}

/// Bytes that show a loss, a repetition and a change of order.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn messages_of_every_size_come_back() {
    let server = Server::start();
    let mut peer = server.connect();
    for size in [0, 1, 125, 126, 2048, 16_384, 16_385, SEND_BYTES - 4, SEND_BYTES, 65_535, 65_536, 300_000] {
        peer.echoes(&pattern(size));
    }
    let (mut writer, large) = (peer.stream.try_clone().unwrap(), pattern(16 << 20));
    let sent = masked(frame::BINARY, &large);
    let sending = thread::spawn(move || writer.write_all(&sent).unwrap());
    assert!(peer.message() == large, "16 MiB came back changed");
    sending.join().unwrap();
}

#[test]
fn a_unix_socket_serves_like_tcp() {
    let path = std::env::temp_dir().join(format!("seqcast-echo-{}", std::process::id()));
    let server = Server::start_with(&["--listen", &format!("unix:{}", path.display())], "exec \"$0\" \"$@\"");
    let stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut peer = Peer::upgrade(stream).unwrap();
    for size in [1, 70_000, 3 << 20] {
        let (mut writer, payload) = (peer.stream.try_clone().unwrap(), pattern(size));
        let sent = masked(frame::BINARY, &payload);
        let sending = thread::spawn(move || writer.write_all(&sent).unwrap());
        assert!(peer.message() == payload, "{size} bytes came back changed");
        sending.join().unwrap();
    }
    drop(server);
    fs::remove_file(&path).unwrap();
}

/// The kernel refuses bytes again and again, in the middle of small frames and of large ones.
#[test]
fn a_slow_reader_gets_everything_in_order() {
    const MESSAGES: usize = 600;
    let server = Server::start();
    let stream = server.tcp();
    SockRef::from(&stream).set_recv_buffer_size(65_536).unwrap();
    let mut peer = Peer::upgrade(stream).unwrap();
    let size = |number: usize| [100, 3000, 40_000, 17][number % 4];
    let message = move |number: usize| {
        let mut payload = pattern(size(number));
        payload[..8].copy_from_slice(&(number as u64).to_be_bytes());
        payload
    };
    let mut writer = peer.stream.try_clone().unwrap();
    let sending = thread::spawn(move || {
        (0..MESSAGES).for_each(|number| writer.write_all(&masked(frame::BINARY, &message(number))).unwrap());
    });
    for number in 0..MESSAGES {
        assert!(peer.message() == message(number), "message {number}");
    }
    sending.join().unwrap();
}

/// More arrives at once than there are receive buffers. Nobody's bytes are lost, and nobody waits for ever.
#[test]
fn receives_go_on_after_all_buffers_were_in_use() {
    const PEERS: usize = 100;
    const BYTES: usize = 100_000;
    let server = Server::start();
    let mut peers: Vec<_> = (0..PEERS).map(|_| server.connect()).collect();
    server.signal("-STOP");
    for (number, peer) in peers.iter_mut().enumerate() {
        let mut payload = pattern(BYTES);
        payload[0] = number as u8;
        // What the kernel does not take of it now is left out for everyone alike.
        SockRef::from(&peer.stream).set_send_buffer_size(4 * BYTES).unwrap();
        peer.send(frame::BINARY, &payload);
    }
    server.signal("-CONT");
    for (number, peer) in peers.iter_mut().enumerate() {
        let mut payload = pattern(BYTES);
        payload[0] = number as u8;
        assert!(peer.message() == payload, "peer {number}");
        peer.echoes(b"and again");
    }
}

/// Bytes behind a close frame are read and thrown away, so that our close frame is not lost to a reset.
#[test]
fn a_close_is_clean_even_when_more_was_sent() {
    let server = Server::start();
    let before = server.descriptors();
    let mut peer = server.connect();
    let mut bytes = masked(frame::CLOSE, &1000u16.to_be_bytes());
    bytes.extend(masked(frame::BINARY, &pattern(500_000)));
    peer.stream.write_all(&bytes).unwrap();
    let mut answer = Vec::new();
    peer.stream.read_to_end(&mut answer).expect("FIN, not a reset");
    assert_eq!(answer, [0x88, 2, 3, 0xE8]);
    assert_eq!(server.descriptors(), before + 1, "the server waits for our FIN");
    drop(peer);
    server.settles_at(before);
}

#[test]
fn connections_that_end_at_any_point_leave_nothing_behind() {
    let server = Server::start();
    let mut witness = server.connect();
    witness.echoes(b"before");
    let before = server.descriptors();
    for round in 0..120 {
        let reset = round % 2 == 0;
        let stream = match round % 4 {
            0 | 1 => server.tcp(),
            2 => {
                let mut stream = server.tcp();
                stream.write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
                stream
            }
            _ => {
                let mut peer = server.connect();
                // Several answers are under way to a peer that reads none of them.
                (0..20).for_each(|_| peer.send(frame::BINARY, &pattern(50_000)));
                peer.stream
            }
        };
        if reset {
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        } else if round % 3 == 0 {
            stream.shutdown(Shutdown::Write).unwrap();
        }
    }
    server.settles_at(before);
    witness.echoes(b"after");
}

#[test]
fn a_request_that_is_no_upgrade_is_answered_and_closed() {
    let server = Server::start();
    let before = server.descriptors();
    let mut stream = server.tcp();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 426 "), "{answer}");
    drop(stream);
    server.settles_at(before);
}

/// Accepting pauses when the descriptors are used up, says so once, and goes on as soon as there are some.
#[test]
fn running_out_of_descriptors_hurts_nobody_who_is_there() {
    const LIMIT: usize = 24;
    let log = std::env::temp_dir().join(format!("seqcast-echo-log-{}", std::process::id()));
    let line = format!("ulimit -n {LIMIT}; exec \"$0\" \"$@\" 2>{}", log.display());
    let server = Server::start_with(&["--listen", "127.0.0.1:0"], &line);
    let mut peers = Vec::new();
    let waiting = loop {
        let stream = server.tcp();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        match Peer::upgrade(stream) {
            Ok(peer) => peers.push(peer),
            Err(stream) => break stream,
        }
        assert!(peers.len() <= LIMIT, "more connections than descriptors");
    };
    waiting.set_read_timeout(Some(PATIENCE)).unwrap();
    peers.iter().for_each(|peer| peer.stream.set_read_timeout(Some(PATIENCE)).unwrap());
    peers.iter_mut().for_each(|peer| peer.echoes(b"still here"));
    let ticks = server.ticks();
    thread::sleep(Duration::from_millis(300));
    assert!(server.ticks() - ticks < 10, "it does not spin while it has no descriptors");
    drop(peers.pop());
    Peer::answered(waiting).expect("it is accepted now").echoes(b"at last");
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("no more connections can be accepted").count(), 1, "{said}");
    fs::remove_file(&log).unwrap();
}

#[test]
fn an_idle_server_sleeps() {
    let server = Server::start();
    let mut peers: Vec<_> = (0..50).map(|_| server.connect()).collect();
    peers.iter_mut().for_each(|peer| peer.echoes(b"busy"));
    let ticks = server.ticks();
    thread::sleep(Duration::from_millis(500));
    assert!(server.ticks() - ticks <= 1, "{} ticks of 10 ms in half a second", server.ticks() - ticks);
    peers.iter_mut().for_each(|peer| peer.echoes(b"awake"));
}
