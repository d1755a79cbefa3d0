//! How far one ring is indexed: its new records become places of its queue, and its tail follows what was yielded.
//!
//! The queue has the places in the order of keys ([`Queue`]). The cursor has the ring's side of them, in the order of
//! positions: what was seen, the notes on places, losses, numbers, and the tail.

#[cfg(all(test, not(loom)))]
mod tests;
mod walk;

use crate::merge::REACH_BYTES;
use crate::merge::certainty::Certainty;
use crate::merge::place::{Keyed, Place, SPAN, Tag};
use crate::merge::queue::{Far, Queue};
use crate::order::key::{Keys, Plain};
use crate::order::note::{Note, Notes};
use crate::order::unreported::Unreported;
use crate::record::{Origin, Record};
use crate::ring::{Fault, LOW_POSITION, Ring, with_framing};
use crate::rings::{CpuRing, Losses};
use crate::sequence::numbers::{CpuNumbers, Meaning};
use perf_event_open_sys::bindings;
use std::sync::Arc;
use walk::Walk;

/// A LOST record before its key is known.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    position: u64,
    size: u64,
    id: u64,
    count: u64,
}

/// The tail advances past yielded bytes of a ring once they are this part of it, if not before: the tail shares a cache
/// line with the head that the kernel writes.
const TAIL_PART: u64 = 16;

/// The longest possible record, in bytes. A ring with that much free space has dropped nothing.
const LONGEST: u64 = 1 << 16;

/// The initial capacity of the heap, in entries.
pub(crate) const ROOM: usize = 32;

/// What a ring is indexed with: its queue, and what all rings share.
pub(crate) struct Indexing<'a> {
    pub(crate) queue: &'a mut Queue,
    pub(crate) far: &'a mut Far,
    pub(crate) keys: &'a mut Keys,
}

/// Counts of a ring's records so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Records that were seen.
    pub(crate) indexed: u64,
    /// Bytes that were copied out of the ring because it was full.
    pub(crate) copied: u64,
    pub(crate) late: u64,
    pub(crate) max_late: u64,
    pub(crate) lost: u64,
    /// Records that were copied out of the ring and lost with the reader.
    pub(crate) dropped: u64,
    pub(crate) corrupt: u64,
    /// Records that were out of order and were put in order.
    pub(crate) repaired: u64,
    /// The most bytes that were not given back at a refresh, and those that were copied.
    pub(crate) most_used: u64,
    /// The least size of the ring at which none would have been copied so far.
    pub(crate) needed: u64,
}

/// One ring's cursor.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// Losses that the kernel counts beyond LOST records.
    pub(crate) losses: Unreported,
    pub(crate) notes: Notes,
    /// A LOST record that waits for the record it was written with, whose key it takes.
    lost: Option<Waiting>,
    /// Key of the record indexed last.
    pub(super) before: Option<u64>,
    /// Everything before it is indexed.
    pub(crate) cursor: u64,
    /// The tail from which on it is advanced again, and that from which on the ring may have filled up.
    advance_at: u64,
    check_fill_at: u64,
    /// Places of losses and damage that were not yielded.
    others: u64,
    /// Bytes that were discarded, or read by another consumer, or yielded and of places whose length is in a note. Those
    /// of other places count in the queue ([`Queue::merged`]).
    done: u64,
    /// The head could not be right: nothing more is indexed until everything is yielded.
    lost_head: bool,
    /// The position up to which the ring was written when its head was marked.
    pub(crate) marked: u64,
    /// The position up to which the ring was reserved when the merge noted it, for a proof.
    pub(crate) sighted: u64,
    /// The stored tail at the last refresh.
    looked_tail: u64,
    /// Bytes that the last refresh found.
    pub(crate) newly_written: u64,
    /// The numbers in its records, if they have any.
    pub(crate) numbers: Option<CpuNumbers>,
    pub(crate) counts: Counts,
    /// Key, certainty and lateness of the last record with a key that was yielded one by one. A record without a key
    /// after it shares them.
    pub(crate) yielded: Option<(u64, Certainty, u64)>,
    /// The largest key that was yielded and not proven.
    pub(crate) unproven: Option<u64>,
}

