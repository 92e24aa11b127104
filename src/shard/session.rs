//! Sessions, which survive a connection, and connections, which are one socket each.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::admit::{Access, Bucket};
use super::lane::Lane;
use super::memberships::Memberships;
use super::outbox::Outbox;
use super::step::{ConnId, CoreId, Instant, Peer, SessionId};
use super::store::{Slot, Store};
use super::timer::NEVER;
use crate::limits::{LANE_BYTES, MAX_SEQ};
use crate::wire::frame::Decoder;

/// No index.
pub const NONE: u32 = u32::MAX;

/// A client id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientId {
    /// Given by an identity: its session is parked when the connection ends.
    Pinned(Box<str>),
    /// Made here; the text is made of the session's place, so no table holds it.
    Anonymous,
}

/// In a room since when and why.
#[derive(Debug, Clone, Copy)]
pub struct Membership {
    /// The room.
    pub room: u32,
    /// Place in the room's list of members.
    pub place: u32,
    /// How it came about.
    pub origin: Origin,
    /// Kept from before the connection, and not yet subscribed to again.
    pub kept: bool,
}

/// Who made a membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// The identity: given at every open.
    Identity,
    /// The present connection.
    Connection,
    /// The operator, on the present connection.
    Operator,
    /// An earlier connection of the session.
    EarlierConnection,
    /// The operator, on an earlier connection.
    EarlierOperator,
}

impl Origin {
    /// How it looks to the next connection.
    pub fn aged(self) -> Origin {
        match self {
            Origin::Identity => Origin::Identity,
            Origin::Connection | Origin::EarlierConnection => Origin::EarlierConnection,
            Origin::Operator | Origin::EarlierOperator => Origin::EarlierOperator,
        }
    }
}

/// A session whose next number is above this is special: a queue is far shorter than what is left then.
const PLAIN_SEQ: u64 = MAX_SEQ - (1 << 32);

/// How a session takes events. All but `Special` say that an event needs its ring and nothing else: the session is
/// open, its connection takes bytes, it has no jobs, its deadline is entered, its numbers do not end. A push that looks
/// finds that out; whatever ends one of these makes it special.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// To be looked at.
    Special,
    /// Nothing waits, and its connection is not on the list.
    Idle,
    /// Its connection is on the list of those with something to send.
    Listed,
    /// Its connection was taken off the list, to be sent to now.
    Sending,
}

/// What survives a connection. In this order: what every delivery touches comes first.
#[derive(Debug)]
#[repr(C)]
pub struct Session {
    /// History and queue.
    pub outbox: Outbox,
    /// Index of its connection; `NONE` = parked.
    pub conn: u32,
    /// How it takes events.
    pub flow: Flow,
    /// Events may leave: the first hello was handled, or there will be none.
    pub open: bool,
    /// Its events carry sequence numbers.
    pub stamps: bool,
    /// Taken up by a connection whose first hello is not there yet, or never came.
    pub adopted: bool,
    /// What is to be sent besides the queue.
    pub jobs: Option<Box<Jobs>>,
    /// When the last event was pushed, or when it was parked.
    pub last_event: Instant,
    /// See [`Timers`](super::timer::Timers).
    pub armed: Instant,
    /// Counts the uses of the place.
    pub generation: u32,
    /// The peer's TCP, or the client, has acknowledged an event of it.
    pub acknowledged: bool,
    /// A first hello was handled in it: the positions that its client names are of its numbering.
    pub greeted: bool,
    /// Rooms it is in, in joining order.
    pub rooms: Memberships,
    /// What makes it another session than that of an unnamed client whose numbers began at 1.
    known: Option<Box<Known>>,
}

const _: () = assert!(size_of::<Session>() <= 128, "memory per session");

/// What is known of a session that not every one has: who its client is, and how its numbering came about.
#[derive(Debug)]
pub struct Known {
    /// The id.
    pub id: ClientId,
    /// What it may do.
    pub access: Access,
    /// First sequence number of the present numbering.
    pub first_seq: u64,
    /// First number behind a loss that numbers do not show; 0 = there was none.
    pub declared: u64,
    /// First number that was given out after the connection took it up.
    pub adopted_at: u64,
    /// First number that the connection that took it up may have written.
    pub written_from: u64,
}

