//! From a plan to running threads, and their end.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::thread::{CpuSet, sched_setaffinity};

use super::bind::{Addresses, Bound, SocketFiles, bind};
use super::plan::Plan;
use super::state::{self, StateFile};
use crate::control::{Control, Orders, Parts, Publisher, Reload, Supervisor};
use crate::limits::{RESERVED_DESCRIPTORS, STAGED_BYTES};
use crate::mesh::{self, CorePort};
use crate::schema::Schema;
use crate::shard::census::Census;
use crate::shard::split::{Restored, split};
use crate::shard::step::CoreId;
use crate::shard::{Setup, Shard};
use crate::uring::{self, Core, Driver, Inherited, ListenError, Listener, Places};

/// Sockets that may be in a handshake or a close beside the established ones.
const PASSING_SOCKETS: u32 = 1024;

/// Why a server does not start.
#[derive(Debug)]
pub enum StartError {
    /// An address cannot be listened on.
    Listen(ListenError),
    /// The kernel gives a core no ring.
    Ring(uring::StartError),
    /// State cannot be kept in the file.
    State {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        step: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// Anything else.
    System {
        /// What was attempted.
        step: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Listen(e) => e.fmt(f),
            StartError::Ring(e) => e.fmt(f),
            StartError::State { path, step, error } => {
                let path = path.display();
                write!(
                    f,
                    "state.file: {path}: {step}: {error}; name a file in a folder that this user may write to, or \"\" \
                     for none"
                )
            }
            StartError::System { step, error } => {
                write!(f, "cannot start: {step}: {error}; `seqcast doctor` looks at what is needed")
            }
        }
    }
}

impl std::error::Error for StartError {}

/// A server that failed while it ran.
#[derive(Debug, PartialEq, Eq)]
pub struct Stopped(String);

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server has failed: {}; please report it", self.0)
    }
}

impl std::error::Error for Stopped {}

/// Starts servers.
#[derive(Debug)]
pub struct Server;

impl Server {
    /// Starts a server in threads of its own. It leaves signals and the log to the program that embeds it.
    ///
    /// # Errors
    /// An address is taken, or the machine does not give what is needed. Nothing is left behind.
    pub fn start(plan: Plan) -> Result<Running, StartError> {
        start(plan, Foreground::default())
    }
}

/// A running server. Dropping it stops it at once.
#[derive(Debug)]
pub struct Running {
    addresses: Addresses,
    schema: Arc<Schema>,
    orders: Orders,
    threads: Option<Threads>,
    /// Last: they go when the threads have ended.
    _files: SocketFiles,
}

#[derive(Debug)]
struct Threads {
    control: Control,
    cores: Vec<JoinHandle<()>>,
}

impl Running {
    /// Where it listens.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// For publishing to its clients; any thread may have one.
    pub fn publisher(&self) -> Publisher {
        Publisher::new(self.orders.clone(), Arc::clone(&self.schema))
    }

    /// Refuses new connections, lets those that are there take what waits for them, closes them with 1001, and ends,
    /// within `[server] drain_timeout`. [`join`](Self::join) waits for it.
    pub fn drain(&self) {
        self.orders.drain();
    }

    /// Ends at once; [`join`](Self::join) waits for it.
    pub fn stop(&self) {
        self.orders.stop();
    }

    /// Tells the supervisor that it listens.
    pub(super) fn announce(&self) {
        self.orders.announce(self.addresses.to_string());
    }

    /// Waits for the end, which somebody has to order.
    ///
    /// # Errors
    /// A core ended by itself.
    pub fn join(mut self) -> Result<(), Stopped> {
        let threads = self.threads.take().expect("only `join` and `drop` take the threads, once");
        threads.join()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            self.orders.stop();
            if let Err(e) = threads.join() {
                tracing::error!("{e}");
            }
        }
    }
}

