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

/// Of a [`CALL`]: `u32` device and `i32` number of the call, `u64` its six arguments, and the inode
/// of the file that the first argument is the descriptor of.
pub const DEVICE: usize = 16;
pub const NUMBER: usize = 20;
pub const ARGS: usize = 24;
pub const INODE: usize = 72;

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
                        number if number < 0 => In::Nothing,
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

#[cfg(test)]
mod tests {
    use super::*;
    use perfweave::{Hold, Key, Layout, Merge, Order, sim};

    /// What a record of these bytes says.
    fn told(bytes: &[u8]) -> Option<Told> {
        let kernel = sim::Kernel::with(&[0], 4096, Layout::RAW);
        let mut merge = Merge::new(kernel.rings(), Order::new().key(Key::Payload(0)).hold(Hold::None)).unwrap();
        kernel.emit(0, 0, bytes);
        merge.refresh(0);
        merge.next().and_then(|event| Told::of(&event.record().unwrap(), 70))
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// A thread falls asleep in the call with this number, on the file with this inode.
    fn asleep(number: i32, inode: u64) -> Option<Told> {
        let mut bytes = words(&[CALL, 7, 8, 1, 0x801, number.cast_unsigned()]);
        bytes.extend([1_u64, 2, 3, 4, 5, 6, inode].iter().flat_map(|value| value.to_ne_bytes()));
        assert_eq!(bytes.len(), INODE + 8);
        told(&bytes)
    }

    #[test]
    fn a_thread_is_in_the_call_that_its_registers_have_or_in_none() {
        let call = |told: Option<Told>| match told {
            Some(Told::Switch { prev: 7, next: 8, why: Some(Why::Asleep), call }) => call,
            other => panic!("{other:?}"),
        };
        let read = |file| In::Call(Arc::new(Call { number: 0, args: [1, 2, 3, 4, 5, 6], entered: 70, file }));
        assert_eq!(call(asleep(0, 0)), read(None));
        assert_eq!(call(asleep(0, 9)), read(Some(File { device: 0x801, inode: 9 })));
        // An exception, and a call whose number means another one here.
        assert_eq!(call(asleep(-1, 0)), In::Nothing);
        assert_eq!(call(asleep(COMPAT, 0)), In::Unknown);
        // A thread without a program.
        assert_eq!(call(told(&words(&[SWITCH, 7, 8, 1]))), In::Nothing);
        assert_eq!([told(&words(&[SWITCH, 7, 8])), told(&words(&[9, 7, 8, 1]))], [None, None]);
    }

    #[test]
    fn states_are_those_that_the_tracepoint_tells() {
        let state = |state| match told(&words(&[SWITCH, 7, 8, state])) {
            Some(Told::Switch { why, .. }) => why,
            other => panic!("{other:?}"),
        };
        // R, R+, S, D, I (of the kernel's workers), killable, T, t, P, X, on a lock, frozen.
        let all = [0, PREEMPTED, 1, 2, 0x402, 0x102, 0x104, 8, 0x40, 0x80, 0x1000, 0x8000].map(state);
        let [ready, asleep, disk] = [Why::Ready, Why::Asleep, Why::Disk].map(Some);
        let [stopped, other] = [Why::Stopped, Why::Other].map(Some);
        let expected = [ready, ready, asleep, disk, asleep, disk, stopped, stopped, other, None, disk, disk];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_signal_ends_a_call_if_the_result_says_so() {
        let of = |call: i32, result: i64| {
            let mut bytes = words(&[SIGNAL, 7, 10, call.cast_unsigned()]);
            bytes.extend(result.to_ne_bytes());
            told(&bytes)
        };
        let signal = |interrupted| Some(Told::Signal { thread: 7, interrupted });
        assert_eq!([of(0, -512), of(0, -4), of(0, 1), of(-1, -512)], [true, true, false, false].map(signal));
    }
}
