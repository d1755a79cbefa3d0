//! Flushes, deadlines, pauses, CPUs that come later and reading without order, on simulated rings. Live rings cannot
//! show some of these cases, such as a writer that stops in the middle of its output.

use crate::reading;
use crate::reading::{LONG, assert_nothing, ended, said as next, word};
use perfweave::{Certainty, Ended, Event, Hold, Item, Key, Layout, Merge, Order, Pause, Reader, Rings, sim};
use perfweave_support::{assert_error, threads};
use quickcheck::quickcheck;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

fn holds(kernel: &sim::Kernel) -> [Hold; 3] {
    [kernel.hold(), Hold::Lag(Duration::from_millis(1)), Hold::None]
}

fn rings(kernel: &sim::Kernel, hold: &Hold) -> Rings {
    let rings = kernel.rings();
    // The lag rule reads a clock. On that clock the times used here are long past.
    if matches!(hold, Hold::Lag(_)) { rings.on_clock(perfweave::Clock::Monotonic) } else { rings }
}

/// A machine with two CPUs and its reader, for each rule.
fn readers() -> impl Iterator<Item = (sim::Kernel, Hold, Reader)> {
    (0..3).map(|at| {
        let kernel = sim::Kernel::new(&[0, 1]);
        let hold = holds(&kernel)[at].clone();
        let reader = Reader::new(rings(&kernel, &hold), Order::new().hold(hold.clone())).unwrap();
        (kernel, hold, reader)
    })
}

/// What did not ask the kernel claims nothing, before the first refresh and after it.
#[test]
fn a_status_that_did_not_ask_is_not_complete() {
    for (kernel, hold, mut reader) in readers() {
        let handle = reader.handle();
        let says_nothing = |status: perfweave::Status| !status.is_complete() && !status.total().exact;
        assert!(says_nothing(handle.status().unwrap()), "{hold}");
        assert!(kernel.emit(0, 1, b""));
        handle.flush().unwrap();
        while !matches!(reader.next().unwrap().unwrap().item(), Item::Flushed { .. }) {}
        assert!(says_nothing(handle.status().unwrap()) && says_nothing(reader.status()), "{hold}");
        assert!(reader.ledger().unwrap().is_complete(), "{hold}");
    }
}

/// Under every rule: first the events before the flush come out, then the report, then newer events, even if the reader
/// saw these long before.
#[test]
fn a_flush_parts_what_was_there_from_what_is_newer() {
    for (kernel, hold, mut reader) in readers() {
        let handle = reader.handle();
        (1..=6).for_each(|time| assert!(kernel.emit(time as u32 % 2, time, b"before")));
        handle.flush().unwrap();
        // Two flushes before the reader begins the first count as one.
        handle.flush().unwrap();
        assert_eq!(next(&mut reader), "1", "{hold}");
        (7..=9).for_each(|time| assert!(kernel.emit(time as u32 % 2, time, b"after")));
        // While the report is due, a handle flushes again: that report comes after all present events.
        handle.flush().unwrap();
        let rest: Vec<_> = (0..10).map(|_| next(&mut reader)).collect();
        assert_eq!(rest, ["2", "3", "4", "5", "6", "Flushed", "7", "8", "9", "Flushed"], "{hold}");
        // Each is reported once: the next event is the next record.
        assert!(kernel.emit(0, 10, b"after both"));
        assert_eq!(next(&mut reader), "10", "{hold}");
    }
}

/// A flush waits for a writer that has drawn a smaller key: the report comes after its record.
#[test]
fn a_flush_waits_for_the_fence() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(kernel.hold())).unwrap();
    kernel.begin(0, 10);
    kernel.emit(1, 20, b"waits for 10");
    reader.handle().flush().unwrap();
    // For any number of refreshes and sleeps: the fence under way does not end.
    while reader.status().sleeps < 10 {
        assert!(reader.next_timeout(Duration::from_millis(10)).unwrap().is_none());
    }
    assert!(reader.status().fence.is_some());
    assert_eq!((reader.status().held, reader.status().fences), (1, 0));
    kernel.emit(1, 30, b"newer");
    kernel.write(0, b"late to be written");
    kernel.end(0);
    let seen: Vec<_> = (0..4).map(|_| next(&mut reader)).collect();
    assert_eq!(seen, ["10", "20", "Flushed", "30"]);
}

