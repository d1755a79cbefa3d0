//! Numbers that are missing, late or wrong.

use super::super::anomaly::Quiet;
use super::super::tracker::{RECENT, REMEMBERED};
use super::*;
use quickcheck::quickcheck;
use std::collections::BTreeMap;

/// Numbers, and what each position of the ring has shown to be missing.
struct Ring {
    numbers: Numbers,
    shown: BTreeMap<u64, Hole>,
}

impl Ring {
    fn new(first: Option<u64>) -> Self {
        Self { numbers: Numbers::new(first), shown: BTreeMap::new() }
    }

    fn take(&mut self, number: u64, position: u64) -> Meaning {
        let said = self.numbers.take(number);
        if let Meaning::Hole(hole) = said {
            self.shown.insert(position, hole);
        }
        said
    }

    /// The next numbers missing before the record at a position, as they would have been written.
    fn gap(&self, position: u64) -> Option<(u64, u64, u64)> {
        let gap = self.numbers.gap(self.shown.get(&position)?)?;
        let (first, last) = self.numbers.written(&gap);
        Some((first, last, gap.count()))
    }

    fn declare(&mut self, position: u64) {
        if let Some(gap) = self.shown.get(&position).and_then(|hole| self.numbers.gap(hole)) {
            self.numbers.declare(&gap);
        }
    }
}

/// The reports about numbers, given in the order of the ring: first anomalies as they come, then gaps.
fn reported(written: &[u64]) -> Vec<String> {
    let mut ring = Ring::new(None);
    let mut reported = Vec::new();
    for (position, number) in (0..).zip(written) {
        if let Meaning::Anomaly(kind, expected) = ring.take(*number, position) {
            reported.push(format!("{number} {kind:?} for {expected}"));
        }
    }
    for position in 0..written.len() as u64 {
        while let Some((first, last, count)) = ring.gap(position) {
            reported.push(format!("{first}-{last} ({count})"));
            ring.declare(position);
        }
    }
    assert_eq!(ring.numbers.open, 0);
    reported
}

#[test]
fn holes_that_fill_are_no_gaps() {
    assert_eq!(reported(&[5, 6, 7]), [""; 0]);
    assert_eq!(reported(&[5, 7, 6, 8]), [""; 0]);
    assert_eq!(reported(&[5, 9, 7, 6, 8, 10]), [""; 0]);
    assert_eq!(reported(&[5, 9, 7, 10]), ["6-6 (1)", "8-8 (1)"]);
    assert_eq!(reported(&[5, 9, 12]), ["6-8 (3)", "10-11 (2)"]);
    assert_eq!(reported(&[u64::MAX - 1, 1, u64::MAX, 3]), ["0-0 (1)", "2-2 (1)"]);
    assert_eq!(reported(&[u64::MAX - 1, 1]), ["18446744073709551615-0 (2)"]);
}

#[test]
fn what_breaks_a_sequence_is_told_apart() {
    assert_eq!(reported(&[5, 6, 6, 7]), ["6 Duplicate for 7"]);
    assert_eq!(reported(&[5, 6, 7, 5, 8]), ["5 Duplicate for 8"]);
    assert_eq!(reported(&[500, 501, 0, 1, 2]), ["0 Jump for 502"]);
    assert_eq!(reported(&[500, 700, 701, 500, 501]), ["500 Jump for 702", "501-699 (199)"]);
    assert_eq!(reported(&[500, 501, 400, 401, 403]), ["400 Jump for 502", "402-402 (1)"]);
    // Numbers are missing, and counting restarts before they are reported.
    assert_eq!(reported(&[500, 503, 0, 2]), ["0 Jump for 504", "501-502 (2)", "1-1 (1)"]);
    // Further ahead than losses explain, and back.
    assert_eq!(reported(&[5, 6, 1 << 50, 7, 8]), ["1125899906842624 Jump for 7"]);
}

/// After a restart, earlier numbers fill no hole, and their holes are never filled.
#[test]
fn numbers_of_before_are_not_met_again() {
    let far_back = 0u64.wrapping_sub(APART + 1000);
    assert_eq!(reported(&[500, 2_000_000, 0, 1, far_back]), ["0 Jump for 2000001", "501-1999999 (1999499)"]);
}

