//! Hints: what helps against refusals, with the numbers of this machine. Empty if nothing is known to help.

use crate::error::words::bpf_needs;
use crate::sys::machine;
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
