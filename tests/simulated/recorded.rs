//! [`Recording`]: readers of other formats feed the merge by it. Here the format is one that was made up: lines of
//! text.

use perf_event_open_sys::bindings;
use perf_event_open_sys::bindings::{PERF_TYPE_TRACEPOINT, perf_event_attr};
use perfweave::{
    Certainty, Clock, ClockOffset, Ended, ErrorKind, Hold, Item, Key, Layout, Merge, Order, Reader, Recording, Rings,
    sim,
};
use std::mem::offset_of;
use std::time::Duration;

/// IDENTIFIER, TIME, CPU and RAW.
const LAYOUT: Layout = Layout::new(1 << 16 | 1 << 2 | 1 << 7 | 1 << 10, true, 0);

/// Bytes of a sample or a loss at most.
const LONGEST: u64 = 64;

/// A sample with these fields, as perf_event_open(2) has it.
fn sample(id: u64, time: u64, cpu: u32, data: &[u8]) -> Vec<u8> {
    let raw = (4 + data.len()).next_multiple_of(8);
    let mut record = bindings::PERF_RECORD_SAMPLE.to_ne_bytes().to_vec();
    record.extend([0, (32 + raw) as u16].iter().flat_map(|half| half.to_ne_bytes()));
    record.extend([id, time].iter().flat_map(|word| word.to_ne_bytes()));
    record.extend([cpu, 0, raw as u32 - 4].iter().flat_map(|half| half.to_ne_bytes()));
    record.extend(data);
    record.resize(32 + raw, 0);
    record
}

/// The attribute of an event whose records have that layout.
fn attr() -> Vec<u8> {
    let mut attr = vec![0; size_of::<perf_event_attr>()];
    attr[offset_of!(perf_event_attr, sample_type)..][..8].copy_from_slice(&LAYOUT.sample_type().to_ne_bytes());
    // `sample_id_all`
    let flags = if cfg!(target_endian = "big") { 1u64 << 45 } else { 1 << 18 };
    attr[offset_of!(perf_event_attr, _bitfield_1)..][..8].copy_from_slice(&flags.to_ne_bytes());
    attr
}

/// `event NAME`; `CPU TIME EVENT TEXT`, where the event is an index; `CPU TIME lost COUNT`.
fn read(text: &str) -> Rings {
    let mut recording = Recording::new(Clock::Boottime, Some(ClockOffset { nanoseconds: 5, uncertainty: None }));
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let mut names = 0..;
    let ids: Vec<(u64, usize)> = lines
        .iter()
        .filter(|line| line[0] == "event")
        .map(|line| (100 + names.next().unwrap(), recording.event(line[1], &attr(), None)))
        .collect();
    let mut rings = std::collections::BTreeMap::new();
    for line in lines.iter().filter(|line| line[0] != "event") {
        let (cpu, time) = (line[0].parse().unwrap(), line[1].parse().unwrap());
        let room = LONGEST * lines.len() as u64;
        let ring = *rings.entry(cpu).or_insert_with(|| recording.ring(cpu, LAYOUT, ids.clone(), room).unwrap());
        match line[2] {
            "lost" => recording.write(ring, &lost(LAYOUT, line[3].parse().unwrap())).unwrap(),
            event => {
                let (id, _) = ids[event.parse::<usize>().unwrap()];
                recording.write(ring, &sample(id, time, cpu, line[3].as_bytes())).unwrap();
            }
        }
    }
    recording.facts(lines.len());
    recording.build()
}

/// A loss of so many records. The merge takes the place and the time of what follows.
fn lost(layout: Layout, count: u64) -> Vec<u8> {
    let len = 24 + layout.trailer_len();
    let mut record = bindings::PERF_RECORD_LOST.to_ne_bytes().to_vec();
    record.extend([0, len as u16].iter().flat_map(|half| half.to_ne_bytes()));
    record.extend([0, count].iter().flat_map(|word| word.to_ne_bytes()));
    record.resize(len, 0);
    record
}

