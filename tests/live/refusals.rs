//! Refusals of the live kernel: each error has the numbers and the hint. `leaks.rs` has the limit of file descriptors,
//! because that applies to the whole process.

use perf_event_open_sys::bindings;
use perfweave::{Error, ErrorKind, Fence, Hold, Order, Reader, Recorder, RingOptions, Rings};
use perfweave_events::EventOptions;
use perfweave_support::bpf::Map;
use perfweave_support::{apart, assert_error, echo, foreign, kernel, load, needs, number_behind, privilege, threads};
use std::io;
use std::os::fd::AsFd;

fn map() -> Option<Map> {
    kernel("make a perf event array", Map::perf_event_array(load::slots()))
}

/// An event that needs no map.
fn dummy() -> bindings::perf_event_attr {
    let mut attr = foreign::software(bindings::PERF_COUNT_SW_DUMMY, 0);
    attr.set_comm(1);
    attr
}

fn setting(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap().trim().to_owned()
}

/// The result of opening on a thread for which perf_event_open(2) is refused.
fn refused(errno: i32) -> Option<Error> {
    let map = map()?;
    let refused = std::thread::spawn(move || {
        privilege::refuse(libc::SYS_perf_event_open, errno).expect("a seccomp filter");
        Rings::options().bpf_output(&map).pages(1).open().unwrap_err()
    });
    Some(refused.join().unwrap())
}

#[test]
fn every_refusal_of_an_event_names_its_cure() {
    let cpus = load::online().len();
    let needed = format!("{cpus} file descriptors");
    for (errno, kind, hints) in [
        (libc::EACCES, ErrorKind::Permission, vec!["seccomp", "container"]),
        (libc::EPERM, ErrorKind::Permission, vec!["seccomp", "container"]),
        (libc::EMFILE, ErrorKind::Limit, vec!["RLIMIT_NOFILE", &needed]),
        (libc::ENFILE, ErrorKind::Limit, vec!["fs.file-max"]),
        (libc::ENOSYS, ErrorKind::Unsupported, vec!["seccomp", "container"]),
        (libc::E2BIG, ErrorKind::Unsupported, vec!["too old"]),
        (libc::EBUSY, ErrorKind::Limit, vec![]),
        (libc::EEXIST, ErrorKind::System, vec![]),
        (libc::ENOENT, ErrorKind::Unsupported, vec!["no such event"]),
        (libc::EINVAL, ErrorKind::Unsupported, vec!["sample_type"]),
    ] {
        let Some(error) = refused(errno) else { return };
        let said = error.to_string();
        assert!(said.starts_with(&format!("cannot open BPF output on CPU {}: ", load::online()[0])), "{said}");
        assert_eq!(
            (error.event(), error.kind(), error.raw_os_error()),
            (Some("BPF output"), kind, Some(errno)),
            "{said}"
        );
        for hint in hints {
            assert!(said.contains(hint), "{said}: no {hint}");
        }
        // This thread has all capabilities.
        assert!(!said.contains("CAP_"), "{said}");
    }
}

/// A filter and a missing capability both refuse the call: the error names both.
#[test]
fn a_filter_and_a_missing_capability_are_both_named() {
    let Some(_) = map() else { return };
    let refused = std::thread::spawn(|| {
        privilege::drop_all().expect("capabilities can be dropped");
        privilege::refuse(libc::SYS_perf_event_open, libc::EPERM).expect("a seccomp filter");
        Rings::options().event_name("cpu-clock").pages(1).open().unwrap_err().to_string()
    });
    let said = refused.join().unwrap();
    for hint in ["seccomp", "container", "CAP_PERFMON", "perf_event_paranoid", &setting("perf_event_paranoid")] {
        assert!(said.contains(hint), "{said}: no {hint}");
    }
}

