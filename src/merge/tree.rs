//! The smallest keys of all sources, one after the other.
//!
//! A loser tree (Knuth, The Art of Computer Programming, volume 3, 5.4.1) of the smallest keys. An entry is one number:
//! the distance of its key from the smallest of all, and below it its source. So a comparison is a minimum and a
//! maximum, ties are decided by the source, and no branch depends on which is smaller. A key that is too far from the
//! smallest waits for the next block.

use crate::merge::blocks::{After, Pieces};
use crate::merge::place::Place;

/// Where the distance of a key begins in an entry. Below it are the number of the source and a bit for the heap.
const DISTANCE_AT: u32 = 16;

/// A distance that is too far.
const AHEAD: u64 = (1 << (u64::BITS - DISTANCE_AT)) - 1;

/// The entry of a source that has nothing left.
const EXHAUSTED: u64 = u64::MAX;

/// A queue that is merged. Aligned so that one is found by a shift.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Source<'a> {
    pub(super) pieces: Pieces<'a>,
    pub(super) ring_index: usize,
    /// A bound of its keys. `None` for one that stands for no ring.
    pub(super) largest: Option<u64>,
    /// Bytes of the places that were taken.
    pub(super) bytes: u64,
}

/// What a merge leaves of a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    pub(super) ring_index: usize,
    pub(super) places: usize,
    pub(super) bytes: u64,
}

/// What was merged.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Merged {
    pub(super) places: usize,
    /// How many of them came from the heap.
    pub(super) far: usize,
    pub(super) bits: u64,
}

impl Source<'_> {
    fn none() -> Self {
        Self { pieces: Pieces::none(), ring_index: 0, largest: None, bytes: 0 }
    }

    pub(super) fn left(&self) -> Left {
        Left { ring_index: self.ring_index, places: self.pieces.len(), bytes: self.bytes }
    }

    /// Copies places with keys up to `frontier`, if there is no other source.
    pub(super) fn merge(&mut self, frontier: u64, out: &mut [Place]) -> Merged {
        let (mut places, mut bits) = (0, 0);
        while places < out.len() {
            let piece = self.pieces.piece.as_slice();
            let some = &piece[..piece.len().min(out.len() - places)];
            let some = &some[..some.partition_point(|place| place.key <= frontier)];
            out[places..places + some.len()].copy_from_slice(some);
            bits |= some.iter().fold(0, |bits, place| bits | place.bits());
            self.bytes += some.iter().map(|place| place.size()).sum::<u64>();
            places += some.len();
            let is_whole = some.len() == piece.len();
            self.pieces.piece = piece[some.len()..].iter();
            // A merge ends after the part of the ring (Queue::part), so that bytes are given back in between.
            if !is_whole || !matches!(self.pieces.refill(), After::Piece(_)) {
                break;
            }
        }
        Merged { places, far: 0, bits }
    }
}

/// The smallest keys of all sources, as a loser tree.
pub(super) struct LoserTree<'a, 'b> {
    sources: &'a mut [Source<'b>],
    far: &'a [Place],
    /// The larger entry of each node, the loser, from node 1 on. Below node n are 2n and its successor, and the smaller
    /// one goes up, the winner. The sources are the leaves, after all nodes, and the heap comes after them.
    tree: &'a mut [u64],
    winner: u64,
    /// The smallest key at first.
    base: u64,
    /// Entries from here on wait: those above the frontier, and those after the last piece that is to be taken.
    limit: u64,
    /// How many sources are queues. Behind them are empty ones, one for each leaf.
    queues: usize,
    /// Whether all keys are near the smallest, and none is in the heap.
    pub(super) is_plain: bool,
}

/// The entry of a key.
#[inline(always)]
fn entry(base: u64, key: u64, tie: u64) -> u64 {
    // No key is smaller than the smallest.
    key.wrapping_sub(base).min(AHEAD) << DISTANCE_AT | tie
}

/// The entry of a key that is near the smallest.
#[inline(always)]
fn near_entry(base: u64, key: u64, tie: u64) -> u64 {
    key.wrapping_sub(base) << DISTANCE_AT | tie
}

/// What decides between equal keys of queues. That of the heap is odd.
#[inline(always)]
fn tie(source: usize) -> u64 {
    // It fits below the distance: there are at most 2^14 rings.
    (source as u64) << 1
}

/// The source of an entry that is not the heap's.
#[inline(always)]
fn source_of(entry: u64) -> usize {
    usize::from(entry as u16 >> 1)
}

