//! What the reader waits for, and how long.

use super::*;
use crate::order::event::{Event, Item};
use crate::order::hold::Hold;
use crate::order::tracers::Filter;
use crate::proof::contract::Proof;
use crate::reader::Reader;
use crate::reader::pace::WORTH_A_REFRESH;
use crate::record::clock::Clock;
use crate::rings::CpuRing;
use crate::rings::untraced::{Moment, UntracedCpus};
use crate::sim;
use crate::sys::thread::Thread;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use perfweave_support::threads;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "tokio")]
use std::{future::Future, task::Poll};

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// Leaves out what a thread of the reader was doing when it was written.
fn of_tracers(_: &Rings) -> Filter {
    Box::new(|record, is_ours| record.pid_tid().is_some_and(|(_, thread)| is_ours(thread)))
}

/// A reader of an idle machine, whose tick has become an hour.
fn idle(rings: Rings, hold: Hold) -> Engine {
    // Held records stay in their ring.
    let order = Order::new().hold(hold).latency(HOUR).most_held(0);
    let mut engine = Engine::new(rings, order).unwrap();
    (1..40).for_each(|hours| engine.pace.refreshed(Instant::now() + HOUR * hours, 0));
    assert!(sleep(&mut engine) > HOUR / 2);
    engine
}

/// How long it wants to sleep, with nothing to give.
fn sleep(engine: &mut Engine) -> Duration {
    match engine.turn().unwrap() {
        Turn::Sleep(time) => time,
        other => panic!("there is nothing to give: {other:?}"),
    }
}

#[test]
fn what_a_lag_lets_out_within_a_tick_is_waited_for() {
    let kernel = sim::Kernel::new(&[0]);
    let rings = kernel.rings().on_clock(Clock::Monotonic);
    let mut engine = idle(rings, Hold::Lag(MINUTE));
    kernel.emit(0, Clock::Monotonic.now().unwrap(), b"");
    assert!(sleep(&mut engine) <= MINUTE);
    let due = engine.due.expect("held");
    // Later events do not extend the wait.
    kernel.emit(0, Clock::Monotonic.now().unwrap(), b"");
    assert!(sleep(&mut engine) <= MINUTE && engine.due == Some(due));
}

#[test]
fn a_deadline_within_a_tick_is_waited_for() {
    let kernel = sim::Kernel::new(&[0]);
    let mut engine = idle(kernel.rings(), Hold::None);
    engine.control.set_deadline(Some(Instant::now() + MINUTE));
    assert!(sleep(&mut engine) <= MINUTE);
    engine.control.set_deadline(Some(Instant::now() + 2 * HOUR));
    let time = sleep(&mut engine);
    assert!(time > MINUTE && time <= HOUR, "{time:?}: the tick comes first");
    engine.control.set_deadline(None);
    assert!(sleep(&mut engine) > MINUTE);
    engine.control.set_deadline(Some(Instant::now()));
    assert_eq!(
        (engine.turn().unwrap(), engine.report.ended()),
        (Turn::Ended, Some(Ended::Deadline { complete: true }))
    );
}

/// A ring that fills up justifies a fence, no matter how long the tick is.
#[test]
fn more_than_half_a_ring_is_worth_a_fence() {
    let kernel = sim::Kernel::with(&[0, 1], 4096, crate::record::Layout::new(4 | 1024, true, 0));
    let mut engine = idle(kernel.rings(), Hold::Fence(Fence::by(|| Ok(()))));
    engine.pace.proving(Instant::now() + HOUR);
    // 32 bytes each.
    (0..64).for_each(|time| assert!(kernel.emit(1, time, &[0; 8])));
    sleep(&mut engine);
    assert!(!engine.proof.as_ref().unwrap().is_under_way(), "half");
    kernel.emit(1, 64, &[0; 8]);
    sleep(&mut engine);
    assert!(engine.proof.as_ref().unwrap().is_under_way());
}

/// The reader sleeps until a fence may begin, no matter how long the tick is. While a fence is under way, it waits for
/// its end.
#[test]
fn a_fence_that_is_paced_is_waited_for() {
    let kernel = sim::Kernel::new(&[0]);
    let fence = Fence::by(|| Ok(()));
    let mut engine = idle(kernel.rings(), Hold::Fence(fence));
    kernel.emit(0, 1, b"");
    let time = sleep(&mut engine);
    assert!(time > MINUTE, "{time:?}: its end wakes the reader");
    assert!(engine.proof.as_ref().unwrap().is_under_way());
}

/// A reader that has found this many events since it slept, and has taken all but some. Its last refresh is always just
/// now.
fn with_found(hold: Hold, found: u64, held: u64) -> (sim::Kernel, Reader) {
    let kernel = sim::Kernel::new(&[0]);
    // Held records stay in their ring.
    let order = Order::new().hold(hold).latency(HOUR).most_held(0);
    let mut reader = Reader::new(kernel.rings(), order).unwrap();
    (0..found).for_each(|time| assert!(kernel.emit(0, time, b"")));
    reader.engine.turn().unwrap();
    for time in 0..found - held {
        assert_eq!(reader.next_timeout(Duration::ZERO).unwrap().and_then(|event| event.key()), Some(time));
    }
    assert_eq!(reader.engine.merge.held() as u64, held);
    // As if no caller had used a time-out of zero.
    reader.engine.rest.since_sleep = found as usize;
    reader.engine.pace.refreshed(Instant::now() + HOUR, 0);
    reader.engine.pace.set_tick(Duration::from_millis(5));
    (kernel, reader)
}

