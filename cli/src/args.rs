//! Arguments that several commands have, named as those of perf and strace.

use crate::child::Child;
use crate::failure::Failure;
use crate::out::say;
use crate::rcu::Rcu;
use crate::sizing;
use clap::Args;
use perfweave::{Hold, Order, RingOptions};
use perfweave_events::WithoutSelf;
use perfweave_proofs::{Barrier, expedited};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Whom to trace. Without any of these: the whole machine.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Trace a process with all threads and children that it has and starts
    #[arg(short, long, value_name = "PID", conflicts_with_all = ["tid", "cgroup", "command"])]
    pub pid: Option<u32>,
    /// Trace one thread
    #[arg(short, long, value_name = "TID", conflicts_with_all = ["cgroup", "command"])]
    pub tid: Option<u32>,
    /// Trace the processes of a control group, by its directory in /sys/fs/cgroup
    #[arg(short = 'g', long, value_name = "DIRECTORY", conflicts_with = "command")]
    pub cgroup: Option<PathBuf>,
    /// Trace all processes, also beside a command
    #[arg(short, long, conflicts_with_all = ["pid", "tid", "cgroup"])]
    pub all: bool,
    /// Trace this command from its first instruction on, with its own input and output, until it ends. Words behind its
    /// name are its own
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Target {
    /// Starts the command, if there is one, which waits until it is let go.
    pub fn start(&self) -> Result<Option<Child>, Failure> {
        if self.command.is_empty() { Ok(None) } else { Child::start(&self.command).map(Some) }
    }

    /// The events of these processes.
    pub fn limit(&self, options: RingOptions, child: Option<&Child>) -> RingOptions {
        match (self.process(child), self.tid, &self.cgroup) {
            (Some(pid), ..) if self.pid.is_some() => options.pid_tree(pid),
            // A command has no children yet.
            (Some(pid), ..) => options.pid(pid),
            (_, Some(tid), _) => options.tid(tid),
            (.., Some(directory)) => options.cgroup(directory),
            _ => options,
        }
    }

    /// The process that is traced with its children, if it is one.
    pub fn process(&self, child: Option<&Child>) -> Option<u32> {
        let is_other = self.all || self.tid.is_some() || self.cgroup.is_some();
        self.pid.or(child.filter(|_| !is_other).map(Child::pid))
    }

    /// Whether there are processes that are not traced.
    pub fn is_limited(&self) -> bool {
        self.pid.is_some() || self.tid.is_some() || self.cgroup.is_some() || !self.command.is_empty() && !self.all
    }

    /// Refuses a control group where a recording is read.
    pub fn refuse_cgroup(&self) -> Result<(), Failure> {
        match self.cgroup {
            None => Ok(()),
            Some(_) => Err(Failure::hinting(
                "a recording does not say whose control group its events are",
                "name a process of it: --pid PID, or threads: --comm NAME",
            )),
        }
    }

    /// The process or thread at whose end there is nothing more to trace.
    pub fn watched(&self) -> Option<u32> {
        self.pid.or(self.tid)
    }
}

/// How to trace, and how to print.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Stop after this many seconds
    #[arg(short = 'd', long, value_name = "N", value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// When an event may leave: fence, proven by a grace period; expedited, the same sooner and for more CPU; reserved,
    /// for BPF ring buffers whose programs draw the key inside the reservation; none, at once and unproven
    #[arg(long, value_name = "RULE", default_value = "fence", value_parser = hold)]
    pub hold: Hold,
    /// Memory of each CPU's ring, such as 512K or 4M; `perfweave check` says which holds what
    #[arg(short, long, value_name = "SIZE", default_value = sizing::DEFAULT, value_parser = bytes)]
    pub buffer: u64,
    /// Print one JSON object a line
    #[arg(short, long)]
    pub json: bool,
}

impl Common {
    /// The order of the stream, without what is about this program.
    pub fn order(&self) -> Order {
        Order::new().hold(self.hold.clone()).without_self()
    }

    /// Says that expedited grace periods were asked for where there are none. The order is proven all the same.
    pub fn say_if_not_expedited(&self) {
        if self.hold.to_string() == "expedited" && matches!(Rcu::read(), Ok(Rcu::Normal)) {
            say(format_args!(
                "perfweave: --hold expedited is as slow as --hold fence here: /sys/kernel/rcu_normal is 1, so no \
                 grace period is expedited"
            ));
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "a number of seconds is expected, such as 0.5".to_string())?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

fn hold(text: &str) -> Result<Hold, String> {
    match text {
        "fence" => Ok(Hold::FENCE),
        "expedited" => Ok(Hold::Fence(expedited(Duration::from_millis(1)))),
        "reserved" => Ok(Hold::Fence(Barrier::INTERRUPTS.fence())),
        "none" => Ok(Hold::None),
        _ => Err("it is fence, expedited, reserved or none".into()),
    }
}

pub fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|unit: char| !unit.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => Some(0),
        "K" | "k" => Some(10),
        "M" | "m" => Some(20),
        "G" | "g" => Some(30),
        _ => None,
    };
    let number = digits.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(1 << unit));
    number.ok_or_else(|| "a size is expected, such as 65536, 512K or 4M".into())
}

/// A power of two, as `--buffer` takes it.
pub fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{}M", bytes >> 20) } else { format!("{}K", bytes.div_ceil(1 << 10)) }
}

#[cfg(test)]
mod tests {
    use super::{bytes, hold, seconds, size};

    #[test]
    fn sizes_seconds_and_rules() {
        let sizes = ["1", "512K", "4m", "1G"].map(|text| bytes(text).unwrap());
        assert_eq!(sizes, [1, 512 << 10, 4 << 20, 1 << 30]);
        assert_eq!([4 << 10, 1 << 20, 1 << 30].map(size), ["4K", "1M", "1024M"]);
        assert!(["", "K", "1T", "-1", "99999999999G"].into_iter().all(|text| bytes(text).is_err()));
        assert_eq!(seconds("0.25").unwrap().as_millis(), 250);
        assert!(["", "x", "-1", "1e400"].into_iter().all(|text| seconds(text).is_err()));
        assert!(hold("fence").is_ok() && hold("expedited").is_ok() && hold("none").is_ok() && hold("lag").is_err());
    }
}
