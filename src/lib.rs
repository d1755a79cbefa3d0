//! The per-CPU perf ring buffers of a Linux machine as one stream of events in proven global order, merged in place.
//!
//! ```no_run
//! use perfweave::{Order, Reader, Rings};
//!
//! let rings = Rings::options().tracepoint("sched:sched_switch").open()?;
//! let mut reader = Reader::new(rings, Order::new())?;
//! loop {
//!     let event = reader.next()?;
//!     println!("{:?} on CPU {:?}: {:?}", event.key(), event.cpu(), event.what());
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), perfweave::Error>(())
//! ```
//!
//! # What holds
//!
//! - Keys never decrease from one event to the next, events that are marked late apart. Equal keys that are released
//!   together come out by CPU, then by place in the ring, so the same rings always give the same stream.
//! - Under the fence rule, which is the default, no event is late: see [`Hold`] for why, and for what it takes. Where held records
//!   fill a ring they are copied out of it, within 64 MiB for all that holding takes unless set. Only beyond that some are let out
//!   before their order is proven, and the stream says so: [`Full`], [`Unproven`].
//! - An event that is late under another rule is yielded at once, marked with how late it is, counted, never dropped.
//! - A record lies in its ring until it is yielded and no longer borrowed. Only then does the tail pass it; or before, if it
//!   was copied out because the ring was full.
//! - What the kernel dropped, what is missing from a sequence and what cannot be a record are events too, at their place.
//! - Whatever bytes a ring holds: no panic, no endless loop, no read outside of it; memory is bounded, and what a record takes grows
//!   with the logarithm of what is held.
//! - No allocation, no system call and no copy for an event; a wrapped record is copied if it is asked for in one piece.
//!
//! # Where to begin
//!
//! [`Rings::options`] opens rings; [`Ring`] adopts other people's; [`sim::Kernel`] simulates them. [`Order`] says by which
//! [`Key`] and under which [`Hold`] rule they are merged. [`Reader`] merges and waits, `AsyncReader` does under tokio (feature
//! `tokio`), and [`Merge`] merges only, for whoever has an event loop of their own. All yield [`Event`]s, of which most are
//! [`Record`]s. [`Handle`] flushes, closes and pauses a reader from other threads. [`Recorder`] reads nothing until it
//! matters, and then the last moments of all CPUs.
//!
//! # Hostile rings
//!
//! Everything read from a ring is untrusted: the head, headers, sizes, payloads. Each is read once, checked, and the checked
//! copy used. A record that cannot be right becomes a [`Damage`] event; its ring is taken up again and the others go on.
//!
//! One thing cannot be checked. A lawful kernel does not write between tail and head, which is what makes a `&[u8]` into the
//! ring sound. BPF output of more than 65,516 bytes breaks this law: it overwrites records that were not read yet, also
//! while one looks at them. Their bytes are then garbage; lengths and bounds are not taken from them a second time.
//!
//! # Forked children
//!
//! Mappings of perf events do not survive fork(2) (`VM_DONTCOPY`). A child that uses a reader of its parent's gets
//! [`Error::Forked`], from a [`Merge`] a panic; dropping either there leaves the parent's maps, slots and threads alone. What
//! was lent before the fork ([`Lent`], [`Batch`], [`Frozen`], [`Recorded`]) panics in the child rather than give a record:
//! each ring asks whose it is before it hands out bytes. Only bytes that it handed out *before* the fork, which is an
//! [`Event`] with a record, are out of reach: to look at them in the child is SIGSEGV. Open rings of the child's own. (Told by a
//! page with `MADV_WIPEONFORK`, Linux 4.14.)

// Allowed in `ring` and `sys` only.
#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("perf rings are Linux's");

// data_head is an unsigned long in the kernel and would wrap at 2^32 where we count to 2^64.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("perfweave needs a 64-bit machine");

mod account;
#[cfg(feature = "tokio")]
mod asynchronous;
mod breaks;
mod clock;
mod control;
mod copies;
mod cure;
mod dense;
mod drain;
mod engine;
mod error;
mod event;
mod fence;
mod fronts;
mod hold;
mod key;
mod lent;
mod lookahead;
mod loss;
mod merge;
mod numbers;
mod open;
mod order;
mod pace;
mod passed;
mod plan;
mod reader;
mod record;
mod recorder;
#[expect(unsafe_code, reason = "the shared memory: all pointer work is here")]
mod ring;
mod rings;
mod room;
mod run;
mod sequence;
pub mod sim;
mod stats;
mod steps;
mod stream;
mod sync;
#[expect(unsafe_code, reason = "system calls that no crate offers")]
mod sys;
mod wakeup;

#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncReader, EventStream};
pub use breaks::Break;
pub use clock::Clock;
pub use control::{Handle, Pause};
pub use error::{Cure, Error};
pub use event::{Damage, Event, Gap, Irregular, Lost, OwnedEvent, Unproven, What};
pub use fence::GracePeriods;
pub use hold::{Class, Fence, Hold};
pub use key::Key;
pub use lent::{Batch, Lent};
pub use loss::{Account, Ledger};
pub use merge::Merge;
pub use order::{Full, Order};
pub use plan::RingOptions;
pub use reader::{Events, Reader};
pub use record::{Kind, Layout, Record};
pub use recorder::{Frozen, Recorded, Recorder};
pub use ring::{Bytes, Fault, Ring};
pub use rings::{RawRing, Rings};
pub use sequence::Sequence;
pub use stats::{NumberStats, Progress, RingStats, Stats};
pub use wakeup::Wakeup;

/// The kernel's `struct perf_event_attr` and constants, for [`RingOptions::event`].
pub use perf_event_open_sys::bindings;

/// The README's examples are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
