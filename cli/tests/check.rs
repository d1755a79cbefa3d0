//! `perfweave check` and `perfweave selftest`.

mod common;

use common::{Run, number};
use perfweave_support::privilege;
use std::os::unix::process::CommandExt;
use std::process::Command;

#[test]
fn root_may_do_everything_and_the_order_is_proven() {
    if !nix::unistd::geteuid().is_root() {
        return perfweave_support::lacks("root");
    }
    let said = Run::new(&["check"]).succeeds();
    assert!(said.contains("The whole machine can be traced in proven order."), "{said}");
    assert!(said.lines().any(|line| line.starts_with("proven order") && line.contains(" yes ")), "{said}");
    let said = Run::new(&["check", "--json"]).succeeds();
    assert!(said.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{said}");

    let said = Run::new(&["selftest", "--seconds", "0.2", "--json"]).succeeds();
    let (mut rounds, mut floods) = (0, 0);
    for line in said.lines() {
        if line.contains("\"test\":\"order\"") {
            rounds += 1;
            assert_eq!((number(line, "out_of_turn"), number(line, "late")), (0, 0), "{line}");
            assert!(
                number(line, "yielded") > 0 && number(line, "yielded") + number(line, "lost") == number(line, "calls"),
                "{line}"
            );
        } else if line.contains("\"test\":\"loss\"") {
            floods += 1;
            assert_eq!(number(line, "yielded") + number(line, "lost"), number(line, "calls"), "{line}");
        }
    }
    assert_eq!((rounds, floods), (3, 3));
}

/// A kernel that says its version is never called older than it is.
#[test]
fn no_kernel_is_called_older_than_it_is() {
    let output = Run::new(&["check"]).output();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("kernel "), "{said}");
    // perfweave takes 5.8, and all that need less are there.
    assert!(!said.contains("older than 4."), "{said}");
}

/// Every refusal comes with what would help, and the exit status says that something is missing.
#[test]
fn nobody_is_told_what_would_help() {
    let path = std::env::temp_dir().join(format!("perfweave-{}", std::process::id()));
    if !nix::unistd::geteuid().is_root() {
        return perfweave_support::lacks("root");
    }
    // Nobody may not look into the folder of the build.
    std::fs::copy(env!("CARGO_BIN_EXE_perfweave"), &path).unwrap();
    let mut command = Command::new(&path);
    // SAFETY: between fork and exec it makes system calls only.
    unsafe { command.pre_exec(privilege::become_nobody) };
    let output = command.arg("check").output().unwrap();
    std::fs::remove_file(path).unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let is_refused = |line: &str| line.get(23..25) == Some("NO");
    assert!(lines.iter().any(|line| is_refused(line)), "{said}");
    for pair in lines.windows(2).filter(|pair| is_refused(pair[0])) {
        assert!(pair[1].trim_start().starts_with("help: "), "{}", pair[0]);
    }
}
