//! The kernel's floor: a server that does for each delivery one send(2) of ready bytes, and nothing else.

use anyhow::{Context, Result};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// How to serve.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Port of 127.0.0.1
    #[arg(long)]
    pub port: u16,
    /// One send for all that came together, instead of one for each event
    #[arg(long)]
    pub coalesce: bool,
}

const LISTENER: u64 = u64::MAX;

/// A connection: its socket, what of its request or of a frame is held, what it is for.
struct Peer {
    socket: TcpStream,
    held: Vec<u8>,
    publishes: bool,
}

/// Serves until it is killed. Subscribers connect to /sub, the publisher to /pub.
pub fn run(arguments: &Arguments) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, arguments.port))
        .with_context(|| format!("port {}", arguments.port))?;
    rustix::net::listen(&listener, 4096)?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut peers: Vec<Option<Peer>> = Vec::new();
    let mut subscribers: Vec<usize> = Vec::new();
    let mut events = Vec::with_capacity(512);
    loop {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let index = { event.data }.u64();
            if index == LISTENER {
                while let Ok((socket, _)) = listener.accept() {
                    socket.set_nodelay(true)?;
                    socket.set_nonblocking(true)?;
                    epoll::add(&epoll, &socket, EventData::new_u64(peers.len() as u64), EventFlags::IN)?;
                    peers.push(Some(Peer { socket, held: Vec::new(), publishes: false }));
                }
                continue;
            }
            let index = index as usize;
            let Some(peer) = &mut peers[index] else { continue };
            match peer.receive() {
                Received::Nothing => {}
                Received::Subscriber => subscribers.push(index),
                Received::Events(frames) => {
                    send(&mut peers, &subscribers, &frames, arguments.coalesce)?;
                }
                Received::End => {
                    peers[index] = None;
                    subscribers.retain(|subscriber| *subscriber != index);
                }
            }
        }
    }
}

enum Received {
    Nothing,
    Subscriber,
    /// Frames as they go out.
    Events(Vec<Vec<u8>>),
    End,
}

/// Each frame to each subscriber; or all frames to each in one piece.
fn send(peers: &mut [Option<Peer>], subscribers: &[usize], frames: &[Vec<u8>], coalesce: bool) -> Result<()> {
    let pieces = if coalesce { &[frames.concat()][..] } else { frames };
    for piece in pieces {
        for subscriber in subscribers {
            let Some(peer) = &mut peers[*subscriber] else { continue };
            let mut rest = piece.as_slice();
            while !rest.is_empty() {
                match peer.socket.write(rest) {
                    Ok(sent) => rest = &rest[sent..],
                    // Waits: a floor that dropped would be no floor.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                    Err(_) => break,
                }
            }
        }
    }
    Ok(())
}

impl Peer {
    fn receive(&mut self) -> Received {
        let mut buffer = [0; 65_536];
        let read = match self.socket.read(&mut buffer) {
            Ok(0) => return Received::End,
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::Nothing,
            Err(_) => return Received::End,
        };
        self.held.extend_from_slice(&buffer[..read]);
        if self.publishes {
            return Received::Events(self.frames());
        }
        let Ok(Some(request)) = seqcast::wire::handshake::parse(&self.held) else { return Received::Nothing };
        let Ok(upgrade) = request.upgrade() else { return Received::End };
        let mut answer = Vec::new();
        seqcast::wire::handshake::write_accept(&mut answer, &upgrade, None);
        self.publishes = self.held.starts_with(b"GET /pub");
        let subscribes = self.held.starts_with(b"GET /sub");
        self.held.clear();
        match self.socket.write_all(&answer) {
            Ok(()) if subscribes => Received::Subscriber,
            Ok(()) => Received::Nothing,
            Err(_) => Received::End,
        }
    }

    /// Whole frames of the publisher, unmasked and framed again.
    fn frames(&mut self) -> Vec<Vec<u8>> {
        let (mut out, mut at) = (Vec::new(), 0);
        // A client's frame has four bytes of mask more.
        while let Some(length) = seqcast::wire::frame::frame_len(&self.held[at..]).map(|length| length + 4) {
            if self.held.len() < at + length {
                break;
            }
            let frame = &self.held[at..at + length];
            let header = match frame[1] & 127 {
                126 => 4,
                127 => 10,
                _ => 2,
            };
            let mut payload = frame[header + 4..].to_vec();
            payload.iter_mut().enumerate().for_each(|(i, byte)| *byte ^= frame[header + (i & 3)]);
            let mut framed = Vec::new();
            seqcast::wire::frame::push_frame(&mut framed, frame[0] & 15, &payload);
            out.push(framed);
            at += length;
        }
        self.held.drain(..at);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_go_out_as_they_came_without_their_mask() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let mut peer = Peer { socket, held: Vec::new(), publishes: true };
        for payload in [vec![7; 3], vec![8; 300]] {
            seqcast::wire::frame::push_masked_frame(&mut peer.held, 2, [1, 2, 3, 4], &payload);
        }
        let whole = peer.held.len();
        peer.held.push(0x82);
        let frames = peer.frames();
        let headers: Vec<&[u8]> = frames.iter().map(|frame| &frame[..2]).collect();
        assert_eq!((headers, peer.held.len()), (vec![&[0x82, 3][..], &[0x82, 126][..]], 1), "{whole}");
        assert!(frames[0].ends_with(&[7; 3]) && frames[1].ends_with(&[8; 300]));
    }
}
