//! Runs programs, a reader and a hostile kernel on BPF ring buffers, from bytes. Whatever programs reserve, submit and
//! discard, in any order, the stream is a sort of what they submitted.

use perf_event_open_sys::bindings;
use perfweave::sim::{Reservation, RingBuffer};
use perfweave::{ANY_CPU, Certainty, Clock, Event, Fence, Hold, Item, Key, Layout, Merge, Order, Rings};

/// The most steps of an input.
const LONGEST: usize = 400;

/// Bytes of a ring buffer.
const SIZE: usize = 512;

/// The first byte chooses rings, rule and memory. The rest is steps, of two bytes each.
pub(crate) fn run(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    let cpus: &[u32] = [&[0, 1, 5][..], &[ANY_CPU][..]][usize::from(choice / 8 % 2)];
    let steps: Vec<(u8, u8)> = rest.chunks_exact(2).take(LONGEST).map(|step| (step[0], step[1])).collect();
    let fence = || Hold::Fence(Fence::by(|| Ok(())));
    match choice % 8 {
        0..=2 => {
            let trial = Trial::run(cpus, &steps, fence(), false);
            assert_eq!(trial.keys(), trial.submitted());
            assert!(trial.yielded.iter().all(|(_, certainty)| *certainty == Certainty::Proven));
        }
        3 => Trial::run(cpus, &steps, fence(), true).assert_complete(),
        4 => Trial::run(cpus, &steps, Hold::None, false).assert_complete(),
        5 => {
            // None, and from a chunk of one ring on.
            let most = [0, SIZE, 2 * SIZE, 4 * SIZE][usize::from(choice / 16 % 4)];
            let trial = Trial::new(cpus, fence(), false, most).steps(&steps);
            assert_eq!(trial.keys(), trial.submitted());
            assert!(trial.yielded.iter().all(|(_, certainty)| *certainty == Certainty::Proven));
        }
        _ => Hostile::run(cpus, rest, *choice),
    }
}

/// A ring buffer for each CPU, and what reads them.
pub(crate) fn machine(cpus: &[u32], bytes: usize) -> (Vec<RingBuffer>, Rings) {
    let mut rings = Rings::empty(Clock::Monotonic);
    let buffers = cpus.iter().map(|cpu| {
        let (buffer, ring) = RingBuffer::new(bytes);
        rings.add(*cpu, ring, Layout::RING_BUFFER);
        buffer
    });
    (buffers.collect(), rings)
}

pub(crate) fn order() -> Order {
    Order::new().key(Key::Payload(0)).hold(Hold::Fence(Fence::by(|| Ok(()))))
}

/// A proof that ends as soon as it has begun: for keys that are drawn inside, reservations need nothing else.
pub(crate) fn prove(merge: &mut Merge) {
    merge.refresh(0);
    if merge.begin_fence() {
        merge.end_fence();
        merge.refresh(0);
    }
}

/// A program between reserving and committing, or after that.
struct Program {
    buffer: usize,
    place: Reservation,
    position: u64,
    len: u32,
    key: Option<u64>,
    /// Whether it submitted; `None` while it is busy.
    submitted: Option<bool>,
    yielded: bool,
}

pub(crate) struct Trial {
    buffers: Vec<RingBuffer>,
    pub(crate) merge: Merge,
    /// The bound of copies.
    most: usize,
    programs: Vec<Program>,
    clock: u64,
    /// Whether keys are drawn before the reservation, and those of programs that reserve next.
    early: bool,
    drawn: Vec<u64>,
    pub(crate) yielded: Vec<(u64, Certainty)>,
    fencing: bool,
}

impl Trial {
    fn new(cpus: &[u32], hold: Hold, early: bool, most: usize) -> Self {
        let (buffers, rings) = machine(cpus, SIZE);
        let merge = Merge::new(rings, order().hold(hold).most_held(most)).unwrap();
        let (programs, drawn, yielded) = Default::default();
        Self { buffers, merge, most, programs, clock: 0, early, drawn, yielded, fencing: false }
    }

