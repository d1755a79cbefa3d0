//! Proofs that no smaller key is in flight: the kernel's grace periods, or the writers' epochs.

mod threads;

use crate::error::{Error, ErrorKind};
use crate::instrument::step;
use crate::order::barrier::{EVERY, Interrupts, Reserved};
use crate::order::epochs::Epochs;
use crate::order::fence::Fences;
use crate::order::hold::Fence;
use crate::order::rcu::Rcu;
use crate::ring::{Epoch, EpochWords};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// One proof at a time.
#[derive(Debug)]
pub(crate) enum Proof {
    /// Grace periods, waited for by a thread.
    Fences(Fences),
    /// Writers' epochs, read by the consumer.
    Epochs(Watch),
    /// Reservations in BPF ring buffers: once CPUs have ordered their stores.
    Reserved(Reserved),
}

impl Proof {
    /// Prepares the proof that a fence asks for.
    pub(crate) fn start(fence: &Fence) -> Result<Self, Error> {
        match fence {
            Fence::Epochs(epochs) => Watch::start(epochs.clone()).map(Self::Epochs),
            Fence::Reserved(barrier) => Reserved::start(*barrier).map(Self::Reserved),
            fence => Fences::start(fence).map(Self::Fences),
        }
    }

    /// Which way is in use.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Fences(fences) => fences.name(),
            Self::Epochs(_) => "epochs",
            Self::Reserved(_) => "reserved",
        }
    }

    /// How long until a proof may begin. Zero if it may begin now, `None` while one is under way.
    pub(crate) fn pause(&self) -> Option<Duration> {
        match self {
            Self::Fences(fences) => fences.pause(),
            Self::Epochs(watch) => (!watch.under_way).then(|| watch.pause()),
            Self::Reserved(reserved) => reserved.pause(),
        }
    }

    /// Whether a proof was begun and its end was not noticed yet.
    pub(crate) fn is_under_way(&self) -> bool {
        match self {
            Self::Fences(fences) => fences.is_under_way(),
            Self::Epochs(watch) => watch.under_way,
            Self::Reserved(reserved) => reserved.is_under_way(),
        }
    }

    /// Begins a proof for all keys seen before.
    pub(crate) fn begin(&mut self) {
        match self {
            Self::Fences(fences) => fences.begin(),
            Self::Epochs(watch) => watch.begin(),
            Self::Reserved(reserved) => reserved.begin(),
        }
    }

    /// The result of the proof under way, if it has ended. Returned once.
    #[inline]
    pub(crate) fn ended(&mut self) -> Option<io::Result<()>> {
        match self {
            Self::Fences(fences) => fences.ended(),
            Self::Epochs(watch) => watch.ended(),
            Self::Reserved(reserved) => reserved.ended(),
        }
    }

    /// Whether the proof under way has ended by itself. A proof of epochs ends when the reader asks.
    #[inline(always)]
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Self::Fences(fences) => fences.has_ended(),
            Self::Epochs(_) | Self::Reserved(_) => false,
        }
    }

    /// Waits for a proof that begins now.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        match self {
            Self::Fences(fences) => fences.wait(),
            Self::Epochs(watch) => watch.wait(),
            Self::Reserved(reserved) => {
                reserved.begin();
                let ended = loop {
                    match reserved.ended() {
                        Some(ended) => break ended,
                        None => std::thread::sleep(reserved.nap().unwrap_or_default()),
                    }
                };
                ended.map_err(|errno| Error::fence_failed(ErrorKind::of(&errno), errno, 1))
            }
        }
    }

    /// How long the proof under way has taken so far; `None` if none is under way.
    pub(crate) fn under_way(&self) -> Option<Duration> {
        match self {
            Self::Fences(fences) => fences.under_way(),
            Self::Epochs(watch) => watch.under_way.then(|| watch.begun.elapsed()),
            Self::Reserved(reserved) => reserved.under_way(),
        }
    }

    /// Becomes readable when a proof ends, if the proof has a descriptor.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Fences(fences) => Some(fences.wake()),
            Self::Epochs(_) | Self::Reserved(_) => None,
        }
    }

    /// The writers' epochs, if they are used.
    pub(crate) fn epochs(&mut self) -> Option<&mut Watch> {
        match self {
            Self::Fences(_) | Self::Reserved(_) => None,
            Self::Epochs(watch) => Some(watch),
        }
    }

    /// In a forked child, drops the proof under way, because the thread that waits for it is the parent's. Returns whether it did.
    fn leave_to_parent(&mut self) -> bool {
        match self {
            Self::Fences(fences) => fences.leave_to_parent(),
            Self::Epochs(watch) => watch.leave_to_parent(),
            Self::Reserved(_) => false,
        }
    }

    /// How often a kernel fence replaced the proof for programs that did not leave.
    pub(crate) fn stand_ins(&self) -> u64 {
        match self {
            Self::Fences(_) | Self::Reserved(_) => 0,
            Self::Epochs(watch) => watch.stood_in,
        }
    }

    /// How long the reader may sleep before it asks for the end of the proof under way. `None` if the end wakes it.
    pub(crate) fn nap(&self) -> Option<Duration> {
        match self {
            Self::Fences(_) => None,
            Self::Epochs(watch) => watch.nap(),
            Self::Reserved(reserved) => reserved.nap(),
        }
    }

    /// Whether the proof under way waits for programs, and the reader has read their words repeatedly.
    pub(crate) fn waits_for_programs(&self) -> bool {
        matches!(self, Self::Epochs(watch) if watch.spun && !watch.is_over())
    }

    /// Whether a proof can end in the call that asks for its end, and costs no wait.
    #[inline]
    pub(crate) fn ends_at_once(&self) -> bool {
        !matches!(self, Self::Fences(_))
    }
}

