//! A WebSocket echo server as a pure state machine: what a [`Shard`](crate::shard) is to the service, this is to
//! `seqcast echo`. It speaks the same seam, so driver and wire layer can be tested and measured without the rest.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::limits::{CLOSE_SECONDS, COPIED_EVENT_BYTES, SEND_BYTES};
use crate::metrics::Counters;
use crate::shard::step::{ConnId, Filled, Input, Instant, Output};
use crate::wire::frame::{self, Bounds, Decoder, Item, Role};
use crate::wire::handshake::{self, Refusal};

/// Longest message, bytes.
const MESSAGE_BYTES: u64 = 16 << 20;
/// Most frames of one, so that conformance suites may cut large messages very small.
const MESSAGE_FRAMES: u32 = 1 << 20;
/// Bytes that wait for a connection past which nothing more is received from it, until half of them are gone.
const UNSENT_BYTES: usize = 1 << 20;
/// How long a handshake, or the sending of a close frame, may take.
const PATIENCE: Duration = Duration::from_secs(CLOSE_SECONDS);

const BOUNDS: Bounds = Bounds { message_bytes: MESSAGE_BYTES, message_frames: MESSAGE_FRAMES };

/// All connections of one core.
#[derive(Debug, Default)]
pub struct Echo {
    /// By the driver's index.
    connections: Vec<Option<Box<Connection>>>,
    dirty: VecDeque<ConnId>,
    outputs: VecDeque<Output>,
    /// Ends of patience, in order: it is the same for everyone.
    deadlines: VecDeque<(Instant, ConnId)>,
    /// Connections that take bytes and have more than half of [`UNSENT_BYTES`] waiting.
    crowded: usize,
    counters: Counters,
}

#[derive(Debug)]
struct Connection {
    generation: u32,
    stage: Stage,
    outbox: Outbox,
    is_dirty: bool,
    /// The kernel has refused bytes.
    is_blocked: bool,
    /// We have asked the driver to receive nothing.
    is_paused: bool,
    /// Counted in [`Echo::crowded`].
    is_crowded: bool,
}

#[derive(Debug)]
enum Stage {
    /// The request head so far.
    Head(Vec<u8>),
    Open(Decoder),
    /// Nothing is read any more; it ends when the outbox is empty.
    Ending,
}

impl Echo {
    /// No connections.
    pub fn new() -> Echo {
        Echo::default()
    }