/// At the end of all places counting restarts, and missing numbers are still counted.
#[test]
fn counting_goes_on_at_the_end_of_all_places() {
    let mut numbers = Numbers::new(None);
    assert_eq!(numbers.take(7), Meaning::Expected);
    // As after many numbers that were each as far ahead as allowed.
    let (near, number) = (u64::MAX - 10, 1000);
    numbers.offset = near - number;
    numbers.tracker.restart(near);
    assert!(matches!(numbers.take(number + 3), Meaning::Hole(_)));
    assert_eq!(numbers.take(number + 20), Meaning::Anomaly(AnomalyKind::Jump, number + 4));
    assert_eq!((numbers.counts.missing, numbers.open, numbers.last), (2, 0, MIDDLE));
    assert_eq!(numbers.take(number + 21), Meaning::Expected);
    // The very last place.
    numbers.offset = u64::MAX - number;
    numbers.tracker.restart(u64::MAX - 1);
    assert_eq!(numbers.take(number), Meaning::Expected);
    assert_eq!(numbers.take(number + 1), Meaning::Expected, "a jump that is not reported so soon after");
    assert_eq!((numbers.counts.anomalies[AnomalyKind::Jump as usize], numbers.last), (2, MIDDLE));
}

/// There, missing numbers count as missing and are not reported again.
#[test]
fn nothing_is_kept_over_the_end_of_all_numbers() {
    let mut ring = Ring::new(None);
    for (position, number) in (0..).zip([500, 503, 510, 506, 490]) {
        ring.take(number, position);
    }
    ring.declare(1);
    let Ring { mut numbers, .. } = ring;
    assert!(numbers.tracker.take_missing(MIDDLE + 2) && numbers.holes.len() > 1);
    assert_eq!((numbers.open, numbers.counts.missing), (5 + 9, 2));
    numbers.tracker.restart(CEILING - APART);
    numbers.begin_anew(501);
    assert_eq!((numbers.holes.len(), numbers.open, numbers.counts.missing), (0, 0, 2 + 5 + 9));
    assert!(!numbers.tracker.take_missing(MIDDLE + 1));
    assert_eq!(numbers.take(502), Meaning::Expected);
}

#[test]
fn what_comes_out_of_order_breaks_nothing() {
    // Interrupts while the first was being written, also after a reset.
    assert_eq!(reported(&[1, 0, 2, 3]), [""; 0]);
    assert_eq!(reported(&[6, 5, 7]), [""; 0]);
    assert_eq!(reported(&[500, 501, 1, 0, 2, 3]), ["1 Jump for 502"]);
    assert_eq!(reported(&[9, 5, 10]), ["6-8 (3)"]);
    // Any number that came before, not long ago.
    assert_eq!(reported(&[0, 1, 2, 1, 3]), ["1 Duplicate for 3"]);
    assert_eq!(reported(&[u64::MAX - 1, u64::MAX, 0, 1, 2, 1, 3]), ["1 Duplicate for 3"]);
}

/// Each written twice, for ever.
#[test]
fn what_breaks_all_the_time_is_reported_once() {
    let written: Vec<u64> = (0..20_000).map(|number| number / 2).collect();
    assert_eq!(reported(&written).len(), 1);
}

#[test]
fn a_number_that_comes_after_its_gap_was_declared_is_found() {
    let mut ring = Ring::new(None);
    assert_eq!(ring.take(1, 0), Meaning::Expected);
    assert!(matches!(ring.take(4, 1), Meaning::Hole(_)));
    ring.declare(1);
    assert_eq!(ring.numbers.counts.missing, 2);
    assert_eq!(ring.take(3, 2), Meaning::Anomaly(AnomalyKind::Late, 5));
    let NumberCounts { missing, anomalies } = ring.numbers.counts;
    assert_eq!((missing, anomalies[AnomalyKind::Late as usize]), (1, 1));
    assert_eq!(ring.take(5, 3), Meaning::Expected);
}

#[test]
fn what_runs_backwards_for_ever_is_reported_once() {
    let written: Vec<u64> = (0..100_000).rev().collect();
    assert_eq!(reported(&written).len(), 1);
    let same = [7; 100_000];
    assert_eq!(reported(&same), ["7 Duplicate for 8"]);
}