/// Waits until all programs that were inside at its start have left. It only reads the words.
#[derive(Debug)]
pub(crate) struct Watch {
    epochs: Epochs,
    /// What makes a program's entering visible before its clock reading, where the program's own atomic does not; and why that failed.
    interrupts: Option<Box<Interrupts>>,
    failed: Option<io::Error>,
    /// When to interrupt again, because a CPU could not be interrupted yet. The words are read after that.
    again: Option<Instant>,
    under_way: bool,
    begun: Instant,
    /// Words of CPUs where a program was inside when the proof began and has not left yet, as far as the reader has seen.
    inside: Vec<(u32, Epoch)>,
    /// Whether the words were read repeatedly for this proof.
    spun: bool,
    /// The kernel fence that replaces the proof for words that stay inside. Started at first use.
    stand_in: Option<Fences>,
    /// Since when the fence under way replaces this proof. A fence may be left from an earlier proof.
    standing_in: Option<Instant>,
    /// How often it replaced a proof.
    stood_in: u64,
    /// The last word for which it replaced a proof. If the word is unchanged, the reader does not wait for it again.
    stuck: Option<(u32, Epoch)>,
    /// The CPU and the time to report.
    returned: Option<(u32, Duration)>,
}

/// The shortest sleep while a program is inside.
const NAP: Duration = Duration::from_micros(50);

/// How often the words are read again before the reader sleeps. This takes some microseconds, as long as most programs.
const SPINS: u32 = 256;

impl Watch {
    fn start(epochs: Epochs) -> Result<Self, Error> {
        let inside = Vec::with_capacity(epochs.words().len() as usize);
        let needs_interrupts = cfg!(not(target_arch = "x86_64")) && epochs.words().are_mapped();
        Ok(Self {
            epochs,
            interrupts: needs_interrupts.then(|| Interrupts::open(false).map(Box::new)).transpose()?,
            failed: None,
            again: None,
            under_way: false,
            begun: Instant::now(),
            inside,
            spun: false,
            stand_in: None,
            standing_in: None,
            stood_in: 0,
            stuck: None,
            returned: None,
        })
    }

    /// How long until the next proof may begin.
    fn pause(&self) -> Duration {
        let every = self.interrupts.as_ref().map_or(Duration::ZERO, |interrupts| EVERY.max(interrupts.retry()));
        every.saturating_sub(self.begun.elapsed())
    }

    fn begin(&mut self) {
        (self.under_way, self.standing_in, self.begun) = (true, None, Instant::now());
        self.spun = false;
        self.read_words();
    }

    /// Makes programs' entering visible, and reads who is inside.
    fn read_words(&mut self) {
        self.inside.clear();
        (self.failed, self.again) = (None, None);
        if let Some(interrupts) = &mut self.interrupts {
            match interrupts.send() {
                Some(sent) => self.failed = sent.err(),
                None => return self.again = Some(Instant::now() + interrupts.retry()),
            }
        }
        let words = self.epochs.words();
        // After the loads of all heads, which are acquires, and after the clock reading that may stand for the largest key.
        EpochWords::behind_clocks();
        let now = (0..words.len()).map(|cpu| (cpu, words.load(cpu)));
        self.inside.extend(now.filter(|(_, epoch)| epoch.depth() > 0));
    }

