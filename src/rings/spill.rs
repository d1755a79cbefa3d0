//! Bytes that were copied out of a ring to make room, and are read from the copy instead.

use crate::ring::{Bytes, Ring, prefetch};
use std::collections::VecDeque;

/// How many bytes ahead the CPU prefetches.
const AHEAD: usize = 512;

/// The bytes that were copied out of one ring and are not yielded yet.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// By position, each where the one before ends or behind it.
    chunks: VecDeque<(u64, Vec<u8>)>,
    /// Chunks to be filled again.
    spare: Vec<Vec<u8>>,
    /// The most chunks that were filled at once since memory was freed last.
    peak: usize,
}

/// The capacity of a chunk for so many bytes of a ring: one of a few, so that it can be filled again with other bytes.
fn capacity(ring: &Ring, len: usize) -> usize {
    len.next_multiple_of((ring.size() as usize / 4).max(1))
}

impl Copies {
    /// Bytes of memory that the copies and the spare chunks take.
    pub(crate) fn memory(&self) -> usize {
        self.chunks.iter().map(|(_, chunk)| chunk).chain(&self.spare).map(Vec::capacity).sum()
    }

    /// Bytes of memory that it takes to copy everything up to a position.
    pub(crate) fn more(&self, ring: &Ring, until: u64) -> usize {
        let len = (until - ring.tail()) as usize;
        if self.spare.iter().any(|chunk| chunk.capacity() >= len) { 0 } else { capacity(ring, len) }
    }

    /// Where the first copied byte lay.
    pub(crate) fn begin(&self) -> Option<u64> {
        self.chunks.front().map(|(begin, _)| *begin)
    }

    /// Copies everything up to a position, and gives it back to the kernel. Gives how many bytes that is.
    pub(crate) fn take(&mut self, ring: &mut Ring, until: u64) -> u64 {
        let tail = ring.tail();
        // No underflow: the merge gives the index's cursor, which no tail passes.
        let len = until - tail;
        if len > 0 {
            let spare = self.spare.iter().position(|chunk| chunk.capacity() >= len as usize);
            let mut chunk = match spare {
                Some(at) => self.spare.swap_remove(at),
                None => Vec::with_capacity(capacity(ring, len as usize)),
            };
            // The bytes may wrap at the end of the ring. In the copy they lie in one piece.
            let (first, second) = ring.bytes(tail, len).as_slices();
            chunk.extend_from_slice(first);
            chunk.extend_from_slice(second);
            self.chunks.push_back((tail, chunk));
            self.peak = self.peak.max(self.chunks.len());
            // Behind the copy: from here on the kernel may write over these bytes.
            ring.release(until);
        }
        len
    }

    /// Forgets what lies wholly before a position.
    #[inline]
    pub(crate) fn forget_before(&mut self, position: u64) {
        while let Some((begin, chunk)) = self.chunks.front()
            && begin + chunk.len() as u64 <= position
        {
            self.forget_first();
        }
    }

    #[cold]
    fn forget_first(&mut self) {
        if let Some((_, mut chunk)) = self.chunks.pop_front() {
            chunk.clear();
            self.spare.push(chunk);
        }
    }

    /// Gives all spare chunks back to the allocator.
    pub(crate) fn clear_spare(&mut self) {
        self.spare = Vec::new();
    }

    /// Frees the memory that was not needed since the last call.
    pub(crate) fn shrink(&mut self) {
        self.spare.truncate(self.peak.saturating_sub(self.chunks.len()));
        self.spare.shrink_to(self.peak);
        self.chunks.shrink_to(self.peak);
        self.peak = self.chunks.len();
    }

