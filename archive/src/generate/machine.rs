//! One machine: CPUs that run threads, and threads that wait for time, for locks and for each other.

use super::files::{Cell, Row, Tables};
use super::{Options, Plan, SECOND, START};
use std::collections::VecDeque;

/// States of a task that is switched out, as the kernel has them.
const PREEMPTED: i64 = 0x100;
const SLEEPING: i64 = 1;
const DISK: i64 = 2;
/// read, write, epoll_wait, futex, sendto, recvfrom of x86-64.
const CALLS: [i64; 6] = [0, 1, 232, 202, 44, 45];
const SENDTO: i64 = 44;
const NAMES: [&str; 8] = [
    "nginx",
    "postgres",
    "kworker/u8:2",
    "rcu_preempt",
    "redis-server",
    "tokio-runtime-w",
    "systemd-journal",
    "jbd2/vda-8",
];

/// What happens.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happening {
    /// A thread is woken.
    Wake(usize),
    /// A CPU takes a thread that was woken, if it can.
    Take { cpu: usize, thread: usize },
    /// The thread that runs since `turn` calls what it will wait in.
    Call { cpu: usize, turn: u64 },
    /// It leaves the CPU.
    Leave { cpu: usize, turn: u64 },
    /// The system call that it waited in returns.
    Return { cpu: usize, turn: u64, call: i64 },
    /// A message arrives.
    Receive { message: u64 },
    /// A TCP socket goes from one state to another.
    State { socket: Socket, from: i32, to: i32 },
    /// A second is over.
    Second,
    /// A CPU's ring has room again.
    Light { cpu: usize, since: i64 },
}

/// One of the two sockets of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Socket {
    /// The machine at the other end.
    peer: u32,
    port: u16,
    peer_port: u16,
}

struct Thread {
    cpu: usize,
    /// The system call that it waits in.
    call: Option<i64>,
}

#[derive(Default)]
struct Cpu {
    /// Who runs, if not the idle task.
    runs: Option<usize>,
    /// Counts who ran, so that what was planned for one is not done to another.
    turn: u64,
    waiting: VecDeque<usize>,
    /// Events lost, while its ring is full.
    dark: Option<i64>,
}

pub(super) struct Machine {
    number: u32,
    machines: u32,
    name: String,
    boot: String,
    trace: String,
    /// True time at boot, as TAI.
    booted: i64,
    /// How wrong its clock is.
    skew: i64,
    threads: Vec<Thread>,
    cpus: Vec<Cpu>,
    row: i64,
    lost: i64,
    last: i64,
    /// Messages that it has sent, and connections that it has made.
    sent: u32,
    connections: u32,
}

impl Machine {
    pub(super) fn start(number: u32, options: &Options, plan: &mut Plan, tables: &mut Tables) -> Self {
        let cpus = options.cpus as usize;
        let name = format!("m{number:02}");
        let mut machine = Self {
            number,
            machines: options.machines,
            boot: format!("{:08x}-0000-4000-8000-{:012x}", 0x5eed_0000 + u64::from(number), options.seed),
            trace: format!("{name}-{:x}", options.seed),
            name,
            booted: START - 3600 * SECOND * (1 + i64::from(number)),
            skew: i64::from(plan.below(160_000)) - 80_000,
            threads: (0..cpus * 12).map(|thread| Thread { cpu: thread % cpus, call: None }).collect(),
            cpus: (0..cpus).map(|_| Cpu::default()).collect(),
            row: 0,
            lost: 0,
            last: START,
            sent: 0,
            connections: 0,
        };
        machine.trace("begin", tables);
        machine.clock(START, plan, tables);
        plan.at(START + SECOND, Happening::Second);
        for thread in 0..machine.threads.len() {
            let time = START + plan.around(500_000);
            plan.at(time, Happening::Wake(thread));
        }
        machine
    }

    pub(super) fn end(&mut self, tables: &mut Tables) {
        self.trace("end", tables);
    }

