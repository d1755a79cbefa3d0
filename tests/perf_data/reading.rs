//! What perf recorded, merged.

use crate::perf::{by_cpu, drain, open, record, samples, script};
use perfweave::{Class, Clock, Hold, Item, Kind, Merge, Order, Reader};
use std::collections::BTreeSet;
use std::time::Duration;

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
    assert!(types.len() > 1, "not what this test is about: {types:x?}");
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
    let mut child = std::process::Command::new("sh").args(["-c", "while :; do /bin/true; done"]).spawn().unwrap();
    let file = record(&["-p", &child.id().to_string(), "-e", "cpu-clock", "-F", "20000"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let Some(file) = file else { return };
    assert_eq!(samples(open(&file.0), false), by_cpu(script(file.path(), false)));
}

/// `perf record -o -`: what else has sections lies among the records.
#[test]
fn a_recording_in_pipe_mode() {
    let Some(plain) = record(&["-a", "-e", "sched:sched_switch"]) else { return };
    let file = crate::perf::File::new();
    let script_of = format!("perf record -o - -a -e sched:sched_switch -e cpu-clock -- sleep 0.2 > {}", file.path());
    let piped = std::process::Command::new("sh").args(["-c", &script_of]).output().unwrap();
    assert!(piped.status.success(), "{piped:?}");
    let rings = open(&file.0);
    let names: Vec<_> = rings.sources().iter().map(|source| source.name().to_owned()).collect();
    assert_eq!(names[..2], ["tracepoint sched:sched_switch", "cpu-clock"]);
    let shown = samples(rings, true);
    let expected = std::process::Command::new("sh")
        .args(["-c", &format!("perf script -i - --ns -F cpu,time,event < {}", file.path())])
        .output()
        .unwrap();
    let lines = String::from_utf8(expected.stdout).unwrap().lines().count();
    assert!(shown.len() > 40 && shown.len() == lines, "{} of {lines}", shown.len());
    drop(plain);
}

/// Whatever rule is asked for: everything is there, and everything is proven.
#[test]
fn every_event_is_proven_under_every_rule() {
    let Some(file) = record(&["-a", "-e", "sched:sched_switch"]) else { return };
    let lag = Duration::from_secs(3600);
    for hold in [Hold::FENCE, Hold::Round, Hold::None, Hold::Lag(lag)] {
        let mut reader = Reader::new(open(&file.0), Order::new().hold(hold.clone())).unwrap();
        assert_eq!(reader.fence(), None, "{hold}: nothing to wait for");
        let (mut last, mut count) = (0, 0);
        drain(&mut reader, |event| {
            assert_eq!(event.class(), Class::Proven, "{hold}: {event:?}");
            last = event.key().inspect(|key| assert!(*key >= last, "{hold}")).unwrap_or(last);
            count += 1;
        });
        assert!(count > 40, "{hold}");
        assert_eq!(reader.stats().sleeps, 0, "{hold}: nothing to sleep for");
    }
}

/// A merge needs one look, and the tails of a recording's rings move like any others.
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

/// What perf makes up when it begins has no time, and comes first.
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
    assert!(kinds[..made_up].iter().any(|(kind, _)| *kind == Kind::COMM), "{made_up}");
    assert!(kinds[made_up..].iter().all(|(_, time)| *time > Some(0)));
}

#[test]
fn the_clock_is_the_recordings() {
    let Some(file) = record(&["-a", "-k", "CLOCK_MONOTONIC", "-e", "sched:sched_switch"]) else { return };
    assert_eq!(open(&file.0).clock(), Clock::Monotonic);
    assert_eq!(samples(open(&file.0), true), by_cpu(script(file.path(), true)));
}
