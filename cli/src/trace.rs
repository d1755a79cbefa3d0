//! Prints events as they happened.

mod asked;
pub mod calls;
mod classes;
mod ends;
pub mod events;
mod executed;
mod lines;
pub mod named;
mod opened;
pub mod pairs;
mod program;
mod recorded;
mod refused;
mod shapes;
mod shown;
mod signals;
mod stacks;
mod strings;
mod summary;
mod syscalls;
mod whom;

use crate::args::Common;
use crate::failure::{Failure, Outcome};
use crate::out::Out;
use crate::output;
use crate::recorded::Input;
use crate::stamp::{self, By, Wall};
use asked::{Asked, End, Which};
use clap::ArgAction;
use perfweave::{Hold, Rings};
use shown::Shown;
use std::path::PathBuf;

/// Prints system calls, or any events, one line each in the order in which they happened on all CPUs
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub struct Args {
    /// Calls or events, with commas in between: openat,read or %file or '!futex' or sched:sched_switch or
    /// kprobe:do_exit; and as strace has it, status=failed, signal=SIGINT, quiet=exit [all system calls]
    #[arg(short, long, alias = "trace", value_name = "EVENTS")]
    events: Vec<String>,
    /// Keep only records that pass, in the kernel's words: 'prev_pid != 0 && next_comm ~ "post*"'
    #[arg(long, requires = "events", value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Print a table at the end instead of lines: how often, how long, how many errors
    #[arg(short = 'c', long)]
    summary_only: bool,
    /// Print the table after the lines
    #[arg(short = 'C', long, conflicts_with = "summary_only")]
    summary: bool,
    /// What the table is sorted by
    #[arg(
        short = 'S',
        long = "summary-sort-by",
        value_name = "KEY",
        default_value = "time",
        hide_default_value = true
    )]
    sort: summary::Sort,
    /// Print into a file, which only this user may read
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the time of day, with -tt in microseconds, with -ttt as seconds since 1970
    #[arg(short = 't', long = "absolute-timestamps", action = ArgAction::Count, conflicts_with = "time")]
    of_day: u8,
    /// Print times since the line before
    #[arg(short = 'r', long = "relative-timestamps", conflicts_with = "time")]
    relative: bool,
    /// Accepted: the time in a call always stands at the end of its line
    #[arg(short = 'T', long = "syscall-times")]
    times: bool,
    /// Only calls that succeed
    #[arg(short = 'z', long, conflicts_with = "failed_only")]
    successful_only: bool,
    /// Only calls that fail
    #[arg(short = 'Z', long)]
    failed_only: bool,
    /// Only calls that take at least this long
    #[arg(long, value_name = "MILLISECONDS", value_parser = milliseconds)]
    duration: Option<u64>,
    /// Only calls with this path as an argument, or with a descriptor that is open on it
    #[arg(short = 'P', long = "trace-path", value_name = "PATH")]
    path: Vec<PathBuf>,
    /// Print what is behind descriptors, at the moment of the call: 3</etc/passwd>; with -yy addresses of sockets and
    /// numbers of devices
    #[arg(
        short = 'y',
        long = "decode-fds",
        value_name = "WHICH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "path",
        hide_possible_values = true,
        value_parser = |text: &str| asked::decoded(text).map_err(|failure| failure.message().to_owned())
    )]
    decode_fds: Vec<u8>,
    /// Bytes of a string that are printed at most; paths are printed as far as they are copied
    #[arg(short = 's', long = "string-limit", value_name = "N", default_value = "32", value_parser = letters)]
    string_limit: usize,
    /// Print strings that are not of ASCII alone in hexadecimal, with -xx all strings
    #[arg(short = 'x', long = "strings-in-hex", action = ArgAction::Count)]
    hexadecimal: u8,
    /// Accepted; with -qq threads have no line at their end
    #[arg(short, long, action = ArgAction::Count)]
    quiet: u8,
    /// Print a line at the entry into a call as well
    #[arg(long, conflicts_with = "summary_only")]
    enter: bool,
    #[command(flatten)]
    stacking: stacks::Stacking,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    time: stamp::Printed,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    whom: whom::Whom,
    #[command(flatten)]
    refused: refused::Refused,
}

const AFTER: &str = "\
A system call has one line, at its return, with the text of strace(1): lines are in the order of returns over all CPUs, and the time at the left decreases only where a line is marked as late. The \
time in the call stands at the end, <12.3 µs>, so that the entry is that much earlier. A call that blocks does not hold up the lines of \
others. A call without return, such as exit_group, has its line when its thread ends. Signals that are delivered, and ends of threads with \
their status, have lines of their own. A signal that ends a process without a handler has only that of the end. With -e, a thread without a line of a call has none of these. --enter prints entries at their \
places too, without strings if another tracer was there before.

What arguments point to is copied by BPF programs, when the call is entered or when it returns: strings, the beginnings of buffers, structs, \
and lists. A string that was not in memory at the entry is read at the return. Other pointers are printed as addresses, and so is what is \
in no memory even then. JSON has the same under the names that the kernel has for arguments.

