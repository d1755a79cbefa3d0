//! What tests of readers share: all that was written, exactly, and nothing that depends on how fast a machine is.

use perfweave::{Error, ErrorKind, Event, Fence, Lent, Reader};
pub(crate) use perfweave_support::threads::GUARD as LONG;
use perfweave_support::threads::{self, until};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The first eight bytes of a record's payload.
pub(crate) fn number(event: Event<'_>) -> u64 {
    event.record().and_then(|record| record.payload()?.u64(0)).unwrap_or_else(|| panic!("{event:?}"))
}

/// The next event, whenever it comes.
#[track_caller]
pub(crate) fn next(reader: &mut Reader) -> Lent<'_> {
    reader.next_timeout(LONG).unwrap().expect("it comes")
}

/// Everything that was written until now, up to the report of a flush.
pub(crate) fn all(reader: &mut Reader, mut each: impl FnMut(Event<'_>)) {
    reader.handle().flush().unwrap();
    loop {
        match reader.next_timeout(LONG) {
            Ok(event) => each(event.expect("a report").event()),
            Err(error) if error.kind() == ErrorKind::Flushed => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The name of a reader's report.
pub(crate) fn report(error: &Error) -> String {
    match error.kind() {
        kind @ (ErrorKind::Flushed | ErrorKind::Deadline | ErrorKind::Closed) => format!("{kind:?}"),
        _ => error.to_string(),
    }
}

/// The numbers of everything that was written until now.
pub(crate) fn numbers(reader: &mut Reader) -> Vec<u64> {
    let mut all_of_them = Vec::new();
    all(reader, |event| all_of_them.push(number(event)));
    all_of_them
}

/// That nothing is left to be told of what was written until now.
#[track_caller]
pub(crate) fn assert_nothing(reader: &mut Reader) {
    let mut left = Vec::new();
    all(reader, |event| left.push(event.to_owned()));
    assert!(left.is_empty(), "{left:?}");
}

/// Lets a reader that has nothing to give sleep until nothing wakes it any more: what woke it before it slept does so now.
pub(crate) fn settle(reader: &mut Reader) {
    until("nothing wakes it", || {
        let before = reader.stats();
        assert!(reader.next_timeout(Duration::from_millis(1)).unwrap().is_none());
        let now = reader.stats();
        now.sleeps > before.sleeps && now.wakes == before.wakes
    });
}

/// What a sleeping reader gives when something is done elsewhere, and whether that woke it. Otherwise it looked by itself.
///
/// That it looks by itself while the thing is being done is possible, if unlikely: ask [`wakes`].
pub(crate) fn woken_by(reader: &mut Reader, act: impl FnOnce() + Send) -> (bool, Result<u64, Error>) {
    settle(reader);
    let before = reader.stats().wakes;
    let sleeper = threads::own();
    let given = std::thread::scope(|scope| {
        scope.spawn(move || {
            threads::until_asleep(sleeper);
            act();
        });
        reader.next_timeout(LONG).map(|event| number(event.expect("something comes").event()))
    });
    (reader.stats().wakes > before, given)
}

/// Whether something wakes a reader, in any of several tries.
pub(crate) fn wakes(mut tries: impl FnMut() -> bool) -> bool {
    (0..20).any(|_| tries())
}

/// A fence that ends when it is told to.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    passes: Mutex<u64>,
    given: Condvar,
    begun: AtomicU64,
    open: AtomicBool,
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn fence(self: &Arc<Self>) -> Fence {
        let gate = Arc::clone(self);
        Fence::custom(move || gate.pass())
    }

    /// A test that failed opens no gate, and its reader waits for the fence: not for ever.
    fn pass(&self) -> std::io::Result<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let passes = self.passes.lock().unwrap();
        let shut = |passes: &mut u64| *passes == 0 && !self.open.load(Ordering::SeqCst);
        let (mut passes, waited) = self.given.wait_timeout_while(passes, LONG, shut).unwrap();
        *passes = passes.saturating_sub(1);
        if waited.timed_out() { Err(std::io::Error::other("nobody opened the gate")) } else { Ok(()) }
    }

    /// Lets one fence end, the one under way or the next.
    pub(crate) fn let_one_pass(&self) {
        *self.passes.lock().unwrap() += 1;
        self.given.notify_all();
    }

    /// Lets all fences end from now on.
    pub(crate) fn open(&self) {
        // Under the lock, or a fence could miss it between its look and its sleep.
        let _passes = self.passes.lock().unwrap();
        self.open.store(true, Ordering::SeqCst);
        self.given.notify_all();
    }

    /// How many fences have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Waits until so many fences have begun.
    pub(crate) fn until_begun(&self, fences: u64) {
        until("a fence begins", || self.begun() >= fences);
    }
}
