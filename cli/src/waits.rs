//! One account of waiting: for each thread, intervals without overlap or hole, of what it does; for each CPU, who ran
//! there.
//!
//! It is made of what the scheduler tells, in its order. Nothing spans a time in which records are missing: all is
//! unknown from the last record before the loss until the next fact. Threads have their numbers in the first PID
//! namespace here, which tracepoints have.

mod account;
mod added;
mod cpu;
mod history;
mod near;
mod packets;
mod thread;

use crate::packed::{Packed, packed};
pub use account::Account;
pub use cpu::Kinds;
pub use history::Stretch;
use std::num::NonZeroU8;
use std::sync::Arc;

/// A thread: its number, and which of the threads that had this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Who {
    pub thread: u32,
    pub life: u32,
}

/// Why a thread left a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// It waits for something, and a signal can wake it.
    Asleep,
    /// It cannot be interrupted.
    Disk,
    /// It could run on.
    Ready,
    /// By a signal, or by a debugger.
    Stopped,
    /// It is parked, for example.
    Other,
}

/// What a thread does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    Runs {
        cpu: u32,
    },
    /// It could run and does not.
    Ready {
        /// Where it ran then: the CPU that it waited for, at least in the end. `None` if it has not run yet.
        cpu: Option<u32>,
        /// It was taken off its CPU. Otherwise it was woken.
        taken_off: bool,
        /// Its control group's quota was used up.
        held: bool,
    },
    Blocked {
        /// Any but [`Why::Ready`].
        why: Why,
        call: In,
        /// What ended it, as far as it is known.
        end: Option<Waker>,
        /// The number of the signal that it was sent, if the wake-up was for one.
        signal: Option<NonZeroU8>,
        /// It was woken on its way to sleep, or may have been, and slept nevertheless. Otherwise nobody could have
        /// woken it again, unless it has run meanwhile, where a switch has no record.
        nevertheless: bool,
        /// Where it fell asleep, and where the thread stood that woke it: what [`Account::stands`] was told, or 0.
        stacks: [u32; 2],
    },
    Unknown(Cause),
}

/// Why nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// Nothing has told of it yet.
    First,
    /// Records are lost.
    Loss,
    /// A CPU was online and not traced.
    Untraced,
    /// A record came late, so what was concluded before it is void.
    Late,
    /// The kernel left a record of a switch out, or nobody records that thread.
    Unseen,
    /// It was too long ago for this account's memory.
    Forgotten,
    /// The thread has ended, or is not there yet.
    Gone,
}

impl Cause {
    pub fn words(self) -> &'static str {
        match self {
            Self::First => "nothing has told of it before",
            Self::Loss => "records are lost",
            Self::Untraced => "a CPU was not traced",
            Self::Late => "a record came late",
            Self::Unseen => "a switch has no record",
            Self::Forgotten => "it is too long ago for what is kept",
            Self::Gone => "the thread was not there",
        }
    }
}

/// In which system call a thread is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum In {
    #[default]
    Unknown,
    /// In none: it waits in a page fault, for example.
    Nothing,
    Call(Arc<Call>),
}

/// A system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub number: i64,
    pub args: [u64; 6],
    /// When it was entered; when its thread fell asleep in it, where only that is told.
    pub entered: u64,
    /// The file behind the descriptor that is its first argument, if that is told.
    pub file: Option<File>,
}

/// A file, as the kernel knows it: its device (`s_dev`), and its inode there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct File {
    pub device: u32,
    pub inode: u64,
}

/// What wakes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waker {
    Thread(Who),
    /// An interrupt, and its name if it is known. The thread that it interrupts has no part in it.
    Interrupt(Option<Arc<str>>),
}

/// A wake-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wake {
    pub time: u64,
    pub by: Waker,
    /// What kind of an interrupt it is by, if it is.
    pub interrupt: Option<&'static str>,
    /// The process of the thread that ran, and its own number, as the recorder's namespace has them. A thread that ends
    /// may have none.
    pub numbers: (u32, Option<u32>),
    /// Where the waker stands: [`Account::stands`].
    pub stack: u32,
    /// The signal that it is for.
    pub signal: Option<NonZeroU8>,
}

