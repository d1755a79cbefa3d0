//! One ring's unyielded records in key order, and its tail in ring order.
//!
//! A ring is not sorted inside. A writer may be interrupted between drawing its key and reserving its place. Its record then lies after the
//! interrupt's record, which has a larger key. So the index covers everything between the tail and the last head seen, and a ring offers
//! its smallest unyielded key instead of its oldest record.
//!
//! The index is a run of slots in the order of the ring. A record whose key is not smaller than the keys before it stays in the run. Any
//! other record is *displaced*: a separate list holds it in key order, and its slot is only skipped. A displaced record has a smaller key
//! than the slot before it, so it is yielded before that slot. When the tail reaches its slot, it has always been yielded. So the tail is
//! simply the start of the run.

use crate::order::hold::Certainty;
mod displaced;
mod fill;
mod memory;
mod plain;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::instrument::step;
use crate::order::entry::{BEFORE, Entry, NEVER, NOTED, Note, SKIPPED};
use crate::order::run::{Run, Slot};
use crate::ring::Header;
use crate::rings::Lane;
use crate::sequence::numbers::{CpuNumbers, NumberCounts};

use displaced::{Displaced, Place, Trailing};
use std::collections::VecDeque;

/// A LOST record before its key is known.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    position: u64,
    header: Header,
    id: u64,
    count: u64,
}

/// Yielded bytes of a ring are published once they are this part of it, if not before: the tail shares a cache line with the head that the
/// kernel writes.
const PUBLISH_PART: u64 = 8;

/// The longest possible record, in bytes. A ring with that much free space has dropped nothing.
const LONGEST: u64 = 1 << 16;

/// How far back a record is inserted into the sorted displaced records by shifting. Beyond that, it goes into a heap.
const REACH: usize = 8;

/// The part by which each refresh reduces the remembered length of the longest record. Half is left after 44 refreshes.
const FORGOTTEN: u64 = 64;

/// The initial capacity of each list, in entries.
const ROOM: usize = 32;

/// How many entries one step makes at most: a LOST record's and that of the record it was written with.
const PAIR: usize = 2;

/// Counts of a ring's records so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Records that were seen.
    pub(crate) indexed: u64,
    /// Records that were yielded.
    pub(crate) records: u64,
    /// Those among `records` that left before the hold rule allowed it, because memory or ring space was used up.
    pub(crate) early: u64,
    /// Refreshes at which the ring was fuller than its mark, and bytes that were copied out of it then.
    pub(crate) pressed: u64,
    pub(crate) copied: u64,
    pub(crate) late: u64,
    pub(crate) max_late: u64,
    pub(crate) lost: u64,
    pub(crate) damaged: u64,
    /// Records that were out of order and were put in order.
    pub(crate) repaired: u64,
    /// The most bytes that were not given back at a refresh.
    pub(crate) most_used: u64,
}

/// One ring's index.
#[derive(Debug)]
pub(crate) struct Index {
    /// In the order of the ring. INVARIANT: keys of slots that are not skipped never decrease; the first slot is one of those.
    run: Run,
    /// The start of the first slot, or of the next one to come: everything before is yielded.
    tail: u64,
    /// The key of the last slot that is not skipped, if there is any.
    back: u64,
    /// Displaced records, and losses that the kernel counts beyond LOST records.
    beside: Displaced,
    /// INVARIANT: sorted by position; one for each entry with a note, `None` once that was yielded, and then never at either end.
    notes: VecDeque<(u64, Option<Note>)>,
    /// A LOST record that waits for the record it was written with, whose key it takes.
    lost: Option<Waiting>,
    /// Key of the record indexed last.
    before: Option<u64>,
    /// The largest key ever indexed.
    largest: Option<u64>,
    /// Everything before it is indexed.
    cursor: u64,
    /// The tail from which on yielded bytes are published.
    publish_at: u64,
    /// How many records can be indexed before the lists need more memory.
    room: usize,
    /// Entries that were not yielded one by one.
    entries: usize,
    /// Plain records among the yielded ones.
    plain: usize,
    /// The head could not be right: nothing more is indexed until everything is yielded.
    lost_head: bool,
    /// Losses that events have reported beyond LOST records, because the kernel counts them.
    foretold: u64,
    /// Losses that LOST records have reported since the last record with a number.
    skipped: u64,
    /// Whether, since the kernel was last asked, the ring was so full at a refresh that records may have been dropped.
    pub(crate) suspect: bool,
    /// The position up to which the ring was written when its head was marked.
    pub(crate) marked: u64,
    /// The position up to which the ring was reserved when the merge noted it, for a proof.
    pub(crate) sighted: u64,
    /// The published tail at the last refresh.
    looked_tail: u64,
    /// Bytes that the last refresh found.
    found: u64,
    /// The numbers in its records, if they have any.
    pub(crate) numbers: Option<CpuNumbers>,
    /// Bytes of yielded entries whose slots are still to be skipped.
    ahead: u64,
    /// Bytes of the longest record of recent refreshes.
    longest: u64,
    /// Excludes plain records.
    counts: Counts,
    /// Certainty and lateness of the last yielded record with a key. Records without a key after it share them.
    pub(crate) yielded: (Certainty, u64),
}

