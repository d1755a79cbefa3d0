//! What indexing costs, in steps.

use super::*;
use crate::instrument;
use crate::merge::SLOTS;
use crate::merge::array::Array;
use crate::order::key::{Key, Keys};
use crate::record::Layout;
use crate::record::clock::Clock;
use crate::rings::Rings;
use crate::sim::{Kernel, RingBuffer};
use std::collections::VecDeque;
use std::slice;

/// The cursor and the queue of one ring, and what is merged out of it.
struct Alone {
    cursor: Cursor,
    queue: Queue,
    far: Far,
    array: Array,
    /// The largest key of the last refresh.
    found: Option<u64>,
}

impl Alone {
    fn new(numbers: Option<CpuNumbers>) -> Self {
        let (cursor, queue) = (Cursor::new(0, numbers), Queue::new(0));
        Self { cursor, queue, far: Far::with_capacity_min(ROOM), array: Array::new(1), found: None }
    }

    fn sync(&mut self) {
        self.array.put_back(slice::from_mut(&mut self.queue), &mut self.far);
    }

    fn refresh(&mut self, cpu_ring: &mut CpuRing, keys: &mut Keys) {
        self.sync();
        let Self { cursor, queue, far, .. } = self;
        cursor.refresh(cpu_ring, &mut Indexing { queue, far, keys });
        self.found = keys.found;
    }

    fn front(&mut self) -> Option<Place> {
        if self.array.is_empty() {
            self.array.merge(slice::from_mut(&mut self.queue), &mut self.far, u64::MAX);
        }
        self.array.left().first().copied()
    }

    fn take(&mut self) {
        if let Some(front) = self.front() {
            self.array.pass();
            self.cursor.take(front, &mut self.queue);
        }
    }

    fn held(&self) -> usize {
        self.queue.held() + self.array.left().len()
    }

    fn drain(&mut self) {
        (0..self.held()).for_each(|_| self.take());
        self.sync();
    }

    /// As a merge does it now and then.
    fn shrink(&mut self) {
        self.sync();
        self.cursor.notes.shrink();
        self.queue.shrink();
        self.far.shrink_to(ROOM);
    }
}

/// A ring's records and what they cost: the most steps for a refresh, or for taking, divided by how many records were
/// indexed, or records and gaps taken.
fn dearest(records: u64, each_look: u64, record: impl Fn(u64) -> (u64, u64)) -> (u64, Alone) {
    let kernel = Kernel::with(&[0], 64 << 20, Layout::new(4 | 1024, true, 0));
    let mut rings = kernel.take_rings();
    let cpu_ring = &mut rings.cpu_rings[0];
    let mut keys = Keys::new(Key::Time, None, Some((Key::Payload(0), None)), None);
    let mut alone = Alone::new(keys.new_numbers(&Layout::new(4 | 1024, true, 0)));
    let mut most = 0;
    for n in 0..records {
        let (time, number) = record(n);
        if n % 100 == 50 {
            kernel.lose(0, 1);
        }
        assert!(kernel.emit(0, time, &number.to_ne_bytes()));
        if n % each_look == each_look - 1 {
            let (steps, ()) = instrument::count(|| alone.refresh(cpu_ring, &mut keys));
            most = most.max(steps / each_look);
        }
    }
    let held = alone.held() as u64;
    let (mut last, mut left) = (0, held);
    while left > 0 {
        let batch = left.min(1000);
        let (steps, taken) = instrument::count(|| {
            let mut taken = batch;
            for _ in 0..batch {
                let front = alone.front().unwrap();
                assert!(front.key >= last);
                last = front.key;
                let cursor = &mut alone.cursor;
                if let Some(Note::Hole { hole, .. }) = cursor.note(front)
                    && let Some(numbers) = cursor.numbers.as_mut().and_then(|all| all.of_mut(0))
                {
                    while let Some(gap) = numbers.gap(&hole) {
                        numbers.declare(&gap);
                        taken += 1;
                    }
                }
                alone.take();
            }
            taken
        });
        most = most.max(steps / taken);
        left -= batch;
    }
    alone.sync();
    (most, alone)
}

