//! `perfweave why` as a person runs it. The delays are injected, and the program that has them tells when they began
//! and ended.

mod program;

use program::{perfweave, run, traced};
use serde_json::Value;
use std::process::{Command, Stdio};

/// What the scripts share: one CPU for all, the clock, and whether another process is asleep. The CPU is never idle,
/// because there kernels leave out samples in interrupts (docs/PLATFORMS.md).
const COMMON: &str = "\
import fcntl, os, sys, termios, threading, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
now = lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC)
def asleep(tid):
    while open(f'/proc/{tid}/stat').read().rsplit(')', 1)[1].split()[0] != 'S': time.sleep(0.001)
def told(tid, begin, end): os.write(1, f'{tid} {begin} {end}\\n'.encode())
def delay(of):
    asleep(of)
    begin = now()
    time.sleep(0.03)
    return begin
main = os.getpid()
if os.fork() == 0:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == main:
        for _ in range(100000): pass
    os._exit(0)
";

/// Someone who delays, and the time.
#[derive(Debug)]
struct Injected {
    tid: u64,
    begin: u64,
    end: u64,
}

impl Injected {
    /// How much of a step lies in it.
    fn part(&self, step: &Value) -> u64 {
        number(step, "to").min(self.end).saturating_sub(number(step, "from").max(self.begin))
    }

    /// Whether nothing of it is unknown.
    fn is_told(&self, path: &Value) -> bool {
        let steps = list(path, "path").iter().filter(|step| self.part(step) > 0);
        let is_told = |step: &Value| match step["what"].as_str() {
            Some("blocked") => !step["by"].is_null() && self.is_told(step),
            what => what != Some("unknown"),
        };
        steps.into_iter().all(is_told)
    }

    /// At least 99 of 100 nanoseconds are there.
    #[track_caller]
    fn is_found(&self, found: u64, path: &Value) {
        let lasted = self.end - self.begin;
        assert!(found <= lasted && found * 100 >= lasted * 99, "{found} of {self:?}, {lasted}: {path:#}");
    }
}

fn number(object: &Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or_else(|| panic!("{name}: {object}"))
}

fn list<'a>(object: &'a Value, name: &str) -> &'a [Value] {
    object[name].as_array().map_or(&[], Vec::as_slice)
}

/// Without a hole, and as long as they say.
#[track_caller]
fn adds_up(path: &Value) {
    let steps = list(path, "path");
    let times = |name: &str| steps.iter().map(|step| number(step, name)).collect::<Vec<_>>();
    let (begins, ends) = (times("from"), times("to"));
    assert_eq!((begins[0], *ends.last().unwrap()), (number(path, "from"), number(path, "to")), "{path:#}");
    assert_eq!(begins[1..], ends[..ends.len() - 1], "{path:#}");
    for step in steps {
        assert_eq!(number(step, "ns"), number(step, "to") - number(step, "from"), "{step}");
        let instead = list(step, "instead");
        if !instead.is_empty() {
            assert_eq!(instead.iter().map(|share| number(share, "ns")).sum::<u64>(), number(step, "ns"), "{step}");
        }
        if step.get("path").is_some() {
            adds_up(step);
        }
    }
    if path.get("culprits").is_some() {
        let sum: u64 = list(path, "culprits").iter().map(|culprit| number(culprit, "ns")).sum();
        assert_eq!(sum, number(path, "ns"), "{path:#}");
    }
}

/// The objects of a run that succeeds, and what it injected. Where nothing else may be lost, a run on a busy machine is
/// tried again.
fn objects(arguments: &[&str]) -> Option<(Vec<Value>, Vec<Injected>)> {
    for _ in 0..10 {
        let ran = traced(arguments)?;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let (objects, told): (Vec<_>, Vec<_>) = ran.out.lines().partition(|line| line.starts_with('{'));
        let objects: Vec<Value> = objects.into_iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        let summary = &objects.last().unwrap()["summary"];
        assert_eq!(summary["late"], 0, "{summary}");
        objects.iter().filter(|object| object.get("why").is_some()).for_each(adds_up);
        if summary["lost"] != 0 {
            continue;
        }
        let injected = told.into_iter().map(|line| {
            let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
            Injected { tid: numbers[0], begin: numbers[1], end: numbers[2] }
        });
        return Some((objects, injected.collect()));
    }
    perfweave_support::lacks("a run without losses, of ten");
    None
}

/// The paths alone.
fn whys(arguments: &[&str]) -> Option<(Vec<Value>, Vec<Injected>)> {
    let (mut objects, injected) = objects(arguments)?;
    objects.retain(|object| object.get("why").is_some());
    Some((objects, injected))
}

/// The path of a script from its first instruction until it ended, and the delay in it. The kernel leaves a wake-up or
/// a switch out now and then: then it is not known who ended a wait, and such a run is tried again.
fn of_script(script: &str) -> Option<(Value, Injected)> {
    let python = program::python()?;
    let script = format!("{COMMON}{script}");
    for _ in 0..10 {
        let (mut whys, mut injected) = whys(&["why", "--json", "--buffer", "16M", "--", &python, "-c", &script])?;
        assert_eq!((whys.len(), injected.len()), (1, 1), "{whys:?} {injected:?}");
        assert_eq!(whys[0]["why"], "command");
        let (path, injected) = (whys.remove(0), injected.remove(0));
        if injected.is_told(&path) {
            return Some((path, injected));
        }
    }
    perfweave_support::lacks("all wake-ups and switches, of ten runs");
    None
}

/// The script's main thread waits in this call for another, which sleeps meanwhile.
#[track_caller]
fn is_blocked_by_another(call: &str, script: &str) {
    let Some((path, injected)) = of_script(script) else { return };
    let is_wait = |step: &&Value| step["call"] == call && step["by"]["tid"] == injected.tid;
    let waits = list(&path, "path").iter().filter(is_wait);
    let within: Vec<_> = waits.flat_map(|step| list(step, "path")).collect();
    assert!(within.iter().all(|step| step["tid"] == injected.tid), "{path:#}");
    injected.is_found(within.iter().map(|step| injected.part(step)).sum(), &path);
    // Of that, what it did itself, or what it waited for: a timer, by name.
    let slept = within.iter().find(|step| step["call"] == "clock_nanosleep").unwrap_or_else(|| panic!("{path:#}"));
    assert_eq!(slept["by"]["interrupt"], "timer", "{path:#}");
}

