//! The analyses of recordings, ours and perf's: what they say of a shell whose doings are known.

mod program;
mod support;

use perfweave_support::perf;
use program::{Ran, perfweave, run, traced};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use support::Place;

/// Five programs, and one that sleeps. The shell says its number first.
const SCRIPT: &str = "echo $$; for i in 1 2 3 4 5; do /bin/true; done; sleep 0.03; :";

const EVENTS: &str = "sched:sched_switch,sched:sched_waking,raw_syscalls:*";

/// The objects that an analysis of a recording prints: rows, and the summary.
#[track_caller]
fn analysed(file: &str, arguments: &[&str]) -> (Vec<Value>, Value) {
    let ran = run(perfweave().args(arguments).args(["--json", "-i", file]), "");
    assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
    let mut objects: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = objects.pop().unwrap()["summary"].clone();
    (objects, summary)
}

fn sum<'a>(rows: impl IntoIterator<Item = &'a Value>) -> u64 {
    rows.into_iter().map(|row| row["times"]["count"].as_u64().unwrap()).sum()
}

/// What the analyses say of the shell with this number. False where the recording lacks something: the kernel leaves a
/// switch out now and then.
#[track_caller]
fn is_told(file: &str, shell: &str) -> bool {
    let (calls, summary) = analysed(file, &["latency", "-e", "execve", "--comm", "true", "-p", shell]);
    if summary["lost"] != 0 {
        return false;
    }
    assert_eq!((sum(&calls), summary["late"].as_u64()), (5, Some(0)), "{calls:?}");
    let (lines, _) = analysed(file, &["trace", "-e", "execve", "-p", shell]);
    let is_done = |line: &&Value| line["call"] == "execve" && line["comm"] == "true" && line["result"] == 0;
    assert_eq!(lines.iter().filter(is_done).count(), 5, "{lines:?}");
    let number: u64 = shell.parse().unwrap();
    // All calls: each of the seven threads ends, and nobody else's end is told.
    let (lines, _) = analysed(file, &["trace", "-p", shell]);
    let ends: Vec<_> = lines.iter().filter(|line| line["thread"] == "ends").collect();
    assert!(ends.len() == 7 && lines.len() > 50 && ends.iter().any(|end| end["tid"] == number), "{ends:?}");
    let (switches, _) = analysed(file, &["trace", "-e", "sched:sched_switch", "-p", shell]);
    let is_switch =
        |line: &Value| line["event"] == "sched:sched_switch" && ends.iter().any(|end| end["tid"] == line["tid"]);
    assert!(switches.len() >= 7 && switches.iter().all(is_switch), "{switches:?}");
    let pair = ["latency", "--from", "raw_syscalls:sys_enter", "--to", "raw_syscalls:sys_exit", "--by", "common_pid"];
    let (pairs, _) = analysed(file, &[&pair[..], &["-p", shell]].concat());
    assert!(sum(&pairs) > 50, "{pairs:?}");
    // Each wake-up has a line, and the table counts them all.
    let (rows, _) = analysed(file, &["wakeups", "-p", shell, "--each", "-n", "1000"]);
    let (each, table): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row["time"].is_number());
    assert_eq!(sum(table.iter().copied()), each.len() as u64, "{rows:?}");
    let wakes = each.iter().any(|row| row["woken"] == format!("sh/{shell}") && row["waker"] != "[interrupt]");
    let (rows, _) = analysed(file, &["offcpu", "-p", shell, "--by-thread"]);
    let asleep =
        |row: &&Value| row["comm"] == "sleep" && row["reasons"]["asleep"]["total_ns"].as_u64() >= Some(30_000_000);
    wakes && rows.iter().filter(asleep).count() == 1
}

/// Records until the analyses have all that they need.
#[track_caller]
fn is_told_by(record: impl Fn(&str) -> Ran) {
    let place = Place::new();
    let file = place.file("perf.data");
    let is_told = (0..10).any(|_| {
        let ran = record(&file);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        is_told(&file, ran.out.trim())
    });
    perfweave_support::needs("all switches of a shell in a recording, ten times", is_told);
}

