//! `seqcast echo`: a plain WebSocket echo server on the handshake, frame and ring layers of the service.

use clap::Args;
use seqcast::config::{self, Flags, Listen};
use seqcast::control::Logging;
use seqcast::uring::run_echo;

use super::{Failure, print};

/// Arguments of `echo`.
#[derive(Args)]
pub struct EchoArgs {
    /// WebSocket address, "IP:PORT" or "unix:/path"; again for more
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9400")]
    listen: Vec<String>,
    /// How many threads serve, each with a listener of its own
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1024))]
    cores: u16,
}

pub fn run(args: &EchoArgs) -> Result<(), Failure> {
    let flags = Flags { listen: args.listen.clone(), ..Flags::default() };
    let config = config::load(None, std::iter::empty(), &flags)?.config;
    Logging::start(&config.log).map_err(Failure)?;
    let ready = |bound: &[Listen]| {
        let bound: Vec<String> = bound.iter().map(Listen::to_string).collect();
        // Who started us may not listen any more; the server runs all the same.
        let _ = print(&format!("listening {}\n", bound.join(" ")));
    };
    run_echo(&config.server.listen, usize::from(args.cores), ready)
        .map_err(|error| Failure(error.to_string()))
}
