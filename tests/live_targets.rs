//! Whom rings trace, on live kernel rings: a process with all its threads, a thread, a control group.

#[expect(dead_code, reason = "each test takes a part")]
mod reading;

use perfweave::{Error, Order, Reader, RingOptions, Rings, Sample};
use perfweave_support::{bpf, kernel, load, threads, tracefs};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const GETPPID: &str = "syscalls:sys_enter_getppid";
const EXEC: &str = "sched:sched_process_exec";

fn open(options: RingOptions) -> Option<Rings> {
    kernel("find tracefs", tracefs::find_or_mount())?;
    kernel("trace", options.sample([Sample::Tid]).open())
}

/// How many records each thread wrote until now.
fn counts(reader: &mut Reader) -> HashMap<u32, usize> {
    let mut counts = HashMap::new();
    reading::all(reader, |event| {
        let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
        *counts.entry(record.pid_tid().unwrap().1).or_default() += 1;
    });
    counts
}

fn own() -> u32 {
    threads::own() as u32
}

/// A thread that calls getppid(2) so often each time that it is told to, and its number.
struct Caller {
    told: mpsc::Sender<usize>,
    done: mpsc::Receiver<()>,
    tid: u32,
}

impl Caller {
    fn new() -> Self {
        let (told, orders) = mpsc::channel();
        let (say, done) = mpsc::channel();
        let (name, named) = mpsc::channel();
        std::thread::spawn(move || {
            name.send(own()).unwrap();
            for times in orders {
                (0..times).for_each(|_| load::getppid());
                say.send(()).unwrap();
            }
        });
        Self { told, done, tid: named.recv().unwrap() }
    }

    fn call(&self, times: usize) {
        self.told.send(times).unwrap();
        self.done.recv().unwrap();
    }
}