Options are those of strace where there are some. Lines go to the standard output. Several -e add up, and one with ! takes calls away.

  perfweave trace ls                                 all calls of ls and its children
  perfweave trace -e openat,close -p 1234            two calls of a running process
  perfweave trace -y -e %desc ls                     and the paths and sockets behind descriptors
  perfweave trace -c make                            a table, as strace -c
  perfweave trace -f -tt -e %file -o FILE make       options of strace: files, with the time of day
  perfweave trace -k -e openat ls                    and the stack of each call
  perfweave trace -p 12,13 -e '!futex' --duration 10 what took 10 ms, but futexes
  perfweave trace -a -e 'sched:sched_switch,sched:sched_wak*' -d 1
  perfweave trace -a -e sched:sched_switch --filter 'prev_state == 2' -d 5
  perfweave trace -e kprobe:do_exit,page-faults make
  perfweave trace -a -e uprobe:/usr/lib/libc.so.6:malloc -d 1
  perfweave trace -a -e usdt:/usr/bin/node:node:gc__start    a static probe of a program
  perfweave trace -i perf.data -p 1234               a process of a recording: its calls, or else its events
  perfweave trace --json ls | jq 'select(.error == \"ENOENT\")'";

pub fn run(mut args: Args) -> Outcome {
    args.refused.check()?;
    let asked = Asked::of(&args.events, &mut calls::Calls::default())?;
    args.events.clone_from(&asked.events);
    let some_calls = matches!(&asked.calls, Which::Only(calls) if !calls.is_empty());
    if let Some(event) = asked.events.first().filter(|_| some_calls) {
        return Err(Failure::hinting(
            format_args!("{event} is an event, and others are system calls"),
            "name these as events too: syscalls:sys_enter_openat",
        ));
    }
    if let Some(path) = &args.input.input {
        return recorded::run(&args, &asked, path);
    }
    if asked.events.is_empty() {
        if args.filter.is_some() {
            return Err(Failure::hinting(
                "--filter is for tracepoints, and system calls are named here",
                "name the tracepoint: -e syscalls:sys_enter_openat --filter 'flags & 0x40'",
            ));
        }
        return syscalls::run(&args, &asked);
    }
    args.without_stacks()?;
    events::run(&args)
}

impl Args {
    /// How much of descriptors is printed: paths, or from 2 on addresses and devices too.
    fn decode_fds(&self, asked: &Asked) -> u8 {
        self.decode_fds.iter().copied().fold(0, u8::saturating_add).max(asked.decode_fds)
    }

    /// Refuses stacks of events that are no calls.
    fn without_stacks(&self) -> Result<(), Failure> {
        if !self.stacking.stacks {
            return Ok(());
        }
        Err(Failure::hinting(
            "-k is for system calls, as in strace",
            "perfweave profile -e EVENT counts the stacks of an event",
        ))
    }

    /// Whether a table is printed.
    fn summarizes(&self) -> bool {
        self.summary_only || self.summary
    }
}

/// Whether a single event that is not proven says so. Where no rule proves any, the summary says it once.
fn marks(common: &Common) -> bool {
    !matches!(common.hold, Hold::None)
}

/// The lines, and how their times are made.
fn lines(args: &Args, rings: &Rings) -> Result<lines::Lines, Failure> {
    let (time, wall) = time(args);
    lines_with(args, time.stamp(rings, By::Start, args.common.json)?.as_wall(wall))
}

/// How times are made, and how those of the clock at the wall are printed.
fn time(args: &Args) -> (stamp::Printed, Wall) {
    let wall = [Wall::Date, Wall::OfDay, Wall::Microseconds, Wall::Epoch][usize::from(args.of_day.min(3))];
    (if args.of_day > 0 { stamp::Printed { time: Some(By::Real) } } else { args.time.clone() }, wall)
}

fn lines_with(args: &Args, stamp: stamp::Stamp) -> Result<lines::Lines, Failure> {
    let out = match &args.output {
        None => Out::new(),
        Some(path) => Out::file(output::create(path).map_err(|error| {
            let path = path.display();
            Failure::hinting(format_args!("{path}: {error}"), "for a command: perfweave trace ... | COMMAND")
        })?),
    };
    let mut lines = lines::Lines::new(out, args.common.json, stamp, marks(&args.common));
    if args.relative {
        lines.since_last(args.of_day > 0);
    }
    Ok(lines)
}

/// Which calls have lines.
fn shown(args: &Args, asked: &Asked) -> Shown {
    let ends = match (args.successful_only, args.failed_only) {
        (true, _) => Which::Only([End::Successful].into()),
        (_, true) => Which::Only([End::Failed].into()),
        _ => asked.ends.clone(),
    };
    Shown { ends, least: args.duration, paths: Vec::new() }.with_paths(&args.path)
}

fn letters(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "a number of bytes is expected; the table alone is -c".into())
}

fn milliseconds(text: &str) -> Result<u64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number >= 0.0 && number.is_finite());
    number.map(|number| (number * 1e6) as u64).ok_or_else(|| "milliseconds are expected, such as 0.5".into())
}
