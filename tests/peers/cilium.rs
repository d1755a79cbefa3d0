//! The assertions of cilium/ebpf's tests of its perf reader, made of perfweave on live kernel rings.
//!
//! Named after theirs, `perf/reader_test.go` unless said otherwise. Our records carry the kernel's time, so they are 8
//! bytes longer than cilium's. Our reader also refreshes at its own ticks, so these tests distinguish wake-ups from
//! ticks by the reader's counts of both.

use crate::reading;
use crate::reading::{Gate, Given, LONG, assert_nothing, ended, is_flushed, number, wakes, woken_by};
use perf_event_open_sys::bindings;
use perfweave::{
    Ended, Error, Fence, Handle, Hold, Item, Key, Lost, Order, Pause, Reader, Recorder, Rings, Wakeup, sim,
};
use perfweave_events::EventOptions;
use perfweave_proofs::expedited;
use perfweave_support::bpf::{self, Map, Program};
use perfweave_support::{assert_error, echo, foreign, kernel, load, threads, tracefs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn next(reader: &mut Reader) -> u64 {
    number(&reading::next(reader).event())
}

/// An order with each hold rule, for assertions that must hold under all of them.
fn holds() -> [Hold; 4] {
    [Hold::FENCE, Hold::Fence(expedited(Duration::from_millis(1))), Hold::Lag(millis(1)), Hold::None]
}

/// A reader on its own thread, until it is closed, and its events.
struct Reading {
    handle: Handle,
    given: mpsc::Receiver<Result<Given, Error>>,
    thread: std::thread::JoinHandle<()>,
    /// The thread's number.
    number: i32,
}

impl Reading {
    fn start(mut reader: Reader) -> Self {
        let handle = reader.handle();
        let (give, given) = mpsc::channel();
        let (told, its_number) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            told.send(threads::own()).unwrap();
            loop {
                let given = reader.next().map(|event| event.map(|event| Given::of(event.event())));
                let given = given.map(|event| event.unwrap_or_else(|| Given::Ended(reader.ended().unwrap())));
                let closed = matches!(given, Ok(Given::Ended(_)));
                if give.send(given).is_err() || closed {
                    return;
                }
            }
        });
        Self { handle, given, thread, number: its_number.recv().unwrap() }
    }

    /// Waits for its next event.
    fn next(&self) -> Result<Given, Error> {
        self.given.recv_timeout(LONG).expect("an event comes")
    }

    /// The events that it has given after it slept more than twice: it refreshed in between.
    fn so_far(&self) -> Vec<Result<Given, Error>> {
        threads::until_slept(self.number, 3);
        self.given.try_iter().collect()
    }

    fn close(self) {
        self.handle.close();
        self.thread.join().unwrap();
    }
}

/// TestPerfReader: BufferSize is a page for a request of a page; after two samples the first Read leaves Remaining >=
/// 5, the second 0; the next, with a deadline of 4 ms, is DeadlineExceeded. perfweave does not say what remains.
#[test]
fn test_perf_reader() {
    let Some((map, program)) = echo() else { return };
    let page = foreign::page_size() as u64;
    for options in [Rings::options().pages(1), Rings::options().bytes(page)] {
        let mut reader = Reader::new(options.bpf_output(&map).open().unwrap(), Order::new()).unwrap();
        assert!(reader.status().accounts.iter().all(|account| account.size == page));
        assert!(reader.status().accounts.iter().filter_map(|account| account.cpu).eq(load::online()));
        for value in [5, 6] {
            assert_eq!(program.run_with(0, &[value]).unwrap(), 0);
        }
        let first = reader.next().unwrap().unwrap();
        assert_eq!((number(&first.event()), first.cpu()), (5, Some(0)));
        drop(first);
        let second = reader.next().unwrap().unwrap();
        assert_eq!(number(&second.event()), 6);
        drop(second);
        let begin = Instant::now();
        reader.handle().set_deadline(Some(begin + millis(4))).unwrap();
        assert_eq!(ended(&mut reader), Some(Ended::Deadline { complete: true }));
        assert!(begin.elapsed() >= millis(4));
        assert_eq!(reader.status().total().lost, 0);
    }
}

