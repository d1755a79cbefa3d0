//! The records of a file, one after the other.

use crate::file::{Input, changed, io, malformed};
#[cfg(feature = "zstd")]
use crate::unpack::{Corrupt, Unpacker};
use crate::words::Words;
use perfweave::Error;
use std::io::{BufReader, Read, Seek, SeekFrom};
#[cfg(not(feature = "zstd"))]
use std::marker::PhantomData;
use std::ops::Range;

/// A piece of the record section.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// A record of the kernel, or of perf in the kernel's format.
    Record(&'a [u8]),
    /// A record of perf's own, without its header, and how many bytes of data are behind it.
    Other { kind: u32, misc: u16, body: &'a [u8], behind: u64 },
    /// Bytes that are no record. The start of the next record is unknown, so the rest is skipped.
    Rest(&'a [u8]),
}

/// The kinds of perf's own records begin here (`PERF_RECORD_USER_TYPE_START`).
pub(crate) const OWN_KINDS: u32 = 64;
/// Those that are followed by data (`tools/lib/perf/include/perf/event.h`).
const TRACING_DATA: u32 = 66;
pub(crate) const AUXTRACE: u32 = 71;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;

/// How much of such bytes is shown.
const REST: u64 = 1 << 20;

/// Goes through all pieces, with the offset of each in the file. Those that are compressed come as late as the
/// decompression gives them, with the offset of a later record.
pub(crate) fn walk(
    input: &Input,
    data: &Range<u64>,
    mut each: impl FnMut(u64, Piece<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut packed = Packed::new(input);
    let mut reader = BufReader::with_capacity(1 << 18, &input.file);
    reader.seek(SeekFrom::Start(data.start)).map_err(io)?;
    let mut record = Vec::new();
    let mut at = data.start;
    while at < data.end {
        let left = data.end - at;
        record.clear();
        take(&mut reader, &mut record, left.min(8))?;
        let (kind, misc, size) = header(&record);
        let is_own = kind >= OWN_KINDS;
        // The kernel pads its records to 8 bytes. A COMPRESSED record of perf is not padded.
        if size < 8 || u64::from(size) > left || (!is_own && size % 8 != 0) {
            let more = (left - record.len() as u64).min(REST);
            take(&mut reader, &mut record, more)?;
            // What is still held back came before these bytes.
            packed.finish(at, &mut each)?;
            return each(at, Piece::Rest(&record));
        }
        take(&mut reader, &mut record, u64::from(size) - 8)?;
        let mut behind = 0;
        if is_own {
            let body = &record[8..];
            if let Some(bytes) = compressed(kind, body) {
                if packed.put(at, bytes, &mut each)?.is_none() {
                    return Ok(());
                }
            } else {
                behind = behind_it(kind, body);
                // No underflow: the record was no longer than what was left.
                let there = behind.min(left - u64::from(size));
                each(at, Piece::Other { kind, misc, body, behind: there })?;
            }
        } else {
            each(at, Piece::Record(&record))?;
        }
        at += u64::from(size);
        // No underflow: the record was no longer than what was left.
        if behind > data.end - at {
            if data.end < input.len {
                return Err(malformed("records of perf's own", at));
            }
            // A program that was killed leaves such an end. It is damage, for nothing else says so in pipe mode. It may
            // look like a record.
            record.clear();
            record.extend([0; 8]);
            take(&mut reader, &mut record, (data.end - at).min(REST))?;
            packed.finish(at, &mut each)?;
            return each(at, Piece::Rest(&record));
        }
        // Only then: a seek drops all that the reader has buffered.
        if behind > 0 {
            at += behind;
            reader.seek(SeekFrom::Start(at)).map_err(io)?;
        }
    }
    packed.finish(at, &mut each)
}

/// The kind, the misc bits and the size of a record. 0 if it is cut off.
pub(crate) fn header(record: &[u8]) -> (u32, u16, u16) {
    let mut words = Words(record);
    let (kind, sizes) = (words.u32().unwrap_or(0), words.bytes(4).unwrap_or(&[0; 4]));
    (kind, u16::from_ne_bytes([sizes[0], sizes[1]]), u16::from_ne_bytes([sizes[2], sizes[3]]))
}

/// The bytes of a record that has compressed ones. A COMPRESSED2 record says how many they are, because it is padded.
pub(crate) fn compressed(kind: u32, body: &[u8]) -> Option<&[u8]> {
    let mut words = Words(body);
    match kind {
        COMPRESSED => Some(body),
        COMPRESSED2 => Some(words.u64().and_then(|len| words.bytes(usize::try_from(len).ok()?)).unwrap_or(&[])),
        _ => None,
    }
}

/// The compressed records of a file, where the crate is built without a decompressor.
#[cfg(not(feature = "zstd"))]
pub(crate) struct Packed<'a>(PhantomData<&'a Input>);

#[cfg(not(feature = "zstd"))]
impl<'a> Packed<'a> {
    pub(crate) fn new(_: &'a Input) -> Self {
        Self(PhantomData)
    }

    pub(crate) fn put(
        &mut self,
        _: u64,
        _: &[u8],
        _: impl FnMut(u64, Piece<'_>) -> Result<(), Error>,
    ) -> Result<Option<()>, Error> {
        let hint = "build this program with feature zstd of perfweave-perf-data, or record without -z";
        Err(crate::file::unreadable("its records are compressed", hint))
    }

    pub(crate) fn finish(self, _: u64, _: impl FnMut(u64, Piece<'_>) -> Result<(), Error>) -> Result<(), Error> {
        Ok(())
    }
}

/// The compressed records of a file.
#[cfg(feature = "zstd")]
pub(crate) struct Packed<'a> {
    input: &'a Input,
    unpacker: Unpacker,
    /// Bytes that were unpacked and are no whole record yet.
    unpacked: Vec<u8>,
    /// How many bytes were unpacked.
    total: u64,
}

#[cfg(feature = "zstd")]
impl<'a> Packed<'a> {
    pub(crate) fn new(input: &'a Input) -> Self {
        Self { input, unpacker: Unpacker::new(input.available()), unpacked: Vec::new(), total: 0 }
    }

    /// Gives the records that compressed bytes complete. `None` if the bytes make no sense: they were given as such,
    /// and nothing can follow.
    pub(crate) fn put(
        &mut self,
        at: u64,
        bytes: &[u8],
        mut each: impl FnMut(u64, Piece<'_>) -> Result<(), Error>,
    ) -> Result<Option<()>, Error> {
        self.unpacker.put(bytes);
        loop {
            let before = self.unpacked.len();
            let stepped = self.unpacker.step(&mut self.unpacked);
            self.total += (self.unpacked.len() - before) as u64;
            // After each step, so that at most one block is unpacked for which there is no room.
            self.input.has_room_for(self.total)?;
            match stepped {
                Ok(true) if self.records(at, &mut each)? => {}
                Ok(false) => return Ok(Some(())),
                Ok(true) => return Ok(None),
                Err(Corrupt) => {
                    // What was unpacked before is good.
                    // An error here says nothing new: these bytes are damage.
                    let _ = self.unpacker.finish(&mut self.unpacked);
                    if self.records(at, &mut each)? {
                        // What is left is no whole record. It may look like one with what follows.
                        let no_record = [&[0; 8], self.unpacked.as_slice(), bytes].concat();
                        each(at, Piece::Rest(&no_record))?;
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// Gives what was held back. What is no whole record in the end is damage.
    pub(crate) fn finish(
        mut self,
        at: u64,
        mut each: impl FnMut(u64, Piece<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let finished = self.unpacker.finish(&mut self.unpacked);
        if self.records(at, &mut each)? && (finished.is_err() || !self.unpacked.is_empty()) {
            each(at, Piece::Rest(&[&[0; 8], self.unpacked.as_slice()].concat()))?;
        }
        Ok(())
    }

    /// Gives all whole records. False if one is none: it was given as such, and nothing can follow.
    fn records(&mut self, at: u64, each: &mut impl FnMut(u64, Piece<'_>) -> Result<(), Error>) -> Result<bool, Error> {
        let mut left = self.unpacked.as_slice();
        while left.len() >= 8 {
            let (kind, _, size) = header(left);
            let is_own = kind >= OWN_KINDS;
            // perf compresses what the kernel wrote, and at most its own records that have nothing behind them.
            let is_none = matches!(kind, TRACING_DATA | AUXTRACE | COMPRESSED | COMPRESSED2);
            if size < 8 || is_none || (!is_own && size % 8 != 0) {
                // It may look like a record to a ring.
                let no_record = [&[0; 8], &left[..left.len().min(REST as usize)]].concat();
                each(at, Piece::Rest(&no_record))?;
                return Ok(false);
            }
            // The rest of a record may be in the next block.
            let Some((record, rest)) = left.split_at_checked(size.into()) else { break };
            if !is_own {
                each(at, Piece::Record(record))?;
            }
            left = rest;
        }
        let done = self.unpacked.len() - left.len();
        self.unpacked.drain(..done);
        Ok(true)
    }
}

/// Bytes of data after a record of perf's own.
pub(crate) fn behind_it(kind: u32, body: &[u8]) -> u64 {
    match kind {
        TRACING_DATA => Words(body).u32().map_or(0, |size| u64::from(size).next_multiple_of(8)),
        AUXTRACE => Words(body).u64().unwrap_or(0),
        _ => 0,
    }
}

/// Appends `len` bytes.
pub(crate) fn take(reader: &mut impl Read, out: &mut Vec<u8>, len: u64) -> Result<(), Error> {
    match reader.take(len).read_to_end(out).map_err(io)? {
        read if read as u64 == len => Ok(()),
        _ => Err(changed()),
    }
}
