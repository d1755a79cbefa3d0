//! Shared code of tests that use readers: they read exactly the written records, and nothing depends on the speed of
//! the machine.

use perfweave::{
    Ended, Error, ErrorKind, Event, EventGuard, Fault, Fence, Hold, Item, Merge, Order, Reader, Rings, sim,
};
use perfweave_proofs::Epochs;
use perfweave_support::bpf::Map;
pub(crate) use perfweave_support::threads::GUARD as LONG;
use perfweave_support::threads::{self, until};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The first eight bytes of a record's payload.
pub(crate) fn number(event: &Event<'_>) -> u64 {
    event.record().and_then(|record| record.payload()?.u64(0)).unwrap_or_else(|| panic!("{event:?}"))
}

/// The default of `Order::latency`.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// What is wrong with bytes that cannot be a record.
pub(crate) fn fault(event: &Event<'_>) -> Option<Fault> {
    if let Item::Damage(damage) = event.item() { Some(damage.fault()) } else { None }
}

/// Waits for the next event.
#[track_caller]
pub(crate) fn next(reader: &mut Reader) -> EventGuard<'_> {
    reader.next_timeout(LONG).unwrap().expect("it comes")
}

/// A merge by time of all that these rings have now.
pub(crate) fn merged(rings: Rings) -> Merge {
    let mut merge = Merge::new(rings, Order::new()).unwrap();
    merge.refresh(0);
    merge
}

/// Flushes, and gives all events up to the end of the flush.
pub(crate) fn all(reader: &mut Reader, mut each: impl FnMut(Event<'_>)) {
    reader.handle().flush().unwrap();
    loop {
        let event = next(reader);
        match event.item() {
            Item::Flushed { complete } => return assert!(complete, "all came before it"),
            _ => each(event.event()),
        }
    }
}

/// Waits for the next event and gives whether it is the end of a flush.
#[track_caller]
pub(crate) fn is_flushed(reader: &mut Reader) -> bool {
    matches!(next(reader).item(), Item::Flushed { .. })
}

/// Why the stream has ended. It has ended already, or ends without another event.
#[track_caller]
pub(crate) fn ended(reader: &mut Reader) -> Option<Ended> {
    let event = reader.next().unwrap().map(|event| event.to_owned());
    assert!(event.is_none(), "{event:?}");
    reader.ended()
}

/// What a reader gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Given {
    /// A record with this number.
    Number(u64),
    Lost(u64),
    Flushed,
    Ended(Ended),
}

impl Given {
    /// Waits for the next one.
    pub(crate) fn by(reader: &mut Reader) -> Result<Self, Error> {
        let given = reader.next_timeout(LONG)?.map(|event| Self::of(event.event()));
        Ok(given.unwrap_or_else(|| Self::Ended(reader.ended().expect("something comes"))))
    }

    pub(crate) fn of(event: Event<'_>) -> Self {
        match event.item() {
            Item::Flushed { .. } => Self::Flushed,
            Item::Lost(lost) => Self::Lost(lost.count),
            _ => Self::Number(number(&event)),
        }
    }
}

/// The next result of a reader as text: a key, a flush, or why the stream has ended.
pub(crate) fn said(reader: &mut Reader) -> String {
    let event = reader.next_timeout(LONG).map(|event| event.map(|event| word(event.event())));
    match event {
        Ok(event) => event.unwrap_or_else(|| end(reader.ended().expect("something comes"))),
        Err(error) => error.to_string(),
    }
}

/// The key of an event, or its kind if it has none.
pub(crate) fn word(event: Event<'_>) -> String {
    match event.item() {
        Item::Flushed { complete: true } => "Flushed".into(),
        item => event.key().map_or_else(|| format!("{item:?}"), |key| key.to_string()),
    }
}

/// Why a stream has ended.
pub(crate) fn end(why: Ended) -> String {
    if why == (Ended::Deadline { complete: true }) { "Deadline".into() } else { format!("{why:?}") }
}

/// The numbers of all records written so far.
pub(crate) fn numbers(reader: &mut Reader) -> Vec<u64> {
    let mut all_of_them = Vec::new();
    all(reader, |event| all_of_them.push(number(&event)));
    all_of_them
}

/// Asserts that no record written so far is left.
#[track_caller]
pub(crate) fn assert_nothing(reader: &mut Reader) {
    let mut left = Vec::new();
    all(reader, |event| left.push(event.to_owned()));
    assert!(left.is_empty(), "{left:?}");
}

/// Lets a reader without events sleep until nothing wakes it any more: wake-ups that are still pending arrive now.
pub(crate) fn settle(reader: &mut Reader) {
    until("nothing wakes it", || {
        let before = reader.status();
        assert!(reader.next_timeout(Duration::from_millis(1)).unwrap().is_none());
        let now = reader.status();
        now.sleeps > before.sleeps && now.wakes == before.wakes
    });
}

/// What a sleeping reader gives when another thread does something, and whether that woke it. Otherwise it refreshed at
/// a tick. The tick can come at just that moment, which is unlikely: use [`wakes`].
pub(crate) fn woken_by(reader: &mut Reader, act: impl FnOnce() + Send) -> (bool, Result<Given, Error>) {
    settle(reader);
    let before = reader.status().wakes;
    let sleeper = threads::own();
    let given = std::thread::scope(|scope| {
        scope.spawn(move || {
            threads::until_asleep(sleeper);
            act();
        });
        Given::by(reader)
    });
    (reader.status().wakes > before, given)
}

/// Whether something wakes a reader, in any of several tries.
pub(crate) fn wakes(mut tries: impl FnMut() -> bool) -> bool {
    (0..20).any(|_| tries())
}

/// Writers' epochs with these words. `None` on processors that do not have them.
pub(crate) fn epochs(words: &Map) -> Option<Hold> {
    match Epochs::open(words) {
        Err(error) if error.kind() == ErrorKind::Unsupported => None,
        epochs => Some(Hold::Fence(epochs.unwrap().fence())),
    }
}

/// The writers' epochs of a simulated machine, whose own grace periods stand in.
pub(crate) fn simulated(kernel: &sim::Kernel) -> Epochs {
    Epochs::over(kernel.epochs()).stand_in(kernel.fence())
}

/// A fence that ends on request.
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
        Fence::by(move || gate.pass())
    }

    /// If a test fails, it opens no gate and its reader waits for the fence. This limits that wait.
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
        // Under the lock. Otherwise a fence could miss the change between its check and its sleep.
        let _passes = self.passes.lock().unwrap();
        self.open.store(true, Ordering::SeqCst);
        self.given.notify_all();
    }

    /// How many fences have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Waits until this many fences have begun.
    pub(crate) fn until_begun(&self, fences: u64) {
        until("a fence begins", || self.begun() >= fences);
    }
}
