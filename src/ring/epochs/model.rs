//! A reader and programs that write, interrupt each other and leave, every interleaving.

use super::EpochWords;
use crate::instrument::{AtomicU64, Ordering};
use crate::ring::words::{load_head, store_head};
use loom::sync::Arc;
use loom::thread;

/// Two CPUs with a ring each: published records by number, and the key that each was given.
struct Machine {
    words: EpochWords,
    /// The source of keys: a counter, which BPF's atomics with fetch make fully ordered.
    counter: AtomicU64,
    heads: [AtomicU64; 2],
    keys: [[AtomicU64; 2]; 2],
}

impl Machine {
    fn new() -> Self {
        let word = || AtomicU64::new(0);
        Self {
            words: EpochWords::simulated(2),
            counter: AtomicU64::new(1),
            heads: [word(), word()],
            keys: [[word(), word()], [word(), word()]],
        }
    }

    fn draw(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::SeqCst)
    }

    /// A program that is not interrupted.
    fn write(&self, cpu: usize) {
        self.words.enter(cpu as u32);
        let key = self.draw();
        // Relaxed: the head orders it.
        self.keys[cpu][0].store(key, Ordering::Relaxed);
        store_head(&self.heads[cpu], 1);
        self.words.leave(cpu as u32);
    }

    /// A program that draws its key and is interrupted by one that runs to its end. The outer one publishes both.
    fn write_nested(&self, cpu: usize) {
        self.words.enter(cpu as u32);
        let outer = self.draw();
        self.words.enter(cpu as u32);
        let inner = self.draw();
        self.keys[cpu][0].store(inner, Ordering::Relaxed);
        self.words.leave(cpu as u32);
        self.keys[cpu][1].store(outer, Ordering::Relaxed);
        store_head(&self.heads[cpu], 2);
        self.words.leave(cpu as u32);
    }

    /// Heads, and the largest key before them.
    fn refresh(&self) -> ([u64; 2], u64) {
        let heads = [load_head(&self.heads[0]), load_head(&self.heads[1])];
        let seen = (0..2).flat_map(|cpu| (0..heads[cpu] as usize).map(move |at| (cpu, at)));
        (heads, seen.map(|(cpu, at)| self.keys[cpu][at].load(Ordering::Relaxed)).max().unwrap_or(0))
    }

    /// Refreshes, waits for the words as long as a model can, and refreshes again: then everything up to the largest
    /// key is there.
    fn read(&self) -> Option<([u64; 2], u64)> {
        let (_, largest) = self.refresh();
        let before = [self.words.load(0), self.words.load(1)];
        for (cpu, before) in before.into_iter().enumerate() {
            if before.depth() > 0 && !self.words.load(cpu as u32).has_passed(before) {
                return None;
            }
        }
        Some((self.refresh().0, largest))
    }
}

/// Dies (seen once each) when a word is loaded Relaxed, when a program leaves Relaxed or before it publishes, enters
/// behind its key, or begins a generation whenever it leaves. It does not die when `enter` is Relaxed: here the counter
/// orders what came before it. Where the key is a time, nothing but the barrier of `enter` does, and no model knows
/// clocks.
#[test]
fn what_is_smaller_is_there_once_everybody_has_left_who_was_inside() {
    // Three changes of thread that nobody asked for are enough for each of the mistakes; all of them take hours.
    let mut all = loom::model::Builder::new();
    all.preemption_bound = Some(3);
    all.check(|| {
        let machine = Arc::new(Machine::new());
        let writers = [
            thread::spawn({
                let machine = Arc::clone(&machine);
                move || machine.write_nested(0)
            }),
            thread::spawn({
                let machine = Arc::clone(&machine);
                move || machine.write(1)
            }),
        ];
        let read = machine.read();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let Some((heads, largest)) = read else { return };
        for cpu in 0..2 {
            for at in heads[cpu] as usize..2 {
                let key = machine.keys[cpu][at].load(Ordering::Relaxed);
                assert!(key == 0 || key >= largest, "key {key} was not there, and {largest} was seen");
            }
        }
    });
}

/// Two programs on one CPU that are preempted, and do not nest. When a word has passed, the program that was inside has
/// left. Dies (seen) when the generation is added by a fetch-and-add that an earlier reading of the depth decides.
#[test]
fn a_generation_ends_only_when_nobody_is_inside() {
    loom::model(|| {
        let words = Arc::new(EpochWords::simulated(1));
        // Of the second program: that it has entered, and that it is about to leave.
        let (entered, leaves) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let other = thread::spawn({
            let words = Arc::clone(&words);
            move || {
                words.enter(0);
                words.leave(0);
            }
        });
        let watched = thread::spawn({
            let (words, entered, leaves) = (Arc::clone(&words), Arc::clone(&entered), Arc::clone(&leaves));
            move || {
                words.enter(0);
                entered.store(1, Ordering::Release);
                leaves.store(1, Ordering::Relaxed);
                words.leave(0);
            }
        });
        if entered.load(Ordering::Acquire) == 1 {
            let before = words.load(0);
            if words.load(0).has_passed(before) {
                // Relaxed: ordered by the word.
                assert_eq!(leaves.load(Ordering::Relaxed), 1, "it is still inside");
            }
        }
        other.join().unwrap();
        watched.join().unwrap();
    });
}
