//! What perf(1) writes at the start of a recording: the processes that there are, what they have mapped, and the kernel
//! (`tools/perf/util/synthetic-events.c`). The records have the time 0, so they come before all others.

use crate::build_id::{BUILD_ID_SIZE, BuildId, BuildIds, USER, of_notes};
use crate::machine;
use crate::procfs::{Machine, Mapping, Thread};
use perf_event_open_sys::bindings;
use perfweave::{Error, ErrorKind};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[cfg(test)]
mod tests;

/// What a [`Writer`](crate::Writer) wrote about the processes and the kernel that were there when it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Names {
    /// Processes whose name is in the file. Those that ended meanwhile are not counted.
    pub processes: u64,
    /// Their threads.
    pub threads: u64,
    /// Their mappings of code.
    pub mappings: u64,
    /// Processes whose mappings this process may not read. They have names, and their functions have none.
    pub hidden: u64,
    /// Whether the place of the kernel's code is in the file.
    pub kernel: bool,
    /// Modules of the kernel.
    pub modules: u64,
    /// How many of the mappings, the modules and the kernel have a build id in the file.
    pub build_ids: u64,
}

/// Which names a recording needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    /// The processes that have these threads, or all.
    pub(crate) only: Option<&'a [u32]>,
    /// Whether records say which process they are of.
    pub(crate) processes: bool,
}

/// Why a name was not written.
#[derive(Debug)]
enum Failed {
    /// A file of procfs or sysfs cannot be read.
    Read(io::Error),
    /// The recording cannot be written.
    Write(Error),
}

impl From<io::Error> for Failed {
    fn from(errno: io::Error) -> Self {
        Self::Read(errno)
    }
}

/// The `misc` of a header (`include/uapi/linux/perf_event.h`).
const KERNEL: u16 = bindings::PERF_RECORD_MISC_KERNEL as u16;
/// The child maps what it says itself, and nothing of its parent's.
const FORK_EXEC: u16 = bindings::PERF_RECORD_MISC_FORK_EXEC as u16;
const BUILD_ID: u16 = bindings::PERF_RECORD_MISC_MMAP_BUILD_ID as u16;
/// The multiple to which paths are padded in that table (`NAME_ALIGN`).
const PADDED: usize = 64;
/// The longest path.
const PATH: usize = libc::PATH_MAX as usize;
/// Memory for the modules' part of the table of build ids, in bytes: some thousand modules.
const TABLE: usize = 1 << 20;

/// Writes the names. `put` gets the records: kind, `misc`, and the bytes between the header and `struct sample_id`.
pub(crate) struct Naming<'a, P> {
    machine: &'a Machine,
    put: P,
    names: Names,
    unnamed: Vec<Error>,
    /// The section `HEADER_BUILD_ID`: the kernel and its modules. Mappings carry their build ids themselves.
    table: Vec<u8>,
    build_ids: BuildIds,
    /// Whether samples have copies of stacks. perf finds what unwinds them in what a process has mapped to read.
    data: bool,
    /// The first process whose mappings cannot be read.
    hidden: Option<(u32, io::Error)>,
}

/// What was written, why names are missing, and the section of build ids.
pub(crate) type Named = (Names, Vec<Error>, Vec<u8>);

impl<'a, P: FnMut(u32, u16, &[u8]) -> Result<(), Error>> Naming<'a, P> {
    pub(crate) fn new(machine: &'a Machine, data: bool, put: P) -> Self {
        let (names, unnamed, table, build_ids) = Default::default();
        Self { machine, put, names, unnamed, table, build_ids, data, hidden: None }
    }

    /// Writes all names. Fails only if the recording cannot be written.
    pub(crate) fn write(mut self, scope: Scope<'_>) -> Result<Named, Error> {
        let kernel = self.kernel().and_then(|()| self.modules());
        self.tell(kernel, "functions of the kernel have no names")?;
        if scope.processes {
            let processes = self.processes(scope.only);
            self.tell(processes, "processes have no names")?;
        }
        if let Some((process, errno)) = self.hidden.take() {
            let message = format!(
                "functions of {} processes have no names: the mappings of process {process} cannot be read",
                self.names.hidden
            );
            let hint = "reading another user's mappings needs CAP_SYS_PTRACE";
            self.unnamed.push(Error::new(ErrorKind::of(&errno), message).because(errno).hinting(hint));
        }
        Ok((self.names, self.unnamed, self.table))
    }

    /// Notes why names are missing.
    fn tell(&mut self, wrote: Result<(), Failed>, what: &'static str) -> Result<(), Error> {
        match wrote {
            Ok(()) => Ok(()),
            Err(Failed::Write(error)) => Err(error),
            Err(Failed::Read(errno)) => {
                self.unnamed.push(Error::new(ErrorKind::of(&errno), what).because(errno));
                Ok(())
            }
        }
    }

