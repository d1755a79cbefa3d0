//! Counts that a program reads: the account of a CPU, and the status of a reader.
//!
//! This room has the structs in which a program finds counts. It does not know which code counts. `cpu.rs` is the
//! account of one CPU; `status.rs` has those of all, the other counts of a reader, and what it waits for.

pub(crate) mod cpu;
pub(crate) mod status;
