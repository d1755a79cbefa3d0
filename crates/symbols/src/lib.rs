//! Where functions and static probes (USDT) lie in an ELF file, for uprobes by name.
//!
//! A uprobe takes an offset from the start of a file. [`function`] gives it for a function by its name, and [`usdt`]
//! for the places of a static probe, with their semaphores. `uprobe` and `uretprobe` of perfweave-events take them, and so does whatever else sets uprobes.
//!
//! ```no_run
//! use perfweave::Rings;
//! use perfweave_events::EventOptions;
//!
//! let library = "/lib/x86_64-linux-gnu/libc.so.6";
//! let offset = perfweave_symbols::function(library, "malloc")?;
//! let mut options = Rings::options().uprobe(library, offset).named("malloc");
//! for place in perfweave_symbols::usdt(library, "libc", "setjmp")? {
//!     options = options.uprobe(library, place.offset).semaphore(place.semaphore).named("setjmp");
//! }
//! let rings = options.open()?;
//! # Ok::<(), perfweave::Error>(())
//! ```
//!
//! # Hostile files
//! Any bytes may be in a file: it is searched or refused. It is read whole, up to 1 GiB. Opening it waits for nobody
//! and changes no device.
#![forbid(unsafe_code)]

mod error;
mod file;
mod notes;
mod search;

pub use search::{Place, function, usdt};

/// The README's examples are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
