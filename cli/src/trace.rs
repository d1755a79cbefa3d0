//! Prints events as they happened.

pub mod calls;
pub mod events;
mod lines;
pub mod pairs;
mod program;
mod recorded;
mod strings;
mod summary;
mod syscalls;

use crate::args::{Common, Target};
use crate::failure::{Failure, Outcome};
use crate::recorded::Input;
use crate::stamp::{self, By};
use perfweave::{Hold, Rings};

/// Prints system calls, or any events, one line each in the order in which they happened on all CPUs
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// Calls or events, with commas in between: openat,read or sched:sched_switch or kprobe:do_exit [all system calls]
    #[arg(short, long, value_name = "EVENTS", value_delimiter = ',')]
    events: Vec<String>,
    /// Keep only records that pass, in the kernel's words: 'prev_pid != 0 && next_comm ~ "post*"'
    #[arg(long, requires = "events", value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Print a table at the end instead of lines: how often, how long, how many errors
    #[arg(short, long)]
    summary: bool,
    /// Print a line at the entry into a call as well
    #[arg(long, conflicts_with = "summary")]
    enter: bool,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    time: stamp::Printed,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    target: Target,
}

const AFTER: &str = "\
A system call has one line, at its return: lines are in the order of returns over all CPUs, and the time at the left decreases only where a line is marked as late. The \
time in the call stands at the end, <12.3 µs>, so that the entry is that much earlier. A call that blocks does not hold up the lines of \
others. A call without return, such as exit_group, has its line when its thread ends. With -e, a thread without a line has none at its end. --enter prints entries at their places too, without strings if \
another tracer was there before.

Strings, and the beginnings of buffers that a call sends, are printed as they were at the entry: up to 255 bytes of a string, 32 of a buffer. A BPF program \
copies them. Other pointers are printed as addresses, and so is what was not in memory at the entry.

  perfweave trace ls                                 all calls of ls and its children
  perfweave trace -e openat,close -p 1234            two calls of a running process
  perfweave trace -s make                            a table, as strace -c
  perfweave trace -a -e 'sched:sched_switch,sched:sched_wak*' -d 1
  perfweave trace -a -e sched:sched_switch --filter 'prev_state == 2' -d 5
  perfweave trace -e kprobe:do_exit,page-faults make
  perfweave trace -a -e uprobe:/usr/lib/libc.so.6:malloc -d 1
  perfweave trace -a -e usdt:/usr/bin/node:node:gc__start    a static probe of a program
  perfweave trace -i perf.data -p 1234               a process of a recording: its calls, or else its events
  perfweave trace --json ls | jq 'select(.error == \"ENOENT\")'";

pub fn run(args: Args) -> Outcome {
    if let Some(path) = &args.input.input {
        return recorded::run(&args, path);
    }
    let of_calls: Vec<_> = args.events.iter().map_while(|name| calls::number(name)).collect();
    if of_calls.len() == args.events.len() {
        if args.filter.is_some() {
            return Err(Failure::hinting(
                "--filter is for tracepoints, and system calls are named here",
                "name the tracepoint: -e syscalls:sys_enter_openat --filter 'flags & 0x40'",
            ));
        }
        return syscalls::run(&args, &of_calls);
    }
    if let Some(call) = args.events.iter().find(|name| calls::number(name).is_some()) {
        return Err(Failure::hinting(
            format_args!("{call} is a system call, and the others are events"),
            format_args!("name it as an event too: syscalls:sys_enter_{call}"),
        ));
    }
    events::run(&args)
}

/// Whether a single event that is not proven says so. Where no rule proves any, the summary says it once.
fn marks(common: &Common) -> bool {
    !matches!(common.hold, Hold::None)
}

/// The lines, and how their times are made.
fn lines(args: &Args, rings: &Rings) -> Result<lines::Lines, Failure> {
    let stamp = args.time.stamp(rings, By::Start, args.common.json)?;
    Ok(lines::Lines::new(args.common.json, stamp, marks(&args.common)))
}
