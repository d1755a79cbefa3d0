//! Order: the records of all rings as one stream, in place.
//!
//! This room takes rings and a user's options ([`Order`]). It gives events whose keys never decrease. It knows keys
//! and hold rules. It reads a clock only to check that keys are not in the future.
//!
//! # Cursor, frontier, merge, yield, tails
//!
//! The merge itself is a room of its own (src/merge): queues of places, an array of the next ones, the frontier. This
//! room is between it and the rings.
//!
//! | step | file | what it does |
//! | --- | --- | --- |
//! | index | cursor.rs | walks over the new records of a ring and adds a place for each to the ring's queue |
//! | frontier | merge/frontier.rs | moves the key up to which events may leave, by the hold rule (merge/rules.rs) |
//! | merge | merge/array.rs | merges the queues up to the frontier into an array of places, a block at a time |
//! | yield | event_guard.rs | takes the next place of the array and reads the record where it lies |
//! | tails | cursor.rs | gives bytes back to the kernel, when a block is used up and at each refresh |
//!
//! `full.rs` copies held records out of rings that fill up.
//!
//! Beside these steps, each in a file of its own: what is not merged, and may change only then (unmerged.rs); the
//! picked event (pick.rs); numbers of the whole machine (dense.rs); notes and notices (note.rs); losses beyond LOST
//! records (unreported.rs), for which the kernel is asked (losses.rs); reservations for which a proof waits
//! (sighting.rs); when tails go back (tails.rs); CPUs that come (arrivals.rs); the status (accounts.rs).
//!
//! `stream.rs` says which places may be yielded without another look: plain records that are not late. All others
//! are picked one by one: losses, damage, gaps, records without a key, and notices. Before anything changes that
//! decides what comes next, `Stream::unmerged` puts back what was merged and not yielded.
//!
//! `merge.rs` joins rings, cursors, frontier and stream. `event_guard.rs` has the guards that a program holds.
//! Begin there.

mod accounts;
mod arrivals;
mod cursor;
mod dense;
pub(crate) mod event;
pub(crate) mod event_guard;
mod footprint;
pub(crate) mod full;
pub(crate) mod hold;
pub(crate) mod key;
pub(crate) mod losses;
#[cfg_attr(not(any(test, feature = "test-util")), expect(unreachable_pub, reason = "public for tests alone"))]
pub(crate) mod merge;
mod note;
mod options;
mod pick;
mod sighting;
mod stream;
mod suits;
mod tails;
pub(crate) mod tracers;
mod unmerged;
mod unreported;

pub use options::Order;
pub(crate) use options::{LATENCY, MOST_HELD};
