//! On live kernel rings: rings that overflow, losses without a record after them, pauses, and a ledger that balances.

use crate::reading;
use crate::reading::{Gate, LONG};
use perfweave::{Account, Certainty, Ended, Fence, Hold, Item, Key, Order, Pause, Reader, Rings};
use perfweave_support::bpf::{Asm, Kind, Map, Program, Reg};
use perfweave_support::{bpf, echo, kernel, load, threads};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A CPU's writer: counts its outputs and the refused ones.
struct Writer {
    cpu: u32,
    counts: Map,
    program: Program,
}

/// How many records a writer outputs at once.
const BURST: u32 = 100;

impl Writer {
    fn new(cpu: u32, events: &Map) -> Option<Self> {
        let counts = Map::array(16, 1).expect("an array");
        let mut asm = Asm::new();
        asm.mov(Reg::R6, Reg::R1);
        asm.repeat(Reg::R7, BURST, |asm| {
            asm.mov_i(Reg::R1, 1).map_value(Reg::R2, &counts, 0).fetch_add(Reg::R2, 0, Reg::R1);
            asm.store(Reg::R10, -8, Reg::R1).output(Reg::R6, events, -8, 8);
            // An error is negative.
            asm.shr_i(Reg::R0, 63).map_value(Reg::R2, &counts, 0).fetch_add(Reg::R2, 8, Reg::R0);
        });
        asm.mov_i(Reg::R0, 0).exit();
        let program = kernel("load a BPF program", Program::load(Kind::RawTracepoint, &asm))?;
        Some(Self { cpu, program, counts })
    }

    fn burst(&self) {
        assert_eq!(self.program.run_on(self.cpu).unwrap(), 0);
    }

    fn written(&self) -> u64 {
        self.counts.lookup_u64(0, 0).unwrap()
    }

    fn refused(&self) -> u64 {
        self.counts.lookup_u64(0, 8).unwrap()
    }
}

/// An array for the machine's CPUs, and a writer for each.
fn writers() -> Option<(Map, Vec<Writer>)> {
    let events = kernel("make a perf event array", Map::perf_event_array(load::slots()))?;
    let writers = load::online().into_iter().map(|cpu| Writer::new(cpu, &events)).collect::<Option<_>>()?;
    Some((events, writers))
}

/// The events of a reader, by CPU.
#[derive(Debug, Default)]
struct Seen {
    records: BTreeMap<u32, u64>,
    /// Counts of LOST records, and of losses without a record after them.
    lost: BTreeMap<u32, u64>,
    trailing: BTreeMap<u32, u64>,
    missing: BTreeMap<u32, u64>,
    assumed: u64,
    late: u64,
    last: BTreeMap<u32, u64>,
    key: u64,
}

impl Seen {
    fn note(&mut self, event: &perfweave::Event<'_>) {
        let cpu = event.cpu().expect("a CPU");
        let (map, count) = match event.item() {
            Item::Record(record) => {
                let number = record.payload().and_then(|payload| payload.u64(0)).expect("a number");
                let last = self.last.insert(cpu, number);
                assert!(last.is_none_or(|last| number > last), "{number} behind {last:?} on CPU {cpu}");
                self.assumed += u64::from(event.certainty() == Certainty::Assumed);
                self.late += u64::from(event.certainty() == Certainty::Late);
                let key = event.key().expect("a time");
                assert_eq!(key < self.key, event.certainty() == Certainty::Late);
                self.key = self.key.max(key);
                (&mut self.records, 1)
            }
            Item::Lost(lost) if lost.until.is_some() => (&mut self.lost, lost.count),
            Item::Lost(lost) => (&mut self.trailing, lost.count),
            Item::Gap(gap) => {
                let next = self.last.get(&cpu).map_or(0, |last| last + 1);
                assert_eq!((gap.first, gap.last), (next, next + gap.count - 1), "CPU {cpu}");
                (&mut self.missing, gap.count)
            }
            other => panic!("{other:?}"),
        };
        *map.entry(cpu).or_default() += count;
    }

    fn of(map: &BTreeMap<u32, u64>, cpu: u32) -> u64 {
        map.get(&cpu).copied().unwrap_or(0)
    }

    /// Everything up to the report of a flush.
    fn flush(&mut self, reader: &mut Reader) {
        reading::all(reader, |event| self.note(&event));
    }
}

