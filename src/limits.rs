//! Every bound that is not configured, in one place, with the relations between them asserted.

#![forbid(unsafe_code)]

/// Longest request head of an upgrade, bytes; more is answered 431.
pub const HEAD_BYTES: usize = 16 * 1024;
/// Most header lines of a request; more is answered 431.
pub const HEAD_LINES: usize = 128;
/// Most frames of one message (docs/PROTOCOL.md, section 12); more closes 1008.
pub const MESSAGE_FRAMES: u32 = 16_384;
/// Longest payload of a control frame (RFC 6455 5.5).
pub const CONTROL_FRAME_BYTES: usize = 125;
/// How long an unfinished message may take, seconds.
pub const MESSAGE_SECONDS: u64 = 30;
/// Bytes of the control lane of a connection past which its receive pauses until half is gone.
pub const CONTROL_LANE_BYTES: usize = 16 * 1024;
/// Bytes of later messages held while a connection waits for a topic's home core.
pub const HELD_BYTES: usize = 64 * 1024;
/// Unfinished history and snapshot answers of a connection past which its receive pauses.
pub const UNFINISHED_REPLAYS: usize = 32;
/// Events up to this many bytes are copied into scratch; larger ones are sent from where they are stored.
pub const COPIED_EVENT_BYTES: usize = 16 * 1024;
/// Most bytes of one send, without a large event's body.
pub const SEND_BYTES: usize = 64 * 1024;
/// Scratch of a core: filled by bytes, small enough for the L2 cache.
pub const SCRATCH_BYTES: usize = 256 * 1024;
/// Most connections sent to with one submit: as many as stay in the L2 cache, with what the kernel keeps of them, until
/// the outcome is noted.
pub const SEND_CHUNK: usize = 32;
/// How long a closing connection may take to finish, seconds.
pub const CLOSE_SECONDS: u64 = 5;
/// How long the probe of a duplicate's owner waits, seconds.
pub const PROBE_SECONDS: u64 = 2;
/// Rows of one slice of a listing.
pub const LISTING_ROWS: usize = 256;
/// Descriptors that the sockets of clients leave to the rest of the process: rings, listeners, the admin API.
pub const RESERVED_DESCRIPTORS: u32 = 24;
/// Subprotocols `bearer.` of one request that are looked at: each is compared with every token.
pub const BEARER_OFFERS: usize = 4;
/// Bytes of an admin request's body past which it is not read by the control thread itself, which would answer nobody
/// else meanwhile.
pub const LARGE_BODY_BYTES: usize = 64 * 1024;
/// Bytes of the names of topics without members, per core.
pub const IDLE_NAME_BYTES: usize = 16 << 20;
/// Longest answer to `GET /clients`, bytes; a longer one is refused with 503. It is made at once, by the core.
pub const LISTING_BYTES: usize = 2 << 20;
/// Topics without members whose numbering is kept, per core.
pub const IDLE_TOPICS: usize = 65_536;
/// Largest sequence number: 2^53-1, the largest exact integer of a JSON number (docs/PROTOCOL.md, section 2).
pub const MAX_SEQ: u64 = (1 << 53) - 1;
/// Largest payload that a state file may hold, bytes.
pub const SAVED_EVENT_BYTES: usize = 1 << 30;
/// Largest body of an admin request, bytes; more is answered 413.
pub const ADMIN_BODY_BYTES: usize = 16 << 20;
/// Bodies of admin requests that are held at one time, bytes together; further requests wait.
pub const ADMIN_BODIES_BYTES: usize = 4 * ADMIN_BODY_BYTES;
/// Connections to the admin address; more wait to be accepted.
pub const ADMIN_CONNECTIONS: usize = 64;
/// How long a connection to the admin address may be silent, and a body may take, seconds.
pub const ADMIN_SECONDS: u64 = 60;
/// How long a core may take to answer before `/livez` says that it is stuck, seconds.
pub const LIVENESS_SECONDS: u64 = 2;
/// Most rows of one page of the admin API.
pub const PAGE_ROWS: usize = 10_000;
/// Commands that a core has not answered yet; a request past it is answered 503 `overloaded`.
pub const UNANSWERED_COMMANDS: usize = 512;
/// Commands kept free for the control thread's own use (drain, reload) when requests took all the others.
pub const RESERVED_COMMANDS: usize = 16;
/// Log lines of a core that wait for the control thread; more are dropped and counted.
pub const WAITING_LOG_LINES: usize = 256;