quickcheck! {
    /// For any bytes nothing panics, and each number is reported at most once.
    fn any_numbers(written: Vec<u64>) -> bool {
        let mut ring = Ring::new(None);
        let mut reported = 0;
        for (position, number) in (0..).zip(&written) {
            reported += u64::from(matches!(ring.take(*number, position), Meaning::Anomaly(..)));
            if position % 3 == 0 {
                while ring.gap(position).is_some() {
                    ring.declare(position);
                }
            }
        }
        let anomalies = ring.numbers.counts.anomalies.iter().sum();
        reported <= anomalies && anomalies <= written.len() as u64
    }

    /// For any order within reach, the first number included, with some numbers left out: exactly these are reported as
    /// missing, each once, no matter when the reports are taken.
    fn what_is_left_out_is_missing(delays: Vec<u8>, left_out: Vec<u8>, first: u8) -> bool {
        // Half of them go over the end of 64 bits.
        let first = u64::from(first).wrapping_sub(128);
        let mut order: Vec<u64> = (0..200).collect();
        order.sort_by_key(|number| number + u64::from(delays.get(*number as usize).copied().unwrap_or(0) % 16));
        order.retain(|number| !left_out.contains(&(*number as u8)));
        let mut ring = Ring::new(None);
        for (position, number) in (0..).zip(&order) {
            if matches!(ring.take(number.wrapping_add(first), position), Meaning::Anomaly(..)) {
                return false;
            }
        }
        let open = ring.numbers.open;
        let mut reported = Vec::new();
        for position in 0..order.len() as u64 {
            while let Some((from, _, count)) = ring.gap(position) {
                reported.extend((0..count).map(|n| from.wrapping_add(n).wrapping_sub(first)));
                ring.declare(position);
            }
        }
        reported.sort_unstable();
        let (Some(least), Some(largest)) = (order.iter().min(), order.iter().max()) else { return true };
        let missing: Vec<u64> = (*least..=*largest).filter(|number| !order.contains(number)).collect();
        reported == missing && open == missing.len() as u64 && ring.numbers.open == 0
    }
}

/// A model of `Numbers` with sets: each missing number, one by one, with the record that showed it. Each restart has
/// its own set.
struct Sets {
    counting: u64,
    next: Option<u64>,
    first: u64,
    last: u64,
    begin: u64,
    began: bool,
    missing: BTreeMap<u64, u64>,
    declared: Ranges,
    quiet: Quiet,
    counts: NumberCounts,
}

impl Sets {
    const APART: u64 = 1 << 40;

    fn new(first: Option<u64>) -> Self {
        let counting = Self::APART;
        let begin = counting + first.unwrap_or(0);
        Self {
            counting,
            next: first.map(|_| begin),
            first: begin,
            last: u64::MAX,
            begin,
            began: first.is_none(),
            missing: BTreeMap::new(),
            declared: Ranges::new(REMEMBERED),
            quiet: Quiet::default(),
            counts: NumberCounts::default(),
        }
    }

    fn take(&mut self, written: u64, position: u64) -> Is {
        let number = self.counting + written;
        let last = std::mem::replace(&mut self.last, number);
        let Some(next) = self.next else {
            (self.first, self.begin, self.next) = (number, number, Some(number + 1));
            return Is::Expected;
        };
        let hole = |from: u64, to: u64| (from..to).map(move |missing| (missing, position));
        let early = self.began && number < self.begin && next - number <= RECENT;
        if number >= next || early {
            let shown = if early { number + 1..self.begin } else { next..number };
            self.begin = self.begin.min(number);
            self.next = Some(next.max(number + 1));
            if !early {
                self.quiet.came(true);
            }
            let said = if shown.is_empty() { Is::Expected } else { Is::Hole };
            self.missing.extend(hole(shown.start, shown.end));
            return said;
        }
        if self.missing.remove(&number).is_some() {
            self.quiet.came(true);
            return Is::Expected;
        }
        let kind = if self.declared.take(number) {
            self.counts.missing -= 1;
            AnomalyKind::Late
        } else if number == last || (next - number <= RECENT && number >= self.begin) {
            AnomalyKind::Duplicate
        } else {
            let is_reset = written <= 1 || number % Self::APART == self.first % Self::APART;
            self.counting += Self::APART;
            self.begin = self.counting + written;
            (self.last, self.next) = (self.begin, Some(self.begin + 1));
            self.began = is_reset;
            AnomalyKind::Jump
        };
        let may = self.quiet.may_report(kind);
        self.quiet.reported(kind);
        self.counts.anomalies[kind as usize] += 1;
        if may { Is::Anomaly(kind, next % Self::APART) } else { Is::Expected }
    }

