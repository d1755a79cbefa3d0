//! What can go wrong, with the numbers, and a hint at what would help.
//!
//! In come what the kernel answered and what was asked of it; out goes an [`Error`] that says both. This room knows settings of the
//! machine (limits, capabilities, sysctls) well enough to name the one to change. It does not know rings or streams: an error carries
//! numbers. What is wrong *inside* a ring is no error but an event. Begin with `cases.rs`.

mod cases;
pub(crate) mod hint;

pub(crate) use cases::Repeats;
pub use cases::{Error, Hint};
