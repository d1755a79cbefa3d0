//! The reader under tokio, on live rings and simulated ones.

use futures_util::{FutureExt, StreamExt};
use perfweave::{AsyncReader, Class, Error, Hold, Key, Order, Pause, Rings, Wakeup, What, sim};
use perfweave_support::bpf::{Map, Program};
use perfweave_support::{bpf, kernel, load};
use std::time::{Duration, Instant};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(10);

/// A reader of what the echo program outputs, woken for each event so that the reader's own tick hides nothing.
fn open(hold: Hold) -> Option<(AsyncReader, Program)> {
    let events = kernel("make a perf event array", Map::perf_event_array(load::slots()))?;
    let echo = bpf::echo(&events).unwrap();
    let rings = Rings::options().bpf_output(&events).wakeup(Wakeup::Events(1)).open().unwrap();
    Some((AsyncReader::new(rings, Order::new().hold(hold)).unwrap(), echo))
}

async fn next(reader: &mut AsyncReader) -> (u64, Class) {
    let event = timeout(LONG, reader.next()).await.expect("it comes").unwrap();
    (event.record().unwrap().payload().unwrap().u64(0).unwrap(), event.class())
}

#[tokio::test]
async fn events_of_all_cpus_come_in_proven_order() {
    let Some((mut reader, echo)) = open(Hold::FENCE) else { return };
    let cpus = load::online();
    for n in 0..100 {
        assert_eq!(echo.run_with(cpus[n as usize % cpus.len()], &[n]).unwrap(), 0);
    }
    for n in 0..100 {
        assert_eq!(next(&mut reader).await, (n, Class::Proven));
    }
    for n in 0..100 {
        assert_eq!(echo.run_with(cpus[n as usize % cpus.len()], &[n]).unwrap(), 0);
    }
    let mut seen = Vec::new();
    while seen.len() < 100 {
        let batch: Vec<_> = timeout(LONG, reader.batch()).await.expect("it comes").unwrap().collect();
        seen.extend(batch.iter().map(|event| event.record().unwrap().payload().unwrap().u64(0).unwrap()));
    }
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
}

/// The nested-epoll trap: an epoll instance inside the runtime's finds nothing, and the wake-up is lost.
#[tokio::test]
async fn a_single_event_wakes_the_task() {
    let Some((mut reader, echo)) = open(Hold::None) else { return };
    let cpus = load::online();
    let mut waits = Vec::new();
    for n in 0..30 {
        let cpu = cpus[n as usize % cpus.len()];
        // Until the reader's own tick is at its longest, so that it hides no wake-up that is lost.
        assert!(timeout(Duration::from_millis(230), reader.next()).await.is_err());
        let writer = tokio::task::spawn_blocking({
            let echo = echo.try_clone().unwrap();
            move || {
                std::thread::sleep(Duration::from_millis(5));
                let begin = Instant::now();
                assert_eq!(echo.run_with(cpu, &[n]).unwrap(), 0);
                begin
            }
        });
        assert_eq!(next(&mut reader).await.0, n);
        let seen = Instant::now();
        waits.push(seen.saturating_duration_since(writer.await.unwrap()));
    }
    waits.sort();
    assert!(waits[waits.len() * 3 / 4] < Duration::from_millis(20), "wake-ups are lost: {waits:?}");
}

/// Writers that never stop, and a reader that sleeps again and again: nothing stays behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_behind() {
    let Some((mut reader, echo)) = open(Hold::FENCE) else { return };
    let count = 20_000;
    let writer = tokio::task::spawn_blocking(move || {
        let cpus = load::online();
        let mut written = 0;
        for n in 0..count {
            written += u64::from(echo.run_with(cpus[n as usize % cpus.len()], &[n]).unwrap() == 0);
            if n % 50 == 0 {
                std::thread::sleep(Duration::from_micros(300));
            }
        }
        written
    });
    let (mut seen, mut last) = (0, None);
    // What is lost is counted: the ring may be too small for a reader that gets no CPU.
    while seen + reader.stats().lost < count {
        let Ok(event) = timeout(Duration::from_secs(2), reader.next()).await else { break };
        let event = event.unwrap();
        if let Some(record) = event.record() {
            let n = record.payload().unwrap().u64(0);
            assert!(n > last, "{n:?} behind {last:?}");
            last = n;
            seen += 1;
        }
    }
    assert_eq!(seen, writer.await.unwrap());
    assert_eq!(reader.stats().late, 0);
}

