//! Paths of users may lead anywhere: to a pipe without a writer, an endless device, the kernel's log. The crate never
//! waits for such a file, and reads a file only after it has checked its kind. A supervisor of system calls verifies
//! this.

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use perfweave::{Error, Rings};
use perfweave_events::EventOptions;
use perfweave_support::supervised::{Answer, Call, supervised};
use perfweave_support::{assert_error, kernel};
use perfweave_symbols::function;
use std::ffi::CStr;
use std::path::{Path, PathBuf};

/// A folder of its own, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("perfweave-paths-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn fifo(&self) -> PathBuf {
        let path = self.0.join("fifo");
        let _ = std::fs::remove_file(&path);
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a function with a path. Gives its result as text, and each forbidden call on that path: a blocking open, a read
/// or a write. `swap` is called after the crate has checked the kind of the file, and before it opens the file.
fn watched(path: &Path, mut swap: impl FnMut(), what: impl FnOnce() -> String + Send) -> Option<(String, Vec<String>)> {
    let mut wrong = Vec::new();
    let is_it = |name: u64| {
        // SAFETY: the thread that makes the call waits for us, and its path ends with a zero.
        let name = unsafe { CStr::from_ptr(name as *const _) }.to_string_lossy();
        name.ends_with(&*path.to_string_lossy())
    };
    let leads_to_it = |fd: u64| std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|link| link == path);
    let judge = |call: &Call| {
        let needed = (libc::O_NONBLOCK | libc::O_CLOEXEC) as u64;
        match call.number {
            libc::SYS_statx if is_it(call.args[1]) => swap(),
            // What is opened as a path alone is neither waited for nor read.
            libc::SYS_openat if is_it(call.args[1]) && call.args[2] & libc::O_PATH as u64 != 0 => {}
            libc::SYS_openat if is_it(call.args[1]) && call.args[2] & needed != needed => {
                wrong.push(format!("opened with {:#o}", call.args[2]));
                return Answer::Fail(libc::ENXIO);
            }
            libc::SYS_read | libc::SYS_pread64 | libc::SYS_write | libc::SYS_pwrite64 if leads_to_it(call.args[0]) => {
                wrong.push(format!("system call {} of {} bytes", call.number, call.args[2]));
                return Answer::Fail(libc::EIO);
            }
            _ => {}
        }
        Answer::Make
    };
    let said = kernel("supervise system calls", supervised(judge, what))?;
    Some((said, wrong))
}

/// The same without a swap. Asserts that there is no forbidden call.
fn said(path: &Path, what: impl FnOnce(&Path) -> String + Send) -> Option<String> {
    let (said, wrong) = watched(path, || {}, || what(path))?;
    assert_eq!(wrong, [""; 0], "{}: {said}", path.display());
    Some(said)
}

fn refused(opened: Result<Rings, Error>) -> String {
    opened.map(|rings| rings.cpus().len()).unwrap_err().to_string()
}

#[test]
fn a_control_group_is_a_directory_of_control_groups() {
    let folder = Folder::new("group");
    let fifo = folder.fifo();
    for path in [fifo.as_path(), Path::new("/dev/zero"), Path::new("/proc/kmsg"), Path::new("/proc"), &folder.0] {
        let group = |path: &Path| {
            let error = Rings::options().event_name("cpu-clock").cgroup(path).open().unwrap_err();
            assert_error!(error, InvalidInput, format!("cannot open the control group {}: ", path.display()));
            error.to_string()
        };
        let Some(said) = said(path, group) else { return };
        assert!(said.contains("cgroup2") && said.contains(path.to_str().unwrap()), "{said}");
    }
}

