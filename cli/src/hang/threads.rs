//! Threads as `/proc` has them (proc(5)).
//!
//! Not by the crate procfs, which reads less of a thread than of a process, and drops the arrow by which `/proc/locks` tells who waits.

use std::fs;

/// A thread at one moment.
#[derive(Debug, Clone)]
pub struct Thread {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// `R`, `S`, `D`, `T`, `t` and others.
    pub state: char,
    /// Where it is blocked. `None` if that may not be read.
    pub place: Option<Place>,
    /// The kernel's function in which it sleeps.
    pub wchan: String,
    /// Who traces it, by ptrace; 0 for nobody.
    pub tracer: u32,
    /// How often it has left a CPU.
    switches: u64,
    /// When it was started, in ticks: its number may be another's by now.
    started: u64,
    /// Whether it is in a PID namespace below this one, where threads have other numbers.
    pub is_below: bool,
}

/// Where a thread is blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a system call, by its number, with its arguments.
    Call(i64, [u64; 6]),
    /// In the kernel for another reason, as a page fault.
    Elsewhere,
}

impl Thread {
    /// `None` if it has ended.
    pub fn read(pid: u32, tid: u32) -> Option<Self> {
        let read = |file: &str| fs::read(format!("/proc/{pid}/task/{tid}/{file}"));
        let text = |file: &str| read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        // The name is in parentheses, and may have some itself.
        let stat = text("stat").ok()?;
        let (before, after) = stat.rsplit_once(')')?;
        let name = before.split_once('(')?.1.to_owned();
        let mut fields = after.split_whitespace();
        let state = fields.next()?.chars().next()?;
        // Field 9 of the file, of which the state is the third, and field 22.
        let flags: u64 = fields.nth(5)?.parse().ok()?;
        let started = fields.nth(12)?.parse().ok()?;
        let status = text("status").ok()?;
        let number = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        let switches = number("voluntary_ctxt_switches:")? + number("nonvoluntary_ctxt_switches:")?;
        let tracer = number("TracerPid:").unwrap_or(0) as u32;
        // One of the kernel is in no call.
        let place = text("syscall").ok().filter(|_| flags & PF_KTHREAD == 0).and_then(|text| place(&text));
        let is_below = numbers_of(&status).len() > 1;
        let wchan = text("wchan").unwrap_or_default();
        let wchan = if wchan == "0" { String::new() } else { wchan };
        Some(Self { pid, tid, name, state, place, wchan, tracer, switches, started, is_below })
    }

    /// Whether it waits: for an event, or until it may go on.
    pub fn waits(&self) -> bool {
        matches!(self.state, 'S' | 'D' | 'T' | 't')
    }

    /// Whether it has not run between this and a later look.
    pub fn has_not_run_until(&self, later: &Self) -> bool {
        (self.started, self.switches, self.state, self.place)
            == (later.started, later.switches, later.state, later.place)
    }

    /// Whether it has not run since it was read.
    pub fn stays(&self) -> bool {
        Self::read(self.pid, self.tid).is_some_and(|now| self.has_not_run_until(&now))
    }

    /// The name and number, as in all of the program's lines.
    pub fn label(&self) -> String {
        format!("{}/{}", self.name, self.tid)
    }
}

/// include/linux/sched.h
const PF_KTHREAD: u64 = 0x0020_0000;

/// The numbers of a thread in this PID namespace and those below.
fn numbers_of(status: &str) -> Vec<u32> {
    let all = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    all.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// The number that a thread has in its own PID namespace.
pub fn own_number(pid: u32, tid: u32) -> Option<u32> {
    numbers_of(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?).pop()
}

/// `running`, or the number, six arguments, the stack and the instruction; -1 in place of the first seven.
fn place(text: &str) -> Option<Place> {
    let mut words = text.split_whitespace();
    let number = words.next()?.parse().ok()?;
    if number < 0 {
        return Some(Place::Elsewhere);
    }
    let mut args = [0; 6];
    for arg in &mut args {
        *arg = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(Place::Call(number, args))
}

/// The numbers of the threads of a process.
pub fn numbers(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut all: Vec<u32> = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    all
}

/// All threads of a process.
pub fn of(pid: u32) -> Vec<Thread> {
    numbers(pid).into_iter().filter_map(|tid| Thread::read(pid, tid)).collect()
}

/// The children of all threads of a process, where the kernel lists them (`CONFIG_PROC_CHILDREN`).
pub fn children(pid: u32) -> Vec<u32> {
    let of = |tid| fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    let all: Vec<String> = numbers(pid).into_iter().map(of).collect();
    all.iter().flat_map(|text| text.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

/// The process of a thread.
pub fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// The processes that there are.
pub fn processes() -> Vec<u32> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        assert_eq!(place("running\n"), None);
        assert_eq!(place("-1 0x7ffd 0x7f12\n"), Some(Place::Elsewhere));
        let call = place("202 0x7f00 0x80 0x2 0x0 0x0 0x0 0x7ffd 0x7f12\n");
        assert_eq!(call, Some(Place::Call(202, [0x7f00, 0x80, 2, 0, 0, 0])));
        assert_eq!(place("202 0x7f00"), None);
    }

    /// A thread that waits is told from one that has run meanwhile.
    #[test]
    fn who_has_run_is_known() {
        let (tell, told) = std::sync::mpsc::channel();
        let (next, go) = std::sync::mpsc::channel();
        let waiter = std::thread::Builder::new().name("a (b) c".into()).spawn(move || {
            tell.send(nix::unistd::gettid().as_raw() as u32).unwrap();
            go.recv().unwrap();
            tell.send(0).unwrap();
            go.recv().unwrap();
        });
        let (waiter, tid) = (waiter.unwrap(), told.recv().unwrap());
        let asleep = || {
            loop {
                let thread = Thread::read(std::process::id(), tid).expect("it lives");
                if thread.state == 'S' && matches!(thread.place, Some(Place::Call(..)) | None) {
                    return thread;
                }
                std::thread::yield_now();
            }
        };
        let one = asleep();
        assert_eq!(one.name, "a (b) c");
        assert!(one.has_not_run_until(&asleep()) && process_of(tid) == Some(std::process::id()));
        next.send(()).unwrap();
        told.recv().unwrap();
        assert!(!one.has_not_run_until(&asleep()));
        next.send(()).unwrap();
        waiter.join().unwrap();
        assert!(Thread::read(std::process::id(), tid).is_none());
    }
}
