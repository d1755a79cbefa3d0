//! Indexing: from the ring's bytes to places. The hot half of a refresh.

use super::{FORGOTTEN, Far, Index, LONGEST, TAIL_PART, Waiting};
use crate::order::key::{Keys, Plain};
use crate::order::place::{Note, Place, SPAN, Tag};
use crate::order::queue::{REACH, REACH_BYTES, SLOTS};
use crate::record::{Origin, Record};
use crate::ring::{Fault, Framing, LOW_POSITION, Ring, prefetch, with_framing};
use crate::rings::{CpuRing, Losses};
use crate::sequence::numbers::Said;
use perf_event_open_sys::bindings;
use std::sync::Arc;

/// How many bytes ahead to prefetch while indexing: twenty to a hundred records, which hides the latency of another
/// CPU's cache.
const AHEAD: usize = 4096;

/// What all rings are indexed with.
pub(crate) struct Indexing<'a> {
    pub(crate) keys: &'a mut Keys,
    pub(crate) far: &'a mut Far,
    /// The most bytes of memory that this ring's index and the heap may take; more only if nothing is held.
    pub(crate) most: usize,
}

impl Index {
    /// Advances the tail, loads the head and indexes new records. Returns whether everything was indexed. Panics if the
    /// key function panics.
    pub(crate) fn refresh(&mut self, cpu_ring: &mut CpuRing, with: Indexing<'_>) -> bool {
        self.advance_tail(cpu_ring);
        self.look(cpu_ring, with)
    }

    /// [`Index::refresh`] for a reader that gathers events: does not catch up with a BPF ring buffer, and advances the
    /// tail only if there is more to yield.
    pub(crate) fn refresh_behind(&mut self, cpu_ring: &mut CpuRing, with: Indexing<'_>) -> bool {
        if !self.catches_up(cpu_ring) {
            return self.refresh(cpu_ring, with);
        }
        let is_whole = self.look(cpu_ring, with);
        if !self.catches_up(cpu_ring) {
            self.advance_tail(cpu_ring);
        }
        is_whole
    }

    /// Loads the head and indexes new records.
    fn look(&mut self, cpu_ring: &mut CpuRing, mut with: Indexing<'_>) -> bool {
        let CpuRing { ring, origin, losses, .. } = cpu_ring;
        losses.refreshed();
        let tail = std::mem::replace(&mut self.looked_tail, ring.tail());
        if self.lost_head {
            if self.len() > 0 {
                return true;
            }
            ring.skip_to_head();
            self.lost_head = false;
            // What was reserved before is skipped.
            (self.sighted, self.marked) = (self.sighted.min(self.cursor), self.marked.min(self.cursor));
        }
        self.tidy();
        // The length of an unusually long record fades over time.
        self.longest -= self.longest / FORGOTTEN;
        let head = ring.refresh();
        self.found = ring.head() - self.cursor;
        self.counts.most_used = self.counts.most_used.max(ring.used());
        // The ring may have been full before the bytes yielded since the last refresh were given back.
        self.suspect |= losses.are_cheap() || ring.reserved() > tail && ring.reserved() - tail + LONGEST > ring.size();
        self.share = ring.size() / TAIL_PART;
        let whole = self.index_all(ring, origin, losses, head, &mut with);
        self.check_fill_at = self.advance_at + ring.size() / TAIL_PART;
        whole
    }

    /// Indexes everything that a ring has, and the fault of its head.
    fn index_all(
        &mut self,
        ring: &Ring,
        origin: &Arc<Origin>,
        losses: &mut Losses,
        head: Result<(), Fault>,
        with: &mut Indexing<'_>,
    ) -> bool {
        let is_in_reach = self.front().is_none_or(|front| self.cursor - self.position(front) < SPAN);
        if !is_in_reach || !self.index(ring, origin, losses, with) {
            return false;
        }
        if let Err(fault) = head {
            // A fault that cannot be reported for lack of memory is found again by the next refresh.
            if self.room == 0 && !self.make_room(with.far, with.most) {
                return false;
            }
            self.lost_head = true;
            self.skip_corrupt(fault, self.cursor, with.far);
        }
        true
    }

    /// Indexes everything up to the ring's head, or as much as fits into the memory.
    fn index(&mut self, ring: &Ring, origin: &Arc<Origin>, losses: &mut Losses, with: &mut Indexing<'_>) -> bool {
        // Other rings may have used the memory that was free at the last refresh.
        self.room = 0;
        while self.cursor < ring.head() {
            // A LOST record and the record it was written with belong together.
            if self.room == 0 && self.lost.is_none() && !self.make_room(with.far, with.most) {
                return false;
            }
            if self.lost.is_none()
                && let Some(plain) = with.keys.plain(&origin.layout)
                && self.index_plain(ring, &plain, with)
            {
                continue;
            }
            self.room = self.room.saturating_sub(1);
            let record = match Record::at(ring, self.cursor, origin) {
                Ok(record) => record,
                Err((fault, end)) => {
                    self.skip_corrupt(fault, end, with.far);
                    continue;
                }
            };
            self.longest = self.longest.max(record.len());
            if record.is_discarded() {
                (self.cursor, self.done) = (self.cursor + record.len(), self.done + record.len());
            } else if record.kind() == bindings::PERF_RECORD_LOST {
                self.index_lost(&record, losses, with.far);
            } else {
                self.index_record(&record, with);
            }
        }
        self.settle_lost(None, with.far);
        true
    }

