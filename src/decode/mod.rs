//! Decoding: tracepoint fields by name; and, with features that are named after crates, records as typed values and payloads as a program's
//! own types.
//!
//! - [`Record::decode`](crate::Record::decode) (feature `linux-perf-event-reader-0-10`) gives a record as a value of that crate, samply's
//!   parser: a sample with its registers, stack and call chain, a mapping, a new name, a fork, an exit, a switch.
//! - [`Rings::format`](crate::Rings::format) and [`Format::read`] give the format of a tracepoint. [`Format::field`] looks a field up once;
//!   [`Field`] reads it in place, without allocating. [`Format::line`] prints a record as the kernel does.
//! - [`Record::payload_as`](crate::Record::payload_as) (feature `zerocopy-0-8`) gives the output of a BPF program as a `#[repr(C)]` type, checked by the
//!   compiler.
//!
//! ```no_run
//! use perfweave::{Order, Reader, Rings};
//!
//! let rings = Rings::options().tracepoint("sched:sched_switch").open()?;
//! let switch = rings.format(0)?;
//! let (next, name) = (switch.field("next_pid")?, switch.field("next_comm")?);
//! let mut reader = Reader::new(rings, Order::new())?;
//! while let Some(event) = reader.next()? {
//!     match event.record() {
//!         Some(record) => println!("{:?} {:?}: {:?}", next.int(&record), name.text(&record), switch.line(&record)),
//!         // A loss, a gap, damage or the end of a flush, at its place. The stream goes on after it.
//!         None => println!("{:?}", event.item()),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Hostile bytes
//! For any bytes of a record, this module neither panics nor reads outside of the record. Tests check that with any bytes in any layout. The same is true for
//! formats from other machines: each text is parsed or refused, and evaluating one always ends.
// This room takes records, and descriptions of them from the kernel. It gives values and text. It knows the fields of each record, and the
// part of C that `print fmt` uses. It does not know order, readers, or the source of a ring's bytes. Begin with `records.rs`, or with
// `format.rs` for tracepoints.

#[cfg(feature = "print")]
mod expression;
mod field;
mod format;
mod lookup;
#[cfg(feature = "zerocopy-0-8")]
mod payload;
#[cfg(feature = "print")]
mod print;
#[cfg(feature = "linux-perf-event-reader-0-10")]
mod records;
#[cfg(all(test, not(loom), feature = "print", feature = "linux-perf-event-reader-0-10", feature = "zerocopy-0-8"))]
mod tests;
#[cfg(feature = "print")]
mod tokens;
#[cfg(feature = "print")]
mod value;

pub use field::Field;
pub use format::Format;
