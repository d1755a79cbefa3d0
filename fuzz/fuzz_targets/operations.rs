//! Any order of writers' and reader's steps: the events equal a sort of all written records.
#![no_main]

#[path = "../src/operations.rs"]
mod operations;
#[path = "../../tests/schedule/mod.rs"]
#[expect(dead_code, reason = "the property tests use the rest")]
mod schedule;

libfuzzer_sys::fuzz_target!(|input: &[u8]| operations::run(input));
