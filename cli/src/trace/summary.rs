//! Calls or events by name: how often, how long, how many errors, as `strace -c`.

use crate::out::line;
use crate::recent::{Last, Recent};
use crate::times::{Times, short};
use clap::ValueEnum;
use perfweave::{Event, Status};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

/// By what the rows are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// The longest in all first
    #[default]
    #[value(aliases = ["total-time", "total_time", "time-percent", "time_percent"])]
    Time,
    /// The longest single call first
    #[value(aliases = ["max-time", "max_time", "longest"])]
    Max,
    /// The longest on average first
    #[value(aliases = ["avg-time", "avg_time"])]
    Avg,
    /// The most calls first
    #[value(alias = "count")]
    Calls,
    /// The most errors first
    #[value(alias = "error")]
    Errors,
    /// By name
    #[value(aliases = ["syscall", "syscall-name", "syscall_name"])]
    Name,
}

/// What came so far.
#[derive(Debug, Default)]
pub struct Summary {
    sort: Sort,
    rows: HashMap<String, Row>,
    /// Of what returned.
    times: Recent<String, u64, Times>,
    last: Last,
}

#[derive(Debug, Default)]
struct Row {
    calls: u64,
    errors: u64,
}

impl Summary {
    pub fn sorted(sort: Sort) -> Self {
        Self { sort, ..Self::default() }
    }

    /// A call or event. Without times if it did not return: when it did, and how long it took.
    pub fn add(&mut self, name: &str, times: Option<(u64, u64)>, is_error: bool) {
        let row = match self.rows.get_mut(name) {
            Some(row) => row,
            None => self.rows.entry(name.to_owned()).or_default(),
        };
        row.calls += 1;
        row.errors += u64::from(is_error);
        if let Some((time, took)) = times.filter(|_| !self.last.is_missing()) {
            self.times.add(time, name.to_owned(), took);
        }
    }

    /// Takes what is seen of a CPU. What returned while records were lost, or after one that came late, has no time:
    /// another entry may be among them.
    pub fn saw(&mut self, event: &Event<'_>) {
        self.times.void(self.last.takes(event));
    }

    /// A row for each name, and the total.
    pub fn print(&mut self, ledger: &Status, out: &mut impl Write, json: bool) -> io::Result<()> {
        self.times.void(self.last.unreported_since(ledger));
        let mut times = self.times.sums();
        let mut rows: Vec<_> =
            self.rows.iter().map(|(name, row)| (name, times.remove(name).unwrap_or_default(), row)).collect();
        let all: u64 = rows.iter().map(|(_, times, _)| times.total).sum();
        let key = |times: &Times, row: &Row| match self.sort {
            Sort::Time => times.total,
            Sort::Max => times.most,
            Sort::Avg => times.total / times.count.max(1),
            Sort::Calls => row.calls,
            Sort::Errors => row.errors,
            Sort::Name => 0,
        };
        rows.sort_by_key(|(name, times, row)| {
            let calls = if self.sort == Sort::Name { 0 } else { row.calls };
            (Reverse(key(times, row)), Reverse(calls), *name)
        });
        // Events without a return take no time.
        if !json && all == 0 {
            writeln!(out, "{:>9}  name", "events")?;
            return rows.into_iter().try_for_each(|(name, _, row)| line(out, format_args!("{:>9}  {name}", row.calls)));
        }
        if !json {
            writeln!(
                out,
                "{:>6} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9}  name",
                "% time", "total", "calls", "errors", "p50", "p99", "max"
            )?;
        }
        for (name, times, Row { calls, errors }) in rows {
            if json {
                let row = json!({ "name": name, "calls": calls, "errors": errors, "times": times.json() });
                line(out, format_args!("{row}"))?;
                continue;
            }
            let share = times.total as f64 * 100.0 / all.max(1) as f64;
            let [total, p50, p99, most] = [times.total, times.quantile(50), times.quantile(99), times.most].map(short);
            line(
                out,
                format_args!("{share:>6.2} {total:>9} {calls:>9} {errors:>7} {p50:>9} {p99:>9} {most:>9}  {name}"),
            )?;
        }
        if !json {
            let (calls, errors) =
                self.rows.values().fold((0, 0), |(calls, errors), row| (calls + row.calls, errors + row.errors));
            writeln!(out, "{:>6.2} {:>9} {calls:>9} {errors:>7} {:>29}  total", 100.0, short(all), "")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Summary;
    use crate::recent::{a_late_record, a_loss_in_between};
    use perfweave::Status;
    use serde_json::Value;

    /// What counts of calls that return at these times, and which of them have times.
    #[track_caller]
    fn counts(summary: &mut Summary, calls: u64, times: [u64; 2]) {
        let mut text = Vec::new();
        summary.print(&Status::default(), &mut text, true).unwrap();
        let row: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(row["calls"], calls);
        assert_eq!([&row["times"]["count"], &row["times"]["total_ns"]], times.map(Value::from).each_ref());
    }

    /// A call that returned on CPU 0 while records of CPU 1 were lost, or after a record that comes late, counts, but
    /// its entry may be another's.
    #[test]
    fn what_returned_while_records_were_lost_has_no_time() {
        let stories: [crate::recent::Story; 2] = [|each| a_loss_in_between(each), |each| a_late_record(each)];
        for story in stories {
            let mut summary = Summary::default();
            for (time, took) in [(7, 1), (35, 2), (38, 3)] {
                summary.add("read", Some((time, took)), false);
            }
            story(&mut |event| summary.saw(event));
            counts(&mut summary, 3, [1, 1]);
        }
    }

    /// On a CPU that is not traced a call may return and another be entered, as long as that lasts.
    #[test]
    fn what_returns_while_a_cpu_is_not_traced_has_no_time() {
        let mut summary = Summary::default();
        summary.add("read", Some((10, 1)), false);
        assert_eq!(summary.last.untraced(1, Some(15), true), 15);
        summary.add("read", Some((20, 10)), false);
        assert_eq!(summary.last.untraced(1, Some(15), false), 15);
        summary.add("read", Some((30, 100)), false);
        counts(&mut summary, 3, [2, 101]);
    }
}
