//! Errors of the library name its functions. The programs name their options.

/// What the library calls by its functions, and how it is said here.
const WORDS: [(&str, &str); 24] = [
    (
        "a tracepoint is asked for by RingOptions::tracepoint, a PMU's event is named pmu/event/",
        "-e takes names of `perf list` such as page-faults, tracepoints as sched:sched_switch, and a PMU's events as \
         pmu/event/",
    ),
    ("RingOptions::uprobe, uretprobe, kprobe or kretprobe, which keep it", "-e uprobe:FILE:NAME or -e kprobe:NAME"),
    ("give the function's place in the file to RingOptions::uprobe: nm(1) and readelf(1) tell it", ""),
    (". RingOptions::tracepoint_id needs no file", ""),
    (", or a process of your own and RingOptions::user_only, if kernel.perf_event_paranoid is 2 or less", ""),
    (". A pattern leaves it out: see Rings::skipped", ". A pattern such as -e 'sched:*' leaves it out"),
    (": see RingOptions::records", ""),
    ("a ring cannot have", "--buffer: a ring cannot have"),
    ("are asked for", "are asked for by --buffer"),
    ("allow without CAP_IPC_LOCK", "allow without CAP_IPC_LOCK: a smaller --buffer needs less"),
    (": adopt it with Ring::adopt_ring_buffers, or let the program write with bpf_perf_event_output", ""),
    ("choose another fence, or Barrier::Interrupts { isolated: true, .. }", "choose --hold fence"),
    ("choose another fence", "choose --hold fence"),
    ("choose Hold::FENCE, or Fence::Epochs", "choose --hold fence"),
    ("choose Barrier::INTERRUPTS", "choose --hold fence"),
    ("give it Fence::Auto", "choose --hold fence"),
    ("Fence::Auto takes no privilege", "--hold fence takes no privilege"),
    ("Fence::Expedited takes CAP_SYS_ADMIN alone", "--hold expedited takes CAP_SYS_ADMIN alone"),
    ("a reader with Hold::Lag needs no fence, and assumes the order", "--hold none needs no fence, and proves nothing"),
    ("name it with Key::Payload", "name it with --key"),
    ("write what comes through a pipe into a file first", "name -, and send it to standard input"),
    (" by Layout::cpu_at", ""),
    (" (Rings::format_of)", ""),
    (": see Record::payload_as", ""),
];

/// A text of the library in words of its programs, for their users.
pub fn own_words(text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

#[cfg(test)]
mod tests {
    use super::own_words;
    use std::fs;
    use std::path::Path;

    /// What only a programmer can cause: this program gives no layouts of ring buffers, no other clock and no epochs.
    const NEVER: [&str; 3] = ["Layout::RING_BUFFER", "Clock::Monotonic", "Epochs::patience"];

    /// The texts between quotation marks of a source, without comments, attributes and unit tests.
    fn texts(source: &str) -> Vec<String> {
        let source = source.split("\nmod tests {").next().unwrap_or_default();
        let is_code = |line: &&str| !line.trim_start().starts_with("//") && !line.trim_start().starts_with("#[");
        let code =
            source.lines().filter(is_code).collect::<Vec<_>>().join("\n").replace("\\\"", "'").replace("'\"'", "");
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
    fn names_a_function(text: &str) -> bool {
        text.match_indices("::").any(|(at, _)| {
            let before = text[..at].rsplit(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
            let after = text[at + 2..].chars().next();
            before.starts_with(char::is_uppercase) && after.is_some_and(char::is_alphabetic)
        })
    }

    #[test]
    fn no_error_names_a_function_of_the_library() {
        let mut all = Vec::new();
        // The simulated kernel is for tests of programs.
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
        for room in ["error", "order", "reader", "record", "recorder", "ring", "rings", "sys"] {
            sources(&source.join(room), &mut all);
        }
        for package in ["decode", "perf-data", "symbols"] {
            sources(&source.join("../crates").join(package).join("src"), &mut all);
        }
        let named: Vec<_> = all.iter().filter(|text| names_a_function(text)).collect();
        assert!(named.len() > 10, "the texts are found: {named:#?}");
        let own = named.into_iter().map(|text| own_words(text));
        let left: Vec<_> =
            own.filter(|text| names_a_function(text) && !NEVER.iter().any(|never| text.contains(never))).collect();
        assert!(left.is_empty(), "{left:#?}");
    }
}
