//! Options: a struct that grows at its end, as libbpf's do.

use crate::border::{Failure, Result, checked};
use crate::event::{pw_event_fn, pw_notice_fn};
use perfweave_proofs::{Barrier, Epochs};
use pw::{Fence, Hold, Key, Order, RingOptions, Wakeup};
use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Where the number is that orders events.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, dead_code, reason = "names of C; values that C sets")]
pub enum pw_key {
    /// Perf buffers: the kernel's own time of each record. Ring buffers: none, so events keep the order in which
    /// programs reserved them.
    PW_KEY_DEFAULT = 0,
    /// A number of 64 bits at key_offset of the payload: a time, or a counter.
    PW_KEY_PAYLOAD = 1,
}

/// When an event may leave although an earlier one may still be on its way.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, dead_code, reason = "names of C; values that C sets")]
pub enum pw_hold {
    /// Wait for a grace period of the kernel, some 10 ms. Proves the order of every program that does not sleep. The
    /// default.
    PW_HOLD_FENCE = 0,
    /// Ring buffers: wait for what programs have reserved. Only for programs that draw their key between reserving and
    /// submitting. Proves in microseconds, and interrupts every CPU before each proof.
    PW_HOLD_RESERVED = 1,
    /// The same for programs that reserve by perfweave_reserve() of perfweave.bpf.h, without interrupts. x86-64.
    PW_HOLD_RESERVED_BY_PROGRAMS = 2,
    /// Wait for programs that say when they are inside (perfweave_enter() of perfweave.bpf.h) and do not sleep there.
    /// epochs_fd is their map.
    PW_HOLD_EPOCHS = 3,
    /// The key is a counter without holes: wait for the next number. Needs PW_KEY_PAYLOAD.
    PW_HOLD_DENSE = 4,
    /// Wait for lag_ns. A guess: events can be late.
    PW_HOLD_LAG = 5,
    /// Do not wait. Events can be late.
    PW_HOLD_NONE = 7,
    /// Perf buffers: no order at all. Rings are read one by one, by pw_buffer__drain_unordered,
    /// pw_buffer__consume_buffer or the program itself (pw_buffer__buffer), without a fence. Other calls that read, and
    /// pw_handle, are -EINVAL. A CPU that comes online later, or comes back, is not traced, and losses that no record tells
    /// of are not told. Takes five descriptors a CPU. Wait for pw_buffer__buffer_fd with a time-out, or set
    /// wakeup_events to 1: the last events fill no quarter of a ring.
    PW_HOLD_UNORDERED = 8,
}

/// Options. Zero is the default of each field. Set sz to sizeof(struct pw_opts): a library that knows more fields takes
/// the others as zero, and one that knows fewer refuses only fields that are not zero. PW_OPTS declares one.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "names of C")]
pub struct pw_opts {
    /// sizeof(struct pw_opts).
    pub sz: usize,
    /// enum pw_hold.
    pub hold: u32,
    /// enum pw_key.
    pub key: u32,
    /// Where in the payload the key is, in bytes.
    pub key_offset: usize,
    /// PW_HOLD_LAG: how long, in nanoseconds.
    pub lag_ns: u64,
    /// PW_HOLD_EPOCHS: the map of epochs. It is duplicated.
    pub epochs_fd: c_int,
    /// Ring buffers: whether failures_fd is a map.
    pub count_failures: u32,
    /// The map in which programs count refused reservations: a BPF_MAP_TYPE_PERCPU_ARRAY of 8 bytes. The kernel does
    /// not count them.
    pub failures_fd: c_int,
    /// 1: each CPU counts in 64 bits, and its number is at numbers_offset of the payload. Missing numbers are then gaps.
    pub has_numbers: u32,
    /// Where in the payload that counter is, in bytes.
    pub numbers_offset: usize,
    /// Perf buffers: wake the reader after so many events. 0: when a quarter of a ring was written. libbpf has 1.
    pub wakeup_events: u32,
    /// Always 0.
    pub reserved: u32,
    /// The most bytes that held records may take which are copied out of rings that fill up, for all rings together.
    /// Beyond that they stay in their rings, and the kernel drops what does not fit. 0: 64 MiB, and nothing is copied
    /// out of ring buffers, which outlive their reader. 1: nothing is copied.
    pub most_held: usize,
    /// The longest time in nanoseconds that an event lies in its ring unseen. 0: 100 ms.
    pub latency_ns: u64,
    /// Called with each event that is no record, at its place in the order: gaps, damage and others, and losses if
    /// there is no lost_cb. pw_print_notice is one.
    pub notice_cb: pw_notice_fn,
    /// Perf buffers: called for each record instead of sample_cb, as that of perf_buffer__new_raw. It returns -2 to go
    /// on, and 0 or another negative number to end the call (of a buffer without order, 0 ends its ring). Losses go to
    /// lost_cb or notice_cb.
    pub event_cb: pw_event_fn,
    /// Perf buffers: what else records have (PERF_SAMPLE_TID and others), as attr->sample_type of perf_buffer__new_raw.
    /// PERF_SAMPLE_RAW comes besides, and PERF_SAMPLE_TIME if the kernel's time orders them, by CLOCK_MONOTONIC. What a
    /// program may output at once is less by what these take.
    pub sample_type: u64,
    /// Perf buffers: how many CPUs to open rings for, as perf_buffer_raw_opts of libbpf. 0: for all. One that is offline
    /// has no ring until it comes online; without order never.
    pub cpu_cnt: usize,
    /// Which CPUs these are. Indexes count them.
    pub cpus: *const c_int,
    /// The key of the map for each. NULL: the number of the CPU.
    pub map_keys: *const c_int,
    /// Perf buffers: wake the reader after so many bytes, in place of wakeup_events.
    pub wakeup_bytes: u64,
}

