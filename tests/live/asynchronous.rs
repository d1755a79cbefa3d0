//! The reader under tokio, on live rings and simulated ones.

use crate::reading;
use crate::reading::LONG;
use perfweave::{AsyncReader, Certainty, Ended, Error, Hold, Item, Key, Order, OwnedEvent, Pause, Rings, Wakeup, sim};
use perfweave_support::bpf::{Keeping, Map, Program, Stamps};
use perfweave_support::futures_util::FutureExt;
use perfweave_support::futures_util::stream::{Stream, StreamExt, unfold};
use perfweave_support::{bpf, echo, kernel, load, threads, times};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// A reader of the echo program's output, woken for each event so that the reader's own tick hides no lost wake-up.
fn open(hold: Hold) -> Option<(AsyncReader, Program)> {
    let (events, echo) = echo()?;
    let rings = Rings::options().bpf_output(&events).wakeup(Wakeup::Events(1)).open().unwrap();
    Some((AsyncReader::new(rings, Order::new().hold(hold)).unwrap(), echo))
}

async fn next(reader: &mut AsyncReader) -> (u64, Certainty) {
    let event = timeout(LONG, reader.next()).await.expect("it comes").unwrap().unwrap();
    (event.record().unwrap().payload().unwrap().u64(0).unwrap(), event.certainty())
}

#[tokio::test]
async fn events_of_all_cpus_come_in_proven_order() {
    let Some((mut reader, echo)) = open(Hold::FENCE) else { return };
    let cpus = load::online();
    for n in 0..100 {
        assert_eq!(echo.run_with(cpus[n as usize % cpus.len()], &[n]).unwrap(), 0);
    }
    for n in 0..100 {
        assert_eq!(next(&mut reader).await, (n, Certainty::Proven));
    }
    for n in 0..100 {
        assert_eq!(echo.run_with(cpus[n as usize % cpus.len()], &[n]).unwrap(), 0);
    }
    let mut seen = Vec::new();
    while seen.len() < 100 {
        let batch: Vec<_> = timeout(LONG, reader.batch()).await.expect("it comes").unwrap().unwrap().collect();
        seen.extend(batch.iter().map(|event| event.record().unwrap().payload().unwrap().u64(0).unwrap()));
    }
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
}

/// The nested-epoll trap: an epoll instance inside the runtime's finds nothing, and the wake-up is lost.
#[tokio::test]
async fn a_single_event_wakes_the_task() {
    let Some((mut reader, echo)) = open(Hold::None) else { return };
    let cpus = load::online();
    let runtime = threads::own();
    let mut woken = 0;
    // Now and then the reader's own tick finds the event before the wake-up arrives, on a busy machine often.
    for n in 0..2000 {
        let cpu = cpus[n as usize % cpus.len()];
        let writer = tokio::task::spawn_blocking({
            let echo = echo.try_clone().unwrap();
            move || {
                threads::until_asleep(runtime);
                assert_eq!(echo.run_with(cpu, &[n]).unwrap(), 0);
            }
        });
        let before = reader.status().wakes;
        assert_eq!(next(&mut reader).await.0, n);
        woken += u64::from(reader.status().wakes > before);
        writer.await.unwrap();
        if woken == 16 {
            return;
        }
    }
    panic!("wake-ups are lost: {woken} of 2000 came");
}

/// The writer writes whenever the reader has seen all events and goes to sleep: no event stays unread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_behind() {
    const BURST: u64 = 200;
    let Some((mut reader, echo)) = open(Hold::FENCE) else { return };
    let count = 20_000;
    let taken = Arc::new(AtomicU64::new(0));
    let writer = tokio::task::spawn_blocking({
        let taken = Arc::clone(&taken);
        move || {
            let cpus = load::online();
            for n in 0..count {
                if n % BURST == 0 {
                    threads::until("all of them are read", || taken.load(Ordering::Acquire) == n);
                }
                assert_eq!(echo.run_with(cpus[n as usize % cpus.len()], &[n]).unwrap(), 0);
            }
        }
    });
    for n in 0..count {
        assert_eq!(next(&mut reader).await, (n, Certainty::Proven));
        taken.store(n + 1, Ordering::Release);
    }
    writer.await.unwrap();
    let status = reader.status();
    assert_eq!((status.total().late, status.total().lost), (0, 0));
    assert!(status.sleeps >= count / BURST, "{status:?}");
}

/// A future that is dropped at any point takes nothing with it.
#[tokio::test]
async fn cancelling_loses_nothing() {
    let gate = reading::Gate::new();
    let Some((mut reader, echo)) = open(Hold::Fence(gate.fence())) else { return };
    // A future is polled once and dropped, or polled for a while and dropped.
    for n in 0..200 {
        assert_eq!(echo.run_with(0, &[n]).unwrap(), 0);
        assert!(reader.next().now_or_never().is_none(), "no fence has ended");
        if n % 10 == 0 {
            assert!(timeout(Duration::from_micros(500), reader.next()).await.is_err());
        }
    }
    gate.open();
    for n in 0..200 {
        // Cancelled or not, depending on timing.
        let _ = reader.next().now_or_never().map(|event| std::mem::forget(event.unwrap()));
        // Lent and passed to `mem::forget`: it comes again.
        std::mem::forget(timeout(LONG, reader.next()).await.expect("it comes").unwrap().unwrap());
        assert_eq!(next(&mut reader).await.0, n);
    }
}