/// What was dropped before a flush or a deadline is told before its report, also if newer records come into the ring
/// before the proof ends. A later loss has its own place.
#[test]
fn losses_before_a_report_are_told_before_it() {
    for is_flush in [true, false] {
        let kernel = sim::Kernel::new(&[0, 1]);
        let mut reader = Reader::new(kernel.rings(), Order::new().hold(kernel.hold())).unwrap();
        kernel.begin(1, 5);
        kernel.emit(0, 10, b"waits for 5");
        kernel.lose(0, 3);
        if is_flush {
            reader.handle().flush().unwrap();
        } else {
            reader.handle().set_deadline(Some(Instant::now())).unwrap();
        }
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
        kernel.emit(0, 30, b"newer, and a LOST record before it");
        kernel.lose(0, 2);
        kernel.emit(0, 40, b"newer");
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
        kernel.write(1, b"late to be written");
        kernel.end(1);
        let said = |event: Event<'_>| match event.item() {
            Item::Lost(lost) => format!("{} lost after {:?}", lost.count, lost.after),
            _ => word(event),
        };
        let mut seen = Vec::new();
        while let Some(event) = reader.next().unwrap() {
            if matches!(event.item(), Item::Flushed { .. }) {
                break;
            }
            seen.push(said(event.event()));
        }
        assert_eq!(seen, ["5", "10", "3 lost after Some(10)"], "flush: {is_flush}");
        reader.handle().set_deadline(None).unwrap();
        seen.clear();
        reading::all(&mut reader, |event| seen.push(said(event)));
        assert_eq!(seen, ["30", "2 lost after Some(30)", "40"], "flush: {is_flush}");
        let total = reader.ledger().unwrap().total();
        assert_eq!((total.lost, total.unreported), (5, 0));
    }
}

/// Numbers without holes leave without a wait, but not before a report that is due.
#[test]
fn dense_numbers_keep_to_reports_too() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let hold = Hold::Dense { first: Some(1), fence: kernel.fence() };
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(hold)).unwrap();
    let handle = reader.handle();
    kernel.emit(0, 1, b"");
    kernel.emit(1, 3, b"2 is missing");
    handle.flush().unwrap();
    assert_eq!(next(&mut reader), "1");
    kernel.emit(0, 4, b"the next, and newer");
    let gap = reader.next_timeout(LONG).unwrap().unwrap();
    assert!(matches!(gap.item(), Item::Gap(gap) if (gap.first, gap.last) == (2, 2)));
    drop(gap);
    let seen: Vec<_> = (0..3).map(|_| next(&mut reader)).collect();
    assert_eq!(seen, ["3", "Flushed", "4"]);
}

#[test]
fn a_deadline_is_reported_between_what_was_there_and_what_is_newer_and_stays() {
    for (kernel, hold, mut reader) in readers() {
        (1..=2).for_each(|time| assert!(kernel.emit(time as u32 % 2, time, b"before")));
        let begin = Instant::now();
        reader.handle().set_deadline(Some(begin + Duration::from_millis(60))).unwrap();
        assert_eq!([next(&mut reader), next(&mut reader)], ["1", "2"], "{hold}");
        assert_eq!(next(&mut reader), "Deadline", "{hold}");
        assert!(begin.elapsed() >= Duration::from_millis(60), "{hold}");
        assert_eq!(next(&mut reader), "Deadline", "{hold}: it stays past");
        kernel.emit(0, 3, b"newer");
        assert_eq!(next(&mut reader), "Deadline", "{hold}: it stays past");
        // The next deadline is past too: events before it come first.
        reader.handle().set_deadline(Some(Instant::now())).unwrap();
        assert_eq!([next(&mut reader), next(&mut reader)], ["3", "Deadline"], "{hold}");
        kernel.emit(0, 4, b"newer than the second");
        reader.handle().set_deadline(Some(Instant::now() + LONG)).unwrap();
        assert_eq!(next(&mut reader), "4", "{hold}");
        reader.handle().set_deadline(None).unwrap();
        assert_nothing(&mut reader);
    }
}

