//! `perfweave offcpu` as a person runs it.

mod program;
mod support;

use program::{perfweave, run, traced};
use serde_json::Value;
use support::Place;

/// The objects of a run that succeeds: each period, the rows, and the summary.
fn objects(arguments: &[&str]) -> Option<[Vec<Value>; 3]> {
    let ran = traced(arguments)?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let objects = ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let (each, others): (Vec<_>, Vec<_>) = objects.partition(|object| object.get("ns").is_some());
    let (rows, others): (_, Vec<Value>) =
        others.into_iter().partition(|object: &Value| object.get("reasons").is_some());
    Some([each, rows, others])
}

/// A thread that sleeps is off the CPU at least as long, for the reason that it is asleep.
#[test]
fn sleeps_are_counted_with_their_reason() {
    let script = "sleep 0.01; sleep 0.01; sleep 0.01; :";
    let arguments = ["offcpu", "--json", "--each", "--comm", "sleep", "--", "sh", "-c", script];
    let Some([each, rows, others]) = objects(&arguments) else { return };
    assert_eq!(others.last().unwrap()["summary"]["late"], 0, "{others:?}");
    assert!(rows.len() == 3 && rows.iter().chain(&each).all(|object| object["comm"] == "sleep"), "{rows:?}");
    assert!(rows.iter().any(|row| row["reasons"]["asleep"]["total_ns"].as_u64() > Some(0)), "{rows:?}");
    for row in &rows {
        let own: Vec<_> = each.iter().filter(|one| one["pid"] == row["id"]).collect();
        let number = |one: &Value, name: &str| one[name].as_u64().unwrap_or(0);
        let sum = |reason: &str| -> u64 {
            let of = |one: &&&Value| one["reason"] == reason && reason != "ready";
            own.iter().filter(of).map(|one| number(one, "ns") - number(one, "ready_ns")).sum()
        };
        let ready: u64 = own.iter().map(|one| number(one, "ready_ns")).sum();
        // Asleep, or taken off the CPU right before it would have gone to sleep.
        assert!(sum("asleep") + ready >= 10_000_000, "{own:?}");
        // The table has what the lines have.
        assert_eq!(row["times"]["count"], own.len(), "{own:?}");
        for (reason, total) in
            ["asleep", "disk", "other"].map(|reason| (reason, sum(reason))).into_iter().chain([("ready", ready)])
        {
            assert_eq!(row["reasons"][reason]["total_ns"], total, "{reason} {own:?}");
        }
    }
}

/// A thread that computes is interrupted by the clock. Where the events of interrupts are not traced, nothing is said.
#[test]
fn what_interrupts_take_of_a_thread_has_a_column() {
    // So long that the clock ticks, on any machine.
    let loops = |count: u32| format!("i=0; while [ $i -lt {count} ]; do i=$((i+1)); done; sleep 0.01");
    let shell = |count: u32| {
        let script = loops(count);
        let [_, rows, _] = objects(&["offcpu", "--json", "--comm", "sh", "--", "sh", "-c", &script])?;
        Some(rows.into_iter().next().unwrap_or_default())
    };
    let mut is_told = false;
    for count in [100_000, 400_000, 1_600_000, 6_400_000] {
        let Some(row) = shell(count) else { return };
        is_told = row["irq"]["count"].as_u64() > Some(0) && row["irq"]["total_ns"].as_u64() > Some(0);
        if is_told {
            break;
        }
    }
    assert!(is_told, "never interrupted");
    // A thread that is only interrupted has a row as well, without a period.
    let text = traced(&["offcpu", "-n", "1000", "--by-thread", "-H", "--", "sh", "-c", &loops(50_000)]).unwrap();
    assert!(text.out.lines().next().is_some_and(|head| head.ends_with(" irq")), "{text:?}");

    let place = Place::new();
    let file = &place.file("recording");
    let record =
        ["record", "-a", "-e", "sched:sched_switch,sched:sched_waking", "-o", file, "--", "sh", "-c", "sleep 0.01"];
    // The kernel leaves a switch out now and then.
    let rows = (0..20).find_map(|_| {
        assert_eq!(traced(&record).unwrap().code, Some(0));
        let without = run(perfweave().args(["offcpu", "--json", "-i", file]), "");
        let rows: Vec<Value> = without.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        rows.iter().any(|row| row["comm"] == "sleep").then_some(rows)
    });
    assert!(rows.expect("a sleep in twenty recordings").iter().all(|row| row["irq"].is_null()));
    let text = run(perfweave().args(["offcpu", "-i", file]), "").out;
    // Below it a thread may have that in its name.
    assert!(text.lines().next().is_some_and(|head| head.starts_with("process") && !head.contains("irq")), "{text}");
}

