use super::*;
use crate::merge::place::LOW_POSITION;

/// Bytes of a record.
const RECORD: u64 = 24;

/// Queues with what is merged out of them, beside a list of everything.
struct Rings {
    queues: Vec<Queue>,
    heads: Vec<u64>,
    far: Far,
    array: Array,
    /// Key, ring and position of what was not yielded.
    held: Vec<(u64, usize, u64)>,
}

impl Rings {
    /// Rings of which so many bytes are given back at a time.
    fn new(rings: usize, share: u64) -> Self {
        let mut queues: Vec<_> = (0..rings).map(Queue::new).collect();
        queues.iter_mut().for_each(|queue| queue.share = share);
        let (heads, array) = (vec![0; rings], Array::new(rings));
        Self { queues, heads, far: Far::with_capacity_min(32), array, held: Vec::new() }
    }

    /// Nothing is merged.
    fn write_bytes(&mut self, ring: usize, key: u64, size: u64) {
        let (position, queue) = (self.heads[ring], &mut self.queues[ring]);
        queue.longest = queue.longest.max(size);
        queue.add(Place::new(key, ring as u32, position, size, Tag::SAMPLE), &mut self.far);
        self.held.push((key, ring, position));
        self.heads[ring] += size;
    }

    fn write(&mut self, ring: usize, key: u64) {
        self.write_bytes(ring, key, RECORD);
    }

    fn put_back(&mut self) {
        self.array.put_back(&mut self.queues, &mut self.far);
    }

    /// Yields so many places with keys up to a bound, each of which must be the smallest.
    fn take(&mut self, many: usize, frontier: u64) {
        self.held.sort_unstable();
        let mut held = self.held.iter();
        for _ in 0..many {
            if self.array.is_empty() && !self.array.merge(&mut self.queues, &mut self.far, frontier) {
                let left = held.as_slice().first();
                assert!(left.is_none_or(|(key, ..)| *key > frontier), "{left:?}");
                break;
            }
            let place = self.array.left()[0];
            let &(key, ring, position) = held.next().unwrap();
            assert_eq!((place.key, place.ring_index(), place.low() & LOW_POSITION), (key, ring, position));
            assert!(key <= frontier);
            self.array.pass();
        }
        self.held = held.as_slice().to_vec();
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
            let mut all = Rings::new(rings, 4096 / 16);
            let mut time = 1;
            for _ in 0..30 {
                let run = 1 + random(20);
                let mut ring = 0;
                for n in 0..random(400) {
                    if n % run == 0 {
                        ring = random(rings as u64) as usize;
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
                all.held.sort_unstable();
                let frontier = if random(2) == 0 {
                    u64::MAX
                } else {
                    all.held.get(random(500) as usize).map_or(time, |held| held.0)
                };
                all.take(random(900) as usize, frontier);
                if random(3) == 0 {
                    all.put_back();
                    assert_eq!(all.queues.iter().map(Queue::held).sum::<usize>(), all.held.len());
                }
                all.put_back();
                for (ring, queue) in all.queues.iter().enumerate() {
                    let held = all.held.iter().filter(|held| held.1 == ring).count();
                    assert_eq!(queue.places(), held, "ring {ring} of {rings}");
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
    let mut all = Rings::new(2, 1 << 20);
    (0..40).for_each(|key| all.write(key as usize / 3 % 2, key));
    assert!(all.array.merge(&mut all.queues, &mut all.far, u64::MAX));
    let merged = all.array.left().len();
    let out = all.array.leave_out(merged, |place| place.key % 2 == 1);
    assert_eq!(
        (out, all.array.left().len(), all.array.plain_end()),
        (merged / 2, merged - merged / 2, merged - merged / 2)
    );
    (0..5).for_each(|_| all.array.pass());
    // 0, 2, 4, 6, 8 are yielded; 1, 3, 5, 7 and 9 are left out for good.
    assert_eq!(all.array.put_back(&mut all.queues, &mut all.far), out - 5);
    all.held.retain(|(key, ..)| *key >= 10);
    all.take(usize::MAX, u64::MAX);
    assert!(all.held.is_empty());
}

/// One long record in a ring does not make each event after it a merge, and no merge takes much more of a ring than is
/// given back at a time.
#[test]
fn a_long_record_makes_no_merge_of_each_event() {
    let (share, long) = (4 << 10, 8 << 10);
    let mut all = Rings::new(8, share);
    for ring in 0..8 {
        all.write_bytes(ring, 0, long);
    }
    for key in 1..8_000 {
        all.write(key as usize % 8, key);
    }
    let mut merges = 0;
    while all.array.merge(&mut all.queues, &mut all.far, u64::MAX) {
        merges += 1;
        for ring_index in 0..8 {
            let taken = all.array.left().iter().filter(|place| place.ring_index() == ring_index);
            assert!(taken.map(|place| place.size()).sum::<u64>() <= share + long + 64);
        }
        while !all.array.is_empty() {
            all.array.pass();
        }
    }
    assert!(merges < 100, "{merges} merges of 8,008 events");
}