/// When a thread left a CPU, why, and its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub time: u64,
    pub why: Why,
    pub process: u32,
    pub cpu: u32,
    /// Where it stood: [`Account::stands`].
    pub stack: u32,
}

/// A thread begins to run, as far as what was before is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub who: Who,
    pub left: Option<Left>,
    /// What made it run, unless nothing did, or nothing says what.
    pub wake: Option<Wake>,
}

impl Ran {
    /// Since when it could run: since it was woken, but not while it was still on its way to sleep.
    pub fn ready(&self) -> Option<u64> {
        match (self.left, &self.wake) {
            (Some(left), _) if left.why == Why::Ready => Some(left.time),
            (left, Some(wake)) => Some(left.map_or(wake.time, |left| wake.time.max(left.time))),
            (_, None) => None,
        }
    }
}

/// Who has a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Has {
    Thread(Who),
    /// No thread.
    Idle,
    Unknown(Cause),
}

packed!(Who { thread, life });
packed!(Why: Asleep, Disk, Ready, Stopped, Other);
packed!(Cause: First, Loss, Untraced, Late, Unseen, Forgotten, Gone);
packed!(File { device, inode });
packed!(Call { number, args, entered, file });

impl Packed for What {
    fn pack(&self, out: &mut Vec<u8>) {
        match self {
            Self::Runs { cpu } => (0u8, *cpu).pack(out),
            Self::Ready { cpu, taken_off, held } => ((1u8, *cpu), (*taken_off, *held)).pack(out),
            Self::Blocked { why, call, end, signal, nevertheless, stacks: [slept, woken] } => {
                let call = match call {
                    In::Unknown => None,
                    In::Nothing => Some(None),
                    In::Call(call) => Some(Some(Call::clone(call))),
                };
                ((2u8, *why), (call, end.clone())).pack(out);
                ((signal.map(NonZeroU8::get), *nevertheless), (*slept, *woken)).pack(out);
            }
            Self::Unknown(cause) => (3u8, *cause).pack(out),
        }
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        match u8::unpack(bytes) {
            0 => Self::Runs { cpu: u32::unpack(bytes) },
            1 => {
                let (cpu, (taken_off, held)) = Packed::unpack(bytes);
                Self::Ready { cpu, taken_off, held }
            }
            2 => {
                let (why, (call, end)) = Packed::unpack(bytes);
                let ((signal, nevertheless), (slept, woken)): ((Option<u8>, _), _) = Packed::unpack(bytes);
                let call = match call {
                    None => In::Unknown,
                    Some(None) => In::Nothing,
                    Some(Some(call)) => In::Call(Arc::new(call)),
                };
                let signal = signal.and_then(NonZeroU8::new);
                Self::Blocked { why, call, end, signal, nevertheless, stacks: [slept, woken] }
            }
            _ => Self::Unknown(Cause::unpack(bytes)),
        }
    }
}

impl Packed for Waker {
    fn pack(&self, out: &mut Vec<u8>) {
        match self {
            Self::Thread(who) => (true, *who).pack(out),
            Self::Interrupt(name) => (false, name.clone()).pack(out),
        }
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        if bool::unpack(bytes) { Self::Thread(Who::unpack(bytes)) } else { Self::Interrupt(Option::unpack(bytes)) }
    }
}

impl Packed for Has {
    fn pack(&self, out: &mut Vec<u8>) {
        match self {
            Self::Thread(who) => (0u8, *who).pack(out),
            Self::Idle => 1u8.pack(out),
            Self::Unknown(cause) => (2u8, *cause).pack(out),
        }
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        match u8::unpack(bytes) {
            0 => Self::Thread(Who::unpack(bytes)),
            1 => Self::Idle,
            _ => Self::Unknown(Cause::unpack(bytes)),
        }
    }
}

#[cfg(test)]
mod tests;