    /// Takes one input; [`poll`](Self::poll) afterwards until it is empty.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        self.give_up_on_the_late(now);
        match input {
            Input::Opened { conn, .. } => self.on_opened(now, conn),
            Input::Received { conn, bytes } => self.on_received(now, conn, bytes),
            Input::Lost { conn, .. } => self.forget(conn),
            Input::Writable { conn } => {
                if let Some(connection) = self.connection(conn) {
                    connection.is_blocked = false;
                    self.settle(conn);
                }
            }
            Input::Tick => {}
            other => unreachable!("an echo server asks for nothing that is answered by {other:?}"),
        }
    }

    /// The next thing that the driver is to do.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Tick`] is due at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|&(when, _)| when)
    }

    /// A connection with something to send; it leaves the list.
    pub fn next_dirty(&mut self) -> Option<ConnId> {
        while let Some(conn) = self.dirty.pop_front() {
            if let Some(connection) = self.connection(conn) {
                connection.is_dirty = false;
                return Some(conn);
            }
        }
        None
    }

    /// Whether sends should be made before more input is taken.
    pub fn wants_flush(&self) -> bool {
        self.crowded > 0
    }

    /// Lays out the next bytes of a connection.
    pub fn fill(&mut self, conn: ConnId, buf: &mut [u8]) -> Filled {
        self.connection(conn).map_or(Filled::default(), |connection| connection.outbox.fill(buf))
    }

    /// Tells how many of the bytes laid out the kernel took; `refused`: it would not take all.
    pub fn sent(&mut self, _now: Instant, conn: ConnId, written: usize, refused: bool) {
        if let Some(connection) = self.connection(conn) {
            connection.outbox.advance(written);
            connection.is_blocked = refused;
            self.settle(conn);
        }
    }

    /// The driver's own counts go here.
    pub fn counters(&mut self) -> &mut Counters {
        &mut self.counters
    }

    fn connection(&mut self, conn: ConnId) -> Option<&mut Connection> {
        let slot = self.connections.get_mut(conn.index as usize)?.as_deref_mut();
        slot.filter(|connection| connection.generation == conn.generation)
    }

    fn on_opened(&mut self, now: Instant, conn: ConnId) {
        let index = conn.index as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        assert!(self.connections[index].is_none(), "the driver numbers an open connection twice");
        self.connections[index] = Some(Box::new(Connection {
            generation: conn.generation,
            stage: Stage::Head(Vec::new()),
            outbox: Outbox::default(),
            is_dirty: false,
            is_blocked: false,
            is_paused: false,
            is_crowded: false,
        }));
        self.counters.accepted += 1;
        self.deadlines.push_back((now + PATIENCE, conn));
    }

    fn on_received(&mut self, now: Instant, conn: ConnId, bytes: &mut [u8]) {
        let Some(connection) = self.connection(conn) else { return };
        let was_ending = connection.is_ending();
        match &connection.stage {
            Stage::Head(_) => self.read_head(conn, bytes),
            Stage::Open(_) => connection.read_frames(bytes),
            Stage::Ending => {}
        }
        if !was_ending && self.connection(conn).is_some_and(|connection| connection.is_ending()) {
            self.deadlines.push_back((now + PATIENCE, conn));
        }
        self.settle(conn);
    }

    fn read_head(&mut self, conn: ConnId, bytes: &[u8]) {
        let connection = self.connection(conn).expect("looked up by the caller");
        let Stage::Head(head) = &mut connection.stage else { return };
        head.extend_from_slice(bytes);
        let answer = handshake::parse(head).and_then(|request| match request {
            Some(request) => Ok(Some((request.upgrade()?, request.head_bytes))),
            None => Ok(None),
        });
        match answer {
            Ok(None) => {}
            Ok(Some((upgrade, head_bytes))) => {
                let mut rest = head.split_off(head_bytes);
                connection.outbox.copied(|out| handshake::write_accept(out, &upgrade, None));
                connection.stage = Stage::Open(Decoder::new(Role::Server));
                connection.read_frames(&mut rest);
                self.counters.upgraded += 1;
                self.outputs.push_back(Output::Established { conn });
            }
            Err(refusal) => {
                connection.refuse(&refusal);
                self.counters.refused += 1;
            }
        }
    }

    /// Brings lists, counts and requests to the driver into line with the state of a connection.
    fn settle(&mut self, conn: ConnId) {
        let Some(connection) = self.connection(conn) else { return };
        let unsent = connection.outbox.unsent;
        if unsent == 0 && connection.is_ending() {
            self.outputs.push_back(Output::Finish { conn, acknowledged: None });
            return self.forget(conn);
        }
        let crowded = !connection.is_blocked && unsent > UNSENT_BYTES / 2;
        let was_crowded = std::mem::replace(&mut connection.is_crowded, crowded);
        let turns_dirty = unsent > 0 && !connection.is_blocked && !connection.is_dirty;
        connection.is_dirty |= turns_dirty;
        let pause = match connection.is_paused {
            false => unsent > UNSENT_BYTES,
            true => unsent > UNSENT_BYTES / 2,
        };
        let was_paused = std::mem::replace(&mut connection.is_paused, pause);
        self.crowded = self.crowded + usize::from(crowded) - usize::from(was_crowded);
        if turns_dirty {
            self.dirty.push_back(conn);
        }
        match (was_paused, pause) {
            (false, true) => self.outputs.push_back(Output::Pause { conn }),
            (true, false) => self.outputs.push_back(Output::Resume { conn }),
            _ => {}
        }
    }

    fn forget(&mut self, conn: ConnId) {
        if self.connection(conn).is_some() {
            let connection = self.connections[conn.index as usize].take();
            self.crowded -= usize::from(connection.is_some_and(|connection| connection.is_crowded));
        }
    }

    fn give_up_on_the_late(&mut self, now: Instant) {
        while let Some(&(_, conn)) = self.deadlines.front().filter(|(when, _)| *when <= now) {
            self.deadlines.pop_front();
            if self.connection(conn).is_some_and(|connection| !matches!(connection.stage, Stage::Open(_))) {
                self.outputs.push_back(Output::Abort { conn, acknowledged: None });
                self.forget(conn);
            }
        }
    }
}

