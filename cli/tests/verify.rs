//! `perfweave verify`: live recordings hold, and what was done to one is named.

mod support;

use perfweave_support::perf;
use serde_json::Value;
use std::fs;
use std::process::{Command, Output, Stdio};
use support::{Place, perfweave, recorded, recorded_with_losses};

/// What it says of a file, and its status.
#[track_caller]
fn verified(args: &[&str]) -> (Option<i32>, Value) {
    let Output { status, stdout, stderr } = perfweave(&[&["verify", "--json"], args].concat()).output().unwrap();
    let object = serde_json::from_slice(&stdout);
    (status.code(), object.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&stderr))))
}

/// The words that it prints, and its status.
fn words(args: &[&str]) -> (Option<i32>, String) {
    let output = perfweave(&[&["verify"], args].concat()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// perf reads it, and has nothing to complain of.
#[track_caller]
fn perf_reads(file: &str) {
    if perf().is_some() {
        for args in [&["script", "-i", file][..], &["report", "-i", file, "--stdio"]] {
            perfweave_support::perf::printed(Command::new("perf").args(args)).unwrap();
        }
    }
}

#[test]
fn a_live_recording_holds_and_perf_reads_it() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded(&file, &["-a"]) else { return };
    let (status, said) = verified(&[&file]);
    assert!(status == Some(0) && said["holds"] == true, "{said}");
    let claims = &said["claims"];
    assert!(
        (&claims["assumed"], &claims["late"], &claims["by_time"]) == (&0.into(), &0.into(), &true.into()),
        "{said}"
    );
    // All records of the stream are proven, and have their CPU.
    let records: u64 = said["cpus"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|cpu| !cpu["cpu"].is_null())
        .map(|cpu| cpu["records"].as_u64().unwrap())
        .sum();
    assert!(records > 0 && claims["proven"] == records, "{said}");
    perf_reads(&file);
    // The same as words, with the hash that was kept.
    let hash = said["hash"].as_str().unwrap();
    let (status, text) = words(&[&file, "--expect", hash]);
    assert!(status == Some(0) && text.contains("it holds") && text.contains(hash), "{text}");
    // It says that nothing is missing if the ledger does, and only then.
    let ledger = &said["found"]["ledger"];
    assert_eq!(text.contains("nothing is missing"), ledger["complete"] == true, "{text}");
    assert_eq!(text.contains("ledger: balanced;"), ledger["balanced"] == true, "{text}");
    let other = format!("{}{}", &hash[1..], &hash[..1]);
    let (status, text) = words(&[&file, "--expect", &other]);
    assert!(status == Some(1) && text.contains("ANOTHER HASH"), "{text}");
    assert_eq!(words(&[&file, "--expect", "12"]).0, Some(2));
}

/// The recorder says the hash.
#[test]
fn a_recorder_prints_the_hash_to_keep() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded(&file, &["-a"]) else { return };
    let output = perfweave(&["record", "--json", "-a", "-o", &file, "--", "true"]).output().unwrap();
    let last = String::from_utf8(output.stdout).unwrap().lines().last().map(str::to_owned).unwrap();
    let hash = serde_json::from_str::<Value>(&last).unwrap()["hash"].as_str().unwrap().to_owned();
    assert_eq!(verified(&[&file, "--expect", &hash]).0, Some(0));
    let output = perfweave(&["record", "-a", "-o", &file, "--", "true"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let hash = said.lines().find_map(|line| line.split_once(": hash ")).expect("a hash").1;
    assert_eq!(verified(&[&file, "--expect", hash]).0, Some(0));
    // Files of the flight recorder have certificates too, and no ledger.
    let flight = place.file("flight");
    // The command ends when there is a file.
    let script = format!("kill -USR1 $PPID; until ls {flight}.* >/dev/null 2>&1; do :; done");
    let args = ["record", "--last", "2s", "--on-signal", "USR1", "--json", "-o", &flight, "--", "sh", "-c", &script];
    let output = perfweave(&args).stderr(Stdio::null()).output().unwrap();
    let first = String::from_utf8(output.stdout).unwrap().lines().next().map(str::to_owned).expect("a file");
    let object: Value = serde_json::from_str(&first).unwrap();
    let (file, hash) = (object["file"].as_str().unwrap(), object["hash"].as_str().unwrap());
    let (status, said) = verified(&[file, "--expect", hash]);
    assert!(status == Some(0) && said["cpus"][0]["ledger"].is_null(), "{said}");
    assert!(words(&[file]).1.contains("ledger: none"));
    // The same as words.
    fs::remove_file(file).unwrap();
    let args: Vec<_> = args.iter().copied().filter(|arg| *arg != "--json").collect();
    let output = perfweave(&args).stderr(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let (file, hash) = said.lines().find_map(|line| line.split_once(": hash ")).expect("a hash");
    assert_eq!(verified(&[file, "--expect", hash]).0, Some(0));
}

/// Through a pipe, it has the same certificate.
#[test]
fn a_recording_through_a_pipe_holds() {
    let place = Place::new();
    let Some(()) = recorded(&place.file("first"), &["-a"]) else { return };
    let mut record = perfweave(&["record", "-a", "-o", "-", "--", "sh", "-c", "true | true"]);
    let mut recorder = record.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let from = recorder.stdout.take().unwrap();
    let output = perfweave(&["verify", "--json", "-"]).stdin(from).output().unwrap();
    assert!(recorder.wait().unwrap().success());
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && said["holds"] == true && said["claims"]["late"] == 0, "{said}");
}

/// Losses are in the file as the ledger has them, CPU by CPU.
#[test]
fn the_ledger_of_a_recording_with_losses_is_that_of_its_records() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded_with_losses(&file, &[]) else { return };
    let (status, said) = verified(&[&file]);
    assert!(status == Some(0) && said["found"]["lost"].as_u64().unwrap() > 0, "{said}");
    assert!(
        said["found"]["ledger"]["complete"] == false && !words(&[&file]).1.contains("nothing is missing"),
        "{said}"
    );
    for cpu in said["cpus"].as_array().unwrap().iter().filter(|cpu| !cpu["cpu"].is_null()) {
        assert_eq!(cpu["lost"], cpu["ledger"]["lost"], "{said}");
        assert!(cpu["records"].as_u64() <= cpu["ledger"]["yielded"].as_u64(), "{said}");
    }
    perf_reads(&file);
}

/// In the middle: the block is named, and the rest holds.
#[test]
fn what_was_done_to_a_recording_is_named() {
    let place = Place::new();
    let file = place.file("perf.data");
    let Some(()) = recorded_with_losses(&file, &[]) else { return };
    let plain = fs::read(&file).unwrap();
    let at = plain.len() / 2;
    let mut bytes = plain.clone();
    bytes[at] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let (status, said) = verified(&[&file]);
    let doubts = said["doubts"].as_array().unwrap();
    let holds = |doubt: &&Value| {
        doubt["bytes"][0].as_u64().unwrap() <= at as u64 && at as u64 <= doubt["bytes"][1].as_u64().unwrap()
    };
    assert!(status == Some(1) && doubts.iter().any(|doubt| holds(&doubt)), "{said}");
    // A MiB of more than two is in doubt.
    let doubted = |doubt: &Value| doubt["bytes"][1].as_u64().unwrap() - doubt["bytes"][0].as_u64().unwrap();
    assert!(plain.len() > 2 << 20 && doubts.iter().all(|doubt| doubted(doubt) < 5 << 18), "{said}");
    let (status, text) = words(&[&file]);
    // Times are seconds there.
    for times in doubts.iter().filter_map(|doubt| doubt["times"].as_array()) {
        let [from, until] = [0, 1].map(|at| times[at].as_u64().unwrap());
        let [from, until] = [from, until].map(|time| format!("{}.{:09}", time / 1_000_000_000, time % 1_000_000_000));
        assert!(text.contains(&format!("; records from {from} to {until} are in doubt")), "{text}");
    }
    assert!(doubts.iter().any(|doubt| doubt["times"].is_array()), "{said}");
    assert!(
        status == Some(1) && text.contains("IN DOUBT: bytes ") && text.contains("what is not named above holds"),
        "{text}"
    );
    assert!(text.contains("ledger (in doubt): ") && !text.contains("nothing is missing"), "{text}");
    // Cut in the middle, it was not ended, and its first half holds.
    fs::write(&file, &plain[..at]).unwrap();
    let (status, said) = verified(&[&file]);
    assert!(status == Some(1), "{said}");
    assert!(said["doubts"].as_array().unwrap().iter().any(|doubt| doubt["what"] == "unfinished"), "{said}");
}

/// perf's own has no certificate: it is counted, and that is said.
#[test]
fn nothing_vouches_for_a_recording_of_perf() {
    let Some(()) = perf() else { return };
    let place = Place::new();
    let file = place.file("perf.data");
    let args = ["record", "-q", "-a", "-e", "sched:sched_switch", "-o", &file, "--", "sh", "-c", "true | true"];
    let told = perfweave_support::perf::printed(Command::new("perf").args(args));
    let Some(_) = perfweave_support::kernel("perf record -a", told) else { return };
    let (status, said) = verified(&[&file]);
    assert!(status == Some(1) && said["hash"].is_null() && said["doubts"].as_array().unwrap().is_empty(), "{said}");
    assert!(said["found"]["records"].as_u64().unwrap() > 0, "{said}");
    assert!(words(&[&file]).1.contains("nothing vouches"));
    fs::write(&file, "no recording").unwrap();
    let (status, text) = words(&[&file]);
    assert!(status == Some(1) && text.contains("cannot verify"), "{text}");
}
