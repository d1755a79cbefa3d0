//! What a tool has: its perf event arrays, and the events in their slots.

use super::programs::{Finder, Found};
use super::ring::Ring;
use super::sys::number;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A BPF map that a process has open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    pub pid: u32,
    fd: i32,
    pub id: u32,
    pub kind: Kind,
    entries: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    PerfEventArray,
    RingBuffer,
}

/// A process and those that it has started, as far as they are known now.
pub fn family(root: u32) -> Vec<u32> {
    let (mut all, mut next) = (vec![root], 0);
    while let Some(pid) = all.get(next).copied() {
        next += 1;
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let new = children.split_whitespace().filter_map(|word| word.parse().ok());
            let new: Vec<u32> = new.filter(|child| !all.contains(child)).collect();
            all.extend(new);
        }
    }
    all
}

/// Holds a process.
pub fn hold(pid: u32) -> io::Result<OwnedFd> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(pidfd_open(process, PidfdFlags::empty())?)
}

/// Whether a process has ended, also if nobody has waited for it. Its end is waited for so many milliseconds.
pub fn has_ended(process: &OwnedFd, timeout: u16) -> bool {
    let mut polled = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut polled, PollTimeout::from(timeout)), Ok(1..))
}

/// The descriptors of a process whose link begins with this.
fn descriptors(pid: u32, of: &str) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let link = fs::read_link(entry.path()).ok()?;
        (link.to_str()? == of).then(|| entry.file_name().to_str()?.parse().ok())?
    })
}

/// The maps of a process that are read by rings, each once.
pub fn maps(pid: u32) -> Vec<Open> {
    let mut seen = BTreeSet::new();
    let map = |fd: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
        let value = |key: &str| {
            text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')?.trim().parse::<u32>().ok())
        };
        let kind = match value("map_type")? {
            4 => Kind::PerfEventArray,
            27 => Kind::RingBuffer,
            _ => return None,
        };
        Some(Open { pid, fd, id: value("map_id")?, kind, entries: value("max_entries")? })
    };
    let mut fds: Vec<i32> = descriptors(pid, "anon_inode:bpf-map").collect();
    // The oldest descriptor first: it is the one whose file has set the slots.
    fds.sort_unstable();
    fds.into_iter().filter_map(map).filter(|map| seen.insert(map.id)).collect()
}

/// The CPUs that are online.
pub fn online() -> io::Result<Vec<u32>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    Ok(text.trim().split(',').filter_map(part).flatten().collect())
}

/// A map of a tool with the events of its slots, taken over its descriptors.
#[derive(Debug)]
pub struct Taken {
    pub pid: u32,
    pub id: u32,
    pub process: OwnedFd,
    /// The tool's own file of the map: slots that another file has set end with that file.
    pub map: OwnedFd,
    /// By their CPUs, which are their slots.
    pub rings: Vec<Ring>,
}

/// Why a map cannot be taken over now.
#[derive(Debug)]
pub enum Refused {
    /// No slot has an event yet.
    Empty,
    /// It never can be, for this reason.
    Never(String),
    Failed(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// How often the events of slots are looked for again if the answer is not plain.
const TRIES: usize = 8;

impl Open {
    /// Takes the map and its events.
    pub fn take(&self) -> Result<Taken, Refused> {
        let pid = self.pid;
        let process = hold(pid)?;
        let get = |fd: i32| pidfd_getfd(process.as_fd(), fd, PidfdGetfdFlags::empty()).map_err(io::Error::from);
        let map = get(self.fd)?;
        // A tool may have several descriptors of an event.
        let mut numbers = BTreeSet::new();
        let is_new = |event: &OwnedFd| number(event).is_ok_and(|number| numbers.insert(number));
        let events = descriptors(pid, "anon_inode:[perf_event]").filter_map(|fd| get(fd).ok()).filter(is_new);
        let events: Vec<OwnedFd> = events.collect();
        let cpus = online()?;
        let found = events_of(&Finder::new(map.as_fd())?, &cpus, &events, self.entries)?;
        let sizes = sizes(pid);
        let mut rings = Vec::new();
        for (cpu, event) in found {
            let event = events[event].try_clone()?;
            let ring = Ring::map(cpu, event, &sizes);
            rings.push(ring.map_err(|error| Refused::Never(format!("the ring of CPU {cpu} cannot be read: {error}")))?);
        }
        Ok(Taken { pid, id: self.id, process, map, rings })
    }
}

/// Whether these events are in the slots of their CPUs, and no others in the map.
pub fn are_all<'a>(finder: &Finder, ours: impl Iterator<Item = (u32, BorrowedFd<'a>)>) -> io::Result<bool> {
    let mut others = online()?;
    let mut last = None;
    for (cpu, event) in ours {
        finder.look_at(event)?;
        if finder.is_in(cpu, cpu)? != Found::Same {
            return Ok(false);
        }
        others.retain(|other| *other != cpu);
        last = Some(cpu);
    }
    // The last one is of none of these.
    let is_empty = |cpu: &u32| Ok(finder.is_in(*cpu, *cpu)? == Found::Empty);
    let empty: io::Result<Vec<bool>> = others.iter().map(is_empty).collect();
    Ok(last.is_some() && empty?.into_iter().all(|is_empty| is_empty))
}