    /// Indexes a record of any kind.
    fn index_record(&mut self, record: &Record<'_>, with: &mut Indexing<'_>) {
        let len = record.len();
        // The user's functions may panic. Nothing of this record is stored before they return.
        let own = match with.keys.of(record) {
            Ok(own) => own,
            Err(fault) => return self.skip_corrupt(fault, self.cursor + len, with.far),
        };
        let number = with.keys.number(record);
        self.settle_lost(own, with.far);
        // One in a BPF ring buffer may be too long for a place.
        let long = if record.header().size() == 0 { len as u32 } else { 0 };
        let note = number.and_then(|number| self.take_number(number, record, long));
        let note = note.or((long > 0).then_some(Note::Long { len: long }));
        if record.kind() == bindings::PERF_RECORD_READ && record.origin().is_adopted {
            // Other CPUs write into these rings, outside of any section that a fence waits for.
            with.keys.distrust();
        }
        self.counts.indexed += 1;
        self.counts.repaired += u64::from(own.is_some_and(|key| key < self.back) && !self.queue.is_empty());
        let tag = if record.kind() == bindings::PERF_RECORD_SAMPLE { Tag::SAMPLE } else { Tag::OTHER };
        self.insert(self.cursor, record.header().size().into(), own, tag, note, with.far);
        self.before = own.or(self.before);
        self.cursor += len;
        self.largest = self.largest.max(own);
    }

    /// Indexes plain records, up to the first that is not plain, or the end of the ring's memory or of a block. Returns
    /// whether there was any.
    fn index_plain(&mut self, ring: &Ring, plain: &Plain, with: &mut Indexing<'_>) -> bool {
        let bytes = ring.rest(self.cursor);
        // Where the low bits of the position wrap, the general way goes on.
        let until = LOW_POSITION - (self.cursor & LOW_POSITION);
        let bytes = &bytes[..bytes.len().min(until as usize)];
        let back = if self.queue.is_empty() { 0 } else { self.back };
        let word = Place::word(self.ring_index, self.cursor);
        if self.far == 0 {
            self.far_end = 0;
        }
        let (block, begin, floor) = self.queue.unfilled();
        let (far_end, longest) = (self.far_end, self.longest);
        let mut walk = Walk { left: bytes, word, back, longest, floor, far_end, last: 0, repaired: 0 };
        let end = with_framing!(plain.kind, F => walk.index::<F>(plain, block, begin));
        let Walk { left, back, longest, last, repaired, .. } = walk;
        let (new, len) = (end - begin, bytes.len() - left.len());
        if new == 0 {
            return false;
        }
        self.queue.filled(new);
        self.room = self.room.saturating_sub(new);
        self.made += new as u64;
        self.counts.indexed += new as u64;
        self.counts.repaired += repaired as u64;
        (self.back, self.longest) = (back, longest);
        self.before = Some(last);
        self.cursor += len as u64;
        self.largest = self.largest.max(Some(self.back));
        with.keys.grew(self.back);
        true
    }

    /// Counts the number of a record. Returns the note for the record, if it needs one. `len`: of a record that is too
    /// long for a place.
    #[inline]
    fn take_number(&mut self, number: u64, record: &Record<'_>, len: u32) -> Option<Note> {
        let (cpu, lost) = (record.cpu(), std::mem::take(&mut self.skipped));
        match self.numbers.as_mut()?.take(cpu, number, lost)? {
            Said::Well => None,
            Said::Hole(hole) => Some(Note::Hole { cpu, len, hole, after: self.before }),
            Said::Anomaly(kind, expected) => Some(Note::Anomaly { cpu, len, kind, expected, found: number }),
        }
    }

    /// Checks the count of a LOST record, and keeps it until the record with which it was written.
    #[cold]
    fn index_lost(&mut self, record: &Record<'_>, losses: &mut Losses, far: &mut Far) {
        if self.lost.is_some() {
            // The kernel never writes two in a row. There is memory for one LOST record and its record. This one
            // reserves more.
            return self.settle_lost(None, far);
        }
        let size = record.len();
        let end = self.cursor + size;
        let (id, count) = record.lost().unwrap_or_default();
        if let Err(fault) = losses.add_reported(count) {
            return self.skip_corrupt(fault, end, far);
        }
        self.skipped = self.skipped.saturating_add(count);
        self.lost = Some(Waiting { position: self.cursor, size, id, count });
        self.cursor = end;
    }