/// What a stream gives, in words. The key is 0 where there is none: at a loss that no record follows, and at damage.
fn told(rings: Rings, order: Order) -> Vec<String> {
    let mut reader = Reader::new(rings, order).unwrap();
    let mut told = Vec::new();
    while let Some(event) = reader.next().unwrap() {
        assert_eq!(event.certainty(), Certainty::Proven);
        let what = match event.item() {
            Item::Record(record) => {
                let data = record.payload().unwrap().to_vec();
                let text = String::from_utf8_lossy(&data).trim_end_matches('\0').to_owned();
                format!("{:?} {text}", record.source())
            }
            Item::Lost(lost) => format!("lost {}", lost.count),
            Item::Damage(_) => "damage".into(),
            other => panic!("{other:?}"),
        };
        told.push(format!("{} {} {what}", event.key().unwrap_or(0), event.cpu().unwrap()));
    }
    assert_eq!(reader.ended(), Some(Ended::Recording));
    told
}

const TEXT: &str = "event open\nevent close\n0 10 0 a\n1 20 1 b\n0 40 1 d\n1 50 lost 3\n1 50 0 e\n0 30 0 c";

#[test]
fn a_format_that_was_made_up_is_read_in_order() {
    let expected =
        ["10 0 Some(0) a", "20 1 Some(1) b", "30 0 Some(0) c", "40 0 Some(1) d", "50 1 lost 3", "50 1 Some(0) e"];
    // No rule waits for anything.
    for hold in [Hold::FENCE, Hold::Lag(Duration::from_secs(9)), Hold::None] {
        assert_eq!(told(read(TEXT), Order::new().hold(hold)), expected);
    }
}

/// A package that writes takes such rings as it takes those of a kernel.
#[test]
fn what_was_read_of_one_format_is_written_in_another() {
    let path = std::env::temp_dir().join(format!("perfweave-made-up-{}.data", std::process::id()));
    let mut reader = Reader::new(read(TEXT), Order::new()).unwrap();
    let mut writer = perfweave_perf_data::Writer::create(&path, reader.rings()).unwrap();
    while let Some(event) = reader.next().unwrap() {
        writer.write(&event.event()).unwrap();
    }
    // Nothing of what runs here is in it.
    assert_eq!(writer.names(), perfweave_perf_data::Names::default());
    assert_eq!(writer.finish().unwrap().records, 5);
    let again = perfweave_perf_data::open(&path).unwrap();
    assert!(perfweave_perf_data::verify(&path).unwrap().holds());
    std::fs::remove_file(&path).unwrap();
    assert_eq!(again.sources().iter().map(|source| source.name()).collect::<Vec<_>>(), ["open", "close"]);
    assert_eq!(told(again, Order::new()), told(read(TEXT), Order::new()));
}

#[test]
fn the_rings_say_what_the_format_said() {
    let mut rings = read(TEXT);
    assert_eq!(rings.sources().iter().map(|source| source.name()).collect::<Vec<_>>(), ["open", "close"]);
    assert_eq!((rings.clock(), rings.wall_clock().unwrap().nanoseconds), (Clock::Boottime, 5));
    assert_eq!((rings.cpus().collect::<Vec<_>>(), rings.layouts().all(|layout| *layout == LAYOUT)), (vec![0, 1], true));
    assert_eq!(rings.ids().collect::<Vec<_>>(), [(100, 0), (101, 1), (100, 0), (101, 1)]);
    assert_eq!((rings.facts::<usize>(), rings.facts::<u32>()), (Some(&8), None));
    assert!(!rings.are_live() && rings.traced_threads().is_none());
    // Nor does a kernel write into simulated rings.
    assert!(!sim::Kernel::new(&[0]).rings().are_live());
    let (_buffer, ring) = sim::RingBuffer::new(4096);
    rings.add(2, ring, Layout::RING_BUFFER);
    assert_eq!(rings.facts::<usize>(), None, "another program may still write");
}

#[test]
fn records_of_one_event_need_no_ids() {
    let rings = read("event only\n0 1 0 a\n0 2 lost 1");
    assert_eq!(rings.ids().collect::<Vec<_>>(), [(0, 0)]);
    assert_eq!(told(rings, Order::new()), ["1 0 Some(0) a", "0 0 lost 1"]);
    // Without an event, records have no source. Ids of events that are not there are nobody's.
    let mut recording = Recording::new(Clock::Perf, None);
    let ring = recording.ring(3, LAYOUT, [(7, 0)], LONGEST).unwrap();
    recording.write(ring, &sample(7, 1, 3, b"x")).unwrap();
    assert_eq!(told(recording.build(), Order::new()), ["1 3 None x"]);
    assert_eq!(Recording::new(Clock::Realtime, None).build().wall_clock(), None);
}

