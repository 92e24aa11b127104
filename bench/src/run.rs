//! A run: every work, every server, round by round, a fresh server for each measurement.
//!
//! A round measures each work with each server once, and begins each work with another server than the round before, so
//! that whatever drifts on the machine meets everybody alike. What was disturbed is measured again, and kept marked.

use crate::folder::Folder;
use crate::machine::{Machine, Run, instructions};
use crate::measurement::{Load, Measurement};
use crate::progress::Progress;
use crate::results::Results;
use crate::server::Server;
use crate::subject::{Kind, Place, SUBJECTS, Subject, subject};
use crate::work::{SUITES, Work, select};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// What to measure, where, and how often.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Which works: all of them, the short list, or each scenario for a moment
    #[arg(long, default_value = "full", value_parser = SUITES)]
    pub suite: String,
    /// These works only, instead of a suite
    #[arg(long, value_delimiter = ',', value_name = "WORK")]
    pub works: Vec<String>,
    /// These servers only; whichever is not here is an error
    #[arg(long, value_delimiter = ',', value_name = "SERVER")]
    pub subjects: Vec<String>,
    /// How often each pair is measured; 9 give an interval of 95 % [default: 9, tiny: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Measured time of each work that has one, instead of its own
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Folder of the results; it must not hold any [default: below the build's folder]
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// The server of this repository [default: seqcast beside this program]
    #[arg(long, value_name = "FILE")]
    pub seqcast: Option<PathBuf>,
    /// Another build of it, measured beside it as the server `before`: what a change did
    #[arg(long, value_name = "FILE")]
    pub before: Option<PathBuf>,
    /// Where bench/peers/install.sh put the other servers [default: peers in the build's folder]
    #[arg(long, value_name = "FOLDER")]
    pub peers: Option<PathBuf>,
    /// Another program that takes the arguments of `measure` and prints a measurement: to check one by the other
    #[arg(long, value_name = "FILE")]
    pub generator: Option<PathBuf>,
    /// Port of 127.0.0.1 that every server gets
    #[arg(long, default_value_t = 19200)]
    pub port: u16,
    /// Processor of a server that has one core; with more it has the first ones
    #[arg(long, default_value_t = 0)]
    pub server_cpu: usize,
    /// Processor of the generator beside a server that has one core; else the first that the server leaves
    #[arg(long, default_value_t = 1)]
    pub cpu: usize,
}

/// How often a disturbed measurement is repeated.
const REPEATS: u32 = 2;
/// What a measurement takes beside its measured time, on average, seconds: start, connections, warm-up, end.
const AROUND: f64 = 1.4;
/// Longest that the generator may take, seconds: a server that answers nothing must not stop the run.
const GENERATOR_SECONDS: &str = "90";

/// Measures, and writes the folder. An error means that a scenario failed, or that ours answered wrongly.
pub fn run(arguments: &Arguments) -> Result<()> {
    let runner = Runner::new(arguments)?;
    let plan = runner.plan()?;
    let machine = runner.run.machine.processors;
    for work in runner.works.iter().filter(|work| !work.fits(machine)) {
        println!("without {}: the server and the generator need more than {machine} processors", work.name);
    }
    let minutes =
        plan.iter().map(|step| step.work.seconds.map_or(3.0, |s| arguments.seconds.unwrap_or(s)) + AROUND);
    let minutes = minutes.sum::<f64>() / 60.0;
    println!(
        "{} measurements, about {minutes:.0} minutes, into {}",
        plan.len(),
        runner.folder.path().display()
    );
    let mut progress = Progress::new(plan.len());
    let mut measurements = Vec::new();
    for step in &plan {
        for repeat in 0..=if arguments.suite == "tiny" { 0 } else { REPEATS } {
            progress.show(&format!("round {} {} {}", step.round + 1, step.work.name, step.subject.name));
            let measurement = runner.measure(step, repeat);
            runner.folder.append(&measurement)?;
            progress.note(&measurement);
            measurements.push(measurement);
            if measurements.last().is_some_and(|last| last.refused.is_none()) {
                break;
            }
        }
        progress.advance();
    }
    progress.end();
    let results = Results { run: runner.run.clone(), measurements };
    runner.folder.write_reports(&results)?;
    std::fs::remove_dir_all(&runner.place.work).context("cannot remove the folder of the servers")?;
    print!("{}", crate::text::report(&results));
    println!(
        "in {}: report.html, report.txt, {} lines of raw data",
        runner.folder.path().display(),
        results.measurements.len()
    );
    verdict(&results, arguments.suite == "tiny")
}

