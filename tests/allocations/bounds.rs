//! What holding takes, counted by the allocator, for every kind of load: copies within their bound, and a few bytes for
//! each held record.

use perf_event_open_sys::bindings;
use perfweave::{Certainty, Clock, Fence, Hold, Item, Key, Layout, Merge, Order, Rings, sim};
use perfweave_proofs::Barrier;
use perfweave_support::counting::{most, now};

/// Which time or number the n-th record has.
type Count = fn(u64) -> u64;

/// Writes that make holding as expensive as possible.
const LOADS: [(&str, Count); 7] = [
    ("in order", |n| 1000 + n),
    ("backwards", |n| 10_000_000 - n),
    ("to and fro", |n| 1000 + n % 2 * 1_000_000 + n),
    ("noise", |n| 1000 + n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_000),
    ("every third late", |n| if n % 3 == 0 { 1000 + n / 2 } else { 100_000 + n }),
    ("every other missing", |n| 1000 + 2 * n),
    ("saws", |n| 1000 + n / 512 * 512 + 511 - n % 512),
];

/// Bytes that a held record takes beside its bytes, while its lists grow, and those of one with a notice before it.
const EACH: usize = 80;
const NOTED: usize = 320;

/// What the allocator may have given out: copies, places, and the blocks of a few rings.
fn allowed(bound: usize, held: usize, each: usize) -> isize {
    (bound + bound / 64 + held * each + (16 << 10)) as isize
}

/// So many records are held because of a writer on another CPU: they stay in their rings or are copied. Beyond the bound
/// the kernel drops those that do not fit. Gives how many were written and yielded; all are proven.
fn hold_up(records: u64, order: Order, ring: usize, count: Count, [bound, each]: [usize; 2]) -> (u64, u64) {
    let cpus = [0, 1, 2];
    let kernel = sim::Kernel::with(&cpus, ring, Layout::new(4 | 1024, true, 0));
    let rings = kernel.rings();
    let before = now();
    let mut merge = Merge::new(rings, order).unwrap();
    let fixed = now() - before;
    assert!(fixed <= 3 * (8 << 10), "{fixed} bytes for three rings");
    kernel.begin(2, 999);
    let (mut written, mut yielded) = (0, 0);
    for n in 0..records {
        let payload = [count(n).to_ne_bytes(), (n * 7919 % 997).to_ne_bytes()].concat();
        written += u64::from(kernel.emit((n % 2) as u32, count(n), &payload));
        if n % 1000 == 777 {
            // A loss, and the LOST record that reports it.
            kernel.pause(0, true);
            kernel.emit(0, count(n), &[0; 16]);
            kernel.pause(0, false);
        }
        if n % 40 == 39 {
            let (peak, ()) = most(|| {
                merge.refresh(0);
                merge.begin_fence();
                while let Some(event) = merge.next() {
                    assert_eq!(event.certainty(), Certainty::Proven, "{event:?}");
                    yielded += u64::from(event.record().is_some());
                }
            });
            let used = peak - before - fixed;
            let held = merge.held();
            assert!(used <= allowed(bound, held, each), "{used} bytes for {held} records: {merge:?}");
            assert!(merge.status().most_memory <= bound, "{} of {bound} bytes", merge.status().most_memory);
        }
    }
    // Reports while events leave take memory too.
    merge.refresh(0);
    assert!(merge.status().most_memory <= bound, "{} of {bound} bytes", merge.status().most_memory);
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
    // The memory of the burst is released soon.
    for _ in 0..64 {
        merge.refresh(0);
    }
    assert!(now() - before <= fixed + 4096, "{} bytes are kept", now() - before - fixed);
    assert!(merge.held() == 0 && merge.status().memory < 512, "{:?}", merge.status());
    (written + 1, yielded)
}

fn hold(records: u64, bounds: &[usize]) {
    for (load, count) in LOADS {
        for &bound in bounds {
            for ring in [4 << 10, 64 << 10] {
                let order = Order::new().most_held(bound);
                let (written, yielded) = hold_up(records, order, ring, count, [bound, EACH]);
                assert_eq!(yielded, written, "{load}, {bound} bytes");
                // With the writer's own.
                assert_eq!(written > records, bound == 64 << 20, "{load}, {bound} bytes: {written} written");
            }
        }
    }
}

/// For every load, copies take no more than their bound, and all that was written comes out, proven.
#[test]
fn holding_takes_no_more_than_its_bound() {
    hold(60_000, &[300 << 10, 2 << 20, 64 << 20]);
}

#[test]
fn holding_takes_no_more_than_a_small_bound() {
    hold(5_000, &[40 << 10, 80 << 10]);
}

/// With as many bytes as copies take, none is lost, for burst after burst.
#[test]
fn what_there_is_memory_for_is_held() {
    let hold = |most: usize| {
        let kernel = sim::Kernel::with(&[0, 1, 2], 64 << 10, Layout::new(4 | 1024, true, 0));
        let mut merge = Merge::new(kernel.rings(), Order::new().most_held(most)).unwrap();
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
        merge.status().most_memory
    };
    let most = hold(1 << 30);
    assert_eq!(hold(most), most);
}

