//! Sequence numbers: where they are, how they wrap, which are missing, and what else is wrong with them.
//!
//! This room takes the numbers that programs write into their records. It gives gaps and anomalies. `counter.rs` says where a number
//! is. `wrap.rs` counts on where a counter wraps. `tracker.rs` has the rule: which number is next, and what one that is not the next
//! means. The stream asks it for numbers of the whole machine, in their own order. `numbers.rs` asks it for those of each CPU, in the
//! order of the ring, where a hole may be filled until its record is yielded.

pub(crate) mod anomaly;
pub(crate) mod counter;
pub(crate) mod numbers;
mod ranges;
pub(crate) mod tracker;
pub(crate) mod wrap;
