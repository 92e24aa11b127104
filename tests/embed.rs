//! The server inside another program: start, publish, drain, stop, and that nothing stays behind.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use seqcast::client::session::SessionOptions;
use seqcast::client::{Client, ClientOptions, End, Incoming, Status};
use seqcast::config::{Config, Identity, Listen};
use seqcast::schema::Schema;
use seqcast::server::{self, PublishError, Running, Server, StartError};
use seqcast::shard::step::{RoomKind, Target};
use seqcast::wire::envelope::fnv1a32;
use serde_json::{Value, json};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// On any free port, without an admin API.
fn config() -> Config {
    let mut config = Config::default();
    config.server.listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
    config.server.pin = false;
    config.admin.listen = None;
    config
}

fn start(config: Config) -> Running {
    Server::start(server::plan(config).unwrap()).unwrap()
}

fn address(running: &Running) -> SocketAddr {
    match running.addresses().listen[0] {
        Listen::Tcp(address) => address,
        Listen::Unix(_) => panic!("TCP was asked for"),
    }
}

/// Connected, and its subscriptions are in effect.
fn client(running: &Running, token: Option<&str>, topics: &[&str]) -> Client {
    let options = ClientOptions {
        token: token.map(Into::into),
        topics: topics.iter().map(ToString::to_string).collect(),
        session: SessionOptions { reconnect: None, ..SessionOptions::default() },
        ..ClientOptions::default()
    };
    let mut client = Client::connect(&format!("ws://{}/ws", address(running)), options).unwrap();
    let pong = fnv1a32("pong");
    while !matches!(next(&mut client), Incoming::Control { id, .. } if id == pong) {}
    client
}

fn next(client: &mut Client) -> Incoming {
    client.next(Some(PATIENCE)).unwrap().expect("something in time")
}

/// `bidSize` of the next event, which is a quote.
fn number(client: &mut Client) -> u64 {
    let schema = Schema::builtin();
    loop {
        if let Incoming::Event { event, payload, .. } = next(client) {
            let data = schema.decode_json(schema.by_id(event).unwrap(), &payload).unwrap();
            return data["bidSize"].as_u64().unwrap();
        }
    }
}

fn quote(n: u64) -> Value {
    json!({"symbol": "S", "bid": 1.5, "ask": 2.5, "bidSize": n, "askSize": 1, "ts": 2})
}

fn topic(name: &str) -> Target {
    Target::Room(RoomKind::Topic, name.into())
}

#[test]
fn what_a_program_publishes_reaches_its_clients_in_order() {
    let mut config = config();
    let ann = Identity { token: "t".into(), id: Some("ann".into()), ..Identity::default() };
    config.auth.identity = vec![Identity { topics: vec!["*".into()], ..ann }];
    let running = start(config);
    let mut client = client(&running, Some("t"), &["x"]);
    let publisher = running.publisher();
    let in_topic = publisher.publish("quote", &quote(1), topic("x")).unwrap();
    assert_eq!((in_topic.topic.unwrap().1, in_topic.parked), (1, false));
    publisher.publish("quote", &quote(2), Target::All).unwrap();
    publisher.publish("quote", &quote(3), Target::Client("ann".into())).unwrap();
    publisher.publish("quote", &quote(0), topic("y")).unwrap();
    let other = publisher.clone();
    std::thread::spawn(move || other.publish("quote", &quote(4), topic("x")).unwrap()).join().unwrap();
    assert_eq!([(); 4].map(|()| number(&mut client)), [1, 2, 3, 4]);
    running.stop();
    running.join().unwrap();
}

#[test]
fn what_cannot_be_published_says_why() {
    let running = start(config());
    let publisher = running.publisher();
    let publish = |event: &str, data: Value, target| publisher.publish(event, &data, target).unwrap_err();
    assert_eq!(publish("nope", quote(1), Target::All), PublishError::UnknownEvent("nope".into()));
    let wrong = publish("quote", json!({"symbol": 5}), Target::All);
    assert!(matches!(&wrong, PublishError::Data(e) if e.field == "symbol"), "{wrong:?}");
    assert_eq!(publish("quote", quote(1), Target::Client("nobody".into())), PublishError::NotConnected);
    running.stop();
    running.join().unwrap();
    assert_eq!(publish("quote", quote(1), Target::All), PublishError::Ended);
}

#[test]
fn a_drain_lets_clients_take_what_waits_and_then_ends() {
    let running = start(config());
    let mut client = client(&running, None, &["x"]);
    for n in 0..100 {
        running.publisher().publish("quote", &quote(n), topic("x")).unwrap();
    }
    running.drain();
    assert_eq!((0..100).map(|_| number(&mut client)).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    let address = address(&running);
    let mut end = None;
    while let Ok(Some(incoming)) = client.next(Some(PATIENCE)) {
        if let Incoming::Status(Status::Closed(how)) = incoming {
            end = Some(how);
        }
    }
    assert_eq!(end, Some(End::Closed(1001)));
    running.join().unwrap();
    TcpListener::bind(address).expect("the address is free again");
}

#[test]
fn a_taken_address_is_refused_and_leaves_nothing_behind() {
    let first = start(config());
    let mut second = config();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = other.local_addr().unwrap();
    drop(other);
    second.server.listen = vec![Listen::Tcp(free), Listen::Tcp(address(&first))];
    let refused = Server::start(server::plan(second).unwrap()).unwrap_err();
    assert!(matches!(refused, StartError::Listen(_)), "{refused:?}");
    assert!(refused.to_string().contains(&address(&first).to_string()), "{refused}");
    TcpListener::bind(free).expect("the address that was free is free again");
    first.stop();
    first.join().unwrap();
}

#[test]
fn dropping_it_stops_it() {
    let path = std::env::temp_dir().join(format!("seqcast-embed-{}", std::process::id()));
    let mut config = config();
    config.server.listen.push(Listen::Unix(PathBuf::from(&path)));
    let running = start(config);
    let address = address(&running);
    assert!(path.exists());
    TcpStream::connect(address).unwrap();
    drop(running);
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    assert!(!path.exists(), "the socket file is gone");
}
