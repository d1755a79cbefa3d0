//! What the index costs, in steps.

use super::*;
use crate::instrument;
use crate::order::key::{Key, Keys};
use crate::order::run::BLOCK;
use crate::record::Layout;
use crate::record::clock::Clock;
use crate::rings::Rings;
use crate::sequence::counter::Sequence;
use crate::sim::{Kernel, RingBuffer};

/// A ring's records and what they cost: the most steps for a refresh, or for taking, divided by how many records were indexed, or
/// records and gaps taken.
fn dearest(records: u64, each_look: u64, record: impl Fn(u64) -> (u64, u64)) -> (u64, Index) {
    let kernel = Kernel::with(&[0], 64 << 20, Layout::new(4 | 1024, true, 0));
    let mut rings = kernel.take_rings();
    let lane = &mut rings.lanes[0];
    let mut keys = Keys::new(Key::Time, None, Some(Sequence::u64(0)), None);
    let mut index = Index::new(0, keys.new_numbers(&Layout::new(4 | 1024, true, 0)));
    let mut most = 0;
    for n in 0..records {
        let (time, number) = record(n);
        if n % 100 == 50 {
            kernel.lose(0, 1);
        }
        assert!(kernel.emit(0, time, &number.to_ne_bytes()));
        if n % each_look == each_look - 1 {
            let (steps, whole) = instrument::count(|| index.refresh(lane, &mut keys, usize::MAX));
            assert!(whole);
            most = most.max(steps / each_look);
        }
    }
    let held = index.len() as u64;
    let (mut last, mut left) = (0, held);
    while left > 0 {
        let batch = left.min(1000);
        let (steps, taken) = instrument::count(|| {
            let mut taken = batch;
            for _ in 0..batch {
                let front = index.front().unwrap();
                assert!(front.key >= last);
                last = front.key;
                if let Some(Note::Hole { hole, .. }) = index.note(&front)
                    && let Some(numbers) = index.numbers.as_mut().and_then(|all| all.of_mut(0))
                {
                    while let Some(gap) = numbers.gap(&hole) {
                        numbers.declare(&gap);
                        taken += 1;
                    }
                }
                index.take();
            }
            taken
        });
        most = most.max(steps / taken);
        left -= batch;
    }
    (most, index)
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
    ("one hole that is cut to pieces", |n| (n, if n == 1 { 1 << 30 } else { 2 * (n.wrapping_mul(40_503) % 65_536) })),
];

/// What a record costs does not grow with what is held, but for a logarithm, whatever its key and its number.
#[test]
fn the_worst_records_cost_no_more_the_more_are_held() {
    for (name, load) in LOADS {
        for each_look in [100, 10_000] {
            let (few, _) = dearest(2_000, 100, load);
            let (many, index) = dearest(100_000, each_look, load);
            // log2(100,000) is 17; a few binary searches and a heap. What is worse grows with the records themselves.
            assert!(many <= 150, "{name}: {many} steps a record with 100,000 held, {few} with 2,000");
            assert_eq!((index.len(), index.notes.len()), (0, 0));
        }
    }
}

#[test]
fn nothing_is_kept_of_what_was_taken() {
    for (name, load) in LOADS {
        let (_, mut index) = dearest(2_000, 100, load);
        (0..2).for_each(|_| index.shrink(usize::MAX));
        let lists = index.lists().map(|list| list.len);
        assert_eq!((index.len(), index.run.is_empty(), lists), (0, true, [0; 3]), "{name}");
        assert_eq!(index.numbers.as_ref().map(|numbers| (numbers.open(), numbers.memory())), Some((0, 0)), "{name}");
        assert_eq!((index.memory(), index.unread()), (0, 0), "{name}");
        assert_eq!(index.tail, index.cursor, "{name}");
    }
}

/// A stretch of a ring, said without an index.
#[derive(Debug, Clone, Copy)]
struct Held {
    position: u64,
    len: u64,
    /// What it is ordered by; before it is indexed, the record's own key.
    key: Option<u64>,
    /// Of a LOST record: its count, and the key of the record before.
    lost: Option<(u64, Option<u64>)>,
    /// Whether it is a record with a key of its own that came in order.
    plain: bool,
}

