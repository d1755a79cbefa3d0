//! A ring of which the tool has asked for the memory (perf_buffer__buffer). It may read it by itself, or by libbpf's
//! functions, or both: so nothing is remembered here, and records are as the tool has asked for them. They have no
//! order.

use crate::border::Failed;
use crate::calls::{Calls, GO_ON};
use crate::slot::{Asked, HEAD, TAIL};
use crate::sys::{self, Mapping};
use perf_event_open_sys::bindings as perf;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

pub(crate) struct Unordered {
    pub(crate) mapping: Mapping,
    pub(crate) size: usize,
    cpu: u32,
}

impl Unordered {
    /// Opens an event without what order needs.
    pub(crate) fn open(asked: &Asked, cpu: u32) -> Result<(OwnedFd, Self), Failed> {
        let event = sys::open_event(&asked.attr, asked.pid, cpu as c_int)?;
        let mapping = Mapping::new(event.as_raw_fd(), sys::page_size() + asked.size, true, 0)?;
        sys::enable(&event)?;
        Ok((event, Self { mapping, size: asked.size, cpu }))
    }

    fn copy(&self, position: u64, into: &mut [u8]) {
        for (at, byte) in into.iter_mut().enumerate() {
            let offset = (position as usize).wrapping_add(at) & (self.size - 1);
            // SAFETY: within the data area, which follows the header page.
            let place = unsafe { self.mapping.base().add(sys::page_size() + offset) };
            // SAFETY: mapped, and before the head: the kernel does not write there until the tail passes.
            *byte = unsafe { place.read_volatile() };
        }
    }

    /// Gives what is there, from the tail in memory on. Returns what a callback has said other than to go on.
    pub(crate) fn read(&self, calls: &Calls, scratch: &mut Vec<u8>) -> c_int {
        let head = self.mapping.load(HEAD);
        loop {
            let tail = self.mapping.load(TAIL);
            // A tool that has read by itself may have passed the head.
            let there = head.wrapping_sub(tail);
            if there < 8 || there > self.size as u64 {
                return GO_ON;
            }
            let mut header = [0; 8];
            self.copy(tail, &mut header);
            let (kind, size) = fields(header);
            if u64::from(size) < 8 || u64::from(size) > there {
                return GO_ON;
            }
            scratch.clear();
            scratch.resize(size.into(), 0);
            self.copy(tail, scratch);
            let said = self.tell(calls, kind, scratch);
            self.mapping.word(TAIL).store(tail + u64::from(size), Ordering::Release);
            if said != GO_ON {
                return said;
            }
        }
    }

    /// As libbpf calls with a record.
    fn tell(&self, calls: &Calls, kind: u32, record: &mut [u8]) -> c_int {
        let cpu = self.cpu as c_int;
        let word = |at: usize| record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes);
        match (*calls, kind) {
            (Calls::Event { event: Some(event), context }, _) => {
                // SAFETY: the tool's callback; the record lives until it returns.
                unsafe { event(context.0, cpu, record.as_mut_ptr().cast()) }
            }
            (Calls::Sample { sample: Some(sample), context, .. }, perf::PERF_RECORD_SAMPLE) => {
                // PERF_SAMPLE_RAW alone: its size, and the data.
                let size = record.get(8..12).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes);
                let data: *mut c_void =
                    record.get_mut(12..).map_or(std::ptr::null_mut(), |data| data.as_mut_ptr().cast());
                // SAFETY: as above.
                unsafe { sample(context.0, cpu, data, size) };
                GO_ON
            }
            (Calls::Sample { lost: Some(lost), context, .. }, perf::PERF_RECORD_LOST) => {
                // SAFETY: the tool's callback.
                unsafe { lost(context.0, cpu, word(16).unwrap_or(0)) };
                GO_ON
            }
            _ => GO_ON,
        }
    }
}

/// Type and size of `struct perf_event_header`.
fn fields(header: [u8; 8]) -> (u32, u16) {
    let [a, b, c, d, _, _, e, f] = header;
    (u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]))
}
