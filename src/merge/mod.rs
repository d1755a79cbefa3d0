//! The merge: the held places of all rings, in the order of their keys.
//!
//! This room knows no ring, no kernel and no record. It imports nothing but the standard library and a heap. A
//! *place* stands for a record: its key, and where it lies, in 16 bytes.
//!
//! ```text
//!                       one for each ring                    all rings
//!  ring ──────► queue: places in key order ──┐
//!  (order/      │ blocks of 128              │   loser tree
//!   cursor.rs   └─ shifted in, if near       ├──────────────► array: the next places  ──► yielded in
//!   adds        ┌────────────────────────┐   │   up to the     of all rings, in order       order
//!   places)  ──►│ heap: places far away, │───┘   frontier      ▲            │               (order/stream.rs)
//!               │ of all rings           │                     └────────────┘
//!               └────────────────────────┘                put back, if something smaller may come
//!
//!  keys   ─┤ may leave ├──────────────┤ held ├──────────────►
//!                      frontier                    a proof, a time, a refresh moves it, by the rule
//! ```
//!
//! | file | what it is |
//! | --- | --- |
//! | place.rs | a place: key, ring, position, length, and what is special about it |
//! | blocks.rs | sorted places in blocks: growing moves nothing |
//! | queue.rs | the places of one ring: appended, shifted in, or put into the heap of all rings |
//! | array.rs | the next places of all rings, merged a block at a time by a loser tree |
//! | rules.rs | the hold rules, as one table: what a held event waits for |
//! | frontier.rs | the largest key that may leave, and how it moves |
//! | certainty.rs | how far an event's place in the order can be trusted |
//!
//! Begin with queue.rs, then array.rs.

pub(crate) mod array;
mod blocks;
pub(crate) mod certainty;
pub(crate) mod frontier;
pub(crate) mod place;
pub(crate) mod queue;
pub(crate) mod rules;

pub(crate) use blocks::{REACH, REACH_BYTES, SLOTS};
