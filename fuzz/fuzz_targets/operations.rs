//! Any order of writers' and reader's steps: what comes out is what a sort of everything written says.
#![no_main]

#[path = "../src/operations.rs"]
mod operations;
#[path = "../../tests/schedule/mod.rs"]
#[expect(dead_code, reason = "the property tests use the rest")]
mod schedule;

libfuzzer_sys::fuzz_target!(|input: &[u8]| operations::run(input));
