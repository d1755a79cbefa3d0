//! Every system call that the crate makes, failing one at a time: while rings are opened, read, flushed, paused and
//! closed, while BPF ring buffers are adopted and read, when a CPU comes back, in fences, in the recorder, under tokio.
//!
//! A case is one call, such as the third perf_event_open(2) of a scenario, and one error. The scenario is run once to
//! count its calls, and then once for each case. For each failure the crate gives a typed error that contains it, or
//! the failure has no effect. All events come, in order; the ledger balances; nothing stays open, mapped, running or in
//! a slot; the number of calls is bounded; and no thread panics. Each test runs in its own process, because it counts
//! the open things of the process.

mod scenarios;
mod world;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use perfweave::{Certainty, Clock, ErrorKind, EventGuard, Fence, Hold, Item, Key, Layout, Order, Reader, Ring, Rings};
use perfweave_events::EventOptions;
use perfweave_proofs::Barrier;
use perfweave_support::supervised::{Answer, Call, supervised};
use perfweave_support::{apart, kernel, threads};
use scenarios::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;
use world::{
    Aim, Heard, MAP_DELETE_ELEM, Open, Run, SET_FILTER, Which, World, another_stay, errno, instances_left, is_poll,
    is_stay,
};

/// The code that runs while calls fail.
type Scenario = fn(&World, &mut Heard);

/// Fails each call of a scenario, at each of its places, with each error, or with this many of them.
fn fail_each(world: &mut World, name: &str, scenario: Scenario, errors: usize) {
    // First makes the things that a process makes only once.
    world.run(scenario, None);
    let (counted, heard) = world.run(scenario, None);
    assert!(heard.errors.is_empty(), "{name}: {:?}", heard.errors);
    let open = Open::now();
    let all: usize = counted.calls.values().sum();
    let (mut cases, mut hits) = (0, 0);
    for (&which, &times) in &counted.calls {
        for nth in 1..=times {
            for errno in which.errors().iter().copied().take(errors) {
                let aim = Aim { which, nth, errno, forever: false };
                let (run, heard) = world.run(scenario, Some(aim));
                cases += 1;
                hits += run.hits;
                check(world, name, aim, all, &run, &heard);
                assert_eq!(Open::now(), open, "{name}: {aim:?}");
            }
        }
    }
    // Some calls are made only if another thread is slow, such as a wait.
    assert!(hits * 2 > cases, "{name}: {hits} of {cases} hit");
    eprintln!("{name}: {all} calls of {} kinds, {cases} cases, {hits} of them hit", counted.calls.len());
}

/// Checks what must hold in every case.
fn check(world: &World, name: &str, aim: Aim, all: usize, run: &Run, heard: &Heard) {
    let said = || format!("{name}: {aim:?}: {:?}", heard.errors);
    assert!(heard.errors.len() <= run.hits, "{}", said());
    assert!(!aim.which.matters() || aim.forever || heard.errors.len() == run.hits, "{}: no error reported it", said());
    for error in &heard.errors {
        assert!(errno(error).is_none_or(|errno| errno == aim.errno), "{}", said());
        assert!(!error.to_string().contains("died") && !error.to_string().contains("panicked"), "{}", said());
    }
    // On a slow machine, a reader that sleeps as long as intended may have to sleep often; so may a caller that polls
    // for a fence.
    let made: usize = run.calls.iter().filter(|(which, _)| !is_poll(which.number)).map(|(_, times)| times).sum();
    let bound = 3 * all + 400 + 20 * heard.sleeps as usize;
    assert!(made <= bound, "{}: {made} calls, {} sleeps: {:?}", said(), heard.sleeps, run.calls);
    for &(at, len) in &run.kept {
        // SAFETY: its owner wanted it unmapped, and is gone.
        assert_eq!(unsafe { libc::munmap(at as *mut _, len as usize) }, 0);
    }
    // Slots are empty, unless the emptying itself failed; and the same maps can be used again.
    let left = world.cpus.iter().filter(|cpu| world.emit(**cpu, 0) != -libc::ENOENT).count();
    let slots = aim.which.number == libc::SYS_bpf && aim.which.detail == MAP_DELETE_ELEM;
    assert!(left <= if slots { run.hits } else { 0 }, "{}: {left} slots", said());
    let instances = instances_left();
    assert!(
        instances <= if aim.which.number == libc::SYS_rmdir { run.hits } else { 0 },
        "{}: {instances} left",
        said()
    );
    let rings = world.options().open().unwrap();
    assert_eq!(rings.cpus().len(), world.cpus.len());
    assert!(world.cpus.iter().all(|cpu| world.emit(*cpu, 0) == 0), "{}", said());
}