/// Records that programs submit and discard in BPF ring buffers, while a program on another CPU stays inside its
/// reservation. `len` and `is_submitted` are of the n-th.
fn hold_up_reservations(
    records: u64,
    bound: usize,
    count: Count,
    len: Count,
    is_submitted: fn(u64) -> bool,
) -> (u64, u64) {
    let mut rings = Rings::empty(Clock::Perf);
    let buffers = [0, 1, 2].map(|cpu| {
        let (buffer, ring) = sim::RingBuffer::new(1 << 20);
        rings.add(cpu, ring, Layout::RING_BUFFER);
        buffer
    });
    let before = now();
    let hold = Hold::Fence(Barrier::Programs.fence());
    let order = Order::new().key(Key::Payload(0)).hold(hold).most_held(bound);
    let mut merge = Merge::new(rings, order).unwrap();
    let fixed = now() - before;
    let inside = buffers[2].reserve(8).unwrap();
    let (mut written, mut yielded) = (0, 0);
    let mut turn = |merge: &mut Merge, then: u64| {
        let (peak, ()) = most(|| {
            merge.refresh(0);
            if merge.begin_fence() {
                merge.end_fence();
                merge.refresh(0);
            }
            while let Some(event) = merge.next() {
                assert_eq!(event.certainty(), Certainty::Proven, "{event:?}");
                yielded += u64::from(event.record().is_some());
            }
        });
        // The simulator has no memory of its own here: nothing is reserved meanwhile.
        let (used, held) = (peak - before - fixed, merge.held());
        // Those that were yielded in this turn were held before.
        let held = held.max(then as usize);
        assert!(used <= allowed(bound, held, NOTED), "{used} bytes for {held} records: {merge:?}");
        assert!(merge.status().most_memory <= bound, "{} of {bound} bytes", merge.status().most_memory);
        yielded
    };
    for n in 0..records {
        let mut data = vec![0; len(n) as usize];
        let buffer = &buffers[(n % 2) as usize];
        let Some(place) = buffer.reserve(data.len() as u32) else { continue };
        if is_submitted(n) {
            data[..8].copy_from_slice(&count(n).to_ne_bytes());
            buffer.submit(place, &data);
            written += 1;
        } else {
            buffer.discard(place);
        }
        if n % 40 == 39 {
            drop(data);
            turn(&mut merge, n);
        }
    }
    buffers[2].submit(inside, &999u64.to_ne_bytes());
    for turns in 0.. {
        let yielded = turn(&mut merge, records);
        if merge.held() == 0 && !merge.is_behind() {
            return (written + 1, yielded);
        }
        assert!(turns < 10_000, "it stalls: {merge:?}");
    }
    unreachable!()
}

/// The same bound for BPF ring buffers: short records, records that are too long for a perf record's header, and
/// discarded ones.
#[test]
fn holding_records_of_ring_buffers_takes_no_more_than_its_bound() {
    let lengths: [(Count, u64); 3] = [(|_| 8, 30_000), (|n| 8 + n % 300, 10_000), (|n| 65_520 + n * 7 % 9_000, 400)];
    let outcomes: [fn(u64) -> bool; 3] = [|_| true, |n| n % 3 == 0, |n| n % 500 < 2];
    for (load, count) in LOADS {
        for (len, records) in lengths {
            for is_submitted in outcomes {
                for bound in [300 << 10, 64 << 20] {
                    let (written, yielded) = hold_up_reservations(records, bound, count, len, is_submitted);
                    assert_eq!(yielded, written, "{load}, {bound} bytes");
                }
            }
        }
    }
}

fn miss_numbers(records: u64, bounds: &[usize]) {
    for (load, count) in LOADS {
        for &bound in bounds {
            for offset in [0, 8] {
                let order = Order::new().numbers(Key::Payload(offset), None).most_held(bound);
                let (written, yielded) = hold_up(records, order, 64 << 10, count, [bound, NOTED]);
                assert_eq!(yielded, written, "{load}");
                let hold = Hold::Dense { first: None, fence: Fence::Auto };
                let order = Order::new().key(Key::Payload(offset)).hold(hold).most_held(bound);
                let (written, yielded) = hold_up(records, order, 64 << 10, count, [bound, NOTED]);
                assert_eq!(yielded, written, "{load}");
            }
        }
    }
}

/// Writes the n-th record of a kind that is a separate event or has no key. False if there is no room.
type Forge = fn(&sim::Kernel, u32, u64) -> bool;

fn forge(kernel: &sim::Kernel, cpu: u32, kind: u32, body: &[u64]) -> bool {
    let body: Vec<u8> = body.iter().flat_map(|word| word.to_ne_bytes()).collect();
    kernel.begin(cpu, 1500);
    let written = kernel.write_other(cpu, kind, 0, &body);
    kernel.end(cpu);
    written
}

fn lost(kernel: &sim::Kernel, cpu: u32, count: u64) -> bool {
    forge(kernel, cpu, bindings::PERF_RECORD_LOST, &[7, count])
}

/// A LOST record that is too short for its fields.
fn damage(kernel: &sim::Kernel, cpu: u32) -> bool {
    forge(kernel, cpu, bindings::PERF_RECORD_LOST, &[])
}

