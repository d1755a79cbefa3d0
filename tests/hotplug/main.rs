//! CPUs that come and go, on the live machine. This runs in its own process, because a CPU goes offline for every
//! process.

#[expect(dead_code, reason = "each binary takes a part")]
#[path = "../reading/mod.rs"]
mod reading;

use perf_event_open_sys::bindings;
use perfweave::{
    ANY_CPU, Certainty, Clock, Ended, Error, Event, Fence, Hold, Item, Key, Layout, Order, Pause, Reader, Recorder,
    Ring, Rings, Untraced, Wakeup,
};
use perfweave_events::EventOptions;
use perfweave_proofs::Barrier;
use perfweave_support::bpf::{Keeping, Map, Program, Stamps};
use perfweave_support::numbered::Numbered;
use perfweave_support::supervised::{Answer, Call, supervised};
use perfweave_support::{
    assert_error, bpf, cpus, echo, hotplug, kernel, lacks, load, membarrier, needs, privilege, ring_buffer, threads,
    tracefs,
};
use std::ffi::CStr;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

/// A CPU that is offline until this is dropped.
struct Offline(u32);

impl Offline {
    fn one(cpu: u32) -> Option<Self> {
        kernel("take a CPU offline", cpus::set_online(cpu, false))?;
        Some(Self(cpu))
    }

    /// The last CPU, if there is more than one and it can go.
    fn last() -> Option<Self> {
        let cpus = load::online();
        needs("a second CPU that is online", cpus.len() > 1)?;
        Self::one(*cpus.last()?)
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        cpus::set_online(self.0, true).expect("the CPU comes back");
    }
}

/// All in one test: the machine has one set of CPUs.
#[test]
fn cpus_that_are_offline() {
    let Some(()) = hotplug() else { return };
    cpus::alone();
    let slots = load::slots();
    let Some((events, echo)) = echo() else { return };
    let Some(_) = kernel("find tracefs", perfweave_events::tracefs()) else { return };
    let Some(offline) = Offline::last() else { return };
    let gone = offline.0;

    // A CPU that is offline is skipped, whether it is named or not.
    for options in [Rings::options(), Rings::options().cpus(0..slots)] {
        let rings = options.bpf_output(&events).open().unwrap();
        assert_eq!(rings.cpus().collect::<Vec<_>>(), load::online());
        assert!(!load::online().contains(&gone));
        assert_error!(rings.raw(gone).unwrap_err(), NotFound, format!("CPU {gone} has no ring"));
    }
    let error = Rings::options().bpf_output(&events).cpus([gone]).open().unwrap_err();
    assert_error!(error, NotFound, format!("none of the CPUs [{gone}] is online; these are: {:?}", load::online()));

    // With one CPU left, membarrier returns at once and proves nothing: the fence uses the map.
    if load::online().len() == 1
        && membarrier()
        && let Some(calls) = calls_of_fences(&events, &echo)
    {
        assert!(calls.fences > 0 && calls.maps >= calls.fences && calls.membarriers == 0, "{calls:?}");
    }
    drop(offline);
    assert!(load::online().contains(&gone));
    if membarrier()
        && let Some(calls) = calls_of_fences(&events, &echo)
    {
        assert!(calls.fences > 0 && calls.membarriers >= calls.fences && calls.maps == 0, "{calls:?}");
    }

    goes_and_comes_back(&events, &echo, gone);
    goes_and_comes_back_while_a_reader_spins(gone);
    is_interrupted_again_when_it_is_back(gone);
    comes_back_before_anybody_looks(&events, &echo, gone);
    is_told_of_when_it_comes_back(&events, &echo, gone);
    was_not_there_when_the_rings_were_opened(&events, &echo, gone);
    changes_while_rings_are_opened(&events, &echo, gone);
    a_reader_that_is_closed_meanwhile(&events, &echo, gone);
    a_message_about_a_cpu_that_was_there_all_along(gone);
    a_probe_on_a_cpu_that_comes_back(gone);
    a_process_is_traced_on_a_cpu_that_comes_back(gone);
    a_process_that_has_got_the_number_of_another_is_not_traced_on_a_cpu_that_comes(gone);
    a_process_whose_threads_cannot_be_listed_is_not_taken_for_ended(gone);
    a_child_that_runs_on_is_told_of_on_a_cpu_that_comes(gone);
    a_control_group_is_traced_on_a_cpu_that_comes_back(gone);
    comes_to_a_slot_that_another_has(&events, &echo, gone);
    a_recorder_is_refused_it_for_a_time(&events, &echo, gone);
    is_refused_for_a_time(&events, &echo, gone);
    comes_when_privileges_were_dropped(&events, &echo, gone);
}

/// Whether an event of a CPU could not be opened.
fn is_of_opening(error: Option<&Error>, cpu: u32) -> bool {
    error
        .map(Error::to_string)
        .is_some_and(|said| said.starts_with("cannot open ") && said.contains(&format!(" on CPU {cpu}: ")))
}

