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
        if self.anchor.is_none() {
            self.anchor = Some(number & self.mask());
            return Some(MIDDLE);
        }
        let distance = self.distance(number);
        if distance > MOST_AHEAD {
            return None;
        }
        // Not near either end: it takes 2^31 such leaps to get there.
        let unwrapped = self.largest.saturating_add_signed(distance);
        self.largest = self.largest.max(unwrapped);
        Some(unwrapped)
    }

    /// How far a number is ahead of the largest so far.
    fn distance(&self, number: u64) -> i64 {
        // Shifted up, the sign is where i64 has it.
        let up = 64 - self.bits;
        (number.wrapping_sub(self.wrap(self.largest)) << up) as i64 >> up
    }

    /// What a number stands for that is only asked about.
    pub(crate) fn nearest(&self, number: u64) -> u64 {
        self.largest.saturating_add_signed(self.distance(number))
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
    /// Gaps that were given up to make room and that may yet be filled.
    doubtful: Gaps,
    /// Gaps that were proven not long ago.
    declared: Gaps,
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
        let how = if self.doubtful.of(number).or(self.declared.of(number)).is_some() {
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
        self.doubtful.forget_until(proven);
        self.doubtful.add(first, last, DOUBTED);
        self.doubt = Some(last);
    }

    /// Numbers are proven to be missing.
    pub(crate) fn declare(&mut self, first: u64, last: u64) {
        self.declared.add(first, last, REMEMBERED);
    }

    /// A number that was passed has come: whether it had been given up, which it is no more.
    pub(crate) fn found(&mut self, number: u64) -> bool {
        self.doubtful.take(number) || self.declared.take(number)
    }
}

/// Gaps that were told of, so that a number is known again that comes after all. As (first, last), in order.
#[derive(Debug, Default)]
struct Gaps(VecDeque<(u64, u64)>);

impl Gaps {
    /// Adds one, in place of the smallest if there are too many.
    fn add(&mut self, first: u64, last: u64, most: usize) {
        while self.0.len() >= most {
            self.0.pop_front();
        }
        let at = self.0.partition_point(|(other, _)| *other < first);
        self.0.insert(at, (first, last));
    }

    /// Forgets what lies wholly up to a number.
    fn forget_until(&mut self, number: Option<u64>) {
        while self.0.front().is_some_and(|(_, last)| Some(*last) <= number) {
            self.0.pop_front();
        }
    }

    /// Where the gap is that a number is missing from.
    fn of(&self, number: u64) -> Option<usize> {
        let at = self.0.partition_point(|(_, last)| *last < number);
        self.0.get(at).filter(|(first, _)| *first <= number).map(|_| at)
    }

    /// Takes a number out of the gap that it is missing from, if it is.
    fn take(&mut self, number: u64) -> bool {
        let Some(at) = self.of(number) else { return false };
        let Some((first, last)) = self.0.remove(at) else { return false };
        if number < last {
            self.0.insert(at, (number + 1, last));
        }
        if first < number {
            self.0.insert(at, (first, number - 1));
        }
        true
    }
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
    /// Holes before the first number that was seen, which a smaller one showed later: no more than `RECENT` numbers in all.
    early: Vec<Hole>,
    /// Gaps declared not long ago.
    declared: Gaps,
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

/// What is left of a hole when a number was taken out of it.
enum Left {
    Nothing,
    One,
    /// Also this, behind the number.
    Two(Hole),
}

impl Hole {
    fn count(&self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }

    /// Takes out a number that is in it.
    fn take(&mut self, number: u64) -> Left {
        match (self.first == number, self.last == number) {
            (true, true) => return Left::Nothing,
            (true, false) => self.first = number + 1,
            (false, true) => self.last = number - 1,
            (false, false) => {
                let behind = Self { first: number + 1, ..*self };
                self.last = number - 1;
                return Left::Two(behind);
            }
        }
        Left::One
    }
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
            began: sequence.first.is_none(),
            quiet: Quiet::default(),
            first: unwrap.wrap(MIDDLE),
            unwrap,
            holes: VecDeque::new(),
            early: Vec::new(),
            declared: Gaps::default(),
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
            let begin = std::mem::replace(&mut self.begin, number);
            self.counts.seen += 1;
            if number + 1 == begin {
                return Said::Well;
            }
            let anchor = self.unwrap.anchor.unwrap_or(0);
            self.early.push(Hole { first: number + 1, last: begin - 1, anchor, position, after });
            return Said::Hole;
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
        if let Some(hole) = self.holes.get_mut(at).filter(|hole| hole.first <= number) {
            match hole.take(number) {
                Left::Nothing => drop(self.holes.remove(at)),
                Left::One => {}
                Left::Two(behind) => self.holes.insert(at + 1, behind),
            }
            return true;
        }
        let Some(at) = self.early.iter().position(|hole| (hole.first..=hole.last).contains(&number)) else {
            return false;
        };
        match self.early[at].take(number) {
            Left::Nothing => drop(self.early.swap_remove(at)),
            Left::One => {}
            Left::Two(behind) => self.early.push(behind),
        }
        true
    }

