//! Rare cases that no other test runs: answers that this machine's kernel never gives, made by a supervisor of system
//! calls; the hints of rare errors; `Debug` texts.

use perf_event_open_sys::bindings;
use perfweave::{
    Bytes, Error, Fence, Gap, GracePeriods, Hold, Item, Key, Layout, Merge, Order, Reader, Rings, Wakeup, sim,
};
use perfweave_events::EventOptions;
use perfweave_proofs::expedited;
use perfweave_support::supervised::{Answer, Call, supervised};
use perfweave_support::{cpus, echo, foreign, kernel};
use std::ffi::CStr;
use std::sync::Mutex;
use std::time::Duration;

/// The path that an openat(2) asks for.
fn path(call: &Call) -> String {
    // SAFETY: the thread that makes the call waits for us, and its path ends with a zero.
    unsafe { CStr::from_ptr(call.args[1] as *const _) }.to_string_lossy().into_owned()
}

/// Writes an answer into the buffer of a read(2) or pread64(2).
fn read(call: &Call, text: &str) -> Answer {
    assert!(text.len() as u64 <= call.args[2]);
    // SAFETY: the thread that makes the call waits for us, and its buffer has this much room.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), call.args[1] as *mut u8, text.len()) };
    Answer::Say(text.len() as i64)
}

/// Runs something while a judge answers its system calls. `None` where the kernel refuses that.
fn judged<T: Send>(judge: impl FnMut(&Call) -> Answer, what: impl FnOnce() -> T + Send) -> Option<T> {
    kernel("supervise system calls", supervised(judge, what))
}

/// bpf(2) to make a map.
const MAP_CREATE: u64 = 0;

fn membarrier(call: &Call, command: i32) -> bool {
    call.number == libc::SYS_membarrier && call.args[0] == command as u64
}

fn why(fence: Result<GracePeriods, Error>) -> String {
    fence.expect_err("none of its ways is possible").to_string()
}

/// A kernel with `nohz_full` does not know the command.
#[test]
fn a_membarrier_that_is_none_is_refused_or_done_without() {
    let judge = |call: &Call| match membarrier(call, libc::MEMBARRIER_CMD_QUERY) {
        true => Answer::Say(0),
        false => Answer::Make,
    };
    let named = |fence: Result<GracePeriods, Error>| fence.map(|periods| periods.name());
    let Some((only, any)) = judged(judge, || (why(Fence::Membarrier.open()), named(Fence::Auto.open()))) else {
        return;
    };
    assert!(only.contains("membarrier: Invalid argument"), "{only}");
    assert_eq!(kernel("make a BPF map", any).unwrap_or("map"), "map");
}

/// With one CPU online membarrier(2) proves nothing. Without a map either there is no fence.
#[test]
fn with_one_cpu_online_and_no_map_there_is_no_fence() {
    let judge = |call: &Call| match call.number {
        libc::SYS_pread64 => read(call, "0\n"),
        libc::SYS_bpf if call.args[0] == MAP_CREATE => Answer::Fail(libc::EPERM),
        _ => Answer::Make,
    };
    let Some(said) = judged(judge, || why(Fence::Auto.open())) else { return };
    assert!(said.contains("membarrier: Operation not permitted"), "{said}");
    assert!(said.contains("array of maps: Operation not permitted"), "{said}");
}

/// There were two CPUs when the fence was opened, and one is left. The fence proves nothing and gives an error.
#[test]
fn with_one_cpu_left_and_no_map_a_fence_fails() {
    let mut asked = 0;
    let judge = |call: &Call| match call.number {
        libc::SYS_pread64 => {
            asked += 1;
            read(call, if asked == 1 { "0-1\n" } else { "0\n" })
        }
        libc::SYS_bpf if call.args[0] == MAP_CREATE => Answer::Fail(libc::EPERM),
        _ => Answer::Make,
    };
    let Some(error) = judged(judge, || Fence::Membarrier.open().unwrap().wait().unwrap_err()) else { return };
    assert!(error.to_string().starts_with("one CPU online"), "{error}");
}