#[test]
fn a_pipe_that_another_writes() {
    is_blocked_by_another(
        "read",
        "out, into = os.pipe()
if os.fork() == 0:
    begin = delay(main)
    end = now()
    os.write(into, b'!')
    told(os.getpid(), begin, end)
    os._exit(0)
os.read(out, 1)
os.wait()",
    );
}

/// A lock on a file, which another process holds.
const LOCK: &str = "name = f'/tmp/perfweave-why-{main}'
own = open(name, 'w')
out, into = os.pipe()
if os.fork() == 0:
    other = open(name, 'w')
    fcntl.flock(other, fcntl.LOCK_EX)
    os.write(into, b'!')
    # Not while it still reads.
    while fcntl.ioctl(out, termios.FIONREAD, bytes(4)) != bytes(4): time.sleep(0.001)
    begin = delay(main)
    end = now()
    fcntl.flock(other, fcntl.LOCK_UN)
    told(os.getpid(), begin, end)
    os._exit(0)
os.read(out, 1)
fcntl.flock(own, fcntl.LOCK_EX)
os.wait()
os.unlink(name)";

#[test]
fn a_lock_on_a_file_that_another_holds() {
    is_blocked_by_another("flock", LOCK);
}

#[test]
fn a_lock_of_another_thread() {
    is_blocked_by_another(
        "futex",
        "lock = threading.Lock()
lock.acquire()
def other():
    begin = delay(main)
    end = now()
    lock.release()
    told(threading.get_native_id(), begin, end)
of = threading.Thread(target=other)
of.start()
lock.acquire()
of.join()",
    );
}

#[test]
fn a_child_that_has_not_ended() {
    is_blocked_by_another(
        "wait4",
        "if os.fork() == 0:
    begin = delay(main)
    told(os.getpid(), begin, now())
    os._exit(0)
os.wait()",
    );
}

/// Blocked steps of a path and of those within, in this call.
fn in_call<'a>(path: &'a Value, call: &str, found: &mut Vec<&'a Value>) {
    for step in list(path, "path") {
        if step["call"] == call {
            found.push(step);
        }
        in_call(step, call, found);
    }
}

/// The process lives on with the file that it waited for, so its name can be asked for.
#[test]
fn a_file_that_is_waited_for_has_its_name() {
    let script = &format!("{LOCK}\ntime.sleep(0.5)");
    for _ in 0..10 {
        let Some((path, _)) = of_script(script) else { return };
        let mut locks = Vec::new();
        in_call(&path, "flock", &mut locks);
        let names: Vec<_> = locks.iter().filter_map(|lock| lock["file"].as_str()).collect();
        assert!(names.iter().all(|name| name.starts_with("/tmp/perfweave-why-")), "{names:?}");
        if !names.is_empty() {
            return;
        }
    }
    perfweave_support::lacks("the name of a file that is open for half a second, of ten runs");
}

/// The descriptor is of another file when it is asked for its name.
#[test]
fn a_file_that_came_later_is_not_what_was_waited_for() {
    let script = "name = f'/tmp/perfweave-why-{main}'
out, into = os.pipe()
later = os.open(name, os.O_CREAT | os.O_RDWR)
if os.fork() == 0:
    begin = delay(main)
    end = now()
    os.write(into, b'!')
    told(os.getpid(), begin, end)
    os._exit(0)
os.read(out, 1)
os.dup2(later, out)
os.unlink(name)
os.wait()
time.sleep(0.5)";
    let Some((path, injected)) = of_script(script) else { return };
    let mut reads = Vec::new();
    in_call(&path, "read", &mut reads);
    assert!(reads.iter().any(|read| injected.part(read) > 0), "{path:#}");
    let name = |read: &&Value| read["file"].as_str().is_none_or(|name| !name.contains("perfweave-why-"));
    assert!(reads.iter().all(name), "{path:#}");
}

#[test]
fn a_signal_that_ends_a_wait_has_its_name() {
    let script = "import signal
signal.signal(signal.SIGUSR1, lambda *of: None)
signal.signal(signal.SIGALRM, lambda *of: None)
signal.signal(signal.SIGCHLD, lambda *of: None)
out, into = os.pipe()
if os.fork() == 0:
    asleep(main)
    # The end of the pipe wakes its reader. The signal of a child that ends comes behind that.
    os._exit(0)
os.close(into)
os.read(out, 1)
os.wait()
if os.fork() == 0:
    begin = delay(main)
    end = now()
    os.kill(main, signal.SIGUSR1)
    told(os.getpid(), begin, end)
    os._exit(0)
signal.pause()
signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
signal.pause()
signal.setitimer(signal.ITIMER_REAL, 0)
os.wait()";
    // Of a signal from an interrupt it is not always told which thread it woke: another fact of that CPU may come in
    // between.
    for _ in 0..10 {
        let Some((path, injected)) = of_script(script) else { return };
        let (mut pauses, mut reads) = (Vec::new(), Vec::new());
        in_call(&path, "pause", &mut pauses);
        in_call(&path, "read", &mut reads);
        assert!(reads.iter().all(|read| read["signal"].is_null()), "{path:#}");
        let mut named: Vec<_> =
            pauses.iter().filter_map(|pause| Some((pause["signal"].as_str()?, &pause["by"]))).collect();
        named.sort_by_key(|(signal, _)| *signal);
        let is_right = |(signal, by): &(&str, &Value)| match *signal {
            "SIGALRM" => by["interrupt"] == "timer",
            // The one that has sent it ends soon after.
            "SIGUSR1" | "SIGCHLD" => by["tid"] == injected.tid,
            _ => false,
        };
        assert!(named.iter().all(is_right), "{path:#}");
        if let [("SIGALRM", _), ("SIGUSR1", _)] = named[..] {
            return;
        }
    }
    perfweave_support::lacks("the names of two signals, of ten runs");
}

