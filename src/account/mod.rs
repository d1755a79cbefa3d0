//! What became of everything: numbers and what is missing from them, counts, the ledger.
//!
//! In come records' own numbers and what the kernel says was lost; out go gaps, breaks and a balance. This room counts. It does not
//! know the order of the stream or who reads it. Begin with `numbers.rs`, which finds what is missing from one ring's numbers;
//! `ledger.rs` is the balance.

pub(crate) mod breaks;
pub(crate) mod ledger;
pub(crate) mod numbers;
pub(crate) mod sequence;
pub(crate) mod stats;
