//! `perfweave wakeups` as a person runs it.

mod program;

use perf_event_open_sys::bindings;
use perfweave::{Item, Order, Reader, Rings};
use perfweave_events::{EventOptions, Format};
use program::{perfweave, run, traced};
use serde_json::Value;
use std::collections::HashMap;
use std::process::Stdio;

/// A parent that writes to its child, which waits for it each time.
const PING_PONG: &str = "import os\n\
    a,b=os.pipe(),os.pipe()\n\
    if os.fork()==0:\n\
    \x20for _ in range(200): os.read(a[0],1); os.write(b[1],b'!')\n\
    \x20os._exit(0)\n\
    for _ in range(200): os.write(a[1],b'!'); os.read(b[0],1)\n\
    os.wait()";

#[test]
fn a_ping_pong_wakes_its_partner() {
    let Some(python) = program::python() else { return };
    let Some(ran) = traced(&["wakeups", "--json", "--by-name", "--", &python, "-c", PING_PONG]) else { return };
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let rows: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.last().unwrap()["summary"]["late"], 0, "{ran:?}");
    // The kernel keeps 15 letters of the file's name.
    let name: String = python.rsplit('/').next().unwrap().chars().take(15).collect();
    let own: Vec<_> =
        rows.iter().filter(|row| row["waker"] == name.as_str() && row["woken"] == name.as_str()).collect();
    assert_eq!(own.len(), 1, "{ran:?}");
    // On two CPUs one of them may read before it sleeps. Neither can do so every time: a byte at a time is on its way.
    let count = own[0]["times"]["count"].as_u64().unwrap();
    assert!((1..=401).contains(&count), "{ran:?}");
}

/// As [`PING_PONG`], on two CPUs if there are two, and so often that some wake-ups find their thread on its way to
/// sleep. It prints both numbers.
const OFTEN: &str = "import os\n\
    a,b=os.pipe(),os.pipe()\n\
    cpus=sorted(os.sched_getaffinity(0))\n\
    pid=os.fork()\n\
    os.sched_setaffinity(0,{cpus[0] if pid else cpus[-1]})\n\
    if pid==0:\n\
    \x20for _ in range(4000): os.read(a[0],1); os.write(b[1],b'!')\n\
    \x20os._exit(0)\n\
    for _ in range(4000): os.write(a[1],b'!'); os.read(b[0],1)\n\
    os.wait()\n\
    print(os.getpid(), pid)";

/// No thread that sleeps runs again unless it was woken. So there are as many wake-ups as sleeps with an end, counted
/// by another reader of the same switches. The kernel leaves some out, which are then missing in both, or in one: such
/// a run is tried again.
#[test]
fn each_sleep_is_ended_by_one_wake_up() {
    let Some(python) = program::python() else { return };
    'ways: for way in [&[][..], &["--no-bpf"]] {
        for _ in 0..20 {
            if let Some((sleeps, wake_ups)) = sleeps_and_wake_ups(&python, way) {
                // What the kernel leaves out of the rings of programs alone, the other reader cannot know.
                let most = if way.is_empty() { 8 } else { 0 };
                let is_near = |(sleeps, wake_ups): (&u64, &u64)| (*wake_ups..=wake_ups + most).contains(sleeps);
                assert!(sleeps.iter().zip(&wake_ups).all(is_near), "{way:?}: {sleeps:?} {wake_ups:?}");
                continue 'ways;
            }
        }
        perfweave_support::lacks("all switches in sched:sched_switch, of twenty times");
    }
}

