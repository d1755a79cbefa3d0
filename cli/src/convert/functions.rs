//! Functions of programs and libraries: by their files, if they are those that were recorded.

use super::view::View;
#[cfg(feature = "dwarf")]
use crate::unwind::rules::{End, Rules};
use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};
use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use object::{Object, ObjectSegment, ReadCache};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata, Permissions};
#[cfg(feature = "dwarf")]
use std::io::Write;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a recording says of a file, besides its path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Identity {
    BuildId(Vec<u8>),
    /// The device, and the inode.
    Inode([u32; 2], u64),
    Unknown,
}

/// The files that processes have mapped.
#[derive(Debug, Default)]
pub struct Files {
    all: Vec<File>,
    numbers: HashMap<(String, Identity), usize>,
    held: usize,
}

#[derive(Debug)]
struct File {
    path: String,
    identity: Identity,
    /// Opened while a process had mapped it.
    held: Option<(fs::File, Metadata)>,
    /// Looked at when a function is asked for.
    state: Option<State>,
    /// Whether a function was asked for as of a time before the file was last changed.
    is_changed: bool,
    /// Functions by offset.
    found: HashMap<u64, Function>,
    /// Read when a function is unwound, and as of which time they are right.
    #[cfg(feature = "dwarf")]
    rules: Option<Result<(Since, Rules), End>>,
}

/// What lies at an offset of a file.
#[derive(Debug, Clone, Default)]
pub struct Function {
    /// The one whose code it is, and those that are inlined there. None if it is not known.
    pub names: Vec<String>,
    /// How far behind the begin of the first.
    pub plus: u64,
}

/// What lies at a file's path now.
#[derive(Debug)]
enum Found {
    /// The recorded file.
    Here(Since, fs::File),
    Other,
    Missing,
    Large,
    NoFile,
}

/// Since when a file is known to be the recorded one.
#[derive(Debug, Clone, Copy)]
enum Since {
    /// By its build id.
    Ever,
    /// By its inode, which was last changed at this time: nanoseconds since 1970.
    Change(u64),
}

/// The functions of what lies at a file's path now.
#[derive(Debug)]
enum State {
    /// The recorded file.
    Here(Since, Box<Functions>),
    /// Another file.
    Other,
    /// No file.
    Missing,
    /// A file that is too large to look for functions in it, or to copy it.
    Large,
    /// Memory that is not a file's, such as the vDSO.
    NoFile,
}

/// A file that was opened, and is read through its descriptor: what lies at its path later is another.
#[derive(Debug)]
struct Functions {
    symbols: Symbolizer,
    /// By which the symbolizer knows it.
    path: String,
    /// Of a file without symbols of its own.
    elsewhere: Option<Box<Elsewhere>>,
}

/// Symbols that were put into a file of their own.
#[derive(Debug)]
struct Elsewhere {
    functions: Functions,
    /// Where the parts of the program lie in its file, how long they are, and at which addresses they are meant to be.
    parts: Vec<[u64; 3]>,
}

/// The largest tables of symbols of a program or library whose functions are looked for, in bytes: of 24 a function, as
/// many as five million. Any user can run a program that says it has endless functions.
const MOST: u64 = 128 << 20;

/// The largest file that is copied, and how much of all files is: see [`stable`].
const MOST_COPIED: [u64; 2] = [256 << 20, 1 << 30];

/// So many files are kept open until functions are asked for.
const MOST_HELD: usize = 512;

/// The most sections of a file (`SHN_LORESERVE`, include/uapi/linux/elf.h). With more it says so elsewhere.
const SECTIONS: usize = 0xff00;

