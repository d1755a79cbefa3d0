//! Proofs by writers' epochs: the words of programs, read by the consumer.

use crate::error::Error;
use crate::instrument::step;
use crate::proof::barrier::{Barrier, Reserved};
use crate::proof::epochs::Epochs;
use crate::proof::fences::{Fences, Wanted};
use crate::proof::proves::{Course, Proves};
use crate::ring::{Epoch, EpochWords};
use std::io;
use std::time::{Duration, Instant};

/// Waits until all programs that were inside at its start have left. It only reads the words.
#[derive(Debug)]
pub(crate) struct Watch {
    epochs: Epochs,
    /// What makes a program's entering visible before its clock reading, where the program's own atomic does not; and
    /// why that failed. The words are read after that.
    barrier: Option<Box<Reserved>>,
    failed: Option<io::Error>,
    course: Course,
    /// Words of CPUs where a program was inside when the proof began and has not left yet, as far as the reader has
    /// seen.
    inside: Vec<(u32, Epoch)>,
    /// Whether the words were read repeatedly for this proof.
    pub(super) spun: bool,
    /// The grace period of the kernel that replaces the proof for words that stay inside. Started at first use.
    pub(super) stand_in: Option<Fences>,
    /// Since when the grace period under way replaces this proof. A grace period may be left from an earlier proof.
    standing_in: Option<Instant>,
    /// How often it replaced a proof.
    pub(super) stood_in: u64,
    /// The last word for which it replaced a proof. If the word is unchanged, the reader does not wait for it again.
    stuck: Option<(u32, Epoch)>,
    /// The CPU of a program that has returned without leaving or sleeps, and how long the reader waited for it. To be
    /// reported once.
    pub(crate) returned: Option<(u32, Duration)>,
}

/// The shortest sleep while a program is inside.
const NAP: Duration = Duration::from_micros(50);

/// How often the words are read again before the reader sleeps. This takes some microseconds, as long as most programs.
const SPINS: u32 = 256;

impl Watch {
    pub(crate) fn start(epochs: Epochs) -> Result<Self, Error> {
        // One entry a CPU at most, so that no proof allocates.
        let inside = Vec::with_capacity(epochs.words.len() as usize);
        // Elsewhere a program's clock may be read before others see that it has entered (PROOF, arm64).
        let needs_interrupts = cfg!(not(target_arch = "x86_64")) && epochs.words.are_mapped();
        let start = || Reserved::start(Barrier::INTERRUPTS).map(Box::new);
        Ok(Self {
            epochs,
            barrier: needs_interrupts.then(start).transpose()?,
            failed: None,
            course: Course::default(),
            inside,
            spun: false,
            stand_in: None,
            standing_in: None,
            stood_in: 0,
            stuck: None,
            returned: None,
        })
    }

    /// While a CPU could not be interrupted yet: how long until the next try.
    fn ordering(&self) -> Option<Duration> {
        self.barrier.as_ref()?.nap()
    }

    /// Reads who is inside, once programs' entering is visible.
    fn read_words(&mut self) {
        if let Some(barrier) = &mut self.barrier {
            // Too early before that: the word of a program that has entered may still say that nobody is inside.
            let Some(ordered) = barrier.ended() else { return };
            self.failed = ordered.err();
        }
        let words = &self.epochs.words;
        // After the loads of all heads, which are acquires, and after the clock reading that may stand for the largest
        // key.
        EpochWords::behind_clocks();
        let now = (0..words.len()).map(|cpu| (cpu, words.load(cpu)));
        // At depth 0 all that had entered have left, so such a word is not read again.
        self.inside.extend(now.filter(|(_, epoch)| epoch.depth() > 0));
    }

    /// Reads the words of the programs that were inside again.
    fn are_outside(&mut self) -> bool {
        let words = &self.epochs.words;
        self.inside.retain(|(cpu, before)| !words.load(*cpu).has_passed(*before));
        self.inside.is_empty()
    }

