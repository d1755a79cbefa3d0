//! `perfweave record`: recordings of a command and of the machine, and the flight recorder, ended in all ways.

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use perfweave_support::perf;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use support::{Place, objects, perfweave, printed, recorded};

/// A recorder that runs until it is told to end.
struct Running {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
    err: Lines<BufReader<ChildStderr>>,
}

impl Running {
    /// Starts a recorder, and waits until it records. `None` where this user may not trace.
    #[track_caller]
    fn start(args: &[&str]) -> Option<Self> {
        let mut command = perfweave(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut err = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = err.next().unwrap().unwrap();
        if support::is_refused(&first) {
            child.wait().unwrap();
            perfweave_support::kernel("record the whole machine", Err::<(), _>(first))?;
            return None;
        }
        assert!(first.starts_with("recording"), "{first}");
        Some(Self { child, out, err })
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// The object on the next line of its output.
    #[track_caller]
    fn object(&mut self) -> Value {
        serde_json::from_str(&self.out.next().expect("a line").unwrap()).unwrap()
    }

    /// Ends it by a signal. Gives its status and what else it says.
    fn end(mut self, signal: Signal) -> (Option<i32>, Vec<String>) {
        self.signal(signal);
        let said = self.err.by_ref().map_while(Result::ok).collect();
        (self.child.wait().unwrap().code(), said)
    }
}

/// How many records perf shows of a file. It has nothing to complain of. `None` without perf.
#[track_caller]
fn perf_shows(file: &str) -> Option<usize> {
    perf()?;
    let lines = perfweave_support::perf::printed(Command::new("perf").args(["script", "-i", file])).unwrap();
    Some(lines.lines().count())
}

fn samples(file: &str) -> usize {
    let objects = objects(&["convert", "--json", file]);
    objects.iter().filter(|object| object["event"].as_str().is_some_and(|event| event.contains(':'))).count()
}

#[test]
fn a_command_is_recorded_from_its_first_instruction_and_gives_its_status() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded(&file, &["-e", "sched:sched_process_exec"]) else { return };
    let execs = objects(&["convert", "--json", &file]);
    let execs: Vec<_> = execs.iter().filter(|object| object["event"] == "sched:sched_process_exec").collect();
    let programs: Vec<_> = execs.iter().map(|exec| exec["fields"]["filename"].as_str().unwrap()).collect();
    assert!(
        programs[0].ends_with("/sh") && programs[1..].iter().all(|program| program.ends_with("/cat")),
        "{programs:?}"
    );
    assert_eq!(programs.len(), 1 + 8);
    if let Some(shown) = perf_shows(&file) {
        assert_eq!(shown, samples(&file));
    }
    let status = perfweave(&["record", "-o", &file, "--", "sh", "-c", "exit 7"]).status().unwrap();
    assert_eq!(status.code(), Some(7));
}

/// `-d` asks for so much time: no event is from before it or from after it.
#[test]
fn a_recording_is_as_long_as_it_was_asked_to_be() {
    let place = Place::new();
    let file = place.file("perf.data");
    // Somebody switches all the time, also while the names of what runs are read.
    let mut busy = Command::new("sh").args(["-c", "while :; do true | true; done"]).spawn().unwrap();
    let recorder = perfweave(&["record", "-a", "-d", "0.3", "--json", "-o", &file]).output().unwrap();
    let _ = (busy.kill(), busy.wait());
    let said = String::from_utf8_lossy(&recorder.stderr);
    let refused = if support::is_refused(&said) { Err(&said) } else { Ok(()) };
    let Some(()) = perfweave_support::kernel("record the whole machine", refused) else { return };
    // What the summary counts and the file lacks has a reason.
    let said: Vec<Value> =
        String::from_utf8(recorder.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [of_stream, of_file] = [&said[0]["summary"], &said[1]];
    let number = |of: &Value, key: &str| of[key].as_u64().unwrap_or_else(|| panic!("no {key}: {said:?}"));
    let outside = number(of_file, "before") + number(of_file, "after");
    let with_own = number(of_file, "records") + outside + number(of_stream, "left_out");
    assert!(outside > 0 && number(of_stream, "records") == with_own, "{said:?}");
    let times = objects(&["convert", "--json", &file]);
    let times = times.iter().filter(|object| object["event"].as_str().is_some_and(|event| event.contains(':')));
    let times: Vec<_> = times.map(|object| object["time"].as_u64().unwrap()).collect();
    let lasts = times.last().unwrap() - times[0];
    assert!(lasts <= 300_000_000, "{lasts} ns");
    // The page is of that time, too.
    let page = support::printed(&["convert", "--html", &file]);
    let end = page.split_once("\"end\":").and_then(|(_, rest)| rest.split_once(',')).expect("an end").0;
    assert!(end.parse::<u64>().unwrap() <= 300_000_000, "{end} ns");
}

/// `-o -` writes what perf reads through a pipe, and leaves standard output to the recording alone.
#[test]
fn a_recording_to_standard_output_goes_through_a_pipe() {
    let place = Place::new();
    let Some(()) = recorded(&place.file("first"), &["-e", "sched:sched_process_exec"]) else { return };
    let script = "echo told; for i in 1 2 3 4 5; do /bin/true; done; exit 7";
    let args = ["record", "-e", "sched:sched_process_exec", "-o", "-", "sh", "-c", script];
    let output = perfweave(&args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(output.stdout.starts_with(b"PERFILE2\x10\0\0\0\0\0\0\0"), "{said}");
    assert!(said.lines().any(|line| line == "told") && said.contains("standard output: "), "{said}");
    let file = place.file("piped");
    fs::write(&file, &output.stdout).unwrap();
    assert_eq!(samples(&file), 1 + 5);
    let program = env!("CARGO_BIN_EXE_perfweave");
    let through = |from: &str, to: &str| {
        let output = Command::new("sh").args(["-c", &format!("{from} | {to}")]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        (String::from_utf8_lossy(&output.stdout).into_owned(), said)
    };
    let record = format!("{program} record -a -e sched:sched_process_exec -o - -- /bin/true");
    let (shown, _) = through(&record, &format!("{program} convert --json -"));
    assert!(shown.contains("sched:sched_process_exec"), "{shown}");
    if perf().is_some() {
        let (shown, _) = through(&record, "perf script -i -");
        assert!(shown.contains("sched:sched_process_exec: filename="), "{shown}");
    }
    // A reader that has seen enough ends it well.
    let (_, said) = through(&format!("{program} record -a -o - -d 600"), "head -c 100");
    assert!(!said.contains("cannot write"), "{said}");
    for args in
        [&["record", "-o", "-", "--json", "true"][..], &["record", "-o", "-", "--last", "1s", "--on-signal", "USR1"]]
    {
        let output = perfweave(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && output.stdout.is_empty() && said.contains("-o -"), "{said}");
    }
    assert!(!fs::exists("-").unwrap());
}

/// Somebody has made standard output one that does not block: what writes to it waits for room.
#[test]
fn an_output_that_does_not_block_is_waited_for() {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded(&file, &["-a"]) else { return };
    for args in [&["record", "-a", "-o", "-", "--", "true"][..], &["convert", "--json", &file]] {
        let (mut from, to) = std::io::pipe().unwrap();
        fcntl(&to, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        fcntl(&to, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
        let mut command = perfweave(args);
        let mut child = command.stdout(to).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        // It writes more than the pipe has room for, while nobody reads more than this at once.
        let (mut some, mut len) = ([0; 512], 0);
        while let read @ 1.. = from.read(&mut some).unwrap() {
            len += read;
        }
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success() && len > 4096, "{args:?} {len}: {said}");
    }
}

/// A recording is no text.
#[test]
fn a_recording_is_not_written_to_a_terminal() {
    let Some(()) = perfweave_support::runs(&["script", "--version"], "script(1)") else { return };
    let line = format!("{} record -o - true", env!("CARGO_BIN_EXE_perfweave"));
    let output = Command::new("script").args(["-qec", &line, "/dev/null"]).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && shown.contains("terminal") && !shown.contains("PERFILE2"), "{shown}");
}

#[test]
fn signals_end_a_recording_that_can_be_read() {
    let place = Place::new();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let file = place.file(signal.as_str());
        let Some(running) = Running::start(&["record", "-a", "-o", &file]) else { return };
        // A switch that is in the recording for sure.
        assert!(Command::new("true").status().unwrap().success());
        let (status, said) = running.end(signal);
        assert_eq!(status, Some(0), "{said:?}");
        assert!(said.iter().any(|line| line.contains("records")), "{said:?}");
        assert!(samples(&file) > 0);
        if let Some(shown) = perf_shows(&file) {
            assert_eq!(shown, samples(&file));
        }
    }
}

#[test]
fn a_recorder_writes_at_each_signal_and_keeps_the_newest_files() {
    let place = Place::new();
    let output = place.file("flight");
    let args = ["record", "--last", "2s", "--on-signal", "USR1", "--keep", "2", "--json", "-o", &output];
    let Some(mut running) = Running::start(&args) else { return };
    let mut files = Vec::new();
    for _ in 0..3 {
        assert!(Command::new("true").status().unwrap().success());
        running.signal(Signal::SIGUSR1);
        let flight = running.object();
        assert_eq!(flight["trigger"], "SIGUSR1");
        assert!(flight["records"].as_u64().unwrap() > 0);
        let file = flight["file"].as_str().unwrap();
        let trigger = flight["time"].as_u64().unwrap();
        let times: Vec<_> = objects(&["convert", "--json", file]).iter().filter_map(|at| at["time"].as_u64()).collect();
        let after = times.iter().filter(|time| **time > trigger).count() as u64;
        assert!(flight["before"].as_u64().unwrap() > 0 && flight["after"].as_u64() == Some(after), "{flight}");
        files.push(file.to_owned());
    }
    let (status, said) = running.end(Signal::SIGINT);
    assert_eq!((status, said.last().unwrap().as_str()), (Some(0), "3 files written"));
    let mut there: Vec<_> = fs::read_dir(&place.0).unwrap().map(|file| file.unwrap().path()).collect();
    there.sort();
    assert_eq!(there.iter().map(|file| file.to_str().unwrap()).collect::<Vec<_>>(), files[1..]);
    assert!(files[1..].iter().all(|file| samples(file) > 0));
    if perf().is_some() {
        // It complains of what is lost while the file before was written, but shows everything.
        let script = Command::new("perf").args(["script", "-i", &files[2]]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&script.stdout).lines().count(), samples(&files[2]));
    }
}

/// Wherever a file of a recorder begins and ends, each CPU has told where it stands: also one that has nothing to do.
#[test]
fn cpus_tell_where_they_stand_in_each_file_of_a_recorder() {
    let place = Place::new();
    let output = place.file("flight");
    let once = perfweave(&["record", "-a", "-e", "why", "-o", &place.file("once"), "--", "true"]).output().unwrap();
    let said = String::from_utf8_lossy(&once.stderr);
    let refused = if said.contains("needs a BPF program") { Err(&said) } else { Ok(()) };
    let Some(()) = perfweave_support::kernel("load BPF programs at sched_switch", refused) else { return };
    let args = ["record", "-a", "-e", "why", "--last", "10s", "--on-signal", "USR1", "--json", "-o", &output];
    let Some(mut running) = Running::start(&args) else { return };
    for _ in 0..2 {
        running.signal(Signal::SIGUSR1);
        let flight = running.object();
        let text = printed(&["convert", "--text", flight["file"].as_str().unwrap()]);
        let is_one = |line: &&str| line.ends_with(" runs") && !line.contains(';');
        assert!(text.lines().filter(is_one).count() > 0, "{flight}");
    }
    assert_eq!(running.end(Signal::SIGINT).0, Some(0));
}

/// Files of other users stay, whatever they are called, and so does what was written last.
#[test]
fn a_recorder_deletes_no_file_of_others_and_not_the_one_it_has_just_written() {
    use std::os::unix::fs::{chown, symlink};
    let place = Place::new();
    let output = place.file("flight");
    let [old, theirs, link, later] = ["1000000000", "1000000001", "1000000002", "9999999999"]
        .map(|time| place.file(&format!("flight.{time}-000000")));
    [&old, &theirs, &later].into_iter().for_each(|file| fs::write(file, "").unwrap());
    symlink("precious", &link).unwrap();
    let Some(()) = perfweave_support::kernel("give a file away", chown(&theirs, Some(65534), None)) else { return };
    let args = ["record", "--last", "1s", "--on-signal", "USR1", "--keep", "2", "--json", "-o", &output];
    let Some(mut running) = Running::start(&args) else { return };
    let mut files = Vec::new();
    for there in [vec![&later], vec![], vec![]] {
        running.signal(Signal::SIGUSR1);
        files.push(running.object()["file"].as_str().unwrap().to_owned());
        // It deletes when it has said what it has written.
        let newest = files[files.len().saturating_sub(2)..].iter();
        let mut expected: Vec<_> = newest.chain(there).chain([&theirs, &link]).map(std::path::PathBuf::from).collect();
        expected.sort();
        perfweave_support::threads::until("older files are deleted", || {
            let mut all: Vec<_> = fs::read_dir(&place.0).unwrap().map(|file| file.unwrap().path()).collect();
            all.sort();
            all == expected
        });
    }
    assert_eq!(running.end(Signal::SIGINT).0, Some(0));
}

/// Other programs ask for a file by a line, and learn its name. The path is free again at the end.
#[test]
fn a_line_in_a_socket_is_a_trigger_and_is_answered() {
    let place = Place::new();
    let (output, socket) = (place.file("flight"), place.file("socket"));
    // A recorder that was killed has left its socket.
    drop(UnixListener::bind(&socket).unwrap());
    let args = ["record", "--last", "2s", "--on-socket", &socket, "--json", "-o", &output];
    let Some(mut running) = Running::start(&args) else { return };
    for name in ["one", "two"] {
        assert!(Command::new("true").status().unwrap().success());
        let mut client = BufReader::new(UnixStream::connect(&socket).unwrap());
        writeln!(client.get_mut(), "{name}\u{1b}[2J").unwrap();
        let mut file = String::new();
        client.read_line(&mut file).unwrap();
        let flight = running.object();
        assert_eq!(flight["trigger"], format!("asked by a socket: {name}[2J"));
        assert_eq!(flight["file"], file.trim_end());
        assert!(samples(file.trim_end()) > 0);
    }
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let second = perfweave(&args).output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert!(String::from_utf8_lossy(&second.stderr).contains("cannot listen at"), "{second:?}");
    let (status, _) = running.end(Signal::SIGINT);
    assert_eq!((status, fs::exists(&socket).unwrap()), (Some(0), false));
}

/// What is at the path and is no socket stays as it is.
#[test]
fn a_file_is_no_socket_to_be_replaced() {
    let place = Place::new();
    let (output, file, link) = (place.file("flight"), place.file("precious"), place.file("link"));
    fs::write(&file, "data").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link] {
        let args = ["record", "--last", "2s", "--seconds", "1", "--on-socket", path, "-o", &output];
        let refused = perfweave(&args).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        if said.contains("CAP_PERFMON") {
            return;
        }
        assert!(refused.status.code() == Some(1) && said.contains("cannot listen at"), "{said}");
        assert!(fs::symlink_metadata(path).is_ok() && fs::read(&file).unwrap() == b"data");
    }
}

/// A line that is longer than a line may be is one trigger. Each client has one answer for each of its lines.
#[test]
fn a_long_line_is_one_trigger() {
    let place = Place::new();
    let (output, socket) = (place.file("flight"), place.file("socket"));
    let Some(mut running) =
        Running::start(&["record", "--last", "2s", "--on-socket", &socket, "--json", "-o", &output])
    else {
        return;
    };
    let mut client = BufReader::new(UnixStream::connect(&socket).unwrap());
    client.get_mut().write_all(format!("{}\nlast\n", "x".repeat(5000)).as_bytes()).unwrap();
    client.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    let answers = client.lines().map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(running.object()["trigger"].as_str().unwrap().len() < 1100);
    assert_eq!(running.end(Signal::SIGINT).0, Some(0));
}

/// Triggers that come faster than files are written do not keep it from its end.
#[test]
fn a_recorder_ends_although_triggers_come_without_a_pause() {
    let place = Place::new();
    let output = place.file("flight");
    let args =
        ["record", "--last", "10ms", "--seconds", "1", "--on", "sched:sched_switch", "--keep", "2", "-o", &output];
    let ended = perfweave(&args).output().unwrap();
    assert!(ended.status.success() || String::from_utf8_lossy(&ended.stderr).contains("CAP_PERFMON"), "{ended:?}");
}

#[test]
fn an_event_that_passes_its_filter_is_a_trigger_and_is_in_the_file() {
    let place = Place::new();
    let (output, program) = (place.file("flight"), place.file("perfweave-needle"));
    fs::copy("/bin/true", &program).unwrap();
    let on = "sched:sched_process_exec: filename ~ \"*/perfweave-needle\"";
    let args = ["record", "-e", "sched:sched_process_exec", "--last", "10s", "--on", on, "--json", "-o", &output];
    let Some(mut running) = Running::start(&args) else { return };
    assert!(Command::new("true").status().unwrap().success());
    assert!(Command::new(&program).status().unwrap().success());
    let flight = running.object();
    assert!(flight["trigger"].as_str().unwrap().contains(&program), "{flight}");
    let execs = objects(&["convert", "--json", flight["file"].as_str().unwrap()]);
    let found = execs.iter().filter(|exec| exec["fields"]["filename"] == program.as_str()).count();
    assert_eq!(found, 1);
    let (status, said) = running.end(Signal::SIGTERM);
    assert_eq!((status, said.last().unwrap().as_str()), (Some(0), "1 files written"));
}

#[test]
fn a_slow_wake_up_is_a_trigger() {
    let place = Place::new();
    let output = place.file("flight");
    let args = ["record", "--last", "1s", "--on", "wakeup>0ns", "--keep", "1", "--json", "-o", &output];
    let Some(mut running) = Running::start(&args) else { return };
    assert!(Command::new("true").status().unwrap().success());
    let flight = running.object();
    assert!(flight["trigger"].as_str().unwrap().contains(" ms for CPU "), "{flight}");
    let (status, _) = running.end(Signal::SIGINT);
    assert_eq!(status, Some(0));
}

#[test]
fn a_trigger_needs_a_time_and_a_time_a_trigger() {
    for (args, says) in [
        (&["--on", "wakeup>1ms"][..], "--last"),
        (&["--last", "1s"], "--on"),
        (&["--last", "1", "--on", "wakeup>1ms"], "500ms"),
        (&["--last", "1s", "--on", "nonsense"], "wakeup>10ms"),
        (&["--last", "1s", "--on-signal", "TERM"], "USR1"),
    ] {
        let output = perfweave(&[&["record"], args].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(says), "{args:?}");
    }
    let output = perfweave(&["record", "--last", "1s", "--on", "sched:no_such_event"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

/// A shell in a mount namespace of its own, with a disk of so many bytes in a directory.
fn on_small_disk(place: &Place, bytes: u32, script: &str) -> std::process::Output {
    let mount = format!("mount -t tmpfs -o size={bytes} none {} && {script}", place.0.display());
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--propagation", "private", "sh", "-c", &mount]).stdin(Stdio::null());
    shell.env("PERFWEAVE", env!("CARGO_BIN_EXE_perfweave")).env("FILE", place.file("perf.data"));
    shell.output().unwrap()
}

#[test]
fn a_recording_that_was_killed_is_read_as_far_as_it_was_written() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(running) = Running::start(&["record", "-a", "-o", &file]) else { return };
    running.end(Signal::SIGKILL);
    let output = perfweave(&["convert", "--json", &file]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("not finished"), "{said}");
    // At least the names of what ran before.
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"event\":\"COMM\""));
}

#[test]
fn a_full_disk_ends_a_recording_that_can_be_read() {
    let place = Place::new();
    let Some(()) = recorded(&place.file("before"), &["-a"]) else { return };
    // Each line is a system call with a record of its own.
    let script = "$PERFWEAVE record -e raw_syscalls:sys_enter -o $FILE -- dd if=/dev/zero of=/dev/null bs=1 \
                  count=400000; echo status $?; $PERFWEAVE convert --json $FILE | wc -l";
    let output = on_small_disk(&place, 4 << 20, script);
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("status 1\n") && errors.contains("No space left on device"), "{said} {errors}");
    let records: u64 = said.lines().last().unwrap().trim().parse().unwrap();
    assert!(records > 1000, "{said} {errors}");
}