/// Reads until the stream names a CPU that is not traced and, if a refusal is expected, until the reader reports it.
fn until_told(reader: &mut Reader, refused: bool) -> (Untraced, Option<Error>) {
    let (mut told, mut error) = (None, None);
    threads::until("it is told", || {
        match reader.next_timeout(Duration::from_millis(10)) {
            Ok(event) => match event.map(|event| (event.item(), event.key())) {
                Some((Item::Untraced(untraced), None)) => assert!(told.replace(untraced).is_none(), "told twice"),
                Some((other, _)) => panic!("{other:?}"),
                None => {}
            },
            Err(refusal) => assert!(error.replace(refusal).is_none(), "reported twice"),
        }
        told.is_some() && error.is_some() == refused
    });
    (told.unwrap(), error)
}

/// A CPU comes, or comes back, and the kernel refuses to open its events: an error reports it, the ledger has it, and
/// the reader tries again.
fn is_refused_for_a_time(events: &Map, echo: &Program, cpu: u32) {
    for had_ring in [true, false] {
        let (refused, tries) = (AtomicBool::new(false), AtomicU64::new(0));
        let judge = |call: &Call| match call.number {
            libc::SYS_perf_event_open if refused.load(Ordering::Relaxed) => {
                tries.fetch_add(1, Ordering::Relaxed);
                Answer::Fail(libc::EACCES)
            }
            _ => Answer::Make,
        };
        let done = supervised(judge, || {
            let mut offline = (!had_ring).then(|| Offline::one(cpu).expect("it went before"));
            let rings = Rings::options().bpf_output(events).open().unwrap();
            let mut reader = Reader::new(rings, Order::new()).unwrap();
            assert!(reader.ledger().unwrap().is_complete());
            refused.store(true, Ordering::Relaxed);
            drop(offline.take().or_else(|| Offline::one(cpu)));

            // The reader reports it with the reason, and the other CPUs go on.
            let (told, error) = until_told(&mut reader, true);
            assert!(is_of_opening(error.as_ref(), cpu), "{error:?}");
            assert_eq!((told.cpu, told.lasted), (cpu, None));
            assert!(echo.run_with(cpu, &[5]).unwrap() < 0, "no ring gets it");
            assert_eq!(echo.run_with(0, &[6]).unwrap(), 0);
            let event = reading::next(&mut reader);
            assert!(told.since < event.key() && told.since.is_some(), "{told:?} {event:?}");
            assert_eq!(number(event.event()), Some(6));
            drop(event);
            let ledger = reader.ledger().unwrap();
            assert!(!ledger.is_complete() && !ledger.total().is_balanced(), "{ledger}");
            assert!(ledger.to_string().contains("nothing of an online CPU was traced"), "{ledger}");
            let account = *ledger.accounts.iter().find(|account| account.cpu == Some(cpu)).unwrap();
            assert!(!account.untraced.is_zero(), "{account:?}");

            // The reader tries again, and does not report each failure.
            let before = tries.load(Ordering::Relaxed);
            threads::until("it is tried again", || {
                assert!(reader.next_timeout(Duration::from_millis(10)).unwrap().is_none());
                tries.load(Ordering::Relaxed) >= before + 2
            });
            refused.store(false, Ordering::Relaxed);
            let (over, _) = until_told(&mut reader, false);
            assert!(over.cpu == cpu && over.since == told.since && over.lasted >= Some(account.untraced), "{over:?}");
            assert_eq!(echo.run_with(cpu, &[7]).unwrap(), 0);
            assert_eq!(numbers(&mut reader, 1), [7]);
            let account = reader.ledger().unwrap().total();
            assert_eq!(Some(account.untraced), over.lasted);
            assert!(!account.is_complete(), "the account stays incomplete: {account}");
        });
        if kernel("supervise system calls", done).is_none() {
            return;
        }
    }
}

/// A recorder is complete after the time for which a CPU was refused.
fn a_recorder_is_refused_it_for_a_time(events: &Map, echo: &Program, cpu: u32) {
    let refused = AtomicBool::new(false);
    let judge = |call: &Call| match call.number {
        libc::SYS_perf_event_open if refused.load(Ordering::Relaxed) => Answer::Fail(libc::EACCES),
        _ => Answer::Make,
    };
    let done = supervised(judge, || {
        let recorder = Recorder::open(Rings::options().bpf_output(events).pages(1), &Fence::Auto);
        let Some(mut recorder) = kernel("open a recorder", recorder) else { return };
        recorder.freeze().unwrap();
        assert_eq!(recorder.complete_from(), None);
        refused.store(true, Ordering::Relaxed);
        drop(Offline::one(cpu));
        let mut error = None;
        threads::until("it is refused", || {
            error = recorder.follow_cpus().err();
            error.is_some()
        });
        assert!(is_of_opening(error.as_ref(), cpu), "{error:?}");
        recorder.freeze().unwrap();
        assert_eq!(recorder.complete_from(), Some(u64::MAX), "nothing is complete");
        refused.store(false, Ordering::Relaxed);
        threads::until("it is traced again", || {
            recorder.follow_cpus().unwrap();
            echo.run_with(cpu, &[1]).unwrap() == 0
        });
        let mut merge = reading::merged(recorder.freeze().unwrap());
        let written = merge.batch().last().unwrap();
        assert!(written.cpu() == Some(cpu) && recorder.complete_from() < written.key(), "{written:?}");
        assert!(recorder.complete_from().is_some(), "it was not traced for a time");
    });
    kernel("supervise system calls", done);
}

