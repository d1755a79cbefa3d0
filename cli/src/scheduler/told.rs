//! Records of the programs of [`switch`](super::switch): what they have where, and what that says.

use super::is_interrupted;
use crate::trace::calls;
use crate::waits::{Call, File, In, Why};
use perf_event_open_sys::bindings;
use perfweave::{Record, Rings, Source};
use std::sync::Arc;

/// The name of the programs' output, which recordings have. Others have output of BPF programs, too.
pub const NAME: &str = "perfweave-switches";

/// Whether a source of records is these programs' output.
pub fn is_output(source: &Source) -> bool {
    let output = (bindings::PERF_TYPE_SOFTWARE, u64::from(bindings::PERF_COUNT_SW_BPF_OUTPUT));
    source.name() == NAME && (source.attr().type_, source.attr().config) == output
}

/// Which process a recording with these records was made by. Its own threads are among those that switch, because one
/// record of a switch is of two threads. The kernel has no use for this word of a software event.
pub fn recorder(rings: &Rings) -> Option<u32> {
    let source = rings.sources().iter().find(|source| is_output(source))?;
    u32::try_from(source.attr().config1).ok().filter(|process| *process != 0)
}

// What a record begins with, and its fields in bytes behind that. Recordings have them: another meaning takes another
// number.
/// A switch: `u32` who goes, who comes, in which state the first goes, and which switch of its CPU it is.
pub const SWITCH: u32 = 1;
/// The same, and what the thread fell asleep in.
pub const CALL: u32 = 2;
/// Where a CPU stands: `u32` who runs there, twice; whether what comes behind it is not asked for; its last switch.
pub const STANDS: u32 = 4;
/// A signal is delivered: `u32` to whom and which, `i32` the call, `i64` its result.
pub const SIGNAL: u32 = 3;

/// Which of the switches that the kernel has made on this CPU, the low half of it (`rq.nr_switches`).
pub const COUNT: usize = 16;

/// Of a [`STANDS`]: whether it is the last.
#[cfg(feature = "btf")]
pub const LAST: usize = 12;

/// Of a switch: the thread was preempted. Its state may be any.
pub const PREEMPTED: u32 = 1 << 31;

/// Of a [`CALL`]: `u32` device, `i32` number of the call, `u32` flags of the thread, `u64` its six arguments, and the
/// inode of the file that the first argument is the descriptor of.
pub const DEVICE: usize = 20;
pub const NUMBER: usize = 24;
pub const FLAGS: usize = 28;
pub const ARGS: usize = 32;
pub const INODE: usize = 80;

/// The number of a call that a 32-bit program makes: its numbers and registers are others.
pub const COMPAT: i32 = i32::MIN;

/// What a record says. Threads have the kernel's numbers.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// `why`: `None` if the first thread has ended. `count`: which switch of its CPU it is. `call`: in what it falls
    /// asleep.
    Switch { prev: u32, next: u32, why: Option<Why>, count: u32, call: In },
    /// A CPU's last switch so far had this number, and this thread runs there. `is_last`: what comes behind it is not
    /// asked for.
    Stands { runs: u32, count: u32, is_last: bool },
    /// A signal comes to a thread on its way out of a call, or of an interrupt.
    Signal { thread: u32, interrupted: bool },
}

impl Told {
    pub fn is_switch(record: &Record<'_>) -> bool {
        record.payload().and_then(|payload| payload.u32(0)).is_some_and(|kind| matches!(kind, SWITCH | CALL))
    }

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
                    _ if is_on_its_way_out(state, word(FLAGS)?, word(NUMBER)?.cast_signed().into()) => In::Nothing,
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
                Self::Switch { prev, next, why: why(state), count: word(COUNT)?, call }
            }
            STANDS => Self::Stands { runs: word(4)?, count: word(COUNT)?, is_last: word(12)? != 0 },
            SIGNAL => {
                let is_in_call = word(12)?.cast_signed() >= 0;
                let interrupted = is_in_call && is_interrupted(payload.u64(16)?.cast_signed());
                Self::Signal { thread: word(4)?, interrupted }
            }
            _ => return None,
        })
    }
}

/// What a record says, in words.
pub fn words(record: &Record<'_>) -> Option<String> {
    Some(match Told::of(record, 0)? {
        Told::Switch { prev, next, why, call, .. } => {
            let why = match why {
                None => "ends",
                Some(Why::Ready) => "could go on",
                Some(Why::Asleep) => "falls asleep",
                Some(Why::Disk) => "falls asleep, uninterruptible",
                Some(Why::Stopped) => "stops",
                Some(Why::Other) => "waits",
            };
            let call = match call {
                In::Call(call) => calls::name_of(call.number).map_or_else(String::new, |name| format!(" in {name}")),
                _ => String::new(),
            };
            format!("{prev} {why}{call}; {next} runs")
        }
        Told::Stands { runs, .. } => format!("{runs} runs"),
        Told::Signal { thread, interrupted: true } => format!("a signal interrupts the call of {thread}"),
        Told::Signal { thread, .. } => format!("a signal comes to {thread}"),
    })
}

