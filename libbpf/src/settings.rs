//! What the environment asks for.

use crate::say::say;
use std::sync::OnceLock;

/// `PERFWEAVE_ORDER`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A call that reads waits for a proof.
    Eager,
    /// The reader says when something is proven, and the tool wakes up then.
    Lazy,
    /// Everything is libbpf's own.
    Off,
}

pub(crate) struct Settings {
    pub(crate) mode: Mode,
    /// `PERFWEAVE_KEY`: where in a record of a BPF ring buffer a time or a number lies, 8 bytes.
    pub(crate) key: Option<usize>,
}

pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings { mode: mode(), key: key() })
}

pub(crate) fn is_lazy() -> bool {
    settings().mode == Mode::Lazy
}

fn mode() -> Mode {
    match std::env::var("PERFWEAVE_ORDER").as_deref() {
        Ok("eager") | Err(_) => Mode::Eager,
        Ok("lazy") => Mode::Lazy,
        Ok("off") => Mode::Off,
        Ok(other) => {
            say!("PERFWEAVE_ORDER is \"{other}\", which is none of eager, lazy, off: taken for eager");
            Mode::Eager
        }
    }
}

fn key() -> Option<usize> {
    let text = std::env::var("PERFWEAVE_KEY").ok()?;
    let key = text.parse().ok();
    if key.is_none() {
        say!("PERFWEAVE_KEY is \"{text}\", which is no offset in bytes: ring buffers are not ordered");
    }
    key
}
