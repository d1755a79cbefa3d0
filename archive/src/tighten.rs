//! `tighten`: messages between machines, as a query gives them, become corrections of their clocks.

use crate::bounds::{Bounds, Contradiction, Message};
use crate::printable::{printable, say};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::path::PathBuf;

/// What to correct, and by what.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// A CSV file with the columns from, sent, to and received: machines, and their own TAI times in nanoseconds. - is
    /// standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How many seconds a correction is good for. Fewer seconds are tighter where clocks drift
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub step: u32,
    /// By how many nanoseconds a time may be wrong beside its clock: what column bracket of the clocks is at most
    #[arg(long, value_name = "N", default_value = "1000")]
    pub bracket: u32,
}

/// Why there are no corrections.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read.
    #[error("{file}: {source}")]
    File {
        /// The file.
        file: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The text is no table, or lacks a column.
    #[error("the pairs are not understood: {0}")]
    Text(#[from] csv::Error),
    /// A row is not as it should be.
    #[error("line {line}: {reason}")]
    Row {
        /// The line.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Messages between two machines contradict each other.
    #[error("{a} and {b}: {source}")]
    Machines {
        /// One machine.
        a: String,
        /// The other.
        b: String,
        /// What is wrong.
        source: Contradiction,
    },
    /// The output is closed.
    #[error("the corrections cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

/// For some time, how far a machine's clock is ahead of another's. The first in the order of names is the one to which
/// others are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correction {
    /// The machine whose times are to be corrected.
    pub machine: String,
    /// The machine by whose clock they are then.
    pub to: String,
    /// From this time of its own on.
    pub from_tai: i64,
    /// Until before this time of its own.
    pub to_tai: i64,
    /// What to take from its times.
    pub offset: i64,
    /// By how much the result can be wrong, either way.
    pub error: i64,
}

/// Messages between two machines, and from when to when they are by the second machine's clock.
type Between = BTreeMap<(String, String), Vec<Message>>;

/// The corrections, as CSV on standard output.
///
/// # Errors
/// See [`Error`].
pub fn tighten(options: &Options) -> Result<(), Error> {
    let name = options.file.display().to_string();
    let mut text = String::new();
    let read = if name == "-" {
        std::io::stdin().read_to_string(&mut text)
    } else {
        std::fs::File::open(&options.file).and_then(|mut file| file.read_to_string(&mut text))
    };
    read.map_err(|source| Error::File { file: name, source })?;
    let Corrections { all: corrections, one_way } =
        corrections(&text, i64::from(options.step) * 1_000_000_000, options.bracket.into())?;
    for (a, b) in one_way {
        say(format_args!("perfweave-archive: {a} and {b}: all messages go one way, so that one side has no bound"));
    }
    let out = std::io::stdout().lock();
    // Who made the pairs chose the names. Programs get them as they are.
    let to_terminal = out.is_terminal();
    let mut out = csv::Writer::from_writer(out);
    out.write_record(["machine", "relative_to", "from_tai", "to_tai", "offset", "error"]).map_err(output)?;
    for Correction { machine, to, from_tai, to_tai, offset, error } in corrections {
        let names = [machine, to].map(|name| if to_terminal { printable(&name).into_owned() } else { name });
        let numbers = [from_tai, to_tai, offset, error].map(|number| number.to_string());
        out.write_record(names.iter().chain(&numbers)).map_err(output)?;
    }
    Ok(out.flush()?)
}

/// A row that cannot be written: rows of strings have no other fault than the output's.
fn output(error: csv::Error) -> Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => Error::Output(error),
        kind => Error::Output(std::io::Error::other(format!("{kind:?}"))),
    }
}

/// What follows from messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Corrections {
    /// The corrections, by machine and time.
    pub all: Vec<Correction>,
    /// Machines whose messages all go one way.
    pub one_way: Vec<(String, String)>,
}

/// The corrections that follow from this text, each good for a step of nanoseconds. Beside its clock, each time may be
/// wrong by `bracket`.
///
/// # Errors
/// See [`Error`].
pub fn corrections(text: &str, step: i64, bracket: i64) -> Result<Corrections, Error> {
    let mut found = Corrections::default();
    // One time may be too early, and the other too late.
    let both = 2 * bracket;
    for ((a, b), mut messages) in between(text)? {
        messages.iter_mut().for_each(|message| message.received += both);
        match Bounds::of(&messages) {
            Ok(Some(bounds)) => {
                let steps = steps(&a, &b, &messages, &bounds, step);
                found.all.extend(steps.into_iter().map(|one| Correction { error: one.error + both, ..one }));
            }
            Ok(None) => found.one_way.push((a, b)),
            Err(source) => return Err(Error::Machines { a, b, source }),
        }
    }
    Ok(found)
}

