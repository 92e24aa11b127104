//! The command line: arguments, commands, exit codes. 0 is fine, 1 a stated failure, 2 wrong usage; an error is one
//! line on standard error that says what failed, why, and what to do.

#![forbid(unsafe_code)]

mod check;
mod doctor;
mod echo;
mod host;
mod http;
mod publish;
mod serve;
mod subscribe;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use seqcast::config::{self, Flags, Loaded};
use seqcast::schema::Schema;
use seqcast::server;

/// Typed WebSocket publish/subscribe on io_uring.
#[derive(Parser)]
#[command(name = "seqcast", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server in the foreground
    Serve(serve::ServeArgs),
    /// Validate the configuration and print the effective one, with the source of each value
    Check(ConfigArgs),
    /// Say whether this machine can run the server, and what to mend
    Doctor(ConfigArgs),
    /// Publish events through the admin API
    Pub(publish::PubArgs),
    /// Connect as a client and print what arrives, one JSON line an event
    Sub(subscribe::SubArgs),
    /// Ask the handler of an event and print its answer
    Request(subscribe::RequestArgs),
    /// Run a plain WebSocket echo server, for conformance suites and comparisons
    Echo(echo::EchoArgs),
}

/// Why a command failed: one line.
#[derive(Debug)]
struct Failure(String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.to_string())
    }
}

/// Runs the program.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Check(args) => check::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => doctor::run(&args),
        Command::Pub(args) => publish::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Sub(args) => subscribe::sub(&args).map(|()| ExitCode::SUCCESS),
        Command::Request(args) => subscribe::request(&args).map(|()| ExitCode::SUCCESS),
        Command::Echo(args) => echo::run(&args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|Failure(text)| {
        complain(&text);
        ExitCode::FAILURE
    })
}

/// Help and version go to standard output; wrong usage is one line on standard error.
fn usage(error: &clap::Error) -> ExitCode {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match print(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            let _ = io::stderr().write_all(text.as_bytes());
            ExitCode::from(2)
        }
        _ => {
            let said = text.split("\n\nUsage:").next().unwrap_or(&text);
            let said = said.split("\n\nFor more").next().unwrap_or(said).trim_start_matches("error: ");
            complain(&format!("{}; try --help", one_line(said)));
            ExitCode::from(2)
        }
    }
}

/// An error line. Nobody is left to tell when standard error is gone.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "seqcast: {}", one_line(text));
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes to standard output. A reader that has left is no error.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure(format!("cannot write to standard output: {e}; free its device")))
        }
        _ => Ok(()),
    }
}

/// Where the configuration comes from.
#[derive(Args)]
struct ConfigArgs {
    /// Configuration, TOML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// WebSocket address, "IP:PORT" or "unix:/path"; again for more [server.listen]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// Address of the admin API, "" for none [admin.listen]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// "auto", a number, or a list of processors such as "0-3,8" [server.cores]
    #[arg(long, value_name = "SPEC")]
    cores: Option<String>,
    /// Any key, such as "resume.ttl=30s"; again for more
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

impl ConfigArgs {
    fn load(&self) -> Result<Loaded, Failure> {
        let flags = Flags {
            set: self.set.clone(),
            listen: self.listen.clone(),
            admin: self.admin.clone(),
            cores: self.cores.clone(),
        };
        Ok(config::load(self.config.as_deref(), config::environment(), &flags)?)
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as \"resume.ttl=30s\"")?;
    Ok((key.trim().into(), value.into()))
}

/// Reads a schema file; an empty path stands for the built-in events.
fn read_schema(file: &str) -> Result<Schema, Failure> {
    Ok(server::read_schema(file)?)
}