impl Index {
    /// An index from this position on. Earlier records were read by another consumer.
    pub(crate) fn new(tail: u64, numbers: Option<CpuNumbers>) -> Self {
        Self {
            run: Run::new(),
            tail,
            back: 0,
            beside: Displaced::new(),
            notes: VecDeque::with_capacity(ROOM),
            lost: None,
            before: None,
            largest: None,
            cursor: tail,
            publish_at: tail,
            room: 0,
            entries: 0,
            plain: 0,
            lost_head: false,
            foretold: 0,
            skipped: 0,
            suspect: false,
            marked: tail,
            sighted: tail,
            looked_tail: tail,
            found: 0,
            numbers,
            ahead: 0,
            longest: 0,
            counts: Counts::default(),
            yielded: (Certainty::Assumed, 0),
        }
    }

    /// The key of the smallest entry not yet yielded.
    #[inline]
    pub(crate) fn front_key(&self) -> Option<u64> {
        match self.run.front() {
            Some(slot) if slot.key < self.beside.until() => Some(slot.key),
            _ => self.front().map(|front| front.key),
        }
    }

    /// The smallest entry not yet yielded.
    #[inline]
    pub(crate) fn front(&self) -> Option<Entry> {
        self.smallest().map(|(entry, _)| entry)
    }

    /// Exclusive bound of the keys for which the run alone decides: below the smallest displaced key. Of equal keys, those of the run come
    /// first.
    #[inline(always)]
    pub(crate) fn beside(&self) -> u64 {
        self.beside.until()
    }

    /// The smallest entry, and its place if it is displaced. Equal ones are damage and a loss after it, in this order.
    #[inline]
    fn smallest(&self) -> Option<(Entry, Option<Place>)> {
        let first = self.first().map(|entry| (entry, None));
        let Some((beside, place)) = self.beside.first() else { return first };
        first.filter(|(first, _)| *first <= beside).or(Some((beside, Some(place))))
    }

    /// The entry of the first slot.
    #[inline]
    fn first(&self) -> Option<Entry> {
        self.run.front().map(|slot| Entry { key: slot.key, position: self.tail, header: slot.header })
    }

    /// The counts of the ring's records so far.
    pub(crate) fn counts(&self) -> Counts {
        Counts { records: self.counts.records + self.plain as u64, ..self.counts }
    }

    /// The counts, mutable.
    #[inline]
    pub(crate) fn counts_mut(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// The counts of the numbers in its records.
    pub(crate) fn number_counts(&self) -> NumberCounts {
        self.numbers.as_ref().map(CpuNumbers::counts).unwrap_or_default()
    }

    /// How many entries are held.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entries - self.plain
    }

    /// Whether so much was yielded since the tail was published that it should be published again.
    #[inline]
    pub(crate) fn unpublished(&self) -> bool {
        self.tail >= self.publish_at
    }

    /// Bytes that the last refresh found.
    pub(crate) fn found(&self) -> u64 {
        self.found
    }

    /// The tail cannot be published yet: asks again once as much more was yielded.
    pub(crate) fn publish_later(&mut self, ring: &crate::ring::Ring) {
        self.publish_at = self.tail + ring.size() / PUBLISH_PART;
    }

    /// Gives back to the kernel the bytes of all yielded records before the first held one.
    #[inline]
    pub(crate) fn publish(&mut self, lane: &mut Lane) {
        // Further, if held bytes were copied out.
        let tail = self.tail.max(lane.ring.tail());
        lane.ring.release(tail);
        lane.copies.forget_before(self.tail);
        self.publish_later(&lane.ring);
    }

    /// Whether giving back what was yielded would catch up with all that is known of a BPF ring buffer. The kernel then wakes the reader for
    /// the next record.
    pub(crate) fn catches_up(&self, lane: &Lane) -> bool {
        lane.ring.is_ring_buffer() && self.tail == self.cursor
    }

    /// Everything before it is indexed.
    pub(crate) fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Everything before it is yielded, or was discarded.
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Whether everything is indexed for which a proof or a report waits.
    pub(crate) fn is_past_reserved(&self) -> bool {
        self.is_past_sighted() && self.cursor >= self.marked
    }

    /// Whether everything is indexed that was reserved when the merge noted it. Nothing more comes from a ring whose head is lost.
    pub(crate) fn is_past_sighted(&self) -> bool {
        self.cursor >= self.sighted || self.lost_head
    }

