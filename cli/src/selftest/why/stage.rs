//! The threads that hand a token round, and those that delay them. All tell what they did, and when.

use super::{KINDS, Kind};
use crate::failure::Failure;
use crate::selftest::{allowed_cpus, pin};
use nix::fcntl::{Flock, FlockArg};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, gettid};
use perfweave::Clock;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, Scope};
use std::time::Duration;

/// Threads that hand the token on. `why` follows 16 wakers behind one another.
const LINKS: usize = 8;
/// How often the token is handed on in one turn.
pub const HANDS: u64 = LINKS as u64 + 1;
/// The most nanoseconds of a switch that the clock of a thread counts, and that lie outside of what `sched_switch` says
/// it ran: the kernel reads that clock before and after the tracepoint. On a virtual machine with two hogs some 24 µs
/// were seen.
const SWITCH: u64 = 50_000;
/// How long a delay is.
const DELAY: Duration = Duration::from_millis(1);
/// One turn of so many has a delay.
const PERIOD: u64 = 5;
/// Of CPU time in 20 ms.
const QUOTA: Duration = Duration::from_millis(5);
/// A control group that lets a thread have so many of them at once does not hold it back.
const MOST_QUOTAS: u64 = 40;
/// Between two looks at whether a thread is asleep.
const LOOK: Duration = Duration::from_micros(50);
/// A real-time thread has the lowest priority of all such.
const IN_REAL_TIME: [&str; 3] = ["-f", "-p", "1"];
/// A thread that gives way to all others.
const WHEN_IDLE: [&str; 3] = ["-i", "-p", "0"];

/// A thread was handed the token.
#[derive(Debug, Clone, Copy)]
pub struct HandedOn {
    pub tid: u32,
    /// When it began to wait for it, and when it had it.
    pub from: u64,
    pub to: u64,
    pub by: u32,
    /// When the other was about to hand it on.
    pub wrote: u64,
}

/// A delay that was injected.
#[derive(Debug, Clone, Copy)]
pub struct Delay {
    pub kind: Kind,
    pub turn: u64,
    /// Who was delayed.
    pub tid: u32,
    /// Who delayed it: the thread that woke it, the hog, the one without quota, or the one that was stopped.
    pub by: u32,
    /// It lies within these times.
    pub begin: u64,
    pub end: u64,
    /// How much of that time it was.
    pub injected: u64,
}

/// What was done since somebody asked.
#[derive(Debug, Default)]
pub struct Truth {
    /// The thread to which the token comes back.
    pub root: u32,
    pub handed: Vec<HandedOn>,
    pub delays: Vec<Delay>,
    /// When turns with delays began and ended.
    pub turns: HashMap<u64, [u64; 2]>,
}

/// What threads write to each other.
#[derive(Debug, Clone, Copy)]
struct Message {
    turn: u64,
    wrote: u64,
    by: u32,
    /// A place in [`KINDS`], or none of them.
    kind: u8,
    /// Which thread is to be delayed, or on which CPU it is.
    at: u16,
}

const NO_KIND: u8 = u8::MAX;
/// The end.
const QUIT: u64 = u64::MAX;

impl Message {
    const QUIT: Self = Self { turn: QUIT, wrote: 0, by: 0, kind: NO_KIND, at: 0 };

    fn kind(self) -> Option<Kind> {
        KINDS.get(usize::from(self.kind)).copied()
    }
}

#[derive(Debug)]
struct Pipe {
    out: PipeReader,
    into: PipeWriter,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        io::pipe().map(|(out, into)| Self { out, into })
    }

    /// The kernel writes so few bytes at once.
    fn write(&self, of: Message) -> io::Result<()> {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&of.turn.to_ne_bytes());
        bytes[8..16].copy_from_slice(&of.wrote.to_ne_bytes());
        bytes[16..20].copy_from_slice(&of.by.to_ne_bytes());
        bytes[20] = of.kind;
        bytes[22..].copy_from_slice(&of.at.to_ne_bytes());
        (&self.into).write_all(&bytes)
    }

    fn read(&self) -> io::Result<Message> {
        let mut bytes = [0; 24];
        (&self.out).read_exact(&mut bytes)?;
        let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        let by = u32::from_ne_bytes(std::array::from_fn(|index| bytes[16 + index]));
        Ok(Message {
            turn: long(0),
            wrote: long(8),
            by,
            kind: bytes[20],
            at: u16::from_ne_bytes([bytes[22], bytes[23]]),
        })
    }
}

