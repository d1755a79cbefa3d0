//! Every interleaving of a reader with threads that flush, close, pause it and set deadlines.

use super::{Control, Handle, Opener, Pause, Signals};
use crate::error::Error;
use crate::instrument::{AtomicBool, AtomicU64, Ordering};
use crate::record::clock::Clock;
use crate::rings::{CpuRing, Rings};
use loom::thread::{self, JoinHandle};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A control with a wake-up, as a reader has it.
fn control() -> Arc<Control> {
    let control = Control::new();
    control.arm().unwrap();
    control
}

fn beside(control: &Arc<Control>, act: impl FnOnce(&Handle) + 'static) -> JoinHandle<()> {
    let handle = Handle(Arc::clone(control));
    thread::spawn(move || act(&handle))
}

/// Sleeps without a tick until there is a new signal, as `Engine::notice_signals` sees it. Returns whether the reader
/// goes on.
fn next(control: &Control, noticed: &mut Signals) -> bool {
    loop {
        let signals = control.signals();
        if signals != *noticed {
            *noticed = signals;
            return !signals.is_closed();
        }
        control.arm().unwrap().sleep(0);
    }
}

/// Fails (each seen once) if the flush is added or the word loaded with Relaxed, or if the reader is woken before the
/// flush is added.
#[test]
fn a_reader_that_sees_a_flush_sees_what_was_written_before_it() {
    loom::model(|| {
        let control = control();
        let written = Arc::new(AtomicU64::new(0));
        let other = {
            let written = Arc::clone(&written);
            beside(&control, move |handle| {
                for record in 1..=2 {
                    written.store(record, Ordering::Relaxed);
                    handle.flush().unwrap();
                }
            })
        };
        let (mut noticed, mut flushes) = (Signals::QUIET, 0);
        while flushes < 2 {
            assert!(next(&control, &mut noticed));
            flushes = noticed.0 / super::FLUSH;
            assert!(written.load(Ordering::Relaxed) >= flushes, "{flushes} flushes");
        }
        other.join().unwrap();
    });
}

/// Fails if closing overwrites the count of flushes, or does not wake the reader.
#[test]
fn a_reader_that_is_closed_beside_a_flush_ends() {
    loom::model(|| {
        let control = control();
        let others = [beside(&control, |handle| handle.flush().unwrap()), beside(&control, Handle::close)];
        let mut noticed = Signals::QUIET;
        while next(&control, &mut noticed) {}
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(control.signals().is_closed(), "it stays closed");
    });
}

/// Fails if the reader is woken before the deadline is set, or not at all.
#[test]
fn a_deadline_that_is_moved_wakes_the_reader() {
    loom::model(|| {
        let control = control();
        let past = Instant::now();
        let other = beside(&control, move |handle| handle.set_deadline(Some(past)).unwrap());
        while control.time_left() != Some(Duration::ZERO) {
            control.arm().unwrap().sleep(0);
        }
        other.join().unwrap();
    });
}

/// The report of a deadline is no longer due when the deadline is taken back, even if the reader sleeps then. Fails if
/// the reader is woken before, or not at all, or if the report stays due.
#[test]
fn a_deadline_that_is_taken_back_is_not_reported() {
    loom::model(|| {
        let control = control();
        control.set_deadline(Some(Instant::now()));
        let report = control.past_deadline().unwrap();
        let other = beside(&control, |handle| handle.set_deadline(None).unwrap());
        while control.asks_for(report) {
            control.arm().unwrap().sleep(0);
        }
        other.join().unwrap();
        assert!(control.past_deadline().is_none());
    });
}

/// Has opened a ring, and opens another one when it is asked. Whether each is paused, and whether it was stopped.
#[derive(Debug, Default)]
struct TwoRings {
    first: Arc<AtomicBool>,
    second: Arc<AtomicBool>,
    has_second: bool,
    stopped: Arc<AtomicBool>,
}

impl Opener for TwoRings {
    fn pause(&mut self, _: Pause, paused: bool) -> Result<(), Error> {
        self.first.store(paused, Ordering::Relaxed);
        if self.has_second {
            self.second.store(paused, Ordering::Relaxed);
        }
        Ok(())
    }

    fn follow(&mut self, _: &mut Rings, _: &mut Vec<CpuRing>, pauses: &[Pause]) -> Result<(), Error> {
        assert!(!self.stopped.load(Ordering::Relaxed), "nothing starts after that");
        self.second.store(!pauses.is_empty(), Ordering::Relaxed);
        self.has_second = true;
        Ok(())
    }

    fn stop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// Rings of such an opener, and the paused ones among its two.
fn rings() -> (Rings, [Arc<AtomicBool>; 2]) {
    let mut rings = Rings::empty(Clock::Perf);
    rings.control().arm().unwrap();
    let opener = TwoRings::default();
    let paused = [&opener.first, &opener.second].map(Arc::clone);
    rings.opened_by(opener);
    (rings, paused)
}

/// Fails if CPUs are followed without the lock under which rings are paused, or without the pauses in force.
#[test]
fn a_ring_that_is_added_during_a_pause_is_paused_like_the_others() {
    for resumes in [false, true] {
        loom::model(move || {
            let (mut rings, paused) = rings();
            let other = beside(rings.control(), move |handle| {
                handle.pause(Pause::Output).unwrap();
                if resumes {
                    handle.resume().unwrap();
                }
            });
            rings.arrived(&mut Vec::new()).unwrap();
            other.join().unwrap();
            assert_eq!(paused.map(|paused| paused.load(Ordering::Relaxed)), [!resumes; 2]);
        });
    }
}

/// Fails if who opened the rings is still asked once they were stopped for good.
#[test]
fn no_ring_is_added_to_a_closed_reader() {
    loom::model(|| {
        let (mut rings, paused) = rings();
        let other = beside(rings.control(), Handle::close);
        rings.arrived(&mut Vec::new()).unwrap();
        other.join().unwrap();
        assert!(rings.control().openers().all.is_empty(), "who opened them is let go");
        assert!(paused.iter().all(|paused| Arc::strong_count(paused) == 1));
    });
}

/// Fails if the reader clears a mark that was set after it read it.
#[test]
fn a_reader_notices_at_least_once_that_output_has_gone_on() {
    loom::model(|| {
        let control = control();
        let others =
            [beside(&control, |handle| handle.resume().unwrap()), beside(&control, |handle| handle.resume().unwrap())];
        let noticed = control.take_lossy();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(control.take_lossy() || noticed);
        assert!(!control.take_lossy(), "it is noticed once for each time");
    });
}
