//! Who may come in: the identities of tokens, and origins.

use toml::de::{DeTable, DeValue};

use super::Identity;
use super::secret::{self, Secrets};
use super::slot::unknown_field;
use super::value::{Raw, Wrong, quoted, toml_key, toml_list, toml_string};

/// True for a client id of the form that cores give to anonymous clients: `a`, the core's number, `-`, and 24
/// lower-case hexadecimal digits. No configured id may have it.
pub fn is_anonymous_id(id: &str) -> bool {
    let Some((core, random)) = id.strip_prefix('a').and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    !core.is_empty()
        && core.bytes().all(|b| b.is_ascii_digit())
        && random.len() == 24
        && random.bytes().all(hex)
}

const FIELDS: [&str; 9] =
    ["token", "token_file", "id", "user", "groups", "meta", "topics", "join_groups", "publish"];

/// Reads `[[auth.identity]]`.
pub(super) fn read_all(raw: &Raw<'_>) -> Result<Vec<Identity>, Wrong> {
    let mut identities: Vec<Identity> = Vec::new();
    for raw in raw.list("[[auth.identity]] tables, or a list of inline tables")? {
        let identity = read(&raw)?;
        if let Some(earlier) = identities.iter().position(|i| i.token == identity.token) {
            let (this, earlier) = (identities.len() + 1, earlier + 1);
            let what = format!("identity {this} has the same token as identity {earlier}");
            return Err(raw.wrong(what, "give each its own token"));
        }
        identities.push(identity);
    }
    Ok(identities)
}

