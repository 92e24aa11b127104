//! `seqcast sub` and `seqcast request`: this program as a client.

use std::io;

use clap::Args;
use seqcast::client::request::{self, RequestOptions};
use seqcast::client::sub::{self, DEFAULT_URL, SubOptions};

use super::{Failure, print, read_schema};

/// How to connect.
#[derive(Args)]
struct ClientArgs {
    /// WebSocket address
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    url: String,
    /// Bearer token
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// The server's schema file; without it the built-in events
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    schema: String,
}

/// Arguments of `sub`.
#[derive(Args)]
pub struct SubArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Subscribe to a topic; again for more
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,
    /// Join a group; again for more
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,
    /// End after so many events
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print control messages too
    #[arg(long)]
    control: bool,
}

/// Arguments of `request`.
#[derive(Args)]
pub struct RequestArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Name of the event
    event: String,
    /// The question's data
    json: String,
}

pub fn sub(args: &SubArgs) -> Result<(), Failure> {
    let options = SubOptions {
        url: args.client.url.clone(),
        token: args.client.token.clone(),
        topics: args.topics.clone(),
        groups: args.groups.clone(),
        count: args.count,
        control: args.control,
        schema: read_schema(&args.client.schema)?,
    };
    let out = io::BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    Ok(sub::run(&options, &mut { out }, &mut io::stderr().lock())?)
}

pub fn request(args: &RequestArgs) -> Result<(), Failure> {
    let data = serde_json::from_str(&args.json)
        .map_err(|e| Failure(format!("the data is no JSON: {e}; write {{\"field\":value,...}}")))?;
    let answer = request::run(&RequestOptions {
        url: args.client.url.clone(),
        token: args.client.token.clone(),
        event: args.event.clone(),
        data,
        schema: read_schema(&args.client.schema)?,
    })?;
    print(&format!("{answer}\n"))
}
