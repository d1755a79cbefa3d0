//! The rings of a machine: how they are opened, what writes into them, and how they are stopped.
//!
//! This room takes attributes of events, maps of BPF programs and CPUs. It gives [`Rings`], the ring of each CPU, with
//! the losses of each. It knows perf_event_open(2)'s attributes, CPUs that come and go, and other threads' flush, close
//! and pause. It does not know names of events, keys or order. `options.rs` has what a user asks for, `event_spec.rs`
//! and `target.rs` what that means, `plan.rs` checks all of it, `opening.rs` opens the ring of one CPU, and `hotplug.rs`
//! those of the machine, also of CPUs that come later. `producers.rs` has what writes into rings and what stops that,
//! and `control.rs` what other threads ask for.

pub(crate) mod control;
mod event_attr;
mod event_map;
mod event_spec;
mod foreign;
mod hotplug;
mod losses;
mod opening;
pub(crate) mod options;
mod plan;
pub(crate) mod producers;
pub(crate) mod recording;
mod refusal;
mod ring_buffers;
mod source;
pub(crate) mod spill;
mod target;
pub(crate) mod untraced;

#[cfg(feature = "perf-event-open-sys-7")]
pub use event_spec::EventSpec;
pub(crate) use losses::{Count, Losses};
pub use producers::Pause;
pub use recording::Recording;
pub use source::Source;
pub use untraced::Untraced;

use crate::error::{Error, ErrorKind};
use crate::record::clock::{Clock, ClockOffset};
use crate::record::{Layout, Origin, Records, Sources};
use crate::ring::{Bytes, LOW_POSITION, Properties, Ring};
use crate::rings::control::Control;
use crate::rings::options::RingOptions;
use crate::rings::producers::Gate;
use crate::rings::recording::Recorded;
use crate::rings::spill::Copies;
use crate::rings::untraced::UntracedCpus;
use crate::sys::machine;
use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// The rings of a machine, by CPU. A [`Reader`](crate::Reader) takes them.
///
/// Open them with [`Rings::options`], adopt rings of other programs with [`Rings::add`], or simulate rings with
/// `sim::Kernel` (feature `test-util`).
///
/// Dropping the rings empties the slots of BPF maps, then unmaps, then closes. A child of fork(2) does not have the
/// mappings and shares the slots with its parent: there, dropping only closes.
pub struct Rings {
    pub(crate) control: Arc<Control>,
    pub(crate) cpu_rings: Vec<CpuRing>,
    pub(crate) arrivals: Option<Arrivals>,
    pub(crate) untraced: UntracedCpus,
    clock: Clock,
    started: Option<u64>,
    sources: Vec<Source>,
    /// The errors of tracepoints that fit a pattern and that nobody may sample.
    skipped: Vec<Error>,
    /// If they are those of a recording: nothing more is written into them, unless others were added.
    recorded: Option<Recorded>,
    /// The threads that were traced when the rings were opened, if not all were.
    traced_threads: Option<Vec<u32>>,
}

/// The ring of one CPU (or one that all CPUs share), with the layout, the copies and the losses of its records.
#[derive(Debug)]
pub(crate) struct CpuRing {
    pub(crate) ring: Ring,
    pub(crate) origin: Arc<Origin>,
    /// Bytes that were copied out of the ring to make room, and were not yielded yet.
    pub(crate) copies: Copies,
    pub(crate) losses: Losses,
}

impl CpuRing {
    pub(crate) fn new(ring: Ring, origin: Origin, count: Option<Count>) -> Self {
        Self { ring, origin: Arc::new(origin), copies: Copies::default(), losses: Losses::new(count) }
    }

    /// Whether the kernel may soon have no space. The limit is not a quarter, at which the kernel wakes a reader: in a
    /// small ring the fence's own events may fill a quarter.
    pub(crate) fn is_crowded(&self) -> bool {
        self.ring.used() > self.ring.size() / 2
    }

    /// The position of the oldest byte that was not read.
    pub(crate) fn oldest(&self) -> u64 {
        self.copies.begin().unwrap_or(self.ring.tail())
    }

    /// How many records there are between a position and the head that was seen. Takes time for each.
    pub(crate) fn records_from(&self, position: u64) -> u64 {
        let records = Records::new(&self.ring, &self.origin, position).flatten();
        records.filter(|record| record.lost().is_none() && !record.is_discarded()).count() as u64
    }

