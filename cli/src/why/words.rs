//! Who woke a thread last that waited at a word of memory (futex(2)). Where no owner's number is in the word, nothing
//! else says who could do it again.

use crate::trace::calls;
use crate::waits::{In, Ran, Waker, Who};
use nix::libc;
use std::collections::HashMap;

/// So many words are kept. Then all are forgotten: nothing is said of them until they are seen again.
const MOST: usize = 1 << 16;

/// By process and address.
#[derive(Debug, Default)]
pub struct Words(HashMap<(u32, u64), Woke>);

/// A wake-up of a thread that waited at a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Woke {
    pub by: Who,
    pub time: u64,
    /// When the one that was woken had begun to wait.
    since: u64,
}

impl Words {
    /// A thread runs again, which was in this call.
    pub fn take(&mut self, ran: &Ran, call: Option<&In>) {
        let (Some(left), Some(wake), Some(In::Call(call))) = (ran.left, &ran.wake, call) else { return };
        let [address, operation, ..] = call.args;
        let is_wait = [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET].contains(&(operation as i32 & libc::FUTEX_CMD_MASK));
        // Neither a time nor a signal says anything of the word.
        let (Waker::Thread(by), None, None) = (&wake.by, wake.interrupt, wake.signal) else { return };
        if !is_wait || calls::name_of(call.number) != Some("futex") {
            return;
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert((left.process, address), Woke { by: *by, time: wake.time, since: left.time });
    }

    pub fn last(&self, process: u32, address: u64) -> Option<Woke> {
        self.0.get(&(process, address)).copied()
    }

    /// Nothing is known of this time on.
    pub fn void(&mut self, since: u64) {
        self.0.retain(|_, woke| woke.time <= since);
    }

    /// Nor of waits of which this is so.
    pub fn but(&mut self, is_void: impl Fn(u64, u64) -> bool) {
        self.0.retain(|_, woke| !is_void(woke.since, woke.time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waits::{Call, Left, Wake, Why};
    use std::num::NonZeroU8;

    const PROCESS: u32 = 7;
    const AT: u64 = 0x1000;

    fn woken(from: u64, time: u64) -> Ran {
        let thread = |thread| Who { thread, life: 0 };
        let left = Left { time: from, why: Why::Asleep, process: PROCESS, cpu: 0, stack: 0 };
        let by = Waker::Thread(thread(9));
        let wake = Wake { time, by, interrupt: None, numbers: (9, Some(9)), stack: 0, signal: None };
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
        words.take(&woken(10, 20), Some(&wait));
        words.take(&woken(30, 40), Some(&wait));
        assert_eq!(words.last(PROCESS, AT).map(|woke| (woke.by.thread, woke.time)), Some((9, 40)));
        assert_eq!([words.last(PROCESS, AT + 4), words.last(PROCESS + 1, AT)], [None; 2]);
        // Neither by a signal nor by an interrupt, nor in another call, nor with a lock that has an owner.
        words = Words::default();
        let (mut by_signal, mut by_time) = (woken(10, 20), woken(10, 20));
        by_signal.wake.as_mut().unwrap().signal = NonZeroU8::new(9);
        by_time.wake.as_mut().unwrap().by = Waker::Interrupt(None);
        words.take(&by_signal, Some(&wait));
        words.take(&by_time, Some(&wait));
        words.take(&woken(10, 20), Some(&futex(libc::FUTEX_LOCK_PI)));
        words.take(&woken(10, 20), Some(&In::Unknown));
        words.take(&woken(10, 20), None);
        assert_eq!(words.last(PROCESS, AT), None);
    }

    #[test]
    fn nothing_is_said_of_what_is_not_known_any_more() {
        let kept = |forget: fn(&mut Words)| {
            let mut words = Words::default();
            words.take(&woken(30, 40), Some(&futex(libc::FUTEX_WAIT_BITSET)));
            forget(&mut words);
            words.last(PROCESS, AT).is_some()
        };
        assert!(kept(|words| words.void(40)) && !kept(|words| words.void(39)));
        assert!(kept(|words| words.but(|from, to| (from, to) == (40, 50))));
        assert!(!kept(|words| words.but(|from, to| (from, to) == (30, 40))));
    }
}
