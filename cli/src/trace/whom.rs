//! Whom `trace` traces, by the options of strace(1).

use crate::args::Target;
use crate::child::Child;
use crate::failure::Failure;
use crate::family::Family;
use clap::Args;
use perfweave::RingOptions;
use std::ffi::OsString;
use std::path::PathBuf;

/// Whom to trace. Without any of these: the whole machine.
#[derive(Debug, Clone, Args)]
pub struct Whom {
    /// Trace processes with all threads and children that they have and start: -p 12,13 or -p 12 -p 13. For more than
    /// one, the rings have the records of the whole machine, and those of others are left out
    #[arg(short, long, value_name = "PIDS", value_parser = pids, conflicts_with_all = ["tid", "cgroup", "command"])]
    pid: Vec<Pids>,
    /// Trace one thread
    #[arg(long, value_name = "TID", conflicts_with_all = ["cgroup", "command"])]
    tid: Option<u32>,
    /// Trace the processes of a control group, by its directory in /sys/fs/cgroup
    #[arg(short = 'g', long, value_name = "DIRECTORY", conflicts_with = "command")]
    cgroup: Option<PathBuf>,
    /// Trace all processes, also beside a command
    #[arg(short, long, conflicts_with_all = ["pid", "tid", "cgroup"])]
    all: bool,
    /// Accepted: threads and children are always traced
    #[arg(short = 'f', long = "follow-forks", action = clap::ArgAction::Count)]
    follow: u8,
    /// Run the command as this user, with the user's groups
    #[arg(short, long, value_name = "USER", requires = "command")]
    user: Option<String>,
    /// Trace this command from its first instruction on, with its own input and output, until it ends. Words behind its
    /// name are its own
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The processes that one `-p` names.
#[derive(Debug, Clone)]
struct Pids(Vec<u32>);

/// With commas or, as pidof(8) prints them, spaces in between.
fn pids(text: &str) -> Result<Pids, String> {
    let words = text.split(|letter: char| letter == ',' || letter.is_whitespace()).filter(|word| !word.is_empty());
    let numbers = words.map(|word| word.parse().map_err(|_| format!("{word} is no number of a process")));
    match numbers.collect::<Result<Vec<u32>, _>>()? {
        numbers if numbers.is_empty() => Err("the number of a process is expected".into()),
        numbers => Ok(Pids(numbers)),
    }
}

impl Whom {
    /// The processes that `-p` names.
    pub fn pids(&self) -> Vec<u32> {
        self.pid.iter().flat_map(|pids| pids.0.iter().copied()).collect()
    }

    /// Starts the command, if there is one, which waits until it is let go.
    pub fn start(&self) -> Result<Option<Child>, Failure> {
        if self.follow > 1 {
            let hint = "leave -ff out: all lines are in one order, and each has the number of its thread";
            return Err(Failure::hinting("-ff: there is no file for each process", hint));
        }
        let Some(first) = self.command.first() else { return Ok(None) };
        if first.to_str().is_some_and(|word| word.parse::<u64>().is_ok()) {
            let first = first.to_string_lossy();
            let hint =
                format!("-a is all processes and -t the time of day, without a number; a thread is --tid {first}");
            return Err(Failure::hinting(format_args!("{first} stands where the command does"), hint));
        }
        Child::start_as(&self.command, self.user.as_deref()).map(Some)
    }

    /// The same as one target of rings: the whole machine for more than one process.
    pub fn target(&self) -> Target {
        let pids = self.pids();
        Target {
            pid: pids.first().copied().filter(|_| pids.len() == 1),
            tid: self.tid,
            cgroup: self.cgroup.clone(),
            all: self.all || pids.len() > 1,
            command: self.command.clone(),
        }
    }

    /// The events of these processes.
    pub fn limit(&self, options: RingOptions, child: Option<&Child>) -> RingOptions {
        self.target().limit(options, child)
    }

    /// The threads whose records count, where the rings have those of all: for more than one process, or because of
    /// probes, which no process inherits. To be called when the rings are open.
    pub fn family(&self, child: Option<&Child>, has_probes: bool) -> Result<Family, Failure> {
        match self.pids() {
            pids if pids.len() > 1 => Family::of_all(&pids),
            _ if has_probes => self.target().process(child).map_or_else(|| Ok(Family::All), Family::of),
            _ => Ok(Family::All),
        }
    }

    /// Whether only some processes, and what they start, are traced.
    pub fn has_family(&self) -> bool {
        !self.pid.is_empty() || self.tid.is_some() || !self.command.is_empty() && !self.all
    }

    /// These processes, those that they have started included.
    pub fn processes(&self, child: Option<&Child>) -> Result<Vec<u32>, Failure> {
        let named = self.pids().into_iter().chain(self.tid).chain(child.map(Child::pid));
        Ok(Family::of_all(&named.collect::<Vec<_>>())?.processes())
    }

    /// The processes or threads at whose end there is nothing more to trace.
    pub fn watched(&self) -> Vec<u32> {
        self.pids().into_iter().chain(self.tid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::pids;

    #[test]
    fn numbers_have_commas_or_spaces_in_between() {
        let numbers = ["7", "1,2", "3 4\n", " 5, 6"].map(|text| pids(text).unwrap().0);
        assert_eq!(numbers, [vec![7], vec![1, 2], vec![3, 4], vec![5, 6]]);
        assert!(["", ",", "x", "1,x", "-1"].into_iter().all(|text| pids(text).is_err()));
    }
}