    pub(super) fn happens(&mut self, time: i64, happening: Happening, plan: &mut Plan, tables: &mut Tables) {
        // No two rows of a machine have one time.
        let time = time.max(self.last + 1);
        self.last = time;
        match happening {
            Happening::Wake(thread) => self.wake(time, thread, plan, tables),
            Happening::Take { cpu, thread } => self.take(time, cpu, thread, plan, tables),
            Happening::Call { cpu, turn } => self.call(time, cpu, turn, plan, tables),
            Happening::Leave { cpu, turn } => self.leave(time, cpu, turn, plan, tables),
            Happening::Return { cpu, turn, call } if self.cpus[cpu].turn == turn => {
                self.event(time, cpu, ["raw_syscalls", "sys_exit"], vec![Cell::I64(call), Cell::I64(0)], tables);
            }
            Happening::Return { .. } => {}
            Happening::Receive { message } => self.message(time, "message_receive", message, plan, tables),
            Happening::State { socket, from, to } => self.state(time, socket, [from, to], plan, tables),
            Happening::Second => self.second(time, plan, tables),
            Happening::Light { cpu, since } => self.light(time, cpu, since, tables),
        }
    }

    fn wake(&mut self, time: i64, thread: usize, plan: &mut Plan, tables: &mut Tables) {
        if plan.one_in(10) {
            self.threads[thread].cpu = self.some_cpu(plan);
        }
        let waker = self.some_cpu(plan);
        let cpu = self.threads[thread].cpu;
        let cells = vec![comm(Some(thread), cpu), self.pid(Some(thread)), Cell::I32(120), Cell::I32(cpu as i32)];
        self.event(time, waker, ["sched", "sched_waking"], cells, tables);
        let delay = 1_500 + plan.around(4_000);
        plan.at(time + delay, Happening::Take { cpu, thread });
        if plan.one_in(2_000) && self.cpus[waker].dark.is_none() {
            self.cpus[waker].dark = Some(0);
            plan.at(time + 200_000, Happening::Light { cpu: waker, since: time });
        }
    }

    fn take(&mut self, time: i64, cpu: usize, thread: usize, plan: &mut Plan, tables: &mut Tables) {
        match self.cpus[cpu].runs {
            None => self.switch(time, cpu, 0, Some(thread), plan, tables),
            Some(other) if plan.one_in(3) && self.threads[other].call.is_none() => {
                self.cpus[cpu].waiting.push_back(other);
                self.switch(time, cpu, PREEMPTED, Some(thread), plan, tables);
            }
            Some(_) => self.cpus[cpu].waiting.push_back(thread),
        }
    }

    fn call(&mut self, time: i64, cpu: usize, turn: u64, plan: &mut Plan, tables: &mut Tables) {
        let Some(thread) = self.cpus[cpu].runs.filter(|_| self.cpus[cpu].turn == turn) else { return };
        let call = CALLS[plan.below(CALLS.len() as u32) as usize];
        self.threads[thread].call = Some(call);
        let mut args = Vec::with_capacity(48);
        for arg in [i64::from(plan.below(64)), 0x7ffd_0000_0000 + i64::from(plan.below(1 << 20)), 4096, 0, 0, 0] {
            args.extend(arg.to_le_bytes());
        }
        self.event(time, cpu, ["raw_syscalls", "sys_enter"], vec![Cell::I64(call), Cell::Bytes(args)], tables);
        if self.machines > 1 && call == SENDTO && plan.one_in(8) {
            let message = self.row as u64 + (u64::from(self.number) << 40);
            let to = (self.number + 1 + plan.below(self.machines - 1)) % self.machines;
            let mean = if plan.one_in(50) { 8_000_000 } else { 120_000 };
            let hop = 40_000 + plan.around(mean);
            self.last = time + 100;
            self.message(time + 100, "message_send", message, plan, tables);
            plan.on(to, time + hop, Happening::Receive { message });
            self.sent += 1;
            if self.sent % 8 == 1 {
                self.connect(time + 1000, to, plan);
            }
        }
        plan.at(time + 700, Happening::Leave { cpu, turn });
    }

