//! System calls by name, with their arguments as the kernel names them and their results as strace(1) prints them.

use super::named::{
    F_GET_SEALS, F_GETPIPE_SZ, F_OFD_SETLK, F_OFD_SETLKW, FICLONE, FIOCLEX, FIONCLEX, FUTEX_COMMAND, NS_GET_PARENT,
    NS_GET_USERNS, TMPFILE, capability, clone, dumpable, flags, known, message_flags, netlink, open, option_at, policy,
    protocol,
};
use super::opened::Opened;
use super::program::opened::Descriptors;
use super::program::{Length, MOST_CALLS, NAME, Pointers, STACK, Special, VARIABLES_OF, VECTOR};
use super::shapes::{self, Seen, Shape, socket_address};
use super::strings::{Bytes, Copied, Quotes};
use crate::exact::Exact;
use crate::waits;
use linux_raw_sys::general as kernel;
use nix::errno::Errno;
use nix::libc;
use perfweave_events::{Field, Format, Tracefs};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use syscalls::Sysno;

/// The system calls seen so far. Names of arguments are read from tracefs when a call comes for the first time.
#[derive(Debug, Default)]
pub struct Calls {
    known: HashMap<i64, Call>,
    /// Where their arguments are told, once it was looked for.
    tracefs: Option<Option<Tracefs>>,
}

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
    Descriptor,
    Named(fn(u64) -> String),
    /// The same of a number of 32 bits, which JSON has as it is.
    Known {
        text: fn(u64) -> Option<String>,
        is_signed: bool,
    },
    /// An address, or `NULL`.
    Pointer,
    /// An address. What lies there is printed, if it was copied.
    String,
    /// The same of a buffer, whose length is the next argument.
    Buffer,
    /// The same of a buffer that the call has filled, as far as its result says.
    Filled,
    /// The same of a struct or list.
    Shape(Shape),
    /// The strings of a new program, and how many variables it has.
    Strings,
    Variables,
    /// An I/O vector, or a message with one: whether the call has filled it.
    Vector(bool),
    Message(bool),
    /// A struct with signals.
    Mask,
}

