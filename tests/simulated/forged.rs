//! Bytes that a hostile program writes. The reader rejects what the kernel could not have written, and other rings are
//! not affected.

use crate::reading;
use crate::{fence, small};
use perf_event_open_sys::bindings;
use perfweave::{Certainty, Clock, Event, Fault, Hold, Item, Layout, Merge, Order, Pause, Reader, Rings, sim};
use perfweave_support::bpf::{self, Map};
use perfweave_support::{foreign, kernel, load, threads};
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

/// By how much a time may be ahead, because CPUs' clocks differ.
const SLACK: u64 = 1_000_000;

/// `PERF_RECORD_SAMPLE` with a time and 8 bytes of raw data: 32 bytes.
fn sample(time: u64, number: u64) -> Vec<u8> {
    let words = [9u64 | 1 << 32 | 32 << 48, time];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(12u32.to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes
}

/// `PERF_RECORD_LOST` with a time: 32 bytes.
fn lost(count: u64, time: u64) -> Vec<u8> {
    [2u64 | 32 << 48, 7, count, time].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Writes bytes after the records of a ring, as no lawful kernel does. The next refresh finds them.
fn forge(kernel: &sim::Kernel, cpu: u32, bytes: &[u8]) {
    let head = kernel.head(cpu);
    kernel.scribble(cpu, head, bytes);
    kernel.force_head(cpu, head + bytes.len() as u64);
}

#[test]
fn a_lost_record_that_says_more_than_the_kernel_counts_is_damage() {
    let kernel = small(&[0, 3], 64 << 10);
    let mut merge = Merge::new(kernel.rings(), Order::new()).unwrap();
    kernel.emit(0, 10, &[1; 8]);
    kernel.lose(0, 5);
    kernel.emit(0, 20, &[1; 8]);
    // The reader has reported all losses that the kernel counted: any more is a forgery.
    forge(&kernel, 0, &[56_294_995_342_131_210, 1, u64::MAX, 0].map(|count| lost(count, 30)).concat());
    kernel.emit(0, 40, &[1; 8]);
    fence(&mut merge);
    let (mut counts, mut faults, mut records) = (Vec::new(), Vec::new(), 0);
    for event in merge.batch() {
        match event.item() {
            Item::Lost(lost) => counts.push(lost.count),
            Item::Damage(damage) => {
                assert_eq!(damage.bytes.len(), 32);
                faults.push(damage.fault());
            }
            _ => records += 1,
        }
    }
    assert_eq!((counts, records, faults.len()), (vec![5], 3, 3), "{:?}", merge.status());
    let too_much = |count| Fault::Lost { count, most: 0 };
    assert_eq!(faults, [56_294_995_342_131_210, 1, u64::MAX].map(too_much));
    let account = merge.ledger().accounts[0];
    assert_eq!((account.lost, account.unreported, account.damaged), (5, 0, 3));
    assert!(account.exact && !account.is_balanced(), "{account}");
    // Real losses after it are still reported.
    kernel.lose(0, 3);
    merge.refresh(0);
    assert!(merge.read_losses());
    let trailing: Vec<_> = merge.batch().map(|event| event.item().lost().map(|lost| lost.count)).collect();
    assert_eq!(trailing, [Some(3)]);
    kernel.lose(0, 2);
    kernel.emit(0, 50, &[1; 8]);
    fence(&mut merge);
    assert_eq!(merge.batch().count(), 2);
    assert_eq!(merge.status().total().lost, 10);
    assert_eq!(merge.ledger().accounts[0].lost, 10);
}

/// The same for rings that are read without order, and for overwritable rings.
#[test]
fn a_lost_record_is_not_believed_by_other_readers_either() {
    let kernel = small(&[0], 64 << 10);
    let mut rings = kernel.rings();
    kernel.lose(0, 5);
    kernel.emit(0, 20, &[1; 8]);
    forge(&kernel, 0, &lost(6, 30));
    let mut told = Vec::new();
    let _ = rings.drain(|event| {
        match event.item() {
            Item::Lost(lost) => told.push(lost.count),
            Item::Damage(damage) => assert_eq!(damage.fault(), Fault::Lost { count: 6, most: 0 }),
            _ => told.push(0),
        }
        std::ops::ControlFlow::<()>::Continue(())
    });
    assert_eq!(told, [5, 0]);
    // A merge that takes the rings over does not report it again.
    let mut merge = Merge::new(rings, Order::new()).unwrap();
    assert!(!merge.read_losses());

    let kernel = sim::Kernel::backward(&[0], 4096, Layout::new(4 | 1024, true, 0));
    let mut recorder = kernel.recorder().unwrap();
    kernel.lose(0, 4);
    kernel.emit(0, 20, &[1; 8]);
    let head = kernel.head(0).wrapping_sub(32);
    kernel.scribble(0, head, &lost(1000, 30));
    kernel.force_head(0, head);
    let mut merge = reading::merged(recorder.freeze().unwrap());
    let (mut faults, mut told) = (Vec::new(), Vec::new());
    merge.batch().for_each(|event| match event.item() {
        Item::Damage(damage) => faults.push(damage.fault()),
        Item::Lost(lost) => told.push(lost.count),
        _ => {}
    });
    assert_eq!((faults, told), (vec![Fault::Lost { count: 1000, most: 4 }], vec![4]));
}

/// A LOST record with the count 0, which a lawful kernel writes if one writer interrupts another. It is no event in any
/// reader, and no damage. The records around it are as without it.
#[test]
fn a_lost_record_that_counts_nothing_is_no_event() {
    let write = |kernel: &sim::Kernel| {
        kernel.emit(0, 10, &[1; 8]);
        kernel.lose(0, 5);
        // The interrupt's writer takes the count, and the one that it interrupts finds none.
        kernel.begin(0, 20);
        kernel.begin(0, 30);
        assert!(kernel.write(0, &[3; 8]));
        kernel.end(0);
        assert!(kernel.write_other(0, bindings::PERF_RECORD_LOST, 0, &[7u64.to_ne_bytes(), [0; 8]].concat()));
        assert!(kernel.write(0, &[2; 8]));
        kernel.end(0);
    };
    let told = |event: &Event<'_>| match event.item() {
        Item::Record(record) => (event.key(), u64::from(record.payload().unwrap().u8(0).unwrap())),
        Item::Lost(lost) => (lost.until, 1000 + lost.count),
        other => panic!("{other:?}"),
    };
    for hold in [Hold::FENCE, Hold::None] {
        let kernel = small(&[0], 64 << 10);
        let mut merge = Merge::new(kernel.rings(), Order::new().hold(hold)).unwrap();
        write(&kernel);
        // The last one may have no record after it.
        kernel.begin(0, 40);
        assert!(kernel.write_other(0, bindings::PERF_RECORD_LOST, 0, &[0; 16]));
        kernel.end(0);
        fence(&mut merge);
        let all: Vec<_> = merge.batch().map(|event| told(&event)).collect();
        assert_eq!(all, [(Some(10), 1), (Some(20), 2), (Some(30), 1005), (Some(30), 3)]);
        assert_eq!((merge.held(), merge.status().total().lost, merge.status().total().damaged), (0, 5, 0));
        let ledger = merge.ledger();
        assert!(ledger.is_complete() == (ledger.total().lost == 0) && ledger.total().is_balanced(), "{ledger}");
    }
    let kernel = small(&[0], 64 << 10);
    let mut rings = kernel.rings();
    write(&kernel);
    let mut all = Vec::new();
    let _ = rings.drain(|event| {
        all.push(told(&event).1);
        std::ops::ControlFlow::<()>::Continue(())
    });
    assert_eq!(all, [1, 1005, 3, 2]);
    let kernel = sim::Kernel::backward(&[0], 4096, Layout::new(4 | 1024, true, 0));
    let mut recorder = kernel.recorder().unwrap();
    write(&kernel);
    let all: Vec<_> = reading::merged(recorder.freeze().unwrap()).batch().map(|event| told(&event)).collect();
    assert_eq!(all, [(Some(10), 1), (Some(20), 2), (Some(30), 1005), (Some(30), 3)]);
}

/// Times ahead by an hour, by a second, and by less than CPUs' clocks can differ: some are damage, the others are held
/// until their time.
#[test]
fn a_time_from_the_future_never_reaches_other_rings() {
    for (ahead, is_damage) in [(3600 * SECOND, true), (SECOND - 1, true), (2_000_000, true), (900_000, false)] {
        for hold in [Hold::FENCE, Hold::None, Hold::Lag(Duration::from_nanos(1))] {
            threads::until("a look before its time", || is_seen_before_its_time(ahead, is_damage, &hold));
        }
    }
}

/// Whether the first refresh came before the forged time. If it did, the test checks whether the record is damage.
fn is_seen_before_its_time(ahead: u64, is_damage: bool, hold: &Hold) -> bool {
    let kernel = small(&[0, 1], 64 << 10);
    kernel.set_clock(Clock::Monotonic);
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(hold.clone())).unwrap();
    let clock = || Clock::Monotonic.now().unwrap();
    let future = clock() + ahead;
    kernel.emit(0, future, b"from the future");
    let (mut damaged, mut seen) = (0, 0);
    let mut last = 0;
    for turn in 0.. {
        // Another CPU, whose clock is right.
        let written = clock();
        if turn < 100 {
            kernel.emit(1, written, b"here and now");
        }
        merge.refresh(clock());
        // On a slow machine it may not be.
        if turn == 0 && is_damage && clock() + SLACK >= future {
            return false;
        }
        if merge.begin_fence() {
            merge.end_fence();
            merge.refresh(clock());
        }
        for event in merge.batch() {
            if reading::fault(&event).is_some() {
                damaged += 1;
                continue;
            }
            let key = event.key().unwrap();
            assert!(key <= clock(), "{hold}: yielded before its time");
            assert!(event.certainty() != Certainty::Late && key >= last, "{hold}, {ahead} ns: {event:?}");
            (last, seen) = (key, seen + 1);
        }
        // The last comes when its time has come.
        if turn >= 100 && merge.held() == 0 {
            break;
        }
    }
    assert_eq!((damaged, seen), if is_damage { (1, 100) } else { (0, 101) }, "{hold}, {ahead} ns");
    assert!(merge.frontier().is_none_or(|frontier| frontier <= clock()), "{hold}");
    true
}

