//! Whether io_uring can be had here: setting a ring up, the reasons why not, and the findings of `doctor`.

#![forbid(unsafe_code)]

use std::fmt;
use std::io;

use io_uring::{IoUring, Probe, opcode};
use rustix::process::{Resource, getrlimit};

/// Why a core cannot start.
#[derive(Debug)]
pub enum StartError {
    /// The kernel has no io_uring.
    Missing,
    /// The operator of the machine has turned io_uring off (`kernel.io_uring_disabled`, its value).
    TurnedOff(String),
    /// A seccomp filter refuses it, as the default profiles of container engines do.
    Filtered,
    /// The kernel lacks something that the server cannot do without.
    TooOld(&'static str),
    /// The limit of locked memory is used up.
    LockedMemory(io::Error),
    /// Anything else.
    Other {
        /// What was attempted.
        step: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

impl StartError {
    /// Finds the reason behind an error of the system.
    pub fn of(step: &'static str, error: io::Error) -> StartError {
        match error.raw_os_error() {
            Some(libc::ENOSYS) if is_filtered() => StartError::Filtered,
            Some(libc::ENOSYS) => StartError::Missing,
            Some(libc::EPERM | libc::EACCES) => match turned_off() {
                Some(value) => StartError::TurnedOff(value),
                None => StartError::Filtered,
            },
            Some(libc::ENOMEM) => StartError::LockedMemory(error),
            _ => StartError::Other { step, error },
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Missing => write!(
                f,
                "io_uring is not there: kernel {} has no io_uring; {NEEDED}, built with CONFIG_IO_URING",
                kernel()
            ),
            StartError::TurnedOff(value) => write!(
                f,
                "io_uring is turned off: kernel.io_uring_disabled is {value}; set it to 0 (`sysctl -w \
                 kernel.io_uring_disabled=0`), or, if it is 1, run with CAP_SYS_ADMIN or in the group of \
                 kernel.io_uring_group"
            ),
            StartError::Filtered => f.write_str(
                "io_uring is forbidden: a seccomp filter refuses it; allow io_uring_setup, io_uring_enter and \
                 io_uring_register in the container's seccomp profile (systemd: SystemCallFilter=@aio)",
            ),
            StartError::TooOld(lack) => {
                write!(f, "kernel {} is too old: it lacks {lack}; {NEEDED}", kernel())
            }
            StartError::LockedMemory(error) => write!(
                f,
                "io_uring gets no memory ({error}): the limit of locked memory is {}; raise it (`ulimit -l`, \
                 systemd: LimitMEMLOCK=infinity), or the memory limit of the container",
                amount(getrlimit(Resource::Memlock).current)
            ),
            StartError::Other { step, error } => {
                write!(f, "io_uring cannot start: {step}: {error}; `seqcast doctor` looks at what it needs")
            }
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::LockedMemory(error) | StartError::Other { error, .. } => Some(error),
            _ => None,
        }
    }
}

const NEEDED: &str = "Linux 6.0 or later is needed, 6.1 or later is better";

/// A step down from the best setup: what is given up, and with it whatever the steps before gave up.
const STEPS: [Option<&str>; 3] = [
    None,
    Some("submission without an index array (Linux 6.6)"),
    Some("deferred completion work (Linux 6.1): more wake-ups, higher latency under load"),
];

/// An io_uring with the best setup that the kernel knows, and what it does not know.
///
/// # Errors
/// io_uring is missing, forbidden, without memory, or too old.
pub fn set_up(submissions: u32, completions: u32) -> Result<(IoUring, Vec<&'static str>), StartError> {
    let mut missing = Vec::new();
    for (step, given_up) in STEPS.iter().enumerate() {
        missing.extend(given_up);
        match build(submissions, completions, step) {
            Ok(io) => {
                check(&io)?;
                return Ok((io, missing));
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(StartError::of("set up a ring", error)),
        }
    }
    Err(StartError::TooOld("a ring for one thread (6.0)"))
}

fn build(submissions: u32, completions: u32, step: usize) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    // One thread alone submits; a bad entry does not stop the rest of its batch.
    builder.setup_single_issuer().setup_submit_all().setup_cqsize(completions).setup_taskrun_flag();
    // The kernel's own work on completions runs inside our system calls, not in between our instructions.
    if step < 2 {
        builder.setup_defer_taskrun()
    } else {
        builder.setup_coop_taskrun()
    };
    if step < 1 {
        builder.setup_no_sqarray();
    }
    builder.build(submissions)
}

/// Opcodes that the driver uses. Multishot receive has no opcode of its own; the zero-copy send came with the same
/// kernel (6.0) and stands for it.
const OPCODES: [(u8, &str); 6] = [
    (opcode::AcceptMulti::CODE, "accept"),
    (opcode::PollAdd::CODE, "poll"),
    (opcode::Send::CODE, "send"),
    (opcode::SendMsg::CODE, "sendmsg"),
    (opcode::AsyncCancel2::CODE, "cancel"),
    (opcode::SendZc::CODE, "multishot receive (6.0)"),
];

fn check(io: &IoUring) -> Result<(), StartError> {
    let parameters = io.params();
    let features = [
        (parameters.is_feature_nodrop(), "completions that are never dropped (5.5)"),
        (parameters.is_feature_ext_arg(), "waiting with a timeout (5.11)"),
        (parameters.is_feature_skip_cqe_on_success(), "sends without completion (5.17)"),
    ];
    if let Some((_, lack)) = features.iter().find(|(there, _)| !there) {
        return Err(StartError::TooOld(lack));
    }
    let mut probe = Probe::new();
    io.submitter().register_probe(&mut probe).map_err(|e| StartError::of("probe the operations", e))?;
    match OPCODES.iter().find(|(code, _)| !probe.is_supported(*code)) {
        Some((_, lack)) => Err(StartError::TooOld(lack)),
        None => Ok(()),
    }
}

/// How bad a [`Finding`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grade {
    /// As it should be.
    Good,
    /// The server starts, with less than it could have.
    Poor,
    /// The server cannot start.
    Bad,
}

/// One line of `seqcast doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad.
    pub grade: Grade,
    /// What was looked at and what was found.
    pub text: String,
    /// What to do; empty when nothing is.
    pub fix: String,
}

impl Finding {
    fn good(text: String) -> Finding {
        Finding { grade: Grade::Good, text, fix: String::new() }
    }
}

/// Descriptors below which `doctor` warns.
const FEW_FILES: u64 = 4096;
/// Locked memory below which `doctor` warns, bytes: a ring takes a few hundred KiB on kernels that count it.
const LITTLE_LOCKED: u64 = 8 << 20;

/// Looks at everything the driver needs from the machine.
pub fn findings() -> Vec<Finding> {
    let mut findings = vec![Finding::good(format!("kernel {}", kernel()))];
    match super::ring::Ring::new(64) {
        Ok(ring) => {
            findings.push(Finding::good("io_uring with every operation that is needed".to_owned()));
            findings.extend(ring.missing().iter().map(|lack| Finding {
                grade: Grade::Poor,
                text: format!("this kernel has no {lack}"),
                fix: "a newer kernel is faster".to_owned(),
            }));
        }
        Err(error) => {
            // The text of the error is "what: why; what to do".
            let text = error.to_string();
            let (text, fix) = text.rsplit_once("; ").unwrap_or((&text, ""));
            findings.push(Finding { grade: Grade::Bad, text: text.to_owned(), fix: fix.to_owned() });
        }
    }
    findings.push(match turned_off() {
        None => Finding::good("kernel.io_uring_disabled is 0 or absent".to_owned()),
        Some(value) => Finding {
            grade: Grade::Poor,
            text: format!("kernel.io_uring_disabled is {value}"),
            fix: "sysctl -w kernel.io_uring_disabled=0, or keep this user privileged".to_owned(),
        },
    });
    if is_filtered() {
        findings.push(Finding::good("a seccomp filter is in force".to_owned()));
    }
    findings.push(resource(Resource::Memlock, "locked memory, bytes", LITTLE_LOCKED, "LimitMEMLOCK", "-l"));
    findings.push(resource(Resource::Nofile, "open files", FEW_FILES, "LimitNOFILE", "-n"));
    findings
}

fn resource(resource: Resource, what: &str, least: u64, unit: &str, flag: &str) -> Finding {
    let limits = getrlimit(resource);
    let text = format!("limit of {what}: {} soft, {} hard", amount(limits.current), amount(limits.maximum));
    // The server raises the soft limit to the hard one.
    if limits.maximum.is_none_or(|maximum| maximum >= least) {
        return Finding::good(text);
    }
    let fix = format!("raise it to at least {least} (`ulimit {flag}`, systemd: {unit})");
    Finding { grade: Grade::Poor, text, fix }
}

fn amount(limit: Option<u64>) -> String {
    limit.map_or("none".to_owned(), |limit| limit.to_string())
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or("of unknown release".to_owned(), |release| release.trim().to_owned())
}

/// The sysctl that turns io_uring off, if it does.
fn turned_off() -> Option<String> {
    let value = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    let value = value.trim();
    (value != "0").then(|| value.to_owned())
}

/// Whether a seccomp filter is in force for this thread.
fn is_filtered() -> bool {
    std::fs::read_to_string("/proc/thread-self/status").is_ok_and(|status| {
        status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_the_setup_works_where_the_kernel_knows_it() {
        let (_, missing) = set_up(8, 64).unwrap();
        for step in missing.len()..STEPS.len() {
            check(&build(8, 64, step).unwrap()).unwrap();
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        for (errno, remedy) in
            [(libc::ENOSYS, "6.0"), (libc::ENOMEM, "LimitMEMLOCK"), (libc::EMFILE, "doctor")]
        {
            let text = StartError::of("set up a ring", io::Error::from_raw_os_error(errno)).to_string();
            assert!(text.contains(remedy) || is_filtered(), "{text}");
        }
    }

    #[test]
    fn this_machine_can_run_the_server() {
        for finding in findings() {
            assert_ne!(finding.grade, Grade::Bad, "{finding:?}");
        }
    }
}
