//! Where addresses lie: in the files that a process has mapped, and in the kernel.

use super::functions::{Files, Identity};
use super::view::View;
use crate::deferred::{Part, Parts};
use crate::out::say;
use crate::profile::short;
use crate::typed::typed;
#[cfg(feature = "dwarf")]
use crate::unwind::{End, Sample, Unwound};
use linux_perf_event_reader::{EventRecord, Mmap2FileId};
use perf_event_open_sys::bindings;
use perfweave::{Event, Record};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// Mappings of each process, as of the event that was learned last.
#[derive(Debug, Default)]
pub struct Names {
    processes: HashMap<i32, BTreeMap<u64, Mapping>>,
    files: Files,
    parts: Parts,
    #[cfg(feature = "dwarf")]
    unwound: Unwound,
}

#[derive(Debug, Clone)]
struct Mapping {
    end: u64,
    /// Of its start in the file.
    offset: u64,
    /// A number of [`Files`].
    file: usize,
}

/// Who executes an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    Kernel,
    User,
}

/// A frame of a call chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frame {
    pub address: u64,
    pub mode: Mode,
    /// Whether it called the frame before it. Its address is where that one returns to, which may lie behind the end of
    /// the function.
    pub is_caller: bool,
}

/// The frames of a record's call chain as the kernel has found it, the innermost first. The kernel's markers say who executes the addresses after
/// them.
pub fn frames(record: &Record<'_>) -> Vec<Frame> {
    frames_and(record, &[])
}

/// The same, with the addresses of the program that have come in a record of their own.
fn frames_and(record: &Record<'_>, program: &[u64]) -> Vec<Frame> {
    let mode = if record.misc() & 7 == 1 { Mode::Kernel } else { Mode::User };
    let mut frames = of_chain(record.callchain().into_iter().flatten(), mode);
    frames.extend(of_program(program));
    if frames.is_empty() {
        frames.extend(record.ip().map(|address| Frame { address, mode, is_caller: false }));
    }
    frames
}

/// The kernel's frames of a sample whose program's part comes later. Where it was in the program, if the sample has
/// that, is the first frame of what comes.
pub fn of_kernel(record: &Record<'_>) -> Vec<Frame> {
    frames(record).into_iter().filter(|frame| frame.mode == Mode::Kernel).collect()
}

/// The frames of a program by their addresses.
pub fn of_program(addresses: &[u64]) -> Vec<Frame> {
    of_chain(addresses.iter().copied(), Mode::User)
}

/// The number of the record that has the program's part of a sample's call chain, if that comes later.
pub fn cookie(record: &Record<'_>) -> Option<u64> {
    record.callchain()?.skip_while(|address| *address != DEFERRED).nth(1)
}

/// Behind it is the number of the record that has the program's part (Linux 6.19).
const DEFERRED: u64 = 0u64.wrapping_sub(640);

/// The frames of a call chain. `mode`: who executes its first addresses.
fn of_chain(chain: impl Iterator<Item = u64>, mut mode: Mode) -> Vec<Frame> {
    const KERNEL: u64 = 0u64.wrapping_sub(128);
    const USER: u64 = 0u64.wrapping_sub(512);
    const MARKERS: u64 = 0u64.wrapping_sub(4095);
    let (mut frames, mut is_caller) = (Vec::new(), false);
    for address in chain {
        match address {
            KERNEL => (mode, is_caller) = (Mode::Kernel, false),
            USER => (mode, is_caller) = (Mode::User, false),
            DEFERRED => break,
            MARKERS.. => {}
            address => {
                frames.push(Frame { address, mode, is_caller });
                is_caller = true;
            }
        }
    }
    frames
}

/// Nothing is inlined.
fn one(name: impl Into<String>) -> Vec<String> {
    vec![name.into()]
}

/// A file, by its number in [`Files`], and an offset in it.
pub type Place = (usize, u64);

/// What a line of its own says of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    pub path: String,
    /// The function, and how far behind its begin, if these are known.
    pub function: Option<(String, Option<u64>)>,
    /// In the file, or an address in memory that is no file's.
    pub offset: u64,
}

impl Spot {
    /// What a runtime has compiled, by the map that tells of it.
    pub fn compiled(pid: u32, name: &str, address: u64) -> Self {
        Self { path: format!("/tmp/perf-{pid}.map"), function: Some((name.to_owned(), None)), offset: address }
    }

