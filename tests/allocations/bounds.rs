//! The bound on memory: what holding takes, counted by the allocator, whatever is written.

use perfweave::{AnomalyKind, Certainty, Fence, Hold, Item, Key, Kind, Layout, Merge, Order, Sequence, WhenFull, sim};
use perfweave_support::counting::{most, now};

/// Which time or number the n-th record has.
type Count = fn(u64) -> u64;

/// Writes that make holding as dear as can be.
const LOADS: [(&str, Count); 7] = [
    ("in order", |n| 1000 + n),
    ("backwards", |n| 10_000_000 - n),
    ("to and fro", |n| 1000 + n % 2 * 1_000_000 + n),
    ("noise", |n| 1000 + n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_000),
    ("every third late", |n| if n % 3 == 0 { 1000 + n / 2 } else { 100_000 + n }),
    ("every other missing", |n| 1000 + 2 * n),
    ("saws", |n| 1000 + n / 512 * 512 + 511 - n % 512),
];

/// So many records that a writer on another CPU holds up: what lies before the mark, or is copied, until memory is used up.
fn hold_up(records: u64, order: Order, ring: usize, count: Count, bound: usize) -> (u64, u64, u64) {
    let cpus = [0, 1, 2];
    let kernel = sim::Kernel::with(&cpus, ring, Layout::new(4 | 1024, true, 0));
    let rings = kernel.rings();
    let before = now();
    let mut merge = Merge::new(rings, order).unwrap();
    let fixed = now() - before;
    assert!(fixed <= 3 * (8 << 10), "{fixed} bytes for three rings");
    kernel.begin(2, 999);
    let (mut written, mut yielded, mut early) = (0, 0, 0);
    for n in 0..records {
        let payload = [count(n).to_ne_bytes(), (n * 7919 % 997).to_ne_bytes()].concat();
        written += u64::from(kernel.emit((n % 2) as u32, count(n), &payload));
        if n % 1000 == 777 {
            // A loss, and the LOST record that tells of it.
            kernel.pause(0, true);
            kernel.emit(0, count(n), &[0; 16]);
            kernel.pause(0, false);
        }
        if n % 40 == 39 {
            let (peak, ()) = most(|| {
                merge.refresh(0);
                merge.begin_fence();
                let (mut all, mut unproven) = (0, 0);
                while let Some(event) = merge.next() {
                    if event.record().is_some() {
                        all += 1;
                        unproven += u64::from(event.certainty() != Certainty::Proven);
                    }
                }
                (yielded, early) = (yielded + all, early + unproven);
            });
            let used = peak - before - fixed;
            // Nodes of trees, and what a vector of vectors takes.
            assert!(used <= bound as isize + bound as isize / 64 + 4096, "{used} bytes after {n} records: {merge:?}");
            assert!(merge.stats().most_memory <= bound, "{} of {bound} bytes", merge.stats().most_memory);
        }
    }
    // What is told of while events leave takes memory too.
    merge.refresh(0);
    assert!(merge.stats().most_memory <= bound, "{} of {bound} bytes", merge.stats().most_memory);
    kernel.write(2, &[0; 16]);
    kernel.end(2);
    for _ in 0..1000 {
        merge.end_fence();
        merge.refresh(0);
        yielded += merge.batch().filter(|event| event.record().is_some()).count() as u64;
        if !merge.begin_fence() && !merge.is_behind() && merge.held() == 0 {
            break;
        }
    }
    // What the burst took is given back soon.
    for _ in 0..64 {
        merge.refresh(0);
    }
    assert!(now() - before <= fixed + 4096, "{} bytes are kept", now() - before - fixed);
    assert!(merge.held() == 0 && merge.stats().memory < 512, "{:?}", merge.stats());
    (written + 1, yielded, early)
}

fn hold(records: u64, bounds: &[usize]) {
    for (load, count) in LOADS {
        for &bound in bounds {
            for ring in [4 << 10, 64 << 10] {
                let order = Order::new().when_full(WhenFull::Copy { most: bound });
                let (written, yielded, early) = hold_up(records, order, ring, count, bound);
                assert_eq!(yielded, written, "{load}, {bound} bytes");
                // 60,000 records of 40 bytes, an index, and a quarter more.
                assert_eq!(early == 0, bound == 64 << 20, "{load}, {bound} bytes: {early} early");
            }
        }
    }
}

/// Whatever comes: holding takes no more than its bound, and all comes out, proven until the bound is reached.
#[test]
fn holding_takes_no_more_than_its_bound() {
    hold(60_000, &[300 << 10, 2 << 20, 64 << 20]);
}

#[test]
fn holding_takes_no_more_than_a_small_bound() {
    hold(5_000, &[40 << 10, 100 << 10]);
}

