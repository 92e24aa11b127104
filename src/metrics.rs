//! Counters: plain integers of one core, their names and what they mean.
//!
//! How long the turns of a core take is a [`Histogram`] beside them.

#![forbid(unsafe_code)]

macro_rules! counters {
    ($($(#[doc = $help:literal])+ $field:ident $name:literal;)*) => {
        /// Counters of one core; they only grow.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $help])+ pub $field: u64,)*
            /// How long turns took, from the clock at their beginning to the moment before they submit or wait.
            pub turns: Histogram,
        }

        impl Counters {
            /// Every counter: its name in `/v1/stats`, its help text, its value.
            pub fn rows(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$(($name, concat!($($help),+).trim_ascii(), self.$field),)*]
            }

            /// Adds the counters of another core.
            pub fn add(&mut self, other: &Counters) {
                $(self.$field += other.$field;)*
                self.turns.add(&other.turns);
            }
        }
    };
}

counters! {
    /// Publishes accepted, to whatever target.
    published "published";
    /// Frames handed to sockets: live events, history, snapshots, controls; replays are counted apart.
    sent "sent";
    /// Bytes of those frames, envelope and payload.
    bytes_sent "bytesSent";
    /// Events dropped by policy drop-newest.
    dropped_newest "droppedNewest";
    /// Events dropped by policy drop-oldest.
    dropped_oldest "droppedOldest";
    /// Events that a parked session could not keep.
    dropped_parked "droppedParked";
    /// Unsent events that left under a byte budget.
    dropped_evicted "droppedEvicted";
    /// Connections closed by policy disconnect.
    disconnected_slow "disconnectedSlow";
    /// App events of clients accepted by the allow list.
    inbound "inbound";
    /// Messages of clients with a control id.
    inbound_control "inboundControl";
    /// Messages of clients that broke the protocol.
    protocol_errors "protocolErrors";
    /// App events of clients whose payload does not verify.
    decode_errors "decodeErrors";
    /// Messages shed by the rate limit.
    rate_limited "rateLimited";
    /// Joins refused: not allowed, name too long, too many.
    rejected_joins "rejectedJoins";
    /// Sequence numbers given out.
    stamped_seq "stampedSeq";
    /// Resume requests answered, hellos with a position included.
    resumes_served "resumesServed";
    /// Frames sent again by those.
    frames_replayed "framesReplayed";
    /// Bytes of frames sent again.
    bytes_replayed "bytesReplayed";
    /// Resume requests answered with ok = false.
    resume_misses "resumeMisses";
    /// Events written from queues for the first time; `sent` counts other frames too.
    events_sent "eventsSent";
    /// Waiting events that nobody will get: their session ended, a new process began anew, or the client has them.
    send_discarded "sendDiscarded";
    /// Dropped events that came in line again when their session was taken up.
    events_requeued "eventsRequeued";
    /// Connections that ended with begun or control frames unwritten.
    closed_unflushed "closedUnflushed";
    /// Sessions parked when their connection ended.
    parked "parked";
    /// Parked sessions taken up by a new connection.
    adopted "adopted";
    /// Parked sessions that ended: their time or their place was over.
    parked_expired "parkedExpired";
    /// Sessions started again at 1 because a new process came with their id.
    sessions_restarted "sessionsRestarted";
    /// Parked sessions taken over from a process before this one.
    sessions_restored "sessionsRestored";
    /// Connections that took a session over from a live one.
    takeovers "takeovers";
    /// Connections accepted.
    accepted "accepted";
    /// Upgrades answered 101.
    upgraded "upgraded";
    /// Requests answered with something else than 101.
    refused "refused";
    /// Handshakes that did not end in time.
    handshake_timeouts "handshakeTimeouts";
    /// Connections ended by the peer without a close frame.
    closed_lost "closedLost";
    /// Connections closed by the client's close frame.
    closed_by_client "closedByClient";
    /// Connections closed by the operator.
    closed_by_operator "closedByOperator";
    /// Connections closed for breaking the protocol.
    closed_protocol "closedProtocol";
    /// Connections closed by the idle timeout.
    closed_idle "closedIdle";
    /// Connections closed by the rate limit.
    closed_rate "closedRate";
    /// Connections closed because another took their session over.
    closed_replaced "closedReplaced";
    /// Connections closed because unfinished messages took too much memory or time.
    closed_inbound_bytes "closedInboundBytes";
    /// Connections closed by a drain.
    closed_drain "closedDrain";
    /// Completions of the kernel for operations that no longer exist.
    stale_completions "staleCompletions";
    /// Times that accepting paused for want of descriptors or memory.
    accept_pauses "acceptPauses";
    /// Times that a connection paused because another core took no more of what it published.
    mesh_pauses "meshPauses";
    /// Handoffs taken from other cores.
    handoffs "handoffs";
    /// Connections handed to another core before their upgrade.
    transferred "transferred";
    /// Log lines of cores that were dropped because the control thread was behind.
    log_lost "logLost";
    /// Turns that took 25 ms or more.
    stalls "stalls";
}

