//! The merge: the held places of all rings, in the order of their keys.
//!
//! This room reads no ring, no kernel and no record, and imports nothing but the standard library, a heap, and the counter
//! of steps for tests. A *place* stands for a record, a loss or damage: its key, and where it lies, in 16 bytes. A
//! *refresh* looks at the rings and adds places (order/cursor.rs). A *loose* loss has no bytes in its ring: the kernel
//! counts it, and no record tells it.
//!
//! ```text
//!                    one for each ring                         of all rings
//!
//!  refresh ──► queue: places in key order ─────────┐
//!              │ a place that comes too late is    │  merge, up to the
//!              │ shifted in, if that is near;      │  frontier, by a loser tree
//!              │ else                              ├───────────────────────────► array: the next places ──► yielded
//!              ▼                                   │                               │      in order        (order/stream.rs)
//!  heap of all rings: places far out of order ─────┤                               │
//!  loose losses, at most one for each ring ────────┘                               │
//!              ▲                                                                   │
//!              └──────────────── put back, last one first ─────────────────────────┘
//!                                before anything is added or changes: a smaller place may come
//!
//!  keys  ─┤ may leave ├───────┤ wait ├──────────────────►      a refresh of all rings moves the frontier: to what is
//!                     frontier, or the cap of a flush          proven, old enough, or seen, by the rule
//! ```
//!
//! A place is in its queue, in the heap, or in the array, and counted there; a loose loss in the array is in its queue,
//! too, until it is yielded. While the array has places, nothing is added to a queue: the caller puts back first
//! (`Stream::unmerged`).
//!
//! | file | what it is |
//! | --- | --- |
//! | place.rs | a place: key, ring, position, length, and what is special about it |
//! | blocks.rs | sorted places in blocks of 128: growing moves nothing |
//! | queue.rs | the places of one ring: appended, shifted in, or put into the heap of all rings |
//! | array.rs | the next places of all rings, 256 or more at a time |
//! | tree.rs | the smallest keys of all queues and of the heap: a loser tree |
//! | rules.rs | the hold rules, as one table: what a held event waits for |
//! | frontier.rs | the largest key that may leave, and how it moves |
//! | certainty.rs | how far an event's place in the order can be trusted |
//!
//! Begin with place.rs, queue.rs and array.rs.

pub(crate) mod array;
mod blocks;
pub(crate) mod certainty;
pub(crate) mod frontier;
pub(crate) mod place;
pub(crate) mod queue;
pub(crate) mod rules;
mod tree;

pub(crate) use blocks::{REACH, REACH_BYTES, SLOTS};
