//! Indexing: from the ring's bytes to entries. The hot half of a refresh.

use super::{FORGOTTEN, Index, LONGEST, Waiting};
use crate::order::entry::{BEFORE, Entry, NEVER, NOTED, Note, OWN, SKIPPED};
use crate::order::key::{Keys, Plain};
use crate::order::run::Slot;
use crate::record::{Kind, Origin, Record};
use crate::ring::{Fault, Header, Ring, prefetch};
use crate::rings::{Lane, Losses};
use crate::sequence::numbers::Said;
use std::sync::Arc;

/// How many bytes ahead to prefetch while indexing: twenty to a hundred records, which hides the latency of another CPU's cache.
const AHEAD: usize = 4096;

impl Index {
    /// Publishes the tail, loads the head and indexes new records, using up to `most` bytes of memory; some memory if nothing is held.
    /// Returns whether everything was indexed. Panics if the key function panics.
    pub(crate) fn refresh(&mut self, lane: &mut Lane, keys: &mut Keys, most: usize) -> bool {
        self.publish(lane);
        self.look(lane, keys, most)
    }

    /// [`Index::refresh`] for a reader that gathers events: does not catch up with a BPF ring buffer, and publishes the tail only if there
    /// is more to yield.
    pub(crate) fn refresh_behind(&mut self, lane: &mut Lane, keys: &mut Keys, most: usize) -> bool {
        if !self.catches_up(lane) {
            return self.refresh(lane, keys, most);
        }
        let is_whole = self.look(lane, keys, most);
        if !self.catches_up(lane) {
            self.publish(lane);
        }
        is_whole
    }

    /// Loads the head and indexes new records.
    fn look(&mut self, lane: &mut Lane, keys: &mut Keys, most: usize) -> bool {
        let Lane { ring, origin, losses, .. } = lane;
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
        // Reuses the same memory, while the caches have it.
        self.run.rewind();
        // The length of an unusually long record fades over time.
        self.longest -= self.longest / FORGOTTEN;
        let head = ring.refresh();
        self.found = ring.head() - self.cursor;
        self.counts.most_used = self.counts.most_used.max(ring.used());
        // The ring may have been full before the bytes yielded since the last refresh were given back.
        self.suspect |= losses.are_cheap() || ring.reserved() > tail && ring.reserved() - tail + LONGEST > ring.size();
        if !self.index(ring, origin, losses, keys, most) {
            return false;
        }
        if let Err(fault) = head {
            // A fault that cannot be reported for lack of memory is found again by the next refresh.
            if self.room == 0 && !self.make_room(most) {
                return false;
            }
            self.lost_head = true;
            self.damage(fault, self.cursor);
        }
        true
    }

    /// Indexes everything up to the ring's head, or as much as fits into the memory.
    pub(super) fn index(
        &mut self,
        ring: &Ring,
        origin: &Arc<Origin>,
        losses: &mut Losses,
        keys: &mut Keys,
        most: usize,
    ) -> bool {
        // Other rings may have used the memory that was free at the last refresh.
        self.room = 0;
        while self.cursor < ring.head() {
            // A LOST record and the record it was written with belong together.
            if self.room == 0 && self.lost.is_none() && !self.make_room(most) {
                return false;
            }
            if self.lost.is_none()
                && let Some(plain) = keys.plain(&origin.layout)
                && self.index_plain(ring, &plain, keys)
            {
                continue;
            }
            self.room = self.room.saturating_sub(1);
            let record = match Record::at(ring, self.cursor, origin) {
                Ok(record) => record,
                Err((fault, end)) => {
                    self.damage(fault, end);
                    continue;
                }
            };
            let (header, len) = (record.header(), record.len());
            let end = self.cursor + len;
            self.longest = self.longest.max(len);
            if record.is_discarded() {
                self.discard(len);
                continue;
            }
            if record.kind() == Kind::LOST {
                self.index_lost(&record, losses);
                continue;
            }
            // The user's functions may panic. Nothing of this record is stored before they return.
            let own = match keys.of(&record) {
                Ok(own) => own,
                Err(fault) => {
                    self.damage(fault, end);
                    continue;
                }
            };
            let number = keys.number(&record);
            self.settle_lost(own);
            let note = number.and_then(|number| self.take_number(number, &record));
            self.counts.indexed += 1;
            self.counts.repaired += u64::from(own.is_some_and(|key| key < self.back) && !self.run.is_empty());
            let (header, note) = of_any_length(header, len, note);
            self.insert(self.cursor, header, own, note);
            self.before = own.or(self.before);
            self.cursor = end;
            self.largest = self.largest.max(own);
        }
        self.settle_lost(None);
        true
    }