/// Checks a CPU's account against its writer's counts. The kernel did not count `unseen` of them.
fn check(account: &Account, writer: &Writer, unseen: u64) {
    assert_eq!(account.cpu, Some(writer.cpu));
    assert!(account.exact, "a kernel that counts: {account}");
    assert_eq!(account.lost, writer.refused() - unseen, "{account}");
    assert_eq!(account.written() + unseen, writer.written(), "{account}");
    assert_eq!(account.unexplained, unseen, "{account}");
    assert!(account.explained(unseen).is_balanced(), "{account}");
}

/// Calls a function when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// A burst overruns the rings while the reader waits for a fence. Gives the events and how many outputs were refused.
fn burst_behind_a_slow_fence(most: Option<usize>) -> Option<(Seen, u64, Reader)> {
    let (events, writers) = writers()?;
    // 32 KiB, which 1023 records fill.
    let rings = Rings::options().bpf_output(&events).bytes(32 << 10).open().unwrap();
    let gate = Gate::new();
    // A long grace period, as a slow writer causes it.
    let fence = {
        let slow = Mutex::new(gate.fence().open().unwrap());
        let grace = Mutex::new(Fence::Auto.open().unwrap());
        Fence::by(move || {
            slow.lock().unwrap().wait()?;
            grace.lock().unwrap().wait()
        })
    };
    let order = Order::new().hold(Hold::Fence(fence)).numbers(Key::Payload(0), Some(0));
    let order = if let Some(most) = most { order.most_held(most) } else { order };
    let mut reader = Reader::new(rings, order).unwrap();
    let (looks, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut seen, reader) = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut seen = Seen::default();
            while !done.load(Ordering::Acquire) {
                for event in reader.batch(Duration::from_millis(2)).unwrap().unwrap() {
                    seen.note(&event);
                }
                // The next refresh releases the yielded records.
                looks.store(reader.status().refreshes, Ordering::Release);
            }
            (seen, reader)
        });
        // If an assertion fails here, the reader's thread still ends.
        let over = OnDrop(|| {
            done.store(true, Ordering::Release);
            gate.open();
        });
        for _ in 0..40 {
            writers.iter().for_each(Writer::burst);
            // As fast as the reader refreshes, at least twice, and for longer than a usual grace period.
            let before = looks.load(Ordering::Acquire);
            threads::until("the reader looks", || looks.load(Ordering::Acquire) >= before + 3 || thread.is_finished());
        }
        drop(over);
        thread.join().expect("the reader")
    });
    let mut reader = reader;
    seen.flush(&mut reader);
    let ledger = reader.ledger().unwrap();
    for (account, writer) in ledger.accounts.iter().zip(&writers) {
        check(account, writer, 0);
        assert_eq!(account.held, 0);
        let lost = Seen::of(&seen.lost, writer.cpu) + Seen::of(&seen.trailing, writer.cpu);
        assert_eq!(lost, writer.refused(), "reported exactly");
        assert_eq!(Seen::of(&seen.records, writer.cpu) + lost, 40 * u64::from(BURST));
    }
    assert!(ledger.total().is_balanced());
    let refused = writers.iter().map(Writer::refused).sum();
    Some((seen, refused, reader))
}

#[test]
fn a_burst_behind_a_slow_fence_overruns_rings_that_hold_strictly_in_place() {
    let Some((seen, refused, reader)) = burst_behind_a_slow_fence(Some(0)) else { return };
    assert!(refused > 0);
    assert_eq!((seen.assumed, seen.late), (0, 0));
    let status = reader.status();
    assert_eq!((status.total().lost, status.total().copied), (refused, 0));
    assert!(status.accounts.iter().all(|account| account.most_used > account.size * 9 / 10));
}

/// At the bound records stay in their rings, and the kernel drops the newest: all that comes out is proven, and all that
/// does not is counted.
#[test]
fn the_same_burst_beyond_the_bound_loses_the_newest_and_keeps_proven_order() {
    const MOST: usize = 40 << 10;
    let Some((seen, refused, reader)) = burst_behind_a_slow_fence(Some(MOST)) else { return };
    assert!(refused > 0);
    assert_eq!((seen.assumed, seen.late), (0, 0));
    let status = reader.status();
    assert!(status.total().copied > 0 && status.most_memory <= MOST, "{status:?}");
    assert_eq!(status.total().lost, refused);
}

/// The defaults keep the order, all of it proven, and every record.
#[test]
fn by_default_the_same_burst_loses_nothing_and_keeps_proven_order() {
    let Some((seen, refused, reader)) = burst_behind_a_slow_fence(None) else { return };
    assert_eq!((refused, seen.assumed, seen.late), (0, 0, 0));
    let status = reader.status();
    assert!(status.total().copied > 0, "{status:?}");
    for account in &status.accounts {
        assert!(
            account.copied > 0 && account.most_used > account.size && account.needed > account.most_used,
            "{account:?}"
        );
    }
}