/// Wrong answers of ours are an error, and so is, where every scenario only has to work, anything that did not.
fn verdict(results: &Results, strict: bool) -> Result<()> {
    let ours =
        |name: &str| subject(name).is_ok_and(|subject| matches!(subject.kind, Kind::Seqcast | Kind::Floor));
    let (mut wrong, mut failed) = (Vec::new(), 0);
    for one in &results.measurements {
        let before = wrong.len();
        let name = format!("{} {} round {}", one.work, one.subject, one.round + 1);
        if (strict || ours(&one.subject)) && !one.faults.is_empty() {
            wrong.push(format!("{name}: {:?}", one.faults));
        }
        if let Some(why) = one.refused.as_ref().filter(|why| strict && why.starts_with(FAILED)) {
            wrong.push(format!("{name}: {why}"));
        }
        failed += usize::from(wrong.len() > before);
    }
    if strict {
        println!("{} passed, {failed} failed", results.measurements.len() - failed);
    }
    ensure!(wrong.is_empty(), "{} wrong:\n  {}", wrong.len(), wrong.join("\n  "));
    Ok(())
}

/// One measurement to make.
#[derive(Debug)]
struct Step {
    round: u32,
    work: &'static Work,
    subject: &'static Subject,
}

struct Runner<'a> {
    arguments: &'a Arguments,
    place: Place,
    folder: Folder,
    run: Run,
    works: Vec<&'static Work>,
    subjects: BTreeSet<&'static str>,
}

/// What a refusal begins with when the measurement did not come to an end.
const FAILED: &str = "failed: ";

