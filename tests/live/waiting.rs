//! On live kernel rings: waiting, and the three ways of iterating. What an idle reader does is in `idle.rs`.

use crate::reading;
use crate::reading::{LONG, next, number};
use perfweave::{Certainty, Hold, Order, Reader, Rings};
use perfweave_proofs::expedited;
use perfweave_support::bpf::Program;
use perfweave_support::{echo, foreign, kernel, load, threads};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

fn open(hold: Hold) -> Option<(Reader, Program)> {
    let (events, echo) = echo()?;
    let rings = Rings::options().bpf_output(&events).open().unwrap();
    Some((kernel("wait for grace periods", Reader::new(rings, Order::new().hold(hold)))?, echo))
}

#[test]
fn a_blocked_reader_finds_an_event() {
    for hold in
        [Hold::FENCE, Hold::Fence(expedited(Duration::from_millis(1))), Hold::None, Hold::Lag(Duration::from_millis(1))]
    {
        let Some((mut reader, echo)) = open(hold.clone()) else { continue };
        let sleeper = threads::own();
        let writer = std::thread::spawn(move || {
            // It has refreshed empty rings more than once.
            threads::until_slept(sleeper, 3);
            assert_eq!(echo.run_with(0, &[7]).unwrap(), 0);
        });
        assert_eq!(number(&next(&mut reader).event()), 7, "{hold}");
        writer.join().unwrap();
    }
}

/// Other threads have the counts of a reader that sleeps, each CPU's too, and of one that lends an event.
#[test]
fn a_handle_has_the_counts_of_a_reader_that_sleeps_or_lends() {
    let Some((mut reader, echo)) = open(Hold::FENCE) else { return };
    let (handle, cpus) = (reader.handle(), load::online());
    let all = 50 * cpus.len() as u64;
    let (has_read, is_read) = std::sync::mpsc::channel();
    let reads = std::thread::spawn(move || {
        let (mut yielded, closer) = (0, reader.handle());
        while let Some(event) = reader.next().unwrap() {
            yielded += u64::from(event.event().record().is_some());
            // It lends an event now. No other thread asks at the same time, so each refresh is told.
            assert!(closer.status().unwrap().total().written() >= yielded);
            if yielded == all {
                has_read.send(()).unwrap();
            }
        }
        reader.ledger().unwrap()
    });
    for cpu in &cpus {
        (0..50).for_each(|n| assert_eq!(echo.run_with(*cpu, &[n]).unwrap(), 0));
    }
    is_read.recv().expect("it reads all");
    threads::until("all is yielded", || handle.status().unwrap().total().yielded == all);
    let seen = handle.status().unwrap();
    assert_eq!(seen.held, 0);
    // A handle asks the kernel nothing, so it does not know.
    assert!(!seen.is_complete() && seen.total().is_balanced() && seen.total().lost == 0, "{seen:?}");
    assert!(seen.accounts.iter().all(|account| account.yielded == 50 && !account.exact), "{seen:?}");
    handle.close();
    let own = reads.join().unwrap();
    assert!(own.accounts.iter().map(|account| account.cpu).eq(seen.accounts.iter().map(|account| account.cpu)));
    assert_eq!(own.total().written(), seen.total().written());
}

/// The kernel wakes a sleeping reader when a part of a ring is written, before its tick.
#[test]
fn a_filling_ring_wakes_the_reader() {
    let Some((events, echo)) = echo() else { return };
    let woken = reading::wakes(|| {
        let rings = Rings::options().bpf_output(&events).pages(1).open().unwrap();
        let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
        // About half of the ring's page, of any size.
        let write =
            || (0..foreign::page_size() as u64 / 64).for_each(|n| assert_eq!(echo.run_with(0, &[n]).unwrap(), 0));
        let (woken, given) = reading::woken_by(&mut reader, write);
        assert_eq!(given.unwrap(), reading::Given::Number(0));
        woken
    });
    assert!(woken, "the reader was never woken, and refreshed at its tick");
}

