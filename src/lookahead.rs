//! One ring's unyielded records in key order, and its tail in ring order.
//!
//! A ring is not sorted inside: whoever is interrupted between drawing its key and reserving its place in the ring finds
//! the interrupt's record, with its larger key, before its own. So everything between the tail and the last seen head
//! is indexed here, and a ring offers its smallest unyielded key rather than its oldest record. Where a ring is in order,
//! an entry is pushed at one end and popped at the other, and nothing else happens.

use crate::hold::Class;
use crate::key::Keys;
use crate::record::{Kind, Origin, Record};
use crate::ring::{Bytes, Fault, Header, Ring};
use crate::rings::Lane;
use crate::sequence::{Break, Numbers, Said};
use binary_heap_plus::{BinaryHeap, MinComparator};
use std::collections::VecDeque;
use std::sync::Arc;

/// What an entry stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Record,
    Lost,
    Damage,
}

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

/// An indexed stretch of a ring. Its length was checked when it was indexed and is not read again (I4).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) position: u64,
    /// As it was checked; `Header::NONE` for damage.
    header: Header,
    pub(crate) len: u32,
    pub(crate) shape: Shape,
    pub(crate) keyed: Keyed,
    /// Whether something may have to be said before it: numbers that are missing, or a number that breaks the sequence.
    pub(crate) marked: bool,
}

impl Entry {
    /// Whether it is a loss that nothing follows, which lies in no ring.
    #[inline]
    fn is_trailing(&self) -> bool {
        self.len == 0 && self.shape == Shape::Lost
    }

    fn order(&self) -> (u64, u64) {
        (self.key, self.position)
    }

    /// The record that an entry of that shape stands for.
    #[inline]
    pub(crate) fn record<'a>(&self, bytes: Bytes<'a>, origin: &'a Arc<Origin>) -> Record<'a> {
        Record::new(bytes, self.header, origin)
    }
}

/// What only few entries need, kept aside by position.
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
}

/// A LOST record before its key is known.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    position: u64,
    header: Header,
    id: u64,
    count: u64,
}

/// Yielded bytes of a ring are published once they are this part of it, if nothing else publishes them before: the tail
/// shares a cache line with the head that the kernel writes.
const PUBLISH_PART: u64 = 8;

/// The longest record there is, in bytes: a ring with that much room has dropped nothing.
const LONGEST: u64 = 1 << 16;

/// How far back an entry out of order is put in place by shifting; beyond, the stretch is sorted at the end of the look.
const REACH: usize = 64;

/// What became of a ring's records so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Records that were seen.
    pub(crate) indexed: u64,
    /// Records that were yielded.
    pub(crate) records: u64,
    /// Of these, ones that were let out before they were proven because their ring was full.
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
    /// INVARIANT: sorted by (key, position) after `settle`.
    entries: VecDeque<Entry>,
    /// Where a look had to leave the order: the smallest key out of place, and how many entries before it are sorted.
    unsorted: Option<(u64, usize)>,
    /// INVARIANT: sorted by position; one for each LOST and damage entry and for some records, `None` once that was
    /// yielded, and never at either end then.
    notes: VecDeque<(u64, Option<Note>)>,
    /// A LOST record that waits for the record it was written with, which has its key.
    lost: Option<Waiting>,
    /// Key of the record indexed last.
    before: Option<u64>,
    /// The largest key ever indexed.
    largest: Option<u64>,
    /// Everything before it is indexed.
    cursor: u64,
    /// Everything before it is yielded.
    tail: u64,
    /// The tail at which yielded bytes are worth publishing.
    publish_at: u64,
    /// Yielded stretches behind `tail`, as (begin, end).
    done: BinaryHeap<(u64, u64), MinComparator>,
    /// The head could not be right: nothing more is indexed until all is yielded.
    lost_head: bool,
    /// What LOST records have told.
    told: u64,
    /// What was told of beyond, because the kernel counts it.
    foretold: u64,
    /// Of that, what waits to be yielded behind everything else, and the key of the record before it. Not among the notes: the
    /// next record, or damage, lies at its position.
    trailing: Option<(u64, Option<u64>)>,
    /// Whether the ring was so full since some look that something may have been dropped, since the kernel was last asked.
    pub(crate) suspect: bool,
    /// The published tail at the last look.
    looked_tail: u64,
    /// The numbers in its records, if they have any.
    pub(crate) numbers: Option<Numbers>,
    /// Bytes yielded, and before them those that are not ours.
    taken: u64,
    pub(crate) counts: Counts,
    /// Class and lateness of the record with a key that was yielded last, which those without one behind it share.
    pub(crate) yielded: (Class, u64),
}

