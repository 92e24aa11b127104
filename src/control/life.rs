//! From the start of the control thread to its end: signals, drain, stop, reload.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::admin::{self, Admin};
use super::hub::{self, Hub, Ordered};
use super::listen::{AdminSocket, Bounded};
use super::publisher::Errand;
use super::save::{self, Destination};
use super::supervisor::Supervisor;
use super::{Orders, Parts, Reload, admin_state, watch};
use crate::mesh::Bell;
use crate::shard::step::{self, Ask, CoreId};

/// How long a core may take to end after the time it was given.
const GRACE: Duration = Duration::from_millis(500);
/// How long the last answers of the admin API may take after the cores have ended.
const LAST_ANSWERS: Duration = Duration::from_millis(200);

/// What the control thread is told.
#[derive(Debug)]
pub enum Order {
    /// Let every connection end in order.
    Drain,
    /// End at once.
    Stop,
    /// Publish for the program that embeds the server.
    Publish(Errand),
    /// The server listens where this says: tell the supervisor.
    Announce(String),
    /// No core has a connection any more.
    Drained,
    /// The state is in its file, or will never be.
    Saved,
    /// A core's thread has ended.
    Ended {
        /// Which.
        core: CoreId,
        /// Why, if nobody told it to.
        error: Option<String>,
    },
}

/// How it ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// A core did not end in time; its thread still runs.
    pub forced: bool,
    /// What ended the server, if it was not told to end.
    pub error: Option<String>,
}

/// The whole life of the control thread. `ready` hears when it serves, or why it cannot.
pub async fn run(
    parts: Parts,
    orders: Orders,
    inbox: UnboundedReceiver<Order>,
    ready: mpsc::Sender<io::Result<()>>,
) -> Outcome {
    match Life::begin(parts, orders) {
        Ok(life) => {
            drop(ready.send(Ok(())));
            life.live(inbox).await
        }
        Err(e) => {
            drop(ready.send(Err(e)));
            Outcome::default()
        }
    }
}

struct Life {
    hub: Arc<Hub>,
    admin: Arc<Admin>,
    orders: Orders,
    drain_timeout: Duration,
    state: Option<Destination>,
    bell: Arc<Bell>,
    collector: JoinHandle<io::Result<()>>,
    server: Option<Server>,
    supervisor: Option<Arc<Supervisor>>,
}

/// The admin API; it ends when `stop` is dropped.
struct Server {
    stop: oneshot::Sender<()>,
    task: JoinHandle<io::Result<()>>,
}

impl Life {
    fn begin(mut parts: Parts, orders: Orders) -> io::Result<Life> {
        let links = std::mem::take(&mut parts.port.links);
        let (commands, notices): (Vec<_>, Vec<_>) =
            links.into_iter().map(|l| (l.commands, l.notices)).unzip();
        let hub = Arc::new(Hub::new(parts.seed, commands));
        let collect = hub::collect(Arc::clone(&parts.port.bell), notices, Arc::clone(&hub));
        let admin = admin_state(&mut parts, Arc::clone(&hub));
        let supervisor = parts.supervisor.take().map(Arc::new);
        if let Some(reload) = parts.signals.take() {
            tokio_uring::spawn(Ends::new()?.obey(orders.clone()));
            let hangup = signal(SignalKind::hangup())?;
            tokio_uring::spawn(obey_hangups(hangup, reload, Arc::clone(&hub), supervisor.clone()));
        }
        let server = parts.admin.take().map(|socket| serve(socket, Arc::clone(&admin))).transpose()?;
        let collector = tokio_uring::spawn(collect);
        let (drain_timeout, bell) = (parts.drain_timeout, parts.port.bell);
        let schema = Arc::clone(&parts.schema);
        let state = parts.state.take().map(|path| Destination { path, schema, unwanted: Arc::default() });
        Ok(Life { hub, admin, orders, drain_timeout, state, bell, collector, server, supervisor })
    }

    async fn live(self, mut inbox: UnboundedReceiver<Order>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut running = self.hub.cores();
        let mut end_by = None;
        while running > 0 {
            let order = match end_by {
                None => inbox.recv().await,
                Some(end_by) => match timeout_at(end_by, inbox.recv()).await {
                    Ok(order) => order,
                    Err(_) => {
                        outcome.forced = true;
                        break;
                    }
                },
            };
            // Whoever could give orders is gone: nobody wants this server any more.
            match order.unwrap_or(Order::Stop) {
                Order::Drain if end_by.is_none() => end_by = Some(self.drain().await),
                Order::Drain => {}
                Order::Drained => end_by = end_by.max(Some(self.save().await)),
                Order::Saved => end_by = end_by.max(Some(self.dismiss())),
                Order::Announce(place) => self.announce(&place).await,
                Order::Publish(errand) => drop(tokio::spawn(errand.run(Arc::clone(&self.hub)))),
                Order::Stop => end_by = Some(self.stop().await),
                Order::Ended { core, error } => {
                    running -= 1;
                    let told = end_by.is_some() && error.is_none();
                    if !told {
                        let why = error.unwrap_or_else(|| "it ended without having been told to".into());
                        outcome.error.get_or_insert(format!("core {core}: {why}"));
                        end_by = Some(self.stop().await);
                    }
                }
            }
        }
        self.end(outcome.forced).await;
        outcome
    }

