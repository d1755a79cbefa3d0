//! New CPUs, reports and the status of a merge.

use super::*;
use crate::order::full::MOST_EVENTS;
use crate::record::Layout;
use crate::record::{Origin, Sources};
use crate::sim;
use crate::{ErrorKind, Hold, Item};
use std::time::Duration;

/// CPUs for which a stream has no room are not traced, which is an error once and a notice for each of them. The
/// others are traced.
#[test]
fn cpus_beyond_the_most_rings_are_reported() {
    assert_eq!(RINGS, 16_384, "as documented");
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    [2, 3, 4].into_iter().for_each(|cpu| kernel.plug(cpu));
    let error = arrivals::follow(&mut merge.rings, &mut merge.stream, 3).unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidInput, "5 rings: at most 3".into()));
    assert_eq!(merge.rings().cpus().collect::<Vec<_>>(), [0, 1, 2]);
    let mut reported = Vec::new();
    while let Some(event) = merge.next() {
        if let Item::Untraced(untraced) = event.event().item() {
            reported.push((untraced.cpu, untraced.lasted));
        }
    }
    assert_eq!(reported, [(3, None), (4, None)]);
    assert!(!arrivals::follow(&mut merge.rings, &mut merge.stream, 3).unwrap(), "once");
}

/// What waits in the heap, far out of order, is there still when a CPU with a smaller number comes online.
#[test]
fn what_is_far_out_of_order_outlives_a_new_cpu() {
    let kernel = sim::Kernel::new(&[1, 2]);
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(kernel.hold())).unwrap();
    let times: Vec<u64> = (0..100).map(|n| 1000 - n).chain(2000..2010).collect();
    for cpu in [1, 2] {
        times.iter().for_each(|time| assert!(kernel.emit(cpu, time + u64::from(cpu), b"")));
    }
    merge.refresh(0);
    assert!(!merge.stream.under().far.is_empty());
    kernel.plug(0);
    assert!(merge.follow_cpus().unwrap() && kernel.emit(0, 950, b""));
    merge.refresh(0);
    assert!(merge.begin_fence());
    merge.end_fence();
    merge.refresh(0);
    let mut expected: Vec<_> = times.iter().flat_map(|time| [(time + 1, 1), (time + 2, 2)]).collect();
    expected.push((950, 0));
    expected.sort_unstable();
    let next = |merge: &mut Merge| merge.next().map(|event| (event.key().unwrap(), event.cpu().unwrap()));
    let mut yielded: Vec<_> = std::iter::from_fn(|| next(&mut merge)).collect();
    assert!(yielded.is_sorted_by_key(|event| event.0), "{yielded:?}");
    yielded.sort_unstable();
    expected.truncate(yielded.len());
    assert!(yielded.len() > 200 && yielded == expected, "{yielded:?}");
    assert_eq!(merge.held(), 221 - yielded.len());
}

/// Of a ring that outlives its reader, a record that was yielded behind a held loss would be yielded again: the loss is
/// no record that stands for it.
#[test]
fn a_held_loss_is_no_record() {
    for is_behind in [true, false] {
        let kernel = sim::Kernel::new(&[0]);
        let mut rings = kernel.rings();
        let origin = &mut rings.cpu_rings[0].origin;
        *origin = Arc::new(Origin::new(0, origin.layout, Sources::new()).adopted());
        let mut merge = Merge::new(rings, Order::new().hold(Hold::Lag(Duration::from_nanos(1)))).unwrap();
        kernel.lose(0, 3);
        // The first one brings the news of the loss.
        let keys: &[u64] = if is_behind { &[9, 3] } else { &[3, 9] };
        keys.iter().for_each(|key| assert!(kernel.emit(0, *key, b"")));
        merge.refresh(5);
        while merge.next().is_some() {}
        assert_eq!(merge.held(), if is_behind { 2 } else { 1 });
        assert_eq!(merge.raise_cap(), is_behind);
    }
}

/// The kernel is not asked, so no account is exact: neither that of a ring, nor that of the machine.
#[test]
fn a_status_is_never_exact() {
    let kernel = sim::Kernel::new(&[0]);
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    merge.refresh(0);
    let status = merge.status();
    assert!(!status.machine.exact && !status.accounts[0].exact && !status.is_complete());
    assert!(merge.ledger().is_complete());
}

/// Writes what a ring takes up to its mark, and looks at it, so many times. Nothing is proven meanwhile.
fn held_up(kernel: &sim::Kernel, merge: &mut Merge, turns: u64) -> u64 {
    let mut written = 0;
    for turn in 0..turns {
        (0..100).for_each(|n| written += u64::from(kernel.emit(0, 1 + turn * 100 + n, &[0; 8])));
        merge.refresh(0);
    }
    written
}