/// A future that is dropped at any point takes nothing with it.
#[tokio::test]
async fn cancelling_loses_nothing() {
    let Some((mut reader, echo)) = open(Hold::FENCE) else { return };
    let mut seen = 0;
    let mut cancelled = 0;
    for n in 0..200 {
        assert_eq!(echo.run_with(0, &[n]).unwrap(), 0);
        // Polled once and dropped; or for a while, and dropped.
        if let Some(event) = reader.next().now_or_never() {
            assert_eq!(event.unwrap().record().unwrap().payload().unwrap().u64(0), Some(seen));
            seen += 1;
        } else {
            cancelled += 1;
        }
        if n % 10 == 0
            && let Ok(event) = timeout(Duration::from_micros(500), reader.next()).await
        {
            // Lent, looked at, and forgotten: it comes again.
            std::mem::forget(event.unwrap());
        }
    }
    while seen < 200 {
        assert_eq!(next(&mut reader).await.0, seen);
        seen += 1;
    }
    assert!(cancelled > 100, "{cancelled}");
}

#[tokio::test]
async fn a_stream_of_owned_events() {
    let Some((reader, echo)) = open(Hold::FENCE) else { return };
    let handle = reader.handle();
    let mut stream = reader.into_stream();
    for n in 0..10 {
        assert_eq!(echo.run_with(0, &[n]).unwrap(), 0);
    }
    handle.flush().unwrap();
    let mut kept = Vec::new();
    loop {
        match timeout(LONG, stream.next()).await.expect("it comes").expect("not closed") {
            Ok(event) => kept.push(event),
            Err(Error::Flushed) => break,
            Err(other) => panic!("{other}"),
        }
    }
    let numbers: Vec<_> =
        kept.iter().map(|event| event.as_event().record().unwrap().payload().unwrap().u64(0).unwrap()).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    // Taken out of the stream, the reader goes on where it was.
    assert_eq!(echo.run_with(0, &[10]).unwrap(), 0);
    let mut reader = stream.into_reader();
    assert_eq!(next(&mut reader).await.0, 10);
    let mut stream = reader.into_stream();
    handle.close();
    assert!(timeout(LONG, stream.next()).await.expect("at once").is_none());
}