/// It sleeps, and nobody else has a part in it.
#[test]
fn a_sleep_of_its_own() {
    let script = "begin = now()\ntime.sleep(0.03)\ntold(main, begin, now())";
    let Some((path, injected)) = of_script(script) else { return };
    injected.is_found(list(&path, "path").iter().map(|step| injected.part(step)).sum(), &path);
    let sleeps = list(&path, "path").iter().filter(|step| step["call"] == "clock_nanosleep");
    let sleeps: Vec<_> =
        sleeps.map(|step| (step["by"]["interrupt"].as_str(), number(step, "ns") >= 29_000_000)).collect();
    assert_eq!(sleeps, [(Some("timer"), true)], "{path:#}");
}

/// A real-time thread writes to it and computes on its CPU. It is ready all that time.
#[test]
fn a_hog_on_its_cpu() {
    let script = "out, into = os.pipe()
if os.fork() == 0:
    asleep(main)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.write(into, b'!')
    begin = now()
    while now() < begin + 30000000: pass
    end = now()
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    told(os.getpid(), begin, end)
    os._exit(0)
os.read(out, 1)
os.wait()";
    let Some((path, injected)) = of_script(script) else { return };
    let ready = list(&path, "path").iter().filter(|step| step["what"] == "ready" && injected.part(step) > 0);
    let shares = ready.flat_map(|step| list(step, "instead")).filter(|share| share["tid"] == injected.tid);
    let had: u64 = shares.map(|share| number(share, "ns")).sum();
    // It has the CPU before and after as well.
    injected.is_found(had.min(injected.end - injected.begin), &path);
    let is_hog = |culprit: &&Value| culprit["what"] == "had the CPU" && culprit["tid"] == injected.tid;
    let hog = list(&path, "culprits").iter().find(is_hog).unwrap_or_else(|| panic!("{path:#}"));
    assert!(number(hog, "ns") >= had, "{path:#}");
}

/// Of a recording too, and in words. The process is the shell that is recorded: it waits for its child, which sleeps.
/// The recorder's own records are left out, and so is who ran behind it: such a run is tried again.
#[test]
fn a_recording_tells_it_too() {
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    let file = std::env::temp_dir().join(format!("perfweave-why-{}", std::process::id()));
    let file = file.to_str().unwrap();
    let is_told = (0..10).any(|_| {
        let events = "sched:sched_switch,sched:sched_waking,raw_syscalls:*";
        let script = "echo $$; sleep 0.03; :";
        let record =
            ["record", "-a", "--call-graph", "--buffer", "16M", "-e", events, "-o", file, "--", "sh", "-c", script];
        let ran = run(perfweave().args(record), "");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let ran = run(perfweave().args(["why", "--json", "-n", "9", "-p", ran.out.trim(), file]), "");
        let objects = ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let whys: Vec<_> = objects.filter(|object| object.get("why").is_some()).collect();
        assert!(ran.code == Some(0) && whys.iter().all(|why| why["why"] == "wait"), "{ran:?}");
        whys.iter().for_each(adds_up);
        assert!(whys.windows(2).all(|two| number(&two[0], "ns") >= number(&two[1], "ns")), "{whys:?}");
        let steps = whys.iter().flat_map(|why| list(why, "path"));
        let mut waits = steps.filter(|step| step["call"] == "wait4" && step["by"]["thread"] == "sleep");
        waits.any(|wait| list(wait, "path").iter().any(|step| step["call"] == "clock_nanosleep"))
    });
    if !is_told {
        return perfweave_support::lacks("all switches of a shell in a recording, ten times");
    }
    let text = run(perfweave().args(["why", "-n", "1", "--comm", "sleep", file]), "");
    assert!(text.code == Some(0) && text.out.contains(" waited ") && text.out.contains("whose doing:"), "{text:?}");
    let stacks = run(perfweave().args(["why", "--json", "--stacks", "-n", "1", "--comm", "sleep", file]), "");
    let path: Value = serde_json::from_str(stacks.out.lines().next().unwrap()).unwrap();
    assert!(list(&path, "path").iter().any(|step| !list(step, "asleep_at").is_empty()), "{path:#}");
    let folded = run(perfweave().args(["why", "--folded", "--comm", "sleep", file]), "");
    assert!(folded.out.lines().any(|line| line.contains(";blocked in clock_nanosleep;")), "{folded:?}");
    std::fs::remove_file(file).unwrap();
}

/// Twenty requests to another process, which sleeps for one of them.
const REQUESTS: &str = "asked, ask = os.pipe()
answered, answer = os.pipe()
if os.fork() == 0:
    for _ in range(20):
        if os.read(asked, 1) == b's':
            begin = delay(main)
            told(os.getpid(), begin, now())
        os.write(answer, b'!')
    os._exit(0)
for number in range(20):
    os.getppid()
    os.write(ask, b's' if number == 7 else b'f')
    os.read(answered, 1)
    os.getpgrp()
os.wait()";

