//! `perfweave convert`: what is made of a recording, read back by others.

mod support;

use perfweave_support::{load, perf};
use serde_json::Value;
use std::fs::{self, File};
use std::process::{Command, Stdio};
use support::{Place, objects, perfweave, printed, recorded, recorded_while};

/// Records that are no losses and the like.
fn records(objects: &[Value]) -> Vec<&Value> {
    objects.iter().filter(|object| object["event"].is_string()).collect()
}

#[test]
fn text_json_and_perf_have_the_same_records_in_order() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded(&file, &["-a"]) else { return };
    let objects = objects(&["convert", "--json", &file]);
    let text = printed(&["convert", "--text", &file]);
    assert_eq!(text.lines().count(), objects.len());
    let times: Vec<_> = objects.iter().filter_map(|object| object["time"].as_u64()).collect();
    assert!(times.is_sorted());
    let samples = records(&objects).into_iter().filter(|object| object["event"].as_str().unwrap().contains(':'));
    let samples: Vec<_> = samples.collect();
    assert!(samples.iter().any(|sample| sample["fields"]["prev_comm"].is_string()));
    let Some(()) = perf() else { return };
    let script = ["script", "-i", &file, "-F", "event,time", "--ns"];
    let lines = perfweave_support::perf::printed(Command::new("perf").args(script)).unwrap();
    let perfs: Vec<_> = lines.lines().map(|line| line.trim().split_once(": ").unwrap()).collect();
    let ours = samples.iter().map(|sample| {
        let time = sample["time"].as_u64().unwrap();
        (format!("{}.{:09}", time / 1_000_000_000, time % 1_000_000_000), sample["event"].as_str().unwrap())
    });
    let perfs = perfs.into_iter().map(|(time, event)| (time.to_owned(), event.trim().trim_end_matches(':')));
    assert!(ours.eq(perfs), "perf script has other events, or in another order");
}

/// A recording in pipe mode of a group: the leader was sampled, with what each member had counted until then.
fn group(samples: &[(u64, &[(u64, u64)])]) -> Vec<u8> {
    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        [&kind.to_ne_bytes()[..], &[0; 2], &(8 + body.len() as u16).to_ne_bytes(), body].concat()
    }
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    // IDENTIFIER, TIME and READ; the values with ids, as a group.
    let (sample_type, read_format) = (1 << 16 | 1 << 2 | 1 << 4, 1 << 2 | 1 << 3);
    // PERF_COUNT_SW_TASK_CLOCK, PERF_COUNT_SW_PAGE_FAULTS, each with its id.
    let event = |(config, id): (u64, u64)| {
        // The kind is that of software events, the size that of PERF_ATTR_SIZE_VER0.
        let attr = [&1u32.to_ne_bytes()[..], &64u32.to_ne_bytes(), &words(&[config, 1, sample_type, read_format])];
        // HEADER_ATTR
        record(64, &[&attr.concat()[..], &words(&[0, 0, 0]), &words(&[id])].concat())
    };
    let sample = |(time, values): &(u64, &[(u64, u64)])| {
        let values = values.iter().flat_map(|(count, id)| [*count, *id]).collect::<Vec<_>>();
        record(9, &words(&[&[11, *time, values.len() as u64 / 2][..], &values].concat()))
    };
    let events = [(1, 11), (2, 12)].map(event).concat();
    [b"PERFILE2".to_vec(), words(&[16]), events, samples.iter().flat_map(sample).collect()].concat()
}

