//! The sequence numbers of one ring's records, CPU by CPU, and which are missing.

#[cfg(all(test, not(loom)))]
mod tests;

use super::anomaly::{AnomalyKind, KINDS};
use super::ranges::Ranges;
use super::tracker::{Step, Tracker};
use super::wrap::{MIDDLE, Unwrap};

/// How far counting moves up when it starts again, so that earlier numbers never recur.
const APART: u64 = 1 << 20;

/// How many holes fit into the tree's first node, which is kept.
const FIRST_NODE: usize = 4;

/// How far a number may be from the position that losses predict: interrupts write numbers around it.
const NEAR: u64 = 8;

/// More CPUs than any kernel has (`CONFIG_NR_CPUS`): a record that names a larger one has no number.
const MOST_CPUS: usize = 8192;

/// The numbers in one ring: those of its CPU, or in a ring buffer that CPUs share, those of each CPU.
#[derive(Debug)]
pub(crate) struct CpuNumbers {
    /// By CPU, if the ring is shared. Otherwise one.
    cpus: Vec<Numbers>,
    is_shared: bool,
    bits: u32,
    first: Option<u64>,
    /// The positions before which records were seen when a proof began: the last that began, the last that ended, and
    /// the one that a refresh of all rings has followed.
    began_at: u64,
    ended_at: u64,
    proven_at: u64,
}

impl CpuNumbers {
    /// Counters of `bits` bits, and their first number, if it is known.
    pub(crate) fn new(bits: u32, first: Option<u64>, is_shared: bool) -> Self {
        let cpus = if is_shared { Vec::new() } else { vec![Numbers::new(bits, first)] };
        Self { cpus, is_shared, bits, first, began_at: 0, ended_at: 0, proven_at: 0 }
    }

    /// A proof begins, and everything before a position was seen.
    pub(crate) fn proof_begins(&mut self, position: u64) {
        self.began_at = position;
    }

    /// The proof that began last has ended.
    pub(crate) fn proof_ended(&mut self) {
        self.ended_at = self.began_at;
    }

    /// A refresh of all rings has found what that proof proves.
    pub(crate) fn refreshed(&mut self) {
        self.proven_at = self.ended_at;
    }

    /// Whether the record at a position was seen before a proof began that has ended: each number that was drawn before
    /// its own has come by now, or never comes.
    pub(crate) fn are_proven_before(&self, position: u64) -> bool {
        position < self.proven_at
    }

    fn at(&self, cpu: u32) -> usize {
        if self.is_shared { cpu as usize } else { 0 }
    }

    /// The numbers of a CPU.
    pub(crate) fn of(&self, cpu: u32) -> Option<&Numbers> {
        self.cpus.get(self.at(cpu))
    }

    /// The same, mutable.
    pub(crate) fn of_mut(&mut self, cpu: u32) -> Option<&mut Numbers> {
        let at = self.at(cpu);
        self.cpus.get_mut(at)
    }

    /// Takes the number of a CPU's record. `lost` is the sum of the LOST records since the ring's last number. `None`
    /// if there is no such CPU.
    #[inline]
    pub(crate) fn take(&mut self, cpu: u32, number: u64, lost: u64) -> Option<Said> {
        let at = self.at(cpu);
        if at >= self.cpus.len() {
            self.begin(at)?;
        }
        self.cpus.get_mut(at).map(|numbers| numbers.take(number, lost))
    }

    /// The first number of a CPU of a shared ring.
    #[cold]
    fn begin(&mut self, cpu: usize) -> Option<()> {
        let (bits, first) = (self.bits, self.first);
        (cpu < MOST_CPUS).then(|| self.cpus.resize_with(cpu + 1, || Numbers::new(bits, first)))
    }

    /// The counts of all of them.
    pub(crate) fn counts(&self) -> NumberCounts {
        self.cpus.iter().fold(NumberCounts::default(), |mut all, Numbers { counts, .. }| {
            all.missing = all.missing.saturating_add(counts.missing);
            all.anomalies.iter_mut().zip(counts.anomalies).for_each(|(all, one)| *all += one);
            all
        })
    }

