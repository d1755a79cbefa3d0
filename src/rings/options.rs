//! Options for opening rings: events, sizes, CPUs.

use crate::error::{Error, ErrorKind};
use crate::record::clock::Clock;
use crate::record::kind_text;
use crate::rings::Rings;
use crate::rings::event_attr;
use crate::rings::event_map::{self, EventMap};
use crate::rings::event_spec::EventSpec;
use crate::rings::hotplug;
use crate::rings::plan::{Asked, Plan, Slots};
use crate::rings::target::{self, Target};
use crate::sys::pidfd::Task;
use crate::sys::wakeup::Wakeup;
use crate::sys::{file, machine};
#[cfg(feature = "perf-event-open-sys-7")]
use perf_event_open_sys::bindings;
use std::os::fd::AsFd;
use std::path::Path;

/// Which rings to open: one for each online CPU, shared by all events that are named here.
///
/// [`Record::source`](crate::Record::source) tells events apart: it is the event's place, from 0, in
/// [`Rings::sources`](crate::Rings::sources), which are in the order in which they were added. All events are opened
/// stopped, and started together once every ring is mapped.
///
/// Here an event is the output of BPF programs, records that the kernel writes beside samples, or has an attribute. The
/// package perfweave-events adds others by their names: tracepoints, probes, all that perf(1) has a name for. It also
/// has what is set for one event only, such as a filter, a period or a name: see its trait `EventOptions`.
///
/// ```no_run
/// use perfweave::{Order, Reader, Rings};
/// use perfweave_events::EventOptions;
///
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
    pub(super) asked: Asked,
}

/// The default ring size. With its header page a ring stays within `perf_event_mlock_kb` (516 KiB for each CPU by
/// default), so a user who may open the events may map the rings too.
const DEFAULT_BYTES: u64 = 512 << 10;

impl RingOptions {
    pub(super) fn new() -> Self {
        let asked = Asked {
            events: Vec::new(),
            last: 0,
            set: Vec::new(),
            wrong: None,
            target: None,
            sample_type: 0,
            bytes: DEFAULT_BYTES,
            clock: Clock::default(),
            timed: true,
            cpus: None,
            wakeup: None,
            slot: Slots(Box::new(|cpu| cpu)),
        };
        Self { asked }
    }

