//! Bytes that were copied out of a ring to make room, and are read from there instead.

use crate::ring::{Bytes, Ring};
use std::collections::VecDeque;

/// What was copied out of one ring and is not yielded yet.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// By position, each where the one before ends or behind it.
    chunks: VecDeque<(u64, Box<[u8]>)>,
    bytes: u64,
}

impl Copies {
    /// Bytes that are copied now.
    pub(crate) fn len(&self) -> u64 {
        self.bytes
    }

    /// Copies everything up to the head that was seen, and gives it back to the kernel. Gives how many bytes that is.
    pub(crate) fn take(&mut self, ring: &mut Ring) -> u64 {
        let (tail, head) = (ring.tail(), ring.head());
        let len = head - tail;
        if len > 0 {
            self.chunks.push_back((tail, ring.bytes(tail, len).to_vec().into()));
            self.bytes += len;
            ring.release(head);
        }
        len
    }

    /// Forgets what lies wholly before a position.
    pub(crate) fn forget_before(&mut self, position: u64) {
        while let Some((begin, chunk)) = self.chunks.front()
            && begin + chunk.len() as u64 <= position
        {
            self.bytes -= chunk.len() as u64;
            self.chunks.pop_front();
        }
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
