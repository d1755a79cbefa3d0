//! Events by name, with their own settings, on live kernel rings: patterns, filters, rates, records beside samples.

use crate::reading;
use perf_event_open_sys::bindings;
use perfweave::{Clock, Error, ErrorKind, Fence, Order, Reader, Recorder, RingOptions, Rings};
use perfweave_events::{EventOptions, Tracefs};
use perfweave_support::{apart, assert_error, foreign, kernel, load, threads};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

fn tracing() -> Option<Tracefs> {
    let tracefs = kernel("find tracefs", perfweave_events::tracefs())?;
    kernel("read tracefs", std::fs::read_dir(tracefs.join("events")))?;
    // And trace anything at all.
    kernel("trace", Rings::options().tracepoint("syscalls:sys_enter_getppid").open())?;
    Some(tracefs)
}

fn names(rings: &Rings) -> Vec<&str> {
    rings.sources().iter().filter_map(|source| source.tracepoint()).collect()
}

/// The error of opening, as text.
fn refused(options: RingOptions) -> String {
    options.open().unwrap_err().to_string()
}

#[test]
fn patterns_stand_for_all_tracepoints_that_fit() {
    let Some(tracefs) = tracing() else { return };
    let options = Rings::options().tracepoint("syscalls:sys_*_getp?id").tracepoint("sched:sched_process_exec");
    let Some(rings) = kernel("trace", options.sample(bindings::PERF_SAMPLE_TID).open()) else { return };
    let syscalls = ["sys_enter_getpgid", "sys_enter_getppid", "sys_exit_getpgid", "sys_exit_getppid"];
    let expected: Vec<String> = syscalls.iter().map(|name| format!("syscalls:{name}")).collect();
    assert_eq!(names(&rings)[..4], expected);
    assert_eq!(names(&rings)[4], "sched:sched_process_exec");
    for source in rings.sources() {
        let id = tracefs.join("events").join(source.tracepoint().unwrap().replace(':', "/")).join("id");
        assert_eq!(source.tracepoint_id(), std::fs::read_to_string(id).unwrap().trim().parse().ok());
        assert_eq!(source.name(), format!("tracepoint {}", source.tracepoint().unwrap()));
    }
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    load::getppid();
    load::getpgid();
    Command::new("true").status().unwrap();
    let mut sources = Vec::new();
    reading::all(&mut reader, |event| {
        let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
        if record.pid_tid().unwrap().1 == threads::own() as u32 {
            sources.push(record.source().unwrap());
        }
    });
    assert_eq!(sources, [1, 3, 0, 2], "in the order of time, each as its own source");
}

/// A pattern of many: each record finds its source.
#[test]
fn a_category_is_traced_whole() {
    apart!();
    let Some(_) = tracing() else { return };
    let options = Rings::options().tracepoint("syscalls:sys_enter_g*").tracepoint("sched:sched_process_*");
    let Some(rings) = kernel("trace", options.pid(std::process::id()).open()) else { return };
    let all = rings.sources().len();
    assert!(all > 20, "{all}");
    let names: Vec<String> = names(&rings).into_iter().map(str::to_owned).collect();
    let ids: Vec<_> = rings.sources().iter().map(|source| source.tracepoint_id().unwrap()).collect();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    Command::new("true").status().unwrap();
    load::getuid();
    let mut seen = BTreeMap::new();
    reading::all(&mut reader, |event| {
        let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
        let source = record.source().unwrap();
        // The first field is the number of the tracepoint.
        assert_eq!(u64::from(record.payload().unwrap().u16(0).unwrap()), ids[source]);
        *seen.entry(names[source].clone()).or_insert(0) += 1;
    });
    // Not sched_process_exit: stable kernels end the events of a task before it (docs/PLATFORMS.md).
    for name in ["sched:sched_process_fork", "sched:sched_process_exec", "syscalls:sys_enter_getuid"] {
        assert!(seen.contains_key(name), "{name}: {seen:?}");
    }
}

#[test]
fn the_nearest_name_is_hinted_at() {
    let Some(_) = tracing() else { return };
    for (name, nearest) in [
        ("sched:sched_swich", "sched_switch"),
        ("shced:sched_switch", "sched"),
        ("sched:sched_switch_*", "sched_switch"),
    ] {
        let error = Rings::options().tracepoint(name).open().unwrap_err();
        assert_error!(error, NotFound, "there is no tracepoint ");
        assert!(error.to_string().contains(&format!("did you mean {nearest}?")), "{error}");
    }
    let said = refused(Rings::options().event_name("cpu-clokc"));
    assert!(said.contains("did you mean cpu-clock?"), "{said}");
    let said = refused(Rings::options().event_name("sofware/config=1/"));
    assert!(said.contains("did you mean software?"), "{said}");
    let said = refused(Rings::options().event_name("msr/tcs/"));
    assert!(said.contains("did you mean tsc?") || said.contains("msr"), "{said}");
}

