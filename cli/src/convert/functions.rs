//! Functions of programs and libraries: by their files, if they are those that were recorded.

use super::view::View;
use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What a recording says of a file, besides its path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Identity {
    BuildId(Vec<u8>),
    /// The device, and the inode.
    Inode([u32; 2], u64),
    Unknown,
}

/// The files that processes have mapped.
#[derive(Debug)]
pub struct Files {
    all: Vec<File>,
    numbers: HashMap<(String, Identity), usize>,
    symbols: Symbolizer,
}

#[derive(Debug)]
struct File {
    path: String,
    identity: Identity,
    /// Looked at when a function is asked for.
    state: Option<State>,
    /// Whether a function was asked for as of a time before the file was last changed.
    is_changed: bool,
    /// Functions by offset.
    found: HashMap<u64, Option<String>>,
}

/// What lies at a file's path now.
#[derive(Debug)]
enum State {
    /// The file with the recorded build id.
    Same,
    /// A file with the recorded inode, which was last changed at this time: nanoseconds since 1970.
    Unchanged(u64),
    /// Another file.
    Other,
    /// No file.
    Missing,
    /// A file that is too large to look for functions in it.
    Large,
    /// Memory that is not a file's, such as the vDSO.
    NoFile,
}

/// The largest program or library whose functions are looked for, in bytes. Any user can run a program that says it has endless functions.
pub const MOST: u64 = 1 << 30;

/// A file system says the time of a change as of the timer's last tick, which may be so many nanoseconds earlier.
const TICK: u64 = 10_000_000;

impl Default for Files {
    fn default() -> Self {
        // What a file is was looked at before. It is not looked at again at each address.
        let symbols = Symbolizer::builder().enable_auto_reload(false).build();
        Self { all: Vec::new(), numbers: HashMap::new(), symbols }
    }
}

impl Files {
    /// The number of a file.
    pub fn number(&mut self, path: &str, identity: Identity) -> usize {
        let key = (path.to_owned(), identity);
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let file = File {
            path: key.0.clone(),
            identity: key.1.clone(),
            state: None,
            is_changed: false,
            found: HashMap::new(),
        };
        self.all.push(file);
        self.numbers.insert(key, self.all.len() - 1);
        self.all.len() - 1
    }

    /// The name of a file, without its folder.
    pub fn name(&self, number: usize) -> &str {
        self.all.get(number).and_then(|file| file.path.rsplit('/').next()).unwrap_or("?")
    }

    /// The function at an offset in a file, as of a time of the recording's clock. `None` unless the file is that of the recording.
    pub fn function(&mut self, number: usize, offset: u64, time: Option<u64>, view: &View) -> Option<&str> {
        let Self { all, symbols, .. } = self;
        let File { path, identity, state, is_changed, found } = all.get_mut(number)?;
        match state.get_or_insert_with(|| look(path, identity, view)) {
            State::Same => {}
            State::Unchanged(changed)
                if written(time, view).is_some_and(|then| changed.saturating_add(TICK) <= then) => {}
            State::Unchanged(_) => {
                *is_changed = true;
                return None;
            }
            State::Other | State::Missing | State::Large | State::NoFile => return None,
        }
        found.entry(offset).or_insert_with(|| function(symbols, path, offset)).as_deref()
    }

    /// What is to be said of files whose functions have no names, or might have wrong ones.
    pub fn notes(&self) -> Vec<String> {
        let [mut others, mut missing, mut large, mut unchanged] = [const { Vec::new() }; 4];
        for file in &self.all {
            match file.state {
                Some(State::Unchanged(_)) if !file.is_changed => unchanged.push(file.path.as_str()),
                Some(State::Other | State::Unchanged(_)) => others.push(file.path.as_str()),
                Some(State::Missing) => missing.push(file.path.as_str()),
                Some(State::Large) => large.push(file.path.as_str()),
                Some(State::Same | State::NoFile) | None => {}
            }
        }
        let kinds = [
            (others, "not known to be as recorded, so addresses have no functions"),
            (missing, "not here, so addresses have no functions"),
            (large, "larger than 1 GiB, so addresses have no functions"),
            (unchanged, "without a build id in the recording, and named by what lies unchanged at the same inode"),
        ];
        kinds.into_iter().filter_map(|(paths, what)| note(paths, what)).collect()
    }
}