/// With twice the memory that is needed, burst after burst, nothing is let out early and no look leaves anything.
#[test]
fn what_there_is_memory_for_is_held() {
    let hold = |most: usize| {
        let kernel = sim::Kernel::with(&[0, 1, 2], 64 << 10, Layout::new(4 | 1024, true, 0));
        let mut merge = Merge::new(kernel.rings(), Order::new().when_full(WhenFull::Copy { most })).unwrap();
        for burst in 1..4 {
            kernel.begin(2, 10_000 * burst);
            for n in 0..4_000 {
                assert!(kernel.emit((n % 2) as u32, 10_000 * burst + n, b""));
                if n % 40 == 39 {
                    merge.refresh(0);
                    merge.begin_fence();
                    assert!(merge.next().is_none() && !merge.is_behind(), "{most}: {merge:?}");
                }
            }
            kernel.write(2, b"");
            kernel.end(2);
            let mut proven = 0;
            while proven < 4_001 {
                merge.end_fence();
                merge.refresh(0);
                proven += merge.batch().inspect(|event| assert_eq!(event.certainty(), Certainty::Proven)).count();
                merge.begin_fence();
            }
        }
        merge.stats().most_memory
    };
    let most = hold(1 << 30);
    hold(2 * most);
}

fn miss_numbers(records: u64, bounds: &[usize]) {
    for (load, count) in LOADS {
        for &bound in bounds {
            for offset in [0, 8] {
                let order = Order::new().numbers(Sequence::u64(offset)).when_full(WhenFull::Copy { most: bound });
                let (written, yielded, _) = hold_up(records, order, 64 << 10, count, bound);
                assert_eq!(yielded, written, "{load}");
                let hold = Hold::Dense { first: None, fence: Fence::Auto };
                let order = Order::new().key(Key::Payload(offset)).hold(hold).when_full(WhenFull::Copy { most: bound });
                let (written, yielded, _) = hold_up(records, order, 64 << 10, count, bound);
                assert_eq!(yielded, written, "{load}");
            }
        }
    }
}

/// Gaps that are told of while records leave take memory that copies may not have used up. Large rings, seldom looked at.
#[test]
fn gaps_in_doubt_are_within_the_bound() {
    let bound = 1 << 20;
    for seed in 1..=8u64 {
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let kernel = sim::Kernel::with(&[0, 1, 2], 256 << 10, Layout::new(4 | 1024, true, 0));
        let hold = Hold::Dense { first: Some(0), fence: Fence::Auto };
        let order = Order::new().key(Key::Payload(0)).hold(hold).when_full(WhenFull::Copy { most: bound });
        let mut merge = Merge::new(kernel.rings(), order).unwrap();
        let mut number = 0u64;
        for _ in 0..400 {
            let (all, cpu, missing) = (random(3000), random(3), random(3));
            for n in 0..all {
                number += 1 + u64::from(missing > 0 && random(missing) == 0);
                let on = if random(8) == 0 { random(3) } else { cpu };
                kernel.emit(on as u32, 1000 + n, &number.to_ne_bytes());
            }
            if random(3) == 0 {
                merge.end_fence();
            }
            merge.refresh(0);
            merge.begin_fence();
            let taken = if random(2) == 0 { usize::MAX } else { random(4000) as usize };
            for _ in 0..taken {
                if merge.next().is_none() {
                    break;
                }
            }
            let most = merge.stats().most_memory;
            assert!(most <= bound, "{most} of {bound} bytes with seed {seed}: {merge:?}");
        }
    }
}

/// Writes the n-th of records that are told of by themselves, or have no key of their own. False if there is no room.
type Forge = fn(&sim::Kernel, u32, u64) -> bool;

fn forge(kernel: &sim::Kernel, cpu: u32, kind: Kind, body: &[u64]) -> bool {
    let body: Vec<u8> = body.iter().flat_map(|word| word.to_ne_bytes()).collect();
    kernel.begin(cpu, 1500);
    let written = kernel.write_other(cpu, kind, 0, &body);
    kernel.end(cpu);
    written
}

fn lost(kernel: &sim::Kernel, cpu: u32, count: u64) -> bool {
    forge(kernel, cpu, Kind::LOST, &[7, count])
}

/// A LOST record that is too short for what it is to say.
fn damage(kernel: &sim::Kernel, cpu: u32) -> bool {
    forge(kernel, cpu, Kind::LOST, &[])
}

fn other(kernel: &sim::Kernel, cpu: u32) -> bool {
    forge(kernel, cpu, Kind::COMM, &[1, 2])
}

