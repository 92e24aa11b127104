//! The last thing that a drained server does: what outlives it goes into the state file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::hub::Hub;
use super::state;
use crate::schema::Schema;
use crate::shard::saved::Saved;
use crate::shard::step::Answer;

/// How long all of it may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Where the state goes.
#[derive(Debug, Clone)]
pub struct Destination {
    /// The file.
    pub path: PathBuf,
    /// Whose events are in it.
    pub schema: Arc<Schema>,
    /// Nobody waits for it any more: it is not put in its place.
    pub unwanted: Arc<AtomicBool>,
}

/// Lets nothing more be published, takes the state of the cores, which have drained, and writes it. Without it the
/// server ends all the same, and says that there is none.
pub async fn save(hub: &Hub, to: &Destination) {
    let outcome = match timeout(PATIENCE, take_and_write(hub, to)).await {
        Ok(outcome) => outcome,
        Err(_) => {
            to.unwanted.store(true, Ordering::Relaxed);
            Err(format!("it took longer than {PATIENCE:?}"))
        }
    };
    let path = to.path.display();
    match outcome {
        Ok(what) => tracing::info!("{what} saved in {path}"),
        Err(why) => tracing::error!("the state is not saved in {path}: {why}; clients begin anew"),
    }
}

async fn take_and_write(hub: &Hub, to: &Destination) -> Result<String, String> {
    let answers = hub.save().answers().await.ok_or("a core does not answer")?;
    let cores: Vec<Saved> = answers
        .into_iter()
        .map(|answer| match answer {
            Answer::Saved(saved) => Ok(*saved),
            _ => Err("a core gave an answer of another kind"),
        })
        .collect::<Result<_, _>>()?;
    let count = |of: fn(&Saved) -> usize| cores.iter().map(of).sum::<usize>();
    let what = format!("{} sessions and {} topics", count(|c| c.sessions.len()), count(|c| c.topics.len()));
    // A thread that nobody waits for: a disk that hangs does not keep a process that is told to stop.
    let (done, written) = oneshot::channel();
    let to = to.clone();
    let write = move || {
        let bytes = state::encode(&cores, &to.schema);
        drop(cores);
        drop(done.send(state::write(&to.path, &bytes, &to.unwanted)));
    };
    thread::Builder::new().name("state".into()).spawn(write).map_err(|e| e.to_string())?;
    match written.await {
        Ok(Ok(())) => Ok(what),
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err("the thread that writes it has panicked; please report it".into()),
    }
}
