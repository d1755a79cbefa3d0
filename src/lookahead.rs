//! One ring's unyielded records in key order, and its tail in ring order.
//!
//! A ring is not sorted inside. A writer that is interrupted between drawing its key and reserving its place finds the
//! interrupt's record, with its larger key, before its own. So everything between the tail and the last seen head is
//! indexed here, and a ring offers its smallest unyielded key rather than its oldest record.
//!
//! The index is a run of slots in the order of the ring. A record whose key is not smaller than those before it stays in the
//! run. Any other is *displaced*: it is kept beside the run, in key order, and its slot is only skipped. Displaced
//! records have a smaller key than the slot before them, so they are yielded before that slot is; when the tail gets
//! there, they are always done. So the tail is simply where the run begins.

use crate::breaks::Break;
use crate::hold::Class;
use crate::key::{Keys, Plain};
use crate::numbers::{Numbers, Said};
use crate::record::{Kind, Origin, Record};
use crate::ring::{Bytes, Fault, Header, Ring};
use crate::rings::{Lane, Losses};
use crate::run::{self, BLOCK, Pool, Run, SLOTS, Slot};
use crate::steps::step;

use binary_heap_plus::{BinaryHeap, MinComparator};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

/// How an entry came by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyed {
    /// The record's own, or for a LOST record that of the record it was written with.
    Own,
    /// That of the record before it in its ring.
    Before,
    /// None, and nothing before it has one either.
    Never,
}

/// What the tag of an indexed header says. `NOTED` goes with any of the other three.
const OWN: u8 = 0;
const SKIPPED: u8 = 1;
const BEFORE: u8 = 2;
const NEVER: u8 = 3;
const NOTED: u8 = 4;

/// An indexed stretch of a ring. Its length was checked when it was indexed and is not read again (I4).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) position: u64,
    /// As it was checked, with a tag. Damage, and losses that nothing follows, have none but their length.
    header: Header,
}

impl Entry {
    /// In place of an entry where there is none.
    pub(crate) const NONE: Self = Self { key: 0, position: 0, header: Header::NONE };

    /// Whether it is a record with a key of its own, and nothing is noted of it.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.header.tag() == OWN
    }

    pub(crate) fn keyed(&self) -> Keyed {
        match self.header.tag() & !NOTED {
            OWN => Keyed::Own,
            BEFORE => Keyed::Before,
            _ => Keyed::Never,
        }
    }

    fn is_noted(&self) -> bool {
        self.header.tag() & NOTED != 0
    }

    /// Bytes that it stands for.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.header.len()
    }

    /// The same of a record.
    #[inline(always)]
    pub(crate) fn record_len(&self) -> u64 {
        self.header.size().into()
    }

    /// The record that it stands for.
    #[inline]
    pub(crate) fn record<'a>(&self, bytes: Bytes<'a>, origin: &'a Arc<Origin>) -> Record<'a> {
        Record::new(bytes, self.header.tagged(OWN), origin)
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        step();
        (self.key, self.position).cmp(&(other.key, other.position))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// What only few entries need, kept aside by position. An entry without a note is a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Note {
    /// Of a LOST record: what it says that was not told before, and the key of the record before it in its ring. Also of
    /// what the kernel counts and no LOST record has told yet.
    Lost { id: u64, count: u64, after: Option<u64> },
    /// Of a LOST record: all that it says was told before.
    Told,
    /// Of damage: what is wrong.
    Fault(Fault),
    /// Of a record: its number is not the one that was expected.
    Break { how: Break, expected: u64, found: u64 },
    /// Of a record: numbers before its own are missing, or were when it was indexed.
    Hole,
}

/// A LOST record before its key is known.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    position: u64,
    header: Header,
    id: u64,
    count: u64,
}

/// Where the smallest entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Run,
    Displaced,
    Rest,
    Trailing,
}

/// Yielded bytes of a ring are published once they are this part of it, if nothing else publishes them before: the tail
/// shares a cache line with the head that the kernel writes.
const PUBLISH_PART: u64 = 8;

/// The longest record there is, in bytes: a ring with that much room has dropped nothing.
const LONGEST: u64 = 1 << 16;