/// A file system says the time of a change as of the timer's last tick, which may be so many nanoseconds earlier.
const TICK: u64 = 10_000_000;

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
            held: None,
            state: None,
            is_changed: false,
            found: HashMap::new(),
            #[cfg(feature = "dwarf")]
            rules: None,
        };
        self.all.push(file);
        self.numbers.insert(key, self.all.len() - 1);
        self.all.len() - 1
    }

    /// Keeps a file open that a process has mapped to a range: when functions are asked for, the process may have
    /// ended, and in its mount namespace the path may have been that of another file than here.
    pub fn hold(&mut self, number: usize, pid: u32, [start, end]: [u64; 2]) {
        let Some(file) = self.all.get_mut(number) else { return };
        let Identity::Inode(_, inode) = file.identity else { return };
        if file.held.is_some() || file.state.is_some() || self.held >= MOST_HELD || !is_file(&file.path) {
            return;
        }
        // The first is for those alone who may see what others map.
        let paths = [format!("/proc/{pid}/map_files/{start:x}-{end:x}"), format!("/proc/{pid}/root{}", file.path)];
        let mut opened = paths.iter().filter_map(|path| open(Path::new(path)).ok());
        file.held = opened.find(|(_, metadata)| metadata.ino() == inode);
        self.held += usize::from(file.held.is_some());
    }

    /// Whether it is a file with functions, and no memory without a name.
    pub fn is_file(&self, number: usize) -> bool {
        self.all.get(number).is_some_and(|file| is_file(&file.path))
    }

    /// The path of a file.
    pub fn path(&self, number: usize) -> &str {
        self.all.get(number).map_or("?", |file| &file.path)
    }

    /// The name of a file, without its folder.
    pub fn name(&self, number: usize) -> &str {
        self.path(number).rsplit('/').next().unwrap_or("?")
    }

    /// The function at an offset in a file, and those that are inlined there, as of a time of the recording's clock.
    /// `None` unless the file is that of the recording.
    pub fn functions(&mut self, number: usize, offset: u64, time: Option<u64>, view: &View) -> Option<&[String]> {
        Some(&self.function(number, offset, time, view)?.names)
    }

    /// The same with the offset in the function.
    pub fn function(&mut self, number: usize, offset: u64, time: Option<u64>, view: &View) -> Option<&Function> {
        let File { path, identity, held, state, is_changed, found, .. } = self.all.get_mut(number)?;
        let functions = match state.get_or_insert_with(|| look(path, identity, held.take(), view)) {
            State::Here(since, functions) if since.is_before(time, view) => functions,
            State::Here(..) => {
                *is_changed = true;
                return None;
            }
            State::Other | State::Missing | State::Large | State::NoFile => return None,
        };
        let found = found.entry(offset).or_insert_with(|| functions.at(offset));
        (!found.names.is_empty()).then_some(found)
    }

    /// Whether its functions may be unwound.
    #[cfg(feature = "dwarf")]
    pub fn may_have_rules(&self, number: usize) -> bool {
        self.all.get(number).is_some_and(|file| is_file(&file.path) || file.path == VDSO)
    }

    /// How the functions of a file are unwound, as of a time of the recording's clock. An error unless the file is that
    /// of the recording, and says it.
    #[cfg(feature = "dwarf")]
    pub fn rules(&mut self, number: usize, time: Option<u64>, view: &View, is_live: bool) -> Result<&mut Rules, End> {
        let File { path, identity, held, rules, .. } = self.all.get_mut(number).ok_or(End::NoFile)?;
        let read = || {
            if path == VDSO {
                let ids = view.build_ids.get(Path::new(VDSO));
                return Ok((Since::Ever, vdso(ids.map(Vec::as_slice), is_live).ok_or(End::OtherFile)?));
            }
            let was_held = held.is_some();
            let Found::Here(since, file) = find(path, identity, held.take(), view) else { return Err(End::OtherFile) };
            let rules = Rules::read(&file);
            // It is asked for functions later.
            *held = file.metadata().ok().filter(|_| was_held).map(|metadata| (file, metadata));
            Ok((since, rules.ok_or(End::NoRule)?))
        };
        let (since, rules) = rules.get_or_insert_with(read).as_mut().map_err(|end| *end)?;
        since.is_before(time, view).then_some(rules).ok_or(End::OtherFile)
    }

    /// What is to be said of files whose functions have no names, or might have wrong ones.
    pub fn notes(&self) -> Vec<String> {
        let [mut others, mut missing, mut large, mut unchanged] = [const { Vec::new() }; 4];
        for file in &self.all {
            match file.state {
                Some(State::Here(Since::Change(_), _)) if !file.is_changed => unchanged.push(file.path.as_str()),
                Some(State::Other | State::Here(Since::Change(_), _)) => others.push(file.path.as_str()),
                Some(State::Missing) => missing.push(file.path.as_str()),
                Some(State::Large) => large.push(file.path.as_str()),
                Some(State::Here(Since::Ever, _) | State::NoFile) | None => {}
            }
        }
        let kinds = [
            (others, "not known to be as recorded, so addresses have no functions"),
            (missing, "not here, so addresses have no functions"),
            (large, "too large or with too many symbols, so addresses have no functions"),
            (unchanged, "without a build id in the recording: names are of the unchanged file at the same inode"),
        ];
        kinds.into_iter().filter_map(|(paths, what)| note(paths, what)).collect()
    }
}

