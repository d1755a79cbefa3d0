//! What `convert` makes of a live recording with a loss, read back by the programs that it is made for: Perfetto's
//! types, and the Firefox profiler's own code.

mod support;

use perfweave_support::threads::until;
use perfweave_support::{perf, runs};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use support::{Place, objects, printed, recorded_with_losses};

/// What the recording has, by `convert --json`.
struct Recorded {
    /// Events with a time.
    events: u64,
    losses: u64,
    cpus: BTreeSet<u64>,
    /// The threads that caused events, and how many each. What an interrupt causes is nobody's.
    threads: BTreeMap<u64, u64>,
}

impl Recorded {
    fn of(file: &str) -> Self {
        let objects = objects(&["convert", "--json", file]);
        let records =
            objects.iter().filter(|object| object["event"].is_string() && object["time"].as_u64().unwrap_or(0) > 0);
        let losses = objects.iter().filter(|object| object["notice"] == "lost").count() as u64;
        let mut recorded = Self { events: 0, losses, cpus: BTreeSet::new(), threads: BTreeMap::new() };
        for record in records {
            recorded.events += 1;
            recorded.cpus.extend(record["cpu"].as_u64());
            if let Some(tid @ 1..) = record["tid"].as_u64() {
                *recorded.threads.entry(tid).or_default() += u64::from(record["interrupt"].is_null());
            }
        }
        assert!(recorded.losses > 0, "the recorder stood still, and nothing was lost");
        recorded
    }
}