/// The same for bpf(2).
#[test]
fn a_filter_that_refuses_bpf_is_named() {
    let Some((map, _)) = echo() else { return };
    let refused = std::thread::spawn(move || {
        privilege::refuse(libc::SYS_bpf, libc::EPERM).expect("a seccomp filter");
        [Rings::options().bpf_output(&map), Rings::options().bpf_output_pinned("/sys/fs/bpf/none")]
            .map(|options| options.pages(1).open().unwrap_err().to_string())
    });
    for said in refused.join().unwrap() {
        assert!(said.contains("seccomp") && said.contains("container") && !said.contains("CAP_"), "{said}");
    }
}

/// A frequency that the kernel refuses is named with the setting that it must not exceed.
#[test]
fn a_frequency_that_is_too_high_names_the_setting() {
    let most = setting("perf_event_max_sample_rate");
    let clock = || Rings::options().event_name("cpu-clock").pages(1);
    let Some(_) = kernel("sample a clock", clock().open()) else { return };
    for hertz in [100_000_000, u64::MAX] {
        let said = clock().frequency(hertz).open().unwrap_err().to_string();
        let named = format!("kernel.perf_event_max_sample_rate, which is {most}");
        assert!(said.contains(&named) && said.contains(&hertz.to_string()), "{said}: no {named}");
        assert!(!said.contains("sample_type"), "{said}");
    }
    let said = clock().period(1 << 63).open().unwrap_err().to_string();
    assert!(said.contains("less than 2^63") && !said.contains("sample_type"), "{said}");
}

/// An event whose inherited copies write into the rings of other CPUs when their threads end is refused, whatever is
/// traced.
#[test]
fn an_event_that_writes_into_rings_of_other_cpus_is_refused() {
    let mut attr = foreign::software(bindings::PERF_COUNT_SW_CPU_CLOCK, 1 << 30);
    let own = std::process::id();
    let Some(_) = kernel("sample a clock", Rings::options().event(&attr).pid(own).pages(1).open()) else { return };
    attr.set_inherit_stat(1);
    attr.set_inherit(1);
    let options = || Rings::options().event(&attr).pages(1);
    for options in [options(), options().pid(own), options().tid(threads::own() as u32)] {
        let error = options.open().unwrap_err();
        assert_error!(error, Unsupported, "inherit_stat", "PERF_RECORD_READ", "ring of another CPU");
        assert_eq!(error.event().map(|event| event.starts_with("event 1:")), Some(true));
    }
}

/// The crate knows the allowed sizes of a stack in a sample, and does not ask the kernel.
#[test]
fn stacks_of_no_possible_size_are_refused() {
    let clock = || Rings::options().event_name("cpu-clock").pages(1);
    let Some(_) = kernel("sample a clock", clock().open()) else { return };
    let sampled = |bytes| clock().sample_stack(bytes).open();
    let given = |bytes| {
        let mut attr = foreign::software(bindings::PERF_COUNT_SW_CPU_CLOCK, 1 << 30);
        attr.sample_type = bindings::PERF_SAMPLE_STACK_USER.into();
        attr.sample_stack_user = bytes;
        Rings::options().event(&attr).pages(1).open()
    };
    for open in [&sampled as &dyn Fn(u32) -> Result<Rings, Error>, &given] {
        for bytes in [7, 65_535, 65_536, u32::MAX] {
            let error = open(bytes).unwrap_err();
            let said = error.to_string();
            assert_error!(error, InvalidInput, format!("no sample can have {bytes} bytes of the user's stack"));
            assert!(said.contains("multiple of 8") && said.contains("65528"), "{said}");
        }
        for bytes in [8, 65_528] {
            open(bytes).unwrap();
        }
    }
}

/// Every CPU gives ENODEV, the error of an offline CPU. `tests/hotplug` takes a real CPU offline.
#[test]
fn no_cpu_online_is_an_error_that_names_both() {
    let Some(error) = refused(libc::ENODEV) else { return };
    let online = load::online();
    assert_error!(error, NotFound, format!("none of the CPUs {online:?} is online; these are: {online:?}"));
}

