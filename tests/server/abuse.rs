//! Clients that die, reset, dawdle, flood and promise more than they send.

use crate::peer::{Message, Peer, request};
use crate::process::{BINARY, PATIENCE, Server};
use crate::reader;
use seqcast::wire::frame;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn clients_killed_in_the_middle_of_a_burst_leave_nothing_behind() {
    const EVENTS: u64 = 1200;
    let mut server = Server::start("");
    let mut admin = server.admin();
    let descriptors = server.descriptors();
    let healthy = reader(&server, None, "t", EVENTS as usize);
    let url = format!("ws://{}/ws", server.listen);
    let subscriber = || {
        let mut command = Command::new(BINARY);
        command.args(["sub", "--url", &url, "--topic", "t"]).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).spawn().expect("the binary can be started")
    };
    let mut clients: Vec<Child> = (0..24).map(|_| subscriber()).collect();
    server.wait_for("25 members", PATIENCE, |_| (admin.members("t") == 25).then_some(()));
    for n in 1..=EVENTS {
        admin.publish("t", n, 1000);
        if n % 40 == 0 {
            // SIGKILL: the kernel closes the socket with whatever was unread.
            if let Some(mut client) = clients.pop() {
                client.kill().expect("a child can be killed");
                client.wait().expect("a killed child ends");
            }
        }
    }
    assert!(clients.is_empty(), "the burst was too short to kill everybody in it");
    assert_eq!(healthy.join().expect("the well-behaved subscriber"), (1..=EVENTS).collect::<Vec<_>>());
    server.settles(&mut admin, descriptors);
}

#[test]
fn resets_at_every_stage_leave_nothing_behind() {
    const ROUNDS: u64 = 300;
    let mut server = Server::start("");
    let mut admin = server.admin();
    let descriptors = server.descriptors();
    let memory = server.memory();
    let healthy = reader(&server, None, "t", ROUNDS as usize);
    for n in 1..=ROUNDS {
        let mut peer = Peer::tcp(server.listen, None).expect("the server listens");
        match n % 6 {
            0 => {}
            1 => peer.send(&request(None).as_bytes()[..40]).expect("the server reads"),
            2 => peer.send(request(None).as_bytes()).expect("the server reads"),
            3 => peer.upgrade(None).expect("the server accepts"),
            4 => {
                peer.upgrade(None).expect("the server accepts");
                peer.send(&unfinished(1000, 10)).expect("the server reads");
            }
            _ => {
                peer.upgrade(None).expect("the server accepts");
                peer.subscribe(0, "t");
            }
        }
        let publish_first = n % 2 == 0;
        if publish_first {
            admin.publish("t", n, 2000);
        }
        peer.reset();
        if !publish_first {
            admin.publish("t", n, 2000);
        }
    }
    assert_eq!(healthy.join().expect("the well-behaved subscriber"), (1..=ROUNDS).collect::<Vec<_>>());
    server.settles(&mut admin, descriptors);
    grew_less_than(&server, memory, 24 << 20);
}

