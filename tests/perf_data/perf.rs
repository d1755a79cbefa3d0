//! perf(1), and its files, which are removed with the test.

use perf_event_open_sys::bindings;
use perfweave::{Item, Order, Reader, Rings};
use perfweave_perf_data as perf_data;
use perfweave_support::perf::printed;
use perfweave_support::{kernel, lacks};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// A file that is removed with this.
pub(crate) struct File(pub(crate) PathBuf);

impl File {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("perfweave-test-{}-{}.data", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    pub(crate) fn with(bytes: &[u8]) -> Self {
        let file = Self::new();
        fs::write(&file.0, bytes).unwrap();
        file
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        // `perf record --threads` makes it a directory.
        let _ = fs::remove_dir_all(&self.0);
        // The file that perf renames.
        let _ = fs::remove_file(self.0.with_extension("data.old"));
    }
}

/// Runs perf; its output, or why it failed. It must not complain.
#[track_caller]
pub(crate) fn perf(args: &[&str]) -> io::Result<String> {
    printed(Command::new("perf").args(args))
}

/// Whether perf was built with this. If not, the test notes it.
#[track_caller]
pub(crate) fn perf_has(what: &str) -> bool {
    if perfweave_support::perf().is_none() {
        return false;
    }
    let has = perf(&["version", "--build-options"])
        .is_ok_and(|options| options.lines().any(|line| line.contains(what) && line.contains("on")));
    if !has {
        lacks(&format!("perf(1) with {what}"));
    }
    has
}

/// Records with perf and these arguments, while a load switches tasks and uses all CPUs. `None` if perf cannot.
#[track_caller]
pub(crate) fn record(args: &[&str]) -> Option<File> {
    // One at a time: every recording has the load of all tests.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let file = File::new();
    let load = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); /bin/true & done; wait";
    let args = [&["record", "-N", "-o", file.path()], args, &["--", "sh", "-c", load]].concat();
    perfweave_support::perf()?;
    kernel("record with perf", perf(&args))?;
    Some(file)
}

/// A sample as perf shows it: CPU, where it has one, time in nanoseconds, and event.
pub(crate) type Shown = (Option<u32>, u64, String);

/// The output of `perf script`.
pub(crate) fn script(path: &str, has_cpu: bool) -> Vec<Shown> {
    let fields = if has_cpu { "cpu,time,event" } else { "time,event" };
    let text = perf(&["script", "-i", path, "--ns", "-F", fields]).unwrap();
    text.lines().filter(|line| line.contains(": ") && !line.starts_with(['\t', '#'])).map(shown).collect()
}

/// `[000] 35730.198874821: sched:sched_switch: `
fn shown(line: &str) -> Shown {
    let mut words = line.split_whitespace().peekable();
    let cpu =
        words.peek().filter(|word| word.starts_with('[')).map(|word| word.trim_matches(['[', ']']).parse().unwrap());
    if cpu.is_some() {
        words.next();
    }
    let (seconds, nanos) = words.next().unwrap().trim_end_matches(':').split_once('.').unwrap();
    let time = seconds.parse::<u64>().unwrap() * 1_000_000_000 + nanos.parse::<u64>().unwrap();
    (cpu, time, words.next().unwrap().trim_end_matches(':').to_owned())
}

/// perf shows records with equal times in the order of the file, the merge by CPU.
pub(crate) fn by_cpu(mut shown: Vec<Shown>) -> Vec<Shown> {
    for same in shown.chunk_by_mut(|a, b| a.1 == b.1) {
        same.sort();
    }
    shown
}

/// The samples of rings, in order, as perf would show them.
pub(crate) fn samples(rings: Rings, has_cpu: bool) -> Vec<Shown> {
    let names: Vec<_> =
        rings.sources().iter().map(|source| source.tracepoint().unwrap_or(source.name()).to_owned()).collect();
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let mut all = Vec::new();
    drain(&mut reader, |event| {
        if let Item::Record(record) = event.item()
            && record.kind() == bindings::PERF_RECORD_SAMPLE
        {
            let name = names[record.source().unwrap()].clone();
            all.push((has_cpu.then_some(record.cpu()), record.time().unwrap(), name));
        }
    });
    all
}

/// All events of a recording, to its end.
pub(crate) fn drain(reader: &mut Reader, mut each: impl FnMut(&perfweave::Event<'_>)) {
    while let Some(event) = reader.next().unwrap() {
        each(&event.event());
    }
    assert_eq!(reader.ended(), Some(perfweave::Ended::Recording));
}

pub(crate) fn open(path: impl AsRef<Path>) -> Rings {
    perf_data::open(path).unwrap()
}