/// A CPU that this machine cannot have gives the same error for every event.
#[test]
fn a_cpu_that_cannot_be_is_an_error_that_says_so() {
    let Some(map) = kernel("make a perf event array", Map::perf_event_array(100_001)) else { return };
    let options: [fn(&Map) -> RingOptions; 2] =
        [|map| Rings::options().bpf_output(map), |_| Rings::options().event(&dummy())];
    for options in options {
        let Some(_) = kernel("open an event", options(&map).pages(1).open()) else { return };
        for cpus in [vec![100_000], vec![0, 100_000]] {
            let error = options(&map).pages(1).cpus(cpus).open().unwrap_err();
            assert_error!(error, NotFound, "no CPU 100000: this machine can have CPUs up to");
        }
    }
}

/// Bits of `sample_type` that are too new for the kernel, or for this crate, are named.
#[test]
fn sample_types_that_are_not_known_are_named() {
    for (bits, named) in [(1 << 40, "0x10000000000"), (1 << 40 | 1 << 63, "0x8000010000000000")] {
        let mut attr = dummy();
        attr.sample_type = bits;
        let Some(_) = kernel("open a dummy event", Rings::options().event(&dummy()).pages(1).open()) else { return };
        let error = Rings::options().event(&attr).open().unwrap_err();
        assert_error!(error, Unsupported, "cannot open ", named);
    }
    // A known field, with an impossible mask of registers.
    let mut attr = dummy();
    attr.sample_type = bindings::PERF_SAMPLE_REGS_USER.into();
    attr.sample_regs_user = 0;
    let said = Rings::options().event(&attr).open().unwrap_err().to_string();
    assert!(said.contains("masks"), "{said}");
}

/// More memory than may be locked: the error has the ring's size, the number of rings, and both limits. This runs on a
/// thread that may open events, but not lock without limit.
#[test]
fn too_much_memory_names_both_limits() {
    apart!();
    let paranoid = privilege::perf_event_paranoid();
    let Some(()) = needs("kernel.perf_event_paranoid of 0 or more", paranoid >= 0) else { return };
    let Some(map) = map() else { return };
    let error = std::thread::spawn(move || {
        // Above 2 the kernels of some distributions need another capability.
        let more = setting("perf_event_paranoid")
            .parse()
            .is_ok_and(|level: i32| level > 2)
            .then_some(privilege::CAP_SYS_ADMIN);
        let capabilities: Vec<u32> = [privilege::CAP_PERFMON, privilege::CAP_BPF].into_iter().chain(more).collect();
        privilege::keep(&capabilities).expect("capabilities can be dropped");
        // The default size is within the limits.
        drop(Rings::options().bpf_output(&map).pages(1).open().unwrap());
        Rings::options().bpf_output(&map).bytes(1 << 30).open().unwrap_err()
    });
    let error = error.join().unwrap();
    let said = error.to_string();
    assert_error!(error, Limit, format!("cannot map a ring of {} bytes", (1 << 30) + foreign::page_size()));
    assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{said}");
    let rings = format!("{} rings", load::online().len());
    for named in [&rings, "perf_event_mlock_kb", &setting("perf_event_mlock_kb"), "RLIMIT_MEMLOCK", "CAP_IPC_LOCK"] {
        assert!(said.contains(named), "{said}: no {named}");
    }
}

/// A map that may be neither queried nor written.
#[test]
fn a_refused_map_is_an_error_and_nothing_stays_set() {
    let Some((map, echo)) = echo() else { return };
    let duplicate = map.as_fd().try_clone_to_owned().unwrap();
    let error = std::thread::spawn(move || {
        privilege::refuse(libc::SYS_bpf, libc::EPERM).expect("a seccomp filter");
        Rings::options().bpf_output(&duplicate).open().unwrap_err()
    });
    let error = error.join().unwrap();
    assert_error!(error, Permission, "as a perf event array", "seccomp");
    assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
    assert_eq!(echo.run_with(0, &[1]).unwrap(), -libc::ENOENT);
}

