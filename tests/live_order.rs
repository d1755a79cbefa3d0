//! On live kernel rings: order, hold rules, fences.

use perfweave::{Class, Error, Fence, Full, Hold, Key, Order, Reader, Rings, What, sim};
use perfweave_support::bpf::{Map, Program};
use perfweave_support::{bpf, kernel, load, privilege};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The parts of the adversary: an array for the machine's CPUs and a machine-wide counter.
fn maps() -> Option<(Map, Map)> {
    let events = kernel("make a perf event array", Map::perf_event_array(load::slots()))?;
    Some((events, Map::array(8, 1).expect("an array")))
}

/// Every hold rule that proves, by the ways it can be had.
fn fences() -> [(Fence, &'static str); 4] {
    [
        (Fence::Auto, "membarrier"),
        (Fence::Membarrier, "membarrier"),
        (Fence::Map, "map"),
        (Fence::EXPEDITED, "expedited"),
    ]
}

/// Written on one CPU after the other, one at a time, so that the true order is known.
#[test]
fn events_of_different_cpus_come_in_the_order_in_which_they_were_written() {
    let Some((events, _)) = maps() else { return };
    let echo = bpf::echo(&events).unwrap();
    let cpus = load::online();
    for (fence, name) in fences() {
        let rings = Rings::options().bpf_output(&events).open().unwrap();
        let mut reader = Reader::new(rings, Order::new().hold(Hold::Fence(fence))).unwrap();
        assert_eq!(reader.fence(), Some(name));
        assert_eq!(reader.hold().to_string(), "fence");
        for number in 0..300u64 {
            // Now this CPU, now that, in no regular turn.
            let cpu = cpus[(number * number / 7) as usize % cpus.len()];
            assert_eq!(echo.run_with(cpu, &[number]).unwrap(), 0);
        }
        for number in 0..300u64 {
            let event = reader.next_timeout(Duration::from_secs(5)).unwrap().expect("all come");
            assert_eq!(event.class(), Class::Proven);
            assert_eq!(event.late_by(), 0);
            assert_eq!(event.record().and_then(|record| record.payload()?.u64(0)), Some(number), "{name}");
        }
        assert!(reader.try_next().unwrap().is_none());
        assert!(reader.stats().fences > 0 && reader.fence_latency().is_some_and(|time| !time.is_zero()));
    }
}

/// What the adversary made of a hold rule.
#[derive(Debug)]
struct Outcome {
    yielded: u64,
    written: u64,
    lost: u64,
    late: u64,
    repaired: u64,
    numbers: BTreeSet<u64>,
}

/// A slow program on every CPU, interrupted by a second one on the same rings.
fn adversary(hold: Hold, time: Duration, bytes: u64) -> Option<Outcome> {
    let (events, counter) = maps()?;
    let slow = bpf::on_syscall(&events, &counter, libc::SYS_getppid, 1, 4000).unwrap();
    let quick = bpf::on_syscall(&events, &counter, libc::SYS_getuid, 2, 20).unwrap();
    let interrupt = bpf::on_clock(&events, &counter, 3).unwrap();
    let rings = Rings::options().bpf_output(&events).bytes(bytes).open().unwrap();
    let cpus: Vec<u32> = rings.cpus().collect();
    let order = Order::new().key(Key::Payload(0)).hold(hold).when_full(Full::Hold);
    let mut reader = Reader::new(rings, order).unwrap();

    let mut outcome = Outcome { yielded: 0, written: 0, lost: 0, late: 0, repaired: 0, numbers: BTreeSet::new() };
    let mut largest = 0;
    let mut take = |reader: &mut Reader, outcome: &mut Outcome, timeout| {
        let mut any = false;
        for event in reader.batch(timeout).unwrap() {
            any = true;
            match event.what() {
                What::Record(record) => {
                    let key = event.key().expect("a key");
                    assert_eq!(event.class() == Class::Late, key < largest, "late is marked, and only late");
                    largest = largest.max(key);
                    outcome.yielded += 1;
                    assert!(outcome.numbers.insert(record.payload().and_then(|p| p.u64(8)).unwrap()), "twice");
                }
                What::Lost(lost) => outcome.lost += lost.count,
                other => panic!("{other:?}"),
            }
        }
        any
    };
    {
        let _links =
            (slow.attach_raw_tracepoint("sys_enter").unwrap(), quick.attach_raw_tracepoint("sys_enter").unwrap());
        let _clocks: Vec<_> = cpus.iter().map(|&cpu| interrupt.attach_clock(cpu, 200_000).unwrap()).collect();
        let _writers = load::Load::on(&cpus, |_| {
            for _ in 0..20 {
                load::getuid();
            }
            load::getppid();
        });
        let end = Instant::now() + time;
        while Instant::now() < end {
            take(&mut reader, &mut outcome, Duration::from_millis(50));
        }
    }
    while take(&mut reader, &mut outcome, Duration::from_millis(500)) || reader.held() > 0 {}
    // A last record for each CPU brings out what was lost last.
    let mut last = bpf::Asm::new();
    last.mov(bpf::Reg::R6, bpf::Reg::R1);
    bpf::stamped(&mut last, &events, &counter, 2, 0);
    last.exit();
    let last = Program::load(bpf::Kind::RawTracepoint, &last).unwrap();
    cpus.iter().for_each(|&cpu| assert_eq!(last.run_on(cpu).unwrap(), 0));
    while take(&mut reader, &mut outcome, Duration::from_millis(500)) || reader.held() > 0 {}

    outcome.written = counter.lookup_u64(0, 0).unwrap();
    let stats = reader.stats();
    (outcome.late, outcome.repaired) = (stats.late, stats.repaired);
    assert_eq!(stats.lost, outcome.lost);
    assert_eq!(stats.damaged, 0);
    Some(outcome)
}

#[test]
fn under_a_fence_nothing_is_late_and_nothing_is_missing() {
    for fence in [Fence::Membarrier, Fence::Map, Fence::EXPEDITED] {
        let Some(outcome) = adversary(Hold::Fence(fence), Duration::from_secs(2), 8 << 20) else { return };
        assert_eq!(outcome.late, 0);
        assert_eq!(outcome.lost, 0);
        assert_eq!(outcome.yielded, outcome.written);
        assert!(outcome.repaired > 0, "rings that were not in order inside");
        assert!(outcome.yielded > 10_000, "a load worth the name: {}", outcome.yielded);
    }
}

/// The same with rings so small that the kernel drops: what is missing is what LOST says, and order holds.
#[test]
fn under_a_fence_full_rings_lose_only_what_is_counted() {
    let Some(outcome) = adversary(Hold::FENCE, Duration::from_secs(2), 4096) else { return };
    assert!(outcome.lost > 0, "rings that overflow");
    assert_eq!(outcome.late, 0);
    assert_eq!(outcome.yielded + outcome.lost, outcome.written);
}

/// The same load shows what the other rules are worth. Nothing is lost under them either.
#[test]
fn without_a_fence_the_same_load_is_late() {
    for hold in [Hold::None, Hold::Round] {
        let mut late = 0;
        // It is a matter of chance, but not of much: a second is enough nearly always.
        for _ in 0..10 {
            let Some(outcome) = adversary(hold.clone(), Duration::from_secs(1), 8 << 20) else { return };
            assert_eq!(outcome.yielded + outcome.lost, outcome.written);
            late += outcome.late;
            if late > 0 {
                break;
            }
        }
        assert!(late > 0, "{hold}: the adversary is too weak to show anything");
    }
}

/// Numbers of one counter, no clock: the next number needs no fence, and what a full ring dropped is a gap.
#[test]
fn dense_numbers_come_one_by_one_and_gaps_are_exactly_what_was_lost() {
    let Some((events, _)) = maps() else { return };
    let echo = bpf::echo(&events).unwrap();
    let cpus = load::online();
    let rings = Rings::options().bpf_output(&events).pages(1).open().unwrap();
    let hold = Hold::Dense { first: Some(0), fence: Fence::Auto };
    let mut reader = Reader::new(rings, Order::new().key(Key::Payload(0)).hold(hold)).unwrap();

    for number in 0..50 {
        assert_eq!(echo.run_with(cpus[number as usize % cpus.len()], &[number]).unwrap(), 0);
    }
    for number in 0..50 {
        let event = reader.try_next().unwrap().expect("no wait");
        assert_eq!((event.key(), event.class()), (Some(number), Class::Proven));
    }
    assert_eq!(reader.stats().fences, 0);

    // Until the rings are full and beyond.
    let mut dropped = Vec::new();
    for number in 50..50 + 400 * cpus.len() as u64 {
        match echo.run_with(cpus[number as usize % cpus.len()], &[number]).unwrap() {
            0 => {}
            error if error == -libc::ENOSPC => dropped.push(number),
            error => panic!("{error}"),
        }
    }
    assert!(!dropped.is_empty());
    let (mut missing, mut numbers, mut lost) = (Vec::new(), Vec::new(), 0);
    let mut last = 50 + 400 * cpus.len() as u64;
    for _ in 0..3 {
        while let Some(event) = reader.next_timeout(Duration::from_millis(200)).unwrap() {
            match event.what() {
                What::Record(_) => numbers.push(event.key().unwrap()),
                What::Gap(gap) => missing.extend(gap.first..=gap.last),
                What::Lost(loss) => lost += loss.count,
                other => panic!("{other:?}"),
            }
            assert_eq!(event.class(), Class::Proven);
        }
        // Once there is room again, one more for each ring tells of the loss before it.
        for &cpu in &cpus {
            assert_eq!(echo.run_with(cpu, &[last]).unwrap(), 0);
            last += 1;
        }
    }
    assert!(numbers.is_sorted());
    assert_eq!(missing, dropped);
    assert_eq!(lost, dropped.len() as u64);
}

#[test]
fn a_fence_that_is_not_possible_is_an_error_that_says_why() {
    let kernel = sim::Kernel::new(&[0]);
    let rings = kernel.rings();
    let error =
        privilege::without(move || Reader::new(rings, Order::new().hold(Hold::Fence(Fence::EXPEDITED))).unwrap_err());
    assert!(matches!(error, Error::NoFence { .. }), "{error}");
    assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");

    // Membarrier needs no privilege.
    let kernel = sim::Kernel::new(&[0]);
    let rings = kernel.rings();
    let fence = privilege::without(move || Reader::new(rings, Order::new()).map(|reader| reader.fence()));
    if load::online().len() > 1 {
        assert_eq!(fence.unwrap(), Some("membarrier"));
    }
}

/// Where the kernel refuses membarrier, as it does under nohz_full, the map stands in.
#[test]
fn where_membarrier_is_refused_the_map_stands_in() {
    let Some((events, _)) = maps() else { return };
    let echo = bpf::echo(&events).unwrap();
    let cpu = *load::online().last().unwrap();
    std::thread::spawn(move || {
        privilege::refuse(libc::SYS_membarrier, libc::EINVAL).expect("a seccomp filter");
        let rings = Rings::options().bpf_output(&events).open().unwrap();
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        assert_eq!(reader.fence(), Some("map"));
        for number in 0..20 {
            echo.run_with(if number % 2 == 0 { 0 } else { cpu }, &[number]).unwrap();
        }
        for number in 0..20 {
            let event = reader.next_timeout(Duration::from_secs(5)).unwrap().expect("all come");
            assert_eq!(event.record().and_then(|record| record.payload()?.u64(0)), Some(number));
            assert_eq!(event.class(), Class::Proven);
        }
        let rings = sim::Kernel::new(&[0]).rings();
        let error = Reader::new(rings, Order::new().hold(Hold::Fence(Fence::Membarrier))).unwrap_err();
        assert!(matches!(error, Error::NoFence { .. }) && error.to_string().contains("membarrier"), "{error}");
        // Without the right to make a map there is none at all.
        privilege::refuse(libc::SYS_bpf, libc::EPERM).expect("a seccomp filter");
        let rings = sim::Kernel::new(&[0]).rings();
        let error = Reader::new(rings, Order::new()).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("membarrier") && said.contains("array of maps"), "{said}");
    })
    .join()
    .unwrap();
}