/// The remaining privileges of a thread decide whether its reader can trace a new CPU: none, or those of opening.
fn comes_when_privileges_were_dropped(events: &Map, echo: &Program, cpu: u32) {
    if privilege::perf_event_paranoid() < 1 {
        return lacks("a perf_event_paranoid that refuses unprivileged users");
    }
    let enough = match privilege::perf_event_paranoid() {
        ..=2 => privilege::CAP_PERFMON,
        _ => privilege::CAP_SYS_ADMIN,
    };
    for (kept, is_enough) in [(&[][..], false), (&[enough, privilege::CAP_BPF][..], true)] {
        let ((ready, is_ready), (there, is_there)) = (mpsc::channel(), mpsc::channel());
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let rings = Rings::options().bpf_output(events).pages(1).open().unwrap();
                let mut reader = Reader::new(rings, Order::new()).unwrap();
                privilege::keep(kept).unwrap();
                ready.send(()).unwrap();
                is_there.recv().unwrap();
                if is_enough {
                    wait_until_back(&mut reader, echo, cpu, 5000);
                    return assert!(!reader.ledger().unwrap().total().untraced.is_zero());
                }
                let (told, error) = until_told(&mut reader, true);
                assert!(is_of_opening(error.as_ref(), cpu) && told.cpu == cpu, "{error:?}");
                let said = error.unwrap().to_string();
                assert!(said.contains("CAP_PERFMON") || said.contains("CAP_SYS_ADMIN"), "{said}");
                assert_eq!(echo.run_with(0, &[6]).unwrap(), 0);
                assert_eq!(numbers(&mut reader, 1), [6]);
                assert!(!reader.ledger().unwrap().is_complete());
            });
            is_ready.recv().unwrap();
            drop(Offline::one(cpu));
            there.send(()).unwrap();
            reader.join().unwrap();
        });
    }
}

/// A probe is set again when its CPU is back, by a name of which only the rings have a copy.
fn a_probe_on_a_cpu_that_comes_back(cpu: u32) {
    let (_, file, offset) = perfweave_support::probe::place().unwrap();
    let Some(rings) = kernel("set a probe", Rings::options().uprobe(file, offset).open()) else { return };
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    for _ in 0..2 {
        // Until the CPU is back, which the reader must notice first.
        threads::until("calls on the CPU are seen", || {
            load::pinned(cpu, || perfweave_support::probe::probed(1));
            let event = reader.next_timeout(Duration::ZERO).unwrap();
            event.is_some_and(|event| event.record().is_some() && event.cpu() == Some(cpu))
        });
        drop(Offline::one(cpu));
        while reader.next_timeout(Duration::ZERO).unwrap().is_some() {}
    }
}

/// The CPU that shares its slot with CPU 0.
static SHARES: AtomicU32 = AtomicU32::new(u32::MAX);

/// A CPU comes whose slot is another CPU's: it gets no ring, an error says so once, and the other keeps its slot.
fn comes_to_a_slot_that_another_has(events: &Map, echo: &Program, cpu: u32) {
    SHARES.store(cpu, Ordering::Relaxed);
    let slot = |cpu: u32| if cpu == SHARES.load(Ordering::Relaxed) { 0 } else { cpu };
    let offline = Offline::one(cpu).expect("it went before");
    let rings = Rings::options().bpf_output(events).slots(slot).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    drop(offline);
    let mut refused = None;
    threads::until("the CPU is found, and refused", || {
        match reader.next_timeout(Duration::from_millis(10)) {
            Ok(event) => assert!(event.is_none(), "nothing was written"),
            Err(error) => refused = Some(error),
        }
        assert!(!reader.rings().cpus().any(|other| other == cpu), "it got a ring");
        refused.is_some()
    });
    let error = refused.unwrap();
    assert_error!(error, InvalidInput, format!("CPUs 0 and {cpu} would share slot 0"));
    assert_eq!(echo.run_with(0, &[1]).unwrap(), 0);
    assert_eq!(numbers(&mut reader, 1), [1]);
}

/// The system calls of the thread that waits for grace periods.
#[derive(Debug)]
struct Calls {
    fences: u64,
    membarriers: u64,
    maps: u64,
}