#[test]
fn who_has_taken_much_rests_before_the_next_look() {
    let much = WORTH_A_REFRESH as u64;
    for (hold, found, held, rests) in [
        (Hold::None, much, 0, true),
        (Hold::None, much - 1, 0, false),
        (Hold::None, much, 1, true),
        (Hold::None, 2 * much, much - 1, true),
        (Hold::None, 2 * much, much, false),
        (Hold::None, 8 * much, 2 * much - 1, true),
        (Hold::None, 8 * much, 2 * much, false),
    ] {
        let (_kernel, mut reader) = with_found(hold, found, held);
        let rest = reader.engine.time_to_gather();
        assert_eq!(rest, if rests { Duration::from_millis(5) } else { Duration::ZERO }, "{found} found, {held} held");
        let cpu_ring = &reader.rings().cpu_rings[0];
        assert!(
            !rests || held > 0 || cpu_ring.ring.words() == (cpu_ring.ring.head(), cpu_ring.ring.head()),
            "given back before it sleeps"
        );
        reader.engine.rest.slept(Duration::ZERO);
        assert_eq!(reader.engine.time_to_gather(), Duration::ZERO, "it has rested, or a caller polls all the time");
    }
}

#[test]
fn nobody_rests_who_is_waited_for() {
    let much = WORTH_A_REFRESH as u64;
    let (_kernel, mut reader) = with_found(Hold::None, much, 0);
    reader.engine.control.set_deadline(Some(Instant::now()));
    assert_eq!(reader.engine.time_to_gather(), Duration::ZERO, "a deadline comes first");
    reader.engine.control.set_deadline(None);
    reader.engine.rest.since_sleep = WORTH_A_REFRESH;
    for spin in [Duration::MAX, Duration::from_nanos(1)] {
        reader.engine.rest.spin = spin;
        assert_eq!(reader.engine.time_to_gather(), Duration::ZERO, "it spins instead");
    }
    reader.engine.rest.spin = Duration::ZERO;
    reader.engine.due = Some(Instant::now());
    assert_eq!(reader.engine.time_to_gather(), Duration::ZERO, "a lag is over");
    (reader.engine.due, reader.engine.rest.since_sleep) = (None, WORTH_A_REFRESH);
    assert!(!reader.engine.time_to_gather().is_zero());
    reader.handle().flush().unwrap();
    assert!(matches!(reader.next().unwrap().unwrap().item(), Item::Flushed { .. }));
    assert_eq!(reader.status().sleeps, 0);

    // A ring that is more than half full of held records: there may be no room for the records that would wake the
    // reader.
    let kernel = sim::Kernel::with(&[0], 4096, crate::record::Layout::new(4 | 1024, true, 0));
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None).most_held(0)).unwrap();
    (0..70).for_each(|time| assert!(kernel.emit(0, time, &[0; 8])));
    reader.engine.refresh();
    assert!(reader.engine.rest.since_sleep >= WORTH_A_REFRESH);
    reader.engine.rest.since_sleep = 1 << 20;
    assert_eq!(reader.engine.time_to_gather(), Duration::ZERO, "70 of 128 are held");
    // A reader whose rest is over does not rest again.
    let (_kernel, mut reader) = with_found(Hold::None, much, 0);
    reader.engine.pace.set_tick(Duration::ZERO);
    assert_eq!(reader.engine.time_to_gather(), Duration::ZERO);
    reader.engine.pace.set_tick(HOUR);
    assert_eq!(reader.engine.time_to_gather(), Duration::ZERO);
}

/// Rings that another program opened, without their events: nothing wakes the reader when they fill up.
#[test]
fn nobody_rests_whom_rings_do_not_wake() {
    let much = WORTH_A_REFRESH as u64;
    let (_kernel, mut reader) = with_found(Hold::None, much, 0);
    assert!(!reader.engine.time_to_gather().is_zero());
    reader.engine.merge.rings.cpu_rings[0].ring.forget_fd();
    assert_eq!(reader.engine.time_to_gather(), Duration::ZERO);
}

/// A reader of a BPF ring buffer into which programs write fast. It has taken all events, and its tick is long.
fn fast_buffer(bytes: usize) -> (sim::RingBuffer, Reader) {
    let (buffer, ring) = sim::RingBuffer::new(bytes);
    let mut rings = Rings::empty(Clock::Perf);
    rings.add(crate::ring::ANY_CPU, ring, crate::record::Layout::RING_BUFFER);
    let order = Order::new().key(crate::Key::Payload(0)).hold(Hold::None).latency(HOUR);
    let mut reader = Reader::new(rings, order).unwrap();
    reader.engine.pace.set_tick(HOUR);
    take_from(&buffer, &mut reader, 1);
    (buffer, reader)
}

/// Writes an event and takes it. Nothing is readable then, and the reader has found an event since it slept, as if no
/// caller had used a time-out of zero.
fn take_from(buffer: &sim::RingBuffer, reader: &mut Reader, key: u64) {
    assert!(buffer.output(&key.to_ne_bytes()));
    assert_eq!(reader.next_timeout(Duration::ZERO).unwrap().and_then(|event| event.key()), Some(key));
    (reader.engine.rest.since_sleep, reader.engine.rest.found_at) = (1, None);
    reader.engine.pace.set_busy();
    reader.engine.filling.is_slow = false;
}

/// Whether something would wake the reader.
fn is_woken(reader: &Reader) -> bool {
    let mut fds = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
    nix::poll::poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
}

