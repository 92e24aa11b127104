//! Two cores: who is where, one order for everyone, and sessions that are found from anywhere.

use crate::peer::{Message, Peer};
use crate::process::{Admin, PATIENCE, Server};
use seqcast::schema::Schema;
use seqcast::wire::{envelope, frame};
use std::collections::HashMap;
use std::time::Instant;

const SUBSCRIBERS: usize = 1000;
const EVENTS: u64 = 300;

/// Connected clients by core.
fn spread(admin: &mut Admin) -> [u64; 2] {
    let (_, stats) = admin.call("GET", "/v1/stats", None);
    let of = |core: usize| stats["perCore"][core]["connectedClients"].as_u64().expect("a gauge of each core");
    [of(0), of(1)]
}

/// Ids of connected clients, and the core of each.
fn cores(admin: &mut Admin) -> HashMap<String, u64> {
    let (_, page) = admin.call("GET", "/v1/clients?limit=10000", None);
    let rows = page["clients"].as_array().expect("rows").iter();
    rows.filter_map(|row| Some((row["id"].as_str()?.to_owned(), row["core"].as_u64()?))).collect()
}

/// A quote with this number, as a client sends it.
fn quote(number: u64) -> Vec<u8> {
    let schema = Schema::builtin();
    let event = schema.by_name("quote").expect("built in");
    let data = serde_json::json!({"symbol": "x", "bid": 1.0, "ask": 2.0, "bidSize": number, "askSize": 1,
        "ts": 0});
    let (mut payload, mut message, mut out) = (Vec::new(), Vec::new(), Vec::new());
    schema.encode_json(event, &data, &mut payload).expect("a quote");
    envelope::encode(&mut message, schema.id(event), 0, 0);
    message.extend_from_slice(&payload);
    frame::push_masked_frame(&mut out, frame::BINARY, [1, 2, 3, 4], &message);
    out
}

/// Published numbers, in order of arrival. Sequence numbers have no hole.
fn read_events(peer: &mut Peer, events: usize) -> Vec<u64> {
    let mut numbers = Vec::with_capacity(events);
    while numbers.len() < events {
        match peer.next() {
            Message::Event(seq, number) => {
                numbers.push(number);
                assert_eq!(seq, numbers.len() as u64, "a hole");
            }
            Message::Gone => panic!("the connection ended after {} events", numbers.len()),
            _ => {}
        }
    }
    numbers
}

#[test]
fn publishers_on_two_cores_make_one_order_for_a_thousand_subscribers() {
    let server = Server::start("[inbound]\nquote = \"topic:t\"\n[backpressure]\nmax_queue = 100000\n");
    let mut admin = server.admin();
    let mut peers: Vec<Peer> = (0..SUBSCRIBERS).map(|_| Peer::connect(&server, None, None)).collect();
    peers.iter_mut().for_each(|peer| peer.subscribe(0, "t"));
    let spread = spread(&mut admin);
    assert!(spread.iter().all(|clients| *clients >= 400), "clients by core: {spread:?}");

    // Two publishers on each core; each sends as fast as the socket takes it.
    let mut publishers = Vec::new();
    let mut wanted = [2, 2];
    while wanted != [0, 0] {
        let before = cores(&mut admin);
        let mut peer = Peer::connect(&server, None, None);
        peer.subscribe(0, "other");
        let after = cores(&mut admin);
        let core = after.iter().find(|(id, _)| !before.contains_key(*id)).expect("it is listed").1;
        let wanted = &mut wanted[*core as usize];
        if *wanted > 0 {
            *wanted -= 1;
            publishers.push(peer);
        }
    }
    let send = |(sender, mut peer): (usize, Peer)| {
        std::thread::spawn(move || {
            for n in 0..EVENTS {
                peer.send(&quote(sender as u64 * EVENTS + n)).expect("the server reads");
            }
            peer
        })
    };
    let senders: Vec<_> = publishers.into_iter().enumerate().map(send).collect();
    let total = senders.len() * EVENTS as usize;
    let mut readers = Vec::new();
    while !peers.is_empty() {
        let mut some = peers.split_off(peers.len().saturating_sub(SUBSCRIBERS / 8));
        readers.push(std::thread::spawn(move || {
            some.iter_mut().map(|peer| read_events(peer, total)).collect::<Vec<_>>()
        }));
    }
    let seen: Vec<Vec<u64>> =
        readers.into_iter().flat_map(|reader| reader.join().expect("a reader")).collect();
    for sender in 0..senders.len() as u64 {
        let of = seen[0].iter().filter(|number| **number / EVENTS == sender);
        assert!(
            of.copied().eq(sender * EVENTS..(sender + 1) * EVENTS),
            "events of one publisher in its order"
        );
    }
    for (subscriber, numbers) in seen.iter().enumerate() {
        assert_eq!(*numbers, seen[0], "subscriber {subscriber} saw another order");
    }
    drop(senders);
}