    /// The key of the record that was indexed last.
    pub(crate) fn before(&self) -> Option<u64> {
        self.before
    }

    /// Bytes that were seen and are not yielded.
    pub(crate) fn unread(&self) -> u64 {
        self.cursor - self.tail - self.ahead
    }

    /// Bytes of the longest record of recent refreshes.
    pub(crate) fn longest(&self) -> u64 {
        self.longest
    }

    /// The note on an entry.
    pub(crate) fn note(&self, entry: &Entry) -> Option<Note> {
        if !entry.is_noted() {
            return None;
        }
        // The entry lies in no ring and has no length. Its position may also be that of the next record, or of damage.
        if let Some(trailing) = self.beside.trailing()
            && trailing.entry == *entry
            && self.smallest().is_some_and(|(_, place)| place == Some(Place::Trailing))
        {
            return Some(trailing.note());
        }
        self.notes[self.note_at(entry.position)?].1
    }

    fn note_at(&self, position: u64) -> Option<usize> {
        let found = self.notes.binary_search_by_key(&position, |(at, _)| {
            step();
            *at
        });
        found.ok()
    }

    /// Removes the slots that are only to be skipped.
    #[inline(never)]
    fn skip(&mut self) {
        while let Some(&Slot { header, .. }) = self.run.front()
            && header.tag() == SKIPPED
        {
            step();
            self.run.pop();
            self.tail += header.len();
            self.ahead -= header.len();
        }
    }

    /// Takes the smallest entry as yielded. The tail follows.
    pub(crate) fn take(&mut self) {
        let Some((entry, place)) = self.smallest() else { return };
        match place {
            None => {
                self.run.pop();
                self.tail += entry.len();
                self.skip();
            }
            Some(place) => {
                self.beside.take(place);
                // A loss in no ring has no bytes.
                self.ahead += entry.len();
            }
        }
        self.entries -= 1;
        if entry.is_noted() && place != Some(Place::Trailing) {
            self.forget(entry.position);
        }
    }

    /// Marks the note on an entry as yielded.
    #[cold]
    pub(crate) fn forget(&mut self, position: u64) {
        if let Some(at) = self.note_at(position) {
            self.notes[at].1 = None;
        }
        // Not removed from the middle, because that would take time proportional to the number of notes.
        while let Some((_, None)) = self.notes.front() {
            step();
            self.notes.pop_front();
        }
        while let Some((_, None)) = self.notes.back() {
            step();
            self.notes.pop_back();
        }
    }

    /// The largest key ever indexed.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.largest
    }

    /// Records how many records the kernel has dropped in total, and how many of them LOST records have reported. The losses that no event
    /// has reported yet become one loss after all held records. Call it after a refresh. `stays`: a report waits for that loss.
    pub(crate) fn dropped(&mut self, total: u64, told: u64, stays: bool) {
        self.suspect = false;
        let new = total.saturating_sub(told.saturating_add(self.foretold));
        self.foretold += new;
        if let Some(trailing) = self.beside.trailing() {
            let (count, stays) = (trailing.count + new, trailing.stays || stays);
            self.beside.set_trailing(Some(Trailing { count, stays, ..trailing }));
            return;
        }
        if new == 0 {
            return;
        }
        let (key, tag) = self.before.map_or((0, NEVER), |key| (key, BEFORE));
        let header = Header::of_stretch(0).tagged(tag | NOTED);
        let entry = Entry { key, position: self.cursor, header };
        self.beside.set_trailing(Some(Trailing { entry, count: new, after: self.before, stays }));
        self.entries += 1;
    }

    /// Losses that events have reported beyond LOST records, or will report.
    pub(crate) fn foretold(&self) -> u64 {
        self.foretold
    }

    /// Records that are held.
    pub(crate) fn records(&self) -> u64 {
        self.counts.indexed - self.counts().records
    }

    /// The largest key of the records before a position. Takes time proportional to their number.
    pub(crate) fn largest_before(&self, position: u64) -> Option<u64> {
        let mut begin = self.tail;
        let before = self.run.iter().take_while(|slot| {
            let is_before = begin < position;
            begin += slot.header.len();
            is_before
        });
        // Skipped slots have smaller keys than the slot before them.
        before.filter(|slot| slot.header.tag() != SKIPPED).last().map(|slot| slot.key)
    }

    /// The largest key of the run, which is also the largest held key. `None` if nothing is held.
    pub(crate) fn back(&self) -> Option<u64> {
        (!self.run.is_empty()).then_some(self.back)
    }

    /// Keys that divide the held records into pieces of about the same length, the largest key included.
    pub(crate) fn marks(&self) -> impl Iterator<Item = u64> {
        self.run.firsts().skip(1).map(|slot| slot.key).chain(self.back())
    }
}
