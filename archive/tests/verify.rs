//! `verify` on live recordings of this kernel. Needs root, as recording does.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perfweave-archive"));
    command.args(args);
    command
}

/// Records, and gives the hash that it prints.
fn record(to: &Path, machine: &str, args: &[&str]) -> String {
    let to = ["record", "--machine", machine, "--to", to.to_str().unwrap()];
    let Output { status, stderr, .. } = program(&[&to[..], args].concat()).output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{said}");
    said.lines().find_map(|line| line.strip_prefix("hash ")).unwrap_or_else(|| panic!("{said}")).to_owned()
}

/// What it says of an archive, and its status.
fn verified(url: &Path, args: &[&str]) -> (Option<i32>, Value) {
    let Output { status, stdout, stderr } =
        program(&["verify", "--json", url.to_str().unwrap()]).args(args).output().unwrap();
    let object = serde_json::from_slice(&stdout);
    (status.code(), object.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&stderr))))
}

/// The words that it prints, and its status.
fn words(url: &Path, args: &[&str]) -> (Option<i32>, String) {
    let output = program(&["verify", url.to_str().unwrap()]).args(args).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// The files of a table.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found.sort();
    found
}

const EVENTS: [&str; 4] = ["-e", "sched:sched_switch", "-e", "sched:sched_process_exec"];

