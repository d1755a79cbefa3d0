//! The names of what ran before: perf shows them for a recording of the crate as for its own.

use crate::perf::{File, perf};
use crate::writing::write_all;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use perf_event_open_sys::bindings;
use perfweave::Error;
use perfweave::{ErrorKind, Order, Reader, RingOptions, Rings};
use perfweave_events::EventOptions;
use perfweave_perf_data as perf_data;
use perfweave_support::{apart, kernel, privilege};
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[inline(never)]
fn a_function_with_a_name(mut sum: u64) -> u64 {
    for _ in 0..1_000_000 {
        sum = black_box(sum ^ (sum << 7));
    }
    sum
}

const SPINS: &str = "PERFWEAVE_SPINS";

/// The load, in a process of its own: this test with a variable set.
#[test]
fn spin() {
    if std::env::var_os(SPINS).is_some() {
        println!("it spins");
        let mut sum = 1;
        loop {
            sum = a_function_with_a_name(black_box(sum));
        }
    }
}

struct Spinning(Child);

impl Spinning {
    /// A process that runs the function, and ran it before this returns.
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "names::spin", "--nocapture"]).env(SPINS, "1").stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        assert!(said.lines().any(|line| line.unwrap().contains("it spins")));
        Self(child)
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Samples of processes, those whose process has no name, those in the function, frames, and frames without a name.
#[derive(Debug)]
struct Shown {
    samples: usize,
    nameless: usize,
    ours: usize,
    frames: usize,
    unknown: usize,
}

fn shown(file: &File) -> Shown {
    let text = perf(&["script", "--no-inline", "-i", file.path(), "-F", "comm,tid,event,ip,sym"]).unwrap();
    let (mut samples, mut nameless, mut ours, mut frames, mut unknown) = (0, 0, 0, 0, 0);
    for paragraph in text.split("\n\n").filter(|paragraph| paragraph.contains("cpu-clock:")) {
        let mut lines = paragraph.lines().filter(|line| !line.trim().is_empty());
        samples += 1;
        nameless += usize::from(lines.next().is_some_and(|line| line.trim_start().starts_with(':')));
        ours += usize::from(paragraph.contains("a_function_with_a_name"));
        for frame in lines {
            frames += 1;
            unknown += usize::from(frame.contains("[unknown]"));
        }
    }
    Shown { samples, nameless, ours, frames, unknown }
}

/// Both record the whole machine at the same time.
#[test]
fn what_runs_has_the_names_that_perf_gives_it() {
    if perfweave_support::perf().is_none() {
        return;
    }
    let _spinning = Spinning::start();
    let peer = std::thread::spawn(|| {
        let file = File::new();
        let record =
            ["record", "-N", "-a", "-g", "-e", "cpu-clock", "-F", "499", "-o", file.path(), "--", "sleep", "3"];
        perf(&record).map(|_| file)
    });
    let options = Rings::options().event_name("cpu-clock").frequency(499);
    let options = options
        .sample(bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_IP | bindings::PERF_SAMPLE_CALLCHAIN)
        .bytes(4 << 20);
    let Some(rings) = kernel(
        "sample",
        options.records([bindings::PERF_RECORD_COMM, bindings::PERF_RECORD_MMAP2, bindings::PERF_RECORD_FORK]).open(),
    ) else {
        return;
    };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let ours = File::new();
    let mut writer = perf_data::Writer::create(&ours.0, reader.rings()).unwrap();
    let names = writer.names();
    assert!(names.processes > 3 && names.threads >= names.processes && names.mappings > 10, "{names:?}");
    assert!(names.kernel && names.build_ids > 2, "{names:?}: {:?}", writer.unnamed());
    reader.handle().set_deadline(Some(Instant::now() + Duration::from_secs(3))).unwrap();
    while let Some(event) = reader.next().unwrap() {
        writer.write(&event.event()).unwrap();
    }
    writer.finish().unwrap();
    let theirs = peer.join().unwrap().unwrap();
    let (ours, theirs) = (shown(&ours), shown(&theirs));
    println!("ours: {ours:?}, perf's: {theirs:?}");
    // Beside others, few samples are its own.
    assert!(ours.ours > 0 && theirs.ours > 0);
    let share = |part: usize, all: usize| part as f64 / all as f64;
    // Processes end while they are found, and programs without frame pointers have more or fewer frames.
    assert!(share(ours.nameless, ours.samples) < share(theirs.nameless, theirs.samples) + 0.05);
    assert!(share(ours.unknown, ours.frames) < share(theirs.unknown, theirs.frames) + 0.10);
}

