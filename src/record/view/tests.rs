use super::*;
use crate::record::layout::READ;
use crate::record::{CPU, IDENTIFIER, Sources, TID, TIME};
use perf_event_open_sys::bindings as sys;

fn origin(layout: Layout) -> Arc<Origin> {
    Arc::new(Origin::new(3, layout, [(7, 0), (9, 1)].into_iter().collect()))
}

fn record<'a>(kind: u32, words: &'a mut Vec<u8>, origin: &'a Arc<Origin>, body: &[u64]) -> Record<'a> {
    words.clear();
    let size = 8 + 8 * body.len() as u16;
    words.extend(kind.to_ne_bytes());
    words.extend(1u16.to_ne_bytes());
    words.extend(size.to_ne_bytes());
    body.iter().for_each(|word| words.extend(word.to_ne_bytes()));
    let header = Bytes::from(&words[..8]).u64(0).unwrap();
    Record::new(Bytes::from(&words[..]), Header::unchecked(header), origin)
}

fn two(low: u32, high: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&low.to_ne_bytes());
    bytes[4..].copy_from_slice(&high.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

#[test]
fn a_layout_is_what_was_asked_for() {
    let layout = Layout::new(RAW | TIME | READ | CALLCHAIN | TID, true, 12);
    assert_eq!(
        (layout.sample_type(), layout.sample_id_all(), layout.read_format()),
        (RAW | TIME | READ | CALLCHAIN | TID, true, 12)
    );
    assert_eq!((layout.has_time(), layout.trailer_len(), layout.smallest()), (true, 16, 8 + 16 + 24));
    let layout = Layout::new(RAW | TIME, false, 0);
    assert_eq!(
        (layout.sample_id_all(), layout.read_format(), layout.trailer_len(), layout.smallest()),
        (false, 0, 0, 24)
    );
    assert!(!Layout::RAW.has_time());
}

#[test]
fn fields_lie_where_the_manual_says() {
    let origin = origin(Layout::new(RAW | TIME | CPU | IDENTIFIER | TID, true, 0));
    let mut bytes = Vec::new();
    let sample =
        record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, &[9, two(10, 11), 555, two(3, 0), two(4, 0xabcd)]);
    assert_eq!(sample.check(), Ok(()));
    assert_eq!(sample.id(), Some(9));
    assert_eq!(sample.source(), Some(1));
    assert_eq!(sample.pid_tid(), Some((10, 11)));
    assert_eq!(sample.time(), Some(555));
    assert_eq!(sample.payload().unwrap().u32(0), Some(0xabcd));
    assert_eq!((sample.cpu(), sample.misc()), (3, 1));

    // struct lost { id, lost }, then TID, TIME, CPU, IDENTIFIER.
    let lost = record(sys::PERF_RECORD_LOST, &mut bytes, &origin, &[7, 12, two(10, 11), 556, two(3, 0), 7]);
    assert_eq!(lost.check(), Ok(()));
    assert_eq!(lost.lost(), Some((7, 12)));
    assert_eq!(lost.time(), Some(556));
    assert_eq!(lost.id(), Some(7));
    assert_eq!(lost.pid_tid(), Some((10, 11)));
    assert_eq!(lost.payload(), None);
}

#[test]
fn a_raw_only_ring_has_neither_time_nor_id() {
    let origin = Arc::new(Origin::new(3, Layout::RAW, [(0, 0)].into_iter().collect()));
    let mut bytes = Vec::new();
    let sample = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, &[two(12, 1), two(2, 3)]);
    assert_eq!(sample.check(), Ok(()));
    assert_eq!((sample.time(), sample.id(), sample.pid_tid()), (None, None, None));
    assert_eq!(sample.source(), Some(0));
    assert_eq!(sample.payload().unwrap().len(), 12);
    let lost = record(sys::PERF_RECORD_LOST, &mut bytes, &origin, &[1, 5]);
    assert_eq!((lost.check(), lost.lost(), lost.time()), (Ok(()), Some((1, 5)), None));
}