/// Each tracepoint has its own filter, and the kernel checks it.
#[test]
fn filters_hold_for_the_event_that_was_added_last() {
    let Some(_) = tracing() else { return };
    let own = threads::own();
    let options = Rings::options()
        .tracepoint("syscalls:sys_enter_getp*id")
        .filter(&format!("common_pid == {own} && pid != 5"))
        .tracepoint("syscalls:sys_enter_getsid")
        .filter(&format!("common_pid == {own} && pid == 7"))
        .tracepoint("syscalls:sys_enter_getuid");
    // getppid has no such field: a filter of a pattern must hold for all.
    let error = options.open().unwrap_err();
    assert_error!(error, InvalidInput, "cannot filter by");
    assert!(error.event().is_some_and(|event| event.contains("getp")), "{error}");
    let options = Rings::options()
        .tracepoint("syscalls:sys_enter_getsid")
        .filter(&format!("common_pid == {own} && pid == 7"))
        .tracepoint("syscalls:sys_enter_getpgid")
        .filter(&format!("common_pid == {own}"));
    let Some(rings) = kernel("trace", options.open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let mut expected = Vec::new();
    for n in 0..20u64 {
        let pid = n % 9;
        nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(pid as i32))).ok();
        if pid == 7 {
            expected.push((0, 7));
        }
        nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(n as i32))).ok();
        expected.push((1, n));
    }
    let mut seen = Vec::new();
    reading::all(&mut reader, |event| {
        let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
        // Behind the common fields and the number of the call.
        seen.push((record.source().unwrap(), record.payload().unwrap().u64(16).unwrap()));
    });
    assert_eq!(seen, expected);
}

#[test]
fn the_kernel_says_what_is_wrong_with_a_filter() {
    apart!();
    let Some(tracefs) = tracing() else { return };
    let switch = || Rings::options().tracepoint("sched:sched_switch");
    for (filter, says) in [("no_such_field == 1", "Field not found"), ("next_pid ==", "^"), ("next_pid ~ 1", "^")] {
        let error = switch().filter(filter).open().unwrap_err();
        assert_error!(error, InvalidInput, format!("cannot filter by \"{filter}\""));
        let said = error.to_string();
        assert!(said.contains(says) && said.contains("sched_switch"), "{said}");
    }
    // The trace instance that gave the message is gone, and the filter in tracefs is unchanged.
    let left = std::fs::read_dir(tracefs.join("instances")).unwrap().flatten();
    let ours = format!("perfweave-{}-", std::process::id());
    assert!(!left.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with(&ours)));
    let filter = std::fs::read_to_string(tracefs.join("events/sched/sched_switch/filter")).unwrap();
    assert!(!filter.contains("no_such_field"), "{filter}");
    // Neither a zero byte nor an event without fields.
    assert_error!(switch().filter("a\0b").open().unwrap_err(), InvalidInput, "cannot filter by");
    let error = Rings::options().event_name("cpu-clock").filter("pid == 1").open().unwrap_err();
    assert_error!(error, InvalidInput, "cpu-clock: cannot filter by");
    let error = Rings::options().filter("x").tracepoint("sched:sched_switch").open().unwrap_err();
    assert_error!(error, InvalidInput, "filter applies to the event before it");
}

/// Untouched memory of this size, in pages of the smallest kind. It is never freed.
fn small_pages(bytes: usize) -> &'static mut [u8] {
    use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};
    let (access, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE);
    // SAFETY: new memory, where the kernel likes it.
    let memory = unsafe { mmap_anonymous(None, bytes.try_into().unwrap(), access, flags) }.unwrap();
    // SAFETY: our own mapping, not used yet.
    unsafe { madvise(memory, bytes, MmapAdvise::MADV_NOHUGEPAGE) }.unwrap();
    // SAFETY: mapped for good, of this length, zeroed, with no other reference.
    unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().cast(), bytes) }
}

