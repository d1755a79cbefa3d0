//! Parts of messages.

use crate::sys::status::{CAP_BPF, CAP_SYS_ADMIN, Status};
use nix::sys::resource::{Resource, getrlimit};
use std::borrow::Cow;
use std::io;

/// The longest name that a message shows in full, in bytes.
const LONGEST_NAME: usize = 512;

/// A name for a message. A name that is too long loses its end.
pub(crate) fn short(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => format!("{}... ({} bytes)", &name[..end], name.len()).into(),
        None => name.into(),
    }
}

/// The limit that was reached, if the error is about a limit. How many descriptors would be enough is not known here.
pub(super) fn limit(errno: &io::Error) -> String {
    match (errno.raw_os_error(), getrlimit(Resource::RLIMIT_NOFILE)) {
        (Some(libc::EMFILE), Ok((limit, _))) => format!("raise RLIMIT_NOFILE, which is {limit}"),
        _ => String::new(),
    }
}

/// What a refused call of bpf(2) needs: `needed`, unless the calling thread has it.
pub(super) fn bpf_needs(needed: &str) -> String {
    let status = Status::read();
    match (status.has_any(&[CAP_BPF, CAP_SYS_ADMIN]), status.is_filtered) {
        (true, true) => filtered("bpf(2)"),
        (true, false) => MODULE.into(),
        (false, true) => format!("{needed}; or {}", filtered("bpf(2)")),
        (false, false) => needed.into(),
    }
}

/// The hint if seccomp refuses a call.
pub(crate) fn filtered(call: &str) -> String {
    format!(
        "a seccomp filter of this process refuses {call}, as those of containers do: allow it in the container's \
         seccomp profile"
    )
}

/// The hint if the thread has all capabilities and no filter refuses the call.
pub(crate) const MODULE: &str =
    "a security module of this machine may refuse it, such as SELinux, lockdown or a BPF LSM: see the kernel's log";

/// The cause of an error, if there is one.
pub(super) fn because(errno: Option<&io::Error>) -> String {
    errno.map_or_else(String::new, |errno| format!(": {errno}"))
}

/// What helps, in parentheses, if anything is known to.
pub(super) fn hinted(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!(" ({hint})") }
}

/// How often an error occurred, if more than once.
pub(super) fn repeated(times: u64) -> String {
    if times > 1 { format!(", the last of {times} times") } else { String::new() }
}