#[test]
fn raw_data_is_found_behind_read_and_callchain() {
    let read_format = u64::from(sys::PERF_FORMAT_GROUP | sys::PERF_FORMAT_ID | sys::PERF_FORMAT_TOTAL_TIME_ENABLED);
    let origin = origin(Layout::new(RAW | TIME | READ | CALLCHAIN, true, read_format));
    let mut bytes = Vec::new();
    let sample = record(
        sys::PERF_RECORD_SAMPLE,
        &mut bytes,
        &origin,
        // time; nr = 2, enabled, (value, id) twice; nr = 3, three frames; raw.
        &[555, 2, 99, 1, 2, 3, 4, 3, 0xa, 0xb, 0xc, two(4, 0xabcd)],
    );
    assert_eq!(sample.check(), Ok(()));
    assert_eq!(sample.payload().unwrap().u32(0), Some(0xabcd));
    assert_eq!(sample.callchain().unwrap().collect::<Vec<_>>(), [0xa, 0xb, 0xc]);
    assert_eq!(sample.callchain().unwrap().len(), 3);
    assert_eq!(sample.field(READ).unwrap().len(), 48);

    for wild in [u64::MAX, u64::MAX / 8, 1 << 61, 1 << 60, 100] {
        let sample = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, &[555, wild, 99, 1, 2]);
        assert_eq!(sample.check(), Err(Fault::Short { size: 48 }), "{wild}");
        assert_eq!(sample.payload(), None);
        let sample = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, &[555, 0, 99, wild, 2]);
        assert_eq!(sample.check(), Err(Fault::Short { size: 48 }), "{wild}");
        assert!(sample.callchain().is_none() && sample.field(CALLCHAIN).is_none());
    }
}

/// Each field is found at its offset, for any other fields that the events of a ring request.
#[test]
fn fields_that_others_move_are_found() {
    let mut bytes = Vec::new();
    let asked = [(IP, 0x1000), (TIME, 555), (ADDR, 0x2000), (PERIOD, 77)];
    for others in 0..16 {
        let others: Vec<_> = (0..4).filter(|at| others >> at & 1 == 1).map(|at| asked[at]).collect();
        for identified in [false, true] {
            let id = if identified { IDENTIFIER } else { 0 };
            let origin = origin(Layout::new(others.iter().map(|(field, _)| field).sum::<u64>() | id, true, 0));
            let mut body = if identified { vec![9] } else { vec![] };
            body.extend(others.iter().map(|(_, value)| *value));
            let sample = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, &body);
            let found = [(IP, sample.ip()), (TIME, sample.time()), (ADDR, sample.addr()), (PERIOD, sample.period())];
            let known = |field| others.iter().find(|(other, _)| *other == field).map(|(_, value)| *value);
            assert!(found.iter().all(|(field, value)| *value == known(*field)), "{found:x?}, {others:x?}");
            assert!(found.iter().all(|(field, value)| sample.field(*field).map(|f| f.u64(0).unwrap()) == *value));
            let other = record(sys::PERF_RECORD_EXIT, &mut bytes, &origin, &[9; 9]);
            assert_eq!((other.ip(), other.addr(), other.period(), other.field(IP)), (None, None, None, None));
        }
    }
}

/// All contents of a READ field, by the `read_format` of the event (perf_event_open(2), "Reading results").
#[test]
fn raw_data_is_found_behind_read_values_of_any_format() {
    let times = [sys::PERF_FORMAT_TOTAL_TIME_ENABLED, sys::PERF_FORMAT_TOTAL_TIME_RUNNING];
    let with_each = [sys::PERF_FORMAT_ID, sys::PERF_FORMAT_LOST];
    for asked in 0..16u32 {
        let on = |bits: [u32; 2], at: u32| {
            (0..2).filter(move |bit| asked >> at >> bit & 1 == 1).map(move |bit| bits[bit as usize])
        };
        let (times, with_each): (Vec<u32>, Vec<u32>) = (on(times, 0).collect(), on(with_each, 2).collect());
        for group in [None, Some(0), Some(1), Some(3)] {
            let format = times.iter().chain(&with_each).fold(0, |all, bit| all | bit);
            let format = format | group.map_or(0, |_| sys::PERF_FORMAT_GROUP);
            let origin = origin(Layout::new(RAW | TIME | READ, true, format.into()));
            let values = group.unwrap_or(1) as usize * (1 + with_each.len());
            let mut body = vec![555];
            body.extend(group);
            body.extend(vec![7; times.len() + values]);
            let raw = two(4, 0xabcd);
            body.push(raw);
            let mut bytes = Vec::new();
            let sample = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, &body);
            assert_eq!(sample.check(), Ok(()), "{format:#x}, {group:?}");
            assert_eq!(sample.payload().unwrap().u32(0), Some(0xabcd), "{format:#x}, {group:?}");
            // Without the raw data it is too short.
            body.pop();
            let size = 8 * (1 + body.len() as u16);
            let sample = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, &body);
            assert_eq!(sample.check(), Err(Fault::Short { size }), "{format:#x}, {group:?}");
        }
    }
}

