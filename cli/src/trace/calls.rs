//! System calls by name, with their arguments as the kernel names them and their results as strace(1) prints them.

use super::program::Pointers;
use super::strings::{Bytes, Copied, quoted};
use crate::exact::Exact;
use crate::waits;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sched::CloneFlags;
use nix::sys::mman::{MapFlags, ProtFlags};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType};
use nix::sys::wait::WaitPidFlag;
use nix::unistd::AccessFlags;
use perfweave_events::{Field, Format};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fmt::Write;
use syscalls::Sysno;

/// The system calls seen so far. Names of arguments are read from tracefs when a call comes for the first time.
#[derive(Debug, Default)]
pub struct Calls(HashMap<i64, Call>);

/// A system call.
#[derive(Debug)]
pub struct Call {
    pub name: String,
    /// `None` if tracefs does not have the call: then the six registers are printed.
    args: Option<Vec<(String, How)>>,
}

/// How an argument is printed.
#[derive(Debug, Clone, Copy)]
enum How {
    /// A number of so many bits: the register may have others above them.
    Signed(u32),
    Unsigned(u32),
    Hex(u32),
    /// The mode of a file.
    Octal,
    /// A directory: `AT_FDCWD` or a descriptor.
    Directory,
    Named(fn(u64) -> String),
    /// The same of a number of 32 bits, which JSON has as it is.
    Known {
        text: fn(u64) -> Option<String>,
        is_signed: bool,
    },
    /// An address. What lies there is printed, if it was copied.
    String,
    /// The same of a buffer, whose length is the next argument.
    Buffer,
}

impl Calls {
    pub fn of(&mut self, number: i64) -> &Call {
        self.0.entry(number).or_insert_with(|| Call::new(number))
    }

    /// `flock(fd: 7</run/lock>, cmd: 2)`. `file`: what is behind its descriptor, if that is known.
    pub fn words(&mut self, call: &waits::Call, file: Option<&str>) -> String {
        let of = self.of(call.number);
        format!("{}({})", of.name, of.args_with(&call.args, None, file))
    }
}

/// The number of a system call by its name.
pub fn number(name: &str) -> Option<i64> {
    name.parse::<Sysno>().ok().map(|call| i64::from(call.id()))
}

impl Call {
    fn new(number: i64) -> Self {
        let Some(name) = name_of(number) else {
            return Self { name: format!("syscall_{number}"), args: None };
        };
        // The tracepoint has the name of the kernel's function: newstat for stat, sendfile64 for sendfile, umount for
        // umount2.
        let of_kernel = [name.into(), format!("new{name}"), format!("{name}64"), name.trim_end_matches('2').into()];
        let format = of_kernel.iter().find_map(|name| Format::read(&format!("syscalls:sys_enter_{name}")).ok());
        // A call without arguments has no tracepoint of its own on some kernels; one with them has the pointers'
        // strings on others.
        let is_argument = |field: &&Field| !field.name().starts_with("__") && !field.name().starts_with("common_");
        let args = format.map(|format| {
            let args = format.fields().iter().filter(is_argument);
            args.map(|field| (field.name().to_owned(), How::of(name, field))).collect()
        });
        Self { name: name.to_owned(), args }
    }

    /// `dfd: AT_FDCWD, filename: "/etc/passwd"`.
    pub fn args(&self, values: &[u64; 6], copied: Option<&Copied>) -> String {
        self.args_with(values, copied, None)
    }

    /// The descriptor that it is called with.
    pub fn descriptor(&self, values: &[u64; 6]) -> Option<i32> {
        let (name, _) = self.args.as_ref()?.first()?;
        ["fd", "epfd", "fildes"].contains(&name.as_str()).then_some(values[0] as i32)
    }

    /// `file`: what is behind that descriptor.
    fn args_with(&self, values: &[u64; 6], copied: Option<&Copied>, file: Option<&str>) -> String {
        // As strace(1) has them: a name may not end the brackets.
        let mut file = file.map(|file| format!("<{}>", file.replace('<', "\\74").replace('>', "\\76")));
        let mut line = String::new();
        let mut arg = |name: &str, text: String| {
            let comma = if line.is_empty() { "" } else { ", " };
            let colon = if name.is_empty() { "" } else { ": " };
            let _ = write!(line, "{comma}{name}{colon}{text}");
        };
        match self.args {
            Some(_) => self.each(values, copied).for_each(|(name, how, value, bytes)| {
                let file = file.take().unwrap_or_default();
                arg(name, bytes.map_or_else(|| how.text(value), quoted) + &file);
            }),
            None => values.iter().for_each(|value| arg("", How::Hex(64).text(*value))),
        }
        line
    }

