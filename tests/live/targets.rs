//! Targets of rings, on live kernel rings: a process with all its threads, a thread, a control group.

use crate::reading;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use perf_event_open_sys::bindings;
use perfweave::{ErrorKind, Order, Reader, RingOptions, Rings};
use perfweave_events::EventOptions;
use perfweave_support::numbered::Numbered;
use perfweave_support::{apart, assert_error, bpf, kernel, load, threads};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const GETPPID: &str = "syscalls:sys_enter_getppid";
const EXEC: &str = "sched:sched_process_exec";

fn open(options: RingOptions) -> Option<Rings> {
    kernel("find tracefs", perfweave_events::tracefs())?;
    kernel("trace", options.sample(bindings::PERF_SAMPLE_TID).open())
}

/// How many records each thread has written so far.
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

/// A thread that calls getppid(2) a given number of times on each request, and its number.
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

/// A shell that runs the commands it reads, and ends with its input.
struct Shell(Child);

impl Shell {
    /// Waits until it runs: `spawn` may return before the kernel has written that it was executed.
    fn new() -> Self {
        let mut shell = Self(Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        shell.tell(":");
        shell
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    fn write(&mut self, what: &str) {
        self.0.stdin.as_mut().unwrap().write_all(format!("{what}\n").as_bytes()).unwrap();
    }

    /// Waits until it has written a line.
    fn answer(&mut self) {
        self.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }

    /// Makes the shell run a command, and waits until it has.
    fn tell(&mut self, what: &str) {
        self.write(&format!("{what}\necho"));
        self.answer();
    }

    fn end(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_is_traced_with_threads_that_are_there_and_threads_to_come() {
    apart!();
    let before = Caller::new();
    // Another process makes the same calls and is not traced.
    let mut other = Shell::new();
    let Some(rings) = open(Rings::options().tracepoint(GETPPID).pid(std::process::id())) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let after = Caller::new();
    before.call(100);
    after.call(70);
    // On each CPU, by a thread that started after opening.
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
    other.tell("true");
    assert!(!counts(&mut reader).contains_key(&other.id()));
}

/// The processes that a process started, and those that they started, are there before the rings and execute programs
/// after.
#[test]
fn a_process_is_traced_with_the_children_that_it_has() {
    let (mut root, mut other) = (Shell::new(), Shell::new());
    root.write(r#"sh -c 'sh -c "echo; read line; exec true"; read line; exec true'"#);
    root.answer();
    let child = |pid| std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap().trim().to_owned();
    let middle = child(root.id().to_string());
    let family = [root.id(), middle.parse().unwrap(), child(middle).parse().unwrap()];
    let read = |options: RingOptions| Some(Reader::new(open(options)?, Order::new()).unwrap());
    let Some(mut tree) = read(Rings::options().tracepoint(EXEC).pid_tree(root.id())) else { return };
    let Some(mut alone) = read(Rings::options().tracepoint(EXEC).pid(root.id())) else { return };
    other.tell("/bin/true");
    // The first of these lines is the grandchild's last as a shell, the second the child's.
    root.write("\n");
    root.write("exec true");
    root.end();
    let counts_of_tree = counts(&mut tree);
    assert_eq!(counts_of_tree, family.map(|pid| (pid, 1)).into());
    assert_eq!(counts(&mut alone), HashMap::from([(root.id(), 1)]));
    let error = Rings::options().tracepoint(EXEC).pid_tree(u32::MAX).open().unwrap_err();
    assert_error!(error, NotFound, "there is no process 4294967295 to trace");
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

/// Threads that come while events are opened are traced, and none of them twice: at whatever moment they come.
#[test]
fn no_thread_is_missed_or_traced_twice_that_comes_meanwhile() {
    apart!();
    for round in 0..12u64 {
        let (rings, callers) = std::thread::scope(|scope| {
            let (go, started) = mpsc::channel();
            let comers = scope.spawn(move || {
                started.recv().unwrap();
                std::thread::sleep(Duration::from_micros(200 * round));
                [Caller::new(), Caller::new(), Caller::new()]
            });
            // Many events, so that it takes long to open them.
            let options = Rings::options().tracepoint("syscalls:sys_enter_get*id");
            let options = options.sample(bindings::PERF_SAMPLE_TID).pages(1).pid(std::process::id());
            go.send(()).unwrap();
            (options.open(), comers.join().unwrap())
        });
        let rings = match rings {
            // This error is expected: other tests start threads too.
            Err(error) if error.kind() == ErrorKind::Limit => {
                assert_error!(error, Limit, "were others each time");
                continue;
            }
            rings => kernel("trace a process", rings),
        };
        let Some(rings) = rings else { return };
        let getppid = rings.sources().iter().position(|source| source.tracepoint() == Some(GETPPID)).unwrap();
        let mut reader = Reader::new(rings, Order::new()).unwrap();
        callers.iter().for_each(|caller| caller.call(1));
        let mut counts = HashMap::new();
        reading::all(&mut reader, |event| {
            if let Some(record) = event.record().filter(|record| record.source() == Some(getppid)) {
                *counts.entry(record.pid_tid().unwrap().1).or_insert(0) += 1;
            }
        });
        for caller in &callers {
            assert_eq!(counts.get(&caller.tid), Some(&1), "round {round}: {counts:?}");
        }
    }
}

/// When all that was traced has ended, the reader sleeps, although the kernel reports it again and again (`EPOLLHUP`).
#[test]
fn a_process_that_has_ended_keeps_nobody_awake() {
    let mut child = Shell::new();
    let Some(rings) = open(Rings::options().tracepoint(EXEC).pid(child.id())) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    child.tell("/bin/true; /bin/true");
    child.end();
    let counted = counts(&mut reader);
    assert_eq!((counted.len(), counted.values().sum::<usize>()), (2, 2), "the children of the shell: {counted:?}");
    // It does not keep a program awake that polls the descriptor either.
    for fd in reader.rings().fds() {
        let mut polled = [PollFd::new(fd, PollFlags::POLLIN)];
        nix::poll::poll(&mut polled, PollTimeout::ZERO).unwrap();
        assert!(!polled[0].revents().unwrap().contains(PollFlags::POLLHUP));
    }
    let before = reader.status().wakes;
    for _ in 0..10 {
        assert!(reader.next_timeout(Duration::from_millis(20)).unwrap().is_none());
    }
    let wakes = reader.status().wakes - before;
    assert!(wakes < 10, "woken {wakes} times without an event");
}

/// What a process starts is on rings whose first thread has long ended.
#[test]
fn children_are_traced_when_their_parent_is_gone() {
    let mut child = Shell::new();
    let Some(rings) = open(Rings::options().tracepoint(EXEC).pid(child.id())) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    child.tell("true");
    // Another shell with the same input and output. The first shell reports before it reads further.
    child.write("sh -c 'echo; exec sh'");
    child.answer();
    child.0.kill().unwrap();
    let stdin = child.0.stdin.take();
    child.0.wait().unwrap();
    child.0.stdin = stdin;
    child.tell("/bin/true");
    let counted = counts(&mut reader);
    assert_eq!(
        (counted.len(), counted.values().sum::<usize>()),
        (2, 3),
        "the shell, twice, and what it starts: {counted:?}"
    );
    // The second shell ends with its input.
    drop(child.0.stdin.take());
}

/// Registers and stacks have masks and sizes, which the ring's owner does not need.
#[test]
fn registers_of_a_thread_are_recorded() {
    let options = Rings::options().event_name("page-faults").user_only().tid(threads::own() as u32);
    let options = options.sample_registers(1 << 7 | 1 << 8, 0).sample_stack(256);
    let Some(rings) = kernel("trace a thread", options.open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    drop(std::hint::black_box(vec![1u8; 1 << 20]));
    let mut seen = 0;
    reading::all(&mut reader, |event| {
        let record = event.record().unwrap();
        // The ABI and two registers.
        assert_eq!(record.field(bindings::PERF_SAMPLE_REGS_USER).unwrap().len(), 24);
        assert!(record.field(bindings::PERF_SAMPLE_STACK_USER).unwrap().len() >= 256);
        seen += 1;
    });
    assert!(seen > 0);
}

#[test]
fn a_process_that_is_not_there_is_said_so() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let Some(_) = open(Rings::options().tracepoint(EXEC)) else { return };
    let options = || Rings::options().tracepoint(EXEC);
    for pid in [child.id(), u32::MAX, 0] {
        let error = options().pid(pid).open().unwrap_err();
        assert_error!(error, NotFound, format!("there is no process {pid} to trace"));
    }
    let error = options().tid(child.id()).open().unwrap_err();
    assert_error!(error, NotFound);
    let error = options().cgroup("/no/such/group").open().unwrap_err();
    assert_error!(error, NotFound, "cannot open the control group /no/such/group");
}

/// A process number that another process has received since does not name that process.
#[test]
fn a_number_that_another_has_got_since_is_not_traced() {
    let options = || Rings::options().tracepoint(GETPPID).sample(bindings::PERF_SAMPLE_TID);
    let Some(_) = open(options()) else { return };
    let mut child = Shell::new();
    let (name, number) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        name.send(own()).unwrap();
        std::thread::park();
    });
    let tid = number.recv().unwrap();
    let named = [(options().pid(child.id()), child.id()), (options().tid(tid), tid)];
    child.end();
    thread.thread().unpark();
    thread.join().unwrap();
    for (options, number) in named {
        // A thread is gone a moment after it was joined.
        let gone = format!("/proc/{number}");
        threads::until("nobody has the number", || !std::path::Path::new(&gone).exists());
        let Some(mut other) = kernel("choose a process's number", Numbered::start(number)) else { return };
        match options.open() {
            Err(error) => assert_error!(error, NotFound, format!("there is no process {number} to trace")),
            Ok(rings) => {
                let mut reader = Reader::new(rings, Order::new()).unwrap();
                other.call(0, 10);
                panic!("{:?} events of another process", counts(&mut reader));
            }
        }
    }
}

/// Control groups of version 1 lie in several hierarchies, and perf knows the groups of one alone.
#[test]
fn a_control_group_of_another_hierarchy_is_said_so() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let groups = |line: &&str| {
        let words: Vec<_> = line.split(' ').collect();
        words[2] == "cgroup" && !words[3].split(',').any(|option| option == "perf_event")
    };
    let Some(line) = mounts.lines().find(groups) else {
        return perfweave_support::lacks("mounted control groups of version 1");
    };
    let path = line.split(' ').nth(1).unwrap();
    let Some(_) = open(Rings::options().tracepoint(EXEC)) else { return };
    for options in [Rings::options().tracepoint(EXEC), Rings::options().event_name("cpu-clock")] {
        let error = options.cgroup(path).open().unwrap_err().to_string();
        assert!(error.contains("control groups of version 1 without perf_event"), "{error}");
        assert!(!error.contains("tracepoint of number"), "{error}");
    }
}

#[test]
fn bpf_output_is_for_everybody() {
    let Some(map) = kernel("make a map", bpf::Map::perf_event_array(load::slots())) else { return };
    for options in [Rings::options().pid(1), Rings::options().tid(1), Rings::options().cgroup("/")] {
        let error = options.bpf_output(&map).open().unwrap_err();
        assert_error!(error, InvalidInput, "is a record of the whole machine");
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
    let (mut inside, mut outside) = (Shell::new(), Shell::new());
    inside.tell(&format!("echo $$ > {}/cgroup.procs", group.0.display()));
    for _ in 0..5 {
        inside.tell("/bin/true");
        outside.tell("/bin/true");
    }
    let counted = counts(&mut reader);
    assert_eq!((counted.len(), counted.values().sum::<usize>()), (5, 5), "{counted:?}");
    inside.end();
    let error = Rings::options().tracepoint(EXEC).cgroup("/").open().unwrap_err();
    assert!(error.to_string().contains("control group"), "{error}");
}
