//! Listening sockets that a supervisor opened and passed on (socket activation, `sd_listen_fds(3)`).

#![forbid(unsafe_code)]

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::PathBuf;

use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, getsockname, sockopt};

use super::listen::{ListenError, Listener};
use super::sys;
use crate::config::Listen;

/// Sockets of this name are for the admin API (`FileDescriptorName=admin`), all others for WebSocket.
const ADMIN: &str = "admin";

/// Why this process cannot use what it was given.
#[derive(Debug, PartialEq, Eq)]
pub struct InheritError {
    what: String,
    todo: &'static str,
}

impl InheritError {
    fn new(what: impl Into<String>, todo: &'static str) -> InheritError {
        InheritError { what: what.into(), todo }
    }
}

impl fmt::Display for InheritError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot use the inherited sockets: {}; {}", self.what, self.todo)
    }
}

impl std::error::Error for InheritError {}

/// Listening sockets of the process that started this one.
#[derive(Debug, Default)]
pub struct Inherited {
    /// For WebSocket.
    pub listen: Vec<InheritedSocket>,
    /// For the admin API.
    pub admin: Option<InheritedSocket>,
}

impl Inherited {
    /// What `LISTEN_FDS`, `LISTEN_PID` and `LISTEN_FDNAMES` speak of; nothing, if they are not there or meant for
    /// another process. The environment and the descriptors that were passed stay: this takes duplicates.
    ///
    /// # Errors
    /// The variables contradict each other or the descriptors, or a descriptor is no listening stream socket.
    pub fn from_environment() -> Result<Inherited, InheritError> {
        let passed = sd_notify::listen_fds_with_names().map_err(|e| {
            let todo =
                "pass as many open descriptors from 3 on as LISTEN_FDS says, with as many names or none";
            InheritError::new(format!("LISTEN_FDS: {e}"), todo)
        })?;
        let mut inherited = Inherited::default();
        for (descriptor, name) in passed {
            inherited.add(InheritedSocket::passed(descriptor, &name)?, &name)?;
        }
        Ok(inherited)
    }

    fn add(&mut self, socket: InheritedSocket, name: &str) -> Result<(), InheritError> {
        if name != ADMIN {
            self.listen.push(socket);
        } else if let Some(first) = self.admin.replace(socket) {
            let what = format!("several are named {ADMIN:?}, the first of them on {}", first.address);
            return Err(InheritError::new(
                what,
                "the admin API listens on one: give the others another name",
            ));
        }
        Ok(())
    }
}

/// A listening stream socket.
#[derive(Debug)]
pub struct InheritedSocket {
    socket: OwnedFd,
    address: Listen,
}

impl InheritedSocket {
    fn passed(descriptor: RawFd, name: &str) -> Result<InheritedSocket, InheritError> {
        let which = format!("descriptor {descriptor} ({name:?})");
        let socket = sys::duplicate(descriptor)
            .map_err(|e| InheritError::new(format!("{which}: {e}"), "pass an open descriptor"))?;
        InheritedSocket::new(socket, &which)
    }

    /// `which` is for the error.
    fn new(socket: OwnedFd, which: &str) -> Result<InheritedSocket, InheritError> {
        let refused = |what: &str, todo| Err(InheritError::new(format!("{which} {what}"), todo));
        let stream = "pass a listening stream socket (systemd: ListenStream=)";
        match sockopt::socket_type(&socket) {
            Ok(SocketType::STREAM) => {}
            Ok(_) => return refused("is a socket for single packets", stream),
            Err(Errno::NOTSOCK) => return refused("is no socket", stream),
            Err(e) => return refused(&format!("cannot be asked for its type: {e}"), stream),
        }
        if !matches!(sockopt::socket_acceptconn(&socket), Ok(true)) {
            let todo = "pass a listening socket, not a connection (systemd: ListenStream= with Accept=no)";
            return refused("does not listen", todo);
        }
        match address(&socket) {
            Ok(Some(address)) => Ok(InheritedSocket { socket, address }),
            Ok(None) => refused("is neither TCP nor a unix socket", "pass one of them"),
            Err(e) => refused(&format!("has no address: {e}"), stream),
        }
    }

