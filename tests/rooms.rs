//! The rooms of DESIGN.md: nothing on the left knows anything on its right.

use std::fs;
use std::path::Path;

/// Modules from left to right. Each may use those before it, and itself.
const ROOMS: [&str; 41] = [
    "sync",
    "steps",
    "wakeup",
    "error",
    "sys",
    "cure",
    "clock",
    "control",
    "ring",
    "copies",
    "record",
    "breaks",
    "sequence",
    "numbers",
    "key",
    "rings",
    "hold",
    "order",
    "stats",
    "run",
    "lookahead",
    "fronts",
    "dense",
    "passed",
    "event",
    "stream",
    "lent",
    "drain",
    "plan",
    "open",
    "loss",
    "merge",
    "room",
    "account",
    "fence",
    "pace",
    "engine",
    "reader",
    "asynchronous",
    "recorder",
    "sim",
];

fn sources(path: &Path, out: &mut Vec<String>) {
    if path.is_dir() {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| sources(entry, out));
    } else {
        out.push(fs::read_to_string(path).unwrap());
    }
}

/// Modules named behind `crate::` in code, not in comments.
fn used(source: &str) -> Vec<String> {
    let code = source.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    // What a test of a room needs does not make the room know it.
    let code = code.split("#[cfg(all(test").next().unwrap_or("").to_owned();
    code.match_indices("crate::")
        .map(|(at, name)| code[at + name.len()..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
        .collect()
}

#[test]
fn nothing_knows_what_is_on_its_right() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (place, room) in ROOMS.iter().enumerate() {
        let mut files = Vec::new();
        for path in [src.join(format!("{room}.rs")), src.join(room)] {
            if path.exists() {
                sources(&path, &mut files);
            }
        }
        assert!(!files.is_empty(), "no room {room}");
        for name in files.iter().flat_map(|file| used(file)) {
            // Only modules: items re-exported at the root would hide where they come from.
            let at = ROOMS.iter().position(|room| *room == name);
            let at = at.unwrap_or_else(|| panic!("{room} uses crate::{name}, which is no room"));
            assert!(at <= place, "{room} uses {name}, which is on its right");
        }
    }
    // And no room was forgotten.
    let listed = fs::read_to_string(src.join("lib.rs")).unwrap();
    for line in listed.lines().filter_map(|line| line.trim().strip_suffix(';')) {
        if let Some(room) = line.strip_prefix("mod ").or_else(|| line.strip_prefix("pub mod ")) {
            assert!(ROOMS.contains(&room), "{room} has no place");
        }
    }
}

#[test]
fn unsafe_code_is_in_two_folders() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for room in ROOMS.iter().filter(|room| !["ring", "sys"].contains(room)) {
        let mut files = Vec::new();
        sources(&src.join(format!("{room}.rs")), &mut files);
        for line in files.iter().flat_map(|file| file.lines()) {
            let code = line.split("//").next().unwrap_or("");
            assert!(!code.split_whitespace().any(|word| word == "unsafe"), "{room}: {line}");
        }
    }
    assert!(fs::read_to_string(src.join("lib.rs")).unwrap().contains("#![deny(unsafe_code)]"));
}