    /// Lets every connection end in order, and says until when that has to be done.
    async fn drain(&self) -> Instant {
        tracing::info!("draining; connections have {:?} to take what waits for them", self.drain_timeout);
        let drained = self.close_connections(self.drain_timeout);
        let end_by = Instant::now() + self.drain_timeout + GRACE;
        let orders = self.orders.clone();
        tokio_uring::spawn(async move {
            // Otherwise a core is stuck, and is left behind.
            if drained.done().await {
                orders.tell(Order::Drained);
            }
        });
        self.tell_supervisor(self.drain_timeout).await;
        end_by
    }

    /// Saves the state, if it is to be, and says until when that has to be done.
    async fn save(&self) -> Instant {
        let wanted = self.state.as_ref().filter(|state| !state.unwanted.load(Ordering::Relaxed));
        let Some(state) = wanted.cloned() else { return self.dismiss() };
        let (hub, orders) = (Arc::clone(&self.hub), self.orders.clone());
        tokio_uring::spawn(async move {
            save::save(&hub, &state).await;
            orders.tell(Order::Saved);
        });
        if let Some(supervisor) = &self.supervisor {
            supervisor.saving(save::PATIENCE).await;
        }
        Instant::now() + save::PATIENCE + GRACE
    }

    /// Cuts whatever is connected and lets the cores go. A state that is not whole yet never will be.
    async fn stop(&self) -> Instant {
        tracing::info!("stopping at once");
        if let Some(state) = &self.state {
            state.unwanted.store(true, Ordering::Relaxed);
        }
        self.close_connections(Duration::ZERO);
        let end_by = self.dismiss();
        self.tell_supervisor(Duration::ZERO).await;
        end_by
    }

    fn close_connections(&self, time: Duration) -> Ordered {
        self.admin.draining.store(true, Ordering::Relaxed);
        let deadline = monotonic() + time;
        self.hub.order_all(|| Ask::Drain { deadline })
    }

    /// Nobody has any more questions: a core that has drained ends.
    fn dismiss(&self) -> Instant {
        self.hub.order_all(|| Ask::End);
        Instant::now() + GRACE
    }

    async fn tell_supervisor(&self, time: Duration) {
        if let Some(supervisor) = &self.supervisor {
            supervisor.stopping(time).await;
        }
    }

    async fn announce(&self, place: &str) {
        let Some(supervisor) = &self.supervisor else { return };
        supervisor.ready(&format!("listening on {place}")).await;
        tokio_uring::spawn(watch::report(Arc::clone(supervisor), Arc::clone(&self.admin)));
        if let Some(period) = supervisor.watchdog() {
            tokio_uring::spawn(watch::feed(Arc::clone(supervisor), Arc::clone(&self.hub), period));
        }
    }

    async fn end(self, forced: bool) {
        if forced {
            // The runtime ends only when its read of the bell has ended.
            self.collector.abort();
            self.bell.say_asleep();
            self.bell.ring();
        } else {
            // The cores are gone, so this only takes what they said last.
            match timeout(GRACE, self.collector).await {
                Ok(Ok(Ok(()))) => {}
                failed => tracing::error!("the last words of the cores are lost: {failed:?}"),
            }
        }
        if let Some(Server { stop, task }) = self.server {
            drop(stop);
            // Whatever is still unanswered is cut off with the process.
            drop(timeout(LAST_ANSWERS, task).await);
        }
    }
}

fn serve(socket: AdminSocket, admin: Arc<Admin>) -> io::Result<Server> {
    let listener = Bounded::new(socket)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = axum::serve(listener, admin::router(admin)).with_graceful_shutdown(async {
        drop(stopped.await);
    });
    Ok(Server { stop, task: tokio::spawn(serve.into_future()) })
}

/// Monotonic time as the cores read it.
fn monotonic() -> step::Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    step::Instant(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// The signals that end a server.
struct Ends {
    terminate: Signal,
    interrupt: Signal,
}

impl Ends {
    fn new() -> io::Result<Ends> {
        Ok(Ends { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn obey(mut self, orders: Orders) {
        let mut asked = false;
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
            if std::mem::replace(&mut asked, true) { orders.stop() } else { orders.drain() }
        }
    }
}

/// One reload after the other; each ends when every core has what was read.
async fn obey_hangups(
    mut hangup: Signal,
    mut reload: Reload,
    hub: Arc<Hub>,
    supervisor: Option<Arc<Supervisor>>,
) {
    while hangup.recv().await.is_some() {
        if let Some(supervisor) = &supervisor {
            supervisor.reloading().await;
        }
        let is_done = match reload() {
            Some(admission) => hub.order_all(|| Ask::Reload(Arc::clone(&admission))).done().await,
            None => true,
        };
        if let Some(supervisor) = supervisor.as_ref().filter(|_| is_done) {
            supervisor.ready("the configuration was read again, the log says what has changed").await;
        }
    }
}