/// The kernel wakes a reader of a BPF ring buffer for each record with which the reader has caught up. A reader that
/// gathers events does not catch up, and one that waits does.
#[test]
fn nothing_wakes_a_reader_that_gathers() {
    let (buffer, mut reader) = fast_buffer(1 << 16);
    let behind = |reader: &Reader| buffer.produced() - reader.rings().cpu_rings[0].ring.tail();
    assert_eq!(reader.engine.time_to_gather(), FLOOR, "for the time in which a writer fills a sixteenth");
    assert!(buffer.output(&2u64.to_ne_bytes()));
    assert!(!is_woken(&reader));
    // It finds that event after its rest, and rests again.
    assert_eq!(reader.engine.turn().unwrap(), Turn::Ready);
    drop(reader.engine.merge.next());
    assert_eq!(behind(&reader), 16, "what it had before is given back");
    reader.engine.pace.set_busy();
    reader.engine.rest.since_sleep = 1;
    reader.engine.pace.set_tick(HOUR);
    assert_eq!(reader.engine.time_to_gather(), FLOOR);
    // This time it finds nothing. Before it sleeps it refreshes once more, and catches up.
    assert_eq!(reader.engine.turn().unwrap(), Turn::Sleep(Duration::ZERO));
    assert!(behind(&reader) > 0);
    assert!(matches!(reader.engine.turn().unwrap(), Turn::Sleep(pause) if !pause.is_zero()));
    assert_eq!(behind(&reader), 0);
    assert!(buffer.output(&3u64.to_ne_bytes()));
    assert!(is_woken(&reader), "no event is waited for without a wake-up");
    assert_eq!(reader.next().unwrap().unwrap().key(), Some(3));
}

/// A reader gathers the events of BPF ring buffers only if they come fast, and not for longer than rings have room.
#[test]
fn a_reader_gathers_what_comes_fast() {
    let (_buffer, mut reader) = fast_buffer(8 << 20);
    assert_eq!(reader.engine.time_to_gather(), Duration::from_micros((8 << 20) / 4096));
    reader.engine.filling.is_slow = true;
    assert_eq!(
        reader.engine.filling.unwatched(reader.rings()),
        Duration::from_micros((8 << 20) / 1024),
        "there is time"
    );
    reader.engine.filling.is_slow = false;
    reader.engine.rest.since_sleep = 0;
    assert_eq!(reader.engine.time_to_gather(), Duration::ZERO, "it has rested");
    reader.engine.rest.since_sleep = WORTH_A_REFRESH - 1;
    reader.engine.pace.refreshed(Instant::now() + 2 * HOUR, 0);
    assert_eq!(reader.engine.time_to_gather(), Duration::ZERO, "few events: each wakes it");
    // A ring that is more than half full.
    let (buffer, mut reader) = fast_buffer(1 << 16);
    (2..1500).for_each(|key: u64| assert!(buffer.output(&[key.to_ne_bytes(); 4].concat())));
    reader.engine.refresh();
    (reader.engine.rest.since_sleep, reader.engine.rest.found_at) = (1 << 20, None);
    reader.engine.pace.set_busy();
    assert_eq!(reader.engine.time_to_gather(), Duration::ZERO);
}

/// In a rush each proof of reservations finds a program inside, and the reader would wait for it. Each that ends at once
/// lets few events leave. So proofs are apart, unless the reader spins.
#[test]
fn cheap_proofs_are_apart_in_a_rush() {
    let (_buffer, mut reader) = fast_buffer(1 << 16);
    let (engine, now) = (&mut reader.engine, Instant::now());
    let rest = |engine: &Engine, now| engine.rest_from_proofs(now);
    assert!(rest(engine, now).is_zero(), "there was none");
    engine.pace.proving(now);
    assert_eq!((rest(engine, now), rest(engine, now + APART)), (APART, Duration::ZERO));
    assert!(!engine.may_prove(now));
    engine.rest.spin = Duration::MAX;
    assert!(rest(engine, now).is_zero());
    engine.rest.spin = Duration::ZERO;
    engine.pace.refreshed(now + 2 * HOUR, 0);
    assert!(rest(engine, now).is_zero(), "events come slowly");
    // Perf rings: a grace period keeps proofs apart by itself.
    for (hold, expected) in [(Hold::None, false), (Hold::FENCE, false), (Asked::hold(false), true)] {
        let kernel = sim::Kernel::new(&[0]);
        let mut engine = Engine::new(kernel.rings(), Order::new().hold(hold)).unwrap();
        engine.pace.set_busy();
        engine.pace.proving(now);
        assert_eq!(!rest(&engine, now).is_zero(), expected);
    }
}

/// The last events of a burst wait for a cheap proof as long as that is put off, and for no tick.
#[test]
fn the_last_events_of_a_rush_wait_for_no_tick() {
    let kernel = sim::Kernel::new(&[0]);
    let mut engine = Engine::new(kernel.rings(), Order::new().hold(Asked::hold(false)).latency(HOUR)).unwrap();
    // It is proven in one turn, or its proof begins in one and ends in the next.
    let comes = |engine: &mut Engine| {
        assert!((0..2).any(|_| engine.turn().unwrap() == Turn::Ready));
        drop(engine.merge.next().unwrap());
        engine.pace.set_busy();
    };
    assert!(kernel.emit(0, 1, &[]));
    comes(&mut engine);
    // As if that proof had begun at this moment, however slow the machine is.
    engine.pace.proving(Instant::now() + HOUR);
    assert!(kernel.emit(0, 2, &[]));
    let Turn::Sleep(sleep) = engine.turn().unwrap() else { panic!("it was proven at once") };
    assert!(sleep <= APART && engine.merge.held() == 1, "{sleep:?}");
    engine.pace.proving(Instant::now() - HOUR);
    comes(&mut engine);
}

