//! Listening sockets: an address that is proven to be free, and a socket on it for every core or for all of them.

#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::sys;
use crate::config::Listen;
use crate::shard::step::Peer;

/// How long the kernel keeps a connection of which no byte has arrived before it hands it over. Clients speak first, so
/// most are accepted together with their request.
const DEFERRED: Duration = Duration::from_secs(1);
/// Connections that may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A process that was killed with an accept in its ring is gone a moment before its address is free.
const RETRIES: u32 = 10;
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Why an address cannot be listened on.
#[derive(Debug)]
pub struct ListenError {
    /// The address as configured.
    pub address: Listen,
    /// What the system said.
    pub error: io::Error,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remedy = match self.error.kind() {
            io::ErrorKind::AddrInUse => "another process listens there: stop it or choose another address",
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need CAP_NET_BIND_SERVICE, a unix socket needs a writable folder"
            }
            io::ErrorKind::AddrNotAvailable => "no interface of this machine has this address",
            io::ErrorKind::NotFound => "the folder of the socket does not exist: create it",
            _ => "choose another address",
        };
        write!(f, "cannot listen on {}: {}; {remedy}", self.address, self.error)
    }
}

impl std::error::Error for ListenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// One listening socket of one core.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    bound: Listen,
    is_shared: bool,
    is_inherited: bool,
}

impl Listener {
    /// Binds `address`. On TCP each of `cores` cores gets a socket of its own, and the kernel spreads connections over
    /// them; a unix socket is one for all of them.
    ///
    /// # Errors
    /// The address is in use, or not ours. A unix socket that nobody answers on is replaced.
    pub fn bind(address: &Listen, cores: usize, low_water: u32) -> Result<Vec<Listener>, ListenError> {
        let bound = match address {
            Listen::Tcp(tcp) => bind_tcp(*tcp, cores, low_water),
            Listen::Unix(path) => bind_unix(path).map(|socket| vec![socket]),
        };
        bound.map_err(|error| ListenError { address: address.clone(), error })
    }

    /// A socket on `bound` that listens already, one for all cores, with the options that [`bind`](Self::bind) sets.
    /// It must be blocking or not as its acceptor wants it.
    ///
    /// # Errors
    /// The options cannot be set.
    pub(super) fn adopt(socket: OwnedFd, bound: Listen, low_water: u32) -> Result<Listener, ListenError> {
        if let Listen::Tcp(_) = bound {
            let set = set_options(&socket, low_water);
            set.map_err(|error| ListenError { address: bound.clone(), error })?;
        }
        Ok(Listener { socket, bound, is_shared: true, is_inherited: true })
    }

    /// The address, with the port that was found for port 0.
    pub fn bound(&self) -> &Listen {
        &self.bound
    }

    /// True: one queue of connections for all cores, so that whoever accepts them has to spread them.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// True: it outlives this process, and the next one accepts who waits there.
    pub fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    /// The socket, for whoever accepts without a driver.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// The descriptor, for accepting.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Who is at the other end of a connection of this listener.
    pub fn peer_of(&self, socket: &OwnedFd) -> Peer {
        match self.bound {
            Listen::Unix(_) => Peer::Unix,
            // A peer that has left already has no address any more; its connection will end with the first receive.
            Listen::Tcp(_) => rustix::net::getpeername(socket)
                .ok()
                .and_then(|address| SocketAddr::try_from(address?).ok())
                .map_or(Peer::Ip([0, 0, 0, 0].into()), |address| Peer::Ip(address.ip().to_canonical())),
        }
    }
}

/// Sockets that share a port let a second server bind it too, silently. So the address is bound once without sharing,
/// which fails if anyone else has it, and given up for the sockets that share it.
fn bind_tcp(address: SocketAddr, cores: usize, low_water: u32) -> io::Result<Vec<Listener>> {
    let mut proof = listen_tcp(address, low_water, false);
    for _ in 0..RETRIES {
        if !proof.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse) {
            break;
        }
        std::thread::sleep(RETRY_AFTER);
        proof = listen_tcp(address, low_water, false);
    }
    let address = TcpListener::from(proof?).local_addr()?;
    let bind = |_| {
        let socket = listen_tcp(address, low_water, cores > 1)?;
        Ok(Listener { socket, bound: Listen::Tcp(address), is_shared: false, is_inherited: false })
    };
    (0..cores).map(bind).collect()
}

fn listen_tcp(address: SocketAddr, low_water: u32, shared: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, shared)?;
    set_options(&socket, low_water)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Linux gives accepted sockets the options of their listener, so none has to be set for each connection.
fn set_options(socket: &OwnedFd, low_water: u32) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sys::defer_accept(socket.as_fd(), DEFERRED)?;
    sys::set_unsent_low_water(socket.as_fd(), low_water)
}

fn bind_unix(path: &Path) -> io::Result<Listener> {
    remove_stale(path)?;
    let socket = OwnedFd::from(UnixListener::bind(path)?);
    let bound = Listen::Unix(path.to_path_buf());
    Ok(Listener { socket, bound, is_shared: true, is_inherited: false })
}

/// A server that was killed leaves its socket file behind. It is removed if it is a socket and nobody answers on it.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        // Not a socket: the bind that follows says that the address is in use.
        _ => return Ok(()),
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    const LOW_WATER: u32 = 65_536;

    fn any_port() -> Listen {
        Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    #[test]
    fn accepted_sockets_have_the_options_of_their_listener() {
        let listener = Listener::bind(&any_port(), 1, LOW_WATER).unwrap().remove(0);
        let &Listen::Tcp(address) = listener.bound() else { panic!("TCP was asked for") };
        let client = TcpStream::connect(address).unwrap();
        let (accepted, _) = TcpListener::from(listener.socket.try_clone().unwrap()).accept().unwrap();
        assert!(accepted.nodelay().unwrap());
        let peer = listener.peer_of(&OwnedFd::from(accepted));
        assert_eq!(peer, Peer::Ip(client.local_addr().unwrap().ip()));
    }

    #[test]
    fn a_second_server_on_the_same_port_is_refused() {
        let first = Listener::bind(&any_port(), 2, LOW_WATER).unwrap();
        assert_eq!(first[0].bound(), first[1].bound());
        assert!(!first[0].is_shared());
        let refused = Listener::bind(first[0].bound(), 2, LOW_WATER).unwrap_err();
        assert_eq!(refused.error.kind(), io::ErrorKind::AddrInUse);
        assert!(refused.to_string().contains("another process listens there"), "{refused}");
    }

    #[test]
    fn a_stale_unix_socket_is_replaced_and_a_live_one_is_not() {
        let path = std::env::temp_dir().join(format!("seqcast-listen-{}", std::process::id()));
        let address = Listen::Unix(path.clone());
        let sockets = Listener::bind(&address, 2, LOW_WATER).unwrap();
        assert_eq!(sockets.iter().map(Listener::is_shared).collect::<Vec<_>>(), [true]);
        drop(sockets);
        assert!(path.exists(), "a socket file outlives its socket");
        let live = Listener::bind(&address, 1, LOW_WATER).unwrap();
        let refused = Listener::bind(&address, 1, LOW_WATER).unwrap_err();
        assert_eq!(refused.error.kind(), io::ErrorKind::AddrInUse);
        drop(live);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_no_socket_is_not_removed() {
        let path = std::env::temp_dir().join(format!("seqcast-listen-file-{}", std::process::id()));
        std::fs::write(&path, "precious").unwrap();
        assert!(Listener::bind(&Listen::Unix(path.clone()), 1, LOW_WATER).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
    }
}