impl Runner<'_> {
    fn new(arguments: &Arguments) -> Result<Runner<'_>> {
        let processors = std::thread::available_parallelism()?.get();
        ensure!(processors >= 2, "server and generator need a processor each; this machine has one");
        raise_descriptors()?;
        let own = std::env::current_exe().context("this program's own path")?;
        let built = own.parent().context("a program is in a folder")?.to_owned();
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let work = std::env::temp_dir().join(format!("seqcast-bench-{}", std::process::id()));
        std::fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
        let place = Place {
            seqcast: absolute(arguments.seqcast.clone().unwrap_or_else(|| built.join("seqcast")))?,
            before: arguments.before.clone().map(absolute).transpose()?,
            peers: absolute(arguments.peers.clone().unwrap_or_else(|| built.join("../peers")))?,
            work,
        };
        let out =
            arguments.out.clone().unwrap_or_else(|| built.join(format!("../bench/{at}-{}", arguments.suite)));
        let folder = Folder::create(&out)?;
        let works = select(&arguments.suite, &arguments.works)?;
        let mut run = Run {
            at,
            command: std::iter::once("seqcast-bench".to_owned())
                .chain(std::env::args().skip(1))
                .collect::<Vec<_>>()
                .join(" "),
            suite: if arguments.works.is_empty() { arguments.suite.clone() } else { "selected".to_owned() },
            rounds: arguments.rounds.unwrap_or(if arguments.suite == "tiny" { 1 } else { 9 }),
            instructions: instructions(include_str!("../instructions.json"))?,
            machine: Machine::here(),
            ..Run::default()
        };
        let subjects = have(arguments, &place, &works, &mut run)?;
        for work in &works {
            let open = Step { round: 0, work, subject: &SUBJECTS[0] };
            let line = generator(arguments, &open, run.machine.processors, "PID").join(" ");
            run.works.insert(
                work.name.to_owned(),
                line.replace("--subject seqcast --round 0 --numbered", "--subject SERVER --round N"),
            );
        }
        folder.write_run(&run)?;
        Ok(Runner { arguments, place, folder, run, works, subjects })
    }

    /// Every measurement in its order: rounds outermost, and in each the servers begin with another one.
    fn plan(&self) -> Result<Vec<Step>> {
        let mut plan = Vec::new();
        for round in 0..self.run.rounds {
            for work in self.works.iter().filter(|work| round < work.rounds) {
                let mut subjects: Vec<_> =
                    work.subjects().filter(|s| self.subjects.contains(s.name)).collect();
                if !subjects.is_empty() && work.fits(self.run.machine.processors) {
                    let first = round as usize % subjects.len();
                    subjects.rotate_left(first);
                    plan.extend(subjects.into_iter().map(|subject| Step { round, work, subject }));
                }
            }
        }
        if plan.is_empty() {
            bail!("nothing to measure: none of these servers can do any of these works");
        }
        Ok(plan)
    }

    /// One measurement. What fails becomes a record too, refused with the reason.
    fn measure(&self, step: &Step, repeat: u32) -> Measurement {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        self.try_measure(step).unwrap_or_else(|error| Measurement {
            work: step.work.name.to_owned(),
            subject: step.subject.name.to_owned(),
            round: step.round,
            at,
            seconds: 0.0,
            figures: BTreeMap::new(),
            faults: BTreeMap::new(),
            load: Load::default(),
            histogram: None,
            refused: Some(format!(
                "{FAILED}{} (try {})",
                shown(&self.place, &[format!("{error:#}")]),
                repeat + 1
            )),
        })
    }

    fn try_measure(&self, step: &Step) -> Result<Measurement> {
        let port = self.arguments.port;
        let mut command = on_cores(step.subject.command(&self.place, port)?, step.work.cores);
        command.extend(step.subject.options(&self.place, step.work.scenario())?);
        let (first, _) = processors(self.arguments, step.work, self.run.machine.processors);
        let processors = match step.work.cores {
            1 => first.to_string(),
            cores => format!("{first}-{}", first + cores - 1),
        };
        let log = self.place.work.join(format!("{}.log", step.subject.name));
        let server = Server::start(&command, Some(&processors), port, &log)?;
        let line = generator(self.arguments, step, self.run.machine.processors, &server.pid().to_string());
        let output = Command::new("timeout")
            .arg(GENERATOR_SECONDS)
            .arg(self.arguments.generator.clone().map_or_else(std::env::current_exe, Ok)?)
            .args(&line[1..])
            .stdin(Stdio::null())
            .output()
            .context("cannot start the generator")?;
        drop(server);
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or("it said nothing");
        ensure!(output.status.success(), "the generator ended, {}: {said}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().context("the generator printed nothing")?;
        serde_json::from_str(last).with_context(|| format!("the generator printed no measurement: {last}"))
    }
}

