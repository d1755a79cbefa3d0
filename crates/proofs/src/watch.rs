//! Proofs by writers' epochs: the words of programs, read by the consumer.

use crate::barrier::{Barrier, Reserved};
use crate::epochs::Epochs;
use crate::stand_in::StandIn;
use perfweave::{Done, Error, ErrorKind, Fence, Proof, Rings};
use std::io;
use std::time::{Duration, Instant};

/// Waits until all programs that were inside at its start have left. It only reads the words.
pub(crate) struct Watch {
    epochs: Epochs,
    /// What makes a program's entering visible before its clock reading, where the program's own atomic does not; and
    /// why that failed. The words are read after that.
    barrier: Option<Box<Reserved>>,
    failed: Option<io::Error>,
    /// Of the reader, once it is open.
    done: Option<Done>,
    /// When the last proof began.
    begun: Instant,
    /// Words of CPUs where a program was inside when the proof began and has not left yet, as far as the reader has
    /// seen.
    inside: Vec<(u32, u64)>,
    /// Whether the words were read repeatedly for this proof.
    spun: bool,
    /// The grace period of the kernel that replaces the proof for words that stay inside. Started at first use.
    stand_in: Option<StandIn>,
    /// Since when the grace period under way replaces this proof. A grace period may be left from an earlier proof.
    standing_in: Option<Instant>,
    /// How often it replaced a proof.
    stood_in: u64,
    /// The last word for which it replaced a proof. If the word is unchanged, the reader does not wait for it again.
    stuck: Option<(u32, u64)>,
    /// The CPU of a program that has returned without leaving or sleeps, and how long the reader waited for it. To be
    /// reported once.
    returned: Option<(u32, Duration)>,
}

/// The shortest sleep while a program is inside.
const NAP: Duration = Duration::from_micros(50);

/// How often the words are read again before the reader sleeps. This takes some microseconds, as long as most programs.
const SPINS: u32 = 256;

impl Watch {
    pub(crate) fn new(epochs: Epochs) -> Self {
        // One entry a CPU at most, so that no proof allocates.
        let inside = Vec::with_capacity(epochs.words.len() as usize);
        // Elsewhere a program's clock may be read before others see that it has entered (PROOF, arm64).
        let needs_interrupts = !epochs.words.are_ordered();
        Self {
            epochs,
            barrier: needs_interrupts.then(|| Box::new(Reserved::new(Barrier::INTERRUPTS))),
            failed: None,
            done: None,
            begun: Instant::now(),
            inside,
            spun: false,
            stand_in: None,
            standing_in: None,
            stood_in: 0,
            stuck: None,
            returned: None,
        }
    }

    /// While a CPU could not be interrupted yet: how long until the next try.
    fn ordering(&self) -> Option<Duration> {
        self.barrier.as_ref()?.until_retry()
    }

    /// Reads who is inside, once programs' entering is visible.
    fn read_words(&mut self) {
        if let Some(barrier) = &mut self.barrier {
            // Too early before that: the word of a program that has entered may still say that nobody is inside.
            let Some(ordered) = barrier.poll() else { return };
            self.failed = ordered.err();
        }
        // After the loads of all heads, which are acquires, and after the clock reading that may stand for the largest
        // key. A word that says that nobody is inside is not read again.
        self.epochs.words.inside(&mut self.inside);
    }

    /// Reads the words of the programs that were inside again.
    fn are_outside(&mut self) -> bool {
        !self.epochs.words.still_inside(&mut self.inside)
    }

    /// Reads the words for some more microseconds, or once if that was already done for this proof: by then most
    /// programs have left, and the others take longer. Returns whether all programs have left.
    fn spin(&mut self) -> bool {
        let times = if std::mem::replace(&mut self.spun, true) { 1 } else { SPINS };
        (0..times).any(|_| {
            #[cfg(test)]
            tests::step();
            std::hint::spin_loop();
            self.are_outside()
        })
    }

