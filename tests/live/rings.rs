//! On live kernel rings: opening, adopting and handing out rings, and the records in them.

use crate::reading;
use crate::reading::number;
use perf_event_open_sys::bindings;
use perfweave::{
    Certainty, Clock, ErrorKind, Fault, Fence, Hold, Item, Key, Layout, Order, Pause, Reader, Recorder, Ring, Rings,
};
use perfweave_events::EventOptions;
use perfweave_support::bpf::{Asm, Map, Program, Reg};
use perfweave_support::{assert_error, bpf, echo, foreign, kernel, load, needs, threads, tracefs};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// CPU and number of all written records.
fn payloads(reader: &mut Reader) -> Vec<(u32, u64)> {
    let mut all = Vec::new();
    reading::all(reader, |event| all.push((event.cpu().unwrap(), number(&event))));
    all
}

#[test]
fn every_online_cpu_has_a_ring_under_its_own_number() {
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    let cpus = load::online();
    assert_eq!(rings.cpus().collect::<Vec<_>>(), cpus);
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    for &cpu in &cpus {
        assert_eq!(program.run_with(cpu, &[u64::from(cpu) + 100]).unwrap(), 0);
    }
    let expected: Vec<_> = cpus.iter().map(|&cpu| (cpu, u64::from(cpu) + 100)).collect();
    assert_eq!(payloads(&mut reader), expected, "written one after the other, read in that order");
}

#[test]
fn rings_can_be_restricted_to_some_cpus() {
    let Some((map, program)) = echo() else { return };
    let last = *load::online().last().unwrap();
    let rings = Rings::options().bpf_output(&map).cpus([last, last]).open().unwrap();
    assert_eq!(rings.cpus().collect::<Vec<_>>(), [last]);
    assert_eq!(program.run_with(last, &[5]).unwrap(), 0);
    if last > 0 {
        assert_eq!(program.run_with(0, &[5]).unwrap(), -libc::ENOENT, "no slot was set for CPU 0");
    }
}

#[test]
fn the_map_may_be_closed_and_its_slots_are_emptied_in_the_end() {
    let Some((map, program)) = echo() else { return };
    let borrowed = map.as_fd().try_clone_to_owned().unwrap();
    let rings = Rings::options().bpf_output(&borrowed).pages(1).open().unwrap();
    drop(borrowed);
    drop(map);
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    assert_eq!(program.run_with(0, &[7]).unwrap(), 0);
    assert_eq!(payloads(&mut reader), [(0, 7)]);
    drop(reader);
    assert_eq!(program.run_with(0, &[7]).unwrap(), -libc::ENOENT);
}

/// The crate empties them. The kernel would do so only when the last descriptor of the map is closed.
#[test]
fn slots_are_emptied_while_others_keep_the_map() {
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    for &cpu in &load::online() {
        assert_eq!(program.run_with(cpu, &[7]).unwrap(), 0);
    }
    drop(rings);
    for &cpu in &load::online() {
        assert_eq!(program.run_with(cpu, &[7]).unwrap(), -libc::ENOENT);
    }
    drop(map);
}

/// Another program may empty slots first: pausing and closing still work, and resuming sets them again.
#[test]
fn a_slot_that_somebody_else_emptied_is_no_error() {
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let (handle, cpus) = (reader.handle(), load::online());
    let emptied = |answer| cpus.iter().all(|&cpu| program.run_with(cpu, &[7]).unwrap() == answer);
    map.delete(cpus[0]).unwrap();
    assert_eq!(map.delete(cpus[0]).unwrap_err().raw_os_error(), Some(libc::ENOENT), "as the crate is told");
    handle.pause(Pause::Slots).unwrap();
    assert!(emptied(-libc::ENOENT), "all of them");
    handle.resume().unwrap();
    assert!(emptied(0));
    assert_eq!(payloads(&mut reader).len(), cpus.len());
    map.delete(cpus[0]).unwrap();
    handle.close();
    assert!(emptied(-libc::ENOENT));
}

/// An adopted ring has no count of dropped records: its ledger is not exact.
#[test]
fn the_ledger_of_an_adopted_ring_is_not_exact() {
    let Some((map, program)) = echo() else { return };
    let size = foreign::page_size();
    let Some(theirs) = kernel("open a ring", foreign::ForeignRing::open(0, size)) else { return };
    foreign::set_slot(&map, 0, &theirs).unwrap();
    let mut rings = Rings::empty(Clock::Monotonic);
    // SAFETY: nobody else reads it.
    rings.add(0, unsafe { Ring::adopt_event(theirs.as_fd(), size) }.unwrap(), Layout::RAW);
    let mut reader = Reader::new(rings, Order::new().key(Key::Payload(0))).unwrap();
    assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
    assert_eq!(payloads(&mut reader), [(0, 1)]);
    let ledger = reader.ledger().unwrap();
    assert!(!ledger.accounts[0].exact && !ledger.total().exact && !ledger.is_complete(), "{ledger}");
    assert!(ledger.to_string().ends_with("; nothing is known to be missing"), "{ledger}");
    // The last losses are not in the ledger; those that a LOST record counts are.
    while program.run_with(0, &[2]).unwrap() == 0 {}
    let ledger = reader.ledger().unwrap();
    assert_eq!((ledger.total().lost, ledger.total().exact), (0, false));
    payloads(&mut reader);
    assert_eq!(program.run_with(0, &[3]).unwrap(), 0);
    let mut lost = 0;
    reading::all(&mut reader, |event| {
        if let Item::Lost(told) = event.item() {
            lost += told.count;
        }
    });
    let ledger = reader.ledger().unwrap();
    assert_eq!((lost, ledger.total().lost, ledger.total().exact), (1, 1, false), "{ledger}");
}

