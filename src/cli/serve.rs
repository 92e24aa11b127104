//! `seqcast serve`: the server in the foreground.

use std::path::PathBuf;

use clap::Args;

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
    let loaded = args.config.load()?;
    super::read_schema(&loaded.config.schema.file)?;
    let _ = &args.ready_file;
    Err(Failure("this build has no server; build a later one".into()))
}
