//! The fuzz targets over their committed corpus, without libFuzzer and without nightly.

#[path = "../../fuzz/src/backward.rs"]
mod backward;
#[path = "../../fuzz/src/decode.rs"]
mod decode;
#[path = "../../fuzz/src/epochs.rs"]
mod epochs;
#[path = "../../fuzz/src/operations.rs"]
mod operations;
#[path = "../../fuzz/src/recordings.rs"]
mod recordings;

use crate::{raw_bytes, reservations};
use std::fs;
use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in fs::read_dir(&corpus).expect("a corpus") {
        let path = entry.expect("an entry").path();
        // The name of an input that fails is in the output that a failing test prints.
        println!("{}", path.display());
        run(&fs::read(&path).expect("an input"));
        inputs += 1;
    }
    assert!(inputs > 10, "{inputs} inputs in {}", corpus.display());
}

#[test]
fn raw_bytes_over_its_corpus() {
    replay("raw_bytes", raw_bytes::run);
}

#[test]
fn backward_over_its_corpus() {
    replay("backward", backward::run);
}

#[test]
fn ring_buffers_over_their_corpus() {
    replay("ring_buffers", reservations::run);
}

#[test]
fn operations_over_its_corpus() {
    replay("operations", operations::run);
}

#[test]
fn epochs_over_its_corpus() {
    replay("epochs", epochs::run);
}

#[test]
fn decode_over_its_corpus() {
    replay("decode", decode::run);
}

#[test]
fn recordings_over_their_corpus() {
    replay("recordings", recordings::run);
}

/// Bytes from a simple generator: a little fuzzing in every `cargo test`.
#[test]
fn all_over_random_bytes() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..300 {
        let len = random() % 600;
        let bytes: Vec<u8> = (0..len).map(|_| (random() >> 32) as u8).collect();
        raw_bytes::run(&bytes);
        operations::run(&bytes);
        backward::run(&bytes);
        epochs::run(&bytes);
        reservations::run(&bytes);
        decode::run(&bytes);
        recordings::run(&bytes);
    }
}
