//! Random schedules of writers and reader, run against the simulator and against a very simple model: a list of all
//! written records.

use perfweave::{Certainty, Event, GracePeriods, Hold, Item, Key, Layout, Merge, Order, sim};
use quickcheck::{Arbitrary, Gen};
use std::collections::{BTreeMap, BTreeSet};

/// One step of the kernel or of the reader. CPUs are taken modulo their number.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// A writer draws its key, and interrupts the current writer on that CPU.
    Begin(u8),
    /// The innermost writer outputs its key, its number and this many more bytes.
    Write(u8, u8),
    /// The innermost writer is done.
    End(u8),
    /// All three at once.
    Emit(u8, u8),
    /// This many interrupts one after the other.
    Burst(u8, u8),
    /// Another kind of record, without a payload.
    Other(u8),
    /// The reader refreshes.
    Look,
    /// The reader asks for a fence if it wants one, and ends it if it is over.
    Fence,
    /// The reader takes up to this many events, one by one. It passes every third to `mem::forget` first.
    Yield(u8),
    /// The reader takes a batch and holds all of it.
    Batch,
    /// The reader publishes its tails.
    Publish,
}

impl Step {
    fn from_bytes(kind: u8, cpu: u8, count: u8) -> Self {
        match kind % 21 {
            0..3 => Self::Begin(cpu),
            3..6 => Self::Write(cpu, count % 40),
            6..9 => Self::End(cpu),
            9..12 => Self::Emit(cpu, count % 40),
            12 => Self::Other(cpu),
            13..15 => Self::Look,
            15..17 => Self::Fence,
            17 => Self::Yield(count % 40),
            18 => Self::Batch,
            19 => Self::Burst(cpu, count),
            _ => Self::Publish,
        }
    }
}

/// A machine and what happens on it.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    cpus: Vec<u32>,
    ring: usize,
    /// The bound of copies.
    most_held: usize,
    steps: Vec<Step>,
    /// Whether a writer that draws a number may end without writing it.
    abandons: bool,
}

/// Nothing is copied, a few chunks, as much as there is.
const MOST_HELD: [usize; 3] = [0, 2000, 64 << 20];

/// The steps of a schedule without a part of them: halves first, then ever smaller parts.
pub(crate) fn shorter<T: Clone + 'static>(steps: &[T]) -> impl Iterator<Item = Vec<T>> + use<T> {
    let steps = steps.to_vec();
    [2, 4, 8, 16, 64, 300].into_iter().flat_map(move |part| {
        let steps = steps.clone();
        let (len, cut) = (steps.len(), steps.len().div_ceil(part).max(1));
        (0..len).step_by(cut).map(move |from| [&steps[..from], &steps[(from + cut).min(len)..]].concat())
    })
}

impl Arbitrary for Schedule {
    fn arbitrary(g: &mut Gen) -> Self {
        let cpus = g.choose(&[&[0][..], &[0, 1], &[0, 2, 3], &[1, 5, 6, 64, 300]]).expect("a choice").to_vec();
        let ring = *g.choose(&[256, 512, 4096, 16384]).expect("a choice");
        let steps = (0..usize::arbitrary(g) % 300)
            .map(|_| {
                let kind = u8::arbitrary(g);
                Step::from_bytes(kind, u8::arbitrary(g), u8::arbitrary(g))
            })
            .collect();
        let most_held = *g.choose(&MOST_HELD).expect("a choice");
        Self { cpus, ring, most_held, steps, abandons: true }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let whole = self.clone();
        Box::new(shorter(&self.steps).map(move |steps| Self { steps, ..whole.clone() }))
    }
}

impl Schedule {
    /// Reads a schedule from bytes: two for the machine and the bound, then three for each step.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let (machine, steps) = bytes.split_at(bytes.len().min(2));
        let [cpus, ring] = [0, 1].map(|at| usize::from(machine.get(at).copied().unwrap_or(0)));
        let cpus = [&[0][..], &[0, 1], &[0, 2, 3], &[1, 5, 6, 64, 300]][cpus % 4].to_vec();
        let steps = steps.chunks_exact(3).map(|step| Step::from_bytes(step[0], step[1], step[2])).collect();
        let most_held = MOST_HELD[ring / 4 % 3];
        Self { cpus, ring: [256, 512, 4096, 16384][ring % 4], most_held, steps, abandons: true }
    }

    /// The same writers with a reader that takes nothing before the end.
    pub(crate) fn without_yields(mut self) -> Self {
        self.steps.retain(|step| !matches!(step, Step::Yield(_) | Step::Batch));
        self
    }

    /// The same on rings that never become full, with writers that write every number that they draw.
    pub(crate) fn without_losses(mut self) -> Self {
        self.ring = 1 << 20;
        self.abandons = false;
        self
    }
}

