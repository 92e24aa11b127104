//! Where log lines go: standard error, as text or JSON, filtered by level.

use std::io::{self, IsTerminal};

use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::config::{self, LogFormat};
use crate::shard::step::{CoreId, Level, LogLine};

/// The filter stands below the output: a filter on a layer of its own cannot be exchanged.
type Filtered = Layered<reload::Layer<EnvFilter, Registry>, Registry>;
type Output = Box<dyn Layer<Filtered> + Send + Sync>;

/// The process's log. A program that embeds the server sets up its own `tracing` subscriber instead.
#[derive(Clone)]
pub struct Logging {
    filter: Handle<EnvFilter, Registry>,
    output: Handle<Output, Filtered>,
}

impl Logging {
    /// Installs the log for the whole process. If there is one already, that one stays.
    ///
    /// # Errors
    /// The level is no `tracing` filter.
    pub fn start(log: &config::Log) -> Result<Logging, String> {
        let (filter, filter_handle) = reload::Layer::new(filter(log)?);
        let (output, output_handle) = reload::Layer::new(output(log));
        drop(tracing_subscriber::registry().with(filter).with(output).try_init());
        Ok(Logging { filter: filter_handle, output: output_handle })
    }

    /// Changes level and format from the next line on.
    ///
    /// # Errors
    /// The level is no `tracing` filter; the log stays as it was.
    pub fn change(&self, log: &config::Log) -> Result<(), String> {
        let filter = filter(log)?;
        self.filter.reload(filter).map_err(|e| e.to_string())?;
        self.output.reload(output(log)).map_err(|e| e.to_string())
    }
}

fn filter(log: &config::Log) -> Result<EnvFilter, String> {
    EnvFilter::try_new(&log.level).map_err(|e| {
        format!("log.level {:?} is no filter ({e}); try \"info\" or \"seqcast=debug\"", log.level)
    })
}

fn output(log: &config::Log) -> Output {
    let lines = fmt::layer().with_target(false).with_writer(io::stderr);
    match log.format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

/// Writes a line that a core sent.
pub fn write(core: CoreId, line: &LogLine) {
    let text = line.text.as_str();
    match line.level {
        Level::Error => tracing::error!(core, "{text}"),
        Level::Warn => tracing::warn!(core, "{text}"),
        Level::Info => tracing::info!(core, "{text}"),
        Level::Debug => tracing::debug!(core, "{text}"),
    }
}
