//! Single cases of the merge, each on simulated rings.

use crate::text;
use perf_event_open_sys::bindings;
use perfweave::{Certainty, Event, Fault, Hold, Item, Key, Layout, Merge, Order, sim};
use perfweave_support::assert_error;

const TIME_RAW: u64 = 4 | 1024;

fn merge(kernel: &sim::Kernel, hold: Hold) -> Merge {
    Merge::new(kernel.rings(), Order::new().hold(hold)).unwrap()
}

/// One fence, which the merge must want.
fn fence(merge: &mut Merge) {
    assert!(crate::fence(merge));
}

fn all(merge: &mut Merge) -> Vec<String> {
    merge.batch().map(|event| text(&event)).collect()
}

#[test]
fn equal_keys_come_out_by_cpu_then_by_position() {
    let kernel = sim::Kernel::new(&[7, 0, 300, 2]);
    let mut merge = merge(&kernel, Hold::None);
    for cpu in [300, 7, 2, 0] {
        kernel.emit(cpu, 5, format!("{cpu}a").as_bytes());
        kernel.emit(cpu, 5, format!("{cpu}b").as_bytes());
    }
    merge.refresh(0);
    assert_eq!(all(&mut merge), ["0a", "0b", "2a", "2b", "7a", "7b", "300a", "300b"]);
    assert!(merge.rings().cpus().eq([0, 2, 7, 300]));
}

/// A record is late after any record of another ring, at the end of a run or in the middle, in order or not.
#[test]
fn late_after_each_record_of_a_ring() {
    for taken in 1..=5 {
        for batch in [false, true] {
            let kernel = sim::Kernel::new(&[0, 1]);
            let mut merge = merge(&kernel, Hold::None);
            kernel.emit(0, 10, b"before");
            kernel.begin(0, 20);
            kernel.emit(0, 30, b"interrupt");
            kernel.write(0, b"interrupted");
            kernel.end(0);
            kernel.emit(0, 40, b"after");
            kernel.emit(0, 50, b"last");
            merge.refresh(0);
            let keys: Vec<_> = if batch {
                merge.batch().take(taken).filter_map(|event| event.key()).collect()
            } else {
                (0..taken).filter_map(|_| merge.next()?.key()).collect()
            };
            assert!(keys.iter().copied().eq((1..=taken as u64).map(|n| 10 * n)));
            kernel.emit(1, 5, b"late");
            merge.refresh(0);
            let event = merge.next().unwrap();
            assert_eq!((event.certainty(), event.late_by()), (Certainty::Late, 10 * taken as u64 - 5));
        }
    }
}

/// A hundred interrupts come between a writer's clock and its output: a displacement that is too far for shifting.
#[test]
fn disorder_of_any_depth_is_repaired() {
    for depth in [1, 2, 63, 64, 65, 130, 400] {
        let kernel = sim::Kernel::new(&[0, 1]);
        let mut merge = merge(&kernel, Hold::FENCE);
        let mut expected = Vec::new();
        kernel.begin(0, 100);
        for n in 0..depth {
            // One in ten interrupts is itself interrupted.
            let time = 200 + n * 10;
            kernel.begin(0, time);
            if n % 10 == 0 {
                kernel.emit(0, time + 5, b"deeper");
                expected.push(time + 5);
            }
            kernel.write(0, b"interrupt");
            kernel.end(0);
            expected.push(time);
        }
        kernel.emit(1, 150, b"elsewhere");
        kernel.write(0, b"interrupted");
        kernel.end(0);
        expected.extend([100, 150]);
        expected.sort_unstable();
        fence(&mut merge);
        let keys: Vec<u64> = merge.batch().map(|event| event.key().unwrap()).collect();
        assert_eq!(keys, expected, "{depth} deep");
        merge.advance_tails();
        assert_eq!(kernel.tail(0), kernel.head(0));
    }
}

/// Keys that only fall, or that jump: the stream is sorted, in bounded time.
#[test]
fn any_disorder_is_repaired() {
    let falling: Vec<u64> = (0..1000).rev().collect();
    let jumping: Vec<u64> = (0..1000).map(|n| n * 389 % 1000).collect();
    for times in [falling, jumping] {
        let kernel = sim::Kernel::new(&[0]);
        let mut merge = merge(&kernel, Hold::FENCE);
        for &time in &times {
            assert!(kernel.emit(0, time, b"any"));
        }
        fence(&mut merge);
        let keys: Vec<u64> = merge.batch().map(|event| event.key().unwrap()).collect();
        assert_eq!(keys, (0..1000).collect::<Vec<_>>());
        merge.advance_tails();
        assert_eq!(kernel.tail(0), kernel.head(0));
    }
}

