//! The tools of fault injection: the judge of system calls, the state that a scenario runs with, and the open things of
//! the process.

use perfweave::{Clock, Error, Fence, Hold, Key, Layout, Merge, Order, Ring, RingOptions, Rings};
use perfweave_proofs::expedited;
use perfweave_support::bpf::{Map, Program};
use perfweave_support::supervised::{Answer, Call, supervised};
use perfweave_support::{cpus, echo, foreign, kernel, ring_buffer, threads};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

/// Bytes of a ring of one page with its header page.
fn ring() -> u64 {
    2 * foreign::page_size() as u64
}

/// Bytes of data of a BPF ring buffer.
fn buffer() -> u64 {
    4 * foreign::page_size() as u64
}

/// Whether a mapping of this length is one of the crate's: a perf ring, or one of the two of a BPF ring buffer.
fn is_mapped_by_us(len: u64) -> bool {
    let page = foreign::page_size() as u64;
    [ring(), page, page + 2 * buffer()].contains(&len)
}

/// Requests of bpf(2) and ioctl(2).
pub(crate) const MAP_UPDATE_ELEM: u64 = 2;
pub(crate) const MAP_DELETE_ELEM: u64 = 3;
const OBJ_GET_INFO_BY_FD: u64 = 15;
const ENABLE: u64 = 0x2400;
const SET_OUTPUT: u64 = 0x2405;
pub(crate) const SET_FILTER: u64 = 0x4008_2406;

/// poll(2), or its replacement on this architecture.
pub(crate) fn is_poll(number: libc::c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    let old = [libc::SYS_poll];
    #[cfg(not(target_arch = "x86_64"))]
    let old = [];
    old.contains(&number) || number == libc::SYS_ppoll
}

/// epoll_wait(2), likewise.
fn is_epoll(number: libc::c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    let old = [libc::SYS_epoll_wait];
    #[cfg(not(target_arch = "x86_64"))]
    let old = [];
    old.contains(&number) || number == libc::SYS_epoll_pwait
}

/// Which call: the thread that makes it, its number, and what distinguishes its uses, such as the request of an
/// ioctl(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Which {
    /// The fence's thread, not the thread that runs the scenario.
    pub(crate) beside: bool,
    pub(crate) number: libc::c_long,
    pub(crate) detail: u64,
}

impl Which {
    pub(crate) fn of(call: &Call, main: i32) -> Self {
        let detail = match call.number {
            libc::SYS_ioctl | libc::SYS_fcntl => call.args[1],
            libc::SYS_bpf | libc::SYS_membarrier => call.args[0],
            _ => 0,
        };
        Self { beside: call.thread != main, number: call.number, detail }
    }

    /// Whether an error must report its failure, because nothing else can be done about it.
    pub(crate) fn matters(self) -> bool {
        match self.number {
            libc::SYS_ioctl => [ENABLE, SET_OUTPUT].contains(&self.detail),
            libc::SYS_bpf => !self.beside && [MAP_UPDATE_ELEM, OBJ_GET_INFO_BY_FD].contains(&self.detail),
            libc::SYS_epoll_create1 | libc::SYS_eventfd2 | libc::SYS_getdents64 => true,
            _ => false,
        }
    }

    /// The injected errors. One in each run.
    pub(crate) fn errors(self) -> &'static [i32] {
        match self.number {
            libc::SYS_perf_event_open => &[libc::EMFILE, libc::ENODEV, libc::EACCES, libc::EINTR],
            libc::SYS_mmap => &[libc::ENOMEM, libc::EPERM],
            libc::SYS_bpf => &[libc::EPERM, libc::ENOMEM, libc::EBUSY],
            libc::SYS_ioctl => &[libc::EPERM, libc::ENOMEM],
            libc::SYS_openat => &[libc::EMFILE, libc::EACCES, libc::ENOENT],
            libc::SYS_eventfd2 | libc::SYS_epoll_create1 => &[libc::EMFILE, libc::ENOMEM],
            libc::SYS_fcntl => &[libc::EMFILE],
            libc::SYS_epoll_ctl => &[libc::ENOMEM, libc::ENOSPC],
            libc::SYS_epoll_pwait2 => &[libc::EINTR, libc::ENOSYS, libc::EPERM],
            libc::SYS_read | libc::SYS_pread64 => &[libc::EINTR, libc::EIO],
            libc::SYS_write => &[libc::EAGAIN, libc::EINTR],
            libc::SYS_clone3 | libc::SYS_clone => &[libc::EAGAIN, libc::EPERM],
            libc::SYS_close => &[libc::EINTR, libc::EIO],
            libc::SYS_munmap => &[libc::ENOMEM],
            libc::SYS_membarrier => &[libc::EPERM, libc::ENOSYS],
            number if is_poll(number) => &[libc::EINTR, libc::ENOMEM],
            // Calls by which runtimes wait: they panic if these fail with other errors.
            number if is_epoll(number) => &[libc::EINTR],
            _ => &[libc::EPERM, libc::ENOMEM],
        }
    }
}

