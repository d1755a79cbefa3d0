//! Names of addresses in a stack.

use blazesym::symbolize::source::{Kernel, Process, Source};
use blazesym::symbolize::{Input, Symbolizer};

/// An address from here on is a marker that says to what the addresses after it belong (`enum perf_callchain_context`,
/// include/uapi/linux/perf_event.h).
const CONTEXT_MAX: u64 = -4095i64 as u64;

/// The marker before the kernel's addresses.
const CONTEXT_KERNEL: u64 = -128i64 as u64;

/// The name of a process, if it still runs.
pub fn of_process(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    // A stack is separated by semicolons, and its count by a space.
    name.map_or("?".into(), |name| name.trim_end().replace([';', ' '], "_"))
}

/// Finds the names of addresses. It caches the symbols of programs and of the kernel.
#[derive(Default)]
pub struct Names(Symbolizer);

impl Names {
    /// `process;main;...;innermost`.
    pub fn fold(&self, pid: u32, name: &str, chain: &[u64]) -> String {
        let (program, kernel) = (Source::Process(Process::new(pid.into())), Source::Kernel(Kernel::default()));
        let (mut source, mut is_innermost, mut frames) = (&program, true, Vec::new());
        for &address in chain {
            if address >= CONTEXT_MAX {
                source = if address == CONTEXT_KERNEL { &kernel } else { &program };
                is_innermost = true;
                continue;
            }
            // All but the innermost are return addresses, which may lie after the end of the function.
            let called = if is_innermost { address } else { address.saturating_sub(1) };
            let name = self.0.symbolize_single(source, Input::AbsAddr(called)).ok();
            let name = name.and_then(|found| Some(found.as_sym()?.name.replace(';', ":")));
            frames.push(name.unwrap_or_else(|| "[unknown]".into()));
            is_innermost = false;
        }
        frames.push(format!("{name}:{pid}"));
        frames.reverse();
        frames.join(";")
    }
}
