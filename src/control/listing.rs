//! Clients, topics and groups: listings, single rows, membership, disconnection.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::admin::{Admin, Names, Params, Refusal, done};
use super::merge::{self, Page};
use crate::limits::{CONTROL_FRAME_BYTES, PAGE_ROWS};
use crate::shard::step::{Answer, Ask, ClientRow, CoreId, RoomKind, RoomRow};

/// Which part of a listing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    limit: Option<usize>,
    after: Option<Box<str>>,
}

impl Window {
    fn limit(&self) -> usize {
        self.limit.unwrap_or(PAGE_ROWS).min(PAGE_ROWS)
    }
}

/// A client as the API shows it; absent members are left out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClientJson {
    id: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<Map<String, Value>>,
    groups: Vec<Box<str>>,
    topics: Vec<Box<str>>,
    connected_at: u64,
    ip: String,
    core: CoreId,
    seq: u64,
    queued: u64,
    dropped: u64,
}

impl From<ClientRow> for ClientJson {
    fn from(row: ClientRow) -> ClientJson {
        ClientJson {
            id: row.id,
            user_id: row.user,
            meta: row.meta,
            groups: row.groups,
            topics: row.topics,
            connected_at: row.connected_at,
            ip: row.ip,
            core: row.core,
            seq: row.seq,
            queued: row.queued,
            dropped: row.dropped,
        }
    }
}

/// `GET /v1/clients`
pub async fn clients(
    State(admin): State<Arc<Admin>>,
    Params(window): Params<Window>,
) -> Result<Json<Value>, Refusal> {
    let limit = window.limit();
    let ask = |after, limit| Ask::Clients { after, limit };
    let rows_of = |answer| match answer {
        Answer::Clients { rows, more } => (rows, more),
        _ => (Vec::new(), false),
    };
    let page = merge::page(&admin.hub, window.after, limit, ask, rows_of, |_: &ClientRow| true).await?;
    let next = next_of(&page, |row| &row.id);
    let rows: Vec<_> = page.rows.into_iter().map(ClientJson::from).collect();
    Ok(Json(json!({ "clients": rows, "next": next })))
}

/// `GET /v1/clients/{id}`
pub async fn client(State(admin): State<Arc<Admin>>, names: Names) -> Result<Json<Value>, Refusal> {
    let core = admin.hub.home_of_client(&names.id);
    match admin.hub.ask(core, Ask::Client { id: names.id.as_str().into() }).await? {
        Answer::Client(row) => Ok(Json(json!(ClientJson::from(*row)))),
        Answer::NotFound => Err(Refusal::not_connected(&names.id)),
        _ => Err(Refusal::confused()),
    }
}

/// Close code and reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Farewell {
    code: Option<u16>,
    reason: Option<Box<str>>,
}

/// `DELETE /v1/clients/{id}`
pub async fn disconnect(
    State(admin): State<Arc<Admin>>,
    names: Names,
    Params(farewell): Params<Farewell>,
) -> Result<Json<Value>, Refusal> {
    let code = farewell.code.unwrap_or(1000);
    if !matches!(code, 1000 | 3000..=4999) {
        return Err(Refusal::bad(
            "bad_query",
            format!("code {code} is not for operators; use 1000 or 3000 to 4999"),
        ));
    }
    let reason = farewell.reason.unwrap_or_else(|| "closed by server".into());
    let most = CONTROL_FRAME_BYTES - size_of_val(&code);
    if reason.len() > most {
        return Err(Refusal::bad(
            "bad_query",
            format!("reason has {} bytes; use at most {most}", reason.len()),
        ));
    }
    let core = admin.hub.home_of_client(&names.id);
    let ask = Ask::Disconnect { id: names.id.as_str().into(), code, reason };
    done_or_absent(admin.hub.ask(core, ask).await?, &names.id)
}

/// `PUT` and `DELETE /v1/clients/{id}/topics/{topic}`, `.../groups/{group}`
pub async fn member(
    State(admin): State<Arc<Admin>>,
    names: Names,
    kind: RoomKind,
    on: bool,
) -> Result<Json<Value>, Refusal> {
    let core = admin.hub.home_of_client(&names.id);
    let ask = Ask::Member { id: names.id.as_str().into(), kind, room: names.room.into(), on };
    done_or_absent(admin.hub.ask(core, ask).await?, &names.id)
}

fn done_or_absent(answer: Answer, id: &str) -> Result<Json<Value>, Refusal> {
    match answer {
        Answer::Ok => Ok(done()),
        Answer::NotFound => Err(Refusal::not_connected(id)),
        _ => Err(Refusal::confused()),
    }
}

/// `GET /v1/topics`, `GET /v1/groups`
pub async fn rooms(
    State(admin): State<Arc<Admin>>,
    Params(window): Params<Window>,
    kind: RoomKind,
) -> Result<Json<Value>, Refusal> {
    let limit = window.limit();
    let ask = |after, limit| Ask::Rooms { kind, after, limit };
    let rows_of = |answer| match answer {
        Answer::Rooms { rows, more } => (rows, more),
        _ => (Vec::new(), false),
    };
    // A core also tells of rooms that have members on other cores only.
    let page =
        merge::page(&admin.hub, window.after, limit, ask, rows_of, |row: &RoomRow| row.members > 0).await?;
    let rows: Vec<_> = page.rows.iter().map(|row| room_json(kind, row, json!(row.members))).collect();
    let mut object = json!({ plural(kind): rows });
    if let Some(next) = next_of(&page, |row| &row.name) {
        object["next"] = json!(next);
    }
    Ok(Json(object))
}

/// `GET /v1/topics/{topic}`, `GET /v1/groups/{group}`
pub async fn room(
    State(admin): State<Arc<Admin>>,
    names: Names,
    kind: RoomKind,
) -> Result<Json<Value>, Refusal> {
    let mut all = RoomRow { name: names.room.as_str().into(), members: 0, parked: 0, topic_seq: 0 };
    let mut ids = Vec::new();
    for (_, answer) in admin.hub.ask_all(|| Ask::Room { kind, room: all.name.clone() }).await? {
        match answer {
            Answer::Room { row, clients } => {
                ids.extend(clients);
                merge::Row::join(&mut all, row);
            }
            Answer::NotFound => {}
            _ => return Err(Refusal::confused()),
        }
    }
    if all.members == 0 {
        let message = format!("{} {:?} has no connected members", singular(kind), names.room);
        return Err(Refusal::new(StatusCode::NOT_FOUND, "not_found", message));
    }
    ids.sort_unstable();
    let mut object = room_json(kind, &all, json!(ids));
    object["clients"] = json!(ids);
    Ok(Json(object))
}

fn room_json(kind: RoomKind, row: &RoomRow, members: Value) -> Value {
    let mut object = json!({
        singular(kind): row.name,
        "name": row.name,
        "members": members,
        "parked": row.parked,
    });
    if kind == RoomKind::Topic {
        object["topicSeq"] = json!(row.topic_seq);
    }
    object
}

fn next_of<R>(page: &Page<R>, key: impl Fn(&R) -> &str) -> Option<Box<str>> {
    page.rows.last().filter(|_| page.more).map(|row| key(row).into())
}

fn singular(kind: RoomKind) -> &'static str {
    match kind {
        RoomKind::Topic => "topic",
        RoomKind::Group => "group",
        RoomKind::User => "user",
    }
}

fn plural(kind: RoomKind) -> &'static str {
    match kind {
        RoomKind::Topic => "topics",
        RoomKind::Group => "groups",
        RoomKind::User => "users",
    }
}
