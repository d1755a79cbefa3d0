//! `record -a -e why`: switches and the calls in which threads fall asleep, told by a program, in a recording.

mod program;
mod support;

use perfweave::{Order, Reader, RingOptions, Rings};
use perfweave_events::EventOptions;
use perfweave_perf_data::Writer;
use perfweave_support::{bpf, load, perf};
use program::{Ran, perfweave, run, traced};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use support::Place;

/// The programs' output has this name in a recording.
const NAME: &str = "perfweave-switches";

/// The same by tracepoints.
const TRACEPOINTS: &str = "sched:sched_switch,sched:sched_waking,raw_syscalls:*";

fn objects(ran: &Ran) -> Vec<Value> {
    ran.out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Records a command, and gives the number that it prints. On a busy machine some records may be lost: then again.
#[track_caller]
fn recorded(file: &str, events: &str, command: &[&str]) -> Option<String> {
    let record = ["record", "--json", "-a", "--buffer", "16M", "-e", events, "-o", file, "--"];
    for _ in 0..10 {
        let ran = traced(&[&record, command].concat())?;
        let refused = ran.err.lines().find(|line| line.contains("needs a BPF program"));
        perfweave_support::kernel("load BPF programs at sched_switch", refused.map_or(Ok(()), Err))?;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let objects = objects(&ran);
        let summary = &objects[1]["summary"];
        assert_eq!(summary["late"], 0, "{summary}");
        if summary["lost"] == 0 {
            return Some(ran.out.lines().next().unwrap_or_default().to_owned());
        }
    }
    perfweave_support::lacks("a recording without losses, of ten");
    None
}

/// In which calls the threads of a process have waited for a tenth of a second or more.
#[track_caller]
fn waits(file: &str, process: &str) -> BTreeSet<[String; 2]> {
    let ran = run(perfweave().args(["why", "--json", "-n", "10000", "-p", process, "-i", file]), "");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let objects = objects(&ran);
    let long = objects.iter().filter(|object| object["ns"].as_u64() >= Some(100_000_000));
    let blocked = |wait: &Value| {
        let mut steps = wait["path"].as_array().unwrap().iter().filter(|step| step["what"] == "blocked");
        let longest = steps.by_ref().max_by_key(|step| step["ns"].as_u64());
        longest.map(|step| ["thread", "call"].map(|name| step[name].as_str().unwrap_or_default().to_owned()))
    };
    let name = |[thread, call]: [String; 2]| [thread.split('/').next().unwrap_or_default().to_owned(), call];
    long.filter_map(blocked).map(name).collect()
}

/// How many records of switches and calls of a file a process has. Interrupts and what others do meanwhile do not count.
fn of_process(file: &str, process: &str) -> usize {
    let ran = run(perfweave().args(["convert", "--json", file]), "");
    assert_eq!(ran.code, Some(0), "{:.2000}", ran.err);
    let is_of = |object: &&Value| object["pid"].as_u64() == process.parse().ok();
    let counts = |object: &&Value| {
        let event = object["event"].as_str().unwrap_or_default();
        event == NAME || event == "sched:sched_switch" || event.starts_with("raw_syscalls:")
    };
    objects(&ran).iter().filter(is_of).filter(counts).count()
}

/// The same waits in the same calls, in at most half of the records. perf reads both.
#[test]
fn a_recording_tells_the_same_waits_in_half_the_records() {
    let place = Place::new();
    let [by_program, by_tracepoints] = ["program", "tracepoints"].map(|name| place.file(name));
    // Many calls that do not block, and three that do.
    let script = "echo $$; i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); test -e /; done; sleep 0.2 | cat; :";
    let command = ["sh", "-c", script];
    // The kernel leaves a switch out now and then.
    let has_all = |waits: &BTreeSet<[String; 2]>| {
        let all = [("sh", "wait4"), ("sleep", "nanosleep"), ("cat", "read")];
        all.iter().all(|(comm, call)| waits.iter().any(|[has, of]| has == comm && of.contains(call)))
    };
    let told = |file: &str, events: &str| {
        for _ in 0..10 {
            let shell = recorded(file, events, &command)?;
            if has_all(&waits(file, &shell)) {
                let records = of_process(file, &shell);
                return Some((shell, records));
            }
        }
        perfweave_support::lacks("a recording with all switches of a shell, of ten");
        None
    };
    let Some((shell, few)) = told(&by_program, "why") else { return };
    let Some((_, many)) = told(&by_tracepoints, TRACEPOINTS) else { return };
    assert!(many > 40_000 && few * 2 <= many, "{few} of {many}");
    let periods = run(perfweave().args(["offcpu", "--json", "-p", &shell, "-i", &by_program]), "");
    let asleep = |row: &Value| row["comm"] == "sleep" && row["times"]["max_ns"].as_u64() >= Some(190_000_000);
    assert!(objects(&periods).iter().any(asleep), "{periods:?}");
    let report = run(perfweave().args(["report", "--json", &by_program]), "");
    let report = &objects(&report)[0];
    let has = |list: &str, text: &str| report[list].as_array().unwrap().iter().any(|of| of.to_string().contains(text));
    assert!(has("events", NAME) && has("more", "why ") && has("more", "offcpu ") && has("busiest", "ns"), "{report:#}");
    let text = run(perfweave().args(["convert", "--text", &by_program]), "");
    assert!(text.out.lines().any(|line| line.contains(" falls asleep in wait4; ")), "{:.2000}", text.out);
    if perf().is_some() {
        let says = |words: (&str, &str)| {
            let script = format!("perf {} -i {by_program} {}", words.0, words.1);
            perfweave_support::perf::printed(Command::new("sh").args(["-c", &script])).unwrap()
        };
        // What it prints of the bytes is no text.
        says(("script", ">/dev/null"));
        assert!(
            [("script", "-F event"), ("report", "--stdio"), ("evlist", "")]
                .into_iter()
                .all(|words| says(words).contains(NAME))
        );
    }
}

/// The recorder's own threads switch, and their switches are those of others, too. But nobody asks what they wait for.
#[test]
fn the_recorder_is_not_what_is_asked_for() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(recorder) = recorded(&file, "why", &["sh", "-c", "echo $PPID; sleep 0.1; :"]) else { return };
    let text = run(perfweave().args(["convert", "--text", &file]), "");
    let has_switches = text.out.lines().any(|line| line.contains(&format!("{NAME}: {recorder} ")));
    assert!(has_switches, "{recorder}: {:.2000}", text.out);
    for command in ["why", "offcpu", "wakeups"] {
        let of = |whose: &[&str]| {
            objects(&run(perfweave().args([command, "--json", "-n", "10000", "-i", &file]).args(whose), ""))
        };
        let (all, family) = (of(&[]), of(&["-p", &recorder]));
        // With its child, the command.
        assert!(all.len() > 1 && family.len() > 1, "{command}: {family:#?}");
        let is_own = |object: &Value| {
            let names = ["thread", "comm", "woken", "waker"].map(|name| object[name].as_str().unwrap_or_default());
            let own = ["perfweave-fence", "signals", "wait"];
            let is_thread = names.iter().any(|name| own.contains(&name.split('/').next().unwrap_or_default()));
            let is_recorder = names.iter().any(|name| name.ends_with(&format!("/{recorder}")));
            is_thread
                || is_recorder
                || ["tid", "id"].iter().any(|name| object[name] == recorder.parse::<u64>().unwrap())
        };
        assert!(!family.iter().any(is_own), "{command} {recorder}: {family:#?}");
        // Threads of the kernel wait for work.
        let is_of_kernel = |object: &Value| object["thread"] == "rcu_preempt";
        assert!(!all.iter().any(is_of_kernel), "{command}: {all:#?}");
    }
}

