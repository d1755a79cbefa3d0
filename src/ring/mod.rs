//! One ring: the memory shared with the kernel. All pointer work of the crate is in this folder.
//!
//! This room takes a mapped ring and its two shared words. It gives checked headers and borrowed bytes. It knows
//! positions, bytes and headers. It does not know what a record means, what a key is, or that there are other rings.
//! Begin with `consumer.rs`; `words.rs` has every atomic access, `memory.rs` the mapping, `frame.rs` the header's
//! checks.
//!
//! A [`Ring`] hands out bytes between its tail and the head it saw last, borrowed from `&self`. Tail and head move only
//! through `&mut self`. So the compiler proves what the kernel's protocol demands: while a byte is borrowed, the tail
//! that protects it stays where it is. Nothing outside this folder can break that, because nothing outside has a
//! pointer.
//!
//! Positions are *logical*: bytes since this ring was taken up, never wrapping, whatever `data_head` started from.
//!
//! Invariants, cited as (I1)…(I5) here and in DESIGN.md:
//!
//! - **I1** The header page and `size` bytes of data, a power of two, stay mapped while the ring lives, in the process that
//!   took it up. A forked child does not have them: no call that begins there reads them ([`Ring::assert_here`]). What was lent before
//!   the fork reads an address that is not mapped in the child, or where the child has mapped something else since. The docs of the crate
//!   forbid it.
//! - **I2** `data_tail` is stored by this ring alone and holds `tail`.
//! - **I3** `tail <= head <= tail + size`, and every slice handed out lies within `tail..head`.
//! - **I4** Each word and each header is read once, checked, and the checked copy used.
//! - **I5** A lawful kernel does not write between the published tail and the head. (One that breaks this, as BPF output
//!   of more than 65,516 bytes does, garbles bytes; it cannot move a bound, because of I4.)
//! - **I9** A ring that is written backwards, over what is oldest, is looked at only while its output is paused and after a
//!   grace period that began behind the pause: nobody writes anywhere. Bytes are handed out until [`Ring::thaw`] only.

mod bytes;
mod consumer;
mod epochs;
mod frame;
mod memory;
mod prefetch;
mod words;

pub use bytes::Bytes;
pub use consumer::Ring;
pub(crate) use epochs::{Epoch, EpochWords};
pub use frame::Fault;
pub(crate) use frame::Header;
pub(crate) use memory::KernelHalf;
pub(crate) use prefetch::prefetch;