/// The list of CPUs is malformed, or cannot be read.
#[test]
fn cpus_that_cannot_be_listed_are_an_error() {
    let Some((events, _)) = echo() else { return };
    for garbage in [true, false] {
        // Whether the list is open and not read yet.
        let asked = Mutex::new(false);
        let judge = |call: &Call| {
            let mut asked = asked.lock().unwrap();
            match call.number {
                libc::SYS_openat if path(call).ends_with("cpu/possible") => match garbage {
                    true => *asked = true,
                    false => return Answer::Fail(libc::EACCES),
                },
                libc::SYS_read if std::mem::take(&mut *asked) => return read(call, "all of them\n"),
                _ => {}
            }
            Answer::Make
        };
        let Some(error) = judged(judge, || {
            // Also for a CPU without a ring.
            let absent = Rings::empty(Default::default()).raw(0).err().unwrap();
            assert!(absent.to_string().starts_with("cannot list CPUs"), "{absent}");
            Rings::options().bpf_output(&events).pages(1).open().unwrap_err()
        }) else {
            return;
        };
        assert!(error.to_string().starts_with("cannot list CPUs"), "{error}");
        assert!(!garbage || error.to_string().contains("all of them"), "{error}");
    }
}

/// The error of opening under a judge.
fn refused(
    options: impl FnOnce() -> perfweave::RingOptions + Send,
    judge: impl FnMut(&Call) -> Answer,
) -> Option<String> {
    judged(judge, || options().pages(1).open().unwrap_err().to_string())
}

/// Refuses maps and events (all events, or only those of other processes) to a thread with this status, at this level
/// of `perf_event_paranoid`.
fn denied<'a>(errno: i32, level: &'a str, status: &'a str, all: bool) -> impl FnMut(&Call) -> Answer + use<'a> {
    // The rest of the file that was opened last, if it is one of these.
    let mut left: Option<&str> = None;
    move |call: &Call| match call.number {
        libc::SYS_openat => {
            let path = path(call);
            let files = [("perf_event_paranoid", level), ("thread-self/status", status)];
            left = files.into_iter().find(|(name, _)| path.ends_with(name)).map(|(_, text)| text);
            Answer::Make
        }
        libc::SYS_read => left.map_or(Answer::Make, |text| {
            let (now, later) = text.split_at(text.len().min(call.args[2] as usize));
            left = Some(later);
            read(call, now)
        }),
        libc::SYS_bpf => Answer::Fail(errno),
        // The second argument is the process, and -1 means all processes.
        libc::SYS_perf_event_open if all || call.args[1] as i32 == -1 => Answer::Fail(errno),
        _ => Answer::Make,
    }
}