#[test]
fn a_record_without_a_key_stays_behind_the_one_before_it() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let key = Key::Fn(Box::new(|record| {
        let payload: String = record.payload()?.iter().take(3).map(char::from).collect();
        payload.trim().parse().ok()
    }));
    let mut merge = Merge::new(kernel.rings(), Order::new().key(key).hold(Hold::FENCE)).unwrap();
    kernel.emit(0, 1, b"x  ");
    kernel.emit(1, 1, b"15 ");
    kernel.emit(0, 1, b"20 ");
    kernel.emit(0, 1, b"y  ");
    kernel.emit(0, 1, b"z  ");
    // Out of order, with a keyless record that belongs to it.
    kernel.emit(0, 1, b"10 ");
    kernel.emit(0, 1, b"w  ");
    kernel.emit(1, 1, b"25 ");
    merge.refresh(0);
    // A record without a key and without a record before it need not wait.
    let first = merge.next().unwrap();
    assert_eq!((text(&first.event()).as_str(), first.key(), first.certainty()), ("x", None, Certainty::Assumed));
    drop(first);
    assert!(merge.next().is_none());
    fence(&mut merge);
    let events: Vec<_> = merge.batch().map(|event| (text(&event), event.key(), event.certainty())).collect();
    let names: Vec<_> = events.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["10", "w", "15", "20", "y", "z", "25"]);
    assert!(events.iter().all(|(.., certainty)| *certainty == Certainty::Proven));
    assert_eq!(events.iter().filter(|(_, key, _)| key.is_none()).count(), 3);

    // It comes long after its predecessor was yielded, and delays no other event.
    kernel.emit(0, 1, b"v  ");
    kernel.emit(1, 1, b"30 ");
    merge.refresh(0);
    assert_eq!(all(&mut merge), ["v"]);
}

#[test]
fn a_loss_is_the_first_or_the_only_thing_in_a_ring() {
    // A ring that is paused from the begin: LOST is its first record.
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut merge = merge(&kernel, Hold::FENCE);
    kernel.pause(0, true);
    assert!(!kernel.emit(0, 1, b"dropped"));
    assert!(!kernel.emit(0, 2, b"dropped"));
    kernel.pause(0, false);
    assert_eq!(kernel.dropped(0), 2);
    kernel.emit(1, 3, b"before");
    kernel.emit(0, 4, b"behind");
    fence(&mut merge);
    let events: Vec<_> = merge.batch().collect();
    assert_eq!(events.iter().map(text).collect::<Vec<_>>(), ["before", "lost 2", "behind"]);
    let Item::Lost(lost) = events[1].item() else { panic!() };
    assert_eq!((lost.cpu, lost.after, lost.until), (0, None, Some(4)));
    assert_eq!(events[1].key(), Some(4));

    // And once more, with something before it.
    kernel.pause(0, true);
    kernel.emit(0, 5, b"dropped");
    kernel.pause(0, false);
    kernel.emit(0, 6, b"behind");
    fence(&mut merge);
    let events: Vec<_> = merge.batch().collect();
    let Item::Lost(lost) = events[0].item() else { panic!("{events:?}") };
    assert_eq!((lost.count, lost.after, lost.until), (1, Some(4), Some(6)));
    assert_eq!(merge.status().total().lost, 3);
}

/// A LOST record without a record after it, which no lawful kernel writes, comes out at its place.
#[test]
fn a_loss_without_its_record_is_yielded_all_the_same() {
    let kernel = sim::Kernel::with(&[0], 4096, Layout::new(TIME_RAW, true, 0));
    let mut merge = merge(&kernel, Hold::FENCE);
    kernel.emit(0, 7, b"before");
    // This many were dropped; otherwise the LOST record would be a forgery.
    kernel.pause(0, true);
    (0..18).for_each(|_| assert!(!kernel.emit(0, 8, b"dropped")));
    let head = kernel.head(0);
    let mut lost = Vec::new();
    lost.extend(2u32.to_ne_bytes());
    lost.extend(0u16.to_ne_bytes());
    lost.extend(32u16.to_ne_bytes());
    [55u64, 9, 8].iter().for_each(|word| lost.extend(word.to_ne_bytes()));
    kernel.scribble(0, head, &lost);
    kernel.scribble(0, head + 32, &lost);
    kernel.force_head(0, head + 64);
    fence(&mut merge);
    let events: Vec<_> = merge.batch().collect();
    assert_eq!(events.iter().map(text).collect::<Vec<_>>(), ["before", "lost 9", "lost 9"]);
    let Item::Lost(lost) = events[2].item() else { panic!() };
    assert_eq!((lost.id, lost.after, lost.until), (55, Some(7), None));
}