    /// `/usr/lib/libc.so.6(write+0x10) [0xe0e83]`, as strace(1) has it.
    pub fn text(&self) -> String {
        let function = match &self.function {
            Some((name, Some(plus))) => format!("{name}+{plus:#x}"),
            Some((name, None)) => name.clone(),
            None => String::new(),
        };
        format!("{}({function}) [{:#x}]", self.path, self.offset)
    }

    pub fn json(&self) -> Value {
        let (function, plus) = self.function.as_ref().map_or((None, None), |(name, plus)| (Some(name), *plus));
        json!({ "file": self.path, "function": function, "plus": plus, "offset": self.offset })
    }
}

impl Frame {
    /// An address inside the function.
    pub fn called(&self) -> u64 {
        self.address.saturating_sub(self.is_caller.into())
    }
}

impl Names {
    /// Learns what an event says of mappings.
    pub fn learn(&mut self, event: &Event<'_>) {
        let Some(record) = event.record().filter(|record| record.kind() != bindings::PERF_RECORD_SAMPLE) else {
            return;
        };
        match typed(&record) {
            Some(EventRecord::Mmap(map)) => {
                let file = String::from_utf8_lossy(&map.path.as_slice()).into_owned();
                self.map(map.pid, [map.address, map.length, map.page_offset], &file, Identity::Unknown);
            }
            Some(EventRecord::Mmap2(map)) => {
                let file = String::from_utf8_lossy(&map.path.as_slice()).into_owned();
                let identity = match map.file_id {
                    Mmap2FileId::BuildId(id) => Identity::BuildId(id),
                    Mmap2FileId::InodeAndVersion(of) => Identity::Inode([of.major, of.minor], of.inode),
                };
                self.map(map.pid, [map.address, map.length, map.page_offset], &file, identity);
            }
            Some(EventRecord::Comm(comm)) if comm.is_execve => drop(self.processes.remove(&comm.pid)),
            Some(EventRecord::Fork(fork)) if fork.pid != fork.ppid => {
                if let Some(maps) = self.processes.get(&fork.ppid).cloned() {
                    self.processes.insert(fork.pid, maps);
                }
            }
            _ => {}
        }
    }

    /// A process maps a part of a file: where, how many bytes, and from which offset on.
    pub fn map(&mut self, pid: i32, place: [u64; 3], path: &str, identity: Identity) {
        let file = self.files.number(path, identity);
        self.insert(pid, place, file);
    }

    fn insert(&mut self, pid: i32, [start, len, offset]: [u64; 3], file: usize) {
        // In a PID namespace, all processes outside of it are 0: an address of one is no place in a file of another.
        if pid == 0 {
            return;
        }
        let end = start.saturating_add(len);
        let maps = self.processes.entry(pid).or_default();
        // A newer mapping hides what it covers. What sticks out at its end stays.
        if let Some((&at, before)) = maps.range(..start).next_back()
            && before.end > end
        {
            let rest = Mapping { offset: before.offset.wrapping_add(end - at), ..before.clone() };
            maps.insert(end, rest);
        }
        let covered: Vec<u64> = maps.range(start..end).map(|(at, _)| *at).collect();
        for at in covered {
            if let Some(old) = maps.remove(&at)
                && old.end > end
            {
                let offset = old.offset.wrapping_add(end - at);
                maps.insert(end, Mapping { offset, ..old });
            }
        }
        if end > start {
            maps.insert(start, Mapping { end, offset, file });
        }
    }

    /// The names of a frame at a time: the function, and those that are inlined in it, the innermost last; or the file
    /// and the offset in it, or the address itself.
    pub fn names(&mut self, pid: Option<u32>, frame: Frame, time: Option<u64>, view: &View) -> Vec<String> {
        let known = match frame.mode {
            Mode::Kernel => view.kernel.function(frame.address).map(one),
            Mode::User => pid.and_then(|pid| match self.mapped(pid, frame.address) {
                Some((file, offset)) => {
                    let functions = self.functions(file, offset, frame.is_caller, time, view);
                    Some(functions.unwrap_or_else(|| one(format!("{}+{offset:#x}", self.files.name(file)))))
                }
                None => view.compiled.of(pid, frame.called()).map(one),
            }),
        };
        known.unwrap_or_else(|| one(format!("{:#x}", frame.address)))
    }

