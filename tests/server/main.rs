//! The built binary from outside, under people who behave badly. Nothing here but processes, sockets and /proc: what a
//! session may be told is the business of the conformance suite, what is shown here is that nobody else pays.

mod abuse;
mod cores;
mod peer;
mod process;
mod slow;

use peer::{Message, Peer};
use process::Server;
use std::thread::JoinHandle;

/// A well-behaved subscriber that reads in the background until it has this many events, and returns their numbers.
fn reader(server: &Server, token: Option<&str>, topic: &str, events: usize) -> JoinHandle<Vec<u64>> {
    let mut peer = Peer::connect(server, token, None);
    peer.subscribe(0, topic);
    std::thread::spawn(move || {
        let mut numbers = Vec::with_capacity(events);
        while numbers.len() < events {
            match peer.next() {
                Message::Event(seq, number) => {
                    numbers.push(number);
                    assert_eq!(seq, numbers.len() as u64, "sequence numbers of the well-behaved subscriber");
                }
                end @ (Message::Close(..) | Message::Gone) => {
                    panic!("the well-behaved subscriber was cut off: {end:?}")
                }
                _ => {}
            }
        }
        numbers
    })
}