/// Hints of errors that need another kernel, other settings or other hardware.
#[test]
fn rare_errors_have_their_hints() {
    let open = |errno| {
        move |call: &Call| match call.number {
            libc::SYS_perf_event_open => Answer::Fail(errno),
            _ => Answer::Make,
        }
    };
    let hardware = || {
        let mut attr = foreign::software(bindings::PERF_COUNT_HW_CPU_CYCLES, 1000);
        attr.type_ = bindings::PERF_TYPE_HARDWARE;
        Rings::options().event(&attr)
    };
    let Some(said) = refused(hardware, open(libc::ENOENT)) else { return };
    assert!(said.contains("often have no hardware counters"), "{said}");

    if std::path::Path::new("/sys/bus/event_source/devices/uprobe/type").exists() {
        let said = refused(|| Rings::options().uprobe("/proc/self/exe", 0), open(libc::EADDRNOTAVAIL)).unwrap();
        assert!(said.contains("several functions"), "{said}");
    }

    // Debian's level, at which CAP_PERFMON is not enough, for a thread with no other capability.
    let perfmon = "CapEff:\t0000004000000000\nSeccomp:\t0\n";
    let said = refused(hardware, denied(libc::EACCES, "3\n", perfmon, true)).unwrap();
    assert!(said.contains("needs CAP_SYS_ADMIN; or kernel.perf_event_paranoid, which is 3, set to 2"), "{said}");
    // Without a filter ENOSYS is the kernel's.
    let said = refused(hardware, denied(libc::ENOSYS, "2\n", "CapEff:\t0\nSeccomp:\t0\n", true)).unwrap();
    assert!(said.contains("without perf events") && !said.contains("seccomp"), "{said}");
    // The needs of a thread without capabilities, also with a filter that lets the call pass.
    for filtered in [0, 2] {
        let status = format!("CapEff:\t0\nSeccomp:\t{filtered}\n");
        let said = refused(hardware, denied(libc::EACCES, "2\n", &status, false)).unwrap();
        assert!(said.contains("CAP_PERFMON") && said.contains("which is 2") && !said.contains("seccomp"), "{said}");
    }
    // In its own user namespace a thread has all capabilities without effect.
    let all = "CapEff:\t000001ffffffffff\nSeccomp:\t2\n";
    let mut judge = denied(libc::EACCES, "2\n", all, false);
    let said = refused(hardware, |call: &Call| match call.number {
        libc::SYS_statx if path(call).ends_with("ns/user") => Answer::Fail(libc::EACCES),
        _ => judge(call),
    });
    let said = said.unwrap();
    assert!(said.contains("CAP_PERFMON in the first user namespace") && said.contains("container"), "{said}");
    // If a thread has all capabilities, something else refuses the call.
    let said = refused(hardware, denied(libc::EACCES, "2\n", all, false)).unwrap();
    assert!(said.contains("security module") && !said.contains("CAP_") && !said.contains("seccomp"), "{said}");

    for (errno, hint) in [(libc::EPERM, "unprivileged_bpf_disabled"), (libc::ENOMEM, "Cannot allocate memory")] {
        let pinned = || Rings::options().bpf_output_pinned("/sys/fs/bpf/none");
        let said = refused(pinned, denied(errno, "2\n", "CapEff:\t0\nSeccomp:\t0\n", true)).unwrap();
        assert!(said.contains(hint), "{said}");
    }

    let Some((events, _)) = echo() else { return };
    let ring = 2 * foreign::page_size() as u64;
    let judge = |call: &Call| match call.number {
        libc::SYS_mmap if call.args[1] == ring => Answer::Fail(libc::ENODEV),
        _ => Answer::Make,
    };
    let said = refused(|| Rings::options().bpf_output(&events), judge).unwrap();
    assert!(said.ends_with("No such device (os error 19)"), "{said}");
}

/// The error for a wake-up that would never come names the request.
#[test]
fn a_wake_up_that_would_never_come_is_named() {
    let options = || Rings::options().tracepoint_id(1).pages(1);
    for (wakeup, asked) in [(Wakeup::Bytes(1 << 20), "1048576 bytes"), (Wakeup::Events(1 << 20), "1048576 events")] {
        let said = options().wakeup(wakeup).open().unwrap_err().to_string();
        assert!(said.contains(&format!("never has {asked} unread")), "{said}");
    }
}

