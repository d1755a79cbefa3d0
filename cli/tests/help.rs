//! What the program says of itself.

mod common;

use common::Run;
use perfweave_support::kernel;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};

const COMMANDS: [&str; 14] = [
    "trace", "wakeups", "offcpu", "latency", "why", "profile", "record", "report", "convert", "verify", "read",
    "order", "check", "selftest",
];

#[test]
fn every_command_has_help_and_refuses_what_it_does_not_know() {
    let said = Run::new(&["--help"]).succeeds();
    for command in COMMANDS {
        assert!(said.contains(&format!("  {command} ")), "{command}: {said}");
        let help = Run::new(&[command, "--help"]).succeeds();
        assert!(help.contains("Usage: perfweave ") && help.contains("--help"), "{help}");
        Run::new(&[command, "--nosuch"]).fails(2);
    }
    Run::new(&[]).fails(2);
    Run::new(&["nosuch"]).fails(2);
}

#[test]
fn completions_and_man_pages_are_made_from_the_arguments() {
    for shell in ["bash", "zsh", "fish"] {
        let said = Run::new(&["completions", shell]).succeeds();
        assert!(COMMANDS.iter().all(|command| said.contains(command)), "{shell}");
    }
    let folder = std::env::temp_dir().join(format!("perfweave-man-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    Run::new(&["man", folder.to_str().unwrap()]).succeeds();
    for command in COMMANDS {
        let page = std::fs::read_to_string(folder.join(format!("perfweave-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}");
    }
    // A page that is there is written again, and all may read it. A link of another user is not followed.
    let [page, precious] = ["perfweave-trace.1", "precious"].map(|name| folder.join(name));
    Run::new(&["man", folder.to_str().unwrap()]).succeeds();
    assert_eq!(std::fs::metadata(&page).unwrap().permissions().mode() & 0o777, 0o644);
    std::fs::write(&precious, "precious").unwrap();
    std::fs::remove_file(&page).unwrap();
    symlink(&precious, &page).unwrap();
    if kernel("give a link away", lchown(&page, Some(65534), None)).is_some() {
        let said = Run::new(&["man", folder.to_str().unwrap()]).fails(1);
        assert!(said.contains("perfweave-trace.1: it is a link of user 65534"), "{said}");
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
