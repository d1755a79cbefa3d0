//! A store that is too slow, on live events. Needs root.

use super::*;
use arrow::array::{AsArray, RecordBatch};
use arrow::compute::{filter, is_not_null};
use arrow::datatypes::{Int32Type, Int64Type};
use arrow::ipc::reader::StreamReader;
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use perfweave::sim::{Kernel, RingBuffer};
use perfweave::{Layout, Merge};
use perfweave_events::EventOptions;
use std::process::{Child, Command};
use tokio::sync::mpsc::UnboundedReceiver;
use writer::Message;

/// A program that makes system calls until it is dropped.
struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All rows below a folder of a store.
async fn rows(store: &dyn ObjectStore, folder: Key) -> Vec<RecordBatch> {
    let (mut folders, mut batches) = (vec![folder], Vec::new());
    while let Some(folder) = folders.pop() {
        let listed = store.list_with_delimiter(Some(&folder)).await.unwrap();
        folders.extend(listed.common_prefixes);
        for file in listed.objects {
            let bytes = store.get(&file.location).await.unwrap().bytes().await.unwrap();
            batches
                .extend(ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap().build().unwrap().map(Result::unwrap));
        }
    }
    batches
}

fn ints(batches: &[RecordBatch], name: &str) -> Vec<i64> {
    batches
        .iter()
        .flat_map(|batch| batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().values().to_vec())
        .collect()
}

/// A recording of these rings that begins, and its batches.
fn recorder(rings: &Rings) -> (Recorder, UnboundedReceiver<Message>) {
    let origin = Origin { boot: "12345678".into(), trace: "87654321".into() };
    let about = About { kernel: String::new(), events: String::new(), options: String::new(), hold: String::new() };
    let (to, messages) = mpsc::unbounded_channel();
    let passing = Passing { room: 10_000, every: SECOND, has_heartbeat: false };
    (Recorder::new(rings, &origin, about, Clocks::default(), to, passing).unwrap(), messages)
}

/// A recording of which nobody takes the batches: some rows are dropped, and events came after them.
fn with_drops() -> (Recorder, UnboundedReceiver<Message>) {
    let mut dd = Command::new("dd");
    let busy = Busy(dd.args(["if=/dev/zero", "of=/dev/null", "bs=1", "status=none"]).spawn().unwrap());
    let rings = Rings::options().tracepoint("raw_syscalls:sys_enter").pid(busy.0.id()).open().unwrap();
    let (mut recorder, messages) = recorder(&rings);
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    // The reader goes on all the same.
    while recorder.dropped == 0 {
        reader.batch(TICK).unwrap().into_iter().flatten().for_each(|event| recorder.take(&event).unwrap());
    }
    let so_far = recorder.yielded;
    while recorder.yielded == so_far {
        reader.batch(TICK).unwrap().into_iter().flatten().for_each(|event| recorder.take(&event).unwrap());
    }
    (recorder, messages)
}

/// How many rows the notices say are dropped.
fn told(notices: &[RecordBatch]) -> i64 {
    let kinds = notices.iter().flat_map(|batch| batch.column_by_name("kind").unwrap().as_string::<i32>().iter());
    let told = kinds.zip(ints(notices, "count")).filter(|(kind, _)| *kind == Some("dropped"));
    told.map(|(_, count)| count).sum()
}

#[test]
fn a_store_that_is_too_slow_costs_rows_that_are_told_and_never_stops_the_reader() {
    let (recorder, messages) = with_drops();
    let (yielded, dropped) = (recorder.yielded, recorder.dropped);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = ThrottleConfig { wait_put_per_call: Duration::from_millis(50), ..ThrottleConfig::default() };
    let memory = Arc::new(InMemory::new());
    let store = Store::Objects(Arc::new(ThrottledStore::new(Arc::clone(&memory), config)), Key::from("archive"));
    let files = Files {
        machine: "here".into(),
        boot: "12345678".into(),
        trace: "87654321".into(),
        bytes: 1 << 20,
        lasting: Duration::from_secs(600),
    };
    let writer = thread::spawn(move || runtime.block_on(writer::write(store, files, messages)));
    recorder.finish(&[]).unwrap();
    let written = writer.join().unwrap().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (events, notices) = runtime.block_on(async {
        (
            rows(&*memory, Key::from("archive/events/raw_syscalls/sys_enter")).await,
            rows(&*memory, Key::from("archive/notices")).await,
        )
    });
    assert_eq!(events.iter().map(RecordBatch::num_rows).sum::<usize>() as i64, yielded - dropped);
    assert_eq!(written.events.cast_signed(), yielded - dropped);
    let told = told(&notices);
    assert!(told > 0 && told == dropped, "{told} of {dropped}");
    let spans = ints(&notices, "from_mono").into_iter().zip(ints(&notices, "to_mono")).collect::<Vec<_>>();
    assert!(!spans.is_empty() && spans.iter().all(|(from, to)| from <= to));
    assert!(
        ints(&events, "mono").into_iter().all(|key| spans.iter().all(|(from, to)| key <= *from || key >= *to)),
        "no row is in a dropped interval"
    );
    // What was dropped is known, so the archive holds, and says that something is missing.
    let root = url::Url::parse("memory:///").unwrap();
    let verdict =
        crate::verify::at(&crate::query::Location { store: memory, root, prefix: Key::from("archive") }, None).unwrap();
    assert!(verdict.holds() && !verdict.recordings[0].is_complete(), "{verdict:?}");
    assert_eq!(verdict.recordings[0].found.dropped.cast_signed(), dropped);
}

