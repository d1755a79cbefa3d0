//! On live BPF ring buffers: keys that are drawn inside a reservation, and elsewhere.

use crate::reading;
use crate::reading::LONG;
use perfweave::{Certainty, Clock, Event, Fence, Hold, Item, Key, Layout, Order, Reader, Ring, Rings};
use perfweave_proofs::Barrier;
use perfweave_support::bpf::{self, Map, Program};
use perfweave_support::ring_buffer::{self, Reserving, Turns, Way};
use perfweave_support::sleeper::Sleeper;
use perfweave_support::{foreign, kernel, load, needs, threads};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SLOW: u32 = 1;
const QUICK: u32 = 2;
const INTERRUPT: u32 = 3;
const SLEEPER: u32 = 4;

/// Reservations, also where CPUs are kept free of other work.
fn reserved() -> Hold {
    Hold::Fence(Barrier::Interrupts { every: Duration::from_micros(100), isolated: true }.fence())
}

fn programs() -> Hold {
    Hold::Fence(Barrier::Programs.fence())
}

/// Which rings the programs write into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Into {
    OneForEachCpu,
    One,
    /// One for each CPU, and the interrupts write into perf rings.
    Mixed,
}

/// Maps and programs of the adversary.
struct Adversary {
    output: Map,
    perf: Option<Map>,
    counter: Map,
    failures: Map,
    slow: Program,
    quick: Program,
    interrupt: Program,
    sleeper: Program,
    last: Program,
}

/// Who counts records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counts {
    Machine,
    /// Of each so many numbers, a power of two, the last is discarded.
    MachineDiscarding(u32),
    EachCpu,
}

impl Adversary {
    fn new(into: Into, way: Way, bytes: u32, counts: Counts) -> Option<Self> {
        let output = match into {
            Into::One => Map::ring_buffer(bytes),
            _ => Map::ring_buffers(bytes, &load::online()).map(|(rings, _)| rings),
        };
        let output = kernel("make BPF ring buffers", output)?;
        let perf = (into == Into::Mixed).then(|| Map::perf_event_array(load::slots()).unwrap());
        let counter = if counts == Counts::EachCpu { Map::counts() } else { ring_buffer::counter() }.unwrap();
        let failures = Map::counts().unwrap();
        let discard = if let Counts::MachineDiscarding(every) = counts { Some(every) } else { None };
        let reserving = Reserving { rings: &output, counter: &counter, failures: &failures, way, discard };
        let turns = |before, after| Turns { before, after };
        let slow = kernel("load a BPF program", reserving.on_syscall(libc::SYS_getppid, SLOW, turns(2000, 2000)))?;
        let quick = reserving.on_syscall(libc::SYS_getuid, QUICK, turns(10, 10)).unwrap();
        let interrupt = match &perf {
            Some(events) => bpf::on_clock(events, &counter, INTERRUPT).unwrap(),
            None => reserving.on_clock(INTERRUPT).unwrap(),
        };
        let (sleeper, last) = (reserving.when_called(SLEEPER).unwrap(), reserving.when_run(QUICK).unwrap());
        Some(Self { output, perf, counter, failures, slow, quick, interrupt, sleeper, last })
    }

    /// How many numbers were drawn, and how many records were discarded.
    fn drawn(&self) -> (u64, u64) {
        if self.counter.is_by_cpu() {
            return (self.counter.counted().unwrap(), 0);
        }
        (self.counter.lookup_u64(0, 0).unwrap(), self.counter.lookup_u64(0, 8).unwrap())
    }

    fn rings(&self) -> Rings {
        let mut rings = match &self.perf {
            Some(events) => Rings::options().bpf_output(events).bytes(8 << 20).open().unwrap(),
            None => Rings::empty(Clock::Monotonic),
        };
        // SAFETY: nobody else reads them.
        for (cpu, ring) in unsafe { Ring::adopt_ring_buffers(&self.output) }.unwrap() {
            rings.add(cpu, ring, Layout::RING_BUFFER.cpu_at(20));
        }
        rings.count_failures(&self.failures).unwrap();
        rings
    }
}