impl Known {
    /// Of a client that has not said who it is, where nobody has to.
    const NOTHING: Known = Known::new(ClientId::Anonymous, Access::Open);

    /// Of a session whose numbers begin at 1.
    pub const fn new(id: ClientId, access: Access) -> Known {
        Known { id, access, first_seq: 1, declared: 0, adopted_at: 1, written_from: 1 }
    }
}

/// What a session is to be sent besides its queue, in stream order.
#[derive(Debug, Default)]
pub struct Jobs {
    /// The replay that runs before anything else.
    pub replay: Option<Replay>,
    /// A resume that came meanwhile: the lowest position asked for.
    pub again: Option<u64>,
    /// Each at a number: it is due when the cursor has reached it.
    pub stream: VecDeque<(u64, Job)>,
}

/// Sends again what lies behind the cursor.
#[derive(Debug, Clone, Copy)]
pub struct Replay {
    /// Next number to look at.
    pub position: u64,
    /// Ends before this number.
    pub end: u64,
    /// Only what was never written; else everything.
    pub unsent_only: bool,
    /// The position that was asked for.
    pub after: u64,
    /// First number sent; 0 = none.
    pub first: u64,
    /// An entry had nothing to send any more.
    pub incomplete: bool,
    /// What is answered at its end.
    pub answer: ReplayAnswer,
}

/// What a replay is answered with when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayAnswer {
    /// Nothing: a later job answers, or the answer has gone out.
    None,
    /// `resumed`.
    Resumed,
}

/// One thing in stream order.
#[derive(Debug)]
pub enum Job {
    /// Unsequenced events of a snapshot, as far as they are still there.
    Snapshot {
        /// What.
        slots: Vec<Slot>,
        /// How many were written.
        done: usize,
    },
    /// A history that was pushed ends here.
    HistoryEnd,
    /// `resumed` after everything behind this position was sent.
    Resumed {
        /// The position that was asked for.
        after: u64,
        /// The first number behind it that was there; 0 = none.
        from: u64,
    },
    /// Close the connection (drain).
    Close,
}

impl Replay {
    /// The entry at the position is there and is to be sent.
    pub fn is_sendable(&self, outbox: &Outbox, store: &Store) -> bool {
        if self.position < outbox.oldest() {
            return false;
        }
        let entry = outbox.entry(self.position);
        (entry.is_unsent() || !self.unsent_only) && !store.is_empty_slot(entry.slot())
    }

    /// Passes an entry that is not sendable.
    pub fn pass(&mut self, outbox: &Outbox) {
        let is_gone = self.position < outbox.oldest();
        if is_gone || !self.unsent_only || outbox.entry(self.position).is_unsent() {
            self.incomplete = true;
        }
        self.position += 1;
    }
}

impl Jobs {
    /// Nothing to do.
    pub fn is_empty(&self) -> bool {
        self.replay.is_none() && self.again.is_none() && self.stream.is_empty()
    }

    /// Histories and snapshots that have not been written.
    pub fn unfinished(&self) -> usize {
        let counted = |job: &&(u64, Job)| matches!(job.1, Job::Snapshot { .. } | Job::HistoryEnd);
        self.stream.iter().filter(counted).count()
    }
}

impl Session {
    /// A session that nothing was said in.
    pub fn new(
        generation: u32,
        conn: u32,
        outbox: Outbox,
        stamps: bool,
        known: Known,
        now: Instant,
    ) -> Session {
        let is_nothing = matches!((&known.id, &known.access), (ClientId::Anonymous, Access::Open));
        Session {
            outbox,
            conn,
            generation,
            open: false,
            flow: Flow::Special,
            stamps,
            adopted: false,
            acknowledged: false,
            greeted: false,
            jobs: None,
            rooms: Memberships::default(),
            known: (!is_nothing).then(|| Box::new(known)),
            last_event: now,
            armed: NEVER,
        }
    }

    /// What is known of it.
    pub fn known(&self) -> &Known {
        const NOTHING: &Known = &Known::NOTHING;
        self.known.as_deref().unwrap_or(NOTHING)
    }

    /// What is known of it, to be changed.
    pub fn known_mut(&mut self) -> &mut Known {
        self.known.get_or_insert_with(|| Box::new(Known::NOTHING))
    }

