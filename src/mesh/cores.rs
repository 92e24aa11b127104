//! The rings between cores: one for each ordered pair, of parcels, and one back for their emptied batches.
//!
//! What does not fit into a ring stays with the sender, which goes on with its own work and tries again at the end of
//! each turn. A receiver that takes from a full ring rings the sender's bell, so that a sleeping one tries again too.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::Bell;
use crate::limits::TRAVELLING_BATCHES;
use crate::shard::handoff::Batch;
use crate::shard::step::{CoreId, Transfer};

/// A connection on its way to another core. Nothing of it is in flight.
#[derive(Debug)]
pub struct Moving {
    /// The socket.
    pub socket: OwnedFd,
    /// What the sender knows of it.
    pub transfer: Box<Transfer>,
}

/// What one core sends another at once.
#[derive(Debug, Default)]
pub struct Parcel {
    /// Handoffs, in order behind those of the parcel before.
    pub batch: Batch,
    /// Connections.
    pub moving: Vec<Moving>,
}

/// One core's ends of the rings from and to another core.
#[derive(Debug)]
struct Link {
    core: CoreId,
    out: rtrb::Producer<Parcel>,
    /// Batches of ours that were read.
    returned: rtrb::Consumer<Batch>,
    /// Something was put in since the last [`Neighbours::flush`].
    untold: bool,
    arriving: rtrb::Consumer<Parcel>,
    /// Batches of theirs that were read.
    read: rtrb::Producer<Batch>,
    bell: Arc<Bell>,
}

/// One core's ends of its links to all others. No call ever blocks.
#[derive(Debug, Default)]
pub struct Neighbours {
    links: Vec<Link>,
    /// The link whose turn it is.
    next: usize,
}

/// Links every pair of cores. `bells`: each core's own, by number.
pub(super) fn link(bells: &[Arc<Bell>]) -> Vec<Neighbours> {
    let mut all: Vec<Neighbours> = bells.iter().map(|_| Neighbours::default()).collect();
    for a in 0..bells.len() {
        for b in a + 1..bells.len() {
            let (there, back) = (one_way(), one_way());
            all[a].links.push(Link::new(b as CoreId, there.0, back.1, &bells[b]));
            all[b].links.push(Link::new(a as CoreId, back.0, there.1, &bells[a]));
        }
    }
    all
}

/// The sender's ends and the receiver's ends.
type OneWay =
    ((rtrb::Producer<Parcel>, rtrb::Consumer<Batch>), (rtrb::Consumer<Parcel>, rtrb::Producer<Batch>));

fn one_way() -> OneWay {
    let (out, arriving) = rtrb::RingBuffer::new(TRAVELLING_BATCHES);
    let (read, returned) = rtrb::RingBuffer::new(TRAVELLING_BATCHES);
    ((out, returned), (arriving, read))
}

impl Link {
    fn new(
        core: CoreId,
        (out, returned): (rtrb::Producer<Parcel>, rtrb::Consumer<Batch>),
        (arriving, read): (rtrb::Consumer<Parcel>, rtrb::Producer<Batch>),
        bell: &Arc<Bell>,
    ) -> Link {
        Link { core, out, returned, untold: false, arriving, read, bell: Arc::clone(bell) }
    }
}

impl Neighbours {
    /// How many other cores there are.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// This core is alone.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Number of the core at a place, from 0 to [`len`](Self::len).
    pub fn core(&self, place: usize) -> CoreId {
        self.links[place].core
    }

    /// Whether a parcel for the core at this place finds room.
    pub fn has_room(&self, place: usize) -> bool {
        !self.links[place].out.is_full()
    }

    /// Sends a parcel; [`flush`](Self::flush) tells the receiver.
    ///
    /// # Panics
    /// When there is no room.
    pub fn send(&mut self, place: usize, parcel: Parcel) {
        let link = &mut self.links[place];
        assert!(link.out.push(parcel).is_ok(), "the sender looks for room first");
        link.untold = true;
    }

    /// A batch that the core at this place has read.
    pub fn returned(&mut self, place: usize) -> Option<Batch> {
        self.links[place].returned.pop().ok()
    }

    /// The next parcel of any core, and the place of that core; each has its turn.
    pub fn take(&mut self) -> Option<(usize, Parcel)> {
        for _ in 0..self.links.len() {
            let place = self.next;
            self.next = (place + 1) % self.links.len();
            let link = &mut self.links[place];
            if let Ok(parcel) = link.arriving.pop() {
                // Looked at behind the taking: a sender that found no room and sleeps over what it could not send has
                // filled the ring before this looks. Where it looks first, both can miss each other.
                fence(Ordering::SeqCst);
                if link.arriving.slots() + 1 >= TRAVELLING_BATCHES {
                    link.bell.ring();
                }
                return Some((place, parcel));
            }
        }
        None
    }

    /// Gives the memory of a batch back to the core at this place, which wrote it.
    pub fn give_back(&mut self, place: usize, batch: Batch) {
        // A core that does not fetch them does not need them.
        drop(self.links[place].read.push(batch));
    }

    /// Wakes those whom something was sent to and who sleep.
    pub fn flush(&mut self) {
        for link in &mut self.links {
            if std::mem::take(&mut link.untold) {
                link.bell.ring();
            }
        }
    }

    /// Something has arrived.
    pub fn has_arrivals(&self) -> bool {
        self.links.iter().any(|link| !link.arriving.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::handoff::Handoff;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn parcel(receipt: u64) -> Parcel {
        let mut parcel = Parcel::default();
        parcel.batch.push(&Handoff::Delivered { receipt });
        parcel
    }

    fn is_ringing(bell: &Bell) -> bool {
        poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    fn three() -> (Vec<Arc<Bell>>, Vec<Neighbours>) {
        let bells: Vec<_> = (0..3).map(|_| Arc::new(Bell::new().unwrap())).collect();
        let all = link(&bells);
        (bells, all)
    }

    #[test]
    fn each_pair_keeps_its_order_and_each_sender_has_its_turn() {
        let (_, mut all) = three();
        for receipt in 0..3 {
            for from in [1, 2] {
                let place = (0..2).find(|place| all[from].core(*place) == 0).unwrap();
                all[from].send(place, parcel(receipt));
            }
        }
        let mut seen = Vec::new();
        while let Some((place, mut parcel)) = all[0].take() {
            let Some(Handoff::Delivered { receipt }) = parcel.batch.take() else { panic!("it was sent") };
            seen.push((all[0].core(place), receipt));
            all[0].give_back(place, parcel.batch);
        }
        assert_eq!(seen, [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2)]);
        assert_eq!(std::iter::from_fn(|| all[2].returned(0)).count(), 3, "their memory comes back");
    }

    #[test]
    fn only_a_sleeper_is_woken_and_so_is_a_sender_that_waits_for_room() {
        let (bells, mut all) = three();
        bells[1].say_asleep();
        all[0].send(0, parcel(1));
        assert!(!is_ringing(&bells[1]), "once a batch, not once a parcel");
        all[0].flush();
        assert!(is_ringing(&bells[1]) && !is_ringing(&bells[2]));
        while all[0].has_room(0) {
            all[0].send(0, parcel(2));
        }
        bells[0].say_asleep();
        assert!(all[1].take().is_some());
        assert!(is_ringing(&bells[0]) && all[0].has_room(0));
        bells[0].silence();
        bells[0].say_asleep();
        assert!(all[1].take().is_some());
        assert!(!is_ringing(&bells[0]), "there was room");
    }
}
