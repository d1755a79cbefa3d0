//! Rings of what was recorded: how a reader of a file format feeds the merge.

use crate::error::{Error, ErrorKind};
use crate::record::clock::{Clock, ClockOffset};
use crate::record::{Layout, Origin, Sources};
use crate::ring::{Bytes, KernelHalf, Ring};
use crate::rings::{CpuRing, Rings, Source};
use crate::sys::{machine, memory, perf};
use std::any::Any;
use std::io;

/// Makes [`Rings`] of recorded bytes, for a program that reads a file format. A [`Reader`](crate::Reader) takes them
/// like those of a kernel.
///
/// The package perfweave-perf-data reads `perf.data` files with it. Another format takes what it knows of a CPU to
/// records as perf_event_open(2) describes them:
///
/// ```
/// use perfweave::{Clock, Layout, Order, Reader, Recording};
///
/// // What a file of some format says: the events of two CPUs, each with its time.
/// let file: [(u32, &[(u64, &[u8])]); 2] = [(0, &[(10, b"first"), (30, b"third")]), (1, &[(20, b"second")])];
///
/// // Samples with the time and raw data: PERF_SAMPLE_TIME | PERF_SAMPLE_RAW. The other records end with the time.
/// let layout = Layout::new(1 << 2 | 1 << 10, true, 0);
/// let sample = |time: u64, data: &[u8]| {
///     let raw = (4 + data.len()).next_multiple_of(8);
///     let mut record = Vec::new();
///     record.extend(perf_event_open_sys::bindings::PERF_RECORD_SAMPLE.to_ne_bytes());
///     record.extend([0, (16 + raw) as u16].iter().flat_map(|half| half.to_ne_bytes()));
///     record.extend(time.to_ne_bytes());
///     record.extend((raw as u32 - 4).to_ne_bytes());
///     record.extend(data);
///     record.resize(16 + raw, 0);
///     record
/// };
///
/// let mut recording = Recording::new(Clock::Monotonic, None);
/// recording.event("letters", &[], None);
/// for (cpu, events) in file {
///     let ring = recording.ring(cpu, layout, [], 1024)?;
///     for (time, data) in events {
///         recording.write(ring, &sample(*time, data))?;
///     }
/// }
///
/// let mut reader = Reader::new(recording.build(), Order::new())?;
/// let mut read = Vec::new();
/// while let Some(event) = reader.next()? {
///     read.push((event.key(), event.cpu(), event.record().and_then(|record| record.source())));
/// }
/// assert_eq!(read, [(Some(10), Some(0), Some(0)), (Some(20), Some(1), Some(0)), (Some(30), Some(0), Some(0))]);
/// # Ok::<(), perfweave::Error>(())
/// ```
///
/// # What holds
///
/// A recording is complete, because nothing more is written into it. So no hold rule waits, every event with a key is
/// proven, and the stream ends ([`Ended::Recording`](crate::Ended::Recording)). The records of one ring may be out of
/// order. A `PERF_RECORD_LOST` is a loss, with the place of the record that follows it. Bytes that cannot be a record are
/// [`Damage`](crate::Damage).
///
/// # Memory
///
/// A ring takes its length, rounded up to a power of two, and some 16 KiB more for a reader. Nothing is copied a second
/// time. What was read goes back to the system, a MiB at a time.
#[derive(Debug)]
pub struct Recording {
    rings: Rings,
    recorded: Recorded,
    parts: Vec<Part>,
}

/// What is known of recorded rings together.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// Whether they are copies of this machine's, and no format tells of them.
    pub(super) is_here: bool,
    /// Whether the CPUs need not have agreed on the clock when they were copied.
    pub(super) in_doubt: bool,
    pub(super) wall_clock: Option<ClockOffset>,
    /// All losses together, beside those that the rings tell.
    pub(super) lost: u64,
    /// What else a format says, for the package that has read it.
    pub(super) facts: Option<Box<dyn Any + Send + Sync>>,
}

/// A ring that is being filled.
#[derive(Debug)]
struct Part {
    cpu: u32,
    layout: Layout,
    ids: Sources,
    kernel: KernelHalf,
    ring: Ring,
    /// Where what was written begins and ends.
    begin: u64,
    end: u64,
    /// LOST records can have told of so many records at most.
    lost_at_most: Option<u64>,
}