/// A call chain without a READ field before it has the right offset, and samples without raw data are valid.
#[test]
fn samples_have_what_they_were_asked_for_and_nothing_else() {
    let mut bytes = Vec::new();
    let chain = origin(Layout::new(RAW | TIME | CALLCHAIN, true, 0));
    let sample = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &chain, &[555, 2, 0xa, 0xb, two(4, 0xabcd)]);
    assert_eq!((sample.check(), sample.payload().unwrap().u32(0)), (Ok(()), Some(0xabcd)));
    for (asked, body) in [(TIME, &[555][..]), (TIME | CALLCHAIN, &[555, 1, 0xa]), (TIME | READ, &[555, 9])] {
        let origin = origin(Layout::new(asked, true, 0));
        let sample = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, body);
        assert_eq!((sample.check(), sample.payload(), sample.time()), (Ok(()), None, Some(555)), "{asked:#x}");
        let short = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, &body[1..]);
        assert_eq!(short.check(), Err(Fault::Short { size: 8 * body.len() as u16 }), "{asked:#x}");
    }
}

#[test]
fn what_does_not_fit_is_a_fault() {
    let origin = origin(Layout::new(RAW | TIME, true, 0));
    let mut bytes = Vec::new();
    let sample = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, &[555, two(5, 0)]);
    assert_eq!(sample.check(), Err(Fault::Raw { raw_size: 5, room: 4 }));
    assert_eq!(sample.payload(), None);
    let sample = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, &[555, two(u32::MAX, 0)]);
    assert_eq!(sample.check(), Err(Fault::Raw { raw_size: u32::MAX, room: 4 }));
    let sample = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, &[555]);
    assert_eq!(sample.check(), Err(Fault::Short { size: 16 }));
    let sample = record(sys::PERF_RECORD_SAMPLE, &mut bytes, &origin, &[]);
    assert_eq!((sample.check(), sample.time()), (Err(Fault::Short { size: 8 }), None));
    let lost = record(sys::PERF_RECORD_LOST, &mut bytes, &origin, &[1, 2]);
    assert_eq!(lost.check(), Err(Fault::Short { size: 24 }), "no room for the time");
    let other = record(200, &mut bytes, &origin, &[]);
    assert_eq!(other.check(), Err(Fault::Short { size: 8 }));
    let other = record(200, &mut bytes, &origin, &[8]);
    assert_eq!((other.check(), other.time()), (Ok(()), Some(8)));
}

#[test]
fn ids_of_dead_events_are_known_for_as_long_as_their_records_may_lie_in_the_ring() {
    let ids = |ids: [u64; 2]| ids.into_iter().zip(0..).collect::<Sources>();
    let mut origin = Origin::new(3, Layout::RAW, ids([10, 11]));
    // A CPU that goes and comes back again and again, while nothing is read.
    for n in 2..10u64 {
        origin = origin.with(ids([10 * n, 10 * n + 1]), 100 * n, 0);
        assert_eq!((origin.source(10), origin.source(11)), (Some(0), Some(1)));
        assert_eq!((origin.source(10 * n), origin.source(10 * n + 1), origin.source(7)), (Some(0), Some(1), None));
    }
    assert_eq!(origin.past.len(), 8);
    // All records before 500 have been read.
    origin = origin.with(ids([1000, 1001]), 1000, 500);
    assert_eq!((origin.source(40), origin.source(50), origin.source(1001)), (None, Some(0), Some(1)));
    // If all records are read, the list never grows.
    for n in 1..1000u64 {
        origin = origin.with(ids([5 * n, 5 * n + 1]), 2000 + n, 2000 + n);
        assert_eq!(origin.past.len(), 0);
    }
}

#[test]
fn records_need_no_id_where_all_are_of_one_source() {
    let sources = |ids: &[(u64, usize)]| ids.iter().copied().collect::<Sources>();
    let source = |origin: &Origin| {
        let origin = Arc::new(origin.clone());
        record(sys::PERF_RECORD_SAMPLE, &mut Vec::new(), &origin, &[two(4, 0)]).source()
    };
    // Two events of one source, as on a CPU that came back.
    let one = Origin::new(0, Layout::RAW, sources(&[(10, 5), (11, 5)]));
    assert_eq!(source(&one), Some(5));
    assert_eq!(source(&Origin::new(0, Layout::RAW, sources(&[(10, 5), (11, 6)]))), None);
    assert_eq!(source(&Origin::new(0, Layout::RAW, sources(&[]))), None);
    assert_eq!(source(&one.with(sources(&[(20, 5)]), 100, 0)), Some(5));
    // The ids come in any order.
    let many = Origin::new(0, Layout::RAW, sources(&[(9, 1), (3, 0), (7, 4), (5, 2)]));
    assert_eq!([3, 5, 7, 9, 4].map(|id| many.source(id)), [Some(0), Some(2), Some(4), Some(1), None]);
    // Records of others may lie before, until all of those are read.
    let other = one.with(sources(&[(20, 6)]), 100, 0);
    assert_eq!((source(&other), other.source(11), other.source(20)), (None, Some(5), Some(6)));
    assert_eq!(source(&other.with(sources(&[(30, 6)]), 200, 99)), None);
    assert_eq!(source(&one.with(sources(&[(20, 6)]), 100, 100)), Some(6));
}
