//! BPF ring buffers (`BPF_MAP_TYPE_RINGBUF`) on the live kernel: what is read, given back, lost and refused, and what
//! wakes a reader. That the order is proven is in the binary `adversary`.

use crate::reading;
use crate::reading::{Given, number};
use perf_event_open_sys::bindings;
use perfweave::{ANY_CPU, Certainty, Clock, Ended, Fault, Hold, Item, Key, Layout, Order, Reader, Ring, Rings};
use perfweave_proofs::{Barrier, Epochs};
use perfweave_support::bpf::{Map, Program, Query};
use perfweave_support::ring_buffer::{self, FORCE_WAKEUP, NO_WAKEUP, Reserving, Way};
use perfweave_support::sleeper::Sleeper;
use perfweave_support::{assert_error, foreign, kernel, lacks, load, threads};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const BYTES: u32 = 1 << 20;

/// Reservations, also where CPUs are kept free of other work.
fn reserved() -> Hold {
    Hold::Fence(Barrier::Interrupts { every: Duration::from_micros(100), isolated: true }.fence())
}

fn adopt(map: &Map) -> Rings {
    let mut rings = Rings::empty(Clock::Monotonic);
    // SAFETY: the tests' maps have no other reader.
    for (cpu, ring) in unsafe { Ring::adopt_ring_buffers(map) }.unwrap() {
        rings.add(cpu, ring, Layout::RING_BUFFER);
    }
    rings
}

fn order(hold: Hold) -> Order {
    Order::new().key(Key::Payload(0)).hold(hold)
}

fn reader(map: &Map, hold: Hold) -> Reader {
    Reader::new(adopt(map), order(hold)).unwrap()
}

/// A ring buffer of all CPUs, and a program that writes the number it is given into it.
fn echo() -> Option<(Map, Program)> {
    let map = kernel("make a BPF ring buffer", Map::ring_buffer(BYTES))?;
    let program = kernel("load a BPF program", ring_buffer::echo(&map, 8, 0))?;
    Some((map, program))
}

fn write(program: &Program, cpu: u32, number: u64) {
    assert_eq!(program.run_with(cpu, &[number]).unwrap(), 0);
}

/// Bytes that programs have reserved and nobody has given back.
fn available(map: &Map) -> u64 {
    ring_buffer::query(map, Query::Available).unwrap().run_on(0).unwrap() as u64
}

/// Written on one CPU after the other, one at a time, so that the true order is known.
#[test]
fn records_of_all_kinds_of_maps_come_in_the_order_in_which_they_were_written() {
    let cpus = load::online();
    let Some(one) = kernel("make BPF ring buffers", Map::ring_buffer(BYTES)) else { return };
    let array = Map::ring_buffers(BYTES, &cpus).unwrap().0;
    let hash = Map::hash_of_ring_buffers(BYTES, &cpus).unwrap().0;
    for (map, apart) in [(&one, false), (&array, true), (&hash, true)] {
        let program = ring_buffer::echo(map, 24, 0).unwrap();
        for hold in [reserved(), Hold::FENCE] {
            let mut reader = reader(map, hold);
            let expected: Vec<_> = if apart { cpus.clone() } else { vec![ANY_CPU] };
            assert_eq!(reader.rings().cpus().collect::<Vec<_>>(), expected);
            for n in 0..300u64 {
                write(&program, cpus[(n * n / 7) as usize % cpus.len()], n);
            }
            for n in 0..300u64 {
                let event = reading::next(&mut reader);
                assert_eq!((event.certainty(), event.key(), number(&event.event())), (Certainty::Proven, Some(n), n));
                assert_eq!(event.cpu(), apart.then(|| cpus[(n * n / 7) as usize % cpus.len()]));
                let record = event.record().unwrap();
                assert_eq!((record.kind(), record.time(), record.source()), (bindings::PERF_RECORD_SAMPLE, None, None));
            }
            reading::assert_nothing(&mut reader);
            let ledger = reader.ledger().unwrap();
            assert!(ledger.total().is_balanced() && !ledger.is_complete(), "nobody counts what failed: {ledger:?}");
            assert_eq!((ledger.total().yielded, ledger.total().lost), (300, 0));
        }
    }
}

