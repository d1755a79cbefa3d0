//! One CPU: what `kernel/events/ring_buffer.c` does, in memory.

use crate::record::{CPU, ID, IDENTIFIER, Layout, SAMPLE_ORDER, STREAM_ID, TID, TIME, TRAILER_ORDER};
use crate::ring::KernelHalf;
use nix::sys::eventfd::EventFd;
use perf_event_open_sys::bindings::{
    self as sys, PERF_SAMPLE_CALLCHAIN as CHAIN, PERF_SAMPLE_RAW as RAW, PERF_SAMPLE_READ as READ,
};

/// The part of a ring after which a sleeping reader is woken.
const WAKEUP_PART: u64 = 4;

/// What the kernel keeps for one ring, `struct perf_buffer`, and the writers that interrupted each other on its CPU.
pub(super) struct Cpu {
    pub(super) number: u32,
    pub(super) layout: Layout,
    pub(super) half: KernelHalf,
    /// `rb->head`: how far the ring is reserved.
    pub(super) reserved: u64,
    /// `rb->nest`: how many writers have reserved and not yet published.
    pub(super) nest: u32,
    /// `rb->lost`: dropped since the last LOST record.
    pub(super) lost: u64,
    /// `event->lost_samples`: dropped since the start.
    pub(super) dropped: u64,
    /// `rb->wakeup`: where the reader was woken last.
    pub(super) woken: u64,
    /// Who paused output: the kernel's half, or the consumer's.
    pub(super) paused: [bool; 2],
    /// Whether writers find no ring at all: their slots are empty.
    pub(super) detached: bool,
    /// The event's id.
    pub(super) id: u64,
    pub(super) wake: Option<EventFd>,
    /// The process and the thread that run there.
    pub(super) thread: [u32; 2],
    /// Whether it writes backwards, over the oldest records.
    pub(super) backward: bool,
    /// The innermost writer is last.
    pub(super) writers: Vec<Writer>,
}

/// A writer that reads the clock and then writes, inside an RCU read-side section.
pub(super) struct Writer {
    pub(super) section: u64,
    pub(super) time: u64,
    /// Whether it has reserved and not yet published.
    pub(super) nested: bool,
}