/// How far back among the displaced a record is put in place by shifting. Beyond, it goes into a heap.
const REACH: usize = 8;

/// The part by which the longest record's length is less important with each look: half is left after 44.
const FORGOTTEN: u64 = 64;

/// How many entries each list has room for from the begin.
const ROOM: usize = 32;

/// How many entries are made at once, at most: a LOST record's and that of the record it was written with.
const PAIR: usize = 2;

/// What became of a ring's records so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Records that were seen.
    pub(crate) indexed: u64,
    /// Records that were yielded.
    pub(crate) records: u64,
    /// Of these, ones that were let out before the hold rule would have, because memory or room was used up.
    pub(crate) early: u64,
    /// Looks at which the ring was fuller than its mark, and bytes that were copied out of it then.
    pub(crate) pressed: u64,
    pub(crate) copied: u64,
    pub(crate) late: u64,
    pub(crate) max_late: u64,
    pub(crate) lost: u64,
    pub(crate) damaged: u64,
    /// Records that arrived out of order and were put in place.
    pub(crate) repaired: u64,
    /// The most bytes that were not given back when the ring was looked at.
    pub(crate) most_used: u64,
}

/// One ring's index.
#[derive(Debug)]
pub(crate) struct Lookahead {
    /// In the order of the ring. INVARIANT: keys of slots that are not skipped never decrease; the first slot is one of those.
    run: Run,
    /// Where the first slot begins, or the next will: everything before is yielded.
    tail: u64,
    /// The key of the last slot that is not skipped, if there is any.
    back: u64,
    /// INVARIANT: sorted. Each lies in a skipped slot, behind one that is not and has a larger key.
    displaced: VecDeque<Entry>,
    /// More of those, which came out of order among themselves.
    rest: BinaryHeap<Entry, MinComparator>,
    /// INVARIANT: sorted by position; one for each entry that is noted, `None` once that was yielded, and never at either
    /// end then.
    notes: VecDeque<(u64, Option<Note>)>,
    /// A LOST record that waits for the record it was written with, which has its key.
    lost: Option<Waiting>,
    /// Key of the record indexed last.
    before: Option<u64>,
    /// The largest key ever indexed.
    largest: Option<u64>,
    /// Everything before it is indexed.
    cursor: u64,
    /// The tail at which yielded bytes are worth publishing.
    publish_at: u64,
    /// How many records can be indexed before the lists need more memory.
    room: usize,
    /// Entries that were not taken one by one.
    entries: usize,
    /// Of these, records of the plainest kind that are yielded.
    plain: usize,
    /// The head could not be right: nothing more is indexed until all is yielded.
    lost_head: bool,
    /// What was told of beyond LOST records, because the kernel counts it.
    foretold: u64,
    /// Of that, what waits to be yielded, and where: behind everything that was indexed then, in no ring.
    trailing: Option<(Entry, u64, Option<u64>)>,
    /// What LOST records have told since the last record with a number.
    skipped: u64,
    /// Whether the ring was so full since some look that something may have been dropped, since the kernel was last asked.
    pub(crate) suspect: bool,
    /// How far the ring was written when its head was marked.
    pub(crate) marked: u64,
    /// The published tail at the last look.
    looked_tail: u64,
    /// The numbers in its records, if they have any.
    pub(crate) numbers: Option<Numbers>,
    /// Bytes of entries that are yielded, and whose slots are still to be skipped.
    ahead: u64,
    /// Bytes of the longest record that was seen of late.
    longest: u64,
    /// But for records of the plainest kind.
    counts: Counts,
    /// Class and lateness of the record with a key that was yielded last, which those without one behind it share.
    pub(crate) yielded: (Class, u64),
}

impl Lookahead {
    /// From here on: what lies before was read by somebody else.
    pub(crate) fn new(tail: u64, numbers: Option<Numbers>) -> Self {
        Self {
            run: Run::new(),
            tail,
            back: 0,
            displaced: VecDeque::with_capacity(ROOM),
            rest: BinaryHeap::with_capacity_min(ROOM),
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
            trailing: None,
            skipped: 0,
            suspect: false,
            marked: tail,
            looked_tail: tail,
            numbers,
            ahead: 0,
            longest: 0,
            counts: Counts::default(),
            yielded: (Class::Assumed, 0),
        }
    }

