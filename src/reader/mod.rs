//! Reading: a merge that waits, under epoll or under tokio.
//!
//! This room takes rings and the options of an order. It gives events, and errors of waiting and of fences. It knows
//! time: when to refresh, when to begin a fence, when to sleep, which reports are due. It does not know the content of
//! a record or why its key may leave. Begin with `blocking.rs`. `engine.rs` is the part that both readers share,
//! everything but sleeping; `report.rs` is how far a flush or a deadline is; `pace.rs` decides how often to refresh;
//! `unordered.rs` reads rings without order.

mod blocking;
mod ended;
mod engine;
mod face;
mod pace;
mod report;
#[cfg(feature = "tokio")]
pub(crate) mod tokio;
mod unordered;

pub use blocking::Reader;
pub use ended::Ended;