/// The events as a stream, as the reader's documentation says.
fn copies(reader: AsyncReader) -> impl Stream<Item = Result<OwnedEvent, Error>> {
    unfold(reader, |mut reader| async move {
        let event = reader.next().await.map(|event| event.map(|event| event.to_owned())).transpose()?;
        Some((event, reader))
    })
}

#[tokio::test]
async fn a_stream_of_owned_events() {
    let Some((reader, echo)) = open(Hold::FENCE) else { return };
    let handle = reader.handle();
    let mut stream = Box::pin(copies(reader));
    for n in 0..10 {
        assert_eq!(echo.run_with(0, &[n]).unwrap(), 0);
    }
    handle.flush().unwrap();
    let mut kept = Vec::new();
    loop {
        let event = timeout(LONG, stream.next()).await.expect("it comes").expect("not closed").unwrap();
        match event.as_event().item() {
            Item::Flushed { .. } => break,
            _ => kept.push(event),
        }
    }
    let numbers: Vec<_> =
        kept.iter().map(|event| event.as_event().record().unwrap().payload().unwrap().u64(0).unwrap()).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    handle.close();
    assert!(timeout(LONG, stream.next()).await.expect("at once").is_none());
}

/// All calls of a handle, while a task waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_reaches_a_task_that_waits() {
    let Some((mut reader, echo)) = open(Hold::FENCE) else { return };
    let handle = reader.handle();
    let (report, mut reports) = mpsc::channel(10);
    let task = tokio::spawn(async move {
        loop {
            let given = reader.next().await.unwrap().map(|event| format!("{:?}", reading::Given::of(event.event())));
            let said = given.unwrap_or_else(|| format!("{:?}", reader.ended().unwrap()));
            if reader.ended() == Some(Ended::Closed) {
                return;
            }
            // After the deadline is past this loop never pauses: other tasks must get their turn.
            let _ = report.try_send(said);
        }
    });
    let mut said = async || timeout(LONG, reports.recv()).await.expect("it comes").expect("not closed");
    assert_eq!(echo.run_with(0, &[1]).unwrap(), 0);
    handle.flush().unwrap();
    assert_eq!([said().await, said().await], ["Number(1)", "Flushed"]);
    handle.pause(Pause::Slots).unwrap();
    assert_eq!(echo.run_with(0, &[2]).unwrap(), -libc::ENOENT);
    handle.resume().unwrap();
    assert_eq!(echo.run_with(0, &[3]).unwrap(), 0);
    assert_eq!(said().await, "Number(3)");
    // In the future, and the task wakes for it.
    let deadline = Instant::now() + Duration::from_millis(20);
    handle.set_deadline(Some(deadline)).unwrap();
    for _ in 0..20 {
        assert_eq!(said().await, "Deadline { complete: true }", "sticky");
        assert!(Instant::now() >= deadline);
    }
    handle.close();
    timeout(LONG, task).await.expect("closed").unwrap();
    handle.flush().unwrap();
}

/// The order uses the configured keys, as without a runtime: the program's own, not the kernel's time.
#[tokio::test]
async fn keys_are_those_that_were_asked_for() {
    let kernel = sim::Kernel::new(&[0, 7]);
    let order = Order::new().key(Key::Payload(8)).hold(kernel.hold());
    let mut reader = AsyncReader::new(kernel.rings(), order).unwrap();
    let emit = |cpu, time, key: u64| assert!(kernel.emit(cpu, time, &[5u64.to_ne_bytes(), key.to_ne_bytes()].concat()));
    emit(0, 10, 300);
    emit(7, 20, 200);
    emit(0, 30, 100);
    for key in [100, 200, 300] {
        let event = timeout(LONG, reader.next()).await.expect("it comes").unwrap().unwrap();
        assert_eq!((event.key(), event.certainty()), (Some(key), Certainty::Proven));
    }
    emit(7, 1, 400);
    emit(0, 2, 500);
    let batch = timeout(LONG, reader.batch()).await.expect("it comes").unwrap().unwrap();
    assert_eq!(batch.map(|event| event.key()).collect::<Vec<_>>(), [Some(400), Some(500)]);
    emit(7, 1, 600);
    let event = timeout(LONG, reader.next()).await.expect("it comes").unwrap().unwrap();
    assert_eq!(event.to_owned().as_event().key(), Some(600));
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
    let mut keys = Vec::new();
    for _ in 0..3 {
        // Held events may leave before events in the ring of the new CPU.
        let event = timeout(LONG, reader.next()).await.expect("it comes").unwrap().unwrap();
        assert!(matches!(event.item(), Item::Record(_)));
        keys.push(event.key().expect("a time"));
    }
    keys.sort_unstable();
    assert_eq!(keys, [10, 20, 30]);
    assert_eq!(reader.rings().cpus().collect::<Vec<_>>(), [0, 3, 7]);
    kernel.emit(3, 40, b"");
    kernel.emit(7, 50, b"");
    for key in [40, 50] {
        assert_eq!(timeout(LONG, reader.next()).await.expect("it comes").unwrap().unwrap().key(), Some(key));
    }
}