#[test]
fn a_recording_of_ours_is_analysed() {
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    is_told_by(|file| {
        let record = ["record", "-a", "--buffer", "16M", "-e", EVENTS, "-o", file, "--", "sh", "-c", SCRIPT];
        run(perfweave().args(record), "")
    });
}

#[test]
fn a_recording_of_perf_is_analysed() {
    let (Some(_), Some(())) = (traced(&["trace", "--", "true"]), perf()) else { return };
    is_told_by(|file| {
        let record = ["record", "-q", "-a", "-m", "16M", "-e", EVENTS, "-o", file, "--", "sh", "-c", SCRIPT];
        run(Command::new("perf").args(record), "")
    });
}

const THREADS: &str = "PERFWEAVE_THREADS";

/// Threads that end, in a process of their own: this test with a variable set.
#[test]
fn threads_end() {
    if std::env::var_os(THREADS).is_some() {
        (0..40).for_each(|_| std::thread::spawn(|| ()).join().unwrap());
        println!("process {}", std::process::id());
    }
}

/// A thread that is not its process's first has no number for the kernel any more when it is switched out for the last
/// time.
#[test]
fn a_last_switch_is_that_of_its_thread() {
    let place = Place::new();
    let file = place.file("perf.data");
    let own = std::env::current_exe().unwrap();
    let record = ["record", "-a", "--buffer", "16M", "-e", "sched:sched_switch", "-o", &file, "--"];
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    let ran =
        run(perfweave().args(record).arg(own).args(["--exact", "threads_end", "--nocapture"]).env(THREADS, "1"), "");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let pid = ran.out.split_once("process ").unwrap().1.lines().next().unwrap();
    let process: u64 = pid.parse().unwrap();
    // Dead, or waited for by nobody yet.
    let is_last = |line: &&Value| line["fields"]["prev_state"].as_u64().is_some_and(|state| state & 0x30 != 0);
    // In a container a thread has another number in its fields, and perhaps no record before this one.
    let are_the_kernels = std::fs::metadata("/proc/self/ns/pid").is_ok_and(|space| space.ino() == 0xEFFF_FFFC);
    let is_its = |line: &Value| match line["tid"].as_u64() {
        Some(tid) => {
            if are_the_kernels {
                line["fields"]["prev_pid"] == tid
            } else {
                tid < 1 << 22
            }
        }
        None => !are_the_kernels,
    };
    let (all, _) = analysed(&file, &["trace"]);
    assert!(all.iter().filter(is_last).all(is_its), "{all:?}");
    let (of_process, _) = analysed(&file, &["trace", "-p", pid]);
    let last: Vec<_> = of_process.iter().filter(is_last).collect();
    let is_of_process = |line: &Value| line["pid"].is_null() || line["pid"] == process;
    assert!(last.iter().all(|line| is_its(line) && is_of_process(line)), "{last:?}");
    // The kernel leaves a switch out now and then.
    assert!(last.len() >= 20, "{last:?}");
    let text = run(perfweave().args(["convert", "--text", &file]), "").out;
    let mut of_threads = text.lines().filter(|line| line.contains("prev_comm=threads_end"));
    let has_number = |line: &str| line.split_whitespace().nth(1).is_some_and(|tid| tid.parse::<u32>().is_ok());
    assert!(of_threads.clone().count() >= 20 && (!are_the_kernels || of_threads.all(has_number)), "{text}");
    let ran = run(perfweave().args(["profile", "-e", "sched:sched_switch", "-i", &file]), "");
    assert!(ran.code == Some(0) && !ran.out.contains("4294967295"), "{ran:?}");
}

