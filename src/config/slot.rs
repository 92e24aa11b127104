//! The places that keys fill: what each kind of value takes, and how it is shown.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeValue;

use super::identity;
use super::nearest::{nearest, not_one_of};
use super::secret::{self, Secrets};
use super::value::{self, Fault, Raw, Wrong, quoted, toml_key, toml_list, toml_string};
use super::{Cores, DuplicateId, Identity, Listen, LogFormat, Policy, Rate};

/// The place of one key in a configuration, with the range of its values.
pub(super) enum Slot<'c> {
    Bool(&'c mut bool),
    Count(&'c mut u32, RangeInclusive<u32>),
    Bytes(&'c mut u64, RangeInclusive<u64>),
    /// As `Bytes`, kept in 32 bits.
    Bytes32(&'c mut u32, RangeInclusive<u32>),
    Time(&'c mut Duration, Span),
    Text(&'c mut String, fn(&str) -> Result<(), Fault>),
    /// Never shown.
    Secret(&'c mut String),
    Origins(&'c mut Vec<String>),
    Listens(&'c mut Vec<Listen>),
    /// `""` is none.
    OptionalListen(&'c mut Option<Listen>),
    Cores(&'c mut Cores),
    Word(&'c mut dyn Word),
    Rate(&'c mut Rate),
    Identities(&'c mut Vec<Identity>),
}

/// Range of a duration.
pub(super) struct Span {
    /// Zero is allowed, beside the range.
    pub off: bool,
    pub least: Duration,
    pub most: Duration,
}

/// One of a few words.
pub(super) trait Word {
    fn names(&self) -> &'static [&'static str];
    fn name(&self) -> &'static str;
    /// False when there is no such word.
    fn choose(&mut self, name: &str) -> bool;
}

macro_rules! words {
    ($($kind:ident { $($variant:ident = $name:literal),+ })+) => { $(
        impl Word for $kind {
            fn names(&self) -> &'static [&'static str] {
                &[$($name),+]
            }
            fn name(&self) -> &'static str {
                match self { $($kind::$variant => $name),+ }
            }
            fn choose(&mut self, name: &str) -> bool {
                match name {
                    $($name => *self = $kind::$variant,)+
                    _ => return false,
                }
                true
            }
        }
    )+ };
}

words! {
    DuplicateId { Reject = "reject", Takeover = "takeover" }
    Policy { DropOldest = "drop-oldest", DropNewest = "drop-newest", Disconnect = "disconnect" }
    LogFormat { Text = "text", Json = "json" }
}

impl Slot<'_> {
    /// Reads a value into the place.
    pub fn read(self, raw: &Raw<'_>) -> Result<(), Wrong> {
        match self {
            Slot::Bool(place) => *place = read_bool(raw)?,
            Slot::Count(place, range) => *place = read_count(raw, range)?,
            Slot::Bytes(place, range) => *place = read_bytes(raw, range)?,
            Slot::Bytes32(place, range) => {
                let bytes = read_bytes(raw, widened(&range))?;
                *place = u32::try_from(bytes).expect("the range ends within 32 bits");
            }
            Slot::Time(place, span) => *place = read_time(raw, &span)?,
            Slot::Text(place, valid) => {
                let text = read_text(raw)?;
                raw.at(valid(text))?;
                *place = text.into();
            }
            Slot::Secret(place) => *place = secret::read(raw)?,
            Slot::Origins(place) => *place = identity::read_origins(raw)?,
            Slot::Listens(place) => *place = read_listens(raw)?,
            Slot::OptionalListen(place) => {
                let text = read_text(raw)?;
                *place = if text.is_empty() { None } else { Some(raw.at(value::parse_listen(text))?) };
            }
            Slot::Cores(place) => *place = read_cores(raw)?,
            Slot::Word(place) => {
                let text = read_text(raw)?;
                let known = place.names();
                if !place.choose(text) {
                    return raw.at(Err(not_one_of(text, known)));
                }
            }
            Slot::Rate(place) => *place = read_rate(raw)?,
            Slot::Identities(place) => *place = identity::read_all(raw)?,
        }
        Ok(())
    }

    /// The value as TOML.
    pub fn show(self, secrets: Secrets) -> String {
        match self {
            Slot::Bool(value) => value.to_string(),
            Slot::Count(value, _) => value.to_string(),
            Slot::Bytes(value, _) => value::show_size(*value),
            Slot::Bytes32(value, _) => value::show_size(u64::from(*value)),
            Slot::Time(value, _) => quoted(&value::show_duration(*value)),
            Slot::Text(value, _) => toml_string(value),
            Slot::Secret(value) => secrets.show(value),
            Slot::Origins(values) => toml_list(values.iter().map(|v| toml_string(v))),
            Slot::Listens(values) => toml_list(values.iter().map(show_listen)),
            Slot::OptionalListen(value) => value.as_ref().map_or_else(|| "\"\"".into(), show_listen),
            Slot::Cores(value) => match value {
                Cores::Count(n) => n.to_string(),
                other => format!("\"{other}\""),
            },
            Slot::Word(value) => format!("\"{}\"", value.name()),
            Slot::Rate(value) => show_rate(value),
            Slot::Identities(values) => toml_list(values.iter().map(|i| identity::show(i, secrets))),
        }
    }

    /// What the key takes, for errors and for the reference.
    pub fn takes(&self) -> String {
        match self {
            Slot::Bool(_) => "true or false".into(),
            Slot::Count(_, range) => takes_count(range),
            Slot::Bytes(_, range) => takes_size(range),
            Slot::Bytes32(_, range) => takes_size(&widened(range)),
            Slot::Time(_, span) => takes_time(span),
            Slot::Text(..) => "a string".into(),
            Slot::Secret(_) => "a token".into(),
            Slot::Origins(_) => "a list of origins".into(),
            Slot::Listens(_) => "a list of addresses".into(),
            Slot::OptionalListen(_) => "an address, or \"\" for none".into(),
            Slot::Cores(_) => "\"auto\", a number, or a list of processors".into(),
            Slot::Word(value) => {
                value.names().iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(" or ")
            }
            Slot::Rate(_) => "a table".into(),
            Slot::Identities(_) => "tables".into(),
        }
    }

    /// True for a value that is never shown.
    pub fn is_secret(&self) -> bool {
        matches!(self, Slot::Secret(_))
    }
}

fn widened(range: &RangeInclusive<u32>) -> RangeInclusive<u64> {
    u64::from(*range.start())..=u64::from(*range.end())
}

fn takes_count(range: &RangeInclusive<u32>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}

fn takes_size(range: &RangeInclusive<u64>) -> String {
    format!("a size from {} to {}", value::show_size(*range.start()), value::show_size(*range.end()))
}

fn takes_time(span: &Span) -> String {
    let off = if span.off { ", or \"0\" for none" } else { "" };
    let (least, most) = (value::show_duration(span.least), value::show_duration(span.most));
    format!("a duration from \"{least}\" to \"{most}\"{off}")
}

fn show_listen(listen: &Listen) -> String {
    toml_string(&listen.to_string())
}

fn show_rate(rate: &Rate) -> String {
    let policy = if rate.close { "close" } else { "drop" };
    let per_second = rate.messages_per_second;
    format!("{{ messages_per_second = {per_second}, burst = {}, policy = \"{policy}\" }}", rate.burst)
}

fn read_bool(raw: &Raw<'_>) -> Result<bool, Wrong> {
    match raw.value {
        DeValue::Boolean(b) => Ok(*b),
        _ => Err(
            raw.wrong(format!("{} is not true or false", raw.shown()), "write true or false, without quotes")
        ),
    }
}

fn read_text<'a>(raw: &Raw<'a>) -> Result<&'a str, Wrong> {
    raw.text().ok_or_else(|| raw.wrong(format!("{} is no string", raw.shown()), "write a string in quotes"))
}

fn read_count(raw: &Raw<'_>, range: RangeInclusive<u32>) -> Result<u32, Wrong> {
    let expected = takes_count(&range);
    let number = raw.integer(&expected)?;
    let fits = u32::try_from(number).ok().filter(|n| range.contains(n));
    fits.ok_or_else(|| raw.wrong(format!("{number} is out of range"), format!("write {expected}")))
}

fn read_bytes(raw: &Raw<'_>, range: RangeInclusive<u64>) -> Result<u64, Wrong> {
    let number = match raw.value {
        DeValue::String(text) => raw.at(value::parse_size(text))?,
        DeValue::Integer(i) => u64::from_str_radix(i.as_str(), i.radix()).unwrap_or(u64::MAX),
        _ => {
            let todo = r#"write bytes as a number, or a string such as "64KiB""#;
            return Err(raw.wrong(format!("{} is no size", raw.shown()), todo));
        }
    };
    if range.contains(&number) {
        return Ok(number);
    }
    Err(raw.wrong(format!("{} is out of range", raw.shown()), format!("write {}", takes_size(&range))))
}

fn read_time(raw: &Raw<'_>, span: &Span) -> Result<Duration, Wrong> {
    let time = match raw.value {
        DeValue::String(text) => raw.at(value::parse_duration(text))?,
        DeValue::Integer(i) if i.as_str() == "0" => Duration::ZERO,
        DeValue::Integer(_) | DeValue::Float(_) => return raw.at(Err(value::no_unit(raw.shown()))),
        _ => {
            let todo = r#"write a string with a unit, such as "30s""#;
            return Err(raw.wrong(format!("{} is no duration", raw.shown()), todo));
        }
    };
    if (span.off && time.is_zero()) || (span.least..=span.most).contains(&time) {
        return Ok(time);
    }
    Err(raw.wrong(format!("{} is out of range", raw.shown()), format!("write {}", takes_time(span))))
}

fn read_listens(raw: &Raw<'_>) -> Result<Vec<Listen>, Wrong> {
    let one = |raw: &Raw<'_>| raw.at(value::parse_listen(read_text(raw)?));
    if matches!(raw.value, DeValue::String(_)) {
        return Ok(vec![one(raw)?]);
    }
    let listens = raw.list(r#"a list of addresses such as ["127.0.0.1:9400"]"#)?;
    if listens.is_empty() {
        return Err(raw.wrong("no address to listen on", r#"write at least one, such as ["127.0.0.1:9400"]"#));
    }
    listens.iter().map(one).collect()
}

fn read_cores(raw: &Raw<'_>) -> Result<Cores, Wrong> {
    match raw.value {
        DeValue::String(text) => raw.at(text.parse::<Cores>()),
        DeValue::Integer(i) => raw.at(i.to_string().parse::<Cores>()),
        _ => {
            let todo = r#"write "auto", a number, or a list such as "0-3,8""#;
            Err(raw.wrong(format!("{} names no cores", raw.shown()), todo))
        }
    }
}

fn read_rate(raw: &Raw<'_>) -> Result<Rate, Wrong> {
    let example = "{ messages_per_second = 100, burst = 200, policy = \"drop\" }";
    let DeValue::Table(table) = raw.value else {
        return Err(raw.wrong(format!("{} is no table", raw.shown()), format!("write {example}")));
    };
    let mut rate = Rate::OFF;
    for (key, value) in table.iter() {
        let raw = Raw { value: value.get_ref(), at: value.span().start, literal: None };
        match key.get_ref().as_ref() {
            "messages_per_second" => rate.messages_per_second = read_per_second(&raw)?,
            "burst" => rate.burst = read_count(&raw, 0..=MOST_BURST)?,
            "policy" => match read_text(&raw)? {
                "drop" => rate.close = false,
                "close" => rate.close = true,
                other => return raw.at(Err(not_one_of(other, &["drop", "close"]))),
            },
            other => {
                return Err(unknown_field(
                    other,
                    key.span().start,
                    &["messages_per_second", "burst", "policy"],
                ));
            }
        }
    }
    Ok(rate)
}

/// Largest bucket of the rate limit, and its largest rate.
const MOST_BURST: u32 = 1_000_000_000;

fn read_per_second(raw: &Raw<'_>) -> Result<f64, Wrong> {
    let number = match raw.value {
        DeValue::Integer(i) => i128::from_str_radix(i.as_str(), i.radix()).map_or(-1.0, |n| n as f64),
        DeValue::Float(f) => f.as_str().parse().unwrap_or(f64::NAN),
        _ => f64::NAN,
    };
    if (0.0..=f64::from(MOST_BURST)).contains(&number) {
        return Ok(number);
    }
    let todo = format!("write a number from 0 (off) to {MOST_BURST}");
    Err(raw.wrong(format!("{} is no rate", raw.shown()), todo))
}

/// A field of an inline table that does not exist.
pub(super) fn unknown_field(name: &str, at: usize, known: &[&str]) -> Wrong {
    let todo = match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("known are {}", known.join(", ")),
    };
    Wrong::new(at, format!("unknown key {}", toml_key(name)), todo)
}
