//! Parts of messages.

use crate::sys::status::{CAP_BPF, CAP_SYS_ADMIN, Status};
use nix::sys::resource::{Resource, getrlimit};
use std::borrow::Cow;
use std::io;

/// Letters of a name that a message shows.
const LONGEST_NAME: usize = 512;

/// A name for a message. The end of one that is too long is left out.
pub(crate) fn short(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => format!("{}... ({} bytes)", &name[..end], name.len()).into(),
        None => name.into(),
    }
}

/// The limit that was reached, if one was. How many descriptors would be enough is not known here.
pub(super) fn limit(errno: &io::Error) -> String {
    match (errno.raw_os_error(), getrlimit(Resource::RLIMIT_NOFILE)) {
        (Some(libc::EMFILE), Ok((limit, _))) => format!("raise RLIMIT_NOFILE, which is {limit}"),
        _ => String::new(),
    }
}

/// What a call of bpf(2) needs that is refused: so much, unless the calling thread has it.
pub(super) fn bpf_needs(needed: &str) -> String {
    let status = Status::read();
    match (status.has_any(&[CAP_BPF, CAP_SYS_ADMIN]), status.is_filtered) {
        (true, true) => filtered("bpf(2)"),
        (true, false) => MODULE.into(),
        (false, true) => format!("{needed}; or {}", filtered("bpf(2)")),
        (false, false) => needed.into(),
    }
}

/// What is said where seccomp refuses a call.
pub(crate) fn filtered(call: &str) -> String {
    format!(
        "a seccomp filter of this process refuses {call}, as those of containers do: allow it in the container's seccomp profile"
    )
}

/// What is said where the thread has all capabilities, and no filter refuses the call.
pub(crate) const MODULE: &str =
    "a security module of this machine may refuse it, such as SELinux, lockdown or a BPF LSM: see the kernel's log";

/// An error behind an error, if there is one.
pub(super) fn because(errno: Option<&io::Error>) -> String {
    errno.map_or_else(String::new, |errno| format!(": {errno}"))
}

/// What helps, in parentheses, if anything is known to.
pub(super) fn hinted(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!(" ({hint})") }
}

/// How often an error came, if it was more than once.
pub(super) fn repeated(times: u64) -> String {
    if times > 1 { format!(", the last of {times} times") } else { String::new() }
}