#[test]
fn a_live_recording_holds_and_what_was_done_to_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    // Until there are three files of a table.
    let table = root.join("events/sched/sched_switch");
    let work = format!("until [ $(find {} -name '*.parquet' | wc -l) -gt 2 ]; do /bin/true; done", table.display());
    let hash = record(root, "here", &[&EVENTS[..], &["--file-seconds", "0.05", "--", "sh", "-c", &work]].concat());
    let (status, said) = verified(root, &["--expect", &hash]);
    let recording = &said["recordings"][0];
    assert!(status == Some(0) && said["holds"] == true && said["expected"] == true, "{said}");
    assert!(recording["hash"] == *hash && recording["found"] == recording["claims"], "{said}");
    let found = &recording["found"];
    assert!(found["proven"] == found["events"] && found["late"] == 0, "{said}");
    // Each CPU has as many rows as the recorder made.
    for account in recording["ledger"]["cpus"].as_array().unwrap() {
        let of = recording["cpus"].as_array().unwrap().iter().find(|of| of["cpu"] == account["cpu"]);
        let events = of.map_or(0, |of| of["events"].as_u64().unwrap());
        assert_eq!(account["taken"].as_u64().unwrap() - account["dropped"].as_u64().unwrap(), events, "{said}");
    }
    // It says that nothing is missing if the ledger does, and only then.
    let (status, text) = words(root, &["--expect", &hash]);
    assert!(status == Some(0) && text.contains("it holds: ") && text.contains(&hash), "{text}");
    assert_eq!(text.contains("nothing is missing"), recording["complete"] == true, "{text}");
    let other = format!("{}{}", &hash[1..], &hash[..1]);
    let (status, text) = words(root, &["--expect", &other]);
    assert!(status == Some(1) && text.contains("ANOTHER HASH"), "{text}");
    assert_eq!(words(root, &["--expect", "12"]).0, Some(2));
    // One file by itself.
    let switches = files(&table);
    assert!(switches.len() > 2, "{switches:?}");
    let (status, text) = words(&switches[1], &[]);
    assert!(status == Some(0) && text.contains("the file holds"), "{text}");
    // Taken out of the archive it holds too, but not in the folder of another machine.
    let elsewhere = tempfile::tempdir().unwrap();
    let name = switches[1].strip_prefix(root).unwrap();
    for (folder, expected) in [("", 0), ("more/events/sched/sched_switch/machine=there/date=2000-01-01/hour=00", 1)] {
        let copy = elsewhere.path().join(folder).join(name.file_name().unwrap());
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(&switches[1], &copy).unwrap();
        let (status, text) = words(&copy, &[]);
        assert!(status == Some(expected) && text.contains("it was written as") == (expected == 1), "{text}");
    }
    let copy = elsewhere.path().join("backup").join(name);
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    fs::copy(&switches[1], &copy).unwrap();
    assert_eq!(words(&copy, &[]).0, Some(0));
    // It is not there, and then another is in its place.
    let away = root.join("away");
    fs::rename(&switches[1], &away).unwrap();
    let (status, text) = words(root, &[]);
    assert!(status == Some(1) && text.contains("a file before it is missing: events/"), "{text}");
    assert!(text.contains("ledger (in doubt): ") && !text.contains("nothing is missing"), "{text}");
    fs::copy(&switches[2], &switches[1]).unwrap();
    let (status, said) = verified(root, &[]);
    let whats = |said: &Value| {
        let doubts = said["recordings"][0]["doubts"].as_array().unwrap();
        doubts.iter().map(|doubt| doubt["what"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(status == Some(1) && whats(&said).iter().all(|what| what == "order"), "{said}");
    fs::rename(&away, &switches[1]).unwrap();
    assert_eq!(verified(root, &[]).0, Some(0));
    // A bit is another one.
    let plain = fs::read(&switches[1]).unwrap();
    let mut bytes = plain.clone();
    bytes[plain.len() / 3] ^= 1;
    fs::write(&switches[1], &bytes).unwrap();
    let (status, said) = verified(root, &[]);
    assert!(status == Some(1) && whats(&said) == ["changed"], "{said}");
    let name = said["recordings"][0]["doubts"][0]["file"].as_str().unwrap();
    assert!(switches[1].ends_with(name), "{said}");
    // Cut off, it is no file any more.
    fs::write(&switches[1], &plain[..plain.len() - 9]).unwrap();
    let (status, said) = verified(root, &[]);
    assert!(status == Some(1) && said["doubts"][0]["what"] == "damage" && whats(&said) == ["order"], "{said}");
}

/// What the kernel dropped is in the notices as the ledger has it, CPU by CPU.
#[test]
fn the_ledger_of_a_recording_with_losses_is_that_of_its_notices() {
    let folder = tempfile::tempdir().unwrap();
    let events = ["-e", "raw_syscalls:sys_enter", "--buffer-kib", "4", "--"];
    let work = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=200000", "status=none"];
    record(folder.path(), "here", &[&events[..], &work].concat());
    let (status, said) = verified(folder.path(), &[]);
    let recording = &said["recordings"][0];
    assert!(status == Some(0) && recording["complete"] == false, "{said}");
    assert!(recording["found"]["lost"].as_u64().unwrap() > 0, "{said}");
    for of in recording["cpus"].as_array().unwrap() {
        let accounts = recording["ledger"]["cpus"].as_array().unwrap();
        let account = accounts.iter().find(|account| account["cpu"] == of["cpu"]).unwrap();
        assert_eq!(account["lost"], of["lost"], "{said}");
    }
    assert!(!words(folder.path(), &[]).1.contains("nothing is missing"));
}

/// A recording that is killed has no end, whatever others do in the same folder. Those hold by themselves.
#[test]
fn a_killed_recording_is_named_beside_others_that_hold() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let hash = record(root, "other", &[&EVENTS[..], &["--", "true"]].concat());
    let to = ["record", "--machine", "here", "--to", root.to_str().unwrap(), "--file-seconds", "0.05"];
    let mut killed = program(&[&to[..], &EVENTS].concat()).stderr(Stdio::null()).spawn().unwrap();
    // Some of its files are finished, and it has an open one.
    let is_open = |path: &PathBuf| path.to_string_lossy().contains(".parquet.open-");
    let own = |path: &PathBuf| path.to_string_lossy().contains("/machine=here/");
    loop {
        let all = files(root).into_iter().filter(own).collect::<Vec<_>>();
        if all.iter().any(is_open) && all.iter().filter(|path| !is_open(path)).count() > 4 {
            break;
        }
        assert!(killed.try_wait().unwrap().is_none(), "it has ended");
        std::thread::yield_now();
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let (status, said) = verified(root, &["--expect", &hash]);
    let of = |machine: &str| {
        let recordings = said["recordings"].as_array().unwrap();
        recordings.iter().find(|recording| recording["machine"] == machine).unwrap()
    };
    assert!(status == Some(1) && of("other")["holds"] == true && said["expected"] == true, "{said}");
    let doubts = of("here")["doubts"].as_array().unwrap();
    assert!(doubts.len() == 1 && doubts[0]["what"] == "unfinished", "{said}");
    // From when on is known.
    assert!(doubts[0]["times"][0].is_i64() && doubts[0]["times"][1].is_null(), "{said}");
    assert!(words(root, &[]).1.contains("it has no end"));
}

/// What was not proven is not said to be, and holds all the same.
#[test]
fn a_recording_without_a_proof_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let work = ["--hold", "none", "--", "sh", "-c", "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i+1)); done"];
    record(folder.path(), "here", &[&EVENTS[..], &work].concat());
    let (status, said) = verified(folder.path(), &[]);
    let found = &said["recordings"][0]["found"];
    let [events, proven, early, late] = ["events", "proven", "early", "late"].map(|name| found[name].as_u64().unwrap());
    assert!(status == Some(0) && proven == 0 && early + late == events && events > 100, "{said}");
    assert!(found["frontier"].is_null() && words(folder.path(), &[]).1.contains("order: 0 events proven; "), "{said}");
}

/// Of what nobody sealed, nothing is said.
#[test]
fn nothing_vouches_for_files_without_seals() {
    let folder = tempfile::tempdir().unwrap();
    let output = program(&["generate", "--rows", "1000", "--to", folder.path().to_str().unwrap()]).output().unwrap();
    assert!(output.status.success());
    let (status, text) = words(folder.path(), &[]);
    assert!(
        status == Some(1) && text.contains("no seal stands for it") && text.contains("it has no certificate"),
        "{text}"
    );
}

/// Who can write into the archive's folder chooses the names of what lies there.
#[test]
fn names_of_files_command_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a\x1b[2J.parquet"), "").unwrap();
    let (status, text) = words(folder.path(), &[]);
    assert!(status == Some(1) && !text.contains('\x1b'), "{text:?}");
}
