//! The flight recorder on live kernel rings.

use crate::reading;
use perfweave::{Certainty, Clock, ErrorKind, Event, Fence, Item, Merge, Pause, Recorder, Rings};
use perfweave_support::bpf::{Asm, Map, Program, Reg};
use perfweave_support::{apart, bpf, echo, foreign, kernel, load, membarrier, threads};
use std::collections::BTreeMap;
use std::io;

fn recorder(map: &Map, bytes: u64, fence: &Fence) -> Option<Recorder> {
    kernel("open rings", Recorder::open(Rings::options().bpf_output(map).bytes(bytes), fence))
}

/// What a recorder holds, in order.
fn copied(recorder: &mut Recorder) -> Merge {
    reading::merged(recorder.freeze().unwrap())
}

/// CPU and number of each record, loss as negative counts.
fn numbers(events: &[Event<'_>]) -> Vec<(u32, i64)> {
    let number = |event: &Event<'_>| match event.item() {
        Item::Record(record) => {
            (record.cpu(), record.payload().and_then(|payload| payload.u64(0)).expect("eight bytes") as i64)
        }
        Item::Lost(lost) => (lost.cpu, -(lost.count as i64)),
        other => panic!("{other:?}"),
    };
    events.iter().map(number).collect()
}

#[test]
fn empty_rings_are_empty_however_often_they_are_frozen() {
    let Some((map, program)) = echo() else { return };
    for fence in [Fence::Auto, Fence::Membarrier, Fence::Map] {
        if matches!(fence, Fence::Membarrier) && !membarrier() {
            continue;
        }
        let Some(mut recorder) = recorder(&map, 1, &fence) else { return };
        for _ in 0..3 {
            assert_eq!((copied(&mut recorder).batch().count(), recorder.complete_from()), (0, None));
        }
        assert_eq!(program.run_with(0, &[1]).unwrap(), 0, "not paused any more");
    }
}

/// Written on one CPU after the other, one at a time, so that the true order is known.
#[test]
fn all_cpus_are_read_back_oldest_first() {
    let Some((map, program)) = echo() else { return };
    let Some(mut recorder) = recorder(&map, 64 << 10, &Fence::Auto) else { return };
    let cpus = load::online();
    let mut expected = Vec::new();
    for round in 0..4u64 {
        for number in round * 200..(round + 1) * 200 {
            // On the CPUs in irregular order.
            let cpu = cpus[(number * number / 7) as usize % cpus.len()];
            assert_eq!(program.run_with(cpu, &[number]).unwrap(), 0);
            expected.push((cpu, number as i64));
        }
        let mut merge = copied(&mut recorder);
        let events: Vec<_> = merge.batch().collect();
        assert_eq!(numbers(&events), expected);
        assert!(events.iter().all(|event| event.certainty() == Certainty::Proven && event.record().is_some()));
        assert!(events.is_sorted_by_key(Event::key));
        assert_eq!(recorder.complete_from(), None);
    }
}

/// Records of 32 bytes fill a ring exactly.
#[test]
fn a_ring_of_one_page_keeps_the_newest() {
    let Some((map, program)) = echo() else { return };
    let Some(mut recorder) = recorder(&map, 1, &Fence::Auto) else { return };
    let fit = foreign::page_size() as i64 / 32;
    let mut written = 0;
    for more in [fit - 1, 1, 1, 1, 7, fit, 3 * fit + 5] {
        for _ in 0..more {
            written += 1;
            assert_eq!(program.run_with(0, &[written as u64]).unwrap(), 0);
        }
        let mut merge = copied(&mut recorder);
        let events: Vec<_> = merge.batch().collect();
        let kept = written.min(fit);
        assert_eq!(numbers(&events), (written - kept + 1..=written).map(|number| (0, number)).collect::<Vec<_>>());
        let fourth = events.get(3).and_then(Event::key);
        assert_eq!(recorder.complete_from(), fourth.filter(|_| written > fit));
    }
}

