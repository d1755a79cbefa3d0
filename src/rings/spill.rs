//! Bytes that were copied out of a ring to make room, and are read from the copy instead.

use crate::ring::{Bytes, Ring, prefetch};
use std::collections::VecDeque;

/// How many bytes ahead the CPU prefetches.
const AHEAD: usize = 512;

/// The bytes that were copied out of one ring and are not yielded yet: the ring goes on in them, towards the past.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// The position of the first byte.
    begin: u64,
    /// INVARIANT: if there are any, they end where the ring's tail is. A ring buffer itself, whose memory stays.
    bytes: VecDeque<u8>,
    /// The most bytes that were copied at once since memory was freed last.
    peak: usize,
}

impl Copies {
    /// Bytes of memory that the copies take, and what is kept for the next ones.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Bytes that are copied now.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Where the first copied byte lay.
    pub(crate) fn begin(&self) -> Option<u64> {
        (!self.bytes.is_empty()).then_some(self.begin)
    }

    /// Copies everything up to a position, and gives it back to the kernel, if all copies then take no more than `most`
    /// bytes of memory. Gives how many bytes were copied.
    pub(crate) fn take(&mut self, ring: &mut Ring, until: u64, most: usize) -> Option<u64> {
        let tail = ring.tail();
        // No underflow: the merge gives the index's cursor, which no tail passes.
        let len = until - tail;
        let all = self.bytes.len() + len as usize;
        if all > self.memory() {
            if all > most {
                return None;
            }
            // Twice as many, so that few bytes are moved however often this happens. Half of what is left is for others.
            let room = (self.memory() * 2).min(most / 2).max(all);
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        if self.bytes.is_empty() {
            self.begin = tail;
        }
        debug_assert_eq!(self.begin + self.bytes.len() as u64, tail);
        let (first, second) = ring.bytes(tail, len).as_slices();
        self.bytes.extend(first);
        self.bytes.extend(second);
        self.peak = self.peak.max(self.bytes.len());
        // Behind the copy: from here on the kernel may write over these bytes.
        ring.release(until);
        Some(len)
    }

    /// Forgets what lies before a position.
    #[inline]
    pub(crate) fn forget_before(&mut self, position: u64) {
        if !self.bytes.is_empty() && position > self.begin {
            self.forget(position);
        }
    }

    #[cold]
    fn forget(&mut self, position: u64) {
        let forgotten = (position - self.begin).min(self.bytes.len() as u64);
        self.bytes.drain(..forgotten as usize);
        self.begin += forgotten;
    }

    /// Frees the memory that holds no copy now.
    pub(crate) fn clear_spare(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// Frees the memory that was not needed since the last call.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to(self.peak);
        self.peak = self.bytes.len();
    }

    /// Bytes that were copied.
    ///
    /// # Panics
    /// If they were not, or are forgotten.
    #[inline(never)]
    pub(crate) fn get(&self, position: u64, len: u64) -> Bytes<'_> {
        let (first, second) = self.bytes.as_slices();
        let (from, len) = ((position - self.begin) as usize, len as usize);
        if let Some(run) = first.get(from..).filter(|run| run.len() >= len) {
            prefetch(run, AHEAD);
            return run[..len].into();
        }
        match from.checked_sub(first.len()) {
            Some(from) => {
                prefetch(&second[from..], AHEAD);
                second[from..from + len].into()
            }
            None => Bytes::new(&first[from..], &second[..from + len - first.len()]),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Copies;
    use crate::ring::{KernelHalf, Ring};

    /// A ring of 1024 bytes; and one that has so many bytes in it, each as large as its position.
    fn write(kernel: &mut KernelHalf, ring: &mut Ring, len: u64) {
        let begin = kernel.head();
        let bytes: Vec<u8> = (begin..begin + len).map(|at| at as u8).collect();
        kernel.write(begin, &bytes);
        kernel.publish(begin + len);
        ring.refresh().unwrap();
    }

    /// More than these rings have.
    const MOST: usize = 1 << 20;

    fn simulated() -> (KernelHalf, Ring) {
        Ring::simulated(4096, 1024, None, false)
    }

    #[test]
    fn what_is_copied_is_read_from_there_until_it_is_forgotten() {
        let (mut kernel, mut ring) = simulated();
        let mut copies = Copies::default();
        assert_eq!((copies.len(), copies.begin(), copies.memory()), (0, None, 0));
        write(&mut kernel, &mut ring, 100);
        let mut take = |until| copies.take(&mut ring, until, MOST);
        assert_eq!((take(60), take(60), take(100)), (Some(60), Some(0), Some(40)));
        assert_eq!((copies.len(), copies.begin(), ring.tail(), kernel.tail()), (100, Some(0), 100, 100));
        for (position, len) in [(0, 60), (60, 40), (59, 1), (60, 1), (99, 1), (8, 16), (50, 20)] {
            let expected: Vec<u8> = (position..position + len).map(|at| at as u8).collect();
            assert_eq!(copies.get(position, len), expected[..]);
        }
        copies.forget_before(59);
        assert_eq!((copies.len(), copies.begin()), (41, Some(59)));
        copies.forget_before(10);
        assert_eq!((copies.len(), copies.begin()), (41, Some(59)), "what is forgotten already");
        copies.forget_before(101);
        assert_eq!((copies.len(), copies.begin()), (0, None));
    }

    /// What crosses the end of the ring, and what crosses the end of the copies' memory.
    #[test]
    fn what_wraps_is_read_whole() {
        let (mut kernel, mut ring) = simulated();
        write(&mut kernel, &mut ring, 1000);
        ring.release(1000);
        write(&mut kernel, &mut ring, 100);
        let mut copies = Copies::default();
        assert_eq!(copies.take(&mut ring, 1100, 100), Some(100));
        let expected = |from: u64, until| (from..until).map(|at| at as u8).collect::<Vec<_>>();
        assert_eq!(copies.get(1000, 100), expected(1000, 1100)[..]);
        copies.forget_before(1060);
        write(&mut kernel, &mut ring, 50);
        assert_eq!(copies.take(&mut ring, 1150, 100), Some(50));
        assert_eq!(copies.memory(), 100, "it fits where bytes were forgotten");
        for (from, until) in [(1060, 1150), (1060, 1100), (1090, 1110), (1100, 1150), (1149, 1150)] {
            assert_eq!(copies.get(from, until - from), expected(from, until)[..], "{from} to {until}");
        }
    }

    #[test]
    fn memory_is_used_again_and_given_back_when_it_is_not() {
        let (mut kernel, mut ring) = simulated();
        let mut copies = Copies::default();
        write(&mut kernel, &mut ring, 1024);
        assert_eq!((copies.take(&mut ring, 256, 255), ring.tail()), (None, 0), "more than it may take");
        assert_eq!((copies.take(&mut ring, 256, MOST), copies.memory()), (Some(256), 256));
        assert_eq!((copies.take(&mut ring, 264, MOST), copies.memory()), (Some(8), 512), "twice as much");
        assert_eq!((copies.take(&mut ring, 800, 900), copies.memory()), (Some(536), 800), "or no more than it takes");
        assert_eq!((copies.take(&mut ring, 1024, 900), copies.len()), (None, 800));
        copies.forget_before(800);
        assert_eq!((copies.take(&mut ring, 1024, 0), copies.memory()), (Some(224), 800), "it has this memory");
        copies.shrink();
        assert_eq!(copies.memory(), 800, "so many were needed since the last time");
        copies.shrink();
        assert_eq!(copies.memory(), 224);
        copies.forget_before(1024);
        copies.shrink();
        assert_eq!(copies.memory(), 224, "they were needed since");
        copies.shrink();
        assert_eq!(copies.memory(), 0);
        write(&mut kernel, &mut ring, 512);
        copies.take(&mut ring, 1024 + 512, MOST);
        copies.forget_before(1024 + 500);
        copies.clear_spare();
        assert_eq!((copies.memory(), copies.get(1024 + 500, 12).len()), (12, 12));
    }
}
