//! Names of addresses in a stack. Where they lie is looked at when they come: in which file, by the mappings that the
//! process has then. Names are looked up at the end: each takes up to a millisecond, and the process may have ended.

use super::compiled::Compiled;
use super::short;
use crate::convert::functions::Identity;
use crate::convert::names::{Frame, Mode, Names as Mapped, Place, Spot};
use crate::convert::view::View;
use crate::numbers::ENDED;
use crate::typed::typed;
use blazesym::Pid;
use blazesym::symbolize::source::{Kernel, Process, Source};
use blazesym::symbolize::{Input, Symbolizer};
use linux_perf_event_reader::EventRecord;
use perf_event_open_sys::bindings;
use perfweave::{Event, Record, Rings};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

/// An address that has no name.
const UNKNOWN: &str = "[unknown]";

/// Finds the names of addresses. It caches the symbols of programs and of the kernel.
pub struct Names {
    symbols: Symbolizer,
    pub threads: crate::names::Names,
    mapped: Mapped,
    /// The processes whose mappings were read, because they were there before.
    asked: HashSet<u32>,
    compiled: Compiled,
    view: View,
    /// Where the vDSO lies in this process: the same functions as in all others.
    vdso: Option<u64>,
    known: HashMap<At, Vec<String>>,
}

/// Where a frame lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum At {
    /// An address of the kernel.
    Kernel(u64),
    /// A place in a file, and whether it is that of a caller.
    File(Place, bool),
    /// An address in memory that is no file's. The number of the map that may tell of it, and what was mapped there.
    Memory(usize, u64, Option<Place>),
    Unknown,
}

impl Names {
    pub fn new(rings: &Rings) -> Self {
        let (threads, mapped, asked, compiled, known) = Default::default();
        let view = View::new(rings, Path::new("-"));
        Self { symbols: Symbolizer::new(), threads, mapped, asked, compiled, view, vdso: vdso(), known }
    }

    /// Takes what a record says of names and mappings. True if it is no sample.
    pub fn take(&mut self, event: &Event<'_>, record: &Record<'_>) -> bool {
        self.mapped.learn(event);
        if matches!(record.kind(), bindings::PERF_RECORD_COMM | bindings::PERF_RECORD_FORK) {
            match typed(record) {
                Some(EventRecord::Comm(comm)) if comm.is_execve => {
                    self.compiled.forget(comm.pid.cast_unsigned());
                    // From here on its mappings are records.
                    self.asked.insert(comm.pid.cast_unsigned());
                }
                Some(EventRecord::Fork(fork)) if fork.pid != fork.ppid => {
                    let [pid, parent] = [fork.pid, fork.ppid].map(i32::cast_unsigned);
                    self.compiled.forget(pid);
                    // It has its parent's.
                    if self.asked.contains(&parent) {
                        self.asked.insert(pid);
                    } else {
                        self.asked.remove(&pid);
                    }
                }
                _ => {}
            }
        }
        self.threads.take(record) || record.callchain().is_none()
    }

    /// Records are lost: what processes have mapped is read again.
    pub fn forget(&mut self) {
        self.asked.clear();
    }

    /// What stands for a process in a stack.
    pub fn process(&mut self, pid: u32) -> String {
        match pid {
            // Those that have no number here: see `are_outside`.
            0 => "[outside]".into(),
            _ => super::process(self.threads.of(pid), pid),
        }
    }

    /// Learns what a process has while it runs: its name and its mappings. For a sample whose frames come later.
    pub fn meet(&mut self, pid: u32) {
        if pid != 0 && pid != ENDED {
            self.threads.of(pid);
            if self.asked.insert(pid) {
                mappings(pid, &mut self.mapped);
            }
        }
    }

    /// The frames of a process's record, the innermost first.
    pub fn frames(&mut self, pid: u32, record: &Record<'_>, time: Option<u64>) -> Vec<Frame> {
        // Its mappings say where stacks are unwound.
        if record.layout().register_masks()[0] != 0 && pid != 0 && pid != ENDED && self.asked.insert(pid) {
            mappings(pid, &mut self.mapped);
        }
        self.mapped.frames_live(record, time, &self.view)
    }

    /// Where a frame of a process lies now.
    pub fn at(&mut self, pid: u32, frame: Frame) -> At {
        if frame.mode == Mode::Kernel {
            return At::Kernel(frame.called());
        }
        // What is outside has no number by which it could be looked at.
        if pid == 0 || pid == ENDED {
            return At::Unknown;
        }
        if self.asked.insert(pid) {
            mappings(pid, &mut self.mapped);
        }
        match self.mapped.hold(pid, frame.address) {
            Some(place) => At::File(place, frame.is_caller),
            None => {
                let place = self.mapped.place(pid, frame.address);
                At::Memory(self.compiled.want(pid, frame.called()), frame.called(), place)
            }
        }
    }

    /// Whether it is known how the function that lies there is unwound.
    pub fn leads_on(&mut self, at: At, time: Option<u64>) -> short::Frame {
        match at {
            At::File(place, is_caller) => self.mapped.leads_on(Some(place), is_caller, time, &self.view),
            At::Memory(_, _, None) | At::Unknown => short::Frame::Nowhere,
            At::Memory(..) | At::Kernel(_) => short::Frame::Other,
        }
    }

    /// Reads what runtimes have compiled, before names are asked for. Says which part of it was not read, and which
    /// stacks are not whole.
    pub fn read(&mut self) -> impl Iterator<Item = String> {
        self.compiled.read();
        self.compiled.notes().chain(self.mapped.unwound())
    }