const FORGED: [(&str, Forge); 9] = [
    ("losses", |kernel, cpu, _| lost(kernel, cpu, 1)),
    ("losses of nothing", |kernel, cpu, _| lost(kernel, cpu, 0)),
    ("losses of too much", |kernel, cpu, _| lost(kernel, cpu, u64::MAX)),
    ("losses of each kind", |kernel, cpu, n| lost(kernel, cpu, [1, 0, u64::MAX][n as usize % 3])),
    ("damage", |kernel, cpu, _| damage(kernel, cpu)),
    ("losses before damage", |kernel, cpu, n| if n % 2 == 0 { lost(kernel, cpu, 1) } else { damage(kernel, cpu) }),
    (
        "losses before records without a number",
        |kernel, cpu, n| {
            if n % 3 < 2 { lost(kernel, cpu, 1) } else { other(kernel, cpu) }
        },
    ),
    ("numbers that begin anew, and smaller ones behind", |kernel, cpu, n| {
        kernel.emit(cpu, 1500 + n, &[0, u64::MAX - 1, 100][n as usize % 3].to_ne_bytes())
    }),
    ("all of them", |kernel, cpu, n| match n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 {
        0 | 1 => lost(kernel, cpu, 1),
        2 => lost(kernel, cpu, 0),
        3 => damage(kernel, cpu),
        4 => other(kernel, cpu),
        // In order, and behind its time.
        5 => kernel.emit(cpu, 1500 + n, &n.to_ne_bytes()),
        _ => kernel.emit(cpu, 1200, &n.to_ne_bytes()),
    }),
];

/// Rings full of what no lawful kernel writes in a row take no more than the bound, and all of it comes out.
/// `fixed`: what the order takes besides.
fn hold_forged(bound: usize, how: &str, fixed: isize, order: impl Fn() -> Order) {
    let cpus = [0, 1, 2, 3];
    for (what, forge) in FORGED {
        // Records other than samples have a time, or none; and at last a head that cannot be right, or not.
        for (timed, wrong_head) in [(true, false), (true, true), (false, false), (false, true)] {
            let kernel = sim::Kernel::with(&cpus, 64 << 10, Layout::new(4 | 1024, timed, 0));
            let rings = kernel.rings();
            let before = now();
            let mut merge = Merge::new(rings, order().when_full(WhenFull::Copy { most: bound })).unwrap();
            let fixed = fixed + now() - before;
            let told = format!("{what}, {how}, {bound} bytes, timed: {timed}, wrong head: {wrong_head}");
            for cpu in cpus {
                kernel.emit(cpu, 1000, &[0; 8]);
                (1..).take_while(|n| forge(&kernel, cpu, *n)).for_each(drop);
                // So much LOST records can tell of.
                kernel.lose(cpu, 1 << 32);
            }
            for turn in 0.. {
                assert!(turn < 10_000, "{told}: {merge:?}");
                if wrong_head && turn == 1 {
                    cpus.iter().for_each(|cpu| kernel.force_head(*cpu, 1 << 40));
                }
                let (peak, ()) = most(|| {
                    merge.refresh(0);
                    while merge.next().is_some() {}
                });
                let used = peak - before - fixed;
                assert!(
                    used <= bound as isize + bound as isize / 64 + 4096,
                    "{told}: {used} bytes, {:?}",
                    merge.stats()
                );
                assert!(merge.stats().most_memory <= bound, "{told}: {:?}", merge.stats());
                if merge.begin_fence() {
                    merge.end_fence();
                } else if merge.held() == 0 && !merge.is_behind() {
                    break;
                }
            }
            merge.publish();
            let is_read = |cpu: &u32| kernel.tail(*cpu) == kernel.head(*cpu);
            assert!(wrong_head || cpus.iter().all(is_read), "{told}: {merge:?}");
            let stats = merge.stats();
            assert!(stats.records + stats.lost + stats.damaged > 1000 || what.contains("nothing"), "{told}: {stats:?}");
        }
    }
}

#[test]
fn forged_records_in_a_row_are_within_the_bound() {
    for bound in [40 << 10, 100 << 10, 500 << 10] {
        hold_forged(bound, "by time", 0, Order::new);
    }
}

#[test]
fn forged_records_in_a_row_with_numbers_are_within_the_bound() {
    hold_forged(100 << 10, "numbers of each CPU", 0, || Order::new().numbers(Sequence::u64(0)));
    let dense = || Hold::Dense { first: None, fence: Fence::Auto };
    hold_forged(100 << 10, "numbers of the machine", 12 << 10, || Order::new().key(Key::Payload(0)).hold(dense()));
}

/// The same with numbers that are missing, break, and are found, for each CPU and for the machine.
#[test]
fn numbers_that_are_missing_are_within_the_bound() {
    miss_numbers(60_000, &[300 << 10, 4 << 20]);
}

#[test]
fn numbers_that_are_missing_are_within_a_small_bound() {
    miss_numbers(5_000, &[60 << 10]);
}