/// Those that have counted since, in the order of times. perf has no event for the last id.
#[test]
fn a_group_is_a_sample_of_each_member_that_has_counted() {
    let place = Place::new();
    let file = place.file("perf.data");
    let samples: [(u64, &[(u64, u64)]); 3] =
        [(30, &[(260, 11), (7, 12)]), (10, &[(100, 11), (0, 12)]), (20, &[(180, 11), (7, 12), (5, 99)])];
    fs::write(&file, group(&samples)).unwrap();
    let shown = objects(&["convert", "--json", &file]);
    let shown: Vec<_> =
        shown.iter().map(|shown| (shown["time"].as_u64(), shown["event"].as_str(), shown["period"].as_u64())).collect();
    let sample = |time, event, period| (Some(time), Some(event), Some(period));
    let expected = [
        sample(10, "task-clock", 100),
        sample(20, "task-clock", 80),
        sample(20, "page-faults", 7),
        sample(30, "task-clock", 80),
    ];
    assert_eq!(shown, expected);
    let text = printed(&["convert", "--text", &file]);
    let words: Vec<_> = text.lines().map(|line| line.split_once(": ").unwrap().1.trim_end()).collect();
    let expected = expected.map(|(_, event, period)| format!("{}: period={}", event.unwrap(), period.unwrap()));
    assert_eq!(words, expected);
    // One with counts of unknown ids alone is shown as itself.
    fs::write(&file, group(&[(40, &[(5, 99)])])).unwrap();
    let shown = objects(&["convert", "--json", &file]);
    assert_eq!((shown.len(), shown[0]["event"].as_str(), shown[0]["time"].as_u64()), (1, Some("task-clock"), Some(40)));
}

/// Each command says it once, wherever it is in the recording.
#[test]
fn aux_data_is_said_not_to_be_decoded() {
    let place = Place::new();
    let file = place.file("perf.data");
    let recording = group(&[(10, &[(100, 11)]), (20, &[(180, 11)])]);
    // AUXTRACE, with so many bytes behind it.
    let aux = [&71u32.to_ne_bytes()[..], &[0, 0, 48, 0], &40u64.to_ne_bytes(), &[0; 32], &[0xff; 40]].concat();
    for (recording, bytes) in [(recording.clone(), None), ([recording, aux.clone(), aux].concat(), Some(80))] {
        fs::write(&file, recording).unwrap();
        for command in [&["convert", "--text", &file][..], &["convert", "--html", &file], &["verify", &file]] {
            let ran = perfweave(command).output().unwrap();
            let said = String::from_utf8([ran.stdout, ran.stderr].concat()).unwrap();
            let lines: Vec<_> = said.lines().filter(|line| line.contains("AUX")).collect();
            match bytes {
                None => assert!(lines.is_empty(), "{lines:?}"),
                Some(bytes) => {
                    let words = format!("{bytes} bytes of AUX data (Intel PT, Arm CoreSight, SPE) are not decoded");
                    assert!(lines.len() == 1 && lines[0].contains(&words), "{command:?}: {lines:?}");
                }
            }
        }
        let verified: Value =
            serde_json::from_slice(&perfweave(&["verify", "--json", &file]).output().unwrap().stdout).unwrap();
        assert_eq!(verified["aux_bytes"], bytes.unwrap_or(0));
    }
}

/// The same samples as perf, with the same periods.
#[test]
fn groups_have_the_members_that_perf_gives_them() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = perf() else { return };
    let script = "for i in 1 2 3 4 5 6 7 8; do echo $i | cat >/dev/null; done";
    let events = "{task-clock,page-faults,context-switches}:S";
    for (target, has_cpu) in [(&["-a"][..], true), (&[], false)] {
        let args =
            [&["record", "-N", "-q", "-e", events, "-o", &file][..], target, &["--", "sh", "-c", script]].concat();
        let told = perfweave_support::perf::printed(Command::new("perf").args(args));
        let Some(_) = perfweave_support::kernel("record a group with perf", told) else { return };
        let args = ["script", "-i", &file, "--ns", "-F", "tid,time,event,period"];
        let lines = perfweave_support::perf::printed(Command::new("perf").args(args)).unwrap();
        let mut perfs: Vec<_> =
            lines.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let objects = objects(&["convert", "--json", &file]);
        let samples = objects.iter().filter(|object| object["period"].is_u64());
        let mut ours: Vec<_> = samples
            .map(|object| {
                let [time, period] = ["time", "period"].map(|key| object[key].as_u64().unwrap());
                // A process that has ended has no number any more. perf writes -1.
                let tid = object["tid"].as_u64().map_or("-1".to_owned(), |tid| tid.to_string());
                let (seconds, nanos) = (time / 1_000_000_000, time % 1_000_000_000);
                format!("{tid} {seconds}.{nanos:09}: {period} {}:", object["event"].as_str().unwrap())
            })
            .collect();
        assert!(ours.iter().any(|line| line.ends_with("page-faults:")), "{ours:?}");
        assert!(!has_cpu || ours.iter().any(|line| line.ends_with("context-switches:")), "{ours:?}");
        let text = printed(&["convert", "--text", &file]);
        assert_eq!(text.lines().filter(|line| line.contains(": period=")).count(), ours.len());
        // Of equal times perf has another order.
        perfs.sort();
        ours.sort();
        assert_eq!(ours, perfs);
    }
}

