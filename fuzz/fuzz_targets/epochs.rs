//! Any words of writers' epochs: proofs end when the words say so, and no event is held for ever.
#![no_main]

#[path = "../src/epochs.rs"]
mod epochs;
#[path = "../src/raw_bytes.rs"]
#[expect(dead_code, reason = "its reading of bytes is shared")]
mod raw_bytes;

libfuzzer_sys::fuzz_target!(|input: &[u8]| epochs::run(input));