/// Counts what `Fence::Membarrier` calls while it proves ten events.
fn calls_of_fences(events: &Map, echo: &Program) -> Option<Calls> {
    let rings = Rings::options().bpf_output(events).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::Fence(Fence::Membarrier))).unwrap();
    assert_eq!(reader.fence(), Some("membarrier"));
    let thread = threads::named("perfweave-fence").expect("the reader's thread");
    let count = |call| {
        let count = Map::array(8, 1).unwrap();
        let counter = kernel("load a BPF program", bpf::count_syscalls(&count, Some(thread), Some(call)))?;
        let link = counter.attach_raw_tracepoint("sys_enter").unwrap();
        Some((count, link))
    };
    let counts = [count(libc::SYS_membarrier)?, count(libc::SYS_bpf)?];
    for number in 0..10 {
        assert_eq!(echo.run_with(0, &[number]).unwrap(), 0);
        let event = reading::next(&mut reader);
        assert_eq!((reading::number(&event.event()), event.certainty()), (number, Certainty::Proven));
    }
    let fences = reader.status().fences;
    let [membarriers, maps] = counts.map(|(count, _link)| count.lookup_u64(0, 0).unwrap());
    Some(Calls { fences, membarriers, maps })
}

/// The slot function of the options runs between listing the CPUs and watching them.
type Moment = Box<dyn FnMut(u32) + Send>;
static MOMENT: Mutex<Option<Moment>> = Mutex::new(None);

fn slot_and_moment(cpu: u32) -> u32 {
    if let Some(moment) = &mut *MOMENT.lock().unwrap() {
        moment(cpu);
    }
    cpu
}

fn at_slot(moment: impl FnMut(u32) + Send + 'static) {
    *MOMENT.lock().unwrap() = Some(Box::new(moment));
}

/// A CPU that comes, or goes and comes back, while rings are being opened.
fn changes_while_rings_are_opened(events: &Map, echo: &Program, cpu: u32) {
    let open = || Rings::options().bpf_output(events).slots(slot_and_moment).open().unwrap();
    let mut offline = Some(Offline::one(cpu).expect("it went before"));
    at_slot(move |_| drop(offline.take()));
    let mut reader = Reader::new(open(), Order::new()).unwrap();
    wait_until_back(&mut reader, echo, cpu, 5000);

    // Called once when slots are checked and once when events are opened. At the second call the CPU goes and comes
    // back.
    let mut asked = 0;
    at_slot(move |of| {
        asked += u32::from(of == cpu);
        if of == cpu && asked == 2 {
            drop(Offline::one(cpu));
        }
    });
    let mut reader = Reader::new(open(), Order::new()).unwrap();
    *MOMENT.lock().unwrap() = None;
    wait_until_back(&mut reader, echo, cpu, 5000);
}

/// A reader that is closed while it opens the ring of a new CPU starts nothing any more.
fn a_reader_that_is_closed_meanwhile(events: &Map, echo: &Program, cpu: u32) {
    let offline = Offline::one(cpu).expect("it went before");
    let rings = Rings::options().bpf_output(events).slots(slot_and_moment).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    let handle = reader.handle();
    at_slot(move |_| handle.close());
    drop(offline);
    threads::until("the CPU is found, and the reader closed", || {
        let event = reader.next_timeout(Duration::from_millis(10)).unwrap();
        assert!(event.is_none_or(|event| matches!(event.item(), Item::Untraced(_))));
        reader.ended().is_some()
    });
    *MOMENT.lock().unwrap() = None;
    assert_eq!(reader.ended(), Some(Ended::Closed));
    for cpu in [0, cpu] {
        assert_eq!(echo.run_with(cpu, &[1]).unwrap(), -libc::ENOENT);
    }
}

/// A message such as `udevadm trigger` causes: the events live, and nothing is opened a second time. When the CPU was
/// away, it is, whatever a read of the events says.
fn a_message_about_a_cpu_that_was_there_all_along(cpu: u32) {
    use perf_event_open_sys::bindings::{
        PERF_FORMAT_ID, PERF_SAMPLE_READ, PERF_SAMPLE_TID, PERF_TYPE_TRACEPOINT, perf_event_attr,
    };
    let Some(format) =
        kernel("find a tracepoint", tracefs::Format::of(perfweave_events::format_of("syscalls:sys_enter_getegid")))
    else {
        return;
    };
    for (sample_type, read_format) in [(0, 0), (PERF_SAMPLE_READ, PERF_FORMAT_ID)] {
        let mut attr = perf_event_attr { type_: PERF_TYPE_TRACEPOINT, ..perf_event_attr::default() };
        (attr.config, attr.sample_period) = (format.id.into(), 1);
        (attr.sample_type, attr.read_format) = ((sample_type | PERF_SAMPLE_TID).into(), read_format.into());
        let rings = Rings::options().event(&attr).open().unwrap();
        let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
        for round in 0..3 {
            let caller = load::pinned(cpu, || {
                (0..10).for_each(|_| load::getegid());
                threads::own()
            });
            let mut records = 0;
            // Other threads may call it too.
            let is_ours = |event: Event<'_>| event.record().is_some_and(|r| r.pid_tid().unwrap().1 == caller as u32);
            reading::all(&mut reader, |event| records += usize::from(is_ours(event)));
            assert_eq!(records, 10, "each once");
            match round {
                0 => std::fs::write(format!("/sys/devices/system/cpu/cpu{cpu}/uevent"), "add").unwrap(),
                _ => drop(Offline::one(cpu)),
            }
            a_tick_later(&mut reader, |event| assert!(!is_ours(event)));
        }
    }
}