/// A recording of what a program outputs, which looks like switches with these numbers, between 7 and 8.
#[track_caller]
fn output(file: &str, numbers: &[u32], source: impl Fn(RingOptions) -> RingOptions) -> Option<()> {
    outputs(file, &numbers.iter().map(|number| (1, *number)).collect::<Vec<_>>(), source)
}

/// The same with kinds before the numbers: 1 is a switch, and 4 is where the CPU stands.
#[track_caller]
fn outputs(file: &str, numbers: &[(u32, u32)], source: impl Fn(RingOptions) -> RingOptions) -> Option<()> {
    let [events, element] = [bpf::Map::perf_event_array(load::slots()), bpf::Map::array(20, 1)]
        .map(|map| perfweave_support::kernel("make BPF maps", map));
    let (events, element) = (events?, element?);
    let program = perfweave_support::kernel("load a BPF program", bpf::emitter(&events, &element, 20))?;
    // Nobody wakes this thread.
    let wakes = Rings::options().tracepoint("sched:sched_waking").filter("pid == 0");
    let options = source(wakes.bpf_output(&events)).bytes(1 << 16);
    let rings = perfweave_support::kernel("open rings", options.sample(sample_tid()).open())?;
    let cpu = rings.cpus().next().expect("a CPU");
    let mut reader = Reader::new(rings, Order::new()).unwrap();
    let mut writer = Writer::create(file, reader.rings()).unwrap();
    let mut between = [7, 8];
    for (kind, number) in numbers {
        let words =
            if *kind == 1 { [1, between[0], between[1], 1, *number] } else { [4, between[0], between[0], 0, *number] };
        element.update(0, &words.map(u32::to_ne_bytes).concat()).unwrap();
        assert_eq!(program.run_on(cpu).unwrap(), 0);
        if *kind == 1 {
            between.reverse();
        }
    }
    reader.handle().flush().unwrap();
    let mut came = 0;
    while came < numbers.len() {
        let event = reader.next().unwrap().expect("an event");
        let event = event.event();
        came += usize::from(event.record().is_some_and(|record| record.source() == Some(1)));
        writer.write(&event).unwrap();
    }
    writer.unreported(&reader.ledger().unwrap());
    writer.finish().unwrap();
    Some(())
}