    /// Where it stands in the table.
    pub fn id_at(&self, index: u32) -> SessionId {
        SessionId { index, generation: self.generation }
    }

    /// Its id, where it stands at this place of the table of this core.
    pub fn shown_id(&self, index: u32, core: CoreId, key: &ahash::RandomState) -> ShownId<'_> {
        match &self.known().id {
            ClientId::Pinned(id) => ShownId::Pinned(id),
            ClientId::Anonymous => ShownId::anonymous(core, self.id_at(index), key),
        }
    }

    /// Nothing waits for its socket.
    pub fn is_drained(&self) -> bool {
        self.jobs.is_none() && self.outbox.cursor() == self.outbox.next()
    }

    /// Nothing but its queue is to be sent, and its numbers will not end soon.
    pub fn is_plain(&self) -> bool {
        self.jobs.is_none() && self.outbox.next() <= PLAIN_SEQ
    }

    /// Has no connection.
    pub fn is_parked(&self) -> bool {
        self.conn == NONE
    }

    /// Its jobs, made if there are none.
    pub fn jobs_mut(&mut self) -> &mut Jobs {
        self.flow = Flow::Special;
        self.jobs.get_or_insert_default()
    }

    /// The running replay.
    pub fn replay(&self) -> Option<&Replay> {
        self.jobs.as_ref().and_then(|jobs| jobs.replay.as_ref())
    }

    /// Number at which the queue stops for a job.
    pub fn queue_limit(&self) -> u64 {
        let job = self.jobs.as_ref().and_then(|jobs| jobs.stream.front());
        job.map_or(self.outbox.next(), |(at, _)| (*at).min(self.outbox.next()))
    }

    /// Everything was numbered `by` higher.
    pub fn jobs_moved(&mut self, by: u64) {
        let Some(jobs) = self.jobs.as_mut() else { return };
        if let Some(replay) = &mut jobs.replay {
            replay.position += by;
            replay.end += by;
            replay.after += by;
        }
        if let Some(again) = &mut jobs.again {
            *again += by;
        }
        for (at, _) in &mut jobs.stream {
            *at += by;
        }
    }

    /// Numbering began anew, `down` lower.
    pub fn jobs_restarted(&mut self, down: u64) {
        for (at, _) in self.jobs.iter_mut().flat_map(|jobs| &mut jobs.stream) {
            *at = at.saturating_sub(down).max(1);
        }
    }

    /// No hello was handled in it and nothing of it was written.
    pub fn is_untouched(&self) -> bool {
        !self.greeted && self.outbox.cursor() == self.known().first_seq
    }

    /// A number was given out in the present numbering.
    pub fn has_stamped(&self) -> bool {
        self.outbox.next() > self.known().first_seq
    }
}

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The request head is being read.
    Handshake,
    /// The id has an owner that is being probed; the request and what followed it wait.
    Waiting,
    /// `GET /clients`, which other cores are asked for.
    Listing,
    /// Upgraded; has a session.
    Open,
    /// What is in the lane is still written, then it is finished.
    Closing,
}

/// A frame that the kernel took a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partial {
    /// Where it is stored, pinned.
    pub slot: Slot,
    /// Its number; 0 = unsequenced.
    pub seq: u64,
    /// Bytes written.
    pub offset: NonZeroU32,
}

/// Why a connection's receive is paused; each a bit.
pub mod pause {
    /// The control lane is full.
    pub const LANE: u8 = 1;
    /// Too many unfinished histories.
    pub const HISTORY: u8 = 2;
    /// A topic's home was asked.
    pub const HOME: u8 = 4;
    /// Another core takes no more for now.
    pub const MESH: u8 = 8;
}

