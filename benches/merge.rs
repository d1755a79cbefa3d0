//! The merge of simulated rings against an unordered walk of the same rings, both in place.
//!
//! `k` rings hold the same number of records, written in bursts of `b` from one ring before the next. Both sides read each
//! record's key and first payload word. Filling the rings is not timed.
//!
//! ```text
//! cargo bench --bench merge
//! ```

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use perfweave::{Hold, Merge, Order, RawRing, sim};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Records in all rings together.
const RECORDS: u64 = 16384;
/// With header and time, 48 bytes in all.
const PAYLOAD: [u8; 28] = [7; 28];

/// Writes `RECORDS` records with keys from `*key` on, in bursts.
fn fill(kernel: &sim::Kernel, cpus: &[u32], burst: u64, key: &mut u64) {
    let mut ring = cpus.iter().cycle();
    let mut cpu = cpus[0];
    for n in 0..RECORDS {
        if n % burst == 0 {
            cpu = *ring.next().expect("a cycle has no end");
        }
        assert!(kernel.emit(cpu, *key, &PAYLOAD), "the ring is too small");
        *key += 1;
    }
}

/// Reads all rings in key order.
fn ordered(merge: &mut Merge) -> u64 {
    merge.refresh(0);
    let mut sum = 0;
    while let Some(event) = merge.next() {
        let payload = event.record().and_then(|record| record.payload()?.u64(0)).unwrap_or(0);
        sum = event.key().unwrap_or(0) ^ payload ^ u64::rotate_left(sum, 1);
    }
    merge.publish();
    sum
}

/// The same through the batch iterator.
fn batched(merge: &mut Merge) -> u64 {
    merge.refresh(0);
    let sum = merge.batch().fold(0, |sum: u64, event| {
        let payload = event.record().and_then(|record| record.payload()?.u64(0)).unwrap_or(0);
        event.key().unwrap_or(0) ^ payload ^ sum.rotate_left(1)
    });
    merge.publish();
    sum
}

/// Reads ring after ring, with no check that is not needed to stay inside: what a plain reader does.
fn unordered(rings: &[RawRing]) -> u64 {
    let mut sum: u64 = 0;
    for ring in rings {
        let page = ring.base.as_ptr();
        let shared = |offset| {
            let word = page.wrapping_add(offset).cast::<AtomicU64>();
            // SAFETY: `data_head`, `data_tail` or `data_offset` in the header page of a simulated ring.
            unsafe { &*word }
        };
        let (head, tail) = (shared(1024), shared(1032));
        let mask = ring.size as u64 - 1;
        let data = page.wrapping_add(shared(1040).load(Ordering::Relaxed) as usize);
        let word = |position: u64| {
            let at = data.wrapping_add((position & mask) as usize).cast::<u64>();
            // SAFETY: below `size`, and aligned because records are.
            unsafe { at.read() }
        };
        let unaligned = |position: u64| {
            let at = (position & mask) as usize;
            if at + 8 > ring.size {
                return 0;
            }
            let at = data.wrapping_add(at).cast::<u64>();
            // SAFETY: within the data area.
            unsafe { at.read_unaligned() }
        };
        let end = head.load(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        while at < end {
            let size = word(at) >> 48;
            sum = word(at + 8) ^ unaligned(at + 20) ^ sum.rotate_left(1);
            at += size;
        }
        tail.store(at, Ordering::Release);
    }
    sum
}

fn merge(c: &mut Criterion) {
    for burst in [1, 16] {
        let mut group = c.benchmark_group(format!("burst {burst}"));
        group.throughput(Throughput::Elements(RECORDS)).measurement_time(Duration::from_secs(2));
        group.warm_up_time(Duration::from_millis(500)).sample_size(30);
        for k in [2, 8, 32, 128u32] {
            let cpus: Vec<u32> = (0..k).collect();
            let bytes = (RECORDS as usize / k as usize * 48 * 2).next_power_of_two();
            let sample_type = 4 | 1024; // PERF_SAMPLE_TIME | PERF_SAMPLE_RAW
            let layout = perfweave::Layout::new(sample_type, true, 0);

            let mut key = 1;
            let kernel = sim::Kernel::with(&cpus, bytes, layout);
            let rings = kernel.rings();
            let raw: Vec<RawRing> = cpus.iter().map(|&cpu| rings.raw(cpu).expect("a ring")).collect();
            let mut timed = |name: &str, mut drain: Box<dyn FnMut() -> u64 + '_>, kernel: &sim::Kernel| {
                group.bench_function(BenchmarkId::new(name, k), |b| {
                    b.iter_custom(|rounds| {
                        let mut time = Duration::ZERO;
                        for _ in 0..rounds {
                            fill(kernel, &cpus, burst, &mut key);
                            let begin = Instant::now();
                            black_box(drain());
                            time += begin.elapsed();
                        }
                        time
                    });
                });
            };
            timed("unordered", Box::new(|| unordered(&raw)), &kernel);
            for (name, drain) in [("merge", ordered as fn(&mut Merge) -> u64), ("batch", batched)] {
                let kernel = sim::Kernel::with(&cpus, bytes, layout);
                let mut merge = Merge::new(kernel.rings(), Order::new().hold(Hold::None)).expect("a merge");
                timed(name, Box::new(move || drain(&mut merge)), &kernel);
            }
        }
        group.finish();
    }
}

criterion_group!(benches, merge);
criterion_main!(benches);
