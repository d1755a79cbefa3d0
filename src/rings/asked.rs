//! The events that were asked for, each with its own settings.

use perf_event_open_sys::bindings::perf_event_attr;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::record::Kind;

/// An event that was asked for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) what: What,
    pub(super) settings: Settings,
}

/// What holds for one event alone, and not for all that share its rings.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// What the kernel is to check before it writes a record.
    pub(super) filter: Option<String>,
    pub(super) rate: Option<Rate>,
    pub(super) exclude_user: bool,
    pub(super) exclude_kernel: bool,
}

/// How often an event is sampled.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rate {
    /// Once in so many.
    Period(u64),
    /// So many times a second.
    Frequency(u64),
}

/// What writes into the rings.
#[derive(Debug)]
pub(super) enum What {
    BpfOutput(io::Result<OwnedFd>),
    Pinned(PathBuf),
    /// A name, or a pattern that stands for several.
    Tracepoint(String),
    TracepointId(u64),
    Probe(Probe),
    Named(String),
    /// Records that the kernel writes beside samples.
    Records(Vec<Kind>, bool),
    Attr(Box<perf_event_attr>),
}

/// A place in code, as the kernel's dynamic PMUs take it.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) unit: &'static str,
    /// A function, or the path of a file.
    pub(super) target: OsString,
    pub(super) place: Place,
    /// Whether where it returns to is meant.
    pub(super) returns: bool,
}

/// Where behind the begin of its target a probe lies.
#[derive(Debug)]
pub(super) enum Place {
    /// So many bytes.
    Offset(u64),
    #[cfg(feature = "symbols")]
    /// Where this function begins.
    Symbol(String),
}

/// The dynamic PMUs, whose attributes point to a name.
pub(super) const UPROBE: &str = "uprobe";
pub(super) const KPROBE: &str = "kprobe";

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // kprobe, kretprobe
        let (kind, probe) = self.unit.split_at(1);
        let returns = if self.returns { "ret" } else { "" };
        write!(f, "{kind}{returns}{probe} {}", self.target.display())?;
        match &self.place {
            Place::Offset(0) => Ok(()),
            Place::Offset(offset) => write!(f, "+{offset:#x}"),
            #[cfg(feature = "symbols")]
            Place::Symbol(symbol) => write!(f, ":{symbol}"),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BpfOutput(_) => f.write_str("BPF output"),
            Self::Pinned(path) => write!(f, "BPF output into {}", path.display()),
            Self::Tracepoint(name) => write!(f, "tracepoint {name}"),
            Self::TracepointId(id) => write!(f, "tracepoint {id}"),
            Self::Probe(probe) => probe.fmt(f),
            Self::Named(name) => f.write_str(name),
            Self::Records(kinds, _) => {
                f.write_str("records")?;
                kinds.iter().try_for_each(|kind| write!(f, " {kind:?}"))
            }
            Self::Attr(attr) => write!(f, "event {}:{}", attr.type_, attr.config),
        }
    }
}