/// An output so long that it overwrites its ring with forged records. The ring is as long as the output, so that it
/// wraps over everything; three records of 32 bytes lie before it, and its own raw data begins 20 bytes into its
/// record.
struct Forger {
    map: Map,
    array: Map,
    echo: bpf::Program,
    big: bpf::Program,
}

impl Forger {
    fn new() -> Option<Self> {
        let map = kernel("make a perf event array", Map::perf_event_array(load::slots()))?;
        let array = Map::array(140_000, 1).unwrap();
        let (echo, big) = (bpf::echo(&map).unwrap(), bpf::emitter(&map, &array, 65_636).unwrap());
        Some(Self { map, array, echo, big })
    }

    fn rings(&self) -> Rings {
        Rings::options().bpf_output(&self.map).pages(65_536 / foreign::page_size() as u64).open().unwrap()
    }

    fn forge(&self, record: &[u8]) {
        let mut bytes = vec![0u8; 12];
        while bytes.len() < 139_000 {
            bytes.extend(record);
        }
        bytes.resize(140_000, 0);
        self.array.update(0, &bytes).unwrap();
        (0..3).for_each(|number| assert_eq!(self.echo.run_with(0, &[number]).unwrap(), 0));
        assert_eq!(self.big.run_on(0).unwrap(), 0);
    }
}

