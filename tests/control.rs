//! The control thread against cores that only answer: what the admin API asks and what it makes of the answers.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use seqcast::control::{AdminSocket, Control, Orders, Outcome, Parts, Supervisor};
use seqcast::limits::{ADMIN_BODY_BYTES, LISTING_ROWS};
use seqcast::mesh::{self, CorePort};
use seqcast::schema::Schema;
use seqcast::shard::step::{Answer, Ask, ClientRow, CoreId, Reply, RoomKind, RoomRow, Stats, Target};
use serde_json::{Value, json};

/// What a fake core answers; `None` leaves the question open for good.
type Script = Arc<dyn Fn(CoreId, &Ask) -> Option<Answer> + Send + Sync>;

/// When a fake core has drained; it ends when it is let go.
enum Ends {
    /// With the first order.
    AtOnce,
    /// With the second one; until then it answers questions.
    AtSecond,
    /// Not at all.
    Never,
}

/// A control thread, its cores, and what they were asked.
struct Rig {
    control: Option<Control>,
    address: SocketAddr,
    asked: Arc<Mutex<Vec<(CoreId, String)>>>,
    cores: Vec<JoinHandle<()>>,
}

impl Rig {
    fn new(cores: usize, token: &str, ends: Ends, script: Script) -> Rig {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        Rig::on(AdminSocket::Tcp(listener), address, cores, token, ends, script, None)
    }

    fn on(
        socket: AdminSocket,
        address: SocketAddr,
        cores: usize,
        token: &str,
        ends: Ends,
        script: Script,
        supervisor: Option<Supervisor>,
    ) -> Rig {
        let (port, ports) = mesh::connect(cores).unwrap();
        let control = Control::start(Parts {
            port,
            seed: 7,
            schema: Arc::new(Schema::builtin()),
            admin: Some(socket),
            token: token.into(),
            drain_timeout: Duration::from_secs(30),
            state: None,
            signals: None,
            supervisor,
        })
        .unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let mut threads = Vec::new();
        for (core, port) in ports.into_iter().enumerate() {
            let fake = Fake {
                core: core as CoreId,
                port,
                script: Arc::clone(&script),
                asked: Arc::clone(&asked),
                orders: control.orders().clone(),
                drains: Vec::new(),
                orders_to_drain: match ends {
                    Ends::AtOnce => 1,
                    Ends::AtSecond => 2,
                    Ends::Never => usize::MAX,
                },
            };
            threads.push(thread::spawn(move || fake.run()));
        }
        Rig { control: Some(control), address, asked, cores: threads }
    }

    fn control(&self) -> &Control {
        self.control.as_ref().unwrap()
    }

    fn call(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
        call(TcpStream::connect(self.address).unwrap(), method, path, headers, body)
    }

    fn get(&self, path: &str) -> Response {
        self.call("GET", path, "", b"")
    }

    fn publish(&self, body: &Value) -> Response {
        self.call("POST", "/v1/publish", "", body.to_string().as_bytes())
    }

    fn asked(&self) -> Vec<(CoreId, String)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn end(mut self) -> Outcome {
        self.control().orders().stop();
        let outcome = self.control.take().unwrap().join();
        for core in self.cores {
            core.join().unwrap();
        }
        outcome
    }
}

struct Fake {
    core: CoreId,
    port: CorePort,
    script: Script,
    asked: Arc<Mutex<Vec<(CoreId, String)>>>,
    orders: Orders,
    /// Orders to drain without an answer.
    drains: Vec<u64>,
    orders_to_drain: usize,
}

impl Fake {
    fn run(mut self) {
        while !self.turn() {
            self.port.flush();
            if self.port.may_sleep(|_| false) {
                let mut fds = [PollFd::from_borrowed_fd(self.port.bell(), PollFlags::IN)];
                poll(&mut fds, None).unwrap();
                self.port.silence();
                self.port.awake();
            }
        }
        self.port.flush();
        drop(self.port);
        self.orders.core_ended(self.core, None);
    }

