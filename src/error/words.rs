//! Parts of messages.

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
        (Some(libc::EMFILE), Ok((limit, _))) => format!(" (raise RLIMIT_NOFILE, which is {limit})"),
        _ => String::new(),
    }
}

/// What helps where a map may not even be asked what it is. Before Linux 5.19 the setting is for all that bpf(2) does.
pub(super) fn asked(errno: &io::Error) -> &'static str {
    match errno.raw_os_error() {
        Some(libc::EPERM) => " (needs CAP_BPF where kernel.unprivileged_bpf_disabled is set)",
        _ => "",
    }
}

/// An error behind an error, if there is one.
pub(super) fn because(errno: Option<&io::Error>) -> String {
    errno.map_or_else(String::new, |errno| format!(": {errno}"))
}

/// How often an error came, if it was more than once.
pub(super) fn repeated(times: u64) -> String {
    if times > 1 { format!(", the last of {times} times") } else { String::new() }
}
