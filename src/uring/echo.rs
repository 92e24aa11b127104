//! `seqcast echo`: on each core a driver around an [`Echo`].

#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Core, Driver, Listener, Places, StartError};
use crate::config::{Listen, Server};
use crate::echo::Echo;

/// Sockets with a place in the table of registered files.
const FILES: u64 = 65_536;

/// Serves on so many cores until the process ends; `ready` is told the bound addresses as soon as connections are
/// accepted. The kernel spreads TCP connections over the cores; those of a unix socket all come to the first.
///
/// # Errors
/// An address cannot be listened on, or io_uring cannot be had.
///
/// # Panics
/// When there is to be no core.
pub fn run_echo(
    listen: &[Listen],
    cores: usize,
    ready: impl FnOnce(&[Listen]),
) -> Result<(), Box<dyn Error>> {
    let low_water = Server::default().unsent_low_water;
    let mut listeners: Vec<Vec<Listener>> = (0..cores).map(|_| Vec::new()).collect();
    let mut bound = Vec::new();
    for address in listen {
        let sockets = Listener::bind(address, cores, low_water)?;
        bound.extend(sockets.first().map(|socket| socket.bound().clone()));
        for (of_core, socket) in listeners.iter_mut().zip(sockets) {
            of_core.push(socket);
        }
    }
    let files = raise_open_files().min(FILES) as u32;
    let first = listeners.swap_remove(0);
    let (tell, able) = channel();
    for listeners in listeners {
        let tell = tell.clone();
        // The ring serves no other thread than the one that makes it.
        thread::Builder::new().name("echo".into()).spawn(move || match echo(listeners, files) {
            Ok(driver) => {
                drop(tell.send(Ok(())));
                driver.run();
            }
            Err(error) => drop(tell.send(Err(error))),
        })?;
    }
    let driver = echo(first, files)?;
    for _ in 1..cores {
        able.recv()??;
    }
    ready(&bound);
    driver.run();
    Ok(())
}

/// Nothing else in the process needs a descriptor.
fn echo(listeners: Vec<Listener>, files: u32) -> Result<Driver, StartError> {
    let places = Arc::new(Places::new(usize::MAX));
    Driver::new(Core::Echo(Box::new(Echo::new())), listeners, None, files, places)
}

/// Raises the soft limit of open files to the hard one, which anybody may; the limit that then holds.
pub fn raise_open_files() -> u64 {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limits.maximum, maximum: limits.maximum };
    let holds = if setrlimit(Resource::Nofile, raised).is_ok() { limits.maximum } else { limits.current };
    holds.unwrap_or(u64::MAX)
}
