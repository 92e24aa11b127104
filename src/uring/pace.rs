//! How long a turn takes, and which part of it, when it takes too long.
//!
//! A core that is held up holds up everybody on it, so a turn of [`STALL`] or more is a *stall*: it is counted and
//! logged with the phase that took most of it. Time asleep in the kernel is in no turn.
//!
//! Reading the clock costs about as much as handing out one event, so a phase that had nothing to do does not read it:
//! the little that it took goes to the next one.

#![forbid(unsafe_code)]

use std::fmt;
use std::time::Duration;

use crate::metrics::Counters;
use crate::shard::step::{Instant, Level, LogLine};

/// A turn of this length or more is a stall. Sends end after a millisecond and commands are counted, so such a turn has
/// met something unforeseen: much work behind one input, a machine without a processor for us, a page from disk.
pub const STALL: Duration = Duration::from_millis(25);
/// Time between two log lines about stalls of one core.
const QUIET: Duration = Duration::from_secs(10);

/// Parts of a turn, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Completions, and what the core does with them.
    Reap,
    /// What other cores have sent.
    Handoffs,
    /// Commands of the control thread.
    Commands,
    /// Timers that were due.
    Timers,
    /// Sends, each with its system call.
    Sends,
    /// What goes to other cores and the control thread.
    HandOver,
}

const PHASES: [Phase; 6] =
    [Phase::Reap, Phase::Handoffs, Phase::Commands, Phase::Timers, Phase::Sends, Phase::HandOver];

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Reap => "taking completions",
            Phase::Handoffs => "handoffs of other cores",
            Phase::Commands => "commands",
            Phase::Timers => "timers",
            Phase::Sends => "sends",
            Phase::HandOver => "handing over to others",
        })
    }
}

/// The stopwatch of a core.
#[derive(Debug)]
pub struct Pace {
    began: Instant,
    /// When the phase before this one ended.
    passed: Instant,
    /// Time spent in each phase of this turn, nanoseconds.
    spent: [u64; PHASES.len()],
    /// Stalls that no line has told of.
    untold: u64,
    /// Until then stalls are only counted.
    quiet_until: Instant,
}

impl Pace {
    /// Before the first turn.
    pub fn new() -> Pace {
        let start = Instant(0);
        Pace { began: start, passed: start, spent: [0; PHASES.len()], untold: 0, quiet_until: start }
    }

    /// A turn begins.
    pub fn begin(&mut self, now: Instant) {
        (self.began, self.passed, self.spent) = (now, now, [0; PHASES.len()]);
    }

    /// A phase, or a piece of work in it, is over. A time before the last one says that nothing was done.
    pub fn pass(&mut self, phase: Phase, now: Instant) {
        self.spent[phase as usize] += now.0.saturating_sub(self.passed.0);
        self.passed = self.passed.max(now);
    }

    /// The turn is over with the phase that passed last: counts it. A line for the log if it was a stall, unless the
    /// last line is not [`QUIET`] ago.
    pub fn end(&mut self, counters: &mut Counters) -> Option<LogLine> {
        let took = self.passed.0.saturating_sub(self.began.0);
        counters.turns.record(took);
        if took < STALL.as_nanos() as u64 {
            return None;
        }
        counters.stalls += 1;
        self.untold += 1;
        if self.passed < self.quiet_until {
            return None;
        }
        self.quiet_until = self.passed + QUIET;
        Some(self.line(took))
    }

    fn line(&mut self, took: u64) -> LogLine {
        let others = match std::mem::take(&mut self.untold) - 1 {
            0 => String::new(),
            more => format!(", and {more} more since the last such line"),
        };
        let by_phase = PHASES.into_iter().map(|phase| (self.spent[phase as usize], phase));
        let (most, phase) = by_phase.max_by_key(|(nanos, _)| *nanos).expect("a turn has phases");
        let ms = |nanos| nanos / 1_000_000;
        let text = format!(
            "a turn took {} ms, {} ms of it {phase}; everybody on this core waited{others}; \
             look for other work on its processor, swapping, or one very large request",
            ms(took),
            ms(most),
        );
        LogLine { level: Level::Warn, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn that begins at `at` and has these phases, milliseconds.
    fn turn(pace: &mut Pace, counters: &mut Counters, at: u64, phases: &[(Phase, u64)]) -> Option<String> {
        let mut now = Instant(at * 1_000_000);
        pace.begin(now);
        for &(phase, took) in phases {
            now = now + Duration::from_millis(took);
            pace.pass(phase, now);
        }
        pace.end(counters).map(|line| line.text)
    }

    #[test]
    fn a_stall_is_counted_and_its_longest_phase_named() {
        let (mut pace, mut counters) = (Pace::new(), Counters::default());
        let usual = &[(Phase::Reap, 20), (Phase::Sends, 4)];
        assert_eq!(turn(&mut pace, &mut counters, 1_000, usual), None);
        assert_eq!((counters.turns.count(), counters.stalls), (1, 0));
        let long = &[(Phase::Reap, 9), (Phase::Commands, 8), (Phase::Commands, 8)];
        let text = turn(&mut pace, &mut counters, 2_000, long).unwrap();
        assert!(text.starts_with("a turn took 25 ms, 16 ms of it commands; everybody"), "{text}");
        assert_eq!((counters.turns.count(), counters.stalls), (2, 1));
        assert_eq!(counters.turns.longest_nanos(), 25_000_000);
    }

    #[test]
    fn a_phase_that_did_nothing_takes_nothing_away() {
        let (mut pace, mut counters) = (Pace::new(), Counters::default());
        let ms = |n: u64| Instant(n * 1_000_000);
        pace.begin(ms(100));
        pace.pass(Phase::Reap, ms(140));
        pace.pass(Phase::Sends, ms(100));
        pace.pass(Phase::HandOver, ms(141));
        let text = pace.end(&mut counters).unwrap().text;
        assert!(text.starts_with("a turn took 41 ms, 40 ms of it taking completions;"), "{text}");
    }

    #[test]
    fn one_line_in_ten_seconds_tells_of_all() {
        let (mut pace, mut counters) = (Pace::new(), Counters::default());
        let long = &[(Phase::Reap, 30)];
        assert!(turn(&mut pace, &mut counters, 0, long).is_some());
        assert_eq!(turn(&mut pace, &mut counters, 100, long), None);
        assert_eq!(turn(&mut pace, &mut counters, 9_999, long), None);
        let text = turn(&mut pace, &mut counters, 10_000, long).unwrap();
        assert!(text.contains(", and 2 more since the last such line;"), "{text}");
        assert_eq!(counters.stalls, 4);
        let text = turn(&mut pace, &mut counters, 30_000, long).unwrap();
        assert!(!text.contains("more"), "{text}");
    }
}
