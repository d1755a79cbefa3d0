//! `perfweave why` as a person runs it. The delays are injected, and the program that has them tells when they began and ended.

mod program;

use program::{perfweave, run, traced};
use serde_json::Value;

/// What the scripts share: one CPU for all, the clock, and whether another process is asleep.
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

/// The paths of a run that succeeds, and what it injected.
fn whys(arguments: &[&str]) -> Option<(Vec<Value>, Vec<Injected>)> {
    let ran = traced(arguments)?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let (objects, told): (Vec<_>, Vec<_>) = ran.out.lines().partition(|line| line.starts_with('{'));
    let objects = objects.into_iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let (whys, others): (Vec<_>, Vec<_>) = objects.partition(|object| object.get("why").is_some());
    assert_eq!((others.len(), &others[0]["summary"]["late"]), (1, &0.into()), "{others:?}");
    whys.iter().for_each(adds_up);
    let injected = told.into_iter().map(|line| {
        let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        Injected { tid: numbers[0], begin: numbers[1], end: numbers[2] }
    });
    Some((whys, injected.collect()))
}

/// The path of a script from its first instruction until it ended, and the delay in it.
fn of_script(script: &str) -> Option<(Value, Injected)> {
    let python = program::python()?;
    let (mut whys, mut injected) = whys(&["why", "--json", "--", &python, "-c", &format!("{COMMON}{script}")])?;
    assert_eq!((whys.len(), injected.len()), (1, 1), "{whys:?} {injected:?}");
    assert_eq!(whys[0]["why"], "command");
    Some((whys.remove(0), injected.remove(0)))
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

#[test]
fn a_lock_on_a_file_that_another_holds() {
    is_blocked_by_another(
        "flock",
        "name = f'/tmp/perfweave-why-{main}'
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
os.unlink(name)",
    );
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

/// Of a recording too, and in words. The process is the shell that records; it waits for its child, which sleeps.
#[test]
fn a_recording_tells_it_too() {
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    let file = std::env::temp_dir().join(format!("perfweave-why-{}", std::process::id()));
    let file = file.to_str().unwrap();
    let events = "sched:sched_switch,sched:sched_waking,raw_syscalls:*";
    let script = "echo $$; sleep 0.03; :";
    let ran = run(perfweave().args(["record", "-a", "-e", events, "-o", file, "--", "sh", "-c", script]), "");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let shell = ran.out.trim();
    let Some((whys, _)) = whys(&["why", "--json", "-p", shell, file]) else { return };
    assert!(whys.len() > 1 && whys.iter().all(|why| why["why"] == "wait"), "{whys:?}");
    assert!(whys.windows(2).all(|two| number(&two[0], "ns") >= number(&two[1], "ns")), "{whys:?}");
    let wait = &list(&whys[0], "path")[0];
    let within = list(wait, "path").iter().any(|step| step["thread"] == "sleep" && step["call"] == "clock_nanosleep");
    // Where the kernel left a switch of the shell out, its sleep is the longest.
    assert!(within && wait["call"] == "wait4" || whys[0]["thread"] == "sleep", "{:#}", whys[0]);
    let text = run(perfweave().args(["why", "-n", "1", "--comm", "sleep", file]), "");
    assert!(text.code == Some(0) && text.out.contains(" waited ") && text.out.contains("whose doing:"), "{text:?}");
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
    let arguments = [&["why", "--json", "-n", "20"][..], &events, &["--", &python, "-c", &script]].concat();
    let Some(ran) = traced(&arguments) else { return };
    let (objects, told): (Vec<_>, Vec<_>) = ran.out.lines().partition(|line| line.starts_with('{'));
    let objects: Vec<Value> = objects.into_iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<u64> = told[0].split(' ').map(|number| number.parse().unwrap()).collect();
    let injected = Injected { tid: numbers[0], begin: numbers[1], end: numbers[2] };
    let requests = &objects[0];
    assert_eq!(
        (number(&requests["requests"], "count"), &requests["slow"], &requests["fast"]),
        (20, &1.into(), &10.into())
    );
    let found: Vec<_> = objects.iter().filter(|object| object["why"] == "request").collect();
    assert_eq!(found.len(), 20, "{ran:?}");
    found.iter().for_each(|path| adds_up(path));
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
    let text = traced(&[&["why", "-n", "1"][..], &events, &["--", &python, "-c", &script]].concat()).unwrap();
    for said in [
        "20 requests: p50 ",
        "distribution",
        " had a request that took ",
        "in the mean of the 1 slowest, beside the 10 fastest:",
    ] {
        assert!(text.out.contains(said), "{said}: {text:?}");
    }
}

/// A request may begin in a thread and end in another: what both events have in common joins them.
#[test]
fn a_field_joins_what_begins_to_what_ends() {
    let pair = ["--from", "sched:sched_process_fork", "--to", "sched:sched_process_exit", "--by", "child_pid=pid"];
    let script = "for i in 1 2 3; do /bin/true; done; :";
    let Some((whys, _)) = whys_of_requests(&[&["why", "--json"][..], &pair, &["--", "sh", "-c", script]].concat())
    else {
        return;
    };
    assert!(whys.len() == 3 && whys.iter().all(|why| why["why"] == "request"), "{whys:?}");
    // The thread that ends it is the new one.
    assert!(whys.iter().all(|why| why["thread"] == "true"), "{whys:?}");
}

fn whys_of_requests(arguments: &[&str]) -> Option<(Vec<Value>, u64)> {
    let ran = traced(arguments)?;
    let objects: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let whys: Vec<_> = objects.iter().filter(|object| object.get("why").is_some()).cloned().collect();
    whys.iter().for_each(adds_up);
    Some((whys, number(&objects[0]["requests"], "count")))
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
        assert!(list(path, "path").iter().any(|step| step["cause"] == "records are lost"), "{path:#}");
    }
}

#[test]
fn in_a_pid_namespace_numbers_are_those_that_ps_shows() {
    let Some(ran) = program::in_a_container(&["why", "--json", "--", "sh", "-c", "sleep 0.03; :"]) else { return };
    let path: Value = serde_json::from_str(ran.out.lines().next().unwrap()).unwrap();
    adds_up(&path);
    assert!(path["tid"].as_u64() < Some(100), "{path:#}");
    let wait = list(&path, "path").iter().find(|step| step["call"] == "wait4" && step["by"]["thread"] == "sleep");
    let by = wait.unwrap_or_else(|| panic!("{path:#}"))["by"]["tid"].as_u64();
    assert!(by < Some(100), "{path:#}");
}

#[test]
fn errors_name_what_is_wrong() {
    let ran = run(perfweave().args(["why", "-p", "1", "-t", "1"]), "");
    assert!(ran.code == Some(2) && ran.err.contains("cannot be used with"), "{ran:?}");
    let ran = run(perfweave().args(["why", "/nowhere/perf.data"]), "");
    assert!(ran.code == Some(1) && ran.err.contains("/nowhere/perf.data"), "{ran:?}");
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

#[test]
fn no_name_is_a_command_or_a_line() {
    program::names_are_printable(&["why"]);
}

#[test]
fn others_are_told_what_they_lack() {
    program::as_nobody("why -d 1");
    program::in_namespaces("why -d 1");
}