    /// The arguments. What their strings do not say is noted for `args` of an object.
    pub fn json(&self, values: &[u64; 6], copied: Option<&Copied>, exact: &mut Exact) -> Value {
        if self.args.is_none() {
            return Value::from(values.as_slice());
        }
        let object = self.each(values, copied).map(|(name, how, value, bytes)| {
            let value = match bytes {
                Some((bytes, more)) => exact.string(&["args", name], bytes, more),
                None => how.json(value),
            };
            (name.to_owned(), value)
        });
        Value::Object(object.collect::<Map<_, _>>())
    }

    /// Each argument with its value, and what it points to.
    fn each<'a>(
        &'a self,
        values: &'a [u64; 6],
        copied: Option<&'a Copied>,
    ) -> impl Iterator<Item = (&'a str, How, u64, Option<Bytes<'a>>)> {
        let mut pointer = 0;
        self.args.iter().flatten().zip(values).enumerate().map(move |(at, ((name, how), value))| {
            let bytes = copied.and_then(|copied| match how {
                How::String => copied.string(pointer, *value),
                How::Buffer => copied.buffer(pointer, *value, *values.get(at + 1)?),
                _ => None,
            });
            pointer += usize::from(how.points());
            (name.as_str(), *how, *value, bytes)
        })
    }

    /// Whether an argument points to a string or a buffer.
    pub fn points(&self) -> bool {
        self.args.iter().flatten().any(|(_, how)| how.points())
    }

    /// The arguments that point to something, for the program that copies it. `registers`: where each argument is.
    pub fn pointers(&self, registers: &[u32; 6]) -> Pointers {
        let mut pointers = Pointers::default();
        let pointing = self.args.iter().flatten().zip(registers).enumerate().filter(|(_, ((_, how), _))| how.points());
        for (at, ((_, how), register)) in pointing.take(2) {
            let len = registers.get(at + 1).filter(|_| matches!(how, How::Buffer)).map_or(0, |len| len + 1);
            let entry = 1 + 2 * pointers[0] as usize;
            (pointers[entry], pointers[entry + 1]) = (*register, len);
            pointers[0] += 1;
        }
        pointers
    }

    /// `3`, `-1 ENOENT (No such file or directory)`, `0x7f12` for calls that give an address.
    pub fn result(&self, result: i64) -> String {
        match error(result) {
            Some((name, text)) if result < -511 => format!("? {name} ({text})"),
            Some((name, text)) => format!("-1 {name} ({text})"),
            None if matches!(self.name.as_str(), "mmap" | "brk" | "mremap" | "shmat") => format!("{result:#x}"),
            // The mask that was there before.
            None if self.name == "umask" => How::Octal.text(result as u64),
            None => result.to_string(),
        }
    }
}

/// The name and the meaning of a result that is an error.
pub fn error(result: i64) -> Option<(String, String)> {
    // include/linux/errno.h: these never leave the kernel. The call goes on after a signal, or fails with EINTR.
    let restarts = match result {
        -512 => "ERESTARTSYS",
        -513 => "ERESTARTNOINTR",
        -514 => "ERESTARTNOHAND",
        -516 => "ERESTART_RESTARTBLOCK",
        -4095..0 => {
            let number = (-result) as i32;
            // The C library's words, as strace has them: nix says of ENOTTY that it is no typewriter.
            let text = std::io::Error::from_raw_os_error(number).to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            return Some((format!("{:?}", Errno::from_raw(number)), text.to_owned()));
        }
        _ => return None,
    };
    Some((restarts.into(), "interrupted by a signal".into()))
}

