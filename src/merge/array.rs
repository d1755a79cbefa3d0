//! The next places of all rings in order, merged ahead of their events.
//!
//! A loser tree (Knuth, The Art of Computer Programming, volume 3, 5.4.1) of the smallest keys. An entry is one number:
//! the distance of its key from the smallest of all, and below it its source. So a comparison is a minimum and a
//! maximum, ties are decided by the source, and no branch depends on which is smaller. A key that is too far from the
//! smallest waits for the next block.

#[cfg(all(test, not(loom)))]
mod tests;

use crate::merge::blocks::{After, Pieces};
use crate::merge::place::{Place, Tag};
use crate::merge::queue::{Far, Queue};

/// How many places are merged at a time, if there are few rings; and for each ring, if there are many.
const BLOCK: usize = 256;
const BLOCK_EACH: usize = 16;

/// Where the distance of a key begins in an entry. Below it are the number of the source and a bit for the heap.
const DISTANCE_AT: u32 = 16;

/// A distance that is too far.
const AHEAD: u64 = (1 << (u64::BITS - DISTANCE_AT)) - 1;

/// The entry of a source that has nothing left.
const EXHAUSTED: u64 = u64::MAX;

/// How many places of the last block say how the next block is merged.
const SAMPLE: usize = 32;

/// The places.
#[derive(Debug)]
pub(crate) struct Array {
    places: Vec<Place>,
    /// The next place to yield, and the end.
    at: usize,
    end: usize,
    /// Where plain places end that may be yielded without another look at them: at most `end`.
    plain_end: usize,
    /// The same for records of other kinds, which are picked one by one.
    others_end: usize,
    /// The bits of all places together.
    bits: u64,
    /// Reused by each merge.
    tree: Vec<u64>,
    far: Vec<Place>,
    sources: Vec<Source<'static>>,
    left: Vec<Left>,
    /// Places of the block that were left out.
    out: Vec<Place>,
    /// Which places are to be left out. Reused.
    picked: Vec<bool>,
}

/// A queue that is merged. Aligned so that one is found by a shift.
#[derive(Debug)]
#[repr(align(64))]
struct Source<'a> {
    pieces: Pieces<'a>,
    ring_index: usize,
    /// A bound of its keys. `None` for one that stands for no ring.
    largest: Option<u64>,
    /// Bytes of the places that were taken.
    bytes: u64,
}

/// What a merge leaves of a queue.
#[derive(Debug, Clone, Copy)]
struct Left {
    ring_index: usize,
    places: usize,
    bytes: u64,
}

impl Array {
    pub(crate) fn new(rings: usize) -> Self {
        let (at, end, plain_end, others_end, bits) = Default::default();
        let (places, tree, far, sources, left, out, picked) = Default::default();
        let mut array = Self { places, at, end, plain_end, others_end, bits, tree, far, sources, left, out, picked };
        array.resize(rings);
        array
    }

    /// Makes room for so many rings.
    pub(crate) fn resize(&mut self, rings: usize) {
        let places = BLOCK.max(BLOCK_EACH * rings);
        self.places.resize(places, Place::NONE);
        // The heap is one source more. Room for all of it now, so that no merge allocates.
        self.tree.reserve(2 * (rings + 1).next_power_of_two());
        // Each ring may have a loss that lies in no ring.
        self.far.reserve(places + rings);
        self.sources.reserve((rings + 1).next_power_of_two());
        self.left.reserve(rings);
    }

    /// Whether all places were yielded.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// The places that were not yielded.
    #[inline]
    pub(crate) fn left(&self) -> &[Place] {
        &self.places[self.at..self.end]
    }

    /// The place that was yielded last, if it is of this block.
    pub(crate) fn before(&self) -> Option<Place> {
        Some(self.places[self.at.checked_sub(1)?])
    }

    /// The next place, if it may be yielded without another look at it.
    #[inline(always)]
    pub(crate) fn next_plain(&self) -> Option<Place> {
        self.next_before(self.plain_end)
    }

