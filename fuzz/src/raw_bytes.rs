//! Feeds any bytes and any heads to a merge of two rings, and compares its events with those of a very simple decoder,
//! which first copies the bytes out, and sorts.

use perf_event_open_sys::bindings;
use perfweave::{Fault, Hold, Item, Key, Layout, Merge, Order, sim};
use std::collections::BTreeMap;

const TID: u64 = 2;
const TIME: u64 = 4;
const READ: u64 = 16;
const CALLCHAIN: u64 = 32;
const RAW: u64 = 1024;
const IDENTIFIER: u64 = 65536;

/// How many records the kernel has dropped from each ring: LOST records can report no more.
pub(crate) const LOSSES: u64 = 1 << 48;

/// How many samples one LOST_SAMPLES record can report.
const LOST_SAMPLES: u64 = u32::MAX as u64;

/// `sample_type`, `read_format`.
pub(crate) const LAYOUTS: [(u64, u64); 4] =
    [(TIME | RAW, 0), (IDENTIFIER | TID | TIME | RAW, 0), (TIME, 0), (TIME | READ | CALLCHAIN | RAW, 4 | 8)];

pub(crate) const CPUS: [u32; 2] = [3, 8];

/// The expected event for one piece of a ring.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expected {
    /// Header and body, time, payload.
    Record(Vec<u8>, Option<u64>, Option<Vec<u8>>),
    /// Count and id.
    Lost(u64, u64),
    /// The same, of samples that never came to the ring. The record has a time of its own.
    LostSamples(u64, u64),
    Damage(Fault, Vec<u8>),
}

/// An expected event with its sort key.
#[derive(Debug, Clone)]
struct Place {
    order: u64,
    cpu: u32,
    position: usize,
    own: bool,
    what: Expected,
}

/// One ring, as the model sees it.
struct Model {
    cpu: u32,
    memory: Vec<u8>,
    /// Positions as the kernel counts them.
    tail: u64,
    /// The sum of all bytes read: the crate's positions.
    read: u64,
    before: Option<u64>,
    /// The head was wrong; the next refresh continues at the head of that time.
    lost: bool,
    /// The sum of the LOST records.
    told: u64,
    /// The lateness of the last yielded record with each key: records without a key after it are as late.
    late_by: BTreeMap<u64, u64>,
}

/// Reads the input from front to back, with zeros after its end.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl Input<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    pub(crate) fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }
}

