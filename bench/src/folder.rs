//! The result folder: raw data that is appended while a run goes on, and the reports that are made of it.

use crate::html;
use crate::machine::Run;
use crate::measurement::Measurement;
use crate::plot::alone;
use crate::results::{Results, histogram};
use crate::text;
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Machine, versions, commands.
const RUN: &str = "machine.json";
/// One measurement a line, as the generator wrote it.
const MEASUREMENTS: &str = "measurements.jsonl";
/// Every histogram of the run with its time, as HdrHistogram's log tools read it.
const LOG: &str = "histograms.hlog";
/// Percentile distributions, one file for each work and server, rounds merged.
const DISTRIBUTIONS: &str = "histograms";
const PICTURES: &str = "plots";

/// A folder of results.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A new folder. One that already holds a run is an error: results are never mixed.
    pub fn create(path: &Path) -> Result<Folder> {
        let folder = Folder { path: path.to_owned() };
        anyhow::ensure!(
            !folder.file(MEASUREMENTS).exists(),
            "{} already holds results; choose another folder",
            path.display()
        );
        fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(folder)
    }

    /// A folder that is there.
    pub fn again(path: &Path) -> Folder {
        Folder { path: path.to_owned() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let file = self.file(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    /// What the run is about; written again when more is known.
    pub fn write_run(&self, run: &Run) -> Result<()> {
        self.write(RUN, &(serde_json::to_string_pretty(run)? + "\n"))
    }

    /// Adds a measurement. A run that is cut short leaves what it had.
    pub fn append(&self, measurement: &Measurement) -> Result<()> {
        let file = self.file(MEASUREMENTS);
        let mut lines = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&file)
            .with_context(|| format!("cannot write {}", file.display()))?;
        writeln!(lines, "{}", serde_json::to_string(measurement)?)?;
        Ok(())
    }

    /// Reads a folder back.
    pub fn read(path: &Path) -> Result<Results> {
        let folder = Folder::again(path);
        let load = |name: &str| {
            let file = folder.file(name);
            fs::read_to_string(&file)
                .with_context(|| format!("{} is no result folder: {name}", path.display()))
        };
        let run =
            serde_json::from_str(&load(RUN)?).with_context(|| format!("{RUN} of {}", path.display()))?;
        let mut measurements = Vec::new();
        for (number, line) in load(MEASUREMENTS)?.lines().enumerate() {
            let one = serde_json::from_str(line);
            measurements
                .push(one.with_context(|| format!("{MEASUREMENTS}:{} of {}", number + 1, path.display()))?);
        }
        Ok(Results { run, measurements })
    }

    /// Writes everything that is made of the raw data, over what was there.
    pub fn write_reports(&self, results: &Results) -> Result<()> {
        self.write("report.txt", &text::report(results))?;
        self.write("report.html", &html::report(results)?)?;
        fs::create_dir_all(self.file(PICTURES))?;
        fs::create_dir_all(self.file(DISTRIBUTIONS))?;
        for work in results.works() {
            for (name, svg) in html::pictures(results, work)? {
                self.write(&format!("{PICTURES}/{name}"), &alone(&svg))?;
            }
            for subject in results.subjects(work) {
                if let Some(histogram) = results.latencies(work, subject)? {
                    self.write(&format!("{DISTRIBUTIONS}/{work}.{subject}.hgrm"), &distribution(&histogram))?;
                }
            }
        }
        self.write_log(results)
    }

    /// Every histogram in the order of the run, tagged "WORK/SERVER/ROUND".
    fn write_log(&self, results: &Results) -> Result<()> {
        let mut file = Vec::new();
        let mut serializer = V2DeflateSerializer::new();
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(results.run.at);
        let mut log = IntervalLogWriterBuilder::new()
            .add_comment("latencies in nanoseconds; the column of maxima is in milliseconds")
            .with_start_time(start)
            .with_max_value_divisor(1e6)
            .begin_log_with(&mut file, &mut serializer)?;
        for measurement in &results.measurements {
            let Some(latencies) = histogram(measurement)? else { continue };
            let tag = format!("{}/{}/{}", measurement.work, measurement.subject, measurement.round);
            let began = Duration::from_secs(measurement.at);
            let lasted = Duration::from_secs_f64(measurement.seconds.max(0.0));
            log.write_histogram(&latencies, began, lasted, Tag::new(&tag))
                .map_err(|error| anyhow::anyhow!("{LOG}: {error:?}"))?;
        }
        fs::write(self.file(LOG), file).with_context(|| format!("cannot write {LOG}"))
    }
}

/// A percentile distribution as HdrHistogram prints it, milliseconds.
fn distribution(histogram: &Histogram<u64>) -> String {
    const TICKS_PER_HALF: u32 = 5;
    let mut text =
        format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let mut total = 0;
    for step in histogram.iter_quantiles(TICKS_PER_HALF) {
        total += step.count_since_last_iteration();
        let (value, quantile) = (step.value_iterated_to() as f64 / 1e6, step.quantile_iterated_to());
        let _ = write!(text, "{value:12.3} {quantile:2.12} {total:10}");
        if quantile < 1.0 {
            let _ = write!(text, " {:14.2}", 1.0 / (1.0 - quantile));
        }
        text.push('\n');
    }
    let (mean, deviation) = (histogram.mean() / 1e6, histogram.stdev() / 1e6);
    let _ = writeln!(text, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]");
    let _ = writeln!(
        text,
        "#[Max     = {:12.3}, Total count    = {:12}]",
        histogram.max() as f64 / 1e6,
        histogram.len()
    );
    let _ = writeln!(text, "#[Buckets = {:12}, SubBuckets     = {:12}]", histogram.buckets(), 2048);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    /// A folder that goes with the test.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Temporary {
            let path = std::env::temp_dir().join(format!("seqcast-bench-{}-{name}", std::process::id()));
            Temporary(path)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_reported() {
        let place = Temporary::new("folder");
        let folder = Folder::create(&place.0).expect("a new folder");
        let results = example::results();
        folder.write_run(&results.run).expect("written");
        results.measurements.iter().for_each(|one| folder.append(one).expect("written"));
        let read = Folder::read(folder.path()).expect("readable");
        assert_eq!(read.measurements.len(), results.measurements.len());
        assert_eq!(read.measurements[3].figures, results.measurements[3].figures);
        folder.write_reports(&read).expect("reported");
        for name in [
            "report.txt",
            "report.html",
            "plots/latency-1000x100-r100-latency.svg",
            "histograms/latency-1000x100-r100.ws.hgrm",
        ] {
            assert!(folder.file(name).exists(), "{name}");
        }
        assert!(Folder::create(&place.0).is_err(), "results are never mixed");
    }

    #[test]
    fn the_log_holds_every_histogram_with_its_tag() {
        let place = Temporary::new("log");
        let folder = Folder::create(&place.0).expect("a new folder");
        let results = example::results();
        folder.write_log(&results).expect("written");
        let log = fs::read(folder.file(LOG)).expect("readable");
        let tags = IntervalLogIterator::new(&log).filter_map(|entry| match entry {
            Ok(LogEntry::Interval(one)) => Some(one.tag().expect("tagged").as_str().to_owned()),
            Ok(_) => None,
            Err(error) => panic!("not a log: {error:?}"),
        });
        let tags: Vec<String> = tags.collect();
        assert_eq!(tags.len(), results.measurements.len());
        assert!(tags.contains(&"latency-1000x100-r100/seqcast/8".to_owned()), "{tags:?}");
    }

    #[test]
    fn a_distribution_ends_with_its_largest_value_and_its_count() {
        let histogram = histogram(&example::measurement("latency-1", "ws", 0, &[])).unwrap().unwrap();
        let text = distribution(&histogram);
        let last = text.lines().rfind(|line| !line.starts_with('#')).expect("there are lines");
        assert!(last.trim_start().starts_with("1.000") && last.trim_end().ends_with("1000"), "{last}");
        assert!(text.contains("Total count    =         1000]"), "{text}");
    }
}