#[test]
fn records_of_other_kinds_keep_their_place_by_their_own_time() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut merge = merge(&kernel, Hold::FENCE);
    kernel.emit(0, 1, b"a");
    kernel.begin(1, 2);
    kernel.write_other(1, bindings::PERF_RECORD_COMM, 0x2000, &[1; 16]);
    kernel.end(1);
    kernel.emit(0, 3, b"b");
    fence(&mut merge);
    let events: Vec<_> = merge.batch().collect();
    assert_eq!(events.iter().map(text).collect::<Vec<_>>(), ["a", "COMM", "b"]);
    let comm = events[1].record().unwrap();
    assert_eq!((comm.misc(), comm.time(), comm.payload()), (0x2000, Some(2), None));
    assert_eq!(comm.body().get(0..16).unwrap().to_vec(), [1; 16]);
}

/// Invalid header sizes: the reader skips the bytes between the bad record and the head, the ring goes on, and the
/// other ring is not affected.
#[test]
fn bad_sizes_are_damage_and_the_ring_is_taken_up_again() {
    for size in [0u16, 1, 7, 9, 12, 20, 4096, 65535] {
        let kernel = sim::Kernel::with(&[0, 1], 4096, Layout::new(TIME_RAW, true, 0));
        let mut merge = merge(&kernel, Hold::FENCE);
        kernel.emit(0, 10, b"good");
        let bad = kernel.head(0);
        kernel.emit(0, 11, b"bad");
        kernel.emit(0, 12, b"gone");
        kernel.emit(1, 13, b"elsewhere");
        kernel.scribble(0, bad + 6, &size.to_ne_bytes());
        fence(&mut merge);
        let events: Vec<_> = merge.batch().collect();
        assert_eq!(events.iter().map(text).collect::<Vec<_>>(), ["good", "damage 48", "elsewhere"], "{size}");
        let Item::Damage(damage) = events[1].item() else { panic!() };
        assert_eq!((damage.cpu, damage.fault()), (0, Fault::Size { size: size.into(), room: 48 }));
        assert_eq!(events[1].key(), None);
        kernel.emit(0, 20, b"again");
        fence(&mut merge);
        assert_eq!(all(&mut merge), ["again"]);
        assert_eq!(merge.status().total().damaged, 1);
        merge.advance_tails();
        assert_eq!(kernel.tail(0), kernel.head(0));
    }
}

/// A raw size past the record's end harms only that record.
#[test]
fn a_bad_raw_size_is_damage_of_one_record() {
    let kernel = sim::Kernel::new(&[0]);
    let mut merge = merge(&kernel, Hold::FENCE);
    kernel.emit(0, 10, b"good");
    let bad = kernel.head(0);
    kernel.emit(0, 11, b"bad");
    kernel.emit(0, 12, b"behind");
    kernel.scribble(0, bad + 16, &1000u32.to_ne_bytes());
    fence(&mut merge);
    let events: Vec<_> = merge.batch().collect();
    assert_eq!(events.iter().map(text).collect::<Vec<_>>(), ["good", "damage 24", "behind"]);
    let Item::Damage(damage) = events[1].item() else { panic!() };
    assert_eq!(damage.fault(), Fault::Raw { raw_size: 1000, room: 4 });
    assert_eq!(damage.bytes.u64(8), Some(11), "the bytes can be read");
}

#[test]
fn a_bad_head_is_damage_once_everything_before_it_is_out() {
    for wild in [1u64 << 63, u64::MAX, 5000, 3] {
        let kernel = sim::Kernel::with(&[0, 1], 4096, Layout::new(TIME_RAW, true, 0));
        let mut merge = merge(&kernel, Hold::FENCE);
        kernel.emit(0, 10, b"good");
        kernel.emit(0, 30, b"held");
        kernel.emit(1, 20, b"elsewhere");
        merge.refresh(0);
        kernel.force_head(0, wild);
        fence(&mut merge);
        let events: Vec<_> = merge.batch().collect();
        assert_eq!(events.iter().map(text).collect::<Vec<_>>(), ["good", "elsewhere", "held", "damage 0"], "{wild}");
        let Item::Damage(damage) = events[3].item() else { panic!() };
        assert!(matches!(damage.fault(), Fault::Head { from: 48, size: 4096, .. }), "{:?}", damage.fault());
        // The reader continues at the head that the kernel now gives.
        merge.refresh(0);
        assert_eq!(kernel.tail(0), wild);
        kernel.emit(0, 40, b"again");
        fence(&mut merge);
        assert_eq!(all(&mut merge), ["again"]);
    }
}