impl Connection {
    fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Ending)
    }

    fn refuse(&mut self, refusal: &Refusal) {
        self.outbox.copied(|out| refusal.write(out));
        self.stage = Stage::Ending;
    }

    fn read_frames(&mut self, mut input: &mut [u8]) {
        let Stage::Open(decoder) = &mut self.stage else { return };
        loop {
            match decoder.next(&mut input, &BOUNDS) {
                Ok(None) => return,
                Ok(Some(Item::Message { text, payload })) => {
                    self.outbox.frame(if text { frame::TEXT } else { frame::BINARY }, payload);
                }
                Ok(Some(Item::Ping(payload))) => self.outbox.frame(frame::PONG, payload),
                Ok(Some(Item::Pong(_))) => {}
                Ok(Some(Item::Close { code, .. })) => {
                    self.outbox.copied(|out| frame::push_close(out, code, ""));
                    break;
                }
                Err(violation) => {
                    self.outbox.copied(|out| frame::push_close(out, Some(violation.code), violation.reason));
                    break;
                }
            }
        }
        self.stage = Stage::Ending;
    }
}

/// What a connection still has to be sent.
#[derive(Debug, Default)]
struct Outbox {
    pieces: VecDeque<Piece>,
    /// Bytes of all pieces.
    unsent: usize,
}

#[derive(Debug)]
enum Piece {
    /// Small frames and headers, of which so many bytes are sent.
    Copied(Vec<u8>, usize),
    /// A large payload, sent from where it lies.
    Body(Bytes),
}

impl Outbox {
    /// Appends what `write` appends to the bytes that will be copied.
    fn copied(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if !matches!(self.pieces.back(), Some(Piece::Copied(..))) {
            self.pieces.push_back(Piece::Copied(Vec::new(), 0));
        }
        if let Some(Piece::Copied(bytes, _)) = self.pieces.back_mut() {
            let before = bytes.len();
            write(bytes);
            self.unsent += bytes.len() - before;
        }
    }

    fn frame(&mut self, opcode: u8, payload: &[u8]) {
        if payload.len() <= COPIED_EVENT_BYTES {
            return self.copied(|out| frame::push_frame(out, opcode, payload));
        }
        let mut header = [0; 10];
        let length = frame::write_header(&mut header, opcode, payload.len());
        self.copied(|out| out.extend_from_slice(&header[..length]));
        self.pieces.push_back(Piece::Body(Bytes::copy_from_slice(payload)));
        self.unsent += payload.len();
    }

    fn fill(&self, buf: &mut [u8]) -> Filled {
        let mut bytes = 0;
        for piece in &self.pieces {
            match piece {
                Piece::Copied(copied, sent) => {
                    let count = (copied.len() - sent).min(buf.len() - bytes);
                    buf[bytes..bytes + count].copy_from_slice(&copied[*sent..*sent + count]);
                    bytes += count;
                    if sent + count < copied.len() {
                        break;
                    }
                }
                Piece::Body(body) => return Filled { bytes, body: Some(body.clone()) },
            }
        }
        Filled { bytes, body: None }
    }

