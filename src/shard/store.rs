//! The events of one core: each stored once as a whole server frame, counted without atomics, freed when nobody holds
//! it. Three classes of holders have a byte budget each; over a budget the oldest event of the class leaves.

use bytes::Bytes;

use crate::limits::COPIED_EVENT_BYTES;
use crate::wire::envelope::{self, HEADER_BYTES};
use crate::wire::frame;

/// Place of an event in the store.
pub type Slot = u32;

/// Slots are below this: an outbox entry has 30 bits for one.
pub const SLOT_LIMIT: u32 = 1 << 30;

const NIL: u32 = u32::MAX;

/// Who keeps an event alive, strongest first. Each event that may be evicted is in the list of its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// No list: being published, partly written, empty, or free.
    None,
    /// A topic's history.
    Topic,
    /// Connected sessions.
    Session,
    /// Parked sessions only.
    Parked,
}

#[derive(Debug)]
enum Frame {
    /// Free slot, or an event that left under a byte budget while entries still point at it.
    Empty,
    /// From the pool; longer than the frame.
    Pooled(Box<[u8]>),
    /// Over `COPIED_EVENT_BYTES`: sent from where it lies.
    Large(Bytes),
}

#[derive(Debug)]
struct Event {
    frame: Frame,
    /// Bytes of the frame; kept when the frame is gone.
    len: u32,
    live: u32,
    parked: u32,
    pins: u32,
    /// Room whose history holds it, or NIL.
    topic: u32,
    prev: u32,
    next: u32,
    age: u64,
    event: u16,
    class: Class,
}

#[derive(Debug, Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    bytes: u64,
}

const EMPTY_LIST: List = List { head: NIL, tail: NIL, bytes: 0 };

/// Byte budgets of the classes.
#[derive(Debug, Clone, Copy)]
pub struct Budgets {
    /// Topic histories.
    pub topic: u64,
    /// Session histories, parked ones included.
    pub session: u64,
    /// Events that only parked sessions hold.
    pub parked: u64,
}

/// What [`Store::relieve`] wants done.
#[derive(Debug, PartialEq, Eq)]
pub enum Relief {
    /// Within all budgets.
    Done,
    /// This room's history must give up its oldest event.
    Topic(u32),
    /// An event was emptied; entries that point at it find nothing.
    Emptied,
}

/// The events of one core.
#[derive(Debug)]
pub struct Store {
    events: Vec<Event>,
    free: Vec<Slot>,
    lists: [List; 3],
    pool: Pool,
    born: u64,
    stored: u64,
}

impl Store {
    /// An empty store.
    pub fn new() -> Store {
        let (events, free, pool) = (Vec::new(), Vec::new(), Pool::default());
        Store { events, free, lists: [EMPTY_LIST; 3], pool, born: 0, stored: 0 }
    }

    /// Stores an event, pinned: the caller adds holders and then calls [`Store::unpin`].
    pub fn insert(&mut self, event: u16, id: u32, payload: &[u8]) -> Slot {
        let body = HEADER_BYTES + payload.len();
        let head = frame::header_len(body);
        let len = head + body;
        let frame = if len > COPIED_EVENT_BYTES {
            let mut bytes = vec![0; len];
            write_frame(&mut bytes, head, id, payload);
            Frame::Large(Bytes::from(bytes))
        } else {
            let mut bytes = self.pool.take(len);
            write_frame(&mut bytes, head, id, payload);
            Frame::Pooled(bytes)
        };
        self.add(event, frame, len)
    }

    /// Stores a large event that another core has stored, pinned like [`Store::insert`].
    pub fn insert_frame(&mut self, event: u16, frame: Bytes) -> Slot {
        let len = frame.len();
        self.add(event, Frame::Large(frame), len)
    }

    fn add(&mut self, event: u16, frame: Frame, len: usize) -> Slot {
        self.born += 1;
        self.stored += 1;
        let (age, len) = (self.born, u32::try_from(len).expect("an event is far below 4 GiB"));
        let fresh = Event {
            frame,
            len,
            live: 0,
            parked: 0,
            pins: 1,
            topic: NIL,
            prev: NIL,
            next: NIL,
            age,
            event,
            class: Class::None,
        };
        match self.free.pop() {
            Some(slot) => {
                self.events[slot as usize] = fresh;
                slot
            }
            None => {
                let slot = u32::try_from(self.events.len()).expect("slots are 30 bits");
                assert!(slot < SLOT_LIMIT, "the store is full");
                self.events.push(fresh);
                slot
            }
        }
    }

    /// An event that has left already, pinned: entries that point at it find nothing.
    pub fn insert_gone(&mut self) -> Slot {
        let slot = self.insert(0, 0, &[]);
        self.drop_frame(slot);
        slot
    }

