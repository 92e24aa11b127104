//! `seqcast echo`: one driver around an [`Echo`].

#![forbid(unsafe_code)]

use std::error::Error;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Core, Driver, Listener};
use crate::config::{Listen, Server};
use crate::echo::Echo;

/// Sockets with a place in the table of registered files.
const FILES: u64 = 65_536;

/// Serves until the process ends; `ready` is told the bound addresses as soon as connections are accepted.
///
/// # Errors
/// An address cannot be listened on, or io_uring cannot be had.
pub fn run_echo(listen: &[Listen], ready: impl FnOnce(&[Listen])) -> Result<(), Box<dyn Error>> {
    let low_water = Server::default().unsent_low_water;
    let mut listeners = Vec::new();
    for address in listen {
        listeners.extend(Listener::bind(address, 1, low_water)?);
    }
    let bound: Vec<Listen> = listeners.iter().map(|listener| listener.bound().clone()).collect();
    let files = raise_open_files().min(FILES) as u32;
    // Nothing else in the process needs a descriptor.
    let driver = Driver::new(Core::Echo(Box::new(Echo::new())), listeners, None, files, usize::MAX)?;
    ready(&bound);
    driver.run();
    Ok(())
}

/// Raises the soft limit of open files to the hard one, which anybody may; the limit that then holds.
pub fn raise_open_files() -> u64 {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limits.maximum, maximum: limits.maximum };
    let holds = if setrlimit(Resource::Nofile, raised).is_ok() { limits.maximum } else { limits.current };
    holds.unwrap_or(u64::MAX)
}
