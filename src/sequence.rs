//! Numbers that count records: where they are, how they wrap, and what is missing from them.

use crate::record::Record;
use std::collections::VecDeque;
use std::fmt;

/// The function behind [`Sequence::with`].
type Extract = Box<dyn Fn(&Record<'_>) -> Option<u64> + Send>;

/// Numbers that programs write into their records, each one more than the last: what is missing from them is missing from the
/// stream.
///
/// A counter may be as narrow as it likes and wrap around, as long as less than half of its range is in flight at once. It
/// must be counted up where the record is output, in the same run of a program that cannot sleep: then a fence proves
/// that a number which is missing will not come.
pub struct Sequence {
    at: At,
    bits: u32,
    first: Option<u64>,
}

enum At {
    /// Of the raw payload, in bytes.
    Payload(usize),
    Extract(Extract),
}

impl Sequence {
    fn payload(offset: usize, bits: u32) -> Self {
        Self { at: At::Payload(offset), bits, first: None }
    }

    /// One byte at this offset of the raw payload.
    pub fn u8(offset: usize) -> Self {
        Self::payload(offset, 8)
    }

    /// Two bytes at this offset of the raw payload, in native byte order. They need not be aligned.
    pub fn u16(offset: usize) -> Self {
        Self::payload(offset, 16)
    }

    /// Four bytes at this offset of the raw payload, in native byte order. They need not be aligned.
    pub fn u32(offset: usize) -> Self {
        Self::payload(offset, 32)
    }

    /// Eight bytes at this offset of the raw payload, in native byte order. They need not be aligned.
    pub fn u64(offset: usize) -> Self {
        Self::payload(offset, 64)
    }

    /// What a function finds: a counter of this many bits, of which higher ones are ignored. The function must not panic.
    /// Records without a number are not counted.
    ///
    /// # Panics
    /// Unless `bits` is 2 to 64.
    pub fn with(bits: u32, extract: impl Fn(&Record<'_>) -> Option<u64> + Send + 'static) -> Self {
        assert!((2..=64).contains(&bits), "a counter of {bits} bits");
        Self { at: At::Extract(Box::new(extract)), bits, first: None }
    }

    /// Says which number comes first, so that what is missing before the first that is seen is missing too. Unless set,
    /// counting begins with the first that is seen.
    pub fn starting_at(mut self, first: u64) -> Self {
        self.first = Some(first);
        self
    }

    /// A record's number, if it has one.
    #[inline]
    pub(crate) fn of(&self, record: &Record<'_>) -> Option<u64> {
        match &self.at {
            At::Payload(offset) => {
                let payload = record.payload()?;
                match self.bits {
                    8 => payload.u8(*offset).map(u64::from),
                    16 => payload.u16(*offset).map(u64::from),
                    32 => payload.u32(*offset).map(u64::from),
                    _ => payload.u64(*offset),
                }
            }
            At::Extract(extract) => extract(record),
        }
    }

    pub(crate) fn bits(&self) -> u32 {
        self.bits
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.first
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Sequence");
        if let At::Payload(offset) = &self.at {
            debug.field("offset", offset);
        }
        debug.field("bits", &self.bits).finish_non_exhaustive()
    }
}

/// Where counting begins once it is unwrapped: far from both ends.
const MIDDLE: u64 = 1 << 63;

/// How far a number may be ahead of all before it. So many records are not lost between two.
const MOST_AHEAD: i64 = 1 << 32;

/// A counter that wraps, told apart from itself one round earlier by what was seen before.
#[derive(Debug, Clone)]
pub(crate) struct Unwrap {
    bits: u32,
    /// The number that `MIDDLE` stands for.
    anchor: Option<u64>,
    /// The largest so far, unwrapped.
    largest: u64,
}

impl Unwrap {
    pub(crate) fn new(bits: u32, first: Option<u64>) -> Self {
        let mut unwrap = Self { bits, anchor: None, largest: MIDDLE };
        unwrap.anchor = first.map(|first| first & unwrap.mask());
        unwrap
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// The number, counted on instead of wrapping: the nearest there is to the largest so far. `None` if it is further ahead
    /// than any records can have been lost.
    pub(crate) fn unwrap(&mut self, number: u64) -> Option<u64> {
        let number = number & self.mask();
        if self.anchor.is_none() {
            self.anchor = Some(number);
            return Some(MIDDLE);
        }
        // Shifted up, the sign is where i64 has it.
        let up = 64 - self.bits;
        let distance = (number.wrapping_sub(self.wrap(self.largest)) << up) as i64 >> up;
        if distance > MOST_AHEAD {
            return None;
        }
        // Not near either end: it takes 2^31 such leaps to get there.
        let unwrapped = self.largest.saturating_add_signed(distance);
        self.largest = self.largest.max(unwrapped);
        Some(unwrapped)
    }

    /// The largest number so far, as it was written.
    pub(crate) fn largest(&self) -> u64 {
        self.wrap(self.largest)
    }

    /// The number as the program wrote it.
    pub(crate) fn wrap(&self, unwrapped: u64) -> u64 {
        self.wrap_from(self.anchor.unwrap_or(0), unwrapped)
    }

    /// The same with an anchor that was in force.
    fn wrap_from(&self, anchor: u64, unwrapped: u64) -> u64 {
        unwrapped.wrapping_sub(MIDDLE).wrapping_add(anchor) & self.mask()
    }

    /// Makes a number, as it was written, stand for another from now on.
    fn shift(&mut self, written: u64, other: u64) {
        self.anchor = Some(written.wrapping_sub(other.wrapping_sub(MIDDLE)));
        self.largest = other;
    }
}

/// Where a dense sequence of the whole machine has got to.
#[derive(Debug)]
pub(crate) struct Dense {
    /// The next number; `None` until the first is known.
    next: Option<u64>,
    /// Gaps that were given up to make room and that may yet be filled, in order.
    doubtful: VecDeque<(u64, u64)>,
    /// Gaps that were proven not long ago, in order.
    declared: VecDeque<(u64, u64)>,
    /// The last number that was given up, or passed over, like that.
    doubt: Option<u64>,
    /// The first number.
    begin: u64,
    quiet: Quiet,
}

/// How a number stands to the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is the next.
    Next,
    /// It was passed already: it is late, or it is there twice.
    Behind,
    /// Numbers before it are missing, from this one on. They may be in flight.
    Ahead(u64),
    /// Nothing is known yet.
    First,
}

impl Dense {
    pub(crate) fn new(first: Option<u64>) -> Self {
        let begin = first.unwrap_or(u64::MAX);
        let (doubtful, declared) = Default::default();
        Self { next: first, doubtful, declared, doubt: None, begin, quiet: Quiet::default() }
    }

    /// What must be proven before the next number is: `None` if it is already.
    pub(crate) fn doubt(&self) -> Option<u64> {
        self.doubt
    }

    pub(crate) fn step(&self, number: u64) -> Step {
        match self.next {
            None => Step::First,
            Some(next) if number == next => Step::Next,
            Some(next) if number < next => Step::Behind,
            Some(next) => Step::Ahead(next),
        }
    }

    /// How a number came to be behind, and which was expected, if that is to be told. `written` is the number as the program
    /// wrote it.
    pub(crate) fn broken_by(&self, number: u64, written: u64) -> Option<(Break, u64)> {
        let next = self.next?;
        let how = if gap_of(&self.doubtful, number).or(gap_of(&self.declared, number)).is_some() {
            Break::Found
        } else if next - number <= RECENT {
            if number < self.begin {
                // Drawn before the first that was yielded, and late: it breaks nothing.
                return None;
            }
            Break::Duplicate
        } else if written <= 1 || number == self.begin {
            Break::Reset
        } else {
            Break::Backward
        };
        self.quiet.may_tell(how).then_some((how, next))
    }

    /// A break was told.
    pub(crate) fn told(&mut self, how: Break) {
        self.quiet.told(how);
    }

    /// A number was yielded, or numbers up to it were given up.
    pub(crate) fn passed(&mut self, number: u64) {
        self.quiet.well(self.next.is_none_or(|next| number >= next));
        if self.next.is_none() {
            self.begin = number;
        }
        self.next = self.next.max(Some(number.saturating_add(1)));
    }

    /// A number is taken for the first, and smaller ones may yet come.
    pub(crate) fn begin_in_doubt(&mut self, number: u64) {
        if self.next.is_none() {
            self.doubt = Some(number);
        }
    }

    /// Numbers were given up that may yet come. Nothing that is smaller than `proven` will.
    pub(crate) fn give_up_in_doubt(&mut self, first: u64, last: u64, proven: Option<u64>) {
        while self.doubtful.front().is_some_and(|(_, last)| Some(*last) <= proven || self.doubtful.len() >= DOUBTED) {
            self.doubtful.pop_front();
        }
        self.doubtful.push_back((first, last));
        self.doubt = Some(last);
    }

    /// Numbers are proven to be missing.
    pub(crate) fn declare(&mut self, first: u64, last: u64) {
        if self.declared.len() == REMEMBERED {
            self.declared.pop_front();
        }
        self.declared.push_back((first, last));
    }

    /// A number that was passed has come: whether it had been given up, which it is no more.
    pub(crate) fn found(&mut self, number: u64) -> bool {
        take_out(&mut self.doubtful, number) || take_out(&mut self.declared, number)
    }
}

/// Which of some gaps, given in order, a number is missing from.
fn gap_of(gaps: &VecDeque<(u64, u64)>, number: u64) -> Option<usize> {
    let at = gaps.partition_point(|(_, last)| *last < number);
    gaps.get(at).filter(|(first, _)| *first <= number).map(|_| at)
}

/// Takes a number out of the gap it is missing from, if it is.
fn take_out(gaps: &mut VecDeque<(u64, u64)>, number: u64) -> bool {
    let Some(at) = gap_of(gaps, number) else { return false };
    let Some((first, last)) = gaps.remove(at) else { return false };
    if number < last {
        gaps.insert(at, (number + 1, last));
    }
    if first < number {
        gaps.insert(at, (first, number - 1));
    }
    true
}

/// How a number that is not the next one, nor ahead of it, came to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Break {
    /// It was there before, not long ago.
    Duplicate,
    /// Counting began anew: it is 0, 1, or the first number that was ever seen there.
    Reset,
    /// It is further back than records come out of order. Counting goes on from there.
    Backward,
    /// It is further ahead than any records can have been lost. Counting goes on from there.
    Forward,
    /// It was declared missing, and came after all: it was not written where it was counted.
    Found,
}

/// How far back a number that was there before is a duplicate; beyond, counting jumped.
const RECENT: u64 = 64;

/// How many gaps are remembered that were given up in doubt, at most: as many as can be between two fences, or nearly.
const DOUBTED: usize = 1 << 16;

/// How many numbers must be well in a row before a break of the same kind is told again: what breaks all the time is told once.
const QUIET: u32 = 16;

/// Which breaks were told not long ago.
#[derive(Debug, Clone, Copy, Default)]
struct Quiet {
    /// How many numbers in a row were well.
    well: u32,
    told: [bool; 5],
}

impl Quiet {
    #[inline]
    fn well(&mut self, well: bool) {
        self.well = if well { self.well.saturating_add(1) } else { 0 };
    }

    fn may_tell(&self, how: Break) -> bool {
        self.well >= QUIET || !self.told[how as usize]
    }

    fn told(&mut self, how: Break) {
        if std::mem::take(&mut self.well) >= QUIET {
            self.told = [false; 5];
        }
        self.told[how as usize] = true;
    }
}

/// How far counting is moved ahead when it begins anew: numbers of before are not met again.
const APART: u64 = 1 << 20;

/// How many gaps are remembered after they were declared, to know a number again that comes after all.
const REMEMBERED: usize = 16;

/// The numbers of one ring, of which each record has one, and the holes in them.
///
/// Fed as records are indexed, which is in the order of the ring. Programs interrupt each other between counting and writing,
/// so a number that is ahead leaves a hole, and what comes later may fill it. What is still a hole when the record behind it
/// is yielded is a gap: under the fence rule nothing will fill it any more.
#[derive(Debug)]
pub(crate) struct Numbers {
    unwrap: Unwrap,
    /// The next number, unwrapped; `None` before the first.
    next: Option<u64>,
    /// The number that came last.
    last: u64,
    /// The first of all, as it was written.
    first: u64,
    /// INVARIANT: in the order of numbers and of positions, none empty.
    holes: VecDeque<Hole>,
    /// Gaps declared not long ago.
    declared: VecDeque<(u64, u64)>,
    /// The smallest number since counting began, or began anew.
    begin: u64,
    /// Whether smaller ones may have been drawn before: it began with a first number, which interrupts may have written.
    began: bool,
    quiet: Quiet,
    pub(crate) counts: NumberCounts,
}

/// Numbers that are missing so far.
#[derive(Debug, Clone, Copy)]
struct Hole {
    first: u64,
    last: u64,
    /// What they are wrapped with.
    anchor: u64,
    /// Where the record lies that showed it.
    position: u64,
    /// The key of the record before that one.
    after: Option<u64>,
}

/// Numbers that are missing: the first, the last, how many, and the key of the record before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) count: u64,
    pub(crate) after: Option<u64>,
}

