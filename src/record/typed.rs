//! Records as typed values.

#[cfg(all(test, not(loom), feature = "zerocopy-0-8"))]
mod tests;

use crate::record::{Layout, Record};
use crate::ring::{Bytes, Fault};
use byteorder::NativeEndian;
use linux_perf_event_reader::{
    BranchSampleFormat, CpuMode, Endianness, EventRecord, RawData, RawDataU64, RawEventRecord, ReadFormat,
    RecordIdParseInfo, RecordParseInfo, RecordType, Regs, SampleFormat, SampleRecord,
};
use perf_event_open_sys::bindings as sys;

impl<'a> Record<'a> {
    /// The record as a typed value of the crate linux-perf-event-reader: a sample, or MMAP, MMAP2, COMM, FORK, EXIT,
    /// SWITCH, SWITCH_CPU_WIDE, LOST, THROTTLE or UNTHROTTLE. All other kinds are [`EventRecord::Raw`]. Only a build id
    /// is copied, even if the record wraps.
    ///
    /// This crate parses samples itself. [`RawEventRecord::parse`] of linux-perf-event-reader 0.10.2 misreads samples
    /// with READ, CGROUP, WEIGHT_STRUCT or AUX. For fields without a member in [`SampleRecord`], use [`Record::field`].
    ///
    /// # Errors
    /// [`Fault::Short`] if the record ends before its fields do, and [`Fault::Raw`] if a build id claims to be longer
    /// than 20 bytes.
    pub fn decode(&self) -> Result<EventRecord<'a>, Fault> {
        let short = Fault::Short { size: self.as_bytes().len() as u16 };
        if self.kind() == sys::PERF_RECORD_SAMPLE {
            return sample(self).map(EventRecord::Sample).ok_or(short);
        }
        let body = self.body();
        // The trailer after a kind's own fields is not one of them.
        let own = body.get(0..body.len().saturating_sub(self.layout().trailer_len())).ok_or(short)?;
        if self.kind() == sys::PERF_RECORD_MMAP2 && self.misc() & sys::PERF_RECORD_MISC_MMAP_BUILD_ID as u16 != 0 {
            // After ids and addresses. The parser panics at longer ones.
            let len = own.u8(32).ok_or(short)?;
            if len > 20 {
                return Err(Fault::Raw { raw_size: len.into(), room: 20 });
            }
        }
        let raw = |data| RawEventRecord::new(RecordType(self.kind()), self.misc(), data, parse_info(self.layout()));
        match raw(raw_data(own)).parse().map_err(|_| short)? {
            EventRecord::Raw(_) => Ok(EventRecord::Raw(raw(raw_data(body)))),
            known => Ok(known),
        }
    }
}