impl How {
    fn of(call: &str, field: &Field) -> Self {
        let kind = field.type_name();
        if let (Some(text), number @ (Self::Signed(32) | Self::Unsigned(32))) =
            (known(call, field.name()), Self::number(kind))
        {
            return Self::Known { text, is_signed: matches!(number, Self::Signed(_)) };
        }
        match (call, field.name()) {
            ("write" | "pwrite64", "buf") | ("sendto", "buff") | ("mq_timedsend", "u_msg_ptr") => Self::Buffer,
            (_, name) if kind == "const char *" && name != "buf" => Self::String,
            _ if kind.contains('*') => Self::Hex(64),
            ("open" | "openat" | "pipe2" | "dup3" | "open_by_handle_at", "flags") => Self::Named(open),
            ("mmap" | "mprotect" | "pkey_mprotect", "prot") => Self::Named(protection),
            ("mmap", "flags") => Self::Named(mapping),
            ("clone" | "unshare", "clone_flags" | "unshare_flags") => Self::Named(clone),
            ("socket" | "socketpair", "family") => Self::Named(family),
            ("socket" | "socketpair", "type") => Self::Named(socket),
            ("wait4" | "waitid", "options") => Self::Named(wait),
            (
                "newfstatat" | "statx" | "unlinkat" | "linkat" | "fchownat" | "execveat" | "faccessat2",
                "flag" | "flags",
            ) => Self::Named(at),
            (_, "sig" | "signum") => Self::Named(signal),
            (_, "dfd" | "newdfd" | "olddfd" | "fd_dir") => Self::Directory,
            (_, "mode" | "mask") if kind == "umode_t" || call == "umask" => Self::Octal,
            // -1 is a descriptor, whatever type it has.
            (_, name) if name.ends_with("fd") || name.starts_with("fd_") || name == "fildes" => Self::Signed(32),
            (_, name) => match Self::number(kind) {
                Self::Signed(bits) | Self::Unsigned(bits)
                    if ["addr", "brk", "flags", "newsp", "tls", "start"].contains(&name) =>
                {
                    Self::Hex(bits)
                }
                number => number,
            },
        }
    }

    /// By the name of the type: every field has eight bytes and no sign. A type that is not known has all bits.
    fn number(kind: &str) -> Self {
        match kind.trim_start_matches("const ") {
            "int" | "s32" | "__s32" | "pid_t" | "key_t" | "key_serial_t" | "clockid_t" | "timer_t" | "mqd_t"
            | "rwf_t" => Self::Signed(32),
            kind if kind.starts_with("enum ") => Self::Signed(32),
            "unsigned int" | "unsigned" | "u32" | "__u32" | "uid_t" | "gid_t" | "qid_t" => Self::Unsigned(32),
            "unsigned short" | "u16" | "__u16" | "umode_t" => Self::Unsigned(16),
            "size_t" | "u64" | "__u64" | "aio_context_t" => Self::Unsigned(64),
            // A pointer by another name.
            "cap_user_header_t" | "cap_user_data_t" => Self::Hex(64),
            kind if kind.starts_with("unsigned ") => Self::Unsigned(64),
            _ => Self::Signed(64),
        }
    }

    fn points(self) -> bool {
        matches!(self, Self::String | Self::Buffer)
    }

    /// What the kernel takes of a register.
    fn value(self, register: u64) -> i128 {
        let cut = |bits: u32| register << (64 - bits) >> (64 - bits);
        match self {
            Self::Known { is_signed: true, .. } => Self::Signed(32).value(register),
            Self::Known { .. } => Self::Unsigned(32).value(register),
            Self::Signed(bits) => ((register as i64) << (64 - bits) >> (64 - bits)).into(),
            Self::Directory => (register as i32).into(),
            // -1 as calls have it that take no number, and sizes without bound.
            Self::Unsigned(32) if register as u32 == u32::MAX => -1,
            Self::Unsigned(64) => (register as i64).into(),
            Self::Unsigned(bits) | Self::Hex(bits) => cut(bits).into(),
            Self::Octal => cut(16).into(),
            Self::Named(_) | Self::String | Self::Buffer => register.into(),
        }
    }

    fn json(self, register: u64) -> Value {
        let value = self.value(register);
        match self {
            Self::Named(text) => Value::from(text(register)),
            _ if value < 0 => Value::from(value as i64),
            _ => Value::from(value as u64),
        }
    }

    fn text(self, register: u64) -> String {
        let value = self.value(register);
        match self {
            Self::Named(text) => text(register),
            Self::Known { text, .. } => text(register).unwrap_or_else(|| value.to_string()),
            Self::Directory if value == nix::libc::AT_FDCWD.into() => "AT_FDCWD".into(),
            Self::Hex(_) | Self::String | Self::Buffer if value != 0 => format!("{value:#x}"),
            Self::Octal if value != 0 => format!("0{value:o}"),
            _ => value.to_string(),
        }
    }
}

