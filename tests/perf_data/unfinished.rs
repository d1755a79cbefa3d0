//! Files that were not finished: as far as they were written, they are read.

use crate::perf::{File, drain, open, perf};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use perf_event_open_sys::bindings;
use perfweave::{ErrorKind, Event, Hold, Item, Layout, Merge, Order, Reader, sim};
use perfweave_perf_data as perf_data;
use perfweave_support::threads::until;
use perfweave_support::{assert_error, kernel};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A merge that can give this many records, at the times 1, 2 and so on, by turns of two CPUs.
fn merge(records: u64) -> Merge {
    let machine = sim::Kernel::with(&[0, 1], 8 << 20, Layout::new(4 | 1024 | 1 << 16, true, 0));
    (0..records).for_each(|time| assert!(machine.emit(time as u32 % 2, time + 1, &[7; 100])));
    let mut merge = Merge::new(machine.rings(), Order::new().hold(Hold::None)).unwrap();
    merge.refresh(0);
    merge
}

/// The times of the records in a file, and how many events are none.
fn times(path: &Path) -> (Vec<u64>, usize) {
    let (mut times, mut others) = (Vec::new(), 0);
    drain(&mut Reader::new(open(path), Order::new()).unwrap(), |event: &Event<'_>| match event.item() {
        Item::Record(record) => times.push(record.time().unwrap()),
        Item::Damage(_) => others += 1,
        other => panic!("{other:?}"),
    });
    (times, others)
}

/// As from a program that was killed: the buffer is lost.
#[test]
fn a_file_that_was_not_finished_is_read_as_far_as_it_was_written() {
    let mut merge = merge(20_000);
    let file = File::new();
    let mut writer = perf_data::Writer::create(&file.0, merge.rings()).unwrap();
    while let Some(event) = merge.next() {
        writer.write(&event.event()).unwrap();
    }
    drop(writer);
    let rings = open(&file.0);
    let unfinished = perf_data::unfinished(&rings).expect("it says so");
    assert_error!(unfinished, Recording, "bytes of records were written, and later ones are missing");
    assert_eq!(rings.sources().len(), 1);
    drop(rings);
    // The last of them may be there in part.
    let (read, damaged) = times(&file.0);
    assert!(read.len() > 16_000 && damaged <= 1, "{}, {damaged}", read.len());
    assert!(read.iter().copied().eq(1..=read.len() as u64));
    // Cut anywhere, it is read to the cut.
    let bytes = fs::read(&file.0).unwrap();
    let mut last = usize::MAX;
    for cut in [bytes.len() - 1, bytes.len() - 100, bytes.len() / 2, 10_000] {
        let part = File::with(&bytes[..cut]);
        let (read, damaged) = times(&part.0);
        assert!(read.len() < last && damaged == 1 && read.iter().copied().eq(1..=read.len() as u64), "cut at {cut}");
        last = read.len();
    }
}

/// Nothing was written, and a whole file is finished.
#[test]
fn only_files_that_were_not_finished_say_so() {
    let file = File::new();
    let merge = merge(1);
    let writer = perf_data::Writer::create(&file.0, merge.rings()).unwrap();
    let rings = open(&file.0);
    assert!(rings.cpus().len() == 0 && perf_data::unfinished(&rings).is_some());
    writer.finish().unwrap();
    assert!(perf_data::unfinished(&open(&file.0)).is_none());
}

/// After each flush the file is complete, also for perf, and the writer goes on behind the last record.
#[test]
fn a_flushed_file_is_complete() {
    let mut merge = merge(10_000);
    let file = File::new();
    let mut writer = perf_data::Writer::create(&file.0, merge.rings()).unwrap();
    writer.flush().unwrap();
    assert!(open(&file.0).cpus().len() == 0);
    let mut written = 0;
    for part in [1, 5000, 1, 4000, 998] {
        for _ in 0..part {
            writer.write(&merge.next().unwrap().event()).unwrap();
        }
        // A part that fits into the buffer leaves the file as it was, and a longer one opens it again.
        assert_eq!(perf_data::unfinished(&open(&file.0)).is_some(), part > 2000, "{part}");
        written += part;
        for _ in 0..2 {
            writer.flush().unwrap();
            assert!(perf_data::unfinished(&open(&file.0)).is_none());
            assert_eq!(times(&file.0), ((1..=written).collect(), 0));
        }
        if perfweave_support::perf().is_some() {
            let shown = perf(&["script", "-i", file.path(), "-F", "time"]).unwrap();
            assert_eq!(shown.lines().count() as u64, written);
        }
    }
    assert_eq!(writer.finish().unwrap().records, 10_000);
    assert_eq!(times(&file.0).0.len(), 10_000);
}