/// `PERF_SAMPLE_TID`
fn sample_tid() -> u32 {
    2
}

/// Output of other programs is not taken for switches, also where its bytes are the same.
#[test]
fn what_others_output_is_not_taken_for_switches() {
    let place = Place::new();
    let file = place.file("perf.data");
    for name in [None, Some("perfweave-switches2"), Some("switches")] {
        let named = |options: RingOptions| name.into_iter().fold(options, RingOptions::named);
        let Some(()) = output(&file, &[1, 3, 9], named) else { return };
        for command in ["offcpu", "wakeups", "why"] {
            let ran = run(perfweave().args([command, "-i", &file]), "");
            let says = ran.err.contains("the recording has no sched:sched_switch") && ran.err.contains("-a -e why");
            assert!(ran.code == Some(1) && says, "{command} {name:?}: {ran:?}");
        }
    }
}

/// A missing number is a switch without a record.
#[test]
fn switches_without_a_record_are_counted_in_a_recording() {
    let place = Place::new();
    let file = place.file("perf.data");
    for (numbers, missing) in [(&[1, 2, 3, 4][..], Value::Null), (&[1, 2, 5, 6], 2.into()), (&[u32::MAX, 1], 1.into())]
    {
        let Some(()) = output(&file, numbers, |options| options.named(NAME)) else { return };
        for command in ["offcpu", "wakeups", "why"] {
            let ran = run(perfweave().args([command, "--json", "-i", &file]), "");
            let objects = objects(&ran);
            let summary = &objects.last().unwrap_or_else(|| panic!("{ran:?}"))["summary"];
            assert_eq!(summary["unrecorded_switches"], missing, "{command} {numbers:?}: {summary}");
            assert!(missing.is_null() || summary["complete"] == false, "{command} {numbers:?}: {summary}");
            let text = run(perfweave().args([command, "-i", &file]), "");
            let says = format!("the kernel left {missing} switches out");
            assert_eq!(text.err.contains(&says), !missing.is_null(), "{text:?}");
        }
        // The certificate vouches for what is in the file alone.
        let verified = run(perfweave().args(["verify", &file]), "");
        let is_all = verified.out.contains("; nothing is ");
        assert_eq!((verified.code, is_all), (Some(0), missing.is_null()), "{verified:?}");
        assert_eq!(verified.out.contains(&format!("the kernel left {missing} switches out")), !is_all, "{verified:?}");
    }
}

