//! The readers, each in a separate process.

mod aya;
mod capi;
mod libbpf;
mod perfweave;
mod ring_buffers;

use crate::Result;
use crate::producer::Load;
use crate::tally::{Seen, Tally};
use ::perfweave::{Fence, Hold};
use perfweave_proofs::{Barrier, Epochs, expedited};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How long a reader that is not woken sleeps.
pub const POLL: Duration = Duration::from_millis(100);

/// A way to read.
pub struct Reader {
    pub name: &'static str,
    /// Only with the load that is no flood: for latency, and where the machine's numbers are needed.
    pub paced: bool,
    /// The program enters and leaves.
    pub enters: bool,
    pub output: Output,
    read: fn(OwnedFd, &Start) -> Result<Seen>,
}

/// What the program outputs into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Perf,
    /// A BPF ring buffer for each CPU.
    ByCpu,
    /// The same, and the program orders its stores between its reservation and its time.
    Barrier,
    /// One BPF ring buffer, as long as all others together.
    Shared,
}

/// The reader with which others are compared.
pub const REFERENCE: &str = "libbpf tuned, unordered";

/// The reader with which ordered readers are compared.
pub const SORTED: &str = "libbpf tuned, copied and sorted";
/// perfweave as it is by default.
pub const DEFAULT: &str = "perfweave `fence` (membarrier), the default";
pub const DRAIN: &str = "perfweave `drain`, unordered";
/// The cost of entering and leaving for the program, compared with [`DRAIN`].
pub const DRAIN_ENTERED: &str = "perfweave `drain`, unordered, from a program that enters and leaves";
pub const NONE: &str = "perfweave `none`";
pub const EPOCH: &str = "perfweave `epoch`";
pub const EPOCH_SPINNING: &str = "perfweave `epoch`, spinning";
pub const EPOCH_WOKEN: &str = "perfweave `epoch`, woken by each event";
/// The reader with which latencies are compared.
pub const OFTEN: &str = "perfweave `drain`, every millisecond";
pub const MEMBARRIER_SOON: &str = "perfweave `fence` (membarrier), `latency(1 ms)`";
pub const EXPEDITED_SOON: &str = "perfweave `fence` (expedited), `latency(1 ms)`";
pub const DENSE_SOON: &str = "perfweave `dense`, `latency(1 ms)`";

pub const BUFFERS_DRAIN: &str = "ring buffers: perfweave `drain`, unordered";
pub const BUFFERS_DRAIN_OFTEN: &str = "ring buffers: perfweave `drain`, every millisecond";
pub const BUFFERS_NONE: &str = "ring buffers: perfweave `none`";
pub const BUFFERS_RESERVED: &str = "ring buffers: perfweave `reserved`";
pub const BUFFERS_PROGRAMS: &str = "ring buffers: perfweave `reserved`, programs with a barrier";
pub const BUFFERS_LIBBPF: &str = "ring buffers: libbpf `ring_buffer__consume`";
pub const BUFFERS_FENCE: &str = "ring buffers: perfweave `fence`";
pub const EXPEDITED_NAME: &str = "perfweave `fence` (expedited)";
pub const BUFFERS_LIBBPF_OFTEN: &str = "ring buffers: libbpf `ring_buffer__consume`, every millisecond";

/// With any load.
const fn always(name: &'static str, read: fn(OwnedFd, &Start) -> Result<Seen>) -> Reader {
    Reader { name, paced: false, enters: false, output: Output::Perf, read }
}

/// With the load that is no flood.
const fn paced(name: &'static str, read: fn(OwnedFd, &Start) -> Result<Seen>) -> Reader {
    Reader { name, paced: true, enters: false, output: Output::Perf, read }
}

/// The program enters and leaves.
const fn entered(reader: Reader) -> Reader {
    Reader { enters: true, ..reader }
}

/// The program outputs into BPF ring buffers.
const fn buffers(output: Output, name: &'static str, read: fn(OwnedFd, &Start) -> Result<Seen>) -> Reader {
    Reader { name, paced: false, enters: false, output, read }
}

fn expedited_hold() -> Hold {
    Hold::Fence(expedited(Duration::from_millis(1)))
}
const DENSE: Hold = Hold::Dense { first: Some(0), fence: Fence::Membarrier };
fn programs_hold() -> Hold {
    Hold::Fence(Barrier::Programs.fence())
}
fn seldom_hold() -> Hold {
    Hold::Fence(Barrier::Interrupts { every: SOON, isolated: false }.fence())
}
const SOON: Duration = Duration::from_millis(1);

