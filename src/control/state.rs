//! The state file: its bytes, and how it is written.
//!
//! | bytes | are |
//! |---|---|
//! | 8 | `seqcast`, 0 |
//! | 4 | version of the format |
//! | 4 | fingerprint of the schema |
//! | 8 | length of the body |
//! | 4 | CRC-32 of the body and of the bytes between the checksum and the name |
//! | rest | the body: the saved cores, as postcard writes them |
//!
//! Numbers are little-endian. The file is whole or it is not there: it is written under another name beside its place,
//! brought to the disk, and renamed.

use std::cmp::Ordering;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{self, AtomicBool};

use crate::schema::Schema;
use crate::shard::saved::{self, Saved};

const MAGIC: [u8; 8] = *b"seqcast\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 28;
/// Between two looks at whether the file is still wanted.
const CHUNK_BYTES: usize = 1 << 20;

/// Why a file is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// It does not begin as a state file does.
    Foreign,
    /// Another version of the format.
    Version(u32),
    /// It ends too early.
    Cut,
    /// It goes on behind its end.
    Longer,
    /// Some byte is not what it was.
    Checksum,
    /// It was written for another schema.
    Schema {
        /// Of the file.
        file: u32,
        /// Of this server.
        own: u32,
    },
    /// The body cannot be read, or says what cannot be.
    Body(&'static str),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Foreign => f.write_str("it is no state file"),
            Damage::Version(version) => {
                write!(f, "its format is version {version}, this server has {VERSION}")
            }
            Damage::Cut => f.write_str("its end is missing"),
            Damage::Longer => f.write_str("there is something behind its end"),
            Damage::Checksum => f.write_str("its checksum is wrong"),
            Damage::Schema { file, own } => {
                write!(
                    f,
                    "it was written for a schema with the fingerprint {file:08x}, this one has {own:08x}"
                )
            }
            Damage::Body(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Damage {}

/// The bytes of a state file.
pub fn encode(cores: &[Saved], schema: &Schema) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&schema.fingerprint().to_le_bytes());
    bytes.resize(HEADER_BYTES, 0);
    let mut bytes = postcard::to_extend(cores, bytes).expect("a vector takes everything");
    let length = (bytes.len() - HEADER_BYTES) as u64;
    bytes[16..24].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum(&bytes);
    bytes[24..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// What a state file says, once every byte of it is believed. Memory is bounded by a small multiple of the bytes.
///
/// # Errors
/// Why it is not believed.
pub fn decode(bytes: &[u8], schema: &Schema) -> Result<Vec<Saved>, Damage> {
    let Some((header, body)) =
        bytes.split_first_chunk::<HEADER_BYTES>().filter(|_| bytes.starts_with(&MAGIC))
    else {
        let is_cut = bytes.len() < HEADER_BYTES && bytes.iter().zip(MAGIC).all(|(is, ours)| *is == ours);
        return Err(if is_cut { Damage::Cut } else { Damage::Foreign });
    };
    let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (version, fingerprint, told) = (number(8), number(12), number(24));
    let length = u64::from(number(16)) | u64::from(number(20)) << 32;
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    match length.cmp(&(body.len() as u64)) {
        Ordering::Greater => return Err(Damage::Cut),
        Ordering::Less => return Err(Damage::Longer),
        Ordering::Equal => {}
    }
    if told != checksum(bytes) {
        return Err(Damage::Checksum);
    }
    if fingerprint != schema.fingerprint() {
        return Err(Damage::Schema { file: fingerprint, own: schema.fingerprint() });
    }
    let (cores, rest) = postcard::take_from_bytes::<Vec<Saved>>(body).map_err(|_| {
        Damage::Body("its checksum is right and its body is not: it was made by something else")
    })?;
    if !rest.is_empty() {
        return Err(Damage::Body("its body ends early"));
    }
    saved::check(&cores, schema).map_err(Damage::Body)?;
    Ok(cores)
}

/// Of a whole file.
fn checksum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[MAGIC.len()..HEADER_BYTES - 4]);
    hasher.update(&bytes[HEADER_BYTES..]);
    hasher.finalize()
}

/// Writes the file, which then is whole and on the disk, unless `unwanted` becomes true in time. Blocks.
///
/// # Errors
/// The disk is full, or whatever else there is. What was there before stays.
pub fn write(path: &Path, bytes: &[u8], unwanted: &AtomicBool) -> io::Result<()> {
    let aside = aside(path);
    let written = write_aside(&aside, bytes, unwanted).and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        drop(fs::remove_file(&aside));
    }
    written?;
    sync_folder(path)
}

fn write_aside(aside: &Path, bytes: &[u8], unwanted: &AtomicBool) -> io::Result<()> {
    let mut file = create(aside)?;
    let is_wanted = || match unwanted.load(atomic::Ordering::Relaxed) {
        true => Err(io::Error::other("the server was told to stop at once")),
        false => Ok(()),
    };
    for chunk in bytes.chunks(CHUNK_BYTES) {
        is_wanted()?;
        file.write_all(chunk)?;
    }
    file.sync_all()?;
    is_wanted()
}

/// Finds out whether the file could be written. What lies beside it is left alone: another server may be writing it.
///
/// # Errors
/// It could not.
pub fn probe(path: &Path) -> io::Result<()> {
    // Not the file that a server which is about to end writes: that may be half done now.
    let trial = beside(path, &format!(".{}.trial", std::process::id()));
    drop(create(&trial)?);
    fs::remove_file(&trial)
}

/// Removes what a process left beside the file that was stopped while it wrote. Only for a server that has its
/// addresses: none before it is at work any more.
///
/// # Errors
/// It is there and cannot be removed.
pub fn sweep(path: &Path) -> io::Result<()> {
    match fs::remove_file(aside(path)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Removes the file, so that it does not come back when the machine goes down.
///
/// # Errors
/// It is still there, or may come back.
pub fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    sync_folder(path)
}

/// A new file that is nobody else's business.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Where it is written before it is whole.
fn aside(path: &Path) -> PathBuf {
    beside(path, ".tmp")
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
