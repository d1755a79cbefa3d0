//! Counters that are too narrow for what is unread or lost: what cannot be told apart is noticed, and never called proven.

use perfweave::{Break, Class, Fence, Full, Hold, Item, Key, Layout, Merge, Order, Sequence, sim};
use std::sync::atomic::{AtomicBool, Ordering};

/// Widths in bits. Wider counters take longer to go round.
const NARROW: [u32; 2] = [5, 8];
const WIDER: [u32; 2] = [12, 16];

fn counter(bits: u32) -> Sequence {
    Sequence::with(bits, |record| record.payload()?.u64(8))
}

/// The true number, and the number as it is written, of which higher bits are ignored.
fn payload(number: u64, bits: u32) -> Vec<u8> {
    [number.to_ne_bytes(), (number & ((1 << bits) - 1)).to_ne_bytes()].concat()
}

/// What came of numbers of the whole machine.
#[derive(Debug, Default)]
struct Outcome {
    ambiguous: u64,
    gaps: u64,
    records: u64,
    proven: u64,
    /// Proven numbers behind a larger one.
    wrong: u64,
}

/// Writes numbers on several CPUs and looks after so many, with a fence each time. `lost` says of which numbers nothing is written.
fn run(bits: u32, hold: &Hold, unread: u64, total: u64, lost: impl Fn(u64) -> bool) -> (Outcome, Merge, sim::Kernel) {
    let kernel = sim::Kernel::with(&[0, 1, 2], 16 << 20, Layout::new(4 | 1024, true, 0));
    let order = Order::new().key(Key::Sequence(counter(bits))).hold(hold.clone()).when_full(Full::Discard);
    let mut merge = Merge::new(kernel.rings(), order).unwrap();
    let mut outcome = Outcome::default();
    let mut largest = None;
    for number in 0..total {
        let cpu = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32 % 3;
        if lost(number) {
            kernel.lose(cpu, 1);
        } else {
            assert!(kernel.emit(cpu, 1 + number, &payload(number, bits)));
        }
        if number % unread == unread - 1 {
            take(&mut merge, &mut outcome, &mut largest);
        }
    }
    // A number that is missing before what is held takes another fence.
    (0..3).for_each(|_| take(&mut merge, &mut outcome, &mut largest));
    assert_eq!(merge.held(), 0);
    (outcome, merge, kernel)
}

/// Looks, with a fence, and takes what comes.
fn take(merge: &mut Merge, outcome: &mut Outcome, largest: &mut Option<u64>) {
    merge.refresh(0);
    if merge.begin_fence() {
        merge.end_fence();
        merge.refresh(0);
    }
    for event in merge.batch() {
        match event.item() {
            Item::Record(record) => {
                let number = record.payload().unwrap().u64(0).unwrap();
                let is_proven = event.class() == Class::Proven;
                outcome.records += 1;
                outcome.proven += u64::from(is_proven);
                outcome.wrong += u64::from(is_proven && Some(number) <= *largest);
                *largest = (*largest).max(Some(number));
            }
            Item::Irregular(irregular) if irregular.how == Break::Ambiguous => outcome.ambiguous += 1,
            Item::Irregular(_) | Item::Lost(_) => {}
            Item::Gap(gap) => outcome.gaps += gap.count,
            other => panic!("{other:?}"),
        }
    }
}

fn holds() -> [Hold; 3] {
    let dense = |first| Hold::Dense { first, fence: Fence::Auto };
    [Hold::FENCE, dense(Some(0)), dense(None)]
}

/// Up to the documented limit, all is as with a counter that never wraps.
#[test]
fn within_the_limit_all_is_proven() {
    NARROW.into_iter().for_each(within);
}

#[test]
fn within_the_limit_all_is_proven_in_wider_counters() {
    WIDER.into_iter().for_each(within);
}

fn within(bits: u32) {
    let limit = 7 * (1u64 << bits) / 16;
    for unread in [1, limit / 2, limit - 1] {
        for hold in holds() {
            let (outcome, merge, _) = run(bits, &hold, unread.max(1), 20 << bits.min(12), |_| false);
            let all = 20 << bits.min(12);
            let told = format!("{bits} bits, {unread} unread, {hold}: {outcome:?}");
            assert_eq!((outcome.records, outcome.proven, outcome.wrong), (all, all, 0), "{told}");
            assert_eq!((outcome.ambiguous, outcome.gaps), (0, 0), "{told}");
            assert!(merge.ledger().is_complete(), "{}", merge.ledger());
        }
    }
}

/// Beyond, nothing that is out of order is called proven, no gap is made up, and the ledger is not balanced.
#[test]
fn beyond_the_limit_it_is_said() {
    NARROW.into_iter().for_each(beyond);
}

