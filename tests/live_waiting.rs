//! On live kernel rings: waiting, the three ways of iterating, and what an idle reader costs.

use perfweave::{Class, Fence, Hold, Order, Reader, Rings};
use perfweave_support::bpf::{Map, Program};
use perfweave_support::{bpf, kernel, load};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

fn open(hold: Hold) -> Option<(Reader, Program)> {
    let events = kernel("make a perf event array", Map::perf_event_array(load::slots()))?;
    let echo = bpf::echo(&events).unwrap();
    let rings = Rings::options().bpf_output(&events).open().unwrap();
    Some((Reader::new(rings, Order::new().hold(hold)).unwrap(), echo))
}

fn number(event: perfweave::Event<'_>) -> u64 {
    event.record().and_then(|record| record.payload()?.u64(0)).expect("eight bytes")
}

const LONG: Duration = Duration::from_secs(10);

/// Measured on its own thread; `tests/idle.rs` measures the whole process.
#[test]
fn an_idle_reader_uses_no_cpu() {
    let Some((mut reader, echo)) = open(Hold::FENCE) else { return };
    // Once with something in between, so that the fence thread has had work.
    echo.run_with(0, &[1]).unwrap();
    assert!(reader.next_timeout(LONG).unwrap().is_some());
    let idle = (0..3).map(|_| {
        let before = thread_time();
        assert!(reader.next_timeout(Duration::from_secs(1)).unwrap().is_none());
        thread_time() - before
    });
    let least = idle.min().unwrap();
    assert!(least < Duration::from_millis(5), "{least:?} of a second while nothing happened");
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    Duration::from(nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap())
}

#[test]
fn a_blocked_reader_is_woken_by_an_event() {
    for hold in
        [Hold::FENCE, Hold::Fence(Fence::EXPEDITED), Hold::None, Hold::Round, Hold::Lag(Duration::from_millis(1))]
    {
        let Some((mut reader, echo)) = open(hold.clone()) else { return };
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            let written = Instant::now();
            echo.run_with(0, &[7]).unwrap();
            written
        });
        let event = reader.next().unwrap();
        assert_eq!(number(event.event()), 7);
        let after = writer.join().unwrap().elapsed();
        // A tick and two grace periods are some 60 ms.
        assert!(after < Duration::from_secs(2), "{hold}: {after:?}");
    }
}

/// The kernel wakes a sleeping reader when a part of a ring is written: long before it would have looked by itself.
#[test]
fn a_filling_ring_wakes_the_reader() {
    let Some(events) = kernel("make a perf event array", Map::perf_event_array(load::slots())) else { return };
    let echo = bpf::echo(&events).unwrap();
    let rings = Rings::options().bpf_output(&events).pages(1).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    // At best of several tries: the machine is shared.
    let best = (0..5).map(|_| {
        while reader.next_timeout(Duration::from_millis(500)).unwrap().is_some() {}
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                let begin = Instant::now();
                (0..60).for_each(|n| assert_eq!(echo.run_with(0, &[n]).unwrap(), 0));
                begin
            });
            drop(reader.next_timeout(LONG).unwrap().expect("an event"));
            writer.join().unwrap().elapsed()
        })
    });
    let best = best.min().unwrap();
    assert!(best < Duration::from_millis(30), "{best:?}");
}

/// CPU 1 speaks, CPU 0 never does: nobody waits for it, and nothing stays behind when both are silent.
#[test]
fn a_silent_cpu_delays_nobody_and_held_events_come_out_in_silence() {
    let cpus = load::online();
    for hold in [Hold::FENCE, Hold::Fence(Fence::EXPEDITED), Hold::Round, Hold::Lag(Duration::from_millis(5))] {
        let Some((mut reader, echo)) = open(hold.clone()) else { return };
        for &cpu in &cpus {
            for n in 0..5 {
                echo.run_with(cpu, &[n]).unwrap();
            }
            let begin = Instant::now();
            for n in 0..5 {
                let event = reader.next_timeout(LONG).unwrap().unwrap_or_else(|| panic!("{hold}: {n} of CPU {cpu}"));
                assert_eq!(number(event.event()), n);
            }
            assert!(begin.elapsed() < Duration::from_secs(2), "{hold}: {:?}", begin.elapsed());
            assert_eq!(reader.held(), 0);
        }
    }
}

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
            assert!(took < timeout + Duration::from_secs(1), "{took:?} instead of {timeout:?}");
        }
    }
}

