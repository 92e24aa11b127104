//! Tables of a run, before anybody decides how they look: one of the targets, one of each work.

use crate::figure::{Figure, of_scenario, scenario, short};
use crate::measurement::Measurement;
use crate::results::Results;
use crate::statistics::{Estimate, estimate, estimate_of, ratios};
use crate::targets::{OURS, Outcome, ROWS, outcome};

/// A table of texts.
#[derive(Debug)]
pub struct Table {
    pub title: String,
    /// Sentences under the title.
    pub notes: Vec<String>,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// "median [low - high]", with the extremes in round brackets where there are too few values for an interval.
pub fn spread(estimate: &Estimate) -> String {
    let median = short(estimate.median);
    match estimate.interval {
        Some((low, high)) => format!("{median} [{} - {}]", short(low), short(high)),
        None if estimate.count > 1 => {
            format!("{median} ({} - {})", short(estimate.least), short(estimate.most))
        }
        None => median,
    }
}

/// Every target with what the run says about it.
pub fn targets(results: &Results) -> Table {
    let mut rows = Vec::new();
    let mut met = 0;
    for (number, row) in ROWS.iter().enumerate() {
        let verdicts = row.verdicts(results);
        let whole = outcome(&verdicts);
        met += usize::from(whole == Outcome::Met);
        rows.push(vec![
            (number + 1).to_string(),
            row.title.to_owned(),
            String::new(),
            String::new(),
            whole.to_string(),
        ]);
        for verdict in verdicts {
            let number = verdict.estimate.as_ref().map_or_else(|| "-".to_owned(), spread);
            let close = if verdict.close { ", close" } else { "" };
            rows.push(vec![
                String::new(),
                verdict.what,
                number,
                verdict.bound.to_string(),
                format!("{}{close}", verdict.outcome),
            ]);
        }
    }
    Table {
        title: format!("Targets: {met} of {} met", ROWS.len()),
        notes: vec![
            "Ratios are those of pairs measured in the same round; the number is their median, in brackets its 95 % \
             interval. \"Close\": the interval lies on both sides of the bound."
                .to_owned(),
        ],
        head: ["", "", "median", "bound", ""].map(str::to_owned).into(),
        rows,
    }
}

/// One work: each server with its figures, and its ratio to ours.
pub fn work(results: &Results, work: &str) -> Table {
    let figures = of_scenario(scenario(work));
    let mut head = vec!["server".to_owned(), "runs".to_owned()];
    head.extend(figures.iter().map(|figure| figure.title.to_owned()));
    if let Some(first) = figures.first() {
        head.push(format!("{OURS} / it, {}", first.title));
    }
    head.extend(["server CPU", "generator CPU", "wrong"].map(str::to_owned));
    let rows =
        results.subjects(work).into_iter().map(|subject| line(results, work, subject, &figures)).collect();
    let about = crate::work::WORKS.iter().find(|known| known.name == work);
    let mut notes: Vec<String> = about.map(|known| known.about.to_owned()).into_iter().collect();
    notes.extend(disturbed(results, work));
    Table { title: work.to_owned(), notes, head, rows }
}

fn line(results: &Results, work: &str, subject: &str, figures: &[&Figure]) -> Vec<String> {
    let usable = results.usable(work, subject);
    let dash = || "-".to_owned();
    let mut row = vec![subject.to_owned(), usable.len().to_string()];
    for figure in figures {
        let values = results.values(work, subject, figure.name);
        row.push(estimate_of(&values).as_ref().map_or_else(dash, spread));
    }
    if let Some(first) = figures.first() {
        let ours = results.values(work, OURS, first.name);
        let ratio = estimate_of(&ratios(&ours, &results.values(work, subject, first.name)));
        row.push(ratio.as_ref().filter(|_| subject != OURS).map_or_else(dash, spread));
    }
    let share = |of: fn(&Measurement) -> f64| {
        let values: Vec<f64> = usable.values().map(|m| of(m)).collect();
        estimate(&values).map_or_else(dash, |estimate| format!("{:.2}", estimate.median))
    };
    row.push(share(|m| m.load.server));
    row.push(share(|m| m.load.generator));
    let faults = results.faults(work, subject);
    let faults: Vec<String> = faults.iter().map(|(name, count)| format!("{count} {name}")).collect();
    row.push(if faults.is_empty() { "0".to_owned() } else { faults.join(", ") });
    row
}

/// One sentence for each server that was disturbed, with the last reason.
fn disturbed(results: &Results, work: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    for subject in results.subjects(work) {
        let reasons: Vec<&str> = results.tries(work, subject).filter_map(|m| m.refused.as_deref()).collect();
        if let Some(last) = reasons.last() {
            let times = reasons.len();
            sentences.push(format!("{subject}: {times} measured and not counted, the last because: {last}."));
        }
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    #[test]
    fn a_work_has_a_row_for_each_server_and_a_ratio_to_ours() {
        let table = work(&example::results(), "fanout-1000x100-w1");
        let names: Vec<&str> = table.rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(names, ["seqcast", "bun-publish", "ws"]);
        let ratio =
            table.head.iter().position(|head| head.starts_with("seqcast / it")).expect("there is one");
        assert_eq!(table.rows[0][ratio], "-");
        assert_eq!(table.rows[1][ratio], "0.500 [0.500 - 0.500]");
        assert!(table.rows.iter().all(|row| row.len() == table.head.len()));
    }

    #[test]
    fn disturbed_measurements_are_spoken_of() {
        let mut results = example::results();
        results.measurements[0].refused = Some("others used 0.20 of a processor".to_owned());
        let table = work(&results, "fanout-1000x100-w1");
        assert!(
            table.notes.iter().any(|note| note.contains("seqcast: 1 measured and not counted")),
            "{table:?}"
        );
        assert_eq!(table.rows[0][1], "8");
    }

    #[test]
    fn targets_count_what_is_met() {
        let table = targets(&example::results());
        assert!(table.title.starts_with("Targets: 0 of 11 met"), "{}", table.title);
        assert!(table.rows.iter().any(|row| row[4] == "not measured"));
    }
}