/// Runs a shell that does what it reads, and ends with its input.
fn shell() -> Child {
    Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Has the shell do something, and waits until it has.
fn tell(shell: &mut Child, what: &str) {
    shell.stdin.as_mut().unwrap().write_all(format!("{what}\necho\n").as_bytes()).unwrap();
    shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
}

#[test]
fn a_process_is_traced_with_threads_that_are_there_and_threads_to_come() {
    let before = Caller::new();
    // Others do the same, and are not traced: another process.
    let mut other = shell();
    let Some(rings) = open(Rings::options().tracepoint(GETPPID).pid(std::process::id())) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let after = Caller::new();
    before.call(100);
    after.call(70);
    // On each CPU, by one that came after.
    for cpu in load::online() {
        let (tid, counted) = load::pinned(cpu, || {
            (0..30).for_each(|_| load::getppid());
            (own(), 30)
        });
        let counts = counts(&mut reader);
        assert_eq!(counts.get(&tid), Some(&counted), "{counts:?}");
        if cpu == 0 {
            assert_eq!((counts.get(&before.tid), counts.get(&after.tid)), (Some(&100), Some(&70)), "each once");
        }
    }
    tell(&mut other, "true");
    assert!(!counts(&mut reader).contains_key(&other.id()));
    drop(other.stdin.take());
    other.wait().unwrap();
}

#[test]
fn a_thread_is_traced_and_nothing_that_it_starts() {
    let (traced, other) = (Caller::new(), Caller::new());
    let Some(rings) = open(Rings::options().tracepoint(GETPPID).tid(traced.tid)) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    other.call(50);
    traced.call(20);
    other.call(50);
    assert_eq!(counts(&mut reader), HashMap::from([(traced.tid, 20)]));
}

/// Threads that come while events are opened are traced once, or not yet: never twice.
#[test]
fn no_record_comes_twice_while_threads_come_and_go() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // A thread that starts another, and calls once itself.
                let inner = std::thread::spawn(|| {
                    let inner = std::thread::spawn(load::getppid);
                    load::getppid();
                    inner.join().unwrap();
                });
                inner.join().unwrap();
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        for _ in 0..5 {
            let opened = Rings::options().tracepoint(GETPPID).sample([Sample::Tid]).pid(std::process::id()).open();
            let rings = match opened {
                // That is what it is for.
                Err(Error::Restless { .. }) => continue,
                opened => kernel("trace a process", opened),
            };
            let Some(rings) = rings else { break };
            let mut reader = Reader::new(rings, Order::new()).unwrap();
            let mut all = 0;
            while all < 300 {
                // Others of these tests call more often.
                let counts = counts(&mut reader);
                all += counts.values().filter(|count| **count == 1).count();
                assert!(!counts.values().any(|count| *count == 2), "{counts:?}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// When all that was traced has ended, the reader sleeps, although the kernel reports it again and again (`EPOLLHUP`).
#[test]
fn a_process_that_has_ended_keeps_nobody_awake() {
    let mut child = shell();
    let Some(rings) = open(Rings::options().tracepoint(EXEC).pid(child.id())) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    tell(&mut child, "/bin/true; /bin/true");
    drop(child.stdin.take());
    child.wait().unwrap();
    let counted = counts(&mut reader);
    assert_eq!((counted.len(), counted.values().sum::<usize>()), (2, 2), "the children of the shell: {counted:?}");
    let before = reader.stats().wakes;
    for _ in 0..10 {
        assert!(reader.next_timeout(Duration::from_millis(20)).unwrap().is_none());
    }
    let wakes = reader.stats().wakes - before;
    assert!(wakes < 10, "woken {wakes} times by nothing");
}

/// What a process starts is on rings whose first thread has long ended.
#[test]
fn children_are_traced_when_their_parent_is_gone() {
    let mut child = shell();
    let Some(rings) = open(Rings::options().tracepoint(EXEC).pid(child.id())) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    tell(&mut child, "true");
    // Another shell, which reads and writes what the first does. The first has read no further when it says so.
    child.stdin.as_mut().unwrap().write_all(b"sh -c 'echo; exec sh'\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child.kill().unwrap();
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    child.wait().unwrap();
    (child.stdin, child.stdout) = (stdin, stdout);
    tell(&mut child, "/bin/true");
    let counted = counts(&mut reader);
    assert_eq!(
        (counted.len(), counted.values().sum::<usize>()),
        (2, 3),
        "the shell, twice, and what it starts: {counted:?}"
    );
    drop(child.stdin.take());
}

#[test]
fn a_process_that_is_not_there_is_said_so() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let Some(_) = kernel("find tracefs", tracefs::find_or_mount()) else { return };
    let options = || Rings::options().tracepoint(EXEC);
    for pid in [child.id(), u32::MAX, 0] {
        let error = options().pid(pid).open().unwrap_err();
        assert!(matches!(error, Error::NoProcess { pid: named, .. } if named == pid), "{error}");
    }
    let error = options().tid(child.id()).open();
    assert!(matches!(error, Err(Error::NoProcess { .. } | Error::Open { .. })), "{error:?}");
    let error = options().cgroup("/no/such/group").open().unwrap_err();
    assert!(matches!(error, Error::Cgroup { .. }), "{error}");
}

#[test]
fn bpf_output_is_for_everybody() {
    let Some(map) = kernel("make a map", bpf::Map::perf_event_array(load::slots())) else { return };
    for options in [Rings::options().pid(1), Rings::options().tid(1), Rings::options().cgroup("/")] {
        let error = options.bpf_output(&map).open().unwrap_err();
        assert!(matches!(error, Error::Everybody { .. }), "{error}");
    }
}

/// A control group of its own, removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new() -> std::io::Result<Self> {
        let root = perfweave_support::cpus::control_groups()?;
        let path = root.join(format!("perfweave-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_control_group_is_traced_and_nobody_else() {
    let Some(group) = kernel("make a control group", Group::new()) else { return };
    let Some(rings) = open(Rings::options().tracepoint(EXEC).cgroup(&group.0)) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let (mut inside, mut outside) = (shell(), shell());
    tell(&mut inside, &format!("echo $$ > {}/cgroup.procs", group.0.display()));
    for _ in 0..5 {
        tell(&mut inside, "/bin/true");
        tell(&mut outside, "/bin/true");
    }
    let counted = counts(&mut reader);
    assert_eq!((counted.len(), counted.values().sum::<usize>()), (5, 5), "{counted:?}");
    for mut child in [inside, outside] {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    let error = Rings::options().tracepoint(EXEC).cgroup("/").open().unwrap_err();
    assert!(error.to_string().contains("control group"), "{error}");
}
