//! The sequence numbers of one ring's records, and which are missing.

#[cfg(all(test, not(loom)))]
mod tests;

use crate::account::breaks::{Break, Gaps, Quiet, RECENT};
use crate::account::sequence::{MIDDLE, Sequence, Unwrap};
use crate::instrument::step;
use std::collections::{BTreeMap, VecDeque};

/// How far counting is moved ahead when it begins anew: numbers of before are not met again.
const APART: u64 = 1 << 20;

/// How many gaps are remembered after they were declared, to know a number again that comes after all.
const REMEMBERED: usize = 16;

/// How many holes there is room for from the begin.
const ROOM: usize = 32;

/// The numbers of one ring, of which each record has one, and the holes in them.
///
/// Fed as records are indexed, which is in the order of the ring. Programs interrupt each other between counting and writing,
/// so a number that is ahead leaves a hole, and what comes later may fill it. What is still a hole when the record behind it
/// is yielded is a gap: under the fence rule nothing will fill it any more.
///
/// Whatever numbers come, each takes a time that grows with the logarithm of the holes that are open, and no more than one hole
/// is added.
#[derive(Debug)]
pub(crate) struct Numbers {
    unwrap: Unwrap,
    /// The next number, unwrapped; `None` before the first.
    next: Option<u64>,
    /// The number that came last.
    last: u64,
    /// The first of all, as it was written.
    first: u64,
    /// What records showed to be missing. INVARIANT: in the order of numbers and of positions; empty ones only between others.
    holes: VecDeque<Hole>,
    /// What is left of holes behind a number that was taken out of their middle, by its first number: the last.
    pieces: BTreeMap<u64, u64>,
    /// Holes before the first number that was seen, which a smaller one showed later, by their first number: no more than `RECENT`
    /// numbers in all.
    early: BTreeMap<u64, Hole>,
    /// How many numbers are missing in all of these.
    open: u64,
    /// Gaps declared not long ago.
    declared: Gaps,
    /// The smallest number since counting began, or began anew. What is smaller was counted before, and fills nothing.
    begin: u64,
    /// Whether smaller ones may have been drawn before: it began with a first number, which interrupts may have written.
    began: bool,
    quiet: Quiet,
    pub(crate) counts: NumberCounts,
}

/// Numbers that are missing so far: those from `first` to `last`, and pieces behind them before `end`.
#[derive(Debug, Clone, Copy)]
struct Hole {
    first: u64,
    /// INVARIANT: less than `first` if the hole is empty, and then it has no pieces either.
    last: u64,
    end: u64,
    /// What they are wrapped with.
    anchor: u64,
    /// Where the record lies that showed it.
    position: u64,
    /// The key of the record before that one.
    after: Option<u64>,
}

impl Hole {
    fn count(&self) -> u64 {
        if self.is_empty() { 0 } else { (self.last - self.first).saturating_add(1) }
    }

    fn is_empty(&self) -> bool {
        self.last < self.first
    }

    fn has(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
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

/// The counts of a ring's numbers.
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
    pub(crate) ambiguous: u64,
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
        let unwrap = Unwrap::new(sequence.bits(), sequence.first());
        Self {
            next: sequence.first().map(|_| MIDDLE),
            // None came before the first.
            last: 0,
            begin: MIDDLE,
            began: sequence.first().is_none(),
            quiet: Quiet::default(),
            first: unwrap.wrap(MIDDLE),
            unwrap,
            holes: VecDeque::with_capacity(ROOM),
            pieces: BTreeMap::new(),
            early: BTreeMap::new(),
            open: 0,
            declared: Gaps::new(REMEMBERED),
            counts: NumberCounts::default(),
        }
    }

