//! The threads that wait for grace periods, and those that hurry them.

use super::Proof;
use crate::order::fence::Fences;

impl Proof {
    /// The threads that wait for grace periods and hurry them, if there are any by now.
    pub(crate) fn threads(&self) -> impl Iterator<Item = u32> + use<> {
        let fences = match self {
            Self::Fences(fences) => Some(fences),
            Self::Epochs(watch) => watch.stand_in.as_ref(),
        };
        fences.map(Fences::threads).into_iter().flatten()
    }

    /// Hurries the proof under way, where a grace period is waited for: makes these CPUs switch, so many times in all.
    pub(crate) fn hurry(&mut self, cpus: impl Iterator<Item = u32>, most: usize) {
        if let Self::Fences(fences) = self {
            fences.hurry(cpus, most);
        }
    }
}