    /// Numbers that are missing so far and not declared yet.
    pub(crate) fn open(&self) -> u64 {
        self.cpus.iter().map(|numbers| numbers.open).fold(0, u64::saturating_add)
    }

    /// The most bytes that a number adds to the holes.
    pub(crate) const EACH: usize = Ranges::EACH;

    /// Bytes that the holes take beyond the first node of each tree.
    pub(crate) fn memory(&self) -> usize {
        self.cpus.iter().map(Numbers::memory).sum()
    }
}

/// The numbers of one CPU, one for each record, and the holes in them.
///
/// It gets numbers as records are indexed, in the order of the ring. Programs interrupt each other between counting and
/// writing. So a number that is too large leaves a hole, and later records may fill it. If a hole is still there when
/// the record that showed it is yielded, it is a gap: under the fence rule no record can fill it any more. Any number
/// takes a time that grows with the logarithm of the open holes, and adds at most one range to them.
#[derive(Debug)]
pub(crate) struct Numbers {
    unwrap: Unwrap,
    tracker: Tracker,
    /// The number that came last.
    last: u64,
    /// The first number, as it was written.
    first: u64,
    /// Numbers that are missing so far, and may still come.
    holes: Ranges,
    /// How many numbers these are.
    open: u64,
    /// Whether numbers before the first may have been drawn earlier: the first record may come from an interrupt.
    began: bool,
    counts: NumberCounts,
}

/// Numbers that a record showed to be missing, extended to 64 bits. Some may have come since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hole {
    first: u64,
    last: u64,
    /// The anchor with which they are wrapped.
    anchor: u64,
}

impl Hole {
    pub(crate) fn count(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// The counts of numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NumberCounts {
    /// Numbers declared missing that did not come later.
    pub(crate) missing: u64,
    /// Anomalies of each kind, reported or not.
    pub(crate) anomalies: [u64; KINDS],
}

/// What a number shows about its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// No anomaly to report now.
    Well,
    /// Numbers before it are missing so far.
    Hole(Hole),
    /// It breaks the sequence: the kind and the expected number.
    Anomaly(AnomalyKind, u64),
}

impl Numbers {
    /// The numbers of a counter of `bits` bits, and the first number, if it is known.
    fn new(bits: u32, first: Option<u64>) -> Self {
        let unwrap = Unwrap::new(bits, first);
        Self {
            // `MIDDLE` stands for the first number.
            tracker: Tracker::new(first.map(|_| MIDDLE)),
            // None came before the first.
            last: 0,
            first: unwrap.wrap(MIDDLE),
            unwrap,
            // Not bounded here: the index counts this memory before it takes a number.
            holes: Ranges::new(usize::MAX),
            open: 0,
            began: first.is_none(),
            counts: NumberCounts::default(),
        }
    }

    /// Takes the number of a record. `lost` is the sum of the LOST records since the last number.
    #[inline]
    fn take(&mut self, written: u64, lost: u64) -> Said {
        // After so many losses the candidate nearest to the largest number may be one of another round.
        let number = if lost >= self.unwrap.reach() && self.tracker.next().is_some() {
            self.unwrap_far(written, lost).ok_or(AnomalyKind::Wraparound)
        } else {
            self.unwrap.unwrap(written).ok_or(AnomalyKind::Jump)
        };
        let number = match number {
            Ok(number) => number,
            Err(kind) => return self.begin_anew(written, kind),
        };
        let last = std::mem::replace(&mut self.last, number);
        match self.tracker.step(number) {
            Step::Next => {
                self.tracker.pass(number);
                Said::Well
            }
            Step::Behind => self.take_behind(number, last),
            Step::First => {
                self.first = self.unwrap.wrap(number);
                self.tracker.pass(number);
                Said::Well
            }
            Step::Ahead(next) => {
                self.tracker.pass(number);
                self.hole(next, number - 1)
            }
        }
    }