fn raw_data(bytes: Bytes<'_>) -> RawData<'_> {
    match bytes.as_slices() {
        (all, []) => RawData::Single(all),
        (head, tail) => RawData::Split(head, tail),
    }
}

/// The layout as the parser's type, for records that are no samples.
fn parse_info(layout: &Layout) -> RecordParseInfo {
    let [user, interrupt] = layout.register_masks();
    let [id_back, time_back] = layout.back();
    RecordParseInfo {
        endian: Endianness::NATIVE,
        sample_format: SampleFormat::from_bits_truncate(layout.sample_type()),
        branch_sample_format: BranchSampleFormat::from_bits_truncate(layout.branch_sample_type()),
        read_format: ReadFormat::from_bits_truncate(layout.read_format()),
        common_data_offset_from_end: layout.sample_id_all().then_some(layout.trailer_len() as u8),
        sample_regs_user: user,
        user_regs_count: user.count_ones() as u8,
        sample_regs_intr: interrupt,
        intr_regs_count: interrupt.count_ones() as u8,
        id_parse_info: RecordIdParseInfo {
            nonsample_record_id_offset_from_end: id_back,
            sample_record_id_offset_from_start: None,
        },
        nonsample_record_time_offset_from_end: time_back,
        sample_record_time_offset_from_start: None,
    }
}

/// `None` if a requested field does not fit.
fn sample<'a>(record: &Record<'a>) -> Option<SampleRecord<'a>> {
    let layout = record.layout();
    // Outer option: whether the field fits. Inner option: whether it was requested.
    let field = |bit: u32| match layout.sample_type() & u64::from(bit) {
        0 => Some(None),
        asked => record.field(asked).map(Some),
    };
    let word = |bit| Some(field(bit)?.and_then(|bytes| bytes.u64(0)));
    let half = |bit, at| Some(field(bit)?.and_then(|bytes| bytes.u32(at)));
    for unread in [
        sys::PERF_SAMPLE_READ,
        sys::PERF_SAMPLE_BRANCH_STACK,
        sys::PERF_SAMPLE_WEIGHT,
        sys::PERF_SAMPLE_WEIGHT_STRUCT,
        sys::PERF_SAMPLE_DATA_SRC,
        sys::PERF_SAMPLE_TRANSACTION,
        sys::PERF_SAMPLE_CGROUP,
        sys::PERF_SAMPLE_AUX,
    ] {
        field(unread)?;
    }
    let registers = |bit, mask| Some(field(bit)?.and_then(|bytes| registers(bytes, mask)));
    let [user, interrupt] = layout.register_masks();
    Some(SampleRecord {
        id: word(sys::PERF_SAMPLE_IDENTIFIER)?.or(word(sys::PERF_SAMPLE_ID)?),
        addr: word(sys::PERF_SAMPLE_ADDR)?,
        stream_id: word(sys::PERF_SAMPLE_STREAM_ID)?,
        raw: field(sys::PERF_SAMPLE_RAW)?.and_then(|bytes| bytes.skip(4)).map(raw_data),
        ip: word(sys::PERF_SAMPLE_IP)?,
        timestamp: word(sys::PERF_SAMPLE_TIME)?,
        pid: half(sys::PERF_SAMPLE_TID, 0)?.map(|pid| pid as i32),
        tid: half(sys::PERF_SAMPLE_TID, 4)?.map(|tid| tid as i32),
        cpu: half(sys::PERF_SAMPLE_CPU, 0)?,
        period: word(sys::PERF_SAMPLE_PERIOD)?,
        user_regs: registers(sys::PERF_SAMPLE_REGS_USER, user)?,
        user_stack: field(sys::PERF_SAMPLE_STACK_USER)?.and_then(stack),
        callchain: field(sys::PERF_SAMPLE_CALLCHAIN)?.and_then(|bytes| bytes.skip(8)).map(words),
        phys_addr: word(sys::PERF_SAMPLE_PHYS_ADDR)?,
        data_page_size: word(sys::PERF_SAMPLE_DATA_PAGE_SIZE)?,
        code_page_size: word(sys::PERF_SAMPLE_CODE_PAGE_SIZE)?,
        intr_regs: registers(sys::PERF_SAMPLE_REGS_INTR, interrupt)?,
        cpu_mode: CpuMode::from_misc(record.misc()),
    })
}

fn words(bytes: Bytes<'_>) -> RawDataU64<'_> {
    RawDataU64::from_raw_data::<NativeEndian>(raw_data(bytes))
}

/// Registers after the word with their ABI. `None` if there were none to save, as in kernel threads.
fn registers(field: Bytes<'_>, mask: u64) -> Option<Regs<'_>> {
    let values = field.skip(8).filter(|values| !values.is_empty())?;
    Some(Regs::new(mask, words(values)))
}

/// The stack's bytes between two words: how many there are, and how many are valid.
fn stack(field: Bytes<'_>) -> Option<(RawData<'_>, u64)> {
    match field.len() {
        8 => Some((RawData::empty(), 0)),
        len => Some((raw_data(field.get(8..len - 8)?), field.u64(len - 8)?)),
    }
}
