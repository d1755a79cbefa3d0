//! Any order of programs' and reader's steps on BPF ring buffers, and a kernel that writes any header and any position:
//! the events equal a sort of all submitted records, nothing panics, and memory is bounded.
#![no_main]

#[path = "../src/ring_buffers.rs"]
mod ring_buffers;

libfuzzer_sys::fuzz_target!(|input: &[u8]| ring_buffers::run(input));
