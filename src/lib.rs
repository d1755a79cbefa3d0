//! The per-CPU perf ring buffers of a Linux machine as one stream of events in proven global order, merged in place.

// Allowed in `ring` and `sys` only.
#![deny(unsafe_code)]

mod clock;
mod error;
mod event;
mod fence;
mod fronts;
mod hold;
mod key;
mod lookahead;
mod merge;
mod open;
mod reader;
mod record;
#[expect(unsafe_code, reason = "the shared memory: all pointer work is here")]
mod ring;
mod rings;
mod sequence;
pub mod sim;
#[expect(unsafe_code, reason = "system calls that no crate offers")]
mod sys;

pub use clock::Clock;
pub use error::{Cure, Error};
pub use event::{Damage, Event, Gap, Lost, OwnedEvent, What};
pub use hold::{Class, Fence, Hold};
pub use key::Key;
pub use merge::{Batch, Lent, Merge, Order, Stats};
pub use open::RingOptions;
pub use reader::{Events, Reader};
pub use record::{Kind, Layout, Record};
pub use ring::{Bytes, Fault, Ring};
pub use rings::{RawRing, Rings};

/// The kernel's `struct perf_event_attr` and constants, for [`RingOptions::event`].
pub use perf_event_open_sys::bindings;