    /// Indexes plain records, up to the first that is not plain, or the end of the ring's memory or of a block. Returns whether there was
    /// any.
    pub(super) fn index_plain(&mut self, ring: &Ring, plain: &Plain, keys: &mut Keys) -> bool {
        let (bytes, _) = ring.bytes(self.cursor, ring.head() - self.cursor).as_slices();
        let room = self.room_beside();
        let Self { run, beside, .. } = self;
        let back = if run.is_empty() { 0 } else { self.back };
        let mut walk = Walk { left: bytes, back, longest: self.longest };
        let slots = run.unfilled();
        let (mut new, mut repaired, mut last) = (0, 0, None);
        loop {
            let in_order = slots.get_mut(new..).map_or(0, |slots| {
                if plain.is_reservation {
                    walk.in_order::<true>(plain, slots)
                } else {
                    walk.in_order::<false>(plain, slots)
                }
            });
            new += in_order;
            if in_order > 0 {
                last = Some(walk.back);
            }
            let (Some(slot), Some((header, key, left))) = (slots.get_mut(new), plain.split(walk.left)) else { break };
            if repaired == room {
                break;
            }
            let at = bytes.len() - walk.left.len();
            beside.displace(Entry { key, position: self.cursor + at as u64, header });
            *slot = Slot { key: walk.back, header: header.tagged(SKIPPED) };
            walk.longest = walk.longest.max(header.size().into());
            walk.left = left;
            new += 1;
            repaired += 1;
            last = Some(key);
        }
        run.filled(new);
        if new == 0 {
            return false;
        }
        self.room = self.room.saturating_sub(new);
        self.entries += new;
        self.counts.indexed += new as u64;
        self.counts.repaired += repaired as u64;
        (self.back, self.longest) = (walk.back, walk.longest);
        self.before = last;
        self.cursor += (bytes.len() - walk.left.len()) as u64;
        self.largest = self.largest.max(Some(self.back));
        keys.grew(self.back);
        true
    }

    /// Passes a reservation that its program discarded.
    #[cold]
    fn discard(&mut self, len: u64) {
        self.cursor += len;
        if self.run.is_empty() {
            // Everything before it is yielded.
            self.tail = self.cursor;
        } else {
            self.ahead += len;
            let header = Header::of_stretch(len as u32).tagged(SKIPPED);
            self.run.push(Slot { key: self.back, header });
        }
    }

    /// Counts the number of a record. Returns the note for the record, if it needs one.
    #[inline]
    pub(super) fn take_number(&mut self, number: u64, record: &Record<'_>) -> Option<Note> {
        let (cpu, lost) = (record.cpu(), std::mem::take(&mut self.skipped));
        match self.numbers.as_mut()?.take(cpu, number, lost)? {
            Said::Well => None,
            Said::Hole(hole) => Some(Note::Hole { cpu, hole, after: self.before }),
            Said::Anomaly(kind, expected) => Some(Note::Anomaly { cpu, kind, expected, found: number }),
        }
    }