/// Records that enter no ring are reported after a few refreshes, once, with the exact count, also while writing goes
/// on.
#[test]
fn a_loss_that_nothing_follows_is_told_by_the_kernels_own_count() {
    let Some((events, writers)) = writers() else { return };
    let rings = Rings::options().bpf_output(&events).pages(1).open().unwrap();
    let order = Order::new().most_held(0).numbers(Key::Payload(0), Some(0));
    let mut reader = Reader::new(rings, order).unwrap();
    let mut seen = Seen::default();
    let mut told = BTreeMap::new();
    for round in 1..=3 {
        // A page takes 127 of them.
        writers.iter().for_each(|writer| (0..2).for_each(|_| writer.burst()));
        let told_of = |seen: &Seen, cpu| Seen::of(&seen.lost, cpu) + Seen::of(&seen.trailing, cpu);
        let mut ran_dry = 0;
        while writers.iter().any(|writer| told_of(&seen, writer.cpu) < writer.refused()) {
            let event = reading::next(&mut reader);
            let is_record = event.record().is_some();
            seen.note(&event.event());
            drop(event);
            ran_dry = if is_record { reader.status().sleeps } else { ran_dry };
        }
        // Once all records are out it asks the kernel for its counts every tick, and sleeps some ten times in a tick.
        let sleeps = reader.status().sleeps - ran_dry;
        assert!(sleeps <= 30, "{sleeps} sleeps before the report");
        for writer in &writers {
            let told = told.insert(writer.cpu, writer.refused()).unwrap_or(0);
            assert!(writer.refused() > told, "overrun in each round");
            // No record was written after it.
            assert_eq!(Seen::of(&seen.trailing, writer.cpu), writer.refused(), "round {round}: {seen:?}");
            assert_eq!(Seen::of(&seen.lost, writer.cpu), 0, "a LOST record reports nothing new");
        }
        // It is not reported again.
        reading::assert_nothing(&mut reader);
    }
    seen.flush(&mut reader);
    let ledger = reader.ledger().unwrap();
    for (account, writer) in ledger.accounts.iter().zip(&writers) {
        check(account, writer, 0);
        assert_eq!((account.lost, account.unreported), (writer.refused(), 0));
        assert_eq!(Seen::of(&seen.trailing, writer.cpu), writer.refused(), "reported once");
    }
    assert!(ledger.total().is_balanced());
}

#[test]
fn a_flush_tells_of_a_loss_that_nothing_follows() {
    let Some((events, writers)) = writers() else { return };
    let rings = Rings::options().bpf_output(&events).pages(1).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().most_held(0)).unwrap();
    let mut seen = Seen::default();
    writers.iter().for_each(|writer| (0..2).for_each(|_| writer.burst()));
    seen.flush(&mut reader);
    for writer in &writers {
        assert!(writer.refused() > 0);
        assert_eq!(Seen::of(&seen.trailing, writer.cpu), writer.refused());
    }
    assert_eq!(reader.status().total().lost, writers.iter().map(Writer::refused).sum::<u64>());
    // At the end: the ledger of a closed reader has the later losses.
    writers.iter().for_each(|writer| (0..2).for_each(|_| writer.burst()));
    reader.handle().close();
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    assert_eq!(reader.ended(), Some(Ended::Closed));
    let ledger = reader.ledger().unwrap();
    for (account, writer) in ledger.accounts.iter().zip(&writers) {
        assert_eq!((account.lost, account.written()), (writer.refused(), writer.written()), "{account}");
        assert!(account.held > 0 && account.unreported > 0);
    }
    assert!(ledger.total().is_balanced());
    assert_eq!(ledger.to_string().lines().count(), 1);
}

