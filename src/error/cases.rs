//! Every error of the crate, with its numbers.

use crate::error::words::{self, because, instead_of, limit, repeated, short};
use crate::sys::wakeup::Wakeup;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why rings could not be opened, ordered or waited for.
///
/// What is wrong *inside* a ring is never an error: it is a [`Damage`](crate::Damage) event in the stream.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// perf_event_open(2) failed.
    #[error("cannot open {} on CPU {cpu}: {errno}{hint}", short(event))]
    Open {
        /// The CPU.
        cpu: u32,
        /// The event, as requested.
        event: String,
        /// The kernel's error.
        errno: io::Error,
        /// What would help.
        hint: Hint,
    },
    /// A ring could not be mapped.
    #[error("cannot map a ring of {bytes} bytes for CPU {cpu}: {errno}{hint}")]
    Map {
        /// The CPU.
        cpu: u32,
        /// Bytes of the ring, header page included.
        bytes: usize,
        /// The kernel's error.
        errno: io::Error,
        /// What would help.
        hint: Hint,
    },
    /// An ioctl on an event failed.
    #[error("cannot {what} {event} on CPU {cpu}: {errno}")]
    Control {
        /// What was tried: "redirect", "identify", "enable", "disable", "pause", "resume".
        what: &'static str,
        /// The event, as requested.
        event: String,
        /// The CPU.
        cpu: u32,
        /// The kernel's error.
        errno: io::Error,
    },
    /// An event could not be put into its slot of a `PERF_EVENT_ARRAY`.
    #[error("cannot set slot {slot} of the perf event array, for CPU {cpu}: {errno}{hint}")]
    Slot {
        /// The index of the slot.
        slot: u32,
        /// The CPU.
        cpu: u32,
        /// The kernel's error.
        errno: io::Error,
        /// What would help.
        hint: Hint,
    },
    /// The kernel did not say what map the file descriptor is.
    #[error("cannot use the file descriptor as a perf event array: {errno}{hint}")]
    Array {
        /// The kernel's error.
        errno: io::Error,
        /// What would help.
        hint: Hint,
    },
    /// The file descriptor given as a map is something else.
    #[error("{event}: this is no BPF map, but {what}")]
    NotAMap {
        /// The event, as requested.
        event: String,
        /// What the file descriptor is, as `/proc` names it: `/dev/null`, `anon_inode:bpf-prog`.
        what: String,
    },
    /// The map is of another type.
    #[error(
        "the map is {}, and not a BPF_MAP_TYPE_PERF_EVENT_ARRAY (4){}",
        words::map_type(*map_type),
        instead_of(*map_type)
    )]
    NotAnArray {
        /// `enum bpf_map_type`.
        map_type: u32,
    },
    /// The map given for epochs cannot hold them ([`Epochs::open`](crate::Epochs::open)).
    #[error(
        "a map of epochs is an array that can be mapped (BPF_MAP_TYPE_ARRAY with BPF_F_MMAPABLE, Linux 5.5); this map is {}, with \
         flags {flags:#x}",
        words::map_type(*map_type)
    )]
    NotEpochs {
        /// `enum bpf_map_type`.
        map_type: u32,
        /// `map_flags` of the map.
        flags: u32,
    },
    /// The map of epochs has no word for a CPU that the machine can have.
    #[error("a map of epochs with {entries} elements has none for CPU {cpu}: it needs {}", cpu + 1)]
    EpochsTooFew {
        /// `max_entries` of the map.
        entries: u32,
        /// The last CPU.
        cpu: u32,
    },
    /// Writers' epochs prove nothing for rings that other writers share.
    #[error(
        "epochs say nothing of \"{event}\", which writes into the same rings: open rings for BPF output alone, or choose \
         another fence"
    )]
    EpochsShared {
        /// The first event that is not BPF output.
        event: String,
    },
    /// The proof of writers' epochs holds for x86-64 only. Elsewhere a clock can be read before an earlier atomic is
    /// visible.
    #[error("epochs are proven for x86-64, and this machine is {arch}: choose another fence")]
    EpochsUnproven {
        /// The architecture.
        arch: &'static str,
    },
    /// A program has returned and not left: a grace period has passed, and its CPU's word is what it was. The reader goes on; a kernel
    /// fence stands in each time that the word is in the way. Told at the first, the tenth, the hundredth such time and so on.
    #[error(
        "a program on CPU {cpu} has returned without perfweave_leave(), and was waited for {waited:?} (a kernel fence stood in {times} \
         times since this was said last). Mend the program and make the map anew: it keeps its words"
    )]
    EpochStuck {
        /// The CPU.
        cpu: u32,
        /// How long the reader has waited.
        waited: std::time::Duration,
        /// How often a fence stood in since the last report, this time included.
        times: u64,
    },
    /// The map pinned by that path could not be opened.
    #[error("cannot open the pinned map {}: {errno}{hint}", path.display())]
    Pinned {
        /// The path, as requested.
        path: PathBuf,
        /// The kernel's error.
        errno: io::Error,
        /// What would help.
        hint: Hint,
    },
    /// The map has no slot for a CPU. That CPU's output would get `-E2BIG`, which nothing counts.
    #[error(
        "the perf event array has {entries} slots, but CPU {cpu} needs slot {slot}: make it as large as the machine has \
         CPUs"
    )]
    ArrayTooSmall {
        /// `max_entries` of the map.
        entries: u32,
        /// The missing slot.
        slot: u32,
        /// The first CPU without a slot.
        cpu: u32,
    },
    /// Two CPUs' events would share a slot of a map ([`RingOptions::slots`](crate::RingOptions::slots)). A slot holds
    /// one event, so the output of one CPU would reach no ring (`-EOPNOTSUPP`), which nothing counts.
    #[error("CPUs {} and {} would share slot {slot} of the perf event array, which holds one event", cpus[0], cpus[1])]
    SharedSlot {
        /// The slot.
        slot: u32,
        /// The first two CPUs with that slot.
        cpus: [u32; 2],
    },
    /// The same map was named twice, by whatever descriptors or paths. Its slots hold one event each. The second name
    /// would take over the output into the map, and the first would yield nothing.
    #[error("{} and {} are the same map, number {id}, whose slots hold one event each: name it once", events[0], events[1])]
    SameMap {
        /// `bpf_map_info.id`.
        id: u32,
        /// Both events, as requested.
        events: [String; 2],
    },
    /// An event would never write a record: it counts without sampling, or counts nothing.
    #[error(
        "{event} would never write anything: give it a sample_period or sample_freq, of anything but \
         PERF_COUNT_SW_DUMMY, or have it record mmap, mmap_data, comm, task, context_switch, namespaces, cgroup, ksymbol, \
         bpf_event or text_poke"
    )]
    Silent {
        /// The event, as requested.
        event: String,
    },
    /// An attribute has a pointer in it. Nothing keeps its target alive until the event is opened, and opened again
    /// when a CPU comes back.
    #[error(
        "{event} is one of the PMU {unit}'s, or cannot be told from them, and its attribute points to a name: use \
         RingOptions::uprobe, uretprobe, kprobe or kretprobe, which keep it"
    )]
    Pointer {
        /// The event, as requested.
        event: String,
        /// The PMU: "kprobe" or "uprobe". "uprobe" too where sysfs does not say which number it has.
        unit: &'static str,
    },
    /// This probe is not possible here.
    #[error("cannot set a {}: {errno}{hint}", short(event))]
    Probe {
        /// The event, as requested.
        event: String,
        /// What is missing or wrong.
        errno: io::Error,
        /// What would help.
        hint: Hint,
    },
    /// No tracepoint has that name.
    #[error("there is no tracepoint {}{hint}", short(name))]
    NoTracepoint {
        /// The name, as requested.
        name: String,
        /// Where to look for one.
        hint: Hint,
    },
    /// Looking up a tracepoint failed, so it may exist or not.
    #[error("cannot look up tracepoint {}: {errno}{hint}", short(name))]
    Tracepoint {
        /// The name, as requested.
        name: String,
        /// The error of the lookup.
        errno: io::Error,
        /// What would help.
        hint: Hint,
    },
    /// No event has that name.
    #[error("there is no event {}{}{hint}", short(name), because(errno.as_ref()))]
    NoEvent {
        /// The name, as requested.
        name: String,
        /// What is wrong with the PMU or its terms, for `pmu/terms/`.
        errno: Option<io::Error>,
        /// The nearest name.
        hint: Hint,
    },
    /// The kernel does not write records of that kind on request.
    #[error("records {kind} are no records that can be asked for: see RingOptions::records")]
    NotOnRequest {
        /// The kind, in words.
        kind: String,
    },
    /// A setting for the event that was added last came before any event.
    #[error("{setting} is a setting of the event that was added last, and none was added before")]
    NoEventBefore {
        /// The setting's method.
        setting: &'static str,
    },
    /// The kernel refused a filter.
    #[error("{event}: cannot filter by \"{filter}\": {errno}{hint}")]
    Filter {
        /// The event, as requested.
        event: String,
        /// The filter, as requested.
        filter: String,
        /// The kernel's error.
        errno: io::Error,
        /// What the kernel says of it.
        hint: Hint,
    },
    /// An event of the kernel was asked for in user space only ([`RingOptions::user_only`](crate::RingOptions::user_only)).
    #[error("{event} lies in the kernel, and would never be written in user space only")]
    KernelOnly {
        /// The event, as requested.
        event: String,
    },
    /// An event that runs all the time was asked for a process, a thread or a control group.
    #[error("{event} is written whoever runs: it cannot be had for one process, thread or control group")]
    Everybody {
        /// The event, as requested.
        event: String,
    },
    /// A size of the user's stack that no sample can have ([`Sample::StackUser`](crate::Sample::StackUser), or
    /// `sample_stack_user` of an attribute).
    #[error("no sample can have {bytes} bytes of the user's stack: it must be a multiple of 8, and at most 65528")]
    StackSize {
        /// The size, as requested.
        bytes: u32,
    },
    /// One of two settings would replace the other: two filters of one event, a process and a thread.
    #[error("{} and {} are set, and one would replace the other{hint}", settings[0], settings[1])]
    Replaced {
        /// The settings' methods, in the order of the calls.
        settings: [&'static str; 2],
        /// What would help.
        hint: Hint,
    },
    /// The process or thread to trace is not there.
    #[error("there is no process {pid} to trace: {errno}")]
    NoProcess {
        /// The process or thread, as requested.
        pid: u32,
        /// The system's error.
        errno: io::Error,
    },
    /// The threads of a process come and go faster than events can be opened for them.
    #[error(
        "the threads of process {pid} were others each time, {tries} times: trace its control group, or stop it meanwhile"
    )]
    Restless {
        /// The process.
        pid: u32,
        /// How often they were listed.
        tries: usize,
    },
    /// The directory of a control group could not be opened, or the path leads to something else.
    #[error("cannot open the control group {}: {errno}{hint}", path.display())]
    Cgroup {
        /// The directory, as requested.
        path: PathBuf,
        /// The system's error.
        errno: io::Error,
        /// What would help.
        hint: Hint,
    },
    /// No event was requested.
    #[error("nothing to open: no map, tracepoint or other event was named")]
    NoEvents,
    /// There is no ring to merge.
    #[error("no rings")]
    NoRings,
    /// None of the requested CPUs is online (`ENODEV`).
    #[error("none of the CPUs {cpus:?} is online; these are: {online:?}")]
    Offline {
        /// The requested CPUs.
        cpus: Vec<u32>,
        /// The CPUs that are online.
        online: Vec<u32>,
    },
    /// The requested wake-up would never come.
    #[error("a ring of {size} bytes, with records of at least {record}, never has {asked} unread: at most {most}")]
    Wakeup {
        /// The request: "100 bytes" or "3 events".
        asked: Wakeup,
        /// Bytes of the ring.
        size: u64,
        /// Bytes of the smallest record.
        record: u64,
        /// The largest possible wake-up.
        most: Wakeup,
    },
    /// A fill mark would never take effect: it leaves less room than a record takes.
    #[error(
        "a fill mark of {percent} % leaves {left} bytes of the {size} of CPU {cpu}'s ring, and records take {record} and \
         more: at most {most} %"
    )]
    FillMark {
        /// The CPU.
        cpu: u32,
        /// The mark, in percent.
        percent: u8,
        /// Bytes of the ring.
        size: u64,
        /// Bytes that the mark leaves.
        left: u64,
        /// Bytes of the smallest record.
        record: u64,
        /// The largest mark that could take effect, in percent.
        most: u8,
    },
    /// A ring cannot have that length.
    #[error("a ring cannot have {bytes} bytes: at least 1, at most {max}")]
    Size {
        /// The requested bytes.
        bytes: u64,
        /// The largest possible ring, in bytes.
        max: u64,
    },
    /// Memory that was to be adopted does not look like a perf ring of that length.
    #[error("no perf ring: {mapped} bytes mapped, but its header says {size} bytes of data at {offset}")]
    Geometry {
        /// Bytes mapped, header page included.
        mapped: usize,
        /// `data_offset` of the header page.
        offset: u64,
        /// `data_size` of the header page.
        size: u64,
    },
    /// The machine can have no CPU of that number.
    #[error("no CPU {cpu}: this machine can have CPUs up to {last}")]
    NoSuchCpu {
        /// The requested CPU.
        cpu: u32,
        /// The largest possible CPU number.
        last: u32,
    },
    /// The CPU is offline, or was left out.
    #[error("CPU {cpu} has no ring")]
    NoRing {
        /// The requested CPU.
        cpu: u32,
    },
    /// The key is the kernel's time, but a ring does not carry it.
    #[error(
        "the records of CPU {cpu} carry no time to order by: name another key, or open the ring with PERF_SAMPLE_TIME"
    )]
    NoTime {
        /// The first such CPU.
        cpu: u32,
    },
    /// The lag rule needs a clock that user space can read.
    #[error("the lag rule cannot read the perf clock: open the rings with another")]
    NoClock,
    /// The lag rule waits until keys have a certain age, and the keys of a [`Sequence`](crate::Sequence) are no times.
    #[error("the lag rule needs keys that are times of the rings' clock: a sequence is none")]
    NoTimes,
    /// A fence is needed and none is possible.
    #[error("no fence: {tried}{hint}")]
    NoFence {
        /// Each way that was tried, and why it failed.
        tried: String,
        /// What would help.
        hint: Hint,
    },
    /// A fence that worked before failed. The events it was to prove stay held. The reader tries again by itself: after
    /// 1 ms, then after twice as long each time, up to a second. It reports the first failure, then the tenth, the
    /// hundredth and so on, until 16 fences in a row were well. It reports every failure while a flush or a deadline
    /// waits for the fence.
    #[error("a fence failed: {errno}{}", repeated(*times))]
    Fence {
        /// The error of the kernel, or of the function of a [`Fence::Custom`](crate::Fence::Custom).
        errno: io::Error,
        /// How many fences have failed since the last report, this one included.
        times: u64,
    },
    /// The reader could not sleep until something happens. It goes on looking at its own ticks, so nothing is lost. It
    /// reports the first failure, then the tenth, the hundredth and so on, until 16 in a row were well.
    #[error("cannot wait: {errno}{}", repeated(*times))]
    Wait {
        /// The kernel's error.
        errno: io::Error,
        /// How often this happened since the last report, this time included.
        times: u64,
    },
    /// All events that were in the rings when [`Handle::flush`](crate::Handle::flush) was called have been yielded. Not
    /// a failure: the reader goes on with later events.
    #[error("flushed: all events from before have been yielded")]
    Flushed,
    /// The deadline is past, and all events that were in the rings then have been yielded. See
    /// [`Reader::set_deadline`](crate::Reader::set_deadline). The reader goes on with later events.
    #[error("the deadline has passed")]
    Deadline,
    /// The reader was closed with [`Handle::close`](crate::Handle::close), or is gone. Or it reads a recording, and all of
    /// its events have been yielded.
    #[error("the reader is closed")]
    Closed,
    /// A recording cannot be read.
    #[cfg(feature = "perf-data")]
    #[error("cannot read {}: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what would help.
        why: crate::error::Unreadable,
    },
    /// A recording cannot be written.
    #[cfg(feature = "perf-data")]
    #[error("cannot write {}: {why}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what would help.
        why: crate::error::Unwritable,
    },
    /// This process was forked from the one that opened the rings. It does not have their memory (`VM_DONTCOPY`), and
    /// everything it shares with its parent belongs to the parent: also the file of a `perf_data::Writer`.
    #[error("the rings, or the recording, belong to the process that this one was forked from: open others here")]
    Forked,
    /// The system refused something that waiting needs.
    #[error("cannot {what}: {errno}{}", limit(errno))]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's error.
        errno: io::Error,
    },
}

/// What would help against an error. Empty if nothing is known to help.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[doc(alias = "cure")]
pub struct Hint(pub(crate) String);

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " ({})", self.0) }
    }
}
