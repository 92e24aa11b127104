//! The admin API: its routes, its errors, and how a request's path and query are read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, RawPathParams, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post, put};
use axum::{Json, Router, middleware};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::hub::{Hub, Unanswered};
use super::publish::Bodies;
use super::{auth, listing, prometheus, publish, stats, trace};
use crate::limits::LIVENESS_SECONDS;
use crate::schema::Schema;
use crate::shard::step::{Ask, RoomKind};

/// What all handlers share.
#[derive(Debug)]
pub struct Admin {
    /// The cores.
    pub hub: Arc<Hub>,
    /// Events that may be published.
    pub schema: Arc<Schema>,
    /// Bearer token; empty = none.
    pub token: String,
    /// A drain has begun.
    pub draining: AtomicBool,
    /// Start of the process, near enough.
    pub started: Instant,
    /// Memory for request bodies.
    pub bodies: Bodies,
}

/// Answer to a request that is not carried out: `{"error":{"code","message"}}`.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Refusal {
    /// `message` says what is wrong and what to do.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { status, code, message: message.into() }
    }

    /// 400
    pub fn bad(code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// 404 for a client that is not there.
    pub fn not_connected(id: &str) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, "not_connected", format!("client {id:?} is not connected"))
    }

    /// 500: an answer that does not belong to its question.
    pub fn confused() -> Refusal {
        let message =
            "a core gave an answer of another kind than was asked for; this is a bug, please report it";
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    #[cfg(test)]
    pub fn code(&self) -> &'static str {
        self.code
    }

    #[cfg(test)]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<Unanswered> for Refusal {
    fn from(why: Unanswered) -> Refusal {
        let (code, message) = match why {
            Unanswered::Overloaded => ("overloaded", "too many requests wait for a core; try again later"),
            Unanswered::Ended => ("stopping", "the server is stopping; ask another one"),
            Unanswered::Draining => {
                ("draining", "the server saves its state and ends; ask the one that comes after it")
            }
        };
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = json!({ "error": { "code": self.code, "message": self.message } });
        (self.status, Json(body)).into_response()
    }
}

/// `{"ok":true}`
pub fn done() -> Json<Value> {
    Json(json!({ "ok": true }))
}

/// All routes. A name in a path may be empty, for which the router needs a route of its own.
pub fn router(admin: Arc<Admin>) -> Router {
    let rooms = |kind| get(move |s, q| listing::rooms(s, q, kind));
    let room = |kind| get(move |s, p| listing::room(s, p, kind));
    let member = |kind| -> MethodRouter<Arc<Admin>> {
        put(move |s, p| listing::member(s, p, kind, true))
            .delete(move |s, p| listing::member(s, p, kind, false))
    };
    let client = || get(listing::client).delete(listing::disconnect);
    Router::new()
        .route("/v1/publish", post(publish::publish))
        .route("/v1/clients", get(listing::clients))
        .route("/v1/clients/", client())
        .route("/v1/clients/{id}", client())
        .route("/v1/clients/{id}/topics/", member(RoomKind::Topic))
        .route("/v1/clients/{id}/topics/{room}", member(RoomKind::Topic))
        .route("/v1/clients/{id}/groups/", member(RoomKind::Group))
        .route("/v1/clients/{id}/groups/{room}", member(RoomKind::Group))
        .route("/v1/topics", rooms(RoomKind::Topic))
        .route("/v1/topics/", room(RoomKind::Topic))
        .route("/v1/topics/{room}", room(RoomKind::Topic))
        .route("/v1/groups", rooms(RoomKind::Group))
        .route("/v1/groups/", room(RoomKind::Group))
        .route("/v1/groups/{room}", room(RoomKind::Group))
        .route("/v1/stats", get(stats::stats))
        .route("/v1/trace", get(trace::trace).delete(trace::clear))
        .route("/metrics", get(prometheus::metrics))
        .route("/livez", get(alive))
        .route("/readyz", get(ready))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&admin), auth::check))
        .with_state(admin)
}

/// A core that is stuck is worth a restart; one that has ended is not: the server is stopping.
async fn alive(State(admin): State<Arc<Admin>>) -> Result<&'static str, Refusal> {
    match timeout(Duration::from_secs(LIVENESS_SECONDS), admin.hub.ask_all(|| Ask::Turn)).await {
        Ok(Ok(_) | Err(Unanswered::Ended | Unanswered::Draining)) => Ok("ok\n"),
        Ok(Err(Unanswered::Overloaded)) | Err(_) => {
            let message = "a core does not answer; restart the server, and please report it";
            Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "stuck", message))
        }
    }
}

async fn ready(State(admin): State<Arc<Admin>>) -> (StatusCode, &'static str) {
    if admin.draining.load(Ordering::Relaxed) {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}

async fn unknown() -> Refusal {
    let message = "no such path; docs/ADMIN.md lists those there are";
    Refusal::new(StatusCode::NOT_FOUND, "not_found", message)
}

async fn wrong_method() -> Refusal {
    let message = "this path has no such method; the Allow header names those it has";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

/// Names in the path, percent-decoded; one that is empty does not match as a parameter and is "".
#[derive(Debug, Default)]
pub struct Names {
    /// Client id.
    pub id: String,
    /// Topic or group.
    pub room: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Names {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Names, Refusal> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        let params =
            params.map_err(|e| Refusal::bad("bad_path", format!("{e}; names are percent-encoded UTF-8")))?;
        let mut names = Names::default();
        for (key, value) in &params {
            match key {
                "id" => names.id = value.into(),
                _ => names.room = value.into(),
            }
        }
        Ok(names)
    }
}

/// The query string.
#[derive(Debug)]
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Params<T>, Refusal> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        let bad = |e: QueryRejection| Refusal::bad("bad_query", e.body_text());
        query.map(|Query(params)| Params(params)).map_err(bad)
    }
}
