//! Nothing stays open or mapped after any number of openings, or after opening has failed at any step. This runs in its
//! own process: it counts descriptors of the process and sets its limits.

use crate::TIMES;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use perfweave::{Fence, Hold, Order, Reader, Recorder, RingOptions, Rings, sim};
use perfweave_support::bpf::{Map, Program};
use perfweave_support::{apart, assert_error, echo, foreign, load, privilege, threads};
use std::time::Duration;

/// How many file descriptors and mappings this process has.
fn open_things() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    // The allocator's mappings change; mappings of events are of anonymous inodes.
    (fds, maps.lines().filter(|line| line.contains("anon_inode")).count())
}

/// All mappings of the process.
fn all_mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// All in one test, because they share the process.
#[test]
fn nothing_stays_open() {
    apart!();
    let Some((map, echo)) = echo() else { return };
    opening_and_closing(&map, &echo);
    failing_halfway(&map);
    without_file_descriptors(&map);
    assert_eq!(echo.run_with(0, &[1]).unwrap(), -libc::ENOENT, "and no slot stays set");
}

fn options(map: &Map) -> RingOptions {
    Rings::options().bpf_output(map).pages(1)
}

/// Ten thousand times in the soak's package.
fn opening_and_closing(map: &Map, echo: &Program) {
    let once = |round: u64| {
        let hold = if round.is_multiple_of(2) { Hold::FENCE } else { Hold::None };
        let mut reader = Reader::new(options(map).open().unwrap(), Order::new().hold(hold)).unwrap();
        let handle = reader.handle();
        if round.is_multiple_of(100) {
            assert_eq!(echo.run_with(0, &[round]).unwrap(), 0);
            assert!(reader.next_timeout(threads::GUARD).unwrap().is_some());
        }
        if round.is_multiple_of(3) {
            handle.close();
        }
        drop(reader);
        if round.is_multiple_of(100) {
            drop(Recorder::open(options(map), &Fence::Auto).unwrap());
        }
    };
    // Warm-up: the allocator and the thread library keep some mappings.
    (0..100 * TIMES.min(5)).for_each(once);
    let (before, mappings) = (open_things(), all_mappings());
    (0..500 * TIMES).for_each(once);
    assert_eq!(open_things(), before);
    let now = all_mappings();
    assert!(now.abs_diff(mappings) < 20, "{mappings} mappings became {now}");
}

/// Errors of every kind, each after a descriptor was opened.
fn failing_halfway(map: &Map) {
    let last = *load::online().last().unwrap();
    let small = Map::perf_event_array(last.max(1)).unwrap();
    let mut unknown = foreign::software(perf_event_open_sys::bindings::PERF_COUNT_SW_DUMMY, 0);
    unknown.set_comm(1);
    unknown.sample_type = 1 << 40;
    let fail = || {
        if last > 0 {
            assert_error!(
                Rings::options().bpf_output(&small).open().unwrap_err(),
                InvalidInput,
                "the perf event array has"
            );
        }
        let refused = Rings::options().bpf_output(map).event(&unknown).open();
        assert_error!(refused.unwrap_err(), Unsupported, "cannot open BPF output on CPU");
        // Opened, and then refused by the reader.
        let lag = Order::new().hold(Hold::Lag(Duration::from_millis(1)));
        let rings = options(map).clock(perfweave::Clock::Perf).open().unwrap();
        assert_error!(Reader::new(rings, lag).unwrap_err(), InvalidInput, "cannot read the perf clock");
    };
    fail();
    let before = open_things();
    (0..10 * TIMES).for_each(|_| fail());
    assert_eq!(open_things(), before);

    // A fence that cannot be opened leaves neither its thread nor the thread's descriptors.
    std::thread::spawn(|| {
        privilege::refuse(libc::SYS_membarrier, libc::EINVAL).expect("a seccomp filter");
        let before = open_things();
        for _ in 0..50 * TIMES {
            let order = Order::new().hold(Hold::Fence(Fence::Membarrier));
            let refused = Reader::new(sim::Kernel::new(&[0]).rings(), order);
            assert_error!(refused.unwrap_err(), Unsupported, "no fence: ");
            assert_eq!(open_things(), before);
        }
    })
    .join()
    .unwrap();

    // The thread has no privilege to lock memory. The ring of the first CPU can be mapped and that of the last cannot.
    let before = open_things();
    let duplicate = std::os::fd::AsFd::as_fd(map).try_clone_to_owned().unwrap();
    let failed = std::thread::spawn(move || {
        privilege::keep(&[privilege::CAP_PERFMON, privilege::CAP_BPF]).expect("capabilities can be dropped");
        let errors = [13u32, 14, 15, 16, 17, 18, 20, 22, 24, 26]
            .map(|bits| Rings::options().bpf_output(&duplicate).bytes(1 << bits).open().err());
        drop(duplicate);
        errors.into_iter().flatten().collect::<Vec<_>>()
    })
    .join()
    .unwrap();
    for error in &failed {
        assert_error!(error, Limit, "cannot map a ring");
        assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
    }
    assert!(!failed.is_empty(), "64 MiB for each CPU exceed the limit of locked memory");
    assert_eq!(open_things(), before);
}

/// With any number of free file descriptors, opening succeeds, or it names the limit and leaves nothing open.
fn without_file_descriptors(map: &Map) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let before = open_things();
    let highest = std::fs::read_dir("/proc/self/fd").unwrap();
    let highest = highest.map(|fd| fd.unwrap().file_name().to_str().unwrap().parse::<u64>().unwrap()).max().unwrap();
    let (mut refused, mut done) = (0, 0);
    // The limit applies to descriptor numbers, and any of them may be free.
    for limit in (4..highest + 40).flat_map(|limit| vec![limit; TIMES.min(10) as usize]) {
        setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
        let read = options(map).open().and_then(|rings| Reader::new(rings, Order::new()));
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        match read {
            Ok(reader) => {
                assert_eq!(reader.rings().cpus().len(), load::online().len());
                done += 1;
            }
            Err(error) => {
                assert!(error.to_string().contains("os error 24"), "{error}");
                if error.to_string().starts_with("cannot open ") {
                    refused += 1;
                    let said = error.to_string();
                    let cpus = load::online().len();
                    assert!(said.contains("RLIMIT_NOFILE") && said.contains(&limit.to_string()), "{said}");
                    assert!(said.contains(&format!("{cpus} file descriptors")), "{said}");
                }
            }
        }
        assert_eq!(open_things(), before, "a limit of {limit}");
    }
    // If there is only one event, it uses the number that the list of CPUs had.
    assert!(done > 0 && (refused > 0 || load::online().len() == 1), "{refused} {done}");
}
