//! perf(1), run so that its complaints are seen: of a file that it understands in part it complains on stderr, and
//! exits with 0.

use std::io;
use std::process::{Command, Output, Stdio};

/// What perf says on stderr when nothing is wrong: how a line begins, how it ends, and why it is there.
const USUAL: [(&str, &str, &str); 10] = [
    ("[ perf record: Woken up ", " times to write data ]", "`perf record` has ended"),
    ("[ perf record: Captured and wrote ", " ]", "`perf record` has ended"),
    ("Events disabled", "", "perf was started with `-D -1`"),
    ("Events enabled", "", "it was told to begin by `--control`"),
    ("'trace' not valid for ", " events. Ignoring.", "`-F trace` asks for it of all events, and tracepoints have it"),
    ("Samples do not have callchains.", "", "`perf sched timehist` shows them where there are some"),
    // `perf_session__warn_about_errors`, tools/perf/util/session.c. A busy machine loses records in any recording; what
    // a test expects of losses it counts itself.
    ("Warning:", "", "in front of each of the next three"),
    ("Processed ", " chunks!", "LOST records"),
    ("Check IO/CPU overload!", "", "LOST records"),
    ("Processed ", "%!", "LOST_SAMPLES records, or records that no sample is counted for"),
];

/// Lines that perf does not say when all is well.
pub fn complaints(stderr: &str) -> Vec<&str> {
    let is_usual = |line: &str| {
        USUAL.iter().any(|(begin, end, _)| match line.strip_prefix(begin) {
            Some(rest) if end.is_empty() => rest.is_empty(),
            Some(rest) => rest.ends_with(end),
            None => false,
        })
    };
    stderr.lines().filter(|line| !line.trim().is_empty() && !is_usual(line)).collect()
}

/// What perf prints, or a shell that runs it.
///
/// # Errors
/// It cannot be run or it fails: the error has what it said.
///
/// # Panics
/// If it succeeds and complains.
#[track_caller]
pub fn printed(command: &mut Command) -> io::Result<String> {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output()?;
    let stderr = String::from_utf8_lossy(&stderr);
    if !status.success() {
        return Err(io::Error::other(format!("{command:?}: {status}: {stderr}")));
    }
    let complaints = complaints(&stderr);
    assert!(complaints.is_empty(), "{command:?} complains: {complaints:#?}");
    String::from_utf8(stdout).map_err(io::Error::other)
}
