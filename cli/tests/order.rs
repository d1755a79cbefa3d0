//! `perfweave order`, beside a tool that knows nothing of it.

use perfweave_support::cpus::online;
use perfweave_support::threads::until;
use perfweave_support::{kernel, naive, needs};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The test is the tool if this has the size of its rings.
const TOOL: &str = "PERFWEAVE_ORDER_TOOL";

/// The tool, in a process of its own: no test.
#[test]
fn the_tool() {
    let Some(bytes) = std::env::var(TOOL).ok() else { return };
    let cpus = online();
    naive::run([cpus[0], cpus[1]], bytes.parse().unwrap()).unwrap();
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
        let readers =
            vec![collect(child.stdout.take().unwrap(), &lines), collect(child.stderr.take().unwrap(), &said)];
        Self { input: child.stdin.take(), child, lines, said, readers, done: 0 }
    }

    /// Tells the tool to do something, and waits until it has done it.
    fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        self.done += 1;
        until(line, || self.lines.lock().unwrap().iter().filter(|line| *line == "done").count() == self.done);
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_perfweave"));
    command.args(["order", "--pid", &pid.to_string()]);
    Running::start(command)
}

/// Whether the kernel lets the tool be.
#[track_caller]
fn may() -> Option<()> {
    needs("two CPUs", online().len() >= 2)?;
    kernel("make a BPF map", perfweave_support::bpf::Map::perf_event_array(1))?;
    Some(())
}

const STEPS: usize = 20_000;
const BYTES: usize = 1 << 18;
const TAKEN: &str = "is taken over";

#[test]
fn a_running_tool_prints_in_order_and_gets_its_rings_back() {
    if may().is_none() {
        return;
    }
    let mut tool = Running::start(tool(None, BYTES));
    tool.tell("map");
    tool.tell(&format!("hand 0 {STEPS}"));
    tool.until_printed(0, STEPS);
    let plain = tool.printed(0);
    assert!(plain.inversions() > 0 && plain.distinct() + plain.lost as usize == STEPS, "{} {}", plain.inversions(), plain.lost);

    tool.lines.lock().unwrap().retain(|line| line == "done");
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
    tool.lines.lock().unwrap().retain(|line| line == "done");
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