/// An output of more than a record holds has the same effect in the simulator as in the kernel.
#[test]
fn oversize_output_is_damage() {
    let layout = Layout::new(TIME_RAW, true, 0);
    let largest = layout.largest_output().unwrap();
    for (size, pages) in [(largest + 1, 32), (largest + 9, 32), (70_000, 32), (131_000, 64), (70_000, 2)] {
        let kernel = sim::Kernel::with(&[0, 1], pages * 4096, layout);
        let mut merge = merge(&kernel, Hold::FENCE);
        kernel.emit(0, 10, b"good");
        kernel.emit(0, 20, &vec![0xff; size]);
        kernel.emit(1, 25, b"elsewhere");
        merge.refresh(0);
        while merge.begin_fence() {
            merge.end_fence();
            merge.refresh(0);
        }
        assert!(all(&mut merge).contains(&"elsewhere".to_owned()));
        merge.refresh(0);
        kernel.emit(0, 30, b"again");
        merge.refresh(0);
        if merge.begin_fence() {
            merge.end_fence();
            merge.refresh(0);
        }
        assert_eq!(all(&mut merge), ["again"], "{size} bytes in {pages} pages");
    }
}

#[test]
fn forgetting_an_event_consumes_nothing() {
    let kernel = sim::Kernel::new(&[0]);
    let mut merge = merge(&kernel, Hold::None);
    kernel.emit(0, 1, b"a");
    kernel.emit(0, 2, b"b");
    merge.refresh(0);
    for _ in 0..3 {
        std::mem::forget(merge.next());
        assert_eq!(merge.held(), 2);
    }
    // A batch that is dropped early has consumed the events that it gave, and no more.
    assert_eq!(merge.batch().next().map(|event| text(&event)).as_deref(), Some("a"));
    assert_eq!(all(&mut merge), ["b"]);
}

/// While the items of a batch are borrowed, their bytes stay; the first call after the borrow releases them.
#[test]
fn a_batch_gives_its_bytes_back_when_its_borrow_ends() {
    let kernel = sim::Kernel::with(&[0], 4096, Layout::new(TIME_RAW, true, 0));
    let mut merge = merge(&kernel, Hold::None);
    while kernel.emit(0, 1, b"full") {}
    merge.refresh(0);
    let events: Vec<_> = merge.batch().collect();
    assert_eq!(kernel.tail(0), 0, "nothing while it is borrowed");
    assert!(!kernel.emit(0, 1, b"full"));
    assert!(events.iter().all(|event| text(event) == "full"));
    merge.advance_tails();
    assert_eq!(kernel.tail(0), kernel.head(0));
}

/// With events lent one by one, bytes are released in groups: long before the ring is empty, and not each time.
#[test]
fn tails_advance_in_groups() {
    let kernel = sim::Kernel::with(&[0], 4096, Layout::new(TIME_RAW, true, 0));
    let mut merge = merge(&kernel, Hold::None);
    while kernel.emit(0, 1, b"full") {}
    merge.refresh(0);
    let mut tails = std::collections::BTreeSet::new();
    while merge.next().is_some() {
        tails.insert(kernel.tail(0));
        let consumed = kernel.head(0) - 24 * merge.held() as u64;
        assert!(consumed - kernel.tail(0) <= 4096 / 8 + 24, "{} of {consumed}", kernel.tail(0));
    }
    assert!((6..=10).contains(&tails.len()), "{tails:?}");
}

#[test]
fn a_dense_sequence_learns_its_first_number_by_a_fence() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let hold = Hold::Dense { first: None, fence: kernel.fence() };
    let mut merge = Merge::new(kernel.rings(), Order::new().key(Key::Payload(0)).hold(hold)).unwrap();
    let emit = |cpu, number: u64| assert!(kernel.emit(cpu, 1, &number.to_ne_bytes()));
    emit(0, 41);
    emit(1, 40);
    merge.refresh(0);
    assert!(merge.next().is_none(), "39 may be in flight");
    fence(&mut merge);
    let numbers = |merge: &mut Merge| merge.batch().map(|event| event.key().unwrap_or(0)).collect::<Vec<_>>();
    assert_eq!(numbers(&mut merge), [40, 41]);
    emit(1, 42);
    merge.refresh(0);
    assert_eq!(numbers(&mut merge), [42], "without a fence");

    // A number that comes twice, and one that comes much too late.
    emit(0, 42);
    emit(0, 7);
    emit(1, 43);
    merge.refresh(0);
    let events: Vec<_> = merge.batch().map(|event| (event.key(), event.certainty(), event.late_by())).collect();
    assert_eq!(
        events,
        [
            (Some(7), Certainty::Late, 35),
            (None, Certainty::Late, 0),
            (Some(42), Certainty::Late, 0),
            (Some(43), Certainty::Proven, 0)
        ],
        "late by the distance to the largest; 0 comes twice, which is reported"
    );
    assert_eq!(merge.status().total().late, 2);
}

