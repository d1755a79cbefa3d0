//! What still works after a program has opened its rings and dropped its privileges, on live kernel rings. Each test
//! drops the privileges of a whole process, so each runs in its own process. `tests/hotplug` tests a CPU that comes
//! online after that.

use crate::reading;
use perfweave::{Fence, Hold, Item, Order, Pause, Reader, Rings};
use perfweave_events::{EventOptions, Format, WithoutSelf};
use perfweave_proofs::expedited;
use perfweave_support::bpf::{self, Map};
use perfweave_support::{apart, assert_error, echo, kernel, lacks, load, privilege, threads};
use std::io;

const GETPPID: &str = "syscalls:sys_enter_getppid";

/// Makes this process, with all its threads, an unprivileged user for good.
fn drop_privileges() {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: no pointers. libc changes all threads.
    assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0, "{}", io::Error::last_os_error());
}

fn open() -> Option<Rings> {
    kernel("find tracefs", perfweave_events::tracefs())?;
    kernel("trace", Rings::options().tracepoint(GETPPID).bytes(1 << 20).open())
}

/// Calls getppid(2) on a thread of its own. Gives the thread's number.
fn call(times: usize) -> u32 {
    let calling = std::thread::spawn(move || {
        (0..times).for_each(|_| load::getppid());
        threads::own() as u32
    });
    calling.join().unwrap()
}

/// How many records a thread has written so far, and how many the other threads of this process have.
fn records(reader: &mut Reader, thread: u32) -> (usize, usize) {
    let (mut found, mut own) = (0, 0);
    reading::all(reader, |event| {
        let Some(writer) = event.record().and_then(|record| record.payload()?.u32(4)) else { return };
        found += usize::from(writer == thread);
        own += usize::from(writer == threads::own() as u32);
    });
    (found, own)
}

/// No privilege is needed for reading, the default fence, flushes, `without_self`, pauses of the rings and the kernel's
/// counts.
#[test]
fn reading_flushing_pausing_counting_and_leaving_oneself_out_go_on() {
    apart!();
    let Some(rings) = open() else { return };
    let mut reader = Reader::new(rings, Order::new().without_self()).unwrap();
    let handle = reader.handle();
    drop_privileges();
    (0..7).for_each(|_| load::getppid());
    let thread = call(20);
    // Up to the report of a flush, all of it proven.
    assert_eq!(records(&mut reader, thread), (20, 0));
    assert_eq!(reader.status().left_out, 7);
    handle.pause(Pause::Output).unwrap();
    call(30);
    handle.resume().unwrap();
    let mut lost = 0;
    reading::all(&mut reader, |event| {
        if let Item::Lost(loss) = event.item() {
            lost += loss.count;
        }
    });
    assert!(lost >= 30, "{lost}: the kernel counts paused output");
    let account = reader.ledger().unwrap().total();
    // Linux 6.0 counts dropped records, and any process with the event's descriptor can read the count.
    assert!(account.lost >= 30 && account.untraced.is_zero() && account.is_balanced(), "{account}");
    handle.pause(Pause::Slots).unwrap();
    let thread = call(10);
    assert_eq!(records(&mut reader, thread).0, 0, "the events are disabled");
    handle.resume().unwrap();
    let thread = call(10);
    assert_eq!(records(&mut reader, thread).0, 10);
}

/// A reader that is made after dropping knows only those tracepoints whose files in tracefs it can still read.
#[test]
fn a_reader_that_is_made_behind_that_leaves_nothing_out_where_tracefs_is_closed_to_it() {
    apart!();
    let Some(rings) = open() else { return };
    drop_privileges();
    let can_read = Format::of(&rings, 0).is_ok();
    let mut reader = Reader::new(rings, Order::new().without_self()).unwrap();
    (0..7).for_each(|_| load::getppid());
    let own = records(&mut reader, threads::own() as u32).0;
    assert_eq!((own, reader.status().left_out), if can_read { (0, 7) } else { (7, 0) });
}

/// Open fences still work, except expedited ones, which mount a file system each time. Of new fences only membarrier
/// can be opened.
#[test]
fn fences_go_on_but_for_the_expedited() {
    apart!();
    let all = [Fence::Membarrier, Fence::Auto, Fence::Map, expedited(std::time::Duration::from_millis(1))];
    let all = all.map(|fence| (fence.clone(), kernel("open a fence", fence.open())));
    drop_privileges();
    for (fence, periods) in all {
        let Some(mut periods) = periods else { continue };
        let takes_nothing = matches!(fence, Fence::Membarrier | Fence::Auto);
        let waited = periods.wait();
        let is_as_said = match &fence {
            Fence::Proof(..) => waited.is_err(),
            // Before Linux 5.19 bpf(2) needs CAP_BPF if kernel.unprivileged_bpf_disabled says so.
            Fence::Map => {
                waited.is_ok() || waited.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EPERM))
            }
            _ => waited.is_ok(),
        };
        assert!(is_as_said, "{fence:?}: {waited:?}");
        let opened = fence.open();
        assert!(opened.is_ok() || !takes_nothing, "{fence:?}: {opened:?}");
    }
}

/// Slots of maps are emptied and set again by the map's descriptor.
#[test]
fn slots_of_maps_are_paused() {
    apart!();
    let Some((events, echo)) = echo() else { return };
    let rings = Rings::options().bpf_output(&events).open().unwrap();
    let mut reader = Reader::new(rings, Order::new().hold(Hold::None)).unwrap();
    drop_privileges();
    match reader.handle().pause(Pause::Slots) {
        Ok(()) => {}
        // Before Linux 5.19, where kernel.unprivileged_bpf_disabled says so.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            assert_error!(error, Permission, "cannot set slot");
            assert!(error.hint().is_some_and(|hint| hint.contains("CAP_BPF")), "{error}");
            return lacks("slots that are set without CAP_BPF");
        }
        Err(error) => panic!("{error}"),
    }
    assert_eq!(echo.run_with(0, &[1]).unwrap(), -libc::ENOENT);
    reader.handle().resume().unwrap();
    assert_eq!(echo.run_with(0, &[2]).unwrap(), 0);
    assert_eq!(reading::numbers(&mut reader), [2]);
}

/// Opening needs the privileges, and the error names them.
#[test]
fn opening_is_refused() {
    apart!();
    let Some(_) = open() else { return };
    let Some(map) = kernel("make a perf event array", Map::perf_event_array(load::slots())) else { return };
    let paranoid = privilege::perf_event_paranoid();
    drop_privileges();
    let opened = Rings::options().bpf_output(&map).pages(1).open();
    if paranoid < 1 {
        return lacks("a perf_event_paranoid that refuses unprivileged users");
    }
    let said = opened.unwrap_err().to_string();
    assert!(said.contains("CAP_PERFMON") || said.contains("CAP_SYS_ADMIN") || said.contains("CAP_BPF"), "{said}");
    assert!(bpf::echo(&map).is_err(), "and no program is loaded");
}
