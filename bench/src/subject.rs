//! The servers that are measured: how each is started at its fastest documented setting, what it speaks, and which
//! works it can do.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Everything that a server's command needs to know about this machine.
#[derive(Debug, Clone)]
pub struct Place {
    /// The server of this repository.
    pub seqcast: PathBuf,
    /// Another build of it.
    pub before: Option<PathBuf>,
    /// Where `bench/peers/install.sh` put the others.
    pub peers: PathBuf,
    /// A folder for configurations, process ids and logs.
    pub work: PathBuf,
}

/// What kind of server it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The server of this repository.
    Seqcast,
    /// Another build of it, to see what a change did.
    Before,
    /// A loop of send(2) and nothing else: what the kernel alone costs.
    Floor,
    /// A server of others.
    Peer,
}

/// One server in one configuration.
#[derive(Debug)]
pub struct Subject {
    /// Name in results and on the command line.
    pub name: &'static str,
    pub kind: Kind,
    /// What the generator speaks with it.
    pub protocol: &'static str,
    /// Scenarios that it has a counterpart for.
    pub scenarios: &'static [&'static str],
    /// What the reader of a report has to know about it.
    pub about: &'static str,
    command: fn(&Place, u16) -> Result<Vec<String>>,
    version: fn(&Place) -> Result<String>,
}

const SPREAD: [&str; 4] = ["latency", "fanout", "idle", "connect"];
const SPREAD_AND_ECHO: [&str; 6] = ["latency", "fanout", "idle", "connect", "echo", "churn"];
const EVERYTHING: [&str; 10] =
    ["latency", "fanout", "echo", "rpc", "connect", "idle", "resume", "slow", "churn", "cores"];

/// Every server, ours first.
pub const SUBJECTS: [Subject; 13] = [
    Subject {
        name: "seqcast",
        kind: Kind::Seqcast,
        protocol: "seqcast",
        scenarios: &EVERYTHING,
        about: "numbers each delivery per client, keeps each client's history for resume",
        command: |place, port| seqcast(&place.seqcast, port),
        version: |place| output(&place.seqcast, &["--version"]),
    },
    Subject {
        name: "before",
        kind: Kind::Before,
        protocol: "seqcast",
        scenarios: &EVERYTHING,
        about: "another build of seqcast",
        command: |place, port| seqcast(before(place)?, port),
        version: |place| output(before(place)?, &["--version"]),
    },
    Subject {
        name: "floor",
        kind: Kind::Floor,
        protocol: "plain",
        scenarios: &["fanout"],
        about: "one send(2) for each delivery and nothing else: the kernel's share",
        command: |_, port| Ok(words(&[&own()?, "floor", "--port", &port.to_string()])),
        version: |_| Ok(format!("seqcast-bench {}", env!("CARGO_PKG_VERSION"))),
    },
    Subject {
        name: "floor-coalesce",
        kind: Kind::Floor,
        protocol: "plain",
        scenarios: &["fanout"],
        about: "one send(2) for all that one subscriber has to get: the kernel's share when events are coalesced",
        command: |_, port| Ok(words(&[&own()?, "floor", "--port", &port.to_string(), "--coalesce"])),
        version: |_| Ok(format!("seqcast-bench {}", env!("CARGO_PKG_VERSION"))),
    },
    Subject {
        name: "uws-publish",
        kind: Kind::Peer,
        protocol: "plain",
        scenarios: &SPREAD_AND_ECHO,
        about: "uWebSockets (C++): the same bytes for every subscriber, no numbers, no history",
        command: |place, port| {
            Ok(words(&[&there(&place.peers.join("uws-peer"))?, &port.to_string(), "publish"]))
        },
        version: uws_version,
    },
    Subject {
        name: "uws-rewrite",
        kind: Kind::Peer,
        protocol: "plain",
        scenarios: &["latency", "fanout"],
        about: "uWebSockets (C++): a number per subscriber, one send each, no history",
        command: |place, port| {
            Ok(words(&[&there(&place.peers.join("uws-peer"))?, &port.to_string(), "rewrite"]))
        },
        version: uws_version,
    },
    Subject {
        name: "bun-publish",
        kind: Kind::Peer,
        protocol: "plain",
        scenarios: &SPREAD_AND_ECHO,
        about: "Bun's WebSocket server: the same bytes for every subscriber, no numbers, no history",
        command: |place, port| bun(place, port, "publish"),
        version: |place| output(&place.peers.join("bun"), &["--version"]),
    },
    Subject {
        name: "bun-rewrite",
        kind: Kind::Peer,
        protocol: "plain",
        scenarios: &["latency", "fanout"],
        about: "Bun's WebSocket server: a number per subscriber, one send each, no history",
        command: |place, port| bun(place, port, "rewrite"),
        version: |place| output(&place.peers.join("bun"), &["--version"]),
    },
    Subject {
        name: "nats",
        kind: Kind::Peer,
        protocol: "nats",
        scenarios: &SPREAD,
        about: "nats-server over WebSocket: core NATS, no JetStream",
        command: nats,
        version: |_| output(Path::new(&installed("nats-server")?), &["--version"]),
    },
    Subject {
        name: "nchan",
        kind: Kind::Peer,
        protocol: "plain",
        scenarios: &SPREAD,
        about: "nginx with nchan: messages kept in shared memory for 10 s",
        command: nchan,
        version: |_| output(Path::new(&installed("nginx")?), &["-v"]),
    },
    Subject {
        name: "tungstenite",
        kind: Kind::Peer,
        protocol: "plain",
        scenarios: &SPREAD_AND_ECHO,
        about: "tokio-tungstenite (Rust): one task a connection, a broadcast channel",
        command: |place, port| {
            Ok(words(&[&there(&place.peers.join("tungstenite-peer"))?, &port.to_string()]))
        },
        version: |_| locked(include_str!("../peers/tungstenite/Cargo.lock"), "tokio-tungstenite"),
    },
    Subject {
        name: "ws",
        kind: Kind::Peer,
        protocol: "plain",
        scenarios: &SPREAD_AND_ECHO,
        about: "the npm package ws under Node",
        command: |place, port| node(place, port, "ws.js", "ws"),
        version: |place| node_version(place, "ws"),
    },
    Subject {
        name: "socket.io",
        kind: Kind::Peer,
        protocol: "socket.io",
        scenarios: &SPREAD,
        about: "Socket.IO under Node: text events, WebSocket transport alone",
        command: |place, port| node(place, port, "socketio.js", "socket.io"),
        version: |place| node_version(place, "socket.io"),
    },
];

