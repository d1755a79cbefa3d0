//! Stacks of a program without frame pointers, which is this one: Rust leaves them out. A thread of it calls functions
//! whose order is known, live and recorded, and as perf sees them.
#![cfg(all(feature = "dwarf", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod common;
mod support;

use common::Run;
use perfweave_support::{kernel, perf, runs};
use std::hint::black_box;
use std::process::{Command, Output};
use support::{Place, is_refused};

/// Some tenths of a second of a CPU, all in here.
#[inline(never)]
fn the_innermost(mut sum: u64) -> u64 {
    for round in 0..100_000_000u64 {
        sum = the_inlined(sum, round);
    }
    sum
}

#[inline(always)]
fn the_inlined(sum: u64, round: u64) -> u64 {
    black_box(sum ^ round << 7)
}

#[inline(never)]
fn the_middle(sum: u64) -> u64 {
    // What comes after a call keeps it from being a jump.
    black_box(the_innermost(black_box(sum)) + 1)
}

#[inline(never)]
fn the_outermost(sum: u64) -> u64 {
    black_box(the_middle(black_box(sum)) + 1)
}

/// The workload, in a process of its own: this test with a variable set.
#[test]
fn calls() {
    if std::env::var_os("PERFWEAVE_CALLS").is_some() {
        black_box(the_outermost(black_box(1)));
    }
}

const CHAIN: [&str; 3] = ["the_outermost", "the_middle", "the_innermost"];

/// A command on that process.
fn on_calls(args: &[&str]) -> Output {
    let calls = std::env::current_exe().unwrap();
    let words = ["env", "PERFWEAVE_CALLS=1", calls.to_str().unwrap(), "--exact", "calls", "--test-threads=1"];
    Run::new(args).args(words).output()
}

/// Standard output and standard error. `None` where this user may not sample.
#[track_caller]
fn sampled(output: Output) -> Option<[String; 2]> {
    let [out, said] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    kernel("sample", if is_refused(&said) { Err(&said) } else { Ok(()) })?;
    assert!(output.status.success(), "{said}");
    Some([out, said])
}

/// How many samples are in the innermost function, and how many of them have all three in a row.
fn counted(folded: &str) -> [u64; 2] {
    let samples = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    let count = |is_meant: &dyn Fn(&str) -> bool| folded.lines().filter(|line| is_meant(line)).map(samples).sum();
    let has_all = |line: &str| {
        let functions: Vec<_> = line.split(';').collect();
        functions.windows(3).any(|three| three.iter().zip(CHAIN).all(|(function, name)| function.contains(name)))
    };
    [count(&|line: &str| line.contains(CHAIN[2])), count(&has_all)]
}

/// All but those of the first and the last instructions, at most, where compilers may describe stacks less well.
#[track_caller]
fn is_whole(folded: &str) {
    let [inner, whole] = counted(folded);
    assert!(inner >= 5 && whole * 10 >= inner * 9, "{whole} of {inner}: {folded}");
}

#[test]
fn a_program_without_frame_pointers_has_whole_stacks() {
    let Some([live, said]) = sampled(on_calls(&["profile", "-F", "999", "--call-graph", "dwarf", "--"])) else {
        return;
    };
    is_whole(&live);
    assert!(!said.contains("are lost after one frame"), "{said}");
    // By frame pointers the same stacks are not whole. Which flag helps is said if most are lost.
    let Some([short, said]) = sampled(on_calls(&["profile", "-F", "999", "--"])) else { return };
    let [inner, whole] = counted(&short);
    let own = format!(";{}", "unwound::the_innermost");
    let alone: Vec<_> = short.lines().filter(|line| line.matches(';').count() == 1 && line.contains(&own)).collect();
    assert!(inner >= 5 && whole == 0, "{short}");
    let [alone, _] = counted(&alone.join("\n"));
    assert!(alone * 2 <= inner || said.contains("--call-graph dwarf unwinds them"), "{alone}: {said} {short}");
}

#[test]
fn a_recording_is_unwound_here_and_by_perf() {
    let place = Place::new();
    let file = place.file("perf.data");
    let record = ["record", "-F", "999", "-e", "cpu-clock", "--call-graph", "dwarf,4096", "-o", &file, "--"];
    let Some(_) = sampled(on_calls(&record)) else { return };
    is_whole(&Run::new(&["convert", "--folded", &file]).succeeds());
    let Some([profile, said]) = sampled(Run::new(&["profile", "-i", &file]).output()) else { return };
    is_whole(&profile);
    assert!(!said.contains("for DWARF") && !said.contains("are lost after one frame"), "{said}");
    let Some(()) = perf() else { return };
    let script = ["script", "-i", &file, "-F", "ip,sym", "--no-inline"];
    let told = perfweave_support::perf::printed(Command::new("perf").args(script)).unwrap();
    let stacks: Vec<_> = told.split("\n\n").filter(|stack| stack.contains(CHAIN[2])).collect();
    let whole = stacks.iter().filter(|stack| CHAIN.iter().all(|name| stack.contains(name))).count();
    assert!(whole > 0, "{told}");
}

/// By the debugging information of this program, live and in a recording. A release build has none.
#[cfg(all(feature = "inlined", debug_assertions))]
#[test]
fn inlined_functions_have_names() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some([live, _]) = sampled(on_calls(&["profile", "-F", "999", "--call-graph", "dwarf", "--"])) else { return };
    let record = ["record", "-F", "999", "-e", "cpu-clock", "--call-graph", "dwarf", "-o", &file, "--"];
    let Some(_) = sampled(on_calls(&record)) else { return };
    for folded in [live, Run::new(&["convert", "--folded", &file]).succeeds()] {
        let is_inlined = |line: &str| line.split_once(CHAIN[2]).is_some_and(|(_, rest)| rest.contains(";the_inlined"));
        assert!(folded.lines().any(is_inlined), "{folded}");
        is_whole(&folded);
    }
}

/// What was not copied is not guessed, and is said once.
#[test]
fn stacks_whose_copies_end_are_said() {
    let Some(output) = sampled(on_calls(&["profile", "-F", "999", "--call-graph", "dwarf,16", "--"])) else { return };
    let [folded, said] = output;
    let [inner, _] = counted(&folded);
    let notes: Vec<_> = said.lines().filter(|line| line.contains("where the copy of the stack ends")).collect();
    assert!(inner >= 5 && notes.len() == 1, "{said} {folded}");
    let outer = |line: &&str| line.contains(CHAIN[2]) && line.contains("start");
    assert_eq!(folded.lines().filter(outer).count(), 0, "{folded}");
}

/// A shell that is stripped, in a recording of perf.
#[test]
fn a_recording_of_perf_is_unwound() {
    let (Some(()), Some(())) = (perf(), runs(&["sh", "-c", ":"], "a shell")) else { return };
    let place = Place::new();
    let file = place.file("perf.data");
    let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let record = ["record", "-q", "-e", "cpu-clock", "--call-graph", "dwarf", "-o", &file, "--", "sh", "-c", script];
    let output = Command::new("perf").args(record).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let Some(()) = kernel("sample", if output.status.success() { Ok(()) } else { Err(said) }) else { return };
    let folded = Run::new(&["convert", "--folded", &file]).succeeds();
    let samples = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    let of_shell = folded.lines().filter(|line| line.starts_with("sh;"));
    let (whole, short): (Vec<_>, Vec<_>) = of_shell.partition(|line| line.contains("__libc_start"));
    let [whole, short] = [whole, short].map(|lines| lines.into_iter().map(samples).sum::<u64>());
    assert!(whole > 4 * short, "{whole} {short}: {folded}");
}