/// `A|B|0x40`, or the name of no flag.
macro_rules! flags {
    ($name:ident, $type:ty, $none:literal) => {
        fn $name(bits: u64) -> String {
            let flags = <$type>::from_bits_retain(bits as _);
            let mut names: Vec<_> = flags.iter_names().map(|(name, _)| name.to_owned()).collect();
            let rest = flags.difference(<$type>::all()).bits();
            if rest != 0 {
                names.push(format!("{rest:#x}"));
            }
            if names.is_empty() { $none.into() } else { names.join("|") }
        }
    };
}

flags!(open_flags, OFlag, "");
flags!(protection, ProtFlags, "PROT_NONE");
flags!(mapping, MapFlags, "0");
flags!(clone_flags, CloneFlags, "");
flags!(at, AtFlags, "0");
flags!(wait, WaitPidFlag, "0");
flags!(socket_flags, SockFlag, "");

/// The name of a number, as the crate libc has it from the kernel's headers.
macro_rules! values {
    ($name:ident, $($value:ident)+) => {
        fn $name(number: u64) -> Option<String> {
            let known = [$((nix::libc::$value as u32, stringify!($value))),+];
            known.iter().find(|(value, _)| *value == number as u32).map(|(_, name)| (*name).to_owned())
        }
    };
}

values!(whence, SEEK_SET SEEK_CUR SEEK_END SEEK_DATA SEEK_HOLE);
values!(advice, MADV_NORMAL MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MADV_DONTNEED MADV_FREE MADV_REMOVE MADV_DONTFORK
    MADV_DOFORK MADV_MERGEABLE MADV_UNMERGEABLE MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTDUMP MADV_DODUMP
    MADV_WIPEONFORK MADV_KEEPONFORK MADV_COLD MADV_PAGEOUT MADV_POPULATE_READ MADV_POPULATE_WRITE);
values!(resource, RLIMIT_CPU RLIMIT_FSIZE RLIMIT_DATA RLIMIT_STACK RLIMIT_CORE RLIMIT_RSS RLIMIT_NPROC RLIMIT_NOFILE
    RLIMIT_MEMLOCK RLIMIT_AS RLIMIT_LOCKS RLIMIT_SIGPENDING RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME);
values!(fcntl, F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_GETLK F_SETLK F_SETLKW F_SETOWN F_GETOWN F_DUPFD_CLOEXEC
    F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS F_GET_SEALS F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW F_SETLEASE F_GETLEASE
    F_NOTIFY);
values!(ioctl, TCGETS TCSETS TCSETSW TCSETSF TIOCGWINSZ TIOCSWINSZ TIOCGPGRP TIOCSPGRP TIOCSCTTY TIOCNOTTY FIONREAD
    FIONBIO FIOCLEX FIONCLEX);
values!(flock_of, LOCK_SH LOCK_EX LOCK_UN);
values!(futex_of, FUTEX_WAIT FUTEX_WAKE FUTEX_REQUEUE FUTEX_CMP_REQUEUE FUTEX_WAKE_OP FUTEX_LOCK_PI FUTEX_UNLOCK_PI
    FUTEX_TRYLOCK_PI FUTEX_WAIT_BITSET FUTEX_WAKE_BITSET FUTEX_WAIT_REQUEUE_PI FUTEX_CMP_REQUEUE_PI);
values!(how_masked, SIG_BLOCK SIG_UNBLOCK SIG_SETMASK);
flags!(access_flags, AccessFlags, "F_OK");

fn access(bits: u64) -> Option<String> {
    Some(access_flags(bits))
}

fn flock(bits: u64) -> Option<String> {
    const NOT_BLOCKING: u64 = nix::libc::LOCK_NB as u64;
    let name = flock_of(bits & !NOT_BLOCKING)?;
    Some(if bits & NOT_BLOCKING == 0 { name } else { name + "|LOCK_NB" })
}

