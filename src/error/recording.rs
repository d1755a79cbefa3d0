//! What can be wrong with a recording, with the numbers and the cure.

use std::io;

/// Why a recording of perf(1) cannot be read: [`Error::Unreadable`](crate::Error::Unreadable).
///
/// Bytes among the records that cannot be a record are no error: they are a [`Damage`](crate::Damage) event.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// The file cannot be opened or read.
    #[error("{errno}")]
    Io {
        /// The kernel's error.
        errno: io::Error,
    },
    /// A pipe, a socket or a device, which cannot be read twice.
    #[error("it is no regular file (write what comes through a pipe into a file first)")]
    NotAFile,
    /// A directory, as `perf record --threads` writes.
    #[error("it is a directory (record without --threads, into one file)")]
    Directory,
    /// The file does not begin with `PERFILE2`.
    #[error(
        "it begins with {magic:02x?} and not with PERFILE2: it is no recording of perf(1), or one from before Linux 3.0"
    )]
    Magic {
        /// The first bytes of the file. Fewer bytes are filled up with zeros.
        magic: [u8; 8],
    },
    /// The file was recorded on a machine of the other byte order.
    #[error("it is of a machine with the other byte order (read it on a machine with that order)")]
    ByteOrder,
    /// perf was killed before it wrote how long the records are.
    #[error("perf did not finish it (end `perf record` with SIGINT or SIGTERM, not with SIGKILL)")]
    Unfinished,
    /// The file ends too early.
    #[error("it is {len} bytes long, and its {what} end at {end} (the file was cut short: copy it anew)")]
    Truncated {
        /// What goes past the end of the file.
        what: &'static str,
        /// Where that would end, in bytes.
        end: u64,
        /// The length of the file, in bytes.
        len: u64,
    },
    /// Something in front of or behind the records contradicts itself.
    #[error("its {what} make no sense at byte {at} (try `perf script -i`; if that reads it, report this)")]
    Malformed {
        /// What makes no sense.
        what: &'static str,
        /// Where in the file, in bytes.
        at: u64,
    },
    /// The records are compressed (`perf record -z`). `perf inject` of perf 6.1 leaves them so.
    #[error("its records are compressed (record without -z)")]
    Compressed,
    /// No event is described.
    #[error("it describes no event (a recording in pipe mode must be kept from its first byte on)")]
    NoEvents,
    /// Several events have records of different layouts, and records do not say which event they are of.
    #[error("its events have records of different layouts without PERF_SAMPLE_IDENTIFIER at the same place")]
    NoIdentifier,
    /// Events are stamped by different clocks, so that their times say nothing about their order.
    #[error("its events are stamped by different clocks: {clocks:?} (record with one `-k CLOCK`)")]
    Clocks {
        /// `perf_event_attr.clockid` of two events; `None` for the perf clock.
        clocks: [Option<i32>; 2],
    },
    /// The records name more CPUs than Linux can have, so the CPUs are forged or misread.
    #[error("its records name more than {most} CPUs")]
    Cpus {
        /// How many can be read.
        most: usize,
    },
    /// The records, or what describes them, do not fit into memory.
    #[error(
        "its contents take {bytes} bytes of memory, of which {available} are available here (record less at a time: perf record \
         --switch-output; or raise what is least of free memory, the control group's memory.max, and RLIMIT_AS)"
    )]
    Memory {
        /// Bytes that they take.
        bytes: u64,
        /// Bytes that can be had: the smallest of `MemAvailable` of `/proc/meminfo`, of what the control group's `memory.max`
        /// leaves, and of what `RLIMIT_AS` and `RLIMIT_DATA` leave.
        available: u64,
    },
    /// Somebody wrote into the file while it was read.
    #[error("it changed while it was read (wait for `perf record` to end)")]
    Changed,
}

/// Why a recording cannot be written: [`Error::Unwritable`](crate::Error::Unwritable).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Unwritable {
    /// The file cannot be made or written.
    #[error("{errno}")]
    Io {
        /// The kernel's error.
        errno: io::Error,
    },
    /// A pipe, a socket or a device. The begin of a recording is written last.
    #[error("it is no regular file (write into one, and copy that)")]
    NotAFile,
    /// The format of a tracepoint cannot be read, without which perf(1) does not read the file.
    #[error(
        "no format of tracepoint {id}: {errno} (tracefs must be mounted, and readable: mount -o remount,gid=GROUP,mode=750 /sys/kernel/tracing)"
    )]
    Tracepoint {
        /// The tracepoint's number.
        id: u64,
        /// The error of reading tracefs.
        errno: io::Error,
    },
    /// Records of several layouts, or of several events, that do not say which event they are of. perf(1) cannot read
    /// such a file.
    #[error("its records are of several events and carry no PERF_SAMPLE_IDENTIFIER (write the rings into a file each)")]
    NoIdentifier,
    /// The record is too long to have its CPU or an instruction pointer added. The record was not written, and the writer can
    /// go on.
    #[error(
        "a record of {size} bytes is too long to have its CPU added (ask for it: PERF_SAMPLE_CPU | PERF_SAMPLE_IP in \
         sample_type)"
    )]
    TooLong {
        /// Bytes of the record.
        size: u16,
    },
}
