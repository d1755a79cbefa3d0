//! A tool, as its file in `tools/` describes it: how it is run, and what its lines say.

use crate::history::{MARKS, Thing};
use regex::Regex;
use serde::Deserialize;
use std::fs;
use std::path::Path;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    pub name: String,
    /// What must be in `PATH`.
    #[serde(default)]
    pub needs: Vec<String>,
    /// Debian's package, or where else it comes from.
    pub from: String,
    /// Prints its version.
    pub version: String,
    /// The order that its documentation promises.
    pub promises: String,
    pub mode: Vec<Mode>,
    pub line: Vec<Rule>,
}

/// One way to run a tool.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mode {
    pub name: String,
    /// Shell commands. They run `$WORK`, and what they print in the end is in the file `$OUT`. `beside` and others are
    /// in `lib.sh`.
    pub run: String,
    /// What it is asked to print: `enter`, `exit`, `call`, `exec`, `end`, `waking`, `ticket`. It runs with work that
    /// has one of these.
    pub prints: Vec<What>,
    /// Only with this work, if it is named.
    #[serde(default)]
    pub only: Vec<String>,
    /// Its rules prove the order, so that there must be no finding at all.
    #[serde(default)]
    pub proves: bool,
    /// A fault that was put in: what the judge must find, or it is blind.
    #[serde(default)]
    pub planted: Vec<String>,
}

/// What a line, or a part of it, says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// Entry into a numbered call.
    Enter,
    /// Return from it.
    Exit,
    /// Both in one line, which stands where the call returned and has the time of its entry.
    Call,
    Exec,
    End,
    Waking,
    /// A thread with a number in its name leaves the CPU; with the group `sleeps` it goes to sleep.
    Out,
    /// It gets a CPU.
    In,
    Ticket,
    /// A time that cannot be negative, nor longer than the run: group `ms`.
    Duration,
    /// Events that the tool says are lost: group `count`, if it says how many.
    Lost,
}

impl What {
    /// Of what it speaks, if that has a place in an order.
    pub fn thing(self) -> Option<Thing> {
        match self {
            Self::Enter | Self::Exit | Self::Call => Some(Thing::Step),
            Self::Exec => Some(Thing::Exec),
            Self::End => Some(Thing::End),
            Self::Waking => Some(Thing::Waking),
            Self::Ticket => Some(Thing::Ticket),
            Self::Out | Self::In | Self::Duration | Self::Lost => None,
        }
    }
}

/// What one form of line says. A line may match several.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub says: What,
    /// With named groups: `number` or `hex`; `tid`; `stamp`; `sleeps`; `ms`; `count`.
    #[serde(rename = "match", deserialize_with = "regex")]
    pub pattern: Regex,
    /// Of `stamp`: `s`, `ms`, `us` or `ns`.
    #[serde(default)]
    pub unit: Unit,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    #[default]
    S,
    Ms,
    Us,
    Ns,
}

fn regex<'de, D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Regex, D::Error> {
    Regex::new(&String::deserialize(from)?).map_err(serde::de::Error::custom)
}

/// What a line was found to say.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    pub what: What,
    pub number: u64,
    pub tid: Option<u32>,
    /// Nanoseconds of whatever clock the tool has.
    pub stamp: Option<u64>,
    pub sleeps: bool,
    /// Milliseconds, of a duration.
    pub ms: Option<f64>,
    /// Which line of the output, from 0.
    pub line: usize,
}

impl Tool {
    pub fn read(path: &Path) -> Result<Self> {
        toml::from_str(&fs::read_to_string(path)?).map_err(|error| format!("{}: {error}", path.display()).into())
    }

    /// Whether it has faults that were put in.
    pub fn is_planted(&self) -> bool {
        self.mode.iter().any(|mode| !mode.planted.is_empty())
    }

    /// All that the lines say, in their order. Steps that mark the end are left out.
    pub fn said(&self, lines: &[&str]) -> Vec<Said> {
        let all = lines.iter().enumerate();
        all.flat_map(|(at, line)| self.line.iter().filter_map(move |rule| rule.said(line, at)))
            .filter(|said| said.what == What::Lost || !MARKS.contains(&said.number))
            .collect()
    }
}

impl Rule {
    fn said(&self, line: &str, at: usize) -> Option<Said> {
        let found = self.pattern.captures(line)?;
        let text = |name| found.name(name).map(|group| group.as_str());
        let number = match (text("number").or(text("count")), text("hex")) {
            (Some(decimal), _) => decimal.parse().ok()?,
            (None, Some(hex)) => u64::from_str_radix(hex, 16).ok()?,
            // A loss without a number is a loss of anything.
            (None, None) if self.says == What::Lost => u64::MAX,
            (None, None) => 0,
        };
        Some(Said {
            what: self.says,
            number,
            tid: text("tid").and_then(|tid| tid.parse().ok()),
            stamp: text("stamp").and_then(|stamp| self.unit.ns(stamp)),
            sleeps: text("sleeps").is_some(),
            ms: text("ms").and_then(|ms| ms.parse().ok()),
            line: at,
        })
    }
}

impl Unit {
    /// A decimal number as nanoseconds, exactly. `None` where it is none.
    fn ns(self, text: &str) -> Option<u64> {
        let digits = match self {
            Self::S => 9,
            Self::Ms => 6,
            Self::Us => 3,
            Self::Ns => 0,
        };
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let part = format!("{part:0<digits$}");
        format!("{whole}{}", part.get(..digits)?).parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_read_exactly() {
        assert_eq!(Unit::S.ns("1872.878733"), Some(1_872_878_733_000));
        assert_eq!(Unit::Ms.ns("0.504"), Some(504_000));
        assert_eq!(Unit::Ns.ns("1876044082090"), Some(1_876_044_082_090));
        assert_eq!(Unit::S.ns("0.057008500"), Some(57_008_500));
        assert_eq!(Unit::S.ns("soon"), None);
    }

    /// Each file is read, and says what it needs to be run.
    #[test]
    fn all_files_are_tools() {
        let mut names = Vec::new();
        for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tools")).unwrap() {
            let tool = Tool::read(&file.unwrap().path()).unwrap();
            for mode in &tool.mode {
                for &what in &mode.prints {
                    assert!(what.thing().is_some(), "{}, {}: {what:?} is nothing that happens", tool.name, mode.name);
                    assert!(
                        tool.line.iter().any(|rule| rule.says == what),
                        "{}, {}: no line says {what:?}",
                        tool.name,
                        mode.name
                    );
                }
            }
            names.push(tool.name);
        }
        names.sort();
        names.dedup();
        assert!(names.len() > 10, "{names:?}");
    }
}
