//! What connections cost: opening them, keeping them, taking them up again.

use super::load::{now, resident};
use super::protocol::{Adapter, Role, Said};
use super::swarm::{Came, Swarm};
use super::{Arguments, Found, latencies};
use anyhow::{Result, ensure};
use std::thread::sleep;
use std::time::Duration;

/// Everybody connects at once; how long until each has its upgrade.
pub fn storm(arguments: &Arguments) -> Result<Found> {
    let adapter = Adapter::new(arguments.protocol, arguments.size, Role::Subscriber);
    let topic = ["t".to_owned()];
    let watch = arguments.watch();
    // Waves until there is enough to measure: one of a thousand is over in a few hundredths of a second.
    let waves = 10;
    let mut swarm = Swarm::new(arguments.address)?;
    swarm.open(&adapter, Role::Subscriber, 1, &topic)?;
    let first = watch.look(0);
    let (mut found, mut latencies, mut spent) = (Found::default(), latencies()?, 0);
    for _ in 0..waves {
        let mut wave = Swarm::new(arguments.address)?;
        let begun = now();
        wave.open_with(&adapter, Role::Subscriber, arguments.connections, &[])?;
        spent += now() - begun;
        for connection in &wave.connections {
            latencies.saturating_record((connection.ready_at - connection.began).max(1));
        }
    }
    let last = watch.look(0);
    let handshakes = (waves * arguments.connections) as f64;
    found.load = first.until(&last);
    found.seconds = spent as f64 / 1e9;
    found.figure("handshakes_per_s", handshakes / found.seconds);
    found.figure("server_us_per_handshake", first.server_us(&last) / handshakes);
    found.latencies(latencies);
    // What is judged is the server's time for a handshake, and that does not depend on how full the generator is.
    found.any_generator_share = true;
    Ok(found)
}

/// Resident memory of connections that do nothing.
pub fn idle(arguments: &Arguments) -> Result<Found> {
    let adapter = Adapter::new(arguments.protocol, arguments.size, Role::Subscriber);
    let topic = ["t".to_owned()];
    let mut swarm = Swarm::new(arguments.address)?;
    // The first one pays for what is allocated once.
    swarm.open(&adapter, Role::Subscriber, 1, &topic)?;
    sleep(Duration::from_millis(500));
    let before = resident(arguments.pid);
    let begun = now();
    swarm.open(&adapter, Role::Subscriber, arguments.connections, &topic)?;
    sleep(Duration::from_millis(1000));
    let mut found = Found { seconds: (now() - begun) as f64 / 1e9, ..Found::default() };
    let more = resident(arguments.pid).saturating_sub(before);
    found.figure("bytes_per_connection", more as f64 / arguments.connections.max(1) as f64);
    found.figure("resident_before_bytes", before as f64);
    Ok(found)
}

/// Clients that are cut and come back behind by some events, against the same events sent live.
pub fn resume(arguments: &Arguments) -> Result<Found> {
    let mut adapter = Adapter::new(arguments.protocol, arguments.size, Role::Publisher);
    adapter.tokens = true;
    let clients = arguments.clients;
    let topic = ["t".to_owned()];
    let mut publishers = Swarm::new(arguments.address)?;
    publishers.first_token = clients;
    publishers.open(&adapter, Role::Publisher, 1, &[])?;
    let mut swarm = Swarm::new(arguments.address)?;
    swarm.open(&adapter, Role::Subscriber, clients, &topic)?;
    let all = clients as u64 * arguments.missed;
    let watch = arguments.watch();
    let mut numbers = vec![0; clients];
    let before_live = watch.look(0);
    let begun = now();
    publish(&mut publishers, &mut adapter, arguments.missed)?;
    let (live_got, wrong) = gather(&mut swarm, &adapter, &mut numbers, all)?;
    let live = (now() - begun) as f64 / 1e9;
    let live_load = before_live.until(&watch.look(0));

    drop(swarm);
    sleep(Duration::from_millis(300));
    publish(&mut publishers, &mut adapter, arguments.missed)?;
    sleep(Duration::from_millis(700));
    let mut swarm = Swarm::new(arguments.address)?;
    let first = watch.look(0);
    let begun = now();
    swarm.open_with(&adapter, Role::Subscriber, clients, &[])?;
    let connected = now();
    let hello = adapter.hello(arguments.missed as i64);
    for index in 0..clients {
        swarm.send(index, &hello)?;
    }
    let (resumed_got, wrong_again) = gather(&mut swarm, &adapter, &mut numbers, all)?;
    let ended = now();
    let last = watch.look(0);
    let caught_up = (ended - connected) as f64 / 1e9;
    let mut load = first.until(&last);
    // The ratio has two measured stretches: whoever disturbed one of them disturbed it.
    load.others = load.others.max(live_load.others);
    load.steal = load.steal.max(live_load.steal);
    let mut found = Found { seconds: (ended - begun) as f64 / 1e9, load, ..Found::default() };
    found.figure("live_s", live);
    found.figure("caught_up_s", caught_up);
    found.figure("caught_up_with_connecting_s", (ended - begun) as f64 / 1e9);
    found.figure("caught_up_to_live", caught_up / live);
    found.fault("missing", (2 * all).saturating_sub(live_got + resumed_got));
    found.fault("wrong_seq", wrong + wrong_again);
    Ok(found)
}

fn publish(publishers: &mut Swarm, adapter: &mut Adapter, count: u64) -> Result<()> {
    let mut frames = Vec::new();
    for index in 0..count {
        adapter.event(&mut frames, now(), index, Role::Publisher);
    }
    publishers.send(0, &frames)?;
    let until = now() + 10_000_000_000;
    while publishers.unsent(0) > 0 {
        ensure!(now() < until, "the server takes no events");
        publishers.turn(adapter, Some(5), |_, _, _| {})?;
    }
    Ok(())
}

/// Waits for so many events, numbered one after the other on each connection; how many came, how many were wrong.
fn gather(swarm: &mut Swarm, adapter: &Adapter, numbers: &mut [u64], all: u64) -> Result<(u64, u64)> {
    let (mut got, mut wrong) = (0, 0);
    let until = now() + 10_000_000_000;
    while got < all && now() < until {
        swarm.turn(adapter, Some(20), |connection, came, _| {
            if let Came::Said(Said::Event { number, .. }) = came {
                got += 1;
                wrong += u64::from(number != Some(numbers[connection] + 1));
                numbers[connection] = number.unwrap_or(0);
            }
        })?;
    }
    Ok((got, wrong))
}
