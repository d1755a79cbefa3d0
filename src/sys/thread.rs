//! Threads of this process: their numbers, and when they ended.

use super::clock;
use super::fork::Owner;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::time::ClockId;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};

/// Starts a thread to which no signal of the program is delivered.
pub(crate) fn spawn_without_signals(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut before = SigSet::empty();
    // A thread begins with the mask of its maker. If it set its own, a signal could come before that.
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    let thread = Builder::new().name(name.into()).spawn(body);
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    thread
}

/// A thread of this process that has used the crate.
#[derive(Debug)]
pub(crate) struct Thread {
    /// As gettid(2) gives it. Once the thread has ended, the kernel may give it to another one, of any process.
    pub(crate) number: u32,
    /// When its values of `thread_local!` were dropped, which is shortly before its end: a time of `CLOCK_MONOTONIC`. 0
    /// before.
    ended: AtomicU64,
}

/// What a thread keeps of itself until it ends.
struct Kept {
    owner: Owner,
    thread: Arc<Thread>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.thread.end();
    }
}

impl Thread {
    /// The calling thread. It is cached, with what is to be done at its end. A child of fork(2) has a copy of its
    /// parent's cache, and asks again.
    pub(crate) fn current() -> Arc<Self> {
        Self::current_in(Owner::new())
    }

    /// The same, where it is known which process this is.
    pub(crate) fn current_in(process: Owner) -> Arc<Self> {
        thread_local! {
            static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
        }
        let here = |kept: &RefCell<Option<Kept>>| {
            let mut kept = kept.borrow_mut();
            let mine = kept.take().filter(|kept| kept.owner == process);
            let mine = mine.unwrap_or_else(|| Kept { owner: process, thread: Arc::new(Self::asked()) });
            Arc::clone(&kept.insert(mine).thread)
        };
        KEPT.try_with(here).unwrap_or_else(|_| {
            // The destructor of another such value, in a thread that is ending.
            let thread = Self::asked();
            thread.end();
            Arc::new(thread)
        })
    }

    fn asked() -> Self {
        Self { number: nix::unistd::gettid().as_raw().cast_unsigned(), ended: AtomicU64::new(0) }
    }

    pub(crate) fn end(&self) {
        // Where the clock cannot be read, it has ended before any record.
        let now = clock::now(ClockId::CLOCK_MONOTONIC).unwrap_or(0);
        self.ended.store(now.max(1), Ordering::Release);
    }

    /// When it began to end: a time of `CLOCK_MONOTONIC`. `None` while it runs.
    pub(crate) fn ended(&self) -> Option<u64> {
        Some(self.ended.load(Ordering::Acquire)).filter(|time| *time != 0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Thread;
    use std::cell::RefCell;
    use std::sync::{Arc, mpsc};

    impl Thread {
        /// A thread with any number.
        pub(crate) fn numbered(number: u32) -> Self {
            Self { number, ..Self::asked() }
        }
    }

    #[test]
    fn a_thread_is_known_by_its_number_until_it_ends() {
        let own = Thread::current();
        assert!(Arc::ptr_eq(&own, &Thread::current()) && own.ended().is_none());
        let before = super::clock::now(super::ClockId::CLOCK_MONOTONIC).unwrap();
        let other = std::thread::spawn(|| {
            let own = Thread::current();
            assert!(own.ended().is_none());
            own
        });
        let other = other.join().unwrap();
        assert!(other.number != own.number && own.ended().is_none());
        assert!(other.ended().unwrap() >= before);
    }

    /// A value whose destructor asks which thread it is in.
    struct Last(mpsc::Sender<Arc<Thread>>);

    impl Drop for Last {
        fn drop(&mut self) {
            let _ = self.0.send(Thread::current());
        }
    }

    #[test]
    fn a_thread_is_known_while_it_ends() {
        thread_local! {
            static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
        }
        let (sender, receiver) = mpsc::channel();
        let ends = std::thread::spawn(|| {
            // Values are dropped in the order in which they were first used, or in the other one.
            LAST.with(|last| *last.borrow_mut() = Some(Last(sender)));
            Thread::current().number
        });
        let number = ends.join().unwrap();
        let seen = receiver.recv().unwrap();
        assert!(seen.number == number && seen.ended().is_some());
    }
}