    fn draw(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn step(&mut self, op: u8, with: u8) {
        let with = usize::from(with);
        let busy: Vec<usize> = (0..self.programs.len()).filter(|at| self.programs[*at].submitted.is_none()).collect();
        let one = (!busy.is_empty()).then(|| busy[with % busy.len()]);
        match (op % 18, one) {
            (0..=4, _) => {
                if self.early && (self.drawn.is_empty() || with > 128) {
                    let key = self.draw();
                    return self.drawn.push(key);
                }
                let key = self.drawn.pop();
                let (buffer, len) = (with % self.buffers.len(), 8 + (with as u32 * 7) % 90);
                let position = self.buffers[buffer].produced();
                if let Some(place) = self.buffers[buffer].reserve(len) {
                    let (submitted, yielded) = (None, false);
                    self.programs.push(Program { buffer, place, position, len, key, submitted, yielded });
                }
            }
            (5..=6, Some(one)) if self.programs[one].key.is_none() => self.programs[one].key = Some(self.draw()),
            (7..=10, Some(one)) => self.commit(one, true),
            (11, Some(one)) => self.commit(one, false),
            (12, _) => drop(self.merge.refresh(0)),
            (13, _) => {
                if std::mem::take(&mut self.fencing) {
                    if with % 8 == 7 { self.merge.fail_fence() } else { self.merge.end_fence() }
                } else {
                    self.fencing = self.merge.begin_fence();
                }
            }
            (14, _) => self.take_batch(),
            (15, _) => self.merge.advance_tails(),
            _ => self.take(with),
        }
        self.check_tails();
    }

    fn commit(&mut self, one: usize, submit: bool) {
        let key = self.programs[one].key.unwrap_or_else(|| self.draw());
        let Program { buffer, place, len, .. } = self.programs[one];
        let mut data = vec![0xa5; len as usize];
        data[..8].copy_from_slice(&key.to_ne_bytes());
        if submit {
            self.buffers[buffer].submit(place, &data);
        } else {
            self.buffers[buffer].discard(place);
        }
        (self.programs[one].key, self.programs[one].submitted) = (Some(key), Some(submit));
    }

    fn take(&mut self, most: usize) {
        let Self { merge, programs, yielded, .. } = self;
        for _ in 0..most {
            let Some(event) = merge.next() else { return };
            note(programs, yielded, event.event());
        }
    }

    /// Holds all events of a batch at once.
    fn take_batch(&mut self) {
        let Self { merge, programs, yielded, .. } = self;
        let events: Vec<Event<'_>> = merge.batch().collect();
        events.into_iter().for_each(|event| note(programs, yielded, event));
    }

    /// No consumer position passes what is busy or not yielded, unless it was copied out.
    fn check_tails(&self) {
        let most = self.merge.status().most_memory;
        assert!(most <= self.most, "{most} of {} bytes", self.most);
        for (at, buffer) in self.buffers.iter().enumerate() {
            let mine = self.programs.iter().filter(|one| one.buffer == at);
            let busy = mine.filter(|one| one.submitted.is_none()).map(|one| one.position).min();
            assert!(
                busy.is_none_or(|busy| buffer.consumed() <= busy),
                "the consumer position passed a busy reservation"
            );
            let copied = self.merge.status().accounts[at].copied;
            let mine = self.programs.iter().filter(|one| one.buffer == at && one.submitted == Some(true));
            let held = mine.filter(|one| !one.yielded).map(|one| one.position).min();
            assert!(
                copied > 0 || held.is_none_or(|held| buffer.consumed() <= held),
                "the consumer passed a held record"
            );
        }
    }

    fn finish(mut self) -> Self {
        for at in 0..self.programs.len() {
            if self.programs[at].submitted.is_none() {
                self.commit(at, true);
            }
        }
        self.merge.end_fence();
        for turn in 0.. {
            assert!(turn < 1000, "it stalls: {:?}", self.merge);
            prove(&mut self.merge);
            self.take(usize::MAX);
            if self.merge.held() == 0 && !self.merge.is_behind() {
                break;
            }
        }
        self.check_tails();
        self.merge.advance_tails();
        for (at, buffer) in self.buffers.iter().enumerate() {
            assert_eq!(buffer.consumed(), buffer.produced(), "ring buffer {at} is empty");
        }
        self
    }

    fn steps(mut self, steps: &[(u8, u8)]) -> Self {
        steps.iter().for_each(|(op, with)| self.step(*op, *with));
        self.finish()
    }

    pub(crate) fn run(cpus: &[u32], steps: &[(u8, u8)], hold: Hold, early: bool) -> Self {
        Self::new(cpus, hold, early, 1 << 20).steps(steps)
    }

    /// Each submitted record was yielded once, in any order.
    pub(crate) fn assert_complete(&self) {
        let mut keys = self.keys();
        keys.sort_unstable();
        assert_eq!(keys, self.submitted());
    }

    pub(crate) fn keys(&self) -> Vec<u64> {
        self.yielded.iter().map(|(key, _)| *key).collect()
    }

    pub(crate) fn submitted(&self) -> Vec<u64> {
        let submitted = self.programs.iter().filter(|one| one.submitted == Some(true));
        let mut keys: Vec<u64> = submitted.filter_map(|one| one.key).collect();
        keys.sort_unstable();
        keys
    }
}

/// Checks an event against the program that wrote it.
fn note(programs: &mut [Program], yielded: &mut Vec<(u64, Certainty)>, event: Event<'_>) {
    let record = match event.item() {
        Item::Record(record) => record,
        other => panic!("{other:?}"),
    };
    let (key, payload) = (event.key().unwrap(), record.payload().unwrap());
    assert_eq!(record.kind(), bindings::PERF_RECORD_SAMPLE);
    let one = programs.iter_mut().find(|one| one.key == Some(key) && one.submitted == Some(true));
    let one = one.expect("a record that was submitted");
    assert_eq!((one.yielded, one.len as usize), (false, payload.len()));
    assert!(payload.iter().skip(8).all(|byte| byte == 0xa5), "{record:?}");
    one.yielded = true;
    yielded.push((key, event.certainty()));
}

/// Ring buffers whose kernel writes any header and any position, and whose consumer positions somebody else moves.
struct Hostile<'a> {
    input: &'a [u8],
    buffers: Vec<RingBuffer>,
    merge: Merge,
    most: usize,
}

