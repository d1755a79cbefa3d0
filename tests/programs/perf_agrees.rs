//! The examples compared with perf(1): the same workload at the same time, the same events, the same counts, the same
//! order.
//!
//! The workload is a shell that waits for a line. The test writes the line when both have reported that they trace.
//! Both continue until the shell has ended. The differences and their reasons:
//!
//! - **Stamps.** perf's event and ours are two events. Each reads the clock by itself when the tracepoint is hit, one
//!   after the other, so no stamp is the same. But a CPU is done with one hit before the next. So our stamp of a hit
//!   lies between perf's stamps of the hit before and the hit behind on that CPU. The tests check that, and no
//!   distance.
//! - **Order across CPUs.** Two hits on two CPUs at the same time can have one order by perf's stamps and the other by
//!   ours. Both are right, each by its own stamps. Hits on one CPU are in the same order in both.
//! - **The begin.** The shell waits in a system call when tracing begins: both see the call's return, and neither sees
//!   its entry. A switch away before that is in neither.
//! - **The end.** `latency` and `offcpu` end with the record that says so (`PERF_RECORD_EXIT`). After it the shell
//!   leaves the CPU once more and does not come back. perf's timehist has a line for that, and `offcpu` has no time.
//! - **Forks.** A child returns from a call that its parent entered. So `latency` counts more returns than calls with a
//!   known time: one more for each child, and one for the call in which the shell waited.
//! - **Digits.** `perf script` prints microseconds. Two records of one thread within a microsecond can make the same
//!   line. With `--ns` all lines differ: perf writes and prints each record once.
//! - **timehist's columns.** `wait time` is all the time off the CPU, the `sch delay` in it included.
//! - **What the kernel does not write.** Sometimes the kernel leaves switches out: the next switch on that CPU is from
//!   another thread than the one that the last switch was to. Most are from an idle thread. No record and no count
//!   reports them (`PERF_RECORD_LOST`, `PERF_FORMAT_LOST`). perf nearly always lacks the same switches, and timehist
//!   then prints a wait of 0, where `offcpu` has no time. If the two differ and either has such a hole, the test tries
//!   again with another recording. Without a hole, a difference is a failure.

use crate::reading;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use perfweave::{Clock, Order, Reader, Rings};
use perfweave_events::{EventOptions, Format};
use perfweave_support::perf::complaints;
use perfweave_support::{kernel, lacks, load, needs, threads};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// A folder of one test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("perfweave-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that is killed when the test ends, even by a failure.
struct Running(Child);

impl Running {
    fn new(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A shell that runs a script on request.
struct Shell {
    process: Running,
    go: ChildStdin,
}

impl Shell {
    fn new(script: &str) -> Self {
        let script = format!("read go; {script}");
        let mut process = Running::new(Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()));
        let go = process.0.stdin.take().unwrap();
        // Waits until the shell waits: its calls until then are no part of the workload.
        let stat = format!("/proc/{}/stat", process.0.id());
        threads::until("the shell waits", || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S ")));
        Self { process, go }
    }

    fn pid(&self) -> String {
        self.process.0.id().to_string()
    }

    /// Starts the script, and waits for its end.
    fn run(&mut self) {
        self.go.write_all(b"go\n").unwrap();
        assert!(self.process.0.wait().unwrap().success());
    }
}

/// perf, told by a pipe when to begin.
struct Perf {
    process: Running,
    /// The file with its stderr.
    said: String,
    _control: File,
}

impl Perf {
    /// Starts `perf COMMAND... --control ...`, and returns when its events are enabled.
    fn start(folder: &Folder, command: &[&str]) -> Self {
        let [control, ack] = ["control", "ack"].map(|name| folder.file(name));
        for path in [&control, &ack] {
            mkfifo(path.as_str(), Mode::S_IRWXU).unwrap();
        }
        // Opened for reading and writing. Otherwise opening would wait for perf.
        let open = |path: &str| File::options().read(true).write(true).open(path).unwrap();
        let (mut told, mut answer) = (open(&control), open(&ack));
        let pipes = format!("fifo:{control},{ack}");
        let (verbs, rest) = command.split_at(if command[0] == "sched" { 2 } else { 1 });
        let mut process = Command::new("perf");
        process.args(verbs).args(["-D", "-1", "--control", &pipes]).args(rest);
        let said_by = folder.file("said");
        let stderr = File::create(&said_by).unwrap();
        let process = Running::new(process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr));
        told.write_all(b"enable\n").unwrap();
        let mut said = [0; 4];
        answer.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"ack\n");
        Self { process, said: said_by, _control: told }
    }