/// All of them.
pub const READERS: [Reader; 45] = [
    always(DEFAULT, |map, start| perfweave::next(map, start, Hold::FENCE, None)),
    always("perfweave the same, `batch()`", |map, start| perfweave::batch(map, start, Hold::FENCE)),
    always("perfweave the same, key in the payload", |map, start| perfweave::by_payload(map, start, Hold::FENCE)),
    always(EXPEDITED_NAME, |map, start| perfweave::next(map, start, expedited_hold(), None)),
    always(NONE, |map, start| perfweave::next(map, start, Hold::None, None)),
    entered(always(EPOCH, |map, start| perfweave::next(map, start, start.epochs()?, None))),
    always("perfweave `fence` (membarrier), key in the payload, callback in C", |map, start| {
        capi::poll(map, start, capi::FENCE)
    }),
    always("perfweave `none`, key in the payload, callback in C", |map, start| capi::poll(map, start, capi::NONE)),
    always(DRAIN, perfweave::drain),
    entered(always(DRAIN_ENTERED, perfweave::drain)),
    always(REFERENCE, libbpf::tuned),
    always("libbpf tuned, unordered, records with the kernel's time", libbpf::stamped),
    always(SORTED, libbpf::sorted),
    always("libbpf-rs, its default", libbpf::default),
    always("aya 0.14, its default", aya::default),
    paced("perfweave `dense`", |map, start| perfweave::dense(map, start, DENSE, None)),
    paced(MEMBARRIER_SOON, |map, start| perfweave::next(map, start, Hold::FENCE, Some(SOON))),
    paced(EXPEDITED_SOON, |map, start| perfweave::next(map, start, expedited_hold(), Some(SOON))),
    paced(DENSE_SOON, |map, start| perfweave::dense(map, start, DENSE, Some(SOON))),
    paced("perfweave `none`, `latency(1 ms)`", |map, start| perfweave::next(map, start, Hold::None, Some(SOON))),
    entered(paced("perfweave `epoch`, `latency(1 ms)`", |map, start| {
        perfweave::next(map, start, start.epochs()?, Some(SOON))
    })),
    entered(paced(EPOCH_WOKEN, |map, start| perfweave::woken(map, start, start.epochs()?))),
    entered(paced(EPOCH_SPINNING, |map, start| perfweave::spinning(map, start, start.epochs()?))),
    paced(OFTEN, perfweave::drain_often),
    paced("libbpf tuned, every millisecond", libbpf::often),
    buffers(Output::ByCpu, BUFFERS_DRAIN, |map, start| ring_buffers::drain(map, start, start.sleep())),
    buffers(Output::ByCpu, BUFFERS_DRAIN_OFTEN, |map, start| ring_buffers::drain(map, start, SOON)),
    buffers(Output::ByCpu, BUFFERS_NONE, |map, start| ring_buffers::next(map, start, Hold::None)),
    buffers(Output::ByCpu, BUFFERS_FENCE, |map, start| ring_buffers::next(map, start, Hold::FENCE)),
    buffers(Output::ByCpu, BUFFERS_RESERVED, |map, start| {
        ring_buffers::next(map, start, Hold::Fence(Barrier::INTERRUPTS.fence()))
    }),
    buffers(Output::Barrier, BUFFERS_PROGRAMS, |map, start| ring_buffers::next(map, start, programs_hold())),
    buffers(Output::ByCpu, "ring buffers: perfweave `none`, spinning", |map, start| {
        ring_buffers::spinning(map, start, Hold::None)
    }),
    buffers(Output::ByCpu, "ring buffers: perfweave `reserved`, spinning", |map, start| {
        ring_buffers::spinning(map, start, Hold::Fence(Barrier::INTERRUPTS.fence()))
    }),
    buffers(Output::ByCpu, "ring buffers: perfweave `reserved` each millisecond, spinning", |map, start| {
        ring_buffers::spinning(map, start, seldom_hold())
    }),
    buffers(Output::Barrier, "ring buffers: perfweave `reserved`, programs with a barrier, spinning", |map, start| {
        ring_buffers::spinning(map, start, programs_hold())
    }),
    buffers(Output::ByCpu, BUFFERS_LIBBPF, |_, start| ring_buffers::libbpf(start, start.sleep())),
    buffers(Output::ByCpu, BUFFERS_LIBBPF_OFTEN, |_, start| ring_buffers::libbpf(start, SOON)),
    buffers(Output::ByCpu, "ring buffers: libbpf `ring_buffer__consume`, copied and sorted", |_, start| {
        ring_buffers::sorted(start)
    }),
    buffers(Output::ByCpu, "ring buffers: libbpf-rs `RingBuffer`", |_, start| ring_buffers::libbpf_rs(start)),
    buffers(Output::ByCpu, "ring buffers: aya 0.14 `RingBuf`", |_, start| ring_buffers::aya(start)),
    buffers(Output::Shared, "one ring buffer: perfweave `drain`, unordered", |map, start| {
        ring_buffers::drain(map, start, start.sleep())
    }),
    buffers(Output::Shared, "one ring buffer: perfweave `none`", |map, start| {
        ring_buffers::next(map, start, Hold::None)
    }),
    buffers(Output::Shared, "one ring buffer: perfweave `reserved`", |map, start| {
        ring_buffers::next(map, start, Hold::Fence(Barrier::INTERRUPTS.fence()))
    }),
    buffers(Output::Shared, "one ring buffer: libbpf `ring_buffer__consume`", |_, start| {
        ring_buffers::libbpf(start, start.sleep())
    }),
    buffers(Output::Shared, "one ring buffer: aya 0.14 `RingBuf`", |_, start| ring_buffers::aya(start)),
];