/// A ring and what it holds, as lists that are searched from end to end.
struct Said {
    kernel: Kernel,
    key: fn() -> Key,
    /// What was written and not indexed yet, and up to where.
    written: VecDeque<Held>,
    head: u64,
    /// What the kernel dropped since it told last.
    untold: u64,
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
        let (head, untold, cursor, repaired, longest, most_used) = Default::default();
        let (before, largest, records, published, dropped_since_look) = Default::default();
        Self {
            kernel,
            key,
            written,
            head,
            untold,
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
            self.untold += 1;
            self.dropped_since_look = true;
            return;
        }
        if self.untold > 0 {
            self.written.push_back(Held {
                position: self.head,
                len: 32,
                key,
                lost: Some((self.untold, None)),
                plain: false,
            });
            self.head += 32;
            self.untold = 0;
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
        self.longest -= self.longest / FORGOTTEN;
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
            let plain = lost.is_none() && next.key.is_some() && back.is_none_or(|back| key >= back);
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

    fn compare(&self, index: &Index) {
        let front = self.front();
        let key = |held: Held| held.key.unwrap();
        assert_eq!(
            index.front().map(|front| (front.key, front.position, front.len())),
            front.map(|f| (key(f), f.position, f.len))
        );
        assert_eq!((index.tail, index.cursor(), index.front_key()), (self.tail(), self.cursor, front.map(key)));
        assert_eq!((index.len(), index.unread()), (self.held.len(), self.held.iter().map(|held| held.len).sum()));
        let [indexed, records] = self.records;
        assert_eq!(
            (index.records(), index.counts().records, index.counts().indexed),
            (indexed - records, records, indexed)
        );
        assert_eq!((index.counts().repaired, index.longest()), (self.repaired, self.longest));
        assert_eq!(index.counts().most_used, self.most_used);
        let back = self.held.iter().map(|held| key(*held)).max();
        assert_eq!((index.back(), index.largest()), (back, self.largest));
        let marks: Vec<_> = index.marks().collect();
        assert!(
            marks.is_sorted() && marks.last().copied() == back && marks.len() >= self.held.len() / 2 / 128,
            "{marks:?}"
        );
        assert_eq!(index.unpublished(), index.tail - self.published[1] >= SIZE / 8);
        for position in [self.tail(), self.cursor, (self.tail() + self.cursor) / 2] {
            let before = self.held.iter().filter(|held| held.position < position);
            assert_eq!(index.largest_before(position), before.map(|held| key(*held)).max());
        }
        assert_eq!(plain_front(index).is_some(), front.is_some_and(|front| front.plain));
        assert!([index.notes.front(), index.notes.back()].into_iter().flatten().all(|(_, note)| note.is_some()));
        let noted = front.and_then(|front| front.lost);
        match index.front().and_then(|front| index.note(&front)) {
            Some(Note::Lost { count, after, .. }) => assert_eq!(noted, Some((count, after))),
            other => assert!(other.is_none() && noted.is_none(), "{other:?}, {noted:?}"),
        }
    }
}

fn plain_front(index: &Index) -> Option<Entry> {
    index.front_key().and_then(|key| index.plain_front(key))
}

/// Takes some of what an index holds, in each of the ways there are.
fn take(index: &mut Index, said: &mut Said, many: u64, way: u64) {
    let mut taken = 0;
    while taken < many && index.len() > 0 {
        let until = index.beside();
        let plain = plain_front(index).filter(|_| way > 0);
        let check = |said: &mut Said, entry: &Entry| {
            let front = said.front().unwrap();
            assert_eq!((Some(entry.key), entry.position, entry.len()), (front.key, front.position, front.len));
            said.take(&front);
            front
        };
        match plain {
            Some(entry) if way == 1 => {
                check(said, &entry);
                match index.nth_plain(1) {
                    Some(next) => assert_eq!(index.step(&entry, next).position, index.tail),
                    None => assert_eq!(index.take_run(1, entry.position + entry.record_len()), index.front_key()),
                }
                taken += 1;
            }
            Some(Entry { mut position, .. }) => {
                let mut records = 0;
                while taken < many
                    && let Some(Slot { key, header }) = index.nth_plain(records).filter(|slot| slot.key < until)
                {
                    let entry = Entry { key, position, header };
                    check(said, &entry);
                    position += entry.record_len();
                    (records, taken) = (records + 1, taken + 1);
                }
                assert_eq!(index.take_run(records, position), index.front_key());
            }
            None => {
                let entry = index.front().unwrap();
                if check(said, &entry).lost.is_none() {
                    index.counts_mut().records += 1;
                }
                index.take();
                taken += 1;
            }
        }
        if taken % 5 == 0 {
            said.compare(index);
        }
    }
}

/// Whatever is written, looked at and taken, an index is what lists say that are searched from end to end: by the way of the
/// plainest records and by the general one, in memory enough and in little.
#[test]
fn an_index_is_what_lists_say() {
    let keys: [fn() -> Key; 3] = [|| Key::Time, || Key::Payload(0), || Key::with(|record| record.payload()?.u64(0))];
    let mut grown: Vec<usize> = vec![ROOM];
    (0..30).for_each(|at| grown.push(grown[at] + grown[at] / 2));
    for course in 0..30u64 {
        let key = keys[course as usize % 3];
        let mut said = Said::new(key);
        let mut rings = said.kernel.take_rings();
        let lane = &mut rings.lanes[0];
        let mut keys = Keys::new(key(), None, None, None);
        let mut index = Index::new(0, None);
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
                    said.untold += 3;
                }
            }
            let most = if random(3) == 0 { random(40_000) as usize } else { usize::MAX };
            let (before, was_empty) = (index.memory(), index.len() == 0);
            let used = said.head - index.looked_tail;
            index.suspect = false;
            let whole = index.refresh(lane, &mut keys, most);
            said.refresh(index.cursor());
            let dropped = std::mem::take(&mut said.dropped_since_look);
            assert!(index.suspect || !dropped, "the ring was full");
            assert_eq!(index.suspect, used > 0 && used + LONGEST > SIZE);
            assert_eq!(whole, index.cursor() == said.head);
            assert!(whole || most < usize::MAX && index.memory() + 2 * BLOCK + index.memory() > most);
            assert!(was_empty || index.memory() <= before.max(most));
            let lists = [index.beside.lists()[0].1, index.beside.lists()[1].1, index.notes.capacity()];
            assert!(lists.iter().all(|capacity| grown.contains(capacity)), "seen to before: {lists:?}");
            said.compare(&index);
            take(&mut index, &mut said, [3, 100, 1000][random(3) as usize], random(3));
            said.compare(&index);
        }
        while index.len() > 0 || index.cursor() < said.head {
            take(&mut index, &mut said, 10_000, course % 3);
            index.refresh(lane, &mut keys, usize::MAX);
            said.refresh(index.cursor());
        }
        said.compare(&index);
    }
}

