//! The per-CPU perf ring buffers of a Linux machine as one stream of events in proven global order, merged in place.
//!
//! ```no_run
//! use perfweave::{Order, Reader, Rings};
//! use perfweave_events::{EventOptions, Format};
//!
//! let rings = Rings::options().tracepoint("sched:sched_switch").open()?;
//! let switch = Format::of(&rings, 0)?;
//! let mut reader = Reader::new(rings, Order::new())?;
//! while let Some(event) = reader.next()? {
//!     match event.record() {
//!         Some(record) => println!("{:?} on CPU {}: {:?}", event.key(), record.cpu(), switch.line(&record)),
//!         // A loss, a gap, damage or the end of a flush, at its place. The stream goes on after it.
//!         None => println!("{:?}: {:?}", event.key(), event.item()),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holds
//!
//! - **Order.** Keys never decrease from one event to the next. The only exceptions are events that are marked late.
//!   Events with equal keys that leave together come by CPU, then by place in the ring, so the same rings always give
//!   the same stream.
//! - **Proof.** Under the fence rule, which is the default, no event is late. [`Hold`] says why, and what that takes.
//! - **Memory.** Held records that fill a ring are copied out of it, unless another reader may follow. The copies take
//!   at most 64 MiB unless set ([`Order::most_held`]). Beyond that bound records stay in their rings, and the kernel
//!   drops what does not fit and counts it. No event leaves before its order is proven.
//! - **Lateness.** Under another hold rule an event can be late. The reader yields it at once, marks it with its
//!   lateness, counts it, and never drops it.
//! - **In place.** A record stays in its ring until the reader has yielded it and the program no longer borrows it.
//!   Then the reader moves the tail past it. The tail passes a record earlier only if the reader has copied it out of a
//!   full ring.
//! - **Loss.** Records that the kernel dropped, numbers that are missing from a sequence, and bytes that cannot be a
//!   record are events too, at their place.
//! - **Hostile bytes.** Whatever a ring holds, the crate does not panic, does not loop endlessly and does not read
//!   outside of the ring. Memory is bounded. The time for a record grows with the logarithm of the number of held
//!   records.
//! - **Cost.** An event costs no allocation, no system call and no copy. The crate copies a wrapped record only if the
//!   program asks for it in one piece.
//!
//! # Where to begin
//!
//! 1. Open rings with [`Rings::options`], adopt a [`Ring`] that is already mapped or a BPF ring buffer
//!    ([`Ring::adopt_ring_buffers`]), or simulate rings with `sim::Kernel` (feature `test-util`).
//! 2. Choose an [`Order`]: by which [`Key`], and under which [`Hold`] rule.
//! 3. Read: [`Reader`] waits by itself, or not at all in a program's own event loop ([`Reader::next_timeout`]), and
//!    `AsyncReader` waits under tokio (feature `tokio`). Both yield [`Event`]s, and most of those are [`Record`]s.
//!
//! The [`guide`] has a page each on ordering, loss, sizing, hold rules and migrating.
//!
//! A [`Handle`] flushes, closes and pauses a reader from other threads. A [`Recorder`] lets the kernel overwrite the
//! rings. When something has happened, it copies the last moments of all CPUs.
//!
//! # Features
//!
//! | feature | brings |
//! | --- | --- |
//! | `tokio` | `AsyncReader` |
//! | `perf-event-open-sys-7` | `RingOptions::event`, `EventSpec`, `Source::attr`: any event by its attribute |
//! | `zerocopy-0-8` | `Record::payload_as`: payloads as a program's own types |
//! | `test-util` | `sim`, a simulated kernel for a program's own tests, and `Merge`, a reader that goes step by step |
//!
//! None is on by default. Packages beside this one: `perfweave-events` has what goes by names, such as tracepoints and
//! probes, with the fields of their records and their lines as the kernel prints them; `perfweave-symbols` has functions
//! and static probes of programs by name, for uprobes; `perfweave-perf-data` reads and writes recordings of perf(1). Readers of other formats make
//! a [`Recording`] too.
//!
//! A feature with the name and the version of a crate puts types of that crate into this crate's signatures.
//!
//! # Words
//!
//! | word | means | elsewhere |
//! | --- | --- | --- |
//! | key | the number that orders events: a time or a sequence number | event time (Flink), timestamp |
//! | hold rule | when an event may leave the reader ([`Hold`]) | watermark strategy (Flink) |
//! | frontier | the key up to which events may leave now | watermark (Flink), frontier (timely dataflow) |
//! | fence | a wait for an RCU grace period (not a memory fence), which proves that no smaller key can still come ([`Fence`]) | `synchronize_rcu()`, `membarrier(2)` |
//! | refresh | load the heads of all rings and find their new records | `consume` (libbpf), `sync` (io-uring) |
//! | late event | an event with a smaller key than one that has left ([`Certainty::Late`]) | late event (Flink), out-of-orderness |
//! | lag | hold each event for a fixed time ([`Hold::Lag`]) | bounded out-of-orderness (Flink), a guessed delay |
//! | loss | records that the kernel dropped because the ring was full ([`Lost`]) | `PERF_RECORD_LOST`, lost samples |
//! | gap | sequence numbers that are missing ([`Gap`]) | |
//! | reservation | bytes of a BPF ring buffer that a program has reserved and not yet submitted ([`Status::uncommitted`]) | `bpf_ringbuf_reserve()` |
//! | flight recorder | rings that the kernel overwrites until they are copied ([`Recorder`]) | overwrite mode, snapshot mode |
//!
//! # Hostile rings
//!
//! Everything in a ring is untrusted: the head, headers, sizes and payloads. The crate reads each of them once, checks
//! it, and uses the checked copy. A record that cannot be right becomes a [`Damage`] event. The reader goes on after it
//! in the same ring. Other rings are not affected.
//!
//! The crate cannot check one thing. A lawful kernel does not write between tail and head. That makes a `&[u8]` into
//! the ring sound. A BPF program that outputs too much at once, more than 65,508 bytes, or 65,500 if other events share
//! the ring, makes the kernel break this law: the output overwrites unread records, even while a program reads them. The bytes of those records are then
//! garbage. The crate never takes a length or a bound from such bytes a second time.
//!
//! # Forked children
//!
//! A child of fork(2) does not have the mappings of perf events (`VM_DONTCOPY`), and opens its own rings: a daemon forks
//! first. The crate compares the number of the process at each refresh, in each call of a [`Handle`], and at each drop.
//! So in a child its parent's reader gives [`ErrorKind::Forked`] at its next refresh, a [`Recorder`] when it is to stop,
//! and a drop leaves the parent's rings, maps and threads alone. Between two refreshes nothing is compared. So read in
//! the child no event that was found before the fork: that is SIGSEGV, or gives what the child has mapped at that
//! address since.

