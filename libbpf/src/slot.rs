//! The perf event of a CPU, which a slot of a map names, and its rings.
//!
//! The event writes into the ring of another event, a dummy, which has no descriptor once it is mapped. So the event
//! that the tool knows stays the same if a larger ring takes the place of one that is too small.

use crate::border::Failed;
use crate::sys::{self, Mapping};
use perf_event_open_sys::bindings as perf;
use perfweave::{Clock, Error, Layout, Ring};
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

/// Where data_head and data_tail lie in the header page (include/uapi/linux/perf_event.h).
pub(crate) const HEAD: usize = 1024;
pub(crate) const TAIL: usize = 1032;

/// Rings are as large at first, if the machine lets them. A tool that is woken for each event slows down who writes;
/// one that waits for proofs does not, and needs room for what is written meanwhile.
const EAGER: usize = 1 << 20;
const LAZY: usize = 4 << 20;
/// But no more than this for all CPUs.
const ALL: usize = 256 << 20;

const TIME: u64 = perf::PERF_SAMPLE_TIME as u64;

/// What a tool asks for, and what order needs beside it.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// The tool's own.
    pub(crate) attr: perf::perf_event_attr,
    pub(crate) pid: c_int,
    /// Bytes of data.
    pub(crate) size: usize,
    /// The reader wakes the tool.
    pub(crate) lazy: bool,
}

impl Asked {
    /// What perf_buffer__new and bpf_open_perf_buffer of libbpf and libbcc open.
    pub(crate) fn output(pages: usize, period: u32) -> Self {
        let mut attr = perf::perf_event_attr {
            type_: perf::PERF_TYPE_SOFTWARE,
            size: size_of::<perf::perf_event_attr>() as u32,
            config: perf::PERF_COUNT_SW_BPF_OUTPUT as u64,
            sample_type: perf::PERF_SAMPLE_RAW as u64,
            ..Default::default()
        };
        attr.__bindgen_anon_1.sample_period = period.into();
        attr.__bindgen_anon_2.wakeup_events = period;
        Self { attr, pid: -1, size: pages.saturating_mul(sys::page_size()), lazy: crate::settings::is_lazy() }
    }

    /// Why such events cannot be ordered, if they cannot.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        let attr = &self.attr;
        if attr.write_backward() != 0 {
            Some("they are written backwards")
        } else if attr.inherit_stat() != 0 || attr.precise_ip() != 0 {
            Some("inherit_stat and precise_ip write out of order")
        } else if attr.sample_type & TIME != 0 && attr.use_clockid() != 0 && attr.clockid != libc::CLOCK_MONOTONIC {
            Some("their times are of a clock other than CLOCK_MONOTONIC")
        } else {
            None
        }
    }

    /// The clock of the times: the tool's own, where it asks for times.
    pub(crate) fn clock(&self) -> Clock {
        let perf_clock = self.attr.sample_type & TIME != 0 && self.attr.use_clockid() == 0;
        if perf_clock { Clock::Perf } else { Clock::Monotonic }
    }

    /// Whether records have a time that the tool did not ask for.
    pub(crate) fn adds_time(&self) -> bool {
        self.attr.sample_type & TIME == 0
    }

    fn layout(&self) -> Layout {
        let attr = self.ordered();
        Layout::new(attr.sample_type, attr.sample_id_all() != 0, attr.read_format)
            .registers(attr.sample_regs_user, attr.sample_regs_intr)
            .branches(attr.branch_sample_type)
    }

    /// The tool's attribute with the kernel's time of each record.
    fn ordered(&self) -> perf::perf_event_attr {
        let mut attr = self.attr;
        attr.sample_type |= TIME;
        if self.clock() == Clock::Monotonic {
            attr.set_use_clockid(1);
            attr.clockid = libc::CLOCK_MONOTONIC;
        }
        if self.lazy {
            attr.set_watermark(1);
            attr.__bindgen_anon_2.wakeup_watermark = self.watermark(self.size);
        }
        attr
    }

    /// The size of a first ring.
    fn first(&self) -> usize {
        // SAFETY: asks only.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize;
        let most = 1 << (ALL / cpus).max(1).ilog2();
        self.size.max(most.min(if self.lazy { LAZY } else { EAGER }))
    }

    fn watermark(&self, size: usize) -> u32 {
        (size / 4) as u32
    }

    /// Opens a dummy, and maps its ring.
    fn ring(&self, cpu: c_int, size: usize) -> Result<(OwnedFd, Room), Failed> {
        let of = self.ordered();
        let mut attr = perf::perf_event_attr {
            type_: perf::PERF_TYPE_SOFTWARE,
            size: size_of::<perf::perf_event_attr>() as u32,
            config: perf::PERF_COUNT_SW_DUMMY as u64,
            clockid: of.clockid,
            ..Default::default()
        };
        attr.set_use_clockid(of.use_clockid());
        attr.set_disabled(1);
        // The ring wakes as its owner says.
        attr.set_watermark(of.watermark());
        attr.__bindgen_anon_2 = of.__bindgen_anon_2;
        if self.lazy {
            attr.__bindgen_anon_2.wakeup_watermark = self.watermark(size);
        }
        let owner = sys::open_event(&attr, self.pid, cpu)?;
        let mapping = Mapping::new(owner.as_raw_fd(), sys::page_size() + size, true, 0)?;
        Ok((owner, Room { mapping, size, seen: 0 }))
    }
}

/// A ring: its memory, and up to where everything was given to the tool.
pub(crate) struct Room {
    pub(crate) mapping: Mapping,
    pub(crate) size: usize,
    seen: u64,
}