/// What came of it.
#[derive(Debug, Default)]
struct Outcome {
    yielded: u64,
    lost: u64,
    late: u64,
    repaired: u64,
    by_kind: [u64; 5],
    /// By the CPU that counts them, if each does.
    numbers: BTreeSet<(Option<u32>, u64)>,
    missing: u64,
}

/// A slow program on every CPU, one that interrupts it, and one that sleeps in a reservation, for as long as it takes
/// to have seen enough. Nothing is unaccounted for.
fn run(adversary: &Adversary, hold: Hold, sleeps: bool, enough: impl Fn(&Outcome) -> bool) -> Option<Outcome> {
    let memory = if sleeps { Some(kernel("make memory that is waited for", Sleeper::new())?) } else { None };
    let _alone = crate::alone();
    let Adversary { counter, failures, slow, quick, interrupt, .. } = adversary;
    let order = Order::new().key(Key::Payload(0)).hold(hold).most_held(0);
    let is_own = counter.is_by_cpu();
    let order = if is_own { order.numbers(Key::Payload(8), Some(0)) } else { order };
    let mut reader = Reader::new(adversary.rings(), order).unwrap();

    let (mut outcome, mut largest) = (Outcome::default(), 0);
    let mut note = |event: Event<'_>, outcome: &mut Outcome| match event.item() {
        Item::Record(record) => {
            let key = event.key().expect("a key");
            assert_eq!(event.certainty() == Certainty::Late, key < largest, "late is marked, and only late");
            largest = largest.max(key);
            outcome.yielded += 1;
            let payload = record.payload().unwrap();
            outcome.by_kind[payload.u32(16).unwrap() as usize] += 1;
            assert_eq!(event.cpu(), payload.u32(20));
            let number = (event.cpu().filter(|_| is_own), payload.u64(8).unwrap());
            assert!(outcome.numbers.insert(number), "twice");
        }
        Item::Gap(gap) => {
            assert!(is_own && event.certainty() == Certainty::Proven, "{gap:?}");
            outcome.missing += gap.count;
            let any = outcome.numbers.range((gap.cpu, gap.first)..=(gap.cpu, gap.last)).next();
            assert_eq!(any, None, "{gap:?}: it was yielded");
        }
        Item::Lost(lost) => outcome.lost += lost.count,
        other => panic!("{other:?}"),
    };
    {
        let _links =
            (slow.attach_raw_tracepoint("sys_enter").unwrap(), quick.attach_raw_tracepoint("sys_enter").unwrap());
        let cpus = load::online();
        let _clocks: Vec<_> = cpus.iter().map(|&cpu| interrupt.attach_clock(cpu, 200_000).unwrap()).collect();
        let _writers = load::Load::on(&cpus, |_| {
            for _ in 0..20 {
                load::getuid();
            }
            load::getppid();
        });
        let over = AtomicBool::new(memory.is_none());
        std::thread::scope(|scope| {
            let end = threads::AtEnd(|| over.store(true, Ordering::Relaxed));
            scope.spawn(|| sleep_until(&over, memory.as_ref(), &adversary.sleeper));
            threads::until("the adversary does its worst", || {
                reader.batch(LONG).unwrap().unwrap().for_each(|event| note(event, &mut outcome));
                let status = reader.status();
                (outcome.late, outcome.repaired) = (status.total().late, status.total().repaired);
                enough(&outcome)
            });
            drop(end);
        });
    }
    reading::all(&mut reader, |event| note(event, &mut outcome));
    // Each CPU's last record shows what is missing before it. For each ring there is room by now.
    reader.advance_tails();
    load::online().iter().for_each(|&cpu| assert_eq!(adversary.last.run_on(cpu).unwrap(), 0));
    reading::all(&mut reader, |event| note(event, &mut outcome));

    let (written, discarded) = adversary.drawn();
    let (status, refused) = (reader.status(), failures.counted().unwrap());
    outcome.late = status.total().late;
    assert_eq!((status.total().lost, status.total().damaged), (outcome.lost, 0));
    assert_eq!(outcome.yielded + outcome.lost + discarded, written);
    assert!(outcome.lost >= refused, "{} lost, {refused} refused", outcome.lost);
    assert!(reader.ledger().unwrap().total().is_balanced());
    if is_own {
        assert_eq!((outcome.missing, status.total().missing), (refused, refused), "{outcome}");
    }
    Some(outcome)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { yielded, lost, late, repaired, by_kind, missing, .. } = self;
        write!(
            f,
            "yielded {yielded}, of kinds {by_kind:?}, lost {lost}, missing {missing}, late {late}, repaired {repaired}"
        )
    }
}