/// TestReaderSetDeadline: a deadline in the past is DeadlineExceeded, twice in a row; one 10 ms ahead is too.
#[test]
fn test_reader_set_deadline() {
    let Some((map, program)) = echo() else { return };
    for hold in holds() {
        let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
        let mut reader = Reader::new(rings, Order::new().hold(hold.clone())).unwrap();
        let past = Instant::now() - Duration::from_secs(1);
        reader.handle().set_deadline(Some(past)).unwrap();
        for _ in 0..3 {
            assert_eq!(ended(&mut reader), Some(Ended::Deadline { complete: true }), "{hold}");
        }
        assert!(reader.next_timeout(LONG).unwrap().is_none(), "{hold}");
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none(), "{hold}");
        assert!(reader.batch(LONG).unwrap().is_none(), "{hold}");
        assert_eq!(reader.ended(), Some(Ended::Deadline { complete: true }), "{hold}");

        let begin = Instant::now();
        reader.handle().set_deadline(Some(begin + millis(10))).unwrap();
        for _ in 0..2 {
            assert_eq!(ended(&mut reader), Some(Ended::Deadline { complete: true }), "{hold}");
            assert!(begin.elapsed() >= millis(10), "{hold}");
        }
        // None is never.
        reader.handle().set_deadline(None).unwrap();
        assert_nothing(&mut reader);
        assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
        assert_eq!(next(&mut reader), 1);
    }
}

/// TestReaderSetDeadlinePendingEvents: with WakeupEvents 2 and one sample queued, a deadline in the past still returns
/// the sample, Remaining 0. A sample written after that is not returned before DeadlineExceeded was, once; then it is.
#[test]
fn test_reader_set_deadline_pending_events() {
    let Some((map, program)) = echo() else { return };
    for hold in holds() {
        let rings = Rings::options().bpf_output(&map).pages(1).wakeup(Wakeup::Events(2)).open().unwrap();
        let mut reader = Reader::new(rings, Order::new().hold(hold.clone())).unwrap();
        assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
        reader.handle().set_deadline(Some(Instant::now())).unwrap();
        let pending = reader.next().unwrap().unwrap();
        assert_eq!(number(&pending.event()), 1, "{hold}");
        drop(pending);
        assert_eq!(program.run_with(0, &[2]).unwrap(), 0);
        assert_eq!(ended(&mut reader), Some(Ended::Deadline { complete: true }), "{hold}");
        // The stream has ended, and goes on with another deadline.
        assert_eq!(ended(&mut reader), Some(Ended::Deadline { complete: true }), "{hold}");
        reader.handle().set_deadline(Some(Instant::now())).unwrap();
        assert_eq!((reader.ended(), next(&mut reader)), (Some(Ended::Deadline { complete: true }), 2), "{hold}");
        assert_eq!(reader.ended(), None, "{hold}");
        assert_eq!(ended(&mut reader), Some(Ended::Deadline { complete: true }), "{hold}");
    }
}

/// TestReaderFlushPendingEvents: a reader is blocked under WakeupEvents 2 with one sample queued. Flush wakes it: the
/// sample first, then ErrFlushed before a newer sample, then that. Our reader would find the sample at its tick, so a
/// fence that does not end keeps it blocked.
#[test]
fn test_reader_flush_pending_events() {
    let Some((map, program)) = echo() else { return };
    let gate = Gate::new();
    let rings = Rings::options().bpf_output(&map).pages(1).wakeup(Wakeup::Events(2)).open().unwrap();
    let hold = Hold::Fence(gate.fence());
    let reading = Reading::start(Reader::new(rings, Order::new().hold(hold)).unwrap());
    // Nothing pending: only the report comes.
    reading.handle.flush().unwrap();
    assert_eq!(reading.next().unwrap(), Given::Flushed);

    assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
    // Seen and held.
    gate.until_begun(1);
    reading.handle.flush().unwrap();
    let early = reading.so_far();
    assert!(early.is_empty(), "{early:?} before the held events are proven");
    assert_eq!(program.run_with(0, &[2]).unwrap(), 0);
    gate.open();
    assert_eq!(reading.next().unwrap(), Given::Number(1));
    assert_eq!(reading.next().unwrap(), Given::Flushed);
    // Reported once.
    assert_eq!(reading.next().unwrap(), Given::Number(2));
    assert_eq!(program.run_with(0, &[3]).unwrap(), 0);
    assert_eq!(reading.next().unwrap(), Given::Number(3));
    reading.close();
}

