//! The state machine behind a driver. Both speak the seam of [`step`](crate::shard::step).

#![forbid(unsafe_code)]

use crate::echo::Echo;
use crate::metrics::Counters;
use crate::shard::Shard;
use crate::shard::handoff::Batch;
use crate::shard::step::{ConnId, CoreId, Filled, Input, Instant, Output};

/// What a driver drives. There are two, so this is an enum and a match.
#[derive(Debug)]
pub enum Core {
    /// `seqcast serve`
    Shard(Box<Shard>),
    /// `seqcast echo`
    Echo(Box<Echo>),
}

macro_rules! forward {
    ($self:ident, $core:ident => $call:expr) => {
        match $self {
            Core::Shard($core) => $call,
            Core::Echo($core) => $call,
        }
    };
}

impl Core {
    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        forward!(self, core => core.handle(now, input))
    }

    /// The next thing to do; to be emptied after every input and every `sent`.
    pub fn poll(&mut self) -> Option<Output> {
        forward!(self, core => core.poll())
    }

    /// When a [`Input::Tick`] is due at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        forward!(self, core => core.next_deadline())
    }

    /// A connection with something to send; it leaves the list.
    pub fn next_dirty(&mut self) -> Option<ConnId> {
        forward!(self, core => core.next_dirty())
    }

    /// Memory that the sends of a chunk need is read ahead.
    pub fn look_ahead(&self) {
        if let Core::Shard(shard) = self {
            shard.look_ahead();
        }
    }

    /// Whether sends should be made before more input is taken.
    pub fn wants_flush(&self) -> bool {
        forward!(self, core => core.wants_flush())
    }

    /// Lays out the next bytes of a connection.
    pub fn fill(&mut self, conn: ConnId, buf: &mut [u8]) -> Filled {
        forward!(self, core => core.fill(conn, buf))
    }

    /// Follows every `fill`: bytes that the kernel took, and whether it would not take all.
    pub fn sent(&mut self, now: Instant, conn: ConnId, written: usize, refused: bool) {
        forward!(self, core => core.sent(now, conn, written, refused))
    }

    /// The next batch of handoffs for another core.
    pub fn take_batch(&mut self, to: CoreId) -> Option<Batch> {
        match self {
            Core::Shard(shard) => shard.take_batch(to),
            Core::Echo(_) => None,
        }
    }

    /// Whether there is a batch for another core.
    pub fn has_batch(&self, to: CoreId) -> bool {
        match self {
            Core::Shard(shard) => shard.has_batch(to),
            Core::Echo(_) => false,
        }
    }

    /// A batch that went to another core and was read there.
    pub fn return_batch(&mut self, to: CoreId, batch: Batch) {
        if let Core::Shard(shard) = self {
            shard.return_batch(to, batch);
        }
    }

    /// For what the driver counts itself.
    pub fn counters(&mut self) -> &mut Counters {
        forward!(self, core => core.counters())
    }
}
