//! What libbpf, libbpf-rs, aya and cilium/ebpf assert of their readers of BPF ring buffers.

use crate::reading;
use crate::reading::{Given, LONG, number};
use perfweave::{ANY_CPU, Clock, Ended, Event, Hold, Item, Key, Layout, Order, Reader, Ring, Rings};
use perfweave_proofs::Barrier;
use perfweave_support::bpf::{Asm, Kind, Map, Program, Query, Reg};
use perfweave_support::pin;
use perfweave_support::ring_buffer::{self, FORCE_WAKEUP, NO_WAKEUP, Reserving, Way};
use perfweave_support::{foreign, kernel, load, threads};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Reservations, also where CPUs are kept free of other work.
fn reserved() -> Hold {
    Hold::Fence(Barrier::Interrupts { every: Duration::from_micros(100), isolated: true }.fence())
}

fn page() -> u32 {
    foreign::page_size() as u32
}

fn adopt<'a>(maps: impl IntoIterator<Item = &'a Map>) -> Rings {
    let mut rings = Rings::empty(Clock::Monotonic);
    for map in maps {
        // SAFETY: the tests' maps have no other reader.
        for (cpu, ring) in unsafe { Ring::adopt_ring_buffers(map) }.unwrap() {
            rings.add(cpu, ring, Layout::RING_BUFFER);
        }
    }
    rings
}

fn reader(map: &Map, hold: Hold) -> Reader {
    Reader::new(adopt([map]), Order::new().key(Key::Payload(0)).hold(hold)).unwrap()
}

fn write(program: &Program, number: u64) {
    assert_eq!(program.run_with(0, &[number]).unwrap(), 0);
}

fn ask(map: &Map, what: Query) -> u64 {
    ring_buffer::query(map, what).unwrap().run_on(0).unwrap() as u64
}

/// What a test of theirs begins with: a ring of one page, and programs that submit and discard.
struct Samples {
    map: Map,
    submit: Program,
    discard: Program,
}

impl Samples {
    fn new(flags: i32) -> Option<Self> {
        let map = kernel("make a BPF ring buffer", Map::ring_buffer(page()))?;
        let (submit, discard) = (ring_buffer::echo(&map, 32, flags), ring_buffer::discarding(&map, 32, flags));
        Some(Self { submit: submit.unwrap(), discard: discard.unwrap(), map })
    }

    /// `trigger_samples()`: two submitted, one discarded, of 40 bytes each.
    fn trigger(&self) {
        write(&self.submit, 333);
        assert_eq!(self.discard.run_on(0).unwrap(), 0);
        write(&self.submit, 777);
    }
}

/// `prog_tests/ringbuf.c`, ringbuf_subtest: what is available, the size and both positions; a callback that stops; the
/// consumer position behind all that was read, discarded records too; each round has its two samples.
#[test]
fn ringbuf_subtest() {
    let Some(samples) = Samples::new(0) else { return };
    let map = &samples.map;
    let mut rings = adopt([map]);
    samples.trigger();
    let queried = || [Query::Available, Query::Size, Query::Consumer, Query::Producer].map(|what| ask(map, what));
    assert_eq!(queried(), [120, page().into(), 0, 120]);
    let raw = rings.raw(ANY_CPU).unwrap();
    assert_eq!(
        (raw.size as u32, raw.tail, raw.head),
        (page(), 0, 120),
        "ring__size, ring__consumer_pos, ring__producer_pos"
    );
    assert_eq!(rings.fds().count(), 1, "ring__map_fd: a duplicate of it");

    let mut seen = Vec::new();
    let mut each = |event: Event<'_>| {
        seen.push(number(&event));
        if seen.len() == 2 { ControlFlow::Break(7777) } else { ControlFlow::Continue(()) }
    };
    assert_eq!(rings.drain(&mut each), ControlFlow::Break(7777));
    assert_eq!(rings.drain(&mut each), ControlFlow::Continue(()), "extra polling returns nothing");
    samples.trigger();
    assert_eq!(ask(map, Query::Consumer), 120);
    assert!(
        rings
            .drain(|event| {
                seen.push(number(&event));
                ControlFlow::<()>::Continue(())
            })
            .is_continue()
    );
    assert_eq!(seen, [333, 777, 333, 777]);
    assert_eq!(queried(), [0, page().into(), 240, 240]);
}