#[test]
fn a_recorder_goes_on_when_the_disk_is_full() {
    let place = Place::new();
    let Some(()) = recorded(&place.file("before"), &["-a"]) else { return };
    // Each signal gives a file or an error. It goes on until there is one, after at least one file. Every file can be
    // read.
    let logs = Place::new();
    let script = "cd $LOGS; touch out err
        $PERFWEAVE record -e raw_syscalls:sys_enter --buffer 256K --last 100s --on-signal USR1 --keep 1000 --json -o $FILE >out 2>err & pid=$!
        until grep -q recording err; do kill -0 $pid || exit 1; done
        until grep -q 'No space' err; do
            dd if=/dev/zero of=/dev/null bs=1 count=4000 2>/dev/null
            before=$(cat out err | wc -l); kill -USR1 $pid || exit 1
            while [ $(cat out err | wc -l) = $before ]; do kill -0 $pid || exit 1; done
        done
        kill -INT $pid; wait $pid; echo status $?; cat err >&2
        for file in $FILE.*; do $PERFWEAVE convert --json $file | wc -l; done; ls -A $(dirname $FILE) | grep -c partial";
    let script = format!("LOGS={}; {script}", logs.0.display());
    let output = on_small_disk(&place, 8 << 20, &script);
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with("status 1\n") && errors.contains("could not be written"), "{said} {errors}");
    let counts: Vec<u64> = said.lines().skip(1).map(|line| line.trim().parse().unwrap()).collect();
    let (partial, files) = counts.split_last().unwrap();
    assert!(*partial == 0 && !files.is_empty() && files.iter().all(|records| *records > 0), "{said} {errors}");
}

#[test]
fn nobody_is_told_what_is_missing() {
    use std::os::unix::process::CommandExt;
    let place = Place::new();
    let Some(()) = perfweave_support::needs("root", nix::unistd::geteuid().is_root()) else { return };
    let program = place.file("perfweave");
    fs::copy(env!("CARGO_BIN_EXE_perfweave"), &program).unwrap();
    for args in [&["record", "-a"][..], &["record", "--last", "1s", "--on", "wakeup>1ms"]] {
        let output =
            Command::new(&program).args(args).args(["-o", "/tmp/nothing", "--", "true"]).uid(65534).gid(65534).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("only root can read tracefs"), "{output:?}");
    }
    assert!(!fs::exists("/tmp/nothing").unwrap());
}