    /// Stops perf unless it ends with its command, and waits until it has written everything.
    fn end(mut self, by_itself: bool) {
        if !by_itself {
            kill(Pid::from_raw(self.process.0.id() as i32), Signal::SIGINT).unwrap();
        }
        self.process.0.wait().unwrap();
        let said = std::fs::read_to_string(&self.said).unwrap();
        let complaints = complaints(&said);
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

/// The output of perf for its recording.
fn printed(command: &[&str]) -> String {
    perfweave_support::perf::printed(Command::new("perf").args(command)).unwrap()
}

/// An example that traces, and its output.
struct Tool(Running, BufReader<std::process::ChildStderr>);

impl Tool {
    fn start(path: &Path, arguments: &[&str]) -> Self {
        let mut process = Command::new(path);
        let mut process = Running::new(process.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()));
        let mut said = BufReader::new(process.0.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.starts_with("tracing"), "{line}");
        Self(process, said)
    }

    /// Waits for its end; its output, and its last line.
    fn end(mut self) -> (String, String) {
        let (mut output, mut said) = (String::new(), String::new());
        self.0.0.stdout.take().unwrap().read_to_string(&mut output).unwrap();
        self.1.read_to_string(&mut said).unwrap();
        assert!(self.0.0.wait().unwrap().success(), "{said}");
        assert!(said.contains("lost 0, late 0"), "{said}");
        (output, said)
    }
}

/// Requirements of all tests: tracefs and perf.
fn perf() -> Option<()> {
    kernel("find tracefs", perfweave_events::tracefs())?;
    perfweave_support::perf()
}

/// An example as `cargo test` has built it.
fn example(name: &str) -> Option<PathBuf> {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    needs(&format!("{}: cargo build --examples", path.display()), path.exists())?;
    Some(path)
}

fn numbers(text: &str) -> Vec<u64> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// Each call that was entered and each that returned, counted by `perf stat`, all and by name.
#[test]
fn latency_counts_what_perf_stat_counts() {
    let (Some(()), Some(tool)) = (perf(), example("latency")) else { return };
    let folder = Folder::new("stat");
    let children = 20;
    let mut shell =
        Shell::new(&format!("i=0; while [ $i -lt {children} ]; do /bin/true; i=$((i+1)); done; true >/dev/null"));
    let named = [("wait4", libc::SYS_wait4), ("openat", libc::SYS_openat), ("mmap", libc::SYS_mmap)];
    let counts = folder.file("counts");
    let events = named.map(|(name, _)| format!("syscalls:sys_exit_{name}"));
    let events = format!("raw_syscalls:sys_enter,raw_syscalls:sys_exit,{}", events.join(","));
    let perf = Perf::start(&folder, &["stat", "-x", ",", "-o", &counts, "-e", &events, "-p", &shell.pid()]);
    let ours = Tool::start(&tool, &["--pid", &shell.pid()]);
    shell.run();
    let (table, said) = ours.end();
    perf.end(true);

    let counted: HashMap<String, u64> = std::fs::read_to_string(&counts)
        .unwrap()
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(',');
            let count = fields.next()?.parse().ok()?;
            Some((fields.nth(1)?.to_owned(), count))
        })
        .collect();
    let ours: BTreeMap<i64, u64> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        })
        .collect();
    let [entered, returned] = numbers(&said)[..2] else { panic!("{said}") };
    println!("latency: {entered} entered, {returned} returned; perf stat: {counted:?}");
    assert_eq!(entered, counted["raw_syscalls:sys_enter"]);
    assert_eq!(returned, counted["raw_syscalls:sys_exit"]);
    for (name, number) in named {
        assert_eq!(ours[&number], counted[&format!("syscalls:sys_exit_{name}")], "{name}");
    }
    // The call in which the shell waited, and one for each child. exit_group(2) is entered and does not return.
    assert_eq!(returned - ours.values().sum::<u64>(), 1 + children);
}

