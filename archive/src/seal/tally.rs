//! What is counted of rows: where they are written, and where they are checked.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray, RecordBatch};
use arrow::datatypes::{ArrowPrimitiveType, Int32Type, Int64Type};
use serde::{Deserialize, Serialize};

/// What rows have, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// Rows of all tables.
    pub rows: u64,
    /// Rows of events.
    pub events: u64,
    /// Events whose order was proven.
    pub proven: u64,
    /// Events whose order was only assumed. Files have this name for it.
    pub early: u64,
    /// Events that came after later ones.
    pub late: u64,
    /// Records that the kernel dropped, by the notices.
    pub lost: u64,
    /// Rows that were dropped, by the notices.
    pub dropped: u64,
    /// Missing numbers, by the notices.
    pub missing: u64,
    /// Notices of events that left before their order was proven. Only recorders of before 2026-11-27 wrote them.
    pub releases: u64,
    /// Notices of damage, and of CPUs that are not traced from then on.
    pub damaged: u64,
    pub dark: u64,
    /// The largest key of a proven event.
    pub frontier: Option<i64>,
    /// The smallest and the largest key.
    pub from: Option<i64>,
    pub until: Option<i64>,
}

impl Sums {
    /// Adds those of other rows.
    pub fn add(&mut self, more: &Self) {
        let Self { rows, events, proven, early, late, lost, dropped, missing, releases, damaged, dark, .. } = *more;
        for (sum, more) in [
            (&mut self.rows, rows),
            (&mut self.events, events),
            (&mut self.proven, proven),
            (&mut self.early, early),
            (&mut self.late, late),
            (&mut self.lost, lost),
            (&mut self.dropped, dropped),
            (&mut self.missing, missing),
            (&mut self.releases, releases),
            (&mut self.damaged, damaged),
            (&mut self.dark, dark),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.frontier = self.frontier.max(more.frontier);
        self.from = self.from.into_iter().chain(more.from).min();
        self.until = self.until.max(more.until);
    }
}

/// What a CPU has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfCpu {
    /// The CPU. `None` if a notice names none.
    pub cpu: Option<u32>,
    /// Rows of events.
    pub events: u64,
    /// Records that the kernel dropped, by the notices.
    pub lost: u64,
}

/// No kernel has more CPUs (`NR_CPUS`).
pub(super) const MOST_CPUS: usize = 8192;

/// Counts rows of one table.
#[derive(Debug, Default)]
pub struct Tally {
    sums: Sums,
    /// Rows with a smaller key than the row before them.
    back: u64,
    last: Option<i64>,
    /// One more than the number of each CPU; 0 is none.
    cpus: Vec<[u64; 2]>,
}

/// Columns that are not there, or of another type than a recording has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign;

/// The columns of a table that are counted.
pub fn counted(table: &str) -> &'static [&'static str] {
    match table {
        "notices" => &["mono", "boot", "trace", "row", "kind", "cpu_id", "count"],
        table if table.starts_with("events/") => &["mono", "boot", "trace", "row", "cpu_id", "proven", "late"],
        _ => &["mono", "boot", "trace"],
    }
}

/// A column of numbers.
pub(crate) fn numbers<'a, T: ArrowPrimitiveType>(
    rows: &'a RecordBatch,
    name: &str,
) -> Result<&'a PrimitiveArray<T>, Foreign> {
    rows.column_by_name(name).and_then(|column| column.as_primitive_opt()).ok_or(Foreign)
}

fn truths<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a BooleanArray, Foreign> {
    rows.column_by_name(name).and_then(|column| column.as_boolean_opt()).ok_or(Foreign)
}

/// The text of a row, of a column of texts or of a dictionary of them.
fn text_at(column: &ArrayRef, row: usize) -> Result<Option<&str>, Foreign> {
    let (texts, row) = match column.as_dictionary_opt::<Int32Type>() {
        Some(keys) => (keys.values(), keys.key(row)),
        None => (column, column.is_valid(row).then_some(row)),
    };
    let texts = texts.as_string_opt::<i32>().ok_or(Foreign)?;
    Ok(row.filter(|row| texts.is_valid(*row)).map(|row| texts.value(row)))
}