/// Dates and times of day are those that perf makes of the same recording.
#[test]
fn the_wall_clock_is_that_of_perf() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded(&file, &["-a"]) else { return };
    let objects = objects(&["convert", "--json", "--time", "real", &file]);
    let text = printed(&["convert", "--text", "--time", "real", &file]);
    let Some(()) = perf() else { return };
    let script = ["script", "-i", &file, "-F", "tod", "--ns"];
    let lines = perfweave_support::perf::printed(Command::new("perf").env("TZ", "UTC").args(script)).unwrap();
    let perfs: Vec<_> = lines.lines().map(|line| line.trim().trim_end_matches(':').replacen(' ', "T", 1)).collect();
    let of_tracepoints = |line: &&str| line.contains(" sched:");
    let words = |line: &str| line.split_whitespace().find(|word| word.ends_with("Z:")).unwrap().replace("Z:", "");
    let ours: Vec<_> = text.lines().filter(of_tracepoints).map(words).collect();
    assert!(!ours.is_empty() && ours == perfs, "{ours:?} {perfs:?}");
    // 2025 and later.
    assert!(records(&objects).iter().all(|object| object["time"].as_u64().unwrap() > 1_735_689_600_000_000_000));
    // No recording says the others.
    let failed = perfweave(&["convert", "--text", "--time", "tai", &file]).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("--time real"));
}

/// `--time monotonic` prints no other clock's times for those of CLOCK_MONOTONIC.
#[test]
fn times_of_another_clock_are_not_taken_for_monotonic_ones() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = perf() else { return };
    for (clock, says) in [
        (&["-k", "realtime"][..], "CLOCK_REALTIME"),
        (&["-k", "boottime"], "CLOCK_BOOTTIME"),
        (&[], "perf's own clock"),
    ] {
        let args = [&["record", "-N", "-q", "-a", "-e", "cpu-clock", "-o", &file][..], clock, &["--", "true"]].concat();
        let told = perfweave_support::perf::printed(Command::new("perf").args(args));
        let Some(_) = perfweave_support::kernel("perf record -a", told) else { return };
        printed(&["convert", "--text", &file]);
        let failed = perfweave(&["convert", "--text", "--time", "monotonic", &file]).output().unwrap();
        let said = String::from_utf8(failed.stderr).unwrap();
        assert!(failed.status.code() == Some(1) && said.contains(&format!("those of {says}")), "{said}");
    }
    // Those of the wall clock are dates as they are.
    let args = ["record", "-N", "-q", "-a", "-e", "cpu-clock", "-o", &file, "-k", "realtime", "--", "true"];
    perfweave_support::perf::printed(Command::new("perf").args(args)).unwrap();
    assert!(printed(&["convert", "--text", "--time", "real", &file]).lines().count() > 0);
    let Some(()) = recorded(&file, &["-a"]) else { return };
    assert_eq!(printed(&["convert", "--text", "--time", "monotonic", &file]), printed(&["convert", "--text", &file]));
}