/// One socket.
#[derive(Debug)]
pub struct Conn {
    /// As the driver numbers it.
    pub id: ConnId,
    /// Its session, `NONE` before the upgrade and while closing.
    pub session: u32,
    /// Where it stands.
    pub state: State,
    /// What few have at a time.
    pub aside: Option<Box<Aside>>,
    /// Control frames out.
    pub lane: Option<Box<Lane>>,
    /// An event frame of which a part was written.
    pub partial: Option<Partial>,
    /// The kernel refused bytes and has not said since that it takes some.
    pub blocked: bool,
    /// On the list of connections with control frames to send.
    pub in_control_list: bool,
    /// On the list of connections with something to send.
    pub in_list: bool,
    /// A hello was handled on this connection.
    pub said_hello: bool,
    /// Reasons of `pause`.
    pub paused: u8,
    /// The driver was told to pause.
    pub told_pause: bool,
    /// A ping is on its way to find out whether the peer lives.
    pub probed: bool,
    /// When it was accepted, or closing began.
    pub since: Instant,
    /// When bytes last arrived.
    pub last_received: Instant,
    /// When the server last sent a ping.
    pub last_ping: Instant,
    /// When bytes were last handed to the kernel.
    pub last_send: Instant,
    /// One more than the bytes that the kernel took behind its first event; 0 = it took no event yet.
    pub behind_first: u64,
    /// Rate limit.
    pub bucket: Option<Box<Bucket>>,
    /// The other end.
    pub peer: Address,
    /// Another core handed it over: it stays here unless its id belongs elsewhere.
    pub is_settled: bool,
    /// See [`Timers`](super::timer::Timers).
    pub armed: Instant,
}

/// What a connection has only while something is unfinished, or unusual.
#[derive(Debug)]
pub struct Aside {
    /// Frames in, within a message.
    pub decoder: Decoder,
    /// Before the upgrade: the request and what followed it. Then: what arrived while paused.
    pub held: Vec<u8>,
    /// `unfinished_bytes` as counted in the core's sum.
    pub unfinished: u32,
    /// When the unfinished message began; `NEVER` = there is none.
    pub unfinished_since: Instant,
    /// Position of a hello that came after events had left, and was caught up with: the client may have taken those
    /// for a hole and ask for the same again.
    pub late_hello: Option<u64>,
    /// The session whose first event was written, while closing.
    pub acknowledges: Option<SessionId>,
}

impl Default for Aside {
    fn default() -> Self {
        Aside {
            decoder: Decoder::default(),
            held: Vec::new(),
            unfinished: 0,
            unfinished_since: NEVER,
            late_hello: None,
            acknowledges: None,
        }
    }
}

/// The other end of a socket, in as many bytes as an IPv6 address; those of IPv4 are mapped (RFC 4291 2.5.5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address([u8; 16]);

impl From<Peer> for Address {
    fn from(peer: Peer) -> Address {
        Address(match peer {
            Peer::Ip(IpAddr::V4(ip)) => ip.to_ipv6_mapped().octets(),
            Peer::Ip(IpAddr::V6(ip)) => ip.octets(),
            // Nobody connects from there.
            Peer::Unix => Ipv6Addr::UNSPECIFIED.octets(),
        })
    }
}

impl From<Address> for Peer {
    fn from(address: Address) -> Peer {
        match Ipv6Addr::from(address.0) {
            Ipv6Addr::UNSPECIFIED => Peer::Unix,
            ip => Peer::Ip(ip.to_canonical()),
        }
    }
}

/// Two words are malloc's own.
const _: () = assert!(size_of::<Lane>() + size_of::<Bucket>() + 16 <= LANE_BYTES as usize);
const _: () = assert!(size_of::<Option<Conn>>() <= 128, "memory per connection");

impl Conn {
    /// A socket whose handshake begins.
    pub fn new(id: ConnId, peer: Peer, now: Instant) -> Conn {
        Conn {
            id,
            session: NONE,
            state: State::Handshake,
            aside: None,
            lane: None,
            partial: None,
            blocked: false,
            in_control_list: false,
            in_list: false,
            said_hello: false,
            paused: 0,
            told_pause: false,
            probed: false,
            since: now,
            last_received: now,
            last_ping: now,
            last_send: Instant(0),
            behind_first: 0,
            bucket: None,
            peer: peer.into(),
            is_settled: false,
            armed: NEVER,
        }
    }

    /// Bytes that its peer makes the core hold; in a closing connection those of the answer.
    pub fn unfinished_bytes(&self) -> usize {
        let answer = match self.state {
            State::Closing => self.lane.as_ref().map_or(0, |lane| lane.len()),
            _ => 0,
        };
        answer + self.aside.as_ref().map_or(0, |aside| aside.decoder.buffered() + aside.held.len())
    }

    /// [`Conn::unfinished_bytes`] as counted in the core's sum.
    pub fn unfinished(&self) -> u32 {
        self.aside.as_ref().map_or(0, |aside| aside.unfinished)
    }

