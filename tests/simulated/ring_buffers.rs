//! BPF ring buffers: whatever programs reserve, submit and discard, in any order, the stream is a sort of what they
//! submitted.

use crate::reading::{self, LONG};
use crate::reservations::{Trial, machine, order, prove};
use perfweave::sim::RingBuffer;
use perfweave::{
    ANY_CPU, Certainty, Clock, Ended, ErrorKind, Fault, Fence, Hold, Item, Key, Layout, Merge, Order, Pause, Reader,
    Rings, sim,
};
use perfweave_proofs::Barrier;
use perfweave_support::assert_error;
use quickcheck::{Arbitrary, Gen};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn schedules(mut each: impl FnMut(&[u32], &[(u8, u8)])) {
    let mut generator = Gen::new(400);
    let tests = std::env::var("QUICKCHECK_TESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    for at in 0..tests {
        let cpus: &[u32] = [&[0, 1, 5][..], &[ANY_CPU][..]][at % 2];
        each(cpus, &Vec::arbitrary(&mut generator));
    }
}

/// Dies (seen once each) when the head passes busy reservations, and when the frontier moves although something that
/// was reserved is not indexed.
#[test]
fn reservations_match_sort() {
    let mut repaired = 0;
    schedules(|cpus, steps| {
        let trial = Trial::run(cpus, steps, Hold::Fence(Fence::by(|| Ok(()))), false);
        assert_eq!(trial.keys(), trial.submitted());
        assert!(trial.yielded.iter().all(|(_, certainty)| *certainty == Certainty::Proven));
        repaired += trial.merge.status().total().repaired;
    });
    assert!(repaired > 100, "{repaired}: programs interrupt each other between reserving and drawing their keys");
}

/// Keys that are drawn before the reservation are not covered; they are late, and nothing is lost.
#[test]
fn keys_drawn_before_the_reservation_can_be_late() {
    let mut late = 0;
    schedules(|cpus, steps| {
        let trial = Trial::run(cpus, steps, Hold::Fence(Fence::by(|| Ok(()))), true);
        late += trial.yielded.iter().filter(|(_, certainty)| *certainty == Certainty::Late).count() as u64;
        trial.assert_complete();
    });
    assert!(late > 0, "the check sees what is late");
}

/// Rules that only assume do not wait for a program that is inside; they lose nothing.
#[test]
fn assumed_orders_wait_for_no_program() {
    schedules(|cpus, steps| {
        Trial::run(cpus, steps, Hold::None, false).assert_complete();
    });
    let (buffers, rings) = machine(&[0, 1], 4096);
    let mut merge = Merge::new(rings, order().hold(Hold::None)).unwrap();
    let busy = buffers[0].reserve(8).unwrap();
    assert!(buffers[1].output(&7u64.to_ne_bytes()));
    merge.refresh(0);
    assert_eq!(merge.next().map(|event| event.key()), Some(Some(7)));
    buffers[0].discard(busy);
}

/// One program that stays inside holds all others up, and the statistics say which ring buffer it is. Reservations that
/// are made later do not keep the proof waiting.
#[test]
fn a_proof_waits_for_what_was_reserved_and_not_for_more() {
    let (buffers, rings) = machine(&[0, 1], 4096);
    let mut merge = Merge::new(rings, order()).unwrap();
    let inside = buffers[0].reserve(8).unwrap();
    assert!(buffers[1].output(&2u64.to_ne_bytes()));
    prove(&mut merge);
    assert_eq!((merge.is_ready(), merge.held(), merge.status().uncommitted), (false, 1, Some(0)));
    buffers[0].submit(inside, &1u64.to_ne_bytes());
    for _ in 0..3 {
        // Somebody is always inside.
        let next = buffers[0].reserve(8).unwrap();
        prove(&mut merge);
        buffers[0].discard(next);
    }
    let keys: Vec<_> = merge.batch().filter_map(|event| event.key()).collect();
    assert_eq!(keys, [1, 2]);
    merge.refresh(0);
    assert_eq!(merge.status().uncommitted, None);
    // A flush waits for what was reserved before it.
    let (buffers, rings) = machine(&[0], 4096);
    let mut reader = Reader::new(rings, order().hold(Hold::Fence(Barrier::Programs.fence()))).unwrap();
    let inside = buffers[0].reserve(8).unwrap();
    assert!(buffers[0].output(&2u64.to_ne_bytes()));
    reader.handle().flush().unwrap();
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    buffers[0].submit(inside, &1u64.to_ne_bytes());
    let mut keys = Vec::new();
    while let Some(event) = reader.next().unwrap() {
        match event.item() {
            Item::Flushed { .. } => break,
            _ => keys.push(event.key().unwrap()),
        }
    }
    assert_eq!(keys, [1, 2]);
}

/// What a reader gives before a report that is due: keys with their certainty, and whether the report is complete.
fn until_reported(reader: &mut Reader) -> (Vec<(u64, Certainty)>, bool) {
    until_reported_while(reader, || ())
}

