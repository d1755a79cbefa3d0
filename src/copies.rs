//! Bytes that were copied out of a ring to make room, and are read from there instead.

use crate::ring::{Bytes, Ring};
use std::collections::VecDeque;

/// What was copied out of one ring and is not yielded yet.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// By position, each where the one before ends or behind it.
    chunks: VecDeque<(u64, Vec<u8>)>,
    bytes: u64,
    /// Chunks to be filled again.
    spare: Vec<Vec<u8>>,
    /// The most chunks that were filled since memory was given back last.
    peak: usize,
}

/// The capacity of a chunk for so many bytes of a ring: one of a few, so that it can be filled again with other bytes.
fn capacity(ring: &Ring, len: usize) -> usize {
    len.next_multiple_of((ring.size() as usize / 4).max(1))
}

impl Copies {
    /// Bytes that are copied now.
    pub(crate) fn len(&self) -> u64 {
        self.bytes
    }

    /// Bytes of memory that they take, and the spare chunks.
    pub(crate) fn memory(&self) -> usize {
        let chunks = self.chunks.iter().map(|(_, chunk)| chunk).chain(&self.spare).map(Vec::capacity).sum::<usize>();
        let lists = self.chunks.capacity() * size_of::<(u64, Vec<u8>)>() + self.spare.capacity() * size_of::<Vec<u8>>();
        chunks + lists
    }

    /// Bytes of memory that it takes to copy everything up to a position.
    pub(crate) fn more(&self, ring: &Ring, until: u64) -> usize {
        let len = (until - ring.tail()) as usize;
        let chunk = if self.spare.iter().any(|chunk| chunk.capacity() >= len) { 0 } else { capacity(ring, len) };
        // The list of chunks may have to grow.
        let list = if self.chunks.len() == self.chunks.capacity() { self.chunks.capacity().max(4) } else { 0 };
        chunk + list * size_of::<(u64, Vec<u8>)>()
    }

    /// Where the first copied byte lay.
    pub(crate) fn begin(&self) -> Option<u64> {
        self.chunks.front().map(|(begin, _)| *begin)
    }

    /// Copies everything up to a position, and gives it back to the kernel. Gives how many bytes that is.
    pub(crate) fn take(&mut self, ring: &mut Ring, until: u64) -> u64 {
        let tail = ring.tail();
        let len = until - tail;
        if len > 0 {
            let spare = self.spare.iter().position(|chunk| chunk.capacity() >= len as usize);
            let mut chunk = match spare {
                Some(at) => self.spare.swap_remove(at),
                None => Vec::with_capacity(capacity(ring, len as usize)),
            };
            let (first, second) = ring.bytes(tail, len).as_slices();
            chunk.extend_from_slice(first);
            chunk.extend_from_slice(second);
            self.chunks.push_back((tail, chunk));
            self.peak = self.peak.max(self.chunks.len());
            self.bytes += len;
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
            self.bytes -= chunk.len() as u64;
            chunk.clear();
            self.spare.push(chunk);
        }
    }

    /// Gives all spare chunks back to the allocator.
    pub(crate) fn clear_spare(&mut self) {
        self.spare = Vec::new();
    }

    /// Gives memory back that was not needed since this was called last.
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
    #[cold]
    pub(crate) fn get(&self, position: u64, len: u64) -> Bytes<'_> {
        let after = self.chunks.partition_point(|(begin, _)| *begin <= position);
        let (begin, chunk) = &self.chunks[after - 1];
        let from = (position - begin) as usize;
        Bytes::from(&chunk[from..from + len as usize])
    }
}
