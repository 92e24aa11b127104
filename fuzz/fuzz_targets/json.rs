//! See tests/fuzz/bodies.rs.
#![no_main]

#[path = "../../tests/fuzz/bodies.rs"]
#[allow(dead_code)]
mod bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bodies::json(data));
