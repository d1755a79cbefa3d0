//! `perfweave offcpu` as a person runs it.

mod program;

use program::{perfweave, run, traced};
use serde_json::Value;

/// A thread that sleeps is off the CPU at least as long, for the reason that it is asleep.
#[test]
fn sleeps_are_counted_with_their_reason() {
    let script = "sleep 0.01; sleep 0.01; sleep 0.01; :";
    let Some(ran) = traced(&["offcpu", "--json", "--each", "--comm", "sleep", "--", "sh", "-c", script]) else {
        return;
    };
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let objects: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, objects) = objects.split_last().unwrap();
    assert_eq!(summary["summary"]["late"], 0, "{ran:?}");
    let (each, rows) = objects.split_at(objects.len() - 3);
    assert!(rows.iter().chain(each).all(|object| object["comm"] == "sleep"), "{ran:?}");
    assert!(rows.iter().any(|row| row["reasons"]["asleep"]["total_ns"].as_u64() > Some(0)), "{ran:?}");
    for row in rows {
        let own: Vec<_> = each.iter().filter(|one| one["pid"] == row["id"]).collect();
        let sum = |reason: &str| -> u64 {
            own.iter().filter(|one| one["reason"] == reason).map(|one| one["ns"].as_u64().unwrap()).sum()
        };
        // Asleep, or preempted right before it would have gone to sleep.
        assert!(sum("asleep") + sum("preempted") >= 10_000_000, "{ran:?}");
        // The table has what the lines have.
        assert_eq!(row["times"]["count"], own.len(), "{ran:?}");
        for reason in ["asleep", "disk", "preempted", "other"] {
            assert_eq!(row["reasons"][reason]["total_ns"], sum(reason), "{reason} {ran:?}");
        }
    }
}

#[test]
fn children_and_threads_have_rows() {
    let Some(ran) = traced(&["offcpu", "-H", "--by-thread", "--", "sh", "-c", "sleep 0.01; sleep 0.01; exit 2"]) else {
        return;
    };
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert_eq!(ran.out.lines().filter(|line| line.starts_with("sleep/")).count(), 2, "{ran:?}");
    assert!(ran.out.contains("distribution") && !ran.out.contains('\x1b'), "{ran:?}");
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
fn others_are_told_what_they_lack() {
    program::as_nobody("offcpu -d 1");
    program::in_namespaces("offcpu -d 1");
}
