//! SIGHUP: what a running server takes from its changed configuration, and what it says about the rest.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use seqcast::client::{Client, ClientError, ClientOptions};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(20);

struct Server {
    child: Child,
    folder: PathBuf,
    listen: String,
}

impl Server {
    fn start(config: &str) -> Server {
        let folder = std::env::temp_dir().join(format!("seqcast-reload-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let log = fs::File::create(folder.join("log")).unwrap();
        fs::write(folder.join("seqcast.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_seqcast"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "", "--config", "seqcast.toml"]);
        command.args(["--ready-file", "ready"]).current_dir(&folder).stdin(Stdio::null());
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let mut server = Server { child, folder, listen: String::new() };
        let ready = server.folder.join("ready");
        server.wait_for("listening");
        let ready = (0..2000).find_map(|_| {
            sleep(Duration::from_millis(10));
            serde_json::from_slice::<Value>(&fs::read(&ready).ok()?).ok()
        });
        server.listen = ready.unwrap()["listen"][0].as_str().unwrap().into();
        server
    }

    /// Changes the file, sends SIGHUP, and waits until the log has this.
    fn reload(&self, config: &str, log: &str) {
        fs::write(self.folder.join("seqcast.toml"), config).unwrap();
        kill_process(Pid::from_child(&self.child), Signal::HUP).unwrap();
        self.wait_for(log);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap()
    }

    fn wait_for(&self, text: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < end, "no {text:?} in the log:\n{}", self.log());
            sleep(Duration::from_millis(5));
        }
    }

    fn connect(&self, token: &str) -> Result<Client, ClientError> {
        let options = ClientOptions { token: Some(token.into()), ..ClientOptions::default() };
        Client::connect(&format!("ws://{}/ws", self.listen), options)
    }

    fn lets_in(&self, token: &str) -> bool {
        match self.connect(token) {
            Ok(_) => true,
            Err(ClientError::Refused { status: 401, .. }) => false,
            Err(other) => panic!("{other}"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(fs::remove_dir_all(&self.folder));
    }
}

#[test]
fn a_running_server_takes_tokens_rates_and_log_levels() {
    let mut server = Server::start("[auth]\ntoken = \"first\"\n");
    assert_eq!((server.lets_in("first"), server.lets_in("second")), (true, false));
    let _stays = server.connect("first").unwrap();

    let second = "[auth]\ntoken = \"second\"\n[server]\npath = \"/other\"\n\
                  [limits]\nrate = { messages_per_second = 5 }\n";
    server.reload(second, "reload: took");
    assert!(server.log().contains("server.path has changed; it needs a restart"), "{}", server.log());
    let took = server.log().lines().find(|line| line.contains("reload: took")).unwrap().to_owned();
    assert!(took.contains("auth.token") && took.contains("limits.rate"), "{took}");
    assert_eq!((server.lets_in("first"), server.lets_in("second")), (false, true));

    server.reload("[auth]\ntoken = \"third\"\nno_such_key = 1\n", "everything stays as it was");
    assert!(server.log().contains("seqcast.toml:3"), "{}", server.log());
    assert_eq!((server.lets_in("second"), server.lets_in("third")), (true, false));

    server.reload(second, "reload: nothing has changed");
    server.reload(&format!("{second}[log]\nformat = \"json\"\n"), "\"message\":\"reload: took log.format\"");

    kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
    assert!(server.child.wait().unwrap().success());
}