/// A descriptor that hangs up stays ready for ever: the reader deregisters it after it woke the task once, and its own
/// ticks go on.
#[tokio::test]
async fn what_hangs_up_does_not_keep_the_task_busy() {
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
    assert!(timeout(Duration::from_millis(300), reader.next()).await.is_err());
    let status = reader.status();
    assert!(status.sleeps > 0 && status.wakes <= 1, "woken once by the hang-up: {status:?}");
    let events = Map::perf_event_array(load::slots()).unwrap();
    perfweave_support::foreign::set_slot(&events, 0, &theirs).unwrap();
    assert_eq!(bpf::echo(&events).unwrap().run_with(0, &[7]).unwrap(), 0);
    assert_eq!(next(&mut reader).await.0, 7);
}

/// No wake-up comes when a program leaves: the task polls again.
#[tokio::test]
async fn a_task_waits_for_whoever_is_inside() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let epochs = reading::simulated(&kernel).patience(Duration::MAX);
    let order = Order::new().hold(Hold::Fence(epochs.fence()));
    let mut reader = AsyncReader::new(kernel.rings(), order).unwrap();
    assert_eq!(reader.fence(), Some("epochs"));
    let runtime = threads::own();
    for time in (0..60).step_by(3) {
        // No program is inside: at once.
        kernel.emit(1, time, b"");
        let event = reader.next().now_or_never().expect("without waiting").unwrap().unwrap();
        assert_eq!((event.key(), event.certainty()), (Some(time), Certainty::Proven));
        drop(event);
        kernel.begin(0, time + 1);
        kernel.emit(1, time + 2, b"");
        assert!(reader.next().now_or_never().is_none(), "it may be writing something smaller");
        let writer = tokio::task::spawn_blocking({
            let kernel = kernel.clone();
            move || {
                threads::until_asleep(runtime);
                kernel.write(0, b"");
                kernel.end(0);
            }
        });
        for key in [time + 1, time + 2] {
            let event = timeout(LONG, reader.next()).await.expect("it comes").unwrap().unwrap();
            assert_eq!((event.key(), event.certainty()), (Some(key), Certainty::Proven));
        }
        writer.await.unwrap();
    }
    let status = reader.status();
    assert_eq!((status.total().late, status.stand_ins), (0, 0));
}

/// A program that returned without leaving does not block the task, and the task gets an error.
#[tokio::test]
async fn a_task_is_told_of_a_program_that_does_not_leave() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let epochs = reading::simulated(&kernel).patience(Duration::ZERO);
    let order = Order::new().hold(Hold::Fence(epochs.fence()));
    let mut reader = AsyncReader::new(kernel.rings(), order).unwrap();
    kernel.set_epoch(1, 1);
    let mut told = 0;
    for time in 1..=20 {
        kernel.emit(0, time, b"");
        loop {
            match timeout(LONG, reader.next()).await.expect("it comes") {
                Ok(Some(event)) => break assert_eq!((event.key(), event.certainty()), (Some(time), Certainty::Proven)),
                Err(error)
                    if error.to_string().contains("a program on CPU 1 has returned without perfweave_leave()") =>
                {
                    told += times(&error.to_string());
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let status = reader.status();
    assert!(status.stand_ins >= 20 && (10..=status.stand_ins).contains(&told), "{told} of {status:?}");
    assert_eq!(status.total().late, 0);
}

/// The same on live rings, whose writers enter and leave.
#[tokio::test]
async fn a_task_proves_by_the_words_of_programs() {
    let Some(events) = kernel("make a perf event array", Map::perf_event_array(load::slots())) else { return };
    let (counter, words) = (Map::array(8, 1).unwrap(), Map::epochs(load::slots()).unwrap());
    let stamps = Stamps { events: &events, counter: &counter, epochs: Some((&words, Keeping::Rightly)) };
    let Some(program) = kernel("load a BPF program", stamps.when_run(1)) else { return };
    let Some(hold) = reading::epochs(&words) else { return };
    let rings = Rings::options().bpf_output(&events).open().unwrap();
    let mut reader = AsyncReader::new(rings, Order::new().hold(hold)).unwrap();
    for (number, &cpu) in (0..100).zip(load::online().iter().cycle()) {
        assert_eq!(program.run_on(cpu).unwrap(), 0);
        let event = timeout(LONG, reader.next()).await.expect("it comes").unwrap().unwrap();
        let found = event.record().unwrap().payload().unwrap().u64(8);
        assert_eq!((found, event.cpu(), event.certainty()), (Some(number), Some(cpu), Certainty::Proven));
    }
    assert_eq!(reader.status().total().late, 0);
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
