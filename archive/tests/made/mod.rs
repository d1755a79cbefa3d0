//! Archives of a few rows, made by hand.

use arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
};
use arrow::datatypes::Int32Type;
use parquet::arrow::ArrowWriter;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder with an archive, gone with the test.
pub struct Made(tempfile::TempDir);

/// A wake-up. Its TAI is `mono`, give or take 10 ns.
#[derive(Clone, Copy)]
pub struct Row {
    mono: i64,
    row: i64,
    pid: i32,
    cpu: i32,
    added: Option<i32>,
}

pub fn row(mono: i64, row: i64) -> Row {
    Row { mono, row, pid: 1, cpu: 3, added: None }
}

impl Row {
    pub fn pid(self, pid: i32) -> Self {
        Self { pid, ..self }
    }

    pub fn cpu(self, cpu: i32) -> Self {
        Self { cpu, ..self }
    }

    pub fn added(self, added: i32) -> Self {
        Self { added: Some(added), ..self }
    }
}

/// A switch on CPU 3: time, row, who leaves in which state, who comes.
pub struct Switch(pub i64, pub i64, pub i32, pub i64, pub i32);

impl Made {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn url(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    pub fn waking(&self, machine: &str, trace: &str, rows: &[Row]) {
        let mut columns = common(trace, &rows.iter().map(|row| (row.mono, row.row, row.cpu)).collect::<Vec<_>>());
        columns.push(("comm", texts(rows.iter().map(|row| format!("p{}", row.pid)))));
        columns.push(("pid", Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.pid)))));
        if rows.iter().any(|row| row.added.is_some()) {
            columns.push(("added", Arc::new(Int32Array::from_iter(rows.iter().map(|row| row.added)))));
        }
        self.write("sched_waking", machine, trace, columns);
    }

    pub fn switches(&self, machine: &str, trace: &str, rows: &[Switch]) {
        self.switches_on(machine, trace, rows, &vec![3; rows.len()]);
    }

    /// The same on these CPUs.
    pub fn switches_on(&self, machine: &str, trace: &str, rows: &[Switch], cpus: &[i32]) {
        let places = rows.iter().zip(cpus).map(|(row, cpu)| (row.0, row.1, *cpu));
        let mut columns = common(trace, &places.collect::<Vec<_>>());
        columns.push(("prev_comm", texts(rows.iter().map(|row| format!("p{}", row.2)))));
        columns.push(("prev_pid", Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.2)))));
        columns.push(("prev_state", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.3)))));
        columns.push(("next_comm", texts(rows.iter().map(|row| format!("p{}", row.4)))));
        columns.push(("next_pid", Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.4)))));
        self.write("sched_switch", machine, trace, columns);
    }

    /// Losses of a recording, each between two times.
    pub fn losses(&self, machine: &str, trace: &str, between: &[(Option<i64>, Option<i64>)]) {
        let rows = between.iter().enumerate().map(|(at, _)| (1000, 1000 + at as i64, 3)).collect::<Vec<_>>();
        let mut columns = common(trace, &rows);
        columns.retain(|(name, _)| !["proven", "late", "common_pid"].contains(name));
        columns.push(("kind", texts(between.iter().map(|_| "lost".to_owned()))));
        columns.push(("from_mono", Arc::new(Int64Array::from_iter(between.iter().map(|loss| loss.0)))));
        columns.push(("to_mono", Arc::new(Int64Array::from_iter(between.iter().map(|loss| loss.1)))));
        self.write("../../notices", machine, trace, columns);
    }

    /// A Parquet file of somebody else, among the wake-ups of a machine.
    pub fn foreign(&self, machine: &str) {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        self.write("sched_waking", machine, "foreign", vec![("price", column)]);
    }

    fn write(&self, table: &str, machine: &str, name: &str, columns: Vec<(&str, ArrayRef)>) {
        let directory = self.directory(table).join(format!("machine={machine}/date=2026-11-20/hour=09"));
        std::fs::create_dir_all(&directory).unwrap();
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut writer = ArrowWriter::try_new(
            File::create(directory.join(format!("{name}.parquet"))).unwrap(),
            batch.schema(),
            None,
        )
        .unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    fn directory(&self, table: &str) -> PathBuf {
        self.0.path().join("events/sched").join(table)
    }

    /// The files of a table, in order of their names.
    pub fn files(&self, table: &str) -> Vec<PathBuf> {
        let mut files = Vec::new();
        below(&self.directory(table), &mut files);
        files.sort();
        files
    }
}

/// The files below a directory.
pub fn below(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { below(&path, files) } else { files.push(path) }
    }
}

fn texts(values: impl Iterator<Item = String>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

fn common(trace: &str, rows: &[(i64, i64, i32)]) -> Vec<(&'static str, ArrayRef)> {
    let word = |text: &str| -> ArrayRef { Arc::new(rows.iter().map(|_| text).collect::<DictionaryArray<Int32Type>>()) };
    let all = |value: i32| -> ArrayRef { Arc::new(Int32Array::from(vec![value; rows.len()])) };
    vec![
        ("mono", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0)))),
        ("tai", Arc::new(TimestampNanosecondArray::from_iter_values(rows.iter().map(|row| row.0)))),
        ("tai_error", Arc::new(Int64Array::from(vec![10; rows.len()]))),
        ("cpu_id", Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.2)))),
        ("boot", word("11111111-boot")),
        ("trace", word(trace)),
        ("row", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1)))),
        ("proven", Arc::new(BooleanArray::from(vec![true; rows.len()]))),
        ("late", Arc::new(BooleanArray::from(vec![false; rows.len()]))),
        ("common_pid", all(0)),
    ]
}
