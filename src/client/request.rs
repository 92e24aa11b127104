//! `seqcast request`: one question to the server's handler of an event, one answer.

use serde_json::Value;

use super::session::SessionOptions;
use super::{Client, ClientError, ClientOptions, RequestError};
use crate::schema::Schema;
use crate::wire::envelope::{self, HEADER_BYTES};

/// What to ask.
#[derive(Debug, Clone)]
pub struct RequestOptions {
    /// WebSocket address.
    pub url: String,
    /// Bearer token.
    pub token: Option<String>,
    /// Event name; question and answer are events of it.
    pub event: String,
    /// The question's data.
    pub data: Value,
    /// How payloads are written and read.
    pub schema: Schema,
}

/// Asks once and gives the answer's data. Waits 10 s at most.
///
/// # Errors
/// Unknown event, data that does not fit it, no connection, an error reply (with the server's text), no reply.
pub fn run(options: &RequestOptions) -> Result<Value, ClientError> {
    let schema = &options.schema;
    let name = options.event.as_str();
    let event = schema.by_name(name).ok_or_else(|| ClientError::UnknownEvent(name.to_owned()))?;
    let mut payload = Vec::new();
    schema
        .encode_json(event, &options.data, &mut payload)
        .map_err(|error| ClientError::Data { event: name.to_owned(), error })?;
    let session = SessionOptions { reconnect: None, ..SessionOptions::default() };
    let token = options.token.clone();
    let mut client =
        Client::connect(&options.url, ClientOptions { token, session, ..ClientOptions::default() })?;
    let answer = client.request(name, &payload)?;
    client.close();
    if envelope::parse(&answer).is_none_or(|header| header.id != schema.id(event)) {
        return Err(ClientError::Request { event: name.to_owned(), error: RequestError::Undecodable });
    }
    schema
        .decode_json(event, &answer[HEADER_BYTES..])
        .map_err(|error| ClientError::Payload { event: name.to_owned(), error })
}
