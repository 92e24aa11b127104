//! A supervisor as systemd is one: it opens sockets, passes them to `seqcast serve`, and hears what that says.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Becomes the server with the process id that the sockets are meant for.
const BECOME: &str = r#"LISTEN_PID=$$ exec "$0" "$@""#;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Keeps sockets open from one run of the server to the next.
pub struct Supervisor {
    folder: PathBuf,
    ear: UnixDatagram,
    sockets: Vec<(String, OwnedFd)>,
    /// Variables for the server.
    pub environment: Vec<(&'static str, String)>,
}

impl Supervisor {
    /// One that has no sockets yet.
    pub fn new() -> Supervisor {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("seqcast-supervisor-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let ear = UnixDatagram::bind(folder.join("notify")).unwrap();
        ear.set_read_timeout(Some(PATIENCE)).unwrap();
        Supervisor { folder, ear, sockets: Vec::new(), environment: Vec::new() }
    }

    /// A folder for the files of the test.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Passes any descriptor on.
    pub fn pass(&mut self, name: &str, descriptor: impl Into<OwnedFd>) {
        self.sockets.push((name.into(), descriptor.into()));
    }

    /// Listens on a free port of loopback.
    pub fn tcp(&mut self, name: &str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        self.pass(name, listener);
        address
    }

    /// Listens on a unix socket in its folder.
    pub fn unix(&mut self, name: &str) -> PathBuf {
        let path = self.folder.join(format!("{}.sock", self.sockets.len()));
        self.pass(name, UnixListener::bind(&path).unwrap());
        path
    }

    /// Runs `seqcast serve` with these arguments.
    pub fn start(&self, arguments: &[&str]) -> Service {
        let log = self.folder.join("log");
        let file = fs::File::options().create(true).append(true).open(&log).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", BECOME, env!("CARGO_BIN_EXE_seqcast"), "serve"]).args(arguments);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let names: Vec<&str> = self.sockets.iter().map(|(name, _)| name.as_str()).collect();
        command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        if names.is_empty() {
            command.env_remove("LISTEN_FDNAMES");
        }
        command.env("NOTIFY_SOCKET", self.folder.join("notify"));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let from_3_on = self
            .sockets
            .iter()
            .zip(3..)
            .map(|((_, socket), child_fd)| FdMapping { parent_fd: socket.try_clone().unwrap(), child_fd });
        command.fd_mappings(from_3_on.collect()).unwrap();
        Service { child: command.spawn().unwrap(), log }
    }

    /// The next message, if there is one in time.
    pub fn hear_within(&self, time: Duration) -> Option<Message> {
        self.ear.set_read_timeout(Some(time)).unwrap();
        let mut bytes = [0; 4096];
        let length = self.ear.recv(&mut bytes).ok()?;
        Some(Message(String::from_utf8(bytes[..length].to_vec()).unwrap()))
    }

    /// The next message that has this line; what it says before that is let pass.
    pub fn hear(&self, service: &Service, line: &str) -> Message {
        let end = Instant::now() + PATIENCE;
        loop {
            let message = self.hear_within(PATIENCE).filter(|_| Instant::now() < end);
            let message = message.unwrap_or_else(|| panic!("no {line:?}; log:\n{}", service.log()));
            if message.says(line) {
                return message;
            }
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// What a server said at one time: lines `NAME=VALUE`.
#[derive(Debug)]
pub struct Message(String);

impl Message {
    /// Has it this line?
    pub fn says(&self, line: &str) -> bool {
        self.0.lines().any(|said| said == line)
    }

    /// The value of a name.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }
}

/// A running server. It is killed when this is dropped.
pub struct Service {
    child: Child,
    log: PathBuf,
}

impl Service {
    /// Everything that was logged, by earlier servers of this supervisor too.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the server does not end; log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it as a supervisor does, and expects that it ends well.
    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "{status}; log:\n{}", self.log());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Sends a request without a body, for which the server ends the connection.
pub fn ask(stream: &mut impl Write, path: &str) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
}

/// The whole answer.
pub fn answer(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}