#[test]
fn a_gap_is_declared_by_a_fence_and_only_then() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let hold = Hold::Dense { first: Some(0), fence: kernel.fence() };
    let mut merge = Merge::new(kernel.rings(), Order::new().key(Key::Payload(0)).hold(hold)).unwrap();
    let emit = |cpu, number: u64| assert!(kernel.emit(cpu, 1, &number.to_ne_bytes()));
    // Number 2 is drawn and in flight; the writer that drew 1 never wrote it.
    emit(0, 0);
    kernel.begin(1, 1);
    emit(0, 3);
    merge.refresh(0);
    assert_eq!(merge.batch().count(), 1);
    assert!(merge.begin_fence());
    let grace = kernel.grace();
    assert!(!grace.is_over());
    merge.refresh(0);
    assert!(merge.next().is_none());
    kernel.write(1, &2u64.to_ne_bytes());
    kernel.end(1);
    assert!(grace.is_over());
    merge.end_fence();
    merge.refresh(0);
    let events: Vec<_> = merge.batch().collect();
    let Item::Gap(gap) = events[0].item() else { panic!("{events:?}") };
    assert_eq!((gap.first, gap.last, gap.count, events[0].cpu()), (1, 1, 1, None));
    assert_eq!(events[1..].iter().map(|event| event.key()).collect::<Vec<_>>(), [Some(2), Some(3)]);
    assert_eq!(merge.status().total().missing, 1);
    assert!(!merge.begin_fence(), "nothing is held, so no fence begins");
}

/// A fence that began before a record was seen does not prove it.
#[test]
fn a_record_seen_during_a_fence_waits_for_the_next() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut merge = merge(&kernel, Hold::FENCE);
    kernel.emit(0, 10, b"first");
    merge.refresh(0);
    assert!(merge.begin_fence());
    // The writer draws its key inside the grace period, and is not done when the period ends.
    kernel.begin(1, 15);
    kernel.emit(0, 20, b"third");
    merge.end_fence();
    merge.refresh(0);
    assert_eq!(all(&mut merge), ["first"]);
    assert!(merge.begin_fence());
    let grace = kernel.grace();
    kernel.write(1, b"second");
    kernel.end(1);
    assert!(grace.is_over());
    merge.end_fence();
    merge.refresh(0);
    assert_eq!(all(&mut merge), ["second", "third"]);
    assert_eq!(merge.status().total().late, 0);
}

#[test]
fn owned_events_say_what_lent_ones_said() {
    let kernel = sim::Kernel::with(&[0], 4096, Layout::new(TIME_RAW, true, 0));
    let mut merge = merge(&kernel, Hold::None);
    kernel.emit(0, 1, b"record");
    while kernel.emit(0, 2, &[7; 100]) {}
    merge.refresh(0);
    let first = merge.next().unwrap().to_owned();
    let event = first.as_event();
    assert_eq!(
        (text(&event).as_str(), event.key(), event.certainty(), event.cpu()),
        ("record", Some(1), Certainty::Assumed, Some(0))
    );
    assert_eq!(event.record().and_then(|record| record.time()), Some(1));
    while merge.next().is_some() {}
    merge.refresh(0);
    kernel.emit(0, 3, b"behind");
    let bad = kernel.head(0);
    kernel.emit(0, 4, b"bad");
    kernel.scribble(0, bad + 6, &3u16.to_ne_bytes());
    merge.refresh(0);
    let owned: Vec<_> = merge.batch().map(|event| event.to_owned()).collect();
    let again: Vec<_> = owned.iter().map(|event| text(&event.as_event())).collect();
    assert_eq!(again, ["lost 1", "behind", "damage 24"]);
    assert_eq!(owned[2].as_event().to_owned().as_event().certainty(), Certainty::Assumed);
    kernel.emit(0, 1, b"late");
    merge.refresh(0);
    let lent = merge.next().unwrap();
    assert_eq!((lent.key(), lent.certainty(), lent.late_by(), lent.cpu()), (Some(1), Certainty::Late, 2, Some(0)));
    let event = lent.event();
    assert_eq!((event.key(), event.certainty(), event.late_by(), event.cpu()), (Some(1), Certainty::Late, 2, Some(0)));
}

#[test]
fn rings_without_what_the_key_needs_are_refused() {
    let kernel = sim::Kernel::with(&[0, 1], 4096, Layout::RAW);
    let error = Merge::new(kernel.rings(), Order::new()).unwrap_err();
    assert_error!(error, InvalidInput, "the records of CPU 0 carry no time to order by");
    let none = perfweave::Rings::empty(perfweave::Clock::Monotonic);
    assert_error!(Merge::new(none, Order::new()).unwrap_err(), InvalidInput, "no rings");
}

/// A key function that panics when the test says so.
fn fragile(bomb: &std::sync::Arc<std::sync::atomic::AtomicU64>) -> Key {
    let bomb = std::sync::Arc::clone(bomb);
    Key::Fn(Box::new(move |record| {
        let key = record.time()?;
        assert_ne!(key, bomb.load(std::sync::atomic::Ordering::Relaxed), "the key function panics");
        Some(key)
    }))
}

