//! The ring of one of the tool's events, as the tool reads it.

use super::sys::Memory;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

pub fn page() -> usize {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().map_or(4096, |bytes| bytes as usize)
}

/// An event of the tool in a slot of its map, and its ring.
#[derive(Debug)]
pub struct Ring {
    pub cpu: u32,
    pub event: OwnedFd,
    memory: Memory,
    begin: usize,
    size: u64,
}

/// What was written into a ring before it was taken over.
#[derive(Debug, Clone, Copy, Default)]
pub struct Before {
    /// How many records, if that can be told: if the ring has not come around yet.
    pub records: Option<u64>,
    pub bytes: u64,
}

impl Ring {
    /// Maps the ring of an event, which has one of these sizes.
    pub fn map(cpu: u32, event: OwnedFd, sizes: &[usize]) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for size in sizes {
            match Memory::map(event.as_fd(), *size) {
                Ok(memory) => {
                    let (begin, size) = memory.data();
                    return Ok(Self { cpu, event, memory, begin, size: size as u64 });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// How many bytes the tool has not read.
    pub fn unread(&self) -> u64 {
        self.memory.head().wrapping_sub(self.memory.tail())
    }

    pub fn head(&self) -> u64 {
        self.memory.head()
    }

    pub fn tail(&self) -> u64 {
        self.memory.tail()
    }

    /// How many bytes there is room for (`CIRC_SPACE` of include/linux/circ_buf.h).
    pub fn room(&self) -> u64 {
        self.size.saturating_sub(1).saturating_sub(self.unread())
    }

    /// What was written so far, which is looked at while nobody writes.
    pub fn before(&self) -> Before {
        let bytes = self.head();
        let mut at = 0;
        let mut records = 0;
        while at < bytes && bytes <= self.size {
            let Some(header) = self.memory.eight(self.begin + at as usize) else { break };
            // struct perf_event_header: type, misc, size.
            let size = u64::from(u16::from_ne_bytes([header[6], header[7]]));
            if size < 8 {
                break;
            }
            records += u64::from(u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) == SAMPLE);
            at += size;
        }
        Before { records: (at == bytes).then_some(records), bytes }
    }
}

/// `PERF_RECORD_SAMPLE`
const SAMPLE: u32 = 9;
