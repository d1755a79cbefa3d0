//! Gaps and the ledger: the rings are much too small for the load, and the example accounts for every missing number.
//!
//! BPF programs draw a number of the whole machine and one of their CPU, output both, and count the results of the
//! output. Rings of one page are full within microseconds, and the reader is slow on purpose. Numbers that are missing
//! are printed as they are found. At the end the programs' counts, the yielded records, the kernel's losses and the
//! gaps must agree for each CPU, number by number.
//!
//! ```text
//! cargo run --release --example gaps -- --seconds 5
//! cargo run --release --example gaps -- --seconds 5 --pauses --held 16
//! ```

use perfweave::Item;
use perfweave::{
    Account, AnomalyKind, Certainty, Event, Fence, Handle, Hold, Key, Order, Pause, Reader, SequenceAnomaly, Status,
};
use perfweave_support::args::Args;
use perfweave_support::bpf::{self, Reg};
use perfweave_support::load::{self, Beside};
use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "\
gaps [--seconds N] [--pages N] [--held MIB] [--dense] [--pauses] [--offline] [--quiet] [--json]
  --seconds  how long the load runs [5]
  --pages    pages of each ring [1]
  --held     how many MiB of held records may be copied out of rings that fill up [0]: with 0 it loses most, since a
             ring stays full until a fence has ended
  --dense    order by the number of the whole machine, and tell its gaps, instead of by time, with each CPU's own
  --pauses   pause and resume the output now and then, in both ways
  --offline  take the last CPU offline and back, twice, if PERFWEAVE_HOTPLUG=1
  --quiet    print no gaps, only the ledger
  --json     print one JSON object";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gaps: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, Box<dyn Error>> {
    let mut args = Args::new(HELP);
    let time = args.seconds(5.0)?;
    let pages = args.value("--pages", |text| text.parse().map_err(|_| format!("{text} pages")))?.unwrap_or(1);
    let mib = |text: &str| text.parse().map_err(|_| format!("{text} is no number of MiB"));
    let held: usize = args.value("--held", mib)?.unwrap_or(0);
    let [dense, pauses, offline] = ["--dense", "--pauses", "--offline"].map(|flag| args.flag(flag));
    let [quiet, json] = ["--quiet", "--json"].map(|flag| args.flag(flag));
    args.finish()?;
    if offline {
        perfweave_support::cpus::alone();
    }

    let slots = load::slots();
    let events = bpf::Map::perf_event_array(slots)?;
    let (machine, own) = (bpf::Map::array(8, 1)?, bpf::Map::array(32, slots)?);
    let on_syscall = program(bpf::Kind::RawTracepoint, &events, &machine, &own)?;
    let on_clock = program(bpf::Kind::PerfEvent, &events, &machine, &own)?;

    let order = match dense {
        true => Order::new().key(Key::Payload(0)).hold(Hold::Dense { first: Some(0), fence: Fence::Auto }),
        false => Order::new().numbers(Key::Payload(8), Some(0)),
    };
    let rings = order.ring_options().bpf_output(&events).pages(pages).open()?;
    let cpus: Vec<u32> = rings.cpus().collect();
    let mut reader = Reader::new(rings, order.most_held(held.saturating_mul(1 << 20)))?;
    let handle = reader.handle();

    let link = on_syscall.attach_raw_tracepoint("sys_enter")?;
    // Interrupts the other program between drawing and writing, so that numbers come in the wrong order.
    let clocks = cpus.iter().map(|&cpu| on_clock.attach_clock(cpu, 200_000)).collect::<Result<Vec<_>, _>>()?;
    let load = load::Load::on(&cpus, |cpu| {
        // The kernel moves it elsewhere while its CPU is offline.
        let _ = load::try_pin(cpu);
        (0..500).for_each(|_| load::getppid());
        std::thread::sleep(Duration::from_micros(200));
    });
    let pauser = pauses.then(|| Beside::start(move |wait| pause_and_resume(&handle, wait)));
    let hotplug = offline.then(|| Beside::start(move |wait| go_and_come_back(time / 4, wait)));

    let (all, lost) = (vec![Seen::default(); slots as usize], vec![0; slots as usize]);
    let mut tally = Tally { dense, all, lost, ..Tally::default() };
    let mut printer = Printer::new(!quiet && !json);
    let begin = Instant::now();
    while let Some(left) = time.checked_sub(begin.elapsed()) {
        for _ in 0..16 {
            let Some(batch) = reader.batch(left.min(Duration::from_millis(10)))? else { break };
            tally.batch(batch, &mut printer);
        }
        // Slow, so that records are lost however much may be copied.
        std::thread::sleep(Duration::from_millis(2));
    }
    load.end();
    drop((link, clocks));
    pauser.map_or(Ok(()), Beside::end)?;
    hotplug.map_or(Ok(()), Beside::end)?;

    // No program writes any more: all events come out, and then the reader reads the kernel's count of the last losses.
    reader.handle().flush()?;
    while !tally.flushed
        && let Some(batch) = reader.batch(Duration::from_secs(1))?
    {
        tally.batch(batch, &mut printer);
    }
    printer.end();

    let ledger = reader.ledger()?;
    let outputs = (0..slots).map(|cpu| Outputs::read(&own, cpu)).collect::<io::Result<Vec<_>>>()?;
    let machine = machine.lookup_u64(0, 0)?;
    let total = ledger.total();
    let refused: u64 = outputs.iter().map(|outputs| outputs.refused).sum();
    let missing: u64 = tally.all.iter().map(|seen| seen.missing).sum();
    // Numbers after the last written one.
    let behind_all = machine - tally.all.iter().map(|seen| seen.next).sum::<u64>();
    let unexplained = (missing + behind_all) as i64 - (total.lost + refused) as i64;
    let balanced = tally.balances(&ledger, &outputs, machine) && total.missing == missing && unexplained == 0;
    if json {
        println!(
            "{}",
            perfweave_support::json!({
                "written": machine,
                "yielded": total.yielded,
                "held": total.held,
                "lost": total.lost,
                "refused": refused,
                "gaps": tally.gaps,
                "missing": missing,
                "behind_all": behind_all,
                "unexplained": unexplained,
                "balanced": balanced,
                "out_of_order": tally.out_of_order,
                "late": total.late,
                "found": tally.found,
                "repaired": total.repaired,
                "damaged": total.damaged,
                "cpus": cpus,
                "pages": pages,
                "held_mib": held,
                "dense": dense,
                "pauses": pauses,
                "offline": offline,
            })
        );
    } else {
        for account in &ledger.accounts {
            let refused = account.cpu.map_or(0, |cpu| outputs[cpu as usize].refused);
            println!("{}; refused {refused}", account.explained(refused));
        }
        println!("written              {machine}, {:.0} a second", machine as f64 / time.as_secs_f64());
        println!("yielded              {} ({} late)", total.yielded, total.late);
        println!("out of order         {} that were not marked late", tally.out_of_order);
        println!("lost, refused        {}, {refused}", total.lost);
        println!("missing              {} in {} gaps, {} behind all", missing, tally.gaps, behind_all);
        println!("unexplained          {}", unexplained);
        println!("{}", if balanced { "all of that is accounted for, number by number" } else { "NOT ACCOUNTED FOR" });
    }
    Ok(balanced && tally.out_of_order == 0)
}