/// Whose links an output follows, and who may read it.
#[cfg(feature = "svg")]
#[test]
fn an_output_follows_no_link_of_others_and_is_as_private_as_the_recording() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
    let place = Place::new();
    let [file, precious, link, page] = ["perf.data", "precious", "link", "page"].map(|name| place.file(name));
    let Some(()) = recorded(&file, &[]) else { return };
    let mode = |path: &str| fs::metadata(path).unwrap().mode() & 0o777;
    let convert = |output: &str| perfweave(&["convert", "--html", &file, "-o", output]).output().unwrap();
    let record = |output: &str| perfweave(&["record", "-o", output, "--", "true"]).output().unwrap();
    let flames =
        |output: &str| perfweave(&["profile", "-F", "999", "--svg", output, "--", "sh", "-c", BUSY]).output().unwrap();
    const BUSY: &str = "n=0; while [ $n -lt 100000 ]; do n=$((n+1)); done";
    // A new file, and one that was public.
    fs::write(&link, "").unwrap();
    fs::set_permissions(&link, PermissionsExt::from_mode(0o644)).unwrap();
    for output in [&page, &link] {
        for run in [&convert as &dyn Fn(&str) -> _, &flames] {
            let ran = run(output);
            assert!(ran.status.success() && mode(output) == 0o600, "{:o}: {ran:?}", mode(output));
        }
        fs::remove_file(output).unwrap();
    }
    fs::write(&precious, "precious").unwrap();
    symlink(&precious, &link).unwrap();
    let Some(()) = perfweave_support::kernel("give a link away", lchown(&link, Some(65534), None)) else { return };
    for run in [&convert as &dyn Fn(&str) -> _, &flames, &record] {
        let ran = run(&link);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code() == Some(1) && said.contains("a link of user 65534"), "{said}");
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
    }
    // Own links lead on, and so do a pipe and a descriptor.
    lchown(&link, Some(nix::unistd::geteuid().as_raw()), None).unwrap();
    assert!(convert(&link).status.success() && fs::metadata(&precious).unwrap().len() > 1000);
    let printed = convert("/dev/stdout");
    assert!(printed.status.success() && printed.stdout == fs::read(&precious).unwrap(), "{printed:?}");
    // Another user's file would show that user what only this one may see, and that user may change it.
    chown(&precious, Some(65534), None).unwrap();
    assert_eq!(convert(&precious).status.code(), Some(1));
    // A recording that all may read, in a folder that only this user may enter, tells others nothing. Nor does what is
    // made of it elsewhere.
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    for output in [&page, &place.file("public")] {
        if output != &page {
            fs::write(output, "").unwrap();
            fs::set_permissions(output, PermissionsExt::from_mode(0o644)).unwrap();
        }
        assert!(convert(output).status.success());
        assert_eq!(mode(output), 0o600);
    }
}

/// A link in /proc leads to what a process has open. That of this process is its user's choice, that of another is
/// looked at as any file is.
#[test]
fn a_descriptor_of_another_process_is_no_way_around_the_owner() {
    use std::os::unix::fs::chown;
    let place = Place::new();
    let [file, theirs] = ["perf.data", "theirs"].map(|name| place.file(name));
    let Some(()) = recorded(&file, &["-e", "sched:sched_process_exec"]) else { return };
    fs::write(&theirs, "precious").unwrap();
    let Some(()) = perfweave_support::kernel("give a file away", chown(&theirs, Some(65534), None)) else { return };
    let open = || File::options().append(true).open(&theirs).unwrap();
    let mut other = Command::new("cat").stdin(Stdio::piped()).stdout(open()).spawn().unwrap();
    let link = format!("/proc/{}/fd/1", other.id());
    let ran = perfweave(&["convert", "--html", &file, "-o", &link]).output().unwrap();
    drop(other.stdin.take());
    other.wait().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(1) && said.contains("belongs to user 65534"), "{said}");
    assert_eq!(fs::read(&theirs).unwrap(), b"precious");
    let ran = perfweave(&["convert", "--html", &file, "-o", "/dev/stdout"]).stdout(open()).output().unwrap();
    assert!(ran.status.success() && fs::metadata(&theirs).unwrap().len() > 1000, "{ran:?}");
}

