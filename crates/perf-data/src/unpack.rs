//! Records that `perf record -z` has compressed.
//!
//! perf has one stream of zstd for a file, and flushes it for each COMPRESSED record
//! (`zstd_compress_stream_to_records`, `tools/perf/util/zstd.c`). So a block may continue in the next record, a record
//! of the kernel in the next block, and the last frame does not end.

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::Read;

/// The longest header of a frame.
const HEADER: usize = 18;
/// An empty block that ends a frame, with room for a checksum.
const END: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];
/// The largest window that is accepted, in bytes: that of `perf record -z22`.
const WINDOW: u64 = 128 << 20;

/// The bytes are no stream of zstd.
#[derive(Debug)]
pub(crate) struct Corrupt;

/// Takes compressed bytes in pieces of any length. Holds a window and two blocks at most.
pub(crate) struct Unpacker {
    frame: FrameDecoder,
    /// Whether the frame has begun, and whether a checksum follows it.
    begun: Option<bool>,
    /// Bytes of a block, or of a frame's header, that is not complete.
    pending: Vec<u8>,
}

impl Unpacker {
    /// `available`: bytes of memory that this process can get, if known.
    pub(crate) fn new(available: Option<u64>) -> Self {
        let mut frame = FrameDecoder::new();
        frame.set_max_window_size(WINDOW.min(available.unwrap_or(WINDOW) / 4));
        Self { frame, begun: None, pending: Vec::new() }
    }

    /// Takes compressed bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.pending.extend(bytes);
    }

    /// Unpacks at most a block, and appends the bytes that it gives to `out`. Gives whether there was a whole block, or
    /// a frame's header.
    pub(crate) fn step(&mut self, out: &mut Vec<u8>) -> Result<bool, Corrupt> {
        let Some(has_checksum) = self.begun else { return self.begin() };
        let Some(&[a, b, c]) = self.pending.first_chunk() else { return Ok(false) };
        let block = u32::from_le_bytes([a, b, c, 0]);
        let (is_last, kind, size) = (block & 1 == 1, block >> 1 & 3, (block >> 3) as usize);
        // A block of one byte that is repeated.
        let body = if kind == 1 { 1 } else { size };
        // The decoder takes the checksum together with the last block.
        let len = 3 + body + if is_last && has_checksum { 4 } else { 0 };
        if self.pending.len() < len {
            return Ok(false);
        }
        self.frame.decode_blocks(&self.pending[..len], BlockDecodingStrategy::UptoBlocks(1)).map_err(|_| Corrupt)?;
        self.pending.drain(..len);
        self.take(out)?;
        if is_last {
            self.begun = None;
        }
        Ok(true)
    }

    /// Ends the frame that was not ended, and appends what it still holds. Nothing may be pending.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Corrupt> {
        let is_whole = std::mem::take(&mut self.pending).is_empty();
        // perf does not end its frame, and until the end the decoder keeps a window back.
        if self.begun.take().is_some() {
            self.frame.decode_blocks(&END[..], BlockDecodingStrategy::UptoBlocks(1)).map_err(|_| Corrupt)?;
            self.take(out)?;
        }
        if is_whole { Ok(()) } else { Err(Corrupt) }
    }

    /// Reads the header of a frame.
    fn begin(&mut self) -> Result<bool, Corrupt> {
        let before = self.pending.len();
        let mut left = &self.pending[..];
        match self.frame.reset(&mut left) {
            Ok(()) => {
                // The descriptor follows the magic bytes.
                self.begun = Some(self.pending.get(4).is_some_and(|descriptor| descriptor & 4 != 0));
                let used = before - left.len();
                self.pending.drain(..used);
                Ok(true)
            }
            // The header may be cut: the rest of it comes with the next record.
            Err(_) if before < HEADER => Ok(false),
            Err(_) => Err(Corrupt),
        }
    }

    /// Takes what the frame gives. It keeps a window, until it has ended.
    fn take(&mut self, out: &mut Vec<u8>) -> Result<(), Corrupt> {
        self.frame.read_to_end(out).map(drop).map_err(|_| Corrupt)
    }
}