/// Records of many lengths, so that the oldest is cut at every possible place.
#[test]
fn records_of_any_length_are_cut_cleanly() {
    let Some(map) = kernel("make a map", Map::perf_event_array(load::slots())) else { return };
    let array = Map::array(1024, 1).unwrap();
    let Some(mut recorder) = recorder(&map, 1, &Fence::Auto) else { return };
    let sizes = [8, 40, 77, 130, 256, 900];
    let programs = sizes.map(|size| bpf::emitter(&map, &array, size).unwrap());
    let (mut written, mut cut) = (Vec::new(), 0);
    for round in 0..400u32 {
        let mut value: Vec<u8> = (0..1024).map(|at| (at as u32 * 7 + round) as u8).collect();
        value[..4].copy_from_slice(&round.to_ne_bytes());
        array.update(0, &value).unwrap();
        let at = (round * 7 + round / 5) as usize % sizes.len();
        assert_eq!(programs[at].run_on(0).unwrap(), 0);
        let size = sizes[at] as usize;
        // Header, time and length.
        written.push(((20 + size).next_multiple_of(8), value[..size].to_vec()));
        let mut room = foreign::page_size();
        let fit = written.iter().rev().take_while(|(len, _)| {
            let fits = *len <= room;
            room -= if fits { *len } else { 0 };
            fits
        });
        let expected = &written[written.len() - fit.count()..];
        cut += u32::from(room > 0 && expected.len() < written.len());
        let mut merge = copied(&mut recorder);
        let events: Vec<_> = merge.batch().collect();
        assert_eq!(events.len(), expected.len());
        for (event, (len, payload)) in events.iter().zip(expected) {
            let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
            assert_eq!(record.as_bytes().len(), *len);
            assert_eq!(record.payload().unwrap().get(0..payload.len()).unwrap().to_vec(), *payload);
        }
        assert_eq!(recorder.complete_from().is_some(), expected.len() < written.len());
    }
    assert!(cut > 200, "{cut} records that were cut");
}

#[test]
fn what_is_written_while_rings_stand_still_is_refused_and_counted() {
    let Some((map, program)) = echo() else { return };
    let Some(mut recorder) = recorder(&map, 4096, &Fence::Auto) else { return };
    let last = *load::online().last().unwrap();
    assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
    recorder.handle().pause(Pause::Output).unwrap();
    for _ in 0..5 {
        assert_eq!(program.run_with(0, &[2]).unwrap(), -libc::ENOSPC);
    }
    assert_eq!(program.run_with(last, &[2]).unwrap(), -libc::ENOSPC);
    let mut merge = copied(&mut recorder);
    let before: Vec<_> = merge.batch().collect();
    assert_eq!(numbers(&before), [(0, 1)], "nothing was written yet that could tell");
    assert_eq!(program.run_with(0, &[3]).unwrap(), 0);
    assert_eq!(program.run_with(0, &[4]).unwrap(), 0);
    let mut merge = copied(&mut recorder);
    let events: Vec<_> = merge.batch().collect();
    let lost = if last == 0 { 6 } else { 5 };
    assert_eq!(numbers(&events), [(0, 1), (0, -lost), (0, 3), (0, 4)]);
    let (loss, record) = (events[1], events[2]);
    let Item::Lost(said) = loss.item() else { panic!() };
    assert_eq!((said.after, said.until, said.source), (before[0].key(), record.key(), Some(0)));
    assert_eq!((loss.key(), loss.certainty()), (record.key(), Certainty::Proven));
}

/// Rings stand still for a copy, and no longer: what is written once `freeze` has returned is in the next copy, and in
/// the first nothing of it, however late that is read.
#[test]
fn recording_goes_on_when_a_copy_is_made() {
    let Some((map, program)) = echo() else { return };
    let Some(mut recorder) = recorder(&map, 4096, &Fence::Auto) else { return };
    let mut written = Vec::new();
    let mut copies = Vec::new();
    for number in 0..20 {
        let cpu = load::online()[number as usize % load::online().len()];
        assert_eq!(program.run_with(cpu, &[number]).unwrap(), 0, "the rings stand still");
        written.push((cpu, number as i64));
        copies.push((recorder.freeze().unwrap(), written.clone()));
    }
    drop(recorder);
    for (rings, written) in copies {
        let mut merge = reading::merged(rings);
        assert_eq!(numbers(&merge.batch().collect::<Vec<_>>()), written);
    }
}