/// Internal calls of libc and std: memory and threads, random numbers, and a sleep. If they fail, libc and std may
/// abort or panic, and this crate cannot change that.
pub(crate) fn is_not_ours(call: &Call, beside: bool) -> bool {
    let Call { number, args, .. } = *call;
    match number {
        libc::SYS_mprotect | libc::SYS_mremap | libc::SYS_sigaltstack | libc::SYS_set_robust_list | libc::SYS_rseq => {
            true
        }
        libc::SYS_exit | libc::SYS_getpid | libc::SYS_gettid | libc::SYS_getrandom => true,
        libc::SYS_prctl | libc::SYS_sched_getaffinity => true,
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => true,
        // A failed mapping of a thread's stack is covered by the failed creation of the thread.
        libc::SYS_mmap => {
            let is_memory = args[3] & libc::MAP_ANONYMOUS as u64 != 0;
            (is_memory || !is_mapped_by_us(args[1])) && (beside || args[3] & libc::MAP_STACK as u64 == 0)
        }
        libc::SYS_munmap => !is_mapped_by_us(args[1]),
        libc::SYS_madvise => true,
        // A new thread sets its own.
        libc::SYS_rt_sigprocmask => beside,
        _ => false,
    }
}

/// The injected failure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Aim {
    pub(crate) which: Which,
    /// From 1.
    pub(crate) nth: usize,
    pub(crate) errno: i32,
    /// Whether all later calls of this kind fail too.
    pub(crate) forever: bool,
}

/// The state that a scenario and its judge share.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    main: AtomicI32,
    /// Whether calls count.
    pub(crate) begun: AtomicBool,
    /// Whether reads of events say that they do not run any more, and CPUs are in another stay, as if they had been
    /// offline.
    pub(crate) dead: AtomicBool,
    /// The descriptor by which a runtime wakes itself, if there is one. The runtime panics if a write to it fails.
    pub(crate) theirs: AtomicI32,
}

/// The record of a run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) calls: BTreeMap<Which, usize>,
    pub(crate) hits: usize,
    /// Mappings of the crate whose munmap(2) was refused.
    pub(crate) kept: Vec<(u64, u64)>,
}

impl Run {
    pub(crate) fn judge(&mut self, call: &Call, stage: &Stage, aim: Option<Aim>) -> Answer {
        let which = Which::of(call, stage.main.load(Ordering::Relaxed));
        let theirs = call.number == libc::SYS_write && call.args[0] as i32 == stage.theirs.load(Ordering::Relaxed);
        if !stage.begun.load(Ordering::Relaxed) || theirs || is_not_ours(call, which.beside) {
            return Answer::Make;
        }
        let count = self.calls.entry(which).or_default();
        *count += 1;
        let hit = aim.filter(|aim| aim.which == which && (aim.nth == *count || aim.forever && aim.nth <= *count));
        if let Some(Aim { errno, .. }) = hit {
            self.hits += 1;
            match call.number {
                // The kernel closes the descriptor even if it returns an error.
                // SAFETY: the owner of the descriptor is about to close it, and waits for us.
                libc::SYS_close => drop(unsafe { libc::close(call.args[0] as i32) }),
                libc::SYS_munmap => self.kept.push((call.args[0], call.args[1])),
                _ => {}
            }
            return Answer::Fail(errno);
        }
        // A read of an event's running time has a buffer of this size.
        if call.number == libc::SYS_read && call.args[2] == 128 && stage.dead.load(Ordering::Relaxed) {
            // SAFETY: so long is the buffer of the thread that waits for us.
            unsafe { std::ptr::write_bytes(call.args[1] as *mut u8, 0, 128) };
            return Answer::Say(24);
        }
        if is_stay(call) && stage.dead.load(Ordering::Relaxed) {
            return another_stay(call);
        }
        Answer::Make
    }
}