/// The payload can say which CPU wrote a record of a ring that all share.
#[test]
fn the_payload_names_the_cpu() {
    let Some((map, _)) = echo() else { return };
    let (counter, failures) = (ring_buffer::counter().unwrap(), Map::counts().unwrap());
    let way = Way::Inside;
    let program = Reserving { rings: &map, counter: &counter, failures: &failures, way, discard: None }.when_run(7);
    let program = program.unwrap();
    let mut rings = Rings::empty(Clock::Monotonic);
    // SAFETY: it has no other reader.
    rings.add(ANY_CPU, unsafe { Ring::adopt_ring_buffers(&map) }.unwrap().remove(0).1, Layout::RING_BUFFER.cpu_at(20));
    let mut reader = Reader::new(rings, order(reserved())).unwrap();
    for cpu in load::online() {
        assert_eq!(program.run_on(cpu).unwrap(), 0);
        let event = reading::next(&mut reader);
        assert_eq!((event.cpu(), event.record().unwrap().cpu()), (Some(cpu), cpu));
    }
}

/// Many times round rings, with lengths that end at every possible place: payloads have the bytes that were reserved,
/// in one piece.
#[test]
fn payloads_are_what_was_reserved_and_never_wrap() {
    let page = foreign::page_size() as u32;
    let rings =
        [(page, [8, 13, 40, 77, 130, 1000], 2000), (1 << 20, [8, 65_520, 65_521, 65_536, 70_001, 524_000], 300)];
    for (bytes, sizes, rounds) in rings {
        let Some(map) = kernel("make a BPF ring buffer", Map::ring_buffer(bytes)) else { return };
        let programs = sizes.map(|size| (size as usize, ring_buffer::echo(&map, size, 0).unwrap()));
        for hold in [Hold::None, reserved()] {
            let mut reader = reader(&map, hold);
            for round in 1..=rounds {
                let (size, program) = &programs[round as usize % programs.len()];
                write(program, 0, round);
                let event = reading::next(&mut reader);
                let payload = event.record().and_then(|record| record.payload()).unwrap();
                assert_eq!((payload.len(), payload.as_slices().1.len()), (*size, 0));
                assert_eq!(payload.u64(size - 8), Some(round));
                assert!(*size < 16 || payload.u64(0) == Some(round));
                drop(event);
                reader.advance_tails();
            }
            assert_eq!(reader.status().total().damaged, 0);
        }
    }
}

/// What is given back is what was yielded or discarded: not what is lent, nor what lies behind it.
#[test]
fn the_consumer_position_passes_what_was_yielded_and_nothing_else() {
    let Some((map, program)) = echo() else { return };
    let discard = ring_buffer::discarding(&map, 8, 0).unwrap();
    for hold in [Hold::None, reserved()] {
        let mut reader = reader(&map, hold);
        for n in 1..=3 {
            assert_eq!(discard.run_on(0).unwrap(), 0);
            write(&program, 0, n);
        }
        assert_eq!(available(&map), 6 * 16);
        for left in (0..3).rev() {
            let event = reading::next(&mut reader);
            assert!(available(&map) >= left * 32 + 16, "it is lent");
            drop(event);
            reader.advance_tails();
            // Behind it lies one that was discarded.
            assert_eq!(available(&map), (left * 32).saturating_sub(16));
        }
        assert_eq!(discard.run_on(0).unwrap(), 0);
        reading::assert_nothing(&mut reader);
        reader.advance_tails();
        assert_eq!(available(&map), 0, "a discarded record alone is passed too");
        assert_eq!(reader.ledger().unwrap().total().yielded, 3);
    }
}

/// A reader begins where the last one stopped.
#[test]
fn what_a_reader_left_is_there_for_the_next() {
    let Some((map, program)) = echo() else { return };
    for round in 0..3 {
        let mut reader = reader(&map, reserved());
        for n in 0..3 {
            write(&program, 0, 10 * round + n);
        }
        let from = if round == 0 { 0 } else { 10 * round - 8 };
        let expected = if round == 0 { vec![0, 1] } else { vec![from, 10 * round, 10 * round + 1] };
        for n in expected {
            assert_eq!(number(&reading::next(&mut reader).event()), n);
        }
    }
    assert_eq!(available(&map), 16, "the last of all");
}