/// The kernel and the programs have the build ids that perf finds.
#[test]
fn build_ids_are_those_that_perf_finds() {
    if perfweave_support::perf().is_none() {
        return;
    }
    let spinning = Spinning::start();
    let options = Rings::options()
        .event_name("cpu-clock")
        .frequency(999)
        .sample(bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_IP);
    let Some(rings) = kernel("sample", options.pid(spinning.0.id()).open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    while reader.next().unwrap().unwrap().event().record().is_none() {}
    reader.handle().flush().unwrap();
    let (file, _) = write_all(&mut reader, |_| ());
    let running = perf(&["buildid-list", "-k"]).unwrap();
    let listed = perf(&["buildid-list", "-i", file.path()]).unwrap();
    assert!(listed.contains(running.trim()) && listed.contains("[kernel.kallsyms]"), "{running} in {listed}");
    // From the mappings.
    let program = std::env::current_exe().unwrap();
    let dump = perf(&["script", "-i", file.path(), "--show-mmap-events", "-F", "comm,tid"]).unwrap();
    let program = dump.lines().find(|line| line.contains(program.to_str().unwrap())).expect("the program");
    assert!(program.contains("MMAP2") && program.contains(&format!(" {}/{}:", spinning.0.id(), spinning.0.id())));
    // Of other processes nothing is told.
    let others = dump.lines().filter(|line| line.contains("PERF_RECORD_MMAP2"));
    assert!(others.into_iter().all(|line| line.contains(&format!(" {}/", spinning.0.id()))), "{dump}");
}

/// A process that is traced with the children that it has: theirs are the names too.
#[test]
fn names_of_children_that_are_there_are_written() {
    let mut command = Command::new("sh");
    command
        .args(["-c", "sleep 100 >/dev/null 2>&1 & echo $!; read x; kill $!"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut shell = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let names = |options: RingOptions| {
        let rings = kernel("sample", options.open())?;
        let file = File::new();
        let writer = perf_data::Writer::create(&file.0, &rings).unwrap();
        let names = writer.names();
        writer.finish().unwrap();
        Some(names)
    };
    let options = || {
        Rings::options().event_name("cpu-clock").sample(bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_IP).pages(1)
    };
    let counts = [options().pid(shell.id()), options().pid_tree(shell.id())]
        .map(|options| names(options).map(|names| names.processes));
    drop(shell.stdin.take());
    shell.wait().unwrap();
    assert!(counts == [Some(1), Some(2)] || counts == [None, None], "{counts:?}");
}

/// Opens rings of samples of the whole machine, does something on the calling thread, and writes the names.
fn names_after(
    change: impl FnOnce() -> Option<()> + Send + 'static,
) -> Option<(perf_data::Names, Vec<(ErrorKind, String)>)> {
    let options =
        Rings::options().event_name("cpu-clock").sample(bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_IP).pages(1);
    let rings = kernel("sample", options.open())?;
    change()?;
    let file = File::new();
    let writer = perf_data::Writer::create(&file.0, &rings).unwrap();
    let said = |error: &Error| (error.kind(), format!("{error}"));
    let told = (writer.names(), writer.unnamed().iter().map(said).collect());
    writer.finish().unwrap();
    crate::perf::open(&file.0);
    Some(told)
}

#[test]
fn names_that_a_user_may_not_read_are_told() {
    apart!();
    let Some((names, unnamed)) = names_after(|| kernel("become nobody", privilege::become_nobody())) else { return };
    assert!(names.hidden > 0 && names.processes > names.hidden, "{names:?}");
    let hidden = unnamed.iter().find(|(_, said)| said.contains("CAP_SYS_PTRACE")).expect("it is said");
    assert_eq!(hidden.0, ErrorKind::Permission, "{hidden:?}");
    assert!(hidden.1.contains(&format!("functions of {} processes", names.hidden)), "{hidden:?}");
    let kernel = unnamed.iter().any(|(kind, said)| *kind == ErrorKind::Permission && said.contains("kptr_restrict"));
    assert_ne!(kernel, names.kernel, "{unnamed:?}");
}

/// procfs has the numbers of another namespace, and then the processes have none; or that of the namespace, and then
/// others have none.
#[test]
fn a_pid_namespace_is_told() {
    for (mounts, expected) in [(false, "another PID namespace"), (true, "outside of this PID namespace")] {
        let mut inside = Command::new("unshare");
        inside.args(["--pid", "--fork", "--kill-child"]).args(mounts.then_some("--mount-proc"));
        inside.arg(std::env::current_exe().unwrap()).args(["--exact", "names::inside_a_pid_namespace", "--nocapture"]);
        let Some(()) = perfweave_support::perf() else { return };
        let said = inside.env("PERFWEAVE_INSIDE", expected).output().unwrap();
        assert!(
            said.status.success(),
            "{}{}",
            String::from_utf8_lossy(&said.stdout),
            String::from_utf8_lossy(&said.stderr)
        );
    }
}

#[test]
fn inside_a_pid_namespace() {
    let Ok(expected) = std::env::var("PERFWEAVE_INSIDE") else { return };
    let Some((names, unnamed)) = names_after(|| Some(())) else { return };
    let told = unnamed.iter().find(|(_, said)| said.contains(&expected)).unwrap_or_else(|| panic!("{unnamed:?}"));
    assert_eq!(told.0, ErrorKind::Unsupported, "{told:?}");
    // This process.
    assert_eq!(names.processes, u64::from(expected.starts_with("outside")));
    assert!(names.kernel);
}

#[test]
fn a_machine_without_procfs_is_told() {
    apart!();
    const NONE: Option<&Path> = None;
    let hidden = names_after(|| {
        kernel("leave the mount namespace", unshare(CloneFlags::CLONE_NEWNS))?;
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        mount(NONE, "/proc", Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
        Some(())
    });
    let Some((names, unnamed)) = hidden else { return };
    assert_eq!(names, perf_data::Names::default());
    let said: Vec<_> = unnamed.iter().map(|(kind, said)| (*kind, said.split(':').next().unwrap())).collect();
    let none = ErrorKind::NotFound;
    assert_eq!(said, [(none, "functions of the kernel have no names"), (none, "processes have no names")]);
}

/// It is asked for, or records do not say which process they are of.
#[test]
fn a_recording_without_names_has_none() {
    let options = || Rings::options().event_name("cpu-clock").pages(1);
    let Some(rings) = kernel("sample", options().sample(bindings::PERF_SAMPLE_TID).open()) else { return };
    let file = File::new();
    let writer = perf_data::Writer::create_unnamed(&file.0, &rings).unwrap();
    assert_eq!(writer.names(), perf_data::Names::default());
    writer.finish().unwrap();
    assert!(crate::perf::open(&file.0).cpus().len() == 0);
    let Some(rings) = kernel("sample", options().open()) else { return };
    let writer = perf_data::Writer::create(&file.0, &rings).unwrap();
    assert!(writer.names().processes == 0 && writer.names().kernel && writer.unnamed().is_empty());
}
