//! A simulated machine: its CPUs, and calls that make them write.

use crate::error::Error;
use crate::order::hold::Hold;
use crate::proof::fence::Fence;
use crate::record::clock::Clock;
use crate::record::{Layout, Origin};
use crate::recorder::Recorder;
use crate::ring::{EpochWords, Ring};
use crate::rings::control::Control;
use crate::rings::producers::{Gate, Pause};
use crate::rings::untraced::UntracedCpus;
use crate::rings::{Count, CpuRing, Rings};
use crate::sim::Grace;
use crate::sim::cpu::{Cpu, Output, Writer};
use crate::sim::sections::Sections;
use crate::sys::machine;
use nix::sys::eventfd::{EfdFlags, EventFd};
use perf_event_open_sys::bindings as sys;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The CPUs of a simulated machine, and their rings. A clone is another handle to the same machine.
#[derive(Clone)]
pub struct Kernel {
    machine: Arc<Machine>,
}

struct Machine {
    cpus: RwLock<Vec<(u32, SharedCpu)>>,
    rings: Mutex<Consumer>,
    sections: Arc<Sections>,
    /// The epoch words of the writers, for CPUs with low numbers.
    epochs: Arc<EpochWords>,
    /// The length of each ring in bytes, and its layout.
    bytes: usize,
    layout: Layout,
    backward: bool,
    /// The clock of the times.
    clock: Mutex<Clock>,
}

type SharedCpu = Arc<Mutex<Cpu>>;

/// The consumers' halves.
#[derive(Default)]
struct Consumer {
    /// Whether the rings were taken. Rings of CPUs that came later are picked up one by one.
    taken: bool,
    waiting: Vec<(CpuRing, SharedCpu)>,
}

/// The id of the first CPU's event. The ids of the others follow.
const FIRST_ID: u64 = 1000;

/// CPUs with lower numbers have an epoch word.
const WORDS: u32 = 1024;

/// The default length of a ring.
const BYTES: usize = 64 << 10;

impl Kernel {
    /// A machine with these CPUs. Its rings are 64 KiB long and have the layout that
    /// [`RingOptions`](crate::RingOptions) uses for a single event.
    pub fn new(cpus: &[u32]) -> Self {
        let sample_type = u64::from(sys::PERF_SAMPLE_RAW | sys::PERF_SAMPLE_TIME);
        Self::with(cpus, BYTES, Layout::new(sample_type, true, 0))
    }

    /// A machine with these CPUs. Its rings are `bytes` long and have this layout.
    ///
    /// # Panics
    /// If `bytes` is not a power of two or less than 8.
    pub fn with(cpus: &[u32], bytes: usize, layout: Layout) -> Self {
        Self::machine(cpus, bytes, layout, false)
    }