    /// Reads the words of the programs that were inside again.
    fn are_outside(&mut self) -> bool {
        let words = self.epochs.words();
        self.inside.retain(|(cpu, before)| !words.load(*cpu).has_passed(*before));
        self.inside.is_empty()
    }

    fn ended(&mut self) -> Option<io::Result<()>> {
        if !self.under_way {
            return None;
        }
        if self.again.is_some_and(|again| again <= Instant::now()) {
            self.read_words();
        }
        if self.again.is_some() {
            return None;
        }
        if let Some(errno) = self.failed.take() {
            return Some(self.end(Err(errno)));
        }
        if !self.are_outside() {
            // Only a fence that was begun for this proof counts.
            let ended = self.stand_in.as_mut().filter(|_| self.standing_in.is_some())?.ended()?;
            if ended.is_ok() {
                self.find_who_returned();
            }
            return Some(self.end(ended));
        }
        Some(self.end(Ok(())))
    }

    /// A grace period has ended, so all programs that were inside and cannot sleep have returned. If a word is unchanged, one of them has not
    /// left, or one sleeps.
    fn find_who_returned(&mut self) {
        let words = self.epochs.words();
        self.stuck = self.inside.iter().find(|(cpu, before)| words.load(*cpu) == *before).copied();
        self.returned = self.stuck.map(|(cpu, _)| (cpu, self.begun.elapsed()));
    }

    /// The CPU of a program that has returned without leaving or sleeps, and how long the reader waited for it. Once for each proof.
    pub(crate) fn take_returned(&mut self) -> Option<(u32, Duration)> {
        self.returned.take()
    }

    fn end(&mut self, ended: io::Result<()>) -> io::Result<()> {
        (self.under_way, self.standing_in) = (false, None);
        ended
    }

    /// Whether there is no program to wait for.
    pub(crate) fn is_over(&self) -> bool {
        !self.under_way || self.inside.is_empty()
    }

    /// Reads the words for some more microseconds, or once if that was already done for this proof: by then most programs have left, and
    /// the others take longer. Returns whether all programs have left.
    pub(crate) fn spin(&mut self) -> bool {
        let times = if std::mem::replace(&mut self.spun, true) { 1 } else { SPINS };
        (0..times).any(|_| {
            step();
            std::hint::spin_loop();
            self.are_outside()
        })
    }

    fn nap(&self) -> Option<Duration> {
        if !self.under_way || self.inside.is_empty() {
            let left = |again: Instant| again.saturating_duration_since(Instant::now());
            return self.under_way.then(|| self.again.map_or(Duration::ZERO, left));
        }
        // As long again as the wait so far: a few short sleeps for a program that takes long.
        let waited = self.begun.elapsed();
        let nap = match self.standing_in {
            Some(since) => since.elapsed(),
            None => waited.min(self.epochs.longest().saturating_sub(waited)),
        };
        Some(NAP.max(nap))
    }

    /// If a program has been inside for too long, a kernel fence replaces the proof.
    pub(crate) fn lose_patience(&mut self) -> io::Result<()> {
        let is_known = self.inside.iter().any(|inside| self.stuck == Some(*inside));
        let is_long = is_known || self.begun.elapsed() >= self.epochs.longest();
        if self.is_over() || self.standing_in.is_some() || !is_long {
            return Ok(());
        }
        if self.stand_in.is_none() {
            let fence = self.epochs.stand_in().map_or(Fence::Auto, |wait| Fence::Custom(wait.clone()));
            let started = Fences::start(&fence).map_err(io::Error::other);
            // The next proof also proves the events of this one.
            self.under_way = started.is_ok();
            self.stand_in = Some(started?);
        }
        let Some(fences) = &mut self.stand_in else { return Ok(()) };
        if !fences.is_here() {
            // Its thread is the parent's.
            self.under_way = false;
            return Err(io::Error::other(Error::forked()));
        }
        if fences.is_under_way() {
            // The end of a fence for an earlier proof, which ended by itself.
            let _ = fences.ended();
        }
        if fences.pause() != Some(Duration::ZERO) {
            return Ok(());
        }
        fences.begin();
        self.standing_in = Some(Instant::now());
        self.stood_in += 1;
        Ok(())
    }

    fn leave_to_parent(&mut self) -> bool {
        let left = self.standing_in.is_some() && self.stand_in.as_mut().is_some_and(Fences::leave_to_parent);
        if left {
            (self.under_way, self.standing_in) = (false, None);
        }
        left
    }