/// Whether the crate asks which stay of a CPU this is. libc asks of open files, with a flag.
pub(crate) fn is_stay(call: &Call) -> bool {
    call.number == libc::SYS_newfstatat && call.args[3] == 0
}

/// Answers that it is one that no CPU has.
pub(crate) fn another_stay(call: &Call) -> Answer {
    // SAFETY: the thread that waits for us has room for this much.
    unsafe { std::ptr::write_bytes(call.args[2] as *mut libc::stat, 0, 1) };
    Answer::Say(0)
}

/// The errors that a scenario gets, and how often its readers slept undisturbed.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) errors: Vec<io::Error>,
    pub(crate) sleeps: u64,
}

impl Heard {
    pub(crate) fn hear<T>(&mut self, answer: Result<T, Error>) -> Option<T> {
        answer.map_err(|error| self.errors.push(error.into())).ok()
    }
}

/// The fastest fence of this machine.
pub(crate) fn soon() -> Fence {
    expedited(Duration::from_millis(1))
}

/// The state that a scenario runs with.
pub(crate) struct World {
    pub(crate) events: Map,
    echo: Arc<Program>,
    pub(crate) cpus: Vec<u32>,
    /// BPF ring buffers by CPU, the counts of failed reservations, and a program that writes a number, if the kernel
    /// has them.
    pub(crate) buffers: Option<Arc<(Map, Map)>>,
    writer: Option<Arc<Program>>,
    pub(crate) stage: Stage,
    /// Whether calls fail for ever, so that the scenario may not succeed.
    pub(crate) forever: bool,
    /// Does something that is no part of the scenario: no call is judged meanwhile.
    outside: Sender<Box<dyn FnOnce() + Send>>,
}

impl World {
    pub(crate) fn new() -> Option<Self> {
        let (events, echo) = echo()?;
        kernel("supervise system calls", supervised(|_| Answer::Make, || ()))?;
        kernel("wait for expedited grace periods", soon().open())?;
        kernel("find tracefs", perfweave_events::tracefs())?;
        let cpus = cpus::online();
        let made = Map::ring_buffers(buffer() as u32, &cpus).and_then(|(map, _)| {
            let writer = ring_buffer::echo(&map, 8, 0)?;
            let failures = Map::counts()?;
            // Some have failed before anybody counts.
            failures.update(0, &[[5, 0, 0, 0, 0, 0, 0, 0]; 4096].concat()[..8 * cpus::possible().len()])?;
            Ok((Arc::new((map, failures)), Arc::new(writer)))
        });
        let (buffers, writer) = kernel("make BPF ring buffers", made).unzip();
        let (outside, work) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        std::thread::spawn(move || work.into_iter().for_each(|work| work()));
        Some(Self {
            events,
            echo: Arc::new(echo),
            cpus,
            buffers,
            writer,
            stage: Stage::default(),
            forever: false,
            outside,
        })
    }