/// A program that sleeps in its reservation holds the others up, under each rule that proves. Others do not wait, and
/// it is late.
#[test]
fn a_program_that_sleeps_in_its_reservation_is_waited_for() {
    let cpus = load::online();
    let Some((map, rings)) = kernel("make BPF ring buffers", Map::ring_buffers(BYTES, &cpus)) else { return };
    let Some(memory) = kernel("make memory that is waited for", Sleeper::new()) else { return };
    let (sleeping, program) = (ring_buffer::sleeping(&map).unwrap(), ring_buffer::echo(&map, 8, 0).unwrap());
    let (here, there) = (cpus[0], cpus[cpus.len() - 1]);
    for (hold, waits) in [(reserved(), true), (Hold::FENCE, true), (Hold::None, false)] {
        let mut reader = reader(&map, hold.clone());
        memory.again();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| load::pinned(there, || sleeping.run_here(&[memory.address(), 1]).unwrap()));
            let asleep = memory.until_asleep();
            for n in 2..=4 {
                write(&program, here, n);
            }
            if waits {
                let before = reader.status().refreshes;
                threads::until("it has looked", || {
                    assert!(reader.next_timeout(Duration::from_millis(1)).unwrap().is_none(), "{hold}");
                    reader.status().refreshes >= before + 5 && reader.status().uncommitted.is_some()
                });
                assert_eq!(reader.status().uncommitted, Some(there));
            } else if here != there {
                for n in 2..=4 {
                    assert_eq!(number(&reading::next(&mut reader).event()), n, "{hold}");
                }
            }
            reader.advance_tails();
            assert!(available(&rings[cpus.len() - 1]) >= 16, "what is reserved is not given back");
            drop(asleep);
            assert_eq!(call.join().unwrap(), 0);
        });
        let mut given = Vec::new();
        reading::all(&mut reader, |event| given.push((number(&event), event.certainty())));
        if waits {
            assert_eq!(given, [1, 2, 3, 4].map(|n| (n, Certainty::Proven)), "{hold}");
        } else if here != there {
            assert_eq!(given, [(1, Certainty::Late)], "{hold}");
        }
        assert_eq!(reader.status().uncommitted, None);
    }
}

/// A program sleeps in its reservation and nothing wakes it. A flush and a deadline end all the same, and say that they
/// are not complete. What cannot be proven is held, and comes in proven order once the program has committed.
#[test]
fn a_flush_and_a_deadline_wait_a_bounded_time_for_a_reservation() {
    let Some((map, program)) = echo() else { return };
    let Some(memory) = kernel("make memory that is waited for", Sleeper::new()) else { return };
    let (sleeping, failures) = (ring_buffer::sleeping(&map).unwrap(), Map::counts().unwrap());
    for is_flush in [true, false] {
        let order = order(reserved()).latency(Duration::from_millis(1));
        let mut rings = adopt(&map);
        rings.count_failures(&failures).unwrap();
        let mut reader = Reader::new(rings, order).unwrap();
        assert!(reader.ledger().unwrap().is_complete());
        memory.again();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| sleeping.run_here(&[memory.address(), 1]).unwrap());
            let asleep = memory.until_asleep();
            (2..=12).for_each(|number| write(&program, 0, number));
            if is_flush {
                reader.handle().flush().unwrap();
            } else {
                reader.handle().set_deadline(Some(Instant::now())).unwrap();
            }
            incomplete(&mut reader, is_flush);
            assert_eq!(reader.status().uncommitted, Some(ANY_CPU));
            assert!(!reader.ledger().unwrap().is_complete(), "nobody knows what lies there");
            drop(asleep);
            assert_eq!(call.join().unwrap(), 0);
        });
        reader.handle().set_deadline(None).unwrap();
        assert_eq!(reading::numbers(&mut reader), (1..=12).collect::<Vec<_>>());
        // Committed before the other reserves: that other keeps its order from being proven.
        write(&program, 0, 13);
        memory.again();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| sleeping.run_here(&[memory.address(), 14]).unwrap());
            let asleep = memory.until_asleep();
            if is_flush {
                reader.handle().flush().unwrap();
            } else {
                reader.handle().set_deadline(Some(Instant::now())).unwrap();
            }
            incomplete(&mut reader, is_flush);
            assert_eq!(reader.status().held, 1, "nothing leaves early");
            reader.handle().set_deadline(None).unwrap();
            drop(asleep);
            assert_eq!(call.join().unwrap(), 0);
        });
        let mut given = Vec::new();
        reading::all(&mut reader, |event| given.push((number(&event), event.certainty())));
        assert_eq!(given, [13, 14].map(|number| (number, Certainty::Proven)));
        assert!(reader.ledger().unwrap().is_complete());
    }
}

/// The next that a reader gives is a report that is not complete.
fn incomplete(reader: &mut Reader, is_flush: bool) {
    let event = reader.next_timeout(reading::LONG).unwrap().map(|event| {
        assert!(matches!(event.item(), Item::Flushed { complete: false }), "{event:?}");
        assert_eq!(event.certainty(), Certainty::Assumed);
    });
    assert_eq!(event.is_some(), is_flush);
    assert!(is_flush || reader.ended() == Some(Ended::Deadline { complete: false }));
}

