//! Two runs beside each other: what each server's figures became, and whether that is more than chance.

use crate::figure::{Better, of_scenario, scenario};
use crate::results::Results;
use crate::statistics::{estimate_of, ratios};
use crate::table::{Table, spread};
use crate::text::plain;

/// The second run against the first: one table for each work that both have.
pub fn compare(before: &Results, after: &Results) -> String {
    let mut text = String::new();
    let differences = before.run.machine.differences(&after.run.machine);
    if !differences.is_empty() {
        text += "THE MACHINES DIFFER. Figures of the two runs are not comparable; only ratios to a server that both\n\
                 measured are.\n";
        for (what, before, after) in differences {
            text += &format!("  {what}: {before} -> {after}\n");
        }
        text.push('\n');
    }
    text += &format!("commits: {} -> {}\n\n", before.run.machine.commit, after.run.machine.commit);
    let common: Vec<&str> = before.works().into_iter().filter(|work| after.works().contains(work)).collect();
    if common.is_empty() {
        text += "The two runs have no work in common.\n";
    }
    for work in common {
        text += &plain(&table(before, after, work));
        text.push('\n');
    }
    text
}

fn table(before: &Results, after: &Results, work: &str) -> Table {
    let head = ["server", "figure", "before", "after", "after / before", ""].map(str::to_owned).into();
    let mut rows = Vec::new();
    let theirs = after.subjects(work);
    for subject in before.subjects(work).into_iter().filter(|subject| theirs.contains(subject)) {
        for figure in of_scenario(scenario(work)) {
            let (one, other) =
                (before.values(work, subject, figure.name), after.values(work, subject, figure.name));
            let (Some(was), Some(is)) = (estimate_of(&one), estimate_of(&other)) else { continue };
            let ratio = estimate_of(&ratios(&other, &one));
            let verdict = match ratio.and_then(|ratio| ratio.interval) {
                Some((_, high)) if high < 1.0 => {
                    if figure.better == Better::Lower {
                        "better"
                    } else {
                        "worse"
                    }
                }
                Some((low, _)) if low > 1.0 => {
                    if figure.better == Better::Lower {
                        "worse"
                    } else {
                        "better"
                    }
                }
                Some(_) => "no difference shown",
                None => "too few rounds to tell",
            };
            rows.push(vec![
                subject.to_owned(),
                figure.title.to_owned(),
                spread(&was),
                spread(&is),
                ratio.as_ref().map_or_else(|| "-".to_owned(), spread),
                verdict.to_owned(),
            ]);
        }
    }
    Table { title: work.to_owned(), notes: Vec::new(), head, rows }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results::example;

    #[test]
    fn a_run_does_not_differ_from_itself() {
        let text = compare(&example::results(), &example::results());
        assert!(text.contains("no difference shown") && !text.contains("worse"), "{text}");
        assert!(!text.contains("MACHINES DIFFER"), "{text}");
    }

    #[test]
    fn a_change_beyond_the_interval_has_a_direction() {
        let mut after = example::results();
        for one in &mut after.measurements {
            let cost = one.figures.get_mut("server_us_per_delivery");
            cost.into_iter().for_each(|cost| *cost *= 0.8);
            one.figures.get_mut("deliveries_per_s").into_iter().for_each(|rate| *rate *= 0.9);
        }
        let text = compare(&example::results(), &after);
        let line =
            |name: &str| text.lines().find(|line| line.starts_with("ws") && line.contains(name)).unwrap();
        assert!(line("CPU us/delivery").ends_with("better"), "{text}");
        assert!(line("deliveries/s").ends_with("worse"), "{text}");
    }

    #[test]
    fn another_machine_is_said_aloud() {
        let mut after = example::results();
        after.run.machine = Machine { kernel: "7.0".to_owned(), ..Machine::default() };
        let text = compare(&example::results(), &after);
        assert!(text.starts_with("THE MACHINES DIFFER") && text.contains("kernel:  -> 7.0"), "{text}");
    }
}
