//! What a writer and a verifier count of records.

use super::seal::{MOST_CPUS, MOST_ROWS, NOBODY, Row, Rows, Sums};

/// What a writer and a verifier count of records: in all, and by CPU since the last seal.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sums: Sums,
    rows: Vec<Row>,
    /// The place of each CPU's row, and one more.
    by_cpu: Vec<u32>,
}

/// What a record is, for the tally.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    pub(crate) cpu: u32,
    pub(crate) time: Option<u64>,
    /// The count of a LOST record.
    pub(crate) lost: Option<u64>,
}

impl Counted {
    /// Whose it is.
    pub(crate) fn whose(&self) -> u32 {
        if self.time == Some(0) || self.cpu >= MOST_CPUS { NOBODY } else { self.cpu }
    }
}

impl Tally {
    pub(crate) fn add(&mut self, counted: Counted) {
        let Counted { time, lost, .. } = counted;
        if let Some(time) = time {
            // A LOST record has the time of the record behind it, which is counted itself.
            self.sums.back += u64::from(lost.is_none() && time < self.sums.newest);
            self.sums.newest = self.sums.newest.max(time);
        }
        let (records, more) = lost.map_or((1, 0), |count| (0, count));
        let row = self.row(counted.whose(), time);
        (row[0], row[1]) = (row[0] + records, row[1].saturating_add(more));
        if let Some(time) = time {
            row[3] = time;
        }
        self.sums.records += records;
        self.sums.lost = self.sums.lost.saturating_add(more);
    }

    fn row(&mut self, cpu: u32, time: Option<u64>) -> &mut [u64; 4] {
        // `whose` gives a CPU that there can be, or NOBODY, whose place is the one behind these.
        let index = cpu.min(MOST_CPUS) as usize;
        if index >= self.by_cpu.len() {
            self.by_cpu.resize(index + 1, 0);
        }
        if self.by_cpu[index] == 0 {
            self.rows.push(Row { cpu, of: Rows::Block, values: [0, 0, time.unwrap_or(0), 0] });
            self.by_cpu[index] = self.rows.len() as u32;
        }
        let at = self.by_cpu[index] as usize - 1;
        &mut self.rows[at].values
    }

    /// The rows since the last call, by CPU.
    pub(crate) fn take_rows(&mut self) -> Vec<Row> {
        for row in &self.rows {
            self.by_cpu[row.cpu.min(MOST_CPUS) as usize] = 0;
        }
        let mut rows = std::mem::take(&mut self.rows);
        rows.sort_unstable_by_key(|row| row.cpu);
        rows
    }

    /// Whether one seal has no room for many more rows.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() >= MOST_ROWS / 2
    }
}
