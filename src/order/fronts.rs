//! The smallest key of each ring, in a tournament that finds the ring with the smallest key of all.
//!
//! A loser tree (Knuth, The Art of Computer Programming, volume 3, 5.4.1). A ring with a new front plays one match on each level, and no
//! branch depends on the winner.

use std::hint::select_unpredictable;

/// A ring's smallest key, and the ring's rank, which decides between equal keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Front {
    pub(crate) key: u64,
    pub(crate) rank: u32,
}

/// A ring in the tournament. INVARIANT: the key of an empty ring is the largest possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Player {
    key: u64,
    /// Decides between equal keys: the rank, plus [`EMPTY`] if the ring has no record.
    tie: u64,
}

/// An empty ring loses against every ring with a record.
const EMPTY: u64 = 1 << 32;

impl Player {
    #[inline(always)]
    pub(crate) fn new(key: Option<u64>, rank: u32) -> Self {
        match key {
            Some(key) => Self { key, tie: rank.into() },
            None => Self { key: u64::MAX, tie: EMPTY | u64::from(rank) },
        }
    }

    #[inline(always)]
    fn rank(self) -> u32 {
        self.tie as u32
    }

    #[inline(always)]
    fn loses(self, other: Self) -> bool {
        if self.key == other.key { ties(self, other) } else { other.key < self.key }
    }
}

/// The match of equal keys, which are rare.
#[cold]
#[inline(never)]
fn ties(one: Player, other: Player) -> bool {
    other.tie < one.tie
}

/// The rings' fronts.
#[derive(Debug)]
pub(crate) struct Fronts {
    /// The smallest front.
    top: Player,
    /// The loser of each match from 1 on. The winner of match n comes from 2n and 2n + 1. The rings come after all matches.
    losers: Vec<Player>,
    rings: usize,
}

impl Fronts {
    pub(crate) fn new() -> Self {
        Self { top: Player::new(None, 0), losers: Vec::new(), rings: 0 }
    }

    /// The smallest front, unless all rings are empty.
    #[inline]
    pub(crate) fn top(&self) -> Option<Front> {
        (self.top.tie < EMPTY).then_some(Front { key: self.top.key, rank: self.top.rank() })
    }

    /// The first match of the ring on top.
    #[inline(always)]
    fn first_match(&self) -> usize {
        (self.rings + self.top.rank() as usize) / 2
    }

    /// Exclusive bound of the keys with which the top ring stays on top.
    #[inline]
    pub(crate) fn until(&self) -> u64 {
        let (mut runner_up, mut at) = (Player { key: u64::MAX, tie: u64::MAX }, self.first_match());
        while at > 0
            && let Some(loser) = self.losers.get(at)
        {
            runner_up = runner_up.min(*loser);
            at /= 2;
        }
        // Between equal keys the rank decides.
        runner_up.key.saturating_add(u64::from(self.top.tie < runner_up.tie))
    }

    /// Rebuilds the tournament from the fronts of all rings, by rank.
    pub(crate) fn rebuild(&mut self, keys: impl ExactSizeIterator<Item = Option<u64>>) {
        self.rings = keys.len();
        self.losers.clear();
        let none = Player::new(None, 0);
        self.losers.resize(self.rings, none);
        self.losers.extend((0..).zip(keys).map(|(rank, key)| Player::new(key, rank)));
        // Each match first has its winner. Its loser stays once the winner has moved up.
        for at in (1..self.rings).rev() {
            self.losers[at] = self.losers[2 * at].min(self.losers[2 * at + 1]);
        }
        self.top = self.losers.get(1).copied().unwrap_or(none);
        for at in 1..self.rings {
            self.losers[at] = self.losers[2 * at].max(self.losers[2 * at + 1]);
        }
    }

    /// The key with which the top ring got there.
    #[inline(always)]
    pub(crate) fn top_key(&self) -> u64 {
        self.top.key
    }

    /// The top ring's front was taken. `next` is its new front.
    #[inline(always)]
    pub(crate) fn advance(&mut self, next: Player) {
        let (mut at, mut winner) = (self.first_match(), next);
        while at > 0
            && let Some(loser) = self.losers.get_mut(at)
        {
            // No branch: the winner is unpredictable.
            let other = *loser;
            let loses = winner.loses(other);
            loser.key = select_unpredictable(loses, winner.key, other.key);
            loser.tie = select_unpredictable(loses, winner.tie, other.tie);
            winner.key = select_unpredictable(loses, other.key, winner.key);
            winner.tie = select_unpredictable(loses, other.tie, winner.tie);
            at /= 2;
        }
        self.top = winner;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Front, Fronts, Player};

    #[test]
    fn merges_like_a_sort_with_ties_by_rank() {
        let rings: [&[u64]; 4] = [&[3, 3, 9], &[1, 2, 3, 4, 5], &[], &[3, 8, 8, 8]];
        let mut at = [0; 4];
        let mut fronts = Fronts::new();
        fronts.rebuild(rings.iter().map(|keys| keys.first().copied()));
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
            fronts.advance(Player::new(rings[ring].get(at[ring]).copied(), rank));
        }
        let mut sorted: Vec<_> =
            (0u32..).zip(rings).flat_map(|(rank, keys)| keys.iter().map(move |key| (*key, rank))).collect();
        sorted.sort();
        assert_eq!(out, sorted);
    }
}