/// Refused reservations are counted by the programs, and the ledger and losses say how many.
#[test]
fn failed_reservations_are_losses_where_programs_count_them() {
    let page = foreign::page_size() as u32;
    let cpus = load::online();
    for apart in [false, true] {
        let made = if apart { Map::ring_buffers(page, &cpus).map(|(map, _)| map) } else { Map::ring_buffer(page) };
        let Some(map) = kernel("make BPF ring buffers", made) else { return };
        let (counter, failures) = (ring_buffer::counter().unwrap(), Map::counts().unwrap());
        let reserving =
            Reserving { rings: &map, counter: &counter, failures: &failures, way: Way::Inside, discard: None };
        let program = reserving.when_run(1).unwrap();
        // What failed before the ring was adopted does not count.
        for counted in [false, true] {
            let mut rings = adopt(&map);
            if counted {
                rings.count_failures(&failures).unwrap();
            }
            let mut reader = Reader::new(rings, order(reserved())).unwrap();
            let (before, had) = (counter.lookup_u64(0, 0).unwrap(), failures.counted().unwrap());
            let (mut yielded, mut lost) = (0, 0);
            for round in 1..=3 {
                for &cpu in &cpus {
                    for _ in 0..page / 16 * round {
                        assert_eq!(program.run_on(cpu).unwrap(), 0);
                    }
                }
                reading::all(&mut reader, |event| match event.item() {
                    Item::Record(_) => yielded += 1,
                    Item::Lost(loss) => lost += loss.count,
                    other => panic!("{other:?}"),
                });
                let (written, refused) =
                    (counter.lookup_u64(0, 0).unwrap() - before, failures.counted().unwrap() - had);
                assert!(refused > 0);
                let told = if counted { refused } else { 0 };
                assert_eq!((yielded + refused, lost), (written, told), "{apart}, {counted}");
                let ledger = reader.ledger().unwrap();
                let total = ledger.total();
                assert!(ledger.total().is_balanced());
                assert_eq!((total.yielded, total.lost, total.exact), (yielded, told, counted));
                assert_eq!(reader.status().total().lost, told);
            }
        }
    }
}

#[test]
fn maps_that_cannot_be_read_are_refused_with_why() {
    let Some((map, _)) = echo() else { return };
    // SAFETY: it has no other reader.
    let refused = |map: &dyn AsFd| unsafe { Ring::adopt_ring_buffers(map.as_fd()) }.unwrap_err();
    let array = Map::array(8, 1).unwrap();
    assert_error!(refused(&array), InvalidInput, "a BPF ring buffer is expected", "BPF_MAP_TYPE_ARRAY (2)");
    assert_error!(refused(&std::fs::File::open("/dev/null").unwrap()), InvalidInput);
    // Slots, none of them filled.
    assert_error!(refused(&Map::ring_buffers(BYTES, &[]).unwrap().0), InvalidInput, "empty");
    if let Ok(user) = Map::user_ring_buffer(BYTES) {
        assert_error!(refused(&user), InvalidInput, "BPF_MAP_TYPE_USER_RINGBUF", "the kernel reads it");
    }
    assert_error!(refused(&Map::ring_buffers_keyed(BYTES, 8).unwrap()), InvalidInput, "keys of 8 bytes");
    let spoilt = Map::ring_buffer(BYTES).unwrap();
    // Another program has moved the consumer position, the first word of the first page.
    let (page, fd) = (foreign::page_size(), spoilt.as_fd().as_raw_fd());
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, which stays.
    let word = unsafe { libc::mmap(std::ptr::null_mut(), page, protection, libc::MAP_SHARED, fd, 0) };
    assert_ne!(word, libc::MAP_FAILED);
    // SAFETY: the page was just mapped, and can be written.
    unsafe { word.cast::<u64>().write_volatile(4) };
    assert_error!(refused(&spoilt), InvalidInput, "the consumer position 4", "no multiple of 8");
    // BPF_F_RB_OVERWRITE
    match Map::ring_buffer_with(BYTES, 1 << 19) {
        Ok(overwrite) => assert_error!(refused(&overwrite), InvalidInput, "BPF_F_RB_OVERWRITE"),
        Err(_) => perfweave_support::lacks("BPF_F_RB_OVERWRITE, so that nothing was refused"),
    }

    let error = Reader::new(adopt(&map), Order::new().hold(reserved())).unwrap_err();
    assert_error!(error, InvalidInput, "name its field of the payload");
    let error = Reader::new(adopt(&map), order(reserved()).numbers(Key::Payload(8), None)).unwrap_err();
    assert_error!(error, InvalidInput, "must name the field that has the CPU");
    let Some((events, _)) = perfweave_support::echo() else { return };
    let mut mixed = Rings::options().bpf_output(&events).open().unwrap();
    assert_error!(mixed.count_failures(Map::counts().unwrap()).unwrap_err(), InvalidInput, "no BPF ring buffer");
    // SAFETY: it has no other reader.
    mixed.add(ANY_CPU, unsafe { Ring::adopt_ring_buffers(&map) }.unwrap().remove(0).1, Layout::RING_BUFFER);
    let error = Reader::new(mixed, order(reserved())).unwrap_err();
    assert_error!(error, Unsupported, "perf ring", "choose the default fence");

    let mut rings = adopt(&map);
    assert_error!(
        rings.count_failures(&array).unwrap_err(),
        InvalidInput,
        "BPF_MAP_TYPE_PERCPU_ARRAY",
        "BPF_MAP_TYPE_ARRAY (2)"
    );
    // SAFETY: as above.
    rings.add(
        ANY_CPU,
        unsafe { Ring::adopt_ring_buffers(Map::ring_buffer(BYTES).unwrap()) }.unwrap().remove(0).1,
        Layout::RING_BUFFER,
    );
    assert_error!(
        rings.count_failures(Map::counts().unwrap()).unwrap_err(),
        InvalidInput,
        "to which a failure belongs"
    );
}

