//! `record` on live events of this kernel. Needs root, as recording does.

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("perfweave-archive-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn program(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perfweave-archive"));
    command.args(["record", "--machine", "here", "--to"]).arg(&folder.0).args(args);
    command
}

fn record(folder: &Folder, args: &[&str]) -> String {
    let Output { status, stderr, .. } = program(folder, args).output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{said}");
    said
}

fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path(), suffix));
        } else if entry.path().to_string_lossy().contains(suffix) {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// All rows of a table, file by file.
fn batches(folder: &Folder, table: &str) -> Vec<RecordBatch> {
    let read = |path: &PathBuf| {
        let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
        let schema = builder.schema().clone();
        let rows = builder.build().unwrap().map(Result::unwrap).collect::<Vec<_>>();
        concat_batches(&schema, &rows).unwrap()
    };
    let paths = files(&folder.0.join(table), ".parquet");
    assert!(paths.iter().all(|path| path.to_string_lossy().contains("/machine=here/date=2")), "{paths:?}");
    paths.iter().map(read).collect()
}

fn ints(batches: &[RecordBatch], column: &str) -> Vec<Option<i64>> {
    let of = |batch: &RecordBatch| {
        let values = cast(batch.column_by_name(column).unwrap(), &DataType::Int64).unwrap();
        values.as_primitive::<Int64Type>().iter().collect::<Vec<_>>()
    };
    batches.iter().flat_map(of).collect()
}

fn known(batches: &[RecordBatch], column: &str) -> Vec<i64> {
    ints(batches, column).into_iter().map(Option::unwrap).collect()
}

fn texts(batches: &[RecordBatch], column: &str) -> Vec<String> {
    let of = |batch: &RecordBatch| {
        let values = cast(batch.column_by_name(column).unwrap(), &DataType::Utf8).unwrap();
        values.as_string::<i32>().iter().map(|text| text.unwrap().to_owned()).collect::<Vec<_>>()
    };
    batches.iter().flat_map(of).collect()
}

/// The last row of `traces`: rows written, events yielded, records lost.
fn end(folder: &Folder) -> [i64; 3] {
    let traces = batches(folder, "traces");
    let whats = texts(&traces, "what");
    let at = whats.iter().position(|what| what == "end").unwrap_or_else(|| panic!("{whats:?}"));
    ["written", "yielded", "lost"].map(|column| ints(&traces, column)[at].unwrap())
}

#[test]
fn a_recording_has_each_event_once_in_proven_order() {
    let folder = Folder::new("live");
    let work = "i=0; while [ $i -lt 50 ]; do /bin/true; i=$((i+1)); done";
    let events = ["-e", "sched:sched_switch", "-e", "sched:sched_waking", "-e", "sched:sched_process_exec"];
    record(&folder, &[&events[..], &["--", "sh", "-c", work]].concat());
    let tables = ["sched_switch", "sched_waking", "sched_process_exec"]
        .map(|name| batches(&folder, &format!("events/sched/{name}")));
    // The shell itself, and fifty programs.
    assert_eq!(tables[2].iter().map(RecordBatch::num_rows).sum::<usize>(), 51);
    assert_eq!(texts(&tables[2], "filename").iter().filter(|name| name.ends_with("/true")).count(), 50);
    for file in tables.iter().flatten() {
        let keys = known(std::slice::from_ref(file), "mono");
        assert!(keys.is_sorted(), "a file is sorted by its key");
    }
    let mut rows = Vec::new();
    for table in &tables {
        rows.extend(known(table, "row").into_iter().zip(known(table, "mono")));
        let proven =
            table.iter().map(|batch| batch.column_by_name("proven").unwrap().as_boolean().true_count()).sum::<usize>();
        assert_eq!(proven, table.iter().map(RecordBatch::num_rows).sum::<usize>());
    }
    rows.sort();
    assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0), "no place is taken twice");
    assert!(rows.windows(2).all(|pair| pair[0].1 <= pair[1].1), "the order over all tables is that of the keys");
    let [written, yielded, lost] = end(&folder);
    assert_eq!((written, yielded, lost), (rows.len() as i64, rows.len() as i64, 0));
    assert_eq!(texts(&batches(&folder, "traces"), "what"), ["begin", "end"]);
    assert!(files(&folder.0, ".open-").is_empty());
}

