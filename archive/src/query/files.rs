//! The files of a table: which there are, which can be read, and what their footers say.

use super::{Failure, Location};
use arrow::array::{AsArray, Int64Array};
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::arrow::parquet_to_arrow_schema;
use parquet::file::metadata::ParquetMetaData;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The columns that stand in the names of directories, outermost first.
pub(super) const PARTITIONS: [&str; 3] = ["machine", "date", "hour"];
/// Without these a file is none of an archive. Clocks and recordings have no place in an order, and no `row`.
const KEYS: [&str; 5] = ["mono", "tai", "tai_error", "boot", "trace"];
const AT_A_TIME: usize = 16;

/// What does not stop a query, but is told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A file is no Parquet, or ends before its footer.
    Unreadable {
        /// The file, in the archive.
        file: String,
        /// What the reader says.
        why: String,
    },
    /// A file is Parquet, but no part of an archive: by its columns, or by its place.
    Foreign {
        /// The file, in the archive.
        file: String,
        /// What is missing.
        why: String,
    },
    /// Two recordings of one machine traced at one time. Both are read; column `trace` tells them apart.
    Overlap {
        /// The machine.
        machine: String,
        /// The recordings.
        traces: [String; 2],
        /// From when to when on the machine's monotonic clock, in nanoseconds.
        mono: [i64; 2],
    },
    /// A column has different types in different files.
    Types {
        /// The table and its column.
        column: String,
        /// As what it is read.
        read_as: String,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable { file, why } => write!(f, "left out, cannot be read: {file}: {why}"),
            Self::Foreign { file, why } => write!(f, "left out, no file of an archive: {file}: {why}"),
            Self::Overlap { machine, traces: [one, other], mono: [from, to] } => write!(
                f,
                "two recordings of machine {machine} overlap, {one} and {other}, from {from} to {to} ns of its monotonic clock: both are read; \
                 column trace tells them apart"
            ),
            Self::Types { column, read_as } => write!(f, "column {column} has several types: it is read as {read_as}"),
        }
    }
}

/// A file that can be read.
#[derive(Debug, Clone)]
pub(super) struct File {
    /// From the table's directory on.
    pub(super) parts: Vec<String>,
    pub(super) path: Path,
    pub(super) schema: SchemaRef,
    /// Its recording, by boot and trace, and from when to when it has rows.
    pub(super) span: Option<Span>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) machine: String,
    pub(super) boot: String,
    pub(super) trace: String,
    pub(super) mono: [i64; 2],
}

/// What is below a table's directory.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) files: Vec<File>,
    /// Files that engines would read and must not.
    pub(super) bad: Vec<Vec<String>>,
    pub(super) notices: Vec<Notice>,
}

/// Reads the footer of each file of a table, and keeps it for the query.
pub(super) async fn find(
    location: &Location,
    directory: &Path,
    cache: &Arc<FileMetadataCache>,
) -> Result<Found, Failure> {
    let root = location.inside(directory);
    let listed: Vec<ObjectMeta> = location.store.list(Some(&root)).try_collect().await?;
    let files = listed.into_iter().filter(|file| file.location.as_ref().ends_with(".parquet"));
    let mut checks: Vec<_> = futures::stream::iter(files.map(|file| check(location, &root, cache, file)))
        .buffered(AT_A_TIME)
        .collect()
        .await;
    checks.sort_by(|one, other| one.1.cmp(&other.1));
    let mut found = Found::default();
    for (checked, parts) in checks {
        match checked {
            Ok(file) => found.files.push(file),
            Err(notice) => {
                found.notices.push(notice);
                found.bad.push(parts);
            }
        }
    }
    Ok(found)
}

