//! The control lane of a connection: whole frames that go out first at every frame boundary, in order, never dropped.

use std::ops::Range;

use crate::wire::frame;

/// Bytes waiting, and how far they were written.
#[derive(Debug, Default)]
pub struct Lane {
    bytes: Vec<u8>,
    sent: usize,
    /// The latest WebSocket pong, when nothing of it was written: a newer one takes its place (RFC 6455 5.5.3).
    pong: Option<Range<usize>>,
}

impl Lane {
    /// A lane over an empty buffer, which it reuses.
    pub fn over(bytes: Vec<u8>) -> Lane {
        assert!(bytes.is_empty(), "lane buffers are given back empty");
        Lane { bytes, sent: 0, pong: None }
    }

    /// The buffer, for another lane.
    pub fn into_buffer(mut self) -> Vec<u8> {
        self.bytes.clear();
        self.bytes
    }

    /// Bytes not yet written.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// The bytes to write.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Where to append.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a pong, or puts it in the place of one that nothing was written of.
    pub fn pong(&mut self, payload: &[u8]) {
        if let Some(old) = self.pong.take().filter(|old| old.start >= self.sent) {
            self.bytes.drain(old);
        }
        let start = self.bytes.len();
        frame::push_frame(&mut self.bytes, frame::PONG, payload);
        self.pong = Some(start..self.bytes.len());
    }

    /// So many bytes were written.
    pub fn advance(&mut self, written: usize) {
        self.sent += written;
        assert!(self.sent <= self.bytes.len(), "more was written than there is");
        if self.pong.as_ref().is_some_and(|pong| pong.start < self.sent) {
            self.pong = None;
        }
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent > 4096 {
            self.bytes.drain(..self.sent);
            if let Some(pong) = &mut self.pong {
                *pong = pong.start - self.sent..pong.end - self.sent;
            }
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pongs_collapse_to_the_latest_unless_one_has_begun() {
        let mut lane = Lane::default();
        lane.pong(b"one");
        lane.pong(b"three");
        assert_eq!(lane.unsent(), [&[0x8a, 5][..], b"three"].concat());
        lane.advance(1);
        lane.pong(b"4");
        lane.pong(b"five");
        assert_eq!(lane.unsent(), [&[5][..], b"three", &[0x8a, 4], b"five"].concat());
    }

    #[test]
    fn a_long_lane_forgets_what_was_written() {
        let mut lane = Lane::default();
        lane.tail().extend_from_slice(&[7; 5000]);
        lane.pong(b"x");
        lane.advance(4500);
        assert_eq!((lane.len(), lane.bytes.len()), (503, 503));
        lane.pong(b"y");
        assert_eq!(lane.unsent()[500..], [0x8a, 1, b'y']);
        lane.advance(503);
        assert_eq!(lane.len(), 0);
    }
}
