//! Feeds any bytes and any heads to a recorder of two rings, and compares its events with those of a very simple
//! decoder, which first copies the bytes out, and sorts.

use crate::raw_bytes::{CPUS, Expected, Input, LAYOUTS, LOSSES, decode};
use perfweave::{Fault, Item, Key, Layout, sim};

/// An expected event with its sort key, and its own key.
#[derive(Debug)]
struct Place {
    order: u64,
    key: Option<u64>,
    what: Expected,
    /// Of a loss.
    after: Option<u64>,
}

/// One input: a layout, a ring size, and rounds of writing and freezing.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let (sample_type, read_format) = LAYOUTS[usize::from(input.byte()) % LAYOUTS.len()];
    let size = 64usize << (input.byte() % 6);
    let kernel = sim::Kernel::backward(&CPUS, size, Layout::new(sample_type, true, read_format));
    CPUS.iter().for_each(|cpu| kernel.lose(*cpu, LOSSES));
    let mut recorder = kernel.recorder(Key::Time).expect("a recorder");
    let mut memories = CPUS.map(|_| vec![0u8; size]);
    let mut heads = [0u64; 2];
    for _ in 0..8 {
        if input.0.is_empty() {
            break;
        }
        let mut expected: Vec<(u32, Place)> = Vec::new();
        let mut complete = None;
        for ((cpu, memory), head) in CPUS.into_iter().zip(&mut memories).zip(&mut heads) {
            let choice = input.byte();
            let len = usize::from(input.byte()) * 8 % (size + 1);
            let bytes = input.bytes(len);
            // Mostly where the bytes begin, sometimes a little off, sometimes anywhere.
            let begin = head.wrapping_sub(len as u64);
            *head = match choice % 16 {
                0 => input.word(),
                1 => head.wrapping_sub(input.word() % (2 * size as u64)),
                2 => head.wrapping_add(u64::from(input.byte())),
                _ => begin,
            };
            kernel.scribble(cpu, begin, &bytes);
            kernel.force_head(cpu, *head);
            for (at, byte) in bytes.iter().enumerate() {
                memory[begin.wrapping_add(at as u64) as usize % size] = *byte;
            }
            let (places, from) = read_back(memory, *head, sample_type, read_format);
            expected.extend(places.into_iter().map(|place| (cpu, place)));
            complete = complete.max(from);
        }
        // Stable: equal ones stay by CPU, then by age.
        expected.sort_by_key(|(_, place)| place.order);
        let frozen = recorder.freeze().expect("nobody is inside a section");
        assert_eq!(frozen.complete_from(), complete);
        assert_eq!(frozen.events().len(), expected.len());
        for (event, (cpu, place)) in frozen.events().zip(&expected) {
            assert_eq!((event.cpu(), event.key(), event.late_by()), (Some(*cpu), place.key, 0), "{place:?}");
            let seen = match event.item() {
                Item::Record(record) => {
                    let payload = record.payload().map(|payload| payload.to_vec());
                    Expected::Record(record.as_bytes().to_vec(), record.time(), payload)
                }
                Item::Lost(lost) => {
                    assert_eq!((lost.after, lost.until), (place.after, place.key));
                    Expected::Lost(lost.count, lost.id)
                }
                Item::Damage(damage) => Expected::Damage(damage.fault, damage.bytes.to_vec()),
                other => panic!("{other:?}"),
            };
            assert_eq!(seen, place.what);
        }
        let keys = |event: perfweave::Event<'_>| event.key();
        assert!(frozen.events().rev().map(keys).eq(expected.iter().rev().map(|(_, place)| place.key)));
    }
}

/// All events of a ring, oldest first, and from when on it is complete if records are missing.
fn read_back(memory: &[u8], head: u64, sample_type: u64, read_format: u64) -> (Vec<Place>, Option<u64>) {
    let size = memory.len() as u64;
    let written = head.wrapping_neg();
    let bytes: Vec<u8> =
        (0..written.min(size)).map(|at| memory[head.wrapping_add(at) as usize % memory.len()]).collect();
    let mut missing = written > size;
    // Newest first.
    let mut stretches = Vec::new();
    let (mut at, mut told) = (0, 0u64);
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (len, key, what) = decode(rest, sample_type, read_format);
        let (key, what) = match what {
            Expected::Lost(count, _) if told.saturating_add(count) > LOSSES => {
                let fault = Fault::Lost { count, most: LOSSES - told };
                (None, Expected::Damage(fault, rest[..len].to_vec()))
            }
            Expected::Lost(count, _) => {
                told += count;
                (key, what)
            }
            _ => (key, what),
        };
        if let Expected::Damage(Fault::Size { size: said, .. }, _) = &what {
            // The newest record overwrites the end of the oldest; a record that could never have been whole is damage.
            let said = u64::from(*said);
            if written > size && said % 8 == 0 && said > rest.len() as u64 && said <= size {
                break;
            }
            missing = true;
        }
        // A loss with the count 0 is no event.
        if !matches!(what, Expected::Lost(0, _) | Expected::LostSamples(0, _)) {
            stretches.push((key, what));
        }
        at += len;
    }
    let mut places: Vec<Place> = Vec::new();
    for (key, what) in stretches.into_iter().rev() {
        let lost = matches!(what, Expected::Lost(..));
        let what = what.told();
        // A loss comes before the record after it in the ring, and has its key.
        let at = places.len() - usize::from(lost && !places.is_empty());
        let key = if lost { places.get(at).and_then(|record| record.key) } else { key };
        places.insert(at, Place { order: 0, key, what, after: None });
    }
    let first = places.iter().find_map(|place| place.key);
    let mut before = None;
    for place in &mut places {
        place.order = place.key.or(before).or(first).unwrap_or(0);
        place.after = before;
        if !matches!(place.what, Expected::Lost(..)) {
            before = place.key.or(before);
        }
    }
    let records = places.iter().filter(|place| matches!(place.what, Expected::Record(..)));
    let oldest: Vec<u64> = records.filter_map(|place| place.key).take(4).collect();
    let from = if oldest.len() == 4 { oldest.into_iter().max() } else { Some(u64::MAX) };
    (places, from.filter(|_| missing))
}