    /// The names of a frame where stacks are counted: the function and those inlined in it, or the file. All frames
    /// without a function are one for each file: an address has no name that the next address of the same function has
    /// too.
    pub fn counted(&mut self, pid: Option<u32>, frame: Frame, time: Option<u64>, view: &View) -> Vec<String> {
        let known = match frame.mode {
            Mode::Kernel => Some(one(view.kernel.function(frame.address).unwrap_or("[kernel]"))),
            Mode::User => pid.and_then(|pid| match self.mapped(pid, frame.address) {
                Some(place) => Some(self.of_file(place, frame.is_caller, time, view)),
                None => self.of_no_file(pid, frame, view).map(one),
            }),
        };
        known.unwrap_or_else(|| one("[unknown]"))
    }

    fn of_no_file(&self, pid: u32, frame: Frame, view: &View) -> Option<String> {
        let compiled = view.compiled.of(pid, frame.called()).map(str::to_owned);
        compiled.or_else(|| Some(self.of_memory(self.place(pid, frame.address)?.0)))
    }

    /// The function at an offset in a file and those inlined in it, or the file.
    pub fn of_file(&mut self, (file, offset): Place, is_caller: bool, time: Option<u64>, view: &View) -> Vec<String> {
        self.functions(file, offset, is_caller, time, view).unwrap_or_else(|| one(self.of_memory(file)))
    }

    /// What stands for all addresses of a file, or of memory that is not a file's.
    pub fn of_memory(&self, file: usize) -> String {
        match self.files.name(file) {
            name if name.starts_with('[') => name.to_owned(),
            name => format!("[{name}]"),
        }
    }

    /// What lies at a place.
    pub fn spot(&mut self, (file, offset): Place, is_caller: bool, time: Option<u64>, view: &View) -> Spot {
        let back = u64::from(is_caller);
        let function = self.files.function(file, offset.saturating_sub(back), time, view);
        let function = function.and_then(|of| Some((of.names.first()?.clone(), Some(of.plus + back))));
        Spot { path: self.files.path(file).to_owned(), function, offset }
    }

    fn functions(
        &mut self,
        file: usize,
        offset: u64,
        is_caller: bool,
        time: Option<u64>,
        view: &View,
    ) -> Option<Vec<String>> {
        self.files.functions(file, offset.saturating_sub(is_caller.into()), time, view).map(<[_]>::to_vec)
    }

    /// The frames of a record, the innermost first: its call chain, with the program's part unwound if the sample has
    /// what that takes.
    pub fn frames(&mut self, record: &Record<'_>, time: Option<u64>, view: &View) -> Vec<Frame> {
        self.frames_of(record, time, view, false)
    }

    /// The same of a process that runs. The files stay open.
    pub fn frames_live(&mut self, record: &Record<'_>, time: Option<u64>, view: &View) -> Vec<Frame> {
        self.frames_of(record, time, view, true)
    }

    /// Those that the kernel has found.
    fn found(&mut self, record: &Record<'_>, view: &View) -> Vec<Frame> {
        let part = view.deferred.part(record);
        if part != Part::Own {
            self.parts.count(part == Part::Missing);
        }
        frames_and(record, if let Part::Came(chain) = part { chain } else { &[] })
    }

    #[cfg(not(feature = "dwarf"))]
    fn frames_of(&mut self, record: &Record<'_>, _: Option<u64>, view: &View, _: bool) -> Vec<Frame> {
        self.found(record, view)
    }

    #[cfg(feature = "dwarf")]
    fn frames_of(&mut self, record: &Record<'_>, time: Option<u64>, view: &View, is_live: bool) -> Vec<Frame> {
        let mut all = self.found(record, view);
        if let (Some(sample), Some((pid, _))) = (Sample::of(record), record.pid_tid()) {
            let (unwound, end) = sample.frames(|address, registers, stack| {
                let place = self.place(pid, address).filter(|(file, _)| self.files.may_have_rules(*file));
                let (file, offset) = place.ok_or(End::NoFile)?;
                if is_live {
                    self.hold(pid, address);
                }
                self.files.rules(file, time, view, is_live)?.caller(offset, registers, stack)
            });
            self.unwound.count(end);
            all.retain(|frame| frame.mode == Mode::Kernel);
            all.extend(unwound);
        }
        all
    }