/// Everything that a handle does, while a task waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_reaches_a_task_that_waits() {
    let Some((mut reader, echo)) = open(Hold::FENCE) else { return };
    let handle = reader.handle();
    let task = tokio::spawn(async move {
        let mut reports = Vec::new();
        loop {
            match reader.next().await {
                Ok(event) => reports.push(format!("{:?}", event.record().unwrap().payload().unwrap().u64(0))),
                Err(Error::Closed) => return reports,
                // Again and again without a pause, once the deadline is past: other tasks must get their turn.
                Err(error) => {
                    reports.push(format!("{error:?}"));
                    reports.truncate(10);
                }
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(echo.run_with(0, &[1]).unwrap(), 0);
    handle.flush().unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    handle.pause(Pause::Slots).unwrap();
    assert_eq!(echo.run_with(0, &[2]).unwrap(), -libc::ENOENT);
    handle.resume().unwrap();
    assert_eq!(echo.run_with(0, &[3]).unwrap(), 0);
    tokio::time::sleep(Duration::from_millis(300)).await;
    // In the future, and the task wakes for it.
    handle.set_deadline(Some(Instant::now() + Duration::from_millis(50))).unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    handle.close();
    let reports = timeout(LONG, task).await.expect("closed at once").unwrap();
    assert_eq!(reports[..4], ["Some(1)", "Flushed", "Some(3)", "Deadline"]);
    assert!(reports[4..].iter().all(|report| report == "Deadline"), "sticky");
    assert!(matches!(handle.flush(), Err(Error::Closed)));
}

/// Sparse CPUs, and one that is plugged in while the task waits. Without the kernel's help.
#[tokio::test]
async fn simulated_rings_and_a_cpu_that_comes_later() {
    let kernel = sim::Kernel::new(&[0, 7]);
    let mut reader = AsyncReader::new(kernel.rings(), Order::new().hold(kernel.hold())).unwrap();
    kernel.emit(7, 10, b"");
    kernel.plug(3);
    kernel.emit(3, 20, b"");
    kernel.emit(0, 30, b"");
    for key in [10, 20, 30] {
        // What is held when the CPU is found may be let out before what waits in its ring.
        let event = timeout(LONG, reader.next()).await.expect("it comes").unwrap();
        assert!(matches!(event.what(), What::Record(_)), "{key}");
    }
    assert_eq!(reader.rings().cpus().collect::<Vec<_>>(), [0, 3, 7]);
    kernel.emit(3, 40, b"");
    kernel.emit(7, 50, b"");
    for key in [40, 50] {
        assert_eq!(timeout(LONG, reader.next()).await.expect("it comes").unwrap().key(), Some(key));
    }
}

/// A descriptor that hangs up stays ready for ever: it is let go, and the reader's own ticks go on.
#[tokio::test]
async fn what_hangs_up_does_not_keep_the_task_busy() {
    use nix::sys::resource::{UsageWho, getrusage};
    use perfweave_support::foreign;
    use std::os::fd::AsFd;
    let size = foreign::page_size();
    let Some(theirs) = kernel("open a ring", foreign::ForeignRing::open(0, size)) else { return };
    let (hung_up, other) = nix::unistd::pipe().unwrap();
    drop(other);
    let mut rings = Rings::empty(perfweave::Clock::Monotonic);
    let (base, size) = theirs.buffer();
    // SAFETY: mapped until the end of this test; nobody else reads it.
    let ring = unsafe { perfweave::Ring::adopt_mapping(base, size, Some(hung_up.as_fd())) }.unwrap();
    rings.add(0, ring, perfweave::Layout::RAW);
    let order = Order::new().key(Key::Payload(0)).hold(Hold::None);
    let mut reader = AsyncReader::new(rings, order).unwrap();
    let used = || {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
        let time = usage.user_time() + usage.system_time();
        Duration::from_micros((time.tv_sec() * 1_000_000 + time.tv_usec()) as u64)
    };
    let before = used();
    assert!(timeout(Duration::from_millis(600), reader.next()).await.is_err());
    assert!(used() - before < Duration::from_millis(200), "{:?} of CPU in 600 ms", used() - before);
    let events = Map::perf_event_array(load::slots()).unwrap();
    perfweave_support::foreign::set_slot(&events, 0, &theirs).unwrap();
    assert_eq!(bpf::echo(&events).unwrap().run_with(0, &[7]).unwrap(), 0);
    assert_eq!(next(&mut reader).await.0, 7);
}

#[test]
fn without_a_runtime_it_says_so() {
    let kernel = sim::Kernel::new(&[0]);
    let error = AsyncReader::new(kernel.rings(), Order::new().key(Key::Time).hold(Hold::None)).unwrap_err();
    assert!(error.to_string().contains("tokio"), "{error}");
}

/// A reader can be sent to another task, and what it lends can be held across an await.
#[test]
fn futures_can_be_sent() {
    fn sent<T: Send>(value: T) -> T {
        value
    }
    let _ = |reader: AsyncReader| {
        sent(async move {
            let mut reader = reader;
            let event = reader.next().await;
            tokio::task::yield_now().await;
            drop(event);
        })
    };
}