/// The same test's second half: without notification a sleeper is not woken, nor when the consumer is behind; a forced
/// one wakes it, and all rounds are there.
///
/// A reader of ours looks by itself now and then, so that it is behind is shown by one that looks at nothing: its
/// descriptor.
#[test]
fn ringbuf_subtest_notifications() {
    let Some(quiet) = Samples::new(NO_WAKEUP) else { return };
    let loud = ring_buffer::echo(&quiet.map, 32, 0).unwrap();
    let forced = ring_buffer::echo(&quiet.map, 32, FORCE_WAKEUP).unwrap();
    let rings = adopt([&quiet.map]);
    // Edge-triggered, as the reader waits.
    let epoll = nix_epoll(rings.fds().next().unwrap().as_raw_fd());
    let is_notified = || {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: one event.
        unsafe { libc::epoll_wait(epoll, &raw mut event, 1, 0) == 1 }
    };
    assert!(!is_notified());
    quiet.trigger();
    assert!(!is_notified(), "BPF_RB_NO_WAKEUP");
    write(&loud, 1);
    assert!(!is_notified(), "the consumer is behind");
    write(&forced, 2);
    threads::until("BPF_RB_FORCE_WAKEUP", is_notified);
    let mut reader = Reader::new(rings, Order::new().key(Key::Payload(0)).hold(Hold::None)).unwrap();
    let mut seen = reading::numbers(&mut reader);
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 333, 777]);
    reader.advance_tails();
    while is_notified() {}
    write(&loud, 3);
    threads::until("one that has caught up is notified", is_notified);
    // SAFETY: opened here, and nobody has it any more.
    unsafe { libc::close(epoll) };
}

fn nix_epoll(fd: i32) -> i32 {
    // SAFETY: no pointers.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
    // SAFETY: one event, which lives until the call returns.
    assert_eq!(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) }, 0);
    epoll
}

/// ringbuf_n_subtest, `ring_buffer__consume_n()`: 32 samples, four at a time.
#[test]
fn ringbuf_n_subtest() {
    let Some(samples) = Samples::new(0) else { return };
    let mut reader = reader(&samples.map, reserved());
    (0..32).for_each(|n| write(&samples.submit, n));
    let mut seen = Vec::new();
    while seen.len() < 32 {
        let four: Vec<_> = reader.batch(LONG).unwrap().unwrap().take(4).map(|event| number(&event)).collect();
        assert_eq!(four.len(), 4);
        seen.extend(four);
    }
    assert_eq!(seen, (0..32).collect::<Vec<_>>());
}

