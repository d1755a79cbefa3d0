//! Sequence numbers: which are missing, and other anomalies.
//!
//! This room takes the numbers that programs write into their records. It gives gaps and anomalies. It does not
//! know where a number lies in a record. `tracker.rs` has the rule: which number is next, and what any other number
//! means. The stream uses it for numbers of the whole machine, in their own order. `numbers.rs` uses it for the numbers
//! of each CPU, in the order of the ring, where a hole can be filled until its record is yielded.

pub(crate) mod anomaly;
pub(crate) mod numbers;
mod ranges;
pub(crate) mod tracker;
