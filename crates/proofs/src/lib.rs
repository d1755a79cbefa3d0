#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod barrier;
mod epochs;
mod expedited;
mod interrupts;
mod stand_in;
mod watch;

pub use barrier::Barrier;
pub use epochs::Epochs;
pub use expedited::expedited;
