//! What perfweave's tests, examples and benches share: BPF programs as instructions, pinned threads, loud skips.
//!
//! It does not know perfweave.

pub mod apart;
pub mod args;
pub mod bpf;
pub mod by_ring;
pub mod counting;
pub mod cpus;
pub mod foreign;
pub mod json;
pub mod load;
pub mod lock;
pub mod naive;
pub mod numbered;
pub mod perf;
pub mod pin;
pub mod privilege;
pub mod probe;
pub mod ring_buffer;
mod skip;
pub mod sleeper;
pub mod supervised;
pub mod threads;
pub mod tracefs;

#[cfg(feature = "tokio")]
pub use futures_util;
pub use linux_perf_data;

/// The result of something that a test needs from the kernel. If the kernel refuses, the test skips and says so, or
/// fails under `PERFWEAVE_REQUIRE_KERNEL=1`, which allows no skips. The end of the process lists what was skipped.
///
/// Keeps CPUs as they are from now on ([`cpus::keep`]).
///
/// # Panics
/// Where the kernel refuses, under `PERFWEAVE_REQUIRE_KERNEL=1`.
#[track_caller]
pub fn kernel<T, E: std::fmt::Display>(what: &str, answer: Result<T, E>) -> Option<T> {
    cpus::keep();
    match answer {
        Ok(value) => Some(value),
        Err(error) => {
            skip::skip(&format!("{what}: {error}"));
            None
        }
    }
}

/// The same for what a test needs the machine to have, such as two CPUs.
///
/// # Panics
/// Where the machine does not have it, under `PERFWEAVE_REQUIRE_KERNEL=1`: then there must be such a machine.
#[track_caller]
pub fn needs(what: &str, is_there: bool) -> Option<()> {
    cpus::keep();
    if !is_there {
        skip::skip(&format!("this machine does not have {what}"));
    }
    is_there.then_some(())
}

/// Whether perf(1) runs, which some tests compare with ([`runs`]).
///
/// # Panics
/// As `runs` does.
#[track_caller]
pub fn perf() -> Option<()> {
    runs(&["perf", "--version"], "Debian's package linux-perf")
}

/// Whether a program runs that is neither part of Rust nor of every Debian: it says its version. A test that calls one
/// asks here first. Where it does not run, that is listed with what was skipped, also under
/// `PERFWEAVE_REQUIRE_KERNEL=1`, which is about the kernel.
///
/// # Panics
/// Where it does not, and `PERFWEAVE_REQUIRE_TOOLS` is set: to `1`, or to `1 -NAME` for all but that one.
#[track_caller]
pub fn runs(program: &[&str], from: &str) -> Option<()> {
    cpus::keep();
    let (name, args) = program.split_first()?;
    let output = std::process::Command::new(name).args(args).output();
    let is_there = output.is_ok_and(|output| output.status.success());
    if !is_there {
        let words = format!("{} {from}", program.join(" "));
        let required = std::env::var("PERFWEAVE_REQUIRE_TOOLS").unwrap_or_default();
        let mut but = required.split(' ').filter_map(|word| word.strip_prefix('-'));
        skip::want(&format!("{name}, from {from}"), !required.is_empty() && !but.any(|tool| words.contains(tool)));
    }
    is_there.then_some(())
}

/// Whether tests may take CPUs offline ([`cpus::may_go`]). Where nobody has asked for that, it is listed with what was
/// skipped, also under `PERFWEAVE_REQUIRE_KERNEL=1`.
#[track_caller]
pub fn hotplug() -> Option<()> {
    if !cpus::may_go() {
        skip::want("PERFWEAVE_HOTPLUG=1, with which a CPU goes offline for moments", false);
    }
    cpus::may_go().then_some(())
}

/// The folder of recordings that `PERFWEAVE_RECORDINGS` names. Without one, that is listed with what was skipped, also
/// under `PERFWEAVE_REQUIRE_TOOLS`: no machine has such a collection by itself.
#[track_caller]
pub fn recordings() -> Option<std::path::PathBuf> {
    let folder = std::env::var_os("PERFWEAVE_RECORDINGS");
    if folder.is_none() {
        skip::want("PERFWEAVE_RECORDINGS=FOLDER, a collection of recordings to compare with perf", false);
    }
    folder.map(Into::into)
}

/// Notes what could not be tested because this kernel was built without it. It is listed with the skips, and is never a
/// failure, because it takes another kernel.
#[track_caller]
pub fn lacks(what: &str) {
    skip::note(&format!("this kernel does not have {what}"));
}

/// Whether membarrier(2) can wait for grace periods here. Where not, as under `nohz_full`, that is noted ([`lacks`]).
#[track_caller]
pub fn membarrier() -> bool {
    // SAFETY: no pointers.
    let commands = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_QUERY, 0, 0) };
    let waits = commands > 0 && commands & libc::c_long::from(libc::MEMBARRIER_CMD_GLOBAL) != 0;
    if !waits {
        lacks("grace periods by membarrier(2), which nohz_full takes away");
    }
    waits
}

/// A perf event array for this machine's CPUs, and a program that outputs the number it is given into it. `None` where
/// the kernel refuses either.
#[track_caller]
pub fn echo() -> Option<(bpf::Map, bpf::Program)> {
    let events = kernel("make a perf event array", bpf::Map::perf_event_array(load::slots()))?;
    let program = kernel("load a BPF program", bpf::echo(&events))?;
    Some((events, program))
}

/// Checks an error's kind and what its message says: `assert_error!(error, NotFound, "CPU 3 has no ring")`. Texts may
/// be formatted values.
#[macro_export]
macro_rules! assert_error {
    ($error:expr, $kind:ident $(, $text:expr)* $(,)?) => {{
        let error = &$error;
        let said = error.to_string();
        assert_eq!(error.kind(), perfweave::ErrorKind::$kind, "{said}");
        $({
            let text = $text.to_string();
            assert!(said.contains(&text), "{said:?} lacks {text:?}");
        })*
    }};
}

/// The number in a message behind a text.
///
/// # Panics
/// If there is none.
pub fn number_behind(message: &str, text: &str) -> u64 {
    let (_, behind) = message.split_once(text).unwrap_or_else(|| panic!("{message:?} lacks {text:?}"));
    let digits = behind.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(behind.len());
    behind[..digits].parse().unwrap_or_else(|_| panic!("{message:?} has no number behind {text:?}"))
}

/// How many times since the last report an error came: a message says so if it was more than once.
pub fn times(message: &str) -> u64 {
    if message.contains(", the last of ") { number_behind(message, ", the last of ") } else { 1 }
}
