//! Every interleaving of a reader with threads that flush, close, pause it and set deadlines.

use super::{Control, Handle, Pause, Signals};
use crate::instrument::{AtomicBool, AtomicU64, Ordering};
use crate::rings::producers::Gate;
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

/// A ring, and whether it is paused.
fn gate() -> (Gate, Arc<AtomicBool>) {
    let paused = Arc::new(AtomicBool::new(false));
    let turned = Arc::clone(&paused);
    let gate = Box::new(move |_, stop| {
        turned.store(stop, Ordering::Relaxed);
        Ok(())
    });
    (gate, paused)
}

/// Fails if a new ring is paused under one lock and added under another.
#[test]
fn a_ring_that_is_added_during_a_pause_is_paused_like_the_others() {
    for resumes in [false, true] {
        loom::model(move || {
            let control = control();
            let (gates, paused): (Vec<_>, Vec<_>) = [gate(), gate()].into_iter().unzip();
            let mut gates = gates.into_iter();
            control.producers().add(gates.next().unwrap(), Vec::new()).unwrap();
            let other = beside(&control, move |handle| {
                handle.pause(Pause::Output).unwrap();
                if resumes {
                    handle.resume().unwrap();
                }
            });
            control.producers().add(gates.next().unwrap(), Vec::new()).unwrap();
            other.join().unwrap();
            let paused: Vec<_> = paused.iter().map(|paused| paused.load(Ordering::Relaxed)).collect();
            assert_eq!(paused, [!resumes; 2]);
        });
    }
}

/// Fails if retired producers are not marked as retired, or if adding a ring does not check the mark.
#[test]
fn no_ring_is_added_to_a_closed_reader() {
    loom::model(|| {
        let control = control();
        let other = beside(&control, Handle::close);
        control.producers().add(gate().0, Vec::new()).unwrap();
        other.join().unwrap();
        assert!(control.producers().gates.is_empty(), "a ring that was added before is let go");
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