/// What an argument points to.
#[derive(Debug)]
enum Pointed<'a> {
    Nothing,
    Path(Bytes<'a>),
    Buffer(Bytes<'a>),
    /// Bytes that are no text.
    Random(Bytes<'a>),
    /// Strings, and whether there are more.
    List(Vec<Bytes<'a>>, bool),
    Text(String),
}

/// The values of a call, and what they point to.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    pub values: &'a [u64; 6],
    pub copied: Option<&'a Copied>,
    /// `None`: it has not returned.
    pub result: Option<i64>,
    /// The path of the program that it has executed.
    pub executed: Option<&'a [u8]>,
    /// What is behind its descriptors.
    pub opened: Option<&'a Opened>,
}

impl<'a> Values<'a> {
    /// Of a call that has not returned, without what it points to.
    pub fn bare(values: &'a [u64; 6]) -> Self {
        Self { values, copied: None, result: None, executed: None, opened: None }
    }
}

impl Calls {
    pub fn of(&mut self, number: i64) -> &Call {
        let Self { known, tracefs } = self;
        known.entry(number).or_insert_with(|| {
            Call::new(number, tracefs.get_or_insert_with(|| perfweave_events::tracefs().ok()).as_ref())
        })
    }

    /// `flock(fd: 7</run/lock>, cmd: 2)`. `file`: what is behind its descriptor, if that is known.
    pub fn words(&mut self, call: &waits::Call, file: Option<&str>) -> String {
        let of = self.of(call.number);
        let values = Values::bare(&call.args);
        format!("{}({})", of.name, of.named_args(values, file))
    }
}

/// The number of a system call by its name.
pub fn number(name: &str) -> Option<i64> {
    name.parse::<Sysno>().ok().map(|call| i64::from(call.id()))
}

impl Call {
    fn new(number: i64, tracefs: Option<&Tracefs>) -> Self {
        let Some(name) = name_of(number) else {
            return Self { name: format!("syscall_{number}"), args: None };
        };
        // The tracepoint has the name of the kernel's function: newstat for stat, sendfile64 for sendfile, umount for
        // umount2.
        let of_kernel = [name.into(), format!("new{name}"), format!("{name}64"), name.trim_end_matches('2').into()];
        // Not by `Format::read`, which looks for tracefs each time, and compares all names with one that there is not.
        let format = tracefs.and_then(|tracefs| {
            let file = |name| tracefs.join(format!("events/syscalls/sys_enter_{name}/format"));
            of_kernel.iter().find_map(|name| fs::read_to_string(file(name)).ok()?.parse::<Format>().ok())
        });
        // A call without arguments has no tracepoint of its own on some kernels; one with them has the pointers'
        // strings on others.
        let is_argument = |field: &&Field| !field.name().starts_with("__") && !field.name().starts_with("common_");
        let args = format.map(|format| {
            let args = format.fields().iter().filter(is_argument);
            args.map(|field| (field.name().to_owned(), How::of(name, field))).collect()
        });
        Self { name: name.to_owned(), args }
    }

    /// `AT_FDCWD, "/etc/passwd", O_RDONLY`, as strace(1) has it.
    pub fn args(&self, values: Values<'_>) -> String {
        if self.args.is_none() {
            return values.values.map(|value| How::Hex(64).text(value)).join(", ");
        }
        if self.name == "clone" {
            return clone_args(values.values, values.result);
        }
        if self.name == "rt_sigreturn" {
            return values.copied.and_then(sigreturn).unwrap_or_default();
        }
        let args = self.each(values).take(self.printed(values.values)).enumerate();
        let args = args.filter(|(at, _)| !self.leaves_out(*at, values.values));
        args.map(|(_, (_, how, value, pointed))| pointed.text(how, value, values)).collect::<Vec<_>>().join(", ")
    }

    /// Whether an argument in between has no meaning.
    fn leaves_out(&self, at: usize, values: &[u64; 6]) -> bool {
        match self.name.as_str() {
            "futex" => match values[1] as u32 & FUTEX_COMMAND {
                kernel::FUTEX_WAIT_BITSET => at == 4,
                kernel::FUTEX_WAKE_BITSET => at == 3 || at == 4,
                _ => false,
            },
            // The upper half of a position that fits into the lower one.
            "preadv" | "pwritev" | "preadv2" | "pwritev2" => at == 4,
            _ => false,
        }
    }

    /// How many arguments have a meaning: others are not printed.
    fn printed(&self, values: &[u64; 6]) -> usize {
        let makes = |flags: u64| flags & u64::from(kernel::O_CREAT) != 0 || flags & TMPFILE == TMPFILE;
        match self.name.as_str() {
            "open" if !makes(values[1]) => 2,
            "openat" if !makes(values[2]) => 3,
            "mremap" if values[3] & u64::from(kernel::MREMAP_FIXED) == 0 => 4,
            "fcntl" => match values[1] as u32 {
                kernel::F_GETFD | kernel::F_GETFL | kernel::F_GETOWN | F_GETPIPE_SZ | F_GET_SEALS => 2,
                _ => 3,
            },
            "prctl" => match values[0] as i32 {
                libc::PR_GET_DUMPABLE | libc::PR_GET_KEEPCAPS | libc::PR_GET_SECCOMP => 1,
                libc::PR_CAPBSET_READ | libc::PR_CAPBSET_DROP | libc::PR_SET_PDEATHSIG | libc::PR_SET_DUMPABLE => 2,
                libc::PR_SET_KEEPCAPS | libc::PR_SET_NAME | libc::PR_GET_NAME => 2,
                _ => 5,
            },
            "ioctl" if [FIOCLEX, FIONCLEX, NS_GET_USERNS, NS_GET_PARENT].contains(&(values[1] as u32)) => 2,
            // Only of a device the number has a meaning.
            "mknod" if !is_device(values[1]) => 2,
            "mknodat" if !is_device(values[2]) => 3,
            "futex" => match values[1] as u32 & FUTEX_COMMAND {
                kernel::FUTEX_WAKE | kernel::FUTEX_UNLOCK_PI | kernel::FUTEX_TRYLOCK_PI => 3,
                kernel::FUTEX_WAIT | kernel::FUTEX_LOCK_PI => 4,
                _ => 6,
            },
            _ => 6,
        }
    }

    /// The descriptor that it is called with.
    pub fn descriptor(&self, values: &[u64; 6]) -> Option<i32> {
        let (name, _) = self.args.as_ref()?.first()?;
        ["fd", "epfd", "fildes"].contains(&name.as_str()).then_some(values[0] as i32)
    }

    /// `fd: 7</run/lock>, cmd: 2`. `file`: what is behind the descriptor.
    pub fn named_args(&self, values: Values<'_>, file: Option<&str>) -> String {
        // As strace(1) has them: a name may not end the brackets.
        let mut file = file.map(|file| format!("<{}>", file.replace('<', "\\74").replace('>', "\\76")));
        if self.args.is_none() {
            return self.args(values);
        }
        let args = self.each(values).map(|(name, how, value, pointed)| {
            format!("{name}: {}{}", pointed.text(how, value, values), file.take().unwrap_or_default())
        });
        args.collect::<Vec<_>>().join(", ")
    }

    /// The arguments. What their strings do not say is noted for `args` of an object.
    pub fn json(&self, values: Values<'_>, exact: &mut Exact) -> Value {
        if self.args.is_none() {
            return Value::from(values.values.as_slice());
        }
        let object = self.each(values).map(|(name, how, value, pointed)| {
            let value = match pointed {
                Pointed::Path((bytes, more)) | Pointed::Buffer((bytes, more)) | Pointed::Random((bytes, more)) => {
                    exact.string(&["args", name], bytes, more)
                }
                Pointed::List(strings, _) => {
                    let strings = strings.into_iter().enumerate();
                    strings
                        .map(|(at, (bytes, more))| exact.string(&["args", name, &at.to_string()], bytes, more))
                        .collect()
                }
                Pointed::Text(text) if !matches!(how, How::Variables) => text.into(),
                _ => how.json(value),
            };
            (name.to_owned(), value)
        });
        Value::Object(object.collect::<Map<_, _>>())
    }

    /// Each argument with its value, and what it points to.
    fn each<'a>(&'a self, values: Values<'a>) -> impl Iterator<Item = (&'a str, How, u64, Pointed<'a>)> {
        let args = self.args.iter().flatten().zip(values.values).enumerate();
        args.map(move |(at, ((name, how), value))| {
            let copied = values.copied.filter(|_| *value != 0);
            let is_netlink = values.values[0] as i32 == nix::libc::AF_NETLINK;
            let is_internet = [nix::libc::AF_INET, nix::libc::AF_INET6].contains(&(values.values[0] as i32));
            let pointed = match how {
                How::Signed(_) if self.name == "socket" && at == 2 && is_internet => {
                    protocol(*value).map(Pointed::Text)
                }
                How::Hex(_) if self.name == "fcntl" => fcntl_argument(values.values, copied).map(Pointed::Text),
                How::Hex(_) if self.name == "ioctl" && values.values[1] as u32 == FICLONE => {
                    Some(Pointed::Text(values.values[2].to_string()))
                }
                How::Hex(_) if self.name == "ioctl" => {
                    let piece = |is_returned| copied?.at(at, *value, is_returned);
                    shapes::controlled(values.values[1], piece(false), piece(true)).map(Pointed::Text)
                }
                How::Hex(_) if self.name == "prctl" && at == 1 && values.values[0] as i32 == libc::PR_SET_DUMPABLE => {
                    dumpable(*value).map(|name| Pointed::Text(name.into()))
                }
                How::Signed(_) if at == 2 && matches!(self.name.as_str(), "setsockopt" | "getsockopt") => {
                    option_at(values.values[1], *value).map(Pointed::Text)
                }
                How::Hex(_) if self.name == "prctl" && at == 1 && takes_capability(values.values[0]) => {
                    Some(Pointed::Text(capability(*value)))
                }
                How::Signed(_) if self.name == "socket" && at == 2 && is_netlink => netlink(*value).map(Pointed::Text),
                how => copied.and_then(|copied| self.pointed(at, *how, copied, values)),
            };
            (name.as_str(), *how, *value, pointed.unwrap_or(Pointed::Nothing))
        })
    }

    fn pointed<'a>(&self, at: usize, how: How, copied: &'a Copied, values: Values<'a>) -> Option<Pointed<'a>> {
        let value = values.values[at];
        Some(match how {
            How::String => Pointed::Path(copied.string(at, value).or(values.executed.map(|path| (path, false)))?),
            How::Buffer => {
                let bytes = copied.at(at, value, false)?;
                Pointed::Buffer((bytes, *values.values.get(at + 1)? > bytes.len() as u64))
            }
            How::Filled => {
                let bytes = copied.at(at, value, true)?;
                let more = values.result? > bytes.len() as i64;
                match bytes.strip_suffix(b"\0") {
                    Some(path) if self.name == "getcwd" => Pointed::Path((path, more)),
                    _ if self.name == "getrandom" => Pointed::Random((bytes, more)),
                    _ => Pointed::Buffer((bytes, more)),
                }
            }
            How::Shape(shape) => Pointed::Text(self.shape(at, &shape, copied, values)?),
            How::Strings => {
                let (strings, is_all) = copied.strings()?;
                Pointed::List(strings, !is_all)
            }
            How::Variables => {
                let count = copied.element(VARIABLES_OF, NAME)?.pointer;
                let word = if count == 1 { "var" } else { "vars" };
                Pointed::Text(format!("{value:#x} /* {count} {word} */")).filter(count.cast_signed() >= 0)?
            }
            How::Vector(is_filled) => {
                let result = values.result.filter(|_| is_filled);
                Pointed::Text(vector(at, copied, values.values[2], result)?)
            }
            How::Message(is_filled) => Pointed::Text(message(at, copied, values.result.filter(|_| is_filled))?),
            How::Mask => {
                let of = |element| copied.element(at, element).and_then(|piece| piece.bytes.as_deref());
                Pointed::Text(shapes::mask(of(NAME - 1)?, of(NAME))?)
            }
            _ => return None,
        })
    }

    /// A struct or list, as it was before or after the call, or both.
    fn shape(&self, at: usize, shape: &Shape, copied: &Copied, values: Values<'_>) -> Option<String> {
        let value = values.values[at];
        let piece = |is_returned| copied.at(at, value, is_returned);
        if shape.is_length {
            return shapes::length(piece(false), piece(true));
        }
        if self.name == "sendfile" {
            return shapes::moved(piece(false)?, piece(true));
        }
        let bytes = piece(shape.is_returned)?;
        // How long an address is that the call has written stands behind it.
        let takes_address = ["accept", "accept4", "getpeername", "getsockname", "recvfrom"];
        let length = || {
            let bytes = copied.at(at + 1, *values.values.get(at + 1)?, true)?;
            Some(u32::from_ne_bytes(*bytes.first_chunk()?) as usize)
        };
        // An option with another length is no number.
        if self.name == "getsockopt" && length() != Some(size_of::<i32>()) {
            return None;
        }
        let length = if takes_address.contains(&self.name.as_str()) { length() } else { None };
        let bytes = &bytes[..bytes.len().min(length.unwrap_or(usize::MAX))];
        let (result, opened) = (values.result, values.opened);
        (shape.text)(&Seen { bytes, values: values.values, result, opened, limit: copied.quotes.limit })
    }

    /// Whether an argument is the path of a file.
    pub fn takes_path(&self) -> bool {
        const PATHS: &str = "filename pathname path oldname newname dev_name dir_name new_root put_old special specialfile \
            from_pathname to_pathname";
        let mut args = self.args.iter().flatten();
        args.any(|(name, how)| matches!(how, How::String) && PATHS.split_whitespace().any(|path| path == name))
    }

    /// Whether an argument is a descriptor, or a list of them.
    pub fn takes_descriptor(&self) -> bool {
        self.args.iter().flatten().any(|(name, _)| is_descriptor(name) || name == "ufds")
    }

    /// Which descriptors it is given, and which it gives.
    pub fn descriptors(&self) -> Descriptors {
        let args = || self.args.iter().flatten().enumerate();
        let named = |of: &str| args().find(|(_, (name, _))| name == of).map(|(at, _)| at);
        let arguments = args().filter(|(_, (_, how))| matches!(how, How::Descriptor | How::Directory));
        Descriptors {
            arguments: arguments.map(|(at, _)| at).collect(),
            list: named("ufds"),
            is_result: MADE.split_whitespace().any(|name| name == self.name),
            pair: named("usockvec").or_else(|| named("fildes").filter(|_| self.name.starts_with("pipe"))),
        }
    }

    /// Whether its result is a descriptor.
    fn makes_descriptor(&self, values: &[u64; 6]) -> bool {
        let is_one = || MADE.split_whitespace().any(|name| name == self.name);
        match self.name.as_str() {
            "fcntl" => matches!(values[1] as u32, kernel::F_DUPFD | kernel::F_DUPFD_CLOEXEC),
            _ => is_one(),
        }
    }

    /// What was told of its descriptors, without what these arguments do not mean.
    pub fn meant(&self, opened: Opened, values: &[u64; 6]) -> Option<Opened> {
        let mut args = self.args.iter().flatten().zip(values);
        let is_working = |how: &How, value: u64| matches!(how, How::Directory) && value as i32 == libc::AT_FDCWD;
        let gives = self.makes_descriptor(values) || self.descriptors().pair.is_some();
        opened.meant(args.any(|((_, how), value)| is_working(how, *value)), gives)
    }

    /// The paths to which its arguments point, as far as they were copied.
    pub fn paths<'a>(&'a self, values: Values<'a>) -> impl Iterator<Item = Bytes<'a>> {
        self.each(values).filter_map(|(.., pointed)| if let Pointed::Path(path) = pointed { Some(path) } else { None })
    }

    /// Whether an argument points to something that is copied at the entry.
    pub fn points(&self, values: &[u64; 6]) -> bool {
        let mut args = self.args.iter().flatten().zip(values);
        args.any(|((_, how), value)| *value != 0 && matches!(how, How::String | How::Buffer))
    }

    /// What its arguments point to, for the program that copies it.
    pub fn pointers(&self) -> Pointers {
        let mut pointers = Pointers::default();
        for (at, (_, how)) in self.args.iter().flatten().enumerate() {
            match *how {
                How::String => pointers.enter.push((at, Length::String)),
                How::Buffer => pointers.enter.push((at, Length::Argument(at + 1))),
                How::Filled if self.name == "getcwd" => pointers.exit.push((at, Length::Whole)),
                How::Filled => pointers.exit.push((at, Length::Result)),
                How::Shape(shape) if shape.is_length => {
                    pointers.enter.push((at, shape.length));
                    pointers.exit.push((at, shape.length));
                }
                How::Shape(shape) if shape.is_returned => pointers.exit.push((at, shape.length)),
                How::Shape(shape) => pointers.enter.push((at, shape.length)),
                How::Strings => pointers.special = Some((Special::Exec(at), false)),
                How::Vector(is_filled) => pointers.special = Some((Special::Vector, is_filled)),
                How::Message(is_filled) => pointers.special = Some((Special::Message, is_filled)),
                How::Mask => pointers.special = Some((Special::Mask, false)),
                _ => {}
            }
        }
        match (self.name.as_str(), pointers.enter.first().copied()) {
            // What is left of sets and of the time-out.
            ("select" | "pselect6", _) => pointers.exit.clone_from(&pointers.enter),
            ("poll" | "ppoll", Some(_)) => pointers.exit.extend(pointers.enter.iter().take(2)),
            ("sendfile", Some(place)) => pointers.exit.push(place),
            ("fcntl", _) => pointers.enter.push((2, Length::Bytes(shapes::LOCK as u32))),
            ("ioctl", _) => {
                let argument = (2, Length::Bytes(shapes::CONTROL as u32));
                pointers.enter.push(argument);
                pointers.exit.push(argument);
            }
            ("rt_sigreturn", _) if shapes::SIGNAL_MASK > 0 => {
                pointers.enter.push((STACK, Length::Bytes(shapes::SIGNAL_MASK as u32 + 8)));
            }
            _ => {}
        }
        pointers
    }

    /// `3`, `-1 ENOENT (No such file or directory)`, `0x7f12` for calls that give an address.
    pub fn result(&self, values: Option<Values<'_>>, result: i64) -> String {
        let of = values.map_or([0; 6], |values| *values.values);
        match error(result) {
            Some((name, text)) if result < -511 => format!("? {name} ({text})"),
            Some((name, text)) => format!("-1 {name} ({text})"),
            None if matches!(self.name.as_str(), "mmap" | "brk" | "mremap" | "shmat") => format!("{result:#x}"),
            // The mask that was there before.
            None if self.name == "umask" => format!("0{result:02o}"),
            None if self.name == "fcntl" && of[1] as u32 == kernel::F_GETFL => {
                format!("{} (flags {})", shapes::hexadecimal(result as u64), open(result as u64))
            }
            None if self.name == "prctl" && of[0] as i32 == libc::PR_GET_DUMPABLE => {
                dumpable(result as u64).map_or_else(|| result.to_string(), |name| format!("{result} ({name})"))
            }
            None if self.name == "sched_getscheduler" => {
                policy(result as u64).map_or_else(|| result.to_string(), |name| format!("{result} ({name})"))
            }
            None if self.name == "fcntl" && of[1] as u32 == kernel::F_GETFD && result == 1 => {
                "0x1 (flags FD_CLOEXEC)".into()
            }
            None if matches!(self.name.as_str(), "poll" | "ppoll" | "select" | "pselect6") => match (result, values) {
                (0, Some(_)) => "0 (Timeout)".into(),
                (_, Some(Values { values, copied: Some(copied), .. })) => {
                    format!("{result}{}", self.happened(values, copied, result))
                }
                _ => result.to_string(),
            },
            None => match values {
                Some(Values { values, opened: Some(opened), .. }) if self.makes_descriptor(values) => {
                    format!("{result}{}", opened.returned(result as i32))
                }
                _ => result.to_string(),
            },
        }
    }

    /// To which descriptors something has happened, and how much of the time-out is left.
    fn happened(&self, values: &[u64; 6], copied: &Copied, result: i64) -> String {
        let after = |at: usize| copied.at(at, values[at], true);
        let left = |at: usize| shapes::left(&self.name, after(at)?);
        match self.name.as_str() {
            "select" | "pselect6" => shapes::selected([1, 2, 3].map(after), values[0], left(4)),
            name => {
                let left = if name == "ppoll" { left(2) } else { None };
                let list = after(0).map(|bytes| shapes::happened(bytes, values[1], result, copied.quotes.limit));
                let left = left.map_or_else(String::new, |left| format!(", left {left}"));
                list.map_or_else(String::new, |list| format!(" ({list}{left})"))
            }
        }
    }
}

/// Calls that give a descriptor. fcntl does for some of its commands.
const MADE: &str = "\
    accept accept4 creat dup dup2 dup3 epoll_create epoll_create1 eventfd eventfd2 fanotify_init fcntl fsmount fsopen \
    fspick inotify_init inotify_init1 io_uring_setup landlock_create_ruleset memfd_create memfd_secret mq_open open \
    open_by_handle_at open_tree openat openat2 perf_event_open pidfd_getfd pidfd_open signalfd signalfd4 socket \
    timerfd_create userfaultfd";

/// Whether an argument with this name is a descriptor.
fn is_descriptor(name: &str) -> bool {
    name.ends_with("fd") || name.starts_with("fd_") || ["fildes", "fdin", "fdout", "mqdes"].contains(&name)
}

impl Pointed<'_> {
    fn filter(self, is_known: bool) -> Option<Self> {
        is_known.then_some(self)
    }

    fn text(self, how: How, value: u64, values: Values<'_>) -> String {
        let quotes = values.copied.map(|copied| copied.quotes).unwrap_or_default();
        let is_none = matches!(how, How::Descriptor) && value as i32 == libc::AT_FDCWD;
        match (self, how, values.opened.filter(|_| !is_none)) {
            (Self::Nothing, How::Descriptor | How::Directory, Some(opened)) => {
                format!("{}{}", how.text(value), opened.entered(value as i32))
            }
            (own, ..) => own.text_alone(how, value, quotes),
        }
    }

    fn text_alone(self, how: How, value: u64, quotes: Quotes) -> String {
        match self {
            Self::Nothing => how.text(value),
            Self::Path(path) => quotes.quoted(path),
            Self::Buffer(bytes) => quotes.limited(bytes),
            Self::Random(bytes) => Quotes { hexadecimal: 2, ..quotes }.limited(bytes),
            Self::Text(text) => text,
            Self::List(strings, more) => {
                let mut strings: Vec<_> = strings.into_iter().map(|string| quotes.limited(string)).collect();
                strings.extend(more.then(|| "...".to_owned()));
                format!("[{}]", strings.join(", "))
            }
        }
    }
}

