//! Feeds any bytes and any heads to a recorder of two rings, and compares what its copies hold with what a very simple
//! decoder finds, which first copies the bytes out. That a merge puts records in order `raw_bytes` shows.

use crate::raw_bytes::{CPUS, Expected, Input, LAYOUTS, LOSSES, decode};
use perf_event_open_sys::bindings;
use perfweave::{Fault, Item, Layout, Merge, Order, sim};

/// One input: a layout, a ring size, and rounds of writing and copying.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let (sample_type, read_format) = LAYOUTS[usize::from(input.byte()) % LAYOUTS.len()];
    let size = 64usize << (input.byte() % 6);
    let kernel = sim::Kernel::backward(&CPUS, size, Layout::new(sample_type, true, read_format));
    CPUS.iter().for_each(|cpu| kernel.lose(*cpu, LOSSES));
    let mut recorder = kernel.recorder().expect("a recorder");
    let mut memories = CPUS.map(|_| vec![0u8; size]);
    let mut heads = [0u64; 2];
    for _ in 0..8 {
        if input.0.is_empty() {
            break;
        }
        let mut expected: Vec<(u32, Expected)> = Vec::new();
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
            let (found, from) = read_back(memory, *head, sample_type, read_format);
            expected.extend(found.into_iter().map(|what| (cpu, what)));
            complete = complete.max(from);
        }
        let rings = recorder.freeze().expect("nobody is inside a section");
        assert_eq!(recorder.complete_from(), complete);
        let mut merge = Merge::new(rings, Order::new()).expect("a merge");
        merge.refresh(0);
        let mut last = 0;
        for event in merge.batch() {
            let cpu = event.cpu().expect("a ring has a CPU");
            assert!(event.late_by() == 0 && event.key().is_none_or(|key| key >= last), "{event:?} after {last}");
            last = event.key().unwrap_or(last);
            let seen = match event.item() {
                Item::Record(record) => {
                    assert_eq!(event.key(), record.time());
                    let payload = record.payload().map(|payload| payload.to_vec());
                    Expected::Record(record.as_bytes().to_vec(), record.time(), payload)
                }
                Item::Lost(lost) => {
                    assert_eq!(lost.until, event.key());
                    Expected::Lost(lost.count, lost.id)
                }
                Item::Damage(damage) => Expected::Damage(damage.fault(), damage.bytes.to_vec()),
                other => panic!("{other:?}"),
            };
            let at = expected.iter().position(|of| *of == (cpu, seen.clone()));
            expected.swap_remove(at.unwrap_or_else(|| panic!("{seen:?} of CPU {cpu} in none of {expected:?}")));
        }
        assert!(expected.is_empty(), "{expected:?}");
    }
}

/// All events of a ring, and from when on it is complete if records are missing.
fn read_back(memory: &[u8], head: u64, sample_type: u64, read_format: u64) -> (Vec<Expected>, Option<u64>) {
    let size = memory.len() as u64;
    let written = head.wrapping_neg();
    let bytes: Vec<u8> =
        (0..written.min(size)).map(|at| memory[head.wrapping_add(at) as usize % memory.len()]).collect();
    let mut missing = written > size;
    // Newest first. What was reserved at once lies together, in its order.
    let mut reservations: Vec<Vec<(Expected, &[u8])>> = vec![Vec::new()];
    let mut times = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let kind = rest.first_chunk().map(|kind| u32::from_ne_bytes(*kind));
        let (len, time, what) = decode(rest, sample_type, read_format);
        at += len;
        if let Expected::Damage(Fault::Size { size: said, .. }, _) = &what {
            // The newest record overwrites the end of the oldest; a record that could never have been whole is damage.
            let said = u64::from(*said);
            if written > size && said % 8 == 0 && said > rest.len() as u64 && said <= size {
                break;
            }
            missing = true;
            reservations.push(vec![(what, rest)]);
            break;
        }
        if !matches!(kind, Some(bindings::PERF_RECORD_LOST | bindings::PERF_RECORD_LOST_SAMPLES)) {
            times.push(time.unwrap_or(u64::MAX));
        }
        reservations.last_mut().expect("one").push((what, &rest[..len]));
        if kind != Some(bindings::PERF_RECORD_LOST) {
            reservations.push(Vec::new());
        }
    }
    let mut told = 0u64;
    let events = reservations.into_iter().rev().flatten().filter(|(what, _)| {
        // A loss with the count 0 is no event.
        !matches!(what, Expected::Lost(0, _) | Expected::LostSamples(0, _))
    });
    let events = events.map(|(what, bytes)| match what {
        Expected::Lost(count, _) if told.saturating_add(count) > LOSSES => {
            Expected::Damage(Fault::Lost { count, most: LOSSES - told }, bytes.to_vec())
        }
        Expected::Lost(count, _) => {
            told += count;
            what
        }
        _ => what.told(),
    });
    let events = events.collect();
    let oldest = times.iter().rev().take(4);
    let from = if times.len() < 4 { Some(u64::MAX) } else { oldest.max().copied() };
    (events, from.filter(|_| missing))
}
