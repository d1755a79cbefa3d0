//! What perfweave's tests, examples and benches share: BPF programs as instructions, pinned threads, loud skips.
//!
//! It does not know perfweave.

pub mod args;
pub mod bpf;
pub mod by_ring;
pub mod foreign;
pub mod load;
pub mod privilege;
pub mod probe;
pub mod tracefs;

/// What a test that needs the real kernel does when the kernel refuses: it skips, loudly, or fails where
/// `PERFWEAVE_REQUIRE_KERNEL=1` says that the kernel must not refuse.
pub fn kernel<T, E: std::fmt::Display>(what: &str, answer: Result<T, E>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(error) if std::env::var_os("PERFWEAVE_REQUIRE_KERNEL").is_some_and(|set| set == "1") => {
            panic!("{what}: {error}, and PERFWEAVE_REQUIRE_KERNEL=1")
        }
        Err(error) => {
            eprintln!("SKIPPED, nothing was tested: {what}: {error}");
            None
        }
    }
}

/// A perf event array for this machine's CPUs, and a program that outputs the number it is given into it. `None` where the
/// kernel refuses either.
pub fn echo() -> Option<(bpf::Map, bpf::Program)> {
    let events = kernel("make a perf event array", bpf::Map::perf_event_array(load::slots()))?;
    let program = kernel("load a BPF program", bpf::echo(&events))?;
    Some((events, program))
}