/// Draws a number of the whole machine and the next of its CPU, outputs `u64 machine, u64 own, u32 cpu, u32 0`, and
/// counts what the helper returned. On `sys_enter`, only at each getppid(2) of this process.
fn program(kind: bpf::Kind, events: &bpf::Map, machine: &bpf::Map, own: &bpf::Map) -> io::Result<bpf::Program> {
    use Reg::{R0, R1, R2, R6, R7, R10};
    let mut asm = bpf::Asm::new();
    asm.mov(R6, R1);
    if let bpf::Kind::RawTracepoint = kind {
        asm.load(R1, R6, 8).only_if(R1, libc::SYS_getppid as i32).only_process(std::process::id());
    }
    asm.mov_i(R1, 0).store(R10, -8, R1).cpu().store_u32(R10, -8, R0).element(own, -8).mov(R7, R0);
    asm.mov_i(R1, 1).map_value(R2, machine, 0).fetch_add(R2, 0, R1).store(R10, -24, R1);
    asm.mov_i(R1, 1).fetch_add(R7, 0, R1).store(R10, -16, R1);
    asm.output(R6, events, -24, 24).mov_i(R1, 1);
    asm.when(R0, 0, |asm| asm.fetch_add(R7, 8, R1));
    asm.when(R0, -libc::ENOSPC, |asm| asm.fetch_add(R7, 16, R1));
    asm.unless(R0, 0, |asm| asm.unless(R0, -libc::ENOSPC, |asm| asm.fetch_add(R7, 24, R1)));
    asm.mov_i(R0, 0).exit();
    bpf::Program::load(kind, &asm)
}

