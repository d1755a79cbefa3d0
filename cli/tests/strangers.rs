//! Recordings that strangers brought, made small (`cases/`): of other versions of perf, of other machines, and files that
//! are none. Every command says the same of them, in words of a user.

mod support;

use perfweave_support::{perf, runs};
use serde_json::Value;
use std::fs;
use std::process::{Command, Output};
use support::{Place, perfweave};

/// A case, by its name.
fn case(name: &str) -> String {
    format!("{}/tests/cases/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// What a command prints, and what it says beside that.
fn said(args: &[&str]) -> [String; 2] {
    let Output { stdout, stderr, .. } = perfweave(args).output().unwrap();
    [stdout, stderr].map(|text| String::from_utf8(text).unwrap())
}

/// perf since 6.1 counts all losses at the end (945), and older kernels tell those of the processor in between (7).
#[test]
fn lost_samples_are_counted() {
    for (name, lost, placed) in [("lost.pipe", 945, 0), ("lost-in-between.pipe", 7, 7)] {
        let file = case(name);
        let verdict: Value = serde_json::from_str(&said(&["verify", "--json", &file])[0]).unwrap();
        let (found, cpu) = (&verdict["found"], &verdict["cpus"][0]);
        assert!(found["lost"] == lost && found["back"] == 0 && found["records"] == 3, "{name}: {verdict}");
        assert!(cpu["lost"] == placed && cpu["records"] == 3 && verdict["cpus"][1].is_null(), "{name}: {verdict}");
        let [text, _] = said(&["verify", &file]);
        assert!(text.contains(&format!("{lost} lost")) && text.contains("none is older than one before it"), "{text}");
        let elsewhere = format!("{} records were lost", lost - placed);
        assert_eq!(text.contains(&elsewhere), placed < lost, "{text}");
        let [text, beside] = said(&["convert", "--text", &file]);
        assert_eq!(beside.contains(&elsewhere), placed < lost, "{beside}");
        assert!(!text.contains("LOST_SAMPLES"), "{text}");
        let lines: Vec<_> = text.lines().collect();
        let loss = lines.iter().position(|line| line.contains("1.000001500: CPU 0 lost 7 records here"));
        assert_eq!((loss, lines.len()), if placed > 0 { (Some(2), 4) } else { (None, 3) }, "{text}");
    }
}

/// Nobody has ended a wait that goes on when the recording ends.
#[test]
fn a_wait_that_goes_on_at_the_end_is_told_as_such() {
    let file = case("goes-on.pipe");
    let [text, _] = said(&["why", &file, "--comm", "server"]);
    assert!(text.contains("  1.00 s  blocked: it goes on at the end\n"), "{text}");
    assert!(text.contains("server/70 was blocked: it goes on at the end") && !text.contains("nothing says"), "{text}");
    let [json, _] = said(&["why", "--json", &file, "--comm", "server"]);
    let paths: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let goes_on: Vec<_> = paths.iter().filter(|path| path["goes_on"] == true).collect();
    assert!(goes_on.len() == 1 && goes_on[0]["ns"] == 1_001_000_000, "{json}");
}

/// perf says the number that this recorder wrote: of all losses, and each once.
#[test]
fn perf_reports_the_losses_of_a_recording() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = support::recorded_with_losses(&file, &[]) else { return };
    let verdict: Value = serde_json::from_str(&said(&["verify", "--json", &file])[0]).unwrap();
    let lost = verdict["found"]["lost"].as_u64().unwrap();
    assert!(lost > 0 && verdict["holds"] == true && verdict["found"]["ledger"]["lost"] == lost, "{verdict}");
    let Some(()) = perf() else { return };
    let report = Command::new("perf").args(["report", "--stdio", "-i", &file]).output().unwrap();
    let report = String::from_utf8_lossy(&report.stdout);
    let total = report.lines().find_map(|line| line.strip_prefix("# Total Lost Samples: "));
    assert_eq!(total, Some(lost.to_string().as_str()), "{report}");
}

#[test]
fn a_recording_without_times_says_so_in_every_command() {
    const WORDS: &str = "it was recorded without times (perf record --no-timestamp)";
    for name in ["notime.pipe", "notime-cpu.pipe"] {
        let file = case(name);
        for args in [&["convert", "--text"][..], &["convert", "--json"], &["why"], &["verify"]] {
            let all = said(&[args, &[&file]].concat()).concat();
            assert!(all.contains(WORDS) && !all.contains("4294967295") && !all.contains("key"), "{args:?}: {all}");
            let cure = format!("perf script -i {file} prints it in the file's order");
            assert!(args == ["verify"] || all.contains(&cure), "{args:?}: {all}");
        }
    }
}

/// What is no recording of this machine is refused in the same words by all commands.
#[test]
fn what_is_no_recording_is_refused_in_the_same_words() {
    let place = Place::new();
    let [empty, folder, packed, fifo] = ["empty", "folder", "packed", "fifo"].map(|name| place.file(name));
    fs::write(&empty, b"").unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(&packed, b"\x28\xb5\x2f\xfd and more").unwrap();
    nix::unistd::mkfifo(fifo.as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (file, words, cure) in [
        (&case("big.pipe"), "it is of a machine with the other byte order", "read it on a machine with that order"),
        (&empty, "it is empty", "record anew"),
        (&folder, "it is a directory", "name the file of the recording"),
        (&packed, "it is compressed by zstd", "zstd -dc FILE"),
        (&fifo, "it is no regular file", "into a file first"),
    ] {
        let mut all = Vec::new();
        for args in [&["verify"][..], &["convert", "--text"], &["why"]] {
            let [out, error] = said(&[args, &[file]].concat());
            let words_of = error.split_once(&format!("{file}: ")).unwrap_or_else(|| panic!("{args:?}: {error}")).1;
            assert!(out.is_empty() && words_of.starts_with(words) && words_of.contains(cure), "{args:?}: {error}");
            all.push(words_of.to_owned());
        }
        assert!(all.iter().all(|words| *words == all[0]), "{all:#?}");
    }
}

/// The first bytes are those that the programs write.
#[test]
fn what_packed_a_recording_is_known() {
    let place = Place::new();
    let plain = place.file("plain");
    fs::copy(case("lost.pipe"), &plain).unwrap();
    for by in ["gzip", "xz", "zstd", "bzip2", "lz4"] {
        let Some(()) = runs(&[by, "--version"], "the packages of this name") else { continue };
        let packed = Command::new(by).args(["-c", &plain]).output().unwrap();
        let file = place.file(by);
        fs::write(&file, packed.stdout).unwrap();
        let [_, error] = said(&["verify", &file]);
        assert!(error.contains(&format!("it is compressed by {by}")) && error.contains("unpack it"), "{error}");
    }
}

/// Pipes of perf before 4.16 name no events.
#[test]
fn events_that_nothing_names_have_perfs_names() {
    let file = case("names.pipe");
    let [text, _] = said(&["convert", "--text", &file]);
    let names: Vec<_> = text.lines().map(|line| line.split(": ").nth(1).unwrap()).collect();
    let all =
        ["COMM", "cycles", "branch-misses", "cpu-clock", "page-faults", "L1-dcache-load-misses", "house:door_opened"];
    assert_eq!(names, all, "{text}");
    assert!(text.ends_with("house:door_opened: door=3\n"), "{text}");
    let Some(()) = perf() else { return };
    let script = Command::new("perf").args(["script", "-i", &file, "-F", "event"]).output().unwrap();
    let script = String::from_utf8_lossy(&script.stdout);
    // Versions of perf before 6.13 add that guests are counted.
    let perfs: Vec<_> = script.lines().map(|line| line.trim().trim_end_matches(':').replace(":HG", "")).collect();
    assert_eq!(names[1..], perfs.iter().map(String::as_str).collect::<Vec<_>>()[..], "{script}");
}
