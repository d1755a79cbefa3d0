//! What this machine and this user can do: each line tried, not guessed, and what would mend it.

use crate::args::size;
use crate::descriptors;
use crate::failure::{Outcome, in_parts};
use crate::out::Out;
use crate::rcu::Rcu;
use crate::sizing;
use nix::sys::resource::{Resource, getrlimit};
use perfweave::{Error, Fence, GracePeriods, Hold, Order, Reader, Rings};
use perfweave_events::EventOptions;
use perfweave_proofs::expedited;
use serde_json::json;
use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Says what this machine and this user can do, and what would mend the rest
///
/// Each line is the result of a try. The exit status is 0 if the whole machine can be traced in proven order.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object a line
    #[arg(short, long)]
    json: bool,
}

/// A line: what was tried, and how it went.
struct Line {
    name: &'static str,
    /// `None`: a fact, neither good nor bad.
    is_well: Option<bool>,
    says: String,
    cure: Option<String>,
}

impl Line {
    fn fact(name: &'static str, says: impl Into<String>) -> Self {
        Self { name, is_well: None, says: says.into(), cure: None }
    }

    /// A try. `well` words what it gave.
    fn of<T>(name: &'static str, tried: Result<T, Error>, well: impl FnOnce(T) -> String) -> Self {
        match tried {
            Ok(value) => Self { name, is_well: Some(true), says: well(value), cure: None },
            Err(error) => {
                let (says, cure) = in_parts(&error);
                Self { name, is_well: Some(false), says, cure }
            }
        }
    }

    fn print(&self, out: &mut Out, json: bool) -> std::io::Result<()> {
        let Self { name, is_well, says, cure } = self;
        if json {
            return writeln!(out, "{}", json!({ "check": name, "ok": is_well, "says": says, "cure": cure }));
        }
        let mark = match is_well {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        writeln!(out, "{name:<22} {mark:<4} {}", filled(says))?;
        if let Some(cure) = cure {
            writeln!(out, "{:COLUMN$}{}", "", filled(&format!("help: {cure}")))?;
        }
        Ok(())
    }
}

/// Where what a line says begins.
const COLUMN: usize = 28;

/// A text that is broken between words where a terminal ends, so that it stays in its column.
fn filled(text: &str) -> String {
    let width = terminal_size::terminal_size().map_or(usize::MAX, |(width, _)| width.0.into());
    let (mut lines, mut room) = (String::new(), width.saturating_sub(COLUMN));
    for word in text.split(' ') {
        let length = word.chars().count() + 1;
        if room < length && !lines.is_empty() {
            lines.push_str(&format!("\n{:COLUMN$}", ""));
            room = width.saturating_sub(COLUMN);
        } else if !lines.is_empty() {
            lines.push(' ');
        }
        lines.push_str(word);
        room = room.saturating_sub(length);
    }
    lines
}

pub fn run(Args { json }: Args) -> Outcome {
    let mut out = Out::new();
    for line in facts() {
        line.print(&mut out, json)?;
    }
    let (mut is_well, mut said) = (true, HashSet::new());
    let mut lines = tries();
    let commands = commands(lines.iter().map(|(_, line)| line));
    lines.extend(commands.into_iter().map(|line| (false, line)));
    for (is_needed, mut line) in lines {
        is_well &= !is_needed || line.is_well == Some(true);
        // A person reads the same advice once.
        if !json && line.cure.as_ref().is_some_and(|cure| !said.insert(cure.clone())) {
            line.cure = (line.is_well == Some(false)).then(|| "as above".into());
        }
        line.print(&mut out, json)?;
    }
    if !json {
        let verdict =
            if is_well { "The whole machine can be traced in proven order." } else { "See the lines with NO." };
        writeln!(out, "\n{verdict}")?;
    }
    out.flush()?;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Which commands work as this user, by what was tried. Why the rest does not is what is said of that.
fn commands<'a>(tried: impl Iterator<Item = &'a Line> + Clone) -> Vec<Line> {
    const BY: [(&str, &[&str], &str); 5] = [
        ("record, profile -- CMD", &["own process"], "of your own commands, in user mode if not more"),
        ("record -e EVENT", &["tracepoints", "fence"], "of the whole machine and of any process"),
        ("profile", &["profiling", "fence"], "of the whole machine and of any process"),
        ("trace, latency", &["system calls", "fence"], "system calls"),
        ("wakeups, offcpu, why", &["tracepoints", "fence"], "switches and wake-ups"),
    ];
    let lines = BY.into_iter().map(|(name, needs, says)| {
        let refused = tried.clone().find(|line| needs.contains(&line.name) && line.is_well == Some(false));
        match refused {
            None => Line { name, is_well: Some(true), says: says.into(), cure: None },
            Some(line) => {
                Line { name, is_well: Some(false), says: format!("see {}", line.name), cure: line.cure.clone() }
            }
        }
    });
    let recordings = Line {
        name: "recordings",
        is_well: Some(true),
        says: "report, convert, verify, why FILE, and trace, wakeups, offcpu, latency and profile with -i FILE".into(),
        cure: None,
    };
    lines.chain([recordings]).collect()
}

/// The first line of a file, without its end.
fn line_of(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.trim().to_string())
}