/// Bytes of handoffs to one core past which a new batch begins.
pub const BATCH_BYTES: usize = 32 * 1024;
/// Emptied batches that a core keeps for each other core.
pub const SPARE_BATCHES: usize = 8;
/// Batches that may be on their way from one core to another.
pub const TRAVELLING_BATCHES: usize = 64;
/// Bytes that wait to leave for one core past which whoever feeds it pauses until half is gone.
pub const STAGED_BYTES: usize = 1 << 20;

/// Tables nested below the root of an event. A schema that nests deeper is refused, so no payload can.
pub const TABLE_DEPTH: usize = 8;
/// Most fields of one table; keeps a table's inline part (8 bytes a field) inside the 64 KiB of a vtable entry.
pub const TABLE_FIELDS: usize = 1024;
/// Bytes that reading a payload may look at, as a multiple of its length: offsets that point many times at the
/// same bytes cost no more than this.
pub const PAYLOAD_VISITS: usize = 4;
/// Largest payload made from JSON, bytes. `[0,0,0]` grows fourfold as doubles, nothing grows more.
pub const ENCODED_BYTES: usize = 128 << 20;

/// Longest message that a client takes from a server, bytes.
pub const CLIENT_MESSAGE_BYTES: u64 = 64 << 20;
/// How long a client's connect and upgrade may take together, seconds.
pub const CLIENT_DIAL_SECONDS: u64 = 10;
/// How long one write of a client may block before the server counts as gone, seconds.
pub const CLIENT_WRITE_SECONDS: u64 = 10;
/// How long a client waits for the answer to its close frame, seconds.
pub const CLIENT_CLOSE_SECONDS: u64 = 1;

const _: () = assert!(TABLE_FIELDS * 8 + 4 <= u16::MAX as usize);
const _: () = assert!(ADMIN_BODY_BYTES * 4 < ENCODED_BYTES);
const _: () = assert!(COPIED_EVENT_BYTES + 64 <= SEND_BYTES);
const _: () = assert!(SEND_BYTES <= SCRATCH_BYTES);
const _: () = assert!(CONTROL_FRAME_BYTES < CONTROL_LANE_BYTES);

/// What an idle connection in one topic takes in this process with its socket and its session, bytes, without events
/// and their ring. `tests/alloc.rs` counts it.
pub const CONNECTION_BYTES: u64 = 336;
/// What the driver keeps for a socket, bytes; part of [`CONNECTION_BYTES`].
pub const SOCKET_BYTES: u64 = 16;
/// What a session takes besides when its client has an id or came with a position, bytes, with an id of
/// a few characters.
pub const KNOWN_BYTES: u64 = 208;
/// What a connection takes besides while a message is unfinished or held back, bytes, without that message.
pub const UNFINISHED_BYTES: u64 = 176;
/// What a control lane takes besides its bytes, and the state of a rate limit, bytes together.
pub const LANE_BYTES: u64 = 96;
/// What a parked session takes in this process, bytes, without events and their ring.
pub const PARKED_BYTES: u64 = 400;
/// What the kernel holds for an idle TCP connection: socket, descriptor, armed receive. Rounded up.
pub const KERNEL_CONNECTION_BYTES: u64 = 5 * 1024;
/// What a topic or group takes in this process, bytes, without its name and its events; rounded up.
pub const ROOM_BYTES: u64 = 384;
/// One row of the trace without its payload, bytes; rounded up.
pub const TRACE_ROW_BYTES: u64 = 256;
/// Receive buffers, scratch, rings and tables of a core that has nothing to do; rounded up.
pub const CORE_BYTES: u64 = 8 << 20;