/// A deadline that has ended the stream keeps nobody awake who waits until somebody moves it.
#[test]
fn a_deadline_that_is_past_keeps_no_reader_awake() {
    let kernel = sim::Kernel::new(&[0]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None).latency(HOUR)).unwrap();
    reader.handle().set_deadline(Some(Instant::now())).unwrap();
    assert!(reader.next().unwrap().is_none());
    for _ in 0..2 {
        assert!(!reader.time_to_next_refresh().is_zero());
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    }
    reader.handle().set_deadline(None).unwrap();
    assert!(kernel.emit(0, 1, &[]));
    assert!(reader.next().unwrap().is_some());
}

/// Half a second to fill the ring is slow. Two refreshes right after each other say nothing.
#[test]
fn rings_fill_slowly_or_fast() {
    let (buffer, mut reader) = fast_buffer(1 << 16);
    let mut now = Instant::now();
    // 128 bytes in a millisecond are a ring in 512 of them.
    for (records, expected) in [(1, true), (8, true), (9, false), (0, true), (1000, false)] {
        now += FLOOR;
        (0..records).for_each(|_| assert!(buffer.output(&[0; 8])));
        reader.engine.merge.refresh(0);
        reader.engine.filling.refreshed(now, reader.engine.merge.rings());
        assert_eq!(reader.engine.filling.is_slow, expected, "{records}");
        reader.engine.filling.refreshed(now + FLOOR / 2, reader.engine.merge.rings());
        assert_eq!(reader.engine.filling.is_slow, expected, "{records}, and none");
    }
}

/// A proof that is asked for its end, and waits for a program that is inside.
struct Asked {
    inside: bool,
    is_asked: bool,
}

impl Asked {
    fn hold(inside: bool) -> Hold {
        Hold::Fence(Fence::Proof("asked", std::sync::Arc::new(move || Box::new(Self { inside, is_asked: false }))))
    }
}

impl Proof for Asked {
    fn name(&self) -> &'static str {
        "asked"
    }

    fn open(&mut self, _: Option<&Rings>, _: &Done) -> Result<(), Error> {
        Ok(())
    }

    fn begin(&mut self) {
        self.is_asked = false;
    }

    fn poll(&mut self) -> Option<std::io::Result<()>> {
        self.is_asked = true;
        (!self.inside).then_some(Ok(()))
    }

    fn nap(&self) -> Option<Duration> {
        Some(if self.inside && self.is_asked { HOUR } else { Duration::ZERO })
    }
}

/// What a proof that ends at once releases is not copied before, unless it waits for programs.
#[test]
fn what_leaves_at_once_is_not_copied() {
    for inside in [false, true] {
        let kernel = sim::Kernel::with(&[0], 1 << 16, crate::record::Layout::new(4 | 1024, true, 0));
        let mut reader = Reader::new(kernel.rings(), Order::new().hold(Asked::hold(inside))).unwrap();
        for turns in 0..2 {
            // A quarter of the ring within no time: the rest would be full soon.
            (0..256).for_each(|n| assert!(kernel.emit(0, 256 * turns + n, &[0; 40])));
            while reader.engine.turn().unwrap() == Turn::Ready {
                drop(reader.engine.merge.next());
            }
        }
        assert_eq!(reader.status().total().copied > 0, inside);
    }
}

/// Everything that ends a sleep ends a rest. Otherwise the rest would last an hour.
#[test]
fn a_rest_is_broken_off() {
    let much = WORTH_A_REFRESH as u64;
    let rests = || {
        let (kernel, mut reader) = with_found(Hold::None, much, 0);
        reader.engine.pace.set_tick(HOUR);
        (kernel, reader)
    };
    let sleeper = threads::own();
    let meanwhile = |handle: Handle, act: fn(&Handle)| {
        std::thread::spawn(move || {
            threads::until_asleep(sleeper);
            act(&handle);
        })
    };
    for (act, expected) in [
        ((|handle| handle.flush().unwrap()) as fn(&Handle), None),
        (|handle| handle.close(), Some(Ended::Closed)),
        (|handle| handle.set_deadline(Some(Instant::now())).unwrap(), Some(Ended::Deadline { complete: true })),
    ] {
        let (_kernel, mut reader) = rests();
        let acting = meanwhile(reader.handle(), act);
        let flushed = reader.next().unwrap().is_some_and(|event| matches!(event.item(), Item::Flushed { .. }));
        assert_eq!((flushed, reader.ended()), (expected.is_none(), expected));
        acting.join().unwrap();
    }
    // A ring that fills up.
    let (kernel, mut reader) = rests();
    let filling = std::thread::spawn(move || (much..much + 10_000).for_each(|time| _ = kernel.emit(0, time, &[0; 64])));
    assert_eq!(reader.next().unwrap().unwrap().key(), Some(much));
    filling.join().unwrap();
}

