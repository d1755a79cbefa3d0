//! The rooms of DESIGN.md: what is on the left knows nothing of what is on its right.

use std::fs;
use std::path::{Path, PathBuf};

/// Rooms from left to right, and the files of each from left to right. Each may use those before it, and itself. What a file
/// keeps in a folder of its own name belongs to it.
const ROOMS: [(&str, &[&str]); 14] = [
    ("instrument", &[]),
    (
        "sys",
        &[
            "file",
            "fork",
            "status",
            "bpf",
            "perf",
            "pidfd",
            "pmu",
            "epoll",
            "register",
            "wake",
            "wakeup",
            "machine",
            "memory",
            "tracepoint",
            "grace",
        ],
    ),
    ("error", &["recording", "words", "cases", "repeats", "hint"]),
    ("ring", &["words", "memory", "epochs", "frame", "bytes", "prefetch", "consumer"]),
    ("record", &["clock", "kind", "layout", "fields", "sample", "origin", "view"]),
    ("account", &["breaks", "sequence", "numbers", "ledger", "stats"]),
    (
        "rings",
        &[
            "control", "copies", "losses", "source", "untraced", "lanes", "asked", "options", "named", "symbols",
            "filter", "planned", "whom", "plan", "open",
        ],
    ),
    ("decode", &["error", "records", "field", "tokens", "expression", "value", "print", "format", "lookup", "tests"]),
    (
        "order",
        &[
            "key", "epochs", "hold", "options", "run", "entry", "index", "floors", "heap", "dense", "passed", "event",
            "own", "stream", "lent", "merge", "parts", "room", "tally", "visits", "fence", "proof",
        ],
    ),
    ("reader", &["pace", "engine", "face", "blocking", "tokio", "unordered"]),
    ("recorder", &["recording", "frozen"]),
    ("perf_data", &["file", "pieces", "metadata", "attrs", "sorting", "tracing", "open", "output", "noted", "writer"]),
    ("sim", &["sections", "cpu", "kernel"]),
    ("guide", &[]),
];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Adds a file, or all of a folder but `tests.rs`: what a test of a room needs does not make the room know it.
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

/// Modules named behind `prefix` in code, not in comments.
fn used(source: &str, prefix: &str) -> Vec<String> {
    let code = source.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let code = match code.split_once("#[cfg(all(test, not(loom)))]\nmod tests {") {
        Some((before, _)) => before,
        None => &code,
    };
    let name = |at: usize| code[at..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    code.match_indices(prefix).map(|(at, _)| name(at + prefix.len())).filter(|name| !name.is_empty()).collect()
}

/// Whether it is written like a module.
fn is_module(name: &str) -> bool {
    name.chars().all(|c| c.is_lowercase() || c == '_')
}

#[test]
fn no_room_knows_what_is_on_its_right() {
    for (place, (room, _)) in ROOMS.iter().enumerate() {
        for name in of(room).iter().flat_map(|file| used(file, "crate::")) {
            // Only rooms: items re-exported at the root would hide where they come from.
            let at = ROOMS.iter().position(|(room, _)| *room == name);
            let at = at.unwrap_or_else(|| panic!("{room} uses crate::{name}, which is no room"));
            assert!(at <= place, "{room} uses {name}, which is on its right");
        }
    }
}

#[test]
fn no_file_knows_what_is_on_its_right() {
    for (room, files) in ROOMS {
        for (place, file) in files.iter().enumerate() {
            for name in of(&format!("{room}/{file}")).iter().flat_map(|file| used(file, &format!("crate::{room}::"))) {
                let at = files.iter().position(|file| *file == name);
                let at = at.or((!is_module(&name)).then_some(0));
                let at = at.unwrap_or_else(|| panic!("{room}/{file} uses {name}, which is none of its files"));
                assert!(at <= place, "{room}/{file} uses {name}, which is on its right");
            }
        }
    }
}

#[test]
fn every_room_and_file_has_its_place() {
    let rooms: Vec<_> = ROOMS.iter().map(|(room, _)| *room).collect();
    let places = [("lib.rs".to_owned(), rooms.as_slice())].into_iter();
    let places = places.chain(ROOMS.iter().map(|(room, files)| (format!("{room}/mod.rs"), *files)));
    for (file, known) in places {
        let Ok(listed) = fs::read_to_string(src().join(&file)) else { continue };
        for line in listed.lines().filter_map(|line| line.trim().strip_suffix(';')) {
            if let Some((_, name)) = line.split_once("mod ").filter(|(before, _)| !before.contains("use")) {
                assert!(known.contains(&name), "{name} in {file} has no place");
            }
        }
    }
}

#[test]
fn unsafe_code_is_in_two_folders() {
    for (room, _) in ROOMS.iter().filter(|(room, _)| !["ring", "sys"].contains(room)) {
        for line in of(room).iter().flat_map(|file| file.lines()) {
            let code = line.split("//").next().unwrap_or("");
            assert!(!code.split_whitespace().any(|word| word == "unsafe"), "{room}: {line}");
        }
    }
    assert!(fs::read_to_string(src().join("lib.rs")).unwrap().contains("#![deny(unsafe_code)]"));
}

/// One can read a file at one sitting.
#[test]
fn no_file_is_longer_than_500_lines() {
    for (room, _) in ROOMS {
        for file in of(room) {
            let lines = file.lines().count();
            assert!(lines <= 500, "{room}: {lines} lines: {}", file.lines().next().unwrap_or(""));
        }
    }
}