/// Upper bounds of the buckets of a [`Histogram`], microseconds; a time on a bound is in its bucket. One more bucket
/// takes what is above the last.
pub const BOUNDS_MICROS: [u64; 10] = [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000];

/// How often something took how long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Times within each bound and above the one before, and last those above all bounds.
    counts: [u64; BOUNDS_MICROS.len() + 1],
    sum_nanos: u64,
    longest_nanos: u64,
}

impl Histogram {
    /// Counts one time, nanoseconds.
    pub fn record(&mut self, nanos: u64) {
        let bucket = BOUNDS_MICROS.iter().position(|bound| nanos <= bound * 1_000);
        self.counts[bucket.unwrap_or(BOUNDS_MICROS.len())] += 1;
        self.sum_nanos = self.sum_nanos.saturating_add(nanos);
        self.longest_nanos = self.longest_nanos.max(nanos);
    }

    /// Each bucket: its upper bound in microseconds, none for the last, and how many times are in it alone.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        BOUNDS_MICROS.into_iter().map(Some).chain([None]).zip(self.counts)
    }

    /// Times counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All times together, nanoseconds.
    pub fn sum_nanos(&self) -> u64 {
        self.sum_nanos
    }

    /// The longest time, nanoseconds; 0 before the first.
    pub fn longest_nanos(&self) -> u64 {
        self.longest_nanos
    }

    /// Adds the times of another core.
    pub fn add(&mut self, other: &Histogram) {
        for (count, others) in self.counts.iter_mut().zip(other.counts) {
            *count += others;
        }
        self.sum_nanos = self.sum_nanos.saturating_add(other.sum_nanos);
        self.longest_nanos = self.longest_nanos.max(other.longest_nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_on_a_bound_is_in_its_bucket() {
        let mut histogram = Histogram::default();
        for nanos in [0, 50_000, 50_001, 100_000_000, 100_000_001, u64::MAX] {
            histogram.record(nanos);
        }
        let counted: Vec<_> = histogram.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(Some(50), 2), (Some(100), 1), (Some(100_000), 1), (None, 2)]);
        assert_eq!((histogram.count(), histogram.sum_nanos()), (6, u64::MAX));
        assert_eq!(histogram.longest_nanos(), u64::MAX);
    }

    #[test]
    fn cores_add_up_and_the_longest_turn_is_the_longest_of_all() {
        let (mut one, mut other) = (Counters { sent: 1, ..Counters::default() }, Counters::default());
        one.turns.record(60_000);
        other.turns.record(70_000);
        other.turns.record(10);
        one.add(&other);
        assert_eq!((one.sent, one.turns.count(), one.turns.sum_nanos()), (1, 3, 130_010));
        assert_eq!(one.turns.longest_nanos(), 70_000);
    }
}
