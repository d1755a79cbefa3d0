//! Functions that a runtime compiles while it runs: `/tmp/perf-PID.map`, which it writes for profilers
//! (tools/perf/Documentation/jit-interface.txt). Anybody can put anything there, so that only a regular file of the
//! process's own user is read.
//!
//! A map may be larger than memory. So addresses are gathered first, and then it is read from its end back: the first
//! line that covers an address is the one that was written last. Of lines nothing is kept but the names of addresses.

use nix::fcntl::OFlag;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, Metadata};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The largest map that is read, in bytes. A runtime writes some 60 for each function.
const MOST: u64 = 1 << 30;

/// The longest line.
const LONGEST: usize = 1 << 14;

/// How much of a map is in memory at once.
const BLOCK: usize = 1 << 20;

/// So many maps are kept open until they are read.
const MOST_OPEN: usize = 128;

/// A map is looked for no more often: there may be another one at its path.
const AGAIN: Duration = Duration::from_secs(1);

/// The maps of processes, and the addresses that are looked for in them.
#[derive(Debug, Default)]
pub struct Compiled {
    /// The folder of a recording, if they are kept there. Of live processes they are in `/tmp`.
    folder: Option<PathBuf>,
    maps: Vec<Map>,
    /// By process: the map of what it runs now.
    current: HashMap<u32, usize>,
}

#[derive(Debug)]
struct Map {
    pid: u32,
    file: Option<File>,
    /// When it was looked for last.
    looked: Option<Instant>,
    /// What has no name yet, and whether the map was read for it.
    wanted: BTreeSet<u64>,
    is_read: bool,
    found: BTreeMap<u64, String>,
    /// Why it was not read to its beginning.
    unread: Option<String>,
}

impl Compiled {
    /// Of a recording, beside which maps are kept.
    pub fn beside(recording: &Path) -> Self {
        let folder = recording.parent().map(|folder| if folder == Path::new("") { Path::new(".") } else { folder });
        Self { folder: folder.filter(|_| recording != Path::new("-")).map(Path::to_owned), ..Self::default() }
    }

    /// Whether the recording's folder has any map.
    pub fn has_maps(&self) -> bool {
        let files = self.folder.iter().flat_map(fs::read_dir).flatten().flatten();
        let is_map = |name: &str| Some(name.strip_prefix("perf-")?.strip_suffix(".map")?.parse::<u32>().is_ok());
        files.into_iter().any(|file| file.file_name().to_str().and_then(is_map) == Some(true))
    }

    /// Gathers an address of a process. Gives the number of the map that tells of it. Keeps that open, so that it can be
    /// read when the process has ended and taken it away.
    pub fn want(&mut self, pid: u32, address: u64) -> usize {
        let number = *self.current.entry(pid).or_insert_with(|| {
            let (wanted, found) = Default::default();
            self.maps.push(Map { pid, file: None, looked: None, wanted, is_read: true, found, unread: None });
            self.maps.len() - 1
        });
        let Map { file, looked, wanted, is_read, found, .. } = &mut self.maps[number];
        if found.contains_key(&address) || !wanted.insert(address) {
            return number;
        }
        *is_read = false;
        let is_due = looked.is_none_or(|looked| looked.elapsed() >= AGAIN);
        let is_open = file.is_some();
        let open = || self.maps.iter().filter(|map| map.file.is_some()).count();
        if is_due && (is_open || open() < MOST_OPEN) {
            self.maps[number].look(self.folder.as_deref());
        }
        number
    }

    /// A process executes another program, or its number is another's.
    pub fn forget(&mut self, pid: u32) {
        self.current.remove(&pid);
    }

    /// Looks up what was gathered.
    pub fn read(&mut self) {
        for (number, map) in self.maps.iter_mut().enumerate().filter(|(_, map)| !map.is_read) {
            if self.current.get(&map.pid) == Some(&number) {
                map.look(self.folder.as_deref());
            }
            map.read();
        }
    }

