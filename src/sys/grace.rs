//! Kernel grace periods from user space. When `Grace::wait` returns, every RCU read-side section that was open at the
//! call has ended, and its stores are visible.

use super::bpf;
use super::machine::OnlineCpus;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A way to wait for a grace period.
pub(crate) enum Grace {
    /// `map` is used while only one CPU is online.
    Membarrier {
        online: OnlineCpus,
        map: Option<ArrayOfMaps>,
    },
    Map(ArrayOfMaps),
}

impl Grace {
    pub(crate) fn membarrier() -> io::Result<Self> {
        let known = membarrier(libc::MEMBARRIER_CMD_QUERY)?;
        if known & libc::c_long::from(libc::MEMBARRIER_CMD_GLOBAL) == 0 {
            // The answer of kernels with nohz_full (kernel/sched/membarrier.c).
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let online = OnlineCpus::open()?;
        let map = ArrayOfMaps::new();
        if map.is_err() && !online.are_several()? {
            return map.map(Self::Map);
        }
        Ok(Self::Membarrier { online, map: map.ok() })
    }

    pub(crate) fn map() -> io::Result<Self> {
        ArrayOfMaps::new().map(Self::Map)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Membarrier { .. } => "membarrier",
            Self::Map(_) => "map",
        }
    }

    /// Waits by the map instead of membarrier, and uses the map from then on if it works.
    pub(crate) fn wait_by_map(&mut self) -> io::Result<()> {
        let Self::Membarrier { map, .. } = self else { return Err(io::ErrorKind::Unsupported.into()) };
        let stand_in = match map {
            Some(map) => map,
            // The reason for an earlier refusal may be gone.
            None => map.insert(ArrayOfMaps::new()?),
        };
        stand_in.wait()?;
        if let Some(map) = map.take() {
            *self = Self::Map(map);
        }
        Ok(())
    }

    pub(crate) fn wait(&mut self) -> io::Result<()> {
        match self {
            Self::Membarrier { online, map } => {
                // With one CPU online the kernel answers at once, although it may have preempted a reader inside its
                // section for this call. CPUs come and go, so this is checked before and after: between two answers of
                // "several", a call that did not wait can only have run in a moment with one CPU.
                let several = || online.are_several().unwrap_or(false);
                if several() {
                    membarrier(libc::MEMBARRIER_CMD_GLOBAL)?;
                    if several() {
                        return Ok(());
                    }
                }
                match map {
                    Some(map) => map.wait(),
                    None => {
                        Err(io::Error::other("one CPU online: membarrier does not wait, and no BPF map can be made"))
                    }
                }
            }
            Self::Map(map) => map.wait(),
        }
    }
}

/// membarrier(2). GLOBAL is `synchronize_rcu()`; the expedited and private commands are interrupts only and prove
/// nothing.
fn membarrier(command: libc::c_int) -> io::Result<libc::c_long> {
    // SAFETY: no pointer is passed.
    super::check(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })
}

/// An array of maps with one element, whose update ends with `synchronize_rcu()`: "Wait for any running non-sleepable
/// BPF programs to complete so that userspace, when we return to it, knows" (`maybe_wait_bpf_programs`,
/// kernel/bpf/syscall.c).
pub(crate) struct ArrayOfMaps {
    outer: OwnedFd,
    inner: OwnedFd,
}

impl ArrayOfMaps {
    fn new() -> io::Result<Self> {
        let inner = bpf::map_create(bpf::BPF_MAP_TYPE_ARRAY, 1, None)?;
        let outer = bpf::map_create(bpf::BPF_MAP_TYPE_ARRAY_OF_MAPS, 1, Some(inner.as_fd()))?;
        Ok(Self { outer, inner })
    }

    fn wait(&self) -> io::Result<()> {
        bpf::map_update_fd(self.outer.as_fd(), 0, self.inner.as_fd())
    }
}
