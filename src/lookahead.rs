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
}

impl Entry {
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
    /// Of a LOST record: what it says, and the key of the record before it in its ring.
    Lost { id: u64, count: u64, after: Option<u64> },
    /// Of damage: what is wrong.
    Fault(Fault),
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

/// How far back an entry out of order is put in place by shifting; beyond, the stretch is sorted at the end of the look.
const REACH: usize = 64;

/// What became of a ring's records so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) records: u64,
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
    /// INVARIANT: sorted by position; one for each LOST and damage entry, `None` once that was yielded, and never at
    /// either end then.
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
    /// Bytes yielded, and before them those that are not ours.
    taken: u64,
    pub(crate) counts: Counts,
    /// Class and lateness of the record with a key that was yielded last, which those without one behind it share.
    pub(crate) yielded: (Class, u64),
}

impl Lookahead {
    /// From here on: what lies before was read by somebody else.
    pub(crate) fn new(tail: u64) -> Self {
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
    pub(crate) fn publish(&mut self, ring: &mut Ring) {
        ring.release(self.tail);
        self.publish_at = self.tail + ring.size() / PUBLISH_PART;
    }

    /// Bytes that were seen and are not yielded.
    pub(crate) fn unread(&self) -> u64 {
        self.cursor - self.taken
    }

    /// What was noted of an entry.
    pub(crate) fn note(&self, position: u64) -> Option<Note> {
        let at = self.notes.binary_search_by_key(&position, |(at, _)| *at).ok()?;
        self.notes[at].1
    }

    /// Takes the smallest entry as yielded. The tail follows as far as all before it is yielded too.
    #[inline]
    pub(crate) fn take(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        if entry.shape != Shape::Record {
            self.forget(entry.position);
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
    fn forget(&mut self, position: u64) {
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
    pub(crate) fn look(&mut self, ring: &mut Ring, origin: &Arc<Origin>, key: &mut Keys) {
        self.publish(ring);
        if self.lost_head {
            if self.tail != self.cursor || !self.entries.is_empty() {
                return;
            }
            ring.take_up();
            self.lost_head = false;
        }
        let head = ring.look();
        self.counts.most_used = self.counts.most_used.max(ring.head() - ring.tail());
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
            self.settle_lost(own);
            self.insert(position, header, u32::from(header.size()), Shape::Record, own);
            self.before = own.or(self.before);
            self.cursor = end;
            self.largest = self.largest.max(own);
        }
        self.settle_lost(None);
    }

    /// Places a waiting LOST record right before the record it was written with.
    #[inline]
    fn settle_lost(&mut self, key: Option<u64>) {
        if let Some(Waiting { position, header, id, count }) = self.lost.take() {
            self.notes.push_back((position, Some(Note::Lost { id, count, after: self.before })));
            self.insert(position, header, u32::from(header.size()), Shape::Lost, key);
        }
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
        self.entries.push_back(Entry { key, position, header, len, shape, keyed });
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
