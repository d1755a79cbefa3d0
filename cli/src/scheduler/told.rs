//! Records of the programs of [`switch`](super::switch): what they have where, and what that says.

use super::is_interrupted;
use crate::waits::{Call, File, In, Why};
use perfweave::Record;
use std::sync::Arc;

// What a record begins with, and its fields in bytes behind that.
/// A switch: `u32` who goes, who comes, and in which state the first goes.
pub const SWITCH: u32 = 1;
/// The same, and what the thread fell asleep in.
pub const CALL: u32 = 2;
/// A signal is delivered: `u32` to whom and which, `i32` the call, `i64` its result.
pub const SIGNAL: u32 = 3;

/// Of a switch: it was taken off its CPU, whatever its state.
pub const PREEMPTED: u32 = 1 << 31;

/// Of a [`CALL`]: `u32` device and `i32` number of the call, `u64` its six arguments, the caller's address, and the inode
/// of the file that the first argument is the descriptor of.
pub const DEVICE: usize = 16;
pub const NUMBER: usize = 20;
pub const ARGS: usize = 24;
pub const CALLER: usize = 72;
pub const INODE: usize = 80;
pub const LENGTH: usize = 88;

/// The number of a call that a 32-bit program makes: its numbers and registers are others.
pub const COMPAT: i32 = i32::MIN;

/// What a record says. Threads have the kernel's numbers.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// `why`: `None` if the first thread has ended. `call`: in what it falls asleep, if that was asked for.
    Switch { prev: u32, next: u32, why: Option<Why>, call: In },
    /// A signal comes to a thread on its way out of a call, or of an interrupt.
    Signal { thread: u32, interrupted: bool },
}

impl Told {
    pub fn of(record: &Record<'_>, time: u64) -> Option<Self> {
        let payload = record.payload()?;
        let word = |at: usize| payload.u32(at);
        let kind = word(0)?;
        Some(match kind {
            SWITCH | CALL => {
                let (prev, next, state) = (word(4)?, word(8)?, word(12)?);
                let call = match kind {
                    // A thread of the kernel, or one that takes a call over from a program (io_uring).
                    SWITCH => In::Nothing,
                    _ => match word(NUMBER)?.cast_signed() {
                        COMPAT => In::Unknown,
                        // What comes by an exception has no number.
                        ..0 => In::Nothing,
                        number => {
                            let mut args = [0; 6];
                            for (place, arg) in args.iter_mut().enumerate() {
                                *arg = payload.u64(ARGS + 8 * place)?;
                            }
                            let file = File { device: word(DEVICE)?, inode: payload.u64(INODE)? };
                            let file = (file.inode != 0).then_some(file);
                            In::Call(Arc::new(Call { number: number.into(), args, entered: time, file }))
                        }
                    },
                };
                Self::Switch { prev, next, why: why(state), call }
            }
            SIGNAL => {
                let is_in_call = word(12)?.cast_signed() >= 0;
                let interrupted = is_in_call && is_interrupted(payload.u64(16)?.cast_signed());
                Self::Signal { thread: word(4)?, interrupted }
            }
            _ => return None,
        })
    }
}

/// Why a thread leaves its CPU, by its state as the scheduler has it (include/linux/sched.h). `None`: it has ended.
fn why(state: u32) -> Option<Why> {
    const INTERRUPTIBLE: u32 = 1;
    const UNINTERRUPTIBLE: u32 = 2;
    const STOPPED: u32 = 4 | 8;
    const DEAD: u32 = 0x80;
    const NO_LOAD: u32 = 0x400;
    const LOCK: u32 = 0x1000;
    const FROZEN: u32 = 0x8000;
    match state {
        0 => Some(Why::Ready),
        _ if state & PREEMPTED != 0 => Some(Why::Ready),
        _ if state & DEAD != 0 => None,
        _ if state & INTERRUPTIBLE != 0 => Some(Why::Asleep),
        // One that does not count as load sleeps, and is only not to be disturbed by signals.
        _ if state & UNINTERRUPTIBLE != 0 => Some(if state & NO_LOAD != 0 { Why::Asleep } else { Why::Disk }),
        _ if state & (LOCK | FROZEN) != 0 => Some(Why::Disk),
        _ if state & STOPPED != 0 => Some(Why::Stopped),
        _ => Some(Why::Other),
    }
}