/// Whether a mode is that of a device.
fn is_device(mode: u64) -> bool {
    [kernel::S_IFCHR, kernel::S_IFBLK].contains(&(mode as u32 & kernel::S_IFMT))
}

fn takes_capability(option: u64) -> bool {
    [libc::PR_CAPBSET_READ, libc::PR_CAPBSET_DROP].contains(&(option as i32))
}

/// The mask that is in force again, at the end of the stack.
fn sigreturn(copied: &Copied) -> Option<String> {
    let bytes = copied.element(STACK, 0)?.bytes.as_deref()?;
    let mask = u64::from_ne_bytes(*bytes.get(shapes::SIGNAL_MASK..)?.first_chunk()?);
    Some(format!("{{mask={}}}", shapes::signals(mask)))
}

/// What fcntl(2) does with its argument.
fn fcntl_argument(values: &[u64; 6], copied: Option<&Copied>) -> Option<String> {
    Some(match values[1] as u32 {
        kernel::F_SETFD if values[2] == u64::from(kernel::FD_CLOEXEC) => "FD_CLOEXEC".into(),
        kernel::F_SETFL => open(values[2]),
        kernel::F_DUPFD | kernel::F_DUPFD_CLOEXEC => values[2].to_string(),
        kernel::F_SETLK | kernel::F_SETLKW | F_OFD_SETLK | F_OFD_SETLKW => {
            shapes::lock(copied?.at(2, values[2], false)?)?
        }
        _ => return None,
    })
}