/// The same samples as `convert --folded` counts, whose first words are the names of threads without a number.
#[test]
fn the_samples_of_a_recording_are_counted_by_stack() {
    let place = Place::new();
    let file = place.file("perf.data");
    let script = "echo $$; n=0; while [ $n -lt 300000 ]; do n=$((n+1)); done";
    let record = ["record", "-e", "cpu-clock,page-faults", "--call-graph", "-o", &file, "--", "sh", "-c", script];
    let Some(ran) = traced(&record) else { return };
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let (rows, _) = analysed(&file, &["profile"]);
    let shell = format!("sh:{}", ran.out.trim());
    // Before it is the shell, it has another name.
    let is_one = |row: &Value| row["stack"][0].as_str().is_some_and(|name| name.ends_with(&shell[2..]));
    assert!(rows.iter().all(is_one) && rows.iter().any(|row| row["stack"][0] == shell.as_str()), "{rows:?}");
    let samples = |rows: &[Value]| rows.iter().map(|row| row["samples"].as_u64().unwrap()).sum::<u64>();
    let (faults, _) = analysed(&file, &["profile", "-e", "page-faults"]);
    let folded = run(perfweave().args(["convert", "--folded", &file]), "");
    let all: u64 = folded.out.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert!(samples(&rows) > 0 && samples(&faults) > 0, "{rows:?} {faults:?}");
    assert_eq!(samples(&rows) + samples(&faults), all, "{folded:?}");
    let (none, _) = analysed(&file, &["profile", "--comm", "nosuch"]);
    assert!(none.is_empty(), "{none:?}");
}

/// What a recording lacks for what is asked is said in a line, with what would mend it.
#[test]
fn what_is_lacking_is_said() {
    let place = Place::new();
    let (samples, switches) = (place.file("samples"), place.file("switches"));
    for (file, event) in [(&samples, "cpu-clock"), (&switches, "sched:sched_switch,sched:sched_process_*")] {
        let Some(ran) = traced(&["record", "-a", "-e", event, "-o", file, "--", "true"]) else { return };
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    for (arguments, file, lacks, cure) in [
        (&["wakeups"][..], &samples, "the recording has no sched:sched_switch", "record -a -e why"),
        (&["offcpu"], &samples, "the recording has no sched:sched_switch", "record -a -e why"),
        (&["latency"], &samples, "the recording has no raw_syscalls:sys_enter", "record -a -e 'raw_syscalls:*'"),
        (&["wakeups"], &switches, "the recording has no sched:sched_waking", "record it, too"),
        (&["profile"], &switches, "several events, and none of CPU time", "-e sched:sched_switch"),
        (&["profile", "-e", "cycles"], &samples, "the recording has no cycles", "it has cpu-clock"),
        (
            &["trace", "-e", "read"],
            &samples,
            "the recording has no raw_syscalls:sys_enter",
            "record -a -e 'raw_syscalls:*'",
        ),
        (
            &["trace", "-e", "sched:sched_waking"],
            &samples,
            "the recording has no sched:sched_waking",
            "it has cpu-clock",
        ),
        (
            &["trace", "-e", "read,sched:sched_switch"],
            &switches,
            "is an event, and others are system calls",
            "name these as events too",
        ),
        (&["offcpu", "--cgroup", "/"], &switches, "does not say whose control group", "--pid PID"),
    ] {
        let ran = run(perfweave().args(arguments).args(["-i", file]), "");
        let (said, help) = ran.err.trim_end().split_once('\n').unwrap_or_else(|| panic!("{ran:?}"));
        assert!(ran.code == Some(1) && ran.out.is_empty(), "{ran:?}");
        assert!(said.contains(lacks) && help.starts_with("help: ") && help.contains(cure), "{ran:?}");
    }
    // Periods are known without wake-ups.
    let ran = run(perfweave().args(["offcpu", "-i", &switches]), "");
    assert!(ran.code == Some(0) && ran.err.contains("has no sched:sched_waking"), "{ran:?}");
    for other in [&["-d", "1"][..], &["--buffer", "1M"], &["--", "true"]] {
        let ran = run(perfweave().args(["wakeups", "-i", &switches]).args(other), "");
        assert!(ran.code == Some(2) && ran.err.contains("cannot be used with"), "{ran:?}");
    }
}

fn report(file: &str, arguments: &[&str]) -> Value {
    let ran = run(perfweave().args(["report", "--json", file]).args(arguments), "");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serde_json::from_str(&ran.out).unwrap()
}

/// What the other commands count one by one.
#[test]
fn a_report_counts_what_is_in_a_recording() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = support::recorded_with_losses(&file, &["-a", "--call-graph"]) else { return };
    let objects = support::objects(&["convert", "--json", &file]);
    let report = report(&file, &["-n", "1000"]);
    let of = |name: &str| objects.iter().filter(|object| object["event"] == name).count() as u64;
    let kinds = report["events"].as_array().unwrap();
    assert!(
        kinds.len() > 4 && kinds.windows(2).all(|two| two[0]["count"].as_u64() >= two[1]["count"].as_u64()),
        "{report:#}"
    );
    for kind in kinds {
        assert_eq!(kind["count"], of(kind["event"].as_str().unwrap()), "{kind}");
    }
    // The losses with their places.
    let lost = |object: &Value| ["cpu", "count"].map(|name| object[name].as_u64().unwrap());
    let mut losses: Vec<_> = objects.iter().filter(|object| object["notice"] == "lost").map(lost).collect();
    let mut places: Vec<_> = report["losses"]["places"].as_array().unwrap().iter().map(lost).collect();
    losses.sort_unstable();
    places.sort_unstable();
    assert!(!losses.is_empty() && losses == places, "{losses:?} {places:?}");
    assert!(
        report["complete"] == false && report["lost"].as_u64().unwrap() >= losses.iter().map(|[_, count]| count).sum(),
        "{report:#}"
    );
    // Each CPU, and the first and the last time.
    let samples: Vec<_> =
        objects.iter().filter(|object| object["event"].as_str().is_some_and(|name| name.contains(':'))).collect();
    let times = samples.iter().map(|object| object["time"].as_u64().unwrap());
    assert_eq!([times.clone().min(), times.max()], ["from", "to"].map(|name| report[name].as_u64()), "{report:#}");
    for cpu in report["cpus"].as_array().unwrap() {
        let of = objects.iter().filter(|object| object["event"].is_string() && object["cpu"] == cpu["cpu"]).count();
        assert_eq!(cpu["records"], of, "{cpu}");
    }
    // Programs whose threads did most, and what says more.
    assert!(report["busiest"].as_array().unwrap().iter().any(|busy| busy["ns"].as_u64() > Some(0)), "{report:#}");
    assert!(
        report["delayed"].as_array().unwrap().iter().all(|one| one["max_ns"].as_u64() <= one["total_ns"].as_u64()),
        "{report:#}"
    );
    let more: Vec<_> = report["more"].as_array().unwrap().iter().map(|command| command.as_str().unwrap()).collect();
    let [why, profile] = [format!("perfweave why {file}"), format!("perfweave profile -i {file}")];
    assert!(more.contains(&why.as_str()) && more.contains(&profile.as_str()), "{more:?}");
    assert!(!more.iter().any(|command| command.starts_with("perfweave latency")), "{more:?}");
    // In words, on a screen.
    let text = run(perfweave().args(["report", "-i", &file]), "");
    assert!(text.code == Some(0) && text.err.is_empty() && text.out.lines().count() <= 45, "{text:?}");
    assert!(!text.out.contains("nothing is missing") && text.out.contains(" lost"), "{text:?}");
    for words in ["sched:sched_switch", "busiest", "waited for a CPU", "\n  CPU "] {
        assert!(text.out.contains(words), "{words}: {text:?}");
    }
}

