//! The names of kinds of records.

use perf_event_open_sys::bindings as sys;
use std::fmt;

/// A kind as people read it: the header's name without `PERF_RECORD_`, or the number of one without a name here.
pub(crate) struct KindName(pub(crate) u32);

macro_rules! names {
    ($($name:ident = $constant:ident),* $(,)?) => {
        impl fmt::Debug for KindName {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $(sys::$constant => f.write_str(stringify!($name)),)*
                    other => write!(f, "{other}"),
                }
            }
        }
    };
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
}