    /// Takes the number of the record at a position. `after` is the key of the record before it; `lost`, what LOST records
    /// have told since the last number.
    #[inline]
    pub(crate) fn take(&mut self, number: u64, position: u64, after: Option<u64>, lost: u64) -> Said {
        if lost >= self.unwrap.reach() && self.next.is_some() {
            return self.take_far(number, position, after, lost);
        }
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

    /// A number behind so many losses that the counter may have gone round. If it is where all of them together lead, they are
    /// what is missing.
    #[cold]
    fn take_far(&mut self, written: u64, position: u64, after: Option<u64>, lost: u64) -> Said {
        let next = self.next.unwrap_or(MIDDLE);
        // What interrupts wrote lies around it.
        let reach = self.unwrap.reach().min(RECENT) / 8;
        if let Some(number) = self.unwrap.unwrap_near(written, next.saturating_add(lost), reach) {
            let last = std::mem::replace(&mut self.last, number);
            return self.take_other(number, last, position, after);
        }
        self.counts.ambiguous += 1;
        self.counts.seen += 1;
        let expected = self.unwrap.wrap(next);
        // Smaller ones may have been drawn before.
        self.begin_anew(written, next, true);
        self.tell(Break::Ambiguous, expected)
    }

    /// A number so far ahead that what lies between is not missing.
    #[cold]
    fn leap(&mut self, number: u64) -> Said {
        let next = self.next.unwrap_or(MIDDLE);
        let expected = self.unwrap.wrap(next);
        self.counts.forward += 1;
        self.counts.seen += 1;
        self.begin_anew(number, next, false);
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
        let anchor = self.unwrap.anchor();
        let hole = |first, end| Hole { first, last: end - 1, end, anchor, position, after };
        if number >= next {
            self.counts.seen += 1;
            self.quiet.well(true);
            self.next = Some(number.saturating_add(1));
            if number == next {
                return Said::Well;
            }
            self.holes.push_back(hole(next, number));
            self.open = self.open.saturating_add(number - next);
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
            self.early.insert(number + 1, hole(number + 1, begin));
            self.open = self.open.saturating_add(begin - number - 1);
            return Said::Hole;
        }
        let how = self.broken_by(number, last, next);
        let expected = self.unwrap.wrap(next);
        if matches!(how, Break::Reset | Break::Backward) {
            let written = self.unwrap.wrap(number);
            self.begin_anew(written, next, how == Break::Reset);
        }
        self.tell(how, expected)
    }

    /// Takes a number out of the hole it is missing from, if it is.
    fn fill(&mut self, number: u64) -> bool {
        if number < self.begin {
            return false;
        }
        let at = self.holes.partition_point(|hole| {
            step();
            hole.end <= number
        });
        if self.fill_hole(at, number) {
            self.trim();
        } else if !self.fill_early(number) {
            return false;
        }
        self.open -= 1;
        true
    }

    /// The same for a hole that the number may be missing from, or one of its pieces.
    fn fill_hole(&mut self, at: usize, number: u64) -> bool {
        let Some(hole) = self.holes.get_mut(at) else { return false };
        if !hole.has(number) {
            // In one of the pieces behind it, perhaps.
            let found = self.pieces.range(..=number).next_back().map(|(first, last)| (*first, *last));
            let Some((first, last)) = found.filter(|(first, last)| *first > hole.last && number <= *last) else {
                return false;
            };
            self.pieces.remove(&first);
            if first < number {
                self.pieces.insert(first, number - 1);
            }
            if number < last {
                self.pieces.insert(number + 1, last);
            }
            return true;
        }
        if number == hole.first {
            hole.first += 1;
        } else {
            if number < hole.last {
                self.pieces.insert(number + 1, hole.last);
            }
            hole.last = number - 1;
        }
        self.close_up(at);
        true
    }

    /// The same for a hole before the first number that was seen.
    fn fill_early(&mut self, number: u64) -> bool {
        let hole = self.early.range(..=number).next_back().map(|(_, hole)| *hole);
        let Some(hole) = hole.filter(|hole| hole.has(number)) else { return false };
        self.early.remove(&hole.first);
        let rest = [Hole { last: number - 1, ..hole }, Hole { first: number + 1, ..hole }];
        self.early.extend(rest.into_iter().filter(|hole| !hole.is_empty()).map(|hole| (hole.first, hole)));
        true
    }

    /// If nothing is missing any more before the pieces of a hole, goes on with the first of them.
    fn close_up(&mut self, at: usize) {
        let Some(hole) = self.holes.get_mut(at).filter(|hole| hole.is_empty()) else { return };
        if let Some((&first, &last)) = self.pieces.range(hole.first..hole.end).next() {
            self.pieces.remove(&first);
            (hole.first, hole.last) = (first, last);
        }
    }

    /// Forgets empty holes at both ends. Not those in the middle: that would take as long as there are holes.
    fn trim(&mut self) {
        while self.holes.front().is_some_and(Hole::is_empty) {
            step();
            self.holes.pop_front();
        }
        while self.holes.back().is_some_and(Hole::is_empty) {
            step();
            self.holes.pop_back();
        }
    }

    /// What a number is that was passed before.
    fn broken_by(&mut self, number: u64, last: u64, next: u64) -> Break {
        let NumberCounts { seen, missing, duplicates, resets, backward, found, .. } = &mut self.counts;
        if number >= self.begin && self.declared.take(number) {
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

    /// Counting goes on from a number, as it was written, that is not the next. What was missing before stays missing. `began`: whether
    /// smaller ones may have been drawn before it.
    fn begin_anew(&mut self, written: u64, next: u64, began: bool) {
        let ahead = next.saturating_add(APART);
        if !self.unwrap.shift(written, ahead) {
            // At the end of all numbers. What is missing is not told of any more, but counted.
            self.counts.missing = self.counts.missing.saturating_add(self.open);
            self.open = 0;
            self.holes.clear();
            self.pieces.clear();
            self.early.clear();
            self.declared = Gaps::new(REMEMBERED);
        }
        let number = self.unwrap.unwrapped();
        (self.last, self.begin) = (number, number);
        self.next = Some(number + 1);
        // Of one begin at a time: forged numbers begin anew again and again.
        self.began = began && self.early.is_empty();
    }

    /// The next numbers missing before the record at a position, as they would have been written.
    pub(crate) fn gap(&self, position: u64) -> Option<Missing> {
        let hole = self.hole_at(position)?;
        let written = |number| self.unwrap.wrap_from(hole.anchor, number);
        Some(Missing { first: written(hole.first), last: written(hole.last), count: hole.count(), after: hole.after })
    }

    /// The next hole that was shown by the record at a position.
    fn hole_at(&self, position: u64) -> Option<&Hole> {
        let ahead = self.holes.get(self.first_hole(position));
        ahead
            .filter(|hole| hole.position == position && !hole.is_empty())
            .or_else(|| self.early.values().find(|hole| hole.position == position))
    }

    /// The first hole ahead that was shown by the record at a position, or behind it: as numbers rise, so do positions.
    fn first_hole(&self, position: u64) -> usize {
        self.holes.partition_point(|hole| {
            step();
            hole.position < position
        })
    }

    /// Gives up the next numbers missing before the record at a position: no hole any more, but a gap.
    pub(crate) fn declare(&mut self, position: u64) {
        let Some(&Hole { first, last, .. }) = self.hole_at(position) else { return };
        let count = (last - first).saturating_add(1);
        self.open = self.open.saturating_sub(count);
        self.counts.missing = self.counts.missing.saturating_add(count);
        self.declared.add(first, last);
        let at = self.first_hole(position);
        match self.holes.get_mut(at).filter(|hole| hole.position == position) {
            Some(hole) => {
                hole.first = hole.last + 1;
                self.close_up(at);
                self.trim();
            }
            None => drop(self.early.remove(&first)),
        }
    }

    /// Numbers that are missing so far and not declared yet.
    pub(crate) fn open(&self) -> u64 {
        self.open
    }

    /// How many holes are open and for how many there is room, and bytes of each.
    pub(crate) fn list(&self) -> (usize, usize, usize) {
        (self.holes.len(), self.holes.capacity(), size_of::<Hole>())
    }

    /// Makes room for so many holes in all.
    pub(crate) fn grow(&mut self, capacity: usize) {
        self.holes.reserve_exact(capacity.saturating_sub(self.holes.len()));
    }

    /// Gives memory back that the holes do not need.
    pub(crate) fn shrink(&mut self) {
        self.holes.shrink_to(ROOM);
    }

    /// The most bytes that a number adds to these, nodes that are half full included.
    pub(crate) const PIECE: usize = 3 * size_of::<(u64, Hole)>();

    /// Bytes that pieces of holes take, and holes before the first number.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len() * Gaps::EACH + self.early.len() * Self::PIECE
    }
}
