//! On the live kernel: grace periods for programs that drive a merge, and the effect of an expedited fence on file
//! systems.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use perfweave::{ErrorKind, Fence, GracePeriods, Hold, Order, Reader, sim};
use perfweave_proofs::{Epochs, expedited};
use perfweave_support::threads::{GUARD, until};
use perfweave_support::{kernel, membarrier, privilege};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const NONE: Option<&Path> = None;

/// The calling thread's mount namespace, root and working directory.
fn place() -> [PathBuf; 3] {
    ["ns/mnt", "root", "cwd"].map(|link| std::fs::read_link(Path::new("/proc/thread-self").join(link)).unwrap())
}

/// Whether a fence works here, and leaves the thread's namespace and directories unchanged.
fn wait_here(fence: &Fence, grace: &mut GracePeriods) {
    let before = place();
    grace.wait().unwrap_or_else(|error| panic!("{fence:?}: {error}"));
    assert_eq!(place(), before, "{fence:?}");
}

/// A fence that is opened on one thread and used on others, in one mount namespace and in another. No thread changes
/// its namespace.
#[test]
fn grace_periods_are_waited_for_from_any_thread() {
    fn is_send<T: Send>(_: &T) {}
    let Some(_) = kernel("unmount for a fence", expedited(Duration::from_millis(1)).open()) else { return };
    for fence in [Fence::Auto, Fence::Membarrier, Fence::Map, expedited(Duration::from_millis(1)), Fence::by(|| Ok(()))]
    {
        if matches!(fence, Fence::Membarrier) && !membarrier() {
            continue;
        }
        let before = place();
        let mut grace = fence.open().unwrap();
        is_send(&grace);
        assert_eq!(place(), before, "{fence:?}: opening moves nobody");
        wait_here(&fence, &mut grace);
        let mut grace = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                // A directory of that name may exist anywhere, and the fence must not unmount anything there.
                unshare(CloneFlags::CLONE_NEWNS).unwrap();
                mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
                mount(Some("others"), "/mnt", Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
                std::fs::create_dir_all("/mnt/old").unwrap();
                mount(Some("others"), "/mnt/old", Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
                nix::unistd::chroot("/mnt").unwrap();
                nix::unistd::chdir("/").unwrap();
                grace.wait().unwrap_or_else(|error| panic!("{fence:?}: {error}"));
                // Still a mount point: otherwise this is EINVAL.
                umount2("/old", MntFlags::empty()).unwrap();
                grace
            });
            other.join().unwrap()
        });
        wait_here(&fence, &mut grace);
    }
}

/// The error or panic of a user's function is the result of that wait, and the next wait calls the function again.
#[test]
fn grace_periods_that_fail_say_so_once() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let fence = Fence::by(move || match counted.fetch_add(1, Ordering::Relaxed) {
        0 => Err(std::io::Error::from_raw_os_error(libc::EIO)),
        1 => panic!("a panic in the fence"),
        _ => Ok(()),
    });
    let mut grace = fence.open().unwrap();
    assert_eq!(grace.name(), "custom");
    assert_eq!(grace.wait().unwrap_err().raw_os_error(), Some(libc::EIO));
    let said = grace.wait().unwrap_err().to_string();
    assert!(said.contains("panicked"), "{said}");
    grace.wait().unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

/// Runs something in a child of fork(2), where it must be true.
#[track_caller]
fn in_child(is_so: impl FnOnce() -> bool) {
    // SAFETY: the child makes errors, and leaves. It takes no lock but the allocator's, which glibc sees to, and those
    // that this test alone has.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: SIGALRM ends a child that hangs.
            unsafe { libc::alarm(GUARD.as_secs() as u32) };
            let code = if is_so() { 0 } else { 1 };
            // SAFETY: leaves without running anything of ours.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0)),
    }
}

/// Whether the error says that the thread belongs to the parent.
fn says_forked(answer: std::io::Result<()>) -> bool {
    answer.is_err_and(|error| error.to_string().contains("forked"))
}

/// A child of fork(2) does not have the thread that waits, and gets an error instead of waiting for it.
#[test]
fn a_forked_child_has_no_grace_periods() {
    let Some(grace) = kernel("open grace periods", Fence::Auto.open()) else { return };
    let mut grace = Some(grace);
    grace.as_mut().unwrap().wait().unwrap();
    in_child(|| {
        let mut grace = grace.take().unwrap();
        let told = says_forked(grace.wait());
        drop(grace);
        told
    });
    grace.unwrap().wait().unwrap();
}