    /// Whether there is no program to wait for.
    pub(crate) fn is_over(&self) -> bool {
        !self.course.is_under_way || self.inside.is_empty()
    }

    /// Reads the words for some more microseconds, or once if that was already done for this proof: by then most
    /// programs have left, and the others take longer. Returns whether all programs have left.
    pub(crate) fn spin(&mut self) -> bool {
        let times = if std::mem::replace(&mut self.spun, true) { 1 } else { SPINS };
        (0..times).any(|_| {
            step();
            std::hint::spin_loop();
            self.are_outside()
        })
    }

    /// If a program has been inside for too long, a grace period of the kernel replaces the proof.
    pub(crate) fn lose_patience(&mut self) -> io::Result<()> {
        let is_known = self.inside.iter().any(|inside| self.stuck == Some(*inside));
        let is_long = is_known || self.course.past() >= self.epochs.patience;
        if self.is_over() || self.standing_in.is_some() || !is_long {
            return Ok(());
        }
        if self.stand_in.is_none() {
            let fence = self.epochs.stand_in.as_ref().map_or(Wanted::Any, |wait| Wanted::Custom(wait.clone()));
            let started = Fences::start(fence).map_err(io::Error::other);
            // The next proof also proves the events of this one.
            self.course.is_under_way = started.is_ok();
            self.stand_in = Some(started?);
        }
        let Some(fences) = &mut self.stand_in else { return Ok(()) };
        if !fences.is_here() {
            // Its thread is the parent's.
            self.course.is_under_way = false;
            return Err(io::Error::other(Error::forked()));
        }
        // The end of a grace period for an earlier proof, which ended by itself.
        let _ = fences.ended();
        // One for an earlier proof is under way, or the last began too recently. The reader asks again.
        if fences.pause() != Some(Duration::ZERO) {
            return Ok(());
        }
        fences.begin();
        self.standing_in = Some(Instant::now());
        self.stood_in += 1;
        Ok(())
    }
}

impl Proves for Watch {
    fn course(&self) -> &Course {
        &self.course
    }

    fn every(&self) -> Duration {
        self.barrier.as_ref().map_or(Duration::ZERO, |barrier| barrier.every())
    }

    fn begin(&mut self) {
        self.course.begin();
        (self.standing_in, self.spun) = (None, false);
        self.inside.clear();
        if let Some(barrier) = &mut self.barrier {
            barrier.begin();
        }
        self.read_words();
    }

    fn ended(&mut self) -> Option<io::Result<()>> {
        if !self.course.is_under_way {
            return None;
        }
        if self.ordering().is_some() {
            self.read_words();
        }
        let ended = match self.failed.take() {
            _ if self.ordering().is_some() => return None,
            // Words that were not read after an interrupt of each CPU prove nothing.
            Some(errno) => Err(errno),
            None if self.are_outside() => Ok(()),
            // Only a grace period that was begun for this proof counts.
            None => self.stand_in.as_mut().filter(|_| self.standing_in.is_some())?.ended()?,
        };
        if ended.is_ok() && !self.inside.is_empty() {
            // A grace period has ended, so all programs that were inside and cannot sleep have returned. If a word is
            // unchanged, one of them has not left, or one sleeps.
            let words = &self.epochs.words;
            // The whole word: in another generation all that were inside have left.
            self.stuck = self.inside.iter().find(|(cpu, before)| words.load(*cpu) == *before).copied();
            self.returned = self.stuck.map(|(cpu, _)| (cpu, self.course.past()));
        }
        self.course.end();
        Some(ended)
    }

    fn nap(&self) -> Option<Duration> {
        if self.is_over() {
            // It ends when the reader asks, unless a CPU could not be interrupted yet.
            return self.is_under_way().then(|| self.ordering().unwrap_or_default());
        }
        // As long again as the wait so far: a few short sleeps for a program that takes long.
        let waited = self.course.past();
        let nap = match self.standing_in {
            Some(since) => since.elapsed(),
            // The reader must be awake when the patience ends, to begin the grace period.
            None => waited.min(self.epochs.patience.saturating_sub(waited)),
        };
        Some(NAP.max(nap))
    }