/// The programs' counts on one CPU.
struct Outputs {
    drawn: u64,
    written: u64,
    /// `-ENOSPC`: the kernel counts these too, as lost.
    no_space: u64,
    /// Any other error: only the programs count these.
    refused: u64,
}

impl Outputs {
    fn read(own: &bpf::Map, cpu: u32) -> io::Result<Self> {
        let count = |offset| own.lookup_u64(cpu, offset);
        Ok(Self { drawn: count(0)?, written: count(8)?, no_space: count(16)?, refused: count(24)? })
    }
}

/// The stream's reports about one counter's numbers: present or missing.
#[derive(Clone, Copy, Default)]
struct Seen {
    yielded: u64,
    missing: u64,
    /// The sum of all these numbers, to check that they are the right ones.
    sum: u128,
    /// One more than the largest of them.
    next: u64,
}

impl Seen {
    /// Whether these reports are complete for a counter from which this many numbers were drawn, of which this many
    /// were not written. Numbers that are missing after the last written one show no gap.
    fn is_all_of(&self, drawn: u64, gone: u64) -> bool {
        let next = u128::from(self.next);
        self.yielded + self.missing == self.next
            && self.sum == next * next.saturating_sub(1) / 2
            && self.missing + (drawn - self.next) == gone
    }
}

/// The events that came out.
#[derive(Default)]
struct Tally {
    dense: bool,
    /// The requested flush has ended.
    flushed: bool,
    /// By CPU. The numbers of the whole machine are all in the first.
    all: Vec<Seen>,
    /// The sum of LOST events, by CPU.
    lost: Vec<u64>,
    gaps: u64,
    /// Numbers that came after they were told as missing.
    found: u64,
    largest: u64,
    out_of_order: u64,
}

