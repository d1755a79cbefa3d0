//! Any bytes in any layout, and any text as a format: they give values or an error, the same for every place of a wrap.
#![no_main]

#[path = "../src/decode.rs"]
mod decode;
#[path = "../src/raw_bytes.rs"]
#[expect(dead_code, reason = "its reading of bytes is shared")]
mod raw_bytes;

libfuzzer_sys::fuzz_target!(|input: &[u8]| decode::run(input));