impl Since {
    /// Whether it was so at a time of the recording's clock.
    fn is_before(self, time: Option<u64>, view: &View) -> bool {
        match self {
            Self::Ever => true,
            Self::Change(changed) => written(time, view).is_some_and(|then| changed.saturating_add(TICK) <= then),
        }
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

/// The functions that the kernel maps into each process.
#[cfg(feature = "dwarf")]
const VDSO: &str = "[vdso]";

/// How they are unwound: as those of this process, if those of a recording have the same build id.
#[cfg(feature = "dwarf")]
fn vdso(recorded: Option<&[Vec<u8>]>, is_live: bool) -> Option<Rules> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with(VDSO))?;
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).ok());
    let mut bytes = vec![0; end?.checked_sub(start?)? as usize];
    fs::File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, start?).ok()?;
    let mut copy = fs::File::from(memfd_create("vdso", MFdFlags::MFD_CLOEXEC).ok()?);
    copy.write_all(&bytes).ok()?;
    let own = read_elf_build_id(&through(&copy)).ok().flatten();
    let is_same = || own.zip(recorded).is_some_and(|(own, ids)| ids.iter().any(|id| is_same(id, &own)));
    if is_live || is_same() { Rules::read(&copy) } else { None }
}

/// Not `[vdso]`, `//anon`, `/memfd:name (deleted)`.
fn is_file(path: &str) -> bool {
    path.starts_with('/') && !path.starts_with("//") && !path.starts_with("/memfd:")
}

fn look(path: &str, identity: &Identity, held: Option<(fs::File, Metadata)>, view: &View) -> State {
    match find(path, identity, held, view) {
        Found::Here(since, opened) => State::Here(since, Functions::with_elsewhere(&opened, path).into()),
        Found::Other => State::Other,
        Found::Missing => State::Missing,
        Found::Large => State::Large,
        Found::NoFile => State::NoFile,
    }
}