/// The same, with something that is done after each event.
fn until_reported_while(reader: &mut Reader, mut then: impl FnMut()) -> (Vec<(u64, Certainty)>, bool) {
    let mut given = Vec::new();
    while let Some(event) = reader.next_timeout(LONG).unwrap() {
        match event.item() {
            Item::Flushed { complete } => {
                assert_eq!(event.certainty() == Certainty::Proven, complete);
                return (given, complete);
            }
            Item::Record(_) => given.push((event.key().unwrap(), event.certainty())),
            other => panic!("{other:?}"),
        }
        drop(event);
        then();
        assert!(given.len() < 10_000_000, "the report comes");
    }
    match reader.ended() {
        Some(Ended::Deadline { complete }) => (given, complete),
        other => panic!("the report does not wait for ever: {other:?}"),
    }
}

/// Asks for a report.
fn ask(reader: &mut Reader, is_flush: bool) {
    if is_flush {
        reader.handle().flush().unwrap();
    } else {
        reader.handle().set_deadline(Some(Instant::now())).unwrap();
    }
}

/// The rules, each for both reports. Whether the rule proves.
fn rules_and_reports() -> impl Iterator<Item = (Hold, bool, bool)> {
    let holds = [Barrier::Programs.fence(), Fence::by(|| Ok(()))].map(|fence| (Hold::Fence(fence), true));
    let assumes = [Hold::None, Hold::Lag(Duration::from_nanos(1))].map(|hold| (hold, false));
    let all = holds.into_iter().chain(assumes);
    all.flat_map(|(hold, proves)| [(hold.clone(), proves, true), (hold, proves, false)])
}

/// By a clock that the lag rule can read.
fn machine_of_two() -> (Vec<RingBuffer>, Rings) {
    let (buffers, rings) = machine(&[0, 1], 4096);
    (buffers, rings.on_clock(Clock::Monotonic))
}

/// A program ends and never commits what it has reserved. A flush and a deadline wait for that a bounded time, and say
/// that they are not complete. Under a rule that proves, what is not proven stays held, and comes in proven order once
/// the program has committed. A rule that assumes has given all that it could see.
#[test]
fn a_reservation_that_is_never_committed_keeps_no_report_for_ever() {
    for (hold, proves, is_flush) in rules_and_reports() {
        let what = format!("{hold}, flush: {is_flush}");
        let (buffers, rings) = machine_of_two();
        let mut reader = Reader::new(rings, order().hold(hold).latency(Duration::from_millis(1))).unwrap();
        let never = buffers[1].reserve(8).unwrap();
        assert!(buffers[1].output(&20u64.to_ne_bytes()), "it hides this");
        (1..=12u64).for_each(|time| assert!(buffers[0].output(&time.to_ne_bytes())));
        ask(&mut reader, is_flush);
        let visible: Vec<_> = (1..=12).map(|key| (key, Certainty::Assumed)).collect();
        let (given, complete) = until_reported(&mut reader);
        assert_eq!((given, complete), (if proves { Vec::new() } else { visible.clone() }, false), "{what}");
        let status = reader.status();
        assert_eq!((status.held, status.uncommitted), (if proves { 12 } else { 0 }, Some(1)), "{what}");
        // A second one finds the same.
        reader.handle().set_deadline(None).unwrap();
        ask(&mut reader, is_flush);
        assert_eq!(until_reported(&mut reader), (Vec::new(), false), "{what}");
        // The stream goes on, and what was held is proven.
        reader.handle().set_deadline(None).unwrap();
        buffers[1].submit(never, &19u64.to_ne_bytes());
        ask(&mut reader, is_flush);
        let held: &[u64] = if proves { &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 19, 20] } else { &[19, 20] };
        let certainty = if proves { Certainty::Proven } else { Certainty::Assumed };
        let expected = held.iter().map(|key| (*key, certainty)).collect();
        assert_eq!(until_reported(&mut reader), (expected, true), "{what}");
        assert_eq!((reader.status().held, reader.status().uncommitted), (0, None), "{what}");
    }
}

/// The same if the program commits in time: the report comes after its record, and is complete.
#[test]
fn a_report_that_waits_for_a_reservation_is_complete_once_it_is_committed() {
    for (hold, proves, is_flush) in rules_and_reports() {
        let what = format!("{hold}, flush: {is_flush}");
        let (buffers, rings) = machine_of_two();
        let mut reader = Reader::new(rings, order().hold(hold).latency(Duration::from_secs(3600))).unwrap();
        let inside = buffers[1].reserve(8).unwrap();
        (2..=12u64).for_each(|time| assert!(buffers[0].output(&time.to_ne_bytes())));
        ask(&mut reader, is_flush);
        let mut given = Vec::new();
        while let Some(event) = reader.next_timeout(Duration::ZERO).unwrap() {
            given.push((event.key().unwrap(), event.certainty()));
        }
        assert!(given.is_empty() == proves && reader.ended().is_none(), "{what}: {given:?}");
        buffers[1].submit(inside, &13u64.to_ne_bytes());
        let (rest, complete) = until_reported(&mut reader);
        given.extend(rest);
        let certainty = if proves { Certainty::Proven } else { Certainty::Assumed };
        assert_eq!(given, (2..=13).map(|key| (key, certainty)).collect::<Vec<_>>(), "{what}");
        assert!(complete, "{what}");
    }
}

