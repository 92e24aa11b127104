//! The control thread: everything that may wait, so that no core ever does.
//!
//! One thread with one `tokio-uring` runtime serves the admin API, writes the log lines of the cores, and carries
//! out drain, stop and reload. It knows nothing by itself: each question goes to the cores through the rings of
//! [`mesh`](crate::mesh), and what comes back is merged here.

#![forbid(unsafe_code)]

mod admin;
mod auth;
mod hub;
mod life;
mod listen;
mod listing;
mod log;
mod merge;
mod prometheus;
mod publish;
mod publisher;
mod save;
pub mod state;
mod stats;
mod supervisor;
mod trace;
mod watch;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::mesh::ControlPort;
use crate::schema::Schema;
use crate::shard::admit::Admission;
use crate::shard::step::CoreId;

pub use life::Outcome;
pub use listen::AdminSocket;
pub use log::Logging;
pub use publisher::{PublishError, Published, Publisher};
pub use supervisor::Supervisor;

use admin::Admin;
use hub::Hub;
use life::Order;

/// Reads the configuration again. Logs what changed, what needs a restart, or why nothing changes; returns what the
/// cores have to be told.
pub type Reload = Box<dyn FnMut() -> Option<Arc<Admission>> + Send>;

/// What the control thread works with.
pub struct Parts {
    /// Its end of the links to all cores.
    pub port: ControlPort,
    /// The one that all shards got.
    pub seed: u64,
    /// Events that may be published.
    pub schema: Arc<Schema>,
    /// Where the admin API listens; none = off.
    pub admin: Option<AdminSocket>,
    /// Bearer token of the admin API; empty = none.
    pub token: String,
    /// How long a drain may take.
    pub drain_timeout: Duration,
    /// Where the state goes at the end of a drain; none = nowhere.
    pub state: Option<PathBuf>,
    /// Some: SIGTERM and SIGINT drain, a second one stops at once, SIGHUP calls this.
    pub signals: Option<Reload>,
    /// Who is told how it goes.
    pub supervisor: Option<Supervisor>,
}

/// The running control thread.
#[derive(Debug)]
pub struct Control {
    orders: Orders,
    thread: JoinHandle<Outcome>,
}

/// Tells the control thread what to do; any thread may have one.
#[derive(Debug, Clone)]
pub struct Orders(UnboundedSender<Order>);

impl Orders {
    /// Refuse new connections, flush every queue, close every connection, end. The second time nothing more happens.
    pub fn drain(&self) {
        self.tell(Order::Drain);
    }

    /// End at once, whatever is queued.
    pub fn stop(&self) {
        self.tell(Order::Stop);
    }

    /// The server listens, where this says: the supervisor may know.
    pub fn announce(&self, place: String) {
        self.tell(Order::Announce(place));
    }

    /// A core's thread has ended, with the error that ended it.
    pub fn core_ended(&self, core: CoreId, error: Option<String>) {
        self.tell(Order::Ended { core, error });
    }

    /// After the end of the control thread orders mean nothing, so nobody needs to know that they were not heard.
    fn tell(&self, order: Order) {
        drop(self.0.send(order));
    }
}

impl Control {
    /// Starts the thread and returns when it serves.
    ///
    /// # Errors
    /// The thread, its ring or its signal handlers could not be set up.
    pub fn start(parts: Parts) -> io::Result<Control> {
        let (orders, inbox) = unbounded_channel();
        let (ready, started) = mpsc::channel();
        let own = Orders(orders.clone());
        let thread = thread::Builder::new().name("control".into()).spawn(move || {
            let runtime = match tokio_uring::Runtime::new(&tokio_uring::builder()) {
                Ok(runtime) => runtime,
                Err(e) => {
                    drop(ready.send(Err(e)));
                    return Outcome::default();
                }
            };
            runtime.block_on(life::run(parts, own, inbox, ready))
        })?;
        match started.recv() {
            Ok(Ok(())) => Ok(Control { orders: Orders(orders), thread }),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(io::Error::other("the control thread ended before it was ready")),
        }
    }

    /// For giving orders.
    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Waits for the end: every core has ended, or did not in time.
    pub fn join(self) -> Outcome {
        match self.thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// What the handlers of the admin API share.
fn admin_state(parts: &mut Parts, hub: Arc<Hub>) -> Arc<Admin> {
    Arc::new(Admin {
        hub,
        schema: Arc::clone(&parts.schema),
        token: std::mem::take(&mut parts.token),
        draining: AtomicBool::new(false),
        started: Instant::now(),
        bodies: publish::Bodies::new(),
    })
}
