//! `POST /v1/publish`: from a JSON body to a verified payload on its way to a core.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::admin::{Admin, Refusal};
use crate::limits::{ADMIN_BODIES_BYTES, ADMIN_BODY_BYTES, ADMIN_SECONDS, LARGE_BODY_BYTES};
use crate::schema::Schema;
use crate::shard::step::{Answer, Ask, EventIndex, RoomKind, Target};

/// Memory for the bodies that are held at one time.
#[derive(Debug)]
pub struct Bodies {
    memory: Semaphore,
    /// One large body is parsed at a time.
    large: Semaphore,
}

/// Unit of [`Bodies`], so that the count fits into a permit.
const KIB: usize = 1024;

impl Bodies {
    /// [`ADMIN_BODIES_BYTES`], all free.
    pub fn new() -> Bodies {
        Bodies { memory: Semaphore::new(ADMIN_BODIES_BYTES / KIB), large: Semaphore::new(1) }
    }
}

/// `to` in its two forms: `"all"`, or an object with one key.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Publish {
    event: String,
    data: Option<Value>,
    #[serde(rename = "payloadB64")]
    payload_b64: Option<Value>,
    #[serde(default = "to_all")]
    to: Value,
}

fn to_all() -> Value {
    "all".into()
}

/// The handler.
pub async fn publish(State(admin): State<Arc<Admin>>, request: Request) -> Result<Json<Value>, Refusal> {
    let (event, payload, target) = {
        let body = request.into_body();
        let size = body.size_hint().upper().unwrap_or(ADMIN_BODY_BYTES as u64);
        let kib = size.min(ADMIN_BODY_BYTES as u64).div_ceil(KIB as u64).max(1) as u32;
        let _memory = admin.bodies.memory.acquire_many(kib).await.expect("the semaphore is never closed");
        understand(&admin, read(body).await?).await?
    };
    let core = admin.hub.home_of_target(&target);
    let absent = match &target {
        Target::Client(id) => Some(id.clone()),
        _ => None,
    };
    match admin.hub.ask(core, Ask::Publish { event, payload, target }).await? {
        Answer::Published { topic, parked } => {
            let mut answer = json!({ "ok": true });
            if let Some((epoch, seq)) = topic {
                answer["epoch"] = json!(epoch);
                answer["topicSeq"] = json!(seq);
            }
            if parked {
                answer["parked"] = json!(true);
            }
            Ok(Json(answer))
        }
        Answer::NotFound => Err(Refusal::not_connected(absent.as_deref().unwrap_or_default())),
        _ => Err(Refusal::confused()),
    }
}

/// Parses a body: a large one on a thread of its own, one after the other, for it takes a second and many times its
/// memory.
async fn understand(admin: &Admin, body: Vec<u8>) -> Result<(EventIndex, Bytes, Target), Refusal> {
    if body.len() <= LARGE_BODY_BYTES {
        return parse(&admin.schema, &body);
    }
    let _turn = admin.bodies.large.acquire().await.expect("the semaphore is never closed");
    let schema = Arc::clone(&admin.schema);
    let parsed = tokio::task::spawn_blocking(move || parse(&schema, &body)).await;
    parsed.unwrap_or_else(|_| Err(Refusal::confused()))
}

/// Reads the whole body. What is too long is read on for as much again, so that the client gets to see the answer
/// instead of a reset.
async fn read(mut body: Body) -> Result<Vec<u8>, Refusal> {
    let mut all = Vec::new();
    let mut length = 0;
    let reading = async {
        while let Some(frame) = std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)).await
        {
            let frame =
                frame.map_err(|e| Refusal::bad("bad_body", format!("the body could not be read: {e}")))?;
            let Ok(data) = frame.into_data() else { continue };
            length += data.len();
            if length > 2 * ADMIN_BODY_BYTES {
                break;
            } else if length > ADMIN_BODY_BYTES {
                all = Vec::new();
            } else {
                all.extend_from_slice(&data);
            }
        }
        Ok::<(), Refusal>(())
    };
    let late = |_| {
        let message = format!("the body did not arrive within {ADMIN_SECONDS} s; send it faster");
        Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
    };
    timeout(Duration::from_secs(ADMIN_SECONDS), reading).await.map_err(late)??;
    if length > ADMIN_BODY_BYTES {
        let message = format!("the body has more than {ADMIN_BODY_BYTES} bytes; split it");
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
    }
    Ok(all)
}

/// What is to be published.
fn parse(schema: &Schema, body: &[u8]) -> Result<(EventIndex, Bytes, Target), Refusal> {
    let publish: Publish =
        serde_json::from_slice(body).map_err(|e| Refusal::bad("bad_json", format!("body: {e}")))?;
    let event = schema.by_name(&publish.event).ok_or_else(|| {
        let message = format!("the schema has no event {:?}; it has {}", publish.event, some_names(schema));
        Refusal::bad("unknown_event", message)
    })?;
    let target = target(publish.to)?;
    let payload = match (publish.data, publish.payload_b64) {
        (Some(data), None) => {
            let mut payload = Vec::new();
            let encoded = schema.encode_json(event, &data, &mut payload);
            encoded.map_err(|e| Refusal::bad("bad_data", e.to_string()))?;
            payload
        }
        (None, Some(text)) => decode(schema, event, &text)?,
        _ => return Err(Refusal::bad("bad_data", "give either data or payloadB64")),
    };
    Ok((event, payload.into(), target))
}

