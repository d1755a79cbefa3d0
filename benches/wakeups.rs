//! The cost of wake-ups and pauses for the traced program, how long an event may wait unseen, and the cost of an idle
//! reader. On live kernel rings, as root.
//!
//! A victim, pinned to the last CPU, calls getppid(2) in a loop. A BPF program outputs 64 bytes at each call, and a
//! reader on CPU 0, or on the victim's own, reads them. In each round every setting runs once, so that ratios within a
//! round are comparable on a shared machine. It prints medians over the rounds.
//!
//! ```text
//! cargo bench -p perfweave-benches --bench wakeups
//! ```

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use perfweave::{Account, Error, Hold, Item, Order, Pause, Reader, Rings, Wakeup};
use perfweave_proofs::expedited;
use perfweave_support::{bpf, kernel, load};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Bytes of a large ring: it takes a whole round, also without a reader, or if all events are held for some grace
/// periods.
const LARGE: u32 = 16 << 20;
/// Bytes of a ring unless another size is asked for.
const SMALL: u32 = 512 << 10;
/// Bytes that the program outputs. The record is 88.
const SAMPLE: i16 = 64;
/// Calls of a round before those that are timed.
const WARM_UP: u32 = 5000;
/// The setting with which the others are compared.
const REFERENCE: &str = "default, nobody reads";

/// The reader: none until the round is over, a thread on CPU 0, or one on the victim's CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Nobody,
    OtherCpu,
    SameCpu,
}

/// A row of the tables.
struct Setting {
    name: &'static str,
    attached: bool,
    pause: Option<Pause>,
    ring: u32,
    wakeup: Option<Wakeup>,
    hold: Hold,
    by: By,
}

/// The default, read on another CPU.
const PLAIN: Setting = Setting {
    name: "default, `Bytes(size / 4)`",
    attached: true,
    pause: None,
    ring: LARGE,
    wakeup: None,
    hold: Hold::None,
    by: By::OtherCpu,
};

fn settings() -> Vec<Setting> {
    let woken = |name, wakeup| Setting { name, wakeup: Some(wakeup), ..PLAIN };
    let small = |name, part| Setting { ring: SMALL, ..woken(name, Wakeup::Bytes(SMALL / part)) };
    let each = |name| woken(name, Wakeup::Events(1));
    vec![
        Setting { name: "no program", attached: false, ..PLAIN },
        Setting { name: "`Pause::Slots`", pause: Some(Pause::Slots), ..PLAIN },
        Setting { name: "`Pause::Output`", pause: Some(Pause::Output), ..PLAIN },
        Setting { name: REFERENCE, by: By::Nobody, ..PLAIN },
        woken("`Bytes(size / 2)`", Wakeup::Bytes(LARGE / 2)),
        PLAIN,
        woken("`Bytes(size / 8)`", Wakeup::Bytes(LARGE / 8)),
        small("`Bytes(size / 2)` of 512 KiB", 2),
        small("default, `Bytes(size / 4)` of 512 KiB", 4),
        small("`Bytes(size / 8)` of 512 KiB", 8),
        woken("`Events(128)`", Wakeup::Events(128)),
        woken("`Events(16)`", Wakeup::Events(16)),
        each("`Events(1)`"),
        Setting { by: By::Nobody, ..each("`Events(1)`, nobody reads") },
        Setting { name: "default, held for fences", hold: Hold::FENCE, ..PLAIN },
        Setting { hold: Hold::FENCE, ..each("`Events(1)`, held for fences") },
        Setting { name: "default, same CPU", by: By::SameCpu, ..PLAIN },
        Setting { by: By::SameCpu, ..each("`Events(1)`, same CPU") },
    ]
}

/// The program, its map, and the victim's CPU.
struct Stage {
    events: bpf::Map,
    program: bpf::Program,
    victim: u32,
}