/// On one CPU a real-time thread writes to one that sleeps in a read, and computes for 30 ms: the reader is ready all
/// that time, and asleep before.
const HOG: &str = "\
import os, time\n\
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n\
out, into = os.pipe()\n\
pid = os.fork()\n\
if pid == 0:\n\
\x20   os.read(out, 1)\n\
\x20   os._exit(0)\n\
while open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[0] != 'S': time.sleep(0.001)\n\
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))\n\
os.write(into, b'!')\n\
begin = time.clock_gettime(time.CLOCK_MONOTONIC)\n\
while time.clock_gettime(time.CLOCK_MONOTONIC) < begin + 0.03: pass\n\
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))\n\
os.waitpid(pid, 0)\n\
print(pid)";

#[test]
fn sleep_ends_at_the_wake_up() {
    let Some(python) = program::python() else { return };
    let Some(ran) = traced(&["offcpu", "--json", "--each", "--", &python, "-c", HOG]) else { return };
    if ran.err.contains("PermissionError") {
        return perfweave_support::lacks("real-time scheduling for this user");
    }
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let (numbers, objects): (Vec<_>, Vec<_>) = ran.out.lines().partition(|line| line.parse::<u32>().is_ok());
    let reader: u32 = numbers[0].parse().unwrap();
    let mut each = objects.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let is_read = |one: &Value| one["tid"] == reader && one["ready_ns"].as_u64() >= Some(30_000_000);
    let read = each.find(is_read).unwrap_or_else(|| panic!("{ran:?}"));
    let (ns, ready) = (read["ns"].as_u64().unwrap(), read["ready_ns"].as_u64().unwrap());
    // It has slept as well.
    assert!(read["reason"] == "asleep" && ready < ns, "{read}");
}

/// A process that ends, and later another with the same number (clone3 and set_tid).
const REUSED: &str = "\
import ctypes, os, struct, sys, time\n\
def start(number):\n\
\x20   wanted = ctypes.create_string_buffer(struct.pack('i', number))\n\
\x20   asked = struct.pack('11Q', 0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(wanted), 1, 0)\n\
\x20   pid = ctypes.CDLL(None, use_errno=True).syscall(435, ctypes.create_string_buffer(asked), len(asked))\n\
\x20   if pid == 0:\n\
\x20       time.sleep(0.002)\n\
\x20       os._exit(0)\n\
\x20   if pid < 0: sys.exit(f'errno {ctypes.get_errno()}')\n\
\x20   os.waitpid(pid, 0)\n\
number = int(open('/proc/sys/kernel/pid_max').read()) - 7\n\
start(number)\n\
time.sleep(0.02)\n\
start(number)\n\
print(number)";

#[test]
fn the_time_between_two_processes_of_one_number_is_nobodys() {
    let Some(python) = program::python() else { return };
    let Some(ran) = traced(&["offcpu", "-a", "--json", "--each", "--", &python, "-c", REUSED]) else { return };
    if ran.err.starts_with("errno 1\n") {
        return perfweave_support::lacks("the right to choose a process number");
    }
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let (numbers, objects): (Vec<_>, Vec<_>) = ran.out.lines().partition(|line| line.parse::<u32>().is_ok());
    let number: u32 = numbers[0].parse().unwrap();
    let objects: Vec<Value> = objects.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let own: Vec<_> = objects.iter().filter(|object| object["tid"] == number).collect();
    // Each of the two slept.
    assert!(own.iter().filter(|one| one["reason"] == "asleep").count() >= 2, "{ran:?}");
    assert!(own.iter().all(|one| one["reason"] != "other"), "{own:?}");
}