fn other(kernel: &sim::Kernel, cpu: u32) -> bool {
    forge(kernel, cpu, bindings::PERF_RECORD_COMM, &[1, 2])
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
        // In order, and after its time.
        5 => kernel.emit(cpu, 1500 + n, &n.to_ne_bytes()),
        _ => kernel.emit(cpu, 1200, &n.to_ne_bytes()),
    }),
];

/// Rings full of what no lawful kernel writes in a row take no more than the bound, and all of it comes out.
/// `fixed`: what the order takes besides.
fn hold_forged(bound: usize, how: &str, fixed: isize, order: impl Fn() -> Order) {
    let cpus = [0, 1, 2, 3];
    for (what, forge) in FORGED {
        // Records other than samples have a time or none; at the end comes an invalid head or none.
        for (timed, wrong_head) in [(true, false), (true, true), (false, false), (false, true)] {
            let kernel = sim::Kernel::with(&cpus, 64 << 10, Layout::new(4 | 1024, timed, 0));
            let rings = kernel.rings();
            let before = now();
            let mut merge = Merge::new(rings, order().most_held(bound)).unwrap();
            let fixed = fixed + now() - before;
            let told = format!("{what}, {how}, {bound} bytes, timed: {timed}, wrong head: {wrong_head}");
            for cpu in cpus {
                kernel.emit(cpu, 1000, &[0; 8]);
                (1..).take_while(|n| forge(&kernel, cpu, *n)).for_each(drop);
                // LOST records can report this many.
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
                // All of what lies in the rings was held at once, in 8 bytes each at least.
                let held = cpus.len() * (64 << 10) / 16;
                assert!(used <= allowed(bound, held, NOTED), "{told}: {used} bytes, {:?}", merge.status());
                assert!(merge.status().most_memory <= bound, "{told}: {:?}", merge.status());
                if merge.begin_fence() {
                    merge.end_fence();
                } else if merge.held() == 0 && !merge.is_behind() {
                    break;
                }
            }
            merge.advance_tails();
            let is_read = |cpu: &u32| kernel.tail(*cpu) == kernel.head(*cpu);
            assert!(wrong_head || cpus.iter().all(is_read), "{told}: {merge:?}");
            let status = merge.status();
            assert!(
                status.total().yielded + status.total().lost + status.total().damaged > 1000
                    || what.contains("nothing"),
                "{told}: {status:?}"
            );
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
    hold_forged(100 << 10, "numbers of each CPU", 0, || Order::new().numbers(Key::Payload(0), None));
    let dense = || Hold::Dense { first: None, fence: Fence::Auto };
    hold_forged(100 << 10, "numbers of the machine", 12 << 10, || Order::new().key(Key::Payload(0)).hold(dense()));
}

/// The same with missing numbers, anomalies, and numbers that come late, for each CPU and for the machine.
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
    let order = Order::new().hold(Hold::None).numbers(Key::Payload(0), None);
    let mut merge = Merge::new(kernel.rings(), order).unwrap();
    let before = now();
    let (far, mut gaps) = (1u64 << 30, 0);
    kernel.emit(0, 1, &0u64.to_ne_bytes());
    kernel.emit(0, 1, &far.to_ne_bytes());
    merge.refresh(0);
    let mut seen = merge.batch().filter(|event| event.record().is_some()).count();
    assert_eq!((seen, merge.status().total().missing), (2, far - 1), "declared");
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
    let account = merge.status().accounts[0];
    assert!(account.anomalies >= 16 && account.yielded == 199_902, "{account:?}");
}

/// A copy of a recorder takes the memory that its documentation says, with the smallest possible records, and all of it
/// goes with the copy.
#[test]
fn a_copy_of_a_recorder_takes_what_its_documentation_says() {
    for records in [(1u64 << 16) - 1, (1 << 16) + 1] {
        let kernel = sim::Kernel::backward(&[0], 1 << 20, Layout::new(1024, false, 0));
        for time in 0..records {
            kernel.begin(0, time);
            assert!(kernel.write_other(0, bindings::PERF_RECORD_SWITCH, 0, &[]));
            kernel.end(0);
        }
        assert_eq!(kernel.head(0) as i64, -(8 * records as i64), "records of 8 bytes");
        let mut recorder = kernel.recorder().unwrap();
        let before = now();
        let (peak, rings) = most(|| recorder.freeze().unwrap());
        assert!(peak - before < (2 << 20) + (32 << 10), "{} bytes", peak - before);
        let copy = now();
        assert!((1 << 20..(1 << 20) + (16 << 10)).contains(&(copy - before)), "{} bytes", copy - before);
        let mut merge = Merge::new(rings, Order::new().key(Key::Payload(0))).unwrap();
        let (peak, found) = most(|| merge.refresh(0));
        assert_eq!(found as u64, records);
        let index = (peak - copy) as u64;
        assert!(index <= 32 * records + (16 << 10), "{} bytes a record", index / records);
        drop(merge);
        assert!(now() - before < 4096, "{} bytes are kept", now() - before);
    }
}