#[test]
fn handshakes_that_dawdle_are_ended_and_delay_nobody() {
    const DAWDLERS: usize = 60;
    let mut server = Server::start("[server]\nhandshake_timeout = \"400ms\"\n");
    let mut admin = server.admin();
    let descriptors = server.descriptors();
    let mut dawdlers: Vec<Peer> =
        (0..DAWDLERS).map(|_| Peer::tcp(server.listen, None).expect("the server listens")).collect();
    let head = request(None);
    let began = Instant::now();
    for byte in head.as_bytes().iter().cycle() {
        // One byte each, now and then: an open handshake never falls silent.
        dawdlers.retain_mut(|peer| !peer.is_ended() && peer.send(&[*byte]).is_ok());
        if dawdlers.is_empty() {
            break;
        }
        let asked = Instant::now();
        drop(Peer::connect(&server, None, None));
        assert!(asked.elapsed() < Duration::from_secs(1), "a good handshake took {:?}", asked.elapsed());
        assert!(began.elapsed() < Duration::from_secs(5), "{} dawdlers are still connected", dawdlers.len());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(began.elapsed() >= Duration::from_millis(400), "ended before the timeout");
    assert_eq!(admin.stat("handshakeTimeouts"), DAWDLERS as u64);
    server.settles(&mut admin, descriptors);
}

#[test]
fn floods_of_pings_that_nobody_reads_cost_no_memory() {
    let mut server = Server::start("");
    let mut admin = server.admin();
    let descriptors = server.descriptors();
    let mut healthy = Peer::connect(&server, None, None);
    healthy.subscribe(0, "t");
    let memory = server.memory();
    let mut flooders: Vec<Peer> = (0..8).map(|_| Peer::connect(&server, None, Some(4096))).collect();
    let mut pings = Vec::new();
    for i in 0..64 {
        frame::push_masked_frame(&mut pings, frame::PING, [9, 9, 9, 9], &[i; 125]);
        let mut encoder = seqcast::wire::control::Encoder::new();
        frame::push_masked_frame(&mut pings, frame::BINARY, [7, 7, 7, 7], encoder.ping(i64::from(i)));
    }
    let end = Instant::now() + Duration::from_secs(2);
    let mut round = 0;
    while Instant::now() < end {
        // A flooder whose socket takes no more has been stopped by the server: that is the reaction.
        for flooder in &mut flooders {
            flooder.flood(&pings);
        }
        round += 1;
        let asked = Instant::now();
        admin.publish("t", round, 10);
        while healthy.next() != Message::Event(round, round) {}
        assert!(asked.elapsed() < Duration::from_secs(2), "an event took {:?}", asked.elapsed());
    }
    grew_less_than(&server, memory, 16 << 20);
    drop(flooders);
    drop(healthy);
    server.settles(&mut admin, descriptors);
}

#[test]
fn unfinished_messages_are_bounded_over_all_connections() {
    const LIMIT: u64 = 2 << 20;
    let mut server = Server::start("[limits]\ninbound_bytes = \"2MiB\"\n");
    let mut admin = server.admin();
    let descriptors = server.descriptors();
    let mut healthy = Peer::connect(&server, None, None);
    healthy.subscribe(0, "t");
    let memory = server.memory();
    let part = unfinished(60_000, 50_000);
    let mut greedy: Vec<Peer> = (0..200).map(|_| Peer::connect(&server, None, None)).collect();
    for peer in &mut greedy {
        // 10 MB promised and nearly sent; a connection that was closed for it refuses the rest.
        let _ = peer.send(&part);
    }
    server.wait_for("connection closed for its memory", PATIENCE, |_| {
        (admin.stat("closedInboundBytes") >= 200 - 2 * LIMIT / 50_000 - 2).then_some(())
    });
    grew_less_than(&server, memory, 2 * LIMIT + (24 << 20));
    let closed =
        greedy.iter_mut().filter_map(|peer| close_code(peer, Duration::from_millis(1))).collect::<Vec<_>>();
    assert!(closed.iter().all(|code| *code == 1013), "close codes {closed:?}");
    admin.publish("t", 1, 10);
    assert_eq!(healthy.next(), Message::Event(1, 1));
    drop(greedy);
    drop(healthy);
    server.settles(&mut admin, descriptors);
}

#[test]
fn without_descriptors_the_server_refuses_and_recovers() {
    let mut server = Server::start_with_descriptors("", 64);
    let mut admin = server.admin();
    let descriptors = server.descriptors();
    let mut inside = Vec::new();
    let mut waiting = Vec::new();
    for _ in 0..200 {
        let mut peer = Peer::tcp(server.listen, None).expect("the kernel accepts for the server");
        peer.send(request(None).as_bytes()).expect("the kernel takes the request");
        waiting.push(peer);
    }
    server.wait_for("some clients", PATIENCE, |_| (admin.stat("connectedClients") >= 8).then_some(()));
    let asked = Instant::now();
    server.admin().stat("connectedClients");
    assert!(asked.elapsed() < Duration::from_secs(1), "no descriptor was left for the admin API");
    // Those that got an answer are in or were refused; the others wait in the kernel.
    for mut peer in waiting {
        match peer.answer_within(Duration::from_millis(20)) {
            Some(101) => inside.push(peer),
            Some(503) | None => drop(peer),
            Some(other) => panic!("status {other}"),
        }
    }
    assert!(server.is_alive(), "the server died: {}", server.log());
    assert!((8..=64).contains(&inside.len()), "{} of 200 were let in with 64 descriptors", inside.len());
    let complaints = server.log().matches("no more connections").count();
    assert!((1..=3).contains(&complaints), "the log says {complaints} times that there is no descriptor");
    drop(inside);
    server.settles(&mut admin, descriptors);
    let mut late = Peer::connect(&server, None, None);
    late.subscribe(0, "t");
    admin.publish("t", 1, 10);
    assert_eq!(late.next(), Message::Event(1, 1));
}

/// A masked binary frame that promises more than it holds.
fn unfinished(promised: u16, sent: usize) -> Vec<u8> {
    let mut bytes = vec![0x82, 0x80 | 126];
    bytes.extend_from_slice(&promised.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.resize(bytes.len() + sent, b'x');
    bytes
}

/// The code of a close frame, if there is one.
fn close_code(peer: &mut Peer, patience: Duration) -> Option<u16> {
    loop {
        match peer.next_within(patience)? {
            Message::Close(code, _) => return Some(code),
            Message::Gone => return None,
            _ => {}
        }
    }
}

fn grew_less_than(server: &Server, before: u64, bound: u64) {
    let now = server.memory();
    assert!(
        now < before + bound,
        "memory grew by {} KiB, the bound is {} KiB",
        (now - before) / 1024,
        bound / 1024
    );
}
