//! Accounting: counts, and the ledger.
//!
//! This room has the structs in which a program finds counts. It does not know which code counts. `ledger.rs` is the balance; `stats.rs`
//! has all other counts.

pub(crate) mod ledger;
pub(crate) mod stats;