/// Whether two writers may draw the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    Unique,
    Tied,
}

/// A record that is, or was, in a ring.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    /// Its number: how many were drawn before it.
    pub(crate) id: u64,
    pub(crate) time: u64,
    cpu: u32,
    /// Where it begins, without the LOST record before it.
    position: u64,
    /// How many were dropped in its ring since the record before it.
    lost_before: u64,
    yielded: bool,
}

/// An event that came out.
#[derive(Debug, Clone)]
pub(crate) struct Yielded {
    pub(crate) id: u64,
    pub(crate) key: u64,
    pub(crate) certainty: Certainty,
    pub(crate) late_by: u64,
    /// The largest key of the records before it.
    largest_before: u64,
}

/// The outcome of a schedule.
pub(crate) struct Trial {
    pub(crate) written: Vec<Written>,
    /// Numbers whose record the kernel dropped.
    pub(crate) dropped: Vec<u64>,
    /// Numbers that were drawn and never written.
    pub(crate) abandoned: Vec<u64>,
    pub(crate) yielded: Vec<Yielded>,
    /// Numbers declared missing.
    pub(crate) missing: Vec<u64>,
    /// Fences that were needed to get the last events out.
    pub(crate) fences_at_the_end: u32,
    /// The largest key yielded.
    largest: u64,
    /// LOST events as they came: CPU, count, and the next event of the same CPU.
    losses: Vec<(u32, u64, Option<u64>)>,
    /// Dropped in each ring since its last LOST record.
    unreported: BTreeMap<u32, u64>,
    /// Where in `written` a number is.
    places: BTreeMap<u64, usize>,
    /// Where the records of each ring begin that were not yielded.
    unyielded: BTreeMap<u32, BTreeSet<u64>>,
}

/// A writer on a CPU.
struct Writer {
    id: u64,
    time: u64,
    wrote: bool,
}

struct Run<'a> {
    schedule: &'a Schedule,
    times: Times,
    kernel: sim::Kernel,
    merge: Merge,
    grace: Option<Grace>,
    /// Proves the order instead of the machine's grace periods.
    epochs: Option<GracePeriods>,
    writers: BTreeMap<u32, Vec<Writer>>,
    /// How far each ring is reserved.
    reserved: BTreeMap<u32, u64>,
    clock: u64,
    numbers: u64,
    trial: Trial,
}

/// The proof that the reader waits for.
enum Grace {
    Sections(sim::Grace),
    Epochs,
}

const HEADER_AND_TIME: u64 = 16;
const LOST: u64 = 32;

impl Trial {
    pub(crate) fn run(schedule: &Schedule, key: Key, hold: Hold, times: Times) -> Self {
        Self::run_with(schedule, key, hold, times, false)
    }

    /// The same with writers' epochs in place of grace periods.
    pub(crate) fn run_with_epochs(schedule: &Schedule, key: Key, hold: Hold, times: Times) -> Self {
        Self::run_with(schedule, key, hold, times, true)
    }

    fn run_with(schedule: &Schedule, key: Key, hold: Hold, times: Times, epochs: bool) -> Self {
        let layout = Layout::new(4 | 1024, true, 0); // TIME | RAW
        let kernel = sim::Kernel::with(&schedule.cpus, schedule.ring, layout);
        let order = Order::new().key(key).hold(hold).most_held(schedule.most_held);
        let merge = Merge::new(kernel.rings(), order).expect("a merge");
        let epochs = epochs.then(|| {
            perfweave_proofs::Epochs::over(kernel.epochs()).stand_in(kernel.fence()).fence().open().expect("words")
        });
        let per_cpu = || schedule.cpus.iter().map(|cpu| (*cpu, 0)).collect::<BTreeMap<_, _>>();
        let mut run = Run {
            schedule,
            times,
            kernel,
            merge,
            grace: None,
            epochs,
            writers: schedule.cpus.iter().map(|cpu| (*cpu, Vec::new())).collect(),
            reserved: per_cpu(),
            clock: 1000,
            numbers: 0,
            trial: Trial {
                written: Vec::new(),
                dropped: Vec::new(),
                abandoned: Vec::new(),
                yielded: Vec::new(),
                missing: Vec::new(),
                fences_at_the_end: 0,
                largest: 0,
                losses: Vec::new(),
                unreported: per_cpu(),
                places: BTreeMap::new(),
                unyielded: schedule.cpus.iter().map(|cpu| (*cpu, BTreeSet::new())).collect(),
            },
        };
        for step in &schedule.steps {
            run.step(step);
            run.assert_tails();
        }
        run.finish()
    }