/// `prog_tests/ringbuf_multi.c`: two ring buffers of one manager, in an array of maps whose slot between them is empty,
/// and in a hash of maps: each sample comes from its ring, the one for the empty slot is skipped.
#[test]
fn test_ringbuf_multi() {
    let made =
        Map::ring_buffers(page(), &[0, 2]).and_then(|array| Ok((array, Map::hash_of_ring_buffers(page(), &[0, 2])?)));
    let Some((array, hash)) = kernel("make BPF ring buffers", made) else { return };
    for (outer, inner) in [array, hash] {
        // It writes into the ring that its first argument names, and says whether there is one.
        let mut asm = Asm::new();
        asm.load(Reg::R6, Reg::R1, 8).load(Reg::R1, Reg::R1, 0).store_u32(Reg::R10, -28, Reg::R1);
        asm.element(&outer, -28).mov(Reg::R9, Reg::R0);
        asm.reserve(8, |asm| asm.mov_i(Reg::R0, 2).exit()).store(Reg::R8, 0, Reg::R6);
        asm.submit(0).mov_i(Reg::R0, 1).exit();
        let program = Program::load(Kind::RawTracepoint, &asm).unwrap();
        let answers = [(0, 333), (1, 555), (2, 777)].map(|(ring, value)| program.run_with(0, &[ring, value]).unwrap());
        assert_eq!(answers, [1, 0, 1], "the middle one is skipped");
        // By the map of maps, and one by one.
        let mut drained = Vec::new();
        let mut rings = adopt([&outer]);
        let _ = rings.drain(|event| {
            drained.push((event.cpu().unwrap(), number(&event)));
            ControlFlow::<()>::Continue(())
        });
        drained.sort_unstable();
        assert_eq!(drained, [(0, 333), (2, 777)]);
        drop(rings);
        for (ring, value) in [(2, 888), (0, 999)] {
            assert_eq!(program.run_with(0, &[ring, value]).unwrap(), 1);
        }
        let order = Order::new().key(Key::Payload(0)).hold(reserved());
        let mut reader = Reader::new(adopt(&inner), order).unwrap();
        assert_eq!(reading::numbers(&mut reader), [888, 999]);
    }
}

/// cilium/ebpf, TestRingbufReader: available bytes and size; one, three and five samples of 5 to 25 bytes, of which
/// every second is discarded; what remains.
#[test]
fn test_ringbuf_reader() {
    for samples in [&[5u32] as &[u32], &[5, 10, 15], &[5, 10, 15, 20, 25]] {
        let Some(map) = kernel("make a BPF ring buffer", Map::ring_buffer(page())) else { return };
        let mut reader = Reader::new(
            adopt([&map]),
            Order::new().key(Key::Fn(Box::new(|record| Some(record.payload()?.len() as u64)))).hold(reserved()),
        )
        .unwrap();
        assert_eq!(reader.rings().raw(ANY_CPU).unwrap().size as u32, page());
        for (at, &size) in samples.iter().enumerate() {
            let mut asm = Asm::new();
            asm.ring(&map).reserve(size, |asm| asm.mov_i(Reg::R0, 1).exit());
            asm.mov_i(Reg::R1, 0x0403_0201).store_u32(Reg::R8, 0, Reg::R1).mov(Reg::R1, Reg::R8);
            if at % 2 == 0 {
                asm.submit(0)
            } else {
                asm.discard(0)
            };
            asm.mov_i(Reg::R0, 0).exit();
            assert_eq!(Program::load(Kind::RawTracepoint, &asm).unwrap().run_on(0).unwrap(), 0);
        }
        assert_eq!(
            ask(&map, Query::Available),
            samples.iter().map(|size| 8 + u64::from(size.next_multiple_of(8))).sum()
        );
        let expected: Vec<_> = samples.iter().copied().step_by(2).collect();
        let left = expected.len();
        for (at, &size) in expected.iter().enumerate() {
            let event = reading::next(&mut reader);
            let payload = event.record().and_then(|record| record.payload()).unwrap();
            assert_eq!((payload.len() as u32, payload.u32(0)), (size, Some(0x0403_0201)));
            drop(event);
            assert_eq!(reader.status().held, left - at - 1, "Remaining, as records");
        }
        reader.advance_tails();
        assert_eq!(ask(&map, Query::Available), 0);
    }
}

/// TestReaderBlocking, TestUnsafeReaderClose: a read blocks, close ends it, again and again.
#[test]
fn test_reader_blocking() {
    let Some(samples) = Samples::new(0) else { return };
    write(&samples.submit, 1);
    let mut reader = reader(&samples.map, reserved());
    assert_eq!(number(&reading::next(&mut reader).event()), 1);
    let (handle, sleeper) = (reader.handle(), threads::own());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            threads::until_slept(sleeper, 2);
            handle.close();
            handle.close();
        });
        assert_eq!(reading::ended(&mut reader), Some(Ended::Closed));
    });
    assert_eq!(reading::ended(&mut reader), Some(Ended::Closed));
}

