//! The processes and the kernel of this machine, as procfs and sysfs show them. Everything is read piece by piece: no
//! file is in memory as a whole, and no line is longer than [`LINE`].
//!
//! Processes and threads end meanwhile. Then their files are gone or empty, and they are left out.

use crate::machine;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The longest line that is read: a path of `PATH_MAX` bytes with each byte escaped, and the fields before it. Longer
/// ones are cut.
const LINE: u64 = 4 * 4096 + 256;

/// The file systems.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) proc: PathBuf,
    pub(crate) sys: PathBuf,
    /// The folder of the running kernel's modules.
    pub(crate) modules: PathBuf,
}

/// A thread, from proc_pid_status(5).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) name: Vec<u8>,
    pub(crate) process: u32,
    pub(crate) parent: u32,
    /// Whether it has an address space: kernel threads and processes that have ended have none.
    pub(crate) is_program: bool,
}

/// A line of proc_pid_maps(5).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mapping<'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// `rwxp`
    pub(crate) flags: [u8; 4],
    pub(crate) offset: u64,
    pub(crate) device: [u32; 2],
    pub(crate) inode: u64,
    pub(crate) path: &'a [u8],
}

/// Where the kernel lies.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// The symbol that perf relocates by: `_text`, or `_stext`.
    pub(crate) symbol: &'static str,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// A line of `/proc/modules`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Module<'a> {
    pub(crate) name: &'a str,
    pub(crate) size: u64,
    pub(crate) start: u64,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let modules = Path::new("/lib/modules").join(machine::release());
        Self { proc: "/proc".into(), sys: "/sys".into(), modules }
    }

    /// Whether procfs shows processes by the numbers that this process knows: not if it is that of another PID
    /// namespace.
    pub(crate) fn has_our_numbers(&self) -> io::Result<bool> {
        let own = fs::read_link(self.proc.join("self"))?;
        Ok(own.to_str() == Some(&std::process::id().to_string()))
    }

    /// The numbers of all processes.
    pub(crate) fn processes(&self) -> io::Result<impl Iterator<Item = u32> + use<>> {
        numbers(&self.proc)
    }

    /// The numbers of the threads of a process.
    pub(crate) fn threads(&self, process: u32) -> io::Result<impl Iterator<Item = u32> + use<>> {
        numbers(&self.proc.join(format!("{process}/task")))
    }

    /// A thread, by its own number. `None` if the file makes no sense.
    pub(crate) fn thread(&self, number: u32) -> io::Result<Option<Thread>> {
        let folder = self.proc.join(number.to_string());
        let mut text = Vec::new();
        // The names are in the first lines. An address space comes after the groups, of which there are at most 65,536
        // (NGROUPS_MAX), with 11 bytes each.
        File::open(folder.join("status"))?.take(1 << 20).read_to_end(&mut text)?;
        let field = |name: &[u8]| {
            // No process can forge a line by its name: newlines in it are escaped.
            let value = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
            Some(value.strip_prefix(b"\t").unwrap_or(value))
        };
        let number = |name: &[u8]| std::str::from_utf8(field(name)?).ok()?.trim().parse().ok();
        let (Some(name), Some(process), Some(parent)) = (field(b"Name:"), number(b"Tgid:"), number(b"PPid:")) else {
            return Ok(None);
        };
        let mut name = name.to_vec();
        if name.contains(&b'\\') {
            // Here newlines and backslashes are escaped; in this file they are not.
            name.clear();
            File::open(folder.join("comm"))?.take(64).read_to_end(&mut name)?;
            name.pop();
        }
        Ok(Some(Thread { name, process, parent, is_program: field(b"VmSize:").is_some() }))
    }

    /// All mappings of a process.
    pub(crate) fn mappings<E: From<io::Error>>(
        &self,
        process: u32,
        mut each: impl FnMut(Mapping<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        lines(&self.proc.join(format!("{process}/maps")), |line| mapping(line).map_or(Ok(()), &mut each))
    }

    /// Where a process sees a file.
    pub(crate) fn seen_by(&self, process: u32, path: &Path) -> PathBuf {
        let root = self.proc.join(format!("{process}/root"));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Where the kernel's code lies. `None` if its addresses are hidden: they are then 0.
    pub(crate) fn kernel(&self) -> io::Result<Option<Kernel>> {
        let (mut text, mut stext, mut edata, mut etext) = (0, 0, 0, 0);
        lines(&self.proc.join("kallsyms"), |line| {
            // A module's symbols have its name in brackets. They come last.
            if line.last() != Some(&b']')
                && let Some((address, name)) = symbol(line)
            {
                match name {
                    b"_text" => text = address,
                    b"_stext" => stext = address,
                    b"_edata" => edata = address,
                    b"_etext" => etext = address,
                    _ => {}
                }
            }
            Ok::<_, io::Error>(())
        })?;
        // In the order in which perf looks for them (`ref_reloc_sym_names`).
        let (symbol, start) = if text != 0 { ("_text", text) } else { ("_stext", stext) };
        let end = if edata > start { edata } else { etext };
        Ok((start != 0 && end > start).then_some(Kernel { symbol, start, end }))
    }

    /// All modules of the kernel that are loaded. There is no such file if the kernel has no modules.
    pub(crate) fn modules<E: From<io::Error>>(
        &self,
        mut each: impl FnMut(Module<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        lines(&self.proc.join("modules"), |line| module(line).map_or(Ok(()), &mut each))
    }

    /// The paths of the kernel's modules, by the names that `/proc/modules` has. Takes as much memory as they do.
    pub(crate) fn module_files(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let mut files = Vec::new();
        lines(&self.modules.join("modules.dep"), |line| {
            let path = line.split(|byte| *byte == b':').next().and_then(|path| std::str::from_utf8(path).ok());
            // Not as a suffix: modules may be compressed, as `.ko.xz`.
            let stem = path.and_then(|path| path.rsplit('/').next()?.split_once(".ko"));
            if let (Some(path), Some((stem, _))) = (path, stem) {
                // The kernel has underscores in its names where files have hyphens.
                files.push((stem.replace('-', "_"), self.modules.join(path)));
            }
            Ok::<_, io::Error>(())
        })?;
        // `Naming::modules` looks names up by bisection.
        files.sort();
        Ok(files)
    }

    /// The notes of the kernel, or of a module.
    pub(crate) fn notes(&self, module: Option<&str>) -> io::Result<Vec<u8>> {
        let path = match module {
            None => self.sys.join("kernel/notes"),
            Some(module) => self.sys.join(format!("module/{module}/notes/.note.gnu.build-id")),
        };
        let mut notes = Vec::new();
        File::open(path)?.take(1 << 16).read_to_end(&mut notes)?;
        Ok(notes)
    }
}

/// The entries of a folder that are numbers.
fn numbers(folder: &Path) -> io::Result<impl Iterator<Item = u32> + use<>> {
    Ok(fs::read_dir(folder)?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()))
}

/// All lines of a file, without their ends.
fn lines<E: From<io::Error>>(path: &Path, mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let mut reader = BufReader::with_capacity(1 << 14, File::open(path)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut reader).take(LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        // If it was cut, what is left of it must not be taken for the next line.
        if line.pop_if(|last| *last == b'\n').is_none() {
            reader.skip_until(b'\n')?;
        }
        each(&line)?;
    }
}

/// `7f0c1a400000-7f0c1a428000 r-xp 00028000 fe:00 1234                       /usr/lib/libc.so.6`
fn mapping(line: &[u8]) -> Option<Mapping<'_>> {
    // Six, because the path, which is the last, may have spaces.
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let mut next = || std::str::from_utf8(fields.next()?).ok();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = next()?.split_once('-')?;
    let flags = next()?.as_bytes().try_into().ok()?;
    let offset = hex(next()?)?;
    let (major, minor) = next()?.split_once(':')?;
    let inode = next()?.parse().ok()?;
    let device = [u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?];
    let path = fields.next().unwrap_or(b"").trim_ascii_start();
    Some(Mapping { start: hex(start)?, end: hex(end)?, flags, offset, device, inode, path })
}