    /// The function at an address that was gathered and read.
    pub fn name(&self, number: usize, address: u64) -> Option<&str> {
        self.maps.get(number)?.found.get(&address).map(String::as_str)
    }

    /// The same, of what a process ran last.
    pub fn of(&self, pid: u32, address: u64) -> Option<&str> {
        self.name(*self.current.get(&pid)?, address)
    }

    /// What is to be said of maps that were not read.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.maps.iter().filter_map(|Map { pid, unread, .. }| {
            Some(format!(
                "perf-{pid}.map {}: functions that process {pid} compiled may have no names",
                unread.as_ref()?
            ))
        })
    }
}

impl Map {
    /// Opens what lies at its path now. If nothing does, what was there before is kept.
    fn look(&mut self, folder: Option<&Path>) {
        self.looked = Some(Instant::now());
        let opened = match folder {
            Some(folder) => open(&folder.join(format!("perf-{}.map", self.pid))),
            None => of_process(self.pid),
        };
        self.file = opened.map(|(file, _)| file).or(self.file.take());
    }

    fn read(&mut self) {
        self.is_read = true;
        let Some(file) = &self.file else { return };
        let len = match file.metadata() {
            Ok(metadata) if metadata.len() <= MOST => metadata.len(),
            Ok(metadata) => {
                let len = metadata.len();
                self.unread = Some(format!("has {len} bytes and was not read: at most {MOST} are"));
                return;
            }
            Err(_) => 0,
        };
        let Self { wanted, found, .. } = self;
        let read = backwards(file, len, BLOCK, |line| {
            if let Some((start, end, name)) = parsed(line) {
                let covered: Vec<_> = wanted.range(start..end).copied().collect();
                for address in covered {
                    wanted.remove(&address);
                    found.insert(address, String::from_utf8_lossy(name).trim_end().to_owned());
                }
            }
            if wanted.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        self.unread = read.err().map(|error| format!("cannot be read to its beginning: {error}"));
    }
}

/// The map of a process that runs, if it is of the process's own user.
fn of_process(pid: u32) -> Option<(File, Metadata)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::split_whitespace);
    // The effective one of four. And the number in the process's own namespace, by which it names the file in its own
    // /tmp.
    let user = line("Uid:")?.nth(1)?.parse::<u32>().ok()?;
    let own = line("NStgid:").and_then(Iterator::last).map_or(Some(pid), |pid| pid.parse().ok())?;
    let opened = open(Path::new(&format!("/proc/{pid}/root/tmp/perf-{own}.map")))?;
    (opened.1.uid() == user).then_some(opened)
}

/// Opens a regular file. Nothing here waits: a pipe is opened without a writer, and is then no regular file.
fn open(path: &Path) -> Option<(File, Metadata)> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits()).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    metadata.is_file().then_some((file, metadata))
}

/// Calls a function with the lines of a file, the last one first, until it breaks. Lines that are too long are none.
fn backwards(file: &File, len: u64, block: usize, mut each: impl FnMut(&[u8]) -> ControlFlow<()>) -> io::Result<()> {
    let mut bytes = vec![0; block.min(len as usize)];
    // The end of the line whose beginning lies before the block.
    let (mut rest, mut is_long) = (Vec::new(), false);
    let mut at = len;
    while at > 0 {
        let part = &mut bytes[..block.min(at as usize)];
        at -= part.len() as u64;
        file.read_exact_at(part, at)?;
        let mut lines = part.rsplit(|byte| *byte == b'\n').peekable();
        while let Some(line) = lines.next() {
            is_long |= line.len() + rest.len() > LONGEST;
            let line = if rest.is_empty() || is_long { line } else { &[line, &rest[..]].concat() };
            if at > 0 && lines.peek().is_none() {
                rest = if is_long { Vec::new() } else { line.to_vec() };
                break;
            }
            if !is_long && each(line).is_break() {
                return Ok(());
            }
            (rest, is_long) = (Vec::new(), false);
        }
    }
    Ok(())
}

