//! `seqcast doctor`: whether the server can run here, one line a finding with its fix.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use rustix::fs::Access;
use seqcast::config::{Config, Listen, Loaded, memory_sum};
use seqcast::server;
use seqcast::uring::{self, Finding, Grade};

use super::{ConfigArgs, Failure, check, host, one_line, print};

fn ok(text: impl Into<String>) -> Finding {
    finding(Grade::Good, text, "")
}

fn finding(grade: Grade, text: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { grade, text: text.into(), fix: fix.into() }
}

pub fn run(args: &ConfigArgs) -> Result<ExitCode, Failure> {
    let mut findings = uring::findings();
    match args.load() {
        Err(Failure(text)) => findings.push(finding(Grade::Bad, text, "")),
        Ok(loaded) => findings.extend(of_configuration(&loaded)),
    }
    let line = |f: &Finding| {
        let grade = match f.grade {
            Grade::Good => "ok  ",
            Grade::Poor => "warn",
            Grade::Bad => "fail",
        };
        let fix = if f.fix.is_empty() { String::new() } else { format!("; {}", f.fix) };
        format!("{grade} {}\n", one_line(&format!("{}{fix}", f.text)))
    };
    print(&findings.iter().map(line).collect::<String>())?;
    let fails = findings.iter().any(|f| f.grade == Grade::Bad);
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn of_configuration(loaded: &Loaded) -> Vec<Finding> {
    let plan = match server::plan(loaded.config.clone()) {
        Ok(plan) => plan,
        Err(error) => return vec![finding(Grade::Bad, error.to_string(), "")],
    };
    let mut findings = vec![ok(format!("the configuration can be used: {} events", plan.schema().len()))];
    findings.extend(plan.warnings().iter().map(|w| finding(Grade::Poor, w, "")));
    let config = plan.config();
    findings.extend(memory(config, plan.processors().len() as u64));
    findings.extend(config.server.listen.iter().map(|l| address("server.listen", l)));
    findings.extend(config.admin.listen.iter().map(|l| address("admin.listen", l)));
    findings.extend(state(Path::new(&config.state.file)));
    findings
}

/// Whether the state could be read and written. Nothing is created or removed: a server that saves may be running.
fn state(path: &Path) -> Option<Finding> {
    if path.as_os_str().is_empty() {
        return None;
    }
    let access = |path: &Path, right| rustix::fs::access(path, right).map_err(io::Error::from);
    let is_usable =
        access(folder_of(path), Access::WRITE_OK | Access::EXEC_OK).and_then(|()| match fs::metadata(path) {
            Ok(file) if file.is_file() => access(path, Access::READ_OK),
            Ok(_) => Err(io::Error::other("it is no regular file")),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        });
    let name = path.display();
    Some(match is_usable {
        Ok(()) => ok(format!("state.file: {name} can be written")),
        Err(e) => {
            let fix = "name a file in a folder that this user may write to, or \"\" for none";
            finding(Grade::Bad, format!("state.file: {name}: it cannot be used: {e}"), fix)
        }
    })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(".".as_ref())
}

fn memory(config: &Config, cores: u64) -> Option<Finding> {
    let (limit, what) = host::memory()?;
    let terms = memory_sum(config, cores);
    let total = terms.iter().filter(|t| !t.stalled).map(|t| t.bytes).sum::<u64>();
    let text =
        format!("memory: the limits allow {}, there are {} ({what})", check::size(total), check::size(limit));
    Some(match total > limit {
        true => finding(Grade::Poor, text, "lower the budgets that `seqcast check` lists"),
        false => ok(text),
    })
}

/// Whether an address can be listened on now.
fn address(key: &str, listen: &Listen) -> Finding {
    let refused = |error: &io::Error| {
        let fix = match error.kind() {
            ErrorKind::PermissionDenied => {
                "give the process the right (CAP_NET_BIND_SERVICE for ports below 1024)"
            }
            ErrorKind::AddrNotAvailable => "this machine has no such address, choose another",
            ErrorKind::NotFound => "make the folder",
            _ => "stop what listens there, or choose another address",
        };
        finding(Grade::Bad, format!("{key}: cannot listen on {listen}: {error}"), fix)
    };
    match listen {
        Listen::Tcp(address) => match TcpListener::bind(address) {
            Ok(_) => ok(format!("{key}: {listen} is free")),
            Err(e) => refused(&e),
        },
        Listen::Unix(path) if UnixStream::connect(path).is_ok() => refused(&ErrorKind::AddrInUse.into()),
        Listen::Unix(path) => match rustix::fs::access(folder_of(path), Access::WRITE_OK) {
            Ok(()) => ok(format!("{key}: {listen} is free")),
            Err(e) => refused(&e.into()),
        },
    }
}
