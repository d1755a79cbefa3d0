//! Any bytes as a recording of perf(1): events in order, or a typed error.
#![no_main]

#[path = "../src/recordings.rs"]
mod recordings;

libfuzzer_sys::fuzz_target!(|input: &[u8]| recordings::run(input));