#[test]
fn beyond_the_limit_it_is_said_in_wider_counters() {
    WIDER.into_iter().for_each(beyond);
}

fn beyond(bits: u32) {
    for unread in [1 << (bits - 1), 3 << (bits - 2), 1 << bits, 5 << bits] {
        for hold in holds() {
            let total = if bits == 16 { 3 } else { 12 } * unread;
            let (outcome, merge, _) = run(bits, &hold, unread, total, |_| false);
            let told = format!("{bits} bits, {unread} unread, {hold}: {outcome:?}");
            assert_eq!((outcome.records, outcome.wrong, outcome.gaps), (total, 0, 0), "{told}");
            assert!(outcome.ambiguous > 0 && merge.stats().ambiguous >= outcome.ambiguous, "{told}");
            let ledger = merge.ledger();
            assert!(!ledger.is_balanced() && ledger.ambiguous > 0, "{ledger}");
            assert!(ledger.to_string().contains("NOT ACCOUNTED FOR"), "{ledger}");
        }
    }
}

/// What is lost counts as what is unread does, whether a LOST record tells of it or not.
#[test]
fn losses_beyond_the_limit_are_said_too() {
    NARROW.into_iter().for_each(losses);
}

#[test]
fn losses_beyond_the_limit_are_said_too_in_wider_counters() {
    WIDER.into_iter().for_each(losses);
}

fn losses(bits: u32) {
    let range = 1u64 << bits;
    for hold in holds() {
        // A tenth is lost all the time: within the limit, and each missing number is told of.
        let total = 8 * range;
        let (outcome, merge, kernel) = run(bits, &hold, range / 8, total, |number| number % 10 == 3);
        let told = format!("{bits} bits, {hold}: {outcome:?}");
        assert_eq!((outcome.ambiguous, outcome.wrong), (0, 0), "{told}");
        let lost: u64 = (0..3).map(|cpu| kernel.dropped(cpu)).sum();
        assert_eq!(outcome.records + lost, total, "{told}");
        if matches!(hold, Hold::Dense { .. }) {
            // Of the last ones nothing is known yet.
            assert!(lost - outcome.gaps <= range / 10 && merge.ledger().is_balanced(), "{told}");
        }
        // Half the range and more at once.
        let hole = |number: u64| (3 * range..3 * range + range * 5 / 8).contains(&number);
        let (outcome, merge, _) = run(bits, &hold, range / 8, total, hole);
        let told = format!("{bits} bits, {hold}: {outcome:?}");
        assert_eq!((outcome.wrong, outcome.records), (0, total - range * 5 / 8), "{told}");
        assert!(outcome.ambiguous == 1 && !merge.ledger().is_balanced(), "{told}");
        // Behind it order is proven again.
        assert!(outcome.proven > outcome.records - range, "{told}");
    }
}

/// A CPU's own numbers: what LOST records tell says how far they went round; where it does not fit, that is said.
#[test]
fn a_cpus_own_numbers_are_told_apart_by_what_was_lost() {
    NARROW.into_iter().for_each(own);
}

#[test]
fn a_cpus_own_numbers_are_told_apart_by_what_was_lost_in_wider_counters() {
    WIDER.into_iter().for_each(own);
}

fn own(bits: u32) {
    let range = 1u64 << bits;
    for lost in [range / 2, range - 1, range, range + 5, 3 * range + range / 2, 100 * range] {
        // All that was lost was numbered; or not all of it.
        for numbered in [lost, lost - range / 2 + 1] {
            let kernel = sim::Kernel::with(&[0], 1 << 20, Layout::new(4 | 1024, true, 0));
            let order = Order::new().numbers(counter(bits)).when_full(Full::Discard);
            let mut merge = Merge::new(kernel.rings(), order).unwrap();
            let mut number = 0;
            let mut emit = |count: u64| {
                for _ in 0..count {
                    number += 1;
                    assert!(kernel.emit(0, number, &payload(number, bits)));
                }
            };
            emit(100);
            kernel.lose(0, lost);
            number += numbered;
            let mut emit = |count: u64| {
                for _ in 0..count {
                    number += 1;
                    assert!(kernel.emit(0, number, &payload(number, bits)));
                }
            };
            emit(100);
            merge.refresh(0);
            assert!(merge.begin_fence());
            merge.end_fence();
            merge.refresh(0);
            let (mut gaps, mut ambiguous) = (0, 0);
            for event in merge.batch() {
                match event.item() {
                    Item::Gap(gap) => gaps += gap.count,
                    Item::Irregular(irregular) => {
                        assert_eq!(irregular.how, Break::Ambiguous);
                        ambiguous += 1;
                    }
                    _ => {}
                }
            }
            let told = format!("{bits} bits, {lost} lost, {numbered} numbered");
            let account = merge.ledger().accounts[0];
            assert_eq!((account.yielded, account.lost), (200, lost), "{told}");
            if numbered == lost {
                assert_eq!((gaps, ambiguous, account.missing), (lost, 0, lost), "{told}");
                assert!(account.is_balanced(), "{told}: {account}");
            } else {
                assert_eq!((gaps, ambiguous, account.ambiguous), (0, 1, 1), "{told}");
                assert!(!account.is_balanced(), "{told}: {account}");
            }
        }
    }
}

