//! `perfweave why` as a person runs it. The delays are injected, and the program that has them tells when they began and ended.

mod program;

use program::{perfweave, run, traced};
use serde_json::Value;

/// What the scripts share: one CPU for all, the clock, and whether another process is asleep. The CPU is never idle, because there kernels leave
/// out samples in interrupts (docs/PLATFORMS.md).
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

/// The objects of a run that succeeds, and what it injected. Where nothing else may be lost, a run on a busy machine is tried again.
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

/// The path of a script from its first instruction until it ended, and the delay in it. The kernel leaves a wake-up or a switch out now and then:
/// then it is not known who ended a wait, and such a run is tried again.
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

/// Of a recording too, and in words. The process is the shell that is recorded: it waits for its child, which sleeps. The recorder's own records
/// are left out, and so is who ran behind it: such a run is tried again.
#[test]
fn a_recording_tells_it_too() {
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    let file = std::env::temp_dir().join(format!("perfweave-why-{}", std::process::id()));
    let file = file.to_str().unwrap();
    let is_told = (0..10).any(|_| {
        let events = "sched:sched_switch,sched:sched_waking,raw_syscalls:*";
        let script = "echo $$; sleep 0.03; :";
        let record = ["record", "-a", "--buffer", "16M", "-e", events, "-o", file, "--", "sh", "-c", script];
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
    let arguments = [&["why", "--json", "--buffer", "16M"][..], &pair, &["--", "sh", "-c", script]].concat();
    let Some((whys, _)) = whys(&arguments) else { return };
    assert!(whys.len() == 3 && whys.iter().all(|why| why["why"] == "request"), "{whys:?}");
    // The thread that ends it is the new one.
    assert!(whys.iter().all(|why| why["thread"] == "true"), "{whys:?}");
}

/// A thread that its control group's quota holds back is ready, whoever has the CPU. The group's counters tell of it.
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
        assert!(list(path, "path").iter().any(|step| step["cause"] == "records are lost"), "{path:#}");
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