/// Lets the reader notice which CPUs are online, at its tick.
fn a_tick_later(reader: &mut Reader, mut each: impl FnMut(Event<'_>)) {
    while let Some(event) = reader.next_timeout(2 * reading::TICK).unwrap() {
        each(event.event());
    }
}

/// A CPU that goes offline loses no record and delays no other CPU; when it is back, it writes into its old ring.
fn goes_and_comes_back(events: &Map, echo: &Program, cpu: u32) {
    let rings = Rings::options().bpf_output(events).tracepoint("syscalls:sys_enter_getegid").open().unwrap();
    let both = rings.cpus().len();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    for round in 0..3 {
        for n in 0..10 {
            assert_eq!(echo.run_with(cpu, &[n]).unwrap(), 0);
            assert_eq!(echo.run_with(0, &[100 + n]).unwrap(), 0);
        }
        let offline = Offline::one(cpu).expect("it went before");
        // All its earlier records are there, in order, and records of other CPUs do not wait for it.
        assert_eq!(echo.run_with(0, &[1000]).unwrap(), 0);
        let expected: Vec<u64> = (0..10).flat_map(|n| [n, 100 + n]).chain([1000]).collect();
        assert_eq!(numbers(&mut reader, expected.len()), expected, "round {round}");
        drop(offline);
        wait_until_back(&mut reader, echo, cpu, 5000);
        for n in 0..10 {
            assert_eq!(echo.run_with(cpu, &[6000 + n]).unwrap(), 0);
            assert_eq!(echo.run_with(0, &[7000 + n]).unwrap(), 0);
        }
        let expected: Vec<u64> = (0..10).flat_map(|n| [6000 + n, 7000 + n]).collect();
        assert_eq!(numbers(&mut reader, expected.len()), expected, "round {round}");
        assert_eq!(reader.rings().cpus().len(), both, "it writes into the ring it had");
        // The other event in the ring is back too.
        assert_eq!(calls(&mut reader, cpu), 10, "sys_enter_getegid on CPU {cpu} after it came back");
    }
    assert_eq!((reader.status().total().late, reader.status().total().damaged), (0, 0));
}

/// A reader that proves by epochs and does not sleep: no event is late, all events come out, and numbers are complete.
fn goes_and_comes_back_while_a_reader_spins(cpu: u32) {
    let (events, counter) = (Map::perf_event_array(load::slots()).unwrap(), Map::array(8, 1).unwrap());
    let words = Map::epochs(load::slots()).unwrap();
    let stamps = Stamps { events: &events, counter: &counter, epochs: Some((&words, Keeping::Rightly)) };
    let Some(program) = kernel("load a BPF program", stamps.when_run(1)) else { return };
    let Some(hold) = reading::epochs(&words) else { return };
    let rings = Rings::options().bpf_output(&events).open().unwrap();
    let order = Order::new().hold(hold).spin(Duration::MAX);
    let mut reader = Reader::new(rings, order).unwrap();
    let taken = AtomicU64::new(0);
    let (mut written, mut refused) = (0, 0);
    for _ in 0..3 {
        let before = taken.load(Ordering::Acquire);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let write = |cpu| assert_eq!(program.run_on(cpu).unwrap(), 0);
                (0..10).for_each(|_| [cpu, 0].into_iter().for_each(write));
                threads::until("they are read", || taken.load(Ordering::Acquire) == before + 20);
                let offline = Offline::one(cpu).expect("it went before");
                (0..10).for_each(|_| write(0));
                threads::until("they are read", || taken.load(Ordering::Acquire) == before + 30);
                drop(offline);
                (0..10).for_each(|_| write(0));
            });
            let mut nth = 0;
            while nth < 40 {
                let event = reading::next(&mut reader);
                // The CPU is not traced for a moment when it comes back, which is told at any time.
                if matches!(event.item(), Item::Untraced(_)) {
                    continue;
                }
                nth += 1;
                let number = event.record().and_then(|record| record.payload()?.u64(8));
                assert_eq!((number, event.certainty()), (Some(written), Certainty::Proven), "{event:?}");
                drop(event);
                written += 1;
                taken.store(before + nth, Ordering::Release);
            }
            writer.join().unwrap();
        });
        // Until the reader has attached its ring again, its outputs fail: the number is drawn, and missing.
        threads::until("the CPU is back and the reader has noticed", || {
            [cpu, 0].into_iter().for_each(|cpu| assert_eq!(program.run_on(cpu).unwrap(), 0));
            let (mut back, mut found) = (false, false);
            while !found {
                let event = reading::next(&mut reader);
                if event.record().is_some() {
                    back |= event.cpu() == Some(cpu);
                    found = event.cpu() == Some(0);
                }
            }
            refused += u64::from(!back);
            written += 2;
            back
        });
    }
    reading::all(&mut reader, |event| panic!("{event:?}"));
    let (status, ledger) = (reader.status(), reader.ledger().unwrap());
    assert_eq!((status.total().late, status.total().damaged), (0, 0));
    let total = ledger.total();
    assert!(
        (total.lost, total.missing) == (0, 0) && !ledger.is_complete(),
        "not traced while it came back: {ledger:?}"
    );
    assert_eq!((total.yielded, total.held), (written - refused, 0), "{ledger:?}");
}