    fn leave(&mut self, time: i64, cpu: usize, turn: u64, plan: &mut Plan, tables: &mut Tables) {
        let Some(thread) = self.cpus[cpu].runs.filter(|_| self.cpus[cpu].turn == turn) else { return };
        let state = if plan.one_in(8) { DISK } else { SLEEPING };
        let next = self.cpus[cpu].waiting.pop_front();
        self.switch(time, cpu, state, next, plan, tables);
        let sleep = plan.around(if state == DISK { 300_000 } else { 600_000 });
        plan.at(time + sleep, Happening::Wake(thread));
    }

    /// The CPU goes on with another thread, which goes on where it was.
    fn switch(&mut self, time: i64, cpu: usize, state: i64, next: Option<usize>, plan: &mut Plan, tables: &mut Tables) {
        let prev = self.cpus[cpu].runs;
        let mut cells = vec![comm(prev, cpu), self.pid(prev), Cell::I32(120), Cell::I64(state)];
        cells.extend([comm(next, cpu), self.pid(next), Cell::I32(120)]);
        self.event(time, cpu, ["sched", "sched_switch"], cells, tables);
        self.cpus[cpu].runs = next;
        self.cpus[cpu].turn += 1;
        let turn = self.cpus[cpu].turn;
        let Some(next) = next else { return };
        if let Some(call) = self.threads[next].call.take() {
            plan.at(time + 400, Happening::Return { cpu, turn, call });
        }
        let run = 2_000 + plan.around(60_000);
        plan.at(time + run, Happening::Call { cpu, turn });
    }

    fn message(&mut self, time: i64, name: &'static str, message: u64, plan: &mut Plan, tables: &mut Tables) {
        let cpu = self.some_cpu(plan);
        self.event(time, cpu, ["net", name], vec![Cell::U64(message), Cell::U32(64 + (message % 1400) as u32)], tables);
    }

    /// Connects to a machine, and closes the connection five milliseconds later.
    fn connect(&mut self, time: i64, server: u32, plan: &mut Plan) {
        const ESTABLISHED: i32 = 1;
        const SYN_SENT: i32 = 2;
        const SYN_RECV: i32 = 3;
        const FIN_WAIT1: i32 = 4;
        const FIN_WAIT2: i32 = 5;
        const CLOSE_WAIT: i32 = 8;
        // Each port as often as a kernel gives it to connections, and no connection twice.
        let (port, server_port) =
            (32_768 + (self.connections % 28_000) as u16, 80 + (self.connections / 28_000) as u16);
        let socket = Socket { peer: server, port, peer_port: server_port };
        let other = Socket { peer: self.number, port: server_port, peer_port: port };
        let hop = 40_000 + i64::from(self.connections * 7919 % 100_000);
        let close = time + 5_000_000;
        self.connections += 1;
        plan.at(time, Happening::State { socket, from: SYN_SENT, to: ESTABLISHED });
        plan.on(server, time + hop, Happening::State { socket: other, from: SYN_RECV, to: ESTABLISHED });
        plan.at(close, Happening::State { socket, from: ESTABLISHED, to: FIN_WAIT1 });
        plan.on(server, close + hop, Happening::State { socket: other, from: ESTABLISHED, to: CLOSE_WAIT });
        plan.at(close + 2 * hop, Happening::State { socket, from: FIN_WAIT1, to: FIN_WAIT2 });
    }

