//! What a process before this one left in the state file. It is taken before anything listens, is never half believed,
//! and is gone before the first connection: a state that was taken up once is out of date.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::StartError;
use crate::control::state;
use crate::schema::Schema;
use crate::shard::saved::Saved;

/// A state file.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    is_there: bool,
}

/// Reads the file if there is one; "" names none. One that is not believed is put aside under another name, and the
/// start goes on without.
///
/// # Errors
/// It can be neither read nor put aside, or not be written later: better now than at the end.
pub(super) fn take(path: &str, schema: &Schema) -> Result<Option<(StateFile, Vec<Saved>)>, StartError> {
    if path.is_empty() {
        return Ok(None);
    }
    let path = PathBuf::from(path);
    let failed = |step, error| StartError::State { path: path.clone(), step, error };
    state::probe(&path).map_err(|e| failed("it could not be written at the end", e))?;
    let bytes = match read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Ok(Some((StateFile { path, is_there: false }, Vec::new())));
        }
        Err(e) => return Err(failed("it cannot be read", e)),
    };
    match state::decode(&bytes, schema) {
        Ok(saved) => {
            let count = |of: fn(&Saved) -> usize| saved.iter().map(of).sum::<usize>();
            let (sessions, topics) = (count(|core| core.sessions.len()), count(|core| core.topics.len()));
            tracing::info!("taking up {sessions} sessions and {topics} topics from {}", path.display());
            Ok(Some((StateFile { path, is_there: true }, saved)))
        }
        Err(damage) => {
            let aside = set_aside(&path).map_err(|e| failed("it cannot be put aside", e))?;
            tracing::error!(
                "the state in {} is not used: {damage}; it is now {}, and clients begin anew",
                path.display(),
                aside.display()
            );
            Ok(Some((StateFile { path, is_there: false }, Vec::new())))
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A device or a pipe has no end.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    fs::read(path)
}

fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".damaged-{seconds}"));
    let aside = PathBuf::from(aside);
    fs::rename(path, &aside)?;
    Ok(aside)
}

impl StateFile {
    /// The cores have what was in it.
    ///
    /// # Errors
    /// It cannot be removed, and another start would take it for the state then.
    pub(super) fn discard(&self) -> Result<(), StartError> {
        let failed = |step| move |error| StartError::State { path: self.path.clone(), step, error };
        state::sweep(&self.path).map_err(failed("what a server left beside it cannot be removed"))?;
        if !self.is_there {
            return Ok(());
        }
        state::remove(&self.path).map_err(failed("it was read and cannot be removed"))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