type Load = fn(u64) -> (u64, u64);

/// The worst that there is to do.
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
    ("one hole that is cut to pieces", |n| (n, if n == 1 { 1 << 30 } else { 2 * (n.wrapping_mul(40_503) % 65_536) })),
];

/// What a record costs does not grow with what is held, but for a logarithm, whatever its key and its number.
#[test]
fn the_worst_records_cost_no_more_the_more_are_held() {
    for (name, load) in LOADS {
        for each_look in [100, 10_000] {
            let (few, _) = dearest(2_000, 100, load);
            let (many, Alone { cursor, queue, .. }) = dearest(100_000, each_look, load);
            // log2(100,000) is 17; a few binary searches and a heap. What is worse grows with the records themselves.
            assert!(many <= 150, "{name}: {many} steps a record with 100,000 held, {few} with 2,000");
            assert_eq!((queue.held(), cursor.notes.len_and_room()[0]), (0, 0));
        }
    }
}

#[test]
fn nothing_is_kept_of_what_was_taken() {
    for (name, load) in LOADS {
        let (_, mut alone) = dearest(2_000, 100, load);
        (0..2).for_each(|_| alone.shrink());
        let Alone { cursor, queue, far, .. } = alone;
        assert_eq!(
            (queue.held(), queue.is_empty(), cursor.notes.len_and_room()[0], far.len()),
            (0, true, 0, 0),
            "{name}"
        );
        assert_eq!(cursor.numbers.as_ref().map(CpuNumbers::open), Some(0), "{name}");
        let lists = [cursor.notes.len_and_room()[1], far.capacity()];
        assert!(lists.into_iter().all(|capacity| capacity <= ROOM), "{name}: {lists:?}");
        assert_eq!((queue.blocks(), cursor.unread(&queue)), (1, 0), "{name}");
        assert_eq!(cursor.tail(&queue), cursor.cursor, "{name}");
    }
}

/// A part of a ring, described without a cursor.
#[derive(Debug, Clone, Copy)]
struct Held {
    position: u64,
    len: u64,
    /// What it is ordered by; before it is indexed, the record's own key.
    key: Option<u64>,
    /// Of a LOST record: its count, and the key of the record before.
    lost: Option<(u64, Option<u64>)>,
    /// Whether it is a record with a key of its own.
    plain: bool,
}

/// A ring and what it holds, as lists that are searched from end to end.
struct Said {
    kernel: Kernel,
    key: fn() -> Key,
    /// What was written and not indexed yet, and up to where.
    written: VecDeque<Held>,
    head: u64,
    /// What the kernel dropped since it reported last.
    unreported: u64,
    dropped_since_look: bool,
    held: Vec<Held>,
    cursor: u64,
    before: Option<u64>,
    largest: Option<u64>,
    records: [u64; 2],
    repaired: u64,
    longest: u64,
    published: [u64; 2],
    most_used: u64,
}

const SIZE: u64 = 1 << 17;

impl Said {
    fn new(key: fn() -> Key) -> Self {
        let kernel = Kernel::with(&[0], SIZE as usize, Layout::new(4 | 1024, true, 0));
        let (written, held) = Default::default();
        let (head, unreported, cursor, repaired, longest, most_used) = Default::default();
        let (before, largest, records, published, dropped_since_look) = Default::default();
        Self {
            kernel,
            key,
            written,
            head,
            unreported,
            dropped_since_look,
            held,
            cursor,
            before,
            largest,
            records,
            repaired,
            longest,
            published,
            most_used,
        }
    }