/// A rest is one sleep with a refresh after it, which finds all new events. With a time-out of zero, the refresh comes
/// at once.
#[test]
fn a_reader_that_rests_looks_when_it_has() {
    let much = WORTH_A_REFRESH as u64;
    for timeout in [Duration::ZERO, HOUR] {
        let (kernel, mut reader) = with_found(Hold::None, much, 0);
        assert!(kernel.emit(0, much, b""));
        let looks = reader.status().refreshes;
        assert_eq!(reader.next_timeout(timeout).unwrap().and_then(|event| event.key()), Some(much));
        let status = reader.status();
        assert_eq!((status.sleeps, status.refreshes - looks), (u64::from(!timeout.is_zero()), 1), "{timeout:?}");
    }
}

/// The same under tokio, where no call has a time-out of zero.
#[cfg(feature = "tokio")]
#[test]
fn a_task_that_rests_looks_when_it_has() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kernel = sim::Kernel::new(&[0]);
        let order = Order::new().hold(Hold::None).latency(HOUR);
        let mut reader = crate::AsyncReader::new(kernel.rings(), order).unwrap();
        let much = WORTH_A_REFRESH as u64;
        (0..much).for_each(|time| assert!(kernel.emit(0, time, b"")));
        for time in 0..much {
            assert_eq!(reader.next().await.unwrap().unwrap().key(), Some(time));
        }
        reader.engine.pace.refreshed(Instant::now() + HOUR, 0);
        assert!(kernel.emit(0, much, b""));
        let before = reader.status();
        assert_eq!(reader.next().await.unwrap().unwrap().key(), Some(much));
        let after = reader.status();
        assert_eq!((after.sleeps - before.sleeps, after.refreshes - before.refreshes), (1, 1));

        // A flush ends the rest. A reader that is called again during its rest refreshes, and releases the yielded
        // bytes.
        reader.engine.rest.since_sleep = 64;
        reader.engine.pace.set_tick(HOUR);
        let mut next = Box::pin(reader.next());
        let rests = std::future::poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_pending())).await;
        drop(next);
        assert!(rests);
        let cpu_ring = &reader.rings().cpu_rings[0];
        assert_eq!(cpu_ring.ring.words(), (cpu_ring.ring.head(), cpu_ring.ring.head()));
        assert!(kernel.emit(0, much + 1, b""));
        assert_eq!(reader.next().await.unwrap().unwrap().key(), Some(much + 1));
        reader.engine.rest.since_sleep = 64;
        let (handle, sleeper) = (reader.handle(), threads::own());
        let flushing = std::thread::spawn(move || {
            threads::until_asleep(sleeper);
            handle.flush().unwrap();
        });
        assert!(matches!(reader.next().await.unwrap().unwrap().item(), Item::Flushed { .. }));
        flushing.join().unwrap();
    });
}

/// If a ring fills up while proven events are taken, the reader refreshes in the middle and copies new records out of
/// the ring.
#[test]
fn rings_are_looked_at_while_much_is_taken() {
    type Take = fn(&mut Reader) -> usize;
    let by_next: Take = |reader| {
        let mut taken = 0;
        while reader.engine.is_at_hand() {
            drop(reader.next().unwrap().unwrap());
            taken += 1;
        }
        taken
    };
    let in_batches: Take = |reader| reader.batch(Duration::ZERO).unwrap().unwrap().fold(0, |taken, _| taken + 1);
    let one_by_one: Take = |reader| {
        let mut batch = reader.batch(Duration::ZERO).unwrap().unwrap();
        std::iter::from_fn(|| batch.next()).count()
    };
    let each: Take = |reader| {
        let mut taken = 0;
        let all = reader.try_fold((), |(), _| {
            taken += 1;
            std::ops::ControlFlow::<(), ()>::Continue(())
        });
        assert!(all.unwrap().is_continue());
        taken
    };
    for (way, take) in [("next", by_next), ("batch", in_batches), ("batch, one by one", one_by_one), ("try_fold", each)]
    {
        // Records that may be the reader's own are taken one by one.
        for (meanwhile, one_by_one) in [(0, false), (31, false), (32, false), (32, true)] {
            // 32 bytes each: 128 fill a ring. Both rings take turns, so that no run has more than one record.
            let kernel = sim::Kernel::with(&[0, 1], 4096, crate::record::Layout::new(4 | 1024, true, 0));
            let fence = Fence::by(|| Ok(()));
            let order = Order::new().hold(Hold::Fence(fence)).latency(HOUR);
            let order = if one_by_one { order.leave_out(of_tracers) } else { order };
            let mut reader = Reader::new(kernel.rings(), order).unwrap();
            (0..160).for_each(|time| assert!(kernel.emit(time % 2, time.into(), &[0; 8])));
            threads::until("a fence has passed", || {
                reader.engine.is_ready().unwrap() || {
                    reader.engine.refresh();
                    false
                }
            });
            // Half of each ring is given back; as much as this is written into one meanwhile.
            (0..80).for_each(|_| drop(reader.next_timeout(Duration::ZERO).unwrap()));
            reader.engine.refresh();
            let looks = reader.status().refreshes;
            (0..meanwhile).for_each(|n| assert!(kernel.emit(1, 1000 + n, &[0; 8])));
            let taken = take(&mut reader);
            let is_rushed = reader.engine.merge.is_rushed();
            assert_eq!(
                (is_rushed, taken < 80),
                (meanwhile == 32, meanwhile == 32),
                "{way}, {meanwhile} written: {taken} taken"
            );
            assert_eq!(reader.status().refreshes, looks, "{way}");
            if is_rushed {
                assert!(reader.engine.longest_sleep().is_zero(), "{way}: a program that polls must come back at once");
                assert!(reader.next_timeout(Duration::ZERO).unwrap().is_some(), "{way}");
                let more = reader.status().refreshes - looks;
                // A second if the proof that the first begins has ended before the call has.
                assert!([1, 2].contains(&more) && !reader.engine.merge.is_rushed(), "{way}: {more}");
            }
        }
    }
}

