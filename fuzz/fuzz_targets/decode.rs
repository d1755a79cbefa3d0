//! Any bytes in any layout, any text as a format: all is said of it, or an error, and the same wherever a record wraps.
#![no_main]

#[path = "../src/decode.rs"]
mod decode;
#[path = "../src/raw_bytes.rs"]
#[expect(dead_code, reason = "its reading of bytes is shared")]
mod raw_bytes;

libfuzzer_sys::fuzz_target!(|input: &[u8]| decode::run(input));
