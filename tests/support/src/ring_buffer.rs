//! BPF programs that write into BPF ring buffers (`BPF_MAP_TYPE_RINGBUF`).

use crate::bpf::{Asm, Kind, Map, Program, Reg, STAMPED};
use std::io;

use Reg::*;

/// `BPF_RB_NO_WAKEUP`
pub const NO_WAKEUP: i32 = 1;
/// `BPF_RB_FORCE_WAKEUP`
pub const FORCE_WAKEUP: i32 = 2;

/// Where and how programs write records of [`STAMPED`] bytes: `u64 time` by `bpf_ktime_get_ns()`, `u64 number` of a
/// counter of the machine, `u32 kind`, `u32 cpu`.
#[derive(Debug, Clone, Copy)]
pub struct Reserving<'a> {
    /// A ring buffer, or an array of maps with one for each CPU.
    pub rings: &'a Map,
    /// [`counter`]; or [`Map::counts`], and each CPU has numbers of its own, drawn where the key is, or where a
    /// reservation is refused.
    pub counter: &'a Map,
    /// [`Map::counts`]: reservations that were refused.
    pub failures: &'a Map,
    /// Where the key is drawn.
    pub way: Way,
    /// Discards, of so many numbers, a power of two, the last.
    pub discard: Option<u32>,
}

/// Where a program draws its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Between the reservation and submitting it.
    Inside,
    /// There too, behind a locked instruction: as with `perfweave_reserve` of `perfweave.bpf.h`.
    Barrier,
    /// Before the reservation.
    KeyFirst,
    /// Before `bpf_ringbuf_output()`.
    Output,
}

/// Turns of work: between reservation and key, and between key and submitting. Where the key comes first, both lie
/// behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Turns {
    pub before: u32,
    pub after: u32,
}

/// An array with two numbers: the next number, which is how many records were tried, and how many were discarded.
pub fn counter() -> io::Result<Map> {
    Map::array(16, 1)
}

impl Reserving<'_> {
    /// A raw tracepoint program for `sys_enter` that writes when this process calls a system call.
    pub fn on_syscall(&self, number: libc::c_long, kind: u32, turns: Turns) -> io::Result<Program> {
        let mut asm = Asm::new();
        asm.load(R1, R1, 8).only_if(R1, number as i32).only_process(std::process::id());
        self.load(Kind::RawTracepoint, asm, kind, turns)
    }

    /// A program for [`Program::attach_clock`]: it interrupts the others.
    pub fn on_clock(&self, kind: u32) -> io::Result<Program> {
        self.load(Kind::PerfEvent, Asm::new(), kind, Turns::default())
    }

    /// A program for [`Program::run_on`].
    pub fn when_run(&self, kind: u32) -> io::Result<Program> {
        self.load(Kind::RawTracepoint, Asm::new(), kind, Turns::default())
    }

    /// A sleepable program for [`Program::run_here`]. Before it submits, it reads the memory at its argument
    /// ([`Sleeper::address`](crate::sleeper::Sleeper::address); 0 for none).
    pub fn when_called(&self, kind: u32) -> io::Result<Program> {
        let mut asm = Asm::new();
        asm.load(R6, R1, 0);
        self.load(Kind::Syscall, asm, kind, Turns::default())
    }

    fn load(&self, program: Kind, mut asm: Asm, kind: u32, turns: Turns) -> io::Result<Program> {
        self.write(&mut asm, kind, turns, program == Kind::Syscall);
        asm.mov_i(R0, 0).exit();
        Program::load(program, &asm)
    }

    /// The number of the machine is drawn first, since that is a locked instruction.
    fn write(&self, asm: &mut Asm, kind: u32, turns: Turns, sleeps: bool) {
        let is_first = matches!(self.way, Way::KeyFirst | Way::Output);
        let is_own = self.counter.is_by_cpu();
        asm.ring(self.rings);
        if is_own {
            // Where this CPU's counter is: a reservation may not be left because there is none.
            asm.mov_i(R1, 0).store_u32(R10, -28, R1).element(self.counter, -28).store(R10, -56, R0);
        } else {
            asm.map_value(R0, self.counter, 0).store(R10, -56, R0);
        }
        if is_first || !is_own {
            draw(asm);
        }
        if is_first {
            asm.ktime().store(R10, -24, R0).delay(turns.before).delay(turns.after);
        }
        if self.way == Way::Output {
            asm.cpu().mov_i(R1, kind as i32).store_u32(R10, -8, R1).store_u32(R10, -4, R0);
            asm.ring_output(-24, STAMPED, 0);
            asm.unless(R0, 0, |asm| asm.count(self.failures));
            return;
        }
        asm.reserve(STAMPED, |asm| {
            if is_own && !is_first {
                draw(asm);
            }
            asm.count(self.failures).mov_i(R0, 0).exit()
        });
        if is_own && !is_first {
            draw(asm);
        }
        if is_first {
            asm.load(R1, R10, -24).store(R8, 0, R1);
        } else {
            asm.delay(turns.before);
            if self.way == Way::Barrier {
                asm.barrier();
            }
            asm.ktime().store(R8, 0, R0);
        }
        asm.load(R1, R10, -16)
            .store(R8, 8, R1)
            .cpu()
            .mov_i(R1, kind as i32)
            .store_u32(R8, 16, R1)
            .store_u32(R8, 20, R0);
        if !is_first {
            asm.delay(turns.after);
        }
        if sleeps {
            asm.mov_i(R1, 0).store(R10, -48, R1).copy_from_user(-48, 8, R6);
        }
        self.finish(asm);
    }

    fn finish(&self, asm: &mut Asm) {
        if let Some(every) = self.discard {
            let last = every as i32 - 1;
            asm.load(R1, R10, -16).and_i(R1, last).when(R1, last, |asm| {
                asm.discard(0).mov_i(R1, 1).map_value(R2, self.counter, 8).fetch_add(R2, 0, R1);
                asm.mov_i(R0, 0).exit()
            });
        }
        asm.submit(0);
    }
}

