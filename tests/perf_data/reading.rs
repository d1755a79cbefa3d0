//! Merging recordings of perf.

use crate::perf::{File, by_cpu, drain, open, record, samples, script};
use perf_event_open_sys::bindings;
use perfweave::{Certainty, Clock, Ended, Hold, Item, Key, Layout, Merge, Order, Reader, Rings, sim};
use perfweave_events::Format;
use perfweave_perf_data as perf_data;
use perfweave_support::{assert_error, perf::printed};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn switches_of_all_cpus_come_in_the_order_in_which_perf_shows_them() {
    let Some(file) = record(&["-a", "-e", "sched:sched_switch"]) else { return };
    let rings = open(&file.0);
    assert_eq!(rings.sources()[0].tracepoint(), Some("sched:sched_switch"));
    assert_eq!(rings.sources()[0].name(), "tracepoint sched:sched_switch");
    assert!(rings.sources()[0].tracepoint_id().is_some());
    assert_eq!(rings.clock(), Clock::Perf);
    let expected = script(file.path(), true);
    assert!(expected.len() > 40, "{}", expected.len());
    assert_eq!(samples(rings, true), by_cpu(expected));
}

/// perf's dummy event makes a third layout.
#[test]
fn events_of_different_layouts_are_one_stream() {
    let Some(file) = record(&["-a", "-g", "-e", "sched:sched_switch", "-e", "cpu-clock"]) else { return };
    let rings = open(&file.0);
    let types: BTreeSet<_> = rings.sources().iter().map(|source| source.attr().sample_type).collect();
    assert!(types.len() > 1, "too few layouts for this test: {types:x?}");
    let shown = samples(rings, true);
    assert_eq!(shown, by_cpu(script(file.path(), true)));
    assert!(shown.iter().any(|(.., name)| name == "cpu-clock"));
    assert!(shown.iter().any(|(.., name)| name == "sched:sched_switch"));
}

#[test]
fn call_chains_of_a_command() {
    let Some(file) = record(&["-e", "cpu-clock", "-F", "20000", "-g"]) else { return };
    let expected = script(file.path(), false);
    assert!(!expected.is_empty());
    assert_eq!(samples(open(&file.0), false), by_cpu(expected));
}

#[test]
fn a_recording_made_per_thread_has_no_cpu_and_is_in_order() {
    let Some(file) = record(&["--per-thread", "-T", "-e", "sched:sched_switch", "-e", "cpu-clock", "-F", "20000"])
    else {
        return;
    };
    let expected = script(file.path(), false);
    assert!(!expected.is_empty());
    assert_eq!(samples(open(&file.0), false), by_cpu(expected));
}