/// If the key function panics at any place in a refresh, no record is lost, misplaced or held for ever.
#[test]
fn a_key_function_that_panics_leaves_everything_in_place() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    let times = |from: u64, to: u64| from..to;
    for hold in [Hold::FENCE, Hold::None] {
        // In the first ring, in the last, after a displacement too far for shifting, after a loss.
        for (bomb_at, back) in [(1105, 70), (1500, 70), (2000, 70), (2069, 70), (4000, 70), (5000, 70), (4000, 1)] {
            let kernel = sim::Kernel::new(&[0, 1, 2]);
            let bomb = Arc::new(AtomicU64::new(0));
            let order = Order::new().key(fragile(&bomb)).hold(hold.clone());
            let mut merge = Merge::new(kernel.rings(), order).unwrap();
            times(1000, 1200).for_each(|time| assert!(kernel.emit(0, time, b"admitted")));
            merge.refresh(0);
            if merge.begin_fence() {
                merge.end_fence();
            }
            merge.refresh(0);
            times(3000, 3070).for_each(|time| assert!(kernel.emit(0, time, b"in order")));
            times(2000, 2000 + back).for_each(|time| assert!(kernel.emit(0, time, b"far back")));
            kernel.pause(0, true);
            kernel.emit(0, 3999, b"dropped");
            kernel.pause(0, false);
            kernel.emit(0, 4000, b"behind a loss");
            kernel.emit(1, 1500, b"elsewhere");
            kernel.emit(2, 5000, b"last");
            bomb.store(bomb_at, Ordering::Relaxed);
            let _ = catch_unwind(AssertUnwindSafe(|| merge.refresh(0)));
            let mut keys: Vec<u64> = Vec::new();
            let mut take = |merge: &mut Merge| {
                for event in merge.batch().filter(|event| event.record().is_some()) {
                    assert_ne!(event.certainty(), Certainty::Late, "{hold}, {bomb_at}");
                    keys.push(event.key().unwrap());
                }
            };
            take(&mut merge);
            bomb.store(0, Ordering::Relaxed);
            for _ in 0..3 {
                merge.refresh(0);
                if merge.begin_fence() {
                    merge.end_fence();
                    merge.refresh(0);
                }
                take(&mut merge);
            }
            let expected = times(1000, 1200).chain([1500]).chain(times(2000, 2000 + back)).chain(times(3000, 3070));
            assert_eq!(keys, expected.chain([4000, 5000]).collect::<Vec<_>>(), "{hold}, {bomb_at}");
            assert_eq!((merge.held(), merge.status().total().lost), (0, 1));
            merge.advance_tails();
            for cpu in [0, 1, 2] {
                assert_eq!(kernel.tail(cpu), kernel.head(cpu));
            }
        }
    }
}

/// A record without a key after a late one is late by as much.
#[test]
fn a_record_without_a_key_shares_the_class_of_the_one_before_it() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let key = Key::Fn(Box::new(|record| record.time().filter(|time| *time > 0)));
    let mut merge = Merge::new(kernel.rings(), Order::new().key(key).hold(Hold::None)).unwrap();
    kernel.emit(1, 100, b"early");
    merge.refresh(0);
    assert_eq!(merge.batch().count(), 1);
    kernel.emit(0, 50, b"late");
    kernel.emit(0, 0, b"with it");
    kernel.emit(0, 101, b"in time");
    kernel.emit(0, 0, b"with that");
    merge.refresh(0);
    let events: Vec<_> = merge.batch().map(|event| (event.key(), event.certainty(), event.late_by())).collect();
    let expected = [
        (Some(50), Certainty::Late, 50),
        (None, Certainty::Late, 50),
        (Some(101), Certainty::Assumed, 0),
        (None, Certainty::Assumed, 0),
    ];
    assert_eq!(events, expected);
    assert_eq!(merge.status().total().late, 2);
}

/// Calls after a batch release its bytes: the first one, or one a sixteenth of the ring later if the batch was left in
/// the middle.
#[test]
fn calls_behind_a_batch_give_its_bytes_back() {
    let kernel = sim::Kernel::with(&[0, 1], 4096, Layout::new(TIME_RAW, true, 0));
    let mut merge = merge(&kernel, Hold::None);
    for time in 1..100 {
        kernel.emit(0, time, b"some");
        kernel.emit(1, time, b"some");
    }
    merge.refresh(0);
    assert_eq!(merge.batch().take(150).count(), 150);
    assert_eq!((kernel.tail(0), kernel.tail(1)), (0, 0));
    // Behind a batch that was left in the middle, once what was merged with it is yielded.
    (0..24).for_each(|_| drop(merge.next()));
    let tails = [kernel.tail(0), kernel.tail(1)];
    assert!(tails.iter().all(|tail| (75 * 24..=87 * 24).contains(tail)), "{tails:?}");
    assert_eq!(merge.batch().count(), 24);
    assert!(merge.next().is_none());
    assert_eq!((kernel.tail(0), kernel.tail(1)), (99 * 24, 99 * 24));
}

