//! The simulator against the kernel: the same writes, the same reads, the same bytes.

use perf_event_open_sys::bindings as sys;
use perfweave::{Hold, Layout, Merge, Order, Pause, RawRing, Rings, sim};
use perfweave_events::EventOptions;
use perfweave_support::bpf::{Map, Program};
use perfweave_support::{bpf, foreign, kernel, load, threads};
use quickcheck::{Arbitrary, Gen};

/// A step on both rings.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Outputs one of the sizes.
    Output(usize),
    /// Yields this many events.
    Yield(u8),
    /// Stops or restarts output.
    Pause(bool),
}

const SIZES: [u32; 7] = [1, 4, 5, 12, 60, 301, 1000];

fn steps(g: &mut Gen) -> Vec<Step> {
    (0..400)
        .map(|_| match u8::arbitrary(g) % 16 {
            0..10 => Step::Output(usize::arbitrary(g) % SIZES.len()),
            10..15 => Step::Yield(u8::arbitrary(g) % 16),
            _ => Step::Pause(bool::arbitrary(g)),
        })
        .collect()
}

/// A ring's two words and its bytes.
fn image(raw: RawRing) -> (u64, u64, Vec<u8>) {
    // SAFETY: a ring that outlives the test.
    let [head, tail, ..] = unsafe { foreign::words(raw.base) };
    // SAFETY: as above, and nobody writes while we read.
    let data = unsafe { foreign::data(raw.base, raw.size) };
    (head, tail, data)
}

/// Compares two rings between tail and head, except for times, the event's id and padding, which must differ.
fn assert_same(kernels: RawRing, simulated: RawRing, trailer: usize, time_at: usize) {
    let (head, tail, kernels) = image(kernels);
    let (sim_head, sim_tail, simulated) = image(simulated);
    assert_eq!((head, tail), (sim_head, sim_tail), "head and tail");
    let mask = kernels.len() - 1;
    let take =
        |data: &[u8], from: usize, len: usize| -> Vec<u8> { (from..from + len).map(|at| data[at & mask]).collect() };
    let mut at = tail as usize;
    while at < head as usize {
        let (theirs, ours) = (take(&kernels, at, 8), take(&simulated, at, 8));
        assert_eq!(theirs, ours, "header at {at}");
        let kind = u32::from_ne_bytes(theirs[..4].try_into().unwrap());
        let size = usize::from(u16::from_ne_bytes(theirs[6..].try_into().unwrap()));
        let (theirs, ours) = (take(&kernels, at, size), take(&simulated, at, size));
        if kind == sys::PERF_RECORD_LOST {
            assert_eq!(size, 24 + trailer);
            assert_eq!(theirs[16..24], ours[16..24], "the count of LOST at {at}");
            // Its time is that of the record after it.
            for data in [&kernels, &simulated] {
                // First in `struct sample_id`, because TID is not requested.
                let time = take(data, at + 24, 8);
                assert_eq!(time, take(data, at + size + time_at, 8), "the time of LOST at {at}");
            }
        } else {
            let raw = time_at + 8;
            let (their_raw, our_raw) = (take(&kernels, at + raw, 4), take(&simulated, at + raw, 4));
            assert_eq!(their_raw, our_raw, "raw_size at {at}");
            // The first byte of a payload says how long it is without padding.
            let len = SIZES[usize::from(ours[raw + 4])] as usize;
            assert_eq!(theirs[raw + 4..raw + 4 + len], ours[raw + 4..raw + 4 + len], "payload at {at}");
            assert!(size - (raw + 4 + len) < 8, "0 to 7 bytes of padding");
        }
        at += size;
    }
}

