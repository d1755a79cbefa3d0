//! On live kernel rings: order, hold rules, fences.

use crate::caught::{QUICK, SLOW, caught_inside};
use crate::reading;
use crate::reading::LONG;
use perfweave::{Certainty, ErrorKind, Event, Fence, Hold, Item, Key, Order, Reader, Rings, sim};
use perfweave_proofs::{Epochs, expedited};
use perfweave_support::bpf::Map;
use perfweave_support::{assert_error, bpf, echo, kernel, load, membarrier, needs, privilege, threads};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// The parts of the adversary: an array for the machine's CPUs and a machine-wide counter.
fn maps() -> Option<(Map, Map)> {
    let events = kernel("make a perf event array", Map::perf_event_array(load::slots()))?;
    Some((events, Map::array(8, 1).expect("an array")))
}

/// Every hold rule that proves, with every fence.
fn fences() -> [(Fence, &'static str); 4] {
    [
        (Fence::Auto, if membarrier() { "membarrier" } else { "map" }),
        (Fence::Membarrier, "membarrier"),
        (Fence::Map, "map"),
        (expedited(Duration::from_millis(1)), "expedited"),
    ]
}

/// Written on one CPU after the other, one at a time, so that the true order is known.
#[test]
fn events_of_different_cpus_come_in_the_order_in_which_they_were_written() {
    let Some((events, echo)) = echo() else { return };
    let cpus = load::online();
    for (fence, name) in fences() {
        if matches!(fence, Fence::Membarrier) && !membarrier() {
            continue;
        }
        let rings = Rings::options().bpf_output(&events).open().unwrap();
        let hold = Hold::Fence(fence);
        let rule = hold.to_string();
        let mut reader = Reader::new(rings, Order::new().hold(hold)).unwrap();
        assert_eq!(reader.fence(), Some(name));
        assert_eq!(rule, if name == "expedited" { name } else { "fence" });
        for number in 0..300u64 {
            // On the CPUs in irregular order.
            let cpu = cpus[(number * number / 7) as usize % cpus.len()];
            assert_eq!(echo.run_with(cpu, &[number]).unwrap(), 0);
        }
        for number in 0..300u64 {
            let event = reading::next(&mut reader);
            assert_eq!(event.certainty(), Certainty::Proven);
            assert_eq!(event.late_by(), 0);
            assert_eq!(event.record().and_then(|record| record.payload()?.u64(0)), Some(number), "{name}");
        }
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
        assert!(reader.status().fences > 0);
    }
}

/// The result of the adversary under a hold rule.
#[derive(Debug)]
struct Outcome {
    yielded: u64,
    written: u64,
    lost: u64,
    late: u64,
    repaired: u64,
    numbers: BTreeSet<u64>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { yielded, written, lost, late, repaired, .. } = self;
        write!(f, "yielded {yielded} of {written}, lost {lost}, late {late}, repaired {repaired}")
    }
}

/// A slow program on every CPU, interrupted by a second one on the same rings, until enough cases were seen. With
/// epochs the programs mark in the words of the hold rule when they are inside.
fn adversary(
    hold: impl FnOnce(&Map) -> Hold,
    epochs: bool,
    bytes: u64,
    enough: impl Fn(&Outcome) -> bool,
) -> Option<Outcome> {
    let _alone = crate::alone();
    let (events, counter) = maps()?;
    let words = Map::epochs(load::slots()).unwrap();
    let epochs = epochs.then_some((&words, bpf::Keeping::Rightly));
    let stamps = bpf::Stamps { events: &events, counter: &counter, epochs };
    let slow = kernel("load a BPF program", stamps.on_syscall(libc::SYS_getppid, 1, 4000))?;
    let quick = stamps.on_syscall(libc::SYS_getuid, 2, 20).unwrap();
    let interrupt = stamps.on_clock(3).unwrap();
    let rings = Rings::options().bpf_output(&events).bytes(bytes).open().unwrap();
    let cpus: Vec<u32> = rings.cpus().collect();
    let order = Order::new().key(Key::Payload(0)).hold(hold(&words)).most_held(0);
    let mut reader = Reader::new(rings, order).unwrap();

    let mut outcome = Outcome { yielded: 0, written: 0, lost: 0, late: 0, repaired: 0, numbers: BTreeSet::new() };
    let mut largest = 0;
    let mut note = |event: Event<'_>, outcome: &mut Outcome| match event.item() {
        Item::Record(record) => {
            let key = event.key().expect("a key");
            assert_eq!(event.certainty() == Certainty::Late, key < largest, "late is marked, and only late");
            largest = largest.max(key);
            outcome.yielded += 1;
            assert!(outcome.numbers.insert(record.payload().and_then(|p| p.u64(8)).unwrap()), "twice");
        }
        Item::Lost(lost) => outcome.lost += lost.count,
        other => panic!("{other:?}"),
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
        threads::until("the adversary has caused enough cases", || {
            reader.batch(LONG).unwrap().unwrap().for_each(|event| note(event, &mut outcome));
            let total = reader.status().total();
            (outcome.late, outcome.repaired) = (total.late, total.repaired);
            enough(&outcome)
        });
    }
    // This also reports the last losses.
    reading::all(&mut reader, |event| note(event, &mut outcome));

    outcome.written = counter.lookup_u64(0, 0).unwrap();
    let total = reader.status().total();
    outcome.late = total.late;
    assert_eq!((total.lost, total.damaged), (outcome.lost, 0));
    Some(outcome)
}

