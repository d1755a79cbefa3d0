//! A walk over the records of a ring.

use crate::record::{Origin, Record};
use crate::ring::{Bytes, Fault, Ring};
use std::sync::Arc;

/// The records from a position to the head that was seen, and the damage between them. Takes time for each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Records<'a> {
    ring: &'a Ring,
    origin: &'a Arc<Origin>,
    /// Behind what was given last.
    pub(crate) position: u64,
}

impl<'a> Records<'a> {
    pub(crate) fn new(ring: &'a Ring, origin: &'a Arc<Origin>, position: u64) -> Self {
        Self { ring, origin, position }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, (Fault, Bytes<'a>)>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let Self { ring, origin, position: begin } = *self;
        if begin == ring.head() {
            return None;
        }
        let found = Record::at(ring, begin, origin);
        self.position = found.as_ref().map_or_else(|(_, end)| *end, |record| begin + record.len());
        Some(found.map_err(|(fault, end)| (fault, ring.bytes(begin, end - begin))))
    }
}