#[test]
fn slow_requests_are_set_beside_fast_ones() {
    let Some(python) = program::python() else { return };
    let script = format!("{COMMON}{REQUESTS}");
    let events = ["--from", "syscalls:sys_enter_getppid", "--to", "syscalls:sys_enter_getpgrp"];
    let arguments =
        [&["why", "--json", "-n", "20", "--buffer", "16M"][..], &events, &["--", &python, "-c", &script]].concat();
    let Some((objects, injected)) = objects(&arguments) else { return };
    let injected = &injected[0];
    let requests = &objects[0];
    assert_eq!(
        (number(&requests["requests"], "count"), &requests["slow"], &requests["fast"]),
        (20, &1.into(), &10.into())
    );
    let found: Vec<_> = objects.iter().filter(|object| object["why"] == "request").collect();
    assert_eq!(found.len(), 20, "{objects:?}");
    assert!(found.windows(2).all(|two| number(two[0], "ns") >= number(two[1], "ns")), "{found:#?}");
    let slow = found.iter().find(|path| number(path, "from") < injected.begin && injected.end < number(path, "to"));
    let slow = slow.unwrap_or_else(|| panic!("{injected:?} {found:#?}"));
    let by = list(slow, "path").iter().filter(|step| step["by"]["tid"] == injected.tid);
    injected.is_found(by.flat_map(|step| list(step, "path")).map(|step| injected.part(step)).sum(), slow);
    let slept =
        |row: &&Value| row["text"].as_str().unwrap().ends_with(" was blocked in clock_nanosleep: a timer ended it");
    let row = list(requests, "culprits").iter().find(slept).unwrap_or_else(|| panic!("{requests:#}"));
    // On a busy machine another request may be slower.
    let is_slowest = number(found[0], "from") == number(slow, "from");
    assert!(number(row, "fast_ns") == 0 && (!is_slowest || number(row, "slow_ns") >= 29_000_000), "{row}");
    let in_words = [&["why", "-n", "1", "--buffer", "16M"][..], &events, &["--", &python, "-c", &script]].concat();
    for _ in 0..10 {
        let text = traced(&in_words).unwrap();
        assert_eq!(text.code, Some(0), "{text:?}");
        // A request is not counted if records of it are lost.
        if ["nothing is missing", "no record is lost"].iter().any(|all| text.err.contains(all)) {
            for said in [
                "20 requests: p50 ",
                "distribution",
                " had a request that took ",
                "in the mean of the 1 slowest, beside the 10 fastest:",
            ] {
                assert!(text.out.contains(said), "{said}: {text:?}");
            }
            return;
        }
        assert!(text.err.contains(" lost"), "{text:?}");
    }
    perfweave_support::lacks("a run without losses, of ten");
}

/// A request may begin in a thread and end in another: what both events have in common joins them.
#[test]
fn a_field_joins_what_begins_to_what_ends() {
    let pair = ["--from", "sched:sched_process_fork", "--to", "sched:sched_process_exit", "--by", "child_pid=pid"];
    let script = "for i in 1 2 3; do /bin/true; done; :";
    let arguments = [&["why", "--json", "--buffer", "16M"][..], &pair, &["--", "sh", "-c", script]].concat();
    let Some((whys, _)) = whys(&arguments) else { return };
    assert!(whys.len() == 3 && whys.iter().all(|why| why["why"] == "request"), "{whys:?}");
    // The thread that ends it is the new one.
    assert!(whys.iter().all(|why| why["thread"] == "true"), "{whys:?}");
}

/// A thread that its control group's quota holds back is ready, even if its CPU is idle. The group's counters tell of
/// it.
#[test]
fn a_quota_is_told() {
    let group = std::path::Path::new("/sys/fs/cgroup/cpu").join(format!("perfweave-why-{}", std::process::id()));
    let new = std::path::Path::new("/sys/fs/cgroup").join(group.file_name().unwrap());
    let (group, quota) = if group.parent().unwrap().exists() { (group, "cpu.cfs_quota_us") } else { (new, "cpu.max") };
    let made = std::fs::create_dir(&group);
    let _removed = perfweave_support::threads::AtEnd(|| {
        let _ = std::fs::remove_dir(&group);
    });
    let value = if quota == "cpu.max" { "5000 100000" } else { "5000" };
    let made = made.and_then(|()| std::fs::write(group.join(quota), value));
    if perfweave_support::kernel("limit a control group's CPU time", made).is_none() {
        return;
    }
    // It goes on until its quota has held it back ten times. The first times may be before this program looks.
    let script = format!(
        "count() {{ sed -n 's/^nr_throttled //p' {0}/cpu.stat; }}
        echo $$ > {0}/cgroup.procs; end=$(($(count) + 10))
        while [ $(count) -lt $end ]; do i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done; done",
        group.display()
    );
    let Some((objects, _)) = objects(&["why", "--json", "--buffer", "16M", "--", "sh", "-c", &script]) else { return };
    let path = &objects[0];
    assert!(list(path, "path").iter().any(|step| step["what"] == "ready" && step["taken_off"] == true), "{path:#}");
    let quota = objects.iter().find(|object| object["quota"] == group.display().to_string().as_str());
    let quota = quota.unwrap_or_else(|| panic!("{:#?}", &objects[1..]));
    assert!(number(quota, "times") > 0 && number(quota, "ns") > 0, "{quota}");
}

/// What waits when the trace ends is told as well: nobody has woken it.
#[test]
fn a_wait_without_an_end_is_one() {
    let Some(python) = program::python() else { return };
    let mut waits = std::process::Command::new(&python);
    waits.args(["-c", "import os, time\nr, w = os.pipe()\ntime.sleep(0.2)\nos.read(r, 1)"]);
    let mut waits = waits.stdin(std::process::Stdio::null()).spawn().unwrap();
    let pid = waits.id().to_string();
    let found = whys(&["why", "--json", "-n", "50", "-p", &pid, "-d", "1"]);
    waits.kill().unwrap();
    waits.wait().unwrap();
    let Some((whys, _)) = found else { return };
    let is_read = |why: &&Value| list(why, "path").iter().any(|step| step["call"] == "read" && step["by"].is_null());
    // It may have begun before the trace, on a slow machine: then nothing is known of it.
    assert!(whys.is_empty() || whys.iter().any(|why| is_read(&why)), "{whys:#?}");
}

/// Where records are lost, times add up nevertheless.
#[test]
fn losses_are_unknown_and_times_add_up() {
    let losing = "many() { i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done; }
        kill -STOP $PPID; many; kill -CONT $PPID; many";
    let Some(ran) = traced(&["why", "--json", "--buffer", "16K", "--", "sh", "-c", losing]) else { return };
    let objects: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = &objects.last().unwrap()["summary"];
    assert!(number(summary, "lost") > 0 && summary["complete"] == false, "{summary}");
    for path in objects.iter().filter(|object| object.get("why").is_some()) {
        adds_up(path);
        // What is kept may be shorter than what a slow machine takes for the command: nothing of it is known then.
        let steps = list(path, "path");
        let is = |step: &Value, why: &str| step["cause"] == why;
        let is_lost = steps.iter().any(|step| is(step, "records are lost"));
        let is_forgotten = || steps.iter().all(|step| is(step, "it is too long ago for what is kept"));
        assert!(is_lost || is_forgotten(), "{path:#}");
    }
}

