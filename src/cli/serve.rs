//! `seqcast serve`: the server in the foreground.

use std::path::PathBuf;

use clap::Args;
use seqcast::server;

use super::{ConfigArgs, Failure};

/// Arguments of `serve`.
#[derive(Args)]
pub struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Write pid and bound addresses here, as JSON, when ready to accept
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    server::serve(args.config.load()?, args.ready_file.as_deref())?;
    Ok(())
}