/// The value of a key in a file of lines such as `Key: value`.
fn value_of(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.trim_start_matches(':').split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Capabilities that matter here, by their bits (include/uapi/linux/capability.h).
const CAPABILITIES: [(&str, u32); 5] =
    [("CAP_PERFMON", 38), ("CAP_BPF", 39), ("CAP_SYS_ADMIN", 21), ("CAP_IPC_LOCK", 14), ("CAP_SYS_PTRACE", 19)];

/// This process's capabilities, a bit each.
fn capabilities() -> Option<u64> {
    u64::from_str_radix(&value_of("/proc/self/status", "CapEff")?, 16).ok()
}

/// What works as a user who has no capability to trace, and what makes the rest work. `None` for others.
pub fn rights() -> Option<String> {
    let traces = |name| {
        CAPABILITIES.iter().any(|(known, bit)| *known == name && capabilities().is_none_or(|bits| bits >> bit & 1 == 1))
    };
    if traces("CAP_PERFMON") || traces("CAP_SYS_ADMIN") {
        return None;
    }
    // Where it is more, the kernel lets nobody sample.
    let is_own = line_of("/proc/sys/kernel/perf_event_paranoid").and_then(|level| level.parse::<i32>().ok());
    let own = if is_own.is_some_and(|level| level <= 2) {
        "record -- COMMAND and profile -- COMMAND work in user mode; "
    } else {
        ""
    };
    let program = std::env::current_exe().map_or("perfweave".into(), |path| path.display().to_string());
    Some(format!(
        "as this user, {own}report, convert, verify, why FILE, and analyses with -i FILE work, on recordings, and check says what is lacking; to trace, run \
         `sudo {program}`, or once `sudo setcap cap_perfmon+ep {program}` and make tracefs readable as check says"
    ))
}

fn facts() -> Vec<Line> {
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
    let capable = capabilities().map_or("unknown".into(), |bits| {
        let has: Vec<_> = CAPABILITIES.iter().filter(|(_, bit)| bits >> bit & 1 == 1).map(|(name, _)| *name).collect();
        if has.is_empty() { "none that help".to_string() } else { has.join(", ") }
    });
    let seccomp = match value_of("/proc/self/status", "Seccomp").as_deref() {
        Some("0") => "no filter",
        Some(_) => "a filter: it may refuse perf_event_open(2), bpf(2) or membarrier(2)",
        None => "unknown",
    };
    let setting = |name: &str| or_unknown(line_of(&format!("/proc/sys/kernel/{name}")));
    let limit = |name: &str| {
        let parts = or_unknown(value_of("/proc/self/limits", name));
        match parts.split(' ').collect::<Vec<_>>()[..] {
            [now, most, unit] => format!("{now} {unit}; it may be raised to {most}"),
            _ => parts,
        }
    };
    vec![
        Line::fact("kernel", or_unknown(line_of("/proc/sys/kernel/osrelease"))),
        Line::fact("CPUs online", or_unknown(line_of("/sys/devices/system/cpu/online"))),
        Line::fact(
            "CPUs isolated",
            line_of("/sys/devices/system/cpu/isolated").filter(|list| !list.is_empty()).unwrap_or("none".into()),
        ),
        Line::fact("user", format!("{}, capabilities: {capable}", nix::unistd::geteuid())),
        Line::fact("seccomp", seccomp),
        Line::fact("perf_event_paranoid", setting("perf_event_paranoid")),
        Line::fact(
            "perf_event_mlock_kb",
            format!("{} KiB a CPU before the limit on locked memory counts", setting("perf_event_mlock_kb")),
        ),
        Line::fact("sample rate, most", format!("{} Hz", setting("perf_event_max_sample_rate"))),
        Line::fact("locked memory, limit", limit("Max locked memory")),
        Line::fact("descriptors, limit", files()),
        Line::fact("grace periods", grace_periods(Rcu::read())),
        Line::fact("clock", or_unknown(line_of("/sys/devices/system/clocksource/clocksource0/current_clocksource"))),
    ]
}

/// The limit on descriptors as this program got it, and how far it has raised it.
fn files() -> String {
    let [before, now] = [descriptors::before(), getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft)];
    match (before, now) {
        (Some(before), Some(now)) if before < now => format!("{before}, which this program raises to {now} for itself"),
        (_, Some(now)) => format!("{now}, which cannot be raised without CAP_SYS_RESOURCE"),
        _ => "unknown".into(),
    }
}