    /// A record with so many words of payload, or without room for a key in it.
    fn write(&mut self, key: Option<u64>, words: usize) {
        let is_time = matches!((self.key)(), Key::Time);
        let mut payload = key.map_or(vec![1; 4], |key| key.to_ne_bytes().to_vec());
        payload.resize(payload.len() + 8 * words, 0xff);
        if key.is_none() {
            payload.truncate(4);
        }
        let time = if is_time { key.unwrap_or(0) } else { 7 };
        let key = if is_time { Some(time) } else { key };
        if !self.kernel.emit(0, time, &payload) {
            self.unreported += 1;
            self.dropped_since_look = true;
            return;
        }
        if self.unreported > 0 {
            self.written.push_back(Held {
                position: self.head,
                len: 32,
                key,
                lost: Some((self.unreported, None)),
                plain: false,
            });
            self.head += 32;
            self.unreported = 0;
        }
        let len = 16 + (payload.len() as u64 + 4).next_multiple_of(8);
        self.written.push_back(Held { position: self.head, len, key, lost: None, plain: false });
        self.head += len;
    }

    fn tail(&self) -> u64 {
        self.held.iter().map(|held| held.position).min().unwrap_or(self.cursor)
    }

    /// What a refresh takes notice of that gets as far as the index got.
    fn refresh(&mut self, cursor: u64) {
        self.published = [self.published[1], self.tail()];
        self.most_used = self.most_used.max(self.head - self.published[1]);
        self.longest -= self.longest / 64;
        while let Some(&next) = self.written.front().filter(|next| next.position < cursor) {
            self.written.pop_front();
            let key = next.key.or(self.before).or(Some(0));
            let back = self.held.iter().map(|held| held.key).max();
            let lost = next.lost.map(|(count, _)| (count, self.before));
            if lost.is_none() {
                self.records[0] += 1;
                self.repaired += u64::from(next.key.is_some() && back.is_some_and(|back| key < back));
                self.before = next.key.or(self.before);
                self.largest = self.largest.max(next.key);
            }
            self.longest = self.longest.max(next.len);
            let plain = lost.is_none() && next.key.is_some();
            self.held.push(Held { key, lost, plain, ..next });
        }
        self.cursor = cursor;
    }

    fn front(&self) -> Option<Held> {
        self.held.iter().min_by_key(|held| (held.key, held.position)).copied()
    }

    fn take(&mut self, taken: &Held) {
        self.held.retain(|held| held.position != taken.position);
        self.records[1] += u64::from(taken.lost.is_none());
    }

    fn compare(&self, alone: &mut Alone) {
        let front = self.front();
        let key = |held: Held| held.key.unwrap();
        let smallest = alone.front();
        alone.sync();
        let (cursor, queue) = (&alone.cursor, &alone.queue);
        let of = |place: Place| (place.key, cursor.position(place), cursor.len_of(place), place.is_plain());
        assert_eq!(smallest.map(of), front.map(|f| (key(f), f.position, f.len, f.plain)));
        assert_eq!((cursor.tail(queue), cursor.cursor), (self.tail(), self.cursor));
        let unread = self.held.iter().map(|held| held.len).sum();
        assert_eq!((queue.held(), cursor.unread(queue)), (self.held.len(), unread));
        let [indexed, records] = self.records;
        assert_eq!((cursor.records_taken(queue), cursor.counts.indexed), (records, indexed));
        assert_eq!((cursor.counts.repaired, queue.longest), (self.repaired, self.longest));
        assert_eq!(cursor.counts.most_used, self.most_used);
        let back = self.held.iter().map(|held| key(*held)).max();
        assert_eq!((queue.back(), alone.found), (back, self.largest));
        // By the first place, which lies near the tail.
        let taken = cursor.tail(queue) - self.published[1];
        assert!(!cursor.is_tail_due(queue) || taken + REACH_BYTES as u64 >= SIZE / TAIL_PART);
        assert!(cursor.is_tail_due(queue) || taken < SIZE / TAIL_PART);
        assert!(cursor.notes.ends_are_notes());
        let noted = front.and_then(|front| front.lost);
        match smallest.and_then(|front| cursor.note(front)) {
            Some(Note::Lost { count, after, .. }) => assert_eq!(noted, Some((count, after))),
            other => assert!(other.is_none() && noted.is_none(), "{other:?}, {noted:?}"),
        }
    }
}

