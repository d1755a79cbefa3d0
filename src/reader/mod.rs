//! Reading: a merge that waits, under epoll or under tokio.
//!
//! This room takes rings and an order. It gives events, and errors that stood in the way. It knows time: when to look,
//! when to begin a fence, when to sleep, which reports are due. It does not know what is in a record or why its key may
//! leave. Begin with `blocking.rs`. `engine.rs` is what both readers share, everything but sleeping; `pace.rs` says how
//! often to look; `unordered.rs` reads rings as they lie.

mod blocking;
mod ended;
mod engine;
mod face;
mod pace;
#[cfg(feature = "tokio")]
pub(crate) mod tokio;
mod unordered;

pub use blocking::Reader;
pub use ended::Ended;