    /// The first run of missing numbers that the record at a position showed: first and last.
    fn gap(&self, position: u64) -> Option<(u64, u64)> {
        let mut shown = self.missing.iter().filter(|(_, at)| **at == position).map(|(number, _)| *number);
        let first = shown.next()?;
        Some((first, (first..).zip(std::iter::once(first).chain(shown)).take_while(|(a, b)| a == b).last()?.0))
    }

    fn declare(&mut self, position: u64) {
        let Some((first, last)) = self.gap(position) else { return };
        self.missing.retain(|number, _| !(first..=last).contains(number));
        self.counts.missing += last - first + 1;
        self.declared.add(first, last);
    }
}

/// The report about a number, without the position of the hole.
#[derive(Debug, PartialEq)]
enum Is {
    Expected,
    Hole,
    Anomaly(AnomalyKind, u64),
}

impl From<Meaning> for Is {
    fn from(said: Meaning) -> Self {
        match said {
            Meaning::Expected => Self::Expected,
            Meaning::Hole(_) => Self::Hole,
            Meaning::Anomaly(kind, expected) => Self::Anomaly(kind, expected),
        }
    }
}

/// For any numbers and any reports, the holes equal those of the model.
#[test]
fn numbers_are_what_sets_say() {
    for course in 0..200u64 {
        let first = [None, Some(0), Some(300)][course as usize % 3];
        let (mut ring, mut said) = (Ring::new(first), Sets::new(first));
        let mut state = course + 1;
        let mut random = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let mut next = 300 + random(100);
        for position in 0..200 {
            let most = [8, 70, 200][random(3) as usize];
            let number = match random(20) {
                0..8 => next,
                8..12 => next + random(most),
                12..18 => next.saturating_sub(random(most)),
                // Anomalies are rare, so that there is a sequence to break.
                18 if random(4) == 0 => random(3),
                _ => next.saturating_sub(1),
            };
            assert_eq!(Is::from(ring.take(number, position)), said.take(number, position), "{number} in {course}");
            next = said.next.unwrap() % Sets::APART;
            assert_eq!(ring.numbers.open, said.missing.len() as u64);
            let at = position.saturating_sub(random(30));
            for _ in 0..random(3) {
                let gap = said.gap(at);
                let written = |number: u64| number % Sets::APART;
                let gap = gap.map(|(first, last)| (written(first), written(last), last - first + 1));
                assert_eq!(ring.gap(at), gap, "{at} in {course}");
                ring.declare(at);
                said.declare(at);
            }
            let Ring { numbers, .. } = &ring;
            assert_eq!((numbers.counts, numbers.open), (said.counts, said.missing.len() as u64), "{course}");
            assert_eq!(numbers.holes.len() == 0, said.missing.is_empty(), "{course}");
        }
    }
}

/// After a leap no earlier number is awaited. The furthest number that is no leap leaves a hole.
#[test]
fn what_may_come_behind_a_number_that_counting_begins_with() {
    let leap = 1 << 50;
    let mut numbers = Numbers::new(None);
    [5, 6, leap, leap - 1].into_iter().for_each(|number| _ = numbers.take(number));
    assert_eq!(numbers.counts.anomalies[AnomalyKind::Jump as usize], 2);
    for (number, is_hole) in [(MOST_AHEAD + 5, true), (MOST_AHEAD + 6, false)] {
        let mut numbers = Numbers::new(None);
        numbers.take(5);
        assert_eq!(matches!(numbers.take(number), Meaning::Hole(_)), is_hole, "{number}");
        assert_eq!(numbers.open, if is_hole { MOST_AHEAD - 1 } else { 0 });
    }
}