#[test]
fn times_are_those_of_the_newest_clock_reading_and_never_too_sure() {
    let folder = Folder::new("clocks");
    record(&folder, &["-e", "sched:sched_process_exec", "--", "/bin/true"]);
    let (clocks, events) = (batches(&folder, "clocks"), batches(&folder, "events/sched/sched_process_exec"));
    let readings = ["mono", "offset", "bracket", "maxerror", "pending", "rate", "synchronized", "esterror"]
        .map(|column| known(&clocks, column));
    assert!(!readings[0].is_empty());
    for (mono, (tai, error)) in
        known(&events, "mono").into_iter().zip(known(&events, "tai").into_iter().zip(known(&events, "tai_error")))
    {
        let by = |at: usize| {
            let [of, offset, bracket, maxerror, pending, rate, synchronized, esterror] =
                readings.each_ref().map(|column| column[at]);
            let drift = (i128::from(mono.abs_diff(of)) * i128::from(500_000 + rate) + 999_999_999) / 1_000_000_000;
            let known = bracket + maxerror + pending + 500_000 + drift as i64;
            offset == tai - mono && error == if synchronized == 1 && esterror > 0 { known } else { 1 << 61 }
        };
        assert!((0..readings[0].len()).any(by), "{mono} {tai} {error} {readings:?}");
    }
}

#[test]
fn what_the_kernel_loses_is_a_notice() {
    let folder = Folder::new("lost");
    let args = ["-e", "raw_syscalls:sys_enter", "--buffer-kib", "4", "--"];
    let said = record(
        &folder,
        &[&args[..], &["dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=200000", "status=none"]].concat(),
    );
    let notices = batches(&folder, "notices");
    let counts = texts(&notices, "kind").into_iter().zip(known(&notices, "count"));
    let told = counts.filter(|(kind, _)| kind == "lost").map(|(_, count)| count).sum::<i64>();
    let [written, yielded, lost] = end(&folder);
    assert!(told > 0 && told == lost && written == yielded, "{told} {lost} {written} {yielded}");
    // What would have held it: more than the 4 KiB.
    let (_, advice) = said.split_once("it takes --buffer-kib ").unwrap_or_else(|| panic!("{said}"));
    assert!(advice.split_whitespace().next().unwrap().parse::<u64>().unwrap() > 4, "{said}");
    // It reads and writes each byte.
    assert!(yielded + lost >= 400_000, "{yielded} {lost}");
    let within = ints(&notices, "from_mono").into_iter().zip(ints(&notices, "to_mono"));
    assert!(within.filter_map(|(from, to)| from.zip(to)).all(|(from, to)| from <= to));
}

/// A recording that goes on until it is killed.
struct Running(Child);

impl Running {
    fn start(folder: &Folder) -> Self {
        Self::of("here", folder, &[])
    }

    fn of(machine: &str, folder: &Folder, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_perfweave-archive"));
        command.args(["record", "--machine", machine, "--to"]).arg(&folder.0).args(args);
        command.args(["-e", "sched:sched_switch", "--file-seconds", "3600"]);
        let mut this = Self(command.stderr(Stdio::null()).spawn().unwrap());
        // It has switched at least once when this file is there.
        let machine = format!("/machine={machine}/");
        while !files(&folder.0.join("events"), ".open-").iter().any(|path| path.to_string_lossy().contains(&machine)) {
            assert!(this.0.try_wait().unwrap().is_none(), "it has ended");
            std::thread::yield_now();
        }
        this
    }