impl Stage {
    fn new(events: bpf::Map) -> Result<Self> {
        use bpf::Reg::{R0, R1, R6, R10};
        let mut asm = bpf::Asm::new();
        asm.mov(R6, R1).load(R1, R6, 8).only_if(R1, libc::SYS_getppid as i32).only_process(std::process::id());
        asm.mov_i(R1, 0);
        for word in 1..=SAMPLE / 8 {
            asm.store(R10, -8 * word, R1);
        }
        asm.output(R6, &events, -i32::from(SAMPLE), SAMPLE as u32).mov_i(R0, 0).exit();
        let program = bpf::Program::load(bpf::Kind::RawTracepoint, &asm)?;
        let victim = *load::online().last().ok_or("no CPU")?;
        Ok(Self { events, program, victim })
    }

    fn rings(&self, setting: &Setting) -> Result<Rings> {
        let mut options = Rings::options().bpf_output(&self.events).bytes(setting.ring.into());
        if let Some(wakeup) = setting.wakeup {
            options = options.wakeup(wakeup);
        }
        Ok(options.open()?)
    }

    /// Runs the victim on its CPU while a reader reads. The victim is given the path of the reader's `status` in /proc.
    /// Gives what came of it, what the reader did, and the milliseconds that [`read`] gives.
    fn run<T: Send>(
        &self,
        setting: &Setting,
        victim: impl FnOnce(&Path) -> T + Send,
    ) -> Result<(T, Account, Vec<f64>)> {
        let rings = self.rings(setting)?;
        let link = setting.attached.then(|| self.program.attach_raw_tracepoint("sys_enter")).transpose()?;
        let cpu = if setting.by == By::SameCpu { self.victim } else { 0 };
        let (tell, told) = mpsc::channel();
        let (begin, begun) = mpsc::channel();
        thread::scope(|scope| {
            let reader = scope.spawn(move || {
                load::pin(cpu);
                // If it has a thread that waits for fences, that inherits the CPU.
                let mut reader = Reader::new(rings, Order::new().hold(setting.hold.clone()))?;
                let thread = Path::new("/proc").join(fs::read_link("/proc/thread-self").expect("procfs"));
                tell.send((reader.handle(), thread.join("status"))).expect("it is waited for");
                begun.recv().expect("it is told to begin");
                let waits = read(&mut reader)?;
                // The next record reports the losses. There is room for it now.
                load::pinned(self.victim, load::getppid);
                reader.handle().flush()?;
                read(&mut reader)?;
                Ok::<_, Error>((reader.status().total(), waits))
            });
            let (handle, status): (_, PathBuf) = told.recv()?;
            setting.pause.map_or(Ok(()), |how| handle.pause(how))?;
            if setting.by != By::Nobody {
                begin.send(())?;
            }
            let result = load::pinned(self.victim, || victim(&status));
            handle.resume()?;
            handle.flush()?;
            // A reader that has not begun to read begins now.
            let _ = begin.send(());
            let (total, waits) = reader.join().map_err(|_| "the reader panicked")??;
            drop(link);
            Ok((result, total, waits))
        })
    }
}

/// Reads to the end of a flush. Gives for each event how many milliseconds lie between its stamp and now.
fn read(reader: &mut Reader) -> Result<Vec<f64>, Error> {
    let clock = reader.rings().clock();
    let mut waits = Vec::new();
    while let Some(event) = reader.next()? {
        if let Item::Flushed { .. } = event.item() {
            break;
        }
        let stamp = event.key();
        drop(event);
        waits.extend(stamp.zip(clock.now()).map(|(stamp, now)| now.saturating_sub(stamp) as f64 / 1e6));
    }
    // So that there is room.
    reader.advance_tails();
    Ok(waits)
}

