//! All listening sockets of a server, and their addresses.

use std::fmt;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use crate::config::{Config, Listen};
use crate::control::AdminSocket;
use crate::uring::{ListenError, Listener};

/// Where a server listens, with the ports that were found for port 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// WebSocket.
    pub listen: Vec<Listen>,
    /// The admin API; none = off.
    pub admin: Option<Listen>,
}

impl Addresses {
    /// Removes the socket files among them, which nobody answers on any more.
    pub(super) fn remove_files(&self) {
        for address in self.listen.iter().chain(&self.admin) {
            if let Listen::Unix(path) = address {
                drop(std::fs::remove_file(path));
            }
        }
    }
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

/// Bound sockets.
pub struct Bound {
    /// By core.
    pub listeners: Vec<Vec<Listener>>,
    /// The admin API's.
    pub admin: Option<AdminSocket>,
    /// Of all of them.
    pub addresses: Addresses,
}

/// Binds everything, or nothing.
///
/// # Errors
/// The first address that cannot be listened on.
pub fn bind(config: &Config, cores: usize) -> Result<Bound, ListenError> {
    let mut listeners: Vec<Vec<Listener>> = (0..cores).map(|_| Vec::new()).collect();
    let mut listen = Vec::new();
    let low_water = config.server.unsent_low_water;
    for address in &config.server.listen {
        let sockets = Listener::bind(address, cores, low_water)?;
        listen.extend(sockets.first().map(|socket| socket.bound().clone()));
        for (of_core, socket) in listeners.iter_mut().zip(sockets) {
            of_core.push(socket);
        }
    }
    let admin = config.admin.listen.as_ref().map(|address| bind_admin(address, low_water)).transpose()?;
    let (admin, admin_address) = admin.unzip();
    Ok(Bound { listeners, admin, addresses: Addresses { listen, admin: admin_address } })
}

fn bind_admin(address: &Listen, low_water: u32) -> Result<(AdminSocket, Listen), ListenError> {
    let listener = Listener::bind(address, 1, low_water)?.pop().expect("one socket for one core");
    let bound = listener.bound().clone();
    let socket = match bound {
        Listen::Tcp(_) => AdminSocket::Tcp(TcpListener::from(listener.into_socket())),
        Listen::Unix(_) => AdminSocket::Unix(UnixListener::from(listener.into_socket())),
    };
    Ok((socket, bound))
}