/// Fails all calls of a kind from one on, for ever: nothing need work, but nothing spins, panics or leaks.
fn refuse_each(world: &mut World, name: &str, scenario: Scenario) {
    world.run(scenario, None);
    let (counted, _) = world.run(scenario, None);
    let open = Open::now();
    let all: usize = counted.calls.values().sum();
    world.forever = true;
    let mut cases = 0;
    for (&which, &times) in &counted.calls {
        // No kernel interrupts every wait.
        let errno = *which.errors().iter().find(|errno| **errno != libc::EINTR).expect("an error");
        let mut at = vec![1, times.div_ceil(2), times];
        at.dedup();
        for nth in at {
            let aim = Aim { which, nth, errno, forever: true };
            let (run, heard) = world.run(scenario, Some(aim));
            cases += 1;
            check(world, name, aim, all, &run, &heard);
            assert_eq!(Open::now(), open, "{name}: {aim:?}");
        }
    }
    world.forever = false;
    eprintln!("{name}, refused for ever: {cases} cases");
}

#[test]
fn every_call_may_fail() {
    apart!();
    let Some(mut world) = World::new() else { return };
    fail_each(&mut world, "opening", opening, 4);
    fail_each(&mut world, "opening by name", opening_by_name, 1);
    fail_each(&mut world, "opening for some", opening_for_some, 1);
    fail_each(&mut world, "fencing by any", fencing_by_any, 1);
    fail_each(&mut world, "fencing by membarrier", fencing_by_membarrier, 1);
    fail_each(&mut world, "fencing by map", fencing_by_map, 1);
}

#[test]
fn every_call_of_a_reader_may_fail() {
    apart!();
    let Some(mut world) = World::new() else { return };
    fail_each(&mut world, "reading", reading, 3);
    refuse_each(&mut world, "reading", reading);
}

#[test]
fn every_call_of_a_recorder_may_fail() {
    apart!();
    let Some(mut world) = World::new() else { return };
    fail_each(&mut world, "recording", recording, 2);
}

#[cfg(feature = "tokio")]
#[test]
fn every_call_under_tokio_may_fail() {
    apart!();
    let Some(mut world) = World::new() else { return };
    fail_each(&mut world, "reading under tokio", reading_under_tokio, 2);
}

/// By name where tracefs is mounted nowhere, so that it is opened without a mount: in a mount namespace of its own.
#[test]
fn every_call_may_fail_where_tracefs_is_not_mounted() {
    apart!();
    let beside = std::thread::spawn(|| {
        kernel("leave the mount namespace", unshare(CloneFlags::CLONE_NEWNS))?;
        const NONE: Option<&str> = None;
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        for path in ["/sys/kernel/tracing", "/sys/kernel/debug"] {
            while umount2(path, MntFlags::MNT_DETACH).is_ok() {}
        }
        let mut world = World::new()?;
        let (counted, _) = world.run(opening_by_name, None);
        for number in [libc::SYS_fsopen, libc::SYS_fsconfig, libc::SYS_fsmount] {
            assert!(counted.calls.keys().any(|which| which.number == number), "{:?}", counted.calls);
        }
        fail_each(&mut world, "opening by name without a mount", opening_by_name, 1);
        Some(())
    });
    beside.join().unwrap();
}

/// Of BPF ring buffers: each failure is a typed error, or proves nothing.
#[test]
fn every_call_for_ring_buffers_may_fail() {
    apart!();
    let Some(mut world) = World::new() else { return };
    if world.buffers.is_some() {
        fail_each(&mut world, "reading BPF ring buffers", reading_ring_buffers, 2);
        refuse_each(&mut world, "reading BPF ring buffers", reading_ring_buffers);
    }
}

/// A CPU goes offline after it was listed and before its event is opened: nothing is proven wrongly, and it is no
/// error.
#[test]
fn a_cpu_that_goes_before_it_is_interrupted_is_no_error() {
    apart!();
    let Some(world) = World::new() else { return };
    if world.buffers.is_none() {
        return;
    }
    let which = Which { beside: false, number: libc::SYS_perf_event_open, detail: 0 };
    // At first, and once more when all look dead.
    for nth in 1..=2 * world.cpus.len() {
        let aim = Aim { which, nth, errno: libc::ENODEV, forever: false };
        let (run, heard) = world.run(reading_ring_buffers, Some(aim));
        assert!(run.hits == 1 && heard.errors.is_empty(), "{nth}: {:?}", heard.errors);
    }
}