    /// Bytes that were indexed, by the low bits of their position: see [`Ring::bytes_by_low`].
    #[inline(always)]
    pub(crate) fn bytes_by_low(&self, low: u64, len: u64) -> Bytes<'_> {
        match self.ring.bytes_by_low(low, len) {
            Some(run) => run.into(),
            None => Bytes::new(self.first_near(low, len), self.second_near(low, len)),
        }
    }

    // The two runs of bytes that wrap or were copied out: by value, so that those of others stay in registers.

    #[cold]
    #[inline(never)]
    fn first_near(&self, low: u64, len: u64) -> &[u8] {
        self.bytes(self.position_near(low), len).as_slices().0
    }

    #[cold]
    #[inline(never)]
    fn second_near(&self, low: u64, len: u64) -> &[u8] {
        self.bytes(self.position_near(low), len).as_slices().1
    }

    fn position_near(&self, low: u64) -> u64 {
        let head = self.ring.head();
        head - (head.wrapping_sub(low) & LOW_POSITION)
    }

    /// Bytes that were indexed: in the ring, or copied out of it.
    #[inline(always)]
    pub(crate) fn bytes(&self, position: u64, len: u64) -> Bytes<'_> {
        if position >= self.ring.tail() { self.ring.bytes(position, len) } else { self.copies.get(position, len) }
    }
}

/// Finds CPUs that came online: starts the events of rings whose CPU came back, returns new rings, and notes which CPUs
/// are not traced.
pub(crate) type Arrivals =
    Box<dyn FnMut(&Control, &mut [CpuRing], &mut Vec<CpuRing>, &mut UntracedCpus) -> Result<(), Error> + Send + Sync>;

/// The memory of a ring, as libbpf's `perf_buffer__buffer()` gives it. See [`Rings::raw`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawRing {
    /// The header page, `struct perf_event_mmap_page`. The data area follows at its `data_offset`. For a BPF ring
    /// buffer, the page whose first word is the producer position. The data area follows after that page, twice.
    pub base: NonNull<u8>,
    /// Bytes of the data area. This excludes the header page, as in libbpf, although the comment there says otherwise.
    pub size: usize,
    /// `data_head` at the call: where the kernel writes next, in bytes since the ring was made. The producer position
    /// of a BPF ring buffer.
    pub head: u64,
    /// `data_tail`, or the consumer position. Everything before it was given back to the kernel.
    pub tail: u64,
}

impl Rings {
    /// Options to open rings with.
    pub fn options() -> RingOptions {
        RingOptions::new()
    }

    /// Rings without a ring yet, for [`Rings::add`]. `clock` stamps the records.
    pub fn empty(clock: Clock) -> Self {
        Self {
            control: Control::new(),
            cpu_rings: Vec::new(),
            arrivals: None,
            untraced: UntracedCpus::default(),
            clock,
            started: None,
            sources: Vec::new(),
            skipped: Vec::new(),
            recorded: None,
            traced_threads: None,
        }
    }

    /// Adds an opened ring, whose output a gate can stop.
    pub(crate) fn add_ring(&mut self, cpu_ring: CpuRing, gate: Gate) -> Result<(), Error> {
        self.control.producers().add(gate, Vec::new())?;
        self.cpu_rings.push(cpu_ring);
        Ok(())
    }

    /// What a format's package has kept with the rings of a recording ([`Recording::facts`]). `None` if it was of
    /// another type, for all other rings, and once [`Rings::add`] has added one.
    pub fn facts<T: Any>(&self) -> Option<&T> {
        self.elsewhere()?.facts.as_deref()?.downcast_ref()
    }

    /// Whether a kernel writes into the rings: not if they are simulated, or those of a recording.
    pub fn are_live(&self) -> bool {
        self.cpu_rings.iter().any(|cpu_ring| !cpu_ring.ring.is_simulated())
    }

    /// The threads that were traced when the rings were opened, by their numbers in this PID namespace. `None` if the
    /// rings trace a machine or a control group, and for rings that were not opened by [`Rings::options`].
    pub fn traced_threads(&self) -> Option<&[u32]> {
        self.traced_threads.as_deref()
    }

    /// Whether nothing more will be written into the rings, so that one refresh finds everything.
    pub(crate) fn are_complete(&self) -> bool {
        // Another program may still write into its ring.
        self.recorded.is_some() && self.cpu_rings.iter().all(|cpu_ring| !cpu_ring.origin.is_adopted)
    }

    /// The recording, if another machine may have written it and nothing else is among its rings.
    fn elsewhere(&self) -> Option<&Recorded> {
        self.recorded.as_ref().filter(|recorded| !recorded.is_here && self.are_complete())
    }