/// Comparisons of bytes, layouts, gaps and anomalies.
#[test]
fn small_things_answer_as_they_say() {
    let (head, tail) = (&[1u8, 2][..], &[3u8][..]);
    assert!(Bytes::new(head, tail) == [1, 2, 3][..] && Bytes::new(head, tail) != [1, 2][..]);
    assert!(Bytes::new(&[], &[]).is_empty() && !Bytes::new(&[], tail).is_empty());
    let read_format = u64::from(bindings::PERF_FORMAT_LOST);
    assert_eq!(Layout::new(u64::from(bindings::PERF_SAMPLE_RAW), true, read_format).read_format(), read_format);

    // Numbers 1 and 3, and then 1 again.
    let kernel = sim::Kernel::new(&[4]);
    let order = Order::new().hold(Hold::None).numbers(Key::Payload(0), None);
    let mut merge = Merge::new(kernel.rings(), order).unwrap();
    for (time, number) in [(1, 1u64), (2, 3), (3, 1)] {
        kernel.emit(4, time, &number.to_ne_bytes());
    }
    merge.refresh(0);
    let (mut gaps, mut breaks) = (Vec::new(), 0);
    while let Some(event) = merge.next() {
        assert_eq!(event.cpu(), Some(4));
        match event.item() {
            Item::Gap(gap) => gaps.push(gap),
            Item::Anomaly(_) => breaks += 1,
            _ => {}
        }
    }
    assert!(matches!(gaps[..], [Gap { cpu: Some(4), first: 2, .. }]), "{gaps:?}");
    assert_eq!(breaks, 1);
}

/// Every `Debug` text names its type, and has a bounded length.
#[test]
fn everything_shows_itself() {
    let shows =
        |name: &str, shown: String| assert!(shown.starts_with(name) && shown.len() < 1 << 16, "{name}: {shown}");
    let kernel = sim::Kernel::new(&[0, 1]);
    kernel.emit(0, 5, b"first");
    kernel.emit(1, 6, b"second");
    shows("Kernel", format!("{kernel:?}"));
    let mut reader = Reader::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
    shows("Reader", format!("{reader:?}"));
    let event = reader.next().unwrap().unwrap();
    shows("Event", format!("{event:?}"));
    let record = format!("{:?}", event.record().unwrap());
    assert!(record.contains("kind: SAMPLE"), "the header's name, and no number: {record}");
    shows("Record", record);
    drop(event);
    shows("Batch", format!("{:?}", reader.batch(Duration::ZERO).unwrap().unwrap()));
    let rings = sim::Kernel::new(&[0]).rings();
    shows("Rings", format!("{rings:?}"));
    shows("Merge", format!("{:?}", Merge::new(rings, Order::new()).unwrap()));
    shows("GracePeriods", format!("{:?}", Fence::by(|| Ok(())).open().unwrap()));

    let backward = sim::Kernel::backward(&[0], 4096, Layout::RAW);
    shows("Recorder", format!("{:?}", backward.recorder().unwrap()));

    let every = Duration::from_millis(1);
    for (fence, shown) in [
        (Fence::Auto, "Auto"),
        (Fence::Membarrier, "Membarrier"),
        (Fence::Map, "Map"),
        (expedited(every), "Proof"),
        (Fence::by(|| Ok(())), "Proof"),
    ] {
        shows(shown, format!("{fence:?}"));
    }
    for (key, shown) in [(Key::Time, "Time"), (Key::Payload(8), "Payload(8)"), (Key::Fn(Box::new(|_| None)), "Fn")] {
        shows(shown, format!("{key:?}"));
    }
    let Some((events, _)) = echo() else { return };
    assert!(cpus::online().len() == Rings::options().bpf_output(&events).pages(1).open().unwrap().cpus().len());
    shows("Rings", format!("{:?}", Rings::options().bpf_output(&events).pages(1).open().unwrap()));
}

/// A reader whose runtime is gone says that it cannot be woken any more.
#[cfg(feature = "tokio")]
#[test]
fn a_runtime_that_is_gone_is_an_error() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (gone, other) = (runtime(), runtime());
    let Some((events, _)) = echo() else { return };
    let mut reader = gone.block_on(async {
        let rings = Rings::options().bpf_output(&events).pages(1).open().unwrap();
        perfweave::AsyncReader::new(rings, Order::new()).unwrap()
    });
    assert!(format!("{reader:?}").starts_with("AsyncReader"));
    drop(gone);
    let error = other.block_on(async { reader.next().await.map(|_| ()).unwrap_err() });
    perfweave_support::assert_error!(error, Degraded, "cannot wait: ", "shutdown");
}
