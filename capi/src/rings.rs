//! The rings of perf buffers one by one: their descriptors, their memory, and reading them without order.

use crate::border::{Failure, Result, give, number};
use crate::buffer::{Inside, Source, enter, enter_as_is, pw_buffer};
use crate::read::readable;
use pw::{ErrorKind, RawRing, RingOptions, Rings};
use std::ffi::{c_int, c_void};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where data_tail lies in the header page (include/uapi/linux/perf_event.h).
const DATA_TAIL: usize = 1032;

/// The rings of a buffer without order, each opened by itself, so that a call can read one alone. `None` for a CPU that
/// is offline.
pub(crate) type Apart = Vec<Option<Rings>>;

/// Opens rings, each by itself.
pub(crate) fn open_apart(cpus: &[u32], options: impl Fn() -> Result<RingOptions>) -> Result<Apart> {
    let possible = listed("possible")?;
    let open = |cpu: &u32| match options()?.cpus([*cpu]).open() {
        Err(error) if error.kind() == ErrorKind::NotFound && possible.contains(cpu) => Ok(None),
        opened => Ok(Some(opened?)),
    };
    let apart: Apart = cpus.iter().map(open).collect::<Result<_>>()?;
    if apart.iter().all(Option::is_none) {
        return Err(Failure::new(libc::ENOENT, format!("none of the CPUs {cpus:?} is online")));
    }
    Ok(apart)
}