    /// The key of the smallest entry not yet yielded.
    #[inline]
    pub(crate) fn front_key(&self) -> Option<u64> {
        self.front().map(|front| front.key)
    }

    /// The smallest entry not yet yielded.
    #[inline]
    pub(crate) fn front(&self) -> Option<Entry> {
        self.smallest().map(|(entry, _)| entry)
    }

    /// The first slot, if it is a record of the plainest kind and its key is less than `until`: what is beside the run must not be
    /// smaller.
    #[inline(always)]
    pub(crate) fn plain_before(&self, until: u64) -> Option<Entry> {
        let slot = self.run.front()?;
        let is_plain = slot.key < until && slot.header.tag() == OWN;
        is_plain.then_some(Entry { key: slot.key, position: self.tail, header: slot.header })
    }

    /// Up to where the run alone says what is smallest: the smallest key beside it, behind which the run's of the same key come
    /// first.
    #[inline]
    pub(crate) fn beside(&self) -> u64 {
        self.smallest_beside().map_or(u64::MAX, |(entry, _)| entry.key.saturating_add(1))
    }

    /// The smallest entry, and where it is. Equal ones are damage and a loss behind it, in this order.
    #[inline]
    fn smallest(&self) -> Option<(Entry, Place)> {
        let first = self.first().map(|entry| (entry, Place::Run));
        let Some(beside) = self.smallest_beside() else { return first };
        first.filter(|(first, _)| *first <= beside.0).or(Some(beside))
    }

    /// The smallest entry beside the run.
    #[inline]
    fn smallest_beside(&self) -> Option<(Entry, Place)> {
        let displaced = self.displaced.front().map(|entry| (*entry, Place::Displaced));
        if self.rest.is_empty() && self.trailing.is_none() { displaced } else { self.smallest_far() }
    }

    #[cold]
    fn smallest_far(&self) -> Option<(Entry, Place)> {
        let displaced = self.displaced.front().map(|entry| (*entry, Place::Displaced));
        let rest = self.rest.peek().map(|entry| (*entry, Place::Rest));
        let trailing = self.trailing.map(|(entry, ..)| (entry, Place::Trailing));
        [displaced, rest, trailing].into_iter().flatten().min_by_key(|(entry, _)| *entry)
    }

    /// What the first slot stands for.
    #[inline]
    fn first(&self) -> Option<Entry> {
        self.run.front().map(|slot| Entry { key: slot.key, position: self.tail, header: slot.header })
    }

    /// What became of the ring's records so far.
    pub(crate) fn counts(&self) -> Counts {
        Counts { records: self.counts.records + self.plain as u64, ..self.counts }
    }

    /// The same, to be counted on.
    #[inline]
    pub(crate) fn counts_mut(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// How many entries are held.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entries - self.plain
    }

    /// Whether so much was yielded since the tail was published that the kernel should know.
    #[inline]
    pub(crate) fn unpublished(&self) -> bool {
        self.tail >= self.publish_at
    }

    /// Gives the bytes of all that is yielded, as far as nothing before is held, back to the kernel.
    #[inline]
    pub(crate) fn publish(&mut self, lane: &mut Lane) {
        // Further, if held bytes were copied out.
        let tail = self.tail.max(lane.ring.tail());
        lane.ring.release(tail);
        lane.copies.forget_before(self.tail);
        self.publish_at = self.tail + lane.ring.size() / PUBLISH_PART;
    }

    /// Everything before it is indexed.
    pub(crate) fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Bytes that were seen and are not yielded.
    pub(crate) fn unread(&self) -> u64 {
        self.cursor - self.tail - self.ahead
    }

    /// Bytes of the longest record that was seen of late.
    pub(crate) fn longest(&self) -> u64 {
        self.longest
    }