/// Of a notice of dropped rows no CPU is known.
#[test]
fn a_stream_that_nobody_reads_costs_rows_that_are_told() {
    let (recorder, messages) = with_drops();
    let (yielded, dropped, tables) = (recorder.yielded, recorder.dropped, recorder.tables());
    recorder.finish(&[]).unwrap();
    let mut output = Vec::new();
    let written = stream::write(&mut output, "here", tables, messages).unwrap();
    assert_eq!(written.events.cast_signed(), yielded - dropped);
    let batches = StreamReader::try_new(&output[..], None).unwrap().map(Result::unwrap);
    let notices = batches.map(|batch| {
        let notices = batch.column_by_name("notices").unwrap();
        let told = filter(notices, &is_not_null(notices).unwrap()).unwrap();
        RecordBatch::from(told.as_struct())
    });
    assert_eq!(told(&notices.collect::<Vec<_>>()), dropped);
}

/// Nothing counts the losses of the second ring, so that the first one's are not all.
#[test]
fn a_count_that_is_not_exact_is_said_to_be_the_least() {
    let kernel = Kernel::new(&[0]);
    let mut rings = kernel.rings();
    let (_programs, uncounted) = RingBuffer::new(4096);
    rings.add(1, uncounted, Layout::RING_BUFFER);
    let (recorder, mut messages) = recorder(&rings);
    kernel.lose(0, 3);
    let ledger = Merge::new(rings, Order::new().key(perfweave::Key::Payload(0)).hold(Hold::None)).unwrap().ledger();
    let text = Outcome { dropped: 2, ..outcome(&ledger, &recorder, &Cure::default(), 4096) }.to_string();
    let expected = "0 events: 0 written; 2 dropped because the store was too slow; at least 3 lost (3 of them after the last event of their ring), 0 damaged; losses ";
    assert!(text.starts_with(expected) && text.contains("it takes --buffer-kib "), "{text}");
    recorder.finish(&ledger.accounts).unwrap();
    let mut told = Vec::new();
    while let Ok(message) = messages.try_recv() {
        let Message::Rows(batch) = message else { continue };
        if &*batch.folder == "notices" {
            let column = |name| batch.rows.column_by_name(name).unwrap();
            let (kinds, cpus) = (column("kind").as_string::<i32>(), column("cpu_id").as_primitive::<Int32Type>());
            told.extend(kinds.iter().zip(cpus).map(|(kind, cpu)| (kind.unwrap().to_owned(), cpu)));
        }
    }
    assert_eq!(told, [("lost".to_owned(), Some(0)), ("uncounted".to_owned(), Some(1))]);
}

#[test]
fn places_are_folders_or_stores_and_else_an_error_says_why() {
    assert!(matches!(Store::parse("/tmp/a b"), Ok(Store::Folder(path)) if path == Path::new("/tmp/a b")));
    assert!(matches!(Store::parse("file:///tmp/a%20b"), Ok(Store::Folder(path)) if path == Path::new("/tmp/a b")));
    assert!(matches!(Store::parse("memory:///prefix"), Ok(Store::Objects(_, prefix)) if prefix == Key::from("prefix")));
    let error = Store::parse("gopher://host/").unwrap_err().to_string();
    assert!(error.starts_with("gopher://host/ is no folder and no URL of a store: "), "{error}");
}

#[test]
fn machines_have_plain_names() {
    assert!(["a", "3d12-x_Y"].into_iter().all(|name| machine_name(name).is_ok()));
    assert!(["", "a/b", "..", "a=b"].into_iter().all(|name| machine_name(name).is_err()));
}
