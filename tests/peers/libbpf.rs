//! The assertions of the tests of libbpf, its selftest and libbpf-rs about `perf_buffer`, made of perfweave on live
//! kernel rings, and tests of parts of its API that have none there.

use crate::reading;
use crate::reading::{LONG, number};
use perfweave::{ErrorKind, Event, Hold, Order, Reader, Rings};
use perfweave_support::bpf::{self, Asm, Map, Program, Reg};
use perfweave_support::pin;
use perfweave_support::{assert_error, echo, foreign, kernel, load, threads};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;

/// All events of the rings: `perf_buffer__consume()`.
fn drained(rings: &mut Rings) -> Vec<(u32, u64)> {
    let mut all = Vec::new();
    let _ = rings.drain(|event| {
        all.push((event.cpu().unwrap(), number(&event)));
        ControlFlow::<()>::Continue(())
    });
    all
}

/// `prog_tests/perf_buffer.c`, serial_test_perf_buffer: a program on a probe outputs its CPU's number, and is triggered
/// on each online CPU. Each sample is in the ring of the CPU it names; one poll sees all CPUs; there are as many
/// buffers as online CPUs; their file descriptors differ; consuming one buffer after a new trigger sees its CPU again.
#[test]
fn serial_test_perf_buffer() {
    let Some(map) = kernel("make a perf event array", Map::perf_event_array(load::slots())) else { return };
    let counter = Map::array(8, 1).unwrap();
    let program = bpf::on_syscall(&map, &counter, libc::SYS_getuid, 0, 0);
    let Some(program) = kernel("load a BPF program", program) else { return };
    let Some(_attached) = kernel("attach to sys_enter", program.attach_raw_tracepoint("sys_enter")) else { return };
    let cpus = load::online();
    // As `bpf::stamped` writes it.
    let on_cpu = |event: &Event<'_>| {
        let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
        assert_eq!(record.payload().and_then(|payload| payload.u32(20)), Some(record.cpu()));
        record.cpu()
    };

    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    assert!(rings.cpus().eq(cpus.iter().copied()));
    assert_eq!(rings.cpus().len(), cpus.len());
    let fds: BTreeSet<_> = rings.fds().map(|fd| fd.as_raw_fd()).collect();
    assert_eq!(fds.len(), cpus.len());

    let trigger = || cpus.iter().for_each(|&cpu| load::pinned(cpu, load::getuid));
    drop(rings);
    // To get one of them alone, open it alone.
    let open = |&cpu: &u32| Rings::options().bpf_output(&map).pages(1).cpus([cpu]).open().unwrap();
    let mut apart: Vec<_> = cpus.iter().map(open).collect();
    trigger();
    for (rings, &cpu) in apart.iter_mut().zip(&cpus) {
        let mut seen = Vec::new();
        let drained = rings.drain(|event| {
            seen.push(on_cpu(&event));
            ControlFlow::<()>::Continue(())
        });
        assert!(drained.is_continue());
        assert_eq!(seen, [cpu], "this buffer and no other");
    }
    drop(apart);
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    trigger();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let mut seen = BTreeSet::new();
    for _ in &cpus {
        seen.insert(on_cpu(&reader.next_timeout(LONG).unwrap().expect("one for each CPU").event()));
    }
    assert!(seen.into_iter().eq(cpus.iter().copied()));
    // One for each CPU.
    reading::assert_nothing(&mut reader);
}

/// `perf_buffer__buffer()` of a buffer that does not exist is -EINVAL.
#[test]
fn no_buffer() {
    let Some((map, _)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).cpus([0]).open().unwrap();
    assert_error!(rings.raw(5000).unwrap_err(), NotFound, "no CPU 5000: ");
}

/// `perf_buffer__consume()` takes buffers one after the other; perfweave begins with the fullest.
#[test]
fn consume_begins_with_the_fullest() {
    let Some((map, program)) = echo() else { return };
    let cpus = load::online();
    let (first, last) = (cpus[0], *cpus.last().unwrap());
    let mut rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    for (busy, idle) in [(first, last), (last, first)] {
        for value in 0..10 {
            assert_eq!(program.run_with(busy, &[value]).unwrap(), 0);
        }
        if idle != busy {
            assert_eq!(program.run_with(idle, &[100]).unwrap(), 0);
        }
        let mut expected: Vec<_> = (0..10).map(|value| (busy, value)).collect();
        expected.extend((idle != busy).then_some((idle, 100)));
        assert_eq!(drained(&mut rings), expected);
    }
    assert_eq!(drained(&mut rings), []);
}