/// What became of a ring's numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NumberCounts {
    /// Records with a number that was not there before.
    pub(crate) seen: u64,
    /// Numbers declared missing that did not come after all.
    pub(crate) missing: u64,
    pub(crate) duplicates: u64,
    pub(crate) resets: u64,
    pub(crate) backward: u64,
    pub(crate) forward: u64,
    pub(crate) found: u64,
}

/// What a number says about the record it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing to tell, now at least.
    Well,
    /// Numbers before it are missing so far.
    Hole,
    /// It breaks the sequence: what was expected.
    Break(Break, u64),
}

impl Numbers {
    pub(crate) fn new(sequence: &Sequence) -> Self {
        let unwrap = Unwrap::new(sequence.bits, sequence.first);
        Self {
            next: sequence.first.map(|_| MIDDLE),
            // None came before the first.
            last: 0,
            begin: MIDDLE,
            began: true,
            quiet: Quiet::default(),
            first: unwrap.wrap(MIDDLE),
            unwrap,
            holes: VecDeque::new(),
            declared: VecDeque::new(),
            counts: NumberCounts::default(),
        }
    }

    /// Takes the number of the record at a position; `after` is the key of the record before it.
    #[inline]
    pub(crate) fn take(&mut self, number: u64, position: u64, after: Option<u64>) -> Said {
        let Some(number) = self.unwrap.unwrap(number) else { return self.leap(number) };
        let last = std::mem::replace(&mut self.last, number);
        if self.next == Some(number) {
            self.next = Some(number.saturating_add(1));
            self.counts.seen += 1;
            self.quiet.well(true);
            return Said::Well;
        }
        self.take_other(number, last, position, after)
    }