/// A lag of a fraction of a millisecond is slept, not rounded up to a tick.
#[test]
fn a_lag_is_waited_for_and_not_much_longer() {
    let lag = Duration::from_micros(300);
    let Some((mut reader, echo)) = open(Hold::Lag(lag)) else { return };
    let mut least = Duration::MAX;
    for n in 0..50 {
        let begin = Instant::now();
        echo.run_with(0, &[n]).unwrap();
        let event = reader.next_timeout(LONG).unwrap().unwrap();
        assert_eq!(event.class(), Class::Assumed);
        assert!(begin.elapsed() >= lag);
        least = least.min(begin.elapsed());
    }
    assert!(least < Duration::from_millis(10), "{least:?}");
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
    let mut numbers = Vec::new();
    while let Some(event) = reader.next_timeout(Duration::from_millis(200)).unwrap() {
        numbers.push(number(event.event()));
    }
    write(40);
    while numbers.len() < 80 {
        let batch: Vec<_> = reader.batch(LONG).unwrap().collect();
        numbers.extend(batch.into_iter().map(number));
    }
    write(80);
    let owned: Vec<_> = reader.events(Duration::from_millis(200)).collect::<Result<_, _>>().unwrap();
    write(120);
    numbers.extend(owned.iter().map(|event| number(event.as_event())));
    while numbers.len() < 140 {
        // Breaks off in the middle: what it breaks off at is consumed, what follows is not.
        let broken = reader.try_fold(0, |taken, event| {
            numbers.push(number(event));
            if taken == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(taken + 1) }
        });
        broken.unwrap().continue_value();
        std::thread::sleep(Duration::from_millis(5));
    }
    while numbers.len() < 160 {
        reader.for_each(|event| numbers.push(number(event))).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(numbers, (0..160).collect::<Vec<_>>());
}

#[test]
fn an_event_that_is_forgotten_comes_again() {
    let Some((mut reader, echo)) = open(Hold::None) else { return };
    echo.run_with(0, &[1]).unwrap();
    echo.run_with(0, &[2]).unwrap();
    for _ in 0..3 {
        let event = reader.next().unwrap();
        assert_eq!(number(event.event()), 1);
        std::mem::forget(event);
    }
    assert_eq!(number(reader.next().unwrap().event()), 1);
    assert_eq!(number(reader.next().unwrap().event()), 2);
    assert!(reader.try_next().unwrap().is_none());
}

/// A key function that panics loses nothing; a consumer that panics has consumed what it panicked at.
#[test]
fn panics_leave_the_rings_in_order() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    let Some(events) = kernel("make a perf event array", Map::perf_event_array(load::slots())) else { return };
    let echo = bpf::echo(&events).unwrap();
    let rings = Rings::options().bpf_output(&events).open().unwrap();
    let bomb = Arc::new(AtomicBool::new(true));
    let key = {
        let bomb = Arc::clone(&bomb);
        perfweave::Key::with(move |record| {
            let number = record.payload()?.u64(0)?;
            assert!(number != 3 || !bomb.load(Ordering::Relaxed), "the key function panics");
            Some(number)
        })
    };
    let mut reader = Reader::new(rings, Order::new().key(key).hold(Hold::None)).unwrap();
    for number in 1..=5 {
        echo.run_with(0, &[number]).unwrap();
    }
    assert!(catch_unwind(AssertUnwindSafe(|| reader.try_next().map(drop))).is_err());
    bomb.store(false, Ordering::Relaxed);
    let mut numbers = Vec::new();
    while let Some(event) = reader.try_next().unwrap() {
        numbers.push(number(event.event()));
    }
    assert_eq!(numbers, [1, 2, 3, 4, 5]);

    for number in 6..=8 {
        echo.run_with(0, &[number]).unwrap();
    }
    let consumer = || {
        let event = reader.next().unwrap();
        assert_eq!(number(event.event()), 6);
        panic!("the consumer panics");
    };
    assert!(catch_unwind(AssertUnwindSafe(consumer)).is_err());
    assert_eq!(number(reader.next().unwrap().event()), 7);
    assert_eq!(number(reader.next().unwrap().event()), 8);
}

/// Readiness of a perf event is consumed by whoever polls it first. A reader that somebody steals it from still sees
/// everything, because it looks at the heads.
#[test]
fn readiness_that_is_stolen_delays_by_a_tick_at_most() {
    use std::os::fd::AsFd;
    let Some(events) = kernel("make a perf event array", Map::perf_event_array(load::slots())) else { return };
    let echo = bpf::echo(&events).unwrap();
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
        echo.run_with(0, &[n]).unwrap();
        let begin = Instant::now();
        assert_eq!(number(reader.next_timeout(LONG).unwrap().expect("it is there").event()), n);
        assert!(begin.elapsed() < Duration::from_secs(1));
    }
    stop.end();
}

/// A signal that interrupts the wait does not end it.
#[test]
fn a_signal_does_not_end_a_wait() {
    use nix::sys::pthread::{pthread_kill, pthread_self};
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    extern "C" fn ignore(_: i32) {}
    let Some((mut reader, _)) = open(Hold::FENCE) else { return };
    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::empty(), SigSet::empty());
    // SAFETY: a handler that does nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    let me = pthread_self();
    let sender = std::thread::spawn(move || {
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(20));
            pthread_kill(me, Signal::SIGUSR1).unwrap();
        }
    });
    let begin = Instant::now();
    assert!(reader.next_timeout(Duration::from_millis(300)).unwrap().is_none());
    assert!(begin.elapsed() >= Duration::from_millis(300));
    sender.join().unwrap();
}
