//! `record --arrow-stream` on live events of this kernel. Needs root, as recording does.

#[path = "../examples/merge.rs"]
mod merge;

use arrow::array::{Array, AsArray, RecordBatch, StructArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type, Int64Type, TimestampNanosecondType};
use arrow::ipc::reader::StreamReader;
use perfweave_archive::query::FRONTIER;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

fn start(machine: &str, events: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perfweave-archive"));
    command.args(["record", "--arrow-stream", "--machine", machine]);
    command.args(events.iter().flat_map(|event| ["-e", event]));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn interrupt(pid: u32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), nix::sys::signal::SIGINT).unwrap();
}

/// A program that runs and ends. Its number.
fn run_true() -> i32 {
    let mut child = Command::new("/bin/true").spawn().unwrap();
    child.wait().unwrap();
    child.id().cast_signed()
}

fn times(batch: &RecordBatch, column: &str) -> Vec<i64> {
    batch.column_by_name(column).unwrap().as_primitive::<TimestampNanosecondType>().values().to_vec()
}

fn ints(batch: &RecordBatch, column: &str) -> Vec<i64> {
    batch.column_by_name(column).unwrap().as_primitive::<Int64Type>().values().to_vec()
}

/// The rows of a table.
fn of_table<'a>(batch: &'a RecordBatch, table: &str) -> (&'a StructArray, Vec<usize>) {
    let column = batch.column_by_name(table).unwrap_or_else(|| panic!("{:?}", batch.schema())).as_struct();
    (column, (0..batch.num_rows()).filter(|row| column.is_valid(*row)).collect())
}

/// Where a thread is in the rows of a table.
fn place_of(batch: &RecordBatch, table: &str, pid: i32) -> Option<i64> {
    let (column, rows) = of_table(batch, table);
    let pids = column.column_by_name("pid").unwrap().as_primitive::<Int32Type>();
    rows.into_iter().find(|row| pids.value(*row) == pid).map(|row| ints(batch, "row")[row])
}

/// A stream whose batches keep what they promise.
struct Checked {
    reader: StreamReader<ChildStdout>,
    last: (i64, i64),
}

impl Checked {
    fn new(child: &mut Child) -> Self {
        let reader = StreamReader::try_new(child.stdout.take().unwrap(), None).unwrap();
        Self { reader, last: (i64::MIN, i64::MIN) }
    }

    fn next(&mut self) -> Option<RecordBatch> {
        let batch = self.reader.next()?.unwrap();
        let (tai, rows, frontier) = (times(&batch, "tai"), ints(&batch, "row"), times(&batch, FRONTIER));
        let (latest, row) = self.last;
        assert!(tai.is_sorted() && tai[0] >= latest, "{tai:?} after {latest}");
        assert!(rows.is_sorted_by(|one, next| one < next) && rows[0] > row, "{rows:?} after {row}");
        assert!(frontier.iter().all(|frontier| Some(frontier) == tai.last()), "{frontier:?} {tai:?}");
        assert!(ints(&batch, "tai_error").into_iter().all(|error| error > 0));
        let machines = cast(batch.column_by_name("machine").unwrap(), &DataType::Utf8).unwrap();
        assert!(machines.as_string::<i32>().iter().all(|machine| machine == Some("here")));
        // Each row is of one table.
        let tables = ["sched.sched_process_exec", "sched.sched_process_exit", "notices"];
        let mut all = tables.iter().flat_map(|table| of_table(&batch, table).1).collect::<Vec<_>>();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..batch.num_rows()));
        self.last = (*tai.last().unwrap(), *rows.last().unwrap());
        Some(batch)
    }
}

#[test]
fn a_stream_has_all_events_in_order_and_goes_on_while_nothing_happens() {
    let mut child = start("here", &["sched:sched_process_exec", "sched:sched_process_exit"]);
    let mut stream = Checked::new(&mut child);
    let mut kinds = Vec::new();
    let mut take_notices = |batch: &RecordBatch| {
        let (notices, rows) = of_table(batch, "notices");
        let kind = notices.column_by_name("kind").unwrap().as_string::<i32>();
        kinds.extend(rows.into_iter().map(|row| kind.value(row).to_owned()));
        kinds.contains(&"idle".to_owned())
    };
    // Other programs may begin and end at any time, and not all the time.
    while !take_notices(&stream.next().unwrap()) {}
    let pid = run_true();
    let (mut exec, mut exit) = (None, None);
    while exit.is_none() {
        let batch = stream.next().unwrap();
        take_notices(&batch);
        exec = exec.or(place_of(&batch, "sched.sched_process_exec", pid));
        exit = place_of(&batch, "sched.sched_process_exit", pid);
    }
    assert!(exec.is_some() && exec < exit, "{exec:?} {exit:?}");
    interrupt(child.id());
    // What came until the signal comes out.
    while stream.next().is_some() {}
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains(" written; "), "{said}");
}

/// As `head` does.
#[test]
fn a_stream_that_nobody_reads_on_ends() {
    let mut child = start("here", &["sched:sched_process_exec", "sched:sched_process_exit"]);
    let mut stream = Checked::new(&mut child);
    stream.next().unwrap();
    drop(stream);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// Two recordings of this machine, as if of two: each holds up the other no longer than until its next heartbeat.
#[test]
fn live_streams_of_two_machines_merge_by_their_frontiers() {
    let mut children = ["one", "two"].map(|machine| start(machine, &["sched:sched_process_exec"]));
    let streams = children.each_mut().map(|child| child.stdout.take().unwrap());
    let pids = children.each_ref().map(Child::id);
    let merged = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&merged);
    let mut ran = [None; 2];
    merge::merge(streams.into(), move |(tai, of, _, text)| {
        let mut rows = to.lock().unwrap();
        rows.push((tai, of, text));
        let seen = |pid: i32, of: usize| {
            rows.iter().any(|(_, other, text)| *other == of && text.contains(&format!("pid: {pid},")))
        };
        match ran {
            // Both have begun.
            [None, _] if [0, 1].iter().all(|of| rows.iter().any(|(_, other, _)| other == of)) => {
                ran[0] = Some(run_true())
            }
            [Some(pid), None] if seen(pid, 0) && seen(pid, 1) => {
                ran[1] = Some(pid);
                pids.into_iter().for_each(interrupt);
            }
            _ => {}
        }
    })
    .unwrap();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let merged = Arc::into_inner(merged).unwrap().into_inner().unwrap();
    assert!(merged.is_sorted_by_key(|(tai, ..)| *tai));
    assert!(merged.iter().all(|(_, of, text)| text.starts_with(["one", "two"][*of])));
}
