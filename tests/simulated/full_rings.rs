//! Full rings: records that leave early come in the order in which they were published, marks leave room for the
//! longest records, and the default keeps the order.

use crate::reading;
use crate::small;
use perfweave::{Certainty, Ended, Event, Fence, Hold, Item, Key, Merge, Order, Reader, Record, Rings, WhenFull};
use perfweave_support::{assert_error, echo, load, needs, number_behind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A key that is the record's time, and does something when it finds a record with this number, once.
fn time_or(number: u64, once: impl Fn() + Send + Sync + 'static) -> Key {
    let done = AtomicBool::new(false);
    let find = move |record: &Record<'_>| {
        if record.payload().and_then(|payload| payload.u64(0)) == Some(number) && !done.swap(true, Ordering::Relaxed) {
            once();
        }
        record.time()
    };
    Key::with(find)
}

/// A refresh that takes long between two heads makes the second ring look newer. Records that leave it early must not
/// come before records that were published in the first ring all the time.
#[test]
fn a_stall_inside_a_look_makes_nothing_late() {
    for full in [WhenFull::Release, WhenFull::Copy { most: 0 }] {
        let kernel = small(&[0, 1], 4096);
        let writer = kernel.clone();
        let key = time_or(7, move || {
            // CPU 0's head was loaded already, CPU 1's is yet to be.
            for n in 0..60 {
                assert!(writer.emit(0, 2000 + n, &[0; 8]));
                assert!(writer.emit(1, 3000 + n, &[0; 8]));
            }
            for n in 60..120 {
                assert!(writer.emit(1, 3000 + n, &[0; 8]));
            }
        });
        let mut merge = Merge::new(kernel.rings(), Order::new().key(key).when_full(full)).unwrap();
        kernel.emit(0, 1000, &7u64.to_ne_bytes());
        let mut keys = Vec::new();
        for _ in 0..4 {
            merge.refresh(0);
            for event in merge.batch() {
                assert_ne!(event.certainty(), Certainty::Late, "{full:?}: {event:?}");
                keys.extend(event.key());
            }
        }
        assert!(
            keys.is_sorted() && keys.len() >= 60 && merge.status().total().early == keys.len() as u64,
            "{full:?}: {keys:?}"
        );
    }
}

/// The same on live rings: both CPUs' programs run in the middle of a refresh.
#[test]
fn a_stall_inside_a_live_look_makes_nothing_late() {
    let Some((events, program)) = echo() else { return };
    let cpus = load::online();
    let Some(()) = needs("a second CPU that is online", cpus.len() > 1) else { return };
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let rings = Rings::options().bpf_output(&events).pages(1).cpus([first, last]).open().unwrap();
    let program = Arc::new(program);
    let writer = Arc::clone(&program);
    let key = time_or(7, move || {
        (0..50).for_each(|n| assert_eq!(writer.run_with(first, &[100 + n]).unwrap(), 0));
        (0..110).for_each(|n| assert_eq!(writer.run_with(last, &[200 + n]).unwrap(), 0));
    });
    let mut merge = Merge::new(rings, Order::new().key(key).when_full(WhenFull::Release)).unwrap();
    assert_eq!(program.run_with(first, &[7]).unwrap(), 0);
    merge.refresh(0);
    let numbers: Vec<_> = merge
        .batch()
        .filter_map(|event| {
            assert_ne!(event.certainty(), Certainty::Late);
            event.record()?.payload()?.u64(0)
        })
        .collect();
    assert_eq!(numbers[..51], [vec![7], (100..150).collect()].concat());
    assert!(merge.status().total().early > 51 && merge.status().total().late == 0);
}

