//! What can be wrong with formats.

use crate::error::{Error, Hint, debug_as_display, short};

/// Why a tracepoint's format, or a field of it, cannot be had.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The format could not be looked up in tracefs: [`Error::NoTracepoint`] or [`Error::Tracepoint`].
    #[error(transparent)]
    Lookup(#[from] Error),
    /// The text is no format.
    #[error("line {line} of the format is not understood: {text:?}, where {expected} should be{hint}")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// What the line says, its begin. Empty behind the last line.
        text: String,
        /// What should be there.
        expected: &'static str,
        /// What would help.
        hint: Hint,
    },
    /// The event has no such field.
    #[error("{} has no field {}{hint}", short(event), short(field))]
    NoField {
        /// The event.
        event: String,
        /// The name, as requested.
        field: String,
        /// The nearest name, if any is near, and those that there are, up to 1 KiB of names.
        hint: Hint,
    },
    /// The event is neither a tracepoint nor a probe, so nothing describes its payload.
    #[error("{} has no format{hint}", short(event))]
    NoFormat {
        /// The event, as requested.
        event: String,
        /// What would help.
        hint: Hint,
    },
    /// The rings have no source of that number.
    #[error("there is no source {source_number}: the rings have {sources} (adopted and simulated rings have none)")]
    NoSource {
        /// The number, as requested.
        source_number: usize,
        /// How many sources the rings have.
        sources: usize,
    },
}

debug_as_display!(FormatError);
