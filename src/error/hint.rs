//! Hints: what helps against refusals, with the numbers of this machine. Empty if nothing is known to help.

use crate::error::words::{bpf_needs, short};
use crate::instrument::step;
use crate::sys::machine;
use crate::sys::status::Status;
use crate::sys::tracefs::Tracefs;
use nix::sys::resource::{Resource, getrlimit};
use std::io;

/// What helps when a slot of a map cannot be set.
pub(crate) fn slot(errno: &io::Error) -> String {
    match errno.raw_os_error() {
        Some(libc::EPERM) => bpf_needs("needs CAP_BPF, and a map that is not read-only"),
        Some(libc::EACCES) => "needs a map that is not read-only".into(),
        _ => String::new(),
    }
}

/// What helps when a tracepoint cannot be looked up in tracefs.
pub(crate) fn tracefs(errno: &io::Error) -> String {
    match errno.kind() {
        io::ErrorKind::NotFound => "mount -t tracefs nodev /sys/kernel/tracing".into(),
        io::ErrorKind::PermissionDenied => {
            let group = Status::read().group;
            let mount = match Tracefs::mounted_at() {
                Some(place) => format!("mount -o remount,gid={group},mode=750 {}", place.display()),
                None => format!("mount -t tracefs -o gid={group},mode=750 nodev /sys/kernel/tracing"),
            };
            format!(
                "whether there is one cannot be told: unless it is mounted otherwise, only root can read tracefs. As \
                 root, `{mount}` lets the group of this process read it. A tracepoint's number needs no file"
            )
        }
        _ => String::new(),
    }
}

/// What helps if the process may not even ask for a map's type. Before Linux 5.19 the setting applies to all of bpf(2).
pub(crate) fn array(errno: &io::Error) -> String {
    match errno.raw_os_error() {
        Some(libc::EPERM) => bpf_needs("needs CAP_BPF where kernel.unprivileged_bpf_disabled is set"),
        _ => String::new(),
    }
}

/// What helps when a pinned map cannot be opened.
pub(crate) fn pinned(errno: &io::Error) -> String {
    match errno.raw_os_error() {
        Some(libc::ENOENT) => "maps are pinned in a BPF file system: mount -t bpf bpf /sys/fs/bpf".into(),
        Some(libc::EACCES) => {
            "it must be a file of a BPF file system, readable and writable, in directories that are searchable".into()
        }
        Some(libc::EPERM) => bpf_needs("needs CAP_BPF where kernel.unprivileged_bpf_disabled is set"),
        _ => String::new(),
    }
}

/// A setting of the kernel in words.
pub(crate) fn setting(name: &str) -> String {
    machine::setting(name).map_or("unknown".into(), |value| value.to_string())
}

/// The soft limit of a resource, or 0.
pub(crate) fn limit(resource: Resource) -> u64 {
    getrlimit(resource).map_or(0, |(soft, _)| soft)
}

/// How many letters one hint compares at most: 10,000 names of 40 letters. Names from elsewhere may have any length and
/// any number.
const MOST_STEPS: u64 = 1 << 24;

/// The one of these names that is nearest to a name that does not exist, if any is near. Names are not compared once
/// [`MOST_STEPS`] are used up.
pub(crate) fn nearest(name: &str, names: impl Iterator<Item = String>) -> Option<String> {
    // The first distance that is no longer near.
    let mut bound = 3 + name.len() / 4;
    let (mut steps, mut found) = (MOST_STEPS, None);
    for other in names {
        if let Some(distance) = distance(name.as_bytes(), other.as_bytes(), bound, &mut steps) {
            bound = distance + 1;
            // Of two names that are equally near, the first in the alphabet.
            found = found.into_iter().chain([(distance, other)]).min();
        }
    }
    found.map(|(_, other)| format!("did you mean {}?", short(&other)))
}

/// How many bytes must be added, removed or changed to turn one into the other (Levenshtein's distance). `None` if that
/// is `bound` or more, or takes more than `steps`, which this counts down.
fn distance(one: &[u8], other: &[u8], bound: usize, steps: &mut u64) -> Option<usize> {
    if one.len().abs_diff(other.len()) >= bound {
        return None;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, byte) in one.iter().enumerate() {
        *steps = steps.checked_sub(other.len() as u64)?;
        let mut before = std::mem::replace(&mut row[0], at + 1);
        for (column, counterpart) in other.iter().enumerate() {
            step();
            let changed = before + usize::from(byte != counterpart);
            before = row[column + 1];
            row[column + 1] = changed.min(before + 1).min(row[column] + 1);
        }
        // The distance grows from row to row.
        if row.iter().all(|distance| *distance >= bound) {
            return None;
        }
    }
    Some(row[other.len()]).filter(|distance| *distance < bound)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::instrument::count;

    #[test]
    fn the_nearest_name_is_hinted_at() {
        let far = |name: &str, bound| distance(name.as_bytes(), b"sitting", bound, &mut 100);
        assert_eq!([("kitten", 4), ("", 8)].map(|(name, bound)| far(name, bound)), [Some(3), Some(7)]);
        assert_eq!([("kitten", 3), ("", 7)].map(|(name, bound)| far(name, bound)), [None, None]);
        let names = || ["sched_switch", "sched_waking", "sched_wakeup"].map(str::to_owned).into_iter();
        assert!(nearest("sched_swtich", names()).unwrap().to_string().contains("sched_switch"));
        assert!(nearest("tcp_probe", names()).is_none());
        assert!(nearest("x", std::iter::empty()).is_none());
    }

    /// A name from elsewhere may have any length, and there may be any number of names beside it.
    #[test]
    fn a_hint_costs_no_more_than_it_is_worth() {
        let long = "x".repeat(64 << 10);
        let near = format!("{}y", &long[1..]);
        let (steps, hint) = count(|| nearest(&long, std::iter::once(near)));
        assert!(steps <= MOST_STEPS, "{steps}");
        assert!(hint.is_none(), "so long a name says nothing in a message");
        // Each is as long as the name, and none is near.
        let name = "y".repeat(100);
        let others = (0..100_000u32).map(|number| format!("{number:0100}"));
        let (steps, hint) = count(|| nearest(&name, others));
        assert!(steps <= MOST_STEPS, "{steps}");
        assert!(hint.is_none());
        // What is near is found among as many names as a large program has.
        let functions = |number: u32| format!("_ZN4core3fmt9Formatter{number:08}17h0123456789abcdefE");
        let asked = functions(77_777).replace("Formatter", "Fromatter");
        let (steps, hint) = count(|| nearest(&asked, (0..100_000).map(functions)));
        assert!(steps <= MOST_STEPS, "{steps}");
        assert!(hint.is_some());
    }
}
