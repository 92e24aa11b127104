//! A loaded configuration as text, line by line, and what changed between two.

use super::keys::{EVENT_SECTIONS, KEYS, Key, SECTIONS, of_section};
use super::secret::Secrets;
use super::value::{toml_key, toml_string};
use super::{Config, Loaded, Source};

/// One value, as `check` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// `section.key`
    pub key: String,
    /// As TOML; a secret is masked.
    pub value: String,
    /// Where it came from.
    pub source: Source,
}

/// What differs between two configurations, as `section.key`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// A running server takes these.
    pub reloadable: Vec<String>,
    /// These need a restart.
    pub restart: Vec<String>,
}

/// One key, as docs/OPERATING.md lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// `section.key`
    pub key: String,
    /// What it takes, with the range.
    pub takes: String,
    /// The default as TOML.
    pub default: String,
    /// A running server takes a new value on SIGHUP.
    pub reloads: bool,
}

/// Every key but the event names of `[inbound]` and `[rpc]`, in the order of the file.
pub fn reference() -> Vec<KeyInfo> {
    let mut defaults = Config::default();
    let info = |key: &Key| KeyInfo {
        key: key.path(),
        takes: (key.slot)(&mut defaults).takes(),
        default: (key.slot)(&mut defaults).show(Secrets::Plain),
        reloads: key.reloads(),
    };
    KEYS.iter().map(info).collect()
}

impl Loaded {
    /// Every value with its source, in the order of the file.
    pub fn lines(&self) -> Vec<Line> {
        let mut config = self.config.clone();
        let mut rows = Vec::new();
        for section in SECTIONS {
            rows.extend(
                of_section(section).map(|key| (key.path(), (key.slot)(&mut config).show(Secrets::Masked))),
            );
            rows.extend(rules(&self.config, section));
        }
        let source = |key: &String| self.sources.get(key).cloned().unwrap_or_default();
        rows.into_iter().map(|(key, value)| Line { source: source(&key), key, value }).collect()
    }

    /// What `newer` changes.
    pub fn changes(&self, newer: &Loaded) -> Changes {
        let mut changes = Changes::default();
        let (mut old, mut new) = (self.config.clone(), newer.config.clone());
        for key in KEYS {
            let text = |config: &mut Config| (key.slot)(config).show(Secrets::Plain);
            if text(&mut old) != text(&mut new) {
                let list = if key.reloads() { &mut changes.reloadable } else { &mut changes.restart };
                list.push(key.path());
            }
        }
        for section in EVENT_SECTIONS {
            if rules(&self.config, section) != rules(&newer.config, section) {
                changes.restart.push(section.into());
            }
        }
        changes
    }
}

/// Rules of `[inbound]` or `[rpc]`.
fn rules(config: &Config, section: &str) -> Vec<(String, String)> {
    let row = |name: &str, rule: String| (format!("{section}.{}", toml_key(name)), toml_string(&rule));
    match section {
        "inbound" => config.inbound.iter().map(|(name, rule)| row(name, rule.to_string())).collect(),
        "rpc" => config.rpc.iter().map(|(name, rule)| row(name, rule.to_string())).collect(),
        _ => Vec::new(),
    }
}
