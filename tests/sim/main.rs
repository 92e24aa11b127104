//! The simulator: shards, clients and a network of chance, in virtual time. A seed decides everything.
//!
//! `cargo test --test sim` runs the default seeds. `SEQCAST_SIM_SEEDS=17` runs one, `SEQCAST_SIM_SEEDS=0..100000` a
//! range; with `SEQCAST_SIM_TRACE=1` a run tells its story. A failure prints the command that repeats it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chaos;
mod cores;
mod judge;
mod mishaps;
mod net;
mod oracle;
mod people;
mod rng;
mod verdict;
mod world;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use chaos::RESTARTS;
use world::World;

/// Seeds of one number of cores.
const SEEDS: Range<u64> = if cfg!(debug_assertions) { 0..750 } else { 0..2000 };

/// Seeds that once found something.
const FIXED: [(u64, u16); 19] = [
    (21, 1),
    (96, 1),
    (107, 1),
    (255, 1),
    (295, 1),
    (310, 1),
    (317, 1),
    (609, 1),
    (863, 1),
    (74, 2),
    (572, 2),
    (585, 2),
    (773, 2),
    (984, 2),
    (2548, 2),
    (0, 3),
    (2, 3),
    (0, 4),
    (38, 4),
];

/// The seeds that were asked for.
fn asked() -> Option<Range<u64>> {
    let text = std::env::var("SEQCAST_SIM_SEEDS").ok()?;
    let number =
        |text: &str| text.trim().parse().expect("SEQCAST_SIM_SEEDS is a number or a range such as 0..1000");
    Some(match text.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(&text)..number(&text) + 1,
    })
}

fn run(seed: u64, cores: u16) {
    let mut world = World::new(seed, cores);
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    let failure = match result {
        Ok(Ok(())) => return,
        Ok(Err(why)) => why,
        Err(_) => "it panicked, see above".to_owned(),
    };
    panic!(
        "seed {seed} with {cores} cores: {failure}\nplan: {:#?}\nagain: SEQCAST_SIM_SEEDS={seed} SEQCAST_SIM_TRACE=1 \
         cargo test --test sim cores_{cores}",
        world.plan,
    );
}

fn run_all(cores: u16) {
    if let Some(seeds) = asked() {
        return seeds.for_each(|seed| run(seed, cores));
    }
    FIXED.iter().filter(|(_, of)| *of == cores).for_each(|(seed, _)| run(*seed, cores));
    SEEDS.for_each(|seed| run(seed, cores));
    (RESTARTS..RESTARTS + SEEDS.end / 2).for_each(|seed| run(seed, cores));
}

#[test]
fn cores_1() {
    run_all(1);
}

#[test]
fn cores_2() {
    run_all(2);
}

#[test]
fn cores_3() {
    run_all(3);
}

#[test]
fn cores_4() {
    run_all(4);
}