    /// Checks the count of a LOST record, and keeps it until the record with which it was written.
    #[cold]
    pub(super) fn index_lost(&mut self, record: &Record<'_>, losses: &mut Losses) {
        if self.lost.is_some() {
            // The kernel never writes two in a row. There is memory for one LOST record and its record. This one reserves more.
            return self.settle_lost(None);
        }
        let header = record.header();
        let end = self.cursor + u64::from(header.size());
        let (id, count) = record.lost().unwrap_or_default();
        if let Err(fault) = losses.tell(count) {
            return self.damage(fault, end);
        }
        self.skipped = self.skipped.saturating_add(count);
        self.lost = Some(Waiting { position: self.cursor, header, id, count });
        self.cursor = end;
    }

    /// Places a waiting LOST record right before the record with which it was written.
    #[inline]
    pub(super) fn settle_lost(&mut self, key: Option<u64>) {
        if let Some(Waiting { position, header, id, count }) = self.lost.take() {
            let untold = self.untold(count);
            let note = if untold == 0 { Note::Told } else { Note::Lost { id, count: untold, after: self.before } };
            self.insert(position, header, key, Some(note));
        }
    }

    /// The part of a LOST record's count that no event has reported yet.
    #[cold]
    pub(super) fn untold(&mut self, count: u64) -> u64 {
        // The loss that waits to be reported is reported now, with a place between two records, unless a report comes before this record.
        if let Some(trailing) = self.beside.trailing().filter(|trailing| !trailing.stays) {
            self.beside.set_trailing(None);
            self.entries -= 1;
            self.foretold -= trailing.count;
        }
        let covered = count.min(self.foretold);
        self.foretold -= covered;
        count - covered
    }

    /// Skips the bytes from the cursor to `end` as damage.
    #[cold]
    pub(super) fn damage(&mut self, fault: Fault, end: u64) {
        self.settle_lost(None);
        let header = Header::of_stretch((end - self.cursor) as u32);
        self.insert(self.cursor, header, None, Some(Note::Fault(fault)));
        self.cursor = end;
    }

    #[inline]
    pub(super) fn insert(&mut self, position: u64, header: Header, own: Option<u64>, note: Option<Note>) {
        let (key, tag) = match (own, self.before) {
            (Some(key), _) => (key, OWN),
            (None, Some(key)) => (key, BEFORE),
            (None, None) => (0, NEVER),
        };
        let tag = match note {
            None => tag,
            Some(note) => {
                self.notes.push_back((position, Some(note)));
                tag | NOTED
            }
        };
        let header = header.tagged(tag);
        self.entries += 1;
        if !self.run.is_empty() && key < self.back {
            self.beside.displace(Entry { key, position, header });
            return self.run.push(Slot { key: self.back, header: header.tagged(SKIPPED) });
        }
        self.back = key;
        self.run.push(Slot { key, header });
    }
}

/// The header and the note of a record. One in a BPF ring buffer may be too long for its header.
#[inline]
fn of_any_length(header: Header, len: u64, note: Option<Note>) -> (Header, Option<Note>) {
    if header.size() == 0 { (Header::of_stretch(len as u32), note.or(Some(Note::Long))) } else { (header, note) }
}

/// A walk over plain records.
struct Walk<'a> {
    /// The bytes that are left.
    left: &'a [u8],
    /// The largest key so far.
    back: u64,
    /// Bytes of the longest record so far.
    longest: u64,
}

impl Walk<'_> {
    /// Fills slots up to a record that is displaced or not plain. Returns how many. A separate function, so that its state stays in
    /// registers.
    #[inline(never)]
    fn in_order<const RESERVATION: bool>(&mut self, plain: &Plain, slots: &mut [Slot]) -> usize {
        let plain = *plain;
        let Self { mut left, mut back, mut longest } = *self;
        let most = slots.len();
        let mut slots = slots.iter_mut();
        while let Some((header, key, rest)) = plain.split_as::<RESERVATION>(left)
            && key >= back
            && let Some(slot) = slots.next()
        {
            prefetch(rest, AHEAD);
            *slot = Slot { key, header };
            back = key;
            longest = longest.max(header.size().into());
            left = rest;
        }
        *self = Self { left, back, longest };
        most - slots.len()
    }
}
