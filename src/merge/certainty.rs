//! How far a place in the order can be trusted.

/// How far an event's place in the order can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Certainty {
    /// Every event with a smaller key was yielded before.
    Proven,
    /// The hold rule released the event before its order was certain. Or no proof holds for its key: it has none, CPUs
    /// need not agree on its clock ([`Clock::Perf`](crate::Clock::Perf)), or other CPUs write into an adopted ring
    /// ([`Rings::add`](crate::Rings::add)).
    Assumed,
    /// An event with a larger key was yielded before. For dense numbers, one with a larger or the same number.
    Late,
}