/// The cost of a round: nanoseconds for each call; of 1000 calls, how often the victim's CPU was interrupted for a
/// wake-up and how often the reader went to sleep; how many events were lost; how long the slowest of 100 waited, in
/// milliseconds.
fn round(stage: &Stage, setting: &Setting, calls: u32) -> Result<[f64; 5]> {
    let ((time, interrupts, sleeps), total, waits) = stage.run(setting, |status| {
        (0..WARM_UP).for_each(|_| load::getppid());
        // IRQ work interrupts: deferred work of the kernel, mostly wake-ups of perf events.
        let counts = || [count("/proc/interrupts", "IWI:", stage.victim), count(status, "voluntary_ctxt_switches:", 0)];
        let before = counts();
        let begin = Instant::now();
        (0..calls).for_each(|_| load::getppid());
        let (time, after) = (begin.elapsed(), counts());
        (time, after[0] - before[0], after[1] - before[1])
    })?;
    let written = match (setting.attached, setting.pause) {
        (false, _) => 0,
        (true, Some(Pause::Slots)) => 1,
        _ => u64::from(WARM_UP + calls) + 1,
    };
    assert_eq!(total.yielded + total.lost, written, "{}: each call is a record, or counted as lost", setting.name);
    let (calls, lost) = (f64::from(calls), total.lost as f64);
    let thousand = |count: u64| count as f64 * 1000.0 / calls;
    Ok([time.as_nanos() as f64 / calls, thousand(interrupts), thousand(sleeps), lost, percentile(waits, 99)])
}

/// A count in a file in /proc, this many columns after its name; 0 if there is none, as IWI on machines other than x86.
fn count(file: impl AsRef<Path>, name: &str, column: u32) -> u64 {
    let text = fs::read_to_string(file).expect("procfs");
    let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
    line.and_then(|line| line.split_whitespace().nth(column as usize)?.parse().ok()).unwrap_or(0)
}

fn percentile(values: impl IntoIterator<Item = f64>, percent: usize) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get((values.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0)
}

fn slowdown(stage: &Stage, rounds: usize, calls: u32) -> Result<()> {
    let settings = settings();
    let reference = settings.iter().position(|setting| setting.name == REFERENCE).ok_or("no reference")?;
    let mut all: Vec<Vec<[f64; 5]>> = Vec::new();
    for _ in 0..rounds {
        all.push(settings.iter().map(|setting| round(stage, setting, calls)).collect::<Result<_>>()?);
    }
    println!("Medians of {rounds} rounds of {calls} calls. Interrupts and sleeps are for 1000 calls.\n");
    println!("| setting | ns a call | ratio | interrupts | reader's sleeps | lost | waited, p99, ms |");
    println!("|{}", " --- |".repeat(7));
    for (at, Setting { name, .. }) in settings.iter().enumerate() {
        let ratio = percentile(all.iter().map(|round| round[at][0] / round[reference][0]), 50);
        let [call, interrupts, sleeps, lost, wait] =
            std::array::from_fn(|what| percentile(all.iter().map(|round| round[at][what]), 50));
        println!("| {name} | {call:.0} | {ratio:.2} | {interrupts:.2} | {sleeps:.2} | {lost:.0} | {wait:.2} |");
    }
    Ok(())
}

/// How long events wait that come one by one, this many milliseconds apart, and are not held.
fn unseen(stage: &Stage, setting: &Setting, count: u32, from: u64, to: u64) -> Result<()> {
    let ((), _, waits) = stage.run(setting, |_| {
        let mut random = 1u64;
        for _ in 0..count {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            thread::sleep(Duration::from_micros(from * 1000 + (random >> 33) % ((to - from) * 1000)));
            load::getppid();
        }
    })?;
    let at = |percent| percentile(waits.iter().copied(), percent);
    println!("| {} | {from}–{to} | {count} | {:.2} | {:.2} | {:.2} |", setting.name, at(50), at(99), at(100));
    Ok(())
}

