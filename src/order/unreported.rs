//! Losses of one ring that the kernel counts beyond LOST records.

use crate::merge::place::{Place, Tag};
use crate::merge::queue::Queue;
use crate::order::note::Note;

/// A loss after everything that was indexed when it was found: its place lies in no ring ([`Queue::loose`]).
#[derive(Debug, Clone, Copy)]
struct Loose {
    count: u64,
    /// The key of the record before it.
    after: Option<u64>,
    /// A report waits for it. So it is reported as it is, also if a LOST record comes that counts the same records.
    stays: bool,
}

/// Losses that events report before a LOST record does, or instead of one.
#[derive(Debug, Default)]
pub(crate) struct Unreported {
    loose: Option<Loose>,
    /// Losses that events have reported beyond LOST records, or will report, because the kernel counts them.
    pub(crate) ahead: u64,
    /// Whether, since the kernel was last asked, the ring was so full at a refresh that records may have been dropped.
    pub(crate) suspect: bool,
}

impl Unreported {
    /// Records how many records the kernel has dropped in total, and how many of them LOST records have reported. The
    /// losses that no event has reported yet become one loss after all held records, at this position, with the key of
    /// the last record. Call it after a refresh. `stays`: a report waits for that loss.
    pub(crate) fn dropped(
        &mut self,
        queue: &mut Queue,
        (position, after): (u64, Option<u64>),
        [total, reported]: [u64; 2],
        stays: bool,
    ) {
        self.suspect = false;
        let new = total.saturating_sub(reported.saturating_add(self.ahead));
        self.ahead += new;
        match &mut self.loose {
            Some(loose) => (loose.count, loose.stays) = (loose.count + new, loose.stays || stays),
            None if new > 0 => {
                // As a record without a key: it takes the key of the last record, and lies behind it.
                let key = after.unwrap_or(0);
                queue.loose = Some(Place::new(key, queue.ring_index, position, 0, Tag::LOOSE));
                self.loose = Some(Loose { count: new, after, stays });
            }
            None => {}
        }
    }

    /// The part of a LOST record's count that no event has reported yet.
    #[cold]
    pub(crate) fn of_lost(&mut self, count: u64, queue: &mut Queue) -> u64 {
        // The loss that waits to be reported is reported now, with a place between two records, unless a report comes
        // before this record.
        if let Some(loose) = self.loose.take_if(|loose| !loose.stays) {
            queue.loose = None;
            self.ahead -= loose.count;
        }
        // A loss that stays, or was yielded, covers some of these records already.
        let covered = count.min(self.ahead);
        self.ahead -= covered;
        count - covered
    }

    /// The loss that waits to be reported.
    pub(crate) fn note(&self) -> Option<Note> {
        self.loose.map(|loose| Note::Lost { id: 0, count: loose.count, after: loose.after })
    }

    /// Whether no record comes before the loss that waits.
    pub(crate) fn is_first(&self) -> bool {
        matches!(self.loose, Some(Loose { after: None, .. }))
    }

    /// The loss was yielded.
    pub(crate) fn take(&mut self, queue: &mut Queue) {
        (self.loose, queue.loose) = (None, None);
    }
}
