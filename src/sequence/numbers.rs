//! The sequence numbers of one ring's records, CPU by CPU, and which are missing.

#[cfg(all(test, not(loom)))]
mod tests;

use super::anomaly::{AnomalyKind, KINDS};
use super::ranges::Ranges;
use super::tracker::{Step, Tracker};

/// The place of the first number: far from both ends.
const MIDDLE: u64 = 1 << 63;

/// How far a number may exceed all before it. So many records are not lost between two.
const MOST_AHEAD: u64 = 1 << 32;

/// Counting does not start again beyond this, too near to the end of all places. To get there, 2^30 numbers must each
/// exceed the one before by as much as is allowed.
const CEILING: u64 = 3 << 62;

/// How far counting moves up when it starts again, so that earlier numbers never recur.
const APART: u64 = 1 << 20;

/// More CPUs than any kernel has (`CONFIG_NR_CPUS`): a record that names a larger one has no number.
const MOST_CPUS: usize = 8192;

/// The numbers in one ring: those of its CPU, or in a ring buffer that CPUs share, those of each CPU.
#[derive(Debug)]
pub(crate) struct CpuNumbers {
    /// By CPU, if the ring is shared. Otherwise one.
    cpus: Vec<Numbers>,
    is_shared: bool,
    first: Option<u64>,
    /// The positions before which records were seen when a proof began: the last that began, the last that ended, and
    /// the one that a refresh of all rings has followed.
    began_at: u64,
    ended_at: u64,
    proven_at: u64,
}