#[test]
fn under_a_fence_nothing_is_late_and_nothing_is_missing() {
    for fence in [Fence::Membarrier, Fence::Map, expedited(Duration::from_millis(1))] {
        if matches!(fence, Fence::Membarrier) && !membarrier() {
            continue;
        }
        // Enough load, and rings with disorder inside.
        let enough = |outcome: &Outcome| outcome.yielded >= 200_000 && outcome.repaired >= 1000;
        let Some(outcome) = adversary(|_| Hold::Fence(fence), false, 8 << 20, enough) else { return };
        assert_eq!(outcome.late, 0);
        assert_eq!(outcome.yielded + outcome.lost, outcome.written);
        println!("{outcome}");
    }
}

/// The same with programs that mark when they are inside, and without grace periods.
#[test]
fn under_epochs_nothing_is_late_and_nothing_is_missing() {
    let enough = |outcome: &Outcome| outcome.yielded >= 200_000 && outcome.repaired >= 1000;
    let hold = |words: &Map| Hold::Fence(Epochs::open(words).unwrap().fence());
    let Some(outcome) = adversary(hold, true, 8 << 20, enough) else { return };
    assert_eq!(outcome.late, 0);
    assert_eq!(outcome.yielded + outcome.lost, outcome.written);
    println!("{outcome}");
}

/// The same with rings so small that the kernel drops records: the missing records are those that LOST counts, and the
/// order holds.
#[test]
fn under_a_fence_full_rings_lose_only_what_is_counted() {
    let enough = |outcome: &Outcome| outcome.yielded >= 20_000 && outcome.lost >= 100_000;
    let Some(outcome) = adversary(|_| Hold::FENCE, false, 4096, enough) else { return };
    assert_eq!(outcome.late, 0);
    assert_eq!(outcome.yielded + outcome.lost, outcome.written);
    println!("{outcome}");
}

/// The fence itself does not end before all writers are done that were inside when it began.
#[test]
fn a_fence_waits_for_whoever_is_inside() {
    for fence in [Fence::Membarrier, Fence::Map, expedited(Duration::from_millis(1))] {
        if matches!(fence, Fence::Membarrier) && !membarrier() {
            continue;
        }
        let Some(caught) =
            caught_inside(|_| Hold::Fence(fence), None, (libc::SYS_getgid, load::getgid), |caught| caught.len() == 20)
        else {
            return;
        };
        assert!(
            caught.iter().all(|both| *both == [(SLOW, Certainty::Proven), (QUICK, Certainty::Proven)]),
            "{caught:?}"
        );
    }
}

/// Without a rule that proves the same writers are late.
#[test]
fn without_a_fence_whoever_is_inside_is_late() {
    let is_late = |both: &[(u32, Certainty); 2]| *both == [(QUICK, Certainty::Assumed), (SLOW, Certainty::Late)];
    // On a slow machine the writer may be done before the reader refreshes; then it is not late.
    let enough = |caught: &[_]| caught.iter().filter(|both| is_late(both)).count() == 5;
    let caught = caught_inside(|_| Hold::None, None, (libc::SYS_getegid, load::getegid), enough);
    let Some(caught) = caught else { return };
    let in_time = [(SLOW, Certainty::Assumed), (QUICK, Certainty::Assumed)];
    assert!(caught.iter().all(|both| is_late(both) || *both == in_time), "{caught:?}");
}