/// One input: a layout, a ring size, and rounds of writing and reading.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let (sample_type, read_format) = LAYOUTS[usize::from(input.byte()) % LAYOUTS.len()];
    let size = 64usize << (input.byte() % 6);
    let layout = Layout::new(sample_type, true, read_format);
    let kernel = sim::Kernel::with(&CPUS, size, layout);
    let hold = match input.byte() % 8 {
        7 => return stay_within_bound(&mut input),
        hold if hold % 2 == 0 => Hold::None,
        _ => Hold::FENCE,
    };
    let mut merge = Merge::new(kernel.rings(), Order::new().hold(hold).most_held(0)).expect("a merge");
    let mut models = CPUS.map(|cpu| {
        kernel.lose(cpu, LOSSES);
        let memory = vec![0; size];
        Model { cpu, memory, tail: 0, read: 0, before: None, lost: false, told: 0, late_by: BTreeMap::new() }
    });
    let mut heads = [0u64; 2];
    let mut last = 0;
    for _ in 0..8 {
        if input.0.is_empty() {
            break;
        }
        for (model, head) in models.iter_mut().zip(&mut heads) {
            let choice = input.byte();
            let len = usize::from(input.byte()) * 8 % (size + 1);
            let bytes = input.bytes(len);
            kernel.scribble(model.cpu, *head, &bytes);
            model.write(*head, &bytes);
            // Mostly where the bytes end, sometimes a little off, sometimes anywhere.
            *head = match choice % 16 {
                0 => input.word(),
                1 => head.wrapping_add(input.word() % (2 * size as u64)),
                2 => head.wrapping_sub(u64::from(input.byte())),
                _ => head.wrapping_add(len as u64),
            };
            kernel.force_head(model.cpu, *head);
        }
        let mut expected: Vec<Place> = Vec::new();
        for (model, head) in models.iter_mut().zip(heads) {
            model.look(head, sample_type, read_format, &mut expected);
        }
        expected.sort_by_key(|place| (place.order, place.cpu, place.position));
        merge.refresh(0);
        // No writer is inside a section: every fence ends at once.
        if merge.begin_fence() {
            merge.end_fence();
            merge.refresh(0);
        }
        for place in &expected {
            let event = merge.next().unwrap_or_else(|| panic!("nothing instead of {place:?}"));
            assert_eq!(event.cpu(), Some(place.cpu));
            assert_eq!(event.key(), place.own.then_some(place.order), "{place:?}");
            let model = models.iter_mut().find(|model| model.cpu == place.cpu).expect("a model");
            if place.own {
                let late_by = u64::saturating_sub(last, place.order);
                assert_eq!(event.late_by(), late_by, "{place:?}");
                model.late_by.insert(place.order, late_by);
            } else {
                // As late as the record before it in its ring, if that is still known.
                let known = model.late_by.get(&place.order).copied().unwrap_or(0);
                assert!([0, known].contains(&event.late_by()), "{place:?}");
            }
            let seen = match event.item() {
                Item::Record(record) => {
                    if place.own {
                        last = last.max(place.order);
                    }
                    let payload = record.payload().map(|payload| payload.to_vec());
                    Expected::Record(record.as_bytes().to_vec(), record.time(), payload)
                }
                Item::Lost(lost) => Expected::Lost(lost.count, lost.id),
                Item::Damage(damage) => Expected::Damage(damage.fault(), damage.bytes.to_vec()),
                other => panic!("{other:?}"),
            };
            assert_eq!(seen, place.what);
        }
        assert!(merge.next().is_none(), "more than expected");
        assert_eq!(merge.held(), 0);
        merge.advance_tails();
        for model in &models {
            assert_eq!(kernel.tail(model.cpu), model.tail, "all read bytes are released");
        }
    }
}

/// Runs of records that are separate events, of records without a key or number, and of samples, with a bound of
/// copies: they never exceed it, and all events come out.
fn stay_within_bound(input: &mut Input<'_>) {
    let most = [0, 1024, 2048, 8192, 64 << 20][usize::from(input.byte() % 5)];
    let choice = input.byte();
    let kernel = sim::Kernel::with(&CPUS, 4 << 10, Layout::new(TIME | RAW, choice.is_multiple_of(2), 0));
    let order = Order::new().most_held(most);
    let order = if choice & 2 == 0 { order } else { order.numbers(Key::Payload(0), None) };
    let mut merge = Merge::new(kernel.rings(), order).expect("a merge");
    let (mut time, mut left) = (1000, 1000);
    let turn = |merge: &mut Merge, taken: usize| {
        merge.refresh(0);
        let is_begun = merge.begin_fence();
        if is_begun {
            merge.end_fence();
            merge.refresh(0);
        }
        (0..taken).all(|_| merge.next().is_some());
        assert!(merge.status().most_memory <= most, "{most} bytes: {merge:?}");
        is_begun
    };
    while !input.0.is_empty() && left > 0 {
        let (choice, what) = (input.byte(), input.byte());
        let cpu = CPUS[usize::from(choice & 1)];
        let other = |kind, body: &[u64]| {
            // Records other than samples may have no time, and the order does not use it.
            kernel.begin(cpu, 1000);
            let body: Vec<u8> = body.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let written = kernel.write_other(cpu, kind, 0, &body);
            kernel.end(cpu);
            written
        };
        // One record, or as many as fit.
        let times = if choice & 2 == 0 { 1 } else { left };
        for n in 0..times {
            left -= 1;
            time += u64::from(choice >> 2);
            let written = match what % 8 {
                0 => other(bindings::PERF_RECORD_LOST, &[1, 1]),
                1 => other(bindings::PERF_RECORD_LOST, &[1, 0]),
                2 => other(bindings::PERF_RECORD_LOST, &[1, u64::MAX]),
                3 => other(bindings::PERF_RECORD_LOST, &[]),
                4 => other(bindings::PERF_RECORD_COMM, &[]),
                5 => kernel.emit(cpu, time, &u64::from(what / 8).wrapping_mul(n).to_ne_bytes()),
                6 => kernel.emit(cpu, time - 1000, &[what; 8]),
                _ => {
                    // So that LOST records have losses to report.
                    kernel.lose(cpu, u64::from(choice) * 8);
                    turn(&mut merge, usize::from(choice >> 2) * 8);
                    false
                }
            };
            if !written {
                break;
            }
        }
    }
    for turns in 0.. {
        assert!(turns < 10_000, "it stalls: {merge:?}");
        if !turn(&mut merge, usize::MAX) && merge.held() == 0 && !merge.is_behind() {
            break;
        }
    }
}

