//! Loading: defaults, then the file, the environment, the flags; later wins, and every value knows its source.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{self, EVENT_SECTIONS, KEYS, Key, SECTIONS};
use super::nearest::nearest;
use super::slot::Slot;
use super::value::{Raw, Wrong, parse_inbound, parse_rpc, toml_key, toml_list, toml_string};
use super::{Config, secret, validate};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Source {
    /// Nobody set it.
    #[default]
    Default,
    /// A file of TOML.
    File {
        /// As it was named.
        path: PathBuf,
        /// From 1.
        line: usize,
    },
    /// An environment variable, by name.
    Variable(String),
    /// A flag, as `--set` or `--listen`.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
            Source::Variable(name) => write!(f, "environment variable {name}"),
            Source::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// A configuration that cannot be: one line that says where, what, why, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// `FILE:LINE`, the variable, or the flag.
    pub place: String,
    /// What failed, and why.
    pub what: String,
    /// What to do.
    pub todo: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.place, self.what, self.todo)
    }
}

impl std::error::Error for ConfigError {}

/// What the command line says about the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flags {
    /// `--set KEY=VALUE`, in order.
    pub set: Vec<(String, String)>,
    /// `--listen ADDR`; empty = not given.
    pub listen: Vec<String>,
    /// `--admin ADDR`
    pub admin: Option<String>,
    /// `--cores SPEC`
    pub cores: Option<String>,
}

/// A configuration with the source of each value.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// Sources of the values that are not defaults, by `section.key`.
    pub sources: BTreeMap<String, Source>,
    file: Option<PathBuf>,
    variables: Vec<(String, String)>,
    flags: Flags,
}

impl Loaded {
    /// Reads the same sources once more: the file may have changed.
    ///
    /// # Errors
    /// As [`load`].
    pub fn reload(&self) -> Result<Loaded, ConfigError> {
        load(self.file.as_deref(), self.variables.iter().cloned(), &self.flags)
    }
}

/// The environment of this process, as [`load`] takes it.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
    std::env::vars_os().map(move |(name, value)| (text(name), text(value)))
}

/// Loads a configuration. Of the environment only `SEQCAST_SECTION__KEY` counts.
///
/// # Errors
/// The first value that cannot be, in the order of the sources.
pub fn load(
    file: Option<&Path>,
    environment: impl Iterator<Item = (String, String)>,
    flags: &Flags,
) -> Result<Loaded, ConfigError> {
    let mut variables: Vec<_> = environment.filter(|(name, _)| name.starts_with(PREFIX)).collect();
    variables.sort();
    let mut loader = Loader::default();
    if let Some(path) = file {
        loader.file(path)?;
    }
    for (name, text) in &variables {
        loader.variable(name, text)?;
    }
    loader.flags(flags)?;
    let Loader { config, sources } = loader;
    validate::validate(&config, &sources)?;
    let file = file.map(Path::to_path_buf);
    Ok(Loaded { config, sources, file, variables, flags: flags.clone() })
}

const PREFIX: &str = "SEQCAST_";

/// How a source writes a key.
type Spelling = fn(&str, &str) -> String;

/// One value that a source gives.
struct Given<'a> {
    section: &'a str,
    name: &'a str,
    /// Byte offset of the name in the source's text.
    at: usize,
    raw: Raw<'a>,
    source: Source,
    spelling: Spelling,
}

#[derive(Default)]
struct Loader {
    config: Config,
    sources: BTreeMap<String, Source>,
}

