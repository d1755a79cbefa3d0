//! Property: for any schedule of writes, drops, pauses and bounds of copies, the ledger balances exactly,
//! each missing number is reported once, and no proven gap names a number that ever appears.

use crate::{schedule, small};
use perfweave::{Certainty, Event, Hold, Item, Key, Merge, Order, Pause, sim};
use quickcheck::{Arbitrary, Gen, QuickCheck};
use std::collections::{BTreeMap, BTreeSet};

/// One step. CPUs are taken modulo their number.
#[derive(Debug, Clone)]
enum Step {
    Begin(u8),
    Write(u8, u8),
    End(u8),
    Emit(u8, u8),
    Burst(u8, u8),
    Pause(bool),
    Resume,
    Look,
    Fence,
    Yield(u8),
    Batch,
    ReadLosses,
    Forget,
}

#[derive(Debug, Clone)]
struct Schedule {
    cpus: Vec<u32>,
    ring: usize,
    /// How many numbers before the end of its range a counter begins.
    before_end: u8,
    /// The bound of copies.
    most_held: usize,
    steps: Vec<Step>,
}

impl Arbitrary for Schedule {
    fn arbitrary(g: &mut Gen) -> Self {
        let cpus = g.choose(&[&[0][..], &[0, 1], &[0, 2, 3], &[1, 64, 300]]).expect("a choice").to_vec();
        let steps = (0..usize::arbitrary(g) % 300)
            .map(|_| {
                let (kind, cpu, count) = (u8::arbitrary(g), u8::arbitrary(g), u8::arbitrary(g));
                match kind % 32 {
                    0..4 => Step::Begin(cpu),
                    4..8 => Step::Write(cpu, count % 40),
                    8..12 => Step::End(cpu),
                    12..16 => Step::Emit(cpu, count % 40),
                    16 => Step::Burst(cpu, count % 32),
                    17..19 => Step::Pause(count % 2 == 0),
                    19..22 => Step::Resume,
                    22..25 => Step::Look,
                    25..27 => Step::Fence,
                    27 => Step::Yield(count % 40),
                    28..30 => Step::Batch,
                    30 => Step::ReadLosses,
                    _ => Step::Forget,
                }
            })
            .collect();
        Self {
            cpus,
            ring: *g.choose(&[256, 512, 1024, 4096]).expect("a choice"),
            before_end: u8::arbitrary(g) % 40,
            most_held: *g.choose(&[0, 100, 700, 3000, 1 << 20]).expect("a choice"),
            steps,
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let whole = self.clone();
        Box::new(schedule::shorter(&self.steps).map(move |steps| Self { steps, ..whole.clone() }))
    }
}

/// The fate of a number that was drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Its writer is not done.
    Drawn,
    Written,
    /// The kernel counted it.
    Dropped,
    /// The kernel did not count it: no slot, or never output.
    Gone,
}

struct Writer {
    id: usize,
    wrote: bool,
}

/// A number that was drawn: of a CPU's own counter, or of the machine's.
#[derive(Debug)]
struct Number {
    cpu: u32,
    /// How many were drawn before it of the same counter.
    index: u64,
    time: u64,
    fate: Fate,
    yielded: bool,
    declared: bool,
}

/// The source of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    ByCpu,
    ByMachine,
}

struct Run<'a> {
    schedule: &'a Schedule,
    counted: Counted,
    /// The first number.
    first: u64,
    kernel: sim::Kernel,
    merge: Merge,
    grace: Option<sim::Grace>,
    writers: BTreeMap<u32, Vec<Writer>>,
    /// Whether slots are empty.
    detached: bool,
    numbers: Vec<Number>,
    /// Ids by counter and index.
    by_counter: BTreeMap<u32, Vec<usize>>,
    clock: u64,
    lost: BTreeMap<u32, u64>,
    largest: u64,
    records: u64,
}

