//! Latency and throughput harness: publish/subscribe servers over WebSocket, side by side in one run.

mod compare;
mod figure;
mod floor;
mod folder;
mod html;
mod machine;
mod measure;
mod measurement;
mod plot;
mod progress;
mod results;
mod run;
mod server;
mod statistics;
mod subject;
mod table;
mod targets;
mod text;
mod work;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[derive(Parser)]
#[command(name = "seqcast-bench", version, about, max_term_width = 110)]
struct Line {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure works with every server that is here, interleaved, and write a result folder
    Run(run::Arguments),
    /// Make one measurement of a running server and print it as a line of JSON
    Measure(measure::Arguments),
    /// Serve as the kernel's floor: send(2) to each subscriber and nothing else
    Floor(floor::Arguments),
    /// Print a result folder's tables, and write its reports again
    Report {
        /// A folder that `run` wrote
        folder: PathBuf,
        /// Print Markdown, write nothing
        #[arg(long)]
        markdown: bool,
    },
    /// Print what changed between two result folders
    Compare {
        /// The earlier run
        before: PathBuf,
        /// The later run
        after: PathBuf,
    },
}

fn main() -> Result<()> {
    match Line::parse().command {
        Task::Run(arguments) => run::run(&arguments),
        Task::Measure(arguments) => measure::run(&arguments),
        Task::Floor(arguments) => floor::run(&arguments),
        Task::Report { folder, markdown: true } => {
            print!("{}", text::markdown(&folder::Folder::read(&folder)?));
            Ok(())
        }
        Task::Report { folder, markdown: false } => {
            let results = folder::Folder::read(&folder)?;
            folder::Folder::again(&folder).write_reports(&results)?;
            print!("{}", text::report(&results));
            Ok(())
        }
        Task::Compare { before, after } => {
            let (before, after) = (folder::Folder::read(&before)?, folder::Folder::read(&after)?);
            print!("{}", compare::compare(&before, &after));
            Ok(())
        }
    }
}