    /// Whether another machine may have written the rings: those of a recording, unless a [`Recorder`](crate::Recorder)
    /// has copied them here.
    pub fn are_from_elsewhere(&self) -> bool {
        self.elsewhere().is_some()
    }

    /// What the recording says of all its losses together ([`Recording::lost_in_all`]).
    pub(crate) fn recorded_lost(&self) -> u64 {
        self.recorded.as_ref().map_or(0, |recorded| recorded.lost)
    }

    /// The events that write into the rings, in the order in which [`Record::source`](crate::Record::source) counts
    /// them. Empty for adopted and simulated rings. For a recording, the events that it names.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// The tracepoints that a pattern stands for and that the kernel lets nobody sample, each as the
    /// [`ErrorKind::Permission`](crate::ErrorKind::Permission) that opening it by its name gives. They are in no ring
    /// and no source. Linux 6.18 on x86-64 has one, `irq_vectors:irq_work_exit`: each sample of it would cause the
    /// next.
    pub fn skipped(&self) -> &[Error] {
        &self.skipped
    }

    /// The BPF programs of anybody that are attached to the tracepoints of these rings at this moment. Each is an
    /// [`ErrorKind::Degraded`] that names the tracepoint ([`Error::event`]) and the program.
    ///
    /// The kernel runs such a program before it writes the event into any ring. If one returns 0, it writes no event,
    /// and **nothing counts** that (`perf_trace_run_bpf_submit`, kernel/events/core.c). What a program returns cannot
    /// be seen from outside. Programs at raw tracepoints, fentry programs and those of other probes keep nothing back,
    /// and are not listed. Neither are programs that come later: ask again.
    ///
    /// One ioctl(2) for each tracepoint (`PERF_EVENT_IOC_QUERY_BPF`). Empty where the rings have no tracepoints, and
    /// once the reader is closed.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] without `CAP_PERFMON`; [`ErrorKind::System`] if the kernel does not answer;
    /// [`ErrorKind::Forked`].
    #[doc(alias = "PERF_EVENT_IOC_QUERY_BPF")]
    pub fn foreign_programs(&self) -> Result<Vec<Error>, Error> {
        foreign::programs(self)
    }

    /// Adds an adopted ring, whose records have this layout. A CPU may have several. A BPF ring buffer of all CPUs has
    /// the number [`ANY_CPU`](crate::ANY_CPU) and the layout [`Layout::RING_BUFFER`].
    ///
    /// If keys are the kernel's times, the same clock must stamp this ring as the others: otherwise its records are
    /// damage or late. The records name no source. Pausing output works if the ring's event is known. Pausing slots has
    /// no effect on this ring, and a pause in force does not extend to it. The ring's opener handles its CPU's coming
    /// and going. The output into a BPF ring buffer cannot be paused: [`Pause::Output`](crate::Pause::Output) is
    /// refused.
    ///
    /// If the layout's `read_format` has `PERF_FORMAT_LOST` (and no `PERF_FORMAT_GROUP`), the kernel's count of what the
    /// event has lost since it was opened is read. So losses after the last record are told, and the account is exact.
    /// Then no other event may write into the ring (`PERF_EVENT_IOC_SET_OUTPUT`): LOST records of more than was counted
    /// are damage. Leave the bit out for such a ring.
    ///
    /// Order is proven only if the event of the ring has `inherit_stat` 0 and, on [`Clock::Perf`], `precise_ip` 0.
    /// Hardware draws the times of an event with `precise_ip` before the kernel writes the record, and the crate cannot
    /// see it. An event with `inherit_stat` lets a thread that ends write `PERF_RECORD_READ` into other CPUs' rings,
    /// over their records: those become damage. Before the crate sees the first such record, events can be late behind
    /// proven ones. From then on it calls all events of all rings [`Certainty::Assumed`](crate::Certainty::Assumed).
    ///
    /// # Panics
    /// If the ring is a BPF ring buffer and the layout is not, or the reverse.
    pub fn add(&mut self, cpu: u32, ring: Ring, layout: Layout) {
        let cpu_ring = self.adopted(cpu, ring, layout);
        self.cpu_rings.push(cpu_ring);
    }

