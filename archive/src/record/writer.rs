//! The thread that writes: batches of rows become files.

use super::Error;
use super::store::{Finish, Store};
use arrow::array::{Array, ArrayRef};
use arrow::compute::{SortColumn, lexsort_to_indices, take_record_batch};
use arrow::record_batch::RecordBatch;
use parquet::arrow::AsyncArrowWriter;
use parquet::arrow::async_writer::AsyncFileWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;

/// Rows of a row group: what a query skips or reads.
const GROUP: usize = 128 << 10;

/// Rows of one table, in the order of the recording.
#[derive(Debug)]
pub struct Batch {
    /// The table, by its folder.
    pub folder: Arc<str>,
    /// The rows.
    pub rows: RecordBatch,
    /// The least key.
    pub first: i64,
    /// The largest key.
    pub last: i64,
    /// Whether the keys never decrease.
    pub sorted: bool,
    /// What UTC is ahead of the keys.
    pub utc: i64,
    /// Its part of the room, until it is written.
    pub room: Option<OwnedSemaphorePermit>,
}

/// What the reading thread says.
#[derive(Debug)]
pub enum Message {
    /// Rows to write.
    Rows(Batch),
    /// The time. Old files end.
    Now(i64),
}

/// How files are named, and when they end.
#[derive(Debug, Clone)]
pub struct Files {
    /// The machine.
    pub machine: String,
    /// The boot of the kernel, by its id.
    pub boot: String,
    /// The recording, by its id.
    pub trace: String,
    /// A file ends when it is longer.
    pub bytes: usize,
    /// A file ends when it is older.
    pub lasting: Duration,
}

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Finished files.
    pub files: u64,
    /// Rows of events in them.
    pub events: u64,
    /// Their bytes, for events alone.
    pub event_bytes: u64,
    /// The bytes of all files.
    pub bytes: u64,
}

/// A table's file.
struct File {
    writer: AsyncArrowWriter<Box<dyn AsyncFileWriter>>,
    finish: Finish,
    first: i64,
    last: i64,
    hour: i64,
}

/// Writes until the other end is closed. Then all files are finished.
///
/// # Errors
/// If the store does not take a file. The other files are not finished then.
pub async fn write(store: Store, files: Files, mut messages: UnboundedReceiver<Message>) -> Result<Written, Error> {
    let mut writer = Writer { store, files, open: HashMap::new(), begun: 0, written: Written::default() };
    while let Some(message) = messages.recv().await {
        match message {
            Message::Rows(batch) => writer.add(batch).await?,
            Message::Now(now) => writer.close_old(now).await?,
        }
    }
    let folders = writer.open.keys().cloned().collect::<Vec<_>>();
    for folder in folders {
        writer.close(&folder).await?;
    }
    Ok(writer.written)
}

struct Writer {
    store: Store,
    files: Files,
    open: HashMap<Arc<str>, File>,
    begun: u64,
    written: Written,
}

fn hour_of(utc: i64) -> i64 {
    utc.div_euclid(3_600_000_000_000)
}

impl Writer {
    async fn add(&mut self, batch: Batch) -> Result<(), Error> {
        let hour = hour_of(batch.first.saturating_add(batch.utc));
        // Rows of a file never decrease. After late rows another file begins.
        if self
            .open
            .get(&batch.folder)
            .is_some_and(|file| batch.first < file.last || hour != file.hour || self.is_old(file, batch.first))
        {
            self.close(&batch.folder).await?;
        }
        if !self.open.contains_key(&batch.folder) {
            let file = self.begin(&batch, hour)?;
            self.open.insert(Arc::clone(&batch.folder), file);
        }
        let rows = if batch.sorted { batch.rows } else { sort(&batch.rows)? };
        if let Some(file) = self.open.get_mut(&batch.folder) {
            file.writer.write(&rows).await?;
            file.last = batch.last;
        }
        // `traces` says that a recording began, also after a crash.
        if &*batch.folder == "traces" { self.close(&batch.folder).await } else { Ok(()) }
    }

    fn is_old(&self, file: &File, now: i64) -> bool {
        let age = now.saturating_sub(file.first).max(0).unsigned_abs();
        Duration::from_nanos(age) >= self.files.lasting
            || file.writer.bytes_written() + file.writer.in_progress_size() >= self.files.bytes
    }

    async fn close_old(&mut self, now: i64) -> Result<(), Error> {
        self.open.values().for_each(|file| file.finish.touch());
        let old = self
            .open
            .iter()
            .filter(|(_, file)| self.is_old(file, now))
            .map(|(folder, _)| Arc::clone(folder))
            .collect::<Vec<_>>();
        for folder in old {
            self.close(&folder).await?;
        }
        Ok(())
    }

    fn begin(&mut self, batch: &Batch, hour: i64) -> Result<File, Error> {
        let Files { machine, boot, trace, .. } = &self.files;
        let of = UNIX_EPOCH + Duration::from_secs(3600 * hour.max(0).unsigned_abs());
        let text = humantime::format_rfc3339_seconds(of).to_string();
        let (date, hour_text) = (&text[..10], &text[11..13]);
        let (boot, trace) = (boot.get(..8).unwrap_or(boot), trace.get(..8).unwrap_or(trace));
        let (folder, first, number) = (&batch.folder, batch.first, self.begun);
        let path =
            format!("{folder}/machine={machine}/date={date}/hour={hour_text}/{boot}-{first}-{trace}-{number}.parquet");
        self.begun += 1;
        let (bytes, finish) = self.store.create(&path)?.into_parts();
        let writer = AsyncArrowWriter::try_new(bytes, batch.rows.schema(), Some(properties(&batch.rows)))?;
        Ok(File { writer, finish, first, last: batch.first, hour })
    }

    async fn close(&mut self, folder: &str) -> Result<(), Error> {
        let Some(mut file) = self.open.remove(folder) else { return Ok(()) };
        let rows = file.writer.finish().await?.file_metadata().num_rows();
        let bytes = file.writer.bytes_written() as u64;
        drop(file.writer);
        file.finish.finish()?;
        self.written.files += 1;
        self.written.bytes += bytes;
        if folder.starts_with("events/") {
            self.written.events += rows.unsigned_abs();
            self.written.event_bytes += bytes;
        }
        Ok(())
    }
}

/// zstd, statistics of pages, and for columns that grow slowly their differences.
fn properties(rows: &RecordBatch) -> WriterProperties {
    let sorted = SortingColumn { column_idx: 0, descending: false, nulls_first: false };
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(GROUP))
        .set_sorting_columns(Some(vec![sorted]));
    for name in
        ["mono", "tai", "tai_error", "row"].into_iter().filter(|name| rows.schema().column_with_name(name).is_some())
    {
        let column = ColumnPath::from(name);
        properties = properties
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
    }
    properties.build()
}

/// The same rows by key, and rows with one key in the order of the recording.
fn sort(rows: &RecordBatch) -> Result<RecordBatch, Error> {
    let by = |name| {
        rows.column_by_name(name).map(|values: &ArrayRef| SortColumn { values: Arc::clone(values), options: None })
    };
    let columns =
        ["mono", "row"].into_iter().filter_map(by).filter(|column| !column.values.is_empty()).collect::<Vec<_>>();
    Ok(take_record_batch(rows, &lexsort_to_indices(&columns, None)?)?)
}
