//! The litmus tests of `docs/litmus`: their names, what they expect, what they stand for, and the proof that cites
//! them. `.ci/litmus` runs them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What the head of a file says.
struct Litmus {
    expects: String,
    /// The heading of the proof, as in a link.
    section: String,
    /// The rule of which this is the broken twin, and the twins of this rule.
    rule: Option<String>,
    twins: Vec<String>,
    /// File and name of what it stands for.
    stands_for: Vec<(String, String)>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl Into<PathBuf>) -> String {
    let path = root().join(path.into());
    fs::read_to_string(&path).unwrap_or_else(|errno| panic!("{}: {errno}", path.display()))
}

/// All of them, by name.
fn all() -> BTreeMap<String, Litmus> {
    let files = fs::read_dir(root().join("docs/litmus")).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "litmus"));
    files.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), parse(&path))).collect()
}

fn parse(path: &Path) -> Litmus {
    let text = read(path);
    let name = path.file_stem().unwrap().to_str().unwrap();
    assert_eq!(text.lines().next(), Some(&*format!("C {name}")), "{name}: the first line names it");
    let head = text.split("\n *)\n").next().unwrap();
    let field = |name: &str| {
        let (_, after) = head.split_once(&format!("\n * {name}: "))?;
        // It goes on until the next field.
        let lines = after.split("\n *").map(str::trim);
        let more =
            lines.clone().skip(1).take_while(|line| !line.is_empty() && !line.contains(": ") && !line.ends_with(':'));
        Some(lines.take(1).chain(more).collect::<Vec<_>>().join(" "))
    };
    let needed = |what: &str| field(what).unwrap_or_else(|| panic!("{name} has no \"{what}\""));
    let (_, stands_for) = head.split_once("\n * Stands for:").unwrap_or_else(|| panic!("{name} stands for nothing"));
    let place = |line: &str| {
        let parts: Vec<_> = line.trim_start_matches(" *").trim().split(": ").map(str::to_owned).collect();
        let [process, file, what] = <[String; 3]>::try_from(parts).unwrap_or_else(|_| panic!("{name}: {line}"));
        assert!(process.starts_with('P'), "{name}: {line}");
        (file, what)
    };
    let section = needed("Proof");
    let section = section.strip_prefix("docs/PROOF.md#").unwrap_or_else(|| panic!("{name}: {section}"));
    Litmus {
        expects: needed("Result"),
        section: section.split(' ').next().unwrap().to_owned(),
        rule: field("Twin of"),
        twins: field("Twins").iter().flat_map(|twins| twins.split(", ")).map(str::to_owned).collect(),
        stands_for: stands_for.lines().skip(1).map(place).collect(),
    }
}

/// As in a link to a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-' || *c == '_').collect()
}

/// The sections of the proof: anchor and text. A section of a section is one by itself.
fn sections() -> BTreeMap<String, String> {
    let mut sections = BTreeMap::new();
    let mut current = String::new();
    for line in read("docs/PROOF.md").lines() {
        if line.starts_with('#') {
            current = anchor(line.trim_start_matches('#').trim());
        }
        let text: &mut String = sections.entry(current.clone()).or_default();
        *text += line;
        *text += "\n";
    }
    sections
}

/// The names of all tests that a text links to.
fn cited(text: &str, folder: &str) -> Vec<String> {
    let links = text.split("](").skip(1).filter_map(|link| link.split(')').next());
    links.filter_map(|link| Some(link.strip_prefix(folder)?.strip_suffix(".litmus")?.to_owned())).collect()
}

#[test]
fn each_rule_has_a_broken_twin() {
    let all = all();
    assert!(all.len() > 50, "{} tests", all.len());
    for (name, litmus) in &all {
        match &litmus.rule {
            None => {
                assert_eq!(litmus.expects, "Never", "{name}");
                assert!(!litmus.twins.is_empty(), "{name} has no twin");
                for twin in &litmus.twins {
                    let of = all.get(twin).unwrap_or_else(|| panic!("{name}: no {twin}")).rule.as_ref();
                    assert_eq!(of, Some(name), "{twin}");
                }
            }
            Some(rule) => {
                assert_eq!(litmus.expects, "Sometimes", "{name}");
                let of = all.get(rule).unwrap_or_else(|| panic!("{name}: no {rule}"));
                assert!(of.twins.contains(name), "{rule} does not name {name}");
                assert_eq!(of.section, litmus.section, "{name}");
            }
        }
    }
}

#[test]
fn the_proof_cites_each_rule_where_the_rule_says() {
    let (all, sections) = (all(), sections());
    for (name, litmus) in &all {
        let text = sections.get(&litmus.section).unwrap_or_else(|| panic!("{name}: no section {}", litmus.section));
        let is_cited = cited(text, "litmus/").contains(name);
        assert!(is_cited || litmus.rule.is_some(), "{name} is not cited in {}", litmus.section);
    }
    for (section, text) in &sections {
        for name in cited(text, "litmus/") {
            let litmus = all.get(&name).unwrap_or_else(|| panic!("{section} cites {name}, which is not there"));
            assert_eq!(litmus.section, *section, "{name} is cited elsewhere");
        }
    }
}

#[test]
fn the_list_has_all_of_them() {
    let all = all();
    let mut listed = cited(&read("docs/litmus/README.md"), "");
    listed.sort();
    assert_eq!(listed, all.keys().cloned().collect::<Vec<_>>());
}

#[test]
fn what_they_stand_for_is_there() {
    for (name, litmus) in all() {
        assert!(!litmus.stands_for.is_empty(), "{name} stands for nothing");
        for (file, what) in litmus.stands_for {
            // The kernel's sources are not here.
            if file.starts_with("kernel/") {
                continue;
            }
            let text = read(&file);
            let is_there = ["fn ", "struct ", "*", "void "].iter().any(|kind| {
                let declared = format!("{kind}{what}");
                let mut after = text.split(&declared).skip(1);
                after.any(|after| after.starts_with(['(', '<', ' ']))
            });
            assert!(is_there, "{name} stands for {what}, which {file} does not have");
        }
    }
}

/// A line a test: name, answer, and how many final states have the condition and how many do not.
#[test]
fn the_committed_answers_are_the_expected_ones() {
    let results = read("docs/litmus/results.txt");
    let (told, answers): (Vec<_>, Vec<_>) = results.lines().partition(|line| line.starts_with('#'));
    assert!(matches!(*told, [tool, model] if tool.starts_with("# herd7 ") && model.contains("sha256")), "{told:?}");
    let answers: Vec<Vec<_>> = answers.iter().map(|line| line.split(' ').collect()).collect();
    let all = all();
    assert_eq!(answers.iter().map(|answer| answer[0]).collect::<Vec<_>>(), all.keys().collect::<Vec<_>>());
    for answer in answers {
        let [name, said, with, without] = *answer else { panic!("{answer:?}") };
        assert_eq!(all[name].expects, said, "{name}");
        let [with, without] = [with, without].map(|count| count.parse::<u32>().unwrap());
        assert_eq!((with > 0, without > 0), (said == "Sometimes", true), "{name}");
    }
}