/// Programs go on writing while a report waits for a reservation that is never committed: whenever the reader finds an
/// event and whenever it gives one, so that there are always newer events. They do not keep the report from coming, and
/// nothing that was there before is left out of it under a rule that assumes.
#[test]
fn newer_events_keep_no_report_that_gives_up() {
    for (hold, proves, is_flush) in rules_and_reports() {
        let what = format!("{hold}, flush: {is_flush}");
        let (buffers, rings) = machine_of_two();
        let (writer, newer) = (buffers[0].clone(), Arc::new(AtomicU64::new(100)));
        // As long as there is room.
        let write = {
            let newer = Arc::clone(&newer);
            move || _ = writer.output(&newer.fetch_add(1, Ordering::Relaxed).to_ne_bytes())
        };
        let writes = write.clone();
        let key = Key::Fn(Box::new(move |record| {
            let key = record.payload()?.u64(0)?;
            writes();
            Some(key)
        }));
        let order = Order::new().key(key).hold(hold).latency(Duration::from_millis(1));
        let mut reader = Reader::new(rings, order).unwrap();
        let never = buffers[1].reserve(8).unwrap();
        (1..=12u64).for_each(|time| assert!(buffers[0].output(&time.to_ne_bytes())));
        ask(&mut reader, is_flush);
        let (given, complete) = until_reported_while(&mut reader, || (0..2).for_each(|_| write()));
        assert!(!complete && newer.load(Ordering::Relaxed) > 100, "{what}");
        let given: Vec<_> = given.into_iter().map(|(key, _)| key).collect();
        if proves {
            assert!(given.is_empty(), "{what}: {given:?}");
        } else {
            assert!(given.is_sorted() && given.starts_with(&(1..=12).collect::<Vec<_>>()), "{what}: {given:?}");
        }
        buffers[1].discard(never);
    }
}

/// Five records, and a flush of them that waits for a fence.
fn flushed(gate: &std::sync::Arc<reading::Gate>) -> (Vec<RingBuffer>, Reader) {
    let (buffers, rings) = machine(&[0], 4096);
    let order = order().hold(Hold::Fence(gate.fence())).latency(Duration::from_millis(1));
    let reader = Reader::new(rings, order).unwrap();
    (1..=5u64).for_each(|key| assert!(buffers[0].output(&key.to_ne_bytes())));
    reader.handle().flush().unwrap();
    (buffers, reader)
}