/// Who delays others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Helper {
    Normal,
    RealTime,
    /// One whose control group has a quota.
    Limited,
}

impl Helper {
    fn of(kind: Kind) -> Self {
        match kind {
            Kind::RealTime => Self::RealTime,
            Kind::Quota => Self::Limited,
            _ => Self::Normal,
        }
    }
}

/// All that they share.
#[derive(Debug)]
pub struct Stage {
    cpus: Vec<usize>,
    kinds: Mutex<Vec<Kind>>,
    left_out: Mutex<Vec<(Kind, String)>>,
    /// To each link, and back to the root.
    tokens: Vec<Pipe>,
    /// To the root: how many turns.
    turns: Pipe,
    helpers: [Pipe; 3],
    /// From a helper to whom it delays: that it is ready to, and the end.
    ready: Pipe,
    done: Pipe,
    /// Whose turn it is to fall asleep, and whose it was to wake up: the turn's number and 1.
    about: AtomicU64,
    awake: AtomicU64,
    sockets: (UnixStream, UnixStream),
    tcp: Option<(TcpStream, TcpStream)>,
    mutex: Mutex<()>,
    file: PathBuf,
    /// A process that writes what it reads.
    cat: Option<Mutex<Child>>,
    group: Result<Group, String>,
    truth: Mutex<Truth>,
    root: AtomicU32,
    links: [AtomicU32; LINKS],
    /// All turns are made.
    is_over: AtomicBool,
    /// CPUs may go idle.
    is_idle: AtomicBool,
    ended: AtomicBool,
    failure: Mutex<Option<String>>,
}

