//! Files of a store, in parts.

use super::{DoubtKind, thrift};
use crate::Failure;
use crate::record::writer;
use crate::seal::{self, DIGITS, KEY, Seal, TRAILER};
use arrow::datatypes::{DataType, Schema};
use blake3::{Hash, Hasher};
use bytes::{Buf, Bytes};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::{ParquetError, Result as Read};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};
use std::ops::Range;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// How much is read and hashed at once.
const PART: u64 = 1 << 20;
/// A longer footer is not read.
const FOOTER: u64 = 64 << 20;
/// More columns of a row group are not read, packed or unpacked.
const GROUP: u64 = 64 << 20;

/// Reads files, and blocks meanwhile.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) runtime: Runtime,
}

/// Reads a row group after the other.
type Groups<'a> = Box<dyn Iterator<Item = Result<ParquetRecordBatchReader, Failure>> + 'a>;

/// The footer of a file.
#[derive(Debug)]
pub(super) struct Footer {
    /// Of the file.
    len: u64,
    bytes: Bytes,
    /// What the file says of itself, and where in the footer.
    pub(super) seal: Option<(Seal, Range<usize>)>,
}

impl Footer {
    /// The columns of a file that has the hash in its seal. `None` if engines find another seal in it, or none.
    fn metadata(&self) -> Result<Option<ParquetMetaData>, Failure> {
        if !thrift::is_footer_bounded(&self.bytes) {
            return Err(ParquetError::General("the footer is too long".into()).into());
        }
        let metadata = ParquetMetaDataReader::decode_metadata(&self.bytes)?;
        let pairs = metadata.file_metadata().key_value_metadata().into_iter().flatten();
        let texts = pairs.filter(|pair| pair.key == KEY).filter_map(|pair| pair.value.as_deref()).collect::<Vec<_>>();
        let found = self.seal.as_ref().and_then(|(_, text)| self.bytes.get(text.clone()));
        let is_it = matches!(texts[..], [text] if Some(text.as_bytes()) == found);
        Ok(is_it.then_some(metadata))
    }
}

impl Files {
    fn bytes(&self, path: &Path, range: Range<u64>) -> Result<Bytes, Failure> {
        let wanted = range.end - range.start;
        if wanted == 0 {
            return Ok(Bytes::new());
        }
        let bytes = self.runtime.block_on(self.store.get_range(path, range))?;
        let short = || ParquetError::EOF("the file is shorter than it was".into());
        if bytes.len() as u64 == wanted { Ok(bytes) } else { Err(short().into()) }
    }

    /// The footer. `None` if the file is none of Parquet, or its footer is longer than 64 MiB.
    pub(super) fn footer(&self, path: &Path, len: u64) -> Result<Option<Footer>, Failure> {
        let Some(from) = len.checked_sub(TRAILER as u64) else { return Ok(None) };
        let footer = seal::footer_len(&self.bytes(path, from..len)?).map(|len| len as u64).filter(|len| *len <= FOOTER);
        let Some(begin) = footer.and_then(|footer| from.checked_sub(footer)).filter(|begin| *begin < from) else {
            return Ok(None);
        };
        let bytes = self.bytes(path, begin..from)?;
        Ok(Some(Footer { len, seal: seal::read(&bytes), bytes }))
    }

    /// The hash of a file, with zeros for its digits in the seal.
    pub(super) fn hash(&self, path: &Path, footer: &Footer) -> Result<Hash, Failure> {
        let (mut hasher, mut at) = (Hasher::new(), 0);
        let begin = footer.len.saturating_sub((footer.bytes.len() + TRAILER) as u64);
        let text = footer.seal.as_ref().map_or(footer.bytes.len(), |(_, text)| text.start);
        let digits = seal::digits_at(begin + text as u64);
        while at < footer.len {
            let until = footer.len.min(at + PART);
            let mut bytes = Vec::from(self.bytes(path, at..until)?);
            let [from, to] = [digits, digits + DIGITS as u64].map(|digit| (digit.clamp(at, until) - at) as usize);
            bytes[from..to].fill(b'0');
            hasher.update(&bytes);
            at = until;
        }
        Ok(hasher.finalize())
    }

