//! Counts of a reader's refreshes, sleeps and fences. `src/reader/pace.rs` has the same in simulated time.

use crate::reading;
use perf_event_open_sys::bindings;
use perfweave::{Certainty, Ended, Fence, Hold, Item, Key, Layout, Order, Reader, Rings, Status, sim};
use perfweave_events::EventOptions;
use perfweave_proofs::expedited;
use perfweave_support::load::{self, Load};
use perfweave_support::{echo, kernel};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// This many events justify a refresh, and this many a fence (`src/reader/pace.rs`).
const WORTH_A_LOOK: u64 = 64;
const WORTH_A_FENCE: u64 = 256;

/// A fence that proves at once, and how often it was asked.
fn counted() -> (Fence, Arc<AtomicU64>) {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let fence = Fence::by(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok::<_, io::Error>(())
    });
    (fence, calls)
}

/// The allowed number of actions for this many events in this time: one for each tick, and one for each justifying
/// number of events.
fn allowed(begin: Instant, tick: Duration, events: u64, worth: u64) -> u64 {
    // One more for an action that had begun, and one for the rest of a tick.
    2 + (begin.elapsed().as_nanos() / tick.as_nanos()) as u64 + events / worth
}

/// Shorter than the ticks of hours in some tests, so that an event that waits for a tick fails.
const MUCH_TOO_LONG: Duration = Duration::from_secs(60);

fn next(reader: &mut Reader) -> (Option<u64>, Certainty) {
    let event = reader.next_timeout(MUCH_TOO_LONG).unwrap().expect("it waits for a tick");
    (event.key(), event.certainty())
}

/// Events come one by one, to a reader that refreshes for each: a fence begins for a justifying number of them, or
/// after a tick.
#[test]
fn trickling_events_share_their_fences() {
    for dense in [false, true] {
        let (fence, fences) = counted();
        let kernel = sim::Kernel::new(&[0, 1]);
        // Every second number is missing, so each waits for a fence.
        let hold = if dense { Hold::Dense { first: Some(0), fence } } else { Hold::Fence(fence) };
        let mut reader = Reader::new(kernel.rings(), Order::new().key(Key::Time).hold(hold)).unwrap();
        let begin = Instant::now();
        let mut events = 0;
        while events < 300 {
            events += 1;
            kernel.emit(events as u32 % 2, 2 * events, b"");
            while reader.next_timeout(Duration::from_millis(2)).unwrap().is_some() {}
        }
        assert!(reader.status().refreshes >= events, "it refreshed for each");
        let fences = fences.load(Ordering::SeqCst);
        let allowed = allowed(begin, reading::TICK, events, WORTH_A_FENCE);
        assert!(fences <= allowed, "{fences} fences for {events} events, allowed are {allowed}");
    }
}

/// A burst justifies a fence at once, even if the last one began just before.
#[test]
fn a_burst_does_not_wait_for_the_tick() {
    let (fence, fences) = counted();
    let kernel = sim::Kernel::new(&[0]);
    let order = Order::new().hold(Hold::Fence(fence)).latency(Duration::from_secs(3600));
    let mut reader = Reader::new(kernel.rings(), order).unwrap();
    let mut time = 0;
    for bursts in 1..=20 {
        // One refresh finds all of a burst.
        for _ in 0..WORTH_A_FENCE {
            time += 1;
            assert!(kernel.emit(0, time, b""));
        }
        for expected in time - WORTH_A_FENCE + 1..=time {
            assert_eq!(next(&mut reader), (Some(expected), Certainty::Proven));
        }
        assert_eq!(fences.load(Ordering::SeqCst), bursts);
    }
}

/// A ring that fills up does not wait either, even with very few events.
#[test]
fn a_ring_that_fills_up_does_not_wait_for_the_tick() {
    let layout = bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_RAW;
    let kernel = sim::Kernel::with(&[0, 1], 4096, Layout::new(layout.into(), true, 0));
    let (fence, fences) = counted();
    let order = Order::new().hold(Hold::Fence(fence)).latency(Duration::from_secs(3600));
    let mut reader = Reader::new(kernel.rings(), order).unwrap();
    for round in 1..=20 {
        // More than half of the ring, less than the mark.
        for n in 0..20 {
            assert!(kernel.emit(1, 20 * round + n, &[0; 100]));
        }
        for n in 0..20 {
            assert_eq!(next(&mut reader), (Some(20 * round + n), Certainty::Proven));
        }
        assert_eq!(fences.load(Ordering::SeqCst), round);
    }
}

