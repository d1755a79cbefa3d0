//! Errors, with their numbers, and hints at what would help.
//!
//! This room takes the kernel's answers and the requests they answer. It gives an [`Error`] that names both. It knows
//! settings of the machine (limits, capabilities, sysctls) well enough to name the one to change. It does not know
//! rings or streams: an error carries numbers. A fault *inside* a ring is no error but an event. Begin with `cases.rs`.

#[cfg(feature = "perf-data")]
mod recording;

mod cases;
pub(crate) mod hint;
mod repeats;
mod words;

pub use cases::{Error, Hint};
pub(crate) use hint::nearest;
#[cfg(feature = "perf-data")]
pub use recording::{Unreadable, Unwritable};
pub(crate) use repeats::Repeats;
pub(crate) use words::short;