/// The time of the first event by its own clock, and by the wall clock.
fn first_times(file: &str) -> [u64; 2] {
    let times = |args: &[&str]| {
        let objects = objects(&[&["convert", "--json", file][..], args].concat());
        let times = objects.iter().filter(|object| object["event"].is_string());
        times.map(|object| object["time"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let first = times(&[]).into_iter().zip(times(&["--time", "real"])).find(|(time, _)| *time > 0).unwrap();
    first.into()
}

fn strings(value: &Value) -> BTreeSet<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn numbers(value: &Value) -> BTreeSet<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

/// What Perfetto's types find in a trace, or `None` where they are not installed.
#[track_caller]
fn read_by_perfetto(trace: &str) -> Option<Value> {
    let import = "from perfetto.protos.perfetto.trace import perfetto_trace_pb2";
    let () = runs(&["python3", "-c", import], "pip install perfetto")?;
    let output = Command::new("python3").args(["-c", include_str!("read_back/perfetto.py"), trace]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// The clocks of perf's recordings by Perfetto's numbers: 6 is CLOCK_BOOTTIME, and 64 a number of the trace's own.
#[test]
fn perfetto_knows_each_clock_and_no_date_where_none_is_recorded() {
    let Some(()) = perf() else { return };
    let place = Place::new();
    let (file, trace) = (place.file("perf.data"), place.file("trace"));
    for (clock, snapshot, of_trace, of_events) in [
        (&["-k", "realtime"][..], &["1"][..], vec![1], 1),
        (&["-k", "boottime"], &["1", "6"], vec![6], 6),
        (&["-k", "tai"], &["1", "64"], vec![1], 64),
        (&[], &[], vec![], 0),
    ] {
        let args =
            [&["record", "-N", "-q", "-a", "-e", "cpu-clock", "-o", &file][..], clock, &["--", "sh", "-c", "ls | cat"]];
        let told = perfweave_support::perf::printed(Command::new("perf").args(args.concat()));
        let Some(_) = perfweave_support::kernel("perf record -a", told) else { return };
        printed(&["convert", "--perfetto", &file, "-o", &trace]);
        let Some(read) = read_by_perfetto(&trace) else { return };
        let clocks = read["clocks"].as_array().unwrap().iter().flat_map(|clocks| clocks.as_object().unwrap().keys());
        assert_eq!(clocks.map(String::as_str).collect::<BTreeSet<_>>(), snapshot.iter().copied().collect());
        assert_eq!((&read["trace clocks"], &read["event clocks"]), (&of_trace.into(), &vec![of_events].into()));
    }
}

#[test]
fn perfetto_has_a_track_for_each_cpu_and_thread_arrows_and_losses() {
    let place = Place::new();
    let (file, trace) = (place.file("perf.data"), place.file("trace"));
    let Some(()) = recorded_with_losses(&file, &[]) else { return };
    printed(&["convert", "--perfetto", &file, "-o", &trace]);
    let Some(read) = read_by_perfetto(&trace) else { return };
    let recorded = Recorded::of(&file);
    assert_eq!(read["unknown"], 0, "fields that Perfetto does not know");
    assert_eq!(read["unbalanced"], 0, "slices that do not end, or not in their order");
    assert_eq!((&read["without track"], &read["same track"]), (&0.into(), &0.into()));
    // One track for each CPU and thread.
    let cpus: BTreeSet<_> = recorded.cpus.iter().map(|cpu| format!("CPU {cpu}")).collect();
    let named = strings(&read["tracks"]);
    let lanes: BTreeSet<_> =
        named.iter().filter(|name| name.starts_with("CPU ") && !name.contains(':')).cloned().collect();
    assert_eq!(lanes, cpus);
    assert!(
        numbers(&read["threads"]).is_superset(&recorded.threads.keys().copied().collect()),
        "threads without a track"
    );
    // Every event is there, on the track of its thread.
    assert_eq!(read["instants"], recorded.events);
    for (tid, count) in &recorded.threads {
        assert_eq!(read["by thread"][tid.to_string()], *count, "thread {tid}");
    }
    // Every arrow begins at an event and ends where the woken thread runs.
    assert!(read["flows"].as_u64().unwrap() > 0 && read["slices"].as_u64().unwrap() > 20, "{read}");
    assert_eq!((&read["flows"], &read["backward"]), (&read["ends"], &0.into()));
    assert_eq!(read["ends elsewhere"], 0, "arrows that end at another thread than the woken one");
    assert_eq!((&read["losses"], &read["late"]), (&recorded.losses.into(), &0.into()));
    // Times are CLOCK_MONOTONIC's, 3, and one moment relates it to CLOCK_REALTIME, 1: that of the first event.
    let [time, real] = first_times(&file);
    assert_eq!(read["clocks"], serde_json::json!([{ "3": time, "1": real }]));
    assert_eq!((&read["trace clocks"], &read["event clocks"]), (&vec![3].into(), &vec![3].into()));
    assert_eq!(read["first"], time);
}

/// A profile in `profiler-cli`, which answers from a daemon. This runs the daemon itself: `profiler-cli load` gives up
/// after half a second.
struct Profiler<'a> {
    place: &'a Place,
    daemon: Child,
}

impl<'a> Profiler<'a> {
    const SESSION: [&'static str; 2] = ["--session", "perfweave"];

    /// Loads a profile. Gives the list of its threads too.
    #[track_caller]
    fn load(place: &'a Place, profile: &str) -> (Self, Value) {
        let daemon = Self::command(place).args(["--daemon", profile]).args(Self::SESSION).spawn().unwrap();
        let mut profiler = Self { place, daemon };
        // A question before the daemon has a session removes the session (profiler-cli 0.10.0).
        let said = || std::fs::read_to_string(place.file("perfweave.log")).unwrap_or_default();
        until("the profile is loaded", || {
            assert_eq!(profiler.daemon.try_wait().unwrap(), None, "the daemon has ended: {}", said());
            said().contains("Profile loaded successfully")
        });
        let list = profiler.object(&["thread", "list"]);
        (profiler, list)
    }

    fn command(place: &Place) -> Command {
        let mut command = Command::new("profiler-cli");
        command.env("PROFILER_CLI_SESSION_DIR", &place.0).env("PROFILER_CLI_NO_SYMBOLICATE", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn answer(&self, args: &[&str]) -> Result<Value, String> {
        let mut command = Self::command(self.place);
        let output = command
            .args(args)
            .arg("--json")
            .args(Self::SESSION)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        if !output.status.success() {
            return Err(format!("{args:?}: {}", String::from_utf8_lossy(&output.stderr)));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("{args:?}: {error}"))
    }

    #[track_caller]
    fn object(&self, args: &[&str]) -> Value {
        self.answer(args).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Profiler<'_> {
    fn drop(&mut self) {
        let _ = (self.daemon.kill(), self.daemon.wait());
    }
}

#[test]
fn the_firefox_profiler_has_tracks_marks_samples_and_losses() {
    let place = Place::new();
    let (file, profile) = (place.file("perf.data"), place.file("profile.json"));
    let Some(()) = recorded_with_losses(&file, &["--call-graph"]) else { return };
    printed(&["convert", "--firefox", &file, "-o", &profile]);
    let Some(()) = runs(&["profiler-cli", "--version"], "npm install @firefox-devtools/profiler-cli") else { return };
    let (profiler, list) = Profiler::load(&place, &profile);
    let threads = list["threads"].as_array().unwrap();
    let recorded = Recorded::of(&file);
    let lanes = threads.iter().filter_map(|thread| thread["name"].as_str()?.strip_prefix("CPU ")?.parse().ok());
    assert_eq!(lanes.collect::<BTreeSet<u64>>(), recorded.cpus);
    // Every event is a mark on the track of its thread, beside those of its runs.
    let marks = |thread: &Value| thread["markerCount"].as_u64().unwrap();
    for (tid, count) in &recorded.threads {
        let of: Vec<_> = threads.iter().filter(|thread| thread["tid"] == tid.to_string().as_str()).collect();
        assert_eq!(of.len(), 1, "tracks of thread {tid}");
        assert!(marks(of[0]) >= *count, "{}", of[0]);
    }
    assert!(threads.iter().map(marks).sum::<u64>() >= recorded.events + recorded.losses);
    let lost = profiler.object(&["profile", "markers", "--category", "Records missing", "--limit", "100000"]);
    assert_eq!(lost["totalCount"], recorded.losses);
    assert!(
        lost["markers"].as_array().unwrap().iter().all(|mark| mark["label"].as_str().unwrap().contains("lost")),
        "{lost:.500}"
    );
    // As many call chains as the folded stacks have, each with its functions.
    let folded = printed(&["convert", "--folded", &file]);
    let dd = threads.iter().filter(|thread| thread["name"] == "dd").max_by_key(|thread| marks(thread)).unwrap();
    let samples =
        profiler.object(&["thread", "samples", "--include-idle", "--thread", dd["threadHandle"].as_str().unwrap()]);
    let chains = folded
        .lines()
        .filter(|line| line.starts_with("dd;"))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
    let total = samples["categoryBreakdown"]["totalSamples"].as_u64().unwrap();
    // There are two threads of this name, and their folded stacks are added.
    assert!(total > 0 && total <= chains.sum(), "{total}");
    assert!(samples["heaviestStack"]["frameCount"].as_u64().unwrap() > 1, "{samples:.500}");
}
