//! What has a name: events for the rings of [`perfweave`], and the fields of their records.
//!
//! [`EventOptions`] adds tracepoints, probes, and all that perf(1) has a name for to
//! [`Rings::options`](perfweave::Rings::options), with filters and rates. [`WithoutSelf`] leaves out records about the
//! tracer. [`Format::of`] and [`Format::read`] give the format of a tracepoint or a probe. [`Format::field`] looks a field up
//! once; [`Field`] reads it in place, without allocating. [`Format::line`] prints a record as the kernel does.
//!
//! ```no_run
//! use perfweave::{Order, Reader, Rings};
//! use perfweave_events::{EventOptions, Format};
//!
//! let rings = Rings::options().tracepoint("sched:sched_switch").open()?;
//! let switch = Format::of(&rings, 0)?;
//! let (next, name) = (switch.field("next_pid")?, switch.field("next_comm")?);
//! let mut reader = Reader::new(rings, Order::new())?;
//! while let Some(event) = reader.next()? {
//!     match event.record() {
//!         Some(record) => println!("{:?} {:?}: {:?}", next.int(&record), name.text(&record), switch.line(&record)),
//!         // A loss, a gap, damage or the end of a flush, at its place. The stream goes on after it.
//!         None => println!("{:?}", event.item()),
//!     }
//! }
//! # Ok::<(), perfweave::Error>(())
//! ```
//!
//! # Hostile bytes
//! For any bytes of a record, this crate neither panics nor reads outside of the record. Tests check that with any
//! bytes. The same is true for formats from other machines: each text is parsed or refused, and evaluating one always
//! ends.

// Names become attributes: `options.rs` has what a user asks for, `names.rs`, `pmu.rs` and `tracepoint.rs` what it means
// for the kernel, and `cures.rs` what helps if the kernel refuses it. Records become values and text: begin with
// `format.rs`. `own.rs` knows which records are about the tracer. Nothing here opens a ring, or knows order.
#![forbid(unsafe_code)]

mod cures;
mod error;
mod expression;
mod field;
mod format;
mod names;
mod options;
mod own;
mod pmu;
mod pointers;
mod print;
mod steps;
#[cfg(test)]
mod tests;
mod texts;
mod tokens;
mod tracefs;
mod tracepoint;
mod types;
mod value;

pub use field::Field;
pub use format::Format;
pub use options::EventOptions;
pub use own::WithoutSelf;
pub use texts::{format, format_of};
pub use tracefs::{Tracefs, tracefs};

/// The README's examples are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