/// The fence of a flush takes its time, and programs go on writing: the losses from before the flush still come before
/// its report.
#[test]
fn a_flush_tells_of_losses_before_it_although_programs_go_on() {
    let Some((events, writers)) = writers() else { return };
    let rings = Rings::options().bpf_output(&events).pages(1).open().unwrap();
    let gate = Gate::new();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::Fence(gate.fence()))).unwrap();
    // A page takes 127 of them.
    writers.iter().for_each(|writer| (0..2).for_each(|_| writer.burst()));
    let refused: Vec<_> = writers.iter().map(Writer::refused).collect();
    reader.handle().flush().unwrap();
    // It copies what is held out of the rings, so newer records fit.
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    writers.iter().for_each(Writer::burst);
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    gate.open();
    let mut seen = Seen::default();
    loop {
        let event = reading::next(&mut reader);
        if matches!(event.item(), Item::Flushed { .. }) {
            break;
        }
        seen.note(&event.event());
    }
    for (writer, refused) in writers.iter().zip(refused) {
        assert!(refused > 0 && Seen::of(&seen.records, writer.cpu) < u64::from(BURST) * 2);
        assert_eq!(Seen::of(&seen.trailing, writer.cpu), refused, "{seen:?}");
    }
    seen.flush(&mut reader);
    for writer in &writers {
        let told = Seen::of(&seen.lost, writer.cpu) + Seen::of(&seen.trailing, writer.cpu);
        assert_eq!((told, Seen::of(&seen.records, writer.cpu) + told), (writer.refused(), writer.written()));
    }
}

/// Rings so small that they overflow all the time: each CPU's gaps are exactly its refused outputs.
#[test]
fn numbers_of_each_cpu_are_exact_under_forced_loss() {
    let Some((events, writers)) = writers() else { return };
    for most in [0, 10_000] {
        let before: Vec<_> = writers.iter().map(|writer| (writer.written(), writer.refused())).collect();
        // The same first number for all CPUs, so that no number is missing before it.
        let first = before.iter().map(|(written, _)| *written).max().unwrap();
        assert!(before.iter().all(|(written, _)| *written == first));
        let rings = Rings::options().bpf_output(&events).pages(1).open().unwrap();
        let order = Order::new().most_held(most).numbers(Key::Payload(0), Some(first));
        let mut reader = Reader::new(rings, order).unwrap();
        let mut seen =
            Seen { last: writers.iter().map(|w| (w.cpu, first.wrapping_sub(1))).collect(), ..Seen::default() };
        // A gap before the first number has no number before it.
        if first == 0 {
            seen.last.clear();
        }
        for round in 0..50 {
            writers.iter().for_each(Writer::burst);
            if round % 3 == 2 {
                for event in reader.batch(Duration::from_millis(20)).unwrap().unwrap() {
                    seen.note(&event);
                }
            }
        }
        seen.flush(&mut reader);
        // One more record on each CPU, so that the last refused outputs leave a gap too.
        writers.iter().for_each(Writer::burst);
        seen.flush(&mut reader);
        let ledger = reader.ledger().unwrap();
        for ((account, writer), (written, refused)) in ledger.accounts.iter().zip(&writers).zip(&before) {
            let refused = writer.refused() - refused;
            assert!(refused > 0, "{most}");
            assert_eq!(Seen::of(&seen.missing, writer.cpu), refused, "{most}");
            let lost = Seen::of(&seen.lost, writer.cpu) + Seen::of(&seen.trailing, writer.cpu);
            assert_eq!((lost, account.lost, account.missing), (refused, refused, refused), "{most}");
            assert_eq!(account.written(), writer.written() - written);
        }
        assert!(ledger.total().is_balanced());
    }
}

/// Pauses of both kinds while writers write: the kernel's count explains one part, the programs' own count the rest.
#[test]
fn the_ledger_balances_over_pauses() {
    let Some((events, writers)) = writers() else { return };
    let rings = Rings::options().bpf_output(&events).pages(4).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().numbers(Key::Payload(0), Some(0))).unwrap();
    let handle = reader.handle();
    let mut seen = Seen::default();
    let mut unseen = 0;
    for round in 0..20 {
        match round % 4 {
            1 => handle.pause(Pause::Output).unwrap(),
            3 => handle.pause(Pause::Slots).unwrap(),
            _ => handle.resume().unwrap(),
        }
        writers.iter().for_each(Writer::burst);
        // Not one of them finds a slot.
        unseen += if round % 4 == 3 { u64::from(BURST) } else { 0 };
        for event in reader.batch(Duration::from_millis(30)).unwrap().unwrap() {
            seen.note(&event);
        }
    }
    handle.resume().unwrap();
    seen.flush(&mut reader);
    writers.iter().for_each(Writer::burst);
    seen.flush(&mut reader);
    let ledger = reader.ledger().unwrap();
    for (account, writer) in ledger.accounts.iter().zip(&writers) {
        check(account, writer, unseen);
        assert_eq!((account.held, account.unreported, account.missing), (0, 0, writer.refused()), "{account}");
        assert_eq!(Seen::of(&seen.missing, writer.cpu), writer.refused());
        assert!(account.lost >= 5 * u64::from(BURST), "at least the paused outputs");
    }
    assert!(!ledger.total().is_balanced());
    assert!(ledger.total().explained(unseen * writers.len() as u64).is_balanced(), "{ledger}");
}

