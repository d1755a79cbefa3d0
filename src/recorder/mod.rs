//! A flight recorder: rings that are written over and over, stopped, and read back in order.
//!
//! In come events to record; out come, once it matters, the last moments of all CPUs. This room knows rings that are written backwards and
//! what such a ring has lost at its old end. It does not merge step by step: a frozen machine can be sorted. Begin with `recording.rs`.

mod frozen;
mod recording;

pub use frozen::{Frozen, Recorded};
pub use recording::Recorder;
