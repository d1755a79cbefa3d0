//! Archives that are not what was recorded.

use super::*;
use crate::record::Store;
use crate::record::writer::{self, Batch, Files as Names, Message};
use crate::schema::{At, Origin, Table, Value, repeated};
use crate::seal::{Account, KEY, close};
use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Int32Array, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray,
    UInt32Array, new_null_array,
};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Int64Type};
use blake3::Hasher;
use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use std::time::Duration;
use tokio::sync::mpsc;

const HOUR: i64 = 3_600_000_000_000;
const SECOND: i64 = 1_000_000_000;

/// A recording that is being made up, an event each millisecond, over two tables and two CPUs.
struct Made {
    origin: Origin,
    messages: Vec<Message>,
    key: i64,
    row: i64,
    cpus: [[u64; 2]; 2],
    lost: u64,
}

impl Made {
    fn new(trace: &str, begin: i64) -> Self {
        let origin = Origin { boot: "12345678-b".into(), trace: trace.into() };
        let mut this = Self { origin, messages: Vec::new(), key: begin, row: 0, cpus: [[0; 2]; 2], lost: 0 };
        this.trace("begin");
        this
    }

    fn rows(&mut self, folder: &str, rows: RecordBatch) {
        let keys = rows.column(0).as_primitive::<Int64Type>().values();
        let (first, last, sorted) = (*keys.iter().min().unwrap(), *keys.iter().max().unwrap(), keys.is_sorted());
        self.messages.push(Message::Rows(Batch {
            folder: folder.into(),
            rows,
            first,
            last,
            sorted,
            utc: 0,
            room: None,
        }));
    }

    fn at(&mut self) -> At {
        self.row += 1;
        At { mono: self.key, tai: self.key, tai_error: 0, row: self.row - 1 }
    }

    /// So many events by turns: every second of the first table.
    fn events(&mut self, count: i64) {
        let rows = (0..count).map(|event| (self.key + event * 1_000_000, self.row + event, (self.row + event) % 3 % 2));
        let rows = rows.collect::<Vec<_>>();
        for (table, name) in ["x", "y"].into_iter().enumerate() {
            self.table(name, rows.iter().copied().filter(|(_, row, _)| row % 2 == table as i64).collect(), false);
        }
        (self.key, self.row) = (self.key + count * 1_000_000, self.row + count);
    }

    /// An event that comes so much too late.
    fn late(&mut self, by: i64) {
        self.table("x", vec![(self.key - by, self.row, 1)], true);
        self.row += 1;
    }

    /// Rows of a table of events: key, place, CPU.
    fn table(&mut self, name: &str, rows: Vec<(i64, i64, i64)>, late: bool) {
        let [keys, places, cpus] =
            [0, 1, 2].map(|at| rows.iter().map(|row| [row.0, row.1, row.2][at]).collect::<Vec<_>>());
        cpus.iter().for_each(|cpu| self.cpus[*cpu as usize][0] += 1);
        let table = Table::event("made", name, None, &self.origin);
        let column = |field: &arrow::datatypes::FieldRef| -> ArrayRef {
            let text = if field.name() == "boot" { &self.origin.boot } else { &self.origin.trace };
            match (field.name().as_str(), field.data_type()) {
                ("row", _) => Arc::new(Int64Array::from(places.clone())),
                ("cpu_id", _) => Arc::new(Int32Array::from_iter_values(cpus.iter().map(|cpu| *cpu as i32))),
                ("proven", _) => Arc::new(BooleanArray::from(vec![!late; keys.len()])),
                ("late", _) => Arc::new(BooleanArray::from(vec![late; keys.len()])),
                (_, DataType::Dictionary(..)) => {
                    repeated(&Arc::new(StringArray::from(vec![text.as_str()])), keys.len()).unwrap()
                }
                (_, DataType::Timestamp(..)) => Arc::new(TimestampNanosecondArray::from(keys.clone())),
                (_, DataType::Int64) => Arc::new(Int64Array::from(keys.clone())),
                (_, other) => new_null_array(other, keys.len()),
            }
        };
        let columns = table.schema().fields().iter().map(column).collect();
        if !keys.is_empty() {
            self.rows(&table.folder, RecordBatch::try_new(Arc::clone(table.schema()), columns).unwrap());
        }
    }

