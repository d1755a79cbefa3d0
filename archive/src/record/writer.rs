//! The thread that writes: batches of rows become files.

use super::Error;
use super::sealing::{Chain, Sealing};
use super::store::{Finish, Store};
use super::unfinished::Unfinished;
use crate::seal::{End, KEY, Tally};
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{SortColumn, lexsort_to_indices, take_record_batch};
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use parquet::arrow::AsyncArrowWriter;
use parquet::arrow::async_writer::AsyncFileWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;

/// Rows of a row group: what a query skips or reads.
pub const GROUP: usize = 128 << 10;

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
    Now {
        /// `CLOCK_MONOTONIC`
        mono: i64,
        /// Rows that come have no smaller key, but for late ones. `None` if that is not known.
        floor: Option<i64>,
    },
    /// What the last file says of all: the next one of `traces`.
    End(End),
    /// The notices so far tell of these files, which can go once the notices are in a finished file.
    Told(Vec<Unfinished>),
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
    /// The hash in the last file, which stands for all of the recording. `None` without files.
    pub hash: Option<blake3::Hash>,
}

/// A table's file.
struct File {
    writer: AsyncArrowWriter<Sealing<Box<dyn AsyncFileWriter>>>,
    finish: Finish,
    path: String,
    tally: Tally,
    first: i64,
    last: i64,
    hour: i64,
}

impl File {
    async fn add(&mut self, batch: &Batch) -> Result<(), Error> {
        let foreign = |_| ParquetError::General("rows lack what is counted".into());
        self.tally.add(&batch.folder, &batch.rows).map_err(foreign)?;
        self.writer.write(&batch.rows).await?;
        self.last = batch.last;
        Ok(())
    }

    fn is_old(&self, now: i64, bytes: usize, lasting: Duration) -> bool {
        let age = now.saturating_sub(self.first).max(0).unsigned_abs();
        Duration::from_nanos(age) >= lasting || self.writer.bytes_written() + self.writer.in_progress_size() >= bytes
    }
}

/// Writes until the other end is closed. Then all files are finished.
///
/// # Errors
/// If the store does not take a file. The others are finished as well as they can be, without an `end` in `traces`.
pub async fn write(store: Store, files: Files, mut messages: UnboundedReceiver<Message>) -> Result<Written, Error> {
    let (chain, written) = (Chain::default(), Written::default());
    let mut writer = Writer { store, files, open: HashMap::new(), begun: 0, hour: i64::MIN, chain, written };
    let taken = writer.take_all(&mut messages).await;
    let closed = writer.close_all().await;
    taken.and(closed).map(|()| writer.written)
}

struct Writer {
    store: Store,
    files: Files,
    open: HashMap<Arc<str>, File>,
    begun: u64,
    /// The latest hour of events.
    hour: i64,
    chain: Chain,
    written: Written,
}

fn hour_of(utc: i64) -> i64 {
    utc.div_euclid(3_600_000_000_000)
}

impl Writer {
    async fn take_all(&mut self, messages: &mut UnboundedReceiver<Message>) -> Result<(), Error> {
        while let Some(message) = messages.recv().await {
            match message {
                Message::Rows(batch) => self.add(batch).await?,
                Message::Now { mono, floor } => {
                    self.chain.floor = floor;
                    self.close_old(mono).await?;
                }
                Message::End(end) => self.chain.end = Some(end),
                Message::Told(unfinished) => {
                    self.close("notices").await?;
                    unfinished.into_iter().for_each(Unfinished::remove);
                }
            }
        }
        Ok(())
    }

    async fn add(&mut self, batch: Batch) -> Result<(), Error> {
        let first = batch.first;
        let added = self.add_all(batch).await;
        if added.is_err() {
            self.chain.fail(first);
        }
        added
    }

    /// The rows of a batch, by the hours of UTC that they lie in. Mostly it is one.
    async fn add_all(&mut self, mut batch: Batch) -> Result<(), Error> {
        // `traces` says that a recording began, also after a crash; and that it ended, when nothing of it is open any
        // more.
        let is_trace = &*batch.folder == "traces";
        if is_trace {
            self.close_all().await?;
        }
        if !batch.sorted {
            batch.rows = sort(&batch.rows)?;
        }
        while let Some(rest) = split_at_hour(&mut batch) {
            self.add_hour(batch).await?;
            batch = rest;
        }
        let folder = Arc::clone(&batch.folder);
        self.add_hour(batch).await?;
        if is_trace { self.close(&folder).await } else { Ok(()) }
    }