impl<'a, 'b> LoserTree<'a, 'b> {
    /// Builds the tree. `None` if no key may leave.
    pub(super) fn of(
        sources: &'a mut Vec<Source<'b>>,
        far: &'a [Place],
        tree: &'a mut Vec<u64>,
        frontier: u64,
    ) -> Option<Self> {
        let first = |source: &Source<'_>| source.pieces.piece.as_slice().first().map(|place| place.key);
        let base = sources.iter().filter_map(first).chain(far.first().map(|place| place.key)).min()?;
        // At most the entry of a key that is too far: all of those are alike, and wait.
        let limit = frontier.checked_sub(base)?.saturating_add(1).min(AHEAD) << DISTANCE_AT;
        let leaves = (sources.len() + usize::from(!far.is_empty())).next_power_of_two();
        tree.clear();
        tree.resize(leaves, EXHAUSTED);
        let entry_of = |(at, source)| first(source).map_or(EXHAUSTED, |key| entry(base, key, tie(at)));
        tree.extend(sources.iter().enumerate().map(entry_of));
        tree.extend(far.first().map(|place| far_entry(sources, base, place)));
        tree.resize(2 * leaves, EXHAUSTED);
        // Each node first has its winner. Its loser stays once the winner has moved up.
        for at in (1..leaves).rev() {
            tree[at] = tree[2 * at].min(tree[2 * at + 1]);
        }
        let winner = tree[1];
        for at in 1..leaves {
            tree[at] = tree[2 * at].max(tree[2 * at + 1]);
        }
        // Each entry is the winner now, or the loser of a node.
        tree.truncate(leaves);
        let (queues, largest) = (sources.len(), sources.iter().filter_map(|source| source.largest).max());
        sources.resize_with(leaves, Source::none);
        // No underflow: the source that has `base` has a largest key that is no smaller.
        let is_plain = far.is_empty() && largest.is_none_or(|largest| largest - base < AHEAD);
        Some(Self { sources, far, tree, winner, base, limit, queues, is_plain })
    }

    /// Merges place by place. `ANY`: keys may be far away, or in the heap. The depth of the tree is known to the
    /// compiler, up to that of a large machine.
    pub(super) fn merge_sized<const ANY: bool>(self, out: &mut [Place]) -> Merged {
        match self.tree.len() {
            2 => self.merge_leaves::<2, ANY>(out),
            4 => self.merge_leaves::<4, ANY>(out),
            8 => self.merge_leaves::<8, ANY>(out),
            16 => self.merge_leaves::<16, ANY>(out),
            32 => self.merge_leaves::<32, ANY>(out),
            64 => self.merge_leaves::<64, ANY>(out),
            128 => self.merge_leaves::<128, ANY>(out),
            256 => self.merge_leaves::<256, ANY>(out),
            _ => self.merge_runs(out),
        }
    }