/// Only the records of a delayed writer come late, because they are not published yet.
#[test]
fn only_what_was_in_flight_can_be_late() {
    for depth in [1, 3] {
        let kernel = small(&[0, 1, 2], 4096);
        let mut merge = Merge::new(kernel.rings(), Order::new().when_full(WhenFull::Release)).unwrap();
        (0..depth).for_each(|n| kernel.begin(2, 1000 + n));
        let (mut late, mut last) = (Vec::new(), 0);
        for n in 0..2000u64 {
            assert!(kernel.emit((n % 2) as u32, 2000 + n, &[0; 8]));
            if n % 16 == 15 || n == 1999 {
                merge.refresh(0);
                if n == 1999 {
                    for n in 0..depth {
                        kernel.write(2, &n.to_ne_bytes());
                        kernel.end(2);
                    }
                    merge.refresh(0);
                }
                for event in merge.batch().filter(|event| event.record().is_some()) {
                    let key = event.key().unwrap();
                    assert_eq!(key < last, event.certainty() == Certainty::Late);
                    if key < last {
                        late.push(key);
                    }
                    last = key.max(last);
                }
            }
        }
        late.sort_unstable();
        assert!(late.iter().copied().eq(1000..1000 + depth), "{late:?}");
    }
}

/// With records of which only two fit below the mark, the mark still works and nothing is lost.
#[test]
fn a_mark_leaves_room_for_the_records_there_are() {
    let page = |percent| (4096, 24 + 1000, Some(percent));
    for (ring, len, mark) in
        [(64 << 10, 24_500, None), page(99), page(90), page(0), (4096, 1500, None), (4096, 4000, None)]
    {
        for full in [WhenFull::default(), WhenFull::Release] {
            let kernel = small(&[0, 1], ring);
            let order = Order::new().when_full(full);
            let order = if let Some(percent) = mark { order.fill_mark(percent) } else { order };
            let mut merge = Merge::new(kernel.rings(), order).unwrap();
            kernel.begin(1, 1);
            for n in 0..1000u64 {
                assert!(kernel.emit(0, 10 + n, &vec![0; len]), "{n} of {len} bytes in {ring}, mark {mark:?}, {full:?}");
                merge.refresh(0);
                merge.begin_fence();
                assert!(
                    merge.batch().all(|event| full == WhenFull::Release && event.certainty() == Certainty::Assumed)
                );
                merge.advance_tails();
            }
            assert_eq!(merge.status().total().lost, 0);
        }
    }
}

#[test]
fn a_mark_that_leaves_no_room_for_a_record_is_refused() {
    let kernel = small(&[3], 4096);
    let error = Merge::new(kernel.rings(), Order::new().fill_mark(100)).unwrap_err();
    let says =
        "a fill mark of 100 % leaves 0 bytes of the 4096 of CPU 3's ring, and records take 24 and more: at most 99 %";
    assert_error!(error, InvalidInput, says);
    let kernel = small(&[3], 4096);
    assert!(Merge::new(kernel.rings(), Order::new().fill_mark(99)).is_ok());
    let kernel = small(&[3], 128);
    let error = Merge::new(kernel.rings(), Order::new().fill_mark(99)).unwrap_err();
    let most = number_behind(&error.to_string(), "at most ") as u8;
    let kernel = small(&[3], 128);
    assert!(
        Merge::new(kernel.rings(), Order::new().fill_mark(most)).is_ok(),
        "the mark that the error suggests is accepted"
    );
    // If no record fits into the ring, the mark is not the cause.
    for (ring, percent) in [(8, 100), (16, 50), (16, 100), (16, 0)] {
        let kernel = small(&[3], ring);
        assert!(Merge::new(kernel.rings(), Order::new().fill_mark(percent)).is_ok(), "{ring} {percent}");
    }
    let kernel = small(&[3], 32);
    let error = Merge::new(kernel.rings(), Order::new().fill_mark(100)).unwrap_err();
    assert_error!(error, InvalidInput, "of the 32 of CPU 3", "records take 24", "at most 21 %");
}