/// Lines are `START SIZE NAME`, numbers in hex. Gives where the function begins and ends.
fn parsed(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let mut number = || {
        let text = str::from_utf8(words.next()?).ok()?;
        u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
    };
    let (start, len) = (number()?, number()?);
    let end = start.checked_add(len).filter(|end| *end > start)?;
    Some((start, end, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::{Compiled, LONGEST, backwards};
    use std::fs::{self, File};
    use std::ops::ControlFlow;
    use std::path::PathBuf;

    /// A folder with a recording and the map of process 7. It is deleted at the end.
    struct Kept(PathBuf);

    impl Kept {
        fn new(name: &str, map: &[u8]) -> Self {
            let folder = std::env::temp_dir().join(format!("perfweave-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("perf-7.map"), map).unwrap();
            Self(folder)
        }

        /// The functions at these addresses, and what is said.
        fn names(&self, addresses: &[u64]) -> (Vec<Option<String>>, Vec<String>) {
            let mut compiled = Compiled::beside(&self.0.join("perf.data"));
            assert!(compiled.has_maps());
            for address in addresses {
                compiled.want(7, *address);
            }
            compiled.read();
            let names = addresses.iter().map(|address| compiled.of(7, *address).map(str::to_owned)).collect();
            (names, compiled.notes().collect())
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Of lines that overlap the later one wins, wherever the earlier one begins.
    #[test]
    fn functions_have_a_place_a_length_and_any_name() {
        let map = b"2000 10 two words\n0x1000 20 one\nnonsense\n1000 8 newer;one\n3000 zz x\n\n\
            5140 10 thrown_away\n5100 100 hot\nffffffffffffffff 10 x\n6000 0 empty\n7000 10 last";
        let places = [0xfff, 0x1000, 0x1007, 0x1008, 0x1020, 0x2000, 0x2010, 0x5148, 0x6000, 0x700f];
        let (names, said) = Kept::new("compiled", map).names(&places);
        let expected = ["", "newer;one", "newer;one", "one", "", "two words", "", "hot", "", "last"];
        let expected = expected.map(|name| (!name.is_empty()).then(|| name.to_owned()));
        assert!(names == expected && said.is_empty(), "{names:?} {said:?}");
    }

    /// Whatever part of a map is in memory at once, its lines are the same, the last one first.
    #[test]
    fn lines_are_read_from_the_end_back() {
        let text = ["a", "", "bcd", &"x".repeat(LONGEST + 1), "", "ef"].join("\n");
        let kept = Kept::new("backwards", text.as_bytes());
        let file = File::open(kept.0.join("perf-7.map")).unwrap();
        for block in [1, 2, 3, 5, 4096, LONGEST, LONGEST + 1, 1 << 20] {
            let mut lines = Vec::new();
            let mut each = |line: &[u8]| {
                lines.push(String::from_utf8(line.to_vec()).unwrap());
                ControlFlow::Continue(())
            };
            backwards(&file, text.len() as u64, block, &mut each).unwrap();
            assert_eq!(lines, ["ef", "", "bcd", "", "a"], "{block}");
        }
    }

    /// More than 16 MiB are read, and no more than the names of what is looked for are kept.
    #[test]
    fn a_large_map_is_read_and_one_that_is_too_large_is_said() {
        let mut map = b"1000 10 first\n".to_vec();
        (0..600_000).for_each(|at| map.extend(format!("{:x} 40 a_function_{at:08}\n", 0x10_0000 + at * 64).as_bytes()));
        assert!(map.len() > 16 << 20);
        let kept = Kept::new("large", &map);
        let (names, said) = kept.names(&[0x1004, 0x10_0040]);
        assert!(names == [Some("first".into()), Some("a_function_00000001".into())] && said.is_empty(), "{names:?}");
        File::options().write(true).open(kept.0.join("perf-7.map")).unwrap().set_len(1 << 40).unwrap();
        let (names, said) = kept.names(&[0x1004]);
        assert!(
            names == [None] && said[0].starts_with("perf-7.map has 1099511627776 bytes and was not read"),
            "{said:?}"
        );
    }
}
