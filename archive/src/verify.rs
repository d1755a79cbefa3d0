//! `verify`: checks what an archive says of itself, in one pass over its files.

mod check;
mod input;
mod places;
mod print;
mod thrift;

use crate::Failure;
use crate::query::Location;
use crate::seal::{End, OfCpu, Sums};
use blake3::Hash;
use check::Check;
use futures::StreamExt;
use input::Files;
use object_store::path::Path;
use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use tokio::runtime::Builder;

/// How many doubts of a recording are kept.
const DOUBTS: usize = 1000;

/// Check what an archive says of itself: whether a row, file or field was changed, added, moved or removed
///
/// Each file of `record` has a seal in its footer: the hash of all its bytes, the hash of the file that was finished
/// before it, the counts of rows and losses of each CPU, and how far the order was proven. This hashes each file once,
/// counts its rows, and compares. It names the files and times that nothing vouches for. Times are of CLOCK_MONOTONIC.
/// Old files that were removed are no doubt: it says from when on the archive has all. Memory: a footer of at most 64
/// MiB; the columns that it counts of a row group, at most 64 MiB as they are in the file and 64 MiB unpacked; and some
/// 300 bytes for each file. A file with more is in doubt, and its rows are not counted.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The archive: a folder, or URL of an object store; or one file
    #[arg(value_name = "URL")]
    pub url: String,
    /// The hash that `record` printed. May be given several times, once for each recording. Without it, a recording
    /// whose seals were written anew as well, or of which no file is left, is not found
    #[arg(long, value_name = "HASH", value_parser = hash)]
    pub expect: Vec<Hash>,
    /// Print one JSON object
    #[arg(short, long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  perfweave-archive record -e sched:sched_switch --to traces make   It prints the hash: keep it where nobody writes who may write the files
  perfweave-archive verify traces
  perfweave-archive verify traces --expect 3f5e...                  One of its recordings is the one that was recorded then
Exit status: 0 if all holds, 1 if something does not, or if nothing vouches for the archive.";

fn hash(text: &str) -> Result<Hash, String> {
    Hash::from_hex(text).map_err(|_| "a hash has 64 hexadecimal digits".into())
}

/// What [`verify`] has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Recordings, by machine.
    pub recordings: Vec<Recording>,
    /// Files that belong to no recording.
    pub doubts: Vec<Doubt>,
    /// How many more there are.
    pub more: u64,
    /// Files that are still being written, or were left open.
    pub open: u64,
}

/// A recording of an archive, or one file of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// The machine.
    pub machine: String,
    /// The boot of its kernel.
    pub boot: String,
    /// The recording.
    pub trace: String,
    /// Whether one file was looked at, and nothing is known of the others.
    pub is_single: bool,
    /// The hash in the last file: what `record` printed, if nothing is in doubt.
    pub hash: Option<Hash>,
    /// How many files have a seal.
    pub seals: u64,
    /// The number of the first file that is there, if it is not 0, and the largest key of those before it. The rows of
    /// these are not there.
    pub begins: Option<(u64, Option<i64>)>,
    /// What was found in the rows.
    pub found: Sums,
    /// What the last seal says of all files, also of those that are not there.
    pub claims: Sums,
    /// By CPU, what was found in the rows.
    pub cpus: Vec<OfCpu>,
    /// What the recorder knew at the end.
    pub end: Option<End>,
    /// What does not hold, in the order of the files: the first 1000.
    pub doubts: Vec<Doubt>,
    /// How many more there are.
    pub more: u64,
}

/// A part of an archive that nothing vouches for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// What does not hold.
    pub kind: DoubtKind,
    /// Which file. `None` for the recording.
    pub file: Option<String>,
    /// The keys of the rows that may be missing, added, moved or changed, as far as other seals say.
    pub times: [Option<i64>; 2],
    /// The CPUs that have more or fewer rows or losses than the seal says.
    pub cpus: Vec<Option<u32>>,
}