/// Numbers of one counter, no clock: the next number needs no fence, and what a full ring dropped is a gap.
#[test]
fn dense_numbers_come_one_by_one_and_gaps_are_exactly_what_was_lost() {
    let Some((events, echo)) = echo() else { return };
    let cpus = load::online();
    let rings = Rings::options().bpf_output(&events).pages(1).open().unwrap();
    let hold = Hold::Dense { first: Some(0), fence: Fence::Auto };
    let mut reader = Reader::new(rings, Order::new().key(Key::Payload(0)).hold(hold)).unwrap();

    for number in 0..50 {
        assert_eq!(echo.run_with(cpus[number as usize % cpus.len()], &[number]).unwrap(), 0);
    }
    for number in 0..50 {
        let event = reader.next_timeout(Duration::ZERO).unwrap().expect("no wait");
        assert_eq!((event.key(), event.certainty()), (Some(number), Certainty::Proven));
    }
    assert_eq!(reader.status().fences, 0);

    // More than the rings hold.
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
        reading::all(&mut reader, |event| {
            match event.item() {
                Item::Record(_) => numbers.push(event.key().unwrap()),
                Item::Gap(gap) => missing.extend(gap.first..=gap.last),
                Item::Lost(loss) => lost += loss.count,
                other => panic!("{other:?}"),
            }
            assert_eq!(event.certainty(), Certainty::Proven);
        });
        // Once there is room again, one more record for each ring reports the loss before it.
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
    let error = privilege::without(move || {
        Reader::new(rings, Order::new().hold(Hold::Fence(expedited(Duration::from_millis(1))))).unwrap_err()
    });
    assert_error!(error, Unsupported, "no fence: ");
    let said = error.to_string();
    assert!(said.contains("CAP_SYS_ADMIN") && said.contains("proves nothing") && !said.contains("seccomp"), "{said}");

    // Membarrier needs no privilege.
    let kernel = sim::Kernel::new(&[0]);
    let rings = kernel.rings();
    let fence = privilege::without(move || Reader::new(rings, Order::new()).map(|reader| reader.fence()));
    if load::online().len() > 1 && membarrier() {
        assert_eq!(fence.unwrap(), Some("membarrier"));
    }
}

/// Where the kernel refuses membarrier, as it does under nohz_full, the map stands in.
#[test]
fn where_membarrier_is_refused_the_map_stands_in() {
    let Some((events, echo)) = echo() else { return };
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
            let event = reading::next(&mut reader);
            assert_eq!(event.record().and_then(|record| record.payload()?.u64(0)), Some(number));
            assert_eq!(event.certainty(), Certainty::Proven);
        }
        let rings = sim::Kernel::new(&[0]).rings();
        let error = Reader::new(rings, Order::new().hold(Hold::Fence(Fence::Membarrier))).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unsupported
                && error.to_string().contains("no fence: ")
                && error.to_string().contains("membarrier"),
            "{error}"
        );
        // Without the right to make a map there is no fence at all.
        privilege::refuse(libc::SYS_bpf, libc::EPERM).expect("a seccomp filter");
        let rings = sim::Kernel::new(&[0]).rings();
        let error = Reader::new(rings, Order::new()).unwrap_err();
        let said = error.to_string();
        for named in ["membarrier", "array of maps", "an expedited one", "proves nothing", "seccomp"] {
            assert!(said.contains(named), "{said}: no {named}");
        }
    })
    .join()
    .unwrap();
}

#[test]
fn opening_without_privileges_names_the_cure() {
    let paranoid = privilege::perf_event_paranoid();
    let Some(()) = needs("kernel.perf_event_paranoid of 1 or more", paranoid >= 1) else { return };
    let Some((events, _)) = maps() else { return };
    let error = privilege::without(move || Rings::options().bpf_output(&events).open().unwrap_err());
    let message = error.to_string();
    // If bpf(2) needs a privilege, which is possible before Linux 5.19, the map cannot be used either.
    assert_eq!(error.kind(), ErrorKind::Permission, "{message}");
    let may_not_ask = message.contains("as a perf event array") && message.contains("CAP_BPF");
    let may_not_open = message.contains("CAP_PERFMON") && message.contains("perf_event_paranoid");
    assert!(may_not_ask || may_not_open, "{message}");
}