impl CpuNumbers {
    /// Counters whose first number is `first`, if it is known.
    pub(crate) fn new(first: Option<u64>, is_shared: bool) -> Self {
        let cpus = if is_shared { Vec::new() } else { vec![Numbers::new(first)] };
        Self { cpus, is_shared, first, began_at: 0, ended_at: 0, proven_at: 0 }
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

    /// Takes the number of a CPU's record. `None` if there is no such CPU.
    #[inline]
    pub(crate) fn take(&mut self, cpu: u32, number: u64) -> Option<Meaning> {
        let at = self.at(cpu);
        if at >= self.cpus.len() {
            self.begin(at)?;
        }
        self.cpus.get_mut(at).map(|numbers| numbers.take(number))
    }

    /// The first number of a CPU of a shared ring.
    #[cold]
    fn begin(&mut self, cpu: usize) -> Option<()> {
        let first = self.first;
        (cpu < MOST_CPUS).then(|| self.cpus.resize_with(cpu + 1, || Numbers::new(first)))
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
}

/// The numbers of one CPU, one for each record, and the holes in them.
///
/// It gets numbers as records are indexed, in the order of the ring. Programs interrupt each other between counting and
/// writing. So a number that is too large leaves a hole, and later records may fill it. If a hole is still there when
/// the record that showed it is yielded, it is a gap: under the fence rule no record can fill it any more. Any number
/// takes a time that grows with the logarithm of the open holes, and adds at most one range to them.
///
/// A counter that starts again writes the same numbers again. So numbers are kept as places: what was written and an
/// offset, which moves places beyond all earlier ones when counting starts again.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// The place of a number less the number as it was written.
    offset: u64,
    tracker: Tracker,
    /// The place of the number that came last.
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

/// The places of numbers that a record showed to be missing. Some may have come since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hole {
    first: u64,
    last: u64,
    /// Their offset from the numbers as they would have been written.
    offset: u64,
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
pub(crate) enum Meaning {
    /// No anomaly to report now.
    Expected,
    /// Numbers before it are missing so far.
    Hole(Hole),
    /// It breaks the sequence: the kind and the expected number.
    Anomaly(AnomalyKind, u64),
}

impl Numbers {
    /// The numbers of a counter whose first number is `first`, if it is known.
    fn new(first: Option<u64>) -> Self {
        let known = first.unwrap_or_default();
        Self {
            offset: MIDDLE.wrapping_sub(known),
            tracker: Tracker::new(first.map(|_| MIDDLE)),
            // None came before the first.
            last: 0,
            first: known,
            // No more than held records: each adds one at most.
            holes: Ranges::new(usize::MAX),
            open: 0,
            began: first.is_none(),
            counts: NumberCounts::default(),
        }
    }

    /// Takes the number of a record.
    #[inline]
    fn take(&mut self, written: u64) -> Meaning {
        let number = written.wrapping_add(self.offset);
        let last = std::mem::replace(&mut self.last, number);
        match self.tracker.step(number) {
            Step::Next => {
                self.tracker.pass(number);
                Meaning::Expected
            }
            Step::Behind => self.take_behind(number, last),
            Step::First => {
                (self.offset, self.first, self.last) = (MIDDLE.wrapping_sub(written), written, MIDDLE);
                self.tracker.pass(MIDDLE);
                Meaning::Expected
            }
            // Not remembered: one wild number must not become the largest.
            Step::Ahead(next) if number - next >= MOST_AHEAD => self.begin_anew(written),
            Step::Ahead(next) => {
                self.tracker.pass(number);
                self.hole(next, number - 1)
            }
        }
    }

    #[cold]
    fn take_behind(&mut self, number: u64, last: u64) -> Meaning {
        let begin = self.tracker.begin();
        // Holes of an earlier count stay: no number of this one fills them.
        if number >= begin && self.holes.take(number) {
            self.open -= 1;
            self.tracker.came_as_expected();
            return Meaning::Expected;
        }
        if self.began && self.tracker.is_before_first(number) {
            // Drawn before the first number seen, and written after it.
            self.tracker.begin_before(number);
            return if number + 1 == begin { Meaning::Expected } else { self.hole(number + 1, begin - 1) };
        }
        // The number before once more is no jump, however far behind it is.
        let kind = match number == last {
            true => AnomalyKind::Duplicate,
            false => self.tracker.anomaly(number),
        };
        if kind == AnomalyKind::Jump {
            return self.begin_anew(self.written_at(number));
        }
        self.counts.missing -= u64::from(self.tracker.take_missing(number));
        self.report(kind)
    }

    /// Numbers are missing so far.
    fn hole(&mut self, first: u64, last: u64) -> Meaning {
        self.holes.add(first, last);
        self.open = self.open.saturating_add(last - first + 1);
        Meaning::Hole(Hole { first, last, offset: self.offset })
    }

    /// Counting goes on from a number, as it was written, that is not the next. Numbers missing before stay missing.
    #[cold]
    fn begin_anew(&mut self, written: u64) -> Meaning {
        // First: what was expected is a number of the count so far.
        let said = self.report(AnomalyKind::Jump);
        let mut place = self.tracker.next().unwrap_or(MIDDLE).saturating_add(APART);
        if place > CEILING {
            // Back to the middle, where places come again. Missing numbers are no longer reported, but counted.
            place = MIDDLE;
            self.counts.missing = self.counts.missing.saturating_add(std::mem::take(&mut self.open));
            self.holes.clear();
            self.tracker.forget_gaps();
        }
        (self.offset, self.last) = (place.wrapping_sub(written), place);
        self.tracker.restart(place);
        // A counter that starts again may be interrupted, as at the beginning. After a leap no smaller number is in
        // flight.
        self.began = written <= 1 || written == self.first;
        said
    }

    /// Counts an anomaly, and reports it unless one was reported recently.
    fn report(&mut self, kind: AnomalyKind) -> Meaning {
        self.counts.anomalies[kind as usize] += 1;
        let expected = self.written_at(self.tracker.next().unwrap_or(MIDDLE));
        let may = self.tracker.may_report(kind);
        self.tracker.reported(kind);
        if may { Meaning::Anomaly(kind, expected) } else { Meaning::Expected }
    }

    /// The next numbers of a hole that are still missing.
    pub(crate) fn gap(&self, hole: &Hole) -> Option<Hole> {
        let (first, last) = self.holes.first_between(hole.first, hole.last)?;
        Some(Hole { first, last, ..*hole })
    }

    /// The first and the last number of a hole as programs would have written them.
    pub(crate) fn written(&self, hole: &Hole) -> (u64, u64) {
        (hole.first.wrapping_sub(hole.offset), hole.last.wrapping_sub(hole.offset))
    }

    /// The number of a place, as a program would have written it.
    fn written_at(&self, place: u64) -> u64 {
        place.wrapping_sub(self.offset)
    }

    /// Declares the numbers of a gap: they are no longer a hole.
    pub(crate) fn declare(&mut self, gap: &Hole) {
        if self.holes.remove(gap.first) {
            // Saturating, as where holes are added.
            self.open = self.open.saturating_sub(gap.count());
            self.counts.missing = self.counts.missing.saturating_add(gap.count());
            self.tracker.declare(gap.first, gap.last);
        }
    }
}