/// How often each of two threads slept and ran again, and how often it was woken and ran. `None` if the kernel left a
/// switch or a wake-up out, or another reader could not run. `way`: with these arguments.
fn sleeps_and_wake_ups(python: &str, way: &[&str]) -> Option<([u64; 2], [u64; 2])> {
    let options = Rings::options()
        .tracepoint("sched:sched_waking")
        .tracepoint("sched:sched_switch")
        .records([bindings::PERF_RECORD_SWITCH]);
    let rings = perfweave_support::kernel("trace", options.sample(bindings::PERF_SAMPLE_TID).bytes(32 << 20).open())?;
    let [waking, switch] = [0, 1].map(|source| Format::of(&rings, source).unwrap());
    let [woken, flags, prev, next, state] = [
        (&waking, "pid"),
        (&waking, "common_flags"),
        (&switch, "prev_pid"),
        (&switch, "next_pid"),
        (&switch, "prev_state"),
    ]
    .map(|(of, name)| of.field(name).unwrap());
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let mut program = perfweave();
    let program = program.args(["wakeups", "--json", "-n", "10000", "--buffer", "32M"]).args(way);
    // What is left out spoils a run, so that of programs is short.
    let often = OFTEN.replace("4000", if way.is_empty() { "400" } else { "4000" });
    let program = program.args(["--", python, "-c", &often]);
    let child = program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let own = child.id();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let out = String::from_utf8(output.stdout).unwrap();
    let (objects, numbers): (Vec<_>, Vec<_>) = out.lines().partition(|line| line.starts_with('{'));
    let pair: Vec<u64> = numbers[0].split(' ').map(|number| number.parse().unwrap()).collect();
    let objects = objects.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let objects: Vec<_> = objects.collect();
    // The program says itself that it knows of switches without a record.
    if objects.last()?["summary"].get("unrecorded_switches").is_some() {
        return None;
    }
    let objects: Vec<_> = objects.into_iter().filter(|row| row.get("woken").is_some()).collect();
    let counted = |tid: &u64| -> u64 {
        let of = |row: &&Value| row["woken"].as_str().unwrap().ends_with(&format!("/{tid}"));
        objects.iter().filter(of).map(|row| row["times"]["count"].as_u64().unwrap()).sum()
    };

    // Of each thread: whether it sleeps, whether it was woken since it ran, by whom, and the count.
    let mut threads: HashMap<u64, (bool, Option<u32>, u64)> = pair.iter().map(|tid| (*tid, (false, None, 0))).collect();
    let mut is_whole = true;
    reader.handle().flush().unwrap();
    while let Some(event) = reader.next().unwrap() {
        if matches!(event.item(), Item::Flushed { .. }) {
            break;
        }
        let Some(record) = event.record() else {
            is_whole = false;
            continue;
        };
        let Some((process, tid)) = record.pid_tid() else { continue };
        match (record.kind(), record.source()) {
            (bindings::PERF_RECORD_SAMPLE, Some(0)) => {
                if let Some((_, waker, _)) = threads.get_mut(&woken.uint(&record).unwrap()) {
                    let is_interrupt = flags.uint(&record).unwrap() & 0x18 != 0;
                    *waker = Some(if is_interrupt { 0 } else { process });
                }
            }
            (bindings::PERF_RECORD_SAMPLE, Some(1)) => {
                if let Some((sleeps, waker, _)) = threads.get_mut(&prev.uint(&record).unwrap()) {
                    *sleeps = [1, 2].contains(&(state.uint(&record).unwrap() & 0xff));
                    *waker = waker.filter(|_| *sleeps);
                }
                runs(threads.get_mut(&next.uint(&record).unwrap()), own, &mut is_whole);
            }
            // A switch without a sample before it.
            (bindings::PERF_RECORD_SWITCH | bindings::PERF_RECORD_SWITCH_CPU_WIDE, _)
                if record.misc() & 1 << 13 == 0 =>
            {
                let thread = threads.get_mut(&tid.into());
                // What the kernel leaves out at the tracepoint, it leaves out of the program's output as well.
                is_whole &= !way.is_empty() || !thread.as_ref().is_some_and(|(sleeps, ..)| *sleeps);
                runs(thread, own, &mut is_whole);
            }
            _ => {}
        }
    }
    let all = |count: &dyn Fn(&u64) -> u64| [count(&pair[0]), count(&pair[1])];
    is_whole.then(|| (all(&|tid| threads[tid].2), all(&counted)))
}

