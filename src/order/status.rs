//! The status of a merge, and losses that no record in a ring reports.

use crate::account::cpu::Account;
use crate::account::status::Status;
use crate::order::index::Index;
use crate::order::merge::Merge;
use crate::rings::CpuRing;
use crate::sequence::anomaly::AnomalyKind;
use crate::sequence::numbers::CpuNumbers;
use std::time::Duration;

impl Merge {
    /// Asks the kernel how many records it has dropped, and makes events of losses that no LOST record has reported,
    /// because no record followed them. Returns whether there are any. Interrupts every CPU.
    ///
    /// Call it right after a [`Merge::refresh`]. A [`Reader`](crate::Reader) does this when its stream runs dry and
    /// before it reports a flush.
    pub fn read_losses(&mut self) -> bool {
        self.read_losses_of(|_, _| true, false)
    }

    /// [`Merge::read_losses`] before a report, which comes after these losses. Records that are written later, with
    /// LOST records of the same losses, come after the report.
    pub(crate) fn read_losses_before_report(&mut self) {
        self.read_losses_of(|_, _| true, true);
        // Once more when the report is due: what was dropped meanwhile lies at the end of a ring in which nothing is
        // newer.
        self.suspect_losses();
    }

    /// [`Merge::read_losses`] for rings that may have dropped records: all of them, or those without held events. What
    /// programs count needs no pause in the stream: no LOST record will come.
    pub(crate) fn read_suspect_losses(&mut self, all: bool) -> bool {
        let may_ask = |cpu_ring: &CpuRing, index: &Index| all || index.len() == 0 || cpu_ring.losses.are_cheap();
        self.read_losses_of(|cpu_ring, index| index.suspect && may_ask(cpu_ring, index), false)
    }

    fn read_losses_of(&mut self, which: impl Fn(&CpuRing, &Index) -> bool, before_report: bool) -> bool {
        self.stream.sync();
        let held = self.held();
        for (cpu_ring, index) in self.rings.cpu_rings.iter_mut().zip(&mut self.stream.indexes) {
            if which(cpu_ring, index)
                && let Some(total) = cpu_ring.losses.read()
            {
                index.dropped(total, cpu_ring.losses.reported(), before_report);
            }
        }
        self.held() > held
    }

    /// Records may have been dropped from any ring, because output was paused.
    pub(crate) fn suspect_losses(&mut self) {
        self.stream.indexes.iter_mut().for_each(|index| index.suspect = true);
    }

    /// What came of what was written, the other counts so far, and what the stream waits for. It takes no system call,
    /// lacks the losses that nothing has reported yet, and lacks records that the last refresh left unindexed.
    pub fn status(&self) -> Status {
        let mut status = Status::default();
        self.fill_status(&mut status, false);
        status
    }

    /// [`Merge::status`] with an account of everything that was written, by the last refresh and the kernel's present
    /// counts. Interrupts every CPU.
    pub fn ledger(&self) -> Status {
        let mut status = Status::default();
        self.fill_status(&mut status, true);
        status
    }

    /// The status in the memory of an earlier one. `asks`: whether to ask the kernel for its present counts.
    pub(crate) fn fill_status(&self, status: &mut Status, asks: bool) {
        let (frontier, top) = (&self.stream.frontier, self.stream.top());
        let (seen, key) = (frontier.seen, frontier.key);
        let mut accounts = std::mem::take(&mut status.accounts);
        accounts.clear();
        *status = Status {
            accounts,
            numbers: self.stream.indexes.iter().any(|index| index.numbers.is_some()),
            held: self.held(),
            lag: seen.map_or(0, |seen| seen.saturating_sub(key.unwrap_or(0).max(self.stream.last()))),
            next: top.map(|top| (self.rings.cpu_rings[top.ring_index()].origin.cpu, top.key)),
            reserved: self.awaited().next().map(|cpu_ring| cpu_ring.origin.cpu),
            ..self.stream.counts
        };
        for (ring_index, (cpu_ring, index)) in self.rings.cpu_rings.iter().zip(&self.stream.indexes).enumerate() {
            status.add(self.account(ring_index, cpu_ring, index, asks));
        }
        for (cpu, untraced) in self.rings.untraced.times() {
            status.add_untraced(cpu, untraced);
        }
        status.explain_machine();
        if !asks {
            status.is_not_exact();
        }
    }

    /// The account of one ring.
    fn account(&self, ring_index: usize, cpu_ring: &CpuRing, index: &Index, asks: bool) -> Account {
        let (counts, numbers, yielded) = (index.counts(), index.number_counts(), self.stream.records(ring_index));
        let total = if asks { cpu_ring.losses.read() } else { None };
        let reported = cpu_ring.losses.reported().saturating_add(index.reported_ahead());
        let lost = total.unwrap_or_else(|| if asks { 0 } else { cpu_ring.losses.known() }).max(reported);
        let unindexed = if asks { cpu_ring.records_from(index.cursor()) } else { 0 };
        let missing = numbers.missing.saturating_add(index.numbers.as_ref().map_or(0, CpuNumbers::open));
        Account {
            cpu: Some(cpu_ring.origin.cpu),
            size: cpu_ring.ring.size(),
            most_used: counts.most_used,
            yielded,
            held: (counts.indexed - yielded).saturating_add(unindexed),
            lost,
            unreported: lost.saturating_sub(counts.lost),
            // What lies after a reservation that is not committed cannot be read.
            exact: total.is_some() && cpu_ring.ring.head() == cpu_ring.ring.reserved(),
            damaged: counts.corrupt,
            missing,
            // The last loss may have been drawn before the last record: by a writer that was interrupted.
            unexplained: missing.saturating_sub(lost),
            wraparounds: numbers.anomalies[AnomalyKind::Wraparound as usize],
            anomalies: numbers.anomalies.iter().sum(),
            late: counts.late,
            max_late: counts.max_late,
            early: counts.early,
            repaired: counts.repaired,
            copied: counts.copied,
            untraced: Duration::ZERO,
        }
    }
}