    /// A number so far ahead that what lies between is not missing.
    #[cold]
    fn leap(&mut self, number: u64) -> Said {
        let next = self.next.unwrap_or(MIDDLE);
        let expected = self.unwrap.wrap(next);
        self.counts.forward += 1;
        self.counts.seen += 1;
        self.begin_anew(number, next);
        self.began = false;
        self.tell(Break::Forward, expected)
    }

    /// Tells of a break, unless one was told not long ago.
    fn tell(&mut self, how: Break, expected: u64) -> Said {
        let may = self.quiet.may_tell(how);
        self.quiet.told(how);
        if may { Said::Break(how, expected) } else { Said::Well }
    }

    #[cold]
    fn take_other(&mut self, number: u64, last: u64, position: u64, after: Option<u64>) -> Said {
        let Some(next) = self.next else {
            self.first = self.unwrap.wrap(number);
            self.begin = number;
            self.next = Some(number.saturating_add(1));
            self.counts.seen += 1;
            return Said::Well;
        };
        if number > next {
            let anchor = self.unwrap.anchor.unwrap_or(0);
            self.holes.push_back(Hole { first: next, last: number - 1, anchor, position, after });
            self.next = Some(number.saturating_add(1));
            self.counts.seen += 1;
            self.quiet.well(true);
            return Said::Hole;
        }
        if self.fill(number) {
            self.counts.seen += 1;
            self.quiet.well(true);
            return Said::Well;
        }
        if self.began && number < self.begin && next - number <= RECENT {
            // Drawn before the first that was seen, and written behind it.
            if number + 1 < self.begin {
                let anchor = self.unwrap.anchor.unwrap_or(0);
                self.holes.push_front(Hole { first: number + 1, last: self.begin - 1, anchor, position, after });
            }
            let hole = number + 1 < self.begin;
            self.begin = number;
            self.counts.seen += 1;
            return if hole { Said::Hole } else { Said::Well };
        }
        let how = self.broken_by(number, last, next);
        let expected = self.unwrap.wrap(next);
        if matches!(how, Break::Reset | Break::Backward) {
            let written = self.unwrap.wrap(number);
            self.begin_anew(written, next);
            self.began = how == Break::Reset;
        }
        self.tell(how, expected)
    }

