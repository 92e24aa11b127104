//! A restart with a state file: what clients and publishers notice of it, and what happens to the file. The binary, its
//! admin API and the Rust client; and the bytes of the file, of which none may be changed.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use seqcast::client::{Client, ClientOptions, Incoming};
use seqcast::control::state::{Damage, decode, encode, write};
use seqcast::schema::Schema;
use seqcast::shard::saved::{Origin, Saved, SavedEntry, SavedEvent, SavedRoom, SavedSession, SavedTopic};
use seqcast::shard::step::RoomKind;
use seqcast::wire::envelope::fnv1a32;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(20);

const CONFIG: &str = r#"
[server]
pin = false
drain_timeout = "8s"
[[auth.identity]]
token = "tok-ann"
id = "ann"
topics = ["*"]
[replay]
history_size = 2
[state]
file = "state"
"#;

/// A folder of its own, which stays from server to server.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("seqcast-restart-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("seqcast.toml"), CONFIG).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Files whose names begin like this.
    fn files(&self, start: &str) -> Vec<PathBuf> {
        let files = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(start)).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

struct Server {
    child: Child,
    log: PathBuf,
    listen: String,
    admin: String,
}

impl Server {
    /// `listen`: where an earlier one did, or any port.
    fn start(folder: &Folder, listen: &str, cores: &str) -> Server {
        let (ready, log) = (folder.file("ready"), folder.file("log"));
        drop(fs::remove_file(&ready));
        let child = Server::command(folder, listen, cores)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut server = Server { child, log, listen: String::new(), admin: String::new() };
        let end = Instant::now() + PATIENCE;
        let state = loop {
            assert!(Instant::now() < end, "it is not ready: {}", server.log());
            let text = fs::read(&ready).unwrap_or_default();
            match serde_json::from_slice::<Value>(&text) {
                Ok(state) => break state,
                Err(_) => sleep(Duration::from_millis(5)),
            }
        };
        server.listen = state["listen"][0].as_str().unwrap().into();
        server.admin = state["admin"].as_str().unwrap().into();
        server
    }