fn runs(thread: Option<&mut (bool, Option<u32>, u64)>, tracer: u32, is_whole: &mut bool) {
    let Some((sleeps, waker, count)) = thread else { return };
    if std::mem::take(sleeps) {
        *is_whole &= waker.is_some();
        // The tracer lets its command go, and leaves that out.
        *count += u64::from(*waker != Some(tracer));
    }
    *waker = None;
}

#[test]
fn each_wake_up_has_a_line_and_the_table_counts_them() {
    let Some(ran) = traced(&["wakeups", "--each", "-n", "1000", "--", "sh", "-c", "ls | cat; ls | cat; :"]) else {
        return;
    };
    let lines = ran.out.lines().filter(|line| line.contains(" waited ")).count();
    assert!(lines > 0 && ran.out.ends_with(&format!("\n{lines} wake-ups\n")), "{ran:?}");
    assert!(!ran.out.contains('\x1b'), "a terminal's own bytes in a pipe: {ran:?}");
    assert!(ran.err.contains("nothing is missing") || ran.err.contains("no record is lost"), "{ran:?}");
}

#[test]
fn losses_are_told_among_the_lines() {
    program::tells_losses("wakeups");
}

fn rows(ran: &program::Ran) -> Vec<Value> {
    let objects = ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    objects.filter(|object| object.get("woken").is_some()).collect()
}

/// Threads are numbered as in the first PID namespace by tracepoints, and as here by everything else.
#[test]
fn in_a_pid_namespace_wake_ups_are_found() {
    let command = ["wakeups", "--json", "--", "sh", "-c", "ls | cat; ls | cat; sleep 0.01; :"];
    let Some(ran) = program::in_a_container(&command) else { return };
    let out = ran.out.lines().filter(|line| line.starts_with('{')).collect::<Vec<_>>().join("\n");
    let rows = rows(&program::Ran { out, ..ran });
    // The shell is woken by its children, or a child by the other or a timer. Their numbers are small ones.
    let is_ours = |name: &Value| {
        let (comm, number) = name.as_str().unwrap().rsplit_once('/').unwrap();
        ["sh", "ls", "cat", "sleep"].contains(&comm) && number.parse::<u32>().is_ok_and(|number| number < 100)
    };
    assert!(rows.iter().any(|row| is_ours(&row["woken"])), "{rows:?}");
    // A process that was there before.
    let program = env!("CARGO_BIN_EXE_perfweave");
    let script = format!("(while :; do sleep 0.01; done) & '{program}' wakeups --json -p $! -d 0.5");
    let words = ["-pfm", "--mount-proc", "sh", "-c", &script];
    let ran = run(std::process::Command::new("unshare").args(words), "");
    assert!(self::rows(&ran).iter().any(|row| row["woken"] == "sh/2"), "{ran:?}");
}

#[test]
fn the_tracer_has_no_rows() {
    let Some(ran) = traced(&["wakeups", "--json", "-n", "1000", "--", "sh", "-c", "/bin/true; /bin/true"]) else {
        return;
    };
    let is_own =
        |name: &Value| ["wait/", "signals/", "perfweave"].iter().any(|own| name.as_str().unwrap().starts_with(own));
    let own: Vec<_> = rows(&ran).into_iter().filter(|row| is_own(&row["waker"]) || is_own(&row["woken"])).collect();
    assert!(own.is_empty(), "{own:?}");
}

