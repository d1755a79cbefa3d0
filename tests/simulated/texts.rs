//! What errors say: the user of a program or of the C library reads the same words as a programmer.

use std::fs;
use std::path::Path;

/// The texts between quotation marks of a source, without comments, attributes and unit tests.
fn texts(source: &str) -> Vec<String> {
    let source = source.split("\nmod tests {").next().unwrap_or_default();
    let is_code = |line: &&str| !["//", "#[", "assert"].iter().any(|begin| line.trim_start().starts_with(begin));
    let code = source.lines().filter(is_code).collect::<Vec<_>>().join("\n").replace("\\\"", "'").replace("'\"'", "");
    let parts = code.split('"').skip(1).step_by(2);
    // A backslash at a line's end takes the next line's indentation with it.
    let joined = |text: &str| text.split("\\\n").map(str::trim_start).collect::<Vec<_>>().concat();
    parts.map(joined).collect()
}

fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            found.extend(texts(&fs::read_to_string(path).unwrap()));
        }
    }
}

/// Whether a text has `Type::function`.
fn names_a_path(text: &str) -> bool {
    text.match_indices("::").any(|(at, _)| {
        let before = text[..at].rsplit(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
        let after = text[at + 2..].chars().next();
        before.starts_with(char::is_uppercase) && after.is_some_and(char::is_alphabetic)
    })
}

#[test]
fn no_error_names_a_path_of_the_library() {
    let mut all = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The simulated kernel is for tests of programs.
    for room in ["error", "order", "proof", "reader", "record", "recorder", "ring", "rings", "sequence", "sys"] {
        sources(&root.join("src").join(room), &mut all);
    }
    for package in ["events", "perf-data", "proofs", "symbols"] {
        sources(&root.join("crates").join(package).join("src"), &mut all);
    }
    assert!(all.len() > 1000, "the texts are found");
    let named: Vec<_> = all.iter().filter(|text| names_a_path(text)).collect();
    assert!(named.is_empty(), "{named:#?}");
}
