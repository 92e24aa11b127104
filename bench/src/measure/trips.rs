//! Messages that come back: each connection has one on its way.

use super::load::now;
use super::protocol::{Adapter, Role, Said};
use super::swarm::{Came, Swarm};
use super::{Arguments, Found, latencies};
use anyhow::Result;

/// Echo, or the same as a request that the server answers.
pub fn round_trips(arguments: &Arguments) -> Result<Found> {
    let role = if arguments.scenario == "rpc" { Role::Rpc } else { Role::Echo };
    let mut adapter = Adapter::new(arguments.protocol, arguments.size, role);
    let mut swarm = Swarm::new(arguments.address)?;
    swarm.open(&adapter, role, arguments.connections, &[])?;
    let watch = arguments.watch();
    let begin = now() + (arguments.warm_up * 1e9) as u64;
    let end = begin + (arguments.seconds * 1e9) as u64;
    let mut frame = Vec::new();
    adapter.event(&mut frame, now(), 0, role);
    let mut sent = vec![0; arguments.connections];
    for (index, sent) in sent.iter_mut().enumerate() {
        *sent = now();
        swarm.send(index, &frame)?;
    }
    let (mut found, mut latencies) = (Found::default(), latencies()?);
    let (mut first, mut trips, mut closed) = (None, 0_u64, 0);
    let mut back: Vec<usize> = Vec::new();
    while now() < end {
        if first.is_none() && now() >= begin {
            first = Some((watch.look(0), trips));
        }
        let measured = first.is_some();
        swarm.turn(&adapter, Some(20), |connection, came, at| match came {
            Came::Said(Said::Event { .. } | Said::Result) => {
                trips += 1;
                if measured {
                    latencies.saturating_record(at.saturating_sub(sent[connection]).max(1));
                }
                back.push(connection);
            }
            Came::Closed => closed += 1,
            Came::Said(_) => {}
        })?;
        for connection in back.drain(..) {
            sent[connection] = now();
            swarm.send(connection, &frame)?;
        }
    }
    if let Some((moment, before)) = first {
        let last = watch.look(0);
        let measured = trips - before;
        found.load = moment.until(&last);
        found.seconds = moment.elapsed(&last).as_secs_f64();
        found.figure("round_trips_per_s", measured as f64 / found.seconds);
        found.figure("server_us_per_round_trip", moment.server_us(&last) / measured.max(1) as f64);
    }
    found.fault("closed", closed);
    found.fault("missing", u64::from(trips == 0));
    found.latencies(latencies);
    Ok(found)
}