/// `[{iov_base="ab", iov_len=2}]`. `count`: how many elements it has. `filled`: how many bytes the call has written.
fn vector(at: usize, copied: &Copied, count: u64, filled: Option<i64>) -> Option<String> {
    let mut left = filled.map_or(u64::MAX, i64::cast_unsigned);
    let elements = (0..VECTOR).map_while(|element| copied.element(at, element)).map(|piece| {
        let whole = piece.whole.min(left);
        left -= whole;
        let base = match &piece.bytes {
            _ if piece.pointer == 0 => "NULL".into(),
            Some(bytes) => copied.quotes.limited((bytes, whole > bytes.len() as u64)),
            None => format!("{:#x}", piece.pointer),
        };
        format!("{{iov_base={base}, iov_len={}}}", piece.whole)
    });
    let mut elements: Vec<_> = elements.collect();
    if elements.is_empty() && count > 0 {
        return None;
    }
    elements.extend((count > VECTOR as u64).then(|| "...".to_owned()));
    Some(format!("[{}]", elements.join(", ")))
}

/// `{msg_name=NULL, msg_namelen=0, msg_iov=[...], msg_iovlen=1, ...}`.
fn message(at: usize, copied: &Copied, filled: Option<i64>) -> Option<String> {
    let of = |element| copied.element(at, element).and_then(|piece| piece.bytes.as_deref());
    let [length, count, control, flags] = shapes::message(of(NAME - 1)?)?;
    let name = of(NAME).and_then(socket_address).unwrap_or_else(|| "NULL".into());
    let vector = vector(at, copied, count, filled)?;
    let flags = message_flags(flags);
    Some(format!(
        "{{msg_name={name}, msg_namelen={length}, msg_iov={vector}, msg_iovlen={count}, msg_controllen={control}, \
         msg_flags={flags}}}"
    ))
}

