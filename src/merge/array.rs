//! The next places of all rings in order, merged ahead of their events.
//!
//! A block at a time: tree.rs merges what the queues and the heap have. What was not yielded can be put back.

#[cfg(all(test, not(loom)))]
mod tests;

use crate::merge::place::{Place, Tag};
use crate::merge::queue::{Far, Queue};
use crate::merge::tree::{Left, LoserTree, Merged, Source};

/// How many places are merged at a time, if there are few rings; and for each ring, if there are many.
const BLOCK: usize = 256;
const BLOCK_EACH: usize = 16;

/// How many places of the last block say how the next block is merged.
const SAMPLE: usize = 32;

/// The places.
#[derive(Debug, Default)]
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

impl Array {
    pub(crate) fn new(rings: usize) -> Self {
        let mut array = Self::default();
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
            _ => LoserTree::of(&mut sources, &self.far, &mut self.tree, frontier).map_or(
                Merged::default(),
                |all| match (in_runs, all.is_plain) {
                    (true, _) => all.merge_runs(out),
                    (false, true) => all.merge_sized::<false>(out),
                    (false, false) => all.merge_sized::<true>(out),
                },
            ),
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