impl Tally {
    fn batch<'a>(&mut self, batch: impl Iterator<Item = Event<'a>>, printer: &mut Printer) {
        for event in batch {
            let seen = &mut self.all[if self.dense { 0 } else { event.cpu().unwrap_or(0) as usize }];
            match event.item() {
                Item::Record(record) => {
                    let offset = if self.dense { 0 } else { 8 };
                    let Some(number) = record.payload().and_then(|payload| payload.u64(offset)) else { continue };
                    seen.yielded += 1;
                    seen.sum += u128::from(number);
                    seen.next = seen.next.max(number + 1);
                    if self.dense && event.certainty() == Certainty::Late {
                        seen.missing -= 1;
                        seen.sum -= u128::from(number);
                        self.found += 1;
                    }
                    let key = event.key().unwrap_or(0);
                    self.out_of_order += u64::from(key < self.largest && event.certainty() != Certainty::Late);
                    self.largest = self.largest.max(key);
                    continue;
                }
                Item::Gap(gap) => {
                    self.gaps += 1;
                    seen.missing += gap.count;
                    seen.sum += (u128::from(gap.first) + u128::from(gap.last)) * u128::from(gap.count) / 2;
                }
                Item::Anomaly(SequenceAnomaly { kind: AnomalyKind::Late, found, .. }) => {
                    seen.missing -= 1;
                    seen.sum -= u128::from(found);
                    self.found += 1;
                }
                Item::Lost(lost) => self.lost[lost.cpu as usize] += lost.count,
                Item::Flushed { .. } => {
                    self.flushed = true;
                    continue;
                }
                _ => {}
            }
            printer.line(&event);
        }
    }

    /// Whether all counts of each CPU agree. This many numbers of the whole machine were drawn.
    fn balances(&self, ledger: &Status, outputs: &[Outputs], machine: u64) -> bool {
        let (mut all_drawn, mut all_gone, mut balances) = (0, 0, true);
        for account in &ledger.accounts {
            let cpu = account.cpu.map_or(0, |cpu| cpu as usize);
            let Outputs { drawn, written, no_space, refused } = outputs[cpu];
            let Account { yielded, held, lost, missing, .. } = *account;
            // The programs count what fails while a CPU that came back is not traced yet.
            let mut explained = account.explained(refused);
            explained.untraced = Duration::ZERO;
            balances &= explained.is_balanced() && account.exact && held == 0;
            balances &= (yielded, lost, self.lost[cpu]) == (written, no_space, no_space);
            balances &= drawn == yielded + lost + refused;
            balances &= self.dense || missing == self.all[cpu].missing;
            balances &= self.dense || self.all[cpu].is_all_of(drawn, lost + refused);
            (all_drawn, all_gone) = (all_drawn + drawn, all_gone + lost + refused);
        }
        balances && all_drawn == machine && (!self.dense || self.all[0].is_all_of(machine, all_gone))
    }
}

/// Prints the first few events of each second, and how many more there were.
struct Printer {
    on: bool,
    begin: Instant,
    printed: u64,
}

impl Printer {
    const A_SECOND: u64 = 20;

    fn new(on: bool) -> Self {
        Self { on, begin: Instant::now(), printed: 0 }
    }

    fn line(&mut self, event: &Event<'_>) {
        if self.begin.elapsed() >= Duration::from_secs(1) {
            self.end();
            *self = Self::new(self.on);
        }
        self.printed += 1;
        match event.item() {
            _ if !self.on || self.printed > Self::A_SECOND => {}
            Item::Gap(gap) => {
                let of = gap.cpu.map_or("the machine".into(), |cpu| format!("CPU {cpu}"));
                println!("gap of {of}: {} numbers, {} to {}", gap.count, gap.first, gap.last);
            }
            Item::Lost(lost) => println!("lost on CPU {}: {}", lost.cpu, lost.count),
            other => println!("{other:?}"),
        }
    }

    fn end(&self) {
        if self.on && self.printed > Self::A_SECOND {
            println!("... and {} more", self.printed - Self::A_SECOND);
        }
    }
}

fn pause_and_resume(handle: &Handle, wait: &dyn Fn(Duration) -> bool) -> Result<(), String> {
    // Some so long that the stream runs dry.
    let pauses = [(Pause::Output, 150), (Pause::Slots, 5), (Pause::Output, 5), (Pause::Slots, 150)];
    for (how, long) in pauses.into_iter().cycle() {
        if !wait(Duration::from_millis(30)) {
            break;
        }
        handle.pause(how).map_err(|error| error.to_string())?;
        wait(Duration::from_millis(long));
        handle.resume().map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Takes the last CPU offline and back, twice.
fn go_and_come_back(every: Duration, wait: &dyn Fn(Duration) -> bool) -> Result<(), String> {
    let cpu = *load::online().last().expect("a CPU");
    for _ in 0..2 {
        if !wait(every) {
            break;
        }
        if let Err(error) = load::set_online(cpu, false) {
            eprintln!("SKIPPED: CPU {cpu} cannot be taken offline: {error}");
            break;
        }
        wait(every / 2);
        load::set_online(cpu, true).map_err(|error| format!("CPU {cpu} does not come back: {error}"))?;
    }
    Ok(())
}
