//! Taking plain records of the run: one, or many in sequence.

use super::Index;
use crate::order::entry::{Entry, OWN, SKIPPED};
use crate::order::run::Slot;

impl Index {
    /// The smallest entry, if it has this key, lies in the run and is a plain record.
    #[inline(always)]
    pub(crate) fn plain_front(&self, key: u64) -> Option<Entry> {
        // Of equal keys, those of the run come first.
        self.nth_plain(0).filter(|slot| slot.key == key).map(|slot| Entry {
            key,
            position: self.tail,
            header: slot.header,
        })
    }

    /// The slot `behind` slots after the oldest, if it lies in the same block and is a plain record.
    #[inline(always)]
    pub(crate) fn nth_plain(&self, behind: usize) -> Option<Slot> {
        self.run.nth(behind).copied().filter(|slot| slot.header.tag() == OWN)
    }

    /// Takes the oldest slot, a plain record. `next` is the next slot of the same block. Returns the entry of `next`.
    #[inline(always)]
    pub(crate) fn step(&mut self, entry: &Entry, next: Slot) -> Entry {
        self.plain += 1;
        self.tail += entry.record_len();
        self.run.step();
        Entry { key: next.key, position: self.tail, header: next.header }
    }

    /// Takes the `records` oldest slots of the oldest block, which are plain records. `end` is the position after the last. Returns the
    /// next key of the ring.
    pub(crate) fn take_run(&mut self, records: usize, end: u64) -> Option<u64> {
        self.plain += records;
        self.tail = end;
        self.run.advance(records);
        if self.run.front().is_some_and(|next| next.header.tag() == SKIPPED) {
            self.skip();
        }
        self.front_key()
    }
}