/// A child that polls gets the error too: for a grace period that was under way at the fork, and for one that it
/// begins.
#[test]
fn a_forked_child_that_asks_for_grace_periods_is_told() {
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let fence = Fence::by(move || gate.lock().unwrap().recv_timeout(GUARD).map_err(std::io::Error::other));
    let mut grace = fence.open().unwrap();
    assert!(grace.begin());
    in_child(|| {
        let of_the_first = grace.poll().is_some_and(says_forked) && grace.poll().is_none();
        of_the_first && grace.begin() && grace.poll().is_some_and(says_forked)
    });
    open.send(()).unwrap();
    until("it is over", || grace.poll().is_some_and(|ended| ended.is_ok()));
}

/// A machine's writers' epochs, whose patience is over at once.
fn epochs(machine: &sim::Kernel) -> Fence {
    Epochs::over(machine.epochs()).stand_in(machine.fence()).patience(Duration::ZERO).fence()
}

/// The child has the words too, and they prove as in the parent. The fence that stands in for a program that stays
/// inside belongs to the parent.
#[test]
fn a_forked_child_has_epochs_but_no_fence_that_stood_in() {
    let machine = sim::Kernel::new(&[0]);
    let mut grace = epochs(&machine).open().unwrap();
    in_child(|| grace.begin() && grace.poll().is_some_and(|ended| ended.is_ok()) && grace.wait().is_ok());
    machine.begin(0, 1);
    assert!(grace.begin() && grace.poll().is_none(), "a program is inside, and a fence stands in");
    in_child(|| {
        let of_the_first = grace.poll().is_some_and(says_forked) && grace.poll().is_none();
        // It may begin a moment later.
        let of_the_second =
            grace.begin() && std::iter::repeat_with(|| grace.poll()).flatten().next().is_some_and(says_forked);
        of_the_first && of_the_second && says_forked(grace.wait())
    });
    machine.end(0);
    until("it is over", || grace.poll().is_some_and(|ended| ended.is_ok()));
}

/// Runs something on a thread in its own mount namespace. `spreads` says whether its mounts propagate to copies of the
/// namespace. `/mnt` has an empty file system.
fn in_a_namespace(spreads: MsFlags, what: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        mount(NONE, "/", NONE, spreads, NONE).unwrap();
        mount_on("/mnt");
        what();
    });
    thread.join().unwrap();
}

fn mount_on(path: &str) {
    std::fs::create_dir_all(path).unwrap();
    mount(Some("test"), path, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
}

/// Reports file systems that are unmounted in every namespace (inotify(7), IN_UNMOUNT).
struct Gone(Inotify);

impl Gone {
    fn new() -> Self {
        Self(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).unwrap())
    }

    fn watch(&self, path: &str) {
        self.0.add_watch(path, AddWatchFlags::IN_DELETE_SELF).unwrap();
    }

    fn count(&self) -> usize {
        let events = self.0.read_events().unwrap_or_default();
        events.iter().filter(|event| event.mask.contains(AddWatchFlags::IN_UNMOUNT)).count()
    }
}

/// The conditions under which a reader opens its expedited fence.
#[derive(Debug, Clone, Copy)]
enum Way {
    Plain,
    /// pivot_root(2) is refused, as with the initial ramfs as root.
    Refused(i32),
    /// After chroot(2) into a directory that is no mount point, with `/proc`, or into a mount point, without `/proc`.
    Chroot {
        proc: bool,
    },
}

/// A reader, made on a thread that ends.
fn reader(kernel: &sim::Kernel, way: Way) -> Reader {
    let rings = kernel.rings();
    let thread = std::thread::spawn(move || {
        match way {
            Way::Plain => {}
            Way::Refused(errno) => privilege::refuse(libc::SYS_pivot_root, errno).unwrap(),
            Way::Chroot { proc } => {
                unshare(CloneFlags::CLONE_FS).unwrap();
                if proc {
                    std::fs::create_dir_all("/mnt/other/proc").unwrap();
                    mount(NONE, "/mnt/other/proc", Some("proc"), MsFlags::empty(), NONE).unwrap();
                } else {
                    mount_on("/mnt/other");
                    std::fs::create_dir_all("/mnt/other/tmp").unwrap();
                }
                nix::unistd::chroot("/mnt/other").unwrap();
                nix::unistd::chdir("/").unwrap();
            }
        }
        Reader::new(rings, Order::new().hold(Hold::Fence(expedited(Duration::from_millis(1))))).unwrap()
    });
    thread.join().unwrap()
}