    /// Opens and maps a ring on every online CPU, and starts the events.
    ///
    /// CPUs that are offline (`ENODEV`) are skipped; a [`Reader`](crate::Reader) opens their rings when they come
    /// online. If anything fails, everything opened so far is closed again.
    ///
    /// # Errors
    /// [`ErrorKind`] says what helps: a privilege, a limit, another name, another kernel, a later try.
    ///
    /// This crate also refuses what the kernel takes but what could never be read.
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): an event that writes nothing, a map that is named
    /// twice, two settings that exclude each other, a wake-up that would never come, an attribute with a pointer in it,
    /// a size of zero or more than 2 GiB, a map without a slot for a CPU, or with one slot for two.
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound): a CPU that the machine can never have, or no requested CPU
    /// is online.
    pub fn open(self) -> Result<Rings, Error> {
        hotplug::open(Plan::new(self.asked, false)?)
    }

    /// Opens rings that the kernel writes backwards, over the oldest records.
    pub(crate) fn open_backward(self) -> Result<Rings, Error> {
        hotplug::open(Plan::new(self.asked, true)?)
    }

    /// Adds what one call names.
    fn add(mut self, events: Result<Vec<EventSpec>, Error>) -> Self {
        let Asked { events: all, last, set, .. } = &mut self.asked;
        *last = all.len();
        set.clear();
        match events {
            Ok(events) => all.extend(events),
            Err(error) => self.fail(error),
        }
        self
    }

    fn add_map(self, event: &str, map: Result<EventMap, Error>) -> Self {
        self.add(map.map(|map| vec![EventSpec { map: Some(map), ..EventSpec::new(event, event_attr::output()) }]))
    }

    /// Keeps the first error of a call, for [`RingOptions::open`].
    fn fail(&mut self, error: Error) {
        self.asked.wrong.get_or_insert(error);
    }

    /// Sets what is traced, once.
    fn trace(mut self, setting: &'static str, target: Result<Target, Error>) -> Self {
        if let Some((before, _)) = self.asked.target.replace((setting, target)) {
            let hint = "call only one of pid, pid_tree, tid and cgroup, and once: other targets take other rings";
            self.fail(replaced([before, setting], hint));
        }
        self
    }

    /// Adds the output of BPF programs: what they write with `bpf_perf_event_output` into a
    /// `BPF_MAP_TYPE_PERF_EVENT_ARRAY`. `map` is a file descriptor of such a map. Opening the rings sets the CPUs'
    /// slots; dropping the rings empties them.
    ///
    /// | from | the line |
    /// | --- | --- |
    /// | libbpf-rs | `bpf_output(&map)`, with `map` of an object or a skeleton |
    /// | aya 0.13 and 0.14 | `let Some(Map::PerfEventArray(map)) = ebpf.map("EVENTS")`, then `bpf_output(map.fd())`. aya's own `PerfEventArray` hides its descriptor |
    /// | anything else | `bpf_output(fd)` with a `BorrowedFd` or an `&OwnedFd`, or [`bpf_output_pinned`](Self::bpf_output_pinned) |
    ///
    /// The file descriptor is duplicated, so the map may be closed. A slot holds one event: a program that sets the
    /// slot later takes the output over. A slot cannot be read, so dropping the rings empties it even if it no longer
    /// holds our event. For this reason a map that is named twice is [`ErrorKind::InvalidInput`], even
    /// by different descriptors or paths.
    ///
    /// A program may output 65,508 bytes at once, and 65,500 if other events share the rings. More breaks the ring
    /// ([hostile rings](crate#hostile-rings)).
    pub fn bpf_output(self, map: impl AsFd) -> Self {
        let name = "BPF output";
        let map = map.as_fd().try_clone_to_owned().map_err(event_map::unusable);
        self.add_map(name, map.and_then(|map| EventMap::new(name, map)))
    }

    /// [`RingOptions::bpf_output`] for a map that is pinned by a path in a BPF file system.
    pub fn bpf_output_pinned(self, path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let name = format!("BPF output into {}", path.display());
        self.add_map(&name, EventMap::pinned(&name, path))
    }

    /// Sets the slot of a `PERF_EVENT_ARRAY` that takes a CPU's event, for programs that choose slots themselves.
    /// Unless set, the slot is the CPU's number, as `BPF_F_CURRENT_CPU` expects. Each CPU needs a slot of its own
    /// ([`ErrorKind::InvalidInput`]): only programs on that CPU can output through its event.
    pub fn slots(mut self, slot: impl Fn(u32) -> u32 + Send + Sync + 'static) -> Self {
        self.asked.slot = Slots(Box::new(slot));
        self
    }

    /// Adds records that the kernel writes beside samples, by their kind with the header's name: `PERF_RECORD_MMAP2`,
    /// `PERF_RECORD_COMM`, `PERF_RECORD_FORK` and `PERF_RECORD_EXIT` (one brings the other), `PERF_RECORD_SWITCH`,
    /// `PERF_RECORD_NAMESPACES`, `PERF_RECORD_CGROUP`, `PERF_RECORD_KSYMBOL`, `PERF_RECORD_BPF_EVENT`,
    /// `PERF_RECORD_TEXT_POKE`, `PERF_RECORD_MMAP`. The crate `perf-event-open-sys` has these names. The records come
    /// in the same stream, in order. They are one source.
    ///
    /// ```no_run
    /// use perf_event_open_sys::bindings::{PERF_RECORD_COMM, PERF_RECORD_EXIT, PERF_SAMPLE_TID};
    /// use perfweave::{Record, Rings};
    ///
    /// let options = Rings::options().records([PERF_RECORD_COMM, PERF_RECORD_EXIT]);
    /// let rings = options.sample(PERF_SAMPLE_TID).open()?;
    ///
    /// /// The thread that has ended, if the record says so.
    /// fn ended(record: &Record) -> Option<u32> {
    ///     let (_process, thread) = record.pid_tid()?;
    ///     (record.kind() == PERF_RECORD_EXIT).then_some(thread)
    /// }
    /// # Ok::<(), perfweave::Error>(())
    /// ```
    ///
    /// Opening the rings gives [`ErrorKind::InvalidInput`] for any other kind.
    #[doc(alias = "side-band")]
    pub fn records(self, kinds: impl IntoIterator<Item = u32>) -> Self {
        let kinds: Vec<u32> = kinds.into_iter().collect();
        let name = kinds.iter().fold("records".to_owned(), |name, kind| format!("{name} {}", kind_text(*kind)));
        self.add(event_attr::records(&kinds).map(|attr| vec![EventSpec::new(name, attr)]))
    }

    /// Has the kernel record more with each sample: bits of `sample_type` by the header's names, such as
    /// `PERF_SAMPLE_TID | PERF_SAMPLE_CALLCHAIN`. Records then carry it for all events of the rings. A second call adds
    /// its bits to those of the first.
    ///
    /// [`Record::pid_tid`](crate::Record::pid_tid), [`ip`](crate::Record::ip), [`addr`](crate::Record::addr),
    /// [`period`](crate::Record::period) and [`callchain`](crate::Record::callchain) give the fields that most programs
    /// want, and [`field`](crate::Record::field) any of them. [`Record::cpu`](crate::Record::cpu) and
    /// [`time`](crate::Record::time) need no bit. Registers, stacks and branches need more than a bit,
    /// which the attribute of an event says: with the bit alone the kernel refuses the event.
    /// With `PERF_SAMPLE_READ` the kernel's own count of lost records cannot be read
    /// ([`Account::exact`](crate::Account::exact)), and a CPU that goes and comes back within a tenth of a second is
    /// not noticed.
    ///
    /// The names are those of `<linux/perf_event.h>`; the crate `perf-event-open-sys` has them.
    #[doc(alias = "sample_type")]
    pub fn sample(mut self, bits: impl Into<u64>) -> Self {
        self.asked.sample_type |= bits.into();
        self
    }

    /// Traces one process: all its threads, the threads that they start, and the processes that they fork from then on
    /// (`inherit`). By default everything is traced. Rings trace one process, thread or control group: a second choice
    /// is [`ErrorKind::InvalidInput`]. The number of any of its threads names the process.
    ///
    /// There still is a ring for each CPU, and a record is in the ring of the CPU that the thread ran on. Each event
    /// takes a file descriptor for each thread and CPU, of which a process may have 1,024 nearly everywhere: setrlimit(2)
    /// raises that soft limit to the hard one, and this crate leaves limits to the program
    /// ([`ErrorKind::Limit`] has the numbers). A process that was forked before is not traced
    /// ([`pid_tree`](Self::pid_tree) does that); one that is forked while the rings are opened, or before a CPU comes
    /// online, may be traced on some CPUs and not on others. BPF output cannot be limited to a process
    /// ([`ErrorKind::InvalidInput`]): its events must run all the time. Neither can probes
    /// ([`ErrorKind::Unsupported`]): each thread that a thread starts inherits the event, and the kernel looks for the
    /// probe's path or function in the memory of the traced process, so that fork(2) and clone(2) would fail there. A
    /// record is the process's if one of its threads writes it. So `sched:sched_switch` has the switches away from the
    /// process. Another thread writes the switches back to it.
    ///
    /// The process is held from this call on (pidfd_open(2)). If it ends and another process gets its number, that
    /// process is not traced: opening the rings gives [`ErrorKind::NotFound`]. If what it started runs on, a CPU that
    /// comes online for the first time is not traced ([`Item::Untraced`](crate::Item::Untraced)). Until this call, the
    /// caller must know that the process still has the number: a child keeps its number until its parent waits for it.
    ///
    /// Your own processes need no privilege if `kernel.perf_event_paranoid` is 2 or less and events are clocks, faults
    /// or hardware, in user space only (`exclude_kernel`). Others need `CAP_PERFMON`, or the rights that ptrace(2) needs.
    /// Opening the rings gives [`ErrorKind::NotFound`] if there is no such process, and [`ErrorKind::Limit`] if its
    /// threads come faster than events can be opened.
    #[doc(alias = "inherit")]
    pub fn pid(self, pid: u32) -> Self {
        self.trace("pid", Task::process(pid).map(Target::Process).map_err(|errno| target::gone(pid, errno)))
    }

    /// As [`RingOptions::pid`], and traces the processes that it has started before, and those that they have started,
    /// as well. Their threads are listed until nothing has changed while the events were opened
    /// (`/proc/PID/task/TID/children`). A process whose parent has ended is not found. [`ErrorKind::Unsupported`] if
    /// the kernel does not list children (`CONFIG_PROC_CHILDREN`).
    pub fn pid_tree(self, pid: u32) -> Self {
        self.trace("pid_tree", Task::tree(pid).map(Target::Process).map_err(|errno| target::gone(pid, errno)))
    }

    /// Traces one thread and nothing that it starts. As [`RingOptions::pid`] otherwise.
    ///
    /// Before Linux 6.9 a thread cannot be held (`PIDFD_THREAD`). There its process is held, and the thread must
    /// be one of that process. A later thread of the same process with the same number is taken for it.
    pub fn tid(self, tid: u32) -> Self {
        self.trace("tid", Task::thread(tid).map(Target::Thread).map_err(|errno| target::gone(tid, errno)))
    }

    /// Traces the processes of a control group, by its directory: `/sys/fs/cgroup/system.slice/ssh.service`
    /// (`PERF_FLAG_PID_CGROUP`). Needs `CAP_PERFMON`. Rings trace one control group: as [`RingOptions::pid`] otherwise.
    ///
    /// The directory is held from this call on. BPF output cannot be limited to a control group
    /// ([`ErrorKind::InvalidInput`]). Opening the rings
    /// gives [`ErrorKind::NotFound`] if the directory cannot be opened, or the path leads to something else.
    pub fn cgroup(self, directory: impl AsRef<Path>) -> Self {
        let path = directory.as_ref();
        self.trace(
            "cgroup",
            file::open_cgroup(path).map(Target::Cgroup).map_err(|errno| {
                let message = format!("cannot open the control group {}", path.display());
                Error::new(ErrorKind::of(&errno), message).because(errno).hinting(target::cgroup_hint())
            }),
        )
    }

    /// Adds any event by its attribute, a type of the crate perf-event-open-sys. Opening the rings refuses three kinds
    /// of attributes:
    ///
    /// - An event that would never write anything is [`ErrorKind::InvalidInput`]. It has no `sample_period`
    ///   and no `sample_freq`, or is `PERF_COUNT_SW_DUMMY`, and asks for none of the records other than samples
    ///   (`mmap`, `mmap_data`, `comm`, `task`, `context_switch`, `namespaces`, `cgroup`, `ksymbol`, `bpf_event`,
    ///   `text_poke`). BPF output needs no period.
    /// - An attribute that points to a name, as those of the PMUs `uprobe` and `kprobe` do, is
    ///   [`ErrorKind::InvalidInput`]: events are opened after this call, and again when a CPU comes back.
    ///   An [`EventSpec`] keeps the name.
    /// - One that asks for `inherit_stat` is [`ErrorKind::Unsupported`]: when a thread ends, the kernel would write
    ///   `PERF_RECORD_READ` into the rings of other CPUs than the one it runs on (`sync_child_event`,
    ///   kernel/events/core.c).
    ///
    /// This crate sets `size`, `disabled`, `sample_id_all`, `use_clockid` and `clockid`, `watermark` and the wake-up,
    /// and `write_backward` (off). It adds these to `sample_type`: `RAW`, `TIME`, and `IDENTIFIER` if other events
    /// share the rings.
    ///
    /// All events that share the rings are opened with the same `sample_type`: what any of them asks for. The same
    /// holds for `read_format` if one asks for `PERF_SAMPLE_READ`. A CPU that goes and comes back within a tenth of a
    /// second is then not noticed. Otherwise this crate sets `read_format`, since no one else can read the events.
    #[cfg(feature = "perf-event-open-sys-7")]
    pub fn event(self, attr: &bindings::perf_event_attr) -> Self {
        let mut event = EventSpec::new(format!("event {}:{}", attr.type_, attr.config), *attr);
        event.attr.sample_type |= u64::from(bindings::PERF_SAMPLE_RAW);
        self.add(Ok(vec![event]))
    }

    /// Adds events for a package that knows them by their names: all that one name or pattern stands for. Of an error
    /// the opening of the rings gives the first.
    ///
    /// Attributes are those of [`event`](Self::event), but for `RAW`, which nothing adds to them.
    #[cfg(feature = "perf-event-open-sys-7")]
    pub fn events(self, events: Result<Vec<EventSpec>, Error>) -> Self {
        self.add(events)
    }

    /// Changes the events that the last call has added, each by itself. Opening the rings gives the first error.
    ///
    /// `setting` is the name of the change in messages. It is [`ErrorKind::InvalidInput`] if no event was added before,
    /// or if a change with one of the names of `instead` was made before, because one would replace the other: `hint`
    /// then says what helps.
    #[cfg(feature = "perf-event-open-sys-7")]
    pub fn set(
        mut self,
        setting: &'static str,
        instead: &[&'static str],
        hint: &'static str,
        change: impl FnMut(&mut EventSpec) -> Result<(), Error>,
    ) -> Self {
        let Asked { events, last, set, .. } = &mut self.asked;
        let before = set.iter().find(|before| instead.contains(before)).copied();
        set.push(setting);
        let changed = match (&mut events[*last..], before) {
            ([], _) => {
                let message =
                    format!("{setting} applies to the event before it, and there is none: add the event first");
                Err(Error::new(ErrorKind::InvalidInput, message))
            }
            (_, Some(before)) => Err(replaced([before, setting], hint)),
            (last, None) => last.iter_mut().try_for_each(change),
        };
        if let Err(error) = changed {
            self.fail(error);
        }
        self
    }

    /// Sets the size of each ring in pages of data, rounded up to a power of two.
    pub fn pages(mut self, pages: u64) -> Self {
        self.asked.bytes = pages.saturating_mul(machine::page_size() as u64);
        self
    }

    /// Sets the size of each ring in bytes of data, rounded up to a power of two pages. 512 KiB unless set.
    ///
    /// Held records stay in their ring. It must have room for what a CPU writes in two or three grace periods, about 50
    /// ms.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.asked.bytes = bytes;
        self
    }

    /// Sets the clock that stamps the records. [`Clock::Realtime`] and [`Clock::Tai`], which can be set back, are
    /// [`ErrorKind::InvalidInput`].
    ///
    /// [`Clock::Boottime`] cannot be read in an NMI. The kernel refuses it, which is [`ErrorKind::Unsupported`], for
    /// each event that may come in one: tracepoints, probes and most hardware. Software events and BPF output take it
    /// (`perf_event_set_clock`, kernel/events/core.c).
    pub fn clock(mut self, clock: Clock) -> Self {
        self.asked.clock = clock;
        self
    }

    /// Leaves the kernel's time out of the records (`PERF_SAMPLE_TIME`), unless an attribute given to
    /// [`RingOptions::event`] or [`RingOptions::sample`] asks for it.
    pub(crate) fn without_time(mut self) -> Self {
        self.asked.timed = false;
        self
    }

    /// Sets when the kernel wakes a program that waits for the rings. Unless set, when a quarter of a ring was written.
    pub fn wakeup(mut self, wakeup: Wakeup) -> Self {
        self.asked.wakeup = Some(wakeup);
        self
    }

    /// Restricts the rings to some CPUs. CPUs that are offline are skipped until they come online.
    pub fn cpus(mut self, cpus: impl IntoIterator<Item = u32>) -> Self {
        let mut cpus: Vec<u32> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        self.asked.cpus = Some(cpus);
        self
    }
}

/// Two settings exclude each other: two filters of one event, a process and a thread.
fn replaced([before, setting]: [&str; 2], hint: &'static str) -> Error {
    let message = format!("{before} and {setting} are set, and one would replace the other");
    Error::new(ErrorKind::InvalidInput, message).hinting(hint)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_open_is_an_error() {
        let error = RingOptions::new().open().unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().starts_with("nothing to open"), "{error}");
    }
}
