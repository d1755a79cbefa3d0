//! The walk over plain records: the hot loop of indexing.

use crate::merge::place::Place;
use crate::merge::{REACH, REACH_BYTES, SLOTS};
use crate::order::key::Plain;
use crate::ring::{Framing, prefetch};

/// How many bytes ahead to prefetch while indexing: twenty to a hundred records, which hides the latency of another
/// CPU's cache.
const AHEAD: usize = 4096;

/// A walk over plain records.
pub(super) struct Walk<'a> {
    /// The bytes that are left, and the word of their position.
    pub(super) left: &'a [u8],
    pub(super) word: u64,
    /// The largest key so far, and that of the last record.
    pub(super) back: u64,
    pub(super) last: u64,
    /// Bytes of the longest record so far.
    pub(super) longest: u64,
    /// The first place of the block that is held.
    pub(super) floor: usize,
    /// Smaller keys go into the heap.
    pub(super) far_end: u64,
    pub(super) repaired: usize,
}

impl Walk<'_> {
    /// Fills a block from a place on, up to a record that is not plain or whose place is not near. Returns where it
    /// ends. A separate function, so that its state stays in registers.
    #[inline(never)]
    pub(super) fn index<F: Framing>(&mut self, plain: &Plain, block: &mut [Place; SLOTS], begin: usize) -> usize {
        let plain = *plain;
        let Self { mut left, mut word, mut back, mut last, mut longest, floor, far_end, mut repaired } = *self;
        let mut end = begin;
        while end < SLOTS
            && let Some((header, key, rest)) = plain.split::<F>(left)
        {
            let size = header.size().into();
            let place = Place::plain(key, word, size);
            if key >= back {
                block[end] = place;
                back = key;
            } else if key >= far_end && shift_in(block, floor, end, place) {
                repaired += 1;
            } else {
                // The general way reaches the block before, and the heap.
                break;
            }
            prefetch(rest, AHEAD);
            last = key;
            longest = longest.max(size);
            // The low bits do not wrap: the bytes end before that.
            word = Place::behind(word, size);
            left = rest;
            end += 1;
        }
        *self = Self { left, word, back, last, longest, floor, far_end, repaired };
        end
    }
}

/// Puts a place among those before it in its block, if its place is near and in this block. Returns whether it is.
#[inline]
fn shift_in(block: &mut [Place; SLOTS], floor: usize, end: usize, place: Place) -> bool {
    let mut to = end;
    loop {
        if to == floor {
            // Before the block there may be more.
            if floor == 0 {
                return false;
            }
            break;
        }
        let before = block[to - 1];
        // Of equal keys the one that lies behind comes later.
        if before.key <= place.key {
            break;
        }
        // The bytes bound how far the scan for the tail goes on (I6).
        if end - to == REACH || place.ahead_of(before) > REACH_BYTES {
            return false;
        }
        to -= 1;
    }
    block.copy_within(to..end, to + 1);
    block[to] = place;
    true
}
