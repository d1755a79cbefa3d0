//! The seal of each file, in the bytes that go to the store.

use crate::seal::{self, Before, End, NONE, Seal, Tally};
use blake3::{Hash, Hasher};
use bytes::Bytes;
use futures::future::BoxFuture;
use parquet::arrow::async_writer::AsyncFileWriter;
use parquet::errors::{ParquetError, Result};
use std::mem;

/// Hands bytes of a file on, all hashed. The newest ones are held until there are more: in the last ones is the seal,
/// into which the hash goes.
pub struct Sealing<W> {
    to: W,
    hasher: Hasher,
    held: Bytes,
    hash: Option<Hash>,
}

impl<W> Sealing<W> {
    /// A file without bytes.
    pub fn new(to: W) -> Self {
        Self { to, hasher: Hasher::new(), held: Bytes::new(), hash: None }
    }

    /// What was written into the seal, once the last bytes went to the store, also if it did not take them.
    pub fn hash(&self) -> Option<Hash> {
        self.hash
    }
}

impl<W: AsyncFileWriter> AsyncFileWriter for Sealing<W> {
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if bytes.is_empty() {
                return Ok(());
            }
            let before = mem::replace(&mut self.held, bytes);
            self.hasher.update(&before);
            if before.is_empty() { Ok(()) } else { self.to.write(before).await }
        })
    }

    fn complete(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let mut last = Vec::from(mem::take(&mut self.held));
            let hash = seal::close(&mut last, &mut self.hasher);
            let hash = hash.ok_or_else(|| ParquetError::General("the last bytes have no seal".into()))?;
            self.hash = Some(hash);
            self.to.write(last.into()).await?;
            self.to.complete().await
        })
    }
}

/// The end of a recording's chain.
#[derive(Debug, Default)]
pub struct Chain {
    /// How many files are finished, what they have, and the last one.
    number: u64,
    sums: seal::Sums,
    last: Option<(Hash, String)>,
    /// No row that comes has a smaller key, but for late ones.
    pub floor: Option<i64>,
    /// The smallest key of rows that are in no finished file, and will not be.
    failed: Option<i64>,
    /// What the last file says of all.
    pub end: Option<End>,
}

impl Chain {
    /// The seal of a file that is finished next. `open` is the smallest key of the files that stay open.
    pub fn seal(&self, [file, boot, trace]: [&str; 3], tally: &Tally, open: Option<i64>, is_last: bool) -> Seal {
        let before =
            self.last.as_ref().map(|(hash, file)| Before { hash: *hash, file: file.clone(), until: self.sums.until });
        let mut sums = self.sums;
        sums.add(tally.sums());
        Seal {
            hash: NONE,
            file: file.into(),
            boot: boot.into(),
            trace: trace.into(),
            number: self.number,
            before,
            here: *tally.sums(),
            cpus: tally.cpus(),
            sums,
            open: self.floor.map(|floor| open.into_iter().chain(self.failed).fold(floor, i64::min)),
            end: self.end.clone().filter(|_| is_last),
        }
    }

    /// Rows from this key on could not be written.
    pub fn fail(&mut self, first: i64) {
        self.failed = self.failed.into_iter().chain([first]).min();
    }

    /// All bytes of the file went to the store. If it could not finish it, it may be there or not: that the file is
    /// missing is then found.
    pub fn follow(&mut self, seal: Seal, hash: Hash) {
        (self.number, self.sums, self.last) = (seal.number + 1, seal.sums, Some((hash, seal.file)));
    }

    /// The hash of the last file.
    pub fn hash(&self) -> Option<Hash> {
        self.last.as_ref().map(|(hash, _)| *hash)
    }
}
