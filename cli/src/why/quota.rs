//! Whether the quota of a control group held a process back, by the group's own counters; and what the hypervisor had.
//! No tracepoint says so: such a thread is ready, and others have its CPU, or nobody.

use crate::out::{Out, line};
use crate::times::short;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often it looks into which group the process is.
const TICK: Duration = Duration::from_millis(100);

/// The groups in which a process was, with those above them.
#[derive(Debug)]
pub struct Quota {
    process: Option<u32>,
    looked: Option<Instant>,
    /// By folder: what was counted when the process was seen there first, and last.
    groups: BTreeMap<PathBuf, [Counted; 2]>,
}

/// How often threads were held back, and how long together, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted(u64, u64);

impl Quota {
    pub fn new(process: Option<u32>) -> Self {
        let mut quota = Self { process, looked: None, groups: BTreeMap::new() };
        quota.look();
        quota
    }

    /// Looks again if it is time to.
    pub fn look(&mut self) {
        let Some(process) = self.process.filter(|_| self.looked.is_none_or(|looked| looked.elapsed() >= TICK)) else {
            return;
        };
        self.looked = Some(Instant::now());
        let text = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
        for (folder, group) in text.lines().filter_map(folder) {
            let groups = group.ancestors().map(|group| folder.join(group.strip_prefix("/").unwrap_or(group)));
            for group in groups {
                if let Some(now) = read(&group) {
                    self.groups.entry(group).or_insert([now, now])[1] = now;
                }
            }
        }
    }

    /// Says which groups were held back, and how much at least.
    pub fn print(&mut self, json: bool, out: &mut Out) -> io::Result<()> {
        // The process may be gone.
        for (group, [_, last]) in &mut self.groups {
            *last = read(group).unwrap_or(*last);
        }
        for (group, [Counted(first, before), Counted(last, after)]) in &self.groups {
            let (times, time) = (last.saturating_sub(*first), after.saturating_sub(*before));
            if times == 0 {
                continue;
            }
            let group = group.display().to_string();
            if json {
                line(out, format_args!("{}", json!({ "quota": group, "times": times, "ns": time })))?;
                continue;
            }
            let time = short(time);
            line(
                out,
                format_args!(
                    "the quota of {group} held its threads back {times} times or more, for {time} on all CPUs \
                     together: then they were ready, even if the CPU was idle"
                ),
            )?;
        }
        Ok(())
    }
}

/// How long the hypervisor had CPUs of this machine that they wanted: of all together, for nothing says which thread
/// waited for it.
#[derive(Debug)]
pub struct Steal(Option<u64>);

impl Steal {
    pub fn new() -> Self {
        Self(stolen())
    }

    /// Says how much, if any.
    pub fn print(&self, json: bool, out: &mut Out) -> io::Result<()> {
        let time = self.0.zip(stolen()).map_or(0, |(before, now)| now.saturating_sub(before));
        match time {
            0 => Ok(()),
            _ if json => line(out, format_args!("{}", json!({ "steal_ns": time }))),
            _ => {
                let time = short(time);
                line(
                    out,
                    format_args!(
                        "the hypervisor held CPUs back for {time} in all: then a thread that ran did not, and others \
                         were ready"
                    ),
                )
            }
        }
    }
}

/// Of all CPUs since the start of the machine, in nanoseconds.
fn stolen() -> Option<u64> {
    steal(&fs::read_to_string("/proc/stat").ok()?)
}

/// The eighth number of the first line of /proc/stat, in hundredths of a second (proc_stat(5): USER_HZ is 100).
fn steal(text: &str) -> Option<u64> {
    let ticks: u64 = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()?;
    Some(ticks.saturating_mul(10_000_000))
}

/// A line of /proc/PID/cgroup, `0::/a` or `4:cpu,cpuacct:/a`: where its hierarchy is mounted by convention, and the
/// group in it.
fn folder(line: &str) -> Option<(PathBuf, &Path)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, group) = (parts.next()?, parts.next()?);
    let folder = match controllers {
        "" => "",
        of if of.split(',').any(|one| one == "cpu") => "cpu",
        _ => return None,
    };
    Some((Path::new("/sys/fs/cgroup").join(folder), Path::new(group)))
}

fn read(group: &Path) -> Option<Counted> {
    counted(&fs::read_to_string(group.join("cpu.stat")).ok()?)
}

/// The counters of cpu.stat: of the second version in microseconds, of the first in nanoseconds.
fn counted(text: &str) -> Option<Counted> {
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let time = number("throttled_time ").or_else(|| number("throttled_usec ").map(|time| time.saturating_mul(1_000)));
    Some(Counted(number("nr_throttled ")?, time?))
}

#[cfg(test)]
mod tests {
    use super::{Counted, counted, folder, steal};
    use std::path::Path;

    #[test]
    fn what_the_hypervisor_had() {
        assert_eq!(steal("cpu  1 2 3 4 5 6 7 89 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n"), Some(890_000_000));
        // Linux before 2.6.11.
        assert_eq!(steal("cpu  1 2 3 4\n"), None);
    }

    #[test]
    fn both_versions_of_control_groups() {
        let first = "nr_periods 13\nnr_throttled 12\nthrottled_time 1030070146\nnr_bursts 0\n";
        let second = "usage_usec 7\nnr_periods 4\nnr_throttled 3\nthrottled_usec 250\n";
        assert_eq!(counted(first), Some(Counted(12, 1_030_070_146)));
        assert_eq!(counted(second), Some(Counted(3, 250_000)));
        // The first group of all has no quota.
        assert_eq!(counted("usage_usec 7\n"), None);
        let places = ["0::/a", "4:cpu,cpuacct:/a/b", "2:cpuset:/a"].map(folder);
        let [unified, cpu] = ["/sys/fs/cgroup/", "/sys/fs/cgroup/cpu"].map(|folder| Path::new(folder).to_owned());
        assert_eq!(places, [Some((unified, Path::new("/a"))), Some((cpu, Path::new("/a/b"))), None]);
    }
}