/// The kernel's message also comes for a tracepoint given by number; the hint for a probe names its fields.
#[test]
fn the_kernel_is_asked_about_a_tracepoint_that_was_given_by_number() {
    let Some(tracefs) = tracing() else { return };
    let id = std::fs::read_to_string(tracefs.join("events/sched/sched_switch/id")).unwrap().trim().parse().unwrap();
    let said = refused(Rings::options().tracepoint_id(id).filter("nonsense == 1"));
    assert!(said.contains("Field not found"), "{said}");
    let (_, file, offset) = perfweave_support::probe::place().unwrap();
    let said = refused(Rings::options().uprobe(file, offset).filter("nonsense == 1"));
    assert!(said.contains("__probe_ip"), "{said}");
}

/// One tracepoint is forbidden for every program, because it would trigger itself. Opening it by name is an error that
/// names it, and a pattern leaves it out.
#[test]
fn a_tracepoint_that_the_kernel_forbids_is_named_and_left_out_of_patterns() {
    let Some(tracefs) = tracing() else { return };
    const FORBIDDEN: &str = "irq_vectors:irq_work_exit";
    if !tracefs.join("events").join(FORBIDDEN.replace(':', "/")).exists() {
        return perfweave_support::lacks("interrupts by irq_work, which x86-64 has");
    }
    // A pattern that matches nothing else gives the same error as the name.
    for options in [
        Rings::options().tracepoint(FORBIDDEN),
        Rings::options().tracepoint("sched:sched_switch").tracepoint("irq_vectors:irq_work_exi?"),
        Rings::options().tracepoint_id(
            std::fs::read_to_string(tracefs.join("events/irq_vectors/irq_work_exit/id"))
                .unwrap()
                .trim()
                .parse()
                .unwrap(),
        ),
    ] {
        let error = options.open().unwrap_err();
        let said = error.to_string();
        assert_error!(error, Permission, "cannot open ", "lets nobody sample");
        assert!(!said.contains("CAP_PERFMON"), "{said}");
    }
    let options = Rings::options().tracepoint("sched:sched_switch").tracepoint("irq_vectors:*");
    let rings = options.tracepoint("sched:sched_waking").open().unwrap();
    let skipped: Vec<String> = rings.skipped().iter().map(Error::to_string).collect();
    assert!(skipped.len() == 1 && skipped[0].contains(FORBIDDEN), "{skipped:?}");
    let traced = names(&rings);
    assert!(traced.len() > 10 && !traced.contains(&FORBIDDEN) && traced.contains(&"irq_vectors:irq_work_entry"));
    assert_eq!((traced[0], traced[traced.len() - 1]), ("sched:sched_switch", "sched:sched_waking"));
    // Records find their source, also after a tracepoint that was left out.
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let ids: Vec<_> = reader.rings().sources().iter().map(|source| source.tracepoint_id().unwrap()).collect();
    std::thread::spawn(|| {}).join().unwrap();
    let mut waking = 0;
    reading::all(&mut reader, |event| {
        let Some(record) = event.record() else { return };
        let source = record.source().unwrap();
        assert_eq!(u64::from(record.payload().unwrap().u16(0).unwrap()), ids[source]);
        waking += usize::from(source == ids.len() - 1);
    });
    assert!(waking > 0);
    assert!(Rings::options().tracepoint("sched:*").open().unwrap().skipped().is_empty());
    let recorder = Recorder::open(Rings::options().tracepoint("irq_vectors:*"), &Fence::Auto).unwrap();
    assert_eq!(recorder.rings().skipped().len(), 1);
}

/// Times that cannot be read in an NMI are refused for events that can come in one.
#[test]
fn a_clock_that_an_event_cannot_have_is_named() {
    let Some(_) = tracing() else { return };
    let fast = [Clock::Monotonic, Clock::MonotonicRaw, Clock::Perf];
    let slow = [(Clock::Boottime, "CLOCK_BOOTTIME")];
    for clock in fast {
        drop(Rings::options().tracepoint("sched:sched_switch").clock(clock).open().unwrap());
    }
    let (_, file, offset) = perfweave_support::probe::place().unwrap();
    for (clock, name) in slow {
        drop(Rings::options().event_name("cpu-clock").clock(clock).open().unwrap());
        for options in [Rings::options().tracepoint("sched:sched_switch"), Rings::options().uprobe(&file, offset)] {
            let said = refused(options.clock(clock));
            for named in [name, "CLOCK_MONOTONIC", "NMI"] {
                assert!(said.contains(named), "{said}: no {named}");
            }
            assert!(!said.contains("there may be no tracepoint") && !said.contains("must be a file"), "{said}");
        }
        let said = refused(Rings::options().tracepoint("sched:sched_switch").clock(clock).tid(threads::own() as u32));
        assert!(said.contains(name), "{said}");
    }
}