/// A reader does its periodic work also if rings fill up all the time and it never runs dry.
#[test]
fn a_deadline_is_reported_in_a_flood_that_never_ends() {
    for hold in [Hold::None, Hold::Lag(Duration::ZERO), Hold::Fence(Fence::by(|| Ok(())))] {
        let kernel = sim::Kernel::with(&[0, 1], 4096, crate::record::Layout::new(4 | 1024, true, 0));
        let rings = kernel.rings().on_clock(Clock::Monotonic);
        let mut reader = Reader::new(rings, Order::new().hold(hold.clone())).unwrap();
        let write = || (0..2).for_each(|cpu| while kernel.emit(cpu, Clock::Monotonic.now().unwrap(), &[0; 8]) {});
        write();
        (0..1000).for_each(|_| {
            drop(reader.next().unwrap().unwrap());
            write();
        });
        reader.handle().set_deadline(Some(Instant::now())).unwrap();
        // What was copied out of full rings before the deadline comes before it.
        let held = reader.status().held;
        // Enough records to fill both rings a hundred times; or a hundred fences, whose thread may wait for a CPU.
        let fences = |reader: &Reader| reader.status().fences;
        let before = fences(&reader);
        let mut records = 0;
        while reader.next().unwrap().is_some() {
            write();
            records += 1;
            let is_enough =
                records > held + 25_600 && (!matches!(hold, Hold::Fence(_)) || fences(&reader) > before + 100);
            assert!(!is_enough, "{hold}");
        }
    }
}

/// A fence that is under way until the first value is gone. Each that follows ends at once.
fn held_up() -> (std::sync::mpsc::Sender<()>, Fence) {
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = std::sync::Mutex::new(ended);
    let fence = Fence::by(move || {
        let _ = ended.lock().unwrap().recv();
        Ok(())
    });
    (end, fence)
}

/// The reader copies held records out of a ring that could be full before a woken reader runs.
#[test]
fn a_ring_that_is_written_quickly_is_emptied_before_its_mark() {
    for (most, pause, is_copied) in [
        (64 << 20, Duration::from_millis(3), true),
        (1024, Duration::from_millis(3), true),
        (64 << 20, Duration::from_millis(4), false),
        (1023, Duration::from_millis(3), false),
        (0, Duration::from_millis(3), false),
    ] {
        let kernel = sim::Kernel::with(&[0], 4096, crate::record::Layout::new(4 | 1024, true, 0));
        let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::FENCE).most_held(most)).unwrap();
        // A quarter of the ring: the other three quarters take three times as long, and the limit is ten milliseconds.
        (0..32).for_each(|time| assert!(kernel.emit(0, time, &[0; 8])));
        merge.full.since_refresh = Some(pause);
        merge.refresh(0);
        assert_eq!(merge.status().total().copied, if is_copied { 1024 } else { 0 }, "{most}, {pause:?}");
        assert!(!merge.is_ready());
    }
    // Records that do not fit into the bound stay in their ring.
    let kernel = sim::Kernel::with(&[0], 1 << 20, crate::record::Layout::new(4 | 1024, true, 0));
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::FENCE).most_held(64 << 10)).unwrap();
    merge.full.since_refresh = Some(Duration::from_micros(500));
    for look in 0..12 {
        (0..50).for_each(|n| assert!(kernel.emit(0, 100 * look + n, &[0; 1000])));
        merge.refresh(0);
        assert!(!merge.is_ready());
    }
    assert_eq!((merge.status().total().copied, merge.held()), (50 << 10, 600));
    // A ring that was more than half full justifies a fence, although it is empty now.
    let kernel = sim::Kernel::with(&[0], 4096, crate::record::Layout::new(4 | 1024, true, 0));
    let (end, fence) = held_up();
    let mut engine = Engine::new(kernel.rings(), Order::new().hold(Hold::Fence(fence)).latency(HOUR)).unwrap();
    engine.pace.proving(Instant::now() + HOUR);
    // Written at once, however busy the machine is.
    engine.merge.full.began = Some(Instant::now() + HOUR);
    (0..65).for_each(|time| assert!(kernel.emit(0, time, &[0; 8])));
    sleep(&mut engine);
    let under_way = engine.proof.as_ref().unwrap().is_under_way();
    drop(end);
    assert!(engine.status().total().copied > 0 && under_way);
    // What lay there before the first refresh was not written within it.
    let kernel = sim::Kernel::with(&[0], 4096, crate::record::Layout::new(4 | 1024, true, 0));
    let (end, fence) = held_up();
    let mut engine = Engine::new(kernel.rings(), Order::new().hold(Hold::Fence(fence)).latency(HOUR)).unwrap();
    (0..65).for_each(|time| assert!(kernel.emit(0, time, &[0; 8])));
    sleep(&mut engine);
    let total = engine.status().total();
    drop(end);
    assert_eq!((total.copied, total.needed), (0, 4096));
}