/// CPUs that are kept free of other work (`isolcpus`, `nohz_full`) are interrupted only if the program allows it.
#[test]
fn cpus_that_are_kept_free_are_interrupted_with_permission_only() {
    let Some((map, program)) = echo() else { return };
    let lists =
        ["isolated", "nohz_full"].map(|list| std::fs::read_to_string(format!("/sys/devices/system/cpu/{list}")));
    let is_list = |list: &str| list.starts_with(|first: char| first.is_ascii_digit());
    let refused = Reader::new(adopt(&map), order(Hold::Fence(Barrier::INTERRUPTS.fence())));
    if !lists.iter().flatten().any(|list| is_list(list)) {
        refused.unwrap();
        return lacks("CPUs that are kept free of other work");
    }
    assert_error!(refused.unwrap_err(), Unsupported, "kept free of other work", "isolated: true");
    let mut holds = vec![reserved()];
    if cfg!(target_arch = "x86_64") {
        holds.push(Hold::Fence(Barrier::Programs.fence()));
    }
    for hold in holds {
        let mut reader = reader(&map, hold);
        for (number, cpu) in (1..).zip(load::online()) {
            write(&program, cpu, number);
            let event = reading::next(&mut reader);
            assert_eq!((event.key(), event.certainty()), (Some(number), Certainty::Proven));
        }
    }
}

/// Perf rings and ring buffers in one stream, under the fence.
#[test]
fn ring_buffers_and_perf_rings_are_merged() {
    let (Some((events, perf)), Some((map, program))) = (perfweave_support::echo(), echo()) else { return };
    let cpus = load::online();
    let mut rings = Rings::options().bpf_output(&events).open().unwrap();
    // SAFETY: it has no other reader.
    rings.add(ANY_CPU, unsafe { Ring::adopt_ring_buffers(&map) }.unwrap().remove(0).1, Layout::RING_BUFFER);
    let mut reader = Reader::new(rings, order(Hold::FENCE)).unwrap();
    for n in 0..300 {
        write(if n % 3 == 0 { &program } else { &perf }, cpus[n as usize % cpus.len()], n);
    }
    for n in 0..300 {
        let event = reading::next(&mut reader);
        assert_eq!((number(&event.event()), event.certainty()), (n, Certainty::Proven));
        assert_eq!(event.cpu(), (n % 3 != 0).then(|| cpus[n as usize % cpus.len()]));
    }
}

/// A flush and a deadline bring out what nobody was woken for; a reader that is closed says so.
#[test]
fn flush_deadline_and_close() {
    let Some((map, _)) = echo() else { return };
    let quiet = ring_buffer::echo(&map, 8, NO_WAKEUP).unwrap();
    for hold in [reserved(), Hold::FENCE, Hold::None] {
        let mut reader = reader(&map, hold);
        (0..3).for_each(|n| write(&quiet, 0, n));
        assert_eq!(reading::numbers(&mut reader), [0, 1, 2]);
        (3..6).for_each(|n| write(&quiet, 0, n));
        reader.handle().set_deadline(Some(Instant::now())).unwrap();
        for n in 3..6 {
            assert_eq!(Given::by(&mut reader).unwrap(), Given::Number(n));
        }
        assert_eq!(reading::ended(&mut reader), Some(Ended::Deadline { complete: true }));
        reader.handle().set_deadline(None).unwrap();
        reader.handle().close();
        assert_eq!(reading::ended(&mut reader), Some(Ended::Closed));
    }
}

