//! The examples as programs: their command lines, and their behaviour without privileges.

use perfweave::Rings;
use perfweave_events::EventOptions;
use perfweave_support::{kernel, needs, privilege};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const ALL: &[&str] = &[
    "wakeups",
    "offcpu",
    "latency",
    "flight_recorder",
    "causality",
    "gaps",
    "pingpong",
    #[cfg(feature = "tokio")]
    "async_tail",
];

/// Those that also run on simulated rings.
const SIMULATES: [&str; 2] = ["wakeups", "flight_recorder"];

/// An example as `cargo test` has built it.
fn example(name: &str) -> Option<PathBuf> {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    needs(&format!("{}: cargo build --examples --all-features", path.display()), path.exists())?;
    Some(path)
}

/// How an example ended, its output and its errors. Its input is empty.
fn run(path: &Path, arguments: &[&str]) -> (Output, String, String) {
    ran(Command::new(path).args(arguments))
}

fn ran(command: &mut Command) -> (Output, String, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    (output, said, complained)
}

#[test]
fn each_says_how_it_is_used() {
    for &name in ALL {
        let Some(path) = example(name) else { return };
        for asked in [&["--help"] as &[_], &["-h"], &["--seconds", "1", "--help"]] {
            let (output, said, complained) = run(&path, asked);
            assert!(output.status.success(), "{name} {asked:?}: {complained}");
            assert!(
                said.starts_with(&format!("{name} [")) && said.contains("\n  --seconds "),
                "{name} {asked:?}: {said}"
            );
            assert_eq!(complained, "", "{name} {asked:?}");
        }
    }
}

#[test]
fn each_refuses_what_it_does_not_know() {
    for &name in ALL {
        let Some(path) = example(name) else { return };
        let mut unknown = vec![vec!["--nosuch"], vec!["--seconds", "1", "--nosuch"], vec!["--seconds", "soon"]];
        // All arguments after the command belong to it, and none before it.
        unknown.push(if name == "latency" { vec!["--nosuch", "true"] } else { vec!["nosuch"] });
        for asked in unknown {
            let (output, said, complained) = run(&path, &asked);
            assert!(!output.status.success(), "{name} {asked:?}: {said}");
            assert_eq!(said, "", "{name} {asked:?}");
            assert!(complained.starts_with(&format!("{name}: ")), "{name} {asked:?}: {complained}");
            let is_known = asked.last() == Some(&"soon");
            assert_eq!(complained.contains(&format!("\n{name} [")), !is_known, "{name} {asked:?}: {complained}");
        }
    }
}

#[test]
fn latency_takes_a_process_or_a_command() {
    let Some(path) = example("latency") else { return };
    for asked in [&[] as &[_], &["--"], &["--seconds", "1"], &["--pid", "1", "true"], &["--pid"]] {
        let (output, said, complained) = run(&path, asked);
        assert!(!output.status.success() && said.is_empty(), "{asked:?}: {said}");
        assert!(complained.contains("\nlatency ["), "{asked:?}: {complained}");
    }
}

/// `offcpu --pid` would wait for ever for the end of a process that does not exist.
#[test]
fn offcpu_waits_for_no_process_that_is_not_there() {
    let Some(path) = example("offcpu") else { return };
    // Linux has no larger number (PID_MAX_LIMIT).
    let (output, said, complained) = run(&path, &["--pid", "4194304", "--seconds", "1"]);
    assert!(!output.status.success() && said.is_empty(), "{said}");
    assert_eq!(complained, "offcpu: there is no process 4194304\n");
}

/// Whether this process may trace.
fn may_trace() -> Option<()> {
    kernel("find tracefs", perfweave_events::tracefs())?;
    kernel("open rings", Rings::options().tracepoint("sched:sched_switch").open()).map(drop)
}

#[test]
fn a_command_has_its_own_options_and_its_own_end() {
    let (Some(()), Some(path)) = (may_trace(), example("latency")) else { return };
    for separator in [&[] as &[_], &["--"]] {
        let asked = [separator, &["sh", "-c", "echo it says \"$1\"; exit 3", "sh", "--help"]].concat();
        let (output, said, complained) = run(&path, &asked);
        assert_eq!(output.status.code(), Some(3), "{complained}");
        assert!(said.contains("it says --help\n") && said.lines().count() > 3, "{said}");
    }
    let (output, _, complained) = run(&path, &["perfweave-has-no-such-command"]);
    assert_eq!(output.status.code(), Some(127), "{complained}");
}

/// An example run by a user without the privilege to trace.
fn run_unprivileged(name: &str, arguments: &[&str]) -> Option<(Output, String, String)> {
    needs("a kernel.perf_event_paranoid that does not let every user trace", privilege::perf_event_paranoid() > -1)?;
    let example = example(name)?;
    let folder = std::env::temp_dir().join(format!("perfweave-examples-{name}-{}", std::process::id()));
    let path = folder.join(name);
    // A copy that every user may read. Another process makes it: otherwise a child of another test could have it open
    // for writing.
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new("cp").args([&example, &path]).status().unwrap().success());
    let mut command = Command::new(&path);
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(65534).gid(65534);
    }
    let ran = ran(command.args(arguments));
    fs::remove_dir_all(&folder).unwrap();
    Some(ran)
}

/// Simulated tables and JSON objects say that they are simulated.
#[test]
fn what_is_simulated_was_asked_for_and_says_so() {
    for name in SIMULATES {
        for asked in [&["--seconds", "0.1"] as &[_], &["--seconds", "0.1", "--json"]] {
            let Some((output, said, complained)) = run_unprivileged(name, asked) else { return };
            assert!(!output.status.success() && said.is_empty(), "{name} {asked:?}: {said}");
            assert!(complained.starts_with(&format!("{name}: ")) && complained.contains("--simulate"), "{complained}");
        }
        let Some((output, said, _)) = run_unprivileged(name, &["--seconds", "0.1", "--simulate"]) else { return };
        assert!(output.status.success() && said.starts_with("SIMULATED"), "{name}: {said}");
        let asked = ["--seconds", "0.1", "--simulate", "--json"];
        let Some((output, said, _)) = run_unprivileged(name, &asked) else { return };
        assert!(output.status.success() && said.contains(r#""simulated":true"#), "{name}: {said}");
    }
}

/// The other examples do not simulate. Without privileges they give the reason, and print nothing that looks like a
/// result.
#[test]
fn without_privileges_nothing_is_printed() {
    for &name in ALL.iter().filter(|name| !SIMULATES.contains(name)) {
        let asked = if name == "latency" { &["true"] as &[_] } else { &["--seconds", "1"] };
        let Some((output, said, complained)) = run_unprivileged(name, asked) else { return };
        assert!(!output.status.success() && said.is_empty(), "{name}: {said}");
        assert!(complained.starts_with(&format!("{name}: ")), "{name}: {complained}");
    }
}