/// A report that waits for a fence belongs to the deadline that was set then. It ends with that deadline, and does not
/// answer another.
#[test]
fn a_report_that_is_under_way_ends_with_its_deadline() {
    const HOUR: Duration = Duration::from_secs(3600);
    type Instead = fn(&mut Reader);
    let instead: [(Instead, &[&str]); 5] = [
        (|reader| reader.handle().set_deadline(None).unwrap(), &["10", "20", "30"]),
        (|reader| reader.handle().set_deadline(Some(Instant::now() + HOUR)).unwrap(), &["10", "20", "30"]),
        // The later deadline is past too: its report comes after all events that were there when the reader noticed it.
        (|reader| reader.handle().set_deadline(Some(Instant::now())).unwrap(), &["10", "20", "30", "Deadline"]),
        (
            |reader| {
                reader.handle().set_deadline(None).unwrap();
                reader.handle().flush().unwrap();
            },
            &["10", "20", "30", "Flushed"],
        ),
        (|_| {}, &["10", "20", "Deadline", "Deadline"]),
    ];
    for epochs in [false, true] {
        for (at, (instead, expected)) in instead.iter().enumerate() {
            let kernel = sim::Kernel::new(&[0, 1]);
            let hold =
                if epochs { Hold::Fence(reading::simulated(&kernel).patience(HOUR).fence()) } else { kernel.hold() };
            let mut reader = Reader::new(kernel.rings(), Order::new().hold(hold)).unwrap();
            kernel.begin(0, 10);
            kernel.emit(1, 20, b"waits for 10");
            reader.handle().set_deadline(Some(Instant::now())).unwrap();
            assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none(), "the report is under way");
            kernel.emit(1, 30, b"newer");
            instead(&mut reader);
            kernel.write(0, b"late to be written");
            kernel.end(0);
            let seen: Vec<_> = expected.iter().map(|_| next(&mut reader)).collect();
            assert_eq!(seen, *expected, "{at}, epochs: {epochs}");
            reader.handle().set_deadline(None).unwrap();
            if expected.ends_with(&["Deadline"]) && !expected.contains(&"30") {
                assert_eq!(next(&mut reader), "30", "the stream goes on");
            }
            assert_nothing(&mut reader);
        }
    }
}

