//! `GET` and `DELETE /v1/trace`: the newest events of all cores.

use std::cmp::Reverse;
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
    // Which rows are the newest of all is known only when all are here.
    for (_, answer) in admin.hub.ask_all(|| Ask::Trace).await? {
        match answer {
            Answer::Trace(page) => pages.push(*page),
            _ => return Err(Refusal::confused()),
        }
    }
    let wanted = |row: &TraceRow| {
        direction.is_none_or(|wanted| wanted == row.direction)
            && name.as_deref().is_none_or(|wanted| wanted == &*row.name)
    };
    Ok(Json(render(pages, limit, wanted)))
}

/// `DELETE /v1/trace`
pub async fn clear(State(admin): State<Arc<Admin>>) -> Result<Json<Value>, Refusal> {
    admin.hub.ask_all(|| Ask::ClearTrace).await?;
    Ok(done())
}

/// The newest rows of all cores together, as many as one core keeps. Their numbers rise in the order of time.
fn render(pages: Vec<TracePage>, limit: usize, wanted: impl Fn(&TraceRow) -> bool) -> Value {
    let capacity = pages.iter().map(|page| page.capacity).max().unwrap_or(0);
    let total = pages.iter().map(|page| page.total).sum::<u64>();
    let mut rows: Vec<TraceRow> = pages.into_iter().flat_map(|page| page.rows).collect();
    // Stable: rows of one core and one turn keep their order.
    rows.sort_by_key(|row| Reverse(row.at));
    rows.truncate(capacity);
    let mut by_name = Map::new();
    for row in rows.iter().rev() {
        let before = by_name.get(&*row.name).and_then(Value::as_u64).unwrap_or(0);
        by_name.insert(row.name.to_string(), (before + 1).into());
    }
    let inbound = rows.iter().filter(|row| row.direction == Direction::Client).count();
    let stats = json!({
        "enabled": capacity > 0,
        "capacity": capacity,
        "size": rows.len(),
        "total": total,
        "inCount": inbound,
        "outCount": rows.len() - inbound,
        "bytes": rows.iter().map(|row| row.bytes).sum::<u64>(),
        "byName": by_name,
        "last": rows.first().map(|row| json!({ "name": row.name, "ts": row.ts })),
    });
    let numbered = rows.into_iter().zip((0..=total).rev());
    let shown = numbered.filter(|(row, _)| wanted(row)).take(limit);
    let recent: Vec<_> = shown.map(|(row, seq)| row_json(row, seq)).collect();
    json!({ "enabled": capacity > 0, "capacity": capacity, "stats": stats, "recent": recent })
}

/// A row; absent members are left out. The captured beginning of a payload is base64.
fn row_json(row: TraceRow, seq: u64) -> Value {
    let direction = match row.direction {
        Direction::Publish => "out.publish",
        Direction::Client => "in.client",
    };
    let mut object = json!({
        "seq": seq,
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
    use crate::shard::step::Instant;

    fn page(total: u64, times: &[u64]) -> TracePage {
        let row = |&ts| TraceRow {
            at: Instant(ts),
            ts,
            direction: Direction::Publish,
            name: "quote".into(),
            bytes: 100,
            target: Some("topic"),
            key: Some("t".into()),
            payload: None,
        };
        TracePage { capacity: 4, total, rows: times.iter().map(row).collect() }
    }

    #[test]
    fn rows_of_all_cores_by_time_newest_first() {
        let json = render(vec![page(9, &[30, 10, 10]), page(7, &[40, 20])], 3, |_| true);
        let shown = json["recent"].as_array().unwrap().iter();
        let shown: Vec<_> =
            shown.map(|row| (row["seq"].as_u64().unwrap(), row["ts"].as_u64().unwrap())).collect();
        assert_eq!(shown, [(16, 40), (15, 30), (14, 20)]);
        let expected = json!({"enabled": true, "capacity": 4, "size": 4, "total": 16, "inCount": 0, "outCount": 4,
            "bytes": 400, "byName": {"quote": 4}, "last": {"name": "quote", "ts": 40}});
        assert_eq!(json["stats"], expected);
    }

    #[test]
    fn a_row_keeps_its_number_under_a_filter() {
        let json = render(vec![page(2, &[20, 10])], 9, |row| row.ts == 10);
        assert_eq!(json["recent"][0]["seq"], 1);
        assert_eq!(json["stats"]["size"], 2);
    }

    #[test]
    fn switched_off() {
        let json = render(vec![TracePage::default()], 100, |_| true);
        assert_eq!((&json["enabled"], &json["stats"]["last"]), (&json!(false), &Value::Null));
        assert_eq!(json["recent"], json!([]));
    }
}