    /// Where it listens; an abstract unix address begins with `@`.
    pub fn address(&self) -> &Listen {
        &self.address
    }

    /// Makes it ready to be accepted on by a ring: an accept on a socket that does not block may end at once, as other
    /// system calls do.
    ///
    /// # Errors
    /// The options of our own sockets cannot be set on it.
    pub fn into_listener(self, low_water: u32) -> Result<Listener, ListenError> {
        let InheritedSocket { socket, address } = self;
        ioctl_fionbio(&socket, false)
            .map_err(|e| ListenError { address: address.clone(), error: e.into() })?;
        Listener::adopt(socket, address, low_water)
    }
}

/// None: of another family.
fn address(socket: &OwnedFd) -> Result<Option<Listen>, Errno> {
    let family = sockopt::socket_domain(socket)?;
    let address = getsockname(socket.as_fd())?;
    Ok(match family {
        AddressFamily::INET | AddressFamily::INET6 => SocketAddr::try_from(address).ok().map(Listen::Tcp),
        AddressFamily::UNIX => SocketAddrUnix::try_from(address).ok().map(|unix| Listen::Unix(path(&unix))),
        _ => None,
    })
}

fn path(address: &SocketAddrUnix) -> PathBuf {
    let named = address.path().map(|path| path.to_string_lossy().into_owned());
    let hidden = || address.abstract_name().map(|name| format!("@{}", String::from_utf8_lossy(name)));
    named.or_else(hidden).unwrap_or_else(|| "@".into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{self, UnixListener, UnixStream};

    fn take(socket: impl Into<OwnedFd>) -> Result<InheritedSocket, String> {
        InheritedSocket::new(socket.into(), "it").map_err(|e| e.to_string())
    }

    #[test]
    fn listening_stream_sockets_are_taken_with_their_addresses() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        tcp.set_nonblocking(true).unwrap();
        let taken = take(tcp).unwrap();
        assert_eq!(taken.address(), &Listen::Tcp(address));
        let listener = taken.into_listener(65_536).unwrap();
        assert!(listener.is_shared());
        let _client = TcpStream::connect(address).unwrap();
        let (accepted, _) = TcpListener::from(listener.into_socket()).accept().unwrap();
        assert!(accepted.nodelay().unwrap(), "the option of the listener");

        let name = format!("seqcast-inherit-{}", std::process::id());
        let hidden = net::SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let taken = take(UnixListener::bind_addr(&hidden).unwrap()).unwrap();
        assert_eq!(taken.address(), &Listen::Unix(format!("@{name}").into()));
    }

    #[test]
    fn what_cannot_be_listened_on_is_refused_with_the_reason() {
        let refused = |socket: OwnedFd, why: &str| {
            let said = take(socket).unwrap_err();
            assert!(said.contains(&format!("it {why}; pass ")), "{said}");
        };
        refused(File::open("/dev/null").unwrap().into(), "is no socket");
        refused(UdpSocket::bind("127.0.0.1:0").unwrap().into(), "is a socket for single packets");
        refused(UnixStream::pair().unwrap().0.into(), "does not listen");
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        refused(client.into(), "does not listen");
    }

    #[test]
    fn the_admin_api_listens_on_one() {
        let socket = || take(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let mut inherited = Inherited::default();
        for name in ["seqcast.socket", "admin", "Admin", "unknown"] {
            inherited.add(socket(), name).unwrap();
        }
        assert_eq!((inherited.listen.len(), inherited.admin.is_some()), (3, true));
        assert!(inherited.add(socket(), "admin").unwrap_err().to_string().contains("several are named"));
    }
}