/// As strace(1) has it, in another order than the kernel.
fn clone_args([flags, stack, parent, child, tls, _]: &[u64; 6], result: Option<i64>) -> String {
    let mut text = format!("child_stack={}, flags={}", How::Pointer.text(*stack), clone(*flags));
    for (name, value, bits) in [
        ("parent_tid", parent, kernel::CLONE_PARENT_SETTID | kernel::CLONE_PIDFD),
        ("tls", tls, kernel::CLONE_SETTLS),
        ("child_tidptr", child, kernel::CLONE_CHILD_SETTID | kernel::CLONE_CHILD_CLEARTID),
    ] {
        if flags & u64::from(bits) != 0 {
            // The kernel writes there what it returns.
            let _ = match result.filter(|child| name == "parent_tid" && *child > 0) {
                Some(child) if flags & u64::from(kernel::CLONE_PIDFD) == 0 => write!(text, ", {name}=[{child}]"),
                _ => write!(text, ", {name}={value:#x}"),
            };
        }
    }
    text
}

/// The name and the meaning of a result that is an error.
pub fn error(result: i64) -> Option<(String, String)> {
    // include/linux/errno.h: these never leave the kernel. The call goes on after a signal, or fails with EINTR.
    let (restarts, when) = match result {
        -512 => ("ERESTARTSYS", "To be restarted if SA_RESTART is set"),
        -513 => ("ERESTARTNOINTR", "To be restarted"),
        -514 => ("ERESTARTNOHAND", "To be restarted if no handler"),
        -516 => ("ERESTART_RESTARTBLOCK", "Interrupted by signal"),
        -4095..0 => {
            let number = (-result) as i32;
            // The C library's words, as strace has them: nix says of ENOTTY that it is no typewriter.
            let text = std::io::Error::from_raw_os_error(number).to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            return Some((format!("{:?}", Errno::from_raw(number)), text.to_owned()));
        }
        _ => return None,
    };
    Some((restarts.into(), when.into()))
}