fn between(text: &str) -> Result<Between, Error> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = reader.headers()?.clone();
    let row = |line, reason: String| Error::Row { line, reason };
    let mut at = [0; 4];
    for (place, name) in at.iter_mut().zip(["from", "sent", "to", "received"]) {
        *place = header
            .iter()
            .position(|column| column == name)
            .ok_or_else(|| row(1, format!("there is no column {name}")))?;
    }
    let (mut between, mut first) = (Between::new(), None);
    for record in reader.records() {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        let [from, sent, to, received] = at.map(|at| record.get(at).unwrap_or_default());
        let time = |text: &str| {
            text.parse::<i64>().map_err(|error| row(line, format!("{text:?} is no time in nanoseconds: {error}")))
        };
        let (sent, received) = (time(sent)?, time(received)?);
        let first = *first.get_or_insert(sent);
        if from == to || [sent, received].into_iter().any(|time| !near(first, time)) {
            let reason =
                if from == to { "a machine sends to itself" } else { "the time is weeks from that of the first line" };
            return Err(row(line, reason.into()));
        }
        let from_a = from < to;
        let key = if from_a { (from.to_owned(), to.to_owned()) } else { (to.to_owned(), from.to_owned()) };
        between.entry(key).or_default().push(Message { from_a, sent, received });
    }
    Ok(between)
}

/// Whether numbers of nanoseconds are exact where they are calculated with.
fn near(a: i64, b: i64) -> bool {
    a.abs_diff(b) < 1 << 52 && a.unsigned_abs() < 1 << 62
}

fn steps(a: &str, b: &str, messages: &[Message], bounds: &Bounds, step: i64) -> Vec<Correction> {
    let on_b = |message: &Message| if message.from_a { message.received } else { message.sent };
    let times = messages.iter().map(on_b);
    let (Some(first), Some(last)) = (times.clone().min(), times.max()) else { return Vec::new() };
    let begins = (0..).map(|number| first + number * step).take_while(|begin| *begin <= last);
    let correction = |from_tai: i64| {
        let to_tai = from_tai + step;
        // A possible line is between its ends everywhere.
        let ends = [from_tai, to_tai].map(|time| (bounds.on_a(time), time));
        let least = ends.iter().map(|(on_a, time)| time - on_a.to).min().unwrap_or_default();
        let most = ends.iter().map(|(on_a, time)| time - on_a.from).max().unwrap_or_default();
        let offset = least + (most - least) / 2;
        Correction {
            machine: b.into(),
            to: a.into(),
            from_tai,
            to_tai,
            offset,
            error: (most - offset).max(offset - least),
        }
    };
    begins.map(correction).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_two_machines_become_corrections_of_the_second() {
        // B is 1000 ahead. Messages take 100.
        let text = "from,sent,to,received\nA,0,B,1100\nB,1000,A,100\nA,5000,B,6100\nB,6000,A,5100\n";
        let Corrections { all: corrections, one_way } = corrections(text, 10_000, 0).unwrap();
        assert!(one_way.is_empty());
        let [Correction { machine, to, from_tai, to_tai, offset, error }] = &corrections[..] else {
            panic!("{corrections:?}")
        };
        assert_eq!((machine.as_str(), to.as_str(), *from_tai, *to_tai), ("B", "A", 1000, 11_000));
        assert!((990..=1010).contains(offset) && (100..=120).contains(error), "{offset} {error}");
        // Four times may be wrong: those that bound the difference, and two that are compared.
        assert_eq!(corrections_within(text, 25), error + 4 * 25);
    }

    fn corrections_within(text: &str, bracket: i64) -> i64 {
        corrections(text, 10_000, bracket).unwrap().all[0].error
    }

    #[test]
    fn what_is_wrong_has_a_name_and_a_line() {
        let said = |text: &str| corrections(text, 1, 0).unwrap_err().to_string();
        assert_eq!(said("from,sent,to\n"), "line 1: there is no column received");
        assert!(said("from,sent,to,received\nA,x,B,1\n").starts_with("line 2: \"x\" is no time"));
        assert_eq!(said("from,sent,to,received\nA,1,A,1\n"), "line 2: a machine sends to itself");
        assert_eq!(
            said("from,sent,to,received\nA,1,B,9223372036854775807\n"),
            "line 2: the time is weeks from that of the first line"
        );
        assert!(
            said("from,sent,to,received\nA,1000,B,1000\nB,2000,A,1000\n")
                .starts_with("A and B: the messages contradict")
        );
        assert_eq!(
            corrections("from,sent,to,received\nA,1,B,1\n", 1, 0).unwrap().one_way,
            [("A".to_owned(), "B".to_owned())]
        );
    }
}