#[test]
fn in_a_pid_namespace_numbers_are_those_that_ps_shows() {
    // The kernel leaves a wake-up or a switch out now and then.
    for _ in 0..10 {
        let command = ["why", "--json", "--buffer", "16M", "--", "sh", "-c", "sleep 0.03; :"];
        let Some(ran) = program::in_a_container(&command) else { return };
        let path: Value = serde_json::from_str(ran.out.lines().next().unwrap()).unwrap();
        adds_up(&path);
        assert!(path["tid"].as_u64() < Some(100), "{path:#}");
        let mut waits = list(&path, "path").iter().filter(|step| step["call"] == "wait4");
        if let Some(wait) = waits.find(|step| step["by"]["thread"] == "sleep") {
            return assert!(wait["by"]["tid"].as_u64() < Some(100), "{path:#}");
        }
    }
    perfweave_support::lacks("the wake-up of a shell by its child, in ten runs");
}

/// Nothing would be tried.
#[test]
fn no_wake_ups_are_an_error() {
    let ran = run(perfweave().args(["selftest", "--why", "--wakeups", "0"]), "");
    assert!(ran.code == Some(2) && ran.err.contains("--wakeups"), "{ran:?}");
}

/// Delays of all kinds that this machine has: what is known is on its cause, and with losses nothing is false.
#[test]
fn known_causes_are_found() {
    // By programs that tell the call at the switch, and by tracepoints.
    [&[][..], &["--no-bpf"]].into_iter().for_each(known_causes);
}

fn known_causes(way: &[&str]) {
    if traced(&["trace", "--", "true"]).is_none() {
        return;
    }
    let mut objects = Vec::new();
    let sure = ["pipe", "file lock", "futex", "sleep"];
    let is_unknown = |object: &Value| sure.iter().any(|kind| object["kind"] == *kind) && object["found_ns"] == 0;
    // Each kind has a few milliseconds here. Beside other programs, some microseconds at the edges of a delay are more
    // than one in a hundred of that now and then; and where rings of 16 MiB lose records, all delays of a kind may be
    // unknown. A wrong waker is one in each run.
    for attempt in 1..=3 {
        let ran = run(perfweave().args(["selftest", "--why", "--json", "--wakeups", "2500"]).args(way), "");
        objects = ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect();
        let mut wakers = objects.iter().filter(|object| object["test"] == "wakers");
        assert!(wakers.all(|one| number(one, "false") + number(one, "across_losses") == 0), "{ran:?}");
        let traced = objects.last().unwrap()["traced"].as_str().unwrap().to_owned();
        let is_asked_for = way.is_empty() == (traced == "calls from the registers at switches");
        let granted = if is_asked_for { Ok(()) } else { Err(std::io::Error::other(traced)) };
        if perfweave_support::kernel("load BPF programs at sched_switch", granted).is_none() {
            return;
        }
        let is_well = ran.code == Some(0) && objects.last().unwrap()["ok"] == true;
        assert!(is_well || attempt < 3, "{ran:?}");
        if is_well && !objects.iter().any(|object| object["losing"] == false && is_unknown(object)) {
            break;
        }
    }
    let lost = objects.iter().find(|object| object["test"] == "wakers").map_or(0, |one| number(one, "lost"));
    let of = |losing: bool| objects.iter().filter(move |object| object["losing"] == losing);
    for object in of(false).filter(|object| object["test"] == "why") {
        match &object["refused"] {
            Value::Null if lost > 0 && is_unknown(object) => {
                perfweave_support::lacks(&format!(
                    "a run of selftest --why without losses, of three, for {}",
                    object["kind"]
                ));
            }
            Value::Null => assert!(number(object, "times") > 0 && !is_unknown(object), "{object}"),
            why => perfweave_support::lacks(&format!("{} for selftest --why: {why}", object["kind"])),
        }
    }
    let wakers: Vec<_> = objects.iter().filter(|object| object["test"] == "wakers").collect();
    assert!(wakers.len() == 2 && wakers.iter().all(|one| number(one, "false") == 0), "{wakers:?}");
    assert!(number(wakers[0], "found") > 0, "{wakers:?}");
    if number(wakers[1], "lost") == 0 {
        perfweave_support::lacks("losses of selftest --why in rings of 64 KiB");
    }
}

/// What three threads do until they are killed: each tells of rounds how long the kernel says that it ran, and that it
/// could run and did not. Its numbers are exact when a thread has just been switched to.
const ROUNDS: &str = "
def stat(file):
    while True:
        time.sleep(0.001)
        at = now()
        numbers = os.pread(file, 100, 0)
        if now() - at < 200000: return (at, *map(int, numbers.split()[:2]))
def rounds():
    file = os.open('/proc/thread-self/schedstat', os.O_RDONLY)
    while True:
        begin = stat(file)
        for _ in range(10):
            for _ in range(20000): pass
            time.sleep(0.0005)
        end = stat(file)
        told(threading.get_native_id(), begin[0], f'{end[0]} {end[1] - begin[1]} {end[2] - begin[2]}')
for _ in range(2): threading.Thread(target=rounds).start()
rounds()
";

/// Of /proc/stat, in nanoseconds.
const TICK: u64 = 10_000_000;

/// The time of all CPUs that the hypervisor and interrupts had, in nanoseconds: kernels need not count it as that of a
/// thread.
fn steal() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let ticks =
        text.lines().next().unwrap().split_whitespace().skip(6).take(3).map(|ticks| ticks.parse::<u64>().unwrap());
    ticks.sum::<u64>() * TICK
}

