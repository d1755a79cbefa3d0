//! Errors after which the reader goes on. Each comes again and again, and is reported now and then.

use super::awaited::Awaited;
use crate::error::{Error, ErrorKind, Repeats};
use crate::proof::prover::Prover;
use crate::ring::ANY_CPU;
use std::io;
use std::time::{Duration, Instant};

/// A proof that takes longer does not come: the kernel reports a grace period as stalled after 21 s.
pub(super) const STALLED: Duration = Duration::from_secs(30);

/// What goes wrong, and how often.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    /// Proofs that fail.
    pub(super) failures: Repeats,
    /// What proofs say beside their results.
    warnings: Repeats,
    /// Refreshes at which too many events were held, and how many of them are to be reported.
    pub(super) crowds: Repeats,
    crowded: Option<u64>,
    /// Turns in which a proof did not come.
    delays: Repeats,
}

impl Troubles {
    /// A proof has failed. `is_awaited`: a flush or deadline waits for it.
    #[cold]
    pub(super) fn failed(&mut self, errno: io::Error, is_awaited: bool) -> Result<(), Error> {
        let times = self.failures.failed(is_awaited);
        times.map_or(Ok(()), |times| Err(Error::fence_failed(ErrorKind::Degraded, errno, times)))
    }

    /// Reports what a proof says beside its result.
    pub(super) fn report_warning(&mut self, warning: Option<Error>, is_awaited: bool) -> Result<(), Error> {
        let Some(warning) = warning else { return Ok(()) };
        self.warnings.failed(is_awaited).map_or(Ok(()), |times| Err(warning.repeated(times)))
    }

    /// A refresh has found more events than are held while records are copied; or not so many.
    pub(super) fn refreshed(&mut self, has_too_many: bool) {
        if has_too_many {
            self.crowded = self.crowds.failed(false).or(self.crowded);
        } else {
            self.crowds.succeeded();
        }
    }

    /// Reports that so many events are held that no more are copied out of rings that fill up.
    pub(super) fn report_too_many(&mut self, held: impl FnOnce() -> usize) -> Result<(), Error> {
        self.crowded.take().map_or(Ok(()), |times| Err(Error::too_many_held(held(), times)))
    }

    /// Reports a proof that does not come, with the program or the proof for which it waits.
    pub(super) fn report_delay(
        &mut self,
        awaited: &Awaited,
        proof: Option<&Prover>,
        now: Instant,
    ) -> Result<(), Error> {
        let is_late = |time: &Duration| *time > STALLED;
        if let Some((cpu, time)) = awaited.oldest(now).filter(|(_, time)| is_late(time)) {
            let cpu = Some(cpu).filter(|cpu| *cpu != ANY_CPU);
            return self.delays.failed(false).map_or(Ok(()), |times| Err(Error::not_committed(cpu, time, times)));
        }
        if let Some((proof, time)) = proof.and_then(|proof| Some((proof, proof.under_way().filter(is_late)?))) {
            let name = proof.name();
            return self.delays.failed(false).map_or(Ok(()), |times| Err(Error::no_proof(name, time, times)));
        }
        self.delays.succeeded();
        Ok(())
    }
}