    /// What was noted of an entry.
    pub(crate) fn note(&self, entry: &Entry) -> Option<Note> {
        if !entry.is_noted() {
            return None;
        }
        // In no ring, so without a length: where it lies there may be the next record, or damage.
        if let Some((trailing, count, after)) = self.trailing
            && trailing == *entry
            && self.smallest().is_some_and(|(_, place)| place == Place::Trailing)
        {
            return Some(Note::Lost { id: 0, count, after });
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

    /// Takes the slots that are only to be skipped.
    #[inline(never)]
    fn skip(&mut self, pool: &mut Pool) {
        while let Some(&Slot { header, .. }) = self.run.front()
            && header.tag() == SKIPPED
        {
            step();
            self.run.pop(pool);
            self.tail += header.len();
            self.ahead -= header.len();
        }
    }

    /// Takes the smallest entry as yielded. The tail follows.
    pub(crate) fn take(&mut self, pool: &mut Pool) {
        let Some((entry, place)) = self.smallest() else { return };
        match place {
            Place::Run => {
                self.run.pop(pool);
                self.tail += entry.len();
                self.skip(pool);
            }
            Place::Displaced => {
                self.displaced.pop_front();
                self.ahead += entry.len();
            }
            Place::Rest => {
                self.rest.pop();
                self.ahead += entry.len();
            }
            Place::Trailing => self.trailing = None,
        }
        self.entries -= 1;
        if entry.is_noted() && place != Place::Trailing {
            self.forget(entry.position);
        }
    }

    /// What was noted of an entry is told.
    #[cold]
    pub(crate) fn forget(&mut self, position: u64) {
        if let Some(at) = self.note_at(position) {
            self.notes[at].1 = None;
        }
        // Not removed from the middle: that would take as long as there are notes.
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

    /// Publishes the tail, loads the head and indexes what is new, using up to so many bytes of memory; some, if nothing is
    /// held. Gives whether all was indexed. Panics if the key function does.
    pub(crate) fn look(&mut self, lane: &mut Lane, keys: &mut Keys, pool: &mut Pool, most: usize) -> bool {
        self.publish(lane);
        let Lane { ring, origin, losses, .. } = lane;
        losses.looked();
        let tail = std::mem::replace(&mut self.looked_tail, ring.tail());
        if self.lost_head {
            if self.len() > 0 {
                return true;
            }
            ring.take_up();
            self.lost_head = false;
        }
        // The same memory again, while the caches have it.
        self.run.rewind();
        // One that was long is forgotten by and by.
        self.longest -= self.longest / FORGOTTEN;
        let head = ring.look();
        let used = ring.head() - ring.tail();
        self.counts.most_used = self.counts.most_used.max(used);
        // It may have been full before what was yielded since the last look was given back.
        self.suspect |= ring.head() > tail && ring.head() - tail + LONGEST > ring.size();
        if !self.index(ring, origin, losses, keys, pool, most) {
            return false;
        }
        if let Err(fault) = head {
            self.lost_head = true;
            self.damage(fault, self.cursor, pool);
        }
        true
    }

    /// Indexes everything up to the ring's head, or as much as there is memory for.
    fn index(
        &mut self,
        ring: &Ring,
        origin: &Arc<Origin>,
        losses: &mut Losses,
        keys: &mut Keys,
        pool: &mut Pool,
        most: usize,
    ) -> bool {
        // Others may have taken since what there was room for at the last look.
        self.room = 0;
        while self.cursor < ring.head() {
            // A LOST record and the record it was written with belong together.
            if self.room == 0 && self.lost.is_none() && !self.make_room(pool, most) {
                return false;
            }
            if self.lost.is_none()
                && let Some(plain) = keys.plain(&origin.layout)
                && self.index_plain(ring, &plain, keys, pool)
            {
                continue;
            }
            self.room = self.room.saturating_sub(1);
            let position = self.cursor;
            let record = match Record::at(ring, position, origin) {
                Ok(record) => record,
                Err((fault, end)) => {
                    self.damage(fault, end, pool);
                    continue;
                }
            };
            let header = record.header();
            let end = position + u64::from(header.size());
            self.longest = self.longest.max(header.size().into());
            if record.kind() == Kind::LOST {
                self.index_lost(&record, losses, pool);
                continue;
            }
            // The user's functions may panic: nothing of this record is kept before they return.
            let own = match keys.of(&record) {
                Ok(own) => own,
                Err(fault) => {
                    self.damage(fault, end, pool);
                    continue;
                }
            };
            let number = keys.number(&record);
            self.settle_lost(own, pool);
            let note = number.and_then(|number| self.take_number(number, position));
            self.counts.indexed += 1;
            self.counts.repaired += u64::from(own.is_some_and(|key| key < self.back) && !self.run.is_empty());
            self.insert(position, header, own, note, pool);
            self.before = own.or(self.before);
            self.cursor = end;
            self.largest = self.largest.max(own);
        }
        self.settle_lost(None, pool);
        true
    }

    /// Indexes records of the plainest kind, up to the first that is not, or the end of the ring's memory or of a block. Gives
    /// whether there was any.
    fn index_plain(&mut self, ring: &Ring, plain: &Plain, keys: &mut Keys, pool: &mut Pool) -> bool {
        let (bytes, _) = ring.bytes(self.cursor, ring.head() - self.cursor).as_slices();
        let room = self.plain_room();
        let Self { run, displaced, rest, .. } = self;
        let (mut back, mut longest, mut repaired) = (if run.is_empty() { 0 } else { self.back }, self.longest, 0);
        let (mut at, mut last, mut new) = (0, 0, 0);
        for slot in run.spare(pool).iter_mut().take(room) {
            let Some((header, key)) = plain.read(&bytes[at..]) else { break };
            *slot = Slot { key, header };
            if key < back {
                let entry = Entry { key, position: self.cursor + at as u64, header };
                displace(displaced, rest, entry);
                *slot = Slot { key: back, header: header.tagged(SKIPPED) };
                repaired += 1;
            } else {
                back = key;
            }
            last = key;
            new += 1;
            longest = longest.max(header.size().into());
            at += usize::from(header.size());
        }
        run.filled(new);
        if new == 0 {
            return false;
        }
        self.room = self.room.saturating_sub(new);
        self.entries += new;
        self.counts.indexed += new as u64;
        self.counts.repaired += repaired;
        (self.back, self.longest) = (back, longest);
        self.before = Some(last);
        self.cursor += at as u64;
        self.largest = self.largest.max(Some(back));
        keys.grew(back);
        true
    }

    /// How many records of the plainest kind can be indexed before there is need for memory.
    fn plain_room(&self) -> usize {
        let beside = (self.displaced.capacity() - self.displaced.len()).min(self.rest.capacity() - self.rest.len());
        // A block that is not there yet was seen to with the room.
        let run = if self.run.free() == 0 { SLOTS } else { self.run.free() };
        run.min(beside)
    }

    /// Sees to memory for more entries. False if that would be more than there may be, unless nothing is held.
    #[cold]
    fn make_room(&mut self, pool: &mut Pool, most: usize) -> bool {
        self.run.rewind();
        let new_run = self.run.free() < PAIR;
        let lists = self.lists();
        // While a list grows, both the old and the new one are there.
        let growing = lists.into_iter().filter(List::is_full).map(|list| list.grown() * list.each).sum::<usize>()
            + if new_run { self.run.more() } else { 0 };
        if self.memory() + growing + pool.memory() > most {
            pool.clear();
            if self.len() > 0 && self.memory() + growing > most {
                return false;
            }
        }
        let [displaced, rest, notes, holes] = lists;
        let more = |list: List| list.grown() - list.len;
        self.displaced.reserve_exact(more(displaced));
        self.rest.reserve_exact(more(rest));
        self.notes.reserve_exact(more(notes));
        if let Some(numbers) = &mut self.numbers {
            numbers.grow(holes.grown());
        }
        let run = if new_run { BLOCK / size_of::<Slot>() } else { self.run.free() };
        let room = self.lists().into_iter().map(|list| list.capacity - list.len).fold(run, usize::min);
        self.room = room / PAIR;
        true
    }

    /// What grows as records are indexed, besides the run.
    fn lists(&self) -> [List; 4] {
        let (len, capacity, each) = self.numbers.as_ref().map_or((0, usize::MAX, 0), Numbers::list);
        [
            List { len: self.displaced.len(), capacity: self.displaced.capacity(), each: size_of::<Entry>() },
            List { len: self.rest.len(), capacity: self.rest.capacity(), each: size_of::<Entry>() },
            List { len: self.notes.len(), capacity: self.notes.capacity(), each: size_of::<(u64, Option<Note>)>() },
            List { len, capacity, each },
        ]
    }

    /// Bytes that holding takes, copies apart, beyond what every ring has from the begin.
    pub(crate) fn memory(&self) -> usize {
        let lists = self.lists().into_iter().map(|list| list.capacity.saturating_sub(ROOM) * list.each);
        let pieces = self.numbers.as_ref().map_or(0, Numbers::pieces);
        self.run.memory().saturating_sub(run::FIXED) + lists.sum::<usize>() + pieces
    }

    /// Gives memory back that is not needed now.
    pub(crate) fn shrink(&mut self) {
        self.run.shrink();
        self.displaced.shrink_to(ROOM);
        self.rest.shrink_to(ROOM);
        self.notes.shrink_to(ROOM);
        if let Some(numbers) = &mut self.numbers {
            numbers.shrink();
        }
        self.room = 0;
    }

    /// Takes the number of the record at a position. Gives what is to be noted of the record.
    #[inline]
    fn take_number(&mut self, number: u64, position: u64) -> Option<Note> {
        let lost = std::mem::take(&mut self.skipped);
        match self.numbers.as_mut()?.take(number, position, self.before, lost) {
            Said::Well => None,
            Said::Hole => Some(Note::Hole),
            Said::Break(how, expected) => Some(Note::Break { how, expected, found: number }),
        }
    }

    /// Checks what a LOST record says, and lets it wait for the record that it was written with.
    #[cold]
    fn index_lost(&mut self, record: &Record<'_>, losses: &mut Losses, pool: &mut Pool) {
        let header = record.header();
        let end = self.cursor + u64::from(header.size());
        let (id, count) = record.lost().unwrap_or_default();
        if let Err(fault) = losses.tell(count) {
            return self.damage(fault, end, pool);
        }
        self.settle_lost(None, pool);
        self.skipped = self.skipped.saturating_add(count);
        self.lost = Some(Waiting { position: self.cursor, header, id, count });
        self.cursor = end;
    }

    /// Places a waiting LOST record right before the record it was written with.
    #[inline]
    fn settle_lost(&mut self, key: Option<u64>, pool: &mut Pool) {
        if let Some(Waiting { position, header, id, count }) = self.lost.take() {
            let untold = self.untold(count);
            let told = untold == 0 && count > 0;
            let note = if told { Note::Told } else { Note::Lost { id, count: untold, after: self.before } };
            self.insert(position, header, key, Some(note), pool);
        }
    }

    /// Of what a LOST record says: what no event has told yet.
    #[cold]
    fn untold(&mut self, count: u64) -> u64 {
        // What waits to be told of is told now.
        if let Some((_, waiting, _)) = self.trailing.take() {
            self.entries -= 1;
            self.foretold -= waiting;
        }
        let covered = count.min(self.foretold);
        self.foretold -= covered;
        count - covered
    }

    /// Takes notice of how many records the kernel has dropped in all, of which LOST records have told some: what no event has
    /// told yet becomes one behind everything that is held. Call it after a look.
    pub(crate) fn dropped(&mut self, total: u64, told: u64) {
        self.suspect = false;
        let new = total.saturating_sub(told.saturating_add(self.foretold));
        if new == 0 {
            return;
        }
        self.foretold += new;
        if let Some((_, waiting, _)) = &mut self.trailing {
            *waiting += new;
            return;
        }
        let (key, tag) = self.before.map_or((0, NEVER), |key| (key, BEFORE));
        let header = Header::of_stretch(0).tagged(tag | NOTED);
        self.trailing = Some((Entry { key, position: self.cursor, header }, new, self.before));
        self.entries += 1;
    }

    /// What events have told of beyond LOST records, or will.
    pub(crate) fn foretold(&self) -> u64 {
        self.foretold
    }

    /// Records that are held.
    pub(crate) fn records(&self) -> u64 {
        self.counts.indexed - self.counts().records
    }

    /// The largest key among what lies before a position. Takes as long as there is.
    pub(crate) fn largest_before(&self, position: u64) -> Option<u64> {
        let mut begin = self.tail;
        let before = self.run.iter().take_while(|slot| {
            let is_before = begin < position;
            begin += slot.header.len();
            is_before
        });
        // Those that are skipped have smaller keys than the one before them.
        before.filter(|slot| slot.header.tag() != SKIPPED).last().map(|slot| slot.key)
    }

    /// The largest key of those that came in order, which none of the others exceeds; `None` if nothing is held.
    pub(crate) fn back(&self) -> Option<u64> {
        (!self.run.is_empty()).then_some(self.back)
    }

    /// Keys that part what is held into pieces of about the same length, the largest included.
    pub(crate) fn marks(&self) -> impl Iterator<Item = u64> {
        self.run.firsts().skip(1).map(|slot| slot.key).chain(self.back())
    }

    /// Gives up the bytes from the cursor to `end`.
    #[cold]
    fn damage(&mut self, fault: Fault, end: u64, pool: &mut Pool) {
        self.settle_lost(None, pool);
        let header = Header::of_stretch((end - self.cursor) as u32);
        self.insert(self.cursor, header, None, Some(Note::Fault(fault)), pool);
        self.cursor = end;
    }

    #[inline]
    fn insert(&mut self, position: u64, header: Header, own: Option<u64>, note: Option<Note>, pool: &mut Pool) {
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
            displace(&mut self.displaced, &mut self.rest, Entry { key, position, header });
            return self.run.push(Slot { key: self.back, header: header.tagged(SKIPPED) }, pool);
        }
        self.back = key;
        self.run.push(Slot { key, header }, pool);
    }
}

/// Records of the plainest kind at the begin of a run. They are taken when this is dropped.
pub(crate) struct Stretch<'a> {
    lookahead: &'a mut Lookahead,
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
    pub(crate) fn new(lookahead: &'a mut Lookahead, until: u64, pool: &'a mut Pool, last: &'a mut u64) -> Self {
        let position = lookahead.tail;
        Self { lookahead, pool, last, until, taken: 0, position }
    }

    /// The next, if its key is less than `until`. Ends with a block of the run.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<Entry> {
        let slot = self.lookahead.run.first().get(self.taken)?;
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
        let publish_at = self.lookahead.publish_at;
        drop(self);
        tail >= publish_at
    }
}

