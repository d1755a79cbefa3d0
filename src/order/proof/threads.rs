//! The threads that wait for grace periods, and those that speed them up.

use super::Proof;
use crate::order::fence::Fences;

impl Proof {
    /// The threads that wait for grace periods and speed them up, once they exist.
    pub(crate) fn threads(&self) -> impl Iterator<Item = u32> + use<> {
        let fences = match self {
            Self::Fences(fences) => Some(fences),
            Self::Epochs(watch) => watch.stand_in.as_ref(),
            Self::Reserved(_) => None,
        };
        fences.map(Fences::threads).into_iter().flatten()
    }

    /// Speeds up the proof under way, if it is a grace period: makes these CPUs switch, `most` times in all.
    pub(crate) fn hurry(&mut self, cpus: impl Iterator<Item = u32>, most: usize) {
        if let Self::Fences(fences) = self {
            fences.hurry(cpus, most);
        }
    }
}