/// How fast grace periods may be here.
fn grace_periods(rcu: io::Result<Rcu>) -> String {
    let says = match rcu {
        Ok(Rcu::AsAsked) => {
            "expedited for those who ask (rcu_expedited and rcu_normal are 0), as --hold expedited does"
        }
        Ok(Rcu::Expedited) => "all expedited (rcu_expedited is 1): --hold fence is as fast as --hold expedited",
        Ok(Rcu::Normal) => "none expedited (rcu_normal is 1): --hold expedited is as slow as --hold fence",
        Err(error) => return format!("unknown: {error}"),
    };
    says.into()
}

/// What is tried, and whether tracing the machine needs it.
fn tries() -> Vec<(bool, Line)> {
    let own = Rings::options().event_name("task-clock").user_only().pid(std::process::id()).bytes(1 << 12);
    let machine = || Rings::options().tracepoint("sched:sched_switch").bytes(1 << 16).open();
    let format = |rings: Rings| perfweave_events::format(&rings, 0).map(|format| format.matches("field:").count());
    let tracefs = perfweave_events::tracefs().and_then(|place| Ok((place, machine().and_then(format)?)));
    let rings = |rings: Rings| format!("{} rings", rings.cpus().len());
    let mut lines = vec![
        (false, Line::of("own process", own.open(), rings)),
        (true, Line::of("tracepoints", machine(), rings)),
        (true, Line::of("tracefs", tracefs, |(place, fields)| format!("{place}; sched_switch has {fields} fields"))),
        (
            false,
            Line::of(
                "system calls",
                Rings::options().tracepoint("raw_syscalls:sys_enter").bytes(1 << 16).open(),
                rings,
            ),
        ),
        (false, Line::of("kernel probes", Rings::options().kprobe("do_nanosleep").bytes(1 << 16).open(), rings)),
        (
            false,
            Line::of("profiling", Rings::options().event_name("cpu-clock").frequency(99).bytes(1 << 16).open(), rings),
        ),
        (
            false,
            Line::of(
                "hardware cycles",
                Rings::options().event_name("cycles").period(1_000_000).bytes(1 << 16).open(),
                rings,
            ),
        ),
    ];
    let (fence, longest) = fence_line("fence", &Fence::Auto);
    lines.push((true, fence));
    lines.extend(longest.map(|longest| (false, buffers(longest))));
    let others = [
        ("fence, membarrier", Fence::Membarrier),
        ("fence, array of maps", Fence::Map),
        ("fence, expedited", expedited(Duration::from_millis(1))),
    ];
    lines.extend(others.map(|(name, fence)| (false, fence_line(name, &fence).0)));
    let reader = machine().and_then(|rings| Reader::new(rings, Order::new().hold(Hold::FENCE)));
    lines.push(foreign_programs());
    lines.push((
        true,
        Line::of("proven order", reader, |reader| format!("by {}", reader.fence().unwrap_or("no fence"))),
    ));
    lines
}