impl How {
    fn of(call: &str, field: &Field) -> Self {
        let kind = field.type_name();
        if let (Some(text), number @ (Self::Signed(32) | Self::Unsigned(32))) =
            (known(call, field.name()), Self::number(kind))
        {
            return Self::Known { text, is_signed: matches!(number, Self::Signed(_)) };
        }
        if let Some(how) = Self::pointing(call, field.name(), kind) {
            return how;
        }
        if let Some(text) = flags(call, field.name()) {
            return Self::Named(text);
        }
        match (call, field.name()) {
            ("mmap", "off") | ("rseq", "rseq_len" | "sig") | ("mremap", "new_addr") => Self::Hex(64),
            ("ioctl" | "fcntl", "arg") => Self::Hex(64),
            (_, "brk" | "newsp") | ("mmap" | "munmap" | "mremap", "addr") => Self::Pointer,
            ("madvise" | "msync" | "mlock" | "munlock" | "mlock2", "start") => Self::Pointer,
            ("arch_prctl", "arg2") | ("prctl", "arg2" | "arg3" | "arg4" | "arg5") => Self::Hex(64),
            (_, "dfd" | "newdfd" | "olddfd" | "fd_dir") | ("execveat", "fd") => Self::Directory,
            (_, "mode" | "mask") if kind == "umode_t" || call == "umask" => Self::Octal,
            // -1 is a descriptor, whatever type it has.
            ("close_range", _) => Self::Known { text: |value| Some((value as u32).to_string()), is_signed: false },
            (_, name) if is_descriptor(name) => Self::Descriptor,
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

    /// An argument that points to something.
    fn pointing(call: &str, name: &str, kind: &str) -> Option<Self> {
        Some(match (call, name) {
            ("write" | "pwrite64", "buf") | ("sendto", "buff") | ("mq_timedsend", "u_msg_ptr") => Self::Buffer,
            ("mount" | "umount2" | "utime" | "utimes", _) if kind == "char *" => Self::String,
            (_, name) if kind == "const char *" && name != "buf" => Self::String,
            ("execve" | "execveat", "argv") => Self::Strings,
            ("execve" | "execveat", "envp") => Self::Variables,
            ("read" | "pread64" | "readlink" | "readlinkat" | "getcwd", "buf")
            | ("getrandom", "ubuf")
            | ("recvfrom", "ubuf")
            | ("getxattr" | "lgetxattr" | "fgetxattr", "value")
            | ("listxattr" | "llistxattr" | "flistxattr", "list") => Self::Filled,
            ("setxattr" | "lsetxattr" | "fsetxattr", "value") => Self::Buffer,
            ("writev" | "pwritev" | "pwritev2", "vec") => Self::Vector(false),
            ("readv" | "preadv" | "preadv2", "vec") => Self::Vector(true),
            ("sendmsg", "msg") => Self::Message(false),
            ("recvmsg", "msg") => Self::Message(true),
            ("pselect6", "sig") => Self::Mask,
            _ => match shapes::of(call, name, kind) {
                Some(shape) => Self::Shape(shape),
                None if kind.contains('*') => Self::Pointer,
                None => return None,
            },
        })
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

    /// What the kernel takes of a register.
    fn value(self, register: u64) -> i128 {
        let cut = |bits: u32| register << (64 - bits) >> (64 - bits);
        match self {
            Self::Known { is_signed: true, .. } => Self::Signed(32).value(register),
            Self::Known { .. } => Self::Unsigned(32).value(register),
            Self::Signed(bits) => ((register as i64) << (64 - bits) >> (64 - bits)).into(),
            Self::Directory | Self::Descriptor => (register as i32).into(),
            // -1 as calls have it that take no number, and sizes without bound.
            Self::Unsigned(32) if register as u32 == u32::MAX => -1,
            Self::Unsigned(64) => (register as i64).into(),
            Self::Unsigned(bits) | Self::Hex(bits) => cut(bits).into(),
            Self::Octal => cut(16).into(),
            _ => register.into(),
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
            Self::Hex(_) if value != 0 => format!("{value:#x}"),
            Self::Octal => format!("0{value:02o}"),
            Self::Signed(_) | Self::Unsigned(_) | Self::Directory | Self::Descriptor | Self::Hex(_) => {
                value.to_string()
            }
            _ if value == 0 => "NULL".into(),
            _ => format!("{value:#x}"),
        }
    }
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

/// The numbers of all calls that have a name here.
pub fn all() -> impl Iterator<Item = i64> {
    (0..MOST_CALLS.into()).filter(|number| name_of(*number).is_some())
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
        assert_eq!([0o22, 0].map(|mask| umask.result(None, mask)), ["022", "000"]);
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
            ("const char *", "name", 0, "NULL", json!(0)),
            ("umode_t", "mode", 0xdead_0000_0000_01a4, "0644", json!(0o644)),
        ] {
            assert_eq!(printed(kind, name, register), (text.to_owned(), value), "{kind} {name} {register:#x}");
        }
    }
}
