//! The account of a CPU: what was written into its rings, and what came of it.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// An account of everything that was written into one CPU's rings, as far as the crate can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Account {
    /// The CPU. `None` for all CPUs together.
    pub cpu: Option<u32>,
    /// Bytes of the data areas of its rings together.
    pub size: u64,
    /// The most bytes at any refresh that were unread, held or not yet given back: in its rings, and copied out of them
    /// ([`Order::most_held`](crate::Order::most_held)). Of several rings, the sum: they need not all have been so full at
    /// once.
    pub most_used: u64,
    /// The size at which its rings would have held all of that, with what the program had not taken yet, so that nothing
    /// had to be copied out of them: a power of two, or the sum of several rings'. Zero if nothing had to wait for its
    /// hold rule. It holds for the rates and proofs so far. If records were lost, more may be needed.
    pub needed: u64,
    /// Records yielded.
    pub yielded: u64,
    /// Records before the heads of the last refresh that are not yielded yet.
    pub held: u64,
    /// Records that the kernel dropped because of a full ring, paused output, or a size that can never fit. The loss of
    /// a record that did not fit an empty ring is reported with the next record, at the next flush, or here. Of a reader
    /// that was dropped, also records that it had copied out of a ring that outlives it, and not yielded.
    pub lost: u64,
    /// Lost records that no event has reported yet, since no record has followed them. Events have reported the others
    /// of `lost`.
    pub unreported: u64,
    /// Whether all losses are counted: `lost` is the kernel's own count (`PERF_FORMAT_LOST`), up to the last record. If
    /// not, it is the sum of the LOST records, without the latest losses: for adopted rings, kernels before 6.0, and
    /// events that sample `PERF_SAMPLE_READ`. Nothing counts what a BPF ring buffer refuses, unless its programs do
    /// ([`Rings::count_failures`](crate::Rings::count_failures)). False also while a program has not committed what it
    /// reserved there: what lies after that is not counted.
    pub exact: bool,
    /// Damage events. Each stands for at least one lost record.
    pub damaged: u64,
    /// Missing numbers: gaps that events have reported, and holes before held records, which may still be filled. 0
    /// without [`Order::numbers`](crate::Order::numbers).
    pub missing: u64,
    /// Missing numbers beyond those that `lost` explains: outputs that failed for another reason than a full ring,
    /// damage, or numbers drawn and not written. If records without numbers share the ring, their losses explain
    /// missing numbers too.
    pub unexplained: u64,
    /// Numbers that break their sequence ([`AnomalyKind`](crate::AnomalyKind)), also those that were not reported
    /// because they came in a row.
    pub anomalies: u64,
    /// Late records among those yielded ([`Certainty::Late`](crate::Certainty::Late)).
    pub late: u64,
    /// The largest lateness, in units of the key.
    pub max_late: u64,
    /// Records that were out of order inside their ring and were put in order.
    pub repaired: u64,
    /// Bytes copied out of the rings because they filled up ([`Order::most_held`](crate::Order::most_held)).
    pub copied: u64,
    /// How long the CPU has been online without being traced, at most: before the reader noticed it, or because its
    /// ring or events could not be opened ([`Untraced`](crate::Untraced)). The events of that time are not counted. For
    /// all CPUs together, the sum.
    pub untraced: Duration,
}

impl Account {
    /// How many records were written, or would have been written into a larger ring: yielded, held and lost records
    /// together.
    pub fn written(&self) -> u64 {
        self.yielded.saturating_add(self.held).saturating_add(self.lost)
    }

    /// Whether every missing number is explained, no damage occurred, and the CPU was traced all the time. Records that
    /// the kernel dropped count as explained. [`Account::is_complete`] says whether there were any.
    pub fn is_balanced(&self) -> bool {
        self.unexplained == 0 && self.damaged == 0 && self.untraced.is_zero()
    }

    /// Whether it is certain that everything written was yielded or is held: all losses are counted
    /// ([`Account::exact`]), and there was no loss, no missing number, no damage, and no time without tracing.
    pub fn is_complete(&self) -> bool {
        self.exact && self.misses_nothing_known()
    }

    /// This account with `refused` fewer unexplained numbers. `refused` is the programs' own count of outputs that
    /// failed without the kernel's counting them ([`Status`](crate::Status)). Outputs that failed after the last record
    /// seen leave no hole, so `refused` may be larger than `unexplained`.
    pub fn explained(mut self, refused: u64) -> Self {
        self.unexplained = self.unexplained.saturating_sub(refused);
        self
    }

    fn misses_nothing_known(&self) -> bool {
        self.lost == 0 && self.missing == 0 && self.is_balanced()
    }
}

impl Default for Account {
    /// An account of nothing, of all CPUs together.
    fn default() -> Self {
        Self {
            cpu: None,
            size: 0,
            most_used: 0,
            needed: 0,
            yielded: 0,
            held: 0,
            lost: 0,
            unreported: 0,
            exact: true,
            damaged: 0,
            missing: 0,
            unexplained: 0,
            anomalies: 0,
            late: 0,
            max_late: 0,
            repaired: 0,
            copied: 0,
            untraced: Duration::ZERO,
        }
    }
}

/// The sum of two accounts. The CPU stays that of the first.
impl AddAssign<&Self> for Account {
    fn add_assign(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.size, other.size),
            (&mut self.most_used, other.most_used),
            (&mut self.needed, other.needed),
            (&mut self.yielded, other.yielded),
            (&mut self.held, other.held),
            (&mut self.lost, other.lost),
            (&mut self.unreported, other.unreported),
            (&mut self.damaged, other.damaged),
            (&mut self.missing, other.missing),
            (&mut self.unexplained, other.unexplained),
            (&mut self.anomalies, other.anomalies),
            (&mut self.late, other.late),
            (&mut self.repaired, other.repaired),
            (&mut self.copied, other.copied),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.max_late = self.max_late.max(other.max_late);
        self.exact = self.exact && other.exact;
        self.untraced = self.untraced.saturating_add(other.untraced);
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cpu {
            Some(cpu) => write!(f, "CPU {cpu}: ")?,
            None => f.write_str("all: ")?,
        }
        let Self { yielded, held, lost, unreported, damaged, missing, unexplained, .. } = self;
        let about = if self.exact { "" } else { "at least " };
        write!(f, "{about}{} written: {yielded} yielded, {held} held", self.written())?;
        if self.misses_nothing_known() {
            return f.write_str(if self.exact { "; nothing is missing" } else { "; nothing is known to be missing" });
        }
        write!(f, ", {about}{lost} LOST by the kernel ({unreported} not reported yet)")?;
        if *missing > 0 {
            write!(f, ", {missing} numbers missing")?;
        }
        if self.is_balanced() {
            return f.write_str("; INCOMPLETE, but all of that is accounted for");
        }
        f.write_str("; INCOMPLETE, and NOT ACCOUNTED FOR: ")?;
        let mut separator = "";
        for (count, what) in [(unexplained, "missing numbers that no loss explains"), (damaged, "damaged stretches")] {
            if *count > 0 {
                write!(f, "{separator}{count} {what}")?;
                separator = ", ";
            }
        }
        if !self.untraced.is_zero() {
            write!(f, "{separator}{:?} in which nothing of an online CPU was traced", self.untraced)?;
        }
        Ok(())
    }
}