/// Each time off the CPU, as `perf sched timehist` has it.
#[test]
fn offcpu_has_the_times_that_timehist_has() {
    let (Some(()), Some(tool)) = (perf(), example("offcpu")) else { return };
    until_whole(|| offcpu_beside_timehist(&tool));
}

fn offcpu_beside_timehist(tool: &Path) -> bool {
    let folder = Folder::new("timehist");
    let sleeps = 30;
    // A CPU that is idle may write no switch away from its idle thread (a virtual machine here does not): no CPU is
    // idle.
    let cpus = std::thread::available_parallelism().unwrap().get();
    let _busy: Vec<_> =
        (0..cpus).map(|_| Running::new(Command::new("nice").args(["sh", "-c", "while :; do :; done"]))).collect();
    let mut shell = Shell::new(&format!("i=0; while [ $i -lt {sleeps} ]; do sleep 0.002; i=$((i+1)); done"));
    let (pid, data) = (shell.pid(), folder.file("perf.data"));
    let perf = Perf::start(&folder, &["sched", "record", "-N", "-k", "CLOCK_MONOTONIC", "-m", "16M", "-o", &data]);
    let ours = Tool::start(tool, &["--pid", &pid, "--each"]);
    let begin = Clock::Monotonic.now().unwrap();
    shell.run();
    let (output, _) = ours.end();
    perf.end(false);

    // From when to when, both in nanoseconds.
    let each: Vec<(u64, u64)> = output
        .lines()
        .filter_map(|line| match numbers(line)[..] {
            [back, tid, off, ready] if tid.to_string() == pid => {
                assert!(ready <= off, "{line}");
                Some((back - off, back))
            }
            _ => None,
        })
        .collect();
    let row = output.lines().find(|line| line.trim_start().starts_with(&format!("{pid} sh "))).expect("a row");
    assert_eq!(row.split_whitespace().nth(2).unwrap().parse(), Ok(each.len()), "{row}");

    // The same from perf's recording, as indexes of its switches.
    let script = printed(&["script", "--ns", "-F", "cpu,time,event,trace", "-i", &data]);
    let switches: Vec<Switch> = script.lines().filter_map(Switch::parse).collect();
    let tid: u64 = pid.parse().unwrap();
    let (mut went, mut theirs) = (None, Vec::new());
    for (at, Switch { tasks: [prev, next], .. }) in switches.iter().enumerate() {
        if *next == tid {
            theirs.extend(went.take().map(|went| (went, at)));
        }
        went = if *prev == tid { Some(at) } else { went };
    }
    let ours: Vec<_> = each.into_iter().filter(|(from, _)| *from > begin).collect();
    theirs.retain(|(from, _)| switches[*from].time > begin);
    if theirs.len() < ours.len() {
        assert!(!are_whole(&switches), "{ours:?} {switches:?}");
        return false;
    }
    for (at, (from, to)) in ours.iter().enumerate() {
        let time = |at: usize| switches[at].time;
        let (their_from, their_to) = theirs[at];
        // Our time of each lies between perf's times of the thread's events before and after.
        let came = at.checked_sub(1).map_or(0, |before| time(theirs[before].1));
        let goes = theirs.get(at + 1).map_or(u64::MAX, |behind| time(behind.0));
        assert!(came < *from && *from < time(their_to), "{at}: {ours:?} {switches:?}");
        assert!(time(their_from) < *to && *to < goes, "{at}: {ours:?} {switches:?}");
    }
    assert!(ours.len() > 5, "{ours:?}");
    // A dying thread can still be preempted.
    let end = ours.last().unwrap().1;
    assert!(theirs[ours.len()..].iter().all(|(from, _)| switches[*from].time > end), "{ours:?} {theirs:?}");

    // timehist has a line for each time that the thread left the CPU, with how long it was away before that.
    let timehist = printed(&["sched", "timehist", "-i", &data]);
    let waits: HashMap<u64, u64> = timehist.lines().filter_map(|line| waited(line, &pid)).collect();
    let (mut total, mut told) = (0, 0);
    for ((from, to), (their_from, their_to)) in ours.iter().zip(&theirs) {
        // timehist uses the previous switch on that CPU as the time when the thread came.
        let cpu = switches[*their_to].cpu;
        let Some(left) = switches[their_to + 1..].iter().find(|switch| switch.cpu == cpu) else { continue };
        if left.tasks[0] != tid {
            continue;
        }
        let Some(&wait) = waits.get(&(left.time / 1000)) else {
            assert!(!are_whole(&switches), "{left:?}");
            continue;
        };
        let away = switches[*their_to].time - switches[*their_from].time;
        assert!(wait.abs_diff(away) <= 1000, "{wait} {away}, ours {}", to - from);
        (total, told) = (total + (to - from), told + wait);
    }
    println!("offcpu: {} times, {total} ns; timehist: {told} ns", ours.len());
    true
}

