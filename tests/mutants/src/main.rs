//! Mutation testing: makes one build of the crate that holds all mutants, and runs the tests once for each, with the
//! environment variable `MUTANT` naming it. Mutants that no test notices are printed, unless `survivors.txt` explains
//! them.
//!
//! ```text
//! cargo run --release --manifest-path tests/mutants/Cargo.toml                  # all
//! cargo run --release --manifest-path tests/mutants/Cargo.toml -- numbers ring/ # of files that have this in their path, in this order
//! cargo run --release --manifest-path tests/mutants/Cargo.toml -- --budget=5    # a mutant's tests take no longer together, in seconds
//! cargo run --release --manifest-path tests/mutants/Cargo.toml -- --explained   # those too that `survivors.txt` explains
//! cargo run --release --manifest-path tests/mutants/Cargo.toml -- --again       # those that survived the last time
//! cargo run --release --manifest-path tests/mutants/Cargo.toml -- --list        # which there are
//! ```
//!
//! Operators are those of cargo-mutants (a function that does nothing, or gives a plain value; another operator; a
//! negation less; a match guard that is always or never true; a match arm less) and, besides, a statement less.
//!
//! A mutant is caught if a test fails, dies, or takes far longer than without it. It gets only the tests that reach it:
//! each test is run once by itself to see which those are. As root the live tests take part; others are skipped and
//! reach nothing.
//!
//! All files are planted whatever is asked for, so that one build, in `target/mutants`, serves one room after the
//! other. What is known of it is kept beside it: which mutants do not compile, and what each test reaches.

mod explain;
mod plant;
mod run;

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Files and folders that are not mutated: system calls, which a kernel must answer; the simulator, which is a test's
/// own half; words of errors; what is only declared; models and tests.
const LEFT_OUT: &[&str] = &["sys", "sim", "error", "hint", "lib", "instrument", "steps", "model", "tests"];

fn main() -> ExitCode {
    match all() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::FAILURE
        }
    }
}

fn all() -> Result<bool, Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.join("../..").canonicalize()?;
    let (options, asked): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|asked| asked.starts_with("--"));
    let is = |option: &str| options.iter().any(|given| given == option);
    let budget = options.iter().find_map(|option| option.strip_prefix("--budget="));
    let budget = budget.map(str::parse).transpose()?.map_or(run::BUDGET, Duration::from_secs);
    let mut files = Vec::new();
    for package in plant::PACKAGES {
        sources(&root, &Path::new(package).join("src"), &mut files)?;
    }
    files.sort();
    let planted = plant::Planted::find(&root, &files)?;
    let mut chosen = chosen(&planted.mutants, &asked)?;
    let survived = planted.directory.join("survived");
    if is("--again") {
        let last = fs::read_to_string(&survived)?;
        chosen.retain(|at| last.lines().any(|line| line == explain::line(&planted.mutants[*at])));
    }
    println!("{} mutants in {} files, {} of them chosen", planted.mutants.len(), files.len(), chosen.len());
    if is("--list") {
        chosen.iter().for_each(|at| println!("{at} {}", run::show(&planted.mutants[*at])));
        return Ok(true);
    }
    let explained = explain::Explained::read(&here.join("survivors.txt"))?;
    let known = if is("--explained") { BTreeSet::new() } else { explained.of(&planted.mutants) };
    println!("{} of these are explained and not run", chosen.iter().filter(|at| known.contains(at)).count());
    let chosen = chosen.into_iter().filter(|at| !known.contains(at)).collect();
    planted.copy()?;
    let outcome = run::run(planted, chosen, budget)?;
    let lines = outcome.survivors.iter().chain(&outcome.unreached).map(explain::line);
    fs::write(survived, lines.collect::<Vec<_>>().join("\n"))?;
    Ok(explained.report(&outcome, asked.is_empty() && is("--explained")))
}

/// The mutants of files that have something of what is asked for in their path, in the order asked for.
fn chosen(mutants: &[plant::Mutant], asked: &[String]) -> Result<Vec<usize>, Box<dyn Error>> {
    let mut chosen: Vec<usize> = Vec::new();
    let all = [String::new()];
    for part in if asked.is_empty() { &all } else { asked } {
        let is_meant = |at: &usize| mutants[*at].file.to_string_lossy().contains(part.as_str());
        let found: Vec<usize> = (0..mutants.len()).filter(is_meant).collect();
        if found.is_empty() {
            return Err(format!("no file has {part:?} in its path").into());
        }
        chosen.extend(found);
    }
    let mut seen = BTreeSet::new();
    chosen.retain(|at| seen.insert(*at));
    Ok(chosen)
}

/// All files that are mutated, relative to the crate.
fn sources(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if path.file_stem().is_some_and(|name| LEFT_OUT.iter().any(|left_out| name == *left_out)) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            sources(root, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
