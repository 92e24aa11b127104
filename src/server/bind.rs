//! All listening sockets of a server, and their addresses.

use std::fmt;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use crate::config::{Config, Listen};
use crate::control::AdminSocket;
use crate::uring::{Inherited, ListenError, Listener};

/// Where a server listens, with the ports that were found for port 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// WebSocket.
    pub listen: Vec<Listen>,
    /// The admin API; none = off.
    pub admin: Option<Listen>,
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listen: Vec<_> = self.listen.iter().map(Listen::to_string).collect();
        f.write_str(&listen.join(", "))?;
        match &self.admin {
            Some(admin) => write!(f, "; admin API on {admin}"),
            None => f.write_str("; no admin API"),
        }
    }
}

/// The files of the unix sockets that this process has bound. They go when this is dropped, which is to be when nobody
/// answers on them any more.
#[derive(Debug, Default)]
pub struct SocketFiles(Vec<PathBuf>);

impl SocketFiles {
    fn add(&mut self, bound: &Listen) {
        if let Listen::Unix(path) = bound {
            self.0.push(path.clone());
        }
    }
}

impl Drop for SocketFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            drop(std::fs::remove_file(path));
        }
    }
}

/// Bound sockets.
pub struct Bound {
    /// By core.
    pub listeners: Vec<Vec<Listener>>,
    /// The admin API's.
    pub admin: Option<AdminSocket>,
    /// Of all of them.
    pub addresses: Addresses,
    /// Of those among them that were not inherited.
    pub files: SocketFiles,
}

/// Makes `config` say where the inherited sockets listen: they come in place of its own, and all rules for addresses
/// hold for them too.
pub fn replace_addresses(config: &mut Config, inherited: &Inherited) {
    if !inherited.listen.is_empty() {
        config.server.listen = inherited.listen.iter().map(|socket| socket.address().clone()).collect();
    }
    if let Some(socket) = &inherited.admin {
        config.admin.listen = Some(socket.address().clone());
    }
}

/// Binds everything, or nothing; what was inherited is bound already. A listener for all cores is the first one's.
///
/// # Errors
/// The first address that cannot be listened on.
pub fn bind(config: &Config, inherited: Inherited, cores: usize) -> Result<Bound, ListenError> {
    let mut listeners: Vec<Vec<Listener>> = (0..cores).map(|_| Vec::new()).collect();
    let mut files = SocketFiles::default();
    let mut listen = Vec::new();
    let low_water = config.server.unsent_low_water;
    let has_inherited = !inherited.listen.is_empty();
    for socket in inherited.listen {
        let socket = socket.into_listener(low_water)?;
        listen.push(socket.bound().clone());
        listeners[0].push(socket);
    }
    for address in config.server.listen.iter().filter(|_| !has_inherited) {
        let sockets = Listener::bind(address, cores, low_water)?;
        let bound = sockets[0].bound().clone();
        files.add(&bound);
        listen.push(bound);
        for (of_core, socket) in listeners.iter_mut().zip(sockets) {
            of_core.push(socket);
        }
    }
    let admin = match (inherited.admin, &config.admin.listen) {
        (Some(socket), _) => Some(socket.into_listener(low_water)?),
        (None, Some(address)) => {
            let socket = Listener::bind(address, 1, low_water)?.pop().expect("one socket for one core");
            files.add(socket.bound());
            Some(socket)
        }
        (None, None) => None,
    };
    let addresses = Addresses { listen, admin: admin.as_ref().map(|socket| socket.bound().clone()) };
    Ok(Bound { listeners, admin: admin.map(admin_socket), addresses, files })
}

fn admin_socket(listener: Listener) -> AdminSocket {
    match listener.bound() {
        Listen::Tcp(_) => AdminSocket::Tcp(TcpListener::from(listener.into_socket())),
        Listen::Unix(_) => AdminSocket::Unix(UnixListener::from(listener.into_socket())),
    }
}