/// How long the threads of some programs ran, in nanoseconds, by perf sched and by the report.
fn run_times(file: &str) -> Vec<[Option<u64>; 2]> {
    let report = report(file, &["-n", "100000"]);
    let summary = run(Command::new("perf").args(["sched", "timehist", "-s", "-i", file]), "");
    // `comm[tid/pid]  parent  sched-in  run-time ...`, in milliseconds with three digits.
    let of = |line: &str| {
        let (name, rest) = line.trim_start().rsplit_once(']')?;
        let (comm, number) = name.rsplit_once('[')?;
        let tid = number.split('/').next()?.parse::<u64>().ok()?;
        let ms = rest.split_whitespace().nth(2)?.parse::<f64>().ok()?;
        let busy = report["busiest"].as_array()?.iter().find(|busy| busy["tid"] == tid);
        let is_one = ["sh", "ls", "cat", "sleep"].contains(&comm);
        is_one.then(|| [Some((ms * 1e6).round() as u64), busy.and_then(|busy| busy["ns"].as_u64())])
    };
    summary.out.lines().filter_map(of).collect()
}

/// How long each thread of a program ran, as perf sched counts it. The kernel leaves switches out now and then, and then
/// each counts in its own way: nearly all are the same, or it is tried again.
#[test]
fn a_report_has_the_run_times_of_perf_sched() {
    let (Some(_), Some(())) = (traced(&["trace", "--", "true"]), perf()) else { return };
    let place = Place::new();
    let file = place.file("perf.data");
    let script = "n=0; while [ $n -lt 10000 ]; do n=$((n+1)); done; for i in 1 2 3; do ls / | cat >/dev/null; done; :";
    let events = "sched:sched_switch,sched:sched_waking";
    let is_same = (0..10).any(|_| {
        let record = ["record", "-q", "-a", "-m", "4M", "-e", events, "-o", &file, "--", "sh", "-c", script];
        let ran = run(Command::new("perf").args(record), "");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let times = run_times(&file);
        let is_same =
            |[perf, ours]: &&[Option<u64>; 2]| perf.zip(*ours).is_some_and(|(one, other)| one.abs_diff(other) <= 1_000);
        let same = times.iter().filter(is_same).count();
        println!("{same} of {}", times.len());
        same >= 5 && same + 1 >= times.len()
    });
    let Some(()) = perfweave_support::needs("nearly all switches in a recording, ten times", is_same) else { return };
    let text = run(perfweave().args(["report", &file]), "");
    assert!(!text.out.contains("nothing is missing"), "perf counts no losses after the last record: {text:?}");
}