fn futex(bits: u64) -> Option<String> {
    const PRIVATE: u64 = nix::libc::FUTEX_PRIVATE_FLAG as u64;
    const REALTIME: u64 = nix::libc::FUTEX_CLOCK_REALTIME as u64;
    let name = futex_of(bits & !(PRIVATE | REALTIME))?;
    let private = if bits & PRIVATE == 0 { "" } else { "_PRIVATE" };
    Some(name + private + if bits & REALTIME == 0 { "" } else { "|FUTEX_CLOCK_REALTIME" })
}

/// How an argument is called whose numbers have names.
fn known(call: &str, argument: &str) -> Option<fn(u64) -> Option<String>> {
    Some(match (call, argument) {
        ("lseek", "whence") => whence,
        ("access" | "faccessat" | "faccessat2", "mode") => access,
        ("madvise" | "process_madvise", "behavior") => advice,
        ("prlimit64" | "getrlimit" | "setrlimit", "resource") => resource,
        ("fcntl", "cmd") => fcntl,
        ("ioctl", "cmd") => ioctl,
        ("flock", "cmd") => flock,
        ("futex", "op") => futex,
        ("rt_sigprocmask", "how") => how_masked,
        _ => return None,
    })
}

/// Two texts with `|` in between, unless one is empty.
fn both(one: String, other: String) -> String {
    if one.is_empty() || other.is_empty() { one + &other } else { format!("{one}|{other}") }
}

fn open(bits: u64) -> String {
    // Reading alone is no flag: both bits are 0. O_LARGEFILE is 0 in 64-bit programs.
    let access = match bits & 3 {
        0 => "O_RDONLY",
        1 => "O_WRONLY",
        2 => "O_RDWR",
        _ => "O_ACCMODE",
    };
    both(access.into(), open_flags(bits & !3))
}

fn clone(bits: u64) -> String {
    // The lowest byte is the signal at the child's end.
    let signal = if bits & 0xff == 0 { String::new() } else { signal(bits & 0xff) };
    let text = both(clone_flags(bits & !0xff), signal);
    if text.is_empty() { "0".into() } else { text }
}

pub fn signal(number: u64) -> String {
    Signal::try_from(number as i32).map_or_else(|_| number.to_string(), |signal| signal.as_str().to_owned())
}

fn family(number: u64) -> String {
    AddressFamily::from_i32(number as i32)
        .map_or_else(|| number.to_string(), |family| format!("AF_{family:?}").to_uppercase())
}

fn socket(bits: u64) -> String {
    let kind = SockType::try_from((bits & 0xf) as i32);
    let kind = kind.map_or_else(|_| (bits & 0xf).to_string(), |kind| format!("SOCK_{kind:?}").to_uppercase());
    both(kind, socket_flags(bits & !0xf))
}

/// Whether it is execve or execveat.
pub fn is_exec(number: i64) -> bool {
    matches!(name_of(number), Some("execve" | "execveat"))
}

/// Whether it makes a thread, which returns from it as well.
pub fn is_fork(number: i64) -> bool {
    matches!(name_of(number), Some("clone" | "clone3" | "fork" | "vfork"))
}

/// Whether it ends a signal's handler.
pub fn is_sigreturn(number: i64) -> bool {
    name_of(number) == Some("rt_sigreturn")
}

/// The name of a system call by its number.
pub fn name_of(number: i64) -> Option<&'static str> {
    usize::try_from(number).ok().and_then(Sysno::new).map(|call| call.name())
}

#[cfg(test)]
mod tests {
    use super::{Call, How, error};
    use perfweave_events::Format;
    use serde_json::{Value, json};

    /// An argument of this type, as text and in JSON.
    fn printed(kind: &str, name: &str, register: u64) -> (String, Value) {
        let format = format!("name: x\nID: 1\nformat:\n\tfield:{kind} {name};\toffset:16;\tsize:8;\tsigned:0;\n");
        let how = How::of("call", &format.parse::<Format>().unwrap().fields()[0]);
        (how.text(register), how.json(register))
    }

