//! How long to wait before the next attempt to connect.

use std::time::Duration;

use super::gate::Generation;

/// Bounds of the waiting times.
#[derive(Debug, Clone, Copy)]
pub struct BackoffOptions {
    /// Bound of the first wait; it doubles with every failure.
    pub initial: Duration,
    /// Bound of every wait.
    pub max: Duration,
    /// A connection that lived so long begins the row anew (generation `Seqcast`; the reference clients begin it anew
    /// with every connection).
    pub stable: Duration,
}

impl Default for BackoffOptions {
    fn default() -> Self {
        BackoffOptions {
            initial: Duration::from_millis(250),
            max: Duration::from_secs(30),
            stable: Duration::from_secs(10),
        }
    }
}

/// The row of waits of one session. The same seed gives the same row.
#[derive(Debug)]
pub struct Backoff {
    options: BackoffOptions,
    generation: Generation,
    attempts: u32,
    opened: Option<Duration>,
    random: u64,
}

impl Backoff {
    /// A row at its beginning.
    pub fn new(options: BackoffOptions, generation: Generation, seed: u64) -> Self {
        Backoff { options, generation, attempts: 0, opened: None, random: seed }
    }

    /// A connection is open.
    pub fn opened(&mut self, now: Duration) {
        self.opened = Some(now);
        if self.generation != Generation::Seqcast {
            self.attempts = 0;
        }
    }

    /// The connection ended or could not be made: how long to wait. Ours is anything up to the bound, so that the
    /// clients of a server that fell do not come back together; the reference clients vary by half around it.
    pub fn lost(&mut self, now: Duration) -> Duration {
        if self.opened.take().is_some_and(|opened| now.saturating_sub(opened) >= self.options.stable) {
            self.attempts = 0;
        }
        let doubled = self.options.initial.saturating_mul(1 << self.attempts.min(31));
        let bound = doubled.min(self.options.max);
        self.attempts = self.attempts.saturating_add(1);
        let part = self.part();
        match self.generation {
            Generation::Seqcast => bound.mul_f64(part),
            Generation::V015 | Generation::V016 => bound.mul_f64(0.5 + part),
        }
    }

    /// Uniform in 0..1 (splitmix64).
    fn part(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
