//! Which calls have lines, and count in the table.

use super::asked::{End, Which};
use super::calls::{Call, Values};
use super::opened::Opened;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What a call must be like.
#[derive(Debug, Clone)]
pub struct Shown {
    pub ends: Which<End>,
    /// Nanoseconds that it took at least.
    pub least: Option<u64>,
    /// Paths of which it has one.
    pub paths: Vec<PathBuf>,
}

impl Shown {
    /// Each path as it was given, and as it is without links.
    pub fn with_paths(mut self, paths: &[PathBuf]) -> Self {
        self.paths = paths.iter().flat_map(|path| [Some(path.clone()), path.canonicalize().ok()]).flatten().collect();
        self.paths.dedup();
        self
    }

    /// Whether all calls have lines.
    pub fn is_all(&self) -> bool {
        self.ends == Which::All && self.least.is_none() && self.paths.is_empty()
    }

    /// Whether a call has one. `took`: how long it was entered, if that is known.
    pub fn has(&self, end: End, took: Option<u64>) -> bool {
        self.ends.has(&end) && self.least.is_none_or(|least| took.is_some_and(|took| took >= least))
    }

    /// Whether it has one of the paths as an argument, or a descriptor that is open on one.
    pub fn has_path(&self, call: &Call, values: Values<'_>, opened: Option<&Opened>) -> bool {
        let is_one = |bytes: &[u8]| self.paths.iter().any(|path| path == Path::new(OsStr::from_bytes(bytes)));
        let has_one = || call.paths(values).any(|(bytes, more)| !more && is_one(bytes));
        self.paths.is_empty() || has_one() || opened.is_some_and(|opened| opened.paths().any(is_one))
    }
}