/// Where one process is recorded, its switches say little: nothing is concluded.
#[test]
fn a_report_of_one_process_says_so() {
    let place = Place::new();
    let file = place.file("one process");
    let script = ["--", "sh", "-c", "for i in 1 2 3; do sleep 0.01; done; :"];
    let (Some(_), Some(())) = (traced(&["trace", "--", "true"]), perf()) else { return };
    let ran =
        run(Command::new("perf").args(["record", "-q", "-e", "sched:sched_switch", "-o", &file]).args(script), "");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let one = report(&file, &[]);
    assert!(one["lacks"].as_str().is_some_and(|lacks| lacks.contains("some threads alone")), "{one:#}");
    assert!(
        one["busiest"].as_array().unwrap().iter().all(|busy| busy["ns"].is_null() && busy["events"].is_u64()),
        "{one:#}"
    );
    let more = one["more"].as_array().unwrap().last().unwrap();
    assert_eq!(more.as_str().unwrap(), format!("perfweave convert --html '{file}' -o trace.html"));
    // Ours counts all losses, and here there are none.
    let Some(ran) = traced(&[&["record", "-o", &file, "--buffer", "16M"][..], &script].concat()) else { return };
    assert!(ran.code == Some(0) && ran.err.contains("nothing is missing"), "{ran:?}");
    let ours = report(&file, &[]);
    assert!(ours["lost"] == 0 && ours["began"].as_str().is_some_and(|began| began.starts_with("20")), "{ours:#}");
}

/// The samples of a recording by the names of their events.
fn kinds(file: &str) -> Vec<(String, u64)> {
    let report = report(file, &["-n", "1000"]);
    let kinds = report["events"].as_array().unwrap().iter();
    kinds.map(|kind| (kind["event"].as_str().unwrap().to_owned(), kind["count"].as_u64().unwrap())).collect()
}

/// A shell that uses the CPU for a while, in user mode and, by faults, in the kernel.
const BUSY: &str = "n=0; while [ $n -lt 100000 ]; do n=$((n+1)); done; for i in 1 2 3 4; do /bin/true; done";