impl Room {
    pub(crate) fn head(&self) -> u64 {
        self.mapping.load(HEAD)
    }

    /// Whether more than half of it is full.
    fn is_crowded(&self) -> bool {
        self.head().wrapping_sub(self.mapping.word(TAIL).load(Ordering::Relaxed)) > self.size as u64 / 2
    }
}

pub(crate) struct Slot {
    pub(crate) cpu: u32,
    pub(crate) asked: Asked,
    pub(crate) event: OwnedFd,
    pub(crate) id: u64,
    /// The last is the one that the event writes into. They stay mapped as long as a reader may have them.
    pub(crate) rooms: Vec<Room>,
    /// Whether the kernel counts what the event loses (Linux 6.0).
    counts: bool,
    /// What LOST records have said, and what the tool was told.
    reported: u64,
    told: u64,
    /// What was lost before the event got a larger ring: the LOST record of the last losses never comes.
    left: u64,
    /// What the kernel has counted, and the head when it was asked.
    counted: u64,
    asked_at: u64,
    /// Whether something may have been lost since that has not moved the head.
    asks: bool,
    was_crowded: bool,
}

impl Slot {
    /// Opens and maps. The event runs once it is enabled.
    pub(crate) fn open(asked: Asked, cpu: u32) -> Result<Self, Failed> {
        let first = asked.ring(cpu as c_int, asked.first());
        let (owner, room) = first.or_else(|_| asked.ring(cpu as c_int, asked.size))?;
        let mut attr = asked.ordered();
        // Otherwise what the tool reads from the event would have another layout.
        let free = attr.read_format == 0 && attr.size as usize >= size_of::<perf::perf_event_attr>();
        attr.read_format |= if free { perf::PERF_FORMAT_LOST as u64 } else { 0 };
        let open = |attr: &_| sys::open_event(attr, asked.pid, cpu as c_int);
        let (event, counts) = match open(&attr) {
            Err(libc::EINVAL) if free => {
                attr.read_format = 0;
                (open(&attr)?, false)
            }
            opened => (opened?, free),
        };
        sys::redirect(&event, &owner)?;
        sys::enable(&event)?;
        let id = sys::id(&event)?;
        let rooms = vec![room];
        let [reported, told, left, counted, asked_at] = [0; 5];
        let [asks, was_crowded] = [false; 2];
        Ok(Self { cpu, asked, event, id, rooms, counts, reported, told, left, counted, asked_at, asks, was_crowded })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// The ring for a reader, tagged. A lazy reader waits for the event; otherwise only the tool does, because the
    /// kernel gives the readiness of an event to the first who asks.
    pub(crate) fn adopt(&self, room: &Room, tag: u32) -> Result<(Ring, Layout), Error> {
        let event = self.asked.lazy.then(|| self.event.as_fd());
        // SAFETY: a writable mapping of that size which nobody else reads, of an event that is not written backwards
        // (`Asked::refusal`); a `Group` drops its reader before its slots.
        let ring = unsafe { Ring::adopt_mapping(room.mapping.base(), room.size, event) }?;
        Ok((ring, self.asked.layout().tagged(tag)))
    }

    /// Whether something was written since [`Slot::look`].
    pub(crate) fn has_new(&self) -> bool {
        self.rooms.iter().any(|room| room.head() != room.seen)
    }

    /// Notes what is there before a call gives it to the tool.
    pub(crate) fn look(&mut self) {
        for room in &mut self.rooms {
            room.seen = room.head();
        }
        let is_crowded = self.rooms.last().is_some_and(Room::is_crowded);
        self.was_crowded |= is_crowded;
        self.asks |= is_crowded;
    }

    /// Whether the ring was too small since the last question.
    pub(crate) fn take_crowded(&mut self) -> bool {
        std::mem::take(&mut self.was_crowded) || self.rooms.last().is_some_and(Room::is_crowded)
    }

    /// A larger ring, which the event does not write into yet.
    pub(crate) fn larger(&self, size: usize) -> Result<(OwnedFd, Room), Failed> {
        self.asked.ring(self.cpu as c_int, size)
    }

    /// How many of these records the tool does not know of, by a LOST record.
    pub(crate) fn reported(&mut self, count: u64) -> u64 {
        self.was_crowded = true;
        self.report(count)
    }

    fn report(&mut self, count: u64) -> u64 {
        self.reported += count;
        let news = self.reported.saturating_sub(self.told);
        self.told = self.told.max(self.reported);
        news
    }

    /// The event writes into a larger ring.
    pub(crate) fn leave(&mut self) {
        self.left = if self.counts { sys::lost(&self.event).unwrap_or(0) } else { 0 };
    }

    /// How many records were lost before and not told. To ask once everything of the small ring is given.
    pub(crate) fn take_left(&mut self) -> u64 {
        let left = std::mem::take(&mut self.left).saturating_sub(self.reported);
        self.report(left)
    }

    /// How many lost records no LOST record has told: the kernel writes one with the next record only. Asking
    /// interrupts the CPU, so it is asked only if something was written since.
    pub(crate) fn untold(&mut self) -> u64 {
        let head = self.rooms.last().map_or(0, Room::head);
        if self.counts && (head != self.asked_at || self.asks) {
            (self.asked_at, self.asks) = (head, false);
            self.counted = sys::lost(&self.event).unwrap_or(self.counted);
        }
        self.counted.saturating_sub(self.told)
    }

    /// The tool was told of so many.
    pub(crate) fn tell(&mut self, count: u64) {
        self.told += count;
    }
}