impl Tally {
    /// Counts rows of this table, in their order.
    ///
    /// # Errors
    /// If they are no rows of a recording. Then some may be counted.
    pub fn add(&mut self, table: &str, rows: &RecordBatch) -> Result<(), Foreign> {
        let keys = numbers::<Int64Type>(rows, "mono")?;
        for key in keys.iter() {
            self.key(key.ok_or(Foreign)?);
        }
        match table {
            "notices" => self.notices(rows),
            table if table.starts_with("events/") => self.events(rows, keys),
            _ => Ok(()),
        }
    }

    fn key(&mut self, key: i64) {
        self.sums.rows += 1;
        self.back += u64::from(self.last.is_some_and(|last| key < last));
        self.last = Some(key);
        self.sums.from = self.sums.from.into_iter().chain([key]).min();
        self.sums.until = self.sums.until.max(Some(key));
    }

    fn events(&mut self, rows: &RecordBatch, keys: &PrimitiveArray<Int64Type>) -> Result<(), Foreign> {
        let cpus = numbers::<Int32Type>(rows, "cpu_id")?;
        let (proven, late) = (truths(rows, "proven")?, truths(rows, "late")?);
        if cpus.null_count() + proven.null_count() + late.null_count() > 0 {
            return Err(Foreign);
        }
        for (row, &key) in keys.values().iter().enumerate() {
            self.of(Some(cpus.value(row)))?[0] += 1;
            self.sums.events += 1;
            match (proven.value(row), late.value(row)) {
                (true, _) => {
                    self.sums.proven += 1;
                    self.sums.frontier = self.sums.frontier.max(Some(key));
                }
                (false, true) => self.sums.late += 1,
                (false, false) => self.sums.early += 1,
            }
        }
        Ok(())
    }

    fn notices(&mut self, rows: &RecordBatch) -> Result<(), Foreign> {
        let kinds = rows.column_by_name("kind").ok_or(Foreign)?;
        let (cpus, counts) = (numbers::<Int32Type>(rows, "cpu_id")?, numbers::<Int64Type>(rows, "count")?);
        for ((row, cpu), count) in cpus.iter().enumerate().zip(counts) {
            let kind = text_at(kinds, row)?;
            let count = count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
            let sums = &mut self.sums;
            let (sum, more) = match kind {
                Some("lost") => {
                    let lost = &mut self.of(cpu)?[1];
                    *lost = lost.saturating_add(count);
                    (&mut self.sums.lost, count)
                }
                Some("dropped") => (&mut sums.dropped, count),
                Some("gap") => (&mut sums.missing, count),
                Some("early") => (&mut sums.releases, 1),
                Some("damage") => (&mut sums.damaged, 1),
                Some("dark begins") => (&mut sums.dark, 1),
                _ => continue,
            };
            *sum = sum.saturating_add(more);
        }
        Ok(())
    }

    /// The counts of a CPU: events, lost.
    fn of(&mut self, cpu: Option<i32>) -> Result<&mut [u64; 2], Foreign> {
        let index = cpu.map_or(Ok(0), |cpu| usize::try_from(cpu).map(|cpu| cpu + 1)).map_err(|_| Foreign)?;
        if index > MOST_CPUS {
            return Err(Foreign);
        }
        if index >= self.cpus.len() {
            self.cpus.resize(index + 1, [0; 2]);
        }
        Ok(&mut self.cpus[index])
    }

    /// All together.
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Rows with a smaller key than the row before them.
    pub fn back(&self) -> u64 {
        self.back
    }

    /// The CPUs that have something.
    pub fn cpus(&self) -> Vec<OfCpu> {
        let all = self.cpus.iter().enumerate().filter(|(_, counts)| **counts != [0; 2]);
        all.map(|(index, &[events, lost])| OfCpu { cpu: index.checked_sub(1).map(|cpu| cpu as u32), events, lost })
            .collect()
    }
}
