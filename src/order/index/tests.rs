//! What the index costs, in steps.

use super::*;
use crate::account::sequence::Sequence;
use crate::instrument;
use crate::order::key::{Key, Keys};
use crate::record::Layout;
use crate::sim::Kernel;

/// A ring's records and what they cost: the most steps for a look, or for taking, divided by how many records were indexed, or
/// records and gaps taken.
fn dearest(records: u64, each_look: u64, record: impl Fn(u64) -> (u64, u64)) -> (u64, Index) {
    let kernel = Kernel::with(&[0], 64 << 20, Layout::new(4 | 1024, true, 0));
    let mut rings = kernel.take_rings();
    let lane = &mut rings.lanes[0];
    let mut keys = Keys::new(Key::Time, None, Some(Sequence::u64(0)), None);
    let mut pool = Pool::default();
    let mut index = Index::new(0, keys.new_numbers());
    let mut most = 0;
    for n in 0..records {
        let (time, number) = record(n);
        if n % 100 == 50 {
            kernel.lose(0, 1);
        }
        assert!(kernel.emit(0, time, &number.to_ne_bytes()));
        if n % each_look == each_look - 1 {
            let (steps, whole) = instrument::count(|| index.look(lane, &mut keys, &mut pool, usize::MAX));
            assert!(whole);
            most = most.max(steps / each_look);
        }
    }
    let held = index.len() as u64;
    let (mut last, mut left) = (0, held);
    while left > 0 {
        let batch = left.min(1000);
        let (steps, taken) = instrument::count(|| {
            let mut taken = batch;
            for _ in 0..batch {
                let front = index.front().unwrap();
                assert!(front.key >= last);
                last = front.key;
                if let Some(numbers) = &mut index.numbers {
                    while numbers.gap(front.position).is_some() {
                        numbers.declare(front.position);
                        taken += 1;
                    }
                }
                index.take(&mut pool);
            }
            taken
        });
        most = most.max(steps / taken);
        left -= batch;
    }
    (most, index)
}

type Load = fn(u64) -> (u64, u64);

/// The worst that there is to do for an index.
const LOADS: [(&str, Load); 10] = [
    ("in order", |n| (n, n)),
    ("backwards", |n| ((1 << 40) - n, n)),
    ("one from far ahead, and all the rest behind it", |n| if n == 0 { (1 << 40, 0) } else { (n, n) }),
    ("noise", |n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20, n)),
    ("each second far back", |n| (if n % 2 == 0 { n } else { n / 3 }, n)),
    ("far back, then further", |n| (if n < 50_000 { n + n % 2 * 100_000 } else { 1 }, n)),
    ("saws of a thousand", |n| (n / 1000 * 1000 + 999 - n % 1000, n)),
    ("every second number missing", |n| (n, 2 * n)),
    ("holes that fill from the middle", |n| (n, if n < 50_000 { 3 * n } else { 3 * (n - 50_000) + 1 })),
    ("one hole that is cut to pieces", |n| (n, if n == 1 { 1 << 30 } else { 2 * (n.wrapping_mul(40_503) % 65_536) })),
];

/// What a record costs does not grow with what is held, but for a logarithm, whatever its key and its number.
#[test]
fn the_worst_records_cost_no_more_the_more_are_held() {
    for (name, load) in LOADS {
        for each_look in [100, 10_000] {
            let (few, _) = dearest(2_000, 100, load);
            let (many, index) = dearest(100_000, each_look, load);
            // log2(100,000) is 17; a few binary searches and a heap. What is worse grows with the records themselves.
            assert!(many <= 150, "{name}: {many} steps a record with 100,000 held, {few} with 2,000");
            assert_eq!((index.len(), index.notes.len()), (0, 0));
        }
    }
}

#[test]
fn nothing_is_kept_of_what_was_taken() {
    for (name, load) in LOADS {
        let (_, mut index) = dearest(2_000, 100, load);
        index.shrink();
        let lists = index.lists().map(|list| list.len);
        assert_eq!((index.len(), index.run.is_empty(), lists), (0, true, [0; 4]), "{name}");
        assert_eq!(index.numbers.as_ref().map(|numbers| (numbers.open(), numbers.pieces())), Some((0, 0)), "{name}");
        assert_eq!((index.memory(), index.unread()), (0, 0), "{name}");
        assert_eq!(index.tail, index.cursor, "{name}");
    }
}