/// What does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DoubtKind {
    /// The file has other bytes than those that were sealed.
    Changed,
    /// So many files before it are missing, and where the last of them was.
    Missing(u64, String),
    /// The file was somewhere else when it was written.
    Moved(String),
    /// The file does not follow the one before it.
    Order,
    /// A Parquet file without a seal.
    Unsealed,
    /// The bytes are those that were sealed, and the rows are not those that the seal counts. The recorder was wrong,
    /// or the seal is not its own.
    Counts,
    /// The recording has no end. Later rows may be missing.
    Unfinished,
    /// A file that is none of Parquet: it was cut off, or changed.
    Damage,
    /// The rows cannot be read, and were not counted.
    Uncounted,
}

impl fmt::Display for DoubtKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changed => "its bytes are not those that were sealed",
            Self::Missing(1, last) => return write!(f, "a file before it is missing: {last}"),
            Self::Missing(files, last) => {
                return write!(f, "{files} files before it are missing, the last of them {last}");
            }
            Self::Moved(from) => return write!(f, "it was written as {from}"),
            Self::Order => "it does not follow the file before it: one of them was added, moved or sealed anew",
            Self::Unsealed => "no seal stands for it",
            Self::Counts => "the seal counts other rows than there are",
            Self::Unfinished => "it has no end: the recorder did not end it, or the end was cut off",
            Self::Damage => "it is no Parquet file: it was cut off or changed",
            Self::Uncounted => "its rows cannot be read, so they were not counted",
        })
    }
}

impl Recording {
    /// Whether everything that the recording says of itself holds.
    pub fn holds(&self) -> bool {
        self.doubts.is_empty()
    }

    /// Whether it is certain that nothing is missing.
    pub fn is_complete(&self) -> bool {
        let is_exact = |end: &End| end.total().is_complete() && end.dropped() == 0;
        self.holds() && self.begins.is_none() && self.end.as_ref().is_some_and(is_exact)
    }
}

impl Verdict {
    /// Whether the archive has a certificate, and everything that it says holds.
    pub fn holds(&self) -> bool {
        !self.recordings.is_empty() && self.doubts.is_empty() && self.recordings.iter().all(Recording::holds)
    }
}

/// A file with a seal.
#[derive(Debug)]
struct Place {
    number: u64,
    /// Whether it is where it was written.
    is_there: bool,
    name: String,
    path: Path,
    len: u64,
}

/// Checks an archive, or one file of it.
///
/// # Errors
/// If a file cannot be read from the store.
pub fn verify(url: &str) -> Result<Verdict, Failure> {
    let path = std::path::Path::new(url);
    let Some(name) = path.file_name().filter(|_| path.is_file()) else { return at(&Location::open(url)?, None) };
    // One file, in the folder that it is in.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
    let no_text = || Failure::Location { location: url.into(), why: "its path is no text".into() };
    at(&Location::open(folder.to_str().ok_or_else(no_text)?)?, Some(name.to_str().ok_or_else(no_text)?))
}

