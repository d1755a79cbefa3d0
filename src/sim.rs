//! The kernel's half of the protocol, in memory: for tests without privileges, of this crate and of its users.
//!
//! A [`Kernel`] writes into rings exactly what the kernel writes (`kernel/events/ring_buffer.c`): headers, fields and
//! padding; records that wrap; a full ring that drops the newest and says so with the next record that fits; writers
//! that are interrupted by others on the same CPU, whose records then lie in the ring before theirs although they are
//! stamped later, or are invisible until the interrupted writer is done. It can also do what no lawful kernel does: write
//! any bytes anywhere and set any head.
//!
//! ```
//! use perfweave::{Merge, Order, sim};
//!
//! let kernel = sim::Kernel::new(&[0, 4]);
//! let mut merge = Merge::new(kernel.rings(), Order::new().hold(kernel.hold()))?;
//!
//! // On CPU 4 a writer reads the clock, and is interrupted before it gets to write.
//! kernel.begin(4, 100);
//! kernel.emit(4, 130, b"interrupt");
//! kernel.write(4, b"interrupted");
//! kernel.end(4);
//! kernel.emit(0, 120, b"elsewhere");
//!
//! merge.look(0);
//! merge.begin_fence();
//! assert!(kernel.grace().is_over(), "nobody is inside a section");
//! merge.end_fence();
//! merge.look(0);
//! let times: Vec<_> = merge.batch().map(|event| event.key()).collect();
//! assert_eq!(times, [Some(100), Some(120), Some(130)]);
//! # Ok::<(), perfweave::Error>(())
//! ```
//!
//! All functions may be called from any thread. What the ring of one CPU sees is what happened on that CPU in the
//! order of the calls, so writers of one CPU belong on one thread, as in the kernel.

use crate::clock::Clock;
use crate::control::{Control, Gate, Pause};
use crate::error::Error;
use crate::hold::{Fence, Hold};
use crate::key::Key;
use crate::record::{CPU, ID, IDENTIFIER, Kind, Layout, Origin, SAMPLE_ORDER, STREAM_ID, TID, TIME, TRAILER_ORDER};
use crate::recorder::Recorder;
use crate::ring::{KernelHalf, Ring};
use crate::rings::{Counter, Lane, Rings};
use crate::sys::machine;
use nix::sys::eventfd::{EfdFlags, EventFd};
use perf_event_open_sys::bindings as sys;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// A simulated machine's CPUs and their rings. Cloning gives another handle to the same.
#[derive(Clone)]
pub struct Kernel {
    machine: Arc<Machine>,
}

struct Machine {
    cpus: RwLock<Vec<(u32, SharedCpu)>>,
    rings: Mutex<Consumer>,
    sections: Arc<Sections>,
    /// Bytes of each ring, and how it is laid out.
    bytes: usize,
    layout: Layout,
    backward: bool,
    /// The clock that times are of.
    clock: Mutex<Clock>,
}

type SharedCpu = Arc<Mutex<Cpu>>;

/// The consumers' ends.
#[derive(Default)]
struct Consumer {
    /// Whether they were taken; of CPUs that came later, they are picked up one by one.
    taken: bool,
    waiting: Vec<(Lane, SharedCpu)>,
}

/// What the kernel keeps for one ring, `struct perf_buffer`, and the writers that interrupted each other on its CPU.
struct Cpu {
    number: u32,
    layout: Layout,
    half: KernelHalf,
    /// `rb->head`: how far the ring is reserved.
    reserved: u64,
    /// `rb->nest`: how many writers are between reserving and publishing.
    nest: u32,
    /// `rb->lost`: dropped since the last LOST record.
    lost: u64,
    /// `event->lost_samples`: dropped since the begin.
    dropped: u64,
    /// `rb->wakeup`: where the reader was woken last.
    woken: u64,
    /// By whom output is paused: through the kernel's end, or the consumer's.
    paused: [bool; 2],
    /// Whether writers find no ring at all: their slots are empty.
    detached: bool,
    /// The event's id.
    id: u64,
    wake: Option<EventFd>,
    /// Whether it writes backwards, over what is oldest.
    backward: bool,
    /// The innermost writer is last.
    writers: Vec<Writer>,
}

