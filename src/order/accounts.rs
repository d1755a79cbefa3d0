//! The status: what came of what was written, ring by ring, and what the stream waits for.

use crate::account::cpu::Account;
use crate::account::status::Status;
use crate::order::cursor::Cursor;
use crate::order::stream::Stream;
use crate::rings::{CpuRing, Rings};
use crate::sequence::numbers::CpuNumbers;
use std::time::Duration;

/// A look at rings and stream that changes nothing.
pub(super) struct Accounts<'a> {
    pub(super) rings: &'a Rings,
    pub(super) stream: &'a Stream,
    /// The CPU of a ring whose reservation a proof or a report waits for.
    pub(super) uncommitted: Option<u32>,
    /// Whether to ask the kernel for its present counts.
    pub(super) asks: bool,
}

impl Accounts<'_> {
    /// Fills a status, in the memory of an earlier one.
    pub(super) fn fill(&self, status: &mut Status) {
        let Self { rings, stream, .. } = self;
        let (under, top) = (stream.under(), stream.top());
        let mut accounts = std::mem::take(&mut status.accounts);
        accounts.clear();
        *status = Status {
            accounts,
            numbers: under.cursors.iter().any(|cursor| cursor.numbers.is_some()),
            held: stream.held(),
            next: top.map(|top| (rings.cpu_rings[top.ring_index()].origin.cpu, top.key)),
            uncommitted: self.uncommitted,
            ..stream.counts
        };
        status.machine.missing = stream.dense.as_ref().map_or(0, |dense| dense.missing);
        for (ring_index, (cpu_ring, cursor)) in rings.cpu_rings.iter().zip(&under.cursors).enumerate() {
            status.add(self.account(ring_index, cpu_ring, cursor));
        }
        for (cpu, untraced) in rings.untraced.times() {
            status.add_untraced(cpu, untraced);
        }
        status.explain_machine();
        // LOST records and the recording's own count are of the same losses (`Recording::lost_in_all`).
        let told = rings.cpu_rings.iter().fold(0u64, |sum, cpu_ring| sum.saturating_add(cpu_ring.losses.reported));
        let untold = rings.recorded_lost().saturating_sub(told);
        (status.machine.lost, status.machine.unreported) = (untold, untold);
        if !self.asks {
            status.is_not_exact();
        }
    }

    /// The account of one ring.
    fn account(&self, ring_index: usize, cpu_ring: &CpuRing, cursor: &Cursor) -> Account {
        let (counts, yielded) = (cursor.counts, self.stream.records(ring_index));
        let numbers = cursor.numbers.as_ref().map(CpuNumbers::counts).unwrap_or_default();
        let total = if self.asks { cpu_ring.losses.read() } else { None };
        let reported = cpu_ring.losses.reported.saturating_add(cursor.losses.ahead);
        let lost = total.unwrap_or_else(|| if self.asks { 0 } else { cpu_ring.losses.known() }).max(reported);
        // What a reader that is dropped takes with it, and samples that the processor itself lost: no ring was full.
        let lost = lost.saturating_add(counts.dropped).saturating_add(cpu_ring.losses.samples);
        let unindexed = if self.asks { cpu_ring.records_from(cursor.cursor) } else { 0 };
        let missing = numbers.missing.saturating_add(cursor.numbers.as_ref().map_or(0, CpuNumbers::open));
        Account {
            cpu: Some(cpu_ring.origin.cpu),
            size: cpu_ring.ring.size(),
            most_used: counts.most_used,
            needed: counts.needed,
            yielded,
            held: (counts.indexed - yielded - counts.dropped).saturating_add(unindexed),
            lost,
            unreported: lost.saturating_sub(counts.lost),
            // What lies after a reservation that is not committed cannot be read.
            exact: total.is_some() && cpu_ring.ring.head() == cpu_ring.ring.reserved(),
            damaged: counts.corrupt,
            missing,
            // The last loss may have been drawn before the last record: by a writer that was interrupted.
            unexplained: missing.saturating_sub(lost),
            anomalies: numbers.anomalies.iter().sum(),
            late: counts.late,
            max_late: counts.max_late,
            repaired: counts.repaired,
            copied: counts.copied,
            untraced: Duration::ZERO,
        }
    }
}
