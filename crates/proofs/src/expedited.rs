//! Expedited grace periods of the kernel, by unmounting a file system.

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{chdir, pivot_root};
use perfweave::{Error, ErrorKind, Fence};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Unmounts a ramfs in a separate mount namespace, which runs `synchronize_rcu_expedited()` (`namespace_unlock`,
/// `fs/namespace.c`). `every` is the shortest time between the starts of two fences: 1 ms is a good choice. Takes a
/// fraction of a scheduler tick, unless the machine's administrator forbids expedited grace periods
/// (`/sys/kernel/rcu_normal`), as on a kernel with `PREEMPT_RT`: then it takes as long as the others. Needs
/// `CAP_SYS_ADMIN`.
///
/// It is used only if you ask for it: it interrupts every CPU, shows up in audit logs as mounts, and depends on how the
/// kernel is built today. The namespace belongs to the fence's own thread. No other thread changes its namespace, and
/// other mounts can still be unmounted.
pub fn expedited(every: Duration) -> Fence {
    Fence::custom("expedited", every, || {
        let namespace = Namespace::enter().map_err(|errno| {
            let message = format!("no fence: expedited (needs CAP_SYS_ADMIN): {errno}");
            let cure = "the default fence takes no privilege; a rule that proves nothing needs no fence";
            let filtered = ". This process has a seccomp filter, as in a container, which may refuse the calls";
            let cure = format!("{cure}{}", if is_filtered() { filtered } else { "" });
            Error::new(ErrorKind::Unsupported, message).hinting(cure)
        })?;
        Ok(move || namespace.wait())
    })
}

/// Whether this thread has a seccomp filter (proc_pid_status(5)).
fn is_filtered() -> bool {
    std::fs::read_to_string("/proc/thread-self/status").is_ok_and(|status| status.contains("\nSeccomp:\t2"))
}

/// A mount namespace that only the calling thread is in, with nothing in it but a ramfs of its own, which is its
/// working directory. Not `Send`: on another thread it would unmount in that one's namespace.
struct Namespace(PhantomData<*const ()>);

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
            for path in mounts.read()? {
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

/// The list of mounts in the calling thread's mount namespace (proc_pid_mounts(5)), kept open, so that it can be read
/// even after `/proc` is unmounted.
struct Mounts(File);

impl Mounts {
    fn open() -> io::Result<Self> {
        Self::open_in(Path::new("/proc"))
    }

    /// The same where proc is mounted elsewhere.
    fn open_in(proc: &Path) -> io::Result<Self> {
        File::open(proc.join("thread-self/mounts")).map(Self)
    }

    /// Where something is mounted, in the order of mounting.
    fn read(&self) -> io::Result<Vec<PathBuf>> {
        let (mut text, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match self.0.read_at(&mut chunk, text.len() as u64)? {
                0 => break,
                len => text.extend_from_slice(&chunk[..len]),
            }
        }
        let path = |line: &[u8]| line.split(|byte| *byte == b' ').nth(1).map(unescape);
        Ok(text.split(|byte| *byte == b'\n').filter_map(path).collect())
    }
}

/// Blanks, tabs, line feeds and backslashes are written as `\040`, `\011`, `\012` and `\134` (`mangle_path`,
/// `fs/seq_file.c`).
fn unescape(mut field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    while let Some((&first, rest)) = field.split_first() {
        let octal =
            rest.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        let octal = octal.and_then(|digits| {
            digits.iter().try_fold(0u8, |value, digit| Some(value.checked_mul(8)? + (digit - b'0')))
        });
        bytes.push(octal.unwrap_or(first));
        field = if octal.is_some() { &rest[3..] } else { rest };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_have_any_path() {
        for (field, path) in [(r"/a\040b\011c\012d\134e", "/a b\tc\nd\\e"), (r"/\1340\777\04", r"/\0\777\04"), ("", "")]
        {
            assert_eq!(unescape(field.as_bytes()), Path::new(path), "{field}");
        }
        assert!(Mounts::open().unwrap().read().unwrap().iter().any(|path| path == Path::new("/")));
    }
}
