//! Taking records of the plainest kind: one by one, or many in a row.

use super::Index;
use crate::order::entry::{Entry, OWN, SKIPPED};
use crate::order::run::{Pool, Slot};

impl Index {
    /// Takes the first slot, of a record of the plainest kind, as yielded. The tail follows.
    #[inline(always)]
    pub(crate) fn take_plain(&mut self, entry: &Entry, pool: &mut Pool) {
        self.plain += 1;
        self.tail += entry.record_len();
        self.run.pop(pool);
        if self.run.front().is_some_and(|next| next.header.tag() == SKIPPED) {
            self.skip(pool);
        }
    }

    /// The same, and puts the next in the entry's place, if it is as [`Index::plain_before`] wants it. Says whether so.
    #[inline(always)]
    pub(crate) fn step_plain(&mut self, entry: &mut Entry, until: u64, pool: &mut Pool) -> bool {
        if let Some(&Slot { key, header }) = self.run.nth(1)
            && header.tag() == OWN
        {
            self.plain += 1;
            self.tail += entry.record_len();
            self.run.step();
            if key < until {
                *entry = Entry { key, position: self.tail, header };
            }
            return key < until;
        }
        self.step_far(entry, until, pool)
    }

    #[inline(never)]
    fn step_far(&mut self, entry: &mut Entry, until: u64, pool: &mut Pool) -> bool {
        self.take_plain(entry, pool);
        let next = self.plain_before(until);
        *entry = next.unwrap_or(*entry);
        next.is_some()
    }

    /// Takes so many slots of the first block, which are such records and end at a position.
    #[inline]
    fn take_stretch(&mut self, records: usize, end: u64, pool: &mut Pool) {
        self.plain += records;
        self.tail = end;
        self.run.advance(records, pool);
        if self.run.front().is_some_and(|next| next.header.tag() == SKIPPED) {
            self.skip(pool);
        }
    }
}

/// Records of the plainest kind at the begin of a run. They are taken when this is dropped.
pub(crate) struct Stretch<'a> {
    index: &'a mut Index,
    pool: &'a mut Pool,
    /// The largest key yielded.
    last: &'a mut u64,
    until: u64,
    /// How many were handed out, and where they end.
    taken: usize,
    position: u64,
}

impl<'a> Stretch<'a> {
    #[inline(always)]
    pub(crate) fn new(index: &'a mut Index, until: u64, pool: &'a mut Pool, last: &'a mut u64) -> Self {
        let position = index.tail;
        Self { index, pool, last, until, taken: 0, position }
    }

    /// Where the next one lies.
    #[inline(always)]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next, if its key is less than `until`. Ends with a block of the run.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<Entry> {
        let slot = self.index.run.nth(self.taken)?;
        if slot.key >= self.until || slot.header.tag() != OWN {
            return None;
        }
        let entry = Entry { key: slot.key, position: self.position, header: slot.header };
        self.taken += 1;
        self.position += entry.record_len();
        *self.last = entry.key;
        Some(entry)
    }

    /// Takes those that were handed out. Says whether the kernel should know.
    #[inline(always)]
    pub(crate) fn end(self) -> bool {
        let tail = self.position;
        let publish_at = self.index.publish_at;
        drop(self);
        tail >= publish_at
    }
}

impl Drop for Stretch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.index.take_stretch(self.taken, self.position, self.pool);
    }
}
