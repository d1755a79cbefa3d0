//! Feeds any words to proofs by writers' epochs, while writers enter, write and leave. A model of words and rings says
//! when each proof ends, and which events come out then.

use crate::raw_bytes::Input;
use perfweave::{Certainty, GracePeriods, Hold, Item, Merge, Order, Reader, sim};
use perfweave_proofs::Epochs;
use std::collections::BTreeSet;
use std::time::Duration;

/// One more generation, in a word.
const GENERATION: u64 = 1 << 32;

/// At most this many writers interrupt each other on a CPU.
const NESTED: usize = 3;

/// Enough time for every event that comes.
const LONG: Duration = Duration::from_secs(60);

/// This much of an input is used: its records fit into the rings without a refresh.
const LONGEST: usize = 1 << 10;

/// One input: the patience, and steps of writers, of a stranger that writes into words, and of a reader.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input(&input[..input.len().min(LONGEST)]);
    match input.byte() % 4 {
        0 => read(&mut input),
        _ => prove(&mut input),
    }
}

/// One CPU, as the model sees it.
#[derive(Debug, Default)]
struct Cpu {
    word: u64,
    /// The key of each writer that is inside, and whether it has written. The innermost is last.
    inside: Vec<(u64, bool)>,
    /// Keys of the writers that were inside since the CPU was last free of writers, and about how many of them words
    /// have lied.
    in_flight: Vec<u64>,
    betrayed: usize,
    /// Keys of records that are not published yet.
    hidden: Vec<u64>,
}

/// The machine. Its writers update the words rightly; a stranger does not.
#[derive(Debug)]
struct Machine {
    kernel: sim::Kernel,
    cpus: [Cpu; 2],
    /// The key of the last writer that entered.
    last: u64,
    written: u64,
    /// Keys of published records that were not yielded.
    visible: BTreeSet<u64>,
    /// The stranger has changed a word since the begin of the proof.
    meddled: bool,
    /// Keys of writers about which words have lied. They can be late.
    betrayed: BTreeSet<u64>,
}

impl Machine {
    fn new() -> Self {
        let (cpus, visible, betrayed) = Default::default();
        Self { kernel: sim::Kernel::new(&[0, 1]), cpus, last: 0, written: 0, visible, meddled: false, betrayed }
    }

    /// Whether each word says how many are inside.
    fn is_lawful(&self) -> bool {
        self.cpus.iter().all(|cpu| u64::from(cpu.word as u32) == cpu.inside.len() as u64)
    }

    fn betray(&mut self) {
        for cpu in &mut self.cpus {
            for key in &cpu.in_flight[cpu.betrayed..] {
                assert!(self.betrayed.insert(*key), "each at most once, so that long inputs end");
            }
            cpu.betrayed = cpu.in_flight.len();
        }
    }

    /// The stranger writes into a word.
    fn set(&mut self, cpu: usize, word: u64) {
        self.meddled |= self.cpus[cpu].word != word;
        self.kernel.set_epoch(cpu as u32, word);
        self.cpus[cpu].word = word;
    }

    /// The stranger corrects a word: it says how many are inside.
    fn make_lawful(&mut self, cpu: usize) {
        let Cpu { word, inside, .. } = &self.cpus[cpu];
        self.set(cpu, word / GENERATION * GENERATION + inside.len() as u64);
    }

    fn begin(&mut self, cpu: usize) {
        self.last += 1;
        self.kernel.begin(cpu as u32, self.last);
        let cpu = &mut self.cpus[cpu];
        cpu.word = cpu.word.wrapping_add(1);
        cpu.inside.push((self.last, false));
        cpu.in_flight.push(self.last);
    }

    fn write(&mut self, cpu: usize) {
        let Some((key, written @ false)) = self.cpus[cpu].inside.last_mut() else { return };
        *written = true;
        let key = *key;
        self.cpus[cpu].hidden.push(key);
        self.written += 1;
        assert!(self.kernel.write(cpu as u32, b"record"), "there is room");
    }

    fn end(&mut self, cpu: usize) {
        let Some(_) = self.cpus[cpu].inside.pop() else { return };
        self.kernel.end(cpu as u32);
        let cpu = &mut self.cpus[cpu];
        let generation = if cpu.word as u32 == 1 { GENERATION } else { 0 };
        cpu.word = cpu.word.wrapping_sub(1).wrapping_add(generation);
        // The head moves when no interrupted writer that has written is left.
        if !cpu.inside.iter().any(|(_, written)| *written) {
            self.visible.extend(cpu.hidden.drain(..));
        }
        if cpu.inside.is_empty() {
            cpu.in_flight.clear();
            cpu.betrayed = 0;
        }
    }