impl pw_opts {
    const DEFAULT: Self = Self {
        sz: size_of::<Self>(),
        hold: 0,
        key: 0,
        key_offset: 0,
        lag_ns: 0,
        epochs_fd: 0,
        count_failures: 0,
        failures_fd: 0,
        has_numbers: 0,
        numbers_offset: 0,
        wakeup_events: 0,
        reserved: 0,
        most_held: 0,
        latency_ns: 0,
        notice_cb: None,
        event_cb: None,
        sample_type: 0,
        cpu_cnt: 0,
        cpus: std::ptr::null(),
        map_keys: std::ptr::null(),
        wakeup_bytes: 0,
    };

    /// Where each field but the first begins: where the struct of an older header may end.
    const STARTS: [usize; 21] = [
        offset_of!(Self, hold),
        offset_of!(Self, key),
        offset_of!(Self, key_offset),
        offset_of!(Self, lag_ns),
        offset_of!(Self, epochs_fd),
        offset_of!(Self, count_failures),
        offset_of!(Self, failures_fd),
        offset_of!(Self, has_numbers),
        offset_of!(Self, numbers_offset),
        offset_of!(Self, wakeup_events),
        offset_of!(Self, reserved),
        offset_of!(Self, most_held),
        offset_of!(Self, latency_ns),
        offset_of!(Self, notice_cb),
        offset_of!(Self, event_cb),
        offset_of!(Self, sample_type),
        offset_of!(Self, cpu_cnt),
        offset_of!(Self, cpus),
        offset_of!(Self, map_keys),
        offset_of!(Self, wakeup_bytes),
        size_of::<Self>(),
    ];