/// TestReaderNoWakeup, TestReaderSetDeadline, TestUnsafeReaderDeadline: a past deadline brings out what nobody was
/// woken for, then ends the stream, again and again.
#[test]
fn test_reader_no_wakeup() {
    let Some(samples) = Samples::new(NO_WAKEUP) else { return };
    for hold in [reserved(), Hold::FENCE, Hold::None] {
        let mut reader = reader(&samples.map, hold);
        samples.trigger();
        assert_eq!(ask(&samples.map, Query::Available), 120);
        reader.handle().set_deadline(Some(Instant::now() - Duration::from_secs(1))).unwrap();
        for expected in [333, 777] {
            assert_eq!(Given::by(&mut reader).unwrap(), Given::Number(expected));
        }
        reader.advance_tails();
        assert_eq!(ask(&samples.map, Query::Available), 0);
        for _ in 0..2 {
            assert_eq!(reading::ended(&mut reader), Some(Ended::Deadline { complete: true }));
        }
    }
}

/// TestReaderFlushPendingEvents: a blocked reader is woken by a flush, gives what is there, and then says so.
#[test]
fn test_reader_flush_pending_events() {
    let Some(samples) = Samples::new(NO_WAKEUP) else { return };
    for hold in [reserved(), Hold::FENCE, Hold::None] {
        let mut reader = reader(&samples.map, hold);
        let (handle, sleeper) = (reader.handle(), threads::own());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                threads::until_slept(sleeper, 2);
                samples.trigger();
                handle.flush().unwrap();
            });
            let given = [(); 3].map(|()| Given::by(&mut reader).unwrap());
            assert_eq!(given, [Given::Number(333), Given::Number(777), Given::Flushed]);
        });
    }
}

/// TestUnsafeReaderCommitOrdering, …CommitAll: what is lent is given back in the order of the ring, and not before
/// everything before it.
///
/// Here the compiler keeps events from outliving that; what leaves first may lie last in its ring.
#[test]
fn test_unsafe_reader_commit_ordering() {
    let Some(samples) = Samples::new(0) else { return };
    let mut reader = reader(&samples.map, reserved());
    for n in [30, 20, 10] {
        write(&samples.submit, n);
    }
    for (expected, left) in [(10, 120), (20, 120), (30, 0)] {
        assert_eq!(number(&reading::next(&mut reader).event()), expected);
        reader.advance_tails();
        assert_eq!(ask(&samples.map, Query::Available), left);
    }
}

/// aya, ring_buf: none, one, half a ring, one less than fit, and eight times as many. Odd values are rejected; what
/// does not fit is dropped, and here the reader says how many.
#[test]
fn ring_buf() {
    const FIT: u64 = 511;
    let bytes = 512 * 16;
    for count in [0, 1, 256, 511, 4096] {
        let Some(map) = kernel("make a BPF ring buffer", Map::ring_buffer(bytes)) else { return };
        let (counter, failures) = (ring_buffer::counter().unwrap(), Map::counts().unwrap());
        let reserving =
            Reserving { rings: &map, counter: &counter, failures: &failures, way: Way::Inside, discard: Some(2) };
        let program = reserving.when_run(1).unwrap();
        let mut rings = adopt([&map]);
        rings.count_failures(&failures).unwrap();
        let mut reader = Reader::new(rings, Order::new().key(Key::Payload(0)).hold(reserved())).unwrap();
        // Records of 32 bytes.
        for _ in 0..count {
            assert_eq!(program.run_on(0).unwrap(), 0);
        }
        let fit = count.min(FIT.div_ceil(2) - 1);
        let (mut numbers, mut lost) = (Vec::new(), 0);
        reading::all(&mut reader, |event| match event.item() {
            Item::Lost(loss) => lost += loss.count,
            _ => numbers.push(event.record().unwrap().payload().unwrap().u64(8).unwrap()),
        });
        assert_eq!(numbers, (0..fit).step_by(2).collect::<Vec<_>>(), "{count}");
        let rejected = counter.lookup_u64(0, 8).unwrap();
        assert_eq!((rejected, lost), (fit / 2, count - fit), "{count}");
        assert_eq!(lost, failures.counted().unwrap());
        reading::assert_nothing(&mut reader);
    }
}

