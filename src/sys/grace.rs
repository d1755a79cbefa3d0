//! Kernel grace periods from user space: when `Grace::wait` returns, every RCU read-side section that was open when it
//! was called has ended, and what it stored is visible.

use super::bpf;
use super::machine::OnlineCpus;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, pivot_root};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// A way to wait for a grace period.
pub(crate) enum Grace {
    /// `map` stands in while only one CPU is online.
    Membarrier {
        online: OnlineCpus,
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

    /// Waits by the map instead of membarrier, and becomes that for good if it works.
    pub(crate) fn wait_by_map(&mut self) -> io::Result<()> {
        let Self::Membarrier { map, .. } = self else { return Err(io::ErrorKind::Unsupported.into()) };
        let stand_in = match map {
            Some(map) => map,
            // What was refused before may be had now.
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
                // With one CPU online the kernel answers at once, although a reader that it preempted for us may still
                // be inside its section. CPUs that come and go are why this is asked on both sides: between two
                // answers of "several", a call that did not wait must have fallen into the moment of one.
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
            Self::Expedited(namespace) => namespace.wait(),
        }
    }
}

/// membarrier(2). GLOBAL is `synchronize_rcu()`; the expedited and private commands are interrupts only and prove nothing.
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

/// A mount namespace that only the calling thread is in, with nothing in it but a ramfs of its own.
pub(crate) struct Namespace(());

/// Where the ramfs is mounted for a moment. What is mounted there, nobody else sees.
const STEPS: [&str; 4] = ["/tmp", "/run", "/proc", "/sys"];

impl Namespace {
    fn enter() -> io::Result<Self> {
        let step = STEPS.into_iter().map(Path::new).find(|path| path.is_dir()).ok_or(io::ErrorKind::NotFound)?;
        let none = None::<&Path>;
        unshare(CloneFlags::CLONE_NEWNS)?;
        // Nothing mounted here may spread to the namespace we came from.
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        // And nothing of it may stay mounted here: it could not be unmounted there for good.
        mount(Some("perfweave"), step, Some("ramfs"), MsFlags::MS_NOSUID, none)?;
        let old = step.join("old");
        std::fs::create_dir(&old)?;
        pivot_root(step, &old)?;
        chdir("/")?;
        umount2("/old", MntFlags::MNT_DETACH)?;
        let namespace = Self(());
        namespace.wait()?;
        Ok(namespace)
    }

    /// `namespace_unlock()` calls `synchronize_rcu_expedited()` whenever it has unmounted something (fs/namespace.c).
    fn wait(&self) -> io::Result<()> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("perfweave"), "/old", Some("ramfs"), flags, None::<&Path>)?;
        umount2("/old", MntFlags::MNT_DETACH)?;
        Ok(())
    }
}
