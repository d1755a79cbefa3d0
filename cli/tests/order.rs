//! `perfweave order`, beside a tool that knows nothing of it.

use perfweave_support::cpus::online;
use perfweave_support::naive::{self, By};
use perfweave_support::threads::until;
use perfweave_support::{kernel, needs};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The test is the tool if this has the size of its rings.
const TOOL: &str = "PERFWEAVE_ORDER_TOOL";

/// Its rings are read by aya then.
const AYA: &str = "PERFWEAVE_ORDER_AYA";

/// The tool, in a process of its own: no test.
#[test]
fn the_tool() {
    let Some(bytes) = std::env::var(TOOL).ok() else { return };
    let cpus = online();
    let by = if std::env::var_os(AYA).is_some() { By::Aya } else { By::Own };
    naive::run(by, [cpus[0], cpus[1]], bytes.parse().unwrap()).unwrap();
}

/// The command line of the tool.
fn tool(program: Option<&[&str]>, bytes: usize) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut command = match program {
        Some(words) => {
            let mut command = Command::new(env!("CARGO_BIN_EXE_perfweave"));
            command.args(words).arg(exe);
            command
        }
        None => Command::new(exe),
    };
    command.args(["the_tool", "--exact", "--nocapture"]).env(TOOL, bytes.to_string());
    command
}

/// A process whose lines are read.
struct Running {
    child: Child,
    input: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<String>>>,
    said: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
    done: usize,
}

fn collect(from: impl Read + Send + 'static, into: &Arc<Mutex<Vec<String>>>) -> JoinHandle<()> {
    let into = Arc::clone(into);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            into.lock().unwrap().push(line);
        }
    })
}

impl Running {
    fn start(mut command: Command) -> Self {
        let all = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = all.spawn().unwrap();
        let (lines, said) = (Arc::default(), Arc::default());
        let readers = vec![collect(child.stdout.take().unwrap(), &lines), collect(child.stderr.take().unwrap(), &said)];
        Self { input: child.stdin.take(), child, lines, said, readers, done: 0 }
    }

    /// Tells the tool to do something, and waits until it has done it.
    fn tell(&mut self, line: &str) {
        self.send(line);
        self.until_done();
    }

    /// Tells the tool to do something.
    fn send(&mut self, line: &str) {
        self.done += 1;
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits until it has done all.
    #[track_caller]
    fn until_done(&self) {
        until("done", || self.lines.lock().unwrap().iter().filter(|line| *line == "done").count() == self.done);
    }

    /// Forgets what it has printed.
    fn forget(&self) {
        self.lines.lock().unwrap().retain(|line| line == "done");
    }

    /// Waits until it and all that have its standard error have ended.
    #[track_caller]
    fn until_ended(&mut self) -> ExitStatus {
        until(&format!("process {} has ended: {}", self.child.id(), self.has_said()), || {
            self.readers.iter().all(JoinHandle::is_finished)
        });
        self.child.wait().unwrap()
    }

    /// Waits until it has said something on standard error.
    #[track_caller]
    fn until_said(&mut self, what: &str, times: usize) {
        until(what, || {
            let has_ended = self.child.try_wait().unwrap().is_some();
            let said = self.said.lock().unwrap();
            let count = said.iter().filter(|line| line.contains(what)).count();
            assert!(!has_ended || count >= times, "it has ended: {said:#?}");
            count >= times
        });
    }

    fn has_said(&self) -> String {
        self.said.lock().unwrap().join("\n")
    }

    /// Waits until it has printed so many records of a map, or told that they are lost.
    #[track_caller]
    fn until_printed(&self, map: usize, count: usize) {
        until("records", || {
            let printed = self.printed(map);
            printed.records.len() + printed.lost as usize >= count
        });
    }

    fn printed(&self, map: usize) -> Printed {
        let mut printed = Printed::default();
        for line in self.lines.lock().unwrap().iter() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().ok();
            match *words {
                ["lost", of, ..] if of.parse() == Ok(map) => printed.lost += number(3).unwrap(),
                [of, _, _, _, _] if of.parse() == Ok(map) && number(1).is_some() => {
                    printed.records.push([1, 2, 3, 4].map(|at| number(at).unwrap()));
                }
                _ => {}
            }
        }
        printed
    }

