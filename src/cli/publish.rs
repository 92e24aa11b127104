//! `seqcast pub`: events through the admin API.

use std::io::{self, BufRead};

use clap::Args;
use serde_json::{Value, json};

use super::http::{Answer, Http};
use super::{Failure, one_line};

/// Arguments of `pub`.
#[derive(Args)]
pub struct PubArgs {
    /// Address of the admin API, "http://HOST:PORT" or "unix:/path"
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9401")]
    url: String,
    /// Bearer token of the admin API
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    #[command(flatten)]
    target: Target,
    /// Name of the event
    event: String,
    /// The event's data; "@FILE" reads a file, "-" one event a line from standard input
    json: String,
}

/// Who gets the event; without any of them, every client.
#[derive(Args)]
#[group(multiple = false)]
struct Target {
    /// To the members of a topic
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// To the members of a group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// To one client
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// To all connections of a user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

impl Target {
    fn json(&self) -> Value {
        let named =
            [("topic", &self.topic), ("group", &self.group), ("client", &self.client), ("user", &self.user)];
        let given = named.into_iter().find_map(|(key, name)| Some(json!({ key: name.as_ref()? })));
        given.unwrap_or_else(|| "all".into())
    }
}

pub fn run(args: &PubArgs) -> Result<(), Failure> {
    if args.token.as_ref().is_some_and(|t| t.chars().any(char::is_control)) {
        return Err(Failure(
            "--token holds a control character, which no header can carry; leave it out".into(),
        ));
    }
    let mut publisher = Publisher { http: Http::new(&args.url).map_err(Failure)?, args };
    match args.json.strip_prefix('@') {
        _ if args.json == "-" => publisher.lines(io::stdin().lock()),
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .map_err(|e| Failure(format!("cannot read {file}: {e}; name a readable file of JSON")))?;
            publisher.publish(&text)
        }
        None => publisher.publish(&args.json),
    }
}

struct Publisher<'a> {
    http: Http,
    args: &'a PubArgs,
}

impl Publisher<'_> {
    /// One event a line; empty lines are skipped, the first failure ends it.
    fn lines(&mut self, input: impl BufRead) -> Result<(), Failure> {
        for (number, line) in input.lines().enumerate() {
            let at = |Failure(text)| Failure(format!("line {}: {text}", number + 1));
            let line = line.map_err(|e| at(Failure(format!("cannot read it: {e}; write UTF-8"))))?;
            if !line.trim().is_empty() {
                self.publish(&line).map_err(at)?;
            }
        }
        Ok(())
    }

    fn publish(&mut self, data: &str) -> Result<(), Failure> {
        // The text itself is sent, not what it parses to: numbers stay as they were written.
        serde_json::from_str::<serde::de::IgnoredAny>(data)
            .map_err(|e| Failure(format!("the data is no JSON: {e}; write {{\"field\":value,...}}")))?;
        let (event, to) = (Value::from(self.args.event.as_str()), self.args.target.json());
        let body = format!(r#"{{"event":{event},"to":{to},"data":{data}}}"#);
        let answer = self.http.post("/v1/publish", self.args.token.as_deref(), &body).map_err(|e| {
            let url = &self.args.url;
            Failure(format!(
                "no answer from {url}: {e}; start the server, or name its admin address with --url"
            ))
        })?;
        if answer.status == 200 { Ok(()) } else { Err(refusal(&answer)) }
    }
}

/// What the server said, in its own words where it has some.
fn refusal(answer: &Answer) -> Failure {
    let error = serde_json::from_slice::<Value>(&answer.body).ok().and_then(|v| {
        let error = v.get("error")?;
        Some(format!("{}: {}", error.get("code")?.as_str()?, error.get("message")?.as_str()?))
    });
    let said = error.unwrap_or_else(|| {
        let text = one_line(&String::from_utf8_lossy(&answer.body));
        text.chars().take(200).collect()
    });
    let hint = if answer.status == 401 { "; give the admin token with --token" } else { "" };
    Failure(format!("the server refused the event, {}: {said}{hint}", answer.status))
}