/// The tracepoints that this program's commands trace unless told otherwise.
const OUR_OWN: [&str; 5] = [
    "sched:sched_switch",
    "sched:sched_waking",
    "sched:sched_wakeup_new",
    "raw_syscalls:sys_enter",
    "raw_syscalls:sys_exit",
];

/// Whether BPF programs of others may keep events from this one, and whether that has to be mended. Who may trace may
/// not ask, perhaps.
fn foreign_programs() -> (bool, Line) {
    const NAME: &str = "BPF programs";
    let options = OUR_OWN.into_iter().fold(Rings::options(), |options, name| options.tracepoint(name));
    let found = options.bytes(1 << 16).open().and_then(|rings| rings.foreign_programs());
    let found = match found {
        Ok(found) => found,
        Err(error) => return (false, Line::of(NAME, Err::<(), _>(error), |()| String::new())),
    };
    let Some((first, cure)) = found.first().map(in_parts) else {
        let says = format!("none at {}, which could keep events from perf", OUR_OWN.join(", "));
        return (true, Line { name: NAME, is_well: Some(true), says, cure: None });
    };
    let others = found[1..].iter().map(|error| in_parts(error).0);
    let says = others.fold(first, |all, other| all + "; " + &other);
    (true, Line { name: NAME, is_well: Some(false), says, cure })
}

/// How long a fence's grace periods are now, and what would make them shorter. And the longest of them.
fn fence_line(name: &'static str, fence: &Fence) -> (Line, Option<Duration>) {
    let (mut advice, mut longest) = (None, None);
    let mut line = Line::of(name, fence.open(), |mut periods| {
        advice = Rcu::read().ok().and_then(|rcu| rcu.advice(periods.name())).map(str::to_owned);
        let measured = measured(&mut periods);
        longest = measured.as_ref().ok().map(|times| times[4]);
        let says = measured.map_or_else(|error| error.to_string(), |times| in_words(&times));
        format!("{}: {says}", periods.name())
    });
    line.cure = line.cure.or(advice);
    (line, longest)
}

/// Five grace periods, the shortest first.
fn measured(periods: &mut GracePeriods) -> io::Result<[Duration; 5]> {
    let mut times = [Duration::ZERO; 5];
    for time in &mut times {
        let begin = Instant::now();
        periods.wait()?;
        *time = begin.elapsed();
    }
    times.sort_unstable();
    Ok(times)
}

fn in_words(times: &[Duration; 5]) -> String {
    let [middle, most] = [times[2], times[4]].map(|time| time.as_secs_f64() * 1e3);
    format!("a grace period takes {middle:.2} ms now (median of 5, at most {most:.2})")
}

/// Which rings hold what such grace periods take, so that nothing has to be copied out of them.
fn buffers(proof: Duration) -> Line {
    let [few, some, many] = [1e4, 1e5, 1e6].map(|rate| size(sizing::size(rate, proof)));
    let says = format!(
        "with grace periods as now, nothing is copied (64 bytes each): --buffer {few} for 10,000 events a second on a CPU, \
         {some} for 100,000, {many} for a million; the default is {}",
        sizing::DEFAULT
    );
    Line::fact("rings", says)
}