    async fn add_hour(&mut self, batch: Batch) -> Result<(), Error> {
        let hour = hour_of(batch.first.saturating_add(batch.utc));
        if batch.folder.starts_with("events/") && hour > self.hour {
            self.hour = hour;
            self.close_before(hour).await?;
        }
        // Rows of a file never decrease. After late rows another file begins.
        if self.open.get(&batch.folder).is_some_and(|file| {
            batch.first < file.last
                || hour != file.hour
                || file.is_old(batch.first, self.files.bytes, self.files.lasting)
        }) {
            self.close(&batch.folder).await?;
        }
        let mut file = match self.open.remove(&batch.folder) {
            Some(file) => file,
            None => self.begin(&batch, hour)?,
        };
        // A file that could not be written is not finished: it keeps the name of one that was left, which the next
        // recording tells of.
        match file.add(&batch).await {
            Ok(()) => self.open.insert(batch.folder, file),
            Err(error) => {
                self.chain.fail(file.first);
                return Err(error);
            }
        };
        Ok(())
    }

    async fn close_all(&mut self) -> Result<(), Error> {
        self.close_those(|_| true).await
    }

    /// Finishes the files of hours before this one.
    async fn close_before(&mut self, hour: i64) -> Result<(), Error> {
        self.close_those(|file| file.hour < hour).await
    }

    /// Finishes these files, whatever comes of one. Says what came of the first that failed. They are finished in the
    /// order of their hours, so who removes the oldest hours removes the begin of the chain.
    async fn close_those(&mut self, are_those: impl Fn(&File) -> bool) -> Result<(), Error> {
        let those = self.open.iter().filter(|(_, file)| are_those(file));
        let mut those = those.map(|(folder, file)| (file.hour, file.first, Arc::clone(folder))).collect::<Vec<_>>();
        those.sort();
        let mut all = Ok(());
        for (.., folder) in those {
            let closed = self.close(&folder).await;
            all = all.and(closed);
        }
        all
    }

    async fn close_old(&mut self, now: i64) -> Result<(), Error> {
        self.open.values().for_each(|file| file.finish.touch());
        let (bytes, lasting) = (self.files.bytes, self.files.lasting);
        self.close_those(|file| file.is_old(now, bytes, lasting)).await
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
        let writer =
            AsyncArrowWriter::try_new(Sealing::new(bytes), batch.rows.schema(), Some(properties(&batch.rows)))?;
        Ok(File { writer, finish, path, tally: Tally::default(), first, last: batch.first, hour })
    }

    async fn close(&mut self, folder: &str) -> Result<(), Error> {
        let Some(file) = self.open.remove(folder) else { return Ok(()) };
        let first = file.first;
        let closed = self.finish(folder, file).await;
        if closed.is_err() {
            self.chain.fail(first);
        }
        closed
    }

    async fn finish(&mut self, folder: &str, mut file: File) -> Result<(), Error> {
        let (open, is_last) = (self.open.values().map(|file| file.first).min(), folder == "traces");
        let of = [file.path.as_str(), &self.files.boot, &self.files.trace];
        let seal = self.chain.seal(of, &file.tally, open, is_last);
        let text = seal.text().map_err(|error| ParquetError::External(error.into()))?;
        file.writer.append_key_value_metadata(KeyValue::new(KEY.into(), text));
        let finished = file.writer.finish().await.map(|metadata| metadata.file_metadata().num_rows());
        let bytes = file.writer.bytes_written() as u64;
        if let Some(hash) = file.writer.into_inner().hash() {
            self.chain.follow(seal, hash);
        }
        let rows = finished?;
        file.finish.finish()?;
        self.written.hash = self.chain.hash();
        self.written.files += 1;
        self.written.bytes += bytes;
        if folder.starts_with("events/") {
            self.written.events += rows.unsigned_abs();
            self.written.event_bytes += bytes;
        }
        Ok(())
    }
}

