//! Tables as plain text and as Markdown.

use crate::results::Results;
use crate::table::{Table, targets, work};
use std::fmt::Write;

/// A whole run for a terminal.
pub fn report(results: &Results) -> String {
    let run = &results.run;
    let mut text = format!("{}\n\n", run.command);
    for (name, value) in run.machine.lines() {
        let _ = writeln!(text, "{name:<10} {value}");
    }
    for (subject, version) in &run.versions {
        let about = crate::subject::subject(subject).map_or("", |known| known.about);
        let _ = writeln!(text, "{subject:<16} {version} ({about})");
    }
    for (subject, why) in &run.absent {
        let _ = writeln!(text, "{subject:<16} not here: {why}");
    }
    text.push('\n');
    for table in tables(results) {
        text += &plain(&table);
        text.push('\n');
    }
    text
}

/// The tables of a run, to be pasted into a page.
pub fn markdown(results: &Results) -> String {
    tables(results).iter().map(|table| markdown_of(table) + "\n").collect()
}

/// Every table of a run: targets first, unless it was too small a run to have any.
pub fn tables(results: &Results) -> Vec<Table> {
    let mut tables = Vec::new();
    if results.run.suite != "tiny" {
        tables.push(targets(results));
    }
    tables.extend(results.works().into_iter().map(|name| work(results, name)));
    tables
}

/// Columns padded to their widest cell.
pub fn plain(table: &Table) -> String {
    let columns = table.head.len();
    let cells = || std::iter::once(&table.head).chain(&table.rows);
    let width = |column: usize| cells().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = format!("{}\n{}\n", table.title, "=".repeat(table.title.chars().count()));
    for note in &table.notes {
        text += &format!("{note}\n");
    }
    for row in cells() {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = padded.collect::<Vec<_>>().join("  ");
        text += &format!("{}\n", line.trim_end());
    }
    text
}

fn markdown_of(table: &Table) -> String {
    let row = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = format!("### {}\n\n", table.title);
    for note in &table.notes {
        text += &format!("{note}\n\n");
    }
    text += &row(&table.head);
    text += &row(&vec!["---".to_owned(); table.head.len()]);
    table.rows.iter().for_each(|cells| text += &row(cells));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    fn small() -> Table {
        let words = |words: [&str; 2]| words.map(str::to_owned).to_vec();
        let rows = vec![words(["ws", "1|2"]), words(["longer", "3"])];
        Table { title: "t".to_owned(), notes: vec!["n.".to_owned()], head: words(["server", "x"]), rows }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        assert_eq!(plain(&small()), "t\n=\nn.\nserver  x\nws      1|2\nlonger  3\n");
    }

    #[test]
    fn markdown_keeps_bars_in_their_cell() {
        let text = markdown_of(&small());
        assert!(text.contains("| --- | --- |\n| ws | 1\\|2 |\n"), "{text}");
    }

    #[test]
    fn a_report_has_every_work() {
        let text = report(&example::results());
        for expected in ["Targets: ", "fanout-1000x100-w1\n===", "latency-1000x100-r100\n===", "bun-publish"]
        {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