    /// If a program has been inside for too long, a grace period of the kernel replaces the proof: begins it, and gives
    /// its result once it has ended.
    fn lose_patience(&mut self) -> Option<io::Result<()>> {
        if self.standing_in.is_none() {
            let is_known = self.inside.iter().any(|inside| self.stuck == Some(*inside));
            if !is_known && self.begun.elapsed() < self.epochs.patience {
                return None;
            }
            match self.begin_stand_in() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(errno) => return Some(Err(errno)),
            }
        }
        self.stand_in.as_mut()?.poll()
    }

    /// Begins a grace period for this proof. False if none may begin yet: the reader asks again.
    fn begin_stand_in(&mut self) -> io::Result<bool> {
        let stand_in = match &mut self.stand_in {
            Some(stand_in) => stand_in,
            none => {
                let Some(done) = &self.done else { return Ok(false) };
                none.insert(StandIn::open(&self.epochs.stand_in, None, done).map_err(io::Error::other)?)
            }
        };
        // The end of a grace period for an earlier proof, which ended by itself.
        let _ = stand_in.poll();
        // One for an earlier proof is under way, or the last began too recently.
        if !stand_in.may_begin() {
            return Ok(false);
        }
        stand_in.begin();
        self.standing_in = Some(Instant::now());
        self.stood_in += 1;
        Ok(true)
    }
}

impl Proof for Watch {
    fn name(&self) -> &'static str {
        "epochs"
    }

    fn open(&mut self, rings: Option<&Rings>, done: &Done) -> Result<(), Error> {
        rings.map_or(Ok(()), |rings| self.epochs.check(rings))?;
        self.done = Some(done.clone());
        // The kernel's own stand in for all rings, and are opened when they are needed. Another says now if it does not.
        if let Fence::Proof(..) = &self.epochs.stand_in {
            self.stand_in = Some(StandIn::open(&self.epochs.stand_in, rings, done)?);
        }
        self.barrier.as_mut().map_or(Ok(()), |barrier| barrier.prepare())
    }

    fn begin(&mut self) {
        (self.begun, self.standing_in, self.spun) = (Instant::now(), None, false);
        self.inside.clear();
        if let Some(barrier) = &mut self.barrier {
            barrier.begin();
        }
        self.read_words();
    }

    fn poll(&mut self) -> Option<io::Result<()>> {
        if self.ordering().is_some() {
            self.read_words();
        }
        let ended = match self.failed.take() {
            _ if self.ordering().is_some() => return None,
            // Words that were not read after an interrupt of each CPU prove nothing.
            Some(errno) => Err(errno),
            None if self.inside.is_empty() || self.spin() => Ok(()),
            None => self.lose_patience()?,
        };
        if ended.is_ok() && !self.inside.is_empty() {
            // A grace period has ended, so all programs that were inside and cannot sleep have returned. If a word is
            // unchanged, one of them has not left, or one sleeps.
            let mut now = Vec::new();
            self.epochs.words.inside(&mut now);
            // The whole word: in another generation all that were inside have left.
            self.stuck = self.inside.iter().find(|inside| now.contains(inside)).copied();
            self.returned = self.stuck.map(|(cpu, _)| (cpu, self.begun.elapsed()));
        }
        Some(ended)
    }

    fn nap(&self) -> Option<Duration> {
        if let Some(left) = self.ordering() {
            return Some(left);
        }
        // Before it sleeps, the reader asks in a loop, which mostly sees the programs leave.
        if self.inside.is_empty() || !self.spun {
            return Some(Duration::ZERO);
        }
        // As long again as the wait so far: a few short sleeps for a program that takes long.
        let waited = self.begun.elapsed();
        let nap = match self.standing_in {
            Some(since) => since.elapsed(),
            // The reader must be awake when the patience ends, to begin the grace period.
            None => waited.min(self.epochs.patience.saturating_sub(waited)),
        };
        Some(NAP.max(nap))
    }

    fn every(&self) -> Duration {
        self.barrier.as_ref().map_or(Duration::ZERO, |barrier| barrier.every())
    }

    fn stand_ins(&self) -> u64 {
        self.stood_in
    }

    fn warning(&mut self) -> Option<Error> {
        self.returned.take().map(|(cpu, waited)| stuck(cpu, waited))
    }
}