fn compare(layout: Layout, steps: &[Step]) -> Option<u64> {
    let events = kernel("make a perf event array", Map::perf_event_array(load::slots()))?;
    let array = Map::array(1000, SIZES.len() as u32).unwrap();
    let page = foreign::page_size();

    let mut attr = foreign::software(sys::PERF_COUNT_SW_BPF_OUTPUT, 1);
    attr.sample_type = layout.sample_type();
    let options = Rings::options().bpf_output(&events).pages(1).cpus([0]);
    // A second event makes the crate ask for IDENTIFIER too.
    let with_id = layout.sample_type() & u64::from(sys::PERF_SAMPLE_IDENTIFIER) != 0;
    let rings = if with_id { options.event(&attr).open() } else { options.open() };
    let rings = kernel("open a ring", rings)?;
    let live = rings.raw(0).unwrap();
    let order = || Order::new().hold(Hold::None);
    let mut on_live = Merge::new(rings, order()).unwrap();

    let machine = sim::Kernel::with(&[0], page, layout);
    let rings = machine.rings();
    let simulated = rings.raw(0).unwrap();
    let mut on_sim = Merge::new(rings, order()).unwrap();

    let payload = |size: usize| -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..1000).map(|at| at as u8).collect();
        bytes[0] = size as u8;
        bytes
    };
    let programs: Vec<Program> = (0..SIZES.len())
        .map(|n| {
            let array = Map::array(1000, 1).unwrap();
            array.update(0, &payload(n)).unwrap();
            bpf::emitter(&events, &array, SIZES[n]).unwrap()
        })
        .collect();
    drop(array);

    let trailer = layout.trailer_len();
    let time_at = if with_id { 16 } else { 8 };
    let mut failures = 0;
    for (time, step) in steps.iter().enumerate() {
        match *step {
            Step::Output(n) => {
                let fits = match programs[n].run_on(0).unwrap() {
                    0 => true,
                    error if error == -libc::ENOSPC => false,
                    error => panic!("{error}"),
                };
                failures += u64::from(!fits);
                assert_eq!(machine.emit(0, time as u64, &payload(n)[..SIZES[n] as usize]), fits, "{step:?} at {time}");
            }
            Step::Yield(most) => {
                for merge in [&mut on_live, &mut on_sim] {
                    merge.refresh(0);
                    for _ in 0..most {
                        merge.next();
                    }
                    merge.advance_tails();
                }
            }
            Step::Pause(paused) => {
                let live = on_live.rings().handle();
                if paused { live.pause(Pause::Output) } else { live.resume() }.unwrap();
                machine.pause(0, paused);
            }
        }
        assert_same(live, simulated, trailer, time_at);
    }
    assert_eq!(machine.dropped(0), failures);
    Some(failures)
}

#[test]
fn the_same_writes_make_the_same_bytes() {
    let mut g = Gen::new(100);
    let time_and_raw = u64::from(sys::PERF_SAMPLE_TIME | sys::PERF_SAMPLE_RAW);
    let with_id = time_and_raw | u64::from(sys::PERF_SAMPLE_IDENTIFIER);
    let mut dropped = 0;
    for round in 0..20 {
        let layout = Layout::new(if round % 2 == 0 { time_and_raw } else { with_id }, true, 0);
        let Some(failures) = compare(layout, &steps(&mut g)) else { return };
        dropped += failures;
    }
    assert!(dropped > 100, "full rings were tried: {dropped}");
}