impl Cursor {
    /// A cursor at this position. Earlier records were read by another consumer.
    pub(crate) fn new(tail: u64, numbers: Option<CpuNumbers>) -> Self {
        Self {
            losses: Unreported::default(),
            notes: Notes::new(),
            lost: None,
            before: None,
            cursor: tail,
            advance_at: tail,
            check_fill_at: tail,
            others: 0,
            done: tail,
            lost_head: false,
            marked: tail,
            sighted: tail,
            looked_tail: tail,
            newly_written: 0,
            numbers,
            counts: Counts::default(),
            yielded: None,
            unproven: None,
        }
    }

    // Indexing: from the ring's bytes to places. The hot half of a refresh.

    /// Advances the tail, loads the head and indexes new records. Panics if the key function panics.
    pub(crate) fn refresh(&mut self, cpu_ring: &mut CpuRing, with: &mut Indexing<'_>) {
        self.advance_tail(cpu_ring, with.queue);
        self.look(cpu_ring, with);
    }

    /// [`Cursor::refresh`] for a reader that gathers events: does not catch up with a BPF ring buffer, and advances the
    /// tail only if there is more to yield.
    pub(crate) fn refresh_behind(&mut self, cpu_ring: &mut CpuRing, with: &mut Indexing<'_>) {
        if !catches_up(cpu_ring, with.queue) {
            return self.refresh(cpu_ring, with);
        }
        // First the head: if new records are held, the tail stays behind it, and the kernel wakes nobody.
        self.look(cpu_ring, with);
        if !catches_up(cpu_ring, with.queue) {
            self.advance_tail(cpu_ring, with.queue);
        }
    }

    /// Loads the head and indexes new records.
    fn look(&mut self, cpu_ring: &mut CpuRing, with: &mut Indexing<'_>) {
        let CpuRing { ring, origin, losses, copies, .. } = cpu_ring;
        losses.refreshed();
        let tail = std::mem::replace(&mut self.looked_tail, ring.tail());
        if self.lost_head {
            // Skipping gives back all bytes, also those of held records. Meanwhile the ring holds up no proof.
            if with.queue.held() > 0 {
                self.newly_written = 0;
                return;
            }
            ring.skip_to_head();
            self.lost_head = false;
            // What was reserved before is skipped.
            (self.sighted, self.marked) = (self.sighted.min(self.cursor), self.marked.min(self.cursor));
        }
        with.queue.tidy();
        with.queue.fade();
        let head = ring.refresh();
        // No underflow: a head that moves back is a fault and is not taken.
        self.newly_written = ring.head() - self.cursor;
        self.counts.most_used = self.counts.most_used.max(ring.used() + copies.len());
        // The ring may have been full before the bytes yielded since the last refresh were given back.
        // A ring shorter than the longest record would otherwise be suspect even while it is empty.
        self.losses.suspect |=
            losses.is_cheap || ring.reserved() > tail && ring.reserved() - tail + LONGEST > ring.size();
        with.queue.share = ring.size() / TAIL_PART;
        self.index(ring, origin, losses, with);
        // The damage lies behind everything that the last good head covers.
        if let Err(fault) = head {
            self.lost_head = true;
            self.skip_corrupt(fault, self.cursor, with);
        }
        self.check_fill_at = self.advance_at + ring.size() / TAIL_PART;
    }

    /// Indexes everything up to the ring's head.
    fn index(&mut self, ring: &Ring, origin: &Arc<Origin>, losses: &mut Losses, with: &mut Indexing<'_>) {
        while self.cursor < ring.head() {
            // A LOST record takes the key of the record after it, which only the general way hands on.
            if self.lost.is_none()
                && let Some(plain) = with.keys.plain(&origin.layout)
                && self.index_plain(ring, &plain, with)
            {
                continue;
            }
            let record = match Record::at(ring, self.cursor, origin) {
                Ok(record) => record,
                Err((fault, end)) => {
                    self.skip_corrupt(fault, end, with);
                    continue;
                }
            };
            with.queue.longest = with.queue.longest.max(record.len());
            if record.is_discarded() {
                // It gets no place, so nothing else counts its bytes as done.
                (self.cursor, self.done) = (self.cursor + record.len(), self.done + record.len());
            } else if let Some((id, count)) = record.lost() {
                if record.is_lost_samples() {
                    self.index_lost_samples(&record, [id, count], losses, with);
                } else {
                    self.index_lost(&record, [id, count], losses, with);
                }
            } else {
                self.index_record(&record, with);
            }
        }
        // A kernel publishes a LOST record together with the next record, so nothing is to come for this one.
        self.settle_lost(None, with);
    }

