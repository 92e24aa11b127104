//! What a session tells its owner.

use std::fmt;
use std::time::Duration;

/// Where a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The first connection is being made.
    Connecting,
    /// A connection is open.
    Connected,
    /// A connection was lost; another one follows.
    Reconnecting,
    /// Over.
    Closed(End),
}

/// How a connection ended, or why none came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The socket ended without a close frame, or could not be opened.
    Cut,
    /// The server closed with this code; 1005 = none.
    Closed(u16),
    /// The upgrade was answered with this HTTP status.
    Refused(u16),
    /// [`Session::close`](super::session::Session::close)
    Ours,
}

impl End {
    /// True when another attempt would end alike: not allowed in, or told off for what we sent.
    pub fn is_final(self) -> bool {
        matches!(self, End::Refused(401 | 403) | End::Closed(1002 | 1008) | End::Ours)
    }
}

/// What a session wants done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this as one binary message.
    Send(Vec<u8>),
    /// An event for the application.
    Deliver {
        /// Event id.
        event: u32,
        /// Its sequence number, if it carried one.
        seq: Option<u64>,
        /// Size-prefixed FlatBuffer, not verified.
        payload: Vec<u8>,
    },
    /// Events that will not come any more.
    Missed {
        /// First number that is missing.
        from: u64,
        /// Last one; none when the server has lost the session and how much it held is unknown.
        to: Option<u64>,
    },
    /// Answer to [`Session::request`](super::session::Session::request).
    Reply {
        /// Of which request.
        request: RequestId,
        /// A whole envelope of the request's event.
        result: Result<Vec<u8>, RequestError>,
    },
    /// A control message arrived; the session has already done what it asks.
    Control {
        /// Its id, [`envelope::id`](crate::wire::envelope::id).
        id: u32,
        /// Its payload; it decodes.
        payload: Vec<u8>,
    },
    /// A message arrived that cannot be read; it was dropped.
    Undecodable,
    /// Close the connection with this code and then say [`Session::lost`](super::session::Session::lost); none: the
    /// peer is dead, drop the socket.
    Close {
        /// Close code.
        code: Option<u16>,
    },
    /// Dial after this time.
    Reconnect {
        /// How long to wait.
        after: Duration,
    },
    /// The status changed.
    Status(Status),
}

/// One request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// The server says why.
    Failed(String),
    /// The answer is not base64 of an envelope.
    Undecodable,
    /// No answer came in time.
    TimedOut,
    /// The connection ended first.
    ConnectionLost,
    /// The session is not connected.
    NotConnected,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestError::Failed(why) => f.write_str(why),
            RequestError::Undecodable => f.write_str("the answer cannot be decoded"),
            RequestError::TimedOut => f.write_str("no answer came in time; is a handler running?"),
            RequestError::ConnectionLost => f.write_str("the connection ended before the answer; ask again"),
            RequestError::NotConnected => f.write_str("not connected"),
        }
    }
}

impl std::error::Error for RequestError {}

/// Why a message cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    /// The session is closed.
    Closed,
    /// Too many messages wait for a connection.
    QueueFull,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::Closed => f.write_str("the session is closed; open another one"),
            SendError::QueueFull => f.write_str("too many messages wait for a connection; send later"),
        }
    }
}

impl std::error::Error for SendError {}
