//! Names of functions in what `convert` makes of recordings: those of perf, and none where the file is another one.

mod support;

use perfweave_support::perf::printed;
use perfweave_support::{kernel, perf, runs};
use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output, Stdio};
use support::{Place, is_refused, perfweave};

/// Uses the CPU in three functions, each of which calls the next.
const PROGRAM: &str = "
    #include <time.h>
    #define OWN __attribute__((noinline))
    static volatile long sum;
    OWN static void INNER(void) { for (int i = 0; i < 100000; i++) sum += i; }
    OWN static void MIDDLE(void) { INNER(); sum++; }
    OWN static void OUTER(void) { MIDDLE(); sum++; }
    int main(void) { while (clock() < CLOCKS_PER_SEC / 2) OUTER(); return 0; }";

/// Builds the program with functions of these names.
#[track_caller]
fn build(path: &str, names: [&str; 3]) {
    let source = format!("{path}.c");
    fs::write(&source, PROGRAM).unwrap();
    let names = ["INNER", "MIDDLE", "OUTER"].into_iter().zip(names).map(|(what, name)| format!("-D{what}={name}"));
    let mut cc = Command::new("cc");
    cc.args(["-O0", "-fno-omit-frame-pointer", "-Wl,--build-id", "-o", path, &source]);
    let output = cc.args(names).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

const NAMES: [&str; 3] = ["the_inner", "the_middle", "the_outer"];
const OTHERS: [&str; 3] = ["another_inner", "another_middle", "another_outer"];

/// Folded chains, and what is said on standard error.
#[track_caller]
fn folded(file: &str) -> (String, String) {
    let Output { status, stdout, stderr } = perfweave(&["convert", "--folded", file]).output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{said}");
    (String::from_utf8(stdout).unwrap(), said)
}

/// The program's own functions in chains, outermost first, and how often each chain is there.
type Chains = BTreeMap<Vec<String>, u64>;

fn own<'a>(frames: impl Iterator<Item = &'a str>) -> Vec<String> {
    frames.filter(|frame| NAMES.contains(frame) || *frame == "main").map(str::to_owned).collect()
}

fn of_folded(folded: &str) -> Chains {
    let mut chains = Chains::new();
    for line in folded.lines() {
        let (chain, count) = line.rsplit_once(' ').unwrap();
        *chains.entry(own(chain.split(';'))).or_default() += count.parse::<u64>().unwrap();
    }
    chains.remove(&vec![]);
    chains
}

/// The same by `perf script`, which has a paragraph for each sample: an address and its symbol a line, innermost first.
#[track_caller]
fn of_perf(file: &str) -> Chains {
    let script = printed(Command::new("perf").args(["script", "--no-inline", "-F", "ip,sym", "-i", file])).unwrap();
    let mut chains = Chains::new();
    for sample in script.split("\n\n") {
        let names: Vec<_> = sample.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        *chains.entry(own(names.into_iter().rev())).or_default() += 1;
    }
    chains.remove(&vec![]);
    chains
}

/// Records the program by `perf record`, or by `perfweave record`.
#[track_caller]
fn recorded(by_perf: bool, file: &str, program: &str) -> Option<()> {
    let Output { status, stderr, .. } = if by_perf {
        let args = ["record", "-N", "-q", "-g", "-e", "cpu-clock", "-F", "999", "-o", file, "--", program];
        Command::new("perf").args(args).stdin(Stdio::null()).output().unwrap()
    } else {
        perfweave(&["record", "-e", "cpu-clock", "--call-graph", "-o", file, "--", program]).output().unwrap()
    };
    let said = String::from_utf8_lossy(&stderr);
    let refused = said.contains("perf_event_paranoid") || is_refused(&said);
    kernel("sample a process", if refused { Err(&said) } else { Ok(()) })?;
    assert!(status.success(), "{said}");
    Some(())
}

#[track_caller]
fn has_names(file: &str) -> String {
    let (folded, said) = folded(file);
    let (ours, theirs) = (of_folded(&folded), of_perf(file));
    assert_eq!(ours, theirs);
    let whole: Vec<_> = ["main", "the_outer", "the_middle", "the_inner"].map(str::to_owned).to_vec();
    let most = ours.iter().max_by_key(|(_, count)| **count).unwrap();
    assert!(*most.0 == whole && *most.1 > 10, "{ours:?}");
    // The other formats have them too.
    for format in ["--firefox", "--html"] {
        assert!(support::printed(&["convert", format, file]).contains("the_middle"), "{format}");
    }
    said
}

/// Another program has come to the path: no name of its functions, nor of those that were there.
#[track_caller]
fn has_no_names(file: &str) {
    let (folded, said) = folded(file);
    for name in NAMES.iter().chain(&OTHERS).chain(&["main"]) {
        assert!(!folded.split([';', ' ']).any(|frame| frame == *name), "{name}: {folded}");
    }
    assert!(folded.contains(";[program]"), "{folded}");
    assert!(said.contains("not known to be as recorded") && said.contains("/program"), "{said}");
}

#[test]
fn functions_have_the_names_that_perf_finds_and_never_those_of_another_build() {
    let Some(()) = perf() else { return };
    let Some(()) = runs(&["cc", "--version"], "a C compiler") else { return };
    for by_perf in [true, false] {
        let place = Place::new();
        let [file, program, other, kept] = ["perf.data", "program", "other", "kept"].map(|name| place.file(name));
        build(&program, NAMES);
        build(&other, OTHERS);
        let Some(()) = recorded(by_perf, &file, &program) else { return };
        let said = has_names(&file);
        assert!(!said.contains("not known to be as recorded"), "{said}");
        // perfweave's mappings have no build ids, so it says what it took instead.
        assert!(by_perf || said.contains("unchanged file at the same inode"), "{said}");
        // The same inode with another content.
        fs::copy(&program, &kept).unwrap();
        fs::copy(&other, &program).unwrap();
        has_no_names(&file);
        // Another inode.
        fs::rename(&other, &program).unwrap();
        has_no_names(&file);
        // A copy of what was recorded. Only a build id says that it is that.
        fs::rename(&kept, &program).unwrap();
        if by_perf {
            has_names(&file);
        } else {
            has_no_names(&file);
        }
        fs::remove_file(&program).unwrap();
        let (folded, said) = folded(&file);
        assert!(folded.contains(";[program]") && said.contains("not here"), "{said}");
    }
}
