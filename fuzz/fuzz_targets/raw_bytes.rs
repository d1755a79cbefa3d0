//! Any bytes and any head in two rings: the events equal those of a simple decoder.
#![no_main]

#[path = "../src/raw_bytes.rs"]
mod raw_bytes;

libfuzzer_sys::fuzz_target!(|input: &[u8]| raw_bytes::run(input));