fn find(path: &str, identity: &Identity, held: Option<(fs::File, Metadata)>, view: &View) -> Found {
    if !is_file(path) {
        return Found::NoFile;
    }
    let is_held = held.is_some();
    let Ok((opened, file)) = held.map_or_else(|| open(Path::new(path)), Ok) else { return Found::Missing };
    let opened = match stable(opened, &file) {
        Ok(opened) if is_small(&opened) => opened,
        _ => return Found::Large,
    };
    if is_held {
        return Found::Here(Since::Ever, opened);
    }
    let is_inode =
        matches!(identity, Identity::Inode(device, inode) if (*device, *inode) == (numbers(file.dev()), file.ino()));
    let recorded = match identity {
        Identity::BuildId(id) => Some(std::slice::from_ref(id)),
        _ => view.build_ids.get(Path::new(path)).map(Vec::as_slice),
    };
    match recorded {
        // perf reads build ids at the end. A path that is there twice was that of two files, and has the id of the
        // later one for both.
        Some(ids) if ids.len() == 1 || is_inode => {
            let here = read_elf_build_id(&through(&opened)).ok().flatten();
            let is_one = here.is_some_and(|here| ids.iter().any(|id| is_same(id, &here)));
            if is_one { Found::Here(Since::Ever, opened) } else { Found::Other }
        }
        None if is_inode => {
            let [seconds, rest] = [file.ctime(), file.ctime_nsec()].map(i64::unsigned_abs);
            let changed = seconds.saturating_mul(1_000_000_000).saturating_add(rest);
            Found::Here(Since::Change(changed), opened)
        }
        _ => Found::Other,
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

/// When a time of the recording was, in nanoseconds since 1970; or a time before it, if the recording does not say what
/// the wall clock was.
fn written(time: Option<u64>, view: &View) -> Option<u64> {
    view.wall.zip(time).map(|(wall, time)| wall.apply(time)).or(view.before)
}

/// Opens a regular file, without waiting for the other end of a pipe. Looked at before as well, because opening a
/// device has effects.
fn open(path: &Path) -> io::Result<(fs::File, Metadata)> {
    let checked = |metadata: Metadata| if metadata.is_file() { Ok(metadata) } else { Err(ErrorKind::InvalidInput) };
    checked(fs::metadata(path)?)?;
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = fs::File::options().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = checked(file.metadata()?)?;
    Ok((file, metadata))
}

fn through(file: &fs::File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// A file that nobody changes or cuts while it is mapped, which would end this program by SIGBUS: itself if it is of
/// root or of this user, and else a copy.
fn stable(file: fs::File, metadata: &Metadata) -> io::Result<fs::File> {
    static COPIED: AtomicU64 = AtomicU64::new(0);
    let is_trusted = [0, nix::unistd::geteuid().as_raw()].contains(&metadata.uid());
    if is_trusted && metadata.mode() & 0o022 == 0 {
        return Ok(file);
    }
    let [most, most_of_all] = MOST_COPIED;
    let len = metadata.len();
    if len > most || COPIED.fetch_add(len, Ordering::Relaxed).saturating_add(len) > most_of_all {
        return Err(ErrorKind::FileTooLarge.into());
    }
    let mut copy = fs::File::from(memfd_create("functions", MFdFlags::MFD_CLOEXEC)?);
    io::copy(&mut file.take(len), &mut copy)?;
    // It is this user's alone: nothing copies it again.
    copy.set_permissions(Permissions::from_mode(0o600))?;
    Ok(copy)
}

/// Whether a file's tables of symbols have at most [`MOST`] bytes (elf(5)). What is no ELF file has none.
fn is_small(file: &fs::File) -> bool {
    let mut header = [0; 64];
    if file.read_exact_at(&mut header, 0).is_err() || !header.starts_with(b"\x7fELF") {
        return true;
    }
    let number = |bytes: &[u8], at: usize, len: usize| {
        let mut word = [0; 8];
        word[..len].copy_from_slice(&bytes[at..at + len]);
        // Of the other byte order it is none of this machine's.
        u64::from_le_bytes(word)
    };
    // Class 2 has 64 bits. e_shoff, e_shentsize, e_shnum; then sh_size.
    let (table, size, count, at, len) = match header[4] {
        2 => (number(&header, 0x28, 8), number(&header, 0x3a, 2), number(&header, 0x3c, 2), 0x20, 8),
        _ => (number(&header, 0x20, 4), number(&header, 0x2e, 2), number(&header, 0x30, 2), 0x14, 4),
    };
    // With more sections than fit, the first one says how many.
    let many = count == 0 && table != 0;
    if many || size < 0x28 {
        return !many;
    }
    let mut sections = vec![0; size as usize * (count as usize).min(SECTIONS)];
    if file.read_exact_at(&mut sections, table).is_err() {
        return true;
    }
    // SHT_SYMTAB and SHT_DYNSYM.
    let tables = sections.chunks_exact(size as usize).filter(|section| matches!(number(section, 4, 4), 2 | 11));
    tables.fold(0u64, |all, section| all.saturating_add(number(section, at, len))) <= MOST
}

impl Functions {
    fn of(file: &fs::File) -> Self {
        // Without reloading, a path stands for what lay there when it was first asked for. So it is asked for while the
        // file is open.
        let symbols = Symbolizer::builder().enable_auto_reload(false);
        // What a link in the file names is opened by `Elsewhere` alone, which looks at it first.
        #[cfg(feature = "inlined")]
        let symbols = symbols.set_debug_dirs(None::<[&Path; 0]>).enable_code_info(true).enable_inlined_fns(true);
        let symbols = symbols.build();
        let functions = Self { symbols, path: through(file), elsewhere: None };
        functions.at(0);
        functions
    }

    /// The same with symbols that lie elsewhere.
    fn with_elsewhere(file: &fs::File, path: &str) -> Self {
        Self { elsewhere: Elsewhere::of(file, Path::new(path)).map(Box::new), ..Self::of(file) }
    }

    fn at(&self, offset: u64) -> Function {
        let found = self.symbol(Input::FileOffset(offset)).or_else(|| self.elsewhere.as_ref()?.at(offset));
        found.unwrap_or_default()
    }

    fn symbol(&self, place: Input<u64>) -> Option<Function> {
        // Before all else, for it is asked once while the file is open.
        let inlined = self.inlined(place);
        let mut elf = Elf::new(&self.path);
        // Of a function in several parts, debugging information does not say where it ends.
        elf.debug_syms = false;
        let found = self.symbols.symbolize_single(&Source::Elf(elf), place).ok()?;
        let symbol = found.as_sym()?;
        // A symbol without a size may have ended long before.
        let is_inside = symbol.size.is_some_and(|size| symbol.offset < size);
        let names = || std::iter::once(symbol.name.clone().into_owned()).chain(inlined).collect();
        is_inside.then(|| Function { names: names(), plus: symbol.offset as u64 })
    }

    /// The functions that are inlined at a place, by the debugging information.
    #[cfg(feature = "inlined")]
    fn inlined(&self, place: Input<u64>) -> Vec<String> {
        let found = self.symbols.symbolize_single(&Source::Elf(Elf::new(&self.path)), place).ok();
        let inlined = found.as_ref().and_then(|found| found.as_sym()).map(|symbol| symbol.inlined.iter());
        inlined.into_iter().flatten().map(|function| function.name.clone().into_owned()).collect()
    }

    #[cfg(not(feature = "inlined"))]
    fn inlined(&self, _: Input<u64>) -> Vec<String> {
        Vec::new()
    }
}

impl Elsewhere {
    /// The file with a program's symbols where distributions put it, or where its link says (.gnu_debuglink): the first
    /// with the same build id.
    fn of(file: &fs::File, path: &Path) -> Option<Self> {
        let cache = ReadCache::new(file);
        let elf = object::File::parse(&cache).ok()?;
        let id = elf.build_id().ok().flatten().filter(|id| id.len() > 1 && elf.symbol_table().is_none())?;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let root = Path::new("/usr/lib/debug");
        let mut places = vec![root.join(format!(".build-id/{}/{}.debug", hex(&id[..1]), hex(&id[1..])))];
        if let Some((link, folder)) = elf.gnu_debuglink().ok().flatten().zip(path.parent()) {
            let link = OsStr::from_bytes(link.0);
            let beside = [folder.join(link), folder.join(".debug").join(link)];
            places.extend(beside);
            places.push(root.join(folder.strip_prefix("/").unwrap_or(folder)).join(link));
        }
        let is_it = |file: &fs::File| read_elf_build_id(&through(file)).ok().flatten().is_some_and(|other| other == id);
        let opened = places.iter().find_map(|place| {
            let (opened, metadata) = open(place).ok()?;
            stable(opened, &metadata).ok().filter(|opened| is_small(opened) && is_it(opened))
        })?;
        let part = |part: object::Segment<'_, '_, _>| {
            let (offset, len) = part.file_range();
            [offset, len, part.address()]
        };
        Some(Self { functions: Functions::of(&opened), parts: elf.segments().map(part).collect() })
    }

    fn at(&self, offset: u64) -> Option<Function> {
        let mut parts = self.parts.iter();
        let [from, _, address] = parts.find(|[from, len, _]| (*from..from.saturating_add(*len)).contains(&offset))?;
        self.functions.symbol(Input::VirtOffset(address.checked_add(offset - from)?))
    }
}

#[cfg(test)]
mod tests {
    use super::{Functions, is_same, is_small, note, open, stable};
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt;

    #[inline(never)]
    fn a_function_of_this_file() -> u64 {
        std::hint::black_box(7)
    }

    /// Where the function lies in this program's file (proc_pid_maps(5)).
    fn offset() -> u64 {
        let address = a_function_of_this_file as fn() -> u64 as usize as u64;
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let map = maps.lines().find_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let (start, end) = words[0].split_once('-').unwrap();
            (hex(start)..hex(end)).contains(&address).then(|| address - hex(start) + hex(words[2]))
        });
        map.unwrap()
    }

    /// What was looked at is what is read, whatever somebody puts at its path meanwhile.
    #[test]
    fn a_file_that_is_replaced_names_no_function() {
        assert_eq!(a_function_of_this_file(), 7);
        let path = std::env::temp_dir().join(format!("perfweave-functions-{}", std::process::id()));
        fs::copy("/proc/self/exe", &path).unwrap();
        let (file, _) = open(&path).unwrap();
        let functions = Functions::of(&file);
        drop(file);
        // Another file, which also gets the number of the descriptor.
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let other = File::open("/dev/null").unwrap();
        assert!(functions.at(offset()).names[0].contains("a_function_of_this_file"));
        drop(other);
        assert!(open(&path).is_err(), "a pipe");
        fs::remove_file(&path).unwrap();
    }

    /// Who may write into a file may cut it while it is mapped here.
    #[test]
    fn a_file_that_is_cut_while_it_is_read_ends_nothing() {
        let path = std::env::temp_dir().join(format!("perfweave-cut-{}", std::process::id()));
        fs::copy("/proc/self/exe", &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let (file, metadata) = open(&path).unwrap();
        let functions = Functions::of(&stable(file, &metadata).unwrap());
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert!(functions.at(offset()).names[0].contains("a_function_of_this_file"));
        // A long file that takes no room on the disk would take it here.
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let (file, metadata) = open(&path).unwrap();
        assert!(stable(file, &metadata).is_err());
        fs::remove_file(&path).unwrap();
    }

    /// A small file may say that it has endless symbols.
    #[test]
    fn a_file_with_endless_symbols_is_too_large() {
        let path = std::env::temp_dir().join(format!("perfweave-endless-{}", std::process::id()));
        fs::copy("/proc/self/exe", &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(is_small(&File::open(&path).unwrap()));
        let mut bytes = fs::read(&path).unwrap();
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let (table, count) = (word(0x28), word(0x38) >> 32 & 0xffff);
        let symtab = (0..count).map(|section| table + 64 * section).find(|at| bytes[at + 4] == 2).unwrap();
        bytes[symtab + 0x20..symtab + 0x28].copy_from_slice(&(1u64 << 28).to_ne_bytes());
        fs::write(&path, bytes).unwrap();
        assert!(!is_small(&File::open(&path).unwrap()));
        fs::remove_file(&path).unwrap();
    }

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