/// Draws the next number of the counter whose address is at R10 - 56, and keeps it at R10 - 16.
fn draw(asm: &mut Asm) {
    asm.mov_i(R1, 1).load(R2, R10, -56).fetch_add(R2, 0, R1).store(R10, -16, R1);
}

/// A program for [`Program::run_with`] that writes a record of `size` bytes with its first argument in the first eight
/// and in the last eight, and returns 0; or 1 where the reservation is refused.
pub fn echo(rings: &Map, size: u32, flags: i32) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.load(R6, R1, 0).ring(rings).reserve(size, |asm| asm.mov_i(R0, 1).exit());
    asm.store(R8, 0, R6);
    // Offsets in an instruction have 16 bits.
    asm.mov(R1, R8).add_i(R1, size as i32 - 8).store(R1, 0, R6);
    asm.submit(flags).mov_i(R0, 0).exit();
    Program::load(Kind::RawTracepoint, &asm)
}

/// As [`echo`], but the record is discarded.
pub fn discarding(rings: &Map, size: u32, flags: i32) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.ring(rings).reserve(size, |asm| asm.mov_i(R0, 1).exit()).discard(flags).mov_i(R0, 0).exit();
    Program::load(Kind::RawTracepoint, &asm)
}

/// A sleepable program for [`Program::run_here`] that reserves eight bytes, reads the memory at its first argument
/// ([`Sleeper::address`](crate::sleeper::Sleeper::address)), and submits its second argument, or the time if that is
/// zero. Returns 0; or 1 where the reservation is refused.
pub fn sleeping(rings: &Map) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.load(R6, R1, 0).load(R7, R1, 8).ring(rings).reserve(8, |asm| asm.mov_i(R0, 1).exit());
    asm.when(R7, 0, |asm| asm.ktime().mov(R7, R0)).store(R8, 0, R7);
    asm.mov_i(R1, 0).store(R10, -16, R1).copy_from_user(-16, 8, R6);
    asm.submit(0).mov_i(R0, 0).exit();
    Program::load(Kind::Syscall, &asm)
}

/// As [`sleeping`], but it draws the time before all, sleeps, and then outputs the time (`bpf_ringbuf_output()`). All
/// of that is inside writers' epochs.
pub fn sleeping_inside(rings: &Map, epochs: &Map) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.load(R6, R1, 0).enter(epochs).ktime().store(R10, -8, R0);
    asm.mov_i(R0, 0).store(R10, -16, R0).copy_from_user(-16, 8, R6);
    asm.map(R9, rings).ring_output(-8, 8, 0).leave().mov_i(R0, 0).exit();
    Program::load(Kind::Syscall, &asm)
}