    /// The columns of these names, a row group at a time. Only of a file that has the hash in its seal. A doubt if
    /// engines find another seal in it, or it says that it has other rows than its seal.
    pub(super) fn groups<'a>(
        &'a self,
        path: &'a Path,
        footer: &Footer,
        names: &[&str],
    ) -> Result<Result<Groups<'a>, DoubtKind>, Failure> {
        let Some(metadata) = footer.metadata()? else { return Ok(Err(DoubtKind::Unsealed)) };
        let rows = metadata.row_groups().iter().map(|group| i128::from(group.num_rows())).sum::<i128>();
        let sealed = footer.seal.as_ref().map_or(0, |(seal, _)| seal.here.rows);
        if [rows, metadata.file_metadata().num_rows().into()] != [i128::from(sealed); 2] {
            return Ok(Err(DoubtKind::Counts));
        }
        let mask = ProjectionMask::columns(metadata.file_metadata().schema_descr(), names.iter().copied());
        let metadata = columns(Arc::new(metadata))?;
        let len = footer.len;
        Ok(Ok(Box::new((0..metadata.metadata().num_row_groups()).map(move |group| {
            let row_group = metadata.metadata().row_group(group);
            let columns = row_group.columns().iter().enumerate().filter(|(column, _)| mask.leaf_included(*column));
            let columns = columns.map(|(_, column)| column).collect::<Vec<_>>();
            if !is_bounded(row_group.num_rows(), &columns) {
                return Err(ParquetError::General("a row group is too long".into()).into());
            }
            let pieces = self.pieces(path, len, columns.into_iter().map(place).collect())?;
            let unpacked = pieces.all.iter().map(|(_, piece)| thrift::unpacked(piece).unwrap_or(u64::MAX));
            if unpacked.fold(0, u64::saturating_add) > GROUP {
                return Err(ParquetError::General("a page is too long".into()).into());
            }
            let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(pieces, metadata.clone());
            Ok(reader.with_projection(mask.clone()).with_row_groups(vec![group]).build()?)
        }))))
    }

    fn pieces(&self, path: &Path, len: u64, ranges: Option<Vec<Range<u64>>>) -> Result<Pieces, Failure> {
        let is_inside = |range: &Range<u64>| range.end <= len;
        let all =
            |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add);
        let ranges = ranges.filter(|ranges| ranges.iter().all(is_inside) && all(ranges) <= GROUP);
        let ranges = ranges.ok_or_else(|| ParquetError::General("a column is too long".into()))?;
        let piece = |range: &Range<u64>| Ok((range.start, self.bytes(path, range.clone())?));
        Ok(Pieces { len, all: ranges.iter().map(piece).collect::<Result<_, Failure>>()? })
    }
}

/// The columns of a file by its Parquet schema alone: what it says of Arrow types may be anything. Texts are
/// dictionaries, so that a long one that many rows have is in memory once.
fn columns(metadata: Arc<ParquetMetaData>) -> Read<ArrowReaderMetadata> {
    let plain =
        ArrowReaderMetadata::try_new(Arc::clone(&metadata), ArrowReaderOptions::new().with_skip_arrow_metadata(true))?;
    let fields = plain.schema().fields().iter().map(|field| match field.data_type() {
        DataType::Utf8 => {
            let texts = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
            Arc::new(field.as_ref().clone().with_data_type(texts))
        }
        _ => Arc::clone(field),
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    ArrowReaderMetadata::try_new(metadata, ArrowReaderOptions::new().with_schema(schema))
}

/// Whether a row group has no more rows than a recorder writes, and its columns are not too long.
fn is_bounded(rows: i64, columns: &[&ColumnChunkMetaData]) -> bool {
    let len = |column: &&ColumnChunkMetaData| u64::try_from(column.uncompressed_size()).unwrap_or(u64::MAX);
    (0..=writer::GROUP as i64).contains(&rows) && columns.iter().map(len).fold(0, u64::saturating_add) <= GROUP
}

/// Where a column of a row group is.
fn place(column: &ColumnChunkMetaData) -> Option<Range<u64>> {
    let begin = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let (begin, len) = (u64::try_from(begin).ok()?, u64::try_from(column.compressed_size()).ok()?);
    Some(begin..begin.checked_add(len)?)
}

/// Columns of a file, each in one piece.
#[derive(Debug)]
struct Pieces {
    len: u64,
    all: Vec<(u64, Bytes)>,
}

impl Pieces {
    /// All bytes of a piece from this place on.
    fn from(&self, start: u64) -> Read<Bytes> {
        let piece = self.all.iter().find_map(|(at, bytes)| {
            let within = usize::try_from(start.checked_sub(*at)?).ok()?;
            (within < bytes.len()).then(|| bytes.slice(within..))
        });
        piece.ok_or_else(|| ParquetError::EOF("a column lies outside of its place".into()))
    }
}

impl Length for Pieces {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Pieces {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Read<Self::T> {
        self.from(start).map(Buf::reader)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Read<Bytes> {
        let bytes = self.from(start)?;
        if length > bytes.len() {
            return Err(ParquetError::EOF("a page is longer than its column".into()));
        }
        Ok(bytes.slice(..length))
    }
}
