//! The end of a stream.

/// Why a stream has ended: why a reader gives `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// The reader was closed ([`Handle::close`](crate::Handle::close)). For good.
    Closed,
    /// The rings are those of a recording, and all of its events have been yielded. For good.
    Recording,
    /// The deadline is past ([`Handle::set_deadline`](crate::Handle::set_deadline)), and all events that were in the rings then
    /// have been yielded. The stream goes on once another deadline is set, or none.
    Deadline,
}