impl Lookahead {
    /// From here on: what lies before was read by somebody else.
    pub(crate) fn new(tail: u64, numbers: Option<Numbers>) -> Self {
        Self {
            entries: VecDeque::new(),
            unsorted: None,
            notes: VecDeque::new(),
            lost: None,
            before: None,
            largest: None,
            cursor: tail,
            tail,
            publish_at: tail,
            done: BinaryHeap::new_min(),
            lost_head: false,
            told: 0,
            foretold: 0,
            trailing: None,
            suspect: false,
            looked_tail: tail,
            numbers,
            taken: tail,
            counts: Counts::default(),
            yielded: (Class::Assumed, 0),
        }
    }

    /// The smallest entry not yet yielded.
    #[inline]
    pub(crate) fn front(&self) -> Option<&Entry> {
        self.entries.front()
    }

    /// How many entries are held.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
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

    /// Bytes that were seen and are not yielded.
    pub(crate) fn unread(&self) -> u64 {
        self.cursor - self.taken
    }

    /// What was noted of an entry.
    pub(crate) fn note(&self, entry: &Entry) -> Option<Note> {
        if entry.is_trailing() {
            return self.trailing.map(|(count, after)| Note::Lost { id: 0, count, after });
        }
        self.note_at(entry.position)
    }

    fn note_at(&self, position: u64) -> Option<Note> {
        let at = self.notes.binary_search_by_key(&position, |(at, _)| *at).ok()?;
        self.notes[at].1
    }

    /// Takes the smallest entry as yielded. The tail follows as far as all before it is yielded too.
    #[inline]
    pub(crate) fn take(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        if entry.is_trailing() {
            self.trailing = None;
            return;
        }
        if entry.shape != Shape::Record {
            self.forget(entry.position);
            if entry.len == 0 {
                return;
            }
        }
        self.taken += u64::from(entry.len);
        let end = entry.position + u64::from(entry.len);
        if entry.position != self.tail {
            self.done.push((entry.position, end));
            return;
        }
        self.tail = end;
        while let Some(&(begin, end)) = self.done.peek() {
            if begin != self.tail {
                break;
            }
            self.tail = end;
            self.done.pop();
        }
    }

    #[cold]
    pub(crate) fn forget(&mut self, position: u64) {
        if let Ok(at) = self.notes.binary_search_by_key(&position, |(at, _)| *at) {
            self.notes[at].1 = None;
        }
        // Not removed from the middle: that would take as long as there are notes.
        while let Some((_, None)) = self.notes.front() {
            self.notes.pop_front();
        }
        while let Some((_, None)) = self.notes.back() {
            self.notes.pop_back();
        }
    }

