//! Who executes a tracepoint: the running thread, or an interrupt that has no part in what the thread does.

use crate::packed::Packed;

/// The bits of `common_flags` and what they say, the innermost first: `TRACE_FLAG_NMI`, `TRACE_FLAG_HARDIRQ` and
/// `TRACE_FLAG_SOFTIRQ` (include/linux/trace_events.h).
const KINDS: [(u64, &str); 3] = [(0x40, "nmi"), (0x08, "hardirq"), (0x10, "softirq")];

/// The interrupt that executes a tracepoint with this `common_flags`. `None`: the thread itself.
pub fn kind(flags: u64) -> Option<&'static str> {
    KINDS.into_iter().find(|(bit, _)| flags & bit != 0).map(|(_, name)| name)
}

/// The name of a kind.
impl Packed for &'static str {
    fn pack(&self, out: &mut Vec<u8>) {
        KINDS.iter().position(|(_, name)| name == self).pack(out);
    }

    fn unpack(bytes: &mut &[u8]) -> Self {
        Option::unpack(bytes).map_or("interrupt", |at: usize| KINDS[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::kind;

    #[test]
    fn the_innermost_interrupt_counts_and_a_thread_is_none() {
        // 0x01, 0x02, 0x04, 0x20: interrupts off, bottom halves off, need_resched, preempt_resched.
        let kinds = [0, 0x27, 0x08, 0x11, 0x18, 0x58].map(kind);
        assert_eq!(kinds, [None, None, Some("hardirq"), Some("softirq"), Some("hardirq"), Some("nmi")]);
    }
}