/// How many files, what is with them, and the first three.
fn note(mut paths: Vec<&str>, what: &str) -> Option<String> {
    paths.sort_unstable();
    paths.dedup();
    let (count, dots) = (paths.len(), if paths.len() > 3 { ", ..." } else { "" });
    let files = if count == 1 { "file is" } else { "files are" };
    paths.truncate(3);
    (count > 0).then(|| format!("{count} {files} {what}: {}{dots}", paths.join(", ")))
}

fn look(path: &str, identity: &Identity, view: &View) -> State {
    // `[vdso]`, `//anon`, `/memfd:name (deleted)`
    if !path.starts_with('/') || path.starts_with("//") || path.starts_with("/memfd:") {
        return State::NoFile;
    }
    let Some(file) = fs::metadata(path).ok().filter(fs::Metadata::is_file) else { return State::Missing };
    if file.len() > MOST {
        return State::Large;
    }
    let is_inode =
        matches!(identity, Identity::Inode(device, inode) if (*device, *inode) == (numbers(file.dev()), file.ino()));
    let recorded = match identity {
        Identity::BuildId(id) => Some(std::slice::from_ref(id)),
        _ => view.build_ids.get(Path::new(path)).map(Vec::as_slice),
    };
    match recorded {
        // perf reads build ids at the end. A path that is there twice was that of two files, and has the id of the later one for both.
        Some(ids) if ids.len() == 1 || is_inode => {
            let here = read_elf_build_id(path).ok().flatten();
            let is_one = here.is_some_and(|here| ids.iter().any(|id| is_same(id, &here)));
            if is_one { State::Same } else { State::Other }
        }
        None if is_inode => {
            let [seconds, rest] = [file.ctime(), file.ctime_nsec()].map(i64::unsigned_abs);
            State::Unchanged(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
        }
        _ => State::Other,
    }
}

/// Major and minor.
fn numbers(device: u64) -> [u32; 2] {
    [nix::sys::stat::major(device), nix::sys::stat::minor(device)].map(|number| number as u32)
}

/// Some records fill build ids up with zeros.
fn is_same(id: &[u8], other: &[u8]) -> bool {
    let (short, long) = if id.len() < other.len() { (id, other) } else { (other, id) };
    let (same, rest) = long.split_at(short.len());
    !short.is_empty() && same == short && rest.iter().all(|byte| *byte == 0)
}

/// When a time of the recording was, in nanoseconds since 1970; or a time before it, if the recording does not say what the wall clock was.
fn written(time: Option<u64>, view: &View) -> Option<u64> {
    view.wall.zip(time).map(|(wall, time)| wall.apply(time)).or(view.before)
}

fn function(symbols: &Symbolizer, path: &str, offset: u64) -> Option<String> {
    let found = symbols.symbolize_single(&Source::Elf(Elf::new(path)), Input::FileOffset(offset)).ok()?;
    let symbol = found.as_sym()?;
    // A symbol without a size may have ended long before.
    let is_inside = symbol.size.is_some_and(|size| symbol.offset < size);
    is_inside.then(|| symbol.name.clone().into_owned())
}

#[cfg(test)]
mod tests {
    use super::{is_same, note};

    #[test]
    fn build_ids_are_the_same_but_for_zeros_behind_them() {
        assert!(is_same(&[1, 2], &[1, 2, 0, 0]) && is_same(&[1, 2], &[1, 2]));
        assert!(!is_same(&[1, 2], &[1, 2, 3]) && !is_same(&[], &[]) && !is_same(&[], &[1]));
    }

    #[test]
    fn notes_count_files() {
        assert_eq!(note(vec!["/b", "/a", "/a"], "gone").as_deref(), Some("2 files are gone: /a, /b"));
        assert_eq!(note(vec!["/d", "/c", "/b", "/a"], "gone").as_deref(), Some("4 files are gone: /a, /b, /c, ..."));
        assert_eq!(note(vec![], "gone"), None);
    }
}
