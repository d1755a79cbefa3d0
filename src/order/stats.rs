//! Accounts of a merge: statistics, the ledger, and losses that no record in a ring reports.

use crate::account::ledger::{Account, Ledger};
use crate::account::stats::{Progress, RingStats, Stats};
use crate::order::index::Index;
use crate::order::merge::Merge;
use crate::rings::Lane;
use crate::sequence::anomaly::AnomalyKind;
use crate::sequence::numbers::{CpuNumbers, NumberCounts};
use crate::sequence::tracker::Step;

impl Merge {
    /// Asks the kernel how many records it has dropped, and makes events of losses that no LOST record has reported, because no record
    /// followed them. Returns whether there are any. Interrupts every CPU.
    ///
    /// Call it right after a [`Merge::refresh`]. A [`Reader`](crate::Reader) does this when its stream runs dry and
    /// before it reports a flush.
    pub fn read_losses(&mut self) -> bool {
        self.read_losses_of(|_, _| true, false)
    }

    /// [`Merge::read_losses`] before a report, which comes after these losses. Records that are written later, with LOST records of the same
    /// losses, come after the report.
    pub(crate) fn read_losses_before_report(&mut self) {
        self.read_losses_of(|_, _| true, true);
        // Once more when the report is due: what was dropped meanwhile lies at the end of a ring in which nothing is newer.
        self.suspect_losses();
    }

    /// [`Merge::read_losses`] for rings that may have dropped records: all of them, or those without held events. What programs count needs no
    /// pause in the stream: no LOST record will come.
    pub(crate) fn read_suspect_losses(&mut self, all: bool) -> bool {
        let may_ask = |lane: &Lane, index: &Index| all || index.len() == 0 || lane.losses.are_cheap();
        self.read_losses_of(|lane, index| index.suspect && may_ask(lane, index), false)
    }

    fn read_losses_of(&mut self, which: impl Fn(&Lane, &Index) -> bool, before_report: bool) -> bool {
        self.stream.sync();
        let held = self.held();
        for (lane, index) in self.rings.lanes.iter_mut().zip(&mut self.stream.indexes) {
            if which(lane, index)
                && let Some(total) = lane.losses.read()
            {
                index.dropped(total, lane.losses.told(), before_report);
            }
        }
        self.held() > held
    }

    /// Records may have been dropped from any ring, because output was paused.
    pub(crate) fn suspect_losses(&mut self) {
        self.stream.indexes.iter_mut().for_each(|index| index.suspect = true);
    }

    /// An account of everything that was written, by the last refresh and the kernel's present counts. Interrupts every
    /// CPU.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        self.fill_ledger(&mut ledger, true);
        ledger
    }

    /// The same in the memory of an earlier ledger. Unless the kernel is asked, it takes no system call, lacks the losses that nothing has
    /// told of yet, and lacks records that the last refresh left unindexed.
    pub(crate) fn fill_ledger(&self, ledger: &mut Ledger, asks: bool) {
        ledger.clear();
        for (rank, (lane, index)) in self.rings.lanes.iter().zip(&self.stream.indexes).enumerate() {
            let (counts, records) = (index.counts(), self.stream.records(rank));
            let total = if asks { lane.losses.read() } else { None };
            let told = lane.losses.told().saturating_add(index.foretold());
            let lost = total.unwrap_or_else(|| if asks { 0 } else { lane.losses.known() }).max(told);
            let unindexed = if asks { lane.records_from(index.cursor()) } else { 0 };
            let numbers = index.number_counts();
            let missing = numbers.missing.saturating_add(index.numbers.as_ref().map_or(0, CpuNumbers::open));
            ledger.add(Account {
                yielded: records,
                held: (counts.indexed - records).saturating_add(unindexed),
                lost,
                untold: lost.saturating_sub(counts.lost),
                // What lies after a reservation that is not committed cannot be read.
                exact: total.is_some() && lane.ring.head() == lane.ring.reserved(),
                damaged: counts.damaged,
                missing,
                // The last loss may have been drawn before the last record: by a writer that was interrupted.
                unexplained: missing.saturating_sub(lost),
                wraparounds: numbers.anomalies[AnomalyKind::Wraparound as usize],
                ..Account::new(Some(lane.origin.cpu))
            });
        }
        if self.stream.indexes.iter().any(|index| index.numbers.is_some()) {
            ledger.with_numbers();
        }
        for (cpu, untraced) in self.rings.untraced.times() {
            ledger.add_untraced(Account { untraced, ..Account::new(Some(cpu)) });
        }
        ledger.add_machine(self.stream.stats.missing);
    }

    /// Why the stream is delayed: what holds it up.
    pub fn progress(&self) -> Progress {
        let frontier = &self.stream.frontier;
        let (seen, frontier) = (frontier.seen, frontier.key);
        let top = self.stream.top();
        let fullest = self.ring_stats().filter(|ring| ring.unread > 0).max_by_key(|ring| ring.unread);
        Progress {
            seen,
            frontier,
            lag: seen.map_or(0, |seen| seen.saturating_sub(frontier.unwrap_or(0).max(self.stream.last()))),
            held: self.held(),
            held_bytes: (0..self.stream.indexes.len()).map(|rank| self.stream.unread(rank)).sum(),
            next: top.map(|top| (self.rings.lanes[top.rank()].origin.cpu, top.key)),
            fullest: fullest.map(|ring| ring.cpu),
            reserved: self.awaited().next().map(|lane| lane.origin.cpu),
            awaited: top.and_then(|top| match self.stream.sequence.as_ref()?.step(top.key) {
                Step::Ahead(first) => Some(first),
                _ => None,
            }),
        }
    }

    /// The counts of this merge so far.
    pub fn stats(&self) -> Stats {
        self.stream.indexes.iter().enumerate().fold(self.stream.stats, |all, (rank, index)| {
            let counts = index.counts();
            Stats {
                records: all.records + self.stream.records(rank),
                late: all.late + counts.late,
                max_late: all.max_late.max(counts.max_late),
                repaired: all.repaired + counts.repaired,
                lost: all.lost.saturating_add(counts.lost),
                damaged: all.damaged + counts.damaged,
                early: all.early + counts.early,
                copied: all.copied.saturating_add(counts.copied),
                missing: all.missing.saturating_add(index.number_counts().missing),
                ..all
            }
        })
    }

    /// The counts of each ring, in the order of CPUs.
    pub fn ring_stats(&self) -> impl Iterator<Item = RingStats> {
        self.rings.lanes.iter().zip(&self.stream.indexes).enumerate().map(|(rank, (lane, index))| {
            let counts = index.counts();
            let NumberCounts { missing, anomalies } = index.number_counts();
            RingStats {
                cpu: lane.origin.cpu,
                size: lane.ring.size(),
                most_used: counts.most_used,
                unread: self.stream.unread(rank),
                held: self.stream.held(rank),
                records: self.stream.records(rank),
                late: counts.late,
                early: counts.early,
                pressed: counts.pressed,
                copied: counts.copied,
                copied_now: lane.copies.len(),
                lost: counts.lost,
                missing,
                anomalies,
            }
        })
    }
}
