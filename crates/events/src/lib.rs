//! Tracepoint fields by name, and lines of text as the kernel prints them, from records that [`perfweave`] reads.
//!
//! [`Format::of`] and [`Format::read`] give the format of a tracepoint or a probe. [`Format::field`] looks a field up
//! once; [`Field`] reads it in place, without allocating. [`Format::line`] prints a record as the kernel does.
//!
//! ```no_run
//! use perfweave::{Order, Reader, Rings};
//! use perfweave_events::Format;
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

// It takes records, and descriptions of them from the kernel. It gives values and text. It knows the part of C that
// `print fmt` uses. It does not know order, readers, or the source of a ring's bytes. Begin with `format.rs`.
#![forbid(unsafe_code)]

mod error;
mod expression;
mod field;
mod format;
mod pointers;
mod print;
mod steps;
#[cfg(test)]
mod tests;
mod tokens;
mod types;
mod value;

pub use field::Field;
pub use format::Format;

/// The README's examples are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