/// A switch is missing before the first record of one, or behind the last: what the CPU has told of where it stands
/// shows it.
#[test]
fn switches_without_a_record_are_counted_at_both_ends() {
    let place = Place::new();
    let file = place.file("perf.data");
    for (begin, end, missing) in [(4, 6, Value::Null), (3, 6, 1.into()), (4, 8, 2.into())] {
        let told = [(4, begin), (1, 5), (1, 6), (4, end)];
        let Some(()) = outputs(&file, &told, |options| options.named(NAME)) else { return };
        for command in ["offcpu", "wakeups", "why"] {
            let ran = run(perfweave().args([command, "--json", "-i", &file]), "");
            let summary = &objects(&ran).pop().unwrap_or_else(|| panic!("{ran:?}"))["summary"];
            assert_eq!(summary["unrecorded_switches"], missing, "{command} {begin} {end}: {summary}");
        }
    }
}

/// Each CPU tells where it stands when a recording begins, and when it ends.
#[test]
fn each_cpu_tells_where_it_stands_at_both_ends() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(_) = recorded(&file, "why", &["echo", "7"]) else { return };
    let text = run(perfweave().args(["convert", "--text", &file]), "");
    let is_one = |line: &&str| line.contains(&format!("{NAME}: ")) && line.ends_with(" runs") && !line.contains(';');
    let lines: Vec<_> = text.out.lines().filter(is_one).collect();
    let cpus = load::slots() as usize;
    assert!(lines.len() % 2 == 0 && (2..=2 * cpus).contains(&lines.len()), "{cpus}: {lines:#?}");
}

/// Nobody is told to have run across switches without a record.
#[test]
fn time_across_switches_without_a_record_is_nobodys() {
    let place = Place::new();
    let file = place.file("perf.data");
    let numbers: Vec<u32> = (1..=11).chain([13, 14]).collect();
    let Some(()) = output(&file, &numbers, |options| options.named(NAME)) else { return };
    let converted = objects(&run(perfweave().args(["convert", "--json", &file]), ""));
    let is_switch = |object: &&Value| object["event"] == NAME;
    let times: Vec<_> = converted.iter().filter(is_switch).map(|object| object["time"].as_u64().unwrap()).collect();
    assert_eq!(times.len(), numbers.len(), "{converted:#?}");
    let report = run(perfweave().args(["report", "--json", &file]), "");
    let busiest = &objects(&report)[0]["busiest"];
    let ran: u64 = busiest.as_array().unwrap().iter().map(|of| of["ns"].as_u64().unwrap()).sum();
    assert_eq!(ran, times[10] - times[0] + times[12] - times[11], "{times:?} {busiest}");
}

/// A thread that begins another program takes the number of its process: that is no switch without a record.
#[test]
fn a_thread_that_begins_another_program_is_no_switch_without_a_record() {
    const TIMES: u64 = 20;
    let Some(python) = program::python() else { return };
    let begins = "import os, threading
threading.Thread(target=os.execv, args=('/bin/true', ['true'])).start()
threading.Event().wait(5)";
    let script = format!("for _ in $(seq {TIMES}); do \"$0\" -c \"$1\"; done; echo $$");
    let place = Place::new();
    let file = place.file("perf.data");
    // The kernel leaves a switch out now and then.
    let mut counts = (0..10).map_while(|_| recorded(&file, "why", &["sh", "-c", &script, &python, begins])).map(|_| {
        let ran = run(perfweave().args(["offcpu", "--json", "-i", &file]), "");
        let objects = objects(&ran);
        objects.last().unwrap_or_else(|| panic!("{ran:?}"))["summary"]["unrecorded_switches"].as_u64().unwrap_or(0)
    });
    let Some(first) = counts.next() else { return };
    assert!(first < TIMES || counts.any(|missing| missing < TIMES), "{first}");
}

