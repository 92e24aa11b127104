//! What must hold between values of different keys.

use std::collections::BTreeMap;

use super::identity::{check_origin, is_anonymous_id};
use super::value::{quoted, show_duration, show_size};
use super::{Config, ConfigError, Listen, Source};

/// Descriptors that a process needs beside those of its connections.
const SPARE_DESCRIPTORS: u64 = 32;

/// Lowers `max_connections` to what the descriptor limit `nofile` allows. Returns a warning if it did.
pub fn clamp_connections(config: &mut Config, nofile: u64) -> Option<String> {
    let room = u32::try_from(nofile.saturating_sub(SPARE_DESCRIPTORS).max(1)).unwrap_or(u32::MAX);
    let wanted = config.server.max_connections;
    if wanted <= room {
        return None;
    }
    config.server.max_connections = room;
    Some(format!(
        "server.max_connections: {wanted} is more than the descriptor limit of {nofile} allows; {room} is used, raise \
         the limit (LimitNOFILE= of systemd, ulimit -n) for more"
    ))
}

/// Checks a configuration that was not loaded but made by a program; returns warnings. What [`load`](super::load)
/// refuses is refused here too.
///
/// # Errors
/// The first value that cannot be.
pub fn check(config: &Config) -> Result<Vec<String>, ConfigError> {
    let refuse = |what: String, todo: String| Err(ConfigError { place: "configuration".into(), what, todo });
    for origin in &config.auth.allowed_origins {
        if let Err(todo) = check_origin(origin) {
            return refuse(format!("auth.allowed_origins: {} is no origin", quoted(origin)), todo);
        }
    }
    for (i, identity) in config.auth.identity.iter().enumerate() {
        let earlier = config.auth.identity[..i].iter().any(|e| e.token == identity.token);
        if identity.token.is_empty() || earlier {
            let what = format!("auth.identity: identity {} has no token of its own", i + 1);
            return refuse(what, "give it one".into());
        }
        if let Some(id) = identity.id.as_ref().filter(|id| id.is_empty() || is_anonymous_id(id)) {
            let what = format!("auth.identity: {} is no id, or one as the server makes them", quoted(id));
            return refuse(what, "choose another id".into());
        }
    }
    validate(config, &BTreeMap::new()).map_err(|e| ConfigError { place: "configuration".into(), ..e })?;
    Ok(warnings(config))
}

/// Checks what was read value by value.
pub(super) fn validate(config: &Config, sources: &BTreeMap<String, Source>) -> Result<(), ConfigError> {
    let refuse = |key: &str, what: String, todo: &str| {
        let place = sources.get(key).cloned().unwrap_or_default().to_string();
        Err(ConfigError { place, what: format!("{key}: {what}"), todo: todo.into() })
    };
    if let Some(listen) =
        config.admin.listen.as_ref().filter(|l| !is_local(l) && config.admin.token.is_empty())
    {
        let what = format!("{} is not loopback, and there is no admin.token", quoted(&listen.to_string()));
        let todo = "set admin.token (or admin.token_file), or listen on 127.0.0.1 or a unix socket";
        return refuse("admin.listen", what, todo);
    }
    let every: Vec<&Listen> = config.server.listen.iter().chain(&config.admin.listen).collect();
    if let Some((i, twice)) = every.iter().enumerate().find(|(i, l)| is_fixed(l) && every[..*i].contains(l)) {
        let key = if i < config.server.listen.len() { "server.listen" } else { "admin.listen" };
        return refuse(
            key,
            format!("{} is listened on twice", quoted(&twice.to_string())),
            "choose another port",
        );
    }
    let (message, inbound) = (config.server.max_message_size, config.limits.inbound_bytes);
    if message > inbound {
        let (message, inbound) = (show_size(message), show_size(inbound));
        let what =
            format!("{message} is more than limits.inbound_bytes, {inbound}: such a message never completes");
        return refuse("server.max_message_size", what, "lower it, or raise limits.inbound_bytes");
    }
    let shared = &config.auth.token;
    let same = config.auth.identity.iter().position(|i| !shared.is_empty() && i.token == *shared);
    if let Some(same) = same {
        let what = format!("identity {} has the shared auth.token", same + 1);
        return refuse("auth.identity", what, "give it its own token");
    }
    Ok(())
}

/// What is allowed but looks like a mistake.
fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let (ping, idle) = (config.server.ping_interval, config.server.idle_timeout);
    if !ping.is_zero() && ping >= idle {
        let (ping, idle) = (show_duration(ping), show_duration(idle));
        warnings.push(format!(
            "server.ping_interval: {ping} is not below server.idle_timeout, {idle}; a client that only listens is \
             closed before the ping that it would answer"
        ));
    }
    warnings
}

/// A port that is picked at start is never taken.
fn is_fixed(listen: &Listen) -> bool {
    !matches!(listen, Listen::Tcp(address) if address.port() == 0)
}

fn is_local(listen: &Listen) -> bool {
    match listen {
        Listen::Tcp(address) => address.ip().to_canonical().is_loopback(),
        Listen::Unix(_) => true,
    }
}