    /// Ends the tool's input, and waits for its end.
    fn end(&mut self) -> ExitStatus {
        drop(self.input.take());
        let status = self.child.wait().unwrap();
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU, bytes, number, and how many of a pattern's bytes.
#[derive(Debug, Default)]
struct Printed {
    records: Vec<[u64; 4]>,
    lost: u64,
}

impl Printed {
    /// How many numbers come after a larger one.
    fn inversions(&self) -> usize {
        let mut best = 0;
        let is_behind = |[_, _, number, _]: &&[u64; 4]| {
            let is_behind = *number < best;
            best = best.max(*number);
            is_behind
        };
        self.records.iter().filter(is_behind).count()
    }

    fn distinct(&self) -> usize {
        self.records.iter().map(|record| record[2]).collect::<std::collections::BTreeSet<_>>().len()
    }
}

/// `perfweave order` with the tool as its command, or beside a tool.
fn relay_of(pid: u32) -> Running {
    relay_with(pid, &[])
}

fn relay_with(pid: u32, args: &[&str]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perfweave"));
    command.args(["order", "--pid", &pid.to_string()]).args(args);
    Running::start(command)
}

/// Whether the kernel lets the tool be.
#[track_caller]
fn may() -> Option<()> {
    needs("two CPUs", online().len() >= 2)?;
    kernel("make a BPF map", perfweave_support::bpf::Map::perf_event_array(1))?;
    Some(())
}

const STEPS: usize = 4000;
const BYTES: usize = 1 << 18;
const TAKEN: &str = "whose records come in proven order";

#[test]
fn a_running_tool_prints_in_order_and_gets_its_rings_back() {
    if may().is_some() {
        prints_in_order(tool(None, BYTES));
    }
}

#[test]
fn a_running_tool_on_aya_prints_in_order_too() {
    if may().is_some() {
        let mut tool = tool(None, BYTES);
        tool.env(AYA, "1");
        prints_in_order(tool);
    }
}

#[track_caller]
fn prints_in_order(tool: Command) {
    let mut tool = Running::start(tool);
    tool.tell("map");
    // Both rings are full of records when it reads them one after the other.
    tool.tell("stop");
    tool.tell(&format!("hand 0 {STEPS}"));
    tool.tell("go");
    tool.until_printed(0, STEPS);
    let plain = tool.printed(0);
    assert!(
        plain.inversions() > 0 && plain.distinct() + plain.lost as usize == STEPS,
        "{} {}",
        plain.inversions(),
        plain.lost
    );

    tool.forget();
    let mut relay = relay_of(tool.child.id());
    relay.until_said(TAKEN, 1);
    assert!(relay.has_said().contains("it had before"), "{}", relay.has_said());
    tool.tell(&format!("hand 0 {STEPS}"));
    tool.until_printed(0, STEPS);
    let ordered = tool.printed(0);
    assert_eq!((ordered.inversions(), ordered.distinct() + ordered.lost as usize), (0, STEPS), "{}", relay.has_said());

    // It has its rings back, and both CPUs.
    interrupt(&relay.child);
    let status = relay.end();
    assert_eq!(status.code(), Some(0), "{}", relay.has_said());
    assert!(relay.has_said().contains("events in proven order; nothing is missing"), "{}", relay.has_said());
    tool.forget();
    tool.tell(&format!("hand 0 {STEPS}"));
    tool.until_printed(0, STEPS);
    let again = tool.printed(0);
    let cpus: std::collections::BTreeSet<u64> = again.records.iter().map(|record| record[0]).collect();
    assert_eq!((again.distinct() + again.lost as usize, cpus.len()), (STEPS, 2));
    assert!(tool.end().success());
}

fn interrupt(child: &Child) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
}

/// A tool with a map.
fn tool_with(bytes: usize) -> Running {
    let mut running = Running::start(tool(None, bytes));
    running.tell("map");
    running
}

/// All sizes that a program can output arrive as without the relay: those that its ring takes.
#[test]
fn payloads_arrive_as_they_were() {
    if may().is_none() {
        return;
    }
    let sizes = [0, 1, 4, 5, 8, 12, 13, 100, 1000, 4096, 8191, 8192, 8193, 20_000, 40_000, 65_507, 65_508];
    let mut tool = tool_with(BYTES);
    let write = |tool: &mut Running| {
        tool.forget();
        for (at, size) in sizes.iter().enumerate() {
            tool.tell(&format!("size 0 {size}"));
            // The largest are more than the ring holds at once.
            tool.until_printed(0, at + 1);
        }
        let printed = tool.printed(0);
        assert_eq!(printed.lost, 0);
        for (size, [_, bytes, _, matching]) in sizes.iter().zip(&printed.records) {
            assert!(matching >= size && bytes >= size, "{size}: {bytes}, {matching} as written");
        }
        printed.records.iter().map(|record| record[1]).collect::<Vec<_>>()
    };
    let plain = write(&mut tool);
    let mut relay = relay_of(tool.child.id());
    relay.until_said(TAKEN, 1);
    let ordered = write(&mut tool);
    assert_eq!(plain, ordered);
    tool.end();
    assert_eq!(relay.until_ended().code(), Some(0), "{}", relay.has_said());
}

/// What our rings lose, the tool is told: every record is printed or told as lost.
#[test]
fn what_is_lost_is_told_to_the_tool() {
    if may().is_none() {
        return;
    }
    const EACH: usize = 50_000;
    let mut tool = tool_with(1 << 16);
    let mut relay = relay_with(tool.child.id(), &["--buffer", "4K"]);
    relay.until_said(TAKEN, 1);
    tool.tell(&format!("flood 0 {EACH}"));
    interrupt(&relay.child);
    assert_eq!(relay.until_ended().code(), Some(0), "{}", relay.has_said());
    // The kernel tells the last losses with the next records of each ring.
    tool.tell("hand 0 100");
    tool.until_printed(0, 2 * EACH + 100);
    let printed = tool.printed(0);
    assert_eq!(printed.records.len() + printed.lost as usize, 2 * EACH + 100, "{}", relay.has_said());
    assert!(
        printed.lost > 0 && relay.has_said().contains("which the tool is told with its next record"),
        "{}",
        relay.has_said()
    );
    assert!(!relay.has_said().contains("not told"), "{}", relay.has_said());
}

/// A tool that does not read: it gets its rings back, and is told of what it did not read. When it reads again it is taken
/// over again.
#[test]
fn a_tool_that_does_not_read_gets_its_rings_back() {
    if may().is_none() {
        return;
    }
    const EACH: usize = 20_000;
    let mut tool = tool_with(1 << 13);
    let mut relay = relay_of(tool.child.id());
    relay.until_said(TAKEN, 1);
    tool.tell("stop");
    tool.tell(&format!("flood 0 {EACH}"));
    relay.until_said("is given back: its tool has read nothing of a full ring", 1);
    tool.tell("go");
    relay.until_said(TAKEN, 2);
    tool.tell(&format!("hand 0 {STEPS}"));
    tool.until_printed(0, 2 * EACH + STEPS);
    let mut printed = tool.printed(0);
    assert_eq!(printed.records.len() + printed.lost as usize, 2 * EACH + STEPS, "{}", relay.has_said());
    // In between, it was in nobody's order.
    printed.records.drain(..printed.records.len() - STEPS);
    assert_eq!(printed.inversions(), 0);
    interrupt(&relay.child);
    assert_eq!(relay.until_ended().code(), Some(0), "{}", relay.has_said());
    tool.end();
}

/// A tool that fills its slots anew is seen to, and taken over again.
#[test]
fn slots_that_the_tool_fills_anew_are_taken_over_again() {
    if may().is_none() {
        return;
    }
    let mut tool = tool_with(BYTES);
    let mut relay = relay_of(tool.child.id());
    relay.until_said(TAKEN, 1);
    // All, and one alone: the others are given back.
    for (times, again) in (1..).zip(["again 0", "again 0 1", "again 0 0"]) {
        tool.tell(again);
        relay.until_said("has changed the slots", times);
        relay.until_said(TAKEN, times + 1);
    }
    tool.tell(&format!("hand 0 {STEPS}"));
    tool.until_printed(0, STEPS);
    let printed = tool.printed(0);
    assert_eq!((printed.inversions(), printed.distinct()), (0, STEPS), "{}", relay.has_said());
    tool.end();
    assert_eq!(relay.until_ended().code(), Some(0), "{}", relay.has_said());
}

/// A tool that it starts: its maps are taken over as they come, and its status is the tool's.
#[test]
fn a_command_is_ordered_with_all_its_maps() {
    if may().is_none() {
        return;
    }
    let mut tool = Running::start(tool(Some(&["order", "--"]), BYTES));
    for maps in 1..=2 {
        tool.tell("map");
        tool.until_said(TAKEN, maps);
    }
    for map in [0, 1] {
        tool.tell(&format!("hand {map} {STEPS}"));
        tool.until_printed(map, STEPS);
        let printed = tool.printed(map);
        assert_eq!((printed.inversions(), printed.distinct()), (0, STEPS), "{}", tool.has_said());
    }
    drop(tool.input.take());
    let status = tool.until_ended();
    assert_eq!(status.code(), Some(0), "{}", tool.has_said());
    assert!(
        tool.has_said().contains(&format!("{} events in proven order; nothing is missing", 2 * STEPS)),
        "{}",
        tool.has_said()
    );
}

#[test]
fn where_nothing_is_ordered_it_says_so() {
    if may().is_none() {
        return;
    }
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_perfweave")).arg("order").args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = run(&["--", "true"]);
    assert!(status == Some(1) && said.contains("nothing was ordered: the tool has no perf event array"), "{said}");
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).0, Some(7));
    let (status, said) = run(&["--", "/nosuch/tool"]);
    assert!(status == Some(1) && said.contains("/nosuch/tool"), "{said}");
    let (status, said) = run(&["--pid", "4194305"]);
    assert!(status == Some(1) && said.contains("there is no process 4194305"), "{said}");
    // A map without events.
    let mut tool = Running::start(tool(None, BYTES));
    let mut relay = relay_of(tool.child.id());
    assert_eq!(relay.until_ended().code(), Some(1));
    assert!(relay.has_said().contains("nothing was ordered"), "{}", relay.has_said());
    tool.end();
}

