//! The profiler compared with `perf record -g`: the same process, and the same innermost function.
//! Each has its own timer, so their samples and counts differ. The workload only calls one function, so both must find it in most samples.
//! The caller of the function can be found only by frame pointers, which Rust leaves out by default, so neither finds it.

mod common;

use common::Run;
use std::hint::black_box;
use std::io::Read;
use std::process::{Child, Command, Stdio};

#[inline(never)]
fn the_hot_function(mut sum: u64) -> u64 {
    // No calls, even without optimisation.
    let mut left = 1_000_000;
    while left > 0 {
        sum ^= left << 7;
        sum = black_box(sum);
        left -= 1;
    }
    sum
}

/// The workload, in a separate process: this test with a variable set.
#[test]
fn spin() {
    if std::env::var_os("PERFWEAVE_SPIN").is_some() {
        println!("spinning");
        let mut sum = 1;
        loop {
            sum = the_hot_function(black_box(sum));
        }
    }
}

struct Spinning(Child);

impl Drop for Spinning {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn perf_finds_the_same_function() {
    let Some(()) = perfweave_support::perf() else { return };
    let mut spin = Command::new(std::env::current_exe().unwrap());
    spin.args(["--exact", "spin", "--nocapture"]).env("PERFWEAVE_SPIN", "1").stdout(Stdio::piped());
    let mut spinning = Spinning(spin.spawn().unwrap());
    let mut said = Vec::new();
    let mut stdout = spinning.0.stdout.take().unwrap();
    while !String::from_utf8_lossy(&said).contains("spinning") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        said.extend(byte);
    }
    let pid = spinning.0.id().to_string();
    let data = std::env::temp_dir().join(format!("perfweave-profile-{pid}"));
    let data = data.to_str().unwrap();

    // Again if it got too little CPU time for samples.
    let (mut ours, mut theirs) = (String::new(), String::new());
    for _ in 0..10 {
        if !ours.is_empty() && theirs.lines().count() > 10 {
            break;
        }
        let mut perf = Command::new("perf");
        perf.args(["record", "-N", "-g", "-e", "cpu-clock", "-F", "99", "-p", &pid, "-o", data, "--", "sleep", "2"]);
        let perf = perf.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let output =
            Command::new(env!("CARGO_BIN_EXE_perfweave")).args(["profile", "--pid", &pid, "--seconds", "2"]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let perf = perf.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&perf.stderr);
        let complaints = perfweave_support::perf::complaints(&said);
        assert!(perf.status.success() && complaints.is_empty(), "{said}");
        ours = String::from_utf8(output.stdout).unwrap();
        let script = ["script", "--no-inline", "-F", "pid,ip,sym", "-i", data];
        theirs = perfweave_support::perf::printed(Command::new("perf").args(script)).unwrap();
        std::fs::remove_file(data).unwrap();
    }

    // The profiler's line: the program and its number, functions, a count.
    let times = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    let all: u64 = ours.lines().map(times).sum();
    let top: u64 = ours.lines().filter(|line| hot(line)).map(times).sum();
    assert!(ours.lines().all(|line| line.split(';').next().unwrap().ends_with(&format!(":{pid}"))), "{ours}");
    // perf's: a paragraph for each sample. Its number is padded with spaces; frames follow a tab, innermost first.
    let stacks: Vec<Vec<&str>> =
        theirs.split("\n\n").map(|sample| sample.lines().filter(|line| line.starts_with('\t')).collect()).collect();
    let stacks: Vec<_> = stacks.into_iter().filter(|stack| !stack.is_empty()).collect();
    let on_top = |stack: &&Vec<&str>| stack[0].contains("the_hot_function");
    let their_top = stacks.iter().filter(on_top).count();
    println!("profile: {top} of {all} samples; perf: {their_top} of {} samples", stacks.len());
    assert!(top * 2 > all, "{ours}");
    assert!(their_top * 2 > stacks.len(), "{theirs}");
}

/// A command is sampled from its beginning to its end, and its exit status is the program's.
#[test]
fn a_command_is_sampled_and_drawn() {
    let path = std::env::temp_dir().join(format!("perfweave-profile-{}.svg", std::process::id()));
    let file = path.to_str().unwrap();
    let script = "n=0; while [ $n -lt 300000 ]; do n=$((n+1)); done; exit 3";
    let output = Run::new(&["profile", "-F", "999", "--svg", file, "--", "sh", "-c", script]).output();
    let said = String::from_utf8_lossy(&output.stderr);
    if perfweave_support::kernel("sample", if said.contains("Permission denied") { Err(&said) } else { Ok(()) })
        .is_none()
    {
        return;
    }
    assert_eq!(output.status.code(), Some(3), "{said}");
    let svg = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(svg.starts_with("<?xml") && svg.contains("sh:") && svg.trim_end().ends_with("</svg>"), "{said}");
    let said = Run::new(&["profile", "--svg", "/nowhere/x.svg", "--seconds", "0.3"]).fails(1);
    assert!(said.contains("/nowhere/x.svg"), "{said}");
    for unknown in [&["profile", "--nosuch"] as &[_], &["profile", "nosuch"], &["profile", "-F", "x"]] {
        Run::new(unknown).fails(2);
    }
}

/// Whether that function is innermost in a folded stack.
fn hot(line: &str) -> bool {
    line.rsplit(';').next().is_some_and(|frame| frame.contains("the_hot_function"))
}