    /// The largest key ever indexed.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.largest
    }

    /// Publishes the tail, loads the head and indexes what is new. Panics if the key function does; then
    /// [`Lookahead::settle`] must be called before anything else.
    pub(crate) fn look(&mut self, lane: &mut Lane, key: &mut Keys) {
        self.publish(lane);
        let Lane { ring, origin, .. } = lane;
        let tail = std::mem::replace(&mut self.looked_tail, ring.tail());
        if self.lost_head {
            if self.tail != self.cursor || !self.entries.is_empty() {
                return;
            }
            ring.take_up();
            self.lost_head = false;
        }
        let head = ring.look();
        let used = ring.head() - ring.tail();
        self.counts.most_used = self.counts.most_used.max(used);
        // It may have been full before what was yielded since the last look was given back.
        self.suspect |= ring.head() > tail && ring.head() - tail + LONGEST > ring.size();
        self.index(ring, origin, key);
        if let Err(fault) = head {
            self.lost_head = true;
            self.damage(fault, self.cursor);
        }
        self.settle();
    }

    /// Indexes everything up to the ring's head.
    fn index(&mut self, ring: &Ring, origin: &Arc<Origin>, key: &mut Keys) {
        while self.cursor < ring.head() {
            let position = self.cursor;
            let record = match Record::at(ring, position, origin) {
                Ok(record) => record,
                Err((fault, end)) => {
                    self.damage(fault, end);
                    continue;
                }
            };
            let header = record.header();
            let end = position + u64::from(header.size());
            if record.kind() == Kind::LOST {
                self.settle_lost(None);
                let (id, count) = record.lost().unwrap_or_default();
                self.lost = Some(Waiting { position, header, id, count });
                self.cursor = end;
                continue;
            }
            // The user's function may panic: nothing of this record is kept before it returns.
            let own = match key.of(&record) {
                Ok(own) => own,
                Err(fault) => {
                    self.damage(fault, end);
                    continue;
                }
            };
            let number = key.number(&record);
            self.settle_lost(own);
            self.insert(position, header, u32::from(header.size()), Shape::Record, own);
            if let Some(number) = number {
                self.take_number(number, position);
            }
            self.before = own.or(self.before);
            self.cursor = end;
            self.largest = self.largest.max(own);
        }
        self.settle_lost(None);
    }

    /// Takes the number of the record that was inserted last.
    #[inline]
    fn take_number(&mut self, number: u64, position: u64) {
        let said = self.numbers.as_mut().map_or(Said::Well, |numbers| numbers.take(number, position, self.before));
        if let Said::Break(how, expected) = said {
            self.notes.push_back((position, Some(Note::Break { how, expected, found: number })));
        }
        if said != Said::Well {
            self.mark(position);
        }
    }

    /// Marks the entry that was inserted last.
    #[cold]
    fn mark(&mut self, position: u64) {
        // Where its key put it: at the end, or not far from it.
        if let Some(entry) = self.entries.iter_mut().rev().find(|entry| entry.position == position) {
            entry.marked = true;
        }
    }

    /// What is to be said before the front entry was said: whether there is more.
    pub(crate) fn said(&mut self) {
        let Some(position) = self.entries.front().map(|front| front.position) else { return };
        let gap = self.numbers.as_ref().is_some_and(|numbers| numbers.gap(position).is_some());
        let marked = gap || matches!(self.note_at(position), Some(Note::Break { .. }));
        if let Some(front) = self.entries.front_mut() {
            front.marked = marked;
        }
    }

    /// Places a waiting LOST record right before the record it was written with.
    #[inline]
    fn settle_lost(&mut self, key: Option<u64>) {
        if let Some(Waiting { position, header, id, count }) = self.lost.take() {
            let untold = self.untold(count);
            let told = untold == 0 && count > 0;
            let lost = Note::Lost { id, count: untold, after: self.before };
            self.notes.push_back((position, Some(if told { Note::Told } else { lost })));
            self.insert(position, header, u32::from(header.size()), Shape::Lost, key);
            if told {
                self.mark(position);
            }
        }
    }

    /// Of what a LOST record says: what no event has told yet.
    #[cold]
    fn untold(&mut self, count: u64) -> u64 {
        self.told = self.told.saturating_add(count);
        // What waits to be told of is told now.
        if let Some((waiting, _)) = self.trailing.take() {
            self.foretold -= waiting;
            if let Some(at) = self.entries.iter().rposition(Entry::is_trailing) {
                self.entries.remove(at);
            }
        }
        let covered = count.min(self.foretold);
        self.foretold -= covered;
        count - covered
    }

    /// Takes notice of how many records the kernel has dropped in all: what no LOST record has told yet becomes an event
    /// behind everything that is held. Call it after a look.
    pub(crate) fn dropped(&mut self, total: u64) {
        self.suspect = false;
        let new = total.saturating_sub(self.told.saturating_add(self.foretold));
        if new == 0 {
            return;
        }
        self.foretold += new;
        if let Some((waiting, _)) = &mut self.trailing {
            *waiting += new;
        } else {
            self.trailing = Some((new, self.before));
            self.insert(self.cursor, Header::NONE, 0, Shape::Lost, None);
        }
    }

    /// What was dropped, as far as it is known: `total` is what the kernel says, if it does. And what of it no event has told.
    pub(crate) fn lost(&self, total: Option<u64>) -> (u64, u64) {
        let known = self.told.saturating_add(self.foretold);
        let lost = total.unwrap_or(0).max(known);
        (lost, lost.saturating_sub(self.counts.lost))
    }

    /// What LOST records have told.
    pub(crate) fn told(&self) -> u64 {
        self.told
    }

    /// Records that are held.
    pub(crate) fn records(&self) -> u64 {
        self.counts.indexed - self.counts.records
    }

    /// The largest key among what lies before a position.
    pub(crate) fn largest_before(&self, position: u64) -> Option<u64> {
        self.entries.iter().filter(|entry| entry.position < position).map(|entry| entry.key).max()
    }

    /// Gives up the bytes from the cursor to `end`.
    #[cold]
    fn damage(&mut self, fault: Fault, end: u64) {
        self.settle_lost(None);
        self.notes.push_back((self.cursor, Some(Note::Fault(fault))));
        self.insert(self.cursor, Header::NONE, (end - self.cursor) as u32, Shape::Damage, None);
        self.cursor = end;
    }

    #[inline]
    fn insert(&mut self, position: u64, header: Header, len: u32, shape: Shape, own: Option<u64>) {
        let (key, keyed) = match (own, self.before) {
            (Some(key), _) => (key, Keyed::Own),
            (None, Some(key)) => (key, Keyed::Before),
            (None, None) => (0, Keyed::Never),
        };
        let in_order = self.entries.back().is_none_or(|last| last.key <= key);
        self.counts.indexed += u64::from(shape == Shape::Record);
        self.entries.push_back(Entry { key, position, header, len, shape, keyed, marked: false });
        if !in_order {
            self.repair();
        }
    }

    /// Puts the entry that was pushed last where its key belongs, or remembers that it must be.
    #[cold]
    fn repair(&mut self) {
        let Some(entry) = self.entries.pop_back() else { return };
        if entry.shape == Shape::Record {
            self.counts.repaired += 1;
        }
        let mut place = self.entries.len();
        if let Some((smallest, _)) = &mut self.unsorted {
            *smallest = entry.key.min(*smallest);
        } else {
            let larger = self.entries.iter().rev().take(REACH).take_while(|other| other.key > entry.key).count();
            if larger < REACH {
                place -= larger;
            } else {
                self.unsorted = Some((entry.key, place));
            }
        }
        self.entries.insert(place, entry);
    }

    /// Ends a look: puts in order what `repair` left. Bounded work, whatever keys a ring holds.
    pub(crate) fn settle(&mut self) {
        if let Some((smallest, sorted)) = self.unsorted.take() {
            let entries = self.entries.make_contiguous();
            let from = entries[..sorted].partition_point(|entry| entry.key <= smallest);
            entries[from..].sort_unstable_by_key(Entry::order);
        }
    }
}