/// The error names the refused call that waiting needs.
#[test]
fn what_waiting_needs_is_named_when_it_is_refused() {
    let Some(map) = map() else { return };
    let refuse = |call| {
        let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
        std::thread::spawn(move || {
            privilege::refuse(call, libc::ENOSYS).expect("a seccomp filter");
            Reader::new(rings, Order::new()).unwrap_err().to_string()
        })
        .join()
        .unwrap()
    };
    for (call, named) in [(libc::SYS_epoll_create1, "epoll"), (libc::SYS_eventfd2, "eventfd")] {
        let said = refuse(call);
        assert!(said.contains(named), "{said}");
    }
}

/// An event that the kernel accepts but that can never write a record is refused. Other events stay possible.
#[test]
fn an_event_that_would_write_nothing_is_refused() {
    let Some(rings) = kernel("open a dummy event", Rings::options().event(&dummy()).pages(1).open()) else { return };
    drop(rings);
    let clock = bindings::PERF_COUNT_SW_CPU_CLOCK;
    let dummy = bindings::PERF_COUNT_SW_DUMMY;
    let mut adds_to_mmap = foreign::software(clock, 0);
    adds_to_mmap.set_mmap2(1);
    adds_to_mmap.set_comm_exec(1);
    for attr in [
        foreign::software(clock, 0),
        foreign::software(dummy, 0),
        // It counts nothing, so its period never ends.
        foreign::software(dummy, 1),
        adds_to_mmap,
    ] {
        let named = format!("event 1:{}", attr.config);
        let error = Rings::options().event(&attr).pages(1).open().unwrap_err();
        assert_error!(error, InvalidInput, format!("{named} would never write anything"));
        assert!(error.to_string().contains("sample_period"), "{error}");
    }
    let mut frequency = foreign::software(clock, 0);
    frequency.set_freq(1);
    frequency.sample_freq = 1;
    let output = foreign::software(bindings::PERF_COUNT_SW_BPF_OUTPUT, 0);
    let sets: [fn(&mut bindings::perf_event_attr); 10] = [
        |attr| attr.set_mmap(1),
        |attr| attr.set_mmap_data(1),
        |attr| attr.set_comm(1),
        |attr| attr.set_task(1),
        |attr| attr.set_context_switch(1),
        |attr| attr.set_namespaces(1),
        |attr| attr.set_cgroup(1),
        |attr| attr.set_ksymbol(1),
        |attr| attr.set_bpf_event(1),
        |attr| attr.set_text_poke(1),
    ];
    let tells = sets.map(|set| {
        let mut attr = foreign::software(dummy, 0);
        set(&mut attr);
        attr
    });
    for attr in [frequency, output].into_iter().chain(tells) {
        drop(Rings::options().event(&attr).pages(1).open().unwrap());
    }
}

/// Two CPUs' events for one slot, or one map for two events: only one of the two would ever be read.
#[test]
fn a_slot_for_two_events_is_refused() {
    let Some((map, program)) = echo() else { return };
    let cpus = load::online();
    if let [first, second, ..] = cpus[..] {
        let error = Rings::options().bpf_output(&map).slots(|_| 0).open().unwrap_err();
        assert_error!(error, InvalidInput, format!("CPUs {first} and {second} would share slot 0"));
        // Without slots, or with one CPU, nothing is shared.
        drop(Rings::options().event(&dummy()).slots(|_| 0).open().unwrap());
    }
    drop(Rings::options().bpf_output(&map).slots(|_| 0).cpus([cpus[0]]).open().unwrap());

    // By any descriptor of the map; `peers/libbpf.rs` has the case of a path.
    let duplicate = map.as_fd().try_clone_to_owned().unwrap();
    let other = Map::perf_event_array(load::slots()).unwrap();
    for options in [
        Rings::options().bpf_output(&map).bpf_output(&map),
        Rings::options().bpf_output(&other).bpf_output(&map).event(&dummy()).bpf_output(&duplicate),
    ] {
        let error = options.pages(1).open().unwrap_err();
        let said = error.to_string();
        assert!(
            error.kind() == ErrorKind::InvalidInput && number_behind(&said, "are the same map, number ") > 0,
            "{said}"
        );
        assert!(said.contains("BPF output") && said.contains("name it once"), "{said}");
    }
    assert_eq!(program.run_with(cpus[0], &[1]).unwrap(), -libc::ENOENT, "nothing was set");
    // A different map of the same kind is allowed.
    let rings = Rings::options().bpf_output(&other).bpf_output(&duplicate).pages(1).open().unwrap();
    assert_eq!(program.run_with(cpus[0], &[1]).unwrap(), 0);
    drop(rings);
}