/// ring_buf_mismatch_small, …_large: a `u16` takes two bytes and a `u64` eight, in one map.
#[test]
fn ring_buf_mismatch() {
    let Some(map) = kernel("make a BPF ring buffer", Map::ring_buffer(page())) else { return };
    let mut rings = adopt([&map]);
    for (size, value) in [(2u32, 0xbeefu64), (8, 0xdead_beef_dead_beef), (2, 0xbeef)] {
        let mut asm = Asm::new();
        asm.load(Reg::R6, Reg::R1, 0).ring(&map).store(Reg::R10, -8, Reg::R6).ring_output(-8, size, 0).exit();
        write(&Program::load(Kind::RawTracepoint, &asm).unwrap(), value);
        let mut seen = Vec::new();
        let _ = rings.drain(|event| {
            seen.push(event.record().unwrap().payload().unwrap().to_vec());
            ControlFlow::<()>::Continue(())
        });
        assert_eq!(seen, [&value.to_ne_bytes()[..size as usize]]);
    }
}

/// A thread that writes until it is over, and how often.
fn flooding<T>(program: &Program, read: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // Where the ring is full, the program says so.
                program.run_with(0, &[7]).unwrap();
            }
        });
        let _end = threads::AtEnd(|| over.store(true, Ordering::Relaxed));
        read()
    })
}

/// ring_buf_epoll_wakeup: 20,000 messages of a writer that never pauses. Without a full barrier between the consumer
/// position and the look at the ring, a reader of theirs is never woken again. Ours looks by itself now and then.
#[test]
fn ring_buf_epoll_wakeup() {
    let Some(samples) = Samples::new(0) else { return };
    for hold in [Hold::None, reserved()] {
        let mut reader = reader(&samples.map, hold);
        flooding(&samples.submit, || {
            let mut seen = 0;
            while seen < 20_000 {
                seen += reader.batch(LONG).unwrap().unwrap().filter(|event| event.record().is_some()).count();
            }
        });
    }
}

/// ring_buf_asyncfd_events, ring_buf_async_with_drops: the same under tokio; seen, rejected and dropped are all that
/// was written.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn ring_buf_asyncfd_events() {
    let Some(map) = kernel("make a BPF ring buffer", Map::ring_buffer(page())) else { return };
    let (counter, failures) = (ring_buffer::counter().unwrap(), Map::counts().unwrap());
    let reserving =
        Reserving { rings: &map, counter: &counter, failures: &failures, way: Way::Inside, discard: Some(2) };
    let program = reserving.when_run(1).unwrap();
    let mut rings = adopt([&map]);
    rings.count_failures(&failures).unwrap();
    let mut reader = perfweave::AsyncReader::new(rings, Order::new().key(Key::Payload(0)).hold(reserved())).unwrap();
    let over = std::sync::Arc::new(AtomicBool::new(false));
    let writer = tokio::task::spawn_blocking({
        let over = std::sync::Arc::clone(&over);
        move || {
            while !over.load(Ordering::Relaxed) {
                program.run_on(0).unwrap();
            }
        }
    });
    let end = threads::AtEnd(|| over.store(true, Ordering::Relaxed));
    let (mut seen, mut lost) = (0, 0);
    let mut is_flushed = |event: Event<'_>| {
        match event.item() {
            Item::Record(_) => seen += 1,
            Item::Lost(loss) => lost += loss.count,
            Item::Flushed { .. } => return true,
            other => panic!("{other:?}"),
        }
        false
    };
    let mut count = 0;
    while count < 20_000 {
        let batch = tokio::time::timeout(LONG, reader.batch()).await.expect("it comes").unwrap().unwrap();
        batch.for_each(|event| {
            count += 1;
            assert!(!is_flushed(event));
        });
    }
    drop(end);
    writer.await.unwrap();
    reader.handle().flush().unwrap();
    while !is_flushed(reader.next().await.unwrap().unwrap().event()) {}
    let (written, rejected) = (counter.lookup_u64(0, 0).unwrap(), counter.lookup_u64(0, 8).unwrap());
    assert_eq!((seen + rejected + lost, lost), (written, failures.counted().unwrap()));
}