/// The longest ring.
const LONGEST: u64 = Ring::MAX / 2;

impl Recording {
    /// A recording without events and rings yet. `clock` has stamped the records. `wall`: how far the wall clock was
    /// ahead of it, if that is known ([`Rings::wall_clock`]).
    pub fn new(clock: Clock, wall: Option<ClockOffset>) -> Self {
        let recorded = Recorded { wall_clock: wall, ..Recorded::default() };
        Self { rings: Rings::empty(clock), recorded, parts: Vec::new() }
    }

    /// A recording of rings of this machine, with a ring as long for each of them, for [`Recording::write_before`].
    pub(crate) fn of(live: &Rings) -> Result<Self, Error> {
        let mut rings = Rings::empty(live.clock);
        (rings.started, rings.sources) = (live.started, live.sources.clone());
        rings.traced_threads.clone_from(&live.traced_threads);
        let recorded = Recorded { is_here: true, in_doubt: !live.have_one_clock(), ..Recorded::default() };
        let mut copy = Self { rings, recorded, parts: Vec::new() };
        // The allocator may promise what is not there, for the recording and for the bytes as they lie in the rings.
        let bytes = live.cpu_rings.iter().map(|cpu_ring| cpu_ring.ring.size()).sum();
        if Self::available_memory().is_some_and(|available| available / 2 < bytes) {
            return Err(no_memory(2 * bytes));
        }
        for CpuRing { ring, origin, .. } in &live.cpu_rings {
            let part = copy.add(origin.cpu, origin.layout, origin.all().collect(), ring.size())?;
            (copy.parts[part].begin, copy.parts[part].end) = (ring.size(), ring.size());
        }
        Ok(copy)
    }

    /// Adds an event, and returns its index in [`Rings::sources`].
    ///
    /// `name` is [`Source::name`]. If it is `tracepoint CATEGORY:NAME` and the attribute is that of a tracepoint,
    /// [`Source::tracepoint`] is what follows the first word. `attr` are the bytes of `struct perf_event_attr`, in the
    /// byte order of this machine. Members that are missing are 0, and those that this crate does not know are left
    /// out. `format` is the text of the tracepoint's format file on the machine that was recorded.
    pub fn event(&mut self, name: &str, attr: &[u8], format: Option<&str>) -> usize {
        let source = Source::recorded(name, perf::attr_from(attr), format);
        self.rings.sources.push(source);
        self.rings.sources.len() - 1
    }

    /// Adds a ring for this many bytes of records, and returns its number for [`Recording::write`]. A CPU may have
    /// several. Its own numbers ([`Order::numbers`](crate::Order::numbers)) then start again in each.
    ///
    /// `ids` are those by which records of this ring name their event, each with the event's index. Records of a
    /// recording with one event need no ids: all are of that event. Ids of events that are not there are left out.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] if there is no memory. [`ErrorKind::InvalidInput`] for more than 1 GiB.
    ///
    /// # Panics
    /// If the layout is that of a BPF ring buffer.
    pub fn ring(
        &mut self,
        cpu: u32,
        layout: Layout,
        ids: impl IntoIterator<Item = (u64, usize)>,
        bytes: u64,
    ) -> Result<usize, Error> {
        assert!(layout.has_fields(), "records of a BPF ring buffer have no header");
        if bytes > LONGEST {
            let message = format!("a ring of {bytes} bytes is longer than {LONGEST}");
            return Err(Error::new(ErrorKind::InvalidInput, message).hinting("give the CPU several rings"));
        }
        self.add(cpu, layout, ids.into_iter().collect(), bytes)
    }

    /// The same, up to [`Ring::MAX`].
    pub(crate) fn add(&mut self, cpu: u32, layout: Layout, ids: Sources, bytes: u64) -> Result<usize, Error> {
        let size = bytes.next_power_of_two().max(8);
        let (kernel, ring) = allocate(size, false)?;
        self.parts.push(Part { cpu, layout, ids, kernel, ring, begin: 0, end: 0, lost_at_most: None });
        Ok(self.parts.len() - 1)
    }

