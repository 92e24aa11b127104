//! Where the admin API listens, and the bounds of its connections.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::limits::{ADMIN_CONNECTIONS, ADMIN_SECONDS};

const SILENCE: Duration = Duration::from_secs(ADMIN_SECONDS);

/// A bound listening socket.
#[derive(Debug)]
pub enum AdminSocket {
    /// TCP.
    Tcp(std::net::TcpListener),
    /// A unix socket.
    Unix(std::os::unix::net::UnixListener),
}

/// Accepts at most [`ADMIN_CONNECTIONS`]; the next one waits until one of them ends.
pub struct Bounded {
    socket: Socket,
    places: Arc<Semaphore>,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Bounded {
    /// Must be called on the runtime that is to accept.
    ///
    /// # Errors
    /// The runtime cannot watch the socket.
    pub fn new(socket: AdminSocket) -> io::Result<Bounded> {
        let socket = match socket {
            AdminSocket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Socket::Tcp(TcpListener::from_std(listener)?)
            }
            AdminSocket::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Socket::Unix(UnixListener::from_std(listener)?)
            }
        };
        Ok(Bounded { socket, places: Arc::new(Semaphore::new(ADMIN_CONNECTIONS)) })
    }

    async fn accept_one(&self) -> io::Result<Stream> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // It fails when the peer has gone already, which the next read finds out.
                drop(stream.set_nodelay(true));
                Ok(Stream::Tcp(stream))
            }
            Socket::Unix(listener) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = ();

    async fn accept(&mut self) -> (Connection, ()) {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
        loop {
            match self.accept_one().await {
                Ok(stream) => return (Connection::new(stream, place), ()),
                // The peer has gone before it was accepted.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => {
                    tracing::debug!("accepting on the admin address: {e}");
                    // Out of descriptors or memory: it does not get better at once.
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection that reads as ended after it has been silent for [`ADMIN_SECONDS`].
pub struct Connection {
    stream: Stream,
    silence: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: Stream, place: OwnedSemaphorePermit) -> Connection {
        Connection { stream, silence: Box::pin(sleep_until(Instant::now() + SILENCE)), _place: place }
    }
}

/// Calls a method of whichever stream it is.
macro_rules! forward {
    ($self:ident, $($call:tt)*) => {
        match &mut $self.stream {
            Stream::Tcp(stream) => Pin::new(stream).$($call)*,
            Stream::Unix(stream) => Pin::new(stream).$($call)*,
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = forward!(self, poll_read(cx, buf));
        if read.is_ready() {
            self.silence.as_mut().reset(Instant::now() + SILENCE);
            return read;
        }
        self.silence.as_mut().poll(cx).map(Ok)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        forward!(self, poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(self, poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_shutdown(cx))
    }
}