    pub(crate) fn outside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, answer) = mpsc::sync_channel(1);
        self.outside.send(Box::new(move || drop(done.send(work())))).unwrap();
        answer.recv().unwrap()
    }

    pub(crate) fn options(&self) -> RingOptions {
        // The second has no slot, and writes very little.
        let rare = foreign::software(perf_event_open_sys::bindings::PERF_COUNT_SW_EMULATION_FAULTS, 1 << 60);
        Rings::options().bpf_output(&self.events).event(&rare).pages(1)
    }

    /// Outputs a number on a CPU. Gives what the helper answers.
    pub(crate) fn emit(&self, cpu: u32, number: u64) -> i32 {
        let echo = Arc::clone(&self.echo);
        self.outside(move || echo.run_with(cpu, &[number]).unwrap())
    }

    /// Writes a number into the BPF ring buffer of a CPU. Gives whether there was room.
    pub(crate) fn write(&self, cpu: u32, number: u64) -> bool {
        let writer = Arc::clone(self.writer.as_ref().expect("BPF ring buffers"));
        self.outside(move || writer.run_with(cpu, &[number]).unwrap() == 0)
    }

    /// Takes what an earlier run has left in BPF ring buffers.
    pub(crate) fn empty(&self) {
        let maps = Arc::clone(self.buffers.as_ref().expect("BPF ring buffers"));
        self.outside(move || {
            let mut rings = Rings::empty(Clock::Monotonic);
            // SAFETY: the map has no other reader at this time.
            let adopted = unsafe { Ring::adopt_ring_buffers(&maps.0) }.unwrap();
            adopted.into_iter().for_each(|(cpu, ring)| rings.add(cpu, ring, Layout::RING_BUFFER));
            let mut merge = Merge::new(rings, Order::new().key(Key::Payload(0)).hold(Hold::None)).unwrap();
            merge.refresh(0);
            merge.batch().for_each(drop);
            merge.advance_tails();
        });
    }

    /// Makes the kernel send a message that a CPU came online. Readers then look which stay of each CPU it is.
    pub(crate) fn announce(&self, cpu: u32) -> io::Result<()> {
        let uevent = format!("/sys/devices/system/cpu/cpu{cpu}/uevent");
        self.outside(move || std::fs::write(uevent, "online"))
    }

    /// Runs a scenario on a thread whose calls are judged.
    pub(crate) fn run(&self, scenario: fn(&World, &mut Heard), aim: Option<Aim>) -> (Run, Heard) {
        let mut run = Run::default();
        let judge = |call: &Call| run.judge(call, &self.stage, aim);
        let heard = supervised(judge, || {
            self.stage.main.store(threads::own(), Ordering::Relaxed);
            let mut heard = Heard::default();
            self.stage.begun.store(true, Ordering::Relaxed);
            scenario(self, &mut heard);
            self.stage.begun.store(false, Ordering::Relaxed);
            heard
        });
        self.stage.dead.store(false, Ordering::Relaxed);
        (run, heard.unwrap())
    }
}

/// The open things of this process: descriptors, rings, threads of fences.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Open {
    fds: Vec<String>,
    rings: usize,
}

impl Open {
    pub(crate) fn now() -> Self {
        threads::until("threads of fences end", || threads::named("perfweave-fence").is_none());
        let fds = std::fs::read_dir("/proc/self/fd").unwrap();
        let mut fds: Vec<_> = fds
            .filter_map(|fd| {
                let fd = fd.unwrap();
                let is = std::fs::read_link(fd.path()).ok()?.to_string_lossy().into_owned();
                // The descriptor of this listing.
                (!is.ends_with("/fd")).then(|| format!("{}: {is}", fd.file_name().to_string_lossy()))
            })
            .collect();
        fds.sort();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let is_ring =
            |line: &&str| ["anon_inode:[perf_event]", "anon_inode:bpf-map"].iter().any(|file| line.contains(file));
        let rings = maps.lines().filter(is_ring).count();
        Self { fds, rings }
    }
}

/// Removes leftover trace instances, which this process made to get the kernel's message about a filter. Gives how
/// many.
pub(crate) fn instances_left() -> usize {
    let tracefs = perfweave_events::tracefs().unwrap();
    let instances = tracefs.join("instances");
    let ours = format!("perfweave-{}-", std::process::id());
    let left = std::fs::read_dir(instances).unwrap().map(|instance| instance.unwrap());
    let left = left.filter(|instance| instance.file_name().to_string_lossy().starts_with(&ours));
    left.map(|instance| std::fs::remove_dir(instance.path()).unwrap()).count()
}

/// The kernel's error number: of an error of the system, or of one of this crate. A failed getpid(2) gives a number
/// that no process has, and a later call fails because of it.
pub(crate) fn errno(error: &io::Error) -> Option<i32> {
    let is_other = |error: &&Error| !error.to_string().starts_with("there is no process ");
    let ours = || error.get_ref()?.downcast_ref::<Error>().filter(is_other)?.raw_os_error();
    error.raw_os_error().or_else(ours)
}
