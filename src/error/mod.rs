//! Errors, with their numbers, and hints at what would help.
//!
//! This room takes the kernel's answers and the requests they answer. It gives an [`Error`] that names both. It knows
//! settings of the machine (limits, capabilities, sysctls) well enough to name the one to change. It does not know
//! rings or streams: an error carries numbers. A fault *inside* a ring is no error but an event. Begin with `cases.rs`.

/// `Debug` of an error says what its `Display` says. Rust prints `Debug` of the error that `main` returns, and of one that is
/// unwrapped, so this is what a user reads.
macro_rules! debug_as_display {
    ($($error:ty),*) => {$(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}

#[cfg(feature = "perf-data")]
mod recording;

mod cases;
pub(crate) mod hint;
mod repeats;
mod words;

pub use cases::{Error, Hint};
pub(crate) use hint::nearest;
#[cfg(feature = "perf-data")]
pub use recording::{Unreadable, Unwritable};
pub(crate) use repeats::Repeats;
pub(crate) use words::short;

pub(crate) use debug_as_display;

debug_as_display!(Error);
#[cfg(feature = "perf-data")]
debug_as_display!(Unreadable, Unwritable);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::decode::FormatError;
    use crate::ring::Fault;
    use std::fmt::{Debug, Display};
    use std::io;

    /// What Rust prints when `main` gives the error back, after `Error: `.
    fn printed(error: &(impl Debug + Display)) -> String {
        let printed = format!("{error:?}");
        assert_eq!(printed, error.to_string());
        assert_eq!(format!("{error:#?}"), printed);
        printed
    }

    #[test]
    fn a_main_that_gives_an_error_back_prints_what_it_says() {
        let tracepoint = || Error::Tracepoint {
            name: "sched:sched_switch".into(),
            errno: io::Error::from_raw_os_error(libc::EACCES),
            hint: Hint("mount it so that you may read it".into()),
        };
        let said = "cannot look up tracepoint sched:sched_switch: Permission denied (os error 13) (mount it so that you may read it)";
        assert_eq!(printed(&tracepoint()), said);
        assert_eq!(printed(&FormatError::Lookup(tracepoint())), said);
        assert_eq!(printed(&Error::NoRings), Error::NoRings.to_string());
        let source = FormatError::NoSource { source_number: 3, sources: 2 };
        assert!(printed(&source).starts_with("there is no source 3: the rings have 2"));
        // Of `Record::decode`.
        assert_eq!(printed(&Fault::Short { size: 8 }), Fault::Short { size: 8 }.to_string());
    }

    #[cfg(feature = "perf-data")]
    #[test]
    fn and_so_do_the_errors_of_recordings() {
        let why = Unreadable::Compressed;
        assert_eq!(printed(&why), "its records are compressed (record without -z)");
        let error = Error::Unreadable { path: "perf.data".into(), why };
        assert_eq!(printed(&error), "cannot read perf.data: its records are compressed (record without -z)");
        assert!(printed(&Unwritable::TooLong { size: 65_528 }).contains("65528"));
    }
}
