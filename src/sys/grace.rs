//! Kernel grace periods from user space: when `Grace::wait` returns, every RCU read-side section that was open when it
//! was called has ended, and what it stored is visible.

use super::{bpf, machine};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A way to wait for a grace period.
pub(crate) enum Grace {
    /// `map` stands in while only one CPU is online.
    Membarrier {
        map: Option<ArrayOfMaps>,
    },
    Map(ArrayOfMaps),
    Expedited(Namespace),
}

impl Grace {
    pub(crate) fn membarrier() -> io::Result<Self> {
        let known = membarrier(libc::MEMBARRIER_CMD_QUERY)?;
        if known & libc::c_long::from(libc::MEMBARRIER_CMD_GLOBAL) == 0 {
            // What kernels with nohz_full answer (kernel/sched/membarrier.c).
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let map = ArrayOfMaps::new();
        if map.is_err() && !several_cpus()? {
            return map.map(Self::Map);
        }
        Ok(Self::Membarrier { map: map.ok() })
    }

    pub(crate) fn map() -> io::Result<Self> {
        ArrayOfMaps::new().map(Self::Map)
    }

    /// Moves the calling thread, and no other, to a mount namespace of its own.
    pub(crate) fn expedited() -> io::Result<Self> {
        Namespace::enter().map(Self::Expedited)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Membarrier { .. } => "membarrier",
            Self::Map(_) => "map",
            Self::Expedited(_) => "expedited",
        }
    }

    pub(crate) fn wait(&mut self) -> io::Result<()> {
        match self {
            Self::Membarrier { map } => {
                // With one CPU online the kernel answers at once, although a reader that it preempted for us may still
                // be inside its section. CPUs that come and go are why this is asked on both sides: the call itself
                // cannot have seen one CPU if there were several before and after, since bringing one back takes
                // longer than an answer at once.
                let before = several_cpus()?;
                if before {
                    membarrier(libc::MEMBARRIER_CMD_GLOBAL)?;
                }
                if before && several_cpus()? {
                    return Ok(());
                }
                match map {
                    Some(map) => map.wait(),
                    None => {
                        Err(io::Error::other("one CPU online: membarrier does not wait, and no BPF map can be made"))
                    }
                }
            }
            Self::Map(map) => map.wait(),
            Self::Expedited(namespace) => namespace.wait(),
        }
    }
}

/// membarrier(2). GLOBAL is `synchronize_rcu()`; the expedited and private commands are interrupts only and prove nothing.
fn membarrier(command: libc::c_int) -> io::Result<libc::c_long> {
    // SAFETY: no pointer is passed.
    super::check(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })
}

/// Whether `num_online_cpus() > 1`.
fn several_cpus() -> io::Result<bool> {
    Ok(machine::online_cpus()?.len() > 1)
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

/// A mount namespace that only the calling thread is in.
pub(crate) struct Namespace {
    /// Any directory: what is mounted over it, nobody else sees.
    directory: PathBuf,
}

impl Namespace {
    fn enter() -> io::Result<Self> {
        let directory = ["/tmp", "/run", "/proc", "/sys"].into_iter().map(Path::new).find(|path| path.is_dir());
        let directory = directory.ok_or(io::ErrorKind::NotFound)?.to_path_buf();
        unshare(CloneFlags::CLONE_NEWNS)?;
        // Nothing mounted here may spread to the namespace we came from.
        mount(None::<&Path>, "/", None::<&Path>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&Path>)?;
        let namespace = Self { directory };
        namespace.wait()?;
        Ok(namespace)
    }

    /// `namespace_unlock()` calls `synchronize_rcu_expedited()` whenever it has unmounted something (fs/namespace.c).
    fn wait(&self) -> io::Result<()> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("perfweave"), &self.directory, Some("ramfs"), flags, None::<&Path>)?;
        umount2(&self.directory, MntFlags::MNT_DETACH)?;
        Ok(())
    }
}