/// Which event is in the slot of which CPU.
fn events_of(finder: &Finder, cpus: &[u32], events: &[OwnedFd], entries: u32) -> Result<Vec<(u32, usize)>, Refused> {
    for _ in 0..TRIES {
        let mut found: Vec<(u32, Vec<usize>)> = Vec::new();
        let mut is_empty = true;
        for (at, event) in events.iter().enumerate() {
            if finder.look_at(event.as_fd()).is_err() {
                continue;
            }
            for &cpu in cpus.iter().filter(|cpu| **cpu < entries) {
                match finder.is_in(cpu, cpu)? {
                    Found::Empty => continue,
                    Found::NotHere => {
                        is_empty = false;
                        continue;
                    }
                    // Twice: an interrupt between the calls may make another one look the same.
                    Found::Same if finder.is_in(cpu, cpu)? == Found::Same => {
                        is_empty = false;
                        match found.iter_mut().find(|(of, _)| *of == cpu) {
                            Some((_, all)) => all.push(at),
                            None => found.push((cpu, vec![at])),
                        }
                    }
                    Found::Same | Found::Other => is_empty = false,
                }
                // An event is of one CPU.
                break;
            }
        }
        if is_empty {
            return Err(Refused::Empty);
        }
        if found.iter().all(|(_, events)| events.len() == 1) && !found.is_empty() {
            found.sort_unstable();
            let found: Vec<_> = found.into_iter().map(|(cpu, events)| (cpu, events[0])).collect();
            return outputs(finder, cpus, events, found);
        }
    }
    Err(Refused::Never("which of the tool's events are in its slots cannot be found out".into()))
}

/// Leaves out maps of counters, which have other events in their slots.
fn outputs(
    finder: &Finder,
    cpus: &[u32],
    events: &[OwnedFd],
    found: Vec<(u32, usize)>,
) -> Result<Vec<(u32, usize)>, Refused> {
    for (cpu, event) in &found {
        let Some(other) = cpus.iter().find(|other| *other != cpu) else {
            return Err(Refused::Never("there is one CPU: its ring is in order".into()));
        };
        finder.look_at(events[*event].as_fd())?;
        if !finder.is_output(*other)? {
            return Err(Refused::Never("its events are counters, and no output of BPF programs".into()));
        }
    }
    Ok(found)
}

/// The sizes of the rings that a process has mapped to read and to say what it has read.
fn sizes(pid: u32) -> Vec<usize> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let size = |line: &str| {
        let mut words = line.split_whitespace();
        let (first, last) = words.next()?.split_once('-')?;
        words.next().filter(|rights| rights.starts_with("rw-s"))?;
        line.ends_with("anon_inode:[perf_event]").then_some(())?;
        let [first, last] = [first, last].map(|text| usize::from_str_radix(text, 16).ok());
        last?.checked_sub(first?)
    };
    let sizes: BTreeSet<usize> = text.lines().filter_map(size).collect();
    sizes.into_iter().collect()
}