/// Late numbers inside a declared gap split it, and that costs nothing.
#[test]
fn late_numbers_inside_a_gap_take_no_memory() {
    let kernel = sim::Kernel::new(&[0]);
    let order = Order::new().hold(Hold::None).numbers(Sequence::u64(0));
    let mut merge = Merge::new(kernel.rings(), order).unwrap();
    let before = now();
    let (far, mut gaps) = (1u64 << 30, 0);
    kernel.emit(0, 1, &0u64.to_ne_bytes());
    kernel.emit(0, 1, &far.to_ne_bytes());
    merge.refresh(0);
    let mut seen = merge.batch().filter(|event| event.record().is_some()).count();
    assert_eq!((seen, merge.stats().missing), (2, far - 1), "declared");
    for n in 1..200_000u64 {
        // Every second number of the gap.
        kernel.emit(0, 1 + n, &(2 * n).to_ne_bytes());
        if n % 100 == 0 {
            merge.refresh(0);
            for event in merge.batch() {
                match event.item() {
                    Item::Gap(_) => gaps += 1,
                    Item::Record(_) => seen += 1,
                    _ => {}
                }
            }
            assert!(now() - before < 16 << 10, "{} bytes after {n}", now() - before);
        }
    }
    assert_eq!((gaps, seen), (0, 2 + 199_900));
    let ring = merge.ring_stats().next().unwrap();
    assert!(ring.anomalies(AnomalyKind::Late) >= 16 && ring.records == 199_902, "{ring:?}");
}

/// A ledger is of everything, also of what a look has left in the rings for want of memory.
#[test]
fn a_ledger_counts_what_there_was_no_memory_to_look_at() {
    let kernel = sim::Kernel::with(&[0, 1], 1 << 20, Layout::new(4 | 1024, true, 0));
    let order = Order::new().when_full(WhenFull::Copy { most: 16 << 10 });
    let mut merge = Merge::new(kernel.rings(), order).unwrap();
    for time in 1..=5_000 {
        assert!(kernel.emit((time % 2) as u32, time, b"record"));
    }
    merge.refresh(0);
    let total = merge.ledger().total();
    assert!(merge.held() < 5_000, "{} were looked at", merge.held());
    assert_eq!((total.yielded, total.held, total.lost, total.written()), (0, 5_000, 0, 5_000));
    let mut yielded = 0;
    while let Some(event) = merge.next() {
        yielded += u64::from(event.event().record().is_some());
    }
    let total = merge.ledger().total();
    assert_eq!((total.yielded, total.written()), (yielded, 5_000));
}

fn look_within(bounds: impl Iterator<Item = usize>, records: u64) {
    for bound in bounds {
        let kernel = sim::Kernel::with(&[0, 1], 1 << 20, Layout::new(4 | 1024, true, 0));
        let mut merge = Merge::new(kernel.rings(), Order::new().when_full(WhenFull::Copy { most: bound })).unwrap();
        for time in 1..=records {
            kernel.emit((time % 2) as u32, time, b"");
            if time % (records / 5) == 0 {
                merge.refresh(0);
            }
        }
        let most = merge.stats().most_memory;
        assert!(most <= bound, "{most} of {bound}");
    }
}

/// Bounds of any size, so that the lists of blocks are as long as makes them grow just before the bound.
#[test]
fn no_bound_is_passed_by_what_lists_of_blocks_take() {
    look_within((160 << 10..1 << 20).step_by(4 << 10), 40_000);
}

#[test]
fn no_small_bound_is_passed_by_what_lists_of_blocks_take() {
    look_within((40 << 10..160 << 10).step_by(4 << 10), 8_000);
}

/// What the documentation of a recorder says that a stop takes, with the smallest records there are.
#[test]
fn a_stop_of_a_recorder_takes_what_its_documentation_says() {
    for records in [(1u64 << 16) - 1, (1 << 16) + 1] {
        let kernel = sim::Kernel::backward(&[0], 1 << 20, Layout::new(1024, false, 0));
        for time in 0..records {
            kernel.begin(0, time);
            assert!(kernel.write_other(0, perfweave::Kind::SWITCH, 0, &[]));
            kernel.end(0);
        }
        assert_eq!(kernel.head(0) as i64, -(8 * records as i64), "records of 8 bytes");
        let mut recorder = kernel.recorder(Key::Payload(0)).unwrap();
        let before = now();
        let (peak, events) = most(|| recorder.freeze().unwrap().events().count());
        let (peak, kept) = ((peak - before) as u64, (now() - before) as u64);
        assert_eq!(events as u64, records);
        assert!(peak <= 264 * records + 4096, "{} bytes a record", peak / records);
        assert!(kept <= 2 * 88 * records + 4096, "{} bytes a record are kept", kept / records);
    }
}