#[test]
fn what_is_no_perf_event_array_is_refused() {
    let Some(array) = kernel("make a map", Map::array(8, 1)) else { return };
    let error = Rings::options().bpf_output(&array).open().unwrap_err();
    assert_error!(error, InvalidInput, "the map is a BPF_MAP_TYPE_ARRAY (2), and not a");
    // The kind of map that most users know as a ring buffer.
    let Some(ring) = kernel("make a BPF ring buffer", Map::ring_buffer(64 << 10)) else { return };
    let error = Rings::options().bpf_output(&ring).open().unwrap_err();
    assert_error!(error, InvalidInput, "the map is a BPF_MAP_TYPE_RINGBUF (27), and not a");
    for named in ["a BPF ring buffer", "bpf_perf_event_output", "BPF_MAP_TYPE_PERF_EVENT_ARRAY (4)"] {
        assert!(error.to_string().contains(named), "{error}: no {named}");
    }
    let file = std::fs::File::open("/dev/null").unwrap();
    let error = Rings::options().bpf_output(&file).open().unwrap_err();
    assert_error!(error, InvalidInput, "no BPF map, but /dev/null");
    // The kernel's information about a program begins with a type too.
    let Some((_, program)) = echo() else { return };
    let error = Rings::options().bpf_output(&program).open().unwrap_err();
    assert_error!(error, InvalidInput, "no BPF map, but anon_inode:bpf-prog");
}

#[test]
fn an_array_without_a_slot_for_every_cpu_is_refused() {
    let last = *load::online().last().unwrap();
    let Some(()) = needs("a second CPU that is online", last > 0) else { return };
    let Some(map) = kernel("make a map", Map::perf_event_array(last)) else { return };
    let error = Rings::options().bpf_output(&map).open().unwrap_err();
    assert_error!(error, InvalidInput, format!("has {last} slots, but CPU {last} needs slot {last}: "));
    // The CPUs that do have one can still be read.
    Rings::options().bpf_output(&map).cpus(0..last).open().unwrap();
}

#[test]
fn sizes_are_rounded_up_to_a_power_of_two_pages() {
    let Some((map, _)) = echo() else { return };
    let page = foreign::page_size();
    for (options, expected) in [
        (Rings::options().bytes(1), page),
        (Rings::options().bytes(page as u64 + 1), 2 * page),
        (Rings::options().pages(3), 4 * page),
        (Rings::options().pages(8), 8 * page),
    ] {
        let rings = options.bpf_output(&map).open().unwrap();
        let raw = rings.raw(0).unwrap();
        assert_eq!(raw.size, expected);
        // SAFETY: a mapped ring.
        let [head, tail, offset, size] = unsafe { foreign::words(raw.base) };
        assert_eq!((head, tail, offset as usize, size as usize), (0, 0, page, expected));
    }
    for options in [Rings::options().bytes(0), Rings::options().pages(0), Rings::options().bytes(1 << 40)] {
        let error = options.bpf_output(&map).open().unwrap_err();
        assert_error!(error, InvalidInput, "a ring cannot have");
    }
}

#[test]
fn a_ring_handed_out_is_the_one_that_is_read() {
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    let raw = rings.raw(0).unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    program.run_with(0, &[7]).unwrap();
    // SAFETY: mapped as long as the reader lives.
    let [head, tail, ..] = unsafe { foreign::words(raw.base) };
    // Header, time, length and 8 bytes, rounded up.
    assert_eq!((head, tail), (32, 0));
    assert_eq!(payloads(&mut reader), [(0, 7)]);
    // The next refresh releases the yielded bytes.
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    // SAFETY: as above.
    let [head, tail, ..] = unsafe { foreign::words(raw.base) };
    assert_eq!((head, tail), (32, 32));
    let error = reader.rings().raw(100_000).unwrap_err();
    assert_error!(error, NotFound, "no CPU 100000: this machine can have CPUs up to");
}

#[test]
fn a_cpu_without_a_ring_is_not_a_cpu_out_of_range() {
    let Some((map, _)) = echo() else { return };
    let last = *load::online().last().unwrap();
    let Some(()) = needs("a second CPU that is online", last > 0) else { return };
    let rings = Rings::options().bpf_output(&map).cpus([0]).open().unwrap();
    assert_error!(rings.raw(last).unwrap_err(), NotFound, format!("CPU {last} has no ring"));
}