/// A line of timehist, if it is that thread's: when it left the CPU, in microseconds, and for how long it was away
/// before that, in nanoseconds.
fn waited(line: &str, tid: &str) -> Option<(u64, u64)> {
    let [time, .., wait, _, _] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
    let task = line.rsplit_once('[')?.1.split(']').next()?;
    let (left, wait): (u64, u64) = (time.replace('.', "").parse().ok()?, wait.replace('.', "").parse().ok()?);
    (task.split('/').next() == Some(tid)).then_some((left, wait * 1000))
}

/// All switches of all CPUs: on each CPU the same, one by one, and each of our stamps between perf's.
#[test]
fn switches_are_perfs_in_perfs_order() {
    let Some(()) = perf() else { return };
    let options = || Rings::options().tracepoint("sched:sched_switch").bytes(16 << 20).open();
    let Some(_) = kernel("trace", options()) else { return };
    until_whole(|| switches_beside_perf(options().unwrap()));
}

fn switches_beside_perf(rings: Rings) -> bool {
    let folder = Folder::new("order");
    let data = folder.file("perf.data");
    let mut shell = Shell::new("i=0; while [ $i -lt 50 ]; do sleep 0.001 | cat; i=$((i+1)); done");
    let format = Format::of(&rings, 0).unwrap();
    let [prev, next] = ["prev_pid", "next_pid"].map(|name| format.field(name).unwrap());
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    // Within our time, so that all that perf sees is ours.
    let switch = "sched:sched_switch";
    let perf =
        Perf::start(&folder, &["record", "-N", "-k", "CLOCK_MONOTONIC", "-m", "16M", "-a", "-e", switch, "-o", &data]);
    shell.run();
    perf.end(false);
    let mut ours = Vec::new();
    reading::all(&mut reader, |event| {
        let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
        let tasks = [&prev, &next].map(|field| field.uint(&record).unwrap());
        ours.push(Switch { cpu: record.cpu(), time: record.time().unwrap(), tasks });
    });
    assert!(ours.is_sorted_by_key(|switch| switch.time) && reader.status().total().late == 0);

    let script = printed(&["script", "--ns", "-F", "cpu,time,event,trace", "-i", &data]);
    let theirs: Vec<Switch> =
        script.lines().map(|line| Switch::parse(line).unwrap_or_else(|| panic!("{line}"))).collect();
    assert!(theirs.is_sorted_by_key(|switch| switch.time), "perf script sorts by time");
    // Where each of perf's is among ours.
    let mut places = HashMap::new();
    for cpu in load::online() {
        let of = |all: &[Switch]| -> Vec<usize> { (0..all.len()).filter(|at| all[*at].cpu == cpu).collect() };
        let (mine, perfs) = (of(&ours), of(&theirs));
        let Some(first) = perfs.first() else { continue };
        let fits = |begin: usize| {
            begin + perfs.len() <= mine.len()
                && perfs.iter().zip(&mine[begin..]).all(|(perf, own)| theirs[*perf].tasks == ours[*own].tasks)
        };
        // Hits on one CPU do not overlap.
        let behind = mine.partition_point(|own| ours[*own].time < theirs[*first].time);
        let begin = (behind.saturating_sub(1)..=behind).find(|begin| fits(*begin));
        let Some(begin) = begin else {
            let (perfs, mine) = (perfs.len(), mine.len());
            assert!(!are_whole(&ours) || !are_whole(&theirs), "CPU {cpu}: {perfs} of perf's, {mine} of ours");
            return false;
        };
        for (at, perf) in perfs.iter().enumerate() {
            let time = ours[mine[begin + at]].time;
            let before = at.checked_sub(1).map_or(0, |before| theirs[perfs[before]].time);
            let after = perfs.get(at + 1).map_or(u64::MAX, |after| theirs[*after].time);
            assert!((before..=after).contains(&time), "CPU {cpu}: {before} {time} {after}");
            places.insert(*perf, mine[begin + at]);
        }
    }
    assert_eq!(places.len(), theirs.len(), "each of perf's is one of ours");
    let mut largest = 0;
    let mut otherwise = 0;
    for perf in 0..theirs.len() {
        if places[&perf] < largest {
            assert_ne!(ours[places[&perf]].cpu, ours[largest].cpu);
            otherwise += 1;
        }
        largest = largest.max(places[&perf]);
    }
    let all = ours.len();
    println!("perf script: {} switches, ours: {all}; {otherwise} have another order across CPUs", theirs.len());
    assert!(theirs.len() > 100);
    true
}

