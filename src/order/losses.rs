//! The kernel is asked for losses that no record in a ring reports.

use crate::order::unmerged::Unmerged;
use crate::rings::CpuRing;

/// Which rings to ask about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    /// All, before a report, which comes after these losses. Records that are written later, with LOST records of the
    /// same losses, come after the report.
    BeforeReport,
    /// Those that may have dropped records since they were last asked about.
    Suspect,
    /// Of these the ones without held events. What programs count needs no pause in the stream: no LOST record will
    /// come.
    SuspectAndDry,
}

/// Asks, ring by ring, and makes a loss of what no LOST record has reported. Call it right after a refresh.
pub(super) fn read(which: Which, under: &mut Unmerged, cpu_rings: &mut [CpuRing]) {
    for ((cpu_ring, cursor), queue) in cpu_rings.iter_mut().zip(&mut under.cursors).zip(&mut under.queues) {
        let asks = match which {
            Which::All | Which::BeforeReport => true,
            Which::Suspect => cursor.losses.suspect,
            Which::SuspectAndDry => cursor.losses.suspect && (queue.held() == 0 || cpu_ring.losses.is_cheap),
        };
        if asks && let Some(total) = cpu_ring.losses.read() {
            cursor.losses.dropped(
                queue,
                (cursor.cursor, cursor.before),
                [total, cpu_ring.losses.reported],
                which == Which::BeforeReport,
            );
        }
    }
    if which == Which::BeforeReport {
        // Once more when the report is due: what was dropped meanwhile lies at the end of a ring in which nothing is
        // newer.
        suspect(under);
    }
}

/// Records may have been dropped from any ring.
pub(super) fn suspect(under: &mut Unmerged) {
    under.cursors.iter_mut().for_each(|cursor| cursor.losses.suspect = true);
}