/// The expedited fence's mounts are private: no other namespace sees them, and no outside mount stays busy because of
/// them.
#[test]
fn an_expedited_fence_neither_shows_nor_keeps_mounts() {
    let _alone = crate::alone();
    let Some(_) = kernel("unmount for a fence", expedited(Duration::from_millis(1)).open()) else { return };
    for (way, spreads) in [
        (Way::Plain, MsFlags::MS_SHARED),
        (Way::Plain, MsFlags::MS_PRIVATE),
        (Way::Refused(libc::EINVAL), MsFlags::MS_SHARED),
        (Way::Refused(libc::EINVAL), MsFlags::MS_PRIVATE),
        (Way::Refused(libc::EPERM), MsFlags::MS_PRIVATE),
        (Way::Chroot { proc: true }, MsFlags::MS_SHARED),
        (Way::Chroot { proc: true }, MsFlags::MS_PRIVATE),
        // Not private mounts: the fence cannot reach them.
        (Way::Chroot { proc: false }, MsFlags::MS_SHARED),
    ] {
        in_a_namespace(spreads, move || {
            let gone = Gone::new();
            // Names that are escaped in the list of mounts, and mounts hidden by another.
            for path in ["/media", "/media/a b\\c", "/media/a b\\c/d", "/media/a b\\c"] {
                mount_on(path);
                gone.watch(path);
            }
            let kernel = sim::Kernel::new(&[0]);
            let mut reader = reader(&kernel, way);
            let mut prove = |time| {
                kernel.emit(0, time, b"any");
                assert_eq!(reader.next_timeout(GUARD).unwrap().expect("proven").key(), Some(time));
            };
            let mounts = || std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            let before = mounts();
            for time in 1..10 {
                prove(time);
                assert_eq!(mounts(), before, "{way:?}: nothing is seen outside");
            }
            umount2("/media", MntFlags::MNT_DETACH).unwrap();
            assert_eq!(gone.count(), 4, "{way:?}, {spreads:?}: what was there before does not stay mounted");
            mount_on("/media");
            gone.watch("/media");
            prove(50);
            umount2("/media", MntFlags::empty()).unwrap();
            assert_eq!(gone.count(), 1, "{way:?}, {spreads:?}: nor does what comes later");
            prove(51);
        });
    }
}

/// If pivot_root(2) is refused, the fence must list the mounts, also without `/proc`.
#[test]
fn an_expedited_fence_needs_no_proc() {
    let Some(_) = kernel("unmount for a fence", expedited(Duration::from_millis(1)).open()) else { return };
    in_a_namespace(MsFlags::MS_PRIVATE, || {
        umount2("/proc", MntFlags::MNT_DETACH).unwrap();
        privilege::refuse(libc::SYS_pivot_root, libc::EINVAL).unwrap();
        let mut grace = expedited(Duration::from_millis(1)).open().unwrap();
        (0..10).for_each(|_| grace.wait().unwrap());
        assert!(!Path::new("/proc/self").exists(), "it is not visible outside");
    });
}

/// The error names the step that failed.
#[test]
fn an_expedited_fence_that_is_refused_names_the_step() {
    let Some(_) = kernel("unmount for a fence", expedited(Duration::from_millis(1)).open()) else { return };
    for (call, named) in [(libc::SYS_unshare, "unshare"), (libc::SYS_mount, "mount"), (libc::SYS_umount2, "umount")] {
        let error = std::thread::spawn(move || {
            privilege::refuse(call, libc::EACCES).expect("a seccomp filter");
            expedited(Duration::from_millis(1)).open().unwrap_err()
        });
        let error = error.join().unwrap();
        let said = error.to_string();
        assert!(
            error.kind() == ErrorKind::Unsupported && error.to_string().contains("no fence: ") && said.contains(named),
            "{said}"
        );
        assert!(said.contains("CAP_SYS_ADMIN") && said.contains("Permission denied"), "{said}");
    }
}

/// Without `/proc` the thread cannot leave a root that is no mount point, and cannot make its mounts private.
#[test]
fn an_expedited_fence_in_a_chroot_without_proc_says_what_is_the_matter() {
    let Some(_) = kernel("unmount for a fence", expedited(Duration::from_millis(1)).open()) else { return };
    in_a_namespace(MsFlags::MS_PRIVATE, || {
        std::fs::create_dir_all("/mnt/other/tmp").unwrap();
        nix::unistd::chroot("/mnt/other").unwrap();
        let said = expedited(Duration::from_millis(1)).open().unwrap_err().to_string();
        assert!(said.contains("no mount point") && said.contains("chroot"), "{said}");
    });
}