/// Keeps all CPUs from being idle: there kernels leave out samples in interrupts (docs/PLATFORMS.md).
fn busy() -> load::Load {
    load::Load::on(&load::online(), |_| (0..1000).for_each(|_| std::hint::spin_loop()))
}

/// The data in a page.
#[track_caller]
fn page_data(file: &str) -> Value {
    let page = printed(&["convert", "--html", file]);
    let (_, data) = page.split_once("<script type=\"application/json\" id=\"data\">").expect("data");
    serde_json::from_str(data.split_once("</script>").expect("its end").0).unwrap()
}

/// The thread that an interrupt interrupts has no part in the wake-up: what says so is the kernel's `common_flags`.
#[test]
fn wake_ups_by_interrupts_are_not_those_of_the_interrupted_thread() {
    let place = Place::new();
    let file = place.file("perf.data");
    let _busy = busy();
    // A timer's interrupt wakes a sleeper, while another thread may run.
    let script = "while :; do :; done & for i in 1 2 3 4 5; do sleep 0.02; done; kill $!";
    let Some(()) = support::recorded_while(&file, &["-a"], script) else { return };
    let objects = objects(&["convert", "--json", &file]);
    let wakings: Vec<_> = objects.iter().filter(|object| object["event"] == "sched:sched_waking").collect();
    let bits = |object: &Value| object["fields"]["common_flags"].as_u64().unwrap() & 0x58;
    assert!(wakings.iter().all(|waking| (bits(waking) != 0) == waking["interrupt"].is_string()));
    assert!(wakings.iter().any(|waking| waking["interrupt"].is_string()), "{wakings:?}");
    let printed = printed(&["convert", "--text", &file]);
    let by = |kind: &str| wakings.iter().filter(|waking| waking["interrupt"] == kind).count();
    for (kind, end) in [("hardirq", " (by hardirq)"), ("softirq", " (by softirq)")] {
        let lines = printed.lines().filter(|line| line.contains("sched_waking:") && line.ends_with(end));
        assert_eq!(lines.count(), by(kind), "{kind}");
    }
    // The page: an event ends with the interrupt, and a wake-up has [time, CPU, waker, woken, ran, on]. The events are
    // those of before.
    let page = page_data(&file);
    let of_page = |interrupt: &str| {
        let points = page["points"].as_array().unwrap().iter().filter(|point| point[7] == interrupt);
        points.filter(|point| page["events"][point[3].as_u64().unwrap() as usize] == "sched:sched_waking").count()
    };
    assert_eq!([of_page("hardirq"), of_page("softirq")], [by("hardirq"), by("softirq")]);
    let mut wakes = page["wakes"].as_array().unwrap().iter();
    assert!(wakes.any(|wake| wake[2] == "hardirq"), "{:?}", page["wakes"]);
    marks_are_on_cpus(&file, &page);
}

/// The Firefox profile has each wake-up by an interrupt on the track of a CPU, and the others on those of threads.
#[track_caller]
fn marks_are_on_cpus(file: &str, page: &Value) {
    let profile: Value = serde_json::from_str(&printed(&["convert", "--firefox", file])).unwrap();
    let (mut on_cpus, mut on_threads) = (0, 0);
    for track in profile["threads"].as_array().unwrap() {
        let (names, texts) = (track["markers"]["name"].as_array().unwrap(), &track["stringArray"]);
        let marks = names.iter().filter(|name| texts[name.as_u64().unwrap() as usize] == "sched:sched_waking").count();
        let is_cpu = track["name"].as_str().unwrap().starts_with("CPU ");
        *(if is_cpu { &mut on_cpus } else { &mut on_threads }) += marks;
    }
    let points = page["points"].as_array().unwrap().iter();
    let event = |point: &Value| page["events"][point[3].as_u64().unwrap() as usize].clone();
    let wakings: Vec<_> = points.filter(|point| event(point) == "sched:sched_waking").collect();
    // The idle thread has no track, and a thread that has given its number back, but runs on to its last switch, none.
    let has_track = |point: &Value| point[7].is_null() && point[2].as_u64().is_some_and(|tid| tid > 0);
    let by_threads = wakings.iter().filter(|point| has_track(point)).count();
    assert_eq!((on_threads, on_cpus), (by_threads, wakings.len() - by_threads));
}