/// On the live kernel: one output that forges LOST records. The ledger has the kernel's counts, and later losses are
/// reported.
#[test]
fn live_forged_losses_do_not_reach_the_ledger() {
    let Some(forger) = Forger::new() else { return };
    for (count, most) in [(56_294_995_342_131_210, 0), (1, 64 << 20)] {
        let mut reader = Reader::new(forger.rings(), Order::new().most_held(most)).unwrap();
        forger.forge(&lost(count, 1));
        let (mut forgeries, mut told) = (0, 0);
        reading::all(&mut reader, |event| match event.item() {
            Item::Damage(damage) => forgeries += u32::from(matches!(damage.fault(), Fault::Lost { .. })),
            Item::Lost(lost) => told += lost.count,
            _ => {}
        });
        let ledger = reader.ledger().unwrap();
        assert!(forgeries > 0 && told == 0 && ledger.total().lost == 0, "{forgeries} forged, {told} told: {ledger}");
        assert!(ledger.total().exact && !ledger.total().is_balanced(), "{ledger}");
        // Real ones.
        reader.handle().pause(Pause::Output).unwrap();
        (0..7).for_each(|number| assert_eq!(forger.echo.run_with(0, &[number]).unwrap(), -libc::ENOSPC));
        reader.handle().resume().unwrap();
        reading::all(&mut reader, |event| told += event.item().lost().map_or(0, |lost| lost.count));
        assert_eq!((told, reader.ledger().unwrap().total().lost), (7, 7));
    }
}

/// On the live kernel: forged times less than a second ahead, on one ring. Records on the other rings, meanwhile and
/// later, come in proven order.
#[test]
fn live_forged_times_harm_no_other_ring() {
    let Some(forger) = Forger::new() else { return };
    let other = *load::online().last().unwrap();
    for ahead in [SECOND * 9 / 10, 20_000_000, 500_000] {
        threads::until("a look before its time", || {
            let mut reader = Reader::new(forger.rings(), Order::new()).unwrap();
            let forged = Clock::Monotonic.now().unwrap() + ahead;
            forger.forge(&sample(forged, 77));
            // The events that it gives at once come again.
            let _ = reader.next_timeout(Duration::ZERO).unwrap().map(std::mem::forget);
            // On a machine that is slow the look may come too late.
            let in_time = Clock::Monotonic.now().unwrap() + SLACK < forged;
            let (mut last, mut future) = (0, 0);
            let mut numbers = Vec::new();
            for round in 0..20 {
                (0..50).for_each(|n| assert_eq!(forger.echo.run_with(other, &[1000 + round * 50 + n]).unwrap(), 0));
                reading::all(&mut reader, |event| {
                    let Some(record) = event.record() else {
                        future += u32::from(matches!(reading::fault(&event), Some(Fault::Time { .. })));
                        return;
                    };
                    let key = event.key().unwrap();
                    assert!(key <= Clock::Monotonic.now().unwrap(), "yielded before its time");
                    assert!(event.certainty() == Certainty::Proven && key >= last, "{ahead} ns: {event:?}");
                    last = key;
                    let number = record.payload().and_then(|payload| payload.u64(0));
                    numbers.extend(number.filter(|number| *number >= 1000));
                });
            }
            assert!(numbers.into_iter().eq(1000..2000), "{ahead} ns");
            assert_eq!(reader.status().total().late, 0);
            if ahead > SLACK {
                assert!(future > 0 || !in_time, "{ahead} ns: {:?}", reader.status());
            } else {
                assert_eq!(future, 0, "{ahead} ns: {:?}", reader.status());
            }
            in_time || ahead <= SLACK
        });
    }
}