    /// A machine whose rings are written backwards, over the oldest records, for a [`Recorder`].
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
            epochs: Arc::new(EpochWords::simulated(WORDS)),
            bytes,
            layout,
            backward,
            // Tests set the times, on no clock that can be read.
            clock: Mutex::new(Clock::Perf),
        };
        let kernel = Self { machine: Arc::new(machine) };
        cpus.iter().for_each(|cpu| kernel.plug(*cpu));
        kernel
    }

    /// Brings a new CPU online. A [`Reader`](crate::Reader) opens its ring by itself; a [`Merge`](crate::Merge) opens
    /// it with [`Merge::follow_cpus`](crate::Merge::follow_cpus). Until then, records written there wait in the ring. A
    /// real kernel would refuse them.
    ///
    /// A CPU that goes offline needs no call: no test writes there any more.
    ///
    /// # Panics
    /// If the CPU was there before.
    pub fn plug(&self, cpu: u32) {
        let Machine { cpus, rings, bytes, layout, backward, .. } = &*self.machine;
        let mut cpus = cpus.write().unwrap_or_else(PoisonError::into_inner);
        assert!(cpus.iter().all(|(other, _)| *other != cpu), "CPU {cpu} is there");
        let id = FIRST_ID + cpus.len() as u64;
        // Without an eventfd the reader refreshes at its own ticks.
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).ok();
        let fd = wake.as_ref().and_then(|wake| wake.as_fd().try_clone_to_owned().ok());
        let (half, ring) = Ring::simulated(machine::page_size(), *bytes, fd.map(Arc::new), *backward);
        let shared = Arc::new(Mutex::new(Cpu::new(cpu, id, half, wake, *layout, *backward)));
        let counted = Arc::clone(&shared);
        let count: Count = Box::new(move || Some(lock(&counted).dropped));
        let cpu_ring = CpuRing::new(ring, Origin::new(cpu, *layout, [(id, 0)].into_iter().collect()), Some(count));
        rings.lock().unwrap_or_else(PoisonError::into_inner).waiting.push((cpu_ring, Arc::clone(&shared)));
        cpus.push((cpu, shared));
    }

    /// Sets the clock of the times given to writers. There is none unless set. Call it before the rings are taken.
    pub fn set_clock(&self, clock: Clock) {
        *self.machine.clock.lock().unwrap_or_else(PoisonError::into_inner) = clock;
    }

    /// All rings: the consumer's half.
    ///
    /// # Panics
    /// If the rings were taken before; a ring has one consumer.
    pub fn rings(&self) -> Rings {
        assert!(!self.machine.backward, "rings written backwards are a recorder's");
        self.take_rings()
    }

    pub(crate) fn take_rings(&self) -> Rings {
        let clock = *self.machine.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rings = Rings::empty(clock);
        let mut consumer = self.machine.rings.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!std::mem::replace(&mut consumer.taken, true), "the rings were taken already");
        for (cpu_ring, cpu) in consumer.waiting.drain(..) {
            let opened = rings.add_ring(cpu_ring, gate(cpu));
            debug_assert!(opened.is_ok(), "a simulated gate does not fail");
        }
        drop(consumer);
        let machine = Arc::clone(&self.machine);
        let arrivals = move |control: &Control, _: &mut [CpuRing], new: &mut Vec<CpuRing>, _: &mut UntracedCpus| {
            for (cpu_ring, cpu) in machine.rings.lock().unwrap_or_else(PoisonError::into_inner).waiting.drain(..) {
                control.producers().add(gate(cpu), Vec::new())?;
                new.push(cpu_ring);
            }
            Ok(())
        };
        rings.arrivals = Some(Box::new(arrivals));
        rings
    }

    /// A recorder of these rings, which are written backwards: the consumer's half.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the recorder's thread cannot be started.
    ///
    /// # Panics
    /// If the rings were taken before, or are not written backwards.
    pub fn recorder(&self) -> Result<Recorder, Error> {
        self.recorder_with(&self.fence())
    }

    /// [`Kernel::recorder`] with another fence. Whatever the fence proves, no writer writes into these rings while they
    /// are stopped.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported); [`ErrorKind::System`](crate::ErrorKind::System) if
    /// the recorder's thread cannot be started.
    ///
    /// # Panics
    /// As [`Kernel::recorder`].
    pub fn recorder_with(&self, fence: &Fence) -> Result<Recorder, Error> {
        assert!(self.machine.backward, "a recorder's rings are written backwards");
        Recorder::new(self.take_rings(), fence)
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

    /// A fence that waits for this machine's grace periods. It fails when one takes ten seconds, because a test began a
    /// writer and never ended it.
    pub fn fence(&self) -> Fence {
        let kernel = self.clone();
        Fence::by(move || kernel.grace().wait())
    }

    /// The words in which this machine's writers say that they are inside, from [`Kernel::begin`] to [`Kernel::end`].
    /// For `Epochs::over` of the package perfweave-proofs.
    pub fn epochs(&self) -> Arc<EpochWords> {
        Arc::clone(&self.machine.epochs)
    }

    /// Writes any value into a CPU's epoch word, as a faulty program can.
    ///
    /// # Panics
    /// If the CPU's number is 1024 or more: such a CPU has no word.
    pub fn set_epoch(&self, cpu: u32, word: u64) {
        self.machine.epochs.set(cpu, word);
    }

    /// Starts a writer on a CPU: it enters its section and reads the clock. It interrupts a writer that is already
    /// there.
    pub fn begin(&self, cpu: u32, time: u64) {
        let Machine { epochs, sections, .. } = &*self.machine;
        let shared = self.cpu(cpu);
        let mut shared = lock(&shared);
        let section = sections.enter();
        if cpu < epochs.len() {
            epochs.enter(cpu);
        }
        shared.writers.push(Writer { section, time, nested: false });
    }

    /// Lets a thread of a process run on a CPU. What is written there from now on has its numbers. Until then it is
    /// this process.
    ///
    /// ```
    /// # use perfweave::{Hold, Layout, Merge, Order, sim};
    /// // TID, TIME and CALLCHAIN of `sample_type`.
    /// let kernel = sim::Kernel::with(&[0], 4096, Layout::new(1 << 1 | 1 << 2 | 1 << 5, true, 0));
    /// # let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None))?;
    /// kernel.run(0, 7, 8);
    /// kernel.emit(0, 100, &[2u64, 0xa, 0xb].map(u64::to_ne_bytes).concat());
    /// # merge.refresh(0);
    /// # let mut events = merge.batch();
    /// # let event = events.next().unwrap();
    /// # let record = event.record().unwrap();
    /// assert_eq!(record.pid_tid(), Some((7, 8)));
    /// assert!(record.callchain().unwrap().eq([0xa, 0xb]));
    /// # Ok::<(), perfweave::Error>(())
    /// ```
    pub fn run(&self, cpu: u32, pid: u32, tid: u32) {
        lock(&self.cpu(cpu)).thread = [pid, tid];
    }

    /// The innermost writer of a CPU outputs a sample with this raw data; or, where samples have a call chain and no
    /// raw data, with these bytes of it: the count, and the addresses and markers. False if the sample was dropped
    /// because the ring is full or paused.
    ///
    /// More bytes than [`Layout::largest_output`] have the same effect as in the kernel: the header's 16-bit size is cut
    /// short, and the rest overwrites the bytes after it.
    ///
    /// # Panics
    /// If no writer has begun there, or if samples have `PERF_SAMPLE_READ`, or a call chain and raw data.
    pub fn write(&self, cpu: u32, payload: &[u8]) -> bool {
        lock(&self.cpu(cpu)).output(&Output::Sample(payload))
    }

    /// The innermost writer of a CPU outputs a record of another kind. `body` follows the header, and the fields of
    /// `sample_id_all` follow the body. False if the record was dropped.
    ///
    /// # Panics
    /// If no writer has begun there, if the body is no multiple of 8 bytes or too long for a record, or if the kind is
    /// SAMPLE.
    pub fn write_other(&self, cpu: u32, kind: u32, misc: u16, body: &[u8]) -> bool {
        assert!(
            kind != sys::PERF_RECORD_SAMPLE && body.len().is_multiple_of(8) && body.len() < 65_000,
            "{kind:?} of {} bytes",
            body.len()
        );
        lock(&self.cpu(cpu)).output(&Output::Other { kind, misc, body })
    }

    /// Ends the innermost writer of a CPU. Its records become visible, unless it interrupted a writer that is still
    /// writing.
    ///
    /// # Panics
    /// If no writer has begun there.
    pub fn end(&self, cpu: u32) {
        let Machine { epochs, sections, .. } = &*self.machine;
        let section = lock(&self.cpu(cpu)).end();
        if cpu < epochs.len() {
            epochs.leave(cpu);
        }
        sections.leave(section);
    }

    /// Writes a whole sample, uninterrupted: [`Kernel::begin`], [`Kernel::write`], [`Kernel::end`].
    pub fn emit(&self, cpu: u32, time: u64, payload: &[u8]) -> bool {
        self.begin(cpu, time);
        let written = self.write(cpu, payload);
        self.end(cpu);
        written
    }

    /// Stops or restarts a ring's output, as `PERF_EVENT_IOC_PAUSE_OUTPUT` does. Records written meanwhile are dropped,
    /// and counted.
    pub fn pause(&self, cpu: u32, paused: bool) {
        lock(&self.cpu(cpu)).paused[0] = paused;
    }

    /// Drops `count` records now, as if the ring were full. The next record that fits has a LOST record before it.
    pub fn lose(&self, cpu: u32, count: u64) {
        let cpu = self.cpu(cpu);
        let mut cpu = lock(&cpu);
        cpu.lost += count;
        cpu.dropped += count;
    }

    /// How many records were dropped since the start, including those that no LOST record reports yet
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

    /// Overwrites bytes of a ring from a position on, as no lawful kernel does. Takes effect at the consumer's next
    /// refresh, when it cannot be reading those bytes.
    pub fn scribble(&self, cpu: u32, position: u64, bytes: &[u8]) {
        lock(&self.cpu(cpu)).half.scribble(position, bytes);
    }

    /// Sets `data_head` to any value, as no lawful kernel does. Takes effect at the consumer's next refresh. The next
    /// record is written there.
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

/// The gate with which the consumer stops a ring's output.
fn gate(cpu: SharedCpu) -> Gate {
    Box::new(move |how, paused| {
        match how {
            Pause::Output => lock(&cpu).paused[1] = paused,
            Pause::Slots => lock(&cpu).detached = paused,
        }
        Ok(())
    })
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = self.machine.cpus.read().unwrap_or_else(PoisonError::into_inner);
        let cpus: Vec<_> = cpus.iter().map(|(cpu, _)| *cpu).collect();
        f.debug_struct("Kernel").field("cpus", &cpus).finish_non_exhaustive()
    }
}
