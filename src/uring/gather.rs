//! How much a core waits for before it wakes. Asleep until the first completion, a core that is faster than its peers
//! wakes for each of them, and each of them pays for waking it; and it sends events one by one that would have gone out
//! together a moment later. So what the last turn was like decides. Behind one with many completions half as many are
//! waited for; behind one whose sends carried several events each, more events are; both for a moment at most. A core
//! with little to do wakes at the first completion.

#![forbid(unsafe_code)]

use std::time::Duration;

/// Completions of a turn from which on the next ones are waited for together.
const MANY: u32 = 8;
/// How long half as many completions are waited for at most.
const MOMENT: Duration = Duration::from_micros(50);
/// Events in a send, on average, at which more are waited for: there are more than can be sent one by one, and not so
/// many that what a send costs besides its events hardly counts.
const COALESCED: std::ops::Range<u64> = 4..64;
/// How long more events are waited for at most, and as a part of the time that sending took.
const LONGEST: Duration = Duration::from_micros(250);
const PART: u32 = 2;

/// What a turn was like.
#[derive(Debug, Default, Clone, Copy)]
pub struct Gather {
    completions: u32,
    sends: u64,
    sending: Duration,
}

/// What to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// So many completions.
    pub completions: u32,
    /// After this time one is enough.
    pub patience: Duration,
}

impl Wait {
    /// More events are waited for, whatever is there already.
    pub fn is_for_events(&self) -> bool {
        self.completions == u32::MAX
    }
}

impl Gather {
    /// A turn begins.
    pub fn begin(&mut self) {
        *self = Gather::default();
    }

    /// A completion was acted on.
    pub fn completed(&mut self) {
        self.completions += 1;
    }

    /// So many connections were sent to, which took so long.
    pub fn sent(&mut self, sends: usize, took: Duration) {
        self.sends += sends as u64;
        self.sending += took;
    }

    /// What to wait for behind this turn, whose sends carried so many events.
    pub fn wait(&self, events: u64) -> Wait {
        if self.sends > 0 && COALESCED.contains(&(events / self.sends)) {
            let patience = (self.sending / PART).min(LONGEST);
            Wait { completions: u32::MAX, patience }
        } else if self.completions >= MANY {
            Wait { completions: self.completions / 2, patience: MOMENT }
        } else {
            Wait { completions: 1, patience: Duration::ZERO }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(completions: u32, sends: usize, micros: u64, events: u64) -> Wait {
        let mut gather = Gather::default();
        gather.begin();
        (0..completions).for_each(|_| gather.completed());
        gather.sent(sends, Duration::from_micros(micros));
        gather.wait(events)
    }

    #[test]
    fn little_work_wakes_at_once() {
        let at_once = Wait { completions: 1, patience: Duration::ZERO };
        assert_eq!(turn(0, 0, 0, 0), at_once);
        assert_eq!(turn(1, 1000, 4000, 1000), at_once, "one event to many is no reason to wait");
        assert_eq!(turn(7, 7, 30, 7), at_once);
    }

    #[test]
    fn many_completions_are_waited_for_by_half() {
        assert_eq!(turn(64, 64, 300, 64), Wait { completions: 32, patience: MOMENT });
    }

    #[test]
    fn coalesced_events_are_waited_for_half_as_long_as_they_took_to_send() {
        let wait = turn(2, 100, 400, 900);
        assert_eq!(wait, Wait { completions: u32::MAX, patience: Duration::from_micros(200) });
        assert_eq!(turn(2, 1000, 4000, 9000).patience, LONGEST);
        assert!(!turn(2, 100, 400, 6400).is_for_events(), "enough is enough");
    }
}
