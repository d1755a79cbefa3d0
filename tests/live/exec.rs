//! Executed programs inherit no file descriptor of the crate. This test runs in its own process, because it lists all
//! its file descriptors.

use perfweave::{Fence, Hold, Order, Reader, Recorder, Rings, sim};
use perfweave_events::EventOptions;
use perfweave_proofs::expedited;
use perfweave_support::{apart, echo};
use std::collections::BTreeSet;
use std::time::Duration;

/// How many file descriptors this process has.
fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The file descriptors of this process that survive execve(2).
fn passed_on() -> BTreeSet<String> {
    let fds = std::fs::read_dir("/proc/self/fdinfo").unwrap().map(|fd| fd.unwrap().file_name().into_string().unwrap());
    let flags = |fd: &String| {
        // The descriptor of the list itself is closed by now.
        let said = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        let flags = said.lines().find_map(|line| line.strip_prefix("flags:"))?;
        u32::from_str_radix(flags.trim(), 8).ok()
    };
    fds.collect::<Vec<_>>().into_iter().filter(|fd| flags(fd).is_some_and(|flags| flags & 0o2_000_000 == 0)).collect()
}

/// execve(2) closes every descriptor that the crate opens.
#[test]
fn nothing_passes_to_other_programs() {
    apart!();
    let Some((map, _)) = echo() else { return };
    let options = || Rings::options().bpf_output(&map).pages(1);
    let before = passed_on();
    assert!(before.len() >= 2, "those that the test was started with: {before:?}");
    let few = open();
    for fence in [Fence::Auto, Fence::Membarrier, Fence::Map, expedited(Duration::from_millis(1))] {
        // If the kernel refuses a fence there is nothing to check.
        let order = Order::new().hold(Hold::Fence(fence.clone()));
        let Ok(mut reader) = Reader::new(options().open().unwrap(), order) else { continue };
        reader.next_timeout(Duration::from_millis(1)).unwrap();
        assert!(open() > few);
        assert_eq!(passed_on(), before, "{fence:?}");
    }
    let mut reader = Reader::new(sim::Kernel::new(&[0]).rings(), Order::new()).unwrap();
    reader.next_timeout(Duration::from_millis(1)).unwrap();
    assert_eq!(passed_on(), before, "simulated");
    let recorder = Recorder::open(options(), &Fence::Auto).unwrap();
    assert_eq!(passed_on(), before, "a recorder");
    drop(recorder);
    let tracepoint = Rings::options().tracepoint("sched:sched_switch").pages(1).open();
    assert!(tracepoint.is_ok(), "{tracepoint:?}");
    assert_eq!(passed_on(), before, "tracepoints");
}
