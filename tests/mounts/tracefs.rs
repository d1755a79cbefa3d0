//! Finding tracefs: mounted anywhere, hidden, unlisted, unreadable or not at all, where it is opened without a mount.
//! Each test runs on a thread in its own mount namespace.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use perfweave::{Error, Rings};
use perfweave_events::{EventOptions, Format};
use perfweave_support::{assert_error, kernel, needs, privilege};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const NONE: Option<&Path> = None;

/// Runs something in a mount namespace without tracefs or a file system that contains it. Other namespaces do not see
/// its mounts.
fn without_tracefs(what: impl FnOnce() + Send + 'static) {
    let Some(_) = kernel("find tracefs", perfweave_events::tracefs()) else { return };
    let _alone = crate::alone();
    let thread = std::thread::spawn(|| {
        kernel("leave the mount namespace", unshare(CloneFlags::CLONE_NEWNS))?;
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        for path in ["/sys/kernel/tracing", "/sys/kernel/debug"] {
            while umount2(path, MntFlags::MNT_DETACH).is_ok() {}
        }
        what();
        Some(())
    });
    thread.join().unwrap();
}

fn mount_on(path: &str, kind: &str) {
    std::fs::create_dir_all(path).unwrap();
    mount(NONE, path, Some(kind), MsFlags::empty(), NONE).unwrap();
}

/// The kernel's error.
fn source(error: &Error) -> &std::io::Error {
    std::error::Error::source(error).and_then(|source| source.downcast_ref()).expect("a source")
}

/// From now on this thread's kernel is one before Linux 5.2.
fn without_fsopen() {
    privilege::refuse(libc::SYS_fsopen, libc::ENOSYS).expect("a seccomp filter");
}

fn open(name: &str) -> Result<(), Error> {
    Rings::options().tracepoint(name).pages(1).open().map(drop)
}

/// A user of this group who has nothing but `CAP_PERFMON` opens a tracepoint.
fn somebody_opens(group: u32) -> Result<(), String> {
    let opened = std::thread::spawn(move || {
        // SAFETY: no pointer. Not by way of libc, which would change all threads.
        let answers = [
            unsafe { libc::syscall(libc::SYS_setgroups, 0, 0) },
            // SAFETY: the same.
            unsafe { libc::syscall(libc::SYS_setresgid, group, group, group) },
        ];
        assert_eq!(answers, [0, 0]);
        // Above 2 the kernels of some distributions need another capability.
        let needed = match privilege::perf_event_paranoid() {
            ..=2 => privilege::CAP_PERFMON,
            _ => privilege::CAP_SYS_ADMIN,
        };
        privilege::become_nobody_with(&[needed]).unwrap();
        open("sched:sched_switch").map_err(|error| error.to_string())
    });
    opened.join().unwrap()
}

#[test]
fn tracefs_is_found_without_proc() {
    without_tracefs(|| {
        mount_on("/sys/kernel/tracing", "tracefs");
        umount2("/proc", MntFlags::MNT_DETACH).unwrap();
        assert!(!Path::new("/proc/self").exists());
        open("sched:sched_switch").unwrap();
        let error = open("sched:nope").unwrap_err();
        assert_error!(error, NotFound, "there is no tracepoint ");
        // There is no other tracefs now.
        umount2("/sys/kernel/tracing", MntFlags::MNT_DETACH).unwrap();
        let said = open("sched:sched_switch").unwrap_err().to_string();
        let words = ["mount -t tracefs", "cannot be listed", "/proc, by which it is opened without a mount"];
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    });
}

/// Blanks, tabs, line feeds and backslashes are escaped in the list of mounts.
#[test]
fn tracefs_is_found_under_any_path() {
    without_tracefs(|| {
        mount_on("/mnt", "tmpfs");
        for path in ["/mnt/a b", "/mnt/a\tb\nc", "/mnt/a\\b\\040c", "/mnt/\u{e4}\u{1d11e}"] {
            mount_on(path, "tracefs");
            open("sched:sched_switch").unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let found = perfweave_events::tracefs().unwrap();
            assert_eq!((&*found, found.to_string()), (Path::new(path), format!("mounted at {path}")));
            umount2(path, MntFlags::empty()).unwrap();
        }
        without_fsopen();
        let error = open("sched:sched_switch").unwrap_err();
        assert_error!(error, System, "cannot look up tracepoint");
        assert_eq!(source(&error).kind(), std::io::ErrorKind::NotFound);
        assert!(error.to_string().contains("mount -t tracefs"), "{error}");
        let error = Format::read("sched:sched_switch").unwrap_err();
        assert_error!(error, System, "cannot look up tracepoint sched:sched_switch", "mount -t tracefs");
        assert_error!(
            perfweave_events::tracefs().unwrap_err(),
            NotFound,
            "cannot find tracefs: tracefs is not mounted",
            "mount -t tracefs"
        );
    });
}

