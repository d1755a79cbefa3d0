//! Reservations in BPF ring buffers for which a proof or a report waits.

use crate::order::cursor::Cursor;
use crate::order::unmerged::Unmerged;
use crate::rings::CpuRing;

/// A note of how far rings are reserved ([`Cursor::sighted`]), until everything before is indexed.
///
/// A record that a program has reserved and not committed hides what comes after it in its ring. So under a rule that
/// proves, the frontier waits until everything is indexed that was reserved when the heads were loaded. Later
/// reservations do not count: their programs would keep it waiting for ever.
#[derive(Debug, Default)]
pub(super) struct Sighting {
    /// The clock reading of the refresh that made the note.
    since: Option<u64>,
}

impl Sighting {
    /// Whether refreshes have indexed everything that was written or reserved when the first of them began. Gives the
    /// clock reading of that one. `now` is that of the last refresh, which was whole.
    pub(super) fn refreshed(&mut self, now: u64, under: &mut Unmerged, cpu_rings: &[CpuRing]) -> Option<u64> {
        if !under.frontier.rule.is_proof() {
            return Some(now);
        }
        let since = *self.since.get_or_insert_with(|| {
            for (cpu_ring, cursor) in cpu_rings.iter().zip(&mut under.cursors) {
                cursor.sighted = cpu_ring.ring.reserved();
            }
            now
        });
        under.cursors.iter().all(Cursor::is_past_sighted).then(|| {
            self.since = None;
            since
        })
    }

    /// A proof has ended: what proves is a refresh of heads that are loaded after it.
    pub(super) fn forget(&mut self) {
        self.since = None;
    }
}