/// The library is found where it is said to be, and a tool that would not load it is not started.
#[test]
fn a_library_is_preloaded_or_the_cure_is_said() {
    let run = |library: &str, command: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_perfweave"));
        program.args(["order", "--how", "preload"]).args(command).env("PERFWEAVE_LIBBPF", library);
        let output = program.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, _, said) = run("/no/such.so", &["--", "true"]);
    assert!(status == Some(1) && said.contains("/no/such.so") && said.contains("use --how relay"), "{said}");
    // Any file is told to the loader, which says that it is none.
    let file = std::env::current_exe().unwrap();
    let (status, out, said) = run(file.to_str().unwrap(), &["--", "sh", "-c", "echo $LD_PRELOAD; exit 3"]);
    assert!(status == Some(3) && out.trim().ends_with(file.to_str().unwrap()), "{out} {said}");
    let (status, _, said) = run(file.to_str().unwrap(), &["--pid", "1"]);
    assert!(status == Some(1) && said.contains("leave out --how"), "{said}");
    let set = std::env::temp_dir().join(format!("perfweave-set-uid-{}", std::process::id()));
    std::fs::copy("/bin/true", &set).unwrap();
    std::fs::set_permissions(&set, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    let (status, _, said) = run(file.to_str().unwrap(), &["--", set.to_str().unwrap()]);
    std::fs::remove_file(&set).unwrap();
    assert!(status == Some(1) && said.contains("is set-uid") && said.contains("use --how relay"), "{said}");
}

