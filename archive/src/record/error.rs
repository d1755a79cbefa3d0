//! What can go wrong while recording.

use arrow::error::ArrowError;
use std::io;

/// Why a recording does not begin, or ends early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The events cannot be read, or a function or a static probe of a program cannot be found.
    #[error(transparent)]
    Events(#[from] perfweave::Error),
    /// The place to write to is not understood.
    #[error("{url} is no folder and no URL of a store: {reason}")]
    Place {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store does not take the files.
    #[error("the store does not take a file: {0}")]
    Store(#[from] object_store::Error),
    /// A file cannot be written.
    #[error("a file cannot be written: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// Rows cannot become columns.
    #[error("rows cannot become columns: {0}")]
    Columns(ArrowError),
    /// Nobody takes the stream any more.
    #[error("standard output does not take the stream: {0}")]
    Output(io::Error),
    /// The system refuses something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The writing thread has ended without a reason, which is an error of this program.
    #[error("the writing thread has ended")]
    Writer,
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        match error {
            ArrowError::IoError(_, error) => Self::Output(error),
            error => Self::Columns(error),
        }
    }
}

impl Error {
    /// An error of the system while something was tried.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Self::System { what, source }
    }
}
