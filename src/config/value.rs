//! How values are written: durations, sizes, addresses and rules as text, and back.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use toml::de::DeValue;

use super::{InboundRule, Listen, RpcRule};

/// What is wrong with a value, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Byte offset in the text that the value came from.
    pub at: usize,
    /// What failed, and why.
    pub what: String,
    /// What to do.
    pub todo: String,
}

impl Wrong {
    pub fn new(at: usize, what: impl Into<String>, todo: impl Into<String>) -> Wrong {
        Wrong { at, what: what.into(), todo: todo.into() }
    }
}

/// The same without a place: what failed, what to do.
pub(super) type Fault = (String, String);

/// A value as its source gave it, before it is read as what its key takes.
#[derive(Clone, Copy)]
pub(super) struct Raw<'a> {
    /// The TOML value.
    pub value: &'a DeValue<'a>,
    /// Byte offset in the source's text.
    pub at: usize,
    /// The unparsed text of a variable or flag: a key that takes text takes it as it stands, so that a token
    /// of digits needs no quotes there.
    pub literal: Option<&'a str>,
}

impl<'a> Raw<'a> {
    /// An error at this value.
    pub fn wrong(&self, what: impl Into<String>, todo: impl Into<String>) -> Wrong {
        Wrong::new(self.at, what, todo)
    }

    /// Puts a fault at this value.
    pub fn at<T>(&self, result: Result<T, Fault>) -> Result<T, Wrong> {
        result.map_err(|(what, todo)| self.wrong(what, todo))
    }

    /// The value as text.
    pub fn text(&self) -> Option<&'a str> {
        match self.value {
            DeValue::String(s) => Some(s),
            DeValue::Array(_) | DeValue::Table(_) => None,
            _ => self.literal,
        }
    }

    /// A string that may be shown in an error.
    pub fn shown(&self) -> String {
        match self.value {
            DeValue::String(s) => quoted(s),
            DeValue::Integer(i) => i.to_string(),
            DeValue::Float(f) => f.to_string(),
            DeValue::Boolean(b) => b.to_string(),
            DeValue::Datetime(d) => d.to_string(),
            DeValue::Array(_) => "a list".into(),
            DeValue::Table(_) => "a table".into(),
        }
    }

    /// A whole number; `expected` names what is taken instead.
    pub fn integer(&self, expected: &str) -> Result<i128, Wrong> {
        match self.value {
            DeValue::Integer(i) => i128::from_str_radix(i.as_str(), i.radix())
                .map_err(|_| self.wrong(format!("{i} is out of range"), format!("write {expected}"))),
            _ => Err(self.wrong(format!("{} is no whole number", self.shown()), format!("write {expected}"))),
        }
    }

    /// The elements of a list.
    pub fn list(&self, expected: &str) -> Result<Vec<Raw<'a>>, Wrong> {
        let DeValue::Array(items) = self.value else {
            return Err(self.wrong(format!("{} is no list", self.shown()), format!("write {expected}")));
        };
        let raw =
            |v: &'a toml::Spanned<DeValue<'a>>| Raw { value: v.get_ref(), at: v.span().start, literal: None };
        Ok(items.iter().map(raw).collect())
    }

    /// A list of strings.
    pub fn strings(&self) -> Result<Vec<String>, Wrong> {
        let expected = r#"a list of strings such as ["a", "b"]"#;
        let string = |r: Raw<'a>| match r.value {
            DeValue::String(s) => Ok(s.to_string()),
            _ => Err(r.wrong(format!("{} is no string", r.shown()), format!("write {expected}"))),
        };
        self.list(expected)?.into_iter().map(string).collect()
    }
}

/// A string as TOML, on one line.
pub(super) fn toml_string(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A list as TOML, of values that are TOML already.
pub(super) fn toml_list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(", "))
}

/// A key as it is written: bare where it can be.
pub(super) fn toml_key(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(plain) { name.into() } else { toml_string(name) }
}

/// A string as an error shows it; long ones are cut.
pub(super) fn quoted(s: &str) -> String {
    const SHOWN: usize = 80;
    match s.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", toml_string(&s[..end])),
        None => toml_string(s),
    }
}

/// Units of durations, in nanoseconds, from small to large.
const DURATION_UNITS: [(&str, u64); 6] = [
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Reads `"250ms"`, `"30s"`, `"5m"`; `"0"` is zero.
pub(super) fn parse_duration(text: &str) -> Result<Duration, Fault> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (digits, unit) = split_number(text);
    let fault = || {
        let todo = r#"write a whole number with a unit, such as "250ms", "30s" or "5m""#;
        (format!("{} is no duration", quoted(text)), todo.to_string())
    };
    let number: u64 = digits.parse().map_err(|_| fault())?;
    if unit.is_empty() {
        return Err(no_unit(number));
    }
    let (_, nanos) = DURATION_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(fault)?;
    number.checked_mul(*nanos).map(Duration::from_nanos).ok_or_else(fault)
}