    fn end_all(&mut self) {
        for cpu in [0, 1] {
            while !self.cpus[cpu].inside.is_empty() {
                self.end(cpu);
            }
        }
    }

    /// A step of writers or of the stranger. False if it is the reader's turn.
    fn step(&mut self, input: &mut Input<'_>) -> bool {
        let choice = input.byte();
        let cpu = usize::from(choice & 1);
        match choice >> 1 & 7 {
            0 => self.set(cpu, input.word()),
            // Words like those of writers, with another count; and smaller lies.
            1 => self.set(cpu, u64::from(input.byte() % 4) * GENERATION + u64::from(choice >> 4 & 3)),
            2 => self.make_lawful(cpu),
            3 if self.cpus[cpu].inside.len() < NESTED => self.begin(cpu),
            4 => self.write(cpu),
            5 => self.end(cpu),
            6 => {
                self.begin(cpu);
                self.write(cpu);
                self.end(cpu);
            }
            _ => return false,
        }
        true
    }
}

/// A proof that is under way.
#[derive(Debug)]
struct Proof {
    /// The key that it will prove.
    covers: u64,
    /// Words that say that a program is inside.
    inside: Vec<(usize, u64)>,
    /// The first of each CPU's writers in flight, if no word lies.
    in_flight: Option<Vec<u64>>,
}

/// A merge and its proofs step by step, with endless patience: each proof ends exactly when the words say so, and
/// exactly the events that it proves come out.
fn prove(input: &mut Input<'_>) {
    let mut machine = Machine::new();
    let fence = epochs(&machine.kernel).patience(Duration::MAX).fence();
    let mut grace = fence.open().expect("no thread is needed");
    let order = Order::new().hold(Hold::Fence(fence));
    let mut merge = Merge::new(machine.kernel.rings(), order).expect("a merge");
    let (mut proof, mut proven, mut yielded) = (None, 0, 0);
    let mut turn = |machine: &mut Machine| look(machine, &mut merge, &mut grace, &mut proof, &mut proven, &mut yielded);
    while !input.0.is_empty() {
        if !machine.step(input) {
            turn(&mut machine);
        }
    }
    machine.end_all();
    // The words are right again, and all events come out: first those of a proof under way, then the rest.
    [0, 1].into_iter().for_each(|cpu| machine.make_lawful(cpu));
    (0..2).for_each(|_| turn(&mut machine));
    assert!(machine.visible.is_empty(), "{machine:?} stalls");
    assert_eq!((yielded, merge.held()), (machine.written, 0));
}

/// A turn of the reader: refreshes, begins a proof if none is under way, polls it, and takes the proven events.
fn look(
    machine: &mut Machine,
    merge: &mut Merge,
    grace: &mut GracePeriods,
    proof: &mut Option<Proof>,
    proven: &mut u64,
    yielded: &mut u64,
) {
    merge.refresh(0);
    let largest = machine.visible.last().copied();
    let may_begin = proof.is_none() && largest > Some(*proven);
    assert_eq!(merge.begin_fence(), may_begin, "{machine:?}");
    if let Some(covers) = largest.filter(|_| may_begin) {
        assert!(grace.begin());
        machine.meddled = false;
        let words = machine.cpus.iter().map(|cpu| cpu.word).enumerate();
        let firsts = || machine.cpus.iter().filter_map(|cpu| cpu.in_flight.first().copied()).collect();
        let inside = words.filter(|(_, word)| *word as u32 > 0).collect();
        *proof = Some(Proof { covers, inside, in_flight: machine.is_lawful().then(firsts) });
    }
    let ended = grace.poll();
    if let Some(Proof { covers, inside, in_flight }) = proof {
        inside.retain(|(cpu, before)| {
            let word = machine.cpus[*cpu].word;
            word as u32 > 0 && word / GENERATION == *before / GENERATION
        });
        assert_eq!(ended.is_some(), inside.is_empty(), "{machine:?}");
        if let Some(ended) = ended {
            ended.expect("nothing stands in");
            match in_flight.take().filter(|_| !machine.meddled) {
                Some(firsts) => {
                    let left = firsts.iter().all(|key| !machine.cpus.iter().any(|cpu| cpu.in_flight.contains(key)));
                    assert!(left, "{firsts:?} of {machine:?} misled");
                }
                None => machine.betray(),
            }
            *proven = *covers.max(proven);
            *proof = None;
            merge.end_fence();
            merge.refresh(0);
        }
    }
    let mut last = 0;
    while let Some(key) = machine.visible.first().copied().filter(|key| key <= proven) {
        machine.visible.pop_first();
        let event = merge.next().unwrap_or_else(|| panic!("nothing instead of {key}: {machine:?}"));
        assert_eq!(event.key(), Some(key));
        check(&event.event(), &machine.betrayed);
        last = key;
        *yielded += 1;
    }
    assert!(merge.next().is_none(), "more than was proven follows {last}");
}