/// For each thread of a process: what is between its waits, and how long it was ready in them, is what the kernel
/// counted.
#[test]
fn each_thread_ran_and_waited_as_the_kernel_counts() {
    let Some(python) = program::python() else { return };
    for attempt in 1..=5 {
        let before = steal();
        let script = format!("{COMMON}{ROUNDS}");
        let process = Command::new(&python).args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let pid = process.id().to_string();
        let ran = traced(&["why", "--json", "-n", "1000000", "-p", &pid, "-d", "1", "--buffer", "16M"]);
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(process.id() as i32), nix::sys::signal::SIGKILL).unwrap();
        let told = process.wait_with_output().unwrap();
        let Some(ran) = ran else { return };
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let waits: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let summary = &waits.last().unwrap()["summary"];
        // Where a switch has no record, what its threads did is unknown, and those are left out below.
        if summary["complete"] != true && summary["unrecorded_switches"].is_null() {
            continue;
        }
        // Ticks are whole.
        let stolen = steal() - before + TICK;
        let told = String::from_utf8(told.stdout).unwrap();
        // The last line may be cut off.
        let rounds = told.lines().filter_map(|line| {
            <[u64; 5]>::try_from(line.split(' ').map_while(|word| word.parse().ok()).collect::<Vec<_>>()).ok()
        });
        let mut threads = std::collections::HashMap::<u64, [u64; 5]>::new();
        let begin = waits.iter().filter_map(|wait| wait["from"].as_u64()).min().unwrap_or(u64::MAX);
        let end = waits.iter().filter_map(|wait| wait["to"].as_u64()).max().unwrap_or(0);
        for [tid, from, to, ran, ready] in rounds.filter(|[_, from, to, ..]| *from > begin && *to < end) {
            let of = |wait: &&Value| wait["tid"] == tid && number(wait, "from") >= from && number(wait, "to") <= to;
            let waits: Vec<_> = waits.iter().filter(|wait| wait.get("why").is_some()).filter(of).collect();
            let steps = waits.iter().flat_map(|wait| list(wait, "path"));
            if steps.clone().any(|step| step["what"] == "unknown") {
                continue;
            }
            let was_ready: u64 = steps.filter(|step| step["what"] == "ready").map(|step| number(step, "ns")).sum();
            let has_run = to - from - waits.iter().map(|wait| number(wait, "ns")).sum::<u64>();
            let sums = threads.entry(tid).or_default();
            [to - from, has_run, ran, was_ready, ready].into_iter().zip(sums).for_each(|(one, sum)| *sum += one);
        }
        if threads.len() < 3 {
            continue;
        }
        // One in a hundred: the kernel reads another clock, a little later.
        let is_near = |one: u64, other: u64, all| one.abs_diff(other) <= all / 100 + stolen;
        let is_right = |[all, has_run, ran, was_ready, ready]: &[u64; 5]| {
            is_near(*has_run, *ran, *all) && is_near(*was_ready, *ready, *all)
        };
        if threads.values().all(is_right) {
            return;
        }
        // A wait of which a switch has no record is not printed: it looks like running.
        assert!(attempt < 5, "all, ran here, ran in the kernel, ready here, ready in the kernel: {threads:?}");
    }
    perfweave_support::lacks("a run without losses in which three threads are known, of five");
}

/// Of one recording, `perf sched timehist` and this program say the same of each wait of which both say something.
/// Times are printed in microseconds.
#[test]
fn waits_are_those_of_perf_sched_timehist() {
    let Some(()) = perfweave_support::perf() else { return };
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    let file = std::env::temp_dir().join(format!("perfweave-why-timehist-{}", std::process::id()));
    let file = file.to_str().unwrap();
    let perf = |arguments: &[&str]| {
        let ran = std::process::Command::new("perf").args(arguments).output();
        ran.and_then(|ran| if ran.status.success() { Ok(ran) } else { Err(std::io::Error::other(format!("{ran:?}"))) })
    };
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.003; echo $i | cat > /dev/null; done";
    let recorded = perf(&["sched", "record", "-q", "-m", "8M", "-o", file, "--", "sh", "-c", script]);
    if perfweave_support::kernel("perf sched record", recorded).is_none() {
        return;
    }
    let theirs = perf(&["sched", "timehist", "-i", file]).unwrap();
    let ran = run(perfweave().args(["why", "--json", "-n", "1000000", file]), "");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    std::fs::remove_file(file).unwrap();
    // time [cpu] comm[tid/pid] wait delay run: when it leaves a CPU, and what was before. One that is alone in its
    // process has no second number.
    let row = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [.., wait, delay, ran] = words[..] else { return None };
        let micros = |text: &str| text.parse::<f64>().ok().map(|number| (number * 1_000.0).round() as i64);
        let left = (words.first()?.parse::<f64>().ok()? * 1e6).round() as i64;
        let tid = line.rsplit_once('[')?.1.split([']', '/']).next()?.parse::<i64>().ok()?;
        let came = left - micros(ran)?;
        Some((tid, came, micros(wait)?, micros(delay)?))
    };
    let rows: Vec<_> = String::from_utf8_lossy(&theirs.stdout).lines().filter_map(row).collect();
    let near = |one: i64, other: i64| (one - other).abs() <= 3;
    let mut both = [0, 0];
    for line in ran.out.lines() {
        let why: Value = serde_json::from_str(line).unwrap();
        let (Some(tid), true) = (why["tid"].as_i64(), why["why"] == "wait") else { continue };
        let [from, to] = ["from", "to"].map(|name| number(&why, name) as i64 / 1_000);
        let Some((.., wait, delay)) = rows.iter().find(|row| row.0 == tid && near(row.1, to) && row.2 > 0) else {
            continue;
        };
        assert!(near(*wait, to - from), "{wait} {delay}: {why:#}");
        both[0] += 1;
        let steps = list(&why, "path");
        let is_known = steps.iter().all(|step| step["what"] != "unknown" && step["taken_off"] != true);
        let ready =
            steps.iter().filter(|step| step["what"] == "ready").map(|step| number(step, "ns") as i64).sum::<i64>();
        if is_known && *delay > 0 && ready > 0 {
            assert!(near(*delay, ready / 1_000), "{wait} {delay}: {why:#}");
            both[1] += 1;
        }
    }
    assert!(both.iter().all(|count| *count > 20), "{both:?} of {} rows", rows.len());
}

