//! No allocation per event: once its buffers have grown to what the load needs, a merge allocates nothing.

use crate::reading;
use perf_event_open_sys::bindings;
use perfweave::{Clock, Hold, Key, Layout, Merge, Order, Reader, Ring, Rings, sim};
use perfweave_proofs::Barrier;
use perfweave_support::bpf::Map;
use perfweave_support::counting::allocations;
use perfweave_support::{echo, kernel, load, ring_buffer};
use std::time::{Duration, Instant};

/// The rule for BPF ring buffers whose programs order their stores themselves.
fn reserved() -> Hold {
    Hold::Fence(Barrier::Programs.fence())
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| vec![1u8, 2]).0, 1);
    assert_eq!(allocations(|| 5).0, 0);
}

/// One round: records on all rings, some interrupted, so that they are out of order inside, some much so; wraps;
/// losses.
fn round(kernel: &sim::Kernel, cpus: &[u32], time: &mut u64) {
    for n in 0..200 {
        let cpu = cpus[n % cpus.len()];
        kernel.begin(cpu, *time);
        *time += 1;
        let interrupts = match n {
            50 => 80,
            _ if n % 10 == 0 => 2,
            _ => 0,
        };
        for _ in 0..interrupts {
            kernel.emit(cpu, *time, b"interrupt");
            *time += 1;
        }
        kernel.write(cpu, b"interrupted, or not");
        kernel.end(cpu);
    }
}

#[test]
fn a_merge_in_steady_state_allocates_nothing() {
    let cpus = [0, 1, 2, 7];
    // Large enough to hold a round, and so small that several rounds overflow it and records are lost.
    for bytes in [64 << 10, 4 << 10] {
        for hold in [Hold::FENCE, Hold::None] {
            let kernel = sim::Kernel::with(&cpus, bytes, perfweave::Layout::new(4 | 1024, true, 0));
            let mut merge = Merge::new(kernel.rings(), Order::new().hold(hold.clone())).unwrap();
            let mut time = 1;
            let drain = |merge: &mut Merge| {
                let mut seen = 0;
                for turn in 0..3 {
                    merge.refresh(0);
                    if merge.begin_fence() {
                        merge.end_fence();
                    }
                    if turn == 1 {
                        seen += merge.batch().count();
                    }
                    while let Some(event) = merge.next() {
                        seen += usize::from(event.record().is_some_and(|record| record.time().is_some()));
                    }
                }
                seen
            };
            for _ in 0..50 {
                round(&kernel, &cpus, &mut time);
                drain(&mut merge);
            }
            for _ in 0..50 {
                round(&kernel, &cpus, &mut time);
                let (allocated, seen) = allocations(|| drain(&mut merge));
                // A status has a list of accounts.
                assert!(seen > 100 && merge.status().total().repaired > 100);
                assert_eq!(allocated, 0, "{hold}, {bytes} bytes");
            }
        }
    }
}

/// BPF ring buffers: records of any length, discarded ones, and programs that interrupt each other inside.
#[test]
fn a_merge_of_ring_buffers_in_steady_state_allocates_nothing() {
    for (bytes, hold) in [(1 << 20, Hold::None), (1 << 20, reserved()), (4 << 10, reserved())] {
        let mut rings = Rings::empty(Clock::Perf);
        let buffers = [0, 1, 5].map(|cpu| {
            let (buffer, ring) = sim::RingBuffer::new(bytes);
            rings.add(cpu, ring, Layout::RING_BUFFER);
            buffer
        });
        let mut merge = Merge::new(rings, Order::new().key(Key::Payload(0)).hold(hold.clone())).unwrap();
        let mut key = 0u64;
        let mut round = || {
            for n in 0..150 {
                let buffer = &buffers[n % 3];
                let mut data = vec![0; if n % 50 == 49 { 70_000 } else { 16 + n }];
                let Some(outer) = buffer.reserve(data.len() as u32) else { continue };
                if n % 7 == 0
                    && let Some(inner) = buffer.reserve(8)
                {
                    key += 1;
                    buffer.submit(inner, &key.to_ne_bytes());
                }
                key += 1;
                data[..8].copy_from_slice(&key.to_ne_bytes());
                if n % 11 == 0 { buffer.discard(outer) } else { buffer.submit(outer, &data) }
            }
            // Readers wait for this one, and copy out what comes after it.
            buffers[0].reserve(8)
        };
        let drain = |merge: &mut Merge| {
            let mut seen = 0;
            for turn in 0..3 {
                merge.refresh(0);
                if merge.begin_fence() {
                    merge.end_fence();
                    merge.refresh(0);
                }
                if turn == 1 {
                    seen += merge.batch().count();
                }
                while merge.next().is_some() {
                    seen += 1;
                }
            }
            seen
        };
        for n in 0..100 {
            let inside = round();
            let (first, _) = allocations(|| drain(&mut merge));
            if let Some(inside) = inside {
                buffers[0].discard(inside);
            }
            let (second, _) = allocations(|| drain(&mut merge));
            assert!(n < 50 || first + second == 0, "{hold}, {bytes} bytes, round {n}: {first} and {second}");
        }
        let status = merge.status();
        assert!(status.total().yielded > 5000 && status.total().damaged == 0 && status.total().late == 0, "{status:?}");
        assert_eq!(merge.held(), 0);
    }
}

