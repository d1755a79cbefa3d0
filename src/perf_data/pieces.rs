//! The records of a file, one after the other.

use crate::error::Error;
use crate::perf_data::file::{Input, Words, changed, io, malformed, unreadable};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::ops::Range;

/// A piece of the record section.
#[derive(Debug)]
pub(super) enum Piece<'a> {
    /// A record of the kernel, or of perf in the kernel's format.
    Record(&'a [u8]),
    /// A record of perf's own, without its header.
    Other { kind: u32, body: &'a [u8] },
    /// Bytes that are no record. The start of the next record is unknown, so the rest is skipped.
    Rest(&'a [u8]),
}

/// The kinds of perf's own records begin here (`PERF_RECORD_USER_TYPE_START`).
pub(super) const OWN_KINDS: u32 = 64;
/// Those that are followed by data (`tools/lib/perf/include/perf/event.h`).
const TRACING_DATA: u32 = 66;
const AUXTRACE: u32 = 71;
const COMPRESSED: [u32; 2] = [81, 83];

/// How much of such bytes is shown.
const REST: u64 = 1 << 20;

/// Goes through all pieces, with the offset of each in the file.
pub(super) fn walk(
    input: &Input,
    data: &Range<u64>,
    mut each: impl FnMut(u64, Piece<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut reader = BufReader::with_capacity(1 << 18, &input.file);
    reader.seek(SeekFrom::Start(data.start)).map_err(io)?;
    let mut record = Vec::new();
    let mut at = data.start;
    while at < data.end {
        let left = data.end - at;
        record.clear();
        take(&mut reader, &mut record, left.min(8))?;
        let mut words = Words(&record);
        let (kind, sizes) = (words.u32().unwrap_or(0), words.bytes(4).unwrap_or(&[0; 4]));
        let size = u16::from_ne_bytes([sizes[2], sizes[3]]);
        let is_own = kind >= OWN_KINDS;
        if size < 8 || u64::from(size) > left || (!is_own && size % 8 != 0) {
            let more = (left - record.len() as u64).min(REST);
            take(&mut reader, &mut record, more)?;
            return each(at, Piece::Rest(&record));
        }
        take(&mut reader, &mut record, u64::from(size) - 8)?;
        let mut behind = 0;
        if is_own {
            let body = &record[8..];
            if COMPRESSED.contains(&kind) {
                return Err(unreadable("its records are compressed", "record without -z"));
            }
            behind = behind_it(kind, body);
            each(at, Piece::Other { kind, body })?;
        } else {
            each(at, Piece::Record(&record))?;
        }
        at += u64::from(size);
        if behind > data.end - at {
            return Err(malformed("records of perf's own", at));
        }
        if behind > 0 {
            at += behind;
            reader.seek(SeekFrom::Start(at)).map_err(io)?;
        }
    }
    Ok(())
}

/// Bytes of data after a record of perf's own.
fn behind_it(kind: u32, body: &[u8]) -> u64 {
    match kind {
        TRACING_DATA => Words(body).u32().map_or(0, |size| u64::from(size).next_multiple_of(8)),
        AUXTRACE => Words(body).u64().unwrap_or(0),
        _ => 0,
    }
}

/// Appends `len` bytes.
fn take(reader: &mut impl Read, out: &mut Vec<u8>, len: u64) -> Result<(), Error> {
    match reader.take(len).read_to_end(out).map_err(io)? {
        read if read as u64 == len => Ok(()),
        _ => Err(changed()),
    }
}
