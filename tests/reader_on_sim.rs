//! The whole reader, waiting and fences included, on simulated rings: no privilege needed.

use perfweave::{Class, Fence, Hold, Key, Order, Reader, What, sim};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(10);

/// Writers on threads of their own, who draw a number, dawdle, are interrupted, and write; a reader beside them.
#[test]
fn threads_that_write_and_one_that_reads() {
    const EACH: u64 = 5_000;
    let cpus = [0, 1, 5];
    let kernel = sim::Kernel::new(&cpus);
    let order = Order::new().key(Key::Payload(0)).hold(kernel.hold());
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
                if n % 64 == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        })
    });
    let (mut seen, mut lost, mut last) = (0, 0, None);
    let mut take = |reader: &mut Reader, timeout| {
        let mut any = false;
        for event in reader.batch(timeout).unwrap() {
            any = true;
            if let What::Lost(loss) = event.what() {
                lost += loss.count;
                continue;
            }
            assert_eq!(event.class(), Class::Proven);
            assert!(event.key() > last, "{:?} behind {last:?}", event.key());
            last = event.key();
            seen += 1;
        }
        any
    };
    while writers.iter().any(|writer| !writer.is_finished()) {
        take(&mut reader, Duration::from_millis(20));
    }
    for writer in writers {
        writer.join().unwrap();
    }
    while take(&mut reader, Duration::from_millis(300)) || reader.held() > 0 {}
    let dropped: u64 = cpus.iter().map(|&cpu| kernel.dropped(cpu)).sum();
    assert_eq!(seen + dropped, numbers.load(Ordering::SeqCst));
    assert!(lost <= dropped);
    assert!(reader.stats().repaired > 0);
}

/// A fence that waits for a gate.
#[derive(Default)]
struct Gate {
    passes: Mutex<u32>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.passes.lock().unwrap() += 1;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut passes = self.opened.wait_while(self.passes.lock().unwrap(), |passes| *passes == 0).unwrap();
        *passes -= 1;
    }
}

/// While a fence is under way, what is proven already keeps flowing; what was seen later waits.
#[test]
fn fences_run_beside_the_consumer() {
    let gate = Arc::new(Gate::default());
    let fence = {
        let gate = Arc::clone(&gate);
        Fence::custom(move || {
            gate.pass();
            Ok(())
        })
    };
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(fence))).unwrap();
    assert_eq!(reader.fence(), Some("custom"));
    for time in 1..=3 {
        kernel.emit(time as u32 % 2, time, b"proven by the first");
    }
    assert!(reader.try_next().unwrap().is_none());
    gate.open();
    let first = reader.next_timeout(LONG).unwrap().unwrap();
    assert_eq!((first.key(), first.class()), (Some(1), Class::Proven));
    drop(first);
    // Seen with the look that took notice of the first fence's end, or with the next: a second fence is under way.
    for time in 4..=6 {
        kernel.emit(time as u32 % 2, time, b"proven by the second");
    }
    let begin = Instant::now();
    for time in 2..=3 {
        assert_eq!(reader.next_timeout(LONG).unwrap().unwrap().key(), Some(time));
    }
    assert!(begin.elapsed() < Duration::from_secs(1), "nobody waited for the gate");
    assert!(reader.next_timeout(Duration::from_millis(200)).unwrap().is_none());
    assert_eq!(reader.held(), 3);
    // One fence may have begun before they were seen.
    gate.open();
    gate.open();
    for time in 4..=6 {
        assert_eq!(reader.next_timeout(LONG).unwrap().unwrap().key(), Some(time));
    }
    assert_eq!(reader.held(), 0);
    gate.open();
}

/// No more fences than the pace allows, and none while nothing is held.
#[test]
fn expedited_fences_are_paced() {
    let kernel = sim::Kernel::new(&[0]);
    let every = Duration::from_millis(20);
    let reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(Fence::Expedited { every })));
    let Some(mut reader) = perfweave_support::kernel("make expedited fences", reader) else { return };
    let begin = Instant::now();
    let mut time = 0;
    while begin.elapsed() < Duration::from_millis(500) {
        time += 1;
        kernel.emit(0, time, b"load");
        let _ = reader.next_timeout(Duration::from_millis(1)).unwrap();
    }
    let fences = reader.stats().fences;
    assert!((5..=26).contains(&fences), "{fences} fences in half a second, one every {every:?}");
    while reader.next_timeout(Duration::from_millis(50)).unwrap().is_some() {}
    let fences = reader.stats().fences;
    assert!(reader.next_timeout(Duration::from_millis(200)).unwrap().is_none());
    assert_eq!(reader.stats().fences, fences);
}

