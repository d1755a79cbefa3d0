//! Running the program.

#![allow(dead_code, reason = "each test binary uses some of it")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use perfweave_events::EventOptions;
use serde_json::Value;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// What a run of the program gave.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

pub fn perfweave() -> Command {
    Command::new(env!("CARGO_BIN_EXE_perfweave"))
}

/// How long a command may take. What it waits for then does not come.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs a command with an input to its end.
///
/// # Panics
/// If it does not end.
#[track_caller]
pub fn run(command: &mut Command, input: &str) -> Ran {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let pid = Pid::from_raw(child.id() as i32);
    let (ended, end) = mpsc::channel();
    let input = input.to_owned();
    std::thread::spawn(move || {
        // A command that does not read its input closes it.
        let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
        ended.send(child.wait_with_output())
    });
    let output = end.recv_timeout(LIMIT).unwrap_or_else(|_| {
        let _ = kill(pid, Signal::SIGKILL);
        panic!("it runs on: {command:?}")
    });
    let output = output.expect("a status");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// A run that traces. Skips the test if this kernel or user cannot.
#[track_caller]
pub fn traced(arguments: &[&str]) -> Option<Ran> {
    let rings = perfweave::Rings::options().tracepoint("raw_syscalls:sys_enter").open();
    perfweave_support::kernel("a tracepoint", rings)?;
    Some(run(perfweave().args(arguments), ""))
}

/// The Python that `python3` stands for, perhaps by a script. Skips the test where there is none.
#[track_caller]
pub fn python() -> Option<String> {
    let words = ["python3", "-c", "import sys; print(sys.executable)"];
    perfweave_support::runs(&words, "Debian's package python3")?;
    let path = Command::new(words[0]).args(&words[1..]).output().expect("it ran before");
    Some(String::from_utf8(path.stdout).expect("a path").trim_end().to_owned())
}

/// A run in a PID namespace of its own with its own /proc, as in a container. This program is process 1 there.
#[track_caller]
pub fn in_a_container(arguments: &[&str]) -> Option<Ran> {
    traced(&["trace", "--", "true"])?;
    let words = ["-pfm", "--mount-proc", env!("CARGO_BIN_EXE_perfweave")];
    let ran = run(Command::new("unshare").args(words).args(arguments), "");
    perfweave_support::needs("PID namespaces for this user", !ran.err.starts_with("unshare:"))?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    Some(ran)
}

/// While this program, the shell's parent, stands still, more threads are switched than a ring holds. Records that come
/// after a loss tell it.
const LOSING: &str = "many() { i=0; while [ $i -lt 400 ]; do /bin/true; i=$((i+1)); done; }
    kill -STOP $PPID; many; kill -CONT $PPID; many";

/// `--each` tells losses at their place, in text and in JSON.
#[track_caller]
pub fn tells_losses(command: &str) {
    let run = |json: &[&str]| {
        traced(&[&[command, "--buffer", "16K", "--each"][..], json, &["--", "sh", "-c", LOSING]].concat())
    };
    let Some(text) = run(&[]) else { return };
    assert!(text.out.lines().any(|line| line.contains(" --- CPU ") && line.contains(" lost ")), "{text:?}");
    let ran = run(&["--json"]).expect("it traced before");
    let objects = ran.out.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
    let losses: u64 =
        objects.filter(|object| object["notice"] == "lost").filter_map(|loss| loss["count"].as_u64()).sum();
    assert!(losses > 0, "{ran:?}");
}

/// No thread commands a terminal by its name, or makes a line of it.
#[track_caller]
pub fn names_are_printable(command: &[&str]) {
    let script = r#"printf '\033[2J\nF/1 x' > /proc/$$/comm; sleep 0.01; /bin/true; :"#;
    for more in [&[][..], &["--json"]] {
        let Some(ran) = traced(&[command, more, &["--", "sh", "-c", script]].concat()) else { return };
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.out.contains(r"\u001b[2J\nF/1"), "{ran:?}");
        assert!(!ran.out.contains('\x1b') && !ran.out.lines().any(|line| line.starts_with("F/1")), "{ran:?}");
    }
}

/// The name of an object's thread.
pub fn comm(object: &Value) -> String {
    object["comm"].as_str().expect("a name").to_owned()
}

/// A reader that closes the pipe after a line ends the program, without an error.
#[track_caller]
pub fn closed_pipe(arguments: &str) {
    if traced(&["trace", "--", "true"]).is_none() {
        return;
    }
    let program = env!("CARGO_BIN_EXE_perfweave");
    // The shell's own status is the program's, behind the pipe on descriptor 3.
    let script = format!("{{ {{ {program} {arguments}; echo $? >&3; }} | head -n 1 > /dev/null; }} 3>&1");
    let ran = run(Command::new("sh").args(["-c", &script]), "");
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("0\n", ""), "{ran:?}");
}

/// Runs the program as nobody, and gives it with the place of its copy.
pub fn run_by_nobody(arguments: &str) -> Option<(Ran, String)> {
    run_by_nobody_in("", arguments)
}

/// The same behind other words for the shell.
pub fn run_by_nobody_in(before: &str, arguments: &str) -> Option<(Ran, String)> {
    if !nix::unistd::geteuid().is_root() {
        perfweave_support::needs("root", false);
        return None;
    }
    // A copy: nobody may not be able to enter the folder.
    let program =
        std::env::temp_dir().join(format!("perfweave-nobody-{}-{:?}", std::process::id(), std::thread::current().id()));
    std::fs::copy(env!("CARGO_BIN_EXE_perfweave"), &program).expect("a copy");
    let line = format!("{before} '{}' {arguments}", program.display());
    let ran = run(Command::new("su").args(["nobody", "-s", "/bin/sh", "-c", &line]), "");
    std::fs::remove_file(&program).expect("the copy");
    Some((ran, program.display().to_string()))
}

/// Users who may not trace learn what they lack.
#[track_caller]
pub fn as_nobody(arguments: &str) {
    let Some((ran, program)) = run_by_nobody(arguments) else { return };
    refused(&ran);
    let last = ran.err.lines().last().unwrap_or_default();
    let words = [format!("sudo {program}`"), format!("sudo setcap cap_perfmon+ep {program}`")];
    assert!(
        last.starts_with("as this user, ")
            && last.contains("report, convert, verify, why FILE, and analyses with -i FILE work"),
        "{ran:?}"
    );
    assert!(words.iter().all(|word| last.contains(word)), "{ran:?}");
}

/// The same for root of a user and PID namespace, who is nobody outside.
#[track_caller]
pub fn in_namespaces(arguments: &str) {
    let words = ["-Urpf", "--mount-proc", env!("CARGO_BIN_EXE_perfweave")];
    let ran = run(Command::new("unshare").args(words).args(arguments.split(' ')), "");
    if ran.err.starts_with("unshare:") {
        perfweave_support::lacks("user namespaces for this user");
        return;
    }
    refused(&ran);
}

#[track_caller]
fn refused(ran: &Ran) {
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.starts_with("perfweave: ") && ran.out.is_empty(), "{ran:?}");
    assert!(["root", "CAP_PERFMON", "paranoid", "tracefs"].iter().any(|word| ran.err.contains(word)), "{ran:?}");
}
