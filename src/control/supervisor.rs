//! What the process tells its supervisor, in the words of `sd_notify(3)`: it is ready, what it does, that it lives.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::timeout;

/// How long a message waits for room in the supervisor's queue.
const PATIENCE: Duration = Duration::from_secs(1);
/// What an end takes at most beyond the time that connections have.
const MARGIN: Duration = Duration::from_secs(5);

/// The supervisor that started this process and listens to it.
#[derive(Debug)]
pub struct Supervisor {
    address: SocketAddr,
    watchdog: Option<Duration>,
    /// That it hears nothing has been logged.
    is_complained: AtomicBool,
}

impl Supervisor {
    /// The one that `NOTIFY_SOCKET` names, if any, with the watchdog of `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub fn from_environment() -> Option<Supervisor> {
        let name = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty())?;
        let named = Supervisor::new(&name, sd_notify::watchdog_enabled());
        let complain =
            |e: &io::Error| tracing::warn!("NOTIFY_SOCKET={}: {e}; it is not used", name.display());
        named.inspect_err(complain).ok()
    }

    /// One that listens on a path, or on an abstract address that begins with `@`. `watchdog`: it wants to hear from
    /// this process at least so often.
    ///
    /// # Errors
    /// There can be no unix socket of this name.
    pub fn new(name: &OsStr, watchdog: Option<Duration>) -> io::Result<Supervisor> {
        let address = match name.as_bytes() {
            [b'@', hidden @ ..] => SocketAddr::from_abstract_name(hidden)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => return Err(io::Error::other("neither a path nor an abstract address")),
        };
        let watchdog = watchdog.filter(|period| !period.is_zero());
        Ok(Supervisor { address, watchdog, is_complained: AtomicBool::new(false) })
    }

    /// How often it wants to hear from this process.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// The start is over, or a reload.
    pub async fn ready(&self, status: &str) {
        self.say(&[NotifyState::Ready, NotifyState::Status(status)]).await;
    }

    /// A reload has begun; [`ready`](Self::ready) ends it.
    pub async fn reloading(&self) {
        let status = NotifyState::Status("reading the configuration again");
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.say(&[NotifyState::Reloading, now, status]).await,
            Err(e) => self.complain(&e),
        }
    }

    /// The end has begun, and connections have so much time.
    pub async fn stopping(&self, time: Duration) {
        let most = u32::try_from((time + MARGIN).as_micros()).unwrap_or(u32::MAX);
        let status = match time.is_zero() {
            true => "stopping at once".to_owned(),
            false => format!("draining; connections have {time:?}"),
        };
        let extend = NotifyState::ExtendTimeoutUsec(most);
        self.say(&[NotifyState::Stopping, extend, NotifyState::Status(&status)]).await;
    }

    /// Connections have ended, and the state is saved, which may take so long.
    pub async fn saving(&self, time: Duration) {
        let most = u32::try_from((time + MARGIN).as_micros()).unwrap_or(u32::MAX);
        self.say(&[NotifyState::ExtendTimeoutUsec(most), NotifyState::Status("saving the state")]).await;
    }

    /// One line that says how it goes.
    pub async fn status(&self, status: &str) {
        self.say(&[NotifyState::Status(status)]).await;
    }

    /// This process lives.
    pub async fn feed(&self) {
        self.say(&[NotifyState::Watchdog]).await;
    }

    /// Says it all in one message. If that cannot be, the server does without.
    async fn say(&self, states: &[NotifyState<'_>]) {
        let text: String = states.iter().map(|state| format!("{state}\n")).collect();
        match timeout(PATIENCE, self.send(text.as_bytes())).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => self.complain(&e),
            Err(_) => self.complain(&io::ErrorKind::TimedOut.into()),
        }
    }

    /// With a socket of its own for each message, so that a supervisor that begins anew is found again.
    async fn send(&self, text: &[u8]) -> io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect_addr(&self.address)?;
        tokio::net::UnixDatagram::from_std(socket)?.send(text).await?;
        Ok(())
    }

    fn complain(&self, error: &io::Error) {
        if !self.is_complained.swap(true, Ordering::Relaxed) {
            let at = &self.address;
            tracing::warn!("the supervisor at {at:?} does not hear: {error}; this is not said again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs on a runtime like that of the control thread, and says what arrived at `ear`.
    fn hear(ear: &UnixDatagram, said: impl Future<Output = ()>) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(said);
        let mut text = [0; 256];
        let length = ear.recv(&mut text).unwrap();
        String::from_utf8(text[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_path_and_an_abstract_address() {
        let name = format!("seqcast-supervisor-{}", std::process::id());
        let path = env::temp_dir().join(&name);
        let on_path = UnixDatagram::bind(&path).unwrap();
        let supervisor = Supervisor::new(path.as_os_str(), None).unwrap();
        assert_eq!(hear(&on_path, supervisor.ready("well")), "READY=1\nSTATUS=well\n");
        std::fs::remove_file(&path).unwrap();

        let hidden = SocketAddr::from_abstract_name(&name).unwrap();
        let hidden = UnixDatagram::bind_addr(&hidden).unwrap();
        let supervisor = Supervisor::new(OsStr::new(&format!("@{name}")), None).unwrap();
        assert_eq!(hear(&hidden, supervisor.feed()), "WATCHDOG=1\n");
        let stopping = hear(&hidden, supervisor.stopping(Duration::from_secs(100)));
        assert!(stopping.starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=105000000\nSTATUS="), "{stopping}");
    }

    #[test]
    fn names_that_are_no_unix_socket() {
        let long = format!("/{}", "x".repeat(200));
        for name in ["vsock:2:1", "relative", &long] {
            assert!(Supervisor::new(OsStr::new(name), None).is_err(), "{name}");
        }
    }

    #[test]
    fn one_that_is_gone_is_no_obstacle() {
        let supervisor = Supervisor::new(OsStr::new("/no/such/socket"), Some(Duration::ZERO)).unwrap();
        assert_eq!(supervisor.watchdog(), None, "no time at all is no watchdog");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(supervisor.status("anybody?"));
        assert!(supervisor.is_complained.into_inner());
    }
}