/// The error for a program that has returned without leaving, or sleeps: a grace period has passed, and its CPU's word
/// has not changed.
#[cold]
fn stuck(cpu: u32, waited: Duration) -> Error {
    let message = format!(
        "a program on CPU {cpu} has returned without perfweave_leave(), or sleeps inside, and was waited for \
         {waited:?}: a kernel fence stood in"
    );
    let hint = "if it does not leave, fix it and recreate the map, which keeps its words; if it sleeps, its records \
                can be late: give the epochs a patience without end";
    Error::new(ErrorKind::Degraded, message).hinting(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use perfweave::sim::Kernel;
    use std::sync::{Mutex, mpsc};

    thread_local! {
        static STEPS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    /// A turn of a loop that could be one too many.
    pub(super) fn step() {
        STEPS.with(|steps| steps.set(steps.get() + 1));
    }

    /// How many steps something takes.
    fn count<T>(run: impl FnOnce() -> T) -> (u32, T) {
        let before = STEPS.with(std::cell::Cell::get);
        let value = run();
        (STEPS.with(std::cell::Cell::get) - before, value)
    }

    const FOR_EVER: Duration = Duration::from_secs(3600);

    /// Waits for something that needs nothing but time.
    fn until(mut condition: impl FnMut() -> bool) {
        while !condition() {
            std::thread::yield_now();
        }
    }

    /// Epochs of a machine, whose own grace periods stand in.
    fn epochs(kernel: &Kernel, patience: Duration) -> Epochs {
        Epochs::over(kernel.epochs()).patience(patience).stand_in(kernel.fence())
    }

    fn watch(epochs: Epochs) -> Watch {
        let mut watch = Watch::new(epochs);
        watch.open(None, &Done::default()).unwrap();
        watch
    }

    /// Begins a proof and waits for it.
    fn prove(watch: &mut Watch) {
        watch.begin();
        until(|| watch.poll().is_some_and(|ended| ended.is_ok()));
    }

    #[test]
    fn a_word_that_is_known_to_be_stuck_is_not_waited_for_again() {
        let kernel = Kernel::new(&[0, 1]);
        kernel.set_epoch(0, 1);
        let mut watch = watch(epochs(&kernel, Duration::ZERO));
        prove(&mut watch);
        assert!(watch.returned.take().is_some_and(|(cpu, _)| cpu == 0) && watch.returned.take().is_none());
        watch.epochs = epochs(&kernel, FOR_EVER);
        let mut stands_in_at_once = |cpu, word| {
            kernel.set_epoch(cpu, word);
            watch.begin();
            until(|| watch.stand_in.as_ref().is_none_or(StandIn::may_begin));
            let ended = watch.poll();
            let stands_in = watch.standing_in.is_some();
            until(|| !stands_in || ended.is_some() || watch.poll().is_some());
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
        let mut watch = watch(epochs(&kernel, FOR_EVER));
        kernel.begin(0, 1);
        for _ in 0..2 {
            watch.begin();
            assert!(watch.nap().is_some_and(|nap| nap.is_zero()), "first it reads them in a loop");
            assert_eq!([(); 3].map(|()| count(|| watch.poll().is_some())), [(SPINS, false), (1, false), (1, false)]);
            assert!(watch.nap().is_some_and(|nap| nap >= NAP), "then it sleeps");
        }
        kernel.end(0);
        assert!(matches!(count(|| watch.poll()), (1, Some(Ok(())))), "it has left");
    }

    /// A grace period begun for an earlier proof, which ends after that proof, proves nothing for this one.
    #[test]
    fn a_fence_of_an_earlier_proof_proves_nothing() {
        let kernel = Kernel::new(&[0]);
        let (open, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let stand_in = Fence::by(move || gate.lock().unwrap().recv().map_err(io::Error::other));
        let epochs = epochs(&kernel, Duration::ZERO).stand_in(stand_in);
        let mut watch = watch(epochs);

        kernel.begin(0, 1);
        watch.begin();
        assert!(watch.poll().is_none() && watch.standing_in.is_some() && watch.poll().is_none());
        kernel.write(0, b"");
        kernel.end(0);
        assert!(watch.poll().is_some_and(|ended| ended.is_ok()), "it has left, and the fence goes on");

        kernel.begin(0, 2);
        watch.begin();
        open.send(()).unwrap();
        until(|| {
            assert!(watch.poll().is_none(), "it is inside");
            watch.standing_in.is_some()
        });
        assert!(watch.poll().is_none(), "its own fence has not ended");
        open.send(()).unwrap();
        until(|| watch.poll().is_some_and(|ended| ended.is_ok()));
        // The thread's last wait, if it has begun one.
        drop(open);
        kernel.end(0);
    }
}