/// Two settings that exclude each other are an error.
#[test]
fn settings_that_replace_each_other_are_refused() {
    let Some(_) = tracing() else { return };
    let switch = || Rings::options().tracepoint("sched:sched_switch");
    for (options, settings) in [
        (switch().filter("next_pid != 0").filter("prev_pid != 0"), ["filter", "filter"]),
        (switch().period(2).frequency(3), ["period", "frequency"]),
        (switch().frequency(3).frequency(4), ["frequency", "frequency"]),
        (Rings::options().event_name("cs").user_only().kernel_only(), ["user_only", "kernel_only"]),
        (switch().pid(1).tid(2), ["pid", "tid"]),
        (switch().cgroup("/sys/fs/cgroup").pid(1), ["cgroup", "pid"]),
        (switch().tid(1).tid(2), ["tid", "tid"]),
    ] {
        let error = options.open().unwrap_err();
        let said = error.to_string();
        let [before, setting] = settings;
        assert!(
            said.starts_with(&format!("{before} and {setting} are set, and one would replace the other")),
            "{said}"
        );
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    let said = refused(switch().filter("next_pid != 0").filter("prev_pid != 0"));
    assert!(said.contains("&&"), "{said}");
    // Each event has its own.
    drop(switch().filter("next_pid != 0").tracepoint("sched:sched_waking").filter("pid != 0").open().unwrap());
    drop(switch().kernel_only().kernel_only().open().unwrap());
}

/// Events that would never write a record are refused.
#[test]
fn what_is_silent_is_refused() {
    let Some(_) = tracing() else { return };
    let error = Rings::options().tracepoint("sched:sched_switch").user_only().open().unwrap_err();
    assert_error!(error, InvalidInput, "tracepoint sched:sched_switch is in the kernel");
    // Tracepoints of system calls have the registers of user space.
    let options = Rings::options().tracepoint("syscalls:sys_enter_getppid").user_only().tid(threads::own() as u32);
    let Some(rings) = kernel("trace", options.open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    load::getppid();
    let mut seen = 0;
    reading::all(&mut reader, |_| seen += 1);
    assert_eq!(seen, 1);
    // PERF_COUNT_SW_DUMMY, and BPF output that no program can reach.
    for name in ["software/config=9/", "software/config=10/"] {
        let error = Rings::options().event_name(name).open().unwrap_err();
        assert_error!(error, InvalidInput, "would never write anything");
    }
    let error = Rings::options().event_name("uprobe/config1=4096/").open().unwrap_err();
    assert_error!(error, InvalidInput, "its attribute points to a name");
}

/// A whole call chain, or half of it: each event by itself.
#[test]
fn halves_of_call_chains_are_left_out() {
    let options = || Rings::options().event_name("cpu-clock").sample(bindings::PERF_SAMPLE_CALLCHAIN);
    let mut own = foreign::software(bindings::PERF_COUNT_SW_CPU_CLOCK, 1 << 20);
    own.set_exclude_callchain_kernel(1);
    for (options, expected) in [
        (options(), &[[0, 0]][..]),
        (options().exclude_callchain_kernel(), &[[1, 0]]),
        (options().exclude_callchain_user(), &[[0, 1]]),
        (options().event(&own), &[[0, 0], [1, 0]]),
        (options().event(&own).exclude_callchain_user(), &[[0, 0], [1, 1]]),
    ] {
        let Some(rings) = kernel("sample", options.open()) else { return };
        let attrs = rings.sources().iter().map(|source| source.attr());
        let left_out = attrs.map(|attr| [attr.exclude_callchain_kernel(), attr.exclude_callchain_user()]);
        assert_eq!(left_out.collect::<Vec<_>>(), expected);
    }
}

/// Each access is a page fault, which is sampled each time or once in ten.
#[test]
fn events_are_sampled_by_period() {
    let pages = 200;
    for (period, samples) in [(1, pages), (10, pages / 10)] {
        let options = Rings::options()
            .event_name("page-faults")
            .period(period)
            .user_only()
            .sample(bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_ADDR);
        let Some(rings) = kernel("sample page faults", options.tid(threads::own() as u32).open()) else { return };
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        let size = foreign::page_size();
        let memory = small_pages(pages * size);
        let begin = memory.as_ptr() as u64;
        let range = begin..begin + memory.len() as u64;
        memory.chunks_mut(size).for_each(|page| page[0] = 1);
        let mut inside = 0;
        reading::all(&mut reader, |event| {
            let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
            assert_eq!(record.pid_tid().unwrap().1, threads::own() as u32);
            inside += usize::from(range.contains(&record.addr().unwrap()));
        });
        // A period may have begun before these accesses, or end after them.
        let most = samples + usize::from(period > 1);
        assert!((samples - usize::from(period > 1)..=most).contains(&inside), "{inside} of {samples}");
    }
}

/// A clock samples the running program, with instruction pointer and call chain.
#[test]
fn a_clock_samples_call_chains() {
    let samples = bindings::PERF_SAMPLE_IP
        | bindings::PERF_SAMPLE_TID
        | bindings::PERF_SAMPLE_PERIOD
        | bindings::PERF_SAMPLE_CALLCHAIN;
    let options = Rings::options().event_name("cpu-clock").sample(samples).tid(threads::own() as u32);
    let Some(rings) = kernel("sample a clock", options.open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let mut sampled = 0;
    threads::until("samples are taken", || {
        (0..200_000u64).for_each(|n| assert!(std::hint::black_box(n) < u64::MAX));
        reading::all(&mut reader, |event| {
            let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
            assert!(record.ip().unwrap() != 0 && record.period().unwrap() > 0);
            assert!(record.callchain().unwrap().count() > 1);
            assert!(record.payload().is_none(), "a clock writes no data");
            sampled += 1;
        });
        sampled > 5
    });
}

/// Hardware events open, or the error says that the machine has none.
#[test]
fn hardware_is_there_or_said_not_to_be() {
    for name in ["cycles", "instructions", "LLC-load-misses"] {
        match Rings::options().event_name(name).open() {
            Ok(rings) => assert_eq!(rings.sources()[0].name(), name),
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Permission) => {
                let said = error.to_string();
                assert!(said.starts_with("cannot open "), "{said}");
                assert!(said.contains(name) && (said.contains("hardware") || said.contains("CAP_")), "{said}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    // This one counts and cannot sample.
    if std::path::Path::new("/sys/bus/event_source/devices/msr/events/tsc").exists() {
        let said = refused(Rings::options().event_name("msr/tsc/"));
        assert!(said.contains("msr") && (said.contains("cannot sample") || said.contains("CAP_")), "{said}");
    }
}

/// Records about a process come in the same stream and order as samples.
#[test]
fn records_beside_samples_come_in_the_same_order() {
    apart!();
    let Some(_) = tracing() else { return };
    let kinds = [
        bindings::PERF_RECORD_MMAP2,
        bindings::PERF_RECORD_COMM,
        bindings::PERF_RECORD_FORK,
        bindings::PERF_RECORD_EXIT,
        bindings::PERF_RECORD_SWITCH,
        bindings::PERF_RECORD_NAMESPACES,
        bindings::PERF_RECORD_CGROUP,
    ];
    let options = Rings::options().records(kinds).tracepoint("sched:sched_process_exec");
    let options = options.sample(bindings::PERF_SAMPLE_TID).pid(std::process::id());
    let Some(rings) = kernel("trace a process", options.open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let mut seen = Vec::new();
    reading::all(&mut reader, |event| {
        let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
        assert_eq!(record.source(), Some(usize::from(record.kind() == bindings::PERF_RECORD_SAMPLE)));
        if record.pid_tid().is_some_and(|(pid, _)| pid == child.id()) {
            seen.push(record.kind());
        }
    });
    let at = |kind: u32| seen.iter().position(|other| *other == kind).unwrap_or_else(|| panic!("{kind:?}: {seen:?}"));
    assert!(
        at(bindings::PERF_RECORD_COMM) < at(bindings::PERF_RECORD_EXIT)
            && at(bindings::PERF_RECORD_SAMPLE) < at(bindings::PERF_RECORD_EXIT),
        "{seen:?}"
    );
    assert!(
        at(bindings::PERF_RECORD_MMAP2) < at(bindings::PERF_RECORD_EXIT)
            && seen.contains(&bindings::PERF_RECORD_SWITCH),
        "{seen:?}"
    );
}

#[test]
fn each_kind_of_record_is_asked_for_by_itself() {
    for (name, kind) in [
        ("MMAP", bindings::PERF_RECORD_MMAP),
        ("MMAP2", bindings::PERF_RECORD_MMAP2),
        ("COMM", bindings::PERF_RECORD_COMM),
        ("FORK", bindings::PERF_RECORD_FORK),
        ("EXIT", bindings::PERF_RECORD_EXIT),
        ("SWITCH", bindings::PERF_RECORD_SWITCH),
        ("NAMESPACES", bindings::PERF_RECORD_NAMESPACES),
        ("CGROUP", bindings::PERF_RECORD_CGROUP),
        ("KSYMBOL", bindings::PERF_RECORD_KSYMBOL),
        ("BPF_EVENT", bindings::PERF_RECORD_BPF_EVENT),
        ("TEXT_POKE", bindings::PERF_RECORD_TEXT_POKE),
    ] {
        let Some(rings) = kernel(&format!("have records {name}"), Rings::options().records([kind]).open()) else {
            continue;
        };
        assert_eq!(rings.sources()[0].name(), format!("records {name}"));
    }
    // Mappings whose files are named by their build ids, by an attribute.
    let mut attr = bindings::perf_event_attr {
        type_: bindings::PERF_TYPE_SOFTWARE,
        config: bindings::PERF_COUNT_SW_DUMMY.into(),
        ..Default::default()
    };
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_build_id(1);
    let Some(_) = kernel("have build ids", Rings::options().event(&attr).open()) else { return };
    for kinds in [&[bindings::PERF_RECORD_SAMPLE][..], &[bindings::PERF_RECORD_COMM, bindings::PERF_RECORD_LOST], &[]] {
        let error = Rings::options().records(kinds.iter().copied()).open().unwrap_err();
        assert_error!(error, InvalidInput, "are no records that can be asked for");
    }
}

/// Every field that a sample can have besides its payload: the kernel accepts it, or the error names the event.
#[test]
fn all_that_a_sample_can_say_is_asked_for() {
    // The stack's pointer and the instruction's, on x86-64; elsewhere registers that exist as well.
    let registers = 1 << 7 | 1 << 8;
    let clock = || Rings::options().event_name("cpu-clock").frequency(1000);
    let bits = [
        bindings::PERF_SAMPLE_IP,
        bindings::PERF_SAMPLE_TID,
        bindings::PERF_SAMPLE_ADDR,
        bindings::PERF_SAMPLE_CPU,
        bindings::PERF_SAMPLE_PERIOD,
        bindings::PERF_SAMPLE_CALLCHAIN,
        bindings::PERF_SAMPLE_WEIGHT,
        bindings::PERF_SAMPLE_DATA_SRC,
        bindings::PERF_SAMPLE_TRANSACTION,
        bindings::PERF_SAMPLE_PHYS_ADDR,
        bindings::PERF_SAMPLE_CGROUP,
        bindings::PERF_SAMPLE_DATA_PAGE_SIZE,
        bindings::PERF_SAMPLE_CODE_PAGE_SIZE,
    ];
    let with_values = [
        (bindings::PERF_SAMPLE_REGS_USER, clock().sample_registers(registers, 0)),
        (bindings::PERF_SAMPLE_REGS_INTR, clock().sample_registers(0, registers)),
        (bindings::PERF_SAMPLE_STACK_USER, clock().sample_stack(256)),
        (bindings::PERF_SAMPLE_CALLCHAIN, clock().sample(bindings::PERF_SAMPLE_CALLCHAIN).exclude_callchain_kernel()),
        (bindings::PERF_SAMPLE_CALLCHAIN, clock().sample(bindings::PERF_SAMPLE_CALLCHAIN).exclude_callchain_user()),
    ];
    for (bit, options) in bits.map(|bit| (bit, clock().sample(bit))).into_iter().chain(with_values) {
        let Some(rings) = kernel(&format!("sample {bit:#x}"), options.open()) else { continue };
        assert!(rings.sources()[0].attr().sample_type & u64::from(bit) != 0);
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        threads::until("a sample is taken", || {
            let event = reader.next_timeout(Duration::from_millis(10)).unwrap();
            let Some(event) = event else { return false };
            let record = event.event().record().expect("nothing but samples");
            assert_eq!(record.kind(), bindings::PERF_RECORD_SAMPLE);
            assert!(!record.field(bit).expect("it is there").is_empty());
            true
        });
    }
    let said = refused(Rings::options().event_name("cpu-clock").frequency(u64::MAX));
    assert!(said.contains("cpu-clock"), "{said}");
}