/// What perf's flags mean there, they mean here: perf reads the recording, and its own has the same.
#[test]
fn flags_of_perf_are_understood() {
    let place = Place::new();
    let file = place.file("perf.data");
    let record = |flags: &[&str]| {
        let ran = traced(&[&["record", "-o", &file][..], flags, &["--", "sh", "-c", BUSY]].concat())?;
        assert_eq!(ran.code, Some(0), "{flags:?}: {ran:?}");
        Some(kinds(&file))
    };
    let count =
        |kinds: &[(String, u64)], name: &str| kinds.iter().find(|(kind, _)| kind == name).map_or(0, |kind| kind.1);
    let Some(faults) = record(&["-e", "page-faults:u,page-faults:k"]) else { return };
    assert!(count(&faults, "page-faults:u") > 0 && count(&faults, "page-faults:k") > 0, "{faults:?}");
    let clock = record(&["-F", "999", "-g", "-e", "cpu-clock:u"]).unwrap();
    assert!(count(&clock, "cpu-clock:u") > 0, "{clock:?}");
    // In user mode no sample lies in the kernel, and no chain leads there.
    let folded = support::printed(&["profile", "-i", &file, "-e", "cpu-clock"]);
    assert!(!folded.is_empty() && !folded.contains("entry_SYSCALL") && !folded.contains("asm_"), "{folded}");
    // Once in ten times, of each process on each CPU.
    let each = count(&record(&["-e", "page-faults"]).unwrap(), "page-faults");
    let few = count(&record(&["-c", "10", "-e", "page-faults"]).unwrap(), "page-faults");
    assert!(few > 0 && few < each / 2, "{few} of {each}");
    // Only on one CPU.
    let one = record(&["-a", "-C", "0", "-e", "sched:sched_switch:k"]).unwrap();
    assert!(count(&one, "sched:sched_switch") > 0, "{one:?}");
    assert!(report(&file, &[])["cpus"].as_array().unwrap().iter().all(|cpu| cpu["cpu"] == 0), "{one:?}");
    // perf reads it.
    let Some(()) = perf() else { return };
    let _ = record(&["-F", "max", "--call-graph", "fp", "-e", "cpu-clock:ppp"]).unwrap();
    let script = ["script", "-i", &file, "-F", "event,ip"];
    let told = perfweave_support::perf::printed(Command::new("perf").args(script)).unwrap();
    assert!(told.contains("cpu-clock:ppp:"), "{told}");
}

/// What is said of a copy of the stack that cannot be, and where stacks are not unwound at all.
const DWARF: &str = match (cfg!(feature = "dwarf"), cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))) {
    (true, true) => "at most 65528: dwarf,16384",
    (true, false) => "on x86-64 and 64-bit Arm alone",
    (false, _) => "built without dwarf",
};

/// Some are not understood, which is said in one line.
#[test]
fn what_is_not_understood_of_perf_is_said() {
    for (arguments, code, says) in [
        (&["record", "--call-graph", "dwarf,65529", "--", "true"][..], 2, DWARF),
        (&["profile", "--call-graph", "dwarf,x", "--", "true"], 2, DWARF),
        (&["profile", "--call-graph", "lbr", "--", "true"], 2, "by frame pointers here"),
        (&["record", "-e", "cycles:S", "--", "true"], 1, "the modifier S of perf is not understood"),
        (&["profile", "-e", "cpu-clock:W", "--", "true"], 1, "the modifier W of perf is not understood"),
        (&["record", "-F", "0", "--", "true"], 2, "such as 99, or max"),
        (&["record", "-F", "9", "-c", "9", "--", "true"], 2, "cannot be used with"),
        (&["record", "-C", "3-1", "--", "true"], 2, "such as 0,2-3"),
        (&["record", "-e", "sched:sched_switch:u", "--", "true"], 1, "is in the kernel"),
    ] {
        let ran = run(perfweave().args(arguments), "");
        assert!(ran.code == Some(code) && ran.err.contains(says) && ran.out.is_empty(), "{arguments:?}: {ran:?}");
    }
}

/// Two processes of three, by both commands.
#[test]
fn several_processes_are_sampled() {
    let place = Place::new();
    let file = place.file("perf.data");
    let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    let mut spinning = [spin(), spin(), spin()];
    let pids = spinning.each_ref().map(|child| child.id().to_string());
    let both = pids[..2].join(",");
    let recorded = run(perfweave().args(["record", "-e", "cpu-clock", "-d", "1", "-p", &both, "-o", &file]), "");
    let profiled = run(perfweave().args(["profile", "--json", "-d", "1", "-p", &both]), "");
    spinning.iter_mut().for_each(|child| drop((child.kill(), child.wait())));
    assert_eq!((recorded.code, profiled.code), (Some(0), Some(0)), "{recorded:?} {profiled:?}");
    let report = report(&file, &[]);
    let tids: Vec<_> = report["busiest"].as_array().unwrap().iter().map(|busy| busy["tid"].to_string()).collect();
    assert!(tids.len() == 2 && tids.iter().all(|tid| pids[..2].contains(tid)), "{pids:?} {report:#}");
    let stacks = profiled.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let names: Vec<_> = stacks.filter_map(|stack| Some(stack["stack"][0].as_str()?.to_owned())).collect();
    assert!(!names.is_empty() && names.iter().all(|name| pids[..2].iter().any(|pid| name.ends_with(pid))), "{names:?}");
}

