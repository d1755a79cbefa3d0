//! What `record` writes of this machine is what `query` reads.

use std::process::{Command, Output, Stdio};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_perfweave-archive")).args(args).output().unwrap()
}

/// The rows of an answer, without its head.
fn answer(sql: &str, archive: &str) -> Vec<String> {
    let output = run(&["query", "--format", "csv", sql, archive]);
    assert!(output.status.success() && output.stderr.is_empty(), "{sql}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().skip(1).map(ToOwned::to_owned).collect()
}

#[test]
fn a_recording_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().to_str().unwrap();
    // A shell leaves its CPU when it waits for a program.
    let command = ["--", "sh", "-c", "/bin/true; /bin/true"];
    let events =
        ["sched:sched_switch", "sched:sched_waking", "sched:sched_process_exec"].map(|name| ["-e", name]).concat();
    let events = [&["record", "--to", archive], &events[..]].concat();
    let recorded = run(&[&events[..], &command].concat());
    let said = String::from_utf8_lossy(&recorded.stderr);
    if said.contains("CAP_PERFMON") && std::env::var_os("PERFWEAVE_REQUIRE_KERNEL").is_none() {
        eprintln!("SKIPPED: this user may not trace");
        return;
    }
    assert!(recorded.status.success(), "{said}");
    let files = answer("SELECT filename FROM sched.sched_process_exec", archive);
    assert!(files.iter().any(|file| file.ends_with("/true")), "{files:?}");
    assert_eq!(answer("SELECT what FROM traces ORDER BY mono", archive), ["begin", "end"]);
    let [events, yielded] = ["SELECT sum(n) FROM (SELECT count(*) n FROM sched.sched_switch UNION ALL SELECT count(*) FROM sched.sched_waking UNION ALL SELECT count(*) FROM sched.sched_process_exec)",
        "SELECT yielded FROM traces WHERE what = 'end'"].map(|sql| answer(sql, archive));
    assert_eq!(events, yielded);
    // In the order of rows no event is before an earlier one.
    let turned = "SELECT count(*) FROM sched.sched_switch a JOIN sched.sched_switch b ON b.row > a.row WHERE happened_before(b.stamp, a.stamp)";
    assert_eq!(answer(turned, archive), ["0"]);
    assert_ne!(answer("SELECT count(*) FROM clocks WHERE tai_error > 0", archive), ["0"]);
    assert!(run(&["query", "--named", "off-cpu", archive]).status.success());
}

/// The reader of an answer may stop, as `head` does.
#[test]
fn an_answer_that_nobody_reads_on_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().to_str().unwrap();
    assert!(run(&["generate", "--rows", "30000", "--machines", "1", "--to", archive]).status.success());
    for how in [&["--format", "csv"][..], &["--format", "json"], &["--format", "table"], &["--arrow-stream"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_perfweave-archive"));
        command.arg("query").args(how).args(["SELECT * FROM sched.sched_switch", archive]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{how:?}: {output:?}");
    }
}