/// A ring as libbpf maps it: RAW only, so the program's own key is needed.
#[test]
fn a_ring_that_somebody_else_mapped_can_be_adopted() {
    let Some((map, program)) = echo() else { return };
    let size = 4 * foreign::page_size();
    let Some(theirs) = kernel("open a ring", foreign::ForeignRing::open(0, size)) else { return };
    foreign::set_slot(&map, 0, &theirs).unwrap();
    program.run_with(0, &[1]).unwrap();

    let (base, size) = theirs.buffer();
    let mut rings = Rings::empty(Clock::Monotonic);
    // SAFETY: mapped until the end of this test, and nobody else reads it.
    let ring = unsafe { Ring::adopt_mapping(base, size, Some(theirs.as_fd())) }.unwrap();
    rings.add(0, ring, Layout::RAW);
    assert_eq!(rings.raw(0).unwrap().size, size);

    let error = Reader::new(rings, Order::new()).unwrap_err();
    assert_error!(error, InvalidInput, "the records of CPU 0 carry no time to order by");

    let mut rings = Rings::empty(Clock::Monotonic);
    // SAFETY: as above.
    let ring = unsafe { Ring::adopt_mapping(base, size, Some(theirs.as_fd())) }.unwrap();
    rings.add(0, ring, Layout::RAW);
    let mut reader = Reader::new(rings, Order::new().key(Key::Payload(0))).unwrap();
    program.run_with(0, &[2]).unwrap();
    assert_eq!(payloads(&mut reader), [(0, 1), (0, 2)]);
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    // SAFETY: still mapped.
    let [head, tail, ..] = unsafe { foreign::words(base) };
    assert_eq!((head, tail), (48, 48), "given back through their mapping");

    // The size with the header page, as in libbpf's comment, is wrong and gives an error.
    // SAFETY: nothing is read but the header page.
    let error = unsafe { Ring::adopt_mapping(base, size + foreign::page_size(), None) }.unwrap_err();
    assert_error!(error, InvalidInput, "no perf ring: ");
}

#[test]
fn an_event_that_somebody_else_opened_can_be_adopted() {
    let Some((map, program)) = echo() else { return };
    let size = 2 * foreign::page_size();
    let Some(theirs) = kernel("open a ring", foreign::ForeignRing::open(0, size)) else { return };
    foreign::set_slot(&map, 0, &theirs).unwrap();
    program.run_with(0, &[1]).unwrap();
    // SAFETY: nobody else reads it.
    let error = unsafe { Ring::adopt_event(theirs.as_fd(), 2 * size) }.unwrap_err();
    assert_error!(error, System, "cannot map a ring");
    let mut rings = Rings::empty(Clock::Monotonic);
    // SAFETY: as above.
    rings.add(0, unsafe { Ring::adopt_event(theirs.as_fd(), size) }.unwrap(), Layout::RAW);
    drop(theirs);
    let mut reader = Reader::new(rings, Order::new().key(Key::Payload(0))).unwrap();
    program.run_with(0, &[2]).unwrap();
    assert_eq!(payloads(&mut reader), [(0, 1), (0, 2)], "the ring lives on in our own mapping");
}

/// Records without the kernel's time are shorter, and are ordered by a key of the program.
#[test]
fn records_go_without_the_kernels_time_if_nobody_needs_it() {
    let Some((events, echo)) = echo() else { return };
    let open = |order: &Order| order.ring_options().bpf_output(&events).open().unwrap();
    let by_number = || Order::new().key(Key::Payload(0));
    let error = Reader::new(open(&by_number()), Order::new()).unwrap_err();
    assert_error!(error, InvalidInput, "carry no time to order by");
    let mut recorder = Recorder::open(by_number().ring_options().bpf_output(&events), &Fence::Auto).unwrap();
    let error = Reader::new(recorder.freeze().unwrap(), Order::new()).unwrap_err();
    assert_error!(error, InvalidInput, "carry no time to order by");

    // A function may read the time.
    for order in [Order::new(), Order::new().key(Key::Fn(Box::new(|record| record.time())))] {
        let mut reader = Reader::new(open(&order), order).unwrap();
        assert_eq!(echo.run_with(load::online()[0], &[1]).unwrap(), 0);
        let event = reading::next(&mut reader);
        assert!(event.key().is_some() && event.key() == event.record().expect("a record").time());
    }

    let mut reader = Reader::new(open(&by_number()), by_number()).unwrap();
    let cpus = load::online();
    for number in 0..100 {
        assert_eq!(echo.run_with(cpus[number as usize % cpus.len()], &[number]).unwrap(), 0);
    }
    for number in 0..100 {
        let event = reading::next(&mut reader);
        let record = event.record().expect("a record");
        assert_eq!((event.key(), event.certainty(), record.time()), (Some(number), Certainty::Proven, None));
        // Header, length, the number, and what pads them.
        assert_eq!(record.as_bytes().len(), 24);
    }
}