    /// The plain places before an end, as [`Array::plain_end`] gave it, and the number of those that were yielded, to
    /// be counted up.
    #[inline(always)]
    pub(crate) fn walk(&mut self, plain_end: usize) -> (&[Place], &mut usize) {
        // The end may lie before the next place: other records were passed since.
        (self.places.get(self.at..plain_end).unwrap_or_default(), &mut self.at)
    }

    /// Takes the next place as yielded.
    #[inline(always)]
    pub(crate) fn pass(&mut self) {
        self.at += 1;
    }

    /// Says that so many of the next places are plain and may be yielded without another look at them.
    pub(crate) fn set_plain(&mut self, places: usize) {
        (self.plain_end, self.others_end) = (self.at + places, 0);
    }

    /// The next place, if it lies before the end of plain ones, as [`Array::plain_end`] gave it.
    #[inline(always)]
    pub(crate) fn next_before(&self, plain_end: usize) -> Option<Place> {
        if self.at < plain_end { self.places.get(self.at).copied() } else { None }
    }

    /// Whether all places are plain.
    pub(crate) fn are_plain(&self) -> bool {
        Place::are_plain(self.bits)
    }

    /// Says that so many of the next places are records of other kinds that may be yielded without another look at
    /// them.
    pub(crate) fn set_others(&mut self, places: usize) {
        self.others_end = self.at + places;
    }

    /// The next place, if it is one of those.
    pub(crate) fn next_other(&self) -> Option<Place> {
        self.next_before(self.others_end)
    }

    /// Where plain places end.
    #[inline]
    pub(crate) fn plain_end(&self) -> usize {
        self.plain_end
    }

    /// Says that so many of the next places are plain, as [`Array::set_plain`] does, and removes those that a function
    /// picks, as if they were yielded, so that nobody asks again. Returns how many. They are put back with smaller
    /// places that are not yielded.
    pub(crate) fn leave_out(&mut self, plain: usize, is_left_out: impl FnMut(Place) -> bool) -> usize {
        // First, because the function may panic: nothing has changed then, and it is asked again.
        self.picked.clear();
        self.picked.extend(self.places[self.at..self.at + plain].iter().copied().map(is_left_out));
        self.set_plain(plain);
        self.out.reserve_exact(self.places.len() - self.out.len());
        let mut kept = self.at;
        for at in self.at..self.end {
            let place = self.places[at];
            // Others are looked at when they are picked.
            if self.picked.get(at - self.at).is_some_and(|picked| *picked) {
                self.out.push(place);
            } else {
                self.places[kept] = place;
                kept += 1;
            }
        }
        let left_out = self.end - kept;
        (self.end, self.plain_end) = (kept, self.plain_end - left_out);
        left_out
    }

    /// Puts back what was merged and not yielded. Returns how many places it put back that were left out.
    pub(crate) fn put_back(&mut self, queues: &mut [Queue], far: &mut Far) -> usize {
        let left = &self.places[self.at..self.end];
        // A queue takes back only what it gave last. So what was left out between others goes back with them.
        let out = left.first().map_or(0, |first| self.out.len() - self.out.partition_point(|place| place < first));
        let (mut left, mut left_out) = (left.iter().rev().peekable(), self.out.iter().rev().take(out).peekable());
        // The last ones first, as they came.
        while let Some(place) =
            left_out.next_if(|out| left.peek().is_none_or(|place| place < out)).or_else(|| left.next())
        {
            queues[place.ring_index()].put_back(*place, far);
        }
        (self.at, self.end, self.plain_end, self.others_end) = (0, 0, 0, 0);
        out
    }

