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

/// The simulator wakes a sleeping reader as the kernel does: when a part of a ring was written.
#[test]
fn a_filling_ring_wakes_the_reader() {
    let kernel = sim::Kernel::new(&[0]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    // Asleep for longer and longer, up to a tick.
    assert!(reader.next_timeout(Duration::from_millis(500)).unwrap().is_none());
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        let begin = Instant::now();
        for time in 0..1000 {
            kernel.emit(0, time, &[0; 20]);
        }
        begin
    });
    let event = reader.next_timeout(LONG).unwrap().expect("an event");
    drop(event);
    let begin = writer.join().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1));
}
