//! A reader and those who flush, close, pause it and set deadlines, every interleaving.

use super::{Control, Gate, Handle, Pause, Signals};
use crate::instrument::{AtomicBool, AtomicU64, Ordering};
use loom::thread::{self, JoinHandle};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// In place of the word on a page of its own, of which a model knows nothing.
#[derive(Debug)]
pub(super) struct ForkWord(AtomicU64);

impl ForkWord {
    pub(super) fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    pub(super) fn get(&self) -> &AtomicU64 {
        &self.0
    }

    /// A model has no children.
    pub(super) fn is_here(&self) -> bool {
        true
    }
}

/// A reader's end, armed, as a reader's is.
fn control() -> Arc<Control> {
    let control = Control::new();
    control.arm().unwrap();
    control
}

fn beside(control: &Arc<Control>, act: impl FnOnce(&Handle) + 'static) -> JoinHandle<()> {
    let handle = Handle(Arc::clone(control));
    thread::spawn(move || act(&handle))
}

/// Until something is asked for that was not noticed, as `Engine::notice_signals` finds it: sleeps, and has no tick. Says whether the
/// reader goes on.
fn next(control: &Control, noticed: &mut Signals) -> bool {
    loop {
        let signals = control.signals();
        if signals != *noticed {
            *noticed = signals;
            return !signals.is_closed().unwrap();
        }
        control.arm().unwrap().sleep(0);
    }
}

/// Dies (seen once each) when the word is added to or loaded Relaxed, and when the reader is waked before.
#[test]
fn what_was_written_before_a_flush_is_found_by_the_look_that_follows() {
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

/// Dies when closing overwrites what was asked for before, or does not wake.
#[test]
fn a_reader_that_is_closed_beside_a_flush_ends() {
    loom::model(|| {
        let control = control();
        let others = [beside(&control, |handle| handle.flush().unwrap()), beside(&control, Handle::close)];
        let mut noticed = Signals::QUIET;
        while next(&control, &mut noticed) {}
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(control.signals().is_closed().unwrap(), "for good");
    });
}

/// Dies when the reader is waked before the deadline is set, or not at all.
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

/// The report of a deadline ends when that is taken back, also if the reader sleeps until something else ends. Dies when the reader is
/// waked before, or not at all, and when a report is asked for whatever the deadline is.
#[test]
fn a_deadline_that_is_taken_back_ends_its_report() {
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

/// A ring whose output is stopped when it is `true`.
fn gate() -> (Gate, Arc<AtomicBool>) {
    let paused = Arc::new(AtomicBool::new(false));
    let gate = {
        let paused = Arc::clone(&paused);
        Gate::Simulated(Box::new(move |_, stop| paused.store(stop, Ordering::Relaxed)))
    };
    (gate, paused)
}

/// Dies when a ring that arrives is turned as the others are under one lock and added under another.
#[test]
fn a_ring_that_arrives_beside_a_pause_is_as_the_others_are() {
    for resumes in [false, true] {
        loom::model(move || {
            let control = control();
            let (gates, paused): (Vec<_>, Vec<_>) = [gate(), gate()].into_iter().unzip();
            let mut gates = gates.into_iter();
            control.outlets().add(0, gates.next().unwrap(), Vec::new()).unwrap();
            let other = beside(&control, move |handle| {
                handle.pause(Pause::Output).unwrap();
                if resumes {
                    handle.resume().unwrap();
                }
            });
            control.outlets().add(1, gates.next().unwrap(), Vec::new()).unwrap();
            other.join().unwrap();
            let paused: Vec<_> = paused.iter().map(|paused| paused.load(Ordering::Relaxed)).collect();
            assert_eq!(paused, [!resumes; 2]);
        });
    }
}

/// Dies when what retires does not say so, or a ring that arrives does not ask.
#[test]
fn nothing_arrives_at_a_reader_that_is_closed() {
    loom::model(|| {
        let control = control();
        let other = beside(&control, Handle::close);
        control.outlets().add(1, gate().0, Vec::new()).unwrap();
        other.join().unwrap();
        assert!(control.outlets().gates.is_empty(), "whatever arrived before is stopped");
    });
}

/// Dies when a reader that asks clears what was set meanwhile.
#[test]
fn that_output_goes_on_is_noticed_once_at_least() {
    loom::model(|| {
        let control = control();
        let others =
            [beside(&control, |handle| handle.resume().unwrap()), beside(&control, |handle| handle.resume().unwrap())];
        let noticed = control.take_lossy();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(control.take_lossy() || noticed);
        assert!(!control.take_lossy(), "and not for ever");
    });
}
