//! Every key that can be set: section, name, range, place. One table drives reading, suggestions, `check`, reload.

use std::time::Duration;

use super::Config;
use super::slot::{Slot, Span};
use super::value::{Fault, quoted};

/// One key.
pub(super) struct Key {
    pub section: &'static str,
    pub name: &'static str,
    /// Where its value goes.
    pub slot: fn(&mut Config) -> Slot<'_>,
}

impl Key {
    /// As flags and `check` write it.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// True when a running server takes a new value.
    pub fn reloads(&self) -> bool {
        matches!((self.section, self.name), ("auth" | "log", _) | ("limits", "rate"))
    }
}

/// Sections whose keys are event names.
pub(super) const EVENT_SECTIONS: [&str; 2] = ["inbound", "rpc"];

/// Sections in the order of the file.
pub(super) const SECTIONS: [&str; 13] = [
    "server",
    "admin",
    "schema",
    "auth",
    "inbound",
    "rpc",
    "limits",
    "backpressure",
    "replay",
    "resume",
    "state",
    "trace",
    "log",
];

/// The key, if there is one.
pub(super) fn find(section: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|k| k.section == section && k.name == name)
}

/// Keys of a section, in order.
pub(super) fn of_section(section: &str) -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(move |k| k.section == section)
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Most events of a ring, and of a queue.
const MOST_EVENTS: u32 = 1 << 20;

/// Least time between two sends; more than a second would be a polling interval.
const COALESCE: Span = Span { off: true, least: Duration::from_micros(1), most: Duration::from_secs(1) };

const fn time(least_ms: u64, most_s: u64) -> Span {
    Span { off: false, least: Duration::from_millis(least_ms), most: Duration::from_secs(most_s) }
}

const fn or_off(span: Span) -> Span {
    Span { off: true, ..span }
}

macro_rules! keys {
    ($($section:ident { $($name:ident: |$place:ident| $slot:expr;)+ })+) => {
        /// The table, in the order of the file.
        pub(super) const KEYS: &[Key] = &[$($(Key {
            section: stringify!($section),
            name: stringify!($name),
            slot: |$place| $slot,
        }),+),+];
    };
}

keys! {
    server {
        listen: |c| Slot::Listens(&mut c.server.listen);
        path: |c| Slot::Text(&mut c.server.path, upgrade_path);
        cores: |c| Slot::Cores(&mut c.server.cores);
        pin: |c| Slot::Bool(&mut c.server.pin);
        max_connections: |c| Slot::Count(&mut c.server.max_connections, 1..=10_000_000);
        max_message_size: |c| Slot::Bytes(&mut c.server.max_message_size, 16..=64 * MIB);
        handshake_timeout: |c| Slot::Time(&mut c.server.handshake_timeout, time(1, 600));
        hello_wait: |c| Slot::Time(&mut c.server.hello_wait, or_off(time(1, 60)));
        idle_timeout: |c| Slot::Time(&mut c.server.idle_timeout, time(100, 86_400));
        ping_interval: |c| Slot::Time(&mut c.server.ping_interval, or_off(time(100, 86_400)));
        unsent_low_water: |c| Slot::Bytes32(&mut c.server.unsent_low_water, 1024..=1 << 30);
        coalesce: |c| Slot::Time(&mut c.server.coalesce, COALESCE);
        drain_timeout: |c| Slot::Time(&mut c.server.drain_timeout, or_off(time(1, 3_600)));
    }
    admin {
        listen: |c| Slot::OptionalListen(&mut c.admin.listen);
        token: |c| Slot::Secret(&mut c.admin.token);
    }
    schema {
        file: |c| Slot::Text(&mut c.schema.file, any_path);
    }
    auth {
        token: |c| Slot::Secret(&mut c.auth.token);
        allowed_origins: |c| Slot::Origins(&mut c.auth.allowed_origins);
        token_in_query: |c| Slot::Bool(&mut c.auth.token_in_query);
        token_in_subprotocol: |c| Slot::Bool(&mut c.auth.token_in_subprotocol);
        duplicate_id: |c| Slot::Word(&mut c.auth.duplicate_id);
        identity: |c| Slot::Identities(&mut c.auth.identity);
    }
    limits {
        rate: |c| Slot::Rate(&mut c.limits.rate);
        topics_per_connection: |c| Slot::Count(&mut c.limits.topics_per_connection, 0..=1_000_000);
        groups_per_connection: |c| Slot::Count(&mut c.limits.groups_per_connection, 0..=1_000_000);
        topic_name_bytes: |c| Slot::Count(&mut c.limits.topic_name_bytes, 1..=65_535);
        inbound_bytes: |c| Slot::Bytes(&mut c.limits.inbound_bytes, 64 * KIB..=TIB);
    }
    backpressure {
        policy: |c| Slot::Word(&mut c.backpressure.policy);
        high_water_mark: |c| Slot::Bytes(&mut c.backpressure.high_water_mark, 1..=64 * GIB);
        max_queue: |c| Slot::Count(&mut c.backpressure.max_queue, 1..=MOST_EVENTS);
    }
    replay {
        history_size: |c| Slot::Count(&mut c.replay.history_size, 0..=MOST_EVENTS);
        history_bytes: |c| Slot::Bytes(&mut c.replay.history_bytes, 0..=TIB);
    }
    resume {
        enabled: |c| Slot::Bool(&mut c.resume.enabled);
        history_size: |c| Slot::Count(&mut c.resume.history_size, 0..=MOST_EVENTS);
        history_bytes: |c| Slot::Bytes(&mut c.resume.history_bytes, 0..=TIB);
        ttl: |c| Slot::Time(&mut c.resume.ttl, time(1, 30 * 86_400));
        max_parked: |c| Slot::Count(&mut c.resume.max_parked, 0..=10_000_000);
        parked_bytes: |c| Slot::Bytes(&mut c.resume.parked_bytes, 0..=TIB);
    }
    state {
        file: |c| Slot::Text(&mut c.state.file, any_path);
    }
    trace {
        capacity: |c| Slot::Count(&mut c.trace.capacity, 0..=MOST_EVENTS);
        capture_bytes: |c| Slot::Bytes32(&mut c.trace.capture_bytes, 0..=1 << 20);
    }
    log {
        level: |c| Slot::Text(&mut c.log.level, log_level);
        format: |c| Slot::Word(&mut c.log.format);
    }
}