async fn check(
    location: &Location,
    root: &Path,
    cache: &Arc<FileMetadataCache>,
    meta: ObjectMeta,
) -> (Result<File, Notice>, Vec<String>) {
    let parts: Vec<_> =
        meta.location.parts().skip(root.parts().count()).map(|part| part.as_ref().to_string()).collect();
    let in_archive: Path = meta.location.parts().skip(location.prefix.parts().count()).collect();
    let file = in_archive.to_string();
    let placed = parts.len() == PARTITIONS.len() + 1
        && PARTITIONS.iter().zip(&parts).all(|(name, part)| part.split_once('=').is_some_and(|(key, _)| key == *name));
    if !placed {
        let why = format!("its directories are not {}", PARTITIONS.map(|name| format!("{name}=")).join("/"));
        return (Err(Notice::Foreign { file, why }), parts);
    }
    let metadata = match DFParquetMetadata::new(location.store.as_ref(), &meta)
        .with_file_metadata_cache(Some(cache.clone()))
        .fetch_metadata()
        .await
    {
        Ok(metadata) => metadata,
        Err(error) => return (Err(Notice::Unreadable { file, why: error.to_string() }), parts),
    };
    (described(&metadata, &parts, meta.location).map_err(|why| Notice::Foreign { file, why }), parts)
}

fn described(metadata: &Arc<ParquetMetaData>, parts: &[String], path: Path) -> Result<File, String> {
    let of_file = metadata.file_metadata();
    let schema = parquet_to_arrow_schema(of_file.schema_descr(), of_file.key_value_metadata())
        .map_err(|error| error.to_string())?;
    if let Some(missing) = KEYS.iter().find(|key| schema.field_with_name(key).is_err()) {
        return Err(format!("it has no column {missing}"));
    }
    // What the writer says about the file is not what the table says.
    let schema = Arc::new(Schema::new(schema.fields().clone()));
    let span = span(metadata, &schema, parts);
    Ok(File { parts: parts.to_vec(), path, schema, span })
}

/// By the statistics, which a file without rows does not have.
fn span(metadata: &ParquetMetaData, schema: &Schema, parts: &[String]) -> Option<Span> {
    let converter = |column| StatisticsConverter::try_new(column, schema, metadata.file_metadata().schema_descr()).ok();
    let groups = metadata.row_groups();
    let number = |array: arrow::array::ArrayRef| array.as_any().downcast_ref::<Int64Array>().cloned();
    let mono = converter("mono")?;
    let from = arrow::compute::min(&number(mono.row_group_mins(groups).ok()?)?)?;
    let to = arrow::compute::max(&number(mono.row_group_maxes(groups).ok()?)?)?;
    let word = |column| {
        let array = converter(column)?.row_group_mins(groups.first()).ok()?;
        let text = arrow::compute::cast(&array, &arrow::datatypes::DataType::Utf8).ok()?;
        text.as_string::<i32>().iter().next().flatten().map(str::to_string)
    };
    let machine = parts.first()?.split_once('=')?.1.to_string();
    Some(Span { machine, boot: word("boot")?, trace: word("trace")?, mono: [from, to] })
}

/// Recordings of one boot of one machine that have rows of the same time.
pub(super) fn overlaps<'a>(spans: impl Iterator<Item = &'a Span>) -> Vec<Notice> {
    let mut recordings: BTreeMap<(&str, &str), BTreeMap<&str, [i64; 2]>> = BTreeMap::new();
    for span in spans {
        let recording =
            recordings.entry((&span.machine, &span.boot)).or_default().entry(&span.trace).or_insert(span.mono);
        *recording = [recording[0].min(span.mono[0]), recording[1].max(span.mono[1])];
    }
    let mut notices = Vec::new();
    for ((machine, _), traces) in recordings {
        let traces: Vec<_> = traces.into_iter().collect();
        for (index, (one, first)) in traces.iter().enumerate() {
            for (other, second) in &traces[index + 1..] {
                let mono = [first[0].max(second[0]), first[1].min(second[1])];
                if mono[0] <= mono[1] {
                    notices.push(Notice::Overlap {
                        machine: machine.to_string(),
                        traces: [one.to_string(), other.to_string()],
                        mono,
                    });
                }
            }
        }
    }
    notices
}