/// In a container tracepoints have the numbers of the first PID namespace, and all else has those of the container.
#[test]
fn what_is_recorded_in_a_pid_namespace_is_joined() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded(&file, &["-a"]) else { return };
    let script = "ls | cat; ls | cat; sleep 0.01; :";
    for target in [&["-a"][..], &[]] {
        let words = ["-pfm", "--mount-proc", env!("CARGO_BIN_EXE_perfweave"), "record", "-o", &file];
        let words = [&words[..], target, &["--", "sh", "-c", script]].concat();
        let output = Command::new("unshare").args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let Some(()) = perfweave_support::needs("PID namespaces for this user", !said.starts_with("unshare:")) else {
            return;
        };
        assert!(output.status.success(), "{said}");
        let page = page_data(&file);
        let all = |what: &str| page[what].as_array().unwrap().iter();
        let ours = ["sh", "ls", "cat", "sleep"];
        let is_ours = |thread: &&Value| thread[0].as_u64() < Some(100) && ours.iter().any(|name| thread[2] == *name);
        let of_ours: Vec<_> = all("threads").filter(is_ours).map(|thread| &thread[0]).collect();
        // All that the script's threads do is under the numbers that the container has for them.
        let named =
            |tid: &Value| all("threads").find(|thread| thread[0] == *tid).map(|thread| thread[2].as_str().unwrap());
        let scripts = all("runs").map(|run| &run[3]).filter(|tid| matches!(named(tid), Some("ls" | "cat" | "sleep")));
        let scripts: Vec<_> = scripts.map(|tid| tid.as_u64().unwrap()).collect();
        let inside = scripts.iter().filter(|tid| **tid < 100).count();
        // Beside other programs of these names, if those are traced too. If they are not, a thread that keeps its CPU
        // from its first switch to its end has no record of a switch, as on a busy machine: only `sleep` always has
        // one.
        let is_all = target == ["-a"];
        assert!(inside >= if is_all { 5 } else { 1 } && (inside == scripts.len() || is_all), "{target:?} {scripts:?}");
        for tid in &of_ours {
            let (runs, points) = (all("runs").any(|run| run[3] == **tid), all("points").any(|point| point[2] == **tid));
            assert!((runs || !is_all) && points, "{tid}: {runs} {points} {:?}", all("threads").collect::<Vec<_>>());
        }
        let joined = all("wakes").filter(|wake| of_ours.contains(&&wake[3]) && !wake[4].is_null());
        assert!(joined.count() > 0, "{target:?} {of_ours:?} {:?}", all("wakes").collect::<Vec<_>>());
        // An event's fields name threads by `common_pid`.
        let objects = objects(&["convert", "--json", &file]);
        let switches = objects.iter().filter(|object| object["event"] == "sched:sched_switch" && object["tid"] != 0);
        let switches: Vec<_> = switches.filter(|object| !object["comm"].is_null()).collect();
        assert!(
            switches.iter().all(|object| object["fields"]["common_pid"] == object["fields"]["prev_pid"]),
            "{switches:?}"
        );
        let sleeps: Vec<_> = switches.iter().filter(|object| object["fields"]["prev_comm"] == "sleep").collect();
        assert!(!sleeps.is_empty() && sleeps.iter().all(|object| object["tid"].as_u64() < Some(100)), "{sleeps:?}");
        let told = perfweave(&["convert", "--firefox", &file]).output().unwrap();
        assert!(String::from_utf8_lossy(&told.stderr).contains("recorded in a PID namespace"), "{told:?}");
    }
}