    pub(crate) fn yielded_keys(&self) -> Vec<u64> {
        self.yielded.iter().map(|event| event.key).collect()
    }

    /// The numbers that a dense sequence must declare missing: those before the last written that were not.
    pub(crate) fn missing_numbers(&self) -> Vec<u64> {
        let mut missing = [&self.dropped[..], &self.abandoned].concat();
        missing.sort_unstable();
        // After the last written number nothing is missing yet.
        let last = self.written.iter().map(|record| record.id).max();
        missing.retain(|number| Some(*number) < last);
        missing
    }

    pub(crate) fn yielded_ids(&self) -> Vec<u64> {
        self.yielded.iter().map(|event| event.id).collect()
    }

    pub(crate) fn sorted_keys(&self) -> Vec<u64> {
        let mut keys: Vec<u64> = self.written.iter().map(|record| record.time).collect();
        keys.sort_unstable();
        keys
    }

    pub(crate) fn sorted_ids(&self) -> Vec<u64> {
        let mut records: Vec<_> = self.written.iter().map(|r| (r.time, r.cpu, r.position, r.id)).collect();
        records.sort_unstable();
        records.into_iter().map(|(.., id)| id).collect()
    }

    /// Every drop is in one LOST event, right before the record after it in the ring.
    pub(crate) fn assert_losses_in_place(&self) {
        let mut expected: Vec<_> = self.written.iter().filter(|record| record.lost_before > 0).collect();
        let places: BTreeMap<_, _> = self.yielded.iter().enumerate().map(|(at, event)| (event.id, at)).collect();
        expected.sort_by_key(|record| places.get(&record.id));
        let expected: Vec<_> = expected.iter().map(|r| (r.cpu, r.lost_before, Some(r.id))).collect();
        assert_eq!(self.losses, expected);
        self.assert_losses_counted();
    }

    /// Every drop is in one LOST event.
    pub(crate) fn assert_losses_counted(&self) {
        let reported: u64 = self.losses.iter().map(|(_, count, _)| count).sum();
        let unreported: u64 = self.unreported.values().sum();
        assert_eq!(reported + unreported, self.dropped.len() as u64);
    }

    /// An event is late by as much as the largest key before it is larger. Gives how many are.
    pub(crate) fn assert_lateness_is_true(&self) -> usize {
        for event in &self.yielded {
            let late_by = event.largest_before.saturating_sub(event.key);
            assert_eq!(event.late_by, late_by);
            assert_eq!(event.certainty == Certainty::Late, late_by > 0);
        }
        self.yielded.iter().filter(|event| event.late_by > 0).count()
    }
}