    /// Bytes that were copied together.
    ///
    /// # Panics
    /// If they were not, or are forgotten.
    #[inline(always)]
    pub(crate) fn get(&self, position: u64, len: u64) -> Bytes<'_> {
        self.chunk(position, len).into()
    }

    /// The bytes lie in one chunk. It is nearly always one of the two oldest, because chunks are forgotten each time an
    /// eighth of the ring was yielded.
    #[inline(never)]
    fn chunk(&self, position: u64, len: u64) -> &[u8] {
        let is_before = |at: usize| self.chunks.get(at).is_none_or(|(begin, _)| position < *begin);
        let at = if is_before(1) {
            0
        } else if is_before(2) {
            1
        } else {
            // No underflow: the third chunk begins at the position or before it.
            self.chunks.partition_point(|(begin, _)| *begin <= position) - 1
        };
        let (begin, chunk) = &self.chunks[at];
        let from = (position - begin) as usize;
        prefetch(chunk.get(from..).unwrap_or_default(), AHEAD);
        &chunk[from..from + len as usize]
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

    /// How many bytes are copied now.
    fn len(copies: &Copies) -> usize {
        copies.chunks.iter().map(|(_, chunk)| chunk.len()).sum()
    }

    fn simulated() -> (KernelHalf, Ring) {
        Ring::simulated(4096, 1024, None, false)
    }

    #[test]
    fn what_is_copied_is_read_from_there_until_it_is_forgotten() {
        let (mut kernel, mut ring) = simulated();
        let mut copies = Copies::default();
        assert_eq!((len(&copies), copies.begin(), copies.memory()), (0, None, 0));
        write(&mut kernel, &mut ring, 100);
        assert_eq!((copies.take(&mut ring, 60), copies.take(&mut ring, 60), copies.take(&mut ring, 100)), (60, 0, 40));
        assert_eq!((len(&copies), copies.begin(), ring.tail(), kernel.tail()), (100, Some(0), 100, 100));
        assert_eq!(copies.chunks.len(), 2, "nothing is no chunk");
        for (position, len) in [(0, 60), (60, 40), (59, 1), (60, 1), (99, 1), (8, 16)] {
            let expected: Vec<u8> = (position..position + len).map(|at| at as u8).collect();
            assert_eq!(copies.get(position, len), expected[..]);
        }
        copies.forget_before(59);
        assert_eq!((len(&copies), copies.begin()), (100, Some(0)), "wholly");
        copies.forget_before(60);
        assert_eq!((len(&copies), copies.begin()), (40, Some(60)));
        copies.forget_before(100);
        assert_eq!((len(&copies), copies.begin()), (0, None));
    }

    /// What crosses the end of the ring is copied in one piece.
    #[test]
    fn what_wraps_is_copied_whole() {
        let (mut kernel, mut ring) = simulated();
        write(&mut kernel, &mut ring, 1000);
        ring.release(1000);
        write(&mut kernel, &mut ring, 100);
        let mut copies = Copies::default();
        assert_eq!(copies.take(&mut ring, 1100), 100);
        assert_eq!(copies.get(1000, 100), (1000..1100).map(|at| at as u8).collect::<Vec<_>>()[..]);
    }

    #[test]
    fn chunks_are_filled_again_and_given_back_when_they_are_not() {
        let (mut kernel, mut ring) = simulated();
        let mut copies = Copies::default();
        write(&mut kernel, &mut ring, 1024);
        // A chunk is one, two, three or four quarters of the ring.
        let more = [1, 256, 257, 512, 1024].map(|until| copies.more(&ring, until));
        assert_eq!(more, [256, 256, 512, 512, 1024]);
        copies.take(&mut ring, 256);
        copies.take(&mut ring, 640);
        assert_eq!(copies.memory(), 256 + 512);
        copies.forget_before(640);
        assert_eq!(copies.memory(), 256 + 512, "they are kept");
        // What there is to copy lies behind 640.
        assert_eq!([641, 640 + 256, 640 + 384].map(|until| copies.more(&ring, until)), [0; 3]);
        assert_eq!(copies.take(&mut ring, 1024), 384);
        assert_eq!(copies.memory(), 256 + 512, "the one that is large enough is filled again");
        copies.shrink();
        assert_eq!(copies.memory(), 256 + 512, "two were needed since the last time");
        copies.shrink();
        assert_eq!(copies.memory(), 512, "one was");
        copies.forget_before(1024);
        copies.shrink();
        assert_eq!(copies.memory(), 512, "it was needed since");
        copies.shrink();
        assert_eq!(copies.memory(), 0);
        // All that is spare can go at once.
        write(&mut kernel, &mut ring, 512);
        copies.take(&mut ring, 1024 + 512);
        copies.forget_before(1024 + 512);
        assert_eq!(copies.memory(), 512);
        write(&mut kernel, &mut ring, 512);
        assert_eq!(copies.more(&ring, 2048), 0, "just large enough");
        copies.take(&mut ring, 2048);
        copies.forget_before(2048);
        assert_eq!(copies.memory(), 512);
        copies.clear_spare();
        assert_eq!((copies.memory(), copies.spare.capacity()), (0, 0));
    }
}
