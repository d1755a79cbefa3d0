//! `-e why`: what `why` needs of a recording, as it traces live.

use super::Args;
use crate::check;
use crate::failure::Failure;
use crate::modifiers::Modifiers;
use crate::sampled::Rate;
use crate::scheduler::Tracing;
use perfweave::{Order, RingOptions};
use std::cell::Cell;

/// The name that stands for all of it, among those of events.
pub const NAME: &str = "why";

/// What runs in the kernel for it, as long as this lives.
#[derive(Debug)]
pub struct Needs {
    pub tracing: Tracing,
}

impl Needs {
    /// `None` if it is not asked for.
    pub fn of(args: &Args) -> Result<Option<Self>, Failure> {
        if !args.event.iter().any(|name| name == NAME) {
            return Ok(None);
        }
        if args.whom.target().is_limited() || args.whom.are_several() {
            return Err(Failure::hinting(
                "-e why is of the whole machine: any thread may be the one that others wait for",
                "add -a, or leave -p, -t and --cgroup away; of the recording, why -p PID FILE is about one process",
            ));
        }
        if args.event.iter().all(|name| name == NAME) && !args.chains.are_whole() {
            return Err(Failure::hinting(
                "-e why has no call chains that are found later (--call-graph dwarf, fp,defer)",
                "-g has call chains",
            ));
        }
        // A stack at a switch is that of the tracepoint.
        let without = args.chains.are_wanted().then_some("for call chains");
        let tracing = Tracing::begin(args.way, true, without);
        match tracing.without().filter(|_| !args.way.no_bpf && without.is_none()) {
            None => Ok(Some(Self { tracing })),
            Some(why) => {
                let hint = "--no-bpf records each entry into and return from a system call instead";
                let rights = check::rights().map_or_else(String::new, |rights| format!("\n{rights}"));
                Err(Failure::hinting(format_args!("-e why needs a BPF program: {why}"), format_args!("{hint}{rights}")))
            }
        }
    }

    /// All of it, without what other names bring: what is there twice would be taken twice. They must bring all of it.
    pub fn add(&self, options: RingOptions, others: &[&str], rate: Rate) -> Result<RingOptions, Failure> {
        let split = others.iter().map(|name| Modifiers::split(name));
        let split = split.collect::<Result<Vec<_>, _>>()?;
        let is_thinned = |at: &usize| rate.is_fixed() || split[*at].1 != Modifiers::default();
        let thinned = Cell::new(None);
        let options = self.tracing.all_sources(options, |name| {
            let by = || (0..split.len()).filter(|at| fits(split[*at].0.as_bytes(), name.as_bytes()));
            thinned.set(thinned.get().or(by().find(is_thinned)));
            by().next().is_some()
        });
        match thinned.get() {
            None => Ok(options),
            Some(at) => Err(Failure::hinting(
                format_args!("-e why needs each event of {}", split[at].0),
                format_args!("leave {} away, which why has, or -c and modifiers", others[at]),
            )),
        }
    }

    /// The order of the recording, which has this program's own switches: one record of them is another thread's, too.
    pub fn order(needs: Option<&Self>, args: &Args) -> Order {
        needs.map_or_else(|| args.common.order(), |needs| needs.tracing.order(&args.common))
    }
}

/// Whether a name fits a pattern. `*` stands for any bytes and `?` for one.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => fits(rest, name) || name.split_first().is_some_and(|(_, name)| fits(pattern, name)),
        ([one, rest @ ..], [byte, name @ ..]) if [b'?', *byte].contains(one) => fits(rest, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn patterns_are_those_of_tracepoints() {
        let fits = |pattern: &str| super::fits(pattern.as_bytes(), b"sched:sched_waking");
        assert!(["sched:*", "*:*waking", "sched:sched_wak???", "*", "sched:sched_waking"].into_iter().all(fits));
        assert!(!["sched:", "sched:sched_wak??", "irq:*", "sched:sched_waking?", ""].into_iter().any(fits));
    }
}