    /// Indexes a record of any kind.
    fn index_record(&mut self, record: &Record<'_>, with: &mut Indexing<'_>) {
        let len = record.len();
        // The user's functions may panic. Nothing of this record is stored before they return.
        let own = match with.keys.of(record) {
            Ok(own) => own,
            Err(fault) => return self.skip_corrupt(fault, self.cursor + len, with),
        };
        let number = with.keys.number(record);
        self.settle_lost(own, with);
        // One in a BPF ring buffer may be too long for a place.
        let long = if record.header().size() == 0 { len as u32 } else { 0 };
        let note = number.and_then(|number| self.take_number(number, record, long));
        let note = note.or((long > 0).then_some(Note::Long { len: long }));
        if record.kind() == bindings::PERF_RECORD_READ && record.origin().is_adopted {
            // Other CPUs write into these rings, outside of any section that a fence waits for.
            with.keys.distrust();
        }
        self.counts.indexed += 1;
        self.counts.repaired += u64::from(own.is_some_and(|key| with.queue.back().is_some_and(|back| key < back)));
        let tag = if record.kind() == bindings::PERF_RECORD_SAMPLE { Tag::SAMPLE } else { Tag::OTHER };
        self.insert(self.cursor, record.header().size().into(), own, tag, note, with);
        // After the note and the place were made: both need the record before this one.
        self.before = own.or(self.before);
        self.cursor += len;
        with.keys.found = with.keys.found.max(own);
    }

    /// Indexes plain records, up to the first that is not plain, or the end of the ring's memory or of a block. Returns
    /// whether there was any.
    fn index_plain(&mut self, ring: &Ring, plain: &Plain, with: &mut Indexing<'_>) -> bool {
        let bytes = ring.up_to_head(self.cursor);
        // Where the low bits of the position wrap, the general way goes on.
        let until = LOW_POSITION - (self.cursor & LOW_POSITION);
        let bytes = &bytes[..bytes.len().min(until as usize)];
        let ((back, far_end), longest) = (with.queue.bounds(), with.queue.longest);
        let word = Place::word(with.queue.ring_index, self.cursor);
        let (block, begin, floor) = with.queue.unfilled();
        let mut walk = Walk { left: bytes, word, back, longest, floor, far_end, last: 0, repaired: 0 };
        let end = with_framing!(plain.kind, F => walk.index::<F>(plain, block, begin));
        let Walk { left, back, longest, last, repaired, .. } = walk;
        let (new, len) = (end - begin, bytes.len() - left.len());
        if new == 0 {
            return false;
        }
        with.queue.filled(new, back);
        with.queue.longest = longest;
        self.counts.indexed += new as u64;
        self.counts.repaired += repaired as u64;
        self.before = Some(last);
        self.cursor += len as u64;
        with.keys.grew(back);
        true
    }

    /// Counts the number of a record. Returns the note for the record, if it needs one. `len`: of a record that is too
    /// long for a place.
    #[inline]
    fn take_number(&mut self, number: u64, record: &Record<'_>, len: u32) -> Option<Note> {
        let cpu = record.cpu();
        match self.numbers.as_mut()?.take(cpu, number)? {
            Meaning::Expected => None,
            Meaning::Hole(hole) => Some(Note::Hole { cpu, len, hole, after: self.before }),
            Meaning::Anomaly(kind, expected) => Some(Note::Anomaly { cpu, len, kind, expected, found: number }),
        }
    }

    /// Checks the count of a LOST record, and keeps it until the record with which it was written.
    #[cold]
    fn index_lost(&mut self, record: &Record<'_>, [id, count]: [u64; 2], losses: &mut Losses, with: &mut Indexing<'_>) {
        if self.lost.is_some() {
            // The kernel never writes two in a row.
            self.settle_lost(None, with);
        }
        let size = record.len();
        let end = self.cursor + size;
        // Before anything is stored: a count that cannot be right makes the record damage.
        if let Err(fault) = losses.take(record, count) {
            return self.skip_corrupt(fault, end, with);
        }
        self.lost = Some(Waiting { position: self.cursor, size, id, count });
        self.cursor = end;
    }