    /// Takes a number out of the hole it is missing from, if it is.
    fn fill(&mut self, number: u64) -> bool {
        let at = self.holes.partition_point(|hole| hole.last < number);
        let Some(hole) = self.holes.get_mut(at).filter(|hole| hole.first <= number) else { return false };
        let Hole { first, last, .. } = *hole;
        let rest = Hole { first: number.saturating_add(1), ..*hole };
        match (first == number, last == number) {
            (true, true) => drop(self.holes.remove(at)),
            (true, false) => hole.first = number + 1,
            (false, true) => hole.last = number - 1,
            (false, false) => {
                hole.last = number - 1;
                self.holes.insert(at + 1, rest);
            }
        }
        true
    }

    /// What a number is that was passed before.
    fn broken_by(&mut self, number: u64, last: u64, next: u64) -> Break {
        let found_again = self.find_declared(number);
        let NumberCounts { seen, missing, duplicates, resets, backward, found, .. } = &mut self.counts;
        if found_again {
            *found += 1;
            *seen += 1;
            *missing -= 1;
            return Break::Found;
        }
        let written = self.unwrap.wrap(number);
        if number == last || (next - number <= RECENT && number >= self.begin) {
            *duplicates += 1;
            Break::Duplicate
        } else if written <= 1 || written == self.first {
            *resets += 1;
            *seen += 1;
            Break::Reset
        } else {
            *backward += 1;
            *seen += 1;
            Break::Backward
        }
    }