impl Threads {
    /// `state`: what the cores take up; nobody else may take it up behind them.
    fn start(cores: Vec<CoreParts>, parts: Parts, state: Option<&StateFile>) -> Result<Threads, StartError> {
        let mut starting = Vec::with_capacity(cores.len());
        let give_up = |starting: Vec<Starting>| starting.into_iter().for_each(Starting::give_up);
        let control = match Threads::start_control(cores, parts, &mut starting) {
            Ok(control) => control,
            Err(e) => {
                give_up(starting);
                return Err(e);
            }
        };
        if let Some(Err(e)) = state.map(StateFile::discard) {
            control.orders().stop();
            give_up(starting);
            control.join();
            return Err(e);
        }
        let cores = starting.into_iter().map(|core| core.go(control.orders())).collect();
        Ok(Threads { control, cores })
    }

    fn start_control(
        cores: Vec<CoreParts>,
        parts: Parts,
        starting: &mut Vec<Starting>,
    ) -> Result<Control, StartError> {
        for core in cores {
            starting.push(core.spawn().map_err(system("make a thread"))?);
        }
        for core in &*starting {
            core.wait()?;
        }
        Control::start(parts).map_err(system("start the control thread"))
    }

    fn join(self) -> Result<(), Stopped> {
        let outcome = self.control.join();
        if outcome.forced {
            tracing::warn!("a core did not end in time and is left behind");
        } else {
            for core in self.cores {
                // A panic has been reported by the control thread already.
                drop(core.join());
            }
        }
        outcome.error.map_or(Ok(()), |error| Err(Stopped(error)))
    }
}

/// What only `seqcast serve` has.
#[derive(Default)]
pub(super) struct Foreground {
    /// These come in place of the configured addresses.
    pub inherited: Inherited,
    /// As [`Parts::signals`].
    pub signals: Option<Reload>,
    /// As [`Parts::supervisor`].
    pub supervisor: Option<Supervisor>,
}

/// Starts everything.
pub(super) fn start(plan: Plan, foreground: Foreground) -> Result<Running, StartError> {
    let Foreground { inherited, signals, supervisor } = foreground;
    let (state, saved) = state::take(&plan.config.state.file, &plan.schema)?.unzip();
    let open_files = uring::raise_open_files();
    let Bound { listeners, admin, addresses, files } =
        bind(&plan.config, inherited, plan.processors.len()).map_err(StartError::Listen)?;
    let (port, ports) = mesh::connect(plan.processors.len()).map_err(system("make bells"))?;
    let seed = RandomState::new().hash_one("seed");
    let schema = Arc::clone(&plan.schema);
    let mut cores = CoreParts::of(&plan, seed, open_files, ports.into_iter().zip(listeners));
    let restored = saved.map(|saved| split(saved, seed, cores.len() as CoreId));
    for (core, restored) in cores.iter_mut().zip(restored.into_iter().flatten()) {
        core.restored = Some(restored);
    }
    let parts = Parts {
        port,
        seed,
        schema: plan.schema,
        admin,
        token: plan.config.admin.token.clone(),
        drain_timeout: plan.config.server.drain_timeout,
        state: state.as_ref().map(|state| state.path().to_path_buf()),
        signals,
        supervisor,
    };
    let threads = Threads::start(cores, parts, state.as_ref())?;
    let orders = threads.control.orders().clone();
    Ok(Running { addresses, schema, orders, threads: Some(threads), _files: files })
}

fn system(step: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::System { step, error }
}

/// Unix time at the origin of the monotonic clock, milliseconds.
fn wall_ms_at_zero() -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    wall.saturating_sub(uring::now().0 / 1_000_000)
}

/// What the thread of a core is made of.
struct CoreParts {
    core: CoreId,
    processor: Option<u16>,
    /// No other core is on this processor.
    is_alone: bool,
    setup: Setup,
    listeners: Vec<Listener>,
    port: CorePort,
    files: u32,
    places: Arc<Places>,
    restored: Option<Restored>,
}

/// The thread of a core that says whether it can run, and then waits for the word.
struct Starting {
    thread: JoinHandle<()>,
    able: Receiver<Result<(), uring::StartError>>,
    go: Sender<Orders>,
}

