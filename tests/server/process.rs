//! The server under test: one child process on free ports, what the kernel says about it, and its admin API.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The binary that cargo built for this test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_seqcast");
/// How long anything may take that has no bound of its own.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How soon after its clients have gone the server must have forgotten them.
const SETTLE: Duration = Duration::from_secs(2);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A running server. It is killed when this is dropped.
pub struct Server {
    child: Child,
    folder: PathBuf,
    /// Where clients connect on TCP.
    pub listen: SocketAddr,
    admin_address: SocketAddr,
}

impl Server {
    /// Starts a server with these lines of configuration on two cores.
    pub fn start(config: &str) -> Server {
        Server::launch(config, Command::new(BINARY))
    }

    /// Starts a server that may open only so many descriptors.
    pub fn start_with_descriptors(config: &str, most: u32) -> Server {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -n {most}; exec \"$0\" \"$@\""), BINARY]);
        Server::launch(config, shell)
    }

    fn launch(config: &str, mut command: Command) -> Server {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("seqcast-server-test-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        let (file, ready, log) = (folder.join("seqcast.toml"), folder.join("ready.json"), folder.join("log"));
        fs::write(&file, config).expect("the temporary folder can be written");
        let log = fs::File::create(log).expect("the temporary folder can be written");
        let child = command
            .args(["serve", "--admin", "127.0.0.1:0", "--cores", "2", "--config"])
            .arg(&file)
            .args(if config.contains("listen =") { &[][..] } else { &["--listen", "127.0.0.1:0"] })
            .arg("--ready-file")
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor can be duplicated"))
            .stderr(log)
            .spawn()
            .expect("the binary can be started");
        let address: SocketAddr = ([127, 0, 0, 1], 0).into();
        let mut server = Server { child, folder, listen: address, admin_address: address };
        let state = server.wait_for("ready file", PATIENCE, |s| {
            assert!(s.is_alive(), "the server ended at start: {}", s.log());
            serde_json::from_str::<Value>(&fs::read_to_string(&ready).ok()?).ok()
        });
        server.listen = state["listen"][0].as_str().and_then(|a| a.parse().ok()).unwrap_or(address);
        server.admin_address = state["admin"].as_str().and_then(|a| a.parse().ok()).expect("an address");
        server
    }

    /// Asks until there is an answer.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        within: Duration,
        mut ask: impl FnMut(&mut Server) -> Option<T>,
    ) -> T {
        let end = Instant::now() + within;
        loop {
            if let Some(answer) = ask(self) {
                return answer;
            }
            assert!(Instant::now() < end, "no {what} within {within:?}; log: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Has it not ended?
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of what it logged.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        text[text.floor_char_boundary(text.len().saturating_sub(2000))..].to_owned()
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, Iterator::count)
    }

    /// Resident memory, bytes.
    pub fn memory(&self) -> u64 {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the server runs");
        let line =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the kernel tells VmRSS");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// A connection of its own to the admin API.
    pub fn admin(&self) -> Admin {
        let stream = TcpStream::connect(self.admin_address).expect("the admin API listens");
        stream.set_nodelay(true).expect("a TCP option");
        stream.set_read_timeout(Some(PATIENCE)).expect("a TCP option");
        let mut admin = Admin { stream: BufReader::new(stream) };
        admin.stat("connectedClients");
        admin
    }

    /// Within two seconds the server is alive, has no client, and as many descriptors as before.
    pub fn settles(&mut self, admin: &mut Admin, descriptors: usize) {
        let left = |s: &mut Server, a: &mut Admin| (a.stat("connectedClients"), s.descriptors());
        let end = Instant::now() + SETTLE;
        loop {
            assert!(self.is_alive(), "the server died: {}", self.log());
            let now = left(self, admin);
            if now == (0, descriptors) {
                return;
            }
            assert!(
                Instant::now() < end,
                "after {SETTLE:?}: (clients, descriptors) is {now:?}, not (0, {descriptors})"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of the server:\n{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A kept connection to the admin API.
pub struct Admin {
    stream: BufReader<TcpStream>,
}

impl Admin {
    /// One call: status and JSON body.
    pub fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let body = body.map(Value::to_string).unwrap_or_default();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
        let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        self.stream.get_mut().write_all(request.as_bytes()).expect("the admin API takes a request");
        let status = self.line().split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
        let mut length = 0;
        loop {
            let line = self.line().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).expect("the admin API answers whole");
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the admin API answers");
        line.trim_end().to_owned()
    }

    /// Publishes a quote with this number and a symbol of so many characters.
    pub fn publish(&mut self, topic: &str, number: u64, padding: usize) {
        let data = serde_json::json!({"symbol": "x".repeat(padding), "bid": 1.0, "ask": 2.0, "bidSize": number,
            "askSize": 1, "ts": 0});
        let body = serde_json::json!({"event": "quote", "data": data, "to": {"topic": topic}});
        let (status, answer) = self.call("POST", "/v1/publish", Some(&body));
        assert_eq!(status, 200, "publish: {answer}");
    }

    /// A counter or gauge.
    pub fn stat(&mut self, name: &str) -> u64 {
        let (status, answer) = self.call("GET", "/v1/stats", None);
        assert_eq!(status, 200, "stats: {answer}");
        answer[name].as_u64().unwrap_or_else(|| panic!("the statistics have no {name}: {answer}"))
    }

    /// Connected members of a topic.
    pub fn members(&mut self, topic: &str) -> u64 {
        let (status, answer) = self.call("GET", &format!("/v1/topics/{topic}"), None);
        if status == 404 { 0 } else { answer["clients"].as_array().expect("a list of members").len() as u64 }
    }
}