/// While a fence is under way a refresh releases no event, so the reader refreshes only when something else wakes it.
#[test]
fn a_reader_sleeps_while_a_fence_is_under_way() {
    let (open, opened) = std::sync::mpsc::channel::<()>();
    let opened = std::sync::Mutex::new(opened);
    let fence = Fence::by(move || opened.lock().unwrap().recv().map_err(io::Error::other));
    let kernel = sim::Kernel::new(&[0]);
    let order = Order::new().hold(Hold::Fence(fence)).latency(Duration::from_secs(3600));
    let mut reader = Reader::new(kernel.rings(), order).unwrap();
    // Dropped before the reader, which waits for its fence.
    let open = open;
    kernel.emit(0, 1, b"");
    let mut calls = 0;
    // The time may be over before the reader sleeps, where other work has the CPU.
    perfweave_support::threads::until("the reader sleeps", || {
        calls += 1;
        assert!(reader.next_timeout(Duration::from_millis(100)).unwrap().is_none());
        reader.status().sleeps > 0
    });
    // One sleep, and another if it ended a little early.
    assert!(reader.status().sleeps <= 2 * calls, "{} sleeps in {calls} calls", reader.status().sleeps);
    open.send(()).unwrap();
    assert_eq!(next(&mut reader), (Some(1), Certainty::Proven));
}

/// A report does not wait, no matter how long the tick is.
#[test]
fn a_report_waits_for_no_tick() {
    let hour = Duration::from_secs(3600);
    for at in 0..3 {
        let kernel = sim::Kernel::new(&[0]);
        let (fence, _) = counted();
        let lag = Hold::Lag(Duration::from_millis(1));
        let (hold, rings) = match at {
            0 => (Hold::Fence(fence), kernel.rings()),
            1 => (lag, kernel.rings().on_clock(perfweave::Clock::Monotonic)),
            _ => (Hold::None, kernel.rings()),
        };
        // The lag rule needs present times, the others any.
        let stamp = |n| if at == 1 { perfweave::Clock::Monotonic.now().unwrap() } else { n };
        let mut reader = Reader::new(rings, Order::new().hold(hold.clone()).latency(hour)).unwrap();
        for n in 0..20 {
            kernel.emit(0, stamp(2 * n), b"");
            // The first event uses up the tick, so that the next one finds that it was not long ago.
            let mut seen = u64::from(reader.next_timeout(Duration::ZERO).unwrap().is_some());
            kernel.emit(0, stamp(2 * n + 1), b"");
            if n % 2 == 0 {
                reader.handle().flush().unwrap();
            } else {
                reader.handle().set_deadline(Some(Instant::now())).unwrap();
            }
            let flushed = loop {
                match reader.next_timeout(MUCH_TOO_LONG).unwrap() {
                    Some(event) if matches!(event.item(), Item::Flushed { .. }) => break true,
                    Some(event) => seen += u64::from(event.key().is_some()),
                    None => break false,
                }
            };
            let deadline = (n % 2 == 1).then_some(Ended::Deadline { complete: true });
            assert_eq!((flushed, reader.ended()), (deadline.is_none(), deadline), "{hold}: it waits for a tick");
            assert_eq!(seen, 2, "{hold}");
            reader.handle().set_deadline(None).unwrap();
        }
    }
}

/// The rings of the scheduler's tracepoints on all CPUs: a reader of them sees each of its own wake-ups.
fn scheduler() -> Option<Rings> {
    kernel("find tracefs", perfweave_events::tracefs())?;
    let options = Rings::options().tracepoint("sched:sched_waking").tracepoint("sched:sched_switch");
    kernel("open rings", options.bytes(8 << 20).open())
}

fn rules() -> [Hold; 6] {
    let lag = |micros| Hold::Lag(Duration::from_micros(micros));
    let expedited = Hold::Fence(expedited(Duration::from_millis(1)));
    [Hold::FENCE, expedited, lag(10_000), lag(1000), lag(50), Hold::None]
}

/// Checks that a reader slept and began fences no more often than allowed for the time and for the number of events.
fn is_paced(hold: &Hold, status: &Status, begin: Instant, tick: Duration) {
    let Status { sleeps, fences, .. } = *status;
    // Held events count as found too, and on a busy machine many may be held at the end.
    let records = status.total().yielded + status.held as u64;
    let worth = if matches!(hold, Hold::Fence(_)) { WORTH_A_FENCE } else { WORTH_A_LOOK };
    let most = allowed(begin, tick, records, worth);
    assert!(fences <= most, "{hold}: {fences} fences for {records} events, allowed are {most}");
    // Ticks, and the ends of fences or lags. A tick that found four times the justifying number is followed by five
    // short ones, of 5, 10, 20, 40 and 80 ms, or two more if they begin at 1 ms; and so it is in the beginning.
    let most = 2 * most + 7 * (1 + records / (4 * worth));
    assert!(sleeps <= most, "{hold}: {sleeps} sleeps for {records} events, allowed are {most}");
    assert!(sleeps > 0);
}

