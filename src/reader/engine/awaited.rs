//! What programs have reserved in BPF ring buffers and not committed, as far as a proof or a report waits for it.

use smallvec::SmallVec;
use std::time::Instant;

/// The wait for reservations.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// Since when a proof or a report waits for programs to commit what they have reserved.
    pub(super) since: Option<Instant>,
    /// The reservations at which rings stand: CPU, place, and when the reader found it there.
    pub(super) places: SmallVec<[((u32, u64), Instant); 2]>,
}

impl Awaited {
    /// Since when the oldest reservation is known.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.places.iter().map(|(_, found)| *found).min()
    }
}
