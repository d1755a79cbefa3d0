//! Live kernel rings, and other parts of the crate that need a kernel. Tests run in parallel, in one process.

mod apart;
#[cfg(feature = "tokio")]
mod asynchronous;
mod clocks;
#[cfg(feature = "zerocopy-0-8")]
mod decode;
mod dropped;
mod events;
mod exec;
mod foreign_programs;
mod idle;
mod leaks;
mod loss;
mod lost_nothing;
mod own;
mod pace;
mod paths;
mod probes;
#[expect(dead_code, reason = "each binary takes a part")]
#[path = "../reading/mod.rs"]
mod reading;
mod refusals;
mod repeated_errors;
mod ring_buffers;
mod rings;
mod seldom;
mod settled;
mod targets;
mod waiting;

/// How many times the rounds of tests that take long. The soak's package has the same tests with more
/// (`tests/soak/tests/long.rs`).
const TIMES: u64 = 1;