/// Writers interrupt each other as in `sim`: if a writer is interrupted between its time and its reservation, the
/// interrupt's records lie right before its own, with later times. There is no other disorder.
#[test]
fn interrupted_writers_lie_behind_those_that_interrupted_them() {
    let Some(events) = kernel("make a perf event array", Map::perf_event_array(load::slots())) else { return };
    let _alone = crate::alone();
    let counter = Map::array(8, 1).unwrap();
    const SLOW: u32 = 1;
    const INTERRUPT: u32 = 2;
    let slow = bpf::on_syscall(&events, &counter, libc::SYS_getppid, SLOW, 1000);
    let Some(slow) = kernel("load a BPF program", slow) else { return };
    let interrupt = bpf::on_clock(&events, &counter, INTERRUPT).unwrap();
    let rings = Rings::options().bpf_output(&events).bytes(16 << 20).cpus([0]).open().unwrap();
    let raw = rings.raw(0).unwrap();
    {
        let _link = slow.attach_raw_tracepoint("sys_enter").unwrap();
        let _clock = interrupt.attach_clock(0, 200_000).unwrap();
        let _writer = load::Load::on(&[0], |_| load::getppid());
        // Most interrupts come while the slow program runs.
        threads::until("many are written", || counter.lookup_u64(0, 0).unwrap() > 5000);
    }
    let (head, _, data) = image(raw);
    assert!(head < raw.size as u64, "all of it is there");
    let word = |at: usize| u64::from_ne_bytes(data[at..at + 8].try_into().unwrap());
    // (time, kind) in ring order. Header, TIME, raw_size, then the payload.
    let mut records = Vec::new();
    let mut at = 0;
    while at < head as usize {
        records.push((word(at + 20), word(at + 36) as u32));
        at += (word(at) >> 48) as usize;
    }
    let mut largest = 0;
    let mut interrupted = 0;
    for (n, &(time, kind)) in records.iter().enumerate() {
        if time < largest {
            interrupted += 1;
            assert_eq!(kind, SLOW, "whoever is interrupted");
            let larger = records[..n].iter().rev().take_while(|(other, _)| *other > time).count();
            assert!(records[n - larger..n].iter().all(|(_, kind)| *kind == INTERRUPT), "a run of interrupts");
            assert!(records[..n - larger].iter().all(|(other, _)| *other < time), "no other disorder");
        }
        largest = largest.max(time);
    }
    assert!(interrupted > 10, "{interrupted} of {} were interrupted", records.len());
}

/// Output beyond what a header can say: the same head, and the same bytes all over the ring.
#[test]
fn oversize_output_makes_the_same_bytes() {
    let Some(events) = kernel("make a perf event array", Map::perf_event_array(load::slots())) else { return };
    let array = Map::array(140_000, 1).unwrap();
    let pattern: Vec<u8> = (0..140_000u32).map(|at| (at / 3) as u8 | 1).collect();
    array.update(0, &pattern).unwrap();
    let small = bpf::emitter(&events, &array, 100).unwrap();
    let page = foreign::page_size();
    // Alone, and beside an event that hardly happens.
    let options = |alone: bool| if alone { Rings::options() } else { Rings::options().event_name("alignment-faults") };
    for (pages, alone) in [2, 16, 64].into_iter().flat_map(|pages| [(pages, true), (pages, false)]) {
        let sizes = [65_492, 65_500, 65_501, 65_508, 65_509, 65_516, 65_517, 65_524, 65_636, 70_000, 131_000];
        for size in sizes {
            let rings = options(alone).bpf_output(&events).pages(pages).cpus([0]).open().unwrap();
            let live = rings.raw(0).unwrap();
            let layout = *rings.layouts().next().unwrap();
            assert_eq!(layout.largest_output(), Some(if alone { 65_508 } else { 65_500 }));
            let machine = sim::Kernel::with(&[0], page * pages as usize, layout);
            let rings_of_sim = machine.rings();
            let simulated = rings_of_sim.raw(0).unwrap();
            let mut on_sim = Merge::new(rings_of_sim, Order::new().hold(Hold::None)).unwrap();
            let big = bpf::emitter(&events, &array, size).unwrap();
            for (program, len) in [(&small, 100), (&big, size as usize), (&small, 100)] {
                let fits = program.run_on(0).unwrap() == 0;
                assert_eq!(machine.emit(0, 0x7777, &pattern[..len]), fits, "{size} in {pages} pages");
                // The simulator writes what a lawful kernel does not write at the consumer's next refresh.
                on_sim.refresh(0);
            }
            let (head, _, kernels) = image(live);
            let (sim_head, _, simulated) = image(simulated);
            assert_eq!(head, sim_head, "{size} in {pages} pages");
            // Times and identifiers differ: eight bytes each after each header, if they were not overwritten.
            let differ: Vec<usize> = (0..kernels.len()).filter(|at| kernels[*at] != simulated[*at]).collect();
            assert!(
                differ.len() <= if alone { 24 } else { 48 },
                "{} bytes differ, from {:?} on: {size} in {pages} pages",
                differ.len(),
                differ.first()
            );
        }
    }
}
