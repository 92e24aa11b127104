//! The ready file: who runs and where it listens, for scripts that wait for the start.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;

use super::Addresses;
use crate::config::Listen;

/// Writes the file so that a reader sees all of it or none.
///
/// # Errors
/// The folder cannot be written to.
pub fn write(path: &Path, addresses: &Addresses) -> io::Result<()> {
    let pid = std::process::id();
    let listen: Vec<_> = addresses.listen.iter().map(Listen::to_string).collect();
    let admin = addresses.admin.as_ref().map(Listen::to_string);
    let text = json!({ "pid": pid, "listen": listen, "admin": admin }).to_string() + "\n";
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{pid}"));
    fs::write(&aside, text)?;
    fs::rename(&aside, path).inspect_err(|_| drop(fs::remove_file(&aside)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_it() {
        let path = std::env::temp_dir().join(format!("seqcast-ready-{}", std::process::id()));
        let tcp = |port| Listen::Tcp(([127, 0, 0, 1], port).into());
        let mut addresses =
            Addresses { listen: vec![tcp(1), Listen::Unix("/s".into())], admin: Some(tcp(2)) };
        let read = |addresses: &Addresses| -> serde_json::Value {
            write(&path, addresses).unwrap();
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap()
        };
        let pid = std::process::id();
        assert_eq!(
            read(&addresses),
            json!({"pid": pid, "listen": ["127.0.0.1:1", "unix:/s"], "admin": "127.0.0.1:2"})
        );
        addresses.admin = None;
        assert_eq!(read(&addresses)["admin"], json!(null));
        fs::remove_file(&path).unwrap();
        assert!(write(Path::new("/no/such/folder/ready"), &addresses).is_err());
    }
}