/// The servers of this run that the machine has; the others are noted with the reason. One that was asked for by its
/// name must be there.
fn have(
    arguments: &Arguments,
    place: &Place,
    works: &[&'static Work],
    run: &mut Run,
) -> Result<BTreeSet<&'static str>> {
    let asked = arguments.subjects.iter().map(|name| subject(name)).collect::<Result<Vec<_>>>()?;
    let mut found = BTreeSet::new();
    for one in works.iter().flat_map(|work| work.subjects()) {
        let wanted = match one.kind {
            Kind::Before if asked.is_empty() => arguments.before.is_some(),
            _ => asked.is_empty() || asked.iter().any(|name| name.name == one.name),
        };
        if !wanted || found.contains(one.name) || run.absent.contains_key(one.name) {
            continue;
        }
        match one.command(place, arguments.port).and_then(|command| Ok((command, one.version(place)?))) {
            Ok((command, version)) => {
                run.versions.insert(one.name.to_owned(), version);
                run.servers.insert(one.name.to_owned(), shown(place, &command));
                found.insert(one.name);
            }
            Err(error) if !asked.is_empty() || one.kind != Kind::Peer => {
                return Err(error.context(format!("{} cannot be measured", one.name)));
            }
            Err(error) => {
                let why = shown(place, &[format!("{error:#}")]);
                println!("without {}: {why}", one.name);
                run.absent.insert(one.name.to_owned(), why);
            }
        }
    }
    Ok(found)
}

/// A command as it is printed: where things are on this machine is nobody's business.
fn shown(place: &Place, command: &[String]) -> String {
    let own = std::env::current_exe().map_or(String::new(), |path| path.display().to_string());
    let names = [
        (own, "seqcast-bench"),
        (place.seqcast.display().to_string(), "target/release/seqcast"),
        (place.before.as_ref().map_or(String::new(), |path| path.display().to_string()), "BEFORE"),
        (place.peers.display().to_string(), "target/peers"),
        (place.work.display().to_string(), "WORK"),
    ];
    let line = command
        .iter()
        .map(|word| if word.is_empty() { "\"\"" } else { word.as_str() })
        .collect::<Vec<_>>()
        .join(" ");
    names
        .iter()
        .filter(|(path, _)| !path.is_empty())
        .fold(line, |line, (path, name)| line.replace(path, name))
}

/// The server's first processor and the generator's. On a machine that has no more than the server takes, they share.
fn processors(arguments: &Arguments, work: &Work, machine: usize) -> (usize, usize) {
    match work.cores {
        1 => (arguments.server_cpu, arguments.cpu),
        cores => (0, cores.min(machine - 1)),
    }
}

/// The generator's command line for a step, on a machine of so many processors.
fn generator(arguments: &Arguments, step: &Step, machine: usize, pid: &str) -> Vec<String> {
    let (server_cpu, cpu) = processors(arguments, step.work, machine);
    let cores = Some(step.work.cores).filter(|cores| *cores > 1);
    let mut line: Vec<String> = ["seqcast-bench", "measure", step.work.scenario()].map(str::to_owned).into();
    line.extend(step.work.arguments.split_whitespace().map(str::to_owned));
    let seconds = step.work.seconds.map(|seconds| arguments.seconds.unwrap_or(seconds).to_string());
    let address = format!("127.0.0.1:{}", arguments.port);
    let options = [
        ("--seconds", seconds),
        ("--protocol", Some(step.subject.protocol.to_owned())),
        ("--address", Some(address)),
        ("--pid", Some(pid.to_owned())),
        ("--cpu", Some(cpu.to_string())),
        ("--server-cpu", Some(server_cpu.to_string())),
        ("--server-cores", cores.map(|cores| cores.to_string())),
        ("--work-name", Some(step.work.name.to_owned())),
        ("--subject", Some(step.subject.name.to_owned())),
        ("--round", Some(step.round.to_string())),
    ];
    for (name, value) in options {
        line.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    }
    if step.subject.numbers() {
        line.push("--numbered".to_owned());
    }
    line
}

/// The server's command with another number of cores.
fn on_cores(mut command: Vec<String>, cores: usize) -> Vec<String> {
    if let Some(at) = command.iter().position(|word| word == "--cores") {
        command[at + 1] = cores.to_string();
    }
    command
}

fn absolute(path: PathBuf) -> Result<PathBuf> {
    std::path::absolute(Path::new(&path)).with_context(|| format!("{}", path.display()))
}