/// Takes some of what is held.
fn take(alone: &mut Alone, said: &mut Said, many: u64) {
    for taken in 1..=many.min(alone.held() as u64) {
        let place = alone.front().unwrap();
        let front = said.front().unwrap();
        assert_eq!((Some(place.key), alone.cursor.position(place)), (front.key, front.position));
        said.take(&front);
        alone.take();
        if taken % 5 == 0 {
            said.compare(alone);
        }
    }
}

/// Whatever is written, looked at and taken, a cursor and its queue are what lists say that are searched from end to end: by the way
/// of the plainest records and by the general one, with merges that are put back at any time.
#[test]
fn a_cursor_is_what_lists_say() {
    let keys: [fn() -> Key; 3] =
        [|| Key::Time, || Key::Payload(0), || Key::Fn(Box::new(|record| record.payload()?.u64(0)))];
    for course in 0..30u64 {
        let key = keys[course as usize % 3];
        let mut said = Said::new(key);
        let mut rings = said.kernel.take_rings();
        let cpu_ring = &mut rings.cpu_rings[0];
        let mut keys = Keys::new(key(), None, None, None);
        let mut alone = Alone::new(None);
        let mut state = course + 1;
        let mut random = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let disorder = [1, 3, 50, 2000][course as usize / 3 % 4];
        for turn in 0..40 {
            for _ in 0..[5, 40, 400][random(3) as usize] {
                let own = (random(12) > 0).then_some(1000 + 10 * turn + random(disorder));
                // In the end none that is long, so that those are forgotten.
                said.write(own, [0, 1, if turn < 25 { 30 } else { 2 }][random(3) as usize]);
                if random(20) == 0 {
                    said.kernel.lose(0, 3);
                    said.unreported += 3;
                }
            }
            if random(3) == 0 {
                alone.shrink();
            }
            let used = said.head - alone.cursor.looked_tail;
            alone.cursor.losses.suspect = false;
            alone.refresh(cpu_ring, &mut keys);
            said.refresh(alone.cursor.cursor);
            let cursor = &alone.cursor;
            let dropped = std::mem::take(&mut said.dropped_since_look);
            assert!(cursor.losses.suspect || !dropped, "the ring was full");
            assert_eq!(cursor.losses.suspect, used > 0 && used + LONGEST > SIZE);
            assert_eq!(cursor.cursor, said.head);
            said.compare(&mut alone);
            take(&mut alone, &mut said, [3, 100, 1000][random(3) as usize]);
            said.compare(&mut alone);
        }
        while alone.held() > 0 || alone.cursor.cursor < said.head {
            take(&mut alone, &mut said, 10_000);
            alone.refresh(cpu_ring, &mut keys);
            said.refresh(alone.cursor.cursor);
        }
        said.compare(&mut alone);
    }
}

/// Behind a burst of records in disorder, with numbers missing, all that it took is given back: by the second time that
/// memory is freed at the latest, since the first looks at a time in which it was needed.
#[test]
fn what_a_burst_took_is_given_back() {
    let kernel = Kernel::with(&[0], 1 << 20, Layout::new(4 | 1024, true, 0));
    let mut rings = kernel.take_rings();
    let mut keys = Keys::new(Key::Time, None, Some((Key::Payload(0), None)), None);
    let mut alone = Alone::new(keys.new_numbers(&Layout::new(4 | 1024, true, 0)));
    let mut refresh = |alone: &mut Alone, time: fn(u64) -> u64, begin: u64| {
        (0..2000).for_each(|n| assert!(kernel.emit(0, time(n), &(2 * (begin + n)).to_ne_bytes())));
        alone.refresh(&mut rings.cpu_rings[0], &mut keys);
    };
    let room = |alone: &Alone| (alone.queue.blocks(), alone.cursor.notes.len_and_room()[1], alone.far.capacity());
    let empty = room(&alone);
    refresh(&mut alone, |n| 1_000_000 - n, 0);
    refresh(&mut alone, |n| 1_000_000 + n, 2000);
    let full = room(&alone);
    let (blocks, notes, far) = full;
    assert!(blocks >= 2000 / SLOTS && notes >= 3999 && far > 1900, "{full:?}");
    alone.drain();
    assert_eq!(room(&alone), full, "for the next burst");
    alone.shrink();
    assert_eq!(alone.queue.blocks(), blocks, "they were needed since the last time");
    alone.shrink();
    assert_eq!(room(&alone), empty);
    // Nothing that is held is given back.
    refresh(&mut alone, |n| 2_000_000 - n % 50, 4000);
    (0..3).for_each(|_| alone.shrink());
    assert_eq!(alone.held(), 2000);
    let mut last = 0;
    while let Some(front) = alone.front() {
        assert!(front.key >= last);
        last = front.key;
        alone.take();
    }
}