/// Ends the threads, so that nobody waits for them for ever.
#[derive(Debug)]
pub struct Over<'a>(&'a Stage);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
        self.0.unpin();
        let pipes = self.0.tokens.iter().chain(&self.0.helpers).chain([&self.0.turns, &self.0.ready, &self.0.done]);
        pipes.for_each(|pipe| drop(pipe.write(Message::QUIT)));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
        if let Some(cat) = &self.cat {
            let mut cat = lock(cat);
            let _ = cat.kill();
            let _ = cat.wait();
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As the events have it, in nanoseconds.
fn now() -> u64 {
    Clock::Monotonic.now().unwrap_or(0)
}

fn clock(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

fn tid() -> u32 {
    gettid().as_raw().cast_unsigned()
}

/// Sets this thread's policy.
fn policy(arguments: [&str; 3]) -> Result<(), String> {
    let mut chrt = Command::new("chrt");
    let output = chrt.args(arguments).arg(tid().to_string()).output().map_err(|error| format!("chrt: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}

/// How long this thread has run, how long it could run and did not, and how often it began to run:
/// `/proc/PID/schedstat` (Documentation/scheduler/sched-stats.rst).
fn ran() -> io::Result<[u64; 3]> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    let mut numbers = text.split(' ').map_while(|number| number.trim().parse().ok());
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(ran), Some(waited), Some(times)) => Ok([ran, waited, times]),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

impl Stage {
    pub fn new() -> Result<Self, Failure> {
        let pipes = |count| (0..count).map(|_| Pipe::new()).collect::<io::Result<Vec<_>>>();
        let folder = Path::new("/var/tmp");
        let folder = if folder.is_dir() { folder.to_owned() } else { std::env::temp_dir() };
        let file = folder.join(format!("perfweave-selftest-{}", std::process::id()));
        fs::OpenOptions::new().write(true).create_new(true).open(&file)?;
        let tcp = TcpListener::bind("127.0.0.1:0").and_then(|listener| {
            let one = TcpStream::connect(listener.local_addr()?)?;
            let (other, _) = listener.accept()?;
            other.set_nodelay(true)?;
            Ok((one, other))
        });
        let cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let cpus = allowed_cpus()?;
        let group = match cpus.len() {
            1 => Err("it takes an idle CPU, and there is one CPU in all".into()),
            _ => Group::new().map_err(|error| format!("no control group with a quota: {error}")),
        };
        let mut left_out = Vec::new();
        left_out.extend(tcp.as_ref().err().map(|error| (Kind::Loopback, error.to_string())));
        left_out.extend(cat.as_ref().err().map(|error| (Kind::Stop, format!("cat: {error}"))));
        left_out.extend(group.as_ref().err().map(|error| (Kind::Quota, error.clone())));
        let error = ran().err().map(|error| format!("/proc/thread-self/schedstat: {error}"));
        left_out.extend([Kind::Sleep, Kind::Disk].into_iter().filter_map(|kind| Some((kind, error.clone()?))));
        Ok(Self {
            cpus,
            kinds: Mutex::default(),
            left_out: Mutex::new(left_out),
            tokens: pipes(LINKS + 1)?,
            turns: Pipe::new()?,
            helpers: [Pipe::new()?, Pipe::new()?, Pipe::new()?],
            ready: Pipe::new()?,
            done: Pipe::new()?,
            about: AtomicU64::new(0),
            awake: AtomicU64::new(0),
            sockets: UnixStream::pair()?,
            tcp: tcp.ok(),
            mutex: Mutex::new(()),
            file,
            cat: cat.ok().map(Mutex::new),
            group,
            truth: Mutex::default(),
            root: AtomicU32::new(0),
            links: Default::default(),
            is_over: AtomicBool::new(true),
            is_idle: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            failure: Mutex::new(None),
        })
    }

    /// Starts the threads. They end when what this gives is dropped.
    pub fn begin<'scope, 'env>(&'env self, scope: &'scope Scope<'scope, 'env>) -> Result<Over<'env>, Failure> {
        let over = Over(self);
        // Of a CPU that is never idle the kernel leaves no wake-up out (docs/PLATFORMS.md).
        for &cpu in &self.cpus {
            thread::Builder::new().name("idle".into()).spawn_scoped(scope, move || {
                pin(cpu);
                let is_last = policy(WHEN_IDLE).is_ok();
                while is_last && !self.ended.load(Ordering::Relaxed) {
                    // A quota is seen on an idle CPU alone.
                    if self.is_idle.load(Ordering::Relaxed) { thread::sleep(DELAY) } else { std::hint::spin_loop() }
                }
            })?;
        }
        let (tell, told) = mpsc::channel();
        for helper in [Helper::Normal, Helper::RealTime, Helper::Limited] {
            let tell = tell.clone();
            let run = move || self.watch(self.help(helper, &tell));
            thread::Builder::new().name(format!("{helper:?}").to_lowercase()).spawn_scoped(scope, run)?;
        }
        drop(tell);
        // Until each has told, or has ended.
        lock(&self.left_out).extend(told.iter().take(3).flatten());
        let is_left_out = |kind: &Kind| lock(&self.left_out).iter().any(|(left_out, _)| left_out == kind);
        *lock(&self.kinds) = KINDS.into_iter().filter(|kind| !is_left_out(kind)).collect();
        for link in 0..LINKS {
            let run = move || self.watch(self.link(link));
            thread::Builder::new().name(format!("link{link}")).spawn_scoped(scope, run)?;
        }
        thread::Builder::new().name("root".into()).spawn_scoped(scope, move || self.watch(self.root()))?;
        // Not where a thread is held back by its quota, which is seen on an idle CPU alone.
        pin(self.cpus[0]);
        Ok(over)
    }

    /// What is not tested here, and why.
    pub fn left_out(&self) -> Vec<(Kind, String)> {
        lock(&self.left_out).clone()
    }

    /// Lets the token go round so many times.
    pub fn round(&self, turns: u64) -> io::Result<()> {
        self.is_over.store(false, Ordering::Release);
        self.turns.write(Message { turn: turns, ..Message::QUIT })
    }

    /// Whether it has.
    pub fn is_over(&self) -> Result<bool, Failure> {
        match &*lock(&self.failure) {
            Some(failure) => Err(Failure::new(failure)),
            None => Ok(self.is_over.load(Ordering::Acquire)),
        }
    }

    /// What was done since the last time.
    pub fn truth(&self) -> Truth {
        Truth { root: self.root.load(Ordering::Relaxed), ..std::mem::take(&mut *lock(&self.truth)) }
    }

    fn watch(&self, ended: io::Result<()>) {
        if let Err(error) = ended {
            *lock(&self.failure) = Some(error.to_string());
        }
    }

    /// Where a thread is pinned.
    fn cpu(&self, link: usize) -> usize {
        self.cpus[link % self.cpus.len()]
    }

    /// Sends the token round, and waits until it comes back.
    fn root(&self) -> io::Result<()> {
        self.root.store(tid(), Ordering::Relaxed);
        let (tid, mut turn) = (tid(), 0);
        loop {
            let turns = self.turns.read()?.turn;
            if turns == QUIT {
                return Ok(());
            }
            let (mut handed, mut times) = (Vec::new(), HashMap::new());
            for _ in 0..turns {
                turn += 1;
                // One of them may turn out not to work.
                let kinds = lock(&self.kinds).clone();
                let delay = turn / PERIOD;
                let kind = (turn % PERIOD == 0 && !kinds.is_empty()).then(|| kinds[delay as usize % kinds.len()]);
                let place = kind.and_then(|kind| KINDS.iter().position(|one| *one == kind));
                let (kind, at) = (place.map_or(NO_KIND, |place| place as u8), (delay % LINKS as u64) as u16);
                let from = now();
                self.tokens[0].write(Message { turn, wrote: from, by: tid, kind, at })?;
                let wait = now();
                let Message { turn: back, wrote, by, .. } = self.tokens[LINKS].read()?;
                let to = now();
                if back == QUIT {
                    return Ok(());
                }
                handed.push(HandedOn { tid, from: wait, to, by, wrote });
                if place.is_some() {
                    times.insert(turn, [from, to]);
                }
            }
            {
                let mut truth = lock(&self.truth);
                truth.handed.extend(handed);
                truth.turns.extend(times);
            }
            self.is_over.store(true, Ordering::Release);
        }
    }

    /// Hands the token on, after a delay if it has one for this thread.
    fn link(&self, link: usize) -> io::Result<()> {
        pin(self.cpu(link));
        let tid = tid();
        self.links[link].store(tid, Ordering::Relaxed);
        loop {
            let from = now();
            let token = self.tokens[link].read()?;
            let to = now();
            if token.turn == QUIT {
                return Ok(());
            }
            lock(&self.truth).handed.push(HandedOn { tid, from, to, by: token.by, wrote: token.wrote });
            if let Some(kind) = token.kind().filter(|_| usize::from(token.at) == link) {
                self.delayed(kind, token.turn, link)?;
            }
            self.tokens[link + 1].write(Message { wrote: now(), by: tid, ..token })?;
        }
    }

    /// Waits as long as the delay is.
    fn delayed(&self, kind: Kind, turn: u64, link: usize) -> io::Result<()> {
        let (tid, cpu) = (tid(), self.cpu(link));
        // All those behind it wait for it, from here on: so it is their delay as well.
        for waiting in self.links[link + 1..].iter().chain([&self.root]) {
            wait_until(&format!("/proc/self/task/{}/stat", waiting.load(Ordering::Relaxed)), "S")?;
        }
        if let Kind::Sleep | Kind::Disk = kind {
            let file = fs::OpenOptions::new().write(true).open(&self.file)?;
            if kind == Kind::Disk {
                (&file).write_all(&[turn as u8; 16 << 10])?;
            }
            let ([ran, waited, _], begin) = (self::ran()?, now());
            if kind == Kind::Disk {
                file.sync_all()?
            } else {
                thread::sleep(DELAY)
            }
            let (end, [ran_then, waited_then, _]) = (now(), self::ran()?);
            // The rest is what it was blocked.
            let injected = (end - begin).saturating_sub(ran_then - ran + waited_then - waited);
            lock(&self.truth).delays.push(Delay { kind, turn, tid, by: tid, begin, end, injected });
            return Ok(());
        }
        let place = KINDS.iter().position(|one| *one == kind).unwrap_or(0) as u8;
        let command = Message { turn, wrote: 0, by: tid, kind: place, at: cpu as u16 };
        let lock_file = File::open(&self.file)?;
        self.helpers[Helper::of(kind) as usize].write(command)?;
        if let Kind::Lock | Kind::Futex | Kind::Stop = kind {
            self.ready.read()?;
        }
        // From here on it falls asleep in one call alone.
        self.about.store(turn + 1, Ordering::Release);
        match kind {
            Kind::Lock => drop(Flock::lock(lock_file, FlockArg::LockExclusive).map_err(|(_, error)| error)?),
            Kind::Futex => drop(lock(&self.mutex)),
            Kind::Socket => (&self.sockets.0).read_exact(&mut [0])?,
            Kind::Loopback => self.tcp.as_ref().map_or(Ok(()), |(one, _)| (&mut &*one).read_exact(&mut [0]))?,
            Kind::Stop => self.echo()?,
            _ => drop(self.done.read()?),
        }
        self.awake.store(turn + 1, Ordering::Release);
        Ok(())
    }

    /// Waits for the other process.
    fn echo(&self) -> io::Result<()> {
        let Some(cat) = &self.cat else { return Ok(()) };
        let mut cat = lock(cat);
        if let Some(into) = &mut cat.stdin {
            into.write_all(b"!")?;
        }
        cat.stdout.as_mut().map_or(Ok(()), |out| out.read_exact(&mut [0]))
    }

    /// Delays others, if this kernel and user let it. Tells whether they do.
    fn help(&self, helper: Helper, tell: &mpsc::Sender<Option<(Kind, String)>>) -> io::Result<()> {
        let is_ready = match helper {
            Helper::Normal => Ok(()),
            Helper::RealTime => policy(IN_REAL_TIME).map_err(|error| (Kind::RealTime, error)),
            Helper::Limited => match &self.group {
                Ok(group) => group.enter().map_err(|error| (Kind::Quota, error.to_string())),
                // That was told.
                Err(_) => Ok(()),
            },
        };
        let _ = tell.send(is_ready.err());
        loop {
            let command = self.helpers[helper as usize].read()?;
            match command.kind() {
                Some(kind) if command.turn != QUIT => self.delay(kind, command)?,
                _ => return Ok(()),
            }
        }
    }

    fn delay(&self, kind: Kind, Message { turn, by: other, at: cpu, .. }: Message) -> io::Result<()> {
        let cat = self.cat.as_ref().filter(|_| kind == Kind::Stop);
        // Whom this thread delays holds the lock of that while it waits.
        let cat = cat.map(|cat| Pid::from_raw(lock(cat).id().cast_signed()));
        let own = match kind {
            Kind::Lock => {
                let file = File::open(&self.file)?;
                Some(Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error)?)
            }
            _ => None,
        };
        let mutex = (kind == Kind::Futex).then(|| lock(&self.mutex));
        if let Some(cat) = cat {
            kill(cat, Signal::SIGSTOP)?;
            wait_until(&format!("/proc/{cat}/stat"), "T")?;
        }
        if let Kind::Lock | Kind::Futex | Kind::Stop = kind {
            self.ready.write(Message::QUIT)?;
        }
        if let Kind::Hog | Kind::RealTime = kind {
            pin(cpu.into());
        }
        while self.about.load(Ordering::Acquire) != turn + 1 && !self.ended.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
        }
        wait_until(&format!("/proc/self/task/{other}/stat"), "SD")?;
        let (begin, mut by) = (now(), tid());
        let (injected, end) = self.hold_back(kind, turn)?;
        let is_made = kind != Kind::Quota || injected.is_some();
        let until = end.unwrap_or_else(now);
        match kind {
            Kind::Lock => drop(own.map(Flock::unlock)),
            Kind::Futex => drop(mutex),
            Kind::Pipe | Kind::Quota => self.done.write(Message::QUIT)?,
            Kind::Socket => (&self.sockets.1).write_all(b"!")?,
            Kind::Loopback => self.tcp.as_ref().map_or(Ok(()), |(_, one)| (&mut &*one).write_all(b"!"))?,
            Kind::Hog | Kind::RealTime => self.unpin(),
            _ => {}
        }
        if let Some(cat) = cat {
            kill(cat, Signal::SIGCONT)?;
            by = cat.as_raw().cast_unsigned();
        }
        if !is_made {
            lock(&self.kinds).retain(|one| *one != kind);
            lock(&self.left_out).push((kind, "the quota of its control group did not hold the thread back".into()));
            return Ok(());
        }
        let injected = injected.unwrap_or(until - begin);
        lock(&self.truth).delays.push(Delay { kind, turn, tid: other, by, begin, end: until, injected });
        Ok(())
    }

    /// Makes a delay. Gives how long it was and until when it lasted, if that is measured.
    fn hold_back(&self, kind: Kind, turn: u64) -> io::Result<(Option<u64>, Option<u64>)> {
        match kind {
            Kind::Hog | Kind::RealTime => {
                self.done.write(Message::QUIT)?;
                let [_, _, times] = ran()?;
                let (hogged, end) = self.hog(turn);
                let [_, _, times_then] = ran()?;
                Ok((Some(hogged.saturating_sub((times_then - times) * SWITCH)), Some(end)))
            }
            Kind::Quota => {
                self.is_idle.store(true, Ordering::Relaxed);
                pin(self.cpu(self.cpus.len() - 1));
                let injected = self.group.as_ref().ok().map(Group::use_up).transpose()?.flatten();
                self.is_idle.store(false, Ordering::Relaxed);
                Ok((injected, None))
            }
            _ => {
                thread::sleep(DELAY);
                Ok((None, None))
            }
        }
    }

    /// Computes where another waits for the CPU, until that one has it or the delay is over. Gives how long this thread
    /// had it, and until when.
    fn hog(&self, turn: u64) -> (u64, u64) {
        let (began, had) = (now(), clock(ClockId::CLOCK_THREAD_CPUTIME_ID));
        let (mut now_had, mut time) = (had, began);
        while time < began + DELAY.as_nanos() as u64 {
            let seen = (clock(ClockId::CLOCK_THREAD_CPUTIME_ID), now());
            if self.awake.load(Ordering::Acquire) == turn + 1 {
                break;
            }
            (now_had, time) = seen;
        }
        (now_had - had, time)
    }

    fn unpin(&self) {
        let mut set = CpuSet::new();
        if self.cpus.iter().all(|cpu| set.set(*cpu).is_ok()) {
            let _ = sched_setaffinity(Pid::from_raw(0), &set);
        }
    }
}

/// Until the state of a process or thread is one of these, as proc_pid_stat(5) has it.
fn wait_until(path: &str, states: &str) -> io::Result<()> {
    loop {
        let text = fs::read_to_string(path)?;
        let state = text.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        if state.is_some_and(|state| states.contains(state)) {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
}

/// A control group with a quota, for threads. It is removed at the end.
#[derive(Debug)]
struct Group {
    folder: PathBuf,
    /// Where threads are written to.
    threads: &'static str,
    /// Where the controller was turned on for it.
    turned_on: Option<PathBuf>,
}

impl Group {
    fn new() -> io::Result<Self> {
        let name = format!("perfweave-selftest-{}", std::process::id());
        let first = ["cpu", "cpu,cpuacct"].map(|controller| Path::new("/sys/fs/cgroup").join(controller));
        if let Some(parent) = first.into_iter().find(|parent| parent.is_dir()) {
            let of = Self { folder: parent.join(name), threads: "tasks", turned_on: None };
            fs::create_dir(&of.folder)?;
            fs::write(of.folder.join("cpu.cfs_period_us"), "20000")?;
            fs::write(of.folder.join("cpu.cfs_quota_us"), QUOTA.as_micros().to_string())?;
            return Ok(of);
        }
        // Only below its own group may a thread be in another one than its process.
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).ok_or(io::ErrorKind::NotFound)?;
        let parent = Path::new("/sys/fs/cgroup").join(own);
        let mut of = Self { folder: parent.join(name), threads: "cgroup.threads", turned_on: None };
        fs::create_dir(&of.folder)?;
        fs::write(of.folder.join("cgroup.type"), "threaded")?;
        let control = parent.join("cgroup.subtree_control");
        if !fs::read_to_string(&control)?.split_whitespace().any(|one| one == "cpu") {
            fs::write(&control, "+cpu")?;
            of.turned_on = Some(control);
        }
        fs::write(of.folder.join("cpu.max"), format!("{} 20000", QUOTA.as_micros()))?;
        Ok(of)
    }

    fn enter(&self) -> io::Result<()> {
        fs::write(self.folder.join(self.threads), tid().to_string())
    }

    /// Computes until its quota has held it back, and gives how long. `None` if it has not, though many quotas are used
    /// up.
    fn use_up(&self) -> io::Result<Option<u64>> {
        let held = || {
            let text = fs::read_to_string(self.folder.join("cpu.stat"))?;
            let of = |name, unit: u64| {
                let number = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
                number.map(|number| number * unit)
            };
            of("throttled_time ", 1)
                .or_else(|| of("throttled_usec ", 1_000))
                .ok_or(io::Error::from(io::ErrorKind::NotFound))
        };
        let (before, ran) = (held()?, clock(ClockId::CLOCK_THREAD_CPUTIME_ID));
        while clock(ClockId::CLOCK_THREAD_CPUTIME_ID) - ran < MOST_QUOTAS * QUOTA.as_nanos() as u64 {
            (0..100_000).for_each(|_| std::hint::spin_loop());
            let now = held()?;
            if now > before {
                return Ok(Some(now - before));
            }
        }
        Ok(None)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
        if let Some(control) = &self.turned_on {
            let _ = fs::write(control, "-cpu");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Group;
    use std::fs;

    /// Where the file of a control group never says that it held a thread back.
    #[test]
    fn a_quota_without_effect_has_an_end() {
        let folder = std::env::temp_dir().join(format!("perfweave-selftest-quota-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cpu.stat"), "usage_usec 1\nnr_throttled 0\nthrottled_usec 7\n").unwrap();
        let group = Group { folder: folder.clone(), threads: "cgroup.threads", turned_on: None };
        assert_eq!(group.use_up().unwrap(), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
