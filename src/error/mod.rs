//! Errors, with their numbers, and hints at what would help.
//!
//! This room has the one [`Error`] of the crate, and its kinds. An error that only one place gives is built there: from
//! a kind, a message with numbers, and a hint. This room has the errors that several rooms give. It also has the hints
//! that depend only on the machine's settings (limits, capabilities, sysctls). A fault *inside* a ring is an event, not
//! an error. Begin with `kind.rs`.

/// `Debug` of an error prints what `Display` prints. Rust prints `Debug` of the error that `main` returns, and of one
/// that is unwrapped, so users read it.
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
pub use kind::ErrorKind;
pub(crate) use repeats::Repeats;
pub(crate) use words::{MODULE, filtered, short};

#[cfg(all(test, not(loom)))]
mod tests;