/// libbpf-rs, test_object_perf_buffer_raw: the test gets the memory of each buffer, and finds a program's output in it.
///
/// Theirs leaves out the last page, because libbpf's size does not count the header's. Here every byte is read.
#[test]
fn test_perf_buffer_raw() {
    let Some((map, program)) = echo() else { return };
    let pages = 2;
    let size = pages * foreign::page_size();
    let rings = Rings::options().bpf_output(&map).pages(pages as u64).open().unwrap();
    let most = size as u64 / 32 - 1;
    for cpu in load::online() {
        for value in 0..most {
            assert_eq!(program.run_with(cpu, &[0xfeed_0000_0000 + value]).unwrap(), 0);
        }
        let raw = rings.raw(cpu).unwrap();
        assert_eq!((raw.size, raw.head, raw.tail), (size, 32 * most, 0));
        // SAFETY: mapped as long as the rings live.
        let words = unsafe { foreign::words(raw.base) };
        assert_eq!(words, [raw.head, raw.tail, foreign::page_size() as u64, size as u64]);
        // SAFETY: as above, and nobody writes now.
        let data = unsafe { foreign::data(raw.base, raw.size) };
        for value in 0..most as usize {
            let at = 32 * value + 20;
            assert_eq!(data[at..at + 8], (0xfeed_0000_0000 + value as u64).to_ne_bytes());
        }
    }
    let bases: BTreeSet<_> = rings.cpus().map(|cpu| rings.raw(cpu).unwrap().base).collect();
    assert_eq!(bases.len(), rings.cpus().len());
    let mut rings = rings;
    assert_eq!(drained(&mut rings).len() as u64, most * rings.cpus().len() as u64);
    for cpu in load::online() {
        let raw = rings.raw(cpu).unwrap();
        assert_eq!((raw.head, raw.tail), (32 * most, 32 * most));
    }
}

/// `perf_buffer__new_raw()` takes CPUs and the map's keys for them: `cpus`, `map_keys`.
#[test]
fn new_raw_with_map_keys() {
    const SHIFT: u32 = 3;
    let Some(map) = kernel("make a perf event array", Map::perf_event_array(load::slots() + SHIFT)) else { return };
    // bpf_perf_event_output(context, map, the context's first word, R10 - 8, 8)
    let mut asm = Asm::new();
    asm.mov(Reg::R6, Reg::R1).load(Reg::R3, Reg::R6, 0).store(Reg::R10, -8, Reg::R3).mov(Reg::R1, Reg::R6);
    asm.map(Reg::R2, &map).mov(Reg::R4, Reg::R10).add_i(Reg::R4, -8).mov_i(Reg::R5, 8).call(25).exit();
    let program = Program::load(bpf::Kind::RawTracepoint, &asm).unwrap();
    let options = || Rings::options().bpf_output(&map).pages(1);
    let mut rings = options().slots(|cpu| cpu + SHIFT).open().unwrap();
    for cpu in load::online() {
        assert_eq!(program.run_with(cpu, &[(cpu + SHIFT).into()]).unwrap(), 0);
        assert_eq!(drained(&mut rings), [(cpu, u64::from(cpu + SHIFT))]);
    }
    assert_eq!(program.run_with(0, &[0]).unwrap(), -libc::ENOENT, "the CPU's own slot is left alone");
    drop(rings);
    assert_eq!(program.run_with(0, &[SHIFT.into()]).unwrap(), -libc::ENOENT);

    let last = *load::online().last().unwrap();
    // One slot too few.
    let small = Map::perf_event_array(last + SHIFT + 1).unwrap();
    let options = Rings::options().bpf_output(&small).pages(1).slots(|cpu| cpu + SHIFT + 1);
    let error = options.open().unwrap_err();
    assert_error!(error, InvalidInput, format!("CPU {last} needs slot {}: ", last + SHIFT + 1));
}

