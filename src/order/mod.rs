//! Order: the records of all rings as one stream, in place.
//!
//! This room takes rings and a user's options ([`Order`]). It gives events whose keys never decrease. It knows keys,
//! hold rules and fences. It does not sleep, has no clock, and opens nothing.
//!
//! # The life of a plain record
//!
//! A plain record is a record with a key of its own, in order in its ring, about which there is nothing else to say. Nearly all records are
//! plain. A plain record passes these functions and no others. Each figure is instructions for a record of 48 bytes in order, with two
//! rings in bursts of 16 (of 1), as `.ci/instructions` counts them.
//!
//! | function | what it does | instructions |
//! | --- | --- | --- |
//! | `Index::refresh` (index/fill.rs) | publishes the tail and loads the head of a ring, once for all that is new in it | 3 |
//! | `Walk::in_order` (index/fill.rs) | checks the header, the lengths and the key where they lie, and writes a slot of 16 bytes | 46 |
//! | `Frontier::refreshed` (hold.rs) | says up to which key events may be yielded, once for all rings | 0 |
//! | `Stream::pick_plain` (stream.rs) | picks the first slot of the ring that is on top of the tournament (fronts.rs), if its key may be yielded; where a stretch is likely, says how far the ring comes before all others | in `turn` |
//! | `Stream::record`, `Stream::key` (stream.rs) | lend the bytes where they lie | 125, with `take` and what the bench does with the record |
//! | `Stream::take` (stream.rs) | takes the slot, moves the tail, and picks the next of the stretch | |
//! | `Stream::turn` (stream.rs) | at the end of a stretch: plays the matches of the ring in the tournament, 21 for each doubling of the rings, and picks from the ring whose turn it is | 10 (100) |
//! | `Index::publish` (index.rs) | gives the bytes back to the kernel, with the next refresh or once they are an eighth of the ring | 0 |
//!
//! A *stretch* is several plain records of one ring with no other event between them. `Batch::fold` and `Reader::for_each` hand a stretch
//! out in one loop (`Stream::hand_out`). The end of a stretch costs one walk through the tournament, so it is sought only where a stretch of
//! two or more is likely: after another one, or where a ring comes on top twice in a row.
//!
//! All else takes the general way: `Stream::pick_other` and `Stream::take_other` (stream/notices.rs) pick and take whatever there is, that
//! is records that are displaced, late or early, losses, damage, gaps, and what is noted of a record. `Stream::pick_anew` asks the plain way
//! first and the general way behind it.
//!
//! `merge.rs` joins index, frontier and stream. `lent.rs` has what a program holds. Begin there.

mod entry;
pub(crate) mod epochs;
pub(crate) mod event;
pub(crate) mod event_guard;
pub(crate) mod fence;
mod floors;
mod fronts;
pub(crate) mod hold;
mod index;
pub(crate) mod key;
pub(crate) mod merge;
mod options;
mod parts;
mod pressure;
pub(crate) mod proof;
mod run;
mod self_filter;
mod stats;
mod stream;
mod visits;

pub(crate) use options::{FillMark, LATENCY};
pub use options::{Order, WhenFull};
