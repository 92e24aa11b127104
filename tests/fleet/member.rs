//! A process of clients. Each checks the numbers that its gate hands out.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use seqcast::client::backoff::BackoffOptions;
use seqcast::client::{Client, ClientOptions, Incoming};
use seqcast::schema::Schema;

use crate::publisher::{LAST, TOPIC};

/// How long a client waits for anything: longer than a restart takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two dials that only look whether somebody listens.
const DIAL_EACH: Duration = Duration::from_millis(10);

/// What clients saw, added up.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// Clients that got the last event.
    pub clients: u64,
    /// Times that a client was told that it missed something.
    pub told: u64,
    /// Numbers that did not come, and whose client was told so in between.
    pub lost: u64,
    /// Numbers that did not come, without a word.
    pub silent: u64,
    /// Events that came again, or behind a later one.
    pub again: u64,
    /// Connections that were refused.
    pub refused: u64,
}

impl Report {
    fn fields(&mut self) -> [&mut u64; 6] {
        let Report { clients, told, lost, silent, again, refused } = self;
        [clients, told, lost, silent, again, refused]
    }

    /// Adds another one to it.
    pub fn add(&mut self, other: &Report) {
        for (sum, more) in self.fields().into_iter().zip(other.clone().fields()) {
            *sum += *more;
        }
    }

    /// Reads what [`run`] has printed.
    pub fn read(text: &str) -> Report {
        let mut report = Report::default();
        let numbers = text.split_whitespace().map(|number| number.parse().unwrap());
        for (field, number) in report.fields().into_iter().zip(numbers) {
            *field = number;
        }
        report
    }
}

/// Runs clients until all of them have the last event, and prints their report.
pub fn run(address: &str, first: usize, clients: usize) {
    let is_over = Arc::new(AtomicBool::new(false));
    let refused = Arc::new(AtomicU64::new(0));
    let dialer = {
        let (address, is_over, refused) = (address.to_owned(), Arc::clone(&is_over), Arc::clone(&refused));
        thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                let error = TcpStream::connect(&address).err();
                let is_refused = error.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused);
                refused.fetch_add(u64::from(is_refused), Ordering::SeqCst);
                thread::sleep(DIAL_EACH);
            }
        })
    };
    let start = |n: usize| {
        let url = format!("ws://{address}/ws");
        let small = thread::Builder::new().stack_size(256 << 10);
        small.spawn(move || follow(&url, format!("tok-{n}"))).unwrap()
    };
    let threads: Vec<_> = (first..first + clients).map(start).collect();
    let mut sum = Report::default();
    for thread in threads {
        sum.add(&thread.join().unwrap());
    }
    is_over.store(true, Ordering::SeqCst);
    dialer.join().unwrap();
    sum.refused = refused.load(Ordering::SeqCst);
    let numbers = sum.fields().map(|number| number.to_string());
    println!("{}", numbers.join(" "));
}

fn follow(url: &str, token: String) -> Report {
    let schema = Schema::builtin();
    let mut options = ClientOptions { token: Some(token), topics: vec![TOPIC.into()], ..Default::default() };
    // They all want to be back soon.
    let soon = BackoffOptions { max: Duration::from_millis(500), ..BackoffOptions::default() };
    options.session.reconnect = Some(soon);
    let mut client = Client::connect(url, options).unwrap();
    let mut report = Report { clients: 1, ..Report::default() };
    let (mut last, mut was_told) = (None, false);
    // Numbers that were not there: where, and whether the client had been told.
    let mut holes: Vec<(u64, bool)> = Vec::new();
    loop {
        match client.next(Some(PATIENCE)).unwrap().expect("an event in time") {
            Incoming::Event { event, payload, .. } => {
                let event = schema.by_id(event).unwrap();
                let data = schema.decode_json(event, &payload).unwrap();
                let number = data["bidSize"].as_u64().unwrap();
                match last {
                    Some(last) if number <= last => report.again += 1,
                    Some(last) => holes.extend((last + 1..number).map(|missing| (missing, was_told))),
                    None => {}
                }
                (last, was_told) = (last.max(Some(number)), false);
                if let Some(unknown) = data["symbol"].as_str().and_then(|symbol| symbol.strip_prefix(LAST)) {
                    let unknown: Vec<u64> =
                        unknown.trim().split(',').filter_map(|number| number.parse().ok()).collect();
                    for (_, told) in holes.into_iter().filter(|(number, _)| !unknown.contains(number)) {
                        report.lost += u64::from(told);
                        report.silent += u64::from(!told);
                    }
                    client.close();
                    return report;
                }
            }
            Incoming::Missed { .. } => {
                report.told += 1;
                was_told = true;
            }
            _ => {}
        }
    }
}