    /// Numbers have the names of the kernel's headers as text, and are numbers in JSON.
    #[test]
    fn numbers_have_the_names_of_the_headers() {
        for (call, kind, name, register, text) in [
            ("lseek", "unsigned int", "whence", 2, "SEEK_END"),
            ("lseek", "unsigned int", "whence", 77, "77"),
            ("access", "int", "mode", 5, "R_OK|X_OK"),
            ("access", "int", "mode", 0, "F_OK"),
            ("madvise", "int", "behavior", 4, "MADV_DONTNEED"),
            ("prlimit64", "unsigned int", "resource", 7, "RLIMIT_NOFILE"),
            ("fcntl", "unsigned int", "cmd", 2, "F_SETFD"),
            ("ioctl", "unsigned int", "cmd", 21531, "FIONREAD"),
            ("flock", "unsigned int", "cmd", 6, "LOCK_EX|LOCK_NB"),
            ("futex", "int", "op", 129, "FUTEX_WAKE_PRIVATE"),
            ("futex", "int", "op", 0x189, "FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME"),
            ("rt_sigprocmask", "int", "how", 2, "SIG_SETMASK"),
        ] {
            let format = format!("name: x\nID: 1\nformat:\n\tfield:{kind} {name};\toffset:16;\tsize:8;\tsigned:0;\n");
            let how = How::of(call, &format.parse::<Format>().unwrap().fields()[0]);
            assert_eq!((how.text(register), how.json(register)), (text.to_owned(), json!(register)), "{call}");
        }
        assert_eq!(error(-25).unwrap(), ("ENOTTY".to_owned(), "Inappropriate ioctl for device".to_owned()));
        let umask = Call { name: "umask".into(), args: None };
        assert_eq!([0o22, 0].map(|mask| umask.result(mask)), ["022", "0"]);
    }

    /// The type says how many bits of a register are the argument, and whether it can be negative.
    #[test]
    fn arguments_have_the_width_and_the_sign_of_their_type() {
        const LARGE: u64 = 5 << 30;
        const DIRTY: u64 = 0xdead_beef_ffff_ff9c;
        for (kinds, register, value) in [
            ("off_t,loff_t,long,ssize_t,s64", LARGE, json!(LARGE)),
            ("off_t,loff_t,long,const long", LARGE.wrapping_neg(), json!(-(LARGE as i64))),
            ("off_t,unknown_t", (7 << 30) + 1, json!((7u64 << 30) + 1)),
            ("off_t,long,ssize_t", 1 << 63, json!(i64::MIN)),
            (
                "int,pid_t,key_t,key_serial_t,__s32,const int,clockid_t,const clockid_t,timer_t,mqd_t,rwf_t,enum e",
                DIRTY,
                json!(-100),
            ),
            ("unsigned int,unsigned,u32,__u32,const __u32,uid_t,gid_t,qid_t", DIRTY, json!(4_294_967_196u32)),
            ("unsigned int,uid_t,gid_t", 0xdead_beef_ffff_ffff, json!(-1)),
            ("umode_t,unsigned short", DIRTY, json!(0xff9c)),
            ("unsigned long,size_t,const size_t,u64,__u64,aio_context_t", LARGE, json!(LARGE)),
            // What is no number of 32 bits is none.
            ("unsigned long,size_t,u64", u32::MAX.into(), json!(u32::MAX)),
            ("unsigned long,size_t,u64", u64::MAX, json!(-1)),
            ("int,long,unsigned long,umode_t,size_t", 0, json!(0)),
        ] {
            for kind in kinds.split(',') {
                assert_eq!(
                    printed(kind, "value", register),
                    (value.to_string(), value.clone()),
                    "{kind} {register:#x}"
                );
            }
        }
        for (kind, name, register, text, value) in [
            ("int", "dfd", DIRTY, "AT_FDCWD", json!(-100)),
            ("int", "dfd", 3, "3", json!(3)),
            ("unsigned int", "fd", DIRTY, "-100", json!(-100)),
            ("unsigned long", "fd", u32::MAX.into(), "-1", json!(-1)),
            ("int", "flags", DIRTY, "0xffffff9c", json!(0xffff_ff9cu32)),
            ("unsigned long", "flags", DIRTY, "0xdeadbeefffffff9c", json!(DIRTY)),
            ("void *", "ptr", DIRTY, "0xdeadbeefffffff9c", json!(DIRTY)),
            ("cap_user_header_t", "header", 16, "0x10", json!(16)),
            ("const char *", "name", 0, "0", json!(0)),
            ("umode_t", "mode", 0xdead_0000_0000_01a4, "0644", json!(0o644)),
        ] {
            assert_eq!(printed(kind, name, register), (text.to_owned(), value), "{kind} {name} {register:#x}");
        }
    }
}