    fn notice(&mut self, kind: &str, cpu: Value<'_>, count: i64) {
        let (at, mut table) = (self.at(), Table::notices(&self.origin));
        table.add_values(at, [Value::Text(kind), cpu, Value::Int(count), Value::Null, Value::Null, Value::Text("")]);
        self.rows("notices", table.take().unwrap());
    }

    fn lose(&mut self, count: u64) {
        self.lost += count;
        self.notice("lost", Value::Int(1), count.cast_signed());
    }

    /// Events of a CPU that are dropped.
    fn drop(&mut self, cpu: usize, count: u64) {
        self.row += count.cast_signed();
        self.cpus[cpu] = [self.cpus[cpu][0] + count, self.cpus[cpu][1] + count];
        self.notice("dropped", Value::Null, count.cast_signed());
    }

    fn tick(&mut self) {
        let (at, mut table) = (At { row: 0, ..self.at() }, Table::clocks(&self.origin));
        self.row -= 1;
        table.add_values(at, [0; 6].map(Value::Int).into_iter().chain([Value::Truth(true), Value::Text("")]));
        self.rows("clocks", table.take().unwrap());
        self.messages.push(Message::Now { mono: self.key, floor: Some(self.key) });
    }

    fn trace(&mut self, what: &str) {
        let (at, mut table) = (At { mono: self.key, tai: self.key, tai_error: 0, row: 0 }, Table::traces(&self.origin));
        table.add_values(at, [what, "", "", "", ""].map(Value::Text).into_iter().chain([Value::Null; 3]));
        self.rows("traces", table.take().unwrap());
    }

    fn end(&mut self, exact: bool) {
        let account = |(cpu, [taken, dropped]): (u32, [u64; 2])| {
            let lost = if cpu == 1 { self.lost } else { 0 };
            Account { cpu: Some(cpu), taken, dropped, yielded: taken + 1, lost, exact, ..Account::default() }
        };
        let accounts = (0..).zip(self.cpus).map(account).collect();
        self.messages.push(Message::End(End { places: self.row.cast_unsigned(), accounts }));
        self.trace("end");
    }

