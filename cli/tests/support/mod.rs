//! What tests of commands share: the program, run for real, and a place for its files.
#![allow(dead_code, reason = "each test uses some of it")]

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is deleted at the end of a test.
#[derive(Debug)]
pub struct Place(pub PathBuf);

impl Place {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("perfweave-cli-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The program, with nothing on its standard input.
pub fn perfweave(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perfweave"));
    command.args(args).stdin(Stdio::null());
    command
}

/// What the program prints. It must succeed.
#[track_caller]
pub fn printed(args: &[&str]) -> String {
    let Output { status, stdout, stderr } = perfweave(args).output().unwrap();
    assert!(status.success(), "{args:?}: {status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// The objects that the program prints, one a line.
#[track_caller]
pub fn objects(args: &[&str]) -> Vec<Value> {
    printed(args).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A recording of the whole machine while a shell runs some programs; or `None` where this user may not trace.
#[track_caller]
pub fn recorded(file: &str, args: &[&str]) -> Option<()> {
    let ping = "for i in 1 2 3 4 5 6 7 8; do echo $i | cat >/dev/null; done";
    recorded_while(file, args, ping)
}

/// A recording while a shell runs a script, or `None` where this user may not trace.
#[track_caller]
pub fn recorded_while(file: &str, args: &[&str], script: &str) -> Option<()> {
    let all = [&["record", "-o", file][..], args, &["--", "sh", "-c", script]].concat();
    let Output { status, stderr, .. } = perfweave(&all).output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    let refused = if is_refused(&said) { Err(said.clone()) } else { Ok(()) };
    perfweave_support::kernel("record the whole machine", refused)?;
    assert!(status.success(), "{all:?}: {status}: {said}");
    Some(())
}

/// While the recorder, this shell's parent, stands still, more calls are made than a ring holds: records are lost for
/// sure. Then two pipes wake their readers, beside a thread that is always ready.
const LOSING: &str = "
    kill -STOP $PPID
    dd if=/dev/zero of=/dev/null bs=1 count=20000 2>/dev/null
    kill -CONT $PPID
    dd if=/dev/zero of=/dev/null bs=1 count=60000 2>/dev/null &
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo $i | cat | cat >/dev/null; done
    wait";

/// A recording of system calls and the scheduler that lacks records for sure, or `None` where this user may not trace.
#[track_caller]
pub fn recorded_with_losses(file: &str, args: &[&str]) -> Option<()> {
    let events = "raw_syscalls:sys_enter,sched:sched_switch,sched:sched_waking";
    recorded_while(file, &[&["--buffer", "512K", "-e", events], args].concat(), LOSING)
}

/// Whether the program says that this user may not trace.
pub fn is_refused(said: &str) -> bool {
    said.contains("CAP_PERFMON") || said.contains("only root can read tracefs")
}