fn decode(schema: &Schema, event: EventIndex, text: &Value) -> Result<Vec<u8>, Refusal> {
    let bad = |what: String| Refusal::bad("bad_data", format!("payloadB64: {what}"));
    let text = text.as_str().ok_or_else(|| bad("expected a text".into()))?;
    let payload = STANDARD.decode(text).map_err(|e| bad(format!("no base64: {e}")))?;
    schema.verify(event, &payload).map_err(|e| bad(e.to_string()))?;
    Ok(payload)
}

fn target(to: Value) -> Result<Target, Refusal> {
    let bad = || {
        let message = "to is \"all\" or an object with one of topic, group, client, user, which is a text";
        Refusal::bad("bad_target", message)
    };
    let object = match to {
        Value::String(all) if all == "all" => return Ok(Target::All),
        Value::Object(object) if object.len() == 1 => object,
        _ => return Err(bad()),
    };
    match object.into_iter().next() {
        Some((kind, Value::String(name))) => {
            let name = name.into_boxed_str();
            match kind.as_str() {
                "topic" => Ok(Target::Room(RoomKind::Topic, name)),
                "group" => Ok(Target::Room(RoomKind::Group, name)),
                "user" => Ok(Target::Room(RoomKind::User, name)),
                "client" => Ok(Target::Client(name)),
                _ => Err(bad()),
            }
        }
        _ => Err(bad()),
    }
}

/// Names of the first few events, for an error text.
fn some_names(schema: &Schema) -> String {
    const FEW: usize = 8;
    let names: Vec<_> = schema.events().iter().map(|event| &*event.name).take(FEW).collect();
    let rest = if schema.len() > FEW { ", ..." } else { "" };
    format!("{}{rest}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTE: &str = r#"{"symbol":"S","bid":1,"ask":2,"bidSize":3,"askSize":4,"ts":5}"#;

    fn parsed(body: &str) -> Result<(EventIndex, Bytes, Target), Refusal> {
        parse(&Schema::builtin(), body.as_bytes())
    }

    fn to(to: &str) -> Result<Target, &'static str> {
        let body = format!(r#"{{"event":"quote","data":{QUOTE}{to}}}"#);
        parsed(&body).map(|(_, _, target)| target).map_err(|refusal| refusal.code())
    }

    #[test]
    fn targets() {
        let room = |kind, name: &str| Ok(Target::Room(kind, name.into()));
        assert_eq!(to(""), Ok(Target::All));
        assert_eq!(to(r#","to":"all""#), Ok(Target::All));
        assert_eq!(to(r#","to":{"topic":""}"#), room(RoomKind::Topic, ""));
        assert_eq!(to(r#","to":{"group":"g"}"#), room(RoomKind::Group, "g"));
        assert_eq!(to(r#","to":{"user":"u"}"#), room(RoomKind::User, "u"));
        assert_eq!(to(r#","to":{"client":"c"}"#), Ok(Target::Client("c".into())));
        for bad in [
            r#""some""#,
            "null",
            "{}",
            "[]",
            r#"["topic"]"#,
            r#"{"room":"x"}"#,
            r#"{"topic":5}"#,
            r#"{"topic":null}"#,
            r#"{"topic":"a","group":"b"}"#,
        ] {
            assert_eq!(to(&format!(r#","to":{bad}"#)), Err("bad_target"), "{bad}");
        }
    }

    #[test]
    fn each_fault_has_its_code() {
        let rows = [
            ("{not", "bad_json", ""),
            ("[]", "bad_json", ""),
            (r#"{"data":{}}"#, "bad_json", "event"),
            (r#"{"event":"quote","data":{},"topic":"t"}"#, "bad_json", "topic"),
            (r#"{"event":"nope","data":{}}"#, "unknown_event", "quote"),
            (r#"{"event":"ping","data":{"ts":1}}"#, "unknown_event", "ping"),
            (r#"{"event":"quote"}"#, "bad_data", "either"),
            (r#"{"event":"quote","data":{"symbol":"S"},"payloadB64":""}"#, "bad_data", "either"),
            (r#"{"event":"quote","data":{"symbol":"S","bid":"x"}}"#, "bad_data", "bid"),
            (r#"{"event":"quote","payloadB64":"AQID"}"#, "bad_data", "payload"),
            (r#"{"event":"quote","payloadB64":"!"}"#, "bad_data", "base64"),
            (r#"{"event":"quote","payloadB64":5}"#, "bad_data", "text"),
        ];
        for (body, code, named) in rows {
            let refusal = parsed(body).unwrap_err();
            assert_eq!(refusal.code(), code, "{body}");
            assert!(refusal.message().contains(named), "{body}: {}", refusal.message());
        }
    }

    #[test]
    fn data_and_payload_of_the_same_event_are_the_same() {
        let (event, payload, _) = parsed(&format!(r#"{{"event":"quote","data":{QUOTE}}}"#)).unwrap();
        let text = STANDARD.encode(&payload);
        let again = parsed(&format!(r#"{{"event":"quote","payloadB64":"{text}"}}"#)).unwrap();
        assert_eq!((again.0, again.1), (event, payload));
    }
}
