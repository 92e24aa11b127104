//! How far a run is: a bar on a terminal, a line for each measurement elsewhere.

use crate::figure::{of_scenario, scenario, short};
use crate::measurement::Measurement;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

const CELLS: usize = 24;

/// Progress of a run with a known number of steps.
pub struct Progress {
    steps: usize,
    done: usize,
    began: Instant,
    terminal: bool,
    /// The last measurement, shown until the next one is there.
    last: String,
}

impl Progress {
    pub fn new(steps: usize) -> Progress {
        Progress {
            steps,
            done: 0,
            began: Instant::now(),
            terminal: stderr().is_terminal(),
            last: String::new(),
        }
    }

    /// What is being measured now.
    pub fn show(&self, what: &str) {
        if self.terminal {
            let bar = bar(self.done, self.steps);
            let left = left(self.began.elapsed(), self.done, self.steps);
            eprint!("\r\x1b[2K[{bar}] {}/{} {left}  {what}   {}", self.done, self.steps, self.last);
            let _ = stderr().flush();
        }
    }

    /// What came out.
    pub fn note(&mut self, one: &Measurement) {
        let figures = of_scenario(scenario(&one.work)).into_iter().take(2);
        let known = figures
            .filter_map(|figure| Some(format!("{} {}", short(*one.figures.get(figure.name)?), figure.title)));
        let mut line = format!("{} {}: {}", one.work, one.subject, known.collect::<Vec<_>>().join(", "));
        if let Some(why) = &one.refused {
            line += &format!(" NOT COUNTED, {why}");
        }
        if !one.faults.is_empty() {
            line += &format!(" WRONG {:?}", one.faults);
        }
        if !self.terminal {
            eprintln!("{}/{} {line}", self.done + 1, self.steps);
        }
        self.last = format!("(last: {line})");
    }

    /// One step is done.
    pub fn advance(&mut self) {
        self.done += 1;
    }

    /// All are.
    pub fn end(&self) {
        if self.terminal {
            eprintln!("\r\x1b[2K[{}] {}/{}", bar(self.done, self.steps), self.done, self.steps);
        }
    }
}

fn bar(done: usize, steps: usize) -> String {
    let full = (CELLS * done).checked_div(steps).unwrap_or(CELLS).min(CELLS);
    format!("{}{}", "#".repeat(full), "-".repeat(CELLS - full))
}

/// Time left by the pace so far.
fn left(gone: Duration, done: usize, steps: usize) -> String {
    if done == 0 {
        return String::new();
    }
    let seconds = gone.as_secs_f64() / done as f64 * (steps - done.min(steps)) as f64;
    format!("{} min left", (seconds / 60.0).ceil())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fills_and_time_runs_out() {
        assert_eq!(bar(0, 10), "-".repeat(CELLS));
        assert_eq!(bar(5, 10).matches('#').count(), CELLS / 2);
        assert_eq!(bar(10, 10), "#".repeat(CELLS));
        assert_eq!(left(Duration::from_secs(60), 1, 11), "10 min left");
        assert_eq!(left(Duration::from_secs(60), 0, 11), "");
    }
}
