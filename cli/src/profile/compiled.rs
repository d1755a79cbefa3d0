//! Functions that a runtime compiles while it runs: `/tmp/perf-PID.map`, which it writes for profilers
//! (tools/perf/Documentation/jit-interface.txt). Anybody can put anything there, so that only a regular file of the
//! process's own user is read.

use nix::fcntl::OFlag;
use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

/// The largest file that is read, in bytes. A runtime writes some 60 for each function.
const MOST: u64 = 16 << 20;

/// The most functions of all processes together. Any user can write files of that kind, and each function takes some 60
/// bytes.
const MOST_FUNCTIONS: usize = 1 << 20;

/// So long what was read counts, although the file may have changed; ten times as long as reading it took, if that is
/// longer.
const FRESH: Duration = Duration::from_secs(1);

/// What was read of each process's file.
#[derive(Debug, Default)]
pub struct Compiled(HashMap<u32, Known>);

#[derive(Debug)]
struct Known {
    /// When the file may be read again.
    until: Instant,
    /// The file's inode, length and time of change.
    state: [u64; 4],
    functions: Vec<Function>,
}

#[derive(Debug, PartialEq, Eq)]
struct Function {
    start: u64,
    len: u64,
    name: String,
}

impl Compiled {
    /// The function at an address.
    pub fn function(&mut self, pid: u32, address: u64) -> Option<&str> {
        let is_known = |known: &Known| Instant::now() < known.until || found(&known.functions, address).is_some();
        if !self.0.get(&pid).is_some_and(is_known) {
            let before = self.0.remove(&pid);
            let others: usize = self.0.values().map(|known| known.functions.len()).sum();
            let known = Known::of(pid, before, MOST_FUNCTIONS.saturating_sub(others));
            self.0.insert(pid, known);
        }
        found(&self.0.get(&pid)?.functions, address)
    }
}

fn found(functions: &[Function], address: u64) -> Option<&str> {
    let after = functions.partition_point(|function| function.start <= address);
    let function = functions.get(after.checked_sub(1)?)?;
    (address - function.start < function.len).then_some(function.name.as_str())
}

impl Known {
    /// Reads the file, unless it is as it was before.
    fn of(pid: u32, before: Option<Self>, most: usize) -> Self {
        let begun = Instant::now();
        let known = |state, functions| {
            let now = Instant::now();
            Self { until: now + FRESH.max((now - begun) * 10), state, functions }
        };
        let Some((file, metadata)) = opened(pid) else { return known([0; 4], Vec::new()) };
        let time = [metadata.ctime(), metadata.ctime_nsec()].map(i64::cast_unsigned);
        let state = [metadata.ino(), metadata.len(), time[0], time[1]];
        if let Some(before) = before.filter(|before| before.state == state) {
            return known(state, before.functions);
        }
        let mut bytes = Vec::new();
        // It may grow meanwhile. What cannot be read is not known.
        let _ = file.take(MOST).read_to_end(&mut bytes);
        let mut functions = parsed(&bytes);
        functions.truncate(most);
        known(state, functions)
    }
}

/// The file of a process, if it is a regular one of the process's own user, and of no more than [`MOST`] bytes. Nothing
/// here waits: a pipe is opened without a writer, and is then no regular file.
fn opened(pid: u32) -> Option<(File, Metadata)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace);
    // The effective one of four. And the number in the process's own namespace, by which it names the file in its own
    // /tmp.
    let user = line("Uid:")?.nth(1)?.parse::<u32>().ok()?;
    let own = line("NStgid:").and_then(Iterator::last).map_or(Some(pid), |pid| pid.parse().ok())?;
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    let path = format!("/proc/{pid}/root/tmp/perf-{own}.map");
    let file = File::options().read(true).custom_flags(flags.bits()).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    (metadata.is_file() && metadata.uid() == user && metadata.len() <= MOST).then_some((file, metadata))
}

/// Lines are `START SIZE NAME`, numbers in hex.
fn parsed(bytes: &[u8]) -> Vec<Function> {
    let parse = |line: &[u8]| {
        let line = String::from_utf8_lossy(line);
        let mut words = line.splitn(3, ' ');
        let mut number = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
        let (start, len) = (number()?, number()?);
        Some(Function { start, len, name: words.next()?.trim_end().to_owned() })
    };
    let mut functions: Vec<_> = bytes.split(|byte| *byte == b'\n').filter_map(parse).collect();
    // Of two at one place, the one that was written later.
    functions.reverse();
    functions.sort_by_key(|function| function.start);
    functions.dedup_by_key(|function| function.start);
    functions
}

#[cfg(test)]
mod tests {
    use super::{found, parsed};

    #[test]
    fn functions_have_a_place_a_length_and_any_name() {
        let functions = parsed(b"2000 10 two words\n0x1000 20 one\nnonsense\n1000 8 newer;one\n3000 zz x\n\n");
        let names = [0xfff, 0x1000, 0x1007, 0x1008, 0x2000, 0x2010].map(|address| found(&functions, address));
        assert_eq!(names, [None, Some("newer;one"), Some("newer;one"), None, Some("two words"), None]);
    }
}
