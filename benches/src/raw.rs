//! Rings for a simple reader that trusts every byte, and other ways to merge them.

use crate::plan::step;
use itertools::Itertools;
use perfweave::RawRing;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes before the payload in a record with time and payload.
const PAYLOAD: u64 = 20;

fn shared(ring: &RawRing, offset: usize) -> &AtomicU64 {
    let word = ring.base.as_ptr().wrapping_add(offset).cast::<AtomicU64>();
    // SAFETY: `data_head`, `data_tail` or `data_offset` in the header page of a simulated ring.
    unsafe { &*word }
}

fn head(ring: &RawRing) -> &AtomicU64 {
    shared(ring, 1024)
}

fn tail(ring: &RawRing) -> &AtomicU64 {
    shared(ring, 1032)
}

/// The records of a ring: of each the key and the payload's first word.
struct Cursor {
    data: *const u8,
    size: usize,
    at: u64,
    end: u64,
}

impl Cursor {
    #[inline(always)]
    fn new(ring: &RawRing) -> Self {
        let data = ring.base.as_ptr().wrapping_add(shared(ring, 1040).load(Ordering::Relaxed) as usize);
        let (at, end) = (tail(ring).load(Ordering::Relaxed), head(ring).load(Ordering::Acquire));
        Self { data, size: ring.size, at, end }
    }

    #[inline(always)]
    fn word(&self, position: u64) -> u64 {
        let at = (position & (self.size as u64 - 1)) as usize;
        let word = self.data.wrapping_add(at).cast::<u64>();
        // SAFETY: below `size`, and aligned because records are.
        unsafe { word.read() }
    }

    /// The start of the payload is not aligned, and the ring's end may be inside.
    #[inline(always)]
    fn payload(&self) -> u64 {
        let at = ((self.at + PAYLOAD) & (self.size as u64 - 1)) as usize;
        if at + 8 > self.size {
            return self.cut();
        }
        let word = self.data.wrapping_add(at).cast::<u64>();
        // SAFETY: within the data area.
        unsafe { word.read_unaligned() }
    }

    #[cold]
    fn cut(&self) -> u64 {
        let [low, high] = [16, 24].map(|at| self.word(self.at + at));
        low >> 32 | high << 32
    }

    /// The bytes of the record that is next, in two parts if the ring's end is inside.
    #[inline(always)]
    fn copy(&self, size: u64, to: &mut Vec<u8>) {
        let at = (self.at & (self.size as u64 - 1)) as usize;
        let first = (size as usize).min(self.size - at);
        // SAFETY: within the data area, which has no writer now.
        let first_part = unsafe { std::slice::from_raw_parts(self.data.wrapping_add(at), first) };
        to.extend_from_slice(first_part);
        if first < size as usize {
            // SAFETY: likewise.
            let rest = unsafe { std::slice::from_raw_parts(self.data, size as usize - first) };
            to.extend_from_slice(rest);
        }
    }
}

impl Iterator for Cursor {
    type Item = (u64, u64);

    #[inline(always)]
    fn next(&mut self) -> Option<(u64, u64)> {
        (self.at < self.end).then(|| {
            let record = (self.word(self.at + 8), self.payload());
            self.at += self.word(self.at) >> 48;
            record
        })
    }
}

fn release(rings: &[RawRing]) {
    rings.iter().for_each(|ring| tail(ring).store(head(ring).load(Ordering::Relaxed), Ordering::Release));
}

/// Ring after ring, in no order.
#[inline(never)]
pub(crate) fn walk(rings: &[RawRing], base: u64) -> u64 {
    let mut sum = 0;
    for ring in rings {
        sum = Cursor::new(ring).fold(sum, |sum, (key, word)| step(sum, key - base, word));
    }
    release(rings);
    sum
}

/// A heap of iterators.
#[inline(never)]
pub(crate) fn kmerge(rings: &[RawRing], base: u64) -> u64 {
    let merged = rings.iter().map(Cursor::new).kmerge_by(|a, b| a.0 < b.0);
    let sum = merged.fold(0, |sum, (key, word)| step(sum, key - base, word));
    release(rings);
    sum
}

/// The smallest of all fronts, found by comparing all.
#[inline(never)]
pub(crate) fn scan(rings: &[RawRing], base: u64) -> u64 {
    let mut cursors: Vec<Cursor> = rings.iter().map(Cursor::new).collect();
    let mut fronts: Vec<(u64, u64)> = cursors.iter_mut().map(|cursor| cursor.next().unwrap_or((u64::MAX, 0))).collect();
    let mut sum = 0;
    loop {
        let (mut least, mut at) = (u64::MAX, 0);
        for (index, (key, _)) in fronts.iter().enumerate() {
            if *key < least {
                (least, at) = (*key, index);
            }
        }
        if least == u64::MAX {
            break;
        }
        sum = step(sum, least - base, fronts[at].1);
        fronts[at] = cursors[at].next().unwrap_or((u64::MAX, 0));
    }
    release(rings);
    sum
}

/// Copies of all records, and where each begins by its key. Kept, so that nothing is allocated once it has grown.
#[derive(Default)]
pub(crate) struct Copies {
    bytes: Vec<u8>,
    index: Vec<(u64, usize)>,
}

impl Copies {
    /// All copied, and sorted with a stable sort.
    #[inline(never)]
    pub(crate) fn sort(&mut self, rings: &[RawRing], base: u64) -> u64 {
        self.bytes.clear();
        self.index.clear();
        for ring in rings {
            let mut cursor = Cursor::new(ring);
            while cursor.at < cursor.end {
                let size = cursor.word(cursor.at) >> 48;
                self.index.push((cursor.word(cursor.at + 8), self.bytes.len()));
                cursor.copy(size, &mut self.bytes);
                cursor.at += size;
            }
        }
        release(rings);
        self.index.sort_by_key(|(key, _)| *key);
        self.index.iter().fold(0, |sum, (key, at)| {
            let payload = at + PAYLOAD as usize;
            let word = self.bytes[payload..payload + 8].try_into().map_or(0, u64::from_ne_bytes);
            step(sum, key - base, word)
        })
    }
}