/// Output that is longer than the ring, and output that is longer than a header can say.
#[test]
fn output_that_is_too_long_is_damage_and_recording_goes_on() {
    let Some((map, program)) = echo() else { return };
    let array = Map::array(140_000, 1).unwrap();
    let page = foreign::page_size() as u64;
    for (pages, size, fill) in [(1, 5000, 0u8), (1, 5000, 0xff), (1, 5000, 0x20), (32, 70_000, 0xff), (1, 131_000, 0)] {
        array.update(0, &vec![fill; 140_000]).unwrap();
        // With pages of 4096 bytes this is sure to overlap itself.
        let size = size.max(if pages == 1 { page as u32 + 900 } else { 0 });
        let big = bpf::emitter(&map, &array, size).unwrap();
        let Some(mut recorder) = recorder(&map, pages * page, &Fence::Auto) else { return };
        let last = *load::online().last().unwrap();
        (0..10).for_each(|number| assert_eq!(program.run_with(0, &[number]).unwrap(), 0));
        if last != 0 {
            assert_eq!(program.run_with(last, &[77]).unwrap(), 0);
        }
        assert_eq!(big.run_on(0).unwrap(), 0);
        let mut merge = copied(&mut recorder);
        let events: Vec<_> = merge.batch().collect();
        let damaged = events.iter().any(|event| matches!(event.item(), Item::Damage(_)));
        assert!(damaged, "{size} bytes of {fill:#x} in {pages} pages");
        let of_last = events.iter().filter(|event| last != 0 && event.cpu() == Some(last));
        assert_eq!(of_last.count(), last.min(1) as usize);
        let fit = pages * page / 32;
        (0..fit + 3).for_each(|number| assert_eq!(program.run_with(0, &[number]).unwrap(), 0));
        let numbers = numbers(&copied(&mut recorder).batch().collect::<Vec<_>>());
        let of_zero: Vec<_> = numbers.into_iter().filter(|(cpu, _)| *cpu == 0).collect();
        let expected = last == 0 || of_zero.len() as u64 == fit;
        assert!(expected && of_zero.iter().map(|(_, number)| *number as u64).eq(3..fit + 3), "{of_zero:?}");
    }
}

/// Hardware may have drawn the times of an event with `precise_ip`, if the clock is perf's own.
#[test]
fn what_was_recorded_by_a_clock_that_proves_nothing_is_assumed() {
    use perf_event_open_sys::bindings;
    for (clock, certainty) in [(Clock::Monotonic, Certainty::Proven), (Clock::Perf, Certainty::Assumed)] {
        let mut attr = foreign::software(bindings::PERF_COUNT_SW_CONTEXT_SWITCHES, 1);
        attr.set_precise_ip(1);
        let options = Rings::options().event(&attr).pages(1).clock(clock);
        let Some(mut recorder) = kernel("open rings", Recorder::open(options, &Fence::Auto)) else {
            return;
        };
        threads::until("threads were switched", || {
            std::thread::yield_now();
            let all: Vec<_> = copied(&mut recorder).batch().map(|event| event.certainty()).collect();
            assert!(all.iter().all(|this| *this == certainty), "{clock:?} {all:?}");
            !all.is_empty()
        });
    }
}

