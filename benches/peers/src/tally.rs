//! The events that a reader has seen, and its cost.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::time::{ClockId, clock_gettime};
use std::fmt::{Display, Formatter};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The latency of one in this many events is taken: reading the clock for each would dominate the measurement.
const SAMPLED: u64 = 64;
/// Latencies are counted in this many parts of each power of two.
const PARTS: usize = 16;

/// The work of each reader for each event: counts it, checks its order, takes its first two words.
pub struct Tally {
    events: u64,
    out_of_order: u64,
    last: u64,
    lost: u64,
    sum: u64,
    latencies: [u32; 64 * PARTS],
    begun: Duration,
    slept: u64,
    /// When the number of events was a power of two, the last two times, and the page faults until then.
    marks: [(Instant, u64); 2],
}

impl Tally {
    /// Begins to count, also the CPU time.
    pub fn begin() -> Self {
        let latencies = [0; 64 * PARTS];
        let (begun, slept, faults) = used();
        let marks = [(Instant::now(), faults); 2];
        Self { events: 0, out_of_order: 0, last: 0, lost: 0, sum: 0, latencies, begun, slept, marks }
    }

    /// An event with the key that it is ordered by, and the producer's stamp and number.
    #[inline(always)]
    pub fn event(&mut self, key: u64, stamp: u64, number: u64) {
        self.events += 1;
        self.out_of_order += u64::from(key < self.last);
        self.last = self.last.max(key);
        self.sum = number ^ self.sum.rotate_left(1);
        if self.events.is_multiple_of(SAMPLED) {
            self.latency(stamp);
        }
    }

    /// The same, of an event's bytes, by the producer's stamp.
    #[inline(always)]
    pub fn bytes(&mut self, bytes: &[u8]) {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let stamp = word(0);
        self.event(stamp, stamp, word(8));
    }

    /// Adds this many losses, which the reader was told of.
    pub fn lost(&mut self, count: u64) {
        self.lost += count;
    }

    #[cold]
    fn latency(&mut self, stamp: u64) {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
        self.latencies[part((now.as_nanos() as u64).saturating_sub(stamp))] += 1;
        if self.events.is_power_of_two() {
            self.marks = [self.marks[1], (Instant::now(), used().2)];
        }
    }

    /// Ends counting.
    pub fn end(&self) -> Seen {
        std::hint::black_box(self.sum);
        let (cpu, slept, faults) = used();
        let cpu = cpu - self.begun;
        let counted: u32 = self.latencies.iter().sum();
        let percentile = |percent: u64| {
            let mut left = u64::from(counted) * percent / 100;
            let at = self.latencies.iter().position(|count| {
                let found = u64::from(*count) > left;
                left = left.saturating_sub((*count).into());
                found
            });
            at.map_or(0, middle)
        };
        Seen {
            events: self.events,
            lost: self.lost,
            out_of_order: self.out_of_order,
            cpu_ns: cpu.as_nanos() as u64,
            p50_ns: percentile(50),
            p99_ns: percentile(99),
            peak_kib: peak(),
            sleeps: slept - self.slept,
            faults: ((faults - self.marks[0].1) as f64 / self.marks[0].0.elapsed().as_secs_f64()) as u64,
            fences: 0,
        }
    }
}

/// Which part of which power of two a number is in.
fn part(number: u64) -> usize {
    let number = number.max(PARTS as u64);
    let power = number.ilog2() as usize;
    power * PARTS + (number >> (power - 4)) as usize % PARTS
}

/// The number in the middle of a part.
fn middle(part: usize) -> u64 {
    let (power, part) = (part / PARTS, (part % PARTS) as u64);
    (1 << power) + ((2 * part + 1) << power) / (2 * PARTS as u64)
}

/// CPU time of all threads of this process, how often they went to sleep, and their page faults.
fn used() -> (Duration, u64, u64) {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("always granted");
    let micros = |time: TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
    let time = Duration::from_micros((micros(usage.user_time()) + micros(usage.system_time())) as u64);
    (time, usage.voluntary_context_switches() as u64, usage.minor_page_faults() as u64)
}

/// The peak of resident memory. getrusage(2) would include that of the parent process.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The final report of a reader.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub events: u64,
    pub lost: u64,
    pub out_of_order: u64,
    pub cpu_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub peak_kib: u64,
    /// How often a thread of the reader went to sleep.
    pub sleeps: u64,
    /// Page faults a second, in the second half of the run at least.
    pub faults: u64,
    /// Fences or other proofs that the reader began.
    pub fences: u64,
}

impl Display for Seen {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { events, lost, out_of_order, cpu_ns, p50_ns, p99_ns, peak_kib, sleeps, faults, fences } = self;
        write!(f, "{events} {lost} {out_of_order} {cpu_ns} {p50_ns} {p99_ns} {peak_kib} {sleeps} {faults} {fences}")
    }
}

impl FromStr for Seen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let [events, lost, out_of_order, cpu_ns, p50_ns, p99_ns, peak_kib, sleeps, faults, fences] = numbers[..] else {
            return Err(format!("a reader said {text:?}"));
        };
        Ok(Self { events, lost, out_of_order, cpu_ns, p50_ns, p99_ns, peak_kib, sleeps, faults, fences })
    }
}