/// The result of a program's output under each pause, how many outputs count as lost, and how long a pause takes.
fn pauses(stage: &Stage) -> Result<()> {
    println!("\n1000 outputs under each pause, and one behind it.\n");
    println!("| pauses | output returns | counted as lost | seen | pause and resume, µs |\n|{}", " --- |".repeat(5));
    let echo = bpf::echo(&stage.events)?;
    for pauses in [&[][..], &[Pause::Slots], &[Pause::Output], &[Pause::Slots, Pause::Output]] {
        let mut reader = Reader::new(stage.rings(&PLAIN)?, Order::new().hold(Hold::None))?;
        let handle = reader.handle();
        let mut times = Vec::new();
        for _ in 0..100 {
            let begin = Instant::now();
            pauses.iter().try_for_each(|how| handle.pause(*how))?;
            handle.resume()?;
            times.push(begin.elapsed().as_nanos() as f64 / 1000.0);
        }
        pauses.iter().try_for_each(|how| handle.pause(*how))?;
        let told: Vec<i32> = (0..1000).map(|n| echo.run_with(stage.victim, &[n])).collect::<io::Result<_>>()?;
        handle.resume()?;
        echo.run_with(stage.victim, &[1000])?;
        handle.flush()?;
        read(&mut reader)?;
        let Account { yielded: records, lost, .. } = reader.status().total();
        assert!(told.iter().all(|answer| *answer == told[0]), "{pauses:?}: {told:?}");
        let told = if told[0] == 0 { "0".to_owned() } else { format!("-{:?}", Errno::from_raw(-told[0])) };
        println!("| {pauses:?} | {told} | {lost} | {records} | {:.1} |", percentile(times, 50));
    }
    Ok(())
}

/// The cost of an idle reader: CPU time of the process with all its threads, and the reader's counts.
fn idle(stage: &Stage, time: Duration) -> Result<()> {
    println!("\nA reader in {time:?} of nothing.\n");
    println!("| hold rule | CPU time, ms | of a CPU, % | looks | sleeps |\n|{}", " --- |".repeat(5));
    let cpu_time = || clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from);
    for hold in [Hold::FENCE, Hold::Fence(expedited(Duration::from_millis(1))), Hold::None] {
        let mut reader = Reader::new(stage.rings(&PLAIN)?, Order::new().hold(hold.clone()))?;
        let name = reader.fence().unwrap_or("");
        // No event is output meanwhile.
        let (begin, before) = (cpu_time()?, reader.status());
        if let Some(event) = reader.next_timeout(time)? {
            return Err(format!("not idle: {event:?}").into());
        }
        let (used, now) = ((cpu_time()? - begin).as_secs_f64(), reader.status());
        let (looks, sleeps) = (now.refreshes - before.refreshes, now.sleeps - before.sleeps);
        let part = used / time.as_secs_f64() * 100.0;
        println!("| {hold} {name} | {:.2} | {part:.3} | {looks} | {sleeps} |", used * 1000.0);
    }
    Ok(())
}

fn main() -> Result<()> {
    // Like criterion: everything once, and briefly.
    let test = std::env::args().any(|argument| argument == "--test");
    let map = kernel("make a perf event array", bpf::Map::perf_event_array(load::slots()));
    let Some(events) = map else { return Ok(()) };
    let stage = Stage::new(events)?;
    let (rounds, calls, many, few) = if test { (1, 2000, 2, 1) } else { (15, 100_000, 200, 40) };
    slowdown(&stage, rounds, calls)?;

    println!("\nHow long an event waits unseen that comes alone, ms. The bound is {:?}.\n", Duration::from_millis(100));
    println!("| setting | ms between events | events | p50 | p99 | longest |\n|{}", " --- |".repeat(6));
    for setting in settings().iter().filter(|setting| setting.attached && setting.pause.is_none()) {
        if setting.by == By::Nobody || !matches!(setting.hold, Hold::None) {
            continue;
        }
        unseen(&stage, setting, many, 1, 20)?;
        if setting.ring == LARGE && (setting.wakeup.is_none() || setting.wakeup == Some(Wakeup::Events(1))) {
            unseen(&stage, setting, few, 150, 500)?;
        }
    }
    idle(&stage, Duration::from_secs(if test { 1 } else { 10 }))?;
    pauses(&stage)
}