/// Whether a value is as a JSON Schema has it, as far as the program's schema goes. Otherwise where it is not.
fn is_as(schema: &Value, value: &Value, root: &Value) -> Result<(), String> {
    let err = |what: &str| Err(format!("{what}: {value} is not {schema}"));
    for (key, of) in schema.as_object().unwrap() {
        match key.as_str() {
            "$ref" => is_as(root.pointer(&of.as_str().unwrap()[1..]).unwrap(), value, root)?,
            "oneOf" => {
                let tried: Vec<_> = of.as_array().unwrap().iter().map(|one| is_as(one, value, root)).collect();
                if tried.iter().filter(|one| one.is_ok()).count() != 1 {
                    return Err(format!("{value}: {tried:?}"));
                }
            }
            "type" => {
                let is = |name: &Value| match name.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "integer" => value.is_i64() || value.is_u64(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    other => panic!("{other}"),
                };
                if !of.as_array().map_or_else(|| is(of), |names| names.iter().any(is)) {
                    return err("type");
                }
            }
            "enum" if !of.as_array().unwrap().contains(value) => return err("enum"),
            "const" if of != value => return err("const"),
            "minimum" if value.as_i64() < of.as_i64() && !value.is_null() => return err("minimum"),
            "required" => {
                if !of.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some()) {
                    return err("required");
                }
            }
            "properties" => {
                for (name, one) in value.as_object().into_iter().flatten() {
                    match of.get(name) {
                        Some(schema) => is_as(schema, one, root)?,
                        None if schema["additionalProperties"] == false => return err(name),
                        None => {}
                    }
                }
            }
            "items" => value.as_array().into_iter().flatten().try_for_each(|item| is_as(of, item, root))?,
            "enum" | "const" | "minimum" | "additionalProperties" | "description" | "title" | "$schema" | "$defs" => {}
            other => panic!("the test does not know {other}"),
        }
    }
    Ok(())
}

#[test]
fn what_is_printed_is_as_the_schema_has_it() {
    let schema = run(perfweave().args(["why", "--json-schema"]), "");
    assert_eq!(schema.code, Some(0), "{schema:?}");
    let schema: Value = serde_json::from_str(&schema.out).unwrap();
    let check = |out: &str| {
        for line in out.lines() {
            let object = serde_json::from_str(line).unwrap();
            is_as(&schema, &object, &schema).unwrap_or_else(|error| panic!("{error}"));
        }
    };
    // Not anything goes.
    assert!(is_as(&schema, &serde_json::json!({ "why": "wait" }), &schema).is_err());
    let script = "sleep 0.01; for i in 1 2 3; do echo $i | cat > /dev/null; done; :";
    for more in [&[][..], &["--stacks"], &["--from", "execve", "--to", "exit_group"]] {
        let command = ["--", "sh", "-c", script];
        let Some(ran) = traced(&[&["why", "--json", "-n", "9"][..], more, &command].concat()) else { return };
        assert!(ran.code == Some(0) && ran.out.lines().count() > 1, "{ran:?}");
        check(&ran.out);
    }
    let all = traced(&["why", "--json", "-n", "20", "-d", "0.3", "--buffer", "64K"]).unwrap();
    check(&all.out);
    // Waits that go on: of a shell for its child, which waits for a time.
    let mut child = Command::new("sh").args(["-c", "sleep 1000; :"]).spawn().unwrap();
    let hangs = traced(&["why", "--json", "-d", "0.3", "-p", &child.id().to_string()]);
    let (shell, sleeps) = (child.id(), format!("/proc/{0}/task/{0}/children", child.id()));
    let sleeps = std::fs::read_to_string(sleeps).unwrap_or_default();
    for pid in sleeps.split_whitespace().map(|pid| pid.parse().unwrap()).chain([shell as i32]) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    child.wait().unwrap();
    let hangs = hangs.unwrap();
    assert!(hangs.out.contains("\"hangs\":\"sh\"") && hangs.out.contains("\"on\":\"child\""), "{hangs:?}");
    check(&hangs.out);
}

/// Requests that begin in one thread and end in another are none of one thread: it says how many there were.
#[test]
fn no_requests_are_explained() {
    let command = ["--from", "execve", "--to", "wait4", "--", "sh", "-c", "/bin/true; /bin/true; :"];
    let Some(ran) = traced(&[&["why"][..], &command].concat()) else { return };
    let says = |ran: &program::Ran, text: &str| assert!(ran.out.contains(text), "{ran:?}");
    // The shell executes itself, and so its own waits are requests.
    says(&ran, " requests: p50 ");
    let by = ["--from", "syscalls:sys_enter_wait4", "--to", "syscalls:sys_enter_execve", "--by", "upid=argv"];
    let ran = traced(&[&["why"][..], &by, &["--", "sh", "-c", "/bin/true; /bin/true; :"]].concat()).unwrap();
    says(&ran, "no requests: ");
    says(&ran, "none have the same value of that field, by which they are joined: --by FIELD");
}

