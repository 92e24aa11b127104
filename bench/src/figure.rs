//! The figures that reports show: titles, how they are written, which way is better, which belong to a scenario.

/// Which of two values is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

/// A figure of [`crate::measurement::Measurement::figures`].
#[derive(Debug)]
pub struct Figure {
    /// Name in the record, unit included.
    pub name: &'static str,
    /// Head of its column.
    pub title: &'static str,
    pub better: Better,
}

const FIGURES: [Figure; 16] = [
    figure("deliveries_per_s", "deliveries/s", Better::Higher),
    figure("server_us_per_delivery", "CPU us/delivery", Better::Lower),
    figure("round_trips_per_s", "round trips/s", Better::Higher),
    figure("server_us_per_round_trip", "CPU us/trip", Better::Lower),
    figure("handshakes_per_s", "handshakes/s", Better::Higher),
    figure("server_us_per_handshake", "CPU us/handshake", Better::Lower),
    figure("bytes_per_connection", "bytes/connection", Better::Lower),
    figure("caught_up_s", "caught up, s", Better::Lower),
    figure("live_s", "the same live, s", Better::Lower),
    figure("caught_up_to_live", "caught up / live", Better::Lower),
    figure("p50_us", "p50 us", Better::Lower),
    figure("p90_us", "p90 us", Better::Lower),
    figure("p99_us", "p99 us", Better::Lower),
    figure("p999_us", "p99.9 us", Better::Lower),
    figure("p9999_us", "p99.99 us", Better::Lower),
    figure("max_us", "max us", Better::Lower),
];

const fn figure(name: &'static str, title: &'static str, better: Better) -> Figure {
    Figure { name, title, better }
}

/// The scenario of a work: what stands before the first "-" of its name.
pub fn scenario(work: &str) -> &str {
    work.split('-').next().unwrap_or(work)
}

/// Figures of a scenario in the order of their columns; the first is the one that servers are compared by.
pub fn of_scenario(scenario: &str) -> Vec<&'static Figure> {
    let names: &[&str] = match scenario {
        "fanout" | "cores" => &["server_us_per_delivery", "deliveries_per_s", "p50_us", "p99_us"],
        "latency" | "slow" | "churn" => &["p99_us", "p50_us", "p90_us", "p999_us", "p9999_us", "max_us"],
        "echo" | "rpc" => &["round_trips_per_s", "server_us_per_round_trip", "p50_us", "p99_us"],
        "connect" => &["handshakes_per_s", "server_us_per_handshake", "p50_us", "p99_us"],
        "idle" => &["bytes_per_connection"],
        "resume" => &["caught_up_to_live", "caught_up_s", "live_s"],
        _ => &[],
    };
    names.iter().filter_map(|name| FIGURES.iter().find(|figure| figure.name == *name)).collect()
}

/// A number in as few characters as tell it apart: three significant digits, thousands as k, millions as M.
pub fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        huge if huge >= 999_500.0 => (value / 1e6, "M"),
        large if large >= 9_995.0 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        hundreds if hundreds >= 99.95 => 0,
        tens if tens >= 9.995 => 1,
        ones if ones >= 0.9995 || ones == 0.0 => 2,
        _ => 3,
    };
    format!("{scaled:.digits$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let cases = [
            (0.0, "0.00"),
            (0.5023, "0.502"),
            (4.666, "4.67"),
            (11.04, "11.0"),
            (253.4, "253"),
            (9_400.0, "9400"),
            (181_234.0, "181k"),
            (2_183_000.0, "2.18M"),
            (999_600.0, "1.00M"),
        ];
        for (value, expected) in cases {
            assert_eq!(short(value), expected, "{value}");
        }
    }

    #[test]
    fn every_scenario_of_the_table_of_works_has_figures() {
        for work in crate::work::WORKS {
            assert!(!of_scenario(scenario(work.name)).is_empty(), "{}", work.name);
        }
    }
}
