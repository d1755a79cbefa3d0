//! docs/FROM.md: each command of its right column works here.

mod program;

use program::{run, traced};
use std::process::{Command, Stdio};

/// The commands of the right column, without the program's name.
fn commands() -> Vec<String> {
    let rows = include_str!("../../docs/FROM.md").lines().filter(|line| line.starts_with("| `"));
    let right = rows.map(|row| row.trim_end_matches(" |").rsplit_once(" | ").expect("two columns").1);
    right.map(|cell| cell.trim_matches('`').strip_prefix("perfweave ").expect("our own").to_owned()).collect()
}

/// A process that opens files, starts others and sleeps, until it is dropped.
struct Busy(std::process::Child);

impl Busy {
    fn begin() -> Self {
        let script = "while :; do cat /etc/passwd; sleep 0.01; done";
        Self(Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().expect("it starts"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As root, in half a second each, with output, beside a process that gives each of them something to say.
#[test]
fn each_command_of_the_page_works() {
    let commands = commands();
    assert_eq!(commands.len(), 20, "{commands:?}");
    if traced(&["trace", "true"]).is_none() {
        return;
    }
    let file = std::env::temp_dir().join(format!("perfweave-from-{}", std::process::id()));
    let busy = Busy::begin();
    let process = busy.0.id().to_string();
    for command in commands {
        let words = [
            (" -d 5", " -d 0.5"),
            ("COMMAND", "cat /etc/passwd /nonexistent"),
            ("PID", &process),
            ("FILE", file.to_str().unwrap()),
        ];
        // The status of the command is that of the program: this one fails.
        let is_ok = |code: Option<i32>| code == Some(i32::from(command.contains("COMMAND")));
        let script = words.iter().fold(command.clone(), |script, (from, to)| script.replace(from, to));
        // All calls of the machine, beside other tests.
        let room = if script.contains("-a -e") { " --buffer 16M" } else { "" };
        let script = format!("{} {script}", env!("CARGO_BIN_EXE_perfweave"));
        let script = script.replace(" -a -e", &format!("{room} -a -e"));
        let ran = run(Command::new("sh").args(["-c", &script]), "");
        assert!(is_ok(ran.code), "{script}: {ran:?}");
        let says = if command.starts_with("record") { &ran.err } else { &ran.out };
        assert!(says.lines().count() > 1, "{script}: {ran:?}");
    }
    std::fs::remove_file(file).unwrap();
}