/// Every way to iterate gives the end of a flush as an event at its place, and stops at the end of the stream.
#[test]
fn flushes_and_the_end_reach_every_way_to_read() {
    let kernel = sim::Kernel::new(&[0]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    let handle = reader.handle();
    let mut time = 0;
    let mut write_and_flush = || {
        time += 1;
        kernel.emit(0, time, b"");
        handle.flush().unwrap();
        time
    };
    let expected = write_and_flush();
    let batch = |reader: &mut Reader| reader.batch(LONG).unwrap().unwrap().map(word).collect::<Vec<_>>();
    assert_eq!(batch(&mut reader), [expected.to_string()]);
    assert_eq!(batch(&mut reader), ["Flushed"]);
    assert_eq!(reader.batch(Duration::ZERO).unwrap().unwrap().count(), 0, "nothing yet is not the end");

    let expected = write_and_flush();
    let mut seen = Vec::new();
    reader.batch(Duration::ZERO).unwrap().into_iter().flatten().for_each(|event| seen.push(word(event)));
    assert_eq!(seen, [expected.to_string()]);
    reader.batch(Duration::ZERO).unwrap().into_iter().flatten().for_each(|event| seen.push(word(event)));
    assert_eq!(seen[1..], ["Flushed"]);
    assert_eq!(reader.batch(Duration::ZERO).unwrap().into_iter().flatten().count(), 0);

    let expected = write_and_flush();
    let fold = |reader: &mut Reader| {
        let all = |all: String, event: Event<'_>| ControlFlow::<(), _>::Continue(all + &word(event));
        reader.try_fold(String::new(), all).unwrap().continue_value().unwrap()
    };
    assert_eq!([fold(&mut reader), fold(&mut reader), fold(&mut reader)], [&expected.to_string(), "Flushed", ""]);

    let expected = write_and_flush();
    let owned = reader.next().unwrap().unwrap().to_owned();
    assert_eq!(word(owned.as_event()), expected.to_string());
    // A flush that is passed to `mem::forget` comes again.
    std::mem::forget(reader.next().unwrap());
    let flushed = reader.next().unwrap().unwrap();
    assert_eq!(
        (flushed.key(), flushed.cpu(), flushed.certainty(), flushed.late_by()),
        (None, None, Certainty::Proven, 0)
    );
    assert_eq!(word(flushed.to_owned().as_event()), "Flushed");
    drop(flushed);
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    assert_eq!(reader.ended(), None, "only the time is over");

    // The stream ends three times. After the first two it can go on.
    for (end, why) in [
        ("deadline", Ended::Deadline { complete: true }),
        ("deadline", Ended::Deadline { complete: true }),
        ("close", Ended::Closed),
    ] {
        let expected = write_and_flush();
        assert_eq!([next(&mut reader), next(&mut reader)], [&expected.to_string(), "Flushed"]);
        match end {
            "close" => handle.close(),
            _ => reader.handle().set_deadline(Some(Instant::now())).unwrap(),
        }
        assert_eq!(reader.ended(), None, "no end was requested");
        assert_eq!(ended(&mut reader), Some(why));
        // No way of reading gives records that come now.
        let newer = write_and_flush();
        assert_eq!(ended(&mut reader), Some(why));
        assert!(reader.next_timeout(LONG).unwrap().is_none());
        assert!(reader.batch(LONG).unwrap().is_none());
        assert_eq!(reader.batch(Duration::ZERO).unwrap().into_iter().flatten().count(), 0);
        assert_eq!(fold(&mut reader), "");
        assert_eq!(reader.ended(), Some(why));
        // With another deadline, or none, it goes on where it was.
        reader.handle().set_deadline(None).unwrap();
        let rest = if why == (Ended::Deadline { complete: true }) {
            [newer.to_string(), "Flushed".into()]
        } else {
            ["Closed", "Closed"].map(Into::into)
        };
        assert_eq!([next(&mut reader), next(&mut reader)], rest);
    }
}

/// A stream that has ended by a deadline gives no event at all. After a new deadline it gives all of them, also those
/// without a key.
#[test]
fn nothing_comes_between_a_deadline_and_the_next() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(kernel.hold())).unwrap();
    kernel.emit(0, 1, b"");
    reader.handle().set_deadline(Some(Instant::now())).unwrap();
    assert_eq!([next(&mut reader), next(&mut reader)], ["1", "Deadline"]);
    // Its bytes are released, because the stream may go on much later.
    let raw = reader.rings().raw(0).unwrap();
    assert_eq!((raw.head, raw.tail), (raw.head, raw.head));
    (2..10).for_each(|time| assert!(kernel.emit(time as u32 % 2, time, b"")));
    kernel.pause(0, true);
    kernel.emit(0, 10, b"lost");
    kernel.pause(0, false);
    kernel.plug(2);
    // The reader refreshes, and reads the count of losses.
    assert!(reader.ledger().unwrap().total().held > 0);
    for _ in 0..3 {
        assert_eq!(next(&mut reader), "Deadline");
    }
    reader.handle().flush().unwrap();
    assert_eq!(next(&mut reader), "Deadline", "a flush does not move it");
    reader.handle().set_deadline(Some(Instant::now() + Duration::from_secs(3600))).unwrap();
    let mut seen: Vec<_> = std::iter::from_fn(|| Some(next(&mut reader)).filter(|said| said != "Flushed")).collect();
    assert_eq!(reader.ended(), None);
    seen.retain(|said| said.parse::<u64>().is_ok());
    assert_eq!(seen, (2..10).map(|time| time.to_string()).collect::<Vec<_>>());
}

