//! What `-e` asks for, in the words of strace(1): calls, events, signals, and how calls end.

use super::calls::{self, Calls};
use super::classes;
use crate::failure::Failure;
use nix::sys::signal::Signal;
use std::collections::BTreeSet;

/// All, or some of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which<T> {
    All,
    Only(BTreeSet<T>),
}

impl<T: Ord> Which<T> {
    pub fn has(&self, one: &T) -> bool {
        match self {
            Self::All => true,
            Self::Only(some) => some.contains(one),
        }
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    Successful,
    Failed,
    /// It has not returned.
    Unfinished,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Asked {
    pub calls: Which<i64>,
    /// Tracepoints, probes, and what else perf(1) has names for.
    pub events: Vec<String>,
    pub ends: Which<End>,
    pub signals: Which<i32>,
    /// `quiet=exit`: threads have no line at their end.
    pub is_quiet: bool,
    /// How often `-y` would be given for `decode-fds`.
    pub decode_fds: u8,
}

/// The qualifiers of `-e`, and the short names that some have.
const QUALIFIERS: [(&str, &str); 23] = [
    ("trace", "trace"),
    ("t", "trace"),
    ("status", "status"),
    ("signal", "signal"),
    ("signals", "signal"),
    ("s", "signal"),
    ("quiet", "quiet"),
    ("silent", "quiet"),
    ("silence", "quiet"),
    ("q", "quiet"),
    ("decode-fds", "decode-fds"),
    ("decode-fd", "decode-fds"),
    ("fault", "it changes no call: strace -e fault=... does"),
    ("inject", "it changes no call: strace -e inject=... does"),
    ("raw", "--json has the numbers of all arguments"),
    ("abbrev", "leave it out: structs are printed as far as they are copied"),
    ("verbose", "leave it out: structs are printed as far as they are copied"),
    ("read", "-s 4096 prints more of a buffer"),
    ("write", "-s 4096 prints more of a buffer"),
    ("kvm", "name the tracepoint: -e kvm:kvm_exit"),
    ("decode-pids", "leave it out: each line has the name of its thread"),
    ("trace-fds", "name a path: -P PATH"),
    ("namespace", "leave it out: numbers are those of this PID namespace"),
];

impl Asked {
    /// Of all `-e`. Sets of calls add up; one with `!` takes its calls away.
    pub fn of(expressions: &[String], known: &mut Calls) -> Result<Self, Failure> {
        let mut asked = Self {
            calls: Which::All,
            events: Vec::new(),
            ends: Which::All,
            signals: Which::All,
            is_quiet: false,
            decode_fds: 0,
        };
        for expression in expressions {
            let qualified = expression.split_once('=').and_then(|(word, set)| {
                let (_, of) = QUALIFIERS.iter().find(|(name, _)| *name == word)?;
                Some((*of, set))
            });
            match qualified {
                None => asked.add_calls(expression, known, false)?,
                Some(("trace", set)) => asked.add_calls(set, known, true)?,
                Some(("status", set)) => asked.ends = parsed(set, "status", &ENDS.map(|(_, end)| end), end)?,
                Some(("signal", set)) => {
                    let all: Vec<_> = (1..=SIGNALS).collect();
                    asked.signals = parsed(set, "signal", &all, signal)?;
                }
                Some(("quiet", set)) => {
                    asked.is_quiet = set.split(',').any(|what| ["exit", "exits", "all"].contains(&what));
                }
                Some(("decode-fds", set)) => asked.decode_fds = decoded(set)?,
                Some((hint, _)) => {
                    return Err(Failure::hinting(format_args!("-e {expression} is strace's alone"), hint));
                }
            }
        }
        Ok(asked)
    }

    /// `openat,%net`. `is_call`: nothing else can be meant. If events alone are named, no calls are asked for.
    fn add_calls(&mut self, set: &str, known: &mut Calls, is_call: bool) -> Result<(), Failure> {
        let (is_not, set) = set.strip_prefix('!').map_or((false, set), |set| (true, set));
        let mut found = BTreeSet::new();
        for word in set.split(',').filter(|word| !word.is_empty()) {
            let (may_lack, word) = word.strip_prefix('?').map_or((false, word), |word| (true, word));
            match numbers(word, known)? {
                Some(numbers) => found.extend(numbers),
                None if may_lack => {}
                None if is_call || is_not || word.starts_with('%') => {
                    let hint = "ausyscall --dump and man 2 syscalls list them; classes are %file, %desc, %network, \
                         %process, %signal, %memory, %ipc, %creds, %clock, %pure, %stat, %statfs";
                    return Err(Failure::hinting(format_args!("there is no system call {word}"), hint));
                }
                None => self.events.push(word.to_owned()),
            }
        }
        self.calls = match (&mut self.calls, is_not) {
            (Which::All, false) => Which::Only(found),
            (Which::All, true) => Which::Only(calls::all().filter(|number| !found.contains(number)).collect()),
            (Which::Only(before), false) => Which::Only(before.union(&found).copied().collect()),
            (Which::Only(before), true) => Which::Only(before.difference(&found).copied().collect()),
        };
        Ok(())
    }
}

/// Paths are -y, and all else is -yy: there is nothing in between.
pub fn decoded(set: &str) -> Result<u8, Failure> {
    let each = set.split(',').map(|word| match word {
        "none" => Ok(0),
        "path" => Ok(1),
        "all" | "socket" | "dev" | "pidfd" => Ok(2),
        _ => Err(Failure::new(format_args!("there is no decode-fds {word}"))),
    });
    each.collect::<Result<Vec<_>, _>>().map(|each| each.into_iter().max().unwrap_or(0))
}

/// The calls that a word means, if it means any.
fn numbers(word: &str, known: &mut Calls) -> Result<Option<Vec<i64>>, Failure> {
    // The names of classes that strace had before it had the sign.
    let old = ["all", "file", "desc", "memory", "process", "signal", "ipc", "network"];
    let class = word.strip_prefix('%').or_else(|| old.contains(&word).then_some(word));
    if let Some(class) = class {
        if class.is_empty() || calls::all().next().is_some_and(|number| classes::has(class, known.of(number)).is_none())
        {
            return Ok(None);
        }
        return Ok(Some(calls::all().filter(|number| classes::has(class, known.of(*number)) == Some(true)).collect()));
    }
    if word.starts_with('/') && !word.contains(':') {
        let hint = "name the calls, with commas in between, or a class such as %file";
        return Err(Failure::hinting(format_args!("-e {word}: regular expressions are strace's alone"), hint));
    }
    if word == "none" {
        return Ok(Some(Vec::new()));
    }
    let number = word.parse().ok().filter(|number| calls::name_of(*number).is_some());
    Ok(number.or_else(|| calls::number(word)).map(|number| vec![number]))
}

/// A set of what has names, with `all`, `none` and `!`.
fn parsed<T: Ord + Copy>(
    set: &str,
    what: &str,
    all: &[T],
    one: impl Fn(&str) -> Option<T>,
) -> Result<Which<T>, Failure> {
    let (is_not, set) = set.strip_prefix('!').map_or((false, set), |set| (true, set));
    let mut found = BTreeSet::new();
    for word in set.split(',') {
        match (word, one(word)) {
            ("all", _) => found.extend(all),
            ("none", _) => {}
            // As strace has it: nothing here ends so.
            ("unavailable" | "detached", _) if what == "status" => {}
            (_, Some(value)) => drop(found.insert(value)),
            (_, None) => return Err(Failure::new(format_args!("there is no {what} {word}"))),
        }
    }
    if is_not {
        found = all.iter().copied().filter(|value| !found.contains(value)).collect();
    }
    Ok(Which::Only(found))
}

const ENDS: [(&str, End); 3] =
    [("successful", End::Successful), ("failed", End::Failed), ("unfinished", End::Unfinished)];

fn end(name: &str) -> Option<End> {
    ENDS.iter().find(|(known, _)| *known == name).map(|(_, end)| *end)
}

/// Numbers of signals are not larger.
const SIGNALS: i32 = 64;

fn signal(name: &str) -> Option<i32> {
    let name = name.to_uppercase();
    let full = if name.starts_with("SIG") { name.clone() } else { format!("SIG{name}") };
    let number = name.parse().ok().filter(|number| (1..=SIGNALS).contains(number));
    number.or_else(|| full.parse::<Signal>().ok().map(|signal| signal as i32))
}

#[cfg(test)]
mod tests {
    use super::{Asked, End, Which};
    use crate::failure::Failure;
    use crate::trace::calls::{Calls, name_of};

    fn asked(expressions: &[&str]) -> Result<Asked, Failure> {
        let expressions: Vec<_> = expressions.iter().map(|text| (*text).to_owned()).collect();
        Asked::of(&expressions, &mut Calls::default())
    }

    /// The names of the calls, or "all".
    fn calls(expressions: &[&str]) -> String {
        match asked(expressions).unwrap().calls {
            Which::All => "all".into(),
            Which::Only(numbers) => {
                let mut names: Vec<_> = numbers.into_iter().filter_map(name_of).collect();
                names.sort_unstable();
                names.join(" ")
            }
        }
    }

    #[test]
    fn sets_of_calls_add_up() {
        assert_eq!(calls(&[]), "all");
        assert_eq!(calls(&["openat,close"]), "close openat");
        assert_eq!(calls(&["t=openat", "read"]), "openat read");
        assert_eq!(
            calls(&["%ipc", "!shmat,shmdt,shmget,shmctl"]),
            "msgctl msgget msgrcv msgsnd semctl semget semop semtimedop"
        );
        assert_eq!(calls(&["trace=?nosuch,read"]), "read");
        assert_eq!(calls(&["trace=none"]), "");
        let but = calls(&["!futex"]);
        assert!(but.contains(" read ") && !but.contains("futex "), "{but}");
        assert_eq!(calls(&["status=failed"]), "all");
        let decodes = ["decode-fds=path", "decode-fds=all", "decode-fds=none,path", "read"];
        assert_eq!(decodes.map(|one| asked(&[one]).unwrap().decode_fds), [1, 2, 1, 0]);
        assert!(asked(&["decode-fds=nosuch"]).is_err());
        for wrong in
            ["trace=nosuch", "!nosuch", "%nosuch", "status=lost", "signal=SIGX", "/^open", "inject=read:error=EIO"]
        {
            assert!(asked(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn other_words_are_events_signals_and_ends() {
        let all = asked(&["sched:sched_switch,page-faults", "status=!failed", "signal=!int,SIGCHLD,9"]).unwrap();
        assert_eq!(all.events, ["sched:sched_switch", "page-faults"]);
        assert_eq!(all.ends, Which::Only([End::Successful, End::Unfinished].into()));
        let Which::Only(signals) = all.signals else { panic!() };
        assert!([2, 9, 17].iter().all(|signal| !signals.contains(signal)) && signals.len() == 61, "{signals:?}");
    }
}
