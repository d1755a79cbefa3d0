//! The rings of a machine: how they are opened, what writes into them, and who may stop them.
//!
//! This room takes events by name, maps of BPF programs and CPUs. It gives [`Rings`], one lane for each CPU, with the
//! losses of each. It knows perf_event_open(2)'s attributes, CPUs that come and go, and other threads' flush, close and
//! pause. It does not know keys or order. Begin with `lanes.rs`. `options.rs` has what a user asks for, `plan.rs` works
//! out what that means, `open.rs` does it.

mod asked;
pub(crate) mod control;
mod filter;
mod lanes;
mod losses;
mod named;
pub(crate) mod open;
pub(crate) mod options;
pub(crate) mod plan;
mod planned;
mod refusal;
mod source;
pub(crate) mod spill;
#[cfg(feature = "symbols")]
mod symbols;
pub(crate) mod untraced;
mod whom;

#[cfg(feature = "perf-data")]
pub(crate) use lanes::Features;
pub(crate) use lanes::Lane;
pub use lanes::{RawRing, Rings};
pub(crate) use losses::{Counter, Losses};
pub use source::Source;
pub use untraced::Untraced;
