//! `record --ptp` with a PTP clock of the kernel, `/dev/ptp0`, which the test sets. `.ci/guests/run ptp` has one: it is
//! why `cargo test` alone leaves this out. Needs root.

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use clap::Parser;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_settime};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use perfweave::Clock;
use perfweave_archive::record::{Error, Options, Outcome, record};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const DEVICE: &str = "/dev/ptp0";
const SECOND: i64 = 1_000_000_000;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    options: Options,
}

fn recorded(folder: &Path) -> Result<Outcome, Error> {
    let arguments = ["record", "-e", "sched:sched_switch", "-d", "2.5", "--machine", "here", "--ptp", "/dev/ptp0=1000"];
    let to = ["--to", folder.to_str().unwrap()];
    record(&Program::parse_from(arguments.into_iter().chain(to)).options)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Some numbers of the rows of `clocks`, and where they come from.
fn clocks<const COLUMNS: usize>(folder: &Path, columns: [&str; COLUMNS]) -> Vec<([i64; COLUMNS], String)> {
    let mut rows = Vec::new();
    for path in files(&folder.join("clocks")) {
        for batch in ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap().build().unwrap() {
            let batch = batch.unwrap();
            let numbers = columns.map(|name| batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().clone());
            let sources = batch.column_by_name("source").unwrap().as_string::<i32>();
            rows.extend(
                (0..batch.num_rows())
                    .map(|row| (numbers.each_ref().map(|column| column.value(row)), sources.value(row).to_owned())),
            );
        }
    }
    rows
}

fn set(time: i64) {
    let device = File::options().read(true).write(true).open(DEVICE).unwrap();
    // FD_TO_CLOCKID of clock_getres(2).
    let clock = ClockId::from_raw((!device.as_raw_fd() << 3) | 3);
    clock_settime(clock, TimeSpec::new(time / SECOND, time % SECOND)).unwrap();
}

fn real() -> i64 {
    Clock::Realtime.now().unwrap().cast_signed()
}

#[test]
fn tai_comes_from_the_clock_whether_it_keeps_tai_or_utc() {
    // Nobody tells the guest's kernel what TAI is ahead of UTC.
    for (ahead, source) in [(0, "ptp utc"), (37 * SECOND, "ptp")] {
        let folder = tempfile::tempdir().unwrap();
        set(real() + ahead + SECOND / 4);
        let before = Clock::Monotonic.offset_to(Clock::Realtime).unwrap().nanoseconds + 37 * SECOND;
        let outcome = recorded(folder.path()).unwrap();
        assert!(outcome.yielded > 0, "{outcome}");
        let rows = clocks(folder.path(), ["offset", "bracket", "maxerror", "tai_error"]);
        // One at the beginning, one a second, one at the end.
        assert!(rows.len() >= 3, "{rows:?}");
        for ([offset, bracket, maxerror, error], from) in rows {
            assert_eq!((from.as_str(), maxerror), (source, 1000));
            assert!(bracket > 0 && error >= 1000 + bracket && error < SECOND, "{bracket} {error}");
            assert!((offset - before - SECOND / 4).abs() < SECOND / 8, "{offset} {before}");
        }
    }
    // A card that nothing has set begins in 1970, or anywhere.
    set(1000 * SECOND);
    let refusal = recorded(Path::new("/tmp/none")).unwrap_err().to_string();
    assert!(refusal.starts_with("/dev/ptp0 cannot give the time: it is -"), "{refusal}");
    assert!(refusal.ends_with("one of the clocks is not set"), "{refusal}");
}