impl Run<'_> {
    fn cpu(&self, n: u8) -> u32 {
        self.schedule.cpus[usize::from(n) % self.schedule.cpus.len()]
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Begin(cpu) => self.begin(self.cpu(cpu)),
            Step::Write(cpu, len) => self.write(self.cpu(cpu), len),
            Step::End(cpu) => self.end(self.cpu(cpu)),
            Step::Emit(cpu, len) => {
                let cpu = self.cpu(cpu);
                self.begin(cpu);
                self.write(cpu, len);
                self.end(cpu);
            }
            Step::Burst(cpu, count) => {
                for _ in 0..count {
                    self.step(&Step::Emit(cpu, 0));
                }
            }
            Step::Other(cpu) => self.other(self.cpu(cpu)),
            Step::Look => drop(self.merge.refresh(self.clock)),
            Step::Fence => self.fence(),
            Step::Yield(most) => self.yield_some(most),
            Step::Batch => {
                let events: Vec<Event<'_>> = self.merge.batch().collect();
                for event in events {
                    note(&mut self.trial, event);
                }
            }
            Step::Publish => self.merge.advance_tails(),
        }
    }

    fn begin(&mut self, cpu: u32) {
        self.clock += if self.times == Times::Tied { self.numbers % 3 / 2 } else { 1 + self.numbers % 7 };
        let writers = self.writers.get_mut(&cpu).expect("a CPU");
        // At most as deep as the kernel: task, softirq, hardirq, NMI.
        if writers.len() < 4 {
            self.kernel.begin(cpu, self.clock);
            writers.push(Writer { id: self.numbers, time: self.clock, wrote: false });
            self.numbers += 1;
        }
    }

    fn write(&mut self, cpu: u32, len: u8) {
        let Some(writer) = self.writers.get_mut(&cpu).and_then(|writers| writers.last_mut()) else { return };
        if writer.wrote {
            return;
        }
        writer.wrote = true;
        let mut payload = Vec::new();
        payload.extend(writer.id.to_ne_bytes());
        payload.extend(writer.time.to_ne_bytes());
        payload.extend(std::iter::repeat_n(writer.id as u8, usize::from(len)));
        let size = HEADER_AND_TIME + (4 + payload.len() as u64).next_multiple_of(8);
        let (id, time) = (writer.id, writer.time);
        let fits = self.reserve(cpu, size, Some((id, time)));
        assert_eq!(self.kernel.write(cpu, &payload), fits, "the simulator and the model disagree about a full ring");
        if !fits {
            self.trial.dropped.push(id);
        }
    }

    /// The model of a full ring. Gives whether the record fits.
    fn reserve(&mut self, cpu: u32, size: u64, sample: Option<(u64, u64)>) -> bool {
        let reserved = self.reserved.get_mut(&cpu).expect("a CPU");
        let unreported = self.trial.unreported.get_mut(&cpu).expect("a CPU");
        let lost = if *unreported > 0 { LOST } else { 0 };
        let used = *reserved - self.kernel.tail(cpu);
        if used + lost + size >= self.schedule.ring as u64 {
            *unreported += 1;
            return false;
        }
        if let Some((id, time)) = sample {
            let position = *reserved + lost;
            let lost_before = *unreported;
            self.trial.places.insert(id, self.trial.written.len());
            self.trial.unyielded.get_mut(&cpu).expect("a CPU").insert(position);
            self.trial.written.push(Written { id, time, cpu, position, lost_before, yielded: false });
        }
        *unreported = 0;
        *reserved += lost + size;
        true
    }

    fn other(&mut self, cpu: u32) {
        // Only where nothing was dropped: the model keeps losses with samples.
        let idle = self.writers[&cpu].is_empty() && self.trial.unreported[&cpu] == 0;
        let room = self.reserved[&cpu] - self.kernel.tail(cpu) + 24 < self.schedule.ring as u64;
        if idle && room && self.clock > 1000 {
            self.kernel.begin(cpu, self.clock);
            assert!(self.kernel.write_other(cpu, 77, 5, &[3; 8]));
            self.kernel.end(cpu);
            *self.reserved.get_mut(&cpu).expect("a CPU") += 24;
        }
    }

    fn end(&mut self, cpu: u32) {
        if !self.schedule.abandons {
            self.write(cpu, 0);
        }
        if let Some(writer) = self.writers.get_mut(&cpu).and_then(Vec::pop) {
            if !writer.wrote {
                self.trial.abandoned.push(writer.id);
            }
            self.kernel.end(cpu);
        }
    }

    fn fence(&mut self) {
        if self.grace.is_some() {
            if self.is_over() {
                self.grace = None;
                self.merge.end_fence();
            }
        } else if self.merge.begin_fence() {
            self.begin_grace();
        }
    }

    fn begin_grace(&mut self) {
        self.grace = Some(match &mut self.epochs {
            None => Grace::Sections(self.kernel.grace()),
            Some(epochs) => {
                assert!(epochs.begin());
                Grace::Epochs
            }
        });
    }

    fn is_over(&mut self) -> bool {
        match (&self.grace, &mut self.epochs) {
            (Some(Grace::Sections(grace)), _) => grace.is_over(),
            (Some(Grace::Epochs), Some(epochs)) => epochs.poll().is_some_and(|ended| ended.is_ok()),
            _ => false,
        }
    }

    fn yield_some(&mut self, most: u8) {
        for n in 0..most {
            if n % 3 == 2 {
                // `mem::forget` does not consume it: the next event is the same.
                std::mem::forget(self.merge.next());
            }
            let Some(event) = self.merge.next() else { break };
            let noted = self.trial.yielded.len();
            note(&mut self.trial, event.event());
            // Its bytes are still borrowed here.
            if self.schedule.most_held == 0 {
                assert_tails(&self.kernel, &self.trial, self.trial.yielded.get(noted));
            }
        }
    }

    /// No tail has passed a record that was not yielded, unless it was copied, and there are no more copies than there
    /// may be.
    fn assert_tails(&self) {
        if self.schedule.most_held == 0 {
            assert_tails(&self.kernel, &self.trial, None);
        }
        let status = self.merge.status();
        assert!(status.most_memory <= self.schedule.most_held, "{status:?}");
    }

    fn finish(mut self) -> Trial {
        for cpu in self.schedule.cpus.clone() {
            while !self.writers[&cpu].is_empty() {
                self.end(cpu);
            }
        }
        self.merge.refresh(self.clock);
        self.yield_some(u8::MAX);
        for _ in 0..100 {
            self.merge.refresh(u64::MAX);
            while let Some(event) = self.merge.batch().next() {
                note(&mut self.trial, event);
            }
            if self.merge.held() == 0 {
                break;
            }
            if self.grace.is_some() {
                assert!(self.is_over(), "no program is inside");
                self.merge.end_fence();
                self.grace = None;
            } else if self.merge.begin_fence() {
                self.trial.fences_at_the_end += 1;
                self.begin_grace();
            }
        }
        assert_eq!(self.merge.held(), 0, "everything comes out in the end");
        self.merge.advance_tails();
        for cpu in &self.schedule.cpus {
            assert_eq!(self.kernel.tail(*cpu), self.kernel.head(*cpu), "everything is given back in the end");
        }
        assert_eq!(self.merge.status().total().damaged, 0);
        self.trial
    }
}

