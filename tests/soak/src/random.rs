//! Numbers from a seed, so that a round can be run again.

use std::time::Duration;

/// A generator of numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of one part of a run.
    pub fn new(seed: u64, part: u64) -> Self {
        let mut random = Self(seed ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    pub fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    /// A time in milliseconds between two limits.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from + 1))
    }
}
