//! Any bytes and any head in two rings written backwards: the events equal those of a simple decoder.
#![no_main]

#[path = "../src/backward.rs"]
mod backward;
#[path = "../src/raw_bytes.rs"]
#[expect(dead_code, reason = "the decoder is shared")]
mod raw_bytes;

libfuzzer_sys::fuzz_target!(|input: &[u8]| backward::run(input));
