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

    /// The smallest entry, if it is a displaced plain record.
    pub(crate) fn displaced_front(&self) -> Option<Entry> {
        let (entry, _) = self.beside.first()?;
        let is_first = self.run.front().is_some_and(|slot| slot.key > entry.key);
        (is_first && entry.is_plain()).then_some(entry)
    }

    /// The smallest entry, if it has this key, is a plain record and comes before all other rings, as `others` says: exclusive bound of the
    /// keys that do. With it the bound of the stretch that begins with it.
    pub(crate) fn plain_before(&self, key: Option<u64>, others: u64) -> Option<(Entry, u64)> {
        let key = key.filter(|key| *key < others)?;
        let entry = self.plain_front(key).or_else(|| self.displaced_front())?;
        Some((entry, others.min(self.beside())))
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

    /// Takes the smallest entry, a displaced plain record. Returns the next key of the ring.
    #[inline(never)]
    pub(crate) fn take_displaced(&mut self, entry: &Entry) -> Option<u64> {
        let (_, place) = self.beside.first()?;
        self.plain += 1;
        self.ahead += entry.record_len();
        self.beside.take(place);
        self.front_key()
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
