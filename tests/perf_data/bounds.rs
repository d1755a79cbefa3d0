//! A recording is indexed as a whole, in proven order, and takes as much memory as the documentation says.

use crate::memory;
use crate::perf::{File, drain};
use perf_event_open_sys::bindings;
use perfweave::{Certainty, Fence, Hold, Item, Key, Order, Reader, Record, Rings, sim};
use perfweave_perf_data as perf_data;
use quickcheck::QuickCheck;
use std::fs;

const SAMPLE_TYPE: u64 =
    (bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_ADDR | bindings::PERF_SAMPLE_CPU | bindings::PERF_SAMPLE_RAW)
        as u64;

/// Rings of a recording with these bytes in its record section.
fn recorded(records: &[u8]) -> Rings {
    let file = File::new();
    perf_data::Writer::create(&file.0, &sim::Kernel::new(&[0]).rings()).unwrap().finish().unwrap();
    let bytes = fs::read(&file.0).unwrap();
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let mut event = bytes[word(24)..word(24) + word(16)].to_vec();
    // `sample_type`, `sample_id_all`, and no ids.
    event[24..32].copy_from_slice(&SAMPLE_TYPE.to_ne_bytes());
    event[42] |= 1 << 2;
    let ids = event.len() - 16;
    event[ids..].fill(0);
    let mut all = [&bytes[..104], records, &event].concat();
    // The place of the event's description, the place of the records, and no other sections.
    for (at, word) in [(24, 104 + records.len()), (32, event.len()), (40, 104), (48, records.len()), (72, 0)] {
        all[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }
    perf_data::open(&File::with(&all).0).unwrap()
}

/// A record of a CPU.
fn sample(cpu: u32, time: u64, len: u16) -> Vec<u8> {
    // Header, time, address, CPU, length of the raw data.
    let size = 8 * (5 + len);
    let raw = 8 * len + 4;
    let words = [9 | u64::from(size) << 48, time, 0, u64::from(cpu), u64::from(raw)];
    let mut record: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    record.resize(size.into(), 7);
    // Raw data begins with the time, if there is room for it.
    if len > 0 {
        record[36..44].copy_from_slice(&time.to_ne_bytes());
    }
    record
}

/// Bytes that are no valid sample: its fields do not fit.
fn damage() -> Vec<u8> {
    (9 | 8u64 << 48).to_ne_bytes().to_vec()
}

/// The outcome of each event, and the peak of memory for them.
struct Read {
    events: Vec<(Option<u64>, Option<u32>, Certainty, usize)>,
    allocated: u64,
}

fn read(rings: Rings, order: Order) -> Read {
    let mut events = Vec::with_capacity(1 << 20);
    let (allocated, ()) = memory::most(|| {
        let mut reader = Reader::new(rings, order).unwrap();
        drain(&mut reader, |event| match event.item() {
            Item::Record(record) => events.push((event.key(), event.cpu(), event.certainty(), record.as_bytes().len())),
            Item::Damage(damage) => events.push((None, event.cpu(), event.certainty(), damage.bytes.len())),
            Item::Gap(_) | Item::Anomaly(_) => {}
            other => panic!("{other:?}"),
        });
    });
    Read { events, allocated }
}

/// The rings and their initial memory, without the memory for holding.
const FIXED: u64 = 256 << 10;

/// The memory for each kind of record as the documentation says it, while the old list and the new list both exist.
#[test]
fn a_record_takes_what_the_documentation_says() {
    let records = 100_000u64;
    let of = |record: fn(u64) -> Vec<u8>| recorded(&(0..records).flat_map(record).collect::<Vec<_>>());
    for (name, rings, most) in [
        ("in order", of(|n| sample(0, n, 0)), 18),
        ("out of order", of(|n| sample(0, u64::MAX / 2 - n, 0)), 80),
        ("damage", of(|_| damage()), 140),
    ] {
        let Read { events, allocated } = read(rings, Order::new());
        assert_eq!(events.len() as u64, records, "{name}");
        let each = allocated.saturating_sub(FIXED) / records;
        assert!(each <= most, "{each} bytes for a record: {name}");
    }
}

/// All small keys come last in their ring. The order is proven, whatever the bound on copies is.
#[test]
fn a_recording_is_indexed_as_a_whole() {
    let records = 50_000u64;
    let bytes: Vec<u8> = (0..records).flat_map(|n| sample(0, 1000 + n, 0)).chain(sample(0, 1, 0)).collect();
    for most in [0, 64 << 10, 64 << 20] {
        let Read { events, .. } = read(recorded(&bytes), Order::new().most_held(most));
        assert!(events[0].0 == Some(1) && events.len() as u64 == records + 1);
        assert!(events.iter().all(|(.., certainty, _)| *certainty == Certainty::Proven));
    }
}

/// Any recording, any bound, any kind of key: all is as without a bound.
#[test]
fn any_recording_under_any_bound() {
    fn property(records: Vec<(u8, u16, bool)>, times: u8, most: u16, kind: u8) -> bool {
        let mut bytes = Vec::new();
        for round in 0..=u64::from(times) {
            for (cpu, time, broken) in &records {
                let time = round * 30_000 + u64::from(*time);
                bytes.extend(if *broken && cpu % 8 == 0 { damage() } else { sample(u32::from(cpu % 4), time, 1) });
            }
        }
        if records.is_empty() {
            return true;
        }
        let order = |most| {
            let number = |record: &Record<'_>| record.payload()?.u64(0);
            let order = Order::new().most_held(most);
            match kind % 4 {
                0 => order.key(Key::Payload(0)).hold(Hold::Dense { first: None, fence: Fence::Auto }),
                1 => order.key(Key::Payload(0)),
                2 => order.key(Key::Fn(Box::new(number))).numbers(Key::Payload(0), None),
                _ => order,
            }
        };
        read(recorded(&bytes), order(most.into())).events == read(recorded(&bytes), order(usize::MAX)).events
    }
    QuickCheck::new().quickcheck(property as fn(_, _, _, _) -> _);
}
