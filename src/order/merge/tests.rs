//! New CPUs, reports and the status of a merge.

use super::*;
use crate::record::Layout;
use crate::record::{Origin, Sources};
use crate::sim;
use crate::{Hold, Item};

/// CPUs for which a stream has no room are not traced, which is an error once and a notice for each of them. The
/// others are traced.
#[test]
fn cpus_beyond_the_most_rings_are_reported() {
    assert_eq!(RINGS, 16_384, "as documented");
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    [2, 3, 4].into_iter().for_each(|cpu| kernel.plug(cpu));
    let error = merge.follow_cpus_up_to(3).unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidInput, "5 rings: at most 3".into()));
    assert_eq!(merge.rings().cpus().collect::<Vec<_>>(), [0, 1, 2]);
    let mut reported = Vec::new();
    while let Some(event) = merge.next() {
        if let Item::Untraced(untraced) = event.event().item() {
            reported.push((untraced.cpu, untraced.lasted));
        }
    }
    assert_eq!(reported, [(3, None), (4, None)]);
    assert!(!merge.follow_cpus_up_to(3).unwrap(), "once");
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
    assert!(!merge.stream.far.is_empty());
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

/// A report that has waited long enough for a reservation waits no longer for that one, and on for all others: for
/// another place, another ring, and rings in which nothing is reserved.
#[test]
fn a_report_forgoes_the_old_reservations_alone() {
    let kernel = sim::Kernel::new(&[2]);
    let mut rings = kernel.rings();
    let (buffers, in_memory): (Vec<_>, Vec<_>) = (0..2).map(|_| sim::RingBuffer::new(4096)).unzip();
    for (cpu, ring) in (0..).zip(in_memory) {
        rings.add(cpu, ring, Layout::RING_BUFFER);
    }
    let order = Order::new().key(Key::with(|record| record.payload()?.u64(0))).hold(Hold::None);
    let mut merge = Merge::new(rings, order).unwrap();
    for buffer in &buffers {
        assert!(buffer.output(&1u64.to_ne_bytes()) && buffer.reserve(8).is_some());
    }
    assert!(kernel.emit(2, 1, &1u64.to_ne_bytes()));
    merge.refresh(0);
    merge.mark_heads();
    let age = Duration::from_secs(1);
    let places: Vec<_> = merge.awaited_places().collect();
    assert_eq!(places.iter().map(|place| place.0).collect::<Vec<_>>(), [0, 1]);
    let old = places[0];
    assert!(!merge.forgo_reserved(&[((old.0, old.1 + 8), age), ((3, old.1), age)], true));
    assert!(merge.forgo_reserved(&[(old, age)], false) && merge.stream.early_notice.is_some());
    assert_eq!(merge.awaited_places().collect::<Vec<_>>(), places[1..]);
    // It is forgone already, and no proof waits for it.
    assert!(!merge.forgo_reserved(&[(old, age)], true));
    let index_of = |merge: &Merge, cpu| merge.rings.cpu_rings.iter().position(|one| one.origin.cpu == cpu).unwrap();
    let at = index_of(&merge, old.0);
    merge.stream.indexes[at].sighted = old.1;
    assert!(!merge.forgo_reserved(&[(old, age)], true));
    merge.stream.indexes[at].sighted = old.1 + 8;
    assert!(!merge.forgo_reserved(&[(old, age)], false) && merge.forgo_reserved(&[(old, age)], true));
    // In a perf ring nothing is reserved.
    let at = index_of(&merge, 2);
    let head = merge.rings.cpu_rings[at].ring.head();
    merge.stream.indexes[at].sighted = head + 8;
    assert!(!merge.forgo_reserved(&[((2, head), age)], true));
}

#[test]
#[should_panic(expected = "101 percent")]
fn a_mark_beyond_the_ring_is_refused() {
    let _ = Order::new().fill_mark(101);
}
