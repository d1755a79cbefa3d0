//! Numbers that are missing, late or wrong.

use super::*;
use quickcheck::quickcheck;

/// What is told of numbers, given in the order of the ring: breaks as they come, gaps in the end.
fn told(bits: u32, written: &[u64]) -> Vec<String> {
    let mut numbers = Numbers::new(&Sequence::with(bits, |_| None));
    let mut told = Vec::new();
    for (position, number) in (0..).zip(written) {
        if let Said::Break(how, expected) = numbers.take(*number, position, None, 0) {
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
    assert_eq!(told(64, &[5, 6, 1 << 50, 7, 8]), ["1125899906842624 Forward for 7", "7 Backward for 1125899906842625"]);
}

/// What was counted before counting began anew fills nothing, and nothing fills it.
#[test]
fn numbers_of_before_are_not_met_again() {
    let far_back = 0u64.wrapping_sub(APART + 1000);
    assert_eq!(
        told(64, &[500, 2_000_000, 0, 1, far_back]),
        ["0 Reset for 2000001".into(), format!("{far_back} Backward for 2"), "501-1999999 (1999499)".into()]
    );
}

/// At the end of all numbers counting begins anew, and what is missing is still counted.
#[test]
fn counting_goes_on_at_the_end_of_all_numbers() {
    let mut numbers = Numbers::new(&Sequence::with(64, |_| None));
    assert_eq!(numbers.take(7, 0, None, 0), Said::Well);
    // As after 2^30 numbers that were each as far ahead as may be.
    let near = u64::MAX / 4 * 3 - 10;
    assert!(numbers.unwrap.shift(1000, near) || numbers.unwrap.shift(1000, near - (1 << 33)));
    numbers.next = Some(numbers.unwrap.unwrapped() + 1);
    assert_eq!(numbers.take(1003, 8, None, 0), Said::Hole);
    let mut number = 1003u64;
    for position in 2..20 {
        number += 1 << 31;
        numbers.take(number, 8 * position, None, 0);
    }
    assert!(numbers.counts.forward > 0, "{:?}", numbers.counts);
    let missing = numbers.counts.missing + numbers.open();
    assert!(missing >= 2 && numbers.take(number + 1, 200, None, 0) == Said::Well);
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
    assert_eq!(numbers.take(1, 0, None, 0), Said::Well);
    assert_eq!(numbers.take(4, 1, None, 0), Said::Hole);
    numbers.declare(1);
    assert_eq!(numbers.counts.missing, 2);
    assert_eq!(numbers.take(3, 2, None, 0), Said::Break(Break::Found, 5));
    assert_eq!((numbers.counts.missing, numbers.counts.found), (1, 1));
    assert_eq!(numbers.take(5, 3, None, 0), Said::Well);
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
            told += usize::from(matches!(numbers.take(*number, position, None, 0), Said::Break(..)));
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
            if matches!(numbers.take(number.wrapping_add(u64::from(first)), position, None, 0), Said::Break(..)) {
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