/// One CPU writes and the others do not: no event waits for them, and no event stays held when all are silent.
#[test]
fn a_silent_cpu_delays_nobody_and_held_events_come_out_in_silence() {
    for hold in [Hold::FENCE, Hold::Fence(expedited(Duration::from_millis(1))), Hold::Lag(Duration::from_millis(5))] {
        let Some((mut reader, echo)) = open(hold.clone()) else { continue };
        for cpu in load::online() {
            for n in 0..5 {
                echo.run_with(cpu, &[n]).unwrap();
            }
            let before = reader.status();
            for n in 0..5 {
                assert_eq!(number(&next(&mut reader).event()), n, "{hold}: CPU {cpu}");
            }
            assert_eq!(reader.status().held, 0);
            let status = reader.status();
            let (looks, fences) = (status.refreshes - before.refreshes, status.fences - before.fences);
            println!("{hold}: {looks} refreshes, {fences} fences");
            match hold {
                // One that begins after all events are seen; another may have been under way.
                Hold::Fence(_) => assert!((1..=2).contains(&fences), "{fences} fences"),
                // Before the lag ends, and once more after it.
                _ => assert!((1..=4).contains(&looks), "{looks} refreshes"),
            }
        }
    }
}

/// Not before it is over. That it is not much longer is for a benchmark to say.
#[test]
fn a_time_out_is_kept() {
    for hold in [Hold::FENCE, Hold::None] {
        let Some((mut reader, _)) = open(hold) else { return };
        for millis in [0, 1, 5, 50, 130] {
            let timeout = Duration::from_millis(millis);
            let begin = Instant::now();
            assert!(reader.next_timeout(timeout).unwrap().is_none());
            let took = begin.elapsed();
            assert!(took >= timeout, "{took:?} instead of {timeout:?}");
        }
    }
}

/// A reader sleeps for a lag of a fraction of a millisecond, and does not round it up to a tick, if few events wait.
#[test]
fn a_lag_is_waited_for_and_no_longer() {
    let (lag, latency) = (Duration::from_micros(300), Duration::from_millis(1));
    let Some((events, echo)) = echo() else { return };
    let rings = Rings::options().bpf_output(&events).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::Lag(lag)).latency(latency)).unwrap();
    let (mut n, mut held) = (0, 0);
    threads::until("a look before the lag is over, ten times", || {
        n += 1;
        let begin = Instant::now();
        assert_eq!(echo.run_with(0, &[n]).unwrap(), 0);
        // If it is over already, because the machine is slow, the refresh gives the event at once.
        if reader.next_timeout(Duration::ZERO).unwrap().map(std::mem::forget).is_none() {
            assert!(reader.time_to_next_refresh() <= latency, "{:?}", reader.time_to_next_refresh());
            held += 1;
        }
        let event = next(&mut reader);
        assert_eq!((number(&event.event()), event.certainty()), (n, Certainty::Assumed));
        assert!(begin.elapsed() >= lag);
        held == 10
    });
}

#[test]
fn lending_batch_and_owning_give_the_same() {
    let Some((mut reader, echo)) = open(Hold::FENCE) else { return };
    let cpus = load::online();
    let write = |from: u64| {
        for n in from..from + 40 {
            echo.run_with(cpus[n as usize % cpus.len()], &[n]).unwrap();
        }
    };
    write(0);
    let mut numbers: Vec<_> = (0..40).map(|_| number(&next(&mut reader).event())).collect();
    write(40);
    while numbers.len() < 80 {
        let batch: Vec<_> = reader.batch(LONG).unwrap().unwrap().collect();
        assert!(!batch.is_empty());
        numbers.extend(batch.into_iter().map(|event| number(&event)));
    }
    write(80);
    let owned: Vec<_> = (0..40).map(|_| next(&mut reader).to_owned()).collect();
    write(120);
    numbers.extend(owned.iter().map(|event| number(&event.as_event())));
    threads::until("a part of the rest", || {
        // Breaks off in the middle: the event at which it breaks is consumed, later ones are not.
        let broken = reader.try_fold(0, |taken, event| {
            numbers.push(number(&event));
            if taken == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(taken + 1) }
        });
        broken.unwrap().continue_value();
        numbers.len() >= 140
    });
    threads::until("the rest", || {
        numbers.extend(reader.batch(Duration::ZERO).unwrap().into_iter().flatten().map(|event| number(&event)));
        numbers.len() >= 160
    });
    assert_eq!(numbers, (0..160).collect::<Vec<_>>());
}

#[test]
fn an_event_that_is_forgotten_comes_again() {
    let Some((mut reader, echo)) = open(Hold::None) else { return };
    echo.run_with(0, &[1]).unwrap();
    echo.run_with(0, &[2]).unwrap();
    for _ in 0..3 {
        let event = reader.next().unwrap().unwrap();
        assert_eq!(number(&event.event()), 1);
        std::mem::forget(event);
    }
    assert_eq!(number(&reader.next().unwrap().unwrap().event()), 1);
    assert_eq!(number(&reader.next().unwrap().unwrap().event()), 2);
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
}