/// The kernel wakes a reader that has caught up, unless the program says otherwise.
#[test]
fn a_record_wakes_a_reader_that_sleeps() {
    let Some((map, _)) = echo() else { return };
    for (flags, expected) in [(0, true), (FORCE_WAKEUP, true), (NO_WAKEUP, false)] {
        let program = ring_buffer::echo(&map, 8, flags).unwrap();
        for hold in [Hold::None, reserved()] {
            let woken = reading::wakes(|| {
                let mut reader = reader(&map, hold.clone());
                let (woken, given) = reading::woken_by(&mut reader, || write(&program, 0, 7));
                assert_eq!(given.unwrap(), Given::Number(7));
                woken
            });
            assert_eq!(woken, expected, "{hold}, flags {flags}");
        }
    }
}

/// While events come fast, the reader gathers them, and none wakes it. Once they come alone, each does.
#[test]
fn a_reader_gathers_what_comes_fast() {
    // The larger the ring, the longer a reader rests: here for as long as it may, so that another thread can run
    // meanwhile.
    let Some(map) = kernel("make a BPF ring buffer", Map::ring_buffer(32 << 20)) else { return };
    let program = kernel("load a BPF program", ring_buffer::echo(&map, 8, 0)).expect("it has made the ring buffer");
    let mut reader = reader(&map, Hold::None);
    let sleeper = threads::own();
    std::thread::scope(|scope| {
        let (ask, asked) = std::sync::mpsc::channel();
        let writes = &program;
        scope.spawn(move || {
            for () in asked {
                threads::until_asleep(sleeper);
                write(writes, 0, 7);
            }
        });
        // How often the reader slept and was woken until it had one event.
        let alone = |reader: &mut Reader| {
            let before = reader.status();
            ask.send(()).unwrap();
            assert_eq!(number(&reading::next(reader).event()), 7);
            let now = reader.status();
            (now.sleeps - before.sleeps, now.wakes - before.wakes)
        };
        let mut gathers_after_a_burst = || {
            // As many as are worth a short tick, and taken at once, so that most of that tick is left to rest.
            let (many, mut taken) = (4200, 0);
            (0..many).for_each(|number| write(&program, 0, number));
            while taken < many {
                for event in reader.batch(reading::LONG).unwrap().unwrap() {
                    assert_eq!(number(&event), taken);
                    taken += 1;
                }
            }
            // It was written in the first sleep, and found when that was over.
            let gathered = alone(&mut reader) == (1, 0);
            // It finds out within a tick that events have become slow.
            assert!((0..10_000).any(|_| alone(&mut reader).1 > 0), "wake-ups are lost");
            gathered
        };
        // On a busy machine, some of its rests are over before the thread that writes has a CPU.
        assert!((0..1000).any(|_| gathers_after_a_burst()), "the first event after a burst wakes it");
    });
}

/// In batches, by a function, and without order.
#[test]
fn batches_functions_and_drains() {
    let cpus = load::online();
    let Some((map, _)) = kernel("make BPF ring buffers", Map::ring_buffers(BYTES, &cpus)) else { return };
    let program = ring_buffer::echo(&map, 8, 0).unwrap();
    let write_some = || (0..100).for_each(|n| write(&program, cpus[n as usize % cpus.len()], n));
    let expected: Vec<u64> = (0..100).collect();

    let mut reader = reader(&map, reserved());
    write_some();
    let mut numbers = Vec::new();
    while numbers.len() < 100 {
        numbers.extend(reader.batch(reading::LONG).unwrap().unwrap().map(|event| number(&event)));
    }
    assert_eq!(numbers, expected);
    write_some();
    reader.handle().set_deadline(Some(Instant::now())).unwrap();
    numbers.clear();
    numbers.extend(reader.batch(Duration::ZERO).unwrap().into_iter().flatten().map(|event| number(&event)));
    assert_eq!(numbers, expected);
    drop(reader);

    let mut rings = adopt(&map);
    write_some();
    let mut drained = Vec::new();
    let stopped = rings.drain(|event| {
        drained.push((event.cpu().unwrap(), number(&event)));
        if drained.len() == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(stopped.is_break());
    assert!(
        rings
            .drain(|event| {
                drained.push((event.cpu().unwrap(), number(&event)));
                ControlFlow::<()>::Continue(())
            })
            .is_continue()
    );
    // One ring after the other, each in order.
    for (at, &cpu) in cpus.iter().enumerate() {
        let of_cpu: Vec<_> = drained.iter().filter(|(of, _)| *of == cpu).map(|(_, n)| *n).collect();
        assert_eq!(of_cpu, expected.iter().copied().skip(at).step_by(cpus.len()).collect::<Vec<_>>());
    }
    assert_eq!(drained.len(), 100);
}

/// Numbers of one counter: each is proven by the one before, and one that was discarded is a gap.
#[test]
fn dense_numbers() {
    let Some((map, program)) = echo() else { return };
    let Hold::Fence(fence) = reserved() else { unreachable!() };
    let mut reader = reader(&map, Hold::Dense { first: Some(0), fence });
    for n in [0, 1, 2, 5, 6] {
        write(&program, 0, n);
    }
    let mut said = Vec::new();
    reading::all(&mut reader, |event| match event.item() {
        Item::Gap(gap) => said.push((gap.first, gap.last)),
        _ => said.push((number(&event), number(&event))),
    });
    assert_eq!(said, [(0, 0), (1, 1), (2, 2), (3, 4), (5, 5), (6, 6)]);
}

/// A type of safe code that gives another descriptor each time that it is asked.
struct Fickle<'a>([BorrowedFd<'a>; 2], AtomicU64);