#[test]
fn a_session_is_found_from_whichever_core_its_next_connection_comes_in_at() {
    let identities: String = (0..64)
        .map(|n| format!("[[auth.identity]]\ntoken = \"tok-{n}\"\nid = \"c{n}\"\ntopics = [\"*\"]\n"))
        .collect();
    let server = Server::start(&format!("[auth]\nduplicate_id = \"takeover\"\n{identities}"));
    let mut admin = server.admin();
    let connect = |n: usize| Peer::connect(&server, Some(&format!("tok-{n}")), None);
    let mut peers: Vec<Peer> = (0..64).map(connect).collect();
    peers.iter_mut().for_each(|peer| peer.subscribe(0, "t"));
    let at_home = cores(&mut admin);
    assert!((0..2).all(|core| at_home.values().any(|at| *at == core)), "ids are spread: {at_home:?}");
    // With an event behind it a client that comes back is no new process.
    admin.publish("t", 1, 1);
    peers.iter_mut().for_each(|peer| assert_eq!(read_events(peer, 1), [1]));
    for round in 0..6 {
        let published = round + 2;
        admin.publish("t", published, 1);
        // Half of them are cut, half are taken over by a second connection.
        for (n, peer) in peers.iter_mut().enumerate() {
            let old = std::mem::replace(peer, connect(n));
            match round % 2 {
                0 => drop(old),
                _ => old.reset(),
            }
        }
        assert_eq!(cores(&mut admin), at_home, "a session stays where it is at home");
        for peer in &mut peers {
            peer.control(|e| e.hello(&[], published as i64 - 1));
            let end = Instant::now() + PATIENCE;
            loop {
                match peer.next() {
                    Message::Event(seq, number) => {
                        assert_eq!((seq, number), (published, published));
                        break;
                    }
                    Message::Gone => panic!("the connection ended"),
                    _ => assert!(Instant::now() < end, "the event did not come"),
                }
            }
        }
    }
    assert_eq!(admin.stat("adopted"), 6 * 64);
}

#[test]
fn clients_of_one_listener_are_spread_and_all_are_listed() {
    let folder = std::env::temp_dir().join(format!("seqcast-cores-test-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("ws");
    let server = Server::start(&format!("[server]\nlisten = [\"unix:{}\"]\n", path.display()));
    let mut admin = server.admin();
    let peers: Vec<Peer> = (0..100).map(|_| Peer::unix(&path)).collect();
    assert_eq!(spread(&mut admin), [50, 50]);
    let mut asking = Peer::unix_raw(&path);
    asking.send(b"GET /clients HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let listed = asking.read_to_end();
    assert_eq!(listed.matches("\"connectedAt\"").count(), peers.len(), "{listed}");
    let mut asking = Peer::unix_raw(&path);
    asking.send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(asking.read_to_end().contains("\"clients\":100"));
    std::fs::remove_dir_all(&folder).unwrap();
}