/// `perf_buffer__new()` for a map that is pinned.
#[test]
fn a_pinned_map_is_opened_by_its_path() {
    let Some((map, program)) = echo() else { return };
    let Some(mount) = kernel("mount a BPF file system", pin::BpfFs::mount()) else { return };
    let path = mount.path().join("events");
    pin::pin(&map, &path).unwrap();
    // The path and the descriptor name the same map, whose slots take only one event.
    let error = Rings::options().bpf_output_pinned(&path).bpf_output(&map).open().unwrap_err();
    let said = error.to_string();
    assert!(
        error.kind() == ErrorKind::InvalidInput
            && error.to_string().contains("are the same map")
            && said.contains(&path.display().to_string()),
        "{said}"
    );
    let rings = Rings::options().bpf_output_pinned(&path).pages(1).open().unwrap();
    // The path is only needed to open it.
    std::fs::remove_file(&path).unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    for cpu in load::online() {
        assert_eq!(program.run_with(cpu, &[7]).unwrap(), 0);
        let event = reader.next_timeout(LONG).unwrap().unwrap();
        assert_eq!((event.cpu(), number(&event.event())), (Some(cpu), 7));
    }
    drop(reader);
    assert_eq!(program.run_with(0, &[7]).unwrap(), -libc::ENOENT);

    // Another kind of map, by its path.
    let array = Map::array(8, 1).unwrap();
    let path = mount.path().join("array");
    pin::pin(&array, &path).unwrap();
    let error = Rings::options().bpf_output_pinned(&path).open().unwrap_err();
    assert_error!(error, InvalidInput, "the map is a BPF_MAP_TYPE_ARRAY (2)");
}

#[test]
fn a_path_that_leads_to_no_map_is_named_with_a_cure() {
    let Some(_) = echo() else { return };
    for (path, kind, errno, hint) in [
        ("/sys/fs/bpf/no such map", ErrorKind::NotFound, libc::ENOENT, "mount -t bpf"),
        ("/proc/self/comm", ErrorKind::Permission, libc::EACCES, "a file of a BPF file system"),
    ] {
        let error = Rings::options().bpf_output_pinned(path).open().unwrap_err();
        let said = error.to_string();
        assert_eq!((error.kind(), error.raw_os_error()), (kind, Some(errno)), "{said}");
        assert!(said.contains(&format!("the pinned map {path}: ")) && said.contains(hint), "{said}");
    }
}

/// `perf_buffer__free()`: slots are emptied first, then rings unmapped, then events closed. A program that outputs
/// meanwhile finds its slot or none: never a ring without memory (`-ENOSPC`), never a disabled event (`-EOPNOTSUPP`).
/// Only a program that has already found its slot, and is interrupted there, can get these errors.
#[test]
fn free_empties_slots_before_anything_else() {
    let Some((map, program)) = echo() else { return };
    let cpu = *load::online().last().unwrap();
    // How often the reader ended before the writer.
    let mut caught = 0;
    threads::until("a writer is caught, a hundred times", || {
        let rings = Rings::options().bpf_output(&map).bytes(1 << 20).open().unwrap();
        let reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
        let base = reader.rings().raw(cpu).unwrap().base;
        // SAFETY: mapped until the reader is dropped.
        let head = || unsafe { foreign::words(base) }[0];
        std::thread::scope(|scope| {
            let program = &program;
            let writer = scope.spawn(move || {
                load::pin(cpu);
                // At most as many as fit the ring, and some after the first refused one.
                let (mut refused, mut writes) = (Vec::new(), 0);
                while refused.len() < 10 && writes < 30_000 {
                    let answer = program.run_with(cpu, &[writes]).unwrap();
                    writes += 1;
                    if answer != 0 || !refused.is_empty() {
                        refused.push(answer);
                    }
                }
                refused
            });
            threads::until("it writes", || head() > 0);
            drop(reader);
            let refused = writer.join().unwrap();
            let in_flight = [-libc::ENOENT, -libc::EOPNOTSUPP, -libc::ENOSPC];
            assert!(refused.first().is_none_or(|answer| in_flight.contains(answer)), "{refused:?}");
            assert!(refused.iter().skip(1).all(|answer| *answer == -libc::ENOENT), "{refused:?}");
            caught += usize::from(!refused.is_empty());
        });
        assert_eq!(program.run_with(cpu, &[0]).unwrap(), -libc::ENOENT);
        caught == 100
    });
}

/// libbpf-rs #224: a reader can be moved to another thread with its held events, and shared by several.
#[test]
fn a_reader_can_be_sent() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<Reader>();
    is_send::<Rings>();
    is_sync::<Rings>();
    is_send::<perfweave::Merge>();
    is_send::<perfweave::Recorder>();
    is_send::<perfweave::Handle>();
    is_sync::<perfweave::Handle>();
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    for value in 0..3 {
        assert_eq!(program.run_with(0, &[value]).unwrap(), 0);
        reader = std::thread::spawn(move || {
            assert_eq!(number(&reader.next_timeout(LONG).unwrap().unwrap().event()), value);
            reader
        })
        .join()
        .unwrap();
    }
}