/// Above the most events nothing is copied out of rings, and the merge says so, as long as that is why. Once they are
/// proven, copies go on.
#[test]
fn too_many_events_are_not_copied() {
    assert_eq!(MOST_EVENTS, 16 << 20, "as documented");
    let kernel = sim::Kernel::with(&[0], 4096, Layout::new(4 | 1024, true, 0));
    let mut merge = Merge::new(kernel.rings(), Order::new()).unwrap();
    merge.full.most_events = 401;
    let mut written = held_up(&kernel, &mut merge, 4);
    assert!(!merge.full.has_too_many && merge.status().total().copied > 0 && written == 400);
    merge.refresh(0);
    assert!(!merge.full.has_too_many, "the ring has room");
    let copied = merge.status().total().copied;
    written += held_up(&kernel, &mut merge, 8);
    assert!(merge.full.has_too_many && written < 1200, "the kernel drops");
    // What fits into the ring comes besides.
    assert!(merge.status().total().copied <= copied + 4096 && merge.held() < 401 + 200);
    assert_eq!(merge.held() as u64, written);
    // Its events are proven: it goes on.
    assert!(merge.begin_fence());
    merge.end_fence();
    merge.refresh(0);
    assert!(!merge.full.has_too_many, "they may leave");
    let proven = merge.batch().filter(|event| event.record().is_some());
    assert_eq!(proven.filter(|event| event.certainty() == crate::Certainty::Proven).count() as u64, written);
    merge.refresh(0);
    let before = merge.status().total();
    written = 0;
    for time in 5000..5390 {
        written += u64::from(kernel.emit(0, time, &[0; 8]));
        merge.refresh(0);
    }
    let after = merge.status().total();
    assert!(!merge.full.has_too_many && written == 390 && after.copied > before.copied);
}

/// Where nothing is to be copied, too many events are nothing to say.
#[test]
fn too_many_events_that_would_not_be_copied_are_not_said() {
    let kernel = sim::Kernel::with(&[0], 4096, Layout::new(4 | 1024, true, 0));
    let mut merge = Merge::new(kernel.rings(), Order::new().most_held(0)).unwrap();
    merge.full.most_events = 10;
    held_up(&kernel, &mut merge, 4);
    assert!(!merge.full.has_too_many && merge.status().total().copied == 0);
}

/// Memory that a burst took is given back within 64 refreshes, where no time has to pass as for a reader: places, places
/// far out of order, notes, and copies.
#[test]
fn what_a_burst_took_is_given_back_within_64_refreshes() {
    let kernel = sim::Kernel::with(&[0, 1], 1 << 16, Layout::new(4 | 1024, true, 0));
    let mut merge = Merge::new(kernel.rings(), Order::new().numbers(Key::Payload(0), None)).unwrap();
    let memory = |merge: &Merge| {
        let stream = merge.stream.under();
        (
            merge.status().memory,
            stream.far.capacity(),
            [stream.queues[0].blocks(), stream.cursors[0].notes.len_and_room()[1]],
        )
    };
    merge.refresh(0);
    let empty = memory(&merge);
    for turn in 0..100 {
        for n in 0..300u64 {
            // Backwards, and each second number is missing.
            assert!(kernel.emit(0, (1 << 20) - 1000 * turn - n, &(2 * (300 * turn + n)).to_ne_bytes()));
        }
        merge.refresh(0);
    }
    let full = memory(&merge);
    assert!(full.0 > 100 << 10 && full.1 > 10_000 && full.2[1] > 20_000, "{full:?}");
    assert!(merge.begin_fence());
    merge.end_fence();
    merge.refresh(0);
    assert_eq!(merge.batch().filter(|event| event.record().is_some()).count(), 30_000);
    for _ in 0..64 {
        merge.refresh(0);
    }
    assert_eq!(memory(&merge), empty);
}

/// The memory of copies stays for the time that a reader keeps it, however often it refreshes: the next burst finds it.
#[test]
fn copies_keep_their_memory_for_a_time() {
    for (kept, stays) in [(Duration::from_secs(3600), true), (Duration::ZERO, false)] {
        let kernel = sim::Kernel::with(&[0], 1 << 12, Layout::new(4 | 1024, true, 0));
        let mut merge = Merge::new(kernel.rings(), Order::new()).unwrap();
        merge.full.kept = kept;
        held_up(&kernel, &mut merge, 3);
        let memory = merge.status().memory;
        assert!(merge.begin_fence() && memory > 0);
        merge.end_fence();
        merge.refresh(0);
        assert!(merge.batch().count() > 0);
        (0..100).for_each(|_| assert_eq!(merge.refresh(0), 0));
        assert_eq!(merge.status().memory, if stays { memory } else { 0 });
    }
}