/// 10,000 connections need as many descriptors; servers and generator inherit the limit.
fn raise_descriptors() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    ensure!(
        limit.maximum.is_none_or(|most| most >= 16_384),
        "only {} descriptors are allowed here; raise the hard limit (ulimit -Hn) to 16384",
        limit.maximum.unwrap_or(0)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn arguments(line: &str) -> Arguments {
        Line::parse_from(std::iter::once("x").chain(line.split_whitespace())).arguments
    }

    #[test]
    fn wrong_answers_of_ours_fail_a_run_and_others_only_a_strict_one() {
        let mut results = example::results();
        let peers = results.measurements.iter().position(|one| one.subject == "ws").expect("it is there");
        results.measurements[peers].faults.insert("gaps".to_owned(), 2);
        verdict(&results, false).expect("a peer may lose");
        assert!(verdict(&results, true).is_err());
        results.measurements[0].faults.insert("missing".to_owned(), 1);
        let error = verdict(&results, false).expect_err("ours may not").to_string();
        assert!(error.contains("seqcast round 1") && error.contains("missing"), "{error}");
    }

    #[test]
    fn a_scenario_that_fails_is_an_error_where_it_only_has_to_work() {
        let mut results = example::results();
        results.measurements[0].refused = Some("others used 0.3 of a processor".to_owned());
        verdict(&results, true).expect("a busy machine is no failure");
        results.measurements[0].refused = Some(format!("{FAILED}the server ended (try 1)"));
        assert!(verdict(&results, true).is_err());
        verdict(&results, false).expect("the report says so");
    }

    #[test]
    fn the_generator_is_told_all_that_it_has_to_know() {
        let arguments = arguments("--seconds 0.5 --port 19201");
        let work = select("full", &["echo-100x100".to_owned()]).expect("it exists")[0];
        let step = Step { round: 3, work, subject: subject("nats").expect("it exists") };
        let line = generator(&arguments, &step, 2, "77").join(" ");
        assert_eq!(
            line,
            "seqcast-bench measure echo --connections 100 --size 100 --seconds 0.5 --protocol nats --address \
             127.0.0.1:19201 --pid 77 --cpu 1 --server-cpu 0 --work-name echo-100x100 --subject nats --round 3"
        );
    }

    #[test]
    fn with_more_cores_the_generator_has_the_first_processor_that_is_left() {
        let arguments = arguments("--server-cpu 5 --cpu 6");
        let line = |name: &str, machine| {
            let work = select("full", &[name.to_owned()]).expect("it exists")[0];
            let step = Step { round: 0, work, subject: subject("seqcast").expect("it exists") };
            generator(&arguments, &step, machine, "77").join(" ")
        };
        assert!(line("cores-1", 8).contains("--cpu 6 --server-cpu 5 --work-name"));
        assert!(line("cores-2", 3).contains("--cpu 2 --server-cpu 0 --server-cores 2"));
        assert!(line("cores-4", 8).contains("--cpu 4 --server-cpu 0 --server-cores 4"));
        assert!(line("cores-2-small", 2).contains("--cpu 1 --server-cpu 0 --server-cores 2"), "shared");
    }

    #[test]
    fn cores_are_put_into_the_servers_command() {
        let command = ["x", "--cores", "1", "y"].map(str::to_owned).to_vec();
        assert_eq!(on_cores(command, 4), ["x", "--cores", "4", "y"]);
        assert_eq!(on_cores(vec!["x".to_owned()], 4), ["x"]);
    }

    #[test]
    fn paths_of_this_machine_are_not_shown() {
        let path = |text: &str| PathBuf::from(text);
        let place = Place {
            seqcast: path("/a/seqcast"),
            before: None,
            peers: path("/a/peers"),
            work: path("/tmp/x"),
        };
        let line = shown(&place, &["/a/peers/bun".to_owned(), String::new(), "/tmp/x/nats.conf".to_owned()]);
        assert_eq!(line, "target/peers/bun \"\" WORK/nats.conf");
    }
}