/// `perf record` that was killed. perf itself shows nothing of the file.
#[test]
fn what_a_killed_perf_wrote_is_read() {
    if perfweave_support::perf().is_none() || kernel("find tracefs", perfweave_events::tracefs()).is_none() {
        return;
    }
    let file = File::new();
    let mut record = Command::new("perf");
    // A file with a record for each switch grows on any machine.
    record.args(["record", "-N", "-a", "-m", "1", "-e", "sched:sched_switch", "-e", "cpu-clock", "-o", file.path()]);
    let mut record = record.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let samples = || {
        let mut samples = 0;
        let is_sample =
            |event: &Event<'_>| event.record().is_some_and(|record| record.kind() == bindings::PERF_RECORD_SAMPLE);
        drain(&mut Reader::new(open(&file.0), Order::new()).unwrap(), |event| samples += usize::from(is_sample(event)));
        samples
    };
    let mut counted = 0;
    until("perf has written samples", || {
        assert!(Command::new("/bin/true").status().unwrap().success());
        // Records of the processes that there are come first, and fill many files of this length on some machines.
        let length = fs::metadata(&file.0).map_or(0, |file| file.len());
        if length < counted + 500_000 {
            return false;
        }
        counted = length;
        samples() > 1000
    });
    record.kill().unwrap();
    record.wait().unwrap();
    let rings = open(&file.0);
    assert_error!(perf_data::unfinished(&rings).unwrap(), Recording, "it was not finished");
    drop(rings);
    assert!(samples() > 1000, "{}", samples());
    let error = perf(&["script", "-i", file.path()]).unwrap_err().to_string();
    assert!(error.contains("data size field is 0"), "{error}");
}

/// A disk without room: the error says so, and what is there is complete, also for perf.
#[test]
fn a_full_disk_leaves_a_file_that_can_be_read() {
    const NONE: Option<&Path> = None;
    // On the thread that has the test's name.
    let has_perf = perfweave_support::perf().is_some();
    let full = std::thread::spawn(move || {
        kernel("leave the mount namespace", unshare(CloneFlags::CLONE_NEWNS))?;
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        let folder = File::new();
        fs::create_dir(&folder.0).unwrap();
        mount(NONE, &folder.0, Some("tmpfs"), MsFlags::empty(), Some("size=1m")).unwrap();
        let path = folder.0.join("perf.data");
        let mut merge = merge(20_000);
        let mut writer = perf_data::Writer::create(&path, merge.rings()).unwrap();
        let (mut taken, mut refused) = (0, 0);
        while let Some(event) = merge.next() {
            match writer.write(&event.event()) {
                Ok(()) => taken += 1,
                Err(error) => {
                    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::Recording, Some(libc::ENOSPC)));
                    assert!(error.hint().is_some_and(|hint| hint.contains("can be read")), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(taken > 3000 && refused > 3000, "{taken} taken, {refused} refused");
        assert_eq!(writer.flush().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(writer.finish().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert!(perf_data::unfinished(&open(&path)).is_none());
        let (read, damaged) = times(&path);
        // At most two buffers are missing.
        assert!(damaged == 0 && read.len() as u64 > taken - 2 * (256 << 10) / 136, "{} of {taken}", read.len());
        assert!(read.iter().copied().eq(1..=read.len() as u64));
        // perf would not see this thread's mounts otherwise.
        let copy = File::with(&fs::read(&path).unwrap());
        if has_perf {
            let shown = perf(&["script", "-i", copy.path(), "-F", "time"]).unwrap();
            assert_eq!(shown.lines().count(), read.len());
        }
        nix::mount::umount(&folder.0).unwrap();
        Some(())
    });
    full.join().unwrap();
}