/// How long something takes, at best of several tries: the machine is shared.
fn best_of(tries: u32, mut once: impl FnMut() -> Duration) -> Duration {
    (0..tries).map(|_| once()).min().unwrap()
}

/// The simulator wakes a sleeping reader as the kernel does: when a part of a ring was written.
#[test]
fn a_filling_ring_wakes_the_reader() {
    let took = best_of(5, || {
        let kernel = sim::Kernel::new(&[0]);
        let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
        // Asleep for longer and longer, up to a tick.
        assert!(reader.next_timeout(Duration::from_millis(500)).unwrap().is_none());
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            let begin = Instant::now();
            (0..1000).for_each(|time| assert!(kernel.emit(0, time, &[0; 20])));
            begin
        });
        drop(reader.next_timeout(LONG).unwrap().expect("an event"));
        writer.join().unwrap().elapsed()
    });
    // By itself it would have looked after some 80 ms.
    assert!(took < Duration::from_millis(30), "{took:?}");
}

/// The end of a fence wakes the reader, which would have slept much longer.
#[test]
fn the_end_of_a_fence_wakes_the_reader() {
    let took = best_of(5, || {
        let ended = Arc::new(Mutex::new(None));
        let fence = {
            let ended = Arc::clone(&ended);
            // Looks come 5, 15, 35, 75 ms after the event was found.
            Fence::custom(move || {
                std::thread::sleep(Duration::from_millis(40));
                *ended.lock().unwrap() = Some(Instant::now());
                Ok(())
            })
        };
        let kernel = sim::Kernel::new(&[0]);
        let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(fence))).unwrap();
        kernel.emit(0, 1, b"held");
        drop(reader.next_timeout(LONG).unwrap().expect("an event"));
        let ended = ended.lock().unwrap().expect("a fence");
        ended.elapsed()
    });
    assert!(took < Duration::from_millis(10), "{took:?}");
}

/// The clock is read before the heads are loaded: what is stamped behind that reading waits for another look.
#[test]
fn lag_takes_its_reading_before_it_looks() {
    let kernel = sim::Kernel::new(&[0]);
    let rings = kernel.rings().on_clock(perfweave::Clock::Monotonic);
    // Stamped while it is indexed, which is behind both.
    let key = Key::with(|_| perfweave::Clock::Monotonic.now());
    let order = Order::new().key(key).hold(Hold::Lag(Duration::ZERO));
    let mut reader = Reader::new(rings, order).unwrap();
    kernel.emit(0, 1, b"any");
    assert!(reader.next_timeout(LONG).unwrap().is_some());
    assert!(reader.stats().looks >= 2, "the look that found it could not let it out");
}

/// The thread that waits for fences takes no signals: they are the program's.
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

/// An event loop of one's own around a reader: poll it, then take what there is.
#[test]
fn a_reader_can_be_polled() {
    use std::os::fd::{AsFd, AsRawFd};
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(kernel.hold())).unwrap();
    let writer = std::thread::spawn(move || {
        for time in 1..=4000 {
            kernel.emit(time as u32 % 2, time, &[0; 20]);
            if time % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let (mut seen, mut idle) = (0, 0);
    while idle < 20 {
        let mut poll = libc::pollfd { fd: reader.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let millis = reader.time_to_next_look().as_millis() as i32 + 1;
        // SAFETY: one pollfd.
        unsafe { libc::poll(&raw mut poll, 1, millis) };
        idle += 1;
        while let Some(event) = reader.try_next().unwrap() {
            seen += 1;
            idle = 0;
            assert_eq!(event.key(), Some(seen));
        }
    }
    writer.join().unwrap();
    assert_eq!(seen, 4000);
}