/// The same for all events in all rings, under every hold rule; several flushes that the reader has not noticed yet
/// count as one.
#[test]
fn test_reader_flush_pending_events_of_all_rings() {
    let Some((map, program)) = echo() else { return };
    let cpus = load::online();
    for hold in holds() {
        let rings = Rings::options().bpf_output(&map).pages(4).open().unwrap();
        let mut reader = Reader::new(rings, Order::new().hold(hold.clone())).unwrap();
        let handle = reader.handle();
        for value in 0..50 {
            assert_eq!(program.run_with(cpus[value as usize % cpus.len()], &[value]).unwrap(), 0);
        }
        handle.flush().unwrap();
        handle.flush().unwrap();
        assert_eq!(next(&mut reader), 0, "{hold}");
        assert_eq!(program.run_with(0, &[1000]).unwrap(), 0);
        for value in 1..50 {
            assert_eq!(next(&mut reader), value, "{hold}");
        }
        assert!(is_flushed(&mut reader), "{hold}");
        assert_eq!(next(&mut reader), 1000, "{hold}");
        // Reported once.
        assert_eq!(program.run_with(0, &[1001]).unwrap(), 0);
        assert_eq!(next(&mut reader), 1001, "{hold}");
    }
}

/// The same for numbers without holes, which need no fence: newer ones do not come before a report that is due, and
/// missing ones are reported before it.
#[test]
fn test_reader_flush_pending_events_of_dense_numbers() {
    let Some((map, program)) = echo() else { return };
    for report in ["flush", "deadline"] {
        let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
        let hold = Hold::Dense { first: Some(0), fence: Fence::Auto };
        let mut reader = Reader::new(rings, Order::new().key(Key::Payload(0)).hold(hold)).unwrap();
        for value in [0, 2] {
            assert_eq!(program.run_with(0, &[value]).unwrap(), 0);
        }
        match report {
            "flush" => reader.handle().flush().unwrap(),
            _ => reader.handle().set_deadline(Some(Instant::now())).unwrap(),
        }
        assert_eq!(next(&mut reader), 0);
        assert_eq!(program.run_with(0, &[3]).unwrap(), 0);
        let gap = reader.next().unwrap().unwrap();
        assert!(matches!(gap.item(), Item::Gap(gap) if (gap.first, gap.last) == (1, 1)), "{gap:?}");
        drop(gap);
        assert_eq!(next(&mut reader), 2, "{report}");
        if report == "flush" {
            assert!(is_flushed(&mut reader));
        } else {
            assert_eq!(ended(&mut reader), Some(Ended::Deadline { complete: true }));
            reader.handle().set_deadline(None).unwrap();
        }
        assert_eq!(next(&mut reader), 3, "{report}");
    }
}