/// `Item::Untraced` comes once, before all held events, also inside a run, for every way to take events; and nothing
/// else changes.
#[test]
fn a_cpu_that_is_not_traced_is_reported_before_anything_else() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut rings = kernel.rings();
    let clock = rings.clock();
    let mut checks = 0;
    let arrivals = move |_: &Control, _: &mut [CpuRing], _: &mut Vec<CpuRing>, untraced: &mut UntracedCpus| {
        checks += 1;
        match checks {
            1 if untraced.failed(3, Moment::now(clock)) => Err(Error::no_events()),
            2 => {
                untraced.end(Moment::now(clock), |cpu| cpu == 3);
                Ok(())
            }
            _ => unreachable!(),
        }
    };
    rings.arrivals = Some(Box::new(arrivals));
    let mut merge = Merge::new(rings, Order::new().hold(Hold::None)).unwrap();
    (1..=6).for_each(|time| assert!(kernel.emit(0, time, b"")));
    assert!(kernel.emit(1, 7, b""));
    merge.refresh(0);
    let key = |merge: &mut Merge| merge.next().and_then(|event| event.key());
    assert_eq!([key(&mut merge), key(&mut merge)], [Some(1), Some(2)]);

    assert!(merge.follow_cpus().unwrap_err().to_string().contains("nothing to open"));
    let reported = |event: Event<'_>| match event.item() {
        Item::Untraced(untraced) => {
            assert_eq!((event.key(), event.cpu(), untraced.cpu), (None, Some(3), 3));
            untraced.lasted.is_some()
        }
        other => panic!("{other:?}"),
    };
    let lent = merge.next().unwrap();
    assert!(!reported(lent.event()) && !reported(lent.to_owned().as_event()));
    // It comes again after `mem::forget`.
    std::mem::forget(lent);
    assert!(!reported(merge.next().unwrap().event()));
    assert_eq!([key(&mut merge), key(&mut merge)], [Some(3), Some(4)]);

    assert!(!merge.follow_cpus().unwrap());
    let ledger = merge.ledger();
    assert!(!ledger.is_complete() && !ledger.total().untraced.is_zero(), "{ledger}");
    assert_eq!(ledger.accounts.iter().map(|account| account.cpu).collect::<Vec<_>>(), [Some(0), Some(1), Some(3)]);
    let mut batch = merge.batch();
    assert!(reported(batch.next().unwrap()));
    assert_eq!(batch.fold(Vec::new(), |keys, event| [keys, vec![event.key().unwrap()]].concat()), [5, 6, 7]);
    assert!(merge.next().is_none() && merge.status().total().late == 0);
}

/// For every way to read, the reader checks each record, also if many of one ring follow each other.
#[test]
fn all_that_is_ones_own_is_left_out_whichever_way_is_read() {
    const TID: u64 = 2;
    let take: [fn(&mut Reader) -> usize; 3] = [
        |reader| std::iter::from_fn(|| reader.next_timeout(Duration::ZERO).unwrap().map(drop)).count(),
        |reader| reader.batch(Duration::ZERO).unwrap().unwrap().fold(0, |taken, _| taken + 1),
        |reader| {
            reader.try_fold(0, |taken, _| ControlFlow::<(), _>::Continue(taken + 1)).unwrap().continue_value().unwrap()
        },
    ];
    for (way, take) in take.into_iter().enumerate() {
        let kernel = sim::Kernel::with(&[0, 1], 4096, crate::record::Layout::new(TID | 4 | 1024, true, 0));
        let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None).leave_out(of_tracers)).unwrap();
        // Simulated records name the thread whose number is that of the process. One in eight names another: each
        // begins a run.
        reader.engine.merge.know(&Arc::new(Thread::numbered(std::process::id())));
        for time in 0..48u64 {
            let cpu = (time / 8 % 2) as u32;
            assert!(kernel.emit(cpu, time, &[0; 4]));
            if time % 8 == 0 {
                // 32 bytes each.
                kernel.scribble(cpu, time / 16 * 8 * 32 + 12, &[0; 4]);
            }
        }
        assert_eq!((take(&mut reader), reader.status().left_out), (6, 42), "way {way}");
    }
}

/// A thread that has ended: what it did is left out, however late that is read. What has its number later stays, and so
/// does all that cannot be compared with its end.
#[test]
fn the_number_of_a_thread_that_has_ended_is_forgotten() {
    // In a thread of its own: the process has the number of its first one.
    let test = || {
        for (clock, left_out) in [(Clock::Monotonic, 1), (Clock::Perf, 0)] {
            let kernel = sim::Kernel::with(&[0], 4096, crate::record::Layout::new(2 | 4 | 1024, true, 0));
            kernel.set_clock(clock);
            let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None).leave_out(of_tracers)).unwrap();
            // Simulated records name the thread whose number is that of the process.
            let thread = Arc::new(Thread::numbered(std::process::id()));
            reader.engine.merge.know(&thread);
            let now = || clock.now().unwrap_or(1);
            assert!(kernel.emit(0, now() - 1, b"its own"));
            thread.end();
            assert!(kernel.emit(0, now() + 100_000, b"another's"));
            let mut taken =
                || std::iter::from_fn(|| reader.next_timeout(Duration::from_millis(1)).unwrap().map(drop)).count();
            assert_eq!(taken() as u64, 2 - left_out, "{clock:?}");
            assert_eq!(reader.status().left_out, left_out, "{clock:?}");
            assert!(reader.threads().all(|number| number != std::process::id()));
            // The list is bounded.
            let forgotten = Arc::downgrade(&thread);
            drop(thread);
            for number in 0..100 {
                let thread = Arc::new(Thread::numbered(number));
                reader.engine.merge.know(&thread);
                thread.end();
                assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
            }
            assert!(forgotten.upgrade().is_none(), "the one that ended first");
        }
    };
    std::thread::spawn(test).join().unwrap();
}

