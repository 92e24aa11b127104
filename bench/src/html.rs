//! The report as one page that needs nothing else: tables, pictures, machine, commands.

use crate::figure::{of_scenario, scenario};
use crate::plot::{STYLE, bars, escape, percentiles};
use crate::results::Results;
use crate::statistics::estimate_of;
use crate::table::Table;
use crate::text::tables;
use anyhow::Result;
use std::collections::BTreeMap;

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.5 sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
table{border-collapse:collapse;margin:1em 0;font-size:13px;font-variant-numeric:tabular-nums}\
.wide{overflow-x:auto}\
td,th{border-bottom:1px solid #ddd;padding:3px 8px;text-align:left;white-space:nowrap}\
.targets td:nth-child(2){white-space:normal}\
.targets td:first-child:not(:empty)~td{font-weight:bold}.met{color:#16803c}.missed{color:#c62b12}\
pre,code{font:12px monospace}pre{white-space:pre-wrap;background:#f4f4f4;padding:8px}\
svg{max-width:900px;width:100%;height:auto}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#16181c}td,th{border-color:#3a3d44}\
pre{background:#22252b}.met{color:#5fd38a}.missed{color:#ff8a73}}";

/// A whole run as a page.
pub fn report(results: &Results) -> Result<String> {
    let run = &results.run;
    let mut body = format!(
        "<h1>seqcast beside others</h1>\n<p>Suite <code>{}</code>, {} rounds. Server and generator each on a processor \
         of their own, over loopback. Measurements of a round stand side by side; ratios are of pairs of one round, \
         the number shown is their median, in square brackets its distribution-free 95 % interval.</p>\n",
        escape(&run.suite),
        run.rounds
    );
    for table in tables(results) {
        body += &section(results, &table)?;
    }
    body += &list("Machine", run.machine.lines().into_iter().map(|(name, value)| (name.to_owned(), value)));
    let about = |name: &str| crate::subject::subject(name).map_or("", |known| known.about);
    body += &list(
        "Versions",
        owned(&run.versions).map(|(name, text)| (format!("{name}: {}", about(&name)), text)),
    );
    if !run.absent.is_empty() {
        body += &list("Not measured here", owned(&run.absent));
    }
    body += &format!("<h2>Commands</h2>\n<pre>{}</pre>\n", escape(&run.command));
    body += &list("Servers", owned(&run.servers));
    body += &list("Generator", owned(&run.works));
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>seqcast beside others</title>\n\
         <style>{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    ))
}

/// Pictures of a work, by the name of their file.
pub fn pictures(results: &Results, work: &str) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let subjects = results.subjects(work);
    if let Some(figure) = of_scenario(scenario(work)).first() {
        let estimate = |subject: &&str| estimate_of(&results.values(work, subject, figure.name));
        let every = subjects.iter().filter_map(|subject| Some(((*subject).to_owned(), estimate(subject)?)));
        if let Some(svg) = bars(&every.collect::<Vec<_>>()) {
            found.insert(format!("{work}.svg"), svg);
        }
    }
    let mut lines = Vec::new();
    for subject in subjects {
        if let Some(histogram) = results.latencies(work, subject)? {
            lines.push((subject.to_owned(), histogram));
        }
    }
    if let Some(svg) = percentiles(&lines) {
        found.insert(format!("{work}-latency.svg"), svg);
    }
    Ok(found)
}

fn section(results: &Results, table: &Table) -> Result<String> {
    let mut text = format!("<h2>{}</h2>\n", escape(&table.title));
    let is_work = results.works().contains(&table.title.as_str());
    for note in &table.notes {
        text += &format!("<p>{}</p>\n", escape(note));
    }
    text += &format!("<div class=\"wide\"><table class=\"{}\">\n", if is_work { "work" } else { "targets" });
    text += &row("th", &table.head);
    table.rows.iter().for_each(|cells| text += &row("td", cells));
    text += "</table></div>\n";
    if is_work {
        let first = of_scenario(scenario(&table.title)).first().map_or("", |figure| figure.title);
        for (name, svg) in pictures(results, &table.title)? {
            let what = if name.ends_with("-latency.svg") { "latency by percentile" } else { first };
            text += &format!("<figure><figcaption>{}</figcaption>\n{svg}</figure>\n", escape(what));
        }
    }
    Ok(text)
}

fn row(element: &str, cells: &[String]) -> String {
    let class = |cell: &str| match cell.split(',').next() {
        Some("met") => " class=\"met\"",
        Some("missed") => " class=\"missed\"",
        _ => "",
    };
    let cells = cells.iter().map(|cell| format!("<{element}{}>{}</{element}>", class(cell), escape(cell)));
    format!("<tr>{}</tr>\n", cells.collect::<String>())
}

fn owned(map: &BTreeMap<String, String>) -> impl Iterator<Item = (String, String)> {
    map.iter().map(|(name, value)| (name.clone(), value.clone()))
}

fn list(title: &str, lines: impl Iterator<Item = (String, String)>) -> String {
    let rows = lines.map(|(name, value)| {
        format!(
            "<tr><td>{}</td><td style=\"white-space:normal\"><code>{}</code></td></tr>\n",
            escape(&name),
            escape(&value)
        )
    });
    format!("<h2>{}</h2>\n<table>\n{}</table>\n", escape(title), rows.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    #[test]
    fn the_page_needs_nothing_else() {
        let page = report(&example::results()).expect("the histograms are readable");
        for outside in ["src=", "href=", "@import", "url(", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        // Two works, each with bars and percentiles.
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(page.contains("prefers-color-scheme:dark"));
    }
}