    /// An adopted ring, whose output these rings can pause from now on.
    pub(crate) fn adopted(&self, cpu: u32, ring: Ring, layout: Layout) -> CpuRing {
        let fits = ring.kind() == layout.kind;
        assert!(fits, "the layout of a BPF ring buffer is Layout::RING_BUFFER, and of no other ring");
        let gate = match ring.fd() {
            _ if !ring.properties().can_pause => Some(producers::no_gate(cpu, ring.properties().name)),
            event => event.map(|event| producers::gate(cpu, Arc::clone(event))),
        };
        // Without pausing it.
        self.control.producers().gates.extend(gate);
        let count = ring.fd().filter(|_| layout.counts_losses()).map(|event| losses::of(Arc::clone(event)));
        CpuRing::new(ring, Origin::new(cpu, layout, Sources::new()).adopted(), count)
    }

    /// Reads how many reservations have failed from a `BPF_MAP_TYPE_PERCPU_ARRAY` whose first element the programs
    /// count up: 8 bytes, one count for each CPU. `perfweave_reserve()` and `perfweave_output()` of
    /// `perfweave.bpf.h`, a header of the package perfweave-proofs, do that. The ledger and losses ([`Lost`](crate::Lost)) then have these
    /// counts.
    ///
    /// Without it, nothing is known of losses in BPF ring buffers: the kernel does not count them.
    /// [`Account::exact`](crate::Account::exact) is then false, and only sequence numbers show what is missing.
    ///
    /// Call it after [`Rings::add`]. It counts failures from now on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the map is no such array, if there is no BPF ring buffer, or if several
    /// share a CPU: the counts do not say to which a failure belongs. [`ErrorKind::System`].
    pub fn count_failures(&mut self, map: impl AsFd) -> Result<(), Error> {
        let uncounted = |cpu_ring: &CpuRing| !cpu_ring.ring.properties().counts_losses;
        let buffers: Vec<u32> =
            self.cpu_rings.iter().filter(|cpu_ring| uncounted(cpu_ring)).map(|cpu_ring| cpu_ring.origin.cpu).collect();
        let counts = ring_buffers::counts_of(map.as_fd(), &buffers)?;
        let cpu_rings = self.cpu_rings.iter_mut().filter(|cpu_ring| uncounted(cpu_ring));
        for (cpu_ring, count) in cpu_rings.zip(counts) {
            cpu_ring.losses = Losses::new(Some(count));
            cpu_ring.losses.is_cheap = true;
        }
        Ok(())
    }

    /// The CPU of each ring. A CPU may have several.
    pub fn cpus(&self) -> impl ExactSizeIterator<Item = u32> {
        self.cpu_rings.iter().map(|cpu_ring| cpu_ring.origin.cpu)
    }

    /// The layout of each ring's records, in the order of [`Rings::cpus`].
    pub fn layouts(&self) -> impl Iterator<Item = &Layout> {
        self.cpu_rings.iter().map(|cpu_ring| &cpu_ring.origin.layout)
    }

    /// The ids by which records name their event (`PERF_EVENT_IOC_ID`, [`Record::id`](crate::Record::id)), each with the
    /// event's index in [`Rings::sources`]. An event has an id for each CPU. A CPU that comes online adds some.
    pub fn ids(&self) -> impl Iterator<Item = (u64, usize)> {
        self.cpu_rings.iter().flat_map(|cpu_ring| cpu_ring.origin.all())
    }

