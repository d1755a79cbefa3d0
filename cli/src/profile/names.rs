//! Names of addresses in a stack: those of a process while it runs, and those of the files that it had mapped when it
//! has ended.

use super::compiled::Compiled;
use crate::convert::functions::{Identity, resolver};
use crate::convert::names::{Frame, Mode, Names as Mapped};
use crate::convert::view::View;
use crate::numbers::ENDED;
use blazesym::symbolize::source::{Kernel, Process, Source};
use blazesym::symbolize::{Input, ProcessMemberInfo, ProcessMemberType, Resolve, Symbolizer};
use perfweave::{Event, Record, Rings};
use std::collections::HashSet;
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
}

impl Names {
    pub fn new(rings: &Rings) -> Self {
        Self {
            symbols: Symbolizer::builder().set_process_dispatcher(with_care).build(),
            threads: crate::names::Names::default(),
            mapped: Mapped::default(),
            asked: HashSet::new(),
            compiled: Compiled::default(),
            view: View::new(rings, Path::new("-")),
        }
    }

    /// Takes what a record says of names and mappings. True if it is no sample.
    pub fn take(&mut self, event: &Event<'_>, record: &Record<'_>) -> bool {
        self.mapped.learn(event);
        self.threads.take(record) || record.callchain().is_none()
    }

    /// The process, and the functions of a stack, outermost first. The frames are innermost first.
    pub fn stack(&mut self, pid: u32, frames: &[Frame], time: Option<u64>) -> Vec<String> {
        let process = match pid {
            // Those that have no number here: see `are_outside`.
            0 => "[outside]".into(),
            ENDED => "[ended]".into(),
            _ => format!("{}:{pid}", self.threads.of(pid)),
        };
        let functions = frames.iter().rev().map(|frame| self.name(pid, *frame, time));
        std::iter::once(process).chain(functions).collect()
    }

    /// Whether frames of process 0, in a PID namespace, are those of a process outside. An idle CPU executes no
    /// program, and a few functions of the kernel call all that it does (kernel/sched/idle.c). Where functions of the
    /// kernel have no names, nothing tells.
    pub fn are_outside(&mut self, frames: &[Frame]) -> bool {
        const IDLE: [&str; 3] = ["do_idle", "cpu_startup_entry", "default_idle_call"];
        let (kernels, programs): (Vec<&Frame>, Vec<&Frame>) =
            frames.iter().partition(|frame| frame.mode == Mode::Kernel);
        let names: Vec<_> = kernels.into_iter().map(|frame| self.name(0, *frame, None)).collect();
        let is_known = names.iter().any(|name| name != UNKNOWN);
        !programs.is_empty() || is_known && !names.iter().any(|name| IDLE.contains(&name.as_str()))
    }

    fn name(&mut self, pid: u32, frame: Frame, time: Option<u64>) -> String {
        let unknown = || UNKNOWN.into();
        // What is outside has no number by which it could be looked at, and for the symbolizer 0 is this program.
        if pid == 0 && frame.mode == Mode::User {
            return unknown();
        }
        // Of a caller the address is where the function returns to, which may lie behind its end.
        let called = frame.address.saturating_sub(frame.is_caller.into());
        let source = match frame.mode {
            Mode::Kernel => Source::Kernel(Kernel::default()),
            // What the process's user writes into a file in /tmp is looked at with care, by `compiled`.
            Mode::User => Source::Process(Process { perf_map: false, ..Process::new(pid.into()) }),
        };
        let found = self.symbols.symbolize_single(&source, Input::AbsAddr(called)).ok();
        if let Some(name) = found.and_then(|found| Some(found.as_sym()?.name.clone().into_owned())) {
            return name;
        }
        if frame.mode == Mode::Kernel {
            return unknown();
        }
        if let Some(name) = self.compiled.function(pid, called) {
            return name.to_owned();
        }
        if self.asked.insert(pid) {
            mappings(pid, &mut self.mapped);
        }
        self.mapped.of_file(pid, frame, time, &self.view).unwrap_or_else(unknown)
    }
}

/// Refuses files with too many symbols, reads copies of those that others may change, and leaves the rest to the
/// symbolizer.
fn with_care(member: ProcessMemberInfo<'_>) -> Result<Option<Box<dyn Resolve>>, blazesym::Error> {
    let ProcessMemberType::Path(path) = member.member_entry else { return Ok(None) };
    resolver(&path.maps_file)
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