impl Reader {
    /// Its place among all.
    pub fn index(&self) -> usize {
        READERS.iter().position(|reader| reader.name == self.name).expect("one of them")
    }

    /// Whether it is measured with a load.
    pub fn takes(&self, load: Load) -> bool {
        !self.paced || load != Load::Flood
    }
}

/// The begin of reading, and its end.
pub struct Start {
    stop: Arc<AtomicBool>,
    /// Of perf rings the words of writers' epochs, of BPF ring buffers the counts of refused reservations.
    words: OwnedFd,
    /// Each BPF ring buffer.
    rings: Vec<OwnedFd>,
    /// Bytes of each ring.
    pub bytes: usize,
    /// How long the reader may gather events, if that is set.
    pub latency: Option<Duration>,
}

impl Start {
    /// Reports that everything is open, and begins to count. Calls a function on another thread when the load has
    /// ended.
    pub fn ready(&self, ended: impl FnOnce() + Send + 'static) -> Tally {
        let stop = Arc::clone(&self.stop);
        thread::spawn(move || {
            let _ = std::io::stdin().read(&mut [0]);
            stop.store(true, Ordering::Relaxed);
            ended();
        });
        let tally = Tally::begin();
        println!("ready");
        tally
    }

    /// How long a reader that is not woken sleeps: as long as it may gather events.
    pub fn sleep(&self) -> Duration {
        self.latency.unwrap_or(POLL)
    }

    /// The rule for a program that enters and leaves.
    fn epochs(&self) -> Result<Hold> {
        Ok(Hold::Fence(Epochs::open(&self.words)?.fence()))
    }

    /// Whether the load has ended.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Reads rings of this many pages until the load has ended, and reports the counts.
pub fn run(reader: &Reader, maps: &[i32], words: i32, pages: usize, latency: Option<Duration>) -> Result<()> {
    let bytes = pages * perfweave_support::foreign::page_size();
    let own = |fd: &i32| {
        // SAFETY: inherited from the process that began this one, for nobody else here.
        unsafe { OwnedFd::from_raw_fd(*fd) }
    };
    let (map, rings) = maps.split_first().ok_or("no map")?;
    let map = own(map);
    // A map that is itself a ring comes twice.
    let rings = rings.iter().map(|fd| if *fd == map.as_raw_fd() { map.try_clone() } else { Ok(own(fd)) });
    let rings = rings.collect::<std::io::Result<_>>()?;
    let start = Start { stop: Arc::default(), words: own(&words), rings, bytes, latency };
    let seen = (reader.read)(map, &start)?;
    println!("{seen}");
    Ok(())
}

/// Waits until one of these is readable, at most this long.
pub fn wait(fds: &mut [nix::poll::PollFd<'_>], most: Duration) -> Result<()> {
    let most = nix::poll::PollTimeout::try_from(most)?;
    match nix::poll::poll(fds, most) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
