//! `perfweave latency` as a person runs it.

mod program;

use program::{perfweave, run, traced};
use serde_json::Value;

#[test]
fn calls_of_a_command_are_counted() {
    let script = "for i in 1 2 3 4 5; do /bin/true; done; exit 4";
    let Some(ran) = traced(&["latency", "--json", "-e", "execve,exit_group", "--", "sh", "-c", script]) else { return };
    assert_eq!(ran.code, Some(4), "{ran:?}");
    let rows: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // The shell's own and five. No thread returns from exit_group.
    assert_eq!((rows.len(), &rows[0]["what"], &rows[0]["times"]["count"]), (2, &"execve".into(), &6.into()), "{ran:?}");
    let of = |name| rows[0]["times"][name].as_u64().unwrap();
    assert!(of("p50_ns") <= of("p99_ns") && of("p99_ns") <= of("max_ns") && of("max_ns") <= of("total_ns"), "{ran:?}");

    let ran =
        traced(&["latency", "-H", "--by-process", "--comm", "true", "-e", "execve", "--", "sh", "-c", script]).unwrap();
    assert_eq!(
        ran.out.lines().filter(|line| line.starts_with("true/") && line.contains(" execve ")).count(),
        5,
        "{ran:?}"
    );
    assert!(ran.out.contains("distribution"), "{ran:?}");
}

/// Each new process is forked once and ends once.
#[test]
fn pairs_of_events_are_joined_by_a_field() {
    let pair = ["--from", "sched:sched_process_fork", "--to", "sched:sched_process_exit", "--by", "child_pid=pid"];
    let command = ["--", "sh", "-c", "for i in 1 2 3 4 5; do /bin/true; done; :"];
    let Some(ran) = traced(&[["latency", "--json"].as_slice(), &pair, &command].concat()) else { return };
    let row: Value = serde_json::from_str(ran.out.lines().next().unwrap()).unwrap();
    assert_eq!(row["what"], "sched_process_fork -> sched_process_exit", "{ran:?}");
    assert_eq!(row["times"]["count"], 5, "{ran:?}");
}

#[test]
fn errors_name_what_is_wrong() {
    for (arguments, code, text) in [
        (&["latency", "--from", "sched:sched_switch"][..], 2, "--by"),
        (&["latency", "-e", "opnat", "--", "true"], 1, "no system call opnat"),
        (&["latency", "--from", "sched:*", "--to", "sched:sched_switch", "--by", "pid"], 1, "sched:* is not the name"),
    ] {
        let ran = run(perfweave().args(arguments), "");
        assert!(ran.code == Some(code) && ran.err.contains(text) && ran.out.is_empty(), "{ran:?}");
    }
    let wrong = ["latency", "--from", "sched:sched_waking", "--to", "sched:sched_switch", "--by", "pid", "--", "true"];
    let Some(ran) = traced(&wrong) else { return };
    assert!(ran.code == Some(1) && ran.err.contains("sched_switch has no field pid"), "{ran:?}");
}

#[test]
fn in_a_pid_namespace_numbers_are_those_that_ps_shows() {
    let script = "/bin/true; /bin/true; :";
    let command = ["latency", "--json", "--by-process", "-a", "-e", "execve,write", "--", "sh", "-c", script];
    let Some(ran) = program::in_a_container(&command) else { return };
    let rows: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, rows) = rows.split_last().unwrap();
    assert_eq!(summary["summary"]["late"], 0, "{ran:?}");
    let of = |name: &str| rows.iter().filter(|row| row["comm"] == name && row["what"] == "execve").collect::<Vec<_>>();
    for (name, count) in [("sh", 1), ("true", 2)] {
        let rows = of(name);
        assert!(rows.len() == count && rows.iter().all(|row| row["pid"].as_u64() < Some(100)), "{ran:?}");
        assert!(rows.iter().all(|row| row["times"]["count"] == 1), "{ran:?}");
    }
    // Threads from outside have one number for perf. None of their entries is known.
    assert!(rows.iter().all(|row| row["pid"] != 0), "{ran:?}");
}

#[test]
fn no_name_is_a_command_or_a_line() {
    program::names_are_printable(&["latency", "--by-process"]);
}

#[test]
fn others_are_told_what_they_lack() {
    program::as_nobody("latency -- true");
    program::in_namespaces("latency -- true");
}

/// Of several begins before an end the last counts. This program's last call comes after it has told the time; its
/// first long before.
#[test]
fn the_last_begin_counts() {
    let Some(python) = program::python() else { return };
    let script = "import time; time.sleep(1); print(time.clock_gettime_ns(time.CLOCK_MONOTONIC))";
    let pair = ["--from", "raw_syscalls:sys_enter", "--to", "sched:sched_process_exit", "--by", "common_pid"];
    let command = ["--", &python, "-c", script];
    let Some(ran) = traced(&[["latency", "--json"].as_slice(), &pair, &command].concat()) else { return };
    let now = perfweave::Clock::Monotonic.now().unwrap();
    let told: u64 = ran.out.lines().next().unwrap().parse().unwrap();
    let row: Value = serde_json::from_str(ran.out.lines().nth(1).unwrap()).unwrap();
    assert_eq!(row["times"]["count"], 1, "{ran:?}");
    assert!(row["times"]["max_ns"].as_u64().unwrap() <= now - told, "{ran:?}");
}