/// A CPU that goes offline has no events long before it is off the list, on a slow machine. The proof waits for that
/// and is no error, and nothing is proven meanwhile.
#[test]
fn a_cpu_that_takes_long_to_go_is_waited_for() {
    apart!();
    let Some(world) = World::new() else { return };
    let Some(maps) = world.buffers.clone() else { return };
    let (goes, tries) = (AtomicBool::new(false), AtomicI32::new(0));
    let judge = |call: &Call| match call.number {
        // A read of an event's running time has a buffer of this size. The answer: it did not run.
        libc::SYS_read if call.args[2] == 128 && goes.load(Ordering::Relaxed) => {
            // SAFETY: so long is the buffer of the thread that waits for us.
            unsafe { std::ptr::write_bytes(call.args[1] as *mut u8, 0, 128) };
            Answer::Say(24)
        }
        libc::SYS_perf_event_open if goes.load(Ordering::Relaxed) => {
            tries.fetch_add(1, Ordering::Relaxed);
            Answer::Fail(libc::ENODEV)
        }
        _ => Answer::Make,
    };
    let seen = supervised(judge, || {
        let mut rings = Rings::empty(Clock::Monotonic);
        // SAFETY: the map has no other reader.
        let adopted = unsafe { Ring::adopt_ring_buffers(&maps.0) }.unwrap();
        adopted.into_iter().for_each(|(cpu, ring)| rings.add(cpu, ring, Layout::RING_BUFFER));
        let barrier = Barrier::Interrupts { every: Duration::from_micros(100), isolated: true };
        let order = Order::new().key(Key::Payload(0)).hold(Hold::Fence(barrier.fence()));
        let mut reader = Reader::new(rings, order).unwrap();
        goes.store(true, Ordering::Relaxed);
        assert!(world.write(world.cpus[0], 1));
        // For longer than a CPU takes on any fast machine, which was the limit once.
        for _ in 0..100 {
            let given = reader.next_timeout(Duration::from_millis(5));
            assert!(given.unwrap_or_else(|error| panic!("{error}: {}", tries.load(Ordering::Relaxed))).is_none());
        }
        assert!(tries.load(Ordering::Relaxed) > 0 && reader.status().fences_failed == 0);
        goes.store(false, Ordering::Relaxed);
        let event = reader.next_timeout(threads::GUARD).unwrap().expect("it comes");
        (event.key(), event.certainty())
    });
    assert_eq!(seen.unwrap(), (Some(1), Certainty::Proven));
}

/// A thread that waits for a fence by poll(2), which is refused, checks the fence now and then, not all the time.
#[test]
fn a_poll_that_is_refused_is_no_reason_to_spin() {
    apart!();
    let Some(()) = kernel("supervise system calls", supervised(|_| Answer::Make, || ())) else { return };
    let over = Arc::new(AtomicBool::new(false));
    let main = AtomicI32::new(0);
    let (mut polls, mut sleeps) = (0, 0);
    let judge = |call: &Call| {
        let answer = match call.number {
            _ if call.thread != main.load(Ordering::Relaxed) => Answer::Make,
            number if is_poll(number) => {
                polls += 1;
                Answer::Fail(libc::EPERM)
            }
            libc::SYS_nanosleep | libc::SYS_clock_nanosleep => {
                sleeps += 1;
                Answer::Make
            }
            _ => Answer::Make,
        };
        over.store(sleeps >= 5 || polls >= 1000, Ordering::Relaxed);
        answer
    };
    let waited = supervised(judge, || {
        let ended = Arc::clone(&over);
        let fence = Fence::by(move || {
            threads::until("it was polled", || ended.load(Ordering::Relaxed));
            Ok(())
        });
        let mut periods = fence.open().unwrap();
        main.store(threads::own(), Ordering::Relaxed);
        periods.wait()
    });
    waited.unwrap().unwrap();
    assert!(polls <= sleeps + 10, "{polls} polls, {sleeps} sleeps");
}

