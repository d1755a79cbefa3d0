//! The resources of a process: descriptors, mappings, threads, memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Bytes that are allocated now.
static ALLOCATED: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, counting.
pub struct Counting;

// SAFETY: everything is the system's allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's word.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED.fetch_add(size as i64 - layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's word.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What this process has.
#[derive(Debug, Clone, Copy, Default)]
pub struct Has {
    pub descriptors: usize,
    pub threads: usize,
    /// Mappings of anonymous inodes, which those of perf events are.
    pub rings: usize,
    pub mappings: usize,
    /// Bytes allocated.
    pub allocated: i64,
    /// KiB resident.
    pub resident: u64,
}

impl Has {
    pub fn now() -> Self {
        let entries = |path| fs::read_dir(path).map_or(0, Iterator::count);
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0);
        let rings = maps.lines().filter(|line| line.contains("anon_inode")).count();
        let mappings = maps.lines().count();
        drop((maps, status));
        Self {
            descriptors: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            rings,
            mappings,
            allocated: ALLOCATED.load(Ordering::Relaxed),
            resident,
        }
    }
}

impl fmt::Display for Has {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { descriptors, threads, rings, mappings, allocated, resident } = self;
        write!(f, "{descriptors} descriptors, {threads} threads, {rings} rings mapped of {mappings} mappings, ")?;
        write!(f, "{allocated} bytes allocated, {resident} KiB resident")
    }
}

/// Compares what is there between rounds with what was there after the first few.
#[derive(Debug, Default)]
pub struct Watch {
    rounds: u64,
    pub first: Has,
    pub last: Has,
    pub most_resident: u64,
}

/// Rounds until the allocator and the thread library have what they keep.
const WARM: u64 = 3;

/// Allocated bytes and mappings that may come and go.
const BYTES: i64 = 64 << 10;
const MAPPINGS: usize = 40;

/// How long something may linger.
const LINGER: Duration = Duration::from_secs(20);

impl Watch {
    /// Between two rounds. Gives what has grown.
    pub fn look(&mut self) -> Option<String> {
        self.last = Has::now();
        // A thread that was joined is listed until the kernel has taken it apart.
        let end = Instant::now() + LINGER;
        while (self.last.threads > 1 || self.rounds >= WARM && self.has_grown()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
            self.last = Has::now();
        }
        self.most_resident = self.most_resident.max(self.last.resident);
        self.rounds += 1;
        if self.rounds <= WARM {
            self.first = self.last;
        }
        self.has_grown().then(|| format!("at first {}; now {}", self.first, self.last))
    }

    fn has_grown(&self) -> bool {
        let Self { first, last, .. } = self;
        // Between two rounds there is the main thread alone.
        let same = (first.descriptors, 1, first.rings) == (last.descriptors, last.threads, last.rings);
        !same || last.allocated > first.allocated + BYTES || last.mappings > first.mappings + MAPPINGS
    }
}
