//! What can go wrong.

use std::path::PathBuf;

/// Why an archive cannot be read, asked or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The location is no folder, and no URL of a store that is built in.
    #[error("{location} is no archive: {why}")]
    Location {
        /// As it was given.
        location: String,
        /// What the store says.
        why: String,
    },
    /// A folder cannot be made or found.
    #[error("{}: {source}", path.display())]
    Folder {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The archive has no table of that name.
    #[error("{archive} has no table {name}. It has: {has}")]
    Table {
        /// The archive.
        archive: String,
        /// The table, as the query names it.
        name: String,
        /// The tables that there are.
        has: String,
    },
    /// There is no named query of that name.
    #[error("there is no query named {0}; `query --list` lists them")]
    Named(String),
    /// A stream is in order of TAI, and the answer has no TAI.
    #[error("a stream is in order of TAI: the query must have a column tai, as it is in the archive")]
    Stream,
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] object_store::Error),
    /// A file cannot be read or written as Parquet.
    #[error(transparent)]
    Parquet(#[from] parquet::errors::ParquetError),
    /// Columns cannot be made or printed.
    #[error(transparent)]
    Arrow(#[from] arrow::error::ArrowError),
    /// The query writes, reads other files, or changes settings.
    #[error("a query answers and changes nothing, unless --allow-writes is given: {}", .0.strip_backtrace())]
    Writes(Box<datafusion::error::DataFusionError>),
    /// The query is wrong, or fails.
    #[error("{}", .0.strip_backtrace())]
    Query(Box<datafusion::error::DataFusionError>),
    /// Output cannot be written.
    #[error("output: {0}")]
    Output(#[from] std::io::Error),
}

impl From<datafusion::error::DataFusionError> for Failure {
    fn from(failure: datafusion::error::DataFusionError) -> Self {
        Self::Query(Box::new(failure))
    }
}