    fn state(&mut self, time: i64, socket: Socket, states: [i32; 2], plan: &mut Plan, tables: &mut Tables) {
        let cpu = self.some_cpu(plan);
        let address = |machine: u32| [10, 0, (machine >> 8) as u8, machine as u8];
        let addresses = [address(self.number), address(socket.peer)];
        let mut cells = vec![Cell::U64(0xffff_8880_0000_0000 + (u64::from(socket.port) << 12))];
        cells.extend(states.map(Cell::I32));
        // AF_INET, IPPROTO_TCP.
        cells.extend([socket.port, socket.peer_port, 2, 6].map(Cell::U16));
        cells.extend(addresses.map(|address| Cell::Bytes(address.to_vec())));
        cells.extend(
            addresses.map(|[a, b, c, d]| Cell::Bytes(vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])),
        );
        self.event(time, cpu, ["sock", "inet_sock_set_state"], cells, tables);
    }

    fn some_cpu(&self, plan: &mut Plan) -> usize {
        plan.below(self.cpus.len() as u32) as usize
    }

    fn pid(&self, thread: Option<usize>) -> Cell {
        Cell::I32(thread.map_or(0, |thread| 1000 * (self.number as i32 + 1) + thread as i32))
    }
}

fn comm(thread: Option<usize>, cpu: usize) -> Cell {
    Cell::Text(thread.map_or_else(|| format!("swapper/{cpu}"), |thread| NAMES[thread % NAMES.len()].to_string()))
}

/// Rows, with the columns that all tables have.
impl Machine {
    fn event(&mut self, time: i64, cpu: usize, table: [&'static str; 2], cells: Vec<Cell>, tables: &mut Tables) {
        if let Some(lost) = &mut self.cpus[cpu].dark {
            *lost += 1;
            return;
        }
        let Cell::I32(pid) = self.pid(self.cpus[cpu].runs) else { unreachable!("a process id is a number") };
        let mut all = vec![Cell::Bool(true), Cell::Bool(false), Cell::I32(pid)];
        all.extend(cells);
        let row = Row { cpu: Some(cpu as i32), cells: all, ..self.row(time) };
        tables.event(table, row);
    }

    fn row(&mut self, time: i64) -> Row<'_> {
        self.row += 1;
        Row {
            machine: &self.name,
            boot: &self.boot,
            trace: &self.trace,
            mono: time - self.booted,
            tai: time + self.skew,
            tai_error: 100_000,
            row: self.row,
            cpu: None,
            cells: Vec::new(),
        }
    }

    fn second(&mut self, time: i64, plan: &mut Plan, tables: &mut Tables) {
        self.clock(time, plan, tables);
        plan.at(time + SECOND, Happening::Second);
    }

    fn light(&mut self, time: i64, cpu: usize, since: i64, tables: &mut Tables) {
        let count = self.cpus[cpu].dark.take().unwrap_or(0);
        if count == 0 {
            return;
        }
        self.lost += count;
        let (from, to) = (since - self.booted, time - self.booted);
        let text = format!("CPU {cpu}: {count} events lost");
        let cells = vec![
            Cell::Text("lost".to_string()),
            Cell::I32(cpu as i32),
            Cell::I64(count),
            Cell::I64(from),
            Cell::I64(to),
            Cell::Text(text),
        ];
        tables.other("notices", Row { cells, ..self.row(time) });
    }

    fn clock(&mut self, time: i64, plan: &mut Plan, tables: &mut Tables) {
        let offset = self.booted + self.skew;
        let bracket = 40 + i64::from(plan.below(100));
        let cells = vec![
            Cell::I64(offset),
            Cell::I64(bracket),
            Cell::I64(100_000 - bracket),
            Cell::I64(20_000),
            Cell::I64(0),
            Cell::I64(0),
            Cell::Bool(true),
            Cell::Text("tai".to_string()),
        ];
        tables.other("clocks", Row { cells, ..self.row(time) });
    }

    fn trace(&mut self, what: &str, tables: &mut Tables) {
        let time = self.last;
        let events = "sched:sched_switch sched:sched_waking raw_syscalls:sys_enter raw_syscalls:sys_exit";
        let mut cells: Vec<_> =
            [what, "6.18.0", events, "", "fence"].iter().map(|text| Cell::Text((*text).to_string())).collect();
        cells.extend([Cell::I64(self.row), Cell::I64(self.row + self.lost), Cell::I64(self.lost)]);
        tables.other("traces", Row { cells, ..self.row(time) });
    }
}