impl<'a> Fickle<'a> {
    fn new(first: &'a impl AsFd, then: &'a impl AsFd) -> Self {
        Self([first.as_fd(), then.as_fd()], AtomicU64::new(0))
    }
}

impl AsFd for Fickle<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0[self.1.fetch_add(1, Ordering::Relaxed).min(1) as usize]
    }
}

/// Whatever takes a descriptor asks for it once: what was checked is what is used.
#[test]
fn a_descriptor_is_asked_for_once() {
    let Some((map, _)) = echo() else { return };
    let (counts, words, events) =
        (Map::counts().unwrap(), Map::epochs(8192).unwrap(), Map::perf_event_array(load::slots()).unwrap());
    let empty = std::fs::File::open("/dev/null").unwrap();
    let once = |first: &Map, take: &dyn Fn(&Fickle<'_>) -> Result<(), perfweave::Error>| {
        let fickle = Fickle::new(first, &empty);
        let taken = take(&fickle);
        assert_eq!(fickle.1.into_inner(), 1, "asked once");
        taken.unwrap();
    };
    once(&counts, &|fd| adopt(&map).count_failures(fd));
    once(&words, &|fd| Epochs::open(fd).map(drop));
    once(&events, &|fd| Rings::options().bpf_output(fd).pages(1).open().map(drop));
    // SAFETY: it has no other reader.
    once(&map, &|fd| unsafe { Ring::adopt_ring_buffers(fd) }.map(drop));
}

/// One ring buffer has one reader: the same map in two slots, or added twice, would give bytes back that it still
/// lends.
#[test]
fn the_same_map_twice_is_refused() {
    let Some((map, _)) = echo() else { return };
    let slots = Map::ring_buffers(BYTES, &[0, 1, 2]).unwrap().0;
    for cpu in [0, 2] {
        slots.update(cpu, &map.as_fd().as_raw_fd().to_ne_bytes()).unwrap();
    }
    // SAFETY: nobody reads it.
    let error = unsafe { Ring::adopt_ring_buffers(&slots) }.unwrap_err();
    assert_error!(error, InvalidInput, "0 and 2", "the same map");
    let mut rings = adopt(&map);
    // Another descriptor of it.
    let again = map.as_fd().try_clone_to_owned().unwrap();
    // SAFETY: nobody reads from these rings.
    for (cpu, ring) in unsafe { Ring::adopt_ring_buffers(again) }.unwrap() {
        rings.add(cpu, ring, Layout::RING_BUFFER);
    }
    assert_error!(Reader::new(rings, order(Hold::None)).unwrap_err(), InvalidInput, "twice");
    // A reader that is gone leaves the map to the next.
    drop(reader(&map, Hold::None));
    drop(reader(&map, Hold::None));
}

/// Another reader of the same map takes records away: that is damage, and the reader goes on with what comes later.
#[test]
fn a_second_reader_is_noticed() {
    let Some((map, program)) = echo() else { return };
    let mut reader = reader(&map, Hold::None);
    write(&program, 0, 1);
    assert_eq!(number(&reading::next(&mut reader).event()), 1);
    reader.advance_tails();
    (2..5).for_each(|n| write(&program, 0, n));
    consumer_of(&map).fetch_add(16, Ordering::SeqCst);
    let mut faults = Vec::new();
    reading::all(&mut reader, |event| {
        if let Item::Damage(damage) = event.item() {
            faults.push(damage.fault());
        }
    });
    assert!(matches!(faults[..], [Fault::Consumer { from: 16, to: 32 }]), "{faults:?}");
    // What is written before the next look is skipped too.
    reading::assert_nothing(&mut reader);
    write(&program, 0, 9);
    assert_eq!(number(&reading::next(&mut reader).event()), 9);
}