    fn advance(&mut self, written: usize) {
        assert!(written <= self.unsent, "more was written than there was");
        self.unsent -= written;
        let mut left = written;
        loop {
            let is_last = self.pieces.len() == 1;
            let Some(piece) = self.pieces.front_mut() else { return };
            let length = match piece {
                Piece::Copied(bytes, sent) => bytes.len() - *sent,
                Piece::Body(body) => body.len(),
            };
            if left < length {
                match piece {
                    Piece::Copied(_, sent) => *sent += left,
                    Piece::Body(body) => drop(body.split_to(left)),
                }
                return;
            }
            left -= length;
            // The last buffer is kept for the next frame, unless it has grown large.
            match piece {
                Piece::Copied(bytes, sent) if is_last && bytes.capacity() <= SEND_BYTES => {
                    bytes.clear();
                    *sent = 0;
                    return;
                }
                _ => drop(self.pieces.pop_front()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::step::{Loss, Peer};

    const CONN: ConnId = ConnId { index: 0, generation: 7 };
    const NOW: Instant = Instant(0);
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

    fn receive(echo: &mut Echo, bytes: &[u8]) {
        echo.handle(NOW, Input::Received { conn: CONN, bytes: &mut bytes.to_vec() });
    }

    /// Everything that is due, taken in sends of at most `most` bytes of which the kernel takes one byte less.
    fn drain(echo: &mut Echo, most: usize) -> Vec<u8> {
        let (mut all, mut buf) = (Vec::new(), vec![0; most]);
        while let Some(conn) = echo.next_dirty() {
            let Filled { bytes, body } = echo.fill(conn, &mut buf);
            let mut out = buf[..bytes].to_vec();
            out.extend_from_slice(body.as_deref().unwrap_or_default());
            let taken = if out.len() > 1 { out.len() - 1 } else { out.len() };
            all.extend_from_slice(&out[..taken]);
            echo.sent(NOW, conn, taken, false);
        }
        all
    }

    fn opened() -> Echo {
        let mut echo = Echo::new();
        echo.handle(NOW, Input::Opened { conn: CONN, peer: Peer::Unix, is_shared: false });
        receive(&mut echo, REQUEST);
        assert!(matches!(echo.poll(), Some(Output::Established { conn: CONN })));
        let answer = drain(&mut echo, 64);
        assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
        echo
    }

    fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frame::push_masked_frame(&mut out, opcode, [1, 2, 3, 4], payload);
        out
    }

    fn plain(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frame::push_frame(&mut out, opcode, payload);
        out
    }

    #[test]
    fn messages_come_back_in_order_however_they_are_cut() {
        let large = vec![9; 3 * COPIED_EVENT_BYTES];
        let (mut sent, mut expected) = (Vec::new(), Vec::new());
        for (opcode, payload) in
            [(frame::TEXT, &b"one"[..]), (frame::BINARY, &large), (frame::BINARY, b"three")]
        {
            sent.extend(masked(opcode, payload));
            expected.extend(plain(opcode, payload));
        }
        sent.extend(masked(frame::PING, b"p"));
        expected.extend(plain(frame::PONG, b"p"));
        for piece in [1, 7, 1000, sent.len()] {
            let mut echo = opened();
            sent.chunks(piece).for_each(|chunk| receive(&mut echo, chunk));
            assert_eq!(drain(&mut echo, 100), expected);
        }
    }

    #[test]
    fn a_close_is_answered_and_finishes_when_it_is_written() {
        let mut echo = opened();
        receive(&mut echo, &masked(frame::CLOSE, &1000u16.to_be_bytes()));
        assert!(echo.poll().is_none(), "the answer is not written yet");
        assert_eq!(drain(&mut echo, 64), plain(frame::CLOSE, &1000u16.to_be_bytes()));
        assert!(matches!(echo.poll(), Some(Output::Finish { conn: CONN, .. })));
        receive(&mut echo, b"too late");
        assert!(echo.poll().is_none() && echo.next_dirty().is_none());
    }

    #[test]
    fn a_reader_that_does_not_read_is_not_read_either() {
        let mut echo = opened();
        receive(&mut echo, &masked(frame::BINARY, &vec![0; UNSENT_BYTES]));
        assert!(matches!(echo.poll(), Some(Output::Pause { conn: CONN })));
        assert!(echo.wants_flush());
        assert_eq!(echo.next_dirty(), Some(CONN));
        echo.sent(NOW, CONN, 10, true);
        assert!(!echo.wants_flush(), "flushing does not help while the kernel refuses");
        assert_eq!(echo.next_dirty(), None);
        echo.handle(NOW, Input::Writable { conn: CONN });
        assert!(!drain(&mut echo, SEND_BYTES).is_empty());
        assert!(matches!(echo.poll(), Some(Output::Resume { conn: CONN })));
    }

    #[test]
    fn a_handshake_that_stalls_is_aborted_and_an_open_connection_is_not() {
        let mut echo = opened();
        let other = ConnId { index: 3, generation: 0 };
        echo.handle(NOW, Input::Opened { conn: other, peer: Peer::Unix, is_shared: false });
        echo.handle(NOW + PATIENCE, Input::Tick);
        assert!(matches!(echo.poll(), Some(Output::Abort { conn, .. }) if conn == other));
        assert!(echo.poll().is_none() && echo.next_deadline().is_none());
        echo.handle(NOW, Input::Lost { conn: CONN, unacked: None, loss: Loss::Eof });
        assert!(echo.connections.iter().all(Option::is_none));
    }

    #[test]
    fn a_violation_is_told_and_ends_the_connection() {
        let mut echo = opened();
        receive(&mut echo, &[0x83, 0x80, 0, 0, 0, 0]);
        let close = drain(&mut echo, 64);
        assert_eq!((close[0], &close[2..4]), (0x88, &1002u16.to_be_bytes()[..]));
        assert!(matches!(echo.poll(), Some(Output::Finish { .. })));
    }
}