/// The defaults, with rings of 64 KiB and a fence that takes any time: all records come in proven order until memory is
/// used up, and then the stream says so.
#[test]
fn by_default_order_is_kept_until_memory_is_used_up() {
    let Some((events, program)) = echo() else { return };
    let cpus = load::online();
    let rings = Rings::options().bpf_output(&events).bytes(64 << 10).open().unwrap();
    let gate = reading::Gate::new();
    let fence = {
        let (slow, grace) = [gate.fence(), Fence::Auto].map(|fence| Mutex::new(fence.open().unwrap())).into();
        Fence::custom(move || {
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
    assert!(memory > cpus.len() * (512 << 10) && memory < 64 << 20, "{memory}");
    gate.open();
    let (mut last, mut seen) = (0, 0);
    reading::all(&mut reader, |event| {
        assert!(event.certainty() == Certainty::Proven && event.key().unwrap() >= last, "{event:?}");
        (last, seen) = (event.key().unwrap(), seen + 1);
    });
    assert_eq!(seen, written * cpus.len() as u64);
    let ledger = reader.ledger().unwrap();
    assert!(ledger.is_complete() && reader.status().total().early == 0, "{ledger}");
}

/// The words of the ledger: it never hides a loss.
#[test]
fn the_ledger_says_what_was_lost() {
    let kernel = small(&[0, 1], 4096);
    let mut merge = Merge::new(kernel.rings(), Order::new().when_full(WhenFull::Release)).unwrap();
    assert_eq!(merge.ledger().to_string(), "all: 0 written: 0 yielded, 0 held; nothing is missing");
    kernel.begin(1, 1);
    for n in 0..150u64 {
        kernel.emit(0, 10 + n, &[0; 8]);
    }
    merge.refresh(0);
    let told: Vec<_> = merge
        .batch()
        .map(|event: Event<'_>| (matches!(event.item(), Item::EarlyRelease(_)), event.certainty()))
        .collect();
    assert!(told.len() > 60 && told.iter().filter(|(is, _)| *is).count() == 1 && told[0].0, "once, and first");
    let ledger = merge.ledger();
    assert!(ledger.total().is_balanced() && !ledger.is_complete());
    let (early, held) = (told.len() - 1, 127 - told.len() + 1);
    assert_eq!(
        ledger.to_string(),
        format!(
            "all: 150 written: {early} yielded, {held} held, 23 LOST by the kernel (23 not reported \
             yet); INCOMPLETE, but all of that is accounted for"
        )
    );
}

/// A refresh that cannot index all records, because memory has run out, proves nothing, no matter which fence has
/// ended.
#[test]
fn a_look_in_part_proves_nothing() {
    let kernel = small(&[0, 1], 64 << 10);
    let mut merge = Merge::new(kernel.rings(), Order::new().when_full(WhenFull::Copy { most: 0 })).unwrap();
    kernel.begin(1, 10);
    kernel.emit(0, 5000, &[0; 8]);
    merge.refresh(0);
    assert!(merge.begin_fence());
    let grace = kernel.grace();
    (0..500).for_each(|n| assert!(kernel.emit(1, 20 + n, &[0; 8])));
    kernel.write(1, &[0; 8]);
    kernel.end(1);
    assert!(grace.is_over());
    merge.end_fence();
    let (mut proven, mut parts, mut seen) = (0, 0, 0);
    while merge.held() > 0 || seen == 0 {
        merge.refresh(0);
        parts += u32::from(merge.is_behind());
        for event in merge.batch().filter(|event| event.record().is_some()) {
            let key = event.key().unwrap();
            assert!(key >= proven, "{key} after {proven}, which was proven");
            if event.certainty() == Certainty::Proven {
                proven = key;
            }
            seen += 1;
        }
        if merge.begin_fence() {
            merge.end_fence();
        }
    }
    assert!(parts > 0 && seen == 502 && merge.status().total().late == 1, "{:?}", merge.status());
}

/// A report comes after all records before it, even if memory for holding must be reused several times to index them.
/// It also comes if writers write as much as the reader reads.
#[test]
fn a_report_waits_for_what_there_is_no_memory_for_yet() {
    for (most, deadline) in [(0, false), (10_000, false), (10_000, true), (1 << 20, false)] {
        for more in [false, true] {
            let kernel = small(&[0, 1], 64 << 10);
            let order = Order::new().hold(Hold::Fence(Fence::custom(|| Ok(())))).when_full(WhenFull::Copy { most });
            let mut reader = Reader::new(kernel.rings(), order).unwrap();
            let mut time = 0;
            let mut write = |cpu| {
                time += 1;
                if kernel.emit(cpu, time, &[0; 8]) { time } else { 0 }
            };
            while write(0) > 0 {}
            let last = (0..2000).map(|_| write(1)).max().unwrap();
            if deadline {
                reader.set_deadline(Some(std::time::Instant::now())).unwrap();
            } else {
                reader.handle().flush().unwrap();
            }
            let (mut seen, mut newer) = (0, 0);
            loop {
                let Some(event) = reader.next_timeout(reading::LONG).unwrap() else { break };
                match event.item() {
                    Item::Flushed { .. } => break,
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

/// A caller that polls the reader must come back at once while one refresh cannot index all records.
#[test]
fn a_reader_that_is_behind_does_not_sleep() {
    let kernel = small(&[0, 1], 64 << 10);
    let order = Order::new().hold(Hold::Fence(Fence::custom(|| Ok(())))).when_full(WhenFull::Copy { most: 10_000 });
    let mut reader = Reader::new(kernel.rings(), order).unwrap();
    let written = (1..).take_while(|&time| kernel.emit(0, time, &[0; 8])).count();
    let (mut seen, mut at_once) = (0, 0);
    while seen < written / 2 {
        reader.for_each(|event| seen += usize::from(event.record().is_some())).unwrap();
        at_once += u64::from(reader.time_to_next_refresh().is_zero());
    }
    assert!(at_once > 1, "{at_once}");
}

/// Memory that one ring used in a burst and keeps for the next serves another ring's burst.
#[test]
fn memory_that_one_ring_keeps_serves_another() {
    let kernel = small(&[0, 1], 256 << 10);
    let order = Order::new().hold(Hold::Fence(Fence::custom(|| Ok(())))).when_full(WhenFull::Copy { most: 48 << 10 });
    let mut merge = Merge::new(kernel.rings(), order).unwrap();
    for (cpu, all) in [(0, 1280), (1, 2000)] {
        // What was found two refreshes ago may leave early.
        for times in [1..=500, 501..=501, 502..=all] {
            times.for_each(|time| assert!(kernel.emit(cpu, 10_000 * u64::from(cpu) + time, &[0; 8])));
            merge.refresh(0);
        }
        assert!(!merge.is_behind() && merge.held() == all as usize);
        assert!(!merge.is_ready(), "nothing leaves early");
        assert!(merge.begin_fence());
        merge.end_fence();
        merge.refresh(0);
        assert_eq!(merge.batch().filter(|event| event.certainty() == Certainty::Proven).count(), all as usize);
    }
}

/// After one record that is longer than half of its ring, no records leave early that fit beside another such record.
/// The reader forgets its length in time.
#[test]
fn one_long_record_does_not_end_the_proof() {
    for long in [33_000, 60_000] {
        let kernel = small(&[0, 1], 64 << 10);
        let order = Order::new().hold(Hold::Fence(Fence::custom(|| Ok(())))).when_full(WhenFull::Release);
        let mut merge = Merge::new(kernel.rings(), order).unwrap();
        let mut time = 1;
        assert!(kernel.emit(0, time, &vec![0; long]));
        let mut early = Vec::new();
        for _ in 0..1000 {
            for cpu in 0..2 {
                time += 1;
                assert!(kernel.emit(cpu, time, &[0; 8]));
            }
            merge.refresh(0);
            merge.batch().for_each(drop);
            if merge.begin_fence() {
                merge.end_fence();
            }
            merge.refresh(0);
            merge.batch().for_each(drop);
            early.push(merge.status().total().early);
        }
        assert!(early[0] <= 3 && early[999] == early[0], "{long}: {early:?}");
    }
}