    /// Ends the recording with a signal.
    fn end(mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_recording_loses_its_open_files_and_the_next_one_says_which_interval() {
    let folder = Folder::new("killed");
    let mut running = Running::start(&folder);
    let open = files(&folder.0.join("events"), ".open-");
    record(&folder, &["-e", "sched:sched_process_exec", "--", "/bin/true"]);
    assert!(open[0].exists(), "a living recording keeps its files");
    assert!(batches(&folder, "notices").is_empty());
    running.kill();
    let open = files(&folder.0, ".open-");
    let said = record(&folder, &["-e", "sched:sched_process_exec", "--", "/bin/true"]);
    assert!(files(&folder.0, ".open-").is_empty() && said.contains("a recording was killed"), "{said}");
    let notices = batches(&folder, "notices");
    assert_eq!(texts(&notices, "kind"), vec!["unfinished"; open.len()]);
    let first =
        |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().split('-').nth(1).unwrap().parse::<i64>().unwrap();
    assert_eq!(known(&notices, "from_mono"), open.iter().map(first).collect::<Vec<_>>());
    assert!(known(&notices, "to_mono").into_iter().zip(known(&notices, "mono")).all(|(to, now)| to <= now));
    // Three recordings have begun, and two have ended.
    let whats = texts(&batches(&folder, "traces"), "what");
    assert_eq!(["begin", "end"].map(|what| whats.iter().filter(|other| *other == what).count()), [3, 2]);
}

/// Who can write into the archive's folder chooses the names of what lies there.
#[test]
fn names_of_files_command_no_terminal() {
    let folder = Folder::new("names");
    let of_others = folder.0.join("events/a\x1b[2J\n\u{202e}b/machine=here");
    fs::create_dir_all(&of_others).unwrap();
    fs::write(of_others.join("12345678-1-87654321-0.parquet.open-1"), "").unwrap();
    let said = record(&folder, &["-e", "sched:sched_process_exec", "--", "/bin/true"]);
    assert!(said.contains(r"events/a\u001b[2J\n\u202eb/machine=here"), "{said:?}");
    // The archive has what it is called.
    assert!(texts(&batches(&folder, "notices"), "text")[0].contains("events/a\x1b[2J\n\u{202e}b/machine=here"));
}

/// `common_pid` counts threads in the first PID namespace, where tracepoints have it from. Without a tracepoint perf
/// counts them in its own.
#[test]
fn threads_have_numbers_of_the_first_namespace_or_none() {
    let events = ["-e", "page-faults", "-e", "sched:sched_process_exec"];
    let command = ["--", "sh", "-c", "for i in 1 2 3 4 5; do /bin/true; done"];
    let args = [&events[..], &command].concat();
    let threads = |folder: &Folder| {
        let of = |table: &str| ints(&batches(folder, table), "common_pid");
        (of("events/perf/page-faults"), of("events/sched/sched_process_exec"))
    };
    let folder = Folder::new("namespace");
    record(&folder, &args);
    let (faults, execs) = threads(&folder);
    assert!(execs.len() == 6 && execs.iter().all(|thread| faults.contains(thread)), "{faults:?} {execs:?}");
    let folder = Folder::new("other-namespace");
    let mut inside = Command::new("unshare");
    inside
        .args(["-pfm", "--mount-proc"])
        .arg(program(&folder, &[]).get_program())
        .args(program(&folder, &args).get_args());
    let output = inside.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (faults, execs) = threads(&folder);
    assert!(execs.len() == 6 && execs.iter().all(Option::is_some), "{execs:?}");
    assert!(faults.len() > 6 && faults.iter().all(Option::is_none), "{faults:?}");
}

#[test]
fn errors_name_what_is_wrong() {
    let folder = Folder::new("errors");
    for (args, text) in [
        (&["-e", "no-such-event"][..], "a software event has perf's name"),
        (&["-e", "sched:sched_switch", "--buffer-kib", "4194304"], "a ring cannot have"),
    ] {
        let Output { status, stderr, .. } = program(&folder, args).output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert!(!status.success() && said.contains(text) && !said.contains("RingOptions"), "{said}");
    }
}

#[test]
fn a_signal_ends_a_recording_with_all_files_finished() {
    let folder = Folder::new("signal");
    let running = Running::start(&folder);
    // What was traced is nobody else's business, while it is written and after.
    let modes =
        || files(&folder.0, "parquet").into_iter().map(|path| fs::metadata(path).map(|file| file.mode() & 0o7777));
    let open = modes().filter_map(Result::ok).collect::<Vec<_>>();
    assert!(!open.is_empty() && open.iter().all(|mode| *mode == 0o600), "{open:?}");
    running.end();
    let whole = modes().map(Result::unwrap).collect::<Vec<_>>();
    assert!(whole.len() >= 3 && whole.iter().all(|mode| *mode == 0o600), "{whole:?}");
    assert!(files(&folder.0, ".open-").is_empty());
    let [written, yielded, _] = end(&folder);
    let rows = batches(&folder, "events/sched/sched_switch").iter().map(RecordBatch::num_rows).sum::<usize>();
    assert!(rows > 0 && rows as i64 == written && written == yielded);
}

/// Two recordings of this machine, as if of two: connections between its sockets are messages, and what follows from
/// them about the two clocks, which are one, is true.
#[test]
fn connections_are_messages_that_bound_the_clocks() {
    let folder = Folder::new("messages");
    let event = ["-e", "sock:inet_sock_set_state"];
    let running = ["a", "b"].map(|machine| Running::of(machine, &folder, &event));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for _ in 0..20 {
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        drop(client);
        assert_eq!(std::io::Read::read(&mut server, &mut [0]).unwrap(), 0, "it is closed");
    }
    running.into_iter().for_each(Running::end);
    let mut query = Command::new(env!("CARGO_BIN_EXE_perfweave-archive"));
    let output = query.args(["query", "--named", "messages", "--format", "csv"]).arg(&folder.0).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let pairs = String::from_utf8(output.stdout).unwrap();
    // The last ACK of the handshake, the FIN and the ACK of the FIN, each as of both: others may use sockets meanwhile.
    for way in ["a,", "b,"] {
        let count = pairs.lines().filter(|line| line.starts_with(way)).count();
        assert!(count >= 60, "{count} from {way} {pairs}");
    }
    let found = perfweave_archive::tighten::corrections(&pairs, 1_000_000_000, 1000).unwrap();
    assert!(!found.all.is_empty() && found.one_way.is_empty());
    for correction in found.all {
        assert!(correction.offset.abs() <= correction.error && correction.error < 1_000_000_000, "{correction:?}");
    }
}