/// How often a CPU has handled calls of other CPUs, such as a read of an event that runs there.
fn calls_handled(cpu: u32) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap();
    let mut lines = text.lines();
    let column = lines.next()?.split_whitespace().position(|name| name == format!("CPU{cpu}"))?;
    let counts = lines.find(|line| line.to_lowercase().contains("function call interrupts"))?;
    counts.split_whitespace().nth(1 + column)?.parse().ok()
}

/// A reader that interrupts every CPU before each proof: what it reads to interrupt a CPU is dead when that CPU was
/// offline, also if the list of CPUs has not changed since.
fn is_interrupted_again_when_it_is_back(cpu: u32) {
    let made = Map::ring_buffer(1 << 16).and_then(|map| Ok((ring_buffer::echo(&map, 8, 0)?, map)));
    let Some((program, map)) = kernel("make a BPF ring buffer", made) else { return };
    if calls_handled(cpu).is_none() {
        return lacks("counts of function call interrupts");
    }
    let open = || {
        let mut rings = Rings::empty(Clock::Monotonic);
        // SAFETY: one reader at a time.
        rings.add(ANY_CPU, unsafe { Ring::adopt_ring_buffers(&map) }.unwrap().remove(0).1, Layout::RING_BUFFER);
        let barrier = Barrier::Interrupts { every: Duration::ZERO, isolated: true };
        Reader::new(rings, Order::new().key(Key::Payload(0)).hold(Hold::Fence(barrier.fence()))).unwrap()
    };
    let number = AtomicU64::new(0);
    let prove = |reader: &mut Reader, on: u32| {
        let next = 1 + number.fetch_add(1, Ordering::Relaxed);
        assert_eq!(program.run_with(on, &[next]).unwrap(), 0);
        let event = reading::next(reader);
        assert_eq!((event.key(), event.certainty()), (Some(next), Certainty::Proven));
    };
    // Every proof interrupts it, and opens nothing. The program runs on the reader's CPU: to run it on another
    // interrupts that one too.
    let all_interrupt = |reader: &mut Reader, from: u32, cpu: u32, when: &str| {
        prove(reader, cpu);
        let opened = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = (calls_handled(cpu).unwrap(), opened());
        (0..500).for_each(|_| prove(reader, from));
        let calls = calls_handled(cpu).unwrap() - before.0;
        assert!(calls >= 500, "{when}: {calls} interrupts for 500 proofs");
        assert_eq!(opened(), before.1, "{when}");
    };
    let is_interrupted = |reader: &mut Reader, when: &str| all_interrupt(reader, 0, cpu, when);
    // The reader runs on another CPU, since none interrupts itself.
    load::pinned(0, || {
        let mut reader = open();
        is_interrupted(&mut reader, "at first");
        for _ in 0..2 {
            let offline = Offline::one(cpu).expect("it went before");
            (0..5).for_each(|_| prove(&mut reader, 0));
            drop(offline);
            is_interrupted(&mut reader, "after the reader saw that it was away");
            drop(Offline::one(cpu));
            is_interrupted(&mut reader, "after it was away between two proofs");
        }
        drop(reader);
        let offline = Offline::one(cpu);
        let mut reader = open();
        prove(&mut reader, 0);
        drop(offline);
        is_interrupted(&mut reader, "that came later than the reader");
        assert_eq!(reader.status().total().late, 0);
    });
    // The first too.
    load::pinned(cpu, || all_interrupt(&mut open(), cpu, 0, "from another CPU"));
}

/// A CPU goes and comes back between two checks of the list of CPUs, which is the same again: only its stay is another.
/// The stream tells of it.
fn comes_back_before_anybody_looks(events: &Map, echo: &Program, cpu: u32) {
    for written_before in [0, 5] {
        let rings = Rings::options().bpf_output(events).open().unwrap();
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        // Past the first check.
        a_tick_later(&mut reader, |event| panic!("{event:?}"));
        for n in 0..written_before {
            assert_eq!(echo.run_with(cpu, &[n]).unwrap(), 0);
        }
        drop(Offline::one(cpu));
        assert_eq!(numbers(&mut reader, written_before as usize), (0..written_before).collect::<Vec<_>>());
        wait_until_back(&mut reader, echo, cpu, 5000);
        assert!(!reader.ledger().unwrap().total().untraced.is_zero());
    }
}