/// Who asks for it without the whole machine, or where no program is granted, is told what to do.
#[test]
fn what_it_takes_is_said() {
    let ran = run(perfweave().args(["record", "-e", "why", "-o", "/dev/null", "--", "true"]), "");
    assert!(ran.code == Some(1) && ran.err.contains("whole machine") && ran.err.contains("help: add -a"), "{ran:?}");
    let chains = |how: &str, events: &str| {
        let record = ["record", "-a", "--call-graph", how, "-e", events, "-o", "/dev/null", "--", "true"];
        run(perfweave().args(record), "")
    };
    let has_dwarf = cfg!(all(feature = "dwarf", any(target_arch = "x86_64", target_arch = "aarch64")));
    for how in ["fp,defer", "dwarf"].into_iter().filter(|how| has_dwarf || *how != "dwarf") {
        let ran = chains(how, "why");
        let says = ran.err.contains("-e why has no call chains that are found later") && ran.err.contains("help: -g ");
        assert!(ran.code == Some(1) && says, "{ran:?}");
        assert!(!chains(how, "why,cpu-clock").err.contains("-e why has no"));
    }
    let Some((ran, _)) = program::run_by_nobody("record -a -e why -o /dev/null -- true") else { return };
    let lines: Vec<_> = ran.err.lines().collect();
    let says = [(0, "perfweave: -e why needs a BPF program: "), (1, "help: --no-bpf "), (2, "as this user, ")];
    assert!(ran.code == Some(1) && says.iter().all(|(at, line)| lines[*at].starts_with(line)), "{ran:?}");
}

/// What another name brings of it must be all: waits would be made up of what is left.
#[test]
fn what_other_names_thin_out_is_refused() {
    let record = |options: &str, events: &str| {
        let options = options.split_whitespace();
        let record = ["record", "-a"].into_iter().chain(options).chain(["-e", events, "-o", "/dev/null", "--", "true"]);
        traced(&record.collect::<Vec<_>>())
    };
    let refused = [
        ("-c 1000", "why,sched:sched_waking", "sched:sched_waking"),
        ("-c 1000 --no-bpf", "sched:*,why", "sched:*"),
        ("", "why,irq:softirq_*:u", "irq:softirq_*"),
        ("", "why,sched:*,sched:sched_waking:k", "sched:sched_waking"),
    ];
    for (options, events, name) in refused {
        let Some(ran) = record(options, events) else { return };
        if ran.err.contains("needs a BPF program") {
            continue;
        }
        let says = ran.err.contains(&format!("-e why needs each event of {name}\nhelp: leave "));
        assert!(ran.code == Some(1) && says, "{events}: {ran:?}");
    }
    for (options, events) in [("-c 1000", "why,cpu-clock"), ("-F 99", "why,sched:sched_waking,cpu-clock:u")] {
        let Some(ran) = record(options, events) else { return };
        assert!(!ran.err.contains("needs each event"), "{events}: {ran:?}");
    }
}

/// Call chains at switches are those of the tracepoint, and `--no-bpf` is asked for: then all is by tracepoints, once
/// each.
#[test]
fn without_a_program_it_is_by_tracepoints() {
    let place = Place::new();
    let file = place.file("perf.data");
    for (option, why) in [("--no-bpf", "--no-bpf"), ("-g", "for call chains")] {
        let record = ["record", "--json", "-a", option, "--buffer", "16M", "-e", "why,sched:*", "-o", &file];
        let Some(ran) = traced(&[&record, &["--", "sleep", "0.1"][..]].concat()) else { return };
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let summary = &objects(&ran)[0]["summary"];
        assert_eq!(summary["traced"], format!("calls traced at each entry and return ({why})"), "{summary}");
        let Some(()) = perf() else { continue };
        let list = perfweave_support::perf::printed(Command::new("perf").args(["evlist", "-i", &file])).unwrap();
        let count = |name: &str| list.lines().filter(|line| *line == name).count();
        let counts = ["sched:sched_switch", "sched:sched_waking", "raw_syscalls:sys_enter", NAME].map(count);
        assert_eq!(counts, [1, 1, 1, 0], "{list}");
    }
}
