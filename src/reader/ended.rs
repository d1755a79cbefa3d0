//! The end of a stream.

/// Why a stream has ended and a reader gives `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// The reader was closed ([`Handle::close`](crate::Handle::close)). The stream never goes on.
    Closed,
    /// The rings are those of a recording, and all of its events have been yielded. The stream never goes on.
    Recording,
    /// The deadline is past ([`Handle::set_deadline`](crate::Handle::set_deadline)), and all events that were in the
    /// rings then have been yielded. The stream goes on once the deadline is moved or removed.
    Deadline {
        /// Whether that is so. If not, the reader has waited long enough for a program that has not committed what it
        /// reserved in a BPF ring buffer ([`Order::latency`](crate::Order::latency)). Events that cannot be proven
        /// before it does are held.
        complete: bool,
    },
}