/// Its control group has used up its quota, or another thread runs: both are ready time, and nothing more is said.
#[test]
fn a_thread_without_quota_is_ready() {
    let group = std::path::Path::new("/sys/fs/cgroup/cpu").join(format!("perfweave-quota-{}", std::process::id()));
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
    // The shell itself computes for more than a quota of 5 ms before it looks: else who is held back is sed.
    let script = format!(
        "echo $$ > {}/cgroup.procs; i=0; while [ $i -lt 200 ]; do i=$((i+1)); j=0; while [ $j -lt 20000 ]; do \
         j=$((j+1)); done; [ -z \"$(sed -n 's/^nr_throttled [1-9].*/x/p' {0}/cpu.stat)\" ] || exit 0; done",
        group.display()
    );
    let Some([each, rows, _]) = objects(&["offcpu", "--json", "--each", "--comm", "sh", "--", "sh", "-c", &script])
    else {
        return;
    };
    let known = ["asleep", "disk", "ready", "other"];
    assert!(each.iter().all(|one| known.contains(&one["reason"].as_str().unwrap())), "{each:?}");
    let taken: Vec<_> = each.iter().filter(|one| one["reason"] == "ready").collect();
    assert!(!taken.is_empty() && taken.iter().all(|one| one["ready_ns"] == one["ns"]), "{each:?} {rows:?}");
}

#[test]
fn losses_are_told_among_the_lines() {
    program::tells_losses("offcpu");
}

#[test]
fn in_a_pid_namespace_numbers_are_those_that_ps_shows() {
    let command = ["--json", "--by-thread", "--", "sh", "-c", "sleep 0.01; sleep 0.01; :"];
    let Some(ran) = program::in_a_container(&[&["offcpu"][..], &command].concat()) else { return };
    let rows: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sleeps: Vec<_> = rows.iter().filter(|row| row["comm"] == "sleep").collect();
    assert!(sleeps.len() == 2 && sleeps.iter().all(|row| row["id"].as_u64() < Some(100)), "{ran:?}");
    assert!(sleeps.iter().any(|row| row["reasons"]["asleep"]["count"] == 1), "{ran:?}");
}

#[test]
fn children_and_threads_have_rows() {
    const ARGS: [&str; 7] = ["offcpu", "-H", "--by-thread", "--", "sh", "-c", "sleep 0.01; sleep 0.01; exit 2"];
    // What is missing, or a switch without a record, may take a row away: then again.
    for _ in 0..10 {
        let Some(ran) = traced(&ARGS) else { return };
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.out.contains("distribution") && !ran.out.contains('\x1b'), "{ran:?}");
        if ran.out.lines().filter(|line| line.starts_with("sleep/")).count() == 2 {
            return;
        }
        assert!(!ran.err.contains("nothing is missing"), "{ran:?}");
    }
    perfweave_support::lacks("a trace in which nothing is missing, of ten");
}

#[test]
fn errors_name_what_is_wrong() {
    let ran = run(perfweave().args(["offcpu", "-p", "1", "-t", "1"]), "");
    assert!(ran.code == Some(2) && ran.err.contains("cannot be used with"), "{ran:?}");
    let Some(ran) = traced(&["offcpu", "-p", "99999999"]) else { return };
    assert!(ran.code == Some(1) && ran.err.contains("there is no process 99999999"), "{ran:?}");
}

#[test]
fn a_closed_pipe_ends_it_well() {
    program::closed_pipe("offcpu --each");
}

#[test]
fn no_name_is_a_command_or_a_line() {
    program::names_are_printable(&["offcpu", "--each"]);
}

#[test]
fn others_are_told_what_they_lack() {
    program::as_nobody("offcpu -d 1");
    program::in_namespaces("offcpu -d 1");
}