/// Outputs fail until the reader has noticed that a CPU has come, or come back. The stream says for how long, once, and
/// the ledger is complete no more.
fn is_told_of_when_it_comes_back(events: &Map, echo: &Program, cpu: u32) {
    for had_ring in [true, false] {
        let mut offline = (!had_ring).then(|| Offline::one(cpu).expect("it went before"));
        let rings = Rings::options().bpf_output(events).open().unwrap();
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        // Past the first check.
        a_tick_later(&mut reader, |event| panic!("{event:?}"));
        assert!(reader.ledger().unwrap().is_complete());
        drop(offline.take().or_else(|| Offline::one(cpu)));
        assert!(echo.run_with(cpu, &[5]).unwrap() < 0, "no ring gets it");
        let (told, _) = until_told(&mut reader, false);
        assert!(told.cpu == cpu && told.since.is_some() && told.lasted.is_some(), "{told:?}");
        assert_eq!(echo.run_with(cpu, &[6]).unwrap(), 0);
        let event = reading::next(&mut reader);
        assert!(number(event.event()) == Some(6) && told.since < event.key(), "{told:?} {event:?}");
        drop(event);
        reading::assert_nothing(&mut reader);
        let ledger = reader.ledger().unwrap();
        assert!(!ledger.is_complete() && Some(ledger.total().untraced) == told.lasted, "{ledger}");
    }
}

/// A CPU that never had a ring gets one, and wakes a sleeping reader as the others do.
fn was_not_there_when_the_rings_were_opened(events: &Map, echo: &Program, cpu: u32) {
    let offline = Offline::one(cpu).expect("it went before");
    // Woken for each event, so that the reader's own tick does not hide a missing wake-up.
    let rings = Rings::options().bpf_output(events).wakeup(Wakeup::Events(1)).open().unwrap();
    assert!(!rings.cpus().any(|other| other == cpu));
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    let handle = reader.handle();
    a_tick_later(&mut reader, |event| panic!("{event:?}"));
    // A present pause applies to it too.
    handle.pause(Pause::Slots).unwrap();
    drop(offline);
    threads::until("it is picked up", || {
        let event = reader.next_timeout(Duration::from_millis(10)).unwrap();
        assert!(event.is_none_or(|event| matches!(event.item(), Item::Untraced(_))));
        reader.rings().cpus().any(|other| other == cpu)
    });
    assert_eq!(echo.run_with(cpu, &[1]).unwrap(), -libc::ENOENT, "paused");
    handle.resume().unwrap();
    let woken = reading::wakes(|| {
        let (woken, given) = reading::woken_by(&mut reader, || assert_eq!(echo.run_with(cpu, &[5]).unwrap(), 0));
        assert_eq!(given.unwrap(), reading::Given::Number(5));
        woken
    });
    assert!(woken, "the reader was never woken, and refreshed at its tick");
}

/// Reads until the CPU's output comes again, and then all of its records.
fn wait_until_back(reader: &mut Reader, echo: &Program, cpu: u32, mark: u64) {
    threads::until("the CPU is back and the reader has noticed", || {
        let written = echo.run_with(cpu, &[mark]).unwrap() == 0;
        if !written {
            // It checks for CPUs when it has no event.
            reading::all(reader, |event| assert!(number(event).is_none()));
        }
        written
    });
    assert_eq!(numbers(reader, 1), [mark]);
}

/// The number that the echo program wrote; `None` for other events.
fn number(event: Event<'_>) -> Option<u64> {
    let record = event.record()?;
    (record.source() == Some(0)).then(|| record.payload().unwrap().u64(0).unwrap())
}

/// The next numbers that the echo program wrote.
fn numbers(reader: &mut Reader, count: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        numbers.extend(number(reading::next(reader).event()));
    }
    numbers
}

/// How many calls of getegid(2) are recorded for a thread that makes ten on a CPU. Other threads may make some too.
fn calls(reader: &mut Reader, cpu: u32) -> usize {
    let caller = load::pinned(cpu, || {
        (0..10).for_each(|_| load::getegid());
        threads::own()
    });
    let mut found = 0;
    reading::all(reader, |event| {
        let Some(record) = event.record().filter(|record| record.source() == Some(1)) else { return };
        // common_pid is the fourth common field of every tracepoint, after a u16 and two u8.
        let is_its_own = record.payload().and_then(|payload| payload.u32(4)) == Some(caller as u32);
        found += usize::from(record.cpu() == cpu && is_its_own);
    });
    found
}

