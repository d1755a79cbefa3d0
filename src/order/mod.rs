//! Order: the records of all rings as one stream, in place.
//!
//! This room takes rings and a user's options ([`Order`]). It gives events whose keys never decrease. It knows keys
//! and hold rules. It reads a clock only to check that keys are not in the future.
//!
//! # Index, frontier, merge, yield, tails
//!
//! What the merge knows about a record is a *place* of 16 bytes (place.rs): key, ring, position, length, tag.
//!
//! | step | file | what it does |
//! | --- | --- | --- |
//! | index | index.rs | walks over the new records of a ring and appends a place for each to the ring's queue (queue.rs). One out of order is shifted in, or goes into a heap |
//! | frontier | frontier.rs | moves the key up to which events may leave, by the hold rule (rules.rs) |
//! | merge | array.rs | merges the queues up to the frontier into an array of places, a block at a time |
//! | yield | event_guard.rs | takes the next place of the array and reads the record where it lies |
//! | tails | index.rs | gives bytes back to the kernel, when a block is used up and at each refresh |
//!
//! `full.rs` copies held records out of rings that fill up.
//!
//! `stream.rs` says which places may be yielded without another look: plain records that are not late. All others
//! are picked one by one: losses, damage, gaps, records without a key, and notices. Before anything changes that
//! decides what comes next, `Stream::sync` puts back what was merged and not yielded.
//!
//! `merge.rs` joins index, frontier and stream. `event_guard.rs` has the guards that a program holds. Begin there.

mod array;
pub(crate) mod certainty;
pub(crate) mod event;
pub(crate) mod event_guard;
mod footprint;
pub(crate) mod frontier;
pub(crate) mod full;
pub(crate) mod hold;
mod index;
pub(crate) mod key;
#[cfg_attr(not(any(test, feature = "test-util")), expect(unreachable_pub, reason = "public for tests alone"))]
pub(crate) mod merge;
mod options;
mod place;
mod queue;
pub(crate) mod rules;
mod stream;
pub(crate) mod tracers;

pub use options::Order;
pub(crate) use options::{LATENCY, MOST_HELD};