/// A reader with endless patience reads all records once the words are right again. A reader with little or no patience
/// never waits long for wrong words; that takes a thousand times as long, because fences that stand in take real time.
fn read(input: &mut Input<'_>) {
    let mut machine = Machine::new();
    let choice = input.byte();
    let is_patient = !choice.is_multiple_of(32);
    let patience = if is_patient { Duration::MAX } else { Duration::from_micros(choice.into()) };
    let hold = Hold::Fence(epochs(&machine.kernel).patience(patience).fence());
    let spin = if input.byte().is_multiple_of(2) { Duration::ZERO } else { Duration::MAX };
    let mut reader = Reader::new(machine.kernel.rings(), Order::new().hold(hold).spin(spin)).expect("a reader");
    let mut yielded = 0;
    while !input.0.is_empty() {
        if !machine.step(input) {
            // A word may lie when a proof begins, or when it ends.
            if machine.meddled || !machine.is_lawful() {
                machine.betray();
            }
            machine.meddled = false;
            take(&mut reader, Duration::ZERO, |event| yielded += check(event, &machine.betrayed));
        } else if machine.meddled {
            machine.betray();
        }
    }
    machine.end_all();
    if is_patient {
        [0, 1].into_iter().for_each(|cpu| machine.make_lawful(cpu));
        machine.betray();
    }
    reader.handle().flush().expect("it is open");
    while take(&mut reader, LONG, |event| yielded += check(event, &machine.betrayed)) {}
    assert_eq!(yielded, machine.written);
    // The words are right again: it proves again, and waits for programs that are inside.
    [0, 1].into_iter().for_each(|cpu| machine.make_lawful(cpu));
    machine.begin(0);
    let first = machine.last;
    for _ in 0..3 {
        machine.begin(1);
        machine.write(1);
        machine.end(1);
        take(&mut reader, Duration::ZERO, |event| panic!("{event:?} is not proven"));
    }
    machine.write(0);
    machine.end(0);
    let mut keys = Vec::new();
    while keys.len() < 4 {
        take(&mut reader, LONG, |event| keys.push((event.key().unwrap_or(0), event.certainty())));
    }
    assert_eq!(keys, [0, 1, 2, 3].map(|nth| (first + nth, Certainty::Proven)));
    let ledger = reader.ledger().expect("an account");
    let total = ledger.total();
    assert!(ledger.total().is_balanced() && ledger.is_complete(), "{ledger:?}");
    assert_eq!((total.yielded, total.held), (machine.written, 0));
}

/// Takes an event, if one comes. False at the report of a flush.
fn take(reader: &mut Reader, timeout: Duration, mut each: impl FnMut(&perfweave::Event<'_>)) -> bool {
    match reader.next_timeout(timeout) {
        Ok(Some(event)) if matches!(event.item(), Item::Flushed { .. }) => return false,
        Ok(Some(event)) => each(&event.event()),
        Ok(None) => assert!(timeout.is_zero(), "it stalls"),
        // According to the words, a program has returned without leaving.
        Err(error) if error.to_string().contains("without perfweave_leave()") => {}
        Err(other) => panic!("{other}"),
    }
    true
}

/// Only events about which words have lied are late. Gives 1, for an event.
fn check(event: &perfweave::Event<'_>, betrayed: &BTreeSet<u64>) -> u64 {
    let is_lied_about = event.key().is_some_and(|key| betrayed.contains(&key));
    assert!(
        event.certainty() == Certainty::Proven || event.certainty() == Certainty::Late && is_lied_about,
        "{event:?}"
    );
    1
}

/// The writers' epochs of a machine, whose own grace periods stand in.
fn epochs(kernel: &sim::Kernel) -> Epochs {
    Epochs::over(kernel.epochs()).stand_in(kernel.fence())
}
