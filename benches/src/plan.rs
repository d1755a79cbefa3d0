//! The records that are written into the rings.

use perfweave::sim;

/// Header, time and the payload's length.
const FRAME: usize = 20;

/// The shape of the rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Records in all rings together.
    pub records: usize,
    /// How many rings.
    pub rings: usize,
    /// How many records are written into a ring before the next.
    pub burst: usize,
    /// Whether the next ring is a random one, and `burst` the mean of random lengths, as with live rings. Otherwise
    /// rings take turns.
    pub random: bool,
    /// Of a hundred records, how many have a key below that of the record before, in the same ring.
    pub disorder: usize,
    /// Bytes of a record.
    pub record: usize,
}

impl Shape {
    /// The ring of each record.
    fn owners(&self) -> Vec<u32> {
        if !self.random {
            return (0..self.records).map(|n| (n / self.burst % self.rings) as u32).collect();
        }
        let (mut random, mut owner) = (Random(2), 0);
        let next = |_| {
            // A burst ends with each record with the same probability, so its length is geometric.
            if random.below(self.burst as u64) == 0 {
                owner = random.below(self.rings as u64) as u32;
            }
            owner
        };
        (0..self.records).map(next).collect()
    }
}

/// A linear congruential generator. The same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// The records in the order in which they are written.
pub(crate) struct Plan {
    shape: Shape,
    /// The ring of each record, and its key relative to the smallest.
    records: Vec<(u32, u64)>,
    /// The result of all records in the order of their keys.
    pub(crate) in_order: u64,
}

impl Plan {
    pub(crate) fn new(shape: Shape) -> Self {
        let mut records: Vec<(u32, u64)> = shape.owners().into_iter().zip(0..).collect();
        let (mut random, mut last) = (Random(1), vec![None; shape.rings]);
        for at in 0..shape.records {
            let last = &mut last[records[at].0 as usize];
            let late = random.below(100) < shape.disorder as u64;
            match last.take() {
                // An interrupt's record lies before that of the interrupted.
                Some(before) if late => {
                    let key = records[at].1;
                    records[at].1 = std::mem::replace(&mut records[before as usize].1, key);
                }
                _ => *last = Some(at as u32),
            }
        }
        let in_order = (0..shape.records as u64).fold(0, |sum, key| step(sum, key, word(key)));
        Self { shape, records, in_order }
    }

    /// Bytes of a ring that takes its records twice.
    pub(crate) fn bytes(&self) -> usize {
        let mut of_ring = vec![0; self.shape.rings];
        self.records.iter().for_each(|(ring, _)| of_ring[*ring as usize] += 1);
        let most: usize = of_ring.into_iter().max().unwrap_or(0);
        (most * self.shape.record * 2).next_power_of_two().max(4096)
    }

    /// Writes all, with keys from `base` on.
    pub(crate) fn write(&self, kernel: &sim::Kernel, base: u64) {
        let mut payload = vec![7; self.shape.record - FRAME];
        for &(ring, key) in &self.records {
            payload[..8].copy_from_slice(&word(key).to_ne_bytes());
            assert!(kernel.emit(ring, base + key, &payload), "the ring is too small");
        }
    }
}

/// The first word of the payload of a record.
fn word(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The work of each way for each record. The result depends on every record and on the order.
#[inline(always)]
pub(crate) fn step(sum: u64, key: u64, word: u64) -> u64 {
    key ^ word ^ sum.rotate_left(1)
}