/// What it takes at all, in a thread whose descriptors are its own.
#[test]
fn tracefs_that_is_mounted_nowhere_is_opened_for_this_process_alone() {
    without_tracefs(|| {
        unshare(CloneFlags::CLONE_FILES).unwrap();
        let things = || {
            let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            assert!(!mounts.contains("tracefs"), "{mounts}");
            (mounts, std::fs::read_dir("/proc/thread-self/fd").unwrap().count())
        };
        let before = things();
        let found = perfweave_events::tracefs().unwrap();
        assert_eq!(found.to_string(), "not mounted, opened for this process alone");
        let id = std::fs::read_to_string(found.join("events/sched/sched_switch/id")).unwrap().trim().parse().unwrap();
        assert!(std::thread::scope(|scope| scope.spawn(|| found.join("events").is_dir()).join().unwrap()));
        drop(found);
        assert_eq!(things(), before);
        let rings = Rings::options().tracepoint_id(id).tracepoint("sched:sched_wak*").pages(1).open().unwrap();
        assert!(rings.sources().len() > 2 && perfweave_events::format(&rings, 0).unwrap().contains("next_comm"));
        let path = std::env::temp_dir().join(format!("perfweave-detached-{}", std::process::id()));
        perfweave_perf_data::Writer::create(&path, &rings).unwrap().finish().unwrap();
        std::fs::remove_file(&path).unwrap();
        drop(rings);
        assert_eq!(things(), before);
        // What is said leads nowhere that ends with the process.
        let filtered = Rings::options().tracepoint("sched:sched_switch").filter("nothing == 1").pages(1).open();
        assert_error!(filtered.unwrap_err(), InvalidInput, "the kernel says:", "parse_error: Field not found");
        assert_error!(open("sched:sched_swtich").unwrap_err(), NotFound, "did you mean sched_switch?");
        for error in [open("sched:nothing_near_it"), open("*:nothing_near_it")] {
            assert_error!(error.unwrap_err(), NotFound, "(see available_events of tracefs)");
        }
        assert_eq!(things(), before);
        let left = std::fs::read_dir(perfweave_events::tracefs().unwrap().join("instances")).unwrap().flatten();
        let ours = format!("perfweave-{}-", std::process::id());
        assert_eq!(left.filter(|left| left.file_name().to_string_lossy().starts_with(&ours)).count(), 0);
    });
}

/// Without `CAP_SYS_ADMIN` nobody mounts anything, and the mount that the error names helps.
#[test]
fn the_mount_that_is_named_lets_tracefs_be_read() {
    without_tracefs(|| {
        const GROUP: u32 = 54_322;
        mount_on("/mnt", "tracefs");
        let before = std::fs::metadata("/mnt").unwrap();
        umount2("/mnt", MntFlags::MNT_DETACH).unwrap();
        let said = somebody_opens(GROUP).unwrap_err();
        assert!(said.contains("tracefs is not mounted") && said.contains("CAP_SYS_ADMIN"), "{said}");
        let options = said.split_once("`mount -t tracefs -o ").and_then(|(_, rest)| rest.split_once(" nodev /sys/"));
        let (options, _) = options.unwrap_or_else(|| panic!("{said}"));
        mount(NONE, "/sys/kernel/tracing", Some("tracefs"), MsFlags::empty(), Some(options)).unwrap();
        let opened = somebody_opens(GROUP);
        let as_before = format!("gid={},mode={:o}", before.gid(), before.mode() & 0o777);
        mount(NONE, "/sys/kernel/tracing", NONE, MsFlags::MS_REMOUNT, Some(as_before.as_str())).unwrap();
        opened.unwrap_or_else(|now| panic!("{said}: {options}: {now}"));
    });
}

