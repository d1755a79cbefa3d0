//! What has to be kept of a recording until its end, in files without a name instead of in memory.

use crate::packed::Packed;
use nix::fcntl::OFlag;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file without a name, where a large one may be: in `TMPDIR`, or else in `/var/tmp`, because `/tmp` may be in memory.
#[derive(Debug)]
pub struct Nameless {
    file: File,
    folder: PathBuf,
}

impl Nameless {
    pub fn new() -> io::Result<Self> {
        let tmp = std::env::temp_dir();
        let folders = if std::env::var_os("TMPDIR").is_some_and(|folder| !folder.is_empty()) {
            vec![tmp]
        } else {
            vec!["/var/tmp".into(), tmp]
        };
        let mut all = folders.into_iter().map(|folder| Self::within(&folder).map_err(|error| named(&folder, error)));
        let first = all.next().unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()));
        first.or_else(|error| all.next().and_then(Result::ok).ok_or(error))
    }

    fn within(folder: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).mode(0o600);
        let unnamed = options.clone().custom_flags(OFlag::O_TMPFILE.bits()).open(folder);
        let file = unnamed.or_else(|_| {
            // The file system has no files without names: a name that nobody can know before.
            let path = folder.join(format!("perfweave-{:016x}", RandomState::new().hash_one(std::process::id())));
            let file = options.create_new(true).open(&path)?;
            std::fs::remove_file(path)?;
            Ok::<_, io::Error>(file)
        })?;
        Ok(Self { file, folder: folder.to_owned() })
    }

    /// Where this process finds it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// Takes all that can be read.
    pub fn copy(&mut self, from: &mut impl BufRead) -> io::Result<()> {
        let mut written = 0;
        loop {
            let bytes = from.fill_buf().map_err(|error| told("cannot read standard input", error))?;
            if bytes.is_empty() {
                return Ok(());
            }
            self.write(bytes, written)?;
            let len = bytes.len();
            written += len as u64;
            from.consume(len);
        }
    }

    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, at).map_err(|error| named(&self.folder, error))
    }
}

fn told(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// An error with the folder, and what would help.
fn named(folder: &Path, error: io::Error) -> io::Error {
    let what = format!("cannot write a temporary file in {}", folder.display());
    told(&what, io::Error::new(error.kind(), format!("{error} (TMPDIR=FOLDER names another folder)")))
}

/// Bytes that are written first and read then. The last ones are in memory, so few bytes need no file.
#[derive(Debug, Default)]
pub struct Spill {
    file: Option<Nameless>,
    written: u64,
    last: Vec<u8>,
}

/// So many bytes are in memory.
const LAST: usize = 1 << 16;

impl Write for Spill {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.last.len() + bytes.len() > LAST {
            self.flush()?;
        }
        self.last.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(Nameless::new()?);
        }
        self.file.iter().try_for_each(|file| file.write(&self.last, self.written))?;
        self.written += self.last.len() as u64;
        self.last.clear();
        Ok(())
    }
}

impl Spill {
    fn len(&self) -> u64 {
        self.written + self.last.len() as u64
    }

    /// All that was written.
    pub fn read(&self) -> impl BufRead {
        self.read_from(0, LAST)
    }

    fn read_from(&self, at: u64, buffer: usize) -> impl BufRead + use<'_> {
        BufReader::with_capacity(buffer, Written { spill: self, at })
    }
}

/// What was written from a place on.
struct Written<'a> {
    spill: &'a Spill,
    at: u64,
}

impl Read for Written<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Spill { file, written, last } = self.spill;
        let read = match (file, written.checked_sub(self.at)) {
            (Some(file), Some(left @ 1..)) => {
                let most = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                file.file.read_at(&mut out[..most], self.at)?
            }
            _ => (&last[(self.at - written) as usize..]).read(out)?,
        };
        self.at += read as u64;
        Ok(read)
    }
}

/// Values in the order in which they came.
#[derive(Debug)]
pub struct Kept<T> {
    spill: Spill,
    len: usize,
    bytes: Vec<u8>,
    of: PhantomData<T>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        let (spill, len, bytes, of) = Default::default();
        Self { spill, len, bytes, of }
    }
}

impl<T: Packed> Kept<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push(&mut self, value: &T) -> io::Result<()> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        value.pack(&mut bytes);
        let pushed = self.push_packed(&bytes);
        self.bytes = bytes;
        pushed
    }

    fn push_packed(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.spill.write_all(&(bytes.len() as u32).to_ne_bytes())?;
        self.spill.write_all(bytes)?;
        self.len += 1;
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = io::Result<T>> + use<'_, T> {
        self.read(0, self.len, LAST)
    }

    /// Where the next value will be.
    pub fn place(&self) -> u64 {
        self.spill.len()
    }

    /// So many, from a place on.
    pub fn part(&self, place: u64, len: usize) -> impl Iterator<Item = io::Result<T>> + use<'_, T> {
        self.read(place, len, READ)
    }

    fn read(&self, at: u64, len: usize, buffer: usize) -> impl Iterator<Item = io::Result<T>> + use<'_, T> {
        let (mut from, mut bytes) = (self.spill.read_from(at, buffer), Vec::new());
        (0..len).map(move |_| {
            let mut len = [0; 4];
            from.read_exact(&mut len)?;
            bytes.resize(u32::from_ne_bytes(len) as usize, 0);
            from.read_exact(&mut bytes)?;
            Ok(T::unpack(&mut &bytes[..]))
        })
    }
}

