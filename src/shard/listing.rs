//! What the WebSocket port says about itself: `GET /health`, and `GET /clients` with the rows of all cores.

use serde_json::{Map, Value, json};

use crate::limits::LISTING_BYTES;
use crate::wire::handshake::{Refusal, write_json};

use super::Shard;
use super::handoff::Handoff;
use super::session::{NONE, State};
use super::step::{ClientRow, ConnId, CoreId};

/// `GET /clients` of several askers. Other cores are asked once at a time, however many ask here.
#[derive(Debug, Default)]
pub(super) struct Listings {
    round: Option<Round>,
    /// They came while a round ran, which may have their own connection not in it: the next one is theirs.
    waiting: Vec<ConnId>,
}

/// Other cores were asked.
#[derive(Debug)]
struct Round {
    askers: Vec<ConnId>,
    /// Cores that have not answered.
    left: CoreId,
    /// By time of connecting, in Unix milliseconds.
    rows: Vec<(u64, String)>,
    /// Of the rows.
    bytes: usize,
    is_long: bool,
}

impl Round {
    fn add(&mut self, rows: Option<&str>) {
        let rows = rows.unwrap_or_else(|| {
            self.is_long = true;
            ""
        });
        self.bytes += rows.len();
        self.is_long |= self.bytes > LISTING_BYTES;
        if self.is_long {
            self.rows = Vec::new();
            return;
        }
        let rows = rows.lines().filter_map(|line| line.split_once(' '));
        self.rows.extend(rows.map(|(at, row)| (at.parse().unwrap_or(0), row.to_owned())));
    }

    /// The answer; none: it is too long.
    fn body(mut self) -> Option<Vec<u8>> {
        self.rows.sort_by_key(|(at, _)| *at);
        let rows: Vec<&str> = self.rows.iter().map(|(_, row)| &**row).collect();
        (!self.is_long).then(|| format!("[{}]", rows.join(",")).into_bytes())
    }
}

impl Shard {
    /// Body of `GET /health`.
    pub(super) fn health(&self) -> Vec<u8> {
        let uptime_ms = (self.now.0 - self.started.unwrap_or(self.now).0) / 1_000_000;
        let body = json!({"status": "ok", "clients": self.census.upgraded(), "uptimeMs": uptime_ms});
        body.to_string().into_bytes()
    }

    /// Answers `GET /clients`, in order of connecting, once all cores have told their rows.
    pub(super) fn list_clients(&mut self, index: u32) {
        let conn = self.conn_mut(index);
        conn.state = State::Listing;
        let conn = conn.id;
        self.listings.waiting.push(conn);
        self.begin_listing();
    }

    /// Begins a round if none runs and somebody still waits for one.
    fn begin_listing(&mut self) {
        if self.listings.round.is_some() {
            return;
        }
        let mut askers = std::mem::take(&mut self.listings.waiting);
        askers.retain(|conn| self.find_conn(*conn).is_some());
        if askers.is_empty() {
            return;
        }
        let left = self.cores - 1;
        let mut round = Round { askers, left, rows: Vec::new(), bytes: 0, is_long: false };
        round.add(self.public_rows().as_deref());
        self.listings.round = Some(round);
        for core in self.other_cores() {
            self.hand(core, &Handoff::List);
        }
        self.finish_listing();
    }

    /// Another core wants the rows of this one.
    pub(super) fn on_list(&mut self, from: CoreId) {
        let rows = self.public_rows();
        self.hand(from, &Handoff::Listed { rows: rows.as_deref() });
    }

    /// Rows of another core; none: they are too long.
    pub(super) fn on_listed(&mut self, rows: Option<&str>) {
        let round = self.listings.round.as_mut().expect("a round waits until all cores have answered");
        round.add(rows);
        round.left -= 1;
        self.finish_listing();
    }

    fn finish_listing(&mut self) {
        let Some(mut round) = self.listings.round.take_if(|round| round.left == 0) else { return };
        let askers = std::mem::take(&mut round.askers);
        let body = round.body();
        for conn in askers {
            let Some(index) = self.find_conn(conn) else { continue };
            match &body {
                Some(body) => self.respond(index, |out| write_json(out, 200, body)),
                None => self.refuse(index, &Refusal::LONG_LISTING),
            }
        }
        self.begin_listing();
    }

    /// A line for each connected client, in order of connecting: when, and its row as JSON. None when they are longer
    /// than [`LISTING_BYTES`].
    fn public_rows(&self) -> Option<String> {
        let connected = self.sessions.iter().filter(|(_, session)| session.conn != NONE);
        let mut connected: Vec<(u64, u32)> =
            connected.map(|(index, session)| (self.connected_at(session), index as u32)).collect();
        connected.sort_unstable();
        let mut rows = String::new();
        for (at, index) in connected {
            // JSON has no line breaks of its own.
            rows.push_str(&format!("{at} {}\n", public_row(self.client_row(index))));
            if rows.len() > LISTING_BYTES {
                return None;
            }
        }
        Some(rows)
    }
}

fn public_row(row: ClientRow) -> Value {
    let mut shown = Map::new();
    shown.insert("id".into(), json!(row.id));
    if let Some(user) = row.user {
        shown.insert("userId".into(), json!(user));
    }
    if let Some(meta) = row.meta {
        shown.insert("meta".into(), Value::Object(meta));
    }
    shown.insert("groups".into(), json!(row.groups));
    shown.insert("topics".into(), json!(row.topics));
    shown.insert("connectedAt".into(), json!(row.connected_at));
    shown.insert("ip".into(), json!(row.ip));
    Value::Object(shown)
}