    /// Takes a number out of the gap in which it was declared missing, if that is remembered.
    fn find_declared(&mut self, number: u64) -> bool {
        let is_in = |(first, last): &(u64, u64)| (*first..=*last).contains(&number);
        let Some(at) = self.declared.iter().position(is_in) else { return false };
        let Some((first, last)) = self.declared.remove(at) else { return false };
        if number < last {
            self.remember(number + 1, last);
        }
        if number > first {
            self.remember(first, number - 1);
        }
        true
    }

    fn remember(&mut self, first: u64, last: u64) {
        if self.declared.len() == REMEMBERED {
            self.declared.pop_front();
        }
        self.declared.push_back((first, last));
    }

    /// Counting goes on from a number, as it was written, that is not the next. What was missing before stays missing.
    fn begin_anew(&mut self, written: u64, next: u64) {
        let number = next.saturating_add(APART);
        self.unwrap.shift(written, number);
        (self.last, self.begin) = (number, number);
        self.next = Some(number.saturating_add(1));
    }

    /// The next numbers missing before the record at a position, as they would have been written.
    pub(crate) fn gap(&self, position: u64) -> Option<Missing> {
        let hole = self.holes.get(self.first_hole(position))?;
        if hole.position != position {
            return None;
        }
        let written = |number| self.unwrap.wrap_from(hole.anchor, number);
        let count = (hole.last - hole.first).saturating_add(1);
        Some(Missing { first: written(hole.first), last: written(hole.last), count, after: hole.after })
    }

    /// The first hole that was shown by the record at a position, or behind it: as numbers rise, so do positions.
    fn first_hole(&self, position: u64) -> usize {
        self.holes.partition_point(|hole| hole.position < position)
    }

    /// Gives up the next numbers missing before the record at a position: no hole any more, but a gap.
    pub(crate) fn declare(&mut self, position: u64) {
        let at = self.first_hole(position);
        let Some(hole) = self.holes.get(at).filter(|hole| hole.position == position).copied() else { return };
        self.holes.remove(at);
        self.counts.missing = self.counts.missing.saturating_add((hole.last - hole.first).saturating_add(1));
        self.remember(hole.first, hole.last);
    }

