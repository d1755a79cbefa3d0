//! Survivors that are known, and why.

use crate::plant::Mutant;
use crate::run::{Outcome, show};
use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::Path;

/// Between fields. In no operator that is replaced.
const SEPARATOR: &str = " ~ ";

/// What `survivors.txt` says: a line for each, `module ~ function ~ what ~ text`, where `*` at a field's end stands for
/// anything, below lines that say why.
pub struct Explained(BTreeSet<String>);

impl Explained {
    pub fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
        let lines = text.lines().map(str::trim).filter(|line| line.contains(SEPARATOR) && !line.starts_with('#'));
        Ok(Self(lines.map(str::to_owned).collect()))
    }

    /// Those that are explained.
    pub fn of(&self, mutants: &[Mutant]) -> BTreeSet<usize> {
        let explained = |mutant: &Mutant| self.0.iter().any(|line| matches(line, mutant));
        (0..).zip(mutants).filter(|(_, mutant)| explained(mutant)).map(|(at, _)| at).collect()
    }

    /// Prints what came of it. False if something survived that is not explained.
    pub fn report(&self, outcome: &Outcome, whole: bool) -> bool {
        let Outcome { caught, survivors, unreached, unviable } = outcome;
        let all: Vec<&Mutant> = survivors.iter().chain(unreached).collect();
        let new: Vec<&&Mutant> = all.iter().filter(|mutant| !self.0.iter().any(|line| matches(line, mutant))).collect();
        println!(
            "\n{caught} caught, {} survived, {} of them unreached, {unviable} do not compile",
            all.len(),
            unreached.len()
        );
        if whole {
            let stale = self.0.iter().filter(|line| !all.iter().any(|mutant| matches(line, mutant)));
            stale.for_each(|line| println!("caught by now: {line}"));
        }
        for mutant in &new {
            println!("NOT EXPLAINED {}\n    {}", show(mutant), line(mutant));
        }
        println!("{} are explained, {} are not", all.len() - new.len(), new.len());
        new.is_empty()
    }
}

/// The line for a mutant.
pub fn line(mutant: &Mutant) -> String {
    fields(mutant).join(SEPARATOR)
}

/// The fields of a mutant's line. Without folders, so that files can move.
fn fields(mutant: &Mutant) -> [String; 4] {
    let path =
        if mutant.file.ends_with("mod.rs") { mutant.file.parent().unwrap_or(&mutant.file) } else { &mutant.file };
    let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    [module, mutant.function.clone(), mutant.what.clone(), mutant.text.clone()]
}

fn matches(line: &str, mutant: &Mutant) -> bool {
    let fields = fields(mutant);
    let mut said = line.splitn(fields.len(), SEPARATOR.trim_end()).map(str::trim);
    fields.iter().all(|field| match said.next() {
        None => true,
        Some(said) => match said.strip_suffix('*') {
            Some(begin) => field.starts_with(begin),
            None => field.trim() == said,
        },
    })
}