/// A user without any right samples its own commands in user mode, in proven order, and is told so.
#[test]
fn nobody_samples_its_own_commands() {
    let Some(level) = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok() else { return };
    let level: i32 = level.trim().parse().unwrap();
    let Some(()) = perfweave_support::needs("kernel.perf_event_paranoid 2", level == 2) else { return };
    let place = Place::new();
    let file = place.file("perf.data");
    std::fs::set_permissions(&place.0, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let busy = format!("-- sh -c '{BUSY}'");
    let by_nobody = |command: &str| {
        let (ran, _) = program::run_by_nobody(&format!("{command} {busy}"))?;
        Some((ran.code, ran.out, ran.err))
    };
    let Some((code, out, err)) = by_nobody("profile -F 999") else { return };
    assert!(code == Some(0) && out.contains("sh:") && !out.contains("asm_"), "{out} {err}");
    assert!(err.contains("user mode alone: cpu-clock:u") && err.contains("all in proven order"), "{err}");
    for (command, event) in [
        ("record -F 999", "cpu-clock:u"),
        ("record -e page-faults", "page-faults:u"),
        ("record -e page-faults:u", "page-faults:u"),
    ] {
        let (code, _, err) = by_nobody(&format!("{command} -o {file}")).unwrap();
        assert!(code == Some(0) && err.contains("all in proven order"), "{command}: {err}");
        // What was asked for needs no words.
        assert_eq!(err.contains("user mode alone"), !command.ends_with(":u"), "{command}: {err}");
        assert!(kinds(&file).iter().any(|(kind, count)| kind == event && *count > 0), "{command}: {:?}", kinds(&file));
        std::fs::remove_file(&file).unwrap();
    }
    // Without locked memory of its own, in what each user has.
    let (ran, _) = program::run_by_nobody_in("ulimit -l 0;", &format!("record -o {file} {busy}")).unwrap();
    assert!(ran.code == Some(0) && ran.err.contains("all in proven order"), "{ran:?}");
    for command in ["record -e sched:sched_switch", "record -e cpu-clock:k", "profile -a"] {
        let (code, out, err) = by_nobody(&format!("{command} --seconds 1")).unwrap();
        assert!(
            code == Some(1) && out.is_empty() && err.contains("record -- COMMAND and profile -- COMMAND work"),
            "{command}: {err}"
        );
    }
    let (ran, _) = program::run_by_nobody("check --json").unwrap();
    let says = |name: &str| {
        let line =
            ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).find(|line| line["check"] == name);
        line.unwrap_or_else(|| panic!("{name}: {ran:?}"))
    };
    for (name, works) in [
        ("record, profile -- CMD", true),
        ("recordings", true),
        ("profile", false),
        ("trace, latency", false),
        ("wakeups, offcpu, why", false),
    ] {
        let line = says(name);
        assert!(line["ok"] == works && (works || line["cure"].is_string()), "{line}");
    }
}

/// Stacks that perf has recorded to be unwound by DWARF, where they are not.
#[cfg(not(feature = "dwarf"))]
#[test]
fn stacks_that_are_not_unwound_are_said() {
    let (Some(_), Some(())) = (traced(&["trace", "--", "true"]), perf()) else { return };
    let place = Place::new();
    let file = place.file("perf.data");
    for (how, is_said) in [("dwarf", true), ("fp", false)] {
        let record =
            ["record", "-q", "-e", "cpu-clock", "-F", "99", "--call-graph", how, "-o", &file, "--", "sh", "-c", BUSY];
        let ran = run(Command::new("perf").args(record), "");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        for command in [&["convert", "--folded"][..], &["profile", "-i"]] {
            let ran = run(perfweave().args(command).arg(&file), "");
            assert!(ran.code == Some(0) && !ran.out.is_empty(), "{ran:?}");
            assert_eq!(ran.err.contains("the stacks of this recording are for DWARF"), is_said, "{how}: {ran:?}");
        }
    }
}
