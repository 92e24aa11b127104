//! Memory that sends are about to need, read ahead. A thousand connections do not stay in the caches beside what the
//! kernel keeps of them, so each `fill` would wait for memory several times, one read behind the other. Reads that do
//! not depend on each other wait together: before a chunk is filled, all that it needs is read once.

use std::hint::black_box;
use std::mem::offset_of;

use super::Shard;
use super::session::Conn;
use crate::limits::SEND_CHUNK;

/// So few are in the caches anyway, or there is nothing to wait for together.
const FEW: usize = 8;

/// What is read of a connection is in both of its halves.
const _: () = assert!(offset_of!(Conn, id) / 64 != offset_of!(Conn, session) / 64);

impl Shard {
    /// Reads what the next [`SEND_CHUNK`] calls of `next_dirty` and `fill` will read. Changes nothing.
    pub fn look_ahead(&self) {
        let next = self.list.first(SEND_CHUNK);
        if next.len() < FEW {
            return;
        }
        let (mut sessions, mut seen) = ([0; SEND_CHUNK], 0);
        for (session, &index) in sessions.iter_mut().zip(next) {
            if let Some(Some(conn)) = self.conns.get(index as usize) {
                *session = conn.session;
                seen ^= u64::from(conn.id.generation);
            }
        }
        let sessions = &sessions[..next.len()];
        for &index in sessions {
            if let Some(session) = self.sessions.get(index as usize) {
                seen ^= session.outbox.cursor() ^ u64::from(session.conn);
            }
        }
        for &index in sessions {
            seen ^= self.sessions.get(index as usize).map_or(0, |session| session.outbox.peek());
        }
        black_box(seen);
    }
}