/// The same while events come fast: a reader that gathers them keeps the last bytes back when somebody else gives them
/// back.
#[test]
fn a_second_reader_is_noticed_by_one_that_gathers() {
    let Some((map, program)) = echo() else { return };
    let mut reader = reader(&map, Hold::None);
    let consumer = consumer_of(&map);
    let (going_on, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let program = &program;
        scope.spawn(move || {
            for n in (0..).take_while(|_| ended.try_recv() == Err(mpsc::TryRecvError::Empty)) {
                write(program, 0, n);
                if n % 100 == 0 {
                    consumer.fetch_add(16, Ordering::SeqCst);
                }
            }
        });
        let _going_on = going_on;
        let (mut faults, mut after) = (0, 0);
        while faults < 50 || after < 50 {
            let event = reading::next(&mut reader);
            match event.item() {
                Item::Damage(damage) => {
                    // Where the program has filled what was given back before this reader looks, the head is too far
                    // ahead for the ring.
                    assert!(matches!(damage.fault(), Fault::Consumer { .. } | Fault::Head { .. }), "{damage:?}");
                    (faults, after) = (faults + 1, 0);
                }
                _ => after += 1,
            }
        }
    });
}

/// The consumer position of a map, as another reader of it would map it.
fn consumer_of(map: &Map) -> &'static AtomicU64 {
    let (fd, protection) = (map.as_fd().as_raw_fd(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping, kept for ever.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), foreign::page_size(), protection, libc::MAP_SHARED, fd, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: mapped for ever, and used as one word.
    unsafe { &*page.cast::<AtomicU64>() }
}

/// Under tokio: woken for what comes, in proven order.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn an_async_reader() {
    let cpus = load::online();
    let Some((map, _)) = kernel("make BPF ring buffers", Map::ring_buffers(BYTES, &cpus)) else { return };
    let program = ring_buffer::echo(&map, 8, 0).unwrap();
    let mut reader = perfweave::AsyncReader::new(adopt(&map), order(reserved())).unwrap();
    for n in 0..200 {
        let cpu = cpus[n as usize % cpus.len()];
        // Half of them while the task sleeps.
        let program = program.try_clone().unwrap();
        let runtime = threads::own();
        let writer = tokio::task::spawn_blocking(move || {
            if n % 2 == 0 {
                threads::until_asleep(runtime);
            }
            write(&program, cpu, n);
        });
        let event = tokio::time::timeout(reading::LONG, reader.next()).await.expect("it comes").unwrap().unwrap();
        assert_eq!((number(&event.event()), event.certainty()), (n, Certainty::Proven));
        drop(event);
        writer.await.unwrap();
    }
}

/// The map's descriptor may be closed while a reader has the map, and the reader unmaps it.
#[test]
fn the_map_may_be_closed_and_is_unmapped_with_its_reader() {
    let Some((map, program)) = echo() else { return };
    let mut reader = reader(&map, Hold::None);
    drop(map);
    for n in 0..3 {
        write(&program, 0, n);
        assert_eq!(number(&reading::next(&mut reader).event()), n);
    }
    let base = reader.rings().raw(ANY_CPU).unwrap().base.as_ptr() as usize;
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&format!("{base:x}-")) && line.contains("bpf-map"))
    };
    assert!(is_mapped());
    drop(reader);
    assert!(!is_mapped());
}

/// `Rings::raw` gives the words and the memory of a map: the producer position's page, and the data, twice.
#[test]
fn the_memory_of_a_ring_buffer_is_handed_out() {
    let Some((map, program)) = echo() else { return };
    let mut reader = reader(&map, Hold::None);
    for n in 1..=3 {
        write(&program, 0, n);
    }
    assert_eq!(number(&reading::next(&mut reader).event()), 1);
    reading::next(&mut reader);
    let raw = reader.rings().raw(ANY_CPU).unwrap();
    assert_eq!((raw.size, raw.head), (BYTES as usize, 48));
    assert!(raw.tail <= 32 && raw.head - raw.tail == available(&map), "{raw:?}");
    for copy in 0..2 {
        // The third record's number, after its header. SAFETY: within the mapping, which the reader keeps.
        let third = unsafe { raw.base.add(foreign::page_size() + copy * raw.size + 40) };
        // SAFETY: committed, and not given back.
        assert_eq!(unsafe { third.cast::<u64>().read() }, 3);
    }
    // SAFETY: as before. Nobody writes now.
    assert_eq!(unsafe { raw.base.cast::<u64>().read() }, 48, "the producer position");
}