/// A reader that traces the scheduler of the live machine does not keep itself busy. Before there was a pace it did:
/// 9000 sleeps a second under the lag rule.
#[test]
fn a_reader_of_the_scheduler_does_not_feed_itself() {
    for hold in rules() {
        let Some(rings) = scheduler() else { return };
        let begin = Instant::now();
        let mut reader = Reader::new(rings, Order::new().hold(hold.clone())).unwrap();
        while begin.elapsed() < Duration::from_secs(1) {
            reader.batch(Duration::from_secs(1)).unwrap().unwrap().for_each(|_| {});
        }
        is_paced(&hold, &reader.status(), begin, reading::TICK);
    }
}

/// The same under tokio, and with another latency.
#[cfg(feature = "tokio")]
#[test]
fn a_task_that_reads_the_scheduler_does_not_feed_itself() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for latency in [Duration::from_millis(20), reading::TICK] {
        for hold in rules() {
            let Some(rings) = scheduler() else { return };
            runtime.block_on(async {
                let begin = Instant::now();
                let order = Order::new().hold(hold.clone()).latency(latency);
                let mut reader = perfweave::AsyncReader::new(rings, order).unwrap();
                while begin.elapsed() < Duration::from_millis(500) {
                    let _ = tokio::time::timeout(Duration::from_secs(1), reader.batch())
                        .await
                        .map(|batch| batch.unwrap().unwrap().count());
                }
                is_paced(&hold, &reader.status(), begin, latency);
            });
        }
    }
}

/// The tick grows to the requested latency, and no further.
#[test]
fn latency_is_the_longest_tick() {
    for millis in [1, 20, 150] {
        let latency = Duration::from_millis(millis);
        let kernel = sim::Kernel::new(&[0]);
        let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None).latency(latency)).unwrap();
        // The rest of the tick after the last refresh of the call.
        let mut longest = Duration::ZERO;
        while longest < latency * 3 / 4 {
            assert!(reader.next_timeout(reader.time_to_next_refresh()).unwrap().is_none());
            longest = longest.max(reader.time_to_next_refresh());
            assert!(longest <= latency, "{longest:?}");
        }
    }
}

/// With small rings, the events that a fence causes do not begin the next fence.
#[test]
fn a_small_ring_does_not_feed_itself() {
    let layout = bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_RAW;
    for bytes in [4096, 8192, 65536] {
        let kernel = sim::Kernel::with(&[0], bytes, Layout::new(layout.into(), true, 0));
        let (writer, time) = (kernel.clone(), AtomicU64::new(2));
        let fences = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&fences);
        let fence = Fence::by(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            for _ in 0..20 {
                writer.emit(0, time.fetch_add(1, Ordering::Relaxed), &[0; 76]);
            }
            Ok(())
        });
        let begin = Instant::now();
        let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(fence))).unwrap();
        kernel.emit(0, 1, &[0; 76]);
        while begin.elapsed() < Duration::from_secs(1) {
            drop(reader.next_timeout(Duration::from_millis(100)).unwrap());
        }
        // Two fences cause more than half of a page of records. If the reader refreshed while they were written, part
        // of them may stay in the ring, and a third fence follows the second at once. Then all of them are beyond the
        // mark and copied out.
        let for_room = if bytes == 4096 { 2 } else { 1 };
        let allowed = for_room * allowed(begin, reading::TICK, 0, WORTH_A_FENCE);
        let fences = fences.load(Ordering::SeqCst);
        assert!(fences <= allowed, "{bytes} bytes: {fences} fences, allowed are {allowed}");
    }
}

/// A reader of a flood refreshes, takes many events and rests, unless as much time has passed as it would have rested.
/// It does not refresh for the few events that come meanwhile: that would be thousands of refreshes for each sleep.
#[test]
fn a_reader_in_a_flood_rests() {
    const RECORDS: u64 = 100_000;
    let Some((events, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&events).bytes(1 << 20).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    let flood = Load::on(&load::online(), move |cpu| {
        program.run_with(cpu, &[7]).unwrap();
    });
    let begin = Instant::now();
    while reader.status().total().yielded < RECORDS {
        for _ in 0..1000 {
            assert!(reader.next_timeout(MUCH_TOO_LONG).unwrap().is_some());
        }
    }
    let (status, rests) = (reader.status(), begin.elapsed().as_millis() as u64 / 5);
    flood.end();
    // At most this many refreshes find many events, and two more release the events of one.
    let allowed = (status.sleeps + rests + 2) * (WORTH_A_LOOK + 2);
    assert!(status.refreshes <= allowed, "{} refreshes, {} sleeps, {rests} ticks", status.refreshes, status.sleeps);
    println!("{} looks, allowed are {allowed}", status.refreshes);
}
