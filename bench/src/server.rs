//! A server's process: started on its processor, awaited, ended.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a server may take to listen, and an earlier one to give its port back.
const START: Duration = Duration::from_secs(15);
/// How long a server may take to end after SIGTERM.
const STOP: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// A running server. Dropping it ends it.
pub struct Server {
    child: Child,
}

impl Server {
    /// Runs a command on these processors (as `taskset` takes them; all of them when `None`) until it accepts
    /// connections on a port of 127.0.0.1. Its output goes to a file.
    pub fn start(command: &[String], processors: Option<&str>, port: u16, log: &Path) -> Result<Server> {
        await_port(port, false, || Ok(())).with_context(|| {
            format!("port {port} is taken: end what listens there, or choose another --port")
        })?;
        let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        // A server whose runner dies dies too.
        let mut line: Vec<String> = ["setpriv", "--pdeathsig", "KILL"].map(str::to_owned).into();
        if let Some(processors) = processors {
            line.extend(["taskset", "-c", processors].map(str::to_owned));
        }
        line.extend_from_slice(command);
        let child = Command::new(&line[0])
            .args(&line[1..])
            .current_dir(log.parent().unwrap_or(Path::new(".")))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // A Ctrl-C is for the runner, which ends its servers itself.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", line.join(" ")))?;
        let mut server = Server { child };
        let child = &mut server.child;
        await_port(port, true, || match child.try_wait()? {
            Some(status) => bail!("the server ended, {status}"),
            None => Ok(()),
        })
        .with_context(|| format!("{} does not listen; it said: {}", command.join(" "), last_line(log)))?;
        Ok(server)
    }

    /// Process id: `setpriv` and `taskset` become the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, waits, and kills it when it does not.
    fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let until = Instant::now() + STOP;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > until {
                self.child.kill()?;
                self.child.wait()?;
                break;
            }
            sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("a server could not be ended: {error}");
        }
    }
}

fn last_line(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().last().unwrap_or("nothing").to_owned()
}

/// Waits until connecting to a port works, or does not any more.
fn await_port(port: u16, open: bool, mut alive: impl FnMut() -> Result<()>) -> Result<()> {
    let until = Instant::now() + START;
    while TcpStream::connect(("127.0.0.1", port)).is_ok() != open {
        alive()?;
        if Instant::now() > until {
            bail!("waited {} s", START.as_secs());
        }
        sleep(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("seqcast-bench-{}-{name}.log", std::process::id()))
    }

    #[test]
    fn a_server_that_ends_at_once_is_an_error_with_its_last_word() {
        let log = log("ends");
        let command = ["sh", "-c", "echo no such port; exit 3"].map(str::to_owned);
        let error = Server::start(&command, None, free_port(), &log).err().expect("it does not listen");
        let text = format!("{error:#}");
        assert!(text.contains("the server ended") && text.contains("it said: no such port"), "{text}");
        std::fs::remove_file(log).expect("the log was written");
    }

    fn free_port() -> u16 {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        socket.local_addr().expect("bound").port()
    }
}
