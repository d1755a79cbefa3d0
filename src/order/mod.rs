//! Order: the records of all rings as one stream, in place.
//!
//! This room takes rings and a user's options ([`Order`]). It gives events whose keys never decrease. It knows keys, hold rules and fences.
//! Its threads wait for grace periods. It reads a clock only to check that keys are not in the future.
//!
//! # The life of a plain record
//!
//! A plain record is a record with a key of its own, in order in its ring, about which there is nothing else to say. Nearly all records are
//! plain. A plain record passes these functions and no others. Each figure is instructions for a record of 48 bytes in order, with two
//! rings in bursts of 16 (of 1), as `.ci/instructions` counts them.
//!
//! | function | what it does | instructions |
//! | --- | --- | --- |
//! | `Index::refresh` (index/fill.rs) | publishes the tail and loads the head of a ring, once for all its new records | 3 |
//! | `Walk::in_order` (index/fill.rs) | checks the header, the lengths and the key where they lie, and writes a slot of 16 bytes | 46 |
//! | `Frontier::refreshed` (hold.rs) | says up to which key events may be yielded, once for all rings | 0 |
//! | `Stream::pick_plain` (stream.rs) | picks the first slot of the ring that is on top of the tournament (fronts.rs), if its key may be yielded; if a stretch is likely, computes up to which key the ring comes before all others | in `turn` |
//! | `Stream::record`, `Stream::key` (stream.rs) | lend the bytes where they lie | 125, with `take` and what the bench does with the record |
//! | `Stream::take` (stream.rs) | takes the slot, moves the tail, and picks the next of the stretch | |
//! | `Stream::turn` (stream.rs) | at the end of a stretch: plays the matches of the ring in the tournament, 21 for each doubling of the rings, and picks from the ring with the smallest key | 10 (100) |
//! | `Index::publish` (index.rs) | gives the bytes back to the kernel, with the next refresh or once they are an eighth of the ring | 0 |
//!
//! A *stretch* is several plain records of one ring with no other event between them. `Batch::fold` and `Reader::for_each` yield a stretch
//! in one loop (`Stream::hand_out`). The end of a stretch costs one walk through the tournament. So the merge computes it only if a stretch
//! of two or more is likely: after another one, or if a ring comes on top twice in a row.
//!
//! All other events take the general way. `Stream::pick_other` and `Stream::take_other` (stream/notices.rs) pick and take every event:
//! displaced, late and early records, losses, damage, gaps, and notices about a record. `Stream::pick_anew` tries the plain way first and
//! then the general way.
//!
//! `merge.rs` joins index, frontier and stream. `event_guard.rs` has the guards that a program holds. Begin there.

mod array;
pub(crate) mod barrier;
pub(crate) mod epochs;
pub(crate) mod event;
pub(crate) mod event_guard;
pub(crate) mod fence;
mod floors;
pub(crate) mod hold;
mod index;
pub(crate) mod key;
pub(crate) mod merge;
mod options;
mod parts;
mod place;
mod pressure;
pub(crate) mod proof;
mod run;
mod self_filter;
mod stats;
mod stream;
mod visits;

pub(crate) use options::{FillMark, LATENCY};
pub use options::{Order, WhenFull};