    /// Places a waiting LOST record right before the record with which it was written.
    #[inline]
    fn settle_lost(&mut self, key: Option<u64>, far: &mut Far) {
        if let Some(Waiting { position, size, id, count }) = self.lost.take() {
            let unreported = self.unreported(count);
            let note =
                if unreported == 0 { Note::Reported } else { Note::Lost { id, count: unreported, after: self.before } };
            self.insert(position, size, key, Tag::OTHER, Some(note), far);
        }
    }

    /// The part of a LOST record's count that no event has reported yet.
    #[cold]
    fn unreported(&mut self, count: u64) -> u64 {
        // The loss that waits to be reported is reported now, with a place between two records, unless a report comes
        // before this record.
        if let Some(loose) = self.loose.take_if(|loose| !loose.stays) {
            self.reported_ahead -= loose.count;
        }
        let covered = count.min(self.reported_ahead);
        self.reported_ahead -= covered;
        count - covered
    }

    /// Skips the bytes from the cursor to `end` as a corrupt record, which is yielded as damage.
    #[cold]
    fn skip_corrupt(&mut self, fault: Fault, end: u64, far: &mut Far) {
        self.settle_lost(None, far);
        let len = (end - self.cursor) as u32;
        self.insert(self.cursor, 0, None, Tag::OTHER, Some(Note::Fault { fault, len }), far);
        self.cursor = end;
    }

    /// Makes a place. `tag` is that of one with its own key.
    #[inline]
    fn insert(&mut self, position: u64, size: u64, own: Option<u64>, tag: Tag, note: Option<Note>, far: &mut Far) {
        let (key, tag) = match (own, self.before) {
            (Some(key), _) => (key, tag),
            (None, Some(key)) => (key, Tag::BEFORE),
            (None, None) => (0, Tag::NEVER),
        };
        if note.is_some() {
            self.notes.push_back((position, note));
        }
        let place = Place::new(key, self.ring_index, position, size, if note.is_some() { tag.noted() } else { tag });
        self.made += 1;
        if self.queue.is_empty() || key >= self.back {
            self.back = key;
            return self.queue.push(place);
        }
        // Of equal keys in a ring the heap's come first.
        if (self.far > 0 && key < self.far_end) || !self.queue.shift_in(place) {
            self.far_end = key.saturating_add(1).max(if self.far > 0 { self.far_end } else { 0 });
            self.far += 1;
            far.push(place);
        }
    }
}

/// A walk over plain records.
struct Walk<'a> {
    /// The bytes that are left, and the word of their position.
    left: &'a [u8],
    word: u64,
    /// The largest key so far, and that of the last record.
    back: u64,
    last: u64,
    /// Bytes of the longest record so far.
    longest: u64,
    /// The first place of the block that is held.
    floor: usize,
    /// Smaller keys go into the heap.
    far_end: u64,
    repaired: usize,
}

impl Walk<'_> {
    /// Fills a block from a place on, up to a record that is not plain or whose place is not near. Returns where it
    /// ends. A separate function, so that its state stays in registers.
    #[inline(never)]
    fn index<F: Framing>(&mut self, plain: &Plain, block: &mut [Place; SLOTS], begin: usize) -> usize {
        let plain = *plain;
        let Self { mut left, mut word, mut back, mut last, mut longest, floor, far_end, mut repaired } = *self;
        let mut end = begin;
        while end < SLOTS
            && let Some((header, key, rest)) = plain.split::<F>(left)
        {
            let size = header.size().into();
            let place = Place::plain(key, word, size);
            if key >= back {
                block[end] = place;
                back = key;
            } else if key >= far_end && shift_in(block, floor, end, place) {
                repaired += 1;
            } else {
                break;
            }
            prefetch(rest, AHEAD);
            last = key;
            longest = longest.max(size);
            word = Place::behind(word, size);
            left = rest;
            end += 1;
        }
        *self = Self { left, word, back, last, longest, floor, far_end, repaired };
        end
    }
}

/// Puts a place among those before it in its block, if its place is near and in this block. Returns whether it is.
#[inline]
fn shift_in(block: &mut [Place; SLOTS], floor: usize, end: usize, place: Place) -> bool {
    let mut to = end;
    loop {
        if to == floor {
            // Before the block there may be more.
            if floor == 0 {
                return false;
            }
            break;
        }
        let before = block[to - 1];
        if before.key <= place.key {
            break;
        }
        if end - to == REACH || place.ahead_of(before) > REACH_BYTES {
            return false;
        }
        to -= 1;
    }
    block.copy_within(to..end, to + 1);
    block[to] = place;
    true
}