    /// Writes bytes before all that was written into a ring: of a ring that is read from its newest record back.
    pub(crate) fn write_before(&mut self, ring: usize, bytes: Bytes<'_>) -> Result<(), Error> {
        let Part { kernel, begin, .. } = &mut self.parts[ring];
        let (head, tail) = bytes.as_slices();
        let Some(at) = begin.checked_sub(bytes.len() as u64) else { return Err(no_room(bytes.len(), *begin)) };
        kernel.write(at, head);
        kernel.write(at + head.len() as u64, tail);
        *begin = at;
        Ok(())
    }

    /// LOST records of a ring can have told of so many records at most.
    pub(crate) fn lost_at_most(&mut self, ring: usize, count: u64) {
        self.parts[ring].lost_at_most = Some(count);
    }

    /// Appends bytes to a ring: whole records of `struct perf_event_header`, or what a damaged file has in their place.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the ring has no room for them.
    ///
    /// # Panics
    /// If there is no such ring.
    #[inline]
    pub fn write(&mut self, ring: usize, bytes: &[u8]) -> Result<(), Error> {
        let part = &mut self.parts[ring];
        // No underflow: nothing is written beyond the room.
        let room = part.ring.size() - part.end;
        if bytes.len() as u64 > room {
            return Err(no_room(bytes.len(), room));
        }
        // Nobody reads the ring before `build` publishes all of it.
        part.kernel.write(part.end, bytes);
        part.end += bytes.len() as u64;
        Ok(())
    }

    /// Takes the count of all records that were dropped in the whole recording, wherever that was. It includes those
    /// that LOST records tell, and each is counted once: what they do not tell is lost in
    /// [`Status::machine`](crate::Status::machine), and no event, because it has no place.
    pub fn lost_in_all(&mut self, count: u64) {
        self.recorded.lost = count;
    }

    /// Keeps what a format knows besides its events, for the functions of its own package. [`Rings::facts`] gives it
    /// back. One value is kept: the last.
    pub fn facts(&mut self, facts: impl Any + Send + Sync) {
        self.recorded.facts = Some(Box::new(facts));
    }

    /// How many bytes of memory this process can get: the least of `MemAvailable` of `/proc/meminfo` and what
    /// `RLIMIT_AS`, `RLIMIT_DATA` and the `memory.max` of this process's control groups leave. `None` if nothing says
    /// it. A file may claim to be of any length: ask before you allocate.
    pub fn available_memory() -> Option<u64> {
        memory::available()
    }

    /// The rings, with all that was written.
    pub fn build(self) -> Rings {
        let Self { mut rings, recorded, parts } = self;
        let events = rings.sources.len();
        let is_here = recorded.is_here;
        rings.recorded = Some(recorded);
        for Part { cpu, layout, mut ids, mut kernel, mut ring, begin, end, lost_at_most } in parts {
            kernel.publish(end);
            // What lies before `begin` was never written.
            let seen = ring.refresh();
            debug_assert!(seen.is_ok(), "our own head");
            ring.release(begin);
            ring.discards();
            // Only now are all events known.
            ids.retain(|(_, source)| is_here || *source < events);
            let origin = match events {
                _ if is_here => Origin::new(cpu, layout, ids),
                // All records are of the one event, also those without an id.
                1 => Origin::new(cpu, layout, [(0, 0)].into_iter().collect()),
                _ => Origin::new(cpu, layout, ids).asked(),
            };
            let mut cpu_ring = CpuRing::new(ring, origin, None);
            cpu_ring.losses.at_most = lost_at_most;
            rings.cpu_rings.push(cpu_ring);
        }
        rings
    }
}

/// Memory for a ring of a power of two of bytes. `backward`: to be read from its newest record back.
pub(crate) fn allocate(size: u64, backward: bool) -> Result<(KernelHalf, Ring), Error> {
    Ring::in_memory(machine::page_size(), size as usize, None, backward).ok_or_else(|| no_memory(size))
}

#[cold]
fn no_memory(bytes: u64) -> Error {
    let message = format!("no memory for {bytes} bytes of rings");
    Error::new(ErrorKind::Limit, message).because(io::ErrorKind::OutOfMemory.into())
}

#[cold]
fn no_room(bytes: usize, room: u64) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("the ring has room for {room} bytes, and not for {bytes}"))
}