/// Where the thread fell asleep, and where the one stood that woke it: in the kernel, and in libc if that has frame
/// pointers or not.
#[test]
fn stacks_tell_where_threads_stood() {
    let Some(python) = program::python() else { return };
    let script = format!(
        "{COMMON}out, into = os.pipe()
if os.fork() == 0:
    delay(main)
    os.write(into, b'!')
    os._exit(0)
os.read(out, 1)
os.wait()"
    );
    let names = |step: &Value, key: &str| {
        list(step, key).iter().map(|name| name.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for _ in 0..10 {
        let Some((whys, _)) = whys(&["why", "--json", "--stacks", "--buffer", "32M", "--", &python, "-c", &script])
        else {
            return;
        };
        let mut reads = list(&whys[0], "path").iter().filter(|step| step["call"] == "read");
        let Some(read) = reads.find(|step| !list(step, "path").is_empty()) else { continue };
        let [slept, woke] = ["asleep_at", "woken_at"].map(|key| names(read, key));
        if slept.iter().chain(&woke).all(|name| name == "[unknown]") {
            return perfweave_support::lacks("names of the kernel's functions");
        }
        // The outermost first.
        let at = |names: &[String], wanted: &str| names.iter().position(|name| name.contains(wanted));
        assert!(at(&slept, "read") < at(&slept, "schedule") && at(&slept, "schedule").is_some(), "{slept:?}");
        assert!(at(&woke, "write").is_some(), "{woke:?}");
        let text = traced(&["why", "--stacks", "--buffer", "32M", "--", &python, "-c", &script]).unwrap();
        assert!(text.out.contains("fell asleep in ") && text.out.contains("was woken in "), "{text:?}");
        return;
    }
    perfweave_support::lacks("the wake-up of a reader, in ten runs");
}

/// A request lasts from a probe of a program to another, or from a system call to another.
#[test]
fn requests_from_probes_and_system_calls() {
    let Some(python) = program::python() else { return };
    let Some(libc) = libc_of(&python) else {
        return perfweave_support::lacks("a libc of its own for python3");
    };
    let script = "import os, time
for _ in range(5):
    os.getppid()
    time.sleep(0.002)
    os.getpgrp()";
    let probes = ["getppid", "getpgrp"].map(|name| format!("uprobe:{libc}:{name}"));
    for [from, to] in [[&probes[0], &probes[1]].map(String::as_str), ["getppid", "getpgrp"]] {
        let arguments = ["why", "--json", "--from", from, "--to", to, "-n", "9", "--", &python, "-c", script];
        let Some((objects, _)) = objects(&arguments) else { return };
        assert_eq!(number(&objects[0]["requests"], "count"), 5, "{from} {to}: {objects:?}");
        let slept = |object: &&Value| {
            list(object, "path").iter().any(|step| step["call"] == "clock_nanosleep" || step["what"] == "unknown")
        };
        let requests: Vec<_> = objects.iter().filter(|object| object["why"] == "request").collect();
        assert!(requests.len() == 5 && requests.iter().all(slept), "{requests:?}");
    }
}

/// The libc that a program loads.
fn libc_of(program: &str) -> Option<String> {
    let ran = std::process::Command::new("ldd").arg(program).output().ok()?;
    let text = String::from_utf8(ran.stdout).ok()?;
    let line = text.lines().find(|line| line.trim_start().starts_with("libc.so"))?;
    Some(line.split_whitespace().nth(2)?.to_owned())
}

#[test]
fn errors_name_what_is_wrong() {
    let ran = run(perfweave().args(["why", "-p", "1", "-t", "1"]), "");
    assert!(ran.code == Some(2) && ran.err.contains("cannot be used with"), "{ran:?}");
    let ran = run(perfweave().args(["why", "/nowhere/perf.data"]), "");
    assert!(ran.code == Some(1) && ran.err.contains("/nowhere/perf.data"), "{ran:?}");
    // A command without -- before it is taken for a recording.
    let ran = run(perfweave().args(["why", "/bin/true"]), "");
    assert!(ran.code == Some(1) && ran.err.contains("why -- make"), "{ran:?}");
    for (arguments, code, text) in [
        (&["why", "--from", "sched:sched_switch"][..], 2, "--to"),
        (&["why", "--from", "sched:*", "--to", "sched:sched_switch"], 1, "sched:* is not the name"),
    ] {
        let ran = run(perfweave().args(arguments), "");
        assert!(ran.code == Some(code) && ran.err.contains(text) && ran.out.is_empty(), "{ran:?}");
    }
    let Some(ran) = traced(&["why", "-p", "99999999"]) else { return };
    assert!(ran.code == Some(1) && ran.err.contains("there is no process 99999999"), "{ran:?}");
    let file = std::env::temp_dir().join(format!("perfweave-why-not-{}", std::process::id()));
    let file = file.to_str().unwrap();
    let ran = run(
        perfweave().args(["record", "-e", "cpu-clock", "-o", file, "--", "sh", "-c", "for i in 1 2 3; do :; done"]),
        "",
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = run(perfweave().args(["why", file]), "");
    assert!(
        ran.code == Some(1) && ran.err.contains("no sched:sched_switch") && ran.err.contains("record -a"),
        "{ran:?}"
    );
    std::fs::remove_file(file).unwrap();
}

/// In a recording of one process nobody switches to it, and of wake-ups it has its own alone: that is said.
#[test]
fn a_recording_of_one_process_says_what_is_not_in_it() {
    let file = std::env::temp_dir().join(format!("perfweave-why-some-{}", std::process::id()));
    let file = file.to_str().unwrap();
    let script = ["--", "sh", "-c", "for i in 1 2 3; do sleep 0.02; done; :"];
    let both = "sched:sched_switch,sched:sched_waking";
    for (events, all, says) in [
        (both, &[][..], Some("of some threads alone")),
        (both, &["-a"], None),
        ("sched:sched_switch", &["-a"], Some("has no sched:sched_waking")),
    ] {
        let record = [&["record", "-o", file, "-e", events][..], all, &script].concat();
        let Some(ran) = traced(&record) else { return };
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let ran = run(perfweave().args(["why", file]), "");
        assert!(ran.code == Some(0), "{ran:?}");
        let lines: Vec<_> = ran.err.lines().filter(|line| line.starts_with("the recording ")).collect();
        assert!(
            lines.len() == usize::from(says.is_some()) && lines.iter().all(|line| line.contains(says.unwrap())),
            "{events} {all:?}: {ran:?}"
        );
        let ran = run(perfweave().args(["why", "--json", file]), "");
        let summary: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
        assert_eq!(summary["summary"]["lacks"].is_null(), says.is_none(), "{summary}");
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn no_name_is_a_command_or_a_line() {
    program::names_are_printable(&["why"]);
}

#[test]
fn others_are_told_what_they_lack() {
    program::as_nobody("why -d 1");
    program::in_namespaces("why -d 1");
}
