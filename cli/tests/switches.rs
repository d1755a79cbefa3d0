//! The call in which a thread falls asleep, told by a program at the switch, beside the same by tracepoints.

mod program;

use program::traced;
use serde_json::Value;

/// What the summary says where programs tell it.
const BY_PROGRAMS: &str = "calls from the registers at switches";

/// Each entry and return of the whole machine goes through the rings: other tests must not fill them.
const ROOMY: &[&str] = &["why", "--json", "--buffer", "16M"];

/// All steps of a path, those of whom it waited for included.
fn steps<'a>(path: &'a Value, found: &mut Vec<&'a Value>) {
    for step in path["path"].as_array().into_iter().flatten() {
        found.push(step);
        steps(step, found);
    }
}

/// What a run says: the calls in which threads of a command were blocked, and the summary.
fn blocked(way: &[&str], command: &[&str]) -> Option<(Vec<String>, Value)> {
    let ran = traced(&[ROOMY, way, &["--"], command].concat())?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let objects: Vec<Value> =
        ran.out.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut found = Vec::new();
    objects.iter().filter(|object| object.get("why").is_some()).for_each(|object| steps(object, &mut found));
    let calls = found.iter().filter(|step| step["what"] == "blocked").map(|step| step["call"].to_string()).collect();
    Some((calls, objects.last().unwrap()["summary"].clone()))
}

/// The same waits in the same calls, by either way.
#[test]
fn calls_are_the_same_by_programs_and_by_tracepoints() {
    // Many calls that do not block, and two that do.
    let script = "i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); test -e /; done; sleep 0.2; :";
    for (way, by) in [(&[][..], BY_PROGRAMS), (&["--no-bpf"], "calls traced at each entry and return (--no-bpf)")] {
        // The kernel leaves a switch out now and then, which the summary says.
        let has_both = (0..20).any(|_| {
            let Some((calls, summary)) = blocked(way, &["sh", "-c", script]) else { return true };
            let traced = summary["traced"].as_str().unwrap();
            if way.is_empty() && perfweave_support::kernel("load BPF programs", granted(traced)).is_none() {
                return true;
            }
            assert_eq!(traced, by);
            let has = |name: &str| calls.iter().any(|call| call.contains(name));
            let has_both = has("nanosleep") && has("wait4");
            assert!(has_both || summary["complete"] == false, "{calls:?} {summary}");
            has_both
        });
        assert!(has_both, "{way:?}: twenty runs in which something is missing");
    }
}

/// Why programs are not granted, if they are not.
fn granted(traced: &str) -> std::io::Result<()> {
    let is_granted = traced == BY_PROGRAMS;
    if is_granted { Ok(()) } else { Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, traced.to_owned())) }
}

/// A call of a 32-bit program has another number: pause is 29, and that is shmget(2) of a 64-bit program. And a thread
/// of the kernel is in no call.
#[test]
fn what_has_no_call_of_this_machine_has_none() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let Some(python) = program::python() else { return };
    // mov $29, %eax; int $0x80; ret
    let script = "import ctypes, mmap, os, signal, sys, time
signal.signal(signal.SIGALRM, lambda *of: None)
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes([0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xc3]))
pause = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
signal.setitimer(signal.ITIMER_REAL, 0.2)
sys.exit(0 if pause() == -4 else 7)";
    let ran = std::process::Command::new(&python).args(["-c", script]).status().unwrap();
    let has_calls = perfweave_support::needs("system calls of 32 bits", ran.code() == Some(0));
    let Some(()) = has_calls else { return };
    let Some((calls, summary)) = blocked(&[], &[&python, "-c", script]) else { return };
    if summary["traced"] == BY_PROGRAMS {
        assert!(!calls.iter().any(|call| call.contains("shmget")), "{calls:?}");
    }
}

/// The registers of a thread that stops have its last call still, but it is on its way out of the kernel.
#[test]
fn a_thread_that_stops_is_in_no_call() {
    let Some(python) = program::python() else { return };
    let script = "import os, signal, time
main = os.getpid()
if os.fork() == 0:
    time.sleep(0.05)
    os.kill(main, signal.SIGSTOP)
    time.sleep(0.3)
    os.kill(main, signal.SIGCONT)
    os._exit(0)
end = time.monotonic() + 0.5
while time.monotonic() < end: os.getppid()
os.wait()";
    for way in [&[][..], &["--no-bpf"]] {
        let Some(stopped) = steps_of(way, &[&python, "-c", script]) else { return };
        let stopped: Vec<_> = stopped.iter().filter(|step| step["state"] == "stopped").collect();
        assert!(stopped.iter().all(|step| step["call"].is_null()), "{way:?}: {stopped:#?}");
        assert!(!stopped.is_empty(), "{way:?}");
    }
}

/// A thread that waits for a page is in no call, and nor is a worker of io_uring: its registers are those of the thread
/// that made it.
#[test]
fn page_faults_and_workers_of_io_uring_are_in_no_call() {
    let Some(python) = program::python() else { return };
    let programs = [
        ("userfaultfd", include_str!("switches/fault.py"), "python3"),
        ("io_uring", include_str!("switches/worker.py"), "iou-wrk-"),
    ];
    for (needs, script, who) in programs {
        let code = std::process::Command::new(&python).args(["-c", script]).status().unwrap().code();
        let Some(()) = perfweave_support::needs(needs, code == Some(0)) else { continue };
        for way in [&[][..], &["--no-bpf"]] {
            // The kernel leaves a switch out now and then.
            let waited = (0..20).find_map(|_| {
                let waited = steps_of(way, &[&python, "-c", script])?.into_iter().find(|step| {
                    let of_whom = step["path"].as_array().into_iter().flatten();
                    step["thread"].as_str().is_some_and(|name| name.starts_with(who))
                        && of_whom.clone().any(|step| step["call"] == "clock_nanosleep")
                })?;
                Some(waited)
            });
            let waited =
                waited.unwrap_or_else(|| panic!("{needs} {way:?}: in twenty runs nobody waits for who sleeps"));
            assert!(waited["what"] == "blocked" && waited["call"].is_null(), "{needs} {way:?}: {waited:#}");
        }
    }
}

/// All steps of a command's path.
fn steps_of(way: &[&str], command: &[&str]) -> Option<Vec<Value>> {
    let ran = traced(&[ROOMY, way, &["--"], command].concat())?;
    let objects: Vec<Value> = ran.out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let mut found = Vec::new();
    objects.iter().filter(|object| object.get("why").is_some()).for_each(|object| steps(object, &mut found));
    Some(found.into_iter().cloned().collect())
}

/// Threads of the kernel are in no call. They wait for work, so only who asks for them is told.
#[test]
fn threads_of_the_kernel_are_told_to_who_asks() {
    let Some(of_kernel) = waits(&["-p", "2"]) else { return };
    assert!(!of_kernel.is_empty());
    for object in of_kernel {
        let mut blocked = object["path"].as_array().unwrap().iter().filter(|step| step["what"] == "blocked");
        assert!(blocked.all(|step| step["call"].is_null()), "{object:#}");
    }
    let Some(all) = waits(&[]) else { return };
    let is_kernels = |object: &Value| object["thread"].as_str().unwrap().starts_with("rcu_");
    assert!(!all.is_empty() && !all.iter().any(is_kernels), "{all:#?}");
}

/// The longest waits of half a second.
fn waits(whose: &[&str]) -> Option<Vec<Value>> {
    let ran = traced(&[ROOMY, &["-n", "100", "-d", "0.5"], whose].concat())?;
    let objects = ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    Some(objects.filter(|object| object.get("why").is_some()).collect())
}