/// The expedited fence's mounts are its own: nothing of them is seen outside, and nothing outside stays mounted for them.
#[test]
fn an_expedited_fence_neither_shows_nor_keeps_mounts() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    // On a thread of its own, which it leaves without a file system.
    let possible = std::thread::spawn(|| Fence::EXPEDITED.open().map(drop)).join().expect("the thread lives");
    let Some(()) = kernel("unmount for a fence", possible) else { return };
    std::thread::spawn(|| {
        let none = None::<&str>;
        // A namespace of the test's own, whose mounts would spread to copies of it.
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some("outside"), "/mnt", Some("tmpfs"), MsFlags::empty(), none).unwrap();
        mount(none, "/mnt", none, MsFlags::MS_SHARED, none).unwrap();
        mount(none, "/", none, MsFlags::MS_SHARED, none).unwrap();
        let before = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let kernel = sim::Kernel::new(&[0]);
        let order = Order::new().hold(Hold::Fence(Fence::EXPEDITED));
        let mut reader = Reader::new(kernel.rings(), order).unwrap();
        for time in 1..50 {
            kernel.emit(0, time, b"any");
            drop(reader.next_timeout(Duration::from_secs(5)).unwrap().expect("proven"));
            let now = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            assert_eq!(now, before, "nothing is seen outside");
        }
        umount2("/mnt", MntFlags::empty()).unwrap();
        let mut fences = 0;
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            if read("comm").starts_with("perfweave-fence") {
                fences += 1;
                assert!(!read("mountinfo").contains("outside"), "it would stay mounted");
            }
        }
        assert!(fences > 0);
    })
    .join()
    .unwrap();
}

#[test]
fn opening_without_privileges_names_the_cure() {
    if std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap().trim() < "1" {
        return eprintln!("SKIPPED, nothing was tested: anybody may open events here");
    }
    let Some((events, _)) = maps() else { return };
    let error = privilege::without(move || Rings::options().bpf_output(&events).open().unwrap_err());
    let message = error.to_string();
    assert!(message.contains("CAP_PERFMON") && message.contains("perf_event_paranoid"), "{message}");
}