    /// Merges place by place, with so many leaves. `ANY`: keys may be far away, or in the heap.
    #[inline(never)]
    fn merge_leaves<const LEAVES: usize, const ANY: bool>(self, out: &mut [Place]) -> Merged {
        let Self { sources, far, tree, mut winner, base, mut limit, queues, .. } = self;
        let none = Merged::default();
        let (Some(sources), Some(tree)) = (sources.first_chunk_mut(), tree.first_chunk_mut()) else { return none };
        let (sources, tree): (&mut [Source<'_>; LEAVES], &mut [u64; LEAVES]) = (sources, tree);
        let entry = |key, tie| if ANY { entry(base, key, tie) } else { near_entry(base, key, tie) };
        let (most, mut words, mut left) = (out.len(), 0, far.iter());
        let mut out = out.iter_mut();
        while winner < limit
            && let Some(to) = out.next()
        {
            let (at, next) = if ANY && winner & 1 == 1 {
                // Never: an entry below the limit has a place. So it is at the source.
                let Some(place) = left.next() else { break };
                *to = *place;
                let next = left.as_slice().first();
                (queues, next.map_or(EXHAUSTED, |next| far_entry(&sources[..queues], base, next)))
            } else {
                // The remainder changes nothing. It shows the compiler that there is such a source.
                let at = source_of(winner) % LEAVES;
                let source = &mut sources[at];
                let Some(place) = source.pieces.piece.next() else { break };
                *to = *place;
                source.bytes += place.size();
                let next = match source.pieces.piece.as_slice().first() {
                    Some(next) => entry(next.key, tie(at)),
                    None => source.refill(base, tie(at), &mut limit),
                };
                (at, next)
            };
            words |= to.bits();
            winner = next;
            for level in 1..=LEAVES.ilog2() {
                let loser = &mut tree[(LEAVES | (at % LEAVES)) >> level];
                (winner, *loser) = (winner.min(*loser), winner.max(*loser));
            }
        }
        let (places, far) = (most - out.len(), far.len() - left.len());
        Merged { places, far, bits: words }
    }

    /// Merges runs: as many places of a source as come before all others.
    #[inline(never)]
    pub(super) fn merge_runs(self, out: &mut [Place]) -> Merged {
        let Self { sources, far, tree, mut winner, base, mut limit, queues, .. } = self;
        let leaves = tree.len();
        let (mut places, mut words, mut taken) = (0, 0, 0);
        while winner < limit && places < out.len() {
            let is_far = winner & 1 == 1;
            let at = if is_far { queues } else { source_of(winner) };
            let mut rival = limit;
            let mut node = (leaves + at) / 2;
            // The smallest entry of all others has lost to the winner, so it lies on the path of that.
            while node > 0 {
                rival = rival.min(tree[node]);
                node /= 2;
            }
            if is_far {
                out[places] = far[taken];
                words |= far[taken].bits();
                (places, taken) = (places + 1, taken + 1);
                winner = far.get(taken).map_or(EXHAUSTED, |next| far_entry(&sources[..queues], base, next));
            } else {
                let source = &mut sources[at];
                let run = source.take_run(&mut out[places..], base, rival, tie(at), &mut limit);
                (places, words, winner) = (places + run.places, words | run.words, run.next);
            }
            winner = replay(tree, (leaves + at) / 2, winner);
        }
        Merged { places, far: taken, bits: words }
    }
}

/// A run: places of one source that come before all others.
struct Run {
    places: usize,
    words: u64,
    /// The source's next entry.
    next: u64,
}

impl Source<'_> {
    /// The next entry after a piece. One of which no more is to be taken ends the merge when it is next.
    #[cold]
    #[inline(never)]
    fn refill(&mut self, base: u64, tie: u64, limit: &mut u64) -> u64 {
        match self.pieces.refill() {
            After::Piece(place) => entry(base, place.key, tie),
            After::Enough(place) => {
                let entry = entry(base, place.key, tie);
                *limit = entry.min(*limit);
                entry
            }
            After::Nothing => EXHAUSTED,
        }
    }

    /// Copies the places whose entries are smaller than another: a run.
    #[inline]
    fn take_run(&mut self, out: &mut [Place], base: u64, rival: u64, tie: u64, limit: &mut u64) -> Run {
        // Of equal keys the smaller tie comes first. A distance that is too far says nothing.
        let distance = rival >> DISTANCE_AT;
        let comes_first = distance < AHEAD && tie < rival & ((1 << DISTANCE_AT) - 1);
        // No underflow: the winner is smaller than the rival. If that is at distance 0, the winner comes first.
        let largest = base.saturating_add(distance - u64::from(!comes_first));
        let (mut places, mut words, mut bytes) = (0, 0, 0);
        let next = loop {
            let piece = self.pieces.piece.as_slice();
            let mut some = 0;
            for (to, place) in out[places..].iter_mut().zip(piece) {
                if place.key > largest {
                    break;
                }
                *to = *place;
                words |= place.bits();
                bytes += place.size();
                some += 1;
            }
            places += some;
            self.pieces.piece = piece[some..].iter();
            if let Some(place) = piece.get(some) {
                break entry(base, place.key, tie);
            }
            let next = self.refill(base, tie, limit);
            // A refill may have lowered the limit.
            if next >= rival.min(*limit) || places == out.len() {
                break next;
            }
        };
        self.bytes += bytes;
        Run { places, words, next }
    }
}

/// The entry of the heap: between equal keys it comes right after the queue of its ring.
#[cold]
fn far_entry(sources: &[Source<'_>], base: u64, place: &Place) -> u64 {
    let at = sources.partition_point(|source| source.ring_index <= place.ring_index());
    // Its ring is among the sources.
    entry(base, place.key, tie(at.saturating_sub(1)) | 1)
}

/// Compares the next entry of a source again in each node, from its first one on. Returns the winner.
#[inline(always)]
fn replay(tree: &mut [u64], first: usize, entry: u64) -> u64 {
    let (mut winner, mut node) = (entry, first);
    while let Some(loser) = tree.get_mut(node) {
        (winner, *loser) = (winner.min(*loser), winner.max(*loser));
        node /= 2;
        if node == 0 {
            break;
        }
    }
    winner
}
