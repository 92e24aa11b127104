//! Saved cores to the cores of another process: it has another seed and perhaps another number of them, so that ids
//! and topics have other homes.
//!
//! A core whose sessions are members of a topic gets the topic too, as if it had asked the home and had been answered,
//! and the home knows of it: nothing that is published from the first moment on is missed.
//!
//! Every core stored an event of its own for what it had members for. What comes together again is stored once: the
//! n-th event of a content on one core is the n-th of that content on another. That is a matter of memory alone, as
//! equal events may stand for each other everywhere but in the histories of topics, where each has a number.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::saved::{Saved, SavedEvent, SavedSession, SavedTopic};
use super::step::{CoreId, RoomKind};
use super::{home_of_client, home_of_topic};

/// What one core begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// Oldest first.
    pub events: Vec<SavedEvent>,
    /// Topics that this core numbers or follows.
    pub topics: Vec<RestoredTopic>,
    /// In order of parking.
    pub sessions: Vec<SavedSession>,
}

/// A topic, at its home or at a core that follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoredTopic {
    /// The topic.
    pub topic: SavedTopic,
    /// At the home: cores that follow it.
    pub interested: Vec<CoreId>,
}

/// Deals out what passed [`check`](super::saved::check).
pub fn split(saved: Vec<Saved>, seed: u64, cores: CoreId) -> Vec<Restored> {
    let mut decks: Vec<Deck> = (0..cores).map(|_| Deck::new(saved.len())).collect();
    let mut interested = followers(&saved, seed, cores);
    let sources: Vec<Source> = saved.iter().map(Source::new).collect();
    for (from, core) in saved.iter().enumerate() {
        for topic in &core.topics {
            let followers = interested.remove(&topic.name).unwrap_or_default();
            deal_topic(
                &mut decks,
                &sources[from],
                from,
                topic,
                &followers,
                home_of_topic(seed, cores, &topic.name),
            );
        }
    }
    let nothing = Source::default();
    for (name, followers) in &interested {
        // It was never published to.
        let hasher = ahash::RandomState::with_seeds(seed, 0xe9, 0x5eed, 4);
        let topic =
            SavedTopic { name: name.clone(), epoch: hasher.hash_one(name), seq: 0, history: Vec::new() };
        deal_topic(&mut decks, &nothing, 0, &topic, followers, home_of_topic(seed, cores, name));
    }
    for (from, core) in saved.into_iter().enumerate() {
        for mut session in core.sessions {
            let deck = &mut decks[usize::from(home_of_client(seed, cores, &session.id))];
            for entry in &mut session.entries {
                *entry = entry.moved(|event| deck.place(&sources[from], from, event, false));
            }
            deck.restored.sessions.push(session);
        }
    }
    decks.into_iter().map(Deck::finish).collect()
}

/// By topic: the cores that are not its home and get sessions that are in it.
fn followers(saved: &[Saved], seed: u64, cores: CoreId) -> BTreeMap<Box<str>, Vec<CoreId>> {
    let mut followers: BTreeMap<Box<str>, Vec<CoreId>> = BTreeMap::new();
    for session in saved.iter().flat_map(|core| &core.sessions) {
        let core = home_of_client(seed, cores, &session.id);
        for room in session.rooms.iter().filter(|room| room.kind == RoomKind::Topic) {
            if home_of_topic(seed, cores, &room.name) == core {
                continue;
            }
            let known = followers.entry(room.name.clone()).or_default();
            if !known.contains(&core) {
                known.push(core);
            }
        }
    }
    followers
}

fn deal_topic(
    decks: &mut [Deck],
    source: &Source,
    from: usize,
    topic: &SavedTopic,
    followers: &[CoreId],
    home: CoreId,
) {
    for core in followers.iter().chain([&home]) {
        let deck = &mut decks[usize::from(*core)];
        let mut topic = topic.clone();
        for (_, event) in &mut topic.history {
            *event = deck.place(source, from, *event, true);
        }
        let interested = if *core == home { followers.to_vec() } else { Vec::new() };
        deck.restored.topics.push(RestoredTopic { topic, interested });
    }
}

/// The events of a saved core.
#[derive(Default)]
struct Source {
    events: Vec<SavedEvent>,
    /// By event: how many of the same content are before it.
    before: Vec<u32>,
}

impl Source {
    fn new(core: &Saved) -> Source {
        let mut seen: HashMap<(u32, &[u8]), u32, ahash::RandomState> = HashMap::default();
        let before = core.events.iter().map(|event| {
            let count = seen.entry((event.id, &event.payload)).or_default();
            *count += 1;
            *count - 1
        });
        Source { before: before.collect(), events: core.events.clone() }
    }
}

/// What a core has been dealt so far.
struct Deck {
    restored: Restored,
    /// By event: how many of its source were newer; and whether it is in a history.
    dealt: Vec<(u32, bool)>,
    /// By source: places of its events.
    places: Vec<HashMap<u32, u32, ahash::RandomState>>,
    /// The n-th of a content.
    by_content: HashMap<(u32, Bytes, u32), u32, ahash::RandomState>,
}

impl Deck {
    fn new(sources: usize) -> Deck {
        Deck {
            restored: Restored::default(),
            dealt: Vec::new(),
            places: vec![HashMap::default(); sources],
            by_content: HashMap::default(),
        }
    }

    /// The place here of an event of a source; for a history it gets one that is in no other.
    fn place(&mut self, source: &Source, from: usize, event: u32, for_history: bool) -> u32 {
        let SavedEvent { id, payload } = &source.events[event as usize];
        let content = (*id, payload.clone(), source.before[event as usize]);
        let known = self.places[from].get(&event).or_else(|| self.by_content.get(&content)).copied();
        let known = known.filter(|place| !for_history || !self.dealt[*place as usize].1);
        let place = known.unwrap_or_else(|| {
            self.restored.events.push(source.events[event as usize].clone());
            self.dealt.push((source.events.len() as u32 - event, false));
            self.dealt.len() as u32 - 1
        });
        self.dealt[place as usize].1 |= for_history;
        self.places[from].insert(event, place);
        self.by_content.entry(content).or_insert(place);
        place
    }

    /// Brings events into the order of their age, by how many were newer: cores number theirs each for itself.
    fn finish(self) -> Restored {
        let Deck { restored: Restored { events, mut topics, mut sessions }, dealt, .. } = self;
        let mut order: Vec<u32> = (0..events.len() as u32).collect();
        order.sort_by_key(|place| std::cmp::Reverse(dealt[*place as usize].0));
        let mut moved = vec![0; events.len()];
        for (to, place) in (0..).zip(&order) {
            moved[*place as usize] = to;
        }
        let events = order.iter().map(|place| events[*place as usize].clone()).collect();
        for (_, event) in topics.iter_mut().flat_map(|topic| &mut topic.topic.history) {
            *event = moved[*event as usize];
        }
        for entry in sessions.iter_mut().flat_map(|session| &mut session.entries) {
            *entry = entry.moved(|event| moved[event as usize]);
        }
        sessions.sort_by_key(|session| session.parked_at);
        Restored { events, topics, sessions }
    }
}
