//! Comparison with linux-perf-data, which reads the same files and sorts them itself.

use crate::perf::{drain, open, record};
use perf_event_open_sys::bindings;
use perfweave::{Item, Order, Reader};
use perfweave_support::linux_perf_data::{PerfFileReader, PerfFileRecord};
use std::collections::BTreeSet;
use std::fs;
use std::io::BufReader;

/// Kind, misc, time, and the bytes after the header.
type Seen = (u32, u16, Option<u64>, Vec<u8>);

/// Records with equal times are in the order of the file there, and by CPU here.
fn by_bytes(mut seen: Vec<Seen>) -> Vec<Seen> {
    seen.chunk_by_mut(|a, b| a.2 == b.2).for_each(<[Seen]>::sort);
    seen
}

#[test]
fn no_record_is_missing_and_all_are_in_the_same_order() {
    for args in [
        &["-a", "-e", "sched:sched_switch"][..],
        &["-a", "-g", "-e", "sched:sched_switch", "-e", "cpu-clock"],
        &["--per-thread", "-T", "-e", "sched:sched_switch", "-e", "cpu-clock"],
    ] {
        let Some(file) = record(args) else { return };
        let reader = BufReader::new(fs::File::open(&file.0).unwrap());
        let PerfFileReader { mut perf_file, mut record_iter } = PerfFileReader::parse_file(reader).unwrap();
        let names: Vec<_> = perf_file.event_attributes().iter().map(|attr| attr.name.clone().unwrap()).collect();
        let mut theirs = Vec::new();
        while let Some(record) = record_iter.next_record(&mut perf_file).unwrap() {
            if let PerfFileRecord::EventRecord { record, .. } = record {
                theirs.push((
                    record.record_type.0,
                    record.misc,
                    record.timestamp(),
                    record.data.as_slice().into_owned(),
                ));
            }
        }
        let rings = open(&file.0);
        let ours: Vec<_> = rings.sources().iter().map(|source| source.tracepoint().unwrap_or(source.name())).collect();
        assert_eq!(ours, names);
        let mut ours = Vec::new();
        let mut cpus = BTreeSet::new();
        drain(&mut Reader::new(rings, Order::new()).unwrap(), |event| {
            if let Item::Record(record) = event.item() {
                cpus.insert(record.cpu());
                ours.push((record.kind(), record.misc(), record.time(), record.body().to_vec()));
            }
        });
        assert!(!ours.is_empty() && cpus.contains(&u32::MAX) == (args[0] == "--per-thread"), "{cpus:?}");
        // Losses are separate events here. perf writes the counts of dropped records last, with the time 0, and then
        // they come last there.
        theirs.retain(|(kind, ..)| *kind != bindings::PERF_RECORD_LOST);
        for all in [&mut ours, &mut theirs] {
            all.retain(|(kind, ..)| *kind != bindings::PERF_RECORD_LOST_SAMPLES);
        }
        assert_eq!(by_bytes(ours), by_bytes(theirs), "{args:?}");
    }
}