#[test]
fn records_are_stamped_on_the_clock_that_was_asked_for() {
    let Some((map, program)) = echo() else { return };
    let clocks = [Clock::Monotonic, Clock::MonotonicRaw, Clock::Boottime];
    for clock in clocks {
        let rings = Rings::options().bpf_output(&map).pages(1).clock(clock).open().unwrap();
        assert_eq!(rings.clock(), clock);
        let started = rings.started().unwrap();
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        let before = clock.now().unwrap();
        program.run_with(0, &[1]).unwrap();
        let after = clock.now().unwrap();
        reading::all(&mut reader, |event| {
            let time = event.record().and_then(|record| record.time()).unwrap();
            assert_eq!(event.key(), Some(time));
            assert!((before..=after).contains(&time), "{clock:?}: {before} {time} {after}");
            assert!(started <= time);
        });
        assert_eq!(reader.status().total().yielded, 1);
    }
    let rings = Rings::options().bpf_output(&map).pages(1).clock(Clock::Perf).open().unwrap();
    let error = Reader::new(rings, Order::new().hold(Hold::Lag(Duration::ZERO))).unwrap_err();
    assert_error!(error, InvalidInput, "cannot read the perf clock");
}

/// The kernel's time is taken in the helper: after the program's own time, and before the program ends.
#[test]
fn the_kernels_time_is_on_the_clock_of_bpf_ktime() {
    let Some(map) = kernel("make a map", Map::perf_event_array(load::slots())) else { return };
    let mut asm = Asm::new();
    asm.mov(Reg::R6, Reg::R1).ktime().store(Reg::R10, -8, Reg::R0).output(Reg::R6, &map, -8, 8).exit();
    let program = Program::load(bpf::Kind::RawTracepoint, &asm).unwrap();
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    assert_eq!(program.run_on(0).unwrap(), 0);
    let after = Clock::Monotonic.now().unwrap();
    reading::all(&mut reader, |event| {
        let record = event.record().unwrap();
        let (own, kernels) = (record.payload().unwrap().u64(0).unwrap(), record.time().unwrap());
        assert!(own <= kernels && kernels <= after, "{own} {kernels} {after}");
    });
    assert_eq!(reader.status().total().yielded, 1);
}

/// A tracepoint that is rarely hit outside of this test, so that other programs do not fill the rings.
const QUIET: &str = "syscalls:sys_enter_getegid";

#[test]
fn tracepoints_are_opened_by_name_and_by_number() {
    let Some(format) = kernel("find a tracepoint", tracefs::Format::of(perfweave_events::format_of(QUIET))) else {
        return;
    };
    for options in [Rings::options().tracepoint(QUIET), Rings::options().tracepoint_id(format.id.into())] {
        let Some(rings) = kernel("open a tracepoint", options.open()) else { return };
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        let call = || {
            load::getegid();
            threads::own()
        };
        let callers: Vec<_> = load::online().into_iter().map(|cpu| (cpu, load::pinned(cpu, call))).collect();
        let mut seen = Vec::new();
        reading::all(&mut reader, |event| {
            let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
            let payload = record.payload().unwrap();
            // The first of the fields that every tracepoint has, common_type, is its number; the fourth is common_pid.
            assert_eq!(payload.u16(0), Some(format.id));
            seen.push((record.cpu(), payload.u32(4).unwrap() as i32));
        });
        seen.retain(|call| callers.contains(call));
        assert_eq!(seen, callers, "in the order in which they were made");
    }
    let error = Rings::options().tracepoint("sched:no_such_thing").open().unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotFound
            && error.to_string().contains("there is no tracepoint ")
            && error.to_string().contains("available_events"),
        "{error}"
    );
    let error = Rings::options().tracepoint("sched:../sched_switch").open().unwrap_err();
    assert_error!(error, InvalidInput, "cannot look up tracepoint");
}

