//! Tokens: given as they are or in a file of their own, never shown.

use std::fs::File;
use std::io::Read;

use super::value::{Raw, Wrong, quoted, toml_string};

/// Longest token, bytes.
const TOKEN_BYTES: u64 = 4096;

/// How a secret is written out.
#[derive(Clone, Copy)]
pub(super) enum Secrets {
    /// For people to see.
    Masked,
    /// To compare two configurations.
    Plain,
}

impl Secrets {
    /// A secret as TOML.
    pub fn show(self, secret: &str) -> String {
        match self {
            Secrets::Masked if !secret.is_empty() => "\"***\"".into(),
            _ => toml_string(secret),
        }
    }
}

/// Reads a token. Errors do not show it.
pub(super) fn read(raw: &Raw<'_>) -> Result<String, Wrong> {
    let text = raw.text().ok_or_else(|| raw.wrong("the value is no string", "write a string in quotes"))?;
    checked(raw, "the token", text)
}

/// Reads the token of `KEY_file = "path"`: the file's contents without the final newline.
pub(super) fn read_file(raw: &Raw<'_>) -> Result<String, Wrong> {
    let path = raw
        .text()
        .ok_or_else(|| raw.wrong("the value is no string", "write the path of a file in quotes"))?;
    let mut contents = String::new();
    let read = File::open(path).and_then(|f| f.take(TOKEN_BYTES + 2).read_to_string(&mut contents));
    if let Err(e) = read {
        return Err(raw.wrong(
            format!("cannot read {}: {e}", quoted(path)),
            "name a readable file that holds the token",
        ));
    }
    let token = contents.strip_suffix('\n').map_or(&*contents, |t| t.strip_suffix('\r').unwrap_or(t));
    if token.is_empty() {
        return Err(raw.wrong(format!("{} is empty", quoted(path)), "put the token into it"));
    }
    checked(raw, &format!("the token in {}", quoted(path)), token)
}

fn checked(raw: &Raw<'_>, which: &str, token: &str) -> Result<String, Wrong> {
    if token.len() as u64 > TOKEN_BYTES {
        return Err(raw.wrong(format!("{which} is too long"), format!("use at most {TOKEN_BYTES} bytes")));
    }
    if token.chars().any(char::is_control) {
        let why = format!("{which} holds a control character, which no header can carry");
        return Err(raw.wrong(why, "write it on one line, without tabs"));
    }
    Ok(token.into())
}
