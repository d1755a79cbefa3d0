//! The whole reader, waiting and fences included, on simulated rings: no privilege needed.

use crate::reading;
use crate::reading::{Gate, LONG};
use crate::small;
use perfweave::{Certainty, Event, Hold, Item, Key, Merge, Order, Reader, sim};
use perfweave_proofs::expedited;
use perfweave_support::threads;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Writers on their own threads, which draw a number, wait, are interrupted, and write, and a reader on another thread.
#[test]
fn threads_that_write_and_one_that_reads() {
    const EACH: u64 = 5_000;
    let cpus = [0, 1, 5];
    let kernel = sim::Kernel::new(&cpus);
    // A slow reader releases no event without proof.
    let order = Order::new().key(Key::Payload(0)).hold(kernel.hold()).most_held(0);
    let mut reader = Reader::new(kernel.rings(), order).unwrap();
    let numbers = Arc::new(AtomicU64::new(0));
    let writers = cpus.map(|cpu| {
        let (kernel, numbers) = (kernel.clone(), Arc::clone(&numbers));
        std::thread::spawn(move || {
            let write = |number: u64| kernel.write(cpu, &number.to_ne_bytes());
            for n in 0..EACH {
                // The section is open before the number is drawn, as in the kernel.
                kernel.begin(cpu, 0);
                let number = numbers.fetch_add(1, Ordering::SeqCst);
                if n % 7 == 0 {
                    std::thread::yield_now();
                }
                if n % 11 == 0 {
                    kernel.begin(cpu, 0);
                    write(numbers.fetch_add(1, Ordering::SeqCst));
                    kernel.end(cpu);
                }
                write(number);
                kernel.end(cpu);
                // Sometimes as slow as the reader; records that do not fit are dropped.
                if n % 512 == 0 {
                    threads::until("there is room", || kernel.head(cpu) - kernel.tail(cpu) < 16 << 10);
                }
            }
        })
    });
    let (mut seen, mut lost, mut last) = (0, 0, None);
    let mut note = |event: Event<'_>| {
        if let Item::Lost(loss) = event.item() {
            lost += loss.count;
            return;
        }
        assert_eq!(event.certainty(), Certainty::Proven);
        assert!(event.key() > last, "{:?} after {last:?}", event.key());
        last = event.key();
        seen += 1;
    };
    while writers.iter().any(|writer| !writer.is_finished()) {
        reader.batch(Duration::from_millis(20)).unwrap().unwrap().for_each(&mut note);
    }
    for writer in writers {
        writer.join().unwrap();
    }
    reading::all(&mut reader, &mut note);
    let dropped: u64 = cpus.iter().map(|&cpu| kernel.dropped(cpu)).sum();
    assert_eq!(seen + dropped, numbers.load(Ordering::SeqCst));
    assert_eq!(lost, dropped);
    assert!(seen > 3 * EACH / 2 && reader.status().total().repaired > 0, "{seen} seen");
}

/// While a fence is under way, proven events leave and later ones wait.
#[test]
fn fences_run_beside_the_consumer() {
    let gate = Gate::new();
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(gate.fence()))).unwrap();
    assert_eq!(reader.fence(), Some("custom"));
    for time in 1..=3 {
        kernel.emit(time as u32 % 2, time, b"proven by the first");
    }
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    gate.let_one_pass();
    let first = reader.next_timeout(LONG).unwrap().unwrap();
    assert_eq!((first.key(), first.certainty()), (Some(1), Certainty::Proven));
    drop(first);
    // Found by the refresh that noticed the end of the first fence, or by the next: a second fence is under way.
    for time in 4..=6 {
        kernel.emit(time as u32 % 2, time, b"proven by the second");
    }
    // No thread waits for the gate, which stays shut.
    for time in 2..=3 {
        assert_eq!(reader.next_timeout(LONG).unwrap().unwrap().key(), Some(time));
    }
    threads::until("the second fence begins", || {
        assert!(reader.next_timeout(Duration::from_millis(1)).unwrap().is_none());
        gate.begun() == 2
    });
    for _ in 0..10 {
        assert!(reader.next_timeout(Duration::from_millis(1)).unwrap().is_none());
    }
    assert_eq!((reader.status().held, reader.status().fences), (3, 1));
    // One fence may have begun before the refresh found them.
    gate.open();
    for time in 4..=6 {
        assert_eq!(reader.next_timeout(LONG).unwrap().unwrap().key(), Some(time));
    }
    assert_eq!(reader.status().held, 0);
}