/// A thread that waits while records are missing may have run meanwhile.
#[test]
fn no_wait_in_the_page_spans_a_loss() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = support::recorded_with_losses(&file, &["-a"]) else { return };
    let page = page_data(&file);
    let stretches = |what: &str, from: usize, to: usize| {
        let all = page[what].as_array().unwrap().iter();
        all.filter_map(|one| Some((one[from].as_u64()?, one[to].as_u64()?))).collect::<Vec<_>>()
    };
    let (losses, mut waits) = (stretches("losses", 0, 1), stretches("wakes", 0, 4));
    waits.extend(stretches("waits", 0, 1));
    assert!(!losses.is_empty() && !waits.is_empty(), "{} losses, {} waits", losses.len(), waits.len());
    for (woken, ran) in waits {
        let over = losses.iter().find(|(from, to)| *from < ran && *to > woken);
        assert_eq!(over, None, "a thread that waited from {woken} to {ran}");
    }
}

/// Hand-made events whose formats have a list that ends with a null pointer, a name that only the kernel has, addresses
/// of the net, and what has no line.
#[test]
fn lines_are_those_that_the_kernel_prints() {
    let text = printed(&["convert", "--text", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats.pipe")]);
    let lines: Vec<_> = text.lines().skip(1).map(|line| line.rsplit_once(": ").unwrap().1).collect();
    let expected = [
        "port=5 action=TX",
        "8,1 class 0x2 by door",
        "from=127.0.0.1 to=::1 port=443 state=CLOSED",
        "ptr=0xffff888126ada2e0 saddr=10.0.0.2",
    ];
    assert_eq!(lines, expected);
}

/// Functions of the kernel have their names in a recording of this boot, and strings of the kernel come with it.
#[test]
fn functions_of_the_kernel_have_names() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded_while(&file, &["-e", "timer:hrtimer_start"], "sleep 0.01") else { return };
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    if symbols.lines().all(|line| line.starts_with("0000")) {
        return perfweave_support::lacks("addresses in /proc/kallsyms");
    }
    let text = printed(&["convert", "--text", &file]);
    assert!(text.contains(" function=hrtimer_wakeup expires="), "{text}");
}

#[test]
fn a_pipe_is_read_and_a_closed_pipe_ends_it_well() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded(&file, &["-a"]) else { return };
    let piped = perfweave(&["convert", "--text", "-"]).stdin(File::open(&file).unwrap()).output().unwrap();
    assert!(piped.status.success());
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), printed(&["convert", "--text", &file]));
    for format in ["--text", "--json", "--html", "--folded"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = perfweave(&["convert", format, &file]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert!(closed.status.success(), "{format}");
        assert!(!String::from_utf8_lossy(&closed.stderr).contains("pipe"), "{format}");
    }
}

#[test]
fn what_is_no_recording_is_an_error_that_says_so() {
    let place = Place::new();
    let file = place.file("x");
    fs::write(&file, "no recording").unwrap();
    for (args, status, says) in [
        (&["convert", "--text", &file][..], 1, "cannot read"),
        (&["convert", "--text", "/nonexistent"], 1, "No such file"),
        (&["convert", &file], 2, "--html"),
        (&["convert", "--text", "--json", &file], 2, "cannot be used with"),
    ] {
        let output = perfweave(args).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(says), "{args:?}");
    }
}

#[test]
fn call_chains_have_threads_and_functions() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded(&file, &["-a", "-e", "sched:sched_switch", "--call-graph"]) else { return };
    let folded = printed(&["convert", "--folded", &file]);
    let samples = objects(&["convert", "--json", &file]);
    let samples = samples.iter().filter(|object| object["event"] == "sched:sched_switch").count();
    let counts = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap());
    assert_eq!(counts.sum::<usize>(), samples);
    assert!(folded.lines().any(|line| line.starts_with("sh;")), "{folded}");
    // Without any, it names the option that records them. No program here makes the kernel emulate an instruction.
    let Some(()) = recorded(&file, &["-e", "emulation-faults"]) else { return };
    let none = perfweave(&["convert", "--folded", &file]).output().unwrap();
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(none.stdout.is_empty() && said.contains("record with --call-graph"), "{none:?}");
    assert!(printed(&["record", "--help"]).contains("  --call-graph"));
}

