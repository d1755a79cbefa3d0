//! Where a recording lacks records, as far as it says so.

use crate::stamp::Stamp;
use perfweave::{ANY_CPU, Lost, Status};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::io::{self, Write};

/// So many places are printed, the largest losses.
const SHOWN: usize = 5;

/// So many are kept.
const MOST: usize = 1 << 10;

/// Losses, the largest.
#[derive(Debug, Default)]
pub struct Losses {
    all: Vec<Lost>,
    /// How many there were.
    count: usize,
}

impl Losses {
    pub fn take(&mut self, lost: &Lost) {
        self.all.push(*lost);
        self.count += 1;
        if self.all.len() >= 2 * MOST {
            self.sort();
            self.all.truncate(MOST);
        }
    }

    /// The largest first; of the same size, those that came first.
    fn sort(&mut self) {
        self.all.sort_by_key(|lost| Reverse(lost.count));
    }

    pub fn objects(&mut self, ledger: &Status, stamp: &Stamp) -> Value {
        self.sort();
        let number = |time: Option<u64>| time.map(|time| stamp.number(time));
        let places = self.all.iter().map(|lost| {
            let cpu = (lost.cpu != ANY_CPU).then_some(lost.cpu);
            json!({ "cpu": cpu, "count": lost.count, "after": number(lost.after), "until": number(lost.until) })
        });
        let cpus = by_cpu(ledger).map(|(cpu, lost)| json!({ "cpu": cpu, "lost": lost }));
        json!({ "cpus": cpus.collect::<Vec<_>>(), "places": places.collect::<Vec<_>>() })
    }

    /// How many records each CPU has lost, and where the largest losses are.
    pub fn print(&mut self, ledger: &Status, stamp: &Stamp, out: &mut impl Write) -> io::Result<()> {
        self.sort();
        let cpus: Vec<_> = by_cpu(ledger).map(|(cpu, lost)| format!("{lost} of CPU {cpu}")).collect();
        if !cpus.is_empty() {
            writeln!(out, "  lost: {}", cpus.join(", "))?;
        }
        let text = |time: Option<u64>| stamp.text(time).trim_start().to_owned();
        for lost in self.all.iter().take(SHOWN) {
            let cpu = if lost.cpu == ANY_CPU { String::new() } else { format!("CPU {}: ", lost.cpu) };
            let place = match (lost.after, lost.until) {
                (None, None) => "at an unknown time".into(),
                (None, Some(until)) => format!("before {}", text(Some(until))),
                (Some(after), None) => format!("after {}", text(Some(after))),
                (Some(after), Some(until)) => format!("between {} and {}", text(Some(after)), text(Some(until))),
            };
            writeln!(out, "  {cpu}{} {place}", lost.count)?;
        }
        let hidden = self.count.saturating_sub(SHOWN);
        if hidden > 0 {
            writeln!(out, "  and at {hidden} more places")?;
        }
        let elsewhere = crate::missing::without_place(ledger.machine.lost);
        elsewhere.map_or(Ok(()), |words| writeln!(out, "  {words}"))
    }
}

/// What each CPU has lost, if it has lost something.
fn by_cpu(ledger: &Status) -> impl Iterator<Item = (u32, u64)> {
    let lost = ledger.accounts.iter().filter_map(|account| Some((account.cpu?, account.lost)));
    lost.filter(|(_, lost)| *lost > 0)
}
