//! Writers' epochs, on simulated rings.

use crate::reading;
use perfweave::{Certainty, Ended, Hold, Item, Key, Order, Reader, sim};
use perfweave_proofs::Epochs;
use perfweave_support::{assert_error, threads, times};
use quickcheck::{QuickCheck, TestResult};
use std::time::{Duration, Instant};

fn reader(kernel: &sim::Kernel, epochs: Epochs) -> Reader {
    Reader::new(kernel.rings(), Order::new().hold(Hold::Fence(epochs.fence()))).unwrap()
}

/// Patience that never ends, so that no fence stands in.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// A writer on CPU 0 is inside with key 10, and holds a record of CPU 1 with key 20.
fn held() -> (sim::Kernel, Reader) {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut reader = reader(&kernel, reading::simulated(&kernel).patience(FOR_EVER));
    kernel.begin(0, 10);
    kernel.emit(1, 20, b"later");
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    (kernel, reader)
}

#[test]
fn what_was_written_by_nobody_who_is_inside_is_proven_at_once() {
    let kernel = sim::Kernel::new(&[0, 3]);
    let mut reader = reader(&kernel, reading::simulated(&kernel));
    assert_eq!(reader.fence(), Some("epochs"));
    kernel.emit(3, 20, b"second");
    kernel.emit(0, 10, b"first");
    for key in [10, 20] {
        let event = reader.next_timeout(Duration::ZERO).unwrap().expect("no wait");
        assert_eq!((event.key(), event.certainty()), (Some(key), Certainty::Proven));
    }
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    assert_eq!((reader.status().sleeps, reader.status().stand_ins), (0, 0));
}

/// The reader waits for a program that is inside, and its record comes first.
#[test]
fn what_is_larger_waits_for_whoever_is_inside() {
    let (kernel, mut reader) = held();
    for _ in 0..9 {
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    }
    // A program that enters later has a larger key, and the reader does not wait for it.
    kernel.begin(1, 30);
    kernel.write(0, b"earlier");
    kernel.end(0);
    for key in [10, 20] {
        assert_eq!(reading::next(&mut reader).key(), Some(key));
    }
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    kernel.write(1, b"last");
    kernel.end(1);
    assert_eq!(reading::next(&mut reader).key(), Some(30));
    assert_eq!(reader.status().total().late, 0);
}

/// If a program is inside at each reading of a CPU's word, the CPU has still passed if no program was inside in
/// between.
#[test]
fn another_generation_is_as_good_as_nobody() {
    let (kernel, mut reader) = held();
    kernel.write(0, b"earlier");
    kernel.end(0);
    kernel.begin(0, 40);
    assert_eq!(reading::next(&mut reader).key(), Some(10));
    assert_eq!(reading::next(&mut reader).key(), Some(20));
}

/// A program in an interrupt that ends while the interrupted program is inside ends no generation.
#[test]
fn what_ends_inside_another_program_proves_nothing() {
    let (kernel, mut reader) = held();
    for time in 11..15 {
        kernel.emit(0, time, b"interrupt");
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    }
    kernel.write(0, b"interrupted");
    kernel.end(0);
    let keys: Vec<_> = (0..6).map(|_| reading::next(&mut reader).key().unwrap()).collect();
    assert_eq!(keys, [10, 11, 12, 13, 14, 20]);
}

/// After a program that returned without leaving, its CPU looks busy for ever. A fence stands in, and an error reports
/// it.
#[test]
fn a_fence_stands_in_for_a_program_that_does_not_leave() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut reader = reader(&kernel, reading::simulated(&kernel).patience(Duration::ZERO));
    kernel.set_epoch(1, 1);
    let mut told = 0;
    for time in 1..=20 {
        kernel.emit(0, time, b"record");
        loop {
            match reader.next_timeout(reading::LONG) {
                Ok(event) => {
                    let event = event.expect("it comes");
                    assert_eq!((event.key(), event.certainty()), (Some(time), Certainty::Proven));
                    break;
                }
                Err(error)
                    if error.to_string().contains("a program on CPU 1 has returned without perfweave_leave()") =>
                {
                    told += times(&error.to_string());
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
    let status = reader.status();
    // Reported at the first and the tenth time.
    assert!(status.stand_ins >= 20 && (10..=status.stand_ins).contains(&told), "{told} of {status:?}");
    assert_eq!(status.total().late, 0);
    // The word is corrected: no fence stands in any more.
    kernel.set_epoch(1, 0);
    kernel.emit(0, 100, b"record");
    assert_eq!(reading::next(&mut reader).key(), Some(100));
    assert_eq!(reader.status().stand_ins, status.stand_ins);
}

/// A missing number is proven missing by epochs.
#[test]
fn a_gap_of_dense_numbers_is_proven_by_epochs() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let hold = Hold::Dense { first: Some(0), fence: reading::simulated(&kernel).patience(FOR_EVER).fence() };
    let mut reader = Reader::new(kernel.rings(), Order::new().key(Key::Payload(0)).hold(hold)).unwrap();
    let emit = |cpu, number: u64| kernel.emit(cpu, number, &number.to_ne_bytes());
    kernel.begin(0, 1);
    emit(1, 0);
    emit(1, 2);
    assert_eq!(reading::next(&mut reader).key(), Some(0));
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none(), "1 may be in flight");
    kernel.end(0);
    let event = reading::next(&mut reader);
    let Item::Gap(gap) = event.item() else { panic!("{event:?}") };
    assert_eq!((gap.first, gap.last, event.certainty()), (1, 1, Certainty::Proven));
    drop(event);
    assert_eq!(reading::next(&mut reader).key(), Some(2));
}

#[test]
fn a_flush_brings_all_that_was_written() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut reader = reader(&kernel, reading::simulated(&kernel));
    for time in 0..100 {
        kernel.emit((time % 2) as u32, time, b"record");
    }
    let mut keys = Vec::new();
    reading::all(&mut reader, |event| keys.extend(event.key()));
    assert_eq!(keys, (0..100).collect::<Vec<_>>());
}