/// On live rings, except for `Forked` (`peers/nobody.rs`, `adversary/recorder.rs`) and for calls that do not fail.
#[test]
fn each_kind_of_error_is_given() {
    let Some((map, echo)) = echo() else { return };
    let options = || Rings::options().bpf_output(&map).pages(1);
    let of = |options: RingOptions| options.open().map(drop).unwrap_err();
    let custom = Fence::by(|| Err(io::Error::from_raw_os_error(libc::EIO)));
    let degraded = || {
        let order = Order::new().hold(Hold::Fence(custom.clone()));
        let mut reader = Reader::new(options().open().unwrap(), order).unwrap();
        echo.run_with(load::online()[0], &[1]).unwrap();
        reader.next().map(drop).unwrap_err()
    };
    let given = [
        (ErrorKind::Permission, refused(libc::EPERM).unwrap(), io::ErrorKind::PermissionDenied),
        (ErrorKind::NotFound, of(Rings::options().event_name("cpu-clokc")), io::ErrorKind::NotFound),
        (ErrorKind::InvalidInput, of(Rings::options()), io::ErrorKind::InvalidInput),
        (ErrorKind::Unsupported, refused(libc::EOPNOTSUPP).unwrap(), io::ErrorKind::Unsupported),
        (ErrorKind::Limit, refused(libc::ENFILE).unwrap(), io::ErrorKind::QuotaExceeded),
        (ErrorKind::Limit, refused(libc::EBUSY).unwrap(), io::ErrorKind::ResourceBusy),
        (ErrorKind::InvalidInput, of(options().slots(|cpu| cpu + (1 << 20))), io::ErrorKind::InvalidInput),
        (ErrorKind::NotFound, of(options().cpus([100_000])), io::ErrorKind::NotFound),
        (ErrorKind::Unsupported, Recorder::open(options(), &custom).map(drop).unwrap_err(), io::ErrorKind::Unsupported),
        (ErrorKind::Degraded, degraded(), io::Error::from_raw_os_error(libc::EIO).kind()),
        (ErrorKind::System, refused(libc::EEXIST).unwrap(), io::ErrorKind::AlreadyExists),
    ];
    for (kind, error, std) in given {
        let said = error.to_string();
        assert_eq!(error.kind(), kind, "{said}");
        let error = io::Error::from(error);
        assert_eq!((error.kind(), error.to_string()), (std, said));
    }
    // Of recordings.
    let read = perfweave_perf_data::open("/dev/null").map(drop).unwrap_err();
    let written = perfweave_perf_data::Writer::create("/", &options().open().unwrap()).map(drop).unwrap_err();
    for (kind, error, std) in [
        (ErrorKind::Recording, read, io::ErrorKind::InvalidData),
        (ErrorKind::Recording, written, io::ErrorKind::IsADirectory),
    ] {
        let said = error.to_string();
        assert_eq!(error.kind(), kind, "{said}");
        let error = io::Error::from(error);
        assert_eq!((error.kind(), error.to_string()), (std, said));
    }
}