/// No more fences than the pace allows, and none while nothing is held.
#[test]
fn expedited_fences_are_paced() {
    let kernel = sim::Kernel::new(&[0]);
    let every = Duration::from_millis(20);
    let reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(expedited(every))));
    let Some(mut reader) = perfweave_support::kernel("make expedited fences", reader) else { return };
    let (begin, mut time) = (Instant::now(), 0);
    while reader.status().fences < 10 {
        time += 1;
        kernel.emit(0, time, b"load");
        let _ = reader.next_timeout(Duration::from_millis(1)).unwrap();
    }
    // From the first's begin to the tenth's.
    assert!(begin.elapsed() >= 9 * every, "ten fences in {:?}, one every {every:?}", begin.elapsed());
    reading::all(&mut reader, |_| ());
    reading::settle(&mut reader);
    let before = reader.status();
    while reader.status().sleeps < before.sleeps + 5 {
        assert!(reader.next_timeout(2 * every).unwrap().is_none());
    }
    assert_eq!(reader.status().fences, before.fences);
}

/// Like the kernel, the simulator wakes a sleeping reader when a part of a ring was written.
#[test]
fn a_filling_ring_wakes_the_reader() {
    let woken = reading::wakes(|| {
        let kernel = sim::Kernel::new(&[0]);
        let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
        // Few and long, so that even a slow machine has written them before the reader's tick.
        let write = || (0..10).for_each(|time| assert!(kernel.emit(0, time, &[0; 6000])));
        let (woken, given) = reading::woken_by(&mut reader, write);
        assert_eq!(given.unwrap(), reading::Given::Number(0));
        woken
    });
    assert!(woken, "the reader was never woken, and refreshed at its tick");
}

/// The end of a fence wakes the reader, which would have slept on.
#[test]
fn the_end_of_a_fence_wakes_the_reader() {
    let woken = reading::wakes(|| {
        let gate = Gate::new();
        let kernel = sim::Kernel::new(&[0]);
        let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(gate.fence()))).unwrap();
        kernel.emit(0, 1, &7u64.to_ne_bytes());
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
        gate.until_begun(1);
        let (woken, given) = reading::woken_by(&mut reader, || gate.open());
        assert_eq!(given.unwrap(), reading::Given::Number(7));
        woken
    });
    assert!(woken, "the reader was never woken, and refreshed at its tick");
}

/// The clock is read before the heads are loaded: records with a time after that reading wait for another refresh.
#[test]
fn lag_takes_its_reading_before_it_looks() {
    let kernel = sim::Kernel::new(&[0]);
    let rings = kernel.rings().on_clock(perfweave::Clock::Monotonic);
    // It gets its time while it is indexed, which is after both.
    let key = Key::Fn(Box::new(|_| perfweave::Clock::Monotonic.now()));
    let order = Order::new().key(key).hold(Hold::Lag(Duration::ZERO));
    let mut reader = Reader::new(rings, order).unwrap();
    kernel.emit(0, 1, b"any");
    assert!(reader.next_timeout(LONG).unwrap().is_some());
    assert!(reader.status().refreshes >= 2, "the refresh that found it could not release it");
}

/// The thread that waits for fences takes no signals: these belong to the program.
#[test]
fn the_fence_thread_takes_no_signals() {
    let kernel = sim::Kernel::new(&[0]);
    let _reader = Reader::new(kernel.rings(), Order::new().hold(kernel.hold())).unwrap();
    let mut found = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim().to_owned();
        if field("Name:") == "perfweave-fence" {
            let blocked = u64::from_str_radix(&field("SigBlk:"), 16).unwrap();
            // SIGKILL and SIGSTOP cannot be blocked; libc keeps two for itself.
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGUSR1, libc::SIGCHLD, libc::SIGHUP] {
                assert!(blocked & 1 << (signal - 1) != 0, "signal {signal}");
            }
            found += 1;
        }
    }
    assert!(found > 0);
}

