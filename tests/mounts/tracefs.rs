//! Finding tracefs: mounted anywhere, hidden, unlisted, unreadable or not at all. Each test runs on a thread in its own
//! mount namespace.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use perfweave::{Error, Rings};
use perfweave_decode::Format;
use perfweave_support::{assert_error, kernel, needs, privilege, tracefs};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const NONE: Option<&Path> = None;

/// Runs something in a mount namespace without tracefs or a file system that contains it. Other namespaces do not see
/// its mounts.
fn without_tracefs(what: impl FnOnce() + Send + 'static) {
    let Some(_) = kernel("find tracefs", tracefs::find_or_mount()) else { return };
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

fn open(name: &str) -> Result<(), Error> {
    Rings::options().tracepoint(name).pages(1).open().map(drop)
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
        assert!(said.contains("mount -t tracefs") && said.contains("cannot be listed"), "{said}");
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
            assert_eq!(Rings::tracefs().unwrap(), Path::new(path));
            umount2(path, MntFlags::empty()).unwrap();
        }
        let error = open("sched:sched_switch").unwrap_err();
        assert_error!(error, System, "cannot look up tracepoint");
        assert_eq!(source(&error).kind(), std::io::ErrorKind::NotFound);
        assert!(error.to_string().contains("mount -t tracefs"), "{error}");
        let error = Format::read("sched:sched_switch").unwrap_err();
        assert_error!(error, System, "cannot look up tracepoint sched:sched_switch", "mount -t tracefs");
        assert_error!(
            Rings::tracefs().unwrap_err(),
            NotFound,
            "cannot find tracefs: tracefs is not mounted",
            "mount -t tracefs"
        );
    });
}

/// A recording has formats in it, so it cannot begin without tracefs.
#[test]
fn a_recording_needs_the_formats_of_its_tracepoints() {
    without_tracefs(|| {
        mount_on("/mnt", "tracefs");
        let rings = Rings::options().tracepoint("sched:sched_switch").pages(1).open().unwrap();
        umount2("/mnt", MntFlags::empty()).unwrap();
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
        let somebody = || {
            let opened = std::thread::spawn(|| {
                // SAFETY: no pointer. Not by way of libc, which would change all threads.
                let answers = [
                    unsafe { libc::syscall(libc::SYS_setgroups, 0, 0) },
                    // SAFETY: the same.
                    unsafe { libc::syscall(libc::SYS_setresgid, GROUP, GROUP, GROUP) },
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
        };
        let Err(said) = somebody() else { return perfweave_support::lacks("a tracefs that not anybody can read") };
        let options =
            said.split_once("mount -o remount,").and_then(|(_, rest)| rest.split_once(" /sys/kernel/tracing"));
        let (options, _) = options.unwrap_or_else(|| panic!("{said}"));
        let remount = |options: &str| {
            mount(NONE, "/sys/kernel/tracing", NONE, MsFlags::MS_REMOUNT, Some(options)).unwrap();
        };
        remount(options);
        let opened = somebody();
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
