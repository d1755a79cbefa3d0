//! The rings of a machine, one for each CPU, however they were come by.

use crate::clock::Clock;
use crate::error::Error;
use crate::record::{Layout, Origin};
use crate::ring::Ring;
use crate::sys::{bpf, machine, perf};
use smallvec::SmallVec;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// The rings of a machine, by CPU: what [`Merge`](crate::Merge) and [`Reader`](crate::Reader) take.
///
/// Open them with [`Rings::options`], adopt other people's with [`Rings::add`], or simulate them with
/// [`sim::Kernel`](crate::sim::Kernel).
///
/// Dropping them empties the slots of BPF maps, then unmaps, then closes. A child of fork(2) does not have the mappings
/// (`VM_DONTCOPY`) and must not use them.
#[derive(Debug)]
pub struct Rings {
    // In the order in which they are dropped: nobody writes to a ring that is going away.
    _slots: Vec<Slots>,
    pub(crate) lanes: Vec<Lane>,
    /// Events that write into another event's ring.
    _events: Vec<OwnedFd>,
    clock: Clock,
    started: Option<u64>,
}

/// One ring, and what is known of its records.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) ring: Ring,
    pub(crate) origin: Arc<Origin>,
}

/// Slots of a `PERF_EVENT_ARRAY` that were set, and are emptied in the end.
///
/// Keeps a duplicate of the map's file descriptor: the kernel empties the slots by itself when the file they were set
/// through is closed (`perf_event_fd_array_release`, `kernel/bpf/arraymap.c`).
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) map: OwnedFd,
    pub(crate) cpus: Vec<u32>,
}

impl Drop for Slots {
    fn drop(&mut self) {
        for cpu in &self.cpus {
            // Whoever emptied it before us is welcome; there is nothing else to be done about an error.
            let _ = bpf::map_delete(self.map.as_fd(), *cpu);
        }
    }
}

/// A ring's memory, as libbpf's `perf_buffer__buffer()` hands it out. See [`Rings::raw`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawRing {
    /// The header page, `struct perf_event_mmap_page`. The data area follows at its `data_offset`.
    pub base: NonNull<u8>,
    /// Bytes of the data area. The header page is not counted, as in libbpf, whatever the comment there says.
    pub size: usize,
}

impl Rings {
    /// No rings yet, to be filled by [`Rings::add`]. `clock` is the one that the records' times are taken from.
    pub fn empty(clock: Clock) -> Self {
        Self { _slots: Vec::new(), lanes: Vec::new(), _events: Vec::new(), clock, started: None }
    }

    pub(crate) fn opened(
        slots: Vec<Slots>,
        lanes: Vec<Lane>,
        events: Vec<OwnedFd>,
        clock: Clock,
        started: Option<u64>,
    ) -> Self {
        Self { _slots: slots, lanes, _events: events, clock, started }
    }

    /// Adds a ring that was adopted, whose records have this layout. A CPU may have several.
    ///
    /// If keys are the kernel's times, the ring must be stamped on the same clock as the others, or its records are damage
    /// or late. Its records name no source.
    pub fn add(&mut self, cpu: u32, ring: Ring, layout: Layout) {
        let origin = Arc::new(Origin { cpu, layout, sources: SmallVec::new() });
        self.lanes.push(Lane { ring, origin });
    }

    /// How many rings there are.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// The CPUs that have a ring.
    pub fn cpus(&self) -> impl Iterator<Item = u32> {
        self.lanes.iter().map(|lane| lane.origin.cpu)
    }

    /// What becomes readable when a part of a ring was written, for an event loop of one's own. Polling consumes it: who
    /// is woken looks at all rings, and looks before going to sleep.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lanes.iter().filter_map(|lane| lane.ring.fd())
    }

    /// Says which clock the records' times are taken from, where that is not known: simulated rings have none.
    pub fn on_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The clock that the records' times are taken from.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// When the last event was started, on the rings' clock. Before, some CPUs were traced and others were not yet, so
    /// a cause may be missing. `None` for adopted rings and for clocks that cannot be read.
    pub fn started(&self) -> Option<u64> {
        self.started
    }

    /// Stops or restarts the output into a CPU's rings (`PERF_EVENT_IOC_PAUSE_OUTPUT`). What is written meanwhile is
    /// dropped and counted as lost. A writer that is inside at this moment finishes.
    ///
    /// # Errors
    /// [`Error::NoRing`] if the CPU has none that was opened here; [`Error::System`].
    pub fn pause_output(&self, cpu: u32, paused: bool) -> Result<(), Error> {
        let mut found = false;
        for event in self.lanes.iter().filter(|lane| lane.origin.cpu == cpu).filter_map(|lane| lane.ring.fd()) {
            perf::pause_output(event, paused).map_err(|errno| Error::System { what: "pause a ring", errno })?;
            found = true;
        }
        if found { Ok(()) } else { Err(Error::NoRing { cpu }) }
    }

    /// The memory of a CPU's ring, for reading it in one's own way. The first, where a CPU has several.
    ///
    /// Nobody but this crate may store `data_tail` while the rings are in use.
    ///
    /// # Errors
    /// [`Error::NoSuchCpu`] if the machine cannot have such a CPU, [`Error::NoRing`] if it has none here.
    pub fn raw(&self, cpu: u32) -> Result<RawRing, Error> {
        if let Some(lane) = self.lanes.iter().find(|lane| lane.origin.cpu == cpu) {
            return Ok(RawRing { base: lane.ring.page(), size: lane.ring.size() as usize });
        }
        let possible = machine::possible_cpus().map_err(|errno| Error::System { what: "list CPUs", errno })?;
        match possible.last() {
            Some(&last) if cpu > last => Err(Error::NoSuchCpu { cpu, last }),
            _ => Err(Error::NoRing { cpu }),
        }
    }
}