/// What there was room for at one refresh is asked for anew at the next: others may have taken it since.
#[test]
fn a_block_that_was_not_taken_is_asked_for_again() {
    let kernel = Kernel::with(&[0], SIZE as usize, Layout::new(4 | 1024, true, 0));
    let mut rings = kernel.take_rings();
    let mut keys = Keys::new(Key::Time, None, None, None);
    let mut index = Index::new(0, None);
    let mut refresh = |index: &mut Index, records: u64, most| {
        (0..records).for_each(|time| assert!(kernel.emit(0, time, b"")));
        index.refresh(&mut rings.lanes[0], &mut keys, most)
    };
    while index.run.free() > 1 {
        assert!(refresh(&mut index, 1, usize::MAX));
    }
    // Room for two: the second would be in another block.
    assert!(refresh(&mut index, 1, usize::MAX) && index.run.free() == 0);
    let before = index.memory();
    assert!(!refresh(&mut index, 1, before));
    assert_eq!(index.memory(), before);
    assert!(refresh(&mut index, 0, before + BLOCK) && index.memory() == before + BLOCK, "just enough");
}

/// Behind a burst of records in disorder the lists have room that blocks do not have, and blocks are spare.
#[test]
fn what_a_burst_left_is_used_within_the_bound() {
    let kernel = Kernel::with(&[0], 1 << 20, Layout::new(4 | 1024, true, 0));
    let mut rings = kernel.take_rings();
    let mut keys = Keys::new(Key::Time, None, Some(Sequence::u64(0)), None);
    let mut index = Index::new(0, keys.new_numbers(&Layout::new(4 | 1024, true, 0)));
    let mut refresh = |index: &mut Index, time: fn(u64) -> u64, most| {
        (0..2000).for_each(|n| assert!(kernel.emit(0, time(n), &(2 * n).to_ne_bytes())));
        index.refresh(&mut rings.lanes[0], &mut keys, most)
    };
    let drain = |index: &mut Index| (0..index.len()).for_each(|_| index.take());
    assert!(refresh(&mut index, |n| 1_000_000 - n, usize::MAX));
    drain(&mut index);
    let spare = index.memory();
    assert!(spare > 20 * BLOCK);
    // Nothing is held: something is looked at, however little there may be. Then no more than there may be.
    assert!(!refresh(&mut index, |n| 2_000_000 + n, 0) && index.len() > 0);
    assert!(!index.free_spare() && index.memory() < spare - 10 * BLOCK, "it has freed the spare blocks");
    let most = index.memory() + BLOCK;
    assert!(!refresh(&mut index, |n| 2_000_000 + n, most) && index.memory() <= most);
    while index.cursor() < 1 << 17 {
        drain(&mut index);
        refresh(&mut index, |n| 3_000_000 + n, usize::MAX);
    }
    (0..2).for_each(|_| index.shrink(usize::MAX));
    let most = index.memory() + 100;
    refresh(&mut index, |n| 3_000_000 - n, most);
    assert!(index.memory() <= most);
}

/// A reader that gathers events keeps the last bytes of a BPF ring buffer back. If somebody else moves the consumer position then, that is
/// damage, and the reader goes on.
#[test]
fn a_lost_head_is_passed_while_bytes_are_kept_back() {
    let (buffer, ring) = RingBuffer::new(4096);
    let mut rings = Rings::empty(Clock::Perf);
    rings.add(0, ring, Layout::RING_BUFFER);
    let lane = &mut rings.lanes[0];
    let mut keys = Keys::new(Key::Payload(0), None, None, None);
    let mut index = Index::new(0, None);
    let mut taken = Vec::new();
    for n in 1..=10u64 {
        assert!(buffer.output(&(2 * n).to_ne_bytes()));
        for moved in [false, true, false] {
            if moved {
                buffer.force_consumed(buffer.produced());
            }
            assert!(index.refresh_behind(lane, &mut keys, usize::MAX));
            while let Some(front) = index.front() {
                taken.push((front.key, index.note(&front).is_some()));
                index.take();
            }
        }
    }
    let expected: Vec<_> = (1..=10).flat_map(|n| [(2 * n, false), (2 * n, true)]).collect();
    assert_eq!(taken, expected, "each record, and the damage after it");
}