/// A timer's interrupt wakes who sleeps. Its line says so, and names no thread. In a PID namespace too.
///
/// Busy loops keep the CPUs from being idle: there kernels leave out samples in interrupts, some all of them for a
/// while (docs/PLATFORMS.md).
#[test]
fn a_wake_up_by_an_interrupt_says_so() {
    let cpus = std::thread::available_parallelism().unwrap();
    let script = format!(
        "busy=; for cpu in $(seq {cpus}) $(seq {cpus}); do while :; do :; done & busy=\"$busy $!\"; done
        for i in 1 2 3 4 5; do sleep 0.01; done; ls | cat >/dev/null; kill $busy"
    );
    let command = ["wakeups", "--each", "--json", "--", "sh", "-c", &script];
    for ran in [traced(&command), program::in_a_container(&command)] {
        let Some(ran) = ran else { return };
        let lines: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let each: Vec<_> = lines.iter().filter(|line| line.get("ns").is_some()).collect();
        let is_interrupt = |line: &Value| ["nmi", "hardirq", "softirq"].iter().any(|kind| line["interrupt"] == *kind);
        assert!(each.iter().all(|line| is_interrupt(line) || line["interrupt"].is_null()), "{each:?}");
        assert!(each.iter().all(|line| is_interrupt(line) == (line["waker"] == "[interrupt]")), "{each:?}");
        let is_sleep = |line: &&&Value| line["woken"].as_str().unwrap().starts_with("sleep/") && is_interrupt(line);
        assert!(each.iter().filter(is_sleep).count() > 0, "{each:?}");
        assert!(each.iter().any(|line| !is_interrupt(line)), "{each:?}");
    }
}

#[test]
fn rows_are_sorted_as_asked() {
    for (column, key) in [("times", "count"), ("total", "total_ns"), ("p99", "p99_ns"), ("max", "max_ns")] {
        let command =
            ["wakeups", "--json", "--sort", column, "--", "sh", "-c", "ls | cat; ls | cat; sleep 0.01; ls | sort"];
        let Some(ran) = traced(&command) else { return };
        let out = ran.out.lines().filter(|line| line.starts_with('{')).collect::<Vec<_>>().join("\n");
        let keys: Vec<_> =
            rows(&program::Ran { out, ..ran }).iter().map(|row| row["times"][key].as_u64().unwrap()).collect();
        assert!(keys.len() > 1 && keys.is_sorted_by(|one, other| one >= other), "{column} {keys:?}");
    }
}

/// On a terminal of 60 columns each row has all its numbers.
#[test]
fn rows_fit_a_narrow_terminal() {
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    for (command, width, numbers) in [("wakeups", 60, 5), ("offcpu", 76, 8), ("offcpu", 85, 9), ("latency", 60, 5)] {
        let size = nix::pty::Winsize { ws_row: 24, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
        let Ok(terminal) = nix::pty::openpty(&size, None) else { return perfweave_support::lacks("pseudoterminals") };
        let script = "ls | cat >/dev/null; sleep 0.01; :";
        let mut child = perfweave()
            .args([command, "--", "sh", "-c", script])
            .stdin(std::process::Stdio::null())
            .stdout(terminal.slave)
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut out = String::new();
        // The other end closes when the program has ended (EIO).
        let _ = std::io::Read::read_to_string(&mut std::fs::File::from(terminal.master), &mut out);
        assert!(child.wait().unwrap().success());
        let rows: Vec<_> = out.lines().filter(|line| line.contains(" µs ") || line.contains(" ms ")).collect();
        assert!(!rows.is_empty(), "{out}");
        for row in rows {
            let units = ["ns", "µs", "ms", "s", "-"];
            let times = row.split_whitespace().filter(|word| units.contains(word)).count();
            assert!(row.trim_end().chars().count() <= width.into() && times >= numbers - 1, "{command}: {row:?}");
        }
    }
}

#[test]
fn errors_name_what_is_wrong() {
    for (arguments, code, text) in [
        (&["wakeups", "-n", "x"][..], 2, "invalid value"),
        (&["wakeups", "-p", "1", "--", "true"], 2, "cannot be used with"),
        (&["wakeups", "-p", "99999999"], 1, "there is no process 99999999"),
    ] {
        let ran = run(perfweave().args(arguments), "");
        assert!(ran.code == Some(code) && ran.err.contains(text) && ran.out.is_empty(), "{ran:?}");
    }
}

#[test]
fn a_closed_pipe_ends_it_well() {
    program::closed_pipe("wakeups --each");
}

#[test]
fn no_name_is_a_command_or_a_line() {
    program::names_are_printable(&["wakeups", "--each"]);
}

#[test]
fn others_are_told_what_they_lack() {
    program::as_nobody("wakeups -d 1");
    program::in_namespaces("wakeups -d 1");
}
