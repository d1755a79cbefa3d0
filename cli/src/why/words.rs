//! Who woke a thread last that waited at a word of memory (futex(2)). Where no owner's number is in the word, nothing
//! else says who could do it again.

use crate::trace::calls;
use crate::waits::{In, Ran, Waker, Who, Why};
use nix::libc;
use std::collections::HashMap;

/// So many words are kept. Then all are forgotten: nothing is said of them until they are seen again.
const MOST: usize = 1 << 16;

#[derive(Debug, Default)]
pub struct Words {
    /// By process and address.
    last: HashMap<(u32, u64), Woke>,
    newest: u64,
}

/// A wake-up of a thread that waited at a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Woke {
    pub by: Who,
    pub woken: Who,
    pub time: u64,
    /// From when the one that was woken waited, until it ran: then all of it was told.
    stretch: [u64; 2],
}

impl Words {
    /// A thread runs again now, which was in this call.
    pub fn take(&mut self, ran: &Ran, call: Option<&In>, now: u64) {
        let (Some(left), Some(wake), Some(In::Call(call))) = (ran.left, &ran.wake, call) else { return };
        let [address, operation, ..] = call.args;
        let is_wait = [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET].contains(&(operation as i32 & libc::FUTEX_CMD_MASK));
        // Neither a time nor a signal says anything of the word.
        let (Waker::Thread(by), None, None) = (&wake.by, wake.interrupt, wake.signal) else { return };
        // Who traces it or freezes it wakes it as well, without a signal; and it may sleep in a page fault.
        let is_own = operation & libc::FUTEX_PRIVATE_FLAG as u64 == 0 || wake.numbers.0 == left.process;
        if !is_wait || !is_own || left.why != Why::Asleep || calls::name_of(call.number) != Some("futex") {
            return;
        }
        if self.last.len() >= MOST {
            self.last.clear();
        }
        let woke = Woke { by: *by, woken: ran.who, time: wake.time, stretch: [left.time, now] };
        self.last.insert((left.process, address), woke);
        self.newest = self.newest.max(now);
    }

    pub fn last(&self, process: u32, address: u64) -> Option<Woke> {
        self.last.get(&(process, address)).copied()
    }

    /// Nothing is known of this time on.
    pub fn void(&mut self, since: u64) {
        if self.newest > since {
            self.last.retain(|_, woke| woke.stretch[1] <= since);
            self.newest = since;
        }
    }

    /// Forgets the waits, from their begin until their thread ran, of which this is so.
    pub fn but(&mut self, is_void: impl Fn(u64, u64) -> bool) {
        self.last.retain(|_, woke| !is_void(woke.stretch[0], woke.stretch[1]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waits::{Call, Left, Wake};
    use std::num::NonZeroU8;

    const PROCESS: u32 = 7;
    const AT: u64 = 0x1000;
    const NOW: u64 = 50;

    fn woken(from: u64, time: u64) -> Ran {
        let thread = |thread| Who { thread, life: 0 };
        let left = Left { time: from, why: Why::Asleep, process: PROCESS, cpu: 0, stack: 0 };
        let by = Waker::Thread(thread(9));
        let wake = Wake { time, by, interrupt: None, numbers: (PROCESS, Some(9)), stack: 0, signal: None };
        Ran { who: thread(8), left: Some(left), wake: Some(wake) }
    }

    fn futex(operation: i32) -> In {
        let args = [AT, operation as u64, 2, 0, 0, 0];
        In::Call(Call { number: libc::SYS_futex, args, entered: 0, file: None }.into())
    }

    #[test]
    fn the_last_that_woke_a_thread_there_is_kept() {
        let wait = futex(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG);
        let mut words = Words::default();
        words.take(&woken(10, 20), Some(&wait), NOW);
        words.take(&woken(30, 40), Some(&wait), NOW);
        assert_eq!(words.last(PROCESS, AT).map(|woke| (woke.by.thread, woke.time)), Some((9, 40)));
        assert_eq!(words.last(PROCESS, AT).map(|woke| woke.woken.thread), Some(8));
        assert_eq!([words.last(PROCESS, AT + 4), words.last(PROCESS + 1, AT)], [None; 2]);
        // Neither by a signal nor by an interrupt, nor in another call, nor with a lock that has an owner.
        words = Words::default();
        let [mut by_signal, mut by_time, mut by_tracer, mut in_fault] = std::array::from_fn(|_| woken(10, 20));
        by_signal.wake.as_mut().unwrap().signal = NonZeroU8::new(9);
        by_time.wake.as_mut().unwrap().by = Waker::Interrupt(None);
        by_tracer.wake.as_mut().unwrap().numbers = (PROCESS + 1, Some(9));
        in_fault.left.as_mut().unwrap().why = Why::Disk;
        for ran in [by_signal, by_time, by_tracer.clone(), in_fault] {
            words.take(&ran, Some(&wait), NOW);
        }
        words.take(&woken(10, 20), Some(&futex(libc::FUTEX_LOCK_PI)), NOW);
        words.take(&woken(10, 20), Some(&In::Unknown), NOW);
        words.take(&woken(10, 20), None, NOW);
        assert_eq!(words.last(PROCESS, AT), None);
        // Another process can wake at a word that both have.
        words.take(&by_tracer, Some(&futex(libc::FUTEX_WAIT)), NOW);
        assert!(words.last(PROCESS, AT).is_some());
    }

    #[test]
    fn nothing_is_said_of_what_is_not_known_any_more() {
        let kept = |forget: fn(&mut Words)| {
            let mut words = Words::default();
            words.take(&woken(30, 40), Some(&futex(libc::FUTEX_WAIT_BITSET)), NOW);
            forget(&mut words);
            words.last(PROCESS, AT).is_some()
        };
        assert!(kept(|words| words.void(NOW)) && !kept(|words| words.void(NOW - 1)));
        assert!(kept(|words| words.but(|from, to| (from, to) == (NOW, 60))));
        assert!(!kept(|words| words.but(|from, to| (from, to) == (30, NOW))));
    }
}