/// A program for [`Program::run_on`] that outputs the time, inside writers' epochs.
pub fn timed_inside(rings: &Map, epochs: &Map) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.enter(epochs).ktime().store(R10, -8, R0);
    asm.map(R9, rings).ring_output(-8, 8, 0).leave().mov_i(R0, 0).exit();
    Program::load(Kind::RawTracepoint, &asm)
}

/// A program for [`Program::run_on`] that returns what `bpf_ringbuf_query()` says.
pub fn query(rings: &Map, what: crate::bpf::Query) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.ring(rings).query(what).exit();
    Program::load(Kind::RawTracepoint, &asm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::Query;
    use crate::foreign::page_size;
    use crate::sleeper::Sleeper;
    use crate::{kernel, load};
    use std::os::fd::{AsFd, AsRawFd};
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    const BYTES: u32 = 1 << 20;
    const BUSY: u32 = 1 << 31;
    const DISCARD: u32 = 1 << 30;

    /// The smallest reader there is.
    struct Mapped {
        consumer: *const AtomicU64,
        producer: *const AtomicU64,
        size: usize,
    }

    impl Mapped {
        fn new(ring: &Map, size: u32) -> Self {
            let fd = ring.as_fd().as_raw_fd();
            let map = |len, protection, offset| {
                // SAFETY: a new mapping, kept for ever.
                let base =
                    unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, offset as i64) };
                assert_ne!(base, libc::MAP_FAILED);
                base.cast_const().cast()
            };
            let consumer = map(page_size(), libc::PROT_READ | libc::PROT_WRITE, 0);
            let producer = map(page_size() + 2 * size as usize, libc::PROT_READ, page_size());
            Self { consumer, producer, size: size as usize }
        }

        /// Takes what lies before the first busy record: what is submitted, and how many were discarded.
        fn take(&self) -> (Vec<Vec<u8>>, u64) {
            let (mut records, mut discarded) = (Vec::new(), 0);
            // SAFETY: mapped.
            let (consumer, producer) = unsafe { (&*self.consumer, &*self.producer) };
            let (mut at, end) = (consumer.load(Ordering::Relaxed), producer.load(Ordering::Acquire));
            while at < end {
                // SAFETY: within the data, which is mapped twice.
                let record = unsafe { self.producer.byte_add(page_size() + at as usize % self.size) };
                // SAFETY: as above, and headers are aligned.
                let header = unsafe { &*record.cast::<AtomicU32>() }.load(Ordering::Acquire);
                if header & BUSY != 0 {
                    break;
                }
                let len = (header & !DISCARD) as usize;
                if header & DISCARD == 0 {
                    // SAFETY: as above.
                    records.push(unsafe { std::slice::from_raw_parts(record.byte_add(8).cast(), len) }.to_vec());
                } else {
                    discarded += 1;
                }
                at += (8 + len as u64).next_multiple_of(8);
            }
            consumer.store(at, Ordering::SeqCst);
            (records, discarded)
        }
    }

    fn u64_at(record: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(record[at..at + 8].try_into().unwrap())
    }

    fn u32_at(record: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(record[at..at + 4].try_into().unwrap())
    }

    /// Every kind of program, in every way, into one ring buffer and into one for each CPU.
    #[test]
    fn programs_of_all_kinds_write() {
        let cpus = load::online();
        for shared in [true, false] {
            let made = if shared {
                Map::ring_buffer(BYTES).map(|ring| (None, vec![ring]))
            } else {
                Map::ring_buffers(BYTES, &cpus).map(|(array, rings)| (Some(array), rings))
            };
            let Some((array, maps)) = kernel("make ring buffers", made) else { return };
            let rings = array.as_ref().unwrap_or(&maps[0]);
            let mapped: Vec<_> = maps.iter().map(|ring| Mapped::new(ring, BYTES)).collect();
            for way in [Way::Inside, Way::Barrier, Way::KeyFirst, Way::Output] {
                let (counter, failures) = (counter().unwrap(), Map::counts().unwrap());
                let reserving = Reserving { rings, counter: &counter, failures: &failures, way, discard: None };
                let turns = Turns { before: 2000, after: 2000 };
                let slow = reserving.on_syscall(libc::SYS_getpgid, 1, turns).unwrap();
                let (clock, run) = (reserving.on_clock(2).unwrap(), reserving.when_run(3).unwrap());
                let called = reserving.when_called(4).unwrap();
                let link = slow.attach_raw_tracepoint("sys_enter").unwrap();
                let clocks: Vec<_> = cpus.iter().map(|&cpu| clock.attach_clock(cpu, 50_000).unwrap()).collect();
                for &cpu in &cpus {
                    load::pinned(cpu, || {
                        (0..100).for_each(|_| load::getpgid());
                        assert_eq!(called.run_here(&[0]).unwrap(), 0);
                    });
                    assert_eq!(run.run_on(cpu).unwrap(), 0);
                }
                drop((link, clocks));
                let mut records = Vec::new();
                for (ring, mapped) in mapped.iter().enumerate() {
                    for record in mapped.take().0 {
                        assert_eq!(record.len(), STAMPED as usize);
                        assert!(shared || u32_at(&record, 20) == cpus[ring]);
                        records.push(record);
                    }
                }
                assert_eq!(records.len() as u64, counter.lookup_u64(0, 0).unwrap() - failures.counted().unwrap());
                for kind in 1..=4 {
                    assert!(records.iter().any(|record| u32_at(record, 16) == kind), "{way:?}: none of kind {kind}");
                }
                records.sort_by_key(|record| u64_at(record, 8));
                assert!(records.windows(2).all(|two| u64_at(&two[0], 8) != u64_at(&two[1], 8)));
                assert!(records.iter().all(|record| u64_at(record, 0) > 0));
            }
        }
    }

    #[test]
    fn what_is_refused_is_counted_and_what_is_discarded_is_not_there() {
        let small = page_size() as u32;
        let Some(ring) = kernel("make a ring buffer", Map::ring_buffer(small)) else { return };
        let mapped = Mapped::new(&ring, small);
        for way in [Way::Inside, Way::Output] {
            let (counter, failures) = (counter().unwrap(), Map::counts().unwrap());
            let discard = (way == Way::Inside).then_some(4);
            let reserving = Reserving { rings: &ring, counter: &counter, failures: &failures, way, discard };
            let run = reserving.when_run(1).unwrap();
            for _ in 0..small {
                assert_eq!(run.run_on(0).unwrap(), 0);
            }
            let (records, discarded) = mapped.take();
            assert_eq!(discarded, counter.lookup_u64(0, 8).unwrap());
            assert_eq!(discarded > 0, discard.is_some());
            // The kernel keeps one free.
            assert_eq!(records.len() as u64 + discarded, u64::from(small / 32 - 1));
            assert_eq!(records.len() as u64 + discarded + failures.counted().unwrap(), u64::from(small));
        }
    }

    #[test]
    fn long_records_queries_and_one_that_sleeps() {
        let Some((hash, rings)) = kernel("make ring buffers", Map::hash_of_ring_buffers(BYTES, &[0])) else { return };
        let mapped = Mapped::new(&rings[0], BYTES);
        let long = echo(&hash, 100_000, FORCE_WAKEUP).unwrap();
        for number in 0..50 {
            assert_eq!(long.run_with(0, &[number]).unwrap(), 0);
            let (records, _) = mapped.take();
            assert_eq!(
                (records[0].len(), u64_at(&records[0], 0), u64_at(&records[0], 99_992)),
                (100_000, number, number)
            );
        }
        assert_eq!(query(&rings[0], Query::Size).unwrap().run_on(0).unwrap(), BYTES as i32);
        assert_eq!(query(&rings[0], Query::Producer).unwrap().run_on(0).unwrap(), 50 * 100_008);
        assert_eq!(query(&rings[0], Query::Consumer).unwrap().run_on(0).unwrap(), 50 * 100_008);
        assert_eq!(discarding(&rings[0], 8, NO_WAKEUP).unwrap().run_on(0).unwrap(), 0);
        assert_eq!(query(&rings[0], Query::Available).unwrap().run_on(0).unwrap(), 16);
        assert_eq!(mapped.take(), (vec![], 1));

        let sleeping = sleeping(&rings[0]).unwrap();
        let Some(sleeper) = kernel("make memory that is waited for", Sleeper::new()) else { return };
        let short = echo(&rings[0], 8, 0).unwrap();
        std::thread::scope(|scope| {
            let program = scope.spawn(|| sleeping.run_here(&[sleeper.address(), 7]).unwrap());
            let asleep = sleeper.until_asleep();
            assert_eq!(short.run_with(0, &[8]).unwrap(), 0);
            assert_eq!(mapped.take(), (vec![], 0), "both wait for the one that sleeps");
            drop(asleep);
            assert_eq!(program.join().unwrap(), 0);
        });
        assert_eq!(mapped.take().0, [7u64, 8].map(|number| number.to_ne_bytes().to_vec()));
    }
}