/// Failures that the kernel does not count: the account says how many, and the errors say why.
#[test]
fn what_finds_no_slot_is_unexplained() {
    let Some((events, _)) = writers() else { return };
    let echo = bpf::echo(&events).unwrap();
    let rings = Rings::options().bpf_output(&events).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().numbers(Key::Payload(0), None)).unwrap();
    let cpu = *load::online().last().unwrap();
    assert_eq!(echo.run_with(cpu, &[1]).unwrap(), 0);
    reader.handle().pause(Pause::Slots).unwrap();
    assert_eq!(echo.run_with(cpu, &[2]).unwrap(), -libc::ENOENT);
    reader.handle().resume().unwrap();
    reader.handle().pause(Pause::Output).unwrap();
    assert_eq!(echo.run_with(cpu, &[3]).unwrap(), -libc::ENOSPC);
    reader.handle().resume().unwrap();
    assert_eq!(echo.run_with(cpu, &[4]).unwrap(), 0);
    let mut seen = Seen::default();
    seen.flush(&mut reader);
    let account = *reader.ledger().unwrap().accounts.iter().find(|account| account.cpu == Some(cpu)).unwrap();
    assert_eq!((account.yielded, account.lost, account.missing, account.unexplained), (2, 1, 2, 1), "{account}");
}

/// A counter for the whole machine: no wait, a gap for a missing number, and the right kind for each anomaly. The same
/// with a CPU's own numbers.
#[test]
fn what_breaks_a_counter_is_told_apart() {
    let Some((events, program)) = echo() else { return };
    let cpus = load::online();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let machine = || {
        let hold = Hold::Dense { first: Some(1000), fence: Fence::Auto };
        Order::new().key(Key::Payload(0)).hold(hold)
    };
    let own = || Order::new().numbers(Key::Payload(0), None);
    for by_cpu in [false, true] {
        let numbers = [1000, 1001, 1002, 1004, 1004, 1005, 500];
        let rings = Rings::options().bpf_output(&events).open().unwrap();
        let mut reader = Reader::new(rings, if by_cpu { own() } else { machine() }).unwrap();
        let handle = reader.handle();
        let mut told = Vec::new();
        for (n, number) in numbers.into_iter().enumerate() {
            let cpu = if by_cpu || n % 2 == 0 { first } else { last };
            assert_eq!(program.run_with(cpu, &[number]).unwrap(), 0);
            // Each is yielded before the next is drawn, so that a smaller number is smaller than a yielded one.
            handle.flush().unwrap();
            loop {
                let event = reader.next().unwrap().unwrap();
                match event.item() {
                    Item::Record(record) => told.push(record.payload().unwrap().u64(0).unwrap().to_string()),
                    Item::Gap(gap) => {
                        assert_eq!((gap.cpu, event.certainty()), (by_cpu.then_some(first), Certainty::Proven));
                        told.push(format!("gap {}-{}", gap.first, gap.last));
                    }
                    Item::Anomaly(anomaly) => told.push(format!("{:?}", anomaly.kind)),
                    Item::Flushed { .. } => break,
                    other => panic!("{other:?}"),
                }
            }
        }
        let expected = "1000 1001 1002 gap 1003-1003 1004 Duplicate 1004 1005 Jump 500";
        assert_eq!(told.join(" "), expected, "by CPU: {by_cpu}");
    }
}

/// The status says for which CPU the stream waits for, while a fence does not end.
#[test]
fn status_says_what_a_stream_waits_for() {
    let Some((events, program)) = echo() else { return };
    let gate = Gate::new();
    let rings = Rings::options().bpf_output(&events).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::Fence(gate.fence()))).unwrap();
    let last = *load::online().last().unwrap();
    assert_eq!(program.run_with(last, &[1]).unwrap(), 0);
    assert_eq!(program.run_with(0, &[2]).unwrap(), 0);
    assert_eq!(program.run_with(0, &[3]).unwrap(), 0);
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    let status = reader.status();
    assert_eq!((status.held, status.next.unwrap().0), (3, last));
    let awaited = status.fence.unwrap();
    threads::until("the wait grows", || reader.status().fence.unwrap() > awaited);
    gate.open();
    for _ in 0..3 {
        assert!(reader.next_timeout(LONG).unwrap().is_some());
    }
    assert_eq!((reader.status().held, reader.status().next), (0, None));
}