/// The whole reader on live BPF ring buffers, interrupts of all CPUs included.
#[test]
fn a_reader_of_ring_buffers_in_steady_state_allocates_nothing() {
    let cpus = load::online();
    let made = Map::ring_buffers(1 << 16, &cpus).and_then(|(map, _)| Ok((ring_buffer::echo(&map, 8, 0)?, map)));
    let Some((echo, map)) = kernel("make BPF ring buffers", made) else { return };
    let mut rings = Rings::empty(Clock::Monotonic);
    // SAFETY: the map has no other reader.
    for (cpu, ring) in unsafe { Ring::adopt_ring_buffers(&map) }.unwrap() {
        rings.add(cpu, ring, Layout::RING_BUFFER);
    }
    let barrier = Barrier::Interrupts { every: Duration::from_micros(100), isolated: true };
    let order = Order::new().key(Key::Payload(0)).hold(Hold::Fence(barrier.fence()));
    let mut reader = Reader::new(rings, order).unwrap();
    let mut round = || {
        for n in 0..100u64 {
            assert_eq!(echo.run_with(cpus[n as usize % cpus.len()], &[n]).unwrap(), 0);
        }
        let (allocated, seen) = allocations(|| {
            let mut seen = 0;
            reading::all(&mut reader, |event| seen += usize::from(event.key().is_some()));
            seen
        });
        assert_eq!(seen, 100);
        allocated
    };
    let warm_up: u64 = (0..20).map(|_| round()).sum();
    assert!(warm_up > 0, "its buffers grow");
    assert_eq!((0..20).map(|_| round()).sum::<u64>(), 0);
}

/// Payloads as a type, and numbers and strings by name, also where records wrap. Only a string that wraps itself is put
/// together.
#[cfg(feature = "zerocopy-0-8")]
#[test]
fn decoding_allocates_nothing() {
    let format = "name: x\nID: 1\nformat:\n\tfield:int number;\toffset:0;\tsize:4;\tsigned:1;\n\
                  \tfield:__data_loc char[] name;\toffset:4;\tsize:4;\tsigned:0;\n\tfield:u16 words[2];\toffset:8;\tsize:4;\tsigned:0;\n";
    let format: perfweave_events::Format = format.parse().unwrap();
    let [number, name, words] = ["number", "name", "words"].map(|name| format.field(name).unwrap());
    let payload = [
        &(-7i32).to_ne_bytes()[..],
        &(5u32 << 16 | 12).to_ne_bytes(),
        &[1u16, 2].map(u16::to_ne_bytes).concat(),
        b"name\0   ",
    ]
    .concat();
    let kernel = sim::Kernel::with(&[0], 4096, perfweave::Layout::new(4 | 1024, true, 0));
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    let (mut records, mut in_two) = (0, [0; 2]);
    for time in 1..1000 {
        assert!(kernel.emit(0, time, &payload));
        merge.refresh(0);
        while let Some(event) = merge.next() {
            let record = event.record().unwrap();
            let wraps = |bytes: perfweave::Bytes<'_>| usize::from(!bytes.as_slices().1.is_empty());
            let name_wraps = wraps(name.bytes(&record).unwrap());
            let (allocated, _) = allocations(|| {
                assert_eq!((number.int(&record), words.ints(&record).unwrap().sum::<i64>()), (Some(-7), 3));
                assert_eq!(name.text(&record).unwrap(), "name");
                assert_eq!(record.payload_as::<[u32; 3]>().unwrap()[0] as i32, -7);
            });
            assert!(allocated as usize <= 2 * name_wraps, "{allocated}");
            records += 1;
            in_two = [in_two[0] + wraps(record.as_bytes()), in_two[1] + name_wraps];
        }
    }
    assert!(records > 900 && in_two[0] > 3, "{records}, {in_two:?}");
}