impl Loader {
    fn file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|e| ConfigError {
            place: path.display().to_string(),
            what: format!("cannot read the configuration: {e}"),
            todo: "name a readable file of TOML with --config".into(),
        })?;
        let source = |at: usize| Source::File { path: path.into(), line: line_of(&text, at) };
        let table = DeTable::parse(&text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            let what = e.message().replace('\n', " ");
            error(source(at), Wrong::new(at, what, "mend the TOML there"))
        })?;
        self.table(table.get_ref(), &source).map_err(|wrong| error(source(wrong.at), wrong))
    }

    fn table(&mut self, table: &DeTable<'_>, source: &dyn Fn(usize) -> Source) -> Result<(), Wrong> {
        let spelling: Spelling = |_, name| toml_key(name);
        for (section, body) in in_order(table) {
            let (at, section) = (section.span().start, section.get_ref());
            let DeValue::Table(body) = body.get_ref() else { return Err(outside(section, at)) };
            if !SECTIONS.contains(&&**section) {
                return Err(unknown_section(section, at));
            }
            for (key, value) in in_order(body) {
                let at = key.span().start;
                let raw = Raw { value: value.get_ref(), at: value.span().start, literal: None };
                let name = key.get_ref();
                self.set(Given { section, name, at, raw, source: source(at), spelling })?;
            }
        }
        Ok(())
    }

    fn variable(&mut self, variable: &str, text: &str) -> Result<(), ConfigError> {
        let spelling: Spelling = |section, name| format!("{PREFIX}{}__{}", upper(section), upper(name));
        let source = Source::Variable(variable.into());
        let rest = variable.strip_prefix(PREFIX).unwrap_or(variable);
        let Some((section, name)) = rest.split_once("__") else {
            // Others use the prefix too (an orchestrator names its services so); only a misspelt key is an error.
            let meant = KEYS.iter().find(|k| format!("{}_{}", upper(k.section), upper(k.name)) == rest);
            return meant.map_or(Ok(()), |k| {
                let todo = format!("did you mean {}?", spelling(k.section, k.name));
                Err(error(source, Wrong::new(0, "one underscore between section and key", todo)))
            });
        };
        let section = section.to_lowercase();
        let is_event = EVENT_SECTIONS.contains(&&*section) && name.chars().any(char::is_lowercase);
        let name = if is_event { name.into() } else { name.to_lowercase() };
        self.set_text(&section, &name, text, source, spelling)
    }

    fn flags(&mut self, flags: &Flags) -> Result<(), ConfigError> {
        let dotted: Spelling = |section, name| format!("{section}.{name}");
        for (key, text) in &flags.set {
            let source = Source::Flag(format!("--set {key}"));
            let Some((section, name)) = key.split_once('.') else {
                let wrong =
                    Wrong::new(0, format!("{} names no key", toml_key(key)), "write SECTION.KEY=VALUE");
                return Err(error(source, wrong));
            };
            self.set_text(section, name, text, source, dotted)?;
        }
        if !flags.listen.is_empty() {
            let list = toml_list(flags.listen.iter().map(|l| toml_string(l)));
            self.set_text("server", "listen", &list, Source::Flag("--listen".into()), dotted)?;
        }
        if let Some(admin) = &flags.admin {
            self.set_text("admin", "listen", admin, Source::Flag("--admin".into()), dotted)?;
        }
        match &flags.cores {
            Some(cores) => self.set_text("server", "cores", cores, Source::Flag("--cores".into()), dotted),
            None => Ok(()),
        }
    }

    /// Sets a key to a text: TOML where it parses as TOML, else a string.
    fn set_text(
        &mut self,
        section: &str,
        name: &str,
        text: &str,
        source: Source,
        spelling: Spelling,
    ) -> Result<(), ConfigError> {
        let value = DeValue::parse(text).map_or_else(|_| DeValue::String(text.into()), Spanned::into_inner);
        let raw = Raw { value: &value, at: 0, literal: Some(text) };
        self.set(Given { section, name, at: 0, raw, source: source.clone(), spelling })
            .map_err(|wrong| error(source, wrong))
    }

    fn set(&mut self, given: Given<'_>) -> Result<(), Wrong> {
        let Given { section, name, raw, .. } = given;
        if EVENT_SECTIONS.contains(&section) {
            return self.set_event(given);
        }
        let (key, by_file) = find(section, name).ok_or_else(|| unknown_key(&given))?;
        let path = key.path();
        // A file and the environment name each key once, so a second value is the other spelling of a secret.
        let twice =
            |earlier: &Source| same_kind(earlier, &given.source) && !matches!(earlier, Source::Flag(_));
        if self.sources.get(&path).is_some_and(twice) {
            return Err(raw.wrong(format!("{path} and {path}_file are both given"), "keep one of them"));
        }
        match (key.slot)(&mut self.config) {
            Slot::Secret(place) if by_file => {
                *place = secret::read_file(&raw).map_err(|w| named(&format!("{path}_file"), w))?;
            }
            slot => slot.read(&raw).map_err(|w| named(&path, w))?,
        }
        self.sources.insert(path, given.source);
        Ok(())
    }

    fn set_event(&mut self, given: Given<'_>) -> Result<(), Wrong> {
        let Given { section, name, raw, source, .. } = given;
        let path = format!("{section}.{}", toml_key(name));
        if name.is_empty() {
            return Err(
                raw.wrong(format!("[{section}] has a rule for an event without a name"), "name the event")
            );
        }
        let text = raw.text().ok_or_else(|| {
            let todo = match raw.value {
                DeValue::Table(_) => {
                    format!(r#"a name with dots is one key in quotes, as "{name}.x" = "...""#)
                }
                _ => "write a string in quotes".into(),
            };
            raw.wrong(format!("{path}: {} is no rule", raw.shown()), todo)
        })?;
        if section == "inbound" {
            let rule = raw.at(parse_inbound(text)).map_err(|w| named(&path, w))?;
            self.config.inbound.insert(name.into(), rule);
        } else {
            let rule = raw.at(parse_rpc(text)).map_err(|w| named(&path, w))?;
            self.config.rpc.insert(name.into(), rule);
        }
        self.sources.insert(path, source);
        Ok(())
    }
}

