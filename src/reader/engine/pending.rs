//! A report that was asked for, by a flush or a deadline, and how far it is.

use crate::rings::control::Report;
use std::time::Instant;

/// A report before it is made.
///
/// ```text
/// asked for ──► seeing: what lies before the marked heads ──► draining: it is yielded, up to the cap ──► due
///                      └────── forgone: waited long enough ──────┘
/// ```
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) report: Report,
    /// When it was asked for, as far as the reader knows.
    pub(super) since: Instant,
    /// Whether all events before the report were seen, or are not waited for, and newer events wait.
    pub(super) is_draining: bool,
    /// Whether it has waited long enough for programs to commit what they have reserved, and waits for none any more.
    pub(super) is_forgone: bool,
    /// How often newer events came before it after all ([`Merge::raise_cap`](crate::order::merge::Merge::raise_cap)).
    pub(super) raises: u32,
}

impl Pending {
    pub(super) fn new(report: Report) -> Self {
        Self { report, since: Instant::now(), is_draining: false, is_forgone: false, raises: 0 }
    }
}