impl Hostile<'_> {
    fn run(cpus: &[u32], input: &[u8], choice: u8) {
        let (buffers, rings) = machine(cpus, SIZE);
        let most = match choice {
            _ if choice & 16 == 0 => 0,
            _ if choice & 32 == 0 => 1 << 20,
            _ => SIZE << (choice >> 6),
        };
        let order = order().most_held(most);
        let order = if cpus == [ANY_CPU] { order } else { order.numbers(Key::Payload(8), None) };
        let mut machine = Hostile {
            input: &input[..input.len().min(4 * LONGEST)],
            merge: Merge::new(rings, order).unwrap(),
            buffers,
            most,
        };
        // From here on, nothing that the kernel does is checked.
        machine.buffers.iter().for_each(|buffer| buffer.scribble(0, &[]));
        while !machine.input.is_empty() {
            machine.step();
        }
        machine.recover();
    }

    fn byte(&mut self) -> u8 {
        let (first, rest) = self.input.split_first().unwrap_or((&0, &[]));
        self.input = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn step(&mut self) {
        let (op, with) = (self.byte(), u64::from(self.byte()));
        let buffer = self.buffers[with as usize % self.buffers.len()].clone();
        let (begin, end) = (buffer.consumed(), buffer.produced());
        match op % 12 {
            // A lawful record, if there is room.
            0 | 1 if end.is_multiple_of(8) => drop(buffer.output(&vec![with as u8; 8 + with as usize])),
            // A header: any, one that is about right, a busy one, a discarded one.
            2 => {
                let header = (self.word() as u32).to_ne_bytes();
                buffer.scribble(begin.wrapping_add(with / 2 * 8), &header);
            }
            3 | 4 => {
                let flags = [0, 0, 1 << 30, 1 << 31][usize::from(self.byte() % 4)];
                buffer.scribble(begin.wrapping_add(with / 2 * 8), &(u32::from(self.byte()) | flags).to_ne_bytes());
            }
            // A producer position: anywhere, or a little further or back.
            5 => buffer.force_produced(self.word()),
            6 => buffer.force_produced(end.wrapping_add(u64::from(self.byte()) * 8)),
            7 => buffer.force_produced(end.wrapping_sub(u64::from(self.byte()))),
            // Another reader.
            8 => buffer.force_consumed(begin.wrapping_add(u64::from(self.byte()))),
            9 if with > 200 => buffer.force_consumed(self.word()),
            9 => self.merge.advance_tails(),
            10 => return self.take(with as usize),
            _ => prove(&mut self.merge),
        }
        // A kernel that breaks the protocol shows its writes at a refresh.
        self.merge.refresh(0);
        assert!(self.merge.status().most_memory <= self.most, "{:?}", self.merge);
    }

    fn take(&mut self, most: usize) {
        let events: Vec<Event<'_>> =
            if most.is_multiple_of(2) { self.merge.batch().take(most).collect() } else { Vec::new() };
        for event in events {
            check(event);
        }
        for _ in 0..most / 2 {
            let Some(event) = self.merge.next() else { return };
            check(event.event());
        }
    }

    /// The kernel keeps to the protocol from now on: the reader goes on.
    fn recover(&mut self) {
        let (mut quiet, mut turns) = (0, 0);
        while quiet < 3 {
            let faults = self.merge.status().total().damaged;
            self.merge.advance_tails();
            self.buffers.iter().for_each(|buffer| buffer.force_produced(buffer.consumed() & !7));
            prove(&mut self.merge);
            self.take(usize::MAX);
            let is_quiet =
                self.merge.held() == 0 && !self.merge.is_behind() && self.merge.status().total().damaged == faults;
            (quiet, turns) = (if is_quiet { quiet + 1 } else { 0 }, turns + 1);
            assert!(turns < 1000, "it stalls: {:?}", self.merge);
        }
        for at in 0..self.buffers.len() {
            let key = u64::MAX / 4 - 1;
            assert!(self.buffers[at].output(&[key.to_ne_bytes(), [0; 8]].concat()), "ring buffer {at} has room");
            let mut seen = 0;
            for _ in 0..3 {
                prove(&mut self.merge);
                while let Some(event) = self.merge.next() {
                    seen += usize::from(event.key() == Some(key));
                }
            }
            assert_eq!(seen, 1, "the reader goes on in ring buffer {at}: {:?}", self.merge);
        }
    }
}

/// Nothing is longer than the ring buffer.
fn check(event: Event<'_>) {
    match event.item() {
        // A length that changed after the record was found may go past its end.
        Item::Record(record) => {
            let len = record.payload().map_or(0, |payload| payload.len());
            assert!(len + 8 <= record.as_bytes().len() && record.as_bytes().len() <= SIZE, "{record:?}");
        }
        Item::Damage(damage) => assert!(damage.bytes.len() <= SIZE, "{damage:?}"),
        _ => {}
    }
}
