//! Statistics and the ledger.

use crate::border::checked;
use crate::border::{Failure, give, nothing, number};
use crate::buffer::{enter, pw_buffer};
use crate::event::{pw_event, pw_kind, pw_slice};
use std::ffi::{c_int, c_void};
use std::io::Write as _;

/// Counts of a buffer so far.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "names of C")]
pub struct pw_stats {
    /// Records yielded.
    pub records: u64,
    /// Late records among them.
    pub late: u64,
    /// The largest lateness, in units of the key.
    pub max_late: u64,
    /// Records that the kernel dropped, as far as events have told.
    pub lost: u64,
    /// Missing numbers, if opts.has_numbers or PW_HOLD_DENSE is set; also those that records in flight may still
    /// bring.
    pub missing: u64,
    /// Damage events.
    pub damaged: u64,
    /// Bytes that copies of held records take now, and the most that they took.
    pub memory: u64,
    /// See memory.
    pub most_memory: u64,
    /// Looks at all rings.
    pub refreshes: u64,
    /// Fences that ended, and fences that failed.
    pub fences: u64,
    /// See fences.
    pub fences_failed: u64,
    /// Events that are held.
    pub held: u64,
}

/// An account of everything written by one CPU's programs, or by all.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "names of C")]
pub struct pw_account {
    /// The CPU; -1 for all together, and for a ring buffer that CPUs share.
    pub cpu: c_int,
    /// Whether lost is the kernel's own count.
    pub exact: u32,
    /// Records yielded.
    pub yielded: u64,
    /// Records in the rings that are not yielded yet.
    pub held: u64,
    /// Records that the kernel dropped.
    pub lost: u64,
    /// Damage events.
    pub damaged: u64,
    /// Missing numbers.
    pub missing: u64,
    /// Missing numbers that lost does not explain.
    pub unexplained: u64,
    /// Nanoseconds in which the CPU was online and not traced.
    pub untraced_ns: u64,
    /// Bytes at which its rings would have held all that waited for its rule, so that nothing had to be copied out of
    /// them. 0 if nothing had to wait.
    pub needed: u64,
}

/// Copies the statistics. stats_size: sizeof(struct pw_stats). Returns 0 or a negative number as pw_buffer__poll. Does
/// not block.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__stats(buffer: *mut pw_buffer, stats: *mut pw_stats, stats_size: usize) -> c_int {
    number(|| {
        enter(buffer, |_, inside| {
            let (reader, _) = inside.reader()?;
            let status = reader.status();
            let all = status.total();
            let told = pw_stats {
                records: all.yielded,
                late: all.late,
                max_late: all.max_late,
                lost: all.lost - all.unreported,
                missing: all.missing,
                damaged: all.damaged,
                memory: status.memory as u64,
                most_memory: status.most_memory as u64,
                refreshes: status.refreshes,
                fences: status.fences,
                fences_failed: status.fences_failed,
                held: status.held as u64,
            };
            give(&told, stats, stats_size, "stats").map(|()| 0)
        })
    })
}

fn account(of: &pw::Account) -> pw_account {
    pw_account {
        cpu: of.cpu.map_or(-1, |cpu| cpu as c_int),
        exact: of.exact.into(),
        yielded: of.yielded,
        held: of.held,
        lost: of.lost,
        damaged: of.damaged,
        missing: of.missing,
        unexplained: of.unexplained,
        untraced_ns: u64::try_from(of.untraced.as_nanos()).unwrap_or(u64::MAX),
        needed: of.needed,
    }
}

/// Copies the ledger: what was written until now, and what came of it. First the account of all CPUs together, then
/// that of each.
///
/// accounts: an array of most elements of account_size bytes, which is sizeof(struct pw_account). Returns how many
/// accounts there are, which can be more than most, or a negative number as pw_buffer__poll. Asks the kernel for its
/// counts of losses, which interrupts every CPU. Events lent before are no longer valid. Blocks for system calls only.
#[unsafe(no_mangle)]
pub extern "C" fn pw_buffer__ledger(
    buffer: *mut pw_buffer,
    accounts: *mut pw_account,
    account_size: usize,
    most: c_int,
) -> c_int {
    number(|| {
        enter(buffer, |_, inside| {
            if accounts.is_null() || !accounts.is_aligned() || !account_size.is_multiple_of(align_of::<pw_account>()) {
                return Err(Failure::invalid(
                    "accounts is NULL or not aligned, or account_size is not sizeof(struct pw_account)",
                ));
            }
            let ledger = inside.reader()?.0.ledger()?;
            let all = std::iter::once(account(&ledger.total())).chain(ledger.accounts.iter().map(account));
            for (at, account) in all.enumerate().take(usize::try_from(most).unwrap_or(0)) {
                // SAFETY: the caller's array has `most` elements of this size, and `at` is less.
                let out = unsafe { accounts.byte_add(at * account_size) };
                give(&account, out, account_size, "accounts")?;
            }
            Ok(ledger.accounts.len() as c_int + 1)
        })
    })
}

/// For opts.notice_cb: prints what an event says on standard error, as one line. It prints nothing for PW_RECORD,
/// and nothing for PW_FLUSHED unless events are missing. ctx is not used. Blocks as write(2) does.
#[unsafe(no_mangle)]
pub extern "C" fn pw_print_notice(ctx: *mut c_void, event: *const pw_event) {
    let _ = ctx;
    nothing(|| {
        let event = checked(event, "the event")?;
        let cpu = if event.cpu < 0 { String::new() } else { format!("CPU {}: ", event.cpu) };
        if let Some(text) = said(event) {
            // Nobody is there to be told of an error.
            let _ = writeln!(std::io::stderr(), "perfweave: {cpu}{text}");
        }
        Ok(())
    });
}

/// What a notice says.
fn said(event: &pw_event) -> Option<String> {
    let is = |kind: pw_kind| event.kind == kind as u32;
    let pw_slice { data, size } = event.data[0];
    Some(if is(pw_kind::PW_LOST) {
        format!("the kernel dropped {} records: the ring was full", event.count)
    } else if is(pw_kind::PW_GAP) {
        format!("{} numbers are missing, {} to {}", event.count, event.first, event.last)
    } else if is(pw_kind::PW_ANOMALY) {
        format!("number {} came where {} should have come", event.last, event.first)
    } else if is(pw_kind::PW_DAMAGE) {
        format!("{} bytes are no record", size + event.data[1].size)
    } else if is(pw_kind::PW_FLUSHED) && event.count > 0 {
        "the flush is not complete: a program has not committed what it reserved in a ring buffer".into()
    } else if is(pw_kind::PW_UNTRACED) && event.last == 0 {
        "is not traced from now on".into()
    } else if is(pw_kind::PW_UNTRACED) {
        format!("was not traced for up to {} ns", event.last)
    } else if is(pw_kind::PW_PROBLEM) && size > 0 {
        // SAFETY: the text of an event that the library lent.
        String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }).into_owned()
    } else {
        return None;
    })
}
