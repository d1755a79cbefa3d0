//! A file that could not be written, or that belongs to another process: every later call gives an error.

use crate::perf::{File, open};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use perfweave::Error;
use perfweave::{ErrorKind, Hold, Merge, Order, sim};
use perfweave_perf_data as perf_data;
use std::os::unix::process::ExitStatusExt;

/// A merge that can give this many records.
fn merge(records: u64) -> Merge {
    let machine = sim::Kernel::with(&[0], 1 << 20, perfweave::Layout::new(4 | 1024, true, 0));
    (0..records).for_each(|time| assert!(machine.emit(0, time + 1, &[7; 100])));
    let mut merge = Merge::new(machine.rings(), Order::new().hold(Hold::None)).unwrap();
    merge.refresh(0);
    merge
}

fn errno(wrote: Result<impl std::fmt::Debug, Error>) -> Option<i32> {
    match wrote {
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::Recording => error.raw_os_error(),
        Err(other) => panic!("{other:?}"),
    }
}

/// Whether this is the separate process of a test, which has a limit on the size of files. Elsewhere runs the test in
/// such a process.
fn is_limited(test: &str) -> bool {
    let is = std::env::var_os("PERFWEAVE_NO_ROOM").is_some();
    if is {
        // SAFETY: ignoring a signal runs no code.
        unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.unwrap();
    } else {
        let mut limited = std::process::Command::new(std::env::current_exe().unwrap());
        let said = limited.args(["--exact", test]).env("PERFWEAVE_NO_ROOM", "1").output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
    }
    is
}

/// There is no space for the file, then there is some again.
#[test]
fn after_an_error_every_call_gives_that_error() {
    if !is_limited("failing::after_an_error_every_call_gives_that_error") {
        return;
    }
    let (before, most) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, 300 << 10, most).unwrap();
    let mut merge = merge(6000);
    let file = File::new();
    let mut writer = perf_data::Writer::create(&file.0, merge.rings()).unwrap();
    let (mut whole, mut refused) = (0, 0);
    while let Some(event) = merge.next() {
        match errno(writer.write(&event.event())) {
            None => {
                assert_eq!(refused, 0, "it went on behind an error");
                whole += 1;
            }
            Some(errno) => {
                assert_eq!(errno, libc::EFBIG);
                refused += 1;
            }
        }
        if refused == 100 {
            // There is room again.
            setrlimit(Resource::RLIMIT_FSIZE, before, most).unwrap();
        }
    }
    assert!(whole > 2000 && refused > 2000, "{whole} written, {refused} refused");
    assert_eq!(errno(writer.finish()), Some(libc::EFBIG), "what failed first");
    // What was written until then can be read.
    let rings = open(&file.0);
    assert!(perf_data::unfinished(&rings).is_none());
    let mut read = 0;
    crate::perf::drain(&mut perfweave::Reader::new(rings, Order::new()).unwrap(), |event| {
        read += 1;
        assert_eq!(event.key(), Some(read));
    });
    assert!(read > 1000 && read <= whole, "{read} of {whole}");
}

/// Killed while a complete file is completed once more, with nothing written in between.
#[test]
fn a_complete_file_that_is_completed_again_is_never_refused() {
    const PATH: &str = "PERFWEAVE_COMPLETED_AGAIN";
    let write = |path: &std::path::Path| {
        let mut merge = merge(20);
        let mut writer = perf_data::Writer::create_unnamed(path, merge.rings()).unwrap();
        while let Some(event) = merge.next() {
            writer.write(&event.event()).unwrap();
        }
        writer.flush().unwrap();
        writer
    };
    if let Some(path) = std::env::var_os(PATH) {
        let mut writer = write(path.as_ref());
        // The last byte is refused, and the signal kills.
        let (_, most) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, std::fs::metadata(path).unwrap().len() - 1, most).unwrap();
        let _ = writer.flush();
        unreachable!("it is killed");
    }
    let file = File::new();
    let mut killed = std::process::Command::new(std::env::current_exe().unwrap());
    let test = "failing::a_complete_file_that_is_completed_again_is_never_refused";
    let ended = killed.args(["--exact", test]).env(PATH, &file.0).output().unwrap();
    assert_eq!(ended.status.signal(), Some(libc::SIGXFSZ), "{ended:?}");
    let rings = open(&file.0);
    assert!(perf_data::unfinished(&rings).is_some());
    let mut read = 0;
    crate::perf::drain(&mut perfweave::Reader::new(rings, Order::new()).unwrap(), |event| {
        read += u64::from(event.record().is_some());
    });
    assert_eq!(read, 20);
}

/// What something gives in a forked child: the number of the assertion that failed, or 0.
fn in_child(run: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child uses nothing but what its one thread made, the allocator, and system calls.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let code = run();
            // SAFETY: leaves without running what the parent registered.
            unsafe { libc::_exit(code.into()) }
        }
        ForkResult::Parent { child } => match waitpid(child, None).unwrap() {
            WaitStatus::Exited(_, code) => code,
            other => panic!("{other:?}"),
        },
    }
}

/// A child has the writer and its buffer. The file is the parent's.
#[test]
fn a_forked_child_writes_nothing_into_the_file() {
    for finishes in [false, true] {
        let mut merge = merge(20);
        let file = File::new();
        let mut writer = Some(perf_data::Writer::create(&file.0, merge.rings()).unwrap());
        // Some bytes are in the buffer.
        for _ in 0..10 {
            writer.as_mut().unwrap().write(&merge.next().unwrap().event()).unwrap();
        }
        let before = std::fs::read(&file.0).unwrap();
        let code = in_child(|| {
            let mut writer = writer.take().unwrap();
            // An event of the child's own: the parent's rings are not here.
            let machine = sim::Kernel::new(&[0]);
            machine.emit(0, 1, b"child");
            let mut own = Merge::new(machine.rings(), Order::new().hold(Hold::None)).unwrap();
            own.refresh(0);
            // As many bytes as go into the file at once: the child is told when they are due.
            let event = own.next().unwrap();
            let mut wrote = (0..20_000).map(|_| writer.write(&event.event()));
            if !matches!(wrote.find(Result::is_err), Some(Err(ref error)) if error.kind() == ErrorKind::Forked) {
                return 1;
            }
            if finishes && !matches!(writer.finish(), Err(ref error) if error.kind() == ErrorKind::Forked) {
                return 2;
            }
            0
        });
        assert_eq!(code, 0);
        assert!(before == std::fs::read(&file.0).unwrap(), "the child wrote into it");
        let mut writer = writer.unwrap();
        while let Some(event) = merge.next() {
            writer.write(&event.event()).unwrap();
        }
        assert_eq!(writer.finish().unwrap().records, 20);
        let mut read = perfweave::Reader::new(open(&file.0), Order::new()).unwrap();
        let mut times = Vec::new();
        crate::perf::drain(&mut read, |event| times.extend(event.record().and_then(|record| record.time())));
        assert!(times.into_iter().eq(1..=20));
    }
}

/// A file that never has space is an error at once.
#[test]
fn a_file_without_room_is_an_error_at_the_begin() {
    if !is_limited("failing::a_file_without_room_is_an_error_at_the_begin") {
        return;
    }
    setrlimit(Resource::RLIMIT_FSIZE, 0, getrlimit(Resource::RLIMIT_FSIZE).unwrap().1).unwrap();
    let file = File::new();
    assert_eq!(errno(perf_data::Writer::create(&file.0, merge(5).rings())), Some(libc::EFBIG));
}