/// How the simulator nests: only the outermost writer publishes.
#[test]
fn what_an_interrupt_wrote_is_invisible_until_the_outermost_writer_is_done() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut merge = merge(&kernel, Hold::None);
    kernel.begin(0, 1);
    // Interrupted before it reserved: published at once.
    kernel.emit(0, 2, b"b");
    assert_eq!(kernel.head(0), 24);
    kernel.write(0, b"a");
    assert_eq!(kernel.head(0), 24, "not before it is done");
    // Interrupted after: invisible at any depth.
    kernel.begin(0, 3);
    kernel.write(0, b"c");
    kernel.emit(0, 4, b"d");
    kernel.end(0);
    assert_eq!(kernel.head(0), 24);
    merge.refresh(0);
    assert_eq!(all(&mut merge), ["b"]);
    kernel.end(0);
    assert_eq!(kernel.head(0), 4 * 24);
    merge.refresh(0);
    assert_eq!(all(&mut merge), ["a", "c", "d"]);
    assert!(kernel.grace().is_over());

    // A writer that outputs twice is done with the first before it begins the second.
    kernel.begin(1, 5);
    kernel.write(1, b"e");
    kernel.write(1, b"f");
    assert_eq!(kernel.head(1), 24);
    kernel.end(1);
    assert_eq!(kernel.head(1), 48);
}

/// A number that is drawn and in flight holds up all that come after it, however much of them the rings cannot take:
/// the kernel drops some. They leave once it has come, and the numbers that were dropped are proven gaps.
#[test]
fn a_dense_number_in_flight_is_waited_for_while_rings_are_full() {
    for most in [0, 5000, 1 << 20] {
        let kernel = sim::Kernel::with(&[0, 1], 4096, Layout::new(TIME_RAW, false, 0));
        let hold = Hold::Dense { first: Some(0), fence: kernel.fence() };
        let order = Order::new().key(Key::Payload(0)).hold(hold).most_held(most);
        let mut merge = Merge::new(kernel.rings(), order).unwrap();
        kernel.begin(1, 1);
        let mut written = Vec::new();
        for number in 1..=2000u64 {
            written.extend(kernel.emit(0, 1, &number.to_ne_bytes()).then_some(number));
            if number % 16 == 0 {
                merge.refresh(0);
                assert!(merge.begin_fence() == (number == 16) && !merge.is_ready(), "{most}: at {number}");
            }
        }
        assert_eq!(written.len() == 2000, most == 1 << 20, "{} were written", written.len());
        kernel.write(1, &0u64.to_ne_bytes());
        kernel.end(1);
        merge.end_fence();
        let mut keys = Vec::new();
        for _ in 0..3 {
            crate::fence(&mut merge);
            for event in merge.batch().filter(|event| event.item().lost().is_none()) {
                assert_eq!(event.certainty(), Certainty::Proven, "{event:?}");
                keys.extend(event.key());
            }
        }
        assert!(keys.iter().copied().eq([0].into_iter().chain(written.iter().copied())));
        let last = written[written.len() - 1];
        assert_eq!(merge.status().total().missing, last - written.len() as u64);
    }
}

/// A fence that failed proves nothing, and the merge wants another.
#[test]
fn a_fence_that_failed_is_asked_for_again() {
    let kernel = sim::Kernel::new(&[0]);
    let mut merge = merge(&kernel, Hold::FENCE);
    kernel.emit(0, 10, b"held");
    merge.refresh(0);
    assert!(merge.begin_fence() && !merge.begin_fence());
    merge.fail_fence();
    merge.refresh(0);
    assert!(merge.next().is_none());
    assert!(merge.begin_fence());
    merge.end_fence();
    // It ended once.
    merge.end_fence();
    merge.refresh(0);
    assert_eq!((all(&mut merge), merge.status().fences), (vec!["held".to_owned()], 1));
}

/// A record counts as repaired if one before it in the ring, still held, has a larger key. Equal keys and late records
/// do not count.
#[test]
fn what_was_out_of_order_is_counted() {
    let key: [fn() -> Key; 2] = [|| Key::Payload(0), || Key::Fn(Box::new(|record| record.payload()?.u64(0)))];
    key.into_iter().for_each(|key| count_out_of_order(&sim::Kernel::new(&[0]), key()));
}

