//! Numbers of each CPU of 32 bits: if more records are lost than 32 bits can count, the merge notices it and reports no
//! gap.

use crate::small;
use perfweave::{AnomalyKind, Fence, Hold, Item, Key, Merge, Order, Sequence, WhenFull};

fn counter(bits: u32) -> Sequence {
    Sequence::with(bits, |record| record.payload()?.u64(8))
}

/// The true number, and the number as it is written in 32 bits.
fn payload(number: u64) -> Vec<u8> {
    [number.to_ne_bytes(), (number & u64::from(u32::MAX)).to_ne_bytes()].concat()
}

/// A CPU's own numbers: the counts of LOST records say how far they went on. If the counts do not fit, the stream
/// reports a wraparound.
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
    let order = Order::new().key(Key::Payload(0)).hold(hold).when_full(WhenFull::Discard);
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
    assert!(ledger.total().is_balanced(), "{ledger}");
}