impl Drop for Stretch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lookahead.take_stretch(self.taken, self.position, self.pool);
    }
}

/// Puts an entry whose key is smaller than one before it where it belongs: beside the run.
#[inline(never)]
fn displace(displaced: &mut VecDeque<Entry>, rest: &mut BinaryHeap<Entry, MinComparator>, entry: Entry) {
    let larger = displaced.iter().rev().take(REACH).take_while(|other| **other > entry).count();
    if larger < REACH {
        displaced.insert(displaced.len() - larger, entry);
    } else {
        rest.push(entry);
    }
}

/// A list that grows.
#[derive(Debug, Clone, Copy)]
struct List {
    len: usize,
    capacity: usize,
    /// Bytes of an element.
    each: usize,
}

impl List {
    fn is_full(&self) -> bool {
        self.capacity - self.len < PAIR
    }

    /// For how many elements there will be room.
    fn grown(&self) -> usize {
        if self.is_full() { self.capacity + self.capacity / 2 } else { self.capacity }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::record::Layout;
    use crate::sequence::Sequence;
    use crate::sim::Kernel;
    use crate::steps;

    /// A ring's records and what they cost: the most steps for a look, or for taking, divided by how many records were indexed, or
    /// records and gaps taken.
    fn dearest(records: u64, each_look: u64, record: impl Fn(u64) -> (u64, u64)) -> (u64, Lookahead) {
        let kernel = Kernel::with(&[0], 64 << 20, Layout::new(4 | 1024, true, 0));
        let mut rings = kernel.take_rings();
        let lane = &mut rings.lanes[0];
        let mut keys = Keys::new(Key::Time, None, Some(Sequence::u64(0)), None);
        let mut pool = Pool::default();
        let mut lookahead = Lookahead::new(0, keys.new_numbers());
        let mut most = 0;
        for n in 0..records {
            let (time, number) = record(n);
            if n % 100 == 50 {
                kernel.lose(0, 1);
            }
            assert!(kernel.emit(0, time, &number.to_ne_bytes()));
            if n % each_look == each_look - 1 {
                let (steps, whole) = steps::count(|| lookahead.look(lane, &mut keys, &mut pool, usize::MAX));
                assert!(whole);
                most = most.max(steps / each_look);
            }
        }
        let held = lookahead.len() as u64;
        let (mut last, mut left) = (0, held);
        while left > 0 {
            let batch = left.min(1000);
            let (steps, taken) = steps::count(|| {
                let mut taken = batch;
                for _ in 0..batch {
                    let front = lookahead.front().unwrap();
                    assert!(front.key >= last);
                    last = front.key;
                    if let Some(numbers) = &mut lookahead.numbers {
                        while numbers.gap(front.position).is_some() {
                            numbers.declare(front.position);
                            taken += 1;
                        }
                    }
                    lookahead.take(&mut pool);
                }
                taken
            });
            most = most.max(steps / taken);
            left -= batch;
        }
        (most, lookahead)
    }

    type Load = fn(u64) -> (u64, u64);

    /// The worst that there is to do for an index.
    const LOADS: [(&str, Load); 10] = [
        ("in order", |n| (n, n)),
        ("backwards", |n| ((1 << 40) - n, n)),
        ("one from far ahead, and all the rest behind it", |n| if n == 0 { (1 << 40, 0) } else { (n, n) }),
        ("noise", |n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20, n)),
        ("each second far back", |n| (if n % 2 == 0 { n } else { n / 3 }, n)),
        ("far back, then further", |n| (if n < 50_000 { n + n % 2 * 100_000 } else { 1 }, n)),
        ("saws of a thousand", |n| (n / 1000 * 1000 + 999 - n % 1000, n)),
        ("every second number missing", |n| (n, 2 * n)),
        ("holes that fill from the middle", |n| (n, if n < 50_000 { 3 * n } else { 3 * (n - 50_000) + 1 })),
        ("one hole that is cut to pieces", |n| {
            (n, if n == 1 { 1 << 30 } else { 2 * (n.wrapping_mul(40_503) % 65_536) })
        }),
    ];