fn any_path(text: &str) -> Result<(), Fault> {
    match text.contains('\0') {
        true => Err((format!("{} is no path", quoted(text)), "leave the zero byte out".into())),
        false => Ok(()),
    }
}

/// The upgrade path: what a request line can carry without a query, and none of the fixed ones.
fn upgrade_path(text: &str) -> Result<(), Fault> {
    if matches!(text, "/health" | "/clients") {
        return Err((format!("{} is taken", quoted(text)), r#"choose another path, such as "/ws""#.into()));
    }
    let plain = |b: u8| b.is_ascii_graphic() && !b"?#".contains(&b);
    if text.starts_with('/') && text.bytes().all(plain) {
        return Ok(());
    }
    let todo = r##"write a path such as "/ws": a slash first, no space, "?" or "#", other letters as %XX"##;
    Err((format!("{} is no path", quoted(text)), todo.into()))
}

/// Levels: `LEVEL` or `TARGET=LEVEL`, several joined by commas.
fn log_level(text: &str) -> Result<(), Fault> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let target_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
    for part in text.split(',') {
        let (target, level) = part.rsplit_once('=').unwrap_or(("seqcast", part));
        if !LEVELS.contains(&level) {
            return Err(super::nearest::not_one_of(level, &LEVELS));
        }
        if target.is_empty() || !target.chars().all(target_char) {
            let todo = r#"write "info", or "info,seqcast::control=debug""#;
            return Err((format!("{} names no part of the program", quoted(target)), todo.into()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_has_keys_and_every_key_a_section() {
        for section in SECTIONS {
            assert_eq!(of_section(section).count() == 0, EVENT_SECTIONS.contains(&section), "{section}");
        }
        assert!(KEYS.iter().all(|k| SECTIONS.contains(&k.section)));
    }

    #[test]
    fn levels() {
        for text in ["info", "warn,seqcast::control=debug", "off", "seqcast=trace"] {
            assert_eq!(log_level(text), Ok(()), "{text}");
        }
        for text in ["", "inof", "INFO", "seqcast=", "=info", "info,", "a b=info"] {
            assert!(log_level(text).is_err(), "{text}");
        }
        assert!(log_level("inof").unwrap_err().1.contains("did you mean \"info\"?"));
    }

    #[test]
    fn paths() {
        for text in ["/ws", "/", "/a/b%20c"] {
            assert_eq!(upgrade_path(text), Ok(()), "{text}");
        }
        for text in ["", "ws", "/a b", "/a?b", "/ü", "/health", "/clients"] {
            assert!(upgrade_path(text).is_err(), "{text}");
        }
    }
}