#[test]
fn symbols_are_read_from_regular_files_and_from_no_more_than_there_is() {
    let folder = Folder::new("symbols");
    let fifo = folder.fifo();
    let huge = folder.0.join("huge");
    std::fs::File::create(&huge).unwrap().set_len((1 << 30) + 1).unwrap();
    for (path, named) in [
        (fifo.as_path(), "a pipe"),
        (Path::new("/dev/zero"), "a device"),
        (Path::new("/proc/kmsg"), "/proc/kmsg"),
        (Path::new("/proc"), "a directory"),
        (&huge, "1073741825 bytes"),
    ] {
        let Some(said) = said(path, |path| function(path, "main").unwrap_err().to_string()) else { return };
        assert!(said.contains(named), "{said}: no {named}");
    }
    // A file that becomes a pipe after its kind was checked.
    let file = folder.0.join("file");
    std::fs::write(&file, "no program").unwrap();
    let swap = || drop((std::fs::remove_file(&file), mkfifo(&file, Mode::S_IRWXU)));
    let find = || function(&file, "main").unwrap_err().to_string();
    let Some((said, wrong)) = watched(&file, swap, find) else { return };
    assert!(wrong.is_empty() && said.contains("a pipe"), "{wrong:?}: {said}");
}

/// The kernel itself opens these paths or gives the error.
#[test]
fn what_the_kernel_opens_is_left_to_it() {
    let folder = Folder::new("kernel");
    let fifo = folder.fifo();
    for path in [fifo.as_path(), Path::new("/dev/zero"), Path::new("/proc/kmsg"), Path::new("/proc")] {
        let Some(_) = said(path, |path| refused(Rings::options().uprobe(path, 0).open())) else { return };
        let pinned = |path: &Path| refused(Rings::options().bpf_output_pinned(path).open());
        let Some(said) = said(path, pinned) else { return };
        assert!(said.contains("BPF file system"), "{said}");
    }
}

/// Terms of a PMU and names of tracepoints cannot lead to other folders.
#[test]
fn names_lead_nowhere_else() {
    let Some(_) = kernel("find tracefs", perfweave_events::tracefs()) else { return };
    let folder = Folder::new("names");
    let fifo = folder.fifo();
    let up = "../".repeat(12);
    let term = |path: &Path| refused(Rings::options().event_name(&format!("software/{up}{}/", path.display())).open());
    let Some(said) = said(&fifo, term) else { return };
    assert!(said.contains("there is no event"), "{said}");
    for name in ["../..:x", "..:x/../..", "sched:../sched/sched_switch"] {
        assert!(refused(Rings::options().tracepoint(name).open()).contains("category:name"));
    }
}

#[test]
fn recordings_are_regular_files() {
    use perfweave_perf_data::{self as perf_data, Writer};
    let folder = Folder::new("recordings");
    let fifo = folder.fifo();
    let read = |path: &Path| perf_data::open(path).map(|rings| rings.cpus().len()).unwrap_err().to_string();
    let write =
        |path: &Path| Writer::create(path, &Rings::empty(Default::default())).map(drop).unwrap_err().to_string();
    for path in [fifo.as_path(), Path::new("/dev/zero"), Path::new("/dev/full")] {
        let Some(said_of_read) = said(path, read) else { return };
        let said_of_write = said(path, write).unwrap();
        for said in [said_of_read, said_of_write] {
            assert!(said.contains("no regular file"), "{said}");
        }
    }
    if kernel("open the kernel's log", std::fs::File::open("/proc/kmsg")).is_some() {
        let log = said(Path::new("/proc/kmsg"), read).unwrap();
        // Nothing is in it if somebody has read it.
        assert!(log.contains("no recording of perf(1)") || log.contains("it is empty"), "{log}");
    }
    let directory = said(&folder.0, write).unwrap();
    assert!(directory.contains("directory"), "{directory}");

    for (name, what) in [("read", &read as &(dyn Fn(&Path) -> String + Sync)), ("write", &write)] {
        let file = folder.0.join(name);
        std::fs::write(&file, "no recording").unwrap();
        let swap = || drop((std::fs::remove_file(&file), mkfifo(&file, Mode::S_IRWXU)));
        let Some((said, wrong)) = watched(&file, swap, || what(&file)) else { return };
        assert!(wrong.is_empty() && !said.is_empty(), "{name}: {wrong:?}: {said}");
    }
}