/// ring_buf_pinned: a reader of a pinned map goes on where the last one stopped, and nothing that was not read is lost.
#[test]
fn ring_buf_pinned() {
    let Some(samples) = Samples::new(0) else { return };
    let Some(mount) = kernel("mount a BPF file system", pin::BpfFs::mount()) else { return };
    let path = mount.path().join("ring");
    pin::pin(&samples.map, &path).unwrap();
    let reader = || {
        let mut rings = Rings::empty(Clock::Monotonic);
        // SAFETY: one reader at a time.
        for (cpu, ring) in unsafe { Ring::adopt_pinned_ring_buffers(&path) }.unwrap() {
            rings.add(cpu, ring, Layout::RING_BUFFER);
        }
        Reader::new(rings, Order::new().key(Key::Payload(0)).hold(reserved())).unwrap()
    };
    [2, 4, 6, 8].into_iter().for_each(|n| write(&samples.submit, n));
    let mut first = reader();
    for n in [2, 4] {
        assert_eq!(number(&reading::next(&mut first).event()), n);
    }
    drop(first);
    let mut second = reader();
    [10, 12].into_iter().for_each(|n| write(&samples.submit, n));
    assert_eq!(reading::numbers(&mut second), [6, 8, 10, 12]);
}

/// libbpf-rs, test_object_ringbuf, …_closure, …_raw: two maps in one reader; what a callback returns ends it; a reader
/// needs a ring.
#[test]
fn test_object_ringbuf() {
    let (Some(one), Some(two)) = (Samples::new(0), Samples::new(0)) else { return };
    assert!(Reader::new(Rings::empty(Clock::Monotonic), Order::new()).is_err(), "at least one ring");
    let order = || Order::new().key(Key::Payload(0)).hold(reserved());
    let mut reader = Reader::new(adopt([&one.map, &two.map]), order()).unwrap();
    for _ in 0..2 {
        write(&two.submit, 2);
        write(&one.submit, 1);
        assert_eq!(reading::numbers(&mut reader), [1, 2]);
    }
    drop(reader);
    write(&one.submit, 1);
    let stopped = adopt([&one.map, &two.map]).drain(|_| ControlFlow::Break(-libc::ENOENT));
    assert_eq!(stopped, ControlFlow::Break(-libc::ENOENT));
    // Each knows its ring.
    let cpus = load::online();
    let Some((map, inner)) = kernel("make BPF ring buffers", Map::ring_buffers(page(), &cpus)) else { return };
    drop(inner);
    let mut reader = Reader::new(adopt([&map]), order()).unwrap();
    let program = ring_buffer::echo(&map, 8, 0).unwrap();
    drop(map);
    for &cpu in &cpus {
        assert_eq!(program.run_with(cpu, &[u64::from(cpu)]).unwrap(), 0, "test_object_ringbuf_with_closed_map");
        assert_eq!(number(&reading::next(&mut reader).event()), u64::from(cpu));
    }
}