/// A recording has formats in it, so it cannot begin without tracefs.
#[test]
fn a_recording_needs_the_formats_of_its_tracepoints() {
    without_tracefs(|| {
        mount_on("/mnt", "tracefs");
        let rings = Rings::options().tracepoint("sched:sched_switch").pages(1).open().unwrap();
        umount2("/mnt", MntFlags::empty()).unwrap();
        without_fsopen();
        let path = std::env::temp_dir().join(format!("perfweave-no-tracefs-{}", std::process::id()));
        let error = perfweave_perf_data::Writer::create(&path, &rings).map(drop).unwrap_err();
        assert_error!(error, NotFound, "no format of tracepoint", "cannot find tracefs", "mount -t tracefs");
        assert!(!path.exists());
    });
}

/// The first mount in the list is hidden, or shows only a part of tracefs.
#[test]
fn tracefs_is_found_behind_one_that_is_hidden() {
    without_tracefs(|| {
        without_fsopen();
        mount_on("/mnt", "tracefs");
        open("sched:sched_switch").unwrap();
        mount_on("/mnt", "tmpfs");
        let error = open("sched:sched_switch").unwrap_err();
        assert_error!(error, System, "cannot look up tracepoint");
        assert_eq!(source(&error).kind(), std::io::ErrorKind::NotFound);
        // A directory that looks like tracefs.
        std::fs::create_dir_all("/mnt/events/sched/sched_switch").unwrap();
        std::fs::write("/mnt/events/sched/sched_switch/id", "1").unwrap();
        assert!(open("sched:sched_switch").is_err());

        mount_on("/mnt/whole", "tracefs");
        std::fs::create_dir("/mnt/part").unwrap();
        mount(Some("/mnt/whole/events/sched"), "/mnt/part", NONE, MsFlags::MS_BIND, NONE).unwrap();
        umount2("/mnt/whole", MntFlags::empty()).unwrap();
        assert!(open("sched:sched_switch").is_err());
        mount_on("/media", "tracefs");
        open("sched:sched_switch").unwrap();
    });
}

/// The remount that the error names lets a user with only `CAP_PERFMON` read tracefs.
#[test]
fn the_remount_that_is_named_lets_tracefs_be_read() {
    without_tracefs(|| {
        mount_on("/sys/kernel/tracing", "tracefs");
        // Not readable for other users. All mounts show the same tracefs.
        const GROUP: u32 = 54_321;
        let before = std::fs::metadata("/sys/kernel/tracing").unwrap();
        let Err(said) = somebody_opens(GROUP) else {
            return perfweave_support::lacks("a tracefs that not anybody can read");
        };
        let options =
            said.split_once("mount -o remount,").and_then(|(_, rest)| rest.split_once(" /sys/kernel/tracing"));
        let (options, _) = options.unwrap_or_else(|| panic!("{said}"));
        let remount = |options: &str| {
            mount(NONE, "/sys/kernel/tracing", NONE, MsFlags::MS_REMOUNT, Some(options)).unwrap();
        };
        remount(options);
        let opened = somebody_opens(GROUP);
        remount(&format!("gid={},mode={:o}", before.gid(), before.mode() & 0o777));
        opened.unwrap_or_else(|now| panic!("{said}: {options}: {now}"));
    });
}

/// The error says that a tracepoint is missing only if tracefs can be read.
#[test]
fn what_cannot_be_read_is_not_said_to_be_missing() {
    without_tracefs(|| {
        mount_on("/sys/kernel/tracing", "tracefs");
        for name in ["sched:nope", "nope:nope"] {
            let error = open(name).unwrap_err();
            assert_error!(error, NotFound, format!("there is no tracepoint {name}"));
        }
        let mode = std::fs::metadata("/sys/kernel/tracing").unwrap().permissions().mode();
        let error = std::thread::spawn(|| {
            privilege::become_nobody().unwrap();
            (open("sched:nope").unwrap_err(), Format::read("sched:sched_switch"))
        });
        let (error, format) = error.join().unwrap();
        let said = error.to_string();
        let Some(()) = needs("a tracefs that not anybody can search", mode & 0o001 == 0) else { return };
        assert_error!(error, Permission, "cannot look up tracepoint");
        assert!(!said.contains("no tracepoint") && said.contains("/sys/kernel/tracing"), "{said}");
        println!("{said}");
        assert_error!(
            format.unwrap_err(),
            Permission,
            "cannot look up tracepoint sched:sched_switch",
            "/sys/kernel/tracing"
        );
    });
}