/// Both pauses on simulated rings. The kernel counts under one, only the program under the other.
#[test]
fn pauses_reach_simulated_rings() {
    let kernel = sim::Kernel::new(&[0, 3]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    let handle = reader.handle();
    handle.pause(Pause::Output).unwrap();
    assert!(!kernel.emit(3, 1, b""));
    handle.pause(Pause::Slots).unwrap();
    assert!(!kernel.emit(3, 2, b""));
    assert_eq!(kernel.dropped(3), 1);
    // A CPU that comes now is paused too.
    kernel.plug(2);
    threads::until("the CPU is found", || {
        assert!(reader.next_timeout(Duration::from_millis(10)).unwrap().is_none());
        reader.rings().cpus().any(|cpu| cpu == 2)
    });
    assert!(!kernel.emit(2, 3, b""));
    handle.resume().unwrap();
    handle.resume().unwrap();
    // The reader reports the kernel's count once, although no record follows the loss.
    let lost = reader.next_timeout(LONG).unwrap().unwrap();
    assert!(matches!(lost.item(), Item::Lost(lost) if (lost.cpu, lost.count, lost.until) == (3, 1, None)));
    drop(lost);
    assert!(kernel.emit(3, 4, b"") && kernel.emit(2, 5, b""));
    assert_eq!([next(&mut reader), next(&mut reader)], ["4", "5"]);
}

/// Rings are paused and resumed all together. A CPU without a ring is an error that says why.
#[test]
fn resuming_lets_output_into_every_ring() {
    let kernel = sim::Kernel::new(&[0, 3]);
    let rings = kernel.rings();
    rings.handle().pause(Pause::Output).unwrap();
    assert!(!kernel.emit(3, 1, b"") && !kernel.emit(0, 1, b""));
    rings.handle().resume().unwrap();
    assert!(kernel.emit(3, 2, b"") && kernel.emit(0, 2, b""));
    assert_error!(rings.raw(1).err().unwrap(), NotFound, "CPU 1");
    assert_error!(rings.raw(70_000).err().unwrap(), NotFound, "no CPU 70000: this machine can have CPUs up to");
}

/// If a key function panics in the refresh that begins a flush, the flush remains.
#[test]
fn a_flush_survives_a_panic() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let kernel = sim::Kernel::new(&[0]);
    let bomb = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let key = {
        let bomb = std::sync::Arc::clone(&bomb);
        Key::Fn(Box::new(move |record| {
            assert!(!bomb.load(std::sync::atomic::Ordering::Relaxed), "the key function panics");
            record.time()
        }))
    };
    let mut reader = Reader::new(kernel.rings(), Order::new().key(key).hold(Hold::None)).unwrap();
    kernel.emit(0, 1, b"");
    reader.handle().flush().unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| reader.next_timeout(Duration::ZERO).map(drop))).is_err());
    bomb.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!([next(&mut reader), next(&mut reader)], ["1", "Flushed"]);
}