    fn command(folder: &Folder, listen: &str, cores: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seqcast"));
        command.args(["serve", "--config", "seqcast.toml", "--ready-file", "ready", "--listen", listen]);
        command
            .args(["--admin", "127.0.0.1:0", "--cores", cores])
            .current_dir(&folder.0)
            .stdin(Stdio::null());
        command
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it does not end: {}", self.log());
            sleep(Duration::from_millis(5));
        }
    }

    /// A restart as an operator does it.
    fn terminate(mut self) {
        self.signal(Signal::TERM);
        assert!(self.wait().success(), "{}", self.log());
    }

    fn publish(&self, topic: &str, number: u64, padding: usize) -> Value {
        let data = json!({"symbol": "x".repeat(padding), "bid": 1, "ask": 2, "bidSize": number, "askSize": 4, "ts": 5});
        let body = json!({"event": "quote", "data": data, "to": {"topic": topic}}).to_string();
        let mut stream = TcpStream::connect(&self.admin).unwrap();
        let length = body.len();
        let head = "POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length:";
        stream.write_all(format!("{head} {length}\r\n\r\n{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
    }

    /// The client "ann", whose subscription is in effect.
    fn connect(&self) -> Client {
        let options = ClientOptions {
            token: Some("tok-ann".into()),
            topics: vec!["t".into()],
            ..ClientOptions::default()
        };
        let mut client = Client::connect(&format!("ws://{}/ws", self.listen), options).unwrap();
        let pong = fnv1a32("pong");
        while !matches!(client.next(Some(PATIENCE)).unwrap(), Some(Incoming::Control { id, .. }) if id == pong)
        {
        }
        client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Numbers of the next events; nothing may be missed.
fn next(client: &mut Client, events: usize) -> Vec<u64> {
    let schema = Schema::builtin();
    let (mut numbers, end) = (Vec::new(), Instant::now() + PATIENCE);
    while numbers.len() < events {
        assert!(Instant::now() < end, "nothing more came behind {numbers:?}");
        match client.next(Some(PATIENCE)).unwrap() {
            Some(Incoming::Event { event, payload, .. }) => {
                let data = schema.decode_json(schema.by_id(event).unwrap(), &payload).unwrap();
                numbers.push(data["bidSize"].as_u64().unwrap());
            }
            Some(Incoming::Missed { from, to }) => panic!("missed {from} to {to:?}, behind {numbers:?}"),
            Some(_) | None => {}
        }
    }
    numbers
}

#[test]
fn clients_and_publishers_go_on_behind_a_restart() {
    let folder = Folder::new("goes-on");
    let first = Server::start(&folder, "127.0.0.1:0", "2");
    let listen = first.listen.clone();
    let mut client = first.connect();
    let before: Vec<Value> = (1..=5).map(|n| first.publish("t", n, 10)).collect();
    let epoch = &before[4]["epoch"];
    first.publish("other", 1, 10);
    assert_eq!(next(&mut client, 3), [1, 2, 3]);
    first.terminate();
    let state = fs::metadata(folder.file("state")).unwrap();
    assert_eq!(state.permissions().mode() & 0o777, 0o600);
    assert_eq!(folder.files("state").len(), 1);

    let second = Server::start(&folder, &listen, "3");
    assert!(second.log().contains("taking up 1 sessions and 2 topics"), "{}", second.log());
    assert!(!folder.file("state").exists(), "it is out of date from now on");
    let behind = second.publish("t", 6, 10);
    assert_eq!((&behind["epoch"], &behind["topicSeq"]), (epoch, &json!(6)));
    assert_eq!(next(&mut client, 3), [4, 5, 6]);
    assert_eq!(second.publish("other", 2, 10)["topicSeq"], 2);
    second.publish("t", 7, 10);
    second.terminate();

    let third = Server::start(&folder, &listen, "1");
    third.publish("t", 8, 10);
    assert_eq!(next(&mut client, 2), [7, 8]);
    third.signal(Signal::KILL);
    drop(third);
    // The kernel lets go of the rings of a process that was killed when it has time to.
    let end = Instant::now() + PATIENCE;
    while TcpListener::bind(&listen).is_err() {
        assert!(Instant::now() < end, "{listen} is still in use");
        sleep(Duration::from_millis(5));
    }

    assert_eq!(folder.files("state").len(), 0);
    let fourth = Server::start(&folder, &listen, "2");
    let anew = fourth.publish("t", 9, 10);
    assert_eq!(anew["topicSeq"], 1);
    assert_ne!(anew["epoch"], *epoch, "nobody can know what was lost");
    assert!(matches!(
        std::iter::from_fn(|| client.next(Some(PATIENCE)).unwrap())
            .find(|incoming| matches!(incoming, Incoming::Missed { .. } | Incoming::Event { .. })),
        Some(Incoming::Missed { to: None, .. })
    ));
}

#[test]
fn a_second_signal_ends_it_at_once_and_leaves_nothing() {
    let folder = Folder::new("at-once");
    let mut server = Server::start(&folder, "127.0.0.1:0", "2");
    let _reads_nothing = server.connect();
    for n in 0..300 {
        server.publish("t", n, 60_000);
    }
    server.signal(Signal::TERM);
    let end = Instant::now() + PATIENCE;
    while !server.log().contains("draining") {
        assert!(Instant::now() < end);
        sleep(Duration::from_millis(5));
    }
    let told = Instant::now();
    server.signal(Signal::TERM);
    assert!(server.wait().success(), "{}", server.log());
    assert!(told.elapsed() < Duration::from_secs(4), "half of the drain's time: {:?}", told.elapsed());
    assert!(!server.log().contains("left behind"), "{}", server.log());
    assert_eq!(folder.files("state"), Vec::<PathBuf>::new());
}

/// A core waits a second for its peers to close, so whoever waits without one is seen in the quickest of a few tries.
#[test]
fn a_server_without_connections_ends_at_once() {
    let folder = Folder::new("nobody");
    let end = || {
        let server = Server::start(&folder, "127.0.0.1:0", "2");
        let told = Instant::now();
        server.terminate();
        told.elapsed()
    };
    let quickest = (0..5).map(|_| end()).min().unwrap();
    assert!(quickest < Duration::from_millis(500), "{quickest:?}");
}

#[test]
fn what_is_no_state_is_put_aside_and_the_server_starts() {
    let folder = Folder::new("aside");
    let other = Schema::from_json(r#"{"events":{"e":{"type":"object","properties":{}}}}"#, "other").unwrap();
    let good = encode(&state(), &Schema::builtin());
    let cases = [
        ("is no state file", b"[not] what it should be".to_vec()),
        ("its end is missing", good[..good.len() - 1].to_vec()),
        ("written for a schema with the fingerprint", encode(&state(), &other)),
    ];
    for (n, (why, bytes)) in cases.into_iter().enumerate() {
        fs::write(folder.file("state"), &bytes).unwrap();
        // One that was stopped while it wrote.
        fs::write(folder.file("state.tmp"), "half").unwrap();
        let server = Server::start(&folder, "127.0.0.1:0", "2");
        assert!(server.log().contains(why), "{}", server.log());
        assert_eq!(server.publish("t", 1, 1)["topicSeq"], 1);
        server.signal(Signal::KILL);
        drop(server);
        let aside = folder.files("state");
        assert_eq!(aside.len(), 1, "{aside:?}");
        assert!(aside[0].to_str().unwrap().contains("state.damaged-"), "{n}: {aside:?}");
        assert_eq!(fs::read(&aside[0]).unwrap(), bytes);
        fs::remove_file(&aside[0]).unwrap();
    }
}

#[test]
fn it_does_not_start_where_it_could_not_save() {
    let folder = Folder::new("refused");
    let refused = |file: &str| {
        let set = format!("state.file={file}");
        let output = Server::command(&folder, "127.0.0.1:0", "1").args(["--set", &set]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let nowhere = refused("no/such/folder/state");
    assert!(nowhere.contains("state.file") && nowhere.contains("no/such/folder"), "{nowhere}");
    assert!(refused("/dev/null").contains("/dev/null"));
    fs::create_dir(folder.file("folder")).unwrap();
    assert!(refused("folder").contains("no regular file"));
}

/// Two cores with a bit of everything.
fn state() -> Vec<Saved> {
    let quote = |n: u64| {
        let schema = Schema::builtin();
        let data = json!({"symbol": "S", "bid": 1, "ask": 2, "bidSize": n, "askSize": 4, "ts": 5});
        let mut payload = Vec::new();
        schema.encode_json(schema.by_name("quote").unwrap(), &data, &mut payload).unwrap();
        SavedEvent { id: fnv1a32("quote"), payload: payload.into() }
    };
    let topic = SavedTopic { name: "t".into(), epoch: 9, seq: 12, history: vec![(11, 0), (12, 1)] };
    let session = |id: &str| SavedSession {
        id: id.into(),
        parked_at: 1_700_000_000_000,
        acknowledged: true,
        greeted: true,
        first_seq: 1,
        declared: 0,
        dropped: 3,
        oldest: 40,
        cursor: 41,
        lost_to: 17,
        entries: vec![
            SavedEntry::new(None, true, false),
            SavedEntry::new(Some(0), false, false),
            SavedEntry::new(Some(1), true, true),
        ],
        rooms: vec![SavedRoom { kind: RoomKind::Topic, name: "t".into(), origin: Origin::Connection }],
    };
    vec![
        Saved { events: vec![quote(1), quote(2)], topics: vec![topic], sessions: vec![session("ann")] },
        Saved { events: vec![quote(3), quote(4)], topics: vec![], sessions: vec![session("bob")] },
    ]
}

#[test]
fn what_is_written_is_read() {
    let schema = Schema::builtin();
    let bytes = encode(&state(), &schema);
    assert_eq!(decode(&bytes, &schema), Ok(state()));
    assert_eq!(decode(&encode(&[], &schema), &schema), Ok(vec![]));
}

#[test]
fn no_byte_may_change_and_none_may_be_missing_or_added() {
    let schema = Schema::builtin();
    let bytes = encode(&state(), &schema);
    for at in 0..bytes.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            assert!(decode(&changed, &schema).is_err(), "byte {at} changed by {change:02x}");
        }
        assert_eq!(decode(&bytes[..at], &schema), Err(Damage::Cut), "{at} bytes");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(decode(&longer, &schema), Err(Damage::Longer));
    assert_eq!(decode(b"", &schema), Err(Damage::Cut));
    assert_eq!(decode(b"something else", &schema), Err(Damage::Foreign));
}

#[test]
fn what_cannot_be_is_not_believed_whatever_its_checksum_says() {
    let schema = Schema::builtin();
    let refused = |change: fn(&mut Vec<Saved>)| {
        let mut state = state();
        change(&mut state);
        match decode(&encode(&state, &schema), &schema) {
            Err(Damage::Body(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    type Change = fn(&mut Vec<Saved>);
    let changes: [(&str, Change); 15] = [
        ("not there", |s| s[0].topics[0].history[1].1 = 2),
        ("not there", |s| s[0].sessions[0].entries[1] = SavedEntry::new(Some(2), false, false)),
        ("a topic has an event twice", |s| s[0].topics[0].history[1].1 = 0),
        ("a topic has an event twice", |s| s[0].topics[0].history[1].0 = 11),
        ("a topic is there twice", |s| {
            s[1].topics = vec![SavedTopic { history: vec![], ..s[0].topics[0].clone() }]
        }),
        ("a session is there twice", |s| s[1].sessions[0].id = "ann".into()),
        ("a session is in a room twice", |s| {
            let room = s[0].sessions[0].rooms[0].clone();
            s[0].sessions[0].rooms.push(room);
        }),
        ("impossible numbers", |s| s[0].topics[0].seq = 11),
        ("impossible numbers", |s| s[0].sessions[0].oldest = 0),
        ("impossible numbers", |s| s[0].sessions[0].oldest = u64::MAX),
        ("impossible numbers", |s| s[0].sessions[0].cursor = 39),
        ("impossible numbers", |s| s[0].sessions[0].cursor = 44),
        ("impossible numbers", |s| s[0].sessions[0].first_seq = 44),
        ("impossible numbers", |s| s[0].sessions[0].lost_to = 40),
        ("malformed", |s| s[0].events[0].payload = vec![9; 30].into()),
    ];
    for (n, (want, change)) in changes.into_iter().enumerate() {
        let why = refused(change);
        assert!(why.contains(want), "change {n}: {why}");
    }
}

#[test]
fn a_body_of_chance_is_read_or_not_but_never_half() {
    let schema = Schema::builtin();
    let good = encode(&state(), &schema);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chance = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    let mut believed = 0;
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + chance(3) {
            let at = 28 + chance(bytes.len() - 28);
            bytes[at] = chance(256) as u8;
        }
        let checksum = crc32fast::hash(&[&bytes[8..24], &bytes[28..]].concat());
        bytes[24..28].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(state) = decode(&bytes, &schema) {
            believed += 1;
            let cores = 1 + chance(4) as u16;
            for restored in seqcast::shard::split::split(state, 5, cores) {
                restore(&restored, cores, &schema);
            }
        }
    }
    assert!(believed > 100, "{believed}: the checks let nothing through, so nothing is shown");
}

/// Whatever passes the checks can be taken up.
fn restore(restored: &seqcast::shard::split::Restored, cores: u16, schema: &Schema) {
    use seqcast::config::Config;
    use seqcast::shard::admit::Admission;
    use seqcast::shard::census::Census;
    use seqcast::shard::step::{Input, Instant};
    use seqcast::shard::{Setup, Shard, home_of_client, home_of_topic};
    use std::sync::Arc;
    let config = Config::default();
    let of = |core: u16| Setup {
        core,
        cores,
        seed: 5,
        admission: Arc::new(Admission::new(&config.auth, config.limits.rate)),
        config: Arc::new(config.clone()),
        schema: Arc::new(schema.clone()),
        wall_ms: 1_700_000_000_000,
        census: Arc::new(Census::new(cores)),
        staged_bytes: 1 << 20,
    };
    let home = restored.sessions.first().map(|session| home_of_client(5, cores, &session.id));
    let home =
        home.or_else(|| restored.topics.first().map(|topic| home_of_topic(5, cores, &topic.topic.name)));
    let mut shard = Shard::new(of(home.unwrap_or(0)));
    shard.restore(Instant(1_000_000), restored);
    shard.check_invariants();
    shard.handle(Instant(120_000_000_000), Input::Tick);
    shard.check_invariants();
}

#[test]
fn a_file_that_is_not_wanted_any_more_is_not_put_in_its_place() {
    let folder = Folder::new("unwanted");
    let path = folder.file("state");
    let error = write(&path, b"new", &AtomicBool::new(true)).unwrap_err();
    assert!(error.to_string().contains("stop at once"));
    assert!(folder.files("state").is_empty());
    fs::write(&path, "old").unwrap();
    write(&path, b"new", &AtomicBool::new(false)).unwrap();
    assert_eq!((fs::read(&path).unwrap().as_slice(), folder.files("state").len()), (b"new".as_slice(), 1));
    assert!(write(Path::new("/no/such/folder/state"), b"", &AtomicBool::new(false)).is_err());
}
