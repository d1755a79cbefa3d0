//! Errors, with their numbers, and hints at what would help.
//!
//! This room has the one [`Error`] of the crate, and its kinds. An error of one place is put together there: by a kind, a message with
//! numbers, and a hint. Here are the errors that several rooms give, and hints that need no knowledge but the machine's settings
//! (limits, capabilities, sysctls). A fault *inside* a ring is no error but an event. Begin with `kind.rs`.

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

mod cases;
pub(crate) mod hint;
mod kind;
mod repeats;
mod words;

pub use cases::Error;
pub(crate) use debug_as_display;
pub(crate) use hint::nearest;
pub use kind::ErrorKind;
pub(crate) use repeats::Repeats;
pub(crate) use words::{MODULE, filtered, short};

#[cfg(all(test, not(loom)))]
mod tests;