// Allowed in `ring` and `sys` only.
#![deny(unsafe_code)]
// docs.rs says at each item which feature brings it.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Rooms always contain the seams of this feature. A build with all features finds unused code.
#![cfg_attr(not(feature = "test-util"), expect(dead_code, reason = "what only a feature uses"))]

#[cfg(not(target_os = "linux"))]
compile_error!("perf rings are Linux's");

// data_head is an unsigned long in the kernel. On 32 bits it would wrap at 2^32, but this crate counts to 2^64.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("perfweave needs a 64-bit machine");

// Each room uses those above it (tests/simulated/rooms.rs).
mod account;
mod error;
pub mod guide;
mod instrument;
mod merge;
mod order;
mod proof;
mod reader;
mod record;
mod recorder;
#[expect(unsafe_code, reason = "the shared memory: all pointer work is here")]
mod ring;
mod rings;
mod sequence;
#[cfg(any(test, feature = "test-util"))]
pub mod sim;
#[expect(unsafe_code, reason = "system calls that no crate offers")]
mod sys;

pub use account::cpu::Account;
pub use account::status::Status;
pub use error::{Error, ErrorKind};
pub use merge::certainty::Certainty;
pub use order::Order;
pub use order::event::{Damage, Event, Gap, Item, Lost, OwnedEvent, SequenceAnomaly};
pub use order::event_guard::{Batch, EventGuard};
pub use order::hold::Hold;
pub use order::key::Key;
#[cfg(any(test, feature = "test-util"))]
pub use order::merge::Merge;
pub use proof::contract::{Done, Proof};
pub use proof::fence::{Fence, GracePeriods};
#[cfg(feature = "tokio")]
pub use reader::tokio::AsyncReader;
pub use reader::{Ended, Reader};
pub use record::clock::{Clock, ClockOffset};
pub use record::{Layout, Record};
pub use recorder::Recorder;
#[cfg(any(test, feature = "test-util"))]
pub use ring::Fault;
pub use ring::{ANY_CPU, Bytes, EpochWords, Ring};
#[cfg(feature = "perf-event-open-sys-7")]
pub use rings::EventSpec;
pub use rings::control::Handle;
pub use rings::options::RingOptions;
pub use rings::{Pause, RawRing, Recording, Rings, Source, Untraced};
pub use sequence::anomaly::AnomalyKind;
pub use sys::interrupt::CpuInterrupt;
pub use sys::wakeup::Wakeup;

/// The README's examples are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
