//! A recording from its beginning to its summary, for the commands that analyse one as they analyse the machine.

use crate::convert::view::View;
use crate::convert::{self, Progress};
use crate::failure::Failure;
use crate::family::Family;
use crate::missing;
use crate::out::Out;
use perfweave::{Account, Event, Reader, Rings, Source, Status};
use serde_json::json;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Which recording, instead of what happens now.
#[derive(Debug, Clone, clap::Args)]
pub struct Input {
    /// Read a recording, by perfweave record or perf record, instead of tracing; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["command", "seconds", "hold", "buffer"])]
    pub input: Option<PathBuf>,
}

/// A recording that is read.
pub struct Recorded {
    pub view: View,
    reader: Reader,
    /// What it lacks for what is asked of it, and what would mend that.
    lacks: Option<&'static str>,
    /// How many switches have no record.
    unrecorded: u64,
}

impl Recorded {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let (view, reader) = convert::open(path)?;
        Ok(Self { view, reader, lacks: None, unrecorded: 0 })
    }

    /// The same for stacks, and names of functions, also of those that runtimes have compiled.
    pub fn open_for_stacks(path: &Path) -> Result<Self, Failure> {
        let (view, reader) = convert::open_for_stacks(path)?;
        Ok(Self { view, reader, lacks: None, unrecorded: 0 })
    }

    pub fn rings(&self) -> &Rings {
        self.reader.rings()
    }

    /// The place of an event among the sources.
    pub fn place(&self, name: &str) -> Result<usize, Failure> {
        let mut sources = self.rings().sources().iter();
        sources.position(|source| self::name(source) == name).ok_or_else(|| {
            let known: Vec<_> = self.rings().sources().iter().map(self::name).collect();
            Failure::hinting(format_args!("the recording has no {name}"), format_args!("it has {}", known.join(", ")))
        })
    }

    /// Calls a function with each event. It ends well if the other end of the output is closed.
    pub fn each(&mut self, mut each: impl FnMut(&Event<'_>, &mut View) -> io::Result<()>) -> Result<(), Failure> {
        let progress = Progress::new("events");
        // One by one: the memory of a batch goes back behind its last event, and a batch may have all of them.
        while let Some(guard) = self.reader.next()? {
            match each(&guard.event(), &mut self.view) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                told => told?,
            }
            progress.one();
        }
        Ok(())
    }

    /// Says in the summary what is lacking.
    pub fn lacks(&mut self, lacks: Option<&'static str>) {
        self.lacks = lacks;
    }

    /// Says in the summary how many switches are known to have no record.
    pub fn unrecorded(&mut self, switches: u64) {
        self.unrecorded = switches;
    }

    /// The account of everything that was written.
    pub fn ledger(&mut self) -> Result<Status, Failure> {
        Ok(self.reader.ledger()?)
    }

    /// Ends the output: what is missing, in JSON as the last line and otherwise on standard error.
    pub fn conclude(&mut self, out: &mut Out, is_json: bool) -> Result<(), Failure> {
        let ledger = self.ledger()?;
        let (total, lacks) = (total(&ledger), self.lacks);
        let Account { yielded: records, lost, late, damaged, .. } = total;
        if is_json {
            let complete = ledger.is_complete() && self.unrecorded == 0;
            let mut summary = json!({ "records": records, "lost": lost, "late": late, "damaged": damaged, "complete": complete, "lacks": lacks });
            if self.unrecorded > 0 {
                summary["unrecorded_switches"] = self.unrecorded.into();
            }
            writeln!(out, "{}", json!({ "summary": summary }))?;
        }
        out.flush()?;
        if !is_json {
            lacks.iter().for_each(|words| eprintln!("{words}"));
            let loss = missing::beside_switches(missing::of(&total, missing::UNCOUNTED), self.unrecorded);
            eprintln!("{records} events: {late} late; {loss}{}", missing::switches(self.unrecorded));
            missing::without_place(ledger.machine.lost).iter().for_each(|words| eprintln!("{words}"));
        }
        Ok(())
    }
}

/// The name of an event without perf's modifiers, such as `:u`.
pub fn name(source: &Source) -> &str {
    source.tracepoint().unwrap_or_else(|| source.name().split(':').next().unwrap_or_default())
}

/// The account of all CPUs together. Of losses without a place nobody knows that they came last.
pub fn total(ledger: &Status) -> Account {
    let mut total = ledger.total();
    total.unreported -= ledger.machine.unreported;
    total
}

/// Whose events are meant.
pub fn family(pid: Option<u32>, tid: Option<u32>) -> Family {
    match (pid, tid) {
        (Some(pid), _) => Family::recorded(pid),
        (None, Some(tid)) => Family::Thread(tid),
        (None, None) => Family::All,
    }
}
