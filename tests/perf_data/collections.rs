//! Collections of recordings, of other machines and other kernels: a test for each file of a folder that
//! `PERFWEAVE_RECORDINGS` names.

use perfweave::{Item, Order, Reader};
use perfweave_perf_data as perf_data;
use perfweave_support::perf::printed;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A sample: its time in nanoseconds, and its event without the modifiers of a tracepoint.
type Sample = (u64, String);

/// Each recording has the samples that `perf script` has: as many, with their times and the names of their events, in
/// the order of their times.
#[test]
fn recordings_of_a_collection_are_as_perf_shows_them() {
    let Some(folder) = perfweave_support::recordings() else { return };
    let Some(()) = perfweave_support::perf() else { return };
    let mut paths: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let (mut compared, mut samples, mut differ) = (0, 0, Vec::new());
    for path in paths {
        let name = path.file_name().unwrap().display().to_string();
        match (ours(&path), perfs(&path)) {
            (Ok(ours), Ok(perfs)) => {
                (compared, samples) = (compared + 1, samples + ours.len());
                differ.extend(difference(ours, perfs).map(|what| format!("{name}: {what}")));
            }
            // What this machine cannot read at all (its byte order), and says so.
            (Err(why), Ok(_)) if why.contains("the other byte order") => println!("{name}: not compared: {why}"),
            (Err(why), Ok(_)) => differ.push(format!("{name}: perf reads it: {why}")),
            (_, Err(why)) => println!("{name}: not compared: perf does not read it: {why}"),
        }
    }
    println!("{compared} recordings with {samples} samples are compared with perf");
    assert!(differ.is_empty(), "{differ:#?}");
    assert!(compared > 0, "{} has no recording that perf reads", folder.display());
}

/// The samples that the package gives, in its order.
fn ours(path: &Path) -> Result<Vec<Sample>, String> {
    let rings = perf_data::open(path).map_err(|why| why.to_string())?;
    let names: Vec<_> =
        rings.sources().iter().map(|source| source.tracepoint().unwrap_or(source.name()).to_owned()).collect();
    let mut members = perf_data::Members::new(&rings);
    if rings.cpus().len() == 0 {
        return Ok(Vec::new());
    }
    let mut reader = Reader::new(rings, Order::new()).map_err(|why| why.to_string())?;
    let mut all = Vec::new();
    while let Some(event) = reader.next().map_err(|why| why.to_string())? {
        let Item::Record(record) = event.item() else { continue };
        if record.kind() != perf_event_open_sys::bindings::PERF_RECORD_SAMPLE {
            continue;
        }
        let own = record.source().map(|source| (source, 1));
        let shown = members.of(&record).unwrap_or_else(|| own.into_iter().collect());
        all.extend(shown.into_iter().map(|(source, _)| (record.time().unwrap_or(0), names[source].clone())));
    }
    Ok(all)
}

/// Those of perf.
fn perfs(path: &Path) -> Result<Vec<Sample>, String> {
    let script = printed(Command::new("perf").args(["script", "--ns", "-F", "time,event", "-i"]).arg(path));
    let sample = |line: &str| {
        let (time, event) = line.trim().split_once(": ")?;
        let (seconds, nanos) = time.split_once('.')?;
        let time = seconds.parse::<u64>().ok()? * 1_000_000_000 + nanos.parse::<u64>().ok()?;
        Some((time, event.trim().trim_end_matches(':').to_owned()))
    };
    Ok(script.map_err(|why| why.to_string())?.lines().filter_map(sample).collect())
}

/// What differs first. perf shows samples of equal times in another order.
fn difference(mut ours: Vec<Sample>, mut perfs: Vec<Sample>) -> Option<String> {
    if !ours.is_sorted_by_key(|(time, _)| *time) {
        return Some("its samples are not in the order of their times".into());
    }
    // A tracepoint may have modifiers there: `sched:sched_switch:u`.
    for (_, event) in &mut perfs {
        if let Some((name, _)) = event.match_indices(':').nth(1).map(|(at, _)| event.split_at(at)) {
            *event = name.to_owned();
        }
    }
    ours.sort();
    perfs.sort();
    let counts = format!("{} samples, perf has {}", ours.len(), perfs.len());
    let at = ours.iter().zip(&perfs).position(|(ours, perfs)| ours != perfs);
    let at = at.or_else(|| (ours.len() != perfs.len()).then(|| ours.len().min(perfs.len())))?;
    Some(format!("{counts}; the first that differs: {:?}, perf has {:?}", ours.get(at), perfs.get(at)))
}
