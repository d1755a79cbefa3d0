//! The min-heap over the rings' smallest keys: one entry a ring. The only place that knows which heap it is.

use binary_heap_plus::{BinaryHeap, MinComparator};

/// A ring's smallest key, and the ring's rank, which decides between equal keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Front {
    pub(crate) key: u64,
    pub(crate) rank: u32,
}

/// The rings' fronts. The smallest is kept outside the heap, so that a ring which offers several smaller keys in a row
/// is compared with the runner-up, once each, and nothing moves.
#[derive(Debug)]
pub(crate) struct Fronts {
    top: Option<Front>,
    rest: BinaryHeap<Front, MinComparator>,
}

impl Fronts {
    pub(crate) fn with_capacity(rings: usize) -> Self {
        Self { top: None, rest: BinaryHeap::with_capacity_min(rings) }
    }

    /// The smallest of all.
    #[inline]
    pub(crate) fn top(&self) -> Option<Front> {
        self.top
    }

    /// The smallest of all, if the top ring's is this.
    pub(crate) fn with_top_at(&self, top: Option<Front>) -> Option<Front> {
        let next = self.rest.peek().copied();
        top.into_iter().chain(next).min()
    }

    /// Up to where the top ring stays the top: its keys that are less.
    #[inline]
    pub(crate) fn until(&self) -> u64 {
        let (Some(top), Some(next)) = (self.top, self.rest.peek()) else { return u64::MAX };
        // Between equal keys the rank decides.
        next.key.saturating_add(u64::from(top.rank < next.rank))
    }

    /// Takes all rings' fronts anew.
    pub(crate) fn rebuild(&mut self, fronts: impl Iterator<Item = Front>) {
        let rest = std::mem::replace(&mut self.rest, BinaryHeap::from_vec_cmp(Vec::new(), MinComparator));
        let mut rest = rest.into_vec();
        rest.clear();
        rest.extend(fronts);
        self.rest = BinaryHeap::from_vec_cmp(rest, MinComparator);
        self.top = self.rest.pop();
    }

    /// The top ring's front was taken; its next key, if it has one.
    #[inline]
    pub(crate) fn advance(&mut self, key: Option<u64>) {
        let Some(top) = &mut self.top else { return };
        match key {
            Some(key) => {
                let next = Front { key, rank: top.rank };
                match self.rest.peek() {
                    Some(runner_up) if *runner_up < next => {
                        *top = *runner_up;
                        // Replaces the heap's top and sifts once; never pop and push.
                        if let Some(mut place) = self.rest.peek_mut() {
                            *place = next;
                        }
                    }
                    _ => top.key = key,
                }
            }
            None => self.top = self.rest.pop(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Front, Fronts};

    #[test]
    fn merges_like_a_sort_with_ties_by_rank() {
        let rings: [&[u64]; 4] = [&[3, 3, 9], &[1, 2, 3, 4, 5], &[], &[3, 8, 8, 8]];
        let mut at = [0; 4];
        let mut fronts = Fronts::with_capacity(4);
        fronts.rebuild((0u32..).zip(rings).filter_map(|(rank, keys)| Some(Front { key: *keys.first()?, rank })));
        let mut out = Vec::new();
        while let Some(Front { key, rank }) = fronts.top() {
            out.push((key, rank));
            let others = (0u32..).zip(rings).filter(|(other, _)| *other != rank);
            let runner_up = others.filter_map(|(other, keys)| Some((*keys.get(at[other as usize])?, other))).min();
            for key in (0..12).chain([u64::MAX - 1]) {
                assert_eq!(key < fronts.until(), runner_up.is_none_or(|next| (key, rank) < next), "{key}");
            }
            let ring = rank as usize;
            at[ring] += 1;
            fronts.advance(rings[ring].get(at[ring]).copied());
        }
        let mut sorted: Vec<_> =
            (0u32..).zip(rings).flat_map(|(rank, keys)| keys.iter().map(move |key| (*key, rank))).collect();
        sorted.sort();
        assert_eq!(out, sorted);
    }
}