/// An attribute is one of this machine, however long it is in the file.
#[test]
fn an_event_has_its_attribute_and_its_format() {
    let mut attr = vec![0; size_of::<perf_event_attr>()];
    attr[..4].copy_from_slice(&PERF_TYPE_TRACEPOINT.to_ne_bytes());
    attr[offset_of!(perf_event_attr, config)..][..8].copy_from_slice(&314u64.to_ne_bytes());
    let mut recording = Recording::new(Clock::Perf, None);
    for bytes in [&attr[..16], &attr, &[&attr[..], &[9; 8]].concat()] {
        let at = recording.event("tracepoint sched:sched_switch", bytes, Some("name: sched_switch"));
        assert!(recording.event("tracepoint 314", bytes, None) == at + 1);
    }
    recording.event("tracepoint a:b", &[], None);
    let rings = recording.build();
    let (last, others) = rings.sources().split_last().unwrap();
    assert_eq!((last.tracepoint(), last.tracepoint_id()), (None, None), "its attribute is another's");
    for pair in others.chunks_exact(2) {
        assert_eq!([pair[0].tracepoint(), pair[1].tracepoint()], [Some("sched:sched_switch"), None]);
        assert!(pair.iter().all(|source| source.tracepoint_id() == Some(314) && source.attr_bytes() == attr));
    }
    assert_eq!(perfweave_events::format(&rings, 0).unwrap(), "name: sched_switch");
    assert_eq!(perfweave_events::format(&rings, 1).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn what_has_no_room_is_refused_and_what_is_no_record_is_damage() {
    let mut recording = Recording::new(Clock::Perf, None);
    let (first, second) = (recording.ring(0, LAYOUT, [], 40).unwrap(), recording.ring(0, LAYOUT, [], 0).unwrap());
    recording.write(first, &sample(0, 1, 0, b"a")).unwrap();
    recording.write(first, &[0; 16]).unwrap();
    // 40 bytes are rounded up to 64.
    let refused = recording.write(first, &[0; 16]).unwrap_err();
    assert_eq!(
        (refused.kind(), refused.to_string().contains("room for 8 bytes, and not for 16")),
        (ErrorKind::InvalidInput, true)
    );
    assert_eq!(recording.write(second, &lost(LAYOUT, 1)).unwrap_err().kind(), ErrorKind::InvalidInput);
    recording.write(second, &[]).unwrap();
    assert_eq!(recording.ring(0, LAYOUT, [], (1 << 30) + 1).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(
        std::panic::catch_unwind(|| Recording::new(Clock::Perf, None).ring(0, Layout::RING_BUFFER, [], 8)).is_err()
    );
    assert_eq!(told(recording.build(), Order::new()), ["1 0 None a", "0 0 damage"]);
    assert!(Recording::available_memory().is_some_and(|bytes| bytes > 1 << 20));
}

/// A loss without `sample_id_all` has the place of what came before it.
#[test]
fn a_loss_may_have_no_time() {
    let layout = Layout::new((bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_ADDR).into(), false, 0);
    let mut recording = Recording::new(Clock::Perf, None);
    let ring = recording.ring(0, layout, [], 256).unwrap();
    for time in [5u64, 7] {
        let mut record = bindings::PERF_RECORD_SAMPLE.to_ne_bytes().to_vec();
        record.extend([0, 24u16].iter().flat_map(|half| half.to_ne_bytes()));
        record.extend([time, 0].iter().flat_map(|word| word.to_ne_bytes()));
        recording.write(ring, &record).unwrap();
        recording.write(ring, &lost(layout, time)).unwrap();
    }
    let mut merge = Merge::new(recording.build(), Order::new()).unwrap();
    merge.refresh(0);
    let lost: Vec<_> =
        merge.batch().filter_map(|event| event.item().lost()).map(|lost| (lost.count, lost.after)).collect();
    assert_eq!(lost, [(5, Some(5)), (7, Some(7))]);
}

/// What a verifier reads of records that are not in a ring of a kernel.
#[test]
fn a_key_reads_the_number_of_a_record() {
    let mut merge = Merge::new(read("event only\n0 1 0 abcdefgh"), Order::new()).unwrap();
    merge.refresh(0);
    let event = merge.next().unwrap();
    assert_eq!(Key::Payload(0).of(&event.record().unwrap()), Some(u64::from_ne_bytes(*b"abcdefgh")));
    assert_eq!(Key::Payload(8).of(&event.record().unwrap()), None);
}