    /// Merges the next places with keys up to `frontier` into the array, which is empty. Returns whether there are any.
    #[inline(never)]
    pub(crate) fn merge(&mut self, queues: &mut [Queue], heap: &mut Far, frontier: u64) -> bool {
        let changes =
            self.places[..self.end.min(SAMPLE)].windows(2).filter(|pair| pair[0].ring_index() != pair[1].ring_index());
        let in_runs = changes.count() < self.end.min(SAMPLE) / 4;
        (self.at, self.end, self.plain_end, self.others_end) = (0, 0, 0, 0);
        self.out.clear();
        self.gather_far(queues, heap, frontier);
        let mut sources = anew(std::mem::take(&mut self.sources));
        for (ring_index, queue) in queues.iter_mut().enumerate() {
            queue.tidy();
            // The heap comes after the queue of its ring.
            // With nothing but a loss that lies in no ring it is a source, too: far_entry needs its tie.
            if !queue.is_empty() || queue.loose.is_some() {
                let largest = Some(queue.back().unwrap_or(0));
                sources.push(Source { pieces: queue.pieces(), ring_index, largest, bytes: 0 });
            }
        }
        let out = &mut self.places[..];
        let merged = match &mut sources[..] {
            [one] if self.far.is_empty() => one.merge(frontier, out),
            _ => LoserTree::of(&mut sources, &self.far, &mut self.tree, frontier)
                .map_or(Merged::default(), |all| if in_runs { all.merge_runs(out) } else { all.merge(out) }),
        };
        (self.end, self.bits) = (merged.places, merged.bits);
        self.left.clear();
        // What each source leaves is noted first: sources borrow the queues, which change next.
        self.left.extend(sources.iter().take_while(|source| source.largest.is_some()).map(Source::left));
        self.sources = anew(sources);
        for Left { ring_index, places, bytes } in &self.left {
            queues[*ring_index].leave(*places, *bytes);
        }
        if !self.far.is_empty() {
            self.return_far(merged.far, queues, heap);
        }
        self.end > 0
    }

    /// Takes the smallest places out of the heap, and the losses that lie in no ring.
    fn gather_far(&mut self, queues: &[Queue], heap: &mut Far, frontier: u64) {
        self.far.clear();
        while self.far.len() < self.places.len() && heap.peek().is_some_and(|place| place.key <= frontier) {
            self.far.extend(heap.pop());
        }
        let from_heap = self.far.len();
        self.far.extend(queues.iter().filter_map(|queue| queue.loose).filter(|place| place.key <= frontier));
        // Those of the heap are in order already.
        if self.far.len() > from_heap {
            self.far.sort_unstable();
        }
    }

    /// Records which of the places of the heap were merged, and puts the others back.
    #[cold]
    fn return_far(&mut self, merged: usize, queues: &mut [Queue], heap: &mut Far) {
        for (at, place) in self.far.iter().enumerate() {
            // It was copied, and stays in its queue until it is yielded.
            if place.tag() == Tag::LOOSE {
                continue;
            }
            if at < merged {
                queues[place.ring_index()].far_merged(*place);
            } else {
                heap.push(*place);
            }
        }
    }
}

/// An empty list of another lifetime in the same memory.
fn anew<'b>(mut sources: Vec<Source<'_>>) -> Vec<Source<'b>> {
    sources.clear();
    // The standard library collects in place. Otherwise each merge would allocate.
    sources.into_iter().map(|_| unreachable!("it is empty")).collect()
}

/// What was merged.
#[derive(Debug, Clone, Copy, Default)]
struct Merged {
    places: usize,
    /// How many of them came from the heap.
    far: usize,
    bits: u64,
}

impl Source<'_> {
    fn none() -> Self {
        Self { pieces: Pieces::none(), ring_index: 0, largest: None, bytes: 0 }
    }

    fn left(&self) -> Left {
        Left { ring_index: self.ring_index, places: self.pieces.len(), bytes: self.bytes }
    }

    /// Copies places with keys up to `frontier`, if there is no other source.
    fn merge(&mut self, frontier: u64, out: &mut [Place]) -> Merged {
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
struct LoserTree<'a, 'b> {
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
    is_plain: bool,
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
    fn of(sources: &'a mut Vec<Source<'b>>, far: &'a [Place], tree: &'a mut Vec<u64>, frontier: u64) -> Option<Self> {
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

    /// Merges place by place.
    fn merge(self, out: &mut [Place]) -> Merged {
        if self.is_plain { self.merge_sized::<false>(out) } else { self.merge_sized::<true>(out) }
    }

    /// The depth of the tree is known to the compiler, up to that of a large machine.
    fn merge_sized<const ANY: bool>(self, out: &mut [Place]) -> Merged {
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
    fn merge_runs(self, out: &mut [Place]) -> Merged {
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