#[test]
fn a_recording_of_a_process() {
    let mut child = Command::new("sh").args(["-c", "while :; do /bin/true; done"]).spawn().unwrap();
    let file = record(&["-p", &child.id().to_string(), "-e", "cpu-clock", "-F", "20000"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let Some(file) = file else { return };
    assert_eq!(samples(open(&file.0), false), by_cpu(script(file.path(), false)));
}

/// `perf record -o -`: the metadata that otherwise has sections is among the records.
#[test]
fn a_recording_in_pipe_mode() {
    let Some(plain) = record(&["-a", "-e", "sched:sched_switch"]) else { return };
    let file = crate::perf::File::new();
    let script_of = format!("perf record -o - -a -e sched:sched_switch -e cpu-clock -- sleep 0.2 > {}", file.path());
    printed(Command::new("sh").args(["-c", &script_of])).unwrap();
    let rings = open(&file.0);
    let names: Vec<_> = rings.sources().iter().map(|source| source.name().to_owned()).collect();
    assert_eq!(names[..2], ["tracepoint sched:sched_switch", "cpu-clock"]);
    let shown = samples(rings, true);
    let script_of = format!("perf script -i - --ns -F cpu,time,event < {}", file.path());
    let lines = printed(Command::new("sh").args(["-c", &script_of])).unwrap().lines().count();
    assert!(shown.len() > 40 && shown.len() == lines, "{} of {lines}", shown.len());
    drop(plain);
}

/// Under every rule, all events are there, and all are proven.
#[test]
fn every_event_is_proven_under_every_rule() {
    let Some(file) = record(&["-a", "-e", "sched:sched_switch"]) else { return };
    let lag = Duration::from_secs(3600);
    for hold in [Hold::FENCE, Hold::None, Hold::Lag(lag)] {
        let mut reader = Reader::new(open(&file.0), Order::new().hold(hold.clone())).unwrap();
        assert_eq!(reader.fence(), None, "{hold}: nothing to wait for");
        let (mut last, mut count) = (0, 0);
        drain(&mut reader, |event| {
            assert_eq!(event.certainty(), Certainty::Proven, "{hold}: {event:?}");
            last = event.key().inspect(|key| assert!(*key >= last, "{hold}")).unwrap_or(last);
            count += 1;
        });
        assert!(count > 40, "{hold}");
        assert_eq!(reader.status().sleeps, 0, "{hold}: nothing to sleep for");
    }
}

/// A merge needs one refresh, and the tails of a recording's rings move as in live rings.
#[test]
fn a_merge_finds_all_at_the_first_look() {
    let Some(file) = record(&["-a", "-e", "sched:sched_switch"]) else { return };
    let mut merge = Merge::new(open(&file.0), Order::new()).unwrap();
    let found = merge.refresh(0);
    assert!(!merge.begin_fence(), "nothing is in flight");
    assert_eq!(merge.batch().count(), found);
    assert_eq!(merge.refresh(0), 0);
    assert_eq!(merge.held(), 0);
}

/// The records that perf synthesizes at its start have no time, and come first.
#[test]
fn names_of_processes_come_before_their_samples() {
    let Some(file) = record(&["-a", "-e", "sched:sched_switch"]) else { return };
    let mut reader = Reader::new(open(&file.0), Order::new()).unwrap();
    let mut kinds = Vec::new();
    drain(&mut reader, |event| {
        if let Item::Record(record) = event.item() {
            kinds.push((record.kind(), record.time()));
        }
    });
    let made_up = kinds.iter().take_while(|(_, time)| *time == Some(0)).count();
    assert!(kinds[..made_up].iter().any(|(kind, _)| *kind == bindings::PERF_RECORD_COMM), "{made_up}");
    assert!(kinds[made_up..].iter().all(|(_, time)| *time > Some(0)));
}

#[test]
fn the_clock_is_the_recordings() {
    let Some(file) = record(&["-a", "-k", "CLOCK_MONOTONIC", "-e", "sched:sched_switch"]) else { return };
    assert_eq!(open(&file.0).clock(), Clock::Monotonic);
    assert_eq!(samples(open(&file.0), true), by_cpu(script(file.path(), true)));
}

/// Times are those of the recorded machine, which may be years ahead of this one's.
#[test]
fn times_are_not_compared_with_this_machines_clock() {
    let machine = sim::Kernel::new(&[0]);
    let far = u64::MAX / 2;
    machine.emit(0, far, b"far");
    let file = write(machine.rings(), &sim::Kernel::new(&[0]).rings().on_clock(Clock::Monotonic));
    let rings = open(&file.0);
    assert_eq!(rings.clock(), Clock::Monotonic);
    let mut keys = Vec::new();
    drain(&mut Reader::new(rings, Order::new()).unwrap(), |event| keys.push((event.key(), event.record().is_some())));
    assert_eq!(keys, [(Some(far), true)]);
}

/// A merged stream can be a file again.
fn write(rings: Rings, described: &Rings) -> File {
    let file = File::new();
    let mut writer = perf_data::Writer::create(&file.0, described).unwrap();
    let mut merge = Merge::new(rings, Order::new().hold(Hold::None)).unwrap();
    merge.refresh(0);
    merge.batch().for_each(|event| writer.write(&event).unwrap());
    writer.finish().unwrap();
    file
}

/// The bound on copies does not make events of a recording leave before their order is proven.
#[test]
fn nothing_is_let_out_early_however_much_there_is() {
    let bits = bindings::PERF_SAMPLE_RAW | bindings::PERF_SAMPLE_TIME;
    let machine = sim::Kernel::with(&[0, 1], 1 << 20, Layout::new(bits.into(), true, 0));
    // One CPU wrote all small keys, after all large keys of the other.
    let large = (5000..10_000u64).map(|number| (0, number));
    for (cpu, number) in large.chain((0..5000).map(|number| (1, number))) {
        assert!(machine.emit(cpu, number, &number.to_ne_bytes()));
    }
    let file = write(machine.rings(), &sim::Kernel::new(&[0]).rings());
    let order = Order::new().key(Key::Payload(0)).most_held(4096);
    let mut reader = Reader::new(open(&file.0), order).unwrap();
    let mut keys = Vec::new();
    drain(&mut reader, |event| {
        assert_eq!(event.certainty(), Certainty::Proven, "{event:?}");
        keys.push(event.key().unwrap());
    });
    assert!(keys.into_iter().eq(0..10_000));
}

/// A missing number cannot be in flight, so it becomes a gap without a wait.
#[test]
fn missing_numbers_are_gaps_without_a_wait() {
    let machine = sim::Kernel::new(&[0, 1]);
    for number in [1u64, 2, 4, 7, 8] {
        machine.emit(number as u32 % 2, number, &number.to_ne_bytes());
    }
    let rings = machine.rings();
    let described = sim::Kernel::new(&[0]).rings();
    let file = write(rings, &described);
    let hold = Hold::Dense { first: Some(1), fence: perfweave::Fence::Auto };
    let mut reader = Reader::new(open(&file.0), Order::new().key(Key::Payload(0)).hold(hold)).unwrap();
    assert_eq!(reader.fence(), None);
    let mut seen = Vec::new();
    drain(&mut reader, |event| match event.item() {
        Item::Record(_) => seen.push((event.key().unwrap(), 0)),
        Item::Gap(gap) => seen.push((gap.first, gap.count)),
        other => panic!("{other:?}"),
    });
    assert_eq!(seen, [(1, 0), (2, 0), (3, 1), (4, 0), (5, 2), (7, 0), (8, 0)]);
}

/// Every call after the end says that the stream has ended, and a flush comes before the end.
#[test]
fn the_end_is_one_that_stays() {
    let machine = sim::Kernel::new(&[0]);
    machine.emit(0, 1, b"one");
    let file = write(machine.rings(), &sim::Kernel::new(&[0]).rings());
    let mut reader = Reader::new(open(&file.0), Order::new()).unwrap();
    let handle = reader.handle();
    handle.flush().unwrap();
    assert_eq!(reader.next().unwrap().unwrap().key(), Some(1));
    assert!(matches!(reader.next().unwrap().unwrap().item(), Item::Flushed { .. }));
    for _ in 0..3 {
        assert!(reader.next().unwrap().is_none());
        assert!(reader.next_timeout(Duration::ZERO).unwrap().is_none());
        assert!(reader.batch(Duration::MAX).unwrap().is_none());
        assert_eq!(reader.ended(), Some(Ended::Recording));
        // Under any request.
        handle.flush().unwrap();
        handle.set_deadline(Some(Instant::now())).unwrap();
        handle.close();
    }
}

/// A deadline that is past before all events were yielded ends the stream first. The end of the recording comes after
/// it.
#[test]
fn a_deadline_ends_the_stream_of_a_recording_too() {
    let machine = sim::Kernel::new(&[0]);
    machine.emit(0, 1, b"one");
    let file = write(machine.rings(), &sim::Kernel::new(&[0]).rings());
    let mut reader = Reader::new(open(&file.0), Order::new()).unwrap();
    reader.handle().set_deadline(Some(Instant::now())).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().key(), Some(1));
    assert!(reader.next().unwrap().is_none());
    assert_eq!(reader.ended(), Some(Ended::Deadline { complete: true }));
    reader.handle().set_deadline(None).unwrap();
    assert!(reader.next().unwrap().is_none());
    assert_eq!(reader.ended(), Some(Ended::Recording));
}

#[test]
fn a_recording_without_times_has_no_keys_and_says_so() {
    let Some(file) = record(&["--no-timestamp", "--per-thread", "-e", "cpu-clock"]) else { return };
    let error = Merge::new(open(&file.0), Order::new()).unwrap_err();
    assert_error!(error, InvalidInput, "its records carry no time to order by");
}

/// The reader under tokio ends as well.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn the_end_of_a_recording_is_the_end_of_a_stream() {
    use perfweave::AsyncReader;

    let machine = sim::Kernel::new(&[0, 1]);
    [(1, 20), (0, 10), (1, 30)].into_iter().for_each(|(cpu, time)| assert!(machine.emit(cpu, time, b"")));
    let file = write(machine.rings(), &sim::Kernel::new(&[0]).rings());
    let mut reader = AsyncReader::new(open(&file.0), Order::new()).unwrap();
    for time in [10, 20, 30] {
        assert_eq!(reader.next().await.unwrap().unwrap().key(), Some(time));
    }
    assert!(reader.next().await.unwrap().is_none());
    assert_eq!(reader.ended(), Some(Ended::Recording));
}