    /// Writes it. Gives the hash.
    fn write(self, archive: &Archive, machine: &str) -> Hash {
        let (to, from) = mpsc::unbounded_channel();
        self.messages.into_iter().for_each(|message| to.send(message).unwrap());
        drop(to);
        let Origin { boot, trace } = self.origin;
        let lasting = Duration::from_millis(40);
        let files = Names { machine: machine.into(), boot, trace, bytes: 1 << 20, lasting };
        let store = Store::Objects(Arc::clone(&archive.0) as Arc<dyn ObjectStore>, Path::default());
        block_on(writer::write(store, files, from)).unwrap().hash.unwrap()
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// An archive in memory.
#[derive(Debug, Clone, Default)]
struct Archive(Arc<InMemory>);

/// A file by its name, and its bytes.
type File = (String, Bytes);

impl Archive {
    fn of(files: &[File]) -> Self {
        let this = Self::default();
        block_on(async {
            for (name, bytes) in files {
                this.0.put(&Path::from(name.as_str()), bytes.clone().into()).await.unwrap();
            }
        });
        this
    }

    /// All files, in the order of their seals.
    fn files(&self) -> Vec<File> {
        let mut files = block_on(async {
            let (mut listed, mut files) = (self.0.list(None), Vec::new());
            while let Some(file) = listed.next().await {
                let path = file.unwrap().location;
                files.push((path.to_string(), self.0.get(&path).await.unwrap().bytes().await.unwrap()));
            }
            files
        });
        files.sort_by_key(|(_, bytes)| (seal_of(bytes).trace, seal_of(bytes).number));
        files
    }

    fn verify(&self) -> Verdict {
        let root = url::Url::parse("memory:///").unwrap();
        at(&Location { store: Arc::clone(&self.0) as Arc<dyn ObjectStore>, root, prefix: Path::default() }, None)
            .unwrap()
    }
}

fn seal_of(bytes: &[u8]) -> crate::seal::Seal {
    let end = bytes.len() - crate::seal::TRAILER;
    crate::seal::read(&bytes[crate::seal::footer(bytes).unwrap()..end]).unwrap().0
}

/// A recording with losses, of some 15 files.
fn made(archive: &Archive, trace: &str, begin: i64) -> Hash {
    made_with(archive, trace, begin, -1)
}

/// The same, with a late event after this round.
fn made_with(archive: &Archive, trace: &str, begin: i64, late_after: i32) -> Hash {
    let mut made = Made::new(trace, begin);
    for round in 0..4 {
        made.events(40);
        if round % 2 == 1 {
            made.lose(3);
        }
        made.tick();
        if round == late_after {
            made.late(70_000_000);
            made.tick();
        }
    }
    made.end(true);
    made.write(archive, "here")
}

/// What it prints.
fn words(verdict: &Verdict) -> String {
    let (options, mut text) = (Options { url: "x".into(), expect: Vec::new(), json: false }, Vec::new());
    print::text(&options, verdict, &[], &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn kinds(doubts: &[Doubt]) -> Vec<&DoubtKind> {
    doubts.iter().map(|doubt| &doubt.kind).collect()
}

#[test]
fn a_recording_holds_and_says_what_it_has() {
    let archive = Archive::default();
    let hash = made(&archive, "87654321-a", 0);
    let files = archive.files();
    assert!(files.len() > 10, "{}", files.len());
    let verdict = archive.verify();
    let [recording] = &verdict.recordings[..] else { panic!("{verdict:?}") };
    assert!(verdict.holds() && recording.hash == Some(hash) && recording.seals == files.len() as u64, "{verdict:?}");
    let Sums { events, proven, lost, frontier, .. } = recording.found;
    assert_eq!((events, proven, lost, frontier), (160, 160, 6, Some(159 * 1_000_000)));
    assert!(recording.found == recording.claims && recording.begins.is_none());
    // Something was lost, so it never says that nothing is missing.
    assert!(!recording.is_complete());
    // Its places: 160 events and 2 notices.
    assert_eq!(recording.end.as_ref().unwrap().places, 162);
}

/// "Nothing is missing" takes an exact and balanced ledger, no dropped rows, all files, and that they hold.
#[test]
fn nothing_is_missing_only_where_that_is_certain() {
    let complete = |prepare: &dyn Fn(&mut Made), exact: bool| {
        let (archive, mut made) = (Archive::default(), Made::new("87654321-a", 0));
        made.events(100);
        prepare(&mut made);
        made.tick();
        made.events(100);
        made.end(exact);
        made.write(&archive, "here");
        let verdict = archive.verify();
        assert!(verdict.holds(), "{verdict:?}");
        let says = words(&verdict).contains("nothing is missing");
        assert_eq!(says, verdict.recordings[0].is_complete());
        (says, archive)
    };
    let (is_complete, archive) = complete(&|_| {}, true);
    assert!(is_complete);
    assert!(!complete(&|_| {}, false).0, "not all losses were counted");
    assert!(!complete(&|made| made.lose(1), true).0);
    assert!(!complete(&|made| made.drop(1, 7), true).0);
    // Without its first files.
    let verdict = Archive::of(&archive.files()[3..]).verify();
    assert!(verdict.holds() && !verdict.recordings[0].is_complete(), "{verdict:?}");
    assert!(words(&verdict).contains("; no row of the files from number 3 on was changed, added, moved or removed"));
}

/// What a recorder counts wrongly shows, although nobody changed a file.
#[test]
fn rows_are_compared_with_what_the_recorder_counted() {
    type Lie = fn(&mut Made);
    let lies: [Lie; 8] = [
        |made| made.cpus[0][0] += 1,
        |made| made.cpus.swap(0, 1),
        |made| made.lost -= 1,
        |made| made.lost += 1,
        |made| made.notice("gap", Value::Null, 2),
        |made| made.notice("dark begins", Value::Int(1), 0),
        // A place that nobody took, and notices of rows that were not dropped.
        |made| made.row += 1,
        |made| made.notice("dropped", Value::Null, 2),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let (archive, mut made) = (Archive::default(), Made::new("87654321-a", 0));
        made.events(100);
        made.lose(2);
        made.tick();
        lie(&mut made);
        made.end(true);
        made.write(&archive, "here");
        let verdict = archive.verify();
        assert_eq!(kinds(&verdict.recordings[0].doubts), [&DoubtKind::Counts], "{number}");
    }
    // Rows of two tables whose keys are not in the order of their places.
    let (archive, mut made) = (Archive::default(), Made::new("87654321-a", SECOND));
    made.events(1);
    made.row += 8190;
    made.key -= 1_500_000;
    made.events(1);
    made.cpus[0] = [made.cpus[0][0] + 8190, 8190];
    made.notice("dropped", Value::Null, 8190);
    made.end(true);
    made.write(&archive, "here");
    assert_eq!(kinds(&archive.verify().recordings[0].doubts), [&DoubtKind::Counts]);
}

/// Hours end for all tables at once, so the oldest hours are the begin of the chain, also where some table is seldom
/// written.
#[test]
fn old_hours_may_be_removed_and_the_begin_is_named() {
    let (archive, mut made) = (Archive::default(), Made::new("87654321-a", HOUR - 10_000_000));
    // Of the second table there is one in the old hour, and then none for long.
    made.events(2);
    made.key = HOUR;
    for _ in 0..4 {
        made.events(1);
        made.lose(1);
        made.key += 25_000_000;
    }
    made.tick();
    made.end(true);
    made.write(&archive, "here");
    let files = archive.files();
    let is_old = |(name, _): &&File| name.contains("hour=00");
    let old = files.iter().filter(is_old).count();
    assert!(old >= 2 && files.iter().take(old).all(|file| is_old(&file)), "{files:?}");
    let verdict = Archive::of(&files[old..]).verify();
    let [recording] = &verdict.recordings[..] else { panic!("{verdict:?}") };
    let (number, until) = recording.begins.unwrap();
    assert!(verdict.holds() && number == old as u64, "{verdict:?}");
    // That is the last key of the hour.
    let newest = files.iter().take(old).filter_map(|(_, bytes)| seal_of(bytes).here.until).max();
    assert!(until == newest && until < Some(HOUR) && until.is_some(), "{until:?}");
}

#[test]
fn a_recording_that_was_killed_has_no_end_and_what_is_there_holds() {
    let (archive, mut made) = (Archive::default(), Made::new("87654321-a", 0));
    for _ in 0..4 {
        made.events(40);
        made.tick();
    }
    made.write(&archive, "here");
    // Its last file, which was open.
    let mut files = archive.files();
    let (last, _) = files.pop().unwrap();
    let verdict = Archive::of(&files).verify();
    let [doubt] = &verdict.recordings[0].doubts[..] else { panic!("{verdict:?}") };
    let floor = seal_of(&files.last().unwrap().1).open;
    assert!(doubt.kind == DoubtKind::Unfinished && doubt.times == [floor, None] && floor.is_some(), "{doubt:?}");
    // It is not taken for a file.
    files.push((format!("{last}.open-77"), Bytes::from_static(b"half")));
    assert_eq!(Archive::of(&files).verify(), Verdict { open: 1, ..verdict });
}

/// Several machines and recordings share a folder; files of one do not stand for those of another.
#[test]
fn each_recording_of_a_folder_is_checked_by_itself() {
    let archive = Archive::default();
    let hashes = [("87654321-a", "one"), ("11111111-a", "one"), ("22222222-a", "two")].map(|(trace, machine)| {
        let mut made = Made::new(trace, 0);
        made.events(50);
        made.tick();
        made.end(true);
        made.write(&archive, machine)
    });
    let verdict = archive.verify();
    let of = |recording: &Recording| (recording.machine.clone(), recording.hash.unwrap());
    let found = verdict.recordings.iter().map(of).collect::<Vec<_>>();
    assert!(verdict.holds(), "{verdict:?}");
    assert_eq!(found, [("one".into(), hashes[1]), ("one".into(), hashes[0]), ("two".into(), hashes[2])]);
    // A file without a seal, and one that is cut off.
    let mut files = archive.files();
    let rows = rows_of(&files[0].1);
    files.push(("events/a/b/machine=one/date=1970-01-01/hour=00/more.parquet".into(), parquet(&rows, &[])));
    files.push(("events/a/b/machine=one/date=1970-01-01/hour=00/short.parquet".into(), files[0].1.slice(..40)));
    let verdict = Archive::of(&files).verify();
    assert_eq!(kinds(&verdict.doubts), [&DoubtKind::Unsealed, &DoubtKind::Damage]);
    assert!(!verdict.holds() && verdict.recordings.iter().all(Recording::holds));
    assert!(!Archive::default().verify().holds(), "nothing vouches for it");
}

/// Engines read the last text of a name, or the first. A file with two vouches for nothing.
#[test]
fn a_file_with_two_seals_has_none() {
    let archive = Archive::default();
    made(&archive, "87654321-a", 0);
    let mut files = archive.files();
    let (rows, text) = (rows_of(&files[4].1), text_of(&files[4].1));
    let mut bytes = parquet(&rows, &[&text, &text]).to_vec();
    close(&mut bytes, &mut Hasher::new()).unwrap();
    files[4].1 = bytes.into();
    let verdict = Archive::of(&files).verify();
    assert!(kinds(&verdict.recordings[0].doubts).contains(&&DoubtKind::Unsealed), "{verdict:?}");
}

/// What a footer says of Arrow types is none of the rows, so it is not read, whatever it is.
#[test]
fn arrow_types_of_a_footer_are_not_believed() {
    let archive = Archive::default();
    made(&archive, "87654321-a", 0);
    let (name, plain) = archive.files().into_iter().find(|(name, _)| name.starts_with("notices")).unwrap();
    let begin = plain.windows(12).rposition(|bytes| bytes == b"ARROW:schema").unwrap() + 12;
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
    let begin = begin + plain[begin..].windows(99).position(|bytes| bytes.iter().all(is_digit)).unwrap();
    let len = plain[begin..].iter().take_while(|byte| is_digit(byte)).count();
    let mut tamper = Tamper { state: 0x9e37_79b9_7f4a_7c15 };
    for number in 0..500 {
        let mut bytes = plain.to_vec();
        (0..4).for_each(|_| bytes[begin + tamper.below(len)] = b"AB/z8"[tamper.below(5)]);
        close(&mut bytes, &mut Hasher::new()).unwrap();
        let verdict = Archive::of(&[(name.clone(), bytes.into())]).verify();
        let [recording] = &verdict.recordings[..] else { panic!("{number}: {verdict:?}") };
        assert_eq!((kinds(&recording.doubts), recording.found.lost > 0), (vec![&DoubtKind::Unfinished], true));
    }
}

/// A few bytes may stand for many rows. Those that no recorder writes are not unpacked.
#[test]
fn rows_beyond_what_a_recorder_writes_are_not_read() {
    let archive = Archive::default();
    made(&archive, "87654321-a", 0);
    let files = archive.files();
    let of = |table: &str| {
        let (name, bytes) = files.iter().find(|(name, _)| name.starts_with(table)).unwrap();
        (name.clone(), rows_of(bytes), seal_of(bytes))
    };
    // Gives the doubts, and how many rows were read.
    let verify = |name: &str, rows: &RecordBatch, seal: &crate::seal::Seal| {
        let mut bytes = parquet(rows, &[&seal.text().unwrap()]).to_vec();
        close(&mut bytes, &mut Hasher::new()).unwrap();
        let verdict = Archive::of(&[(name.to_owned(), bytes.into())]).verify();
        (verdict.recordings[0].doubts[0].kind.clone(), verdict.recordings[0].found.rows)
    };
    let (name, one, mut seal) = of("clocks");
    let rows = |count: usize| take_record_batch(&one, &UInt32Array::from(vec![0; count])).unwrap();
    assert_eq!(verify(&name, &rows(2), &seal), (DoubtKind::Counts, 0), "its seal has one row");
    (seal.here.rows, seal.sums.rows) = (writer::GROUP as u64, seal.sums.rows + writer::GROUP as u64 - 1);
    assert_eq!(verify(&name, &rows(writer::GROUP), &seal), (DoubtKind::Unfinished, writer::GROUP as u64));
    (seal.here.rows, seal.sums.rows) = (seal.here.rows + 1, seal.sums.rows + 1);
    assert_eq!(verify(&name, &rows(writer::GROUP + 1), &seal), (DoubtKind::Uncounted, 0));
    // One long text is some KB when it is packed.
    let (name, rows, seal) = of("notices");
    let kind = rows.schema().index_of("kind").unwrap();
    let with = |mib: usize| {
        let mut columns = rows.columns().to_vec();
        columns[kind] = Arc::new(StringArray::from(vec!["a".repeat(mib << 20); rows.num_rows()]));
        verify(&name, &RecordBatch::try_new(rows.schema(), columns).unwrap(), &seal)
    };
    assert_eq!((with(1).1, with(65)), (1, (DoubtKind::Uncounted, 0)));
}

/// Readers of Parquet go as deep as a schema says.
#[test]
fn a_deep_schema_is_not_read() {
    let archive = Archive::default();
    made(&archive, "87654321-a", 0);
    let (name, bytes) = archive.files().swap_remove(4);
    let text = seal_of(&bytes).text().unwrap();
    let mut end = vec![0x15, 2, 0x19, 0xfc, 0xff, 0xff, 0x0f];
    (1..1 << 18).for_each(|_| end.extend([0x35, 2, 0x18, 1, b'a', 0x15, 2, 0]));
    end.extend([0x16, 0, 0x19, 0x0c, 0x19, 0x1c, 0x18, KEY.len() as u8]);
    end.extend(
        [KEY.as_bytes(), &[0x18, text.len() as u8 | 0x80, (text.len() >> 7) as u8], text.as_bytes(), &[0, 0]].concat(),
    );
    let len = (end.len() as u32).to_le_bytes();
    let mut bytes = [&b"PAR1"[..], &end, &len, b"PAR1"].concat();
    close(&mut bytes, &mut Hasher::new()).unwrap();
    let verdict = Archive::of(&[(name, bytes.into())]).verify();
    assert_eq!(kinds(&verdict.recordings[0].doubts)[..1], [&DoubtKind::Uncounted]);
}

#[test]
fn what_cannot_be_read_is_a_doubt_and_the_rest_is_checked() {
    // A loop of links.
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(".", folder.path().join("again")).unwrap();
    std::fs::write(folder.path().join("none.parquet"), "none").unwrap();
    let verdict = verify(folder.path().to_str().unwrap()).unwrap();
    assert_eq!((kinds(&verdict.doubts).len(), verdict.holds()), (2, false), "{verdict:?}");
    let has = |kind| verdict.doubts.iter().any(|doubt| doubt.kind == kind);
    assert!(has(DoubtKind::Uncounted) && has(DoubtKind::Damage), "{verdict:?}");
    // A file that is removed after it was found.
    let archive = Archive::default();
    made(&archive, "87654321-a", 0);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let files = Files { store: Arc::clone(&archive.0) as Arc<dyn ObjectStore>, runtime };
    let mut check = Check::new(["here", "12345678-b", "87654321-a"].map(String::from), false);
    for (number, (name, bytes)) in archive.files().into_iter().enumerate() {
        let place =
            Place { number: number as u64, is_there: true, path: name.as_str().into(), name, len: bytes.len() as u64 };
        if number == 4 {
            block_on(archive.0.delete(&place.path)).unwrap();
        }
        check.file(&files, &place).unwrap();
    }
    assert_eq!(kinds(&check.finish().doubts)[..1], [&DoubtKind::Uncounted]);
}

#[test]
fn all_notices_are_told_however_many_they_are() {
    let found = Sums { missing: u64::MAX, damaged: 1, ..Sums::default() };
    let verdict = Verdict { recordings: vec![Recording { found, ..Recording::default() }], ..Verdict::default() };
    let said = words(&verdict);
    assert!(
        said.contains("told by notices: 18446744073709551615 missing numbers; 1 notices of damage, 0 of CPUs"),
        "{said}"
    );
    // Recorders of before wrote these.
    let found = Sums { releases: 2, ..Sums::default() };
    let verdict = Verdict { recordings: vec![Recording { found, ..Recording::default() }], ..Verdict::default() };
    assert!(words(&verdict).contains("any more, 2 of events that left before their order was proven"));
}

fn rows_of(bytes: &Bytes) -> RecordBatch {
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).unwrap();
    let schema = Arc::clone(builder.schema());
    let rows = builder.build().unwrap().map(Result::unwrap).collect::<Vec<_>>();
    concat_batches(&schema, &rows).unwrap()
}

/// The text of its seal.
fn text_of(bytes: &Bytes) -> String {
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).unwrap();
    let pairs = builder.metadata().file_metadata().key_value_metadata().unwrap();
    pairs.iter().find(|pair| pair.key == KEY).and_then(|pair| pair.value.clone()).unwrap()
}

/// A file with these rows and seals.
fn parquet(rows: &RecordBatch, texts: &[&str]) -> Bytes {
    // What the schema says of the file that the rows are from is not said again.
    let schema = Arc::new(arrow::datatypes::Schema::new(rows.schema().fields().clone()));
    let rows = RecordBatch::try_new(Arc::clone(&schema), rows.columns().to_vec()).unwrap();
    let mut bytes = Vec::new();
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let mut writer = ArrowWriter::try_new(&mut bytes, schema, Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    texts.iter().for_each(|text| writer.append_key_value_metadata(KeyValue::new(KEY.into(), text.to_string())));
    writer.close().unwrap();
    bytes.into()
}

/// Whatever is done to an archive, without a choice of its own.
struct Tamper {
    state: u64,
}

impl Tamper {
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Changes the files in one of so many ways: the first 8 do not look into them. `others` are those of another
    /// recording with the same shape.
    fn tamper(&mut self, ways: usize, files: &mut Vec<File>, others: &[File]) {
        let (one, other) = (self.below(files.len()), self.below(files.len()));
        match self.below(ways) {
            0 | 1 => drop(files.remove(one)),
            2 => {
                let bytes = files[one].1.clone();
                files[one].1 = std::mem::replace(&mut files[other].1, bytes);
            }
            // Renamed: in its folder, to another machine, to another table.
            3 => files[one].0 = files[one].0.replace(".parquet", "0.parquet"),
            4 => files[one].0 = files[one].0.replace("machine=here", "machine=there"),
            5 => files[one].0 = files[one].0.replacen('/', "/more/", 1),
            // Added: a copy, or a file of another recording.
            6 => files.push((files[one].0.replace(".parquet", "-copy.parquet"), files[one].1.clone())),
            7 => files[one].1 = others[self.below(others.len())].1.clone(),
            8 | 9 => self.rewrite(&mut files[one].1),
            // The rows are others, and the file is sealed anew.
            10 => {
                self.rewrite(&mut files[one].1);
                let mut bytes = files[one].1.to_vec();
                close(&mut bytes, &mut Hasher::new()).unwrap();
                files[one].1 = bytes.into();
            }
            _ => self.bytes(&mut files[one].1),
        }
    }

    /// Changes bytes.
    fn bytes(&mut self, file: &mut Bytes) {
        let mut bytes = file.to_vec();
        let at = match self.below(3) {
            // In the footer, where the seal is.
            0 => bytes.len() - 1 - self.below(bytes.len().min(1500)),
            _ => self.below(bytes.len()),
        };
        let len = (1 + self.below(40)).min(bytes.len() - at);
        match self.below(6) {
            0 => bytes[at] = self.next() as u8,
            1 => bytes[at] ^= 1 << self.below(8),
            2 => drop(bytes.drain(at..at + len)),
            3 => {
                let new: Vec<u8> = (0..len).map(|_| self.next() as u8).collect();
                drop(bytes.splice(at..at, new));
            }
            4 => bytes.truncate(at),
            _ => {
                let piece: Vec<u8> = bytes.drain(at..at + len).collect();
                let to = self.below(bytes.len() + 1);
                drop(bytes.splice(to..to, piece));
            }
        }
        *file = bytes.into();
    }

    /// Writes the rows of a file anew, with one that is removed, repeated, moved or changed, and the seal that it had.
    fn rewrite(&mut self, file: &mut Bytes) {
        let (rows, text) = (rows_of(file), text_of(file));
        let mut order = (0..rows.num_rows() as u32).collect::<Vec<_>>();
        let (one, other) = (self.below(order.len()), self.below(order.len()));
        match self.below(4) {
            0 => drop(order.remove(one)),
            1 => order.insert(other, one as u32),
            2 => order.swap(one, other),
            _ => {}
        }
        let mut rows = take_record_batch(&rows, &UInt32Array::from(order)).unwrap();
        if self.below(2) == 0 && rows.num_rows() > 0 {
            let keys = rows.column(0).as_primitive::<Int64Type>().values();
            let mut keys = keys.to_vec();
            let at = self.below(keys.len());
            keys[at] += 1 + self.below(1000) as i64;
            let mut columns = rows.columns().to_vec();
            columns[0] = Arc::new(Int64Array::from(keys));
            rows = RecordBatch::try_new(rows.schema(), columns).unwrap();
        }
        *file = parquet(&rows, &[&text]);
    }
}

/// The keys of files that are not what and where they were.
fn changed<'a>(was: &'a [File], is: &'a [File]) -> impl Iterator<Item = [i64; 2]> + 'a {
    let gone = was.iter().filter(move |file| !is.contains(file));
    gone.filter_map(|(_, bytes)| {
        let here = seal_of(bytes).here;
        Some([here.from?, here.until?])
    })
}

/// Whatever is done to an archive, it is found, and the times are among those that nothing vouches for.
/// `QUICKCHECK_TESTS` sets how often it is tried.
#[test]
fn every_tampering_is_found_where_it_was_done() {
    every_tampering_is_found(-1);
}

/// Late rows have smaller keys than seals say of rows that come.
#[test]
fn every_tampering_with_late_rows_is_found_where_it_was_done() {
    every_tampering_is_found(1);
}

fn every_tampering_is_found(late_after: i32) {
    let tests = std::env::var("QUICKCHECK_TESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000);
    let [archive, another] = [Archive::default(), Archive::default()];
    let hash = made_with(&archive, "87654321-a", 5 * SECOND, late_after);
    made_with(&another, "11111111-a", 5 * SECOND, late_after);
    let (plain, others) = (archive.files(), another.files());
    let mut tamper = Tamper { state: 0x9e37_79b9_7f4a_7c15 };
    let (mut same, mut begins, mut by_hash) = (0, 0, 0);
    for number in 0..tests {
        let seed = tamper.state;
        let mut files = plain.clone();
        tamper.tamper(14, &mut files, &others);
        if tamper.below(8) == 0 {
            tamper.tamper(8, &mut files, &others);
        }
        if files.len() == plain.len() && plain.iter().all(|file| files.contains(file)) {
            same += 1;
            continue;
        }
        let found = Archive::of(&files).verify();
        let own = ["here", "12345678-b", "87654321-a"];
        let is_own = |of: &&Recording| [&*of.machine, &*of.boot, &*of.trace] == own;
        let of = found.recordings.iter().find(is_own);
        let first = of.and_then(|recording| recording.begins);
        if found.holds() {
            // The hash tells of a last file that was sealed anew, and the begin that the first files are not there.
            let is_other = of.is_none_or(|recording| recording.hash != Some(hash));
            assert!(is_other || first.is_some(), "{number}: {seed:x} was not found: {found:?}");
            begins += usize::from(first.is_some());
            by_hash += usize::from(first.is_none());
            if is_other {
                continue;
            }
        }
        let doubts = of.iter().flat_map(|recording| &recording.doubts);
        let ranges = doubts.map(|doubt| [doubt.times[0].unwrap_or(i64::MIN), doubt.times[1].unwrap_or(i64::MAX)]);
        let begin = first.map(|(_, until)| [i64::MIN, until.unwrap_or(i64::MAX)]);
        let ranges = ranges.chain(begin).collect::<Vec<_>>();
        for [from, until] in changed(&plain, &files) {
            let is_named = ranges.iter().any(|range| range[0] <= from && until <= range[1]);
            assert!(is_named, "{number}: {seed:x}: {from} to {until} is not named: {found:?}");
        }
    }
    eprintln!("{tests} tamperings: {same} changed nothing, {begins} removed the begin, {by_hash} only the hash tells");
    assert!(
        same < 10 + tests / 20 && begins < 10 + tests / 20 && by_hash < 10 + tests / 20,
        "{same}, {begins}, {by_hash}"
    );
}
