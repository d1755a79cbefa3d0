//! Disturbances of a reader from outside its process: stops, hogs, CPUs that go offline, a clock that is steered.

use crate::random::Random;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use perfweave_support::{cpus, load};
use std::io;
use std::process::{Child, Command};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often each was done.
#[derive(Debug, Default)]
pub struct Done {
    pub stops: u64,
    pub hogs: u64,
    pub real_time: u64,
    pub steered: u64,
    pub unplugged: u64,
}

/// Everything that is under way, undone when it is dropped.
#[derive(Debug)]
pub struct Trouble {
    random: Random,
    reader: Pid,
    /// When the reader, which is stopped, goes on.
    stopped: Option<Instant>,
    hogs: Vec<JoinHandle<()>>,
    /// Takes a CPU away and brings it back.
    unplug: Option<Child>,
    next_unplug: Instant,
    clock: Option<Steered>,
    next: Instant,
    pub done: Done,
}

impl Trouble {
    pub fn new(seed: u64, reader: u32, clock: bool) -> Self {
        let mut random = Random::new(seed, 0);
        let now = Instant::now();
        let clock = clock.then(Steered::begin).and_then(|begun| match begun {
            Ok(clock) => Some(clock),
            Err(errno) => {
                println!("SKIPPED: the clock cannot be steered: {errno}");
                None
            }
        });
        Self {
            reader: Pid::from_raw(reader as i32),
            stopped: None,
            hogs: Vec::new(),
            unplug: None,
            next_unplug: now + random.millis(2_000, 8_000),
            random,
            clock,
            next: now,
            done: Done::default(),
        }
    }

    /// Now and then does something. Called often.
    pub fn turn(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.stopped.is_some_and(|until| now >= until) {
            self.go_on();
        }
        self.hogs.retain(|hog| !hog.is_finished());
        if let Some(unplug) = &mut self.unplug
            && unplug.try_wait()?.is_some()
        {
            self.unplug = None;
            self.next_unplug = now + self.random.millis(5_000, 40_000);
        }
        if now < self.next {
            return Ok(());
        }
        self.next = now + self.random.millis(5, 300);
        let random = &mut self.random;
        match random.below(6) {
            0 | 1 if self.stopped.is_none() => {
                self.stopped = Some(now + random.millis(1, 400));
                // It may have ended.
                let _ = kill(self.reader, Signal::SIGSTOP);
                self.done.stops += 1;
            }
            2 if self.hogs.len() < 4 => {
                let time = random.millis(20, 800);
                for _ in load::online() {
                    self.hogs.push(std::thread::spawn(move || spin(time)));
                }
                self.done.hogs += 1;
            }
            3 if self.hogs.len() < 4 => {
                let (cpu, time) = (random.one(&load::online()), random.millis(1, 60));
                self.hogs.push(std::thread::spawn(move || {
                    // While its CPU goes, it may not be had.
                    if load::try_pin(cpu).is_ok() && real_time().is_ok() {
                        spin(time);
                    }
                }));
                self.done.real_time += 1;
            }
            4 => {
                if let Some(clock) = &mut self.clock {
                    let tick = 9_000 + random.below(2_001) as i64;
                    clock.set(tick, random.below(65_536_001) as i64 - 32_768_000)?;
                    self.done.steered += 1;
                }
            }
            5 if self.unplug.is_none() && cpus::may_go() && now >= self.next_unplug => {
                self.unplug = Some(Command::new(std::env::current_exe()?).arg("--unplug").spawn()?);
                self.done.unplugged += 1;
            }
            _ => {}
        }
        Ok(())
    }

    /// Lets the reader go on, if it is stopped.
    pub fn go_on(&mut self) {
        self.stopped = None;
        let _ = kill(self.reader, Signal::SIGCONT);
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        self.go_on();
        self.hogs.drain(..).for_each(|hog| drop(hog.join()));
        if let Some(mut unplug) = self.unplug.take() {
            let _ = unplug.wait();
        }
    }
}

fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Makes the calling thread a real-time one.
fn real_time() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 10 };
    // SAFETY: the parameter outlives the call.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes the last CPU away and brings it back, a few times: a process of its own, for it waits until no other test
/// needs its CPUs, and keeps others waiting until it ends.
pub fn unplug() -> Result<(), Box<dyn std::error::Error>> {
    let cpu = *cpus::possible().last().expect("a CPU");
    if load::online().len() < 2 {
        return Ok(());
    }
    cpus::alone();
    for millis in [200, 5, 60] {
        if let Err(errno) = load::set_online(cpu, false) {
            println!("SKIPPED: CPU {cpu} cannot be taken offline: {errno}");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(millis));
        load::set_online(cpu, true)?;
        std::thread::sleep(Duration::from_millis(millis));
    }
    Ok(())
}

/// A system clock that runs too fast or too slow, by up to a tenth, until this is dropped.
#[derive(Debug)]
struct Steered {
    tick: i64,
    frequency: i64,
}

const ADJ_FREQUENCY: u32 = 0x2;
const ADJ_TICK: u32 = 0x4000;

fn adjtimex(modes: u32, tick: i64, freq: i64) -> io::Result<libc::timex> {
    // SAFETY: a struct of numbers, for which zeros are good.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    (timex.modes, timex.tick, timex.freq) = (modes, tick, freq);
    // SAFETY: the struct outlives the call.
    match unsafe { libc::adjtimex(&mut timex) } {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(timex),
    }
}

impl Steered {
    fn begin() -> io::Result<Self> {
        let timex = adjtimex(0, 0, 0)?;
        // To be told now that it is not allowed.
        adjtimex(ADJ_FREQUENCY | ADJ_TICK, timex.tick, timex.freq)?;
        Ok(Self { tick: timex.tick, frequency: timex.freq })
    }

    /// Microseconds that a hundredth of a second is taken for, and parts in 2^16 million.
    fn set(&mut self, tick: i64, frequency: i64) -> io::Result<()> {
        adjtimex(ADJ_FREQUENCY | ADJ_TICK, tick, frequency).map(drop)
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        let (tick, frequency) = (self.tick, self.frequency);
        if let Err(errno) = self.set(tick, frequency) {
            eprintln!("the clock is left steered: {errno}");
        }
    }
}