    /// The name of what lies there, as of a time, and those of functions that are inlined in it, the innermost last.
    pub fn names(&mut self, at: At, time: Option<u64>) -> Vec<String> {
        if let Some(names) = self.known.get(&at) {
            return names.clone();
        }
        let one = |name: Option<String>| vec![name.unwrap_or_else(|| UNKNOWN.to_owned())];
        let names = match at {
            At::Kernel(address) => one(self.symbol(Source::Kernel(Kernel::default()), address)),
            At::File(place, is_caller) => self.mapped.of_file(place, is_caller, time, &self.view),
            At::Memory(map, address, place) => {
                let compiled = self.compiled.name(map, address).map(str::to_owned);
                one(compiled.or_else(|| self.of_memory(place?)))
            }
            At::Unknown => one(None),
        };
        self.known.insert(at, names.clone());
        names
    }

    /// What lies there, as of a time, for a line of its own. `None`: no code of the process.
    pub fn spot(&mut self, pid: u32, at: At, time: Option<u64>) -> Option<Spot> {
        match at {
            At::File(place, is_caller) => Some(self.mapped.spot(place, is_caller, time, &self.view)),
            At::Memory(map, address, Some(place)) => {
                self.compiled.read();
                Some(match self.compiled.name(map, address) {
                    Some(name) => Spot::compiled(pid, name, address),
                    None => self.mapped.spot(place, false, time, &self.view),
                })
            }
            At::Memory(_, _, None) | At::Kernel(_) | At::Unknown => None,
        }
    }

    fn of_memory(&self, (file, offset): Place) -> Option<String> {
        let name = self.mapped.of_memory(file);
        let function = self.vdso.filter(|_| name == "[vdso]").and_then(|start| {
            // Of this process.
            let process = Process { perf_map: false, ..Process::new(Pid::Slf) };
            self.symbol(Source::Process(process), start.checked_add(offset)?)
        });
        Some(function.unwrap_or(name))
    }

    fn symbol(&self, source: Source<'_>, address: u64) -> Option<String> {
        let found = self.symbols.symbolize_single(&source, Input::AbsAddr(address)).ok()?;
        Some(found.as_sym()?.name.clone().into_owned())
    }

    /// The functions of a stack, outermost first, as far as they are known now. The frames are innermost first.
    pub fn stack(&mut self, pid: u32, frames: &[Frame], time: Option<u64>) -> Vec<String> {
        let places: Vec<_> = frames.iter().rev().map(|frame| self.at(pid, *frame)).collect();
        self.read().for_each(drop);
        places.into_iter().flat_map(|at| self.names(at, time)).collect()
    }
}

/// Whether places of process 0, in a PID namespace, are those of a process outside, by their names. An idle CPU
/// executes no program, and a few functions of the kernel call all that it does (kernel/sched/idle.c). Where functions
/// of the kernel have no names, nothing tells.
pub fn are_outside(places: &[At], names: &[String]) -> bool {
    const IDLE: [&str; 3] = ["do_idle", "cpu_startup_entry", "default_idle_call"];
    let is_program = places.iter().any(|at| !matches!(at, At::Kernel(_)));
    is_program || names.iter().any(|name| name != UNKNOWN) && !names.iter().any(|name| IDLE.contains(&name.as_str()))
}

/// Where the vDSO begins.
fn vdso() -> Option<u64> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    u64::from_str_radix(line.split_once('-')?.0, 16).ok()
}

/// What a process has mapped to execute, if it still runs: lines of `/proc/PID/maps` (proc_pid_maps(5)).
fn mappings(pid: u32, mapped: &mut Mapped) {
    let text = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    for line in String::from_utf8_lossy(&text).lines() {
        let _ = mapping(line, pid, mapped);
    }
}

/// `start-end permissions offset major:minor inode path`
fn mapping(line: &str, pid: u32, mapped: &mut Mapped) -> Option<()> {
    let (range, rest) = line.split_once(' ')?;
    let (permissions, rest) = rest.split_once(' ')?;
    let (offset, rest) = rest.split_once(' ')?;
    let (device, rest) = rest.split_once(' ')?;
    let (inode, path) = rest.split_once(' ')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let ((start, end), (major, minor)) = (range.split_once('-')?, device.split_once(':')?);
    let (start, end, device) = (hex(start)?, hex(end)?, [hex(major)? as u32, hex(minor)? as u32]);
    let path = path.trim_start();
    if permissions.contains('x') && !path.is_empty() {
        let identity = Identity::Inode(device, inode.parse().ok()?);
        mapped.map(pid.cast_signed(), [start, end.checked_sub(start)?, hex(offset)?], path, identity);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use perfweave::sim;

    #[inline(never)]
    fn a_function_of_this_file() -> u64 {
        std::hint::black_box(7)
    }

    /// While samples come, nothing is looked up. Then each place is, once.
    #[test]
    fn names_are_looked_up_when_they_are_asked_for_and_once() {
        assert_eq!(a_function_of_this_file(), 7);
        let mut names = Names::new(&sim::Kernel::new(&[0]).rings());
        let address = a_function_of_this_file as fn() -> u64 as usize as u64;
        let frame = Frame { address, mode: Mode::User, is_caller: false };
        let places: HashSet<_> = (0..1000).map(|_| names.at(std::process::id(), frame)).collect();
        assert!(places.len() == 1 && names.known.is_empty(), "{places:?}");
        for at in places.iter().chain(&places) {
            let found = names.names(*at, None);
            assert!(found[0].contains("a_function_of_this_file"), "{found:?}");
            // With the feature, what is inlined into it as well.
            assert!(found.len() == 1 || cfg!(feature = "inlined"), "{found:?}");
        }
        assert_eq!(names.known.len(), 1);
    }
}