#[test]
fn any_event_can_be_opened_by_its_attribute() {
    // So seldom that a slow machine with many CPUs can do other work.
    let mut attr = foreign::software(bindings::PERF_COUNT_SW_CPU_CLOCK, 10_000_000);
    attr.sample_type =
        u64::from(bindings::PERF_SAMPLE_IP | bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_CALLCHAIN);
    let Some(rings) = kernel("open a clock", Rings::options().event(&attr).open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let _load = load::Load::on(&[0], |_| std::hint::spin_loop());
    for _ in 0..50 {
        let event = reading::next(&mut reader);
        let record = event.record().unwrap();
        assert_eq!(record.kind(), bindings::PERF_RECORD_SAMPLE);
        assert!(record.time().is_some() && record.pid_tid().is_some());
        assert!(record.payload().is_some(), "behind a callchain of any length");
    }
    assert_eq!(reader.status().total().damaged, 0);
}

/// An event with PERF_SAMPLE_READ changes the layout of all events of its ring, and all are still read rightly.
#[test]
fn events_with_read_values_share_a_ring_with_others() {
    let Some((map, program)) = echo() else { return };
    let mut attr = foreign::software(bindings::PERF_COUNT_SW_CPU_CLOCK, 10_000_000);
    attr.sample_type = u64::from(bindings::PERF_SAMPLE_READ | bindings::PERF_SAMPLE_CALLCHAIN);
    attr.read_format = u64::from(
        bindings::PERF_FORMAT_ID | bindings::PERF_FORMAT_TOTAL_TIME_ENABLED | bindings::PERF_FORMAT_TOTAL_TIME_RUNNING,
    );
    for format in [attr.read_format, attr.read_format | u64::from(bindings::PERF_FORMAT_GROUP)] {
        attr.read_format = format;
        let rings = Rings::options().event(&attr).bpf_output(&map).open().unwrap();
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        let load = load::Load::on(&[0], |_| std::hint::spin_loop());
        for number in 0..20 {
            assert_eq!(program.run_with(0, &[number]).unwrap(), 0);
        }
        let (mut numbers, mut clocks) = (Vec::new(), 0);
        while numbers.len() < 20 || clocks < 20 {
            let event = reading::next(&mut reader);
            let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
            let payload = record.payload().expect("raw data behind all the rest");
            match record.source() {
                Some(0) => clocks += 1,
                Some(1) => numbers.push(payload.u64(0).unwrap()),
                other => panic!("source {other:?}"),
            }
        }
        assert_eq!(numbers, (0..20).collect::<Vec<_>>());
        assert_eq!(reader.status().total().damaged, 0);
        load.end();
    }
}

/// BPF output, a tracepoint and a clock in the same ring of each CPU.
#[test]
fn several_events_share_a_ring_and_are_told_apart() {
    let Some((map, program)) = echo() else { return };
    let Some(_) = kernel("find a tracepoint", tracefs::Format::of(perfweave_events::format_of(QUIET))) else { return };
    // So seldom that a slow machine can do other work: beside a millisecond's clock an emulated one ended no grace period.
    let attr = foreign::software(bindings::PERF_COUNT_SW_CPU_CLOCK, 10_000_000);
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let mut options = Rings::options();
        for kind in order {
            options = match kind {
                0 => options.bpf_output(&map),
                1 => options.tracepoint(QUIET),
                _ => options.event(&attr),
            };
        }
        let Some(rings) = kernel("open several events", options.open()) else { return };
        assert_eq!(rings.cpus().len(), load::online().len(), "one ring for each CPU, not for each event");
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        let load = load::Load::on(&[0], |_| std::hint::spin_loop());
        let mut seen = [0u32; 3];
        threads::until("all three are seen", || {
            assert_eq!(program.run_with(0, &[0xfeed]).unwrap(), 0);
            load::pinned(0, load::getegid);
            reading::all(&mut reader, |event| {
                let Some(record) = event.record() else { return };
                let kind = order[record.source().expect("a source")];
                seen[kind] += 1;
                if kind == 0 {
                    assert_eq!(record.payload().unwrap().u64(0), Some(0xfeed));
                }
            });
            seen.iter().all(|count| *count > 10)
        });
        load.end();
    }
}

