//! Full rings: held records are copied out of them up to a bound, no event leaves before it is proven, and what the
//! kernel drops is counted.

use crate::{fence, reading, small};
use perfweave::{Certainty, Ended, Fence, Hold, Item, Key, Layout, Merge, Order, Reader, Rings, sim};
use perfweave_support::{echo, load};
use std::sync::Mutex;
use std::time::Duration;

/// Rings overflow many times while a fence does not end, far beyond the bound of copies. No event leaves meanwhile.
/// Then every event that was written comes, in proven order, and each one that was not is counted once: as a loss of
/// its CPU, as a missing number of its CPU, and in the ledger.
#[test]
fn rings_that_overflow_lose_no_proof() {
    for most in [0, 5000, 20_000, 100_000] {
        let kernel = small(&[0, 1, 2], 4096);
        let gate = reading::Gate::new();
        let order = Order::new().hold(Hold::Fence(gate.fence())).most_held(most);
        let order = order.numbers(Key::Payload(0), Some(0));
        let mut reader = Reader::new(kernel.rings(), order).unwrap();
        let (mut numbers, mut written) = ([0u64; 3], Vec::new());
        for time in 1..=12_000u64 {
            // The last CPU writes little, and loses nothing.
            let cpu = if time % 200 == 0 { 2 } else { time as usize / 7 % 2 };
            let payload = [numbers[cpu].to_ne_bytes(), time.to_ne_bytes()].concat();
            if kernel.emit(cpu as u32, time, &payload) {
                written.push(time);
            }
            numbers[cpu] += 1;
            if time % 16 == 0 {
                assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none(), "no event leaves");
                assert!(reader.status().memory <= most);
            }
        }
        assert!(written.len() > 100 && written.len() < 8000, "{} were written", written.len());
        gate.open();
        let (mut seen, mut lost, mut missing) = (Vec::new(), [0; 3], [0; 3]);
        reading::all(&mut reader, |event| match event.item() {
            Item::Record(record) => {
                assert_eq!((event.certainty(), record.payload().unwrap().u64(8)), (Certainty::Proven, event.key()));
                seen.extend(event.key());
            }
            Item::Lost(lost_here) => lost[lost_here.cpu as usize] += lost_here.count,
            Item::Gap(gap) => {
                assert_eq!(event.certainty(), Certainty::Proven);
                missing[gap.cpu.unwrap() as usize] += gap.count;
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(seen, written, "{most}");
        let dropped = [0, 1, 2].map(|cpu| kernel.dropped(cpu));
        assert_eq!((lost, dropped[2]), (dropped, 0), "{most}");
        assert_eq!(dropped.iter().sum::<u64>(), 12_000 - written.len() as u64);
        // The last numbers on a CPU are missing once another follows.
        assert!(missing.iter().zip(dropped).all(|(missing, dropped)| *missing <= dropped));
        let ledger = reader.ledger().unwrap();
        let total = ledger.total();
        assert_eq!((total.yielded, total.lost, total.unreported), (written.len() as u64, 12_000 - total.yielded, 0));
        assert!(total.is_balanced() && total.exact && total.late == 0 && ledger.most_memory <= most, "{ledger}");
    }
}

/// A ring buffer or an adopted ring outlives its reader: nothing is copied out of it unless the program asks for that.
/// Rings of both kinds side by side are told apart.
#[test]
fn nothing_is_copied_out_of_rings_that_outlive_the_reader() {
    for most in [None, Some(64 << 20), Some(0)] {
        let kernel = small(&[3], 4096);
        let mut rings = kernel.rings();
        let (buffer, ring) = sim::RingBuffer::new(4096);
        rings.add(1, ring, Layout::RING_BUFFER);
        let order = Order::new().key(Key::Fn(Box::new(|record| record.payload()?.u64(0))));
        let order = if let Some(most) = most { order.most_held(most) } else { order };
        let mut merge = Merge::new(rings, order).unwrap();
        let inside = buffer.reserve(8).unwrap();
        buffer.submit(inside, &1u64.to_ne_bytes());
        for key in 2..1000u64 {
            buffer.output(&key.to_ne_bytes());
            kernel.emit(3, key, &key.to_ne_bytes());
            merge.refresh(0);
        }
        let copied: Vec<_> = merge.status().accounts.iter().map(|account| account.copied > 0).collect();
        assert_eq!(copied, [most == Some(64 << 20), most != Some(0)], "{most:?}");
    }
}

/// A mark leaves room for the records there are: with records of which only two fit into a ring, held records are
/// copied in time, and nothing is lost.
#[test]
fn a_mark_leaves_room_for_the_records_there_are() {
    for (ring, len) in [(64 << 10, 24_500), (4096, 1000), (4096, 1500), (4096, 8)] {
        let kernel = small(&[0, 1], ring);
        let mut merge = Merge::new(kernel.rings(), Order::new()).unwrap();
        kernel.begin(1, 1);
        for n in 0..300u64 {
            assert!(kernel.emit(0, 10 + n, &vec![0; len]), "{n} of {len} bytes in {ring}");
            merge.refresh(0);
            merge.begin_fence();
            assert!(!merge.is_ready());
        }
        assert_eq!((merge.status().total().lost, merge.held()), (0, 300));
    }
}

/// The defaults, with rings of 64 KiB and a fence that takes any time: all records come in proven order.
#[test]
fn by_default_nothing_is_lost_while_a_fence_is_slow() {
    let Some((events, program)) = echo() else { return };
    let cpus = load::online();
    let rings = Rings::options().bpf_output(&events).bytes(64 << 10).open().unwrap();
    let gate = reading::Gate::new();
    let fence = {
        let (slow, grace) = [gate.fence(), Fence::Auto].map(|fence| Mutex::new(fence.open().unwrap())).into();
        Fence::by(move || {
            slow.lock().unwrap().wait()?;
            grace.lock().unwrap().wait()
        })
    };
    let mut reader = Reader::new(rings, Order::new().hold(Hold::Fence(fence))).unwrap();
    let mut written = 0u64;
    // Twenty times the ring's size, for each CPU.
    for _ in 0..20 {
        for _ in 0..1000 {
            cpus.iter().for_each(|cpu| assert_eq!(program.run_with(*cpu, &[written]).unwrap(), 0));
            written += 1;
        }
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none(), "no event leaves");
    }
    assert_eq!(reader.status().held as u64, written * cpus.len() as u64);
    let memory = reader.status().memory;
    // For each CPU, twenty times the ring's size less the ring itself.
    assert!(memory > cpus.len() * (512 << 10) && memory <= 64 << 20, "{memory}");
    gate.open();
    let (mut last, mut seen) = (0, 0);
    reading::all(&mut reader, |event| {
        assert!(event.certainty() == Certainty::Proven && event.key().unwrap() >= last, "{event:?}");
        (last, seen) = (event.key().unwrap(), seen + 1);
    });
    assert_eq!(seen, written * cpus.len() as u64);
    let ledger = reader.ledger().unwrap();
    assert!(ledger.is_complete(), "{ledger}");
}

/// The words of the ledger: it never hides a loss.
#[test]
fn the_ledger_says_what_was_lost() {
    let kernel = small(&[0, 1], 4096);
    let mut merge = Merge::new(kernel.rings(), Order::new().most_held(0)).unwrap();
    assert_eq!(merge.ledger().to_string(), "all: 0 written: 0 yielded, 0 held; nothing is missing");
    kernel.begin(1, 1);
    for n in 0..150u64 {
        kernel.emit(0, 10 + n, &[0; 8]);
    }
    merge.refresh(0);
    assert!(!merge.is_ready());
    let ledger = merge.ledger();
    assert!(ledger.total().is_balanced() && !ledger.is_complete());
    assert_eq!(
        ledger.to_string(),
        "all: 150 written: 0 yielded, 127 held, 23 LOST by the kernel (23 not reported yet); INCOMPLETE, but all of \
         that is accounted for"
    );
}

/// A report comes after all records before it, whatever is copied. It also comes if writers write as much as the reader
/// reads.
#[test]
fn a_report_comes_after_all_that_full_rings_hold() {
    for (most, deadline) in [(0, false), (10_000, false), (10_000, true), (1 << 20, false)] {
        for more in [false, true] {
            let kernel = small(&[0, 1], 64 << 10);
            let order = Order::new().hold(Hold::Fence(Fence::by(|| Ok(())))).most_held(most);
            let mut reader = Reader::new(kernel.rings(), order).unwrap();
            let mut time = 0;
            let mut write = |cpu| {
                time += 1;
                if kernel.emit(cpu, time, &[0; 8]) { time } else { 0 }
            };
            while write(0) > 0 {}
            let last = (0..2000).map(|_| write(1)).max().unwrap();
            if deadline {
                reader.handle().set_deadline(Some(std::time::Instant::now())).unwrap();
            } else {
                reader.handle().flush().unwrap();
            }
            let (mut seen, mut newer) = (0, 0);
            loop {
                let Some(event) = reader.next_timeout(reading::LONG).unwrap() else { break };
                match event.item() {
                    Item::Flushed { complete } => break assert!(complete),
                    Item::Record(_) => {
                        let key = event.key().unwrap();
                        assert!(key > seen, "{key} after {seen}");
                        seen = key;
                    }
                    _ => {}
                }
                drop(event);
                newer += u64::from(more && write(newer as u32 % 2) > 0);
            }
            assert_eq!(reader.ended(), deadline.then_some(Ended::Deadline { complete: true }));
            assert!(seen >= last, "{most}: {seen} of {last} before the report");
            assert!(more || seen == last);
            assert!(newer < 50_000, "{newer} were written until it came");
        }
    }
}

/// Memory that one ring used in a burst and keeps for the next serves another ring's burst, whatever part of the bound
/// it is.
#[test]
fn memory_that_one_ring_keeps_serves_another() {
    for most in [64 << 10, 70_000, 100_000, 127 << 10] {
        let kernel = small(&[0, 1], 64 << 10);
        let mut merge = Merge::new(kernel.rings(), Order::new().most_held(most)).unwrap();
        for cpu in [0, 1, 0] {
            let before = merge.status().accounts[cpu as usize].copied;
            let begin = merge.frontier().unwrap_or(0);
            // Each takes 32 bytes: four fifths of the ring.
            (1..=1640).for_each(|time| assert!(kernel.emit(cpu, begin + time, &[0; 8])));
            merge.refresh(0);
            assert_eq!(merge.status().accounts[cpu as usize].copied - before, 32 * 1640, "CPU {cpu}, {most}");
            assert!(!merge.is_ready() && merge.status().most_memory <= most);
            assert!(fence(&mut merge));
            assert_eq!(merge.batch().filter(|event| event.certainty() == Certainty::Proven).count(), 1640);
        }
    }
}

/// After one record that is longer than half of its ring, no records are copied that fit beside another such record.
/// The merge forgets its length in time.
#[test]
fn one_long_record_makes_no_copies_of_short_ones() {
    for long in [33_000, 60_000] {
        let kernel = small(&[0, 1], 64 << 10);
        let mut merge = Merge::new(kernel.rings(), Order::new()).unwrap();
        let mut time = 1;
        assert!(kernel.emit(0, time, &vec![0; long]));
        let mut copied = Vec::new();
        for _ in 0..300 {
            for cpu in 0..2 {
                time += 1;
                assert!(kernel.emit(cpu, time, &[0; 8]));
            }
            fence(&mut merge);
            assert!(merge.batch().all(|event| event.certainty() == Certainty::Proven));
            copied.push(merge.status().total().copied);
        }
        // The long one itself, and what lay beside it.
        assert!(copied[0] > long as u64 && copied[299] == copied[0], "{long}: {copied:?}");
        // Three quarters of the ring stay where they are.
        (0..1500).for_each(|n| assert!(kernel.emit(1, time + n, &[0; 8])));
        merge.refresh(0);
        assert_eq!(merge.status().total().copied, copied[0], "{long}");
    }
}
