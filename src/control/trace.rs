//! `GET` and `DELETE /v1/trace`: the newest events of all cores.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::admin::{Admin, Params, Refusal, done};
use crate::shard::step::{Answer, Ask, Direction, TracePage, TraceRow};

/// Which rows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    #[serde(default = "hundred")]
    limit: usize,
    direction: Option<Box<str>>,
    name: Option<Box<str>>,
}

fn hundred() -> usize {
    100
}

/// `GET /v1/trace`
pub async fn trace(
    State(admin): State<Arc<Admin>>,
    Params(filter): Params<Filter>,
) -> Result<Json<Value>, Refusal> {
    let Filter { limit, direction, name } = filter;
    let direction = match direction.as_deref() {
        None => None,
        Some("out.publish") => Some(Direction::Publish),
        Some("in.client") => Some(Direction::Client),
        Some(other) => {
            let message = format!("direction {other:?} does not exist; use out.publish or in.client");
            return Err(Refusal::bad("bad_query", message));
        }
    };
    let mut pages = Vec::with_capacity(admin.hub.cores());
    for (_, answer) in admin.hub.ask_all(|| Ask::Trace { limit, direction, name: name.clone() }).await? {
        match answer {
            Answer::Trace(page) => pages.push(*page),
            _ => return Err(Refusal::confused()),
        }
    }
    Ok(Json(render(pages, limit)))
}

/// `DELETE /v1/trace`
pub async fn clear(State(admin): State<Arc<Admin>>) -> Result<Json<Value>, Refusal> {
    admin.hub.ask_all(|| Ask::ClearTrace).await?;
    Ok(done())
}

fn render(pages: Vec<TracePage>, limit: usize) -> Value {
    let sum = |of: fn(&TracePage) -> u64| pages.iter().map(of).sum::<u64>();
    let capacity = sum(|page| page.capacity as u64);
    let mut by_name = Map::new();
    for (name, count) in pages.iter().flat_map(|page| &page.by_name) {
        let before = by_name.get(&**name).and_then(Value::as_u64).unwrap_or(0);
        by_name.insert(name.to_string(), (before + count).into());
    }
    let last = pages.iter().filter_map(|page| page.last.as_ref()).max_by_key(|(_, ts)| *ts);
    let stats = json!({
        "enabled": capacity > 0,
        "capacity": capacity,
        "size": sum(|page| page.size as u64),
        "total": sum(|page| page.total),
        "inCount": sum(|page| page.inbound),
        "outCount": sum(|page| page.outbound),
        "bytes": sum(|page| page.bytes),
        "byName": by_name,
        "last": last.map(|(name, ts)| json!({ "name": name, "ts": ts })),
    });
    let mut rows: Vec<_> = pages.into_iter().flat_map(|page| page.recent).collect();
    // Stable: rows of one core and one millisecond keep their order.
    rows.sort_by_key(|row| std::cmp::Reverse(row.ts));
    rows.truncate(limit);
    let recent: Vec<_> = rows.into_iter().map(row_json).collect();
    json!({ "enabled": capacity > 0, "capacity": capacity, "stats": stats, "recent": recent })
}

/// A row; absent members are left out. The captured beginning of a payload is base64.
fn row_json(row: TraceRow) -> Value {
    let direction = match row.direction {
        Direction::Publish => "out.publish",
        Direction::Client => "in.client",
    };
    let mut object = json!({
        "seq": row.seq,
        "ts": row.ts,
        "direction": direction,
        "name": row.name,
        "bytes": row.bytes,
    });
    let optional = [
        ("target", row.target.map(Value::from)),
        ("key", row.key.map(|key| Value::from(&*key))),
        ("payload", row.payload.map(|payload| STANDARD.encode(payload).into())),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            object[name] = value;
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rows: &[(u64, u64)]) -> TracePage {
        let row = |&(seq, ts)| TraceRow {
            seq,
            ts,
            direction: Direction::Publish,
            name: "quote".into(),
            bytes: 100,
            target: Some("topic"),
            key: Some("t".into()),
            payload: None,
        };
        TracePage {
            capacity: 4,
            size: rows.len(),
            total: 9,
            outbound: rows.len() as u64,
            bytes: 100 * rows.len() as u64,
            by_name: vec![("quote".into(), rows.len() as u64)],
            recent: rows.iter().map(row).collect(),
            last: rows.first().map(|&(_, ts)| ("quote".into(), ts)),
            ..TracePage::default()
        }
    }

    #[test]
    fn rows_of_all_cores_by_time_newest_first() {
        let json = render(vec![page(&[(3, 30), (2, 10), (1, 10)]), page(&[(8, 40), (7, 20)])], 4);
        let seqs: Vec<_> =
            json["recent"].as_array().unwrap().iter().map(|row| row["seq"].as_u64().unwrap()).collect();
        assert_eq!(seqs, [8, 3, 7, 2]);
        let expected = json!({"enabled": true, "capacity": 8, "size": 5, "total": 18, "inCount": 0, "outCount": 5,
            "bytes": 500, "byName": {"quote": 5}, "last": {"name": "quote", "ts": 40}});
        assert_eq!(json["stats"], expected);
    }

    #[test]
    fn switched_off() {
        let json = render(vec![TracePage::default()], 100);
        assert_eq!((&json["enabled"], &json["stats"]["last"]), (&json!(false), &Value::Null));
        assert_eq!(json["recent"], json!([]));
    }
}
