//! Every command in bad places: for a user without rights, in namespaces, and where nothing can be written. Tests of one command have more.

mod program;

use perfweave_support::kernel;
use program::{perfweave, run, traced};
use std::fs::File;
use std::process::Stdio;

/// Those that trace, and that no test of their own runs in both.
const TRACING: [&str; 2] = ["profile -d 1", "record -o /nowhere/perf.data -d 1"];

#[test]
fn users_without_rights_are_told_what_they_lack() {
    for command in TRACING {
        program::as_nobody(command);
        program::in_namespaces(command);
    }
}

/// An output that is full ends a command with an error that says so, not with a panic and not with success.
#[test]
fn a_full_output_is_an_error() {
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    let place = std::env::temp_dir().join(format!("perfweave-places-{}", std::process::id()));
    let file = place.to_str().unwrap();
    assert_eq!(run(perfweave().args(["record", "-a", "-o", file, "--", "true"]), "").code, Some(0));
    let convert = ["--text", "--json", "--html", "--folded"].map(|format| format!("convert {format} {file}"));
    let commands = [
        "trace -- true",
        "trace -s -- true",
        "trace --json -- true",
        "wakeups -d 0.2",
        "wakeups --each -d 0.2",
        "offcpu -d 0.2",
        "latency -- true",
        "profile -- dd if=/dev/zero of=/dev/null bs=1 count=300000 status=none",
        "check",
        "completions bash",
    ];
    for command in commands.into_iter().chain(convert.iter().map(String::as_str)) {
        let Some(full) = kernel("open /dev/full", File::options().write(true).open("/dev/full")) else { return };
        let output = perfweave().args(command.split(' ')).stdin(Stdio::null()).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains("No space left") && !said.contains("panicked"), "{command}: {said}");
    }
    std::fs::remove_file(place).unwrap();
}