    /// Places a loss of samples that never came to the ring. Its record is written by itself, with a time of its own.
    #[cold]
    fn index_lost_samples(
        &mut self,
        record: &Record<'_>,
        [id, count]: [u64; 2],
        losses: &mut Losses,
        with: &mut Indexing<'_>,
    ) {
        let end = self.cursor + record.len();
        let own = match with.keys.of(record) {
            Ok(own) => own,
            Err(fault) => return self.skip_corrupt(fault, end, with),
        };
        if let Err(fault) = losses.take(record, count) {
            return self.skip_corrupt(fault, end, with);
        }
        self.settle_lost(own, with);
        // All of it, whatever the kernel counts: that has none of these.
        let note = if count == 0 { Note::Reported } else { Note::Lost { id, count, after: self.before } };
        self.insert(self.cursor, record.len(), own, Tag::OTHER, Some(note), with);
        self.before = own.or(self.before);
        self.cursor = end;
        with.keys.found = with.keys.found.max(own);
    }

    /// Places a waiting LOST record right before the record with which it was written.
    #[inline]
    fn settle_lost(&mut self, key: Option<u64>, with: &mut Indexing<'_>) {
        if let Some(Waiting { position, size, id, count }) = self.lost.take() {
            let unreported = self.losses.of_lost(count, with.queue);
            let note =
                if unreported == 0 { Note::Reported } else { Note::Lost { id, count: unreported, after: self.before } };
            self.insert(position, size, key, Tag::OTHER, Some(note), with);
        }
    }

    /// Skips the bytes from the cursor to `end` as a corrupt record, which is yielded as damage.
    #[cold]
    fn skip_corrupt(&mut self, fault: Fault, end: u64, with: &mut Indexing<'_>) {
        // First, because notes are sorted by position.
        self.settle_lost(None, with);
        // It fits: a ring has at most 2^31 bytes (Ring::MAX).
        let len = (end - self.cursor) as u32;
        self.insert(self.cursor, 0, None, Tag::OTHER, Some(Note::Fault { fault, len }), with);
        self.cursor = end;
    }

    /// Makes a place. `tag` is that of one with its own key.
    #[inline]
    fn insert(
        &mut self,
        position: u64,
        size: u64,
        own: Option<u64>,
        tag: Tag,
        note: Option<Note>,
        with: &mut Indexing<'_>,
    ) {
        let (key, tag) = match (own, self.before) {
            (Some(key), _) => (key, tag),
            (None, Some(key)) => (key, Tag::BEFORE),
            (None, None) => (0, Tag::NEVER),
        };
        if let Some(note) = note {
            self.notes.push(position, note);
        }
        let tag = if note.is_some() { tag.noted() } else { tag };
        self.others += u64::from(note.is_some_and(|note| !note.is_of_a_record()));
        with.queue.add(Place::new(key, with.queue.ring_index, position, size, tag), with.far);
    }

    // What it knows of the ring.

    /// Whether the low bits of positions still tell places apart once the ring has as much again in it: only held
    /// records that were copied out lie so far back.
    pub(crate) fn spans(&self, queue: &Queue, size: u64) -> bool {
        queue.front().is_none_or(|front| self.cursor + size - self.position(front) < SPAN)
    }

    /// Bytes that were seen and are in the queue, and those of places whose length is in a note until they are yielded.
    pub(crate) fn unread(&self, queue: &Queue) -> u64 {
        self.cursor - self.done - queue.merged
    }

    /// Whether everything is indexed that was reserved when the merge noted it. Nothing more comes from a ring whose
    /// head is lost.
    pub(crate) fn is_past_sighted(&self) -> bool {
        self.cursor >= self.sighted || self.lost_head
    }

    /// The same of what was written when its head was marked, for a report.
    pub(crate) fn is_past_marked(&self) -> bool {
        self.cursor >= self.marked || self.lost_head
    }

    /// Records that are not in the queue any more.
    pub(crate) fn records_taken(&self, queue: &Queue) -> u64 {
        self.counts.indexed + self.others - queue.places() as u64
    }

    // Positions, and the tail.

    /// The position of a place, or of its end.
    #[inline]
    pub(crate) fn position(&self, place: Place) -> u64 {
        // Its low bits suffice: SPAN bounds how far a place lies before the cursor.
        self.cursor - (self.cursor.wrapping_sub(place.low()) & LOW_POSITION)
    }

    /// The position before which everything has left the queue.
    ///
    /// A place that was shifted over others lies at most [`REACH_BYTES`] behind each of them. So once a place lies
    /// further behind the smallest position, no smaller one follows. What is in the heap lies behind a place of the
    /// queue.
    pub(crate) fn tail(&self, queue: &Queue) -> u64 {
        let mut tail = self.cursor;
        for place in queue.iter() {
            let position = self.position(*place);
            if position > tail.saturating_add(REACH_BYTES as u64) {
                break;
            }
            tail = tail.min(position);
        }
        tail
    }

