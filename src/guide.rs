//! The guide: how to read rings in order, page by page.
//!
//! - [`ordering`]: keys, certainty, and ways to read.
//! - [`loss`]: what can be missing, and how the stream says so.
//! - [`sizing`]: rings, memory, latency and wake-ups.
//! - [`hold_rules`]: when an event may leave, and which rule to choose.
//! - [`ring_buffers`]: BPF ring buffers, and which output to choose for a program.
//! - [`migrating`]: from libbpf-rs, aya, cilium/ebpf and a sort of your own.
//!
//! Types in the guide: [`Reader`](crate::Reader), [`Rings`](crate::Rings), [`Order`](crate::Order),
//! [`Key`](crate::Key), [`Hold`](crate::Hold), [`Fence`](crate::Fence), [`Proof`](crate::Proof),
//! [`Certainty`](crate::Certainty), [`Item`](crate::Item), [`Status`](crate::Status), [`Handle`](crate::Handle)
//! and [`Recorder`](crate::Recorder).

#[doc = include_str!("../docs/guide/ordering.md")]
pub mod ordering {}

#[doc = include_str!("../docs/guide/loss.md")]
pub mod loss {}

#[doc = include_str!("../docs/guide/sizing.md")]
pub mod sizing {}

#[doc = include_str!("../docs/guide/hold_rules.md")]
pub mod hold_rules {}

#[doc = include_str!("../docs/guide/ring_buffers.md")]
pub mod ring_buffers {}

#[doc = include_str!("../docs/guide/migrating.md")]
pub mod migrating {}
