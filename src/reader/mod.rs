//! Reading: a merge that waits, under epoll or under tokio.
//!
//! In come rings and an order; out come events, and errors of what stood in the way. This room knows time: when to look, when to begin a
//! fence, when to sleep, which reports are due. It does not know what is in a record or why its key may leave. Begin with `blocking.rs`;
//! `engine.rs` is all that both readers do but sleep, `pace.rs` how often, `unordered.rs` reads rings as they lie.

mod blocking;
mod engine;
mod pace;
#[cfg(feature = "tokio")]
pub(crate) mod tokio;
mod unordered;

pub use blocking::{Events, Reader};