/// Somebody who reads the clock and then writes, inside an RCU read-side section.
struct Writer {
    section: u64,
    time: u64,
    /// Whether it has reserved and not yet published.
    nested: bool,
}

/// RCU read-side sections.
#[derive(Default)]
struct Sections {
    open: Mutex<Open>,
    closed: Condvar,
}

#[derive(Default)]
struct Open {
    /// The number of the section that was entered last.
    last: u64,
    sections: BTreeSet<u64>,
    /// Grace periods that somebody sleeps for.
    waiting: u32,
}

impl Open {
    /// Whether somebody is still inside who was when `last` was the last to enter.
    fn any_until(&self, last: u64) -> bool {
        self.sections.first().is_some_and(|oldest| *oldest <= last)
    }
}

impl Sections {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> u64 {
        let mut open = self.open();
        open.last += 1;
        let section = open.last;
        open.sections.insert(section);
        section
    }

    fn leave(&self, section: u64) {
        let mut open = self.open();
        open.sections.remove(&section);
        if open.waiting > 0 {
            self.closed.notify_all();
        }
    }
}

/// A grace period: over when everybody has left who was inside a section when it began.
pub struct Grace {
    sections: Arc<Sections>,
    /// The last section that had begun.
    last: u64,
}

impl Grace {
    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        !self.sections.open().any_until(self.last)
    }

    /// Waits until it is over; an error after ten seconds, which is somebody's forgotten [`Kernel::end`].
    fn wait(&self) -> io::Result<()> {
        let mut open = self.sections.open();
        open.waiting += 1;
        let (mut open, timeout) = self
            .sections
            .closed
            .wait_timeout_while(open, Duration::from_secs(10), |open| open.any_until(self.last))
            .unwrap_or_else(PoisonError::into_inner);
        open.waiting -= 1;
        if timeout.timed_out() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

/// The id of the first CPU's event; the others count on from it.
const FIRST_ID: u64 = 1000;

/// How large rings are unless said otherwise.
const BYTES: usize = 64 << 10;

/// The part of a ring after which a sleeping reader is woken.
const WAKEUP_PART: u64 = 4;

impl Kernel {
    /// A machine with these CPUs, whose rings are 64 KiB long and laid out as [`RingOptions`](crate::RingOptions) does
    /// for a single event.
    pub fn new(cpus: &[u32]) -> Self {
        let sample_type = u64::from(sys::PERF_SAMPLE_RAW | sys::PERF_SAMPLE_TIME);
        Self::with(cpus, BYTES, Layout::new(sample_type, true, 0))
    }

    /// A machine with these CPUs, whose rings are `bytes` long and laid out as given.
    ///
    /// # Panics
    /// If `bytes` is not a power of two or less than 8.
    pub fn with(cpus: &[u32], bytes: usize, layout: Layout) -> Self {
        Self::machine(cpus, bytes, layout, false)
    }

    /// A machine whose rings are written backwards, over what is oldest, for a [`Recorder`].
    ///
    /// # Panics
    /// If `bytes` is not a power of two or less than 8.
    pub fn backward(cpus: &[u32], bytes: usize, layout: Layout) -> Self {
        Self::machine(cpus, bytes, layout, true)
    }

    fn machine(cpus: &[u32], bytes: usize, layout: Layout, backward: bool) -> Self {
        let machine = Machine {
            cpus: RwLock::default(),
            rings: Mutex::default(),
            sections: Arc::default(),
            bytes,
            layout,
            backward,
            // Times are what the tests say, on no clock that could be read.
            clock: Mutex::new(Clock::Perf),
        };
        let kernel = Self { machine: Arc::new(machine) };
        cpus.iter().for_each(|cpu| kernel.plug(*cpu));
        kernel
    }

    /// A CPU comes online that was not there before. A [`Reader`](crate::Reader) opens its ring by itself; a
    /// [`Merge`](crate::Merge) does with [`Merge::follow_cpus`](crate::Merge::follow_cpus). Until then, what is written there
    /// waits in the ring, while a real kernel would refuse it.
    ///
    /// A CPU that goes offline needs no call: nobody writes there any more.
    ///
    /// # Panics
    /// If it was there before.
    pub fn plug(&self, cpu: u32) {
        let Machine { cpus, rings, bytes, layout, backward, .. } = &*self.machine;
        let mut cpus = cpus.write().unwrap_or_else(PoisonError::into_inner);
        assert!(cpus.iter().all(|(other, _)| *other != cpu), "CPU {cpu} is there");
        let id = FIRST_ID + cpus.len() as u64;
        // Without an eventfd the reader looks now and then, as it does anyway.
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).ok();
        let fd = wake.as_ref().and_then(|wake| wake.as_fd().try_clone_to_owned().ok());
        let (half, ring) = Ring::simulated(machine::page_size(), *bytes, fd.map(Arc::new), *backward);
        let shared = Arc::new(Mutex::new(Cpu::new(cpu, id, half, wake, *layout, *backward)));
        let counted = Arc::clone(&shared);
        let losses = Counter::Simulated(Box::new(move || lock(&counted).dropped));
        let lane = Lane::new(ring, Origin::new(cpu, *layout, [(id, 0)].into_iter().collect()), losses);
        rings.lock().unwrap_or_else(PoisonError::into_inner).waiting.push((lane, Arc::clone(&shared)));
        cpus.push((cpu, shared));
    }

    /// Says which clock the times are of that writers are given: none unless set. To be called before the rings are taken.
    pub fn set_clock(&self, clock: Clock) {
        *self.machine.clock.lock().unwrap_or_else(PoisonError::into_inner) = clock;
    }

    /// The consumer's end: all rings.
    ///
    /// # Panics
    /// If they were taken before; a ring has one consumer.
    pub fn rings(&self) -> Rings {
        assert!(!self.machine.backward, "rings written backwards are a recorder's");
        self.take_rings()
    }

    pub(crate) fn take_rings(&self) -> Rings {
        let clock = *self.machine.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rings = Rings::empty(clock);
        let mut consumer = self.machine.rings.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!std::mem::replace(&mut consumer.taken, true), "the rings were taken already");
        for (lane, cpu) in consumer.waiting.drain(..) {
            let opened = rings.open_lane(lane, gate(cpu));
            debug_assert!(opened.is_ok(), "a simulated gate does not fail");
        }
        drop(consumer);
        let machine = Arc::clone(&self.machine);
        let arrivals = move |control: &Control, _: &mut [Lane], new: &mut Vec<Lane>| {
            for (lane, cpu) in machine.rings.lock().unwrap_or_else(PoisonError::into_inner).waiting.drain(..) {
                control.outlets().add_gate(lane.origin.cpu, gate(cpu))?;
                new.push(lane);
            }
            Ok(())
        };
        rings.set_arrivals(Box::new(arrivals), None, None);
        rings
    }

    /// The consumer's end of rings written backwards.
    ///
    /// # Errors
    /// [`Error::System`] if the recorder's thread cannot be started.
    ///
    /// # Panics
    /// If it was taken before, or the rings are not written backwards.
    pub fn recorder(&self, key: Key) -> Result<Recorder, Error> {
        self.recorder_with(key, &self.fence())
    }

    /// The same with another fence. Whatever it proves, nobody writes into these rings while they are stopped.
    ///
    /// # Errors
    /// [`Error::NoFence`]; [`Error::System`] if the recorder's thread cannot be started.
    ///
    /// # Panics
    /// As [`Kernel::recorder`].
    pub fn recorder_with(&self, key: Key, fence: &Fence) -> Result<Recorder, Error> {
        assert!(self.machine.backward, "a recorder's rings are written backwards");
        Recorder::new(self.take_rings(), key, fence)
    }

    /// A grace period that begins now.
    pub fn grace(&self) -> Grace {
        let sections = Arc::clone(&self.machine.sections);
        let last = sections.open().last;
        Grace { sections, last }
    }

    /// The fence rule with this machine's own grace periods.
    pub fn hold(&self) -> Hold {
        Hold::Fence(self.fence())
    }

    /// A fence that waits for this machine's grace periods. It fails when one takes ten seconds: a writer that was begun
    /// and never ended.
    pub fn fence(&self) -> Fence {
        let kernel = self.clone();
        Fence::custom(move || kernel.grace().wait())
    }

    /// A writer on a CPU enters its section and reads the clock, interrupting whoever is writing there.
    pub fn begin(&self, cpu: u32, time: u64) {
        let cpu = self.cpu(cpu);
        let mut cpu = lock(&cpu);
        let section = self.machine.sections.enter();
        cpu.writers.push(Writer { section, time, nested: false });
    }

    /// The innermost writer of a CPU outputs a sample with this raw data. False if it was dropped: the ring is full, or
    /// paused.
    ///
    /// More than 65,516 bytes do what they do in the kernel: the header's 16-bit size is cut short, and the
    /// rest overwrites what lies behind.
    ///
    /// # Panics
    /// If nobody has begun to write there, or if the rings' layout has fields that vary in length besides raw data.
    pub fn write(&self, cpu: u32, payload: &[u8]) -> bool {
        lock(&self.cpu(cpu)).output(&Output::Sample(payload))
    }

    /// The innermost writer of a CPU outputs a record of another kind: `body` follows the header, and what
    /// `sample_id_all` appends follows the body. False if it was dropped.
    ///
    /// # Panics
    /// If nobody has begun to write there, if the body is no multiple of 8 bytes or too long for a record, or if the
    /// kind is SAMPLE.
    pub fn write_other(&self, cpu: u32, kind: Kind, misc: u16, body: &[u8]) -> bool {
        assert!(
            kind != Kind::SAMPLE && body.len().is_multiple_of(8) && body.len() < 65_000,
            "{kind:?} of {} bytes",
            body.len()
        );
        lock(&self.cpu(cpu)).output(&Output::Other { kind, misc, body })
    }

    /// The innermost writer of a CPU is done. What it wrote is visible if it interrupted nobody that is writing.
    ///
    /// # Panics
    /// If nobody has begun to write there.
    pub fn end(&self, cpu: u32) {
        let section = lock(&self.cpu(cpu)).end();
        self.machine.sections.leave(section);
    }

    /// A whole sample, with nobody in between: [`Kernel::begin`], [`Kernel::write`], [`Kernel::end`].
    pub fn emit(&self, cpu: u32, time: u64, payload: &[u8]) -> bool {
        self.begin(cpu, time);
        let written = self.write(cpu, payload);
        self.end(cpu);
        written
    }

    /// Stops or restarts a ring's output, as `PERF_EVENT_IOC_PAUSE_OUTPUT` does: what is written meanwhile is dropped, and
    /// counted.
    pub fn pause(&self, cpu: u32, paused: bool) {
        lock(&self.cpu(cpu)).paused[0] = paused;
    }

    /// So many records are dropped at this moment, as if the ring were full: the next that fits has a LOST record before it.
    pub fn lose(&self, cpu: u32, count: u64) {
        let cpu = self.cpu(cpu);
        let mut cpu = lock(&cpu);
        cpu.lost += count;
        cpu.dropped += count;
    }

    /// How many records were dropped since the begin, whether a LOST record tells of them yet or not
    /// (`PERF_FORMAT_LOST`).
    pub fn dropped(&self, cpu: u32) -> u64 {
        lock(&self.cpu(cpu)).dropped
    }

    /// `data_head` of a CPU's ring.
    pub fn head(&self, cpu: u32) -> u64 {
        lock(&self.cpu(cpu)).half.head()
    }

    /// `data_tail` of a CPU's ring.
    pub fn tail(&self, cpu: u32) -> u64 {
        lock(&self.cpu(cpu)).half.tail()
    }

    /// Overwrites bytes of a ring from a position on, as no lawful kernel does. Takes effect at the consumer's next look,
    /// when it cannot be looking at them.
    pub fn scribble(&self, cpu: u32, position: u64, bytes: &[u8]) {
        lock(&self.cpu(cpu)).half.scribble(position, bytes);
    }

    /// Sets `data_head` to anything, as no lawful kernel does. Takes effect at the consumer's next look. The next record
    /// is written there.
    pub fn force_head(&self, cpu: u32, head: u64) {
        let cpu = self.cpu(cpu);
        let mut cpu = lock(&cpu);
        cpu.half.force_head(head);
        cpu.reserved = head;
    }

    fn cpu(&self, cpu: u32) -> SharedCpu {
        let cpus = self.machine.cpus.read().unwrap_or_else(PoisonError::into_inner);
        let found = cpus.iter().find(|(id, _)| *id == cpu);
        let (_, found) = found.unwrap_or_else(|| panic!("no CPU {cpu} in this machine"));
        Arc::clone(found)
    }
}

