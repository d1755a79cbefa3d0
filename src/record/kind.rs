//! The names of kinds of records.

use perf_event_open_sys::bindings as sys;
use std::borrow::Cow;

macro_rules! names {
    ($($name:ident = $constant:ident),* $(,)?) => {
        /// The header's name of a kind, without `PERF_RECORD_`.
        pub(super) fn kind_name(kind: u32) -> Option<&'static str> {
            Some(match kind {
                $(sys::$constant => stringify!($name),)*
                _ => return None,
            })
        }
    };
}

/// The name of a kind, or its number if it has no name here.
pub(crate) fn kind_text(kind: u32) -> Cow<'static, str> {
    kind_name(kind).map_or_else(|| kind.to_string().into(), Cow::from)
}

names! {
    MMAP = PERF_RECORD_MMAP,
    LOST = PERF_RECORD_LOST,
    COMM = PERF_RECORD_COMM,
    EXIT = PERF_RECORD_EXIT,
    THROTTLE = PERF_RECORD_THROTTLE,
    UNTHROTTLE = PERF_RECORD_UNTHROTTLE,
    FORK = PERF_RECORD_FORK,
    READ = PERF_RECORD_READ,
    SAMPLE = PERF_RECORD_SAMPLE,
    MMAP2 = PERF_RECORD_MMAP2,
    AUX = PERF_RECORD_AUX,
    ITRACE_START = PERF_RECORD_ITRACE_START,
    LOST_SAMPLES = PERF_RECORD_LOST_SAMPLES,
    SWITCH = PERF_RECORD_SWITCH,
    SWITCH_CPU_WIDE = PERF_RECORD_SWITCH_CPU_WIDE,
    NAMESPACES = PERF_RECORD_NAMESPACES,
    KSYMBOL = PERF_RECORD_KSYMBOL,
    BPF_EVENT = PERF_RECORD_BPF_EVENT,
    CGROUP = PERF_RECORD_CGROUP,
    TEXT_POKE = PERF_RECORD_TEXT_POKE,
    AUX_OUTPUT_HW_ID = PERF_RECORD_AUX_OUTPUT_HW_ID,
    CALLCHAIN_DEFERRED = PERF_RECORD_CALLCHAIN_DEFERRED,
}