/// A flush that has waited for a fence for long does not give up the proof for a program that is inside for a moment.
#[test]
fn a_report_waits_for_each_reservation_by_itself() {
    let gate = reading::Gate::new();
    let (buffers, mut reader) = flushed(&gate);
    // Longer than it waits for a reservation.
    assert!(reader.next_timeout(Duration::from_millis(150)).unwrap().is_none());
    let inside = buffers[0].reserve(8).unwrap();
    for _ in 0..4 {
        assert!(reader.next_timeout(Duration::from_millis(2)).unwrap().is_none(), "nothing is given up");
    }
    buffers[0].submit(inside, &6u64.to_ne_bytes());
    gate.open();
    let mut given = Vec::new();
    loop {
        let event = reader.next_timeout(LONG).unwrap().unwrap();
        match event.item() {
            Item::Flushed { .. } => break,
            Item::Record(_) => given.push((event.key(), event.certainty())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(given, (1..=5).map(|key| (Some(key), Certainty::Proven)).collect::<Vec<_>>());
}

/// Nor does a report wait without end for a proof that waits for what was reserved after the report began. If the proof
/// began first, it is complete. Else it says that it is not.
#[test]
fn a_reservation_behind_a_report_keeps_it_no_longer_than_one_before() {
    let gate = reading::Gate::new();
    let (buffers, mut reader) = flushed(&gate);
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none(), "it has begun");
    let _never = buffers[0].reserve(8).unwrap();
    gate.open();
    let (given, complete) = until_reported(&mut reader);
    let all: Vec<_> = (1..=5).map(|key| (key, Certainty::Proven)).collect();
    assert!(if complete { given == all } else { given.is_empty() }, "{given:?}, {complete}");
}

/// A fence covers keys that are drawn before the reservation, if a proof looks for what was reserved after the fence:
/// here another program's busy reservation hides the record of a program that the fence has waited for.
#[test]
fn a_proof_waits_for_what_was_reserved_when_the_fence_ended() {
    let (buffers, rings) = machine(&[0, 1], 4096);
    let mut merge = Merge::new(rings, order()).unwrap();
    assert!(buffers[0].output(&10u64.to_ne_bytes()));
    merge.refresh(0);
    assert!(merge.begin_fence(), "a program has drawn 5 and is still to reserve");
    let other = buffers[0].reserve(8).unwrap();
    merge.refresh(0);
    let hiding = buffers[1].reserve(8).unwrap();
    assert!(buffers[1].output(&5u64.to_ne_bytes()));
    merge.end_fence();
    buffers[0].submit(other, &20u64.to_ne_bytes());
    merge.refresh(0);
    assert!(!merge.is_ready(), "5 may be anywhere before what was reserved when the fence ended");
    buffers[1].discard(hiding);
    merge.refresh(0);
    let keys: Vec<_> = merge.batch().map(|event| (event.key(), event.certainty())).collect();
    assert_eq!(keys, [(Some(5), Certainty::Proven), (Some(10), Certainty::Proven)]);
}

/// Payloads have exactly the length that was reserved, up to several times what a perf record can hold, in the ring and
/// copied out of it.
#[test]
fn records_have_any_length() {
    for most in [0, 16 << 20] {
        let (buffers, rings) = machine(&[0], 1 << 20);
        let order = order().most_held(most).numbers(Key::Payload(8), Some(0));
        let mut merge = Merge::new(rings, order).unwrap();
        let lengths = [16, 17, 23, 24, 65_519, 65_520, 65_521, 65_528, 65_536, 70_001, 300_000];
        for round in 0..5u64 {
            for (at, len) in lengths.into_iter().enumerate() {
                let number = round * lengths.len() as u64 + at as u64;
                let mut data = vec![at as u8; len];
                data[..8].copy_from_slice(&(number + 1).to_ne_bytes());
                data[8..16].copy_from_slice(&number.to_ne_bytes());
                assert!(buffers[0].output(&data), "{len} bytes");
            }
            prove(&mut merge);
            for (at, len) in lengths.into_iter().enumerate() {
                let event = merge.next().unwrap();
                let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
                assert_eq!(record.payload().unwrap().len(), len);
                assert!(record.payload().unwrap().skip(16).unwrap().iter().all(|byte| byte == at as u8));
                assert_eq!(event.to_owned().as_event().record().unwrap().payload(), record.payload());
            }
            assert!(merge.next().is_none());
        }
        assert!(merge.ledger().total().missing == 0 && merge.status().total().yielded == 55);
    }
}

/// The CPU of a shared ring buffer is unknown, unless records name it.
#[test]
fn a_shared_ring_buffer_belongs_to_no_cpu() {
    for (layout, cpu) in [(Layout::RING_BUFFER, None), (Layout::RING_BUFFER.cpu_at(8), Some(6))] {
        let (buffer, ring) = RingBuffer::new(4096);
        let mut rings = Rings::empty(Clock::Perf);
        rings.add(ANY_CPU, ring, layout);
        let mut merge = Merge::new(rings, order()).unwrap();
        assert!(buffer.output(&[[1u64.to_ne_bytes()], [6u64.to_ne_bytes()]].concat().concat()));
        prove(&mut merge);
        assert_eq!(merge.next().map(|event| event.cpu()), Some(cpu));
        assert!(buffer.output(&2u64.to_ne_bytes()));
        prove(&mut merge);
        assert_eq!(merge.next().map(|event| event.cpu()), Some(None), "it is too short to name one");
    }
}

/// Each CPU counts for itself in a ring buffer that they share. What names no CPU that a kernel can have is not
/// checked.
#[test]
fn each_cpu_has_its_numbers_in_a_shared_ring_buffer() {
    let (buffer, ring) = RingBuffer::new(4096);
    let mut rings = Rings::empty(Clock::Perf);
    rings.add(ANY_CPU, ring, Layout::RING_BUFFER.cpu_at(16));
    let mut merge = Merge::new(rings, order().numbers(Key::Payload(8), Some(1))).unwrap();
    let wild = u64::from(u32::MAX - 1);
    let written = [(0, 1), (7, 1), (0, 2), (7, 4), (wild, 9), (8192, 9), (0, 5), (7, 2), (8191, 2), (0, 5)];
    for (at, (cpu, number)) in (1u64..).zip(written) {
        assert!(buffer.output([at, number, cpu].map(u64::to_ne_bytes).as_flattened()));
    }
    // Too short to name a CPU.
    assert!(buffer.output([11u64, 1].map(u64::to_ne_bytes).as_flattened()));
    prove(&mut merge);
    let mut said = Vec::new();
    while let Some(event) = merge.next() {
        match event.item() {
            Item::Gap(gap) => said.push((gap.cpu, gap.first, gap.last)),
            Item::Anomaly(odd) => said.push((Some(odd.cpu), odd.expected, odd.found)),
            _ => assert!(event.record().is_some(), "{event:?}"),
        }
    }
    assert_eq!(said, [(Some(7), 3, 3), (Some(0), 3, 4), (Some(8191), 1, 1), (Some(0), 6, 5)]);
    let account = merge.ledger().accounts[0];
    assert_eq!((account.missing, account.yielded, account.anomalies), (4, 11, 1));
}

/// Headers and positions that no kernel writes are damage, and the reader goes on after it.
#[test]
fn wild_positions_and_headers_are_damage() {
    let fault = |spoil: fn(&RingBuffer)| {
        let (buffers, rings) = machine(&[0], 4096);
        let mut merge = Merge::new(rings, order()).unwrap();
        assert!(buffers[0].output(&1u64.to_ne_bytes()));
        spoil(&buffers[0]);
        let mut faults = Vec::new();
        for _ in 0..4 {
            prove(&mut merge);
            while let Some(event) = merge.next() {
                faults.extend(reading::fault(&event.event()));
            }
        }
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(merge.held(), 0);
        faults[0]
    };
    assert!(matches!(fault(|buffer| buffer.force_produced(16 + 4104)), Fault::Head { to: 4120, .. }));
    assert!(matches!(fault(|buffer| buffer.force_produced(4127)), Fault::Head { to: 4120, .. }));
    assert!(matches!(fault(|buffer| buffer.force_produced(8)), Fault::Size { room: 8, .. }));
    let wild = |buffer: &RingBuffer| buffer.scribble(0, &0x3fff_ffffu32.to_ne_bytes());
    assert!(matches!(fault(wild), Fault::Size { size: 0x4000_0008, room: 16 }));
    // Another reader of the same map.
    let (buffers, rings) = machine(&[0], 4096);
    let mut merge = Merge::new(rings, order()).unwrap();
    assert!(buffers[0].output(&1u64.to_ne_bytes()));
    buffers[0].force_consumed(16);
    prove(&mut merge);
    let damage = merge.next().and_then(|event| reading::fault(&event.event()));
    assert_eq!(damage, Some(Fault::Consumer { from: 0, to: 16 }));
    prove(&mut merge);
    assert!(buffers[0].output(&2u64.to_ne_bytes()));
    prove(&mut merge);
    assert_eq!(merge.next().map(|event| event.key()), Some(Some(2)), "it goes on");
}

/// What was reserved before another reader took it is waited for no longer.
#[test]
fn a_proof_does_not_wait_for_what_another_reader_took() {
    let (buffers, rings) = machine(&[0, 1], 4096);
    let mut merge = Merge::new(rings, order()).unwrap();
    let long = buffers[0].reserve(1000).unwrap();
    let other = buffers[1].reserve(8).unwrap();
    merge.refresh(0);
    buffers[0].submit(long, &[0; 1000]);
    buffers[0].force_consumed(buffers[0].produced());
    prove(&mut merge);
    assert!(merge.next().is_some_and(|event| matches!(event.item(), Item::Damage(_))));
    prove(&mut merge);
    buffers[1].submit(other, &2u64.to_ne_bytes());
    prove(&mut merge);
    assert_eq!(merge.next().map(|event| event.key()), Some(Some(2)));
}

/// What reservations do not prove is refused, with what to do instead.
#[test]
fn what_proves_nothing_is_refused() {
    let reserved = || order().hold(Hold::Fence(Barrier::Programs.fence()));
    let kind = |rings, order| Reader::new(rings, order).map(drop).map_err(|error| error.kind());
    let (_buffers, rings) = machine(&[0], 4096);
    assert_eq!(kind(rings, reserved()), Ok(()));
    assert_eq!(kind(sim::Kernel::new(&[0]).rings(), reserved()), Err(ErrorKind::Unsupported));
    let mut mixed = sim::Kernel::new(&[0]).rings();
    mixed.add(0, RingBuffer::new(4096).1, Layout::RING_BUFFER);
    assert_eq!(kind(mixed, reserved()), Err(ErrorKind::Unsupported));
    let (_buffers, rings) = machine(&[0], 4096);
    assert_eq!(kind(rings, order().key(Key::Time)), Err(ErrorKind::InvalidInput));
    let (_buffers, rings) = machine(&[ANY_CPU], 4096);
    let numbered = order().numbers(Key::Payload(8), None);
    assert_eq!(kind(rings, numbered), Err(ErrorKind::InvalidInput));
}

#[test]
#[should_panic(expected = "the layout of a BPF ring buffer")]
fn a_ring_buffer_has_its_own_layout() {
    Rings::empty(Clock::Perf).add(0, RingBuffer::new(4096).1, Layout::RAW);
}

/// A record that is longer than any of perf's may have any bytes, also where a length would lie in a record of perf's.
#[test]
fn bytes_of_a_long_record_are_no_lengths() {
    for fill in [0, 1] {
        let (buffers, rings) = machine(&[0], 1 << 20);
        let mut merge = Merge::new(rings, order().most_held(0)).unwrap();
        let mut data = vec![fill; 70_001];
        data[..8].copy_from_slice(&1u64.to_ne_bytes());
        assert!(buffers[0].output(&data));
        prove(&mut merge);
        let event = merge.next().unwrap();
        assert_eq!(event.key(), Some(1));
        assert_eq!(event.record().unwrap().payload().unwrap().to_vec(), data);
    }
}

/// Words of epochs are those of all CPUs, and so is a ring buffer that all share.
#[test]
fn epochs_are_taken_for_a_shared_ring_buffer() {
    let (_buffers, rings) = machine(&[ANY_CPU], 4096);
    let hold = Hold::Fence(reading::simulated(&sim::Kernel::new(&[0])).fence());
    assert!(Reader::new(rings, order().hold(hold)).is_ok());
}

/// Reservations that are skipped with a lost head are not waited for, by a proof or by a flush.
#[test]
fn a_lost_head_holds_nothing_up() {
    let (buffers, rings) = machine(&[0, 1], 4096);
    let mut reader = Reader::new(rings, order().hold(Hold::Fence(Barrier::Programs.fence()))).unwrap();
    let next = |reader: &mut Reader| {
        let event = reader.next_timeout(std::time::Duration::ZERO).unwrap()?;
        Some((event.key(), reading::fault(&event.event())))
    };
    let first = buffers[0].reserve(8).unwrap();
    let other = buffers[1].reserve(8).unwrap();
    assert!(next(&mut reader).is_none());
    reader.handle().flush().unwrap();
    buffers[0].submit(first, &1u64.to_ne_bytes());
    buffers[0].force_consumed(16);
    assert_eq!(next(&mut reader), Some((None, Some(Fault::Consumer { from: 0, to: 16 }))));
    assert!(next(&mut reader).is_none());
    buffers[1].submit(other, &2u64.to_ne_bytes());
    assert_eq!(next(&mut reader), Some((Some(2), None)));
    assert!(matches!(reader.next().unwrap().unwrap().item(), Item::Flushed { .. }));
    assert!(next(&mut reader).is_none());
    assert_ne!(reader.time_to_next_refresh(), std::time::Duration::ZERO, "it sleeps");
}

/// The kernel notifies only a reader that has given everything back: what a program discarded, too.
#[test]
fn a_discard_is_given_back_before_the_reader_waits() {
    let (buffers, rings) = machine(&[0], 4096);
    let mut merge = Merge::new(rings, order()).unwrap();
    let one = buffers[0].reserve(8).unwrap();
    buffers[0].discard(one);
    merge.refresh(0);
    assert!(merge.is_behind(), "bytes are still to be given back");
    merge.refresh(0);
    assert_eq!((merge.is_behind(), buffers[0].consumed()), (false, buffers[0].produced()));
    assert!(buffers[0].output(&1u64.to_ne_bytes()));
    prove(&mut merge);
    drop(merge.next().unwrap());
    assert!(merge.is_behind());
    merge.advance_tails();
    assert!(!merge.is_behind());
}

/// Nobody can keep programs from writing into a BPF ring buffer. Rings of other kinds are paused all the same.
#[test]
fn pausing_output_is_refused() {
    for (cpu, is) in [(0, "a ring of CPU 0"), (ANY_CPU, "the ring of all CPUs")] {
        let kernel = sim::Kernel::new(&[0]);
        let mut rings = kernel.rings();
        rings.add(cpu, RingBuffer::new(4096).1, Layout::RING_BUFFER);
        let said = format!("the output into a BPF ring buffer cannot be paused, and {is} is one");
        assert_error!(rings.handle().pause(Pause::Output).unwrap_err(), Unsupported, said);
        assert!(!kernel.emit(0, 1, b""), "the perf ring is paused");
        rings.handle().resume().unwrap();
        assert!(kernel.emit(0, 2, b""));
        rings.handle().pause(Pause::Slots).unwrap();
        rings.handle().resume().unwrap();
        let reader = Reader::new(rings, Order::new().key(Key::Payload(0)).hold(Hold::None)).unwrap();
        assert_error!(reader.handle().pause(Pause::Output).unwrap_err(), Unsupported, said);
        reader.handle().close();
    }
}

/// Reading without order gives each committed record once, in the order of its ring, up to the first that is busy, also
/// if the function breaks at any place.
#[test]
fn reading_without_order_stops_at_what_is_busy() {
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let (buffers, mut rings) = machine(&[0, 1], 1 << 20);
    // Number and whether it was submitted, of each reservation that was not given.
    let mut expected = [const { VecDeque::<(u64, Option<bool>)>::new() }; 2];
    let mut busy = Vec::new();
    let (mut number, mut given) = (0u64, 0);
    for _ in 0..3000 {
        let at = random(2) as usize;
        match random(8) {
            0..3 => {
                let len = if random(50) == 0 { 70_000 } else { 8 + random(40) };
                if let Some(place) = buffers[at].reserve(len as u32) {
                    number += 1;
                    expected[at].push_back((number, None));
                    busy.push((at, place, len, number));
                }
            }
            3..7 if !busy.is_empty() => {
                let (at, place, len, number) = busy.remove(random(busy.len().min(3) as u64) as usize);
                let submit = random(4) > 0;
                let mut data = vec![0; len as usize];
                data[..8].copy_from_slice(&number.to_ne_bytes());
                if submit {
                    buffers[at].submit(place, &data)
                } else {
                    buffers[at].discard(place)
                }
                expected[at].iter_mut().find(|one| one.0 == number).unwrap().1 = Some(submit);
            }
            _ => {
                let mut left = random(30);
                let _ = rings.drain(|event| {
                    let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
                    let at = event.cpu().unwrap() as usize;
                    while matches!(expected[at].front(), Some((_, Some(false)))) {
                        expected[at].pop_front();
                    }
                    assert_eq!(expected[at].pop_front(), Some((record.payload().unwrap().u64(0).unwrap(), Some(true))));
                    given += 1;
                    left = left.saturating_sub(1);
                    if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                if left > 0 {
                    let is_left = |one: &VecDeque<(u64, Option<bool>)>| {
                        one.iter().find(|one| one.1 != Some(false)).is_some_and(|one| one.1.is_some())
                    };
                    assert!(!expected.iter().any(is_left), "{expected:?}");
                }
            }
        }
    }
    assert!(given > 500, "{given}");
    // A second reader of the map.
    let mut faults = Vec::new();
    buffers[1].force_consumed(buffers[1].consumed() + 8);
    let _ = rings.drain(|event| {
        faults.extend(reading::fault(&event));
        ControlFlow::<()>::Continue(())
    });
    assert!(matches!(faults[..], [Fault::Consumer { .. }]), "{faults:?}");
}

/// A reader sleeps while a program stays inside, and says which ring it waits for.
#[test]
fn a_reader_that_waits_for_a_program_inside_sleeps() {
    let (buffers, rings) = machine(&[3, 4], 4096);
    let mut reader = Reader::new(rings, order().hold(Hold::Fence(Barrier::Programs.fence()))).unwrap();
    let inside = buffers[1].reserve(8).unwrap();
    assert!(buffers[0].output(&1u64.to_ne_bytes()));
    // Until it has slept some times: a reader that spins never does.
    let mut turns = 0;
    while reader.status().sleeps < 5 {
        assert!(reader.next_timeout(Duration::from_millis(20)).unwrap().is_none());
        turns += 1;
        assert!(turns < 100, "it never sleeps: {:?}", reader.status());
    }
    assert_eq!((reader.status().uncommitted, reader.status().total().yielded), (Some(4), 0));
    assert!(reader.status().refreshes < 100 * reader.status().sleeps, "{:?}", reader.status());
    buffers[1].submit(inside, &2u64.to_ne_bytes());
    for key in 1..=2 {
        assert_eq!(reader.next().unwrap().map(|event| event.key()), Some(Some(key)));
    }
}

/// A reader of this ring buffer alone, by the key in the first word.
fn reader_of(buffer: &RingBuffer, hold: Hold) -> Reader {
    let mut rings = Rings::empty(Clock::Perf);
    rings.add(0, buffer.adopt(), Layout::RING_BUFFER);
    Reader::new(rings, order().hold(hold).latency(Duration::from_millis(1))).unwrap()
}

/// Flushes, and takes everything before the report and nothing behind it.
fn until_flushed(reader: &mut Reader) -> Vec<u64> {
    reader.handle().flush().unwrap();
    let mut keys = Vec::new();
    loop {
        let event = reader.next_timeout(LONG).unwrap().expect("a report");
        match event.item() {
            Item::Flushed { .. } => return keys,
            Item::Record(_) => keys.push(event.key().unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

/// A ring buffer that is full of held records keeps them for the next reader. Only who asks for it has them copied out;
/// then handles are told what is lost with the reader.
#[test]
fn held_records_of_a_reader_that_is_dropped_are_there_for_the_next() {
    for most in [None, Some(0), Some(1 << 20)] {
        let (buffers, rings) = machine(&[0, 1], 4096);
        let order = order().hold(Hold::Fence(Barrier::Programs.fence()));
        let order = if let Some(most) = most { order.most_held(most) } else { order };
        let mut reader = Reader::new(rings, order).unwrap();
        let handle = reader.handle();
        // Everything waits for this one.
        let inside = buffers[1].reserve(8).unwrap();
        let mut written = 0u64;
        for _ in 0..6 {
            for _ in 0..50 {
                written += u64::from(buffers[0].output(&(written + 1).to_ne_bytes()));
            }
            assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
        }
        let copied = reader.status().total().copied / 16;
        assert_eq!(reader.status().total().held, written);
        drop(reader);
        let left = handle.status().unwrap().total();
        assert_eq!(
            (left.lost, left.unreported, left.held, left.written()),
            (copied, copied, written - copied, written)
        );
        match most {
            None | Some(0) => assert!(copied == 0 && written == 255 && buffers[0].failed() == 45, "{written}"),
            Some(_) => assert!(copied > 0 && written == 300, "{copied} of {written}"),
        }
        buffers[1].discard(inside);
        let mut next = reader_of(&buffers[0], Hold::None);
        assert_eq!(until_flushed(&mut next), (copied + 1..=written).collect::<Vec<_>>());
    }
}

/// A record that was in flight when newer events began to wait for a report is written behind one of those. The report
/// comes after both: else the next reader would yield the first one again. Newer events alone come after the report,
/// whatever is discarded behind them.
#[test]
fn a_flush_ends_where_the_next_reader_can_begin() {
    for (late, before, after) in [(&[5u64, 1][..], &[1, 2, 5][..], &[7][..]), (&[5], &[2], &[5, 7])] {
        let (buffer, ring) = RingBuffer::new(4096);
        drop(ring);
        assert!(buffer.output(&2u64.to_ne_bytes()));
        let (writer, is_first) = (buffer.clone(), AtomicBool::new(true));
        let fence = Hold::Fence(Fence::by(move || {
            if is_first.swap(false, Ordering::Relaxed) {
                late.iter().for_each(|key| assert!(writer.output(&key.to_ne_bytes())));
                writer.discard(writer.reserve(100).unwrap());
            }
            Ok(())
        }));
        let mut reader = reader_of(&buffer, fence.clone());
        assert_eq!(until_flushed(&mut reader), before);
        drop(reader);
        assert!(buffer.output(&7u64.to_ne_bytes()));
        assert_eq!(until_flushed(&mut reader_of(&buffer, fence)), after);
    }
}

/// On a ring that CPUs share, each proof may find a record of one CPU behind a newer one of another. A flush comes all the
/// same, after some proofs.
#[test]
fn a_flush_comes_although_writers_overtake_each_other_for_ever() {
    const EVER: u64 = 100;
    let (buffer, ring) = RingBuffer::new(1 << 16);
    drop(ring);
    assert!(buffer.output(&2u64.to_ne_bytes()));
    let (writer, fences) = (buffer.clone(), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&fences);
    let fence = Hold::Fence(Fence::by(move || {
        let n = count.fetch_add(1, Ordering::Relaxed);
        // Drawn after everything that was seen, and one that was drawn before and is written now.
        let keys = [10 * (n + 1), (10 * n).saturating_sub(1).max(1)];
        (n < EVER).then(|| keys.map(|key| assert!(writer.output(&key.to_ne_bytes()))));
        Ok(())
    }));
    until_flushed(&mut reader_of(&buffer, fence));
    assert!((2..EVER / 2).contains(&fences.load(Ordering::Relaxed)), "{fences:?}");
}

/// Programs that draw keys, interrupt each other, reserve and submit or discard, in any order.
struct Programs {
    buffer: RingBuffer,
    clock: u64,
    random: u64,
    /// Keys that were drawn and not written, the innermost last.
    drawn: Vec<u64>,
    submitted: Vec<u64>,
    /// No more are drawn.
    end: bool,
}

impl Programs {
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % below
    }

    fn step(&mut self) {
        if !self.end && self.drawn.len() < 4 && self.random(2) == 0 {
            self.clock += 1;
            return self.drawn.push(self.clock);
        }
        let Some(key) = self.drawn.pop() else { return };
        let place = self.buffer.reserve(8).expect("it is read often enough");
        if self.random(4) == 0 {
            return self.buffer.discard(place);
        }
        self.buffer.submit(place, &key.to_ne_bytes());
        self.submitted.push(key);
    }

    /// A grace period: everything that is in flight ends, and more begins.
    fn pass(&mut self) {
        let last = self.clock;
        while !self.end && self.random(8) > 0 || self.drawn.first().is_some_and(|key| *key <= last) {
            self.step();
        }
    }
}

/// Readers that come and go on one ring buffer, while programs write. Each flushes, reads up to the report and is
/// dropped: together they yield each record once, in order, and their accounts agree. Readers that are dropped anywhere
/// lose nothing either; then the next one yields again what was yielded before an older record.
#[test]
fn readers_that_come_and_go_yield_each_record() {
    for flushes in [true, false] {
        let (buffer, ring) = RingBuffer::new(1 << 16);
        drop(ring);
        let (drawn, submitted) = Default::default();
        let programs = Programs { buffer: buffer.clone(), clock: 0, random: 7, drawn, submitted, end: false };
        let programs = Arc::new(Mutex::new(programs));
        let running = || programs.lock().unwrap();
        let inside = Arc::clone(&programs);
        let fence = Hold::Fence(Fence::by(move || {
            inside.lock().unwrap().pass();
            Ok(())
        }));
        let (mut yielded, mut counted) = (Vec::new(), 0);
        for round in (0..300).rev() {
            let mut reader = reader_of(&buffer, fence.clone());
            (0..40).for_each(|_| running().step());
            if round == 0 {
                running().end = true;
                running().pass();
            }
            if flushes || round == 0 {
                yielded.extend(until_flushed(&mut reader));
            } else {
                let most = running().random(60) as usize;
                let keys = std::iter::from_fn(|| reader.next_timeout(Duration::from_millis(1)).unwrap()?.key());
                yielded.extend(keys.take(most));
            }
            let total = reader.ledger().unwrap().total();
            assert_eq!((total.lost, total.damaged, total.late), (0, 0, 0));
            counted += total.yielded;
        }
        assert_eq!(counted, yielded.len() as u64);
        assert!(!flushes || yielded.is_sorted(), "one reader's events come after those of the one before");
        yielded.sort_unstable();
        yielded.dedup();
        let twice = counted - yielded.len() as u64;
        running().submitted.sort_unstable();
        assert_eq!(yielded, running().submitted);
        assert_eq!(flushes, twice == 0, "{twice} of {counted} came twice");
    }
}

/// A flush that has given up, beside a ring whose head is lost: the reader sleeps, and names the CPU that it waits for.
#[test]
fn a_lost_head_keeps_no_reader_awake_after_a_flush_that_gave_up() {
    let (buffers, rings) = machine(&[0, 1], 4096);
    let hold = Hold::Fence(Barrier::Programs.fence());
    let mut reader = Reader::new(rings, order().hold(hold).latency(Duration::from_millis(1))).unwrap();
    assert!(buffers[0].output(&1u64.to_ne_bytes()));
    let inside = buffers[0].reserve(8).unwrap();
    let _never = buffers[1].reserve(8).unwrap();
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    reader.handle().flush().unwrap();
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    // Its second record is behind a head that cannot be right.
    buffers[0].submit(inside, &2u64.to_ne_bytes());
    buffers[0].force_consumed(16);
    let flushed = reader.next_timeout(LONG).unwrap().unwrap();
    assert!(matches!(flushed.item(), Item::Flushed { complete: false }), "{flushed:?}");
    drop(flushed);
    let before = reader.status();
    assert!(reader.next_timeout(Duration::from_millis(50)).unwrap().is_none());
    let after = reader.status();
    let (looks, sleeps) = (after.refreshes - before.refreshes, after.sleeps - before.sleeps);
    assert!(looks <= sleeps + 2, "{looks} refreshes, {sleeps} sleeps");
    assert_eq!(after.uncommitted, Some(1));
}
