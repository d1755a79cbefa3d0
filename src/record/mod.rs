//! Records: their kind, fields and payload.
//!
//! This room takes checked bytes and the layout with which the ring's events were opened. It gives numbers and slices.
//! It knows the records of perf_event_open(2), field by field. It does not know where records come from, or in which
//! order they are read. Begin with `view.rs`, a record in its ring; `layout.rs` says where each field lies.

pub(crate) mod clock;
mod fields;
mod kind;
mod layout;
mod origin;
#[cfg(feature = "zerocopy-0-8")]
mod payload;
mod view;
mod walk;

pub(crate) use kind::kind_text;
pub use layout::Layout;
#[cfg(any(test, feature = "test-util"))]
pub(crate) use layout::{CPU, ID, IDENTIFIER, SAMPLE_ORDER, STREAM_ID, TID, TIME, TRAILER_ORDER};
pub(crate) use origin::{Origin, Sources};
pub use view::Record;
pub(crate) use walk::Records;
