//! Kinds of rings: all that differs between them.
//!
//! Each kind has a type and a file in `consumer/`. The file maps or adopts a ring of that kind, and implements
//! [`Framing`] for the type: how records lie in the ring, and what its head says. What other rooms must know about a
//! kind are its [`Properties`]. They ask for a property, never for a kind. A loop that takes a step for each record is
//! compiled once for each kind, by [`with_framing`].

use crate::ring::{Bytes, Fault, Header, Ring};

/// A kind of ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RingKind {
    Perf,
    RingBuffer,
}

/// Evaluates an expression in which a name stands for the type of a kind of ring.
macro_rules! with_framing {
    ($kind:expr, $framing:ident => $value:expr) => {
        match $kind {
            $crate::ring::RingKind::Perf => {
                type $framing = $crate::ring::Perf;
                $value
            }
            $crate::ring::RingKind::RingBuffer => {
                type $framing = $crate::ring::RingBuffer;
                $value
            }
        }
    };
}
pub(crate) use with_framing;

impl RingKind {
    #[cfg(all(test, not(loom)))]
    pub(crate) const ALL: [Self; 2] = [Self::Perf, Self::RingBuffer];

    pub(crate) const fn properties(self) -> &'static Properties {
        with_framing!(self, F => &F::PROPERTIES)
    }
}

/// What other rooms ask about a kind of ring.
pub(crate) struct Properties {
    /// What messages call such a ring.
    pub(crate) name: &'static str,
    /// Where in each record the length of its payload lies, and the payload. `None` if records begin with `struct
    /// perf_event_header`, and their layout says where fields lie.
    pub(crate) payload: Option<(usize, usize)>,
    /// Whether programs reserve bytes, behind a word that is 8-aligned, and commit them in any order. The reader sees
    /// which bytes are not committed.
    pub(crate) reserves: bool,
    /// Whether the kernel wakes the reader for each record, if the tail that it loads then has reached the record.
    pub(crate) wakes_when_drained: bool,
    /// Whether CPUs may share such a ring.
    pub(crate) is_shared: bool,
    /// Whether the kernel counts the records that it drops.
    pub(crate) counts_losses: bool,
    /// Whether the kernel can pause the output into it.
    pub(crate) can_pause: bool,
}

/// How records lie in a kind of ring, and what its head says.
pub(crate) trait Framing {
    const PROPERTIES: Properties;

    /// The header of a sample, from its first bytes. `None` if they begin something else. This need not know every
    /// sample: [`Framing::record`] takes all.
    fn sample(begin: [u8; 8]) -> Option<Header>;

    /// The length of the payload of such a sample. That of perf's ends at `end`, and is checked here.
    fn payload_len(sample: &[u8], end: usize) -> Option<u32>;

    /// The sample at the start of some bytes before the head: its header, its bytes, and the bytes after it. `None` if
    /// it does not lie in the bytes, or is shorter than `least`, which is at least a header.
    #[inline(always)]
    fn split(bytes: &[u8], least: usize) -> Option<(Header, &[u8], &[u8])> {
        let header = Self::sample(*bytes.first_chunk()?)?;
        debug_assert!(least >= Header::LEN as usize, "a size of 0 would never end");
        let (sample, rest) = bytes.split_at_checked(header.size().into())?;
        (sample.len() >= least).then_some((header, sample, rest))
    }

    /// The record at a position before the head: its checked header, and its bytes with the header. Called by
    /// `Ring::record` alone, which checks that this is no forked child.
    fn record(ring: &Ring, position: u64) -> Result<(Header, Bytes<'_>), Fault>;

    /// Takes a head of the kernel's, not before the last one nor further than the ring's length from the tail.
    fn look(ring: &mut Ring, head: u64) -> Result<(), Fault>;
}
