//! A recording that another program reads while it is written, in perf's pipe mode.
//!
//! ```text
//! 16 bytes | events, ids, facts, as records of perf's own | records, and events and ids that come later
//! ```
//! Nothing is written over, so it may go through a pipe.

use super::{FACT, Writer, header, unwritable};
use crate::machine;
use crate::metadata::{HEADER_ATTR, HEADER_BUILD_ID};
use crate::noted::Noted;
use crate::output::Output;
use crate::sections::{described, pipe_header};
use perfweave::{Error, Rings};
use smallvec::SmallVec;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// As many ids as one record has room for.
const IDS: usize = 8000;

/// `PERF_RECORD_EVENT_UPDATE`, and `PERF_EVENT_UPDATE__NAME`.
const EVENT_UPDATE: u32 = 78;
const UPDATE_NAME: u64 = 2;

impl Writer {
    /// Writes for another program to read meanwhile, as `perf record -o -` does: into a pipe, a socket or a file, from
    /// where it stands. `perf script -i -` and [`open`](crate::open) read it, the latter from a file. [`Writer::flush`]
    /// hands over what is held. Writing blocks until there is room, also where the descriptor is one that does not
    /// block (`O_NONBLOCK`). Otherwise as [`Writer::create`]; the file is not closed before the writer is dropped.
    ///
    /// A CPU that comes online later has events of its own, which are described where they come. `perf script` of Linux
    /// 6.1 ends there with a segmentation fault if they are tracepoints; `perf report` reads them.
    ///
    /// # Errors
    /// As for [`Writer::create`]. [`ErrorKind::Recording`](perfweave::ErrorKind::Recording) with `EPIPE` if nobody
    /// reads any more: Rust programs ignore the signal.
    pub fn pipe(to: impl Into<OwnedFd>, rings: &Rings) -> Result<Self, Error> {
        let to = to.into();
        let path = machine::what_is(to.as_fd()).unwrap_or_else(|| PathBuf::from("a pipe"));
        let mut writer = Self::begin(&path, || Ok(Output::pipe(to)), rings).map_err(|why| unwritable(&path, why))?;
        let named = writer.name(rings);
        named.map_err(|why| writer.give_up(why))?;
        Ok(writer)
    }

    /// Writes the first bytes, and all events that there are.
    pub(super) fn begin_pipe(&mut self) -> Result<(), Error> {
        self.file.put(&pipe_header())?;
        let ids: Vec<Vec<u64>> = self.events.iter().map(|event| event.ids.clone()).collect();
        // Names are told in this order: what has no room comes after all events.
        for (at, ids) in ids.iter().enumerate() {
            self.describe(at, &ids[..ids.len().min(IDS)])?;
        }
        for (at, ids) in ids.iter().enumerate() {
            ids.chunks(IDS).skip(1).try_for_each(|ids| self.describe(at, ids))?;
        }
        let is_only = ids.len() == 1;
        for (at, ids) in ids.iter().enumerate() {
            // For perf each record is an event of its own. 0 stands for the only event.
            let none = ids.is_empty() && is_only;
            ids.chunks(IDS).map(|ids| ids[0]).chain(none.then_some(0)).try_for_each(|id| self.call(at, id))?;
        }
        Ok(())
    }

    /// Names an event, by an id of its (`struct perf_record_event_update`): a perf that knows one event takes no name
    /// from the facts.
    fn call(&mut self, at: usize, id: u64) -> Result<(), Error> {
        let mut name = self.events[at].name.clone().into_bytes();
        name.truncate(FACT);
        // It ends with a zero byte.
        name.resize((name.len() + 1).next_multiple_of(8), 0);
        self.bytes(&header(EVENT_UPDATE, 0, 24 + name.len() as u16))?;
        self.bytes(&UPDATE_NAME.to_ne_bytes())?;
        self.bytes(&id.to_ne_bytes())?;
        self.bytes(&name)
    }

    /// Describes an event, or an id of it, that comes later than the first records.
    pub(super) fn describe_later(&mut self, at: usize, id: Option<u64>) -> Result<(), Error> {
        // Where another event has an equal attribute, an id that is known says which of them this is about.
        let is_it = |event: &Noted| event.as_written() == self.events[at].as_written();
        let is_one_of_many = self.events.iter().filter(|event| is_it(event)).count() > 1;
        let first = self.events[at].ids.first().copied().filter(|first| is_one_of_many && id != Some(*first));
        let ids: SmallVec<[u64; 2]> = first.into_iter().chain(id).collect();
        self.describe(at, &ids)?;
        id.map_or(Ok(()), |id| self.call(at, id))
    }

    /// Describes an event, or more ids of it.
    fn describe(&mut self, at: usize, ids: &[u64]) -> Result<(), Error> {
        let body = described(&self.events[at], ids);
        self.bytes(&header(HEADER_ATTR, 0, 8 + body.len() as u16))?;
        self.bytes(&body)
    }

    /// Writes a table of `struct perf_record_header_build_id` as records.
    pub(super) fn build_ids(&mut self, mut table: &[u8]) -> Result<(), Error> {
        while let Some(&[_, _, _, _, _, _, low, high]) = table.first_chunk() {
            let size = usize::from(u16::from_ne_bytes([low, high]));
            // The table of a recording may be forged: with a size of 0 this would never end.
            let Some((entry, rest)) = table.split_at_checked(size).filter(|_| size >= 8) else { break };
            // An entry begins with a header of this length, in which only the kind is missing.
            self.bytes(&HEADER_BUILD_ID.to_ne_bytes())?;
            self.bytes(&entry[4..])?;
            table = rest;
        }
        Ok(())
    }

    /// Hands over what is held. perf shows it, as no earlier record follows.
    pub(super) fn hand_over(&mut self) -> Result<(), Error> {
        if self.data > self.round {
            self.seal()?;
        }
        self.file.flush()
    }
}
