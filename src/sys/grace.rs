//! Kernel grace periods from user space. When `Grace::wait` returns, every RCU read-side section that was open at the
//! call has ended, and its stores are visible.

use super::bpf;
use super::machine::{Mount, Mounts, OnlineCpus};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{chdir, pivot_root};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// A way to wait for a grace period.
pub(crate) enum Grace {
    /// `map` is used while only one CPU is online.
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

    /// Moves only the calling thread to a new mount namespace. Only that thread can wait.
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
            Self::Expedited(namespace) => namespace.wait(),
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

/// A mount namespace that only the calling thread is in, with nothing in it but a ramfs of its own, which is its
/// working directory. Not `Send`: on another thread it would unmount in that one's namespace.
pub(crate) struct Namespace(PhantomData<*const ()>);

/// Where the ramfs is mounted: for a moment, or, if the root cannot be left, for good. No other thread sees it.
const STEPS: [&str; 4] = ["/tmp", "/run", "/proc", "/sys"];

const NONE: Option<&Path> = None;

/// Names the step that failed.
fn at<T>(step: &str, answer: nix::Result<T>) -> io::Result<T> {
    answer.map_err(|errno| {
        let errno = io::Error::from(errno);
        io::Error::new(errno.kind(), format!("{step}: {errno}"))
    })
}

impl Namespace {
    fn enter() -> io::Result<Self> {
        at("unshare", unshare(CloneFlags::CLONE_NEWNS))?;
        // Enters the root of the namespace, out of a chroot(2): there could be mounts outside of it too (mntns_install,
        // fs/namespace.c). Without /proc this is not possible.
        if let Ok(own) = File::open("/proc/thread-self/ns/mnt") {
            let _ = setns(own, CloneFlags::CLONE_NEWNS);
        }
        // Mounts here must not spread to the original namespace.
        match mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE) {
            Err(Errno::EINVAL) => at("the root is no mount point, as in a chroot without /proc", Err(Errno::EINVAL))?,
            made => at("make mounts private", made)?,
        }
        // Mounts copied from the original namespace must not stay here: otherwise they could never be unmounted there.
        Self::enter_ramfs()?;
        match pivot_root(".", "old") {
            Ok(()) => at("umount the old root", umount2("old", MntFlags::MNT_DETACH))?,
            // The root is the initial ramfs, which cannot be left; or a filter refuses.
            Err(_) => {
                Self::unmount_all()?;
                Self::enter_ramfs()?;
            }
        }
        let namespace = Self(PhantomData);
        namespace.wait()?;
        Ok(namespace)
    }

    /// Mounts a ramfs with a directory to mount on, and makes it the working directory.
    fn enter_ramfs() -> io::Result<()> {
        let step = step()?;
        at("mount a ramfs", mount(Some("perfweave"), step, Some("ramfs"), MsFlags::MS_NOSUID, NONE))?;
        at("enter a ramfs", chdir(step))?;
        std::fs::create_dir("old")
    }

    /// Unmounts everything except the root and locked mounts, which cannot be unmounted in the original namespace
    /// either.
    fn unmount_all() -> io::Result<()> {
        let mounts = Mounts::open().or_else(|_| {
            let step = step()?;
            at("mount proc", mount(Some("perfweave"), step, Some("proc"), MsFlags::MS_NOSUID, NONE))?;
            Mounts::open_in(step)
        })?;
        // Repeats until nothing more can be unmounted, because one mount can hide another.
        let mut any = true;
        while any {
            any = false;
            for Mount { path, .. } in mounts.read()? {
                let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
                any |= path != Path::new("/") && umount2(&path, flags).is_ok();
            }
        }
        Ok(())
    }

    /// `namespace_unlock()` calls `synchronize_rcu_expedited()` whenever it has unmounted something (fs/namespace.c).
    fn wait(&self) -> io::Result<()> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        at("mount", mount(Some("perfweave"), "old", Some("ramfs"), flags, NONE))?;
        at("umount", umount2("old", MntFlags::MNT_DETACH))
    }
}

/// A directory to mount on.
fn step() -> io::Result<&'static Path> {
    let step = STEPS.into_iter().map(Path::new).find(|path| path.is_dir());
    step.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("none of {STEPS:?} is a directory to mount on")))
}