/// A list of CPUs, as the kernel has it.
pub(crate) fn listed(list: &str) -> Result<Vec<u32>> {
    let path = format!("/sys/devices/system/cpu/{list}");
    let list = std::fs::read_to_string(&path)
        .map_err(|error| Failure::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{path}: {error}")))?;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    };
    let ranges: Option<Vec<_>> = list.trim().split(',').map(range).collect();
    let ranges = ranges.ok_or_else(|| Failure::new(libc::EIO, format!("{path}: {list}")))?;
    Ok(ranges.into_iter().flatten().collect())
}

fn not_there(index: usize, cpu: u32) -> Failure {
    Failure::new(libc::ENOENT, format!("index {index} is CPU {cpu}, which has no ring"))
}

impl Inside {
    /// The CPU of each index. One that came online since has the next one, so that none changes.
    fn indexed(&mut self) -> Result<&[u32]> {
        match (&self.source, &self.reader) {
            (Source::Unordered(_), _) => {}
            (Source::Perf, Some(reader)) => {
                let rings = reader.rings().cpus();
                if rings.len() > self.cpus.len() {
                    let new: Vec<u32> = rings.filter(|cpu| !self.cpus.contains(cpu)).collect();
                    self.cpus.extend(new);
                }
            }
            _ => return Err(Failure::invalid("a ring buffer of BPF has no rings by index: only perf buffers have")),
        }
        Ok(&self.cpus)
    }

    /// The ring at an index: the rings among which it is, and its CPU.
    fn ring(&mut self, index: usize) -> Result<(&Rings, u32)> {
        let cpus = self.indexed()?;
        let cpu = *cpus.get(index).ok_or_else(|| no_index(index, cpus.len()))?;
        let rings = match (&self.source, &self.reader) {
            (Source::Unordered(apart), _) => apart.get(index).and_then(Option::as_ref),
            (_, reader) => reader.as_ref().map(|reader| reader.rings()),
        };
        Ok((rings.ok_or_else(|| not_there(index, cpu))?, cpu))
    }

    /// Whether something waits in the rings of a buffer without order.
    fn waits(&self) -> Result<Option<bool>> {
        let Source::Unordered(apart) = &self.source else { return Ok(None) };
        for (rings, cpu) in apart.iter().zip(&self.cpus) {
            if let Some(rings) = rings {
                let raw = rings.raw(*cpu)?;
                if raw.head != stored_tail(&raw) {
                    return Ok(Some(true));
                }
            }
        }
        Ok(Some(false))
    }

    /// Calls back with what is in the ring at an index, or in all of them, the fullest first. Returns how many records
    /// there were.
    fn drain(&mut self, shared: &pw_buffer, index: Option<usize>) -> Result<c_int> {
        let notice = self.opts.notice_cb;
        let Source::Unordered(apart) = &mut self.source else {
            return Err(Failure::invalid(
                "this buffer is read in order, by pw_buffer__poll and others\nhint: set opts.hold to PW_HOLD_UNORDERED to read rings one by one",
            ));
        };
        // By the bytes that wait.
        let mut order: Vec<(u64, usize)> = Vec::with_capacity(apart.len());
        for (at, (rings, cpu)) in apart.iter().zip(&self.cpus).enumerate() {
            if let (Some(rings), true) = (rings, index.is_none_or(|index| index == at)) {
                let raw = rings.raw(*cpu)?;
                if stored_tail(&raw) != raw.tail {
                    return Err(Failure::invalid(format!(
                        "this program has stored data_tail of CPU {cpu} itself\nhint: read that ring on by pw_buffer__buffer"
                    )));
                }
                order.push((raw.head.wrapping_sub(raw.tail), at));
            }
        }
        match index {
            Some(index) if index >= self.cpus.len() => return Err(no_index(index, self.cpus.len())),
            Some(index) if order.is_empty() => return Err(not_there(index, self.cpus[index])),
            _ => order.sort_by_key(|(waiting, at)| (std::cmp::Reverse(*waiting), *at)),
        }
        let mut records: c_int = 0;
        for (_, at) in order {
            let Some(rings) = &mut apart[at] else { continue };
            let said = rings.drain(|event| {
                records = records.saturating_add(event.record().is_some().into());
                let told = self.calls.tell(&event, notice);
                if shared.is_doomed() && told.is_continue() { ControlFlow::Break(0) } else { told }
            });
            match said {
                ControlFlow::Break(said) if said < 0 => return Ok(said),
                ControlFlow::Break(_) if shared.is_doomed() => break,
                // As LIBBPF_PERF_EVENT_DONE, it ends this ring.
                ControlFlow::Break(_) | ControlFlow::Continue(()) => {}
            }
        }
        Ok(records)
    }
}

/// What data_tail is now: a program that reads by itself stores it.
fn stored_tail(raw: &RawRing) -> u64 {
    // SAFETY: the header page is mapped as long as its `Rings` live, which lent this, and it is larger.
    let tail = unsafe { raw.base.as_ptr().add(DATA_TAIL) };
    // SAFETY: aligned, as the kernel lays it out (`struct perf_event_mmap_page`), and shared by atomic words alone.
    let tail = unsafe { AtomicU64::from_ptr(tail.cast()) };
    // Relaxed: the same thread has stored it, or has waited for who did. The kernel never stores it.
    tail.load(Ordering::Relaxed)
}

fn no_index(index: usize, count: usize) -> Failure {
    Failure::invalid(format!("no index {index}: the buffer has {count}, from 0 on"))
}

/// Runs a call on a buffer, in the process that made it.
fn with_rings(buffer: *const pw_buffer, call: impl FnOnce(&pw_buffer, &mut Inside) -> Result<c_int>) -> c_int {
    number(|| {
        enter_as_is(buffer, |shared, inside| {
            shared.check_process()?;
            call(shared, inside)
        })
    })
}

/// How many indexes a perf buffer has, as perf_buffer__buffer_cnt of libbpf: one for each CPU that was online in
/// pw_buffer__new, in their order, or for each of opts.cpus. A CPU that comes online later gets the next index, unless
/// CPUs were chosen or the buffer has no order. Returns their number, or a negative number as pw_buffer__poll; -EINVAL
/// for ring buffers. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__buffer_cnt(buffer: *const pw_buffer) -> c_int {
    with_rings(buffer, |_, inside| Ok(inside.indexed()?.len() as c_int))
}