/// What one CPU dropped last is missing behind another's numbers: the kernel's count explains it.
#[test]
fn a_dense_ledger_counts_what_no_lost_record_tells() {
    let kernel = sim::Kernel::with(&[0, 1], 4096, Layout::new(4 | 1024, true, 0));
    let hold = Hold::Dense { first: Some(0), fence: Fence::Auto };
    let order = Order::new().key(Key::Sequence(Sequence::u64(0))).hold(hold).when_full(Full::Discard);
    let mut merge = Merge::new(kernel.rings(), order).unwrap();
    let mut number = 0u64;
    let mut emit = |cpu| {
        number += 1;
        kernel.emit(cpu, 1, &(number - 1).to_ne_bytes())
    };
    while emit(0) {}
    (0..40).for_each(|_| assert!(!emit(0)));
    // The other goes on; the first never writes again.
    (0..10).for_each(|_| assert!(emit(1)));
    merge.refresh(0);
    assert!(merge.begin_fence() || merge.batch().count() > 0);
    merge.batch().count();
    if merge.begin_fence() {
        merge.end_fence();
    }
    merge.end_fence();
    merge.refresh(0);
    merge.batch().count();
    let ledger = merge.ledger();
    assert_eq!((ledger.missing, ledger.total().lost, ledger.unexplained), (41, 41, 0), "{ledger}");
    assert!(ledger.is_balanced(), "{ledger}");
}

/// What is written and lost while a look goes on, behind a head that it has loaded: the kernel's count, asked when it is done, has
/// these losses, and the next look finds records from before them.
fn lost_during_a_look(hold: Hold, lost: u64, further: u64) {
    let kernel = sim::Kernel::with(&[0], 1 << 20, Layout::new(4 | 1024, true, 0));
    let writer = kernel.clone();
    let done = AtomicBool::new(false);
    let emit = |kernel: &sim::Kernel, numbers: std::ops::Range<u64>| {
        numbers.for_each(|n| assert!(kernel.emit(0, 100 + n, &n.to_ne_bytes())));
    };
    let sequence = Sequence::with(8, move |record| {
        let number = record.payload()?.u64(0)?;
        if number == 9 && !done.swap(true, Ordering::Relaxed) {
            emit(&writer, 10..20);
            writer.lose(0, lost);
            emit(&writer, 20 + lost..20 + lost + further);
        }
        Some(number)
    });
    let order = Order::new().key(Key::Sequence(sequence)).hold(hold.clone()).when_full(Full::Discard);
    let mut merge = Merge::new(kernel.rings(), order).unwrap();
    let mut largest = None;
    let mut read = || {
        merge.refresh(0);
        if merge.begin_fence() {
            merge.end_fence();
            merge.refresh(0);
        }
        for event in merge.batch() {
            let Some(number) = event.record().and_then(|record| record.payload()?.u64(0)) else { continue };
            let is_wrong = event.class() == Class::Proven && Some(number) <= largest;
            assert!(!is_wrong, "{hold}, {lost} lost: {number} is called proven behind {largest:?}");
            largest = largest.max(Some(number));
        }
    };
    emit(&kernel, 0..10);
    (0..4).for_each(|_| read());
    if further == 0 {
        // Each time less than can be told apart; together more.
        kernel.lose(0, 100);
        (0..2).for_each(|_| read());
        emit(&kernel, 20 + lost + 100..20 + lost + 120);
    } else {
        emit(&kernel, 20 + lost + further..60 + lost + further);
    }
    (0..4).for_each(|_| read());
    let ledger = merge.ledger();
    assert!(ledger.ambiguous > 0 && !ledger.is_balanced(), "{hold}, {lost} lost: {ledger}");
}

#[test]
fn losses_during_a_look_are_not_passed_with_it() {
    for lost in [100, 150, 200, 220, 240, 256] {
        for hold in [Hold::FENCE, Hold::Dense { first: Some(0), fence: Fence::Auto }] {
            if lost > 112 {
                lost_during_a_look(hold.clone(), lost, 20);
            }
            lost_during_a_look(hold, lost, 0);
        }
    }
}
