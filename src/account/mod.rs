//! Accounting: sequence numbers, missing numbers, counts, the ledger.
//!
//! This room takes records' own numbers and the kernel's count of lost records. It gives gaps, breaks and a balance. It
//! counts. It does not know the order of the stream or who reads it. Begin with `numbers.rs`, which finds missing
//! numbers of one ring; `ledger.rs` is the balance.

pub(crate) mod breaks;
pub(crate) mod ledger;
pub(crate) mod numbers;
pub(crate) mod sequence;
pub(crate) mod stats;