    /// What a number is that was passed before.
    fn broken_by(&mut self, number: u64, last: u64, next: u64) -> Break {
        let NumberCounts { seen, missing, duplicates, resets, backward, found, .. } = &mut self.counts;
        if self.declared.take(number) {
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

    /// Counting goes on from a number, as it was written, that is not the next. What was missing before stays missing.
    fn begin_anew(&mut self, written: u64, next: u64) {
        let number = next.saturating_add(APART);
        self.unwrap.shift(written, number);
        (self.last, self.begin) = (number, number);
        self.next = Some(number.saturating_add(1));
    }

    /// The next numbers missing before the record at a position, as they would have been written.
    pub(crate) fn gap(&self, position: u64) -> Option<Missing> {
        let hole = self.hole_at(position)?;
        let written = |number| self.unwrap.wrap_from(hole.anchor, number);
        Some(Missing { first: written(hole.first), last: written(hole.last), count: hole.count(), after: hole.after })
    }

    /// The next hole that was shown by the record at a position.
    fn hole_at(&self, position: u64) -> Option<&Hole> {
        let ahead = self.holes.get(self.first_hole(position)).filter(|hole| hole.position == position);
        ahead.or_else(|| self.early.iter().filter(|hole| hole.position == position).min_by_key(|hole| hole.first))
    }

    /// The first hole ahead that was shown by the record at a position, or behind it: as numbers rise, so do positions.
    fn first_hole(&self, position: u64) -> usize {
        self.holes.partition_point(|hole| hole.position < position)
    }

    /// Gives up the next numbers missing before the record at a position: no hole any more, but a gap.
    pub(crate) fn declare(&mut self, position: u64) {
        let Some(&hole) = self.hole_at(position) else { return };
        let at = self.first_hole(position);
        if self.holes.get(at).is_some_and(|ahead| ahead.first == hole.first) {
            self.holes.remove(at);
        } else {
            self.early.retain(|early| early.first != hole.first);
        }
        self.counts.missing = self.counts.missing.saturating_add(hole.count());
        self.declared.add(hole.first, hole.last, REMEMBERED);
    }

    /// Numbers that are missing so far and not declared yet.
    pub(crate) fn open(&self) -> u64 {
        self.holes.iter().chain(&self.early).map(Hole::count).fold(0, u64::saturating_add)
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

        /// Any order within reach, the first number included, with some left out: exactly those are told of as missing, each
        /// once, whatever was already told when the rest was seen.
        fn what_is_left_out_is_missing(delays: Vec<u8>, left_out: Vec<u8>, first: u8) -> bool {
            let mut order: Vec<u64> = (0..200).collect();
            order.sort_by_key(|number| number + u64::from(delays.get(*number as usize).copied().unwrap_or(0) % 16));
            order.retain(|number| !left_out.contains(&(*number as u8)));
            let mut numbers = Numbers::new(&Sequence::with(8, |_| None));
            for (position, number) in (0..).zip(&order) {
                if matches!(numbers.take(number.wrapping_add(u64::from(first)), position, None), Said::Break(..)) {
                    return false;
                }
            }
            let open = numbers.open();
            let mut told = Vec::new();
            for position in 0..order.len() as u64 {
                while let Some(Missing { first: from, count, .. }) = numbers.gap(position) {
                    told.extend((0..count).map(|n| (from + n).wrapping_sub(u64::from(first)) & 0xff));
                    numbers.declare(position);
                }
            }
            told.sort_unstable();
            let (Some(least), Some(largest)) = (order.iter().min(), order.iter().max()) else { return true };
            let missing: Vec<u64> = (*least..=*largest).filter(|number| !order.contains(number)).collect();
            told == missing && open == missing.len() as u64 && numbers.open() == 0
        }
    }
}