fn read(raw: &Raw<'_>) -> Result<Identity, Wrong> {
    let DeValue::Table(table) = raw.value else {
        return Err(
            raw.wrong(format!("{} is no identity", raw.shown()), r#"write { token = "...", id = "..." }"#)
        );
    };
    let mut identity = Identity::default();
    let mut from_file = None;
    for (key, value) in table.iter() {
        let raw = Raw { value: value.get_ref(), at: value.span().start, literal: None };
        match key.get_ref().as_ref() {
            "token" => identity.token = secret::read(&raw)?,
            "token_file" => from_file = Some((secret::read_file(&raw)?, key.span().start)),
            "id" => identity.id = Some(read_id(&raw)?),
            "user" => identity.user = Some(read_name(&raw)?),
            "groups" => identity.groups = raw.strings()?,
            "meta" => identity.meta = Some(read_meta(&raw)?),
            "topics" => identity.topics = raw.strings()?,
            "join_groups" => identity.join_groups = raw.strings()?,
            "publish" => identity.publish = raw.strings()?,
            other => return Err(unknown_field(other, key.span().start, &FIELDS)),
        }
    }
    if let Some((token, at)) = from_file {
        if !identity.token.is_empty() {
            return Err(Wrong::new(at, "an identity has token and token_file", "keep one of them"));
        }
        identity.token = token;
    }
    if identity.token.is_empty() {
        return Err(raw.wrong("an identity has no token", r#"give it token = "..." or token_file = "path""#));
    }
    Ok(identity)
}

fn read_name(raw: &Raw<'_>) -> Result<String, Wrong> {
    match raw.text() {
        Some("") => Err(raw.wrong("the name is empty", "write one, or leave the key out")),
        Some(name) => Ok(name.into()),
        None => Err(raw.wrong(format!("{} is no string", raw.shown()), "write a string in quotes")),
    }
}

fn read_id(raw: &Raw<'_>) -> Result<String, Wrong> {
    let id = read_name(raw)?;
    if is_anonymous_id(&id) {
        let what =
            format!("{} has the form of the ids that the server makes for anonymous clients", quoted(&id));
        return Err(raw.wrong(what, "choose another id"));
    }
    Ok(id)
}

type JsonObject = serde_json::Map<String, serde_json::Value>;

fn read_meta(raw: &Raw<'_>) -> Result<JsonObject, Wrong> {
    match raw.value {
        DeValue::Table(table) => object(table),
        _ => Err(raw.wrong(format!("{} is no table", raw.shown()), r#"write { name = "Ann" }"#)),
    }
}

fn object(table: &DeTable<'_>) -> Result<JsonObject, Wrong> {
    let field = |(key, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let key: &std::borrow::Cow<'_, str> = key.get_ref();
        let raw = Raw { value: value.get_ref(), at: value.span().start, literal: None };
        Ok((key.to_string(), json(&raw)?))
    };
    table.iter().map(field).collect()
}

fn json(raw: &Raw<'_>) -> Result<serde_json::Value, Wrong> {
    let number =
        || raw.wrong(format!("{} is no JSON number", raw.shown()), "write another number, or a string");
    Ok(match raw.value {
        DeValue::String(s) => s.to_string().into(),
        DeValue::Boolean(b) => (*b).into(),
        DeValue::Datetime(d) => d.to_string().into(),
        DeValue::Integer(i) => i64::from_str_radix(i.as_str(), i.radix()).map_err(|_| number())?.into(),
        DeValue::Float(f) => {
            let float = f.as_str().parse().ok().and_then(serde_json::Number::from_f64);
            serde_json::Value::Number(float.ok_or_else(number)?)
        }
        DeValue::Array(_) => raw.list("a list")?.iter().map(json).collect::<Result<Vec<_>, _>>()?.into(),
        DeValue::Table(table) => object(table)?.into(),
    })
}

/// An identity as an inline table.
pub(super) fn show(identity: &Identity, secrets: Secrets) -> String {
    let string = |s: &String| toml_string(s);
    let list = |l: &Vec<String>| toml_list(l.iter().map(string));
    let mut fields = vec![format!("token = {}", secrets.show(&identity.token))];
    fields.extend(identity.id.iter().map(|id| format!("id = {}", string(id))));
    fields.extend(identity.user.iter().map(|user| format!("user = {}", string(user))));
    fields.extend(identity.meta.iter().map(|meta| format!("meta = {}", show_object(meta))));
    let lists = [
        ("groups", &identity.groups),
        ("topics", &identity.topics),
        ("join_groups", &identity.join_groups),
        ("publish", &identity.publish),
    ];
    fields
        .extend(lists.iter().filter(|(_, l)| !l.is_empty()).map(|(name, l)| format!("{name} = {}", list(l))));
    format!("{{ {} }}", fields.join(", "))
}

fn show_object(map: &JsonObject) -> String {
    let fields: Vec<_> = map.iter().map(|(k, v)| format!("{} = {}", toml_key(k), show_json(v))).collect();
    format!("{{ {} }}", fields.join(", "))
}

fn show_json(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Object(map) => show_object(map),
        serde_json::Value::Array(items) => toml_list(items.iter().map(show_json)),
        serde_json::Value::String(s) => toml_string(s),
        other => other.to_string(),
    }
}

/// Reads `[auth] allowed_origins`.
pub(super) fn read_origins(raw: &Raw<'_>) -> Result<Vec<String>, Wrong> {
    let origins = raw.strings()?;
    for (origin, item) in origins.iter().zip(raw.list("a list of origins")?) {
        if let Err(todo) = check_origin(origin) {
            return Err(item.wrong(format!("{} is no origin", quoted(origin)), todo));
        }
    }
    Ok(origins)
}

/// An origin as browsers send it (RFC 6454 section 6.2): `scheme://host[:port]` in lower case, `null`, `file://`; empty
/// stands for a request without one. The error says what to write instead.
pub(super) fn check_origin(origin: &str) -> Result<(), String> {
    const FORM: &str = r#"write "https://host" or "https://host:port", without a path"#;
    if matches!(origin, "" | "null" | "file://") {
        return Ok(());
    }
    if origin.contains('*') {
        return Err("write each origin out, or an empty list for any".into());
    }
    let (scheme, authority) = origin.split_once("://").ok_or(FORM)?;
    let scheme_char = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.bytes().all(scheme_char) {
        return Err(FORM.into());
    }
    let (host, port) = split_port(authority);
    let valid_port = port.is_none_or(|p| p.bytes().all(|b| b.is_ascii_digit()) && p.parse::<u16>().is_ok());
    let valid_host = match host.strip_prefix('[') {
        Some(v6) => v6.strip_suffix(']').is_some_and(|v6| v6.parse::<std::net::Ipv6Addr>().is_ok()),
        None => !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b)),
    };
    if !valid_host || !valid_port {
        return Err(FORM.into());
    }
    let lower = origin.to_ascii_lowercase();
    if lower == origin {
        Ok(())
    } else {
        Err(format!("write \"{lower}\": browsers send origins in lower case"))
    }
}

fn split_port(authority: &str) -> (&str, Option<&str>) {
    let host_end = authority.rfind(']').map_or(0, |i| i + 1);
    match authority[host_end..].rfind(':') {
        Some(colon) => (&authority[..host_end + colon], Some(&authority[host_end + colon + 1..])),
        None => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_ids_are_told_apart() {
        for id in ["a0-0123456789abcdef01234567", "a12-ffffffffffffffffffffffff"] {
            assert!(is_anonymous_id(id), "{id}");
        }
        for id in [
            "",
            "a",
            "a0",
            "a-0123456789abcdef01234567",
            "b0-0123456789abcdef01234567",
            "ann",
            "a0-0123456789abcdef0123456",
            "a0-0123456789abcdef012345678",
            "a0-0123456789ABCDEF01234567",
            "a0x-0123456789abcdef01234567",
            "a+1-0123456789abcdef01234567",
        ] {
            assert!(!is_anonymous_id(id), "{id}");
        }
    }

    #[test]
    fn origins_are_origins() {
        for origin in [
            "",
            "null",
            "file://",
            "https://a.example",
            "http://localhost:3000",
            "http://[::1]:3000",
            "http://127.0.0.1",
            "capacitor://localhost",
            "https://xn--bcher-kva.example",
        ] {
            assert_eq!(check_origin(origin), Ok(()), "{origin}");
        }
        for origin in [
            "*",
            "https://*.example",
            "a.example",
            "https://",
            "https://a/",
            "https://a.example/x",
            "://a",
            "https://a:b",
            "https://a:70000",
            "https://a:",
            "https://u@a",
            "https://a b",
            "https://[::1",
            "https://[x]",
            "file:",
            "1http://a",
            "https://a,https://b",
            "https://bücher.example",
        ] {
            assert!(check_origin(origin).is_err(), "{origin}");
        }
        assert!(check_origin("https://My.example").unwrap_err().starts_with("write \"https://my.example\""));
    }
}