/// Fields have the offsets of the recorded machine, not those of this one.
#[test]
fn formats_are_those_of_the_recorded_machine() {
    let Some(recorded) = record(&["-a", "-e", "sched:sched_switch"]) else { return };
    let bytes = std::fs::read(&recorded.0).unwrap();
    let here = Format::read("sched:sched_switch").unwrap();
    let offset =
        |path: &std::path::Path| Format::of(&open(path), 0).map(|format| format.field("prev_pid").unwrap().offset());
    assert_eq!(offset(&recorded.0).unwrap(), here.field("prev_pid").unwrap().offset());
    // Another machine, with other fields: texts of the same length.
    let replaced = |from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|window| window == from).expect("it is in the file");
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        let file = File::new();
        std::fs::write(&file.0, bytes).unwrap();
        file
    };
    let field = format!("pid_t prev_pid;\toffset:{};", here.field("prev_pid").unwrap().offset());
    let other = replaced(field.as_bytes(), b"pid_t prev_pid;\toffset:28;");
    assert_eq!(offset(&other.0).unwrap(), 28);
    // A recording without the format: the crate does not use this machine's instead.
    let none = replaced(b"header_page\0", b"header_page!");
    let error = offset(&none.0).unwrap_err();
    assert!(error.to_string().contains("does not bring it"), "{error}");
}