    /// A number after so many losses that the counter may have wrapped. If it is where all the losses together lead,
    /// they are the missing numbers.
    #[cold]
    fn unwrap_far(&mut self, written: u64, lost: u64) -> Option<u64> {
        let next = self.tracker.next().unwrap_or(MIDDLE);
        self.unwrap.unwrap_near(written, next.saturating_add(lost), NEAR)
    }

    #[cold]
    fn take_behind(&mut self, number: u64, last: u64) -> Said {
        let begin = self.tracker.begin();
        // Holes of an earlier count stay: no number of this one fills them.
        if number >= begin && self.holes.take(number) {
            self.open -= 1;
            self.tracker.well();
            return Said::Well;
        }
        if self.began && self.tracker.is_before_first(number) {
            // Drawn before the first number seen, and written after it.
            self.tracker.begin_before(number);
            return if number + 1 == begin { Said::Well } else { self.hole(number + 1, begin - 1) };
        }
        let written = self.unwrap.wrap(number);
        // The number before once more is no jump, however far behind it is.
        let kind = match number == last {
            true => AnomalyKind::Duplicate,
            false => self.tracker.anomaly(number),
        };
        if kind == AnomalyKind::Jump {
            return self.begin_anew(written, kind);
        }
        self.counts.missing -= u64::from(self.tracker.found(number));
        self.report(kind)
    }

    /// Numbers are missing so far.
    fn hole(&mut self, first: u64, last: u64) -> Said {
        self.holes.add(first, last);
        self.open = self.open.saturating_add(last - first + 1);
        Said::Hole(Hole { first, last, anchor: self.unwrap.anchor() })
    }

    /// Counting goes on from a number, as it was written, that is not the next. Numbers missing before stay missing.
    #[cold]
    fn begin_anew(&mut self, written: u64, kind: AnomalyKind) -> Said {
        // First: what was expected is a number of the count so far.
        let said = self.report(kind);
        let ahead = self.tracker.next().unwrap_or(MIDDLE).saturating_add(APART);
        if !self.unwrap.shift(written, ahead) {
            // Near the end of all numbers. Missing numbers are no longer reported, but counted.
            self.counts.missing = self.counts.missing.saturating_add(std::mem::take(&mut self.open));
            self.holes.clear();
            self.tracker.forget_gaps();
        }
        self.last = self.unwrap.unwrapped();
        self.tracker.restart(self.last);
        // A counter that starts again may be interrupted, as at the beginning. After a leap no smaller number is in
        // flight.
        self.began = kind == AnomalyKind::Wraparound || written <= 1 || written == self.first;
        said
    }

    /// Counts an anomaly, and reports it unless one was reported recently.
    fn report(&mut self, kind: AnomalyKind) -> Said {
        self.counts.anomalies[kind as usize] += 1;
        let expected = self.unwrap.wrap(self.tracker.next().unwrap_or(MIDDLE));
        let may = self.tracker.may_report(kind);
        self.tracker.reported(kind);
        if may { Said::Anomaly(kind, expected) } else { Said::Well }
    }

    /// The next numbers of a hole that are still missing.
    pub(crate) fn gap(&self, hole: &Hole) -> Option<Hole> {
        let (first, last) = self.holes.first_between(hole.first, hole.last)?;
        Some(Hole { first, last, ..*hole })
    }

    /// The first and the last number of a hole as programs would have written them.
    pub(crate) fn written(&self, hole: &Hole) -> (u64, u64) {
        let written = |number| self.unwrap.wrap_from(hole.anchor, number);
        (written(hole.first), written(hole.last))
    }

    /// Declares the numbers of a gap: they are no longer a hole.
    pub(crate) fn declare(&mut self, gap: &Hole) {
        if self.holes.remove(gap.first) {
            // Saturating, as where holes are added.
            self.open = self.open.saturating_sub(gap.count());
            self.counts.missing = self.counts.missing.saturating_add(gap.count());
            self.tracker.declare(gap.first, gap.last, false);
        }
    }

    /// Bytes that the holes take beyond the tree's first node.
    fn memory(&self) -> usize {
        self.holes.len().saturating_sub(FIRST_NODE) * Ranges::EACH
    }
}