/// Who asks for a report hears before it of a CPU that came meanwhile: the reader looks for CPUs, however short a time
/// ago it did so.
#[test]
fn a_report_comes_after_a_look_for_cpus() {
    let kernel = sim::Kernel::new(&[0]);
    let mut rings = kernel.rings();
    let (clock, comes) = (rings.clock(), Arc::new(AtomicBool::new(false)));
    let (came, well) = (Arc::clone(&comes), Moment::now(clock));
    let arrivals = move |_: &Control, _: &mut [CpuRing], _: &mut Vec<CpuRing>, untraced: &mut UntracedCpus| {
        if came.swap(false, Ordering::Relaxed) {
            untraced.was_late(1, well, Moment::now(clock));
        }
        Ok(())
    };
    rings.arrivals = Some(Box::new(arrivals));
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    let handle = reader.handle();
    let reported = |reader: &mut Reader| {
        let mut reported = false;
        while let Some(event) = reader.next().unwrap() {
            match event.item() {
                Item::Untraced(_) => reported = true,
                Item::Flushed { .. } => break,
                other => panic!("{other:?}"),
            }
        }
        reported
    };
    let mut seen = Vec::new();
    for comes_now in [false, true, false, true] {
        comes.store(comes_now, Ordering::Relaxed);
        handle.flush().unwrap();
        seen.push(reported(&mut reader));
    }
    comes.store(true, Ordering::Relaxed);
    handle.set_deadline(Some(Instant::now())).unwrap();
    seen.push(reported(&mut reader));
    assert_eq!(seen, [false, true, false, true, true]);
    assert!(!reader.ledger().unwrap().is_complete());
}

/// Too many held events are an error at the first refresh that finds them, the tenth, the hundredth and so on. After
/// some refreshes that find fewer the count begins again.
#[test]
fn too_many_events_are_an_error_now_and_then() {
    let kernel = sim::Kernel::with(&[0], 4096, crate::record::Layout::new(4 | 1024, true, 0));
    let (end, fence) = held_up();
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(fence))).unwrap();
    reader.engine.merge.full.most_events = 50;
    let errors = |reader: &mut Reader, turns: u64| -> Vec<u64> {
        let failed = |_| {
            let error = reader.engine.turn().err()?;
            assert_eq!(error.kind(), ErrorKind::Degraded);
            assert!(error.to_string().starts_with("120 events are held"), "{error}");
            let text = error.to_string();
            let times = text.split_once("the last of ").map_or("1", |(_, rest)| rest);
            times.split(' ').next()?.parse().ok()
        };
        (0..turns).filter_map(failed).collect()
    };
    (0..120).for_each(|time| assert!(kernel.emit(0, time, &[0; 8])));
    assert_eq!(errors(&mut reader, 150), [1, 9, 90]);
    drop(end);
    // Nothing is lost by the errors, and the reader goes on.
    for time in 0..120 {
        assert_eq!(reader.next_timeout(MINUTE).unwrap().unwrap().key(), Some(time));
    }
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    assert!(errors(&mut reader, 20).is_empty());
    assert_eq!(reader.engine.troubles.crowds.failed(false), Some(1), "it counts anew");
}

/// A program that never commits, and a fence that never ends: after half a minute the reader says which it is, now and
/// then, and reads on.
#[test]
fn a_proof_that_does_not_come_is_an_error_now_and_then() {
    let errors = |reader: &mut Reader, text: &str| -> usize {
        let failed = |_| {
            let error = reader.engine.turn().err()?;
            assert!(error.kind() == ErrorKind::Degraded && error.to_string().starts_with(text), "{error}");
            Some(())
        };
        (0..20).filter_map(failed).count()
    };
    let long_ago = || Instant::now().checked_sub(2 * troubles::STALLED).expect("the machine is up for a minute");
    // Inside a reservation.
    let (buffer, ring) = sim::RingBuffer::new(4096);
    let mut rings = Rings::empty(Clock::Perf);
    rings.add(0, ring, crate::record::Layout::RING_BUFFER);
    let order = Order::new().key(crate::Key::Payload(0)).hold(Hold::Fence(Fence::by(|| Ok(()))));
    let mut reader = Reader::new(rings, order).unwrap();
    assert!(buffer.output(&1u64.to_ne_bytes()));
    let inside = buffer.reserve(8).unwrap();
    assert_eq!(errors(&mut reader, ""), 0, "it is too early");
    assert_eq!(reader.engine.awaited.places.len(), 1);
    reader.engine.awaited.places.iter_mut().for_each(|(_, found)| *found = long_ago());
    assert_eq!(errors(&mut reader, "a program on CPU 0 has not committed"), 2, "the first and the tenth");
    buffer.submit(inside, &2u64.to_ne_bytes());
    for key in [1, 2] {
        assert_eq!(reader.next_timeout(MINUTE).unwrap().unwrap().key(), Some(key));
    }
    // A fence.
    let (end, fence) = held_up();
    let kernel = sim::Kernel::new(&[0]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(fence))).unwrap();
    assert!(kernel.emit(0, 1, b""));
    reader.engine.refresh();
    reader.engine.prove(Instant::now() + HOUR);
    assert_eq!(errors(&mut reader, ""), 0, "it is too early");
    reader.engine.proof.as_mut().unwrap().set_begun(long_ago());
    assert_eq!(errors(&mut reader, "no proof has come by custom for"), 2);
    drop(end);
    assert_eq!(reader.next_timeout(MINUTE).unwrap().unwrap().key(), Some(1));
}
