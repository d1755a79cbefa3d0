//! Kinds of errors: what a program can do about each.

use std::io;

/// What a program can do about an [`Error`](crate::Error). [`Error::hint`](crate::Error::hint) says it for this
/// machine.
///
/// | when | kinds |
/// | --- | --- |
/// | rings, readers, recorders and formats are made | all but `Degraded` |
/// | a reader runs | `Degraded`, after which it goes on by itself; those of opening, for the ring of a CPU that came online; `Forked` |
/// | a recording is read or written, by the package perfweave-perf-data | `Recording` |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The process lacks a privilege, or a filter or security module refuses the call. Get the privilege that the hint
    /// names, or ask for less: one process, user space only.
    Permission,
    /// The named thing does not exist: a tracepoint, an event, a function, a file, a field, a process, a thread, a
    /// control group, a CPU that is online. Name another (the hint has the nearest name), wait until it is there, or go
    /// on without it.
    NotFound,
    /// No machine can meet the request: settings that exclude each other, a size that no ring has, an event that writes
    /// nothing, a BPF map of the wrong type or length, records without the key that would order them, text that is no
    /// format. Fix the program, or the input of its user.
    InvalidInput,
    /// This kernel, this hardware, this processor architecture or this kind of ring cannot do it. Go without it. If no
    /// fence is possible, choose another [`Fence`](crate::Fence) or [`Hold`](crate::Hold).
    Unsupported,
    /// There is not enough: file descriptors, locked memory, memory, space on a disk are used up, or a resource is in
    /// use, or changes too fast. Raise the limit, ask for less, or try again later.
    Limit,
    /// A reader has a problem and goes on by itself. Log the error and read on.
    ///
    /// Events stay held while fences fail. The reader tries again after 1 ms, then after twice as long each time, up to
    /// a second. A reader that cannot sleep until an event comes refreshes at its own ticks. A grace period of the
    /// kernel replaces the proof for a program that has returned without leaving its epoch, or sleeps inside. A proof
    /// that has not come for half a minute is a problem, too: the error names the program's CPU, or the fence.
    ///
    /// Each problem is reported at the first time, the tenth, the hundredth and so on, until 16 attempts in a row have
    /// succeeded. While a flush or a deadline waits for fences, every failure is reported.
    Degraded,
    /// A recording cannot be read: read another; the hint says how to record one that can be. Or it cannot be written
    /// or completed: a full disk, a limit. What was written until then can be read.
    Recording,
    /// This process was forked from the one that opened the rings or the file. It does not have the rings' memory
    /// (`VM_DONTCOPY`), and it shares everything else with its parent. Open new ones here.
    Forked,
    /// The kernel refused something for any other reason, which [`source`](std::error::Error::source) gives.
    System,
}

impl ErrorKind {
    /// The kind of an error of the system, if nothing more is known.
    pub fn of(source: &io::Error) -> Self {
        match (source.raw_os_error(), source.kind()) {
            (Some(libc::EMFILE | libc::ENFILE | libc::EDQUOT), _) => Self::Limit,
            (Some(libc::ESRCH), _) => Self::NotFound,
            (_, io::ErrorKind::PermissionDenied) => Self::Permission,
            (_, io::ErrorKind::NotFound) => Self::NotFound,
            (_, io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge) => Self::Limit,
            (_, io::ErrorKind::ResourceBusy | io::ErrorKind::WouldBlock) => Self::Limit,
            (_, io::ErrorKind::Unsupported) => Self::Unsupported,
            (_, io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory) => Self::InvalidInput,
            // From this crate. If the kernel says `EINVAL`, either the call is wrong or the kernel is old.
            (None, io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => Self::InvalidInput,
            _ => Self::System,
        }
    }

    /// The nearest kind in the standard library. `source` is the kind of the source, if there is one.
    pub(super) fn in_std(self, source: Option<io::ErrorKind>) -> io::ErrorKind {
        match self {
            Self::Permission => io::ErrorKind::PermissionDenied,
            Self::NotFound => io::ErrorKind::NotFound,
            Self::InvalidInput => io::ErrorKind::InvalidInput,
            Self::Unsupported => io::ErrorKind::Unsupported,
            Self::Limit if source == Some(io::ErrorKind::ResourceBusy) => io::ErrorKind::ResourceBusy,
            Self::Limit => io::ErrorKind::QuotaExceeded,
            Self::Recording => source.unwrap_or(io::ErrorKind::InvalidData),
            _ => source.unwrap_or(io::ErrorKind::Other),
        }
    }
}
