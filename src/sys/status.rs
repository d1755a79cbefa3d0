//! The privileges of the calling thread, from `/proc`.

use std::fs;
use std::os::unix::fs::MetadataExt;

// include/uapi/linux/capability.h
pub(crate) const CAP_SYS_ADMIN: u32 = 21;
pub(crate) const CAP_PERFMON: u32 = 38;
pub(crate) const CAP_BPF: u32 = 39;

/// The privileges of a thread (proc_pid_status(5)).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Status {
    /// `CapEff`.
    capabilities: u64,
    /// Whether they are valid only in its own user namespace, and not for the machine.
    is_confined: bool,
    /// Whether seccomp filters its system calls.
    pub(crate) is_filtered: bool,
}

impl Status {
    /// The status of the calling thread. Without `/proc`: no privileges and no filter.
    pub(crate) fn read() -> Self {
        let text = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map_or("", str::trim);
        let capabilities = u64::from_str_radix(field("CapEff:"), 16).unwrap_or(0);
        Self { capabilities, is_confined: !is_in_first_user_namespace(), is_filtered: field("Seccomp:") == "2" }
    }

    /// Whether the thread has one of these capabilities. The kernel asks for them in the first user namespace
    /// (`perfmon_capable`, include/linux/capability.h).
    pub(crate) fn has_any(self, capabilities: &[u32]) -> bool {
        !self.is_confined && self.seems_to_have(capabilities)
    }

    /// Whether the thread has one of these only in its own user namespace, where they have no effect.
    pub(crate) fn has_in_vain(self, capabilities: &[u32]) -> bool {
        self.is_confined && self.seems_to_have(capabilities)
    }

    fn seems_to_have(self, capabilities: &[u32]) -> bool {
        capabilities.iter().any(|capability| self.capabilities >> capability & 1 == 1)
    }
}

/// `USER_NS_INIT_INO` of `include/uapi/linux/nsfs.h`; the same under another name ever since Linux 3.8.
const FIRST_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

fn is_in_first_user_namespace() -> bool {
    fs::metadata("/proc/thread-self/ns/user").is_ok_and(|space| space.ino() == FIRST_USER_NAMESPACE)
}