/// Compares again if the two differ because the kernel left switches out. If they always differ, the test notes it.
fn until_whole(compare: impl Fn() -> bool) {
    if !(0..10).any(|_| compare()) {
        lacks("all switches in sched:sched_switch: perf and perfweave lacked different ones, ten times");
    }
}

/// Whether each switch on a CPU is from the thread that the one before was to.
fn are_whole(switches: &[Switch]) -> bool {
    let mut running = HashMap::new();
    switches.iter().all(|switch| running.insert(switch.cpu, switch.tasks[1]).is_none_or(|was| was == switch.tasks[0]))
}

#[derive(Debug)]
struct Switch {
    cpu: u32,
    time: u64,
    tasks: [u64; 2],
}

impl Switch {
    /// `[000] 39662.905797062: sched:sched_switch: prev_comm=... prev_pid=26766 ... next_pid=18 ...`
    fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        if !line.contains(" sched:sched_switch: ") {
            return None;
        }
        let (cpu, rest) = line.strip_prefix('[')?.split_once(']')?;
        let (time, rest) = rest.trim().split_once(": ")?;
        let pid = |name: &str| rest.rsplit_once(name)?.1.split(' ').next()?.parse().ok();
        let time = time.replace('.', "").parse().ok()?;
        Some(Self { cpu: cpu.parse().ok()?, time, tasks: [pid("prev_pid=")?, pid("next_pid=")?] })
    }
}

/// perf's lines are as many as our records. Some look the same with microseconds, none with nanoseconds.
#[test]
fn perf_script_has_each_record_once() {
    let Some(()) = perf() else { return };
    let folder = Folder::new("script");
    let data = folder.file("perf.data");
    let mut shell = Shell::new("i=0; while [ $i -lt 3000 ]; do umask 0; umask 0; i=$((i+1)); done");
    let pid = shell.process.0.id();
    let options = Rings::options().tracepoint("raw_syscalls:sys_enter").tracepoint("raw_syscalls:sys_exit").pid(pid);
    let Some(rings) = kernel("trace", options.bytes(32 << 20).open()) else { return };
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let events = "raw_syscalls:sys_enter,raw_syscalls:sys_exit";
    let command = ["record", "-N", "-k", "CLOCK_MONOTONIC", "-m", "32M", "-e", events, "-o", &data, "-p", &shell.pid()];
    let perf = Perf::start(&folder, &command);
    shell.run();
    perf.end(true);
    let mut ours = 0;
    reading::all(&mut reader, |event| {
        assert!(event.record().is_some(), "{event:?}");
        ours += 1;
    });
    let script = |precision: &[&str]| printed(&[&["script", "-i", &data][..], precision].concat());
    let (micros, nanos) = (script(&[]), script(&["--ns"]));
    let twice = |text: &str| text.lines().count() - text.lines().collect::<HashSet<_>>().len();
    println!(
        "{ours} records; perf script: {} lines, of which {} look like another, and {} with --ns",
        micros.lines().count(),
        twice(&micros),
        twice(&nanos)
    );
    assert_eq!((micros.lines().count(), nanos.lines().count()), (ours, ours));
    assert!(twice(&nanos) <= twice(&micros));
}