impl<'a> Run<'a> {
    fn new(schedule: &'a Schedule, counted: Counted) -> Self {
        let kernel = small(&schedule.cpus, schedule.ring);
        let first = match counted {
            Counted::ByCpu => u64::MAX - u64::from(schedule.before_end),
            Counted::ByMachine => schedule.before_end.into(),
        };
        let order = Order::new().most_held(schedule.most_held);
        let order = match counted {
            Counted::ByCpu => order.numbers(Key::Payload(16), Some(first)),
            Counted::ByMachine => {
                let hold = Hold::Dense { first: Some(first), fence: perfweave::Fence::Auto };
                order.key(Key::Payload(16)).hold(hold)
            }
        };
        let merge = Merge::new(kernel.rings(), order).expect("a merge");
        Self {
            schedule,
            counted,
            first,
            kernel,
            merge,
            grace: None,
            writers: schedule.cpus.iter().map(|cpu| (*cpu, Vec::new())).collect(),
            detached: false,
            numbers: Vec::new(),
            by_counter: BTreeMap::new(),
            clock: 1000,
            lost: BTreeMap::new(),
            largest: 0,
            records: 0,
        }
    }

    fn counter(&self, cpu: u32) -> u32 {
        if self.counted == Counted::ByCpu { cpu } else { 0 }
    }

    /// A number of a counter as it is written.
    fn wrapped(&self, index: u64) -> u64 {
        self.first.wrapping_add(index)
    }

