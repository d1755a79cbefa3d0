//! `trace` of a recording.

use super::asked::{Asked, Which};
use super::{Args, events, lines_with, syscalls, time};
use crate::failure::{Failure, Outcome};
use crate::names::Names;
use crate::recorded::{self, Recorded};
use std::path::Path;
use std::process::ExitCode;

/// The system calls of a recording that has them, or the events that were asked for. Without either: all events.
pub fn run(args: &Args, asked: &Asked, path: &Path) -> Outcome {
    args.whom.target().refuse_cgroup()?;
    if args.filter.is_some() {
        return Err(Failure::hinting(
            "--filter is the kernel's, and a recording has what it has",
            "perfweave convert --json has all fields, for jq",
        ));
    }
    if args.decode_fds(asked) > 0 {
        let hint = "leave -y out, or trace the command itself: perfweave trace -y COMMAND";
        return Err(Failure::hinting("a recording does not say what is behind descriptors", hint));
    }
    let open = if args.stacking.stacks { Recorded::open_for_stacks } else { Recorded::open };
    let mut recorded = open(path)?;
    let (time, wall) = time(args);
    let mut lines = lines_with(args, time.stamp_recorded(recorded.rings())?.as_wall(wall))?;
    lines.names = Names::recorded();
    let pids = args.whom.pids();
    if pids.len() > 1 {
        return Err(Failure::hinting("-i FILE takes one process", "one after the other: -i FILE -p PID"));
    }
    let family = recorded::family(pids.first().copied(), args.whom.target().tid);
    let has_calls = recorded.place("raw_syscalls:sys_enter").is_ok();
    let are_calls = matches!(&asked.calls, Which::Only(calls) if !calls.is_empty());
    if are_calls || args.events.is_empty() && has_calls {
        syscalls::recorded(args, asked, &mut recorded, family, lines)?;
    } else {
        args.without_stacks()?;
        events::recorded(args, &mut recorded, family, lines)?;
    }
    Ok(ExitCode::SUCCESS)
}