    /// Whether nothing is yielded that lies behind a held place, as far as the ring still has both. Only if nothing is
    /// merged and not yielded.
    pub(crate) fn is_in_one_piece(&self, cpu_ring: &CpuRing, queue: &Queue, far: &Far) -> bool {
        let tail = self.tail(queue);
        if self.unread(queue) == self.cursor - tail || self.lost_head || tail < cpu_ring.ring.tail() {
            return true;
        }
        // Discarded records count as done wherever they lie.
        cpu_ring.records_from(tail) - cpu_ring.records_from(self.cursor) == self.records(queue, far).count() as u64
    }

    /// The places of records: what tells of a loss, or of damage, is no record.
    fn records<'a>(&'a self, queue: &'a Queue, far: &'a Far) -> impl Iterator<Item = Place> + 'a {
        let far = far.iter().filter(|place| place.ring_index() == queue.ring_index as usize);
        let places = queue.iter().chain(far).copied();
        places.filter(|place| self.note(*place).is_none_or(|note| note.is_of_a_record()))
    }

    /// The reader is dropped: counts what it had copied out of its ring and not yielded.
    pub(crate) fn drop_copied(&mut self, ring: &Ring, queue: &Queue, far: &Far) {
        let copied = self.records(queue, far).filter(|place| self.position(*place) < ring.tail());
        self.counts.dropped = copied.count() as u64;
    }

    /// Whether so much was yielded since the tail was advanced that it should be advanced again. Only if nothing is
    /// merged and not yielded. The tail is near the first place.
    #[inline]
    pub(crate) fn is_tail_due(&self, queue: &Queue) -> bool {
        queue.front().map_or(self.cursor, |front| self.position(front)) >= self.advance_at
    }

    /// Gives back to the kernel the bytes of all yielded records before the first held one. Only if nothing is merged
    /// and not yielded.
    #[inline]
    pub(crate) fn advance_tail(&mut self, cpu_ring: &mut CpuRing, queue: &Queue) {
        // Further, if held bytes were copied out.
        let tail = self.tail(queue);
        cpu_ring.ring.release(tail.max(cpu_ring.ring.tail()));
        cpu_ring.copies.forget_before(tail);
        self.advance_at = tail + cpu_ring.ring.size() / TAIL_PART;
    }

    /// Whether the ring fills up, if so much of it was yielded since the last call or refresh that it is worth asking.
    pub(crate) fn fills_up(&mut self, ring: &Ring, queue: &Queue) -> bool {
        let position = queue.front().map_or(self.cursor, |front| self.position(front));
        let asks = position >= self.check_fill_at;
        if asks {
            // Asking loads the head, whose cache line the kernel writes.
            self.check_fill_at = position + 2 * ring.size() / TAIL_PART;
        }
        asks && ring.fills_up()
    }

    // Notes, and places that are yielded.

    /// The origin of a place's key.
    pub(crate) fn keyed(&self, place: Place) -> Keyed {
        if place.tag() == Tag::LOOSE && self.losses.is_first() { Keyed::Never } else { place.keyed() }
    }

    /// The note on a place.
    pub(crate) fn note(&self, place: Place) -> Option<Note> {
        if place.tag() == Tag::LOOSE {
            return self.losses.note();
        }
        if place.is_noted() { self.notes.get(self.position(place)) } else { None }
    }

    /// Bytes of a place in its ring.
    pub(crate) fn len_of(&self, place: Place) -> u64 {
        if place.size() > 0 { place.size() } else { self.note(place).map_or(0, |note| note.len()) }
    }

    /// Takes a place as yielded that the merge has taken out.
    pub(crate) fn take(&mut self, place: Place, queue: &mut Queue) {
        if place.tag() == Tag::LOOSE {
            self.losses.take(queue);
        } else if place.is_noted() {
            let note = self.note(place);
            if place.size() == 0 {
                // Before its note is forgotten, which has the length.
                self.done += self.len_of(place);
            }
            // What a notice reported before the record is forgotten already.
            self.others -= u64::from(note.is_some_and(|note| !note.is_of_a_record()));
            self.notes.forget(self.position(place));
        }
    }
}

/// Whether giving back what was yielded would catch up with all that is known of a ring that wakes the reader for each
/// record then.
pub(crate) fn catches_up(cpu_ring: &CpuRing, queue: &Queue) -> bool {
    cpu_ring.ring.properties().wakes_when_drained && queue.is_empty()
}
