//! `trace` of a recording.

use super::{Args, calls, events, lines, marks, syscalls};
use crate::failure::{Failure, Outcome};
use crate::names::Names;
use crate::recorded::{self, Recorded};
use std::path::Path;
use std::process::ExitCode;

/// The system calls of a recording that has them, or the events that were asked for. Without either: all events.
pub fn run(args: &Args, path: &Path) -> Outcome {
    args.target.refuse_cgroup()?;
    if args.filter.is_some() {
        return Err(Failure::hinting(
            "--filter is the kernel's, and a recording has what it has",
            "perfweave convert --json has all fields, for jq",
        ));
    }
    let numbers: Vec<_> = args.events.iter().filter_map(|name| calls::number(name)).collect();
    if !numbers.is_empty() && numbers.len() != args.events.len() {
        let hint = "ask for one kind at a time";
        return Err(Failure::hinting("some of these are system calls, and the others are events", hint));
    }
    let mut recorded = Recorded::open(path)?;
    let stamp = args.time.stamp_recorded(recorded.rings())?;
    let mut lines = lines::Lines::new(args.common.json, stamp, marks(&args.common));
    lines.names = Names::recorded();
    let family = recorded::family(args.target.pid, args.target.tid);
    let has_calls = recorded.place("raw_syscalls:sys_enter").is_ok();
    if !numbers.is_empty() || args.events.is_empty() && has_calls {
        syscalls::recorded(args, &numbers, &mut recorded, family, lines)?;
    } else {
        events::recorded(args, &mut recorded, family, lines)?;
    }
    Ok(ExitCode::SUCCESS)
}