/// Leaves the rows of the first row's hour. The others, if there are any. The rows must be sorted.
fn split_at_hour(batch: &mut Batch) -> Option<Batch> {
    let hour = |mono: i64| hour_of(mono.saturating_add(batch.utc));
    if hour(batch.first) == hour(batch.last) {
        return None;
    }
    let keys = batch.rows.column_by_name("mono")?.as_primitive_opt::<Int64Type>()?.values();
    let at = keys.partition_point(|key| hour(*key) == hour(batch.first));
    let (last, first) = (*keys.get(at.checked_sub(1)?)?, *keys.get(at)?);
    let rest = Batch {
        folder: Arc::clone(&batch.folder),
        rows: batch.rows.slice(at, batch.rows.num_rows() - at),
        first,
        last: batch.last,
        sorted: true,
        utc: batch.utc,
        room: None,
    };
    (batch.rows, batch.last) = (batch.rows.slice(0, at), last);
    Some(rest)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{At, Origin, Table, Value};
    use std::fs;
    use std::path::{Path, PathBuf};
    use tokio::sync::mpsc;

    const HOUR: i64 = 3_600_000_000_000;

    /// Notices with these keys, as rows of a folder.
    fn batch(folder: &str, keys: &[i64]) -> Message {
        let mut table = Table::notices(&Origin { boot: "12345678".into(), trace: "87654321".into() });
        for (row, &mono) in (0..).zip(keys) {
            let values = [Value::Text("late"), Value::Null, Value::Null, Value::Null, Value::Null, Value::Text("")];
            table.add_values(At { mono, tai: mono, tai_error: 0, row }, values);
        }
        let (first, last) = (*keys.iter().min().unwrap(), *keys.iter().max().unwrap());
        let (rows, sorted) = (table.take().unwrap(), keys.is_sorted());
        Message::Rows(Batch { folder: folder.into(), rows, first, last, sorted, utc: 0, room: None })
    }

    fn written(root: &Path, messages: Vec<Message>) -> Result<Written, Error> {
        let (to, from) = mpsc::unbounded_channel();
        messages.into_iter().for_each(|message| to.send(message).unwrap());
        drop(to);
        let files = Files {
            machine: "here".into(),
            boot: "12345678".into(),
            trace: "87654321".into(),
            bytes: 1 << 20,
            lasting: Duration::from_secs(36000),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(write(Store::Folder(root.into()), files, from))
    }

    /// Files below a folder, each with its keys.
    fn keys(folder: &Path) -> Vec<(PathBuf, Vec<i64>)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                found.extend(keys(&path));
                continue;
            }
            let file =
                parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(fs::File::open(&path).unwrap());
            let rows = file.unwrap().build().unwrap().map(Result::unwrap);
            let of = |rows: RecordBatch| rows.column(0).as_primitive::<Int64Type>().values().to_vec();
            found.push((path, rows.flat_map(of).collect()));
        }
        found.sort();
        found
    }

    #[test]
    fn rows_lie_in_the_folders_of_their_hours_although_they_come_in_one_batch() {
        let folder = tempfile::tempdir().unwrap();
        // The third is late, and of the hour before.
        written(folder.path(), vec![batch("notices", &[HOUR + 1, HOUR + 2, HOUR - 5, 3 * HOUR])]).unwrap();
        let found = keys(folder.path());
        for ((path, keys), (hour, expected)) in found.iter().zip([
            ("hour=00", &[HOUR - 5][..]),
            ("hour=01", &[HOUR + 1, HOUR + 2]),
            ("hour=03", &[3 * HOUR]),
        ]) {
            assert!(path.to_str().unwrap().contains(hour) && keys == expected, "{found:?}");
        }
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn an_end_is_there_only_if_all_else_is() {
        let messages = || vec![batch("made/a/b", &[1]), batch("made/c/d", &[2]), batch("traces", &[3])];
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), messages()).unwrap();
        assert_eq!(keys(folder.path()).len(), 3);
        // What has the first file's name is a folder, so that the file cannot have it.
        let folder = tempfile::tempdir().unwrap();
        let name = "made/a/b/machine=here/date=1970-01-01/hour=00/12345678-1-87654321-0.parquet";
        fs::create_dir_all(folder.path().join(name).join("full")).unwrap();
        assert!(written(folder.path(), messages()).unwrap_err().to_string().contains("cannot be finished"));
        // The other events are there.
        assert_eq!(keys(&folder.path().join("made/c")).len(), 1);
        assert_eq!(keys(&folder.path().join("traces")), []);
    }

    /// The seals of files below a folder.
    fn seals(folder: &Path) -> Vec<crate::seal::Seal> {
        let seal = |(path, _): (PathBuf, Vec<i64>)| {
            let bytes = fs::read(path).unwrap();
            let footer = crate::seal::footer(&bytes).unwrap();
            crate::seal::read(&bytes[footer..bytes.len() - crate::seal::TRAILER]).unwrap().0
        };
        keys(folder).into_iter().map(seal).collect()
    }

    /// Rows that could not be written are not below what later seals say of all rows that are not in a file yet.
    #[test]
    fn what_failed_is_open_for_ever() {
        let now = || Message::Now { mono: 100, floor: Some(100) };
        // A file that has no name, because a folder has it.
        let folder = tempfile::tempdir().unwrap();
        let name = "made/a/b/machine=here/date=1970-01-01/hour=00/12345678-1-87654321-0.parquet";
        fs::create_dir_all(folder.path().join(name).join("full")).unwrap();
        let messages = vec![batch("made/a/b", &[1]), batch("made/c/d", &[50]), now(), batch("traces", &[100])];
        assert!(written(folder.path(), messages).is_err());
        let [seal] = &seals(&folder.path().join("made/c"))[..] else { panic!("not one file") };
        // It has its number and is named, because nobody knows whether it is there.
        let before = seal.before.as_ref().unwrap();
        assert_eq!((seal.open, seal.number, &*before.file, before.until), (Some(1), 1, name, Some(1)));
        // A file of which some rows could not be written, and one whose folder cannot be.
        for (at, messages) in [(1, [batch("made/a/b", &[1]), wrong(2)]), (60, [now(), batch("made/a/x", &[60])])] {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("made/a")).unwrap();
            fs::write(folder.path().join("made/a/x"), "").unwrap();
            let messages = [batch("made/c/d", &[70]), now()].into_iter().chain(messages).collect();
            assert!(written(folder.path(), messages).is_err());
            let [seal] = &seals(&folder.path().join("made/c"))[..] else { panic!("not one file") };
            assert_eq!((seal.open, seal.number), (Some(at), 0));
        }
    }

    /// Rows without the columns that this writer counts.
    fn wrong(key: i64) -> Message {
        let keys: ArrayRef = Arc::new(arrow::array::Int64Array::from(vec![key]));
        Message::Rows(Batch {
            folder: "made/a/b".into(),
            rows: RecordBatch::try_from_iter([("mono", keys)]).unwrap(),
            first: key,
            last: key,
            sorted: true,
            utc: 0,
            room: None,
        })
    }

    /// Sets it at the end, also of a test that fails.
    struct Done<'a>(&'a std::sync::atomic::AtomicBool);

    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::Release);
        }
    }

    /// A file of which not all could be written never has the name of a whole one.
    #[test]
    fn a_file_that_could_not_be_written_stays_unfinished() {
        let folder = tempfile::tempdir().unwrap();
        // Rows with other columns are what this writer refuses.
        let messages = vec![batch("made/a/b", &[1]), wrong(2), batch("traces", &[3])];
        assert!(written(folder.path(), messages).is_err());
        let mut names = Vec::new();
        let mut folders = vec![folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                if entry.path().is_dir() {
                    folders.push(entry.path())
                } else {
                    names.push(entry.file_name().into_string().unwrap())
                }
            }
        }
        assert!(names.len() == 1 && names[0].contains(".parquet.open-"), "{names:?}");
    }

    /// Abandoned files are looked for while others are begun and end: none is found that had a writer.
    #[test]
    fn a_file_that_has_a_writer_never_looks_abandoned() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::Folder(folder.path().into());
        let reading = crate::clocks::Clocks::default().read().unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _done = Done(&done);
                for number in 0..2000 {
                    drop(store.create(&format!("notices/machine=here/12345678-1-{number}.parquet")).unwrap());
                    // What is dropped is abandoned: it goes before the next.
                    for entry in fs::read_dir(folder.path().join("notices/machine=here")).unwrap() {
                        fs::remove_file(entry.unwrap().path()).unwrap();
                    }
                    let held = store.create(&format!("notices/machine=here/12345678-2-{number}.parquet")).unwrap();
                    fs::remove_file(
                        folder.path().join(format!(
                            "notices/machine=here/12345678-2-{number}.parquet.open-{}",
                            std::process::id()
                        )),
                    )
                    .unwrap();
                    drop(held);
                }
            });
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                for found in super::super::unfinished::find_all(&store, "here", "12345678", &reading) {
                    assert_ne!(found.notice.from, Some(2), "{found:?}");
                }
            }
        });
    }
}