/// A key function that panics loses no event; a consumer that panics has consumed the event at which it panicked.
#[test]
fn panics_leave_the_rings_in_order() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    let Some((events, echo)) = echo() else { return };
    let rings = Rings::options().bpf_output(&events).open().unwrap();
    let bomb = Arc::new(AtomicBool::new(true));
    let key = {
        let bomb = Arc::clone(&bomb);
        perfweave::Key::Fn(Box::new(move |record| {
            let number = record.payload()?.u64(0)?;
            assert!(number != 3 || !bomb.load(Ordering::Relaxed), "the key function panics");
            Some(number)
        }))
    };
    let mut reader = Reader::new(rings, Order::new().key(key).hold(Hold::None)).unwrap();
    for number in 1..=5 {
        echo.run_with(0, &[number]).unwrap();
    }
    assert!(catch_unwind(AssertUnwindSafe(|| reader.next_timeout(Duration::ZERO).map(drop))).is_err());
    bomb.store(false, Ordering::Relaxed);
    let mut numbers = Vec::new();
    while let Some(event) = reader.next_timeout(Duration::ZERO).unwrap() {
        numbers.push(number(&event.event()));
    }
    assert_eq!(numbers, [1, 2, 3, 4, 5]);

    for number in 6..=8 {
        echo.run_with(0, &[number]).unwrap();
    }
    let consumer = || {
        let event = reader.next().unwrap().unwrap();
        assert_eq!(number(&event.event()), 6);
        panic!("the consumer panics");
    };
    assert!(catch_unwind(AssertUnwindSafe(consumer)).is_err());
    assert_eq!(number(&reader.next().unwrap().unwrap().event()), 7);
    assert_eq!(number(&reader.next().unwrap().unwrap().event()), 8);
}

/// The first poll of a perf event consumes its readiness. If another program polls first, the reader still finds all
/// events, because it loads the heads.
#[test]
fn readiness_that_is_stolen_hides_nothing() {
    use std::os::fd::AsFd;
    let Some((events, echo)) = echo() else { return };
    let size = perfweave_support::foreign::page_size();
    let Some(theirs) = kernel("open a ring", perfweave_support::foreign::ForeignRing::open(0, size)) else { return };
    perfweave_support::foreign::set_slot(&events, 0, &theirs).unwrap();
    let mut rings = Rings::empty(perfweave::Clock::Monotonic);
    let (base, size) = theirs.buffer();
    // SAFETY: mapped until the end of this test; nobody else reads it.
    let ring = unsafe { perfweave::Ring::adopt_mapping(base, size, Some(theirs.as_fd())) }.unwrap();
    rings.add(0, ring, perfweave::Layout::RAW);
    let order = Order::new().key(perfweave::Key::Payload(0)).hold(Hold::None);
    let mut reader = Reader::new(rings, order).unwrap();
    let thief = theirs.as_fd().try_clone_to_owned().unwrap();
    let stop = load::Load::on(&[0], move |_| {
        let mut poll = libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&thief), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd.
        unsafe { libc::poll(&raw mut poll, 1, 1) };
    });
    for n in 1..20 {
        let (_, given) = reading::woken_by(&mut reader, || assert_eq!(echo.run_with(0, &[n]).unwrap(), 0));
        assert_eq!(given.unwrap(), reading::Given::Number(n));
    }
    stop.end();
}

/// A signal that interrupts the wait does not end it.
#[test]
fn a_signal_does_not_end_a_wait() {
    use nix::sys::pthread::{pthread_kill, pthread_self};
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    use std::sync::atomic::{AtomicU32, Ordering};
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn take(_: i32) {
        TAKEN.fetch_add(1, Ordering::SeqCst);
    }
    let Some((mut reader, echo)) = open(Hold::FENCE) else { return };
    let action = SigAction::new(SigHandler::Handler(take), SaFlags::empty(), SigSet::empty());
    // SAFETY: a handler that counts.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    let (me, sleeper) = (pthread_self(), threads::own());
    let sender = std::thread::spawn(move || {
        for signals in 1..=5 {
            threads::until_asleep(sleeper);
            pthread_kill(me, Signal::SIGUSR1).unwrap();
            threads::until("the signal arrives", || TAKEN.load(Ordering::SeqCst) == signals);
        }
        threads::until_asleep(sleeper);
        assert_eq!(echo.run_with(0, &[1]).unwrap(), 0);
    });
    let event = reader.next_timeout(LONG).unwrap().expect("what is written after all signals");
    assert_eq!(number(&event.event()), 1);
    sender.join().unwrap();
}
