//! A fleet of clients in several processes, and a server that is restarted under them in the middle of traffic.
//!
//! Each client checks what its gate hands out: every published number once and in order, or told that something is
//! missing. Beside them each process dials without end and counts connections that were refused.
//! `SEQCAST_FLEET_SECONDS=60 cargo test --test fleet` makes the traffic last longer.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod member;
mod publisher;
#[path = "../supervisor/mod.rs"]
#[allow(dead_code, reason = "tests/activation.rs needs more of it")]
mod supervisor;

use std::fmt::Write as _;
use std::fs;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use member::Report;
use publisher::Publisher;
use supervisor::{Service, Supervisor};

/// Processes that the clients are in.
const PROCESSES: usize = 4;
/// Traffic of a scenario unless `SEQCAST_FLEET_SECONDS` says otherwise.
const SECONDS: u64 = 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [who, address, first, clients] = &arguments[..]
        && who == "member"
    {
        member::run(address, first.parse().unwrap(), clients.parse().unwrap());
        return ExitCode::SUCCESS;
    }
    let seconds = std::env::var("SEQCAST_FLEET_SECONDS").ok().and_then(|text| text.parse().ok());
    let traffic = Duration::from_secs(seconds.unwrap_or(SECONDS));
    let stories: [(&str, Story); 3] = [
        ("a_restart_loses_nothing", restart),
        ("a_crash_is_declared_to_everyone", crash),
        ("a_thousand_come_back_at_once", stampede),
    ];
    let filter = arguments.iter().find(|argument| !argument.starts_with('-')).cloned().unwrap_or_default();
    let mut failed = 0;
    let stories = stories.into_iter().filter(|(name, _)| name.contains(&filter));
    let mut passed = 0;
    for (name, story) in stories {
        match std::panic::catch_unwind(|| story(traffic)) {
            Ok(()) => passed += 1,
            Err(_) => failed += 1,
        }
        println!("test {name} ... {}", if failed > 0 { "FAILED" } else { "ok" });
    }
    let verdict = if failed > 0 { "FAILED" } else { "ok" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
    );
    ExitCode::from(u8::from(failed > 0))
}

/// A scenario, given how long its traffic lasts.
type Story = fn(Duration);

/// SIGTERM, and a new process on the same sockets and with the state file of the old one.
fn restart(traffic: Duration) {
    let mut fleet = Fleet::new(500);
    let mut server = fleet.start();
    let publisher = fleet.publish(Duration::from_millis(40));
    fleet.join(&publisher);
    publisher.run_for(traffic / 2);
    server.stop();
    let server = fleet.start();
    publisher.run_for(traffic / 2);
    let (reports, numbers) = fleet.end(&server, publisher);
    println!("{} events to each, {reports:?}", numbers);
    assert_eq!(reports.told, 0, "nobody missed anything");
    assert_eq!((reports.lost, reports.silent, reports.again, reports.refused), (0, 0, 0, 0));
}

/// SIGKILL: everything that the server held is gone.
fn crash(traffic: Duration) {
    let mut fleet = Fleet::new(500);
    let mut server = fleet.start();
    let publisher = fleet.publish(Duration::from_millis(40));
    fleet.join(&publisher);
    publisher.run_for(traffic / 2);
    server.signal(Signal::KILL);
    server.wait();
    let server = fleet.start();
    publisher.run_for(traffic / 2);
    let (reports, numbers) = fleet.end(&server, publisher);
    println!("{} events to each, {reports:?}", numbers);
    assert_eq!(reports.told, 500, "each of them is told that its session is lost");
    assert_eq!((reports.silent, reports.again, reports.refused), (0, 0, 0));
}

/// A drain with little time: a thousand sessions come back within a moment, while events are published.
fn stampede(_: Duration) {
    let mut fleet = Fleet::new(1000);
    fleet.drain_timeout = "1s";
    let mut server = fleet.start();
    let publisher = fleet.publish(Duration::from_millis(40));
    fleet.join(&publisher);
    publisher.run_for(Duration::from_secs(1));
    server.stop();
    let server = fleet.start();
    publisher.run_for(Duration::from_secs(3));
    let (reports, numbers) = fleet.end(&server, publisher);
    println!("{} events to each, {reports:?}", numbers);
    assert_eq!((reports.told, reports.lost, reports.silent, reports.again), (0, 0, 0, 0));
    assert_eq!(reports.refused, 0);
}

/// The clients, and what they connect to.
struct Fleet {
    supervisor: Supervisor,
    address: String,
    admin: std::net::SocketAddr,
    clients: usize,
    members: Vec<Child>,
    drain_timeout: &'static str,
}

impl Fleet {
    fn new(clients: usize) -> Fleet {
        let mut supervisor = Supervisor::new();
        let address = supervisor.tcp("seqcast.socket").to_string();
        let admin = supervisor.tcp("admin");
        let mut config = String::from("[resume]\nhistory_size = 4096\n[state]\nfile = \"state\"\n");
        for n in 0..clients {
            write!(config, "[[auth.identity]]\ntoken = \"tok-{n}\"\nid = \"c{n}\"\ntopics = [\"*\"]\n")
                .unwrap();
        }
        fs::write(supervisor.folder().join("seqcast.toml"), config).unwrap();
        Fleet { supervisor, address, admin, clients, members: Vec::new(), drain_timeout: "4s" }
    }

    fn start(&self) -> Service {
        let drain = format!("server.drain_timeout={}", self.drain_timeout);
        let server =
            self.supervisor.start(&["--config", "seqcast.toml", "--cores", "2", "--set", drain.as_str()]);
        self.supervisor.hear(&server, "READY=1");
        server
    }

    fn publish(&self, pace: Duration) -> Publisher {
        Publisher::start(self.admin, pace)
    }

    /// Starts the clients; returns when all of them are subscribed.
    fn join(&mut self, publisher: &Publisher) {
        let share = self.clients / PROCESSES;
        for process in 0..PROCESSES {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["member", &self.address, &(process * share).to_string(), &share.to_string()]);
            self.members.push(command.stdout(Stdio::piped()).spawn().unwrap());
        }
        let end = Instant::now() + Duration::from_secs(60);
        while publisher.members() < self.clients as u64 {
            assert!(Instant::now() < end, "the clients do not come");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the traffic and collects what the clients have to say. The server has to live to the end.
    fn end(self, server: &Service, publisher: Publisher) -> (Report, u64) {
        let numbers = publisher.end();
        let mut sum = Report::default();
        for member in self.members {
            let output = member.wait_with_output().unwrap();
            assert!(output.status.success(), "a process of clients has failed; log:\n{}", server.log());
            sum.add(&Report::read(&String::from_utf8(output.stdout).unwrap()));
        }
        assert_eq!(sum.clients, self.clients as u64);
        (sum, numbers)
    }
}
