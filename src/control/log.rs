//! Where log lines go: standard error, as text or JSON, filtered by level.

use std::io::{self, IsTerminal};

use tracing::Subscriber;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::{self, LogFormat};
use crate::shard::step::{CoreId, Level, LogLine};

type Output = Box<dyn Layer<Registry> + Send + Sync>;

/// The process's log. A program that embeds the server sets up its own `tracing` subscriber instead.
#[derive(Clone)]
pub struct Logging(Handle<Output, Registry>);

impl Logging {
    /// Installs the log for the whole process. If there is one already, that one stays.
    ///
    /// # Errors
    /// The level is no `tracing` filter.
    pub fn start(log: &config::Log) -> Result<Logging, String> {
        let (layer, handle) = reload::Layer::new(output(log)?);
        drop(tracing_subscriber::registry().with(layer).try_init());
        Ok(Logging(handle))
    }

    /// Changes level and format from the next line on.
    ///
    /// # Errors
    /// The level is no `tracing` filter; the log stays as it was.
    pub fn change(&self, log: &config::Log) -> Result<(), String> {
        let output = output(log)?;
        self.0.reload(output).map_err(|e| e.to_string())
    }
}

fn output(log: &config::Log) -> Result<Output, String> {
    let filter = EnvFilter::try_new(&log.level).map_err(|e| {
        format!("log.level {:?} is no filter ({e}); try \"info\" or \"seqcast=debug\"", log.level)
    })?;
    Ok(if log.format == LogFormat::Json {
        writer().json().flatten_event(true).with_filter(filter).boxed()
    } else {
        writer().with_ansi(io::stderr().is_terminal()).with_filter(filter).boxed()
    })
}

fn writer<S>() -> tracing_subscriber::fmt::Layer<
    S,
    tracing_subscriber::fmt::format::DefaultFields,
    tracing_subscriber::fmt::format::Format,
    fn() -> io::Stderr,
>
where
    S: Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    tracing_subscriber::fmt::layer().with_target(false).with_writer(io::stderr as fn() -> io::Stderr)
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
