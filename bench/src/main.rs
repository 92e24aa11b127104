//! Latency and throughput harness: publish/subscribe servers over WebSocket, side by side in one run.

#[allow(dead_code)]
mod measurement;

fn main() {}
