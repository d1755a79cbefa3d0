//! Accounting: counts, and the ledger.
//!
//! This room has the structs in which a program finds what was counted. It does not know who counts. `ledger.rs` is the balance;
//! `stats.rs` has all other counts.

pub(crate) mod ledger;
pub(crate) mod stats;
