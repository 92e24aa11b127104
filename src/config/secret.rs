//! Tokens: given as they are or in a file of their own, never shown.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use super::value::{Raw, Wrong, quoted, toml_string};

/// Longest token, bytes.
const TOKEN_BYTES: u64 = 4096;

/// The folder where systemd puts the credentials of a service, as the beginning of a path.
const CREDENTIALS: &str = "${CREDENTIALS_DIRECTORY}/";

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
    let file = expanded(path, env::var_os("CREDENTIALS_DIRECTORY")).ok_or_else(|| {
        let what = format!(
            "{} stands for a folder, and the environment has no such variable",
            CREDENTIALS.trim_end_matches('/')
        );
        raw.wrong(what, "start it from a unit with LoadCredential=, or write the folder of the file")
    })?;
    let mut contents = String::new();
    let read = File::open(&file).and_then(|f| f.take(TOKEN_BYTES + 2).read_to_string(&mut contents));
    if let Err(e) = read {
        return Err(raw.wrong(
            format!("cannot read {}: {e}", quoted(&file.to_string_lossy())),
            "name a readable file that holds the token",
        ));
    }
    let token = contents.strip_suffix('\n').map_or(&*contents, |t| t.strip_suffix('\r').unwrap_or(t));
    if token.is_empty() {
        return Err(raw.wrong(format!("{} is empty", quoted(path)), "put the token into it"));
    }
    checked(raw, &format!("the token in {}", quoted(path)), token)
}

/// Nothing but [`CREDENTIALS`] is expanded. None: it is used, and there is no such folder.
fn expanded(path: &str, credentials: Option<OsString>) -> Option<PathBuf> {
    match path.strip_prefix(CREDENTIALS) {
        Some(name) => Some(PathBuf::from(credentials.filter(|folder| !folder.is_empty())?).join(name)),
        None => Some(path.into()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_credentials_and_nothing_else_is_expanded() {
        let path = |text, folder: Option<&str>| expanded(text, folder.map(Into::into));
        let folder = Some("/run/credentials/seqcast.service");
        let found = path("${CREDENTIALS_DIRECTORY}/token", folder);
        assert_eq!(found, Some("/run/credentials/seqcast.service/token".into()));
        assert_eq!(path("${CREDENTIALS_DIRECTORY}/token", None), None);
        assert_eq!(path("${CREDENTIALS_DIRECTORY}/token", Some("")), None);
        for as_it_is in ["${HOME}/token", "/x/${CREDENTIALS_DIRECTORY}/token", "$CREDENTIALS_DIRECTORY/token"]
        {
            assert_eq!(path(as_it_is, folder), Some(as_it_is.into()));
        }
    }
}
