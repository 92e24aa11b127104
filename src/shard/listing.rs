//! What the WebSocket port says about itself: `GET /health`, and `GET /clients` with the rows of all cores.

use serde_json::{Map, Value, json};

use crate::limits::LISTING_BYTES;
use crate::wire::handshake::{Refusal, write_json};

use super::Shard;
use super::handoff::Handoff;
use super::session::{NONE, State};
use super::step::{ClientRow, ConnId, CoreId};

/// A `GET /clients` that waits for other cores.
#[derive(Debug)]
pub(super) struct Listing {
    conn: ConnId,
    /// Cores that have not answered.
    left: CoreId,
    /// By time of connecting, in Unix milliseconds.
    rows: Vec<(u64, String)>,
    /// Of the rows.
    bytes: usize,
    is_long: bool,
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
        conn.state = State::Waiting(Vec::new());
        let conn = conn.id;
        let left = self.cores - 1;
        self.listings.push(Listing { conn, left, rows: Vec::new(), bytes: 0, is_long: false });
        let own = self.public_rows();
        self.add_rows(conn, own.as_deref());
        for core in self.other_cores() {
            self.hand(core, &Handoff::List { conn });
        }
        self.finish_listing(conn);
    }

    /// Another core wants the rows of this one.
    pub(super) fn on_list(&mut self, from: CoreId, conn: ConnId) {
        let rows = self.public_rows();
        self.hand(from, &Handoff::Listed { conn, rows: rows.as_deref() });
    }

    /// Rows of another core; none: they are too long.
    pub(super) fn on_listed(&mut self, conn: ConnId, rows: Option<&str>) {
        self.add_rows(conn, rows);
        if let Some(listing) = self.listings.iter_mut().find(|listing| listing.conn == conn) {
            listing.left -= 1;
        }
        self.finish_listing(conn);
    }

    fn add_rows(&mut self, conn: ConnId, rows: Option<&str>) {
        let found = self.listings.iter_mut().find(|listing| listing.conn == conn);
        let listing = found.expect("a listing waits until all cores have answered");
        let Some(rows) = rows else {
            listing.is_long = true;
            return;
        };
        listing.bytes += rows.len();
        listing.is_long |= listing.bytes > LISTING_BYTES;
        if listing.is_long {
            listing.rows = Vec::new();
            return;
        }
        let rows = rows.lines().filter_map(|line| line.split_once(' '));
        listing.rows.extend(rows.map(|(at, row)| (at.parse().unwrap_or(0), row.to_owned())));
    }

    fn finish_listing(&mut self, conn: ConnId) {
        let Some(at) = self.listings.iter().position(|listing| listing.conn == conn && listing.left == 0)
        else {
            return;
        };
        let mut listing = self.listings.swap_remove(at);
        let Some(index) = self.find_conn(conn) else { return };
        if listing.is_long {
            return self.refuse(index, &Refusal::LONG_LISTING);
        }
        listing.rows.sort_by_key(|(at, _)| *at);
        let rows: Vec<&str> = listing.rows.iter().map(|(_, row)| &**row).collect();
        let body = format!("[{}]", rows.join(","));
        self.respond(index, |out| write_json(out, 200, body.as_bytes()));
    }

    /// A line for each connected client, in order of connecting: when, and its row as JSON. None when they are longer
    /// than [`LISTING_BYTES`].
    fn public_rows(&self) -> Option<String> {
        let connected = self.sessions.iter().filter(|(_, session)| session.conn != NONE);
        let mut connected: Vec<(u64, u32)> =
            connected.map(|(index, session)| (session.connected_at, index as u32)).collect();
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