    fn pass_time(&mut self) -> io::Result<()> {
        if self.ordering().is_some() || !self.spin() {
            self.lose_patience()?;
            std::thread::sleep(NAP);
        }
        Ok(())
    }

    fn is_here(&self) -> bool {
        self.stand_in.as_ref().is_none_or(Fences::is_here)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::instrument::count;
    use crate::sim::Kernel;
    use std::sync::mpsc;
    use std::sync::{Arc, Mutex};

    const FOR_EVER: Duration = Duration::from_secs(3600);

    /// Waits for something that needs nothing but time.
    fn until(mut condition: impl FnMut() -> bool) {
        while !condition() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_word_that_is_known_to_be_stuck_is_not_waited_for_again() {
        let kernel = Kernel::new(&[0, 1]);
        kernel.set_epoch(0, 1);
        let mut watch = Watch::start(kernel.epochs().patience(Duration::ZERO)).unwrap();
        watch.wait().unwrap();
        assert!(watch.returned.take().is_some_and(|(cpu, _)| cpu == 0) && watch.returned.take().is_none());
        watch.epochs = kernel.epochs().patience(FOR_EVER);
        let mut stands_in_at_once = |cpu, word| {
            kernel.set_epoch(cpu, word);
            watch.begin();
            until(|| watch.stand_in.as_ref().is_none_or(|fences| fences.pause() == Some(Duration::ZERO)));
            watch.lose_patience().unwrap();
            let stands_in = watch.standing_in.is_some();
            until(|| !stands_in || watch.ended().is_some());
            watch.course.end();
            stands_in
        };
        assert!(stands_in_at_once(0, 1), "as it was");
        assert!(!stands_in_at_once(0, 1 << 32 | 1), "another generation");
        kernel.set_epoch(0, 0);
        assert!(!stands_in_at_once(1, 1), "another CPU");
    }

    #[test]
    fn words_are_read_in_a_loop_once_for_each_proof() {
        let kernel = Kernel::new(&[0]);
        let mut watch = Watch::start(kernel.epochs().patience(FOR_EVER)).unwrap();
        kernel.begin(0, 1);
        for _ in 0..2 {
            watch.begin();
            assert_eq!([(); 3].map(|()| count(|| watch.spin()).0), [SPINS.into(), 1, 1]);
        }
        kernel.end(0);
        assert_eq!(count(|| watch.spin()), (1, true), "it has left");
    }

    /// A grace period begun for an earlier proof, which ends after that proof, proves nothing for this one.
    #[test]
    fn a_fence_of_an_earlier_proof_proves_nothing() {
        let kernel = Kernel::new(&[0]);
        let (open, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let mut watch = Watch::start(kernel.epochs().patience(Duration::ZERO)).unwrap();
        let fence = Wanted::Custom(Arc::new(move || gate.lock().unwrap().recv().map_err(io::Error::other)));
        watch.stand_in = Some(Fences::start(fence).unwrap());

        kernel.begin(0, 1);
        watch.begin();
        watch.lose_patience().unwrap();
        assert!(watch.standing_in.is_some() && watch.ended().is_none());
        kernel.write(0, b"");
        kernel.end(0);
        assert!(watch.ended().is_some_and(|ended| ended.is_ok()), "it has left, and the fence goes on");

        kernel.begin(0, 2);
        watch.begin();
        open.send(()).unwrap();
        until(|| {
            assert!(watch.ended().is_none(), "it is inside");
            watch.lose_patience().unwrap();
            watch.standing_in.is_some()
        });
        assert!(watch.ended().is_none(), "its own fence has not ended");
        open.send(()).unwrap();
        until(|| watch.ended().is_some_and(|ended| ended.is_ok()));
        // The thread's last wait, if it has begun one.
        drop(open);
        kernel.end(0);
    }
}
