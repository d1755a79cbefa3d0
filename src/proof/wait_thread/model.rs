//! The hand-over between a reader and the thread that waits for grace periods, every interleaving of it; and what it
//! proves while a CPU arrives.

use super::{Done, Shared, WaitThread, Way, serve};
use crate::instrument::{AtomicBool, AtomicU64, Mutex, Ordering};
use crate::merge::frontier::Frontier;
use crate::merge::rules::Rule;
use crate::proof::prover::Prover;
use crate::rings::control::{Control, Handle, Signals};
use loom::thread::JoinHandle;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Grace periods by a function, with the crate's own thread, which is the model's; and the control of their reader.
fn prover(wait: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> (Prover, Arc<Control>, JoinHandle<()>) {
    let control = Control::new();
    control.arm().unwrap();
    let done = Done::new(&control);
    let mut waits = WaitThread::new("none yet", Duration::ZERO, || Ok(|| Ok(())));
    // `serve` runs in the model's thread: it is never opened.
    waits.open = None;
    let thread = {
        let (shared, done): (Arc<Shared>, Done) = (Arc::clone(&waits.shared), done.clone());
        let mut way: Way = Box::new(move || wait().map(|()| "custom"));
        loom::thread::spawn(move || serve(&shared, &done, &mut way))
    };
    (Prover::new(Box::new(waits), false, &done), control, thread)
}

/// Every interleaving with at most three preemptions.
fn bounded(run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

/// The first grace period fails and the second does not. Relaxed words stand for what the kernel orders: a load finds
/// what was stored only where the hand-over orders it.
///
/// Dies (seen once each) when the end is told before the outcome is there, when the reader is waked before that, and
/// without the notification of an order. The bit alone may be Relaxed: the lock orders the same.
#[test]
fn a_fence_comes_after_its_look_and_its_end_after_both() {
    bounded(|| {
        let (looked, passed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (mut prover, control, thread) = {
            let (looked, passed) = (Arc::clone(&looked), Arc::clone(&passed));
            prover(move || {
                let number = looked.load(Ordering::Relaxed);
                passed.store(number, Ordering::Relaxed);
                if number == 1 { Err(io::Error::other("the first")) } else { Ok(()) }
            })
        };
        for number in 1..=2 {
            looked.store(number, Ordering::Relaxed);
            prover.begin();
            // As a reader: it asks only once the word says that it ended.
            while !control.signals().has_proof() {
                control.arm().unwrap().sleep(0);
            }
            let waited = prover.poll().expect("what says that it has ended has ended");
            assert_eq!(passed.load(Ordering::Relaxed), number, "a fence that is over is this one");
            let name = if number == 1 { "none yet" } else { "custom" };
            assert_eq!((waited.is_err(), prover.name()), (number == 1, name), "and so is its outcome");
            assert!(!control.signals().has_proof() && !prover.is_under_way());
        }
        drop(prover);
        thread.join().unwrap();
    });
}

/// An end that is told beside a flush and beside a reader that asks is lost by none of them.
///
/// Dies (seen once each) when the bit is taken back after the proof was asked, and when a flush overwrites the word.
#[test]
fn an_end_beside_a_flush_is_seen() {
    bounded(|| {
        let (mut prover, control, thread) = prover(|| Ok(()));
        prover.begin();
        let flush = {
            let control = Arc::clone(&control);
            loom::thread::spawn(move || Handle(control).flush().unwrap())
        };
        // A reader that polls too early.
        let mut ended = prover.poll().is_some();
        while !ended {
            while !control.signals().has_proof() {
                control.arm().unwrap().sleep(0);
            }
            ended = prover.poll().is_some();
        }
        flush.join().unwrap();
        assert!(control.signals().flushes() != Signals::QUIET, "the flush is there");
        drop(prover);
        thread.join().unwrap();
    });
}

/// Dies (seen) when the stop is not notified.
#[test]
fn the_thread_ends_whatever_is_under_way() {
    loom::model(|| {
        let (mut prover, _control, thread) = prover(|| Ok(()));
        prover.begin();
        let _ = prover.poll();
        drop(prover);
        thread.join().unwrap();
    });
}

/// A CPU of the model: its writer draws a key and publishes it within a section, if its ring is there.
#[derive(Default)]
struct Cpu {
    section: Mutex<()>,
    started: AtomicBool,
    key: AtomicU64,
    head: AtomicU64,
}

impl Cpu {
    fn write(&self, clock: &AtomicU64) {
        let _section = self.section.lock().unwrap();
        let key = clock.fetch_add(1, Ordering::Relaxed);
        if self.started.load(Ordering::Relaxed) {
            self.key.store(key, Ordering::Relaxed);
            self.head.store(1, Ordering::Release);
        }
    }
}

/// What a reader does, with the crate's frontier and grace periods.
struct Reading {
    cpus: [Arc<Cpu>; 2],
    /// The rings that are known: the first so many.
    cpu_rings: usize,
    frontier: Frontier,
    prover: Prover,
    control: Arc<Control>,
    taken: [bool; 2],
    held: Vec<u64>,
    last: u64,
}

impl Reading {
    /// A ring is started and known from then on: `Watch::open`.
    fn arrive(&mut self) {
        self.cpus[self.cpu_rings].started.store(true, Ordering::Relaxed);
        self.cpu_rings += 1;
    }

    fn refresh(&mut self) {
        let mut largest = None;
        for (cpu, taken) in self.cpus[..self.cpu_rings].iter().zip(&mut self.taken) {
            if !*taken && cpu.head.load(Ordering::Acquire) == 1 {
                *taken = true;
                self.held.push(cpu.key.load(Ordering::Relaxed));
                largest = largest.max(self.held.last().copied());
            }
        }
        self.frontier.refreshed(largest, 0);
        if !self.prover.is_under_way() && self.frontier.begin_proof() {
            self.prover.begin();
        }
        self.held.sort_unstable();
        while let Some(&key) = self.held.first().filter(|key| self.frontier.admits(**key)) {
            assert!(key > self.last, "{key} behind {}", self.last);
            self.last = key;
            self.held.remove(0);
        }
    }

    /// `Engine::notice_fence`.
    fn notice_fence(&mut self) {
        if self.control.signals().has_proof() && self.prover.poll().is_some() {
            self.frontier.end_proof();
            self.refresh();
        }
    }
}

/// A grace period is under way when the second CPU arrives, before one of two refreshes, whatever the writers are at.
///
/// Dies (seen once each) when a grace period that is under way counts as one that has ended, and when it proves what
/// was seen when it ended.
#[test]
fn a_cpu_that_arrives_beside_a_look_breaks_no_order() {
    for arrives in 0..2 {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let cpus = [Arc::new(Cpu::default()), Arc::new(Cpu::default())];
            let clock = Arc::new(AtomicU64::new(2));
            let (prover, control, thread) = {
                let cpus = cpus.clone();
                prover(move || {
                    cpus.iter().for_each(|cpu| drop(cpu.section.lock().unwrap()));
                    Ok(())
                })
            };
            let mut reading = Reading {
                cpus: cpus.clone(),
                cpu_rings: 0,
                frontier: Frontier::new(Rule::Proof),
                prover,
                control,
                taken: [false; 2],
                held: Vec::new(),
                last: 0,
            };
            reading.arrive();
            // What an earlier refresh has found, and the grace period it began.
            reading.held.push(1);
            reading.frontier.refreshed(Some(1), 0);
            assert!(reading.frontier.begin_proof());
            reading.prover.begin();
            let writers = cpus.map(|cpu| {
                let clock = Arc::clone(&clock);
                loom::thread::spawn(move || cpu.write(&clock))
            });
            for turn in 0..2 {
                reading.notice_fence();
                if turn == arrives {
                    reading.arrive();
                }
                reading.refresh();
            }
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            reading.refresh();
            while reading.prover.is_under_way() {
                reading.control.arm().unwrap().sleep(0);
                reading.notice_fence();
            }
            assert!(reading.held.is_empty(), "everything comes out: {:?}", reading.held);
            drop(reading);
            thread.join().unwrap();
        });
    }
}