    /// The caller's options, of whatever version.
    pub(crate) fn read(pointer: *const Self) -> Result<Self> {
        let mut opts = Self::DEFAULT;
        if pointer.is_null() {
            return Ok(opts);
        }
        // The first field alone: a caller's struct may be shorter than this one.
        let size = *checked(pointer.cast::<usize>(), "opts")?;
        if !(size_of::<usize>()..=1 << 16).contains(&size) {
            return Err(Failure::invalid(format!(
                "opts->sz is {size}\nhint: set it to sizeof(struct pw_opts), as PW_OPTS does"
            )));
        }
        let known = size.min(size_of::<Self>());
        if known < size_of::<Self>() && !Self::STARTS.contains(&known) {
            return Err(Failure::invalid(format!(
                "opts->sz is {size}, which ends inside a field\nhint: set it to sizeof(struct pw_opts), as PW_OPTS does"
            )));
        }
        let into = (&raw mut opts).cast::<u8>();
        // SAFETY: the caller's struct has `size` bytes. They end between two fields, and any whole field is a value.
        unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), into, known) };
        for at in known..size {
            // SAFETY: within the caller's `size` bytes.
            let byte = unsafe { pointer.cast::<u8>().add(at) };
            // SAFETY: as above.
            if unsafe { *byte } != 0 {
                return Err(Failure::invalid(format!(
                    "byte {at} of opts is set, and this library knows {} bytes\nhint: the header is newer than the library",
                    size_of::<Self>()
                )));
            }
        }
        Ok(opts)
    }

    /// The crate's order. `ring_buffers`: whether records carry no time of the kernel.
    pub(crate) fn order(&self, ring_buffers: bool) -> Result<Order> {
        let key = match self.key {
            // Records without keys stay with the record before them.
            0 if ring_buffers => Key::Fn(Box::new(|_| None)),
            0 => Key::Time,
            1 => Key::Payload(self.key_offset),
            other => return Err(Failure::invalid(format!("opts->key is {other}, which is no enum pw_key"))),
        };
        let mut order = Order::new().key(key).hold(self.hold()?);
        order = match self.has_numbers {
            0 => order,
            1 => order.numbers(Key::Payload(self.numbers_offset), None),
            other => return Err(Failure::invalid(format!("opts->has_numbers is {other}, not 0 or 1"))),
        };
        order = match self.most_held {
            0 => order,
            1 => order.most_held(0),
            bytes => order.most_held(bytes),
        };
        Ok(if self.latency_ns == 0 { order } else { order.latency(Duration::from_nanos(self.latency_ns)) })
    }

    /// The CPUs that were chosen, each with its key of the map. Empty: all.
    pub(crate) fn chosen(&self) -> Result<Vec<(u32, u32)>> {
        let count = self.cpu_cnt;
        if count > 1 << 16 {
            return Err(Failure::invalid(format!("opts->cpu_cnt is {count}: there are no so many CPUs")));
        }
        let numbers = |from: *const c_int, name: &str| -> Result<Vec<u32>> {
            checked(from, name)?;
            // SAFETY: not null and aligned, and the caller has so many there.
            let given = unsafe { std::slice::from_raw_parts(from, count) };
            let wrong = |number| Failure::invalid(format!("{name} has {number}"));
            given.iter().map(|number| u32::try_from(*number).map_err(|_| wrong(*number))).collect()
        };
        if count == 0 {
            return Ok(vec![]);
        }
        let cpus = numbers(self.cpus, "opts->cpus")?;
        let keys = if self.map_keys.is_null() { cpus.clone() } else { numbers(self.map_keys, "opts->map_keys")? };
        for (all, name) in [(&cpus, "opts->cpus"), (&keys, "opts->map_keys")] {
            let mut seen = HashSet::new();
            if let Some(twice) = all.iter().find(|number| !seen.insert(**number)) {
                return Err(Failure::invalid(format!("{name} has {twice} twice")));
            }
        }
        Ok(cpus.into_iter().zip(keys).collect())
    }

    /// Sets what perf buffers are opened with, but for their size.
    pub(crate) fn set(&self, mut options: RingOptions, chosen: &[(u32, u32)]) -> Result<RingOptions> {
        options = match (self.wakeup_events, self.wakeup_bytes) {
            (0, 0) => options,
            (events, 0) => options.wakeup(Wakeup::Events(events)),
            (0, bytes) => {
                let bytes = u32::try_from(bytes)
                    .map_err(|_| Failure::invalid(format!("opts->wakeup_bytes is {bytes}: 4 GiB at most")))?;
                options.wakeup(Wakeup::Bytes(bytes))
            }
            _ => return Err(Failure::invalid("opts->wakeup_events and opts->wakeup_bytes are both set")),
        };
        if !chosen.is_empty() {
            let keys = chosen.to_vec();
            let key = move |cpu: u32| keys.iter().find(|(of, _)| *of == cpu).map_or(cpu, |(_, key)| *key);
            options = options.cpus(chosen.iter().map(|(cpu, _)| *cpu)).slots(key);
        }
        Ok(options.sample(self.sample_type))
    }

    /// Whether nothing is set that says how events are opened.
    pub(crate) fn opens_nothing(&self) -> bool {
        (self.sample_type, self.wakeup_events, self.wakeup_bytes) == (0, 0, 0) && self.map_keys.is_null()
    }

    fn hold(&self) -> Result<Hold> {
        Ok(match self.hold {
            0 => Hold::FENCE,
            1 => Hold::Fence(Barrier::INTERRUPTS.fence()),
            2 => Hold::Fence(Barrier::Programs.fence()),
            3 => Hold::Fence(Epochs::open(descriptor(self.epochs_fd, "opts->epochs_fd")?)?.fence()),
            4 => Hold::Dense { first: None, fence: Fence::Auto },
            5 => Hold::Lag(Duration::from_nanos(self.lag_ns)),
            7 => Hold::None,
            8 => return Err(Failure::invalid("opts->hold is PW_HOLD_UNORDERED, which only perf buffers have")),
            other => return Err(Failure::invalid(format!("opts->hold is {other}, which is no enum pw_hold"))),
        })
    }

    /// Whether the rings are read one by one.
    pub(crate) fn is_unordered(&self) -> Result<bool> {
        let is = self.hold == pw_hold::PW_HOLD_UNORDERED as u32;
        if is && (self.has_key() || self.has_numbers != 0) {
            return Err(Failure::invalid(
                "opts->key and opts->has_numbers are set, and opts->hold is PW_HOLD_UNORDERED",
            ));
        }
        Ok(is)
    }

    /// Whether the caller chose a key.
    pub(crate) fn has_key(&self) -> bool {
        self.key != 0
    }
}

/// Checks that a descriptor of the caller is open.
pub(crate) fn descriptor<'a>(fd: c_int, name: &str) -> Result<BorrowedFd<'a>> {
    // SAFETY: no memory is involved.
    if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Failure::new(libc::EBADF, format!("{name} is {fd}, which is no open file descriptor")));
    }
    // SAFETY: it is open, and the caller promises to keep it open through the call.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// The context that callbacks get.
#[derive(Clone, Copy)]
pub(crate) struct Context(pub(crate) *mut c_void);