/// The key of this name, or the secret of which this name says the file (then true).
fn find(section: &str, name: &str) -> Option<(&'static Key, bool)> {
    if let Some(key) = keys::find(section, name) {
        return Some((key, false));
    }
    let key = keys::find(section, name.strip_suffix("_file")?)?;
    (key.slot)(&mut Config::default()).is_secret().then_some((key, true))
}

fn error(source: Source, wrong: Wrong) -> ConfigError {
    ConfigError { place: source.to_string(), what: wrong.what, todo: wrong.todo }
}

fn named(path: &str, wrong: Wrong) -> Wrong {
    Wrong { what: format!("{path}: {}", wrong.what), ..wrong }
}

fn same_kind(a: &Source, b: &Source) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

fn upper(name: &str) -> String {
    name.to_uppercase()
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

/// The entries of a table as the text has them.
fn in_order<'t, 'i>(
    table: &'t DeTable<'i>,
) -> Vec<(&'t Spanned<std::borrow::Cow<'i, str>>, &'t Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn unknown_section(section: &str, at: usize) -> Wrong {
    let todo = match nearest(section, SECTIONS) {
        Some(near) => format!("did you mean [{near}]?"),
        None => format!("known are {}", SECTIONS.map(|s| format!("[{s}]")).join(", ")),
    };
    Wrong::new(at, format!("unknown section [{}]", toml_key(section)), todo)
}

/// A value at the top of the file.
fn outside(name: &str, at: usize) -> Wrong {
    let name = toml_key(name);
    if SECTIONS.contains(&&*name) {
        return Wrong::new(
            at,
            format!("{name} is a section, not a value"),
            format!("write [{name}] and its keys below"),
        );
    }
    match KEYS.iter().find(|k| k.name == name) {
        Some(key) => Wrong::new(
            at,
            format!("{name} stands outside a section"),
            format!("move it below [{}]", key.section),
        ),
        None => {
            Wrong::new(at, format!("unknown key {name} outside a section"), "move it below its [section]")
        }
    }
}

fn unknown_key(given: &Given<'_>) -> Wrong {
    let Given { section, name, at, spelling, .. } = *given;
    if !SECTIONS.contains(&section) {
        let wrong = unknown_section(section, at);
        let near = nearest(section, SECTIONS).filter(|near| keys::find(near, name).is_some());
        let todo = near.map(|near| format!("did you mean {}?", spelling(near, name)));
        return Wrong { todo: todo.unwrap_or(wrong.todo), ..wrong };
    }
    let what = format!("unknown key {} in [{section}]", toml_key(name));
    let near = nearest(name, keys::of_section(section).map(|k| k.name));
    let whole = name.split_once('.').and_then(|(first, _)| keys::find(section, first));
    let todo = if let Some(key) = whole {
        format!("{} is set as a whole, as a TOML value", key.path())
    } else if let Some(near) = near {
        format!("did you mean {}?", spelling(section, near))
    } else if let Some(key) = KEYS.iter().find(|k| k.name == name) {
        format!("did you mean {} of [{}]?", spelling(key.section, name), key.section)
    } else {
        let names: Vec<_> = keys::of_section(section).map(|k| k.name).collect();
        format!("[{section}] has {}", names.join(", "))
    };
    Wrong::new(at, what, todo)
}