/// The program sleeps in its reservation, and is woken at once, until it is over.
fn sleep_until(over: &AtomicBool, memory: Option<&Sleeper>, program: &Program) {
    let Some(memory) = memory else { return };
    while !over.load(Ordering::Relaxed) {
        memory.again();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| program.run_here(&[memory.address()]).unwrap());
            // Where the reservation is refused, nobody sleeps.
            while !call.is_finished() && !memory.asleep_within(Duration::from_millis(1)) {}
            memory.wake();
        });
    }
}

/// Every rule that proves, for every way into the rings, with programs that work, are interrupted, and sleep.
#[test]
fn nothing_is_late_and_nothing_is_missing() {
    let cases = [
        (Into::OneForEachCpu, Way::Inside, reserved()),
        (Into::OneForEachCpu, Way::Barrier, programs()),
        (Into::OneForEachCpu, Way::Inside, Hold::FENCE),
        (Into::OneForEachCpu, Way::KeyFirst, Hold::FENCE),
        (Into::OneForEachCpu, Way::Output, Hold::FENCE),
        (Into::One, Way::Inside, reserved()),
        (Into::One, Way::Barrier, programs()),
        (Into::One, Way::Inside, Hold::FENCE),
        (Into::Mixed, Way::Inside, Hold::FENCE),
        (Into::Mixed, Way::KeyFirst, Hold::FENCE),
    ];
    for (into, way, hold) in cases {
        if way == Way::Barrier && cfg!(not(target_arch = "x86_64")) {
            continue;
        }
        // A key of a sleepable program is proven by its reservation alone.
        let sleeps = matches!(hold, Hold::Fence(Fence::Proof(..)));
        let said = format!("{into:?}, {way:?}, {hold}");
        let counts = if way == Way::Inside { Counts::MachineDiscarding(64) } else { Counts::Machine };
        let Some(adversary) = Adversary::new(into, way, 8 << 20, counts) else { return };
        let enough = |outcome: &Outcome| {
            let all = outcome.by_kind[1..4].iter().all(|count| *count >= 100);
            outcome.yielded >= 50_000 && all && (!sleeps || outcome.by_kind[4] >= 20)
        };
        let Some(outcome) = run(&adversary, hold, sleeps, enough) else { return };
        println!("{said}: {outcome}");
        // A reader that gets no CPU loses what does not fit, and `run` has found each loss told.
        assert_eq!(outcome.late, 0, "{said}");
    }
}

/// The same with rings so small that reservations fail: what is missing is what the programs count, and order holds.
#[test]
fn full_rings_lose_only_what_is_counted() {
    for into in [Into::OneForEachCpu, Into::One] {
        let Some(adversary) = Adversary::new(into, Way::Inside, foreign::page_size() as u32, Counts::Machine) else {
            return;
        };
        let enough = |outcome: &Outcome| outcome.yielded >= 1_000 && outcome.lost >= 1_000;
        let Some(outcome) = run(&adversary, reserved(), false, enough) else { return };
        println!("{into:?}: {outcome}");
        assert_eq!((outcome.late, outcome.lost), (0, adversary.failures.counted().unwrap()));
    }
}

/// Numbers of each CPU, in small rings, shared or not: each number that was drawn is yielded or in a proven gap, and
/// none is in both. Dies if the numbers of a shared ring count as those of one CPU.
#[test]
fn numbers_of_each_cpu_name_what_was_refused() {
    let cases = [
        (Into::One, Way::Inside, reserved()),
        (Into::One, Way::Inside, Hold::FENCE),
        (Into::One, Way::KeyFirst, Hold::FENCE),
        (Into::OneForEachCpu, Way::Inside, reserved()),
    ];
    for (into, way, hold) in cases {
        let said = format!("{into:?}, {way:?}, {hold}");
        let bytes = foreign::page_size() as u32;
        let Some(adversary) = Adversary::new(into, way, bytes, Counts::EachCpu) else { return };
        let enough = |outcome: &Outcome| outcome.yielded >= 2_000 && outcome.missing >= 1_000;
        let Some(outcome) = run(&adversary, hold, false, enough) else { return };
        println!("{said}: {outcome}");
        assert_eq!(outcome.late, 0, "{said}");
    }
}

