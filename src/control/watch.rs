//! What the supervisor hears while the server runs: how it goes every few seconds, and a sign of life from every core.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::admin::Admin;
use super::hub::{Hub, Unanswered};
use super::supervisor::Supervisor;
use crate::limits::LIVENESS_SECONDS;
use crate::shard::step::{Answer, Ask, CoreId};

/// Time between two reports.
const REPORT: Duration = Duration::from_secs(5);

/// Feeds the watchdog twice in its period, each time only after every core has taken a turn: one that is stuck starves
/// it. A core that has ended needs no watching, whoever waits for its thread knows.
pub async fn feed(supervisor: Arc<Supervisor>, hub: Arc<Hub>, period: Duration) {
    let mut times = interval(period / 2);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        if hub.order_all(|| Ask::Turn).done().await {
            supervisor.feed().await;
        }
    }
}

/// Reports until the first core ends.
pub async fn report(supervisor: Arc<Supervisor>, admin: Arc<Admin>) {
    let mut times = interval(REPORT);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last: Option<(Instant, u64)> = None;
    loop {
        times.tick().await;
        let mut asked = std::pin::pin!(admin.hub.ask_all(|| Ask::Stats));
        let answers = match timeout(Duration::from_secs(LIVENESS_SECONDS), &mut asked).await {
            Ok(answers) => answers,
            Err(_) => {
                supervisor.status("a core does not answer").await;
                asked.await
            }
        };
        match answers {
            Ok(answers) => {
                let now = Instant::now();
                let totals = Totals::of(&answers);
                // The first time there is nothing to compare with, and what was said at the start stays.
                if let Some((then, sent)) = last.replace((now, totals.sent)) {
                    let per_second = (totals.sent - sent) as f64 / (now - then).as_secs_f64();
                    let is_draining = admin.draining.load(Ordering::Relaxed);
                    supervisor.status(&totals.status(per_second, is_draining)).await;
                }
            }
            Err(Unanswered::Overloaded | Unanswered::Draining) => {
                supervisor.status("too many requests wait for a core").await
            }
            Err(Unanswered::Ended) => return,
        }
    }
}

/// Of all cores.
#[derive(Debug, Default)]
struct Totals {
    connections: u64,
    parked: u64,
    sent: u64,
}

impl Totals {
    fn of(answers: &[(CoreId, Answer)]) -> Totals {
        let mut totals = Totals::default();
        for (_, answer) in answers {
            if let Answer::Stats(stats) = answer {
                totals.connections += stats.connected_clients;
                totals.parked += stats.parked_sessions;
                totals.sent += stats.counters.sent;
            }
        }
        totals
    }

    fn status(&self, per_second: f64, is_draining: bool) -> String {
        let Totals { connections, parked, .. } = self;
        let state = if is_draining { "draining: " } else { "" };
        format!(
            "{state}{connections} connections, {parked} parked sessions, {per_second:.0} deliveries a second"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Counters;
    use crate::shard::step::Stats;

    #[test]
    fn a_report_sums_over_the_cores() {
        let core = |core, connected_clients, parked_sessions, sent| {
            let counters = Counters { sent, ..Counters::default() };
            let stats = Stats { core, connected_clients, parked_sessions, counters, ..Stats::default() };
            (core, Answer::Stats(Box::new(stats)))
        };
        let totals = Totals::of(&[core(0, 3, 1, 10), core(1, 4, 0, 20)]);
        assert_eq!(totals.sent, 30);
        assert_eq!(totals.status(7.6, false), "7 connections, 1 parked sessions, 8 deliveries a second");
        assert!(totals.status(0.0, true).starts_with("draining: 7 connections"));
    }
}