impl CoreParts {
    fn of(
        plan: &Plan,
        seed: u64,
        files: u64,
        ends: impl Iterator<Item = (CorePort, Vec<Listener>)>,
    ) -> Vec<CoreParts> {
        let cores = plan.processors.len() as CoreId;
        let most = plan.config.server.max_connections.saturating_add(PASSING_SOCKETS);
        let sockets = files.saturating_sub(RESERVED_DESCRIPTORS.into()).max(1);
        let places = Arc::new(Places::new(usize::try_from(sockets).unwrap_or(usize::MAX)));
        let files = most.min(u32::try_from(files).unwrap_or(u32::MAX));
        let wall_ms = wall_ms_at_zero();
        let census = Arc::new(Census::new(cores));
        let part = |(core, ((port, listeners), &processor)): (usize, (_, &u16))| CoreParts {
            core: core as CoreId,
            processor: plan.config.server.pin.then_some(processor),
            is_alone: plan.config.server.pin
                && plan.processors.iter().filter(|other| **other == processor).count() == 1,
            setup: Setup {
                core: core as CoreId,
                cores,
                seed,
                config: Arc::clone(&plan.config),
                schema: Arc::clone(&plan.schema),
                admission: Arc::clone(&plan.admission),
                wall_ms,
                census: Arc::clone(&census),
                staged_bytes: STAGED_BYTES,
            },
            listeners,
            port,
            files,
            places: Arc::clone(&places),
            restored: None,
        };
        ends.zip(&plan.processors).enumerate().map(part).collect()
    }

    fn spawn(self) -> io::Result<Starting> {
        let (tell_able, able) = channel();
        let (go, word) = channel();
        let name = format!("core-{}", self.core);
        let thread = thread::Builder::new().name(name).spawn(move || self.run(&tell_able, &word))?;
        Ok(Starting { thread, able, go })
    }

    /// The ring serves no other thread than the one that makes it.
    fn run(self, able: &Sender<Result<(), uring::StartError>>, word: &Receiver<Orders>) {
        let core = self.core;
        let pinned = self.processor.map(pin);
        let mut shard = Box::new(Shard::new(self.setup));
        if let Some(restored) = self.restored {
            shard.restore(uring::now(), &restored);
        }
        let mut driver =
            match Driver::new(Core::Shard(shard), self.listeners, Some(self.port), self.files, self.places) {
                Ok(driver) => driver,
                Err(e) => return drop(able.send(Err(e))),
            };
        if self.is_alone {
            driver.own_processor();
        }
        drop(able.send(Ok(())));
        // Without a word something else could not start.
        let Ok(orders) = word.recv() else { return };
        if let Some(Err(e)) = pinned {
            tracing::warn!(
                core,
                "cannot stay on processor {:?}: {e}; set server.pin = false",
                self.processor
            );
        }
        for missing in driver.missing() {
            tracing::info!(core, "this kernel has no {missing}");
        }
        let _farewell = Farewell { core, orders };
        driver.run();
    }
}

impl Starting {
    fn wait(&self) -> Result<(), StartError> {
        match self.able.recv() {
            Ok(able) => able.map_err(StartError::Ring),
            Err(_) => {
                let error = io::Error::other("the thread of a core has panicked");
                Err(StartError::System { step: "set up a core", error })
            }
        }
    }

    /// Something else could not start.
    fn give_up(self) {
        drop(self.go);
        drop(self.thread.join());
    }

    fn go(self, orders: &Orders) -> JoinHandle<()> {
        // A thread that has ended meanwhile has panicked, and said so.
        drop(self.go.send(orders.clone()));
        self.thread
    }
}

/// Tells the control thread that a core has ended, however it did.
struct Farewell {
    core: CoreId,
    orders: Orders,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let error = thread::panicking().then(|| "it has panicked".to_owned());
        self.orders.core_ended(self.core, error);
    }
}

/// Binds this thread to one processor.
fn pin(processor: u16) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(usize::from(processor));
    Ok(sched_setaffinity(None, &set)?)
}
