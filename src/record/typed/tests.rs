//! Hand-made and hostile records.

use crate::record::{Layout, Origin, Record};
use crate::ring::{Bytes, Fault, Header};
use linux_perf_event_reader::{EventRecord, Mmap2FileId, RawData};
use perf_event_open_sys::bindings as sys;
use quickcheck::quickcheck;
use std::fmt::Write;
use std::sync::Arc;

fn origin(layout: Layout) -> Arc<Origin> {
    Arc::new(Origin::new(0, layout, [(7, 0)].into_iter().collect()))
}

/// A record of whole words, header included.
fn written(kind: u32, misc: u16, body: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(misc.to_ne_bytes());
    bytes.extend((8 + 8 * body.len() as u16).to_ne_bytes());
    body.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes
}

/// The record, which wraps after this many bytes.
fn record<'a>(bytes: &'a [u8], cut: usize, origin: &'a Arc<Origin>) -> Record<'a> {
    let (head, tail) = bytes.split_at(cut % bytes.len());
    Record::new(Bytes::new(head, tail), Header::unchecked(Bytes::from(bytes).u64(0).unwrap()), origin)
}

fn pair(low: u32, high: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&low.to_ne_bytes());
    bytes[4..].copy_from_slice(&high.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

fn bits(bits: &[u32]) -> u64 {
    bits.iter().map(|bit| u64::from(*bit)).sum()
}

/// Fields that linux-perf-event-reader itself misreads: values of READ, and fields after CGROUP.
#[test]
fn samples_are_taken_apart_wherever_they_wrap() {
    let asked = bits(&[
        sys::PERF_SAMPLE_IDENTIFIER,
        sys::PERF_SAMPLE_IP,
        sys::PERF_SAMPLE_TID,
        sys::PERF_SAMPLE_TIME,
        sys::PERF_SAMPLE_ADDR,
        sys::PERF_SAMPLE_CPU,
        sys::PERF_SAMPLE_PERIOD,
        sys::PERF_SAMPLE_READ,
        sys::PERF_SAMPLE_CALLCHAIN,
        sys::PERF_SAMPLE_RAW,
        sys::PERF_SAMPLE_REGS_USER,
        sys::PERF_SAMPLE_STACK_USER,
        sys::PERF_SAMPLE_REGS_INTR,
        sys::PERF_SAMPLE_CGROUP,
        sys::PERF_SAMPLE_DATA_PAGE_SIZE,
    ]);
    let layout = Layout::new(asked, true, u64::from(sys::PERF_FORMAT_LOST)).registers(0b1010, 0b1);
    let origin = origin(layout);
    let body = [
        &[7, 0x1000, pair(10, 11), 555, 0x2000, pair(3, 0), 77][..],
        &[99, 1],
        &[2, 0xa, 0xb],
        &[pair(4, 0xabcd)],
        &[2, 501, 503],
        &[16, 1, 2, 8],
        // No registers at the interrupt.
        &[0],
        &[4242],
        &[4096],
    ]
    .concat();
    let bytes = written(sys::PERF_RECORD_SAMPLE, sys::PERF_RECORD_MISC_USER as u16, &body);
    for cut in 0..bytes.len() {
        let record = record(&bytes, cut, &origin);
        let Ok(EventRecord::Sample(sample)) = record.decode() else { panic!("{:?}", record.decode()) };
        assert_eq!((sample.id, sample.ip, sample.pid, sample.tid), (Some(7), Some(0x1000), Some(10), Some(11)));
        assert_eq!(
            (sample.timestamp, sample.addr, sample.cpu, sample.period),
            (Some(555), Some(0x2000), Some(3), Some(77))
        );
        let chain = sample.callchain.unwrap();
        assert_eq!((chain.len(), chain.get(0), chain.get(1)), (2, Some(0xa), Some(0xb)));
        assert_eq!(*sample.raw.unwrap().as_slice(), 0xabcd_u32.to_ne_bytes());
        let registers = sample.user_regs.unwrap();
        assert_eq!([0, 1, 2, 3].map(|at| registers.get(at)), [None, Some(501), None, Some(503)]);
        let (stack, used) = sample.user_stack.unwrap();
        assert_eq!((stack.len(), used, sample.intr_regs), (16, 8, None));
        assert_eq!((sample.data_page_size, sample.code_page_size), (Some(4096), None));
        let cgroup = record.field(sys::PERF_SAMPLE_CGROUP).unwrap();
        assert_eq!(cgroup.u64(0), Some(4242));
    }
    // Without its last field it is too short.
    let bytes = written(sys::PERF_RECORD_SAMPLE, 0, &body[..body.len() - 1]);
    assert_eq!(record(&bytes, 0, &origin).decode(), Err(Fault::Short { size: bytes.len() as u16 }));
}

#[test]
fn other_records_are_typed_and_end_before_what_all_have() {
    let origin = origin(Layout::new(bits(&[sys::PERF_SAMPLE_TID, sys::PERF_SAMPLE_TIME]), true, 0));
    let trailer = [pair(10, 11), 555];
    let with = |body: &[u64]| [body, &trailer].concat();
    let decoded = |kind, misc, body: &[u64]| {
        let bytes = written(kind, misc, &with(body));
        let whole = format!("{:?}", record(&bytes, 0, &origin).decode());
        // For every place of the wrap the values are the same; only the errors may name another offset.
        for cut in 0..bytes.len() {
            let wrapped = format!("{:?}", record(&bytes, cut, &origin).decode());
            assert!(wrapped == whole || wrapped.contains("Split"), "{wrapped}");
        }
        whole
    };
    // A name without a zero byte does not run into the bytes after it.
    let name = u64::from_ne_bytes(*b"abcdefgh");
    let said = decoded(sys::PERF_RECORD_COMM, sys::PERF_RECORD_MISC_COMM_EXEC as u16, &[pair(1, 2), name]);
    assert!(said.contains("\"abcdefgh\"") && said.contains("is_execve\": true"), "{said}");
    let said = decoded(sys::PERF_RECORD_FORK, 0, &[pair(1, 2), pair(3, 4), 9]);
    assert!(said.contains("Fork(ForkOrExitRecord { pid: 1, ppid: 2, tid: 3, ptid: 4, timestamp: 9 })"), "{said}");
    assert!(decoded(sys::PERF_RECORD_EXIT, 0, &[pair(1, 2), pair(3, 4), 9]).contains("Exit("));
    assert!(decoded(sys::PERF_RECORD_LOST, 0, &[7, 12]).contains("count: 12"));
    let out = sys::PERF_RECORD_MISC_SWITCH_OUT as u16;
    assert!(decoded(sys::PERF_RECORD_SWITCH_CPU_WIDE, out, &[pair(1, 2)]).contains("Out { next_pid: Some(1)"));

    // Kinds without their own type come as raw records, with the common fields.
    let bytes = written(sys::PERF_RECORD_CGROUP, 0, &with(&[1, 2]));
    let Ok(EventRecord::Raw(raw)) = record(&bytes, 20, &origin).decode() else { panic!() };
    assert_eq!((raw.record_type.0, raw.data.len(), raw.timestamp()), (sys::PERF_RECORD_CGROUP, 32, Some(555)));
    assert_eq!(raw.common_data().unwrap().tid, Some(11));
}

#[test]
fn build_ids_are_no_longer_than_they_can_be() {
    let origin = origin(Layout::new(0, true, 0));
    for len in 0..=u8::MAX {
        let mut id = [9; 24];
        id[..4].copy_from_slice(&[len, 0, 0, 0]);
        let id: Vec<u64> = id.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
        let body =
            [&[pair(1, 2), 0x1000, 0x2000, 0][..], &id, &[pair(5, 0), u64::from_ne_bytes(*b"/a/b\0\0\0\0")]].concat();
        let bytes = written(sys::PERF_RECORD_MMAP2, sys::PERF_RECORD_MISC_MMAP_BUILD_ID as u16, &body);
        match record(&bytes, 30, &origin).decode() {
            Ok(EventRecord::Mmap2(mapped)) => {
                assert_eq!(mapped.file_id, Mmap2FileId::BuildId(vec![9; len.into()]));
                assert_eq!(mapped.path, RawData::Single(b"/a/b"));
                assert!(len <= 20);
            }
            Err(fault) => assert_eq!((fault, len > 20), (Fault::Raw { raw_size: len.into(), room: 20 }, true)),
            other => panic!("{other:?}"),
        }
    }
}

/// A payload as a type, for every place of a wrap. Raw data begins 4 bytes after a multiple of 8, as in every ring.
#[test]
fn payloads_are_values_of_types_that_take_any_bytes() {
    let origin = origin(Layout::RAW);
    let bytes = written(sys::PERF_RECORD_SAMPLE, 0, &[pair(12, 1), pair(2, 3)]);
    for cut in 0..bytes.len() {
        let record = record(&bytes, cut, &origin);
        assert_eq!(record.payload_as::<[u32; 3]>(), Some([1, 2, 3]), "{cut}");
        assert_eq!(record.payload_as::<u32>(), Some(1));
        assert_eq!(record.payload_as::<[u32; 4]>(), None, "there are not as many bytes");
        assert_eq!(record.payload_as::<()>(), Some(()));
    }
    let bytes = written(sys::PERF_RECORD_EXIT, 0, &[0; 4]);
    assert_eq!(record(&bytes, 0, &origin).payload_as::<u32>(), None, "no payload");
}

/// A number whose set bits are often relevant ones.
fn leaning(number: u64) -> u64 {
    match number % 4 {
        0 => number,
        1 => number % 64,
        2 => 1 << (number / 4 % 64),
        _ => 0,
    }
}

/// Also in a field that linux-perf-event-reader has no place for.
#[test]
fn a_sample_that_ends_before_its_fields_is_short() {
    let layout = Layout::new(bits(&[sys::PERF_SAMPLE_IP, sys::PERF_SAMPLE_BRANCH_STACK]), true, 0);
    for (branches, fits) in [(1, true), (2, false)] {
        let bytes = written(sys::PERF_RECORD_SAMPLE, 0, &[1, branches, 2, 3, 4]);
        assert_eq!(record(&bytes, 0, &origin(layout)).decode().is_ok(), fits, "{branches}");
    }
}

quickcheck! {
    /// Any bytes as a record of any kind and layout give a value or a fault, and every part of it can be read.
    fn hostile_records_are_decoded_or_refused(body: Vec<u64>, kind: u32, misc: u16, sample_type: u64, format: u64, masks: (u64, u64), cut: usize) -> bool {
        let body: Vec<u64> = body.into_iter().map(leaning).collect();
        let layout = Layout::new(leaning(sample_type) & 0x1ff_ffff, kind & 64 == 0, format).registers(leaning(masks.0), masks.1);
        let origin = origin(layout.branches(format));
        let with_build_id = (sys::PERF_RECORD_MMAP2, misc | sys::PERF_RECORD_MISC_MMAP_BUILD_ID as u16);
        for (kind, misc) in [(9, misc), with_build_id, (kind % 24, misc)] {
            let bytes = written(kind, misc, &body);
            let record = record(&bytes, cut, &origin);
            let mut said = format!("{:?} {record:?}", record.decode());
            if let Ok(EventRecord::Raw(raw)) = record.decode() {
                write!(said, "{:?} {:?} {:?}", raw.common_data(), raw.timestamp(), raw.id()).unwrap();
            }
            if let Ok(EventRecord::Sample(sample)) = record.decode() {
                let chain = sample.callchain.map(|chain| (0..chain.len()).map(|at| chain.get(at).unwrap()).collect());
                assert_eq!(sample.ip, record.ip());
                assert_eq!(chain, record.callchain().map(|chain| chain.collect::<Vec<_>>()));
                assert_eq!(sample.period, record.period());
                if let Some(registers) = sample.user_regs {
                    assert!((0..64).filter_map(|at| registers.get(at)).count() <= 64);
                }
            }
            let _ = (record.payload_as::<[u8; 24]>(), record.payload_as::<u64>());
        }
        true
    }
}
