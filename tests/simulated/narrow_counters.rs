//! Counters of 32 bits: if more records are lost than 32 bits can count, the merge notices it and marks none of these numbers as proven.

use crate::small;
use perfweave::{AnomalyKind, Certainty, Fence, Hold, Item, Key, Merge, Order, Sequence, WhenFull, sim};
use std::sync::atomic::{AtomicBool, Ordering};

fn counter(bits: u32) -> Sequence {
    Sequence::with(bits, |record| record.payload()?.u64(8))
}

/// The true number, and the number as it is written in 32 bits.
fn payload(number: u64) -> Vec<u8> {
    [number.to_ne_bytes(), (number & u64::from(u32::MAX)).to_ne_bytes()].concat()
}

fn holds() -> [Hold; 3] {
    let dense = |first| Hold::Dense { first, fence: Fence::Auto };
    [Hold::FENCE, dense(Some(0)), dense(None)]
}

/// The outcome for numbers of the whole machine.
#[derive(Debug, Default)]
struct Outcome {
    wraparounds: u64,
    gaps: u64,
    records: u64,
    proven: u64,
    /// Proven numbers after a larger one.
    wrong: u64,
}

/// Refreshes, with a fence, and takes all events.
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
                let is_proven = event.certainty() == Certainty::Proven;
                outcome.records += 1;
                outcome.proven += u64::from(is_proven);
                outcome.wrong += u64::from(is_proven && Some(number) <= *largest);
                *largest = (*largest).max(Some(number));
            }
            Item::Anomaly(anomaly) if anomaly.kind == AnomalyKind::Wraparound => outcome.wraparounds += 1,
            Item::Anomaly(_) | Item::Lost(_) => {}
            Item::Gap(gap) => outcome.gaps += gap.count,
            other => panic!("{other:?}"),
        }
    }
}

/// Lost records count like unread ones, with or without a LOST record. Up to the limit they are a gap. Beyond it the stream reports a
/// wraparound, marks nothing as proven that is not, and invents no gap.
#[test]
fn losses_beyond_the_limit_are_said() {
    let range = 1u64 << 32;
    let limit = 7 * (range / 16);
    for hold in holds() {
        for lost in [10, range / 8, limit - 3000, limit, range / 2, range - 50, range, range + 50, 5 * range] {
            // So small that the merge suspects a full ring.
            let kernel = small(&[0, 1, 2], 64 << 10);
            let order = Order::new().key(Key::Sequence(counter(32))).hold(hold.clone()).when_full(WhenFull::Discard);
            let mut merge = Merge::new(kernel.rings(), order).unwrap();
            let (mut outcome, mut largest) = (Outcome::default(), None);
            for number in (0..1000).chain(1000 + lost..3000 + lost) {
                let cpu = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32 % 3;
                if number == 1000 + lost {
                    kernel.lose(1, lost);
                }
                assert!(kernel.emit(cpu, 1 + number, &payload(number)));
                if number % 100 == 99 {
                    take(&mut merge, &mut outcome, &mut largest);
                }
            }
            // A missing number before held records takes another fence.
            (0..3).for_each(|_| take(&mut merge, &mut outcome, &mut largest));
            assert_eq!(merge.held(), 0);
            let told = format!("{hold}, {lost} lost: {outcome:?}");
            assert_eq!((outcome.wrong, outcome.records), (0, 3000), "{told}");
            let ledger = merge.ledger();
            if lost < limit {
                assert_eq!((outcome.wraparounds, outcome.proven), (0, 3000), "{told}");
                assert_eq!(outcome.gaps, if matches!(hold, Hold::Dense { .. }) { lost } else { 0 }, "{told}");
                assert!(ledger.is_balanced(), "{told}: {ledger}");
            } else {
                assert_eq!((outcome.wraparounds, outcome.gaps), (1, 0), "{told}");
                assert!(!ledger.is_balanced() && ledger.to_string().contains("NOT ACCOUNTED FOR"), "{told}: {ledger}");
                // After it the order is proven again.
                assert!((2000..3000).contains(&outcome.proven), "{told}");
            }
        }
    }
}