#[test]
fn a_grace_period_of_ones_own_begins_and_is_asked_after() {
    let kernel = sim::Kernel::new(&[0]);
    let mut grace = reading::simulated(&kernel).fence().open().unwrap();
    assert_eq!(grace.name(), "epochs");
    assert!(grace.poll().is_none());
    kernel.begin(0, 1);
    assert!(grace.begin() && !grace.begin() && grace.poll().is_none());
    kernel.end(0);
    assert!(grace.poll().is_some_and(|ended| ended.is_ok()));
    assert!(grace.poll().is_none());
    grace.wait().unwrap();
}

/// A deadline ends the stream, and a new CPU gets its ring, although each refresh finds events and the reader never
/// sleeps.
#[test]
fn what_is_due_is_done_although_there_is_always_something_to_yield() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut reader = reader(&kernel, reading::simulated(&kernel).patience(FOR_EVER));
    let mut time = 20;
    let mut busy = |reader: &mut Reader| {
        time += 1;
        kernel.emit(1, time, b"record");
        reader.next_timeout(Duration::ZERO).map(|event| event.is_some())
    };
    kernel.begin(0, 10);
    kernel.emit(1, 20, b"record");
    assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
    kernel.end(0);
    assert!(busy(&mut reader).unwrap());
    reader.handle().set_deadline(Some(Instant::now())).unwrap();
    assert!((0..1000).any(|_| !busy(&mut reader).unwrap()));
    assert_eq!(reader.ended(), Some(Ended::Deadline { complete: true }));
    reader.handle().set_deadline(None).unwrap();
    kernel.plug(2);
    threads::until("the ring of the new CPU is there", || {
        busy(&mut reader).unwrap();
        reader.rings().cpus().len() == 3
    });
}

/// A caller that polls instead of waiting gets its event too, although a program does not leave.
#[test]
fn a_fence_stands_in_for_those_who_ask_as_well() {
    let kernel = sim::Kernel::new(&[0]);
    let mut grace = reading::simulated(&kernel).patience(Duration::ZERO).fence().open().unwrap();
    kernel.set_epoch(0, 1);
    assert!(grace.begin());
    threads::until("it is over", || grace.poll().is_some_and(|ended| ended.is_ok()));
    grace.wait().unwrap();
}

/// Successful proofs in between do not make each failure a new report.
#[test]
fn what_is_stuck_now_and_then_is_told_ever_less_often() {
    let kernel = sim::Kernel::new(&[0, 1]);
    let mut reader = reader(&kernel, reading::simulated(&kernel).patience(Duration::ZERO));
    let (mut time, mut errors) = (0, 0);
    for round in 0..50 {
        for nth in 0..17 {
            kernel.set_epoch(1, u64::from(nth == 0) + (round << 32));
            time += 1;
            kernel.emit(0, time, b"record");
            loop {
                match reader.next_timeout(reading::LONG) {
                    Ok(event) => break assert_eq!(event.and_then(|event| event.key()), Some(time)),
                    Err(error) if error.to_string().contains("without perfweave_leave()") => errors += 1,
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
    let stand_ins = reader.status().stand_ins;
    // The first, the tenth, the hundredth and so on.
    assert!(stand_ins >= 50 && errors == stand_ins.ilog10() + 1, "{errors} of {stand_ins}");
}

#[test]
fn cpus_without_a_word_are_refused() {
    let kernel = sim::Kernel::new(&[0, 5000]);
    let hold = Hold::Fence(reading::simulated(&kernel).fence());
    let error = Reader::new(kernel.rings(), Order::new().hold(hold)).unwrap_err();
    assert_error!(error, InvalidInput, "a map of epochs with 1024 elements has none for CPU 5000");
}

/// Words are memory that other programs write. With any content every event comes out, and none is late if the programs
/// enter and leave.
#[test]
fn any_words_hold_up_nothing_for_ever() {
    fn property(steps: Vec<(u8, u64)>) -> TestResult {
        let kernel = sim::Kernel::new(&[0, 1]);
        let mut reader = reader(&kernel, reading::simulated(&kernel).patience(Duration::ZERO));
        let (mut time, mut written, mut read) = (1, 0, 0);
        for (what, word) in steps {
            let cpu = u32::from(what & 1);
            match what >> 1 & 3 {
                0 => kernel.set_epoch(cpu, word),
                1 => kernel.set_epoch(cpu, word << 32 | 1),
                _ => {
                    time += 1;
                    written += 1;
                    assert!(kernel.emit(cpu, time, b"record"));
                }
            }
            match reader.next_timeout(Duration::ZERO) {
                Ok(event) => read += u64::from(event.is_some()),
                Err(error) if error.to_string().contains("without perfweave_leave()") => {}
                Err(other) => panic!("{other}"),
            }
        }
        reader.handle().flush().unwrap();
        loop {
            match reader.next_timeout(reading::LONG) {
                Ok(event) if matches!(event.as_ref().unwrap().item(), Item::Flushed { .. }) => break,
                Ok(_) => read += 1,
                Err(error) if error.to_string().contains("without perfweave_leave()") => {}
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!((read, reader.status().total().late), (written, 0));
        TestResult::passed()
    }
    QuickCheck::new().tests(200).quickcheck(property as fn(Vec<(u8, u64)>) -> TestResult);
}
