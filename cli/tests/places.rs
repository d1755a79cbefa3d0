//! Every command in bad places: for a user without rights, in namespaces, and where nothing can be written. Tests of
//! one command have more.

mod program;

use perfweave_support::kernel;
use program::{perfweave, run, traced};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
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

/// The last line for users without rights names commands that work for them: they do.
#[test]
fn what_is_said_to_work_without_rights_works() {
    let file = std::env::temp_dir().join(format!("perfweave-for-nobody-{}", std::process::id()));
    let path = file.to_str().unwrap();
    if traced(&["record", "-o", path, "--", "true"]).is_none() {
        return;
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    for command in ["verify", "why", "report", "offcpu -i", "convert --text", "convert --json"] {
        let Some((ran, _)) = program::run_by_nobody(&format!("{command} {path}")) else { return };
        assert!(ran.code == Some(0) && ran.out.len() > 20, "{command}: {ran:?}");
    }
    std::fs::remove_file(file).unwrap();
}

/// Takes a name that is a command to a terminal, the end of a line, a command in one character, and letters from right
/// to left. Then it waits for a child, switches, and uses the CPU.
const HOSTILE: &str = "printf '\\033]0;\\007\\n\\302\\233F/1\\342\\200\\256' > /proc/$$/comm
    sleep 0.01; sleep 0.01; n=0; while [ $n -lt 100000 ]; do n=$((n+1)); done";

/// No name writes to the terminal, breaks a line, or ends a frame of a folded stack.
#[test]
fn no_name_is_a_command_or_a_line() {
    let Some(_) = traced(&["trace", "--", "true"]) else { return };
    let place = std::env::temp_dir().join(format!("perfweave-hostile-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let file = place.join("perf.data").to_str().unwrap().to_owned();
    let hostile = ["--", "sh", "-c", HOSTILE];
    let record = ["record", "-e", "sched:sched_switch,cpu-clock", "--call-graph", "-o", &file];
    assert_eq!(run(perfweave().args(record).args(hostile), "").code, Some(0));
    let flight =
        ["record", "--last", "1s", "--keep", "1", "-o", &file, "--on", "sched:sched_switch: prev_comm ~ \"*F/1*\""];
    for (args, has_child) in [
        (&["convert", "--text", &file][..], false),
        (&["convert", "--folded", &file], false),
        (&["convert", "--json", &file], false),
        (&["profile", "-F", "999"], true),
        (&["profile", "-F", "999", "--json"], true),
        (&["trace"], true),
        (&["trace", "--json"], true),
        (&["trace", "-e", "sched:sched_switch"], true),
        (&["trace", "-e", "sched:sched_switch", "--json"], true),
        (&["wakeups", "--each"], true),
        (&["wakeups", "--each", "--json"], true),
        (&["offcpu", "--each"], true),
        (&["offcpu", "--json"], true),
        (&["why"], true),
        (&["why", "--json"], true),
        (&["why", "--folded"], true),
        (&["latency", "--by-process"], true),
        (&["latency", "--by-process", "--json"], true),
        (&flight, true),
        (&[&flight[..], &["--json"]].concat(), true),
    ] {
        let ran = run(perfweave().args(args).args(hostile.iter().filter(|_| has_child)), "");
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
        let is_plain = |letter: char| letter == '\n' || !letter.is_control() && letter != '\u{202e}';
        for text in [&ran.out, &ran.err] {
            assert!(text.chars().all(is_plain), "{args:?}: {text:?}");
        }
        assert!(!ran.out.lines().any(|line| line.trim_start().starts_with("F/1")), "{args:?}: {}", ran.out);
        // A table has the beginning of a long name.
        let end = if args.contains(&"--by-process") { "" } else { r"\n\u009bF/1\u202e" };
        let shown = |text: &str| text.contains(r"\u001b]0") && (text.contains(end) || args.contains(&"--json"));
        assert!(shown(&ran.out), "{args:?}: {}", ran.out);
        let is_json = args.contains(&"--json");
        let objects = ran.out.lines().filter(|_| is_json).map(|line| serde_json::from_str::<Value>(line).unwrap());
        let said: Vec<_> = objects.map(|object| object.to_string()).collect();
        assert!(!is_json || said.iter().any(|object| object.contains("F/1")), "{args:?}: {said:?}");
        if args.contains(&"--folded") {
            // A process and its functions: the name has a semicolon.
            assert!(ran.out.lines().any(|line| line.starts_with(r"\u001b]0:\u0007\n\u009bF/1")), "{}", ran.out);
        }
    }
    std::fs::remove_dir_all(place).unwrap();
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
        "trace -c -- true",
        "trace --json -- true",
        "wakeups -d 0.2",
        "wakeups --each -d 0.2",
        "offcpu -d 0.2",
        "latency -- true",
        "why -- true",
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