    /// Where an address of a process lies in a file with functions.
    pub fn mapped(&self, pid: u32, address: u64) -> Option<Place> {
        self.place(pid, address).filter(|(file, _)| self.files.is_file(*file))
    }

    /// The same of a process that runs. The file stays open.
    pub fn hold(&mut self, pid: u32, address: u64) -> Option<Place> {
        let place = self.mapped(pid, address)?;
        let (start, map) = self.processes.get(&pid.cast_signed())?.range(..=address).next_back()?;
        self.files.hold(place.0, pid, [*start, map.end]);
        Some(place)
    }

    /// The file that a process has mapped at an address, and the offset in it.
    pub fn place(&self, pid: u32, address: u64) -> Option<Place> {
        let (start, map) = self.processes.get(&pid.cast_signed())?.range(..=address).next_back()?;
        (address < map.end).then(|| (map.file, map.offset.wrapping_add(address - start)))
    }

    /// Whether it is known how the function at a place is unwound, and that it has a caller.
    #[cfg(feature = "dwarf")]
    pub fn leads_on(&mut self, place: Option<Place>, is_caller: bool, time: Option<u64>, view: &View) -> short::Frame {
        let Some((file, offset)) = place else { return short::Frame::Nowhere };
        let rules = self.files.rules(file, time, view, false);
        let has_rule = rules.is_ok_and(|rules| rules.lead_on(offset.saturating_sub(is_caller.into())));
        if has_rule { short::Frame::LeadsOn } else { short::Frame::Other }
    }

    #[cfg(not(feature = "dwarf"))]
    pub fn leads_on(&mut self, place: Option<Place>, _: bool, _: Option<u64>, _: &View) -> short::Frame {
        if place.is_some() { short::Frame::Other } else { short::Frame::Nowhere }
    }

    /// What is to be said of stacks whose program's part comes later.
    pub fn parts(&self) -> Option<String> {
        self.parts.note()
    }

    /// What is to be said of stacks that were unwound.
    #[cfg(feature = "dwarf")]
    pub fn unwound(&self) -> Option<String> {
        self.unwound.note()
    }

    #[cfg(not(feature = "dwarf"))]
    pub fn unwound(&self) -> Option<String> {
        None
    }

    /// Says on standard error which files gave no names of functions, and which stacks are not whole.
    pub fn tell(&self) {
        for note in self.parts().into_iter().chain(self.unwound()) {
            say(format_args!("perfweave: {note}"));
        }
        for note in self.files.notes() {
            say(format_args!("perfweave: {note}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Mode, Names, Spot, of_chain};

    #[test]
    fn a_frame_is_told_as_strace_does() {
        let spot = |function| Spot { path: "/lib/x".into(), function, offset: 0xe0e83 };
        let functions = [None, Some(("f".into(), Some(16))), Some(("f".into(), None))];
        let texts = functions.map(|function| spot(function).text());
        assert_eq!(texts, ["/lib/x() [0xe0e83]", "/lib/x(f+0x10) [0xe0e83]", "/lib/x(f) [0xe0e83]"]);
    }

    /// Its number is no address.
    #[test]
    fn a_deferred_part_of_a_chain_is_no_frame() {
        let chain = [0u64.wrapping_sub(128), 0xffff_ffff_8100_0000, 0u64.wrapping_sub(640), 0x7_0000_0003];
        let frames = of_chain(chain.into_iter(), Mode::User);
        assert_eq!(
            frames.iter().map(|frame| (frame.address, frame.mode)).collect::<Vec<_>>(),
            [(chain[1], Mode::Kernel)]
        );
    }

    #[test]
    fn processes_without_a_number_have_no_mappings() {
        let mut names = Names::default();
        names.insert(0, [0x1000, 0x3000, 0], 7);
        assert_eq!(names.place(0, 0x1010), None);
    }

    #[test]
    fn newer_mappings_hide_older_ones() {
        let mut names = Names::default();
        names.insert(1, [0x1000, 0x3000, 0], 7);
        names.insert(1, [0x2000, 0x1000, 0x100], 8);
        let places = [0x1010, 0x2010, 0x3010].map(|address| names.place(1, address));
        assert_eq!(places, [Some((7, 0x10)), Some((8, 0x110)), Some((7, 0x2010))]);
        assert_eq!([names.place(1, 0x4000), names.place(1, 0xfff), names.place(2, 0x1010)], [None; 3]);
    }
}
