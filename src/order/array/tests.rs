use super::*;
use crate::order::index::{Indexing, ROOM};
use crate::order::key::{Key, Keys};
use crate::record::Layout;
use crate::sim::Kernel;

/// Rings with what is merged out of them, beside a list of everything.
struct Rings {
    kernel: Kernel,
    rings: crate::rings::Rings,
    keys: Keys,
    indexes: Vec<Index>,
    far: Far,
    array: Array,
    /// Key, ring and position of what was not yielded.
    held: Vec<(u64, usize, u64)>,
}

impl Rings {
    fn new(rings: u32) -> Self {
        Self::of(rings, 4096)
    }

    /// Rings of so many bytes.
    fn of(rings: u32, size: usize) -> Self {
        let cpus: Vec<u32> = (0..rings).collect();
        let kernel = Kernel::with(&cpus, size, Layout::new(4 | 1024, true, 0));
        let taken = kernel.take_rings();
        Self {
            rings: taken,
            keys: Keys::new(Key::Time, None, None, None),
            indexes: (0..rings as usize).map(|ring_index| Index::new(ring_index, 0, None)).collect(),
            far: Far::with_capacity_min(ROOM),
            array: Array::new(rings as usize),
            held: Vec::new(),
            kernel,
        }
    }

    fn write(&mut self, ring: usize, key: u64) {
        let head = self.kernel.head(ring as u32);
        // No loss, which would come with a record of its own.
        if head - self.rings.cpu_rings[ring].ring.tail() < 4000 {
            assert!(self.kernel.emit(ring as u32, key, b""));
            self.held.push((key, ring, head));
        }
    }

    fn put_back(&mut self) {
        self.array.put_back(&mut self.indexes, &mut self.far);
    }

    fn refresh(&mut self) {
        self.put_back();
        for (cpu_ring, index) in self.rings.cpu_rings.iter_mut().zip(&mut self.indexes) {
            index.refresh(cpu_ring, Indexing { keys: &mut self.keys, far: &mut self.far });
        }
        self.held.sort_unstable();
    }

    /// Yields so many places with keys up to a bound, each of which must be the smallest.
    fn take(&mut self, many: usize, frontier: u64) {
        for _ in 0..many {
            if self.array.is_empty() && !self.array.merge(&mut self.indexes, &mut self.far, frontier) {
                return assert!(self.held.first().is_none_or(|(key, ..)| *key > frontier), "{:?}", self.held[0]);
            }
            let place = self.array.left()[0];
            let (key, ring, position) = self.held.remove(0);
            assert_eq!((place.key, place.ring_index(), self.indexes[ring].position(place)), (key, ring, position));
            assert!(key <= frontier);
            self.array.pass();
            self.indexes[ring].take(place);
        }
    }
}

/// Whatever is written, merged, put back and yielded, all comes in the order of a sort: with one ring and more than a
/// loser tree of a known size has, with keys that are equal, far from each other, the largest there are, and much out
/// of order.
#[test]
fn places_come_in_the_order_of_a_sort() {
    let mut state = 1u64;
    let mut random = move |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    for rings in [1, 2, 3, 5, 8, 33, 70, 130, 257] {
        for course in 0..6 {
            let mut all = Rings::new(rings);
            let mut time = 1;
            for _ in 0..30 {
                let run = 1 + random(20);
                let mut ring = 0;
                for n in 0..random(400) {
                    if n % run == 0 {
                        ring = random(rings.into()) as usize;
                    }
                    time += random(2);
                    let key = match course {
                        0 => time,
                        1 => time + random(30),
                        2 => time + random(2) * random(3000),
                        3 => random(1 << 14) << 50,
                        4 => u64::MAX - random(3),
                        _ => u64::MAX - random(1 << 20) * random(1 << 20),
                    };
                    all.write(ring, key);
                }
                all.refresh();
                let frontier = if random(2) == 0 {
                    u64::MAX
                } else {
                    all.held.get(random(500) as usize).map_or(time, |held| held.0)
                };
                all.take(random(900) as usize, frontier);
                if random(3) == 0 {
                    all.put_back();
                    assert_eq!(all.indexes.iter().map(Index::len).sum::<usize>(), all.held.len());
                }
                all.put_back();
                for (ring, index) in all.indexes.iter().enumerate() {
                    let first = all.held.iter().filter(|held| held.1 == ring).map(|held| held.2).min();
                    assert_eq!(index.tail(), first.unwrap_or(index.cursor()), "ring {ring} of {rings}");
                }
            }
            all.take(usize::MAX, u64::MAX);
            assert!(all.held.is_empty() && all.far.is_empty());
        }
    }
}

/// What is left out of a block comes back with smaller places that are put back, and with no others.
#[test]
fn what_is_left_out_is_put_back_behind_what_is_not_yielded() {
    let mut all = Rings::new(2);
    (0..40).for_each(|key| all.write(key as usize / 3 % 2, key));
    all.refresh();
    assert!(all.array.merge(&mut all.indexes, &mut all.far, u64::MAX));
    let merged = all.array.left().len();
    all.array.set_plain(merged);
    let out = all.array.leave_out(|place| place.key % 2 == 1);
    assert_eq!(
        (out, all.array.left().len(), all.array.plain_end()),
        (merged / 2, merged - merged / 2, merged - merged / 2)
    );
    (0..5).for_each(|_| all.array.pass());
    // 0, 2, 4, 6, 8 are yielded; 1, 3, 5, 7 and 9 are left out for good.
    assert_eq!(all.array.put_back(&mut all.indexes, &mut all.far), out - 5);
    all.held.retain(|(key, ..)| *key >= 10);
    all.take(usize::MAX, u64::MAX);
    assert!(all.held.is_empty());
}

/// One long record in a ring does not make each event after it a merge, and no merge takes much more of a ring than is
/// given back at a time.
#[test]
fn a_long_record_makes_no_merge_of_each_event() {
    let (size, long) = (64 << 10, 8 << 10);
    let mut all = Rings::of(8, size);
    for ring in 0..8 {
        assert!(all.kernel.emit(ring, 0, &vec![0; long]));
    }
    for key in 1..8_000 {
        assert!(all.kernel.emit(key as u32 % 8, key, b""));
    }
    all.refresh();
    let mut merges = 0;
    while all.array.merge(&mut all.indexes, &mut all.far, u64::MAX) {
        merges += 1;
        for ring_index in 0..8 {
            let taken = all.array.left().iter().filter(|place| place.ring_index() == ring_index);
            assert!(taken.map(|place| place.size()).sum::<u64>() <= (size / 16 + long + 64) as u64);
        }
        while let Some(place) = all.array.left().first().copied() {
            all.array.pass();
            all.indexes[place.ring_index()].take(place);
        }
    }
    assert!(merges < 100, "{merges} merges of 8,008 events");
}