/// The children of a process.
fn children(pid: u32) -> Vec<i32> {
    let mut all = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(text.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    all
}

/// Relay, guard or tool are killed at any moment. The others end or go on, and the map has the tool's events.
#[test]
fn whoever_is_killed_the_tool_has_its_rings_back() {
    if may().is_none() {
        return;
    }
    let rounds = std::env::var("PERFWEAVE_ORDER_KILLS").map_or(9, |text| text.parse().unwrap());
    let mut tool = tool_with(BYTES);
    for round in 0..rounds {
        let mut relay = relay_of(tool.child.id());
        tool.send("hand 0 3000");
        // The start takes some fifty milliseconds. The golden section spreads the moments.
        let after = (round as u64 * 618_034) % 1_000_000 / 5;
        std::thread::sleep(std::time::Duration::from_micros(after));
        let guard = children(relay.child.id()).first().copied();
        let whom = match (round % 3, guard) {
            (0, _) => tool.child.id() as i32,
            (1, Some(guard)) => guard,
            _ => relay.child.id() as i32,
        };
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(whom), nix::sys::signal::Signal::SIGKILL);
        if round % 3 == 0 {
            relay.until_ended();
            assert!(!relay.has_said().contains("panicked"), "{}", relay.has_said());
            tool = tool_with(BYTES);
            continue;
        }
        // Where the guard was killed, the relay gives back and ends. Where it was killed before it had anything, too.
        relay.until_ended();
        assert!(!relay.has_said().contains("panicked"), "{}", relay.has_said());
        tool.until_done();
        tool.tell("hand 0 100");
        until(&format!("round {round}: both CPUs: {}", relay.has_said()), || {
            let records = tool.printed(0).records;
            let last: Vec<_> = records.iter().rev().take(100).collect();
            [0, 1].iter().all(|odd| last.iter().any(|record| record[2] < 100 && record[2] % 2 == *odd))
                && last.iter().map(|record| record[0]).collect::<std::collections::BTreeSet<_>>().len() == 2
        });
        tool.forget();
    }
    tool.end();
}