/// `ffffffff81000000 T _text`
fn symbol(line: &[u8]) -> Option<(u64, &[u8])> {
    let (address, rest) = line.split_at_checked(16)?;
    let name = rest.get(3..)?;
    // Few lines are needed, of some hundred thousand.
    if !matches!(name, b"_text" | b"_stext" | b"_edata" | b"_etext") {
        return None;
    }
    Some((u64::from_str_radix(std::str::from_utf8(address).ok()?, 16).ok()?, name))
}

/// `nf_tables 311296 2 nft_compat,nft_chain_nat, Live 0xffffffffc0a00000 (O)`
fn module(line: &[u8]) -> Option<Module<'_>> {
    let mut fields = std::str::from_utf8(line).ok()?.split(' ');
    let name = fields.next()?;
    let size = fields.next()?.parse().ok()?;
    let start = u64::from_str_radix(fields.nth(3)?.strip_prefix("0x")?, 16).ok()?;
    Some(Module { name, size, start })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_many_groups_has_an_address_space() {
        let place = std::env::temp_dir().join(format!("perfweave-procfs-{}", std::process::id()));
        let [sys, modules] = [(); 2].map(|()| PathBuf::new());
        let machine = Machine { proc: place.clone(), sys, modules };
        fs::create_dir_all(place.join("7")).unwrap();
        for groups in [0, 3, 65_536] {
            let groups = "4294967294 ".repeat(groups);
            let text = format!("Name:\tmany\nTgid:\t7\nPPid:\t1\nGroups:\t{groups}\nVmPeak:\t 9 kB\nVmSize:\t 9 kB\n");
            fs::write(place.join("7/status"), text).unwrap();
            let found = machine.thread(7).unwrap().unwrap();
            assert_eq!(found, Thread { name: b"many".into(), process: 7, parent: 1, is_program: true });
        }
        fs::remove_dir_all(place).unwrap();
    }
}
