//! Counters of the machine that wrap: whether a number can still be told from the same number one round earlier.

use super::Merge;
use crate::order::index::Index;
use crate::order::stream::Stream;

impl Merge {
    /// Notices when so many records were lost that a counter of the machine may have wrapped around unnoticed.
    pub(super) fn watch_wraparound(&mut self) {
        let Stream { keys, indexes, sequence, frontier, wraparound, .. } = &mut self.stream;
        let Some(unwrap) = keys.unwrapping().filter(|unwrap| unwrap.bits() < u64::BITS) else { return };
        let (reach, ahead) = (unwrap.reach(), unwrap.unwrapped().saturating_add(1));
        // Losses that no LOST record has reported yet count too. So many are lost only in a full ring.
        let (mut lost, mut told) = (0, 0);
        for (lane, index) in self.rings.lanes.iter_mut().zip(&*indexes) {
            told += lane.losses.told();
            lost += if index.suspect { lane.losses.ask() } else { lane.losses.known() };
        }
        let next = match sequence {
            Some(sequence) => sequence.next(),
            None => frontier.edge().map(|edge| edge.saturating_add(1)),
        };
        // Each number that was drawn and may still come belongs to a record that is held, lost or in flight.
        let held = indexes.iter().map(Index::records).sum::<u64>();
        let drawn = held.saturating_add(self.window.refresh(next, ahead, lost, told));
        match self.anew {
            Some(_) if !self.whole => return,
            // The heads of the previous refresh were loaded when the wraparound was noticed. The next refresh finds only numbers drawn
            // after the loss.
            Some(lost) => {
                self.anew = None;
                self.window.begin_anew(lost);
            }
            None if drawn >= reach => {
                self.anew = Some(lost);
                self.wraparounds += 1;
                wraparound.get_or_insert(next.unwrap_or(ahead));
            }
            None => return,
        }
        keys.begin_anew();
        if let Some(sequence) = sequence {
            sequence.forget_next();
        }
    }
}