    /// `[kernel.kallsyms]_text`, as perf calls it.
    fn kernel(&mut self) -> Result<(), Failed> {
        let Some(kernel) = self.machine.kernel()? else {
            let hint = "the addresses in /proc/kallsyms are hidden: set kernel.kptr_restrict to 0, and take \
                        CAP_SYSLOG or set kernel.perf_event_paranoid to 1 or less";
            let message = "functions of the kernel have no names: its place is hidden";
            self.unnamed.push(Error::new(ErrorKind::Permission, message).hinting(hint));
            return Ok(());
        };
        let name = format!("[kernel.kallsyms]{}", kernel.symbol);
        // No underflow: `Machine::kernel` gives none that ends before its start. perf relocates by the offset, which is
        // the address of the symbol in the name (`perf_event__synthesize_kernel_mmap`).
        self.mmap(kernel.start, kernel.end - kernel.start, kernel.start, name.as_bytes())?;
        self.names.kernel = true;
        self.note(None, b"[kernel.kallsyms]");
        Ok(())
    }

    fn modules(&mut self) -> Result<(), Failed> {
        let machine = self.machine;
        // Without the list, perf finds their symbols by their names in brackets.
        let files = machine.module_files().unwrap_or_default();
        let all = machine.modules(|module| {
            // Its address is hidden, as those in /proc/kallsyms.
            if module.start == 0 {
                return Ok(());
            }
            let found = files.binary_search_by(|(name, _)| name.as_str().cmp(module.name));
            let path = found.map_or_else(|_| format!("[{}]", module.name).into(), |at| files[at].1.clone());
            self.mmap(module.start, module.size, 0, path.as_os_str().as_bytes())?;
            self.names.modules += 1;
            self.note(Some(module.name), path.as_os_str().as_bytes());
            Ok(())
        });
        match all {
            // A kernel without modules has no such file.
            Err(Failed::Read(errno)) if errno.kind() == io::ErrorKind::NotFound => Ok(()),
            all => all,
        }
    }

