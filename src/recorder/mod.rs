//! A flight recorder: rings in overwrite mode, stopped, and read back in order.
//!
//! This room takes events to record. On request it gives the last moments of all CPUs. It knows rings that are written
//! backwards, and what such a ring has lost at its old end. It does not merge incrementally: stopped rings can be
//! sorted. Begin with `recording.rs`.

mod recording;

pub use recording::Recorder;