/// Events of a process continue when a CPU comes back, each record once. They belong to the threads and not to the CPU.
fn a_process_is_traced_on_a_cpu_that_comes_back(cpu: u32) {
    let options = Rings::options()
        .tracepoint("syscalls:sys_enter_getppid")
        .records([bindings::PERF_RECORD_EXIT])
        .sample(bindings::PERF_SAMPLE_TID);
    let Some(rings) = kernel("trace a process", options.pid(std::process::id()).open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    for _ in 0..3 {
        let offline = Offline::one(cpu);
        reading::all(&mut reader, |_| {});
        drop(offline);
        let tid = load::pinned(cpu, || {
            (0..40).for_each(|_| load::getppid());
            threads::own() as u32
        });
        let (mut calls, mut exits) = (0, 0);
        reading::all(&mut reader, |event| {
            let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
            if record.pid_tid().unwrap().1 == tid {
                assert_eq!(record.cpu(), cpu);
                calls += usize::from(record.source() == Some(0));
                exits += usize::from(record.kind() == bindings::PERF_RECORD_EXIT);
            }
        });
        assert_eq!((calls, exits), (40, 1));
    }
    // A process that has ended needs no events.
    let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let options = Rings::options().tracepoint("syscalls:sys_enter_getppid").pid(child.id());
    let mut reader = Reader::new(options.open().unwrap(), Order::new()).unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    drop(Offline::one(cpu));
    a_tick_later(&mut reader, |event| panic!("{event:?}"));
}

/// The traced process has ended and its child runs on. Nothing lists the child when a CPU comes, so it is reported that
/// the CPU is not traced.
fn a_child_that_runs_on_is_told_of_on_a_cpu_that_comes(cpu: u32) {
    let offline = Offline::one(cpu).expect("it went before");
    let mut shell = std::process::Command::new("sh");
    let shell = shell.args(["-c", "sleep 100 >/dev/null 2>&1 & echo $!; read x"]).stdin(std::process::Stdio::piped());
    let mut shell = shell.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let child = nix::unistd::Pid::from_raw(line.trim().parse().unwrap());
    let options = Rings::options().tracepoint("syscalls:sys_enter_getppid").pid_tree(shell.id());
    let mut reader = Reader::new(options.open().unwrap(), Order::new()).unwrap();
    drop(shell.stdin.take());
    shell.wait().unwrap();
    drop(offline);
    let (told, error) = until_told(&mut reader, true);
    assert_eq!((told.cpu, told.lasted), (cpu, None));
    assert!(error.as_ref().is_some_and(|error| error.to_string().contains("runs on")), "{error:?}");
    nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(until_told(&mut reader, false).0.cpu, cpu, "there is nothing left to trace");
}

/// The target process has ended, and another process has its number when a CPU comes.
fn a_process_that_has_got_the_number_of_another_is_not_traced_on_a_cpu_that_comes(cpu: u32) {
    let options = || Rings::options().tracepoint("syscalls:sys_enter_getppid").pages(8);
    let offline = Offline::one(cpu).expect("it went before");
    let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut reader = Reader::new(options().pid(child.id()).open().unwrap(), Order::new()).unwrap();
    // A second reader shows when the CPU could have been noticed.
    let mut witness = Reader::new(options().open().unwrap(), Order::new().hold(Hold::None)).unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    let Some(mut other) = kernel("choose a process's number", Numbered::start(child.id())) else { return };
    drop(offline);
    threads::until("the CPU is noticed", || {
        reading::all(&mut witness, |_| {});
        witness.rings().cpus().any(|other| other == cpu)
    });
    a_tick_later(&mut reader, |event| panic!("{event:?}"));
    other.call(cpu, 100);
    let mut records = 0;
    reading::all(&mut reader, |event| records += usize::from(event.record().is_some()));
    assert_eq!(records, 0, "calls of a process that was never asked for");
}

/// A CPU comes and the threads of the traced process cannot be listed, as where `/proc` is not mounted. The process
/// runs on, so it is reported that the CPU is not traced.
fn a_process_whose_threads_cannot_be_listed_is_not_taken_for_ended(cpu: u32) {
    let (refused, tasks) = (AtomicBool::new(false), format!("/proc/{}/task", std::process::id()));
    // SAFETY: the path of the thread that waits for us.
    let is_list = |path: u64| unsafe { CStr::from_ptr(path as *const _) }.to_bytes() == tasks.as_bytes();
    let judge = |call: &Call| match call.number {
        libc::SYS_openat if refused.load(Ordering::Relaxed) && is_list(call.args[1]) => Answer::Fail(libc::ENOENT),
        _ => Answer::Make,
    };
    let done = supervised(judge, || {
        let offline = Offline::one(cpu).expect("it went before");
        let options = Rings::options().tracepoint("syscalls:sys_enter_getppid").pid(std::process::id());
        let Some(rings) = kernel("trace a process", options.open()) else { return };
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        refused.store(true, Ordering::Relaxed);
        drop(offline);
        let (told, error) = until_told(&mut reader, true);
        assert_eq!((told.cpu, told.lasted), (cpu, None));
        assert!(error.as_ref().is_some_and(|error| error.raw_os_error() == Some(libc::ENOENT)), "{error:?}");
        refused.store(false, Ordering::Relaxed);
        assert_eq!(until_told(&mut reader, false).0.cpu, cpu);
    });
    kernel("supervise system calls", done);
}

/// Events of a control group die with their CPU, and are opened again. The root control group has all processes.
fn a_control_group_is_traced_on_a_cpu_that_comes_back(cpu: u32) {
    let Some(root) = kernel("find control groups", perfweave_support::cpus::control_groups()) else { return };
    let options = Rings::options().tracepoint("syscalls:sys_enter_getppid").cgroup(root);
    let Some(rings) = kernel("trace a control group", options.open()) else { return };
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    for _ in 0..2 {
        threads::until("calls on the CPU are seen", || {
            load::pinned(cpu, load::getppid);
            let event = reader.next_timeout(Duration::ZERO).unwrap();
            event.is_some_and(|event| event.record().is_some() && event.cpu() == Some(cpu))
        });
        drop(Offline::one(cpu));
        while reader.next_timeout(Duration::ZERO).unwrap().is_some() {}
    }
}
