//! The server as a whole: plan it, start it, drain it, stop it.
//!
//! A program that embeds seqcast goes the same way as the binary:
//!
//! ```no_run
//! use seqcast::config::Config;
//! use seqcast::server::{self, Server};
//! use seqcast::shard::step::Target;
//!
//! let mut config = Config::default();
//! config.server.listen = vec!["127.0.0.1:0".parse::<std::net::SocketAddr>().map(seqcast::config::Listen::Tcp)?];
//! let running = Server::start(server::plan(config)?)?;
//! println!("listening on {}", running.addresses());
//!
//! let data = serde_json::json!({"symbol": "S", "bid": 1, "ask": 2, "bidSize": 3, "askSize": 4, "ts": 5});
//! running.publisher().publish("quote", &data, Target::All)?;
//! // ... until the program has had enough:
//! running.drain();
//! running.join()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod bind;
mod plan;
mod ready;
mod reload;
mod start;
mod state;

pub use crate::control::{PublishError, Published, Publisher};
pub use bind::Addresses;
pub use plan::{Plan, PlanError, plan, read_schema};
pub use start::{Running, Server, StartError, Stopped};

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::Loaded;
use crate::control::{Logging, Supervisor};
use crate::uring::{InheritError, Inherited};
use start::Foreground;

/// Why `seqcast serve` ends with an error: one line that says what failed, why, and what to do.
#[derive(Debug)]
pub enum ServeError {
    /// The log cannot be set up.
    Log(String),
    /// The sockets that were passed on to it cannot be used.
    Inherit(InheritError),
    /// The configuration cannot be carried out.
    Plan(PlanError),
    /// The machine does not give what the server needs.
    Start(StartError),
    /// The ready file cannot be written.
    Ready {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It ran, and failed.
    Stopped(Stopped),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Log(what) => f.write_str(what),
            ServeError::Inherit(e) => e.fmt(f),
            ServeError::Plan(e) => e.fmt(f),
            ServeError::Start(e) => e.fmt(f),
            ServeError::Ready { path, error } => {
                write!(
                    f,
                    "cannot write the ready file {}: {error}; name a file in a writable folder",
                    path.display()
                )
            }
            ServeError::Stopped(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for ServeError {}

/// Runs the server in the foreground until SIGTERM or SIGINT: sets up the log, starts, says where it listens, and
/// returns after the drain. A supervisor may pass on sockets, which come in place of the configured addresses, and is
/// told how the server does.
///
/// # Errors
/// It cannot start, or a core failed.
pub fn serve(loaded: Loaded, ready_file: Option<&Path>) -> Result<(), ServeError> {
    let logging = Logging::start(&loaded.config.log).map_err(ServeError::Log)?;
    let inherited = Inherited::from_environment().map_err(ServeError::Inherit)?;
    tell_replaced(&inherited);
    let mut config = loaded.config.clone();
    bind::replace_addresses(&mut config, &inherited);
    let plan = plan(config).map_err(ServeError::Plan)?;
    let warnings = plan.warnings().to_vec();
    let signals = Some(reload::reload(loaded, logging));
    let foreground = Foreground { inherited, signals, supervisor: Supervisor::from_environment() };
    let running = start::start(plan, foreground).map_err(ServeError::Start)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    tracing::info!("listening on {}", running.addresses());
    if let Some(path) = ready_file {
        let ready = ready::write(path, running.addresses());
        ready.map_err(|error| ServeError::Ready { path: path.to_path_buf(), error })?;
    }
    running.announce();
    running.join().map_err(ServeError::Stopped)
}

fn tell_replaced(inherited: &Inherited) {
    let sockets = inherited.listen.len();
    if sockets > 0 {
        tracing::info!("inherited sockets for WebSocket: {sockets}; they come in place of server.listen");
    }
    if inherited.admin.is_some() {
        tracing::info!("inherited a socket for the admin API; it comes in place of admin.listen");
    }
}