/// Whether a thread has done its call and is on its way out of the kernel, although its registers have the call still:
/// it stops, dumps core, or is killed. One that ends itself is in the call that ends it.
fn is_on_its_way_out(state: u32, flags: u32, number: i64) -> bool {
    // `PF_EXITING`, and `PF_DUMPCORE` and `PF_SIGNALED` (include/linux/sched.h).
    const EXITING: u32 = 4;
    const KILLED: u32 = 0x600;
    let ends_itself = [nix::libc::SYS_exit, nix::libc::SYS_exit_group].contains(&number);
    state & STOPPED != 0 || flags & KILLED != 0 || flags & EXITING != 0 && !ends_itself
}

/// `__TASK_STOPPED` and `__TASK_TRACED`
const STOPPED: u32 = 4 | 8;

/// Why a thread leaves its CPU, by its state as the scheduler has it (include/linux/sched.h). `None`: it has ended.
fn why(state: u32) -> Option<Why> {
    const INTERRUPTIBLE: u32 = 1;
    const UNINTERRUPTIBLE: u32 = 2;
    const DEAD: u32 = 0x80;
    // Where the state is read late, a thread that slept may be woken by now.
    const WAKING: u32 = 0x200;
    const NO_LOAD: u32 = 0x400;
    const LOCK: u32 = 0x1000;
    const FROZEN: u32 = 0x8000;
    match state {
        0 => Some(Why::Ready),
        _ if state & PREEMPTED != 0 => Some(Why::Ready),
        _ if state & DEAD != 0 => None,
        _ if state & (INTERRUPTIBLE | WAKING) != 0 => Some(Why::Asleep),
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
        leaves(number, inode, 1, 0)
    }

    fn leaves(number: i32, inode: u64, state: u32, flags: u32) -> Option<Told> {
        let mut bytes = words(&[CALL, 7, 8, state, 4, 0x801, number.cast_unsigned(), flags]);
        bytes.extend([1_u64, 2, 3, 4, 5, 6, inode].iter().flat_map(|value| value.to_ne_bytes()));
        assert_eq!(bytes.len(), INODE + 8);
        told(&bytes)
    }

    #[test]
    fn a_thread_is_in_the_call_that_its_registers_have_or_in_none() {
        let call = |told: Option<Told>| match told {
            Some(Told::Switch { prev: 7, next: 8, why: Some(_), count: 4, call }) => call,
            other => panic!("{other:?}"),
        };
        let read = |file| In::Call(Arc::new(Call { number: 0, args: [1, 2, 3, 4, 5, 6], entered: 70, file }));
        assert_eq!(call(asleep(0, 0)), read(None));
        assert_eq!(call(asleep(0, 9)), read(Some(File { device: 0x801, inode: 9 })));
        // An exception, and a call whose number means another one here.
        assert_eq!(call(asleep(-1, 0)), In::Nothing);
        assert_eq!(call(asleep(COMPAT, 0)), In::Unknown);
        // It stops, dumps core, is killed; but one that ends is in the call that ends it.
        let out =
            [(4, 0), (8, 0), (2, 0x200), (1, 0x404), (1, 4)].map(|(state, flags)| call(leaves(0, 0, state, flags)));
        assert!(out.iter().all(|call| *call == In::Nothing), "{out:?}");
        assert!(matches!(call(leaves(231, 0, 1, 4)), In::Call(_)) || !cfg!(target_arch = "x86_64"));
        // A thread without a program.
        assert_eq!(call(told(&words(&[SWITCH, 7, 8, 1, 4]))), In::Nothing);
        assert_eq!([told(&words(&[SWITCH, 7, 8])), told(&words(&[9, 7, 8, 1, 4]))], [None, None]);
    }

    #[test]
    fn where_a_cpu_stands_is_the_number_of_its_last_switch() {
        for is_last in [false, true] {
            let stands = told(&words(&[STANDS, 7, 7, is_last.into(), 4]));
            assert_eq!(stands, Some(Told::Stands { runs: 7, count: 4, is_last }));
        }
    }

    #[test]
    fn states_are_those_that_the_tracepoint_tells() {
        let state = |state| match told(&words(&[SWITCH, 7, 8, state, 4])) {
            Some(Told::Switch { why, .. }) => why,
            other => panic!("{other:?}"),
        };
        // R, R+, S, D, I (of the kernel's workers), killable, T, t, P, X, on a lock, frozen, woken.
        let all = [0, PREEMPTED, 1, 2, 0x402, 0x102, 0x104, 8, 0x40, 0x80, 0x1000, 0x8000, 0x200].map(state);
        let [ready, asleep, disk] = [Why::Ready, Why::Asleep, Why::Disk].map(Some);
        let [stopped, other] = [Why::Stopped, Why::Other].map(Some);
        let expected = [ready, ready, asleep, disk, asleep, disk, stopped, stopped, other, None, disk, disk, asleep];
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
