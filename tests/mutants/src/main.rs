//! Mutation testing: makes one build of the crate that holds all mutants, and runs the tests once for each, with the environment
//! variable `MUTANT` naming it. Mutants that no test notices are printed, unless `survivors.txt` explains them.
//!
//! ```text
//! cargo run --release --manifest-path tests/mutants/Cargo.toml                  # all
//! cargo run --release --manifest-path tests/mutants/Cargo.toml -- numbers ring  # of files that have this in their path
//! cargo run --release --manifest-path tests/mutants/Cargo.toml -- --explained   # those too that `survivors.txt` explains
//! cargo run --release --manifest-path tests/mutants/Cargo.toml -- --list        # which there are
//! ```
//!
//! Operators are those of cargo-mutants (a function that does nothing, or gives a plain value; another operator; a negation
//! less; a match guard that is always or never true; a match arm less) and, besides, a statement less.
//!
//! A mutant is caught if a test fails, dies, or takes far longer than without it. It gets only the tests that reach it: each
//! test is run once by itself to see which those are. As root the live tests take part; others are skipped and reach nothing.

mod explain;
mod plant;
mod run;

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Files and folders that are not mutated: system calls, which a kernel must answer; the simulator, which is a test's own half;
/// words of errors; what is only declared; models and tests.
const LEFT_OUT: &[&str] = &["sys", "sim", "error", "hint", "lib", "instrument", "model", "tests"];

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
    let mut files = Vec::new();
    sources(&root, Path::new("src"), &mut files)?;
    files.sort();
    files.retain(|file| asked.is_empty() || asked.iter().any(|asked| file.to_string_lossy().contains(asked.as_str())));
    if files.is_empty() {
        return Err(format!("no file has one of {asked:?} in its path").into());
    }
    let mut planted = plant::Planted::find(&root, &files)?;
    println!("{} mutants in {} files", planted.mutants.len(), files.len());
    if is("--list") {
        planted.mutants.iter().enumerate().for_each(|(at, mutant)| println!("{at} {}", run::show(mutant)));
        return Ok(true);
    }
    let explained = explain::Explained::read(&here.join("survivors.txt"))?;
    let known = if is("--explained") { BTreeSet::new() } else { explained.of(&planted.mutants) };
    println!("{} of them are explained and not run", known.len());
    planted.copy()?;
    let outcome = run::run(planted, &known)?;
    Ok(explained.report(&outcome, asked.is_empty() && is("--explained")))
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
