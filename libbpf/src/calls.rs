//! What a tool is told with: its callbacks.

use crate::slot::Asked;
use perf_event_open_sys::bindings as perf;
use perfweave::{Bytes, Layout, Record};
use std::ffi::{c_int, c_void};
use std::io::Write;

pub(crate) type SampleFn = Option<unsafe extern "C-unwind" fn(*mut c_void, c_int, *mut c_void, u32)>;
pub(crate) type LostFn = Option<unsafe extern "C-unwind" fn(*mut c_void, c_int, u64)>;
pub(crate) type EventFn = Option<unsafe extern "C-unwind" fn(*mut c_void, c_int, *mut c_void) -> c_int>;
/// libbcc's.
pub(crate) type RawFn = Option<unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, c_int)>;
pub(crate) type CountFn = Option<unsafe extern "C-unwind" fn(*mut c_void, u64)>;

/// The tool's own pointer, which goes back to it.
#[derive(Clone, Copy)]
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: never followed here. The tool calls from the threads that it likes.
unsafe impl Send for Context {}

/// What a callback says: LIBBPF_PERF_EVENT_CONT of libbpf. Everything else ends the call.
pub(crate) const GO_ON: c_int = -2;

#[derive(Clone, Copy)]
pub(crate) enum Calls {
    /// perf_buffer__new
    Sample { sample: SampleFn, lost: LostFn, context: Context },
    /// perf_buffer__new_raw
    Event { event: EventFn, context: Context },
    /// bpf_open_perf_buffer
    Bcc { raw: RawFn, lost: CountFn, context: Context },
}

impl Calls {
    /// Gives a record. `scratch`: for what does not lie in one piece.
    pub(crate) fn record(&self, asked: &Asked, record: &Record<'_>, scratch: &mut Vec<u8>) -> c_int {
        let cpu = record.cpu() as c_int;
        if let Self::Event { event, context } = *self {
            let Some(event) = event else { return GO_ON };
            scratch.clear();
            let whole = if asked.adds_time() {
                record.copy_without_time(scratch);
                scratch.as_mut_ptr().cast()
            } else {
                in_one_piece(record.as_bytes(), scratch)
            };
            // SAFETY: the tool's callback; the record lives until it returns.
            return unsafe { event(context.0, cpu, whole) };
        }
        let Some(payload) = record.payload().filter(|_| record.kind() == perf::PERF_RECORD_SAMPLE) else {
            return GO_ON;
        };
        let (size, data) = (payload.len(), in_one_piece(payload, scratch));
        match *self {
            // SAFETY: the tool's callback; the bytes live until it returns.
            Self::Sample { sample: Some(sample), context, .. } => unsafe { sample(context.0, cpu, data, size as u32) },
            // SAFETY: as above.
            Self::Bcc { raw: Some(raw), context, .. } => unsafe { raw(context.0, data, size as c_int) },
            _ => {}
        }
        GO_ON
    }

    /// Tells how many records were lost.
    pub(crate) fn lost(&self, asked: &Asked, cpu: u32, count: u64, id: u64) -> c_int {
        let cpu = cpu as c_int;
        match *self {
            Self::Event { event: Some(event), context } => {
                let mut record = lost_record(asked, count, id);
                // SAFETY: the tool's callback; the record lives until it returns.
                return unsafe { event(context.0, cpu, record.as_mut_ptr().cast()) };
            }
            // SAFETY: the tool's callback.
            Self::Sample { lost: Some(lost), context, .. } => unsafe { lost(context.0, cpu, count) },
            // SAFETY: the tool's callback.
            Self::Bcc { lost: Some(lost), context, .. } => unsafe { lost(context.0, count) },
            // As libbcc prints it. A tool whose standard error is closed goes on.
            Self::Bcc { lost: None, .. } => {
                let _ = writeln!(std::io::stderr(), "Possibly lost {count} samples");
            }
            _ => {}
        }
        GO_ON
    }
}

/// A PERF_RECORD_LOST as the kernel would have written it now. Of its trailer (`sample_id_all`) everything is 0.
fn lost_record(asked: &Asked, count: u64, id: u64) -> Vec<u64> {
    let attr = &asked.attr;
    let trailer = Layout::new(attr.sample_type, attr.sample_id_all() != 0, attr.read_format).trailer_len();
    let mut record = vec![0, id, count];
    record.resize(3 + trailer.div_ceil(8), 0);
    let header = perf::perf_event_header { type_: perf::PERF_RECORD_LOST, misc: 0, size: (record.len() * 8) as u16 };
    // SAFETY: a header is as long as a word, and has no padding.
    record[0] = unsafe { std::mem::transmute::<perf::perf_event_header, u64>(header) };
    record
}

/// Bytes as C takes them. Copied only if they wrap.
fn in_one_piece(bytes: Bytes<'_>, scratch: &mut Vec<u8>) -> *mut c_void {
    let (head, tail) = bytes.as_slices();
    if tail.is_empty() {
        return head.as_ptr().cast_mut().cast();
    }
    scratch.clear();
    scratch.extend_from_slice(head);
    scratch.extend_from_slice(tail);
    scratch.as_mut_ptr().cast()
}
