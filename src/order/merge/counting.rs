//! Counters that wrap: whether they can still be told from themselves one round earlier.

use super::Merge;
use crate::order::index::Index;
use crate::order::passed::Look;
use crate::order::stream::Stream;

impl Merge {
    /// Checks whether a counter that wraps can still be told from itself one round earlier.
    pub(super) fn check_counting(&mut self) {
        let Stream { keys, indexes, sequence, frontier, stats, astray, .. } = &mut self.stream;
        let Some(unwrap) = keys.unwrapping().filter(|unwrap| unwrap.bits() < u64::BITS) else { return };
        let ahead = unwrap.unwrapped().saturating_add(1);
        // Losses that no LOST record reports yet count too. So many are lost only where a ring was full.
        let mut look = Look { ahead, told: 0, lost: 0 };
        for (lane, index) in self.rings.lanes.iter_mut().zip(&*indexes) {
            look.told += lane.losses.told();
            look.lost += if index.suspect { lane.losses.ask() } else { lane.losses.known() };
        }
        let next = match sequence {
            Some(sequence) => sequence.next(),
            None => frontier.edge().map(|edge| edge.saturating_add(1)),
        };
        // Each number that was drawn and may still come is that of a record which is held, was lost, or is in flight.
        let held = indexes.iter().map(Index::records).sum::<u64>();
        let lost = self.passed.look(next, look).max(self.passed.told(look.told));
        let drawn = held.saturating_add(lost);
        let begins = match self.anew {
            Some(_) if !self.whole => false,
            // The heads of this look were loaded after it had gone astray: what the next finds was drawn behind what was lost.
            Some(lost) => {
                self.anew = None;
                keys.go_astray();
                self.passed.begin_anew(lost);
                true
            }
            None if keys.drawn(drawn) => {
                self.anew = Some(look.lost);
                stats.ambiguous += 1;
                astray.get_or_insert(next.unwrap_or(ahead));
                true
            }
            None => false,
        };
        if let Some(sequence) = sequence.as_mut().filter(|_| begins) {
            sequence.go_astray();
        }
    }
}
