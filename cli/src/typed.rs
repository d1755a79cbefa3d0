//! The kernel's records of processes as typed values: those of the crate linux-perf-event-reader.

use linux_perf_event_reader::{
    BranchSampleFormat, Endianness, EventRecord, RawData, RawEventRecord, ReadFormat, RecordIdParseInfo,
    RecordParseInfo, RecordType, SampleFormat,
};
use perf_event_open_sys::bindings;
use perfweave::Record;

/// A record that is no sample as a typed value. `None` for samples, which the parser misreads, and for a record that
/// ends before its fields do, or has a build id longer than any.
pub fn typed<'a>(record: &Record<'a>) -> Option<EventRecord<'a>> {
    if record.kind() == bindings::PERF_RECORD_SAMPLE {
        return None;
    }
    let body = record.body();
    // The trailer after a kind's own fields is not one of them.
    let own = body.get(0..body.len().checked_sub(record.layout().trailer_len())?)?;
    let has_build_id = record.misc() & bindings::PERF_RECORD_MISC_MMAP_BUILD_ID as u16 != 0;
    // After ids and addresses. The parser panics at longer ones.
    if record.kind() == bindings::PERF_RECORD_MMAP2 && has_build_id && own.u8(32)? > 20 {
        return None;
    }
    let data = match own.as_slices() {
        (all, []) => RawData::Single(all),
        (head, tail) => RawData::Split(head, tail),
    };
    RawEventRecord::new(RecordType(record.kind()), record.misc(), data, NO_SAMPLES).parse().ok()
}

/// What tells of samples, and of what all records have at their end, which is cut off.
const NO_SAMPLES: RecordParseInfo = RecordParseInfo {
    endian: Endianness::NATIVE,
    sample_format: SampleFormat::empty(),
    branch_sample_format: BranchSampleFormat::empty(),
    read_format: ReadFormat::empty(),
    common_data_offset_from_end: None,
    sample_regs_user: 0,
    user_regs_count: 0,
    sample_regs_intr: 0,
    intr_regs_count: 0,
    id_parse_info: RecordIdParseInfo {
        nonsample_record_id_offset_from_end: None,
        sample_record_id_offset_from_start: None,
    },
    nonsample_record_time_offset_from_end: None,
    sample_record_time_offset_from_start: None,
};

#[cfg(test)]
mod tests {
    use super::typed;
    use linux_perf_event_reader::{EventRecord, Mmap2FileId};
    use perf_event_open_sys::bindings;
    use perfweave::{Hold, Layout, Merge, Order, sim};

    /// Bytes of the ring.
    const RING: usize = 4096;

    /// A record of whole words, header included.
    fn written(kind: u32, misc: u32, body: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((misc as u16).to_ne_bytes());
        bytes.extend((8 + 8 * body.len() as u16).to_ne_bytes());
        body.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes
    }

    fn pair(low: u32, high: u32) -> u64 {
        u64::from(low) | u64::from(high) << 32
    }

    /// The typed value of a record that lies this many bytes before the ring's end, as text. "None" also if it is
    /// damage.
    fn said(record: &[u8], before_end: usize) -> String {
        let layout = Layout::new((bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_TIME).into(), true, 0);
        let kernel = sim::Kernel::with(&[0], RING, layout);
        let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).unwrap();
        let begin = RING - before_end;
        // Damage up to there.
        kernel.scribble(0, 0, &written(99, 0, &vec![0; begin / 8 - 1]));
        kernel.force_head(0, begin as u64);
        merge.refresh(0);
        while merge.next().is_some() {}
        merge.advance_tails();
        kernel.scribble(0, begin as u64, record);
        kernel.force_head(0, (begin + record.len()) as u64);
        merge.refresh(0);
        let event = merge.next();
        let record = event.as_ref().and_then(|event| event.record());
        match record.as_ref().and_then(|record| typed(record)) {
            Some(EventRecord::Mmap2(map)) => {
                let id = if let Mmap2FileId::BuildId(id) = &map.file_id { Some(id) } else { None };
                format!("{} {:?} {:?}", map.pid, map.path.as_slice(), id)
            }
            Some(EventRecord::Comm(comm)) => {
                format!("{} {} {:?} {}", comm.pid, comm.tid, comm.name.as_slice(), comm.is_execve)
            }
            Some(EventRecord::Mmap(map)) => format!("{} {:?}", map.pid, map.path.as_slice()),
            Some(EventRecord::Raw(raw)) => format!("{:?}", raw.data.as_slice()),
            other => format!("{other:?}"),
        }
    }

    /// Wherever the ring ends in it.
    fn everywhere(record: &[u8]) -> String {
        let whole = said(record, RING / 2);
        for before_end in (8..=record.len()).step_by(8) {
            assert_eq!(said(record, before_end), whole, "{before_end} bytes before the end");
        }
        whole
    }

    /// Names and numbers end before what all records have at their end.
    #[test]
    fn records_are_typed_and_end_before_what_all_have() {
        let with = |body: &[u64]| [body, &[pair(10, 11), 555]].concat();
        // A name without a zero byte does not run into the bytes after it.
        let name = u64::from_ne_bytes(*b"abcdefgh");
        let exec = bindings::PERF_RECORD_MISC_COMM_EXEC;
        let comm = everywhere(&written(bindings::PERF_RECORD_COMM, exec, &with(&[pair(1, 2), name])));
        assert_eq!(comm, format!("1 2 {:?} true", b"abcdefgh"));
        let fork = everywhere(&written(bindings::PERF_RECORD_FORK, 0, &with(&[pair(1, 2), pair(3, 4), 9])));
        assert_eq!(fork, "Some(Fork(ForkOrExitRecord { pid: 1, ppid: 2, tid: 3, ptid: 4, timestamp: 9 }))");
        assert_eq!(everywhere(&written(bindings::PERF_RECORD_FORK, 0, &with(&[pair(1, 2)]))), "None", "too short");
        assert_eq!(everywhere(&written(bindings::PERF_RECORD_SAMPLE, 0, &with(&[]))), "None", "a sample");
    }

    #[test]
    fn build_ids_are_no_longer_than_they_can_be() {
        for len in [0, 1, 20, 21, 24, u8::MAX] {
            let path = u64::from_ne_bytes(*b"/a/b\0\0\0\0");
            let id = [pair(len.into(), 0x0909_0909), u64::MAX / 255 * 9, u64::MAX / 255 * 9];
            let body = [&[pair(1, 2), 0x1000, 0x2000, 0][..], &id, &[pair(5, 0), path, pair(10, 11), 555]].concat();
            let map =
                everywhere(&written(bindings::PERF_RECORD_MMAP2, bindings::PERF_RECORD_MISC_MMAP_BUILD_ID, &body));
            let expected = format!("1 {:?} {:?}", b"/a/b", Some(vec![9u8; len.into()]));
            assert_eq!(map, if len > 20 { "None".into() } else { expected }, "{len}");
        }
    }

    /// Any kind, any length, any bytes: a value or none, and the same wherever the ring ends.
    #[test]
    fn hostile_records_are_typed_or_not() {
        let mut state = 1u64;
        for kind in 0..24 {
            for words in 0..12 {
                let body: Vec<u64> = (0..words)
                    .map(|_| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        if state >> 62 == 0 { state >> 60 } else { state }
                    })
                    .collect();
                for misc in [0, bindings::PERF_RECORD_MISC_MMAP_BUILD_ID] {
                    let record = written(kind, misc, &body);
                    let whole = said(&record, RING / 2);
                    assert_eq!(said(&record, 8), whole);
                }
            }
        }
    }
}