    fn cpu(&self, n: u8) -> u32 {
        self.schedule.cpus[usize::from(n) % self.schedule.cpus.len()]
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Begin(cpu) => self.begin(self.cpu(cpu)),
            Step::Write(cpu, len) => self.write(self.cpu(cpu), len),
            Step::End(cpu) => self.end(self.cpu(cpu)),
            Step::Emit(cpu, len) => self.emit(self.cpu(cpu), len),
            Step::Burst(cpu, count) => (0..count).for_each(|_| self.emit(self.cpu(cpu), 0)),
            Step::Pause(output) => {
                self.merge.rings().handle().pause(if output { Pause::Output } else { Pause::Slots }).expect("a pause");
                self.detached |= !output;
            }
            Step::Resume => self.resume(),
            Step::Look => drop(self.merge.refresh(0)),
            Step::Fence => {
                if let Some(grace) = &self.grace {
                    if grace.is_over() {
                        self.grace = None;
                        self.merge.end_fence();
                    }
                } else if self.merge.begin_fence() {
                    self.grace = Some(self.kernel.grace());
                }
            }
            Step::Yield(most) => {
                for _ in 0..most {
                    let Some(event) = self.merge.next().map(|event| event.to_owned()) else { break };
                    self.note(&event.as_event());
                }
            }
            Step::Batch => self.batch(),
            Step::ReadLosses => drop(self.merge.read_losses()),
            Step::Forget => std::mem::forget(self.merge.next()),
        }
    }

    /// A batch of all events that may leave, all borrowed at once, in place.
    fn batch(&mut self) {
        let events: Vec<_> = {
            let events: Vec<Event<'_>> = self.merge.batch().collect();
            events.iter().map(Event::to_owned).collect()
        };
        events.iter().for_each(|event| self.note(&event.as_event()));
    }

    fn resume(&mut self) {
        self.merge.rings().handle().resume().expect("no pause");
        self.detached = false;
    }

    fn begin(&mut self, cpu: u32) {
        self.clock += 1 + self.clock % 5;
        let counter = self.counter(cpu);
        // As deep as the kernel goes.
        if self.writers[&cpu].len() >= 4 {
            return;
        }
        let id = self.numbers.len();
        let ids = self.by_counter.entry(counter).or_default();
        let index = ids.len() as u64;
        ids.push(id);
        self.kernel.begin(cpu, self.clock);
        self.numbers.push(Number { cpu, index, time: self.clock, fate: Fate::Drawn, yielded: false, declared: false });
        self.writers.get_mut(&cpu).expect("a CPU").push(Writer { id, wrote: false });
    }

    fn write(&mut self, cpu: u32, len: u8) {
        let Some(writer) = self.writers.get_mut(&cpu).and_then(|writers| writers.last_mut()) else { return };
        if std::mem::replace(&mut writer.wrote, true) {
            return;
        }
        let id = writer.id;
        let number = self.wrapped(self.numbers[id].index);
        let mut payload = [(id as u64).to_ne_bytes(), self.numbers[id].time.to_ne_bytes()].concat();
        payload.extend(number.to_ne_bytes());
        payload.extend(std::iter::repeat_n(id as u8, usize::from(len)));
        let written = self.kernel.write(cpu, &payload);
        self.numbers[id].fate = match (written, self.detached) {
            (true, _) => Fate::Written,
            (false, true) => Fate::Gone,
            (false, false) => Fate::Dropped,
        };
    }

    fn end(&mut self, cpu: u32) {
        if let Some(writer) = self.writers.get_mut(&cpu).and_then(Vec::pop) {
            if !writer.wrote {
                self.numbers[writer.id].fate = Fate::Gone;
            }
            self.kernel.end(cpu);
        }
    }

    fn emit(&mut self, cpu: u32, len: u8) {
        let depth = self.writers[&cpu].len();
        self.begin(cpu);
        if self.writers[&cpu].len() > depth {
            self.write(cpu, len);
            self.end(cpu);
        }
    }

    fn note(&mut self, event: &Event<'_>) {
        match event.item() {
            Item::Record(record) => {
                let payload = record.payload().expect("a payload");
                let id = payload.u64(0).expect("an id") as usize;
                let number = &mut self.numbers[id];
                assert_eq!(
                    (number.fate, number.yielded),
                    (Fate::Written, false),
                    "{id} once, and only if it was written"
                );
                assert_eq!((record.cpu(), record.time()), (number.cpu, Some(number.time)));
                assert_eq!(payload.u64(8), Some(number.time), "its own bytes");
                let fill = payload.skip(24).expect("more");
                let len = fill.len().saturating_sub(7);
                assert!(fill.iter().take(len).all(|byte| byte == id as u8), "its own bytes");
                number.yielded = true;
                assert!(!number.declared, "reported as a gap: {number:?}");
                // The key of its order.
                let key = if self.counted == Counted::ByCpu { number.time } else { number.index + 1 };
                assert!(key > self.largest, "{key} after {}", self.largest);
                assert_eq!((event.certainty(), event.late_by()), (Certainty::Proven, 0));
                self.largest = key;
                self.records += 1;
            }
            Item::Lost(lost) => *self.lost.entry(lost.cpu).or_default() += lost.count,
            Item::Gap(gap) => {
                let counter = gap.cpu.unwrap_or(0);
                assert_eq!(gap.cpu.is_some(), self.counted == Counted::ByCpu);
                // The nearest number that is not reported yet.
                let ids = self.by_counter[&counter].clone();
                let first = (0..ids.len() as u64).rev().find(|index| {
                    let number = &self.numbers[ids[*index as usize]];
                    let fits = index + gap.count <= ids.len() as u64;
                    fits && self.wrapped(*index) == gap.first && !number.declared && !number.yielded
                });
                let first = first.unwrap_or_else(|| {
                    panic!("{gap:?} names a number that was never drawn, or was yielded, or was reported")
                });
                assert_eq!(self.wrapped(first + gap.count - 1), gap.last);
                for index in first..first + gap.count {
                    let number = &mut self.numbers[ids[index as usize]];
                    assert!(!number.yielded && !number.declared, "{gap:?}: {number:?}");
                    number.declared = true;
                    // A fence has ended since it was drawn, so its writer is done.
                    assert_eq!(event.certainty(), Certainty::Proven);
                    assert!(matches!(number.fate, Fate::Dropped | Fate::Gone), "{gap:?}: {number:?}");
                }
            }
            other => panic!("{other:?} from a lawful kernel"),
        }
    }

    /// Fences until all is out.
    fn drain(&mut self) {
        for _ in 0..100 {
            self.merge.refresh(0);
            self.batch();
            if self.merge.held() == 0 && self.grace.is_none() && !self.merge.is_behind() {
                return;
            }
            if self.grace.take().is_some() {
                self.merge.end_fence();
            } else if self.merge.begin_fence() {
                self.grace = Some(self.kernel.grace());
                assert!(self.grace.as_ref().is_some_and(sim::Grace::is_over));
            }
        }
        panic!("everything comes out in the end");
    }

    /// Checks what must hold after every step.
    fn check(&self) {
        let ledger = self.merge.ledger();
        for (account, cpu) in ledger.accounts.iter().zip(&self.schedule.cpus) {
            assert_eq!(account.cpu, Some(*cpu));
            let own = |fate| self.numbers.iter().filter(|number| number.cpu == *cpu && number.fate == fate).count();
            assert_eq!(account.lost, own(Fate::Dropped) as u64);
            let told = self.lost.get(cpu).copied().unwrap_or(0);
            assert_eq!(account.unreported, account.lost - told, "each loss is reported once");
            assert!(account.written() <= (own(Fate::Written) + own(Fate::Dropped)) as u64);
            assert!(account.exact && account.damaged == 0);
            assert!(account.copied == 0 || account.needed > account.size, "{account:?}");
        }
        assert!(ledger.most_memory <= self.schedule.most_held, "{} bytes", ledger.most_memory);
        let total = ledger.total();
        assert!(total.copied == 0 || ledger.most_memory > 0, "{total:?}");
        assert_eq!((total.yielded, total.late, total.anomalies), (self.records, 0, 0));
    }

    fn finish(mut self) {
        for cpu in self.schedule.cpus.clone() {
            while !self.writers[&cpu].is_empty() {
                self.end(cpu);
            }
        }
        self.resume();
        self.drain();
        self.merge.read_losses();
        self.drain();
        assert!(!self.merge.read_losses(), "once");
        for cpu in &self.schedule.cpus {
            assert_eq!(self.lost.get(cpu).copied().unwrap_or(0), self.kernel.dropped(*cpu));
        }
        // A last record on each CPU shows the missing numbers before it.
        for cpu in self.schedule.cpus.clone() {
            let id = self.numbers.len();
            self.emit(cpu, 0);
            assert_eq!(self.numbers[id].fate, Fate::Written);
            self.drain();
        }
        self.check();
        let written = self.numbers.iter().filter(|number| number.fate == Fate::Written).count();
        assert_eq!(self.records, written as u64, "each written record is yielded");
        let ledger = self.merge.ledger();
        let total = ledger.total();
        assert_eq!((total.yielded, total.held, total.unreported), (self.records, 0, 0));
        // Each number that was not written is reported once.
        let never: BTreeSet<u64> = self.ids(|number| number.fate != Fate::Written);
        let declared: BTreeSet<u64> = self.ids(|number| number.declared);
        assert_eq!(declared, never);
        assert_eq!(total.missing, never.len() as u64);
        if self.counted == Counted::ByCpu {
            for account in &ledger.accounts {
                let gone = self.ids(|number| Some(number.cpu) == account.cpu && number.fate == Fate::Gone).len() as u64;
                assert_eq!(account.unexplained, gone);
                assert!(account.explained(gone).is_balanced());
            }
        }
        self.merge.advance_tails();
        for cpu in &self.schedule.cpus {
            assert_eq!(self.kernel.tail(*cpu), self.kernel.head(*cpu));
        }
    }

    fn ids(&self, which: impl Fn(&Number) -> bool) -> BTreeSet<u64> {
        (0..).zip(&self.numbers).filter(|(_, number)| which(number)).map(|(id, _)| id).collect()
    }
}