/// Kinds of records that this crate does not know, or that have no payload, come through as they are.
#[test]
fn other_records_pass_undamaged() {
    let mut attr = foreign::software(bindings::PERF_COUNT_SW_DUMMY, 0);
    attr.set_comm(1);
    attr.set_task(1);
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_context_switch(1);
    // Room for the records of all other programs.
    let options = Rings::options().event(&attr).bytes(4 << 20);
    let Some(rings) = kernel("open a dummy event", options.open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let mut kinds = BTreeSet::new();
    let mut comms = Vec::new();
    // Other programs may write more than that.
    threads::until("all kinds are seen", || {
        std::process::Command::new("true").status().unwrap();
        reading::all(&mut reader, |event| {
            let record = match event.item() {
                Item::Record(record) => record,
                Item::Lost(_) => return,
                other => panic!("{other:?}"),
            };
            kinds.insert(record.kind());
            assert_eq!(event.key(), record.time());
            if record.kind() == bindings::PERF_RECORD_COMM {
                // u32 pid, tid; char comm[]
                let comm = record.body().skip(8).unwrap();
                comms.push(String::from_utf8_lossy(&comm.to_cow()).split('\0').next().unwrap().to_owned());
            }
        });
        let all = [
            bindings::PERF_RECORD_COMM,
            bindings::PERF_RECORD_FORK,
            bindings::PERF_RECORD_EXIT,
            bindings::PERF_RECORD_MMAP2,
            bindings::PERF_RECORD_SWITCH_CPU_WIDE,
        ];
        all.iter().all(|kind| kinds.contains(kind)) && comms.iter().any(|comm| comm == "true")
    });
    assert_eq!(reader.status().total().damaged, 0);
}

/// Many times round a ring of one page, with lengths that make records wrap at every possible place.
#[test]
fn records_that_wrap_come_whole() {
    let Some(map) = kernel("make a map", Map::perf_event_array(load::slots())) else { return };
    let array = Map::array(256, 1).unwrap();
    let rings = Rings::options().bpf_output(&map).pages(1).cpus([0]).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    let programs: Vec<_> = [9, 40, 77, 130, 256].map(|size| (size, bpf::emitter(&map, &array, size).unwrap())).into();
    let (mut wrapped, mut straddling) = (0, 0);
    for round in 0..2000u32 {
        let value: Vec<u8> = (0..256).map(|at| (at as u32 * 7 + round) as u8).collect();
        array.update(0, &value).unwrap();
        let (size, program) = &programs[round as usize % programs.len()];
        assert_eq!(program.run_on(0).unwrap(), 0);
        let event = reader.next_timeout(Duration::ZERO).unwrap().expect("what was just written");
        let payload = event.record().and_then(|record| record.payload()).unwrap();
        let size = *size as usize;
        assert!((size..size + 8).contains(&payload.len()), "0 to 7 bytes of padding");
        assert_eq!(payload.get(0..size).unwrap().to_vec(), value[..size]);
        assert_eq!(&*payload.get(0..size).unwrap().to_cow(), &value[..size]);
        let (head, tail) = payload.as_slices();
        wrapped += u32::from(!tail.is_empty());
        for at in 0..size - 8 {
            assert_eq!(payload.u64(at), Some(u64::from_ne_bytes(value[at..at + 8].try_into().unwrap())));
            straddling += u32::from(at < head.len() && at + 8 > head.len());
        }
    }
    assert!(wrapped > 10 && straddling > 10, "{wrapped} {straddling}");
}

/// The sizes leave 64 or 128 bytes free in a ring of any page size, as in cilium/ebpf's test.
#[test]
fn loss_is_an_event_before_the_record_that_reports_it() {
    let Some(map) = kernel("make a map", Map::perf_event_array(load::slots())) else { return };
    let array = Map::array(256, 1).unwrap();
    let rings = Rings::options().bpf_output(&map).pages(1).cpus([0]).open().unwrap();
    // A reader would read the kernel's count when it runs dry, and report the loss before its LOST record comes.
    let mut merge = perfweave::Merge::new(rings, Order::new().hold(perfweave::Hold::None)).unwrap();
    // 8 header, 8 time, 4 length: 172 bytes make 192.
    let large = bpf::emitter(&map, &array, 172).unwrap();
    let mut fitted = 0;
    while large.run_on(0).unwrap() == 0 {
        fitted += 1;
    }
    assert_eq!(fitted, foreign::page_size() as u64 / 192);
    assert_eq!(large.run_on(0).unwrap(), -libc::ENOSPC, "two are lost");

    // The LOST record takes 32 bytes in addition to the record after it.
    merge.refresh(0);
    let keys: Vec<_> = merge.batch().map(|event| event.key().unwrap()).collect();
    assert_eq!(keys.len() as u64, fitted);
    merge.advance_tails();
    let small = bpf::emitter(&map, &array, 8).unwrap();
    assert_eq!(small.run_on(0).unwrap(), 0);

    merge.refresh(0);
    let events: Vec<_> = merge.batch().map(|event| event.to_owned()).collect();
    let [lost, record] = &events[..] else { panic!("{events:?}") };
    let Item::Lost(loss) = lost.as_event().item() else { panic!("{lost:?}") };
    assert_eq!((loss.cpu, loss.count), (0, 2));
    assert_eq!(loss.after, keys.last().copied(), "the record before");
    assert_eq!(loss.until, record.as_event().key(), "stamped with the record behind");
    assert_eq!(loss.source, Some(0));
    assert_eq!(lost.as_event().key(), record.as_event().key());
    assert_eq!(merge.status().total().lost, 2);
    // The kernel counts no more.
    assert!(!merge.read_losses());
}

/// What a layout says is the largest output is a whole record, whatever fields samples have. One byte more is none, and
/// nothing tells of it: the kernel reserves as many bytes as a header's size of 0 says.
#[test]
fn the_largest_output_is_a_record_and_one_byte_more_is_none() {
    let Some(map) = kernel("make a map", Map::perf_event_array(load::slots())) else { return };
    let array = Map::array(70_000, 1).unwrap();
    let pattern: Vec<u8> = (0..70_000u32).map(|at| (at / 5) as u8 | 1).collect();
    array.update(0, &pattern).unwrap();
    let echo = bpf::echo(&map).unwrap();
    let few = bindings::PERF_SAMPLE_IP | bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_CPU;
    let many = few
        | bindings::PERF_SAMPLE_ADDR
        | bindings::PERF_SAMPLE_ID
        | bindings::PERF_SAMPLE_STREAM_ID
        | bindings::PERF_SAMPLE_PERIOD
        | bindings::PERF_SAMPLE_WEIGHT
        | bindings::PERF_SAMPLE_DATA_SRC
        | bindings::PERF_SAMPLE_TRANSACTION
        | bindings::PERF_SAMPLE_PHYS_ADDR
        | bindings::PERF_SAMPLE_DATA_PAGE_SIZE
        | bindings::PERF_SAMPLE_CODE_PAGE_SIZE;
    let alone = || Rings::options().bpf_output(&map).cpus([0]).bytes(1 << 18);
    // An event that hardly happens; on x86-64 never.
    let beside = || alone().event_name("alignment-faults");
    let cases = [
        (alone(), 65_508),
        (beside(), 65_500),
        (alone().sample(few), 65_484),
        (beside().sample(few), 65_476),
        (beside().sample(many), 65_396),
    ];
    for (options, largest) in cases {
        let Some(rings) = kernel("sample these fields", options.open()) else { return };
        assert_eq!(rings.layouts().map(|layout| layout.largest_output()).collect::<Vec<_>>(), [Some(largest)]);
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        for (more, lengths) in [(0, vec![8, largest, 8]), (1, vec![8, 8])] {
            let big = bpf::emitter(&map, &array, (largest + more) as u32).unwrap();
            assert_eq!(echo.run_with(0, &[1]).unwrap(), 0);
            assert_eq!(big.run_on(0).unwrap(), 0);
            assert_eq!(echo.run_with(0, &[2]).unwrap(), 0);
            let mut seen = Vec::new();
            reading::all(&mut reader, |event| {
                let payload = event.record().unwrap_or_else(|| panic!("{event:?}")).payload().unwrap().to_vec();
                // With its own length of 4 bytes it is padded to a multiple of 8.
                let len = if payload.len() > 100 { payload.len() } else { payload.len() - 4 };
                let is_right = len == 8 || payload == pattern[..len];
                assert!(is_right, "{len} of {largest} and {more} more");
                seen.push(len);
            });
            assert_eq!(seen, lengths, "{largest} and {more} more");
        }
    }
}

/// BPF output beyond what a record holds: the kernel cuts the header's size short and overwrites the bytes after it. Other
/// readers crash or hang.
#[test]
fn oversize_output_is_damage_and_the_ring_goes_on() {
    let Some(map) = kernel("make a map", Map::perf_event_array(load::slots())) else { return };
    let array = Map::array(140_000, 1).unwrap();
    let echo = bpf::echo(&map).unwrap();
    for (fill, pages) in [(0xffu8, 2), (0, 2), (0x41, 2), (0xff, 64), (0, 64), (8, 1), (8, 64)] {
        let pattern: Vec<u8> = (0..140_000u32).map(|at| if fill == 8 { (at / 8) as u8 } else { fill }).collect();
        array.update(0, &pattern).unwrap();
        for size in [65_508, 65_509, 65_516, 65_517, 65_524, 65_636, 70_000, 131_000] {
            let big = bpf::emitter(&map, &array, size).unwrap();
            let rings = Rings::options().bpf_output(&map).pages(pages).open().unwrap();
            let mut reader = Reader::new(rings, Order::new()).unwrap();
            for number in 1..=3 {
                echo.run_with(0, &[number]).unwrap();
            }
            let fitted = big.run_on(0).unwrap() == 0;
            let other = *load::online().last().unwrap();
            if other != 0 {
                assert_eq!(echo.run_with(other, &[77]).unwrap(), 0);
            }
            let mut faults = Vec::new();
            let mut from_other = 0;
            reading::all(&mut reader, |event| match event.item() {
                Item::Damage(damage) => faults.push(damage.fault()),
                Item::Record(record) if other != 0 && record.cpu() == other => {
                    assert_eq!(record.payload().unwrap().u64(0), Some(77));
                    from_other += 1;
                }
                // Records after the start of the big one, and the big one's own bytes, may be anything.
                _ => {}
            });
            assert_eq!(from_other, u32::from(other != 0), "other rings go on");
            // In every case the ring works again.
            for number in 100..104 {
                assert_eq!(echo.run_with(0, &[number]).unwrap(), 0, "size {size}, {pages} pages: {faults:?}");
            }
            let after = payloads_of(&mut reader);
            assert_eq!(after, [100, 101, 102, 103], "size {size}, {pages} pages, fitted {fitted}: {faults:?}");
            if size == 70_000 && pages == 64 && fill == 0xff {
                assert!(matches!(faults[..], [Fault::Raw { raw_size: 70_004, .. }, ..]), "{faults:?}");
            }
        }
    }
}

/// Output so long that it overwrites unread records, with bytes that look like records with times in the far future:
/// they are damage, and the order of all later records is right.
#[test]
fn forged_times_are_damage_and_others_keep_their_order() {
    let Some(map) = kernel("make a map", Map::perf_event_array(load::slots())) else { return };
    let other = *load::online().last().unwrap();
    let echo = bpf::echo(&map).unwrap();
    let array = Map::array(140_000, 1).unwrap();
    // The ring is as long as the output, so that it wraps over everything. Three records of 32 bytes lie before it, and
    // its own raw data begins 20 bytes into its record.
    let pages = 65_536 / foreign::page_size() as u64;
    let mut forged = vec![0u8; 140_000];
    for at in (12..139_000).step_by(32) {
        forged[at..at + 4].copy_from_slice(&9u32.to_ne_bytes());
        forged[at + 6..at + 8].copy_from_slice(&32u16.to_ne_bytes());
        forged[at + 8..at + 16].copy_from_slice(&(1u64 << 63).to_ne_bytes());
        forged[at + 16..at + 20].copy_from_slice(&12u32.to_ne_bytes());
    }
    array.update(0, &forged).unwrap();
    let big = bpf::emitter(&map, &array, 65_636).unwrap();
    let rings = Rings::options().bpf_output(&map).pages(pages).open().unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    for number in 0..3 {
        echo.run_with(0, &[number]).unwrap();
    }
    assert_eq!(big.run_on(0).unwrap(), 0);
    let mut forgeries = 0;
    reading::all(&mut reader, |event| match event.item() {
        Item::Damage(damage) => {
            forgeries += u32::from(matches!(damage.fault(), Fault::Time { time, .. } if time == 1 << 63))
        }
        other => assert!(event.key().is_none_or(|key| key < 1 << 62), "{other:?}"),
    });
    assert!(forgeries >= 3, "the records there are overwritten");
    for number in 0..50 {
        assert_eq!(echo.run_with(if number % 3 == 0 { 0 } else { other }, &[number]).unwrap(), 0);
    }
    let mut numbers = Vec::new();
    reading::all(&mut reader, |event| {
        assert_eq!(event.certainty(), perfweave::Certainty::Proven);
        numbers.push(event.record().and_then(|record| record.payload()?.u64(0)).unwrap());
    });
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    assert_eq!(reader.status().total().late, 0);
}

/// Payloads of the records, without damage and losses.
fn payloads_of(reader: &mut Reader) -> Vec<u64> {
    let mut all = Vec::new();
    reading::all(reader, |event| {
        if let Some(record) = event.record() {
            all.push(record.payload().and_then(|payload| payload.u64(0)).expect("eight bytes"));
        }
    });
    all
}

/// A thread that ends writes `PERF_RECORD_READ` into other CPUs' rings, if an adopted event asks for it. From then on
/// no order is proven.
#[test]
fn an_adopted_ring_into_which_other_cpus_write_proves_nothing() {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC;
    for asks in [false, true] {
        let mut attr = foreign::software(bindings::PERF_COUNT_SW_DUMMY, 0);
        attr.sample_type = bindings::PERF_SAMPLE_TIME.into();
        (attr.clockid, attr.wakeup_events) = (clock.as_raw(), 1);
        attr.set_use_clockid(1);
        attr.set_sample_id_all(1);
        attr.set_task(1);
        attr.set_inherit(1);
        attr.set_inherit_stat(asks.into());
        let mut rings = Rings::empty(Clock::Monotonic);
        for cpu in load::online() {
            // Of this thread, and those that it starts.
            // SAFETY: the attribute is as long as it says.
            let fd = unsafe { perf_event_open_sys::perf_event_open(&mut attr, 0, cpu as i32, -1, 8) };
            let opened = if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) };
            let Some(fd) = kernel("open an event", opened) else { return };
            // SAFETY: a new file descriptor.
            let event = unsafe { OwnedFd::from_raw_fd(fd) };
            // SAFETY: nobody else reads it.
            let ring = unsafe { Ring::adopt_event(&event, foreign::page_size()) }.unwrap();
            rings.add(cpu, ring, Layout::new(attr.sample_type, true, attr.read_format));
        }
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        // Whether the record that ends a thread was read, and how many of each certainty there were.
        let mut end = |last: u32| {
            let (mut has_ended, mut proven, mut other) = (false, 0, 0);
            // More than one: where the kernel gave it the parent's own events at a switch, it ends without that record.
            for _ in 0..300 {
                std::thread::spawn(|| {}).join().unwrap();
                reading::all(&mut reader, |event| {
                    has_ended |= event.record().is_some_and(|record| record.kind() == last);
                    *if event.certainty() == Certainty::Proven { &mut proven } else { &mut other } += 1;
                });
                if has_ended {
                    break;
                }
            }
            let ended = if has_ended { Ok(()) } else { Err("none came as 300 threads ended") };
            kernel("write a record as a thread ends", ended)?;
            Some((proven, other))
        };
        if asks {
            if end(bindings::PERF_RECORD_READ).is_none() {
                return;
            }
            let Some((proven, other)) = end(bindings::PERF_RECORD_READ) else { return };
            assert!(proven == 0 && other > 0, "{proven} {other}");
        } else {
            let Some((proven, other)) = end(bindings::PERF_RECORD_EXIT) else { return };
            assert!(proven > 0 && other == 0, "{proven} {other}");
        }
    }
}
