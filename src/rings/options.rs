//! Options for opening rings: events, sizes, CPUs.

use crate::record::clock::Clock;
use crate::sys::wakeup::Wakeup;
use perf_event_open_sys::bindings::perf_event_attr;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What writes into the rings.
#[derive(Debug)]
pub(super) enum Source {
    BpfOutput(io::Result<OwnedFd>),
    Pinned(PathBuf),
    Tracepoint(String),
    TracepointId(u64),
    Probe(Probe),
    Attr(Box<perf_event_attr>),
}

/// A place in code, as the kernel's dynamic PMUs take it.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) unit: &'static str,
    /// A function, or the path of a file.
    pub(super) target: OsString,
    /// Bytes behind its begin.
    pub(super) offset: u64,
    /// Whether where it returns to is meant.
    pub(super) returns: bool,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // kprobe, kretprobe
        let (kind, probe) = self.unit.split_at(1);
        let returns = if self.returns { "ret" } else { "" };
        write!(f, "{kind}{returns}{probe} {}", self.target.display())?;
        if self.offset == 0 { Ok(()) } else { write!(f, "+{:#x}", self.offset) }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BpfOutput(_) => f.write_str("BPF output"),
            Self::Pinned(path) => write!(f, "BPF output into {}", path.display()),
            Self::Tracepoint(name) => write!(f, "tracepoint {name}"),
            Self::TracepointId(id) => write!(f, "tracepoint {id}"),
            Self::Probe(probe) => probe.fmt(f),
            Self::Attr(attr) => write!(f, "event {}:{}", attr.type_, attr.config),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Size {
    Pages(u64),
    Bytes(u64),
}

/// Which rings to open: one for each online CPU, shared by all events that are named here.
///
/// [`Record::source`](crate::Record::source) tells events apart: it is the place, from 0, at which an event was added.
/// All events are opened stopped, and started together once every ring is mapped.
///
/// ```no_run
/// # use perfweave::{Order, Reader, Rings};
/// let rings = Rings::options()
///     .tracepoint("sched:sched_waking")
///     .tracepoint("sched:sched_switch")
///     .bytes(1 << 20)
///     .open()?;
/// let mut reader = Reader::new(rings, Order::new())?;
/// # Ok::<(), perfweave::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is opened before `open`"]
#[doc(alias = "perf_event_attr")]
#[doc(alias = "perf_event_open")]
pub struct RingOptions {
    pub(super) sources: Vec<Source>,
    pub(super) size: Size,
    pub(super) clock: Clock,
    pub(super) timed: bool,
    pub(super) cpus: Option<Vec<u32>>,
    pub(super) wakeup: Option<Wakeup>,
    pub(super) slot: fn(u32) -> u32,
}

/// The default ring size. With its header page a ring stays within `perf_event_mlock_kb` (516 KiB for each CPU by
/// default), so a user who may open the events may map the rings too.
const DEFAULT_BYTES: u64 = 512 << 10;

/// The dynamic PMUs, whose attributes point to a name.
pub(super) const UPROBE: &str = "uprobe";
pub(super) const KPROBE: &str = "kprobe";

impl RingOptions {
    pub(crate) fn new() -> Self {
        Self {
            sources: Vec::new(),
            size: Size::Bytes(DEFAULT_BYTES),
            clock: Clock::default(),
            timed: true,
            cpus: None,
            wakeup: None,
            slot: |cpu| cpu,
        }
    }

    fn source(mut self, source: Source) -> Self {
        self.sources.push(source);
        self
    }

    /// Adds the output of BPF programs: what they write with `bpf_perf_event_output` into a
    /// `BPF_MAP_TYPE_PERF_EVENT_ARRAY`. `map` is aya's, libbpf-rs's, or any other file descriptor of such a map.
    /// Opening the rings sets the CPUs' slots; dropping the rings empties them.
    ///
    /// The file descriptor is duplicated, so the map may be closed. A slot holds one event: a program that sets the
    /// slot later takes the output over. A slot cannot be read, so dropping the rings empties it even if it no longer
    /// holds our event. For this reason a map that is named twice is [`Error::SameMap`](crate::Error::SameMap), by
    /// whatever descriptors or paths.
    pub fn bpf_output(self, map: impl AsFd) -> Self {
        self.source(Source::BpfOutput(map.as_fd().try_clone_to_owned()))
    }

    /// [`RingOptions::bpf_output`] for a map that is pinned by a path in a BPF file system. Opening the rings opens the
    /// map.
    pub fn bpf_output_pinned(self, path: impl AsRef<Path>) -> Self {
        self.source(Source::Pinned(path.as_ref().to_owned()))
    }

    /// Sets the slot of a `PERF_EVENT_ARRAY` that takes a CPU's event, for programs that choose slots themselves.
    /// Unless set, the slot is the CPU's number, as `BPF_F_CURRENT_CPU` expects. Each CPU needs a slot of its own
    /// ([`Error::SharedSlot`](crate::Error::SharedSlot)): only programs on that CPU can output through its event.
    pub fn slots(mut self, slot: fn(u32) -> u32) -> Self {
        self.slot = slot;
        self
    }

    /// Adds a kernel tracepoint by name, `category:name`. Its number is read from tracefs, wherever that is mounted.
    ///
    /// Opening the rings gives [`Error::NoTracepoint`](crate::Error::NoTracepoint) for a name that tracefs does not
    /// have, and [`Error::Tracepoint`](crate::Error::Tracepoint) if tracefs is not mounted or cannot be read.
    pub fn tracepoint(self, name: &str) -> Self {
        self.source(Source::Tracepoint(name.to_owned()))
    }