    /// `PERF_RECORD_MMAP` of the kernel or of a module. They belong to no process.
    fn mmap(&mut self, start: u64, len: u64, offset: u64, path: &[u8]) -> Result<(), Failed> {
        let mut body: Vec<u8> = [u32::MAX, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        body.extend([start, len, offset].iter().flat_map(|word| word.to_ne_bytes()));
        string(&mut body, path);
        (self.put)(bindings::PERF_RECORD_MMAP, KERNEL, &body).map_err(Failed::Write)
    }

    /// Adds a build id of the kernel or of a module to the table (`struct perf_record_header_build_id`).
    fn note(&mut self, module: Option<&str>, path: &[u8]) {
        let Some(id) = self.machine.notes(module).ok().and_then(|notes| of_notes(&notes)) else { return };
        let len = (path.len() + 1).next_multiple_of(PADDED);
        let size = 8 + 4 + 24 + len;
        if self.table.len() + size > TABLE {
            return;
        }
        self.names.build_ids += 1;
        self.table.extend(0u32.to_ne_bytes());
        self.table.extend([KERNEL | BUILD_ID_SIZE, size as u16].iter().flat_map(|half| half.to_ne_bytes()));
        // What perf has for the kernel of the host (`HOST_KERNEL_ID`).
        self.table.extend((-1i32).to_ne_bytes());
        let mut padded = [0; 24];
        padded[..id.len()].copy_from_slice(&id);
        padded[20] = id.len() as u8;
        self.table.extend(padded);
        self.table.extend(path.iter().copied().chain(std::iter::repeat(0)).take(len));
    }

    fn processes(&mut self, only: Option<&[u32]>) -> Result<(), Failed> {
        let machine = self.machine;
        if !machine.has_our_numbers()? {
            let message = "processes have no names: /proc has those of another PID namespace";
            let hint = "mount this namespace's: mount -t proc proc /proc";
            self.unnamed.push(Error::new(ErrorKind::Unsupported, message).hinting(hint));
            return Ok(());
        }
        if let Some(only) = only {
            let process = |number: &u32| machine.thread(*number).ok().flatten().map(|thread| thread.process);
            let processes: BTreeSet<_> = only.iter().filter_map(process).collect();
            return processes.into_iter().try_for_each(|process| self.process(process));
        }
        if !machine::has_global_threads() {
            let message = "processes outside of this PID namespace have no names and no numbers";
            self.unnamed.push(Error::new(ErrorKind::Unsupported, message).hinting("record in the first PID namespace"));
        }
        machine.processes()?.try_for_each(|process| self.process(process))
    }

    /// A process and its threads, unless it has ended. Its own mappings follow its first thread.
    fn process(&mut self, process: u32) -> Result<(), Failed> {
        // A process that ends while it is read has what was read before.
        let Ok(threads) = self.machine.threads(process) else { return Ok(()) };
        for number in threads {
            let Ok(Some(thread)) = self.machine.thread(number) else { continue };
            // The thread has ended since it was listed, and another process has its number.
            if thread.process != process {
                continue;
            }
            self.thread(number, &thread)?;
            if number == process {
                self.names.processes += 1;
                if thread.is_program {
                    self.mappings(process)?;
                }
            }
        }
        Ok(())
    }

    /// `PERF_RECORD_FORK` and `PERF_RECORD_COMM`.
    fn thread(&mut self, number: u32, thread: &Thread) -> Result<(), Failed> {
        let Thread { ref name, process, parent, .. } = *thread;
        // As perf has it: the first thread started the others.
        let (parent, of_parent) = if number == process { (parent, parent) } else { (process, process) };
        let mut body: Vec<u8> =
            [process, parent, number, of_parent].iter().flat_map(|word| word.to_ne_bytes()).collect();
        body.extend(0u64.to_ne_bytes());
        (self.put)(bindings::PERF_RECORD_FORK, FORK_EXEC, &body).map_err(Failed::Write)?;
        body.clear();
        body.extend([process, number].iter().flat_map(|word| word.to_ne_bytes()));
        string(&mut body, name);
        // Second: at a FORK, perf gives a thread the name of its parent (`thread__fork`).
        (self.put)(bindings::PERF_RECORD_COMM, 0, &body).map_err(Failed::Write)?;
        self.names.threads += 1;
        Ok(())
    }

    fn mappings(&mut self, process: u32) -> Result<(), Failed> {
        match self.machine.mappings(process, |mapping| self.mmap2(process, &mapping)) {
            Err(Failed::Read(errno)) if errno.kind() == io::ErrorKind::PermissionDenied => {
                self.names.hidden += 1;
                self.hidden.get_or_insert((process, errno));
                Ok(())
            }
            // It has ended.
            Err(Failed::Read(_)) => Ok(()),
            wrote => wrote,
        }
    }

    /// `PERF_RECORD_MMAP2` of code, and with copies of stacks also of data. It has the build id if the file has one.
    fn mmap2(&mut self, process: u32, mapping: &Mapping<'_>) -> Result<(), Failed> {
        let Mapping { start, end, flags: [read, write, execute, sharing], offset, device, inode, path } = *mapping;
        let is_code = execute == b'x';
        if !(is_code || self.data && read == b'r' && inode != 0) {
            return Ok(());
        }
        // Without inode there is no file: anonymous memory, `[vdso]`.
        let id = if inode == 0 { None } else { self.build_id(process, device, inode, path) };
        let mut body: Vec<u8> = [process, process].iter().flat_map(|word| word.to_ne_bytes()).collect();
        body.extend([start, end.saturating_sub(start), offset].iter().flat_map(|word| word.to_ne_bytes()));
        let misc = match &id {
            Some(id) => {
                let mut padded = [0; 20];
                padded[..id.len()].copy_from_slice(id);
                body.extend([id.len() as u8, 0, 0, 0]);
                body.extend(padded);
                self.names.build_ids += u64::from(is_code);
                USER | BUILD_ID
            }
            None => {
                body.extend(device.iter().flat_map(|number| number.to_ne_bytes()));
                body.extend([inode, 0].iter().flat_map(|word| word.to_ne_bytes()));
                USER
            }
        };
        let bit = |has: bool, bit: i32| if has { bit as u32 } else { 0 };
        let protection =
            bit(read == b'r', libc::PROT_READ) | bit(write == b'w', libc::PROT_WRITE) | bit(is_code, libc::PROT_EXEC);
        let sharing = if sharing == b's' { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        body.extend([protection, sharing as u32].iter().flat_map(|word| word.to_ne_bytes()));
        // As the kernel names mappings of no file.
        string(&mut body, if path.is_empty() { b"//anon" } else { path });
        let misc = misc | if is_code { 0 } else { bindings::PERF_RECORD_MISC_MMAP_DATA as u16 };
        (self.put)(bindings::PERF_RECORD_MMAP2, misc, &body).map_err(Failed::Write)?;
        self.names.mappings += u64::from(is_code);
        Ok(())
    }

    fn build_id(&mut self, process: u32, device: [u32; 2], inode: u64, path: &[u8]) -> Option<BuildId> {
        let machine = self.machine;
        self.build_ids.of(device, inode, || machine.seen_by(process, Path::new(OsStr::from_bytes(path))))
    }
}

/// A string with its end, padded to a multiple of 8 bytes.
fn string(body: &mut Vec<u8>, text: &[u8]) {
    body.extend(&text[..text.len().min(PATH)]);
    body.push(0);
    body.resize(body.len().next_multiple_of(8), 0);
}