    /// The frame, none when it left under a byte budget.
    pub fn frame(&self, slot: Slot) -> Option<&[u8]> {
        let event = &self.events[slot as usize];
        match &event.frame {
            Frame::Empty => None,
            Frame::Pooled(bytes) => Some(&bytes[..event.len as usize]),
            Frame::Large(bytes) => Some(bytes),
        }
    }

    /// The payload within the frame.
    pub fn payload(&self, slot: Slot) -> Option<&[u8]> {
        self.frame(slot).map(|frame| &frame[self.head(slot) + HEADER_BYTES..])
    }

    /// A large event's frame, shared instead of copied.
    pub fn large(&self, slot: Slot) -> Option<&Bytes> {
        match &self.events[slot as usize].frame {
            Frame::Large(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// True when the event left under a byte budget.
    pub fn is_empty_slot(&self, slot: Slot) -> bool {
        matches!(self.events[slot as usize].frame, Frame::Empty)
    }

    /// Bytes of the frame, also of one that is gone.
    pub fn len(&self, slot: Slot) -> u32 {
        self.events[slot as usize].len
    }

    /// Bytes of the WebSocket header that the frame begins with.
    pub fn head(&self, slot: Slot) -> usize {
        head(self.len(slot))
    }

    /// The frame of an event that is sent as a copy, and the bytes of its WebSocket header.
    #[inline]
    pub fn copied(&self, slot: Slot) -> Option<(&[u8], usize)> {
        let event = &self.events[slot as usize];
        match &event.frame {
            Frame::Pooled(bytes) => Some((&bytes[..event.len as usize], head(event.len))),
            _ => None,
        }
    }

    /// Index of the event's type.
    pub fn event(&self, slot: Slot) -> u16 {
        self.events[slot as usize].event
    }

    /// So many connected sessions hold it more.
    pub fn hold_live(&mut self, slot: Slot, times: u32) {
        let event = &mut self.events[slot as usize];
        let is_first = event.live == 0 && times > 0;
        event.live += times;
        if is_first && event.pins == 0 {
            self.classify(slot);
        }
    }

    /// A parked session holds it once more.
    pub fn hold_parked(&mut self, slot: Slot) {
        let event = &mut self.events[slot as usize];
        event.parked += 1;
        if event.parked == 1 && event.pins == 0 {
            self.classify(slot);
        }
    }

    /// A connected session lets go.
    pub fn release_live(&mut self, slot: Slot) {
        self.release_many(slot, 1);
    }

    /// So many connected sessions let go.
    pub fn release_many(&mut self, slot: Slot, times: u32) {
        let event = &mut self.events[slot as usize];
        assert!(event.live >= times, "a live holder was forgotten");
        event.live -= times;
        if event.live == 0 {
            self.classify(slot);
        }
    }

    /// A parked session lets go.
    pub fn release_parked(&mut self, slot: Slot) {
        let event = &mut self.events[slot as usize];
        assert!(event.parked > 0, "a parked holder was forgotten");
        event.parked -= 1;
        if event.parked == 0 {
            self.classify(slot);
        }
    }

    /// A session that holds it was parked.
    pub fn park(&mut self, slot: Slot) {
        self.events[slot as usize].parked += 1;
        self.release_live(slot);
    }

    /// A parked session that holds it is connected again.
    pub fn unpark(&mut self, slot: Slot) {
        self.events[slot as usize].live += 1;
        self.release_parked(slot);
        self.classify(slot);
    }

    /// A topic's history holds it.
    pub fn hold_topic(&mut self, slot: Slot, room: u32) {
        let event = &mut self.events[slot as usize];
        assert!(event.topic == NIL, "an event belongs to one topic");
        event.topic = room;
        self.classify(slot);
    }

    /// The topic's history lets go.
    pub fn release_topic(&mut self, slot: Slot) {
        let event = &mut self.events[slot as usize];
        assert!(event.topic != NIL, "a topic holder was forgotten");
        event.topic = NIL;
        self.classify(slot);
    }

    /// Keeps it from being evicted or freed: it is being published, or partly written.
    pub fn pin(&mut self, slot: Slot) {
        self.events[slot as usize].pins += 1;
        self.classify(slot);
    }

    /// The opposite of [`Store::pin`].
    pub fn unpin(&mut self, slot: Slot) {
        let event = &mut self.events[slot as usize];
        assert!(event.pins > 0, "a pin was forgotten");
        event.pins -= 1;
        self.classify(slot);
    }

    /// Brings one class within its budget by one event; to be called until it says `Done`.
    pub fn relieve(&mut self, budgets: &Budgets) -> Relief {
        let [topic, session, parked] = self.lists;
        if topic.bytes > budgets.topic {
            return Relief::Topic(self.events[topic.head as usize].topic);
        }
        let victim = if parked.bytes > budgets.parked {
            parked.head
        } else if session.bytes + parked.bytes > budgets.session {
            self.older(session.head, parked.head)
        } else {
            return Relief::Done;
        };
        self.empty(victim);
        Relief::Emptied
    }

    /// Bytes of (topic histories, session histories, parked sessions only); the last is not in the second.
    pub fn bytes(&self) -> (u64, u64, u64) {
        (self.lists[0].bytes, self.lists[1].bytes, self.lists[2].bytes)
    }

    /// Events whose bytes are stored.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Slots are below this.
    pub fn places(&self) -> usize {
        self.events.len()
    }

    /// Events that were stored later are younger: theirs is higher.
    pub fn age(&self, slot: Slot) -> u64 {
        self.events[slot as usize].age
    }

    /// Slots in use, emptied ones included.
    pub fn slots(&self) -> usize {
        self.events.len() - self.free.len()
    }

    fn older(&self, a: u32, b: u32) -> u32 {
        if b == NIL || (a != NIL && self.events[a as usize].age < self.events[b as usize].age) {
            a
        } else {
            b
        }
    }

    fn empty(&mut self, slot: Slot) {
        self.unlink(slot);
        self.drop_frame(slot);
    }

    fn drop_frame(&mut self, slot: Slot) {
        let frame = std::mem::replace(&mut self.events[slot as usize].frame, Frame::Empty);
        if !matches!(frame, Frame::Empty) {
            self.stored -= 1;
        }
        if let Frame::Pooled(bytes) = frame {
            self.pool.give(bytes);
        }
    }

    /// Puts an event whose holders changed into the list of its class; frees it when nobody holds it.
    fn classify(&mut self, slot: Slot) {
        let event = &self.events[slot as usize];
        let held = event.live > 0 || event.parked > 0 || event.topic != NIL || event.pins > 0;
        let class = if event.pins > 0 || matches!(event.frame, Frame::Empty) {
            Class::None
        } else if event.topic != NIL {
            Class::Topic
        } else if event.live > 0 {
            Class::Session
        } else if event.parked > 0 {
            Class::Parked
        } else {
            Class::None
        };
        if class != event.class {
            self.unlink(slot);
            self.link(slot, class);
        }
        if !held {
            self.drop_frame(slot);
            self.free.push(slot);
        }
    }

    fn unlink(&mut self, slot: Slot) {
        let event = &mut self.events[slot as usize];
        let Some(list) = index(event.class) else { return };
        let (prev, next, len) = (event.prev, event.next, u64::from(event.len));
        event.class = Class::None;
        self.lists[list].bytes -= len;
        match prev {
            NIL => self.lists[list].head = next,
            _ => self.events[prev as usize].next = next,
        }
        match next {
            NIL => self.lists[list].tail = prev,
            _ => self.events[next as usize].prev = prev,
        }
    }

    fn link(&mut self, slot: Slot, class: Class) {
        let Some(list) = index(class) else { return };
        let tail = self.lists[list].tail;
        let event = &mut self.events[slot as usize];
        event.class = class;
        event.prev = tail;
        event.next = NIL;
        self.lists[list].bytes += u64::from(event.len);
        self.lists[list].tail = slot;
        match tail {
            NIL => self.lists[list].head = slot,
            _ => self.events[tail as usize].next = slot,
        }
    }
}

/// Bytes of the WebSocket header of a frame of so many bytes in all (RFC 6455 5.2).
#[inline]
pub fn head(len: u32) -> usize {
    match len {
        0..128 => 2,
        128..65_540 => 4,
        _ => 10,
    }
}

impl Default for Store {
    fn default() -> Self {
        Store::new()
    }
}

fn index(class: Class) -> Option<usize> {
    match class {
        Class::None => None,
        Class::Topic => Some(0),
        Class::Session => Some(1),
        Class::Parked => Some(2),
    }
}

fn write_frame(out: &mut [u8], head: usize, id: u32, payload: &[u8]) {
    let mut header = [0; 10];
    let n = frame::write_header(&mut header, frame::BINARY, HEADER_BYTES + payload.len());
    assert!(n == head, "one length, one header");
    out[..head].copy_from_slice(&header[..head]);
    envelope::write(&mut out[head..head + HEADER_BYTES], id);
    out[head + HEADER_BYTES..head + HEADER_BYTES + payload.len()].copy_from_slice(payload);
}

/// Buffers of events that were freed, by size: two sizes a doubling from 64 bytes on. What it keeps is bounded by what
/// is in use, so a burst does not hold its memory for ever.
#[derive(Debug, Default)]
struct Pool {
    free: [Vec<Box<[u8]>>; 18],
    used_bytes: usize,
    free_bytes: usize,
}

const POOL_FLOOR_BYTES: usize = 1 << 20;

impl Pool {
    fn take(&mut self, len: usize) -> Box<[u8]> {
        let (class, size) = size_class(len);
        self.used_bytes += size;
        match self.free[class].pop() {
            Some(bytes) => {
                self.free_bytes -= size;
                bytes
            }
            None => vec![0; size].into_boxed_slice(),
        }
    }

    fn give(&mut self, bytes: Box<[u8]>) {
        let (class, size) = size_class(bytes.len());
        self.used_bytes -= size;
        if self.free_bytes + size <= POOL_FLOOR_BYTES.max(self.used_bytes) {
            self.free_bytes += size;
            self.free[class].push(bytes);
        }
    }
}

/// Sizes 64, 96, 128, 192, 256 ... 16384: index and bytes of the smallest that holds `len`.
fn size_class(len: usize) -> (usize, usize) {
    let len = len.max(64);
    let top = usize::BITS - 1 - len.leading_zeros();
    let (low, half) = (1usize << top, 1usize << (top - 1));
    let step = (top as usize - 6) * 2;
    if len == low {
        (step, low)
    } else if len <= low + half {
        (step + 1, low + half)
    } else {
        (step + 2, low * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Budgets = Budgets { topic: u64::MAX, session: u64::MAX, parked: u64::MAX };

    #[test]
    fn size_classes_hold_what_they_are_asked_for() {
        let mut last = 0;
        for len in 1..=COPIED_EVENT_BYTES {
            let (class, size) = size_class(len);
            assert!(size >= len && class >= last && class < 18, "{len}: class {class}, {size} bytes");
            assert_eq!(size_class(size), (class, size));
            last = class;
        }
    }

    #[test]
    fn the_header_is_known_by_the_length_of_the_frame() {
        let mut store = Store::new();
        for body in [14, 125, 126, 127, 65_535, 65_536, 70_000] {
            let slot = store.insert(0, 1, &vec![0; body - HEADER_BYTES]);
            assert_eq!(store.head(slot), frame::header_len(body), "{body}");
        }
    }

    #[test]
    fn an_event_is_freed_with_its_last_holder() {
        let mut store = Store::new();
        let slot = store.insert(3, 7, &[1, 2, 3]);
        store.hold_live(slot, 1);
        store.hold_parked(slot);
        store.hold_topic(slot, 9);
        store.unpin(slot);
        let len = u64::from(store.len(slot));
        assert_eq!(store.bytes(), (len, 0, 0));
        store.release_topic(slot);
        assert_eq!(store.bytes(), (0, len, 0));
        store.release_live(slot);
        assert_eq!(store.bytes(), (0, 0, len));
        store.unpark(slot);
        assert_eq!(store.bytes(), (0, len, 0));
        store.release_live(slot);
        assert_eq!((store.bytes(), store.stored(), store.slots()), ((0, 0, 0), 0, 0));
    }

    #[test]
    fn over_a_budget_the_oldest_leaves_and_its_slot_stays() {
        let mut store = Store::new();
        let slots: Vec<_> = (0..4).map(|i| store.insert(0, i, &[0; 20])).collect();
        for &slot in &slots {
            store.hold_live(slot, 1);
            store.unpin(slot);
        }
        let len = u64::from(store.len(slots[0]));
        let tight = Budgets { session: 2 * len, ..WIDE };
        assert_eq!(store.relieve(&tight), Relief::Emptied);
        assert_eq!(store.relieve(&tight), Relief::Emptied);
        assert_eq!(store.relieve(&tight), Relief::Done);
        assert!(
            store.is_empty_slot(slots[0]) && store.is_empty_slot(slots[1]) && !store.is_empty_slot(slots[2])
        );
        assert_eq!((store.slots(), store.stored()), (4, 2));
        store.release_live(slots[0]);
        assert_eq!(store.slots(), 3);
    }

    #[test]
    fn a_pinned_event_is_not_evicted() {
        let mut store = Store::new();
        let slot = store.insert(0, 1, &[0; 20]);
        store.hold_parked(slot);
        assert_eq!(store.relieve(&Budgets { topic: 0, session: 0, parked: 0 }), Relief::Done);
        store.unpin(slot);
        assert_eq!(store.relieve(&Budgets { topic: 0, session: 0, parked: 0 }), Relief::Emptied);
        store.release_parked(slot);
        assert_eq!(store.slots(), 0);
    }

    #[test]
    fn large_events_are_shared() {
        let mut store = Store::new();
        let slot = store.insert(0, 1, &vec![5; COPIED_EVENT_BYTES]);
        assert_eq!(store.large(slot).map(Bytes::len), Some(store.len(slot) as usize));
        store.unpin(slot);
        assert_eq!(store.slots(), 0);
    }
}