/// CPUs with gaps between their numbers, that come one after the other, before and between those that were there: equal
/// keys come out by CPU all the same.
#[test]
fn cpus_that_come_later_find_their_place() {
    let kernel = sim::Kernel::new(&[5, 300]);
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    let mut cpus = vec![5, 300];
    for (round, new) in [64, 0, 4000, 6].into_iter().enumerate() {
        // An event is held while the new CPU comes.
        cpus.iter().for_each(|cpu| assert!(kernel.emit(*cpu, round as u64 * 2, b"")));
        merge.refresh(0);
        drop(merge.next());
        kernel.plug(new);
        assert!(merge.follow_cpus().unwrap());
        assert!(!merge.follow_cpus().unwrap(), "once");
        let held: Vec<_> = merge.batch().map(|event| event.cpu().unwrap()).collect();
        assert_eq!(held, cpus[1..]);
        cpus.push(new);
        cpus.sort_unstable();
        assert_eq!(merge.rings().cpus().collect::<Vec<_>>(), cpus);
        cpus.iter().for_each(|cpu| assert!(kernel.emit(*cpu, round as u64 * 2 + 1, b"")));
        merge.refresh(0);
        let all: Vec<_> = merge.batch().map(|event| event.cpu().unwrap()).collect();
        assert_eq!(all, cpus);
    }
}

/// The fullest ring comes first. An event at which a function breaks off or panics is consumed.
#[test]
fn reading_without_order_begins_with_the_fullest_ring() {
    let kernel = sim::Kernel::with(&[0, 1, 2], 4096, Layout::new(1 << 10 | 1 << 2, true, 0));
    let mut rings = kernel.rings();
    let fill = |times: [u64; 3]| {
        for (cpu, count) in (0..).zip(times) {
            (0..count).for_each(|time| assert!(kernel.emit(cpu, time, &[0; 12])));
        }
    };
    fill([3, 70, 20]);
    let mut seen = Vec::new();
    let _ = rings.drain(|event| {
        assert_eq!((event.key(), event.certainty()), (None, Certainty::Assumed));
        seen.push(event.cpu().unwrap());
        ControlFlow::<()>::Continue(())
    });
    let expected = [[1; 70].as_slice(), &[2; 20], &[0; 3]].concat();
    assert_eq!(seen, expected);

    fill([2, 2, 2]);
    let broken = rings.drain(|event| ControlFlow::Break(event.record().unwrap().time().unwrap()));
    assert_eq!(broken, ControlFlow::Break(0));
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rings.drain::<()>(|_| panic!("the consumer panics"))));
    assert!(panicked.is_err());
    let mut left = 0;
    let _ = rings.drain(|_| {
        left += 1;
        ControlFlow::<()>::Continue(())
    });
    assert_eq!(left, 4);

    fill([1, 2, 0]);
    let mut seen = Vec::new();
    let taken = rings.drain(|event| {
        seen.push(event.cpu().unwrap());
        ControlFlow::<()>::Continue(())
    });
    assert_eq!((taken, seen), (ControlFlow::Continue(()), vec![1, 1, 0]));
}

/// Hostile rings, read without order: damage, and the others go on.
#[test]
fn reading_without_order_survives_hostile_rings() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut rings = kernel.rings();
    for size in [0u16, 4, 9, 65_528] {
        let head = kernel.head(0);
        kernel.scribble(0, head, &[9, 0, 0, 0, 0, 0, size as u8, (size >> 8) as u8]);
        kernel.force_head(0, head.wrapping_add(64));
        kernel.emit(1, 1, b"well");
        let (mut damaged, mut records) = (0, 0);
        let _ = rings.drain(|event| {
            match event.item() {
                Item::Damage(_) => damaged += 1,
                _ => records += 1,
            }
            ControlFlow::<()>::Continue(())
        });
        assert_eq!((damaged, records), (1, 1), "{size}");
    }
    kernel.force_head(0, u64::MAX / 2);
    let mut damaged = 0;
    for _ in 0..3 {
        let _ = rings.drain(|event| {
            damaged += usize::from(matches!(event.item(), Item::Damage(_)));
            ControlFlow::<()>::Continue(())
        });
    }
    assert_eq!(damaged, 1, "it continues at the new head");
}