/// A user's own event loop around a reader: poll it, then take all events.
#[test]
fn a_reader_can_be_polled() {
    use std::os::fd::{AsFd, AsRawFd};
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(kernel.hold())).unwrap();
    let writer = std::thread::spawn(move || {
        for time in 1..=4000 {
            // As slow as the reader.
            let cpu = time as u32 % 2;
            threads::until("there is room", || kernel.emit(cpu, time, &[0; 20]));
            if time % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut seen = 0;
    threads::until("all are read", || {
        let mut poll = libc::pollfd { fd: reader.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let millis = reader.time_to_next_refresh().as_millis() as i32 + 1;
        // SAFETY: one pollfd.
        unsafe { libc::poll(&raw mut poll, 1, millis) };
        while let Some(event) = reader.next_timeout(Duration::ZERO).unwrap() {
            seen += 1;
            assert_eq!(event.key(), Some(seen));
        }
        seen == 4000
    });
    writer.join().unwrap();
    reading::assert_nothing(&mut reader);
}

/// The n-th burst of writes on three CPUs, always the same: keys in disorder and across CPUs, some late, some records
/// without a key, and sometimes more than the rings hold.
fn burst(kernel: &sim::Kernel, turn: u64) {
    let random = |n: u64, most: u64| (turn * 1000 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1009 % most;
    for n in 0..[3, 20, 60, 130][turn as usize % 4] {
        let key = 1000 + 20 * turn + random(n, 90);
        let payload = key.to_ne_bytes();
        kernel.emit(random(n + 500, 3) as u32, key, if random(n + 700, 9) == 0 { &payload[..4] } else { &payload });
    }
}

fn in_short(event: &Event<'_>) -> String {
    format!("{:?} {:?} {} {:?}", event.key(), event.certainty(), event.late_by(), event.item())
}

/// One by one, as a batch, or folded: the events, their details and the statistics are the same.
#[test]
fn however_events_are_taken_they_are_the_same() {
    let take = |way: usize, merge: &mut Merge, taken: &mut Vec<String>| match way {
        0 => {
            while let Some(lent) = merge.next() {
                let event = lent.event();
                assert_eq!(
                    (lent.key(), lent.certainty(), lent.late_by()),
                    (event.key(), event.certainty(), event.late_by())
                );
                assert_eq!((lent.cpu(), lent.record().is_some()), (event.cpu(), event.record().is_some()));
                taken.push(in_short(&event));
            }
        }
        1 => {
            for event in merge.batch() {
                taken.push(in_short(&event));
            }
        }
        _ => merge.batch().for_each(|event| taken.push(in_short(&event))),
    };
    let bounds = [0, 9 << 10, 64 << 20];
    let holds = [Hold::FENCE, Hold::None, Hold::Lag(Duration::from_nanos(70))];
    for (most, hold) in bounds.into_iter().flat_map(|most| holds.iter().map(move |hold| (most, hold))) {
        let key: fn() -> Key = if matches!(hold, Hold::Lag(_)) { || Key::Time } else { || Key::Payload(0) };
        let courses = [0, 1, 2].map(|way| {
            let kernel = small(&[0, 1, 2], 4096);
            let order = Order::new().key(key()).hold(hold.clone()).most_held(most).numbers(Key::Payload(0), None);
            let mut merge = Merge::new(kernel.rings(), order).unwrap();
            let mut taken = Vec::new();
            for turn in 0..60 {
                burst(&kernel, turn);
                merge.refresh(1000 + 20 * turn);
                if turn % 3 == 0 && merge.begin_fence() {
                    merge.end_fence();
                    merge.refresh(1000 + 20 * turn);
                }
                take(way, &mut merge, &mut taken);
                // Otherwise the rings have other losses.
                merge.advance_tails();
                taken.push(format!("{:?}", merge.status()));
            }
            taken.push(format!("{:?}", merge.ledger()));
            taken
        });
        let [first, others @ ..] = &courses;
        assert!(first.len() > 500);
        for (way, other) in others.iter().enumerate() {
            let differs = first.iter().zip(other).find(|(one, other)| one != other);
            assert_eq!((differs, first.len()), (None, other.len()), "{most}, {hold}, way {}", way + 1);
        }
    }
}

/// The event at which a fold breaks off is consumed, and the events after it come with the next call.
#[test]
fn a_fold_that_breaks_off_takes_no_more() {
    let courses = [1, 2, 7, usize::MAX].map(|each| {
        let kernel = sim::Kernel::new(&[0, 1, 2]);
        let mut reader = Reader::new(kernel.rings(), Order::new().key(Key::Payload(0)).hold(Hold::None)).unwrap();
        let mut taken = Vec::new();
        for turn in 0..20 {
            burst(&kernel, turn);
            loop {
                let folded = reader.try_fold(1, |events, event| {
                    taken.push(in_short(&event));
                    if events < each { ControlFlow::Continue(events + 1) } else { ControlFlow::Break(()) }
                });
                if folded.unwrap().is_continue() {
                    break;
                }
            }
        }
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
        taken
    });
    assert!(courses[0].len() > 500 && courses.iter().all(|course| *course == courses[0]));
}

/// After any idle time the reader still reads the count of losses, and notices a new CPU.
#[test]
fn a_reader_that_was_idle_still_asks_and_lists() {
    let kernel = small(&[0], 4096);
    let order = Order::new().hold(Hold::None).most_held(0);
    let mut reader = Reader::new(kernel.rings(), order).unwrap();
    // The caller is away for longer than the interval of either check.
    let idle = |reader: &mut Reader| {
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
        std::thread::sleep(Duration::from_millis(150));
    };
    for round in 0..2 {
        idle(&mut reader);
        let fit = (0..).take_while(|time| kernel.emit(0, 1000 * round + time, &[0; 8])).count();
        (0..fit).for_each(|_| assert!(reading::next(&mut reader).record().is_some()));
        let told = reading::next(&mut reader);
        assert!(matches!(told.item(), Item::Lost(lost) if lost.count == 1), "{:?}", told.event());
    }
    idle(&mut reader);
    kernel.plug(3);
    kernel.emit(3, 9_999, b"");
    assert_eq!(reading::next(&mut reader).cpu(), Some(3));
}