    /// Adds a kernel tracepoint by number, as in `events/category/name/id` of tracefs.
    pub fn tracepoint_id(self, id: u64) -> Self {
        self.source(Source::TracepointId(id))
    }

    /// Adds an instruction of a program or library. The event fires whenever a process on a ring's CPU executes it.
    /// `offset` is counted from the begin of the file. For a function, it is the symbol's value, less `p_vaddr` and
    /// plus `p_offset` of its segment (elf(5)).
    ///
    /// The payload is a tracepoint's: 8 bytes of common fields, then the instruction's address, a `u64`. Takes
    /// `CAP_PERFMON`, or `CAP_SYS_ADMIN` before Linux 5.8, and a kernel with `CONFIG_UPROBE_EVENTS`; see
    /// [`Error::Probe`](crate::Error::Probe). The path is made absolute and kept. It is looked up for each CPU, also
    /// for those that come online later.
    pub fn uprobe(self, path: impl AsRef<Path>, offset: u64) -> Self {
        self.user_probe(path.as_ref(), offset, false)
    }

    /// Adds the return of a function of a program or library. The function begins at `offset` of the file: see
    /// [`RingOptions::uprobe`]. The payload has the function's address and, behind it, the return address.
    pub fn uretprobe(self, path: impl AsRef<Path>, offset: u64) -> Self {
        self.user_probe(path.as_ref(), offset, true)
    }

    fn user_probe(self, path: &Path, offset: u64, returns: bool) -> Self {
        // Where there is no current directory it stays as it is, and the kernel says what it thinks of that.
        let target = std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).into();
        self.source(Source::Probe(Probe { unit: UPROBE, target, offset, returns }))
    }

    /// Adds the begin of a kernel function, by its name in `/proc/kallsyms`.
    ///
    /// The payload is a tracepoint's: 8 bytes of common fields, then the function's address, a `u64`. Takes
    /// `CAP_PERFMON`, or `CAP_SYS_ADMIN` before Linux 5.8, and a kernel with `CONFIG_KPROBE_EVENTS`; see
    /// [`Error::Probe`](crate::Error::Probe).
    pub fn kprobe(self, function: &str) -> Self {
        self.kernel_probe(function, false)
    }

    /// Adds the return of a kernel function: see [`RingOptions::kprobe`]. The payload has the function's address and,
    /// behind it, the return address.
    pub fn kretprobe(self, function: &str) -> Self {
        self.kernel_probe(function, true)
    }

    fn kernel_probe(self, function: &str, returns: bool) -> Self {
        self.source(Source::Probe(Probe { unit: KPROBE, target: function.into(), offset: 0, returns }))
    }

    /// Adds any event by its attribute. Opening the rings refuses two kinds of attributes:
    ///
    /// - An event that would never write anything is [`Error::Silent`](crate::Error::Silent). It has no `sample_period`
    ///   and no `sample_freq`, or is `PERF_COUNT_SW_DUMMY`, and asks for none of the records other than samples
    ///   (`mmap`, `mmap_data`, `comm`, `task`, `context_switch`, `namespaces`, `cgroup`, `ksymbol`, `bpf_event`,
    ///   `text_poke`). BPF output needs no period.
    /// - An attribute that points to a name, as those of the PMUs `uprobe` and `kprobe` do, is
    ///   [`Error::Pointer`](crate::Error::Pointer): events are opened after this call, and again when a CPU comes back.
    ///   [`RingOptions::uprobe`] and [`RingOptions::kprobe`] keep the name.
    ///
    /// This crate sets `size`, `disabled`, `sample_id_all`, `use_clockid` and `clockid`, `watermark` and the wake-up,
    /// and `write_backward` (off). It adds these to `sample_type`: `RAW`, `TIME`, and `IDENTIFIER` if other events
    /// share the rings.
    ///
    /// All events that share the rings are opened with the same `sample_type`: what any of them asks for. The same
    /// holds for `read_format` if one asks for `PERF_SAMPLE_READ`. A CPU that goes and comes back within a tenth of a
    /// second is then not noticed. Otherwise this crate sets `read_format`, since no one else can read the events.
    pub fn event(self, attr: &perf_event_attr) -> Self {
        self.source(Source::Attr(Box::new(*attr)))
    }

    /// Sets the size of each ring in pages of data, rounded up to a power of two.
    pub fn pages(mut self, pages: u64) -> Self {
        self.size = Size::Pages(pages);
        self
    }

    /// Sets the size of each ring in bytes of data, rounded up to a power of two pages. 512 KiB unless set.
    ///
    /// Held records stay in their ring. It must take what a CPU writes in two or three grace periods, about 50 ms.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.size = Size::Bytes(bytes);
        self
    }

    /// Sets the clock that stamps the records.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Leaves the kernel's time out of the records (`PERF_SAMPLE_TIME`), unless an attribute given to
    /// [`RingOptions::event`] asks for it. For keys that programs write into the payload.
    ///
    /// A record is then 8 bytes shorter, and the kernel reads no clock for it. The clock costs the traced program about
    /// a fifth of a small output. [`Key::Time`](crate::Key::Time) is then [`Error::NoTime`](crate::Error::NoTime).
    pub fn without_time(mut self) -> Self {
        self.timed = false;
        self
    }

    /// Sets when the kernel wakes a program that waits for the rings. Unless set, when a quarter of a ring was written.
    pub fn wakeup(mut self, wakeup: Wakeup) -> Self {
        self.wakeup = Some(wakeup);
        self
    }

    /// Restricts the rings to some CPUs. CPUs that are offline are skipped until they come online.
    pub fn cpus(mut self, cpus: impl IntoIterator<Item = u32>) -> Self {
        let mut cpus: Vec<u32> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        self.cpus = Some(cpus);
        self
    }
}