/// The whole reader on live rings, waiting included.
#[test]
fn a_reader_in_steady_state_allocates_nothing() {
    let Some((events, echo)) = echo() else { return };
    let rings = Rings::options().bpf_output(&events).pages(4).open().unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let cpus = load::online();
    let mut drain = || {
        let mut seen = 0;
        reading::all(&mut reader, |event| seen += usize::from(event.key().is_some()));
        seen
    };
    let write = || {
        for n in 0..100u64 {
            echo.run_with(cpus[n as usize % cpus.len()], &[n]).unwrap();
        }
    };
    let mut round = || {
        write();
        let (allocated, seen) = allocations(&mut drain);
        assert_eq!(seen, 100);
        allocated
    };
    // Warm-up: its buffers grow, and it lists the CPUs, which it does once a second.
    let (begin, mut rounds) = (Instant::now(), 0);
    while rounds < 10 || begin.elapsed() < 12 * reading::TICK {
        round();
        rounds += 1;
    }
    // On a busy machine it may list them within these rounds again. What each event allocated would be in all.
    assert!((0..10).any(|_| (0..20).map(|_| round()).sum::<u64>() == 0));
}

/// Writing a recording. Losses in a row are not stored, so each costs as much as the one before.
#[test]
fn writing_a_recording_allocates_for_the_first_loss_of_each_cpu_alone() {
    use perfweave::Item;
    use perfweave_perf_data as perf_data;

    let paths = ["plain", "losses"]
        .map(|name| std::env::temp_dir().join(format!("perfweave-allocations-{name}-{}.data", std::process::id())));
    let cpus = [0, 1, 2];
    let kernel = sim::Kernel::with(&cpus, 16 << 20, perfweave::Layout::new(4 | 1024, true, 0));
    let records = 300_000u64;
    (0..records).for_each(|n| assert!(kernel.emit(cpus[n as usize % cpus.len()], 1 + n, b"")));
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    let mut writer = perf_data::Writer::create(&paths[0], merge.rings()).unwrap();
    merge.refresh(0);
    merge.batch().for_each(|event| writer.write(&event).unwrap());
    writer.finish().unwrap();

    // Nearly all of them become losses: in a row, with a record of each CPU now and then, and at the end with no record
    // after them.
    let mut bytes = std::fs::read(&paths[0]).unwrap();
    // Where the header says that the records begin.
    let begin = u64::from_ne_bytes(bytes[40..48].try_into().unwrap());
    let (mut at, mut n) = (begin as usize, 0);
    while n < records {
        let record = &mut bytes[at..];
        let [kind, size] =
            [&record[..4], &[record[6], record[7], 0, 0]].map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
        if kind == bindings::PERF_RECORD_SAMPLE {
            let cpu = cpus[n as usize % cpus.len()];
            if n % 30_000 > 10 {
                // Header, id, count, time, CPU.
                let words = [u64::from(bindings::PERF_RECORD_LOST) | u64::from(size) << 48, 0, 1, 1 + n, cpu.into()];
                assert_eq!(size as usize, size_of_val(&words));
                words
                    .iter()
                    .zip(record.chunks_exact_mut(8))
                    .for_each(|(word, to)| to.copy_from_slice(&word.to_ne_bytes()));
            }
            n += 1;
        }
        at += size as usize;
    }
    std::fs::write(&paths[0], bytes).unwrap();

    let mut merge = Merge::new(perf_data::open(&paths[0]).unwrap(), Order::new()).unwrap();
    let mut writer = perf_data::Writer::create(&paths[1], merge.rings()).unwrap();
    merge.refresh(0);
    let (mut events, mut told, mut all) = (0, 0, 0);
    while let Some(event) = merge.next() {
        let event = event.event();
        events += 1;
        told += u64::from(matches!(event.item(), Item::Lost(_)));
        let (allocated, ()) = allocations(|| writer.write(&event).unwrap());
        all += allocated;
    }
    assert!(events == records && told > 290_000, "{told} of {events}");
    // The first loss of a CPU makes room for one of each, the first of all makes room for the totals of the end, and the
    // first record makes room for the counts of the next seal.
    assert!(all as usize <= cpus.len() + 2, "{all} allocations");
    assert_eq!(writer.finish().unwrap().lost, told);
    let again = perf_data::open(&paths[1]).unwrap();
    let mut again = Merge::new(again, Order::new()).unwrap();
    again.refresh(0);
    let lost: u64 = again.batch().filter_map(|event| event.item().lost()).map(|lost| lost.count).sum();
    assert_eq!(lost, told);
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
}