/// Checks what is at a place, or the file of this name there.
pub(crate) fn at(location: &Location, single: Option<&str>) -> Result<Verdict, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let files = Files { store: Arc::clone(&location.store), runtime };
    let (mut verdict, mut recordings) = (Verdict::default(), BTreeMap::<[String; 3], Vec<Place>>::new());
    let mut listed = location.list()?;
    let skipped = location.prefix.parts().count();
    while let Some(file) = files.runtime.block_on(listed.next()) {
        let file = match file {
            // A name that stores cannot have, such as one with a line break: no file of an archive, but engines may
            // read it as one.
            Err(object_store::Error::InvalidPath { source }) => {
                let name = source.to_string();
                if single.is_none() && name.contains(".parquet") {
                    verdict.doubt(DoubtKind::Unsealed, name);
                }
                continue;
            }
            // A loop of links, or a folder that cannot be read. The next ones can.
            Err(error) if location.root.scheme() == "file" => {
                if single.is_none() {
                    verdict.doubt(DoubtKind::Uncounted, error.to_string());
                }
                continue;
            }
            file => file?,
        };
        let parts = file.location.parts().skip(skipped).map(|part| part.as_ref().to_owned());
        let name = parts.collect::<Vec<_>>().join("/");
        verdict.open += u64::from(single.is_none() && name.contains(".parquet.open-"));
        if !single.map_or(name.ends_with(".parquet"), |single| single == name) {
            continue;
        }
        let Some(footer) = unless_gone(files.footer(&file.location, file.size))? else {
            verdict.doubt(DoubtKind::Uncounted, name);
            continue;
        };
        let kind = if footer.is_some() { DoubtKind::Unsealed } else { DoubtKind::Damage };
        let Some((seal, _)) = footer.and_then(|footer| footer.seal) else {
            verdict.doubt(kind, name);
            continue;
        };
        let is_there = seal.file == name || (single.is_some() && is_where_it_was(&file.location, &name, &seal.file));
        let machine = seal.file.split('/').find_map(|part| part.strip_prefix("machine=")).unwrap_or_default();
        let place = Place { number: seal.number, is_there, name, path: file.location, len: file.size };
        recordings.entry([machine.to_owned(), seal.boot, seal.trace]).or_default().push(place);
    }
    for (of, mut places) in recordings {
        places.sort_by(|one, other| one.order().cmp(&other.order()));
        let mut check = Check::new(of, single.is_some());
        places.iter().try_for_each(|place| check.file(&files, place))?;
        verdict.recordings.push(check.finish());
    }
    verdict.doubts.sort_by(|one, other| one.file.cmp(&other.file));
    Ok(verdict)
}

/// `None` if a file was removed or cut off since it was found.
fn unless_gone<T>(read: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match read {
        Err(Failure::Store(object_store::Error::NotFound { .. }) | Failure::Parquet(_)) => Ok(None),
        read => read.map(Some),
    }
}

/// Whether a single file may have been written as that one. Where the archive begins is not known, and it may have been
/// taken out of it. In the folder of a machine it was not.
fn is_where_it_was(path: &Path, name: &str, written: &str) -> bool {
    let is_in_archive = path.parts().any(|part| part.as_ref().starts_with("machine="));
    let here = if is_in_archive { path.as_ref() } else { name };
    let (longer, shorter) = if is_in_archive { (here, written) } else { (written, here) };
    longer.strip_suffix(shorter).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

impl Place {
    /// In the order of the recording. Of two that claim one place, the one that is where it was written comes first.
    fn order(&self) -> (u64, bool, &str) {
        (self.number, !self.is_there, &self.name)
    }
}

impl Verdict {
    fn doubt(&mut self, kind: DoubtKind, file: String) {
        let doubt = Doubt { kind, file: Some(file), times: [None; 2], cpus: Vec::new() };
        if self.doubts.len() < DOUBTS { self.doubts.push(doubt) } else { self.more += 1 }
    }
}

/// Checks an archive, and prints what was found. Gives whether all holds.
///
/// # Errors
/// If a file cannot be read from the store, or the output cannot be written.
pub fn run(options: &Options) -> Result<bool, Failure> {
    let verdict = verify(&options.url)?;
    let is_there = |hash: &Hash| verdict.recordings.iter().any(|recording| recording.hash == Some(*hash));
    let missing = options.expect.iter().filter(|hash| !is_there(hash)).copied().collect::<Vec<_>>();
    let mut output = std::io::stdout().lock();
    let printed = match options.json {
        true => print::object(options, &verdict, &missing, &mut output),
        false => print::text(options, &verdict, &missing, &mut output),
    };
    match printed {
        // Who reads it has seen enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    Ok(verdict.holds() && missing.is_empty())
}

#[cfg(test)]
mod tests;
