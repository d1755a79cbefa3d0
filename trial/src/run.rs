//! One run: a tool beside the work, and the judgement of what it printed.

use crate::history::History;
use crate::judge::{self, Verdict};
use crate::tool::{Mode, Result, Tool, What};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A tool that has not ended then is killed: the work takes three seconds at most.
const LIMIT: Duration = Duration::from_secs(60);

/// Work, and what runs beside it.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    work: &'static str,
    steps: u32,
    pub beside: &'static str,
    /// What it has beside numbered calls.
    also: &'static [What],
    /// BPF programs draw tickets and are slow. Nothing else is judged.
    slow: bool,
    pub about: &'static str,
}

const fn case(name: &'static str, work: &'static str, steps: u32, beside: &'static str, about: &'static str) -> Case {
    let also: &[What] = match work.as_bytes() {
        b"tree" => &[What::Exec, What::End],
        b"wakes" => &[What::Waking],
        _ => &[],
    };
    Case { name, work, steps, beside, also, slow: false, about }
}

/// All work, that with hogs last.
pub const CASES: &[Case] = &[
    case("hand-over", "handover", 20_000, "", "two processes on two CPUs hand a token to and fro"),
    case("ring", "ring", 10_000, "", "eight threads in a ring, each asleep until its turn"),
    case("tree", "tree", 127, "", "fork, exec, exit: each node waits for its children"),
    case("pipes", "pipes", 5_000, "", "numbered messages through a chain of four processes"),
    case("wakes", "wakes", 5_000, "", "four threads on two CPUs: each wakes the next"),
    case("locks", "locks", 10_000, "", "four threads: whoever has the lock draws the next number"),
    case("flood", "flood", 50_000, "", "a thread on each CPU, as fast as it can"),
    Case {
        slow: true,
        ..case(
            "adversary",
            "flood",
            20_000,
            "storm",
            "BPF programs that are slow between ticket and output, interrupted by others",
        )
    },
    case("hand-over in a storm", "handover", 20_000, "storm", "with an interrupt on each CPU every 50 µs"),
    case("ring beside hogs", "ring", 2_000, "hogs", "with a busy loop on each CPU"),
    case("ring beside real time", "ring", 2_000, "rt", "with a SCHED_FIFO thread on each CPU, busy half of the time"),
    case("wakes beside hogs", "wakes", 1_000, "hogs", "with a busy loop on each CPU"),
    case("locks and hotplug", "locks", 60_000, "hotplug", "while a CPU goes and comes"),
];

impl Case {
    /// Whether a mode prints anything of this work.
    pub fn suits(&self, mode: &Mode) -> bool {
        (mode.only.is_empty() || mode.only.iter().any(|only| only == self.work || only == self.name))
            && (mode.prints.is_empty() && !self.slow || mode.prints.iter().any(|&what| self.has(what)))
    }

    fn has(&self, what: What) -> bool {
        match what {
            What::Ticket => self.slow,
            What::Enter | What::Exit | What::Call => !self.slow,
            other => self.also.contains(&other),
        }
    }
}

/// Where everything is.
#[derive(Debug)]
pub struct Places {
    /// This package.
    pub package: PathBuf,
    /// What `trial/run` built.
    pub bin: PathBuf,
    /// For files of one run, emptied before each. Its path has no dot, which libbpf would not pin maps below.
    pub scratch: PathBuf,
}

/// A run, and what is known of it.
pub enum Outcome {
    Judged(Verdict),
    /// It could not be run, in its own words.
    Failed(String),
}

