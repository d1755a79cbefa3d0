//! The machine's clocks, as the kernel stamps records with them.

use super::fork::Owner;
use nix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// What a time namespace adds to the clocks that its processes read, in nanoseconds (time_namespaces(7)). The kernel
/// adds nothing to the times of records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Shift {
    /// For `CLOCK_MONOTONIC` and `CLOCK_MONOTONIC_RAW`.
    monotonic: i64,
    boottime: i64,
}

/// A reading of a clock in nanoseconds, without what a time namespace adds. `None` if the kernel does not have the
/// clock, or if it is not known what the namespace adds.
pub(crate) fn now(id: ClockId) -> Option<u64> {
    let time = clock_gettime(id).ok()?;
    let reading = time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64;
    let added = match id {
        ClockId::CLOCK_MONOTONIC | ClockId::CLOCK_MONOTONIC_RAW => shift()?.monotonic,
        ClockId::CLOCK_BOOTTIME => shift()?.boottime,
        _ => 0,
    };
    Some(reading.wrapping_sub(added.cast_unsigned()))
}

/// What this process's time namespace adds. Cached: only its one thread can move a process to another namespace
/// (setns(2)). A child of fork(2) may be in another one than its parent.
fn shift() -> Option<Shift> {
    thread_local! {
        static SHIFT: Cell<Option<(Owner, Option<Shift>)>> = const { Cell::new(None) };
    }
    SHIFT.with(|kept| match kept.get() {
        Some((owner, shift)) if owner.is_here() => shift,
        _ => {
            let shift = Shift::read();
            kept.set(Some((Owner::new(), shift)));
            shift
        }
    })
}

impl Shift {
    fn read() -> Option<Self> {
        /// `PROC_TIME_INIT_INO` of `include/linux/proc_ns.h`, unchanged since Linux 5.6.
        const FIRST_TIME_NAMESPACE: u64 = 0xEFFF_FFFA;
        let space = |path| fs::metadata(path).map(|space| space.ino());
        let own = match space("/proc/thread-self/ns/time") {
            Ok(own) => own,
            // A kernel without time namespaces; or no /proc, and then nothing tells that there is one.
            Err(errno) if errno.kind() == io::ErrorKind::NotFound => return Some(Self::default()),
            Err(_) => return None,
        };
        if own == FIRST_TIME_NAMESPACE {
            return Some(Self::default());
        }
        // The file has what is added for children, which is the same unless this process has called unshare(2).
        let is_ours = space("/proc/self/ns/time_for_children").is_ok_and(|children| children == own);
        is_ours.then(|| fs::read_to_string("/proc/self/timens_offsets").ok())?.and_then(|text| Self::parse(&text))
    }

    /// Reads lines such as `monotonic   -3000   0`: seconds and nanoseconds.
    fn parse(text: &str) -> Option<Self> {
        let added = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let mut numbers = line.split_whitespace().map(|number| number.parse::<i64>().ok());
            let (seconds, nanoseconds) = (numbers.next()??, numbers.next()??);
            seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
        };
        Some(Self { monotonic: added("monotonic")?, boottime: added("boottime")? })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Shift;

    #[test]
    fn what_a_time_namespace_adds_is_read_as_the_kernel_writes_it() {
        let of = |text| Shift::parse(text).map(|shift| [shift.monotonic, shift.boottime]);
        assert_eq!(of("monotonic           0         0\nboottime            0         0\n"), Some([0; 2]));
        let text = "monotonic       -3000 250000000\nboottime       100000         7\n";
        assert_eq!(of(text), Some([-2_999_750_000_000, 100_000_000_000_007]));
        for wrong in ["", "monotonic 1 2\n", "monotonic 1\nboottime 1 2\n", "monotonic 9999999999999 0\nboottime 0 0\n"]
        {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
