//! One ring: the memory shared with the kernel. All pointer work of the crate is in this folder.
//!
//! This room takes a mapped ring and its two shared words. It gives checked headers and borrowed bytes. It knows
//! positions, bytes and headers. It does not know what a record means, what a key is, or that there are other rings.
//! Begin with `consumer.rs`; `consumer/framing.rs` says what differs between kinds of rings, and `consumer/` has a file for each
//! kind. `words.rs` has every atomic access, `memory.rs` the mapping, `frame.rs` the header's checks.
//!
//! A [`Ring`] lends the bytes between its tail and the last head it saw, borrowed from `&self`. Tail and head move only
//! through `&mut self`. So the compiler proves the rule of the kernel's protocol: while a byte is borrowed, the tail
//! that protects it does not move. Code outside this folder cannot break the rule, because it has no pointer.
//!
//! Positions are *logical*: bytes since the crate adopted this ring. They never wrap, and do not depend on the start
//! value of `data_head`.
//!
//! Invariants, cited as (I1)…(I5) here and in DESIGN.md:
//!
//! - **I1** The header page and `size` bytes of data, a power of two, stay mapped while the ring lives, in the process
//!   that adopted it. A forked child does not have them: no refresh and no drop in the child touches them. Bytes of
//!   records that were found before the fork are unmapped in the child, or the child has mapped something else there
//!   since. The docs of the crate forbid reading them.
//! - **I2** `data_tail` is stored by this ring alone and holds `tail`.
//! - **I3** `tail <= head <= tail + size`, and every slice handed out lies within `tail..head`.
//! - **I4** Each word and each header is read once, checked, and the checked copy used.
//! - **I5** A lawful kernel does not write between the stored tail and the head. (One that breaks this, as BPF output
//!   of more than 65,508 bytes does, garbles bytes; it cannot move a bound, because of I4.)
//! - **I9** A ring that is written backwards, over the oldest records, is read only while its output is paused and
//!   after a grace period that began after the pause: no writer is inside. Bytes are lent until [`Ring::thaw`] only.

mod bytes;
mod consumer;
mod epochs;
mod frame;
mod memory;
mod prefetch;
mod words;

pub use bytes::Bytes;
pub(crate) use consumer::LOW_POSITION;
pub use consumer::Ring;
pub(crate) use consumer::framing::{Framing, Properties, RingKind, with_framing};
pub(crate) use consumer::perf::Perf;
pub use consumer::ring_buffer::ANY_CPU;
pub(crate) use consumer::ring_buffer::RingBuffer;
pub use epochs::EpochWords;
#[cfg_attr(not(any(test, feature = "test-util")), expect(unreachable_pub, reason = "public for tests alone"))]
pub use frame::Fault;
pub(crate) use frame::Header;
pub(crate) use memory::KernelHalf;
pub(crate) use prefetch::prefetch;