/// A forked child stops no rings of its parent's, and reads no copy that was made before it was forked.
#[test]
fn a_forked_child_stops_nothing() {
    apart!();
    let Some((map, program)) = echo() else { return };
    let Some(mut recorder) = recorder(&map, 4096, &Fence::Auto) else { return };
    assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
    let mut merge = copied(&mut recorder);
    // SAFETY: the child calls nothing but ioctls, if that, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = matches!(recorder.freeze(), Err(ref error) if error.kind() == ErrorKind::Forked);
        // SAFETY: ends the child without running what is the parent's to run.
        unsafe { libc::_exit(if told { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: our child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child was told");
    assert_eq!(program.run_with(0, &[2]).unwrap(), 0, "recording goes on");
    assert_eq!(numbers(&merge.batch().collect::<Vec<_>>()), [(0, 1)]);
    assert_eq!(numbers(&copied(&mut recorder).batch().collect::<Vec<_>>()), [(0, 1), (0, 2)]);
}

/// A program for `sys_enter` that, when this process calls getppid(2) on this CPU, draws the CPU's next number and the
/// time, works for `delay` turns, and outputs both.
fn numbered(events: &Map, counters: &Map, cpu: u32, delay: u32) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.mov(Reg::R6, Reg::R1).load(Reg::R1, Reg::R6, 8).only_if(Reg::R1, libc::SYS_getppid as i32);
    asm.only_process(std::process::id()).cpu().only_if(Reg::R0, cpu as i32);
    asm.mov_i(Reg::R1, 1).map_value(Reg::R2, counters, 8 * cpu as i32).fetch_add(Reg::R2, 0, Reg::R1);
    asm.store(Reg::R10, -16, Reg::R1).ktime().store(Reg::R10, -8, Reg::R0);
    asm.repeat(Reg::R7, delay, |asm| {
        asm.ktime();
    });
    asm.output(Reg::R6, events, -16, 16).mov_i(Reg::R0, 0).exit();
    Program::load(bpf::Kind::RawTracepoint, &asm)
}

/// Under load, every copy is in order and undamaged, and each CPU's numbers have holes only at reported losses.
fn hammer(bytes: u64, fence: &Fence, rounds: u32, delay: u32) -> Option<()> {
    let _alone = crate::alone();
    let events = kernel("make a perf event array", Map::perf_event_array(load::slots()))?;
    let counters = Map::array(8 * load::slots(), 1).unwrap();
    let cpus = load::online();
    let programs: Vec<_> = cpus
        .iter()
        .map(|&cpu| kernel("load a BPF program", numbered(&events, &counters, cpu, delay)))
        .collect::<Option<_>>()?;
    let _links: Vec<_> = programs.iter().map(|program| program.attach_raw_tracepoint("sys_enter").unwrap()).collect();
    let mut recorder = recorder(&events, bytes, fence)?;
    let load = load::Load::on(&cpus, |_| load::getppid());
    let until_drawn = |many: u64| {
        let drawn = || cpus.iter().map(|&cpu| counters.lookup_u64(0, 8 * cpu as usize).unwrap());
        let before: Vec<_> = drawn().collect();
        threads::until("all CPUs write", || drawn().zip(&before).all(|(now, before)| now >= before + many));
    };
    until_drawn(1000);
    let (mut seen, mut losses, mut sets_of_all, mut round) = (0u64, 0u64, 0, 0);
    // With one CPU, its later records may have overwritten the LOST record before the freeze.
    let lossy = cpus.len() > 1;
    while round < rounds || (lossy && losses == 0 && round < 100 * rounds) {
        let mut merge = copied(&mut recorder);
        // The last number of each CPU, and what was lost since.
        let mut last: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut lost: BTreeMap<u32, u64> = BTreeMap::new();
        let mut largest = 0;
        for event in merge.batch() {
            match event.item() {
                Item::Record(record) => {
                    let (cpu, payload) = (record.cpu(), record.payload().unwrap());
                    let (number, key) = (payload.u64(0).unwrap(), event.key().unwrap());
                    assert!(key >= largest, "round {round}: {key} after {largest}");
                    assert!(payload.u64(8).unwrap() <= record.time().unwrap(), "round {round}: garbled");
                    assert_eq!(event.certainty(), Certainty::Proven);
                    largest = key;
                    let missing = lost.remove(&cpu).unwrap_or(0);
                    if let Some((before, count)) = last.get(&cpu) {
                        assert_eq!(number, before + 1 + missing, "round {round}, CPU {cpu}, {count} seen");
                    }
                    last.entry(cpu)
                        .and_modify(|(last, count)| (*last, *count) = (number, *count + 1))
                        .or_insert((number, 1));
                    seen += 1;
                }
                Item::Lost(loss) => {
                    *lost.entry(loss.cpu).or_default() += loss.count;
                    losses += loss.count;
                    assert!(loss.until == event.key() && loss.after.is_none_or(|after| Some(after) <= loss.until));
                }
                other => panic!("round {round}: {other:?}"),
            }
        }
        // Not more than were drawn; and all of them, except one that is not output yet and losses since the pause.
        sets_of_all += u32::from(last.len() == cpus.len());
        // Numbers that are drawn while the rings stand still are lost; the next record reports that.
        if round % 8 == 0 {
            recorder.handle().pause(Pause::Output).unwrap();
            until_drawn(10);
            recorder.handle().resume().unwrap();
            until_drawn(10);
        }
        round += 1;
    }
    load.end();
    assert!(sets_of_all > rounds / 2, "{sets_of_all} of {round} sets with all CPUs");
    assert!(
        (losses > 0 || !lossy) && seen > 20 * u64::from(rounds),
        "a load worth the name: {seen} seen, {losses} lost"
    );
    Some(())
}

#[test]
fn under_load_every_copy_is_in_order_and_whole() {
    // Small rings, which wrap between two stops, and larger ones, which keep the losses of many.
    for (bytes, rounds, delay) in [(1, 400, 0), (16 << 10, 300, 60), (64 << 10, 200, 5)] {
        let Some(()) = hammer(bytes, &Fence::Auto, rounds, delay) else { return };
    }
}

#[test]
fn under_load_other_fences_do_as_well() {
    for fence in [Fence::Membarrier, Fence::Map] {
        if matches!(fence, Fence::Membarrier) && !membarrier() {
            continue;
        }
        let Some(()) = hammer(16 << 10, &fence, 40, 60) else { return };
    }
}

/// Writers with long outputs of tens of thousands of bytes, some of them interrupted. Each record of a copy is whole.
/// Without the fence, writers in flight still write over the oldest records while those are copied.
#[test]
fn nothing_is_written_while_a_copy_is_made() {
    const SIZE: u32 = 60_000;
    let _alone = crate::alone();
    let Some(events) = kernel("make a map", Map::perf_event_array(load::slots())) else { return };
    let cpus = load::online();
    let array = Map::array(SIZE, 1).unwrap();
    let pattern: Vec<u8> = (0..SIZE).map(|at| (at / 8 * 37) as u8).collect();
    array.update(0, &pattern).unwrap();
    // A number, machine-wide, at the begin of all these bytes.
    let mut asm = Asm::new();
    asm.mov(Reg::R6, Reg::R1).load(Reg::R1, Reg::R6, 8).only_if(Reg::R1, libc::SYS_getppid as i32);
    asm.only_process(std::process::id());
    asm.mov_i(Reg::R1, 1).map_value(Reg::R2, &array, 0).fetch_add(Reg::R2, 0, Reg::R1);
    asm.output_value(Reg::R6, &events, &array, SIZE).mov_i(Reg::R0, 0).exit();
    let program = kernel("load a BPF program", Program::load(bpf::Kind::RawTracepoint, &asm));
    let Some(program) = program else { return };
    let _link = program.attach_raw_tracepoint("sys_enter").unwrap();
    let Some(mut recorder) = recorder(&events, 256 << 10, &Fence::Auto) else { return };
    let load = load::Load::on(&cpus, |_| load::getppid());
    // Not on this thread's CPU: it has no writer in flight.
    let mut interrupt = Asm::new();
    interrupt.repeat(Reg::R7, 12_000, |asm| {
        asm.ktime();
    });
    interrupt.mov_i(Reg::R0, 0).exit();
    let interrupt = Program::load(bpf::Kind::PerfEvent, &interrupt).unwrap();
    let _clocks: Vec<_> = cpus[1..].iter().map(|&cpu| interrupt.attach_clock(cpu, 1_000_000).unwrap()).collect();
    let mut records = 0;
    load::pinned(cpus[0], || {
        for round in 0..500 {
            for event in copied(&mut recorder).batch() {
                match event.item() {
                    Item::Record(record) => {
                        let payload = record.payload().unwrap().to_vec();
                        assert!(payload[8..SIZE as usize] == pattern[8..], "round {round}: written over");
                        records += 1;
                    }
                    Item::Lost(_) => {}
                    other => panic!("round {round}: {other:?}"),
                }
            }
            let before = array.lookup_u64(0, 0).unwrap();
            threads::until("somebody writes", || array.lookup_u64(0, 0).unwrap() >= before + 10);
        }
    });
    load.end();
    assert!(records > 500, "{records} records seen");
}
