//! `seqcast doctor`: whether the server can run here, one line a finding with its fix.

use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use seqcast::config::{Config, Listen, Loaded, memory_sum};

use super::{ConfigArgs, Failure, check, host, one_line, print};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grade {
    /// As it should be.
    Ok,
    /// The server starts, with less than it could have.
    Warn,
    /// The server cannot start.
    Fail,
}

/// One line.
struct Finding {
    grade: Grade,
    /// What was looked at and found.
    text: String,
    /// What to do; empty when nothing is.
    fix: String,
}

impl Finding {
    fn new(grade: Grade, text: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { grade, text: text.into(), fix: fix.into() }
    }

    fn ok(text: impl Into<String>) -> Finding {
        Finding::new(Grade::Ok, text, "")
    }
}

pub fn run(args: &ConfigArgs) -> Result<ExitCode, Failure> {
    let mut findings = Vec::new();
    match args.load() {
        Err(Failure(text)) => findings.push(Finding::new(Grade::Fail, text, "")),
        Ok(loaded) => {
            findings.push(Finding::ok("the configuration can be used"));
            findings.extend(of_configuration(&loaded)?);
        }
    }
    let line = |f: &Finding| {
        let grade = match f.grade {
            Grade::Ok => "ok  ",
            Grade::Warn => "warn",
            Grade::Fail => "fail",
        };
        let fix = if f.fix.is_empty() { String::new() } else { format!("; {}", f.fix) };
        format!("{grade} {}\n", one_line(&format!("{}{fix}", f.text)))
    };
    print(&findings.iter().map(line).collect::<String>())?;
    let fails = findings.iter().any(|f| f.grade == Grade::Fail);
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn of_configuration(loaded: &Loaded) -> Result<Vec<Finding>, Failure> {
    let (config, warnings) = check::fitted(loaded);
    let mut findings: Vec<_> = warnings.into_iter().map(|w| Finding::new(Grade::Warn, w, "")).collect();
    findings.push(match super::read_schema(&config.schema.file) {
        Ok(schema) => Finding::ok(format!("schema: {} events", schema.len())),
        Err(Failure(text)) => Finding::new(Grade::Fail, text, ""),
    });
    let processors = host::processors()?;
    match config.server.cores.resolve(&processors) {
        Err(text) => findings.push(Finding::new(Grade::Fail, text, "")),
        Ok(cores) => {
            findings.push(Finding::ok(format!("{} of {} processors run", cores.len(), processors.len())));
            findings.extend(memory(&config, cores.len() as u64));
        }
    }
    findings.extend(config.server.listen.iter().map(|l| address("server.listen", l)));
    findings.extend(config.admin.listen.iter().map(|l| address("admin.listen", l)));
    Ok(findings)
}

fn memory(config: &Config, cores: u64) -> Option<Finding> {
    let (limit, what) = host::memory()?;
    let terms = memory_sum(config, cores);
    let total = terms.iter().filter(|t| !t.stalled).map(|t| t.bytes).sum::<u64>();
    let text =
        format!("memory: the limits allow {}, there are {} ({what})", check::size(total), check::size(limit));
    Some(match total > limit {
        true => Finding::new(Grade::Warn, text, "lower the budgets that `seqcast check` lists"),
        false => Finding::ok(text),
    })
}

/// Whether an address can be listened on now.
fn address(key: &str, listen: &Listen) -> Finding {
    let taken = |why: String| {
        let text = format!("{key}: cannot listen on {listen}: {why}");
        Finding::new(Grade::Fail, text, "stop what listens there, or choose another address")
    };
    match listen {
        Listen::Tcp(address) => match TcpListener::bind(address) {
            Ok(_) => Finding::ok(format!("{key}: {listen} is free")),
            Err(e) => taken(e.to_string()),
        },
        Listen::Unix(path) if UnixStream::connect(path).is_ok() => {
            taken("another process listens there".into())
        }
        Listen::Unix(path) => {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(".".as_ref());
            match rustix::fs::access(folder, rustix::fs::Access::WRITE_OK) {
                Ok(()) => Finding::ok(format!("{key}: {listen} is free")),
                Err(e) => taken(format!("{}: {e}", folder.display())),
            }
        }
    }
}