    /// When the unfinished message began; `NEVER` = there is none.
    pub fn unfinished_since(&self) -> Instant {
        self.aside.as_ref().map_or(NEVER, |aside| aside.unfinished_since)
    }

    /// The session of whose first event the peer's acknowledgement is of interest, while closing.
    pub fn acknowledges(&self) -> Option<SessionId> {
        self.aside.as_ref().and_then(|aside| aside.acknowledges)
    }

    /// What is set aside, made if there is nothing.
    pub fn aside_mut(&mut self) -> &mut Aside {
        self.aside.get_or_insert_default()
    }

    /// Bytes are held back.
    pub fn is_holding(&self) -> bool {
        self.aside.as_ref().is_some_and(|aside| !aside.held.is_empty())
    }

    /// The bytes that are held back.
    pub fn take_held(&mut self) -> Vec<u8> {
        self.aside.as_mut().map(|aside| std::mem::take(&mut aside.held)).unwrap_or_default()
    }

    /// Gives the memory back when nothing is set aside any more.
    pub fn tidy_aside(&mut self) {
        self.aside.take_if(|aside| {
            let is_finished = aside.unfinished_since == NEVER && aside.unfinished == 0;
            let is_usual = aside.late_hello.is_none() && aside.acknowledges.is_none();
            is_finished && is_usual && aside.held.is_empty() && aside.decoder.is_idle()
        });
    }

    /// Neither a partly written frame nor a control frame goes before the stream.
    pub fn is_between_frames(&self) -> bool {
        self.partial.is_none() && self.lane.is_none()
    }

    /// Upgraded and not closing.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// The peer's TCP acknowledged the first event, when so many bytes are unacknowledged.
    pub fn first_event_acknowledged(&self, unacked: u64) -> bool {
        unacked < self.behind_first
    }
}

/// The id of a session, to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownId<'a> {
    /// As it was pinned.
    Pinned(&'a str),
    /// `a<core>-<24 hex digits>` made of its place, its generation and a keyed check.
    Anonymous {
        /// That made it.
        core: CoreId,
        /// That it names.
        session: SessionId,
        /// So that an id cannot be made up.
        check: u32,
    },
}

impl<'a> ShownId<'a> {
    /// The id that this core gives to a session.
    pub fn anonymous(core: CoreId, session: SessionId, key: &ahash::RandomState) -> ShownId<'a> {
        let check = key.hash_one((core, session.index, session.generation)) as u32;
        ShownId::Anonymous { core, session, check }
    }
}

impl std::fmt::Display for ShownId<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ShownId::Pinned(id) => f.write_str(id),
            ShownId::Anonymous { core, session, check } => {
                write!(f, "a{core}-{:08x}{:08x}{check:08x}", session.generation, session.index)
            }
        }
    }
}

/// The core and the session that an id of that form names; the check is not looked at.
pub fn parse_anonymous_id(id: &str) -> Option<(CoreId, SessionId)> {
    let (core, hex) = id.strip_prefix('a')?.split_once('-')?;
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if hex.len() != 24 || !is_hex(hex) || core.is_empty() || !core.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |from: usize| u32::from_str_radix(&hex[from..from + 8], 16).ok();
    Some((core.parse().ok()?, SessionId { generation: part(0)?, index: part(8)? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back() {
        let ip = |text: &str| Peer::Ip(text.parse().unwrap());
        for peer in [ip("127.0.0.1"), ip("0.0.0.0"), ip("2001:db8::7"), ip("::1"), Peer::Unix] {
            assert_eq!(Peer::from(Address::from(peer)), peer);
        }
    }

    #[test]
    fn anonymous_ids_name_their_session() {
        let key = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let session = SessionId { index: 70_000, generation: 5 };
        let id = ShownId::anonymous(3, session, &key).to_string();
        assert_eq!(parse_anonymous_id(&id), Some((3, session)));
        for bad in [
            "",
            "a",
            "u1",
            "a-0",
            "a1-",
            "b1-000000000000000000000000",
            "a1-00000000000000000000000g",
            "a+1-000000000000000000000000",
        ] {
            assert_eq!(parse_anonymous_id(bad), None, "{bad}");
        }
    }
}