fn lock(cpu: &SharedCpu) -> MutexGuard<'_, Cpu> {
    cpu.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the consumer stops a ring's output.
fn gate(cpu: SharedCpu) -> Gate {
    Gate::Simulated(Box::new(move |how, paused| match how {
        Pause::Output => lock(&cpu).paused[1] = paused,
        Pause::Slots => lock(&cpu).detached = paused,
    }))
}

/// What a writer outputs.
enum Output<'a> {
    Sample(&'a [u8]),
    Other { kind: Kind, misc: u16, body: &'a [u8] },
}

/// `PERF_RECORD_MISC_KERNEL`, which BPF output carries.
const MISC_KERNEL: u16 = sys::PERF_RECORD_MISC_KERNEL as u16;

impl Cpu {
    fn new(number: u32, id: u64, half: KernelHalf, wake: Option<EventFd>, layout: Layout, backward: bool) -> Self {
        Self {
            number,
            layout,
            half,
            reserved: 0,
            nest: 0,
            lost: 0,
            dropped: 0,
            woken: 0,
            paused: [false; 2],
            detached: false,
            id,
            wake,
            backward,
            writers: Vec::new(),
        }
    }

    /// `perf_output_begin`, the copying, and for a writer's second record the `perf_output_end` of its first.
    fn output(&mut self, output: &Output<'_>) -> bool {
        let writer = self.writers.last_mut().expect("a writer that has begun");
        let time = writer.time;
        if std::mem::take(&mut writer.nested) {
            self.put_handle();
        }
        if self.detached {
            return false;
        }
        if self.paused.contains(&true) {
            self.drop_one();
            return false;
        }
        let record = self.record(output, time);
        // What the header says is what is reserved, cut short or not.
        let size = u64::from(u16::from_ne_bytes([record[6], record[7]]));
        let lost = if self.lost > 0 { self.lost_record(time) } else { Vec::new() };
        let needed = size + lost.len() as u64;
        if !self.backward && !self.has_space(needed) {
            self.drop_one();
            return false;
        }
        let begin = if self.backward { self.reserved.wrapping_sub(needed) } else { self.reserved };
        if !lost.is_empty() {
            self.lost = 0;
            self.half.write(begin, &lost);
        }
        self.store(begin.wrapping_add(lost.len() as u64), &record, size);
        self.reserved = if self.backward { begin } else { begin.wrapping_add(needed) };
        self.nest += 1;
        if let Some(writer) = self.writers.last_mut() {
            writer.nested = true;
        }
        true
    }

    /// `perf_output_end`, and the end of the section.
    fn end(&mut self) -> u64 {
        let writer = self.writers.pop().expect("a writer that has begun");
        if writer.nested {
            self.put_handle();
        }
        writer.section
    }

    /// `perf_output_put_handle`: the head is published by the outermost writer alone.
    fn put_handle(&mut self) {
        self.nest -= 1;
        if self.nest > 0 {
            return;
        }
        self.half.publish(self.reserved);
        if self.backward {
            return;
        }
        let watermark = self.half.size() / WAKEUP_PART;
        if self.reserved.wrapping_sub(self.woken) > watermark {
            self.woken = self.woken.wrapping_add(watermark);
            if let Some(wake) = &self.wake {
                // Full, which takes 2^64 of them, is as readable as can be.
                let _ = wake.write(1);
            }
        }
    }

    fn drop_one(&mut self) {
        self.lost += 1;
        self.dropped += 1;
    }

    /// `ring_buffer_has_space`: CIRC_SPACE(head, tail, size) >= needed, which keeps one byte free.
    fn has_space(&self, needed: u64) -> bool {
        let mask = self.half.size() - 1;
        self.half.tail().wrapping_sub(self.reserved.wrapping_add(1)) & mask >= needed
    }

    /// Writes a record whose reservation is `size` bytes. Padding is not written: what was there before stays.
    fn store(&mut self, position: u64, record: &[u8], size: u64) {
        if record.len() as u64 <= size {
            self.half.write(position, record);
        } else {
            self.half.scribble(position, record);
        }
    }

    /// The bytes of a record, without the padding behind them, which the header counts.
    fn record(&self, output: &Output<'_>, time: u64) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        let (kind, misc) = match output {
            Output::Sample(payload) => {
                let varying = u64::from(sys::PERF_SAMPLE_READ | sys::PERF_SAMPLE_CALLCHAIN);
                assert_eq!(self.layout.sample_type() & varying, 0, "READ and CALLCHAIN are not simulated");
                self.fields(&mut bytes, &SAMPLE_ORDER, time);
                if self.layout.sample_type() & u64::from(sys::PERF_SAMPLE_RAW) == 0 {
                    (Kind::SAMPLE, MISC_KERNEL)
                } else {
                    // perf_sample_save_raw_data: the data and its 4-byte length are rounded up to a multiple of 8.
                    let raw_size = (payload.len() + 4).next_multiple_of(8) - 4;
                    bytes.extend((raw_size as u32).to_ne_bytes());
                    bytes.extend_from_slice(payload);
                    (Kind::SAMPLE, MISC_KERNEL)
                }
            }
            Output::Other { kind, misc, body } => {
                bytes.extend_from_slice(body);
                self.trailer(&mut bytes, time);
                (*kind, *misc)
            }
        };
        let size = bytes.len().next_multiple_of(8);
        Self::header(&mut bytes, kind, misc, size);
        bytes
    }

    /// `struct { header; u64 id; u64 lost; struct sample_id; }`. Its time is that of the record behind it.
    fn lost_record(&self, time: u64) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        bytes.extend(self.id.to_ne_bytes());
        bytes.extend(self.lost.to_ne_bytes());
        self.trailer(&mut bytes, time);
        let size = bytes.len();
        Self::header(&mut bytes, Kind::LOST, 0, size);
        bytes
    }

    fn header(bytes: &mut [u8], kind: Kind, misc: u16, size: usize) {
        bytes[..4].copy_from_slice(&kind.0.to_ne_bytes());
        bytes[4..6].copy_from_slice(&misc.to_ne_bytes());
        // A u16, cut short as in the kernel.
        bytes[6..8].copy_from_slice(&(size as u16).to_ne_bytes());
    }

    fn trailer(&self, bytes: &mut Vec<u8>, time: u64) {
        if self.layout.sample_id_all() {
            self.fields(bytes, &TRAILER_ORDER, time);
        }
    }

    fn fields(&self, bytes: &mut Vec<u8>, order: &[u64], time: u64) {
        for field in order.iter().filter(|field| self.layout.sample_type() & **field != 0) {
            let value = match *field {
                TIME => time,
                ID | STREAM_ID | IDENTIFIER => self.id,
                CPU => pair(self.number, 0),
                TID => pair(std::process::id(), std::process::id()),
                _ => 0,
            };
            bytes.extend(value.to_ne_bytes());
        }
    }
}

/// Two u32 in memory order.
fn pair(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = self.machine.cpus.read().unwrap_or_else(PoisonError::into_inner);
        let cpus: Vec<_> = cpus.iter().map(|(cpu, _)| *cpu).collect();
        f.debug_struct("Kernel").field("cpus", &cpus).finish_non_exhaustive()
    }
}

impl fmt::Debug for Grace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grace").field("is_over", &self.is_over()).finish()
    }
}