/// The descriptor of the perf event of an index, as perf_buffer__buffer_fd of libbpf. It belongs to the buffer: do not
/// close it. It becomes readable as opts.wakeup_events says, and polling consumes that: check the ring before you wait
/// again. If the buffer has an order, wait for pw_buffer__epoll_fd instead, which misses what you poll here.
///
/// Returns it, or -EINVAL for a wrong index and for ring buffers, -ENOENT for a CPU without a ring, or as
/// pw_buffer__poll. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__buffer_fd(buffer: *const pw_buffer, index: usize) -> c_int {
    with_rings(buffer, |_, inside| {
        let (rings, cpu) = inside.ring(index)?;
        // Each ring that was opened here has an event.
        let event = rings.cpus().zip(rings.fds()).find(|(of, _)| *of == cpu).map(|(_, fd)| fd);
        Ok(event.ok_or_else(|| not_there(index, cpu))?.as_raw_fd())
    })
}

/// The memory of the ring of an index, as perf_buffer__buffer of libbpf, for a reader of your own.
///
/// base: gets the address of the header page, a struct perf_event_mmap_page. The bytes of data follow at its
/// data_offset. size: gets how many these are; the header page is not among them, as in libbpf. Both are valid until
/// pw_buffer__free. Load data_head with acquire semantics.
///
/// In a buffer with PW_HOLD_UNORDERED you may also store data_tail, with release semantics. Then call neither
/// pw_buffer__consume_buffer nor pw_buffer__drain_unordered, which are -EINVAL then. Unless opts.sample_type is set,
/// its samples have after the header a length of 32 bits, and what the program wrote; other records are as in
/// perf_event_open(2), with sample_id_all. A record may go on at the begin of the data. In a buffer with an order only
/// the library stores data_tail, and records can have a time.
///
/// Returns 0, or as pw_buffer__buffer_fd. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__buffer(
    buffer: *const pw_buffer,
    index: usize,
    base: *mut *mut c_void,
    size: *mut usize,
) -> c_int {
    with_rings(buffer, |_, inside| {
        let (rings, cpu) = inside.ring(index)?;
        let raw = rings.raw(cpu)?;
        give(&raw.base.as_ptr().cast::<c_void>(), base, size_of::<*mut c_void>(), "base")?;
        give(&raw.size, size, size_of::<usize>(), "size").map(|()| 0)
    })
}

/// Whether there is something to read without waiting: 1, or 0. If the buffer has an order, that is an event whose order
/// is proven, of any kind; it refreshes as pw_buffer__consume does, and events lent before are no longer valid. libbpf
/// has none. Returns a negative number as pw_buffer__poll does without opts.notice_cb: -EAGAIN is an error after which
/// reading goes on. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__readable(buffer: *mut pw_buffer) -> c_int {
    number(|| {
        let waits = enter_as_is(buffer, |shared, inside| shared.check_process().and_then(|()| inside.waits()))?;
        waits.map_or_else(|| enter(buffer, |_, inside| readable(inside)), |waits| Ok(waits.into()))
    })
}

/// Calls back with what is in the ring of an index, in the order of that ring, as perf_buffer__consume_buffer of libbpf.
/// For buffers with PW_HOLD_UNORDERED. It reads up to where the kernel writes at the call, so it ends.
///
/// Returns how many records there were (libbpf: 0), or -EINVAL for a wrong index and for other buffers, -ENOENT for a
/// CPU without a ring, or as pw_buffer__poll. Blocks as long as callbacks take.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__consume_buffer(buffer: *mut pw_buffer, index: usize) -> c_int {
    with_rings(buffer, |shared, inside| inside.drain(shared, Some(index)))
}

/// The same for all rings, the one with the least free space first: as perf_buffer__consume of libbpf, which takes them
/// by CPU. For a program that only counts, or wants to lose as little as possible. Returns as pw_buffer__consume_buffer.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__drain_unordered(buffer: *mut pw_buffer) -> c_int {
    with_rings(buffer, |shared, inside| inside.drain(shared, None))
}
