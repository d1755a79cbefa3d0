//! Runs the program as a user does.
#![allow(dead_code, reason = "each test uses some of it")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

/// A run of `perfweave`.
#[derive(Debug)]
pub struct Run(Command);

impl Run {
    pub fn new(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_perfweave"));
        command.args(args).stdin(Stdio::null());
        Self(command)
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.0.args(args);
        self
    }

    pub fn output(mut self) -> Output {
        self.0.output().expect("the program starts")
    }

    /// What it prints, if all goes well.
    pub fn succeeds(self) -> String {
        let output = self.output();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{:?}: {said}", output.status);
        String::from_utf8(output.stdout).expect("text")
    }

    /// What it prints on standard error, with this exit status.
    pub fn fails(self, status: i32) -> String {
        let output = self.output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        said
    }

    /// Its first lines. Then the pipe is closed, which ends it well.
    pub fn first_lines(self, lines: usize) -> Vec<String> {
        let mut left = lines;
        self.lines_until(|_| {
            left -= 1;
            left == 0
        })
    }

    /// Its lines up to the last one that is wanted. Then the pipe is closed, which ends it well.
    pub fn lines_until(mut self, mut is_last: impl FnMut(&str) -> bool) -> Vec<String> {
        let mut child = self.0.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let out = child.stdout.take().expect("a pipe");
        let mut first = Vec::new();
        for line in BufReader::new(out).lines() {
            first.push(line.expect("text"));
            if first.last().is_some_and(|line| is_last(line)) {
                break;
            }
        }
        let mut said = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        let status = child.wait().expect("a status");
        assert!(status.success() && !said.contains("panicked") && !said.contains("os error"), "{status:?}: {said}");
        first
    }
}

/// The number of a key in a line of JSON.
pub fn number(line: &str, key: &str) -> u64 {
    let after = line.split_once(&format!("\"{key}\":")).unwrap_or_else(|| panic!("no {key} in {line}")).1;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{key} is no number in {line}"))
}
