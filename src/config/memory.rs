//! The memory that a configuration can come to, as a sum of its limits.

use super::Config;
use crate::limits::{
    BATCH_BYTES, CONNECTION_BYTES, CONTROL_LANE_BYTES, CORE_BYTES, IDLE_NAME_BYTES, IDLE_TOPICS,
    KERNEL_CONNECTION_BYTES, KNOWN_BYTES, LANE_BYTES, PARKED_BYTES, ROOM_BYTES, SPARE_BATCHES, STAGED_BYTES,
    TRACE_ROW_BYTES, TRAVELLING_BATCHES, UNFINISHED_BYTES, UNFINISHED_REPLAYS,
};

/// One term of [`memory_sum`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryTerm {
    /// What it is for.
    pub label: &'static str,
    /// At most.
    pub bytes: u64,
    /// Reached only when every peer stops reading, or leaves everything unfinished, at the same time.
    pub stalled: bool,
}

/// The most memory that a configuration can come to on so many cores, term by term; the kernel's part, which a
/// cgroup counts too, is included.
pub fn memory_sum(config: &Config, cores: u64) -> Vec<MemoryTerm> {
    let connections = u64::from(config.server.max_connections);
    let parked = if config.resume.enabled { cores * u64::from(config.resume.max_parked) } else { 0 };
    // A session's ring has 4 bytes an event and doubles from 8; unsent events are among those of max_queue, and
    // a ring holds both.
    let retained = if config.resume.enabled { u64::from(config.resume.history_size) } else { 0 };
    let history_ring = 4 * retained.next_power_of_two().max(8);
    let full_ring = 4 * (retained + u64::from(config.backpressure.max_queue)).next_power_of_two();
    let rows = cores * u64::from(config.trace.capacity);
    // An answer to a request comes on top of a lane that is not full yet, in a buffer that doubles.
    let answer = if config.rpc.is_empty() { 0 } else { 2 * config.server.max_message_size };
    let lane = CONTROL_LANE_BYTES as u64 + answer + LANE_BYTES;
    // A name is held by its room and by the table of rooms.
    let limits = &config.limits;
    let rooms = u64::from(limits.topics_per_connection) + u64::from(limits.groups_per_connection);
    let room = ROOM_BYTES + 2 * u64::from(limits.topic_name_bytes);
    let idle_topics = IDLE_TOPICS as u64 * ROOM_BYTES + 2 * IDLE_NAME_BYTES as u64;
    let replays = 4 * UNFINISHED_REPLAYS as u64 * u64::from(config.replay.history_size);
    let pairs = cores * cores.saturating_sub(1);
    let handoffs = (TRAVELLING_BATCHES + SPARE_BATCHES) as u64 * 2 * BATCH_BYTES as u64;
    let usual = |label, bytes| MemoryTerm { label, bytes, stalled: false };
    let stalled = |label, bytes| MemoryTerm { label, bytes, stalled: true };
    let topics = if config.replay.history_size > 0 { config.replay.history_bytes } else { 0 };
    vec![
        usual("buffers, rings and tables of the cores", cores * CORE_BYTES),
        usual("connections, in this process", connections * (CONNECTION_BYTES + KNOWN_BYTES)),
        usual("connections, in the kernel", connections * KERNEL_CONNECTION_BYTES),
        usual("rings of connected sessions", connections * history_ring),
        usual("parked sessions with their rings", parked * (PARKED_BYTES + history_ring)),
        usual("events of sessions: resume.history_bytes of each core", cores * config.resume.history_bytes),
        usual("events of topics: replay.history_bytes of each core", cores * topics),
        usual(
            "unfinished requests and messages: limits.inbound_bytes of each core",
            cores * config.limits.inbound_bytes,
        ),
        usual("handoffs between cores", pairs * handoffs),
        usual("topics that nobody is in", cores * idle_topics),
        usual("trace", rows * (TRACE_ROW_BYTES + u64::from(config.trace.capture_bytes))),
        stalled("state of unfinished messages", connections * UNFINISHED_BYTES),
        stalled("rings grown by full queues", connections * (full_ring - history_ring.min(full_ring))),
        stalled("lanes full of control messages", connections * lane),
        stalled(
            "rooms, each client alone in as many as it may be in",
            connections.saturating_mul(rooms.saturating_mul(room)),
        ),
        stalled("histories on their way", connections.saturating_mul(replays)),
        stalled("handoffs that other cores do not take", pairs * cores * STAGED_BYTES as u64),
        stalled("unsent bytes in the kernel", connections * u64::from(config.server.unsent_low_water)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_fit_a_small_machine() {
        let usual: u64 =
            memory_sum(&Config::default(), 1).iter().filter(|t| !t.stalled).map(|t| t.bytes).sum();
        assert!((512 << 20..2 << 30).contains(&usual), "{usual}");
    }

    #[test]
    fn what_is_off_takes_nothing() {
        let mut config = Config::default();
        config.resume.enabled = false;
        config.trace.capacity = 0;
        let terms = memory_sum(&config, 2);
        let bytes = |label: &str| terms.iter().find(|t| t.label.starts_with(label)).unwrap().bytes;
        assert_eq!((bytes("parked"), bytes("trace"), bytes("events of topics")), (0, 0, 0));
        assert_eq!(bytes("unfinished"), 2 * config.limits.inbound_bytes);
    }
}