/// TestPerfReaderLostSample: a page full of records of 192 bytes, of which there are n; one more fails, a small one
/// fits. Read gives exactly n + 2 records, and the one that is no sample has LostSamples 1.
///
/// Sizes of 2^n + 2^(n+1) leave 64 or 128 bytes in a page of any size: for LOST, which takes 32 bytes here, and 24
/// more.
#[test]
fn test_perf_reader_lost_sample() {
    let Some(map) = kernel("make a perf event array", Map::perf_event_array(load::slots())) else { return };
    let array = Map::array(256, 1).unwrap();
    // Header, time and length are 20 bytes.
    let large = bpf::emitter(&map, &array, 192 - 20).unwrap();
    let small = bpf::emitter(&map, &array, 24 - 20).unwrap();
    let most = foreign::page_size() / 192;
    for hold in holds() {
        let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
        let mut reader = Reader::new(rings, Order::new().hold(hold.clone())).unwrap();
        for _ in 0..most {
            assert_eq!(large.run_on(0).unwrap(), 0);
        }
        assert_eq!(large.run_on(0).unwrap(), -libc::ENOSPC);
        assert_eq!(small.run_on(0).unwrap(), 0);
        let mut lost = Vec::new();
        for place in 0..most + 2 {
            let event = reader.next_timeout(LONG).unwrap().expect("as many as fitted, and LOST");
            match event.item() {
                Item::Lost(loss) => lost.push((place, loss.count)),
                Item::Record(record) => {
                    let length = if place < most { 192 } else { 24 };
                    assert_eq!(record.as_bytes().len(), length, "{hold}: {place}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(lost, [(most, 1)], "{hold}: before the record that came with it");
        assert_nothing(&mut reader);
        let account = reader.status().accounts[0];
        assert_eq!((account.cpu, account.yielded, account.lost), (Some(0), most as u64 + 1, 1));
    }
}

/// What a recorder holds: numbers and losses, each with its key.
fn recorded(recorder: &mut Recorder) -> Vec<(Option<u64>, Result<u64, Lost>)> {
    let mut merge = reading::merged(recorder.freeze().unwrap());
    let told = merge.batch().map(|event| {
        let told = event.item().lost().map_or_else(|| Ok(number(&event)), Err);
        (event.key(), told)
    });
    told.collect()
}

/// The numbers among that.
fn of_records(recorded: &[(Option<u64>, Result<u64, Lost>)]) -> Vec<u64> {
    recorded.iter().filter_map(|(_, told)| told.ok()).collect()
}

/// TestPerfReaderOverwritable: Read before Pause is errMustBePaused; after Pause, samples come from the newest to the
/// oldest, Remaining -1. There is no read before the stop. Events come oldest first, and recording goes on meanwhile.
#[test]
fn test_perf_reader_overwritable() {
    let Some((map, program)) = echo() else { return };
    let page = foreign::page_size() as u64;
    let options = Rings::options().bpf_output(&map).pages(1);
    let mut recorder = Recorder::open(options, &Fence::Auto).unwrap();
    let most = page / 32;
    let mut last = 0;
    for round in 1..4 {
        for _ in 0..most + round {
            last += 1;
            assert_eq!(program.run_with(0, &[last]).unwrap(), 0, "never full");
        }
        recorder.handle().pause(Pause::Output).unwrap();
        assert_eq!(program.run_with(0, &[0]).unwrap(), -libc::ENOSPC, "stopped");
        let recorded = recorded(&mut recorder);
        let numbers = of_records(&recorded);
        // The first record after a stop has a LOST record before it, which takes the place of a record.
        assert_eq!(recorded.len() as u64, most);
        assert_eq!(numbers, (last + 1 - numbers.len() as u64..=last).collect::<Vec<_>>(), "the newest, in order");
        assert!(recorder.complete_from().is_some(), "older ones were overwritten");
    }
}

/// TestPerfReaderOverwritableEmpty: paused and empty, Read is DeadlineExceeded; Resume works.
#[test]
fn test_perf_reader_overwritable_empty() {
    let Some((map, program)) = echo() else { return };
    let options = Rings::options().bpf_output(&map).pages(1);
    let mut recorder = Recorder::open(options, &Fence::Auto).unwrap();
    for _ in 0..2 {
        assert_eq!((recorded(&mut recorder).len(), recorder.complete_from()), (0, None));
    }
    assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
    assert_eq!(of_records(&recorded(&mut recorder)), [1]);
}

/// `perf/ring_test.go`, TestRingBufferReverseReader: a second read after more writes gives the newest records;
/// overwritten records that were not read are discarded, and a ring that was overwritten as a whole is read once as a
/// whole. perfweave consumes nothing: each stop gives all records of the ring.
#[test]
fn test_ring_buffer_reverse_reader() {
    let Some((map, program)) = echo() else { return };
    let most = foreign::page_size() as u64 / 32;
    let options = Rings::options().bpf_output(&map).pages(1);
    let mut recorder = Recorder::open(options, &Fence::Auto).unwrap();
    let write = |numbers: std::ops::Range<u64>| {
        numbers.for_each(|number| assert_eq!(program.run_with(0, &[number]).unwrap(), 0));
    };
    write(0..2);
    let first = recorded(&mut recorder);
    assert_eq!(of_records(&first), [0, 1]);
    recorder.handle().pause(Pause::Output).unwrap();
    for _ in 0..2 {
        assert_eq!(program.run_with(0, &[0]).unwrap(), -libc::ENOSPC);
    }
    recorder.handle().resume().unwrap();
    write(2..4);
    let second = recorded(&mut recorder);
    assert_eq!(of_records(&second), [0, 1, 2, 3]);
    // Refused records are reported at their place.
    let loss = second[2].1.unwrap_err();
    assert_eq!((loss.count, loss.after, loss.until), (2, first[1].0, second[3].0));
    // The LOST record takes the place of a record.
    write(4..most - 1);
    let third = recorded(&mut recorder);
    assert_eq!((of_records(&third), third.len() as u64), ((0..most - 1).collect(), most));
    write(most - 1..most);
    assert_eq!(of_records(&recorded(&mut recorder)), (1..most).collect::<Vec<_>>(), "over the oldest");
    write(most..2 * most);
    assert_eq!(of_records(&recorded(&mut recorder)), (most..2 * most).collect::<Vec<_>>(), "once, whole");
}

/// TestPerfReaderClose: Close unblocks a Read within a second; a second Close does nothing; Read after Close fails.
#[test]
fn test_perf_reader_close() {
    let Some((map, program)) = echo() else { return };
    let woken = wakes(|| {
        let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        let handle = reader.handle();
        let (woken, given) = woken_by(&mut reader, || handle.close());
        assert_eq!(given.unwrap(), Given::Ended(Ended::Closed));
        handle.close();
        assert_eq!(ended(&mut reader), Some(Ended::Closed));
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
        assert!(reader.next_timeout(LONG).unwrap().is_none());
        assert!(reader.batch(LONG).unwrap().is_none());
        assert_eq!(reader.ended(), Some(Ended::Closed));
        assert_eq!(program.run_with(0, &[1]).unwrap(), -libc::ENOENT, "nothing is written for nobody");
        assert_closed(&handle);
        drop(reader);
        assert_closed(&handle);
        woken
    });
    assert!(woken, "the reader was not woken, and refreshed at its tick");
}

/// A call on a closed reader does nothing and succeeds.
fn assert_closed(handle: &Handle) {
    handle.close();
    handle.flush().unwrap();
    handle.pause(Pause::Slots).unwrap();
    handle.pause(Pause::Output).unwrap();
    handle.resume().unwrap();
    handle.set_deadline(None).unwrap();
}

/// Dropping a reader closes it for all remaining handles. Events that were ready before a close do not come after it.
#[test]
fn test_perf_reader_close_by_dropping() {
    let Some((map, program)) = echo() else { return };
    for close_first in [false, true] {
        let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
        let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
        let handle = reader.handle();
        for value in 0..3 {
            assert_eq!(program.run_with(0, &[value]).unwrap(), 0);
        }
        assert_eq!(next(&mut reader), 0);
        if close_first {
            handle.close();
            assert_eq!(ended(&mut reader), Some(Ended::Closed));
        }
        drop(reader);
        assert_closed(&handle.clone());
        assert_eq!(program.run_with(0, &[1]).unwrap(), -libc::ENOENT);
    }
}

/// TestCreatePerfEvent: an event with a watermark of one byte opens on CPU 0.
#[test]
fn test_create_perf_event() {
    let Some((map, _)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).cpus([0]).wakeup(Wakeup::Bytes(1)).open().unwrap();
    assert_eq!((rings.cpus().len(), rings.fds().count()), (1, 1));
}

/// TestReadRecord: a record of no known type is an IsUnknownEvent error. Theirs has then read its header only, and
/// takes the body for the next record's. perfweave gives the record as it is, and continues after it. Bytes that are no
/// record, such as the zeros in their test, are damage: `bad_sizes_are_damage_and_the_ring_is_taken_up_again` in
/// `simulated/merge_cases.rs`.
#[test]
fn test_read_record_of_unknown_type() {
    let kernel = sim::Kernel::new(&[0]);
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(kernel.hold())).unwrap();
    for (round, length) in [(0, 0), (1, 8), (2, 256), (3, 4000)] {
        kernel.emit(0, 10 * round + 1, &1u64.to_ne_bytes());
        kernel.begin(0, 10 * round + 2);
        assert!(kernel.write_other(0, 200, 7, &vec![0xff; length]));
        kernel.end(0);
        kernel.emit(0, 10 * round + 3, &2u64.to_ne_bytes());
        assert_eq!(next(&mut reader), 1);
        let unknown = reader.next().unwrap().unwrap();
        let record = unknown.record().unwrap();
        assert_eq!((record.kind(), record.misc(), record.time()), (200, 7, Some(10 * round + 2)));
        assert_eq!(record.body().get(0..length).unwrap().to_vec(), vec![0xff; length]);
        drop(unknown);
        assert_eq!(next(&mut reader), 2);
    }
    assert_eq!(reader.status().total().damaged, 0);
}

/// TestPause: Resume does nothing while running; a sample is read; after Pause output fails, and a blocked Read stays
/// blocked for 250 ms; Pause again does nothing; after Resume the blocked Read has the next sample within 250 ms; after
/// Close both are ErrClosed. Our reader stays blocked while it refreshes and sleeps several times.
///
/// cilium's is `Pause::Slots`: programs get `-ENOENT` and nobody counts. Under `Pause::Output` they get `-ENOSPC`, and
/// it is counted.
#[test]
fn test_pause() {
    let Some((map, program)) = echo() else { return };
    let cpus = load::online();
    for (how, refusal) in [(Pause::Slots, -libc::ENOENT), (Pause::Output, -libc::ENOSPC)] {
        let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
        let reading = Reading::start(Reader::new(rings, Order::new()).unwrap());
        let handle = reading.handle.clone();
        handle.resume().unwrap();
        handle.resume().unwrap();
        assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
        assert_eq!(reading.next().unwrap(), Given::Number(1));
        for round in 0..3 {
            handle.pause(how).unwrap();
            for _ in 0..2 {
                for &cpu in &cpus {
                    assert_eq!(program.run_with(cpu, &[2]).unwrap(), refusal);
                }
                handle.pause(how).unwrap();
            }
            // Losses may be reported in between: rings of a page are soon so full that the reader reads the kernel's
            // count.
            let is_lost = |given: &Result<Given, Error>| how == Pause::Output && matches!(given, Ok(Given::Lost(_)));
            let meanwhile = reading.so_far();
            assert!(meanwhile.iter().all(is_lost), "blocked, and not {meanwhile:?}");
            handle.resume().unwrap();
            handle.resume().unwrap();
            assert_eq!(program.run_with(0, &[10 + round]).unwrap(), 0);
            let mut next = reading.next();
            while is_lost(&next) {
                next = reading.next();
            }
            assert_eq!(next.unwrap(), Given::Number(10 + round));
            // All are reported before the next round.
            handle.flush().unwrap();
            while reading.next().unwrap() != Given::Flushed {}
        }
        reading.close();
        assert_closed(&handle);
    }
}

/// Both ways of pausing at once: the program gets no further than the empty slot, and resuming lifts both.
#[test]
fn test_pause_in_both_ways_at_once() {
    let Some((map, program)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    let handle = reader.handle();
    handle.pause(Pause::Output).unwrap();
    assert_eq!(program.run_with(0, &[1]).unwrap(), -libc::ENOSPC);
    handle.pause(Pause::Slots).unwrap();
    for _ in 0..5 {
        assert_eq!(program.run_with(0, &[1]).unwrap(), -libc::ENOENT);
    }
    handle.resume().unwrap();
    assert_eq!(program.run_with(0, &[2]).unwrap(), 0);
    let event = reader.next().unwrap().unwrap();
    assert!(
        matches!(event.item(), Item::Lost(lost) if lost.count == 1),
        "{event:?}: the output that the paused ring refused"
    );
    drop(event);
    assert_eq!(next(&mut reader), 2);
    assert_eq!(reader.status().total().lost, 1, "what found no slot is counted by nobody");

    // Rings that are paused when the reader is dropped stay off, and their slots stay empty.
    handle.pause(Pause::Slots).unwrap();
    drop(reader);
    assert_eq!(program.run_with(0, &[1]).unwrap(), -libc::ENOENT);
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    assert_eq!(program.run_with(0, &[3]).unwrap(), 0);
    drop(rings);
}

/// `Pause::Slots` disables events without slots, so none of their records is written or counted; `Pause::Output` counts
/// them.
#[test]
fn test_pause_of_events_without_slots() {
    // A rarely hit tracepoint, so that only a pause makes its ring drop records.
    const QUIET: &str = "syscalls:sys_enter_getegid";
    let Some(_) = kernel("find a tracepoint", tracefs::Format::of(perfweave_events::format_of(QUIET))) else { return };
    let call = |cpu| load::pinned(cpu, || (0..50).for_each(|_| load::getegid()));
    for how in [Pause::Slots, Pause::Output] {
        let Some(rings) = kernel("open a tracepoint", Rings::options().tracepoint(QUIET).open()) else { return };
        let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
        let handle = reader.handle();
        call(0);
        assert!(reader.next_timeout(LONG).unwrap().is_some());
        handle.pause(how).unwrap();
        // The records from before.
        reading::all(&mut reader, |_| ());
        load::online().into_iter().for_each(call);
        // No record follows. The loss may be reported already.
        let told = |reader: &Reader| reader.status().total().lost - reader.status().total().unreported;
        let before = told(&reader);
        reading::all(&mut reader, |event| assert!(event.record().is_none(), "{how:?}: {event:?}"));
        handle.resume().unwrap();
        load::online().into_iter().for_each(call);
        let mut records = 0;
        reading::all(&mut reader, |event| records += usize::from(event.record().is_some()));
        assert!(records >= 50 * load::online().len(), "running again: {records}");
        let lost = told(&reader) - before;
        assert_eq!(lost > 0, how == Pause::Output, "{lost} lost under {how:?}");
    }
}

/// Whether this many records of 32 bytes on CPU 0 wake a sleeping reader.
fn woken_by_records(map: &Map, program: &Program, wakeup: Wakeup, records: u64) -> bool {
    let rings = Rings::options().bpf_output(map).pages(1).cpus([0]).wakeup(wakeup).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    let (woken, given) = woken_by(&mut reader, || {
        (0..records).for_each(|value| assert_eq!(program.run_with(0, &[value]).unwrap(), 0));
    });
    assert_eq!(given.unwrap(), reading::Given::Number(0));
    woken
}

fn assert_wakes(map: &Map, program: &Program, wakeup: Wakeup, at: u64) {
    assert!(wakes(|| woken_by_records(map, program, wakeup, at)), "{wakeup}: not woken by {at}");
    for _ in 0..3 {
        assert!(at == 1 || !woken_by_records(map, program, wakeup, at - 1), "{wakeup}: woken by {} already", at - 1);
    }
}

/// TestPerfReaderWakeupEvents: with WakeupEvents 2 two events wake the reader, on one CPU, because each ring counts
/// separately.
#[test]
fn test_perf_reader_wakeup_events() {
    let Some((map, program)) = echo() else { return };
    assert_wakes(&map, &program, Wakeup::Events(1), 1);
    assert_wakes(&map, &program, Wakeup::Events(2), 2);
}

/// The same for `Watermark`: more than this many bytes wake.
#[test]
fn test_perf_reader_watermark() {
    let Some((map, program)) = echo() else { return };
    assert_wakes(&map, &program, Wakeup::Bytes(1), 1);
    assert_wakes(&map, &program, Wakeup::Bytes(63), 2);
    assert_wakes(&map, &program, Wakeup::Bytes(64), 3);
}

/// TestReadWithoutWakeup: a perCPUBuffer of one byte is rounded up; one event under WakeupEvents 2 is readable with an
/// immediate deadline.
#[test]
fn test_read_without_wakeup() {
    let Some((map, program)) = echo() else { return };
    for hold in holds() {
        let rings = Rings::options().bpf_output(&map).bytes(1).wakeup(Wakeup::Events(2)).open().unwrap();
        let mut reader = Reader::new(rings, Order::new().hold(hold.clone())).unwrap();
        assert!(reader.status().accounts.iter().all(|account| account.size == foreign::page_size() as u64));
        assert_eq!(program.run_with(0, &[1]).unwrap(), 0);
        reader.handle().set_deadline(Some(Instant::now())).unwrap();
        assert_eq!(next(&mut reader), 1, "{hold}");
        assert_eq!(ended(&mut reader), Some(Ended::Deadline { complete: true }), "{hold}");
    }
}

/// `perf/ring_test.go`, TestPerfEventRing: a watermark that the buffer cannot hold is refused, also for overwritable
/// rings; 8193 and 65537 bytes make a ring of at least as many, of 2^n whole pages.
#[test]
fn test_perf_event_ring() {
    let Some((map, _)) = echo() else { return };
    let page = foreign::page_size() as u32;
    // The smallest record: header, time, length, 4 bytes.
    let most = (page - 8) / 24;
    for wakeup in [
        Wakeup::Bytes(0),
        Wakeup::Bytes(page - 8),
        Wakeup::Bytes(page),
        Wakeup::Bytes(u32::MAX),
        Wakeup::Events(0),
        Wakeup::Events(most + 1),
    ] {
        let options = || Rings::options().bpf_output(&map).pages(1).wakeup(wakeup);
        for error in [options().open().unwrap_err(), Recorder::open(options(), &Fence::Auto).map(drop).unwrap_err()] {
            assert_error!(error, InvalidInput, format!("never has {wakeup} unread"));
        }
    }
    for wakeup in [Wakeup::Bytes(page - 9), Wakeup::Events(most)] {
        Rings::options().bpf_output(&map).pages(1).wakeup(wakeup).open().unwrap();
    }
    for bytes in [8193, 65537] {
        let rings = Rings::options().bpf_output(&map).bytes(bytes).open().unwrap();
        let size = rings.raw(0).unwrap().size as u64;
        assert!(size >= bytes && size < 2 * bytes + u64::from(page), "{size}");
        assert!(size.is_multiple_of(page.into()) && (size / u64::from(page)).is_power_of_two(), "{size}");
    }
}

/// `internal/epoll/poller_test.go`, TestPollerDeadline: a deadline in the past is DeadlineExceeded, and one as far
/// ahead as can be is interrupted by Close. Also a deadline that another thread moves while the reader waits for it.
#[test]
fn test_poller_deadline() {
    let Some((map, _)) = echo() else { return };
    let far = Instant::now() + Duration::from_secs(u32::MAX.into());
    let (mut moved, mut closed) = (false, false);
    let woken = wakes(|| {
        let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        let handle = reader.handle();
        handle.set_deadline(Some(far)).unwrap();
        let (woken, given) = woken_by(&mut reader, || handle.set_deadline(Some(Instant::now())).unwrap());
        assert_eq!(given.unwrap(), Given::Ended(Ended::Deadline { complete: true }));
        moved |= woken;
        handle.set_deadline(Some(far)).unwrap();
        let (woken, given) = woken_by(&mut reader, || handle.close());
        assert_eq!(given.unwrap(), Given::Ended(Ended::Closed));
        closed |= woken;
        moved && closed
    });
    assert!(woken, "woken by the moved deadline: {moved}; by the close: {closed}");
}

/// `internal/epoll/poller_test.go`, TestPollerFlush: a blocked Wait is ErrFlushed.
#[test]
fn test_poller_flush() {
    let Some((map, _)) = echo() else { return };
    let rings = Rings::options().bpf_output(&map).pages(1).open().unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let handle = reader.handle();
    let woken = wakes(|| {
        let (woken, given) = woken_by(&mut reader, || handle.flush().unwrap());
        assert_eq!(given.unwrap(), Given::Flushed);
        woken
    });
    assert!(woken, "the reader was not woken, and refreshed at its tick");
}

/// Records of other kinds in the same rings as BPF output: each is read as its own kind, in any sequence.
#[test]
fn test_read_record_beside_others() {
    let Some((map, program)) = echo() else { return };
    let mut attr = foreign::software(bindings::PERF_COUNT_SW_DUMMY, 0);
    attr.set_comm(1);
    attr.set_task(1);
    attr.set_mmap(1);
    // Room for the records of all other processes.
    let rings = Rings::options().bpf_output(&map).event(&attr).bytes(4 << 20).open().unwrap();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    for value in 0..20 {
        assert_eq!(program.run_with(0, &[value]).unwrap(), 0);
        std::process::Command::new("true").status().unwrap();
    }
    let (mut numbers, mut others) = (Vec::new(), 0);
    reading::all(&mut reader, |event| match event.record() {
        Some(record) if record.kind() == bindings::PERF_RECORD_SAMPLE => numbers.push(number(&event)),
        Some(record) => {
            assert!(
                [
                    bindings::PERF_RECORD_COMM,
                    bindings::PERF_RECORD_FORK,
                    bindings::PERF_RECORD_EXIT,
                    bindings::PERF_RECORD_MMAP
                ]
                .contains(&record.kind()),
                "{record:?}"
            );
            others += 1;
        }
        None => panic!("{event:?}"),
    });
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    assert!(others >= 60, "{others}: a fork, a comm and an exit each");
}