    /// File descriptors for your own event loop: each becomes readable when a part of a ring was written. Polling
    /// consumes that. So check all rings after a wake-up, and before going to sleep. A CPU that comes online adds a
    /// descriptor. That of a BPF ring buffer is readable as long as any of its bytes are not given back: poll it
    /// edge-triggered.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.events().map(|event| event.as_fd())
    }

    /// The events that own the rings, as far as they are known.
    pub(crate) fn events(&self) -> impl Iterator<Item = &Arc<OwnedFd>> {
        self.cpu_rings.iter().filter_map(|cpu_ring| cpu_ring.ring.fd())
    }

    /// Whether there is a ring of a kind with this property.
    pub(crate) fn have(&self, property: impl Fn(&Properties) -> bool) -> bool {
        self.cpu_rings.iter().any(|cpu_ring| property(cpu_ring.ring.properties()))
    }

    /// Sets the clock that stamps the records: simulated rings have none (feature `test-util`).
    #[cfg(any(test, feature = "test-util"))]
    pub fn on_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The clock that stamps the records.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// How far the wall clock is ahead of the clock that stamps the records: [`Clock::offset_to`] [`Clock::Realtime`],
    /// asked now. For the rings of a recording: as the recording says it (in a `perf.data` file, `HEADER_CLOCK_DATA`),
    /// or 0 if the records are stamped with the wall clock itself. `None` if it does not, and for the perf clock.
    pub fn wall_clock(&self) -> Option<ClockOffset> {
        match self.elsewhere() {
            Some(recorded) => recorded.wall_clock,
            None => self.clock.offset_to(Clock::Realtime),
        }
    }

    /// Whether order by the records' times can be proven: the CPUs agree on the perf clock, and no hardware has drawn
    /// times before the kernel wrote the records (`setup_pebs_time`, `arch/x86/events/intel/ds.c`; with any other clock
    /// it draws none).
    pub(crate) fn have_one_clock(&self) -> bool {
        let is_drawn_before = |source: &Source| source.attr.precise_ip() != 0;
        let mut user_times = self.cpu_rings.iter().filter_map(|cpu_ring| cpu_ring.ring.has_user_time());
        let in_doubt = self.recorded.as_ref().is_some_and(|recorded| recorded.in_doubt);
        self.clock != Clock::Perf
            || !in_doubt && !self.sources.iter().any(is_drawn_before) && user_times.all(machine::perf_clock_agrees)
    }

    /// When the last event was started, on the rings' clock. Before that, some CPUs were traced and others not, so a
    /// cause may be missing. `None` for adopted rings and for clocks that cannot be read.
    pub fn started(&self) -> Option<u64> {
        self.started
    }

    /// The handle of a reader of these rings, before there is one (feature `test-util`).
    #[cfg(any(test, feature = "test-util"))]
    pub fn handle(&self) -> control::Handle {
        control::Handle(Arc::clone(&self.control))
    }

    /// The memory of a CPU's ring, for your own way of reading it. The first ring, where a CPU has several.
    ///
    /// Only this crate may store `data_tail` or the consumer position while the rings are in use.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the CPU has no ring here, or the machine cannot have such
    /// a CPU; [`ErrorKind::Forked`](crate::ErrorKind::Forked).
    pub fn raw(&self, cpu: u32) -> Result<RawRing, Error> {
        self.control.check()?;
        let Some(cpu_ring) = self.cpu_rings.iter().find(|cpu_ring| cpu_ring.origin.cpu == cpu) else {
            return Err(self.absent(cpu));
        };
        let (head, tail) = cpu_ring.ring.words();
        Ok(RawRing { base: cpu_ring.ring.page(), size: cpu_ring.ring.size() as usize, head, tail })
    }

    /// Why a CPU has no ring.
    fn absent(&self, cpu: u32) -> Error {
        match machine::possible_cpus().map(|possible| possible.last().copied()) {
            Ok(Some(last)) if cpu > last => no_such_cpu(cpu, last),
            Ok(_) => Error::new(ErrorKind::NotFound, format!("CPU {cpu} has no ring")),
            Err(errno) => list_cpus(errno),
        }
    }

    /// The control of other threads over the rings.
    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Finds CPUs that came online. Adds their new rings to `new`, for [`Rings`].
    pub(crate) fn arrived(&mut self, new: &mut Vec<CpuRing>) -> Result<(), Error> {
        // A child would make its own events write into its parent's rings.
        self.control.check()?;
        match &mut self.arrivals {
            Some(arrivals) => arrivals(&self.control, &mut self.cpu_rings, new, &mut self.untraced),
            None => Ok(()),
        }
    }
}

fn list_cpus(errno: io::Error) -> Error {
    Error::system("list CPUs", errno)
}

/// The machine can have no CPU of that number.
fn no_such_cpu(cpu: u32, last: u32) -> Error {
    Error::new(ErrorKind::NotFound, format!("no CPU {cpu}: this machine can have CPUs up to {last}"))
}

impl Drop for Rings {
    fn drop(&mut self) {
        if self.control.is_forked() {
            return;
        }
        // First nobody writes into the rings, then they are unmapped, then events are closed.
        let events = self.control.retire();
        self.cpu_rings.clear();
        drop(events);
    }
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rings").field("rings", &self.cpu_rings).field("clock", &self.clock).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Another program may still write into its ring, also beside a recording.
    #[test]
    fn a_recording_with_a_ring_of_another_program_is_not_complete() {
        let mut recording = Recording::new(Clock::Perf, None);
        recording.facts("of a format");
        let mut rings = recording.build();
        assert!(rings.are_complete() && rings.facts::<&str>() == Some(&"of a format"));
        let (_kernel, ring) = Ring::simulated(machine::page_size(), 4096, None, false);
        rings.add(0, ring, Layout::RAW);
        assert!(!rings.are_complete() && rings.facts::<&str>().is_none());
    }
}
