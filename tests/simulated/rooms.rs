//! The floors and rooms of DESIGN.md: no room uses one above it, or one on its right. Files import each other in one
//! direction. And a type and its methods are in one file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The floors of the house from the ground up, each with its rooms from left to right. A room may use those of the
/// floors below, those on its left, and itself. Inside a room, concepts decide.
const FLOORS: [&[&str]; 4] = [
    &["instrument", "merge", "sys", "error"],
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

/// Adds a file, or all of a folder but `tests.rs` and `model.rs`: tests of a room may use rooms on its right.
fn add(path: &Path, out: &mut Vec<String>) {
    if path.is_dir() {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        let is_tests = |entry: &&PathBuf| entry.ends_with("tests.rs") || entry.ends_with("model.rs");
        entries.iter().filter(|entry| !is_tests(entry)).for_each(|entry| add(entry, out));
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

/// The merge knows no ring, no kernel and no record: it can be read, drawn and tested by itself, with its tests.
#[test]
fn the_merge_uses_no_other_room() {
    for path in fs::read_dir(src().join("merge")).unwrap().map(|entry| entry.unwrap().path()) {
        let path = if path.is_dir() { path.join("tests.rs") } else { path };
        for name in used(&fs::read_to_string(&path).unwrap(), "crate::") {
            // Counters of steps, for tests alone.
            assert!(["merge", "instrument"].contains(&&*name), "{} uses {name}", path.display());
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

/// All files, as paths from `crate::` on, with their code. Tests and models of loom use what they test.
fn files(src: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![src.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(src).unwrap().with_extension("").display().to_string();
            if path.is_dir() {
                folders.push(path);
            } else if !["lib", "tests", "model"].iter().any(|end| name.ends_with(end)) {
                let text = fs::read_to_string(&path).unwrap();
                let code =
                    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
                let code = code.split("\nmod tests {").next().unwrap_or("");
                let name = name.strip_suffix("/mod").unwrap_or(&name).replace('/', "::");
                all.insert(name, code.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
    }
    all
}

/// The paths of a tree of imports: `a::{b, c::d}` are `a::b` and `a::c::d`.
fn expanded(tree: &str) -> Vec<String> {
    let Some((before, inside)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or("").trim().to_owned()];
    };
    let inside = inside.rsplit_once('}').map_or(inside, |(inside, _)| inside);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in inside.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match c {
            ',' if depth == 0 => parts.push(String::new()),
            c => parts.last_mut().unwrap().push(c),
        }
    }
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| expanded(part.trim())).map(|part| before.to_owned() + &part).collect()
}

/// What the code of a file imports, as paths from `crate::` on.
fn imports(name: &str, code: &str) -> Vec<String> {
    let parent = name.rsplit_once("::").map_or("", |(parent, _)| parent);
    let trees = code.match_indices("use ").map(|(at, _)| code[at + 4..].split(';').next().unwrap_or(""));
    trees
        .flat_map(expanded)
        .filter_map(|path| {
            let above = path.strip_prefix("super::").map(|rest| format!("{parent}::{rest}"));
            above.or_else(|| path.strip_prefix("crate::").map(str::to_owned))
        })
        .collect()
}

/// What each file of a package imports. A file and its folder are one, as a kind of ring is a part of the ring; what is
/// between these, and paths in macros, are not looked at. A name that a room's `mod.rs` has from one of its files is
/// that file's. `whole` gives the file that a file is a part of.
fn imported(src: &Path, whole: impl Fn(&str) -> String) -> BTreeMap<String, BTreeSet<String>> {
    let files = files(src);
    let mut names = BTreeMap::new();
    for (room, code) in files.iter().filter(|(name, _)| !name.contains("::")) {
        for tree in code.match_indices("use ").map(|(at, _)| code[at + 4..].split(';').next().unwrap_or("")) {
            for path in expanded(tree).iter().filter(|path| !path.starts_with("crate::") && !path.starts_with("std::"))
            {
                if let Some((file, name)) = path.rsplit_once("::") {
                    names.insert(format!("{room}::{name}"), format!("{room}::{file}"));
                }
            }
        }
    }
    let file_of = |path: &str| {
        let path = names.get(path).map_or(path, String::as_str);
        let mut part = path;
        loop {
            if files.contains_key(part) {
                return Some(whole(part));
            }
            part = part.rsplit_once("::")?.0;
        }
    };
    let mut left: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, code) in &files {
        let own = whole(name);
        let of = imports(name, code).iter().filter_map(|path| file_of(path)).filter(|other| *other != own).collect();
        // A room only hands on what its files have.
        let of: BTreeSet<String> = of;
        let of = of.into_iter().filter(|other| name.contains("::") || !other.starts_with(&format!("{name}::")));
        left.entry(own.clone()).or_default().extend(of);
    }
    left
}

fn assert_no_circle(mut left: BTreeMap<String, BTreeSet<String>>) {
    // What imports nothing that is left is in no circle.
    while let Some(done) =
        left.iter().find(|(_, of)| of.iter().all(|of| !left.contains_key(of))).map(|(name, _)| name.clone())
    {
        left.remove(&done);
    }
    assert!(left.is_empty(), "these are in a circle, or import one: {left:#?}");
}

#[test]
fn files_import_each_other_in_one_direction() {
    let all = imported(&src(), |name| match name.split("::").collect::<Vec<_>>()[..] {
        [room, file, ..] => format!("{room}::{file}"),
        _ => name.to_owned(),
    });
    assert!(all.len() > 90 && all.values().map(BTreeSet::len).sum::<usize>() > 300, "{all:#?}");
    assert_no_circle(all);
}

/// Of the package perf-data, all that reads and writes recordings is understood without the check of a certificate, and
/// the chain that a writer has knows neither.
#[test]
fn a_certificate_is_beside_the_recording() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/perf-data/src");
    let all = imported(&src, |name| name.split("::").next().unwrap_or_default().to_owned());
    let uses = |what: &str| all.iter().filter(|(_, of)| of.contains(what)).map(|(name, _)| &**name).collect::<Vec<_>>();
    assert_eq!(all["chain"], BTreeSet::from(["words".to_owned()]));
    assert_eq!(uses("chain"), ["noted", "output", "verify", "writer"]);
    assert_eq!(uses("verify"), [""; 0]);
    assert!(all["verify"].len() > 5, "{all:#?}");
    assert_no_circle(all);
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