/// Runs a tool beside the work, and judges.
pub fn run(places: &Places, tool: &Tool, mode: &Mode, case: &Case) -> Result<Outcome> {
    let folder = &places.scratch;
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder)?;
    File::create(folder.join("out"))?;
    let begin = Instant::now();
    let ended = shell(places, mode, case, folder)?;
    let ms = begin.elapsed().as_secs_f64() * 1e3;
    // What a tool that was killed has left.
    let _ = Command::new("umount").args(["-q".as_ref(), folder.join("bpf").as_os_str()]).stderr(Stdio::null()).status();
    let complaints = String::from_utf8_lossy(&fs::read(folder.join("err"))?).into_owned();
    let printed = String::from_utf8_lossy(&fs::read(folder.join("out"))?).into_owned();
    if !folder.join("history").exists() || case.slow && !folder.join("tickets").exists() {
        return Ok(Outcome::Failed(last_words(&complaints, &printed, ended)));
    }
    let verdict = judged(tool, mode, folder, ms)?;
    // Nothing at all is no finding: the tool did not trace.
    Ok(if verdict.lines == 0 && verdict.lost == 0 {
        Outcome::Failed(last_words(&complaints, &printed, ended))
    } else {
        Outcome::Judged(verdict)
    })
}

/// Judges what is in a folder: `history`, the output `out`, and `err`, where losses may be told.
pub fn judged(tool: &Tool, mode: &Mode, folder: &Path, ms: f64) -> Result<Verdict> {
    let text = |name| fs::read(folder.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let (printed, complaints) = (text("out")?, text("err")?);
    let lines: Vec<&str> = printed.lines().collect();
    let mut said = tool.said(&lines);
    let told: Vec<&str> = complaints.lines().collect();
    said.extend(tool.said(&told).into_iter().filter(|said| said.what == What::Lost));
    Ok(judge::judge(&History::read(folder)?, &mode.prints, &said, &lines, ms))
}

fn shell(places: &Places, mode: &Mode, case: &Case, folder: &Path) -> Result<Option<ExitStatus>> {
    let bin = places.bin.display();
    let history = folder.join("history");
    let mut work = format!("{bin}/work {} --steps {} --history {}", case.work, case.steps, history.display());
    if !case.beside.is_empty() {
        work += &format!(" --beside {}", case.beside);
    }
    let err = File::create(folder.join("err"))?;
    let steps = "tracepoint:syscalls:sys_enter_lseek /args->fd >= 900 && args->fd < 1000/ { printf(\"%llu %d enter %llu\\n\", nsecs, tid, args->offset) }";
    let mut shell = Command::new("bash");
    shell.arg("-c").arg(format!(". \"$TRIAL/lib.sh\"\n{}", mode.run)).current_dir(folder).process_group(0);
    shell.stdin(Stdio::null()).stdout(err.try_clone()?).stderr(err);
    shell
        .env("TRIAL", &places.package)
        .env("BIN", &places.bin)
        .env("WORK", work)
        .env("DIR", folder)
        .env("STEPS", steps);
    shell.env("OUT", folder.join("out")).env("ERR", folder.join("err")).env("BPF", folder.join("bpf"));
    shell.env("SLOW", if case.slow { "1" } else { "" });
    within(shell.spawn()?, LIMIT)
}

/// Waits for a process, and kills its group when the time is over. `None` if it had to.
fn within(mut child: Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let group = Pid::from_raw(child.id().cast_signed());
    let (over, ended) = mpsc::channel::<()>();
    let watch = thread::spawn(move || match ended.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Timeout) => killpg(group, Signal::SIGKILL).is_ok(),
        _ => false,
    });
    let status = child.wait()?;
    drop(over);
    let killed = watch.join().map_err(|_| "the watch panicked")?;
    Ok((!killed).then_some(status))
}

/// Why a tool could not be run: its last lines.
fn last_words(complaints: &str, printed: &str, ended: Option<ExitStatus>) -> String {
    let said = if complaints.trim().is_empty() { printed } else { complaints };
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(3)..].join(" / ");
    match ended {
        None => format!("did not end within {} s: {last}", LIMIT.as_secs()),
        Some(_) if last.is_empty() => "printed nothing".into(),
        Some(_) => last,
    }
}