#[test]
fn the_firefox_profile_has_threads_marks_and_samples() {
    let place = Place::new();
    let (file, profile) = (place.file("perf.data"), place.file("profile.json"));
    let Some(()) = recorded(&file, &["-a", "-e", "sched:sched_switch", "--call-graph"]) else { return };
    printed(&["convert", "--firefox", &file, "-o", &profile]);
    let profile: Value = serde_json::from_slice(&fs::read(&profile).unwrap()).unwrap();
    let threads = profile["threads"].as_array().unwrap();
    let count = |part: &str| threads.iter().map(|thread| thread[part]["length"].as_u64().unwrap()).sum::<u64>();
    let objects = objects(&["convert", "--json", &file]);
    let timed = records(&objects).into_iter().filter(|record| record["time"].as_u64().unwrap_or(0) > 0);
    let (switches, others): (Vec<_>, Vec<_>) = timed.partition(|record| record["event"] == "sched:sched_switch");
    assert_eq!(count("samples"), switches.len() as u64);
    // Names that are older than the first event have no marks.
    let first = switches.first().unwrap()["time"].as_u64();
    let others = others.iter().filter(|record| record["time"].as_u64() >= first).count();
    assert!(count("markers") >= (switches.len() + others) as u64);
    assert!(threads.iter().any(|thread| thread["name"] == "sh"));
    // Its start has the date that `--time real` gives the first event that is no name, in milliseconds.
    let real = self::objects(&["convert", "--json", "--time", "real", &file]);
    let is_event = |object: &&Value| object["event"].as_str().is_some_and(|event| event.contains(':'));
    let real = real.iter().find(is_event).unwrap()["time"].as_u64().unwrap();
    assert!((profile["meta"]["startTime"].as_f64().unwrap() - real as f64 / 1e6).abs() < 0.01);
}

/// By perf's own clock, which no program can read, a recording has no dates. It says so, and invents none.
#[test]
fn a_recording_without_a_wall_clock_has_no_date() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = perf() else { return };
    let args = ["record", "-N", "-q", "-a", "-e", "cpu-clock", "-o", &file, "--", "sh", "-c", "echo; cat </dev/null"];
    let told = perfweave_support::perf::printed(Command::new("perf").args(args));
    let Some(_) = perfweave_support::kernel("perf record -a", told) else { return };
    let converted = |format: &str| {
        let output = perfweave(&["convert", format, &file]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.contains("what the wall clock was"), "{said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let profile: Value = serde_json::from_str(&converted("--firefox")).unwrap();
    assert_eq!(
        (&profile["meta"]["startTime"], &profile["meta"]["product"]),
        (&0.0.into(), &"perf.data, date not known".into())
    );
    assert!(converted("--html").contains("\"wall\":null,"));
    assert!(cfg!(not(feature = "perfetto")) || !converted("--perfetto").is_empty());
}

/// A pipe of another user does not keep the program waiting, and a recording is not written over by what is made of it.
#[test]
fn an_output_is_no_pipe_of_others_and_not_the_recording() {
    let place = Place::new();
    let (file, pipe) = (place.file("perf.data"), place.file("pipe"));
    let Some(()) = recorded(&file, &["-e", "sched:sched_process_exec"]) else { return };
    nix::unistd::mkfifo(pipe.as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::chown(&pipe, Some(65534), Some(65534)).unwrap();
    for output in [&pipe, &file] {
        let before = fs::metadata(&file).unwrap().len();
        let ran = perfweave(&["convert", "--html", &file, "-o", output]).output().unwrap();
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        assert_eq!(fs::metadata(&file).unwrap().len(), before);
    }
}