    fn wait(&mut self) -> Result<(), Error> {
        let failed = |errno| Error::fence_failed(ErrorKind::of(&errno), errno, 1);
        self.begin();
        loop {
            if self.stand_in.as_ref().is_some_and(|fences| !fences.is_here()) {
                return Err(Error::forked());
            }
            if let Some(ended) = self.ended() {
                return ended.map_err(failed);
            }
            if self.again.is_some() || !self.spin() {
                self.lose_patience().map_err(failed)?;
                std::thread::sleep(NAP);
            }
        }
    }
}

impl Fence {
    /// Opens a way to wait for grace periods, for programs that drive a [`Merge`](crate::Merge). It has its own thread, like a
    /// [`Reader`](crate::Reader)'s fence. The calling thread stays in its mount namespace with every kind of fence.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if no way of this fence is possible; [`ErrorKind::System`] if the thread cannot be started.
    pub fn open(&self) -> Result<GracePeriods, Error> {
        Proof::start(self).map(GracePeriods)
    }
}

/// A way to wait for grace periods that works on this machine. See [`Fence::open`].
pub struct GracePeriods(Proof);

impl GracePeriods {
    /// The way in use: "membarrier", "map", "expedited", "custom" or "epochs".
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// What would make these grace periods shorter, by how the machine's administrator has set them now ([`Rcu`]): what to write into
    /// which file, or which other fence is as fast and needs less. `None` if nothing would, if the setting does not matter to this way, or
    /// if it cannot be read. It reads two files and waits for nothing.
    pub fn advice(&self) -> Option<&'static str> {
        Rcu::read().ok()?.advice(self.name())
    }

    /// Begins a grace period and does not wait. Call it right after [`Merge::begin_fence`](crate::Merge::begin_fence). Returns false if one
    /// is already under way.
    pub fn begin(&mut self) -> bool {
        let may = !self.0.is_under_way();
        if may {
            self.0.begin();
        }
        may
    }

    /// The result of the grace period under way, if it has ended, without waiting. Returned once. Then call
    /// [`Merge::end_fence`](crate::Merge::end_fence), or [`Merge::fail_fence`](crate::Merge::fail_fence) if the grace period failed.
    ///
    /// # Errors
    /// As [`GracePeriods::wait`].
    pub fn poll(&mut self) -> Option<io::Result<()>> {
        if let Some(ended) = self.0.ended() {
            return Some(ended);
        }
        if self.0.leave_to_parent() {
            return Some(Err(io::Error::other(Error::forked())));
        }
        // A kernel fence replaces the proof for a program that stays inside.
        self.0.epochs()?.lose_patience().err().map(Err)
    }

    /// Waits for a grace period that begins now. Blocks, and cannot be interrupted. Any thread may call it.
    ///
    /// [`Fence::Auto`] changes from `membarrier` to the map, for good, if the kernel begins to refuse `membarrier`.
    ///
    /// # Errors
    /// The error of the kernel or of the function, or that the function panicked. In a forked child, that the thread is the parent's.
    /// Nothing is proven in these cases.
    pub fn wait(&mut self) -> io::Result<()> {
        self.0.wait().map_err(Error::into_source)
    }
}

impl fmt::Debug for GracePeriods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GracePeriods").field(&self.name()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::instrument::count;
    use crate::sim::Kernel;
    use std::sync::Mutex;
    use std::sync::mpsc;

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
        assert!(watch.take_returned().is_some_and(|(cpu, _)| cpu == 0) && watch.take_returned().is_none());
        watch.epochs = kernel.epochs().patience(FOR_EVER);
        let mut stands_in_at_once = |cpu, word| {
            kernel.set_epoch(cpu, word);
            watch.begin();
            until(|| watch.stand_in.as_ref().is_none_or(|fences| fences.pause() == Some(Duration::ZERO)));
            watch.lose_patience().unwrap();
            let stands_in = watch.standing_in.is_some();
            until(|| !stands_in || watch.ended().is_some());
            watch.end(Ok(())).unwrap();
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

    /// A fence begun for an earlier proof, which ends after that proof, proves nothing for this one.
    #[test]
    fn a_fence_of_an_earlier_proof_proves_nothing() {
        let kernel = Kernel::new(&[0]);
        let (open, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let mut watch = Watch::start(kernel.epochs().patience(Duration::ZERO)).unwrap();
        let fence = Fence::custom(move || gate.lock().unwrap().recv().map_err(io::Error::other));
        watch.stand_in = Some(Fences::start(&fence).unwrap());

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