/// A CPU's own numbers: the counts of LOST records say how far they went on. If the counts do not fit, the stream reports a wraparound.
#[test]
fn a_cpus_own_numbers_are_told_apart_by_what_was_lost() {
    let range = 1u64 << 32;
    for lost in [range / 2, range - 1, range, range + 5, 3 * range + range / 2, 100 * range] {
        // All lost records had numbers, or only some of them.
        for numbered in [lost, lost - range / 2 + 1] {
            let kernel = small(&[0], 1 << 20);
            let order = Order::new().numbers(counter(32)).when_full(WhenFull::Discard);
            let mut merge = Merge::new(kernel.rings(), order).unwrap();
            let mut number = 0;
            let mut emit = |count: u64| {
                for _ in 0..count {
                    number += 1;
                    assert!(kernel.emit(0, number, &payload(number)));
                }
            };
            emit(100);
            kernel.lose(0, lost);
            number += numbered;
            let mut emit = |count: u64| {
                for _ in 0..count {
                    number += 1;
                    assert!(kernel.emit(0, number, &payload(number)));
                }
            };
            emit(100);
            merge.refresh(0);
            assert!(merge.begin_fence());
            merge.end_fence();
            merge.refresh(0);
            let (mut gaps, mut wraparounds) = (0, 0);
            for event in merge.batch() {
                match event.item() {
                    Item::Gap(gap) => gaps += gap.count,
                    Item::Anomaly(anomaly) => {
                        assert_eq!(anomaly.kind, AnomalyKind::Wraparound);
                        wraparounds += 1;
                    }
                    _ => {}
                }
            }
            let told = format!("{lost} lost, {numbered} numbered");
            let account = merge.ledger().accounts[0];
            assert_eq!((account.yielded, account.lost), (200, lost), "{told}");
            if numbered == lost {
                assert_eq!((gaps, wraparounds, account.missing), (lost, 0, lost), "{told}");
                assert!(account.is_balanced(), "{told}: {account}");
            } else {
                assert_eq!((gaps, wraparounds, account.wraparounds), (0, 1, 1), "{told}");
                assert!(!account.is_balanced(), "{told}: {account}");
            }
        }
    }
}

/// The last numbers that one CPU dropped are missing among another's numbers: the kernel's count explains them.
#[test]
fn a_dense_ledger_counts_what_no_lost_record_tells() {
    let kernel = small(&[0, 1], 4096);
    let hold = Hold::Dense { first: Some(0), fence: Fence::Auto };
    let order = Order::new().key(Key::Sequence(Sequence::u64(0))).hold(hold).when_full(WhenFull::Discard);
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
    let total = ledger.total();
    assert_eq!((total.missing, total.lost, total.unexplained), (41, 41, 0), "{ledger}");
    assert!(ledger.is_balanced(), "{ledger}");
}

/// The counter's range in 256 parts.
const PART: u64 = 1 << 24;

/// Records are written and lost during a refresh, after it has loaded the head. The kernel's count, read at the end of the refresh, has
/// these losses, and the next refresh finds records from before them.
fn lost_during_a_look(hold: Hold, lost: u64, further: u64) {
    let kernel = small(&[0], 64 << 10);
    let writer = kernel.clone();
    let done = AtomicBool::new(false);
    let emit = |kernel: &sim::Kernel, numbers: std::ops::Range<u64>| {
        numbers.for_each(|n| assert!(kernel.emit(0, 100 + n, &n.to_ne_bytes())));
    };
    let sequence = Sequence::with(32, move |record| {
        let number = record.payload()?.u64(0)?;
        if number == 9 && !done.swap(true, Ordering::Relaxed) {
            emit(&writer, 10..20);
            writer.lose(0, lost);
            emit(&writer, 20 + lost..20 + lost + further);
        }
        Some(number)
    });
    let order = Order::new().key(Key::Sequence(sequence)).hold(hold.clone()).when_full(WhenFull::Discard);
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
            let is_wrong = event.certainty() == Certainty::Proven && Some(number) <= largest;
            assert!(!is_wrong, "{hold}, {lost} lost: {number} is called proven behind {largest:?}");
            largest = largest.max(Some(number));
        }
    };
    emit(&kernel, 0..10);
    (0..4).for_each(|_| read());
    if further == 0 {
        // Each time less than the limit; together more.
        kernel.lose(0, 100 * PART);
        (0..2).for_each(|_| read());
        emit(&kernel, 20 + lost + 100 * PART..40 + lost + 100 * PART);
    } else {
        emit(&kernel, 20 + lost + further..60 + lost + further);
    }
    (0..4).for_each(|_| read());
    let ledger = merge.ledger();
    assert!(ledger.total().wraparounds > 0 && !ledger.is_balanced(), "{hold}, {lost} lost: {ledger}");
}

#[test]
fn losses_during_a_look_are_not_passed_with_it() {
    for parts in [100, 150, 200, 220, 240, 256] {
        let lost = parts * PART;
        for hold in [Hold::FENCE, Hold::Dense { first: Some(0), fence: Fence::Auto }] {
            if parts > 112 {
                lost_during_a_look(hold.clone(), lost, 20);
            }
            lost_during_a_look(hold, lost, 0);
        }
    }
}