/// What a writer outputs.
pub(super) enum Output<'a> {
    Sample(&'a [u8]),
    Other { kind: u32, misc: u16, body: &'a [u8] },
}

/// `PERF_RECORD_MISC_KERNEL`, which BPF output carries.
pub(super) const MISC_KERNEL: u16 = sys::PERF_RECORD_MISC_KERNEL as u16;

impl Cpu {
    pub(super) fn new(
        number: u32,
        id: u64,
        half: KernelHalf,
        wake: Option<EventFd>,
        layout: Layout,
        backward: bool,
    ) -> Self {
        Self {
            number,
            layout,
            half,
            reserved: 0,
            nest: 0,
            lost: 0,
            dropped: 0,
            woken: 0,
            paused: [false; 2],
            detached: false,
            id,
            wake,
            thread: [std::process::id(); 2],
            backward,
            writers: Vec::new(),
        }
    }

    /// `perf_output_begin`, the copying, and for a writer's second record the `perf_output_end` of its first.
    pub(super) fn output(&mut self, output: &Output<'_>) -> bool {
        let writer = self.writers.last_mut().expect("a writer that has begun");
        let time = writer.time;
        if std::mem::take(&mut writer.nested) {
            self.put_handle();
        }
        if self.detached {
            return false;
        }
        if self.paused.contains(&true) {
            self.drop_one();
            return false;
        }
        let record = self.record(output, time);
        // The header's size is what is reserved, even if it is cut short.
        let size = u64::from(u16::from_ne_bytes([record[6], record[7]]));
        let lost = if self.lost > 0 { self.lost_record(time) } else { Vec::new() };
        let needed = size + lost.len() as u64;
        if !self.backward && !self.has_space(needed) {
            self.drop_one();
            return false;
        }
        let begin = if self.backward { self.reserved.wrapping_sub(needed) } else { self.reserved };
        self.lost = 0;
        self.half.write(begin, &lost);
        self.store(begin.wrapping_add(lost.len() as u64), &record, size);
        self.reserved = if self.backward { begin } else { begin.wrapping_add(needed) };
        self.nest += 1;
        self.writers.last_mut().into_iter().for_each(|writer| writer.nested = true);
        true
    }

    /// `perf_output_end`, and the end of the section.
    pub(super) fn end(&mut self) -> u64 {
        let writer = self.writers.pop().expect("a writer that has begun");
        if writer.nested {
            self.put_handle();
        }
        writer.section
    }

    /// `perf_output_put_handle`: the head is published by the outermost writer alone.
    pub(super) fn put_handle(&mut self) {
        self.nest -= 1;
        if self.nest > 0 {
            return;
        }
        self.half.publish(self.reserved);
        if self.backward {
            return;
        }
        let watermark = self.half.size() / WAKEUP_PART;
        if self.reserved.wrapping_sub(self.woken) > watermark {
            self.woken = self.woken.wrapping_add(watermark);
            if let Some(wake) = &self.wake {
                // An eventfd is full only at 2^64, and is readable then too.
                let _ = wake.write(1);
            }
        }
    }

    pub(super) fn drop_one(&mut self) {
        self.lost += 1;
        self.dropped += 1;
    }

    /// `ring_buffer_has_space`: CIRC_SPACE(head, tail, size) >= needed, which keeps one byte free.
    pub(super) fn has_space(&self, needed: u64) -> bool {
        let mask = self.half.size() - 1;
        self.half.tail().wrapping_sub(self.reserved.wrapping_add(1)) & mask >= needed
    }

    /// Writes a record whose reservation is `size` bytes. Padding is not written: the old bytes stay.
    pub(super) fn store(&mut self, position: u64, record: &[u8], size: u64) {
        if record.len() as u64 <= size {
            self.half.write(position, record);
        } else {
            self.half.scribble(position, record);
        }
    }

    /// The bytes of a record, without the padding after it, which the header counts.
    pub(super) fn record(&self, output: &Output<'_>, time: u64) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        let (kind, misc) = match output {
            Output::Sample(payload) => {
                let has = |field: u32| self.layout.sample_type() & u64::from(field) != 0;
                assert!(!(has(READ) || has(CHAIN) && has(RAW)), "READ, or a chain beside raw data, is not simulated");
                self.fields(&mut bytes, &SAMPLE_ORDER, time);
                if has(RAW) {
                    // perf_sample_save_raw_data: the data and its 4-byte length are rounded up to a multiple of 8.
                    let raw_size = (payload.len() + 4).next_multiple_of(8) - 4;
                    bytes.extend((raw_size as u32).to_ne_bytes());
                }
                bytes.extend_from_slice(if has(RAW) || has(CHAIN) { payload } else { &[] });
                (sys::PERF_RECORD_SAMPLE, MISC_KERNEL)
            }
            Output::Other { kind, misc, body } => {
                bytes.extend_from_slice(body);
                self.trailer(&mut bytes, time);
                (*kind, *misc)
            }
        };
        let size = bytes.len().next_multiple_of(8);
        Self::header(&mut bytes, kind, misc, size);
        bytes
    }

    /// `struct { header; u64 id; u64 lost; struct sample_id; }`. Its time is that of the record after it.
    pub(super) fn lost_record(&self, time: u64) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        bytes.extend(self.id.to_ne_bytes());
        bytes.extend(self.lost.to_ne_bytes());
        self.trailer(&mut bytes, time);
        let size = bytes.len();
        Self::header(&mut bytes, sys::PERF_RECORD_LOST, 0, size);
        bytes
    }

    pub(super) fn header(bytes: &mut [u8], kind: u32, misc: u16, size: usize) {
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..6].copy_from_slice(&misc.to_ne_bytes());
        // A u16, cut short as in the kernel.
        bytes[6..8].copy_from_slice(&(size as u16).to_ne_bytes());
    }

    pub(super) fn trailer(&self, bytes: &mut Vec<u8>, time: u64) {
        if self.layout.sample_id_all() {
            self.fields(bytes, &TRAILER_ORDER, time);
        }
    }

    pub(super) fn fields(&self, bytes: &mut Vec<u8>, order: &[u64], time: u64) {
        for field in order.iter().filter(|field| self.layout.sample_type() & **field != 0) {
            let value = match *field {
                TIME => time,
                ID | STREAM_ID | IDENTIFIER => self.id,
                CPU => pair([self.number, 0]),
                TID => pair(self.thread),
                _ => 0,
            };
            bytes.extend(value.to_ne_bytes());
        }
    }
}

/// Two u32 in memory order.
fn pair(words: [u32; 2]) -> u64 {
    u64::from_ne_bytes(words.map(u32::to_ne_bytes).as_flattened().try_into().expect("eight bytes"))
}