fn run(schedule: &Schedule, counted: Counted) -> bool {
    let mut run = Run::new(schedule, counted);
    for step in &schedule.steps {
        run.step(step);
        run.check();
    }
    run.finish();
    true
}

fn check(property: fn(Schedule) -> bool) {
    let tests = std::env::var("QUICKCHECK_TESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(600);
    QuickCheck::new().tests(tests).quickcheck(property);
}

#[test]
fn own_numbers_balance() {
    check(|schedule| run(&schedule, Counted::ByCpu));
}

#[test]
fn numbers_of_the_machine_balance() {
    check(|schedule| run(&schedule, Counted::ByMachine));
}

/// A writer draws its number and is interrupted by one whose record still fits. Then its own record is dropped. The
/// loss comes after the record that shows that the number is missing.
#[test]
fn a_number_that_was_dropped_behind_a_later_one_is_explained() {
    let kernel = sim::Kernel::new(&[0]);
    let order = Order::new().hold(Hold::None).numbers(Key::Payload(0), Some(0));
    let mut merge = Merge::new(kernel.rings(), order).unwrap();
    kernel.begin(0, 1);
    assert!(kernel.emit(0, 2, &1u64.to_ne_bytes()));
    kernel.pause(0, true);
    assert!(!kernel.write(0, &0u64.to_ne_bytes()));
    kernel.end(0);
    kernel.pause(0, false);
    merge.refresh(0);
    while merge.next().is_some() {}
    let total = merge.ledger().total();
    assert_eq!((total.yielded, total.lost, total.missing, total.unexplained), (1, 1, 1, 0), "{total}");
    assert!(total.is_balanced() && !total.is_complete());
}
