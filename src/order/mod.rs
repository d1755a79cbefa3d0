//! Order: the records of all rings as one stream, in place.
//!
//! This room takes rings and a user's options ([`Order`]). It gives events whose keys never decrease. It knows keys,
//! hold rules and fences. It does not sleep, has no clock, and opens nothing.
//!
//! A record takes this way. `index.rs` finds it in its ring and keeps each ring's records by key. `heap.rs` has the
//! smallest key of each ring. `hold.rs` says up to which key events may leave. `stream.rs` picks the next event and
//! takes it. `lent.rs` lends it. Begin with `merge.rs`, which joins them.

mod dense;
mod entry;
pub(crate) mod epochs;
pub(crate) mod event;
pub(crate) mod fence;
mod floors;
mod fronts;
pub(crate) mod hold;
mod index;
pub(crate) mod key;
pub(crate) mod lent;
pub(crate) mod merge;
mod options;
mod own;
mod parts;
mod passed;
pub(crate) mod proof;
mod room;
mod run;
mod stream;
mod tally;
mod visits;

pub(crate) use options::{FillMark, LATENCY};
pub use options::{Full, Order};
