//! BPF ring buffers: whatever programs reserve, submit and discard, in any order, the stream is a sort of what they submitted.

use perfweave::sim::{Reservation, RingBuffer};
use perfweave::{
    ANY_CPU, Barrier, Certainty, Clock, ErrorKind, Fault, Fence, Hold, Item, Key, Kind, Layout, Merge, Order, Reader,
    Rings, WhenFull, sim,
};
use quickcheck::{Arbitrary, Gen};

/// A ring buffer for each CPU, and what reads them.
fn machine(cpus: &[u32], bytes: usize) -> (Vec<RingBuffer>, Rings) {
    let mut rings = Rings::empty(Clock::Perf);
    let buffers = cpus.iter().map(|cpu| {
        let (buffer, ring) = RingBuffer::new(bytes);
        rings.add(*cpu, ring, Layout::RING_BUFFER);
        buffer
    });
    (buffers.collect(), rings)
}

fn order() -> Order {
    Order::new().key(Key::Payload(0)).hold(Hold::Fence(Fence::custom(|| Ok(()))))
}

/// A proof that ends as soon as it has begun: for keys that are drawn inside, reservations need nothing else.
fn prove(merge: &mut Merge) {
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

struct Trial {
    buffers: Vec<RingBuffer>,
    merge: Merge,
    programs: Vec<Program>,
    clock: u64,
    /// Whether keys are drawn before the reservation, and those of programs that reserve next.
    early: bool,
    drawn: Vec<u64>,
    yielded: Vec<(u64, Certainty)>,
    fencing: bool,
}

impl Trial {
    fn new(cpus: &[u32], hold: Hold, early: bool) -> Self {
        let (buffers, rings) = machine(cpus, 512);
        let order = order().hold(hold).when_full(WhenFull::Copy { most: 1 << 20 });
        let merge = Merge::new(rings, order).unwrap();
        let (programs, drawn, yielded) = Default::default();
        Self { buffers, merge, programs, clock: 0, early, drawn, yielded, fencing: false }
    }

    fn draw(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn step(&mut self, op: u8, with: u8) {
        let with = usize::from(with);
        let busy: Vec<usize> = (0..self.programs.len()).filter(|at| self.programs[*at].submitted.is_none()).collect();
        let one = (!busy.is_empty()).then(|| busy[with % busy.len()]);
        match (op % 16, one) {
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
                    self.merge.end_fence();
                } else {
                    self.fencing = self.merge.begin_fence();
                }
            }
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
        for _ in 0..most {
            let Some(event) = self.merge.next() else { return };
            let Item::Record(record) = event.item() else { panic!("{event:?}") };
            let (key, payload) = (event.key().unwrap(), record.payload().unwrap());
            assert_eq!(record.kind(), Kind::SAMPLE);
            assert_eq!(payload.as_slices().0.len() + payload.as_slices().1.len(), payload.len());
            let one = self.programs.iter_mut().find(|one| one.key == Some(key) && one.submitted == Some(true));
            let one = one.expect("a record that was submitted");
            assert_eq!((one.yielded, one.len as usize), (false, payload.len()));
            one.yielded = true;
            self.yielded.push((key, event.certainty()));
        }
    }

    /// No consumer position passes what is busy or not yielded, unless it was copied out.
    fn check_tails(&self) {
        for (at, buffer) in self.buffers.iter().enumerate() {
            let mine = self.programs.iter().filter(|one| one.buffer == at);
            let busy = mine.filter(|one| one.submitted.is_none()).map(|one| one.position).min();
            assert!(
                busy.is_none_or(|busy| buffer.consumed() <= busy),
                "the consumer position passed a busy reservation"
            );
            let copied = self.merge.ring_stats().nth(at).unwrap().copied;
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
        for _ in 0..3 {
            prove(&mut self.merge);
            self.take(usize::MAX);
        }
        assert_eq!(self.merge.held(), 0);
        self.check_tails();
        for (at, buffer) in self.buffers.iter().enumerate() {
            self.merge.publish();
            assert_eq!(buffer.consumed(), buffer.produced(), "ring buffer {at} is empty");
        }
        self
    }

    fn run(cpus: &[u32], steps: &[(u8, u8)], hold: Hold, early: bool) -> Self {
        let mut trial = Self::new(cpus, hold, early);
        steps.iter().for_each(|(op, with)| trial.step(*op, *with));
        trial.finish()
    }

    fn keys(&self) -> Vec<u64> {
        self.yielded.iter().map(|(key, _)| *key).collect()
    }

    fn submitted(&self) -> Vec<u64> {
        let submitted = self.programs.iter().filter(|one| one.submitted == Some(true));
        let mut keys: Vec<u64> = submitted.filter_map(|one| one.key).collect();
        keys.sort_unstable();
        keys
    }
}

fn schedules(mut each: impl FnMut(&[u32], &[(u8, u8)])) {
    let mut generator = Gen::new(400);
    let tests = std::env::var("QUICKCHECK_TESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    for at in 0..tests {
        let cpus: &[u32] = [&[0, 1, 5][..], &[ANY_CPU][..]][at % 2];
        each(cpus, &Vec::arbitrary(&mut generator));
    }
}

/// Dies (seen once each) when the head passes busy reservations, and when the frontier moves although something that was reserved is not
/// indexed.
#[test]
fn reservations_match_sort() {
    let mut repaired = 0;
    schedules(|cpus, steps| {
        let trial = Trial::run(cpus, steps, Hold::Fence(Fence::custom(|| Ok(()))), false);
        assert_eq!(trial.keys(), trial.submitted());
        assert!(trial.yielded.iter().all(|(_, certainty)| *certainty == Certainty::Proven));
        repaired += trial.merge.stats().repaired;
    });
    assert!(repaired > 100, "{repaired}: programs interrupt each other between reserving and drawing their keys");
}

/// Keys that are drawn before the reservation are not covered; they are late, and nothing is lost.
#[test]
fn keys_drawn_before_the_reservation_can_be_late() {
    let mut late = 0;
    schedules(|cpus, steps| {
        let trial = Trial::run(cpus, steps, Hold::Fence(Fence::custom(|| Ok(()))), true);
        let mut keys = trial.keys();
        late += trial.yielded.iter().filter(|(_, certainty)| *certainty == Certainty::Late).count() as u64;
        keys.sort_unstable();
        assert_eq!(keys, trial.submitted());
    });
    assert!(late > 0, "the check sees what is late");
}

/// Rules that only assume do not wait for a program that is inside; they lose nothing.
#[test]
fn assumed_orders_wait_for_no_program() {
    schedules(|cpus, steps| {
        let trial = Trial::run(cpus, steps, Hold::None, false);
        let mut keys = trial.keys();
        keys.sort_unstable();
        assert_eq!(keys, trial.submitted());
    });
    let (buffers, rings) = machine(&[0, 1], 4096);
    let mut merge = Merge::new(rings, order().hold(Hold::None)).unwrap();
    let busy = buffers[0].reserve(8).unwrap();
    assert!(buffers[1].output(&7u64.to_ne_bytes()));
    merge.refresh(0);
    assert_eq!(merge.next().map(|event| event.key()), Some(Some(7)));
    buffers[0].discard(busy);
}

/// One program that stays inside holds all others up, and the statistics say which ring buffer it is. Reservations that are made later do
/// not keep the proof waiting.
#[test]
fn a_proof_waits_for_what_was_reserved_and_not_for_more() {
    let (buffers, rings) = machine(&[0, 1], 4096);
    let mut merge = Merge::new(rings, order()).unwrap();
    let inside = buffers[0].reserve(8).unwrap();
    assert!(buffers[1].output(&2u64.to_ne_bytes()));
    prove(&mut merge);
    assert_eq!((merge.is_ready(), merge.held(), merge.progress().reserved), (false, 1, Some(0)));
    buffers[0].submit(inside, &1u64.to_ne_bytes());
    for _ in 0..3 {
        // Somebody is always inside.
        let next = buffers[0].reserve(8).unwrap();
        prove(&mut merge);
        buffers[0].discard(next);
    }
    let keys: Vec<_> = merge.batch().filter_map(|event| event.key()).collect();
    assert_eq!(keys, [1, 2]);
    merge.refresh(0);
    assert_eq!(merge.progress().reserved, None);
    // A flush waits for what was reserved before it.
    let (buffers, rings) = machine(&[0], 4096);
    let mut reader = Reader::new(rings, order().hold(Hold::Fence(Fence::Reserved(Barrier::Programs)))).unwrap();
    let inside = buffers[0].reserve(8).unwrap();
    assert!(buffers[0].output(&2u64.to_ne_bytes()));
    reader.handle().flush().unwrap();
    assert!(reader.next_timeout(std::time::Duration::ZERO).unwrap().is_none());
    buffers[0].submit(inside, &1u64.to_ne_bytes());
    let mut keys = Vec::new();
    while let Some(event) = reader.next().unwrap() {
        match event.item() {
            Item::Flushed => break,
            _ => keys.push(event.key().unwrap()),
        }
    }
    assert_eq!(keys, [1, 2]);
}

/// A fence covers keys that are drawn before the reservation, if a proof looks for what was reserved after the fence: here another program's
/// busy reservation hides the record of a program that the fence has waited for.
#[test]
fn a_proof_waits_for_what_was_reserved_when_the_fence_ended() {
    let (buffers, rings) = machine(&[0, 1], 4096);
    let mut merge = Merge::new(rings, order()).unwrap();
    assert!(buffers[0].output(&10u64.to_ne_bytes()));
    merge.refresh(0);
    assert!(merge.begin_fence(), "a program has drawn 5 and is still to reserve");
    let other = buffers[0].reserve(8).unwrap();
    merge.refresh(0);
    let hiding = buffers[1].reserve(8).unwrap();
    assert!(buffers[1].output(&5u64.to_ne_bytes()));
    merge.end_fence();
    buffers[0].submit(other, &20u64.to_ne_bytes());
    merge.refresh(0);
    assert!(!merge.is_ready(), "5 may be anywhere before what was reserved when the fence ended");
    buffers[1].discard(hiding);
    merge.refresh(0);
    let keys: Vec<_> = merge.batch().map(|event| (event.key(), event.certainty())).collect();
    assert_eq!(keys, [(Some(5), Certainty::Proven), (Some(10), Certainty::Proven)]);
}

/// Payloads have exactly the length that was reserved, up to several times what a perf record can hold, in the ring and copied out of it.
#[test]
fn records_have_any_length() {
    for when_full in [WhenFull::Discard, WhenFull::Copy { most: 16 << 20 }] {
        let (buffers, rings) = machine(&[0], 1 << 20);
        let order = order().when_full(when_full).numbers(perfweave::Sequence::u64(8).starting_at(0));
        let mut merge = Merge::new(rings, order).unwrap();
        let lengths = [16, 17, 23, 24, 65_519, 65_520, 65_521, 65_528, 65_536, 70_001, 300_000];
        for round in 0..5u64 {
            for (at, len) in lengths.into_iter().enumerate() {
                let number = round * lengths.len() as u64 + at as u64;
                let mut data = vec![at as u8; len];
                data[..8].copy_from_slice(&(number + 1).to_ne_bytes());
                data[8..16].copy_from_slice(&number.to_ne_bytes());
                assert!(buffers[0].output(&data), "{len} bytes");
            }
            prove(&mut merge);
            for (at, len) in lengths.into_iter().enumerate() {
                let event = merge.next().unwrap();
                let record = event.record().unwrap_or_else(|| panic!("{event:?}"));
                assert_eq!(record.payload().unwrap().len(), len);
                assert!(record.payload().unwrap().skip(16).unwrap().iter().all(|byte| byte == at as u8));
                assert_eq!(event.to_owned().as_event().record().unwrap().payload(), record.payload());
            }
            assert!(merge.next().is_none());
        }
        assert!(merge.ledger().total().missing == 0 && merge.stats().records == 55);
    }
}

/// The CPU of a shared ring buffer is unknown, unless records name it.
#[test]
fn a_shared_ring_buffer_belongs_to_no_cpu() {
    for (layout, cpu) in [(Layout::RING_BUFFER, None), (Layout::RING_BUFFER.cpu_at(8), Some(6))] {
        let (buffer, ring) = RingBuffer::new(4096);
        let mut rings = Rings::empty(Clock::Perf);
        rings.add(ANY_CPU, ring, layout);
        let mut merge = Merge::new(rings, order()).unwrap();
        assert!(buffer.output(&[[1u64.to_ne_bytes()], [6u64.to_ne_bytes()]].concat().concat()));
        prove(&mut merge);
        assert_eq!(merge.next().map(|event| event.cpu()), Some(cpu));
        assert!(buffer.output(&2u64.to_ne_bytes()));
        prove(&mut merge);
        assert_eq!(merge.next().map(|event| event.cpu()), Some(None), "it is too short to name one");
    }
}

/// Headers and positions that no kernel writes are damage, and the reader goes on after it.
#[test]
fn wild_positions_and_headers_are_damage() {
    let fault = |spoil: fn(&RingBuffer)| {
        let (buffers, rings) = machine(&[0], 4096);
        let mut merge = Merge::new(rings, order()).unwrap();
        assert!(buffers[0].output(&1u64.to_ne_bytes()));
        spoil(&buffers[0]);
        let mut faults = Vec::new();
        for _ in 0..4 {
            prove(&mut merge);
            while let Some(event) = merge.next() {
                faults.extend(event.item().damage().map(|damage| damage.fault));
            }
        }
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(merge.held(), 0);
        faults[0]
    };
    assert!(matches!(fault(|buffer| buffer.force_produced(16 + 4104)), Fault::Head { to: 4120, .. }));
    assert!(matches!(fault(|buffer| buffer.force_produced(4127)), Fault::Head { to: 4120, .. }));
    assert!(matches!(fault(|buffer| buffer.force_produced(8)), Fault::Size { room: 8, .. }));
    let wild = |buffer: &RingBuffer| buffer.scribble(0, &0x3fff_ffffu32.to_ne_bytes());
    assert!(matches!(fault(wild), Fault::Size { size: 0x4000_0008, room: 16 }));
    // Another reader of the same map.
    let (buffers, rings) = machine(&[0], 4096);
    let mut merge = Merge::new(rings, order()).unwrap();
    assert!(buffers[0].output(&1u64.to_ne_bytes()));
    buffers[0].force_consumed(16);
    prove(&mut merge);
    let damage = merge.next().and_then(|event| event.item().damage().map(|damage| damage.fault));
    assert_eq!(damage, Some(Fault::Consumer { from: 0, to: 16 }));
    prove(&mut merge);
    assert!(buffers[0].output(&2u64.to_ne_bytes()));
    prove(&mut merge);
    assert_eq!(merge.next().map(|event| event.key()), Some(Some(2)), "it goes on");
}

/// What reservations do not prove is refused, with what to do instead.
#[test]
fn what_proves_nothing_is_refused() {
    let reserved = || order().hold(Hold::Fence(Fence::Reserved(Barrier::Programs)));
    let kind = |rings, order| Merge::new(rings, order).map(drop).map_err(|error| error.kind());
    let (_buffers, rings) = machine(&[0], 4096);
    assert_eq!(kind(rings, reserved()), Ok(()));
    assert_eq!(kind(sim::Kernel::new(&[0]).rings(), reserved()), Err(ErrorKind::Fence));
    let mut mixed = sim::Kernel::new(&[0]).rings();
    mixed.add(0, RingBuffer::new(4096).1, Layout::RING_BUFFER);
    assert_eq!(kind(mixed, reserved()), Err(ErrorKind::Fence));
    let (_buffers, rings) = machine(&[0], 4096);
    assert_eq!(kind(rings, order().key(Key::Time)), Err(ErrorKind::Clock));
    let (_buffers, rings) = machine(&[ANY_CPU], 4096);
    let numbered = order().numbers(perfweave::Sequence::u64(8));
    assert_eq!(kind(rings, numbered), Err(ErrorKind::InvalidInput));
}

#[test]
#[should_panic(expected = "the layout of a BPF ring buffer")]
fn a_ring_buffer_has_its_own_layout() {
    Rings::empty(Clock::Perf).add(0, RingBuffer::new(4096).1, Layout::RAW);
}

/// A record that is longer than any of perf's may have any bytes, also where a length would lie in a record of perf's.
#[test]
fn bytes_of_a_long_record_are_no_lengths() {
    for fill in [0, 1] {
        let (buffers, rings) = machine(&[0], 1 << 20);
        let mut merge = Merge::new(rings, order().when_full(WhenFull::Discard)).unwrap();
        let mut data = vec![fill; 70_001];
        data[..8].copy_from_slice(&1u64.to_ne_bytes());
        assert!(buffers[0].output(&data));
        prove(&mut merge);
        let event = merge.next().unwrap();
        assert_eq!(event.key(), Some(1));
        assert_eq!(event.record().unwrap().payload().unwrap().to_vec(), data);
    }
}

/// Words of epochs are those of all CPUs, and so is a ring buffer that all share.
#[test]
fn epochs_are_taken_for_a_shared_ring_buffer() {
    let (_buffers, rings) = machine(&[ANY_CPU], 4096);
    let hold = Hold::Fence(Fence::Epochs(sim::Kernel::new(&[0]).epochs()));
    assert!(Merge::new(rings, order().hold(hold)).is_ok());
}

/// Reservations that are skipped with a lost head are not waited for, by a proof or by a flush.
#[test]
fn a_lost_head_holds_nothing_up() {
    let (buffers, rings) = machine(&[0, 1], 4096);
    let mut reader = Reader::new(rings, order().hold(Hold::Fence(Fence::Reserved(Barrier::Programs)))).unwrap();
    let next = |reader: &mut Reader| {
        let event = reader.next_timeout(std::time::Duration::ZERO).unwrap()?;
        Some((event.key(), event.item().damage().map(|damage| damage.fault)))
    };
    let first = buffers[0].reserve(8).unwrap();
    let other = buffers[1].reserve(8).unwrap();
    assert!(next(&mut reader).is_none());
    reader.handle().flush().unwrap();
    buffers[0].submit(first, &1u64.to_ne_bytes());
    buffers[0].force_consumed(16);
    assert_eq!(next(&mut reader), Some((None, Some(Fault::Consumer { from: 0, to: 16 }))));
    assert!(next(&mut reader).is_none());
    buffers[1].submit(other, &2u64.to_ne_bytes());
    assert_eq!(next(&mut reader), Some((Some(2), None)));
    assert!(matches!(reader.next().unwrap().unwrap().item(), Item::Flushed));
    assert!(next(&mut reader).is_none());
    assert_ne!(reader.time_to_next_refresh(), std::time::Duration::ZERO, "it sleeps");
}

/// The kernel notifies only a reader that has given everything back: what a program discarded, too.
#[test]
fn a_discard_is_given_back_before_the_reader_waits() {
    let (buffers, rings) = machine(&[0], 4096);
    let mut merge = Merge::new(rings, order()).unwrap();
    let one = buffers[0].reserve(8).unwrap();
    buffers[0].discard(one);
    merge.refresh(0);
    assert!(merge.is_behind(), "bytes are still to be given back");
    merge.refresh(0);
    assert_eq!((merge.is_behind(), buffers[0].consumed()), (false, buffers[0].produced()));
    assert!(buffers[0].output(&1u64.to_ne_bytes()));
    prove(&mut merge);
    drop(merge.next().unwrap());
    assert!(merge.is_behind());
    merge.publish();
    assert!(!merge.is_behind());
}