quickcheck! {
    /// Every record written before a flush comes before its report, and no record written after the reader has begun
    /// the flush does. Writers may be in the middle of writing.
    fn flushes_part_any_stream(steps: Vec<(u8, bool)>) -> bool {
        let kernel = sim::Kernel::new(&[0, 1, 2]);
        // Fences that the test ends itself.
        let mut merge = kernel_reader(&kernel);
        let (mut time, mut expected, mut since) = (0, Vec::new(), Vec::new());
        let mut ok = true;
        for (step, flush) in steps {
            time += 1;
            let cpu = u32::from(step % 3);
            if kernel.emit(cpu, time, &[0; 8]) {
                expected.push(time);
            }
            if flush {
                merge.handle().flush().unwrap();
                let mut newer = true;
                loop {
                    match reading::next(&mut merge).event() {
                        event if matches!(event.item(), Item::Flushed { .. }) => break,
                        event => since.push(event.key().unwrap()),
                    }
                    // Written while the report is due.
                    if std::mem::take(&mut newer) {
                        time += 1;
                        kernel.emit(cpu, time, &[0; 8]);
                    }
                }
                ok &= since == expected;
                expected.clear();
                since.clear();
                // Records after the flush began.
                if !newer {
                    expected.push(time);
                }
            }
        }
        ok
    }
}

fn kernel_reader(kernel: &sim::Kernel) -> Reader {
    Reader::new(kernel.rings(), Order::new().key(Key::Time).hold(Hold::None)).unwrap()
}

/// The remaining bytes and the counts of each ring.
#[test]
fn what_is_left_is_known() {
    let kernel = sim::Kernel::new(&[0, 9]);
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    kernel.begin(0, 10);
    kernel.emit(0, 20, &[0; 4]);
    kernel.write(0, &[0; 12]);
    kernel.end(0);
    kernel.emit(9, 15, &[0; 4]);
    merge.refresh(0);
    let accounts = merge.status().accounts;
    assert_eq!((accounts[0].cpu, accounts[0].size, accounts[0].held), (Some(0), 64 << 10, 2));
    assert_eq!((accounts[1].cpu, accounts[1].most_used, accounts[1].held), (Some(9), 24, 1));
    assert_eq!(merge.status().total().repaired, 1);
    // 10 of CPU 0, which lies behind 20; then 15 of CPU 9; then 20.
    assert!([10, 15, 20].into_iter().all(|key| merge.next().unwrap().key() == Some(key)));
    merge.refresh(0);
    let accounts = merge.status().accounts;
    assert_eq!((accounts[0].yielded, accounts[0].held, accounts[0].most_used), (2, 0, 56));
    assert_eq!((accounts[1].yielded, accounts[1].held), (1, 0));
    let raw = merge.rings().raw(9).unwrap();
    assert_eq!((raw.size, raw.head, raw.tail), (64 << 10, 24, 24));
    assert_eq!(merge.status().total().yielded, 3);
}

/// A handle outlives its reader, and then does nothing.
#[test]
fn a_handle_of_a_reader_that_is_gone_does_nothing() {
    let kernel = sim::Kernel::new(&[0]);
    let reader = kernel_reader(&kernel);
    let handle = reader.handle();
    handle.flush().unwrap();
    drop(reader);
    handle.flush().unwrap();
    handle.resume().unwrap();
    handle.pause(perfweave::Pause::Output).unwrap();
    handle.set_deadline(None).unwrap();
    handle.close();
    // The ring was not paused: none of its records is left.
    assert!(kernel.emit(0, 1, b""));
}