/// A reader that gathers events keeps the last bytes of a BPF ring buffer back. If somebody else moves the consumer
/// position then, that is damage, and the reader goes on.
#[test]
fn a_lost_head_is_passed_while_bytes_are_kept_back() {
    let (buffer, ring) = RingBuffer::new(4096);
    let mut rings = Rings::empty(Clock::Perf);
    rings.add(0, ring, Layout::RING_BUFFER);
    let cpu_ring = &mut rings.cpu_rings[0];
    let mut keys = Keys::new(Key::Payload(0), None, None, None);
    let mut alone = Alone::new(None);
    let mut taken = Vec::new();
    for n in 1..=10u64 {
        assert!(buffer.output(&(2 * n).to_ne_bytes()));
        for moved in [false, true, false] {
            if moved {
                buffer.force_consumed(buffer.produced());
            }
            alone.sync();
            let Alone { cursor, queue, far, .. } = &mut alone;
            cursor.refresh_behind(cpu_ring, &mut Indexing { queue, far, keys: &mut keys });
            while let Some(front) = alone.front() {
                taken.push((front.key, alone.cursor.note(front).is_some()));
                alone.take();
            }
        }
    }
    let expected: Vec<_> = (1..=10).flat_map(|n| [(2 * n, false), (2 * n, true)]).collect();
    assert_eq!(taken, expected, "each record, and the damage after it");
}

/// A loss that lies in no ring: a report waits for it however much is added; it moves with its ring; and a record
/// beside it has a key of its own.
#[test]
fn a_loss_in_no_ring_stays_moves_and_is_no_record() {
    let (mut cursor, mut queue) = (Cursor::new(0, None), Queue::new(0));
    cursor.losses.dropped(&mut queue, (0, None), [5, 0], true);
    cursor.losses.dropped(&mut queue, (0, None), [7, 0], false);
    assert!(matches!(cursor.losses.note(), Some(Note::Lost { count: 7, .. })));
    assert_eq!(cursor.keyed(queue.loose.unwrap()), Keyed::Never);
    assert_eq!(cursor.keyed(Place::new(1, 0, 0, 8, Tag::SAMPLE)), Keyed::Own);
    queue.move_ring_index();
    assert_eq!(queue.loose.unwrap().ring_index(), 1);
    assert_eq!((cursor.losses.of_lost(9, &mut queue), queue.loose.is_some()), (2, true), "a report waits for it");
}

/// Nothing is unread once all is yielded, damage included, whose length lies in its note.
#[test]
fn damage_is_read_once_it_is_yielded() {
    let kernel = Kernel::with(&[0], SIZE as usize, Layout::new(4 | 1024, true, 0));
    let mut rings = kernel.take_rings();
    let mut keys = Keys::new(Key::Time, None, None, None);
    let mut alone = Alone::new(None);
    assert!(kernel.emit(0, 1, b"a record of 40 bytes"));
    let len = kernel.head(0);
    // A record that would be longer than what was written.
    assert!(kernel.emit(0, 2, b"") && kernel.emit(0, 3, b""));
    kernel.scribble(0, len + 6, &u16::MAX.to_ne_bytes());
    alone.refresh(&mut rings.cpu_rings[0], &mut keys);
    assert_eq!(alone.queue.longest, len);
    assert_eq!(alone.cursor.unread(&alone.queue), kernel.head(0));
    alone.drain();
    assert_eq!(alone.cursor.unread(&alone.queue), 0);
}