/// A writer on another CPU is caught between key and ring, or between reservation and submitting it; then one on this
/// CPU writes a later key. Gives what a reader makes of both, each time: who comes first, with which certainty; until
/// that is enough.
fn caught_inside(
    way: Way,
    hold: Hold,
    (number, call): (libc::c_long, fn()),
    enough: impl Fn(&[[(u32, Certainty); 2]]) -> bool + Sync,
) -> Option<Vec<[(u32, Certainty); 2]>> {
    let cpus = load::online();
    needs("a second CPU that is online", cpus.len() > 1)?;
    let (here, there) = (cpus[0], cpus[cpus.len() - 1]);
    let (rings, _) = kernel("make BPF ring buffers", Map::ring_buffers(1 << 16, &cpus))?;
    let (counter, failures) = (ring_buffer::counter().unwrap(), Map::counts().unwrap());
    let reserving = Reserving { rings: &rings, counter: &counter, failures: &failures, way, discard: None };
    // Some milliseconds.
    let turns = Turns { before: 0, after: 120_000 };
    let slow = kernel("load a BPF program", reserving.on_syscall(number, SLOW, turns))?;
    let quick = reserving.when_run(QUICK).unwrap();
    let _link = kernel("attach to sys_enter", slow.attach_raw_tracepoint("sys_enter"))?;
    load::pinned(here, || {
        let mut adopted = Rings::empty(Clock::Monotonic);
        // SAFETY: nobody else reads them.
        for (cpu, ring) in unsafe { Ring::adopt_ring_buffers(&rings) }.unwrap() {
            adopted.add(cpu, ring, Layout::RING_BUFFER);
        }
        // It looks while the writer is inside, however little came before.
        let order = Order::new().key(Key::Payload(0)).hold(hold).latency(Duration::from_millis(1));
        let mut reader = Reader::new(adopted, order).unwrap();
        let mut caught = Vec::new();
        threads::until("the writer is caught inside", || {
            let drawn = counter.lookup_u64(0, 0).unwrap();
            let is_done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    load::pinned(there, call);
                    is_done.store(true, Ordering::SeqCst);
                });
                threads::until("the writer begins", || counter.lookup_u64(0, 0).unwrap() > drawn);
                assert_eq!(quick.run_on(here).unwrap(), 0);
                let is_inside = !is_done.load(Ordering::SeqCst);
                let both = [(); 2].map(|()| {
                    let event = reading::next(&mut reader);
                    let payload = event.record().and_then(|record| record.payload()).expect("a payload");
                    (payload.u32(16).unwrap(), event.certainty(), payload.u64(0).unwrap())
                });
                // The number is drawn a moment before the key.
                let key = |kind| both.iter().find(|event| event.0 == kind).expect("both").2;
                let is_first = key(SLOW) < key(QUICK);
                caught.extend((is_inside && is_first).then_some(both.map(|(kind, certainty, _)| (kind, certainty))));
            });
            enough(&caught)
        });
        Some(caught)
    })
}

#[test]
fn a_proof_waits_for_the_program_that_is_inside() {
    let cases = [
        (Way::Inside, reserved()),
        (Way::Barrier, programs()),
        (Way::Inside, Hold::FENCE),
        (Way::KeyFirst, Hold::FENCE),
    ];
    for (way, hold) in cases {
        let said = format!("{way:?}, {hold}");
        let enough = |caught: &[_]| caught.len() == 20;
        let Some(caught) = caught_inside(way, hold, (libc::SYS_getresuid, getresuid), enough) else { return };
        let proven = [(SLOW, Certainty::Proven), (QUICK, Certainty::Proven)];
        assert!(caught.iter().all(|both| *both == proven), "{said}: {caught:?}");
    }
}