/// A duration that is a bare number.
pub(super) fn no_unit(number: impl fmt::Display) -> Fault {
    (format!("{number} has no unit"), format!(r#"write "{number}s" or "{number}ms""#))
}

/// The exact text of a duration in the largest unit that fits; minutes and more from three of them on.
pub(super) fn show_duration(d: Duration) -> String {
    let nanos = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let least = |unit: u64| if unit > 1_000_000_000 { 3 } else { 1 };
    let fits = |(_, unit): &&(&str, u64)| nanos % unit == 0 && nanos / unit >= least(*unit);
    match DURATION_UNITS.iter().rev().find(fits) {
        _ if nanos == 0 => "0".into(),
        Some((name, unit)) => format!("{}{name}", nanos / unit),
        None => format!("{}us", nanos / 1_000),
    }
}

/// Units of sizes, in bytes.
const SIZE_UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Reads `"64KiB"`, `"1MiB"`, `"1GiB"` or a plain number of bytes.
pub(super) fn parse_size(text: &str) -> Result<u64, Fault> {
    let (digits, unit) = split_number(text);
    let fault = || {
        let todo = r#"write bytes as a number, or a string such as "64KiB", "1MiB" or "1GiB""#;
        (format!("{} is no size", quoted(text)), todo.to_string())
    };
    let number: u64 = digits.parse().map_err(|_| fault())?;
    if unit.is_empty() {
        return Ok(number);
    }
    let letter = |name: &str| unit.chars().next().is_some_and(|c| name.starts_with(c.to_ascii_uppercase()));
    match SIZE_UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, bytes)) => number.checked_mul(*bytes).ok_or_else(fault),
        None => match SIZE_UNITS.iter().find(|(name, _)| letter(name)) {
            Some((name, _)) => Err((fault().0, format!(r#"write "{number}{name}""#))),
            None => Err(fault()),
        },
    }
}

/// A size as TOML: with a unit where one divides it.
pub(super) fn show_size(bytes: u64) -> String {
    match SIZE_UNITS.iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("\"{}{name}\"", bytes / unit),
        None => bytes.to_string(),
    }
}

fn split_number(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Reads `HOST:PORT` with a numeric host, or `unix:/path`.
pub(super) fn parse_listen(text: &str) -> Result<Listen, Fault> {
    if let Some(path) = text.strip_prefix("unix:") {
        // sockaddr_un holds 108 bytes with the terminating zero.
        if path.is_empty() || path.len() > 107 || path.contains('\0') {
            let what = format!("{} is no path of a unix socket", quoted(text));
            return Err((what, r#"write "unix:/path", at most 107 bytes of path"#.into()));
        }
        return Ok(Listen::Unix(path.into()));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(Listen::Tcp(address));
    }
    let port = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    let todo = match port {
        Some(("localhost", port)) => format!(r#"write "127.0.0.1:{port}" or "[::1]:{port}""#),
        Some(("" | "*", port)) => format!(r#"write "0.0.0.0:{port}" (IPv4) or "[::]:{port}" (all)"#),
        _ => r#"write "IP:PORT", "[IPv6]:PORT" or "unix:/path""#.to_string(),
    };
    Err((format!("{} is no address", quoted(text)), todo))
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "{address}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Reads a rule of `[inbound]`.
pub(super) fn parse_inbound(text: &str) -> Result<InboundRule, Fault> {
    match text.split_once(':') {
        None if text == "none" => Ok(InboundRule::None),
        None if text == "broadcast" => Ok(InboundRule::Broadcast),
        None if text == "sender" => Ok(InboundRule::Sender),
        Some(("topic", name)) if !name.is_empty() => Ok(InboundRule::Topic(name.into())),
        Some(("group", name)) if !name.is_empty() => Ok(InboundRule::Group(name.into())),
        _ => {
            let known = ["none", "broadcast", "sender", "topic:NAME", "group:NAME"];
            Err(super::nearest::not_one_of(text, &known))
        }
    }
}

impl fmt::Display for InboundRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InboundRule::None => f.write_str("none"),
            InboundRule::Broadcast => f.write_str("broadcast"),
            InboundRule::Sender => f.write_str("sender"),
            InboundRule::Topic(name) => write!(f, "topic:{name}"),
            InboundRule::Group(name) => write!(f, "group:{name}"),
        }
    }
}

/// Reads a rule of `[rpc]`.
pub(super) fn parse_rpc(text: &str) -> Result<RpcRule, Fault> {
    match text {
        "echo" => Ok(RpcRule::Echo),
        _ if text.starts_with("nats:") || text.starts_with("http://") => {
            Err((format!("{} is not available in this build", quoted(text)), r#"write "echo""#.into()))
        }
        _ => Err(super::nearest::not_one_of(text, &["echo"])),
    }
}

impl fmt::Display for RpcRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RpcRule::Echo => f.write_str("echo"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_back_from_toml() {
        for text in ["", "a b", "\"'\\", "line\nline\ttab\u{7f}\u{1}\u{85}", "ü\u{1f600}", "\"\"\""] {
            let shown = toml_string(text);
            assert!(!shown.contains('\n'));
            let parsed = DeValue::parse(&shown).unwrap().into_inner();
            assert_eq!(parsed.as_str(), Some(text), "{shown}");
            let table: toml::Table = format!("{} = 1", toml_key(text)).parse().unwrap();
            assert!(table.contains_key(text), "{shown}");
        }
    }

    #[test]
    fn durations_read_and_show() {
        for (text, nanos, shown) in [
            ("0", 0, "0"),
            ("0s", 0, "0"),
            ("200us", 200_000, "200us"),
            ("250ms", 250_000_000, "250ms"),
            ("1000ms", 1_000_000_000, "1s"),
            ("1500ms", 1_500_000_000, "1500ms"),
            ("9s", 9_000_000_000, "9s"),
            ("60s", 60_000_000_000, "60s"),
            ("120s", 120_000_000_000, "120s"),
            ("5m", 300_000_000_000, "5m"),
            ("3h", 10_800_000_000_000, "3h"),
        ] {
            let d = parse_duration(text).unwrap();
            assert_eq!((d, show_duration(d).as_str()), (Duration::from_nanos(nanos), shown), "{text}");
            assert_eq!(parse_duration(&show_duration(d)), Ok(d), "{text} does not come back");
        }
    }

    #[test]
    fn bad_durations_say_what_to_write() {
        assert_eq!(parse_duration("25"), Err(("25 has no unit".into(), r#"write "25s" or "25ms""#.into())));
        for text in ["", "s", "5 parsecs", "5 s", "-5s", "1.5s", "5S", "99999999999999999999s", "9999999999d"]
        {
            let (what, todo) = parse_duration(text).unwrap_err();
            assert_eq!(what, format!("\"{text}\" is no duration"));
            assert!(todo.contains("\"30s\""), "{todo}");
        }
    }

    #[test]
    fn sizes_read_and_show() {
        for (text, bytes, shown) in [
            ("0", 0, "0"),
            ("1000", 1000, "1000"),
            ("1024", 1024, "\"1KiB\""),
            ("64KiB", 65_536, "\"64KiB\""),
            ("1MiB", 1 << 20, "\"1MiB\""),
            ("1GiB", 1 << 30, "\"1GiB\""),
            ("1025KiB", 1025 << 10, "\"1025KiB\""),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(show_size(bytes), shown);
        }
        assert_eq!(parse_size("64kb").unwrap_err().1, r#"write "64KiB""#);
        assert_eq!(parse_size("1M").unwrap_err().1, r#"write "1MiB""#);
        for text in ["", "KiB", "-1", "1.5MiB", "64 KiB", "1PiB", "99999999999GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_read_and_show() {
        for text in ["127.0.0.1:9400", "[::1]:0", "0.0.0.0:80", "unix:/run/x.sock"] {
            assert_eq!(parse_listen(text).unwrap().to_string(), text);
        }
        assert_eq!(parse_listen("localhost:1").unwrap_err().1, r#"write "127.0.0.1:1" or "[::1]:1""#);
        assert_eq!(parse_listen(":1").unwrap_err().1, r#"write "0.0.0.0:1" (IPv4) or "[::]:1" (all)"#);
        let long = format!("unix:/{}", "x".repeat(107));
        for text in
            ["", "9400", "127.0.0.1", "::1:9400x", "example.org:80", "unix:", &long, "127.0.0.1:70000"]
        {
            assert!(parse_listen(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rules_read_and_show() {
        for text in ["none", "broadcast", "sender", "topic:a:b", "group:g"] {
            assert_eq!(parse_inbound(text).unwrap().to_string(), text);
        }
        for text in ["", "topic:", "group:", "topic", "all"] {
            assert!(parse_inbound(text).is_err(), "{text}");
        }
        assert!(parse_inbound("brodcast").unwrap_err().1.contains("did you mean \"broadcast\"?"));
        assert_eq!(parse_rpc("echo"), Ok(RpcRule::Echo));
        assert_eq!(parse_rpc("nats:x").unwrap_err().0, "\"nats:x\" is not available in this build");
    }
}
