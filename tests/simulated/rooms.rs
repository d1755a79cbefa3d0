//! The floors and rooms of DESIGN.md: no room uses one above it, or one on its right. And a type and its methods are in
//! one file.

use std::fs;
use std::path::{Path, PathBuf};

/// The floors of the house from the ground up, each with its rooms from left to right. A room may use those of the
/// floors below, those on its left, and itself. Inside a room, concepts decide.
const FLOORS: [&[&str]; 4] = [
    &["instrument", "sys", "error"],
    &["ring", "record", "sequence", "account"],
    &["rings", "proof"],
    &["order", "reader", "recorder", "sim", "guide"],
];

/// All rooms, in this order.
fn rooms() -> Vec<&'static str> {
    FLOORS.concat()
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Adds a file, or all of a folder but `tests.rs`: tests of a room may use rooms on its right.
fn add(path: &Path, out: &mut Vec<String>) {
    if path.is_dir() {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries.iter().filter(|entry| !entry.ends_with("tests.rs")).for_each(|entry| add(entry, out));
    } else if path.exists() {
        out.push(fs::read_to_string(path).unwrap());
    }
}

/// All sources of a file and its folder, or of a room, by its name without `.rs`.
fn of(name: &str) -> Vec<String> {
    let mut out = Vec::new();
    add(&src().join(format!("{name}.rs")), &mut out);
    add(&src().join(name), &mut out);
    assert!(!out.is_empty(), "no {name}");
    out
}

/// Modules named after `prefix` in code, not in comments.
fn used(source: &str, prefix: &str) -> Vec<String> {
    let code = source.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let code = match code.split_once("#[cfg(all(test, not(loom)))]\nmod tests {") {
        Some((before, _)) => before,
        None => &code,
    };
    let name = |at: usize| code[at..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    code.match_indices(prefix).map(|(at, _)| name(at + prefix.len())).filter(|name| !name.is_empty()).collect()
}

#[test]
fn no_room_knows_what_is_above_it_or_on_its_right() {
    let rooms = rooms();
    for (place, room) in rooms.iter().enumerate() {
        for name in of(room).iter().flat_map(|file| used(file, "crate::")) {
            // Only rooms: items re-exported at the root would hide where they come from.
            let at = rooms.iter().position(|room| *room == name);
            let at = at.unwrap_or_else(|| panic!("{room} uses crate::{name}, which is no room"));
            assert!(at <= place, "{room} uses {name}, which is above it or on its right");
        }
    }
}

#[test]
fn every_room_has_its_place() {
    let listed = fs::read_to_string(src().join("lib.rs")).unwrap();
    for line in listed.lines().filter_map(|line| line.trim().strip_suffix(';')) {
        if let Some((_, name)) = line.split_once("mod ").filter(|(before, _)| !before.contains("use")) {
            assert!(rooms().contains(&name), "{name} has no place");
        }
    }
}

/// Methods elsewhere than in the file of their type: those of a later room, of optional features, and of each kind of
/// ring.
const ELSEWHERE: [&str; 6] = [
    "impl CpuRing in reader/unordered.rs",
    "impl KernelHalf in ring/consumer/ring_buffer.rs",
    "impl Record in record/payload.rs",
    "impl Ring in ring/consumer/perf.rs",
    "impl Ring in ring/consumer/ring_buffer.rs",
    "impl Rings in reader/unordered.rs",
];

/// What `impl` in this line gives methods to: nothing if it is of a trait.
fn given_methods(line: &str) -> Option<&str> {
    let after = line.trim_start().strip_prefix("impl").filter(|after| after.starts_with([' ', '<']))?;
    let after = if after.starts_with('<') { after.split_once("> ")?.1 } else { after.trim_start() };
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let name = &after[..after.find(|c| !is_name(c)).unwrap_or(after.len())];
    (!after.contains(" for ") && !name.is_empty()).then_some(name)
}

#[test]
fn a_type_and_its_methods_are_in_one_file() {
    let mut elsewhere = Vec::new();
    let mut folders = vec![src()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            let has = |name: &str| words.windows(2).any(|two| ["struct", "enum"].contains(&two[0]) && two[1] == name);
            let names = text.lines().filter_map(given_methods).filter(|name| !has(name));
            let file = path.strip_prefix(src()).unwrap().display().to_string();
            elsewhere.extend(names.map(|name| format!("impl {name} in {file}")));
        }
    }
    elsewhere.sort();
    assert_eq!(elsewhere, ELSEWHERE);
}

#[test]
fn unsafe_code_is_in_two_folders() {
    for room in rooms().iter().filter(|room| !["ring", "sys"].contains(room)) {
        for line in of(room).iter().flat_map(|file| file.lines()) {
            let code = line.split("//").next().unwrap_or("");
            assert!(!code.split_whitespace().any(|word| word == "unsafe"), "{room}: {line}");
        }
    }
    assert!(fs::read_to_string(src().join("lib.rs")).unwrap().contains("#![deny(unsafe_code)]"));
}