impl Subject {
    /// The command that starts it on a port of 127.0.0.1. An error says what is missing here.
    pub fn command(&self, place: &Place, port: u16) -> Result<Vec<String>> {
        (self.command)(place, port)
    }

    /// Each connection's events have numbers of its own.
    pub fn numbers(&self) -> bool {
        self.is_seqcast() || self.name.ends_with("-rewrite")
    }

    /// A build of this repository.
    pub fn is_seqcast(&self) -> bool {
        matches!(self.kind, Kind::Seqcast | Kind::Before)
    }

    /// Options that a scenario needs: sessions outlive their connection only for clients that are known.
    pub fn options(&self, place: &Place, scenario: &str) -> Result<Vec<String>> {
        if !self.is_seqcast() || scenario != "resume" {
            return Ok(Vec::new());
        }
        let file = place.work.join("resume.toml");
        let identity = |number: usize| {
            format!(
                "[[auth.identity]]\ntoken = \"client-{number}\"\nid = \"c{number}\"\n\
                 topics = [\"*\"]\npublish = [\"*\"]\n"
            )
        };
        let text: String = (0..=RESUMING).map(identity).collect();
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(words(&["--config", &file.display().to_string()]))
    }

    /// What it says about itself, on one line.
    pub fn version(&self, place: &Place) -> Result<String> {
        (self.version)(place)
    }
}

/// Most clients that may be cut and come back.
const RESUMING: usize = 1000;

/// The server of a name.
pub fn subject(name: &str) -> Result<&'static Subject> {
    let known = || SUBJECTS.map(|subject| subject.name).join(", ");
    SUBJECTS
        .iter()
        .find(|subject| subject.name == name)
        .with_context(|| format!("no server '{name}'; there are: {}", known()))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A file that must exist, as text.
fn there(path: &Path) -> Result<String> {
    if !path.exists() {
        bail!("{} is not here: bench/peers/install.sh", path.display());
    }
    Ok(path.display().to_string())
}

/// This program: it is a server too.
fn own() -> Result<String> {
    Ok(std::env::current_exe().context("this program's own path")?.display().to_string())
}

/// A program of the system, also where only root looks for it.
fn installed(name: &str) -> Result<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/usr/local/sbin"]);
    let mut candidates = folders.map(|folder| Path::new(folder).join(name));
    let found = candidates.find(|file| file.is_file());
    found.map(|file| file.display().to_string()).with_context(|| format!("{name} is not installed"))
}

fn before(place: &Place) -> Result<&Path> {
    place.before.as_deref().context("no --before FILE")
}

fn seqcast(program: &Path, port: u16) -> Result<Vec<String>> {
    let listen = format!("127.0.0.1:{port}");
    let mut command = words(&[&there(program)?, "serve", "--listen", &listen, "--cores", "1", "--admin", ""]);
    for setting in ["inbound.quote=topic:t", "inbound.trade=sender", "rpc.quote=echo"] {
        command.extend(words(&["--set", setting]));
    }
    Ok(command)
}