fn count_out_of_order(kernel: &sim::Kernel, key: Key) {
    let mut merge = Merge::new(kernel.rings(), Order::new().key(key).hold(Hold::None)).unwrap();
    let mut take = |keys: &[u64]| {
        keys.iter().for_each(|key| assert!(kernel.emit(0, 1, &key.to_ne_bytes())));
        merge.refresh(0);
        assert_eq!(merge.batch().count(), keys.len());
        (merge.status().total().repaired, merge.status().total().late)
    };
    assert_eq!(take(&[10, 30, 20, 30, 25]), (2, 0));
    assert_eq!(take(&[15]), (2, 1), "there is nothing before it");
    assert_eq!(take(&[40, 50]), (2, 1));
    assert_eq!(take(&[70, 60, 65, 70, 80]), (4, 1));
}

/// Dense numbers need no fence as long as none is missing.
#[test]
fn a_dense_sequence_asks_for_a_fence_only_for_numbers_that_are_missing() {
    let kernel = sim::Kernel::new(&[0]);
    let hold = Hold::Dense { first: Some(0), fence: kernel.fence() };
    let mut merge = Merge::new(kernel.rings(), Order::new().key(Key::Payload(0)).hold(hold)).unwrap();
    let emit = |number: u64| assert!(kernel.emit(0, 1, &number.to_ne_bytes()));
    assert!(!merge.begin_fence());
    emit(0);
    emit(1);
    merge.refresh(0);
    assert!(!merge.begin_fence(), "the next one is there");
    assert_eq!(merge.batch().count(), 2);
    assert!(!merge.begin_fence(), "nothing is held");
    emit(3);
    merge.refresh(0);
    assert!(merge.begin_fence(), "2 is missing");
    merge.end_fence();
    merge.refresh(0);
    assert_eq!(merge.batch().count(), 2);
    emit(4);
    merge.refresh(0);
    assert!(!merge.begin_fence());
}

/// Each event comes once, in order and with its own bytes, wherever its ring wraps. This holds if the way of taking
/// events changes inside a run, and if a function breaks off or panics.
#[test]
fn ways_to_take_events_can_be_mixed_in_the_middle_of_a_run() {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    fn take(event: &Event<'_>, keys: &mut Vec<u64>) {
        let payload = event.record().and_then(|record| record.payload()).unwrap();
        assert_eq!(payload.u64(0), event.key());
        keys.push(event.key().unwrap());
    }
    let kernel = sim::Kernel::with(&[0, 1], 4096, Layout::new(TIME_RAW, true, 0));
    let mut merge = merge(&kernel, Hold::None);
    let (mut keys, mut written) = (Vec::new(), 0u64);
    for turn in 0..2000usize {
        while merge.held() == 0 && written < 20_000 {
            for _ in 0..80 {
                let length = 8 + 4 * (written % 5) as usize;
                let mut payload = vec![9; length];
                payload[..8].copy_from_slice(&(written + 1).to_ne_bytes());
                assert!(kernel.emit((written / 16 % 2) as u32, written + 1, &payload));
                written += 1;
            }
            merge.refresh(0);
        }
        let (before, many) = (keys.len(), turn % 23 + 1);
        match turn % 4 {
            0 => {
                let mut each = |event: Event<'_>| {
                    take(&event, &mut keys);
                    if keys.len() == before + many {
                        resume_unwind(Box::new(()));
                    }
                };
                let _ = catch_unwind(AssertUnwindSafe(|| merge.batch().for_each(&mut each)));
            }
            1 => merge.batch().take(many).for_each(|event| take(&event, &mut keys)),
            2 => (0..many).filter_map(|_| merge.next().map(|event| take(&event.event(), &mut keys))).for_each(drop),
            _ => merge.batch().for_each(|event| take(&event, &mut keys)),
        }
        assert!(keys.len() > before, "turn {turn}");
        if keys.len() == 20_000 {
            break;
        }
    }
    assert!(keys.into_iter().eq(1..=20_000));
}

/// A filter that panics changes nothing: it is asked again, and no event comes twice.
#[test]
fn a_filter_that_panics_is_asked_again() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    static ARMED: AtomicBool = AtomicBool::new(true);
    let kernel = sim::Kernel::new(&[0]);
    let order = Order::new().hold(Hold::None).leave_out(|_| {
        Box::new(|record, _| {
            let time = record.time().unwrap();
            assert!(time != 4 || !ARMED.swap(false, Ordering::Relaxed), "the filter panics");
            time == 2
        })
    });
    let mut merge = Merge::new(kernel.rings(), order).unwrap();
    (1..=5).for_each(|time| assert!(kernel.emit(0, time, b"")));
    merge.refresh(0);
    assert!(catch_unwind(AssertUnwindSafe(|| merge.next().is_some())).is_err());
    let keys: Vec<_> = merge.batch().map(|event| event.key().unwrap()).collect();
    assert_eq!((keys, merge.status().left_out), (vec![1, 3, 4, 5], 1));
    assert!(merge.ledger().total().is_balanced());
}