    /// Numbers that are missing so far and not declared yet.
    pub(crate) fn open(&self) -> u64 {
        let lens = self.holes.iter().map(|hole| (hole.last - hole.first).saturating_add(1));
        lens.fold(0, u64::saturating_add)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use quickcheck::quickcheck;

    #[test]
    fn steps_of_a_dense_sequence() {
        let mut dense = Dense::new(None);
        assert_eq!(dense.step(7), Step::First);
        dense.passed(7);
        assert_eq!(dense.step(8), Step::Next);
        assert_eq!(dense.step(7), Step::Behind);
        assert_eq!(dense.step(10), Step::Ahead(8));
        dense.passed(3);
        assert_eq!(dense.step(8), Step::Next, "never backwards");
        dense.passed(u64::MAX);
        assert_eq!(dense.step(0), Step::Behind);
    }

    #[test]
    fn counters_of_any_width_are_counted_on() {
        for bits in [2u32, 8, 16, 31, 32, 63, 64] {
            let mask = u64::MAX >> (64 - bits);
            for first in [0, mask, mask / 2, mask.saturating_sub(3)] {
                let mut unwrap = Unwrap::new(bits, None);
                for step in 0..1000u64 {
                    let written = first.wrapping_add(step) & mask;
                    let number = unwrap.unwrap(written);
                    assert_eq!(number, Some(MIDDLE + step), "{bits} bits");
                    assert_eq!(unwrap.wrap(MIDDLE + step), written, "{bits} bits");
                    if bits > 4 && step > 3 {
                        assert_eq!(unwrap.unwrap(written.wrapping_sub(3)), Some(MIDDLE + step - 3), "a little behind");
                    }
                }
            }
        }
    }

    /// What is told of numbers, given in the order of the ring: breaks as they come, gaps in the end.
    fn told(bits: u32, written: &[u64]) -> Vec<String> {
        let mut numbers = Numbers::new(&Sequence::with(bits, |_| None));
        let mut told = Vec::new();
        for (position, number) in (0..).zip(written) {
            if let Said::Break(how, expected) = numbers.take(*number, position, None) {
                told.push(format!("{number} {how:?} for {expected}"));
            }
        }
        for position in 0..written.len() as u64 {
            while let Some(Missing { first, last, count, .. }) = numbers.gap(position) {
                told.push(format!("{first}-{last} ({count})"));
                numbers.declare(position);
            }
        }
        assert_eq!(numbers.open(), 0);
        told
    }

    #[test]
    fn holes_that_fill_are_no_gaps() {
        assert_eq!(told(64, &[5, 6, 7]), [""; 0]);
        assert_eq!(told(64, &[5, 7, 6, 8]), [""; 0]);
        assert_eq!(told(64, &[5, 9, 7, 6, 8, 10]), [""; 0]);
        assert_eq!(told(64, &[5, 9, 7, 10]), ["6-6 (1)", "8-8 (1)"]);
        assert_eq!(told(64, &[5, 9, 12]), ["6-8 (3)", "10-11 (2)"]);
        assert_eq!(told(8, &[254, 1, 255, 3]), ["0-0 (1)", "2-2 (1)"]);
        assert_eq!(told(8, &[250, 5]), ["251-4 (10)"]);
        assert_eq!(told(64, &[u64::MAX - 1, 1]), ["18446744073709551615-0 (2)"]);
    }

    #[test]
    fn what_breaks_a_sequence_is_told_apart() {
        assert_eq!(told(32, &[5, 6, 6, 7]), ["6 Duplicate for 7"]);
        assert_eq!(told(32, &[5, 6, 7, 5, 8]), ["5 Duplicate for 8"]);
        assert_eq!(told(32, &[500, 501, 0, 1, 2]), ["0 Reset for 502"]);
        assert_eq!(told(32, &[500, 700, 701, 500, 501]), ["500 Reset for 702", "501-699 (199)"]);
        assert_eq!(told(32, &[500, 501, 400, 401, 403]), ["400 Backward for 502", "402-402 (1)"]);
        // Something is missing, and counting begins anew before that is declared.
        assert_eq!(told(32, &[500, 503, 0, 2]), ["0 Reset for 504", "501-502 (2)", "1-1 (1)"]);
        // Further ahead than can be missing, and back.
        assert_eq!(
            told(64, &[5, 6, 1 << 50, 7, 8]),
            ["1125899906842624 Forward for 7", "7 Backward for 1125899906842625"]
        );
    }

    #[test]
    fn what_comes_out_of_order_breaks_nothing() {
        // Interrupts while the first was being written, also behind a reset.
        assert_eq!(told(64, &[1, 0, 2, 3]), [""; 0]);
        assert_eq!(told(64, &[6, 5, 7]), [""; 0]);
        assert_eq!(told(64, &[500, 501, 1, 0, 2, 3]), ["1 Reset for 502"]);
        assert_eq!(told(64, &[9, 5, 10]), ["6-8 (3)"]);
        // There before, and not long ago, whatever number it is.
        assert_eq!(told(64, &[0, 1, 2, 1, 3]), ["1 Duplicate for 3"]);
        assert_eq!(told(8, &[254, 255, 0, 1, 2, 1, 3]), ["1 Duplicate for 3"]);
    }

    /// Each written twice, for ever.
    #[test]
    fn what_breaks_all_the_time_is_told_once() {
        let written: Vec<u64> = (0..20_000).map(|number| number / 2).collect();
        assert_eq!(told(64, &written).len(), 1);
    }

    #[test]
    fn a_number_that_comes_after_its_gap_was_declared_is_found() {
        let mut numbers = Numbers::new(&Sequence::with(64, |_| None));
        assert_eq!(numbers.take(1, 0, None), Said::Well);
        assert_eq!(numbers.take(4, 1, None), Said::Hole);
        numbers.declare(1);
        assert_eq!(numbers.counts.missing, 2);
        assert_eq!(numbers.take(3, 2, None), Said::Break(Break::Found, 5));
        assert_eq!((numbers.counts.missing, numbers.counts.found), (1, 1));
        assert_eq!(numbers.take(5, 3, None), Said::Well);
    }

    #[test]
    fn what_runs_backwards_for_ever_is_told_once() {
        let written: Vec<u64> = (0..100_000).rev().collect();
        // Backward, and a reset in the end.
        assert_eq!(told(64, &written).len(), 2);
        let same = [7; 100_000];
        assert_eq!(told(8, &same), ["7 Duplicate for 8"]);
    }

    quickcheck! {
        /// Any bytes: nothing panics, what is told is bounded, and what was seen and what is missing add up.
        fn any_numbers(bits: u8, written: Vec<u64>) -> bool {
            let bits = u32::from(bits % 63) + 2;
            let mut numbers = Numbers::new(&Sequence::with(bits, |_| None));
            let mut told = 0;
            for (position, number) in (0..).zip(&written) {
                told += usize::from(matches!(numbers.take(*number, position, None), Said::Break(..)));
                if position % 3 == 0 {
                    while numbers.gap(position).is_some() {
                        numbers.declare(position);
                    }
                }
            }
            let NumberCounts { seen, duplicates, .. } = numbers.counts;
            told <= written.len() && seen + duplicates == written.len() as u64
        }

        /// Any order within reach, with some left out: exactly those are missing.
        fn what_is_left_out_is_missing(swaps: Vec<u8>, left_out: Vec<u8>, first: u8) -> bool {
            let mut order: Vec<u64> = (0..200).collect();
            for (at, by) in (0..).zip(&swaps) {
                let at = at * 7 % 180 + 1;
                order.swap(at, at + usize::from(by % 16));
            }
            order.retain(|number| *number == 0 || !left_out.contains(&(*number as u8)));
            let largest = order.iter().max().copied().unwrap_or(0);
            let mut numbers = Numbers::new(&Sequence::with(8, |_| None));
            for (position, number) in (0..).zip(&order) {
                if matches!(numbers.take(number.wrapping_add(u64::from(first)), position, None), Said::Break(..)) {
                    return false;
                }
            }
            numbers.open() == (0..=largest).filter(|number| !order.contains(number)).count() as u64
        }
    }
}
