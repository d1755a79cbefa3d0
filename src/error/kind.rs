//! Kinds of errors: what a program can do about each.

use std::io;

/// What a program can do about an [`Error`](crate::Error). [`Error::hint`](crate::Error::hint) says it for this machine.
///
/// | when | kinds |
/// | --- | --- |
/// | rings, readers, recorders and formats are made | all but `Degraded` |
/// | a reader runs | `Degraded`, after which it goes on by itself; those of opening, for the ring of a CPU that came online; `Forked` |
/// | a recording is read or written | `Recording`, `Output` |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The process lacks a privilege, or a filter or security module refuses the call. Get the privilege that the hint names, or
    /// ask for less: one process, user space only.
    Permission,
    /// What was named is not there: a tracepoint, an event, a function, a file, a field, a process, a thread, a control group. Name
    /// another (the hint has the nearest name), or go without it.
    NotFound,
    /// The request can never be met, on no machine: settings that exclude each other, a size that no ring has, an event that writes
    /// nothing, text that is no format. Fix the program, or what its user has asked for.
    InvalidInput,
    /// This kernel, this hardware or this processor architecture cannot do it. Go without it.
    Unsupported,
    /// A limit is reached: file descriptors, locked memory, memory, space on a disk. Raise it, or ask for less.
    Limit,
    /// What is asked for is in use, or changes too fast. Try again later.
    Busy,
    /// The BPF map does not fit: its type, its flags, its length, or which slots are used. Create it as the message says.
    Map,
    /// The CPU is offline, does not exist, or has no ring. Name other CPUs, or wait until it is online.
    Cpu,
    /// The events cannot be put in order by this key, clock or counter. Choose another, or open the rings with
    /// `PERF_SAMPLE_TIME`.
    Clock,
    /// No fence is possible here, or the only fence that a call takes has failed. Choose another [`Fence`](crate::Fence) or
    /// [`Hold`](crate::Hold).
    Fence,
    /// A reader has a problem and goes on by itself: log it, and read on. Events stay held while fences fail; the reader tries again
    /// after 1 ms, then after twice as long each time, up to a second. A reader that cannot sleep until something happens looks at
    /// its own ticks. A kernel fence stands in for a program that has returned without leaving its epoch. Each is reported at the
    /// first time, the tenth, the hundredth and so on, until it was well 16 times in a row; failing fences every time while a flush or a
    /// deadline waits for them.
    Degraded,
    /// A recording cannot be read. Read another; the hint says how to record one that can be.
    Recording,
    /// A recording cannot be written or completed, and its file is of no use.
    Output,
    /// This process was forked from the one that opened the rings or the file. It does not have the rings' memory
    /// (`VM_DONTCOPY`), and all else it shares with its parent is the parent's. Open others here.
    Forked,
    /// The kernel refused something for any other reason, which [`source`](std::error::Error::source) gives.
    System,
}

impl ErrorKind {
    /// What an error of the system calls for, where nothing more is known.
    pub(crate) fn of(source: &io::Error) -> Self {
        match (source.raw_os_error(), source.kind()) {
            (Some(libc::EMFILE | libc::ENFILE | libc::EDQUOT), _) => Self::Limit,
            (Some(libc::ESRCH), _) => Self::NotFound,
            (_, io::ErrorKind::PermissionDenied) => Self::Permission,
            (_, io::ErrorKind::NotFound) => Self::NotFound,
            (_, io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge) => Self::Limit,
            (_, io::ErrorKind::ResourceBusy | io::ErrorKind::WouldBlock) => Self::Busy,
            (_, io::ErrorKind::Unsupported) => Self::Unsupported,
            (_, io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory) => Self::InvalidInput,
            // Told by this crate. Where the kernel says `EINVAL`, the call may be wrong, or the kernel old.
            (None, io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => Self::InvalidInput,
            _ => Self::System,
        }
    }

    /// The kind that is nearest in the standard library. `source` is the kind of the source, if there is one.
    pub(super) fn in_std(self, source: Option<io::ErrorKind>) -> io::ErrorKind {
        match self {
            Self::Permission => io::ErrorKind::PermissionDenied,
            Self::NotFound | Self::Cpu => io::ErrorKind::NotFound,
            Self::InvalidInput | Self::Map | Self::Clock => io::ErrorKind::InvalidInput,
            Self::Unsupported => io::ErrorKind::Unsupported,
            Self::Limit => io::ErrorKind::QuotaExceeded,
            Self::Busy => io::ErrorKind::ResourceBusy,
            Self::Recording => source.unwrap_or(io::ErrorKind::InvalidData),
            _ => source.unwrap_or(io::ErrorKind::Other),
        }
    }
}