impl Expected {
    /// As it is told: both kinds of losses in the same way.
    pub(crate) fn told(self) -> Self {
        match self {
            Self::LostSamples(count, id) => Self::Lost(count, id),
            other => other,
        }
    }
}

impl Model {
    fn write(&mut self, position: u64, bytes: &[u8]) {
        for (at, byte) in (position..=u64::MAX).chain(0..).zip(bytes) {
            let at = at as usize % self.memory.len();
            self.memory[at] = *byte;
        }
    }

    /// One refresh: everything up to the head, in ring order.
    fn look(&mut self, head: u64, sample_type: u64, read_format: u64, out: &mut Vec<Place>) {
        if std::mem::take(&mut self.lost) {
            self.tail = head;
        }
        let size = self.memory.len() as u64;
        let ahead = head.wrapping_sub(self.tail);
        if ahead > size {
            self.lost = true;
            let fault = Fault::Head { from: self.read, to: self.read.wrapping_add(ahead), size };
            return self.push(self.read as usize, None, Expected::Damage(fault, Vec::new()), out);
        }
        let bytes: Vec<u8> =
            (0..ahead).map(|at| self.memory[self.tail.wrapping_add(at) as usize % self.memory.len()]).collect();
        let mut at = 0;
        let mut lost: Option<(usize, Expected)> = None;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let position = self.read as usize + at;
            let (len, own, what) = decode(rest, sample_type, read_format);
            let (own, what) = match what {
                Expected::Lost(count, _) if self.told.saturating_add(count) > LOSSES => {
                    let fault = Fault::Lost { count, most: LOSSES - self.told };
                    (None, Expected::Damage(fault, rest[..len].to_vec()))
                }
                Expected::Lost(count, _) => {
                    self.told += count;
                    (own, what)
                }
                _ => (own, what),
            };
            let is_lost = matches!(what, Expected::Lost(..));
            // A LOST record has the key of the record right after it. A loss with the count 0 is no event.
            if let Some((position, loss)) = lost.take() {
                let key = if is_lost || matches!(what, Expected::Damage(..)) { None } else { own };
                if !matches!(loss, Expected::Lost(0, _)) {
                    self.push(position, key, loss, out);
                }
            }
            if is_lost {
                lost = Some((position, what));
            } else {
                if !matches!(what, Expected::LostSamples(0, _)) {
                    self.push(position, own, what.told(), out);
                }
                self.before = own.or(self.before);
            }
            at += len;
        }
        if let Some((position, loss)) = lost.filter(|(_, loss)| !matches!(loss, Expected::Lost(0, _))) {
            self.push(position, None, loss, out);
        }
        self.tail = head;
        self.read += ahead;
    }

    fn push(&self, position: usize, own: Option<u64>, what: Expected, out: &mut Vec<Place>) {
        let order = own.or(self.before).unwrap_or(0);
        out.push(Place { order, cpu: self.cpu, position, own: own.is_some(), what });
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// The piece at the start of `rest`, up to the head: its length, its own key, and its kind.
pub(crate) fn decode(rest: &[u8], sample_type: u64, read_format: u64) -> (usize, Option<u64>, Expected) {
    let room = rest.len() as u64;
    let damage = |fault, len: usize| (len, None, Expected::Damage(fault, rest[..len].to_vec()));
    if rest.len() < 8 {
        return damage(Fault::Size { size: 0, room }, rest.len());
    }
    let kind = u32::from_ne_bytes(rest[..4].try_into().expect("four bytes"));
    let size = u16::from_ne_bytes(rest[6..8].try_into().expect("two bytes"));
    let len = usize::from(size);
    if len < 8 || len % 8 != 0 || len > rest.len() {
        return damage(Fault::Size { size: size.into(), room }, rest.len());
    }
    let record = &rest[..len];
    let has = |field| sample_type & field != 0;
    let count = |fields: &[u64]| fields.iter().filter(|field| has(**field)).count();
    if kind != 9 {
        let trailer = 8 * count(&[TID, TIME, IDENTIFIER]);
        let body = match kind {
            bindings::PERF_RECORD_LOST => 16,
            bindings::PERF_RECORD_LOST_SAMPLES => 8,
            _ => 0,
        };
        if len < 8 + body + trailer {
            return damage(Fault::Short { size }, len);
        }
        let time_at = len - trailer + 8 * count(&[TID]);
        let time = word(record, time_at);
        if kind == bindings::PERF_RECORD_LOST_SAMPLES {
            let lost = word(record, 8).expect("a count");
            if lost > LOST_SAMPLES {
                return damage(Fault::Lost { count: lost, most: LOST_SAMPLES }, len);
            }
            // The last of the fields that a record's end has.
            let id = if has(IDENTIFIER) { word(record, len - 8).expect("an id") } else { 0 };
            return (len, time, Expected::LostSamples(lost, id));
        }
        if kind == bindings::PERF_RECORD_LOST {
            let (id, lost) = (word(record, 8).expect("an id"), word(record, 16).expect("a count"));
            return (len, time, Expected::Lost(lost, id));
        }
        return (len, time, Expected::Record(record.to_vec(), time, None));
    }
    let time_at = 8 + 8 * count(&[IDENTIFIER, TID]);
    let mut at = Some(8 + 8 * count(&[IDENTIFIER, TID, TIME]));
    if has(READ) {
        // GROUP | ID: nr, then (value, id) this many times.
        assert_eq!(read_format, 4 | 8);
        let skip =
            at.and_then(|at| word(record, at)).and_then(|nr| usize::try_from(nr).ok()?.checked_mul(16)?.checked_add(8));
        at = at.and_then(|at| at.checked_add(skip?));
    }
    if has(CALLCHAIN) {
        let skip =
            at.and_then(|at| word(record, at)).and_then(|nr| usize::try_from(nr).ok()?.checked_mul(8)?.checked_add(8));
        at = at.and_then(|at| at.checked_add(skip?));
    }
    let Some(at) = at.filter(|at| *at <= len) else { return damage(Fault::Short { size }, len) };
    let time = word(record, time_at);
    if !has(RAW) {
        return (len, time, Expected::Record(record.to_vec(), time, None));
    }
    let Some(raw_size) = record.get(at..at + 4) else { return damage(Fault::Short { size }, len) };
    let raw_size = u32::from_ne_bytes(raw_size.try_into().expect("four bytes"));
    match record[at + 4..].get(..raw_size as usize) {
        Some(raw) => (len, time, Expected::Record(record.to_vec(), time, Some(raw.to_vec()))),
        None => damage(Fault::Raw { raw_size, room: (len - at - 4) as u32 }, len),
    }
}