/// A key that is drawn before the reservation is not covered by reservations, and a rule that does not prove does not
/// wait.
#[test]
fn keys_drawn_before_the_reservation_are_late_and_so_are_all_without_a_proof() {
    let cases = [
        (Way::KeyFirst, reserved(), Certainty::Proven),
        (Way::Output, reserved(), Certainty::Proven),
        (Way::Inside, Hold::None, Certainty::Assumed),
    ];
    for (way, hold, certainty) in cases {
        let said = format!("{way:?}, {hold}");
        let late = [(QUICK, certainty), (SLOW, Certainty::Late)];
        // The writer may be done before the reader looks, where that is slow; then it is in time.
        let enough = |caught: &[_]| caught.iter().filter(|both| **both == late).count() == 5;
        let Some(caught) = caught_inside(way, hold, (libc::SYS_getresgid, getresgid), enough) else { return };
        let in_time = [(SLOW, certainty), (QUICK, certainty)];
        assert!(caught.iter().all(|both| *both == late || *both == in_time), "{said}: {caught:?}");
    }
}

fn getresuid() {
    let mut ids = [0u32; 3];
    // SAFETY: writes three numbers.
    unsafe { libc::syscall(libc::SYS_getresuid, &raw mut ids[0], &raw mut ids[1], &raw mut ids[2]) };
}

fn getresgid() {
    let mut ids = [0u32; 3];
    // SAFETY: writes three numbers.
    unsafe { libc::syscall(libc::SYS_getresgid, &raw mut ids[0], &raw mut ids[1], &raw mut ids[2]) };
}

/// Readers that come and go while programs write. Each flushes, reads up to the report and is dropped: together they
/// yield each record once, in order. Readers that are dropped anywhere lose nothing either, and yield few again.
#[test]
fn readers_that_come_and_go_yield_each_record() {
    let cases = [(Into::OneForEachCpu, reserved(), true), (Into::OneForEachCpu, Hold::FENCE, true)];
    for (into, hold, flushes) in
        cases.into_iter().chain([(Into::One, reserved(), true), (Into::One, reserved(), false)])
    {
        let Some(adversary) = Adversary::new(into, Way::Inside, 8 << 20, Counts::MachineDiscarding(64)) else { return };
        let _alone = crate::alone();
        let (cpus, slow, quick) = (load::online(), &adversary.slow, &adversary.quick);
        let links =
            (slow.attach_raw_tracepoint("sys_enter").unwrap(), quick.attach_raw_tracepoint("sys_enter").unwrap());
        let clocks: Vec<_> = cpus.iter().map(|&cpu| adversary.interrupt.attach_clock(cpu, 200_000).unwrap()).collect();
        let writers = load::Load::on(&cpus, |_| {
            load::getuid();
            load::getppid();
        });
        let mut writing = Some((links, clocks, writers));
        let (mut numbers, mut yielded, mut largest) = (BTreeSet::new(), 0, 0);
        for round in (0..40).rev() {
            let order = Order::new().key(Key::Payload(0)).hold(hold.clone());
            let mut reader = Reader::new(adversary.rings(), order).unwrap();
            if round == 0 {
                drop(writing.take());
            }
            let flushes = flushes || round == 0;
            if flushes {
                reader.handle().flush().unwrap();
            }
            let mut left = if flushes { usize::MAX } else { 100 * round };
            while left > 0 {
                for event in reader.batch(LONG).unwrap().unwrap().take(left) {
                    left -= 1;
                    let record = match event.item() {
                        Item::Record(record) => record,
                        Item::Lost(_) => continue,
                        Item::Flushed { .. } => {
                            left = 0;
                            break;
                        }
                        other => panic!("{other:?}"),
                    };
                    assert!(!flushes || round == 0 || event.key() >= Some(largest), "{event:?} after {largest}");
                    largest = largest.max(event.key().unwrap());
                    (_, yielded) = (numbers.insert(record.payload().unwrap().u64(8).unwrap()), yielded + 1);
                }
            }
            assert_eq!(reader.status().total().copied, 0);
        }
        let (written, discarded) = adversary.drawn();
        let (refused, twice) = (adversary.failures.counted().unwrap(), yielded - numbers.len() as u64);
        println!("{into:?}, {hold}, flushes {flushes}: {yielded} yielded, {twice} twice, {refused} refused");
        assert_eq!(numbers.len() as u64 + discarded + refused, written, "{into:?}, {hold}");
        assert!(!flushes || twice == 0, "{twice} of {yielded} came twice");
    }
}