/// A request of a handle takes effect before the next event, even if that lies right after the last one in the same
/// ring.
#[test]
fn a_flush_and_a_close_are_heeded_in_the_middle_of_a_run() {
    let kernel = sim::Kernel::new(&[0]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    let handle = reader.handle();
    let blocking = |reader: &mut Reader| match reader.next() {
        Ok(Some(event)) => word(event.event()),
        Ok(None) => "nothing".into(),
        Err(error) => error.to_string(),
    };
    for (ask, begin) in [(next as fn(&mut Reader) -> String, 0), (blocking, 7)] {
        (1..=6).for_each(|time| assert!(kernel.emit(0, begin + time, b"before")));
        assert_eq!(ask(&mut reader), (begin + 1).to_string());
        handle.flush().unwrap();
        assert_eq!(ask(&mut reader), (begin + 2).to_string());
        // The flush was noticed before this.
        assert!(kernel.emit(0, begin + 7, b"after"));
        let rest: Vec<_> = (0..6).map(|_| ask(&mut reader)).collect();
        let told: Vec<_> = (3..=6).map(|time| (begin + time).to_string()).collect();
        assert_eq!(rest[..4], told[..]);
        assert_eq!(rest[4..], ["Flushed".to_owned(), (begin + 7).to_string()]);
    }
    (1..=3).for_each(|time| assert!(kernel.emit(0, 20 + time, b"lost")));
    assert_eq!(next(&mut reader), "21");
    handle.close();
    assert_eq!((next(&mut reader), blocking(&mut reader)), ("Closed".to_owned(), "nothing".to_owned()));
}

/// The reader also notices the end of a fence there, so that the next can begin while proven events leave.
#[test]
fn the_end_of_a_fence_is_noticed_in_the_middle_of_a_run() {
    use nix::sys::epoll::{Epoll, EpollEvent, EpollTimeout};
    use std::os::fd::AsFd;
    use std::sync::{Mutex, mpsc};

    let kernel = sim::Kernel::new(&[0]);
    let (end, ends) = mpsc::channel();
    let ends = Mutex::new(ends);
    let fence = perfweave::Fence::by(move || {
        let _ = ends.lock().unwrap().recv();
        Ok(())
    });
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(fence))).unwrap();
    // This many justify a fence.
    (1..=600).for_each(|time| assert!(kernel.emit(0, time, b"")));
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    (601..=1200).for_each(|time| assert!(kernel.emit(0, time, b"")));
    // The next may not begin sooner: events are gathered for it, for 40 ms at most.
    while reader.status().fence.expect("the first") < Duration::from_millis(45) {
        std::thread::yield_now();
    }
    end.send(()).unwrap();
    assert_eq!(next(&mut reader), "1");
    assert!(reader.status().fence.is_some(), "the second");
    let epoll = Epoll(reader.as_fd().try_clone_to_owned().unwrap());
    let mut ready = [EpollEvent::empty(); 4];
    // The wake-up from before.
    epoll.wait(&mut ready, EpollTimeout::ZERO).unwrap();
    end.send(()).unwrap();
    assert!(epoll.wait(&mut ready, EpollTimeout::NONE).unwrap() > 0, "the second has ended");
    assert_eq!(reader.status().fences, 1);
    assert_eq!((next(&mut reader), reader.status().fences), ("2".to_owned(), 2));
}

/// The end of an earlier flush that nobody took yet is not the end of this one.
#[test]
fn what_settles_is_not_an_earlier_flush() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(kernel.hold())).unwrap();
    kernel.emit(0, 10, b"first");
    reader.handle().flush().unwrap();
    assert_eq!(next(&mut reader), "10");
    std::mem::forget(reading::next(&mut reader));
    kernel.emit(1, 20, b"second");
    let mut seen = Vec::new();
    let settled = reader.settle(|event| {
        seen.push(word(event));
        ControlFlow::<()>::Continue(())
    });
    assert_eq!((settled.unwrap(), &seen[..]), (ControlFlow::Continue(true), &["Flushed".into(), "20".into()][..]));
    // Its own end was taken.
    assert!(!reader.wait(Duration::ZERO).unwrap());
    // Without an event, and once the stream has ended.
    assert_eq!(reader.settle(|_| ControlFlow::Break(())).unwrap(), ControlFlow::Continue(true));
    reader.handle().close();
    assert_eq!(reader.settle(|_| ControlFlow::Break(())).unwrap(), ControlFlow::Continue(false));
    assert_eq!(reader.ended(), Some(Ended::Closed));
}
