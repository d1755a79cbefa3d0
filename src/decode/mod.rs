//! What records say: tracepoint fields by name and, with feature `decode`, typed records and payloads as a program's own types.
//!
//! - [`Record::decode`](crate::Record::decode) gives a record as a value of [`reader`]: a sample with its registers, stack and call
//!   chain, a mapping, a new name, a fork, an exit, a switch.
//! - [`Rings::format`](crate::Rings::format) and [`Format::read`] give what a tracepoint writes. [`Format::field`] looks a field up
//!   once; [`Field`] reads it in place, without allocating. [`Format::line`] prints a record as the kernel does.
//! - [`Record::payload_as`](crate::Record::payload_as) gives the output of a BPF program as a `#[repr(C)]` type, checked by the
//!   compiler ([`zerocopy`]).
//!
//! ```no_run
//! use perfweave::{Order, Reader, Rings};
//!
//! let rings = Rings::options().tracepoint("sched:sched_switch").open()?;
//! let switch = rings.format(0)?;
//! let (next, name) = (switch.field("next_pid")?, switch.field("next_comm")?);
//! let mut reader = Reader::new(rings, Order::new())?;
//! loop {
//!     let event = reader.next()?;
//!     match event.record() {
//!         Some(record) => println!("{:?} {:?}: {:?}", next.int(&record), name.text(&record), switch.line(&record)),
//!         // A loss, a gap or damage, at its place. The stream goes on behind it.
//!         None => println!("{:?}", event.item()),
//!     }
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Hostile bytes
//!
//! Whatever a record holds, nothing here panics or reads outside of it. That is tested with any bytes in any layout. It holds for
//! formats from elsewhere too: each text is parsed or refused, and evaluating one ends.
// This room takes records, and descriptions of them from the kernel. It gives values and text. It knows what is in each record, and
// C as far as `print fmt` uses it. It does not know order, readers, or where a ring's bytes come from. Begin with `records.rs`, or
// with `format.rs` for tracepoints.

mod expression;
mod field;
mod format;
mod lookup;
mod print;
#[cfg(feature = "decode")]
mod records;
#[cfg(all(test, not(loom), feature = "decode"))]
mod tests;
mod tokens;
mod value;

pub use field::Field;
pub use format::Format;

/// The types of typed records: samply's parser.
#[cfg(feature = "decode")]
pub use linux_perf_event_reader as reader;
/// The trait of types that any bytes are a value of, and its derive if the program asks for zerocopy's feature `derive`.
#[cfg(feature = "decode")]
pub use zerocopy;