fn assert_tails(kernel: &sim::Kernel, trial: &Trial, borrowed: Option<&Yielded>) {
    for (cpu, positions) in &trial.unyielded {
        if let Some(first) = positions.first() {
            let tail = kernel.tail(*cpu);
            assert!(tail <= *first, "tail {tail} passed {first} on CPU {cpu}, which was not yielded");
        }
    }
    if let Some(event) = borrowed {
        let record = &trial.written[trial.places[&event.id]];
        let tail = kernel.tail(record.cpu);
        assert!(tail <= record.position, "tail {tail} passed {record:?}, which is borrowed");
    }
}

fn note(trial: &mut Trial, event: Event<'_>) {
    match event.item() {
        Item::Record(record) if record.kind() == perf_event_open_sys::bindings::PERF_RECORD_SAMPLE => {
            let payload = record.payload().expect("a payload");
            let id = payload.u64(0).expect("a number");
            let written =
                trial.places.get(&id).map(|at| &mut trial.written[*at]).expect("a number that was never written");
            assert!(!written.yielded, "{id} came twice");
            written.yielded = true;
            trial.unyielded.get_mut(&written.cpu).expect("a CPU").remove(&written.position);
            assert_eq!((written.cpu, Some(written.time)), (record.cpu(), record.time()));
            assert_eq!(payload.u64(8), Some(written.time));
            let fill = payload.skip(16).expect("16 bytes");
            // 0 to 7 bytes of padding, with any content.
            let len = fill.len().saturating_sub(7);
            assert!(fill.iter().take(len).all(|byte| byte == id as u8), "the record's own bytes");
            if let Some(loss) = trial.losses.last_mut()
                && loss.2.is_none()
            {
                loss.2 = Some(id);
            }
            trial.yielded.push(Yielded {
                id,
                key: written.time,
                certainty: event.certainty(),
                late_by: event.late_by(),
                largest_before: trial.largest,
            });
        }
        Item::Record(record) => {
            assert_eq!((record.kind(), record.misc()), (77, 5));
            assert_eq!(record.body().get(0..8).map(|body| body.to_vec()), Some(vec![3; 8]));
        }
        Item::Lost(lost) => trial.losses.push((lost.cpu, lost.count, None)),
        Item::Gap(gap) => trial.missing.extend(gap.first..=gap.last),
        other => panic!("{other:?} from a lawful kernel"),
    }
    if event.record().is_some() {
        trial.largest = trial.largest.max(event.key().unwrap_or(0));
    }
}
