//! Publishes numbers in order through the admin API, over restarts of the server.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use crate::supervisor::PATIENCE;

/// The topic of everything.
pub const TOPIC: &str = "t";
/// How the `symbol` of the last event begins; the numbers behind it may have been published or not.
pub const LAST: &str = "last";

/// A thread that publishes one number after another.
pub struct Publisher {
    admin: SocketAddr,
    pace: Duration,
    is_over: Arc<AtomicBool>,
    published: Arc<AtomicU64>,
    thread: JoinHandle<u64>,
}

impl Publisher {
    /// Publishes from 1 on, with this time between two events.
    pub fn start(admin: SocketAddr, pace: Duration) -> Publisher {
        let (is_over, published) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, counted) = (Arc::clone(&is_over), Arc::clone(&published));
        let thread = thread::spawn(move || publish_all(admin, pace, &over, &counted));
        Publisher { admin, pace, is_over, published, thread }
    }

    /// Lets it publish what takes so long. Events are counted, not time: a server that is gone makes it last longer.
    pub fn run_for(&self, time: Duration) {
        let events = time.as_millis() / self.pace.as_millis();
        let until = self.published.load(Ordering::SeqCst) + events as u64;
        while self.published.load(Ordering::SeqCst) < until {
            assert!(!self.thread.is_finished(), "the publisher has failed");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Publishes the last event. Returns its number.
    pub fn end(self) -> u64 {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }

    /// Connected members of the topic.
    pub fn members(&self) -> u64 {
        let answer = call(self.admin, "GET", "/v1/topics", "").ok();
        let topics = answer.map(|(_, body)| body["topics"].clone()).unwrap_or_default();
        let found = topics.as_array().into_iter().flatten().find(|topic| topic["topic"] == TOPIC);
        found.and_then(|topic| topic["members"].as_u64()).unwrap_or(0)
    }
}

fn publish_all(admin: SocketAddr, pace: Duration, is_over: &AtomicBool, published: &AtomicU64) -> u64 {
    let mut unknown: Vec<String> = Vec::new();
    let mut number = 0;
    loop {
        number += 1;
        let is_last = is_over.load(Ordering::SeqCst);
        let symbol = if is_last { format!("{LAST} {}", unknown.join(",")) } else { "x".into() };
        let data =
            json!({"symbol": symbol, "bid": 1.0, "ask": 2.0, "bidSize": number, "askSize": 1, "ts": 0});
        let body = json!({"event": "quote", "data": data, "to": {"topic": TOPIC}}).to_string();
        loop {
            match call(admin, "POST", "/v1/publish", &body) {
                Ok((200, _)) => break,
                // Draining: the next process takes it.
                Ok((503, _)) => thread::sleep(Duration::from_millis(20)),
                Ok((status, body)) => panic!("a publish was answered {status}: {body}"),
                // Nobody knows whether it was published.
                Err(_) if !is_last => {
                    unknown.push(number.to_string());
                    break;
                }
                Err(error) => panic!("the last event was not published: {error}"),
            }
        }
        published.fetch_add(1, Ordering::SeqCst);
        if is_last {
            println!("{number} events; answers that did not come: {unknown:?}");
            return number;
        }
        thread::sleep(pace);
    }
}

/// One request on a connection of its own.
fn call(admin: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    write!(stream, "{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")?;
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    answer.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("no status line"))?;
    let mut rest = String::new();
    answer.read_to_string(&mut rest)?;
    let body = rest.split_once("\r\n\r\n").map(|(_, body)| serde_json::from_str(body).unwrap_or_default());
    Ok((status, body.unwrap_or_default()))
}
