//! Calls or events by name: how often, how long, how many errors, as `strace -c`.

use crate::out::line;
use crate::times::{Times, short};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};

/// What came so far.
#[derive(Debug, Default)]
pub struct Summary(HashMap<String, Row>);

#[derive(Debug, Default)]
struct Row {
    times: Times,
    calls: u64,
    errors: u64,
}

impl Summary {
    /// A call or event. Without a time if it did not return.
    pub fn add(&mut self, name: &str, time: Option<u64>, is_error: bool) {
        let row = match self.0.get_mut(name) {
            Some(row) => row,
            None => self.0.entry(name.to_owned()).or_default(),
        };
        row.calls += 1;
        row.errors += u64::from(is_error);
        if let Some(time) = time {
            row.times.add(time);
        }
    }

    /// The longest in all first.
    pub fn print(&self, out: &mut impl Write, json: bool) -> io::Result<()> {
        let all: u64 = self.0.values().map(|row| row.times.total).sum();
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_by_key(|(name, row)| (Reverse(row.times.total), Reverse(row.calls), *name));
        // Events without a return take no time.
        if !json && all == 0 {
            writeln!(out, "{:>9}  name", "events")?;
            return rows.into_iter().try_for_each(|(name, row)| line(out, format_args!("{:>9}  {name}", row.calls)));
        }
        if !json {
            writeln!(
                out,
                "{:>6} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9}  name",
                "% time", "total", "calls", "errors", "p50", "p99", "max"
            )?;
        }
        for (name, Row { times, calls, errors }) in rows {
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
                self.0.values().fold((0, 0), |(calls, errors), row| (calls + row.calls, errors + row.errors));
            writeln!(out, "{:>6.2} {:>9} {calls:>9} {errors:>7} {:>29}  total", 100.0, short(all), "")?;
        }
        Ok(())
    }
}
