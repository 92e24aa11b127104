//! What can go wrong for a client, said so that the reader knows what to do.

use std::fmt;
use std::io;

use super::action::{End, RequestError, SendError};
use crate::schema::{DataError, Malformed};

/// Why a client cannot go on.
#[derive(Debug)]
pub enum ClientError {
    /// The URL cannot be used; what is wrong with it and what to do.
    Address(String),
    /// No connection to this address came about.
    Dial {
        /// Host and port.
        to: String,
        /// What the system says.
        error: io::Error,
    },
    /// The server answered the upgrade with another status than 101.
    Refused {
        /// HTTP status.
        status: u16,
        /// First line of the answer's body.
        text: String,
    },
    /// What answered is no WebSocket server; what is wrong.
    Handshake(String),
    /// The session is over.
    Ended {
        /// How the last connection ended.
        end: End,
        /// The reason that the server gave with its close frame; often empty.
        reason: String,
    },
    /// A request has no answer.
    Request {
        /// Event name.
        event: String,
        /// Why.
        error: RequestError,
    },
    /// A message cannot be sent.
    Send(SendError),
    /// The schema has no such event.
    UnknownEvent(String),
    /// JSON data does not fit its event.
    Data {
        /// Event name.
        event: String,
        /// Which field and why.
        error: DataError,
    },
    /// A payload of the server cannot be read with this schema.
    Payload {
        /// Event name.
        event: String,
        /// What is wrong with it.
        error: Malformed,
    },
    /// The output cannot be written.
    Output(io::Error),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Address(what) => f.write_str(what),
            ClientError::Dial { to, error } => {
                write!(f, "no connection to {to}: {error}; is the server running there?")
            }
            ClientError::Refused { status, text } => {
                write!(f, "refused by the server: {status} {text}{}", advice(*status))
            }
            ClientError::Handshake(what) => {
                write!(f, "no WebSocket server answers: {what}; check the address")
            }
            ClientError::Ended { end, reason } => write_end(f, *end, reason),
            ClientError::Request { event, error } => write!(f, "request {event:?} failed: {error}"),
            ClientError::Send(error) => write!(f, "not sent: {error}"),
            ClientError::UnknownEvent(name) => {
                write!(f, "the schema has no event {name:?}; check its name or give the server's schema file")
            }
            ClientError::Data { event, error } => write!(f, "data of event {event:?}: {error}"),
            ClientError::Payload { event, error } => {
                write!(f, "event {event:?}: {error}; give the server's schema file")
            }
            ClientError::Output(error) => write!(f, "cannot write the output: {error}"),
        }
    }
}

fn advice(status: u16) -> &'static str {
    match status {
        401 => "; give a token that the server knows",
        403 => "; this client may not come in",
        404 => "; check the path, usually /ws",
        409 => "; end the other client of this id, or wait until it is gone",
        503 => "; try again later",
        _ => "",
    }
}

fn write_end(f: &mut fmt::Formatter<'_>, end: End, reason: &str) -> fmt::Result {
    match end {
        End::Cut => f.write_str("the connection was cut; connect again"),
        End::Ours => f.write_str("the session was closed"),
        End::Refused(status) => write!(f, "the server refused to connect again: {status}{}", advice(status)),
        End::Closed(code) if reason.is_empty() => write!(f, "the server closed the connection ({code})"),
        End::Closed(code) => write!(f, "the server closed the connection: {reason} ({code})"),
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ClientError::Dial { error, .. } | ClientError::Output(error) => Some(error),
            ClientError::Request { error, .. } => Some(error),
            ClientError::Send(error) => Some(error),
            ClientError::Data { error, .. } => Some(error),
            ClientError::Payload { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<SendError> for ClientError {
    fn from(error: SendError) -> Self {
        ClientError::Send(error)
    }
}