/// A CPU went and came back, and when the kernel had sent a message the list of CPUs could not be read. The message
/// comes once, and the reader remembers it.
#[test]
fn a_cpu_that_bounced_when_none_could_be_listed_is_opened_anew() {
    apart!();
    let Some(world) = World::new() else { return };
    let (unlisted, away, opened) = (AtomicBool::new(false), AtomicBool::new(false), AtomicI32::new(0));
    let judge = |call: &Call| match call.number {
        // The number of the last message is shorter.
        libc::SYS_pread64 if call.args[2] > 24 && unlisted.swap(false, Ordering::Relaxed) => Answer::Fail(libc::EIO),
        _ if is_stay(call) && away.load(Ordering::Relaxed) => another_stay(call),
        libc::SYS_perf_event_open if away.load(Ordering::Relaxed) => {
            opened.fetch_add(1, Ordering::Relaxed);
            Answer::Make
        }
        _ => Answer::Make,
    };
    supervised(judge, || {
        let mut reader = Reader::new(world.options().open().unwrap(), Order::new().hold(Hold::None)).unwrap();
        // The reader has checked all CPUs once.
        assert!(reader.next_timeout(Duration::from_millis(200)).unwrap().is_none());
        away.store(true, Ordering::Relaxed);
        unlisted.store(true, Ordering::Relaxed);
        let Some(()) = kernel("make the kernel send a message", world.announce(world.cpus[0])) else { return };
        let mut error = None;
        threads::until("the error says that CPUs cannot be listed", || {
            error = reader.next_timeout(Duration::from_millis(10)).err();
            error.is_some()
        });
        let said = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains("cannot list CPUs"), "{said}");
        threads::until("its events are opened anew", || {
            assert!(reader.next_timeout(Duration::from_millis(10)).unwrap().is_none_or(is_untraced));
            opened.load(Ordering::Relaxed) > 0
        });
    })
    .unwrap();
}

/// A CPU that comes is not traced for a moment, which is told.
fn is_untraced(event: EventGuard<'_>) -> bool {
    matches!(event.item(), Item::Untraced(_))
}

/// A CPU that was listed, and went offline before its events were opened. The reader tries it again although the list
/// never changes.
#[test]
fn a_cpu_that_was_gone_when_its_ring_was_to_be_opened_is_tried_again() {
    apart!();
    let Some(world) = World::new() else { return };
    let (gone, tries) = (AtomicBool::new(true), AtomicI32::new(0));
    let cpu = *world.cpus.last().unwrap();
    let judge = |call: &Call| match call.number {
        libc::SYS_perf_event_open if call.args[2] == u64::from(cpu) && gone.load(Ordering::Relaxed) => {
            tries.fetch_add(1, Ordering::Relaxed);
            Answer::Fail(libc::ENODEV)
        }
        _ => Answer::Make,
    };
    supervised(judge, || {
        let rings = Rings::options().bpf_output(&world.events).cpus([cpu, cpu]).pages(1);
        let mut reader = match rings.open() {
            // It is the only CPU.
            Err(error) if error.kind() == ErrorKind::NotFound && world.cpus.len() == 1 => return,
            _ => Reader::new(world.options().open().unwrap(), Order::new().hold(Hold::None)).unwrap(),
        };
        // The first check finds that it is listed.
        threads::until("it is tried", || {
            assert!(reader.next_timeout(Duration::from_millis(10)).unwrap().is_none());
            tries.load(Ordering::Relaxed) >= 3
        });
        gone.store(false, Ordering::Relaxed);
        threads::until("it is opened", || {
            assert!(reader.next_timeout(Duration::from_millis(10)).unwrap().is_none_or(is_untraced));
            reader.rings().cpus().len() == world.cpus.len()
        });
        assert_eq!(world.emit(cpu, 7), 0);
        assert!(reader.next_timeout(threads::GUARD).unwrap().is_some());
    })
    .unwrap();
}

/// A thread that ends while events are opened is left out. A filter that fails with the same error is refused.
#[test]
fn a_filter_that_fails_as_if_the_thread_had_ended_is_an_error() {
    apart!();
    let Some(_) = World::new() else { return };
    let judge = |call: &Call| match call.number {
        libc::SYS_ioctl if call.args[1] == SET_FILTER => Answer::Fail(libc::ESRCH),
        _ => Answer::Make,
    };
    supervised(judge, || {
        let options = Rings::options().tracepoint("sched:sched_process_exec").filter("common_pid != 1").pages(1);
        let error = options.pid(std::process::id()).open().unwrap_err();
        assert!(error.to_string().contains("cannot filter by \"common_pid != 1\""), "{error}");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    })
    .unwrap();
}
