//! What each source of records tells: which tracepoints are taken, and where their fields are.

use crate::failure::Failure;
use crate::waits::Kinds;
use perfweave::Record;
use perfweave_events::{Field, Format};
use std::sync::Arc;

/// A tracepoint, and its fields.
#[derive(Debug)]
pub enum Source {
    /// `sched_waking`, or `sched_wakeup_new`.
    Wakes {
        by: Field,
        /// `common_flags`: whether the waker is an interrupt.
        flags: Field,
        woken: [Field; 2],
    },
    Switches {
        prev: [Field; 2],
        state: Field,
        next: [Field; 2],
    },
    Enters {
        by: Field,
        number: Field,
        args: Field,
    },
    Returns {
        by: Field,
        result: Field,
    },
    Begins(Kinds, Named),
    Ends(Kinds),
    /// `netif_rx`: a packet to this machine.
    Sends {
        by: Field,
        flags: Field,
        packet: Field,
    },
    Delivers(Field),
    /// `signal_generate`: to whom, which, whether to all of a process, and whether it counts.
    Signals([Field; 4]),
    /// Whose queue it was, how many it has delivered, and the most that it may.
    HasDelivered(Option<[Field; 3]>),
    /// The programs of [`super::switch`].
    Programs,
    Other,
}

/// Those of the tracepoints that are taken.
const CATEGORIES: [&str; 7] = ["sched:", "raw_syscalls:", "signal:", "irq:", "timer:", "net:", "napi:"];

/// [`interrupt::kind`] of what begins and ends.
const HARD: Kinds = &["hardirq"];
const SOFT: Kinds = &["softirq"];
const TIMER: Kinds = &["hardirq", "softirq"];

/// How an interrupt is called.
#[derive(Debug)]
pub enum Named {
    Timer,
    Device(Field),
    /// By its number.
    Soft(Field),
}

impl Source {
    /// `name`: with its category, if it is known.
    pub fn of(name: Option<&str>, format: &Format, needs_all: bool) -> Result<Self, Failure> {
        // A probe may have the name of one of these, and has other fields: probe:netif_rx.
        if name.is_some_and(|name| !CATEGORIES.iter().any(|category| name.starts_with(category))) {
            return Ok(Self::Other);
        }
        match Self::with_fields(format) {
            Err(_) if !needs_all => Ok(Self::Other),
            source => source,
        }
    }

    fn with_fields(format: &Format) -> Result<Self, Failure> {
        let task = |[pid, comm]: [&str; 2]| Ok::<_, Failure>([format.field(pid)?, format.field(comm)?]);
        let by = || format.field("common_pid");
        Ok(match format.name() {
            "sched_waking" | "sched_wakeup_new" => {
                Self::Wakes { by: by()?, flags: format.field("common_flags")?, woken: task(["pid", "comm"])? }
            }
            "sched_switch" => Self::Switches {
                prev: task(["prev_pid", "prev_comm"])?,
                state: format.field("prev_state")?,
                next: task(["next_pid", "next_comm"])?,
            },
            "sys_enter" => Self::Enters { by: by()?, number: format.field("id")?, args: format.field("args")? },
            "sys_exit" => Self::Returns { by: by()?, result: format.field("ret")? },
            "irq_handler_entry" => Self::Begins(HARD, Named::Device(format.field("name")?)),
            "softirq_entry" => Self::Begins(SOFT, Named::Soft(format.field("vec")?)),
            "hrtimer_expire_entry" => Self::Begins(TIMER, Named::Timer),
            "irq_handler_exit" => Self::Ends(HARD),
            "softirq_exit" => Self::Ends(SOFT),
            "hrtimer_expire_exit" => Self::Ends(TIMER),
            "netif_rx" => {
                Self::Sends { by: by()?, flags: format.field("common_flags")?, packet: format.field("skbaddr")? }
            }
            "signal_generate" => Self::Signals([
                format.field("pid")?,
                format.field("sig")?,
                format.field("group")?,
                format.field("result")?,
            ]),
            "netif_receive_skb" => Self::Delivers(format.field("skbaddr")?),
            // Linux before 4.8 has no counts.
            "napi_poll" => Self::HasDelivered(match ["dev_name", "work", "budget"].map(|name| format.field(name)) {
                [Ok(device), Ok(work), Ok(budget)] => Some([device, work, budget]),
                _ => None,
            }),
            _ => Self::Other,
        })
    }
}

impl Named {
    pub fn name(&self, record: &Record<'_>) -> Option<Arc<str>> {
        // As `print fmt` of `irq:softirq_entry` has them.
        const SOFT: [&str; 10] =
            ["hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "timer", "rcu"];
        Some(match self {
            Self::Timer => "timer".into(),
            Self::Device(name) => name.text(record)?.into(),
            Self::Soft(number) => {
                SOFT.get(usize::try_from(number.uint(record)?).ok()?).copied().unwrap_or("softirq").into()
            }
        })
    }
}

/// Whether a CPU's queue of packets to this machine is empty. It has no device, and one that has delivered fewer than
/// it may has no more (`process_backlog`, net/core/dev.c).
pub fn is_backlog_empty([device, work, budget]: &[Field; 3], record: &Record<'_>) -> bool {
    let has_none = device.text(record).is_some_and(|device| device == "(no device)");
    has_none && work.int(record).zip(budget.int(record)).is_some_and(|(work, budget)| work < budget)
}

#[cfg(test)]
mod tests {
    use super::Source;
    use perfweave_events::Format;

    /// A format that has what all have, and one field more.
    fn format(name: &str, field: &str) -> Format {
        let text = format!(
            "name: {name}\nID: 7\nformat:\n\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\tfield:{field};\toffset:8;\tsize:8;\tsigned:0;\n\nprint fmt: \"\"\n"
        );
        text.parse().unwrap()
    }

    #[test]
    fn a_probe_with_a_tracepoints_name_is_not_one() {
        let [probe, packet] = ["unsigned long __probe_ip", "void * skbaddr"].map(|field| format("netif_rx", field));
        let of = |name, format| Source::of(Some(name), format, true);
        assert!(matches!(of("probe:netif_rx", &probe), Ok(Source::Other)));
        assert!(matches!(of("probe:netif_rx", &packet), Ok(Source::Other)));
        assert!(matches!(of("net:netif_rx", &packet), Ok(Source::Sends { .. })));
        // One whose category is not known.
        assert!(matches!(Source::of(None, &packet, true), Ok(Source::Sends { .. })));
    }

    /// `convert` shows what there is. Who asks for waits is told that a field is missing.
    #[test]
    fn a_tracepoint_without_a_field_tells_nothing_to_the_painter() {
        let without = format("sched_switch", "pid_t prev_pid");
        let of = |needs_all| Source::of(Some("sched:sched_switch"), &without, needs_all);
        assert!(matches!(of(false), Ok(Source::Other)));
        assert!(of(true).is_err());
    }
}