/// Values that are read in the order of their keys. Those of one key keep the order in which they came.
#[derive(Debug)]
pub struct Sorted<T, K> {
    key: fn(&T) -> K,
    /// In parts, each of which is in order.
    kept: Kept<T>,
    /// Where each part begins, and how many it has.
    parts: Vec<(u64, usize)>,
    /// The part that is not written yet: keys, and where each value ends in the bytes behind.
    last: Vec<(K, std::ops::Range<usize>)>,
    bytes: Vec<u8>,
}

/// So many values are sorted in memory, or those of so many bytes: one may have a long chain of calls.
const PART: usize = 1 << 13;
const PART_BYTES: usize = 1 << 20;
/// So many bytes of each part are read at once.
const READ: usize = 1 << 12;

impl<T: Packed, K: Ord + Copy> Sorted<T, K> {
    pub fn by(key: fn(&T) -> K) -> Self {
        Self { key, kept: Kept::default(), parts: Vec::new(), last: Vec::new(), bytes: Vec::new() }
    }

    pub fn push(&mut self, value: T) -> io::Result<()> {
        let begin = self.bytes.len();
        value.pack(&mut self.bytes);
        self.last.push(((self.key)(&value), begin..self.bytes.len()));
        if self.last.len() == PART || self.bytes.len() >= PART_BYTES { self.end_part() } else { Ok(()) }
    }

    fn end_part(&mut self) -> io::Result<()> {
        self.parts.push((self.kept.place(), self.last.len()));
        self.last.sort_by_key(|(key, _)| *key);
        let Self { kept, last, bytes, .. } = self;
        last.drain(..).try_for_each(|(_, at)| kept.push_packed(&bytes[at]))?;
        bytes.clear();
        Ok(())
    }

    /// All of them, in their order.
    pub fn kept(mut self) -> io::Result<Kept<T>> {
        let mut kept = Kept::default();
        self.iter()?.try_for_each(|value| kept.push(&value?))?;
        Ok(kept)
    }

    /// All of them. None is added afterwards.
    pub fn iter(&mut self) -> io::Result<impl Iterator<Item = io::Result<T>> + use<'_, T, K>> {
        self.end_part()?;
        let (this, mut next, mut parts) = (&*self, BinaryHeap::new(), Vec::new());
        for (number, (at, len)) in this.parts.iter().enumerate() {
            let mut part = this.kept.part(*at, *len);
            let first = part.next().transpose()?;
            next.extend(first.iter().map(|first| Reverse(((this.key)(first), number))));
            parts.push((first, part));
        }
        Ok(std::iter::from_fn(move || {
            let Reverse((_, number)) = next.pop()?;
            let (first, part) = &mut parts[number];
            let value = first.take()?;
            *first = match part.next().transpose() {
                Ok(first) => first,
                Err(error) => return Some(Err(error)),
            };
            next.extend(first.iter().map(|first| Reverse(((this.key)(first), number))));
            Some(Ok(value))
        }))
    }
}

#[cfg(test)]
impl<T: Packed> FromIterator<T> for Kept<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut all = Self::default();
        values.into_iter().for_each(|value| all.push(&value).unwrap());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::{Kept, LAST, Nameless, PART, Sorted, named};
    use std::io::{self, ErrorKind};
    use std::path::Path;

    fn texts(count: u64) -> impl Iterator<Item = (u64, String)> {
        (0..count).map(|at| (at * 7_919 % 1_009, "größer".repeat(at as usize % 20)))
    }

    #[test]
    fn what_was_written_is_read() {
        let kept: Kept<_> = texts(10_000).collect();
        assert!(kept.spill.file.is_some() && kept.spill.last.len() <= LAST);
        for _ in 0..2 {
            assert!(kept.iter().map(Result::unwrap).eq(texts(10_000)));
        }
        assert_eq!(Kept::<u64>::default().iter().count(), 0);
    }

    /// In parts that a file has, with the last one in memory, or without any.
    #[test]
    fn what_was_sorted_is_stable() {
        for count in [0, 100, 3 * PART as u64, 3 * PART as u64 + 100] {
            let mut sorted = Sorted::by(|(key, _): &(u64, String)| *key);
            texts(count).for_each(|text| sorted.push(text).unwrap());
            let mut expected: Vec<_> = texts(count).collect();
            expected.sort_by_key(|(key, _)| *key);
            assert!(sorted.iter().unwrap().map(Result::unwrap).eq(expected), "{count}");
        }
    }

    #[test]
    fn an_error_has_the_folder_and_the_cure() {
        let full = named(Path::new("/small"), io::Error::from(ErrorKind::StorageFull));
        let words = "cannot write a temporary file in /small: no storage space (TMPDIR=FOLDER names another folder)";
        assert_eq!((full.kind(), full.to_string()), (ErrorKind::StorageFull, words.to_owned()));
        let missing = Nameless::within(Path::new("/nowhere")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