fn bun(place: &Place, port: u16, mode: &str) -> Result<Vec<String>> {
    let (bun, script) = (there(&place.peers.join("bun"))?, there(&place.peers.join("bun.js"))?);
    Ok(words(&[&bun, &script, &port.to_string(), mode]))
}

fn node(place: &Place, port: u16, script: &str, package: &str) -> Result<Vec<String>> {
    there(&place.peers.join("node_modules").join(package))?;
    Ok(words(&[&installed("node")?, &there(&place.peers.join(script))?, &port.to_string()]))
}

/// A configuration of `bench/peers/conf`, filled in and written where the server can read it.
fn configured(place: &Place, name: &str, template: &str, port: u16, modules: &str) -> Result<String> {
    let file = place.work.join(name);
    let text = template
        .replace("@PORT@", &port.to_string())
        .replace("@WORK@", &place.work.display().to_string())
        .replace("@MODULES@", modules);
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file.display().to_string())
}

fn nats(place: &Place, port: u16) -> Result<Vec<String>> {
    let server = installed("nats-server")?;
    let config = configured(place, "nats.conf", include_str!("../peers/conf/nats.conf"), port, "")?;
    Ok(words(&[&server, "--config", &config]))
}

fn nchan(place: &Place, port: u16) -> Result<Vec<String>> {
    let server = installed("nginx")?;
    let folders = ["/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/share/nginx/modules"];
    let module = |folder: &&&str| Path::new(folder).join("ngx_nchan_module.so").exists();
    let modules = folders.iter().find(module).context("nginx has no module nchan here")?;
    let config = configured(place, "nginx.conf", include_str!("../peers/conf/nginx.conf"), port, modules)?;
    Ok(words(&[&server, "-c", &config, "-e", "stderr"]))
}

/// The first line that a command prints, wherever it prints it.
pub fn output(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    text.lines().next().map(str::to_owned).with_context(|| format!("{} says nothing", program.display()))
}

fn node_version(place: &Place, package: &str) -> Result<String> {
    let file = place.peers.join("node_modules").join(package).join("package.json");
    let text = std::fs::read_to_string(&file).with_context(|| format!("{} is not here", file.display()))?;
    let manifest: serde_json::Value = serde_json::from_str(&text)?;
    let version = manifest["version"].as_str().context("a package has a version")?;
    Ok(format!("{package} {version}, node {}", output(Path::new(&installed("node")?), &["--version"])?))
}

/// The version of a package in a lock file.
fn locked(lock: &str, package: &str) -> Result<String> {
    let entry = format!("name = \"{package}\"\nversion = \"");
    let rest = lock.split_once(&entry).with_context(|| format!("{package} is not locked"))?.1;
    Ok(format!("{package} {}", rest.split('"').next().unwrap_or("")))
}

fn uws_version(_: &Place) -> Result<String> {
    let crate_version = locked(include_str!("../peers/uws/Cargo.lock"), "libuwebsockets-sys")?;
    Ok(format!("uWebSockets as in {crate_version}, {}", output(Path::new("c++"), &["--version"])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_told_apart_and_found() {
        let names: BTreeSet<&str> = SUBJECTS.iter().map(|subject| subject.name).collect();
        assert_eq!(names.len(), SUBJECTS.len());
        assert_eq!(subject("nats").expect("it is in the table").protocol, "nats");
        let error = subject("nuts").expect_err("no such server").to_string();
        assert!(error.contains("nats, nchan"), "{error}");
    }

    #[test]
    fn configurations_are_filled_in() {
        let work = std::env::temp_dir().join(format!("seqcast-bench-conf-{}", std::process::id()));
        std::fs::create_dir_all(&work).expect("a folder of the test");
        let place =
            Place { seqcast: PathBuf::new(), before: None, peers: PathBuf::new(), work: work.clone() };
        for (name, template) in [
            ("nats.conf", include_str!("../peers/conf/nats.conf")),
            ("nginx.conf", include_str!("../peers/conf/nginx.conf")),
        ] {
            let file = configured(&place, name, template, 1234, "/modules").expect("written");
            let text = std::fs::read_to_string(file).expect("readable");
            let settings = text.lines().filter(|line| !line.starts_with('#')).collect::<String>();
            assert!(settings.contains("127.0.0.1:1234") && !settings.contains('@'), "{text}");
        }
        std::fs::remove_dir_all(work).expect("the test's own folder");
    }

    #[test]
    fn locked_versions_are_read() {
        let lock = include_str!("../peers/uws/Cargo.lock");
        assert_eq!(locked(lock, "libuwebsockets-sys").expect("locked"), "libuwebsockets-sys 0.0.10");
        assert!(locked(lock, "absent").is_err());
    }
}