    /// True when it is to end.
    fn turn(&mut self) -> bool {
        while let Some(command) = self.port.take() {
            self.asked.lock().unwrap().push((self.core, format!("{:?}", command.ask)));
            let is_end = matches!(command.ask, Ask::End);
            let answer = match command.ask {
                Ask::Drain { .. } => {
                    self.drains.push(command.ticket);
                    self.orders_to_drain = self.orders_to_drain.saturating_sub(1);
                    None
                }
                ask => (self.script)(self.core, &ask),
            };
            if let Some(answer) = answer {
                self.port.reply(Reply { ticket: command.ticket, answer });
            }
            if self.orders_to_drain == 0 {
                self.drains
                    .drain(..)
                    .for_each(|ticket| self.port.reply(Reply { ticket, answer: Answer::Ok }));
                if is_end {
                    return true;
                }
            }
        }
        false
    }
}

#[derive(Debug)]
struct Response {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Response {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Status and error code.
    fn error(&self) -> (u16, String) {
        let json = self.json();
        assert!(json["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{json}");
        (self.status, json["error"]["code"].as_str().unwrap().into())
    }
}

fn call(mut stream: impl Read + Write, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole response") + 4;
    let head = String::from_utf8(all[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Response { status, head, body: all.split_off(end) }
}

/// Answers that are right for one core without clients.
fn empty(core: CoreId, ask: &Ask) -> Option<Answer> {
    Some(match ask {
        Ask::Publish { target, .. } => Answer::Published {
            topic: matches!(target, Target::Room(RoomKind::Topic, _)).then(|| ("e1".into(), 12)),
            parked: false,
        },
        Ask::Clients { .. } => Answer::Clients { rows: vec![], more: false },
        Ask::Rooms { .. } => Answer::Rooms { rows: vec![], more: false },
        Ask::Client { .. } | Ask::Disconnect { .. } | Ask::Member { .. } | Ask::Room { .. } => {
            Answer::NotFound
        }
        Ask::Stats => Answer::Stats(Box::new(Stats { core, connected_clients: 2, ..Stats::default() })),
        Ask::Trace => Answer::Trace(Box::default()),
        Ask::Turn | Ask::ClearTrace | Ask::Reload(_) | Ask::Drain { .. } | Ask::End => Answer::Ok,
        Ask::Save => Answer::Saved(Box::default()),
    })
}

fn row(core: CoreId, id: &str) -> ClientRow {
    ClientRow {
        id: id.into(),
        user: None,
        meta: None,
        groups: vec!["g".into()],
        topics: vec![],
        connected_at: 1_720_000_000_000,
        ip: "127.0.0.1".into(),
        core,
        seq: 3,
        queued: 0,
        dropped: 1,
    }
}

/// A core with every second of `count` ids.
fn half(count: usize) -> Script {
    Arc::new(move |core, ask| match ask {
        Ask::Clients { after, limit } => {
            assert!(*limit <= LISTING_ROWS);
            let mine = (0..count).filter(|n| n % 2 == usize::from(core)).map(|n| format!("c{n:04}"));
            let mut rest = mine.filter(|id| after.as_deref().is_none_or(|after| id.as_str() > after));
            let rows = rest.by_ref().take(*limit).map(|id| row(core, &id)).collect();
            Some(Answer::Clients { rows, more: rest.next().is_some() })
        }
        _ => empty(core, ask),
    })
}

fn ids(page: &Value) -> Vec<String> {
    page["clients"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().into()).collect()
}

#[test]
fn clients_of_all_cores_are_listed_in_order_of_ids() {
    let rig = Rig::new(2, "", Ends::AtOnce, half(1201));
    let expected: Vec<_> = (0..1201).map(|n| format!("c{n:04}")).collect();
    let all = rig.get("/v1/clients").json();
    assert_eq!((ids(&all), &all["next"]), (expected.clone(), &Value::Null));
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = rig.get(&format!("/v1/clients?limit=400{after}")).json();
        seen.extend(ids(&page));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(seen, expected);
    let first = json!({"id": "c0000", "groups": ["g"], "topics": [], "connectedAt": 1_720_000_000_000_u64,
        "ip": "127.0.0.1", "core": 0, "seq": 3, "queued": 0, "dropped": 1});
    assert_eq!(rig.get("/v1/clients?limit=1").json(), json!({"clients": [first], "next": "c0000"}));
    assert_eq!(rig.get("/v1/clients?limit=1&after=c1199").json()["next"], Value::Null);
    assert_eq!(rig.end(), Outcome::default());
}

#[test]
fn rooms_are_joined_and_their_members_listed() {
    let script: Script = Arc::new(|core, ask| {
        let row = |name: &str, members| RoomRow {
            name: name.into(),
            members,
            parked: u64::from(core),
            topic_seq: if core == 0 { 9 } else { 0 },
        };
        match ask {
            Ask::Rooms { .. } => {
                Some(Answer::Rooms { rows: vec![row("idle", 0), row("t", 2 + u64::from(core))], more: false })
            }
            Ask::Room { room, .. } if &**room == "t" => {
                let clients = if core == 0 { vec!["b".into()] } else { vec!["a".into(), "c".into()] };
                Some(Answer::Room { row: row("t", clients.len() as u64), clients })
            }
            Ask::Room { room, .. } if &**room == "parked" => {
                Some(Answer::Room { row: row("parked", 0), clients: vec![] })
            }
            _ => empty(core, ask),
        }
    });
    let rig = Rig::new(2, "", Ends::AtOnce, script);
    let topic = json!({"topic": "t", "name": "t", "members": 5, "parked": 1, "topicSeq": 9});
    assert_eq!(rig.get("/v1/topics").json(), json!({"topics": [topic]}));
    let group = json!({"group": "t", "name": "t", "members": 5, "parked": 1});
    assert_eq!(rig.get("/v1/groups").json(), json!({"groups": [group]}));
    let one = json!({"topic": "t", "name": "t", "members": ["a", "b", "c"], "parked": 1, "topicSeq": 9,
        "clients": ["a", "b", "c"]});
    assert_eq!(rig.get("/v1/topics/t").json(), one);
    assert_eq!(rig.get("/v1/topics/none").error(), (404, "not_found".into()));
    assert_eq!(rig.get("/v1/topics/parked").error(), (404, "not_found".into()));
    rig.end();
}

#[test]
fn names_in_paths_are_opaque() {
    let script: Script = Arc::new(|core, ask| match ask {
        Ask::Room { room, .. } => {
            let row = RoomRow { name: room.clone(), members: 1, parked: 0, topic_seq: 0 };
            Some(Answer::Room { row, clients: vec![format!("of {room}").into()] })
        }
        Ask::Member { .. } | Ask::Disconnect { .. } => Some(Answer::Ok),
        _ => empty(core, ask),
    });
    let rig = Rig::new(1, "", Ends::AtOnce, script);
    let names = [
        ("", ""),
        ("x%0D%0AEvil%3A%20header", "x\r\nEvil: header"),
        ("a%2Fb%20c%3Fd%23e%252f", "a/b c?d#e%2f"),
        ("%C3%A9%E2%98%95", "é☕"),
        ("*", "*"),
        ("__proto__", "__proto__"),
        ("a+b", "a+b"),
        ("%00", "\0"),
    ];
    for (path, name) in names {
        let topic = rig.get(&format!("/v1/topics/{path}")).json();
        assert_eq!((&topic["topic"], &topic["members"]), (&json!(name), &json!([format!("of {name}")])));
        rig.asked();
        for (method, on) in [("PUT", true), ("DELETE", false)] {
            let answer = rig.call(method, &format!("/v1/clients/{path}/groups/{path}"), "", b"");
            assert_eq!((answer.status, answer.json()), (200, json!({"ok": true})), "{method} {name:?}");
            let ask = Ask::Member { id: name.into(), kind: RoomKind::Group, room: name.into(), on };
            assert_eq!(rig.asked(), [(0, format!("{ask:?}"))]);
        }
    }
    assert_eq!(rig.get("/v1/topics/%FF").error(), (400, "bad_path".into()));
    rig.end();
}

#[test]
fn publishing_goes_to_the_cores_as_it_was_meant() {
    let rig = Rig::new(1, "", Ends::AtOnce, Arc::new(empty));
    let exact = 9_007_199_254_740_993_u64;
    let data = json!({"symbol": "S", "bid": 1.5, "ask": 2, "bidSize": 3, "askSize": 4, "ts": exact});
    let answer = rig.publish(&json!({"event": "quote", "data": data, "to": {"topic": "t"}}));
    assert_eq!((answer.status, answer.json()), (200, json!({"ok": true, "epoch": "e1", "topicSeq": 12})));
    let answer = rig.publish(&json!({"event": "quote", "data": data}));
    assert_eq!(answer.json(), json!({"ok": true}));
    let asked = rig.asked();
    assert!(asked[0].1.contains("target: Room(Topic, \"t\")"), "{asked:?}");
    assert!(asked[1].1.contains("target: All"), "{asked:?}");
    let refused = rig.publish(&json!({"event": "quote", "data": {"symbol": 1}}));
    assert_eq!(refused.error(), (400, "bad_data".into()));
    assert_eq!(rig.call("POST", "/v1/publish", "", b"{not json").error(), (400, "bad_json".into()));
    assert_eq!(rig.asked(), [], "nothing bad reaches a core");
    rig.end();
}

#[test]
fn absent_and_parked_clients() {
    let script: Script = Arc::new(|core, ask| match ask {
        Ask::Publish { target: Target::Client(id), .. } if &**id == "parked" => {
            Some(Answer::Published { topic: None, parked: true })
        }
        Ask::Publish { target: Target::Client(_), .. } => Some(Answer::NotFound),
        Ask::Client { id } if &**id == "c" => Some(Answer::Client(Box::new(ClientRow {
            user: Some("ann".into()),
            meta: Some(serde_json::from_str(r#"{"z":1,"a":2}"#).unwrap()),
            ..row(core, "c")
        }))),
        _ => empty(core, ask),
    });
    let rig = Rig::new(1, "", Ends::AtOnce, script);
    let to =
        |id: &str| json!({"event": "bigVal", "data": {"id": "x", "seq": 1, "when": 2}, "to": {"client": id}});
    assert_eq!(rig.publish(&to("parked")).json(), json!({"ok": true, "parked": true}));
    assert_eq!(rig.publish(&to("gone")).error(), (404, "not_connected".into()));
    let client = rig.get("/v1/clients/c").json();
    assert_eq!((&client["userId"], &client["meta"]), (&json!("ann"), &json!({"z": 1, "a": 2})));
    assert_eq!(rig.get("/v1/clients/gone").error(), (404, "not_connected".into()));
    assert_eq!(rig.call("DELETE", "/v1/clients/gone", "", b"").error(), (404, "not_connected".into()));
    assert_eq!(rig.call("PUT", "/v1/clients/gone/topics/t", "", b"").error(), (404, "not_connected".into()));
    rig.end();
}

#[test]
fn a_client_is_disconnected_with_a_code_and_reason_that_a_close_frame_can_hold() {
    let script: Script = Arc::new(|core, ask| match ask {
        Ask::Disconnect { .. } => Some(Answer::Ok),
        _ => empty(core, ask),
    });
    let rig = Rig::new(1, "", Ends::AtOnce, script);
    let delete = |query: &str| rig.call("DELETE", &format!("/v1/clients/c{query}"), "", b"");
    assert_eq!(delete("").status, 200);
    assert_eq!(delete("?code=4001&reason=kicked%20out").status, 200);
    let ask = |code, reason: &str| {
        (0, format!("{:?}", Ask::Disconnect { id: "c".into(), code, reason: reason.into() }))
    };
    assert_eq!(rig.asked(), [ask(1000, "closed by server"), ask(4001, "kicked out")]);
    let long = format!("?reason={}", "x".repeat(124));
    for bad in ["?code=1001", "?code=2999", "?code=5000", "?code=x", "?cod=4000", long.as_str()] {
        assert_eq!(delete(bad).error(), (400, "bad_query".into()), "{bad}");
    }
    assert_eq!(delete(&format!("?reason={}", "x".repeat(123))).status, 200);
    rig.end();
}

#[test]
fn every_request_needs_the_token() {
    let rig = Rig::new(1, "adm", Ends::AtOnce, Arc::new(empty));
    for headers in ["", "Authorization: Bearer no\r\n", "Authorization: bearer adm\r\n"] {
        for path in ["/v1/clients", "/v1/nothing", "/metrics"] {
            let refused = rig.call("GET", path, headers, b"");
            assert_eq!(refused.error(), (401, "unauthorized".into()), "{path} with {headers:?}");
            assert!(refused.head.contains("www-authenticate: Bearer\r\n"), "{}", refused.head);
        }
    }
    assert_eq!(rig.asked(), []);
    let headers = "Authorization: Bearer adm\r\nOrigin: https://admin.example\r\n";
    assert_eq!(rig.call("GET", "/v1/clients", headers, b"").status, 200);
    rig.end();
}

#[test]
fn web_pages_are_kept_out_where_there_is_no_token() {
    let rig = Rig::new(1, "", Ends::AtOnce, Arc::new(empty));
    let refused = rig.call("GET", "/v1/clients", "Origin: https://example.com\r\n", b"");
    assert_eq!(refused.error(), (403, "forbidden".into()));
    assert_eq!(rig.get("/v1/clients").status, 200);
    rig.end();
}

#[test]
fn wrong_paths_methods_and_queries_get_an_error_object() {
    let rig = Rig::new(1, "", Ends::AtOnce, Arc::new(empty));
    assert_eq!(rig.get("/v1/nothing").error(), (404, "not_found".into()));
    assert_eq!(rig.get("/").error(), (404, "not_found".into()));
    assert_eq!(rig.get("/v1/publish").error(), (405, "method_not_allowed".into()));
    assert_eq!(rig.call("POST", "/v1/clients/c", "", b"").error(), (405, "method_not_allowed".into()));
    for bad in
        ["/v1/clients?limit=-1", "/v1/clients?limt=3", "/v1/trace?direction=up", "/v1/trace?limit=many"]
    {
        assert_eq!(rig.get(bad).error(), (400, "bad_query".into()), "{bad}");
    }
    rig.end();
}

#[test]
fn a_body_may_have_16_mib() {
    let rig = Rig::new(1, "", Ends::AtOnce, Arc::new(empty));
    let mut body =
        json!({"event": "bigVal", "data": {"id": "x", "seq": 1, "when": 2}}).to_string().into_bytes();
    body.resize(ADMIN_BODY_BYTES, b' ');
    assert_eq!(rig.call("POST", "/v1/publish", "", &body).status, 200);
    body.push(b' ');
    assert_eq!(rig.call("POST", "/v1/publish", "", &body).error(), (413, "too_large".into()));
    let mut chunked = TcpStream::connect(rig.address).unwrap();
    chunked
        .write_all(b"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        .unwrap();
    chunked.write_all(format!("{:x}\r\n", body.len()).as_bytes()).unwrap();
    chunked.write_all(&body).unwrap();
    chunked.write_all(b"\r\n0\r\n\r\n").unwrap();
    let mut status = [0; 12];
    chunked.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 413");
    rig.end();
}

#[test]
fn numbers_of_all_cores() {
    let rig = Rig::new(2, "", Ends::AtOnce, Arc::new(empty));
    let stats = rig.get("/v1/stats").json();
    assert_eq!((&stats["connectedClients"], &stats["sent"]), (&json!(4), &json!(0)));
    assert_eq!(stats["perCore"].as_array().unwrap().len(), 2);
    let metrics = rig.get("/metrics");
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{}", metrics.head);
    let text = String::from_utf8(metrics.body).unwrap();
    assert!(text.contains("seqcast_connected_clients{core=\"1\"} 2\n"), "{text}");
    assert_eq!(rig.get("/v1/trace").json()["enabled"], json!(false));
    assert_eq!(rig.call("DELETE", "/v1/trace", "", b"").json(), json!({"ok": true}));
    rig.end();
}

#[test]
fn a_client_that_hangs_up_takes_nothing_with_it() {
    let script: Script = Arc::new(|core, ask| match ask {
        Ask::Stats => {
            thread::sleep(Duration::from_millis(20));
            empty(core, ask)
        }
        _ => empty(core, ask),
    });
    let rig = Rig::new(1, "", Ends::AtOnce, script);
    for _ in 0..10 {
        let mut stream = TcpStream::connect(rig.address).unwrap();
        stream.write_all(b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    assert_eq!(rig.get("/v1/stats").status, 200);
    assert_eq!(rig.end(), Outcome::default());
}

#[test]
fn a_drain_keeps_the_api_up_until_the_cores_have_ended() {
    let rig = Rig::new(2, "", Ends::AtSecond, Arc::new(empty));
    assert_eq!((rig.get("/livez").status, rig.get("/readyz").status), (200, 200));
    rig.control().orders().drain();
    rig.control().orders().drain();
    let waiting = Instant::now();
    while rig.get("/readyz").status == 200 {
        assert!(waiting.elapsed() < Duration::from_secs(10), "the drain does not begin");
    }
    assert_eq!((rig.get("/livez").status, rig.get("/readyz").status), (200, 503));
    assert_eq!(rig.get("/v1/stats").status, 200);
    let address = rig.address;
    let drains = rig.asked().into_iter().filter(|(_, ask)| ask.starts_with("Drain")).count();
    assert_eq!(drains, 2, "one for each core");
    assert_eq!(rig.end(), Outcome::default());
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn a_core_that_does_not_answer_is_not_alive() {
    let script: Script = Arc::new(|core, ask| if core == 1 { None } else { empty(core, ask) });
    let rig = Rig::new(2, "", Ends::AtOnce, script);
    assert_eq!(rig.get("/livez").error(), (503, "stuck".into()));
    assert_eq!(rig.get("/readyz").status, 200);
    rig.end();
}

/// The rest of the server lives on: the admin API answers, the other core turns.
#[test]
fn a_core_that_is_stuck_starves_the_watchdog() {
    let period = Duration::from_millis(100);
    let path = std::env::temp_dir().join(format!("seqcast-watchdog-{}", std::process::id()));
    let ear = UnixDatagram::bind(&path).unwrap();
    let supervisor = Supervisor::new(path.as_os_str(), Some(period)).unwrap();
    let is_stuck = Arc::new(AtomicBool::new(false));
    let stuck = Arc::clone(&is_stuck);
    let script: Script = Arc::new(move |core, ask| match ask {
        Ask::Turn if core == 1 && stuck.load(Ordering::SeqCst) => None,
        _ => empty(core, ask),
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let socket = AdminSocket::Tcp(listener);
    let rig = Rig::on(socket, address, 2, "", Ends::AtOnce, script, Some(supervisor));
    rig.control().orders().announce("127.0.0.1:1".into());
    let is_said = |line: &str, within: Duration| {
        let end = Instant::now() + within;
        while let Some(rest) = end.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
            ear.set_read_timeout(Some(rest)).unwrap();
            let mut text = [0; 256];
            let length = ear.recv(&mut text).unwrap_or(0);
            if text[..length].starts_with(line.as_bytes()) {
                return true;
            }
        }
        false
    };
    let soon = Duration::from_secs(20);
    assert!(is_said("READY=1\nSTATUS=listening on 127.0.0.1:1\n", soon));
    assert!((0..5).all(|_| is_said("WATCHDOG=1\n", soon)));

    is_stuck.store(true, Ordering::SeqCst);
    rig.asked();
    let asked_again = Instant::now();
    while !rig.asked().iter().any(|(core, ask)| (*core, ask.as_str()) == (1, "Turn")) {
        assert!(asked_again.elapsed() < soon, "nobody asks");
        thread::sleep(Duration::from_millis(1));
    }
    // What had been answered before it got stuck may still be on its way.
    while is_said("WATCHDOG=1", period / 10) {}
    assert!(!is_said("WATCHDOG=1", 10 * period), "it is fed with what one core says");
    assert_eq!(rig.get("/v1/stats").status, 200);
    std::fs::remove_file(path).unwrap();
    rig.end();
}

#[test]
fn a_core_that_does_not_end_is_left_behind() {
    let rig = Rig::new(2, "", Ends::Never, Arc::new(empty));
    rig.control().orders().stop();
    let outcome = { rig }.control.take().unwrap().join();
    assert_eq!(outcome, Outcome { forced: true, error: None });
}

#[test]
fn a_core_that_fails_ends_the_server() {
    let rig = Rig::new(2, "", Ends::AtOnce, Arc::new(empty));
    rig.control().orders().core_ended(1, Some("the ring is gone".into()));
    let outcome = { rig }.control.take().unwrap().join();
    assert_eq!(outcome.error.as_deref(), Some("core 1: the ring is gone"));
}

#[test]
fn the_api_over_a_unix_socket() {
    let path = std::env::temp_dir().join(format!("seqcast-control-{}", std::process::id()));
    let socket = AdminSocket::Unix(UnixListener::bind(&path).unwrap());
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let rig = Rig::on(socket, nowhere, 1, "", Ends::AtOnce, Arc::new(empty), None);
    let answer = call(UnixStream::connect(&path).unwrap(), "GET", "/v1/clients", "", b"");
    assert_eq!((answer.status, answer.json()), (200, json!({"clients": [], "next": null})));
    rig.end();
    std::fs::remove_file(path).unwrap();
}