    /// What a record costs does not grow with what is held, but for a logarithm, whatever its key and its number.
    #[test]
    fn the_worst_records_cost_no_more_the_more_are_held() {
        for (name, load) in LOADS {
            for each_look in [100, 10_000] {
                let (few, _) = dearest(2_000, 100, load);
                let (many, lookahead) = dearest(100_000, each_look, load);
                // log2(100,000) is 17; a few binary searches and a heap. What is worse grows with the records themselves.
                assert!(many <= 150, "{name}: {many} steps a record with 100,000 held, {few} with 2,000");
                assert_eq!((lookahead.len(), lookahead.notes.len()), (0, 0));
            }
        }
    }

    #[test]
    fn nothing_is_kept_of_what_was_taken() {
        for (name, load) in LOADS {
            let (_, mut lookahead) = dearest(2_000, 100, load);
            lookahead.shrink();
            let lists = lookahead.lists().map(|list| list.len);
            assert_eq!((lookahead.len(), lookahead.run.is_empty(), lists), (0, true, [0; 4]), "{name}");
            assert_eq!(
                lookahead.numbers.as_ref().map(|numbers| (numbers.open(), numbers.pieces())),
                Some((0, 0)),
                "{name}"
            );
            assert_eq!((lookahead.memory(), lookahead.unread()), (0, 0), "{name}");
            assert_eq!(lookahead.tail, lookahead.cursor, "{name}");
        }
    }
}
